/* The CPU kernels and the native operations built on them (convolution and linear have tests of their own), at every
 * level this CPU has, against double references; buffers stand between guard bytes. */
#include "kernel_cases.h"

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
            const uint64_t step = UINT64_C(1) << 40;
            gg_op_args args = {
                .input = {x}, .output = y, .grad_output = dy, .grad_input = {dx}, .rank = 3, .step = &step};
            args.saved = guarded(op->saved_bytes);
            CHECK_OK(gg_op_forward(op, &args));
            CHECK_OK(gg_op_backward(op, &args));
            const gg_random_key key = {desc.seed, GG_RANDOM_DROPOUT, args.rank, step};
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
    desc.pool = c->window;
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
        .kind = GG_OP_MAX_POOL2D, .batch = 1, .inputs = 1, .pool = WINDOW(2, 2, 2, 2, 0, 0, 1, 1, false)};
    gg_op *op = NULL;
    desc.input[0] = shape3(1, 6, 6);
    desc.output = shape3(1, 3, 4);
    CHECK_FAILS(gg_backend_native.create[GG_OP_MAX_POOL2D](device, &desc, &op), GG_ERROR_SHAPE,
                "give 3 outputs, not 4");
    desc.output = shape3(1, 4, 4);
    desc.pool.padding[0] = 2;
    CHECK_FAILS(gg_backend_native.create[GG_OP_MAX_POOL2D](device, &desc, &op), GG_ERROR_ARGUMENT, "half");
#undef WINDOW
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

static void cases(void) {
    test_functions();
    test_activations();
    test_add_and_concat();
    test_dropout();
    test_pool();
    test_layouts();
}

int main(void) {
    for_each_device(cases);
    CHECK_FAILS(gg_backend_native.open(&(gg_device_options){.threads = 0, .isa = GG_ISA_SCALAR}, &device),
                GG_ERROR_ARGUMENT, "threads");
    CHECK_INT(gg_memory_live_bytes(), 0);
    return CHECK_RESULT;
}
