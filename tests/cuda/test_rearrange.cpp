/* What moves values: strided copies and the operations made of them. */
#include "check_operations.h"

namespace {

/* One value after the other. */
template <class From, class To> void copy_slowly(const gg_cuda_copy_args &a, const From *from, To *to, int axis = 0) {
    if (axis == a.axes) {
        *to = rounded_to<To>(widened(*from));
        return;
    }
    for (int64_t i = 0; i < a.size[axis]; ++i)
        copy_slowly(a, from + i * a.from_step[axis], to + i * a.to_step[axis], axis + 1);
}

/* The dense tensor's axes in any order on both sides, with gaps between values, from each type to each. */
template <class From, class To> void test_copy(random_numbers &r) {
    gg_cuda_copy_args a = {};
    a.axes = 1 + (int)(r.next() % GG_CUDA_COPY_AXES);
    int64_t length[2] = {1, 1};
    for (int i = 0; i < a.axes; ++i) a.size[i] = 1 + r.next() % (a.axes > 3 ? 4 : 11);
    for (int side = 0; side < 2; ++side) {
        int64_t *step = side == 0 ? a.from_step : a.to_step;
        std::vector<int> order((size_t)a.axes);
        for (int i = 0; i < a.axes; ++i) order[(size_t)i] = i;
        for (int i = a.axes - 1; i > 0 && r.next() % 3 != 0; --i)
            std::swap(order[(size_t)i], order[r.next() % (unsigned)(i + 1)]);
        for (int i = a.axes - 1; i >= 0; --i) {
            const int axis = order[(size_t)i];
            step[axis] = length[side] * (r.next() % 4 == 0 ? 2 : 1);
            length[side] = step[axis] * a.size[axis];
        }
    }
    device_batch<From> in(r.strange_floats((size_t)length[0]), "from", r.next() % 2);
    device_batch<To> out(r.floats((size_t)length[1]), "to", r.next() % 2);
    const bool clears = r.next() % 2 == 0;
    std::vector<To> wanted(out.p, out.p + length[1]);
    if (clears) wanted.assign((size_t)length[1], rounded_to<To>(0));
    copy_slowly(a, in.p, wanted.data());
    a.clear = clears ? length[1] : 0;
    a.from = in.p;
    a.to = out.p;
    a.from_dtype = dtype_of<From>;
    a.to_dtype = dtype_of<To>;
    gg_cuda_copy_strided(nullptr, &a);
    CHECK(memcmp(out.p, wanted.data(), wanted.size() * sizeof(To)) == 0);
    CHECK_CLEAN();
}

template <class From, class To> void test_transpose(int64_t batches, int64_t rows, int64_t columns) {
    const size_t n = (size_t)(batches * rows * columns);
    const floats from = rounded<From>(random_numbers(n).floats(n));
    floats wanted(n);
    for (int64_t b = 0; b < batches; ++b)
        for (int64_t i = 0; i < rows; ++i)
            for (int64_t j = 0; j < columns; ++j)
                wanted[(size_t)((b * columns + j) * rows + i)] = from[(size_t)((b * rows + i) * columns + j)];
    device_batch<From> in(from, "from"), back(n, "back");
    device_batch<To> out(n, "to");
    gg_cuda_transpose_batched(nullptr, batches, rows, columns, dtype_of<From>, dtype_of<To>, in, out);
    gg_cuda_transpose_batched(nullptr, batches, columns, rows, dtype_of<To>, dtype_of<From>, out, back);
    CHECK(same(out.all(), rounded<To>(wanted), "transpose"));
    CHECK(same(back.all(), rounded<To>(from), "transpose back"));
    CHECK_CLEAN();
}

template <class From, class To> void test_reorder(int64_t batch, const gg_shape &s) {
    const size_t n = (size_t)batch * count(s);
    const floats plain = rounded<From>(random_numbers(n).floats(n)), nhwc = laid(GG_LAYOUT_NHWC, s, batch, plain);
    for (bool there : {true, false})
        for (bool moves : {true, false}) {
            const gg_layout from = there ? GG_LAYOUT_PLAIN : GG_LAYOUT_NHWC;
            const gg_layout other = there ? GG_LAYOUT_NHWC : GG_LAYOUT_PLAIN, to = moves ? other : from;
            device_batch<From> in(there ? plain : nhwc, "from");
            device_batch<To> out(n, "to");
            gg_cuda_reorder(nullptr, &s, batch, {dtype_of<From>, from}, {dtype_of<To>, to}, in, out);
            CHECK(same(out.all(), rounded<To>(there == moves ? nhwc : plain), "reorder"));
        }
    CHECK_CLEAN();
}

template <class From, class To> void test_moves(random_numbers &r) {
    for (int i = 0; i < 100; ++i) test_copy<From, To>(r);
    const int64_t sizes[][3] = {{1, 1, 1}, {3, 5, 7}, {2, 33, 65}, {4, 64, 9}, {40, 8, 8}, {1, 3, 100}};
    for (const int64_t *s : sizes) test_transpose<From, To>(s[0], s[1], s[2]);
    test_reorder<From, To>(1, shape({1, 1, 1}));
    test_reorder<From, To>(3, shape({17, 5, 9}));
    test_reorder<From, To>(2, shape({3, 8, 8}));
    test_reorder<From, To>(1, shape({4, 90, 90}));
}

template <class T> void test_rearrange_of(const gg_op_desc &desc) {
    cpu_run cpu;
    const size_t inputs = (size_t)desc.batch * count(desc.input[0]), outputs = (size_t)desc.batch * count(desc.output);
    random_numbers r(inputs + outputs);
    cpu.input = {rounded<T>(r.floats(inputs))};
    cpu.grad_output = rounded<T>(r.floats(outputs));
    run_on_cpu(desc, &cpu);
    device_batch<T> x(cpu.input[0], "x"), y(outputs, "y"), dy(cpu.grad_output, "dy"), dx(inputs, "dx");
    gg_cuda_rearrange(nullptr, &desc, dtype_of<T>, false, x, y);
    gg_cuda_rearrange(nullptr, &desc, dtype_of<T>, true, dy, dx);
    CHECK(same(y.all(), cpu.output, gg_op_kind_name(desc.kind)));
    CHECK(same(dx.all(), cpu.grad_input[0], gg_op_kind_name(desc.kind)));
    CHECK_CLEAN();
}

void test_rearrange(const gg_op_desc &desc) {
    test_rearrange_of<float>(desc);
    test_rearrange_of<narrow>(desc);
}

void test_permute(int64_t batch, const gg_shape &s, std::vector<int64_t> order) {
    gg_op_desc desc = describe(GG_OP_PERMUTE, batch, {s}, s);
    desc.order.dims = s.dims;
    for (int i = 0; i < s.dims; ++i) {
        desc.order.size[i] = order[(size_t)i];
        desc.output.size[i] = s.size[order[(size_t)i]];
    }
    test_rearrange(desc);
}

void test_range(gg_op_kind kind, int64_t batch, const gg_shape &larger, gg_range range) {
    gg_shape smaller = larger;
    smaller.size[range.axis] = (range.end - range.begin + range.step - 1) / range.step;
    const bool pad = kind == GG_OP_PAD;
    gg_op_desc desc = describe(kind, batch, {pad ? smaller : larger}, pad ? larger : smaller);
    desc.range = range;
    test_rearrange(desc);
}

template <class T> void test_concat(int64_t batch, std::vector<gg_shape> inputs, gg_layout layout) {
    gg_shape out = inputs[0];
    out.size[0] = 0;
    for (const gg_shape &s : inputs) out.size[0] += s.size[0];
    const gg_op_desc desc = describe(GG_OP_CONCAT, batch, inputs, out);
    const size_t n = (size_t)batch * count(out);
    random_numbers r(n);
    cpu_run cpu;
    for (const gg_shape &s : inputs) cpu.input.push_back(rounded<T>(r.floats((size_t)batch * count(s))));
    cpu.grad_output = rounded<T>(r.floats(n));
    run_on_cpu(desc, &cpu);
    device_batch<T> y(n, "y"), dy(laid(layout, out, batch, cpu.grad_output), "dy");
    for (int i = 0; i < desc.inputs; ++i) {
        const gg_shape &s = inputs[(size_t)i];
        device_batch<T> x(laid(layout, s, batch, cpu.input[(size_t)i]), "x"), dx((size_t)batch * count(s), "dx");
        gg_cuda_concat(nullptr, &desc, {dtype_of<T>, layout}, i, false, x, y);
        gg_cuda_concat(nullptr, &desc, {dtype_of<T>, layout}, i, true, dx, dy);
        CHECK(same(plain_of(layout, s, batch, dx.all()), cpu.grad_input[(size_t)i], "concat, error"));
    }
    CHECK(same(plain_of(layout, out, batch, y.all()), cpu.output, "concat"));
    CHECK_CLEAN();
}

} // namespace

int main() {
    random_numbers r(3);
    test_moves<float, float>(r);
    test_moves<float, narrow>(r);
    test_moves<narrow, float>(r);
    test_moves<narrow, narrow>(r);
    test_permute(2, shape({3, 4, 5}), {2, 0, 1});
    test_permute(1, shape({6, 1, 2, 3}), {3, 2, 1, 0});
    test_permute(3, shape({12, 34}), {1, 0});
    test_permute(3, shape({2, 3, 4}), {0, 1, 2});
    for (gg_op_kind kind : {GG_OP_SLICE, GG_OP_PAD}) {
        test_range(kind, 1, shape({1}), {0, 0, 1, 1});
        test_range(kind, 3, shape({7, 5, 4}), {0, 2, 6, 1});
        test_range(kind, 2, shape({7, 5, 8}), {1, 1, 5, 2});
        test_range(kind, 2, shape({3, 5, 11}), {2, 0, 11, 3});
    }
    for (gg_layout layout : {GG_LAYOUT_PLAIN, GG_LAYOUT_NHWC}) {
        test_concat<float>(1, {shape({1, 1, 1}), shape({2, 1, 1})}, layout);
        test_concat<float>(3, {shape({4, 2, 2}), shape({8, 2, 2}), shape({1, 2, 2})}, layout);
        test_concat<narrow>(1, {shape({1, 1, 1}), shape({2, 1, 1})}, layout);
        test_concat<narrow>(3, {shape({4, 2, 2}), shape({8, 2, 2}), shape({1, 2, 2})}, layout);
    }
    return CHECK_RESULT;
}
