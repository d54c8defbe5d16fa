/* Graphs for the tests of plans, random ones among them; problems, which are graphs with inputs, weights and targets;
 * and what a plain float64 walk over a graph gives of them. */
#ifndef PLAN_PROBLEM_H
#define PLAN_PROBLEM_H

#include "cpu/cpu_backend.h"
#include "fake_backend.h"
#include "nn/plan.h"

#define MAX_NODES 64

static gg_device *native, *onednn; /* onednn: NULL where the core was built without it */

static inline void open_devices(void) {
    gg_isa isa;
    CHECK_OK(gg_isa_select(NULL, &isa));
    CHECK_OK(gg_backend_native.open(&(gg_device_options){.threads = 1, .isa = isa}, &native));
    if (gg_cpu_onednn()) CHECK_OK(gg_cpu_onednn()->open(&(gg_device_options){.threads = 1, .isa = isa}, &onednn));
}

static inline void close_devices(void) {
    if (onednn) onednn->table->close(onednn);
    if (native) native->table->close(native);
}

/* Graphs ------------------------------------------------------------------------------------------------------- */

static inline gg_layer_desc layer(gg_layer_kind kind) {
    static int number = 0;
    gg_layer_desc desc = gg_layer_desc_of(kind);
    snprintf(desc.name, sizeof desc.name, "n%d", number++);
    return desc;
}

static inline gg_layer_desc window(gg_layer_kind kind, int64_t outputs, int64_t kernel, int64_t stride,
                                   int64_t padding) {
    gg_layer_desc desc = layer(kind);
    desc.outputs = outputs;
    gg_window *own = kind == GG_LAYER_CONV2D ? &desc.conv.window : &desc.pool;
    for (int i = 0; i < 2; i++) {
        own->kernel[i] = kernel;
        own->stride[i] = stride;
        own->padding[i] = padding;
    }
    return desc;
}

static inline int add(gg_graph *graph, gg_layer_desc desc, int inputs, const int *input) {
    int node = 0;
    CHECK_OK(gg_graph_add(graph, &desc, NULL, inputs, input, &node));
    return node;
}

static inline int add1(gg_graph *graph, gg_layer_desc desc, int from) { return add(graph, desc, 1, &from); }

static inline int linear(gg_graph *graph, int64_t outputs, int from) {
    gg_layer_desc desc = layer(GG_LAYER_LINEAR);
    desc.outputs = outputs;
    return add1(graph, desc, from);
}

static inline int kind(gg_graph *graph, gg_layer_kind which, int from) { return add1(graph, layer(which), from); }

static inline int join(gg_graph *graph, gg_layer_kind which, int inputs, const int *input) {
    return add(graph, layer(which), inputs, input);
}

static inline gg_status finish(gg_graph *graph, int node) {
    return gg_graph_finish(graph, 1, &(gg_head){.node = node});
}

static inline gg_graph *start(gg_shape shape) {
    gg_graph *graph = NULL;
    gg_layer_desc desc = layer(GG_LAYER_INPUT);
    CHECK_OK(gg_graph_create(&graph));
    CHECK_OK(gg_graph_add(graph, &desc, &shape, 0, NULL, NULL));
    return graph;
}

static const gg_shape image = {3, {3, 5, 4}};

static uint32_t dice_seed, dice_at;

static inline int dice(int sides) {
    uint32_t word[4];
    gg_random_key key = {.seed = dice_seed, .purpose = GG_RANDOM_TEST};
    gg_random_block(&key, dice_at++, word);
    return (int)(word[0] % (uint32_t)sides);
}

static inline const gg_shape *shape_of(const gg_graph *graph, int node) { return &gg_graph_node(graph, node)->shape; }

/* Nodes that `node` could be joined with, itself among them, and any of them twice. */
static inline int partners(const gg_graph *graph, int node, bool whole, int *out) {
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
static inline gg_graph *random_graph(uint32_t seed, bool dropout) {
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
                if (shape_of(graph, from)->size[0] == 4 && desc.outputs % 2 == 0) desc.conv.groups = 2;
            }
            desc.bias = dice(3) > 0;
            break;
        case 3:
            if (!flat) desc = window(dice(2) ? GG_LAYER_MAX_POOL2D : GG_LAYER_AVG_POOL2D, 0, 3, 1 + dice(2), 1);
            desc.pool.ceil_mode = dice(2); /* a RELU has no options */
            desc.pool.count_include_pad = dice(2);
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

static inline gg_op_desc reference_desc(const gg_graph *graph, int node) {
    const gg_node *it = gg_graph_node(graph, node);
    gg_op_desc desc = {.kind = op_of[it->desc.kind], .inputs = it->inputs, .output = it->shape};
    for (int i = 0; i < it->inputs; i++) desc.input[i] = *shape_of(graph, it->input[i]);
    desc.options = it->desc.options;
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

static inline void answer_free(answer *it) {
    for (int h = 0; h < GG_MAX_FIELDS; h++) free(it->output[h]);
    free(it->gradient);
}

static inline int head_node(const gg_graph *graph, int head) { return gg_graph_head(graph, head)->node; }

static inline int64_t head_values(const problem *p, int head) {
    return gg_shape_count(shape_of(p->graph, head_node(p->graph, head)));
}

/* The losses of all heads, and their gradients in those of their nodes. */
static inline void reference_losses(const problem *p, double **value, double **grad, answer *out) {
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

static inline answer reference(const problem *p, bool training, uint32_t rank, uint64_t step) {
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

static inline gg_loss_kind other_loss(const gg_shape *shape, int head) {
    const bool classes = shape->dims == 1 && shape->size[0] > 1 && head % 2 == 1;
    return classes ? GG_LOSS_CROSS_ENTROPY : head % 3 ? GG_LOSS_MEAN_SQUARED_ERROR : GG_LOSS_BINARY_CROSS_ENTROPY;
}

/* `loss` is the main head's; the others have what their shapes allow, with weights and targets of their own. */
static inline problem problem_of(gg_graph *graph, int64_t batch, gg_loss_kind loss, uint64_t seed) {
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

static inline void problem_free(problem *p) {
    gg_graph_destroy(p->graph);
    gg_free(p->weights);
    gg_free(p->gradients);
    for (int i = 0; i < GG_MAX_FIELDS; i++) {
        free(p->x[i]);
        free(p->target[i]);
    }
}

static inline void fill_input(gg_plan *plan, const problem *p) {
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

static inline gg_plan_batch batch_of(const problem *p) {
    gg_plan_batch batch = {0};
    for (int i = 0; i < GG_MAX_FIELDS; i++) batch.target[i] = p->target[i];
    return batch;
}

static gg_plan_memory *shared; /* of the plans that are made; NULL: each has its own */
static gg_conv_algorithm conv_algorithm = GG_CONV_DIRECT;
static gg_conv_choice conv_choice[2];
static int conv_choices;

static inline gg_status make(const problem *p, gg_device *device, gg_device *fallback, bool choose, bool training,
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
static inline double distance(const float *a, const double *b, size_t n) {
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
static inline double total(const problem *p, const answer *it) {
    double sum = 0;
    for (int h = 0; h < gg_graph_heads(p->graph); h++) sum += (double)p->head[h].weight * it->loss[h];
    return sum;
}

/* Whether the losses of a plan's heads are those of the reference. */
static inline void check_sums(const problem *p, const gg_loss_sums *sums, const answer *wanted, bool training,
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
static inline void check_outputs(const problem *p, gg_plan *plan, const answer *wanted, double tolerance) {
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

static const tables fakes[] = {
    {"plain", &fake_plain, NULL, false},
    {"lanes", &fake_lanes, &fake_plain, false},
    {"channels", &fake_channels, &fake_plain, false},
    {"channels and lanes", &fake_channels, &fake_lanes, false},
};
#define FAKES (int)(sizeof fakes / sizeof fakes[0])

/* Shapes of networks that matter, each made for one way of the planner. */
static inline gg_graph *named_graph(int which) {
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
    case 3: /* a sum of a value and itself, and a flattened value beside the image */
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

#endif
