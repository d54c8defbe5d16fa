/* Convolutions of NHWC images with few channels, on tensor cores: float32 by TF32.
 *
 * A block keeps a tile of the image in shared memory, rounded to TF32, with the border reached by its windows. Products
 * are 16x8x8: 16 filters, 8 neighbours of a row, 8 channels of one tap. Channels are padded with zeros to multiples of
 * eight. The assignment of channels and filters to a product's rows is free. The choice makes values for neighbouring
 * registers of a lane adjacent. Rows of shared memory have an odd number of eights, so that the lanes of a warp read
 * from different banks. */
#include "cuda/nn.cuh"
#include "cuda/tensor.cuh"

constexpr int EIGHT = 8;                     /* pixels, channels or filters of a product's side */
constexpr int TILE_RUNS = 32;                /* max runs of 8 pixels of a tile */
constexpr int MAX_TILE_COLUMNS = 4;         /* runs side by side */
constexpr int64_t TILE_BYTES = 47 << 10;     /* of shared memory: below the limit without opt-in */
constexpr int64_t MAX_TILED_CHANNELS = 128; /* beyond, other methods are better */

static __host__ __device__ inline int eights(int64_t n) { return (int)((n + EIGHT - 1) / EIGHT); }

/* Floats between pixels of `values` values, a multiple of 8. */
static inline int row_of(int values) { return values + (values % 16 == 0 ? EIGHT : 0); }

/* Divides numbers below 2^16 by a divisor above 1, fixed for a launch. */
struct gg_divisor {
    unsigned by, factor;
};
static inline gg_divisor divisor_of(int n) { return {(unsigned)n, (unsigned)(((uint64_t)1 << 32) / (unsigned)n + 1)}; }
static __device__ inline int divided(int a, const gg_divisor &d) { return (int)__umulhi((unsigned)a, d.factor); }

/* Tiles of the output: rows x (8 * columns) of one sample. A tile reads height x width pixels of the image. */
struct conv_tiles {
    int rows, columns, height, width;
    int down, across; /* tiles of a sample */
    int64_t count;    /* of all samples */
};

/* row: floats of a pixel in shared memory; beside: further floats for each output pixel. False means that not even the
 * smallest tile fits. */
static bool tiles_of(const gg_cuda_tiled_shape *s, int row, int beside, conv_tiles *out) {
    const int runs = eights(s->output[1]);
    conv_tiles t = {};
    t.columns = runs < MAX_TILE_COLUMNS ? runs : MAX_TILE_COLUMNS;
    t.rows = TILE_RUNS / t.columns < s->output[0] ? TILE_RUNS / t.columns : s->output[0];
    for (;; t.rows = (t.rows + 1) / 2) {
        t.height = (t.rows - 1) * s->stride[0] + (s->kernel[0] - 1) * s->dilation[0] + 1;
        t.width = (EIGHT * t.columns - 1) * s->stride[1] + (s->kernel[1] - 1) * s->dilation[1] + 1;
        const int64_t pixels = (int64_t)t.height * t.width;
        const int64_t bytes = 4 * (pixels * row + (int64_t)t.rows * t.columns * EIGHT * beside);
        if (bytes <= TILE_BYTES) break;
        if (t.rows == 1) return false;
    }
    t.down = (int)ceil_div(s->output[0], t.rows);
    t.across = (int)ceil_div(s->output[1], EIGHT * t.columns);
    t.count = s->batch * t.down * t.across;
    *out = t;
    return true;
}

/* Begin of a tile: its sample, and its first output. */
struct tile_place {
    int64_t sample;
    int row, column;
};
static __device__ inline tile_place place_of_tile(const conv_tiles &t, int64_t tile) {
    const int64_t of_sample = (int64_t)t.down * t.across, sample = tile / of_sample;
    const int within = (int)(tile - sample * of_sample), down = within / t.across;
    return {sample, down * t.rows, (within - down * t.across) * EIGHT * t.columns};
}

/* Part of an image that a block loads: `channels` of `size` pixels; the block has the channels from `first` on. */
struct tile_source {
    const float *image;
    int size[2], channels, first;
    int wide, row;           /* four channels at a time; floats of a pixel in shared memory */
    gg_divisor width, units; /* pixels of a row in shared memory; loads of a pixel */
};

/* Loads of a thread in flight at once: memory is far, and a tile is small. */
constexpr int LOADS = 4;

/* Loads pixels from (top, left) on, as TF32. Pixels beyond the image and missing channels give zeros. */
template <int V, int THREADS>
static __device__ inline void load_pixels(const tile_source &s, int pixels, int64_t sample, int top, int left,
                                          float *tile) {
    const int units = pixels * (int)s.units.by;
    const float *image = gg_kept(s.image + (sample * s.size[0] * s.size[1] * s.channels + s.first));
    for (int base = (int)threadIdx.x; base < units; base += LOADS * THREADS) {
        gg_pack<V> v[LOADS];
        int to[LOADS];
#pragma unroll
        for (int i = 0; i < LOADS; ++i) {
            const int number = base + i * THREADS, pixel = divided(number, s.units);
            const int channel = (number - pixel * (int)s.units.by) * V, down = divided(pixel, s.width);
            const int h = top + down, w = left + pixel - down * (int)s.width.by;
            const bool inside = (unsigned)h < (unsigned)s.size[0] && (unsigned)w < (unsigned)s.size[1];
            v[i] = {};
            to[i] = pixel * s.row + channel;
            if (number < units && inside && s.first + channel < s.channels)
                v[i] = gg_load_pack<V>(image + ((h * s.size[1] + w) * s.channels + channel));
        }
#pragma unroll
        for (int i = 0; i < LOADS; ++i) {
#pragma unroll
            for (int k = 0; k < V; ++k) v[i].at[k] = gg_tf32(v[i].at[k]);
            if (base + i * THREADS < units) gg_store_pack(tile + to[i], v[i]);
        }
    }
}

template <int THREADS>
static __device__ inline void load_tile(const tile_source &s, int pixels, int64_t sample, int top, int left,
                                        float *tile) {
    if (s.wide) load_pixels<4, THREADS>(s, pixels, sample, top, left, tile);
    else load_pixels<1, THREADS>(s, pixels, sample, top, left, tile);
}

/* values: channels of a pixel in shared memory, a multiple of eight; width: its pixels in a row. */
static tile_source source_of(const float *image, const int size[2], int channels, int values, int width) {
    tile_source s = {};
    s.image = image;
    s.size[0] = size[0];
    s.size[1] = size[1];
    s.channels = channels;
    s.wide = channels % 4 == 0 && gg_is_aligned(image, 16);
    s.row = row_of(values);
    s.width = divisor_of(width);
    s.units = divisor_of(s.wide ? values / 4 : values);
    return s;
}

static __device__ inline float2 two_of(const float *at) { return *reinterpret_cast<const float2 *>(at); }

/* ------------------------------------------------------------------------------------------ forward, and data
 *
 * The input gradient of a stride-1 convolution is a convolution of the error. Its weight is mirrored, with channels and
 * filters exchanged. The weight is stored in the lanes' reading order. All warps of a block share it in the L1
 * cache. */

constexpr int WARPS = GG_BLOCK / WARP;
constexpr int SIXTEEN = 16;     /* filters of a product */
constexpr int RUNS = 4;         /* of a warp */
constexpr int MAX_OF_WARP = 2; /* sixteens of filters */

static __host__ __device__ inline int sixteens(int64_t n) { return (int)((n + SIXTEEN - 1) / SIXTEEN); }

struct conv_work {
    gg_cuda_tiled_shape s;
    conv_tiles t;
    tile_source source;
    int along, filters_of_block; /* warps along the tile, a power of 2; in sixteens */
    int relu;
    const float *weight, *bias;
    float *y;
};

/* Loads the weight of a step for N sixteens of filters; `count` filters are left from the first on, others are
 * zeros. */
template <int N>
static __device__ inline void load_weight(const float4 *from, int sides, int count, gg_pack<4> *weight) {
#pragma unroll
    for (int j = 0; j < N; ++j)
        if (j == 0 || j * sides < count)
            weight[j] = gg_load_pack<4>(reinterpret_cast<const float *>(from + j * sides * WARP));
}

/* N: max sixteens of filters of a warp. A step's weight is loaded during the computation of the previous step. */
template <int N> static __global__ void __launch_bounds__(GG_BLOCK, 2) conv_tiled(conv_work a) {
    GG_DYNAMIC_SHARED(float, tile);
    const int lane = (int)threadIdx.x % WARP, warp = (int)threadIdx.x / WARP, g = lane / 4, k = lane % 4;
    const int part = warp & (a.along - 1), side = warp / a.along, sides = WARPS / a.along;
    const int runs = a.t.rows * a.t.columns, all = sixteens(a.s.filters), chunks = eights(a.s.channels);
    const int first = (int)blockIdx.y * a.filters_of_block + side;
    const int end = min((int)(blockIdx.y + 1) * a.filters_of_block, all), count = end - first;
    const float4 *const weight = gg_kept(reinterpret_cast<const float4 *>(a.weight) + (first * WARP + lane));
    const int steps = a.s.kernel[0] * a.s.kernel[1] * chunks;
    int at[RUNS]; /* of the lane's pixel and channels, from a tap's first pixel on */
#pragma unroll
    for (int i = 0; i < RUNS; ++i) {
        const int run = RUNS * part + i < runs ? RUNS * part + i : 0, row = run / a.t.columns;
        const int column = (run - row * a.t.columns) * EIGHT + g;
        at[i] = (row * a.s.stride[0] * a.t.width + column * a.s.stride[1]) * a.source.row + 2 * k;
    }
    for (int64_t number = blockIdx.x; number < a.t.count; number += gridDim.x) {
        const tile_place place = place_of_tile(a.t, number);
        __syncthreads(); /* all have read the previous tile */
        load_tile<GG_BLOCK>(a.source, a.t.height * a.t.width, place.sample, place.row * a.s.stride[0] - a.s.padding[0],
                            place.column * a.s.stride[1] - a.s.padding[1], tile);
        __syncthreads();
        if (RUNS * part >= runs || count <= 0) continue;
        float sum[N][RUNS][4] = {};
        gg_pack<4> left[N] = {};
        int step = 0, from = 0;
        load_weight<N>(weight, sides, count, left);
        for (int h = 0; h < a.s.kernel[0]; ++h) {
            int tap = h * a.s.dilation[0] * a.t.width * a.source.row;
            for (int w = 0; w < a.s.kernel[1]; ++w, tap += a.s.dilation[1] * a.source.row) {
                const float *x = tile + tap;
#pragma unroll 2
                for (int c = 0; c < chunks; ++c, x += EIGHT) {
                    gg_pack<4> next[N] = {};
                    from += ++step < steps ? all * WARP : 0;
                    load_weight<N>(weight + from, sides, count, next);
#pragma unroll
                    for (int i = 0; i < RUNS; ++i) {
                        const float2 right = two_of(x + at[i]);
#pragma unroll
                        for (int j = 0; j < N; ++j) gg_product_tf32(sum[j][i], left[j].at, right);
                    }
#pragma unroll
                    for (int j = 0; j < N; ++j) left[j] = next[j];
                }
            }
        }
        float *const image = a.y + place.sample * a.s.output[0] * a.s.output[1] * a.s.filters;
#pragma unroll
        for (int j = 0; j < N; ++j) {
#pragma unroll
            for (int i = 0; i < 2 * RUNS; ++i) {
                const int run = RUNS * part + i / 2, down = run / a.t.columns, row = place.row + down;
                const int column = place.column + (run - down * a.t.columns) * EIGHT + 2 * k + i % 2;
                if (run >= runs || row >= a.s.output[0] || column >= a.s.output[1] || j * sides >= count) continue;
                float *y = image + (row * a.s.output[1] + column) * a.s.filters;
#pragma unroll
                for (int half = 0; half < 2; ++half) {
                    const int filter = (first + j * sides) * SIXTEEN + g + EIGHT * half;
                    if (filter >= a.s.filters) continue;
                    float v = sum[j][i / 2][i % 2 + 2 * half];
                    if (a.bias != NULL) v += a.bias[filter];
                    y[filter] = a.relu ? gated(v, v) : v;
                }
            }
        }
    }
}

/* The weight in the lanes' reading order: (tap, eight of channels, sixteen of filters, lane, two channels, two filters
 * 8 apart). */
static __global__ void conv_tiled_weight(gg_cuda_tiled_shape s, int mirrored, const float *weight, float *out) {
    const int taps = s.kernel[0] * s.kernel[1], chunks = eights(s.channels), all = sixteens(s.filters);
    const int n = taps * chunks * all * WARP * 4;
    for (int64_t i = gg_thread_number(); i < n; i += gg_thread_count()) {
        const int which = (int)i % 4, lane = (int)i / 4 % WARP, block = (int)i / (4 * WARP);
        const int filter = block % all * SIXTEEN + lane / 4 + which % 2 * EIGHT, tap = block / all / chunks;
        const int channel = block / all % chunks * EIGHT + lane % 4 * 2 + which / 2;
        float v = 0;
        if (filter < s.filters && channel < s.channels)
            v = mirrored ? weight[((int64_t)channel * s.filters + filter) * taps + taps - 1 - tap]
                         : weight[((int64_t)filter * s.channels + channel) * taps + tap];
        out[i] = gg_tf32(v);
    }
}

bool gg_cuda_tiled_fits(const gg_cuda_tiled_shape *s) {
    conv_tiles t;
    return s->channels <= MAX_TILED_CHANNELS && s->filters <= MAX_TILED_CHANNELS &&
           tiles_of(s, row_of(EIGHT * eights(s->channels)), 0, &t);
}

size_t gg_cuda_tiled_weight_bytes(const gg_cuda_tiled_shape *s) {
    return (size_t)s->kernel[0] * s->kernel[1] * eights(s->channels) * sixteens(s->filters) * WARP * 4 * sizeof(float);
}

void gg_cuda_tiled_weight(gg_cuda_stream stream, const gg_cuda_tiled_shape *s, bool mirrored, const float *weight,
                          void *out) {
    const int64_t values = (int64_t)(gg_cuda_tiled_weight_bytes(s) / sizeof(float));
    GG_LAUNCH(conv_tiled_weight, dim3(blocks_for(values, GG_BLOCK)), dim3(GG_BLOCK), 0, stream, *s, (int)mirrored,
              weight, (float *)out);
}

template <int N> static void launch_tiled(gg_cuda_stream stream, const conv_work &work, int blocks_of_filters) {
    const size_t shared = (size_t)work.t.height * work.t.width * work.source.row * sizeof(float);
    GG_LAUNCH((conv_tiled<N>), dim3(blocks_for(work.t.count, 1), (unsigned)blocks_of_filters), dim3(GG_BLOCK), shared,
              stream, work);
}

void gg_cuda_tiled(gg_cuda_stream stream, const gg_cuda_tiled_args *args) {
    const gg_cuda_tiled_shape *s = &args->shape;
    const int values = EIGHT * eights(s->channels), all = sixteens(s->filters);
    conv_work work = {};
    work.s = *s;
    tiles_of(s, row_of(values), 0, &work.t);
    work.source = source_of(args->input, s->image, s->channels, values, work.t.width);
    work.relu = args->relu;
    work.weight = (const float *)args->weight;
    work.bias = args->bias;
    work.y = args->output;
    work.along = 1;
    while (RUNS * work.along < work.t.rows * work.t.columns) work.along *= 2;
    const int sides = WARPS / work.along;
    /* With few tiles, filters are spread over more blocks, down to one sixteen for each warp. */
    int blocks = (int)ceil_div(all, MAX_OF_WARP * sides);
    while (work.t.count * blocks < ENOUGH_BLOCKS / 4 && ceil_div(all, 2 * blocks) >= sides) blocks *= 2;
    work.filters_of_block = (int)ceil_div(all, blocks);
    blocks = (int)ceil_div(all, work.filters_of_block); /* blocks with filters */
    const int of_warp = (int)ceil_div(work.filters_of_block, sides);
    if (of_warp <= 1) launch_tiled<1>(stream, work, blocks);
    else launch_tiled<MAX_OF_WARP>(stream, work, blocks);
}

/* ------------------------------------------------------------------------------------------ gradient of the weight
 *
 * A block sums a piece of the tiles, for up to 64 filters and all taps of one or two eights of channels. Products
 * combine 16 filters and 8 channels of one tap over 8 neighbouring outputs. Each warp has its own taps; nine warps
 * divide a 3 x 3 window evenly. Then the pieces are added in order. */

constexpr int TAP_WARPS = 9, TAP_THREADS = TAP_WARPS * WARP;
constexpr int MAX_TAPS = 3;                         /* of a warp */
constexpr int64_t LARGE_GRADIENT = (int64_t)1 << 13; /* values */

struct gradient_work {
    gg_cuda_tiled_shape s;
    conv_tiles t;
    tile_source image, error;
    int64_t pieces;
    int blocks_of_channels;
    float *partial; /* (piece, tap, filter, channel) */
};

/* M: sixteens of filters; E: eights of channels; N: max taps of a warp. */
template <int M, int E, int N>
static __global__ void __launch_bounds__(TAP_THREADS, M *N > 8 ? 1 : 2) conv_gradient(gradient_work a) {
    GG_DYNAMIC_SHARED(float, error);
    const int runs = a.t.rows * a.t.columns;
    float *const tile = error + runs * EIGHT * a.error.row;
    const int lane = (int)threadIdx.x % WARP, warp = (int)threadIdx.x / WARP, g = lane / 4, k = lane % 4;
    const int taps = a.s.kernel[0] * a.s.kernel[1];
    tile_source image = a.image, errors = a.error;
    image.first = (int)blockIdx.y % a.blocks_of_channels * E * EIGHT;
    errors.first = (int)blockIdx.y / a.blocks_of_channels * 16 * M;
    int at[N];
#pragma unroll
    for (int j = 0; j < N; ++j) {
        const int tap = min(warp + j * TAP_WARPS, taps - 1), h = tap / a.s.kernel[1], w = tap - h * a.s.kernel[1];
        at[j] = (h * a.s.dilation[0] * a.t.width + w * a.s.dilation[1]) * image.row;
    }
    float sum[N][E][M][4] = {};
    const int later = 4 * a.s.stride[1] * image.row, next_run = EIGHT * a.s.stride[1] * image.row;
    const int next_row = a.s.stride[0] * a.t.width * image.row;
    const int64_t piece = blockIdx.x, end = a.t.count * (piece + 1) / a.pieces;
    for (int64_t number = a.t.count * piece / a.pieces; number < end; ++number) {
        const tile_place place = place_of_tile(a.t, number);
        __syncthreads(); /* all have read the previous tile */
        load_tile<TAP_THREADS>(errors, runs * EIGHT, place.sample, place.row, place.column, error);
        load_tile<TAP_THREADS>(image, a.t.height * a.t.width, place.sample, place.row * a.s.stride[0] - a.s.padding[0],
                               place.column * a.s.stride[1] - a.s.padding[1], tile);
        __syncthreads();
        if (warp >= taps) continue;
        const float *d = error + k * a.error.row + 2 * g;
        const float *line = tile + k * a.s.stride[1] * image.row + g;
        for (int row = 0; row < a.t.rows; ++row, line += next_row) {
            const float *x = line;
#pragma unroll 2
            for (int column = 0; column < a.t.columns; ++column, x += next_run, d += EIGHT * a.error.row) {
                float left[M][4];
#pragma unroll
                for (int m = 0; m < M; ++m) {
                    const float2 now = two_of(d + 16 * m), then = two_of(d + 4 * a.error.row + 16 * m);
                    left[m][0] = now.x;
                    left[m][1] = now.y;
                    left[m][2] = then.x;
                    left[m][3] = then.y;
                }
#pragma unroll
                for (int j = 0; j < N; ++j) {
                    if (j > 0 && warp + j * TAP_WARPS >= taps) continue;
#pragma unroll
                    for (int e = 0; e < E; ++e) {
                        const float *from = x + at[j] + EIGHT * e;
                        const float2 right = make_float2(from[0], from[later]);
#pragma unroll
                        for (int m = 0; m < M; ++m) gg_product_tf32(sum[j][e][m], left[m], right);
                    }
                }
            }
        }
    }
#pragma unroll
    for (int j = 0; j < N; ++j) {
        const int tap = warp + j * TAP_WARPS;
        if (tap >= taps) continue;
#pragma unroll
        for (int i = 0; i < 2 * M; ++i) {
            const int filter = errors.first + 16 * (i / 2) + 2 * g + i % 2;
            if (filter >= a.s.filters) continue;
            float *to = a.partial + ((piece * taps + tap) * a.s.filters + filter) * a.s.channels;
#pragma unroll
            for (int v = 0; v < 2 * E; ++v) {
                const int channel = image.first + EIGHT * (v / 2) + 2 * k + v % 2;
                if (channel < a.s.channels) to[channel] = sum[j][v / 2][i / 2][2 * (i % 2) + v % 2];
            }
        }
    }
}

/* A warp's lanes have adjacent elements; the warps of a block have different pieces. */
static __global__ void conv_gradient_sum(const float *partial, int64_t pieces, int taps, int filters, int channels,
                                         float *gradient) {
    GG_SHARED(float, sums, [WARPS][WARP]);
    const int64_t n = (int64_t)taps * filters * channels;
    const int lane = (int)threadIdx.x % WARP, warp = (int)threadIdx.x / WARP;
    for (int64_t base = (int64_t)blockIdx.x * WARP; base < n; base += (int64_t)gridDim.x * WARP) {
        float sum = 0;
        if (base + lane < n) {
#pragma unroll 4
            for (int64_t piece = warp; piece < pieces; piece += WARPS) sum += partial[piece * n + base + lane];
        }
        __syncthreads();
        sums[warp][lane] = sum;
        __syncthreads();
        if (warp != 0 || base + lane >= n) continue;
        for (int i = 1; i < WARPS; ++i) sum += sums[i][lane];
        const int64_t of_tap = (int64_t)filters * channels, tap = (base + lane) / of_tap;
        gradient[(base + lane - tap * of_tap) * taps + tap] = sum;
    }
}

/* Division of the work: sixteens of filters and eights of channels of a block, and blocks of each piece. */
struct gradient_parts {
    int of_filters, of_channels, count;
};

/* False means that it does not fit. */
static bool gradient_of(const gg_cuda_tiled_shape *s, gradient_work *out, gradient_parts *parts) {
    const int taps = s->kernel[0] * s->kernel[1], all = sixteens(s->filters), chunks = eights(s->channels);
    gradient_work a = {};
    gradient_parts p = {};
    if (taps > MAX_TAPS * TAP_WARPS || s->channels > MAX_TILED_CHANNELS || s->filters > MAX_TILED_CHANNELS)
        return false;
    p.of_filters = all > 2 ? 4 : all;
    p.of_channels = chunks > 1 && taps <= TAP_WARPS ? 2 : 1;
    a.s = *s;
    if (!tiles_of(s, row_of(EIGHT * p.of_channels), row_of(16 * p.of_filters), &a.t)) return false;
    a.blocks_of_channels = (int)ceil_div(chunks, p.of_channels);
    p.count = a.blocks_of_channels * (int)ceil_div(all, p.of_filters);
    /* More pieces keep more blocks busy, but need more additions. */
    const bool large = (int64_t)taps * s->filters * s->channels > LARGE_GRADIENT;
    a.pieces = ceil_div(large ? ENOUGH_BLOCKS / 4 : ENOUGH_BLOCKS / 2, p.count);
    if (a.pieces > a.t.count) a.pieces = a.t.count;
    *out = a;
    *parts = p;
    return true;
}

bool gg_cuda_tiled_gradient_fits(const gg_cuda_tiled_shape *s) {
    gradient_work a;
    gradient_parts parts;
    return gradient_of(s, &a, &parts);
}

size_t gg_cuda_tiled_gradient_scratch(const gg_cuda_tiled_shape *s) {
    gradient_work a;
    gradient_parts parts;
    if (!gradient_of(s, &a, &parts)) return 0;
    return (size_t)a.pieces * (size_t)(s->kernel[0] * s->kernel[1] * s->filters * s->channels) * sizeof(float);
}

template <int M> static void launch_gradient(gg_cuda_stream stream, const gradient_work &a, const gradient_parts &p) {
    const dim3 grid((unsigned)a.pieces, (unsigned)p.count), block(TAP_THREADS);
    const size_t floats =
        (size_t)a.t.rows * a.t.columns * EIGHT * a.error.row + (size_t)a.t.height * a.t.width * a.image.row;
    const size_t shared = floats * sizeof(float);
    if (p.of_channels == 2) GG_LAUNCH((conv_gradient<M, 2, 1>), grid, block, shared, stream, a);
    else if (a.s.kernel[0] * a.s.kernel[1] <= TAP_WARPS)
        GG_LAUNCH((conv_gradient<M, 1, 1>), grid, block, shared, stream, a);
    else GG_LAUNCH((conv_gradient<M, 1, MAX_TAPS>), grid, block, shared, stream, a);
}

void gg_cuda_tiled_gradient(gg_cuda_stream stream, const gg_cuda_tiled_gradient_args *args) {
    const gg_cuda_tiled_shape *s = &args->shape;
    const int taps = s->kernel[0] * s->kernel[1];
    gradient_work a;
    gradient_parts p;
    if (!gradient_of(s, &a, &p)) return;
    a.image = source_of(args->input, s->image, s->channels, EIGHT * p.of_channels, a.t.width);
    a.error = source_of(args->error, s->output, s->filters, 16 * p.of_filters, EIGHT * a.t.columns);
    a.partial = (float *)args->scratch;
    if (p.of_filters == 1) launch_gradient<1>(stream, a, p);
    else if (p.of_filters == 2) launch_gradient<2>(stream, a, p);
    else launch_gradient<4>(stream, a, p);
    GG_LAUNCH(conv_gradient_sum, dim3(blocks_for((int64_t)taps * s->filters * s->channels, WARP)), dim3(GG_BLOCK), 0,
              stream, (const float *)args->scratch, a.pieces, taps, s->filters, s->channels, args->gradient);
}
