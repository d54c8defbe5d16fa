/* Redundant units are found, and nothing else; the network computes what it did; the bound holds. */
#include "apoptosis/merge.h"
#include "apoptosis/selection.h"
#include "apoptosis_networks.h"

static uint32_t random_word(uint64_t seed, uint32_t index) {
    uint32_t word[4];
    gg_random_key key = {.seed = seed, .purpose = GG_RANDOM_TEST, .step = 9};
    gg_random_block(&key, index, word);
    return word[0];
}

static float *values_of(const gg_graph *graph, float *weights, const char *layer_name, const char *suffix) {
    char name[2 * GG_NAME_LENGTH];
    snprintf(name, sizeof name, "%s%s", layer_name, suffix);
    for (int i = 0; i < gg_graph_parameters(graph); i++)
        if (strcmp(gg_graph_parameter(graph, i)->name, name) == 0)
            return weights + gg_graph_parameter(graph, i)->offset;
    return NULL;
}

/* Makes the sum of row i of a producer c times that of row j; with a normalisation behind it, by other weights, which
 * it scales. */
static void plant_sum(const gg_graph *graph, const gg_unit_producer *producer, float *weights, int64_t i, int64_t j,
                      float c) {
    const char *name = gg_graph_node(graph, producer->node)->desc.name;
    const int64_t rows = gg_graph_node(graph, producer->node)->desc.outputs;
    float *w = values_of(graph, weights, name, ".weight"), *b = values_of(graph, weights, name, ".bias");
    char full[2 * GG_NAME_LENGTH];
    snprintf(full, sizeof full, "%s.weight", name);
    const int64_t length = (int64_t)parameter_named(graph, full)->count / rows;
    const float own = producer->norm >= 0 ? 3 : c;
    for (int64_t k = 0; k < length; k++) w[i * length + k] = own * w[j * length + k];
    if (b != NULL) b[i] = own * b[j];
    if (producer->norm < 0) return;
    const gg_layer_desc *norm = &gg_graph_node(graph, producer->norm)->desc;
    float *scale = values_of(graph, weights, norm->name, ".weight");
    float *shift = values_of(graph, weights, norm->name, ".bias");
    float *mean = values_of(graph, weights, norm->name, ".running_mean");
    float *var = values_of(graph, weights, norm->name, ".running_var");
    mean[i] = own * mean[j];
    scale[i] = c * scale[j] * sqrtf((var[i] + norm->batch_norm.epsilon) / (var[j] + norm->batch_norm.epsilon)) / own;
    shift[i] = c * shift[j];
}

/* All gates of hidden unit i as those of j, in all layers, with other biases of the same sum. */
static void plant_hidden_unit(const gg_graph *graph, int node, float *weights, int64_t i, int64_t j) {
    static const char *const suffixes[] = {".weight_ih_l", ".weight_hh_l", ".bias_ih_l", ".bias_hh_l"};
    const gg_layer_desc *desc = &gg_graph_node(graph, node)->desc;
    const int64_t hidden = desc->outputs;
    for (int n = 0; n < 4 * (int)desc->lstm.layers; n++) {
        char full[2 * GG_NAME_LENGTH];
        const int k = n % 4;
        if (!desc->bias && k > 1) continue;
        snprintf(full, sizeof full, "%s%s%d", desc->name, suffixes[k], n / 4);
        const gg_parameter *it = parameter_named(graph, full);
        const int64_t columns = (int64_t)it->count / (4 * hidden);
        float *at = weights + it->offset;
        for (int gate = 0; gate < 4; gate++)
            for (int64_t c = 0; c < columns; c++)
                at[(gate * hidden + i) * columns + c] = at[(gate * hidden + j) * columns + c] + (k == 2   ? 0.25f
                                                                                                 : k == 3 ? -0.25f
                                                                                                          : 0);
    }
}

/* All rows of queries, keys and values of head i as those of j. */
static void plant_head(const gg_graph *graph, const gg_units *units, int node, float *weights, int i, int j) {
    int first = 0;
    const int count = gg_graph_layer_parameters(graph, gg_graph_node(graph, node)->layer, &first);
    for (int k = first; k < first + count; k++) {
        const gg_unit_axis *axis = &units->parameter[k][0];
        if (axis->unit == NULL) continue;
        const int64_t columns = (int64_t)gg_graph_parameter(graph, k)->count / axis->count;
        float *at = weights + gg_graph_parameter(graph, k)->offset;
        for (int64_t r = 0, other = 0; r < axis->count; r++) {
            if (axis->unit[r] != i) continue;
            while (axis->unit[other] != j) other++;
            memcpy(at + r * columns, at + other++ * columns, (size_t)columns * sizeof *at);
        }
    }
}

static void plant_copy(const gg_graph *graph, const gg_unit_producer *producer, float *weights, int64_t i, int64_t j,
                       float c) {
    if (gg_graph_node(graph, producer->node)->desc.kind == GG_LAYER_LSTM)
        plant_hidden_unit(graph, producer->node, weights, i, j);
    else plant_sum(graph, producer, weights, i, j, c);
}

/* A unit whose sum is `sum` for every input. */
static void plant_constant(const gg_graph *graph, const gg_unit_producer *producer, float *weights, int64_t i,
                           float sum) {
    const char *name = gg_graph_node(graph, producer->node)->desc.name;
    const int64_t rows = gg_graph_node(graph, producer->node)->desc.outputs;
    char full[2 * GG_NAME_LENGTH];
    snprintf(full, sizeof full, "%s.weight", name);
    const int64_t length = (int64_t)parameter_named(graph, full)->count / rows;
    memset(values_of(graph, weights, name, ".weight") + i * length, 0, (size_t)length * sizeof(float));
    values_of(graph, weights, name, ".bias")[i] = sum;
}

/* What may be planted in a group: factors of copies. */
static float factor_of(const gg_unit_group *group, int copy) {
    switch (group->rule) {
    case GG_UNIT_LINEAR: return copy == 0 ? -1.7f : 0.6f;
    case GG_UNIT_POSITIVE: return copy == 0 ? 2.5f : 0.4f;
    case GG_UNIT_ODD: return copy == 0 ? -1 : 1;
    case GG_UNIT_SIGMOID: return copy == 0 && group->reader[0].constants ? -1 : 1;
    default: return 1;
    }
}

static bool can_merge(const gg_unit_group *group) {
    return group->fixed[0] == '\0' && group->single[0] == '\0' && group->readers > 0;
}

/* Units 0, 1 and 2 of each group become copies, in an order drawn by the seed; unit 3 a constant where that can be
 * folded. Returns how many then can leave. */
static int plant(const gg_graph *graph, const gg_units *units, float *weights, uint64_t seed) {
    int planted = 0;
    for (int g = 0; g < units->groups; g++) {
        const gg_unit_group *group = &units->group[g];
        const int origin = (int)(random_word(seed, (uint32_t)g) % 3);
        if (!can_merge(group)) continue;
        CHECK(group->units >= 5);
        for (int i = 0, copy = 0; i < 3; i++) {
            if (i == origin) continue;
            for (int p = 0; p < group->producers; p++) {
                const gg_unit_axis *axis = gg_units_produced(units, group->producer[p].node);
                int64_t rows[2] = {0};
                for (int64_t r = 0; r < axis->count; r++) {
                    if (axis->unit[r] == group->first + i) rows[0] = r;
                    if (axis->unit[r] == group->first + origin) rows[1] = r;
                }
                if (group->heads)
                    plant_head(graph, units, group->producer[p].node, weights, group->first + i, group->first + origin);
                else plant_copy(graph, &group->producer[p], weights, rows[0], rows[1], factor_of(group, copy));
            }
            copy++;
            planted++;
        }
        bool constants = group->producers == 1 && group->producer[0].norm < 0 && group->activation != GG_LAYER_COUNT;
        for (int r = 0; r < group->readers; r++)
            constants = constants && group->reader[r].constants && group->reader[r].bias >= 0;
        if (!constants) continue;
        const gg_unit_axis *axis = &units->output[group->producer[0].node];
        int64_t row = 0;
        while (axis->unit[row] != group->first + 3) row++;
        plant_constant(graph, &group->producer[0], weights, row, seed % 2 ? 0.7f : -0.4f);
        planted++;
    }
    return planted;
}

static float *select_arena(const gg_selection *selection, const float *from) {
    float *to = NULL;
    CHECK_OK(gg_alloc((gg_selection_count_after(selection) + 1) * sizeof *to, "arena", &to));
    gg_arena_select(selection, from, to);
    return to;
}

/* The network after the merges, for the same inputs. */
static float *run_merged(const gg_graph *graph, const gg_units *units, const gg_merges *merges, const float *weights,
                         uint64_t seed) {
    gg_selection *selection = NULL;
    gg_graph *small = NULL;
    bool *leaves = NULL;
    float *folded = NULL, *left = NULL, *output = NULL;
    const size_t count = gg_graph_arena_count(graph);
    CHECK_OK(gg_alloc(count * sizeof *folded, "arena", &folded));
    CHECK_OK(gg_calloc((size_t)units->units, sizeof *leaves, "leaves", &leaves));
    memcpy(folded, weights, count * sizeof *folded);
    gg_merges_fold(merges, graph, units, folded);
    gg_merges_leaves(merges, units, leaves);
    CHECK_OK(gg_selection_create(graph, units, leaves, &selection));
    CHECK_OK(gg_graph_select(graph, selection, &small));
    left = select_arena(selection, folded);
    output = run_network(small, left, seed);
    gg_free(left);
    gg_free(leaves);
    gg_free(folded);
    gg_graph_destroy(small);
    gg_selection_destroy(selection);
    return output;
}

static gg_merges *find_merges(const gg_graph *graph, const gg_units *units, const float *weights, double budget,
                              int least) {
    gg_merges *merges = NULL;
    gg_merge_options options = {.budget = budget, .least = least, .device = device};
    CHECK_OK(gg_merges_find(graph, units, weights, &options, &merges));
    return merges;
}

/* At budget 0 what was planted leaves, all of it and nothing else, and the outputs stay what they were. */
static void test_planted(gg_graph *graph, int rounds) {
    gg_units *units = NULL;
    CHECK_OK(gg_units_find(graph, &units));
    for (int round = 0; round < rounds; round++) {
        float *weights = random_arena(graph, 100 + (uint64_t)round);
        gg_merges *merges = find_merges(graph, units, weights, 0, 1);
        CHECK_INT(merges->count, 0);
        gg_merges_destroy(merges);
        const int planted = plant(graph, units, weights, (uint64_t)round);
        CHECK(planted > 0);
        merges = find_merges(graph, units, weights, 0, 1);
        CHECK_INT(merges->count, planted);
        for (int i = 0; i < merges->count; i++) {
            const int unit = merges->merge[i].unit, first = units->group[units->group_of[unit]].first;
            CHECK(unit - first < 4);
            if (merges->merge[i].into >= 0) CHECK(unit - first < 3 && merges->merge[i].into - first < 3);
        }
        float *whole = run_network(graph, weights, 4), *part = run_merged(graph, units, merges, weights, 4);
        for (int64_t i = 0; i < output_values(graph); i++)
            CHECK_NEAR(part[i], whole[i], 2e-5 * (1 + fabs((double)whole[i])));
        free(whole);
        free(part);
        gg_merges_destroy(merges);
        gg_free(weights);
    }
    gg_units_destroy(units);
    gg_graph_destroy(graph);
}

/* The squares of the inputs of run_network's sample n, each counted `times`, and `more`. */
static double input_norm(const gg_graph *graph, uint64_t seed, int n, double times, double more) {
    const int64_t values = gg_shape_count(&gg_graph_node(graph, 0)->shape);
    gg_random_key key = {.seed = seed, .purpose = GG_RANDOM_TEST, .step = 77};
    float *x = malloc((size_t)values * RUN_BATCH * sizeof *x);
    double sum = more;
    gg_random_uniform(&key, (size_t)values * RUN_BATCH, -1, 1, x);
    for (int64_t i = 0; i < values; i++) sum += times * (double)x[n * values + i] * (double)x[n * values + i];
    free(x);
    return sqrt(sum);
}

/* One hidden layer, so that its readers' sums are the network's outputs. Returns how many units left. */
static int check_bound(gg_graph *graph, uint64_t seed, double times, double more) {
    static const double budgets[] = {0.02, 0.1, 0.3, 1};
    gg_units *units = NULL;
    float *weights = random_arena(graph, seed);
    CHECK_OK(gg_units_find(graph, &units));
    gg_merges *merges = find_merges(graph, units, weights, budgets[seed % 4], 1 + (int)(seed % 3));
    float *whole = run_network(graph, weights, seed), *part = run_merged(graph, units, merges, weights, seed);
    const int64_t values = output_values(graph) / RUN_BATCH;
    const int group = gg_units_group_named(units, graph, "hidden"), left = merges->count;
    CHECK(merges->share[group] <= budgets[seed % 4] * (1 + 1e-6));
    CHECK(units->group[group].units - left >= 1 + (int)(seed % 3));
    for (int n = 0; n < RUN_BATCH; n++) {
        double error = 0;
        for (int64_t i = n * values; i < (n + 1) * values; i++)
            error += ((double)part[i] - (double)whole[i]) * ((double)part[i] - (double)whole[i]);
        CHECK(sqrt(error) <= merges->bound[group] * input_norm(graph, seed, n, times, more) + 1e-5);
    }
    free(whole);
    free(part);
    gg_merges_destroy(merges);
    gg_free(weights);
    gg_units_destroy(units);
    gg_graph_destroy(graph);
    return left;
}

static gg_graph *one_hidden(gg_layer_kind activation, int64_t width) {
    gg_graph *graph = begin_graph((gg_shape){1, {3}});
    int at = add_linear(graph, "hidden", width, 0);
    if (activation != GG_LAYER_INPUT) at = add_simple(graph, activation, "act", at);
    return finish_graph(graph, add_linear(graph, "out", 4, at));
}

static gg_graph *one_convolution(bool overlapping, bool norm) {
    gg_graph *graph = begin_graph((gg_shape){3, {1, 6, 6}});
    gg_layer_desc pool = windowed(GG_LAYER_MAX_POOL2D, "pool", 0, 3, overlapping ? 1 : 3, 0);
    int at = add_conv(graph, "hidden", 10, 3, 1, true, 0);
    if (norm) at = add_norm(graph, "bn", at);
    at = add_layer(graph, pool, add_simple(graph, GG_LAYER_RELU, "relu", at));
    return finish_graph(graph, add_linear(graph, "out", 4, add_simple(graph, GG_LAYER_FLATTEN, "flatten", at)));
}

/* Read by a convolution, which adds up the errors of all places of its windows. */
static gg_graph *two_convolutions(uint64_t variant) {
    static const gg_layer_kind kinds[] = {GG_LAYER_RELU, GG_LAYER_TANH, GG_LAYER_SIGMOID};
    gg_graph *graph = begin_graph((gg_shape){3, {1, 6, 6}});
    int at = add_conv(graph, "hidden", 10, 3, 1, true, 0);
    if (variant % 2) at = add_norm(graph, "bn", at);
    at = add_simple(graph, kinds[variant % 3], "act", at);
    gg_layer_desc reader =
        windowed(GG_LAYER_CONV2D, "out", 4, 3, 1 + (int64_t)(variant / 2 % 2), (int64_t)(variant / 4 % 2));
    return finish_graph(graph, add_layer(graph, reader, at));
}

static void test_bounds(void) {
    static const gg_layer_kind kinds[] = {GG_LAYER_INPUT, GG_LAYER_RELU,    GG_LAYER_LEAKY_RELU,
                                          GG_LAYER_TANH,  GG_LAYER_SIGMOID, GG_LAYER_GELU};
    int left[6] = {0}, filters = 0;
    for (uint64_t seed = 0; seed < 1000; seed++)
        left[seed % 6] += check_bound(one_hidden(kinds[seed % 6], 6 + (int64_t)(seed % 30)), seed / 6, 1, 1);
    for (int i = 0; i < 6; i++) CHECK(left[i] > 100);
    for (uint64_t seed = 0; seed < 60; seed++)
        filters += check_bound(one_convolution(seed % 2, seed / 2 % 2), seed, 9, 36);
    CHECK(filters > 50);
    filters = 0;
    for (uint64_t seed = 0; seed < 60; seed++) filters += check_bound(two_convolutions(seed), seed, 9, 36);
    CHECK(filters > 50);
}

/* A budget of its own for each group: without one only what changes nothing leaves. */
static void test_budgets(void) {
    for (uint64_t round = 0; round < 6; round++) {
        gg_graph *graph = mlp(GG_LAYER_RELU, 12);
        gg_units *units = NULL;
        gg_merges *merges = NULL;
        float *weights = random_arena(graph, round);
        double budgets[3] = {0, 0, 0};
        const int generous = (int)(round % 2);
        budgets[generous] = 0.5;
        CHECK_OK(gg_units_find(graph, &units));
        const int planted = units->group[1 - generous].first;
        plant_sum(graph, &units->group[1 - generous].producer[0], weights, 3, 7, 1.5f);
        const gg_merge_options options = {.budget = 1, .budgets = budgets, .least = 1, .device = device};
        CHECK_OK(gg_merges_find(graph, units, weights, &options, &merges));
        int left[3] = {0};
        for (int i = 0; i < merges->count; i++) {
            left[units->group_of[merges->merge[i].unit]]++;
            if (units->group_of[merges->merge[i].unit] != generous)
                CHECK(merges->merge[i].unit == planted + 3 || merges->merge[i].unit == planted + 7);
        }
        CHECK(left[generous] > 1);
        CHECK_INT(left[1 - generous], 1);
        CHECK(merges->share[generous] > 0 && merges->share[generous] <= 0.5);
        CHECK(merges->share[1 - generous] < 1e-6);
        budgets[generous] = NAN;
        gg_merges_destroy(merges);
        CHECK_FAILS(gg_merges_find(graph, units, weights, &options, &merges), GG_ERROR_ARGUMENT, "must be 0 to 1");
        gg_free(weights);
        gg_units_destroy(units);
        gg_graph_destroy(graph);
    }
}

/* A convolution adds up the errors of neighbouring places. */
static void test_windows(void) {
    gg_graph *graph = begin_graph((gg_shape){3, {1, 6, 6}});
    gg_units *units = NULL;
    int at = add_simple(graph, GG_LAYER_TANH, "tanh", add_conv(graph, "hidden", 2, 1, 0, true, 0));
    finish_graph(graph, add_conv(graph, "out", 1, 3, 0, false, at)); /* no bias: constants cannot be folded */
    float *weights = random_arena(graph, 1), *bias = values_of(graph, weights, "hidden", ".bias");
    float *out = values_of(graph, weights, "out", ".weight"), *own = values_of(graph, weights, "hidden", ".weight");
    own[0] = own[1] = 0;
    bias[0] = 0.1f;
    bias[1] = 0.11f;
    for (int i = 0; i < 18; i++) out[i] = 1;
    CHECK_OK(gg_units_find(graph, &units));
    gg_merges *merges = find_merges(graph, units, weights, 0.06, 1);
    CHECK_INT(merges->count, 1);
    float *whole = run_network(graph, weights, 1), *part = run_merged(graph, units, merges, weights, 1);
    for (int n = 0; n < RUN_BATCH; n++) {
        double error = 0;
        for (int64_t i = n * 16; i < (n + 1) * 16; i++)
            error += ((double)part[i] - (double)whole[i]) * ((double)part[i] - (double)whole[i]);
        CHECK(error > 0 &&
              sqrt(error) <= merges->bound[units->group_of[merges->merge[0].unit]] * input_norm(graph, 1, n, 1, 36));
    }
    free(whole);
    free(part);
    gg_merges_destroy(merges);
    gg_free(weights);
    gg_units_destroy(units);
    gg_graph_destroy(graph);
}

/* Averages over the ranks may leave a variance of about zero a hair below it. */
static void test_variances(void) {
    gg_graph *graph = resnet();
    gg_units *units = NULL;
    float *weights = random_arena(graph, 4);
    CHECK_OK(gg_units_find(graph, &units));
    values_of(graph, weights, "a.bn1", ".running_var")[2] = -1e-3f;
    gg_merges *merges = find_merges(graph, units, weights, 0, 1);
    CHECK_INT(merges->count, 0);
    gg_merges_destroy(merges);
    gg_free(weights);
    gg_units_destroy(units);
    gg_graph_destroy(graph);
}

/* Dead, silent and saturated units; least; chosen groups; folding is the same for any arena. */
static void test_options(void) {
    gg_graph *graph = mlp(GG_LAYER_RELU, 8);
    gg_units *units = NULL;
    gg_merges *merges = NULL;
    float *weights = random_arena(graph, 5);
    gg_merge_options options = {.budget = 1.5, .least = 1, .device = device};
    CHECK_OK(gg_units_find(graph, &units));
    CHECK_FAILS(gg_merges_find(graph, units, weights, &options, &merges), GG_ERROR_ARGUMENT,
                "budget: 1.5; must be 0 to 1");
    options.budget = NAN;
    CHECK_FAILS(gg_merges_find(graph, units, weights, &options, &merges), GG_ERROR_ARGUMENT, "must be 0 to 1");
    options = (gg_merge_options){.budget = 0, .least = 0, .device = device};
    CHECK_FAILS(gg_merges_find(graph, units, weights, &options, &merges), GG_ERROR_ARGUMENT,
                "least: 0; must be at least 1");

    float *out = values_of(graph, weights, "fc3", ".weight"); /* nobody listens to unit 6 of fc2 */
    for (int r = 0; r < 3; r++) out[r * 8 + 6] = 0;
    const gg_unit_producer *fc1 = &units->group[gg_units_group_named(units, graph, "fc1")].producer[0];
    plant_constant(graph, fc1, weights, 2, -3); /* dead */
    merges = find_merges(graph, units, weights, 0, 1);
    CHECK_INT(merges->count, 2);
    CHECK_INT(merges->merge[0].unit - units->group[0].first, 2);
    CHECK_INT(merges->merge[0].into, -1);
    CHECK_NEAR(merges->merge[0].value, 0, 0);
    CHECK_INT(merges->merge[1].unit - units->group[1].first, 6);
    gg_merges_destroy(merges);
    merges = find_merges(graph, units, weights, 0, 8);
    CHECK_INT(merges->count, 0);
    gg_merges_destroy(merges);

    const bool groups[3] = {false, true, true};
    options = (gg_merge_options){.budget = 1, .least = 3, .groups = groups, .device = device};
    CHECK_OK(gg_merges_find(graph, units, weights, &options, &merges));
    CHECK_INT(merges->count, 5);
    for (int i = 0; i < merges->count; i++) CHECK_INT(units->group_of[merges->merge[i].unit], 1);
    CHECK_NEAR(merges->bound[0], 0, 0);

    const size_t count = gg_graph_arena_count(graph); /* folding is linear: of a sum it is the sum */
    float *a = random_arena(graph, 1), *b = random_arena(graph, 2), *sum = random_arena(graph, 3);
    for (size_t i = 0; i < count; i++) sum[i] = a[i] + b[i];
    gg_merges_fold(merges, graph, units, a);
    gg_merges_fold(merges, graph, units, b);
    gg_merges_fold(merges, graph, units, sum);
    for (size_t i = 0; i < count; i++) CHECK_NEAR(sum[i], (double)a[i] + (double)b[i], 1e-4);
    gg_free(a);
    gg_free(b);
    gg_free(sum);
    gg_merges_destroy(merges);

    weights[gg_graph_parameter(graph, 0)->offset] = NAN;
    options.groups = NULL;
    CHECK_FAILS(gg_merges_find(graph, units, weights, &options, &merges), GG_ERROR_NUMERIC,
                "unit 0 of layer 'fc1' are not finite");
    gg_free(weights);
    gg_units_destroy(units);
    gg_graph_destroy(graph);
}

/* A unit that nobody listens to is listened to once another one has gone into it. */
static void test_heirs(void) {
    for (int round = 0; round < 4; round++) {
        gg_graph *graph = one_hidden(GG_LAYER_RELU, 7);
        gg_units *units = NULL;
        float *weights = random_arena(graph, 30 + (uint64_t)round);
        CHECK_OK(gg_units_find(graph, &units));
        const int group = gg_units_group_named(units, graph, "hidden"), silent = round % 2;
        plant_copy(graph, &units->group[group].producer[0], weights, 1, 0, 2);
        float *out = values_of(graph, weights, "out", ".weight");
        for (int r = 0; r < 4; r++) out[r * 7 + silent] = round < 2 ? 0 : 1e-12f;
        gg_merges *merges = find_merges(graph, units, weights, 1e-4, 1);
        CHECK_INT(merges->count, 1);
        float *whole = run_network(graph, weights, 1), *part = run_merged(graph, units, merges, weights, 1);
        for (int64_t i = 0; i < output_values(graph); i++) CHECK_NEAR(part[i], whole[i], 1e-5);
        free(whole);
        free(part);
        gg_merges_destroy(merges);
        gg_free(weights);
        gg_units_destroy(units);
        gg_graph_destroy(graph);
    }
}

/* A filter that its normalisation makes a constant goes into the running mean of the one behind its reader. */
static void test_dead_filters(void) {
    for (int round = 0; round < 4; round++) {
        gg_graph *graph = normalised();
        gg_units *units = NULL;
        float *weights = random_arena(graph, 60 + (uint64_t)round);
        CHECK_OK(gg_units_find(graph, &units));
        const gg_unit_group *group = &units->group[gg_units_group_named(units, graph, "b")];
        CHECK(group->reader[0].mean);
        float *scale = values_of(graph, weights, "b.bn", ".weight"), *own = values_of(graph, weights, "b", ".weight");
        if (round < 2) scale[5] = 0;
        else memset(own + 5 * 7, 0, 7 * sizeof *own);
        values_of(graph, weights, "b.bn", ".bias")[5] = round % 2 ? 3.0f : -3.0f;
        gg_merges *merges = find_merges(graph, units, weights, 0, 1);
        CHECK_INT(merges->count, 1);
        CHECK_INT(merges->merge[0].unit - group->first, 5);
        CHECK(round % 2 ? merges->merge[0].value > 1 : merges->merge[0].value == 0);
        float *whole = run_network(graph, weights, 1), *part = run_merged(graph, units, merges, weights, 1);
        for (int64_t i = 0; i < output_values(graph); i++) CHECK_NEAR(part[i], whole[i], 2e-5);
        free(whole);
        free(part);
        gg_merges_destroy(merges);
        gg_free(weights);
        gg_units_destroy(units);
        gg_graph_destroy(graph);
    }
}

/* With a budget hidden units leave, the ones that reach least; what they change in one step is within the bound. */
static void test_hidden_units_leave(void) {
    for (int layers = 1; layers < 3; layers++) {
        gg_graph *graph = recurrent(layers, true);
        gg_units *units = NULL;
        float *weights = random_arena(graph, 8);
        CHECK_OK(gg_units_find(graph, &units));
        const int group = gg_units_group_named(units, graph, "lstm");
        for (int k = 0; k < gg_graph_parameters(graph); k++) {
            const gg_unit_axis *axis = &units->parameter[k][1];
            const gg_parameter *it = gg_graph_parameter(graph, k);
            for (int64_t r = 0; axis->unit != NULL && r < it->shape.size[0]; r++)
                for (int64_t c = 0; c < axis->count; c++)
                    if (axis->unit[c] == units->group[group].first + 6)
                        weights[it->offset + (size_t)(r * axis->count + c)] *= 1e-3f;
        }
        bool chosen[3] = {false};
        chosen[group] = true;
        gg_merges *merges = NULL;
        const gg_merge_options options = {.budget = 0.01, .least = 1, .groups = chosen, .device = device};
        CHECK_OK(gg_merges_find(graph, units, weights, &options, &merges));
        CHECK_INT(merges->count, 1);
        CHECK_INT(merges->merge[0].unit, units->group[group].first + 6);
        float *whole = run_network(graph, weights, 1), *part = run_merged(graph, units, merges, weights, 1);
        for (int64_t i = 0; i < output_values(graph); i++) CHECK_NEAR(part[i], whole[i], 0.02);
        free(whole);
        free(part);
        gg_merges_destroy(merges);
        gg_free(weights);
        gg_units_destroy(units);
        gg_graph_destroy(graph);
    }
}

/* Hidden units that differ in one gate stay. */
static void test_gates(void) {
    gg_graph *graph = recurrent(1, true);
    gg_units *units = NULL;
    CHECK_OK(gg_units_find(graph, &units));
    const gg_unit_producer *lstm = &units->group[gg_units_group_named(units, graph, "lstm")].producer[0];
    for (int gate = 0; gate < 5; gate++) {
        float *weights = random_arena(graph, 8);
        plant_copy(graph, lstm, weights, 4, 2, 1);
        if (gate < 4) values_of(graph, weights, "lstm", ".weight_hh_l0")[(gate * 9 + 4) * 9 + 1] += 0.01f;
        gg_merges *merges = find_merges(graph, units, weights, 1e-4, 1);
        CHECK_INT(merges->count, gate < 4 ? 0 : 1);
        gg_merges_destroy(merges);
        gg_free(weights);
    }
    gg_units_destroy(units);
    gg_graph_destroy(graph);
}

int main(void) {
    open_device();
    test_planted(mlp(GG_LAYER_INPUT, 9), 10);
    test_planted(mlp(GG_LAYER_RELU, 20), 20);
    test_planted(mlp(GG_LAYER_LEAKY_RELU, 9), 10);
    test_planted(mlp(GG_LAYER_TANH, 9), 10);
    test_planted(mlp(GG_LAYER_SIGMOID, 9), 10);
    test_planted(mlp(GG_LAYER_GELU, 9), 10);
    test_planted(lenet(), 3);
    test_planted(cifar_quick(), 3);
    test_planted(resnet(), 5);
    test_planted(branches(), 5);
    test_planted(normalised(), 5);
    test_planted(rearranged(), 10);
    for (int kind = 0; kind < 8; kind++) test_planted(transformer(5, kind & 1, kind & 2, kind & 4), 4);
    test_planted(recurrent(1, true), 5);
    test_planted(recurrent(2, true), 5);
    test_planted(recurrent(3, false), 5);
    test_bounds();
    test_budgets();
    test_windows();
    test_variances();
    test_options();
    test_heirs();
    test_dead_filters();
    test_hidden_units_leave();
    test_gates();
    if (device) device->table->close(device);
    CHECK_INT(gg_memory_live_bytes(), 0);
    return CHECK_RESULT;
}
