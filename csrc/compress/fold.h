/* What becomes of arenas where units of a layer are merged: the unit i of a layer goes into unit `into[i]` of those
 * that are left, times factor[i]. So are weights, and so is the residue of compression: what has not been sent of a
 * unit that goes is not lost, but sent later as part of the unit that it went into. (Moments are not folded but
 * selected.)
 *
 * Folding is linear, so the fold of a sum is the sum of the folds: where sent + residue = sum of the gradients, the
 * same holds of what has been folded. */
#ifndef GG_COMPRESS_FOLD_H
#define GG_COMPRESS_FOLD_H

#include <stdint.h>

#include "base/status.h"

typedef struct gg_fold {
    int64_t units;       /* before */
    int64_t left;        /* afterwards; at most `units` */
    const int64_t *into; /* of each unit: 0 to left-1; -1: it goes without a trace */
    const float *factor; /* of each unit; that of one that stays is 1 */
} gg_fold;

/* `in` is outer x units x inner elements, `out` outer x left x inner, elsewhere, and gets
 * out[o][j][k] = sum over the units i with into[i] = j, in their order, of factor[i] * in[o][i][k].
 * The rows of a weight matrix of the layer itself: outer 1, inner its inputs. The columns of the one that reads the
 * layer: outer its outputs, inner the values that it reads of one unit. Errors name the unit. */
gg_status gg_fold_run(const gg_fold *fold, int64_t outer, int64_t inner, const float *in, float *out);

#endif
