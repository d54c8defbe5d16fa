/* Batch normalisation. Sums are float32 over pieces that stay in the L1 cache, and double over the pieces. Squares are
 * of differences from the piece's own mean. Even a channel with millions of values, or with a mean far from 0, loses no
 * digits. Memory is read once. */
#include "cpu/simd/simd.h"

/* Lanes of bfloat16. */
GG_INLINE lanes_f load_lanes_narrow(const uint16_t *p) {
    float wide[GG_LANES]
        __attribute__((aligned(64))) = {0}; /* gcc's analyzer does not see that all lanes are written */
    for (size_t i = 0; i < GG_LANES; i += FLOATS) *(floats *)(wide + i) = load_narrow(p + i);
    return lanes_load(wide);
}

GG_INLINE void store_lanes_narrow(uint16_t *p, lanes_f v) {
    float wide[GG_LANES] __attribute__((aligned(64)));
    lanes_store(wide, v);
    for (size_t i = 0; i < GG_LANES; i += FLOATS) *(halves *)(p + i) = narrowed(rounded_words(load(wide + i)));
}

/* The first n lanes; the others are zeros. */
GG_INLINE lanes_f load_lanes_narrow_part(const uint16_t *p, int n) {
    uint16_t all[GG_LANES] __attribute__((aligned(32))) = {0};
    memcpy(all, p, (size_t)n * sizeof *all);
    return load_lanes_narrow(all);
}

GG_INLINE void store_lanes_narrow_part(uint16_t *p, int n, lanes_f v) {
    uint16_t all[GG_LANES] __attribute__((aligned(32)));
    store_lanes_narrow(all, v);
    memcpy(p, all, (size_t)n * sizeof *all);
}

/* Vectors in a piece. */
#define PIECE ((int64_t)256)

/* A piece: whole runs, or a part of one. */
typedef struct piece {
    int64_t runs, vectors;
    int tail;
    int64_t offset; /* of its first value */
} piece;

/* The first piece that begins at vector *at of run *run; advances both. */
static piece next_piece(const gg_norm_runs *r, int64_t *run, int64_t *at) {
    const int64_t offset = *run * r->run_step + *at * GG_LANES;
    piece p = {.runs = 1, .vectors = r->vectors - *at, .tail = r->tail, .offset = offset};
    if (p.vectors > PIECE) {
        p.vectors = PIECE;
        p.tail = 0;
        *at += PIECE;
        return p;
    }
    const int64_t room = r->vectors < PIECE ? PIECE / (r->vectors + 1) : 1;
    p.runs = r->runs - *run < room ? r->runs - *run : room;
    *run += p.runs;
    *at = 0;
    return p;
}

GG_INLINE void add_lanes(double *sum, lanes_f v) {
    float lane[GG_LANES] __attribute__((aligned(64)));
    lanes_store(lane, v);
    for (int i = 0; i < GG_LANES; ++i) sum[i] += (double)lane[i];
}

/* Four sums side by side, so that additions do not wait for each other. */
GG_INLINE lanes_f total(const lanes_f sum[4]) {
    return lanes_add(lanes_add(sum[0], sum[1]), lanes_add(sum[2], sum[3]));
}

/* Divides sums to means. Works in memory, so that compilers do not extract single lanes from registers. */
static __attribute__((noinline)) void divide_lanes(const double values[GG_LANES], float sum[GG_LANES]) {
    for (int i = 0; i < GG_LANES; ++i) sum[i] = values[i] > 0 ? (float)((double)sum[i] / values[i]) : 0.0f;
}

typedef struct lane_values {
    lanes_f scale, offset, mean, slope, shift;
} lane_values;

GG_INLINE lane_values load_values(const gg_norm_lanes *l) {
    return (lane_values){lanes_load_any(l->scale), lanes_load_any(l->offset), lanes_load_any(l->mean),
                         lanes_load_any(l->slope), lanes_load_any(l->shift)};
}

GG_INLINE lanes_f cut(bool relu, lanes_f y) { return relu ? lanes_select(lanes_positive(y), y) : y; }

GG_INLINE lanes_f applied(const lane_values *l, lanes_f x) { return lanes_multiply_add(l->scale, x, l->offset); }

/* dy, or 0 where the ReLU cut. */
GG_INLINE lanes_f passed(const lane_values *l, bool relu, lanes_f x, lanes_f dy) {
    return relu ? lanes_select(lanes_positive(applied(l, x)), dy) : dy;
}

/* The gate of dy: none, the normalised x, or the output y. */
typedef enum gate { GATE_NONE, GATE_BY_X, GATE_BY_Y } gate;

typedef struct product_sums {
    lanes_f sum[2], product[2];
} product_sums;

GG_INLINE void add_product(product_sums *s, int k, const lane_values *l, lanes_f x, lanes_f d) {
    s->sum[k] = lanes_add(s->sum[k], d);
    s->product[k] = lanes_multiply_add(d, lanes_subtract(x, l->mean), s->product[k]);
}

GG_INLINE lanes_f gradient_of(const lane_values *l, bool relu, lanes_f x, lanes_f dy) {
    const lanes_f rest = lanes_multiply_add(l->slope, lanes_subtract(x, l->mean), l->shift);
    return lanes_multiply_add(l->scale, passed(l, relu, x, dy), rest);
}

#define ELEMENT float
#define NAME(name) name
#define LOAD lanes_load_any
#define LOAD_PART lanes_load_part
#define STORE lanes_store_any
#define STORE_PART lanes_store_part
#include "cpu/rows/norm_kernels.h"
#undef ELEMENT
#undef NAME
#undef LOAD
#undef LOAD_PART
#undef STORE
#undef STORE_PART

#define ELEMENT uint16_t
#define NAME(name) narrow_##name
#define LOAD load_lanes_narrow
#define LOAD_PART load_lanes_narrow_part
#define STORE store_lanes_narrow
#define STORE_PART store_lanes_narrow_part
#include "cpu/rows/norm_kernels.h"

const gg_cpu_norm GG_VARIANT(gg_cpu_norm) = {
    .moments = norm_moments,
    .apply = norm_apply,
    .products = norm_products,
    .gradient = norm_gradient,
    .narrow_moments = narrow_norm_moments,
    .narrow_apply = narrow_norm_apply,
    .narrow_products = narrow_norm_products,
    .narrow_gradient = narrow_norm_gradient,
};
