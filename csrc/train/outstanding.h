/* Private to the room: training steps that a rank's device has been given and has not completed.
 *
 * On the CPU a step is complete when its call returns. With a device that has memory of its own the rank goes on to the
 * next step while the device computes, at most GG_MOST_OUTSTANDING steps ahead of it. What a step comes to is read, in
 * the order of the steps, when the device has done it. One rank, one thread. */
#ifndef GG_TRAIN_OUTSTANDING_H
#define GG_TRAIN_OUTSTANDING_H

#include "comm/transport.h"
#include "nn/plan.h"

#define GG_MOST_OUTSTANDING 2

typedef struct gg_outstanding_step {
    int64_t step;       /* of training */
    int64_t samples;    /* of this rank; 0: it only serves */
    gg_mark report;     /* as gg_plan_train gives it */
    gg_loss_sums *sums; /* GG_MAX_FIELDS; host memory that the device shares */
    bool counted;       /* it belongs to an epoch */
    /* With a trace, as gg_device_time gives them, 0 where there are none: before the batch's copy and behind it; before
     * the step's work, behind the losses and gradients, and behind the end of the exchange. */
    int64_t copy[2], compute[3];
} gg_outstanding_step;

/* Zero-initialised: there is nothing, and no device. */
typedef struct gg_outstanding {
    gg_device *device;
    gg_transport *transport; /* of the rank, whose messages move while it waits */
    gg_loss_sums *memory;
    gg_outstanding_step place[GG_MOST_OUTSTANDING];
    int first, count; /* of the places, going around */
} gg_outstanding;

/* Both outlive it. */
gg_status gg_outstanding_create(gg_device *device, gg_transport *transport, gg_outstanding *out);
void gg_outstanding_clear(gg_outstanding *o); /* waits for the device */
/* A place for one more step, which is outstanding after gg_outstanding_add; before that the place may be asked for
 * again. There is room. */
gg_outstanding_step *gg_outstanding_next(gg_outstanding *o);
void gg_outstanding_add(gg_outstanding *o);
/* The oldest step if it is complete, or where more than `most` are outstanding: then it waits, and messages move and
 * requests are answered meanwhile. Else NULL in *out. The step is outstanding no more, and valid until the next one is
 * added. A failure of its work names the step. */
gg_status gg_outstanding_read(gg_outstanding *o, int most, const gg_outstanding_step **out);

#endif
