/* Products and convolutions of float32 by parts in bfloat16: the scalar kernels against sums in double, the others
 * against their bits; what packs operands for them and orders their sums.
 *
 * twins: amx */
#include <stdlib.h>

#include "base/parallel.h"
#include "cpu/cpu_backend.h"
#include "cpu/gemm/packed_products.h"
#include "guarded.h"
#include "twin/amx.h"

/* Between -1 and 1, of very different sizes. */
static buffer buffer_random(size_t count) {
    buffer b = buffer_uniform(11, count, -1, 1);
    for (size_t i = 0; i < count; ++i) b.floats[i] *= ldexpf(1, -(int)(i % 7));
    return b;
}

/* ------------------------------------------------------------------------------------------------- kernels */

/* Those that are compared with the scalar ones; NULL: this CPU has none. */
static const gg_split_kernels *fast_products(void) {
    const gg_split_kernels *kernels = gg_cpu_kernels_for(GG_ISA_AMX)->split;
    return kernels != &gg_split_kernels_scalar ? kernels : NULL;
}

typedef struct side {
    int64_t count, terms, step;
    bool across;
    buffer values;
} side;

static side side_create(int64_t count, int64_t terms, bool across) {
    side s = {.count = count, .terms = terms, .across = across, .step = (across ? count : terms) + 3};
    s.values = buffer_random((size_t)(s.step * ((across ? terms : count) - 1) + (across ? count : terms)));
    return s;
}

static double value_at(const side *s, int64_t i, int64_t term) {
    return (double)s->values.floats[s->across ? term * s->step + i : i * s->step + term];
}

static buffer packed(const gg_split_kernels *kernels, const side *s, bool rows) {
    buffer out = buffer_create((size_t)gg_split_packed(s->count, s->terms) * sizeof(uint16_t));
    const gg_split_pack pack = {.count = s->count,
                                .terms = s->terms,
                                .from = s->values.data,
                                .step = s->step,
                                .across = s->across,
                                .out = out.data};
    (rows ? kernels->pack_rows : kernels->pack_cols)(&pack);
    return out;
}

typedef struct product_case {
    side a, b;
    bool add, relu, bias, row_bias;
    buffer start, biases;
    int64_t c_row;
} product_case;

static buffer ordered(const gg_split_kernels *kernels, const side *s) {
    buffer out = buffer_floats((size_t)gg_split_ordered(s->count, s->terms));
    const gg_split_pack pack = {.count = s->count,
                                .terms = s->terms,
                                .from = s->values.data,
                                .step = s->step,
                                .across = s->across,
                                .ordered = out.data};
    kernels->order_cols(&pack);
    return out;
}

/* whole: b's columns are split while they are multiplied, from the last to the first. */
static buffer multiplied(const gg_split_kernels *kernels, const product_case *it, bool whole) {
    buffer a = packed(kernels, &it->a, true), c = buffer_create(it->start.bytes);
    buffer b = whole ? ordered(kernels, &it->b) : packed(kernels, &it->b, false);
    memcpy(c.data, it->start.data, c.bytes);
    const int64_t group = gg_split_group(it->a.terms);
    const gg_split_product product = {.m = it->a.count,
                                      .n = it->b.count,
                                      .terms = it->a.terms,
                                      .a = a.data,
                                      .b = whole ? NULL : b.data,
                                      .ordered = whole ? b.data : NULL,
                                      .downwards = whole,
                                      .a_group = group,
                                      .b_group = group,
                                      .c = c.data,
                                      .c_row = it->c_row,
                                      .bias = it->bias ? it->biases.data : NULL,
                                      .row_bias = it->row_bias ? it->biases.data : NULL,
                                      .add = it->add,
                                      .relu = it->relu};
    kernels->multiply(&product);
    buffer_free(&a);
    buffer_free(&b);
    return c;
}

/* The error of every element against the size of its terms. */
static void check_sums(const product_case *it, const float *c) {
    double worst = 0;
    bool rest_stands = true;
    for (int64_t i = 0; i < it->a.count; ++i) {
        for (int64_t j = 0; j < it->b.count; ++j) {
            double sum = it->add                    ? (double)it->start.floats[i * it->c_row + j]
                         : it->bias || it->row_bias ? (double)it->biases.floats[it->bias ? j : i]
                                                    : 0;
            double size = fabs(sum);
            for (int64_t term = 0; term < it->a.terms; ++term) {
                const double product = value_at(&it->a, i, term) * value_at(&it->b, j, term);
                sum += product;
                size += fabs(product);
            }
            if (it->relu && sum < 0) sum = 0;
            const double error = fabs((double)c[i * it->c_row + j] - sum);
            if (size > 0 && error / size > worst) worst = error / size;
        }
        for (int64_t j = it->b.count; j < it->c_row && i + 1 < it->a.count; ++j)
            rest_stands =
                rest_stands && memcmp(&c[i * it->c_row + j], &it->start.floats[i * it->c_row + j], sizeof *c) == 0;
    }
    CHECK(worst < 0x1p-21);
    CHECK(rest_stands);
}

static void test_kernels(void) {
    static const int64_t sizes[] = {1, 5, 16, 17, 31, 32, 33, 50},
                         terms[] = {1, 2, 15, 16, 17, 32, 33, 70, 256, 300, 520};
    const gg_split_kernels *fast = fast_products();
    int number = 0;
    for (size_t m = 0; m < sizeof sizes / sizeof *sizes; ++m)
        for (size_t k = 0; k < sizeof terms / sizeof *terms; ++k)
            for (int flags = 0; flags < 4; ++flags, ++number) {
                const int start = (number / 4 + flags) % 4;
                const int64_t n = sizes[(m + k + (size_t)flags) % 8];
                product_case it = {.a = side_create(sizes[m], terms[k], flags & 1),
                                   .b = side_create(n, terms[k], flags & 2),
                                   .add = start == 0,
                                   .bias = start == 1,
                                   .row_bias = start == 2,
                                   .relu = number % 3 == 0,
                                   .c_row = n + number % 4};
                it.start = buffer_random((size_t)((sizes[m] - 1) * it.c_row + n));
                it.biases = buffer_random((size_t)(sizes[m] > n ? sizes[m] : n));
                buffer c = multiplied(&gg_split_kernels_scalar, &it, false);
                check_sums(&it, c.data);
                buffer same = multiplied(&gg_split_kernels_scalar, &it, true);
                CHECK(memcmp(c.data, same.data, c.bytes) == 0);
                buffer_free(&same);
                if (fast != NULL) {
                    buffer other = multiplied(fast, &it, false), whole = multiplied(fast, &it, true);
                    CHECK(memcmp(c.data, other.data, c.bytes) == 0);
                    CHECK(memcmp(c.data, whole.data, c.bytes) == 0);
                    buffer_free(&whole);
                    for (int rows = 0; rows < 2; ++rows) {
                        const side *s = rows ? &it.a : &it.b;
                        buffer tiles = packed(&gg_split_kernels_scalar, s, rows), others = packed(fast, s, rows);
                        CHECK(memcmp(tiles.data, others.data, tiles.bytes) == 0);
                        buffer_free(&tiles);
                        buffer_free(&others);
                    }
                    buffer_free(&other);
                }
                buffer_free(&c);
                buffer_free(&it.start);
                buffer_free(&it.biases);
                buffer_free(&it.a.values);
                buffer_free(&it.b.values);
            }
}

/* Positive numbers, whose sum is far larger than its terms: the small products are not rounded away. */
static void test_long_sums(void) {
    enum { SIDE = 20, TERMS = 16384 };
    const gg_split_kernels *const kernels[2] = {&gg_split_kernels_scalar, fast_products()};
    product_case it = {.a = side_create(SIDE, TERMS, false), .b = side_create(3, TERMS, true), .c_row = 3};
    it.start = buffer_random(3 * SIDE);
    it.biases = buffer_random(3);
    float *const values[2] = {it.a.values.data, it.b.values.data};
    for (size_t i = 0; i < it.a.values.count; ++i) values[0][i] = fabsf(values[0][i]);
    for (size_t i = 0; i < it.b.values.count; ++i) values[1][i] = fabsf(values[1][i]);
    for (int k = 0; k < 2 && kernels[k] != NULL; ++k) {
        buffer c = multiplied(kernels[k], &it, k == 0);
        double mean = 0;
        for (int64_t i = 0; i < SIDE; ++i)
            for (int64_t j = 0; j < 3; ++j) {
                double sum = 0;
                for (int64_t term = 0; term < TERMS; ++term) sum += value_at(&it.a, i, term) * value_at(&it.b, j, term);
                mean += fabs((double)c.floats[i * 3 + j] - sum) / sum / (3 * SIDE);
            }
        CHECK(mean < 0x1p-22);
        buffer_free(&c);
    }
    buffer_free(&it.start);
    buffer_free(&it.biases);
    buffer_free(&it.a.values);
    buffer_free(&it.b.values);
}

/* Each number is the sum of its parts, also at the ends of the range; NaN and infinity are never lost. */
static void test_parts(void) {
    static const float values[] = {
        0.0f, -0.0f, 1.0f, -3.14159274f, 3.40282347e38f, 0x1.fffffep-1f, 0x1.000002p-100f, INFINITY, NAN, 1e-30f};
    enum { COUNT = sizeof values / sizeof *values };
    const gg_split_kernels *const kernels[2] = {&gg_split_kernels_scalar, fast_products()};
    for (int k = 0; k < 2 && kernels[k] != NULL; ++k) {
        static const float one = 1;
        buffer rows = buffer_create((size_t)gg_split_packed(COUNT, 1) * sizeof(uint16_t));
        buffer column = buffer_create((size_t)gg_split_packed(1, 1) * sizeof(uint16_t));
        float c[COUNT];
        const gg_split_pack pack = {.count = COUNT, .terms = 1, .from = values, .step = 1, .out = rows.data};
        const gg_split_pack right = {.count = 1, .terms = 1, .from = &one, .step = 1, .out = column.data};
        const gg_split_product product = {.m = COUNT,
                                          .n = 1,
                                          .terms = 1,
                                          .a = rows.data,
                                          .b = column.data,
                                          .a_group = gg_split_group(1),
                                          .b_group = gg_split_group(1),
                                          .c = c,
                                          .c_row = 1};
        kernels[k]->pack_rows(&pack);
        kernels[k]->pack_cols(&right);
        kernels[k]->multiply(&product);
        for (int i = 0; i < COUNT; ++i) CHECK(isfinite(values[i]) ? c[i] == values[i] : isnan(c[i]));
        buffer_free(&rows);
        buffer_free(&column);
    }
}

/* ------------------------------------------------------------------------------------------------ products */

/* Long sums, several strips and chunks: the bits of any number of threads, near those of multiply-adds. Sizes in two
 * parts of one strip; by columns; in three parts; in one; in two strips; in two parts and two chunks of rows. The last
 * two take the scalar kernels seconds, so in one orientation of the factors. */
static void test_large_products(void) {
    static const int64_t sizes[][3] = {{150, 40, 300}, {40, 720, 288},  {300, 33, 520},
                                       {64, 64, 64},   {28, 2760, 260}, {330, 600, 520}};
    for (size_t i = 0; i < sizeof sizes / sizeof *sizes; ++i)
        for (int flags = 0; flags < (i < 4 ? 4 : 1); ++flags) {
            const int64_t m = sizes[i][0], n = sizes[i][1], k = sizes[i][2];
            const bool transpose_a = flags & 1, transpose_b = flags & 2;
            const bool row_bias = (i + (size_t)flags) % 2 == 0;
            buffer a = buffer_random((size_t)(m * k)), b = buffer_random((size_t)(n * k)),
                   bias = buffer_random((size_t)(row_bias ? m : n));
            /* One thread; two with their own columns; three; more than split a strip each; multiply-adds. */
            enum { COLUMNS = 1, REFERENCE = 4, RUNS };
            static const int threads_of[RUNS] = {1, 2, 3, 6, 1};
            buffer c[RUNS];
            for (int run = 0; run < RUNS; ++run) {
                const gg_isa isa = run == REFERENCE ? GG_ISA_SCALAR : GG_ISA_AMX;
                const int threads = threads_of[run];
                c[run] = buffer_floats((size_t)(m * n));
                const gg_sgemm p = {.m = m,
                                    .n = n,
                                    .k = k,
                                    .a = a.data,
                                    .b = b.data,
                                    .c = c[run].data,
                                    .lda = transpose_a ? m : k,
                                    .ldb = transpose_b ? k : n,
                                    .ldc = n,
                                    .bias = row_bias ? NULL : bias.data,
                                    .transpose_a = transpose_a,
                                    .transpose_b = transpose_b,
                                    .relu = flags == 1 && !row_bias,
                                    .by_columns = run == COLUMNS};
                CHECK(gg_split_products.pays(isa, &p) == (run != REFERENCE));
                buffer scratch = buffer_create(gg_sgemm_scratch(isa, &p, threads));
                if (run == REFERENCE || !row_bias) gg_sgemm_run(isa, &p, threads, scratch.data);
                else gg_split_products.run(isa, &p, bias.data, threads, scratch.data);
                buffer_free(&scratch);
            }
            for (int run = 1; run < REFERENCE; ++run) CHECK(memcmp(c[0].data, c[run].data, c[0].bytes) == 0);
            double worst = 0;
            for (int64_t at = 0; at < m * n; ++at) {
                const double start = row_bias ? (double)bias.floats[at / n] : 0;
                const double difference = fabs((double)c[0].floats[at] - (double)c[REFERENCE].floats[at] - start);
                if (difference > worst) worst = difference;
            }
            CHECK(worst > 0 && worst < 1e-4);
            for (int run = 0; run < RUNS; ++run) buffer_free(&c[run]);
            buffer_free(&a);
            buffer_free(&b);
            buffer_free(&bias);
        }
}

/* -------------------------------------------------------------------------------------------- convolutions */

enum { POINT = GG_SPLIT_POINTS, TILE_POINTS = 16, MAX_STEPS = 18 };
static const float special[] = {0.0f, -0.0f, 3.40282347e38f, -0x1.fffffep-100f, INFINITY, -INFINITY, NAN, 1e-30f};

typedef const gg_split_conv_kernels *conv_kernels;

static conv_kernels fast_conv(void) {
    const conv_kernels kernels = gg_cpu_kernels_for(GG_ISA_AMX)->split_conv;
    return kernels != &gg_split_conv_kernels_scalar ? kernels : NULL;
}

static void check_same(buffer *a, buffer *b) {
    CHECK(memcmp(a->data, b->data, a->bytes) == 0);
    buffer_free(a);
    buffer_free(b);
}

static float float_at(const buffer *b, int64_t i) { return b->floats[i]; }

static buffer split_points(conv_kernels kernels, const buffer *from, int64_t points, int64_t step) {
    buffer out = buffer_create((size_t)(points * GG_SPLIT_POINT) * sizeof(uint16_t));
    kernels->split(points, from->data, step, out.data);
    return out;
}

static buffer split_weights(conv_kernels kernels, const buffer *from, int64_t tiles) {
    buffer out = buffer_create((size_t)(tiles * GG_SPLIT_FACTOR) * sizeof(uint16_t));
    for (int64_t t = 0; t < tiles; ++t)
        kernels->weights(from->floats + t * 256, (uint16_t *)out.data + t * GG_SPLIT_FACTOR);
    return out;
}

static buffer turn_points(conv_kernels kernels, const buffer *from, int64_t tiles) {
    buffer out = buffer_create((size_t)(tiles * GG_SPLIT_FACTOR) * sizeof(uint16_t));
    kernels->turn(tiles, from->data, out.data);
    return out;
}

/* What operands look like; their values are those of the sums below. */
static void test_conv_operands(void) {
    static const int64_t counts[] = {1, 2, 15, 17, 40};
    conv_kernels fast = fast_conv();
    for (size_t k = 0; k < sizeof counts / sizeof *counts && fast != NULL; ++k)
        for (int64_t step = POINT; step < 40; step += 11) {
            const int64_t points = counts[k];
            buffer from = buffer_random((size_t)((points - 1) * step + POINT));
            for (int64_t i = 0; i < 8; ++i) from.floats[i * ((points - 1) * step + POINT - 1) / 7] = special[i];
            buffer a = split_points(&gg_split_conv_kernels_scalar, &from, points, step);
            buffer b = split_points(fast, &from, points, step);
            check_same(&a, &b);
            buffer_free(&from);
            from = buffer_random((size_t)points * 256);
            for (int64_t i = 0; i < 8; ++i) from.floats[i * (points * 256 - 1) / 7] = special[i];
            a = split_weights(&gg_split_conv_kernels_scalar, &from, points);
            b = split_weights(fast, &from, points);
            check_same(&a, &b);
            a = turn_points(&gg_split_conv_kernels_scalar, &from, points);
            b = turn_points(fast, &from, points);
            check_same(&a, &b);
            buffer_free(&from);
        }
}

/* A sum of products, and that of their absolute values. */
typedef struct wide_sum {
    double sum, size;
} wide_sum;

static double error_of(float found, wide_sum wanted) {
    return wanted.size > 0 ? fabs((double)found - wanted.sum) / wanted.size : (double)fabsf(found);
}

static void add_wide(wide_sum *to, float x, float y) {
    to->sum += (double)x * (double)y;
    to->size += fabs((double)x * (double)y);
}

/* Steps that find points anywhere, in any order, and weights from the last to the first. */
typedef struct forward_case {
    int tiles;
    int64_t steps, points;
    int64_t point[MAX_STEPS];
    buffer from, weights;
} forward_case;

static buffer forward_sums(conv_kernels kernels, const forward_case *it) {
    buffer sums = buffer_floats((size_t)it->tiles * 256);
    buffer points = split_points(kernels, &it->from, it->points, POINT);
    buffer weights = split_weights(kernels, &it->weights, it->steps + 1);
    gg_split_step step[MAX_STEPS];
    for (int64_t s = 0; s < it->steps; ++s)
        step[s] = (gg_split_step){it->point[s] * GG_SPLIT_POINT, (it->steps - s) * GG_SPLIT_FACTOR};
    const gg_split_forward run = {.step = step,
                                  .steps = it->steps,
                                  .points = points.data,
                                  .weights = weights.data,
                                  .tiles = it->tiles,
                                  .sums = sums.data,
                                  .ahead = it->from.data,
                                  .target = sums.data,
                                  .ahead_lines = it->steps % 2,
                                  .target_lines = it->tiles % 2};
    kernels->forward(&run);
    buffer_free(&points);
    buffer_free(&weights);
    return sums;
}

static void check_forward(const forward_case *it, const buffer *sums) {
    double worst = 0;
    for (int64_t point = 0; point < it->tiles * TILE_POINTS; ++point)
        for (int64_t row = 0; row < 16; ++row) {
            wide_sum wanted = {0, 0};
            for (int64_t s = 0; s < it->steps; ++s)
                for (int64_t channel = 0; channel < POINT; ++channel)
                    add_wide(&wanted, float_at(&it->from, (it->point[s] + point) * POINT + channel),
                             float_at(&it->weights, ((it->steps - s) * POINT + channel) * 16 + row));
            worst = fmax(worst, error_of(float_at(sums, point * 16 + row), wanted));
        }
    CHECK(worst < 0x1p-21);
}

static void test_conv_forward(void) {
    static const int64_t steps[] = {0, 1, 2, 9, MAX_STEPS};
    conv_kernels fast = fast_conv();
    for (int tiles = 1; tiles <= GG_SPLIT_RUN; ++tiles)
        for (size_t k = 0; k < sizeof steps / sizeof *steps; ++k) {
            forward_case it = {.tiles = tiles, .steps = steps[k], .points = tiles * TILE_POINTS + 23};
            for (int64_t s = 0; s < it.steps; ++s) it.point[s] = (s * 7 + tiles) % 24;
            it.from = buffer_random((size_t)(it.points * POINT));
            it.weights = buffer_random((size_t)(it.steps + 1) * 256);
            buffer sums = forward_sums(&gg_split_conv_kernels_scalar, &it);
            check_forward(&it, &sums);
            buffer other = forward_sums(fast != NULL ? fast : &gg_split_conv_kernels_scalar, &it);
            check_same(&sums, &other);
            buffer_free(&it.from);
            buffer_free(&it.weights);
        }
}

typedef struct gradient_case {
    int places;
    int64_t tiles, points;
    int64_t point[GG_SPLIT_RUN];
    bool add;
    buffer from, turned, start;
} gradient_case;

static buffer gradient_sums(conv_kernels kernels, const gradient_case *it) {
    buffer sums = buffer_create(it->start.bytes);
    buffer points = split_points(kernels, &it->from, it->points, POINT);
    buffer turned = turn_points(kernels, &it->turned, it->tiles);
    gg_split_step step[GG_SPLIT_RUN];
    for (int p = 0; p < it->places; ++p) step[p] = (gg_split_step){.points = it->point[p] * GG_SPLIT_POINT};
    memcpy(sums.data, it->start.data, sums.bytes);
    const gg_split_gradient run = {.turned = turned.data,
                                   .points = points.data,
                                   .tiles = it->tiles,
                                   .step = step,
                                   .places = it->places,
                                   .sums = sums.data,
                                   .add = it->add};
    kernels->gradient(&run);
    buffer_free(&points);
    buffer_free(&turned);
    return sums;
}

static void check_gradient(const gradient_case *it, const buffer *sums) {
    double worst = 0;
    for (int place = 0; place < it->places; ++place)
        for (int64_t row = 0; row < 16; ++row)
            for (int64_t channel = 0; channel < POINT; ++channel) {
                const int64_t at = (place * 16 + row) * POINT + channel;
                wide_sum wanted = {0, 0};
                if (it->add) add_wide(&wanted, float_at(&it->start, at), 1);
                for (int64_t point = 0; point < it->tiles * TILE_POINTS; ++point)
                    add_wide(&wanted, float_at(&it->turned, point * 16 + row),
                             float_at(&it->from, (it->point[place] + point) * POINT + channel));
                worst = fmax(worst, error_of(float_at(sums, at), wanted));
            }
    CHECK(worst < 0x1p-21);
}

static void test_conv_gradient(void) {
    static const int64_t tiles[] = {1, 2, 5, 11};
    conv_kernels fast = fast_conv();
    for (int places = 1; places <= GG_SPLIT_RUN; ++places)
        for (size_t k = 0; k < sizeof tiles / sizeof *tiles; ++k)
            for (int add = 0; add < 2; ++add) {
                gradient_case it = {.places = places, .tiles = tiles[k], .add = add};
                it.points = it.tiles * TILE_POINTS + 19;
                for (int p = 0; p < places; ++p) it.point[p] = (p * 13 + places) % 20;
                it.from = buffer_random((size_t)(it.points * POINT));
                it.turned = buffer_random((size_t)it.tiles * 256);
                it.start = buffer_random((size_t)places * 256);
                buffer sums = gradient_sums(&gg_split_conv_kernels_scalar, &it);
                check_gradient(&it, &sums);
                buffer other = gradient_sums(fast != NULL ? fast : &gg_split_conv_kernels_scalar, &it);
                check_same(&sums, &other);
                buffer_free(&it.from);
                buffer_free(&it.turned);
                buffer_free(&it.start);
            }
}

/* Whole memory: what lies between the points stands. */
static void test_conv_finish(void) {
    static const int64_t counts[] = {1, 3, 16, 21};
    conv_kernels both[] = {&gg_split_conv_kernels_scalar, fast_conv()};
    buffer bias = buffer_random(POINT);
    for (size_t c = 0; c < sizeof counts / sizeof *counts; ++c)
        for (int flags = 0; flags < 4; ++flags)
            for (int64_t step = POINT; step < 40; step += 11) {
                const int64_t count = counts[c], floats = (count - 1) * step + POINT;
                const bool relu = flags & 1, biased = flags & 2;
                buffer sums = buffer_random((size_t)count * POINT), start = buffer_random((size_t)floats);
                for (int i = 0; i < 8; ++i) sums.floats[i * (count * POINT - 1) / 7] = special[i];
                for (int k = 0; k < 2 && both[k] != NULL; ++k) {
                    buffer to = buffer_create(start.bytes);
                    memcpy(to.data, start.data, to.bytes);
                    both[k]->finish(count, sums.data, biased ? bias.data : NULL, relu, to.data, step);
                    bool right = true;
                    for (int64_t i = 0; i < floats; ++i) {
                        const int64_t point = i / step, channel = i % step;
                        float x = float_at(&start, i);
                        if (channel < POINT) {
                            x = float_at(&sums, point * POINT + channel) + (biased ? float_at(&bias, channel) : 0);
                            if (relu && x < 0) x = 0;
                        }
                        right = right && (isnan(x) ? isnan(float_at(&to, i)) : float_at(&to, i) == x);
                    }
                    CHECK(right);
                    buffer_free(&to);
                }
                buffer_free(&sums);
                buffer_free(&start);
            }
    buffer_free(&bias);
}

/* Scratch of the weights' gradient is bounded: a pass is refused, and no other, if not even one of its parts fits. */
static void test_conv_scratch(void) {
    static const struct {
        int64_t in, out, kernel;
        bool possible;
    } cases[] = {{64, 64, 3, true},   {256, 256, 3, true},    {512, 256, 3, true},   {512, 512, 3, true},
                 {640, 720, 3, true}, {1024, 1024, 3, false}, {2048, 2048, 1, true}, {2049, 2048, 1, false}};
    const gg_device_options options = {.threads = 2, .isa = GG_ISA_AMX};
    gg_device *device = NULL;
    CHECK_OK(gg_backend_native.open(&options, &device));
    for (size_t i = 0; i < sizeof cases / sizeof *cases; ++i)
        for (int pass = 0; pass < GG_PASS_COUNT; ++pass) {
            const int64_t k = cases[i].kernel;
            const gg_op_desc desc = {.kind = GG_OP_CONV2D,
                                     .batch = 32,
                                     .inputs = 1,
                                     .input = {{3, {cases[i].in, 7, 7}}},
                                     .output = {3, {cases[i].out, 7, 7}},
                                     .offered = {{GG_FLOAT32, GG_LAYOUT_CHANNELS16}},
                                     .conv = {{{k, k}, {1, 1}, {k / 2, k / 2}, {1, 1}, false, false}, 1},
                                     .algorithm = GG_ALGORITHM_SPLIT,
                                     .passes = 1u << pass,
                                     .training = true,
                                     .input_grad = true};
            gg_op *op = NULL;
            if (pass == GG_PASS_WEIGHTS && !cases[i].possible) {
                CHECK_FAILS(gg_backend_native.create[GG_OP_CONV2D](device, &desc, &op), GG_ERROR_UNSUPPORTED,
                            "more than 16777216");
                continue;
            }
            CHECK_OK(gg_backend_native.create[GG_OP_CONV2D](device, &desc, &op));
            /* Sums, and points and turned gradients of two threads. */
            CHECK(op != NULL && op->scratch_bytes <= (size_t)24 << 20);
            gg_op_destroy(op);
        }
    gg_backend_native.close(device);
}

int main(void) {
    const gg_float_mode former = gg_parallel_enter(); /* denormal numbers count as 0 */
    test_kernels();
    test_long_sums();
    test_parts();
    test_large_products();
    test_conv_operands();
    test_conv_forward();
    test_conv_gradient();
    test_conv_finish();
    test_conv_scratch();
    gg_parallel_leave(former);
    CHECK_INT(gg_memory_live_bytes(), 0);
    return CHECK_RESULT;
}
