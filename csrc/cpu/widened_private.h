/* What operations of bfloat16 that compute in float32 (widened.c) are made of: the conversions of activations, and the
 * parts of a batch. */
#ifndef GG_CPU_WIDENED_PRIVATE_H
#define GG_CPU_WIDENED_PRIVATE_H

#include "cpu/shared.h"

/* The input or the output of such an operation, of a part of the batch. */
typedef struct gg_widened_side {
    gg_shape shape;
    gg_layout layout; /* in bfloat16 */
    bool turned;      /* in float32 it lies BATCH_LAST, else as in bfloat16 */
    int64_t samples;
    size_t narrow, wide; /* bfloat16, padded channels included, and float32, with their padding */
} gg_widened_side;

/* mask: in bfloat16; numbers become 0 where it is not positive, and are left so in `narrow`. NULL: none do, and
 * `narrow` is not written. */
void gg_widened_widen(gg_device *device, const gg_widened_side *side, const uint16_t *mask, uint16_t *narrow,
                      float *wide);
/* relu: of what has been narrowed. */
void gg_widened_narrow(gg_device *device, const gg_widened_side *side, bool relu, float *wide, uint16_t *narrow);

/* In how many parts a batch is computed, of as many samples each; more than 1: of a convolution of large images. */
int64_t gg_widened_parts(const gg_op_desc *desc);
/* What computes a part in float32, by `create`; wide: of the whole batch. *data becomes *inner or, with several parts,
 * an operation of its own: what the gradient of the weights leaves for it in scratch is of one part. *parts becomes 1
 * where the batch is not divided. After a failure, too, the caller destroys both. */
gg_status gg_widened_create_parts(gg_device *device, const gg_op_desc *wide, gg_cpu_create_fn create, int64_t *parts,
                                  gg_op **inner, gg_op **data);

/* Of a convolution. */
static inline int64_t gg_widened_weights(const gg_op_desc *desc) {
    const gg_window *window = &desc->window;
    return desc->output.size[0] * (desc->input[0].size[0] / desc->groups) * window->kernel[0] * window->kernel[1];
}

#endif
