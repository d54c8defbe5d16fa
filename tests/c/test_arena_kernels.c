/* Losses, updates and other kernels on arenas, of each instruction set, against double references. */
#include "kernel_cases.h"

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
    const bool keeps = rule != GG_UPDATE_PLAIN, copies = flags & COPIES;
    const bool lion = rule == GG_UPDATE_LION, mean = rule == GG_UPDATE_ADAM_MEAN;
    const bool adam = rule == GG_UPDATE_ADAM || mean;
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
        .mean_share = 0.3f,
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
        const double mix = mu * mixed_m + (adam || lion ? (double)args.d_share : 1) * d;
        const double new_m = lion ? (double)args.beta2 * mixed_m + (double)args.square_share * d : mix;
        const double new_s = (double)args.beta2 * mixed_s + (double)args.square_share * d * d +
                             (mean ? (double)args.mean_share * new_m * new_m : 0);
        double new_w = w - lr * (rule == GG_UPDATE_PLAIN ? d : rule == GG_UPDATE_NESTEROV ? d + mu * new_m : new_m);
        if (adam)
            new_w = (double)args.weight_factor * w -
                    lr * new_m / (sqrt(new_s) * (double)args.root_scale + (double)args.eps);
        if (lion) new_w = (double)args.weight_factor * w - lr * (mix > 0 ? 1 : -1);
        wanted_w[i] = args.weight_after ? new_w + (w_in[i] - w_sent) / 2 : new_w;
        wanted_m[i] = new_m;
        wanted_s[i] = new_s;
    }
    memcpy(before[0], weight, n * 4);
    memcpy(before[1], m, n * 4);
    memcpy(before[2], s, n * 4);
    gg_backend_native.update(device, 1, &args);
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
    gg_backend_native.update(device, 1, &some);
    CHECK(same_bits(before[0] + from, weight + from, part * 4));
    if (keeps) CHECK(same_bits(before[1] + from, m + from, part * 4));
    if (adam) CHECK(same_bits(before[2] + from, s + from, part * 4));
    release();
}

/* As the sums of packed messages tell it, from a bit on that begins no word. */
static gg_lines filled_lines(const float *grad, size_t n, size_t first) {
    const size_t words = (first + n / GG_LANES) / 64 + 2;
    uint64_t *bits = memset(guarded(words * sizeof *bits), 0, words * sizeof *bits);
    for (size_t i = 0; i < n; ++i) {
        const size_t bit = first + i / GG_LANES;
        if (grad[i] != 0) bits[bit / 64] |= (uint64_t)1 << bit % 64;
    }
    return (gg_lines){bits, first};
}

/* Plain updates without an exchange. A weight with gradient 0 keeps its bits; a denormal gradient counts as 0. Any
 * other finite weight gets the bits of an update that also copies, which reads all elements. */
static void check_zero_gradients(size_t n, size_t every, bool told) {
    const int64_t count = (int64_t)n;
    float *grad = uniform(count, -1, 1), *weight = uniform(count, -1, 1), *before = floats(count);
    float *dense = floats(count), *copy = floats(count);
    gg_update_args args = {.n = n, .grad = grad, .weight = weight, .wire = GG_FLOAT32, .grad_scale = 0.5f, .lr = 0.1f};
    for (size_t i = 0; i < n; ++i) {
        if (every == 0 || i % every != 0) grad[i] = i % 2 ? -0.0f : 0.0f;
        if (grad[i] == 0 && i % 3 == 0) weight[i] = i % 2 ? NAN : 1e-40f;
    }
    if (every > 0) grad[0] = NAN;
    if (told) args.filled = filled_lines(grad, n, every);
    memcpy(before, weight, n * 4);
    memcpy(dense, weight, n * 4);
    const gg_float_mode own = gg_cpu_float_mode();
    gg_cpu_set_float_mode(gg_cpu_compute_mode());
    gg_backend_native.update(device, 1, &args);
    args.weight = dense;
    args.weight_copy = copy;
    args.filled.bits = NULL;
    gg_backend_native.update(device, 1, &args);
    gg_cpu_set_float_mode(own);
    bool right = true;
    for (size_t i = 0; i < n; ++i) { /* the sign of a new NaN is the processor's choice */
        const bool made_nan = grad[i] != 0 && isnan(weight[i]) && isnan(dense[i]);
        right = right && (made_nan || same_bits(weight + i, (grad[i] == 0 ? before : dense) + i, 4));
    }
    CHECK(right);
    args.weight = weight;
    args.weight_copy = NULL;
    args.grad_scale = NAN;
    gg_backend_native.update(device, 1, &args);
    for (size_t i = 0; i < n; ++i) right = right && isnan(weight[i]);
    CHECK(right);
    release();
}

/* A second moment that an average has brought below 0 is 0, and moves no weight to NaN. */
static void test_square_below_zero(void) {
    enum { n = 16 };
    float *grad = floats(n), *weight = uniform(n, -1, 1), *m = floats(n), *s = floats(n), *came = uniform(n, -1, -0.5f);
    float *kept = floats(n);
    memcpy(kept, weight, sizeof(float) * n);
    for (int i = 0; i < n; ++i) grad[i] = m[i] = s[i] = 0;
    gg_backend_native.update(device, 1,
                             &(gg_update_args){.n = n,
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
    for (int rule = GG_UPDATE_PLAIN; rule < GG_UPDATE_RULE_COUNT; ++rule)
        for (int flags = 0; flags < 8; ++flags)
            for (int wire = GG_FLOAT32; wire <= GG_BFLOAT16; ++wire) {
                check_update(16, (gg_update_rule)rule, (gg_dtype)wire, flags);
                check_update(4016, (gg_update_rule)rule, (gg_dtype)wire, flags);
            }
    check_update(100000, GG_UPDATE_ADAM, GG_BFLOAT16, 7);
    for (size_t n = 16; n < 100000; n = 5 * n + 16)
        for (size_t every = 0; every < 60; every = 3 * every + 1) {
            check_zero_gradients(n, every, false);
            check_zero_gradients(n, every, true);
        }
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
        CHECK(found == first_squares[s]); /* equal bits with any threads and any instructions */

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

static void cases(void) {
    test_losses();
    test_arenas();
}

int main(void) {
    for_each_device(cases);
    CHECK_INT(gg_memory_live_bytes(), 0);
    return CHECK_RESULT;
}
