/* Private to the room: the gradients from which a packed reduction chooses, this rank's for a run of the arenas.
 *
 * With accumulation, each element passes the optimiser's first half (gg_updater_accumulate) once, before it is read.
 * Weight gradients of linear layers given by inputs and errors are computed as they are read (factored.h). Other
 * messages progress meanwhile. */
#ifndef GG_EXCHANGE_PARTS_PACKED_SOURCE_H
#define GG_EXCHANGE_PARTS_PACKED_SOURCE_H

#include "exchange/codec/packed.h"
#include "exchange/parts/factored.h"
#include "exchange/strategy.h"

/* The caller fills in the first part, and zeroes the rest. */
typedef struct gg_packed_source {
    gg_strategy *owner;
    gg_transport *group;
    float *base; /* the gradients, by the address of the arenas' element 0 */

    float *equal_share; /* with accumulation: the shares of sent values, equal for all ranks; else NULL */
    float own_scale;    /* likewise: factor of this rank's gradient in this step */
    float *room;        /* likewise: gg_accumulation's */
    size_t room_count;
    gg_factored *factored; /* of linear layers whose gradients are no arrays; NULL means none */
    size_t passed;         /* elements read since messages last progressed */
    gg_status progressed;
} gg_packed_source;

/* Room to accumulate runs of up to `count` elements; without this call data are not accumulated. */
gg_status gg_packed_source_accumulate(gg_packed_source *source, size_t count);
/* Lets weight gradients of linear layers among these segments be computed instead of stored. residue: by its element 0.
 */
gg_status gg_packed_source_factor(gg_packed_source *source, const gg_segment *segment, int segments,
                                  const float *residue);
void gg_packed_source_destroy(gg_packed_source *source); /* all zero is a no-op */

/* Begins a sum with these shares. gradients: the data's first element, `offset` in the arenas. Returns the shares of
 * the sent values. */
const float *gg_packed_source_begin(gg_packed_source *source, float *gradients, size_t offset, const float *share);

/* gg_packing.prepare; context: the source. */
const float *gg_packed_source_prepare(void *context, size_t offset, size_t count);
/* gg_whole_source: returns a run, as it is to be sent, of elements that only this call reads; context: the source. */
const float *gg_packed_source_run(void *context, size_t offset, size_t count);
/* Accumulates a run in place. */
void gg_packed_source_fill(gg_packed_source *source, size_t offset, size_t count);

/* Counts `count` more elements as read, and lets messages progress now and then. A failure of messages is kept for
 * gg_packed_source_failure. */
void gg_packed_source_progress(gg_packed_source *source, size_t count);
gg_status gg_packed_source_failure(gg_packed_source *source);

#endif
