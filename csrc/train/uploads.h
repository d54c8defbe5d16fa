/* Private to the room: batches on their way to a device with memory of its own.
 *
 * The host writes a batch as the data set has it, uint8 where that is uint8, into one of two blocks that the device
 * shares. It goes up by GG_QUEUE_COPY, to one of two blocks of the device, while the device computes with the batch
 * before. The plan turns it there into what it reads. One rank, one thread. */
#ifndef GG_TRAIN_UPLOADS_H
#define GG_TRAIN_UPLOADS_H

#include "comm/transport.h"
#include "data/loader.h"
#include "nn/plan.h"

#define GG_UPLOADS 2

typedef struct gg_upload {
    char *host, *device; /* blocks of the same size; what lies in both has the same offset */
    gg_mark sent;        /* `host` has been read */
    gg_mark used;        /* `device` has been read */
} gg_upload;

/* Zero-initialised: of no device. */
typedef struct gg_uploads {
    gg_device *device;       /* NULL: the rank's device works in the host's memory, and there is nothing to upload */
    gg_transport *transport; /* of the rank, whose messages move while it waits for a block */
    gg_upload upload[GG_UPLOADS];
    int next;                             /* that is written now, or next */
    bool timed;                           /* with a trace: the copies' times are asked for */
    int64_t time[2];                      /* of the last copy, before and behind */
    size_t room, filled;                  /* bytes of each; of it written */
    gg_gather_args gather[GG_MAX_FIELDS]; /* of the batch that is written: its inputs */
} gg_uploads;

/* Both outlive it. */
void gg_uploads_open(gg_device *device, gg_transport *transport, gg_uploads *out);
void gg_uploads_close(gg_uploads *u);
/* Room for batches of n samples of a set, or of a caller's arrays for these inputs and heads, so that sending them
 * allocates nothing. Waits where there was less. */
gg_status gg_uploads_reserve_set(gg_uploads *u, const gg_dataset *set, int64_t n);
gg_status gg_uploads_reserve_given(gg_uploads *u, const gg_graph *graph, const gg_head_options *head, int64_t n);

/* Reads step t of the loader, n > 0 samples of a set like this one, for the plan: into its inputs and `batch`, or
 * through an upload. out: the batch, to be run before the next one is read, and followed by gg_uploads_done. host:
 * device of the host's memory, for what it prepares. */
gg_status gg_uploads_read(gg_uploads *u, gg_loader *loader, gg_device *host, const gg_dataset *set, int64_t t,
                          int64_t n, gg_plan *plan, gg_batch *batch, gg_plan_batch *out);
/* The same for n rows of a caller's arrays: of each input, and each target that heads have. */
gg_status gg_uploads_give(gg_uploads *u, gg_device *host, const gg_graph *graph, const gg_head_options *head, int64_t n,
                          const void *const *input, const void *const *target, gg_plan *plan, gg_plan_batch *out);
/* The run of the batch has been given to the device. */
void gg_uploads_done(gg_uploads *u);

#endif
