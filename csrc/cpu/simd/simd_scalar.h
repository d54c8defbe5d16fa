/* Plain C for any CPU; documents each function. No tiles and no transposition in registers. Included by simd.h. */
#ifndef GG_CPU_SIMD_SIMD_SCALAR_H
#define GG_CPU_SIMD_SIMD_SCALAR_H

/* ---- sixteen lanes ---- */

typedef struct lanes_f {
    float lane[16];
} lanes_f;
typedef struct lanes_i {
    int32_t lane[16];
} lanes_i;
typedef lanes_i lanes_mask; /* 0 or 1 */

#define EACH_LANE for (int i = 0; i < 16; ++i)

static inline lanes_f lanes_load(const float *p) {
    lanes_f v;
    memcpy(&v, p, sizeof v);
    return v;
}
static inline void lanes_store(float *p, lanes_f v) { memcpy(p, &v, sizeof v); }
static inline lanes_f lanes_load_any(const float *p) { return lanes_load(p); }
static inline void lanes_store_any(float *p, lanes_f v) { lanes_store(p, v); }
/* The first n lanes; the others are zeros. */
static inline lanes_f lanes_load_part(const float *p, int n) {
    lanes_f v = {{0}};
    memcpy(&v, p, (size_t)n * sizeof(float));
    return v;
}
static inline void lanes_store_part(float *p, int n, lanes_f v) { memcpy(p, &v, (size_t)n * sizeof(float)); }
static inline lanes_f lanes_first(int n, lanes_f v) {
    EACH_LANE v.lane[i] = i < n ? v.lane[i] : 0.0f;
    return v;
}
static inline lanes_f lanes_set(float value) {
    lanes_f v = {{0}};
    EACH_LANE v.lane[i] = value;
    return v;
}
static inline lanes_i lanes_set_int(int32_t value) {
    lanes_i v = {{0}};
    EACH_LANE v.lane[i] = value;
    return v;
}
static inline lanes_f lanes_add(lanes_f a, lanes_f b) {
    EACH_LANE a.lane[i] += b.lane[i];
    return a;
}
static inline lanes_f lanes_subtract(lanes_f a, lanes_f b) {
    EACH_LANE a.lane[i] -= b.lane[i];
    return a;
}
static inline lanes_f lanes_multiply(lanes_f a, lanes_f b) {
    EACH_LANE a.lane[i] *= b.lane[i];
    return a;
}
static inline lanes_f lanes_multiply_add(lanes_f a, lanes_f b, lanes_f c) {
    EACH_LANE c.lane[i] += a.lane[i] * b.lane[i];
    return c;
}
/* a > b, or a is NaN. */
static inline lanes_mask lanes_wins(lanes_f a, lanes_f b) {
    lanes_mask m;
    EACH_LANE m.lane[i] = a.lane[i] > b.lane[i] || a.lane[i] != a.lane[i];
    return m;
}
/* Positive or NaN. */
static inline lanes_mask lanes_positive(lanes_f a) {
    lanes_mask m;
    EACH_LANE m.lane[i] = !(a.lane[i] <= 0.0f);
    return m;
}
static inline lanes_mask lanes_equal(lanes_i a, lanes_i b) {
    EACH_LANE a.lane[i] = a.lane[i] == b.lane[i];
    return a;
}
static inline lanes_f lanes_choose(lanes_mask m, lanes_f yes, lanes_f no) {
    EACH_LANE no.lane[i] = m.lane[i] ? yes.lane[i] : no.lane[i];
    return no;
}
static inline lanes_i lanes_choose_int(lanes_mask m, lanes_i yes, lanes_i no) {
    EACH_LANE no.lane[i] = m.lane[i] ? yes.lane[i] : no.lane[i];
    return no;
}
static inline lanes_f lanes_select(lanes_mask m, lanes_f v) {
    EACH_LANE v.lane[i] = m.lane[i] ? v.lane[i] : 0.0f;
    return v;
}
static inline lanes_i lanes_load_u8(const uint8_t *p) {
    lanes_i v = {{0}};
    EACH_LANE v.lane[i] = p[i];
    return v;
}
static inline void lanes_store_u8(uint8_t *p, lanes_i v) { EACH_LANE p[i] = (uint8_t)v.lane[i]; }

#undef EACH_LANE

/* lanes_total: the sum of all lanes; at every level it adds halves, then quarters and so on. lanes_max: the larger of
 * two lanes; either if one is NaN. lanes_size: the absolute value. */

static inline float lanes_total(lanes_f v) {
    for (int width = 8; width > 0; width /= 2)
        for (int i = 0; i < width; ++i) v.lane[i] += v.lane[i + width];
    return v.lane[0];
}
static inline lanes_f lanes_max(lanes_f a, lanes_f b) {
    for (int i = 0; i < 16; ++i) a.lane[i] = a.lane[i] > b.lane[i] ? a.lane[i] : b.lane[i];
    return a;
}
static inline lanes_f lanes_size(lanes_f v) {
    for (int i = 0; i < 16; ++i) v.lane[i] = v.lane[i] < 0 ? -v.lane[i] : v.lane[i];
    return v;
}
/* The first n lanes of v, then those of other. */
static inline lanes_f lanes_first_or(int n, lanes_f v, lanes_f other) {
    for (int i = n; i < 16; ++i) v.lane[i] = other.lane[i];
    return v;
}

/* ---- vectors ---- */

/* bfloat16 is the upper half of float32. Rounds to nearest, ties to even; a NaN stays a (quiet) NaN. The CPU's
 * instruction would flush denormals. Compilers do not turn the plain form below into few instructions. */
GG_INLINE vec load_narrow(const uint16_t *p) {
    const half_value v = *(const halves *)p;
    return (vec)(__builtin_convertvector(v, words) << 16);
}

GG_INLINE words rounded_words(vec v) {
    const words bits = (words)v;
    const words rounded = bits + 0x7fffu + ((bits >> 16) & 1u);
    const words nan = (words)(v != v);
    return ((bits | 0x400000u) & nan) | (rounded & ~nan);
}

/* The upper halves. */
GG_INLINE half_value narrowed(words w) { return __builtin_convertvector(w >> 16, half_value); }

/* Non-temporal stores, if the level has them. */
GG_INLINE void stream(float *p, vec v) { *(floats *)p = v; }

GG_INLINE void stream_narrow(uint16_t *p, half_value v) { *(halves *)p = v; }

/* True if any bit is set. */
GG_INLINE bool any_bit(words w) {
    uint32_t all = 0;
    for (size_t i = 0; i < FLOATS; ++i) all |= w[i];
    return all != 0;
}

/* Correctly rounded at every level. */
GG_INLINE vec square_root(vec v) {
    for (size_t i = 0; i < FLOATS; ++i) v[i] = __builtin_sqrtf(v[i]);
    return v;
}

/* Products of the lower halves. */
GG_INLINE long_words low_product(long_words a, long_words b) { return (a & 0xffffffffu) * (b & 0xffffffffu); }

/* Orders non-temporal stores before later stores, as seen by other cores. */
GG_INLINE void fence(void) {}

/* Levels with tiles also have:
 * masked(y, dy): y <= 0 ? 0 : dy, so dy where y is NaN;
 * store_totals(to, a, b, c, d): the sums over the lanes of each of four vectors. */

#endif
