/* Private to the room: the sum over ranks of the values at elements that one rank has chosen for all, in a dense
 * reduction of as many values as are chosen. */
#ifndef GG_EXCHANGE_PARTS_CHOSEN_VALUES_H
#define GG_EXCHANGE_PARTS_CHOSEN_VALUES_H

#include "comm/allreduce.h"
#include "exchange/codec/packed.h"
#include "exchange/strategy.h"

/* The caller fills in the first part, and zeros behind it. */
typedef struct gg_chosen_values {
    gg_strategy *owner;
    gg_transport *group;
    const gg_packing *packing; /* borrowed */
    float *residue, *applied;  /* arenas, by their elements 0; applied NULL: not wanted */

    const gg_codec *codec; /* of a value as it travels */
    gg_allreduce *sum;     /* NULL: not created */
    float *values;         /* message memory: those of this rank, then their sum */
    void *travelling;      /* message memory: the values as they travel; NULL: the codec is exact */
    float *ones;           /* one a rank */
} gg_chosen_values;

/* At most `most` values. Collective, in one order on all ranks of the group. */
gg_status gg_chosen_create(gg_chosen_values *chosen, size_t most, int tag);
void gg_chosen_destroy(gg_chosen_values *chosen); /* cancels what is in flight; all zero is fine */

/* Moves the residue's values at the elements of a choice, which gg_choice_values has checked and counted, and sends
 * them; `applied` gets them. *bytes: what they have as they travel is added. */
gg_status gg_chosen_start(gg_chosen_values *chosen, const void *choice, size_t count, size_t *bytes);
/* *done: the sum has been added to `data`, which are given by the arenas' element 0. With `wait` it is. */
gg_status gg_chosen_advance(gg_chosen_values *chosen, const void *choice, float *data, bool wait, bool *done);
/* Until the peers have read it, too. */
gg_status gg_chosen_finish(gg_chosen_values *chosen);
void gg_chosen_cancel(gg_chosen_values *chosen);

#endif
