/* Activations, sums, dropout and biases. */
#include <functional>

#include "check_operations.h"

extern "C" {
#include "base/random.h"
}

namespace {

/* ------------------------------------------------------------------------------------------ activations */

/* Zeros of both signs, infinities and numbers of all sizes, beside usual ones. */
floats odd_numbers(size_t n, uint64_t seed) {
    random_numbers r(seed);
    floats v = r.floats(n, -4, 4);
    const float odd[] = {0.0f, -0.0f, 1e-30f, -1e-30f, 60.0f, -60.0f, INFINITY, -INFINITY, 1e-3f, -7.5f};
    for (size_t i = 0; i < n; i += 7) v[i] = odd[i / 7 % (sizeof odd / sizeof *odd)];
    return v;
}

struct activation {
    const char *name;
    gg_op_kind kind;
    float slope;
    bool tanh_form, from_output, exact;
    std::function<double(double)> value;
};

double normal_below(double x) { return 0.5 * erfc(-x / sqrt(2)); }

const activation activations[] = {
    {"relu", GG_OP_RELU, 0, false, true, true, [](double x) { return x > 0 ? x : 0; }},
    {"leaky", GG_OP_LEAKY_RELU, 0.25f, false, true, true, [](double x) { return x > 0 ? x : 0.25 * x; }},
    {"bent", GG_OP_LEAKY_RELU, -0.5f, false, false, true, [](double x) { return x > 0 ? x : -0.5 * x; }},
    {"tanh", GG_OP_TANH, 0, false, true, false, [](double x) { return tanh(x); }},
    {"sigmoid", GG_OP_SIGMOID, 0, false, true, false, [](double x) { return 1 / (1 + exp(-x)); }},
    {"gelu", GG_OP_GELU, 0, false, false, false, [](double x) { return x * normal_below(x); }},
    {"gelu tanh", GG_OP_GELU, 0, true, false, false,
     [](double x) { return 0.5 * x * (1 + tanh(sqrt(2 / M_PI) * (x + 0.044715 * x * x * x))); }},
};

/* One element in front of an array, by the bits of `moved`: arrays that are not aligned are not read by fours. */
size_t skip_of(unsigned moved, unsigned array) { return moved >> array & 1u; }

template <class T> void test_activation(const activation &a, size_t n, unsigned moved) {
    gg_op_desc desc = describe(a.kind, 1, {shape({(int64_t)n})}, shape({(int64_t)n}));
    if (a.kind == GG_OP_LEAKY_RELU) desc.leaky_relu.slope = a.slope;
    else desc.gelu.tanh_form = a.tanh_form;
    cpu_run cpu;
    /* An infinite input of GELU gives 0 times infinity. */
    cpu.input = {rounded<T>(a.kind == GG_OP_GELU ? random_numbers(n).floats(n, -6, 6) : odd_numbers(n, n))};
    cpu.grad_output = rounded<T>(random_numbers(n + 1).floats(n));
    run_on_cpu(desc, &cpu);
    device_batch<T> x(cpu.input[0], "x", skip_of(moved, 0)), y(n, "y", skip_of(moved, 1));
    device_batch<T> dy(cpu.grad_output, "dy", skip_of(moved, 2)), dx(n, "dx", skip_of(moved, 3));
    gg_cuda_activation_args args = {};
    args.dtype = dtype_of<T>;
    args.kind = a.kind;
    args.slope = a.slope;
    args.tanh_form = a.tanh_form;
    args.n = n;
    args.in = x;
    args.out = y;
    gg_cuda_activation(nullptr, &args);
    args.in = a.from_output ? y.p : x.p;
    args.grad = dy;
    args.out = dx;
    gg_cuda_activation_backward(nullptr, &args);
    /* From a rounded output the derivative is that of another input. */
    const bool exact = a.exact, wide = sizeof(T) == 4 || exact || !a.from_output;
    const double tolerance = 1e-6 + rounding_of<T>, slope = wide ? tolerance : 4 * rounding_of<T>;
    const floats once = y.all(), error = dx.all();
    CHECK(exact ? same(once, rounded<T>(cpu.output), a.name) : near(once, cpu.output, tolerance, a.name));
    CHECK(exact ? same(error, rounded<T>(cpu.grad_input[0]), a.name) : near(error, cpu.grad_input[0], slope, a.name));
    for (size_t i = 0; i < n; ++i) {
        const double v = (double)cpu.input[0][i], d = (double)cpu.grad_output[i], step = 1e-5;
        if (fabs(v) > 1e30) continue;
        CHECK_NEAR(once[i], a.value(v), tolerance * (1 + fabs(v)));
        if (fabs(v) > 1e-2)
            CHECK_NEAR(error[i], d * (a.value(v + step) - a.value(v - step)) / (2 * step), 1e-5 + slope);
    }
    /* In place. */
    args.out = dy;
    gg_cuda_activation_backward(nullptr, &args);
    CHECK(same(dy.all(), error, a.name));
    args.in = args.out = x;
    gg_cuda_activation(nullptr, &args);
    CHECK(same(x.all(), once, a.name));
    CHECK_CLEAN();
}

void test_nan_passes_a_relu() {
    const floats in = {NAN, -1, 2};
    device_floats x(in), d(floats{5, 6, 7});
    gg_cuda_activation_args args = {};
    args.kind = GG_OP_RELU;
    args.n = 3;
    args.in = args.out = x;
    gg_cuda_activation(nullptr, &args);
    CHECK(same(x.all(), {NAN, 0, 2}, "relu of NaN"));
    args.grad = args.out = d;
    gg_cuda_activation_backward(nullptr, &args);
    CHECK(same(d.all(), {5, 0, 7}, "relu of NaN, backward"));
    CHECK_CLEAN();
}

/* ------------------------------------------------------------------------------------------ sum */

template <class T> void test_add(int inputs, size_t n, bool relu, unsigned moved) {
    const gg_shape s = shape({(int64_t)n});
    gg_op_desc desc = describe(GG_OP_ADD, 1, std::vector<gg_shape>((size_t)inputs, s), s);
    desc.activation = relu ? GG_ACTIVATION_RELU : GG_ACTIVATION_NONE;
    cpu_run cpu;
    for (int i = 0; i < inputs; ++i) cpu.input.push_back(rounded<T>(odd_numbers(n, n + (size_t)i)));
    cpu.grad_output = rounded<T>(random_numbers(n).floats(n));
    run_on_cpu(desc, &cpu);
    cpu.output = rounded<T>(cpu.output);
    std::vector<std::unique_ptr<device_batch<T>>> arrays;
    gg_cuda_add_args args = {};
    args.dtype = dtype_of<T>;
    args.n = n;
    args.inputs = inputs;
    args.relu = relu;
    for (int i = 0; i < inputs; ++i) {
        arrays.push_back(
            std::make_unique<device_batch<T>>(cpu.input[(size_t)i], "input", i == 1 ? skip_of(moved, 0) : 0));
        args.input[i] = arrays.back()->p;
    }
    device_batch<T> y(n, "y", skip_of(moved, 1)), dy(cpu.grad_output, "dy", skip_of(moved, 2));
    device_batch<T> other(n, "other", skip_of(moved, 3));
    args.output = y;
    gg_cuda_add(nullptr, &args);
    CHECK(same(y.all(), cpu.output, "add"));
    args.output = arrays.back()->p; /* in place */
    gg_cuda_add(nullptr, &args);
    CHECK(same(arrays.back()->all(), cpu.output, "add in place"));
    /* The first gradient in place of the output's, one of its own, one over the output; others are not wanted. */
    args.output = y;
    args.grad_output = dy;
    args.grad[1] = other;
    gg_cuda_add_backward(nullptr, &args);
    CHECK(same(other.all(), cpu.grad_input[1], "add, one gradient"));
    args.grad[1] = nullptr;
    args.grad[0] = dy;
    if (inputs > 2) args.grad[1] = other;
    args.grad[inputs - 1] = y;
    gg_cuda_add_backward(nullptr, &args);
    CHECK(same(dy.all(), cpu.grad_input[0], "add, first gradient"));
    CHECK(same(y.all(), cpu.grad_input[1], "add, last gradient"));
    if (inputs > 2) CHECK(same(other.all(), cpu.grad_input[1], "add, second gradient"));
    CHECK_CLEAN();
}

/* ------------------------------------------------------------------------------------------ dropout */

template <class T> void test_dropout(int64_t batch, const gg_shape &s, gg_layout layout, float probability) {
    const gg_shape flat = shape({gg_shape_count(&s)});
    gg_op_desc desc = describe(GG_OP_DROPOUT, batch, {flat}, flat);
    desc.probability = probability;
    desc.seed = 0x123456789abcdef0ull;
    cpu_run cpu;
    const size_t n = (size_t)batch * count(s);
    cpu.input = {rounded<T>(random_numbers(n).floats(n, 1, 2))};
    cpu.grad_output = rounded<T>(random_numbers(n + 1).floats(n));
    cpu.rank = 3;
    cpu.step = (uint64_t)5 << 40 | 77;
    run_on_cpu(desc, &cpu);
    device_batch<T> x(laid(layout, s, batch, cpu.input[0])), y(n), dy(laid(layout, s, batch, cpu.grad_output));
    gg_cuda_dropout_args args = {};
    args.dtype = dtype_of<T>;
    args.layout = layout;
    args.batch = batch;
    args.features = gg_shape_count(&s);
    args.channels = s.size[0];
    buffer<uint64_t> step(std::vector<uint64_t>{cpu.step}, "step");
    args.draw = {desc.seed, step, cpu.rank, probability};
    args.in = x;
    args.out = y;
    gg_cuda_dropout(nullptr, &args);
    CHECK(same(plain_of(layout, s, batch, y.all()), rounded<T>(cpu.output), "dropout"));
    args.in = args.out = dy;
    gg_cuda_dropout(nullptr, &args);
    CHECK(same(plain_of(layout, s, batch, dy.all()), rounded<T>(cpu.grad_input[0]), "dropout, backward"));
    if (probability > 0 && probability < 1 && n > 100) {
        const floats all = y.all();
        const auto zeros = std::count(all.begin(), all.end(), 0.0f);
        CHECK(zeros > 0 && zeros < (long)n);
    }
    CHECK_CLEAN();
}

void test_dropout_rows(int64_t rows, int64_t length, int64_t first_row) {
    const size_t n = (size_t)(rows * length);
    const floats in = random_numbers(n).floats(n);
    const gg_random_key key = {11, GG_RANDOM_DROPOUT, 2, 9};
    floats wanted(n);
    for (int64_t r = 0; r < rows; ++r)
        for (int64_t j = 0; j < length; ++j) {
            uint32_t word[4];
            gg_random_block(&key, (uint32_t)((first_row + r) * ((length + 3) / 4) + j / 4), word);
            const size_t at = (size_t)(r * length + j);
            wanted[at] = word[j % 4] >= 0x40000000u ? in[at] * (float)(1 / 0.75) : 0.0f;
        }
    device_floats x(in), y(n);
    gg_cuda_dropout_rows_args args = {};
    args.rows = rows;
    args.length = length;
    args.first_row = first_row;
    buffer<uint64_t> step(std::vector<uint64_t>{9}, "step");
    args.draw = {11, step, 2, 0.25f};
    args.in = x;
    args.out = y;
    gg_cuda_dropout_rows(nullptr, &args);
    CHECK(same(y.all(), wanted, "dropout of rows"));
    args.out = x;
    gg_cuda_dropout_rows(nullptr, &args);
    CHECK(same(x.all(), wanted, "dropout of rows in place"));
    CHECK_CLEAN();
}

/* ------------------------------------------------------------------------------------------ biases */

template <class T> void test_bias(int64_t outer, int64_t channels, int64_t inner, bool relu, size_t skip) {
    const size_t n = (size_t)(outer * channels * inner);
    random_numbers r(n + relu);
    const floats in = rounded<T>(r.floats(n)), bias = r.floats((size_t)channels), error = rounded<T>(r.floats(n));
    floats wanted(n), passed(n);
    doubles sums((size_t)channels);
    for (size_t i = 0; i < n; ++i) {
        const size_t c = i / (size_t)inner % (size_t)channels;
        const float v = in[i] + bias[c];
        wanted[i] = relu && v <= 0 ? 0 : v;
        passed[i] = relu && v <= 0 ? 0 : error[i];
        sums[c] += (double)passed[i];
    }
    wanted = rounded<T>(wanted);
    device_batch<T> y(in, "y", skip), dy(error, "dy", skip), again(error, "again", skip);
    device_floats b(bias), gradient((size_t)channels);
    buffer<double> scratch(gg_cuda_bias_backward_scratch(outer, channels, inner) / sizeof(double));
    gg_cuda_bias_args args = {};
    args.dtype = dtype_of<T>;
    args.outer = outer;
    args.channels = channels;
    args.inner = inner;
    args.relu = relu;
    args.bias = b;
    args.y = y;
    gg_cuda_bias(nullptr, &args);
    CHECK(same(y.all(), wanted, "bias"));
    gg_cuda_bias_backward_args back = {};
    back.dtype = dtype_of<T>;
    back.outer = outer;
    back.channels = channels;
    back.inner = inner;
    back.y = relu ? (const void *)y.p : nullptr;
    back.grad = dy;
    back.bias = gradient;
    back.scratch = scratch;
    gg_cuda_bias_backward(nullptr, &back);
    CHECK(same(dy.all(), passed, "bias, error"));
    CHECK(near(gradient.all(), sums, 1e-7, "bias, gradient"));
    back.grad = again;
    back.bias = nullptr;
    back.scratch = nullptr;
    gg_cuda_bias_backward(nullptr, &back);
    CHECK(same(again.all(), passed, "bias, error alone"));
    CHECK_CLEAN();
}

template <class T> void test_all() {
    for (const activation &a : activations)
        for (size_t n : {1, 3, 64, 1030})
            for (unsigned moved : {0u, 1u, 2u, 4u, 8u})
                if (moved == 0 || n == 64) test_activation<T>(a, n, moved);
    for (int inputs : {2, 3, 16})
        for (bool relu : {false, true}) {
            test_add<T>(inputs, 67, relu, 0);
            for (unsigned moved : {0u, 1u, 2u, 4u, 8u}) test_add<T>(inputs, 64, relu, moved);
        }
    for (int64_t batch : {1, 4, 6})
        for (gg_layout layout : {GG_LAYOUT_PLAIN, GG_LAYOUT_NHWC})
            test_dropout<T>(batch, shape({3, 5, 7}), layout, 0.3f);
    test_dropout<T>(3, shape({3, 14, 14}), GG_LAYOUT_NHWC, 0.5f);
    for (float p : {0.0f, 1.0f}) test_dropout<T>(5, shape({3, 2, 2}), GG_LAYOUT_PLAIN, p);
    for (bool relu : {false, true}) {
        test_bias<T>(1, 1, 1, relu, 0);
        test_bias<T>(5, 7, 1, relu, 0);
        test_bias<T>(131, 36, 1, relu, 0);
        test_bias<T>(131, 36, 1, relu, 3);
        test_bias<T>(1200, 16, 1, relu, 0);
        test_bias<T>(70, 264, 1, relu, 0);
        test_bias<T>(3, 5, 12, relu, 0);
        test_bias<T>(3, 5, 16, relu, 0);
        test_bias<T>(2, 3, 49, relu, 0);
        test_bias<T>(300, 2, 9, relu, 0);
    }
}

} // namespace

int main() {
    test_all<float>();
    test_all<narrow>();
    test_nan_passes_a_relu();
    test_dropout_rows(1, 1, 0);
    test_dropout_rows(7, 13, 21);
    test_dropout_rows(40, 60, 40);
    return CHECK_RESULT;
}
