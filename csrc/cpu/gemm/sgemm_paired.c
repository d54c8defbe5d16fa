/* General matrix product by paired products. All threads pack a strip of B's columns. Each thread then packs some of
 * its rows of A at a time, and multiplies them by the strip. Few threads pack a strip each, without waiting. Sums are
 * computed in parts; for long sums a strip has some of the parts at a time. */
#include "cpu/gemm/sgemm_paired.h"

#include "base/parallel.h"

/* Max columns of a strip, and max floats, in whole parts. */
#define STRIP_COLS 512
#define STRIP_FLOATS (1024 * 1024)
/* Groups of rows packed at a time: they stay in the L2 cache together with a part of the strip. */
#define CHUNK_GROUPS 8
/* Up to this many threads pack all of the side that they do not share, each for itself. That is faster than reading it
 * from each other's caches. */
#define FEW_THREADS 4

typedef struct job {
    const gg_paired_kernels *kernels;
    const gg_sgemm *p;
    const float *row_bias;
    float *strip, *chunks;
    int64_t group; /* the floats of a group in a part */
    /* of the strip */
    int64_t part, parts, col, cols;
    bool by_columns;
    bool alone; /* a thread packs whole strips */
} job;

static int64_t strip_cols(const gg_sgemm *p) { return p->n < STRIP_COLS ? p->n : STRIP_COLS; }

static int64_t strip_parts(const gg_sgemm *p) {
    const int64_t all = gg_paired_parts(p->k), most = STRIP_FLOATS / gg_paired_part_step(STRIP_COLS, p->k);
    return all < most ? all : most;
}

static int64_t strip_floats(const gg_sgemm *p) { return strip_parts(p) * gg_paired_part_step(strip_cols(p), p->k); }

static int64_t chunk_floats(const gg_sgemm *p) { return CHUNK_GROUPS * gg_paired_group_step(p->k); }

/* Address of a part. */
static float *part_at(const job *j, int64_t part) {
    return j->strip + (part - j->part) * gg_paired_part_step(j->cols, j->p->k);
}

/* Vectors [begin, end) of a side in one part. Groups have equal distances in all parts. */
static gg_paired_pack part_of(const gg_packed_side *s, int64_t part, int64_t begin, int64_t end, float *out) {
    const int64_t first = gg_paired_part(s->terms, part);
    return (gg_paired_pack){.count = end - begin,
                            .terms = gg_paired_part(s->terms, part + 1) - first,
                            .from = s->from + (s->across ? first * s->step + begin : begin * s->step + first),
                            .step = s->step,
                            .across = s->across,
                            .out = out,
                            .group = gg_paired_group_step(s->terms)};
}

static void pack_part(const gg_paired_kernels *kernels, const gg_packed_side *s, int64_t part, int64_t begin,
                      int64_t end, float *out) {
    const gg_paired_pack pack = part_of(s, part, begin, end, out);
    kernels->pack(&pack);
}

static gg_packed_side columns_of(const gg_sgemm *p) {
    return (gg_packed_side){.terms = p->k, .from = p->b, .step = p->ldb, .across = !p->transpose_b};
}

static void pack_strip_part(void *context, int thread, int threads) {
    const job *j = context;
    const gg_sgemm *p = j->p;
    const gg_packed_side side = columns_of(p);
    const int64_t groups = gg_block_count(j->cols, GG_PAIRED_LANES);
    size_t begin, end;
    gg_parallel_split((size_t)(groups * j->parts), 1, thread, threads, &begin, &end);
    for (size_t unit = begin; unit < end; ++unit) {
        const int64_t part = j->part + (int64_t)unit / groups, group = (int64_t)unit % groups;
        const int64_t at = j->col + group * GG_PAIRED_LANES, behind = j->col + j->cols;
        pack_part(j->kernels, &side, part, at, behind - at < GG_PAIRED_LANES ? behind : at + GG_PAIRED_LANES,
                  part_at(j, part) + group * j->group);
    }
}

static gg_paired_next read_by(const gg_paired_pack *pack) {
    return (gg_paired_next){.from = pack->from,
                            .rows = pack->across ? pack->terms : pack->count,
                            .step = pack->step,
                            .lines = gg_block_count(pack->across ? pack->count : pack->terms, GG_PAIRED_LANES)};
}

/* First part of the next strip, if no other thread packs it. */
static gg_paired_next strip_next(const job *j) {
    const gg_sgemm *p = j->p;
    const int64_t col = j->col + j->cols, left = p->n - col, cols = left < j->cols ? left : j->cols;
    if (!j->alone || cols <= 0) return (gg_paired_next){.from = NULL};
    const gg_packed_side side = columns_of(p);
    const gg_paired_pack next = part_of(&side, j->part, col, col + cols, NULL);
    return read_by(&next);
}

/* Source of the next packing: these rows in the next part. After the strip's last part: the next chunk's rows. */
static gg_paired_next packed_next(const job *j, const gg_packed_side *side, int64_t part, int64_t row, int64_t rows,
                                  int64_t end) {
    const bool again = part + 1 < j->part + j->parts;
    const int64_t begin = again ? row : row + rows, behind = begin + rows < end ? begin + rows : end;
    if (begin >= behind) return strip_next(j);
    const gg_paired_pack next = part_of(side, again ? part + 1 : j->part, begin, behind, NULL);
    return read_by(&next);
}

/* Multiplies rows [row, row + rows) by columns [first, first + cols) of the strip; `end`: end of the thread's rows. */
static void multiply_chunk(const job *j, int64_t row, int64_t rows, int64_t end, int64_t first, int64_t cols,
                           float *chunk) {
    const gg_sgemm *p = j->p;
    const gg_packed_side side = {.terms = p->k, .from = p->a, .step = p->lda, .across = p->transpose_a};
    for (int64_t part = j->part; part < j->part + j->parts; ++part) {
        const int64_t k = gg_paired_part(p->k, part), terms = gg_paired_part(p->k, part + 1) - k;
        const gg_paired_product product = {.m = rows,
                                           .n = cols,
                                           .terms = terms,
                                           .a = chunk,
                                           .b = part_at(j, part) + first / GG_PAIRED_LANES * j->group,
                                           .a_group = j->group,
                                           .b_group = j->group,
                                           .c = p->c + row * p->ldc + j->col + first,
                                           .c_row = p->ldc,
                                           .bias = p->bias != NULL ? p->bias + j->col + first : NULL,
                                           .row_bias = j->row_bias != NULL && part == 0 ? j->row_bias + row : NULL,
                                           .add = part > 0,
                                           .relu = p->relu && k + terms == p->k,
                                           .next = packed_next(j, &side, part, row, rows, end)};
        pack_part(j->kernels, &side, part, row, row + rows, chunk);
        j->kernels->multiply(&product);
    }
}

static void paired_part(void *context, int thread, int threads) {
    const job *j = context;
    size_t begin = 0, end = (size_t)j->p->m, first = 0, last = (size_t)j->cols;
    if (j->by_columns) gg_parallel_split((size_t)j->cols, GG_PAIRED_LANES, thread, threads, &first, &last);
    else gg_parallel_split((size_t)j->p->m, GG_PAIRED_LANES, thread, threads, &begin, &end);
    if (begin >= end || first >= last) return;
    const int64_t most = CHUNK_GROUPS * GG_PAIRED_LANES, cols = (int64_t)(last - first);
    float *chunk = j->chunks + thread * chunk_floats(j->p);
    for (int64_t row = (int64_t)begin, rows; row < (int64_t)end; row += rows) {
        rows = (int64_t)end - row < most ? (int64_t)end - row : most;
        multiply_chunk(j, row, rows, (int64_t)end, (int64_t)first, cols, chunk);
    }
}

/* Min terms, rows and columns: smaller sides are packed for too few products. */
enum { MIN_SIDE = 48 };

static bool paired_gradient_pays(gg_isa isa, int64_t batch, int64_t in) {
    return gg_paired_kernels_for(isa) != NULL && batch >= MIN_SIDE && in >= MIN_SIDE;
}

static bool paired_pays(gg_isa isa, const gg_sgemm *p) {
    return gg_paired_kernels_for(isa) != NULL && p->m >= MIN_SIDE && p->n >= MIN_SIDE && p->k >= MIN_SIDE;
}

static size_t paired_scratch(const gg_sgemm *p, int threads) {
    const int64_t strips = threads <= FEW_THREADS ? threads : 1;
    return (size_t)(strips * strip_floats(p) + threads * chunk_floats(p)) * sizeof(float);
}

static void run_strips(job *j, int threads) {
    const gg_sgemm *p = j->p;
    const int64_t all = gg_paired_parts(p->k), most_parts = strip_parts(p), most_cols = strip_cols(p);
    for (j->part = 0; j->part < all; j->part += most_parts) {
        j->parts = all - j->part < most_parts ? all - j->part : most_parts;
        for (j->col = 0; j->col < p->n; j->col += most_cols) {
            j->cols = p->n - j->col < most_cols ? p->n - j->col : most_cols;
            gg_parallel_run(threads, pack_strip_part, j);
            gg_parallel_run(threads, paired_part, j);
        }
    }
}

/* Rows or columns of one thread, as a product. */
static void own_part(void *context, int thread, int threads) {
    const job *whole = context;
    const gg_sgemm *p = whole->p;
    job j = *whole;
    size_t begin, end;
    gg_parallel_split((size_t)(j.by_columns ? p->n : p->m), GG_PAIRED_LANES, thread, threads, &begin, &end);
    if (begin >= end) return;
    const gg_sgemm own = gg_sgemm_share(p, j.by_columns, (int64_t)begin, (int64_t)(end - begin));
    if (!j.by_columns && j.row_bias != NULL) j.row_bias += begin;
    j.p = &own;
    j.by_columns = false;
    j.alone = true;
    j.strip += thread * (strip_floats(p) + chunk_floats(p));
    j.chunks = j.strip + strip_floats(p);
    run_strips(&j, 1);
}

void gg_sgemm_paired_run(const gg_paired_kernels *kernels, const gg_sgemm *p, const float *row_bias, int threads,
                         void *scratch) {
    job j = {.kernels = kernels,
             .p = p,
             .row_bias = row_bias,
             .strip = scratch,
             .chunks = (float *)scratch + strip_floats(p),
             .group = gg_paired_group_step(p->k),
             .by_columns = threads <= FEW_THREADS ? p->n > p->m : gg_block_count(p->m, GG_PAIRED_LANES) < 2 * threads};
    if (threads <= FEW_THREADS) gg_parallel_run(threads, own_part, &j);
    else run_strips(&j, threads);
}

/* Kernels of a level for which paired products were chosen, so there are some. */
static const gg_paired_kernels *chosen(gg_isa isa) { return gg_cpu_kernels_for(isa)->paired; }

static void paired_pack(gg_isa isa, const gg_packed_side *s, int64_t begin, int64_t end) {
    float *out = (float *)s->out + begin / GG_PAIRED_LANES * gg_paired_group_step(s->terms);
    for (int64_t part = 0; part < gg_paired_parts(s->terms); ++part)
        pack_part(chosen(isa), s, part, begin, end, out + part * gg_paired_part_step(s->count, s->terms));
}

static void paired_run(gg_isa isa, const gg_sgemm *p, const float *row_bias, int threads, void *scratch) {
    gg_sgemm_paired_run(chosen(isa), p, row_bias, threads, scratch);
}

static size_t paired_side_bytes(int64_t count, int64_t terms) {
    return (size_t)gg_paired_packed(count, terms) * sizeof(float);
}

/* Prefetches lines of two arrays in turn, in reading order; each part of the sum prefetches its share. */
static gg_paired_next used_next(const gg_packed_product *p, int64_t part, int64_t parts) {
    if (p->used == 0) return (gg_paired_next){.from = NULL};
    const float *first = p->used_next[0] + p->used_at, *last = p->used_next[p->used - 1] + p->used_at;
    const intptr_t bytes = (intptr_t)((uintptr_t)last - (uintptr_t)first);
    const int64_t lines = p->used_count / GG_PAIRED_LANES, begin = lines * part / parts;
    return (gg_paired_next){.from = first + begin * GG_PAIRED_LANES,
                            .rows = p->used,
                            .step = bytes / (intptr_t)sizeof *first,
                            .lines = lines * (part + 1) / parts - begin};
}

static void paired_multiply(gg_isa isa, const gg_packed_product *p) {
    const int64_t group = gg_paired_group_step(p->terms);
    const float *a = (const float *)p->a + p->first / GG_PAIRED_LANES * group, *b = p->b;
    for (int64_t part = 0, parts = gg_paired_parts(p->terms); part < parts; ++part) {
        const gg_paired_product product = {.m = p->m,
                                           .n = p->n,
                                           .terms = gg_paired_part(p->terms, part + 1) - gg_paired_part(p->terms, part),
                                           .a = a + part * gg_paired_part_step(p->a_count, p->terms),
                                           .b = b + part * gg_paired_part_step(p->n, p->terms),
                                           .a_group = group,
                                           .b_group = group,
                                           .c = p->c,
                                           .c_row = p->c_row,
                                           .add = p->add || part > 0,
                                           .next = used_next(p, part, parts)};
        chosen(isa)->multiply(&product);
    }
}

enum { BLOCK_GROUPS = 4, BLOCK_BYTES = BLOCK_GROUPS * GG_PAIRED_ROOM * sizeof(float) };
_Static_assert(BLOCK_BYTES <= GG_PACKED_BLOCK_BYTES, "a part of a block");

const gg_packed_products gg_paired_products = {
    .convolution = GG_ALGORITHM_DIRECT,
    .pays = paired_pays,
    .gradient_pays = paired_gradient_pays,
    .scratch = paired_scratch,
    .run = paired_run,
    .granule = GG_PAIRED_LANES,
    .side_bytes = paired_side_bytes,
    .pack = paired_pack,
    .multiply = paired_multiply,
    .part_begin = gg_paired_part,
    .fetches = 2,
    .block = BLOCK_GROUPS * GG_PAIRED_LANES,
};
