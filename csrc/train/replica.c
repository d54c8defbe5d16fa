/* Creating and destroying a replica, and what it is asked. */
#include <string.h>

#include "base/memory.h"
#include "cpu/cpu_backend.h"
#include "train/replica_private.h"

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

gg_status gg_replica_assemble(gg_replica *r) {
    gg_status status = GG_OK;
    gg_replica_options *o = &r->options;
    const int ranks = o->transport->size;
    GG_TRY(gg_replica_model_costs(r));
    GG_TRY(gg_replica_tune(r));
    o->step_seconds = NULL;
    o->link = NULL;
    r->carried_numbers = gg_replica_carried_before(r, gg_graph_nodes(o->graph));
    r->workers = gg_strategy_workers(&o->strategy, ranks);
    if (o->strategy.shuffle_samples && r->workers < ranks)
        GG_FAIL(GG_ERROR_ARGUMENT, "shuffle_samples: allowed only where all ranks train, here %d of %d do", r->workers,
                ranks);
    for (int i = 0; i < ranks; ++i) r->equal_share[i] = i < r->workers ? 1.0f / (float)r->workers : 0;
    r->state.count = r->state.owned = gg_graph_arena_count(o->graph);
    r->state.step = 0;
    GG_TRY(gg_updater_create(gg_graph_layout(o->graph), &o->optimizer, &r->updater));
    GG_TRY(gg_strategy_create(&o->strategy,
                              &(gg_strategy_env){.transport = o->transport,
                                                 .device = r->device,
                                                 .updater = &r->updater,
                                                 .state = &r->state,
                                                 .layout = gg_graph_layout(o->graph),
                                                 .seed = o->seed,
                                                 .trace = r->trace},
                              &r->strategy));
    gg_replica_set_hooks(r);
cleanup:
    return status;
}

void gg_replica_dismantle(gg_replica *r) {
    gg_strategy_destroy(r->strategy);
    gg_updater_destroy(&r->updater);
    gg_allreduce_destroy(r->averaging);
    gg_message_free(r->options.transport, r->consensus);
    gg_free(r->layer_seconds);
    r->strategy = NULL;
    r->averaging = NULL;
    r->consensus = NULL;
    r->layer_seconds = NULL;
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
    GG_TRY(gg_calloc(ranks, sizeof(float), "shares", &r->share));
    GG_TRY(gg_calloc(ranks, sizeof(float), "shares", &r->equal_share));
    GG_TRY(gg_calloc(ranks, sizeof *r->batches, "batches", &r->batches));
    if (options->trace > 0) {
        GG_TRY(gg_trace_create(options->trace, &r->trace));
        GG_TRY(gg_clock_offset(options->transport, &r->clock_offset));
    }
    GG_TRY(gg_replica_assemble(r));
    r->data = (gg_batches){.transport = options->transport,
                           .device = r->device,
                           .workers = r->workers,
                           .seed = options->seed,
                           .shuffle_samples = options->strategy.shuffle_samples,
                           .trace = r->trace,
                           .step = &r->state.step};
    gg_graph_initialise(options->graph, options->seed, gg_state_weights(&r->state));
    gg_replica_set_consensus(r, gg_state_weights(&r->state));
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
    gg_free(r->carried);
    gg_free(r->share);
    gg_free(r->equal_share);
    gg_free(r->batches);
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
const bool *gg_replica_fc_partitioned(const gg_replica *r) {
    return r->strategy != NULL ? r->strategy->fc_partitioned : NULL;
}
bool gg_replica_compresses(const gg_replica *r) {
    return r->strategy != NULL && r->strategy->compression_counts != NULL;
}
gg_plan *gg_replica_plan(const gg_replica *r) { return r->plans.pinned; }

const char *gg_replica_backend_name(const gg_replica *r) {
    if (r->onednn == NULL) return "native";
    return r->options.backend == GG_CHOOSE_ONEDNN ? "onednn" : "onednn+native";
}

size_t gg_replica_bytes(const gg_replica *r) {
    const size_t whole = (size_t)(r->state.arenas - gg_state_moments(&r->state)); /* arenas of all elements */
    return gg_plans_bytes(&r->plans) + whole * r->state.count * sizeof(float) +
           (size_t)gg_state_moment_bytes(&r->state, false);
}
