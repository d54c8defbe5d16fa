#include "cpu/shared.h"

#include "base/memory.h"
#include "base/parallel.h"

/* Less work than this for each thread does not pay for waking one. In elements; depends on sizes alone, so
 * that the split, and with it the bits of a reduction, does too. */
#define WORTH_A_THREAD 16384

gg_status gg_cpu_device_open(const gg_backend *table, size_t bytes, int threads, gg_isa isa, gg_device **out) {
    *out = NULL;
    if (threads < 1 || threads > GG_CPU_MAX_THREADS)
        return gg_fail(GG_ERROR_ARGUMENT, "a CPU device takes 1 to %d threads, not %d", GG_CPU_MAX_THREADS, threads);
    const gg_cpu_kernels *kernels = gg_cpu_kernels_for(isa);
    if (kernels == NULL || !gg_cpu_supports(isa))
        return gg_fail(GG_ERROR_UNSUPPORTED, "no kernels for the instruction set %s here", gg_isa_name(isa));
    void *block;
    if (bytes < sizeof(gg_cpu_device)) bytes = sizeof(gg_cpu_device);
    gg_status status = gg_calloc(1, bytes, "a CPU device", &block);
    if (status != GG_OK) return status;
    gg_cpu_device *device = block;
    device->head.table = table;
    device->head.isa = isa;
    device->head.threads = threads;
    device->kernels = kernels;
    *out = &device->head;
    return GG_OK;
}

void gg_cpu_device_close(gg_device *device) { gg_free(device); }

const gg_cpu_kernels *gg_cpu_device_kernels(const gg_device *device) {
    return ((const gg_cpu_device *)device)->kernels;
}

/* One call that is being split. */
typedef struct job {
    gg_cpu_device *device;
    size_t n, grain;
    const void *args;
    gg_dtype wire;
    float share;
    const float *a, *b;
    const void *received;
    float *out;
    uint16_t *narrow_out;
    const float *const *source;
    const uint16_t *const *narrow_source;
    const float *scale;
    int sources;
    bool to_lanes;
    int64_t samples, values;
} job;

int gg_cpu_threads_for(const gg_device *device, size_t work) {
    const size_t useful = work / WORTH_A_THREAD;
    if (useful < 2) return 1;
    return useful < (size_t)device->threads ? (int)useful : device->threads;
}

static void cpu_run(job *j, size_t work, gg_parallel_fn fn) {
    gg_parallel_run(gg_cpu_threads_for(&j->device->head, work), fn, j);
}

static void loss_part(void *context, int thread, int threads) {
    job *j = context;
    const gg_loss_args *args = j->args;
    size_t begin, end;
    gg_parallel_split(j->n, GG_LANES, thread, threads, &begin, &end);
    double sum = 0;
    int64_t correct = 0;
    if (begin < end) j->device->kernels->loss->loss[args->kind](args, (int64_t)begin, (int64_t)end, &sum, &correct);
    j->device->partial[thread] = sum;
    j->device->partial_count[thread] = correct;
}

void gg_cpu_loss(gg_device *device, gg_loss_args *args) {
    job j = {.device = (gg_cpu_device *)device, .n = (size_t)args->batch, .args = args};
    const int threads = gg_cpu_threads_for(device, (size_t)(args->batch * args->features));
    gg_parallel_run(threads, loss_part, &j);
    args->loss_sum = 0;
    args->correct = 0;
    for (int i = 0; i < threads; ++i) {
        args->loss_sum += j.device->partial[i];
        args->correct += j.device->partial_count[i];
    }
}

static const float *cpu_offset(const float *p, size_t n) { return p != NULL ? p + n : NULL; }

/* n elements of type `wire` further on. */
static const void *wire_offset(gg_dtype wire, const void *p, size_t n) {
    return p != NULL ? (const char *)p + n * gg_dtype_size(wire) : NULL;
}

static void update_part(void *context, int thread, int threads) {
    const job *j = context;
    gg_update_args args = *(const gg_update_args *)j->args;
    size_t begin, end;
    gg_parallel_split(args.n, GG_LANES, thread, threads, &begin, &end);
    args.n = end - begin;
    args.grad += begin;
    args.weight += begin;
    if (args.momentum != NULL) args.momentum += begin;
    if (args.square != NULL) args.square += begin;
    args.momentum_before = wire_offset(args.wire, args.momentum_before, begin);
    args.weight_after = wire_offset(args.wire, args.weight_after, begin);
    args.square_before = wire_offset(args.wire, args.square_before, begin);
    args.square_copy = (void *)wire_offset(args.wire, args.square_copy, begin);
    args.weight_copy = (void *)wire_offset(args.wire, args.weight_copy, begin);
    args.momentum_copy = (void *)wire_offset(args.wire, args.momentum_copy, begin);
    if (args.compute_copy != NULL) args.compute_copy += begin;
    j->device->kernels->arena->update(&args);
}

void gg_cpu_update(gg_device *device, const gg_update_args *args) {
    job j = {.device = (gg_cpu_device *)device, .args = args};
    cpu_run(&j, args->n, update_part);
}

static void mix_part(void *context, int thread, int threads) {
    const job *j = context;
    size_t begin, end;
    gg_parallel_split(j->n, GG_LANES, thread, threads, &begin, &end);
    j->device->kernels->arena->mix(end - begin, j->wire, j->share, j->a + begin,
                                   wire_offset(j->wire, j->received, begin), j->b + begin, j->out + begin);
}

void gg_cpu_mix(gg_device *device, size_t n, gg_dtype wire, float share, const float *base, const void *received,
                const float *sent, float *out) {
    job j = {.device = (gg_cpu_device *)device,
             .n = n,
             .wire = wire,
             .share = share,
             .a = base,
             .received = received,
             .b = sent,
             .out = out};
    cpu_run(&j, n, mix_part);
}

static void halve_part(void *context, int thread, int threads) {
    const job *j = context;
    size_t begin, end;
    gg_parallel_split(j->n, GG_LANES, thread, threads, &begin, &end);
    j->device->kernels->arena->halve(end - begin, j->wire, j->a + begin, wire_offset(j->wire, j->received, begin),
                                     j->out + begin);
}

void gg_cpu_halve(gg_device *device, size_t n, gg_dtype wire, const float *own, const void *received, float *out) {
    job j = {.device = (gg_cpu_device *)device, .n = n, .wire = wire, .a = own, .received = received, .out = out};
    cpu_run(&j, n, halve_part);
}

static void narrow_part(void *context, int thread, int threads) {
    const job *j = context;
    size_t begin, end;
    gg_parallel_split(j->n, GG_LANES, thread, threads, &begin, &end);
    j->device->kernels->arena->narrow(end - begin, j->a + begin, j->narrow_out + begin);
}

void gg_cpu_narrow(gg_device *device, size_t n, const float *in, uint16_t *out) {
    job j = {.device = (gg_cpu_device *)device, .n = n, .a = in, .narrow_out = out};
    cpu_run(&j, n, narrow_part);
}

static void widen_part(void *context, int thread, int threads) {
    const job *j = context;
    size_t begin, end;
    gg_parallel_split(j->n, GG_LANES, thread, threads, &begin, &end);
    j->device->kernels->arena->widen(end - begin, (const uint16_t *)j->received + begin, j->out + begin);
}

void gg_cpu_widen(gg_device *device, size_t n, const uint16_t *in, float *out) {
    job j = {.device = (gg_cpu_device *)device, .n = n, .received = in, .out = out};
    cpu_run(&j, n, widen_part);
}

static void widen_add_part(void *context, int thread, int threads) {
    const job *j = context;
    size_t begin, end;
    gg_parallel_split(j->n, GG_LANES, thread, threads, &begin, &end);
    j->device->kernels->arena->widen_add(end - begin, (const uint16_t *)j->received + begin, j->out + begin);
}

void gg_cpu_widen_add(gg_device *device, size_t n, const uint16_t *in, float *out) {
    job j = {.device = (gg_cpu_device *)device, .n = n, .received = in, .out = out};
    cpu_run(&j, n, widen_add_part);
}

static void weighted_sum_part(void *context, int thread, int threads) {
    const job *j = context;
    size_t begin, end;
    gg_parallel_split(j->n, GG_LANES, thread, threads, &begin, &end);
    j->device->kernels->arena->weighted_sum(begin, end, j->sources, j->source, j->scale, j->out);
}

void gg_cpu_weighted_sum(gg_device *device, size_t n, int sources, const float *const *source, const float *scale,
                         float *out) {
    job j = {
        .device = (gg_cpu_device *)device, .n = n, .sources = sources, .source = source, .scale = scale, .out = out};
    cpu_run(&j, n, weighted_sum_part);
}

static void sum_squares_part(void *context, int thread, int threads) {
    const job *j = context;
    size_t begin, end;
    gg_parallel_split(j->n, GG_LANES, thread, threads, &begin, &end);
    j->device->partial[thread] =
        j->device->kernels->arena->sum_squares(end - begin, j->a + begin, cpu_offset(j->b, begin));
}

static void narrow_sum_part(void *context, int thread, int threads) {
    const job *j = context;
    size_t begin, end;
    gg_parallel_split(j->n, GG_LANES, thread, threads, &begin, &end);
    j->device->kernels->arena->narrow_sum(begin, end, j->sources, j->narrow_source, j->scale, j->out, j->narrow_out);
}

void gg_cpu_narrow_sum(gg_device *device, size_t n, int sources, const uint16_t *const *source, const float *scale,
                       float *out, uint16_t *rounded) {
    job j = {.device = (gg_cpu_device *)device,
             .n = n,
             .sources = sources,
             .narrow_source = source,
             .scale = scale,
             .out = out,
             .narrow_out = rounded};
    cpu_run(&j, n, narrow_sum_part);
}

static void narrow_difference_part(void *context, int thread, int threads) {
    const job *j = context;
    size_t begin, end;
    gg_parallel_split(j->n, GG_LANES, thread, threads, &begin, &end);
    j->device->kernels->arena->narrow_difference(end - begin, j->a + begin, (const uint16_t *)j->received + begin,
                                                 j->narrow_out + begin);
}

void gg_cpu_narrow_difference(gg_device *device, size_t n, const float *a, const uint16_t *b, uint16_t *out) {
    job j = {.device = (gg_cpu_device *)device, .n = n, .a = a, .received = b, .narrow_out = out};
    cpu_run(&j, n, narrow_difference_part);
}

double gg_cpu_sum_squares(gg_device *device, size_t n, const float *a, const float *b) {
    job j = {.device = (gg_cpu_device *)device, .n = n, .a = a, .b = b};
    const int threads = gg_cpu_threads_for(device, n);
    gg_parallel_run(threads, sum_squares_part, &j);
    double sum = 0;
    for (int i = 0; i < threads; ++i) sum += j.device->partial[i];
    return sum;
}

static void all_finite_part(void *context, int thread, int threads) {
    const job *j = context;
    size_t begin, end;
    gg_parallel_split(j->n, GG_LANES, thread, threads, &begin, &end);
    j->device->partial_count[thread] = j->device->kernels->arena->all_finite(end - begin, j->a + begin);
}

bool gg_cpu_all_finite(gg_device *device, size_t n, const float *a) {
    job j = {.device = (gg_cpu_device *)device, .n = n, .a = a};
    const int threads = gg_cpu_threads_for(device, n);
    gg_parallel_run(threads, all_finite_part, &j);
    bool finite = true;
    for (int i = 0; i < threads; ++i) finite = finite && j.device->partial_count[i] != 0;
    return finite;
}

static void gather_part(void *context, int thread, int threads) {
    const job *j = context;
    const gg_gather_args *args = j->args;
    size_t begin, end;
    gg_parallel_split(j->n, j->grain, thread, threads, &begin, &end);
    if (begin < end) j->device->kernels->layout->gather(args, (int64_t)begin, (int64_t)end);
}

void gg_cpu_gather(gg_device *device, const gg_gather_args *args) {
    const bool lanes = args->layout == GG_LAYOUT_BATCH_LAST;
    job j = {.device = (gg_cpu_device *)device, .args = args};
    j.n = (size_t)(lanes ? args->values : args->n);
    j.grain = lanes ? GG_LANES : 1;
    cpu_run(&j, (size_t)(args->n * args->values), gather_part);
}

static void transpose_part(void *context, int thread, int threads) {
    const job *j = context;
    const gg_cpu_layout *layout = j->device->kernels->layout;
    size_t begin, end;
    gg_parallel_split((size_t)j->values, GG_LANES, thread, threads, &begin, &end);
    if (begin < end)
        (j->to_lanes ? layout->to_lanes : layout->from_lanes)(j->samples, j->values, (int64_t)begin, (int64_t)end, j->a,
                                                              j->out);
}

void gg_cpu_transpose(gg_device *device, int64_t n, int64_t values, bool to_lanes, const float *in, float *out) {
    job j = {
        .device = (gg_cpu_device *)device, .samples = n, .values = values, .to_lanes = to_lanes, .a = in, .out = out};
    cpu_run(&j, (size_t)(n * values), transpose_part);
}
