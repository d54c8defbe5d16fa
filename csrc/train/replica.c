/* Creates and destroys a replica, and answers questions about it. */
#include <string.h>

#include "base/memory.h"
#include "base/parallel.h"
#include "train/costs.h"
#include "train/replica_private.h"

static gg_plans plans_of(const gg_replica *r) {
    const gg_replica_options *o = &r->options;
    const gg_exchange_options *asked = gg_exchange_asked(r->exchange);
    gg_plans plans = {.graph = o->graph,
                      .options = {.device = r->devices->first,
                                  .fallback = r->devices->device,
                                  .choose = r->devices->choose,
                                  .conv_algorithm = o->conv_algorithm,
                                  .costs = o->costs,
                                  .dtype = asked->devices.dtype,
                                  .graphs = o->graphs,
                                  .seed = asked->seed,
                                  .rank = (uint32_t)r->transport->identity}};
    memcpy(plans.options.head, o->head, sizeof o->head);
    return plans;
}

gg_status gg_replica_follow_exchange(gg_replica *r, const double *step_seconds) {
    gg_free(r->layer_seconds);
    r->layer_seconds = NULL;
    r->any_batch = step_seconds != NULL;
    GG_TRY(gg_forward_costs(r->options.graph, step_seconds, r->transport->rank, &r->layer_seconds));
    r->carried_numbers = gg_replica_carried_before(r, gg_graph_nodes(r->options.graph));
    gg_replica_set_hooks(r);
    return GG_OK;
}

static gg_status initialise_weights(gg_replica *r) {
    gg_status status = GG_OK;
    const gg_state *state = gg_exchange_state(r->exchange);
    float *made = NULL;
    if (gg_device_is_separate(r->device))
        GG_TRY_CLEANUP(gg_calloc(state->count, sizeof *made, "initial weights", &made));
    float *weights = made != NULL ? made : gg_state_weights(state);
    gg_graph_initialise(r->options.graph, gg_exchange_asked(r->exchange)->seed, weights);
    if (made != NULL)
        GG_TRY_CLEANUP(gg_device_write(r->device, gg_state_weights(state), made, state->count * sizeof *made));
    gg_exchange_set_consensus(r->exchange, weights);
cleanup:
    gg_free(made);
    return status;
}

gg_status gg_replica_create(const gg_replica_options *options, gg_replica **out) {
    gg_status status = GG_OK;
    gg_replica *r = NULL;
    gg_exchange *x = options->exchange;
    const gg_straggler *straggler = &options->straggler;

    *out = NULL;
    if (!(straggler->probability >= 0 && straggler->probability <= 1 && straggler->delay >= 0))
        GG_FAIL_CLEANUP(GG_ERROR_ARGUMENT, "straggler: probability %g, delay %g s; must be 0 to 1, and at least 0",
                        straggler->probability, straggler->delay);
    GG_TRY_CLEANUP(gg_calloc(1, sizeof *r, "replica", &r));
    r->options = *options;
    r->options.step_seconds = NULL;
    r->exchange = x;
    r->devices = gg_exchange_devices(x);
    r->device = r->devices->device;
    r->transport = gg_exchange_transport(x);
    r->trace = gg_exchange_trace(x);
    r->plans = plans_of(r);
    gg_uploads_open(r->device, r->transport, &r->uploads);
    /* A virtual clock knows nothing of the device's. */
    r->uploads.timed = r->trace != NULL && gg_device_is_separate(r->device) && !r->transport->table->stands;
    GG_TRY_CLEANUP(gg_outstanding_create(r->device, r->transport, &r->outstanding));
    GG_TRY_CLEANUP(gg_calloc((size_t)r->transport->size, sizeof *r->batches, "batches", &r->batches));
    GG_TRY_CLEANUP(gg_replica_follow_exchange(r, options->step_seconds));
    r->data = (gg_batches){.transport = r->transport,
                           .device = r->devices->host,
                           .uploads = &r->uploads,
                           .workers = gg_exchange_workers(x),
                           .seed = gg_exchange_asked(x)->seed,
                           .shuffle_samples = gg_exchange_asked(x)->strategy.shuffle_samples,
                           .trace = r->trace,
                           .step = &gg_exchange_state(x)->step};
    GG_TRY_CLEANUP(initialise_weights(r));
    *out = r;
cleanup:
    if (status != GG_OK) gg_replica_destroy(r);
    return status;
}

void gg_replica_destroy(gg_replica *r) {
    if (r == NULL) return;
    gg_plans_clear(&r->plans);
    gg_batches_clear(&r->data);
    gg_device_free(r->device, r->carried);
    gg_outstanding_clear(&r->outstanding);
    gg_uploads_close(&r->uploads);
    gg_held_state_free(r->held);
    gg_free(r->batches);
    gg_free(r->layer_seconds);
    gg_free(r);
}

gg_exchange *gg_replica_exchange(const gg_replica *r) { return r->exchange; }
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

/* Options and weights to measure steps with, in the memory of the replica's own plans. */
static gg_status options_to_measure(gg_replica *r, int64_t batch, gg_plan_options *options, const float **weights) {
    if (!gg_exchange_is_whole(r->exchange))
        return gg_fail(GG_ERROR_STATE, "a change of the network has failed: there are no weights");
    *options = measured_options(r, batch, true, NULL);
    options->memory = &r->plans.memory;
    *weights = gg_state_weights(gg_exchange_state(r->exchange));
    return GG_OK;
}

gg_status gg_replica_measure_tables(gg_replica *r, int64_t batch, const gg_conv_choices algorithms[2], double seconds,
                                    gg_tables_timing *out) {
    gg_plan_options options;
    const float *weights;
    GG_TRY(options_to_measure(r, batch, &options, &weights));
    const gg_float_mode former = gg_parallel_enter();
    const gg_status status = gg_measure_tables(r->options.graph, &options, weights, algorithms, seconds, out);
    gg_parallel_leave(former);
    return status;
}

gg_status gg_replica_measure_step(gg_replica *r, int64_t batch, double *seconds) {
    gg_plan_options options;
    const float *weights;
    GG_TRY(options_to_measure(r, batch, &options, &weights));
    const gg_float_mode former = gg_parallel_enter();
    const gg_status status = gg_measure_step(r->options.graph, &options, weights, seconds);
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

size_t gg_replica_bytes(const gg_replica *r) { return gg_plans_bytes(&r->plans) + gg_exchange_bytes(r->exchange); }
