/* The plan: any graph, on any mix of tables and layouts, gives what a plain float64 walk over the graph gives. */
#include "cpu/cpu_backend.h"
#include "fake_backend.h"
#include "nn/choose.h"
#include "nn/plan.h"

#define MAX_NODES 64

static gg_device *native, *onednn; /* onednn: NULL where the core was built without it */

/* Graphs ------------------------------------------------------------------------------------------------------- */

static gg_layer_desc layer(gg_layer_kind kind) {
    static int number = 0;
    gg_layer_desc desc = {.kind = kind, .groups = 1, .bias = true};
    for (int i = 0; i < 2; i++) desc.window.kernel[i] = desc.window.stride[i] = desc.window.dilation[i] = 1;
    snprintf(desc.name, sizeof desc.name, "n%d", number++);
    return desc;
}

static gg_layer_desc window(gg_layer_kind kind, int64_t outputs, int64_t kernel, int64_t stride, int64_t padding) {
    gg_layer_desc desc = layer(kind);
    desc.outputs = outputs;
    for (int i = 0; i < 2; i++) {
        desc.window.kernel[i] = kernel;
        desc.window.stride[i] = stride;
        desc.window.padding[i] = padding;
    }
    return desc;
}

static int add(gg_graph *graph, gg_layer_desc desc, int inputs, const int *input) {
    int node = 0;
    CHECK_OK(gg_graph_add(graph, &desc, NULL, inputs, input, &node));
    return node;
}

static int add1(gg_graph *graph, gg_layer_desc desc, int from) { return add(graph, desc, 1, &from); }

static int linear(gg_graph *graph, int64_t outputs, int from) {
    gg_layer_desc desc = layer(GG_LAYER_LINEAR);
    desc.outputs = outputs;
    return add1(graph, desc, from);
}

static int kind(gg_graph *graph, gg_layer_kind which, int from) { return add1(graph, layer(which), from); }

static int join(gg_graph *graph, gg_layer_kind which, int inputs, const int *input) {
    return add(graph, layer(which), inputs, input);
}

static gg_status finish(gg_graph *graph, int node) { return gg_graph_finish(graph, 1, &(gg_head){.node = node}); }

static gg_graph *start(gg_shape shape) {
    gg_graph *graph = NULL;
    gg_layer_desc desc = layer(GG_LAYER_INPUT);
    CHECK_OK(gg_graph_create(&graph));
    CHECK_OK(gg_graph_add(graph, &desc, &shape, 0, NULL, NULL));
    return graph;
}

static const gg_shape image = {3, {3, 5, 4}};

static uint32_t dice_seed, dice_at;

static int dice(int sides) {
    uint32_t word[4];
    gg_random_key key = {.seed = dice_seed, .purpose = GG_RANDOM_TEST};
    gg_random_block(&key, dice_at++, word);
    return (int)(word[0] % (uint32_t)sides);
}

static const gg_shape *shape_of(const gg_graph *graph, int node) { return &gg_graph_node(graph, node)->shape; }

/* Nodes that `node` could be joined with, itself among them, and any of them twice. */
static int partners(const gg_graph *graph, int node, bool whole, int *out) {
    int count = 0, wanted = 1 + dice(4);
    out[count++] = node;
    for (int tries = 0; tries < 12 && count < wanted; tries++) {
        int other = dice(gg_graph_nodes(graph));
        gg_shape a = *shape_of(graph, node), b = *shape_of(graph, other);
        if (!whole) a.size[0] = b.size[0];
        if (!gg_shape_equal(&a, &b)) continue;
        out[count] = out[0];
        out[0] = other;
        if (dice(2)) {
            out[0] = out[count];
            out[count] = other;
        }
        count++;
    }
    return count;
}

/* A random graph: branches, joins, joins of joins, shared inputs, fusable pairs; all ends meet in the last layer. */
static gg_graph *random_graph(uint32_t seed, bool dropout) {
    dice_seed = seed;
    dice_at = 0;
    gg_shape shape = image;
    if (dice(6) == 0) shape = (gg_shape){1, {7}};
    gg_graph *graph = start(shape);
    for (int more = dice(3); more > 0; more--) {
        gg_layer_desc desc = layer(GG_LAYER_INPUT);
        if (dice(2)) shape.size[0] = 2 + dice(4);
        CHECK_OK(gg_graph_add(graph, &desc, &shape, 0, NULL, NULL));
    }
    int count = 2 + gg_graph_nodes(graph) + dice(14), list[GG_MAX_INPUTS];
    bool used[MAX_NODES] = {false};
    while (gg_graph_nodes(graph) < count) {
        int nodes = gg_graph_nodes(graph), from = dice(2) ? nodes - 1 : dice(nodes), inputs = 1;
        bool flat = shape_of(graph, from)->dims == 1;
        gg_layer_desc desc = layer(GG_LAYER_RELU);
        list[0] = from;
        switch (dice(12)) {
        case 0:
        case 1:
        case 2:
            if (flat) {
                desc = layer(GG_LAYER_LINEAR);
                desc.outputs = 1 + dice(20);
            } else {
                desc = window(GG_LAYER_CONV2D, 1 + dice(6), 1 + 2 * dice(2), 1 + (dice(4) == 0), 1);
                if (shape_of(graph, from)->size[0] == 4 && desc.outputs % 2 == 0) desc.groups = 2;
            }
            desc.bias = dice(3) > 0;
            break;
        case 3:
            if (!flat) desc = window(dice(2) ? GG_LAYER_MAX_POOL2D : GG_LAYER_AVG_POOL2D, 0, 3, 1 + dice(2), 1);
            desc.window.ceil_mode = dice(2);
            desc.window.count_include_pad = dice(2);
            break;
        case 4: desc = layer(GG_LAYER_TANH); break;
        case 5: desc = layer(GG_LAYER_SIGMOID); break;
        case 6: desc = layer(GG_LAYER_FLATTEN); break;
        case 7:
        case 8:
            desc = layer(GG_LAYER_ADD);
            inputs = partners(graph, from, true, list);
            break;
        case 9:
        case 10:
            desc = layer(GG_LAYER_CONCAT);
            inputs = partners(graph, from, false, list);
            break;
        case 11:
            if (dropout) desc = layer(GG_LAYER_DROPOUT);
            desc.probability = 0.4f;
            break;
        default: break;
        }
        if ((desc.kind == GG_LAYER_ADD || desc.kind == GG_LAYER_CONCAT) && inputs < 2) continue;
        for (int i = 0; i < inputs; i++) used[list[i]] = true;
        add(graph, desc, inputs, list);
    }
    int ends = 0, nodes = gg_graph_nodes(graph);
    for (int i = 0; i < nodes; i++) {
        if (used[i]) continue;
        int end = shape_of(graph, i)->dims == 1 ? i : kind(graph, GG_LAYER_FLATTEN, i);
        if (ends == GG_MAX_INPUTS) {
            list[0] = join(graph, GG_LAYER_CONCAT, ends, list);
            ends = 1;
        }
        list[ends++] = end;
    }
    int last = ends > 1 ? join(graph, GG_LAYER_CONCAT, ends, list) : list[0];
    gg_head head[GG_MAX_FIELDS] = {{.node = linear(graph, 3, last)}};
    int heads = 1;
    for (int more = dice(4); more > 0; more--) { /* any node, or a layer of its own behind it */
        int node = dice(nodes), own = dice(3);
        if (own > 0 && shape_of(graph, node)->dims > 1) node = kind(graph, GG_LAYER_FLATTEN, node);
        if (own > 1) node = linear(graph, 2 + dice(3), node);
        for (int k = 0; k < heads; k++) {
            if (head[k].node == node) node = -1;
        }
        if (node >= 0) head[heads++] = (gg_head){.node = node, .training_only = dice(2)};
    }
    CHECK_OK(gg_graph_finish(graph, heads, head));
    return graph;
}

/* The reference --------------------------------------------------------------------------------------------------- */

static const gg_op_kind op_of[GG_LAYER_COUNT] = {
    [GG_LAYER_INPUT] = GG_OP_COUNT,
    [GG_LAYER_CONV2D] = GG_OP_CONV2D,
    [GG_LAYER_LINEAR] = GG_OP_LINEAR,
    [GG_LAYER_MAX_POOL2D] = GG_OP_MAX_POOL2D,
    [GG_LAYER_AVG_POOL2D] = GG_OP_AVG_POOL2D,
    [GG_LAYER_RELU] = GG_OP_RELU,
    [GG_LAYER_TANH] = GG_OP_TANH,
    [GG_LAYER_SIGMOID] = GG_OP_SIGMOID,
    [GG_LAYER_FLATTEN] = GG_OP_REORDER,
    [GG_LAYER_DROPOUT] = GG_OP_DROPOUT,
    [GG_LAYER_ADD] = GG_OP_ADD,
    [GG_LAYER_CONCAT] = GG_OP_CONCAT,
};

static gg_op_desc reference_desc(const gg_graph *graph, int node) {
    const gg_node *it = gg_graph_node(graph, node);
    gg_op_desc desc = {.kind = op_of[it->desc.kind], .inputs = it->inputs, .output = it->shape};
    for (int i = 0; i < it->inputs; i++) desc.input[i] = *shape_of(graph, it->input[i]);
    desc.window = it->desc.window;
    desc.groups = it->desc.groups;
    desc.probability = it->desc.probability;
    return desc;
}

/* Problems: a graph with everything needed to run it */

typedef struct problem {
    gg_graph *graph;
    int64_t batch;
    gg_head_options head[GG_MAX_FIELDS];
    float *x[GG_MAX_FIELDS], *weights, *gradients;
    void *target[GG_MAX_FIELDS];
} problem;

typedef struct answer {
    double loss[GG_MAX_FIELDS]; /* of each head */
    int64_t correct[GG_MAX_FIELDS];
    double *output[GG_MAX_FIELDS]; /* plain */
    double *gradient;              /* arena; NULL: forward only */
} answer;

static void answer_free(answer *it) {
    for (int h = 0; h < GG_MAX_FIELDS; h++) free(it->output[h]);
    free(it->gradient);
}

static int head_node(const gg_graph *graph, int head) { return gg_graph_head(graph, head)->node; }

static int64_t head_values(const problem *p, int head) {
    return gg_shape_count(shape_of(p->graph, head_node(p->graph, head)));
}

/* The losses of all heads, and their gradients in those of their nodes. */
static void reference_losses(const problem *p, double **value, double **grad, answer *out) {
    for (int h = 0; h < gg_graph_heads(p->graph); h++) {
        const int node = head_node(p->graph, h);
        const int64_t values = head_values(p, h);
        double *own = calloc((size_t)(p->batch * values), sizeof(double));
        fake_loss_kernel(p->head[h].loss.kind, p->batch, values, value[node], p->target[p->head[h].target], own,
                         &out->loss[h], &out->correct[h]);
        for (int64_t i = 0; i < p->batch * values; i++) grad[node][i] += (double)p->head[h].weight * own[i];
        free(own);
        out->output[h] = malloc((size_t)(p->batch * values) * sizeof(double));
        memcpy(out->output[h], value[node], (size_t)(p->batch * values) * sizeof(double));
    }
}

static answer reference(const problem *p, bool training, uint32_t rank, uint64_t step) {
    const gg_graph *graph = p->graph;
    const int64_t batch = p->batch;
    const float *weights = p->weights;
    int nodes = gg_graph_nodes(graph);
    double *value[MAX_NODES] = {0}, *grad[MAX_NODES] = {0};
    answer out = {.gradient = calloc(gg_graph_arena_count(graph) + 1, sizeof(double))};
    for (int i = 0, inputs = 0; i < nodes; i++) {
        const bool input = gg_graph_node(graph, i)->inputs == 0;
        value[i] = fake_load(GG_LAYOUT_PLAIN, shape_of(graph, i), batch, input ? p->x[inputs++] : NULL);
        grad[i] = fake_load(GG_LAYOUT_PLAIN, shape_of(graph, i), batch, NULL);
    }
    for (int pass = 0; pass < 2; pass++) {
        for (int at = 0; at < nodes; at++) {
            int i = pass == 0 ? at : nodes - 1 - at;
            const gg_node *it = gg_graph_node(graph, i);
            if (it->inputs == 0) continue;
            gg_op_desc desc = reference_desc(graph, i);
            fake_taps taps = fake_taps_of(&desc);
            int64_t count = gg_shape_count(&desc.output);
            const gg_parameter *w = NULL, *b = NULL;
            for (int k = 0; it->layer >= 0 && k < gg_graph_parameters(graph); k++)
                if (gg_graph_parameter(graph, k)->layer == it->layer) {
                    if (w) b = gg_graph_parameter(graph, k);
                    else w = gg_graph_parameter(graph, k);
                }
            for (int64_t k = 0; pass == 1 && training && desc.kind == GG_OP_DROPOUT && k < batch * count; k++)
                grad[i][k] *= (double)fake_keep(&desc, rank, step, k);
            for (int64_t n = 0; n < batch; n++) {
                const double *in[GG_MAX_INPUTS];
                double *to[GG_MAX_INPUTS];
                for (int k = 0; k < it->inputs; k++) {
                    in[k] = value[it->input[k]] + n * gg_shape_count(&desc.input[k]);
                    to[k] = grad[it->input[k]] + n * gg_shape_count(&desc.input[k]);
                }
                if (pass == 0)
                    fake_forward_sample(&desc, &taps, in, w ? weights + w->offset : NULL,
                                        b ? weights + b->offset : NULL, value[i] + n * count);
                else
                    fake_backward_sample(&desc, &taps, in, value[i] + n * count, grad[i] + n * count,
                                         w ? weights + w->offset : NULL, to, w ? out.gradient + w->offset : NULL,
                                         b ? out.gradient + b->offset : NULL);
            }
            for (int64_t k = 0; pass == 0 && training && desc.kind == GG_OP_DROPOUT && k < batch * count; k++)
                value[i][k] *= (double)fake_keep(&desc, rank, step, k);
            free(taps.tap);
        }
        if (pass == 0) reference_losses(p, value, grad, &out);
    }
    for (int i = 0; i < nodes; i++) {
        free(value[i]);
        free(grad[i]);
    }
    return out;
}

static gg_loss_kind other_loss(const gg_shape *shape, int head) {
    const bool classes = shape->dims == 1 && shape->size[0] > 1 && head % 2 == 1;
    return classes ? GG_LOSS_CROSS_ENTROPY : head % 3 ? GG_LOSS_MEAN_SQUARED_ERROR : GG_LOSS_BINARY_CROSS_ENTROPY;
}

/* `loss` is the main head's; the others have what their shapes allow, with weights and targets of their own. */
static problem problem_of(gg_graph *graph, int64_t batch, gg_loss_kind loss, uint64_t seed) {
    problem p = {.graph = graph, .batch = batch};
    gg_random_key key = {.seed = seed, .purpose = GG_RANDOM_TEST, .step = 1};
    size_t arena = gg_graph_arena_count(graph) * sizeof(float);
    void *block = NULL;
    for (int i = 0; i < gg_graph_inputs(graph); i++, key.step += 100) {
        size_t count = (size_t)gg_shape_count(shape_of(graph, gg_graph_input(graph, i))) * (size_t)batch;
        p.x[i] = malloc(count * sizeof(float));
        gg_random_uniform(&key, count, -1, 1, p.x[i]);
    }
    CHECK_OK(gg_alloc(arena, "weights", &block));
    p.weights = block;
    CHECK_OK(gg_alloc(arena, "gradients", &block));
    p.gradients = block;
    gg_graph_initialise(graph, seed, p.weights);
    key.step = 2;
    for (int h = 0; h < gg_graph_heads(graph); h++, key.step += 100) {
        const gg_loss_kind own = h == 0 ? loss : other_loss(shape_of(graph, head_node(graph, h)), h);
        const int64_t values = head_values(&p, h);
        p.head[h] = (gg_head_options){.loss = {.kind = own}, .weight = h == 0 ? 1 : 0.3f * (float)h, .target = h};
        p.target[h] = malloc((size_t)(batch * values) * sizeof(float));
        gg_random_uniform(&key, (size_t)(batch * values), 0, 1, p.target[h]);
        for (int64_t n = 0; own == GG_LOSS_CROSS_ENTROPY && n < batch; n++)
            ((int32_t *)p.target[h])[n] = (int32_t)((n * 7 + (int64_t)seed) % values);
    }
    return p;
}

static void problem_free(problem *p) {
    gg_graph_destroy(p->graph);
    gg_free(p->weights);
    gg_free(p->gradients);
    for (int i = 0; i < GG_MAX_FIELDS; i++) {
        free(p->x[i]);
        free(p->target[i]);
    }
}

static void fill_input(gg_plan *plan, const problem *p) {
    for (int i = 0; i < gg_plan_inputs(plan); i++) {
        const gg_shape *shape = shape_of(p->graph, gg_graph_input(p->graph, i));
        const gg_format format = gg_plan_input_format(plan, i);
        if (gg_plan_input(plan, i) == NULL) continue;
        CHECK(format.dtype == GG_FLOAT32);
        CHECK(format.layout == GG_LAYOUT_PLAIN || format.layout == GG_LAYOUT_BATCH_LAST);
        double *x = fake_load(GG_LAYOUT_PLAIN, shape, p->batch, p->x[i]);
        fake_store(format.layout, shape, p->batch, x, gg_plan_input(plan, i));
        free(x);
    }
}

static gg_plan_batch batch_of(const problem *p) {
    gg_plan_batch batch = {0};
    for (int i = 0; i < GG_MAX_FIELDS; i++) batch.target[i] = p->target[i];
    return batch;
}

static gg_plan_memory *shared; /* of the plans that are made; NULL: each has its own */
static gg_conv_algorithm conv_algorithm = GG_CONV_DIRECT;
static gg_conv_choice conv_choice[2];
static int conv_choices;

static gg_status make(const problem *p, gg_device *device, gg_device *fallback, bool choose, bool training,
                      gg_plan **out) {
    gg_plan_options options = {.batch = p->batch,
                               .training = training,
                               .device = device,
                               .fallback = fallback,
                               .choose = choose,
                               .conv_algorithm = conv_algorithm,
                               .conv_choice = conv_choice,
                               .conv_choices = conv_choices,
                               .seed = 5,
                               .rank = 2,
                               .memory = shared};
    memcpy(options.head, p->head, sizeof options.head);
    return gg_plan_create(p->graph, &options, out);
}

/* Largest difference, relative to the largest value. */
static double distance(const float *a, const double *b, size_t n) {
    double most = 0, scale = 1e-3;
    for (size_t i = 0; i < n; i++) {
        if (!isfinite(a[i])) return INFINITY;
        most = fmax(most, fabs((double)a[i] - b[i]));
        scale = fmax(scale, fabs(b[i]));
    }
    return most / scale;
}

typedef struct tables {
    const char *name;
    gg_device *device, *fallback;
    bool choose;
} tables;

/* What is trained, of all samples. */
static double total(const problem *p, const answer *it) {
    double sum = 0;
    for (int h = 0; h < gg_graph_heads(p->graph); h++) sum += (double)p->head[h].weight * it->loss[h];
    return sum;
}

/* Whether the losses of a plan's heads are those of the reference. */
static void check_sums(const problem *p, const gg_loss_sums *sums, const answer *wanted, bool training,
                       double tolerance) {
    for (int h = 0; h < gg_graph_heads(p->graph); h++) {
        const bool used = training || !gg_graph_head(p->graph, h)->training_only;
        const bool binary = p->head[h].loss.kind == GG_LOSS_BINARY_CROSS_ENTROPY;
        CHECK_NEAR(sums[h].loss_sum, used ? wanted->loss[h] : 0, tolerance * (double)p->batch);
        CHECK(sums[h].divisor == (used ? (double)p->batch : 0));
        CHECK(binary || sums[h].correct == (used ? wanted->correct[h] : 0));
    }
}

/* Predicts some of the samples; rows behind them must stay as they are, and of training-only heads all of them. */
static void check_outputs(const problem *p, gg_plan *plan, const answer *wanted, double tolerance) {
    const int64_t some = (p->batch + 1) / 2;
    float *output[GG_MAX_FIELDS] = {NULL};
    for (int h = 0; h < gg_graph_heads(p->graph); h++) {
        const size_t count = (size_t)(p->batch * head_values(p, h));
        output[h] = malloc(count * sizeof(float));
        for (size_t i = 0; i < count; i++) output[h][i] = -77;
    }
    CHECK_OK(gg_plan_predict(plan, p->weights, 0, &(gg_plan_batch){0}, some, output));
    for (int h = 0; h < gg_graph_heads(p->graph); h++) {
        const int64_t rows = gg_graph_head(p->graph, h)->training_only ? 0 : some;
        const size_t values = (size_t)head_values(p, h);
        CHECK_NEAR(distance(output[h], wanted->output[h], (size_t)rows * values), 0, tolerance);
        for (size_t i = (size_t)rows * values; i < (size_t)p->batch * values; i++) CHECK(output[h][i] == -77);
        free(output[h]);
    }
}

/* Trains, evaluates and predicts on these tables and compares with the reference; twice, as a step must leave no trace.
 */
static bool compare(const problem *p, const tables *t, bool dropout, double tolerance) {
    long failed = check_failed;
    const uint64_t step = 11;
    gg_plan *plan = NULL, *still = NULL;
    gg_loss_sums sums[GG_MAX_FIELDS];
    const gg_plan_batch batch = batch_of(p);
    size_t arena = gg_graph_arena_count(p->graph);
    answer train = reference(p, true, 2, step), plain = reference(p, false, 2, step);
    CHECK(dropout || train.loss[0] == plain.loss[0]);
    if (CHECK_OK(make(p, t->device, t->fallback, t->choose, true, &plan))) {
        fill_input(plan, p);
        for (int again = 0; again < 2; again++) {
            for (size_t i = 0; i < arena; i++) p->gradients[i] = 0;
            CHECK_OK(gg_plan_train(plan, p->weights, p->gradients, &batch, step, NULL, sums, NULL));
            check_sums(p, sums, &train, true, tolerance);
            CHECK_NEAR(gg_heads_total_loss(p->head, gg_graph_heads(p->graph), sums, p->batch), total(p, &train),
                       4 * tolerance * (double)p->batch);
            CHECK_NEAR(distance(p->gradients, train.gradient, arena), 0, tolerance);
        }
        CHECK_OK(gg_plan_evaluate(plan, p->weights, 0, &batch, sums));
        check_sums(p, sums, &plain, true, tolerance);
    }
    if (CHECK_OK(make(p, t->device, t->fallback, t->choose, false, &still))) {
        fill_input(still, p);
        CHECK_OK(gg_plan_evaluate(still, p->weights, 0, &batch, sums));
        check_sums(p, sums, &plain, false, tolerance);
        check_outputs(p, still, &plain, tolerance);
        /* A table may take another layout for training, as may dropout as the input's first reader. */
        bool alike = !dropout && t->device != onednn;
        CHECK(!alike || plan == NULL || gg_plan_bytes(still) - gg_plan_prepared_bytes(still) <= gg_plan_bytes(plan));
    }
    gg_plan_destroy(plan);
    gg_plan_destroy(still);
    answer_free(&train);
    answer_free(&plain);
    if (check_failed != failed) fprintf(stderr, "  on tables %s, batch %lld\n", t->name, (long long)p->batch);
    return check_failed == failed;
}

static const tables fakes[] = {
    {"plain", &fake_plain, NULL, false},
    {"lanes", &fake_lanes, &fake_plain, false},
    {"channels", &fake_channels, &fake_plain, false},
    {"channels and lanes", &fake_channels, &fake_lanes, false},
};
#define FAKES (int)(sizeof fakes / sizeof fakes[0])

/* No reorder leads from the lanes table to the channels one, unless the plain table's are there too. */
static gg_device mixed_device;
static gg_backend mixed_table;

static gg_status mixed_reorder(gg_device *device, const gg_op_desc *desc, gg_op **out) {
    (void)device;
    if (fake_create_reorder(&fake_plain, desc, out) == GG_OK) return GG_OK;
    return fake_create_reorder(&fake_channels, desc, out);
}

/* Convolutions in channels, poolings in lanes, the rest plain: a reorder at almost every edge, some by way of PLAIN. */
static void make_mixed(void) {
    mixed_table = fake_plain_table;
    mixed_table.name = "mixed";
    mixed_table.create[GG_OP_CONV2D] = fake_create_channels;
    mixed_table.create[GG_OP_MAX_POOL2D] = fake_create_lanes;
    mixed_table.create[GG_OP_AVG_POOL2D] = fake_create_lanes;
    mixed_table.create[GG_OP_CONCAT] = fake_create_lanes;
    mixed_table.create[GG_OP_TANH] = fake_create_lanes;
    mixed_table.create[GG_OP_REORDER] = mixed_reorder;
    mixed_device = (gg_device){.table = &mixed_table, .threads = 1};
}

/* Tests --------------------------------------------------------------------------------------------------------------
 */

/* The reference's gradients against central differences in double precision (weights moved in float32). */
static void test_reference(void) {
    for (uint32_t seed = 1; seed <= 12; seed++) {
        problem p = problem_of(random_graph(seed, false), 2, (gg_loss_kind)(seed % 3), seed);
        answer base = reference(&p, true, 0, 0);
        for (int i = 0; i < gg_graph_parameters(p.graph); i++) {
            const gg_parameter *parameter = gg_graph_parameter(p.graph, i);
            float *w = p.weights + parameter->offset + (parameter->count * 2) / 3, before = *w;
            *w = before + 1e-3f;
            answer up = reference(&p, true, 0, 0);
            double high = (double)*w;
            *w = before - 1e-3f;
            answer down = reference(&p, true, 0, 0);
            double slope = (total(&p, &up) - total(&p, &down)) / (high - (double)*w) / (double)p.batch;
            *w = before;
            CHECK_NEAR(base.gradient[w - p.weights], slope, 2e-5 + 1e-3 * fabs(slope));
            answer_free(&up);
            answer_free(&down);
        }
        answer_free(&base);
        problem_free(&p);
    }
}

static void test_random_graphs(void) {
    static const int64_t batches[] = {1, 2, 5, 16, 17};
    tables mixed = {"mixed", &mixed_device, &fake_plain, false}, own = {"native", native, NULL, false};
    tables dnn = {"onednn and native", onednn, native, false}, chosen = {"the faster of both", onednn, native, true};
    for (uint32_t seed = 1; seed <= 300; seed++) {
        bool good = true, dropout = seed % 3 == 0;
        problem p = problem_of(random_graph(seed, dropout), batches[seed % 5], (gg_loss_kind)(seed % 3), seed);
        for (int t = 0; t < FAKES - 1; t++) good &= compare(&p, &fakes[t], dropout, 2e-4);
        good &= compare(&p, &mixed, dropout, 2e-4);
        if (!dropout) good &= compare(&p, &own, false, 2e-4); /* its masks are not the reference's */
        if (!dropout && onednn) good &= compare(&p, &dnn, false, 2e-4) && compare(&p, &chosen, false, 2e-4);
        problem_free(&p);
        if (!good) fprintf(stderr, "  random graph %u\n", seed);
    }
}

/* Shapes of networks that matter, each made for one way of the planner. */
static gg_graph *named_graph(int which) {
    gg_graph *graph = start(image);
    int a, b, c, d, end = 0;
    switch (which) {
    case 0: /* residual: a ReLU that must not be fused, as the addition reads the convolution too */
        a = add1(graph, window(GG_LAYER_CONV2D, 4, 3, 1, 1), 0);
        b = kind(graph, GG_LAYER_RELU, a);
        c = kind(graph, GG_LAYER_RELU, add1(graph, window(GG_LAYER_CONV2D, 4, 3, 1, 1), b));
        d = join(graph, GG_LAYER_ADD, 3, (int[]){c, a, b});
        end = kind(graph, GG_LAYER_RELU, d);
        break;
    case 1: /* inception: slices with readers of their own, and a join of joins */
        a = kind(graph, GG_LAYER_RELU, add1(graph, window(GG_LAYER_CONV2D, 4, 1, 1, 0), 0));
        b = kind(graph, GG_LAYER_RELU, add1(graph, window(GG_LAYER_CONV2D, 2, 3, 1, 1), a));
        c = join(graph, GG_LAYER_CONCAT, 2, (int[]){a, b});
        d = kind(graph, GG_LAYER_TANH, b);
        c = join(graph, GG_LAYER_CONCAT, 2, (int[]){c, d});
        end = join(graph, GG_LAYER_ADD, 2, (int[]){add1(graph, window(GG_LAYER_CONV2D, 4, 3, 1, 1), c), a});
        break;
    case 2: /* dense: one value in several joins, one twice in a join */
        a = add1(graph, window(GG_LAYER_CONV2D, 2, 3, 1, 1), 0);
        b = join(graph, GG_LAYER_CONCAT, 2, (int[]){0, a});
        c = add1(graph, window(GG_LAYER_CONV2D, 2, 3, 1, 1), b);
        d = join(graph, GG_LAYER_CONCAT, 3, (int[]){c, a, c});
        end = join(graph, GG_LAYER_CONCAT, 2, (int[]){d, b});
        break;
    case 3: /* the same value twice in a sum, and a flattened value beside the image */
        a = add1(graph, window(GG_LAYER_CONV2D, 2, 3, 2, 1), 0);
        b = join(graph, GG_LAYER_ADD, 2, (int[]){a, a});
        c = kind(graph, GG_LAYER_FLATTEN, b);
        d = kind(graph, GG_LAYER_FLATTEN, kind(graph, GG_LAYER_SIGMOID, b));
        end = join(graph, GG_LAYER_ADD, 2, (int[]){c, d});
        break;
    case 4: /* no parameters before a join: half of its inputs want no gradient */
        a = kind(graph, GG_LAYER_TANH, 0);
        b = add1(graph, window(GG_LAYER_CONV2D, 3, 3, 1, 1), 0);
        c = join(graph, GG_LAYER_ADD, 2, (int[]){a, b});
        end = join(graph, GG_LAYER_CONCAT, 3, (int[]){a, c, 0});
        break;
    default: /* in place from end to end */
        a = add1(graph, window(GG_LAYER_CONV2D, 3, 3, 1, 1), 0);
        b = add1(graph, window(GG_LAYER_MAX_POOL2D, 0, 3, 1, 1), a);
        c = kind(graph, GG_LAYER_SIGMOID, kind(graph, GG_LAYER_TANH, kind(graph, GG_LAYER_RELU, b)));
        d = join(graph, GG_LAYER_ADD, 2, (int[]){c, kind(graph, GG_LAYER_RELU, c)});
        end = kind(graph, GG_LAYER_TANH, d);
        break;
    }
    if (shape_of(graph, end)->dims > 1) end = kind(graph, GG_LAYER_FLATTEN, end);
    CHECK_OK(finish(graph, linear(graph, 3, end)));
    return graph;
}

static void test_named_graphs(void) {
    tables mixed = {"mixed", &mixed_device, &fake_plain, false}, own = {"native", native, NULL, false};
    tables dnn = {"onednn and native", onednn, native, false}, chosen = {"the faster of both", onednn, native, true};
    tables both = {"plain and native", &fake_plain, native, true};
    for (int which = 0; which < 6; which++) {
        problem p = problem_of(named_graph(which), 5, GG_LOSS_CROSS_ENTROPY, 3);
        bool good = true;
        for (int t = 0; t < FAKES - 1; t++) good &= compare(&p, &fakes[t], false, 1e-4);
        good &= compare(&p, &mixed, false, 1e-4);
        good &= compare(&p, &own, false, 1e-4) && compare(&p, &both, false, 1e-4);
        if (onednn) good &= compare(&p, &dnn, false, 1e-4) && compare(&p, &chosen, false, 1e-4);
        if (!good) fprintf(stderr, "  named graph %d\n", which);
        problem_free(&p);
    }
}

/* What the plan made of the nodes: fusion, views, tables. */
static void test_choices(void) {
    gg_graph *graph = start(image);
    int conv = add1(graph, window(GG_LAYER_CONV2D, 4, 3, 1, 1), 0), relu = kind(graph, GG_LAYER_RELU, conv);
    int other = add1(graph, window(GG_LAYER_CONV2D, 2, 3, 1, 1), relu);
    int both = join(graph, GG_LAYER_CONCAT, 2, (int[]){relu, other}), flat = kind(graph, GG_LAYER_FLATTEN, both);
    int end = linear(graph, 3, flat);
    CHECK_OK(finish(graph, end));
    problem p = problem_of(graph, 9, GG_LOSS_CROSS_ENTROPY, 1);
    gg_plan *plan = NULL;
    CHECK_OK(make(&p, &fake_lanes, &fake_plain, false, true, &plan));
    CHECK_INT(gg_plan_input_format(plan, 0).layout, GG_LAYOUT_BATCH_LAST);
    CHECK_TEXT(gg_plan_node_backend(plan, 0), "");
    CHECK_TEXT(gg_plan_node_backend(plan, conv), "fake-lanes");
    CHECK_TEXT(gg_plan_node_backend(plan, relu), "");
    CHECK_TEXT(gg_plan_node_backend(plan, both), "");
    CHECK_TEXT(gg_plan_node_backend(plan, flat), "");
    CHECK_TEXT(gg_plan_node_backend(plan, end), "fake-lanes");
    gg_plan_destroy(plan);
    CHECK_OK(make(&p, &fake_plain, NULL, false, true, &plan));
    CHECK_INT(gg_plan_input_format(plan, 0).layout, GG_LAYOUT_PLAIN);
    CHECK_TEXT(gg_plan_node_backend(plan, both), "fake-plain");
    gg_plan_destroy(plan);
    CHECK_OK(make(&p, &fake_channels, &fake_plain, false, true, &plan));
    CHECK_INT(gg_plan_input_format(plan, 0).layout, GG_LAYOUT_PLAIN);
    CHECK_TEXT(gg_plan_node_backend(plan, conv), "fake-channels");
    CHECK_TEXT(gg_plan_node_backend(plan, relu), "fake-plain"); /* the first table comes before fusion */
    gg_plan_destroy(plan);
    problem_free(&p);
}

/* One layer on 8x8 pixels; groups 0: a linear one. */
static gg_graph *one_layer(int64_t channels, int64_t outputs, int64_t groups) {
    gg_graph *graph = start((gg_shape){3, {channels, 8, 8}});
    gg_layer_desc desc = window(GG_LAYER_CONV2D, outputs, 3, 1, 1);
    desc.groups = groups;
    const int input = gg_graph_input(graph, 0);
    CHECK_OK(finish(graph, groups > 0 ? add1(graph, desc, input)
                                      : linear(graph, outputs, kind(graph, GG_LAYER_FLATTEN, input))));
    return graph;
}

/* The smallest batch of up to 16 for which the native table is asked first; 0: none. */
static int64_t native_from_at(gg_isa isa, gg_conv_algorithm algorithm, int64_t channels, int64_t outputs,
                              int64_t groups) {
    gg_device *order[2], device = fake_plain;
    gg_graph *graph = one_layer(channels, outputs, groups);
    gg_plan_options options = {
        .batch = 16, .device = &device, .fallback = native, .choose = true, .conv_algorithm = algorithm};
    device.isa = isa;
    int64_t found = 0;
    for (; options.batch > 0; --options.batch) {
        CHECK_INT(gg_choose_devices(graph, &options, order), 2);
        CHECK(order[0] != order[1] && (order[0] == native || order[1] == native));
        if (order[0] == native) found = options.batch;
    }
    gg_graph_destroy(graph);
    return found;
}

static int64_t native_from(int64_t channels, int64_t outputs, int64_t groups) {
    return native_from_at(GG_ISA_AVX512, GG_CONV_AUTO, channels, outputs, groups);
}

/* The order of the tables: the native one first where it pads its lanes less than the other one its channels, if the
 * plan may choose. */
static void test_order(void) {
    CHECK_INT(native_from(32, 64, 1), 16);
    CHECK_INT(native_from(3, 32, 1), 16);
    CHECK_INT(native_from(20, 50, 1), 11); /* 32 * 64 / (20 * 50) = 2.05 times the work */
    CHECK_INT(native_from(1, 20, 1), 13);
    CHECK_INT(native_from(20, 20, 20), 16);
    CHECK_INT(native_from(1, 10, 0), 11);

    /* Winograd's method, which the other table has not without AVX-512. */
    CHECK_INT(native_from(64, 64, 1), 16);
    CHECK_INT(native_from_at(GG_ISA_AVX2, GG_CONV_AUTO, 64, 64, 1), 7);
    CHECK_INT(native_from_at(GG_ISA_AVX512F, GG_CONV_WINOGRAD, 64, 64, 1), 7);
    CHECK_INT(native_from_at(GG_ISA_AVX2, GG_CONV_DIRECT, 64, 64, 1), 16);
    CHECK_INT(native_from_at(GG_ISA_AVX2, GG_CONV_AUTO, 32, 64, 1), 16);
    CHECK_INT(native_from_at(GG_ISA_AVX2, GG_CONV_AUTO, 64, 64, 64), 16);

    gg_graph *graph = one_layer(3, 32, 1);
    gg_plan_options options = {.batch = 64, .device = &fake_plain, .fallback = native};
    gg_device *order[2];
    CHECK_INT(gg_choose_devices(graph, &options, order), 2);
    CHECK(order[0] == &fake_plain && order[1] == native);
    options.choose = true;
    options.fallback = options.device;
    CHECK_INT(gg_choose_devices(graph, &options, order), 1);
    options.fallback = NULL;
    CHECK_INT(gg_choose_devices(graph, &options, order), 1);
    CHECK(order[0] == &fake_plain);
    gg_graph_destroy(graph);
}

/* Activations share memory: beside the prepared weights, a long chain takes no more than a short one without training,
 * and less than twice with. */
static void test_memory(void) {
    size_t bytes[2][2];
    for (int size = 0; size < 2; size++) {
        gg_graph *graph = start((gg_shape){3, {4, 16, 16}});
        int at = 0;
        for (int i = 0; i < (size ? 24 : 6); i++)
            at = kind(graph, GG_LAYER_TANH, add1(graph, window(GG_LAYER_CONV2D, 4, 3, 1, 1), at));
        CHECK_OK(finish(graph, linear(graph, 2, kind(graph, GG_LAYER_FLATTEN, at))));
        problem p = problem_of(graph, 4, GG_LOSS_CROSS_ENTROPY, 1);
        for (int training = 0; training < 2; training++) {
            gg_plan *plan = NULL;
            CHECK_OK(make(&p, &fake_plain, NULL, false, training, &plan));
            bytes[size][training] = gg_plan_bytes(plan) - gg_plan_prepared_bytes(plan);
            gg_plan_destroy(plan);
        }
        problem_free(&p);
    }
    size_t one = 4 * 16 * 16 * 4 * sizeof(float);
    CHECK_INT(bytes[0][0], bytes[1][0]);
    CHECK(bytes[0][0] < 3 * one + 4096); /* the input, and two in turn */
    /* tanh in place of the convolution: one activation a pair, the input, and two gradients at most */
    CHECK(bytes[1][1] < 27 * one + 4096);
}

typedef struct journal {
    int need[16], ready[16], needs, readies, polls, fail_at;
} journal;

static gg_status log_need(void *context, int number) {
    journal *it = context;
    it->need[it->needs++ % 16] = number;
    return GG_OK;
}

static gg_status log_ready(void *context, int number) {
    journal *it = context;
    it->ready[it->readies++ % 16] = number;
    return GG_OK;
}

static gg_status log_poll(void *context) {
    journal *it = context;
    if (++it->polls == it->fail_at) return gg_fail(GG_ERROR_CANCELLED, "enough");
    return GG_OK;
}

/* Every pass that is run has seconds if the plan was timed, moves its operands, and says who computes it. */
static void check_profile(const gg_plan *plan, const gg_graph *graph, bool timed) {
    for (int s = 0; s < gg_plan_steps(plan); s++) {
        const gg_step_profile step = gg_plan_step_profile(plan, s);
        CHECK(step.nodes >= 1 && step.node[0] < gg_graph_nodes(graph) && step.pass[GG_PASS_FORWARD].products == 1);
        for (int pass = 0; pass < GG_PASS_COUNT; pass++) {
            const gg_pass_profile *one = &step.pass[pass];
            if (one->products == 0) continue;
            CHECK((one->seconds > 0) == timed && one->bytes > 0 && one->backend != NULL);
        }
    }
    CHECK((gg_plan_loss_seconds(plan) > 0) == timed);
}

static void test_hooks(void) {
    problem p = problem_of(named_graph(1), 3, GG_LOSS_CROSS_ENTROPY, 3);
    const gg_plan_batch batch = batch_of(&p);
    for (int t = 0; t < 3; t++) {
        gg_plan *plan = NULL;
        journal seen = {0};
        gg_plan_hooks hooks = {.context = &seen, .need = log_need, .ready = log_ready, .poll = log_poll};
        int layers = gg_graph_layers(p.graph);
        CHECK_OK(make(&p, fakes[t].device, fakes[t].fallback, false, true, &plan));
        fill_input(plan, &p);
        CHECK_OK(gg_plan_train(plan, p.weights, p.gradients, &batch, 1, &hooks, NULL, NULL));
        CHECK_INT(seen.needs, layers);
        CHECK_INT(seen.readies, layers);
        for (int i = 0; i < layers; i++) {
            CHECK_INT(seen.need[i], i);
            CHECK_INT(seen.ready[i], layers - 1 - i);
        }
        CHECK(seen.polls > 2 * layers);
        seen.fail_at = seen.polls + 3;
        CHECK_FAILS(gg_plan_train(plan, p.weights, p.gradients, &batch, 1, &hooks, NULL, NULL), GG_ERROR_CANCELLED,
                    "enough");
        hooks = (gg_plan_hooks){0};
        CHECK_OK(gg_plan_train(plan, p.weights, p.gradients, &batch, 1, &hooks, NULL, NULL));

        int64_t made = gg_memory_allocations();
        gg_plan_set_timing(plan, true);
        for (int i = 0; i < 3; i++) CHECK_OK(gg_plan_train(plan, p.weights, p.gradients, &batch, 1, NULL, NULL, NULL));
        CHECK_INT(gg_memory_allocations(), made);
        check_profile(plan, p.graph, true);
        gg_plan_set_timing(plan, true);
        check_profile(plan, p.graph, false);
        gg_plan_destroy(plan);
    }
    problem_free(&p);
}

static gg_status refuse(gg_device *device, const gg_op_desc *desc, gg_op **out) {
    (void)device, (void)desc, (void)out;
    return gg_fail(GG_ERROR_UNSUPPORTED, "a pity");
}

static gg_status break_down(gg_op *op, const gg_op_args *args) {
    (void)op, (void)args;
    return gg_fail(GG_ERROR_BACKEND, "smoke");
}

static const gg_op_class broken_class = {.forward = fake_forward, .backward_data = break_down, .destroy = fake_destroy};

static gg_status create_broken(gg_device *device, const gg_op_desc *desc, gg_op **out) {
    gg_status status = fake_create_plain(device, desc, out);
    if (status == GG_OK) (*out)->type = &broken_class;
    return status;
}

/* The gradients of one step, the same whatever was in the memory before. */
static void check_step(const problem *p, gg_plan *plan, const float *wanted) {
    const gg_plan_batch batch = batch_of(p);
    CHECK_OK(gg_plan_activate(plan));
    fill_input(plan, p);
    CHECK_OK(gg_plan_train(plan, p->weights, p->gradients, &batch, 7, NULL, NULL, NULL));
    CHECK(memcmp(p->gradients, wanted, gg_graph_arena_count(p->graph) * sizeof(float)) == 0);
}

/* Plans that share their memory, of two graphs and batch sizes, in turns. */
static void test_shared_memory(void) {
    for (uint32_t seed = 1; seed <= 24; seed++) {
        gg_device *device = seed % 2 ? fakes[seed % FAKES].device : native;
        problem p[2];
        gg_plan *plan[2] = {NULL};
        float *wanted[2];
        gg_plan_memory memory = {0};
        for (int i = 0; i < 2; i++) {
            gg_graph *graph = random_graph(seed + 50 * (uint32_t)i, true);
            p[i] = problem_of(graph, 3 + 2 * i, GG_LOSS_CROSS_ENTROPY, seed);
            const gg_plan_batch batch = batch_of(&p[i]);
            const size_t bytes = gg_graph_arena_count(p[i].graph) * sizeof(float);
            CHECK_OK(make(&p[i], device, &fake_plain, false, true, &plan[i]));
            fill_input(plan[i], &p[i]);
            memset(p[i].gradients, 0, bytes);
            CHECK_OK(gg_plan_train(plan[i], p[i].weights, p[i].gradients, &batch, 7, NULL, NULL, NULL));
            wanted[i] = malloc(bytes);
            memcpy(wanted[i], p[i].gradients, bytes);
            gg_plan_destroy(plan[i]);
        }
        shared = &memory;
        for (int i = 0; i < 2; i++) CHECK_OK(make(&p[i], device, &fake_plain, false, true, &plan[i]));
        shared = NULL;
        for (int turn = 0; turn < 4; turn++) check_step(&p[turn % 2], plan[turn % 2], wanted[turn % 2]);
        CHECK(memory.bytes >= gg_plan_bytes(plan[0]) && memory.bytes >= gg_plan_bytes(plan[1]));
        CHECK(memory.bytes == gg_plan_bytes(plan[0]) || memory.bytes == gg_plan_bytes(plan[1]));
        const int64_t made = gg_memory_allocations();
        for (int turn = 0; turn < 4; turn++) CHECK_OK(gg_plan_activate(plan[turn % 2]));
        CHECK_INT(gg_memory_allocations(), made);
        memset(memory.block, 0xff, memory.bytes); /* as floats: NaN, also where a plan writes no lane */
        CHECK_OK(gg_plan_activate(plan[0]));
        size_t dirty = 0;
        for (size_t i = 0; i < gg_plan_bytes(plan[0]); i++) dirty += memory.block[i] != 0;
        CHECK_INT(dirty, 0);
        CHECK_OK(gg_plan_activate(plan[1]));
        gg_plan_destroy(plan[1]);
        CHECK(memory.user == NULL);
        check_step(&p[0], plan[0], wanted[0]);
        gg_plan_destroy(plan[0]);
        gg_plan_memory_release(&memory);
        for (int i = 0; i < 2; i++) {
            problem_free(&p[i]);
            free(wanted[i]);
        }
    }
}

/* Evaluates and gives the loss; *prepares: how many operations have prepared their weights. */
static double loss_of(const problem *p, gg_plan *plan, uint64_t version, int *prepares) {
    gg_loss_sums sums[GG_MAX_FIELDS] = {{0}};
    const gg_plan_batch batch = batch_of(p);
    const int before = fake_prepares;
    fill_input(plan, p);
    CHECK_OK(gg_plan_evaluate(plan, p->weights, version, &batch, sums));
    *prepares = fake_prepares - before;
    return sums[0].loss_sum;
}

/* Weights are prepared in each step of training, and in evaluation where they may have changed since the last run. */
static void test_prepared(void) {
    gg_graph *graph = start((gg_shape){3, {2, 5, 4}});
    int at = add1(graph, window(GG_LAYER_CONV2D, 3, 3, 1, 1), 0), prepares;
    at = add1(graph, window(GG_LAYER_CONV2D, 2, 2, 1, 0), at);
    CHECK_OK(finish(graph, linear(graph, 3, kind(graph, GG_LAYER_FLATTEN, at))));
    problem p = problem_of(graph, 2, GG_LOSS_CROSS_ENTROPY, 1);
    const gg_plan_batch batch = batch_of(&p);
    gg_plan_memory memory = {0};
    gg_plan *plan[2] = {NULL}, *training = NULL;
    shared = &memory;
    for (int i = 0; i < 2; i++) CHECK_OK(make(&p, &fake_plain, NULL, false, false, &plan[i]));
    CHECK_OK(make(&p, &fake_plain, NULL, false, true, &training));
    shared = NULL;

    CHECK_OK(gg_plan_activate(plan[0]));
    const double first = loss_of(&p, plan[0], 1, &prepares);
    CHECK_INT(prepares, 2);
    const float weight = p.weights[0];
    p.weights[0] += 3;
    CHECK(loss_of(&p, plan[0], 1, &prepares) == first);
    CHECK_INT(prepares, 0);
    const double second = loss_of(&p, plan[0], 2, &prepares);
    CHECK_INT(prepares, 2);
    CHECK(second != first);
    p.weights[0] = weight;
    CHECK(loss_of(&p, plan[0], 0, &prepares) == first);
    CHECK_INT(prepares, 2);
    p.weights[0] += 3;
    CHECK(loss_of(&p, plan[0], 0, &prepares) == second);
    CHECK_INT(prepares, 2);

    /* Another plan has used the memory. */
    loss_of(&p, plan[0], 5, &prepares);
    CHECK_OK(gg_plan_activate(plan[1]));
    CHECK(loss_of(&p, plan[1], 5, &prepares) == second);
    CHECK_INT(prepares, 2);
    CHECK_OK(gg_plan_activate(plan[0]));
    CHECK(loss_of(&p, plan[0], 5, &prepares) == second);
    CHECK_INT(prepares, 2);

    CHECK_OK(gg_plan_activate(training));
    for (int i = 0; i < 2; i++) {
        const int before = fake_prepares;
        fill_input(training, &p);
        CHECK_OK(gg_plan_train(training, p.weights, p.gradients, &batch, 1, NULL, NULL, NULL));
        CHECK_INT(fake_prepares - before, 4); /* for forward and for backward */
    }
    const size_t bytes = gg_graph_arena_count(graph) * sizeof(float);
    float *wanted = malloc(bytes);
    memcpy(wanted, p.gradients, bytes);
    gg_plan_destroy(training);
    fake_prepared_once = true;
    CHECK_OK(make(&p, &fake_plain, NULL, false, true, &training)); /* once for both passes */
    fake_prepared_once = false;
    const int before = fake_prepares;
    fill_input(training, &p);
    CHECK_OK(gg_plan_train(training, p.weights, p.gradients, &batch, 1, NULL, NULL, NULL));
    CHECK_INT(fake_prepares - before, 2);
    CHECK(memcmp(wanted, p.gradients, bytes) == 0);
    free(wanted);
    for (int i = 0; i < 2; i++) gg_plan_destroy(plan[i]);
    gg_plan_destroy(training);
    gg_plan_memory_release(&memory);
    problem_free(&p);
}

static void check_algorithms(const problem *p, gg_device *device, gg_device *fallback, int node,
                             const gg_algorithm wanted[GG_PASS_COUNT], bool exactly) {
    gg_plan *plan = NULL;
    if (!CHECK_OK(make(p, device, fallback, true, true, &plan))) return;
    for (int pass = 0; pass < GG_PASS_COUNT; pass++) {
        const char *backend = "";
        gg_algorithm algorithm = GG_ALGORITHM_COUNT;
        CHECK(gg_plan_node_algorithm(plan, node, (gg_pass)pass, &backend, &algorithm));
        if (exactly) CHECK_TEXT(gg_algorithm_name(algorithm), gg_algorithm_name(wanted[pass]));
        if (algorithm != GG_ALGORITHM_DIRECT) CHECK_TEXT(backend, "native");
    }
    gg_plan_destroy(plan);
}

/* Each pass of a convolution by any algorithm gives the same results, whichever the others have. */
static void test_algorithms(void) {
    gg_graph *graph = start((gg_shape){3, {5, 9, 7}});
    const int before = add1(graph, window(GG_LAYER_CONV2D, 18, 3, 1, 1), 0);
    const int first = add1(graph, window(GG_LAYER_CONV2D, 17, 3, 1, 1), before);
    int at = kind(graph, GG_LAYER_RELU, first);
    CHECK_OK(finish(graph, linear(graph, 3, kind(graph, GG_LAYER_FLATTEN, at))));
    problem p = problem_of(graph, 3, GG_LOSS_CROSS_ENTROPY, 1);
    const tables both[2] = {{"native", native, NULL, false}, {"onednn first", onednn, native, false}};
    conv_algorithm = GG_CONV_AUTO;
    conv_choices = 1;
    memset(conv_choice, 0, sizeof conv_choice);
    conv_choice[0].key = (gg_conv_key){.batch = 3,
                                       .input = {18, 9, 7},
                                       .output = 17,
                                       .padding = {1, 1},
                                       .bias = true,
                                       .relu = true,
                                       .kernel = {3, 3},
                                       .stride = {1, 1},
                                       .dilation = {1, 1},
                                       .groups = 1};
    for (int mix = 0; mix < 27; mix++) {
        const gg_algorithm wanted[GG_PASS_COUNT] = {(gg_algorithm)(mix % 3), (gg_algorithm)(mix / 3 % 3),
                                                    (gg_algorithm)(mix / 9)};
        memcpy(conv_choice[0].algorithm, wanted, sizeof wanted);
        for (int t = 0; t < (onednn != NULL ? 2 : 1); t++) {
            compare(&p, &both[t], false, 1e-4);
            check_algorithms(&p, both[t].device, both[t].fallback, first, wanted, t == 0);
        }
    }
    conv_choices = 0;
    conv_algorithm = GG_CONV_WINOGRAD;
    const gg_algorithm winograd[GG_PASS_COUNT] = {GG_ALGORITHM_WINOGRAD4, GG_ALGORITHM_WINOGRAD4,
                                                  GG_ALGORITHM_WINOGRAD4};
    check_algorithms(&p, native, NULL, first, winograd, true);
    compare(&p, &both[0], false, 1e-4);
    conv_algorithm = GG_CONV_DIRECT;
    const gg_algorithm direct[GG_PASS_COUNT] = {GG_ALGORITHM_DIRECT};
    check_algorithms(&p, native, NULL, first, direct, true);
    problem_free(&p);
}

static void test_refusals(void) {
    problem p = problem_of(named_graph(0), 3, GG_LOSS_CROSS_ENTROPY, 3);
    gg_plan *plan = NULL;
    gg_backend table = fake_plain_table;
    gg_device device = {.table = &table, .threads = 1};
    float *out = NULL;
    gg_plan_batch batch = batch_of(&p);

    p.batch = 0;
    CHECK_FAILS(make(&p, &fake_plain, NULL, false, true, &plan), GG_ERROR_ARGUMENT, "batch must be 1 to");
    CHECK(plan == NULL);
    p.batch = 3;
    CHECK_FAILS(make(&p, NULL, NULL, false, true, &plan), GG_ERROR_ARGUMENT, "needs a device");
    p.head[0].loss.kind = GG_LOSS_COUNT;
    CHECK_FAILS(make(&p, &fake_plain, NULL, false, true, &plan), GG_ERROR_ARGUMENT, "unknown loss");
    p.head[0].loss.kind = GG_LOSS_CROSS_ENTROPY;
    p.head[0].loss.label_smoothing = 1;
    CHECK_FAILS(make(&p, &fake_plain, NULL, false, true, &plan), GG_ERROR_ARGUMENT, "label_smoothing must be at least");
    p.head[0].loss.label_smoothing = 0;
    p.head[0].weight = -1;
    CHECK_FAILS(make(&p, &fake_plain, NULL, false, true, &plan), GG_ERROR_ARGUMENT,
                "weight of a loss must be at least");
    p.head[0].weight = 1;
    p.head[0].target = GG_MAX_FIELDS;
    CHECK_FAILS(make(&p, &fake_plain, NULL, false, true, &plan), GG_ERROR_ARGUMENT, "numbered 0 to 7, got 8");
    p.head[0].target = 0;
    CHECK_FAILS(make(&p, &fake_lanes, NULL, false, true, &plan), GG_ERROR_UNSUPPORTED, "neither table offers a loss");
    CHECK_FAILS(make(&p, &fake_channels, &fake_lanes, false, true, &plan), GG_ERROR_UNSUPPORTED, "neither table");
    table.create[GG_OP_ADD] = NULL;
    CHECK_FAILS(make(&p, &device, NULL, false, true, &plan), GG_ERROR_UNSUPPORTED,
                "(add): table 'fake-plain' has no operation add");
    table.create[GG_OP_ADD] = refuse;
    CHECK_FAILS(make(&p, &device, &device, false, true, &plan), GG_ERROR_UNSUPPORTED, "(add): a pity");
    CHECK_OK(make(&p, &device, &fake_plain, false, true, &plan));
    gg_plan_destroy(plan);
    table.create[GG_OP_ADD] = create_broken;
    CHECK_OK(make(&p, &device, NULL, false, true, &plan));
    CHECK_FAILS(gg_plan_train(plan, p.weights, p.gradients, &batch, 1, NULL, NULL, NULL), GG_ERROR_BACKEND,
                "(add), backward: smoke");
    gg_plan_destroy(plan);
    table = fake_plain_table;
    table.create[GG_OP_CONV2D] = fake_create_lanes;
    table.create[GG_OP_REORDER] = refuse;
    CHECK_FAILS(make(&p, &device, NULL, false, true, &plan), GG_ERROR_UNSUPPORTED,
                "from float32 batch_last to float32 plain: a pity");

    CHECK_OK(make(&p, &fake_plain, NULL, false, false, &plan));
    CHECK_FAILS(gg_plan_train(plan, p.weights, p.gradients, &batch, 1, NULL, NULL, NULL), GG_ERROR_STATE,
                "not made for");
    CHECK_FAILS(gg_plan_evaluate(plan, p.weights, 0, &(gg_plan_batch){0}, NULL), GG_ERROR_ARGUMENT, "no targets");
    CHECK_FAILS(gg_plan_evaluate(plan, NULL, 0, &batch, NULL), GG_ERROR_ARGUMENT, "no weights");
    CHECK_FAILS(gg_plan_predict(plan, p.weights, 0, &(gg_plan_batch){0}, 4, &out), GG_ERROR_ARGUMENT,
                "0 to the plan's batch of 3, got 4");
    gg_plan_destroy(plan);
    problem_free(&p);

    /* An image as the output: good for predicting and for a squared error, not for classes. */
    gg_graph *graph = start(image);
    CHECK_OK(finish(graph, add1(graph, window(GG_LAYER_CONV2D, 2, 3, 1, 1), 0)));
    p = problem_of(graph, 2, GG_LOSS_MEAN_SQUARED_ERROR, 1);
    compare(&p, &fakes[0], false, 1e-5);
    compare(&p, &fakes[1], false, 1e-5);
    compare(&p, &fakes[2], false, 1e-5);
    p.head[0].loss.kind = GG_LOSS_CROSS_ENTROPY;
    CHECK_FAILS(make(&p, &fake_plain, NULL, false, true, &plan), GG_ERROR_SHAPE,
                "at least 2 of them, got (2, 5, 4) from 'n");
    CHECK_OK(make(&p, &fake_plain, NULL, false, false, &plan));
    batch = batch_of(&p);
    CHECK_FAILS(gg_plan_evaluate(plan, p.weights, 0, &batch, NULL), GG_ERROR_SHAPE, "cross-entropy");
    gg_plan_destroy(plan);
    problem_free(&p);

    CHECK_OK(gg_graph_create(&graph));
    p = (problem){.graph = graph, .batch = 1};
    CHECK_FAILS(make(&p, &fake_plain, NULL, false, true, &plan), GG_ERROR_STATE, "finished graph");
    problem_free(&p);
}

/* A graph without parameters, or of the input alone, still runs. */
static void test_trivial(void) {
    for (int nodes = 0; nodes < 3; nodes++) {
        gg_graph *graph = start((gg_shape){1, {3}});
        int at = 0;
        if (nodes == 1) at = kind(graph, GG_LAYER_FLATTEN, at);
        if (nodes == 2) at = join(graph, GG_LAYER_CONCAT, 2, (int[]){at, kind(graph, GG_LAYER_TANH, at)});
        CHECK_OK(finish(graph, at));
        problem p = problem_of(graph, 2, GG_LOSS_CROSS_ENTROPY, 1);
        for (int t = 0; t < FAKES - 1; t++) compare(&p, &fakes[t], false, 1e-5);
        problem_free(&p);
    }
}

/* Each dropout layer has its own stream; without training it is not there at all. */
static void test_dropout(void) {
    gg_graph *graph = start((gg_shape){1, {8}});
    gg_layer_desc desc = layer(GG_LAYER_DROPOUT);
    int at = linear(graph, 8, 0), first;
    desc.probability = 0.5f;
    first = at = add1(graph, desc, at);
    at = linear(graph, 3, at);
    snprintf(desc.name, sizeof desc.name, "second");
    at = add1(graph, desc, at);
    CHECK_OK(finish(graph, at));
    problem p = problem_of(graph, 4, GG_LOSS_CROSS_ENTROPY, 1);
    for (int t = 0; t < FAKES - 1; t++) compare(&p, &fakes[t], true, 1e-5);
    gg_plan *plan = NULL;
    fake_seeds = 0;
    CHECK_OK(make(&p, &fake_plain, NULL, false, true, &plan));
    CHECK_INT(fake_seeds, 2);
    CHECK(fake_seed[0] != fake_seed[1]);
    CHECK_TEXT(gg_plan_node_backend(plan, first), "fake-plain");
    gg_plan_destroy(plan);
    CHECK_OK(make(&p, &fake_plain, NULL, false, false, &plan));
    CHECK_INT(fake_seeds, 2);
    CHECK_TEXT(gg_plan_node_backend(plan, first), "");
    gg_plan_destroy(plan);
    problem_free(&p);
}

int main(void) {
    gg_isa isa;
    make_mixed();
    CHECK_OK(gg_isa_select(NULL, &isa));
    CHECK_OK(gg_backend_native.open(&(gg_device_options){.threads = 1, .isa = isa}, &native));
    if (gg_cpu_onednn()) CHECK_OK(gg_cpu_onednn()->open(&(gg_device_options){.threads = 1, .isa = isa}, &onednn));
    test_reference();
    test_named_graphs();
    test_random_graphs();
    test_choices();
    test_order();
    test_memory();
    test_hooks();
    test_shared_memory();
    test_prepared();
    test_algorithms();
    test_refusals();
    test_trivial();
    test_dropout();
    if (onednn) onednn->table->close(onednn);
    if (native) native->table->close(native);
    CHECK_INT(gg_memory_live_bytes(), 0);
    return check_report();
}
