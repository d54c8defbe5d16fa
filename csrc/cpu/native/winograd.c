/* Convolution with windows of 3 x 3 or 5 x 5, stride 1, by Winograd's method: F(4x4,3x3) has 36 products for the 144 of
 * a tile of 4 x 4 outputs, F(6x6,3x3) 64 for 324, F(2x2,3x3) 16 for 36, F(2x2,5x5) 36 for 100, F(4x4,5x5) 64 for 400.
 *
 * Tiles of the input are transformed to places, and so are the weights (prepared once for all tiles). At each place the
 * output's is a product of matrices over the channels, then the output is transformed back. Backward data is the same
 * with the weights turned by half a turn and transposed. The gradient of the weights is, at each place, a product over
 * the tiles of the places of the input and of the output's gradient, transformed back once at the end.
 *
 * It computes where activations lie BATCH_LAST, and in CHANNELS16 if that is offered. A unit is a vector of GG_LANES in
 * each plane of an image: in BATCH_LAST the planes are channels, and the units the tiles with sixteen samples each; in
 * CHANNELS16 planes are blocks of sixteen channels, and the units the tiles of each sample. Units are computed in
 * blocks, so that their places stay in the second-level cache. In BATCH_LAST a batch that fills no more of a vector
 * than kernels compute at a time has narrow units, without the lanes that are padding.
 *
 * Errors are larger than those of direct sums: tests/test_winograd.py has their bounds. */
#include <string.h>

#include "backend/backend.h"
#include "base/memory.h"
#include "base/parallel.h"
#include "cpu/gemm_kernels.h"
#include "cpu/native/native.h"
#include "cpu/winograd_kernels.h"

/* Bytes of the places of a block of units: small, because transforms write to all places in turn, each on a page of its
 * own if the block is large. Many channels have more, since a block fills the rows of a product. */
#define BLOCK_BYTES (128 * 1024)
/* The same for the gradient of weights, whose products read each operand once. */
#define GRADIENT_BYTES (4 * 1024 * 1024)
/* Columns of a block, where the transformed weights are much larger than caches: each block reads all of them. */
#define LEAST_COLUMNS 128
#define LARGE_WEIGHTS (4 * 1024 * 1024)

/* One pass from images to images. */
typedef struct wino_walk {
    int64_t source[2], target[2], padding[2], tiles[2];
    int64_t terms, rows;  /* channels: source's, target's */
    int64_t units, block; /* in a block at most */
    int64_t weights;      /* floats of prepared weights at each place */
    int64_t terms_step;   /* CHANNELS16: floats from the source channels of a unit to those of the next */
} wino_walk;

typedef struct winograd_op {
    gg_op op;
    gg_device *device;
    const gg_winograd_kernels *kernels;
    const gg_gemm_kernels *gemm;
    int threads, outputs, taps, places; /* taps: of the window, along one axis */
    bool channels;                      /* CHANNELS16 */
    int64_t lanes, batch;               /* BATCH_LAST: padded batch */
    int64_t width;                      /* floats of a unit in a plane: GG_LANES, or fewer */
    int64_t in, out;                    /* channels */
    wino_walk forward, data;
    size_t bias;          /* CHANNELS16: where the padded bias is prepared */
    size_t thread_floats; /* scratch of a thread in forward and data */
    /* Gradient of the weights. */
    int64_t gradient_block;  /* units */
    int64_t x_step, dy_step; /* floats between channels (BATCH_LAST) or units (CHANNELS16) of the places */
    int64_t turned_step;     /* BATCH_LAST: between rows of the input's places turned around */
    int64_t sum_step;        /* between rows of the sums at a place: out x in, CHANNELS16: in x out */
    size_t x_at, dy_at, sum_at, turned_at; /* in scratch, floats */
} winograd_op;

typedef struct wino_job {
    const winograd_op *op;
    const gg_op_args *args;
    const wino_walk *walk;
    bool forward;
    int64_t begin, end; /* units */
    bool first;
} wino_job;

static int64_t up_to(int64_t n, int64_t multiple) { return (n + multiple - 1) / multiple * multiple; }
static int64_t at_most(int64_t n, int64_t most) { return n < most ? n : most; }

/* An odd number of cache lines: rows whose distance is a power of two share few sets of the caches. */
static int64_t odd_lines(int64_t n) {
    return up_to(n, GG_LANES) + (up_to(n, GG_LANES) / GG_LANES % 2 == 0 ? GG_LANES : 0);
}

/* ------------------------------------------------------------------------------------------------ geometry */

/* A unit's tile: the image at its first row and column, which may lie in the padding, and what of it is inside. */
typedef struct wino_tile {
    int64_t offset;
    int64_t plane, row, pixel, count;
    int begin[2], end[2];
} wino_tile;

static int clamped(int64_t n, int64_t most) { return (int)(n < 0 ? 0 : n > most ? most : n); }

/* Where a unit is: its sample (CHANNELS16) or its sixteen samples (BATCH_LAST), and its tile. */
typedef struct wino_place {
    int64_t samples, tile[2];
} wino_place;

static wino_place place_of(const winograd_op *op, const int64_t tiles[2], int64_t unit) {
    const int64_t area = tiles[0] * tiles[1], groups = op->lanes / GG_LANES;
    const int64_t tile = op->channels ? unit % area : unit / groups;
    return (wino_place){.samples = op->channels ? unit / area : unit % groups,
                        .tile = {tile / tiles[1], tile % tiles[1]}};
}

/* To the next unit, without divisions: they would take as long as a good part of its transformation. */
static void move_on(const winograd_op *op, const int64_t tiles[2], wino_place *place) {
    if (!op->channels && ++place->samples < op->lanes / GG_LANES) return;
    if (!op->channels) place->samples = 0;
    if (++place->tile[1] < tiles[1]) return;
    place->tile[1] = 0;
    if (++place->tile[0] < tiles[0] || !op->channels) return;
    place->tile[0] = 0;
    ++place->samples;
}

/* Tiles of units that follow each other, of the source or of the target of a walk: one, and that after it, which is the
 * last one again where none follows. */
typedef struct wino_series {
    const winograd_op *op;
    const wino_walk *walk;
    bool source;
    wino_place place; /* of `after` */
    wino_tile tile, after;
} wino_series;

static wino_tile tile_at(const wino_series *s) {
    const winograd_op *op = s->op;
    const wino_walk *walk = s->walk;
    const int64_t *size = s->source ? walk->source : walk->target;
    const int64_t channels = s->source ? walk->terms : walk->rows, samples = s->place.samples;
    const int across = s->source ? op->outputs + op->taps - 1 : op->outputs;
    wino_tile made = {.count = channels};
    if (op->channels) {
        made.count = gg_block_count(channels, GG_LANES);
        made.pixel = GG_LANES;
        made.row = size[1] * GG_LANES;
        made.plane = size[0] * made.row;
        made.offset = samples * made.count * made.plane;
    } else {
        made.pixel = op->lanes;
        made.row = size[1] * op->lanes;
        made.plane = size[0] * made.row;
        made.offset = samples * GG_LANES;
    }
    for (int axis = 0; axis < 2; ++axis) {
        const int64_t at = s->place.tile[axis] * op->outputs - (s->source ? walk->padding[axis] : 0);
        made.offset += at * (axis == 0 ? made.row : made.pixel);
        made.begin[axis] = clamped(-at, across);
        made.end[axis] = clamped(size[axis] - at, across);
    }
    return made;
}

/* Before the first unit. */
static wino_series series_from(const winograd_op *op, const wino_walk *walk, bool source, int64_t unit) {
    wino_series s = {.op = op, .walk = walk, .source = source, .place = place_of(op, walk->tiles, unit)};
    s.after = tile_at(&s);
    return s;
}

static void series_next(wino_series *s, bool last) {
    s->tile = s->after;
    if (last) return;
    move_on(s->op, s->walk->tiles, &s->place);
    s->after = tile_at(s);
}

static gg_winograd_tiles tiles_of(const wino_series *s, const float *image) {
    const wino_tile *tile = &s->tile;
    return (gg_winograd_tiles){.outputs = s->op->outputs,
                               .taps = s->op->taps,
                               .count = tile->count,
                               .lanes = (int)s->op->width,
                               .image = (float *)(uintptr_t)image + tile->offset,
                               .ahead = image + s->after.offset,
                               .plane = tile->plane,
                               .row = tile->row,
                               .pixel = tile->pixel,
                               .begin = {tile->begin[0], tile->begin[1]},
                               .end = {tile->end[0], tile->end[1]}};
}

/* ------------------------------------------------------------------------------------------ forward and data */

/* BATCH_LAST: units side by side are the columns of panels, [panel][channel][column]. */
static int64_t panels_of(const winograd_op *op, int64_t units) {
    return gg_block_count(units * op->width, op->kernels->panel);
}

/* Floats at one place, of so many channels of a block of units. CHANNELS16: V is [unit][channel], with step floats from
 * a unit to the next; M is [panel of channels][unit][column]. Both are a number of lines that is odd. */
static int64_t source_floats(const winograd_op *op, const wino_walk *walk, int64_t units) {
    if (op->channels) return odd_lines(units * walk->terms_step);
    return odd_lines(panels_of(op, units) * walk->terms * op->kernels->panel);
}

static int64_t target_floats(const winograd_op *op, const wino_walk *walk, int64_t units) {
    if (op->channels) return odd_lines(up_to(walk->rows, op->kernels->panel) * units);
    return odd_lines(panels_of(op, units) * walk->rows * op->kernels->panel);
}

/* number: of the unit in its block. */
static void places_of_input(const wino_job *j, const wino_series *series, int64_t number, float *v, int64_t step) {
    const winograd_op *op = j->op;
    const wino_walk *walk = j->walk;
    const int64_t panel = op->kernels->panel, each = panel / op->width;
    gg_winograd_tiles tiles = tiles_of(series, j->forward ? j->args->input[0] : j->args->grad_output);
    tiles.place_step = step;
    if (op->channels) {
        tiles.places = v + number * walk->terms_step;
        tiles.step = GG_LANES;
    } else {
        tiles.places = v + number / each * walk->terms * panel + number % each * op->width;
        tiles.step = panel;
    }
    op->kernels->input(&tiles);
}

static void image_of_output(const wino_job *j, const wino_series *series, int64_t number, int64_t units, float *m,
                            int64_t step) {
    const winograd_op *op = j->op;
    const wino_walk *walk = j->walk;
    const int64_t panel = op->kernels->panel, each = panel / op->width;
    gg_winograd_tiles tiles = tiles_of(series, j->forward ? j->args->output : j->args->grad_input[0]);
    tiles.place_step = step;
    if (j->forward && op->op.desc.bias)
        tiles.bias = op->channels ? (const float *)j->args->prepared + op->bias : j->args->parameter[GG_PARAMETER_BIAS];
    tiles.bias_vectors = op->channels;
    tiles.bias_step = 1;
    tiles.relu = j->forward && op->op.desc.activation == GG_ACTIVATION_RELU;
    if (!op->channels) {
        tiles.places = m + number / each * walk->rows * panel + number % each * op->width;
        tiles.step = panel;
        op->kernels->output(&tiles);
        return;
    }
    /* Blocks of channels lie side by side in a panel: as many runs of planes as a panel has blocks. */
    const int64_t blocks = tiles.count;
    for (int64_t b = 0; b < each && b < blocks; ++b) {
        gg_winograd_tiles part = tiles;
        part.count = (blocks - b + each - 1) / each;
        part.image += b * tiles.plane;
        part.ahead += b * tiles.plane;
        part.plane = each * tiles.plane;
        part.places = m + number * panel + b * GG_LANES;
        part.step = units * panel;
        if (part.bias != NULL) part.bias += b * GG_LANES;
        part.bias_step = each * GG_LANES;
        op->kernels->output(&part);
    }
}

/* Units [begin, end), of those before `last` that the thread computes. */
static void walk_units(const wino_job *j, int64_t begin, int64_t end, int64_t last, float *scratch) {
    const winograd_op *op = j->op;
    const wino_walk *walk = j->walk;
    const int64_t units = end - begin, panel = op->kernels->panel;
    const int64_t v_step = source_floats(op, walk, units), m_step = target_floats(op, walk, units);
    const float *weights = j->args->prepared;
    float *v = scratch, *m = v + op->places * v_step;
    wino_series input = series_from(op, walk, true, begin), output = series_from(op, walk, false, begin);
    for (int64_t u = begin; u < end; ++u) {
        series_next(&input, u + 1 == last);
        places_of_input(j, &input, u - begin, v, v_step);
    }
    for (int p = 0; p < op->places; ++p) {
        gg_winograd_product product = {.terms = walk->terms, .y = m + p * m_step, .y_row = panel};
        if (op->channels) {
            product.rows = units;
            product.panels = gg_block_count(walk->rows, panel);
            product.scalars = v + p * v_step;
            product.scalar_row = walk->terms_step;
            product.x = weights + p * walk->weights;
            product.x_panel = walk->terms * panel;
            product.y_panel = units * panel;
        } else {
            product.rows = walk->rows;
            product.panels = panels_of(op, units);
            product.scalars = weights + p * walk->weights;
            product.x = v + p * v_step;
            product.x_panel = walk->terms * panel;
            product.y_panel = walk->rows * panel;
        }
        op->kernels->product(&product);
    }
    for (int64_t u = begin; u < end; ++u) {
        series_next(&output, u + 1 == last);
        image_of_output(j, &output, u - begin, units, m, m_step);
    }
}

static void wino_walk_part(void *context, int thread, int threads) {
    const wino_job *j = context;
    size_t begin, end;
    gg_parallel_split((size_t)j->walk->units, (size_t)(j->op->kernels->panel / j->op->width), thread, threads, &begin,
                      &end);
    const int64_t units = (int64_t)(end - begin), blocks = gg_block_count(units, j->walk->block);
    float *scratch = (float *)j->args->scratch + (size_t)thread * j->op->thread_floats;
    const int64_t each = j->op->kernels->panel / j->op->width;
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

/* BATCH_LAST: [place][block of rows][term][row]. CHANNELS16: [place][panel of rows][term][column], zeros behind the
 * last row and the last term. */
static void wino_prepare_part(void *context, int thread, int threads) {
    const wino_job *j = context;
    const winograd_op *op = j->op;
    const wino_walk *walk = j->walk;
    const int64_t all = op->taps * op->taps;
    const int64_t row_step = j->forward ? op->in * all : all, term_step = j->forward ? all : op->in * all;
    const int64_t terms = j->forward ? op->in : op->out, rows = j->forward ? op->out : op->in;
    const int64_t panel = op->kernels->panel;
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

/* The columns of the last panel that no block of rows has. */
static void clear_last_panel(const winograd_op *op, const gg_op_args *args, const wino_walk *walk, int64_t rows) {
    const int64_t panel = op->kernels->panel, whole = up_to(rows, GG_LANES) / panel;
    float *to = (float *)args->prepared + whole * walk->terms * panel;
    if (up_to(rows, GG_LANES) % panel == 0) return;
    for (int p = 0; p < op->places; ++p)
        memset(to + p * walk->weights, 0, (size_t)(walk->terms * panel) * sizeof(float));
}

static gg_status winograd_prepare(gg_op *head, const gg_op_args *args, gg_pass pass) {
    const winograd_op *op = (const winograd_op *)head;
    const bool forward = pass == GG_PASS_FORWARD;
    const wino_walk *walk = forward ? &op->forward : &op->data;
    if (walk->units == 0) return GG_OK;
    if (op->channels) clear_last_panel(op, args, walk, forward ? op->out : op->in);
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
    const winograd_op *op = j->op;
    const int64_t n = gg_shape_count(&op->op.desc.output) / op->out * op->lanes;
    const float *y = op->op.desc.activation == GG_ACTIVATION_RELU ? j->args->output : NULL;
    float *dy = j->args->grad_output;
    size_t begin, end;
    gg_parallel_split((size_t)op->out, 1, thread, threads, &begin, &end);
    for (int64_t k = (int64_t)begin; k < (int64_t)end; ++k) {
        const float sum = op->gemm->mask_sum(n, y != NULL ? y + k * n : NULL, dy + k * n);
        if (op->op.desc.bias) j->args->gradient[GG_PARAMETER_BIAS][k] = sum;
    }
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

static float *gradient_x(const wino_job *j) { return (float *)j->args->scratch + j->op->x_at; }
static float *gradient_dy(const wino_job *j) { return (float *)j->args->scratch + j->op->dy_at; }
static float *gradient_sum(const wino_job *j) { return (float *)j->args->scratch + j->op->sum_at; }

/* Floats of one place of the input, and of the output's gradient. */
static int64_t gradient_x_place(const winograd_op *op) {
    return op->x_step * (op->channels ? op->gradient_block : op->in);
}
static int64_t gradient_dy_place(const winograd_op *op) {
    return op->dy_step * (op->channels ? op->gradient_block : op->out);
}

/* Places of the units of a block, of the input and of the output's gradient. */
static void wino_gradient_places_part(void *context, int thread, int threads) {
    const wino_job *j = context;
    const winograd_op *op = j->op;
    size_t begin, end;
    gg_parallel_split((size_t)(j->end - j->begin), 1, thread, threads, &begin, &end);
    wino_series input = series_from(op, j->walk, true, j->begin + (int64_t)begin);
    wino_series error = series_from(op, j->walk, false, j->begin + (int64_t)begin);
    for (int64_t u = (int64_t)begin; u < (int64_t)end; ++u) {
        series_next(&input, u + 1 == (int64_t)end);
        series_next(&error, u + 1 == (int64_t)end);
        gg_winograd_tiles x = tiles_of(&input, j->args->input[0]);
        gg_winograd_tiles dy = tiles_of(&error, j->args->grad_output);
        x.place_step = gradient_x_place(op);
        dy.place_step = gradient_dy_place(op);
        x.step = op->channels ? GG_LANES : op->x_step;
        dy.step = op->channels ? GG_LANES : op->dy_step;
        x.places = gradient_x(j) + u * (op->channels ? op->x_step : op->width);
        dy.places = gradient_dy(j) + u * (op->channels ? op->dy_step : op->width);
        op->kernels->input(&x);
        op->kernels->gradient(&dy);
    }
}

static int64_t sum_rows(const winograd_op *op) { return op->channels ? op->in : op->out; }

static void wino_gradient_products_part(void *context, int thread, int threads) {
    const wino_job *j = context;
    const winograd_op *op = j->op;
    const int64_t units = j->end - j->begin, columns = units * op->width;
    float *turned =
        (float *)j->args->scratch + op->turned_at + thread * op->gradient_block * op->width * op->turned_step;
    size_t begin, end;
    gg_parallel_split((size_t)op->places, 1, thread, threads, &begin, &end);
    for (int64_t p = (int64_t)begin; p < (int64_t)end; ++p) {
        const float *x = gradient_x(j) + p * gradient_x_place(op), *dy = gradient_dy(j) + p * gradient_dy_place(op);
        gg_multiply product = {.c = gradient_sum(j) + p * sum_rows(op) * op->sum_step,
                               .c_row = op->sum_step,
                               .m = sum_rows(op),
                               .add = !j->first};
        if (op->channels) {
            product.n = op->out;
            product.k = units;
            product.a = x;
            product.a_row = 1;
            product.a_step = op->x_step;
            product.b = dy;
            product.b_row = op->dy_step;
        } else {
            op->gemm->transpose(op->in, columns, x, op->x_step, up_to(op->in, op->gemm->width), turned,
                                op->turned_step);
            product.n = op->in;
            product.k = columns;
            product.a = dy;
            product.a_row = op->dy_step;
            product.a_step = 1;
            product.b = turned;
            product.b_row = op->turned_step;
        }
        op->gemm->multiply(&product, 0, gg_block_count(product.m, op->gemm->tile_rows));
    }
}

/* Back from places to weights. */
static void wino_gradient_weights_part(void *context, int thread, int threads) {
    const wino_job *j = context;
    const winograd_op *op = j->op;
    const int64_t rows = sum_rows(op), columns = op->channels ? op->out : op->in;
    const int64_t all = op->taps * op->taps;
    const int64_t row_step = op->channels ? all : op->in * all, column_step = op->channels ? op->in * all : all;
    size_t begin, end;
    gg_parallel_split((size_t)rows, 1, thread, threads, &begin, &end);
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
                                             .places = gradient_sum(j) + (int64_t)begin * op->sum_step + c,
                                             .place_step = rows * op->sum_step,
                                             .places_step = op->sum_step};
        op->kernels->weight_gradient(&weights);
    }
}

static gg_status winograd_backward_weights(gg_op *head, const gg_op_args *args) {
    const winograd_op *op = (const winograd_op *)head;
    const int64_t area = op->forward.tiles[0] * op->forward.tiles[1];
    const int64_t units = area * (op->channels ? op->batch : op->lanes / GG_LANES);
    const int64_t blocks = gg_block_count(units, op->gradient_block);
    wino_job j = {.op = op, .args = args, .walk = &op->forward, .forward = true};
    wino_mask(&j);
    for (int64_t b = 0; b < blocks; ++b) {
        j.begin = gg_block_begin(units, blocks, b);
        j.end = gg_block_begin(units, blocks, b + 1);
        j.first = b == 0;
        gg_parallel_run(op->threads, wino_gradient_places_part, &j);
        gg_parallel_run(op->threads, wino_gradient_products_part, &j);
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

/* How many units are computed together: their places fill BLOCK_BYTES, unless that would read large weights too often.
 */
static int64_t choose_block(const winograd_op *op, const wino_walk *walk, int64_t units) {
    const int64_t each = op->kernels->panel / op->width, columns = op->channels ? 1 : op->width;
    const int64_t unit = (walk->terms + walk->rows) * op->places * columns * (int64_t)sizeof(float);
    int64_t block = BLOCK_BYTES / unit;
    const int64_t least = walk->terms * walk->rows * op->places * (int64_t)sizeof(float) > LARGE_WEIGHTS
                              ? LEAST_COLUMNS / columns
                              : 2 * op->kernels->rows / columns;
    if (block < least) block = least;
    block = up_to(block < 1 ? 1 : block, each);
    return at_most(block, up_to(units, each));
}

/* run: the walk is made for a pass, not for its geometry only. */
static void make_walk(winograd_op *op, bool forward, bool run, wino_walk *walk) {
    const gg_op_desc *desc = &op->op.desc;
    const int64_t *in = desc->input[0].size, *out = desc->output.size, panel = op->kernels->panel;
    walk->terms = forward ? op->in : op->out;
    walk->rows = forward ? op->out : op->in;
    for (int axis = 0; axis < 2; ++axis) {
        walk->source[axis] = forward ? in[1 + axis] : out[1 + axis];
        walk->target[axis] = forward ? out[1 + axis] : in[1 + axis];
        walk->padding[axis] = forward ? desc->window.padding[axis] : op->taps - 1 - desc->window.padding[axis];
        walk->tiles[axis] = gg_block_count(walk->target[axis], op->outputs);
    }
    if (!run) return;
    walk->units = walk->tiles[0] * walk->tiles[1] * (op->channels ? op->batch : op->lanes / GG_LANES);
    walk->terms_step = odd_lines(walk->terms);
    walk->weights = odd_lines(op->channels ? up_to(walk->rows, panel) * walk->terms : walk->rows * walk->terms);
    walk->block = choose_block(op, walk, walk->units);
    const size_t floats =
        (size_t)(op->places * (source_floats(op, walk, walk->block) + target_floats(op, walk, walk->block)));
    if (floats > op->thread_floats) op->thread_floats = floats;
}

static void make_gradient(winograd_op *op, size_t *scratch) {
    const int64_t units =
        op->forward.tiles[0] * op->forward.tiles[1] * (op->channels ? op->batch : op->lanes / GG_LANES);
    const int64_t columns = op->channels ? 1 : op->width, width = op->gemm->width;
    const int64_t unit = (op->in + op->out) * op->places * columns * (int64_t)sizeof(float);
    int64_t block = GRADIENT_BYTES / unit;
    if (block < LEAST_COLUMNS / columns) block = LEAST_COLUMNS / columns;
    op->gradient_block = gg_block_count(units, gg_block_count(units, block));
    op->x_step = odd_lines(op->channels ? up_to(op->in, width) : op->gradient_block * op->width);
    op->dy_step = odd_lines(op->channels ? up_to(op->out, width) : op->gradient_block * op->width);
    op->turned_step = op->channels ? 0 : odd_lines(up_to(op->in, width));
    op->sum_step = odd_lines(op->channels ? op->out : op->in);
    size_t at = 0;
    op->x_at = at;
    at += (size_t)(op->places * gradient_x_place(op));
    op->dy_at = at;
    at += (size_t)(op->places * gradient_dy_place(op)) + (size_t)width;
    at = (size_t)up_to((int64_t)at, GG_LANES);
    op->sum_at = at;
    at += (size_t)(op->places * sum_rows(op) * op->sum_step);
    op->turned_at = at;
    at += (size_t)(op->threads * op->gradient_block * op->width * op->turned_step);
    if (at > *scratch) *scratch = at;
}

gg_status gg_native_winograd_create(gg_device *device, const gg_op_desc *desc, gg_op **out) {
    gg_status status = GG_OK;
    gg_op *head = NULL;
    size_t scratch = 0;
    *out = NULL;
    const gg_winograd_kernels *kernels = gg_winograd_kernels_for(device->isa);
    const bool channels = desc->offered[0].layout == GG_LAYOUT_CHANNELS16;
    const gg_layout layout = channels ? GG_LAYOUT_CHANNELS16 : GG_LAYOUT_BATCH_LAST;
    if (kernels == NULL || !gg_conv_has_form(desc, layout, desc->algorithm))
        GG_FAIL(GG_ERROR_UNSUPPORTED,
                "Winograd's convolution is for windows of 3 x 3 and padding up to 2, or of 5 x 5, padding up to 4 and "
                "tiles of up to 4 x 4 outputs, "
                "stride 1, dilation 1 and one group");
    GG_TRY(gg_native_op_create(desc, &winograd_class, sizeof(winograd_op), &head));
    winograd_op *op = (winograd_op *)head;
    op->device = device;
    op->kernels = kernels;
    op->gemm = gg_gemm_kernels_for(device->isa);
    op->threads = device->threads;
    op->outputs = outputs_of(desc->algorithm);
    op->taps = (int)desc->window.kernel[0];
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
cleanup:
    return status;
}
