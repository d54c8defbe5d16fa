/* Private to the room: batches on their way to a device with its own memory.
 *
 * 1. The host writes a batch in the data set's types (uint8 stays uint8) into one of two blocks that the device shares.
 * 2. GG_QUEUE_COPY copies it to one of two blocks of the device, while the device computes with the batch before.
 * 3. The plan converts it there to its inputs.
 *
 * One rank, one thread. */
#ifndef GG_TRAIN_UPLOADS_H
#define GG_TRAIN_UPLOADS_H

#include "comm/transport.h"
#include "data/loader.h"
#include "nn/plan.h"

#define GG_UPLOADS 2

typedef struct gg_upload {
    char *host, *device; /* blocks of equal size and with equal offsets */
    gg_mark sent;        /* `host` has been read */
    gg_mark used;        /* `device` has been read */
} gg_upload;

/* Zero-initialised means no device. */
typedef struct gg_uploads {
    gg_device *device;       /* NULL means that the device uses host memory: nothing is uploaded */
    gg_transport *transport; /* the rank's; its messages move during waits for a block */
    gg_upload upload[GG_UPLOADS];
    int next;                             /* being written, or written next */
    bool timed;                           /* with a trace: request the copies' times */
    int64_t time[2];                      /* before and after the last copy */
    size_t room, filled;                  /* bytes of each block; bytes written */
    gg_gather_args gather[GG_MAX_FIELDS]; /* inputs of the batch that is being written */
} gg_uploads;

/* Device and transport outlive it. */
void gg_uploads_open(gg_device *device, gg_transport *transport, gg_uploads *out);
void gg_uploads_close(gg_uploads *u);
/* Makes room for batches of n samples of a set, or of a caller's arrays for these inputs and heads, so that sending
 * them allocates nothing. Waits if it must enlarge the room. */
gg_status gg_uploads_reserve_set(gg_uploads *u, const gg_dataset *set, int64_t n);
gg_status gg_uploads_reserve_given(gg_uploads *u, const gg_graph *graph, const gg_head_options *head, int64_t n);

/* Reads step t of the loader, n > 0 samples of a set like this one, for the plan: into its inputs and `batch`, or
 * through an upload. out: the batch; run it before the next one is read, then call gg_uploads_done. host: device of
 * host memory, for preparation. */
gg_status gg_uploads_read(gg_uploads *u, gg_loader *loader, gg_device *host, const gg_dataset *set, int64_t t,
                          int64_t n, gg_plan *plan, gg_batch *batch, gg_plan_batch *out);
/* gg_uploads_read for n rows of a caller's arrays: of each input, and each target of the heads. */
gg_status gg_uploads_give(gg_uploads *u, gg_device *host, const gg_graph *graph, const gg_head_options *head, int64_t n,
                          const void *const *input, const void *const *target, gg_plan *plan, gg_plan_batch *out);
/* Tells that the batch's run has been given to the device. */
void gg_uploads_done(gg_uploads *u);

#endif
