/* Products in which pairs of terms share a multiplication (cpu/gemm/paired_kernels.h): plain loops, and AVX-512. AVX2
 * has none: a tile's scalars would need their own registers, and networks gained at most 2 to 6 %. */
#include "cpu/gemm/paired_kernels.h"
#include "cpu/simd/tile.h"

#if defined(__AVX512F__) || !defined(__AVX2__)

enum { LANES = GG_PAIRED_LANES, STEP = GG_PAIRED_STEP };

/* ---- packing ---- */

static int64_t whole_steps(int64_t terms) { return (terms + STEP - 1) / STEP * STEP; }

/* Computes sums of absolute values in the same pass. */
#if defined(__AVX512F__)
#define SUMS LANES
#else
#define SUMS 1
#endif

GG_INLINE lanes_f load_some(int n, const float *from) {
    return n == LANES ? lanes_load_any(from) : lanes_load_part(from, n);
}

/* Sums of absolute values of vectors with terms `step` apart: first every SUMS-th term, then these sums. out: copy of
 * the terms; NULL means no copy. */
GG_INLINE lanes_f sizes_across(int n, int64_t terms, const float *from, int64_t step, float *out) {
    lanes_f sum[SUMS];
#pragma GCC unroll 16
    for (int i = 0; i < SUMS; ++i) sum[i] = lanes_set(0);
    for (int64_t l = 0; l < terms; l += SUMS)
#pragma GCC unroll 16
        for (int i = 0; i < SUMS; ++i) {
            if (l + i >= terms) continue;
            const lanes_f value = load_some(n, from + (l + i) * step);
            sum[i] = lanes_add(sum[i], lanes_size(value));
            if (out != NULL) lanes_store(out + (l + i) * LANES, value);
        }
#pragma GCC unroll 16
    for (int i = 1; i < SUMS; ++i) sum[0] = lanes_add(sum[0], sum[i]);
    return sum[0];
}

/* The subtracted sums, and the sums of their absolute values. */
typedef struct pair_sums {
    lanes_f products, sizes;
} pair_sums;

GG_INLINE void add_pair(pair_sums *sums, lanes_f first, lanes_f second) {
    sums->products = lanes_multiply_add(first, second, sums->products);
    sums->sizes = lanes_add(sums->sizes, lanes_size(lanes_multiply(first, second)));
}

/* The scaled terms; `from` may be `out`. */
GG_INLINE pair_sums scale_across(int n, int64_t terms, const float *from, int64_t step, lanes_f by, float *out) {
    pair_sums sums = {lanes_set(0), lanes_set(0)};
    for (int64_t l = 0; l < terms; l += STEP, from += STEP * step, out += STEP * LANES) {
        const lanes_f first = lanes_multiply(load_some(n, from), by);
        const lanes_f second = l + 1 < terms ? lanes_multiply(load_some(n, from + step), by) : lanes_set(0);
        const lanes_f third = l + 2 < terms ? lanes_multiply(load_some(n, from + 2 * step), by) : lanes_set(0);
        add_pair(&sums, first, second);
        lanes_store(out, first);
        lanes_store(out + LANES, second);
        lanes_store(out + 2 * LANES, third);
    }
    return sums;
}

#if defined(__AVX512F__)

/* Transposes the terms of n adjacent vectors, with a lane a vector. Loads each cache line once if the lines of all
 * vectors begin at equal distances. */
GG_INLINE void turn_along(int n, int64_t terms, const float *from, int64_t step, float *out) {
    const int64_t before = step % LANES == 0 ? (int64_t)((uintptr_t)from / sizeof *from % LANES) : 0;
    __m512 a[LANES];
    for (int64_t l = -before; l < terms; l += LANES) {
        const int64_t begin = l < 0 ? -l : 0, end = terms - l < LANES ? terms - l : LANES;
        const __mmask16 mask = (__mmask16)(((1u << end) - 1u) & ~((1u << begin) - 1u));
#pragma GCC unroll 16
        for (int i = 0; i < LANES; ++i)
            a[i] = i < n ? _mm512_maskz_loadu_ps(mask, from + i * step + l) : _mm512_setzero_ps();
        turn(a);
        if (begin == 0 && end == LANES) {
#pragma GCC unroll 16
            for (int i = 0; i < LANES; ++i) _mm512_store_ps(out + (l + i) * LANES, a[i]);
        } else {
#pragma GCC unroll 16
            for (int i = 0; i < LANES; ++i)
                if (i >= begin && i < end) _mm512_store_ps(out + (l + i) * LANES, a[i]);
        }
    }
}

#else

GG_INLINE void turn_along(int n, int64_t terms, const float *from, int64_t step, float *out) {
    GG_VARIANT(gg_gemm_kernels).transpose(n, terms, from, step, LANES, out, LANES);
}

#endif

/* For each vector: its scale, a power of two, and the inverse. `total`: sums of absolute values. If the mean is no
 * normal number, takes the most extreme power. */
static void find_scales(int64_t terms, const float *total, float *scale, float *inverse) {
    const float share = 1 / (float)(terms > 0 ? terms : 1);
    for (int i = 0; i < LANES; ++i) {
        const float mean = total[i] * share;
        uint32_t bits;
        memcpy(&bits, &mean, sizeof bits);
        bits >>= 23; /* the exponent: a mean has no sign */
        bits = bits < 1 ? 1 : bits > 253 ? 253 : bits;
        const uint32_t up = (254 - bits) << 23, down = bits << 23;
        memcpy(&scale[i], &up, sizeof up);
        memcpy(&inverse[i], &down, sizeof down);
    }
}

/* Terms at multiples of this distance share few sets of the L1 cache, so they are read once and copied. */
#define SAME_SETS 512
/* Terms at multiples of this distance share a single set. */
#define ONE_SET 1024

/* n: a constant if the compiler is to know that the group is full. */
GG_INLINE void pack_lanes(int n, const gg_paired_pack *p, const float *from, float *out) {
    _Alignas(64) float total[LANES], scale[LANES], inverse[LANES], sizes[LANES];
    const int64_t terms = p->terms, all = whole_steps(terms), step = p->step;
    const bool copies = p->across && step % SAME_SETS == 0;
    pair_sums sums;
    if (!p->across) turn_along(n, terms, from, step, out);
    if (copies) lanes_store(total, sizes_across(n, terms, from, step, out));
    else if (p->across) lanes_store(total, sizes_across(n, terms, from, step, NULL));
    else lanes_store(total, sizes_across(LANES, terms, out, LANES, NULL));
    find_scales(terms, total, scale, inverse);
    const lanes_f by = lanes_load(scale);
    if (p->across && !copies) sums = scale_across(n, terms, from, step, by, out);
    else sums = scale_across(LANES, terms, out, LANES, by, out);
    lanes_store(sizes, sums.sizes);
    lanes_store(out + all * LANES, sums.products);
    lanes_store(out + (all + 1) * LANES, lanes_load(inverse));
    float *const plain = out + (all + 2) * LANES;
    for (int i = 0; i < LANES; ++i) plain[i] = sizes[i] > (float)(GG_PAIRED_LIMIT * terms) ? 1 : 0;
}

static void paired_pack(const gg_paired_pack *p) {
    for (int64_t i = 0; i < p->count; i += LANES) {
        const int n = p->count - i < LANES ? (int)(p->count - i) : LANES;
        const float *from = p->from + (p->across ? i : i * p->step);
        float *out = p->out + i / LANES * p->group;
        if (n == LANES) pack_lanes(LANES, p, from, out);
        else pack_lanes(n, p, from, out);
    }
}

/* ---- the product of two groups ---- */

/* Lines to prefetch in a step: loading them from memory takes about as long as the step. */
#define LINES_A_STEP 2

/* Prefetch during products: one line of each row, then the next line of each row. */
typedef struct fetching {
    const float *at;
    int64_t step, rows, left; /* left: rows until the next line of the first one */
    int64_t lines;            /* until all has been fetched */
} fetching;

/* A group of rows and a group of columns, and the place of their product. */
typedef struct block {
    fetching *next;
    const float *a, *b;
    int64_t steps;
    float *c;
    int64_t c_row;
    int cols; /* the last group of columns may have fewer than LANES */
    const float *bias, *row_bias;
    unsigned marked_rows, marked_cols; /* bits; vector kernels */
    const float *plain;                /* sums by multiply-adds, LANES a row; marked sums are used */
    bool add, relu;
} block;

#if defined(__AVX512F__)

/* Prefetches the results, which may lie in memory, into the L1 cache. Into the L2 cache if all rows share one L1
 * set. */
GG_INLINE void request_results(const block *p, const int R) {
    if (p->c_row % ONE_SET == 0)
#pragma GCC unroll 16
        for (int r = 0; r < R; ++r) __builtin_prefetch(p->c + r * p->c_row, 0, 2);
    else
#pragma GCC unroll 16
        for (int r = 0; r < R; ++r) __builtin_prefetch(p->c + r * p->c_row, 1);
}

/* The compiler would load a scalar with two uses into a register, which occupies the adding units. As a memory operand
 * it does not. */
GG_INLINE __m512 plus_scalar(__m512 y, const float *x) {
    __m512 sum;
    __asm__("vaddps %2%{1to16%}, %1, %0" : "=v"(sum) : "v"(y), "m"(*x));
    return sum;
}

GG_INLINE __m512 plus_product(__m512 sum, __m512 y, const float *x) {
    __asm__("vfmadd231ps %2%{1to16%}, %1, %0" : "+v"(sum) : "v"(y), "m"(*x));
    return sum;
}

/* Products of K lanes of one group with all of the other, by multiply-adds. Sums the first, the second and the third
 * terms of all steps, then these sums. */
GG_INLINE void few_plain_sums(const int K, const float *lanes, const int *lane, const float *all, int64_t steps,
                              __m512 *out) {
    __m512 sum[4][STEP];
#pragma GCC unroll 4
    for (int k = 0; k < K; ++k)
#pragma GCC unroll 3
        for (int i = 0; i < STEP; ++i) sum[k][i] = _mm512_setzero_ps();
    for (; steps > 0; --steps, lanes += STEP * LANES, all += STEP * LANES)
#pragma GCC unroll 3
        for (int i = 0; i < STEP; ++i) {
            const __m512 y = _mm512_load_ps(all + i * LANES);
#pragma GCC unroll 4
            for (int k = 0; k < K; ++k) sum[k][i] = plus_product(sum[k][i], y, lanes + i * LANES + lane[k]);
        }
#pragma GCC unroll 4
    for (int k = 0; k < K; ++k) out[k] = _mm512_add_ps(_mm512_add_ps(sum[k][0], sum[k][1]), sum[k][2]);
}

/* few_plain_sums for the lanes in `wanted`, four or two at a time; the last lanes may repeat. Stores lanes and sums,
 * and returns their number. */
static int plain_sums(const float *lanes, unsigned wanted, const float *all, int64_t steps, int *lane, __m512 *out) {
    int count = 0;
    for (; wanted != 0; wanted &= wanted - 1) lane[count++] = __builtin_ctz(wanted);
    for (int i = count; i < (count + 3) / 4 * 4; ++i) lane[i] = lane[count - 1];
    int at = 0;
    for (; count - at > 2; at += 4) few_plain_sums(4, lanes, lane + at, all, steps, out + at);
    if (at < count) few_plain_sums(2, lanes, lane + at, all, steps, out + at);
    return count;
}

/* Sums the marked rows and columns of a block, or all of it if that is less work. */
static __attribute__((noinline)) void sum_plainly(const block *p, float *out) {
    unsigned rows = p->marked_rows, cols = p->marked_cols;
    const __m512i row_starts = _mm512_mullo_epi32(
        _mm512_set1_epi32(LANES), _mm512_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15));
    __m512 sum[LANES];
    int lane[LANES];
    if (__builtin_popcount(rows) + __builtin_popcount(cols) > LANES) rows = (1u << LANES) - 1u, cols = 0;
    for (int i = plain_sums(p->a, rows, p->b, p->steps, lane, sum) - 1; i >= 0; --i)
        _mm512_store_ps(out + lane[i] * LANES, sum[i]);
    for (int i = plain_sums(p->b, cols, p->a, p->steps, lane, sum) - 1; i >= 0; --i)
        _mm512_i32scatter_ps(out + lane[i], row_starts, sum[i], sizeof *out);
}

static __mmask16 marked(const float *group_end) {
    return _mm512_cmp_ps_mask(_mm512_load_ps(group_end + 2 * LANES), _mm512_setzero_ps(), _CMP_NEQ_UQ);
}

/* After the end, prefetches memory already in cache. */
GG_INLINE fetching fetch_begin(const block *p) {
    if (p->next->lines > 0) return *p->next;
    return (fetching){.at = p->b, .left = INT64_MAX};
}

GG_INLINE void fetch_line(fetching *next) {
    __builtin_prefetch(next->at, 0, 2);
    next->at += next->step;
    if (--next->left > 0) return;
    next->at += LANES - next->rows * next->step;
    next->left = next->rows;
    --next->lines;
}

GG_INLINE void run_rows(const block *p, const int R) {
    const float *a = p->a, *b = p->b;
    __m512 sum[LANES];
    fetching next = fetch_begin(p);
    request_results(p, R);
#pragma GCC unroll 16
    for (int r = 0; r < R; ++r) sum[r] = _mm512_setzero_ps();
    for (int64_t step = p->steps; step > 0; --step) {
        const __m512 first = _mm512_load_ps(b), second = _mm512_load_ps(b + LANES),
                     third = _mm512_load_ps(b + 2 * LANES);
#pragma GCC unroll 16
        for (int r = 0; r < R; ++r) {
            const __m512 one = plus_scalar(second, a + r), other = plus_scalar(first, a + LANES + r);
            sum[r] = plus_product(sum[r], third, a + 2 * LANES + r);
            sum[r] = _mm512_fmadd_ps(one, other, sum[r]);
        }
        a += STEP * LANES;
        b += STEP * LANES;
        for (int i = 0; i < LINES_A_STEP; ++i) fetch_line(&next);
    }
    if (p->next->lines > 0) *p->next = next;
    const __mmask16 mask = (__mmask16)((1u << p->cols) - 1u);
    const __m512 products = _mm512_load_ps(b), scale = _mm512_load_ps(b + LANES);
    const __m512 bias = p->bias != NULL ? _mm512_maskz_loadu_ps(mask, p->bias) : _mm512_setzero_ps();
    const float *const row_bias = p->row_bias, *const plain = p->plain;
    const unsigned rows = p->marked_rows, cols = p->marked_cols;
    const bool add = p->add, relu = p->relu;
    float *c = p->c;
#pragma GCC unroll 16
    for (int r = 0; r < R; ++r, c += p->c_row) {
        __m512 start = add ? _mm512_maskz_loadu_ps(mask, c) : bias;
        if (row_bias != NULL) start = _mm512_add_ps(start, _mm512_set1_ps(row_bias[r]));
        __m512 value = _mm512_sub_ps(_mm512_sub_ps(sum[r], _mm512_set1_ps(a[r])), products);
        if ((rows | cols) != 0)
            value = _mm512_mask_loadu_ps(value, rows >> r & 1 ? (__mmask16)0xffff : (__mmask16)cols, plain + r * LANES);
        start = _mm512_fmadd_ps(value, _mm512_mul_ps(scale, _mm512_set1_ps(a[LANES + r])), start);
        if (relu) start = _mm512_max_ps(_mm512_setzero_ps(), start); /* in this order NaN stays NaN */
        _mm512_mask_storeu_ps(c, mask, start);
    }
}

#define ROWS LANES
#define EACH_ROWS(X) X(1) X(2) X(3) X(4) X(5) X(6) X(7) X(8) X(9) X(10) X(11) X(12) X(13) X(14) X(15) X(16)

#else

static void run_rows(const block *p, const int R) {
    const float *const a_end = p->a + p->steps * STEP * LANES, *const b_end = p->b + p->steps * STEP * LANES;
    for (int r = 0; r < R; ++r)
        for (int j = 0; j < p->cols; ++j) {
            const bool plain = a_end[2 * LANES + r] != 0 || b_end[2 * LANES + j] != 0;
            const float *a = p->a + r, *b = p->b + j;
            float sum = 0, first = 0, second = 0, *const c = p->c + r * p->c_row + j;
            for (int64_t step = 0; step < p->steps; ++step, a += STEP * LANES, b += STEP * LANES) {
                if (plain) first += a[0] * b[0];
                if (plain) second += a[LANES] * b[LANES];
                sum += a[2 * LANES] * b[2 * LANES];
                if (!plain) sum += (a[0] + b[LANES]) * (a[LANES] + b[0]);
            }
            if (plain) sum = first + second + sum;
            float start = p->add ? *c : p->bias != NULL ? p->bias[j] : 0;
            if (p->row_bias != NULL) start += p->row_bias[r];
            const float value = plain ? sum : sum - a_end[r] - b_end[j];
            start += value * (a_end[LANES + r] * b_end[LANES + j]);
            *c = p->relu && start < 0 ? 0 : start;
        }
}

#define ROWS 1
#define EACH_ROWS(X) X(1)

#endif

typedef void (*run_fn)(const block *p);
#define RUN(R)                                                                                                         \
    static __attribute__((noinline)) void run_##R(const block *p) { run_rows(p, R); }
EACH_ROWS(RUN)
#undef RUN
#define ENTRY(R) [R] = run_##R,
static const run_fn runs[ROWS + 1] = {EACH_ROWS(ENTRY)};
#undef ENTRY

/* A group of columns stays in the L1 cache while all rows use it. */
static void paired_multiply(const gg_paired_product *p) {
    const gg_paired_next *next = &p->next;
    fetching fetched = {.at = next->from,
                        .step = next->step,
                        .rows = next->rows,
                        .left = next->rows,
                        .lines = next->from != NULL ? next->lines : 0};
    block t = {
        .next = &fetched, .steps = whole_steps(p->terms) / STEP, .c_row = p->c_row, .add = p->add, .relu = p->relu};
    for (int64_t j = 0; j < p->n; j += LANES) {
        t.b = p->b + j / LANES * p->b_group;
        t.cols = p->n - j < LANES ? (int)(p->n - j) : LANES;
        t.bias = p->bias != NULL ? p->bias + j : NULL;
        for (int64_t i = 0; i < p->m; i += ROWS) {
            t.a = p->a + i / LANES * p->a_group + i % LANES;
            t.c = p->c + i * p->c_row + j;
            t.row_bias = p->row_bias != NULL ? p->row_bias + i : NULL;
#if defined(__AVX512F__)
            const int64_t terms = t.steps * STEP * LANES;
            _Alignas(64) float plain[LANES * LANES];
            t.plain = plain;
            t.marked_rows = marked(t.a + terms);
            t.marked_cols = marked(t.b + terms);
            if ((t.marked_rows | t.marked_cols) != 0) sum_plainly(&t, plain);
#endif
            runs[p->m - i < ROWS ? p->m - i : ROWS](&t);
        }
    }
}

const gg_paired_kernels GG_VARIANT(gg_paired_kernels) = {.pack = paired_pack, .multiply = paired_multiply};

#endif
