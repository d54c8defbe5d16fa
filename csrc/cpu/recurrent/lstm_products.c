/* The LSTM's products with its recurrent weights, of three kinds:
 * - multiply-adds, with the weights in panels;
 * - split products (cpu/gemm/split_kernels.h), with the weights ordered as whole tiles; a position's rows are split
 *   once;
 * - paired products (cpu/gemm/paired_kernels.h), with the weights in groups; each thread packs the rows. */
#include <string.h>

#include "base/parallel.h"
#include "cpu/gemm/sgemm_paired.h"
#include "cpu/recurrent/lstm_private.h"

/* Min batch and units of split products: fewer leave most of a tile empty; paired products are then no faster. */
#define SPLIT_BATCH 12
#define SPLIT_UNITS 32
#define PAIRED_BATCH 8
#define PAIRED_UNITS 48

static const float *recurrent_weights(const gg_lstm_layer *l) {
    return gg_lstm_parameter(&l->op->head, l->args, l->number, GG_LSTM_WEIGHT_HH);
}

static size_t no_floats(const gg_lstm_op *op) {
    (void)op;
    return 0;
}

/* A thread's units of each gate. With all units they are one run of columns, otherwise one run in each gate. */
typedef struct unit_pieces {
    int64_t count, columns;
} unit_pieces;

static unit_pieces pieces_of(const gg_lstm_op *op, const gg_lstm_share *share) {
    const int64_t hidden = op->hidden, units = share->units_end - share->unit;
    return units == hidden ? (unit_pieces){1, 4 * hidden} : (unit_pieces){4, units};
}

/* ---- by multiply-adds ---- */

static int64_t panel_unit_grain(const gg_lstm_op *op) { return op->kernels->panel; }

/* Floats of the gates' panels, H terms each, and of the states' panels, 4H terms each. */
static size_t panel_packed_floats(const gg_lstm_op *op, bool forward) {
    const int64_t hidden = op->hidden, gates = 4 * hidden, panel = op->kernels->panel;
    return (size_t)(forward ? gg_block_count(gates, panel) * panel * hidden
                            : gg_block_count(hidden, panel) * panel * gates);
}

static size_t panel_rows_floats(const gg_lstm_op *op, bool training) {
    return (size_t)(op->batch * (training ? op->gate_row : op->state_row));
}

static void panel_pack(const gg_lstm_layer *l, bool forward, int thread, int threads) {
    const gg_lstm_op *op = l->op;
    const int64_t hidden = op->hidden, gates = 4 * hidden, panel = op->kernels->panel;
    const int64_t n = forward ? gates : hidden, k = forward ? hidden : gates;
    size_t begin, end;
    gg_parallel_split((size_t)n, (size_t)panel, thread, threads, &begin, &end);
    if (begin == end) return;
    op->kernels->pack_panels((int64_t)(end - begin), k, recurrent_weights(l) + (int64_t)begin * (forward ? hidden : 1),
                             hidden, forward, l->packed + (int64_t)begin * k, k * panel);
}

/* Address of the copy for position t. */
static float *rows_of(const gg_lstm_layer *l, int64_t t, int64_t row) { return l->rows + t % 2 * l->op->batch * row; }

static void copy_first(const gg_lstm_layer *l, int64_t begin, int64_t end) {
    const gg_lstm_op *op = l->op;
    for (int64_t n = begin; n < end; ++n)
        memcpy(rows_of(l, 0, op->state_row) + n * op->state_row, l->first + 2 * n * op->hidden,
               (size_t)op->hidden * sizeof(float));
}

static void copy_states(const gg_lstm_layer *l, int64_t t, const gg_lstm_share *share) {
    const gg_lstm_op *op = l->op;
    float *next = rows_of(l, t + 1, op->state_row);
    const size_t bytes = (size_t)(share->units_end - share->unit) * sizeof(float);
    for (int64_t n = share->sample; n < share->samples_end; ++n)
        memcpy(next + n * op->state_row + share->unit, l->states + (n * op->positions + t) * op->hidden + share->unit,
               bytes);
}

static void copy_errors(const gg_lstm_layer *l, int64_t t, const gg_lstm_share *share) {
    const gg_lstm_op *op = l->op;
    const int64_t hidden = op->hidden, units = share->units_end - share->unit;
    float *errors = rows_of(l, t, op->gate_row);
    for (int64_t n = share->sample; n < share->samples_end; ++n)
        for (int64_t i = 0; i < 4; ++i) {
            const int64_t column = i * hidden + share->unit;
            memcpy(errors + n * op->gate_row + column, l->gates + (n * op->positions + t) * op->gate_row + column,
                   (size_t)units * sizeof(float));
        }
}

static void panel_gates(const gg_lstm_layer *l, int64_t t, const gg_lstm_share *share) {
    const gg_lstm_op *op = l->op;
    const int64_t hidden = op->hidden;
    const unit_pieces all = pieces_of(op, share);
    for (int64_t i = 0; i < all.count; ++i) {
        const int64_t column = (t % 2 == 0 ? i : all.count - 1 - i) * hidden + share->unit;
        const gg_panels product = {.m = share->samples_end - share->sample,
                                   .n = all.columns,
                                   .k = hidden,
                                   .a = rows_of(l, t, op->state_row) + share->sample * op->state_row,
                                   .a_row = op->state_row,
                                   .b = l->packed + column * hidden,
                                   .b_panel = hidden * op->kernels->panel,
                                   .c = l->gates + (share->sample * op->positions + t) * op->gate_row + column,
                                   .c_row = op->positions * op->gate_row,
                                   .add = true,
                                   .far = 4 * hidden * hidden > GG_LSTM_LARGE_WEIGHTS,
                                   .downwards = t % 2 != 0};
        op->kernels->panels(&product);
    }
}

static void panel_errors(const gg_lstm_layer *l, int64_t t, const gg_lstm_share *share) {
    const gg_lstm_op *op = l->op;
    const int64_t hidden = op->hidden, gates = 4 * hidden;
    const gg_panels product = {.m = share->samples_end - share->sample,
                               .n = share->units_end - share->unit,
                               .k = gates,
                               .a = rows_of(l, t + 1, op->gate_row) + share->sample * op->gate_row,
                               .a_row = op->gate_row,
                               .b = l->packed + share->unit * gates,
                               .b_panel = gates * op->kernels->panel,
                               .c = l->later + share->sample * hidden + share->unit,
                               .c_row = hidden,
                               .far = gates * hidden > GG_LSTM_LARGE_WEIGHTS,
                               .downwards = t % 2 != 0};
    op->kernels->panels(&product);
}

static const gg_lstm_products by_panels = {
    .unit_grain = panel_unit_grain,
    .sample_grain = 1,
    .packed_floats = panel_packed_floats,
    .rows_floats = panel_rows_floats,
    .own_floats = no_floats,
    .pack = panel_pack,
    .keep_first = copy_first,
    .gates = panel_gates,
    .keep_states = copy_states,
    .errors = panel_errors,
    .keep_errors = copy_errors,
};

/* ---- split products ---- */

static int64_t split_unit_grain(const gg_lstm_op *op) {
    (void)op;
    return 2 * GG_SPLIT_SIDE;
}

static size_t split_packed_floats(const gg_lstm_op *op, bool forward) {
    const int64_t hidden = op->hidden;
    return (size_t)(forward ? 4 * gg_split_ordered(hidden, hidden) : gg_split_ordered(hidden, 4 * hidden));
}

static size_t split_rows_floats(const gg_lstm_op *op, bool training) {
    return (size_t)gg_split_packed(op->batch, (training ? 4 : 1) * op->hidden) / 2;
}

/* Orders each gate's H columns of H terms, or the H columns of 4H terms. */
static void split_order(const gg_lstm_layer *l, bool forward, int thread, int threads) {
    const gg_lstm_op *op = l->op;
    const int64_t hidden = op->hidden, terms = forward ? hidden : 4 * hidden;
    size_t begin, end;
    gg_parallel_split((size_t)hidden, 2 * GG_SPLIT_SIDE, thread, threads, &begin, &end);
    for (int64_t i = 0; i < (forward ? 4 : 1) && begin < end; ++i) {
        const float *weights = recurrent_weights(l) + i * hidden * hidden;
        const gg_split_pack pack = {.count = (int64_t)(end - begin),
                                    .terms = terms,
                                    .from = weights + (int64_t)begin * (forward ? hidden : 1),
                                    .step = hidden,
                                    .across = !forward,
                                    .ordered = l->packed + i * gg_split_ordered(hidden, hidden) +
                                               gg_split_ordered((int64_t)begin, terms)};
        op->split->order_cols(&pack);
    }
}

/* Address of the split rows for position t; `sample` is a multiple of 16. */
static uint16_t *tiles_of(const gg_lstm_layer *l, int64_t t, int64_t terms, int64_t sample) {
    uint16_t *tiles = (uint16_t *)l->rows + t % 2 * gg_split_packed(l->op->batch, terms);
    return tiles + gg_split_packed(sample, terms);
}

/* Splits terms [first, first + count) of samples [sample, end), `step` apart. `first` is a multiple of 32. */
static void split_samples(const gg_lstm_layer *l, int64_t t, int64_t terms, int64_t sample, int64_t end,
                          const float *from, int64_t step, int64_t first, int64_t count) {
    for (int64_t n = sample; n < end; n += GG_SPLIT_SIDE) {
        const gg_split_pack pack = {.count = end - n < GG_SPLIT_SIDE ? end - n : GG_SPLIT_SIDE,
                                    .terms = count,
                                    .from = from + (n - sample) * step,
                                    .step = step,
                                    .out = tiles_of(l, t, terms, n) + gg_split_group(first)};
        l->op->split->pack_rows(&pack);
    }
}

static void split_first(const gg_lstm_layer *l, int64_t begin, int64_t end) {
    const int64_t hidden = l->op->hidden;
    split_samples(l, 0, hidden, begin, end, l->first + 2 * begin * hidden, 2 * hidden, 0, hidden);
}

static void split_states(const gg_lstm_layer *l, int64_t t, const gg_lstm_share *share) {
    const int64_t hidden = l->op->hidden, positions = l->op->positions;
    const float *own = l->states + (share->sample * positions + t) * hidden + share->unit;
    split_samples(l, t + 1, hidden, share->sample, share->samples_end, own, positions * hidden, share->unit,
                  share->units_end - share->unit);
}

static void split_errors_of_gates(const gg_lstm_layer *l, int64_t t, const gg_lstm_share *share) {
    const gg_lstm_op *op = l->op;
    const int64_t hidden = op->hidden;
    const unit_pieces all = pieces_of(op, share);
    const float *errors = l->gates + (share->sample * op->positions + t) * op->gate_row;
    for (int64_t i = 0; i < all.count; ++i) {
        const int64_t column = i * hidden + share->unit;
        split_samples(l, t, 4 * hidden, share->sample, share->samples_end, errors + column,
                      op->positions * op->gate_row, column, all.columns);
    }
}

/* Sums lie close together; the cells' kernel adds them to the gates. */
static void split_gates(const gg_lstm_layer *l, int64_t t, const gg_lstm_share *share) {
    const gg_lstm_op *op = l->op;
    const int64_t hidden = op->hidden;
    for (int64_t i = 0; i < 4; ++i) {
        const int64_t gate = t % 2 == 0 ? i : 3 - i;
        const gg_split_product product = {.m = share->samples_end - share->sample,
                                          .n = share->units_end - share->unit,
                                          .terms = hidden,
                                          .a = tiles_of(l, t, hidden, share->sample),
                                          .a_group = gg_split_group(hidden),
                                          .ordered = l->packed + gate * gg_split_ordered(hidden, hidden) +
                                                     gg_split_ordered(share->unit, hidden),
                                          .c = l->sums + share->sample * op->gate_row + gate * hidden + share->unit,
                                          .c_row = op->gate_row,
                                          .downwards = t % 2 != 0};
        op->split->multiply(&product);
    }
}

static void split_errors(const gg_lstm_layer *l, int64_t t, const gg_lstm_share *share) {
    const gg_lstm_op *op = l->op;
    const int64_t hidden = op->hidden, gates = 4 * hidden;
    const gg_split_product product = {.m = share->samples_end - share->sample,
                                      .n = share->units_end - share->unit,
                                      .terms = gates,
                                      .a = tiles_of(l, t + 1, gates, share->sample),
                                      .a_group = gg_split_group(gates),
                                      .ordered = l->packed + gg_split_ordered(share->unit, gates),
                                      .c = l->later + share->sample * hidden + share->unit,
                                      .c_row = hidden,
                                      .downwards = t % 2 != 0};
    op->split->multiply(&product);
}

static const gg_lstm_products by_split = {
    .apart = true,
    .unit_grain = split_unit_grain,
    .sample_grain = GG_SPLIT_SIDE,
    .packed_floats = split_packed_floats,
    .rows_floats = split_rows_floats,
    .own_floats = no_floats,
    .pack = split_order,
    .keep_first = split_first,
    .gates = split_gates,
    .keep_states = split_states,
    .errors = split_errors,
    .keep_errors = split_errors_of_gates,
};

/* ---- paired products: of the weights a part of the terms follows the other, with all groups of columns ---- */

static int64_t paired_unit_grain(const gg_lstm_op *op) {
    (void)op;
    return GG_PAIRED_LANES;
}

static size_t paired_packed_floats(const gg_lstm_op *op, bool forward) {
    const int64_t hidden = op->hidden, gates = 4 * hidden;
    return (size_t)(forward ? gg_paired_packed(gates, hidden) : gg_paired_packed(hidden, gates));
}

/* Rows of all samples in one part of the terms. */
static size_t paired_own_floats(const gg_lstm_op *op) {
    const int64_t states = gg_paired_part_step(op->batch, op->hidden),
                  errors = gg_paired_part_step(op->batch, 4 * op->hidden);
    return (size_t)(states > errors ? states : errors);
}

static void paired_pack(const gg_lstm_layer *l, bool forward, int thread, int threads) {
    const int64_t hidden = l->op->hidden;
    const gg_packed_side side = {.count = forward ? 4 * hidden : hidden,
                                 .terms = forward ? hidden : 4 * hidden,
                                 .from = recurrent_weights(l),
                                 .step = hidden,
                                 .across = !forward,
                                 .out = l->packed};
    size_t begin, end;
    gg_parallel_split((size_t)side.count, GG_PAIRED_LANES, thread, threads, &begin, &end);
    gg_paired_products.pack(l->op->device->isa, &side, (int64_t)begin, (int64_t)end);
}

/* Multiplies the thread's samples, rows of `terms`, by some of n columns. In each piece these are the thread's units;
 * pieces are H apart. c: column 0 of the first sample. */
typedef struct paired_rows {
    const float *rows;
    int64_t row, terms, n;
    unit_pieces pieces;
    float *c;
    int64_t c_row;
    bool add;
} paired_rows;

static void paired_multiply_rows(const gg_lstm_layer *l, const gg_lstm_share *share, const paired_rows *it) {
    const gg_lstm_op *op = l->op;
    float *own = l->own + (size_t)share->thread * paired_own_floats(op);
    const int64_t samples = share->samples_end - share->sample;
    for (int64_t part = 0; part < gg_paired_parts(it->terms); ++part) {
        const int64_t first = gg_paired_part(it->terms, part), terms = gg_paired_part(it->terms, part + 1) - first;
        op->paired->pack(&(gg_paired_pack){.count = samples,
                                           .terms = terms,
                                           .from = it->rows + share->sample * it->row + first,
                                           .step = it->row,
                                           .out = own,
                                           .group = gg_paired_group(terms)});
        for (int64_t i = 0; i < it->pieces.count; ++i) {
            const int64_t column = i * op->hidden + share->unit;
            const gg_paired_product product = {.m = samples,
                                               .n = it->pieces.columns,
                                               .terms = terms,
                                               .a = own,
                                               .b = l->packed + part * gg_paired_part_step(it->n, it->terms) +
                                                    column / GG_PAIRED_LANES * gg_paired_group_step(it->terms),
                                               .a_group = gg_paired_group(terms),
                                               .b_group = gg_paired_group_step(it->terms),
                                               .c = it->c + column,
                                               .c_row = it->c_row,
                                               .add = it->add || part > 0};
            op->paired->multiply(&product);
        }
    }
}

static void paired_gates(const gg_lstm_layer *l, int64_t t, const gg_lstm_share *share) {
    const gg_lstm_op *op = l->op;
    paired_multiply_rows(l, share,
                         &(paired_rows){.rows = rows_of(l, t, op->state_row),
                                        .row = op->state_row,
                                        .terms = op->hidden,
                                        .n = 4 * op->hidden,
                                        .pieces = pieces_of(op, share),
                                        .c = l->gates + (share->sample * op->positions + t) * op->gate_row,
                                        .c_row = op->positions * op->gate_row,
                                        .add = true});
}

static void paired_errors(const gg_lstm_layer *l, int64_t t, const gg_lstm_share *share) {
    const gg_lstm_op *op = l->op;
    paired_multiply_rows(l, share,
                         &(paired_rows){.rows = rows_of(l, t + 1, op->gate_row),
                                        .row = op->gate_row,
                                        .terms = 4 * op->hidden,
                                        .n = op->hidden,
                                        .pieces = {1, share->units_end - share->unit},
                                        .c = l->later + share->sample * op->hidden,
                                        .c_row = op->hidden});
}

static const gg_lstm_products by_pairs = {
    .unit_grain = paired_unit_grain,
    .sample_grain = 1,
    .packed_floats = paired_packed_floats,
    .rows_floats = panel_rows_floats,
    .own_floats = paired_own_floats,
    .pack = paired_pack,
    .keep_first = copy_first,
    .gates = paired_gates,
    .keep_states = copy_states,
    .errors = paired_errors,
    .keep_errors = copy_errors,
};

void gg_lstm_choose_products(gg_lstm_op *op) {
    const gg_isa isa = op->device->isa;
    if (op->batch >= SPLIT_BATCH && op->hidden >= SPLIT_UNITS) op->split = gg_cpu_kernels_for(isa)->split;
    if (op->batch >= PAIRED_BATCH && op->hidden >= PAIRED_UNITS) op->paired = gg_paired_kernels_for(isa);
    op->products = op->split != NULL ? &by_split : op->paired != NULL ? &by_pairs : &by_panels;
}
