/* What packed messages say of parameters, and elements one by one: with the bits of the CPU. */
#include "check_kernels.h"

#include <memory>

namespace {

random_numbers numbers(41);
gg_device *cpu;

enum source { GRADIENT, CLEARED, RESIDUE, DIFFERENCE };

/* A parameter, twice. */
struct parameter {
    size_t n, bins;
    source from;
    buffer<float> first, own;
    buffer<uint16_t> values; /* halves of float32, where these are */
    buffer<uint32_t> scratch;
    buffer<uint16_t> place, chosen;
    buffer<gg_pack_result> result;
    lanes<float> first_cpu, own_cpu;
    std::vector<float> values_cpu;
    std::vector<uint32_t> scratch_cpu;
    std::vector<uint16_t> place_cpu, chosen_cpu;
    gg_pack_result result_cpu;

    parameter(size_t count, size_t bin, source kind, const std::vector<float> &one, const std::vector<float> &two)
        : n(count), bins((count + bin - 1) / bin), from(kind), first(one, "first"), own(two, "own"),
          values(2 * count, "values"), scratch(gg_pack_scratch(count, bin), "scratch"), place(count, "place"),
          chosen(bins, "chosen"), result(1, "result"), first_cpu(one), own_cpu(two), values_cpu(count),
          scratch_cpu(gg_pack_scratch(count, bin)), place_cpu(count), chosen_cpu(bins), result_cpu() {}

    gg_pack_args args(bool on_cpu, size_t bin, gg_pack_kind kind, bool safe, gg_dtype dtype, float factor) {
        gg_pack_args a = {};
        float *const g = on_cpu ? first_cpu : first, *const r = on_cpu ? own_cpu : own;
        a.n = n, a.bin = bin, a.kind = kind, a.dtype = dtype, a.safe = safe, a.scale = 0.7f, a.factor = factor;
        if (from == DIFFERENCE) {
            a.value = g, a.known = r;
        } else {
            a.residue = r;
            if (from != RESIDUE) a.gradient = g;
            if (from == CLEARED) a.clear = g;
        }
        a.scratch = on_cpu ? scratch_cpu.data() : scratch;
        a.result = on_cpu ? &result_cpu : result;
        const bool lists = kind != GG_PACK_NONE && kind != GG_PACK_ALL;
        if (lists) a.place = on_cpu ? place_cpu.data() : place, a.chosen = on_cpu ? chosen_cpu.data() : chosen;
        if (kind == GG_PACK_ALL || kind == GG_PACK_VALUES) a.values = on_cpu ? (void *)values_cpu.data() : values.p;
        return a;
    }

    /* What is undefined where something is not finite is not looked at. */
    bool agrees(const gg_pack_args &a) {
        const bool finite = result_cpu.greatest < 0x7f800000u, lists = a.place != nullptr && finite;
        const size_t entries = lists ? result_cpu.entries : 0;
        const size_t bytes = a.kind == GG_PACK_ALL ? 4 * n : entries * gg_dtype_size(a.dtype);
        std::vector<uint16_t> places = place.all(), counts = chosen.all();
        places.resize(entries), place_cpu.resize(entries);
        bool good = same(own.all(), own_cpu.all(), "own") && same(first.all(), first_cpu.all(), "first") &&
                    CHECK_INT(result[0].greatest, result_cpu.greatest);
        if (lists)
            good = good && CHECK_INT(result[0].entries, result_cpu.entries) && same(places, place_cpu, "place") &&
                   same(counts, chosen_cpu, "chosen") && result[0].scale == result_cpu.scale;
        if (finite && a.values != nullptr) good = good && memcmp(values.p, values_cpu.data(), bytes) == 0;
        return good;
    }
};

/* With zeros, equals, and what is not finite. */
std::vector<float> odd_values(size_t n, unsigned strange) {
    std::vector<float> v = numbers.floats(n);
    for (float &x : v) {
        const uint32_t r = numbers.next() % 64;
        if (r == 0) x = 0;
        else if (r == 1) x = -0.0f;
        else if (r == 2) x = 0.9999999f;
        else if (r == 3) x *= 1e-30f;
        else if (r == 4 && strange == 1) x = INFINITY;
        else if (r == 4 && strange == 2) x = NAN;
        else if (r == 4 && strange == 3) x = 3.4028e38f;
    }
    for (size_t i = 0; i < n; ++i) /* runs that are all 0 */
        if (i / 190 % 3 == 1) v[i] = 0;
    return v;
}

struct shape {
    size_t n, bin;
};

/* All parameters in one call, as a message has them. */
void check_pack(const std::vector<shape> &shapes, source from, gg_pack_kind kind, bool safe, gg_dtype dtype,
                float factor, unsigned strange) {
    std::vector<std::unique_ptr<parameter>> made;
    std::vector<gg_pack_args> args, args_cpu;
    size_t number = 0;
    for (const shape &s : shapes) {
        /* Some of a message travel whole. */
        const gg_pack_kind own_kind = number++ % 4 == 3 ? (kind == GG_PACK_CHOICE ? GG_PACK_NONE : GG_PACK_ALL) : kind;
        std::vector<float> first = odd_values(s.n, strange), own = odd_values(s.n, strange);
        for (size_t i = 5; i < s.n; i += 17) /* G = 0, but H is not */
            own[i] = from == DIFFERENCE ? first[i] : -(0.7f * first[i]);
        made.emplace_back(new parameter(s.n, s.bin, from, first, own));
        args.push_back(made.back()->args(false, s.bin, own_kind, safe, dtype, factor));
        args_cpu.push_back(made.back()->args(true, s.bin, own_kind, safe, dtype, factor));
    }
    gg_cuda_pack(nullptr, (int)args.size(), args.data());
    gg_backend_native.pack(cpu, (int)args.size(), args_cpu.data());
    for (size_t i = 0; i < made.size(); ++i)
        if (!CHECK(made[i]->agrees(args_cpu[i])))
            fprintf(stderr, "n %zu, bin %zu, source %d, kind %d, safe %d, strange %u\n", shapes[i].n, shapes[i].bin,
                    (int)from, (int)args[i].kind, (int)safe, strange);
}

void test_pack() {
    const std::vector<shape> shapes = {{1, 1},    {1000, 50}, {1003, 37}, {300, 1024}, {1003, 500},
                                       {700, 64}, {33, 3},    {40, 1024}, {65, 63},    {3000, 16383}};
    std::vector<shape> many; /* more than a launch has, and more bins than a block goes through at once */
    for (size_t i = 0; i < 19; ++i) many.push_back({i == 4 ? 3000 : 20 + 31 * i, i == 4 ? 3 : 1 + 13 * i});
    for (source from : {GRADIENT, CLEARED, RESIDUE, DIFFERENCE})
        for (unsigned strange : {0u, 3u}) {
            check_pack(shapes, from, GG_PACK_SIGNS, false, GG_FLOAT32, 2, strange);
            check_pack(shapes, from, GG_PACK_SIGNS, true, GG_FLOAT32, 1.5f, strange);
            check_pack(shapes, from, GG_PACK_VALUES, false, GG_BFLOAT16, 3, strange);
            check_pack(shapes, from, GG_PACK_VALUES, false, GG_FLOAT32, 2, strange);
        }
    check_pack(many, GRADIENT, GG_PACK_SIGNS, true, GG_FLOAT32, 2, 0);
    check_pack(many, CLEARED, GG_PACK_CHOICE, false, GG_FLOAT32, 2, 0);
    check_pack(many, GRADIENT, GG_PACK_CHOICE, true, GG_FLOAT32, 2, 0);
    check_pack(many, RESIDUE, GG_PACK_NONE, false, GG_FLOAT32, 2, 0);
    check_pack(many, DIFFERENCE, GG_PACK_ALL, false, GG_FLOAT32, 2, 0);
    for (unsigned strange : {1u, 2u}) {
        check_pack(shapes, GRADIENT, GG_PACK_SIGNS, true, GG_FLOAT32, 2, strange);
        check_pack(shapes, DIFFERENCE, GG_PACK_VALUES, false, GG_BFLOAT16, 2, strange);
    }
}

/* Greatest values so small that their mean is 0: nothing is sent. */
void test_no_scale() {
    std::vector<float> first(900), own(900);
    first[7] = 1e-44f;
    parameter p(900, 1, RESIDUE, first, first);
    const gg_pack_args a = p.args(false, 1, GG_PACK_SIGNS, false, GG_FLOAT32, 2);
    const gg_pack_args c = p.args(true, 1, GG_PACK_SIGNS, false, GG_FLOAT32, 2);
    gg_cuda_pack(nullptr, 1, &a);
    gg_backend_native.pack(cpu, 1, &c);
    CHECK(p.agrees(c));
    CHECK_INT(p.result[0].entries, 0);
    CHECK(p.own[7] == 1e-44f);
}

/* ---- elements ---- */

std::vector<uint32_t> some_elements(size_t of, bool signs) {
    std::vector<uint32_t> v;
    for (size_t i = 0; i < of; i += 1 + numbers.next() % 7)
        v.push_back((uint32_t)i | (signs && numbers.next() % 2 ? GG_ELEMENT_NEGATIVE : 0));
    return v;
}

/* dtype of no values: GG_INT32. */
void check_elements(size_t of, bool listed, gg_dtype dtype, bool takes) {
    const std::vector<uint32_t> element = listed ? some_elements(of, dtype == GG_INT32) : std::vector<uint32_t>();
    const size_t n = listed ? element.size() : of;
    std::vector<float> wide = numbers.floats(n), at = numbers.floats(of);
    if (of > 3) at[3] = 3.4028e38f;
    std::vector<uint16_t> narrow = numbers.narrow(n);
    buffer<uint32_t> elements(element, "elements");
    buffer<float> out(at, "at"), four(wide, "values");
    buffer<uint16_t> two(narrow, "values");
    gg_elements_args a = {};
    a.n = n;
    a.dtype = dtype == GG_BFLOAT16 ? GG_BFLOAT16 : GG_FLOAT32;
    a.factor = 0.3f;
    gg_elements_args c = a;
    if (listed) a.element = elements, c.element = element.data();
    if (dtype == GG_FLOAT32) a.values = four.p, c.values = wide.data();
    if (dtype == GG_BFLOAT16) a.values = two.p, c.values = narrow.data();
    a.at = out, c.at = at.data();
    if (takes) {
        gg_cuda_take_elements(nullptr, &a);
        gg_backend_native.take_elements(cpu, &c);
    } else {
        gg_cuda_add_elements(nullptr, &a);
        gg_backend_native.add_elements(cpu, &c);
    }
    CHECK(same(out.all(), at, "at"));
    CHECK(same(four.all(), wide, "values"));
    CHECK(same(two.all(), narrow, "values"));
}

void test_elements() {
    for (size_t of : {0, 1, 63, 1000, 5000})
        for (bool listed : {true, false})
            for (gg_dtype dtype : {GG_FLOAT32, GG_BFLOAT16}) {
                check_elements(of, listed, dtype, false);
                check_elements(of, listed, dtype, true);
            }
    check_elements(5000, true, GG_INT32, false);
}

} // namespace

int main() {
    cpu = scalar_device();
    test_pack();
    test_no_scale();
    test_elements();
    CHECK_CLEAN();
    gg_backend_native.close(cpu);
    return CHECK_RESULT;
}
