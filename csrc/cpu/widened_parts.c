/* Convolutions of large images compute some samples after the others, so that scratch memory is that of a part of the
 * batch. The gradients of their weights are added up in the order of the parts, which depend on the shapes alone. */
#include "cpu/widened_private.h"

/* A batch is divided where its input and output have more numbers than this, to parts that have some. Each part's
 * gradient of the weights is added: all of them together are at most 1/LEAST_SHARE of the numbers. */
enum { MOST_NUMBERS = 4 << 20, LEAST_NUMBERS = 1 << 19, LEAST_SHARE = 4 };

/* The fewest that are small enough, or as many as are allowed. */
int64_t gg_widened_parts(const gg_op_desc *desc) {
    if (desc->kind != GG_OP_CONV2D || desc->groups < 1) return 1;
    const int64_t sample = gg_shape_count(&desc->input[0]) + gg_shape_count(&desc->output);
    int64_t parts = 1;
    for (int64_t next = 2; next <= desc->batch && desc->batch / parts * sample > MOST_NUMBERS; ++next) {
        if (desc->batch % next != 0) continue;
        if (desc->batch / next * sample < LEAST_NUMBERS) break;
        if (next * gg_widened_weights(desc) > desc->batch * sample / LEAST_SHARE) break;
        parts = next;
    }
    return parts;
}

static size_t narrow_bytes(const gg_op *op, bool output) {
    const gg_format format = {GG_BFLOAT16, output ? op->output.layout : op->input[0].layout};
    return gg_format_bytes(format, output ? &op->desc.output : &op->desc.input[0], op->desc.batch);
}

/* Whether operations of a part can be run for all parts: activations lie alike, and each part of them begins where
 * kernels may read it. */
static bool serve_parts(const gg_op *inner, const gg_op *data) {
    return data->input[0].layout == inner->input[0].layout && data->output.layout == inner->output.layout &&
           narrow_bytes(inner, false) % GG_ALIGNMENT == 0 && narrow_bytes(inner, true) % GG_ALIGNMENT == 0 &&
           inner->saved_bytes == 0 && data->saved_bytes == 0;
}

gg_status gg_widened_create_parts(gg_device *device, const gg_op_desc *wide, gg_cpu_create_fn create, int64_t *parts,
                                  gg_op **inner, gg_op **data) {
    gg_op_desc own = *wide;
    own.batch /= *parts;
    GG_TRY(create(device, &own, inner));
    *data = *inner;
    if (*parts == 1) return GG_OK;
    if (own.training && own.input_grad && gg_op_has_pass(&own, GG_PASS_WEIGHTS) && gg_op_has_pass(&own, GG_PASS_DATA)) {
        own.passes = 1u << GG_PASS_DATA;
        *data = NULL;
        GG_TRY(create(device, &own, data));
    }
    if (serve_parts(*inner, *data)) return GG_OK;
    if (*data != *inner) gg_op_destroy(*data);
    gg_op_destroy(*inner);
    *parts = 1;
    *inner = *data = NULL;
    GG_TRY(create(device, wide, inner));
    *data = *inner;
    return GG_OK;
}
