/* Private to the room: what a packed reduction chooses from, this rank's gradients of a run of the arenas.
 *
 * Where data are accumulated, each element goes through the optimiser's first half (gg_updater_accumulate) once, before
 * it is read. Where there are a linear layer's inputs and errors, the gradient of its weight is computed as it is read
 * (factored.h). Other messages progress meanwhile. */
#ifndef GG_EXCHANGE_PARTS_PACKED_SOURCE_H
#define GG_EXCHANGE_PARTS_PACKED_SOURCE_H

#include "exchange/codec/packed.h"
#include "exchange/parts/factored.h"
#include "exchange/strategy.h"

/* The caller fills in the first part, and zeros behind it. */
typedef struct gg_packed_source {
    gg_strategy *owner;
    gg_transport *group;
    float *base; /* the gradients, by the address that the arenas' first element would have */

    float *equal_share; /* where data are accumulated: the weights of what all ranks have; else NULL */
    float own_scale;    /* likewise: of this rank's gradient in this step */
    float *room;        /* likewise: gg_accumulation's */
    size_t room_count;
    gg_factored *factored; /* of linear layers whose gradients are no arrays; NULL: there are none */
    size_t passed;         /* elements since messages have progressed */
    gg_status progressed;
} gg_packed_source;

/* Room to accumulate runs of up to `count` elements; without it data are not accumulated. */
gg_status gg_packed_source_accumulate(gg_packed_source *source, size_t count);
/* Gradients of the weights of linear layers among these segments need be no arrays. residue: by its element 0. */
gg_status gg_packed_source_factor(gg_packed_source *source, const gg_segment *segment, int segments,
                                  const float *residue);
void gg_packed_source_destroy(gg_packed_source *source); /* all zero is fine */

/* A sum with these shares begins, and `gradients` are the data's first element, `offset` in the arenas. Returns the
 * shares of what is sent. */
const float *gg_packed_source_begin(gg_packed_source *source, float *gradients, size_t offset, const float *share);

/* gg_packing.prepare; context: the source. */
const float *gg_packed_source_prepare(void *context, size_t offset, size_t count);
/* A run that is read here alone, as it is to be sent (gg_whole_source); context: the source. */
const float *gg_packed_source_run(void *context, size_t offset, size_t count);
/* Accumulates a run in its place. */
void gg_packed_source_fill(gg_packed_source *source, size_t offset, size_t count);

/* `count` elements more have been worked on. A failure of messages is kept until it is asked for. */
void gg_packed_source_progress(gg_packed_source *source, size_t count);
gg_status gg_packed_source_failure(gg_packed_source *source);

/* The segment is that of a linear layer's weight. */
bool gg_packed_is_weight(const gg_arena_layout *layout, const gg_segment *segment);

#endif
