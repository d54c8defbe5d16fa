/* Products of matrices read in place, transposition, and the set of kernels of this instruction set. */
#include "cpu/simd/tile.h"
#include "ops/tensor.h"

#ifdef GG_VECTOR
#define VECTOR GG_VECTOR
#define TILE_ROWS GG_TILE_ROWS
#define DOT_ROWS GG_DOT_ROWS
#else
#define VECTOR 1
#define TILE_ROWS 1
#define DOT_ROWS 1
#endif

/* Prefetch distance in terms: they may lie pages apart, where hardware prefetchers do not follow. Measured with
 * AVX2. */
#define PACK_AHEAD 8

/* Term by term, for all blocks. */
static void gemm_pack(int64_t m, int64_t k, const float *a, int64_t a_step, float *out) {
    const int64_t blocks = gg_block_count(m, TILE_ROWS), least = m / blocks, more = m % blocks;
#if VECTOR == 8
    /* Without AVX-512 a masked store takes some processors tens of cycles. Whole vectors are copied instead if later
     * terms overwrite the excess and a has more terms to read. */
    const int64_t behind = gg_block_count(VECTOR, least > 0 ? least : 1);
    const int64_t whole = a_step < VECTOR || k <= behind ? 0 : k - behind;
#endif
    for (int64_t l = 0; l < k; ++l) {
        const float *from = a + l * a_step;
#if VECTOR == 8
        for (int64_t i = 0; i < m; i += GG_LANES) __builtin_prefetch(from + PACK_AHEAD * a_step + i);
#endif
        for (int64_t b = 0, i = 0; b < blocks; ++b) {
            const int rows = (int)(least + (b < more)); /* result of gg_block_begin */
            float *to = out + i * k + l * rows;
#if VECTOR == 8
            if (l < whole) *(floats *)to = *(const floats *)(from + i);
            else
#endif
                lanes_store_part(to, rows, lanes_load_part(from + i, rows));
            i += rows;
        }
    }
}

#ifndef GG_VECTOR

static void gemm_multiply(const gg_multiply *p, int64_t block_begin, int64_t block_end) {
    for (int64_t i = block_begin; i < block_end; ++i) { /* a block is one row here */
        float *c = p->c + i * p->c_row;
        if (!p->add)
            for (int64_t j = 0; j < p->n; ++j) c[j] = p->bias ? p->bias[i] : 0;
        for (int64_t l = 0; l < p->k; ++l) {
            const float a = p->a[i * p->a_row + l * p->a_step];
            for (int64_t j = 0; j < p->n; ++j) c[j] += a * p->b[l * p->b_row + j];
        }
        if (p->relu)
            for (int64_t j = 0; j < p->n; ++j) c[j] = c[j] < 0 ? 0 : c[j];
    }
}

static void gemm_transpose(int64_t rows, int64_t cols, const float *in, int64_t in_row, int64_t padded, float *out,
                           int64_t out_row) {
    for (int64_t j = 0; j < cols; ++j) {
        for (int64_t i = 0; i < rows; ++i) out[j * out_row + i] = in[i * in_row + j];
        for (int64_t i = rows; i < padded; ++i) out[j * out_row + i] = 0;
    }
}

static float mask_sum(int64_t n, const float *y, float *dy) {
    double sum = 0;
    for (int64_t i = 0; i < n; ++i) {
        if (y != NULL && y[i] <= 0) dy[i] = 0;
        sum += dy[i];
    }
    return (float)sum;
}

#define PANEL GG_LANES

static void gemm_panels(const gg_panels *p) {
    for (int64_t j = 0; j < p->n; j += PANEL) {
        const float *b = p->b + j / PANEL * p->b_panel;
        const int64_t cols = p->n - j < PANEL ? p->n - j : PANEL;
        for (int64_t i = 0; i < p->m; ++i) { /* a block is one row here */
            const float *a = p->a + i * (p->a_row > 0 ? p->a_row : p->k);
            float sum[PANEL] = {0}, *c = p->c + i * p->c_row + j;
            for (int64_t l = 0; l < p->k; ++l)
                for (int64_t x = 0; x < PANEL; ++x) sum[x] += a[l] * b[l * PANEL + x];
            for (int64_t x = 0; x < cols; ++x) {
                const float value = sum[x] + (p->add ? c[x] : p->bias ? p->bias[j + x] : 0);
                c[x] = p->relu && value < 0 ? 0 : value;
            }
        }
    }
}

#else

#define TILE(R, V)                                                                                                     \
    static __attribute__((noinline)) void down_##R##x##V(const gg_tile *t) { gg_tile_run(t, R, V, GG_TILE_DOWN); }     \
    static __attribute__((noinline)) void across_##R##x##V(const gg_tile *t) { gg_tile_run(t, R, V, GG_TILE_ACROSS); }
GG_TILE_LIST_NARROW(TILE, 1)
GG_TILE_LIST_NARROW(TILE, 2)
GG_TILE_LIST_WIDE(TILE)
#undef TILE
#define DOWN(R, V) [V][R] = down_##R##x##V,
#define ACROSS(R, V) [V][R] = across_##R##x##V,
static const gg_tile_fn tiles[2][5][GG_TILE_ROWS + 1] = {
    {GG_TILE_LIST_NARROW(DOWN, 1) GG_TILE_LIST_NARROW(DOWN, 2) GG_TILE_LIST_WIDE(DOWN)},
    {GG_TILE_LIST_NARROW(ACROSS, 1) GG_TILE_LIST_NARROW(ACROSS, 2) GG_TILE_LIST_WIDE(ACROSS)}};
#undef DOWN
#undef ACROSS

/* Computes a tile with fewer columns than a vector into a buffer, and copies the existing columns. */
static void edge(const gg_tile *tile, gg_tile_fn run, int64_t rows, int64_t cols) {
    float beside[GG_TILE_ROWS][4 * GG_VECTOR] __attribute__((aligned(64)));
    gg_tile t = *tile;
    t.y = beside[0];
    t.y_row = 4 * GG_VECTOR;
    if (t.add)
        for (int64_t i = 0; i < rows; ++i) {
            for (int64_t j = 0; j < cols; ++j) beside[i][j] = tile->y[i * tile->y_row + j];
            for (int64_t j = cols; j < 4 * GG_VECTOR; ++j) beside[i][j] = 0;
        }
    run(&t);
    for (int64_t i = 0; i < rows; ++i)
        for (int64_t j = 0; j < cols; ++j) tile->y[i * tile->y_row + j] = beside[i][j];
}

/* Max terms summed at a time if a's rows are adjacent. */
#define DOWN_TERMS 1024
/* True if a block's rows are less than half a cache line in each term. Copying them leaves b more room in the L1
 * cache. */
#define COPIES_DOWN (2 * TILE_ROWS < GG_LANES)

static void gemm_multiply(const gg_multiply *p, int64_t block_begin, int64_t block_end) {
    static const gg_tap whole = {0, 0};
    const bool across = p->a_step == 1 && p->part_of == 0;
    const int64_t blocks = gg_block_count(p->m, GG_TILE_ROWS);
    /* Cuts terms into parts. A part of b stays in the L2 cache while all blocks of rows use it. A column of a's cache
     * lines also stays, until the next block has used their rest. The ends of parts fix the bits of the result. */
    int64_t most_terms = 131072 / (p->part_of > 0 ? p->part_of : p->n);
    if (most_terms < 256) most_terms = 256;
    if (!across && most_terms > DOWN_TERMS) most_terms = DOWN_TERMS;
    if (p->most_terms > 0) most_terms = p->most_terms;
    const int64_t parts = gg_block_count(p->k > 0 ? p->k : 1, most_terms);
    const bool copies = COPIES_DOWN && !across && most_terms <= DOWN_TERMS && p->n > 4 * GG_VECTOR; /* read often */
    float copy[COPIES_DOWN ? TILE_ROWS * DOWN_TERMS : 1] __attribute__((aligned(64)));
    gg_tile t = {.row_taps = &whole,
                 .col_taps = &whole,
                 .row_count = 1,
                 .col_count = 1,
                 .x_step = p->b_row,
                 .x_delta = GG_VECTOR,
                 .w_row = across ? p->a_row : 1,
                 .w_step = p->a_step,
                 .y_row = p->c_row,
                 .y_delta = GG_VECTOR};
    for (int64_t part = 0; part < parts; ++part) {
        const int64_t k = gg_block_begin(p->k, parts, part);
        t.terms = gg_block_begin(p->k, parts, part + 1) - k;
        t.add = p->add || part > 0;
        t.relu = p->relu && part == parts - 1;
        for (int64_t b = block_begin; b < block_end; ++b) {
            const int64_t i = gg_block_begin(p->m, blocks, b), rows = gg_block_begin(p->m, blocks, b + 1) - i;
            const int64_t most = rows <= GG_TILE_WIDE ? 4 * GG_VECTOR : 2 * GG_VECTOR;
            t.w = p->a + i * p->a_row + k * p->a_step;
            if (copies) {
                gemm_pack(rows, t.terms, t.w, p->a_step, copy);
                t.w = copy;
                t.w_step = rows;
            }
            t.bias = p->bias ? p->bias + i : NULL;
            for (int64_t j = 0; j < p->n;) {
                const int64_t left = p->n - j;
                int vectors = left >= most ? (int)(most / GG_VECTOR) : left > GG_VECTOR ? 2 : 1;
                t.x = p->b + k * p->b_row + j;
                t.y = p->c + i * p->c_row + j;
                const gg_tile_fn run = tiles[across][vectors][rows];
                if (left >= vectors * GG_VECTOR) run(&t);
                else edge(&t, run, rows, left);
                j += vectors * GG_VECTOR;
            }
        }
    }
}

#define PANEL (GG_PANEL_VECTORS * GG_VECTOR)

#define TILE(R, V)                                                                                                     \
    static __attribute__((noinline)) void panel_packed_##R##x##V(const gg_tile *t) {                                   \
        gg_tile_run(t, R, V, GG_TILE_PANEL_PACKED);                                                                    \
    }                                                                                                                  \
    static __attribute__((noinline)) void panel_across_##R##x##V(const gg_tile *t) {                                   \
        gg_tile_run(t, R, V, GG_TILE_PANEL_ACROSS);                                                                    \
    }                                                                                                                  \
    static __attribute__((noinline)) void panel_near_##R##x##V(const gg_tile *t) {                                     \
        gg_tile_run(t, R, V, GG_TILE_PANEL_NEAR);                                                                      \
    }
GG_TILE_LIST_NARROW(TILE, GG_PANEL_HALF)
GG_TILE_LIST_NARROW(TILE, GG_PANEL_VECTORS)
#undef TILE
#define PACKED(R, V) [V][R] = panel_packed_##R##x##V,
#define ACROSS(R, V) [V][R] = panel_across_##R##x##V,
#define NEAR(R, V) [V][R] = panel_near_##R##x##V,
enum { PACKED_ROWS, ACROSS_ROWS, NEAR_ROWS };
static const gg_tile_fn panel_tiles[3][GG_PANEL_VECTORS + 1][GG_TILE_ROWS + 1] = {
    [PACKED_ROWS] = {GG_TILE_LIST_NARROW(PACKED, GG_PANEL_HALF) GG_TILE_LIST_NARROW(PACKED, GG_PANEL_VECTORS)},
    [ACROSS_ROWS] = {GG_TILE_LIST_NARROW(ACROSS, GG_PANEL_HALF) GG_TILE_LIST_NARROW(ACROSS, GG_PANEL_VECTORS)},
    [NEAR_ROWS] = {GG_TILE_LIST_NARROW(NEAR, GG_PANEL_HALF) GG_TILE_LIST_NARROW(NEAR, GG_PANEL_VECTORS)}};
#undef PACKED
#undef ACROSS
#undef NEAR

/* Terms of a panel that stay in the L1 cache while all blocks of rows use them. */
#define PANEL_TERMS 256

/* Prefetch of the arrays used after a product: a tile's share, its advance a term, and the next array. */
typedef struct fetching {
    int64_t share, step;
    int array;
    int64_t at;
} fetching;

/* parts: of the terms. */
static fetching fetch_begin(const gg_panels *p, int64_t parts) {
    const int64_t tiles_of_each = gg_block_count(p->n, PANEL) * gg_block_count(p->m, GG_TILE_ROWS) * parts / p->used;
    const int64_t share = gg_block_count(p->m * p->n, tiles_of_each > 0 ? tiles_of_each : 1);
    return (fetching){.share = share, .step = share / gg_block_count(p->k, parts)};
}

/* The last share of an array ends with the array. */
static void fetch_share(const gg_panels *p, gg_tile *t, fetching *f) {
    const int64_t all = p->m * p->n, last = all - f->share;
    t->ahead = p->used_next[f->array] + p->used_at + (f->at < last ? f->at : last);
    t->ahead_step = f->step;
    f->at += f->share;
    if (f->at < all) return;
    f->at = 0;
    f->array = f->array + 1 < p->used ? f->array + 1 : 0;
}

/* One part of the terms of one panel; t->x, t->terms, t->start, t->add and t->relu belong to the part. next: the
 * following operand, with as many terms; a piece is prefetched during each block of rows. If nothing is prefetched into
 * the L2 cache, the next block's rows are prefetched into the L1 cache. A tile reads a line of each row at once. If a
 * last panel has columns in its first half alone, only that half is computed. */
static void panel_part(const gg_panels *p, gg_tile *t, int64_t j, int64_t first, const float *next, fetching *used) {
    const bool across = p->a_row > 0, near = across && next == NULL && p->used == 0 && t->terms > 0;
    const int kind = near ? NEAR_ROWS : across ? ACROSS_ROWS : PACKED_ROWS;
    const int64_t blocks = gg_block_count(p->m, GG_TILE_ROWS), cols = p->n - j < PANEL ? p->n - j : PANEL;
    const int64_t least = p->m / blocks, more = p->m % blocks; /* results of gg_block_begin */
    const int vectors = cols > GG_PANEL_HALF * GG_VECTOR ? GG_PANEL_VECTORS : GG_PANEL_HALF;
    t->ahead_step = next != NULL ? gg_block_count(PANEL, blocks) : 0;
    for (int64_t b = 0, i = 0, rows; b < blocks; ++b, i += rows) {
        rows = least + (b < more);
        t->ahead = next != NULL ? next + b * t->terms * t->ahead_step : t->x;
        if (p->used > 0) fetch_share(p, t, used);
        if (near) {
            t->ahead = p->a + (b + 1 < blocks ? i + rows : 0) * p->a_row + first;
            t->ahead_step = rows * p->a_row / t->terms;
        }
        t->w = p->a + i * (across ? p->a_row : p->k) + first;
        t->w_step = rows;
        t->y = p->c + i * p->c_row + j;
        if (cols == vectors * GG_VECTOR) panel_tiles[kind][vectors][rows](t);
        else edge(t, panel_tiles[kind][vectors][rows], rows, cols);
    }
}

static void gemm_panels(const gg_panels *p) {
    static const gg_tap whole = {0, 0};
    const int64_t panels = gg_block_count(p->n, PANEL);
    const int64_t parts = p->a_row > 0 && p->k > PANEL_TERMS ? gg_block_count(p->k, PANEL_TERMS) : 1;
    float start[PANEL] __attribute__((aligned(64))) = {0};
    gg_tile t = {.row_taps = &whole,
                 .col_taps = &whole,
                 .row_count = 1,
                 .col_count = 1,
                 .x_step = PANEL,
                 .x_delta = GG_VECTOR,
                 .w_row = p->a_row,
                 .y_row = p->c_row,
                 .y_delta = GG_VECTOR};
    fetching used = {0};
    if (p->used > 0) used = fetch_begin(p, parts);
    for (int64_t i = 0; i < panels; ++i) {
        const int64_t panel = p->downwards ? panels - 1 - i : i, j = panel * PANEL;
        const int64_t cols = p->n - j < PANEL ? p->n - j : PANEL;
        const float *b = p->b + panel * p->b_panel;
        if (p->bias != NULL) t.start = cols == PANEL ? p->bias + j : memcpy(start, p->bias + j, (size_t)cols * 4);
        for (int64_t part = 0; part < parts; ++part) {
            const int64_t first = gg_block_begin(p->k, parts, part);
            const float *next = i + 1 < panels ? b + (p->downwards ? -p->b_panel : p->b_panel) : NULL;
            t.terms = gg_block_begin(p->k, parts, part + 1) - first;
            t.x = b + first * PANEL;
            t.add = p->add || part > 0;
            t.relu = p->relu && part == parts - 1;
            if (part + 1 < parts) next = t.x + t.terms * PANEL;
            panel_part(p, &t, j, first, p->far ? next : NULL, &used);
        }
    }
}

static void gemm_transpose(int64_t rows, int64_t cols, const float *in, int64_t in_row, int64_t padded, float *out,
                           int64_t out_row) {
    const int64_t whole_rows = rows - rows % GG_VECTOR, whole_cols = cols - cols % GG_VECTOR;
    for (int64_t i = 0; i < whole_rows; i += GG_VECTOR)
        for (int64_t j = 0; j < whole_cols; j += GG_VECTOR)
            turn_square(in + i * in_row + j, in_row, out + j * out_row + i, out_row);
    for (int64_t j = 0; j < cols; ++j) {
        for (int64_t i = j < whole_cols ? whole_rows : 0; i < rows; ++i) out[j * out_row + i] = in[i * in_row + j];
        for (int64_t i = rows; i < padded; ++i) out[j * out_row + i] = 0;
    }
}

static float mask_sum(int64_t n, const float *y, float *dy) {
    floats sum[4] = {{0}, {0}, {0}, {0}};
    int64_t i = 0;
    for (; i + 4 * GG_VECTOR <= n; i += 4 * GG_VECTOR) {
#pragma GCC unroll 4
        for (int v = 0; v < 4; ++v) {
            floats *place = (floats *)(dy + i + v * GG_VECTOR);
            floats value = *place;
            if (y != NULL) *place = value = masked(*(const floats *)(y + i + v * GG_VECTOR), value);
            sum[v] += value;
        }
    }
    const floats all = (sum[0] + sum[1]) + (sum[2] + sum[3]);
    float total = 0;
    for (int v = 0; v < GG_VECTOR; ++v) total += all[v];
    for (; i < n; ++i) {
        if (y != NULL && y[i] <= 0) dy[i] = 0;
        total += dy[i];
    }
    return total;
}

#endif

static void gemm_pack_panels(int64_t n, int64_t k, const float *b, int64_t b_row, bool transposed, float *out,
                             int64_t out_panel) {
    for (int64_t j = 0; j < n; j += PANEL, out += out_panel) {
        const int64_t cols = n - j < PANEL ? n - j : PANEL;
        if (transposed) {
            gemm_transpose(cols, k, b + j * b_row, b_row, PANEL, out, PANEL);
            continue;
        }
        for (int64_t l = 0; l < k; ++l) {
            for (int64_t x = 0; x < PANEL; x += GG_LANES) {
                const int64_t left = cols - x;
                const float *from = b + l * b_row + j + x;
                const lanes_f v = left >= GG_LANES ? lanes_load_any(from)
                                  : left > 0       ? lanes_load_part(from, (int)left)
                                                   : lanes_set(0);
                lanes_store_any(out + l * PANEL + x, v);
            }
        }
    }
}

const gg_gemm_kernels GG_VARIANT(gg_gemm_kernels) = {
    .isa = GG_LEVEL,
    .vector = VECTOR,
    .panel = PANEL,
    .tile_rows = TILE_ROWS,
    .dot_rows = DOT_ROWS,
    .conv = GG_VARIANT(gg_kernel_conv),
    .dot = GG_VARIANT(gg_kernel_dot),
    .multiply = gemm_multiply,
    .panels = gemm_panels,
    .pack_panels = gemm_pack_panels,
    .pack = gemm_pack,
    .transpose = gemm_transpose,
    .mask_sum = mask_sum,
};
