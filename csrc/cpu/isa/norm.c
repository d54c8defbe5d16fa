/* Batch normalisation. Sums are of float32 over pieces that stay in the first cache, and of double over the pieces;
 * squares are of differences from the piece's own mean. So a channel of millions of values, or one whose mean is far
 * from 0, loses no digits, and memory is read once. */
#include "cpu/isa/isa.h"
#include "cpu/isa/lanes.h"

#define ALWAYS_INLINE static inline __attribute__((always_inline))

/* Vectors in a piece. */
#define PIECE ((int64_t)256)

/* A piece: whole runs, or a part of one. */
typedef struct piece {
    int64_t runs, vectors;
    int tail;
    int64_t offset; /* of its first value */
} piece;

/* The first piece that begins at vector *at of run *run; moves both on. */
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

ALWAYS_INLINE void add_lanes(double *sum, lanes_f v) {
    float lane[GG_LANES] __attribute__((aligned(64)));
    lanes_store(lane, v);
    for (int i = 0; i < GG_LANES; ++i) sum[i] += (double)lane[i];
}

/* Four sums side by side, so that additions do not wait for each other. */
ALWAYS_INLINE lanes_f total(const lanes_f sum[4]) {
    return lanes_add(lanes_add(sum[0], sum[1]), lanes_add(sum[2], sum[3]));
}

static lanes_f piece_sum(const piece *p, int64_t step, const float *values) {
    lanes_f sum[4];
    for (int k = 0; k < 4; ++k) sum[k] = lanes_set(0);
    for (int64_t r = 0; r < p->runs; ++r) {
        const float *x = values + p->offset + r * step;
        int64_t v = 0;
        for (; v + 4 <= p->vectors; v += 4, x += 4 * GG_LANES)
            for (int k = 0; k < 4; ++k) sum[k] = lanes_add(sum[k], lanes_load_any(x + k * GG_LANES));
        for (; v < p->vectors; ++v, x += GG_LANES) sum[0] = lanes_add(sum[0], lanes_load_any(x));
        if (p->tail > 0) sum[1] = lanes_add(sum[1], lanes_load_part(x, p->tail));
    }
    return total(sum);
}

/* Sums of the differences from `mean` and of their squares. */
static void piece_squares(const piece *p, int64_t step, const float *values, lanes_f mean, lanes_f *sum_out,
                          lanes_f *square_out) {
    lanes_f sum[4], square[4];
    for (int k = 0; k < 4; ++k) sum[k] = square[k] = lanes_set(0);
    for (int64_t r = 0; r < p->runs; ++r) {
        const float *x = values + p->offset + r * step;
        int64_t v = 0;
        for (; v + 4 <= p->vectors; v += 4, x += 4 * GG_LANES)
            for (int k = 0; k < 4; ++k) {
                const lanes_f d = lanes_subtract(lanes_load_any(x + k * GG_LANES), mean);
                sum[k] = lanes_add(sum[k], d);
                square[k] = lanes_multiply_add(d, d, square[k]);
            }
        for (; v < p->vectors; ++v, x += GG_LANES) {
            const lanes_f d = lanes_subtract(lanes_load_any(x), mean);
            sum[0] = lanes_add(sum[0], d);
            square[0] = lanes_multiply_add(d, d, square[0]);
        }
        if (p->tail > 0) {
            const lanes_f d = lanes_first(p->tail, lanes_subtract(lanes_load_part(x, p->tail), mean));
            sum[1] = lanes_add(sum[1], d);
            square[1] = lanes_multiply_add(d, d, square[1]);
        }
    }
    *sum_out = total(sum);
    *square_out = total(square);
}

/* Sums to means. In memory, so that no compiler takes single lanes out of registers. */
static __attribute__((noinline)) void divide_lanes(const double values[GG_LANES], float sum[GG_LANES]) {
    for (int i = 0; i < GG_LANES; ++i) sum[i] = values[i] > 0 ? (float)((double)sum[i] / values[i]) : 0.0f;
}

static void norm_moments(const gg_norm_runs *r, const float *x, double mean[GG_LANES], double squares[GG_LANES]) {
    double count[GG_LANES] = {0};
    for (int i = 0; i < GG_LANES; ++i) mean[i] = squares[i] = 0;
    for (int64_t run = 0, at = 0; run < r->runs;) {
        const piece p = next_piece(r, &run, &at);
        float near[GG_LANES] __attribute__((aligned(64)));
        double values[GG_LANES], sum[GG_LANES] = {0}, square[GG_LANES] = {0};
        lanes_f sums, square_sums;
        for (int i = 0; i < GG_LANES; ++i) values[i] = (double)(p.runs * (p.vectors + (i < p.tail)));
        lanes_store(near, piece_sum(&p, r->run_step, x));
        divide_lanes(values, near);
        piece_squares(&p, r->run_step, x, lanes_load(near), &sums, &square_sums);
        add_lanes(sum, sums);
        add_lanes(square, square_sums);
        for (int i = 0; i < GG_LANES; ++i) {
            const double n = values[i], all = count[i] + n, share = all > 0 ? n / all : 0;
            const double rest = n > 0 ? sum[i] / n : 0; /* what rounding the mean has left */
            const double distance = (double)near[i] + rest - mean[i];
            squares[i] += square[i] - rest * sum[i] + distance * distance * share * count[i];
            mean[i] += distance * share;
            count[i] = all;
        }
    }
}

typedef struct lane_values {
    lanes_f scale, offset, mean, slope, shift;
} lane_values;

ALWAYS_INLINE lane_values load_values(const gg_norm_lanes *l) {
    return (lane_values){lanes_load_any(l->scale), lanes_load_any(l->offset), lanes_load_any(l->mean),
                         lanes_load_any(l->slope), lanes_load_any(l->shift)};
}

ALWAYS_INLINE lanes_f cut(bool relu, lanes_f y) { return relu ? lanes_select(lanes_positive(y), y) : y; }

ALWAYS_INLINE lanes_f applied(const lane_values *l, lanes_f x) { return lanes_multiply_add(l->scale, x, l->offset); }

/* dy, or 0 where the ReLU has cut. */
ALWAYS_INLINE lanes_f passed(const lane_values *l, bool relu, lanes_f x, lanes_f dy) {
    return relu ? lanes_select(lanes_positive(applied(l, x)), dy) : dy;
}

ALWAYS_INLINE void store_tail(const gg_norm_runs *r, float *p, lanes_f v) {
    if (r->padded) lanes_store_any(p, lanes_first(r->tail, v));
    else lanes_store_part(p, r->tail, v);
}

ALWAYS_INLINE void apply_all(const gg_norm_runs *r, const gg_norm_lanes *lanes, bool relu, bool adds, const float *x,
                             const float *added, float *y) {
    const lane_values l = load_values(lanes);
    const int64_t end = r->vectors * GG_LANES;
    for (int64_t run = 0; run < r->runs; ++run) {
        const int64_t at = run * r->run_step;
        for (int64_t i = at; i < at + end; i += GG_LANES) {
            lanes_f v = applied(&l, lanes_load_any(x + i));
            if (adds) v = lanes_add(v, lanes_load_any(added + i));
            lanes_store_any(y + i, cut(relu, v));
        }
        if (r->tail == 0) continue;
        lanes_f v = applied(&l, lanes_load_part(x + at + end, r->tail));
        if (adds) v = lanes_add(v, lanes_load_part(added + at + end, r->tail));
        store_tail(r, y + at + end, cut(relu, v));
    }
}

static void norm_apply(const gg_norm_runs *r, const gg_norm_lanes *lanes, bool relu, const float *x, const float *added,
                       float *y) {
    if (added != NULL && relu) apply_all(r, lanes, true, true, x, added, y);
    else if (added != NULL) apply_all(r, lanes, false, true, x, added, y);
    else if (relu) apply_all(r, lanes, true, false, x, x, y);
    else apply_all(r, lanes, false, false, x, x, y);
}

/* Which values of dy have passed. */
typedef enum gate { GATE_NONE, GATE_BY_X, GATE_BY_Y } gate;

typedef struct product_sums {
    lanes_f sum[2], product[2];
} product_sums;

ALWAYS_INLINE void add_product(product_sums *s, int k, const lane_values *l, lanes_f x, lanes_f d) {
    s->sum[k] = lanes_add(s->sum[k], d);
    s->product[k] = lanes_multiply_add(d, lanes_subtract(x, l->mean), s->product[k]);
}

/* What a piece reads and writes: y with GATE_BY_Y, `passed` if it writes. */
typedef struct product_arrays {
    const float *x, *y, *dy;
    float *passed;
} product_arrays;

ALWAYS_INLINE lanes_f pass_vector(const lane_values *l, gate by, bool writes, const product_arrays *a, int64_t at,
                                  lanes_f x) {
    lanes_f d = lanes_load_any(a->dy + at);
    if (by == GATE_BY_Y) d = lanes_select(lanes_positive(lanes_load_any(a->y + at)), d);
    else d = passed(l, by == GATE_BY_X, x, d);
    if (writes) lanes_store_any(a->passed + at, d);
    return d;
}

ALWAYS_INLINE void piece_products(const gg_norm_runs *runs, const piece *p, const lane_values *l, gate by, bool writes,
                                  const product_arrays *a, double *sum, double *product) {
    product_sums s;
    for (int k = 0; k < 2; ++k) s.sum[k] = s.product[k] = lanes_set(0);
    for (int64_t r = 0; r < p->runs; ++r) {
        int64_t at = p->offset + r * runs->run_step, v = 0;
        for (; v + 2 <= p->vectors; v += 2, at += 2 * GG_LANES) {
            for (int k = 0; k < 2; ++k) {
                const lanes_f x = lanes_load_any(a->x + at + k * GG_LANES);
                add_product(&s, k, l, x, pass_vector(l, by, writes, a, at + k * GG_LANES, x));
            }
        }
        for (; v < p->vectors; ++v, at += GG_LANES) {
            const lanes_f x = lanes_load_any(a->x + at);
            add_product(&s, 0, l, x, pass_vector(l, by, writes, a, at, x));
        }
        if (p->tail == 0) continue;
        /* Where there is no value dy is read as 0. */
        const lanes_f x = lanes_load_part(a->x + at, p->tail);
        lanes_f d = lanes_load_part(a->dy + at, p->tail);
        if (by == GATE_BY_Y) d = lanes_select(lanes_positive(lanes_load_part(a->y + at, p->tail)), d);
        else d = passed(l, by == GATE_BY_X, x, d);
        if (writes) store_tail(runs, a->passed + at, d);
        add_product(&s, 1, l, x, d);
    }
    add_lanes(sum, lanes_add(s.sum[0], s.sum[1]));
    add_lanes(product, lanes_add(s.product[0], s.product[1]));
}

static void norm_products(const gg_norm_runs *r, const gg_norm_lanes *lanes, bool relu, const float *x, const float *y,
                          const float *dy, float *passed_out, double sum[GG_LANES], double product[GG_LANES]) {
    const lane_values l = load_values(lanes);
    const product_arrays a = {x, y, dy, passed_out};
    const gate by = !relu ? GATE_NONE : y != NULL ? GATE_BY_Y : GATE_BY_X;
    for (int i = 0; i < GG_LANES; ++i) sum[i] = product[i] = 0;
    for (int64_t run = 0, at = 0; run < r->runs;) {
        const piece p = next_piece(r, &run, &at);
        if (passed_out != NULL && by == GATE_BY_Y) piece_products(r, &p, &l, GATE_BY_Y, true, &a, sum, product);
        else if (passed_out != NULL && by == GATE_BY_X) piece_products(r, &p, &l, GATE_BY_X, true, &a, sum, product);
        else if (passed_out != NULL) piece_products(r, &p, &l, GATE_NONE, true, &a, sum, product);
        else if (by == GATE_BY_Y) piece_products(r, &p, &l, GATE_BY_Y, false, &a, sum, product);
        else if (by == GATE_BY_X) piece_products(r, &p, &l, GATE_BY_X, false, &a, sum, product);
        else piece_products(r, &p, &l, GATE_NONE, false, &a, sum, product);
    }
}

ALWAYS_INLINE lanes_f gradient_of(const lane_values *l, bool relu, lanes_f x, lanes_f dy) {
    const lanes_f rest = lanes_multiply_add(l->slope, lanes_subtract(x, l->mean), l->shift);
    return lanes_multiply_add(l->scale, passed(l, relu, x, dy), rest);
}

ALWAYS_INLINE void gradient_all(const gg_norm_runs *r, const gg_norm_lanes *lanes, bool relu, const float *x,
                                const float *dy, float *dx) {
    const lane_values l = load_values(lanes);
    const int64_t end = r->vectors * GG_LANES;
    for (int64_t run = 0; run < r->runs; ++run, x += r->run_step, dy += r->run_step, dx += r->run_step) {
        for (int64_t i = 0; i < end; i += GG_LANES)
            lanes_store_any(dx + i, gradient_of(&l, relu, lanes_load_any(x + i), lanes_load_any(dy + i)));
        if (r->tail == 0) continue;
        store_tail(r, dx + end,
                   gradient_of(&l, relu, lanes_load_part(x + end, r->tail), lanes_load_part(dy + end, r->tail)));
    }
}

static void norm_gradient(const gg_norm_runs *r, const gg_norm_lanes *lanes, bool relu, const float *x, const float *dy,
                          float *dx) {
    if (relu) gradient_all(r, lanes, true, x, dy, dx);
    else gradient_all(r, lanes, false, x, dy, dx);
}

const gg_cpu_norm GG_VARIANT(gg_cpu_norm) = {
    .moments = norm_moments,
    .apply = norm_apply,
    .products = norm_products,
    .gradient = norm_gradient,
};
