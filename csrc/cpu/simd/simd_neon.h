/* NEON of aarch64: sixteen lanes are four vectors. Included by simd.h. simd_scalar.h describes each function. */
#ifndef GG_CPU_SIMD_SIMD_NEON_H
#define GG_CPU_SIMD_SIMD_NEON_H

#define GG_VECTOR 4
#define GG_MAX(a, b) ((floats)vmaxq_f32((a), (b)))
#define GG_TILE_ROWS 5 /* rows of any tile: 20 accumulators, 4 vectors and 5 scalars of 32 registers */
#define GG_TILE_WIDE 5
#define GG_PANEL_VECTORS 4
#define GG_PANEL_HALF 2
#define GG_DOT_ROWS 5
#define GG_DOT_COLS 4

/* All tile shapes, as X(rows, vectors). */
#define GG_TILE_LIST_NARROW(X, V) X(1, V) X(2, V) X(3, V) X(4, V) X(5, V)
#define GG_TILE_LIST_WIDE(X) GG_TILE_LIST_NARROW(X, 4)

/* All shapes of tiles of dot products, as X(rows, columns). */
#define GG_DOT_LIST_OF(X, C) X(1, C) X(2, C) X(3, C) X(4, C) X(5, C)
#define GG_DOT_LIST(X) GG_DOT_LIST_OF(X, 1) GG_DOT_LIST_OF(X, 2) GG_DOT_LIST_OF(X, 3) GG_DOT_LIST_OF(X, 4)

/* The statement for each of the N vectors i of a result r, which it returns. */
#define EACH_VECTOR(type, N, statement)                                                                                \
    type r;                                                                                                            \
    _Pragma("GCC unroll 4") for (int i = 0; i < (N); ++i) r.v[i] = statement;                                          \
    return r

/* The first n numbers at p; the others are zeros. n is 0 to 4. */
GG_INLINE float32x4_t neon_load_first(const float *p, int n) {
    float32x4_t v = vdupq_n_f32(0);
    if (n > 3) return vld1q_f32(p);
    if (n > 0) v = vld1q_lane_f32(p, v, 0);
    if (n > 1) v = vld1q_lane_f32(p + 1, v, 1);
    if (n > 2) v = vld1q_lane_f32(p + 2, v, 2);
    return v;
}
GG_INLINE void neon_store_first(float *p, int n, float32x4_t v) {
    if (n > 3) {
        vst1q_f32(p, v);
        return;
    }
    if (n > 0) vst1q_lane_f32(p, v, 0);
    if (n > 1) vst1q_lane_f32(p + 1, v, 1);
    if (n > 2) vst1q_lane_f32(p + 2, v, 2);
}
/* How many of the four lanes of vector i are among the first n of all. */
GG_INLINE int neon_left(int n, int i) { return n < 4 * i ? 0 : n - 4 * i > 4 ? 4 : n - 4 * i; }

/* Mask of the lanes of vector i that are below n. */
GG_INLINE uint32x4_t neon_below(int n, int i) {
    static const int32_t lane[4] = {0, 1, 2, 3};
    return vcltq_s32(vld1q_s32(lane), vdupq_n_s32(n - 4 * i));
}
/* Positive or NaN. */
GG_INLINE uint32x4_t neon_positive(float32x4_t a) { return vmvnq_u32(vclezq_f32(a)); }
GG_INLINE float32x4_t neon_select(uint32x4_t m, float32x4_t v) {
    return vreinterpretq_f32_u32(vandq_u32(m, vreinterpretq_u32_f32(v)));
}

/* ---- sixteen lanes ---- */

typedef struct lanes_f {
    float32x4_t v[4];
} lanes_f;
typedef struct lanes_i {
    int32x4_t v[4];
} lanes_i;
typedef struct lanes_mask {
    uint32x4_t v[4];
} lanes_mask;

static inline lanes_f lanes_load(const float *p) { EACH_VECTOR(lanes_f, 4, vld1q_f32(p + 4 * i)); }
static inline void lanes_store(float *p, lanes_f v) {
    for (int i = 0; i < 4; ++i) vst1q_f32(p + 4 * i, v.v[i]);
}
static inline lanes_f lanes_load_any(const float *p) { return lanes_load(p); }
static inline void lanes_store_any(float *p, lanes_f v) { lanes_store(p, v); }
static inline lanes_f lanes_load_part(const float *p, int n) {
    EACH_VECTOR(lanes_f, 4, neon_load_first(p + 4 * i, neon_left(n, i)));
}
static inline void lanes_store_part(float *p, int n, lanes_f v) {
    for (int i = 0; i < 4; ++i) neon_store_first(p + 4 * i, neon_left(n, i), v.v[i]);
}
static inline lanes_f lanes_first(int n, lanes_f v) { EACH_VECTOR(lanes_f, 4, neon_select(neon_below(n, i), v.v[i])); }
static inline lanes_f lanes_set(float value) { EACH_VECTOR(lanes_f, 4, vdupq_n_f32(value)); }
static inline lanes_i lanes_set_int(int32_t value) { EACH_VECTOR(lanes_i, 4, vdupq_n_s32(value)); }
static inline lanes_f lanes_add(lanes_f a, lanes_f b) { EACH_VECTOR(lanes_f, 4, vaddq_f32(a.v[i], b.v[i])); }
static inline lanes_f lanes_subtract(lanes_f a, lanes_f b) { EACH_VECTOR(lanes_f, 4, vsubq_f32(a.v[i], b.v[i])); }
static inline lanes_f lanes_multiply(lanes_f a, lanes_f b) { EACH_VECTOR(lanes_f, 4, vmulq_f32(a.v[i], b.v[i])); }
static inline lanes_f lanes_multiply_add(lanes_f a, lanes_f b, lanes_f c) {
    EACH_VECTOR(lanes_f, 4, vfmaq_f32(c.v[i], a.v[i], b.v[i]));
}
static inline lanes_mask lanes_wins(lanes_f a, lanes_f b) {
    EACH_VECTOR(lanes_mask, 4, vornq_u32(vcgtq_f32(a.v[i], b.v[i]), vceqq_f32(a.v[i], a.v[i])));
}
static inline lanes_mask lanes_positive(lanes_f a) { EACH_VECTOR(lanes_mask, 4, neon_positive(a.v[i])); }
static inline lanes_mask lanes_equal(lanes_i a, lanes_i b) { EACH_VECTOR(lanes_mask, 4, vceqq_s32(a.v[i], b.v[i])); }
static inline lanes_f lanes_choose(lanes_mask m, lanes_f yes, lanes_f no) {
    EACH_VECTOR(lanes_f, 4, vbslq_f32(m.v[i], yes.v[i], no.v[i]));
}
static inline lanes_i lanes_choose_int(lanes_mask m, lanes_i yes, lanes_i no) {
    EACH_VECTOR(lanes_i, 4, vbslq_s32(m.v[i], yes.v[i], no.v[i]));
}
static inline lanes_f lanes_select(lanes_mask m, lanes_f v) { EACH_VECTOR(lanes_f, 4, neon_select(m.v[i], v.v[i])); }
static inline lanes_i lanes_load_u8(const uint8_t *p) {
    const uint8x16_t bytes = vld1q_u8(p);
    const uint16x8_t half[2] = {vmovl_u8(vget_low_u8(bytes)), vmovl_u8(vget_high_u8(bytes))};
    EACH_VECTOR(lanes_i, 4,
                vreinterpretq_s32_u32(vmovl_u16(i % 2 == 0 ? vget_low_u16(half[i / 2]) : vget_high_u16(half[i / 2]))));
}
static inline void lanes_store_u8(uint8_t *p, lanes_i v) {
    uint16x4_t narrow[4];
    for (int i = 0; i < 4; ++i) narrow[i] = vmovn_u32(vreinterpretq_u32_s32(v.v[i]));
    vst1_u8(p, vmovn_u16(vcombine_u16(narrow[0], narrow[1])));
    vst1_u8(p + 8, vmovn_u16(vcombine_u16(narrow[2], narrow[3])));
}

static inline float lanes_total(lanes_f v) {
    const float32x4_t four = vaddq_f32(vaddq_f32(v.v[0], v.v[2]), vaddq_f32(v.v[1], v.v[3]));
    const float32x2_t two = vadd_f32(vget_low_f32(four), vget_high_f32(four));
    return vget_lane_f32(two, 0) + vget_lane_f32(two, 1);
}
static inline lanes_f lanes_max(lanes_f a, lanes_f b) { EACH_VECTOR(lanes_f, 4, vmaxq_f32(a.v[i], b.v[i])); }
static inline lanes_f lanes_size(lanes_f v) { EACH_VECTOR(lanes_f, 4, vabsq_f32(v.v[i])); }
static inline lanes_f lanes_first_or(int n, lanes_f v, lanes_f other) {
    EACH_VECTOR(lanes_f, 4, vbslq_f32(neon_below(n, i), v.v[i], other.v[i]));
}

/* ---- a part of the lanes ---- */

#define PART 8
typedef struct part_f {
    float32x4_t v[2];
} part_f;

static inline part_f part_load(const float *p) { EACH_VECTOR(part_f, 2, vld1q_f32(p + 4 * i)); }
static inline part_f part_load_first(const float *p, int n) {
    EACH_VECTOR(part_f, 2, neon_load_first(p + 4 * i, neon_left(n, i)));
}
static inline void part_store(float *p, part_f v) {
    for (int i = 0; i < 2; ++i) vst1q_f32(p + 4 * i, v.v[i]);
}
static inline void part_store_first(float *p, int n, part_f v) {
    for (int i = 0; i < 2; ++i) neon_store_first(p + 4 * i, neon_left(n, i), v.v[i]);
}
static inline part_f part_set(float value) { EACH_VECTOR(part_f, 2, vdupq_n_f32(value)); }
static inline part_f part_add(part_f a, part_f b) { EACH_VECTOR(part_f, 2, vaddq_f32(a.v[i], b.v[i])); }
static inline part_f part_subtract(part_f a, part_f b) { EACH_VECTOR(part_f, 2, vsubq_f32(a.v[i], b.v[i])); }
static inline part_f part_multiply(part_f a, part_f b) { EACH_VECTOR(part_f, 2, vmulq_f32(a.v[i], b.v[i])); }
static inline part_f part_multiply_add(part_f a, part_f b, part_f c) {
    EACH_VECTOR(part_f, 2, vfmaq_f32(c.v[i], a.v[i], b.v[i]));
}
static inline part_f part_relu(part_f a) { EACH_VECTOR(part_f, 2, neon_select(neon_positive(a.v[i]), a.v[i])); }

#undef EACH_VECTOR

/* ---- vectors ---- */

GG_INLINE vec load_narrow(const uint16_t *p) { return (vec)vshll_n_u16(vld1_u16(p), 16); }

GG_INLINE words rounded_words(vec v) {
    const uint32x4_t bits = (uint32x4_t)v, odd = vandq_u32(vshrq_n_u32(bits, 16), vdupq_n_u32(1));
    const uint32x4_t sum = vaddq_u32(vaddq_u32(bits, vdupq_n_u32(0x7fff)), odd);
    const uint32x4_t quiet = vorrq_u32(bits, vdupq_n_u32(0x400000));
    return (words)vbslq_u32(vceqq_f32(v, v), sum, quiet);
}

GG_INLINE half_value narrowed(words w) { return (half_value)vshrn_n_u32(w, 16); }

GG_INLINE void stream(float *p, vec v) { *(floats *)p = v; }

GG_INLINE void stream_narrow(uint16_t *p, half_value v) { *(halves *)p = v; }

GG_INLINE bool any_bit(words w) { return vmaxvq_u32(w) != 0; }

GG_INLINE vec square_root(vec v) { return vsqrtq_f32(v); }

GG_INLINE long_words low_product(long_words a, long_words b) { return vmull_u32(vmovn_u64(a), vmovn_u64(b)); }

GG_INLINE void fence(void) {}

GG_INLINE floats masked(floats y, floats dy) { return neon_select(neon_positive(y), dy); }

GG_INLINE void store_totals(float *to, floats a, floats b, floats c, floats d) {
    vst1q_f32(to, vpaddq_f32(vpaddq_f32(a, b), vpaddq_f32(c, d)));
}

/* ---- transposition ---- */

#define TURN_SIDE 4

GG_INLINE void turn_square(const float *from, int64_t from_row, float *to, int64_t to_row) {
    float32x4_t a[4];
#pragma GCC unroll 4
    for (int i = 0; i < 4; ++i) a[i] = vld1q_f32(from + i * from_row);
    const float32x4x2_t upper = vtrnq_f32(a[0], a[1]), lower = vtrnq_f32(a[2], a[3]);
#pragma GCC unroll 2
    for (int i = 0; i < 2; ++i) {
        vst1q_f32(to + i * to_row, vcombine_f32(vget_low_f32(upper.val[i]), vget_low_f32(lower.val[i])));
        vst1q_f32(to + (i + 2) * to_row, vcombine_f32(vget_high_f32(upper.val[i]), vget_high_f32(lower.val[i])));
    }
}

#endif
