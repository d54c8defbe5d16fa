/* Private to the room: the sum over ranks at elements that one rank has chosen for all, by a dense reduction of the
 * chosen values. */
#ifndef GG_EXCHANGE_PARTS_CHOSEN_VALUES_H
#define GG_EXCHANGE_PARTS_CHOSEN_VALUES_H

#include "comm/allreduce.h"
#include "exchange/codec/packed.h"
#include "exchange/strategy.h"

/* The caller fills in the first part, and zeroes the rest. */
typedef struct gg_chosen_values {
    gg_strategy *owner;
    gg_transport *group;
    const gg_packing *packing; /* borrowed */
    float *residue, *applied;  /* arenas, by their elements 0; applied NULL means not wanted */

    const gg_codec *codec; /* of a value on the wire */
    gg_allreduce *sum;     /* NULL means not created */
    float *values;         /* message memory: this rank's values, then their sum */
    void *travelling;      /* message memory: the values on the wire; NULL means that the codec is exact */
    float *ones;           /* one a rank */
} gg_chosen_values;

/* Max `most` values. Collective, in one order on all ranks of the group. */
gg_status gg_chosen_create(gg_chosen_values *chosen, size_t most, int tag);
void gg_chosen_destroy(gg_chosen_values *chosen); /* cancels a sum in flight; all zero is a no-op */

/* Moves the residue's values at the chosen elements, and sends them; `applied` receives them. gg_choice_values has
 * checked and counted the choice. *bytes grows by the values' bytes on the wire. */
gg_status gg_chosen_start(gg_chosen_values *chosen, const void *choice, size_t count, size_t *bytes);
/* *done: the sum has been added to `data`, given by the arenas' element 0. With `wait`, waits for it. */
gg_status gg_chosen_advance(gg_chosen_values *chosen, const void *choice, float *data, bool wait, bool *done);
/* Waits until the peers have read the values too. */
gg_status gg_chosen_finish(gg_chosen_values *chosen);
void gg_chosen_cancel(gg_chosen_values *chosen);

#endif
