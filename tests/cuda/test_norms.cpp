/* Normalisations and softmax. */
#include "check_operations.h"

namespace {

/* ------------------------------------------------------------------------------------------ batch normalisation */

struct batch_case {
    int64_t batch;
    gg_shape sample;
    gg_layout layout;
    bool relu, adds, affine, tracks, evaluate;
    float mean; /* of the inputs, about */
    size_t skip;
};

/* What it means, in double; values in PLAIN. */
struct batch_reference {
    doubles y, dx, passed, weight, bias, mean, variance;
};

batch_reference batch_in_double(const batch_case &c, const cpu_run &run, float epsilon, float momentum) {
    const size_t channels = (size_t)c.sample.size[0], area = count(c.sample) / channels;
    const size_t n = (size_t)c.batch * count(c.sample), values = n / channels;
    const size_t running = c.affine ? 2 : 0;
    const floats &x = run.input[0];
    batch_reference r = {doubles(n),        doubles(n),        doubles(n),       doubles(channels),
                         doubles(channels), doubles(channels), doubles(channels)};
    for (size_t ch = 0; ch < channels; ++ch) {
        std::vector<size_t> own;
        for (size_t i = 0; i < n; ++i)
            if (i / area % channels == ch) own.push_back(i);
        double mean = 0, squares = 0, sum = 0, product = 0;
        for (size_t i : own) mean += (double)x[i] / (double)values;
        for (size_t i : own) squares += ((double)x[i] - mean) * ((double)x[i] - mean);
        double variance = squares / (double)values;
        if (c.tracks) {
            r.mean[ch] = (double)momentum * ((double)run.parameter[running][ch] - mean);
            r.variance[ch] =
                (double)momentum * ((double)run.parameter[running + 1][ch] - squares / ((double)values - 1));
        }
        if (c.evaluate && c.tracks) {
            mean = (double)run.parameter[running][ch];
            variance = (double)run.parameter[running + 1][ch];
        }
        const double inverse = 1 / sqrt(variance + (double)epsilon);
        const double weight = c.affine ? (double)run.parameter[0][ch] : 1, bias = c.affine ? run.parameter[1][ch] : 0;
        for (size_t i : own) {
            r.y[i] = ((double)x[i] - mean) * inverse * weight + bias + (c.adds ? (double)run.input[1][i] : 0);
            if (run.grad_output.empty()) continue;
            r.passed[i] = c.relu && r.y[i] <= 0 ? 0 : (double)run.grad_output[i];
            sum += r.passed[i];
            product += r.passed[i] * ((double)x[i] - mean) * inverse;
        }
        for (size_t i : own) {
            if (c.relu && r.y[i] <= 0) r.y[i] = 0;
            r.dx[i] = weight * inverse *
                      (r.passed[i] - sum / (double)values - ((double)x[i] - mean) * inverse * product / (double)values);
        }
        r.weight[ch] = product;
        r.bias[ch] = sum;
    }
    return r;
}

template <class T> void test_batch_norm_of(const batch_case &c) {
    const int64_t channels = c.sample.size[0], area = gg_shape_count(&c.sample) / channels;
    const size_t n = (size_t)c.batch * count(c.sample);
    gg_op_desc desc =
        describe(GG_OP_BATCH_NORM, c.batch, std::vector<gg_shape>((size_t)(c.adds ? 2 : 1), c.sample), c.sample);
    desc.activation = c.relu ? GG_ACTIVATION_RELU : GG_ACTIVATION_NONE;
    desc.batch_norm.epsilon = 1e-5f;
    desc.batch_norm.momentum = 0.1f;
    desc.batch_norm.affine = c.affine;
    desc.batch_norm.track_statistics = c.tracks;
    random_numbers r(n + c.relu);
    cpu_run cpu;
    cpu.evaluate = c.evaluate;
    for (int i = 0; i < desc.inputs; ++i) cpu.input.push_back(rounded<T>(r.floats(n, c.mean - 2, c.mean + 1)));
    if (c.adds) cpu.input[1] = rounded<T>(r.floats(n));
    if (c.affine) {
        cpu.parameter.push_back(r.floats((size_t)channels, 0.5, 2));
        cpu.parameter.push_back(r.floats((size_t)channels));
    }
    if (c.tracks) {
        cpu.parameter.push_back(r.floats((size_t)channels, c.mean - 1, c.mean + 1));
        cpu.parameter.push_back(r.floats((size_t)channels, 0.5, 2));
    }
    if (!c.evaluate) cpu.grad_output = rounded<T>(r.floats(n));
    run_on_cpu(desc, &cpu);
    const batch_reference exact = batch_in_double(c, cpu, desc.batch_norm.epsilon, desc.batch_norm.momentum);

    const bool columns = c.layout == GG_LAYOUT_NHWC || area == 1;
    gg_cuda_batch_norm_args a = {};
    a.dtype = dtype_of<T>;
    a.outer = columns ? c.batch * area : c.batch;
    a.channels = channels;
    a.inner = columns ? 1 : area;
    a.relu = c.relu;
    a.batch_statistics = !c.evaluate || !c.tracks;
    a.epsilon = desc.batch_norm.epsilon;
    a.momentum = desc.batch_norm.momentum;
    auto put = [&](const floats &plain) { return laid(c.layout, c.sample, c.batch, plain); };
    auto got = [&](const device_batch<T> &array) { return plain_of(c.layout, c.sample, c.batch, array.all()); };
    device_batch<T> x(put(cpu.input[0]), "x", c.skip), y(n, "y", c.skip), dx(n, "dx", c.skip);
    device_batch<T> added(c.adds ? put(cpu.input[1]) : floats(), "added", c.skip);
    device_batch<T> dy(cpu.grad_output.empty() ? floats(n) : put(cpu.grad_output), "dy", c.skip);
    std::vector<std::unique_ptr<device_floats>> parameters, gradients;
    for (const floats &p : cpu.parameter) {
        parameters.push_back(std::make_unique<device_floats>(p, "parameter"));
        gradients.push_back(std::make_unique<device_floats>(p.size(), "gradient"));
    }
    device_floats saved(gg_cuda_batch_norm_saved(channels) / sizeof(float), "saved");
    device_floats scratch(gg_cuda_batch_norm_scratch(a.outer, a.channels, a.inner) / sizeof(float), "scratch");
    const size_t running = c.affine ? 2 : 0;
    a.input = x;
    a.added = c.adds ? added.p : nullptr;
    a.output = y;
    if (c.affine) {
        a.weight = *parameters[0];
        a.bias = *parameters[1];
        a.grad_weight = *gradients[0];
        a.grad_bias = *gradients[1];
    }
    if (c.tracks) {
        a.running_mean = *parameters[running];
        a.running_variance = *parameters[running + 1];
        a.grad_mean = *gradients[running];
        a.grad_variance = *gradients[running + 1];
    }
    a.saved = saved;
    a.scratch = scratch;
    gg_cuda_batch_norm(nullptr, &a);
    const double far = 1e-6 * (1 + fabs((double)c.mean)); /* offsets are rounded */
    const double off = rounding_of<T>;
    CHECK(near(got(y), cpu.output, 2 * far + off, "batch norm, against the CPU"));
    CHECK(near(got(y), exact.y, 2 * far + off, "batch norm"));
    CHECK_CLEAN();
    if (c.evaluate) return;
    /* The error of what was added over the output; or in place of the output's where nobody wants it. */
    const bool in_place = c.skip == 0;
    a.grad_output = dy;
    a.grad_added = c.adds && in_place ? y.p : nullptr;
    a.grad_input = dx;
    gg_cuda_batch_norm_backward(nullptr, &a);
    CHECK(near(got(dx), cpu.grad_input[0], 8 * far + off, "batch norm, error, against the CPU"));
    CHECK(near(got(dx), exact.dx, 8 * far + off, "batch norm, error"));
    if (c.adds) CHECK(near(got(in_place ? y : dy), exact.passed, 0, "batch norm, error of what is added"));
    for (size_t i = 0; i < cpu.parameter.size(); ++i)
        CHECK(near(gradients[i]->all(), cpu.gradient[i], 1e-5 * (1 + fabs((double)c.mean)), "batch norm, parameters"));
    if (c.affine) {
        CHECK(near(gradients[0]->all(), exact.weight, 2e-6 * (1 + fabs((double)c.mean)), "weight"));
        CHECK(near(gradients[1]->all(), exact.bias, 1e-6, "bias"));
    }
    if (c.tracks) {
        CHECK(near(gradients[running]->all(), exact.mean, 1e-6, "mean"));
        CHECK(near(gradients[running + 1]->all(), exact.variance, 1e-6, "variance"));
    }
    CHECK_CLEAN();
}

void test_batch_norm(const batch_case &c) {
    test_batch_norm_of<float>(c);
    test_batch_norm_of<narrow>(c);
}

/* A mean that is large beside the deviation costs no digits of the variance. */
void test_far_mean() {
    const int64_t n = 64, channels = 3, area = 25;
    floats in = random_numbers(9).floats((size_t)(n * channels * area));
    for (float &v : in) v = 4096 + ldexpf(rintf(v * 64), -11);
    device_floats x(in), y(in.size()), saved(gg_cuda_batch_norm_saved(channels) / sizeof(float));
    device_floats scratch(gg_cuda_batch_norm_scratch(n, channels, area) / sizeof(float));
    gg_cuda_batch_norm_args a = {};
    a.outer = n;
    a.channels = channels;
    a.inner = area;
    a.batch_statistics = true;
    a.epsilon = 0;
    a.input = x;
    a.output = y;
    a.saved = saved;
    a.scratch = scratch;
    gg_cuda_batch_norm(nullptr, &a);
    for (int64_t c = 0; c < channels; ++c) {
        double mean = 0, squares = 0;
        for (int64_t i = 0; i < n * area; ++i)
            mean += (double)in[(size_t)((i / area * channels + c) * area + i % area)] / (double)(n * area);
        for (int64_t i = 0; i < n * area; ++i)
            squares += pow((double)in[(size_t)((i / area * channels + c) * area + i % area)] - mean, 2);
        CHECK_NEAR(saved[(size_t)(channels + c)] * sqrt(squares / (double)(n * area)), 1, 1e-6);
    }
    CHECK_CLEAN();
}

/* ------------------------------------------------------------------------------------------ layer normalisation */

template <class T>
void test_layer_norm_of(int64_t batch, gg_shape sample, int64_t groups, bool affine, bool bias, bool root_mean_square) {
    gg_op_desc desc = describe(GG_OP_LAYER_NORM, batch, {sample}, sample);
    desc.layer_norm.groups = groups;
    desc.layer_norm.affine = affine;
    desc.bias = bias;
    desc.layer_norm.root_mean_square = root_mean_square;
    desc.layer_norm.epsilon = 1e-5f;
    const gg_norm_rows each = gg_norm_rows_of(&desc);
    const int64_t rows = batch * each.count, length = each.length;
    const size_t n = (size_t)(rows * length), parameters = (size_t)each.parameters;
    random_numbers r(n);
    cpu_run cpu;
    cpu.input = {rounded<T>(r.floats(n, 1, 4))};
    if (affine) cpu.parameter.push_back(r.floats(parameters, 0.5, 2));
    if (affine && bias) cpu.parameter.push_back(r.floats(parameters));
    cpu.grad_output = rounded<T>(r.floats(n));
    run_on_cpu(desc, &cpu);
    const double off = rounding_of<T>;
    device_batch<T> x(cpu.input[0], "x"), y(n, "y"), dy(cpu.grad_output, "dy"), dx(n, "dx");
    device_floats weight(affine ? cpu.parameter[0] : floats(), "weight"), dw(parameters, "dw");
    device_floats offset(affine && bias ? cpu.parameter[1] : floats(), "bias"), db(parameters, "db");
    device_floats saved(gg_cuda_layer_norm_saved(batch, &each) / sizeof(float), "saved");
    buffer<double> scratch(gg_cuda_layer_norm_scratch(batch, &each) / sizeof(double), "scratch");
    gg_cuda_layer_norm_args a = {};
    a.dtype = dtype_of<T>;
    a.batch = batch;
    a.rows = each;
    a.epsilon = desc.layer_norm.epsilon;
    a.input = x;
    a.output = y;
    a.grad_output = dy;
    a.grad_input = dx;
    a.weight = affine ? weight.p : nullptr;
    a.bias = affine && bias ? offset.p : nullptr;
    a.grad_weight = affine ? dw.p : nullptr;
    a.grad_bias = affine && bias ? db.p : nullptr;
    a.saved = saved;
    a.scratch = affine ? scratch.p : nullptr;
    gg_cuda_layer_norm(nullptr, &a);
    gg_cuda_layer_norm_backward(nullptr, &a);
    CHECK(near(y.all(), cpu.output, 1e-6 + off, "layer norm"));
    CHECK(near(dx.all(), cpu.grad_input[0], 2e-6 + off, "layer norm, error"));
    if (affine) CHECK(near(dw.all(), cpu.gradient[0], 1e-6, "layer norm, weight"));
    if (affine && bias) CHECK(near(db.all(), cpu.gradient[1], 1e-6, "layer norm, bias"));
    const floats out = y.all(), error = dx.all();
    for (int64_t row = 0; row < rows; ++row) {
        const float *v = cpu.input[0].data() + row * length, *d = cpu.grad_output.data() + row * length;
        double mean = 0, squares = 0, sum = 0, product = 0;
        for (int64_t i = 0; i < length && !root_mean_square; ++i) mean += (double)v[i] / (double)length;
        for (int64_t i = 0; i < length; ++i) squares += ((double)v[i] - mean) * ((double)v[i] - mean);
        const double inverse = 1 / sqrt(squares / (double)length + (double)desc.layer_norm.epsilon);
        auto place = [&](int64_t i) { return (size_t)(row * each.weights % each.parameters + i / each.inner); };
        auto scale = [&](int64_t i) { return affine ? (double)cpu.parameter[0][place(i)] : 1.0; };
        auto normal = [&](int64_t i) { return ((double)v[i] - mean) * inverse; };
        for (int64_t i = 0; i < length; ++i) {
            sum += (double)d[i] * scale(i) / (double)length;
            product += (double)d[i] * scale(i) * normal(i) / (double)length;
        }
        if (root_mean_square) sum = 0;
        for (int64_t i = 0; i < length; ++i) {
            const double shift = affine && bias ? (double)cpu.parameter[1][place(i)] : 0;
            const size_t at = (size_t)(row * length + i);
            const double wanted = inverse * ((double)d[i] * scale(i) - sum - normal(i) * product);
            CHECK_NEAR(out[at], normal(i) * scale(i) + shift, 4e-6 + off * (1 + fabs(normal(i) * scale(i) + shift)));
            CHECK_NEAR(error[at], wanted, (4e-6 + off) * (1 + fabs(wanted) + inverse));
        }
    }
    a.grad_input = dy; /* in place */
    gg_cuda_layer_norm_backward(nullptr, &a);
    CHECK(same(dy.all(), error, "layer norm, error in place"));
    a.output = x;
    gg_cuda_layer_norm(nullptr, &a);
    CHECK(same(x.all(), out, "layer norm in place"));
    CHECK_CLEAN();
}

void test_layer_norm(int64_t rows, int64_t length, bool affine, bool bias, bool root_mean_square = false) {
    test_layer_norm_of<float>(rows, shape({length}), 0, affine, bias, root_mean_square);
    test_layer_norm_of<narrow>(rows, shape({length}), 0, affine, bias, root_mean_square);
}

void test_group_norm(int64_t batch, gg_shape sample, int64_t groups, bool affine) {
    test_layer_norm_of<float>(batch, sample, groups, affine, affine, false);
    test_layer_norm_of<narrow>(batch, sample, groups, affine, affine, false);
}

/* ------------------------------------------------------------------------------------------ local response */

template <class T> void test_lrn_of(int64_t batch, const gg_shape &s, int64_t size, float beta, gg_layout layout) {
    gg_op_desc desc = describe(GG_OP_LOCAL_RESPONSE_NORM, batch, {s}, s);
    desc.lrn.size = size;
    desc.lrn.alpha = 0.3f;
    desc.lrn.beta = beta;
    desc.lrn.k = 1.5f;
    const size_t n = (size_t)batch * count(s);
    random_numbers r(n);
    cpu_run cpu;
    cpu.input = {rounded<T>(r.floats(n, -3, 3))};
    cpu.grad_output = rounded<T>(r.floats(n));
    run_on_cpu(desc, &cpu);
    const double off = rounding_of<T>;
    device_batch<T> x(laid(layout, s, batch, cpu.input[0]), "x"), dy(laid(layout, s, batch, cpu.grad_output), "dy");
    device_batch<T> y(n, "y"), dx(n, "dx"), again(n, "again");
    device_floats saved(n, "saved"), scratch(n, "scratch");
    const int64_t channels = s.size[0], area = gg_shape_count(&s) / channels;
    gg_cuda_lrn_args a = {};
    a.dtype = dtype_of<T>;
    a.outer = layout == GG_LAYOUT_NHWC ? batch * area : batch;
    a.channels = channels;
    a.inner = layout == GG_LAYOUT_NHWC ? 1 : area;
    a.size = size;
    a.alpha = desc.lrn.alpha;
    a.beta = beta;
    a.k = desc.lrn.k;
    a.input = x;
    a.output = again;
    gg_cuda_lrn(nullptr, &a);
    a.output = y;
    a.grad_output = dy;
    a.grad_input = dx;
    a.saved = saved;
    a.scratch = scratch;
    gg_cuda_lrn(nullptr, &a);
    gg_cuda_lrn_backward(nullptr, &a);
    const floats out = plain_of(layout, s, batch, y.all()), error = plain_of(layout, s, batch, dx.all());
    CHECK(same(again.all(), y.all(), "local response norm, nothing saved"));
    CHECK(near(out, cpu.output, 1e-6 + off, "local response norm"));
    CHECK(near(error, cpu.grad_input[0], 2e-6 + off, "local response norm, error"));
    /* In double: y = x*u^-beta, and its derivative along the error. */
    auto sums = [&](size_t i) {
        const int64_t c = (int64_t)i / area % channels;
        double sum = 0;
        for (int64_t j = std::max<int64_t>(0, c - size / 2); j <= std::min(channels - 1, c + (size - 1) / 2); ++j) {
            const double v = (double)cpu.input[0][(size_t)((int64_t)i + (j - c) * area)];
            sum += v * v;
        }
        return (double)desc.lrn.k + (double)desc.lrn.alpha / (double)size * sum;
    };
    for (size_t i = 0; i < n; ++i) {
        const int64_t c = (int64_t)i / area % channels;
        const double v = (double)cpu.input[0][i];
        double wanted = (double)cpu.grad_output[i] * pow(sums(i), -(double)beta);
        for (int64_t j = 0; j < channels; ++j) {
            if (c < j - size / 2 || c > j + (size - 1) / 2) continue;
            const size_t at = (size_t)((int64_t)i + (j - c) * area);
            wanted -= (double)cpu.grad_output[at] * (double)cpu.input[0][at] * (double)beta *
                      pow(sums(at), -(double)beta - 1) * 2 * (double)desc.lrn.alpha / (double)size * v;
        }
        CHECK_NEAR(out[i], v * pow(sums(i), -(double)beta), 2e-6 + 4 * off);
        CHECK_NEAR(error[i], wanted, 2e-6 + 4 * off);
    }
    CHECK_CLEAN();
}

void test_lrn(int64_t batch, const gg_shape &s, int64_t size, float beta, gg_layout layout) {
    test_lrn_of<float>(batch, s, size, beta, layout);
    test_lrn_of<narrow>(batch, s, size, beta, layout);
}

/* ------------------------------------------------------------------------------------------ softmax */

template <class T> void test_softmax_of(int64_t outer, int64_t length, int64_t inner, float spread) {
    gg_op_desc desc = describe(GG_OP_SOFTMAX, outer, {shape({length, inner})}, shape({length, inner}));
    const size_t n = (size_t)(outer * length * inner);
    random_numbers r(n);
    cpu_run cpu;
    cpu.input = {rounded<T>(r.floats(n, -spread, spread))};
    cpu.grad_output = rounded<T>(r.floats(n));
    run_on_cpu(desc, &cpu);
    const double off = rounding_of<T>;
    device_batch<T> x(cpu.input[0], "x"), y(n, "y"), dy(cpu.grad_output, "dy"), dx(n, "dx");
    gg_cuda_softmax_args a = {};
    a.dtype = dtype_of<T>;
    a.outer = outer;
    a.length = length;
    a.inner = inner;
    a.input = x;
    a.output = y;
    a.grad_output = dy;
    a.grad_input = dx;
    gg_cuda_softmax(nullptr, &a);
    gg_cuda_softmax_backward(nullptr, &a);
    CHECK(near(y.all(), cpu.output, 1e-6 + off, "softmax"));
    CHECK(near(dx.all(), cpu.grad_input[0], 1e-6 + 2 * off, "softmax, error"));
    const floats out = y.all(), error = dx.all();
    const double near_by = 3e-7 * (1 + (double)spread) + 1e-6 + 2 * off; /* differences from the largest are rounded */
    for (int64_t row = 0; row < outer * inner; ++row) {
        auto at = [&](int64_t i) { return (size_t)((row / inner * length + i) * inner + row % inner); };
        double top = -INFINITY, sum = 0, dot = 0;
        for (int64_t i = 0; i < length; ++i) top = std::max(top, (double)cpu.input[0][at(i)]);
        for (int64_t i = 0; i < length; ++i) sum += exp((double)cpu.input[0][at(i)] - top);
        auto share = [&](int64_t i) { return exp((double)cpu.input[0][at(i)] - top) / sum; };
        for (int64_t i = 0; i < length; ++i) dot += share(i) * (double)cpu.grad_output[at(i)];
        for (int64_t i = 0; i < length; ++i) {
            CHECK_NEAR(out[at(i)], share(i), near_by * share(i) + 1e-35);
            CHECK_NEAR(error[at(i)], share(i) * ((double)cpu.grad_output[at(i)] - dot), 2 * near_by * share(i) + 1e-35);
        }
    }
    a.output = x;
    gg_cuda_softmax(nullptr, &a);
    CHECK(same(x.all(), out, "softmax in place"));
    a.grad_input = dy;
    gg_cuda_softmax_backward(nullptr, &a);
    CHECK(same(dy.all(), error, "softmax, error in place"));
    CHECK_CLEAN();
}

void test_softmax(int64_t outer, int64_t length, int64_t inner, float spread) {
    test_softmax_of<float>(outer, length, inner, spread);
    test_softmax_of<narrow>(outer, length, inner, spread);
}

/* A NaN spoils its own row only. */
void test_softmax_of_nan(int64_t length, int64_t inner) {
    floats in((size_t)(2 * length * inner), 0.5f);
    in[(size_t)((length - 1) * inner)] = NAN;
    device_floats x(in), y(in.size());
    gg_cuda_softmax_args a = {};
    a.outer = 2;
    a.length = length;
    a.inner = inner;
    a.input = x;
    a.output = y;
    gg_cuda_softmax(nullptr, &a);
    for (int64_t i = 0; i < 2 * length * inner; ++i) {
        const bool spoilt = i < length * inner && i % inner == 0;
        CHECK(spoilt ? isnan(y[(size_t)i]) : fabs((double)y[(size_t)i] * (double)length - 1) < 1e-6);
    }
    CHECK_CLEAN();
}

} // namespace

int main() {
    const gg_layout plain = GG_LAYOUT_PLAIN, nhwc = GG_LAYOUT_NHWC;
    const batch_case batches[] = {
        {2, shape({1, 1, 1}), plain, false, false, false, false, false, 0, 0},
        {5, shape({3, 7, 5}), plain, false, false, true, true, false, 0, 0},
        {5, shape({3, 7, 5}), nhwc, true, false, true, true, false, 3, 0},
        {4, shape({6, 4, 4}), plain, true, false, true, true, false, -2, 0},
        {4, shape({6, 4, 4}), plain, true, true, true, true, false, 0, 0},
        {4, shape({6, 4, 4}), plain, true, true, true, true, false, 0, 1},
        {3, shape({36, 3, 2}), nhwc, true, true, true, true, false, 10, 0},
        {3, shape({8, 2, 2}), plain, false, true, false, true, false, 0, 0},
        {70, shape({33}), plain, true, false, true, true, false, 1, 0},
        {300, shape({4}), plain, false, false, true, false, false, 1, 0},
        {40, shape({2, 16, 16}), plain, true, false, true, true, false, 1, 0},
        {130, shape({16, 8, 8}), nhwc, true, true, true, true, false, 1, 0},
        {9, shape({264, 2, 2}), nhwc, true, false, true, true, false, 1, 0},
        {1, shape({4, 3, 3}), plain, true, false, true, true, true, 1, 0},
        {3, shape({4, 3, 3}), nhwc, true, true, true, true, true, 1, 0},
        {3, shape({4, 3, 3}), plain, false, false, true, false, true, 1, 0},
    };
    for (const batch_case &c : batches) test_batch_norm(c);
    random_numbers r(21);
    auto coin = [&] { return r.next() % 2 == 0; };
    for (int i = 0; i < 12; ++i) {
        const gg_shape s = shape({1 + r.next() % 40, 1 + r.next() % 6, 1 + r.next() % 9});
        test_batch_norm(
            {2 + r.next() % 9, s, coin() ? plain : nhwc, coin(), coin(), coin(), coin(), false, 1, r.next() % 2});
    }
    test_far_mean();
    test_layer_norm(1, 1, true, true);
    test_layer_norm(3, 5, false, false);
    test_layer_norm(17, 64, true, true);
    test_layer_norm(150, 33, true, false);
    test_layer_norm(2, 1025, true, true);
    test_group_norm(1, shape({1}), 1, true);
    test_group_norm(40, shape({24}), 4, true);
    test_group_norm(3, shape({6, 5, 3}), 6, false);
    test_group_norm(17, shape({6, 7, 5}), 3, true);
    test_group_norm(2, shape({4, 33, 31}), 1, true);
    test_layer_norm(3, 5, false, false, true);
    test_layer_norm(150, 33, true, false, true);
    test_layer_norm(2, 1025, true, false, true);
    for (gg_layout layout : {plain, nhwc}) {
        test_lrn(1, shape({1, 1, 1}), 5, 0.75f, layout);
        test_lrn(2, shape({7, 3, 2}), 5, 0.75f, layout);
        test_lrn(2, shape({5, 2, 3}), 2, 0.6f, layout);
        test_lrn(1, shape({3, 2, 2}), 9, 0.75f, layout);
        test_lrn(4, shape({7, 5, 5}), 3, 0.75f, layout);
    }
    test_softmax(1, 1, 1, 1);
    test_softmax(40, 10, 1, 20);
    test_softmax(2, 1100, 1, 5);
    test_softmax(3, 7, 5, 90);
    test_softmax(5, 3, 140, 2);
    test_softmax_of_nan(6, 1);
    test_softmax_of_nan(1030, 1);
    test_softmax_of_nan(5, 3);
    return CHECK_RESULT;
}
