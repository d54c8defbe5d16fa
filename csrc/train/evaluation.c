/* Evaluation and prediction on samples that are not trained on. */
#include <string.h>

#include "base/memory.h"
#include "train/limits.h"
#include "train/replica_private.h"

/* Batches of a range of a set, their loader and plans, and the state carried through them. */
typedef struct range {
    gg_plans *plans;
    int64_t numbers; /* of the state that a sample carries, in all layers */
    gg_dataset set;  /* the loader's, which keeps the used objects alive */
    gg_loader *loader;
    gg_batch batch;
    float *carried; /* as in gg_plan_batch; NULL means none */
    int64_t rows;
    gg_device *device;
    float *weights; /* a copy in device memory of weights that are not there; NULL means none */
} range;

/* Copies weights in host memory, those that are not the rank's own, to a separate device. */
static gg_status weights_on_device(gg_replica *r, const gg_graph *graph, const float **weights, range *out) {
    const size_t bytes = gg_graph_arena_count(graph) * sizeof **weights;
    out->device = r->device;
    if (!gg_device_is_separate(r->device) || *weights == gg_state_weights(gg_exchange_state(r->exchange))) return GG_OK;
    GG_TRY(gg_device_alloc(r->device, bytes, "weights to evaluate", &out->weights));
    GG_TRY(gg_device_write(r->device, out->weights, *weights, bytes));
    *weights = out->weights;
    return GG_OK;
}

static gg_status range_open(gg_replica *r, gg_plans *plans, const gg_dataset *set, bool targets, int64_t begin,
                            int64_t end, int64_t batch, const float **weights, range *out) {
    const gg_dataset limited = gg_limited_set(plans->graph, targets ? r->options.head : NULL, set);
    out->plans = plans;
    out->set = limited;
    plans->weights_version++; /* the weights stay as they are until the range's end */
    for (int i = 0; i < gg_graph_nodes(plans->graph); ++i) out->numbers += gg_graph_node_carried(plans->graph, i);
    GG_TRY(gg_loader_create_range(&limited, begin, end, batch, &out->loader));
    GG_TRY(gg_batch_alloc(&limited, gg_loader_batch(out->loader, 0, 0), &out->batch));
    return weights_on_device(r, plans->graph, weights, out);
}

static void range_close(range *samples) {
    gg_loader_destroy(samples->loader);
    gg_batch_free(&samples->batch);
    gg_device_free(samples->device, samples->carried);
    gg_device_free(samples->device, samples->weights);
}

/* Puts batch t into the inputs of its plan. */
static gg_status range_read(gg_replica *r, range *samples, int64_t t, gg_plan **plan, gg_plan_batch *out) {
    const int64_t n = gg_loader_batch(samples->loader, 0, t);
    GG_TRY(gg_plans_get(samples->plans, n, false, plan));
    if (samples->numbers > 0 && samples->carried == NULL) {
        samples->rows = gg_lanes_padded(n); /* the first batch is the largest */
        GG_TRY(gg_device_alloc(r->device, (size_t)(samples->rows * samples->numbers) * sizeof(float), "carried state",
                               &samples->carried));
    }
    GG_TRY(gg_batches_wait(r->transport, samples->loader, t));
    GG_TRY(gg_uploads_read(&r->uploads, samples->loader, r->devices->host, &samples->set, t, n, *plan, &samples->batch,
                           out));
    out->carried = samples->carried;
    out->carried_rows = samples->rows;
    return GG_OK;
}

static gg_status evaluate_range(gg_replica *r, gg_plans *plans, const float *weights, const gg_dataset *set,
                                int64_t begin, int64_t end, int64_t batch, gg_evaluation *out) {
    gg_status status = GG_OK;
    range samples = {0};
    memset(out, 0, sizeof *out);
    if (begin >= end) goto cleanup;
    GG_TRY_CLEANUP(range_open(r, plans, set, true, begin, end, batch, &weights, &samples));
    for (int64_t t = 0; t < gg_loader_steps(samples.loader); ++t) {
        gg_loss_sums sums[GG_MAX_FIELDS];
        gg_plan *plan = NULL;
        gg_plan_batch own;
        GG_TRY_CLEANUP(range_read(r, &samples, t, &plan, &own));
        GG_TRY_CLEANUP(gg_plan_evaluate(plan, weights, plans->weights_version, &own, sums));
        gg_uploads_done(&r->uploads);
        for (int h = 0; h < gg_graph_heads(plans->graph); ++h) gg_loss_sums_add(&out->head[h], &sums[h]);
        out->samples += gg_loader_batch(samples.loader, 0, t);
    }
cleanup:
    range_close(&samples);
    return status;
}

gg_status gg_replica_evaluate(gg_replica *r, const float *weights, const gg_dataset *set, int64_t begin, int64_t end,
                              int64_t batch, gg_evaluation *out) {
    return evaluate_range(r, &r->plans, weights, set, begin, end, batch, out);
}

gg_status gg_replica_evaluate_graph(gg_replica *r, const gg_graph *graph, const float *weights, const gg_dataset *set,
                                    int64_t begin, int64_t end, int64_t batch, gg_evaluation *out) {
    gg_plans plans = {.graph = graph, .options = r->plans.options};
    const gg_status status = evaluate_range(r, &plans, weights, set, begin, end, batch, out);
    gg_plans_clear(&plans);
    return status;
}

double gg_replica_evaluated_loss(const gg_replica *r, const gg_evaluation *evaluation) {
    double loss = 0;
    for (int h = 0; h < gg_graph_heads(r->options.graph); ++h) {
        const gg_loss_sums *sums = &evaluation->head[h];
        if (!gg_graph_head(r->options.graph, h)->training_only)
            loss += (double)r->options.head[h].weight * gg_loss_sums_mean(sums);
    }
    return loss;
}

/* Numbers of a sample's output at a head. */
static int64_t output_count(const gg_graph *graph, int head) {
    return gg_shape_count(&gg_graph_node(graph, gg_graph_head(graph, head)->node)->shape);
}

/* Outputs of n samples of a batch, from `from` on, go to their samples' places. */
static void place_outputs(const range *samples, int64_t t, int64_t n, int64_t count, const float *from, float *to) {
    for (int64_t i = 0; i < n; ++i)
        memcpy(to + gg_loader_number(samples->loader, t, i) * count, from + i * count, (size_t)count * sizeof *to);
}

gg_status gg_replica_predict(gg_replica *r, const float *weights, const gg_dataset *set, int64_t batch,
                             float *const *output) {
    gg_status status = GG_OK;
    const gg_graph *graph = r->options.graph;
    range samples = {0};
    float *batch_of[GG_MAX_FIELDS] = {NULL};
    GG_TRY_CLEANUP(range_open(r, &r->plans, set, false, 0, set->count, batch, &weights, &samples));
    for (int h = 0; h < gg_graph_heads(graph); ++h)
        if (output[h] != NULL)
            GG_TRY_CLEANUP(
                gg_alloc((size_t)(gg_loader_batch(samples.loader, 0, 0) * output_count(graph, h)) * sizeof(float),
                         "outputs of a batch", &batch_of[h]));
    for (int64_t t = 0; t < gg_loader_steps(samples.loader); ++t) {
        const int64_t n = gg_loader_batch(samples.loader, 0, t);
        gg_plan *plan = NULL;
        gg_plan_batch own;
        GG_TRY_CLEANUP(range_read(r, &samples, t, &plan, &own));
        GG_TRY_CLEANUP(gg_plan_predict(plan, weights, r->plans.weights_version, &own, n, batch_of));
        gg_uploads_done(&r->uploads);
        for (int h = 0; h < gg_graph_heads(graph); ++h)
            if (output[h] != NULL) place_outputs(&samples, t, n, output_count(graph, h), batch_of[h], output[h]);
    }
cleanup:
    for (int h = 0; h < gg_graph_heads(graph); ++h) gg_free(batch_of[h]);
    range_close(&samples);
    return status;
}
