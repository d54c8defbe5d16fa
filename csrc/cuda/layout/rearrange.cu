/* Moves values without computing: strided copies, and with them PERMUTE, SLICE, PAD, CONCAT and REORDER. */
#include "cuda/nn.cuh"

enum { AXES = GG_CUDA_COPY_AXES };

/* All axes except the one or two along which a block's threads go. Steps in values. */
struct copy_shape {
    int axes;
    int64_t outer; /* product of the sizes */
    int64_t size[AXES], from_step[AXES], to_step[AXES];
    int64_t length, from_along, to_along; /* the last axis */
    int64_t rows, from_across, to_across; /* of tiles: the contiguous axis of `from` */
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

/* Converts to another type; a value that keeps its type keeps its bits. */
static __device__ inline float converted(float v, const float *) { return v; }
static __device__ inline gg_bfloat16 converted(gg_bfloat16 v, const gg_bfloat16 *) { return v; }
static __device__ inline gg_bfloat16 converted(float v, const gg_bfloat16 *) { return gg_narrowed(v); }
static __device__ inline float converted(gg_bfloat16 v, const float *) { return gg_widened(v); }

template <class From, class To, int V> static __device__ inline void copy_value(const From *from, To *to) {
    if constexpr (V == 1) *to = converted(*from, to);
    else gg_store_pack(to, gg_load_pack<V>(from));
}

/* Blocks of a column of the grid share the rows' values. */
template <class From, class To, int V> static __global__ void copy_rows(copy_shape s, const From *from, To *to) {
    for (int64_t row = row_first(s.shift); row < s.outer; row += row_step(s.shift)) {
        const copy_place p = place_of(s, row);
        for (int64_t i = column_first(s.shift) + ((int64_t)blockIdx.y << s.shift); i < s.length;
             i += (int64_t)gridDim.y << s.shift)
            copy_value<From, To, V>(from + p.from + i * s.from_along, to + p.to + i * s.to_along);
    }
}

/* For `from` and `to` with different contiguous axes. Tiles go through shared memory, so that each array is accessed
 * along its own. */
enum { TILE = 32 };
template <class From, class To> static __global__ void copy_tiles(copy_shape s, const From *from, To *to) {
    GG_SHARED(From, tile, [TILE][TILE + 1]);
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
                to[p.to + (row + i) * s.to_across + (column + lane) * s.to_along] = converted(tile[lane][i], to);
        __syncthreads();
    }
}

template <class T> static __global__ void clear_values(int64_t n, T *to) {
    for (int64_t i = gg_thread_number(); i < n; i += gg_thread_count()) to[i] = T{};
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

/* Simplifies a copy: axes in the order of `to`, without axes of size one, contiguous axes joined. At least one axis is
 * left. */
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

/* The axis along which tiles of `from` are read; -1 means that rows suffice. */
static int axis_of_tiles(const gg_cuda_copy_args *c) {
    enum { WORTH = 8 };
    const int last = c->axes - 1;
    if (c->to_step[last] != 1 || c->from_step[last] == 1 || c->size[last] < WORTH) return -1;
    for (int a = 0; a < last; ++a)
        if (c->from_step[a] == 1 && c->size[a] >= WORTH) return a;
    return -1;
}

template <class From, class To> static bool copies_wide(const copy_shape *s, const From *from, const To *to) {
    bool wide = s->from_along == 1 && s->to_along == 1 && s->length % 4 == 0 && gg_is_aligned(from, 4 * sizeof(From)) &&
                gg_is_aligned(to, 4 * sizeof(To));
    for (int a = 0; a < s->axes; ++a) wide = wide && s->from_step[a] % 4 == 0 && s->to_step[a] % 4 == 0;
    return wide;
}

/* Blocks along and across rows: each thread has a min of work, and no more blocks than keep a device busy. */
static dim3 row_blocks(const copy_shape *s) {
    enum { EACH = 4 };
    const int64_t down = blocks_for(s->outer, GG_BLOCK >> s->shift);
    const int64_t useful = ceil_div(s->length, (int64_t)EACH << s->shift), most = MAX_BLOCKS / down;
    return dim3((unsigned)down, (unsigned)(most < 1 ? 1 : useful < most ? useful : most));
}

template <class From, class To> static void copy_simplified(gg_cuda_stream stream, gg_cuda_copy_args c) {
    const From *from = (const From *)c.from;
    To *to = (To *)c.to;
    const dim3 block(GG_BLOCK);
    const int across = axis_of_tiles(&c);
    if (across >= 0) {
        const int64_t rows = c.size[across], to_across = c.to_step[across];
        remove_axis(&c, across);
        copy_shape s = copy_shape_of(&c);
        s.rows = rows;
        s.from_across = 1;
        s.to_across = to_across;
        const int64_t tiles = s.outer * ceil_div(s.rows, TILE) * ceil_div(s.length, TILE);
        GG_LAUNCH((copy_tiles<From, To>), dim3(blocks_for(tiles, 1)), block, 0, stream, s, from, to);
        return;
    }
    copy_shape s = copy_shape_of(&c);
    if constexpr (sizeof(From) == 4 || sizeof(To) == 4) {
        if (copies_wide(&s, from, to)) {
            s.length /= 4;
            s.from_along = s.to_along = 4;
            s.shift = shift_for(s.length);
            GG_LAUNCH((copy_rows<From, To, 4>), row_blocks(&s), block, 0, stream, s, from, to);
            return;
        }
    }
    GG_LAUNCH((copy_rows<From, To, 1>), row_blocks(&s), block, 0, stream, s, from, to);
}

/* Copies pairs of values instead of 2-byte values, if all lie in pairs. */
static bool joins_pairs(gg_cuda_copy_args *c) {
    const int last = c->axes - 1;
    bool pairs = c->from_step[last] == 1 && c->to_step[last] == 1 && c->size[last] % 2 == 0 &&
                 gg_is_aligned(c->from, 4) && gg_is_aligned(c->to, 4);
    for (int a = 0; a < last; ++a) pairs = pairs && c->from_step[a] % 2 == 0 && c->to_step[a] % 2 == 0;
    if (!pairs) return false;
    c->size[last] /= 2;
    for (int a = 0; a < last; ++a) {
        c->from_step[a] /= 2;
        c->to_step[a] /= 2;
    }
    return true;
}

static void clear(gg_cuda_stream stream, gg_dtype dtype, int64_t n, void *to) {
    const dim3 blocks(blocks_for(n, GG_BLOCK)), block(GG_BLOCK);
    if (n < 1) return;
    if (dtype == GG_BFLOAT16) GG_LAUNCH((clear_values<gg_bfloat16>), blocks, block, 0, stream, n, (gg_bfloat16 *)to);
    else GG_LAUNCH((clear_values<float>), blocks, block, 0, stream, n, (float *)to);
}

void gg_cuda_copy_strided(gg_cuda_stream stream, const gg_cuda_copy_args *args) {
    clear(stream, args->to_dtype, args->clear, args->to);
    for (int a = 0; a < args->axes; ++a)
        if (args->size[a] < 1) return;
    gg_cuda_copy_args c = simplified(args);
    const bool narrow_from = c.from_dtype == GG_BFLOAT16, narrow_to = c.to_dtype == GG_BFLOAT16;
    if (narrow_from == narrow_to && (!narrow_from || joins_pairs(&c))) copy_simplified<float, float>(stream, c);
    else if (narrow_from && narrow_to) copy_simplified<gg_bfloat16, gg_bfloat16>(stream, c);
    else if (narrow_from) copy_simplified<gg_bfloat16, float>(stream, c);
    else copy_simplified<float, gg_bfloat16>(stream, c);
}

/* ------------------------------------------------------------------------------------------ operations */

void gg_cuda_transpose_batched(gg_cuda_stream stream, int64_t batches, int64_t rows, int64_t columns,
                               gg_dtype from_dtype, gg_dtype to_dtype, const void *from, void *to) {
    const gg_cuda_copy_args c = {3,
                                 {batches, rows, columns},
                                 {rows * columns, columns, 1},
                                 {rows * columns, 1, rows},
                                 0,
                                 from,
                                 to,
                                 from_dtype,
                                 to_dtype};
    gg_cuda_copy_strided(stream, &c);
}

void gg_cuda_reorder(gg_cuda_stream stream, const gg_shape *sample, int64_t batch, gg_format from_format,
                     gg_format to_format, const void *from, void *to) {
    const int64_t channels = sample->size[0], elements = gg_shape_count(sample) / channels;
    const gg_dtype from_dtype = from_format.dtype, to_dtype = to_format.dtype;
    const gg_cuda_copy_args all = {1, {batch * channels * elements}, {1}, {1}, 0, from, to, from_dtype, to_dtype};
    const bool there = to_format.layout == GG_LAYOUT_NHWC;
    if (from_format.layout == to_format.layout) gg_cuda_copy_strided(stream, &all);
    else
        gg_cuda_transpose_batched(stream, batch, there ? channels : elements, there ? elements : channels, from_dtype,
                                  to_dtype, from, to);
}

static const void *at(gg_dtype dtype, const void *array, int64_t place) {
    return (const char *)array + place * (int64_t)gg_dtype_size(dtype);
}
static void *at(gg_dtype dtype, void *array, int64_t place) {
    return (char *)array + place * (int64_t)gg_dtype_size(dtype);
}

/* Uses a view of the larger tensor, as on the CPU: of the input, or of PAD's output. */
void gg_cuda_rearrange(gg_cuda_stream stream, const gg_op_desc *desc, gg_dtype dtype, bool backward, const void *from,
                       void *to) {
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
        view[1 + i] = distance[desc->kind == GG_OP_PERMUTE ? desc->order.size[i] : i];
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
    c.from_dtype = c.to_dtype = dtype;
    c.from = gather ? at(dtype, from, offset) : from;
    c.to = gather ? to : at(dtype, to, offset);
    /* Values outside of the view are 0. */
    if (!gather && dense_step < viewed_step) clear(stream, dtype, desc->batch * viewed_step, to);
    gg_cuda_copy_strided(stream, &c);
}

void gg_cuda_concat(gg_cuda_stream stream, const gg_op_desc *desc, gg_format format, int number, bool backward,
                    void *own, void *joined) {
    const int64_t channels = desc->input[number].size[0], all = desc->output.size[0];
    const int64_t elements = gg_shape_count(&desc->output) / all;
    const bool inside = format.layout == GG_LAYOUT_NHWC; /* channels are the last axis */
    const int64_t rows = inside ? desc->batch * elements : desc->batch, unit = inside ? 1 : elements;
    int64_t before = 0;
    for (int i = 0; i < number; ++i) before += desc->input[i].size[0];
    const gg_dtype dtype = format.dtype;
    void *part = at(dtype, joined, before * unit);
    const int64_t length = channels * unit, whole = all * unit;
    const gg_cuda_copy_args there = {2, {rows, length}, {length, 1}, {whole, 1}, 0, own, part, dtype, dtype};
    const gg_cuda_copy_args back = {2, {rows, length}, {whole, 1}, {length, 1}, 0, part, own, dtype, dtype};
    gg_cuda_copy_strided(stream, backward ? &back : &there);
}
