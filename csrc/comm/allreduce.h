/* The all-reduce of a large arena, over any transport, whole or in halves. Sums are added in a fixed order, so MPI and
 * the virtual cluster give the same bits, on every rank and in every run; GG_COLLECTIVES_MPI is the exception. All
 * ranks make the same calls in the same order. Functions that start a sum, and gg_allreduce_poll, do not block; the
 * others sleep while they wait. */
#ifndef GG_COMM_ALLREDUCE_H
#define GG_COMM_ALLREDUCE_H

#include "comm/transport.h"
#include "ops/backend.h"
#include "ops/codec.h"

/* Weighted sum of a large arena over the ranks, in place: data = sum over r of scale[r] * data_r, in rank order. The
 * bits do not depend on the cut of an arena into reductions. A reduce-scatter (rank i adds slice i of all ranks) and an
 * all-gather: each rank sends 2(p-1)/p of the arena. Created for one size, so a run allocates nothing. `data` should
 * come from gg_message_alloc unless the form has memory; any memory works.
 *
 * Several may be in flight at once, each with its own tag. All ranks start all of them before they wait for one, and
 * wait in the same order. After a failure nothing of a reduction is in flight, and its messages are lost. */
typedef struct gg_allreduce gg_allreduce;

#define GG_TAG_ALLREDUCE 8 /* for a reduction that is in flight alone */

/* The part of the data that a rank adds: a run of whole lanes; count 0 means nothing. */
typedef struct gg_allreduce_slice {
    size_t begin, count;
} gg_allreduce_slice;

/* The slice of `rank` in an even cut of `count` elements, whole lanes. */
gg_allreduce_slice gg_allreduce_even_slice(size_t count, int rank, int ranks);

/* The form of values in messages. They are summed in float32.
 *
 * With an exact codec data = the sum, and `rest` and `displaces` change nothing. Otherwise:
 *
 * - displaces false: the sum is rounded as well, to equal bits on every rank. With `rest` the rank that adds a slice
 *   also computes rest += rounded sum - sum, so (sum over the ranks of rest) - data is unaffected by rounding.
 * - displaces true, for means: every rank receives and adds the rounded difference between the mean and its sent
 *   values. So data keep digits that the codec cannot represent, no small update is lost, the mean over the ranks is
 *   preserved, and ranks agree to the codec's precision. */
typedef struct gg_allreduce_form {
    const gg_codec *codec;
    void *memory;   /* the caller's `count` encoded elements, from gg_message_alloc, in use from start to finish. NULL
                       means that the codec is exact and values are sent from `data` */
    float *applied; /* NULL, or the caller's `count` elements, to which the start adds this rank's sent values */
    float *rest;    /* NULL, or the caller's `count` elements; written before the sum is complete */
    bool exact_sum; /* the sum is sent as float32 from `data`, whatever the codec: equal bits on every rank, without
                       `rest`. rest must be NULL, displaces false */
    bool displaces; /* makes creation and destruction collective; rest must be NULL */
    const gg_allreduce_slice *slice; /* one a rank, without overlap; the caller's. NULL means an even cut */
    /* NULL means one whole reduction. Otherwise it runs in halves, and the second half (gg_allreduce_gather) gathers
     * the slices of all ranks in these `count` elements of the caller, which no peer reads. Slices are sent as float32,
     * whatever the codec. rest and applied are then NULL, displaces and exact_sum false, and MPI does not add. */
    float *gathered;
} gg_allreduce_form;

/* The library that adds. MPI: each rank's scaled values go through gg_sum. `data` comes from gg_message_alloc, values
 * are sent as float32, and creation is collective. Bits are equal on every rank, but not in every run. All ranks start
 * their sums in the same order. */
typedef enum gg_collectives { GG_COLLECTIVES_OWN = 0, GG_COLLECTIVES_MPI, GG_COLLECTIVES_COUNT } gg_collectives;

/* form NULL means float32 values, sent from `data`. */
gg_status gg_allreduce_create(gg_transport *transport, gg_device *device, size_t count, int tag,
                              const gg_allreduce_form *form, gg_collectives by, gg_allreduce **out);
void gg_allreduce_destroy(gg_allreduce *allreduce);
/* cancels everything in flight; NULL is a no-op */ /* Sends, and returns at once. `data` must not be read or
                                                       written before the sum is complete, nor written before the
                                                       finish. scale[size of group] is equal on every rank and
                                                       remains valid until the sum is complete. */
gg_status gg_allreduce_start(gg_allreduce *allreduce, float *data, const float *scale);
/* Starts a sum of the first `count` elements: whole lanes, equal on all ranks, at most the size at creation. */
gg_status gg_allreduce_start_some(gg_allreduce *allreduce, float *data, size_t count, const float *scale);
/* Continues without waiting, as far as messages have arrived. *summed: data holds the sum; true if nothing was started.
 */
gg_status gg_allreduce_poll(gg_allreduce *allreduce, bool *summed);
gg_status gg_allreduce_wait(gg_allreduce *allreduce);   /* until data holds the sum */
gg_status gg_allreduce_finish(gg_allreduce *allreduce); /* until the peers have also read it: data may be written */
void gg_allreduce_cancel(gg_allreduce *allreduce);      /* everything in flight is lost; NULL is a no-op */

/* ---- In halves ----
 * The owner transforms its slice's sum, and all ranks receive the result. gg_allreduce_poll and gg_allreduce_wait go to
 * the end of the started half: *summed first says that the own slice of data holds the sum, then that `gathered` holds
 * the slices of all peers. The next sum may then be started while peers still read the own slice; gg_allreduce_finish
 * waits for these reads. Sends from `data` are complete. */

/* Replaces gg_allreduce_start if every rank computes the sum of its slice itself: no part is sent. */
gg_status gg_allreduce_start_without_parts(gg_allreduce *allreduce, float *data);
/* Waits until the peers have read the last slice of gg_allreduce_gather: its memory may be written. */
gg_status gg_allreduce_wait_read(gg_allreduce *allreduce);
/* Second half: sends the own slice from message memory, which is not written before the peers have read it. */
gg_status gg_allreduce_gather(gg_allreduce *allreduce, const float *own);
/* The rank's clock when the half's last message arrived; 0 means none did. */
double gg_allreduce_arrived(const gg_allreduce *allreduce);

/* Reports waits for messages to `waited`; sums and copies are no waits. */
void gg_allreduce_watch(gg_allreduce *allreduce, gg_waited *waited, void *context);
/* A whole reduction, blocking. */
gg_status gg_allreduce_run(gg_allreduce *allreduce, float *data, const float *scale);

#endif
