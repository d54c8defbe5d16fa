/* Private to the room: the weighted sum over ranks of parameters that travel whole beside packed messages. They are
 * copied together, so that one dense reduction sums them. */
#ifndef GG_EXCHANGE_PARTS_WHOLE_PARAMETERS_H
#define GG_EXCHANGE_PARTS_WHOLE_PARAMETERS_H

#include "comm/allreduce.h"
#include "exchange/codec/packed.h"
#include "exchange/strategy.h"

/* The caller fills in the first part, and zeroes the rest. */
typedef struct gg_whole_parameters {
    gg_strategy *owner;
    gg_transport *group;
    const gg_segment *segment; /* borrowed; `segments` entries */
    int segments;
    float *residue, *applied; /* arenas, by their elements 0; applied NULL means not wanted */

    size_t count;      /* values of all parameters, whole lanes */
    float *values;     /* message memory: one parameter after the other */
    gg_allreduce *sum; /* NULL means no such parameters: all calls are no-ops */
    int64_t loads;     /* the owner's `loads` since which these residues are 0 */
} gg_whole_parameters;

/* Returns the values of a parameter, `count` whole lanes from element `offset` of the arenas on. */
typedef const float *gg_whole_source(void *context, size_t offset, size_t count);

/* Collective, in one order on all ranks of the group. */
gg_status gg_whole_create(gg_whole_parameters *whole, int tag);
void gg_whole_destroy(gg_whole_parameters *whole); /* cancels a sum in flight; all zero is a no-op */

/* Copies the values and sends them. share[size of the group] weights the sum and stays valid until it is complete. A
 * loaded residue of such a parameter travels with it. `applied` receives the values that this rank sends. */
gg_status gg_whole_start(gg_whole_parameters *whole, gg_whole_source *source, void *context, const float *share,
                         gg_compression_counts *counts, size_t *bytes);
/* *done: the sum is in `data`, given by the arenas' element 0. With `wait`, waits for it. */
gg_status gg_whole_advance(gg_whole_parameters *whole, float *data, bool wait, bool *done);
/* Waits until the peers have read the values too. */
gg_status gg_whole_finish(gg_whole_parameters *whole);
void gg_whole_cancel(gg_whole_parameters *whole);

#endif
