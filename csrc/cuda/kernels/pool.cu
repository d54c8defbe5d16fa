/* MAX_POOL2D, AVG_POOL2D and ADAPTIVE_AVG_POOL2D. Backward passes gather: each element of the image is written once, as
 * the sum over the windows that hold it, in the order of the windows. */
#include "cuda/kernels/nn.cuh"

/* Images are planes of in[0] x in[1] x lanes values: NHWC has its channels as lanes, PLAIN has one plane a channel. */
struct pool_shape {
    int64_t planes, lanes;
    int in[2], out[2], kernel[2], stride[2], padding[2], dilation[2];
    int adaptive, include_pad, relu;
};

static pool_shape pool_shape_of(const gg_op_desc *desc, gg_layout layout) {
    const gg_window *w = &desc->window;
    const int64_t channels = desc->input[0].size[0];
    pool_shape s = {};
    s.adaptive = desc->kind == GG_OP_ADAPTIVE_AVG_POOL2D;
    s.lanes = layout == GG_LAYOUT_NHWC ? channels : 1;
    s.planes = desc->batch * (layout == GG_LAYOUT_NHWC ? 1 : channels);
    s.include_pad = w->count_include_pad;
    s.relu = desc->activation == GG_ACTIVATION_RELU;
    for (int a = 0; a < 2; ++a) {
        s.in[a] = (int)desc->input[0].size[1 + a];
        s.out[a] = (int)desc->output.size[1 + a];
        s.kernel[a] = s.adaptive ? 1 : (int)w->kernel[a];
        s.stride[a] = s.adaptive ? 1 : (int)w->stride[a];
        s.padding[a] = s.adaptive ? 0 : (int)w->padding[a];
        s.dilation[a] = s.adaptive ? 1 : (int)w->dilation[a];
    }
    return s;
}

/* The elements of the image in window o along an axis: the first one, its place in the window, how many there are. */
struct pool_extent {
    int first, place, count;
};

static __device__ inline pool_extent extent_of(const pool_shape &s, int a, int o) {
    if (s.adaptive) {
        const int begin = (int)((int64_t)o * s.in[a] / s.out[a]);
        const int end = (int)(((int64_t)(o + 1) * s.in[a] + s.out[a] - 1) / s.out[a]);
        return {begin, 0, end - begin};
    }
    const int dilation = s.dilation[a], corner = o * s.stride[a] - s.padding[a];
    const int outside = corner < 0 ? (-corner + dilation - 1) / dilation : 0, first = corner + outside * dilation;
    const int inside = first < s.in[a] ? (s.in[a] - first + dilation - 1) / dilation : 0, room = s.kernel[a] - outside;
    return {first, outside, inside < room ? inside : room};
}

/* Elements of a window that count along an axis. */
static __device__ inline int counted(const pool_shape &s, int a, int o, int inside) {
    if (s.adaptive || !s.include_pad) return inside;
    const int corner = o * s.stride[a] - s.padding[a], end = s.in[a] + s.padding[a];
    return corner + s.kernel[a] < end ? s.kernel[a] : end - corner;
}

/* The windows that may hold element i along an axis: [begin, end); and its place in one of them, or -1. */
struct pool_holders {
    int begin, end;
};

static __device__ inline pool_holders holders_of(const pool_shape &s, int a, int i) {
    if (s.adaptive) {
        const int64_t in = s.in[a], out = s.out[a];
        return {(int)(i * out / in), (int)(((i + 1) * out + in - 1) / in)};
    }
    const int reach = (s.kernel[a] - 1) * s.dilation[a], from = i + s.padding[a] - reach, to = i + s.padding[a];
    const int begin = from > 0 ? (from + s.stride[a] - 1) / s.stride[a] : 0, end = to / s.stride[a] + 1;
    return {begin, end < s.out[a] ? end : s.out[a]};
}

static __device__ inline int place_in(const pool_shape &s, int a, int i, int o) {
    if (s.adaptive) return 0;
    const int distance = i + s.padding[a] - o * s.stride[a];
    return distance % s.dilation[a] == 0 ? distance / s.dilation[a] : -1;
}

/* A value's plane, place and lane, of planes of rows x columns x lanes. */
struct pool_place {
    int64_t plane, lane;
    int h, w;
};

static __device__ inline pool_place place_of(int64_t i, int64_t lanes, int rows, int columns) {
    pool_place p;
    const int64_t pixel = i / lanes, row = pixel / columns;
    p.lane = i % lanes;
    p.w = (int)(pixel % columns);
    p.h = (int)(row % rows);
    p.plane = row / rows;
    return p;
}

static __device__ inline int64_t index_of(int64_t plane, int h, int w, int64_t lane, int64_t lanes, int rows,
                                          int columns) {
    return ((plane * rows + h) * columns + w) * lanes + lane;
}

/* ------------------------------------------------------------------------------------------ maximum */

/* The first of the largest in row-major order, or the last NaN, as in PyTorch. */
template <class T, typename Place> static __global__ void pool_max(pool_shape s, const T *x, T *y, Place *saved) {
    const int64_t outputs = s.planes * s.out[0] * s.out[1] * s.lanes;
    for (int64_t i = gg_thread_number(); i < outputs; i += gg_thread_count()) {
        const pool_place p = place_of(i, s.lanes, s.out[0], s.out[1]);
        const pool_extent down = extent_of(s, 0, p.h), right = extent_of(s, 1, p.w);
        const T *corner = x + index_of(p.plane, down.first, right.first, p.lane, s.lanes, s.in[0], s.in[1]);
        const int64_t row = (int64_t)s.dilation[0] * s.in[1] * s.lanes, column = s.dilation[1] * s.lanes;
        float best = gg_load(corner);
        int winner = down.place * s.kernel[1] + right.place;
        for (int h = 0; h < down.count; ++h) {
            for (int w = h == 0 ? 1 : 0; w < right.count; ++w) {
                const float v = gg_load(corner + h * row + w * column);
                if (!(v > best || v != v)) continue;
                best = v;
                winner = (down.place + h) * s.kernel[1] + right.place + w;
            }
        }
        if (s.relu && best <= 0.0f) {
            best = 0.0f;
            winner = s.kernel[0] * s.kernel[1];
        }
        gg_store(y + i, best);
        if (saved != NULL) saved[i] = (Place)winner;
    }
}

template <class T, typename Place>
static __global__ void pool_max_backward(pool_shape s, const T *dy, const Place *saved, T *dx) {
    const int64_t inputs = s.planes * s.in[0] * s.in[1] * s.lanes;
    for (int64_t i = gg_thread_number(); i < inputs; i += gg_thread_count()) {
        const pool_place p = place_of(i, s.lanes, s.in[0], s.in[1]);
        const pool_holders down = holders_of(s, 0, p.h), right = holders_of(s, 1, p.w);
        float sum = 0;
        for (int oh = down.begin; oh < down.end; ++oh) {
            const int row = place_in(s, 0, p.h, oh);
            if (row < 0) continue;
            for (int ow = right.begin; ow < right.end; ++ow) {
                const int column = place_in(s, 1, p.w, ow);
                if (column < 0) continue;
                const int64_t window = index_of(p.plane, oh, ow, p.lane, s.lanes, s.out[0], s.out[1]);
                if ((int)saved[window] == row * s.kernel[1] + column) sum += gg_load(dy + window);
            }
        }
        gg_store(dx + i, sum);
    }
}

/* ------------------------------------------------------------------------------------------ average */

static __device__ inline float share_of(const pool_shape &s, int oh, int ow, int rows, int columns) {
    return 1.0f / (float)((int64_t)counted(s, 0, oh, rows) * counted(s, 1, ow, columns));
}

template <class T> static __global__ void pool_average(pool_shape s, const T *x, T *y) {
    const int64_t outputs = s.planes * s.out[0] * s.out[1] * s.lanes;
    for (int64_t i = gg_thread_number(); i < outputs; i += gg_thread_count()) {
        const pool_place p = place_of(i, s.lanes, s.out[0], s.out[1]);
        const pool_extent down = extent_of(s, 0, p.h), right = extent_of(s, 1, p.w);
        const T *corner = x + index_of(p.plane, down.first, right.first, p.lane, s.lanes, s.in[0], s.in[1]);
        float sum = 0;
        for (int h = 0; h < down.count; ++h)
            for (int w = 0; w < right.count; ++w) sum += gg_load(corner + ((int64_t)h * s.in[1] + w) * s.lanes);
        gg_store(y + i, sum * share_of(s, p.h, p.w, down.count, right.count));
    }
}

/* Large windows of PLAIN images: a warp a window. */
template <class T> static __global__ void pool_average_large(pool_shape s, const T *x, T *y) {
    const int64_t outputs = s.planes * s.out[0] * s.out[1];
    for (int64_t i = group_first<WARP>(); i < outputs; i += group_step<WARP>()) {
        const pool_place p = place_of(i, 1, s.out[0], s.out[1]);
        const pool_extent down = extent_of(s, 0, p.h), right = extent_of(s, 1, p.w);
        const T *corner = x + index_of(p.plane, down.first, right.first, 0, 1, s.in[0], s.in[1]);
        double sum = 0;
        for (int v = group_place<WARP>(); v < down.count * right.count; v += WARP)
            sum += (double)gg_load(corner + (int64_t)(v / right.count) * s.in[1] + v % right.count);
        sum = group_sum<WARP>(sum);
        if (group_place<WARP>() == 0) gg_store(y + i, (float)sum * share_of(s, p.h, p.w, down.count, right.count));
    }
}

template <class T> static __global__ void pool_average_backward(pool_shape s, const T *dy, T *dx) {
    const int64_t inputs = s.planes * s.in[0] * s.in[1] * s.lanes;
    for (int64_t i = gg_thread_number(); i < inputs; i += gg_thread_count()) {
        const pool_place p = place_of(i, s.lanes, s.in[0], s.in[1]);
        const pool_holders down = holders_of(s, 0, p.h), right = holders_of(s, 1, p.w);
        float sum = 0;
        for (int oh = down.begin; oh < down.end; ++oh) {
            const int rows = extent_of(s, 0, oh).count;
            for (int ow = right.begin; ow < right.end; ++ow) {
                const float d = gg_load(dy + index_of(p.plane, oh, ow, p.lane, s.lanes, s.out[0], s.out[1]));
                sum = __fmaf_rn(d, share_of(s, oh, ow, rows, extent_of(s, 1, ow).count), sum);
            }
        }
        gg_store(dx + i, sum);
    }
}

/* ------------------------------------------------------------------------------------------ launchers */

/* Bytes of a saved place: windows have so many, and with a ReLU one for what it has cut. */
static int place_bytes(const pool_shape *s) {
    const int64_t places = (int64_t)s->kernel[0] * s->kernel[1] + (s->relu ? 1 : 0);
    return places <= 256 ? 1 : places <= 65536 ? 2 : 4;
}

size_t gg_cuda_pool_saved(const gg_op_desc *desc) {
    const pool_shape s = pool_shape_of(desc, GG_LAYOUT_PLAIN);
    if (desc->kind != GG_OP_MAX_POOL2D || !desc->training) return 0;
    return (size_t)(s.planes * s.out[0] * s.out[1]) * (size_t)place_bytes(&s);
}

/* Elements of an average window, at most about. */
static int64_t average_elements(const pool_shape *s) {
    if (!s->adaptive) return (int64_t)s->kernel[0] * s->kernel[1];
    return ceil_div(s->in[0], s->out[0]) * ceil_div(s->in[1], s->out[1]);
}

template <class T>
static void pool_of(gg_cuda_stream stream, const gg_op_desc *desc, gg_layout layout, const T *in, T *out, void *saved) {
    const pool_shape s = pool_shape_of(desc, layout);
    const int64_t outputs = s.planes * s.out[0] * s.out[1] * s.lanes;
    const dim3 blocks(blocks_for(outputs, GG_BLOCK)), block(GG_BLOCK);
    if (desc->kind != GG_OP_MAX_POOL2D) {
        if (s.lanes == 1 && average_elements(&s) >= 2 * WARP)
            GG_LAUNCH((pool_average_large<T>), dim3(blocks_for(outputs, GG_BLOCK / WARP)), block, 0, stream, s, in,
                      out);
        else GG_LAUNCH((pool_average<T>), blocks, block, 0, stream, s, in, out);
        return;
    }
    switch (place_bytes(&s)) {
    case 1: GG_LAUNCH((pool_max<T, uint8_t>), blocks, block, 0, stream, s, in, out, (uint8_t *)saved); break;
    case 2: GG_LAUNCH((pool_max<T, uint16_t>), blocks, block, 0, stream, s, in, out, (uint16_t *)saved); break;
    default: GG_LAUNCH((pool_max<T, uint32_t>), blocks, block, 0, stream, s, in, out, (uint32_t *)saved);
    }
}

template <class T>
static void pool_backward_of(gg_cuda_stream stream, const gg_op_desc *desc, gg_layout layout, const T *dy,
                             const void *saved, T *dx) {
    const pool_shape s = pool_shape_of(desc, layout);
    const dim3 blocks(blocks_for(s.planes * s.in[0] * s.in[1] * s.lanes, GG_BLOCK)), block(GG_BLOCK);
    if (desc->kind != GG_OP_MAX_POOL2D) {
        GG_LAUNCH((pool_average_backward<T>), blocks, block, 0, stream, s, dy, dx);
        return;
    }
    switch (place_bytes(&s)) {
    case 1:
        GG_LAUNCH((pool_max_backward<T, uint8_t>), blocks, block, 0, stream, s, dy, (const uint8_t *)saved, dx);
        break;
    case 2:
        GG_LAUNCH((pool_max_backward<T, uint16_t>), blocks, block, 0, stream, s, dy, (const uint16_t *)saved, dx);
        break;
    default: GG_LAUNCH((pool_max_backward<T, uint32_t>), blocks, block, 0, stream, s, dy, (const uint32_t *)saved, dx);
    }
}

void gg_cuda_pool(gg_cuda_stream stream, const gg_op_desc *desc, gg_format format, const void *in, void *out,
                  void *saved) {
    if (format.dtype == GG_BFLOAT16)
        pool_of(stream, desc, format.layout, (const gg_bfloat16 *)in, (gg_bfloat16 *)out, saved);
    else pool_of(stream, desc, format.layout, (const float *)in, (float *)out, saved);
}

void gg_cuda_pool_backward(gg_cuda_stream stream, const gg_op_desc *desc, gg_format format, const void *grad_output,
                           const void *saved, void *grad_input) {
    if (format.dtype == GG_BFLOAT16)
        pool_backward_of(stream, desc, format.layout, (const gg_bfloat16 *)grad_output, saved,
                         (gg_bfloat16 *)grad_input);
    else pool_backward_of(stream, desc, format.layout, (const float *)grad_output, saved, (float *)grad_input);
}
