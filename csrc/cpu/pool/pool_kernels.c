/* Pooling of images whose elements are rows of lanes, so a window takes a few vector operations, for any stride and
 * padding. In backward an input element gets the sum over its windows, in the order of the windows. */
#include "cpu/simd/simd.h"

static inline __attribute__((always_inline)) void save_place(void *saved, size_t at, int bytes, lanes_i place) {
    if (bytes == 1) lanes_store_u8((uint8_t *)saved + at, place);
    else lanes_store_wide(saved, at, bytes, place);
}

static inline __attribute__((always_inline)) lanes_i saved_place(const void *saved, size_t at, int bytes) {
    return bytes == 1 ? lanes_load_u8((const uint8_t *)saved + at) : lanes_load_wide(saved, at, bytes);
}

/* Stores a max and its place. */
static inline __attribute__((always_inline)) void max_store(const gg_pool_shape *s, bool relu, int bytes, size_t at,
                                                            lanes_f best, lanes_i winner, float *y, void *saved) {
    if (relu) {
        const lanes_mask passes = lanes_positive(best);
        best = lanes_select(passes, best);
        winner = lanes_choose_int(passes, winner, lanes_set_int((int32_t)(s->kernel[0] * s->kernel[1])));
    }
    lanes_store(y + at, best);
    if (saved != NULL) save_place(saved, at, bytes, winner);
}

/* The max is the first of the largest in row-major order, or the last NaN, as in PyTorch. */
static void max_any(const gg_pool_shape *s, int64_t begin, int64_t end, const float *x, float *y, void *saved) {
    const size_t lanes = (size_t)s->lanes, width = (size_t)s->in[1];
    const size_t down = width * (size_t)s->dilation[0] * lanes, right = (size_t)s->dilation[1] * lanes;
    for (int64_t c = begin; c < end; ++c) {
        const float *image = x + (size_t)(c * s->in[0]) * width * lanes;
        size_t at = (size_t)(c * s->out[0] * s->out[1]) * lanes;
        for (int64_t oh = 0; oh < s->out[0]; ++oh) {
            for (int64_t ow = 0; ow < s->out[1]; ++ow) {
                const float *corner = image + ((size_t)s->first[0][oh] * width + (size_t)s->first[1][ow]) * lanes;
                const int32_t rows = s->count[0][oh], columns = s->count[1][ow];
                const int32_t place = s->place[0][oh] * (int32_t)s->kernel[1] + s->place[1][ow];
                for (size_t n = 0; n < lanes; n += GG_LANES, at += GG_LANES) {
                    lanes_f best = lanes_load(corner + n);
                    lanes_i winner = lanes_set_int(place);
                    for (int32_t i = 0; i < rows; ++i) {
                        for (int32_t j = i == 0 ? 1 : 0; j < columns; ++j) {
                            const lanes_f v = lanes_load(corner + (size_t)i * down + (size_t)j * right + n);
                            const lanes_mask wins = lanes_wins(v, best);
                            best = lanes_choose(wins, v, best);
                            winner =
                                lanes_choose_int(wins, lanes_set_int(place + i * (int32_t)s->kernel[1] + j), winner);
                        }
                    }
                    max_store(s, s->relu, s->index_bytes, at, best, winner, y, saved);
                }
            }
        }
    }
}

/* max_any for 2x2 windows that tile the image, or leave a rest at its right and bottom. */
static inline __attribute__((always_inline)) void max_2x2(const gg_pool_shape *s, int64_t begin, int64_t end, bool relu,
                                                          const float *x, float *y, uint8_t *saved) {
    const size_t lanes = (size_t)s->lanes, row = (size_t)s->in[1] * lanes;
    for (int64_t c = begin; c < end; ++c) {
        for (int64_t oh = 0; oh < s->out[0]; ++oh) {
            const float *upper = x + (size_t)(c * s->in[0] + 2 * oh) * row;
            size_t at = (size_t)((c * s->out[0] + oh) * s->out[1]) * lanes;
            for (int64_t ow = 0; ow < s->out[1]; ++ow, upper += 2 * lanes) {
                for (size_t n = 0; n < lanes; n += GG_LANES, at += GG_LANES) {
                    lanes_f best = lanes_load(upper + n);
                    lanes_i winner = lanes_set_int(0);
                    for (int k = 1; k < 4; ++k) {
                        const lanes_f v = lanes_load(upper + (size_t)(k >> 1) * row + (size_t)(k & 1) * lanes + n);
                        const lanes_mask wins = lanes_wins(v, best);
                        best = lanes_choose(wins, v, best);
                        winner = lanes_choose_int(wins, lanes_set_int(k), winner);
                    }
                    max_store(s, relu, 1, at, best, winner, y, saved);
                }
            }
        }
    }
}

static bool is_2x2(const gg_pool_shape *s) { return s->tiled && s->kernel[0] == 2 && s->kernel[1] == 2; }

static void max_forward(const gg_pool_shape *s, int64_t begin, int64_t end, const float *x, float *y, void *saved) {
    if (!is_2x2(s)) max_any(s, begin, end, x, y, saved);
    else if (saved == NULL && s->relu) max_2x2(s, begin, end, true, x, y, NULL);
    else if (saved == NULL) max_2x2(s, begin, end, false, x, y, NULL);
    else if (s->relu) max_2x2(s, begin, end, true, x, y, saved);
    else max_2x2(s, begin, end, false, x, y, saved);
}

/* Elements at the right and bottom that no tile covers have no gradient. */
static void clear_rest(const gg_pool_shape *s, float *image) {
    const size_t lanes = (size_t)s->lanes, row = (size_t)s->in[1] * lanes;
    const int64_t height = s->out[0] * s->kernel[0], width = s->out[1] * s->kernel[1];
    if (width < s->in[1])
        for (int64_t h = 0; h < height; ++h)
            memset(image + (size_t)h * row + (size_t)width * lanes, 0,
                   (size_t)(s->in[1] - width) * lanes * sizeof(float));
    memset(image + (size_t)height * row, 0, (size_t)(s->in[0] - height) * row * sizeof(float));
}

/* Windows that tile the image: each output is read once, each input written once. */
static inline __attribute__((always_inline)) void max_tiles_backward(const gg_pool_shape *s, int64_t begin, int64_t end,
                                                                     int32_t rows, int32_t columns, int bytes,
                                                                     const void *saved, const float *dy, float *dx) {
    const size_t lanes = (size_t)s->lanes, row = (size_t)s->in[1] * lanes;
    for (int64_t c = begin; c < end; ++c) {
        float *image = dx + (size_t)(c * s->in[0]) * row;
        for (int64_t oh = 0; oh < s->out[0]; ++oh) {
            float *corner = image + (size_t)(oh * rows) * row;
            size_t at = (size_t)((c * s->out[0] + oh) * s->out[1]) * lanes;
            for (int64_t ow = 0; ow < s->out[1]; ++ow, corner += (size_t)columns * lanes) {
                for (size_t n = 0; n < lanes; n += GG_LANES, at += GG_LANES) {
                    const lanes_f d = lanes_load(dy + at);
                    const lanes_i winner = saved_place(saved, at, bytes);
                    for (int32_t i = 0; i < rows; ++i)
                        for (int32_t j = 0; j < columns; ++j)
                            lanes_store(corner + (size_t)i * row + (size_t)j * lanes + n,
                                        lanes_select(lanes_equal(winner, lanes_set_int(i * columns + j)), d));
                }
            }
        }
        clear_rest(s, image);
    }
}

/* The windows that hold one input element, a few at a time. */
#define HOLDERS 16
typedef struct holders {
    int count;
    int32_t place[HOLDERS];  /* the element's place in each window */
    int64_t window[HOLDERS]; /* the output's number in its image */
} holders;

/* Fills `held` from pair number `from` on (pairs of windows down and right, row by row). True if there are more. */
static inline bool find_holders(const gg_pool_shape *s, int64_t h, int64_t w, int32_t from, holders *held) {
    const gg_pool_cover *down = &s->cover[0], *right = &s->cover[1];
    const int32_t columns = right->start[w + 1] - right->start[w],
                  pairs = (down->start[h + 1] - down->start[h]) * columns;
    held->count = 0;
    if (columns == 0) return false;
    int32_t i = down->start[h] + from / columns, j = right->start[w] + from % columns;
    for (; from < pairs && held->count < HOLDERS; ++from) {
        held->place[held->count] = down->place[i] * (int32_t)s->kernel[1] + right->place[j];
        held->window[held->count++] = down->window[i] * s->out[1] + right->window[j];
        if (++j == right->start[w + 1]) {
            j = right->start[w];
            ++i;
        }
    }
    return from < pairs;
}

/* Clears rows [from, to) of an image. */
static void clear_rows(const gg_pool_shape *s, float *image, int64_t from, int64_t to) {
    const size_t row = (size_t)(s->in[1] * s->lanes);
    if (from < to) memset(image + (size_t)from * row, 0, (size_t)(to - from) * row * sizeof(float));
}

/* Adds each output's gradient at the place of its max, in the order of the windows. Rows are cleared just before the
 * first window reaches them. */
static inline __attribute__((always_inline)) void max_windows_backward(const gg_pool_shape *s, int64_t begin,
                                                                       int64_t end, int bytes, const void *saved,
                                                                       const float *dy, float *dx) {
    const size_t lanes = (size_t)s->lanes, width = (size_t)s->in[1];
    const size_t down = width * (size_t)s->dilation[0] * lanes, right = (size_t)s->dilation[1] * lanes;
    for (int64_t c = begin; c < end; ++c) {
        float *image = dx + (size_t)(c * s->in[0]) * width * lanes;
        size_t at = (size_t)(c * s->out[0] * s->out[1]) * lanes;
        int64_t cleared = 0;
        for (int64_t oh = 0; oh < s->out[0]; ++oh) {
            const int32_t rows = s->count[0][oh];
            const int64_t reach = s->first[0][oh] + (rows - 1) * s->dilation[0] + 1;
            clear_rows(s, image, cleared, reach);
            cleared = reach > cleared ? reach : cleared;
            for (int64_t ow = 0; ow < s->out[1]; ++ow) {
                float *corner = image + ((size_t)s->first[0][oh] * width + (size_t)s->first[1][ow]) * lanes;
                const int32_t columns = s->count[1][ow];
                const int32_t place = s->place[0][oh] * (int32_t)s->kernel[1] + s->place[1][ow];
                for (size_t n = 0; n < lanes; n += GG_LANES, at += GG_LANES) {
                    const lanes_f d = lanes_load(dy + at);
                    const lanes_i winner = saved_place(saved, at, bytes);
                    for (int32_t i = 0; i < rows; ++i) {
                        float *to = corner + (size_t)i * down + n;
                        for (int32_t j = 0; j < columns; ++j, to += right) {
                            const lanes_i own = lanes_set_int(place + i * (int32_t)s->kernel[1] + j);
                            lanes_store(to, lanes_add(lanes_load(to), lanes_select(lanes_equal(winner, own), d)));
                        }
                    }
                }
            }
        }
        clear_rows(s, image, cleared, s->in[0]);
    }
}

static void max_backward(const gg_pool_shape *s, int64_t begin, int64_t end, const void *saved, const float *dy,
                         float *dx) {
    if (is_2x2(s)) max_tiles_backward(s, begin, end, 2, 2, 1, saved, dy, dx);
    else if (s->tiled)
        max_tiles_backward(s, begin, end, (int32_t)s->kernel[0], (int32_t)s->kernel[1], s->index_bytes, saved, dy, dx);
    else if (s->index_bytes == 1) max_windows_backward(s, begin, end, 1, saved, dy, dx);
    else max_windows_backward(s, begin, end, s->index_bytes, saved, dy, dx);
}

static void pool_average(const gg_pool_shape *s, int64_t begin, int64_t end, const float *x, float *y) {
    const size_t lanes = (size_t)s->lanes, row = (size_t)s->in[1] * lanes;
    y += (size_t)(begin * s->out[0] * s->out[1]) * lanes;
    for (int64_t c = begin; c < end; ++c) {
        const float *image = x + (size_t)(c * s->in[0]) * row;
        const float *scale = s->scale;
        for (int64_t oh = 0; oh < s->out[0]; ++oh) {
            for (int64_t ow = 0; ow < s->out[1]; ++ow, ++scale) {
                const float *corner = image + (size_t)s->first[0][oh] * row + (size_t)s->first[1][ow] * lanes;
                const int32_t rows = s->count[0][oh], columns = s->count[1][ow];
                const lanes_f factor = lanes_set(*scale);
                for (size_t n = 0; n < lanes; n += GG_LANES, y += GG_LANES) {
                    lanes_f sum = lanes_set(0.0f);
                    for (int32_t i = 0; i < rows; ++i)
                        for (int32_t j = 0; j < columns; ++j)
                            sum = lanes_add(sum, lanes_load(corner + (size_t)i * row + (size_t)j * lanes + n));
                    lanes_store(y, lanes_multiply(sum, factor));
                }
            }
        }
    }
}

static void average_backward(const gg_pool_shape *s, int64_t begin, int64_t end, const float *dy, float *dx) {
    const size_t lanes = (size_t)s->lanes;
    holders held;
    for (int64_t c = begin; c < end; ++c) {
        const float *image = dy + (size_t)(c * s->out[0] * s->out[1]) * lanes;
        float *out = dx + (size_t)(c * s->in[0] * s->in[1]) * lanes;
        for (int64_t h = 0; h < s->in[0]; ++h) {
            for (int64_t w = 0; w < s->in[1]; ++w, out += lanes) {
                bool more = true;
                for (int32_t from = 0; more; from += HOLDERS) {
                    more = find_holders(s, h, w, from, &held);
                    for (size_t n = 0; n < lanes; n += GG_LANES) {
                        lanes_f sum = from == 0 ? lanes_set(0.0f) : lanes_load(out + n);
                        for (int i = 0; i < held.count; ++i) {
                            const lanes_f d = lanes_load(image + (size_t)held.window[i] * lanes + n);
                            sum = lanes_multiply_add(d, lanes_set(s->scale[held.window[i]]), sum);
                        }
                        lanes_store(out + n, sum);
                    }
                }
            }
        }
    }
}

const gg_cpu_pool GG_VARIANT(gg_cpu_pool) = {
    .max = max_forward,
    .max_backward = max_backward,
    .average = pool_average,
    .average_backward = average_backward,
};
