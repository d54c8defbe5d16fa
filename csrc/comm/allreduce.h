/* The all-reduce of a large arena, over any transport, whole or in halves. Sums are added in a fixed order, so MPI and
 * the virtual cluster give the same bits, on every rank and in every run; GG_COLLECTIVES_MPI is the exception. All
 * ranks make the same calls in the same order. Those that start something and gg_allreduce_poll do not block; the
 * others sleep while they wait. */
#ifndef GG_COMM_ALLREDUCE_H
#define GG_COMM_ALLREDUCE_H

#include "comm/transport.h"
#include "ops/backend.h"
#include "ops/codec.h"

/* Weighted sum over the ranks of a large arena, in place: data = sum over r of scale[r] * data_r, in rank order, so the
 * result has the same bits however an arena is cut into reductions. It is a reduce-scatter (rank i adds slice i of all
 * ranks) and an all-gather: each rank sends 2(p-1)/p of the arena. Created for one size so that a run allocates
 * nothing. `data` should come from gg_message_alloc unless the form has memory; any memory works.
 *
 * Several may be in flight at once. Each then has its own tag; all ranks start all of them before they wait for one,
 * and wait in the same order. After a failure nothing of a reduction is in flight, and its messages are lost. */
typedef struct gg_allreduce gg_allreduce;

#define GG_TAG_ALLREDUCE 8 /* for reductions of which only one is in flight */

/* What a rank adds of the data: a run in whole lanes; count 0: nothing. */
typedef struct gg_allreduce_slice {
    size_t begin, count;
} gg_allreduce_slice;

/* That of `rank` where `count` elements, whole lanes, are cut evenly. */
gg_allreduce_slice gg_allreduce_even_slice(size_t count, int rank, int ranks);

/* How the values travel. They are summed in float32.
 *
 * Where the codec is exact, data = the sum, and `rest` and `displaces` change nothing. Else:
 * displaces false: the sum is rounded as well: the same bits on every rank. With `rest`, where all sums must add up,
 * the rank that adds a slice also computes rest += rounded sum - sum. So (sum over the ranks of rest) - data is as it
 * would be without rounding. displaces true, for means: every rank receives the rounded difference between the mean and
 * what it sent, and adds it. So data retain the digits that the codec cannot represent, and no small update is lost;
 * the mean over the ranks is preserved, and the ranks agree to the codec's precision. */
typedef struct gg_allreduce_form {
    const gg_codec *codec;
    void *memory;   /* `count` elements as they travel, from gg_message_alloc, the caller's; in use from the start until
                       the finish. NULL: the codec is exact, and values travel from where they lie */
    float *applied; /* NULL, or `count` elements, the caller's, to which the start adds what this rank sends */
    float *rest;    /* NULL, or `count` elements, the caller's; written before the sum is there */
    bool exact_sum; /* the sum travels as float32, from where the data lie, whatever the codec: the same bits on every
                       rank, and what `rest` is for is not lost. rest must be NULL, and displaces false */
    bool displaces; /* creation and destruction are collective then; rest must be NULL */
    const gg_allreduce_slice *slice; /* one a rank, none of which overlap; the caller's. NULL: an even cut */
    /* NULL: it is all one. Else, in halves, `count` elements that no peer reads, the caller's: where the slices of all
     * ranks are gathered in the second half (gg_allreduce_gather). They travel as float32, whatever the codec; rest and
     * applied are NULL then, displaces and exact_sum false, and MPI does not add. */
    float *gathered;
} gg_allreduce_form;

/* Which library adds. MPI: each rank's scaled values go through gg_sum (see there): `data` comes from gg_message_alloc,
 * values travel as float32, and creation is collective; the bits are the same on every rank, but not in every run. All
 * ranks start their sums in the same order. */
typedef enum gg_collectives { GG_COLLECTIVES_OWN = 0, GG_COLLECTIVES_MPI, GG_COLLECTIVES_COUNT } gg_collectives;

/* form: NULL: values travel as float32, from where they lie. */
gg_status gg_allreduce_create(gg_transport *transport, gg_device *device, size_t count, int tag,
                              const gg_allreduce_form *form, gg_collectives by, gg_allreduce **out);
void gg_allreduce_destroy(gg_allreduce *allreduce); /* cancels what is in flight; NULL is fine */

/* Sends, and returns at once. `data` must not be touched before the sum is there, and not be written before the finish.
 * scale[size of group]: the same on every rank; it must remain valid until the sum is there. */
gg_status gg_allreduce_start(gg_allreduce *allreduce, float *data, const float *scale);
/* The same with the first `count` elements, the same number on all ranks: whole lanes, at most as many as it was
 * created for. */
gg_status gg_allreduce_start_some(gg_allreduce *allreduce, float *data, size_t count, const float *scale);
/* Continues without waiting, as far as messages have arrived. *summed: data holds the sum; also if nothing was
 * started. */
gg_status gg_allreduce_poll(gg_allreduce *allreduce, bool *summed);
gg_status gg_allreduce_wait(gg_allreduce *allreduce);   /* until data holds the sum */
gg_status gg_allreduce_finish(gg_allreduce *allreduce); /* until the peers have read it, too: data may be written */
void gg_allreduce_cancel(gg_allreduce *allreduce);      /* what is in flight is lost; NULL is fine */

/* ---- In halves ----
 * The owner makes something of its slice's sum, which all ranks receive in place of the sum. gg_allreduce_poll and
 * gg_allreduce_wait go to the end of the half that was started: *summed says first that the own slice of the data holds
 * the sum, then that `gathered` holds the slices of all peers. The next sum may be started then, while peers still read
 * the own slice; gg_allreduce_finish waits for these. Of what peers read of the data nothing is in flight any more. */

/* In place of gg_allreduce_start, where every rank computes the sum of its slice itself: no part is sent. */
gg_status gg_allreduce_start_without_parts(gg_allreduce *allreduce, float *data);
/* Waits until the peers have read the slice that gg_allreduce_gather sent last: its memory may be written. */
gg_status gg_allreduce_wait_read(gg_allreduce *allreduce);
/* The second half: sends the own slice, in message memory that is not written before the peers have read it. */
gg_status gg_allreduce_gather(gg_allreduce *allreduce, const float *own);
/* When the last message of the half arrived, on the rank's clock; 0: none did. */
double gg_allreduce_arrived(const gg_allreduce *allreduce);

/* Counts the waits for messages; sums and copies are no waits. */
void gg_allreduce_watch(gg_allreduce *allreduce, gg_waited *waited, void *context);
/* All of it, blocking. */
gg_status gg_allreduce_run(gg_allreduce *allreduce, float *data, const float *scale);

#endif
