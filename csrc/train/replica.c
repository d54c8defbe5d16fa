/* Creating and destroying a replica, and what it is asked. */
#include <string.h>

#include "base/memory.h"
#include "base/parallel.h"
#include "comm/collective.h"
#include "comm/device_order.h"
#include "train/replica_private.h"

static gg_status open_devices(gg_replica *r) {
    const gg_replica_options *o = &r->options;
    const gg_devices_options wanted = {
        .device = {.threads = o->threads, .isa = o->isa, .fast = o->fast}, .backend = o->backend, .dtype = o->dtype};
    GG_TRY(gg_devices_open(o->device, &wanted, &r->devices));
    r->device = r->devices.device;
    r->plans = (gg_plans){.graph = o->graph,
                          .options = {.device = r->devices.first,
                                      .fallback = r->devices.device,
                                      .choose = r->devices.choose,
                                      .conv_algorithm = o->conv_algorithm,
                                      .costs = o->costs,
                                      .dtype = o->dtype,
                                      .graphs = o->graphs,
                                      .seed = o->seed,
                                      .rank = (uint32_t)o->transport->rank}};
    memcpy(r->plans.options.head, o->head, sizeof o->head);
    return GG_OK;
}

gg_status gg_replica_assemble(gg_replica *r) {
    gg_status status = GG_OK;
    gg_replica_options *o = &r->options;
    double *forward = NULL;
    GG_TRY_CLEANUP(gg_replica_model_costs(r));
    GG_TRY_CLEANUP(gg_calloc((size_t)gg_graph_layers(o->graph) + 1, sizeof *forward, "modelled times", &forward));
    gg_exchange_options exchange = {.layout = gg_graph_layout(o->graph),
                                    .transport = o->transport,
                                    .device = r->device,
                                    .optimizer = &o->optimizer,
                                    .strategy = o->strategy,
                                    .seed = o->seed,
                                    .trace = r->trace,
                                    .across_steps = true,
                                    .forward = forward,
                                    .link = o->link};
    gg_replica_tuning_costs(r, forward, &exchange.least);
    o->step_seconds = NULL;
    o->link = NULL;
    r->carried_numbers = gg_replica_carried_before(r, gg_graph_nodes(o->graph));
    GG_TRY_CLEANUP(gg_exchange_create(&exchange, &r->exchange));
    o->strategy = *gg_exchange_strategy(r->exchange);
    gg_batches_show_step(&r->data, &gg_replica_state(r)->step);
    gg_replica_set_hooks(r);
cleanup:
    gg_free(forward);
    return status;
}

void gg_replica_dismantle(gg_replica *r) {
    r->no_state.step = gg_replica_state(r)->step;
    gg_batches_show_step(&r->data, &r->no_state.step);
    gg_exchange_destroy(r->exchange);
    gg_free(r->layer_seconds);
    r->exchange = NULL;
    r->layer_seconds = NULL;
}

static gg_status initialise_weights(gg_replica *r) {
    gg_status status = GG_OK;
    const gg_state *state = gg_replica_state(r);
    float *made = NULL;
    if (gg_device_is_separate(r->device))
        GG_TRY_CLEANUP(gg_calloc(state->count, sizeof *made, "initial weights", &made));
    float *weights = made != NULL ? made : gg_state_weights(state);
    gg_graph_initialise(r->options.graph, r->options.seed, weights);
    if (made != NULL)
        GG_TRY_CLEANUP(gg_device_write(r->device, gg_state_weights(state), made, state->count * sizeof *made));
    gg_replica_set_consensus(r, weights);
cleanup:
    gg_free(made);
    return status;
}

gg_status gg_replica_create(const gg_replica_options *options, gg_replica **out) {
    gg_status status = GG_OK;
    gg_replica *r = NULL;
    size_t ranks = (size_t)options->transport->size;

    *out = NULL;
    GG_TRY_CLEANUP(gg_calloc(1, sizeof *r, "replica", &r));
    r->options = *options;
    if (r->options.device == NULL) r->options.device = "cpu";
    if (options->threads < 1) GG_FAIL_CLEANUP(GG_ERROR_ARGUMENT, "threads: %d; must be at least 1", options->threads);
    GG_TRY_CLEANUP(gg_optimizer_check(&options->optimizer));
    if (!(options->straggler.probability >= 0 && options->straggler.probability <= 1 && options->straggler.delay >= 0))
        GG_FAIL_CLEANUP(GG_ERROR_ARGUMENT, "straggler: probability %g, delay %g s; must be 0 to 1, and at least 0",
                        options->straggler.probability, options->straggler.delay);
    GG_TRY_CLEANUP(open_devices(r));
    GG_TRY_CLEANUP(gg_device_order_create(options->transport, r->device, &r->order));
    if (r->order != NULL) r->options.transport = r->order;
    gg_uploads_open(r->device, r->options.transport, &r->uploads);
    GG_TRY_CLEANUP(gg_outstanding_create(r->device, r->options.transport, &r->outstanding));
    GG_TRY_CLEANUP(gg_calloc(ranks, sizeof *r->batches, "batches", &r->batches));
    if (options->trace > 0) {
        GG_TRY_CLEANUP(gg_trace_create(options->trace, &r->trace));
        GG_TRY_CLEANUP(gg_clock_offset(r->options.transport, &r->clock_offset));
        /* A clock that is virtual knows nothing of the device's. */
        r->uploads.timed = gg_device_is_separate(r->device) && !options->transport->table->stands;
    }
    GG_TRY_CLEANUP(gg_replica_assemble(r));
    r->data = (gg_batches){.transport = r->options.transport,
                           .device = r->devices.host,
                           .uploads = &r->uploads,
                           .workers = gg_exchange_workers(r->exchange),
                           .seed = options->seed,
                           .shuffle_samples = options->strategy.shuffle_samples,
                           .trace = r->trace,
                           .step = &gg_replica_state(r)->step};
    GG_TRY_CLEANUP(initialise_weights(r));
    *out = r;
cleanup:
    if (status != GG_OK) gg_replica_destroy(r);
    return status;
}

void gg_replica_destroy(gg_replica *r) {
    if (r == NULL) return;
    gg_replica_dismantle(r);
    gg_plans_clear(&r->plans);
    gg_batches_clear(&r->data);
    gg_device_free(r->device, r->carried);
    gg_outstanding_clear(&r->outstanding);
    gg_uploads_close(&r->uploads);
    gg_free(r->batches);
    gg_trace_destroy(r->trace);
    gg_transport_destroy(r->order);
    gg_devices_close(&r->devices);
    gg_free(r);
}

const gg_tuning *gg_replica_tuning(const gg_replica *r) {
    static const gg_tuning none;
    return r->exchange != NULL ? gg_exchange_tuning(r->exchange) : &none;
}
gg_state *gg_replica_state(gg_replica *r) {
    return r->exchange != NULL ? gg_exchange_state(r->exchange) : &r->no_state;
}
gg_transport *gg_replica_transport(const gg_replica *r) { return r->options.transport; }
const gg_trace *gg_replica_trace(const gg_replica *r) { return r->trace; }
double gg_replica_clock_offset(const gg_replica *r) { return r->clock_offset; }
gg_isa gg_replica_isa(const gg_replica *r) { return r->options.isa; }
const bool *gg_replica_fc_partitioned(const gg_replica *r) {
    return r->exchange != NULL ? gg_exchange_fc_partitioned(r->exchange) : NULL;
}
bool gg_replica_compresses(const gg_replica *r) { return r->exchange != NULL && gg_exchange_compresses(r->exchange); }
gg_plan *gg_replica_plan(const gg_replica *r) { return r->plans.pinned; }

static gg_plan_options measured_options(const gg_replica *r, int64_t batch, bool training,
                                        const gg_table_choice *order) {
    gg_plan_options options = r->plans.options;
    options.batch = batch;
    options.training = training;
    if (order == NULL) return options;
    options.table_choice = order;
    options.table_choices = 1;
    return options;
}

gg_status gg_replica_measured_convolutions(gg_replica *r, int64_t batch, bool training, const gg_table_choice *order,
                                           gg_conv_key **out, int *count) {
    const gg_plan_options options = measured_options(r, batch, training, order);
    const gg_float_mode former = gg_parallel_enter();
    const gg_status status = gg_measured_convolutions(r->options.graph, &options, out, count);
    gg_parallel_leave(former);
    return status;
}

gg_status gg_replica_measure_algorithms(gg_replica *r, int64_t batch, bool training, const gg_table_choice *order,
                                        const gg_conv_key *wanted, int wants, double seconds, gg_conv_timing **out,
                                        int *count) {
    const gg_plan_options options = measured_options(r, batch, training, order);
    const gg_float_mode former = gg_parallel_enter();
    const gg_status status = gg_measure_algorithms(r->options.graph, &options, wanted, wants, seconds, out, count);
    gg_parallel_leave(former);
    return status;
}

gg_status gg_replica_measure_tables(gg_replica *r, int64_t batch, const gg_conv_choices algorithms[2], double seconds,
                                    gg_tables_timing *out) {
    gg_status status = GG_OK;
    gg_plan_options options = measured_options(r, batch, true, NULL);
    const gg_float_mode former = gg_parallel_enter();
    options.memory = &r->plans.memory; /* not beside that of other plans */
    if (r->exchange == NULL)
        GG_FAIL_CLEANUP(GG_ERROR_STATE, "a change of the network has failed: there are no weights");
    const float *weights = gg_state_weights(gg_exchange_state(r->exchange));
    GG_TRY_CLEANUP(gg_measure_tables(r->options.graph, &options, weights, algorithms, seconds, out));
cleanup:
    gg_parallel_leave(former);
    return status;
}

gg_status gg_replica_measure_step(gg_replica *r, int64_t batch, double *seconds) {
    gg_status status = GG_OK;
    gg_plan_options options = measured_options(r, batch, true, NULL);
    const gg_float_mode former = gg_parallel_enter();
    options.memory = &r->plans.memory; /* not beside that of other plans */
    if (r->exchange == NULL)
        GG_FAIL_CLEANUP(GG_ERROR_STATE, "a change of the network has failed: there are no weights");
    const float *weights = gg_state_weights(gg_exchange_state(r->exchange));
    GG_TRY_CLEANUP(gg_measure_step(r->options.graph, &options, weights, seconds));
cleanup:
    gg_parallel_leave(former);
    return status;
}

void gg_replica_set_algorithms(gg_replica *r, const gg_conv_choice *choices, int count, const gg_table_choice *tables,
                               int table_count) {
    gg_plans_clear(&r->plans);
    r->plans.options.conv_choice = choices;
    r->plans.options.conv_choices = count;
    r->plans.options.table_choice = tables;
    r->plans.options.table_choices = table_count;
}

const char *gg_replica_backend_name(const gg_replica *r) { return r->devices.tables; }

size_t gg_replica_bytes(const gg_replica *r) {
    return gg_plans_bytes(&r->plans) + (r->exchange != NULL ? gg_exchange_bytes(r->exchange) : 0);
}
