/* Winograd's transforms, and the products between them.
 *
 * Along one axis a tile of m outputs needs m + r - 1 inputs d and r weights g, and y = A^T((G g) * (B^T d)). Places are
 * the values of polynomials at the points 0, +-P, +-Q and infinity; for m = 2, r = 3 at 0, +-1 and infinity. With P =
 * 0.625 and Q = 1.5 errors are less than half of those of the usual 1 and 2, at equal cost. Eight places have the
 * points 0, +-1/2, +-1, +-2 and infinity. B depends on the points only. */
/* gcc's analyzer does not follow arrays of lanes filled by loops over a tile's places, and reports them as
 * uninitialized. */
#if defined(__GNUC__) && !defined(__clang__) && __GNUC__ >= 12
#pragma GCC diagnostic ignored "-Wanalyzer-use-of-uninitialized-value"
#endif
#include "cpu/conv/winograd_kernels.h"

#include "cpu/simd/tile.h"
#include "ops/tensor.h"

#define P 0.625f
#define Q 1.5f
#define P2 (P * P)
#define Q2 (Q * Q)

/* Vectors stay in registers only if all is inlined. Plain loops over lanes would then take the compiler minutes. */
#ifdef GG_VECTOR
#define WINOGRAD_INLINE static inline __attribute__((always_inline))
#else
#define WINOGRAD_INLINE static __attribute__((noinline))
#endif
#define MAX 8     /* places along one axis */
#define TAPS 5    /* max weights along one axis */
#define OUTPUTS 6 /* max outputs along one axis */

/* A row of a tile has up to eight vectors of PART lanes, its places eight more. With few registers, values between both
 * axes lie in memory, and the loops over them are not unrolled. */
#if PART < GG_LANES
#define ALONG_AXIS _Pragma("GCC unroll 1")
#else
#define ALONG_AXIS _Pragma("GCC unroll 8")
#endif

/* part_load_when: the vector at p if `inside`; otherwise zeros, without reading p. */
#if defined(__AVX512F__)
typedef __mmask16 part_if;
static inline part_if part_when(bool inside) { return (__mmask16)-inside; }
static inline part_f part_load_when(part_if inside, const float *p) { return (part_f)_mm512_maskz_loadu_ps(inside, p); }
#else
typedef bool part_if;
static inline part_if part_when(bool inside) { return inside; }
static inline part_f part_load_when(part_if inside, const float *p) {
    static const _Alignas(64) float zeros[PART];
    return part_load(inside ? p : zeros);
}
#endif

WINOGRAD_INLINE part_f times(float a, part_f x) { return part_multiply(part_set(a), x); }
/* a*x + y */
WINOGRAD_INLINE part_f plus(float a, part_f x, part_f y) { return part_multiply_add(part_set(a), x, y); }

/* For eight places: the pairs of points +-POINT[i]. */
#define PAIRS 3
static const float POINT[PAIRS] = {0.5f, 1.0f, 2.0f};
/* For pair i: sum and product of the other two squared points. For all squares: the elementary symmetric functions. */
static const float OTHERS_SUM[PAIRS] = {5.0f, 4.25f, 1.25f}, OTHERS_PRODUCT[PAIRS] = {4.0f, 1.0f, 0.25f};
#define SYMMETRIC1 5.25f
#define SYMMETRIC2 5.25f
#define SYMMETRIC3 1.0f
/* Factors of G: reciprocals of the products of distances between points. */
#define AT_ZERO8 (-1.0f / SYMMETRIC3)
static const float AT_POINT[PAIRS] = {
    1.0f / (2.0f * 0.25f * (0.25f - 1.0f) * (0.25f - 4.0f)),
    1.0f / (2.0f * (1.0f - 0.25f) * (1.0f - 4.0f)),
    1.0f / (2.0f * 4.0f * (4.0f - 0.25f) * (4.0f - 1.0f)),
};

/* B^T d of eight places */
WINOGRAD_INLINE void input_axis8(const part_f d[MAX], part_f v[MAX]) {
    v[0] = plus(-SYMMETRIC3, d[0], plus(SYMMETRIC2, d[2], plus(-SYMMETRIC1, d[4], d[6])));
    v[7] = plus(-SYMMETRIC3, d[1], plus(SYMMETRIC2, d[3], plus(-SYMMETRIC1, d[5], d[7])));
#pragma GCC unroll 3
    for (int i = 0; i < PAIRS; ++i) {
        const part_f even = plus(OTHERS_PRODUCT[i], d[2], plus(-OTHERS_SUM[i], d[4], d[6]));
        const part_f odd = plus(OTHERS_PRODUCT[i], d[1], plus(-OTHERS_SUM[i], d[3], d[5]));
        v[1 + 2 * i] = plus(POINT[i], odd, even);
        v[2 + 2 * i] = plus(-POINT[i], odd, even);
    }
}

/* A^T m of eight places, for four or six outputs */
WINOGRAD_INLINE void output_axis8(const int outputs, const part_f m[MAX], part_f y[OUTPUTS]) {
    y[0] = m[0];
#pragma GCC unroll 6
    for (int o = 1; o < outputs; ++o) y[o] = o == outputs - 1 ? m[7] : part_set(0);
#pragma GCC unroll 3
    for (int i = 0; i < PAIRS; ++i) {
        const part_f sum = part_add(m[1 + 2 * i], m[2 + 2 * i]), odd = part_subtract(m[1 + 2 * i], m[2 + 2 * i]);
        float power = 1;
        y[0] = part_add(y[0], sum);
#pragma GCC unroll 6
        for (int o = 1; o < outputs; ++o) {
            power *= POINT[i];
            y[o] = plus(power, o % 2 == 0 ? sum : odd, y[o]);
        }
    }
}

/* A y of eight places, of four or six outputs */
WINOGRAD_INLINE void gradient_axis8(const int outputs, const part_f y[OUTPUTS], part_f e[MAX]) {
    e[0] = y[0];
    e[7] = y[outputs - 1];
#pragma GCC unroll 3
    for (int i = 0; i < PAIRS; ++i) {
        const float squared = POINT[i] * POINT[i];
        part_f even = plus(squared, y[2], y[0]), odd = plus(POINT[i] * squared, y[3], times(POINT[i], y[1]));
        if (outputs == 6) {
            even = plus(squared * squared, y[4], even);
            odd = plus(POINT[i] * squared * squared, y[5], odd);
        }
        e[1 + 2 * i] = part_add(even, odd);
        e[2 + 2 * i] = part_subtract(even, odd);
    }
}

/* G g of eight places */
WINOGRAD_INLINE void weights_axis8(const int taps, const part_f g[TAPS], part_f u[MAX]) {
    u[0] = times(AT_ZERO8, g[0]);
    u[7] = g[taps - 1];
#pragma GCC unroll 3
    for (int i = 0; i < PAIRS; ++i) {
        const float a = AT_POINT[i], squared = POINT[i] * POINT[i];
        part_f even = plus(a * squared, g[2], times(a, g[0])), odd = times(a * POINT[i], g[1]);
        if (taps == 5) {
            even = plus(a * squared * squared, g[4], even);
            odd = plus(a * squared * POINT[i], g[3], odd);
        }
        u[1 + 2 * i] = part_add(even, odd);
        u[2 + 2 * i] = part_subtract(even, odd);
    }
}

/* G^T u of eight places */
WINOGRAD_INLINE void weight_gradient_axis8(const int taps, const part_f u[MAX], part_f g[TAPS]) {
    g[0] = times(AT_ZERO8, u[0]);
#pragma GCC unroll 5
    for (int t = 1; t < taps; ++t) g[t] = t == taps - 1 ? u[7] : part_set(0);
#pragma GCC unroll 3
    for (int i = 0; i < PAIRS; ++i) {
        const part_f sum = part_add(u[1 + 2 * i], u[2 + 2 * i]), odd = part_subtract(u[1 + 2 * i], u[2 + 2 * i]);
        float power = AT_POINT[i];
        g[0] = plus(power, sum, g[0]);
#pragma GCC unroll 5
        for (int t = 1; t < taps; ++t) {
            power *= POINT[i];
            g[t] = plus(power, t % 2 == 0 ? sum : odd, g[t]);
        }
    }
}

/* B^T d */
WINOGRAD_INLINE void input_axis(const int places, const part_f d[MAX], part_f v[MAX]) {
    if (places == 8) {
        input_axis8(d, v);
        return;
    }
    if (places == 4) {
        v[0] = part_subtract(d[2], d[0]);
        v[1] = part_add(d[1], d[2]);
        v[2] = part_subtract(d[2], d[1]);
        v[3] = part_subtract(d[3], d[1]);
        return;
    }
    const part_f even_p = plus(-Q2, d[2], d[4]), odd_p = plus(-Q2, d[1], d[3]);
    const part_f even_q = plus(-P2, d[2], d[4]), odd_q = plus(-P2, d[1], d[3]);
    v[0] = plus(P2 * Q2, d[0], plus(-(P2 + Q2), d[2], d[4]));
    v[1] = plus(P, odd_p, even_p);
    v[2] = plus(-P, odd_p, even_p);
    v[3] = plus(Q, odd_q, even_q);
    v[4] = plus(-Q, odd_q, even_q);
    v[5] = plus(P2 * Q2, d[1], plus(-(P2 + Q2), d[3], d[5]));
}

/* A^T m */
WINOGRAD_INLINE void output_axis(const int outputs, const int places, const part_f m[MAX], part_f y[OUTPUTS]) {
    if (places == 8) {
        output_axis8(outputs, m, y);
        return;
    }
    const part_f sum_p = part_add(m[1], m[2]), odd_p = part_subtract(m[1], m[2]);
    if (places == 4) {
        y[0] = part_add(m[0], sum_p);
        y[1] = part_add(odd_p, m[3]);
        return;
    }
    const part_f sum_q = part_add(m[3], m[4]), odd_q = part_subtract(m[3], m[4]);
    y[0] = part_add(m[0], part_add(sum_p, sum_q));
    if (outputs == 2) {
        y[1] = plus(P, odd_p, plus(Q, odd_q, m[5]));
        return;
    }
    y[1] = plus(P, odd_p, times(Q, odd_q));
    y[2] = plus(P2, sum_p, times(Q2, sum_q));
    y[3] = plus(P * P2, odd_p, plus(Q * Q2, odd_q, m[5]));
}

/* A y */
WINOGRAD_INLINE void gradient_axis(const int outputs, const int places, const part_f y[OUTPUTS], part_f e[MAX]) {
    if (places == 8) {
        gradient_axis8(outputs, y, e);
        return;
    }
    if (places == 4) {
        e[0] = y[0];
        e[1] = part_add(y[0], y[1]);
        e[2] = part_subtract(y[0], y[1]);
        e[3] = y[1];
        return;
    }
    if (outputs == 2) {
        e[0] = y[0];
        e[1] = plus(P, y[1], y[0]);
        e[2] = plus(-P, y[1], y[0]);
        e[3] = plus(Q, y[1], y[0]);
        e[4] = plus(-Q, y[1], y[0]);
        e[5] = y[1];
        return;
    }
    const part_f even_p = plus(P2, y[2], y[0]), odd_p = plus(P * P2, y[3], times(P, y[1]));
    const part_f even_q = plus(Q2, y[2], y[0]), odd_q = plus(Q * Q2, y[3], times(Q, y[1]));
    e[0] = y[0];
    e[1] = part_add(even_p, odd_p);
    e[2] = part_subtract(even_p, odd_p);
    e[3] = part_add(even_q, odd_q);
    e[4] = part_subtract(even_q, odd_q);
    e[5] = y[3];
}

/* Factors of G: reciprocals of the products of distances between points. */
#define AT_ZERO (1.0f / (P2 * Q2))
#define AT_P (1.0f / (2.0f * P2 * (P2 - Q2)))
#define AT_Q (1.0f / (2.0f * Q2 * (Q2 - P2)))

/* G g */
WINOGRAD_INLINE void weights_axis(const int places, const int taps, const part_f g[TAPS], part_f u[MAX]) {
    if (places == 8) {
        weights_axis8(taps, g, u);
        return;
    }
    if (places == 4) {
        const part_f even = times(0.5f, part_add(g[0], g[2]));
        u[0] = times(-1.0f, g[0]);
        u[1] = plus(0.5f, g[1], even);
        u[2] = plus(-0.5f, g[1], even);
        u[3] = g[2];
        return;
    }
    part_f even_p = plus(AT_P * P2, g[2], times(AT_P, g[0])), even_q = plus(AT_Q * Q2, g[2], times(AT_Q, g[0]));
    part_f odd_p = times(AT_P * P, g[1]), odd_q = times(AT_Q * Q, g[1]);
    if (taps == 5) {
        even_p = plus(AT_P * P2 * P2, g[4], even_p);
        even_q = plus(AT_Q * Q2 * Q2, g[4], even_q);
        odd_p = plus(AT_P * P2 * P, g[3], odd_p);
        odd_q = plus(AT_Q * Q2 * Q, g[3], odd_q);
    }
    u[0] = times(AT_ZERO, g[0]);
    u[1] = part_add(even_p, odd_p);
    u[2] = part_subtract(even_p, odd_p);
    u[3] = part_add(even_q, odd_q);
    u[4] = part_subtract(even_q, odd_q);
    u[5] = g[taps - 1];
}

/* G^T u */
WINOGRAD_INLINE void weight_gradient_axis(const int places, const int taps, const part_f u[MAX], part_f g[TAPS]) {
    if (places == 8) {
        weight_gradient_axis8(taps, u, g);
        return;
    }
    const part_f sum_p = part_add(u[1], u[2]), odd_p = part_subtract(u[1], u[2]);
    if (places == 4) {
        g[0] = plus(0.5f, sum_p, times(-1.0f, u[0]));
        g[1] = times(0.5f, odd_p);
        g[2] = plus(0.5f, sum_p, u[3]);
        return;
    }
    const part_f sum_q = part_add(u[3], u[4]), odd_q = part_subtract(u[3], u[4]);
    g[0] = plus(AT_ZERO, u[0], plus(AT_P, sum_p, times(AT_Q, sum_q)));
    g[1] = plus(AT_P * P, odd_p, times(AT_Q * Q, odd_q));
    if (taps == 3) {
        g[2] = plus(AT_P * P2, sum_p, plus(AT_Q * Q2, sum_q, u[5]));
        return;
    }
    g[2] = plus(AT_P * P2, sum_p, times(AT_Q * Q2, sum_q));
    g[3] = plus(AT_P * P2 * P, odd_p, times(AT_Q * Q2 * Q, odd_q));
    g[4] = plus(AT_P * P2 * P2, sum_p, plus(AT_Q * Q2 * Q2, sum_q, u[5]));
}

/* CPUs' prefetchers do not follow tiles, whose vectors are far from each other. */
WINOGRAD_INLINE void request(const gg_winograd_tiles *t, int64_t plane, const int across) {
    const float *image = t->ahead + plane * t->plane;
#pragma GCC unroll 8
    for (int r = 0; r < across; ++r)
#pragma GCC unroll 8
        for (int c = 0; c < across; ++c) __builtin_prefetch(image + r * t->row + c * t->pixel, 0, 2);
}

/* Transforms an image to places. gradient: of the output, whose tiles have no border. whole: the tile lies completely
 * in the image. */
WINOGRAD_INLINE void to_places(const gg_winograd_tiles *t, const int outputs, const int places, const bool gradient,
                               const bool whole) {
    const int across = gradient ? outputs : places;
    part_if rows[MAX] = {0};
#pragma GCC unroll 8
    for (int r = 0; r < across; ++r) rows[r] = part_when(r >= t->begin[0] && r < t->end[0]);
    for (int64_t at = 0; at < t->count * t->lanes; at += PART) {
        const int64_t i = at / t->lanes, lane = at % t->lanes;
        const float *image = t->image + i * t->plane + lane;
        float *to = t->places + i * t->step + lane;
        part_f turned[MAX][MAX];
        if (lane == 0 && t->ahead != NULL) request(t, i, across);
        ALONG_AXIS
        for (int c = 0; c < across; ++c) {
            part_f in[MAX], out[MAX];
            if (!whole && (c < t->begin[1] || c >= t->end[1])) {
#pragma GCC unroll 8
                for (int r = 0; r < places; ++r) turned[r][c] = part_set(0);
                continue;
            }
#pragma GCC unroll 8
            for (int r = 0; r < across; ++r) {
                const float *place = image + r * t->row + c * t->pixel;
                in[r] = whole ? part_load(place) : part_load_when(rows[r], place);
            }
            if (gradient) gradient_axis(outputs, places, in, out);
            else input_axis(places, in, out);
#pragma GCC unroll 8
            for (int r = 0; r < places; ++r) turned[r][c] = out[r];
        }
        ALONG_AXIS
        for (int r = 0; r < places; ++r) {
            part_f out[MAX];
            if (gradient) gradient_axis(outputs, places, turned[r], out);
            else input_axis(places, turned[r], out);
#pragma GCC unroll 8
            for (int c = 0; c < places; ++c) part_store(to + (r * places + c) * t->place_step, out[c]);
        }
    }
}

static bool is_whole(const gg_winograd_tiles *t, int across) {
    return t->begin[0] <= 0 && t->begin[1] <= 0 && t->end[0] >= across && t->end[1] >= across;
}

static void winograd_input(const gg_winograd_tiles *t) {
    const int places = t->outputs + t->taps - 1;
    const bool whole = is_whole(t, places);
    if (places == 4) to_places(t, 2, 4, false, false);
    else if (places == 6 && whole) to_places(t, 4, 6, false, true);
    else if (places == 6) to_places(t, 4, 6, false, false);
    else if (whole) to_places(t, 4, 8, false, true);
    else to_places(t, 4, 8, false, false);
}

static void winograd_gradient(const gg_winograd_tiles *t) {
    const int places = t->outputs + t->taps - 1;
    const bool whole = is_whole(t, t->outputs);
    if (t->outputs == 6 && whole) to_places(t, 6, 8, true, true);
    else if (t->outputs == 6) to_places(t, 6, 8, true, false);
    else if (places == 8) to_places(t, 4, 8, true, false);
    else if (t->outputs == 4 && whole) to_places(t, 4, 6, true, true);
    else if (t->outputs == 4) to_places(t, 4, 6, true, false);
    else if (places == 6) to_places(t, 2, 6, true, false);
    else to_places(t, 2, 4, true, false);
}

WINOGRAD_INLINE void to_image(const gg_winograd_tiles *t, const int outputs, const int places) {
    for (int64_t at = 0; at < t->count * t->lanes; at += PART) {
        const int64_t i = at / t->lanes, lane = at % t->lanes;
        const float *from = t->places + i * t->step + lane;
        float *image = t->image + i * t->plane + lane;
        part_f turned[OUTPUTS][MAX], bias = part_set(0);
        if (lane == 0 && t->ahead != NULL) request(t, i, outputs);
        if (t->bias != NULL) {
            const float *value = t->bias + i * t->bias_step;
            bias = t->bias_vectors ? part_load(value + lane) : part_set(*value);
        }
        ALONG_AXIS
        for (int c = 0; c < places; ++c) {
            part_f in[MAX], out[OUTPUTS];
#pragma GCC unroll 8
            for (int r = 0; r < places; ++r) in[r] = part_load(from + (r * places + c) * t->place_step);
            output_axis(outputs, places, in, out);
#pragma GCC unroll 6
            for (int r = 0; r < outputs; ++r) turned[r][c] = out[r];
        }
        ALONG_AXIS
        for (int r = 0; r < outputs; ++r) {
            part_f out[OUTPUTS];
            if (r >= t->end[0]) break;
            output_axis(outputs, places, turned[r], out);
#pragma GCC unroll 6
            for (int c = 0; c < outputs; ++c) {
                if (c >= t->end[1]) break;
                part_f value = part_add(out[c], bias);
                if (t->relu) value = part_relu(value);
                part_store(image + r * t->row + c * t->pixel, value);
                if (t->lanes < GG_LANES) part_store(image + r * t->row + c * t->pixel + PART, part_set(0));
            }
        }
    }
}

static void winograd_output(const gg_winograd_tiles *t) {
    if (t->outputs == 6) to_image(t, 6, 8);
    else if (t->outputs == 4 && t->taps == 5) to_image(t, 4, 8);
    else if (t->outputs == 4) to_image(t, 4, 6);
    else if (t->taps == 5) to_image(t, 2, 6);
    else to_image(t, 2, 4);
}

WINOGRAD_INLINE void to_weight_places(const gg_winograd_weights *w, const int places, const int taps) {
    const int all = taps * taps;
    for (int64_t i = 0; i < w->count; ++i) {
        _Alignas(64) float one[TAPS * TAPS][GG_LANES] = {{0}};
        for (int l = 0; l < w->lanes; ++l) {
            const float *g = w->weights + l * w->lane_step + i * w->step;
            for (int e = 0; e < all; ++e) one[w->rotated ? all - 1 - e : e][l] = g[e];
        }
        for (int lane = 0; lane < w->stored; lane += PART) {
            const int stored = w->stored - lane;
            part_f turned[MAX][TAPS];
            ALONG_AXIS
            for (int c = 0; c < taps; ++c) {
                part_f in[TAPS], out[MAX];
#pragma GCC unroll 5
                for (int r = 0; r < taps; ++r) in[r] = part_load(&one[taps * r + c][lane]);
                weights_axis(places, taps, in, out);
#pragma GCC unroll 8
                for (int r = 0; r < places; ++r) turned[r][c] = out[r];
            }
            float *to = w->places + i * w->places_step + lane;
            ALONG_AXIS
            for (int r = 0; r < places; ++r) {
                part_f out[MAX];
                weights_axis(places, taps, turned[r], out);
#pragma GCC unroll 8
                for (int c = 0; c < places; ++c) {
                    float *place = to + (r * places + c) * w->place_step;
                    if (stored >= PART) part_store(place, out[c]);
                    else part_store_first(place, stored, out[c]);
                }
            }
        }
    }
}

static void winograd_weights(const gg_winograd_weights *w) {
    if (w->outputs == 6) to_weight_places(w, 8, 3);
    else if (w->taps == 5 && w->outputs == 4) to_weight_places(w, 8, 5);
    else if (w->taps == 5) to_weight_places(w, 6, 5);
    else if (w->outputs == 4) to_weight_places(w, 6, 3);
    else to_weight_places(w, 4, 3);
}

WINOGRAD_INLINE void to_weights(const gg_winograd_weights *w, const int places, const int taps) {
    const int all = taps * taps;
    for (int64_t i = 0; i < w->count; ++i) {
        _Alignas(64) float one[TAPS * TAPS][GG_LANES];
        for (int lane = 0; lane < w->lanes; lane += PART) {
            const int lanes = w->lanes - lane;
            const float *from = w->places + i * w->places_step + lane;
            part_f turned[TAPS][MAX];
            ALONG_AXIS
            for (int c = 0; c < places; ++c) {
                part_f in[MAX], out[TAPS];
#pragma GCC unroll 8
                for (int r = 0; r < places; ++r) {
                    const float *place = from + (r * places + c) * w->place_step;
                    in[r] = lanes >= PART ? part_load(place) : part_load_first(place, lanes);
                }
                weight_gradient_axis(places, taps, in, out);
#pragma GCC unroll 5
                for (int r = 0; r < taps; ++r) turned[r][c] = out[r];
            }
            ALONG_AXIS
            for (int r = 0; r < taps; ++r) {
                part_f out[TAPS];
                weight_gradient_axis(places, taps, turned[r], out);
#pragma GCC unroll 5
                for (int c = 0; c < taps; ++c) part_store(&one[taps * r + c][lane], out[c]);
            }
        }
        for (int l = 0; l < w->lanes; ++l) {
            float *g = w->weights + l * w->lane_step + i * w->step;
            for (int e = 0; e < all; ++e) g[e] = one[e][l];
        }
    }
}

static void winograd_weight_gradient(const gg_winograd_weights *w) {
    if (w->outputs == 6) to_weights(w, 8, 3);
    else if (w->taps == 5 && w->outputs == 4) to_weights(w, 8, 5);
    else if (w->taps == 5) to_weights(w, 6, 5);
    else if (w->outputs == 4) to_weights(w, 6, 3);
    else to_weights(w, 4, 3);
}

/* ------------------------------------------------------------------------------------------------ products */

#ifndef GG_VECTOR

#define PANEL GG_LANES
#define ROWS 1

static void winograd_product(const gg_winograd_product *p) {
    const int64_t block = p->scalar_row > 0 ? p->scalar_block : GG_LANES;
    for (int64_t place = 0; place < p->places; ++place) {
        for (int64_t panel = 0; panel < p->panels; ++panel) {
            const float *x = p->x + place * p->x_place + panel * p->x_panel;
            for (int64_t r = 0; r < p->rows; ++r) {
                /* A block is one row here, and a panel GG_LANES columns. */
                const float *scalars =
                    p->scalars + place * p->scalars_place + r * (p->scalar_row > 0 ? p->scalar_row : p->terms);
                float *y = p->y + place * p->y_place + panel * p->y_panel + r * p->y_row;
                for (int64_t k = 0; k < p->terms; k += GG_WINOGRAD_TERMS) {
                    const int64_t end = k + GG_WINOGRAD_TERMS < p->terms ? k + GG_WINOGRAD_TERMS : p->terms;
                    float sum[PANEL] = {0};
                    for (int64_t l = k; l < end; ++l) {
                        const float scalar = scalars[l / GG_LANES * block + l % GG_LANES];
                        for (int64_t c = 0; c < PANEL; ++c) sum[c] += scalar * x[l * PANEL + c];
                    }
                    for (int64_t c = 0; c < PANEL; ++c) y[c] = k > 0 ? y[c] + sum[c] : sum[c];
                }
            }
        }
    }
}

#else

#define PANEL (GG_PANEL_VECTORS * GG_VECTOR)
#define ROWS GG_TILE_ROWS

enum { PACKED_WIDE, ACROSS_WIDE, LANES_WIDE, LANES_NARROW, KINDS };
#define WIDE_TILE(R, V)                                                                                                \
    static __attribute__((noinline)) void packed_##R(const gg_tile *t) { gg_tile_run(t, R, V, GG_TILE_PACKED); }       \
    static __attribute__((noinline)) void across_##R(const gg_tile *t) { gg_tile_run(t, R, V, GG_TILE_ACROSS); }       \
    static __attribute__((noinline)) void lanes_##R(const gg_tile *t) { gg_tile_run(t, R, V, GG_TILE_LANES); }
/* If a wide panel has more columns than GG_LANES. */
#if GG_VECTOR == GG_LANES
#define NARROW_TILE(R, V)                                                                                              \
    static __attribute__((noinline)) void narrow_##R(const gg_tile *t) { gg_tile_run(t, R, V, GG_TILE_LANES); }
GG_TILE_LIST_NARROW(NARROW_TILE, 1)
#undef NARROW_TILE
#define NARROW(R, V) [R] = narrow_##R,
#else
#define NARROW(R, V)
#endif
GG_TILE_LIST_NARROW(WIDE_TILE, GG_PANEL_VECTORS)
#undef WIDE_TILE
#define PACKED(R, V) [R] = packed_##R,
#define ACROSS(R, V) [R] = across_##R,
#define LANES(R, V) [R] = lanes_##R,
static const gg_tile_fn tiles[KINDS][GG_TILE_ROWS + 1] = {
    [PACKED_WIDE] = {GG_TILE_LIST_NARROW(PACKED, GG_PANEL_VECTORS)},
    [ACROSS_WIDE] = {GG_TILE_LIST_NARROW(ACROSS, GG_PANEL_VECTORS)},
    [LANES_WIDE] = {GG_TILE_LIST_NARROW(LANES, GG_PANEL_VECTORS)},
    [LANES_NARROW] = {GG_TILE_LIST_NARROW(NARROW, 1)}};
#undef PACKED
#undef ACROSS
#undef LANES
#undef NARROW

/* Shared by the products of all places. */
typedef struct tile_rows {
    const gg_tile_fn *run;
    bool packed, in_blocks;        /* of the scalars; in_blocks: blocks of terms are far apart */
    int64_t blocks, least, longer; /* of rows: results of gg_block_begin, without its divisions */
} tile_rows;

/* Sets the terms of a tile from term k on. In blocks: whole blocks, one pair of taps each, then the rest. */
static int64_t begin_terms(const gg_winograd_product *p, const tile_rows *all, int64_t k, gg_tile *t) {
    const int64_t left = k + GG_WINOGRAD_TERMS < p->terms ? GG_WINOGRAD_TERMS : p->terms - k;
    const bool whole = all->in_blocks && left > GG_LANES;
    t->row_count = whole ? (int)(left / GG_LANES) : 1;
    t->terms = whole ? GG_LANES : left;
    return t->row_count * t->terms;
}

/* Multiplies one panel of one place; the pointers are the begins of its operands and result. */
WINOGRAD_INLINE void panel_product(const gg_winograd_product *p, const tile_rows *all, const float *scalars,
                                   const float *x, float *y, gg_tile *t) {
    int64_t r = 0;
    for (int64_t b = 0, rows; b < all->blocks; ++b, r += rows) {
        rows = all->least + (b < all->longer);
        t->y = y + r * p->y_row;
        t->w_step = rows;
        for (int64_t k = 0, more; k < p->terms; k += more) {
            more = begin_terms(p, all, k, t);
            t->w = scalars + (all->packed ? r * p->terms + k * rows
                                          : r * p->scalar_row + k / GG_LANES * p->scalar_block + k % GG_LANES);
            t->x = x + k * p->panel;
            t->add = k > 0;
            all->run[rows](t);
        }
    }
}

static void winograd_product(const gg_winograd_product *p) {
    enum { BLOCKS = GG_WINOGRAD_TERMS / GG_LANES };
    const int64_t blocks = gg_block_count(p->rows, GG_TILE_ROWS);
    const bool packed = p->scalar_row == 0, in_blocks = p->scalar_row == GG_LANES;
    const int kind = packed ? PACKED_WIDE : !in_blocks ? ACROSS_WIDE : p->panel == PANEL ? LANES_WIDE : LANES_NARROW;
    const tile_rows all = {.run = tiles[kind],
                           .packed = packed,
                           .in_blocks = in_blocks,
                           .blocks = blocks,
                           .least = p->rows / blocks,
                           .longer = p->rows % blocks};
    gg_tap block_taps[BLOCKS];
    for (int i = 0; i < BLOCKS; ++i)
        block_taps[i] = (gg_tap){.w = i * p->scalar_block, .x = (int64_t)i * GG_LANES * p->panel};
    gg_tile t = {.row_taps = block_taps,
                 .col_taps = block_taps,
                 .col_count = 1,
                 .x_step = p->panel,
                 .x_delta = GG_VECTOR,
                 .w_tap = 1,
                 .w_row = p->scalar_row,
                 .y_row = p->y_row,
                 .y_delta = GG_VECTOR == GG_LANES ? p->y_block : GG_VECTOR}; /* narrower ones: one block a panel */
    for (int64_t place = 0; place < p->places; ++place)
        for (int64_t panel = 0; panel < p->panels; ++panel)
            panel_product(p, &all, p->scalars + place * p->scalars_place,
                          p->x + place * p->x_place + panel * p->x_panel,
                          p->y + place * p->y_place + panel * p->y_panel, &t);
}

#endif

const gg_winograd_kernels GG_VARIANT(gg_winograd_kernels) = {
    .panel = PANEL,
    .rows = ROWS,
    .least = PART,
    .input = winograd_input,
    .gradient = winograd_gradient,
    .output = winograd_output,
    .weights = winograd_weights,
    .weight_gradient = winograd_weight_gradient,
    .product = winograd_product,
};
