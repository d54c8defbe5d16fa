/* Kernels without C tests of their own at every level of this CPU, against the scalar kernels: Winograd's, those of
 * rows and normalisations, attention and the LSTM. Python's tests compare the same kernels with sums in double. */
#include <math.h>

#include "cpu/conv/winograd_kernels.h"
#include "cpu/kernels.h"
#include "guarded.h"

/* SCALAR comes first: LEVEL reads some of its results. */
enum { SCALAR, LEVEL, BOTH };

static const gg_cpu_kernels *kernels[BOTH];
static buffer buffers[32];
static int buffer_count;

static float *kept(buffer b) {
    if (buffer_count == 32) abort();
    buffers[buffer_count++] = b;
    return b.floats;
}

static float *uniform(size_t n, float low, float high) { return kept(buffer_uniform(17, n, low, high)); }

/* Equal numbers for both levels, which work in place. */
static void twins(size_t n, float low, float high, float *out[BOTH]) {
    for (int k = 0; k < BOTH; ++k) out[k] = kept(buffer_floats(n));
    float *from = uniform(n, low, high);
    for (int k = 0; k < BOTH; ++k) memcpy(out[k], from, n * sizeof *from);
}

static void release(void) {
    while (buffer_count > 0) buffer_free(&buffers[--buffer_count]);
}

/* Differences stay below 2^-17 of the largest number; n is at least 1. */
static bool near_floats(size_t n, float *const both[BOTH]) {
    float greatest = 0, worst = 0;
    for (size_t i = 0; i < n; ++i) {
        const float size = fabsf(both[SCALAR][i]), apart = fabsf(both[LEVEL][i] - both[SCALAR][i]);
        if (!(size <= greatest)) greatest = size;
        if (!(apart <= worst)) worst = apart;
    }
    return isfinite(greatest) && worst <= ldexpf(greatest, -17);
}

static bool near_doubles(size_t n, const double *level, const double *scalar) {
    bool good = true;
    for (size_t i = 0; i < n; ++i) good = good && fabs(level[i] - scalar[i]) <= 1e-5 * (1 + fabs(scalar[i]));
    return good;
}

/* ------------------------------------------------------------------------------------------------ Winograd */

enum { PLANES = 3, L = GG_LANES };

/* The lanes that both compute, of `vectors` vectors. */
static bool near_lanes(size_t vectors, int lanes, float *const both[BOTH]) {
    for (size_t v = 0; v < vectors; ++v)
        for (int i = lanes; i < L; ++i) both[LEVEL][v * L + (size_t)i] = both[SCALAR][v * L + (size_t)i];
    return near_floats(vectors * L, both);
}

/* lanes: of the level's kernels. */
static void check_tiles(int outputs, int taps, int lanes, bool whole, int biased) {
    const int across = outputs + taps - 1;
    const size_t places = (size_t)(across * across), vectors = PLANES * places;
    const int begin = whole ? 0 : 1, end = whole ? across : outputs - 1;
    float *image = uniform(vectors * L, -1, 1), *from = uniform(vectors * L, -1, 1), *bias = uniform(PLANES * L, -1, 1);
    float *input[BOTH], *gradient[BOTH], *output[BOTH];
    twins(vectors * L, -1, 1, input);
    twins(vectors * L, -1, 1, gradient);
    twins(vectors * L, -1, 1, output);
    for (int k = 0; k < BOTH; ++k) {
        gg_winograd_tiles t = {.outputs = outputs,
                               .taps = taps,
                               .count = PLANES,
                               .lanes = k == LEVEL ? lanes : L,
                               .image = image,
                               .plane = (int64_t)places * L,
                               .row = across * L,
                               .pixel = L,
                               .begin = {begin, begin},
                               .end = {end, end},
                               .places = input[k],
                               .place_step = PLANES * L,
                               .step = L,
                               .bias = biased > 0 ? bias : NULL,
                               .bias_step = L,
                               .bias_vectors = biased > 1,
                               .relu = biased > 0};
        kernels[k]->winograd->input(&t);
        if (whole) t.end[0] = t.end[1] = outputs;
        t.places = gradient[k];
        kernels[k]->winograd->gradient(&t);
        t.places = from;
        t.image = output[k];
        kernels[k]->winograd->output(&t);
    }
    for (int r = 0; lanes < L && r < end && r < outputs; ++r) CHECK(output[LEVEL][r * across * L + lanes] == 0);
    CHECK(near_lanes(vectors, lanes, input));
    CHECK(near_lanes(vectors, lanes, gradient));
    CHECK(near_lanes(vectors, lanes, output));
    release();
}

static void check_weights(int outputs, int taps, int lanes, int stored) {
    const int across = outputs + taps - 1;
    const size_t all = (size_t)(taps * taps), places = (size_t)(across * across), vectors = PLANES * places;
    float *weights = uniform(PLANES * L * all, -1, 1), *from = uniform(vectors * L, -1, 1);
    float *to[BOTH], *back[BOTH];
    twins(vectors * L, -1, 1, to);
    twins(PLANES * L * all, -1, 1, back);
    for (int k = 0; k < BOTH; ++k) {
        gg_winograd_weights w = {.outputs = outputs,
                                 .taps = taps,
                                 .lanes = lanes,
                                 .stored = stored,
                                 .count = PLANES,
                                 .weights = weights,
                                 .lane_step = (int64_t)all,
                                 .step = (int64_t)all * L,
                                 .places = to[k],
                                 .place_step = PLANES * L,
                                 .places_step = L,
                                 .rotated = stored < L};
        kernels[k]->winograd->weights(&w);
        w.weights = back[k];
        w.places = from;
        kernels[k]->winograd->weight_gradient(&w);
    }
    CHECK(near_floats(vectors * L, to));
    CHECK(near_floats(PLANES * L * all, back));
    release();
}

typedef enum scalars_kind { PACKED, ACROSS, BLOCKS, SCALARS } scalars_kind;

/* Against sums in double, as panels and blocks differ by level. */
static void check_product(scalars_kind kind, int64_t rows, int64_t terms) {
    const gg_winograd_kernels *of = kernels[LEVEL]->winograd;
    enum { PANELS = 2 };
    const int64_t panel = kind == BLOCKS ? L : of->panel, blocks = (rows + of->rows - 1) / of->rows;
    const int64_t columns = PANELS * panel, room = (terms + L - 1) / L * L;
    float *scalars = uniform((size_t)(rows * room), -1, 1), *x = uniform((size_t)(terms * columns), -1, 1);
    float *given = kept(buffer_floats((size_t)(rows * room))), *y = kept(buffer_floats((size_t)(rows * columns)));
    for (int64_t b = 0, r = 0, size; b < blocks; ++b, r += size) {
        size = rows / blocks + (b < rows % blocks);
        for (int64_t i = r; i < r + size; ++i)
            for (int64_t k = 0; k < terms; ++k)
                given[kind == PACKED   ? r * terms + k * size + i - r
                      : kind == ACROSS ? i * room + k
                                       : k / L * rows * L + i * L + k % L] = scalars[i * room + k];
    }
    of->product(&(gg_winograd_product){.rows = rows,
                                       .terms = terms,
                                       .panels = PANELS,
                                       .panel = (int)panel,
                                       .scalars = given,
                                       .scalar_row = kind == PACKED   ? 0
                                                     : kind == ACROSS ? room
                                                                      : L,
                                       .scalar_block = kind == BLOCKS ? rows * L : L,
                                       .x = x,
                                       .x_panel = terms * panel,
                                       .y = y,
                                       .y_row = panel,
                                       .y_panel = rows * panel,
                                       .y_block = L,
                                       .places = 1});
    bool good = true;
    for (int64_t i = 0; i < rows; ++i)
        for (int64_t c = 0; c < columns; ++c) {
            double sum = 0;
            for (int64_t k = 0; k < terms; ++k)
                sum += (double)scalars[i * room + k] * x[c / panel * terms * panel + k * panel + c % panel];
            good = good && fabs(y[c / panel * rows * panel + i * panel + c % panel] - sum) <= 1e-5 * (double)terms;
        }
    CHECK(good);
    release();
}

static void test_winograd(void) {
    static const int shapes[][2] = {{2, 3}, {4, 3}, {6, 3}, {2, 5}, {4, 5}};
    for (size_t s = 0; s < sizeof shapes / sizeof *shapes; ++s) {
        for (int lanes = kernels[LEVEL]->winograd->least; lanes <= L; lanes += L / 2)
            for (int i = 0; i < 3; ++i) check_tiles(shapes[s][0], shapes[s][1], lanes, i > 0, i);
        for (int stored = 1; stored <= L; stored += 5)
            check_weights(shapes[s][0], shapes[s][1], (stored + 1) / 2, stored);
    }
    for (int kind = 0; kind < SCALARS; ++kind)
        for (int64_t rows = 1; rows < 40; rows += 6) check_product((scalars_kind)kind, rows, 5 * rows);
}

/* ------------------------------------------------------------------------------------------------ rows */

static void check_norm(int64_t vectors, int tail, bool relu) {
    enum { RUNS = 2 };
    const size_t step = (size_t)(vectors + 1) * L, n = RUNS * step;
    const gg_norm_runs runs = {
        .runs = RUNS, .run_step = (int64_t)step, .vectors = vectors, .tail = tail, .padded = true};
    const float *x = uniform(n, -1, 3), *dy = uniform(n, -1, 1), *gate = uniform(n, -1, 1);
    const float *numbers = uniform(5 * L, -1, 1);
    gg_norm_lanes lanes;
    double mean[BOTH][L], squares[BOTH][L], sum[BOTH][L], product[BOTH][L];
    float *y[BOTH], *passed[BOTH], *dx[BOTH];
    memcpy(&lanes, numbers, sizeof lanes);
    twins(n, 0, 1, y);
    twins(n, 0, 1, passed);
    twins(n, 0, 1, dx);
    for (int k = 0; k < BOTH; ++k) {
        const gg_cpu_norm *of = kernels[k]->norm;
        of->moments(&runs, x, mean[k], squares[k]);
        of->apply(&runs, &lanes, relu, x, dy, y[k]);
        of->products(&runs, &lanes, relu, x, gate, dy, passed[k], sum[k], product[k]);
        of->gradient(&runs, &lanes, false, x, dy, dx[k]);
    }
    CHECK(near_doubles(L, mean[LEVEL], mean[SCALAR]) && near_doubles(L, squares[LEVEL], squares[SCALAR]));
    CHECK(near_doubles(L, sum[LEVEL], sum[SCALAR]) && near_doubles(L, product[LEVEL], product[SCALAR]));
    CHECK(near_floats(n, y) && near_floats(n, dx) && near_floats(n, passed));
    release();
}

static void check_rows(size_t n, bool root_mean_square) {
    const gg_norm_rows rows = {.count = 1,
                               .length = (int64_t)n,
                               .weights = (int64_t)n,
                               .inner = 1,
                               .parameters = (int64_t)n,
                               .root_mean_square = root_mean_square};
    const float *x = uniform(n * L, -1, 2), *dy = uniform(n * L, -1, 1), *weight = uniform(n, 0, 1);
    const float *bias = uniform(n, -1, 1), *means = uniform(L, -1, 1), *inverses = uniform(L, 0, 1);
    double mean[BOTH], squares[BOTH], sum[BOTH][L + 1], product[BOTH][L + 1];
    float *y[BOTH], *dx[BOTH], *grads[BOTH], *soft[BOTH], *soft_dx[BOTH];
    double lane_grads[BOTH][2 * 64] = {{0}};
    twins(n * L, 0, 1, y);
    twins(n * L, 0, 1, dx);
    twins(2 * n, 0, 1, grads);
    twins(n * L, 0, 1, soft);
    twins(n * L, 0, 1, soft_dx);
    memset(sum, 0, sizeof sum);
    memset(product, 0, sizeof product);
    for (int lanes = 0; lanes < 2; ++lanes) {
        for (int k = 0; k < BOTH; ++k) {
            const gg_cpu_rows *of = kernels[k]->rows;
            if (lanes) {
                of->lanes_apply(&rows, L, x, means, inverses, weight, bias, y[k]);
                of->lanes_sums(&rows, L, x, dy, means, inverses, weight, sum[k], product[k], lane_grads[k],
                               lane_grads[k] + 64);
                of->lanes_gradient(&rows, L, x, dy, means, inverses, weight, means, inverses, dx[k]);
                of->softmax_lanes(n, L, L, x, soft[k]);
                of->softmax_lanes_backward(n, L, L, soft[SCALAR], dy, soft_dx[k]);
            } else {
                of->row_moments(n, x, &mean[k], &squares[k]);
                of->row_apply(&rows, x, 0.5f, 2, weight, bias, y[k]);
                of->row_sums(&rows, x, dy, 0.5f, 2, weight, &sum[k][L], &product[k][L], grads[k], grads[k] + n);
                of->row_gradient(&rows, x, dy, 0.5f, 2, weight, 0.25f, 0.125f, dx[k]);
                of->softmax_row(n, x, soft[k]);
                of->softmax_row_backward(n, x, dy, soft_dx[k]);
            }
        }
        CHECK(near_floats(n * L, y) && near_floats(n * L, dx) && near_floats(2 * n, grads));
        CHECK(near_floats(n * L, soft) && near_floats(n * L, soft_dx));
    }
    CHECK(near_doubles(1, &mean[LEVEL], &mean[SCALAR]) && near_doubles(1, &squares[LEVEL], &squares[SCALAR]));
    CHECK(near_doubles(L + 1, sum[LEVEL], sum[SCALAR]) && near_doubles(L + 1, product[LEVEL], product[SCALAR]));
    CHECK(near_doubles(2 * 64, lane_grads[LEVEL], lane_grads[SCALAR]));
    release();
}

static void check_lrn(size_t width, float beta) {
    enum { CHANNELS = 7 };
    const size_t n = CHANNELS * width;
    const gg_lrn_shape shape = {
        .channels = CHANNELS, .before = 2, .after = 2, .step = width, .share = 0.2f, .beta = beta, .k = 2};
    const float *x = uniform(n, -2, 2), *dy = uniform(n, -1, 1);
    float *y[BOTH], *sums[BOTH], *dx[BOTH], *terms = kept(buffer_floats(CHANNELS * GG_LRN_STRIP));
    twins(n, 0, 1, y);
    twins(n, 0, 1, sums);
    twins(n, 0, 1, dx);
    for (int k = 0; k < BOTH; ++k) {
        kernels[k]->lrn->forward(&shape, width, x, y[k], sums[k]);
        kernels[k]->lrn->backward(&shape, width, x, sums[SCALAR], dy, dx[k], terms);
    }
    CHECK(near_floats(n, y) && near_floats(n, sums) && near_floats(n, dx));
    release();
}

/* ------------------------------------------------------------------------------------------------ attention, LSTM */

static void check_attention(int64_t keys, int64_t all) {
    const size_t n = (size_t)keys * L;
    uint8_t mask[64 * L];
    float *scores[BOTH], *again[BOTH], *error[BOTH], *dropped[BOTH], *saved[BOTH];
    for (size_t i = 0; i < n; ++i) mask[i] = i * 7 % 3 != 0;
    twins(n, -3, 3, scores);
    twins(n, -3, 3, error);
    twins(n, 0, 1, dropped);
    twins(2 * L, 0, 1, saved);
    twins(n, 0, 1, again);
    for (int k = 0; k < BOTH; ++k) {
        const gg_cpu_attention *of = kernels[k]->attention;
        memcpy(again[k], scores[k], n * sizeof(float));
        of->softmax(keys, all, L, 0.5f, scores[k], saved[k]);
        of->again(keys, all, L, 0.5f, saved[k], again[k]);
        CHECK(memcmp(again[k], scores[k], n * sizeof(float)) == 0);
    }
    CHECK(near_floats(n, scores) && near_floats(2 * L, saved));
    for (int k = 0; k < BOTH; ++k) {
        kernels[k]->attention->error(keys, L, 0.5f, scores[SCALAR], error[k]);
        kernels[k]->attention->drop(keys, L, mask, keys, 2, scores[SCALAR], dropped[k]);
    }
    CHECK(near_floats(n, error) && near_floats(n, dropped));
    release();
}

static void check_lstm(int64_t units) {
    const size_t n = (size_t)units;
    const float *before = uniform(n, -1, 1), *sums = uniform(4 * n, -1, 1), *error = uniform(n, -1, 1);
    const float *later = uniform(n, -1, 1), *cell_before = uniform(n, -1, 1);
    float *gates[BOTH], *cell[BOTH], *hidden[BOTH], *errors[BOTH];
    twins(4 * n, -3, 3, gates);
    twins(n, 0, 1, cell);
    twins(n, 0, 1, hidden);
    twins(n, -1, 1, errors);
    for (int step = 0; step < 2; ++step) {
        for (int k = 0; k < BOTH; ++k)
            if (step == 0) kernels[k]->lstm->forward(units, units, gates[k], before, cell[k], hidden[k]);
            else kernels[k]->lstm->forward_sums(units, units, gates[k], sums, units, before, cell[k], hidden[k]);
        CHECK(near_floats(4 * n, gates) && near_floats(n, cell) && near_floats(n, hidden));
    }
    for (int k = 0; k < BOTH; ++k)
        kernels[k]->lstm->backward(units, units, gates[k], before, cell_before, error, later, errors[k]);
    CHECK(near_floats(4 * n, gates) && near_floats(n, errors));
    release();
}

static void test_rows(void) {
    for (int64_t vectors = 0; vectors < 7; ++vectors)
        for (int tail = vectors == 0; tail < L; tail += 5) check_norm(vectors, tail, tail % 2 == 0);
    for (size_t n = 1; n < 60; n += n < 20 ? 1 : 13) check_rows(n, n % 2 == 0);
    for (size_t width = 1; width <= 64; width += 9) check_lrn(width, width % 2 == 0 ? 0.75f : 0.5f);
    for (int64_t keys = 1; keys < 40; keys += 6)
        for (int64_t all = 1; all <= keys; all += 7) check_attention(keys, all);
    for (int64_t units = 1; units < 60; units += units < 20 ? 1 : 13) check_lstm(units);
}

int main(void) {
    kernels[SCALAR] = gg_cpu_kernels_for(GG_ISA_SCALAR);
    for (int isa = 0; isa < GG_ISA_COUNT; ++isa) {
        if (!gg_cpu_supports((gg_isa)isa)) continue;
        kernels[LEVEL] = gg_cpu_kernels_for((gg_isa)isa);
        test_winograd();
        test_rows();
        printf("%s checked\n", gg_isa_name((gg_isa)isa));
    }
    CHECK_INT(gg_memory_live_bytes(), 0);
    return CHECK_RESULT;
}
