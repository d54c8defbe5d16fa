/* Weight gradient of a linear layer in runs of whole rows, from packed inputs and errors. Each run is computed right
 * before its use. Kernels and the parts of sums are those of the whole gradient, so the bits are equal.
 *
 * Inputs are kept as panels of columns, and errors as rows with one lane a sample. If the whole gradient is a packed
 * product, both are packed. */
#include <string.h>

#include "base/parallel.h"
#include "cpu/gemm/gemm_kernels.h"
#include "cpu/gemm/packed_products.h"
#include "cpu/shared.h"

/* Elements of the rows that a thread computes at a time. More if kernels need several long rows. */
#define ROWS_ELEMENTS 65536
#define MAX_ROWS_ELEMENTS (3 * ROWS_ELEMENTS)
/* Min long rows: products of fewer rows would wait for their operands. */
#define MIN_ROWS 4

static const gg_packed_products *packed_of(const gg_device *device, const gg_gradient_factors *f) {
    return gg_packed_gradient_for(device->isa, f->batch, f->in);
}

static int64_t panel_floats(const gg_device *device, const gg_gradient_factors *f) {
    return gg_cpu_device_kernels(device)->gemm->panel * f->batch;
}

/* Number of arrays that fit in three quarters of the L2 cache, together with all inputs and a thread's rows. A tile
 * prefetches a row of a panel in each term; it has tile_rows rows of each array to prefetch. */
static int64_t fetched_beside(const gg_device *device, const gg_gradient_factors *f, int64_t rows) {
    const int64_t cache = (int64_t)((const gg_cpu_device *)device)->second_cache / (int64_t)sizeof(float);
    const int64_t room = cache * 3 / 4 - (f->batch + rows) * f->in, most = room / (rows * f->in);
    const int64_t by_terms = f->batch / gg_cpu_device_kernels(device)->gemm->tile_rows;
    return room < 0 ? 0 : most < by_terms ? most : by_terms;
}

/* Sums longer than a panel's terms would be cut, with other bits. The factors should be much smaller than the gradient
 * that they replace. */
bool gg_cpu_factors(const gg_device *device, gg_gradient_factors *f) {
    const gg_gemm_kernels *kernels = gg_cpu_device_kernels(device)->gemm;
    const gg_packed_products *packed = packed_of(device, f);
    const int64_t step = packed != NULL ? packed->granule : kernels->tile_rows;
    const int64_t least = packed != NULL ? step : MIN_ROWS, fit = ROWS_ELEMENTS / f->in;
    if (packed == NULL && f->batch > GG_SGEMM_TERMS) return false;
    f->rows = fit >= step ? fit / step * step : fit > least ? fit : least;
    if (f->rows * f->in > MAX_ROWS_ELEMENTS) return false;
    f->fetched = packed != NULL ? packed->fetches : (int)fetched_beside(device, f, f->rows);
    f->rows *= device->threads;
    if (packed != NULL) {
        f->input_bytes = packed->side_bytes(f->in, f->batch);
        f->error_bytes = packed->side_bytes(f->out, f->batch);
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
    const gg_packed_products *packed;
    bool columns; /* of packed products; false means rows */
    void *out;
} keep_job;

/* Address of a feature. *step: distance between its samples, or with `lanes` between features. */
static const float *feature_at(const gg_vectors *from, int64_t feature, bool *lanes, int64_t *step) {
    *lanes = from->layout == GG_LAYOUT_BATCH_LAST;
    *step = *lanes ? gg_lanes_padded(from->batch) : from->features;
    return (const float *)from->data + (*lanes ? feature * *step : feature);
}

static void keep_packed(void *context, int thread, int threads) {
    const keep_job *j = context;
    gg_packed_side side = {
        .count = j->from->features, .terms = j->factors->batch, .columns = j->columns, .out = j->out};
    size_t begin, end;
    bool lanes;
    gg_parallel_split((size_t)side.count, (size_t)j->packed->granule, thread, threads, &begin, &end);
    if (begin == end) return;
    side.from = feature_at(j->from, 0, &lanes, &side.step);
    side.across = !lanes;
    j->packed->pack(j->device->isa, &side, (int64_t)begin, (int64_t)end);
}

static void keep_panels(void *context, int thread, int threads) {
    const keep_job *j = context;
    const gg_gemm_kernels *kernels = gg_cpu_device_kernels(j->device)->gemm;
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
    keep_job job = {
        .device = device, .factors = f, .from = from, .packed = packed_of(device, f), .columns = columns, .out = out};
    const int threads = gg_cpu_threads_for(device, (size_t)(from->features * from->batch));
    gg_parallel_run(threads, job.packed != NULL ? keep_packed : keep_panels, &job);
}

void gg_cpu_keep_input(gg_device *device, const gg_gradient_factors *f, const gg_vectors *input, void *out) {
    keep(device, f, input, true, out);
}

void gg_cpu_keep_error(gg_device *device, const gg_gradient_factors *f, const gg_vectors *error, void *out) {
    if (packed_of(device, f) != NULL) keep(device, f, error, false, out);
    else if (error->layout == GG_LAYOUT_BATCH_LAST) memcpy(out, error->data, f->error_bytes);
    else gg_cpu_transpose(device, f->batch, f->out, true, error->data, out);
}

typedef struct rows_job {
    const gg_device *device;
    const gg_gradient_factors *factors;
    const gg_packed_products *packed;
    const void *input, *error;
    const gg_gradient_rows *rows;
} rows_job;

/* A thread computes the rows, except for a few, that it will update: updates divide the elements among the same
 * threads. */
static void compute_rows(void *context, int thread, int threads) {
    const rows_job *j = context;
    const gg_gradient_factors *f = j->factors;
    const int64_t lanes = gg_lanes_padded(f->batch);
    size_t begin, end;
    const size_t grain = j->packed != NULL ? (size_t)j->packed->granule : 1;
    gg_parallel_split((size_t)j->rows->count, grain, thread, threads, &begin, &end);
    const int64_t first = j->rows->first + (int64_t)begin, m = (int64_t)(end - begin), at = (int64_t)begin * f->in;
    const int used = j->rows->used < f->fetched ? j->rows->used : f->fetched;
    float *out = j->rows->out + at;
    if (m == 0) return;
    if (j->packed != NULL)
        j->packed->multiply(j->device->isa, &(gg_packed_product){.m = m,
                                                                 .n = f->in,
                                                                 .terms = f->batch,
                                                                 .a = j->error,
                                                                 .b = j->input,
                                                                 .a_count = f->out,
                                                                 .first = first,
                                                                 .c = out,
                                                                 .c_row = f->in,
                                                                 .used = used,
                                                                 .used_next = j->rows->used_next,
                                                                 .used_at = at,
                                                                 .used_count = m * f->in});
    else
        gg_cpu_device_kernels(j->device)->gemm->panels(&(gg_panels){.m = m,
                                                                    .n = f->in,
                                                                    .k = f->batch,
                                                                    .a = (const float *)j->error + first * lanes,
                                                                    .a_row = lanes,
                                                                    .b = j->input,
                                                                    .b_panel = panel_floats(j->device, f),
                                                                    .c = out,
                                                                    .c_row = f->in,
                                                                    .far = true,
                                                                    .used = used,
                                                                    .used_next = j->rows->used_next,
                                                                    .used_at = at});
}

void gg_cpu_gradient_rows(gg_device *device, const gg_gradient_factors *f, const void *input, const void *error,
                          const gg_gradient_rows *rows) {
    rows_job job = {
        .device = device, .factors = f, .packed = packed_of(device, f), .input = input, .error = error, .rows = rows};
    gg_parallel_run(gg_cpu_threads_for(device, (size_t)(rows->count * f->in)), compute_rows, &job);
}
