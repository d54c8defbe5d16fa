/* Convolution with 3 x 3 or 5 x 5 windows, stride 1, by Winograd's method. Products for a tile of outputs:
 * - F(4x4,3x3): 36 instead of 144;
 * - F(6x6,3x3): 64 instead of 324;
 * - F(2x2,3x3): 16 instead of 36;
 * - F(2x2,5x5): 36 instead of 100;
 * - F(4x4,5x5): 64 instead of 400.
 *
 * Tiles of the input are transformed to places (V). The weights are transformed once for all tiles. At each place the
 * output's (M) is a matrix product over the channels; then the output is transformed back. Backward data uses the
 * weights rotated by 180 degrees and transposed. The weight gradient at each place is a product over the tiles, of the
 * input's places and the output gradient's. The sum is transformed back once at the end.
 *
 * Activations lie BATCH_LAST, or CHANNELS16 if offered. A unit is a vector of GG_LANES in each plane of an image. In
 * BATCH_LAST planes are channels, and units are tiles of sixteen samples. In CHANNELS16 planes are blocks of sixteen
 * channels, and units are tiles of each sample. Units are computed in blocks, so that their places stay in the L2
 * cache. In BATCH_LAST a batch that fits in the lanes computed at a time has narrow units without padding lanes.
 *
 * Errors are larger than those of direct sums: tests/test_winograd.py has their bounds. */
#include <string.h>

#include "base/memory.h"
#include "base/parallel.h"
#include "cpu/conv/winograd_kernels.h"
#include "cpu/gemm/gemm_kernels.h"
#include "cpu/kernels.h"
#include "cpu/native.h"
#include "ops/backend.h"

/* Bytes of the places of a block of units. Small, because transforms write to all places in turn, each on its own page
 * in large blocks. With many channels blocks are larger, to fill the rows of a product. */
#define BLOCK_BYTES (128 * 1024)
/* Bytes of a block's places for the weight gradient. The ends of blocks fix the bits of sums, so they do not depend on
 * the number of threads. Every block reads and writes all sums. Its operands are therefore twice as large as the sums,
 * with MIN_COLUMNS/2 to MIN_COLUMNS columns. */
#define GRADIENT_BYTES (512 * 1024)
/* Units are cut into parts with their own sums, so that threads need not wait for each other. The number of parts is a
 * multiple of MIN_PARTS. All sums have at most SUMS_CACHED bytes and 1/SUMS_SHARE of the operands' bytes, and at most
 * SUMS_BYTES. Otherwise there is one part. */
#define SUMS_CACHED (7 * 256 * 1024)
#define SUMS_SHARE 16
#define SUMS_BYTES (8 * 1024 * 1024)
#define MIN_PARTS 4
#define MAX_PARTS 8
/* Tiles of single planes that are prefetched. */
#define TILES_AHEAD 4
/* Max channels for which a unit's channels lie on few pages at any distance of its blocks. Adjacent units then do not
 * share cache sets. */
#define FEW_CHANNELS 64
/* Min columns of a block if the transformed weights are much larger than caches, because each block reads all of them.
 * Also the max columns of a gradient block chosen by the size of its sums. */
#define MIN_COLUMNS 128
#define LARGE_WEIGHTS (4 * 1024 * 1024)

/* One pass from images to images. */
typedef struct wino_walk {
    int64_t source[2], target[2], padding[2], tiles[2];
    int64_t terms, rows;  /* channels: source, target */
    int64_t units, block; /* max units in a block */
    int64_t panel;        /* columns of a panel in products */
    bool by_blocks;       /* CHANNELS16: V is [block of channels][unit][channel]; false: [unit][channel] */
    int64_t unit_floats;  /* CHANNELS16: of V */
    int64_t weights;      /* floats of prepared weights at each place */
} wino_walk;

typedef struct winograd_op {
    gg_op op;
    gg_device *device;
    const gg_winograd_kernels *kernels;
    const gg_gemm_kernels *gemm;
    void (*add)(size_t n, const float *a, const float *b, float *out);
    int threads, outputs, taps, places; /* taps: of the window, along one axis */
    bool channels;                      /* CHANNELS16 */
    int64_t lanes, batch;               /* BATCH_LAST: padded batch */
    int64_t width;                      /* floats of a unit in a plane: GG_LANES, or fewer */
    int64_t in, out;                    /* channels */
    wino_walk forward, data;
    size_t bias;          /* CHANNELS16: where the padded bias is prepared */
    size_t thread_floats; /* scratch of a thread in forward and data */
    /* Gradient of the weights. */
    int64_t units, parts;                /* parts of the units, each with its own sums */
    int64_t gradient_block;              /* max units of a block */
    int64_t x_step, dy_step;             /* floats between channels (BATCH_LAST) or units (CHANNELS16) of the places */
    int64_t turned_step;                 /* BATCH_LAST: distance between rows of the input's transposed places */
    int64_t sum_step;                    /* between rows of the sums at a place: out x in, CHANNELS16: in x out */
    size_t operand_floats;               /* of the places of a block */
    size_t places_at, sum_at, turned_at; /* in scratch, floats */
} winograd_op;

typedef struct wino_job {
    const winograd_op *op;
    const gg_op_args *args;
    const wino_walk *walk;
    bool forward;
    int64_t part, block; /* of the weight gradient, if all threads compute one */
} wino_job;

static int64_t up_to(int64_t n, int64_t multiple) { return (n + multiple - 1) / multiple * multiple; }
static int64_t at_most(int64_t n, int64_t most) { return n < most ? n : most; }

/* Weight gradient: floats between rows of adjacent channels. */
static int64_t gradient_step(int64_t channels) {
    return channels <= FEW_CHANNELS ? up_to(channels, GG_LANES) : gg_odd_lines(channels);
}

/* ------------------------------------------------------------------------------------------------ geometry */

static int clamped(int64_t n, int64_t most) { return (int)(n < 0 ? 0 : n > most ? most : n); }

/* Place of a unit: its sample (CHANNELS16) or sixteen samples (BATCH_LAST), and its tile. */
typedef struct wino_place {
    int64_t samples, tile[2];
} wino_place;

static wino_place place_of(const winograd_op *op, const int64_t tiles[2], int64_t unit) {
    const int64_t area = tiles[0] * tiles[1], groups = op->lanes / GG_LANES;
    const int64_t tile = op->channels ? unit % area : unit / groups;
    return (wino_place){.samples = op->channels ? unit / area : unit % groups,
                        .tile = {tile / tiles[1], tile % tiles[1]}};
}

/* Moves to the next unit without divisions, which would take a large part of the transform's time. */
static void move_on(const winograd_op *op, const int64_t tiles[2], wino_place *place) {
    if (!op->channels && ++place->samples < op->lanes / GG_LANES) return;
    if (!op->channels) place->samples = 0;
    if (++place->tile[1] < tiles[1]) return;
    place->tile[1] = 0;
    if (++place->tile[0] < tiles[0] || !op->channels) return;
    place->tile[0] = 0;
    ++place->samples;
}

/* Tiles of successive units, of a walk's source or target, as read by the kernels. Fields are set one by one, in place.
 * A copy would use vector loads, which wait until earlier, narrower stores have left the store buffer. */
typedef struct wino_series {
    const winograd_op *op;
    const wino_walk *walk;
    const int64_t *size; /* of the image */
    int64_t padding[2];
    int across;
    float *image;
    int64_t samples_step;    /* floats from a sample, or sixteen, to the next */
    wino_place place, ahead; /* places of the next tile, and of the next tile to prefetch */
    int64_t left;            /* units after `ahead` */
    gg_winograd_tiles tiles;
} wino_series;

static float *image_at(const wino_series *s, const wino_place *place) {
    const int64_t row = place->tile[0] * s->op->outputs - s->padding[0];
    const int64_t column = place->tile[1] * s->op->outputs - s->padding[1];
    return s->image + (place->samples * s->samples_step + row * s->tiles.row + column * s->tiles.pixel);
}

/* Series that begins at `unit`; last: end of the units. The caller sets the places. */
static wino_series series_from(const winograd_op *op, const wino_walk *walk, bool source, const float *image,
                               int64_t unit, int64_t last) {
    const int64_t channels = source ? walk->terms : walk->rows, *size = source ? walk->source : walk->target;
    const int64_t pixel = op->channels ? GG_LANES : op->lanes, plane = size[0] * size[1] * pixel;
    const int64_t planes = op->channels ? gg_block_count(channels, GG_LANES) : channels;
    wino_series s = {.op = op,
                     .walk = walk,
                     .size = size,
                     .padding = {source ? walk->padding[0] : 0, source ? walk->padding[1] : 0},
                     .across = source ? op->outputs + op->taps - 1 : op->outputs,
                     .image = (float *)(uintptr_t)image,
                     .samples_step = op->channels ? planes * plane : GG_LANES,
                     .place = place_of(op, walk->tiles, unit),
                     .tiles = {.outputs = op->outputs,
                               .taps = op->taps,
                               .count = planes,
                               .lanes = (int)op->width,
                               .plane = plane,
                               .row = size[1] * pixel,
                               .pixel = pixel}};
    const int64_t ahead = at_most(unit + gg_block_count(TILES_AHEAD, planes), last - 1);
    s.ahead = place_of(op, walk->tiles, ahead);
    s.left = last - 1 - ahead;
    return s;
}

/* Prefetches the last unit again if there are no more. */
static void series_next(wino_series *s) {
    gg_winograd_tiles *tiles = &s->tiles;
    for (int axis = 0; axis < 2; ++axis) {
        const int64_t at = s->place.tile[axis] * s->op->outputs - s->padding[axis];
        tiles->begin[axis] = clamped(-at, s->across);
        tiles->end[axis] = clamped(s->size[axis] - at, s->across);
    }
    tiles->image = image_at(s, &s->place);
    tiles->ahead = image_at(s, &s->ahead);
    move_on(s->op, s->walk->tiles, &s->place);
    if (s->left-- > 0) move_on(s->op, s->walk->tiles, &s->ahead);
}

/* ------------------------------------------------------------------------------------------ forward and data */

/* BATCH_LAST: units are the columns of panels, [panel][channel][column]; returns the units of a panel. CHANNELS16:
 * units are the rows of products. */
static int64_t units_of_panel(const winograd_op *op, const wino_walk *walk) {
    return op->channels ? 1 : walk->panel / op->width;
}

static int64_t panels_of(const winograd_op *op, const wino_walk *walk, int64_t units) {
    return gg_block_count(units * op->width, walk->panel);
}

/* Floats of a block of `units` units at one place, rounded up to an odd number of cache lines. CHANNELS16: M is [block
 * of channels][unit][channel]; V too if walk->by_blocks. */
static int64_t source_floats(const winograd_op *op, const wino_walk *walk, int64_t units) {
    if (op->channels) return gg_odd_lines(units * walk->unit_floats);
    return gg_odd_lines(panels_of(op, walk, units) * walk->terms * walk->panel);
}

static int64_t target_floats(const winograd_op *op, const wino_walk *walk, int64_t units) {
    if (op->channels) return gg_odd_lines(up_to(walk->rows, walk->panel) * units);
    return gg_odd_lines(panels_of(op, walk, units) * walk->rows * walk->panel);
}

/* Series of a block of units, from `unit` on. */
static wino_series input_series(const wino_job *j, int64_t unit, int64_t units, int64_t last, int64_t v_step) {
    const float *image = j->forward ? j->args->input[0] : j->args->grad_output;
    wino_series s = series_from(j->op, j->walk, true, image, unit, last);
    s.tiles.place_step = v_step;
    s.tiles.step = !j->op->channels ? j->walk->panel : j->walk->by_blocks ? units * GG_LANES : GG_LANES;
    return s;
}

static wino_series output_series(const wino_job *j, int64_t unit, int64_t units, int64_t last, int64_t m_step) {
    const winograd_op *op = j->op;
    const float *image = j->forward ? j->args->output : j->args->grad_input[0];
    wino_series s = series_from(op, j->walk, false, image, unit, last);
    gg_winograd_tiles *tiles = &s.tiles;
    tiles->place_step = m_step;
    tiles->step = op->channels ? units * GG_LANES : j->walk->panel;
    tiles->bias_vectors = op->channels;
    tiles->bias_step = op->channels ? GG_LANES : 1;
    tiles->relu = j->forward && op->op.desc.activation == GG_ACTIVATION_RELU;
    if (j->forward && op->op.desc.bias)
        tiles->bias =
            op->channels ? (const float *)j->args->prepared + op->bias : j->args->parameter[GG_PARAMETER_BIAS];
    return s;
}

/* CHANNELS16: floats of V from a unit to the next. */
static int64_t unit_step(const wino_walk *walk) { return walk->by_blocks ? GG_LANES : walk->unit_floats; }

/* BATCH_LAST: address of a block's unit `number`, with `channels` channels; places: address of unit 0. */
static float *in_panels(const winograd_op *op, const wino_walk *walk, int64_t channels, int64_t number, float *places) {
    const int64_t each = units_of_panel(op, walk);
    return places + number / each * channels * walk->panel + number % each * op->width;
}

/* Computes units [begin, end); `last` is the end of the thread's units. */
static void walk_units(const wino_job *j, int64_t begin, int64_t end, int64_t last, float *scratch) {
    const winograd_op *op = j->op;
    const wino_walk *walk = j->walk;
    const int64_t units = end - begin, panel = walk->panel;
    const int64_t v_step = source_floats(op, walk, units), m_step = target_floats(op, walk, units);
    const float *weights = j->args->prepared;
    float *v = scratch, *m = v + op->places * v_step;
    wino_series input = input_series(j, begin, units, last, v_step);
    wino_series output = output_series(j, begin, units, last, m_step);
    for (int64_t u = begin; u < end; ++u) {
        series_next(&input);
        input.tiles.places =
            op->channels ? v + (u - begin) * unit_step(walk) : in_panels(op, walk, walk->terms, u - begin, v);
        op->kernels->input(&input.tiles);
    }
    gg_winograd_product product = {.terms = walk->terms,
                                   .panel = (int)panel,
                                   .y = m,
                                   .y_row = panel,
                                   .y_block = GG_LANES,
                                   .places = op->places,
                                   .y_place = m_step};
    if (op->channels) {
        product.rows = units;
        product.panels = gg_block_count(walk->rows, panel);
        product.scalars = v;
        product.scalars_place = v_step;
        product.scalar_row = unit_step(walk);
        product.scalar_block = walk->by_blocks ? units * GG_LANES : GG_LANES;
        product.x = weights;
        product.x_place = walk->weights;
        product.y_row = GG_LANES;
        product.y_panel = units * panel;
        product.y_block = units * GG_LANES;
    } else {
        product.rows = walk->rows;
        product.panels = panels_of(op, walk, units);
        product.scalars = weights;
        product.scalars_place = walk->weights;
        product.x = v;
        product.x_place = v_step;
        product.y_panel = walk->rows * panel;
    }
    product.x_panel = walk->terms * panel;
    op->kernels->product(&product);
    for (int64_t u = begin; u < end; ++u) {
        series_next(&output);
        output.tiles.places = op->channels ? m + (u - begin) * GG_LANES : in_panels(op, walk, walk->rows, u - begin, m);
        op->kernels->output(&output.tiles);
    }
}

static void wino_walk_part(void *context, int thread, int threads) {
    const wino_job *j = context;
    size_t begin, end;
    gg_parallel_split((size_t)j->walk->units, (size_t)units_of_panel(j->op, j->walk), thread, threads, &begin, &end);
    const int64_t units = (int64_t)(end - begin), blocks = gg_block_count(units, j->walk->block);
    float *scratch = (float *)j->args->scratch + (size_t)thread * j->op->thread_floats;
    const int64_t each = units_of_panel(j->op, j->walk);
    /* Whole panels in every block but the last. */
    for (int64_t b = 0, at = 0; b < blocks; ++b) {
        const int64_t next = at_most(up_to(gg_block_begin(units, blocks, b + 1), each), units);
        if (next > at) walk_units(j, (int64_t)begin + at, (int64_t)begin + next, (int64_t)end, scratch);
        at = next;
    }
}

static void wino_run(const winograd_op *op, const gg_op_args *args, bool forward, gg_parallel_fn part) {
    wino_job j = {.op = op, .args = args, .walk = forward ? &op->forward : &op->data, .forward = forward};
    gg_parallel_run(op->threads, part, &j);
}

/* ------------------------------------------------------------------------------------------------ weights */

/* BATCH_LAST: [place][block of rows][term][row]. CHANNELS16: [place][panel of rows][term][column], with zeros after the
 * last row. */
static void wino_prepare_part(void *context, int thread, int threads) {
    const wino_job *j = context;
    const winograd_op *op = j->op;
    const wino_walk *walk = j->walk;
    const int64_t all = op->taps * op->taps;
    const int64_t row_step = j->forward ? op->in * all : all, term_step = j->forward ? all : op->in * all;
    const int64_t terms = j->forward ? op->in : op->out, rows = j->forward ? op->out : op->in;
    const int64_t panel = walk->panel;
    const int64_t blocks = op->channels ? gg_block_count(rows, GG_LANES) : gg_block_count(rows, op->kernels->rows);
    float *to = j->args->prepared;
    size_t begin, end;
    gg_parallel_split((size_t)blocks, 1, thread, threads, &begin, &end);
    for (int64_t b = (int64_t)begin; b < (int64_t)end; ++b) {
        const int64_t r = op->channels ? b * GG_LANES : gg_block_begin(rows, blocks, b);
        const int64_t next = op->channels ? at_most(r + GG_LANES, rows) : gg_block_begin(rows, blocks, b + 1);
        const gg_winograd_weights weights = {
            .outputs = op->outputs,
            .taps = op->taps,
            .lanes = (int)(next - r),
            .stored = op->channels ? GG_LANES : (int)(next - r),
            .count = terms,
            .weights = (float *)(uintptr_t)j->args->parameter[GG_PARAMETER_WEIGHT] + r * row_step,
            .lane_step = row_step,
            .step = term_step,
            .places = to + (op->channels ? r / panel * walk->terms * panel + r % panel : r * terms),
            .place_step = walk->weights,
            .places_step = op->channels ? panel : next - r,
            .rotated = !j->forward};
        op->kernels->weights(&weights);
    }
}

static gg_status winograd_prepare(gg_op *head, const gg_op_args *args, gg_pass pass) {
    const winograd_op *op = (const winograd_op *)head;
    const bool forward = pass == GG_PASS_FORWARD;
    const wino_walk *walk = forward ? &op->forward : &op->data;
    if (walk->units == 0) return GG_OK;
    if (op->channels && head->desc.bias && forward) {
        float *bias = (float *)args->prepared + op->bias;
        memset(bias, 0, (size_t)up_to(op->out, GG_LANES) * sizeof(float));
        memcpy(bias, args->parameter[GG_PARAMETER_BIAS], (size_t)op->out * sizeof(float));
    }
    wino_run(op, args, forward, wino_prepare_part);
    return GG_OK;
}

static gg_status winograd_forward(gg_op *head, const gg_op_args *args) {
    wino_run((const winograd_op *)head, args, true, wino_walk_part);
    return GG_OK;
}

static gg_status winograd_backward_data(gg_op *head, const gg_op_args *args) {
    const winograd_op *op = (const winograd_op *)head;
    if (op->data.units > 0 && args->grad_input[0] != NULL) wino_run(op, args, false, wino_walk_part);
    return GG_OK;
}

/* --------------------------------------------------------------------------------------- gradient of weights */

/* BATCH_LAST: the activation's mask and the gradient of the bias, channel by channel. */
static void wino_mask_lanes_part(void *context, int thread, int threads) {
    const wino_job *j = context;
    size_t begin, end;
    gg_parallel_split((size_t)j->op->out, 1, thread, threads, &begin, &end);
    gg_native_mask_rows(j->op->gemm, &j->op->op, j->args, 0, (int64_t)begin, (int64_t)end);
}

static void wino_mask(wino_job *j) {
    const winograd_op *op = j->op;
    const bool relu = op->op.desc.activation == GG_ACTIVATION_RELU;
    if (!op->channels) {
        if (relu || op->op.desc.bias) gg_parallel_run(op->threads, wino_mask_lanes_part, j);
        return;
    }
    gg_native_mask_blocks(op->device, &op->op, j->args);
}

/* Floats of one place of the input, and of the output's gradient. */
static int64_t gradient_x_place(const winograd_op *op) {
    return gg_odd_lines(op->x_step * (op->channels ? op->gradient_block : op->in));
}
static int64_t gradient_dy_place(const winograd_op *op) {
    return gg_odd_lines(op->dy_step * (op->channels ? op->gradient_block : op->out));
}

static int64_t sum_rows(const winograd_op *op) { return op->channels ? op->in : op->out; }

static size_t sum_floats(const winograd_op *op) { return (size_t)(op->places * sum_rows(op) * op->sum_step); }

/* A block of units and its buffers. */
typedef struct wino_block {
    int64_t begin, end;
    float *x, *dy; /* places of the input, and of the output's gradient */
    float *turned; /* BATCH_LAST: room for one transposed place of the input */
    float *sums;   /* [place][row][column] */
    bool first;    /* sums are set, not added to */
} wino_block;

/* A thread computes whole parts, or all compute each block. */
static bool parts_for_threads(const winograd_op *op) { return op->parts >= op->threads; }

static int64_t part_begin(const winograd_op *op, int64_t part) { return gg_block_begin(op->units, op->parts, part); }

static int64_t blocks_of(const winograd_op *op, int64_t part) {
    return gg_block_count(part_begin(op, part + 1) - part_begin(op, part), op->gradient_block);
}

static wino_block block_of(const wino_job *j, int thread, int64_t part, int64_t number) {
    const winograd_op *op = j->op;
    float *scratch = j->args->scratch;
    float *places = scratch + op->places_at + (size_t)(parts_for_threads(op) ? thread : 0) * op->operand_floats;
    const int64_t from = part_begin(op, part), units = part_begin(op, part + 1) - from, blocks = blocks_of(op, part);
    return (wino_block){.begin = from + gg_block_begin(units, blocks, number),
                        .end = from + gg_block_begin(units, blocks, number + 1),
                        .x = places,
                        .dy = places + op->places * gradient_x_place(op),
                        .turned = scratch + op->turned_at + thread * op->gradient_block * op->width * op->turned_step,
                        .sums = scratch + op->sum_at + (size_t)part * sum_floats(op),
                        .first = number == 0};
}

/* Places of the units [begin, end) of a block. */
static void gradient_places(const wino_job *j, const wino_block *block, int64_t begin, int64_t end) {
    const winograd_op *op = j->op;
    if (begin >= end) return;
    wino_series input = series_from(op, j->walk, true, j->args->input[0], begin, end);
    wino_series error = series_from(op, j->walk, false, j->args->grad_output, begin, end);
    input.tiles.place_step = gradient_x_place(op);
    error.tiles.place_step = gradient_dy_place(op);
    input.tiles.step = op->channels ? GG_LANES : op->x_step;
    error.tiles.step = op->channels ? GG_LANES : op->dy_step;
    for (int64_t u = begin - block->begin; u < end - block->begin; ++u) {
        series_next(&input);
        series_next(&error);
        input.tiles.places = block->x + u * (op->channels ? op->x_step : op->width);
        error.tiles.places = block->dy + u * (op->channels ? op->dy_step : op->width);
        op->kernels->input(&input.tiles);
        op->kernels->gradient(&error.tiles);
    }
}

/* Sums at the places [begin, end) over the units of a block. */
static void gradient_products(const winograd_op *op, const wino_block *block, int64_t begin, int64_t end) {
    const int64_t units = block->end - block->begin, columns = units * op->width;
    for (int64_t p = begin; p < end; ++p) {
        const float *x = block->x + p * gradient_x_place(op), *dy = block->dy + p * gradient_dy_place(op);
        gg_multiply product = {.c = block->sums + p * sum_rows(op) * op->sum_step,
                               .c_row = op->sum_step,
                               .m = sum_rows(op),
                               .add = !block->first};
        if (op->channels) {
            product.n = op->out;
            product.k = units;
            product.a = x;
            product.a_row = 1;
            product.a_step = op->x_step;
            product.b = dy;
            product.b_row = op->dy_step;
        } else {
            op->gemm->transpose(op->in, columns, x, op->x_step, up_to(op->in, op->gemm->vector), block->turned,
                                op->turned_step);
            product.n = op->in;
            product.k = columns;
            product.a = dy;
            product.a_row = op->dy_step;
            product.a_step = 1;
            product.b = block->turned;
            product.b_row = op->turned_step;
        }
        op->gemm->multiply(&product, 0, gg_block_count(product.m, op->gemm->tile_rows));
    }
}

/* All threads compute the places of a block, then the sums. */
static void wino_gradient_places_part(void *context, int thread, int threads) {
    const wino_job *j = context;
    const wino_block block = block_of(j, thread, j->part, j->block);
    size_t begin, end;
    gg_parallel_split((size_t)(block.end - block.begin), 1, thread, threads, &begin, &end);
    gradient_places(j, &block, block.begin + (int64_t)begin, block.begin + (int64_t)end);
}

static void wino_gradient_products_part(void *context, int thread, int threads) {
    const wino_job *j = context;
    const wino_block block = block_of(j, thread, j->part, j->block);
    size_t begin, end;
    gg_parallel_split((size_t)j->op->places, 1, thread, threads, &begin, &end);
    gradient_products(j->op, &block, (int64_t)begin, (int64_t)end);
}

/* A thread computes whole parts, and waits for none. */
static void wino_gradient_part(void *context, int thread, int threads) {
    const wino_job *j = context;
    size_t begin, end;
    gg_parallel_split((size_t)j->op->parts, 1, thread, threads, &begin, &end);
    for (int64_t part = (int64_t)begin; part < (int64_t)end; ++part) {
        for (int64_t b = 0; b < blocks_of(j->op, part); ++b) {
            const wino_block block = block_of(j, thread, part, b);
            gradient_places(j, &block, block.begin, block.end);
            gradient_products(j->op, &block, 0, j->op->places);
        }
    }
}

/* Adds the parts' sums, and goes back from places to weights. */
static void wino_gradient_weights_part(void *context, int thread, int threads) {
    const wino_job *j = context;
    const winograd_op *op = j->op;
    const int64_t rows = sum_rows(op), columns = op->channels ? op->out : op->in;
    const int64_t all = op->taps * op->taps;
    const int64_t row_step = op->channels ? all : op->in * all, column_step = op->channels ? op->in * all : all;
    size_t begin, end;
    gg_parallel_split((size_t)rows, 1, thread, threads, &begin, &end);
    float *sums = block_of(j, thread, 0, 0).sums + (int64_t)begin * op->sum_step;
    for (int64_t p = 0; p < op->places; ++p) {
        float *at = sums + p * rows * op->sum_step;
        for (int64_t part = 1; part < op->parts; ++part)
            op->add((end - begin) * (size_t)op->sum_step, at, at + (size_t)part * sum_floats(op), at);
    }
    for (int64_t c = 0; begin < end && c < columns; c += GG_LANES) {
        const int lanes = (int)at_most(columns - c, GG_LANES);
        const gg_winograd_weights weights = {.outputs = op->outputs,
                                             .taps = op->taps,
                                             .lanes = lanes,
                                             .stored = lanes,
                                             .count = (int64_t)(end - begin),
                                             .weights = j->args->gradient[GG_PARAMETER_WEIGHT] +
                                                        (int64_t)begin * row_step + c * column_step,
                                             .lane_step = column_step,
                                             .step = row_step,
                                             .places = sums + c,
                                             .place_step = rows * op->sum_step,
                                             .places_step = op->sum_step};
        op->kernels->weight_gradient(&weights);
    }
}

static gg_status winograd_backward_weights(gg_op *head, const gg_op_args *args) {
    const winograd_op *op = (const winograd_op *)head;
    wino_job j = {.op = op, .args = args, .walk = &op->forward, .forward = true};
    wino_mask(&j);
    if (parts_for_threads(op)) {
        gg_parallel_run(op->threads, wino_gradient_part, &j);
    } else {
        for (j.part = 0; j.part < op->parts; ++j.part) {
            for (j.block = 0; j.block < blocks_of(op, j.part); ++j.block) {
                gg_parallel_run(op->threads, wino_gradient_places_part, &j);
                gg_parallel_run(op->threads, wino_gradient_products_part, &j);
            }
        }
    }
    gg_parallel_run(op->threads, wino_gradient_weights_part, &j);
    return GG_OK;
}

/* ------------------------------------------------------------------------------------------------ creating */

static const gg_op_class winograd_class = {.prepare = winograd_prepare,
                                           .forward = winograd_forward,
                                           .backward_weights = winograd_backward_weights,
                                           .backward_data = winograd_backward_data,
                                           .destroy = gg_native_op_free};

static int outputs_of(gg_algorithm algorithm) {
    return algorithm == GG_ALGORITHM_WINOGRAD6 ? 6 : algorithm == GG_ALGORITHM_WINOGRAD2 ? 2 : 4;
}

/* Number of units computed together: their places fill BLOCK_BYTES, unless that would read large weights too often. */
static int64_t choose_block(const winograd_op *op, const wino_walk *walk, int64_t units) {
    const int64_t each = units_of_panel(op, walk), columns = op->channels ? 1 : op->width;
    const int64_t unit = (walk->terms + walk->rows) * op->places * columns * (int64_t)sizeof(float);
    int64_t block = BLOCK_BYTES / unit;
    const int64_t least = walk->terms * walk->rows * op->places * (int64_t)sizeof(float) > LARGE_WEIGHTS
                              ? MIN_COLUMNS / columns
                              : 2 * op->kernels->rows / columns;
    if (block < least) block = least;
    block = up_to(block < 1 ? 1 : block, each);
    return at_most(block, up_to(units, each));
}

/* Columns of a panel. In CHANNELS16 at most a block of channels, if wide panels would have more zeros. */
static int64_t panel_of(const winograd_op *op, int64_t rows) {
    const int64_t wide = op->kernels->panel;
    return op->channels && up_to(rows, GG_LANES) < up_to(rows, wide) ? GG_LANES : wide;
}

/* run: the walk is made to run a pass, not only for its geometry. */
static void make_walk(winograd_op *op, bool forward, bool run, wino_walk *walk) {
    const gg_op_desc *desc = &op->op.desc;
    const int64_t *in = desc->input[0].size, *out = desc->output.size;
    walk->terms = forward ? op->in : op->out;
    walk->rows = forward ? op->out : op->in;
    for (int axis = 0; axis < 2; ++axis) {
        walk->source[axis] = forward ? in[1 + axis] : out[1 + axis];
        walk->target[axis] = forward ? out[1 + axis] : in[1 + axis];
        walk->padding[axis] =
            forward ? desc->conv.window.padding[axis] : op->taps - 1 - desc->conv.window.padding[axis];
        walk->tiles[axis] = gg_block_count(walk->target[axis], op->outputs);
    }
    if (!run) return;
    walk->units = walk->tiles[0] * walk->tiles[1] * (op->channels ? op->batch : op->lanes / GG_LANES);
    walk->panel = panel_of(op, walk->rows);
    /* Products with narrow panels have V by blocks only. */
    walk->by_blocks = walk->terms <= FEW_CHANNELS || walk->panel < op->kernels->panel;
    walk->unit_floats = walk->by_blocks ? up_to(walk->terms, GG_LANES) : gg_odd_lines(walk->terms);
    walk->weights =
        gg_odd_lines(op->channels ? up_to(walk->rows, walk->panel) * walk->terms : walk->rows * walk->terms);
    walk->block = choose_block(op, walk, walk->units);
    const size_t floats =
        (size_t)(op->places * (source_floats(op, walk, walk->block) + target_floats(op, walk, walk->block)));
    if (floats > op->thread_floats) op->thread_floats = floats;
}

/* unit: bytes of one; block: units. */
static int64_t choose_parts(const winograd_op *op, int64_t unit, int64_t block) {
    const int64_t sums = (int64_t)(sum_floats(op) * sizeof(float));
    int64_t parts = at_most(SUMS_CACHED + op->units * unit / SUMS_SHARE, SUMS_BYTES) / sums;
    parts = at_most(at_most(parts, op->units / block), MAX_PARTS) / MIN_PARTS * MIN_PARTS;
    return parts == 0 ? 1 : parts;
}

static void make_gradient(winograd_op *op, size_t *scratch) {
    const int64_t columns = op->channels ? 1 : op->width;
    const int64_t unit = (op->in + op->out) * op->places * columns * (int64_t)sizeof(float);
    const int64_t as_sums = 2 * op->in * op->out / (op->in + op->out);
    const int64_t least = as_sums < MIN_COLUMNS / 2 ? MIN_COLUMNS / 2 : at_most(as_sums, MIN_COLUMNS);
    int64_t block = GRADIENT_BYTES / unit;
    if (block < least / columns) block = least / columns;
    op->units = op->forward.tiles[0] * op->forward.tiles[1] * (op->channels ? op->batch : op->lanes / GG_LANES);
    op->sum_step = gradient_step(op->channels ? op->out : op->in);
    op->parts = choose_parts(op, unit, block);
    op->gradient_block = gg_block_count(op->units, op->parts * gg_block_count(op->units, op->parts * block));
    op->x_step = op->channels ? gradient_step(op->in) : gg_odd_lines(op->gradient_block * op->width);
    op->dy_step = op->channels ? gradient_step(op->out) : gg_odd_lines(op->gradient_block * op->width);
    op->turned_step = op->channels ? 0 : gg_odd_lines(op->in);
    op->operand_floats = (size_t)(op->places * (gradient_x_place(op) + gradient_dy_place(op)));
    size_t at = 0;
    op->places_at = at;
    at += (parts_for_threads(op) ? (size_t)op->threads : 1) * op->operand_floats;
    op->sum_at = at;
    at += (size_t)op->parts * sum_floats(op);
    op->turned_at = at;
    at += (size_t)(op->threads * op->gradient_block * op->width * op->turned_step);
    if (at > *scratch) *scratch = at;
}

gg_status gg_native_winograd_create(gg_device *device, const gg_op_desc *desc, gg_op **out) {
    gg_op *head = NULL;
    size_t scratch = 0;
    *out = NULL;
    const gg_winograd_kernels *kernels = gg_cpu_device_kernels(device)->winograd;
    const bool channels = desc->offered[0].layout == GG_LAYOUT_CHANNELS16;
    const gg_layout layout = channels ? GG_LAYOUT_CHANNELS16 : GG_LAYOUT_BATCH_LAST;
    if (!gg_conv_has_form(desc, layout, desc->algorithm))
        return gg_fail(
            GG_ERROR_UNSUPPORTED,
            "Winograd's convolution is for windows of 3 x 3 and padding up to 2, or of 5 x 5, padding up to 4 and "
            "tiles of up to 4 x 4 outputs, "
            "stride 1, dilation 1 and one group");
    GG_TRY(gg_native_op_create(desc, &winograd_class, sizeof(winograd_op), &head));
    winograd_op *op = (winograd_op *)head;
    op->device = device;
    op->kernels = kernels;
    op->gemm = gg_cpu_device_kernels(device)->gemm;
    op->add = gg_cpu_device_kernels(device)->elementwise->add;
    op->threads = device->threads;
    op->outputs = outputs_of(desc->algorithm);
    op->taps = (int)desc->conv.window.kernel[0];
    op->places = (op->outputs + op->taps - 1) * (op->outputs + op->taps - 1);
    op->channels = channels;
    op->batch = desc->batch;
    op->lanes = gg_lanes_padded(desc->batch);
    op->width = !op->channels && op->batch <= kernels->least ? kernels->least : GG_LANES;
    op->in = desc->input[0].size[0];
    op->out = desc->output.size[0];
    head->input[0].layout = head->output.layout = layout;
    const bool data = desc->training && desc->input_grad && gg_op_has_pass(desc, GG_PASS_DATA);
    const bool weights = desc->training && gg_op_has_pass(desc, GG_PASS_WEIGHTS);
    make_walk(op, true, gg_op_has_pass(desc, GG_PASS_FORWARD), &op->forward);
    if (data) make_walk(op, false, true, &op->data);
    op->bias = (size_t)(op->places * op->forward.weights);
    size_t prepared = op->bias;
    if (op->channels && desc->bias && op->forward.units > 0) prepared += (size_t)up_to(op->out, GG_LANES);
    if (prepared < (size_t)(op->places * op->data.weights)) prepared = (size_t)(op->places * op->data.weights);
    scratch = (size_t)op->threads * op->thread_floats;
    if (weights) make_gradient(op, &scratch);
    head->prepared_bytes = prepared * sizeof(float);
    head->scratch_bytes = scratch * sizeof(float);
    head->backward_needs_input = weights;
    head->backward_needs_output = weights && desc->activation == GG_ACTIVATION_RELU;
    *out = head;
    return GG_OK;
}
