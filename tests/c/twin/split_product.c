/* The split product in plain loops: documents and tests the kernels on AMX, whose bits it has where denormal numbers
 * count as 0. */
#include "twin/amx.h"
#include "twin/parts.h"

/* Where element (i, l) of a group lies in a tile: terms l and l + 16 side by side, as a row of 32 for each i, or,
 * turned, as a row of 16 pairs for each l. */
static int64_t place_of(int64_t i, int64_t l, bool turned) {
    const int64_t pair = l % GG_SPLIT_SIDE, second = l / GG_SPLIT_SIDE;
    return turned ? (pair * GG_SPLIT_SIDE + i) * 2 + second : (i * GG_SPLIT_SIDE + pair) * 2 + second;
}

static void pack_scalar(const gg_split_pack *p, bool turned) {
    memset(p->out, 0, (size_t)gg_split_packed(p->count, p->terms) * sizeof *p->out);
    for (int64_t i = 0; i < p->count; ++i)
        for (int64_t l = 0; l < p->terms; ++l) {
            uint16_t *tile = p->out + i / GG_SPLIT_SIDE * gg_split_group(p->terms) +
                             l / GG_SPLIT_TERMS * GG_SPLIT_PARTS * GG_SPLIT_TILE +
                             place_of(i % GG_SPLIT_SIDE, l % GG_SPLIT_TERMS, turned);
            float left = p->across ? p->from[l * p->step + i] : p->from[i * p->step + l];
            for (int part = 0; part < GG_SPLIT_PARTS; ++part) {
                const float taken = upper_half(left);
                tile[part * GG_SPLIT_TILE] = narrow_exactly(taken);
                left -= taken;
            }
        }
}

static void pack_rows_scalar(const gg_split_pack *pack) { pack_scalar(pack, false); }
static void pack_cols_scalar(const gg_split_pack *pack) { pack_scalar(pack, true); }

/* Where term l of column i lies when ordered. */
static int64_t ordered_place(int64_t i, int64_t l, int64_t terms) {
    const int64_t steps = (terms + GG_SPLIT_TERMS - 1) / GG_SPLIT_TERMS, side = GG_SPLIT_SIDE;
    const int64_t tile = (i / (2 * side) * steps + l / GG_SPLIT_TERMS) * 2 + i / side % 2;
    return tile * GG_SPLIT_TILE + l % side * GG_SPLIT_TERMS + l / side % 2 * side + i % side;
}

static void order_cols_scalar(const gg_split_pack *p) {
    memset(p->ordered, 0, (size_t)gg_split_ordered(p->count, p->terms) * sizeof *p->ordered);
    for (int64_t i = 0; i < p->count; ++i)
        for (int64_t l = 0; l < p->terms; ++l)
            p->ordered[ordered_place(i, l, p->terms)] = p->across ? p->from[l * p->step + i] : p->from[i * p->step + l];
}

static float part_of(float x, int part) {
    for (int k = 0; k < part; ++k) x -= upper_half(x);
    return upper_half(x);
}

/* Of term l of column j of b. */
static float column_part(const gg_split_product *p, int64_t j, int64_t l, int part) {
    if (p->ordered != NULL) return part_of(p->ordered[ordered_place(j, l, p->terms)], part);
    return widen_exactly(p->b[j / GG_SPLIT_SIDE * p->b_group + l / GG_SPLIT_TERMS * GG_SPLIT_PARTS * GG_SPLIT_TILE +
                              part * GG_SPLIT_TILE + place_of(j % GG_SPLIT_SIDE, l % GG_SPLIT_TERMS, true)]);
}

/* The products of parts in the order of the kernels. */
static const int parts_a[6] = {2, 1, 0, 1, 0, 0}, parts_b[6] = {0, 0, 0, 1, 1, 2};

/* Terms [begin, end) of a column, each part by itself. */
typedef struct column_parts {
    float part[GG_SPLIT_PARTS][GG_SPLIT_SUM];
} column_parts;

static void read_column(const gg_split_product *p, int64_t j, int64_t begin, int64_t end, column_parts *column) {
    for (int part = 0; part < GG_SPLIT_PARTS; ++part)
        for (int64_t l = begin; l < end; ++l) column->part[part][l - begin] = column_part(p, j, l, part);
}

/* Terms [begin, end) of an element of row i. */
static float element(const gg_split_product *p, int64_t i, const column_parts *column, int64_t begin, int64_t end,
                     float sum) {
    for (int64_t step = begin; step < end; step += GG_SPLIT_TERMS)
        for (int k = 0; k < 6; ++k) {
            const uint16_t *a = p->a + i / GG_SPLIT_SIDE * p->a_group + step * GG_SPLIT_PARTS * GG_SPLIT_SIDE +
                                parts_a[k] * GG_SPLIT_TILE;
            const float *b = column->part[parts_b[k]] + step - begin;
            float first = 0, second = 0; /* of the pairs; products of bfloat16 are exact */
            for (int64_t l = 0; l < GG_SPLIT_SIDE; ++l) {
                const uint16_t *x = a + place_of(i % GG_SPLIT_SIDE, l, false);
                first += widen_exactly(x[0]) * b[l];
                second += widen_exactly(x[1]) * b[l + GG_SPLIT_SIDE];
            }
            sum += first + second;
        }
    return sum;
}

static void multiply_scalar(const gg_split_product *p) {
    const int64_t whole = (p->terms + GG_SPLIT_TERMS - 1) / GG_SPLIT_TERMS * GG_SPLIT_TERMS; /* behind: zeros */
    for (int64_t j = 0; j < p->n; ++j)
        for (int64_t first = 0, end; first < whole; first = end) {
            column_parts column;
            end = first + GG_SPLIT_SUM < whole ? first + GG_SPLIT_SUM : whole;
            read_column(p, j, first, end, &column);
            for (int64_t i = 0; i < p->m; ++i) {
                float *c = p->c + i * p->c_row + j;
                const float start = p->bias != NULL ? p->bias[j] : p->row_bias != NULL ? p->row_bias[i] : 0;
                const bool add = p->add || first > 0;
                const float sum = element(p, i, &column, first, end, add ? 0 : start);
                *c = add ? *c + sum : sum;
                if (p->relu && end == whole && *c < 0) *c = 0;
            }
        }
}

const gg_split_kernels gg_split_kernels_scalar = {pack_rows_scalar, pack_cols_scalar, order_cols_scalar,
                                                  multiply_scalar};
