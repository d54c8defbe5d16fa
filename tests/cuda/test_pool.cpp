/* Pooling of any windows, in both layouts. */
#include "check_operations.h"

namespace {

gg_op_desc pool_desc(gg_op_kind kind, int64_t batch, const gg_shape &in, const gg_window &w) {
    gg_op_desc desc = describe(kind, batch, {in}, in);
    desc.pool = w;
    for (int a = 0; a < 2; ++a) desc.output.size[1 + a] = gg_window_output(&w, a, in.size[1 + a], w.ceil_mode);
    return desc;
}

/* The average of what a window holds, in double. */
floats average_in_double(const gg_op_desc &desc, const floats &x) {
    floats out;
    const int64_t *in = desc.input[0].size, *to = desc.output.size;
    const gg_window &w = desc.pool;
    const bool adaptive = desc.kind == GG_OP_ADAPTIVE_AVG_POOL2D;
    for (int64_t plane = 0; plane < desc.batch * in[0]; ++plane)
        for (int64_t h = 0; h < to[1]; ++h)
            for (int64_t v = 0; v < to[2]; ++v) {
                const int64_t at[2] = {h, v};
                int64_t begin[2], end[2], divisor = 1;
                for (int a = 0; a < 2; ++a) {
                    begin[a] = adaptive ? at[a] * in[1 + a] / to[1 + a] : at[a] * w.stride[a] - w.padding[a];
                    end[a] = adaptive ? ((at[a] + 1) * in[1 + a] + to[1 + a] - 1) / to[1 + a]
                                      : std::min(begin[a] + w.kernel[a], in[1 + a] + w.padding[a]);
                    const int64_t whole = end[a] - begin[a];
                    begin[a] = std::max<int64_t>(begin[a], 0);
                    end[a] = std::min(end[a], in[1 + a]);
                    divisor *= w.count_include_pad && !adaptive ? whole : end[a] - begin[a];
                }
                double sum = 0;
                for (int64_t i = begin[0]; i < end[0]; ++i)
                    for (int64_t j = begin[1]; j < end[1]; ++j)
                        sum += (double)x[(size_t)((plane * in[1] + i) * in[2] + j)];
                out.push_back((float)(sum / (double)divisor));
            }
    return out;
}

template <class T> void test_pool_of(const gg_op_desc &desc, gg_layout layout, bool special) {
    const bool max = desc.kind == GG_OP_MAX_POOL2D;
    const size_t inputs = (size_t)desc.batch * count(desc.input[0]), outputs = (size_t)desc.batch * count(desc.output);
    cpu_run cpu;
    random_numbers r(inputs + outputs);
    cpu.input = {r.floats(inputs)};
    /* Equal values: the first one wins. */
    for (size_t i = 0; max && i < inputs; i += 3) cpu.input[0][i] = (float)(i % 4) / 4;
    cpu.input[0][inputs - 1] = 2; /* at the last place of a window, if one holds it */
    if (special) cpu.input[0][inputs / 2] = cpu.input[0][inputs / 2 + 1] = NAN;
    cpu.input[0] = rounded<T>(cpu.input[0]);
    cpu.grad_output = rounded<T>(r.floats(outputs));
    run_on_cpu(desc, &cpu);
    const gg_format format = {dtype_of<T>, layout};
    device_batch<T> x(laid(layout, desc.input[0], desc.batch, cpu.input[0]), "x"), y(outputs, "y"), dx(inputs, "dx");
    device_batch<T> dy(laid(layout, desc.output, desc.batch, cpu.grad_output), "dy"), again(outputs, "again");
    buffer<uint8_t> saved(gg_cuda_pool_saved(&desc), "saved");
    CHECK(max == (saved.n > 0));
    gg_cuda_pool(nullptr, &desc, format, x, y, max ? saved.p : nullptr);
    gg_cuda_pool(nullptr, &desc, format, x, again, nullptr);
    gg_cuda_pool_backward(nullptr, &desc, format, dy, saved.p, dx);
    const floats out = plain_of(layout, desc.output, desc.batch, y.all());
    const floats error = plain_of(layout, desc.input[0], desc.batch, dx.all());
    const char *name = gg_op_kind_name(desc.kind);
    CHECK(same(again.all(), y.all(), "without saved places"));
    CHECK(max ? same(out, cpu.output, name) : near(out, cpu.output, 1e-6 + rounding_of<T>, name));
    CHECK(near(error, max ? rounded<T>(cpu.grad_input[0]) : cpu.grad_input[0], max ? 0 : 1e-6 + rounding_of<T>,
               name)); /* 0: but for the sign of 0 */
    if (!max) CHECK(near(out, average_in_double(desc, cpu.input[0]), 1e-6 + rounding_of<T>, name));
    CHECK_CLEAN();
}

void test_pool(const gg_op_desc &desc, gg_layout layout, bool special = false) {
    test_pool_of<float>(desc, layout, special);
    test_pool_of<narrow>(desc, layout, special);
}

gg_window window(int64_t kernel, int64_t stride, int64_t padding, int64_t dilation, bool ceil_mode, bool include_pad) {
    gg_window w = {};
    for (int a = 0; a < 2; ++a) {
        w.kernel[a] = kernel;
        w.stride[a] = stride;
        w.padding[a] = padding;
        w.dilation[a] = dilation;
    }
    w.ceil_mode = ceil_mode;
    w.count_include_pad = include_pad;
    return w;
}

bool possible(const gg_op_desc &desc) {
    for (int a = 0; a < 2; ++a) {
        const gg_window &w = desc.pool;
        if (desc.output.size[1 + a] < 1 || w.padding[a] > (w.dilation[a] * (w.kernel[a] - 1) + 1) / 2 ||
            !gg_window_covers(&w, a, desc.input[0].size[1 + a], desc.output.size[1 + a]))
            return false;
    }
    return true;
}

} // namespace

int main() {
    const gg_layout layouts[] = {GG_LAYOUT_PLAIN, GG_LAYOUT_NHWC};
    for (gg_layout layout : layouts) {
        test_pool(pool_desc(GG_OP_MAX_POOL2D, 1, shape({1, 1, 1}), window(1, 1, 0, 1, false, false)), layout);
        test_pool(pool_desc(GG_OP_MAX_POOL2D, 3, shape({5, 8, 6}), window(2, 2, 0, 1, false, false)), layout);
        test_pool(pool_desc(GG_OP_MAX_POOL2D, 2, shape({3, 9, 7}), window(3, 2, 1, 1, true, false)), layout, true);
        test_pool(pool_desc(GG_OP_AVG_POOL2D, 2, shape({3, 9, 7}), window(3, 2, 1, 1, true, true)), layout);
        test_pool(pool_desc(GG_OP_AVG_POOL2D, 1, shape({2, 17, 13}), window(9, 4, 2, 1, true, false)), layout);
    }
    /* Channels side by side; a thread has several. */
    for (int64_t channels : {4, 8, 16, 24}) {
        const gg_layout nhwc = GG_LAYOUT_NHWC;
        gg_op_desc cut = pool_desc(GG_OP_MAX_POOL2D, 3, shape({channels, 9, 7}), window(3, 2, 1, 1, true, false));
        cut.activation = GG_ACTIVATION_RELU;
        test_pool(cut, nhwc);
        test_pool(pool_desc(GG_OP_MAX_POOL2D, 2, shape({channels, 8, 8}), window(2, 2, 0, 1, false, false)), nhwc,
                  true);
        test_pool(pool_desc(GG_OP_AVG_POOL2D, 2, shape({channels, 9, 7}), window(3, 2, 1, 1, true, true)), nhwc);
        test_pool(describe(GG_OP_ADAPTIVE_AVG_POOL2D, 2, {shape({channels, 6, 5})}, shape({channels, 1, 1})), nhwc);
    }
    test_pool(pool_desc(GG_OP_MAX_POOL2D, 1, shape({8, 20, 20}), window(17, 1, 0, 1, false, false)), GG_LAYOUT_NHWC);
    /* Places of two and of four bytes, by the size of the window. */
    for (gg_layout layout : layouts) {
        test_pool(pool_desc(GG_OP_MAX_POOL2D, 2, shape({3, 40, 40}), window(20, 5, 0, 1, false, false)), layout);
        test_pool(pool_desc(GG_OP_MAX_POOL2D, 2, shape({2, 260, 259}), window(257, 1, 0, 1, false, false)), layout);
    }
    random_numbers r(5);
    for (int tried = 0, done = 0; done < 24 && tried < 500; ++tried) {
        const bool max = r.next() % 2 == 0;
        gg_window w = {};
        for (int a = 0; a < 2; ++a) {
            w.kernel[a] = 1 + r.next() % 4;
            w.stride[a] = 1 + r.next() % 3;
            w.dilation[a] = max ? 1 + r.next() % 2 : 1;
            w.padding[a] = r.next() % 3;
        }
        w.ceil_mode = r.next() % 2 == 0;
        w.count_include_pad = r.next() % 2 == 0;
        const gg_shape in = shape({1 + r.next() % 4, 1 + r.next() % 9, 1 + r.next() % 9});
        gg_op_desc desc = pool_desc(max ? GG_OP_MAX_POOL2D : GG_OP_AVG_POOL2D, 1 + (int64_t)(r.next() % 3), in, w);
        if (!possible(desc)) continue;
        if (max && r.next() % 2 == 0) desc.activation = GG_ACTIVATION_RELU;
        test_pool(desc, layouts[done++ % 2]);
    }
    const int64_t adaptive[][4] = {{7, 5, 3, 2}, {4, 4, 1, 1}, {3, 2, 5, 7}, {16, 9, 1, 1}, {6, 6, 6, 6}};
    for (const int64_t *a : adaptive)
        for (gg_layout layout : layouts) {
            gg_op_desc desc = describe(GG_OP_ADAPTIVE_AVG_POOL2D, 2, {shape({3, a[0], a[1]})}, shape({3, a[2], a[3]}));
            test_pool(desc, layout);
        }
    return CHECK_RESULT;
}
