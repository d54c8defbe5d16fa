/* Products in which pairs of terms share a multiplication. Every level of this CPU and the scalar kernels agree with
 * sums in double within the bound of cpu/gemm/paired_kernels.h. Other tests: exact cases, and causes of other bits. */
#include <float.h>
#include <stdlib.h>

#include "cpu/gemm/sgemm_paired.h"
#include "guarded.h"

static buffer buffer_random(size_t count) { return buffer_uniform(13, count, -1, 1); }

typedef struct level {
    gg_isa isa;
    const gg_paired_kernels *kernels;
} level;

/* The scalar kernels, which document the others, and those of levels that this CPU has; behind them, NULL. */
static level levels[GG_ISA_AMX + 1] = {{GG_ISA_SCALAR, &gg_paired_kernels_scalar}};

static void find_levels(void) {
    level *next = &levels[1];
    for (gg_isa isa = GG_ISA_SCALAR; isa < GG_ISA_AMX; ++isa)
        if (gg_cpu_supports(isa) && gg_cpu_kernels_for(isa)->paired != NULL)
            *next++ = (level){isa, gg_cpu_kernels_for(isa)->paired};
}

static const level *level_at(size_t i) { return levels[i].kernels != NULL ? &levels[i] : NULL; }

/* ---------------------------------------------------------------------------------------------- one side */

/* What the numbers of a side are like. */
typedef enum kind { PLAIN, UNEVEN_VECTORS, UNEVEN_TERMS, POSITIVE, SPARSE, OPPOSED, KINDS } kind;

typedef struct side {
    int64_t count, terms, step;
    bool across;
    buffer values;
} side;

static float *value_at(const side *s, int64_t i, int64_t term) {
    return &s->values.floats[s->across ? term * s->step + i : i * s->step + term];
}

/* What OPPOSED multiplies the terms of the next sides by, as an exponent of two. */
static int opposed;

static side side_create(int64_t count, int64_t terms, int64_t step, bool across, kind what) {
    side s = {.count = count, .terms = terms, .step = step, .across = across};
    const int64_t rows = across ? terms : count, cols = across ? count : terms;
    s.values = buffer_random((size_t)(step * (rows - 1) + cols));
    for (int64_t i = 0; i < count; ++i)
        for (int64_t l = 0; l < terms; ++l) {
            float *x = value_at(&s, i, l);
            if (what == UNEVEN_VECTORS) *x = ldexpf(*x, (int)(i * 7 % 41) - 20);
            if (what == UNEVEN_TERMS) *x = ldexpf(*x, -(int)(l * 5 % 23));
            if (what == POSITIVE) *x = fabsf(*x) + 1;
            if (what == SPARSE && (i + l) % 9 != 0) *x = 0;
            /* Pairs of large terms of one side, in some vectors, that meet small ones of the other. */
            if (what == OPPOSED && l % 24 < 2 && i % 3 != 1) *x = ldexpf(*x, opposed);
        }
    return s;
}

static side side_random(int64_t count, int64_t terms, bool across, kind what) {
    return side_create(count, terms, (across ? count : terms) + 3, across, what);
}

static buffer packed(const gg_paired_kernels *kernels, const side *s) {
    const int64_t groups = (s->count + GG_PAIRED_LANES - 1) / GG_PAIRED_LANES;
    buffer out = buffer_floats((size_t)(groups * gg_paired_group(s->terms)));
    kernels->pack(&(gg_paired_pack){.count = s->count,
                                    .terms = s->terms,
                                    .from = s->values.data,
                                    .step = s->step,
                                    .across = s->across,
                                    .out = out.data,
                                    .group = gg_paired_group(s->terms)});
    return out;
}

/* ---------------------------------------------------------------------------------------------- products */

typedef struct start {
    const float *bias, *row_bias;
    bool add, relu;
} start;

static buffer multiplied(const gg_paired_kernels *kernels, const side *a, const side *b, const buffer *before,
                         int64_t c_row, start how) {
    buffer rows = packed(kernels, a), cols = packed(kernels, b), c = buffer_create(before->bytes);
    memcpy(c.data, before->data, c.bytes);
    kernels->multiply(&(gg_paired_product){.m = a->count,
                                           .n = b->count,
                                           .terms = a->terms,
                                           .a = rows.data,
                                           .b = cols.data,
                                           .a_group = gg_paired_group(a->terms),
                                           .b_group = gg_paired_group(b->terms),
                                           .c = c.data,
                                           .c_row = c_row,
                                           .bias = how.bias,
                                           .row_bias = how.row_bias,
                                           .add = how.add,
                                           .relu = how.relu,
                                           .next = {before->floats, 2, 16, a->count % 5}});
    buffer_free(&rows);
    buffer_free(&cols);
    return c;
}

/* The product of row i and column j in double, and the bound of its error: of each part of the sum. */
typedef struct element {
    double value, bound;
} element;

static element wanted_at(const side *a, const side *b, int64_t i, int64_t j) {
    element e = {0, 0};
    for (int64_t part = 0; part < gg_paired_parts(a->terms); ++part) {
        const int64_t first = gg_paired_part(a->terms, part), end = gg_paired_part(a->terms, part + 1);
        double x = 0, y = 0, xx = 0, yy = 0, xy = 0;
        for (int64_t l = first; l < end; ++l) {
            const double s = (double)*value_at(a, i, l), t = (double)*value_at(b, j, l);
            e.value += s * t;
            xy += fabs(s * t);
            x += fabs(s);
            y += fabs(t);
            if ((l - first) % GG_PAIRED_STEP != 1) continue;
            xx += fabs((double)*value_at(a, i, l - 1) * s);
            yy += fabs((double)*value_at(b, j, l - 1) * t);
        }
        const double terms = (double)(end - first);
        if (x > 0 && y > 0) {
            const double pairs = 2 * (xx * y / x + yy * x / y), most = 2 * GG_PAIRED_LIMIT * x * y / terms;
            /* By multiply-adds for certain, whichever powers of two the vectors have. */
            const double limit = 1.01 * GG_PAIRED_LIMIT / terms;
            const bool plain = xx > limit * x * x || yy > limit * y * y;
            if (!plain) xy += pairs < most ? pairs : most;
        }
        e.bound += ldexp(terms + 8, -24) * xy;
    }
    e.bound += ldexp(fabs(e.value), -22);
    return e;
}

static bool agrees(const level *of, const side *a, const side *b, const buffer *before, const buffer *c, int64_t c_row,
                   start how) {
    for (int64_t i = 0; i < a->count; ++i)
        for (int64_t j = 0; j < b->count; ++j) {
            const size_t at = (size_t)(i * c_row + j);
            element e = wanted_at(a, b, i, j);
            double first = how.add ? (double)before->floats[at] : how.bias != NULL ? (double)how.bias[j] : 0;
            if (how.row_bias != NULL) first += (double)how.row_bias[i];
            e.value += first;
            if (how.relu && e.value < 0) e.value = 0;
            if (!(fabs((double)c->floats[at] - e.value) <= e.bound + ldexp(fabs(first) + fabs(e.value), -23))) {
                fprintf(stderr, "%s, %d x %d x %d [%d, %d]: %.9g, wanted %.9g within %.3g\n", gg_isa_name(of->isa),
                        (int)a->count, (int)b->count, (int)a->terms, (int)i, (int)j, (double)c->floats[at], e.value,
                        e.bound);
                return false;
            }
        }
    return true;
}

/* Sizes with groups that are not full and terms that are not whole steps, in all forms. */
static void test_kernels(void) {
    static const int64_t sizes[][3] = {{1, 1, 1},    {1, 16, 2},   {16, 1, 3},   {15, 17, 4},  {40, 33, 47},
                                       {17, 40, 48}, {3, 50, 127}, {32, 5, 128}, {19, 34, 150}};
    for (size_t k = 0; level_at(k) != NULL; ++k)
        for (size_t i = 0; i < sizeof sizes / sizeof *sizes; ++i)
            for (int form = 0; form < 8 * KINDS; ++form) {
                const int64_t m = sizes[i][0], n = sizes[i][1], terms = sizes[i][2], c_row = n + 3;
                const kind what = (kind)(form / 8);
                opposed = form & 4 ? 10 : -7;
                side a = side_random(m, terms, form & 1, what);
                opposed = -opposed;
                side b = side_random(n, terms, form & 2, what);
                buffer before = buffer_random((size_t)(c_row * (m - 1) + n)), bias = buffer_random((size_t)(m + n));
                const start how = {.add = form % 3 == 0,
                                   .bias = form % 3 == 1 ? bias.data : NULL,
                                   .row_bias = form % 3 == 2 ? bias.floats + n : NULL,
                                   .relu = form & 4};
                buffer c = multiplied(level_at(k)->kernels, &a, &b, &before, c_row, how);
                CHECK(agrees(level_at(k), &a, &b, &before, &c, c_row, how));
                for (int64_t r = 0; r + 1 < m; ++r)
                    CHECK(memcmp(c.floats + r * c_row + n, before.floats + r * c_row + n, 3 * sizeof(float)) == 0);
                buffer_free(&c);
                buffer_free(&before);
                buffer_free(&bias);
                buffer_free(&a.values);
                buffer_free(&b.values);
            }
}

/* Vectors whose mean absolute value is within roundings of 1, where another order of its sum would give another power
 * of two: the same bits, however the numbers lie. */
static void test_forms(void) {
    enum { COUNT = 500, TERMS = 128 };
    side along = side_random(COUNT, TERMS, false, PLAIN), across = side_random(COUNT, TERMS, true, PLAIN);
    for (int64_t i = 0; i < COUNT; ++i)
        for (int64_t l = 0; l < TERMS; ++l) {
            const float off = *value_at(&along, i, l / 2 * 2);
            *value_at(&across, i, l) = (l % 2 == 0 ? 1 + off : off - 1) - (l == 0 ? 0x1p-18f : 0);
        }
    for (int64_t i = 0; i < COUNT; ++i)
        for (int64_t l = 0; l < TERMS; ++l) *value_at(&along, i, l) = *value_at(&across, i, l);
    for (size_t k = 0; level_at(k) != NULL; ++k) {
        buffer one = packed(level_at(k)->kernels, &along), other = packed(level_at(k)->kernels, &across);
        CHECK(memcmp(one.data, other.data, one.bytes) == 0);
        const float *const inverse = one.floats + gg_paired_group(TERMS) - 2 * GG_PAIRED_LANES;
        int halves = 0, ones = 0;
        for (int64_t g = 0; g < COUNT / GG_PAIRED_LANES; ++g)
            for (int i = 0; i < GG_PAIRED_LANES; ++i) {
                halves += inverse[g * gg_paired_group(TERMS) + i] == 0.5f;
                ones += inverse[g * gg_paired_group(TERMS) + i] == 1;
            }
        if (k > 0) CHECK(halves > 10 && ones > 10); /* which add in two orders */
        buffer_free(&one);
        buffer_free(&other);
    }
    buffer_free(&along.values);
    buffer_free(&across.values);
}

/* Distances at which many lines share a set of the cache are packed in another way: the same bits. */
static void test_distances(void) {
    enum { COUNT = 20, TERMS = 40 };
    for (size_t k = 0; level_at(k) != NULL; ++k) {
        side near = side_create(COUNT, TERMS, COUNT, true, PLAIN), far = side_create(COUNT, TERMS, 1024, true, PLAIN);
        for (int64_t i = 0; i < COUNT; ++i)
            for (int64_t l = 0; l < TERMS; ++l) *value_at(&far, i, l) = *value_at(&near, i, l);
        buffer one = packed(level_at(k)->kernels, &near), other = packed(level_at(k)->kernels, &far);
        CHECK(memcmp(one.data, other.data, one.bytes) == 0);
        /* And results whose rows share one. */
        buffer none = buffer_random(1024 * (COUNT - 1) + COUNT);
        buffer wide = multiplied(level_at(k)->kernels, &near, &far, &none, 1024, (start){.add = false});
        buffer narrow = multiplied(level_at(k)->kernels, &near, &far, &none, COUNT, (start){.add = false});
        for (int64_t i = 0; i < COUNT; ++i)
            CHECK(memcmp(wide.floats + i * 1024, narrow.floats + i * COUNT, COUNT * sizeof(float)) == 0);
        buffer *all[] = {&one, &other, &none, &wide, &narrow, &near.values, &far.values};
        for (size_t i = 0; i < sizeof all / sizeof *all; ++i) buffer_free(all[i]);
    }
}

/* Vectors that lie one behind the other, which begin anywhere in a line of the cache: the same bits. */
static void test_beginnings(void) {
    enum { COUNT = 20, FAR = 320 };
    static const int64_t terms_of[] = {1, 5, 16, 31, 47, 150};
    for (size_t k = 0; level_at(k) != NULL; ++k)
        for (size_t i = 0; i < sizeof terms_of / sizeof *terms_of; ++i) {
            const int64_t terms = terms_of[i];
            side near = side_random(COUNT, terms, false, PLAIN);
            buffer one = packed(level_at(k)->kernels, &near), room = buffer_random(COUNT * FAR + GG_PAIRED_LANES);
            for (int64_t begin = 0; begin <= GG_PAIRED_LANES; ++begin) {
                side far = {.count = COUNT, .terms = terms, .step = FAR, .values = {.data = room.floats + begin}};
                for (int64_t v = 0; v < COUNT; ++v)
                    memcpy(value_at(&far, v, 0), value_at(&near, v, 0), (size_t)terms * sizeof(float));
                buffer other = packed(level_at(k)->kernels, &far);
                CHECK(memcmp(one.data, other.data, one.bytes) == 0);
                buffer_free(&other);
            }
            buffer_free(&one);
            buffer_free(&room);
            buffer_free(&near.values);
        }
}

/* Whether each element has the bits of its row and its column by themselves. */
static bool stands_alone(const gg_paired_kernels *kernels, const side *a, const side *b, const buffer *c) {
    bool same = true;
    for (int64_t i = 0; i < a->count; ++i)
        for (int64_t j = 0; j < b->count; ++j) {
            side row = {.count = 1, .terms = a->terms, .step = a->step, .across = a->across};
            side column = {.count = 1, .terms = b->terms, .step = b->step, .across = b->across};
            row.values = (buffer){.data = value_at(a, i, 0)};
            column.values = (buffer){.data = value_at(b, j, 0)};
            buffer one = buffer_floats(1), result = multiplied(kernels, &row, &column, &one, 1, (start){0});
            same = same && memcmp(result.data, &c->floats[i * b->count + j], sizeof(float)) == 0;
            buffer_free(&one);
            buffer_free(&result);
        }
    return same;
}

/* Large numbers meet in some rows and columns, which are then multiply-adds. An element's bits depend on its row and
 * column alone, whether few, many or all elements of a block are multiply-adds. All are near the sums in double. */
static void test_marks(void) {
    enum { M = 20, N = 35, TERMS = 49, LARGE = 10 };
    static const int64_t rows[] = {0, 1, 2, 3, 6, 16}, cols[] = {0, 1, 2, 5, 16};
    for (size_t k = 0; level_at(k) != NULL; ++k)
        for (size_t r = 0; r < sizeof rows / sizeof *rows; ++r)
            for (size_t s = 0; s < sizeof cols / sizeof *cols; ++s) {
                side a = side_random(M, TERMS, false, PLAIN), b = side_random(N, TERMS, true, PLAIN);
                for (int64_t l = 0; l < 2; ++l) {
                    for (int64_t i = 0; i < rows[r]; ++i) *value_at(&a, 15 - i, l) = ldexpf(1 + (float)i, LARGE);
                    for (int64_t j = 0; j < cols[s]; ++j) *value_at(&b, 16 + j, l) = ldexpf(2 - (float)j, LARGE);
                }
                buffer none = buffer_random(M * N);
                buffer c = multiplied(level_at(k)->kernels, &a, &b, &none, N, (start){.add = false});
                CHECK(agrees(level_at(k), &a, &b, &none, &c, N, (start){.add = false}));
                CHECK(stands_alone(level_at(k)->kernels, &a, &b, &c));
                buffer *all[] = {&none, &c, &a.values, &b.values};
                for (size_t i = 0; i < sizeof all / sizeof *all; ++i) buffer_free(all[i]);
            }
}

/* An element's bits are those of its row and its column by themselves; and vectors that are multiplied by powers of two
 * multiply the results, bit by bit. */
static void test_bits(void) {
    enum { M = 37, N = 21, TERMS = 77 };
    for (size_t k = 0; level_at(k) != NULL; ++k) {
        const gg_paired_kernels *kernels = level_at(k)->kernels;
        side a = side_random(M, TERMS, false, PLAIN), b = side_random(N, TERMS, true, PLAIN);
        buffer none = buffer_random(M * N);
        buffer c = multiplied(kernels, &a, &b, &none, N, (start){.add = false});
        bool same = stands_alone(kernels, &a, &b, &c);
        CHECK(same);
        for (int64_t i = 0; i < M; ++i)
            for (int64_t l = 0; l < TERMS; ++l) *value_at(&a, i, l) = ldexpf(*value_at(&a, i, l), (int)(3 * i) - 50);
        for (int64_t j = 0; j < N; ++j)
            for (int64_t l = 0; l < TERMS; ++l) *value_at(&b, j, l) = ldexpf(*value_at(&b, j, l), 40 - (int)(4 * j));
        buffer scaled = multiplied(kernels, &a, &b, &none, N, (start){.add = false});
        for (int64_t i = 0; i < M && same; ++i)
            for (int64_t j = 0; j < N; ++j)
                same = same && scaled.floats[i * N + j] == ldexpf(c.floats[i * N + j], (int)(3 * i - 4 * j) - 10);
        CHECK(same);
        buffer *all[] = {&none, &c, &scaled, &a.values, &b.values};
        for (size_t i = 0; i < sizeof all / sizeof *all; ++i) buffer_free(all[i]);
    }
}

/* Zeros give exact zeros, however large the other factor is; what is no number is never lost. */
static void test_special(void) {
    enum { SIDE = 20, TERMS = 50, ZERO = 3, NANS = 5, INFINITE = 7, LARGE = 9, SMALL = 11 };
    for (size_t k = 0; level_at(k) != NULL; ++k)
        for (int64_t term = 0; term < GG_PAIRED_STEP; ++term)
            for (int turned = 0; turned < 2; ++turned) {
                side a = side_random(SIDE, TERMS, false, POSITIVE), b = side_random(SIDE, TERMS, true, PLAIN);
                for (int64_t l = 0; l < TERMS; ++l) {
                    *value_at(&a, ZERO, l) = l % 2 == 0 ? 0.0f : -0.0f;
                    *value_at(&a, LARGE, l) *= 1e37f;
                    *value_at(&a, SMALL, l) *= 1e-30f;
                }
                *value_at(&a, NANS, 6 + term) = NAN;
                *value_at(&a, INFINITE, 6 + term) = INFINITY;
                buffer none = buffer_random(SIDE * SIDE);
                buffer c = multiplied(level_at(k)->kernels, turned ? &b : &a, turned ? &a : &b, &none, SIDE,
                                      (start){.add = false});
                bool good = true;
                for (int64_t j = 0; j < SIDE; ++j) {
#define AT(i) c.floats[turned ? j * SIDE + (i) : (i)*SIDE + j]
                    good = good && AT(ZERO) == 0 && isnan(AT(NANS)) && !isfinite(AT(INFINITE));
                    const int vectors[] = {0, LARGE, SMALL};
                    for (size_t i = 0; i < 3; ++i) {
                        const element e = wanted_at(&a, &b, vectors[i], j);
                        good = good && (isinf(AT(vectors[i])) ? fabs(e.value) > (double)FLT_MAX
                                                              : fabs((double)AT(vectors[i]) - e.value) <= e.bound);
                    }
#undef AT
                }
                CHECK(good);
                buffer_free(&none);
                buffer_free(&c);
                buffer_free(&a.values);
                buffer_free(&b.values);
            }
}

/* ---------------------------------------------------------------------------------------------- gg_sgemm */

/* One part and several, strips of columns, and few rows, so that threads divide the columns. Bits are the same with any
 * number of threads, near the sums in double, and those of gg_sgemm_run if the rule chooses this product. */
static void test_large(void) {
    static const int64_t sizes[][3] = {{150, 48, 300},  {50, 600, 48},   {300, 70, 151},
                                       {48, 100, 1000}, {270, 530, 150}, {50, 60, 4000}};
    static const int threads_of[] = {1, 2, 3, 4, 5, 6};
    for (size_t k = 0; level_at(k) != NULL; ++k)
        for (size_t i = 0; i < sizeof sizes / sizeof *sizes; ++i)
            for (int flags = 0; flags < (i < 3 ? 8 : 1); ++flags) {
                const int64_t m = sizes[i][0], n = sizes[i][1], terms = sizes[i][2];
                side a = side_random(m, terms, flags & 1, PLAIN), b = side_random(n, terms, !(flags & 2), PLAIN);
                buffer bias = buffer_random((size_t)(m > n ? m : n)), first = buffer_floats((size_t)(m * n));
                const bool row_bias = flags & 4;
                for (size_t t = 0; t < sizeof threads_of / sizeof *threads_of; ++t) {
                    buffer c = buffer_floats((size_t)(m * n));
                    const gg_sgemm p = {.m = m,
                                        .n = n,
                                        .k = terms,
                                        .a = a.values.data,
                                        .b = b.values.data,
                                        .c = c.data,
                                        .lda = a.step,
                                        .ldb = b.step,
                                        .ldc = n,
                                        .bias = row_bias ? NULL : bias.data,
                                        .transpose_a = a.across,
                                        .transpose_b = !b.across,
                                        .relu = flags == 1};
                    buffer scratch = buffer_create(gg_paired_products.scratch(&p, threads_of[t]));
                    gg_sgemm_paired_run(level_at(k)->kernels, &p, row_bias ? bias.data : NULL, threads_of[t],
                                        scratch.data);
                    if (t == 0) {
                        memcpy(first.data, c.data, c.bytes);
                        CHECK(agrees(level_at(k), &a, &b, NULL, &c, n,
                                     (start){.bias = p.bias, .row_bias = row_bias ? bias.data : NULL, .relu = p.relu}));
                    }
                    CHECK(memcmp(first.data, c.data, c.bytes) == 0);
                    CHECK(gg_paired_products.pays(level_at(k)->isa, &p) == (k > 0));
                    buffer_free(&scratch);
                    if (k > 0 && !row_bias) {
                        scratch = buffer_create(gg_sgemm_scratch(level_at(k)->isa, &p, threads_of[t]));
                        memset(c.data, 0, c.bytes);
                        gg_sgemm_run(level_at(k)->isa, &p, threads_of[t], scratch.data);
                        CHECK(memcmp(first.data, c.data, c.bytes) == 0);
                        buffer_free(&scratch);
                    }
                    buffer_free(&c);
                }
                buffer_free(&bias);
                buffer_free(&first);
                buffer_free(&a.values);
                buffer_free(&b.values);
            }
}

/* Parts begin with whole steps, none is longer than is allowed or empty, and together they are all terms. */
static void test_parts(void) {
    for (int64_t k = 1; k < 2000; ++k) {
        const int64_t parts = gg_paired_parts(k);
        bool good = gg_paired_part(k, 0) == 0 && gg_paired_part(k, parts) == k;
        for (int64_t i = 0; i < parts; ++i) {
            const int64_t first = gg_paired_part(k, i), terms = gg_paired_part(k, i + 1) - first;
            good = good && first % GG_PAIRED_STEP == 0 && terms > 0 && terms <= GG_PAIRED_TERMS;
            good = good && gg_paired_group(terms) <= gg_paired_group(gg_paired_part(k, 1));
        }
        CHECK(good);
    }
}

int main(void) {
    find_levels();
    setenv("GOSSIPGRAD_PAIRED", "1", 1);
    test_parts();
    test_kernels();
    test_forms();
    test_distances();
    test_beginnings();
    test_bits();
    test_marks();
    test_special();
    test_large();
    CHECK_INT(gg_memory_live_bytes(), 0);
    return CHECK_RESULT;
}
