/* Attention, LSTM and tables of rows: the kernels, with the products between them made here. */
#include "check_operations.h"

extern "C" {
#include "base/random.h"
}

namespace {

/* An element as it is stored, float32 or bfloat16. */
template <typename T> T stored(float v);
template <> float stored<float>(float v) { return v; }
template <> uint16_t stored<uint16_t>(float v) {
    uint32_t bits;
    memcpy(&bits, &v, sizeof bits);
    return (uint16_t)((bits + 0x7fffu + (bits >> 16 & 1u)) >> 16);
}
inline float loaded(float v) { return v; }
inline float loaded(uint16_t v) {
    const uint32_t bits = (uint32_t)v << 16;
    float wide;
    memcpy(&wide, &bits, sizeof wide);
    return wide;
}

/* ------------------------------------------------------------------------------------------ attention */

struct attention_case {
    int64_t batch, positions, heads, size;
    bool causal;
    float probability;
    std::vector<int32_t> lengths;
    int64_t queries; /* in a block */
};

/* The whole operation: blocks of queries of all heads, as a backend would run it. */
void test_attention(const attention_case &c) {
    const int64_t all = c.heads * c.size, rows = c.batch * c.heads, row = (c.positions + 3) / 4 * 4;
    gg_op_desc desc = describe(GG_OP_ATTENTION, c.batch, {shape({c.positions, 3 * all})}, shape({c.positions, all}));
    cpu_run cpu;
    const size_t n = (size_t)(c.batch * c.positions * all);
    random_numbers r(n + (size_t)c.causal);
    cpu.input = {r.floats(3 * n, -2, 2)};
    cpu.grad_output = r.floats(n);
    cpu.rank = 5;
    cpu.step = 1234567;
    if (!c.lengths.empty()) {
        desc.inputs = 2;
        desc.input[1] = shape({1});
        desc.offered[1] = {GG_INT32, GG_LAYOUT_PLAIN};
        cpu.numbers = c.lengths;
        cpu.integers = 1;
        cpu.input.push_back({});
    }
    desc.attention.heads = c.heads;
    desc.attention.causal = c.causal;
    desc.probability = c.probability;
    desc.seed = 99;
    run_on_cpu(desc, &cpu);

    /* Query, key or value (0, 1, 2) of a position; a place in the output. */
    auto in_at = [&](int64_t number, int64_t t, int what, int64_t f) {
        return (size_t)(((number / c.heads * c.positions + t) * 3 + what) * all + number % c.heads * c.size + f);
    };
    auto out_at = [&](int64_t number, int64_t t, int64_t f) {
        return (size_t)((number / c.heads * c.positions + t) * all + number % c.heads * c.size + f);
    };
    const floats &x = cpu.input[0], &dy = cpu.grad_output;
    buffer<float> saved((size_t)(2 * rows * c.positions), "saved");
    buffer<uint32_t> bad(1, "bad");
    buffer<int32_t> lengths(c.lengths, "lengths");
    bad[0] = UINT32_MAX;
    gg_cuda_attention_args a = {};
    a.heads = c.heads;
    a.positions = c.positions;
    a.row = row;
    a.causal = c.causal;
    a.scale = 1.0f / sqrtf((float)c.size);
    a.lengths = c.lengths.empty() ? nullptr : lengths.p;
    buffer<uint64_t> step(std::vector<uint64_t>{cpu.step}, "step");
    a.draw = {desc.seed, step, cpu.rank, c.probability};
    a.saved = saved;
    a.bad = bad;
    doubles out(n), grad(3 * n);
    for (bool backward : {false, true}) {
        for (int64_t head = 0; head < rows; head += 2)
            for (int64_t first = 0; first < c.positions; first += c.queries) {
                a.first_head = head;
                a.count = std::min<int64_t>(2, rows - head);
                a.first = first;
                a.queries = std::min(c.queries, c.positions - first);
                a.matrix = a.queries * row + 4;
                buffer<float> scores((size_t)(a.count * a.matrix), "scores"), error(scores.n, "error");
                for (int64_t i = 0; i < a.count; ++i)
                    for (int64_t q = 0; q < a.queries; ++q)
                        for (int64_t j = 0; j < c.positions; ++j) {
                            double product = 0, through = 0;
                            for (int64_t f = 0; f < c.size; ++f) {
                                product +=
                                    (double)x[in_at(head + i, first + q, 0, f)] * (double)x[in_at(head + i, j, 1, f)];
                                through +=
                                    (double)dy[out_at(head + i, first + q, f)] * (double)x[in_at(head + i, j, 2, f)];
                            }
                            scores[(size_t)(i * a.matrix + q * row + j)] = (float)product;
                            error[(size_t)(i * a.matrix + q * row + j)] = (float)through;
                        }
                a.scores = scores;
                a.error = error;
                a.weights = scores;
                a.score_error = error;
                if (backward) gg_cuda_attention_backward(nullptr, &a);
                else gg_cuda_attention(nullptr, &a);
                for (int64_t i = 0; i < a.count; ++i)
                    for (int64_t q = 0; q < a.queries; ++q)
                        for (int64_t j = 0; j < c.positions; ++j) {
                            const double weight = (double)scores[(size_t)(i * a.matrix + q * row + j)];
                            const double d = (double)error[(size_t)(i * a.matrix + q * row + j)];
                            for (int64_t f = 0; f < c.size; ++f) {
                                if (!backward) {
                                    out[out_at(head + i, first + q, f)] += weight * (double)x[in_at(head + i, j, 2, f)];
                                    continue;
                                }
                                grad[in_at(head + i, j, 2, f)] += weight * (double)dy[out_at(head + i, first + q, f)];
                                grad[in_at(head + i, first + q, 0, f)] += d * (double)x[in_at(head + i, j, 1, f)];
                                grad[in_at(head + i, j, 1, f)] += d * (double)x[in_at(head + i, first + q, 0, f)];
                            }
                        }
            }
    }
    CHECK(near(out, cpu.output, 2e-6, "attention"));
    CHECK(near(grad, cpu.grad_input[0], 5e-6, "attention, error"));
    CHECK_INT(bad[0], UINT32_MAX);
    CHECK_CLEAN();
}

/* Lengths that are not allowed are clamped, and the first sample is reported. */
void test_bad_lengths() {
    buffer<float> scores(std::vector<float>(4 * 3, 0.5f), "scores");
    buffer<int32_t> lengths(std::vector<int32_t>{3, 0, 4, 2}, "lengths");
    buffer<uint32_t> bad(1, "bad");
    bad[0] = UINT32_MAX;
    gg_cuda_attention_args a = {};
    a.heads = 1;
    a.positions = 3;
    a.count = 4;
    a.queries = 1;
    a.matrix = a.row = 3;
    a.scale = 1;
    a.lengths = lengths;
    a.scores = scores;
    a.weights = scores;
    a.bad = bad;
    gg_cuda_attention(nullptr, &a);
    const float third = 1.0f / 3;
    CHECK(
        near(scores.all(), floats{third, third, third, 1, 0, 0, third, third, third, 0.5f, 0.5f, 0}, 1e-7, "lengths"));
    CHECK_INT(bad[0], 1);
    CHECK_CLEAN();
}

/* Rows that a whole block computes, in double. */
void test_long_rows(int64_t positions, int64_t keys, float probability) {
    const int64_t queries = 3, number = 4, first = 5;
    const gg_random_key key = {7, GG_RANDOM_DROPOUT, 1, 2};
    random_numbers r((uint64_t)positions);
    const floats scores = r.floats((size_t)(queries * positions), -9, 9), error = r.floats(scores.size());
    buffer<float> s(scores, "scores"), again(scores, "scores again"), d(error, "error");
    buffer<float> saved((size_t)(2 * (number + 1) * positions), "saved");
    buffer<int32_t> lengths(std::vector<int32_t>((size_t)number + 1, (int32_t)keys), "lengths");
    gg_cuda_attention_args a = {};
    a.heads = 1;
    a.positions = a.row = positions;
    a.first_head = number;
    a.count = 1;
    a.first = first;
    a.queries = queries;
    a.scale = 0.5f;
    a.lengths = lengths;
    buffer<uint64_t> step(std::vector<uint64_t>{key.step}, "step");
    a.draw = {key.seed, step, key.rank, probability};
    a.scores = s;
    a.error = d;
    a.weights = s;
    a.score_error = d;
    a.saved = saved;
    gg_cuda_attention(nullptr, &a);
    a.scores = again;
    a.weights = again;
    gg_cuda_attention_backward(nullptr, &a);
    CHECK(near(again.all(), s.all(), 1e-7, "weights, again"));
    for (int64_t q = 0; q < queries; ++q) {
        const float *row = scores.data() + q * positions;
        double top = -INFINITY, sum = 0, dot = 0;
        for (int64_t j = 0; j < keys; ++j) top = std::max(top, (double)row[j]);
        for (int64_t j = 0; j < keys; ++j) sum += exp(((double)row[j] - top) / 2);
        auto weight = [&](int64_t j) { return exp(((double)row[j] - top) / 2) / sum; };
        auto factor = [&](int64_t j) {
            uint32_t word[4];
            const int64_t block = (number * positions + first + q) * ((positions + 3) / 4) + j / 4;
            gg_random_block(&key, (uint32_t)block, word);
            return probability > 0 && word[j % 4] < 0x40000000u ? 0 : 1 / (1 - (double)probability);
        };
        auto through = [&](int64_t j) { return factor(j) * (double)error[(size_t)(q * positions + j)]; };
        for (int64_t j = 0; j < keys; ++j) dot += weight(j) * through(j);
        for (int64_t j = 0; j < positions; ++j) {
            const size_t at = (size_t)(q * positions + j);
            CHECK_NEAR(s[at], j < keys ? weight(j) * factor(j) : 0, 1e-6 * weight(j));
            CHECK_NEAR(d[at], j < keys ? weight(j) * (through(j) - dot) / 2 : 0, 2e-6 * weight(j));
        }
    }
    CHECK_CLEAN();
}

/* ------------------------------------------------------------------------------------------ LSTM */

/* c (m, n) += a (m, k) times b (k, n), whose steps are given. */
void add_product(int64_t m, int64_t n, int64_t k, const float *a, int64_t a_row, int64_t a_step, const float *b,
                 int64_t b_row, int64_t b_step, float *c, int64_t c_row) {
    for (int64_t i = 0; i < m; ++i)
        for (int64_t j = 0; j < n; ++j) {
            double sum = (double)c[i * c_row + j];
            for (int64_t l = 0; l < k; ++l)
                sum += (double)a[i * a_row + l * a_step] * (double)b[l * b_row + j * b_step];
            c[i * c_row + j] = (float)sum;
        }
}

/* One layer, forward and backward, with the products made here; steps: those of the recurrent weights by the kernels.
 */
void test_lstm(int64_t batch, int64_t positions, int64_t inputs, int64_t hidden, bool steps = false) {
    const int64_t gates = 4 * hidden, samples = batch * positions;
    gg_op_desc desc = describe(GG_OP_LSTM, batch, {shape({positions, inputs})}, shape({positions, hidden}));
    desc.lstm.layers = 1;
    desc.bias = true;
    cpu_run cpu;
    random_numbers r((uint64_t)(samples * hidden));
    cpu.input = {r.floats((size_t)(samples * inputs))};
    cpu.parameter = {r.floats((size_t)(gates * inputs)), r.floats((size_t)(gates * hidden)), r.floats((size_t)gates),
                     r.floats((size_t)gates)};
    cpu.grad_output = r.floats((size_t)(samples * hidden));
    run_on_cpu(desc, &cpu);
    buffer<float> gate((size_t)(samples * gates), "gates"), cell((size_t)(samples * hidden), "cells");
    buffer<float> state(cell.n, "states"), zeros(floats((size_t)(batch * hidden)), "zeros");
    buffer<float> later((size_t)(batch * hidden), "later"), cell_error(later.n, "cell errors");
    buffer<float> error(cpu.grad_output, "error");
    const float *input = cpu.parameter[0].data(), *recurrent = cpu.parameter[1].data();
    const double bound = steps ? 2e-3 : 2e-6; /* TF32 has 11 bits */
    buffer<float> weight(cpu.parameter[1], "recurrent weights");
    for (int64_t i = 0; i < samples * gates; ++i)
        gate[(size_t)i] = cpu.parameter[2][(size_t)(i % gates)] + cpu.parameter[3][(size_t)(i % gates)];
    add_product(samples, gates, inputs, cpu.input[0].data(), inputs, 1, input, 1, inputs, gate, gates);
    gg_cuda_lstm_args a = {};
    a.batch = batch;
    a.hidden = hidden;
    a.gates_row = positions * gates;
    a.cell_row = a.state_row = a.error_row = positions * hidden;
    a.later = later;
    a.cell_error = cell_error;
    auto at_position = [&](int64_t t) {
        a.gates = gate + t * gates;
        a.before = t == 0 ? zeros.p : cell + (t - 1) * hidden;
        a.before_row = t == 0 ? hidden : positions * hidden;
        a.cell = cell + t * hidden;
        a.state = state + t * hidden;
        a.error = error + t * hidden;
    };
    for (int64_t t = 0; t < positions; ++t) {
        at_position(t);
        if (steps) {
            CHECK(gg_cuda_lstm_step_fits(hidden));
            gg_cuda_lstm_step(nullptr, &a, weight, t == 0 ? zeros.p : state + (t - 1) * hidden,
                              t == 0 ? hidden : a.state_row);
            continue;
        }
        if (t > 0)
            add_product(batch, gates, hidden, state + (t - 1) * hidden, a.state_row, 1, recurrent, 1, hidden, a.gates,
                        a.gates_row);
        gg_cuda_lstm(nullptr, &a);
    }
    CHECK(near(state.all(), cpu.output, bound / 2, "lstm"));
    for (int64_t t = positions - 1; t >= 0; --t) {
        at_position(t);
        a.last = t == positions - 1;
        if (steps && !a.last) {
            std::fill(later.p, later.p + later.n, NAN); /* not read */
            gg_cuda_lstm_step_backward(nullptr, &a, weight, a.gates + gates);
            continue;
        }
        gg_cuda_lstm_backward(nullptr, &a);
        std::fill(later.p, later.p + later.n, 0.0f);
        add_product(batch, hidden, gates, a.gates, a.gates_row, 1, recurrent, hidden, 1, later, hidden);
    }
    floats dx((size_t)(samples * inputs)), dw((size_t)(gates * inputs)), dr((size_t)(gates * hidden));
    floats db((size_t)gates);
    add_product(samples, inputs, gates, gate, gates, 1, input, inputs, 1, dx.data(), inputs);
    add_product(gates, inputs, samples, gate, 1, gates, cpu.input[0].data(), inputs, 1, dw.data(), inputs);
    for (int64_t n = 0; n < batch; ++n)
        add_product(gates, hidden, positions - 1, gate + (n * positions + 1) * gates, 1, gates,
                    state + n * positions * hidden, hidden, 1, dr.data(), hidden);
    for (int64_t i = 0; i < samples * gates; ++i) db[(size_t)(i % gates)] += gate[(size_t)i];
    CHECK(near(dx, cpu.grad_input[0], bound, "lstm, error"));
    CHECK(near(dw, cpu.gradient[0], bound, "lstm, weights"));
    CHECK(near(dr, cpu.gradient[1], bound, "lstm, recurrent weights"));
    CHECK(near(db, cpu.gradient[2], bound, "lstm, bias"));
    CHECK_CLEAN();
}

/* What lies around cuDNN's LSTM: pieces to a space with gaps and back, and carried states. */
template <typename T> void test_lstm_spaces(gg_dtype dtype) {
    const int64_t counts[] = {1, 300, 7, 1000};
    gg_cuda_lstm_pieces a = {};
    a.dtype = dtype;
    a.pieces = 4;
    random_numbers r(5);
    std::vector<std::unique_ptr<buffer<float>>> from, to;
    int64_t at = 3;
    for (int i = 0; i < a.pieces; ++i) {
        a.piece[i].at = at;
        a.piece[i].count = counts[i];
        at += counts[i] + 2;
        for (int j = 0; j < 1 + i % 2; ++j) {
            from.push_back(std::make_unique<buffer<float>>(r.floats((size_t)counts[i]), "from"));
            to.push_back(std::make_unique<buffer<float>>((size_t)counts[i], "to"));
            a.piece[i].from[j] = from.back()->p;
            a.piece[i].to[j] = to.back()->p;
        }
    }
    buffer<T> space(std::vector<T>((size_t)at, stored<T>(77)), "space");
    a.space = space;
    gg_cuda_lstm_pack(nullptr, &a);
    gg_cuda_lstm_unpack(nullptr, &a);
    std::vector<T> wanted((size_t)at, stored<T>(77));
    for (int i = 0; i < a.pieces; ++i)
        for (int64_t k = 0; k < counts[i]; ++k) {
            const gg_cuda_lstm_piece &p = a.piece[i];
            const float sum = p.from[0][k] + (p.from[1] == nullptr ? 0.0f : p.from[1][k]);
            wanted[(size_t)(p.at + k)] = stored<T>(sum);
            for (float *plain : p.to)
                if (plain != nullptr) CHECK(plain[k] == loaded(stored<T>(sum)));
        }
    CHECK(memcmp(space.p, wanted.data(), wanted.size() * sizeof(T)) == 0);
    CHECK_CLEAN();
}

template <typename T> void test_lstm_states(gg_dtype dtype, int64_t layers, int64_t batch, int64_t hidden) {
    gg_cuda_lstm_state_args a = {layers, batch, hidden, batch * hidden + 5, dtype, nullptr, nullptr, nullptr};
    random_numbers r((uint64_t)hidden);
    const floats before = r.floats((size_t)(batch * layers * 2 * hidden));
    buffer<float> carried(before, "carried");
    buffer<T> states((size_t)(layers * a.step), "states"), cells(states.n, "cells");
    a.carried = carried;
    a.states = states;
    a.cells = cells;
    gg_cuda_lstm_begin(nullptr, &a);
    std::fill(carried.p, carried.p + carried.n, 9.0f);
    gg_cuda_lstm_end(nullptr, &a);
    for (int64_t n = 0; n < batch; ++n)
        for (int64_t layer = 0; layer < layers; ++layer)
            for (int64_t j = 0; j < hidden; ++j) {
                const size_t from = (size_t)((n * layers + layer) * 2 * hidden + j);
                const size_t to = (size_t)(layer * a.step + n * hidden + j);
                CHECK(loaded(states[to]) == loaded(stored<T>(before[from])));
                CHECK(loaded(cells[to]) == loaded(stored<T>(before[from + (size_t)hidden])));
                CHECK(carried[from] == loaded(states[to]) && carried[from + (size_t)hidden] == loaded(cells[to]));
            }
    CHECK_CLEAN();
}

/* ------------------------------------------------------------------------------------------ tables of rows */

/* same: all tokens are one. */
void test_embedding(int64_t batch, int64_t positions, int64_t numbers, int64_t features, bool same_token) {
    gg_op_desc desc = describe(GG_OP_EMBEDDING, batch, {shape({positions})}, shape({positions, features}));
    desc.embedding.numbers = numbers;
    const int64_t tokens = batch * positions;
    random_numbers r((uint64_t)(tokens * features));
    cpu_run cpu;
    cpu.integers = 0;
    cpu.input = {{}};
    for (int64_t i = 0; i < tokens; ++i)
        cpu.numbers.push_back(same_token ? (int32_t)numbers - 1 : (int32_t)(r.next() % (uint64_t)numbers));
    cpu.parameter = {r.floats((size_t)(numbers * features))};
    cpu.grad_output = r.floats((size_t)(tokens * features));
    run_on_cpu(desc, &cpu);
    buffer<int32_t> token(cpu.numbers, "tokens");
    device_floats table(cpu.parameter[0], "table"), y((size_t)(tokens * features), "y");
    device_floats dy(cpu.grad_output, "dy"), gradient(table.n, "gradient");
    buffer<uint32_t> scratch(gg_cuda_embedding_scratch(tokens, features) / sizeof(uint32_t), "scratch"), bad(1, "bad");
    bad[0] = UINT32_MAX;
    gg_cuda_embedding_args a = {};
    a.tokens = tokens;
    a.features = features;
    a.numbers = numbers;
    a.token = token;
    a.table = table;
    a.output = y;
    a.grad_output = dy;
    a.grad_table = gradient;
    a.scratch = scratch;
    a.bad = bad;
    gg_cuda_embedding(nullptr, &a);
    gg_cuda_embedding_backward(nullptr, &a);
    CHECK(same(y.all(), cpu.output, "embedding"));
    doubles sums(table.n); /* the CPU's are added in another order */
    for (int64_t i = 0; i < tokens * features; ++i)
        sums[(size_t)(cpu.numbers[(size_t)(i / features)] * features + i % features)] +=
            (double)cpu.grad_output[(size_t)i];
    CHECK(near(sums, gradient.all(), 1e-6, "embedding, gradient"));
    CHECK_INT(bad[0], UINT32_MAX);
    CHECK_CLEAN();
}

/* Activations in bfloat16: rows are rounded, and errors added in float32. */
void test_narrow_embedding(int64_t tokens, int64_t numbers, int64_t features) {
    random_numbers r((uint64_t)(tokens * numbers));
    std::vector<int32_t> token;
    for (int64_t i = 0; i < tokens; ++i) token.push_back((int32_t)(r.next() % (uint64_t)numbers));
    const floats table = r.floats((size_t)(numbers * features)), error = r.floats((size_t)(tokens * features));
    std::vector<uint16_t> narrow_error;
    for (float v : error) narrow_error.push_back(stored<uint16_t>(v));
    buffer<int32_t> tokens_there(token, "tokens");
    device_floats table_there(table, "table"), gradient(table.size(), "gradient");
    buffer<uint16_t> y((size_t)(tokens * features), "y"), dy(narrow_error, "dy");
    buffer<uint32_t> scratch(gg_cuda_embedding_scratch(tokens, features) / sizeof(uint32_t), "scratch");
    gg_cuda_embedding_args a = {};
    a.tokens = tokens;
    a.features = features;
    a.numbers = numbers;
    a.dtype = GG_BFLOAT16;
    a.token = tokens_there;
    a.table = table_there;
    a.output = y;
    a.grad_output = dy;
    a.grad_table = gradient;
    a.scratch = scratch;
    gg_cuda_embedding(nullptr, &a);
    gg_cuda_embedding_backward(nullptr, &a);
    doubles wanted(table.size());
    for (int64_t i = 0; i < tokens * features; ++i) {
        const size_t row = (size_t)token[(size_t)(i / features)] * (size_t)features + (size_t)(i % features);
        CHECK_INT(y[(size_t)i], stored<uint16_t>(table[row]));
        wanted[row] += (double)loaded(narrow_error[(size_t)i]);
    }
    CHECK(near(wanted, gradient.all(), 1e-6, "embedding in bfloat16, gradient"));
    CHECK_CLEAN();
}

void test_narrow_positions(int64_t samples, int64_t positions, int64_t features) {
    const size_t sample = (size_t)(positions * features), n = (size_t)samples * sample;
    random_numbers r(n);
    const floats table = r.floats(sample), x = r.floats(n);
    std::vector<uint16_t> narrow_x;
    for (float v : x) narrow_x.push_back(stored<uint16_t>(v));
    device_floats table_there(table, "table"), gradient(sample, "gradient");
    buffer<uint16_t> in(narrow_x, "x"), out(n, "y");
    gg_cuda_position_embedding_args a = {samples, positions,   features, positions, GG_BFLOAT16,
                                         in,      table_there, out,      in,        gradient};
    gg_cuda_position_embedding(nullptr, &a);
    gg_cuda_position_embedding_backward(nullptr, &a);
    doubles wanted(sample);
    for (size_t i = 0; i < n; ++i) {
        CHECK_INT(out[i], stored<uint16_t>(loaded(narrow_x[i]) + table[i % sample]));
        wanted[i % sample] += (double)loaded(narrow_x[i]);
    }
    CHECK(near(wanted, gradient.all(), 1e-6, "positions in bfloat16, gradient"));
    CHECK_CLEAN();
}

void test_bad_tokens(int32_t numbers) {
    floats rows((size_t)numbers), wanted((size_t)numbers);
    for (int32_t i = 0; i < numbers; ++i) rows[(size_t)i] = (float)(1 + i);
    wanted[0] = 40;
    wanted[1] = 60;
    buffer<int32_t> token(std::vector<int32_t>{1, numbers, -1, 0, 1}, "tokens");
    device_floats table(rows, "table"), y(5, "y"), dy(floats{10, 20, 30, 40, 50}, "dy"), gradient(rows.size(), "dw");
    buffer<uint32_t> scratch(gg_cuda_embedding_scratch(5, 1) / sizeof(uint32_t), "scratch"), bad(1, "bad");
    bad[0] = UINT32_MAX;
    gg_cuda_embedding_args a = {5, 1, numbers, GG_FLOAT32, token, table, y, dy, gradient, scratch, bad};
    gg_cuda_embedding(nullptr, &a);
    gg_cuda_embedding_backward(nullptr, &a);
    CHECK(same(y.all(), {2, 0, 0, 1, 2}, "tokens that are none"));
    CHECK(same(gradient.all(), wanted, "tokens that are none, gradient"));
    CHECK_INT(bad[0], 1);
    CHECK_CLEAN();
}

void test_positions(int64_t batch, int64_t positions, int64_t features, int64_t numbers) {
    const gg_shape s = shape({positions, features});
    gg_op_desc desc = describe(GG_OP_POSITION_EMBEDDING, batch, {s}, s);
    desc.embedding.numbers = numbers;
    const size_t n = (size_t)batch * count(s);
    random_numbers r(n);
    cpu_run cpu;
    cpu.input = {r.floats(n)};
    cpu.parameter = {r.floats((size_t)(numbers * features))};
    cpu.grad_output = r.floats(n);
    run_on_cpu(desc, &cpu);
    device_floats x(cpu.input[0], "x"), table(cpu.parameter[0], "table"), y(n, "y"), dy(cpu.grad_output, "dy");
    device_floats gradient(table.n, "gradient");
    gg_cuda_position_embedding_args a = {batch, positions, features, numbers, GG_FLOAT32, x, table, y, dy, gradient};
    gg_cuda_position_embedding(nullptr, &a);
    gg_cuda_position_embedding_backward(nullptr, &a);
    CHECK(same(y.all(), cpu.output, "positions"));
    CHECK(same(gradient.all(), cpu.gradient[0], "positions, gradient"));
    a.output = x;
    gg_cuda_position_embedding(nullptr, &a);
    CHECK(same(x.all(), cpu.output, "positions in place"));
    CHECK_CLEAN();
}

} // namespace

int main() {
    const attention_case attentions[] = {
        {1, 1, 1, 1, false, 0, {}, 1},        {2, 7, 2, 3, false, 0, {}, 7},           {2, 7, 3, 2, true, 0, {}, 3},
        {3, 9, 1, 4, false, 0, {9, 1, 5}, 4}, {3, 9, 2, 4, true, 0.25f, {4, 9, 2}, 9}, {2, 6, 1, 2, false, 0.5f, {}, 5},
    };
    for (const attention_case &c : attentions) test_attention(c);
    test_bad_lengths();
    for (float probability : {0.0f, 0.25f}) {
        test_long_rows(513, 513, probability);
        test_long_rows(1030, 999, probability);
    }
    test_lstm(1, 1, 1, 1);
    test_lstm(3, 4, 5, 7);
    test_lstm(2, 3, 4, 33);
    test_lstm(15, 2, 3, 40);
    test_lstm(1, 2, 1, 8, true);
    test_lstm(3, 3, 4, 24, true);
    test_lstm(33, 2, 3, 80, true);
    CHECK(!gg_cuda_lstm_step_fits(33));
    test_lstm_spaces<float>(GG_FLOAT32);
    test_lstm_spaces<uint16_t>(GG_BFLOAT16);
    test_lstm_states<float>(GG_FLOAT32, 3, 2, 5);
    test_lstm_states<uint16_t>(GG_BFLOAT16, 2, 300, 3);
    test_embedding(1, 1, 1, 1, false);
    test_embedding(3, 7, 5, 4, false);
    test_embedding(2, 300, 17, 3, false);
    test_embedding(2, 130, 300, 8, false);
    test_embedding(2, 130, 16, 2, true);
    test_embedding(3, 700, 40, 4, false);
    test_embedding(1, 1100, 3, 5, true);
    test_embedding(1, 64, 2, 4, true);
    test_embedding(1, 33, 4096, 1, false);
    test_narrow_embedding(1, 1, 1);
    test_narrow_embedding(700, 17, 8);
    test_narrow_embedding(300, 300, 3);
    test_narrow_positions(1, 1, 1);
    test_narrow_positions(3, 5, 4);
    for (int32_t numbers : {3, 15, 16, 256}) test_bad_tokens(numbers);
    test_positions(1, 1, 1, 1);
    test_positions(3, 5, 6, 9);
    return CHECK_RESULT;
}
