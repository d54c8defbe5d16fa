/* The gradient of a linear layer's weight in runs of whole rows, each computed where it is read next, from packed
 * inputs and errors. The kernels are those of the whole gradient, and sums over the samples begin and end as there, so
 * the bits are the same.
 *
 * Inputs are kept as panels of columns, and errors as rows with one lane a sample; or both as split or paired products
 * read them, where the whole gradient is one. */
#include <string.h>

#include "base/parallel.h"
#include "cpu/gemm_kernels.h"
#include "cpu/sgemm_paired.h"
#include "cpu/sgemm_split.h"
#include "cpu/shared.h"

/* Elements of the rows that a thread computes at a time: about, and at most, where kernels want several long rows. */
#define ROWS_ELEMENTS 65536
#define MOST_ROWS_ELEMENTS (3 * ROWS_ELEMENTS)
/* Of long rows: products of fewer would wait for their operands. */
#define LEAST_ROWS 4

static const gg_split_kernels *split_of(const gg_device *device, const gg_gradient_factors *f) {
    return gg_weight_gradient_is_split(device->isa, f->batch, f->in) ? gg_split_kernels_for(device->isa) : NULL;
}

static const gg_paired_kernels *paired_of(const gg_device *device, const gg_gradient_factors *f) {
    const bool paired = split_of(device, f) == NULL && gg_weight_gradient_is_paired(device->isa, f->batch, f->in);
    return paired ? gg_paired_kernels_for(device->isa) : NULL;
}

/* Of paired products: of all parts of `count` vectors. */
static size_t grouped_bytes(const gg_gradient_factors *f, int64_t count) {
    return (size_t)(gg_paired_parts(f->batch) * gg_paired_part_step(count, f->batch)) * sizeof(float);
}

static int64_t panel_floats(const gg_device *device, const gg_gradient_factors *f) {
    return gg_gemm_kernels_for(device->isa)->panel * f->batch;
}

/* Arrays for which three quarters of the second cache have room, beside all inputs and a thread's rows. A tile fetches
 * a row of a panel in each term; it has tile_rows of each array to fetch. */
static int64_t fetched_beside(const gg_device *device, const gg_gradient_factors *f, int64_t rows) {
    const int64_t cache = (int64_t)((const gg_cpu_device *)device)->second_cache / (int64_t)sizeof(float);
    const int64_t room = cache * 3 / 4 - (f->batch + rows) * f->in, most = room / (rows * f->in);
    const int64_t by_terms = f->batch / gg_gemm_kernels_for(device->isa)->tile_rows;
    return room < 0 ? 0 : most < by_terms ? most : by_terms;
}

/* Longer sums than a panel has terms are cut, with other bits. What is kept should be much less than the gradient that
 * it stands for. */
bool gg_cpu_factors(const gg_device *device, gg_gradient_factors *f) {
    const gg_gemm_kernels *kernels = gg_gemm_kernels_for(device->isa);
    const bool split = split_of(device, f) != NULL, paired = paired_of(device, f) != NULL;
    const int64_t step = split ? 2 * GG_SPLIT_SIDE : paired ? GG_PAIRED_LANES : kernels->tile_rows;
    const int64_t least = split || paired ? step : LEAST_ROWS, fit = ROWS_ELEMENTS / f->in;
    if (!split && !paired && f->batch > GG_SGEMM_TERMS) return false;
    f->rows = fit >= step ? fit / step * step : fit > least ? fit : least;
    if (f->rows * f->in > MOST_ROWS_ELEMENTS) return false;
    f->fetched = split || paired ? 0 : (int)fetched_beside(device, f, f->rows);
    f->rows *= device->threads;
    if (split) {
        f->input_bytes = (size_t)gg_split_packed(f->in, f->batch) * sizeof(uint16_t);
        f->error_bytes = (size_t)gg_split_packed(f->out, f->batch) * sizeof(uint16_t);
    } else if (paired) {
        f->input_bytes = grouped_bytes(f, f->in);
        f->error_bytes = grouped_bytes(f, f->out);
    } else {
        const int64_t panels = gg_block_count(f->in, kernels->panel);
        f->input_bytes = (size_t)(panels * panel_floats(device, f)) * sizeof(float);
        f->error_bytes = (size_t)(f->out * gg_lanes_padded(f->batch)) * sizeof(float);
    }
    return f->input_bytes + f->error_bytes < (size_t)(f->in * f->out) * sizeof(float) / 2;
}

/* Features of the vectors that a thread keeps. */
typedef struct keep_job {
    const gg_device *device;
    const gg_gradient_factors *factors;
    const gg_vectors *from;
    const gg_split_kernels *split;
    const gg_paired_kernels *paired;
    bool columns; /* of split products: else rows */
    void *out;
} keep_job;

/* The address of a feature, and in *step how far its samples, or with `lanes` the next feature's, lie apart. */
static const float *feature_at(const gg_vectors *from, int64_t feature, bool *lanes, int64_t *step) {
    *lanes = from->layout == GG_LAYOUT_BATCH_LAST;
    *step = *lanes ? gg_lanes_padded(from->batch) : from->features;
    return (const float *)from->data + (*lanes ? feature * *step : feature);
}

static void keep_tiles(void *context, int thread, int threads) {
    const keep_job *j = context;
    const int64_t batch = j->factors->batch;
    size_t begin, end;
    bool lanes;
    gg_parallel_split((size_t)j->from->features, 2 * GG_SPLIT_SIDE, thread, threads, &begin, &end);
    if (begin == end) return;
    gg_split_pack pack = {.count = (int64_t)(end - begin),
                          .terms = batch,
                          .out = (uint16_t *)j->out + gg_split_packed((int64_t)begin, batch)};
    pack.from = feature_at(j->from, (int64_t)begin, &lanes, &pack.step);
    pack.across = !lanes;
    if (j->columns) j->split->pack_cols(&pack);
    else j->split->pack_rows(&pack);
}

static void keep_groups(void *context, int thread, int threads) {
    const keep_job *j = context;
    gg_paired_side side = {.count = j->from->features, .terms = j->factors->batch, .out = j->out};
    size_t begin, end;
    bool lanes;
    gg_parallel_split((size_t)side.count, GG_PAIRED_LANES, thread, threads, &begin, &end);
    side.from = feature_at(j->from, 0, &lanes, &side.step);
    side.across = !lanes;
    gg_paired_pack_side(j->paired, &side, (int64_t)begin, (int64_t)end);
}

static void keep_panels(void *context, int thread, int threads) {
    const keep_job *j = context;
    const gg_gemm_kernels *kernels = gg_gemm_kernels_for(j->device->isa);
    const int64_t panel = panel_floats(j->device, j->factors);
    size_t begin, end;
    bool lanes;
    int64_t step;
    gg_parallel_split((size_t)j->from->features, (size_t)kernels->panel, thread, threads, &begin, &end);
    if (begin == end) return;
    const float *from = feature_at(j->from, (int64_t)begin, &lanes, &step);
    kernels->pack_panels((int64_t)(end - begin), j->factors->batch, from, step, lanes,
                         (float *)j->out + (int64_t)begin / kernels->panel * panel, panel);
}

static void keep(gg_device *device, const gg_gradient_factors *f, const gg_vectors *from, bool columns, void *out) {
    keep_job job = {.device = device,
                    .factors = f,
                    .from = from,
                    .split = split_of(device, f),
                    .paired = paired_of(device, f),
                    .columns = columns,
                    .out = out};
    const int threads = gg_cpu_threads_for(device, (size_t)(from->features * from->batch));
    gg_parallel_run(threads, job.split != NULL ? keep_tiles : job.paired != NULL ? keep_groups : keep_panels, &job);
}

void gg_cpu_keep_input(gg_device *device, const gg_gradient_factors *f, const gg_vectors *input, void *out) {
    keep(device, f, input, true, out);
}

void gg_cpu_keep_error(gg_device *device, const gg_gradient_factors *f, const gg_vectors *error, void *out) {
    if (split_of(device, f) != NULL || paired_of(device, f) != NULL) keep(device, f, error, false, out);
    else if (error->layout == GG_LAYOUT_BATCH_LAST) memcpy(out, error->data, f->error_bytes);
    else gg_cpu_transpose(device, f->batch, f->out, true, error->data, out);
}

typedef struct rows_job {
    const gg_device *device;
    const gg_gradient_factors *factors;
    const gg_split_kernels *split;
    const gg_paired_kernels *paired;
    const void *input, *error;
    const gg_gradient_rows *rows;
} rows_job;

/* Rows [first, first + m), where `first` begins a group. */
static void compute_paired(const rows_job *j, int64_t first, int64_t m, float *out) {
    const gg_gradient_factors *f = j->factors;
    const int64_t group = gg_paired_group_step(f->batch);
    for (int64_t part = 0; part < gg_paired_parts(f->batch); ++part)
        j->paired->multiply(
            &(gg_paired_product){.m = m,
                                 .n = f->in,
                                 .terms = gg_paired_part(f->batch, part + 1) - gg_paired_part(f->batch, part),
                                 .a = (const float *)j->error + part * gg_paired_part_step(f->out, f->batch) +
                                      first / GG_PAIRED_LANES * group,
                                 .b = (const float *)j->input + part * gg_paired_part_step(f->in, f->batch),
                                 .a_group = group,
                                 .b_group = group,
                                 .c = out,
                                 .c_row = f->in,
                                 .add = part > 0});
}

/* A thread's rows are those, but for a few, that it updates when the elements are divided among as many threads. */
static void compute_rows(void *context, int thread, int threads) {
    const rows_job *j = context;
    const gg_gradient_factors *f = j->factors;
    const int64_t lanes = gg_lanes_padded(f->batch), group = gg_split_group(f->batch);
    size_t begin, end;
    const size_t grain = j->split != NULL ? 2 * GG_SPLIT_SIDE : j->paired != NULL ? GG_PAIRED_LANES : 1;
    gg_parallel_split((size_t)j->rows->count, grain, thread, threads, &begin, &end);
    const int64_t first = j->rows->first + (int64_t)begin, m = (int64_t)(end - begin), at = (int64_t)begin * f->in;
    float *out = j->rows->out + at;
    if (m == 0) return;
    if (j->split != NULL)
        j->split->multiply(&(gg_split_product){.m = m,
                                               .n = f->in,
                                               .terms = f->batch,
                                               .a = (const uint16_t *)j->error + gg_split_packed(first, f->batch),
                                               .b = j->input,
                                               .a_group = group,
                                               .b_group = group,
                                               .c = out,
                                               .c_row = f->in});
    else if (j->paired != NULL) compute_paired(j, first, m, out);
    else
        gg_gemm_kernels_for(j->device->isa)
            ->panels(&(gg_panels){.m = m,
                                  .n = f->in,
                                  .k = f->batch,
                                  .a = (const float *)j->error + first * lanes,
                                  .a_row = lanes,
                                  .b = j->input,
                                  .b_panel = panel_floats(j->device, f),
                                  .c = out,
                                  .c_row = f->in,
                                  .far = true,
                                  .used = j->rows->used < f->fetched ? j->rows->used : f->fetched,
                                  .used_next = j->rows->used_next,
                                  .used_at = at});
}

void gg_cpu_gradient_rows(gg_device *device, const gg_gradient_factors *f, const void *input, const void *error,
                          const gg_gradient_rows *rows) {
    rows_job job = {.device = device,
                    .factors = f,
                    .split = split_of(device, f),
                    .paired = paired_of(device, f),
                    .input = input,
                    .error = error,
                    .rows = rows};
    gg_parallel_run(gg_cpu_threads_for(device, (size_t)(rows->count * f->in)), compute_rows, &job);
}
