/* Samples into batches, columns, and transposition: the CPU's bits. */
#include "check_operations.h"

namespace {

gg_device *cpu;
random_numbers numbers(3);

template <class T>
void check_gather(gg_dtype dtype, int64_t n, int64_t values, int64_t runs, gg_dtype wanted, gg_layout layout,
                  bool indexed, size_t skip) {
    const size_t rows = 7, size = (size_t)(layout == GG_LAYOUT_BATCH_LAST ? padded((size_t)n) : (size_t)n);
    std::vector<T> all(rows * (size_t)values);
    for (T &x : all) x = dtype == GG_FLOAT32 ? (T)numbers.uniform(-1, 1) : (T)(numbers.next() % 256);
    buffer<T> set(all, "rows", skip);
    lanes<T> set_cpu(all);
    buffer<uint32_t> index((size_t)n, "index");
    for (size_t i = 0; i < index.n; ++i) index[i] = numbers.next() % rows;
    const std::vector<float> scaling = numbers.floats((size_t)(2 * runs));
    buffer<float> scales(scaling, "scales");
    buffer<float> out(size * (size_t)values, "out", skip);
    lanes<float> out_cpu(std::vector<float>(out.n));
    gg_gather_args a = {};
    a.dtype = dtype;
    a.rows = set.p;
    a.values = values;
    a.index = indexed ? index.p : nullptr;
    a.n = n;
    a.wanted = wanted;
    a.scale = 1.0f / 255;
    a.shift = -0.3f;
    a.runs = runs;
    a.scales = runs > 0 ? scales.p : nullptr;
    a.layout = layout;
    a.out = out.p;
    gg_gather_args c = a;
    c.rows = set_cpu.p;
    c.out = out_cpu.p;
    gg_cuda_gather(nullptr, &a);
    gg_backend_native.gather(cpu, &c);
    bool good = true;
    if (wanted == GG_INT32) good = memcmp(out.p, out_cpu.p, out.n * sizeof(float)) == 0;
    else good = same(out.all(), out_cpu.all(), "gather");
    if (!CHECK(good))
        fprintf(stderr, "dtype %d, n %d, values %d, runs %d, layout %d\n", (int)dtype, (int)n, (int)values, (int)runs,
                (int)layout);
}

/* Images of float32 as the CPU gathers them, in another layout or rounded. */
template <class T, class To>
void check_images(gg_dtype dtype, int64_t n, const gg_shape &s, gg_layout layout, int runs) {
    const size_t rows = 5, values = count(s), size = (size_t)n * values;
    std::vector<T> all(rows * values);
    for (T &x : all) x = dtype == GG_FLOAT32 ? (T)numbers.uniform(-1, 1) : (T)(numbers.next() % 256);
    buffer<T> set(all, "rows");
    lanes<T> set_cpu(all);
    buffer<uint32_t> index((size_t)n, "index");
    for (size_t i = 0; i < index.n; ++i) index[i] = numbers.next() % rows;
    buffer<float> scales(numbers.floats((size_t)(2 * runs)), "scales");
    device_batch<To> out(size, "out");
    lanes<float> out_cpu((std::vector<float>(size)));
    gg_gather_args a = {};
    a.dtype = dtype;
    a.rows = set_cpu.p;
    a.values = (int64_t)values;
    a.index = runs > 0 ? index.p : nullptr;
    a.n = n;
    a.scale = 1.0f / 255;
    a.shift = -0.3f;
    a.runs = runs;
    a.scales = runs > 0 ? scales.p : nullptr;
    a.out = out_cpu.p;
    gg_backend_native.gather(cpu, &a);
    a.rows = set.p;
    a.wanted = dtype_of<To>;
    a.layout = layout;
    a.channels = s.size[0];
    a.out = out.p;
    gg_cuda_gather(nullptr, &a);
    CHECK(same(out.all(), rounded<To>(laid(layout, s, n, out_cpu.all())), "gather of images"));
}

template <class T, class To> void test_images(gg_dtype dtype) {
    for (gg_layout layout : {GG_LAYOUT_PLAIN, GG_LAYOUT_NHWC}) {
        check_images<T, To>(dtype, 5, shape({3, 7, 5}), layout, 0);
        check_images<T, To>(dtype, 6, shape({3, 8, 8}), layout, 3);
        check_images<T, To>(dtype, 4, shape({1, 6, 6}), layout, 0);
        check_images<T, To>(dtype, 2, shape({24, 1, 1}), layout, 24);
        check_images<T, To>(dtype, 1, shape({4, 30, 30}), layout, 4);
    }
}

template <class T> void test_gather(gg_dtype dtype) {
    test_images<T, float>(dtype);
    test_images<T, narrow>(dtype);
    for (gg_layout layout : {GG_LAYOUT_PLAIN, GG_LAYOUT_BATCH_LAST})
        for (int64_t values : {1, 3, 12, 24, 48})
            for (int64_t n : {1, 5, 7})
                for (bool indexed : {true, false}) {
                    check_gather<T>(dtype, n, values, 0, GG_FLOAT32, layout, indexed, 0);
                    if (values % 3 == 0) check_gather<T>(dtype, n, values, 3, GG_FLOAT32, layout, indexed, 0);
                }
    for (size_t skip = 1; skip < 5; ++skip) check_gather<T>(dtype, 5, 24, 3, GG_FLOAT32, GG_LAYOUT_PLAIN, true, skip);
    if (dtype == GG_FLOAT32) return;
    for (int64_t values : {1, 3, 8}) check_gather<T>(dtype, 6, values, 0, GG_INT32, GG_LAYOUT_PLAIN, true, 0);
}

void test_columns() {
    const int64_t batch = 21, features = 45;
    const std::vector<float> v = numbers.floats((size_t)(batch * features));
    const std::vector<uint16_t> narrow = numbers.narrow(v.size());
    const int64_t ranges[][2] = {{0, 45}, {3, 7}, {44, 1}, {16, 16}};
    buffer<float> plain(v, "plain"), last((size_t)(features * 32), "last");
    buffer<uint16_t> half(narrow, "half");
    lanes<float> plain_cpu(v), last_cpu(std::vector<float>((size_t)(features * 32)));
    lanes<uint16_t> half_cpu(narrow);
    gg_cuda_transpose(nullptr, batch, features, true, plain, last);
    gg_backend_native.transpose(cpu, batch, features, true, plain_cpu, last_cpu);
    CHECK(same(last.all(), last_cpu.all(), "transpose"));
    for (const auto &range : ranges) {
        const gg_vectors on_gpu[] = {{plain.p, GG_FLOAT32, GG_LAYOUT_PLAIN, batch, features},
                                     {half.p, GG_BFLOAT16, GG_LAYOUT_PLAIN, batch, features},
                                     {last.p, GG_FLOAT32, GG_LAYOUT_BATCH_LAST, batch, features}};
        const gg_vectors on_cpu[] = {{plain_cpu.p, GG_FLOAT32, GG_LAYOUT_PLAIN, batch, features},
                                     {half_cpu.p, GG_BFLOAT16, GG_LAYOUT_PLAIN, batch, features},
                                     {last_cpu.p, GG_FLOAT32, GG_LAYOUT_BATCH_LAST, batch, features}};
        for (int i = 0; i < 3; ++i) {
            const size_t n = (size_t)(batch * range[1]);
            buffer<float> out(n, "out");
            lanes<float> out_cpu((std::vector<float>(n)));
            gg_cuda_columns(nullptr, &on_gpu[i], range[0], range[1], out);
            gg_backend_native.columns(cpu, &on_cpu[i], range[0], range[1], out_cpu);
            CHECK(same(out.all(), out_cpu.all(), "columns"));
        }
    }
}

void test_transpose() {
    const int64_t shapes[][2] = {{1, 1}, {16, 32}, {17, 5}, {70, 33}, {3, 100}, {0, 4}};
    for (const auto &shape : shapes) {
        const int64_t n = shape[0], values = shape[1];
        const size_t many = (size_t)(n * values), wide = padded((size_t)n) * (size_t)values;
        buffer<float> in(numbers.floats(many), "in"), last(wide, "last"), back(many, "back");
        gg_cuda_transpose(nullptr, n, values, true, in, last);
        gg_cuda_transpose(nullptr, n, values, false, last, back);
        CHECK(same(back.all(), in.all(), "there and back"));
        for (size_t i = 0; i < wide; ++i) {
            const size_t sample = i % padded((size_t)n), value = i / padded((size_t)n);
            const float wanted = sample < (size_t)n ? in[sample * (size_t)values + value] : 0;
            if (!CHECK(last[i] == wanted)) break;
        }
    }
}

} // namespace

int main() {
    cpu = scalar_device();
    test_gather<uint8_t>(GG_UINT8);
    test_gather<int32_t>(GG_INT32);
    test_gather<float>(GG_FLOAT32);
    test_columns();
    test_transpose();
    CHECK_CLEAN();
    gg_backend_native.close(cpu);
    return CHECK_RESULT;
}
