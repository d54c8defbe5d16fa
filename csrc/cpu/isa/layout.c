/* Between samples one after the other (PLAIN) and samples as lanes (BATCH_LAST), in blocks of 16 x 16. */
#include "cpu/isa/isa.h"

#if defined(__AVX2__)
#include <immintrin.h>
#endif

#define L GG_LANES

#if defined(__AVX512F__)
/* to[j*to_stride + i] = element j of a[i]; a is used up. */
static inline __attribute__((always_inline)) void store_transposed(__m512 a[L], float *to, size_t to_stride) {
    __m512 b[L];
    for (int i = 0; i < L; i += 2) {
        b[i] = _mm512_unpacklo_ps(a[i], a[i + 1]);
        b[i + 1] = _mm512_unpackhi_ps(a[i], a[i + 1]);
    }
    /* a[i + k]: element 4q + k of rows i..i+3, in quarter q. */
    for (int i = 0; i < L; i += 4) {
        a[i] = _mm512_shuffle_ps(b[i], b[i + 2], 0x44);
        a[i + 1] = _mm512_shuffle_ps(b[i], b[i + 2], 0xee);
        a[i + 2] = _mm512_shuffle_ps(b[i + 1], b[i + 3], 0x44);
        a[i + 3] = _mm512_shuffle_ps(b[i + 1], b[i + 3], 0xee);
    }
    for (int k = 0; k < 4; ++k) {
        b[k] = _mm512_shuffle_f32x4(a[k], a[4 + k], 0x88); /* quarters 0 2 of rows 0..3, then of 4..7 */
        b[4 + k] = _mm512_shuffle_f32x4(a[k], a[4 + k], 0xdd);
        b[8 + k] = _mm512_shuffle_f32x4(a[8 + k], a[12 + k], 0x88);
        b[12 + k] = _mm512_shuffle_f32x4(a[8 + k], a[12 + k], 0xdd);
    }
    for (int k = 0; k < 4; ++k) {
        _mm512_storeu_ps(to + (size_t)k * to_stride, _mm512_shuffle_f32x4(b[k], b[8 + k], 0x88));
        _mm512_storeu_ps(to + (size_t)(4 + k) * to_stride, _mm512_shuffle_f32x4(b[4 + k], b[12 + k], 0x88));
        _mm512_storeu_ps(to + (size_t)(8 + k) * to_stride, _mm512_shuffle_f32x4(b[k], b[8 + k], 0xdd));
        _mm512_storeu_ps(to + (size_t)(12 + k) * to_stride, _mm512_shuffle_f32x4(b[4 + k], b[12 + k], 0xdd));
    }
}
#endif

/* to[j*to_stride + i] = from[i*from_stride + j] for i, j < 16; nothing need be aligned. */
static inline void transpose_block(const float *from, size_t from_stride, float *to, size_t to_stride) {
#if defined(__AVX512F__)
    __m512 a[L];
    for (int i = 0; i < L; ++i) a[i] = _mm512_loadu_ps(from + (size_t)i * from_stride);
    store_transposed(a, to, to_stride);
#elif defined(__AVX2__)
    for (size_t y = 0; y < L; y += 8) {
        for (size_t x = 0; x < L; x += 8) {
            __m256 a[8], b[8];
            for (size_t i = 0; i < 8; ++i) a[i] = _mm256_loadu_ps(from + (y + i) * from_stride + x);
            for (size_t i = 0; i < 8; i += 2) {
                b[i] = _mm256_unpacklo_ps(a[i], a[i + 1]);
                b[i + 1] = _mm256_unpackhi_ps(a[i], a[i + 1]);
            }
            for (size_t i = 0; i < 8; i += 4) {
                a[i] = _mm256_shuffle_ps(b[i], b[i + 2], 0x44);
                a[i + 1] = _mm256_shuffle_ps(b[i], b[i + 2], 0xee);
                a[i + 2] = _mm256_shuffle_ps(b[i + 1], b[i + 3], 0x44);
                a[i + 3] = _mm256_shuffle_ps(b[i + 1], b[i + 3], 0xee);
            }
            for (size_t k = 0; k < 4; ++k) {
                _mm256_storeu_ps(to + (x + k) * to_stride + y, _mm256_permute2f128_ps(a[k], a[4 + k], 0x20));
                _mm256_storeu_ps(to + (x + 4 + k) * to_stride + y, _mm256_permute2f128_ps(a[k], a[4 + k], 0x31));
            }
        }
    }
#else
    for (size_t j = 0; j < L; ++j)
        for (size_t i = 0; i < L; ++i) to[j * to_stride + i] = from[i * from_stride + j];
#endif
}

/* rows x columns of a block; the rest of the 16 x 16 becomes zeros. */
static void load_part(const float *from, size_t stride, int64_t rows, int64_t columns, float block[L * L]) {
    memset(block, 0, L * L * sizeof(float));
    for (int64_t i = 0; i < rows; ++i)
        memcpy(block + i * L, from + (size_t)i * stride, (size_t)columns * sizeof(float));
}

static int64_t at_most_lanes(int64_t n) { return n < L ? n : L; }

static void to_lanes(int64_t n, int64_t values, int64_t begin, int64_t end, const float *in, float *out) {
    const size_t padded = (size_t)gg_lanes_padded(n), stride = (size_t)values;
    _Alignas(64) float block[L * L], transposed[L * L];
    for (int64_t v = begin; v < end; v += L) {
        const int64_t columns = at_most_lanes(end - v);
        for (int64_t s = 0; s < n; s += L) {
            const int64_t rows = at_most_lanes(n - s);
            const float *from = in + (size_t)s * stride + v;
            float *to = out + (size_t)v * padded + s;
            if (rows == L && columns == L) {
                transpose_block(from, stride, to, padded);
                continue;
            }
            load_part(from, stride, rows, columns, block);
            transpose_block(block, L, transposed, L);
            for (int64_t j = 0; j < columns; ++j)
                memcpy(to + (size_t)j * padded, transposed + j * L, L * sizeof(float));
        }
    }
}

static void from_lanes(int64_t n, int64_t values, int64_t begin, int64_t end, const float *in, float *out) {
    const size_t padded = (size_t)gg_lanes_padded(n), stride = (size_t)values;
    _Alignas(64) float block[L * L], transposed[L * L];
    for (int64_t s = 0; s < n; s += L) {
        const int64_t rows = at_most_lanes(n - s);
        for (int64_t v = begin; v < end; v += L) {
            const int64_t columns = at_most_lanes(end - v);
            const float *from = in + (size_t)v * padded + s;
            float *to = out + (size_t)s * stride + v;
            if (rows == L && columns == L) {
                transpose_block(from, padded, to, stride);
                continue;
            }
            load_part(from, padded, columns, L, block);
            transpose_block(block, L, transposed, L);
            for (int64_t i = 0; i < rows; ++i)
                memcpy(to + (size_t)i * stride, transposed + i * L, (size_t)columns * sizeof(float));
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

/* How sixteen values of a sample from `value` on are scaled. */
typedef struct scaling {
    _Alignas(64) float scale[L];
    float shift[L];
} scaling;

static void find_scaling(const gg_gather_args *args, int64_t value, scaling *out) {
    const int64_t each = args->runs > 0 ? args->values / args->runs : 0;
    for (int64_t j = 0; j < L; ++j) {
        const int64_t at = value + j < args->values ? value + j : args->values - 1;
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
/* A whole block of bytes, transposed in registers: 16 x 16 values from `value` on of the samples from `sample` on. */
static void gather_bytes(const gg_gather_args *args, const scaling *s, int64_t sample, int64_t value, float *to,
                         size_t to_stride) {
    const __m512 scale = _mm512_load_ps(s->scale), shift = _mm512_load_ps(s->shift);
    __m512 a[L];
    for (int i = 0; i < L; ++i) {
        const uint8_t *in = (const uint8_t *)args->rows + gather_row(args, sample + i) * args->values + value;
        const __m512i wide = _mm512_cvtepu8_epi32(_mm_loadu_si128((const __m128i *)(const void *)in));
        a[i] = _mm512_fmadd_ps(_mm512_cvtepi32_ps(wide), scale, shift);
    }
    store_transposed(a, to, to_stride);
}
#endif

/* Sixteen values of sixteen samples, scaled; zeros where there is no sample. */
static void gather_block(const gg_gather_args *args, const scaling *s, int64_t sample, int64_t value,
                         float block[L * L]) {
    const int64_t rows = at_most_lanes(args->n - sample), columns = at_most_lanes(args->values - value);
    if (rows < L || columns < L) memset(block, 0, L * L * sizeof(float));
    for (int64_t i = 0; i < rows; ++i) {
        const int64_t at = gather_row(args, sample + i) * args->values + value;
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
                gather_bytes(args, &how, s, v, to, (size_t)padded);
                continue;
            }
#endif
            gather_block(args, &how, s, v, block);
            if (columns == L) {
                transpose_block(block, L, to, (size_t)padded);
                continue;
            }
            transpose_block(block, L, transposed, L);
            for (int64_t j = 0; j < columns; ++j) memcpy(to + j * padded, transposed + j * L, L * sizeof(float));
        }
    }
}

const gg_cpu_layout GG_VARIANT(gg_cpu_layout) = {
    .gather = layout_gather, .to_lanes = to_lanes, .from_lanes = from_lanes};
