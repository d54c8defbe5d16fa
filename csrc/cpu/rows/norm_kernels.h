/* Kernels of norm.c for one type of activations. norm.c includes this file once a type. It defines ELEMENT, the loads
 * and stores of its vectors, and NAME for the functions' names. No include guard. */

static lanes_f NAME(piece_sum)(const piece *p, int64_t step, const ELEMENT *values) {
    lanes_f sum[4];
    for (int k = 0; k < 4; ++k) sum[k] = lanes_set(0);
    for (int64_t r = 0; r < p->runs; ++r) {
        const ELEMENT *x = values + p->offset + r * step;
        int64_t v = 0;
        for (; v + 4 <= p->vectors; v += 4, x += 4 * GG_LANES)
            for (int k = 0; k < 4; ++k) sum[k] = lanes_add(sum[k], LOAD(x + k * GG_LANES));
        for (; v < p->vectors; ++v, x += GG_LANES) sum[0] = lanes_add(sum[0], LOAD(x));
        if (p->tail > 0) sum[1] = lanes_add(sum[1], LOAD_PART(x, p->tail));
    }
    return total(sum);
}

/* Sums of the differences from `mean` and of their squares. */
static void NAME(piece_squares)(const piece *p, int64_t step, const ELEMENT *values, lanes_f mean, lanes_f *sum_out,
                                lanes_f *square_out) {
    lanes_f sum[4], square[4];
    for (int k = 0; k < 4; ++k) sum[k] = square[k] = lanes_set(0);
    for (int64_t r = 0; r < p->runs; ++r) {
        const ELEMENT *x = values + p->offset + r * step;
        int64_t v = 0;
        for (; v + 4 <= p->vectors; v += 4, x += 4 * GG_LANES)
            for (int k = 0; k < 4; ++k) {
                const lanes_f d = lanes_subtract(LOAD(x + k * GG_LANES), mean);
                sum[k] = lanes_add(sum[k], d);
                square[k] = lanes_multiply_add(d, d, square[k]);
            }
        for (; v < p->vectors; ++v, x += GG_LANES) {
            const lanes_f d = lanes_subtract(LOAD(x), mean);
            sum[0] = lanes_add(sum[0], d);
            square[0] = lanes_multiply_add(d, d, square[0]);
        }
        if (p->tail > 0) {
            const lanes_f d = lanes_first(p->tail, lanes_subtract(LOAD_PART(x, p->tail), mean));
            sum[1] = lanes_add(sum[1], d);
            square[1] = lanes_multiply_add(d, d, square[1]);
        }
    }
    *sum_out = total(sum);
    *square_out = total(square);
}

static void NAME(norm_moments)(const gg_norm_runs *r, const ELEMENT *x, double mean[GG_LANES],
                               double squares[GG_LANES]) {
    double count[GG_LANES] = {0};
    for (int i = 0; i < GG_LANES; ++i) mean[i] = squares[i] = 0;
    for (int64_t run = 0, at = 0; run < r->runs;) {
        const piece p = next_piece(r, &run, &at);
        float near[GG_LANES] __attribute__((aligned(64)));
        double values[GG_LANES], sum[GG_LANES] = {0}, square[GG_LANES] = {0};
        lanes_f sums, square_sums;
        for (int i = 0; i < GG_LANES; ++i) values[i] = (double)(p.runs * (p.vectors + (i < p.tail)));
        lanes_store(near, NAME(piece_sum)(&p, r->run_step, x));
        divide_lanes(values, near);
        NAME(piece_squares)(&p, r->run_step, x, lanes_load(near), &sums, &square_sums);
        add_lanes(sum, sums);
        add_lanes(square, square_sums);
        for (int i = 0; i < GG_LANES; ++i) {
            const double n = values[i], all = count[i] + n, share = all > 0 ? n / all : 0;
            const double rest = n > 0 ? sum[i] / n : 0; /* error of the rounded mean */
            const double distance = (double)near[i] + rest - mean[i];
            squares[i] += square[i] - rest * sum[i] + distance * distance * share * count[i];
            mean[i] += distance * share;
            count[i] = all;
        }
    }
}

GG_INLINE void NAME(store_tail)(const gg_norm_runs *r, ELEMENT *p, lanes_f v) {
    if (r->padded) STORE(p, lanes_first(r->tail, v));
    else STORE_PART(p, r->tail, v);
}

GG_INLINE void NAME(apply_all)(const gg_norm_runs *r, const gg_norm_lanes *lanes, bool relu, bool adds,
                               const ELEMENT *x, const ELEMENT *added, ELEMENT *y) {
    const lane_values l = load_values(lanes);
    const int64_t end = r->vectors * GG_LANES;
    for (int64_t run = 0; run < r->runs; ++run) {
        const int64_t at = run * r->run_step;
        for (int64_t i = at; i < at + end; i += GG_LANES) {
            lanes_f v = applied(&l, LOAD(x + i));
            if (adds) v = lanes_add(v, LOAD(added + i));
            STORE(y + i, cut(relu, v));
        }
        if (r->tail == 0) continue;
        lanes_f v = applied(&l, LOAD_PART(x + at + end, r->tail));
        if (adds) v = lanes_add(v, LOAD_PART(added + at + end, r->tail));
        NAME(store_tail)(r, y + at + end, cut(relu, v));
    }
}

static void NAME(norm_apply)(const gg_norm_runs *r, const gg_norm_lanes *lanes, bool relu, const ELEMENT *x,
                             const ELEMENT *added, ELEMENT *y) {
    if (added != NULL && relu) NAME(apply_all)(r, lanes, true, true, x, added, y);
    else if (added != NULL) NAME(apply_all)(r, lanes, false, true, x, added, y);
    else if (relu) NAME(apply_all)(r, lanes, true, false, x, x, y);
    else NAME(apply_all)(r, lanes, false, false, x, x, y);
}

/* Arrays of a piece: reads y with GATE_BY_Y, writes `passed` if `writes`. */
typedef struct NAME(product_arrays) {
    const ELEMENT *x, *y, *dy;
    ELEMENT *passed;
} NAME(product_arrays);

GG_INLINE lanes_f NAME(pass_vector)(const lane_values *l, gate by, bool writes, const NAME(product_arrays) * a,
                                    int64_t at, lanes_f x) {
    lanes_f d = LOAD(a->dy + at);
    if (by == GATE_BY_Y) d = lanes_select(lanes_positive(LOAD(a->y + at)), d);
    else d = passed(l, by == GATE_BY_X, x, d);
    if (writes) STORE(a->passed + at, d);
    return d;
}

GG_INLINE void NAME(piece_products)(const gg_norm_runs *runs, const piece *p, const lane_values *l, gate by,
                                    bool writes, const NAME(product_arrays) * a, double *sum, double *product) {
    product_sums s;
    for (int k = 0; k < 2; ++k) s.sum[k] = s.product[k] = lanes_set(0);
    for (int64_t r = 0; r < p->runs; ++r) {
        int64_t at = p->offset + r * runs->run_step, v = 0;
        for (; v + 2 <= p->vectors; v += 2, at += 2 * GG_LANES) {
            for (int k = 0; k < 2; ++k) {
                const lanes_f x = LOAD(a->x + at + k * GG_LANES);
                add_product(&s, k, l, x, NAME(pass_vector)(l, by, writes, a, at + k * GG_LANES, x));
            }
        }
        for (; v < p->vectors; ++v, at += GG_LANES) {
            const lanes_f x = LOAD(a->x + at);
            add_product(&s, 0, l, x, NAME(pass_vector)(l, by, writes, a, at, x));
        }
        if (p->tail == 0) continue;
        /* Lanes after the tail read dy as 0. */
        const lanes_f x = LOAD_PART(a->x + at, p->tail);
        lanes_f d = LOAD_PART(a->dy + at, p->tail);
        if (by == GATE_BY_Y) d = lanes_select(lanes_positive(LOAD_PART(a->y + at, p->tail)), d);
        else d = passed(l, by == GATE_BY_X, x, d);
        if (writes) NAME(store_tail)(runs, a->passed + at, d);
        add_product(&s, 1, l, x, d);
    }
    add_lanes(sum, lanes_add(s.sum[0], s.sum[1]));
    add_lanes(product, lanes_add(s.product[0], s.product[1]));
}

static void NAME(norm_products)(const gg_norm_runs *r, const gg_norm_lanes *lanes, bool relu, const ELEMENT *x,
                                const ELEMENT *y, const ELEMENT *dy, ELEMENT *passed_out, double sum[GG_LANES],
                                double product[GG_LANES]) {
    const lane_values l = load_values(lanes);
    const NAME(product_arrays) a = {x, y, dy, passed_out};
    const gate by = !relu ? GATE_NONE : y != NULL ? GATE_BY_Y : GATE_BY_X;
    for (int i = 0; i < GG_LANES; ++i) sum[i] = product[i] = 0;
    for (int64_t run = 0, at = 0; run < r->runs;) {
        const piece p = next_piece(r, &run, &at);
        if (passed_out != NULL && by == GATE_BY_Y) NAME(piece_products)(r, &p, &l, GATE_BY_Y, true, &a, sum, product);
        else if (passed_out != NULL && by == GATE_BY_X)
            NAME(piece_products)(r, &p, &l, GATE_BY_X, true, &a, sum, product);
        else if (passed_out != NULL) NAME(piece_products)(r, &p, &l, GATE_NONE, true, &a, sum, product);
        else if (by == GATE_BY_Y) NAME(piece_products)(r, &p, &l, GATE_BY_Y, false, &a, sum, product);
        else if (by == GATE_BY_X) NAME(piece_products)(r, &p, &l, GATE_BY_X, false, &a, sum, product);
        else NAME(piece_products)(r, &p, &l, GATE_NONE, false, &a, sum, product);
    }
}

GG_INLINE void NAME(gradient_all)(const gg_norm_runs *r, const gg_norm_lanes *lanes, bool relu, const ELEMENT *x,
                                  const ELEMENT *dy, ELEMENT *dx) {
    const lane_values l = load_values(lanes);
    const int64_t end = r->vectors * GG_LANES;
    for (int64_t run = 0; run < r->runs; ++run, x += r->run_step, dy += r->run_step, dx += r->run_step) {
        for (int64_t i = 0; i < end; i += GG_LANES) STORE(dx + i, gradient_of(&l, relu, LOAD(x + i), LOAD(dy + i)));
        if (r->tail == 0) continue;
        NAME(store_tail)(r, dx + end, gradient_of(&l, relu, LOAD_PART(x + end, r->tail), LOAD_PART(dy + end, r->tail)));
    }
}

static void NAME(norm_gradient)(const gg_norm_runs *r, const gg_norm_lanes *lanes, bool relu, const ELEMENT *x,
                                const ELEMENT *dy, ELEMENT *dx) {
    if (relu) NAME(gradient_all)(r, lanes, true, x, dy, dx);
    else NAME(gradient_all)(r, lanes, false, x, dy, dx);
}
