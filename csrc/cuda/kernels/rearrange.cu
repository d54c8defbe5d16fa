/* What moves values without computing: strided copies, and with them PERMUTE, SLICE, PAD, CONCAT and REORDER. */
#include "cuda/kernels/nn.cuh"

enum { AXES = GG_CUDA_COPY_AXES };

/* All axes but the one or two that a block's threads go along. Steps in values. */
struct copy_shape {
    int axes;
    int64_t outer; /* product of the sizes */
    int64_t size[AXES], from_step[AXES], to_step[AXES];
    int64_t length, from_along, to_along; /* the last axis */
    int64_t rows, from_across, to_across; /* of tiles: the axis along which `from` lies together */
    int shift;
};

struct copy_place {
    int64_t from, to;
};

static __device__ inline copy_place place_of(const copy_shape &s, int64_t number) {
    copy_place p = {0, 0};
    for (int a = s.axes - 1; a >= 0; --a) {
        const int64_t i = number % s.size[a];
        number /= s.size[a];
        p.from += i * s.from_step[a];
        p.to += i * s.to_step[a];
    }
    return p;
}

template <int V> static __global__ void copy_rows(copy_shape s, const float *from, float *to) {
    for (int64_t row = row_first(s.shift); row < s.outer; row += row_step(s.shift)) {
        const copy_place p = place_of(s, row);
        for (int64_t i = column_first(s.shift); i < s.length; i += (int64_t)1 << s.shift)
            gg_store_pack(to + p.to + i * s.to_along, gg_load_pack<V>(from + p.from + i * s.from_along));
    }
}

/* Where `from` and `to` lie together along different axes: tiles go through shared memory, so that both are read and
 * written along their own. */
enum { TILE = 32 };
static __global__ void copy_tiles(copy_shape s, const float *from, float *to) {
    GG_SHARED(float, tile, [TILE][TILE + 1]);
    const int64_t down = (s.rows + TILE - 1) / TILE, right = (s.length + TILE - 1) / TILE;
    const int lane = (int)(threadIdx.x % TILE), warp = (int)(threadIdx.x / TILE);
    for (int64_t number = blockIdx.x; number < s.outer * down * right; number += gridDim.x) {
        const copy_place p = place_of(s, number / (down * right));
        const int64_t row = number / right % down * TILE, column = number % right * TILE;
        for (int i = warp; i < TILE; i += GG_BLOCK / TILE)
            if (row + lane < s.rows && column + i < s.length)
                tile[i][lane] = from[p.from + (row + lane) * s.from_across + (column + i) * s.from_along];
        __syncthreads();
        for (int i = warp; i < TILE; i += GG_BLOCK / TILE)
            if (row + i < s.rows && column + lane < s.length)
                to[p.to + (row + i) * s.to_across + (column + lane) * s.to_along] = tile[lane][i];
        __syncthreads();
    }
}

static __global__ void clear_values(int64_t n, float *to) {
    for (int64_t i = gg_thread_number(); i < n; i += gg_thread_count()) to[i] = 0.0f;
}

/* ------------------------------------------------------------------------------------------ choice */

static void remove_axis(gg_cuda_copy_args *c, int axis) {
    --c->axes;
    for (int a = axis; a < c->axes; ++a) {
        c->size[a] = c->size[a + 1];
        c->from_step[a] = c->from_step[a + 1];
        c->to_step[a] = c->to_step[a + 1];
    }
}

static void swap_axes(gg_cuda_copy_args *c, int a, int b) {
    int64_t *const arrays[3] = {c->size, c->from_step, c->to_step};
    for (int64_t *array : arrays) {
        const int64_t kept = array[a];
        array[a] = array[b];
        array[b] = kept;
    }
}

/* The same copy with its axes in the order in which `to` lies, those of one element left out and those that follow each
 * other in both joined; at least one axis is left. */
static gg_cuda_copy_args simplified(const gg_cuda_copy_args *args) {
    gg_cuda_copy_args c = *args;
    for (int a = c.axes - 1; a >= 0; --a)
        if (c.size[a] == 1) remove_axis(&c, a);
    for (int a = 1; a < c.axes; ++a)
        for (int b = a; b > 0 && c.to_step[b] > c.to_step[b - 1]; --b) swap_axes(&c, b, b - 1);
    for (int a = c.axes - 1; a > 0; --a) {
        if (c.from_step[a - 1] != c.from_step[a] * c.size[a] || c.to_step[a - 1] != c.to_step[a] * c.size[a]) continue;
        c.size[a] *= c.size[a - 1];
        remove_axis(&c, a - 1);
    }
    if (c.axes == 0) {
        c.axes = 1;
        c.size[0] = c.from_step[0] = c.to_step[0] = 1;
    }
    return c;
}

static copy_shape copy_shape_of(const gg_cuda_copy_args *c) {
    copy_shape s = {};
    s.axes = c->axes - 1;
    s.length = c->size[s.axes];
    s.from_along = c->from_step[s.axes];
    s.to_along = c->to_step[s.axes];
    s.outer = 1;
    for (int a = 0; a < s.axes; ++a) {
        s.size[a] = c->size[a];
        s.from_step[a] = c->from_step[a];
        s.to_step[a] = c->to_step[a];
        s.outer *= c->size[a];
    }
    s.shift = shift_for(s.length);
    return s;
}

/* The axis along which tiles of `from` are read; -1: rows will do. */
static int axis_of_tiles(const gg_cuda_copy_args *c) {
    enum { WORTH = 8 };
    const int last = c->axes - 1;
    if (c->to_step[last] != 1 || c->from_step[last] == 1 || c->size[last] < WORTH) return -1;
    for (int a = 0; a < last; ++a)
        if (c->from_step[a] == 1 && c->size[a] >= WORTH) return a;
    return -1;
}

static bool copies_wide(const copy_shape *s, const float *from, const float *to) {
    bool wide = s->from_along == 1 && s->to_along == 1 && s->length % 4 == 0 && gg_is_aligned(from, 16) &&
                gg_is_aligned(to, 16);
    for (int a = 0; a < s->axes; ++a) wide = wide && s->from_step[a] % 4 == 0 && s->to_step[a] % 4 == 0;
    return wide;
}

void gg_cuda_copy_strided(gg_cuda_stream stream, const gg_cuda_copy_args *args) {
    const float *from = (const float *)args->from;
    float *to = (float *)args->to;
    const dim3 block(GG_BLOCK);
    if (args->clear > 0)
        GG_LAUNCH(clear_values, dim3(blocks_for(args->clear, GG_BLOCK)), block, 0, stream, args->clear, to);
    for (int a = 0; a < args->axes; ++a)
        if (args->size[a] < 1) return;
    gg_cuda_copy_args c = simplified(args);
    const int across = axis_of_tiles(&c);
    if (across >= 0) {
        const int64_t rows = c.size[across], to_across = c.to_step[across];
        remove_axis(&c, across);
        copy_shape s = copy_shape_of(&c);
        s.rows = rows;
        s.from_across = 1;
        s.to_across = to_across;
        const int64_t tiles = s.outer * ceil_div(s.rows, TILE) * ceil_div(s.length, TILE);
        GG_LAUNCH(copy_tiles, dim3(blocks_for(tiles, 1)), block, 0, stream, s, from, to);
        return;
    }
    copy_shape s = copy_shape_of(&c);
    if (!copies_wide(&s, from, to)) {
        GG_LAUNCH((copy_rows<1>), dim3(blocks_for(s.outer, GG_BLOCK >> s.shift)), block, 0, stream, s, from, to);
        return;
    }
    s.length /= 4;
    s.from_along = s.to_along = 4;
    s.shift = shift_for(s.length);
    GG_LAUNCH((copy_rows<4>), dim3(blocks_for(s.outer, GG_BLOCK >> s.shift)), block, 0, stream, s, from, to);
}

/* ------------------------------------------------------------------------------------------ operations */

void gg_cuda_transpose_batched(gg_cuda_stream stream, int64_t batches, int64_t rows, int64_t columns, const float *from,
                               float *to) {
    const gg_cuda_copy_args c = {
        3, {batches, rows, columns}, {rows * columns, columns, 1}, {rows * columns, 1, rows}, 0, from, to};
    gg_cuda_copy_strided(stream, &c);
}

void gg_cuda_reorder(gg_cuda_stream stream, const gg_shape *sample, int64_t batch, gg_layout from_layout,
                     gg_layout to_layout, const float *from, float *to) {
    const int64_t channels = sample->size[0], elements = gg_shape_count(sample) / channels;
    const gg_cuda_copy_args all = {1, {batch * channels * elements}, {1}, {1}, 0, from, to};
    if (from_layout == to_layout) gg_cuda_copy_strided(stream, &all);
    else if (to_layout == GG_LAYOUT_NHWC) gg_cuda_transpose_batched(stream, batch, channels, elements, from, to);
    else gg_cuda_transpose_batched(stream, batch, elements, channels, from, to);
}

/* A view of the larger of the two tensors, as the CPU's: of the input, or of PAD's output. */
void gg_cuda_rearrange(gg_cuda_stream stream, const gg_op_desc *desc, bool backward, const float *from, float *to) {
    const bool pad = desc->kind == GG_OP_PAD, gather = pad == backward;
    const gg_shape *viewed = pad ? &desc->output : &desc->input[0], *dense = pad ? &desc->input[0] : &desc->output;
    const gg_range *range = &desc->range;
    const int dims = viewed->dims;
    int64_t distance[GG_MAX_DIMS], viewed_step = 1, dense_step = 1, offset = 0;
    gg_cuda_copy_args c = {};
    for (int i = dims - 1; i >= 0; --i) {
        distance[i] = viewed_step;
        viewed_step *= viewed->size[i];
    }
    int64_t *const view = gather ? c.from_step : c.to_step, *const other = gather ? c.to_step : c.from_step;
    for (int i = dims - 1; i >= 0; --i) {
        c.size[1 + i] = dense->size[i];
        view[1 + i] = distance[desc->kind == GG_OP_PERMUTE ? desc->order[i] : i];
        other[1 + i] = dense_step;
        dense_step *= dense->size[i];
    }
    if (desc->kind != GG_OP_PERMUTE) {
        offset = range->begin * distance[range->axis];
        view[1 + range->axis] *= range->step;
    }
    c.axes = dims + 1;
    c.size[0] = desc->batch;
    view[0] = viewed_step;
    other[0] = dense_step;
    c.from = gather ? from + offset : from;
    c.to = to;
    if (!gather) { /* what lies outside of the view is 0 */
        c.clear = dense_step < viewed_step ? desc->batch * viewed_step : 0;
        if (c.clear > 0)
            GG_LAUNCH(clear_values, dim3(blocks_for(c.clear, GG_BLOCK)), dim3(GG_BLOCK), 0, stream, c.clear, to);
        c.clear = 0;
        c.to = to + offset;
    }
    gg_cuda_copy_strided(stream, &c);
}

void gg_cuda_concat(gg_cuda_stream stream, const gg_op_desc *desc, gg_layout layout, int number, bool backward,
                    float *own, float *joined) {
    const int64_t channels = desc->input[number].size[0], all = desc->output.size[0];
    const int64_t elements = gg_shape_count(&desc->output) / all;
    const bool inside = layout == GG_LAYOUT_NHWC; /* channels are the last axis */
    const int64_t rows = inside ? desc->batch * elements : desc->batch, unit = inside ? 1 : elements;
    int64_t before = 0;
    for (int i = 0; i < number; ++i) before += desc->input[i].size[0];
    gg_cuda_copy_args c = {2, {rows, channels * unit}, {channels * unit, 1}, {all * unit, 1}, 0, own, NULL};
    c.to = joined + before * unit;
    if (backward) {
        c = {2, {rows, channels * unit}, {all * unit, 1}, {channels * unit, 1}, 0, NULL, own};
        c.from = joined + before * unit;
    }
    gg_cuda_copy_strided(stream, &c);
}
