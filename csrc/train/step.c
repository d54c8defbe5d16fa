/* The step: batch, forward, loss, backward, with the calls of strategy, clock and trace; and the epoch. */
#include <math.h>
#include <string.h>

#include "base/clock.h"
#include "base/memory.h"
#include "base/random.h"
#include "train/limits.h"
#include "train/replica_private.h"

static double replica_modelled(const gg_replica *r, int layer) {
    return r->layer_seconds[layer] * (r->any_batch ? 1.0 : (double)r->batch);
}

static void on_enter(void *context, int node) {
    gg_replica *r = context;
    r->node = node;
    r->node_begin = gg_transport_now(r->transport);
}

static void on_leave(void *context, int node, const char *what) {
    gg_replica *r = context;
    if (r->node >= 0) gg_replica_record(r, what, r->node_begin, node);
    r->node = -1;
}

static gg_status on_need(void *context, int layer) {
    gg_replica *r = context;
    GG_TRY(gg_exchange_need(r->exchange, layer));
    if (r->trace != NULL) r->node_begin = gg_transport_now(r->transport); /* waiting does not count as computing */
    return gg_transport_compute(r->transport, replica_modelled(r, layer));
}

/* True if taken inputs and errors go to other ranks; if false they are kept here, as part of the computation. */
static bool gives(const gg_replica *r) { return gg_exchange_fc_partitioned(r->exchange) != NULL; }

static gg_status on_input(void *context, int layer, const gg_vectors *input, bool *taken) {
    gg_replica *r = context;
    double begin = gg_transport_now(r->transport);
    GG_TRY(gg_exchange_fc_input(r->exchange, layer, input, taken));
    if (!*taken || r->trace == NULL || !gives(r)) return GG_OK;
    gg_replica_record(r, "give", begin, r->node);
    r->node_begin = gg_transport_now(r->transport);
    return GG_OK;
}

/* Charges half the backward now, because the error is complete. The other half is the weight gradient, which some rank
 * computes later, wholly or in part. */
static gg_status on_error(void *context, int layer, const gg_vectors *error) {
    gg_replica *r = context;
    int node = r->node;
    r->charged = replica_modelled(r, layer);
    GG_TRY(gg_transport_compute(r->transport, r->charged));
    if (r->trace != NULL && gives(r)) on_leave(r, node, "backward");
    double begin = gg_transport_now(r->transport);
    GG_TRY(gg_exchange_fc_error(r->exchange, layer, error));
    if (r->trace == NULL || !gives(r)) return GG_OK;
    gg_replica_record(r, "give", begin, node);
    on_enter(r, node);
    return GG_OK;
}

static gg_status on_ready(void *context, int layer) {
    gg_replica *r = context;
    int node = -1;
    double begin = 0;
    GG_TRY(gg_transport_compute(r->transport, 2 * replica_modelled(r, layer) - r->charged));
    r->charged = 0;
    if (r->trace != NULL) {
        node = r->node;
        on_leave(r, node, "backward");
        begin = gg_transport_now(r->transport);
    }
    GG_TRY(gg_exchange_ready(r->exchange, layer));
    if (!gg_exchange_updates_wait(r->exchange)) gg_replica_record(r, "update", begin, node);
    return GG_OK;
}

static gg_status on_poll(void *context) {
    gg_replica *r = context;
    GG_TRY(gg_exchange_poll(r->exchange));
    return gg_batches_poll(&r->data);
}

void gg_replica_set_hooks(gg_replica *r) {
    r->hooks = (gg_plan_hooks){.context = r, .need = on_need, .ready = on_ready, .poll = on_poll};
    if (r->trace != NULL) r->hooks.enter = on_enter, r->hooks.leave = on_leave;
    r->hooks.bucket = gg_exchange_buckets(r->exchange);
    if (gg_exchange_offers_fc(r->exchange)) r->hooks.input = on_input, r->hooks.error = on_error;
}

static gg_status replica_straggle(gg_replica *r) {
    const gg_straggler *straggler = &r->options.straggler;
    const gg_random_key key = {.seed = straggler->seed,
                               .purpose = GG_RANDOM_STRAGGLER,
                               .rank = (uint32_t)r->transport->identity,
                               .step = (uint64_t)*r->data.step};
    double begin = gg_transport_now(r->transport);
    float draw = 1.0f;
    if (straggler->probability > 0) gg_random_uniform(&key, 1, 0.0f, 1.0f, &draw);
    if (draw >= straggler->probability) return GG_OK;
    GG_TRY(gg_transport_idle(r->transport, straggler->delay));
    gg_replica_record(r, "late", begin, -1);
    return GG_OK;
}

static gg_status read_batch(gg_replica *r, gg_plan *plan, int64_t t, gg_plan_batch *out) {
    double begin = gg_transport_now(r->transport);
    gg_status status = gg_batches_read(&r->data, plan, t, out);
    if (status == GG_OK) gg_replica_spent_on_data(r, "batch", begin);
    return gg_exchange_fail(r->exchange, status);
}

/* ---- state that layers carry from batch to batch ---- */

int64_t gg_replica_carried_before(const gg_replica *r, int node) {
    int64_t numbers = 0;
    for (int i = 0; i < node; ++i) numbers += gg_graph_node_carried(r->options.graph, i);
    return numbers;
}

gg_status gg_replica_reserve_carried(gg_replica *r, int64_t rows) {
    const int nodes = gg_graph_nodes(r->options.graph);
    float *made = NULL;
    rows = gg_lanes_padded(rows); /* so that each node's begin aligned */
    if (r->carried_numbers == 0 || rows <= r->carried_rows) return GG_OK;
    GG_TRY(gg_device_alloc(r->device, (size_t)(rows * r->carried_numbers) * sizeof *made, "carried state", &made));
    for (int i = 0; i < nodes && r->carried_rows > 0; ++i) {
        const int64_t before = gg_replica_carried_before(r, i), numbers = gg_graph_node_carried(r->options.graph, i);
        gg_device_copy(r->device, GG_QUEUE_COMPUTE, made + before * rows, r->carried + before * r->carried_rows,
                       (size_t)(numbers * r->carried_rows) * sizeof *made);
    }
    gg_device_free(r->device, r->carried);
    r->carried = made;
    r->carried_rows = rows;
    return GG_OK;
}

void gg_replica_reset_carried(gg_replica *r) {
    if (r->carried != NULL)
        gg_device_zero(r->device, GG_QUEUE_COMPUTE, r->carried,
                       (size_t)(r->carried_numbers * r->carried_rows) * sizeof(float));
}

int64_t gg_replica_carried_rows(const gg_replica *r, int node) {
    return gg_graph_node_carried(r->options.graph, node) != 0 ? r->carried_rows : 0;
}

/* Place of a node's first rows, and their bytes. */
static float *carried_of(const gg_replica *r, int node, int64_t rows, size_t *bytes) {
    *bytes = (size_t)(rows * gg_graph_node_carried(r->options.graph, node)) * sizeof(float);
    return *bytes > 0 ? r->carried + gg_replica_carried_before(r, node) * r->carried_rows : NULL;
}

gg_status gg_replica_read_carried(const gg_replica *r, int node, float *out) {
    size_t bytes;
    const float *from = carried_of(r, node, r->carried_rows, &bytes);
    return gg_device_read(r->device, out, from, bytes);
}

gg_status gg_replica_write_carried(gg_replica *r, int node, int64_t rows, const float *values) {
    size_t bytes;
    GG_TRY(gg_replica_reserve_carried(r, rows));
    float *to = carried_of(r, node, rows, &bytes);
    return gg_device_write(r->device, to, values, bytes);
}

/* Returns the plan to train on n samples, with room for the state that it carries. */
static gg_status training_plan(gg_replica *r, int64_t n, gg_plan **out) {
    GG_TRY(gg_plans_get(&r->plans, n, true, out));
    return gg_replica_reserve_carried(r, n);
}

static void ask_time(gg_replica *r, gg_outstanding_step *out, int which) {
    if (!r->uploads.timed) return;
    memcpy(out->copy, r->uploads.time, sizeof out->copy);
    out->compute[which] = gg_device_time(r->device, GG_QUEUE_COMPUTE);
}

/* Trains on the batch in the plan's inputs; r->batches is set. plan NULL means that this rank only serves. */
static gg_status step_on(gg_replica *r, gg_plan *plan, int64_t n, gg_plan_batch *batch, gg_outstanding_step *out) {
    gg_status status = GG_OK;
    gg_state *state = gg_exchange_state(r->exchange);
    double begin = gg_transport_now(r->transport);
    out->step = state->step;
    out->samples = n;
    out->report = (gg_mark){0};
    memset(out->compute, 0, sizeof out->compute);
    r->batch = n;
    r->plans.pinned = plan;
    if (plan != NULL) GG_TRY_CLEANUP(replica_straggle(r));
    batch->carried = r->carried;
    batch->carried_rows = r->carried_rows;
    GG_TRY_CLEANUP(gg_exchange_begin(r->exchange, r->batches));
    if (plan != NULL) ask_time(r, out, 0);
    if (plan != NULL)
        GG_TRY_CLEANUP(gg_plan_train(plan, gg_state_weights(state), gg_state_gradients(state), batch,
                                     (uint64_t)state->step, &r->hooks, out->sums, &out->report));
    if (plan != NULL) {
        gg_uploads_done(&r->uploads);
        ask_time(r, out, 1);
    }
    if (plan != NULL && gg_exchange_updates_wait(r->exchange)) {
        const double measured = gg_transport_now(r->transport);
        GG_TRY_CLEANUP(gg_exchange_ready_all(r->exchange));
        gg_replica_record(r, "update", measured, -1);
    }
    GG_TRY_CLEANUP(gg_exchange_end(r->exchange));
    if (plan != NULL) ask_time(r, out, 2);
    gg_replica_record(r, "step", begin, -1);
    state->step++;
cleanup:
    return gg_exchange_fail(r->exchange, status);
}

gg_status gg_replica_run(gg_replica *r, int64_t steps) {
    gg_status status = GG_OK;
    int64_t total = gg_replica_epoch_steps(r);
    const int workers = gg_exchange_workers(r->exchange);
    double begin = gg_clock_now(), clock_begin = gg_transport_now(r->transport);
    for (; steps > 0 && r->data.next < total; --steps) {
        int64_t t = r->data.next, n = gg_loader_batch(r->data.loader, r->transport->rank, t);
        gg_plan *plan = NULL;
        gg_plan_batch batch = {0};
        for (int rank = 0; rank < workers; ++rank) r->batches[rank] = gg_loader_batch(r->data.loader, rank, t);
        if (n > 0) {
            GG_TRY_CLEANUP(training_plan(r, n, &plan));
            GG_TRY_CLEANUP(read_batch(r, plan, t, &batch));
        }
        GG_TRY_CLEANUP(gg_replica_count_steps(r, GG_MAX_OUTSTANDING - 1));
        status = step_on(r, plan, n, &batch, gg_outstanding_next(&r->outstanding));
        r->broken = status == GG_ERROR_PEER && gg_exchange_breaks(r->exchange);
        if (status != GG_OK) goto cleanup;
        gg_outstanding_next(&r->outstanding)->counted = true;
        gg_outstanding_add(&r->outstanding);
        r->data.next++;
        GG_TRY_CLEANUP(gg_replica_count_steps(r, r->data.next < total ? GG_MAX_OUTSTANDING : 0));
    }
cleanup:
    r->counts.seconds += gg_clock_now() - begin;
    r->counts.clock_seconds += gg_transport_now(r->transport) - clock_begin;
    return status;
}

gg_status gg_replica_step(gg_replica *r, const gg_given *given, const int64_t *batches, double *loss) {
    gg_plan *plan = NULL;
    gg_plan_batch batch = {0};
    const gg_outstanding_step *done = NULL;

    for (int rank = 0; rank < gg_exchange_workers(r->exchange); ++rank)
        r->batches[rank] = batches ? batches[rank] : given->n;
    GG_TRY(gg_replica_count_steps(r, loss != NULL ? 0 : GG_MAX_OUTSTANDING - 1));
    if (gg_replica_trains(r)) {
        GG_TRY(training_plan(r, given->n, &plan));
        GG_TRY(gg_uploads_give(&r->uploads, r->devices->host, r->options.graph, r->options.head, given->n, given->input,
                               given->target, plan, &batch));
    }
    GG_TRY(step_on(r, plan, given->n, &batch, gg_outstanding_next(&r->outstanding)));
    gg_outstanding_next(&r->outstanding)->counted = false;
    gg_outstanding_add(&r->outstanding);
    if (loss == NULL) return GG_OK;
    GG_TRY(gg_replica_read_step(r, 0, &done));
    *loss = plan != NULL ? gg_replica_step_loss(r, done, 1) : NAN;
    return GG_OK;
}

/* Counts `done` steps as complete by now, in equal parts of the time since `before`. */
static void time_completed(int done, double before, double now, int *timed, double *seconds) {
    const int more = done - *timed;
    for (; *timed < done; ++*timed) seconds[*timed] = (now - before) / more;
}

gg_status gg_replica_bench(gg_replica *r, const gg_given *given, int steps, double *seconds) {
    int timed = 0;
    GG_TRY(gg_replica_count_steps(r, 0));
    double before = gg_clock_now();
    for (int i = 0; i < steps; ++i) {
        GG_TRY(gg_replica_step(r, given, NULL, NULL));
        if (i + 1 < steps) GG_TRY(gg_replica_count_steps(r, GG_MAX_OUTSTANDING - 1));
        else GG_TRY(gg_replica_complete(r));
        const int done = i + 1 - r->outstanding.count;
        if (seconds == NULL || done == timed) continue;
        const double now = gg_clock_now();
        time_completed(done, before, now, &timed, seconds);
        before = now;
    }
    return GG_OK;
}

/* ---- the epoch ---- */

gg_status gg_replica_begin(gg_replica *r, const gg_dataset *set, const gg_data_options *data) {
    gg_status status = GG_OK;
    if (!gg_replica_failed(r)) GG_TRY_CLEANUP(gg_batches_settle(&r->data));
    const gg_dataset limited = gg_limited_set(r->options.graph, r->options.head, set);
    GG_TRY_CLEANUP(gg_batches_begin(&r->data, &limited, data));
cleanup:
    if (status != GG_OK) gg_replica_forget_data(r);
    return status;
}

gg_status gg_replica_plan_batch_of(gg_replica *r, int64_t n) {
    gg_plan *plan;
    if (!gg_replica_trains(r)) return GG_OK;
    GG_TRY(training_plan(r, n, &plan));
    return gg_uploads_reserve_given(&r->uploads, r->options.graph, r->options.head, n);
}

gg_status gg_replica_plan_epoch(gg_replica *r) {
    gg_plan *plan;
    for (int64_t t = gg_loader_begun(r->data.loader); gg_replica_trains(r) && t < gg_loader_steps(r->data.loader);
         ++t) {
        const int64_t n = gg_loader_batch(r->data.loader, r->transport->rank, t);
        GG_TRY(training_plan(r, n, &plan));
        GG_TRY(gg_uploads_reserve_set(&r->uploads, &r->data.set, n));
    }
    return GG_OK;
}

gg_status gg_replica_plan_next(gg_replica *r) {
    gg_plan *plan;
    const int64_t n = r->data.next < gg_replica_epoch_steps(r)
                          ? gg_loader_batch(r->data.loader, r->transport->rank, r->data.next)
                          : 0;
    return gg_replica_trains(r) && n > 0 ? training_plan(r, n, &plan) : GG_OK;
}

void gg_replica_forget_data(gg_replica *r) {
    gg_loader_destroy(r->data.loader);
    r->data.loader = NULL;
}

int64_t gg_replica_epoch_steps(const gg_replica *r) { return r->data.loader ? gg_loader_steps(r->data.loader) : 0; }

int64_t gg_replica_next(const gg_replica *r) { return r->data.next; }

gg_position gg_replica_position(const gg_replica *r) {
    gg_position at = {.epoch = r->data.epoch, .next = r->data.next};
    if (r->data.loader == NULL) return at;
    at.begun = gg_loader_begun(r->data.loader);
    at.done = gg_loader_read_before(r->data.loader);
    at.divisions = r->data.divisions;
    at.division = r->data.division;
    return at;
}

void gg_replica_read_by(const gg_replica *r, int64_t *read) { gg_loader_read_by(r->data.loader, r->data.next, read); }

int gg_replica_workers(const gg_replica *r) { return r->data.workers; }

int64_t gg_replica_batch_size(const gg_replica *r) { return r->data.options.batch; }

gg_status gg_replica_check_position(const gg_replica *r, const gg_position *at) {
    if (r->data.loader == NULL && at->next != 0)
        return gg_fail(GG_ERROR_ARGUMENT, "step: %lld; allowed in an epoch of 0 steps are 0 to 0", (long long)at->next);
    if (r->data.loader == NULL) return gg_fail(GG_ERROR_STATE, "epoch: there is no data to train on yet");
    return gg_loader_check_position(r->data.loader, at);
}

gg_status gg_replica_epoch(gg_replica *r, const gg_position *at) {
    gg_status status = GG_OK;
    const bool divided = r->data.divisions > 0 || at->divisions > 0;
    const bool planned = !divided && gg_loader_begun(r->data.loader) == 0 && at->begun == 0;
    GG_TRY_CLEANUP(gg_replica_count_steps(r, 0));
    memset(&r->counts, 0, sizeof r->counts);
    gg_replica_reset_carried(r);
    if (at->done == NULL) GG_TRY_CLEANUP(gg_batches_seek(&r->data, at->epoch, at->next));
    else GG_TRY_CLEANUP(gg_batches_resume(&r->data, at));
    if (!planned) GG_TRY_CLEANUP(gg_replica_plan_epoch(r)); /* the last batches have other sizes */
    r->before = gg_replica_other_counts(r);
    gg_replica_tell_counts(r, *r->data.step);
cleanup:
    return gg_exchange_fail(r->exchange, status);
}

gg_status gg_replica_end_epoch(gg_replica *r) {
    double begin = gg_clock_now(), clock_begin = gg_transport_now(r->transport);
    gg_status status = gg_replica_settle(r);
    r->counts.seconds += gg_clock_now() - begin;
    r->counts.clock_seconds += gg_transport_now(r->transport) - clock_begin;
    return status;
}
