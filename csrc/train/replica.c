#include "train/replica.h"

#include <math.h>
#include <string.h>

#include "base/clock.h"
#include "base/memory.h"
#include "base/random.h"
#include "comm/collective.h"
#include "cpu/cpu_backend.h"
#include "train/batches.h"
#include "train/limits.h"
#include "train/plans.h"

/* The rate at which the virtual clock charges arithmetic by default: that of a modest core. */
#define MODEL_FLOPS_PER_SECOND 50e9
/* Sizes are tuned before the batch size is known. It is assumed to be this, or so small that a step needs no more than
 * this part of the time. */
#define USUAL_BATCH 64
#define LEAST (1.0 / 64)

struct gg_replica {
    gg_replica_options options;
    gg_device *native, *onednn; /* onednn NULL: only native is used */
    gg_device *device;          /* arenas and gathering */
    gg_updater updater;
    gg_state state;
    gg_strategy *strategy;
    gg_tuning tuning;
    gg_plans plans; /* the plan of the last step is pinned */
    gg_plan_hooks hooks;
    bool failed;           /* in the middle of an exchange: settling is impossible from then on */
    double *layer_seconds; /* modelled forward time of one sample, or of any batch; backward is twice that */
    bool any_batch;
    gg_trace *trace;
    int node; /* for the trace: the node that runs, or -1, and since when */
    double node_begin;
    double clock_offset;

    gg_batches data;
    int64_t batch;  /* samples of the step under way */
    double charged; /* of the backward pass of the layer under way, to the virtual clock */
    float *share;
    int64_t *batches;          /* samples of each rank in this step */
    gg_progress_counts counts; /* since the epoch began */
    double exposed_before;
    int64_t bytes_before, messages_before, skipped_before, sample_bytes_before, sample_messages_before;

    int64_t carried_numbers; /* of state that a sample carries, in all layers */
    float *carried;          /* as in gg_plan_batch; NULL: none */
    int64_t carried_rows;

    int workers; /* the first ranks, which train */
    gg_allreduce *averaging;
    float *consensus;   /* message memory, allocated on first use */
    float *equal_share; /* of each worker */
};

static bool replica_trains(const gg_replica *r) { return r->options.transport->rank < r->workers; }

/* ---- the step ---- */

static double replica_modelled(const gg_replica *r, int layer) {
    return r->layer_seconds[layer] * (r->any_batch ? 1.0 : (double)r->batch);
}

static void replica_record(gg_replica *r, const char *name, double begin, int index) {
    if (r->trace == NULL) return;
    gg_trace_add(r->trace, &(gg_trace_span){.begin = begin,
                                            .end = gg_transport_now(r->options.transport),
                                            .name = name,
                                            .step = r->state.step,
                                            .lane = GG_LANE_COMPUTE,
                                            .index = index});
}

/* Counts the time since `begin` as spent on data; the trace shows the same. */
static void spent_on_data(gg_replica *r, const char *name, double begin) {
    double end = gg_transport_now(r->options.transport);
    r->counts.data_seconds += end - begin;
    if (r->trace == NULL) return;
    gg_trace_add(
        r->trace,
        &(gg_trace_span){
            .begin = begin, .end = end, .name = name, .step = r->state.step, .lane = GG_LANE_DATA, .index = -1});
}

static void on_enter(void *context, int node) {
    gg_replica *r = context;
    r->node = node;
    r->node_begin = gg_transport_now(r->options.transport);
}

static void on_leave(void *context, int node, const char *what) {
    gg_replica *r = context;
    if (r->node >= 0) replica_record(r, what, r->node_begin, node);
    r->node = -1;
}

static gg_status on_need(void *context, int layer) {
    gg_status status = GG_OK;
    gg_replica *r = context;
    GG_TRY(r->strategy->table->need(r->strategy, layer));
    if (r->trace != NULL)
        r->node_begin = gg_transport_now(r->options.transport); /* waiting does not count as computing */
    GG_TRY(gg_transport_compute(r->options.transport, replica_modelled(r, layer)));
cleanup:
    return status;
}

static gg_status on_input(void *context, int layer, const gg_vectors *input, bool *partitioned) {
    gg_status status = GG_OK;
    gg_replica *r = context;
    double begin = gg_transport_now(r->options.transport);
    GG_TRY(r->strategy->fc_hooks->input(r->strategy, layer, input, partitioned));
    if (!*partitioned || r->trace == NULL) goto cleanup;
    replica_record(r, "give", begin, r->node);
    r->node_begin = gg_transport_now(r->options.transport);
cleanup:
    return status;
}

/* The error is complete after half of the layer's backward pass. The other half is the gradient of some rank's part of
 * the weight. */
static gg_status on_error(void *context, int layer, const gg_vectors *error) {
    gg_status status = GG_OK;
    gg_replica *r = context;
    int node = r->node;
    r->charged = replica_modelled(r, layer);
    GG_TRY(gg_transport_compute(r->options.transport, r->charged));
    if (r->trace != NULL) on_leave(r, node, "backward");
    double begin = gg_transport_now(r->options.transport);
    GG_TRY(r->strategy->fc_hooks->error(r->strategy, layer, error));
    replica_record(r, "give", begin, node);
    if (r->trace != NULL) on_enter(r, node);
cleanup:
    return status;
}

/* Whether the rank's own gradients are measured before the first of its layers is updated. */
static bool updates_wait(const gg_replica *r) {
    return gg_updater_measures(&r->updater) && !r->strategy->averages_gradients;
}

static gg_status on_ready(void *context, int layer) {
    gg_status status = GG_OK;
    gg_replica *r = context;
    int node = -1;
    double begin = 0;
    GG_TRY(gg_transport_compute(r->options.transport, 2 * replica_modelled(r, layer) - r->charged));
    r->charged = 0;
    if (r->trace != NULL) {
        node = r->node;
        on_leave(r, node, "backward");
        begin = gg_transport_now(r->options.transport);
    }
    if (updates_wait(r)) goto cleanup;
    GG_TRY(r->strategy->table->ready(r->strategy, layer));
    replica_record(r, "update", begin, node);
cleanup:
    return status;
}

static gg_status on_poll(void *context) {
    gg_status status = GG_OK;
    gg_replica *r = context;
    GG_TRY(r->strategy->table->poll(r->strategy));
    GG_TRY(gg_batches_poll(&r->data));
cleanup:
    return status;
}

static gg_status replica_straggle(gg_replica *r) {
    gg_status status = GG_OK;
    const gg_straggler *straggler = &r->options.straggler;
    const gg_random_key key = {.seed = straggler->seed,
                               .purpose = GG_RANDOM_STRAGGLER,
                               .rank = (uint32_t)r->options.transport->rank,
                               .step = (uint64_t)r->state.step};
    double begin = gg_transport_now(r->options.transport);
    float draw = 1.0f;
    if (straggler->probability > 0) gg_random_uniform(&key, 1, 0.0f, 1.0f, &draw);
    if (draw >= straggler->probability) goto cleanup;
    GG_TRY(gg_transport_idle(r->options.transport, straggler->delay));
    replica_record(r, "late", begin, -1);
cleanup:
    return status;
}

static gg_status read_batch(gg_replica *r, gg_plan *plan, int64_t t) {
    double begin = gg_transport_now(r->options.transport);
    gg_status status = gg_batches_read(&r->data, plan, t);
    if (status == GG_OK) spent_on_data(r, "batch", begin);
    else r->failed = true;
    return status;
}

/* Puts a caller's rows, from row `begin` on, into the plan's inputs. */
static void read_given(gg_replica *r, gg_plan *plan, const gg_given *given, int64_t begin, int64_t n) {
    for (int i = 0; i < gg_plan_inputs(plan); ++i) {
        const gg_format format = gg_plan_input_format(plan, i);
        const int64_t values =
            gg_shape_count(&gg_graph_node(r->options.graph, gg_graph_input(r->options.graph, i))->shape);
        const size_t row = (size_t)values * gg_dtype_size(format.dtype);
        const char *rows = (const char *)given->input[i] + (size_t)begin * row;
        if (gg_plan_input(plan, i) == NULL) continue;
        if (format.dtype == GG_INT32) {
            memcpy(gg_plan_input(plan, i), rows, (size_t)n * row);
            continue;
        }
        r->device->table->gather(r->device, &(gg_gather_args){.dtype = GG_FLOAT32,
                                                              .rows = rows,
                                                              .values = values,
                                                              .n = n,
                                                              .scale = 1.0f,
                                                              .layout = format.layout,
                                                              .out = gg_plan_input(plan, i)});
    }
}

/* ---- state that layers carry from batch to batch ---- */

/* Numbers of state a sample in the nodes before this one: each node's rows lie behind one another, as gg_plan_batch
 * wants them. */
static int64_t carried_before(const gg_replica *r, int node) {
    int64_t numbers = 0;
    for (int i = 0; i < node; ++i) numbers += gg_graph_node_carried(r->options.graph, i);
    return numbers;
}

gg_status gg_replica_reserve_carried(gg_replica *r, int64_t rows) {
    gg_status status = GG_OK;
    const int nodes = gg_graph_nodes(r->options.graph);
    float *made = NULL;
    rows = gg_lanes_padded(rows); /* so that each node's begin aligned */
    if (r->carried_numbers == 0 || rows <= r->carried_rows) goto cleanup;
    GG_TRY(gg_calloc((size_t)(rows * r->carried_numbers), sizeof *made, "carried state", &made));
    for (int i = 0; i < nodes && r->carried_rows > 0; ++i) {
        const int64_t before = carried_before(r, i), numbers = gg_graph_node_carried(r->options.graph, i);
        memcpy(made + before * rows, r->carried + before * r->carried_rows,
               (size_t)(numbers * r->carried_rows) * sizeof *made);
    }
    gg_free(r->carried);
    r->carried = made;
    r->carried_rows = rows;
cleanup:
    return status;
}

void gg_replica_reset_carried(gg_replica *r) {
    if (r->carried != NULL) memset(r->carried, 0, (size_t)(r->carried_numbers * r->carried_rows) * sizeof(float));
}

float *gg_replica_carried(const gg_replica *r, int node, int64_t *rows) {
    *rows = r->carried_rows;
    if (r->carried == NULL || gg_graph_node_carried(r->options.graph, node) == 0) return NULL;
    return r->carried + carried_before(r, node) * r->carried_rows;
}

/* The plan to train on n samples, with room for the state that it carries. */
static gg_status training_plan(gg_replica *r, int64_t n, gg_plan **out) {
    gg_status status = GG_OK;
    GG_TRY(gg_plans_get(&r->plans, n, true, out));
    GG_TRY(gg_replica_reserve_carried(r, n));
cleanup:
    return status;
}

/* What each rank puts into the sums of this step. */
static void count_batches(gg_replica *r) {
    int64_t all = 0;
    for (int rank = 0; rank < r->workers; ++rank) all += r->batches[rank];
    for (int rank = 0; rank < r->workers; ++rank) r->share[rank] = (float)r->batches[rank] / (float)all;
}

/* Trains on the batch that lies in the plan's inputs; r->batches and r->share are set. plan NULL: this rank has no
 * batch, it only serves. */
static gg_status step_on(gg_replica *r, gg_plan *plan, int64_t n, gg_plan_batch *batch, gg_loss_sums *sums) {
    gg_status status = GG_OK;
    const gg_strategy_table *table = r->strategy->table;
    double begin = gg_transport_now(r->options.transport);
    r->strategy->step = r->state.step;
    r->strategy->share = r->share;
    r->strategy->batch = r->batches;
    r->batch = n;
    r->plans.pinned = plan;
    if (plan != NULL) GG_TRY(replica_straggle(r));
    r->options.transport->step = &r->state.step;
    batch->carried = r->carried;
    batch->carried_rows = r->carried_rows;
    GG_TRY(table->begin(r->strategy));
    if (plan != NULL)
        GG_TRY(gg_plan_train(plan, gg_state_weights(&r->state), gg_state_gradients(&r->state), batch,
                             (uint64_t)r->state.step, &r->hooks, sums));
    if (plan != NULL && updates_wait(r)) {
        const double measured = gg_transport_now(r->options.transport);
        GG_TRY(gg_strategy_ready_all(r->strategy));
        replica_record(r, "update", measured, -1);
    }
    GG_TRY(table->end(r->strategy));
    replica_record(r, "step", begin, -1);
    r->state.step++;
cleanup:
    r->options.transport->step = NULL;
    if (status != GG_OK) r->failed = true;
    return status;
}

/* What goes with a batch, for the plan. */
static gg_plan_batch plan_batch_of(const gg_batch *batch) {
    gg_plan_batch made = {.sample_weights = batch->sample_weights, .begins = batch->begins};
    for (int i = 0; i < GG_MAX_FIELDS; ++i) made.target[i] = batch->target[i];
    return made;
}

gg_status gg_replica_run(gg_replica *r, int64_t steps) {
    gg_status status = GG_OK;
    int64_t total = gg_replica_epoch_steps(r);
    double begin = gg_clock_now(), clock_begin = gg_transport_now(r->options.transport);
    for (; steps > 0 && r->counts.steps < total; --steps) {
        int64_t t = r->counts.steps, n = gg_loader_batch(r->data.loader, r->options.transport->rank, t);
        gg_loss_sums sums[GG_MAX_FIELDS] = {0};
        gg_plan *plan = NULL;
        for (int rank = 0; rank < r->workers; ++rank) r->batches[rank] = gg_loader_batch(r->data.loader, rank, t);
        count_batches(r);
        if (n > 0) {
            GG_TRY(training_plan(r, n, &plan));
            GG_TRY(read_batch(r, plan, t));
        }
        gg_plan_batch batch = plan_batch_of(&r->data.batch);
        GG_TRY(step_on(r, plan, n, &batch, sums));
        r->counts.steps++;
        r->counts.samples += n;
        if (plan != NULL) r->counts.loss_sum += gg_plan_total_loss(plan, sums, n);
        r->counts.correct += sums[0].correct;
        r->counts.counted += sums[0].counted;
    }
cleanup:
    r->counts.seconds += gg_clock_now() - begin;
    r->counts.clock_seconds += gg_transport_now(r->options.transport) - clock_begin;
    return status;
}

gg_status gg_replica_step(gg_replica *r, const gg_given *given, const int64_t *batches, double *loss) {
    gg_status status = GG_OK;
    gg_plan *plan = NULL;
    gg_plan_batch batch = {0};
    gg_loss_sums sums[GG_MAX_FIELDS];

    for (int rank = 0; rank < r->workers; ++rank) r->batches[rank] = batches ? batches[rank] : given->n;
    count_batches(r);
    memcpy(batch.target, given->target, sizeof batch.target);
    if (replica_trains(r)) {
        GG_TRY(training_plan(r, given->n, &plan));
        read_given(r, plan, given, 0, given->n);
    }
    GG_TRY(step_on(r, plan, given->n, &batch, sums));
    *loss = plan != NULL ? gg_plan_total_loss(plan, sums, 1) : NAN;
cleanup:
    return status;
}

/* ---- the epoch ---- */

gg_status gg_replica_begin(gg_replica *r, const gg_dataset *set, const gg_data_options *data) {
    gg_status status = GG_OK;
    gg_plan *plan = NULL;
    if (!r->failed) GG_TRY(gg_batches_settle(&r->data));
    const gg_dataset limited = gg_limited_set(r->options.graph, r->options.head, set);
    GG_TRY(gg_batches_begin(&r->data, &limited, data));
    for (int64_t t = 0; replica_trains(r) && t < gg_loader_steps(r->data.loader); ++t)
        GG_TRY(training_plan(r, gg_loader_batch(r->data.loader, r->options.transport->rank, t), &plan));
cleanup:
    if (status != GG_OK) { /* no rank trains on data that another one does not have */
        gg_loader_destroy(r->data.loader);
        r->data.loader = NULL;
    }
    return status;
}

int64_t gg_replica_epoch_steps(const gg_replica *r) { return r->data.loader ? gg_loader_steps(r->data.loader) : 0; }

gg_status gg_replica_epoch(gg_replica *r, int64_t epoch) {
    gg_status status = GG_OK;
    if (r->data.loader == NULL) GG_FAIL(GG_ERROR_STATE, "epoch: there is no data to train on yet");
    memset(&r->counts, 0, sizeof r->counts);
    gg_replica_reset_carried(r);
    GG_TRY(gg_batches_epoch(&r->data, epoch));
    if (r->data.ring != NULL) gg_sample_ring_sent(r->data.ring, &r->sample_bytes_before, &r->sample_messages_before);
    r->exposed_before = r->strategy->exposed_seconds;
    r->bytes_before = r->options.transport->bytes_sent;
    r->messages_before = r->options.transport->messages_sent;
    r->skipped_before = r->strategy->skipped;
cleanup:
    /* An epoch that is refused for lack of data has changed nothing. */
    if (status != GG_OK && r->data.loader != NULL) r->failed = true;
    return status;
}

void gg_replica_counts(const gg_replica *r, gg_progress_counts *out) {
    *out = r->counts;
    out->exposed_seconds = r->strategy->exposed_seconds - r->exposed_before;
    out->compute_seconds = out->clock_seconds - out->exposed_seconds - out->data_seconds;
    out->bytes_sent = r->options.transport->bytes_sent - r->bytes_before;
    out->messages_sent = r->options.transport->messages_sent - r->messages_before;
    out->skipped = r->strategy->skipped - r->skipped_before;
    out->optimizer_bytes = gg_state_moment_bytes(&r->state, false);
    out->optimizer_bytes_saved = gg_state_moment_bytes(&r->state, true) - out->optimizer_bytes;
    if (r->data.ring == NULL) return;
    gg_sample_ring_sent(r->data.ring, &out->sample_bytes_sent, &out->sample_messages_sent);
    out->sample_bytes_sent -= r->sample_bytes_before;
    out->sample_messages_sent -= r->sample_messages_before;
    out->bytes_sent -= out->sample_bytes_sent;
    out->messages_sent -= out->sample_messages_sent;
}

gg_status gg_replica_end_epoch(gg_replica *r) {
    double begin = gg_clock_now(), clock_begin = gg_transport_now(r->options.transport);
    gg_status status = gg_replica_settle(r);
    r->counts.seconds += gg_clock_now() - begin;
    r->counts.clock_seconds += gg_transport_now(r->options.transport) - clock_begin;
    return status;
}

/* ---- at rest ---- */

static gg_status settle_samples(gg_replica *r) {
    gg_status status = GG_OK;
    double begin = gg_transport_now(r->options.transport);
    if (gg_batches_is_idle(&r->data)) goto cleanup;
    GG_TRY(gg_batches_settle(&r->data));
    spent_on_data(r, "settle", begin);
cleanup:
    return status;
}

gg_status gg_replica_settle(gg_replica *r) {
    gg_status status = GG_OK;
    GG_TRY(r->strategy->table->settle(r->strategy));
    GG_TRY(settle_samples(r));
cleanup:
    if (status != GG_OK) r->failed = true;
    return status;
}

gg_status gg_replica_gather(gg_replica *r, int arena, float *whole) {
    gg_status status = GG_OK;
    GG_TRY(gg_replica_settle(r));
    GG_TRY(gg_strategy_gather(r->strategy, arena, whole));
cleanup:
    return status;
}

void gg_replica_load(gg_replica *r, int arena, const float *whole) { gg_strategy_load(r->strategy, arena, whole); }

gg_status gg_replica_audit(gg_replica *r, gg_sample_audit *out) {
    gg_status status = GG_OK;
    if (r->data.loader == NULL) GG_FAIL(GG_ERROR_STATE, "audit_samples: there is no data to train on yet");
    GG_TRY(gg_replica_settle(r));
    GG_TRY(gg_batches_audit(&r->data, out));
cleanup:
    return status;
}

int64_t gg_replica_slots(const gg_replica *r) {
    if (r->data.loader == NULL) return -1;
    return replica_trains(r) ? gg_sharding_slots(&r->data.sharding, r->options.transport->rank) : 0;
}

int64_t gg_replica_sample_id(const gg_replica *r, int64_t slot) { return gg_batches_sample_id(&r->data, slot); }

bool gg_replica_failed(const gg_replica *r) { return r->failed; }

gg_status gg_replica_at(const gg_replica *r, const char *what, gg_status status) {
    return gg_error_prefix(status, "step %lld, %s: ", (long long)r->state.step, what);
}

/* Memory for the consensus model, allocated on first use. */
static gg_status make_consensus(gg_replica *r) {
    gg_status status = GG_OK;
    if (r->averaging != NULL) goto cleanup;
    GG_TRY(gg_message_alloc(r->options.transport, r->state.count * sizeof(float), "consensus weights", &r->consensus));
    GG_TRY(gg_allreduce_create(r->options.transport, r->device, r->state.count, GG_TAG_ALLREDUCE, NULL,
                               GG_COLLECTIVES_OWN, &r->averaging));
cleanup:
    return status;
}

/* The mean of the replicas that train. */
static gg_status replica_average(gg_replica *r, const float **weights) {
    gg_status status = GG_OK;
    GG_TRY(gg_replica_settle(r));
    if (r->options.transport->size == 1) {
        *weights = gg_state_weights(&r->state);
        goto cleanup;
    }
    GG_TRY(make_consensus(r));
    memcpy(r->consensus, gg_state_weights(&r->state), r->state.count * sizeof(float));
    GG_TRY(gg_replica_at(r, "mean of the replicas", gg_allreduce_run(r->averaging, r->consensus, r->equal_share)));
    *weights = r->consensus;
cleanup:
    return status;
}

gg_status gg_replica_consensus(gg_replica *r, const float **weights) {
    gg_status status = GG_OK;
    if (r->strategy->model == NULL) {
        status = replica_average(r, weights);
        goto cleanup;
    }
    GG_TRY(gg_replica_settle(r));
    GG_TRY(make_consensus(r));
    GG_TRY(gg_replica_at(r, "the strategy's model", r->strategy->model->read(r->strategy, r->consensus)));
    *weights = r->consensus;
cleanup:
    return status;
}

void gg_replica_set_rate(gg_replica *r, const gg_rate *rate) { r->options.optimizer.rate = *rate; }

void gg_replica_set_consensus(gg_replica *r, const float *weights) {
    if (r->strategy->model != NULL) r->strategy->model->write(r->strategy, weights);
}

/* Sum of squares of a - b (b NULL: of a) over what is trained: statistics are left out. */
static double trained_squares(gg_replica *r, const float *a, const float *b) {
    double sum = 0;
    for (int i = 0; i < r->updater.groups; ++i) {
        const gg_group *group = &r->updater.group[i];
        if (!group->statistic)
            sum += r->device->table->sum_squares(r->device, group->end - group->begin, a + group->begin,
                                                 b != NULL ? b + group->begin : NULL);
    }
    return sum;
}

gg_status gg_replica_distance(gg_replica *r, double *distance) {
    gg_status status = GG_OK;
    const float *mean = NULL;
    GG_TRY(replica_average(r, &mean));
    double distance_squared = replica_trains(r) ? trained_squares(r, gg_state_weights(&r->state), mean) : 0;
    double whole = trained_squares(r, mean, NULL);
    double own = whole != 0 ? sqrt(distance_squared / whole) : 0; /* NaN stays NaN */
    GG_TRY(gg_replica_at(r, "consensus distance", gg_allreduce_doubles(r->options.transport, &own, 1)));
    *distance = own / r->workers;
cleanup:
    return status;
}

/* Batches of a range of a set that is not trained on, what reads them, and the state that goes on through them. */
typedef struct range {
    gg_loader *loader;
    gg_batch batch;
    float *carried; /* as in gg_plan_batch; NULL: none */
    int64_t rows;
} range;

static gg_status range_open(const gg_replica *r, const gg_dataset *set, bool targets, int64_t begin, int64_t end,
                            int64_t batch, range *out) {
    gg_status status = GG_OK;
    const gg_dataset limited = gg_limited_set(r->options.graph, targets ? r->options.head : NULL, set);
    GG_TRY(gg_loader_create_range(&limited, begin, end, batch, &out->loader));
    GG_TRY(gg_batch_alloc(&limited, gg_loader_batch(out->loader, 0, 0), &out->batch));
cleanup:
    return status;
}

static void range_close(range *samples) {
    gg_loader_destroy(samples->loader);
    gg_batch_free(&samples->batch);
    gg_free(samples->carried);
}

/* Puts batch t into the inputs of its plan. */
static gg_status range_read(gg_replica *r, range *samples, int64_t t, gg_plan **plan, gg_plan_batch *out) {
    gg_status status = GG_OK;
    const int64_t n = gg_loader_batch(samples->loader, 0, t);
    GG_TRY(gg_plans_get(&r->plans, n, false, plan));
    if (r->carried_numbers > 0 && samples->carried == NULL) {
        samples->rows = gg_lanes_padded(n); /* the first batch is the largest */
        GG_TRY(
            gg_calloc((size_t)(samples->rows * r->carried_numbers), sizeof(float), "carried state", &samples->carried));
    }
    gg_batches_into(*plan, &samples->batch);
    GG_TRY(gg_batches_wait(r->options.transport, samples->loader, t));
    GG_TRY(gg_loader_read(samples->loader, r->device, t, &samples->batch));
    *out = plan_batch_of(&samples->batch);
    out->carried = samples->carried;
    out->carried_rows = samples->rows;
cleanup:
    return status;
}

gg_status gg_replica_evaluate(gg_replica *r, const float *weights, const gg_dataset *set, int64_t begin, int64_t end,
                              int64_t batch, gg_evaluation *out) {
    gg_status status = GG_OK;
    range samples = {0};
    memset(out, 0, sizeof *out);
    if (begin >= end) goto cleanup;
    GG_TRY(range_open(r, set, true, begin, end, batch, &samples));
    for (int64_t t = 0; t < gg_loader_steps(samples.loader); ++t) {
        gg_loss_sums sums[GG_MAX_FIELDS];
        gg_plan *plan = NULL;
        gg_plan_batch own;
        GG_TRY(range_read(r, &samples, t, &plan, &own));
        GG_TRY(gg_plan_evaluate(plan, weights, &own, sums));
        for (int h = 0; h < gg_graph_heads(r->options.graph); ++h) gg_loss_sums_add(&out->head[h], &sums[h]);
        out->samples += gg_loader_batch(samples.loader, 0, t);
    }
cleanup:
    range_close(&samples);
    return status;
}

gg_status gg_replica_predict(gg_replica *r, const float *weights, const gg_dataset *set, int64_t batch,
                             float *const *output) {
    gg_status status = GG_OK;
    const gg_graph *graph = r->options.graph;
    range samples = {0};
    float *at[GG_MAX_FIELDS];
    /* Each sample has an output, also where streams would leave some out. */
    gg_dataset apart = *set;
    apart.streams = false;
    memcpy(at, output, sizeof at);
    GG_TRY(range_open(r, &apart, false, 0, set->count, batch, &samples));
    for (int64_t t = 0; t < gg_loader_steps(samples.loader); ++t) {
        const int64_t n = gg_loader_batch(samples.loader, 0, t);
        gg_plan *plan = NULL;
        gg_plan_batch own;
        GG_TRY(range_read(r, &samples, t, &plan, &own));
        GG_TRY(gg_plan_predict(plan, weights, n, at));
        for (int h = 0; h < gg_graph_heads(graph); ++h)
            if (at[h] != NULL) at[h] += n * gg_shape_count(&gg_graph_node(graph, gg_graph_head(graph, h)->node)->shape);
    }
cleanup:
    range_close(&samples);
    return status;
}

/* ---- creation and destruction ---- */

static gg_status open_devices(gg_replica *r) {
    gg_status status = GG_OK;
    const gg_replica_options *o = &r->options;
    const gg_backend *onednn = gg_cpu_onednn();
    if (o->backend == GG_CHOOSE_ONEDNN && onednn == NULL)
        GG_FAIL(GG_ERROR_UNSUPPORTED, "backend: 'onednn'; this build has no oneDNN, allowed are auto, native");
    GG_TRY(gg_backend_native.open(o->threads, o->isa, &r->native));
    if (o->backend != GG_CHOOSE_NATIVE && onednn != NULL) GG_TRY(onednn->open(o->threads, o->isa, &r->onednn));
    r->device = r->native;
    r->plans = (gg_plans){.graph = o->graph,
                          .options = {.device = r->onednn ? r->onednn : r->native,
                                      .fallback = r->native,
                                      .choose = o->backend == GG_CHOOSE_FASTER,
                                      .seed = o->seed,
                                      .rank = (uint32_t)o->transport->rank}};
    memcpy(r->plans.options.head, o->head, sizeof o->head);
cleanup:
    return status;
}

/* Forward times of the layers that add up to `whole`. */
static void scale_costs(int layers, double whole, double *seconds) {
    double all = 0;
    for (int i = 0; i < layers; ++i) all += seconds[i];
    for (int i = 0; i < layers; ++i) seconds[i] = whole * (all > 0 ? seconds[i] / all : 1.0 / layers);
}

static gg_status model_costs(gg_replica *r) {
    gg_status status = GG_OK;
    const gg_graph *graph = r->options.graph;
    int layers = gg_graph_layers(graph);
    GG_TRY(gg_calloc((size_t)layers + 1, sizeof(double), "modelled times", &r->layer_seconds));
    for (int i = 0; i < gg_graph_nodes(graph); ++i) {
        int layer = gg_graph_node(graph, i)->layer;
        if (layer >= 0) r->layer_seconds[layer] += 2.0 * (double)gg_graph_node_macs(graph, i) / MODEL_FLOPS_PER_SECOND;
    }
    r->any_batch = r->options.step_seconds != NULL;
    if (!r->any_batch) goto cleanup;
    double forward = r->options.step_seconds[r->options.transport->rank] / 3;
    if (!(forward >= 0 && forward < INFINITY))
        GG_FAIL(GG_ERROR_ARGUMENT, "compute_time: %g; must be at least 0", 3 * forward);
    scale_costs(layers, forward, r->layer_seconds);
cleanup:
    return status;
}

/* All ranks must choose the same sizes, so they use the same times: those of the slowest rank, if times are given. */
static gg_status replica_tune(gg_replica *r) {
    gg_status status = GG_OK;
    const gg_replica_options *o = &r->options;
    const int layers = gg_graph_layers(o->graph), ranks = o->transport->size;
    const char *names[GG_MOST_MOMENTS];
    const int moments = gg_optimizer_moments(&o->optimizer, names);
    double *forward = NULL, slowest = 0;
    GG_TRY(gg_alloc(((size_t)layers + 1) * sizeof *forward, "modelled times", &forward));
    for (int i = 0; i < layers; ++i) forward[i] = r->layer_seconds[i] * (r->any_batch ? 1 : USUAL_BATCH);
    for (int i = 0; r->any_batch && i < ranks; ++i) slowest = fmax(slowest, o->step_seconds[i]);
    if (r->any_batch) scale_costs(layers, slowest / 3, forward);
    GG_TRY(gg_strategy_tune(&r->options.strategy, o->graph, moments, ranks, forward, r->any_batch ? 1.0 : LEAST,
                            o->link, &r->tuning));
cleanup:
    gg_free(forward);
    return status;
}

gg_status gg_replica_create(const gg_replica_options *options, gg_replica **out) {
    gg_status status = GG_OK;
    gg_replica *r = NULL;
    size_t ranks = (size_t)options->transport->size;

    *out = NULL;
    GG_TRY(gg_calloc(1, sizeof *r, "replica", &r));
    r->options = *options;
    if (options->threads < 1) GG_FAIL(GG_ERROR_ARGUMENT, "threads: %d; must be at least 1", options->threads);
    GG_TRY(gg_optimizer_check(&options->optimizer));
    if (!(options->straggler.probability >= 0 && options->straggler.probability <= 1 && options->straggler.delay >= 0))
        GG_FAIL(GG_ERROR_ARGUMENT, "straggler: probability %g, delay %g s; must be 0 to 1, and at least 0",
                options->straggler.probability, options->straggler.delay);
    GG_TRY(open_devices(r));
    GG_TRY(model_costs(r));
    GG_TRY(replica_tune(r));
    r->options.step_seconds = NULL;
    r->options.link = NULL;
    r->carried_numbers = carried_before(r, gg_graph_nodes(options->graph));
    GG_TRY(gg_calloc(ranks, sizeof(float), "shares", &r->share));
    GG_TRY(gg_calloc(ranks, sizeof(float), "shares", &r->equal_share));
    GG_TRY(gg_calloc(ranks, sizeof *r->batches, "batches", &r->batches));
    r->workers = gg_strategy_workers(&options->strategy, options->transport->size);
    if (options->strategy.shuffle_samples && r->workers < options->transport->size)
        GG_FAIL(GG_ERROR_ARGUMENT, "shuffle_samples: allowed only where all ranks train, here %d of %d do", r->workers,
                options->transport->size);
    r->data = (gg_batches){.transport = options->transport,
                           .device = r->device,
                           .workers = r->workers,
                           .seed = options->seed,
                           .shuffle_samples = options->strategy.shuffle_samples,
                           .step = &r->state.step};
    for (int i = 0; i < r->workers; ++i) r->equal_share[i] = 1.0f / (float)r->workers;
    if (options->trace > 0) {
        GG_TRY(gg_trace_create(options->trace, &r->trace));
        r->data.trace = r->trace;
        GG_TRY(gg_clock_offset(options->transport, &r->clock_offset));
    }
    r->state.count = r->state.owned = gg_graph_arena_count(options->graph);
    r->hooks = (gg_plan_hooks){.context = r, .need = on_need, .ready = on_ready, .poll = on_poll};
    if (r->trace != NULL) r->hooks.enter = on_enter, r->hooks.leave = on_leave;
    GG_TRY(gg_updater_create(options->graph, &r->options.optimizer, &r->updater));
    GG_TRY(gg_strategy_create(&r->options.strategy,
                              &(gg_strategy_env){.transport = options->transport,
                                                 .device = r->device,
                                                 .updater = &r->updater,
                                                 .state = &r->state,
                                                 .graph = options->graph,
                                                 .seed = options->seed,
                                                 .trace = r->trace},
                              &r->strategy));
    if (r->strategy->fc_hooks != NULL) r->hooks.input = on_input, r->hooks.error = on_error;
    gg_graph_initialise(options->graph, options->seed, gg_state_weights(&r->state));
    gg_replica_set_consensus(r, gg_state_weights(&r->state));
    *out = r;
cleanup:
    if (status != GG_OK) gg_replica_destroy(r);
    return status;
}

void gg_replica_destroy(gg_replica *r) {
    if (r == NULL) return;
    gg_strategy_destroy(r->strategy);
    gg_updater_destroy(&r->updater);
    gg_plans_clear(&r->plans);
    gg_batches_clear(&r->data);
    gg_free(r->carried);
    gg_free(r->share);
    gg_free(r->equal_share);
    gg_free(r->batches);
    gg_free(r->layer_seconds);
    gg_allreduce_destroy(r->averaging);
    gg_message_free(r->options.transport, r->consensus);
    gg_trace_destroy(r->trace);
    if (r->onednn != NULL) r->onednn->table->close(r->onednn);
    if (r->native != NULL) r->native->table->close(r->native);
    gg_free(r);
}

const gg_tuning *gg_replica_tuning(const gg_replica *r) { return &r->tuning; }
gg_state *gg_replica_state(gg_replica *r) { return &r->state; }
gg_transport *gg_replica_transport(const gg_replica *r) { return r->options.transport; }
const gg_trace *gg_replica_trace(const gg_replica *r) { return r->trace; }
double gg_replica_clock_offset(const gg_replica *r) { return r->clock_offset; }
gg_isa gg_replica_isa(const gg_replica *r) { return r->options.isa; }
const bool *gg_replica_fc_partitioned(const gg_replica *r) { return r->strategy->fc_partitioned; }
gg_plan *gg_replica_plan(const gg_replica *r) { return r->plans.pinned; }

const char *gg_replica_backend_name(const gg_replica *r) {
    if (r->onednn == NULL) return "native";
    return r->options.backend == GG_CHOOSE_ONEDNN ? "onednn" : "onednn+native";
}

size_t gg_replica_bytes(const gg_replica *r) {
    return gg_plans_bytes(&r->plans) + 2 * r->state.count * sizeof(float) +
           (size_t)gg_state_moment_bytes(&r->state, false);
}
