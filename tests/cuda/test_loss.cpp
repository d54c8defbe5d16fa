/* Losses against float64 by their formulas, and against the CPU's scalar kernels. */
#include "check_kernels.h"

namespace {

gg_device *cpu;
random_numbers numbers(4);

struct form {
    gg_loss_kind kind;
    int64_t batch, positions, features;
    float smoothing;
    bool ignores, class_weights, sample_weights, gradient;
};

/* PyTorch's formulas in float64. */
struct reference {
    double loss_sum = 0, divisor = 0;
    int64_t correct = 0, counted = 0;
    std::vector<double> gradient;
};

const int32_t ignored = -100;

reference compute(const form &f, const float *x, const void *targets, const float *class_weights,
                  const float *sample_weights) {
    reference r;
    const int64_t rows = f.batch * f.positions, features = f.features;
    r.gradient.assign((size_t)(rows * features), 0);
    const int32_t *classes = static_cast<const int32_t *>(targets);
    const float *values = static_cast<const float *>(targets);
    auto class_weight = [&](int64_t c) { return class_weights != nullptr ? (double)class_weights[c] : 1.0; };
    for (int64_t i = 0; i < rows; ++i) {
        if (f.kind == GG_LOSS_CROSS_ENTROPY && f.ignores && classes[i] == ignored) continue;
        r.divisor += f.kind == GG_LOSS_CROSS_ENTROPY ? class_weight(classes[i]) : 1;
        r.counted++;
    }
    const double divisor = r.divisor > 0 ? r.divisor : 1;
    for (int64_t i = 0; i < rows; ++i) {
        const float *row = x + i * features;
        double *gradient = r.gradient.data() + i * features;
        const double weight = sample_weights != nullptr ? sample_weights[i / f.positions] : 1;
        if (f.kind != GG_LOSS_CROSS_ENTROPY) {
            double sum = 0;
            bool right = f.kind == GG_LOSS_BINARY_CROSS_ENTROPY;
            for (int64_t k = 0; k < features; ++k) {
                const double v = row[k], t = values[i * features + k];
                const double p = 1 / (1 + exp(-v));
                const double share = weight / (double)features / divisor;
                if (f.kind == GG_LOSS_BINARY_CROSS_ENTROPY) {
                    sum += (v < 0 ? 0 : v) - v * t + log1p(exp(-fabs(v)));
                    gradient[k] = (p - t) * share;
                    right = right && (v > 0) == (t > 0.5);
                } else {
                    sum += (v - t) * (v - t);
                    gradient[k] = 2 * (v - t) * share;
                }
            }
            r.loss_sum += weight * sum / (double)features;
            r.correct += right;
            continue;
        }
        const int32_t target = classes[i];
        if (f.ignores && target == ignored) continue;
        double top = -INFINITY, sum = 0, spread = 0, weights = 0;
        int64_t first = 0;
        for (int64_t k = 0; k < features; ++k)
            if (row[k] > top) top = row[k], first = k;
        for (int64_t k = 0; k < features; ++k) sum += exp(row[k] - top);
        for (int64_t k = 0; k < features; ++k) {
            spread += class_weight(k) * (log(sum) - (row[k] - top));
            weights += class_weight(k);
        }
        const double one = (1 - (double)f.smoothing) * class_weight(target) * weight;
        const double even = (double)f.smoothing / (double)features * weight;
        r.loss_sum += one * (log(sum) - (row[target] - top)) + even * spread;
        r.correct += first == target;
        for (int64_t k = 0; k < features; ++k) {
            const double p = exp(row[k] - top) / sum;
            gradient[k] = (one * (p - (k == target)) + even * (weights * p - class_weight(k))) / divisor;
        }
    }
    return r;
}

void check_loss(const form &f) {
    const size_t rows = (size_t)(f.batch * f.positions), n = rows * (size_t)f.features;
    const bool classes = f.kind == GG_LOSS_CROSS_ENTROPY;
    std::vector<float> values = numbers.floats(n, -4, 4), targets = numbers.floats(n, 0, 1);
    for (float &v : values) v = roundf(v * 4) / 4; /* so that some are equal */
    std::vector<int32_t> chosen(rows);
    for (int32_t &t : chosen) {
        t = (int32_t)(numbers.next() % (uint32_t)f.features);
        if (f.ignores && numbers.next() % 3 == 0) t = ignored;
    }
    if (f.kind == GG_LOSS_BINARY_CROSS_ENTROPY)
        for (float &t : targets) t = t > 0.5f ? 1.0f : 0.0f;
    std::vector<float> class_weights = numbers.floats((size_t)f.features, 0, 2);
    if (!class_weights.empty()) class_weights[0] = 0;
    buffer<float> x(values, "prediction"), real(targets, "targets"), gradient(n, "gradient");
    buffer<int32_t> whole(chosen, "targets");
    buffer<float> of_class(class_weights, "class weights");
    buffer<float> of_sample(numbers.floats((size_t)f.batch, 0, 2), "sample weights");
    buffer<gg_loss_result> result(1, "result");
    gg_loss_args a = {};
    a.loss.kind = f.kind;
    a.loss.label_smoothing = f.smoothing;
    a.loss.ignores = f.ignores;
    a.loss.ignore_index = f.ignores ? ignored : 0;
    a.loss.class_weights = f.class_weights ? of_class.p : nullptr;
    a.layout = GG_LAYOUT_PLAIN;
    a.batch = f.batch;
    a.positions = f.positions;
    a.features = f.features;
    a.prediction = x;
    a.targets = classes ? (const void *)whole.p : (const void *)real.p;
    a.sample_weights = f.sample_weights ? of_sample.p : nullptr;
    a.gradient = f.gradient ? gradient.p : nullptr;
    a.result = result;
    buffer<double> scratch(gg_cuda_loss_scratch(&a), "scratch");
    gg_cuda_loss(nullptr, &a, scratch);
    const reference wanted = compute(f, x, a.targets, a.loss.class_weights, a.sample_weights);
    bool good = CHECK_NEAR(result[0].loss_sum, wanted.loss_sum, 1e-6 * (1 + fabs(wanted.loss_sum)));
    good = CHECK_NEAR(result[0].divisor, wanted.divisor, 1e-12 * (1 + wanted.divisor)) && good;
    good = CHECK_INT(result[0].correct, wanted.correct) && good;
    good = CHECK_INT(result[0].counted, wanted.counted) && good;
    if (f.gradient) {
        std::vector<float> scaled = gradient.all();
        std::vector<double> to = wanted.gradient;
        const double divisor = wanted.divisor > 0 ? wanted.divisor : 1; /* so that the tolerance means something */
        for (size_t i = 0; i < n; ++i) scaled[i] = (float)(scaled[i] * divisor), to[i] *= divisor;
        good = CHECK(near(scaled, to, 2e-6, "gradient")) && good;
    }
    /* The CPU's own. */
    lanes<float> x_cpu(values), real_cpu(targets), gradient_cpu((std::vector<float>(n)));
    gg_loss_result of_cpu = {};
    gg_loss_args c = a;
    c.prediction = x_cpu;
    c.targets = classes ? (const void *)chosen.data() : (const void *)real_cpu.p;
    c.gradient = f.gradient ? gradient_cpu.p : nullptr;
    c.result = &of_cpu;
    gg_backend_native.loss(cpu, &c);
    good = CHECK_NEAR(result[0].loss_sum, of_cpu.loss_sum, 1e-6 * (1 + fabs(of_cpu.loss_sum))) && good;
    good = CHECK_INT(result[0].correct, of_cpu.correct) && good;
    if (!good)
        fprintf(stderr, "kind %d, batch %d, positions %d, features %d, smoothing %g, ignores %d, weights %d %d\n",
                (int)f.kind, (int)f.batch, (int)f.positions, (int)f.features, (double)f.smoothing, f.ignores,
                f.class_weights, f.sample_weights);
}

void test_strange() {
    /* NaN in a row: its loss and the sum are NaN, and it is not counted as right. */
    for (gg_loss_kind kind : {GG_LOSS_CROSS_ENTROPY, GG_LOSS_BINARY_CROSS_ENTROPY, GG_LOSS_MEAN_SQUARED_ERROR}) {
        buffer<float> x(numbers.floats(20)), gradient(20);
        buffer<int32_t> classes(std::vector<int32_t>{3, 3});
        buffer<float> values(std::vector<float>(20, 1.0f));
        buffer<gg_loss_result> result(1);
        x[13] = NAN;
        gg_loss_args a = {};
        a.loss.kind = kind;
        a.batch = 2, a.positions = 1, a.features = 10;
        a.prediction = x;
        a.targets = kind == GG_LOSS_CROSS_ENTROPY ? (const void *)classes.p : (const void *)values.p;
        a.gradient = gradient;
        a.result = result;
        buffer<double> scratch(gg_cuda_loss_scratch(&a));
        gg_cuda_loss(nullptr, &a, scratch);
        CHECK(result[0].loss_sum != result[0].loss_sum);
        CHECK(result[0].correct <= 1);
        CHECK(gradient[13] != gradient[13]);
        CHECK(gradient[3] == gradient[3]);
    }
    /* Large logits: no overflow. */
    buffer<float> x(std::vector<float>{1e4f, -1e4f, 0, 3e38f, -3e38f, 0});
    buffer<int32_t> classes(std::vector<int32_t>{0, 0});
    buffer<float> gradient(6);
    buffer<gg_loss_result> result(1);
    gg_loss_args a = {};
    a.batch = 2, a.positions = 1, a.features = 3;
    a.prediction = x;
    a.targets = classes.p;
    a.gradient = gradient;
    a.result = result;
    buffer<double> scratch(gg_cuda_loss_scratch(&a));
    gg_cuda_loss(nullptr, &a, scratch);
    CHECK_NEAR(result[0].loss_sum, 0, 0);
    CHECK_INT(result[0].correct, 2);
    for (size_t i = 0; i < 6; ++i) CHECK_NEAR(gradient[i], 0, 0);
    /* All targets have weight 0: smoothing leaves a sum, but nothing counts. */
    buffer<float> of_class(std::vector<float>{0, 1, 2});
    a.loss.class_weights = of_class.p;
    a.loss.label_smoothing = 0.25f;
    for (size_t i = 0; i < 6; ++i) x[i] = (float)i;
    gg_cuda_loss(nullptr, &a, scratch);
    CHECK_NEAR(result[0].divisor, 0, 0);
    CHECK(result[0].loss_sum > 0);
    for (size_t i = 0; i < 6; ++i) CHECK_NEAR(gradient[i], 0, 0);
}

} // namespace

int main() {
    cpu = scalar_device();
    const gg_loss_kind ce = GG_LOSS_CROSS_ENTROPY;
    for (gg_loss_kind kind : {ce, GG_LOSS_BINARY_CROSS_ENTROPY, GG_LOSS_MEAN_SQUARED_ERROR})
        for (int64_t features : {1, 10, 33, 1100}) {
            const int64_t batch = features > 1000 ? 2 : 9;
            check_loss({kind, 1, 1, features, 0, false, false, false, true});
            check_loss({kind, batch, 1, features, 0, false, false, false, false});
            check_loss({kind, batch, 1, features, 0, false, false, true, true});
        }
    check_loss({ce, 70, 1, 3, 0, false, false, false, true}); /* several blocks */
    for (int64_t features : {5, 1030})
        for (int64_t positions : {1, 4})
            for (float smoothing : {0.0f, 0.1f})
                for (int bits = 0; bits < 8; ++bits)
                    check_loss({ce, features > 1000 ? 2 : 6, positions, features, smoothing, (bits & 1) != 0,
                                (bits & 2) != 0, (bits & 4) != 0, true});
    test_strange();
    CHECK_CLEAN();
    gg_backend_native.close(cpu);
    return CHECK_RESULT;
}
