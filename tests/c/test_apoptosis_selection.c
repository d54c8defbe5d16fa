/* If no layer listens to the leaving units, the smaller network has the larger one's bits: a table adds inputs in their
 * order, and the leaving units added zero. */
#include "apoptosis/selection.h"
#include "apoptosis_networks.h"

/* Clears what layers read of the units that leave. */
static void silence(const gg_graph *graph, const gg_units *units, const bool *leaves, float *weights) {
    for (int p = 0; p < units->parameters; p++) {
        const gg_parameter *it = gg_graph_parameter(graph, p);
        const gg_unit_axis *axis = &units->parameter[p][1];
        if (axis->unit == NULL) continue;
        const int64_t inner = (int64_t)it->count / it->shape.size[0] / it->shape.size[1];
        for (int64_t i = 0; i < (int64_t)it->count; i++) {
            const int unit = axis->unit[i / inner % it->shape.size[1]];
            if (unit >= 0 && leaves[unit]) weights[it->offset + (size_t)i] = 0;
        }
    }
}

/* Some of the units that can, but not all of a group. */
static int draw_leaves(const gg_units *units, uint64_t seed, bool *leaves) {
    int count = 0;
    for (int g = 0; g < units->groups; g++) {
        const gg_unit_group *group = &units->group[g];
        for (int i = 0; i < group->units; i++) {
            uint32_t word[4];
            gg_random_key key = {.seed = seed, .purpose = GG_RANDOM_TEST, .step = 5};
            gg_random_block(&key, (uint32_t)(group->first + i), word);
            leaves[group->first + i] = group->fixed[0] == '\0' && i != (int)(seed % 3) && word[0] % 3 == 0;
            count += leaves[group->first + i];
        }
    }
    return count;
}

/* The elements of a parameter that stay, counted in another way: those of whose row and column no unit leaves. */
static void check_arena(const gg_graph *graph, const gg_units *units, const bool *leaves, const gg_graph *small,
                        const float *from, const float *to) {
    size_t at = 0;
    bool same = true, padded = true;
    for (int p = 0; p < units->parameters; p++) {
        const gg_parameter *it = gg_graph_parameter(graph, p), *left = gg_graph_parameter(small, p);
        const int64_t columns = it->shape.dims > 1 ? it->shape.size[1] : 1;
        const int64_t inner = (int64_t)it->count / it->shape.size[0] / columns;
        CHECK_TEXT(left->name, it->name);
        for (; at < left->offset; at++) padded = padded && to[at] == 0;
        for (int64_t i = 0; i < (int64_t)it->count; i++) {
            const int *rows = units->parameter[p][0].unit, *cells = units->parameter[p][1].unit;
            const int row = rows ? rows[i / inner / columns] : -1, cell = cells ? cells[i / inner % columns] : -1;
            if ((row >= 0 && leaves[row]) || (cell >= 0 && leaves[cell])) continue;
            same = same && to[at] == from[it->offset + (size_t)i];
            at++;
        }
        CHECK_INT(at, left->offset + left->count);
    }
    for (; at < gg_graph_arena_count(small); at++) padded = padded && to[at] == 0;
    CHECK(same);
    CHECK(padded);
}

static void test_network(gg_graph *graph, int rounds) {
    gg_units *units = NULL;
    bool *leaves = NULL;
    uint64_t last = 0;
    CHECK_OK(gg_units_find(graph, &units));
    CHECK_OK(gg_calloc((size_t)units->units, sizeof *leaves, "leaves", &leaves));
    for (int round = 0; round < rounds; round++) {
        gg_selection *selection = NULL, *again = NULL;
        gg_graph *small = NULL;
        float *weights = random_arena(graph, 10 + (uint64_t)round), *left = NULL;
        CHECK(draw_leaves(units, (uint64_t)round, leaves) > 0);
        silence(graph, units, leaves, weights);
        CHECK_OK(gg_selection_create(graph, units, leaves, &selection));
        CHECK_OK(gg_selection_create(graph, units, leaves, &again));
        CHECK(gg_selection_hash(selection) == gg_selection_hash(again));
        CHECK(gg_selection_hash(selection) != last);
        last = gg_selection_hash(selection);
        CHECK_OK(gg_graph_select(graph, selection, &small));
        CHECK_INT(gg_selection_count_before(selection), gg_graph_arena_count(graph));
        CHECK_INT(gg_selection_count_after(selection), gg_graph_arena_count(small));
        CHECK(gg_graph_parameter_count(small) < gg_graph_parameter_count(graph));
        CHECK_OK(gg_alloc(gg_selection_count_after(selection) * sizeof *left, "arena", &left));
        memset(left, 0xff, gg_selection_count_after(selection) * sizeof *left);
        gg_arena_select(selection, weights, left);
        check_arena(graph, units, leaves, small, weights, left);
        float *whole = run_network(graph, weights, 3), *part = run_network(small, left, 3);
        CHECK_INT(output_values(small), output_values(graph));
        CHECK(memcmp(part, whole, (size_t)output_values(graph) * sizeof *part) == 0);
        free(whole);
        free(part);
        gg_free(left);
        gg_free(weights);
        gg_graph_destroy(small);
        gg_selection_destroy(selection);
        gg_selection_destroy(again);
    }
    gg_free(leaves);
    gg_units_destroy(units);
    gg_graph_destroy(graph);
}

/* Factors, names, and heads stay; where nobody leaves, all does. */
static void test_same(void) {
    gg_graph *graph = begin_graph((gg_shape){1, {6}}), *small = NULL;
    gg_units *units = NULL;
    gg_selection *selection = NULL, *other = NULL;
    bool leaves[16] = {false};
    const int a = add_linear(graph, "a", 4, 0), b = add_linear(graph, "b", 3, a), c = add_linear(graph, "c", 2, a);
    CHECK_OK(gg_graph_set_factors(graph, a, (gg_factors){2, 3}, (gg_factors){4, 0}));
    CHECK_OK(gg_graph_finish(graph, 2, (gg_head[]){{.node = b}, {.node = c, .training_only = true}}));
    CHECK_OK(gg_units_find(graph, &units));
    CHECK_OK(gg_selection_create(graph, units, leaves, &other));
    CHECK_INT(gg_selection_count_after(other), gg_graph_arena_count(graph));
    leaves[units->group[gg_units_group_named(units, graph, "a")].first + 1] = true;
    CHECK_OK(gg_selection_create(graph, units, leaves, &selection));
    CHECK(gg_selection_hash(other) != gg_selection_hash(selection));
    const int64_t *index = NULL;
    CHECK_INT(gg_selection_kept(selection, 0, 0, &index), 3);
    CHECK(index[0] == 0 && index[1] == 2 && index[2] == 3);
    CHECK_INT(gg_selection_kept(selection, 0, 1, &index), 6);
    CHECK_INT(gg_selection_kept(selection, 1, 1, &index), 1);
    CHECK_OK(gg_graph_select(graph, selection, &small));
    CHECK_INT(gg_graph_heads(small), 2);
    CHECK(gg_graph_head(small, 1)->training_only && gg_graph_head(small, 1)->node == c);
    CHECK_NEAR(gg_graph_parameter(small, 0)->lr_factor, 2, 0);
    CHECK_NEAR(gg_graph_parameter(small, 1)->lr_factor, 3, 0);
    CHECK_NEAR(gg_graph_parameter(small, 0)->decay_factor, 4, 0);
    gg_selection_destroy(selection);

    memset(leaves, 0, sizeof leaves);
    leaves[units->group[gg_units_group_named(units, graph, "b")].first + 2] = true;
    CHECK_FAILS(gg_selection_create(graph, units, leaves, &selection), GG_ERROR_ARGUMENT,
                "unit 2 of layer 'b' cannot leave: 'b' (linear) is an output of the network");
    memset(leaves, 0, sizeof leaves);
    for (int i = 0; i < 4; i++) leaves[units->group[gg_units_group_named(units, graph, "a")].first + i] = true;
    CHECK_FAILS(gg_selection_create(graph, units, leaves, &selection), GG_ERROR_ARGUMENT,
                "all 4 units of layer 'a' leave; at least one has to stay");
    gg_selection_destroy(other);
    gg_units_destroy(units);
    gg_graph_destroy(small);
    gg_graph_destroy(graph);
}

int main(void) {
    open_device();
    test_network(mlp(GG_LAYER_RELU, 9), 20);
    test_network(mlp(GG_LAYER_SIGMOID, 40), 10);
    test_network(lenet(), 4);
    test_network(cifar_quick(), 4);
    test_network(resnet(), 10);
    test_network(branches(), 20);
    test_network(recurrent(1, true), 20);
    test_network(recurrent(3, true), 20);
    test_network(recurrent(2, false), 10);
    test_network(normalised(), 10);
    test_network(rearranged(), 30);
    for (int kind = 0; kind < 8; kind++) test_network(transformer(5, kind & 1, kind & 2, kind & 4), 8);
    test_same();
    if (device) device->table->close(device);
    CHECK_INT(gg_memory_live_bytes(), 0);
    return CHECK_RESULT;
}
