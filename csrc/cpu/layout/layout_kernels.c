/* Conversion between consecutive samples (PLAIN) and samples as lanes (BATCH_LAST), in blocks of 16 x 16. */
#include "cpu/simd/simd.h"

#define L GG_LANES

/* to[j*to_row + i] = from[i*from_row + j] for i, j < 16, at any alignment. */
static inline void transpose_block(const float *from, int64_t from_row, float *to, int64_t to_row) {
#ifdef TURN_SIDE
    for (int64_t i = 0; i < L; i += TURN_SIDE)
        for (int64_t j = 0; j < L; j += TURN_SIDE)
            turn_square(from + i * from_row + j, from_row, to + j * to_row + i, to_row);
#else
    for (int64_t j = 0; j < L; ++j)
        for (int64_t i = 0; i < L; ++i) to[j * to_row + i] = from[i * from_row + j];
#endif
}

/* Loads rows x columns of a block; the rest of the 16 x 16 becomes zeros. */
static void load_part(const float *from, int64_t from_row, int64_t rows, int64_t columns, float block[L * L]) {
    memset(block, 0, L * L * sizeof(float));
    for (int64_t i = 0; i < rows; ++i) memcpy(block + i * L, from + i * from_row, (size_t)columns * sizeof(float));
}

static int64_t at_most_lanes(int64_t n) { return n < L ? n : L; }

static void to_lanes(int64_t n, int64_t values, int64_t begin, int64_t end, const float *in, float *out) {
    const int64_t padded = gg_lanes_padded(n);
    _Alignas(64) float block[L * L], transposed[L * L];
    for (int64_t v = begin; v < end; v += L) {
        const int64_t columns = at_most_lanes(end - v);
        for (int64_t s = 0; s < n; s += L) {
            const int64_t rows = at_most_lanes(n - s);
            const float *from = in + s * values + v;
            float *to = out + v * padded + s;
            if (rows == L && columns == L) {
                transpose_block(from, values, to, padded);
                continue;
            }
            load_part(from, values, rows, columns, block);
            transpose_block(block, L, transposed, L);
            for (int64_t j = 0; j < columns; ++j) memcpy(to + j * padded, transposed + j * L, L * sizeof(float));
        }
    }
}

static void from_lanes(int64_t n, int64_t values, int64_t begin, int64_t end, const float *in, float *out) {
    const int64_t padded = gg_lanes_padded(n);
    _Alignas(64) float block[L * L], transposed[L * L];
    for (int64_t s = 0; s < n; s += L) {
        const int64_t rows = at_most_lanes(n - s);
        for (int64_t v = begin; v < end; v += L) {
            const int64_t columns = at_most_lanes(end - v);
            const float *from = in + v * padded + s;
            float *to = out + s * values + v;
            if (rows == L && columns == L) {
                transpose_block(from, padded, to, values);
                continue;
            }
            load_part(from, padded, columns, L, block);
            transpose_block(block, L, transposed, L);
            for (int64_t i = 0; i < rows; ++i)
                memcpy(to + i * values, transposed + i * L, (size_t)columns * sizeof(float));
        }
    }
}

/* A block: its numbers of the first sample, the row of its first channel, and the number of rows. */
typedef struct image_block {
    uint16_t *narrow;
    float *lanes;
    int64_t rows;
} image_block;

static image_block block_at(const gg_cpu_images *images, int64_t at) {
    const int64_t blocks = gg_lanes_padded(images->channels) / L, pixel = at / blocks, block = at % blocks;
    return (image_block){.narrow = images->narrow + block * images->block + pixel * images->pixel,
                         .lanes =
                             images->lanes + (block * L * images->pixels + pixel) * gg_lanes_padded(images->samples),
                         .rows = at_most_lanes(images->channels - block * L)};
}

static void widen_row(const uint16_t *in, int64_t n, float out[L]) {
    uint16_t part[L] = {0};
    if (n < L) in = memcpy(part, in, (size_t)n * sizeof *in);
    for (size_t i = 0; i < L; i += FLOATS) *(floats *)(out + i) = load_narrow(in + i);
}

static void narrow_row(const float in[L], int64_t n, uint16_t *out) {
    uint16_t part[L], *to = n < L ? part : out;
    for (size_t i = 0; i < L; i += FLOATS) *(halves *)(to + i) = narrowed(rounded_words(load(in + i)));
    if (n < L) memcpy(out, part, (size_t)n * sizeof *out);
}

static void widen_images(const gg_cpu_images *images, int64_t begin, int64_t end) {
    const int64_t padded = gg_lanes_padded(images->samples), row = images->pixels * padded;
    _Alignas(64) float block[L * L], turned[L * L];
    for (int64_t at = begin; at < end; ++at) {
        const image_block it = block_at(images, at);
        const int64_t columns = images->padded ? L : it.rows;
        for (int64_t s = 0; s < padded; s += L) {
            const int64_t samples = at_most_lanes(images->samples - s);
            if (samples < L) memset(block, 0, sizeof block);
            for (int64_t i = 0; i < samples; ++i)
                widen_row(it.narrow + (s + i) * images->sample, columns, block + i * L);
            if (it.rows == L) {
                transpose_block(block, L, it.lanes + s, row);
                continue;
            }
            transpose_block(block, L, turned, L);
            for (int64_t j = 0; j < it.rows; ++j) memcpy(it.lanes + s + j * row, turned + j * L, L * sizeof(float));
        }
    }
}

static void narrow_images(const gg_cpu_images *images, int64_t begin, int64_t end) {
    const int64_t padded = gg_lanes_padded(images->samples), row = images->pixels * padded;
    _Alignas(64) float block[L * L], turned[L * L];
    for (int64_t at = begin; at < end; ++at) {
        const image_block it = block_at(images, at);
        const int64_t columns = images->padded ? L : it.rows;
        if (it.rows < L) memset(block, 0, sizeof block);
        for (int64_t s = 0; s < padded; s += L) {
            const int64_t samples = at_most_lanes(images->samples - s);
            if (it.rows == L) {
                transpose_block(it.lanes + s, row, turned, L);
            } else {
                for (int64_t j = 0; j < it.rows; ++j) memcpy(block + j * L, it.lanes + s + j * row, L * sizeof(float));
                transpose_block(block, L, turned, L);
            }
            for (int64_t i = 0; i < samples; ++i)
                narrow_row(turned + i * L, columns, it.narrow + (s + i) * images->sample);
        }
    }
}

static void row_from_bytes(int64_t n, const uint8_t *in, float scale, float shift, float *out) {
    for (int64_t i = 0; i < n; ++i) out[i] = scale * (float)in[i] + shift;
}

static void row_from_floats(int64_t n, const float *in, float scale, float shift, float *out) {
    for (int64_t i = 0; i < n; ++i) out[i] = scale * in[i] + shift;
}

static void row_from_numbers(int64_t n, const int32_t *in, float scale, float shift, float *out) {
    for (int64_t i = 0; i < n; ++i) out[i] = scale * (float)in[i] + shift;
}

static int64_t gather_row(const gg_gather_args *args, int64_t sample) {
    return args->index != NULL ? (int64_t)args->index[sample] : sample;
}

/* Scaling of sixteen values of a sample, from `first` on. */
typedef struct scaling {
    _Alignas(64) float scale[L];
    float shift[L];
} scaling;

static void find_scaling(const gg_gather_args *args, int64_t first, scaling *out) {
    const int64_t each = args->runs > 0 ? args->values / args->runs : 0;
    for (int64_t j = 0; j < L; ++j) {
        const int64_t at = first + j < args->values ? first + j : args->values - 1;
        const int64_t run = each > 0 ? at / each : 0;
        out->scale[j] = each > 0 ? args->scales[run] : args->scale;
        out->shift[j] = each > 0 ? args->scales[args->runs + run] : args->shift;
    }
}

static void block_from_bytes(int64_t n, const uint8_t *in, const scaling *s, float *out) {
    for (int64_t i = 0; i < n; ++i) out[i] = s->scale[i] * (float)in[i] + s->shift[i];
}

static void block_from_floats(int64_t n, const float *in, const scaling *s, float *out) {
    for (int64_t i = 0; i < n; ++i) out[i] = s->scale[i] * in[i] + s->shift[i];
}

static void block_from_numbers(int64_t n, const int32_t *in, const scaling *s, float *out) {
    for (int64_t i = 0; i < n; ++i) out[i] = s->scale[i] * (float)in[i] + s->shift[i];
}

#if defined(__AVX512F__)
/* A whole block of bytes, transposed in registers: 16 x 16 values from `first` on of the samples from `sample` on. */
static void gather_bytes(const gg_gather_args *args, const scaling *s, int64_t sample, int64_t first, float *to,
                         int64_t to_row) {
    const __m512 scale = _mm512_load_ps(s->scale), shift = _mm512_load_ps(s->shift);
    __m512 a[L];
#pragma GCC unroll 16
    for (int i = 0; i < L; ++i) {
        const uint8_t *in = (const uint8_t *)args->rows + gather_row(args, sample + i) * args->values + first;
        const __m512i wide = _mm512_cvtepu8_epi32(_mm_loadu_si128((const __m128i *)(const void *)in));
        a[i] = _mm512_fmadd_ps(_mm512_cvtepi32_ps(wide), scale, shift);
    }
    turn(a);
#pragma GCC unroll 16
    for (int i = 0; i < L; ++i) _mm512_storeu_ps(to + i * to_row, a[i]);
}
#endif

/* Sixteen values of sixteen samples, scaled; missing samples give zeros. */
static void gather_block(const gg_gather_args *args, const scaling *s, int64_t sample, int64_t first,
                         float block[L * L]) {
    const int64_t rows = at_most_lanes(args->n - sample), columns = at_most_lanes(args->values - first);
    if (rows < L || columns < L) memset(block, 0, L * L * sizeof(float));
    for (int64_t i = 0; i < rows; ++i) {
        const int64_t at = gather_row(args, sample + i) * args->values + first;
        if (args->dtype == GG_UINT8) {
            const uint8_t *in = (const uint8_t *)args->rows + at;
            if (columns == L) block_from_bytes(L, in, s, block + i * L);
            else block_from_bytes(columns, in, s, block + i * L);
        } else if (args->dtype == GG_INT32) {
            block_from_numbers(columns, (const int32_t *)args->rows + at, s, block + i * L);
        } else {
            const float *in = (const float *)args->rows + at;
            if (columns == L) block_from_floats(L, in, s, block + i * L);
            else block_from_floats(columns, in, s, block + i * L);
        }
    }
}

static void gather_plain(const gg_gather_args *args, int64_t begin, int64_t end) {
    const int64_t runs = args->runs > 0 ? args->runs : 1, each = args->values / runs;
    for (int64_t s = begin; s < end; ++s)
        for (int64_t r = 0; r < runs; ++r) {
            const int64_t at = gather_row(args, s) * args->values + r * each;
            const float scale = args->runs > 0 ? args->scales[r] : args->scale;
            const float shift = args->runs > 0 ? args->scales[runs + r] : args->shift;
            float *out = (float *)args->out + s * args->values + r * each;
            if (args->dtype == GG_UINT8) row_from_bytes(each, (const uint8_t *)args->rows + at, scale, shift, out);
            else if (args->dtype == GG_INT32)
                row_from_numbers(each, (const int32_t *)args->rows + at, scale, shift, out);
            else row_from_floats(each, (const float *)args->rows + at, scale, shift, out);
        }
}

static void gather_numbers(const gg_gather_args *args, int64_t begin, int64_t end) {
    for (int64_t s = begin; s < end; ++s) {
        const int64_t at = gather_row(args, s) * args->values;
        int32_t *out = (int32_t *)args->out + s * args->values;
        if (args->dtype == GG_UINT8) {
            const uint8_t *in = (const uint8_t *)args->rows + at;
            for (int64_t i = 0; i < args->values; ++i) out[i] = in[i];
        } else {
            memcpy(out, (const int32_t *)args->rows + at, (size_t)args->values * sizeof *out);
        }
    }
}

static void layout_gather(const gg_gather_args *args, int64_t begin, int64_t end) {
    if (args->layout != GG_LAYOUT_BATCH_LAST) {
        if (args->wanted == GG_INT32) gather_numbers(args, begin, end);
        else gather_plain(args, begin, end);
        return;
    }
    const int64_t padded = gg_lanes_padded(args->n);
    _Alignas(64) float block[L * L], transposed[L * L];
    scaling how;
    for (int64_t v = begin; v < end; v += L) {
        find_scaling(args, v, &how);
        for (int64_t s = 0; s < args->n; s += L) {
            const int64_t columns = at_most_lanes(end - v);
            float *to = (float *)args->out + v * padded + s;
#if defined(__AVX512F__)
            if (args->dtype == GG_UINT8 && columns == L && args->n - s >= L) {
                gather_bytes(args, &how, s, v, to, padded);
                continue;
            }
#endif
            gather_block(args, &how, s, v, block);
            if (columns == L) {
                transpose_block(block, L, to, padded);
                continue;
            }
            transpose_block(block, L, transposed, L);
            for (int64_t j = 0; j < columns; ++j) memcpy(to + j * padded, transposed + j * L, L * sizeof(float));
        }
    }
}

const gg_cpu_layout GG_VARIANT(gg_cpu_layout) = {
    .gather = layout_gather,
    .to_lanes = to_lanes,
    .from_lanes = from_lanes,
    .widen_images = widen_images,
    .narrow_images = narrow_images,
};
