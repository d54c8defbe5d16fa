/* Memory that the ranks of one node share, so that a large message between them is read in place.
 *
 * A node's ranks agree on every step: either all have a block, or none, and they use plain memory. For a large message
 * in a shared block the sender sends a descriptor of 32 bytes. The receiver reads the bytes in its own mapping and then
 * sets an acknowledgement slot in shared memory.
 *
 * Between ranks that share memory, a message is a descriptor if and only if it has 32 bytes and begins with
 * GG_SHARED_MARK. Other messages of that form are copied into shared memory and described. So the sides' expected sizes
 * do not matter, and other messages of 32 bytes cost one comparison. */
#ifndef GG_COMM_MPI_MPI_SHARED_H
#define GG_COMM_MPI_MPI_SHARED_H

#include <mpi.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/status.h"
#include "comm/halt.h"

/* Smaller messages are sent directly. */
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

/* Collective over `comm`. Never fails for lack of shared memory: *out then shares nothing, as with GOSSIPGRAD_SHARED=0.
 * GOSSIPGRAD_RANKS_PER_NODE=N, equal on all ranks, is for tests: N consecutive ranks count as a node. halt listens
 * while ranks wait for each other; NULL means none. */
gg_status gg_shared_create(MPI_Comm comm, gg_halt *halt, gg_shared **out);
/* Collective. touch_mpi false, after a failure, leaves the communicator alone. */ void
gg_shared_destroy(gg_shared *shared, bool touch_mpi);

/* The lowest rank of the communicator that is on this node. */
int gg_shared_first(const gg_shared *shared);

/* Collective: fails if ranks of the node have not come after `timeout` seconds (0 means for ever). *out NULL means that
 * nothing is shared and the caller allocates plain memory. Zeroed. */
gg_status gg_shared_alloc(gg_shared *shared, size_t bytes, const char *what, double timeout, void **out);
/* False means that the block is not gg_shared_alloc's. */
bool gg_shared_free(gg_shared *shared, void *block);
/* gg_message_recycle for shared blocks. */
void gg_shared_recycle(gg_shared *shared, bool on);

/* Sender. *described true means: send the descriptor, which holds a slot; false means: send the message. GG_ERROR_COMM:
 * a message must be described and no slot is free; GG_SHARED_MARKED slots are reserved for such messages. */
#define GG_SHARED_MARKED 256
gg_status gg_shared_describe(gg_shared *shared, int peer, const void *data, size_t bytes, bool *described,
                             gg_shared_descriptor *out);
/* True once the receiver has released it; the slot is free again then. */
bool gg_shared_acknowledged(gg_shared *shared, uint32_t slot);

/* Receiver: true if a message from `peer` is a descriptor. */
bool gg_shared_is_descriptor(const gg_shared *shared, int peer, const void *data, size_t bytes);
/* Receiver: finds the message of `peer`. */
gg_status gg_shared_locate(gg_shared *shared, int peer, const gg_shared_descriptor *descriptor, const void **data);
void gg_shared_acknowledge(gg_shared *shared, const gg_shared_descriptor *descriptor);

#endif
