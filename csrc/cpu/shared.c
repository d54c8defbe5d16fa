#include "cpu/shared.h"

#include <string.h>

#include "base/memory.h"
#include "base/parallel.h"

/* Elements a thread below which another thread costs more than it saves. The division depends on sizes alone, and so do
 * the bits of a reduction. */
#define WORTH_A_THREAD 16384

gg_status gg_cpu_device_open(const gg_backend *table, size_t bytes, const gg_device_options *options, gg_device **out) {
    const int threads = options->threads;
    const gg_isa isa = options->isa;
    *out = NULL;
    if (threads < 1 || threads > GG_CPU_MAX_THREADS)
        return gg_fail(GG_ERROR_ARGUMENT, "a CPU device has 1 to %d threads, not %d", GG_CPU_MAX_THREADS, threads);
    if (threads > 1 && gg_parallel_is_lost())
        return gg_fail(
            GG_ERROR_STATE,
            "threads=%d: this process was forked from one that has computed with several threads, which are gone "
            "here; allowed: 1, or a process that is not forked (multiprocessing's \"spawn\")",
            threads);
    const gg_cpu_kernels *kernels = gg_cpu_kernels_for(isa);
    if (kernels == NULL || !gg_cpu_supports(isa))
        return gg_fail(GG_ERROR_UNSUPPORTED, "no kernels for the instruction set %s here", gg_isa_name(isa));
    GG_TRY(gg_cpu_check_paired());
    gg_cpu_device *made;
    if (bytes < sizeof(gg_cpu_device)) bytes = sizeof(gg_cpu_device);
    GG_TRY(gg_calloc(1, bytes, "a CPU device", &made));
    made->head.table = table;
    made->head.isa = isa;
    made->head.threads = threads;
    made->kernels = kernels;
    made->second_cache = gg_cpu_second_cache();
    *out = &made->head;
    return GG_OK;
}

void gg_cpu_device_close(gg_device *device) { gg_free(device); }

const gg_cpu_kernels *gg_cpu_device_kernels(const gg_device *device) {
    return ((const gg_cpu_device *)device)->kernels;
}

int gg_cpu_threads_for(const gg_device *device, size_t work) {
    const size_t useful = work / WORTH_A_THREAD;
    if (useful < 2) return 1;
    return useful < (size_t)device->threads ? (int)useful : device->threads;
}

/* A thread's part of n elements, in whole lanes. */
typedef struct part {
    size_t begin, end, count;
} part;

static part cpu_part_of(size_t n, int thread, int threads) {
    part p;
    gg_parallel_split(n, GG_LANES, thread, threads, &p.begin, &p.end);
    p.count = p.end - p.begin;
    return p;
}

/* Splits an entry's work among the device's threads. Each entry has a struct for the shared arguments. */
static void run_parts(const gg_cpu_device *device, size_t work, gg_parallel_fn fn, void *call) {
    gg_parallel_run(gg_cpu_threads_for(&device->head, work), fn, call);
}

static const float *cpu_offset(const float *p, size_t n) { return p != NULL ? p + n : NULL; }

/* The address n elements of type `wire` further on. */
static const void *wire_offset(gg_dtype wire, const void *p, size_t n) {
    return p != NULL ? (const char *)p + n * gg_dtype_size(wire) : NULL;
}

typedef struct loss_call {
    gg_cpu_device *device;
    const gg_loss_args *args;
    int64_t rows;
} loss_call;

static void loss_part(void *context, int thread, int threads) {
    const loss_call *c = context;
    const part p = cpu_part_of((size_t)c->rows, thread, threads);
    double sum = 0;
    int64_t correct = 0;
    if (p.count > 0)
        c->device->kernels->loss->loss[c->args->loss.kind](c->args, (int64_t)p.begin, (int64_t)p.end, &sum, &correct);
    c->device->partial[thread] = sum;
    c->device->partial_count[thread] = correct;
}

/* Computes the divisor of the loss before any gradient; sums in the order of the targets. */
static void weigh_targets(const gg_loss_args *args) {
    const gg_loss_options *options = &args->loss;
    const int64_t targets = args->batch * args->positions;
    const int32_t *target = args->targets;
    gg_loss_result *result = args->result;
    result->divisor = (double)targets;
    result->counted = targets;
    if (options->kind != GG_LOSS_CROSS_ENTROPY || (!options->ignores && options->class_weights == NULL)) return;
    result->divisor = 0;
    result->counted = 0;
    for (int64_t i = 0; i < targets; ++i) {
        if (options->ignores && target[i] == options->ignore_index) continue;
        result->divisor += options->class_weights != NULL ? (double)options->class_weights[target[i]] : 1.0;
        result->counted++;
    }
}

void gg_cpu_loss(gg_device *device, const gg_loss_args *args) {
    const int64_t rows = args->layout == GG_LAYOUT_PLAIN ? args->batch * args->positions : args->batch;
    loss_call call = {.device = (gg_cpu_device *)device, .args = args, .rows = rows};
    const int threads = gg_cpu_threads_for(device, (size_t)(args->batch * args->positions * args->features));
    weigh_targets(args);
    args->result->loss_sum = 0;
    args->result->correct = 0;
    gg_parallel_run(threads, loss_part, &call);
    for (int i = 0; i < threads; ++i) {
        args->result->loss_sum += call.device->partial[i];
        args->result->correct += call.device->partial_count[i];
    }
}

typedef struct update_call {
    gg_cpu_device *device;
    const gg_update_args *args;
} update_call;

static void update_part(void *context, int thread, int threads) {
    const update_call *c = context;
    gg_update_args args = *c->args;
    const part p = cpu_part_of(args.n, thread, threads);
    args.n = p.count;
    args.grad += p.begin;
    args.filled = gg_lines_behind(args.filled, p.begin);
    args.weight += p.begin;
    if (args.momentum != NULL) args.momentum += p.begin;
    if (args.square != NULL) args.square += p.begin;
    args.momentum_before = wire_offset(args.wire, args.momentum_before, p.begin);
    args.weight_after = wire_offset(args.wire, args.weight_after, p.begin);
    args.square_before = wire_offset(args.wire, args.square_before, p.begin);
    args.square_copy = (void *)wire_offset(args.wire, args.square_copy, p.begin);
    args.weight_copy = (void *)wire_offset(args.wire, args.weight_copy, p.begin);
    args.momentum_copy = (void *)wire_offset(args.wire, args.momentum_copy, p.begin);
    c->device->kernels->arena->update(&args);
}

void gg_cpu_update(gg_device *device, int count, const gg_update_args *args) {
    for (int i = 0; i < count; ++i) {
        update_call call = {.device = (gg_cpu_device *)device, .args = &args[i]};
        run_parts(call.device, args[i].n, update_part, &call);
    }
}

typedef struct mix_call {
    gg_cpu_device *device;
    size_t n;
    gg_dtype wire;
    float share;
    const float *base;
    const void *received;
    const float *sent;
    float *out;
} mix_call;

static void mix_part(void *context, int thread, int threads) {
    const mix_call *c = context;
    const part p = cpu_part_of(c->n, thread, threads);
    c->device->kernels->arena->mix(p.count, c->wire, c->share, c->base + p.begin,
                                   wire_offset(c->wire, c->received, p.begin), c->sent + p.begin, c->out + p.begin);
}

void gg_cpu_mix(gg_device *device, size_t n, gg_dtype wire, float share, const float *base, const void *received,
                const float *sent, float *out) {
    mix_call call = {.device = (gg_cpu_device *)device,
                     .n = n,
                     .wire = wire,
                     .share = share,
                     .base = base,
                     .received = received,
                     .sent = sent,
                     .out = out};
    run_parts(call.device, n, mix_part, &call);
}

typedef struct narrow_call {
    gg_cpu_device *device;
    size_t n;
    const float *in;
    uint16_t *out;
} narrow_call;

static void narrow_part(void *context, int thread, int threads) {
    const narrow_call *c = context;
    const part p = cpu_part_of(c->n, thread, threads);
    c->device->kernels->arena->narrow(p.count, c->in + p.begin, c->out + p.begin);
}

void gg_cpu_narrow(gg_device *device, size_t n, const float *in, uint16_t *out) {
    narrow_call call = {.device = (gg_cpu_device *)device, .n = n, .in = in, .out = out};
    run_parts(call.device, n, narrow_part, &call);
}

/* Kernels on arenas have whole vectors only. */
void gg_cpu_narrow_any(const gg_cpu_kernels *kernels, size_t n, const float *in, uint16_t *out) {
    const size_t whole = n / GG_LANES * GG_LANES;
    _Alignas(64) float wide[GG_LANES] = {0};
    _Alignas(64) uint16_t narrow[GG_LANES];
    kernels->arena->narrow(whole, in, out);
    if (n == whole) return;
    memcpy(wide, in + whole, (n - whole) * sizeof *in);
    kernels->arena->narrow(GG_LANES, wide, narrow);
    memcpy(out + whole, narrow, (n - whole) * sizeof *out);
}

void gg_cpu_widen_any(const gg_cpu_kernels *kernels, size_t n, const uint16_t *in, float *out) {
    const size_t whole = n / GG_LANES * GG_LANES;
    _Alignas(64) uint16_t narrow[GG_LANES] = {0};
    _Alignas(64) float wide[GG_LANES];
    kernels->arena->widen(whole, in, out);
    if (n == whole) return;
    memcpy(narrow, in + whole, (n - whole) * sizeof *in);
    kernels->arena->widen(GG_LANES, narrow, wide);
    memcpy(out + whole, wide, (n - whole) * sizeof *out);
}

typedef struct widen_call {
    gg_cpu_device *device;
    size_t n;
    const uint16_t *in;
    float *out;
} widen_call;

static void widen_part(void *context, int thread, int threads) {
    const widen_call *c = context;
    const part p = cpu_part_of(c->n, thread, threads);
    c->device->kernels->arena->widen(p.count, c->in + p.begin, c->out + p.begin);
}

void gg_cpu_widen(gg_device *device, size_t n, const uint16_t *in, float *out) {
    widen_call call = {.device = (gg_cpu_device *)device, .n = n, .in = in, .out = out};
    run_parts(call.device, n, widen_part, &call);
}

static void widen_add_part(void *context, int thread, int threads) {
    const widen_call *c = context;
    const part p = cpu_part_of(c->n, thread, threads);
    c->device->kernels->arena->widen_add(p.count, c->in + p.begin, c->out + p.begin);
}

void gg_cpu_widen_add(gg_device *device, size_t n, const uint16_t *in, float *out) {
    widen_call call = {.device = (gg_cpu_device *)device, .n = n, .in = in, .out = out};
    run_parts(call.device, n, widen_add_part, &call);
}

typedef struct weighted_sum_call {
    gg_cpu_device *device;
    size_t n;
    int sources;
    const float *const *source;
    const float *scale;
    float *out;
} weighted_sum_call;

static void weighted_sum_part(void *context, int thread, int threads) {
    const weighted_sum_call *c = context;
    const part p = cpu_part_of(c->n, thread, threads);
    c->device->kernels->arena->weighted_sum(p.begin, p.end, c->sources, c->source, c->scale, c->out);
}

void gg_cpu_weighted_sum(gg_device *device, size_t n, int sources, const float *const *source, const float *scale,
                         float *out) {
    weighted_sum_call call = {
        .device = (gg_cpu_device *)device, .n = n, .sources = sources, .source = source, .scale = scale, .out = out};
    run_parts(call.device, n, weighted_sum_part, &call);
}

typedef struct narrow_sum_call {
    gg_cpu_device *device;
    size_t n;
    int sources;
    const uint16_t *const *source;
    const float *scale;
    float *out;
    uint16_t *rounded;
} narrow_sum_call;

static void narrow_sum_part(void *context, int thread, int threads) {
    const narrow_sum_call *c = context;
    const part p = cpu_part_of(c->n, thread, threads);
    c->device->kernels->arena->narrow_sum(p.begin, p.end, c->sources, c->source, c->scale, c->out, c->rounded);
}

void gg_cpu_narrow_sum(gg_device *device, size_t n, int sources, const uint16_t *const *source, const float *scale,
                       float *out, uint16_t *rounded) {
    narrow_sum_call call = {.device = (gg_cpu_device *)device,
                            .n = n,
                            .sources = sources,
                            .source = source,
                            .scale = scale,
                            .out = out,
                            .rounded = rounded};
    run_parts(call.device, n, narrow_sum_part, &call);
}

typedef struct narrow_difference_call {
    gg_cpu_device *device;
    size_t n;
    const float *a;
    const uint16_t *b;
    uint16_t *out;
} narrow_difference_call;

static void narrow_difference_part(void *context, int thread, int threads) {
    const narrow_difference_call *c = context;
    const part p = cpu_part_of(c->n, thread, threads);
    c->device->kernels->arena->narrow_difference(p.count, c->a + p.begin, c->b + p.begin, c->out + p.begin);
}

void gg_cpu_narrow_difference(gg_device *device, size_t n, const float *a, const uint16_t *b, uint16_t *out) {
    narrow_difference_call call = {.device = (gg_cpu_device *)device, .n = n, .a = a, .b = b, .out = out};
    run_parts(call.device, n, narrow_difference_part, &call);
}

/* Max partial sums of a sum of squares. The number of elements alone decides how they are cut, so the sum does not
 * depend on the threads. */
#define SQUARE_PARTS 64

typedef struct sum_squares_call {
    gg_cpu_device *device;
    size_t n;
    const float *a, *b; /* b: NULL, or subtracted from a */
    int parts;
    double sum[SQUARE_PARTS];
} sum_squares_call;

static void sum_squares_part(void *context, int thread, int threads) {
    sum_squares_call *c = context;
    size_t first, end;
    gg_parallel_split((size_t)c->parts, 1, thread, threads, &first, &end);
    for (size_t i = first; i < end; ++i) {
        const part p = cpu_part_of(c->n, (int)i, c->parts);
        c->sum[i] = c->device->kernels->arena->sum_squares(p.count, c->a + p.begin, cpu_offset(c->b, p.begin));
    }
}

double gg_cpu_sum_squares(gg_device *device, size_t n, const float *a, const float *b) {
    sum_squares_call call = {.device = (gg_cpu_device *)device, .n = n, .a = a, .b = b};
    const size_t useful = n / WORTH_A_THREAD;
    call.parts = useful < 1 ? 1 : useful < SQUARE_PARTS ? (int)useful : SQUARE_PARTS;
    gg_parallel_run(gg_cpu_threads_for(device, n), sum_squares_part, &call);
    double sum = 0;
    for (int i = 0; i < call.parts; ++i) sum += call.sum[i];
    return sum;
}

typedef struct all_finite_call {
    gg_cpu_device *device;
    size_t n;
    const float *wide; /* one is set, the other is NULL */
    const uint16_t *narrow;
} all_finite_call;

static void all_finite_part(void *context, int thread, int threads) {
    const all_finite_call *c = context;
    const part p = cpu_part_of(c->n, thread, threads);
    const gg_cpu_arena *kernels = c->device->kernels->arena;
    c->device->partial_count[thread] = c->wide != NULL ? kernels->all_finite(p.count, c->wide + p.begin)
                                                       : kernels->all_finite_narrow(p.count, c->narrow + p.begin);
}

static bool run_all_finite(all_finite_call *call) {
    const int threads = gg_cpu_threads_for(&call->device->head, call->n);
    gg_parallel_run(threads, all_finite_part, call);
    bool finite = true;
    for (int i = 0; i < threads; ++i) finite = finite && call->device->partial_count[i] != 0;
    return finite;
}

bool gg_cpu_all_finite(gg_device *device, size_t n, const float *a) {
    return run_all_finite(&(all_finite_call){.device = (gg_cpu_device *)device, .n = n, .wide = a});
}

bool gg_cpu_all_finite_narrow(gg_device *device, size_t n, const uint16_t *a) {
    return run_all_finite(&(all_finite_call){.device = (gg_cpu_device *)device, .n = n, .narrow = a});
}

typedef struct gather_call {
    gg_cpu_device *device;
    const gg_gather_args *args;
    size_t n, grain; /* unit of work: values in lanes, or samples */
} gather_call;

static void gather_part(void *context, int thread, int threads) {
    const gather_call *c = context;
    size_t begin, end;
    gg_parallel_split(c->n, c->grain, thread, threads, &begin, &end);
    if (begin < end) c->device->kernels->layout->gather(c->args, (int64_t)begin, (int64_t)end);
}

void gg_cpu_gather(gg_device *device, const gg_gather_args *args) {
    const bool lanes = args->layout == GG_LAYOUT_BATCH_LAST;
    gather_call call = {.device = (gg_cpu_device *)device,
                        .args = args,
                        .n = (size_t)(lanes ? args->values : args->n),
                        .grain = lanes ? GG_LANES : 1};
    run_parts(call.device, (size_t)(args->n * args->values), gather_part, &call);
}

typedef struct transpose_call {
    gg_cpu_device *device;
    int64_t samples, values;
    bool to_lanes;
    const float *in;
    float *out;
} transpose_call;

static void transpose_part(void *context, int thread, int threads) {
    const transpose_call *c = context;
    const gg_cpu_layout *layout = c->device->kernels->layout;
    const part p = cpu_part_of((size_t)c->values, thread, threads);
    if (p.count == 0) return;
    (c->to_lanes ? layout->to_lanes : layout->from_lanes)(c->samples, c->values, (int64_t)p.begin, (int64_t)p.end,
                                                          c->in, c->out);
}

void gg_cpu_transpose(gg_device *device, int64_t n, int64_t values, bool to_lanes, const float *in, float *out) {
    transpose_call call = {
        .device = (gg_cpu_device *)device, .samples = n, .values = values, .to_lanes = to_lanes, .in = in, .out = out};
    run_parts(call.device, (size_t)(n * values), transpose_part, &call);
}
