/* Kernels on arenas: the bits of the CPU's scalar kernels, at all sizes and alignments. */
#include "check_kernels.h"

#include <memory>

namespace {

gg_device *cpu;
random_numbers numbers(1);

/* Bytes of an array of n values of the wire's type. */
struct wire_buffer {
    buffer<unsigned char> bytes;
    lanes<unsigned char> for_cpu;
    static std::vector<unsigned char> values(gg_dtype wire, size_t n) {
        std::vector<unsigned char> out(n * gg_dtype_size(wire));
        if (wire == GG_BFLOAT16) {
            const std::vector<uint16_t> v = numbers.narrow(n);
            memcpy(out.data(), v.data(), out.size());
        } else {
            const std::vector<float> v = numbers.floats(n);
            memcpy(out.data(), v.data(), out.size());
        }
        return out;
    }
    wire_buffer(gg_dtype wire, size_t n, size_t skip, const char *name)
        : wire_buffer(values(wire, n), skip * gg_dtype_size(wire), name) {}
    wire_buffer(const std::vector<unsigned char> &v, size_t skip, const char *name)
        : bytes(v, name, skip), for_cpu(v) {}
};

struct pair {
    buffer<float> gpu;
    lanes<float> for_cpu;
    pair(const std::vector<float> &v, size_t skip, const char *name) : gpu(v, name, skip), for_cpu(v) {}
    bool equal(const char *what) { return same(gpu.all(), for_cpu.all(), what); }
};

/* One update by both. have: bits of what is received and copied. */
void check_update(gg_update_rule rule, gg_dtype wire, unsigned have, size_t n, size_t skip, bool strange) {
    auto values = [&](float low, float high) {
        return strange ? numbers.strange_floats(n) : numbers.floats(n, low, high);
    };
    pair grad(values(-1, 1), skip, "grad"), weight(values(-1, 1), skip, "weight");
    pair momentum(values(-1, 1), skip, "momentum"), square(values(0, 1), skip, "square");
    wire_buffer weight_after(wire, n, skip, "weight_after"), momentum_before(wire, n, skip, "momentum_before"),
        square_before(wire, n, skip, "square_before"), weight_copy(wire, n, skip, "weight_copy"),
        momentum_copy(wire, n, skip, "momentum_copy"), square_copy(wire, n, skip, "square_copy");
    gg_update_args a = {};
    a.rule = rule;
    a.wire = wire;
    a.grad_scale = 0.7f;
    a.lr = 0.1f;
    a.mu = 0.9f;
    a.weight_decay = have == 0 && !strange ? 0.0f : 0.01f; /* a plain update without has a way of its own */
    a.d_share = 0.1f;
    a.beta2 = 0.99f;
    a.square_share = 0.01f;
    a.mean_share = 0.3f;
    a.root_scale = 1.7f;
    a.eps = 1e-6f;
    a.weight_factor = 0.999f;
    const bool stateful = GG_UPDATE_MOMENTS(rule) > 0, squares = GG_UPDATE_MOMENTS(rule) > 1;
    gg_update_args g = a, c = a;
    g.n = n;
    c.n = padded(n);
    g.grad = grad.gpu, c.grad = grad.for_cpu;
    g.weight = weight.gpu, c.weight = weight.for_cpu;
    if (stateful) g.momentum = momentum.gpu, c.momentum = momentum.for_cpu;
    if (squares) g.square = square.gpu, c.square = square.for_cpu;
    if (have & 1) g.weight_after = weight_after.bytes.p, c.weight_after = weight_after.for_cpu.p;
    if (have & 2 && stateful)
        g.momentum_before = momentum_before.bytes.p, c.momentum_before = momentum_before.for_cpu.p;
    if (have & 4 && squares) g.square_before = square_before.bytes.p, c.square_before = square_before.for_cpu.p;
    if (have & 8) {
        g.weight_copy = weight_copy.bytes.p, c.weight_copy = weight_copy.for_cpu.p;
        if (stateful) g.momentum_copy = momentum_copy.bytes.p, c.momentum_copy = momentum_copy.for_cpu.p;
        if (squares) g.square_copy = square_copy.bytes.p, c.square_copy = square_copy.for_cpu.p;
    }
    gg_cuda_update(nullptr, 1, &g);
    gg_backend_native.update(cpu, 1, &c);
    bool good = weight.equal("weight") && momentum.equal("momentum") && square.equal("square");
    good = good && same(weight_copy.bytes.all(), weight_copy.for_cpu.all(), "weight_copy") &&
           same(momentum_copy.bytes.all(), momentum_copy.for_cpu.all(), "momentum_copy") &&
           same(square_copy.bytes.all(), square_copy.for_cpu.all(), "square_copy");
    if (!CHECK(good))
        fprintf(stderr, "rule %d, wire %d, have %u, n %zu, skip %zu\n", (int)rule, (int)wire, have, n, skip);
}

void test_update() {
    for (int i = 0; i < GG_UPDATE_RULE_COUNT; ++i) {
        const gg_update_rule rule = (gg_update_rule)i;
        for (size_t n : some_sizes) check_update(rule, GG_FLOAT32, 15, n, 0, false);
        for (gg_dtype wire : {GG_FLOAT32, GG_BFLOAT16}) {
            for (unsigned have = 0; have < 16; ++have) check_update(rule, wire, have, 67, 0, false);
            for (size_t skip = 1; skip < 5; ++skip) check_update(rule, wire, 15, 67, skip, false);
        }
        check_update(rule, GG_FLOAT32, 0, 3000, 0, true);
    }
}

/* An update's arrays; what it writes is its own. */
struct update_arrays {
    buffer<float> grad, weight, momentum, square;
    wire_buffer after, momentum_before, square_before, weight_copy, momentum_copy, square_copy;
    update_arrays(gg_dtype wire, size_t n, size_t skip)
        : grad(numbers.floats(n), "grad", skip), weight(numbers.floats(n), "weight", skip),
          momentum(numbers.floats(n), "momentum", skip), square(numbers.floats(n, 0, 1), "square", skip),
          after(wire, n, skip, "weight_after"), momentum_before(wire, n, skip, "momentum_before"),
          square_before(wire, n, skip, "square_before"), weight_copy(wire, n, skip, "weight_copy"),
          momentum_copy(wire, n, skip, "momentum_copy"), square_copy(wire, n, skip, "square_copy") {}
    gg_update_args args(gg_update_rule rule, gg_dtype wire, size_t n, unsigned have) {
        gg_update_args a = {};
        a.n = n, a.rule = rule, a.wire = wire;
        a.grad = grad.p, a.weight = weight.p;
        const bool stateful = GG_UPDATE_MOMENTS(rule) > 0, squares = GG_UPDATE_MOMENTS(rule) > 1;
        if (stateful) a.momentum = momentum.p;
        if (squares) a.square = square.p;
        if (have & 1) a.weight_after = after.bytes.p;
        if (have & 2 && stateful) a.momentum_before = momentum_before.bytes.p;
        if (have & 4 && squares) a.square_before = square_before.bytes.p;
        if (have & 8) {
            a.weight_copy = weight_copy.bytes.p;
            if (stateful) a.momentum_copy = momentum_copy.bytes.p;
            if (squares) a.square_copy = square_copy.bytes.p;
        }
        return a;
    }
    bool equal(update_arrays &o) {
        return same(weight.all(), o.weight.all(), "weight") && same(momentum.all(), o.momentum.all(), "momentum") &&
               same(square.all(), o.square.all(), "square") &&
               same(weight_copy.bytes.all(), o.weight_copy.bytes.all(), "weight_copy") &&
               same(momentum_copy.bytes.all(), o.momentum_copy.bytes.all(), "momentum_copy") &&
               same(square_copy.bytes.all(), o.square_copy.bytes.all(), "square_copy");
    }
};

/* Several in one call, of other rules, sizes and arrays: each as alone. odd: one is neither aligned nor of fours. */
void test_updates(gg_dtype wire, size_t skip, bool odd) {
    const gg_update_rule rules[] = {GG_UPDATE_MOMENTUM, GG_UPDATE_PLAIN, GG_UPDATE_LION, GG_UPDATE_ADAM,
                                    GG_UPDATE_ADAM_MEAN};
    enum { COUNT = 37 };
    std::vector<std::unique_ptr<update_arrays>> arrays[2];
    gg_update_args all[2][COUNT] = {};
    for (int i = 0; i < COUNT; ++i) {
        const bool other = odd && i % 7 == 3;
        const size_t n = (i % 5 == 0 ? 1100 : 4 * (size_t)(i + 1)) + (other ? 1 : 0);
        const gg_update_rule rule = i < 20 ? rules[i % 3] : rules[i % 5];
        for (int j = 0; j < 2; ++j) {
            numbers = random_numbers(100 + (uint64_t)i); /* the same for both */
            arrays[j].push_back(std::make_unique<update_arrays>(wire, n, other ? skip + 1 : skip));
            gg_update_args a = arrays[j].back()->args(rule, wire, n, (unsigned)i % 16);
            a.grad_scale = 0.5f + 0.01f * (float)i, a.lr = 0.1f, a.mu = 0.9f, a.weight_decay = 0.01f;
            a.d_share = 0.1f, a.beta2 = 0.99f, a.square_share = 0.01f, a.mean_share = 0.3f, a.root_scale = 1.7f,
            a.eps = 1e-6f;
            a.weight_factor = 0.999f;
            all[j][i] = a;
        }
    }
    gg_cuda_update(nullptr, COUNT, all[0]);
    for (int i = 0; i < COUNT; ++i) gg_cuda_update(nullptr, 1, &all[1][i]);
    for (int i = 0; i < COUNT; ++i)
        if (!CHECK(arrays[0][i]->equal(*arrays[1][i]))) fprintf(stderr, "update %d of one call\n", i);
}

/* A step of Adam in float64 by the formulas of backend.h, so that not only two codes of one hand agree. */
void test_update_formula() {
    const size_t n = 100;
    buffer<float> grad(numbers.floats(n)), weight(numbers.floats(n)), momentum(numbers.floats(n)),
        square(numbers.floats(n, 0, 1)), after(numbers.floats(n)), copy(n);
    const std::vector<float> w = weight.all(), m = momentum.all(), s = square.all();
    gg_update_args a = {};
    a.n = n;
    a.rule = GG_UPDATE_ADAM;
    a.grad = grad, a.weight = weight, a.momentum = momentum, a.square = square;
    a.weight_after = after.p, a.weight_copy = copy.p;
    a.grad_scale = 0.5f, a.lr = 0.01f, a.mu = 0.9f, a.weight_decay = 0.1f, a.d_share = 0.1f, a.beta2 = 0.99f;
    a.square_share = 0.01f, a.root_scale = 3, a.eps = 1e-3f, a.weight_factor = 0.99f;
    gg_cuda_update(nullptr, 1, &a);
    std::vector<double> wanted(n);
    for (size_t i = 0; i < n; ++i) {
        const double d = 0.5 * grad[i] + 0.1 * w[i], m1 = 0.9 * m[i] + 0.1 * d, s1 = 0.99 * s[i] + 0.01 * d * d;
        wanted[i] = 0.99 * w[i] - 0.01 * m1 / (sqrt(s1) * 3 + 1e-3) + (after[i] - w[i]) / 2;
    }
    CHECK(near(weight.all(), wanted, 1e-6, "Adam"));
    CHECK(same(copy.all(), weight.all(), "copy"));
}

void check_mixes(size_t n, gg_dtype wire, size_t skip) {
    pair base(numbers.floats(n), skip, "base"), sent(numbers.floats(n), skip, "sent");
    pair out(numbers.floats(n), skip, "out");
    wire_buffer received(wire, n, skip, "received");
    gg_cuda_mix(nullptr, n, wire, 0.3f, base.gpu, received.bytes.p, sent.gpu, out.gpu);
    gg_backend_native.mix(cpu, padded(n), wire, 0.3f, base.for_cpu, received.for_cpu.p, sent.for_cpu, out.for_cpu);
    CHECK(out.equal("mix"));
    gg_cuda_mix(nullptr, n, wire, 0.5f, base.gpu, received.bytes.p, sent.gpu, base.gpu);
    gg_backend_native.mix(cpu, padded(n), wire, 0.5f, base.for_cpu, received.for_cpu.p, sent.for_cpu, base.for_cpu);
    CHECK(base.equal("mix in place"));
}

void check_types(size_t n, size_t skip) {
    pair a(numbers.strange_floats(n), skip, "a"), out(numbers.floats(n), skip, "out");
    buffer<uint16_t> narrow(n, "narrow", skip), difference(n, "difference", skip);
    lanes<uint16_t> narrow_cpu((std::vector<uint16_t>(n))), difference_cpu((std::vector<uint16_t>(n)));
    gg_cuda_narrow(nullptr, n, a.gpu, narrow);
    gg_backend_native.narrow(cpu, padded(n), a.for_cpu, narrow_cpu);
    CHECK(same(narrow.all(), narrow_cpu.all(), "narrow"));
    gg_cuda_widen(nullptr, n, narrow, out.gpu);
    gg_backend_native.widen(cpu, padded(n), narrow_cpu, out.for_cpu);
    CHECK(out.equal("widen"));
    gg_cuda_widen_add(nullptr, n, narrow, out.gpu);
    gg_backend_native.widen_add(cpu, padded(n), narrow_cpu, out.for_cpu);
    CHECK(out.equal("widen_add"));
    pair tame(numbers.floats(n), skip, "tame");
    gg_cuda_narrow(nullptr, n, tame.gpu, narrow);
    gg_backend_native.narrow(cpu, padded(n), tame.for_cpu, narrow_cpu);
    gg_cuda_narrow_difference(nullptr, n, tame.gpu, narrow, difference);
    gg_backend_native.narrow_difference(cpu, padded(n), tame.for_cpu, narrow_cpu, difference_cpu);
    CHECK(same(difference.all(), difference_cpu.all(), "narrow_difference"));
}

void check_sums(size_t n, int sources, size_t skip) {
    std::vector<pair *> of(0);
    std::vector<buffer<uint16_t> *> narrow_of(0);
    std::vector<lanes<uint16_t> *> narrow_for_cpu(0);
    std::vector<const float *> gpu, for_cpu;
    std::vector<const uint16_t *> narrow, narrow_cpu;
    for (int i = 0; i < sources; ++i) {
        of.push_back(new pair(numbers.floats(n), skip, "source"));
        const std::vector<uint16_t> v = numbers.narrow(n);
        narrow_of.push_back(new buffer<uint16_t>(v, "narrow source", skip));
        narrow_for_cpu.push_back(new lanes<uint16_t>(v));
        gpu.push_back(of.back()->gpu);
        for_cpu.push_back(of.back()->for_cpu);
        narrow.push_back(*narrow_of.back());
        narrow_cpu.push_back(*narrow_for_cpu.back());
    }
    const std::vector<float> scale = numbers.floats((size_t)sources);
    pair out(numbers.floats(n), skip, "out");
    buffer<uint16_t> rounded(n, "rounded", skip);
    lanes<uint16_t> rounded_cpu(std::vector<uint16_t>(n, 0));
    gg_cuda_weighted_sum(nullptr, n, sources, gpu.data(), scale.data(), out.gpu);
    gg_backend_native.weighted_sum(cpu, padded(n), sources, for_cpu.data(), scale.data(), out.for_cpu);
    CHECK(out.equal("weighted_sum"));
    pair &last = *of.back(); /* over a source */
    gg_cuda_weighted_sum(nullptr, n, sources, gpu.data(), scale.data(), last.gpu);
    gg_backend_native.weighted_sum(cpu, padded(n), sources, for_cpu.data(), scale.data(), last.for_cpu);
    CHECK(last.equal("weighted_sum over a source"));
    for (int form = 1; form < 4; ++form) { /* out, rounded, both */
        float *const to = form & 1 ? out.gpu.p : nullptr, *const to_cpu = form & 1 ? out.for_cpu.p : nullptr;
        gg_cuda_narrow_sum(nullptr, n, sources, narrow.data(), scale.data(), to, form & 2 ? rounded.p : nullptr);
        gg_backend_native.narrow_sum(cpu, padded(n), sources, narrow_cpu.data(), scale.data(), to_cpu,
                                     form & 2 ? rounded_cpu.p : nullptr);
        CHECK(out.equal("narrow_sum"));
        if (form & 2) CHECK(same(rounded.all(), rounded_cpu.all(), "rounded"));
    }
    for (int i = 0; i < sources; ++i) {
        delete of[(size_t)i];
        delete narrow_of[(size_t)i];
        delete narrow_for_cpu[(size_t)i];
    }
}

} // namespace

int main() {
    cpu = scalar_device();
    test_update();
    for (gg_dtype wire : {GG_FLOAT32, GG_BFLOAT16})
        for (size_t skip : {0, 1})
            for (bool odd : {false, true}) test_updates(wire, skip, odd);
    test_update_formula();
    CHECK_CLEAN();
    for (size_t n : some_sizes) {
        for (gg_dtype wire : {GG_FLOAT32, GG_BFLOAT16}) check_mixes(n, wire, 0);
        check_types(n, 0);
        check_sums(n, 3, 0);
    }
    for (size_t skip = 1; skip < 4; ++skip) {
        check_mixes(67, GG_FLOAT32, skip);
        check_mixes(67, GG_BFLOAT16, skip);
        check_types(67, skip);
        check_sums(67, 2, skip);
    }
    check_sums(40, 1, 0);
    check_sums(40, 17, 0);
    check_sums(40, 70, 0);
    CHECK_CLEAN();
    gg_backend_native.close(cpu);
    return CHECK_RESULT;
}
