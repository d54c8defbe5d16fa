/* The CPU kernels and the native operations built on them (convolution and linear have tests of their own), at every
 * level this CPU has, against double references; buffers stand between guard bytes. */
#include <stdint.h>
#include <stdlib.h>

#include "base/memory.h"
#include "base/random.h"
#include "check.h"
#include "cpu/cpu_backend.h"
#include "cpu/kernels.h"

#define GUARD 64
#define GUARD_BYTE 0xA5

static gg_device *device;
static gg_isa isa;

/* ------------------------------------------------------------------------------------------ helpers */

typedef struct buffer {
    unsigned char *block;
    size_t bytes;
} buffer;

static buffer buffers[64];
static int buffer_count;

/* Memory between guards, filled with NaN; freed and checked by release(). */
static void *guarded(size_t bytes) {
    void *block;
    const size_t room = (bytes + GUARD - 1) / GUARD * GUARD;
    if (gg_alloc(room + 2 * GUARD, "test", &block) != GG_OK) abort();
    memset(block, GUARD_BYTE, room + 2 * GUARD);
    memset((char *)block + GUARD, 0xFF, bytes);
    if (buffer_count == 64) abort();
    buffers[buffer_count++] = (buffer){block, bytes};
    return (char *)block + GUARD;
}

static float *floats(int64_t n) { return guarded((size_t)n * sizeof(float)); }

static uint32_t stream;

static float *uniform(int64_t n, float low, float high) {
    float *p = floats(n);
    const gg_random_key key = {7, GG_RANDOM_TEST, 0, ++stream};
    gg_random_uniform(&key, (size_t)n, low, high, p);
    return p;
}

static void release(void) {
    bool intact = true;
    for (int i = 0; i < buffer_count; ++i) {
        const buffer *b = &buffers[i];
        const size_t room = (b->bytes + GUARD - 1) / GUARD * GUARD;
        for (size_t k = 0; k < GUARD; ++k) intact = intact && b->block[k] == GUARD_BYTE;
        for (size_t k = GUARD + b->bytes; k < room + 2 * GUARD; ++k) intact = intact && b->block[k] == GUARD_BYTE;
        gg_free(b->block);
    }
    buffer_count = 0;
    CHECK(intact);
}

static double ulps(float value, double wanted) {
    int exponent;
    if (wanted == 0) return value == 0 ? 0 : 1e30;
    frexp(wanted, &exponent);
    const double ulp = ldexp(1.0, (exponent < -125 ? -125 : exponent) - 24);
    return fabs((double)value - wanted) / ulp;
}

/* Largest |a - b| over max(1, |b|). */
static double distance(int64_t n, const float *a, const double *b) {
    double worst = 0;
    for (int64_t i = 0; i < n; ++i) {
        const double size = fabs(b[i]) > 1 ? fabs(b[i]) : 1, d = fabs((double)a[i] - b[i]) / size;
        if (!(d <= worst)) worst = d;
    }
    return worst;
}

static bool same_bits(const void *a, const void *b, size_t bytes) { return memcmp(a, b, bytes) == 0; }

static gg_shape shape3(int64_t a, int64_t b, int64_t c) { return (gg_shape){3, {a, b, c}}; }
static gg_shape shape1(int64_t a) { return (gg_shape){1, {a}}; }

/* Where value v of sample n lies. */
static int64_t place(gg_layout layout, int64_t batch, int64_t values, int64_t n, int64_t v) {
    return layout == GG_LAYOUT_BATCH_LAST ? v * gg_lanes_padded(batch) + n : n * values + v;
}

static int64_t elements(gg_layout layout, int64_t batch, int64_t values) {
    return (layout == GG_LAYOUT_BATCH_LAST ? gg_lanes_padded(batch) : batch) * values;
}

/* Zeros in the lanes behind the batch, as gradients have them. */
static void clear_padding(gg_layout layout, int64_t batch, int64_t values, float *p) {
    if (layout != GG_LAYOUT_BATCH_LAST) return;
    for (int64_t v = 0; v < values; ++v)
        for (int64_t n = batch; n < gg_lanes_padded(batch); ++n) p[place(layout, batch, values, n, v)] = 0;
}

static bool padding_is_zero(gg_layout layout, int64_t batch, int64_t values, const float *p) {
    bool zero = true;
    if (layout == GG_LAYOUT_BATCH_LAST)
        for (int64_t v = 0; v < values; ++v)
            for (int64_t n = batch; n < gg_lanes_padded(batch); ++n)
                zero = zero && p[place(layout, batch, values, n, v)] == 0;
    return zero;
}

static bool all_are_finite(int64_t n, const float *p) {
    bool good = true;
    for (int64_t i = 0; i < n; ++i) good = good && isfinite(p[i]);
    return good;
}

static gg_op *create(const gg_op_desc *desc) {
    gg_op *op = NULL;
    CHECK_OK(gg_backend_native.create[desc->kind](device, desc, &op));
    return op;
}

/* ------------------------------------------------------------------------------------------ activations */

static void test_functions(void) {
    const gg_cpu_elementwise *k = gg_cpu_kernels_for(isa)->elementwise;
    const int64_t n = 200003;
    float *x = floats(n), *y = floats(n);
    /* Even over the exponents from 2^-30 to 2^7, then an even sweep over -110..110. */
    for (int64_t i = 0; i < n; ++i) {
        const double t = (double)i / (double)n;
        x[i] = i % 2 ? (float)(220 * t - 110) : (float)((i % 4 ? 1 : -1) * exp2(37 * t - 30));
    }
    double worst = 0;
    k->tanh((size_t)n, x, y);
    for (int64_t i = 0; i < n; ++i) worst = fmax(worst, ulps(y[i], tanh((double)x[i])));
    CHECK_NEAR(worst, 0, 2.0);
    worst = 0;
    k->sigmoid((size_t)n, x, y);
    for (int64_t i = 0; i < n; ++i) worst = fmax(worst, ulps(y[i], 1 / (1 + exp(-(double)x[i]))));
    CHECK_NEAR(worst, 0, 3.0);

    const float special[6] = {NAN, INFINITY, -INFINITY, 0.0f, -0.0f, 1e30f};
    float out[6];
    k->tanh(6, special, out);
    CHECK(isnan(out[0]) && out[1] == 1 && out[2] == -1 && out[3] == 0 && signbit(out[4]) && out[5] == 1);
    k->sigmoid(6, special, out);
    CHECK(isnan(out[0]) && out[1] == 1 && out[2] >= 0 && out[2] < 1e-44f && out[3] == 0.5f && out[4] == 0.5f &&
          out[5] == 1);
    k->relu(6, special, out);
    CHECK(isnan(out[0]) && out[1] == INFINITY && out[2] == 0 && out[3] == 0 && out[5] == 1e30f);
    release();
}

static void test_activations(void) {
    const gg_op_kind kinds[3] = {GG_OP_RELU, GG_OP_TANH, GG_OP_SIGMOID};
    const gg_layout layouts[2] = {GG_LAYOUT_PLAIN, GG_LAYOUT_BATCH_LAST};
    for (int k = 0; k < 3; ++k) {
        for (int l = 0; l < 2; ++l) {
            for (int64_t batch = 1; batch <= 33; batch += 16) {
                const int64_t values = 37, n = elements(layouts[l], batch, values);
                gg_op_desc desc = {.kind = kinds[k], .batch = batch, .inputs = 1, .training = true, .input_grad = true};
                desc.input[0] = desc.output = shape1(values);
                desc.offered[0] = (gg_format){GG_FLOAT32, layouts[l]};
                gg_op *op = create(&desc);
                if (op == NULL) continue;
                CHECK(op->input[0].layout == layouts[l] && op->output.layout == layouts[l] && op->in_place);
                float *x = uniform(n, -3, 3), *dy = uniform(n, -1, 1), *y = floats(n), *dx = floats(n);
                clear_padding(layouts[l], batch, values, dy);
                double *wanted_y = guarded((size_t)n * 8), *wanted_dx = guarded((size_t)n * 8);
                for (int64_t i = 0; i < n; ++i) {
                    const double v = (double)x[i], s = 1 / (1 + exp(-v));
                    wanted_y[i] = kinds[k] == GG_OP_RELU ? fmax(v, 0) : kinds[k] == GG_OP_TANH ? tanh(v) : s;
                    wanted_dx[i] = (double)dy[i] * (kinds[k] == GG_OP_RELU   ? v > 0
                                                    : kinds[k] == GG_OP_TANH ? 1 - tanh(v) * tanh(v)
                                                                             : s * (1 - s));
                }
                gg_op_args args = {.input = {x}, .output = y, .grad_output = dy, .grad_input = {dx}};
                CHECK_OK(gg_op_forward(op, &args));
                CHECK_OK(gg_op_backward(op, &args));
                CHECK_NEAR(distance(n, y, wanted_y), 0, 3e-7);
                CHECK_NEAR(distance(n, dx, wanted_dx), 0, 5e-7);
                CHECK(padding_is_zero(layouts[l], batch, values, dx));
                /* In place, the same bits. */
                gg_op_args in_place = {.input = {x}, .output = x, .grad_output = dy, .grad_input = {dy}};
                CHECK_OK(gg_op_forward(op, &in_place));
                CHECK_OK(gg_op_backward(op, &in_place));
                CHECK(same_bits(x, y, (size_t)n * 4) && same_bits(dy, dx, (size_t)n * 4));
                gg_op_destroy(op);
                release();
            }
        }
    }
    /* Padded channels have to stay zero: a sigmoid then asks for another layout. */
    gg_op_desc desc = {.kind = GG_OP_SIGMOID, .batch = 2, .inputs = 1};
    desc.input[0] = desc.output = shape3(20, 3, 3);
    desc.offered[0] = (gg_format){GG_FLOAT32, GG_LAYOUT_CHANNELS16};
    gg_op *op = create(&desc);
    if (op != NULL) CHECK(op->input[0].layout == GG_LAYOUT_PLAIN);
    gg_op_destroy(op);
    desc.offered[0].dtype = GG_BFLOAT16; /* which desc.dtype does not ask for */
    op = create(&desc);
    if (op != NULL) CHECK(op->input[0].dtype == GG_FLOAT32 && op->output.dtype == GG_FLOAT32);
    gg_op_destroy(op);
    desc.offered[0].dtype = GG_INT32;
    CHECK_FAILS(gg_backend_native.create[GG_OP_SIGMOID](device, &desc, &op), GG_ERROR_UNSUPPORTED, "not int32");
    CHECK(op == NULL);
}

static void test_add_and_concat(void) {
    const int64_t batch = 5, lanes = gg_lanes_padded(batch);
    gg_op_desc desc = {.kind = GG_OP_ADD, .batch = batch, .inputs = 3, .training = true, .input_grad = true};
    float *in[3], *grad[3];
    gg_op_args args = {0};
    for (int i = 0; i < 3; ++i) {
        desc.input[i] = shape3(3, 7, 5);
        desc.offered[i] = (gg_format){GG_FLOAT32, GG_LAYOUT_PLAIN};
        args.input[i] = in[i] = uniform(batch * 105, -1, 1);
        args.grad_input[i] = grad[i] = floats(batch * 105);
    }
    desc.output = desc.input[0];
    float *out = args.output = floats(batch * 105);
    args.grad_output = uniform(batch * 105, -1, 1);
    args.grad_input[1] = NULL;
    gg_op *op = create(&desc);
    if (op == NULL) return;
    CHECK_OK(gg_op_forward(op, &args));
    CHECK_OK(gg_op_backward(op, &args));
    bool good = true;
    for (int64_t i = 0; i < batch * 105; ++i) good = good && out[i] == (in[0][i] + in[1][i]) + in[2][i];
    CHECK(good);
    CHECK(same_bits(grad[0], args.grad_output, (size_t)batch * 420) &&
          same_bits(grad[2], args.grad_output, (size_t)batch * 420));
    gg_op_destroy(op);
    release();

    const int64_t channels[3] = {1, 4, 2};
    desc = (gg_op_desc){.kind = GG_OP_CONCAT, .batch = batch, .inputs = 3, .training = true, .input_grad = true};
    args = (gg_op_args){0};
    for (int i = 0; i < 3; ++i) {
        desc.input[i] = shape3(channels[i], 3, 2);
        desc.offered[i] = (gg_format){GG_FLOAT32, GG_LAYOUT_PLAIN};
        args.input[i] = in[i] = uniform(channels[i] * 6 * lanes, -1, 1);
        args.grad_input[i] = grad[i] = floats(channels[i] * 6 * lanes);
    }
    desc.output = shape3(7, 3, 2);
    args.output = out = floats(42 * lanes);
    args.grad_output = out;
    op = create(&desc);
    if (op == NULL) return;
    CHECK(op->input[1].layout == GG_LAYOUT_BATCH_LAST);
    CHECK_OK(gg_op_forward(op, &args));
    CHECK_OK(gg_op_backward(op, &args));
    for (int i = 0; i < 3; ++i) CHECK(same_bits(in[i], grad[i], (size_t)(channels[i] * 6 * lanes) * 4));
    CHECK(same_bits(out + 6 * lanes, in[1], (size_t)(24 * lanes) * 4));
    gg_op_destroy(op);
    desc.output = shape3(8, 3, 2);
    CHECK_FAILS(gg_backend_native.create[GG_OP_CONCAT](device, &desc, &op), GG_ERROR_SHAPE, "concat");
    release();
}

/* ------------------------------------------------------------------------------------------ dropout */

static void test_dropout(void) {
    const gg_layout layouts[2] = {GG_LAYOUT_PLAIN, GG_LAYOUT_BATCH_LAST};
    const int64_t batches[4] = {1, 16, 23, 64}, values = 53;
    for (int b = 0; b < 4; ++b) {
        for (int l = 0; l < 2; ++l) {
            const int64_t batch = batches[b], n = elements(layouts[l], batch, values), blocks = (batch + 3) / 4;
            gg_op_desc desc = {
                .kind = GG_OP_DROPOUT, .batch = batch, .inputs = 1, .training = true, .input_grad = true};
            desc.probability = 0.3f;
            desc.seed = UINT64_C(0x123456789abcdef0);
            desc.input[0] = desc.output = shape1(values);
            desc.offered[0] = (gg_format){GG_FLOAT32, layouts[l]};
            gg_op *op = create(&desc);
            if (op == NULL) return;
            float *x = uniform(n, 1, 2), *dy = uniform(n, 1, 2), *y = floats(n), *dx = floats(n);
            clear_padding(layouts[l], batch, values, dy);
            gg_op_args args = {
                .input = {x}, .output = y, .grad_output = dy, .grad_input = {dx}, .rank = 3, .step = UINT64_C(1) << 40};
            args.saved = guarded(op->saved_bytes);
            CHECK_OK(gg_op_forward(op, &args));
            CHECK_OK(gg_op_backward(op, &args));
            const gg_random_key key = {desc.seed, GG_RANDOM_DROPOUT, args.rank, args.step};
            const double scale = 1 / (1 - (double)desc.probability);
            bool good = true;
            int64_t dropped = 0;
            for (int64_t f = 0; f < values; ++f) {
                for (int64_t s = 0; s < batch; ++s) {
                    uint32_t word[4];
                    gg_random_block(&key, (uint32_t)(f * blocks + s / 4), word);
                    const int64_t at = place(layouts[l], batch, values, s, f);
                    const bool keep = word[s % 4] >= (uint32_t)((double)desc.probability * 0x1p32);
                    dropped += !keep;
                    good = good && fabs((double)y[at] - (keep ? scale * (double)x[at] : 0)) < 1e-6;
                    good = good && fabs((double)dx[at] - (keep ? scale * (double)dy[at] : 0)) < 1e-6;
                }
            }
            CHECK(good);
            CHECK_NEAR((double)dropped / (double)(batch * values), 0.3, batch == 1 ? 0.2 : 0.05);
            CHECK(all_are_finite(n, y) && padding_is_zero(layouts[l], batch, values, dx));
            gg_op_destroy(op);

            desc.training = false;
            op = create(&desc);
            CHECK_INT(op->saved_bytes, 0);
            CHECK_OK(gg_op_forward(op, &args));
            CHECK(same_bits(x, y, (size_t)n * 4));
            gg_op_destroy(op);

            desc.training = true;
            desc.probability = 1;
            op = create(&desc);
            CHECK_OK(gg_op_forward(op, &args));
            good = true;
            for (int64_t i = 0; i < n; ++i) good = good && y[i] == 0;
            CHECK(good);
            gg_op_destroy(op);
            release();
        }
    }
}

/* ------------------------------------------------------------------------------------------ pooling */

typedef struct pool_case {
    int64_t channels, in[2];
    gg_window window;
} pool_case;

static int64_t pooled_size(int64_t in, const gg_window *w, int a) {
    const int64_t numerator =
        in + 2 * w->padding[a] - w->dilation[a] * (w->kernel[a] - 1) - 1 + (w->ceil_mode ? w->stride[a] - 1 : 0);
    int64_t out = (int64_t)floor((double)numerator / (double)w->stride[a]) + 1;
    if (w->ceil_mode && (out - 1) * w->stride[a] >= in + w->padding[a]) --out;
    return out;
}

static int64_t lower(int64_t a, int64_t b) { return a < b ? a : b; }
static int64_t upper(int64_t a, int64_t b) { return a > b ? a : b; }

/* As PyTorch writes it: one sample and channel, all in double. */
static void reference_pool(bool max, const pool_case *c, const int64_t out[2], const double *x, const double *dy,
                           double *y, double *dx) {
    const gg_window *w = &c->window;
    const int64_t height = c->in[0], width = c->in[1];
    for (int64_t i = 0; i < height * width; ++i) dx[i] = 0;
    for (int64_t oh = 0; oh < out[0]; ++oh) {
        for (int64_t ow = 0; ow < out[1]; ++ow) {
            const int64_t o = oh * out[1] + ow;
            int64_t h0 = oh * w->stride[0] - w->padding[0], w0 = ow * w->stride[1] - w->padding[1];
            if (max) {
                const int64_t h1 = lower(h0 + (w->kernel[0] - 1) * w->dilation[0] + 1, height);
                const int64_t w1 = lower(w0 + (w->kernel[1] - 1) * w->dilation[1] + 1, width);
                while (h0 < 0) h0 += w->dilation[0];
                while (w0 < 0) w0 += w->dilation[1];
                int64_t index = h0 * width + w0;
                double best = -INFINITY;
                for (int64_t h = h0; h < h1; h += w->dilation[0]) {
                    for (int64_t v = w0; v < w1; v += w->dilation[1]) {
                        const double value = x[h * width + v];
                        if (value > best || isnan(value)) {
                            best = value;
                            index = h * width + v;
                        }
                    }
                }
                y[o] = best;
                dx[index] += dy[o];
            } else {
                int64_t h1 = lower(h0 + w->kernel[0], height + w->padding[0]);
                int64_t w1 = lower(w0 + w->kernel[1], width + w->padding[1]);
                const int64_t whole = (h1 - h0) * (w1 - w0);
                h0 = upper(h0, 0), w0 = upper(w0, 0), h1 = lower(h1, height), w1 = lower(w1, width);
                const int64_t divisor = w->count_include_pad ? whole : (h1 - h0) * (w1 - w0);
                double sum = 0;
                for (int64_t h = h0; h < h1; ++h) {
                    for (int64_t v = w0; v < w1; ++v) {
                        sum += x[h * width + v];
                        dx[h * width + v] += dy[o] / (double)divisor;
                    }
                }
                y[o] = sum / (double)divisor;
            }
        }
    }
}

static bool near_or_both_nan(double a, double b) {
    return (isnan(a) && isnan(b)) || a == b || fabs(a - b) <= 1e-6 * fmax(1, fabs(b));
}

static void check_pool(bool max, const pool_case *c, int64_t batch, bool special) {
    const int64_t lanes = gg_lanes_padded(batch), pixels = c->in[0] * c->in[1];
    const int64_t out[2] = {pooled_size(c->in[0], &c->window, 0), pooled_size(c->in[1], &c->window, 1)};
    const int64_t outputs = out[0] * out[1], n_in = c->channels * pixels * lanes, n_out = c->channels * outputs * lanes;
    gg_op_desc desc = {
        .kind = max ? GG_OP_MAX_POOL2D : GG_OP_AVG_POOL2D, .batch = batch, .inputs = 1, .training = true};
    desc.input_grad = true;
    desc.input[0] = shape3(c->channels, c->in[0], c->in[1]);
    desc.output = shape3(c->channels, out[0], out[1]);
    desc.window = c->window;
    desc.offered[0] = (gg_format){GG_FLOAT32, GG_LAYOUT_PLAIN};
    gg_op *op = create(&desc);
    if (op == NULL) return;
    CHECK(op->input[0].layout == GG_LAYOUT_BATCH_LAST && op->output.layout == GG_LAYOUT_BATCH_LAST);
    float *x = uniform(n_in, -1, 1), *dy = uniform(n_out, -1, 1), *y = floats(n_out), *dx = floats(n_in),
          *again = floats(n_out);
    clear_padding(GG_LAYOUT_BATCH_LAST, batch, c->channels * outputs, dy);
    /* Few different values, so that there are ties. */
    for (int64_t i = 0; i < n_in; ++i) x[i] = floorf(x[i] * 3);
    if (special)
        for (int64_t i = 0; i < n_in; i += 5) x[i] = i % 3 == 0 ? NAN : i % 3 == 1 ? -INFINITY : INFINITY;
    gg_op_args args = {.input = {x}, .output = y, .grad_output = dy, .grad_input = {dx}};
    args.saved = guarded(op->saved_bytes);
    const int64_t allocations = gg_memory_allocations();
    CHECK_OK(gg_op_forward(op, &args));
    args.input[0] = NULL;
    args.output = NULL;
    CHECK_OK(gg_op_backward(op, &args));
    CHECK_INT(gg_memory_allocations(), allocations);
    gg_op_destroy(op);
    /* Evaluation gives the same without saving. */
    desc.training = false;
    op = create(&desc);
    CHECK_INT(op->saved_bytes, 0);
    args.input[0] = x;
    args.output = again;
    args.saved = NULL;
    CHECK_OK(gg_op_forward(op, &args));
    CHECK(same_bits(y, again, (size_t)n_out * 4));
    gg_op_destroy(op);

    double *one_x = guarded((size_t)pixels * 8), *one_dx = guarded((size_t)pixels * 8);
    double *one_y = guarded((size_t)outputs * 8), *one_dy = guarded((size_t)outputs * 8);
    bool good_y = true, good_dx = true;
    for (int64_t channel = 0; channel < c->channels; ++channel) {
        for (int64_t s = 0; s < batch; ++s) {
            for (int64_t i = 0; i < pixels; ++i) one_x[i] = (double)x[(channel * pixels + i) * lanes + s];
            for (int64_t i = 0; i < outputs; ++i) one_dy[i] = (double)dy[(channel * outputs + i) * lanes + s];
            reference_pool(max, c, out, one_x, one_dy, one_y, one_dx);
            for (int64_t i = 0; i < outputs; ++i)
                good_y = good_y && near_or_both_nan((double)y[(channel * outputs + i) * lanes + s], one_y[i]);
            for (int64_t i = 0; i < pixels; ++i)
                good_dx = good_dx && near_or_both_nan((double)dx[(channel * pixels + i) * lanes + s], one_dx[i]);
        }
    }
    CHECK(good_y);
    CHECK(good_dx);
    CHECK(padding_is_zero(GG_LAYOUT_BATCH_LAST, batch, c->channels * pixels, dx));
    release();
}

static void test_pool(void) {
#define WINDOW(k0, k1, s0, s1, p0, p1, d0, d1, c)                                                                      \
    { {k0, k1}, {s0, s1}, {p0, p1}, {d0, d1}, c, true }
    const pool_case cases[] = {
        {3, {6, 8}, WINDOW(2, 2, 2, 2, 0, 0, 1, 1, false)},     {3, {7, 9}, WINDOW(2, 2, 2, 2, 0, 0, 1, 1, false)},
        {2, {7, 9}, WINDOW(2, 2, 2, 2, 0, 0, 1, 1, true)},      {2, {9, 7}, WINDOW(3, 3, 2, 2, 0, 0, 1, 1, false)},
        {2, {9, 10}, WINDOW(3, 3, 2, 2, 1, 1, 1, 1, true)},     {1, {10, 11}, WINDOW(3, 2, 3, 2, 0, 0, 1, 1, false)},
        {1, {5, 5}, WINDOW(5, 5, 5, 5, 0, 0, 1, 1, false)},     {1, {8, 5}, WINDOW(4, 3, 1, 2, 2, 1, 1, 1, true)},
        {2, {6, 6}, WINDOW(2, 2, 3, 3, 0, 0, 1, 1, false)},     {1, {3, 3}, WINDOW(2, 2, 2, 2, 1, 1, 1, 1, true)},
        {1, {1, 1}, WINDOW(1, 1, 1, 1, 0, 0, 1, 1, false)},     {1, {4, 17}, WINDOW(1, 5, 1, 4, 0, 2, 1, 1, true)},
        {1, {20, 20}, WINDOW(17, 18, 1, 2, 0, 0, 1, 1, false)},
    };
    const pool_case dilated[] = {
        {2, {9, 9}, WINDOW(2, 3, 2, 1, 1, 1, 2, 2, false)},
        {1, {11, 8}, WINDOW(3, 2, 1, 2, 2, 1, 3, 2, true)},
        {1, {7, 7}, WINDOW(2, 2, 1, 1, 0, 0, 3, 4, false)},
    };
    const int64_t batches[3] = {1, 19, 64};
    for (size_t i = 0; i < sizeof cases / sizeof *cases; ++i) {
        for (int b = 0; b < 3; ++b) {
            pool_case c = cases[i];
            check_pool(true, &c, batches[b], false);
            check_pool(true, &c, batches[b], true);
            check_pool(false, &c, batches[b], false);
            c.window.count_include_pad = false;
            check_pool(false, &c, batches[b], false);
        }
    }
    for (size_t i = 0; i < sizeof dilated / sizeof *dilated; ++i) check_pool(true, &dilated[i], 19, true);

    gg_op_desc desc = {
        .kind = GG_OP_MAX_POOL2D, .batch = 1, .inputs = 1, .window = WINDOW(2, 2, 2, 2, 0, 0, 1, 1, false)};
    gg_op *op = NULL;
    desc.input[0] = shape3(1, 6, 6);
    desc.output = shape3(1, 3, 4);
    CHECK_FAILS(gg_backend_native.create[GG_OP_MAX_POOL2D](device, &desc, &op), GG_ERROR_SHAPE,
                "give 3 outputs, not 4");
    desc.output = shape3(1, 4, 4);
    desc.window.padding[0] = 2;
    CHECK_FAILS(gg_backend_native.create[GG_OP_MAX_POOL2D](device, &desc, &op), GG_ERROR_ARGUMENT, "half");
#undef WINDOW
}

/* ------------------------------------------------------------------------------------------ losses */

static void check_loss(gg_loss_kind kind, gg_layout layout, int64_t batch, int64_t features, bool weighted) {
    const int64_t n = elements(layout, batch, features);
    float *x = uniform(n, -5, 5), *gradient = floats(n);
    float *wanted_target = uniform(batch * features, 0, 1), *weight = uniform(batch, 0, 4);
    if (batch > 2) weight[1] = 0;
    int32_t *class = guarded((size_t)batch * sizeof *class);
    double *wanted = guarded((size_t)n * sizeof *wanted);
    double sum = 0;
    int64_t correct = 0;
    for (int64_t i = 0; i < n; ++i) wanted[i] = 0;
    if (features > 2) {
        /* A tie at the top: the lower index counts. */
        x[place(layout, batch, features, 0, 1)] = x[place(layout, batch, features, 0, features - 1)] = 6;
    }
    for (int64_t s = 0; s < batch; ++s) {
        class[s] = (int32_t)((s * 7 + 1) % features);
        double top = -INFINITY, total = 0, mean = 0;
        int64_t best = 0;
        bool right = true;
        for (int64_t f = 0; f < features; ++f) {
            const double v = (double)x[place(layout, batch, features, s, f)];
            if (v > top) top = v, best = f;
        }
        for (int64_t f = 0; f < features; ++f) total += exp((double)x[place(layout, batch, features, s, f)] - top);
        const double share = weighted ? (double)weight[s] : 1;
        for (int64_t f = 0; f < features; ++f) {
            const int64_t at = place(layout, batch, features, s, f);
            const double v = (double)x[at], t = (double)wanted_target[s * features + f];
            if (kind == GG_LOSS_CROSS_ENTROPY) {
                wanted[at] = (exp(v - top) / total - (f == class[s])) / (double)batch;
                if (f == class[s]) mean = log(total) + top - v;
            } else if (kind == GG_LOSS_BINARY_CROSS_ENTROPY) {
                const double p = 1 / (1 + exp(-v));
                wanted[at] = (p - t) / (double)(batch * features);
                mean -= (t * log(p) + (1 - t) * log(1 - p)) / (double)features;
                right = right && (v > 0) == (t > 0.5);
            } else {
                wanted[at] = 2 * (v - t) / (double)(batch * features);
                mean += (v - t) * (v - t) / (double)features;
            }
            wanted[at] *= share;
        }
        sum += share * mean;
        correct += kind == GG_LOSS_CROSS_ENTROPY ? best == class[s] : kind == GG_LOSS_BINARY_CROSS_ENTROPY ? right : 0;
    }
    gg_loss_result result = {0};
    gg_loss_args args = {.result = &result,
                         .loss = {.kind = kind},
                         .layout = layout,
                         .batch = batch,
                         .positions = 1,
                         .features = features,
                         .prediction = x};
    args.targets = kind == GG_LOSS_CROSS_ENTROPY ? (const void *)class : wanted_target;
    args.gradient = gradient;
    if (weighted) args.sample_weights = weight;
    gg_backend_native.loss(device, &args);
    CHECK_NEAR(result.loss_sum, sum, 1e-6 * (1 + fabs(sum)));
    CHECK_INT(result.correct, correct);
    /* Relative to the share of one sample, which is what a value of the gradient is of. */
    double worst = 0;
    for (int64_t i = 0; i < n; ++i)
        worst = fmax(worst, fabs((double)gradient[i] - wanted[i]) / fmax(1.0 / (double)batch, fabs(wanted[i])));
    CHECK_NEAR(worst, 0, 3e-7);
    CHECK(padding_is_zero(layout, batch, features, gradient));
    const double before = result.loss_sum;
    args.gradient = NULL;
    gg_backend_native.loss(device, &args);
    CHECK(result.loss_sum == before && result.correct == correct);
    if (!weighted) { /* no weights are the same as ones, to the bit */
        float *same = floats(n);
        for (int64_t s = 0; s < batch; ++s) weight[s] = 1;
        args.sample_weights = weight;
        args.gradient = same;
        gg_backend_native.loss(device, &args);
        CHECK(result.loss_sum == before && memcmp(same, gradient, (size_t)n * sizeof *same) == 0);
    }
    /* What is not finite must show. */
    x[place(layout, batch, features, batch - 1, features - 1)] = NAN;
    gg_backend_native.loss(device, &args);
    CHECK(isnan(result.loss_sum));
    release();
}

static void test_losses(void) {
    const gg_layout layouts[2] = {GG_LAYOUT_PLAIN, GG_LAYOUT_BATCH_LAST};
    const int64_t batches[4] = {1, 16, 37, 64}, features[5] = {1, 2, 10, 16, 101};
    for (int l = 0; l < 2; ++l)
        for (int b = 0; b < 4; ++b)
            for (int f = 0; f < 5; ++f)
                for (int k = 0; k < GG_LOSS_COUNT; ++k)
                    for (int weighted = 0; weighted < 2; ++weighted)
                        check_loss((gg_loss_kind)k, layouts[l], batches[b], features[f], weighted);
    /* Enough for several threads. */
    check_loss(GG_LOSS_CROSS_ENTROPY, GG_LAYOUT_BATCH_LAST, 120, 1000, true);
    check_loss(GG_LOSS_CROSS_ENTROPY, GG_LAYOUT_PLAIN, 120, 1000, false);
    /* Logits far apart neither overflow nor give -0 or NaN. */
    float *x = floats(32), *gradient = floats(32);
    int32_t class[2] = {1, 0};
    for (int i = 0; i < 32; ++i) x[i] = 0;
    x[0] = 1e4f, x[16] = -1e4f, x[1] = 1e4f, x[17] = -1e4f;
    gg_loss_result result = {0};
    gg_loss_args args = {.result = &result,
                         .loss = {.kind = GG_LOSS_CROSS_ENTROPY},
                         .layout = GG_LAYOUT_BATCH_LAST,
                         .batch = 2,
                         .positions = 1,
                         .features = 2};
    args.prediction = x;
    args.targets = class;
    args.gradient = gradient;
    gg_backend_native.loss(device, &args);
    CHECK_NEAR(result.loss_sum, 2e4, 1e-2);
    CHECK_INT(result.correct, 1);
    CHECK(gradient[0] == 0.5f && gradient[16] == -0.5f && gradient[1] == 0 && gradient[17] == 0);
    release();
}

/* ------------------------------------------------------------------------------------------ arenas */

static uint16_t rounded_bfloat16(float value) {
    uint32_t bits;
    memcpy(&bits, &value, 4);
    return (uint16_t)((bits + 0x7fff + ((bits >> 16) & 1)) >> 16);
}

static float of_bfloat16(uint16_t half) {
    const uint32_t bits = (uint32_t)half << 16;
    float value;
    memcpy(&value, &bits, 4);
    return value;
}

/* n numbers from `low` to 1 of type `wire`, as double too. */
static void *from_partner(gg_dtype wire, size_t n, float low, double *numbers) {
    float *wide = uniform((int64_t)n, low, 1);
    uint16_t *narrow = guarded(n * 2);
    for (size_t i = 0; i < n; ++i) {
        narrow[i] = rounded_bfloat16(wide[i]);
        numbers[i] = (double)(wire == GG_BFLOAT16 ? of_bfloat16(narrow[i]) : wide[i]);
    }
    return wire == GG_BFLOAT16 ? (void *)narrow : wide;
}

static bool copied(gg_dtype wire, size_t n, const float *values, const void *copy) {
    bool good = true;
    if (wire == GG_FLOAT32) return same_bits(values, copy, n * 4);
    for (size_t i = 0; i < n; ++i) good = good && ((const uint16_t *)copy)[i] == rounded_bfloat16(values[i]);
    return good;
}

static void *further(gg_dtype wire, const void *p, size_t n) {
    return p != NULL ? (char *)p + n * gg_dtype_size(wire) : NULL;
}

enum { RECEIVES_WEIGHT = 1, RECEIVES_MOMENTS = 2, COPIES = 4 };

static void check_update(size_t n, gg_update_rule rule, gg_dtype wire, int flags) {
    const int64_t count = (int64_t)n;
    const bool keeps = rule != GG_UPDATE_PLAIN, adam = rule == GG_UPDATE_ADAM, copies = flags & COPIES;
    float *grad = uniform(count, -1, 1), *weight = uniform(count, -1, 1), *m = uniform(count, -1, 1);
    float *s = uniform(count, 0, 1), *before[3] = {floats(count), floats(count), floats(count)};
    double *w_in = guarded(n * 8), *m_in = guarded(n * 8), *s_in = guarded(n * 8);
    double *wanted_w = guarded(n * 8), *wanted_m = guarded(n * 8), *wanted_s = guarded(n * 8);
    const gg_update_args args = {
        .n = n,
        .rule = rule,
        .wire = wire,
        .grad = grad,
        .weight = weight,
        .momentum = keeps ? m : NULL,
        .square = adam ? s : NULL,
        .weight_after = flags & RECEIVES_WEIGHT ? from_partner(wire, n, -1, w_in) : NULL,
        .momentum_before = keeps && flags & RECEIVES_MOMENTS ? from_partner(wire, n, -1, m_in) : NULL,
        .square_before = adam && flags & RECEIVES_MOMENTS ? from_partner(wire, n, 0, s_in) : NULL,
        .weight_copy = copies ? guarded(n * gg_dtype_size(wire)) : NULL,
        .momentum_copy = copies && keeps ? guarded(n * gg_dtype_size(wire)) : NULL,
        .square_copy = copies && adam ? guarded(n * gg_dtype_size(wire)) : NULL,
        .grad_scale = 0.5f,
        .lr = 0.1f,
        .mu = 0.9f,
        .weight_decay = 0.01f,
        .d_share = 0.1f,
        .beta2 = 0.99f,
        .square_share = 0.01f,
        .weight_factor = 0.97f,
        .root_scale = 1.5f,
        .eps = 1e-3f};
    for (size_t i = 0; i < n; ++i) {
        const double w = (double)weight[i], old = (double)m[i], mu = (double)args.mu, lr = (double)args.lr;
        const double d = (double)args.grad_scale * (double)grad[i] + (double)args.weight_decay * w;
        const bool narrow = wire == GG_BFLOAT16;
        const double w_sent = narrow ? (double)of_bfloat16(rounded_bfloat16(weight[i])) : w;
        const double m_sent = narrow ? (double)of_bfloat16(rounded_bfloat16(m[i])) : old;
        const double s_sent = narrow ? (double)of_bfloat16(rounded_bfloat16(s[i])) : (double)s[i];
        const double mixed_m = args.momentum_before ? old + (m_in[i] - m_sent) / 2 : old;
        const double mixed_s = args.square_before ? (double)s[i] + (s_in[i] - s_sent) / 2 : (double)s[i];
        const double new_s = (double)args.beta2 * mixed_s + (double)args.square_share * d * d;
        const double new_m = mu * mixed_m + (adam ? (double)args.d_share : 1) * d;
        double new_w = w - lr * (rule == GG_UPDATE_PLAIN ? d : rule == GG_UPDATE_NESTEROV ? d + mu * new_m : new_m);
        if (adam)
            new_w = (double)args.weight_factor * w -
                    lr * new_m / (sqrt(new_s) * (double)args.root_scale + (double)args.eps);
        wanted_w[i] = args.weight_after ? new_w + (w_in[i] - w_sent) / 2 : new_w;
        wanted_m[i] = new_m;
        wanted_s[i] = new_s;
    }
    memcpy(before[0], weight, n * 4);
    memcpy(before[1], m, n * 4);
    memcpy(before[2], s, n * 4);
    gg_backend_native.update(device, &args);
    CHECK_NEAR(distance(count, weight, wanted_w), 0, 3e-7);
    if (keeps) CHECK_NEAR(distance(count, m, wanted_m), 0, 3e-7);
    if (adam) CHECK_NEAR(distance(count, s, wanted_s), 0, 3e-7);
    if (copies) CHECK(copied(wire, n, weight, args.weight_copy));
    if (args.momentum_copy != NULL) CHECK(copied(wire, n, m, args.momentum_copy));
    if (args.square_copy != NULL) CHECK(copied(wire, n, s, args.square_copy));

    /* Any part alone gives the same bits. */
    const size_t from = n > 32 ? 16 : 0, part = n > 64 ? 48 : n - from;
    gg_update_args some = args;
    some.n = part;
    some.grad += from;
    some.weight = before[0] + from;
    if (keeps) some.momentum = before[1] + from;
    if (adam) some.square = before[2] + from;
    some.weight_after = further(wire, some.weight_after, from);
    some.momentum_before = further(wire, some.momentum_before, from);
    some.square_before = further(wire, some.square_before, from);
    some.weight_copy = some.momentum_copy = some.square_copy = NULL;
    gg_backend_native.update(device, &some);
    CHECK(same_bits(before[0] + from, weight + from, part * 4));
    if (keeps) CHECK(same_bits(before[1] + from, m + from, part * 4));
    if (adam) CHECK(same_bits(before[2] + from, s + from, part * 4));
    release();
}

/* A second moment that an average has brought below 0 is 0, and moves no weight to NaN. */
static void test_square_below_zero(void) {
    enum { n = 16 };
    float *grad = floats(n), *weight = uniform(n, -1, 1), *m = floats(n), *s = floats(n), *came = uniform(n, -1, -0.5f);
    float *kept = floats(n);
    memcpy(kept, weight, sizeof(float) * n);
    for (int i = 0; i < n; ++i) grad[i] = m[i] = s[i] = 0;
    gg_backend_native.update(device, &(gg_update_args){.n = n,
                                                       .rule = GG_UPDATE_ADAM,
                                                       .grad = grad,
                                                       .weight = weight,
                                                       .momentum = m,
                                                       .square = s,
                                                       .square_before = came,
                                                       .lr = 0.1f,
                                                       .beta2 = 0.99f,
                                                       .weight_factor = 1,
                                                       .root_scale = 1,
                                                       .eps = 1e-3f});
    for (int i = 0; i < n; ++i) CHECK(s[i] == 0);
    CHECK(same_bits(weight, kept, sizeof(float) * n));
    release();
}

/* Every kind of number, also those that an instruction for it would treat in another way. */
static void test_bfloat16(void) {
    enum { n = 4096 };
    const gg_random_key key = {7, GG_RANDOM_TEST, 1, 0};
    float *in = floats(n), *back = floats(n);
    uint16_t *out = guarded(n * 2);
    bool good = true;
    gg_random_uniform(&key, n, 0, 1, in);
    for (uint32_t i = 0; i < n; ++i) {
        uint32_t bits;
        memcpy(&bits, &in[i], 4);
        bits = bits * 2654435761u + i;                         /* any bits: NaN, infinities, denormals, both signs */
        if (i % 4 == 0) bits = (bits & 0xffff0000u) | 0x8000u; /* a tie */
        if (i % 8 == 1) bits = (bits & 0x807fffffu);           /* denormal */
        if (i % 64 == 2) bits = (bits & 0x80000000u) | 0x7f7fffffu; /* rounds to infinity */
        memcpy(&in[i], &bits, 4);
    }
    gg_backend_native.narrow(device, n, in, out);
    gg_backend_native.widen(device, n, out, back);
    for (uint32_t i = 0; i < n; ++i) {
        const uint16_t again = (uint16_t)(isnan(in[i]) ? 0 : rounded_bfloat16(in[i]));
        good = good && (isnan(in[i]) ? isnan(of_bfloat16(out[i])) : out[i] == again);
        const float wide = of_bfloat16(out[i]);
        good = good && same_bits(&back[i], &wide, 4);
    }
    CHECK(good);
    release();
}

static double first_squares[4] = {NAN, NAN, NAN, NAN};

static void test_arenas(void) {
    for (int rule = GG_UPDATE_PLAIN; rule <= GG_UPDATE_ADAM; ++rule)
        for (int flags = 0; flags < 8; ++flags)
            for (int wire = GG_FLOAT32; wire <= GG_BFLOAT16; ++wire) {
                check_update(16, (gg_update_rule)rule, (gg_dtype)wire, flags);
                check_update(4016, (gg_update_rule)rule, (gg_dtype)wire, flags);
            }
    check_update(100000, GG_UPDATE_ADAM, GG_BFLOAT16, 7);
    test_square_below_zero();
    test_bfloat16();
    const size_t sizes[4] = {0, 16, 2064, 70000 / 16 * 16};
    for (int s = 0; s < 4; ++s) {
        const size_t n = sizes[s];
        const int64_t count = (int64_t)n;
        float *a = uniform(count, -1, 1), *b = uniform(count, -1, 1), *c = uniform(count, -1, 1), *out = floats(count);
        double *wanted = guarded(n * 8);
        double squares = 0, own = 0;
        for (size_t i = 0; i < n; ++i) {
            wanted[i] = (double)a[i] + ((double)b[i] - (double)c[i]) / 2;
            squares += ((double)a[i] - (double)b[i]) * ((double)a[i] - (double)b[i]);
            own += (double)a[i] * (double)a[i];
        }
        gg_backend_native.mix(device, n, GG_FLOAT32, 0.5f, a, b, c, out);
        CHECK_NEAR(distance(count, out, wanted), 0, 2e-7);
        CHECK_NEAR(gg_backend_native.sum_squares(device, n, a, b), squares, 1e-12 * (1 + squares));
        CHECK_NEAR(gg_backend_native.sum_squares(device, n, a, NULL), own, 1e-12 * (1 + own));
        const double found = gg_backend_native.sum_squares(device, n, a, b);
        if (isnan(first_squares[s])) first_squares[s] = found;
        CHECK(found == first_squares[s]); /* the same bits with any threads and any instructions */

        const float *const sources[3] = {a, b, c};
        const float scale[3] = {0.25f, -2.0f, 0.7f};
        for (size_t i = 0; i < n; ++i)
            wanted[i] = 0.25 * (double)a[i] - 2.0 * (double)b[i] + (double)0.7f * (double)c[i];
        gg_backend_native.weighted_sum(device, n, 3, sources, scale, out);
        CHECK_NEAR(distance(count, out, wanted), 0, 3e-7);
        gg_backend_native.weighted_sum(device, n, 3, sources, scale, b); /* onto a source that is read late */
        CHECK(same_bits(b, out, n * 4));

        uint16_t *narrow[3] = {guarded(n * 2), guarded(n * 2), guarded(n * 2)};
        gg_backend_native.narrow(device, n, a, narrow[0]);
        gg_backend_native.narrow(device, n, b, narrow[1]);
        gg_backend_native.narrow(device, n, c, narrow[2]);
        for (size_t i = 0; i < n; ++i)
            wanted[i] = (double)a[i] + 0.7 * ((double)of_bfloat16(narrow[1][i]) - (double)of_bfloat16(narrow[2][i]));
        gg_backend_native.mix(device, n, GG_BFLOAT16, 0.7f, a, narrow[1], c, out);
        CHECK_NEAR(distance(count, out, wanted), 0, 3e-7);
        bool exact = true;
        gg_backend_native.halve(device, n, GG_BFLOAT16, a, narrow[1], out);
        for (size_t i = 0; i < n; ++i) exact = exact && out[i] == (a[i] + of_bfloat16(narrow[1][i])) * 0.5f;
        CHECK(exact);
        const uint16_t *const narrow_sources[3] = {narrow[0], narrow[1], narrow[2]};
        for (size_t i = 0; i < n; ++i) {
            float sum = 0;
            for (int k = 0; k < 3; ++k) sum = fmaf(scale[k], of_bfloat16(narrow[k][i]), sum);
            wanted[i] = (double)sum;
        }
        gg_backend_native.narrow_sum(device, n, 3, narrow_sources, scale, out, NULL);
        CHECK_NEAR(distance(count, out, wanted), 0, 3e-7);
        gg_backend_native.narrow_difference(device, n, out, narrow[0], narrow[2]);
        for (size_t i = 0; i < n; ++i)
            exact = exact && narrow[2][i] == rounded_bfloat16(out[i] - of_bfloat16(narrow[0][i]));
        gg_backend_native.narrow(device, n, c, narrow[2]);
        gg_backend_native.narrow_sum(device, n, 3, narrow_sources, scale, out, narrow[1]); /* onto one of them */
        CHECK_NEAR(distance(count, out, wanted), 0, 1.0 / 256);
        for (size_t i = 0; i < n; ++i) exact = exact && out[i] == of_bfloat16(narrow[1][i]);
        CHECK(exact);

        gg_backend_native.halve(device, n, GG_FLOAT32, a, c, out);
        bool good = true;
        for (size_t i = 0; i < n; ++i) good = good && out[i] == (a[i] + c[i]) * 0.5f;
        CHECK(good);
        gg_backend_native.halve(device, n, GG_FLOAT32, a, c, a);
        CHECK(same_bits(a, out, n * 4));
        gg_backend_native.mix(device, n, GG_FLOAT32, 0.5f, a, c, out, out);
        CHECK(gg_backend_native.all_finite(device, n, out));
        const float bad[3] = {NAN, INFINITY, -INFINITY};
        for (int i = 0; i < 3 && n > 0; ++i) {
            const size_t at = i == 0 ? 0 : i == 1 ? n - 1 : n / 2;
            const float kept = out[at];
            out[at] = bad[i];
            CHECK(!gg_backend_native.all_finite(device, n, out));
            out[at] = kept;
        }
        if (n > 0) out[n - 1] = 3.4e38f;
        CHECK(gg_backend_native.all_finite(device, n, out));
        release();
    }
}

/* ------------------------------------------------------------------------------------------ layouts */

static void check_gather(gg_dtype dtype, gg_layout layout, int64_t n, int64_t values, int64_t channels, bool indexed) {
    const int64_t rows = 70, count = elements(layout, n, values), each = channels > 0 ? values / channels : values;
    uint8_t *bytes = guarded((size_t)(rows * values));
    int32_t *integers = guarded((size_t)(rows * values) * sizeof *integers);
    float *numbers = uniform(rows * values, -1, 1), *out = floats(count);
    float *scales = uniform(2 * (channels > 0 ? channels : 1), -2, 2);
    uint32_t *index = guarded((size_t)n * sizeof *index);
    for (int64_t i = 0; i < rows * values; ++i) {
        bytes[i] = (uint8_t)(i * 37 + i / 251);
        integers[i] = (int32_t)(i * 7919 % 1001) - 500;
    }
    for (int64_t i = 0; i < n; ++i) index[i] = indexed ? (uint32_t)((i * 29 + 3) % rows) : (uint32_t)i;
    gg_gather_args args = {
        .dtype = dtype, .values = values, .n = n, .scale = 1.5f, .shift = -0.25f, .layout = layout, .out = out};
    args.rows = dtype == GG_UINT8 ? (const void *)bytes : dtype == GG_INT32 ? (const void *)integers : numbers;
    args.index = indexed ? index : NULL;
    args.runs = channels;
    args.scales = channels > 0 ? scales : NULL;
    gg_backend_native.gather(device, &args);
    bool good = true;
    for (int64_t s = 0; s < n; ++s) {
        for (int64_t v = 0; v < values; ++v) {
            const int64_t at = index[s] * values + v, channel = v / each;
            const double value = dtype == GG_UINT8   ? bytes[at]
                                 : dtype == GG_INT32 ? (double)integers[at]
                                                     : (double)numbers[at];
            const double scale = channels > 0 ? (double)scales[channel] : 1.5;
            const double shift = channels > 0 ? (double)scales[channels + channel] : -0.25;
            good = good && fabs((double)out[place(layout, n, values, s, v)] - (scale * value + shift)) <= 1e-4;
        }
    }
    CHECK(good);
    CHECK(padding_is_zero(layout, n, values, out));

    int32_t *tokens = (int32_t *)(void *)out;
    args.wanted = GG_INT32;
    args.out = tokens;
    if (dtype != GG_FLOAT32 && layout == GG_LAYOUT_PLAIN) gg_backend_native.gather(device, &args);
    for (int64_t s = 0; dtype != GG_FLOAT32 && layout == GG_LAYOUT_PLAIN && s < n; ++s)
        for (int64_t v = 0; v < values; ++v) {
            const int64_t at = index[s] * values + v;
            good = good && tokens[s * values + v] == (dtype == GG_UINT8 ? bytes[at] : integers[at]);
        }
    CHECK(good);
    release();
}

static void test_layouts(void) {
    const int64_t batches[5] = {1, 15, 16, 33, 64}, values[6] = {1, 10, 16, 17, 48, 795};
    for (int b = 0; b < 5; ++b) {
        for (int v = 0; v < 6; ++v) {
            const int64_t n = batches[b], count = values[v], lanes = gg_lanes_padded(n);
            for (int layout = 0; layout < 2; ++layout)
                for (int indexed = 0; indexed < 2; ++indexed) {
                    const gg_layout l = layout ? GG_LAYOUT_BATCH_LAST : GG_LAYOUT_PLAIN;
                    check_gather(GG_UINT8, l, n, count, 0, indexed);
                    check_gather(GG_FLOAT32, l, n, count, 0, indexed);
                    check_gather(GG_INT32, l, n, count, 0, indexed);
                    for (int64_t channels = 1; channels <= count; channels = channels == 1 ? 3 : 5 * channels)
                        for (int type = 0; type < 3 && count % channels == 0; ++type)
                            check_gather(type == 0   ? GG_UINT8
                                         : type == 1 ? GG_INT32
                                                     : GG_FLOAT32,
                                         l, n, count, channels, indexed);
                }
            gg_op_desc desc = {.kind = GG_OP_REORDER, .batch = n, .inputs = 1, .training = true, .input_grad = true};
            desc.input[0] = desc.output = shape1(count);
            desc.offered[0] = (gg_format){GG_FLOAT32, GG_LAYOUT_PLAIN};
            desc.wanted_output = (gg_format){GG_FLOAT32, GG_LAYOUT_BATCH_LAST};
            gg_op *op = create(&desc);
            if (op == NULL) return;
            float *plain = uniform(n * count, -1, 1), *in_lanes = floats(count * lanes), *back = floats(n * count);
            gg_op_args args = {.input = {plain}, .output = in_lanes, .grad_output = in_lanes, .grad_input = {back}};
            CHECK_OK(gg_op_forward(op, &args));
            bool good = true;
            for (int64_t s = 0; s < n; ++s)
                for (int64_t f = 0; f < count; ++f) good = good && in_lanes[f * lanes + s] == plain[s * count + f];
            CHECK(good);
            CHECK(padding_is_zero(GG_LAYOUT_BATCH_LAST, n, count, in_lanes));
            CHECK_OK(gg_op_backward(op, &args));
            CHECK(same_bits(plain, back, (size_t)(n * count) * 4));
            gg_op_destroy(op);
            release();
        }
    }
    gg_op_desc desc = {.kind = GG_OP_REORDER, .batch = 2, .inputs = 1};
    gg_op *op = NULL;
    desc.input[0] = desc.output = shape3(16, 2, 2);
    desc.offered[0] = (gg_format){GG_FLOAT32, GG_LAYOUT_CHANNELS16};
    desc.wanted_output = (gg_format){GG_FLOAT32, GG_LAYOUT_PLAIN};
    CHECK_FAILS(gg_backend_native.create[GG_OP_REORDER](device, &desc, &op), GG_ERROR_UNSUPPORTED, "reorder");
}

int main(void) {
    int levels = 0;
    for (int i = 0; i < GG_ISA_COUNT; ++i) {
        isa = (gg_isa)i;
        const gg_cpu_kernels *kernels = gg_cpu_kernels_for(isa);
        if (kernels == NULL || !gg_cpu_supports(isa)) continue;
        CHECK_INT(kernels->isa, isa);
        for (int threads = 1; threads <= 3; threads += 2) {
            if (!CHECK_OK(gg_backend_native.open(&(gg_device_options){.threads = threads, .isa = isa}, &device)))
                continue;
            CHECK_INT(device->threads, threads);
            stream = 0;
            test_functions();
            test_activations();
            test_add_and_concat();
            test_dropout();
            test_pool();
            test_losses();
            test_arenas();
            test_layouts();
            gg_backend_native.close(device);
        }
        printf("%s checked\n", gg_isa_name(isa));
        ++levels;
    }
    CHECK(levels >= 1);
    CHECK_FAILS(gg_backend_native.open(&(gg_device_options){.threads = 0, .isa = GG_ISA_SCALAR}, &device),
                GG_ERROR_ARGUMENT, "threads");
    CHECK_INT(gg_memory_live_bytes(), 0);
    return CHECK_RESULT;
}
