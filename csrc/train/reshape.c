/* Reshapes a replica in the middle of an epoch: another strategy, or a network with other units. */
#include <string.h>

#include "base/memory.h"
#include "exchange/rebuild.h"
#include "train/costs.h"
#include "train/replica_private.h"

/* ---- state that layers carry ---- */

/* Maps the carried rows of every node to the new network, as many as before. `from`: the old network's state, each of
 * its nodes' rows after the last one's. */
static gg_status map_carried(gg_replica *r, const gg_reshape *how, const gg_graph *former, const float *from,
                             int64_t rows) {
    gg_status status = GG_OK;
    float *mapped = NULL;
    if (rows == 0) goto cleanup;
    GG_TRY_CLEANUP(gg_replica_reserve_carried(r, rows));
    GG_TRY_CLEANUP(gg_alloc((size_t)(rows * r->carried_numbers) * sizeof *mapped, "carried state", &mapped));
    for (int node = 0; node < gg_graph_nodes(former) && how->carried != NULL; ++node) {
        const int64_t before = gg_graph_node_carried(former, node), after = gg_graph_node_carried(how->graph, node);
        for (int64_t row = 0; row < rows && after > 0; ++row)
            how->carried(how->context, node, from + row * before, mapped + row * after);
        if (after > 0) GG_TRY_CLEANUP(gg_replica_write_carried(r, node, rows, mapped));
        from += rows * before;
    }
cleanup:
    gg_free(mapped);
    return status;
}

/* ---- the data ---- */

/* True if the ranks divide or move the samples in another way. */
static bool divides_otherwise(const gg_replica *r, const gg_strategy_options *strategy) {
    return strategy->shuffle_samples != r->data.shuffle_samples ||
           gg_strategy_workers(strategy, r->transport->size) != r->data.workers;
}

/* Divides the set as the strategy requires. The last epoch has ended, or this one has not begun. batch 0 means
 * unchanged. */
static gg_status divide_samples(gg_replica *r, int64_t batch) {
    gg_status status = GG_OK;
    const bool there = r->data.loader != NULL, begins = r->data.next == 0;
    const int64_t epoch = r->data.epoch;
    gg_data_options options = r->data.options;
    gg_dataset set = r->data.set;
    if (there) gg_dataset_retain(&set);
    gg_batches_clear(&r->data);
    r->data.workers = gg_exchange_workers(r->exchange);
    r->data.shuffle_samples = gg_exchange_asked(r->exchange)->strategy.shuffle_samples;
    if (!there) goto cleanup;
    if (batch != 0) options.batch = batch;
    GG_TRY_CLEANUP(gg_batches_begin(&r->data, &set, &options));
    GG_TRY_CLEANUP(gg_batches_seek(&r->data, epoch, begins ? 0 : gg_loader_steps(r->data.loader)));
    GG_TRY_CLEANUP(gg_replica_plan_epoch(r));
cleanup:
    if (there) gg_dataset_release(&set);
    return status;
}

/* ---- the whole ---- */

gg_status gg_replica_check_reshape(const gg_replica *r, const gg_reshape *how) {
    const int ranks = r->transport->size;
    if (how->graph != NULL && how->map == NULL)
        return gg_fail(GG_ERROR_ARGUMENT, "reshape: another network needs a map from the old arenas to the new ones");
    if (how->graph != NULL && !gg_graph_is_alike(r->options.graph, how->graph))
        return gg_fail(GG_ERROR_ARGUMENT,
                       "reshape: the other network has other inputs, outputs or layers; allowed is one that "
                       "differs in the sizes of layers in between");
    if (how->batch != 0 && r->data.loader == NULL)
        return gg_fail(GG_ERROR_STATE, "reshape: batch=%lld, but there is no data to train on yet",
                       (long long)how->batch);
    const int workers = how->strategy != NULL ? gg_strategy_workers(how->strategy, ranks) : r->data.workers;
    if (r->data.loader != NULL && (how->batch != 0 || workers != r->data.workers))
        GG_TRY(gg_batches_check(&r->data, workers, how->batch != 0 ? how->batch : r->data.options.batch));
    if (how->strategy == NULL) return GG_OK;
    const gg_strategy_options *strategy = how->strategy;
    GG_TRY(gg_exchange_check_rebuild(r->exchange, strategy));
    if (r->data.loader != NULL && r->data.options.shard == GG_SHARD_OWN && divides_otherwise(r, strategy))
        return gg_fail(GG_ERROR_ARGUMENT, "reshape: every rank has brought samples of its own: all ranks train, and "
                                          "shuffle_samples is not allowed");
    if (gg_batches_in_an_epoch(&r->data) && divides_otherwise(r, strategy))
        return gg_fail(
            GG_ERROR_ARGUMENT,
            "reshape: after step %lld of an epoch's %lld the ranks that train (%d, wanted %d) and shuffle_samples "
            "(%s, wanted %s) stay as they are; between epochs they may change",
            (long long)r->data.next, (long long)gg_loader_steps(r->data.loader), gg_exchange_workers(r->exchange),
            gg_strategy_workers(strategy, ranks), r->data.shuffle_samples ? "true" : "false",
            strategy->shuffle_samples ? "true" : "false");
    return GG_OK;
}

/* The batches of the new strategy, network or size, and their plans. */
static gg_status prepare_data(gg_replica *r, const gg_reshape *how) {
    const bool divides = divides_otherwise(r, &gg_exchange_asked(r->exchange)->strategy);
    const bool rebatches = r->data.loader != NULL && how->batch != 0 && how->batch != r->data.options.batch;
    if (divides) GG_TRY(divide_samples(r, how->batch));
    else if (rebatches) GG_TRY(gg_batches_rebatch(&r->data, how->batch));
    if (r->data.loader != NULL && (how->graph != NULL || rebatches)) GG_TRY(gg_replica_plan_epoch(r));
    return GG_OK;
}

/* The exchange of another strategy or network. */
static gg_status rebuild(gg_replica *r, const gg_reshape *how) {
    gg_status status = GG_OK;
    const gg_graph *former = r->options.graph;
    gg_rebuild exchange = {.strategy = how->strategy, .map = how->map, .context = how->context};
    float *carried = NULL;
    double *forward = NULL;
    int64_t rows = 0;
    if (how->graph != NULL) {
        rows = r->carried_rows;
        const size_t bytes = (size_t)(rows * r->carried_numbers) * sizeof *carried;
        GG_TRY_CLEANUP(gg_alloc(bytes, "carried state", &carried));
        GG_TRY_CLEANUP(gg_device_read(r->device, carried, r->carried, bytes));
        gg_plans_clear(&r->plans);
        gg_device_free(r->device, r->carried);
        r->carried = NULL;
        r->carried_rows = 0;
        r->options.graph = r->plans.graph = how->graph;
        exchange.layout = gg_graph_layout(how->graph);
    }
    GG_TRY_CLEANUP(gg_tuning_costs(r->options.graph, how->step_seconds, r->transport->size, &forward, &exchange.costs));
    exchange.costs.link = how->link;
    GG_TRY_CLEANUP(gg_exchange_rebuild(r->exchange, &exchange));
    GG_TRY_CLEANUP(gg_replica_follow_exchange(r, how->step_seconds));
    if (how->graph != NULL) GG_TRY_CLEANUP(map_carried(r, how, former, carried, rows));
cleanup:
    gg_free(carried);
    gg_free(forward);
    return status;
}

gg_status gg_replica_reshape(gg_replica *r, const gg_reshape *how) {
    gg_status status = GG_OK;
    gg_progress_counts counts;
    const bool batch_alone = how->batch != 0 && how->strategy == NULL && how->graph == NULL;
    GG_TRY_CLEANUP(gg_replica_end_epoch(r)); /* messages in flight belong to the steps made so far */
    gg_replica_counts(r, &counts);           /* without the messages of the rebuilding */
    if (!batch_alone) GG_TRY_CLEANUP(rebuild(r, how));
    GG_TRY_CLEANUP(prepare_data(r, how));
    gg_replica_set_counts(r, &counts);
cleanup:
    if (status != GG_OK) gg_exchange_dismantle(r->exchange);
    return gg_exchange_fail(r->exchange, status);
}
