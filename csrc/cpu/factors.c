/* The gradient of a linear layer's weight in runs of whole rows, each computed where it is read next, from packed
 * inputs and errors. The kernels are those of the whole gradient, and each element is one sum over the samples in their
 * order, so its bits are the same.
 *
 * Inputs are kept as panels of columns, and errors as rows with one lane a sample; or both as tiles of split products,
 * where the whole gradient is one. */
#include <string.h>

#include "cpu/gemm_kernels.h"
#include "cpu/sgemm_split.h"
#include "cpu/shared.h"

/* Elements of the rows that are computed at a time: about, and at most, where kernels want several long rows. */
#define ROWS_ELEMENTS 49152
#define MOST_ROWS_ELEMENTS (4 * ROWS_ELEMENTS)

static const gg_split_kernels *split_of(const gg_device *device, const gg_gradient_factors *f) {
    return gg_weight_gradient_is_split(device->isa, f->batch, f->in) ? gg_split_kernels_for(device->isa) : NULL;
}

static int64_t panel_floats(const gg_device *device, const gg_gradient_factors *f) {
    return gg_gemm_kernels_for(device->isa)->panel * f->batch;
}

/* What several threads compute they would read from each other's caches, and longer sums than a panel has terms are
 * cut, with other bits. What is kept should be much less than the gradient that it stands for. */
bool gg_cpu_factors(const gg_device *device, gg_gradient_factors *f) {
    const gg_gemm_kernels *kernels = gg_gemm_kernels_for(device->isa);
    const gg_split_kernels *split = split_of(device, f);
    const int64_t step = split != NULL ? 2 * GG_SPLIT_SIDE : kernels->tile_rows;
    const int64_t steps = ROWS_ELEMENTS / (f->in * step);
    if (device->threads > 1 || (split == NULL && f->batch > GG_SGEMM_TERMS)) return false;
    f->rows = step * (steps > 0 ? steps : 1);
    if (f->rows * f->in > MOST_ROWS_ELEMENTS) return false;
    if (split != NULL) {
        f->input_bytes = (size_t)gg_split_packed(f->in, f->batch) * sizeof(uint16_t);
        f->error_bytes = (size_t)gg_split_packed(f->out, f->batch) * sizeof(uint16_t);
    } else {
        const int64_t panels = gg_block_count(f->in, kernels->panel);
        f->input_bytes = (size_t)(panels * panel_floats(device, f)) * sizeof(float);
        f->error_bytes = (size_t)(f->out * gg_lanes_padded(f->batch)) * sizeof(float);
    }
    return f->input_bytes + f->error_bytes < (size_t)(f->in * f->out) * sizeof(float) / 2;
}

static void keep_tiles(const gg_split_kernels *split, bool columns, const gg_vectors *from, void *out) {
    const bool lanes = from->layout == GG_LAYOUT_BATCH_LAST;
    const gg_split_pack pack = {.count = from->features,
                                .terms = from->batch,
                                .from = from->data,
                                .step = lanes ? gg_lanes_padded(from->batch) : from->features,
                                .across = !lanes,
                                .out = out};
    if (columns) split->pack_cols(&pack);
    else split->pack_rows(&pack);
}

void gg_cpu_keep_input(gg_device *device, const gg_gradient_factors *f, const gg_vectors *input, void *out) {
    const gg_split_kernels *split = split_of(device, f);
    const bool lanes = input->layout == GG_LAYOUT_BATCH_LAST;
    if (split != NULL) keep_tiles(split, true, input, out);
    else
        gg_gemm_kernels_for(device->isa)
            ->pack_panels(f->in, f->batch, input->data, lanes ? gg_lanes_padded(f->batch) : f->in, lanes, out,
                          panel_floats(device, f));
}

void gg_cpu_keep_error(gg_device *device, const gg_gradient_factors *f, const gg_vectors *error, void *out) {
    const gg_split_kernels *split = split_of(device, f);
    if (split != NULL) keep_tiles(split, false, error, out);
    else if (error->layout == GG_LAYOUT_BATCH_LAST) memcpy(out, error->data, f->error_bytes);
    else gg_cpu_transpose(device, f->batch, f->out, true, error->data, out);
}

void gg_cpu_gradient_rows(gg_device *device, const gg_gradient_factors *f, const void *input, const void *error,
                          int64_t first, int64_t count, float *out) {
    const gg_split_kernels *split = split_of(device, f);
    const int64_t lanes = gg_lanes_padded(f->batch);
    if (split != NULL) {
        const int64_t group = gg_split_group(f->batch);
        split->multiply(&(gg_split_product){.m = count,
                                            .n = f->in,
                                            .terms = f->batch,
                                            .a = (const uint16_t *)error + gg_split_packed(first, f->batch),
                                            .b = input,
                                            .a_group = group,
                                            .b_group = group,
                                            .c = out,
                                            .c_row = f->in});
    } else {
        gg_gemm_kernels_for(device->isa)
            ->panels(&(gg_panels){.m = count,
                                  .n = f->in,
                                  .k = f->batch,
                                  .a = (const float *)error + first * lanes,
                                  .a_row = lanes,
                                  .b = input,
                                  .b_panel = panel_floats(device, f),
                                  .c = out,
                                  .c_row = f->in,
                                  .far = true});
    }
}
