/* MAX_POOL2D, AVG_POOL2D and ADAPTIVE_AVG_POOL2D. Backward gathers: each element of the image is written once. The
 * value is the sum over its windows, in the order of the windows. */
#include "cuda/nn.cuh"

/* Values of a launch, divided by those of a thread; tests have few. */
#if defined(GG_CUDA_EMULATION)
constexpr int64_t MAX_UNITS = 300;
#else
constexpr int64_t MAX_UNITS = (int64_t)1 << 30;
#endif

/* Images are planes of in[0] x in[1] x lanes values: NHWC has its channels as lanes, PLAIN has one plane a channel. A
 * thread has V adjacent lanes. A launch has fewer than 2^31 groups of V values. */
struct pool_shape {
    int64_t planes, lanes;
    int in[2], out[2], kernel[2], stride[2], padding[2], dilation[2];
    int adaptive, include_pad, relu;
};

static pool_shape pool_shape_of(const gg_op_desc *desc, gg_layout layout) {
    const gg_window *w = &desc->pool;
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

/* Elements of the image in window o along an axis: the first, its place in the window, and their number. */
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

/* Windows that may hold element i along an axis, [begin, end), and its place in a window, or -1. */
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

/* Place of V values in planes of rows x columns x lanes; lanes are divided by V. */
struct pool_place {
    int64_t plane, lane;
    int h, w;
};

template <int V> static __device__ inline pool_place place_of(unsigned i, const pool_shape &s, const int *size) {
    const unsigned lanes = (unsigned)s.lanes / V, pixel = i / lanes, row = pixel / (unsigned)size[1];
    pool_place p;
    p.lane = (int64_t)(i - pixel * lanes) * V;
    p.w = (int)(pixel - row * (unsigned)size[1]);
    p.plane = row / (unsigned)size[0];
    p.h = (int)(row - (unsigned)p.plane * (unsigned)size[0]);
    return p;
}

static __device__ inline int64_t index_of(const pool_place &p, const pool_shape &s, const int *size, int h, int w) {
    return ((p.plane * size[0] + h) * size[1] + w) * s.lanes + p.lane;
}

static __device__ inline unsigned units_of(const pool_shape &s, const int *size, int v) {
    return (unsigned)(s.planes * size[0] * size[1] * s.lanes / v);
}

/* Saved places of V windows. */
template <typename Place> static __device__ inline void load_places(const Place *from, int (&to)[1]) {
    to[0] = (int)*from;
}
static __device__ inline void load_places(const uint8_t *from, int (&to)[4]) {
    const unsigned word = *reinterpret_cast<const unsigned *>(from);
#pragma unroll
    for (int k = 0; k < 4; ++k) to[k] = (int)(word >> 8 * k & 255u);
}
static __device__ inline void load_places(const uint8_t *from, int (&to)[8]) {
    const uint2 words = *reinterpret_cast<const uint2 *>(from);
#pragma unroll
    for (int k = 0; k < 8; ++k) to[k] = (int)((k < 4 ? words.x : words.y) >> 8 * (k % 4) & 255u);
}
template <typename Place> static __device__ inline void store_places(Place *to, const int (&from)[1]) {
    *to = (Place)from[0];
}
static __device__ inline unsigned word_of(const int *from) {
    return (unsigned)from[0] | (unsigned)from[1] << 8 | (unsigned)from[2] << 16 | (unsigned)from[3] << 24;
}
static __device__ inline void store_places(uint8_t *to, const int (&from)[4]) {
    *reinterpret_cast<unsigned *>(to) = word_of(from);
}
static __device__ inline void store_places(uint8_t *to, const int (&from)[8]) {
    *reinterpret_cast<uint2 *>(to) = make_uint2(word_of(from), word_of(from + 4));
}

/* ------------------------------------------------------------------------------------------ maximum */

/* The first of the largest in row-major order, or the last NaN, as in PyTorch. */
template <class T, typename Place, int V>
static __global__ void __launch_bounds__(GG_BLOCK) pool_max(pool_shape s, const T *x, T *y, Place *saved) {
    const unsigned outputs = units_of(s, s.out, V), step = (unsigned)gg_thread_count();
    for (unsigned i = (unsigned)gg_thread_number(); i < outputs; i += step) {
        const pool_place p = place_of<V>(i, s, s.out);
        const pool_extent down = extent_of(s, 0, p.h), right = extent_of(s, 1, p.w);
        const T *corner = x + index_of(p, s, s.in, down.first, right.first);
        const int64_t row = (int64_t)s.dilation[0] * s.in[1] * s.lanes, column = s.dilation[1] * s.lanes;
        const int64_t at = index_of(p, s, s.out, p.h, p.w);
        gg_pack<V> best = gg_load_pack<V>(corner);
        int winner[V];
#pragma unroll
        for (int k = 0; k < V; ++k) winner[k] = down.place * s.kernel[1] + right.place;
        for (int h = 0; h < down.count; ++h) {
            for (int w = h == 0 ? 1 : 0; w < right.count; ++w) {
                const gg_pack<V> v = gg_load_pack<V>(corner + h * row + w * column);
                const int place = (down.place + h) * s.kernel[1] + right.place + w;
#pragma unroll
                for (int k = 0; k < V; ++k) {
                    const bool wins = v.at[k] > best.at[k] || v.at[k] != v.at[k];
                    best.at[k] = wins ? v.at[k] : best.at[k];
                    winner[k] = wins ? place : winner[k];
                }
            }
        }
#pragma unroll
        for (int k = 0; k < V; ++k) {
            if (!s.relu || !(best.at[k] <= 0.0f)) continue;
            best.at[k] = 0.0f;
            winner[k] = s.kernel[0] * s.kernel[1];
        }
        gg_store_pack(y + at, best);
        if (saved != NULL) store_places(saved + at, winner);
    }
}

template <class T, typename Place, int V>
static __global__ void __launch_bounds__(GG_BLOCK, 4)
    pool_max_backward(pool_shape s, const T *dy, const Place *saved, T *dx) {
    const unsigned inputs = units_of(s, s.in, V), step = (unsigned)gg_thread_count();
    for (unsigned i = (unsigned)gg_thread_number(); i < inputs; i += step) {
        const pool_place p = place_of<V>(i, s, s.in);
        const pool_holders down = holders_of(s, 0, p.h), right = holders_of(s, 1, p.w);
        gg_pack<V> sum = {};
        for (int oh = down.begin; oh < down.end; ++oh) {
            const int row = place_in(s, 0, p.h, oh);
            if (row < 0) continue;
            for (int ow = right.begin; ow < right.end; ++ow) {
                const int column = place_in(s, 1, p.w, ow);
                if (column < 0) continue;
                const int64_t window = index_of(p, s, s.out, oh, ow);
                const gg_pack<V> d = gg_load_pack<V>(dy + window);
                int place[V];
                load_places(saved + window, place);
#pragma unroll
                for (int k = 0; k < V; ++k)
                    sum.at[k] = place[k] == row * s.kernel[1] + column ? sum.at[k] + d.at[k] : sum.at[k];
            }
        }
        gg_store_pack(dx + index_of(p, s, s.in, p.h, p.w), sum);
    }
}

/* ------------------------------------------------------------------------------------------ average */

static __device__ inline float share_of(const pool_shape &s, int oh, int ow, int rows, int columns) {
    return 1.0f / (float)((int64_t)counted(s, 0, oh, rows) * counted(s, 1, ow, columns));
}

template <class T, int V>
static __global__ void __launch_bounds__(GG_BLOCK) pool_average(pool_shape s, const T *x, T *y) {
    const unsigned outputs = units_of(s, s.out, V), step = (unsigned)gg_thread_count();
    for (unsigned i = (unsigned)gg_thread_number(); i < outputs; i += step) {
        const pool_place p = place_of<V>(i, s, s.out);
        const pool_extent down = extent_of(s, 0, p.h), right = extent_of(s, 1, p.w);
        const T *corner = x + index_of(p, s, s.in, down.first, right.first);
        gg_pack<V> sum = {};
        for (int h = 0; h < down.count; ++h) {
#pragma unroll 4
            for (int w = 0; w < right.count; ++w) {
                const gg_pack<V> v = gg_load_pack<V>(corner + ((int64_t)h * s.in[1] + w) * s.lanes);
#pragma unroll
                for (int k = 0; k < V; ++k) sum.at[k] += v.at[k];
            }
        }
        const float share = share_of(s, p.h, p.w, down.count, right.count);
#pragma unroll
        for (int k = 0; k < V; ++k) sum.at[k] *= share;
        gg_store_pack(y + index_of(p, s, s.out, p.h, p.w), sum);
    }
}

/* Large windows of PLAIN images: one warp a window. */
template <class T> static __global__ void pool_average_large(pool_shape s, const T *x, T *y) {
    const int64_t outputs = s.planes * s.out[0] * s.out[1];
    for (int64_t i = group_first<WARP>(); i < outputs; i += group_step<WARP>()) {
        const pool_place p = place_of<1>((unsigned)i, s, s.out);
        const pool_extent down = extent_of(s, 0, p.h), right = extent_of(s, 1, p.w);
        const T *corner = x + index_of(p, s, s.in, down.first, right.first);
        double sum = 0;
        for (int v = group_place<WARP>(); v < down.count * right.count; v += WARP)
            sum += (double)gg_load(corner + (int64_t)(v / right.count) * s.in[1] + v % right.count);
        sum = group_sum<WARP>(sum);
        if (group_place<WARP>() == 0) gg_store(y + i, (float)sum * share_of(s, p.h, p.w, down.count, right.count));
    }
}

template <class T, int V>
static __global__ void __launch_bounds__(GG_BLOCK) pool_average_backward(pool_shape s, const T *dy, T *dx) {
    const unsigned inputs = units_of(s, s.in, V), step = (unsigned)gg_thread_count();
    for (unsigned i = (unsigned)gg_thread_number(); i < inputs; i += step) {
        const pool_place p = place_of<V>(i, s, s.in);
        const pool_holders down = holders_of(s, 0, p.h), right = holders_of(s, 1, p.w);
        gg_pack<V> sum = {};
        for (int oh = down.begin; oh < down.end; ++oh) {
            const int rows = extent_of(s, 0, oh).count;
            for (int ow = right.begin; ow < right.end; ++ow) {
                const gg_pack<V> d = gg_load_pack<V>(dy + index_of(p, s, s.out, oh, ow));
                const float share = share_of(s, oh, ow, rows, extent_of(s, 1, ow).count);
#pragma unroll
                for (int k = 0; k < V; ++k) sum.at[k] = __fmaf_rn(d.at[k], share, sum.at[k]);
            }
        }
        gg_store_pack(dx + index_of(p, s, s.in, p.h, p.w), sum);
    }
}

/* ------------------------------------------------------------------------------------------ launchers */

/* Bytes of a saved place: a value for each place of a window, and with a ReLU a value for cut results. */
static int place_bytes(const pool_shape *s) {
    const int64_t places = (int64_t)s->kernel[0] * s->kernel[1] + (s->relu ? 1 : 0);
    return places <= 256 ? 1 : places <= 65536 ? 2 : 4;
}

size_t gg_cuda_pool_saved(const gg_op_desc *desc) {
    const pool_shape s = pool_shape_of(desc, GG_LAYOUT_PLAIN);
    if (desc->kind != GG_OP_MAX_POOL2D || !desc->training) return 0;
    return (size_t)(s.planes * s.out[0] * s.out[1]) * (size_t)place_bytes(&s);
}

/* Approximate max elements of an average pooling's window. */
static int64_t average_elements(const pool_shape *s) {
    if (!s->adaptive) return (int64_t)s->kernel[0] * s->kernel[1];
    return ceil_div(s->in[0], s->out[0]) * ceil_div(s->in[1], s->out[1]);
}

/* Lanes of a thread: 16 bytes of them, if the addresses allow it and a saved place is a byte. */
template <class T>
static int lanes_at_once(const pool_shape *s, bool max, const T *in, const T *out, const void *saved) {
    const bool aligned = gg_is_aligned(in, 16) && gg_is_aligned(out, 16) && gg_is_aligned(saved, GG_WIDE<T>);
    return s->lanes % GG_WIDE<T> == 0 && aligned && (!max || place_bytes(s) == 1) ? GG_WIDE<T> : 1;
}

/* Max planes of a launch. */
static int64_t planes_at_once(const pool_shape *s, int v) {
    const int64_t in = (int64_t)s->in[0] * s->in[1], out = (int64_t)s->out[0] * s->out[1];
    const int64_t of_plane = (in > out ? in : out) * s->lanes / v, most = MAX_UNITS / of_plane;
    return most > 1 ? most : 1;
}

static unsigned pool_blocks(const pool_shape *s, const int *size, int v) {
    return blocks_for(s->planes * size[0] * size[1] * s->lanes / v, GG_BLOCK);
}

template <class T, typename Place, int V>
static void launch_max(gg_cuda_stream stream, const pool_shape &s, bool backward, const T *in, void *saved, T *out) {
    Place *places = (Place *)saved;
    if (backward)
        GG_LAUNCH((pool_max_backward<T, Place, V>), dim3(pool_blocks(&s, s.in, V)), dim3(GG_BLOCK), 0, stream, s, in,
                  (const Place *)places, out);
    else
        GG_LAUNCH((pool_max<T, Place, V>), dim3(pool_blocks(&s, s.out, V)), dim3(GG_BLOCK), 0, stream, s, in, out,
                  places);
}

template <class T, int V>
static void launch_average(gg_cuda_stream stream, const pool_shape &s, bool backward, const T *in, T *out) {
    if (backward)
        GG_LAUNCH((pool_average_backward<T, V>), dim3(pool_blocks(&s, s.in, V)), dim3(GG_BLOCK), 0, stream, s, in, out);
    else if (s.lanes == 1 && average_elements(&s) >= 2 * WARP)
        GG_LAUNCH((pool_average_large<T>), dim3(blocks_for(s.planes * s.out[0] * s.out[1], GG_BLOCK / WARP)),
                  dim3(GG_BLOCK), 0, stream, s, in, out);
    else GG_LAUNCH((pool_average<T, V>), dim3(pool_blocks(&s, s.out, V)), dim3(GG_BLOCK), 0, stream, s, in, out);
}

/* in: the image; backward: the error of the pooling's output. */
template <class T>
static void pool_of(gg_cuda_stream stream, const gg_op_desc *desc, gg_layout layout, bool backward, const T *in,
                    void *saved, T *out) {
    pool_shape s = pool_shape_of(desc, layout);
    const bool max = desc->kind == GG_OP_MAX_POOL2D;
    const int v = lanes_at_once(&s, max, in, out, saved), bytes = place_bytes(&s);
    const int64_t planes = s.planes, most = planes_at_once(&s, v);
    const int64_t image = (int64_t)s.in[0] * s.in[1] * s.lanes, made = (int64_t)s.out[0] * s.out[1] * s.lanes;
    for (int64_t done = 0; done < planes; done += most) {
        const T *from = in + done * (backward ? made : image);
        T *to = out + done * (backward ? image : made);
        void *places = saved == NULL ? NULL : (char *)saved + done * made * bytes;
        s.planes = planes - done < most ? planes - done : most;
        if (!max && v > 1) launch_average<T, GG_WIDE<T>>(stream, s, backward, from, to);
        else if (!max) launch_average<T, 1>(stream, s, backward, from, to);
        else if (v > 1) launch_max<T, uint8_t, GG_WIDE<T>>(stream, s, backward, from, places, to);
        else if (bytes == 1) launch_max<T, uint8_t, 1>(stream, s, backward, from, places, to);
        else if (bytes == 2) launch_max<T, uint16_t, 1>(stream, s, backward, from, places, to);
        else launch_max<T, uint32_t, 1>(stream, s, backward, from, places, to);
    }
}

static void pool_of_type(gg_cuda_stream stream, const gg_op_desc *desc, gg_format format, bool backward, const void *in,
                         void *saved, void *out) {
    if (format.dtype == GG_BFLOAT16)
        pool_of(stream, desc, format.layout, backward, (const gg_bfloat16 *)in, saved, (gg_bfloat16 *)out);
    else pool_of(stream, desc, format.layout, backward, (const float *)in, saved, (float *)out);
}

void gg_cuda_pool(gg_cuda_stream stream, const gg_op_desc *desc, gg_format format, const void *in, void *out,
                  void *saved) {
    pool_of_type(stream, desc, format, false, in, saved, out);
}

void gg_cuda_pool_backward(gg_cuda_stream stream, const gg_op_desc *desc, gg_format format, const void *grad_output,
                           const void *saved, void *grad_input) {
    pool_of_type(stream, desc, format, true, grad_output, (void *)saved, grad_input);
}
