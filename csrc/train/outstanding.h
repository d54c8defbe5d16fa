/* Private to the room: training steps given to a rank's device and not completed.
 *
 * On the CPU a step is complete when its call returns. A device with its own memory computes while the rank continues
 * with the next step, at most GG_MAX_OUTSTANDING steps ahead. Results are read in the order of the steps, after the
 * device has completed them. One rank, one thread. */
#ifndef GG_TRAIN_OUTSTANDING_H
#define GG_TRAIN_OUTSTANDING_H

#include "comm/transport.h"
#include "nn/plan.h"

#define GG_MAX_OUTSTANDING 2

typedef struct gg_outstanding_step {
    int64_t step;       /* of training */
    int64_t samples;    /* of this rank; 0 means that it only serves */
    gg_mark report;     /* as gg_plan_train gives it */
    gg_loss_sums *sums; /* GG_MAX_FIELDS; host memory that the device shares */
    bool counted;       /* it belongs to an epoch */
    /* With a trace, times of gg_device_time, 0 if there are none. copy: before and after the batch's copy. compute:
     * before the step's work, after the losses and gradients, after the end of the exchange. */
    int64_t copy[2], compute[3];
} gg_outstanding_step;

/* Zero-initialised means empty, without a device. */
typedef struct gg_outstanding {
    gg_device *device;
    gg_transport *transport; /* the rank's; its messages move during waits */
    gg_loss_sums *memory;
    gg_outstanding_step place[GG_MAX_OUTSTANDING];
    int first, count; /* of the places, a ring */
} gg_outstanding;

/* Device and transport outlive it. */
gg_status gg_outstanding_create(gg_device *device, gg_transport *transport, gg_outstanding *out);
void gg_outstanding_clear(gg_outstanding *o); /* waits for the device */
/* Returns a free place for one more step, which becomes outstanding by gg_outstanding_add; before that, returns one
 * place again. There must be room. */
gg_outstanding_step *gg_outstanding_next(gg_outstanding *o);
void gg_outstanding_add(gg_outstanding *o);
/* Returns the oldest step if it is complete, or if more than `most` are outstanding: then it waits, while messages move
 * and requests are answered. Otherwise *out is NULL. The step is no longer outstanding, and valid until the next one is
 * added. A failure of its work names the step. */
gg_status gg_outstanding_read(gg_outstanding *o, int most, const gg_outstanding_step **out);

#endif
