/* Sums over arenas and rows, AdaComp's choice, and a linear layer's weight gradient. */
#include "check_kernels.h"

namespace {

gg_device *cpu;
random_numbers numbers(2);

double squares(size_t n, const float *a, const float *b) {
    buffer<double> partial(GG_CUDA_PARTIALS, "partial"), result(1, "result");
    gg_cuda_sum_squares(nullptr, n, a, b, partial, result);
    return result[0];
}

void test_sum_squares() {
    for (size_t n : {(size_t)0, (size_t)1, (size_t)31, (size_t)257, (size_t)5003, (size_t)9011}) {
        buffer<float> a(numbers.floats(n), "a"), b(numbers.floats(n), "b"), shifted(a.all(), "shifted", 3);
        double one = 0, two = 0;
        for (size_t i = 0; i < n; ++i) {
            one += (double)a[i] * a[i];
            two += ((double)a[i] - b[i]) * ((double)a[i] - b[i]);
        }
        CHECK_NEAR(squares(n, a, nullptr), one, 1e-13 * one);
        CHECK_NEAR(squares(n, a, b), two, 1e-13 * two);
        CHECK(squares(n, shifted, nullptr) == squares(n, a, nullptr)); /* the order depends on n alone */
    }
    buffer<float> large(3);
    large[0] = 3e38f, large[1] = -1e-30f, large[2] = 0;
    CHECK_NEAR(squares(3, large, nullptr), 9.0e76, 1e70);
}

int32_t finite(size_t n, const float *a) {
    buffer<double> partial(GG_CUDA_PARTIALS, "partial");
    buffer<int32_t> result(1, "result");
    gg_cuda_all_finite(nullptr, n, a, partial, result);
    return result[0];
}

void test_all_finite() {
    for (size_t n : some_sizes) {
        buffer<float> a(numbers.strange_floats(n));
        for (size_t i = 0; i < n; ++i)
            if (std::isinf(a[i])) a[i] = 3e38f;
        CHECK_INT(finite(n, a), 1);
        for (size_t at : {(size_t)0, n / 2, n - 1}) {
            if (n == 0) continue;
            for (float bad : {INFINITY, -INFINITY, NAN}) {
                const float good = a[at];
                a[at] = bad;
                CHECK_INT(finite(n, a), 0);
                a[at] = good;
            }
        }
    }
}

void test_column_sums() {
    const int64_t shapes[][2] = {{0, 3}, {1, 1}, {7, 33}, {300, 10}, {1500, 3}, {17, 64}, {5000, 1}};
    for (const auto &shape : shapes) {
        const size_t rows = (size_t)shape[0], columns = (size_t)shape[1];
        buffer<float> in(numbers.floats(rows * columns), "in"), out(columns, "out");
        gg_cuda_column_sums(nullptr, shape[0], shape[1], in, out);
        std::vector<double> wanted(columns);
        for (size_t i = 0; i < rows * columns; ++i) wanted[i % columns] += in[i];
        CHECK(near(out.all(), wanted, 2e-5, "column sums"));
    }
}

/* ------------------------------------------------------------------------------------------------ products */

void check_weight_gradient(int64_t batch, int64_t out, int64_t in, int64_t first, int64_t count) {
    const int64_t row = first / in, rows = (first + count - 1) / in - row + 1;
    const std::vector<float> error = numbers.floats((size_t)(batch * out)),
                             input = numbers.floats((size_t)(batch * in));
    /* The errors begin at the run's first row, and their rows lie apart. */
    buffer<float> e(error, "error"), x(input, "input"), whole((size_t)(out * in), "whole"), part((size_t)count, "part");
    gg_weight_gradient_args a = {batch, in, e, x, out, 0, out * in, whole};
    gg_cuda_weight_gradient(nullptr, &a);
    std::vector<double> wanted((size_t)(out * in));
    for (int64_t s = 0; s < batch; ++s)
        for (int64_t o = 0; o < out; ++o)
            for (int64_t i = 0; i < in; ++i)
                wanted[(size_t)(o * in + i)] += (double)error[(size_t)(s * out + o)] * input[(size_t)(s * in + i)];
    CHECK(near(whole.all(), wanted, 3e-6, "weight gradient"));
    a = {batch, in, e + row, x, out, first, count, part};
    gg_cuda_weight_gradient(nullptr, &a);
    CHECK(rows <= out);
    CHECK(same(part.all(), std::vector<float>(whole.p + first, whole.p + first + count), "a run"));
}

void test_weight_gradient() {
    check_weight_gradient(1, 1, 1, 0, 1);
    check_weight_gradient(5, 10, 33, 17, 200);
    check_weight_gradient(300, 10, 20, 40, 60);
    check_weight_gradient(64, 40, 70, 69, 1);
    check_weight_gradient(33, 3, 5, 7, 8);
}

} // namespace

int main() {
    cpu = scalar_device();
    test_sum_squares();
    test_all_finite();
    test_column_sums();
    test_weight_gradient();
    CHECK_CLEAN();
    gg_backend_native.close(cpu);
    return CHECK_RESULT;
}
