/* Memory that the ranks of one node share, so that a large message between them is read where it lies.
 *
 * A node's ranks agree on every step: either all of them have a block, or none (plain memory then). Instead of a large
 * message from a shared block its sender sends a descriptor of 32 bytes; the receiver reads the bytes in its own
 * mapping and then sets an acknowledgement slot, which also lies in shared memory, so that the sender knows.
 *
 * Between ranks that share memory every message of 32 bytes that begins with GG_SHARED_MARK is a descriptor, and no
 * other is. A message that would be read as one, because it happens to have this size and beginning, is copied into
 * shared memory and described. So nothing depends on the sizes that the two sides expect, and other messages of 32
 * bytes cost one comparison. */
#ifndef GG_COMM_MPI_MPI_SHARED_H
#define GG_COMM_MPI_MPI_SHARED_H

#include <mpi.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/status.h"
#include "comm/mpi/mpi_halt.h"

/* Smaller messages are sent as they are. */
#define GG_SHARED_MIN_BYTES 4096
#define GG_SHARED_MARK 0x67676d73u

typedef struct gg_shared_descriptor {
    uint32_t mark;
    uint32_t block;
    uint64_t offset, bytes;
    uint32_t slot;
    uint32_t place; /* of the sender on its node */
} gg_shared_descriptor;

_Static_assert(sizeof(gg_shared_descriptor) == 32, "a descriptor has 32 bytes");

typedef struct gg_shared gg_shared;

/* Collective over `comm`. Never fails for want of shared memory: *out is then an object that shares nothing, as it is
 * on a node with GOSSIPGRAD_SHARED=0. GOSSIPGRAD_RANKS_PER_NODE=N, the same on all ranks, is for tests: so many
 * consecutive ranks count as a node. halt: which listens while ranks wait for each other; NULL: none. */
gg_status gg_shared_create(MPI_Comm comm, gg_mpi_halt *halt, gg_shared **out);
/* Collective; touch_mpi false: after a failure, leaves the communicator alone. */
void gg_shared_destroy(gg_shared *shared, bool touch_mpi);

/* The lowest rank of the communicator that is on this node. */
int gg_shared_first(const gg_shared *shared);

/* Collective: fails where ranks of the node have not come after `timeout` seconds (0: for ever). *out NULL: nothing is
 * shared here, and the caller allocates plain memory. Zeroed. */
gg_status gg_shared_alloc(gg_shared *shared, size_t bytes, const char *what, double timeout, void **out);
/* False: not a block of gg_shared_alloc. */
bool gg_shared_free(gg_shared *shared, void *block);
/* gg_message_recycle. */
void gg_shared_recycle(gg_shared *shared, bool on);

/* Sender. *described: the message goes as a descriptor, which holds a slot; false: it goes as it is. GG_ERROR_COMM: it
 * must be described, and there is no slot; for such messages GG_SHARED_MARKED slots are reserved. */
#define GG_SHARED_MARKED 256
gg_status gg_shared_describe(gg_shared *shared, int peer, const void *data, size_t bytes, bool *described,
                             gg_shared_descriptor *out);
/* True once the receiver has released it; the slot is free again then. */
bool gg_shared_acknowledged(gg_shared *shared, uint32_t slot);

/* Receiver: whether what has come from `peer` is a descriptor. */
bool gg_shared_is_descriptor(const gg_shared *shared, int peer, const void *data, size_t bytes);
/* Receiver: where the message of `peer` lies. */
gg_status gg_shared_locate(gg_shared *shared, int peer, const gg_shared_descriptor *descriptor, const void **data);
void gg_shared_acknowledge(gg_shared *shared, const gg_shared_descriptor *descriptor);

#endif
