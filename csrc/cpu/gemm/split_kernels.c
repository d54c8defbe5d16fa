/* The split product on AMX: blocks of two by two tiles of the result stay in four of the eight tile registers.
 * tests/c/twin has scalar kernels as reference. Their bits are equal if denormal numbers count as 0. */
#include <string.h>

#include "cpu/gemm/split_kernels.h"
#include "cpu/simd/parts.h"

#if defined(GG_PARTS_AMX)

#pragma GCC push_options
#pragma GCC target("amx-tile,amx-bf16")

#define STEP ((int64_t)GG_SPLIT_PARTS * GG_SPLIT_TILE)
#define ROW_BYTES 64

/* ------------------------------------------------------------------------------------------- packing */

/* Row `row` of the three tiles. */
GG_INLINE void store_parts(__m512 x, __m512 y, uint16_t *tile, int64_t row) {
    const __m512 x_high = upper_half(x), y_high = upper_half(y);
    const __m512 x_left = _mm512_sub_ps(x, x_high), y_left = _mm512_sub_ps(y, y_high);
    const __m512 x_middle = upper_half(x_left), y_middle = upper_half(y_left);
    uint16_t *out = tile + row * GG_SPLIT_TERMS;
    _mm512_store_si512(out, pairs(x_high, y_high));
    _mm512_store_si512(out + GG_SPLIT_TILE, pairs(x_middle, y_middle));
    _mm512_store_si512(out + 2 * GG_SPLIT_TILE,
                       pairs(_mm512_sub_ps(x_left, x_middle), _mm512_sub_ps(y_left, y_middle)));
}

GG_INLINE __mmask16 first_lanes(int64_t n) { return n >= 16 ? 0xffffu : n <= 0 ? 0 : (__mmask16)((1u << n) - 1u); }

/* Vectors from memory become rows of the tiles: `vectors` vectors of `lanes` numbers, then zeros. second: distance to
 * the other of a pair, and its vectors and lanes. */
typedef struct source {
    const float *from;
    int64_t step, second;
    int64_t vectors[2], lanes[2];
} source;

GG_INLINE __m512 load_row(const source *s, int which, int64_t row) {
    const __mmask16 mask = row < s->vectors[which] ? first_lanes(s->lanes[which]) : 0;
    return _mm512_maskz_loadu_ps(mask, s->from + (which ? s->second : 0) + row * s->step);
}

/* Stores a row of whole numbers: those of the first terms, then those of the second ones. */
GG_INLINE void store_whole(__m512 x, __m512 y, float *tile, int64_t row) {
    _mm512_store_ps(tile + row * GG_SPLIT_TERMS, x);
    _mm512_store_ps(tile + row * GG_SPLIT_TERMS + GG_SPLIT_SIDE, y);
}

/* Destination of a row: the parts' tiles, or `ordered` for whole rows. */
typedef struct target {
    uint16_t *tile;
    float *ordered;
} target;

GG_INLINE void store_row(__m512 x, __m512 y, const target *to, bool whole, int64_t row) {
    if (whole) store_whole(x, y, to->ordered, row);
    else store_parts(x, y, to->tile, row);
}

GG_INLINE void pack_straight(const source *s, const target *to, bool whole) {
    if (s->vectors[0] >= 16 && s->vectors[1] >= 16 && s->lanes[0] >= 16 && s->lanes[1] >= 16) {
        for (int64_t row = 0; row < 16; ++row)
            store_row(_mm512_loadu_ps(s->from + row * s->step), _mm512_loadu_ps(s->from + s->second + row * s->step),
                      to, whole, row);
        return;
    }
    for (int64_t row = 0; row < 16; ++row) store_row(load_row(s, 0, row), load_row(s, 1, row), to, whole, row);
}

GG_INLINE void pack_turned(const source *s, const target *to, bool whole) {
    float turned[2][16][16] __attribute__((aligned(64)));
    for (int which = 0; which < 2; ++which) {
        __m512 a[16];
#pragma GCC unroll 16
        for (int i = 0; i < 16; ++i) a[i] = load_row(s, which, i);
        turn(a);
#pragma GCC unroll 16
        for (int i = 0; i < 16; ++i) _mm512_store_ps(turned[which][i], a[i]);
    }
    for (int64_t row = 0; row < 16; ++row)
        store_row(_mm512_load_ps(turned[0][row]), _mm512_load_ps(turned[1][row]), to, whole, row);
}

/* Packs sixteen rows or columns from `i`, terms from `l`. straight: vectors in memory are rows of tiles. */
GG_INLINE void pack_tile(const gg_split_pack *p, int64_t i, int64_t l, bool straight, bool whole) {
    const int64_t steps = gg_split_group(p->terms) / STEP, step = l / GG_SPLIT_TERMS, group = i / GG_SPLIT_SIDE;
    target to = {NULL, NULL};
    if (whole) to.ordered = p->ordered + ((group / 2 * steps + step) * 2 + group % 2) * GG_SPLIT_TILE;
    else to.tile = p->out + (group * steps + step) * STEP;
    const int64_t count = p->count - i, first = p->terms - l, second = first - GG_SPLIT_SIDE;
    const source s = {
        .from = p->from + (p->across ? l * p->step + i : i * p->step + l),
        .step = p->step,
        .second = p->across ? GG_SPLIT_SIDE * p->step : GG_SPLIT_SIDE,
        .vectors = {p->across ? first : count, p->across ? second : count},
        .lanes = {p->across ? count : first, p->across ? count : second},
    };
    if (straight) pack_straight(&s, &to, whole);
    else pack_turned(&s, &to, whole);
}

/* Packs in memory order, so that the numbers are prefetched. */
GG_INLINE void pack_tiles(const gg_split_pack *p, bool straight, bool whole) {
    if (p->across) {
        for (int64_t l = 0; l < p->terms; l += GG_SPLIT_TERMS)
            for (int64_t i = 0; i < p->count; i += GG_SPLIT_SIDE) pack_tile(p, i, l, straight, whole);
    } else {
        for (int64_t i = 0; i < p->count; i += GG_SPLIT_SIDE)
            for (int64_t l = 0; l < p->terms; l += GG_SPLIT_TERMS) pack_tile(p, i, l, straight, whole);
    }
}

static void pack_rows_amx(const gg_split_pack *p) {
    if (p->across) pack_tiles(p, false, false);
    else pack_tiles(p, true, false);
}

static void pack_cols_amx(const gg_split_pack *p) {
    if (p->across) pack_tiles(p, true, false);
    else pack_tiles(p, false, false);
}

static void order_cols_amx(const gg_split_pack *p) {
    if (p->across) pack_tiles(p, true, true);
    else pack_tiles(p, false, true);
}

/* ------------------------------------------------------------------------------------------ products */

/* A block of up to two by two tiles. Registers 0 to 3 are the result, 4 and 5 of a, 6 and 7 of b. */
typedef struct block {
    const uint16_t *a, *b;
    const float *ordered;            /* replaces b */
    int64_t a_group, b_group, tiles; /* tiles: steps of 32 terms */
    int64_t rows, cols;              /* of the result that exist */
    float *c;
    int64_t c_row;
    const float *bias, *row_bias;
    bool add, relu;
} block;

#define LOAD_A(part)                                                                                                   \
    do {                                                                                                               \
        _tile_loadd(4, a + (part)*GG_SPLIT_TILE, ROW_BYTES);                                                           \
        if (tall) _tile_loadd(5, a_below + (part)*GG_SPLIT_TILE, ROW_BYTES);                                           \
    } while (0)
#define LOAD_B(part)                                                                                                   \
    do {                                                                                                               \
        _tile_loadd(6, b + (part)*GG_SPLIT_TILE, ROW_BYTES);                                                           \
        if (wide) _tile_loadd(7, b_beside + (part)*GG_SPLIT_TILE, ROW_BYTES);                                          \
    } while (0)
#define MULTIPLY                                                                                                       \
    do {                                                                                                               \
        _tile_dpbf16ps(0, 4, 6);                                                                                       \
        if (wide) _tile_dpbf16ps(1, 4, 7);                                                                             \
        if (tall) _tile_dpbf16ps(2, 5, 6);                                                                             \
        if (tall && wide) _tile_dpbf16ps(3, 5, 7);                                                                     \
    } while (0)

/* The six products of parts, in an order in which each step changes one side only. */
GG_INLINE void add_products(const block *it, bool tall, bool wide) {
    const uint16_t *a = it->a, *a_below = a + it->a_group, *b = it->b, *b_beside = b + it->b_group;
    for (int64_t t = 0; t < it->tiles; ++t) {
        LOAD_B(0);
        LOAD_A(2);
        MULTIPLY;
        LOAD_A(1);
        MULTIPLY;
        LOAD_A(0);
        MULTIPLY;
        LOAD_B(1);
        LOAD_A(1);
        MULTIPLY;
        LOAD_A(0);
        MULTIPLY;
        LOAD_B(2);
        MULTIPLY;
        a += STEP;
        a_below += STEP;
        b += STEP;
        b_beside += STEP;
    }
}

/* Rows [first, end) of ordered tiles, split. */
GG_INLINE void split_rows(const float *from, uint16_t *to, int64_t first, int64_t end, bool wide) {
#pragma GCC unroll 3
    for (int64_t row = first; row < end; ++row) {
        const float *x = from + row * GG_SPLIT_TERMS, *y = x + GG_SPLIT_TILE;
        store_parts(_mm512_load_ps(x), _mm512_load_ps(x + GG_SPLIT_SIDE), to, row);
        if (wide) store_parts(_mm512_load_ps(y), _mm512_load_ps(y + GG_SPLIT_SIDE), to + STEP, row);
    }
}

/* add for ordered columns. During a step's products, the next step's tiles of b are split into a buffer in the L1
 * cache. The last step splits its own tiles again. */
GG_INLINE void add_ordered(const block *it, bool tall, bool wide) {
    uint16_t buffer[2][2 * STEP] __attribute__((aligned(64)));
    const uint16_t *a = it->a, *a_below = a + it->a_group;
    const float *from = it->ordered;
    split_rows(from, buffer[0], 0, GG_SPLIT_SIDE, wide);
    for (int64_t t = 0; t < it->tiles; ++t) {
        const uint16_t *b = buffer[t % 2], *b_beside = b + STEP;
        uint16_t *next = buffer[(t + 1) % 2];
        ORDER_TILES;
        from += t + 1 < it->tiles ? 2 * GG_SPLIT_TILE : 0;
        LOAD_B(0);
        LOAD_A(2);
        MULTIPLY;
        split_rows(from, next, 0, 3, wide);
        LOAD_A(1);
        MULTIPLY;
        split_rows(from, next, 3, 6, wide);
        LOAD_A(0);
        MULTIPLY;
        split_rows(from, next, 6, 9, wide);
        LOAD_B(1);
        LOAD_A(1);
        MULTIPLY;
        split_rows(from, next, 9, 12, wide);
        LOAD_A(0);
        MULTIPLY;
        split_rows(from, next, 12, 14, wide);
        LOAD_B(2);
        MULTIPLY;
        split_rows(from, next, 14, 16, wide);
        a += STEP;
        a_below += STEP;
    }
}

/* A tile of the result: rows and columns that exist, from `at` on. */
typedef struct place {
    float *at;
    int64_t step, rows, cols;
    bool direct; /* stored there directly; otherwise in a buffer */
} place;

GG_INLINE place place_tile(const block *it, int64_t row, int64_t col) {
    place p = {.at = it->c + row * it->c_row + col, .step = it->c_row};
    p.rows = it->rows - row < GG_SPLIT_SIDE ? it->rows - row : GG_SPLIT_SIDE;
    p.cols = it->cols - col < GG_SPLIT_SIDE ? it->cols - col : GG_SPLIT_SIDE;
    p.direct = p.rows == GG_SPLIT_SIDE && p.cols == GG_SPLIT_SIDE && !it->add;
    return p;
}

/* Macros, because registers are named by constants. */
#define START(number, down, right)                                                                                     \
    do {                                                                                                               \
        const place p = place_tile(it, down, right);                                                                   \
        if (it->add || (it->bias == NULL && it->row_bias == NULL)) {                                                   \
            _tile_zero(number);                                                                                        \
        } else if (it->bias != NULL) {                                                                                 \
            _mm512_store_ps(buffer, _mm512_maskz_loadu_ps(first_lanes(p.cols), it->bias + (right)));                   \
            ORDER_TILES;                                                                                               \
            _tile_loadd(number, buffer, 0); /* every row */                                                            \
        } else {                                                                                                       \
            for (int64_t i = 0; i < GG_SPLIT_SIDE; ++i)                                                                \
                _mm512_store_ps(buffer + i * GG_SPLIT_SIDE,                                                            \
                                _mm512_set1_ps(i < p.rows ? it->row_bias[(down) + i] : 0));                            \
            ORDER_TILES;                                                                                               \
            _tile_loadd(number, buffer, ROW_BYTES);                                                                    \
        }                                                                                                              \
        ORDER_TILES;                                                                                                   \
    } while (0)

GG_INLINE void finish_tile(const block *it, const place *p, const float *buffer) {
    if (p->direct && !it->relu) return;
    const __mmask16 mask = first_lanes(p->cols);
    for (int64_t i = 0; i < p->rows; ++i) {
        float *c = p->at + i * p->step;
        __m512 x = p->direct ? _mm512_loadu_ps(c) : _mm512_load_ps(buffer + i * GG_SPLIT_SIDE);
        if (it->add) x = _mm512_add_ps(_mm512_maskz_loadu_ps(mask, c), x);
        /* NaN stays */
        if (it->relu)
            x = _mm512_mask_mov_ps(x, _mm512_cmp_ps_mask(x, _mm512_setzero_ps(), _CMP_LT_OQ), _mm512_setzero_ps());
        _mm512_mask_storeu_ps(c, mask, x);
    }
}

#define FINISH(number, down, right)                                                                                    \
    do {                                                                                                               \
        const place p = place_tile(it, down, right);                                                                   \
        _tile_stored(number, p.direct ? p.at : buffer, p.direct ? p.step * 4 : ROW_BYTES);                             \
        finish_tile(it, &p, buffer);                                                                                   \
    } while (0)

GG_INLINE void run_sum(const block *it, bool tall, bool wide, bool ordered) {
    float buffer[GG_SPLIT_SIDE * GG_SPLIT_SIDE] __attribute__((aligned(64)));
    START(0, 0, 0);
    if (wide) START(1, 0, GG_SPLIT_SIDE);
    if (tall) START(2, GG_SPLIT_SIDE, 0);
    if (tall && wide) START(3, GG_SPLIT_SIDE, GG_SPLIT_SIDE);
    if (ordered) add_ordered(it, tall, wide);
    else add_products(it, tall, wide);
    FINISH(0, 0, 0);
    if (wide) FINISH(1, 0, GG_SPLIT_SIDE);
    if (tall) FINISH(2, GG_SPLIT_SIDE, 0);
    if (tall && wide) FINISH(3, GG_SPLIT_SIDE, GG_SPLIT_SIDE);
}

/* Sum by sum: the first begins with the bias, all others add to the stored values. */
GG_INLINE void run_block(const block *whole, bool tall, bool wide, bool ordered) {
    const int64_t most = GG_SPLIT_SUM / GG_SPLIT_TERMS;
    block part = *whole;
    for (int64_t t = 0; t < whole->tiles; t += most) {
        part.tiles = whole->tiles - t < most ? whole->tiles - t : most;
        part.add = whole->add || t > 0;
        part.relu = whole->relu && t + part.tiles == whole->tiles;
        run_sum(&part, tall, wide, ordered);
        part.a += most * STEP;
        if (ordered) part.ordered += most * 2 * GG_SPLIT_TILE;
        else part.b += most * STEP;
    }
}

#define RUN(name, tall, wide, ordered)                                                                                 \
    static __attribute__((noinline)) void name(const block *it) { run_block(it, tall, wide, ordered); }
RUN(run_1x1, false, false, false)
RUN(run_1x2, false, true, false)
RUN(run_2x1, true, false, false)
RUN(run_2x2, true, true, false)
RUN(run_ordered_1x1, false, false, true)
RUN(run_ordered_1x2, false, true, true)
RUN(run_ordered_2x1, true, false, true)
RUN(run_ordered_2x2, true, true, true)

static void multiply_amx(const gg_split_product *p) {
    static void (*const runs[2][2][2])(const block *) = {
        {{run_1x1, run_1x2}, {run_2x1, run_2x2}},
        {{run_ordered_1x1, run_ordered_1x2}, {run_ordered_2x1, run_ordered_2x2}},
    };
    const int64_t side = 2 * GG_SPLIT_SIDE, blocks = (p->n + side - 1) / side;
    block it = {.a_group = p->a_group,
                .b_group = p->b_group,
                .tiles = gg_split_group(p->terms) / STEP,
                .c_row = p->c_row,
                .add = p->add,
                .relu = p->relu};
    _tile_loadconfig(&whole_tiles);
    ORDER_TILES;
    for (int64_t k = 0; k < blocks; ++k) {
        const int64_t j = (p->downwards ? blocks - 1 - k : k) * side;
        if (p->ordered != NULL) it.ordered = p->ordered + j * it.tiles * GG_SPLIT_TERMS;
        else it.b = p->b + j / GG_SPLIT_SIDE * p->b_group;
        it.cols = p->n - j < side ? p->n - j : side;
        it.bias = p->bias != NULL ? p->bias + j : NULL;
        for (int64_t i = 0; i < p->m; i += side) {
            it.a = p->a + i / GG_SPLIT_SIDE * p->a_group;
            it.row_bias = p->row_bias != NULL ? p->row_bias + i : NULL;
            it.rows = p->m - i < side ? p->m - i : side;
            it.c = p->c + i * p->c_row + j;
            runs[p->ordered != NULL][it.rows > GG_SPLIT_SIDE][it.cols > GG_SPLIT_SIDE](&it);
        }
    }
    _tile_release();
}

const gg_split_kernels gg_split_kernels_amx = {pack_rows_amx, pack_cols_amx, order_cols_amx, multiply_amx};

#pragma GCC pop_options

#endif
