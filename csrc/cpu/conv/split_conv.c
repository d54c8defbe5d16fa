/* Convolution in CHANNELS16 by products of split numbers (cpu/conv/split_conv_kernels.h). Direct sums for any window
 * and stride, without dilation.
 *
 * A band of rows of a sample is split into points, with its padding. A tap of the window is then a distance between
 * points, so no tap needs a copy. The sums of a run of points are products of tiles over taps and blocks of channels.
 * Points continue over the ends of rows; sums for padding points are not stored. With strides, points with equal
 * remainders of row and column are adjacent. The next target is then the next point.
 *
 * Backward data uses the output's gradient as source. With strides, the targets of each remainder have their own taps.
 * The weight gradient multiplies points and the transposed output gradient; padding points are zeros. Parts of the
 * batch have their own sums, so that bits do not depend on threads. */
#include <string.h>

#include "base/memory.h"
#include "base/parallel.h"
#include "cpu/conv/split_conv_kernels.h"
#include "cpu/gemm/gemm_kernels.h"
#include "cpu/native.h"
#include "ops/backend.h"

/* Bytes of a band's points, and of transposed gradients: they stay in the L2 cache. */
#define BAND_BYTES (256 * 1024)

#define CHANNELS GG_SPLIT_POINTS
#define TILE_FLOATS (GG_SPLIT_POINTS * CHANNELS)
#define RUN_POINTS (GG_SPLIT_RUN * GG_SPLIT_POINTS)

/* Targets of one remainder of rows and columns: row r is image row target_stride*r + origin. */
typedef struct split_phase {
    int64_t begin[2], end[2]; /* rows and columns in the grid of points */
    int64_t origin[2];
    gg_split_step *step;
    int64_t steps;
} split_phase;

/* A pass from images to images. */
typedef struct split_walk {
    int64_t source[2], target[2];
    int64_t terms, rows;      /* blocks of channels: source, target */
    int64_t source_stride[2]; /* between points of a phase of the source */
    int64_t source_phases[2]; /* phases that taps read */
    int64_t target_stride[2];
    int64_t padding[2];         /* rows and columns before the source */
    int64_t pitch, halo, total; /* points of a row; rows that taps reach beyond a target's; rows with targets */
    int64_t band, bands;        /* rows of a band */
    split_phase phase[GG_CONV_SPLIT_STRIDE * GG_CONV_SPLIT_STRIDE];
    int phases;
} split_walk;

typedef struct split_conv {
    gg_op op;
    gg_device *device;
    const gg_split_conv_kernels *kernels;
    int threads;
    int64_t batch, in, out, taps;
    split_walk forward, data, gradient;
    size_t bias;                      /* float at which the padded bias is prepared */
    size_t thread_floats;             /* scratch of a thread */
    int64_t parts;                    /* of the batch; 0 means no weight gradient */
    size_t dy_at, turned_at, sums_at; /* gradient: floats; the first two in a thread's scratch */
} split_conv;

typedef struct split_job {
    const split_conv *conv;
    const gg_op_args *args;
    const split_walk *walk;
    bool forward;
} split_job;

static int64_t at_most(int64_t n, int64_t most) { return n < most ? n : most; }
static int64_t up_to(int64_t n, int64_t multiple) { return (n + multiple - 1) / multiple * multiple; }
static int64_t blocks_of(int64_t channels) { return gg_block_count(channels, CHANNELS); }

/* ------------------------------------------------------------------------------------------------ points */

/* Points of one block of channels of a band; the last tile reads up to 15 points more. */
static int64_t plane_points(const split_walk *w, int64_t rows) {
    return w->source_phases[0] * w->source_phases[1] * (rows + w->halo) * w->pitch;
}
static int64_t band_points(const split_walk *w) { return w->terms * plane_points(w, w->band) + GG_SPLIT_POINTS; }

/* The phase's columns of an image row; zeros if the row does not exist. */
static void split_row(const split_conv *conv, const split_walk *w, const float *image, int64_t y, int64_t phase,
                      uint16_t *to) {
    const int64_t step = w->source_stride[1], first = phase - w->padding[1];
    const int64_t skipped = first < 0 ? gg_block_count(-first, step) : 0, x = first + skipped * step;
    if (y < 0 || y >= w->source[0]) {
        memset(to, 0, (size_t)w->pitch * GG_SPLIT_POINT * sizeof *to);
        return;
    }
    const int64_t count = at_most(x < w->source[1] ? gg_block_count(w->source[1] - x, step) : 0, w->pitch - skipped);
    if (count > 0)
        conv->kernels->split(count, image + (y * w->source[1] + x) * CHANNELS, step * CHANNELS,
                             to + skipped * GG_SPLIT_POINT);
}

/* Splits rows [begin, end) of one sample's grid of points, and the halo after them. */
static void split_band(const split_conv *conv, const split_walk *w, const float *image, int64_t begin, int64_t end,
                       uint16_t *to) {
    const int64_t plane = w->source[0] * w->source[1] * CHANNELS;
    for (int64_t block = 0; block < w->terms; ++block)
        for (int64_t a = 0; a < w->source_phases[0]; ++a)
            for (int64_t b = 0; b < w->source_phases[1]; ++b)
                for (int64_t row = begin; row < end + w->halo; ++row, to += w->pitch * GG_SPLIT_POINT)
                    split_row(conv, w, image + block * plane, row * w->source_stride[0] + a - w->padding[0], b, to);
}

/* ------------------------------------------------------------------------------------------ forward and data */

static void store_run(const split_job *j, const split_walk *w, const split_phase *phase, int64_t first_row,
                      int64_t point, int64_t points, const float *sums, const float *bias, float *to) {
    const bool relu = j->forward && j->conv->op.desc.activation == GG_ACTIVATION_RELU;
    const int64_t columns = phase->end[1] - phase->begin[1];
    for (int64_t at = 0; at < points;) {
        const int64_t row = (point + at) / w->pitch, col = (point + at) % w->pitch;
        const int64_t left = at_most(w->pitch - col, points - at), inside = at_most(columns - col, left);
        const int64_t y = (first_row + row) * w->target_stride[0] + phase->origin[0];
        const int64_t x = (phase->begin[1] + col) * w->target_stride[1] + phase->origin[1];
        float *image = to + (y * w->target[1] + x) * CHANNELS;
        if (inside > 0)
            j->conv->kernels->finish(inside, sums + at * CHANNELS, bias, relu, image, w->target_stride[1] * CHANNELS);
        at += left;
    }
}

/* The next numbers to split, in cache lines; each run of points prefetches some of them. */
typedef struct split_ahead {
    const float *from;
    int64_t lines, each; /* each: lines of a step */
} split_ahead;

/* Convolves one block of target channels, for a phase in a band. */
static void convolve_phase(const split_job *j, const split_phase *phase, int64_t band_begin, int64_t band_end,
                           int64_t block, const uint16_t *points, split_ahead *ahead, float *to) {
    const split_walk *w = j->walk;
    const int64_t begin = phase->begin[0] > band_begin ? phase->begin[0] : band_begin;
    const int64_t end = at_most(phase->end[0], band_end);
    if (begin >= end || phase->begin[1] >= phase->end[1]) return;
    const int64_t count = (end - 1 - begin) * w->pitch + phase->end[1] - phase->begin[1];
    const int64_t start = (begin - band_begin) * w->pitch + phase->begin[1];
    const float *bias = NULL;
    if (j->forward && j->conv->op.desc.bias) bias = (const float *)j->args->prepared + j->conv->bias + block * CHANNELS;
    _Alignas(64) float sums[RUN_POINTS * CHANNELS];
    gg_split_forward run = {.step = phase->step, .steps = phase->steps, .sums = sums};
    run.weights = (const uint16_t *)j->args->prepared + block * w->terms * j->conv->taps * (int64_t)GG_SPLIT_FACTOR;
    /* A run of one tile takes nearly as long as a run of several, whose tiles wait for each other less. */
    const int64_t tiles = gg_block_count(count, GG_SPLIT_POINTS), runs = gg_block_count(tiles, GG_SPLIT_RUN);
    for (int64_t r = 0; r < runs; ++r) {
        const int64_t at = gg_block_begin(tiles, runs, r) * GG_SPLIT_POINTS;
        const int64_t some = at_most(gg_block_begin(tiles, runs, r + 1) * GG_SPLIT_POINTS, count) - at;
        run.points = points + (start + at) * GG_SPLIT_POINT;
        run.tiles = (int)gg_block_count(some, GG_SPLIT_POINTS);
        /* The run's targets are consecutive in memory. */
        const int64_t row = at / w->pitch, col = at_most(at % w->pitch, phase->end[1] - phase->begin[1]);
        run.target = to + ((begin + row + phase->origin[0]) * w->target[1] + phase->begin[1] + col + phase->origin[1]) *
                              CHANNELS;
        run.target_lines = w->target_stride[1] == 1 && phase->steps > 0 ? gg_block_count(some, phase->steps) : 0;
        run.ahead = ahead->from;
        run.ahead_lines = ahead->lines > 0 ? ahead->each : 0;
        ahead->from += run.ahead_lines * phase->steps * CHANNELS;
        ahead->lines -= run.ahead_lines * phase->steps;
        j->conv->kernels->forward(&run);
        store_run(j, w, phase, begin, at, some, sums, bias, to);
    }
}

/* Padding to the left and right of the image is cleared once; no sample's points are written there. */
static uint16_t *cleared_points(const split_walk *w, float *scratch) {
    memset(scratch, 0, (size_t)band_points(w) * GG_SPLIT_POINT * sizeof(uint16_t));
    return (uint16_t *)scratch;
}

/* Prefetch of the next sample, divided among the steps of all runs; for samples that are a single band. */
static split_ahead ahead_of(const split_walk *w, const float *from) {
    const int64_t lines = w->terms * w->source[0] * w->source[1];
    int64_t steps = 0;
    for (int p = 0; p < w->phases; ++p)
        steps += w->rows * w->phase[p].steps * gg_block_count(w->total * w->pitch, RUN_POINTS);
    return (split_ahead){from, lines, steps > 0 ? gg_block_count(lines, steps) : 0};
}

static float *thread_scratch(const split_job *j, int thread) {
    return (float *)j->args->scratch + (size_t)thread * j->conv->thread_floats;
}

/* Units are the bands of the samples. */
static void split_walk_part(void *context, int thread, int threads) {
    const split_job *j = context;
    const split_walk *w = j->walk;
    const int64_t source = w->terms * w->source[0] * w->source[1] * CHANNELS;
    const int64_t plane = w->target[0] * w->target[1] * CHANNELS;
    size_t begin, end;
    gg_parallel_split((size_t)(j->conv->batch * w->bands), 1, thread, threads, &begin, &end);
    if (begin == end) return;
    const float *from = j->forward ? j->args->input[0] : j->args->grad_output;
    float *to = j->forward ? j->args->output : j->args->grad_input[0];
    uint16_t *points = cleared_points(w, thread_scratch(j, thread));
    for (size_t unit = begin; unit < end; ++unit) {
        const int64_t sample = (int64_t)unit / w->bands, first = (int64_t)unit % w->bands * w->band;
        const int64_t last = at_most(first + w->band, w->total);
        split_band(j->conv, w, from + sample * source, first, first + w->band, points);
        split_ahead ahead = ahead_of(w, from + (sample + 1) * source);
        if (w->bands > 1 || unit + 1 == end) ahead.lines = 0;
        for (int64_t block = 0; block < w->rows; ++block)
            for (int p = 0; p < w->phases; ++p)
                convolve_phase(j, &w->phase[p], first, last, block, points, &ahead,
                               to + (sample * w->rows + block) * plane);
    }
}

static void split_run(const split_conv *conv, const gg_op_args *args, bool forward, gg_parallel_fn part) {
    split_job j = {.conv = conv, .args = args, .walk = forward ? &conv->forward : &conv->data, .forward = forward};
    gg_parallel_run(conv->threads, part, &j);
}

static gg_status split_conv_forward(gg_op *head, const gg_op_args *args) {
    split_run((const split_conv *)head, args, true, split_walk_part);
    return GG_OK;
}

static gg_status split_conv_backward_data(gg_op *head, const gg_op_args *args) {
    const split_conv *conv = (const split_conv *)head;
    if (conv->data.phases > 0 && args->grad_input[0] != NULL) split_run(conv, args, false, split_walk_part);
    return GG_OK;
}

/* ------------------------------------------------------------------------------------------------ weights */

/* [block of rows][block of terms][tap]; missing channels give zeros. */
static void prepare_part(void *context, int thread, int threads) {
    const split_job *j = context;
    const split_conv *conv = j->conv;
    const split_walk *w = j->walk;
    const int64_t rows = j->forward ? conv->out : conv->in, terms = j->forward ? conv->in : conv->out;
    const int64_t row_step = j->forward ? conv->in * conv->taps : conv->taps;
    const int64_t term_step = j->forward ? conv->taps : conv->in * conv->taps;
    size_t begin, end;
    gg_parallel_split((size_t)(w->rows * w->terms), 1, thread, threads, &begin, &end);
    for (size_t unit = begin; unit < end; ++unit) {
        const int64_t row = (int64_t)unit / w->terms * CHANNELS, term = (int64_t)unit % w->terms * CHANNELS;
        const int64_t some_rows = at_most(rows - row, CHANNELS), some_terms = at_most(terms - term, CHANNELS);
        const float *from = j->args->parameter[GG_PARAMETER_WEIGHT] + row * row_step + term * term_step;
        uint16_t *to = (uint16_t *)j->args->prepared + (int64_t)unit * conv->taps * GG_SPLIT_FACTOR;
        for (int64_t tap = 0; tap < conv->taps; ++tap, to += GG_SPLIT_FACTOR) {
            _Alignas(64) float tile[TILE_FLOATS] = {0};
            for (int64_t t = 0; t < some_terms; ++t)
                for (int64_t r = 0; r < some_rows; ++r)
                    tile[t * CHANNELS + r] = from[r * row_step + t * term_step + tap];
            conv->kernels->weights(tile, to);
        }
    }
}

static gg_status split_conv_prepare(gg_op *head, const gg_op_args *args, gg_pass pass) {
    const split_conv *conv = (const split_conv *)head;
    const bool forward = pass == GG_PASS_FORWARD;
    if (!forward && conv->data.phases == 0) return GG_OK;
    if (forward && head->desc.bias) {
        float *bias = (float *)args->prepared + conv->bias;
        memset(bias, 0, (size_t)up_to(conv->out, CHANNELS) * sizeof(float));
        memcpy(bias, args->parameter[GG_PARAMETER_BIAS], (size_t)conv->out * sizeof(float));
    }
    split_run(conv, args, forward, prepare_part);
    return GG_OK;
}

/* --------------------------------------------------------------------------------------- gradient of weights */

/* Tiles of points of a band of `rows` rows. */
static int64_t gradient_tiles(const split_walk *w, int64_t rows) {
    return gg_block_count((rows - 1) * w->pitch + w->target[1], GG_SPLIT_POINTS);
}

/* Transposes rows of the output's gradient of one block of channels, as points on the grid with zeros between them. */
static void turn_band(const split_conv *conv, const float *image, int64_t begin, int64_t end, float *grid,
                      uint16_t *turned) {
    const split_walk *w = &conv->gradient;
    const int64_t tiles = gradient_tiles(w, end - begin), width = w->target[1];
    for (int64_t row = begin; row < end; ++row)
        memcpy(grid + (row - begin) * w->pitch * CHANNELS, image + row * width * CHANNELS,
               (size_t)(width * CHANNELS) * sizeof(float));
    const int64_t used = (end - 1 - begin) * w->pitch + width;
    memset(grid + used * CHANNELS, 0, (size_t)((tiles * GG_SPLIT_POINTS - used) * CHANNELS) * sizeof(float));
    conv->kernels->turn(tiles, grid, turned);
}

static int64_t sum_tiles(const split_conv *conv) { return blocks_of(conv->out) * blocks_of(conv->in) * conv->taps; }

/* Blocks [begin, end) of output channels. */
static void multiply_band(const split_conv *conv, int64_t begin, int64_t end, int64_t tiles, const uint16_t *points,
                          const uint16_t *turned, bool add, float *sums) {
    const split_walk *w = &conv->gradient;
    const gg_split_step *step = w->phase[0].step; /* of all blocks of channels and taps */
    const int64_t most = gradient_tiles(w, w->band) * GG_SPLIT_FACTOR;
    gg_split_gradient run = {.points = points, .tiles = tiles, .add = add};
    const int64_t steps = w->phase[0].steps, runs = gg_block_count(steps, GG_SPLIT_RUN);
    for (int64_t block = begin; block < end; ++block)
        for (int64_t r = 0; r < runs; ++r) {
            const int64_t s = gg_block_begin(steps, runs, r);
            run.turned = turned + block * most;
            run.step = step + s;
            run.places = (int)(gg_block_begin(steps, runs, r + 1) - s);
            run.sums = sums + (block * steps + s) * TILE_FLOATS;
            conv->kernels->gradient(&run);
        }
}

/* Units are parts of the batch. With fewer parts than threads, units are slices of each part's output channels. */
static void split_gradient_part(void *context, int thread, int threads) {
    const split_job *j = context;
    const split_conv *conv = j->conv;
    const split_walk *w = &conv->gradient;
    const int64_t source = w->terms * w->source[0] * w->source[1] * CHANNELS;
    const int64_t plane = w->target[0] * w->target[1] * CHANNELS;
    const int64_t slices = at_most(gg_block_count(threads, conv->parts), w->rows);
    size_t begin, end;
    gg_parallel_split((size_t)(conv->parts * slices), 1, thread, threads, &begin, &end);
    if (begin == end) return;
    float *scratch = thread_scratch(j, thread), *grid = scratch + conv->dy_at;
    uint16_t *points = cleared_points(w, scratch), *turned = (uint16_t *)(scratch + conv->turned_at);
    memset(grid, 0, (size_t)(gradient_tiles(w, w->band) * TILE_FLOATS) * sizeof(float));
    for (int64_t unit = (int64_t)begin; unit < (int64_t)end; ++unit) {
        const int64_t part = unit / slices, slice = unit % slices;
        const int64_t rows_begin = gg_block_begin(w->rows, slices, slice);
        const int64_t rows_end = gg_block_begin(w->rows, slices, slice + 1);
        float *sums = (float *)j->args->scratch + conv->sums_at + (size_t)(part * sum_tiles(conv) * TILE_FLOATS);
        const int64_t first = gg_block_begin(conv->batch, conv->parts, part) * w->bands;
        const int64_t last = gg_block_begin(conv->batch, conv->parts, part + 1) * w->bands;
        for (int64_t at = first; at < last; ++at) {
            const int64_t sample = at / w->bands, top = at % w->bands * w->band;
            const int64_t bottom = at_most(top + w->band, w->total), tiles = gradient_tiles(w, bottom - top);
            const float *dy = (const float *)j->args->grad_output + sample * w->rows * plane;
            split_band(conv, w, (const float *)j->args->input[0] + sample * source, top, top + w->band, points);
            for (int64_t block = rows_begin; block < rows_end; ++block)
                turn_band(conv, dy + block * plane, top, bottom, grid,
                          turned + block * gradient_tiles(w, w->band) * GG_SPLIT_FACTOR);
            multiply_band(conv, rows_begin, rows_end, tiles, points, turned, at > first, sums);
        }
    }
}

/* Adds the parts' sums, as weights; a tile has the rows of a block of output channels. */
static void add_parts_part(void *context, int thread, int threads) {
    const split_job *j = context;
    const split_conv *conv = j->conv;
    const int64_t blocks = blocks_of(conv->in), tiles = sum_tiles(conv);
    size_t begin, end;
    gg_parallel_split((size_t)(tiles / conv->taps), 1, thread, threads, &begin, &end);
    for (size_t unit = begin; unit < end; ++unit) {
        const int64_t row = (int64_t)unit / blocks * CHANNELS, term = (int64_t)unit % blocks * CHANNELS;
        const int64_t rows = at_most(conv->out - row, CHANNELS), terms = at_most(conv->in - term, CHANNELS);
        for (int64_t tap = 0; tap < conv->taps; ++tap) {
            const float *sums = (const float *)j->args->scratch + conv->sums_at +
                                ((size_t)unit * (size_t)conv->taps + (size_t)tap) * TILE_FLOATS;
            _Alignas(64) float total[TILE_FLOATS] = {0};
            for (int64_t part = 0; part < conv->parts; ++part)
                for (int i = 0; i < TILE_FLOATS; ++i) total[i] += sums[part * tiles * TILE_FLOATS + i];
            float *to = j->args->gradient[GG_PARAMETER_WEIGHT] + (row * conv->in + term) * conv->taps + tap;
            for (int64_t r = 0; r < rows; ++r)
                for (int64_t t = 0; t < terms; ++t) to[(r * conv->in + t) * conv->taps] = total[r * CHANNELS + t];
        }
    }
}

static gg_status split_conv_backward_weights(gg_op *head, const gg_op_args *args) {
    const split_conv *conv = (const split_conv *)head;
    split_job j = {.conv = conv, .args = args, .walk = &conv->gradient, .forward = true};
    gg_native_mask_blocks(conv->device, head, args);
    gg_parallel_run(conv->threads, split_gradient_part, &j);
    gg_parallel_run(conv->threads, add_parts_part, &j);
    return GG_OK;
}

/* ------------------------------------------------------------------------------------------------ creating */

static void split_walk_destroy(split_walk *w) {
    for (int p = 0; p < w->phases; ++p) gg_free(w->phase[p].step);
}

static void split_conv_destroy(gg_op *head) {
    split_conv *conv = (split_conv *)head;
    split_walk_destroy(&conv->forward);
    split_walk_destroy(&conv->data);
    split_walk_destroy(&conv->gradient);
    gg_native_op_free(head);
}

static const gg_op_class split_conv_class = {.prepare = split_conv_prepare,
                                             .forward = split_conv_forward,
                                             .backward_weights = split_conv_backward_weights,
                                             .backward_data = split_conv_backward_data,
                                             .destroy = split_conv_destroy};

/* Sets the fields of one axis: the grid of points, and the targets on it. */
static void make_axis(const gg_op_desc *desc, bool forward, int axis, split_walk *w, int64_t *reach, int64_t *size) {
    const gg_window *window = &desc->conv.window;
    const int64_t in = desc->input[0].size[1 + axis], out = desc->output.size[1 + axis];
    const int64_t stride = window->stride[axis], kernel = window->kernel[axis], padding = window->padding[axis];
    w->source[axis] = forward ? in : out;
    w->target[axis] = forward ? out : in;
    w->source_stride[axis] = forward ? stride : 1;
    w->target_stride[axis] = forward ? 1 : stride;
    w->source_phases[axis] = forward ? at_most(kernel, stride) : 1;
    *reach = (kernel - 1) / stride;
    w->padding[axis] = forward ? padding : *reach;
    *size = forward ? out : (in - 1 + padding) / stride + 1;
}

/* Sets the targets of one phase, and the places of the window that they read. */
static gg_status make_phase(const split_conv *conv, bool forward, const int64_t remainder[2], split_walk *w,
                            const int64_t reach[2], split_phase *phase) {
    const gg_window *window = &conv->op.desc.conv.window;
    const int64_t plane = plane_points(w, w->band);
    for (int axis = 0; axis < 2; ++axis) {
        const int64_t stride = w->target_stride[axis], before = window->padding[axis] - remainder[axis];
        phase->begin[axis] = forward || before <= 0 ? 0 : gg_block_count(before, stride);
        phase->end[axis] = forward ? w->target[axis] : (w->target[axis] - 1 + before + stride) / stride;
        phase->origin[axis] = forward ? 0 : -before;
    }
    void *block;
    GG_TRY(gg_calloc((size_t)(w->terms * conv->taps) + 1, sizeof(gg_split_step), "taps of a convolution", &block));
    phase->step = block;
    for (int64_t term = 0; term < w->terms; ++term)
        for (int64_t tap = 0; tap < conv->taps; ++tap) {
            const int64_t at[2] = {tap / window->kernel[1], tap % window->kernel[1]};
            int64_t part[2], far[2];
            for (int axis = 0; axis < 2; ++axis) {
                part[axis] = at[axis] % window->stride[axis];
                far[axis] = at[axis] / window->stride[axis];
            }
            if (!forward && (part[0] != remainder[0] || part[1] != remainder[1])) continue;
            int64_t point = term * plane;
            if (forward) {
                point += (part[0] * w->source_phases[1] + part[1]) * (w->band + w->halo) * w->pitch;
                point += far[0] * w->pitch + far[1];
            } else {
                point += (reach[0] - far[0]) * w->pitch + reach[1] - far[1];
            }
            phase->step[phase->steps++] = (gg_split_step){.points = point * GG_SPLIT_POINT,
                                                          .weights = (term * conv->taps + tap) * GG_SPLIT_FACTOR};
        }
    return GG_OK;
}

/* others: floats of a grid point besides the points. */
static gg_status make_split_walk(const split_conv *conv, bool forward, int64_t others, split_walk *w) {
    int64_t reach[2], size[2];
    for (int axis = 0; axis < 2; ++axis) make_axis(&conv->op.desc, forward, axis, w, &reach[axis], &size[axis]);
    w->terms = blocks_of(forward ? conv->in : conv->out);
    w->rows = blocks_of(forward ? conv->out : conv->in);
    w->pitch = size[1] + reach[1];
    w->halo = reach[0];
    w->total = size[0];
    const int64_t point = w->terms * w->source_phases[0] * w->source_phases[1] * GG_SPLIT_POINT * 2 + others * 4;
    int64_t band = BAND_BYTES / (point * w->pitch) - w->halo;
    if (band < 2 * w->halo) band = 2 * w->halo;
    if (band < 1) band = 1;
    w->bands = gg_block_count(w->total, band);
    w->band = gg_block_count(w->total, w->bands);
    w->bands = gg_block_count(w->total, w->band);
    for (int64_t a = 0; a < w->target_stride[0]; ++a)
        for (int64_t b = 0; b < w->target_stride[1]; ++b) {
            const int64_t remainder[2] = {a, b};
            GG_TRY(make_phase(conv, forward, remainder, w, reach, &w->phase[w->phases++]));
        }
    return GG_OK;
}

static size_t points_floats(const split_walk *w) {
    return (size_t)(band_points(w) * GG_SPLIT_POINT) * sizeof(uint16_t) / sizeof(float);
}

static gg_status make_split_gradient(split_conv *conv) {
    const int64_t out = blocks_of(conv->out), bytes = sum_tiles(conv) * TILE_FLOATS * (int64_t)sizeof(float);
    if (bytes > GG_NATIVE_SUM_BYTES)
        return gg_fail(
            GG_ERROR_UNSUPPORTED,
            "the gradient of %lld x %lld x %lld weights by products of split numbers needs %lld bytes of sums for "
            "each part of a batch: more than %d",
            (long long)conv->out, (long long)conv->in, (long long)conv->taps, (long long)bytes, GG_NATIVE_SUM_BYTES);
    GG_TRY(make_split_walk(conv, true, CHANNELS + out * GG_SPLIT_FACTOR / (2 * GG_SPLIT_POINTS), &conv->gradient));
    const split_walk *w = &conv->gradient;
    const size_t tiles = (size_t)gradient_tiles(w, w->band);
    conv->parts = gg_native_parts(conv->batch, bytes);
    conv->dy_at = points_floats(w);
    conv->turned_at = conv->dy_at + tiles * TILE_FLOATS;
    const size_t floats = conv->turned_at + tiles * (size_t)out * GG_SPLIT_FACTOR / 2;
    if (floats > conv->thread_floats) conv->thread_floats = floats;
    return GG_OK;
}

gg_status gg_native_split_conv_create(gg_device *device, const gg_op_desc *desc, gg_op **out) {
    gg_status status = GG_OK;
    gg_op *head = NULL;
    *out = NULL;
    const gg_split_conv_kernels *kernels = gg_cpu_device_kernels(device)->split_conv;
    if (kernels == NULL || !gg_conv_has_form(desc, desc->offered[0].layout, GG_ALGORITHM_SPLIT))
        GG_FAIL_CLEANUP(
            GG_ERROR_UNSUPPORTED,
            "convolutions by products of split numbers need the instruction set amx, blocks of sixteen channels, "
            "strides of 1 or 2, padding less than the window, dilation 1 and one group");
    GG_TRY_CLEANUP(gg_native_op_create(desc, &split_conv_class, sizeof(split_conv), &head));
    split_conv *conv = (split_conv *)head;
    conv->device = device;
    conv->kernels = kernels;
    conv->threads = device->threads;
    conv->batch = desc->batch;
    conv->in = desc->input[0].size[0];
    conv->out = desc->output.size[0];
    conv->taps = desc->conv.window.kernel[0] * desc->conv.window.kernel[1];
    head->input[0].layout = head->output.layout = GG_LAYOUT_CHANNELS16;
    const bool data = desc->training && desc->input_grad && gg_op_has_pass(desc, GG_PASS_DATA);
    const bool weights = desc->training && gg_op_has_pass(desc, GG_PASS_WEIGHTS);
    if (gg_op_has_pass(desc, GG_PASS_FORWARD)) GG_TRY_CLEANUP(make_split_walk(conv, true, 0, &conv->forward));
    if (data) GG_TRY_CLEANUP(make_split_walk(conv, false, 0, &conv->data));
    if (conv->forward.phases > 0) conv->thread_floats = points_floats(&conv->forward);
    if (data && points_floats(&conv->data) > conv->thread_floats) conv->thread_floats = points_floats(&conv->data);
    if (weights) GG_TRY_CLEANUP(make_split_gradient(conv));
    conv->bias = (size_t)sum_tiles(conv) * GG_SPLIT_FACTOR * sizeof(uint16_t) / sizeof(float);
    if (conv->forward.phases > 0 || data)
        head->prepared_bytes = (conv->bias + (size_t)up_to(conv->out, CHANNELS)) * sizeof(float);
    conv->sums_at = (size_t)conv->threads * conv->thread_floats;
    head->scratch_bytes = (conv->sums_at + (size_t)(conv->parts * sum_tiles(conv)) * TILE_FLOATS) * sizeof(float);
    head->backward_needs_input = weights;
    head->backward_needs_output = weights && desc->activation == GG_ACTIVATION_RELU;
    *out = head;
    head = NULL;
cleanup:
    if (head != NULL) split_conv_destroy(head);
    return status;
}
