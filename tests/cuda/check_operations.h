/* What the tests of kernels of operations share: batches in several layouts, and the CPU's operations to compare with.
 */
#ifndef CHECK_OPERATIONS_H
#define CHECK_OPERATIONS_H

#include <memory>

#include "check_kernels.h"
#include "cuda/kernels_nn.h"

typedef std::vector<float> floats;
typedef std::vector<double> doubles;
typedef buffer<float> device_floats;

/* bfloat16: the upper half of a float32. */
struct narrow {
    uint16_t bits;
    bool operator==(narrow other) const { return bits == other.bits; }
};
inline float widened(float v) { return v; }
inline float widened(narrow v) {
    const uint32_t bits = (uint32_t)v.bits << 16;
    float out;
    memcpy(&out, &bits, sizeof out);
    return out;
}
/* To nearest, of two that are as near the even one: by searching, where neither is NaN. */
template <class T> T rounded_to(float v);
template <> inline float rounded_to<float>(float v) { return v; }
template <> inline narrow rounded_to<narrow>(float v) {
    uint32_t bits;
    memcpy(&bits, &v, sizeof bits);
    const narrow below = {(uint16_t)(bits >> 16)}, above = {(uint16_t)((bits >> 16) + 1)};
    if (v != v || widened(below) == v) return {(uint16_t)(bits >> 16 | (v != v ? 0x40u : 0u))};
    /* What is as far as from the largest number to infinity is infinite. */
    const double far = fabs(widened(above)) > 3.4e38 ? copysign(ldexp(1, 128), v) : (double)widened(above);
    const double down = fabs((double)v - (double)widened(below)), up = fabs(far - (double)v);
    return down < up || (down == up && below.bits % 2 == 0) ? below : above;
}
template <class T> constexpr gg_dtype dtype_of = sizeof(T) == 2 ? GG_BFLOAT16 : GG_FLOAT32;
/* What a result may be off by that is rounded to this type, beside its own rounding errors. */
template <class T> constexpr double rounding_of = sizeof(T) == 2 ? 1.0 / 256 : 0;

/* As numbers of this type hold them. */
template <class T> floats rounded(floats v) {
    for (float &x : v) x = widened(rounded_to<T>(x));
    return v;
}

/* Activations of a type on the device, which the tests have as floats. */
template <class T> struct device_batch : buffer<T> {
    explicit device_batch(size_t count, const char *name = "batch", size_t skip = 0) : buffer<T>(count, name, skip) {}
    explicit device_batch(const floats &from, const char *name = "batch", size_t skip = 0)
        : buffer<T>(from.size(), name, skip) {
        std::transform(from.begin(), from.end(), this->p, rounded_to<T>);
    }
    floats all() const {
        floats out(this->n);
        std::transform(this->p, this->p + this->n, out.begin(), [](T v) { return widened(v); });
        return out;
    }
};

inline gg_shape shape(std::initializer_list<int64_t> sizes) {
    gg_shape s = {};
    for (int64_t size : sizes) s.size[s.dims++] = size;
    return s;
}

inline size_t count(const gg_shape &s) { return (size_t)gg_shape_count(&s); }

/* The place of value i of sample n of a batch. */
inline size_t place(gg_layout layout, const gg_shape &s, int64_t batch, int64_t n, int64_t i) {
    const int64_t values = gg_shape_count(&s), channels = s.size[0], area = values / channels;
    if (layout == GG_LAYOUT_BATCH_LAST) return (size_t)(i * gg_lanes_padded(batch) + n);
    if (layout == GG_LAYOUT_NHWC) return (size_t)((n * area + i % area) * channels + i / area);
    return (size_t)(n * values + i);
}

/* A batch from PLAIN to a layout, padded with zeros, and back. */
inline floats laid(gg_layout layout, const gg_shape &s, int64_t batch, const floats &plain) {
    floats out(gg_format_bytes({GG_FLOAT32, layout}, &s, batch) / sizeof(float), 0.0f);
    for (int64_t n = 0; n < batch; ++n)
        for (int64_t i = 0; i < gg_shape_count(&s); ++i)
            out[place(layout, s, batch, n, i)] = plain[place(GG_LAYOUT_PLAIN, s, batch, n, i)];
    return out;
}

inline floats plain_of(gg_layout layout, const gg_shape &s, int64_t batch, const floats &values) {
    floats out((size_t)batch * count(s));
    for (int64_t n = 0; n < batch; ++n)
        for (int64_t i = 0; i < gg_shape_count(&s); ++i)
            out[place(GG_LAYOUT_PLAIN, s, batch, n, i)] = values[place(layout, s, batch, n, i)];
    return out;
}

/* One operation for training, with all inputs in float32, PLAIN. */
inline gg_op_desc describe(gg_op_kind kind, int64_t batch, std::vector<gg_shape> inputs, const gg_shape &output) {
    gg_op_desc desc = {};
    desc.kind = kind;
    desc.batch = batch;
    for (const gg_shape &s : inputs) {
        desc.offered[desc.inputs] = {GG_FLOAT32, GG_LAYOUT_PLAIN};
        desc.input[desc.inputs++] = s;
    }
    desc.output = output;
    desc.training = desc.input_grad = true;
    return desc;
}

/* What an operation is run with, and what it gives; all in PLAIN. */
struct cpu_run {
    std::vector<floats> input, parameter;
    std::vector<int32_t> numbers; /* the input `integers` */
    int integers = -1;
    floats grad_output;
    uint32_t rank = 0;
    uint64_t step = 0;
    bool evaluate = false;
    floats output;
    std::vector<floats> grad_input, gradient;
};

/* Runs the native table's operation, with scalar kernels, forward and (with grad_output) backward. */
inline void run_on_cpu(const gg_op_desc &given, cpu_run *run) {
    gg_device *device = scalar_device();
    gg_op *op = nullptr;
    gg_op_desc desc = given;
    if (run->integers >= 0) desc.offered[run->integers].dtype = GG_INT32;
    if (!CHECK_OK(device->table->create[desc.kind](device, &desc, &op))) return;
    gg_op_args args = {};
    std::vector<std::unique_ptr<lanes<float>>> arrays;
    auto array = [&](const floats &from) {
        arrays.push_back(std::make_unique<lanes<float>>(from));
        return arrays.back()->p;
    };
    auto blank = [&](gg_layout layout, const gg_shape &s) {
        return array(laid(layout, s, desc.batch, floats((size_t)desc.batch * count(s), 77.0f)));
    };
    auto result = [&](const float *from, gg_layout layout, const gg_shape &s) {
        const size_t n = gg_format_bytes({GG_FLOAT32, layout}, &s, desc.batch) / sizeof(float);
        return plain_of(layout, s, desc.batch, floats(from, from + n));
    };
    for (int i = 0; i < desc.inputs; ++i) {
        args.input[i] = i == run->integers
                            ? (const void *)run->numbers.data()
                            : array(laid(op->input[i].layout, desc.input[i], desc.batch, run->input[(size_t)i]));
        if (i != run->integers && desc.input_grad) args.grad_input[i] = blank(op->input[i].layout, desc.input[i]);
    }
    std::vector<const float *> parameters;
    std::vector<float *> gradients;
    for (const floats &p : run->parameter) {
        parameters.push_back(array(p));
        gradients.push_back(array(p));
    }
    args.parameter = parameters.data();
    args.gradient = gradients.data();
    args.output = blank(op->output.layout, desc.output);
    args.saved = array(floats(op->saved_bytes / sizeof(float) + 1));
    args.scratch = array(floats(op->scratch_bytes / sizeof(float) + 1));
    args.prepared = array(floats(op->prepared_bytes / sizeof(float) + 1));
    args.rank = run->rank;
    args.step = &run->step;
    args.evaluate = run->evaluate;
    if (op->type->prepare != nullptr) CHECK_OK(gg_op_prepare(op, &args, GG_PASS_FORWARD));
    CHECK_OK(gg_op_forward(op, &args));
    run->output = result((const float *)args.output, op->output.layout, desc.output);
    if (!run->grad_output.empty()) {
        args.grad_output = array(laid(op->output.layout, desc.output, desc.batch, run->grad_output));
        if (op->type->prepare != nullptr) CHECK_OK(gg_op_prepare(op, &args, GG_PASS_DATA));
        CHECK_OK(gg_op_backward(op, &args));
        run->grad_input.clear();
        for (int i = 0; i < desc.inputs; ++i)
            run->grad_input.push_back(args.grad_input[i] == nullptr ? floats()
                                                                    : result((const float *)args.grad_input[i],
                                                                             op->input[i].layout, desc.input[i]));
        run->gradient.clear();
        for (size_t i = 0; i < gradients.size(); ++i)
            run->gradient.push_back(floats(gradients[i], gradients[i] + run->parameter[i].size()));
    }
    gg_op_destroy(op);
    device->table->close(device);
}

#endif
