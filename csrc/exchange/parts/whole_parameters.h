/* Private to the room: the weighted sum over ranks of the parameters that travel whole beside packed messages. They are
 * copied together, so that one dense reduction sums them. */
#ifndef GG_EXCHANGE_PARTS_WHOLE_PARAMETERS_H
#define GG_EXCHANGE_PARTS_WHOLE_PARAMETERS_H

#include "comm/allreduce.h"
#include "exchange/codec/packed.h"
#include "exchange/strategy.h"

/* The caller fills in the first part, and zeros behind it. */
typedef struct gg_whole_parameters {
    gg_strategy *owner;
    gg_transport *group;
    const gg_segment *segment; /* borrowed; `segments` of them */
    int segments;
    float *residue, *applied; /* arenas, by their elements 0; applied NULL: not wanted */

    size_t count;      /* of the values of all, whole lanes */
    float *values;     /* message memory: one parameter after the other */
    gg_allreduce *sum; /* NULL: there are none, and all calls do nothing */
    int64_t loads;     /* of the owner: since so many their residues are 0 */
} gg_whole_parameters;

/* Where the values of a parameter are, `count` whole lanes from element `offset` of the arenas on. */
typedef const float *gg_whole_source(void *context, size_t offset, size_t count);

/* Collective, in one order on all ranks of the group. */
gg_status gg_whole_create(gg_whole_parameters *whole, int tag);
void gg_whole_destroy(gg_whole_parameters *whole); /* cancels what is in flight; all zero is fine */

/* Copies the values and sends them; the sum is weighted by share[size of the group], which must remain valid until it
 * is there. A residue that was loaded with such a parameter travels with it. `applied` gets what this rank sends. */
gg_status gg_whole_start(gg_whole_parameters *whole, gg_whole_source *source, void *context, const float *share,
                         gg_compression_counts *counts, size_t *bytes);
/* *done: the sum is in `data`, which are given by the arenas' element 0. With `wait` it is. */
gg_status gg_whole_advance(gg_whole_parameters *whole, float *data, bool wait, bool *done);
/* Until the peers have read it, too. */
gg_status gg_whole_finish(gg_whole_parameters *whole);
void gg_whole_cancel(gg_whole_parameters *whole);

#endif
