/* Packed messages of a parameter (gg_pack_args), and sparse elements. The choice is threaded and has kernels for each
 * instruction set (choose_kernels.c). The rest is scalar, and also compiled without fused products. */
#include <math.h>
#include <string.h>

#include "base/parallel.h"
#include "cpu/shared.h"

#define PACK_INLINE static inline __attribute__((always_inline))
#define INFINITE 0x7f800000u

/* ---- the choice ---- */

typedef struct choose_call {
    gg_cpu_device *device;
    const gg_choose_args *args;
    size_t bins;
} choose_call;

/* A thread takes whole bins. Its entries begin at the place of its first element. */
static size_t choose_begin(const choose_call *c, int thread, int threads, size_t *end) {
    size_t first, behind;
    gg_parallel_split(c->bins, 1, thread, threads, &first, &behind);
    *end = behind * c->args->bin < c->args->n ? behind * c->args->bin : c->args->n;
    return first;
}

static void choose_part(void *context, int thread, int threads) {
    const choose_call *c = context;
    gg_choose_args args = *c->args;
    size_t end;
    const size_t first = choose_begin(c, thread, threads, &end), begin = first * args.bin;
    c->device->partial_count[thread] = 0;
    if (begin >= end) return;
    args.n = end - begin;
    if (args.gradient != NULL) args.gradient += begin;
    if (args.clear != NULL) args.clear += begin;
    if (args.residue != NULL) args.residue += begin;
    if (args.value != NULL) args.value += begin;
    if (args.known != NULL) args.known += begin;
    if (args.marks != NULL) args.marks += first * gg_pack_mark_bytes(args.bin);
    args.greatest += first;
    if (args.place != NULL) {
        args.place += begin;
        args.chosen += first;
    }
    c->device->partial_count[thread] = (int64_t)c->device->kernels->choose(&args);
}

static size_t choose_run(gg_device *device, const gg_choose_args *args) {
    choose_call call = {.device = (gg_cpu_device *)device, .args = args, .bins = (args->n + args->bin - 1) / args->bin};
    const int threads = gg_cpu_threads_for(device, args->n);
    gg_parallel_run(threads, choose_part, &call);
    size_t chosen = 0;
    for (int i = 0; i < threads; ++i) {
        const size_t count = (size_t)call.device->partial_count[i];
        size_t end;
        const size_t begin = choose_begin(&call, i, threads, &end) * args->bin;
        if (count > 0 && begin > chosen)
            memmove(args->place + chosen, args->place + begin, count * sizeof *args->place);
        chosen += count;
    }
    return chosen;
}

static size_t choose_all(gg_device *device, const gg_pack_args *a) {
    const size_t piece = a->prepare != NULL ? gg_pack_run(a->bin) : a->n, marks = gg_pack_mark_bytes(a->bin);
    const bool chooses = a->kind != GG_PACK_NONE && a->kind != GG_PACK_ALL;
    size_t entries = 0;
    for (size_t at = 0; at < a->n; at += piece) {
        const size_t n = a->n - at < piece ? a->n - at : piece;
        const float *gradient = a->gradient != NULL ? a->gradient + at : NULL, *elsewhere = NULL;
        if (a->prepare != NULL)
            elsewhere = a->prepare(a->context, a->offset + at, (n + GG_LANES - 1) / GG_LANES * GG_LANES);
        entries += choose_run(device, &(gg_choose_args){
                                          .n = n,
                                          .bin = a->bin,
                                          .scale = a->scale,
                                          .factor = a->factor,
                                          .gradient = elsewhere != NULL ? elsewhere : gradient,
                                          .clear = a->clear != NULL ? a->clear + at : NULL,
                                          .residue = a->residue != NULL ? a->residue + at : NULL,
                                          .value = a->value != NULL ? a->value + at : NULL,
                                          .known = a->known != NULL ? a->known + at : NULL,
                                          .marks = a->marks != NULL ? a->marks + at / a->bin * marks : NULL,
                                          .owed = a->owed != NULL ? *a->owed : 0,
                                          .greatest = a->scratch + at / a->bin,
                                          .place = chooses ? a->place + entries : NULL,
                                          .chosen = chooses ? a->chosen + at / a->bin : NULL,
                                      });
    }
    return entries;
}

/* ---- sent and removed elements ---- */

PACK_INLINE float term_of(const gg_pack_args *a, size_t j) {
    return a->residue != NULL ? a->residue[j] : a->value[j] - a->known[j];
}

PACK_INLINE void remove_sent(const gg_pack_args *a, size_t j, float sent) {
    if (a->residue != NULL) a->residue[j] -= sent;
    else a->known[j] += sent;
}

/* Rounds to nearest, ties to even. Values that would become infinite become the largest bfloat16. */
PACK_INLINE uint16_t narrowed(float value) {
    uint32_t bits;
    memcpy(&bits, &value, sizeof bits);
    const uint32_t up = bits + 0x7fffu + ((bits >> 16) & 1u);
    return (uint16_t)(((up & INFINITE) == INFINITE ? bits : up) >> 16);
}

PACK_INLINE float widened(uint16_t value) {
    const uint32_t bits = (uint32_t)value << 16;
    float wide;
    memcpy(&wide, &bits, sizeof wide);
    return wide;
}

static float scale_of(const uint32_t *greatest, size_t bins) {
    double sum = 0;
    for (size_t b = 0; b < bins; ++b) {
        float value;
        memcpy(&value, &greatest[b], sizeof value);
        sum += (double)value;
    }
    return (float)(sum / (double)bins);
}

static uint32_t greatest_of(const uint32_t *greatest, size_t bins) {
    uint32_t most = 0;
    for (size_t b = 0; b < bins; ++b) most = greatest[b] > most ? greatest[b] : most;
    return most;
}

/* Removes entries smaller than the bits of `least`; returns the number left. */
static size_t leave_out(const gg_pack_args *a, size_t bins, uint32_t least) {
    const uint16_t *from = a->place;
    uint16_t *to = a->place;
    for (size_t b = 0; b < bins; ++b) {
        const uint16_t *const end = from + a->chosen[b];
        uint16_t first = GG_CHOSEN_FIRST, left = 0;
        for (; from < end; ++from) {
            const float g = term_of(a, b * a->bin + (*from & GG_CHOSEN_PLACE));
            uint32_t bits;
            memcpy(&bits, &g, sizeof bits);
            if ((bits & 0x7fffffffu) < least) continue;
            *to++ = (uint16_t)((*from & ~GG_CHOSEN_FIRST) | first);
            first = 0;
            ++left;
        }
        a->chosen[b] = left;
    }
    return (size_t)(to - a->place);
}

/* Consecutive bins without an empty one: `entries` entries from bin `b` on. next_span returns false at the end. */
typedef struct span {
    size_t b, end, entries;
} span;

static bool next_span(const uint16_t *chosen, size_t bins, span *s) {
    size_t b = s->end;
    while (b < bins && chosen[b] == 0) ++b;
    s->b = b;
    s->entries = 0;
    for (; b < bins && chosen[b] > 0; ++b) s->entries += chosen[b];
    s->end = b;
    return s->entries > 0;
}

/* Elements processed together, so that memory is prefetched early. */
#define BLOCK 64

/* Removes sign*scale from every sent element. A block is processed after the prefetch of the next. */
typedef struct remover {
    float *own;
    size_t bin;
    uint32_t change; /* bits of the addend of a positive element */
    const uint16_t *place[2];
    uint32_t element[2][BLOCK];
    size_t count[2];
    int last; /* the delayed block */
} remover;

static void remove_waiting(remover *r) {
    const uint16_t *place = r->place[r->last];
    const uint32_t *element = r->element[r->last];
    float *own = r->own;
    for (size_t i = 0; i < r->count[r->last]; ++i) {
        const uint32_t bits = r->change ^ ((uint32_t)(place[i] & GG_CHOSEN_NEGATIVE) << 17);
        float change;
        memcpy(&change, &bits, sizeof change);
        own[element[i]] += change;
    }
    r->count[r->last] = 0;
}

static void remove_span(remover *r, size_t b, const uint16_t *place, size_t count) {
    const size_t bin = r->bin;
    size_t start = (b - 1) * bin; /* the first entry begins a bin */
    for (size_t at = 0; at < count; at += BLOCK) {
        const int next = r->last ^ 1;
        const size_t n = count - at < BLOCK ? count - at : BLOCK;
        for (size_t i = 0; i < n; ++i) {
            const uint32_t entry = place[at + i];
            start += bin & -(size_t)(entry / GG_CHOSEN_FIRST);
            r->element[next][i] = (uint32_t)start + (entry & GG_CHOSEN_PLACE);
            __builtin_prefetch(r->own + r->element[next][i], 1);
        }
        r->place[next] = place + at;
        r->count[next] = n;
        remove_waiting(r);
        r->last = next;
    }
}

static void remove_signs(const gg_pack_args *a, size_t bins, float scale) {
    const float change = a->residue != NULL ? -scale : scale;
    const uint16_t *place = a->place;
    remover r = {.own = a->residue != NULL ? a->residue : a->known, .bin = a->bin};
    memcpy(&r.change, &change, sizeof r.change);
    for (span s = {0}; next_span(a->chosen, bins, &s); place += s.entries) remove_span(&r, s.b, place, s.entries);
    remove_waiting(&r);
}

static void move_values(const gg_pack_args *a, size_t bins) {
    const uint16_t *place = a->place;
    uint16_t *narrow = a->values;
    float *wide = a->values;
    size_t n = 0;
    for (size_t b = 0; b < bins; ++b) {
        const uint16_t *const end = place + a->chosen[b];
        for (; place < end; ++place, ++n) {
            const size_t j = b * a->bin + (*place & GG_CHOSEN_PLACE);
            const float g = term_of(a, j);
            if (a->dtype == GG_BFLOAT16) {
                narrow[n] = narrowed(g);
                remove_sent(a, j, widened(narrow[n]));
            } else {
                wide[n] = g;
                remove_sent(a, j, g);
            }
        }
    }
}

static void move_all(const gg_pack_args *a) {
    float *values = a->values;
    for (size_t j = 0; j < a->n; ++j) {
        values[j] = term_of(a, j);
        remove_sent(a, j, values[j]);
    }
}

/* Marks the listed elements, and clears all other marks. */
static void mark_listed(const gg_pack_args *a, size_t bins) {
    const size_t bytes = gg_pack_mark_bytes(a->bin);
    const uint16_t *place = a->place;
    memset(a->marks, 0, bins * bytes);
    for (size_t b = 0; b < bins; ++b)
        for (const uint16_t *const end = place + a->chosen[b]; place < end; ++place) {
            const size_t at = *place & GG_CHOSEN_PLACE;
            a->marks[b * bytes + at / 8] |= (unsigned char)(1u << at % 8);
        }
}

static void pack_one(gg_device *device, const gg_pack_args *a) {
    const size_t bins = (a->n + a->bin - 1) / a->bin;
    size_t entries = choose_all(device, a);
    gg_pack_result *result = a->result;
    *result = (gg_pack_result){.greatest = greatest_of(a->scratch, bins)};
    if (a->kind == GG_PACK_ALL) move_all(a);
    if (a->marks != NULL && result->greatest >= INFINITE) memset(a->marks, 0, bins * gg_pack_mark_bytes(a->bin));
    if (a->kind == GG_PACK_ALL || a->kind == GG_PACK_NONE || result->greatest >= INFINITE) return;
    const float scale = result->scale = scale_of(a->scratch, bins);
    /* Without a scale no size is enough. Sizes and their bits have one order. */
    const float least = a->kind == GG_PACK_SIGNS && !(scale > 0) ? INFINITY : a->safe ? scale / 2 : 0;
    uint32_t bits;
    memcpy(&bits, &least, sizeof bits);
    if (bits > 0) entries = leave_out(a, bins, bits);
    if (a->marks != NULL) {
        if (bits > 0) mark_listed(a, bins);
        *a->owed = scale;
    } else if (a->kind == GG_PACK_SIGNS) {
        remove_signs(a, bins, scale);
    }
    if (a->kind == GG_PACK_VALUES) move_values(a, bins);
    result->entries = entries;
}

void gg_cpu_pack(gg_device *device, int count, const gg_pack_args *args) {
    for (int i = 0; i < count; ++i) pack_one(device, &args[i]);
}

/* ---- elements one by one ---- */

/* Prefetch distance. */
#define AHEAD ((size_t)32)

PACK_INLINE void request(const gg_elements_args *a, size_t i) {
    if (i + AHEAD < a->n) __builtin_prefetch(a->at + (a->element[i + AHEAD] & ~GG_ELEMENT_NEGATIVE), 1);
}

static void add_signs(const gg_elements_args *a) {
    const float both[2] = {a->factor, -a->factor};
    const uint32_t *element = a->element;
    float *at = a->at;
    for (size_t i = 0; i < a->n; ++i) {
        request(a, i);
        at[element[i] & ~GG_ELEMENT_NEGATIVE] += both[element[i] / GG_ELEMENT_NEGATIVE];
    }
}

PACK_INLINE float value_of(const void *values, const bool narrow, size_t i) {
    const uint16_t *two = values;
    const float *four = values;
    return narrow ? widened(two[i]) : four[i];
}

PACK_INLINE void add_values(const gg_elements_args *a, const bool narrow) {
    const void *values = a->values;
    const float factor = a->factor;
    float *at = a->at;
    if (a->element == NULL) {
        for (size_t i = 0; i < a->n; ++i) at[i] += factor * value_of(values, narrow, i);
        return;
    }
    for (size_t i = 0; i < a->n; ++i) {
        request(a, i);
        at[a->element[i] & ~GG_ELEMENT_NEGATIVE] += factor * value_of(values, narrow, i);
    }
}

void gg_cpu_add_elements(gg_device *device, const gg_elements_args *args) {
    (void)device;
    if (args->values == NULL) add_signs(args);
    else if (args->dtype == GG_BFLOAT16) add_values(args, true);
    else add_values(args, false);
}

void gg_cpu_take_elements(gg_device *device, const gg_elements_args *args) {
    uint16_t *narrow = args->values;
    float *wide = args->values;
    (void)device;
    for (size_t i = 0; i < args->n; ++i) {
        const size_t element = args->element != NULL ? args->element[i] & ~GG_ELEMENT_NEGATIVE : i;
        const float value = args->at[element];
        if (args->dtype == GG_BFLOAT16) narrow[i] = narrowed(value);
        else wide[i] = value;
        args->at[element] -= args->dtype == GG_BFLOAT16 ? widened(narrow[i]) : value;
    }
}
