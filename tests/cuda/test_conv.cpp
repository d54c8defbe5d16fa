/* Convolutions by the own kernels: each pass beside sums of double. */
#include "check_operations.h"

namespace {

/* So that products are exact: with 10 bits behind the point. */
floats short_floats(random_numbers &r, size_t n) {
    floats v = r.floats(n);
    for (float &x : v) {
        uint32_t bits;
        memcpy(&bits, &x, sizeof bits);
        bits &= 0xffffe000u;
        memcpy(&x, &bits, sizeof x);
    }
    return v;
}

struct made {
    gg_cuda_tiled_shape s;
    size_t inputs, outputs, weights;
};

made shape_with(int64_t batch, int channels, int height, int width, int filters, const gg_window &w) {
    made m = {};
    const int size[2] = {height, width};
    m.s.batch = batch;
    m.s.channels = channels;
    m.s.filters = filters;
    for (int a = 0; a < 2; ++a) {
        m.s.image[a] = size[a];
        m.s.kernel[a] = (int)w.kernel[a];
        m.s.stride[a] = (int)w.stride[a];
        m.s.padding[a] = (int)w.padding[a];
        m.s.dilation[a] = (int)w.dilation[a];
        m.s.output[a] = (int)gg_window_output(&w, a, size[a], false);
    }
    m.inputs = (size_t)(batch * height * width * channels);
    m.outputs = (size_t)(batch * m.s.output[0] * m.s.output[1] * filters);
    m.weights = (size_t)(filters * channels * m.s.kernel[0] * m.s.kernel[1]);
    return m;
}

/* Calls f(input, output, weight) with the places of all factors that meet. */
template <class F> void each_product(const gg_cuda_tiled_shape &s, F f) {
    for (int64_t n = 0; n < s.batch; ++n)
        for (int h = 0; h < s.output[0]; ++h)
            for (int w = 0; w < s.output[1]; ++w)
                for (int i = 0; i < s.kernel[0]; ++i)
                    for (int j = 0; j < s.kernel[1]; ++j) {
                        const int y = h * s.stride[0] - s.padding[0] + i * s.dilation[0];
                        const int x = w * s.stride[1] - s.padding[1] + j * s.dilation[1];
                        if (y < 0 || x < 0 || y >= s.image[0] || x >= s.image[1]) continue;
                        for (int c = 0; c < s.channels; ++c)
                            for (int o = 0; o < s.filters; ++o)
                                f((size_t)(((n * s.image[0] + y) * s.image[1] + x) * s.channels + c),
                                  (size_t)(((n * s.output[0] + h) * s.output[1] + w) * s.filters + o),
                                  (size_t)(((o * s.channels + c) * s.kernel[0] + i) * s.kernel[1] + j));
                    }
}

void check_all(const floats &got, const doubles &wanted, double scale) {
    double most = 0;
    for (size_t i = 0; i < wanted.size(); ++i) {
        const double d = fabs((double)got[i] - wanted[i]);
        if (!(d <= most)) most = d; /* NaN, too */
    }
    CHECK_NEAR(most, 0, 1e-6 * scale);
}

floats tiled(const gg_cuda_tiled_shape &s, bool mirrored, const floats &x, const floats &weight, const floats *bias,
             bool relu, size_t outputs, size_t skip) {
    CHECK(gg_cuda_tiled_fits(&s));
    buffer<float> in(x, "input", skip), w(weight, "weight"), out(outputs, "output", skip);
    buffer<float> laid_weight(gg_cuda_tiled_weight_bytes(&s) / sizeof(float), "prepared");
    std::unique_ptr<buffer<float>> b;
    if (bias != nullptr) b = std::make_unique<buffer<float>>(*bias, "bias");
    gg_cuda_tiled_weight(nullptr, &s, mirrored, w, laid_weight);
    gg_cuda_tiled_args args = {};
    args.shape = s;
    args.input = in;
    args.weight = laid_weight.p;
    args.bias = bias != nullptr ? b->p : nullptr;
    args.relu = relu;
    args.output = out;
    gg_cuda_tiled(nullptr, &args);
    return out.all();
}

void test_forward(const made &m, const floats &x, const floats &weight, bool relu, bool with_bias, size_t skip) {
    random_numbers r(7);
    const floats bias = r.floats((size_t)m.s.filters);
    doubles wanted(m.outputs, 0.0);
    each_product(m.s, [&](size_t i, size_t o, size_t w) { wanted[o] += (double)x[i] * (double)weight[w]; });
    for (size_t o = 0; o < m.outputs; ++o) {
        if (with_bias) wanted[o] += (double)bias[o % (size_t)m.s.filters];
        if (relu && wanted[o] < 0) wanted[o] = 0;
    }
    check_all(tiled(m.s, false, x, weight, with_bias ? &bias : nullptr, relu, m.outputs, skip), wanted,
              m.s.channels * m.s.kernel[0] * m.s.kernel[1]);
}

void test_data(const made &m, const floats &weight, const floats &error, size_t skip) {
    gg_cuda_tiled_shape s = m.s;
    doubles wanted(m.inputs, 0.0);
    each_product(m.s, [&](size_t i, size_t o, size_t w) { wanted[i] += (double)error[o] * (double)weight[w]; });
    s.channels = m.s.filters;
    s.filters = m.s.channels;
    for (int a = 0; a < 2; ++a) {
        s.image[a] = m.s.output[a];
        s.output[a] = m.s.image[a];
        s.padding[a] = m.s.dilation[a] * (m.s.kernel[a] - 1) - m.s.padding[a];
    }
    check_all(tiled(s, true, error, weight, nullptr, false, m.inputs, skip), wanted,
              m.s.filters * m.s.kernel[0] * m.s.kernel[1]);
}

void test_gradient(const made &m, const floats &x, const floats &error, size_t skip) {
    doubles wanted(m.weights, 0.0);
    each_product(m.s, [&](size_t i, size_t o, size_t w) { wanted[w] += (double)error[o] * (double)x[i]; });
    CHECK(gg_cuda_tiled_gradient_fits(&m.s));
    buffer<float> in(x, "input", skip), e(error, "error", skip), gradient(m.weights, "gradient");
    buffer<float> scratch(gg_cuda_tiled_gradient_scratch(&m.s) / sizeof(float), "scratch");
    gg_cuda_tiled_gradient_args args = {};
    args.shape = m.s;
    args.input = in;
    args.error = e;
    args.scratch = scratch.p;
    args.gradient = gradient;
    gg_cuda_tiled_gradient(nullptr, &args);
    check_all(gradient.all(), wanted, (double)(m.s.batch * m.s.output[0] * m.s.output[1]));
}

/* skip: values between an aligned address and the arrays. */
void test_conv(const made &m, size_t skip = 0) {
    random_numbers r(m.inputs + m.outputs);
    const floats x = short_floats(r, m.inputs), weight = short_floats(r, m.weights);
    const floats error = short_floats(r, m.outputs);
    test_forward(m, x, weight, m.weights % 2 == 0, m.inputs % 2 == 0, skip);
    test_gradient(m, x, error, skip);
    if (m.s.stride[0] == 1 && m.s.stride[1] == 1) test_data(m, weight, error, skip);
}

gg_window window(int64_t kernel, int64_t stride, int64_t padding, int64_t dilation) {
    gg_window w = {};
    for (int a = 0; a < 2; ++a) {
        w.kernel[a] = kernel;
        w.stride[a] = stride;
        w.padding[a] = padding;
        w.dilation[a] = dilation;
    }
    return w;
}

/* Values that TF32 cannot hold are rounded to the nearest; NaN comes through, by a ReLU too. */
void test_values() {
    const made m = shape_with(1, 1, 1, 3, 1, window(1, 1, 0, 1));
    const float near_one = 1 + ldexpf(1, -11) + ldexpf(1, -13), below = 1 + ldexpf(1, -11) - ldexpf(1, -13);
    const floats got = tiled(m.s, false, {near_one, below, NAN}, {1}, nullptr, true, 3, 0);
    CHECK_NEAR(got[0], 1 + ldexpf(1, -10), 0);
    CHECK_NEAR(got[1], 1, 0);
    CHECK(got[2] != got[2]);
}

} // namespace

int main() {
    test_values();
    test_conv(shape_with(1, 1, 1, 1, 1, window(1, 1, 0, 1)));
    test_conv(shape_with(2, 3, 7, 9, 5, window(3, 1, 1, 1)));
    test_conv(shape_with(2, 1, 9, 12, 20, window(5, 1, 0, 1)));
    test_conv(shape_with(1, 20, 7, 6, 50, window(5, 1, 0, 1)));
    test_conv(shape_with(3, 16, 8, 8, 16, window(3, 1, 1, 1)));
    test_conv(shape_with(3, 8, 5, 6, 12, window(3, 1, 1, 1)), 1);
    test_conv(shape_with(1, 4, 11, 41, 6, window(3, 2, 1, 2)));
    test_conv(shape_with(1, 33, 5, 4, 17, window(1, 1, 0, 1)));
    test_conv(shape_with(1, 72, 4, 9, 72, window(1, 1, 0, 1)));
    test_conv(shape_with(1, 128, 9, 8, 8, window(3, 1, 1, 1)));
    gg_window uneven = window(3, 1, 1, 1);
    uneven.kernel[1] = 2;
    uneven.padding[0] = 0;
    test_conv(shape_with(2, 5, 6, 35, 3, uneven));
    const made none[] = {shape_with(1, 129, 4, 4, 8, window(1, 1, 0, 1)),
                         shape_with(1, 8, 4, 4, 129, window(1, 1, 0, 1)),
                         shape_with(1, 128, 64, 64, 8, window(31, 1, 0, 1))};
    for (const made &m : none) CHECK(!gg_cuda_tiled_fits(&m.s) && !gg_cuda_tiled_gradient_fits(&m.s));
    return CHECK_RESULT;
}
