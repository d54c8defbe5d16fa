/* LayerwiseAllReduce, the paper's AGD: synchronous SGD whose reductions hide behind the backward pass.
 *
 * 1. A bucket's reduction starts when the gradients of its layers are final, last layers first, and progresses in the
 *    polls between nodes.
 * 2. When it is complete, the bucket is updated: its weights are not used any more in this step.
 * 3. The end of the step waits for the rest.
 *
 * Where ranks may die, all updates wait for the last sum: a death then finds all weights updated, or none.
 *
 * Sums and updates are those of AllReduce, element by element, so the bits are equal. Updates that need norms of all
 * gradients wait for the end.
 *
 * Hierarchical GossipGraD does this inside a node, with gossip in place of the update: a reduced bucket goes to a
 * gossip strategy whose ranks are the nodes. Each of a node's ranks exchanges with the rank at its own place in another
 * node. All places follow one schedule, so all ranks of a node hold equal bits. A rank sends as many bytes as without
 * nodes, one model's. */
#include "base/memory.h"
#include "comm/subgroup.h"
#include "exchange/parts/flight.h"
#include "exchange/parts/gossip_forms.h"
#include "exchange/parts/reductions.h"
#include "exchange/types.h"

typedef struct layerwise_allreduce {
    gg_strategy head;
    gg_buckets buckets;
    gg_transport *group; /* the ranks whose gradients are reduced: all, or those of a node */
    gg_reductions reductions;
    gg_compression_counts counts;
    int started;       /* the bucket whose reductions were started last; count means none in this step */
    int *next;         /* one a bucket: the first chunk that is still to be updated; end_chunk means none */
    gg_flight *flight; /* one a bucket */
    /* Hierarchical only: */
    gg_strategy *gossip; /* NULL means that reduced buckets are updated */
    gg_nodes nodes;
    gg_transport *node, *across; /* views: the ranks of this node; those at this place in all nodes */
    float *node_share;           /* by the samples of the node's ranks */
} layerwise_allreduce;

static gg_status at_layers(const layerwise_allreduce *s, int bucket, gg_status status) {
    return gg_strategy_at(&s->head, s->buckets.bucket[bucket].first_layer, s->buckets.bucket[bucket].last_layer,
                          status);
}

/* After a call of the gossip strategy: its waits count as this strategy's. */
static gg_status by_gossip(layerwise_allreduce *s, gg_status status) {
    s->head.exposed_seconds += s->gossip->exposed_seconds;
    s->gossip->exposed_seconds = 0;
    return status;
}

/* Before the backward pass writes gradients again, the peers must have read those of the last step. */
static gg_status layerwise_rest(gg_strategy *strategy) {
    layerwise_allreduce *s = (layerwise_allreduce *)strategy;
    for (int bucket = s->buckets.count - 1; bucket >= 0; --bucket) {
        const gg_bucket *b = &s->buckets.bucket[bucket];
        for (int i = b->first_chunk; i < b->end_chunk; ++i) GG_TRY(gg_reductions_finish(&s->reductions, i));
    }
    return GG_OK;
}

/* Shares within the node, in proportion to the samples of its ranks; 0 if none of them has any. */
static void set_node_share(layerwise_allreduce *s) {
    const float *share = s->head.share;
    const int *member = s->nodes.member, size = s->nodes.size, first = s->across->rank * size;
    double whole = 0;
    for (int i = 0; i < size; ++i) whole += (double)share[member[first + i]];
    if (s->nodes.count == 1 || whole == 0) whole = 1; /* one node: the bits are those without nodes */
    for (int i = 0; i < size; ++i) s->node_share[i] = (float)((double)share[member[first + i]] / whole);
}

static gg_status layerwise_begin(gg_strategy *strategy) {
    layerwise_allreduce *s = (layerwise_allreduce *)strategy;
    gg_buckets_begin(&s->buckets);
    s->started = s->buckets.count;
    GG_TRY(layerwise_rest(strategy));
    if (s->gossip != NULL) {
        set_node_share(s);
        s->gossip->step = strategy->step;
        s->gossip->share = strategy->share;
        GG_TRY(by_gossip(s, s->gossip->table->begin(s->gossip)));
    }
    return GG_OK;
}

static gg_status layerwise_need(gg_strategy *strategy, int layer) {
    layerwise_allreduce *s = (layerwise_allreduce *)strategy;
    return s->gossip != NULL ? by_gossip(s, s->gossip->table->need(s->gossip, layer)) : GG_OK;
}

static gg_status layerwise_offer_input(gg_strategy *strategy, int layer, const gg_vectors *input, bool *taken) {
    return gg_reductions_input(&((const layerwise_allreduce *)strategy)->reductions, layer, input, taken);
}

static gg_status layerwise_offer_error(gg_strategy *strategy, int layer, const gg_vectors *error) {
    return gg_reductions_error(&((const layerwise_allreduce *)strategy)->reductions, layer, error);
}

static const gg_strategy_fc_hooks fc_hooks = {layerwise_offer_input, layerwise_offer_error};

static gg_status layerwise_ready(gg_strategy *strategy, int layer) {
    gg_status status = GG_OK;
    layerwise_allreduce *s = (layerwise_allreduce *)strategy;
    int bucket = s->buckets.bucket_of_layer[layer];
    const gg_bucket *b = &s->buckets.bucket[bucket];
    const float *share = s->gossip != NULL ? s->node_share : strategy->share;
    if (!gg_buckets_layer_ready(&s->buckets, layer)) goto cleanup;
    /* All ranks must start reductions in one order, because MPI matches collectives by order alone. The backward pass
     * goes through the layers from the last on every rank, with any kernels. So buckets are complete in descending
     * order. */
    if (bucket >= s->started)
        GG_FAIL_CLEANUP(GG_ERROR_STATE, "the gradients of bucket %d are final after those of bucket %d", bucket,
                        s->started);
    s->started = bucket;
    for (int i = b->first_chunk; i < b->end_chunk; ++i) GG_TRY_CLEANUP(gg_reductions_start(&s->reductions, i, share));
    s->next[bucket] = b->first_chunk;
    gg_flight_begin(&s->flight[bucket], strategy, -1);
cleanup:
    return at_layers(s, bucket, status);
}

/* True if the norms of all reduced gradients are needed before the first update, or all sums. */
static bool updates_wait(const layerwise_allreduce *s) {
    if (s->gossip == NULL && s->head.env.mortal) return true;
    return gg_updater_measures(s->head.env.updater) && (s->gossip == NULL || !s->gossip->averages_gradients);
}

/* Makes all updates, which have waited for the reduction of all gradients. */
static gg_status update_all(layerwise_allreduce *s) {
    gg_strategy *strategy = &s->head;
    const gg_state *state = strategy->env.state;
    if (s->gossip != NULL) return by_gossip(s, gg_strategy_ready_all(s->gossip));
    gg_strategy_measure(strategy, gg_state_gradients(state));
    gg_strategy_update(strategy, 0, state->count, gg_state_gradients(state));
    return GG_OK;
}

/* Updates the next reduced chunk of a bucket, or after the last chunk passes the bucket to the gossip strategy. */
static gg_status layerwise_update_next(layerwise_allreduce *s, int bucket) {
    gg_strategy *strategy = &s->head;
    const int chunk = s->next[bucket]++;
    const gg_bucket *b = &s->buckets.bucket[bucket];
    const bool last = s->next[bucket] == b->end_chunk, now = !updates_wait(s);
    gg_flight_arrived(&s->flight[bucket], gg_transport_now(strategy->env.transport),
                      s->reductions.of_chunk[chunk]->bytes);
    if (s->gossip == NULL && now) GG_TRY(gg_reductions_update(&s->reductions, chunk));
    if (s->gossip != NULL && now && last)
        for (int layer = b->last_layer; layer >= b->first_layer; --layer)
            GG_TRY(by_gossip(s, s->gossip->table->ready(s->gossip, layer)));
    if (last) gg_flight_end(&s->flight[bucket], strategy, "gradients", b->first_layer, b->last_layer);
    return GG_OK;
}

/* Advances every chunk in flight, also behind a late one: the peers wait for this rank's part of each. */
static gg_status poll_bucket(layerwise_allreduce *s, int bucket) {
    gg_status status = GG_OK;
    const gg_bucket *b = &s->buckets.bucket[bucket];
    for (int i = s->next[bucket]; i < b->end_chunk; ++i) {
        bool summed = false;
        GG_TRY_CLEANUP(gg_reduction_poll(s->reductions.of_chunk[i], &summed));
        if (summed && i == s->next[bucket]) GG_TRY_CLEANUP(layerwise_update_next(s, bucket));
    }
cleanup:
    return at_layers(s, bucket, status);
}

static gg_status layerwise_poll(gg_strategy *strategy) {
    layerwise_allreduce *s = (layerwise_allreduce *)strategy;
    GG_TRY(gg_progress(strategy->env.transport));
    for (int bucket = s->buckets.count - 1; bucket >= 0; --bucket) GG_TRY(poll_bucket(s, bucket));
    if (s->gossip != NULL) GG_TRY(by_gossip(s, s->gossip->table->poll(s->gossip)));
    return GG_OK;
}

static gg_status wait_bucket(layerwise_allreduce *s, int bucket) {
    gg_status status = GG_OK;
    const gg_bucket *b = &s->buckets.bucket[bucket];
    while (s->next[bucket] < b->end_chunk) {
        GG_TRY_CLEANUP(gg_reduction_wait(s->reductions.of_chunk[s->next[bucket]]));
        GG_TRY_CLEANUP(layerwise_update_next(s, bucket));
    }
cleanup:
    return at_layers(s, bucket, status);
}

/* Takes chunks in the order in which all ranks started them, so that no two wait for each other. */
static gg_status layerwise_end(gg_strategy *strategy) {
    layerwise_allreduce *s = (layerwise_allreduce *)strategy;
    for (int bucket = s->buckets.count - 1; bucket >= 0; --bucket) GG_TRY(wait_bucket(s, bucket));
    if (updates_wait(s)) GG_TRY(update_all(s));
    if (s->gossip != NULL) GG_TRY(by_gossip(s, s->gossip->table->end(s->gossip)));
    return GG_OK;
}

static void cancel(gg_strategy *strategy) {
    gg_reductions_cancel(&((const layerwise_allreduce *)strategy)->reductions);
}

static void complete_residues(gg_strategy *strategy) {
    gg_reductions_complete(&((const layerwise_allreduce *)strategy)->reductions);
}

static gg_status layerwise_settle(gg_strategy *strategy) {
    layerwise_allreduce *s = (layerwise_allreduce *)strategy;
    GG_TRY(layerwise_rest(strategy));
    gg_reductions_complete(&s->reductions);
    if (s->gossip != NULL) GG_TRY(by_gossip(s, s->gossip->table->settle(s->gossip)));
    return GG_OK;
}

static void layerwise_destroy(gg_strategy *strategy) {
    layerwise_allreduce *s = (layerwise_allreduce *)strategy;
    gg_reductions_destroy(&s->reductions);
    gg_free(s->next);
    gg_free(s->flight);
    if (s->gossip != NULL) gg_strategy_destroy(s->gossip);
    else gg_state_destroy(&strategy->env);
    gg_transport_destroy(s->across);
    gg_transport_destroy(s->node);
    gg_nodes_destroy(&s->nodes);
    gg_free(s->node_share);
    gg_buckets_destroy(&s->buckets);
    gg_free(s);
}

static const gg_strategy_table table = {layerwise_begin, layerwise_need,   layerwise_ready,  layerwise_poll,
                                        layerwise_end,   layerwise_settle, layerwise_destroy};

/* Divides the ranks into nodes, and makes the gossip between them, which allocates the state. */
static gg_status create_gossip(layerwise_allreduce *s, const gg_strategy_options *options) {
    gg_status status = GG_OK;
    gg_strategy_env env = s->head.env;
    int *members = NULL, at = 0;
    GG_TRY_CLEANUP(gg_nodes_create(env.transport, options->gossip.ranks_per_node, &s->nodes));
    const int size = s->nodes.size, count = s->nodes.count;
    while (s->nodes.member[at] != env.transport->rank) ++at;
    GG_TRY_CLEANUP(gg_alloc((size_t)count * sizeof *members, "ranks at one place", &members));
    for (int i = 0; i < count; ++i) members[i] = s->nodes.member[i * size + at % size];
    GG_TRY_CLEANUP(gg_calloc((size_t)size, sizeof *s->node_share, "shares in a node", &s->node_share));
    GG_TRY_CLEANUP(gg_subgroup_create(env.transport, s->nodes.member + at / size * size, size, &s->node));
    GG_TRY_CLEANUP(gg_subgroup_create(env.transport, members, count, &s->across));
    s->group = s->node;
    env.transport = s->across;
    GG_TRY_CLEANUP(gg_gossip_create(options, &env, &s->gossip));
cleanup:
    gg_free(members);
    return status;
}

static gg_status layerwise_create(const gg_strategy_options *options, const gg_strategy_env *env, bool hierarchical,
                                  gg_strategy **out) {
    gg_status status = GG_OK;
    layerwise_allreduce *s = NULL;
    GG_TRY_CLEANUP(gg_calloc(1, sizeof *s, "strategy", &s));
    s->head.table = &table;
    s->head.env = *env;
    s->head.averages_gradients = true;
    s->head.current_at_end = !hierarchical;
    s->head.complete_residue = complete_residues;
    if (!hierarchical) s->head.cancel = cancel;
    s->head.buckets = &s->buckets;
    s->group = env->transport;
    bool accumulates = false;
    if (!hierarchical) GG_TRY_CLEANUP(gg_strategy_accumulate(options, env, &accumulates));
    if (hierarchical) GG_TRY_CLEANUP(create_gossip(s, options));
    else GG_TRY_CLEANUP(gg_state_create(env, GG_SHARED_GRADIENT | gg_residue_wanted(options, env)));
    float *residue = hierarchical ? NULL : gg_state_residue(env->state);
    if (residue != NULL) s->head.compression_counts = &s->counts;
    /* A packed message is a bucket: bins cross no message, and small messages are worth no cut. */
    GG_TRY_CLEANUP(gg_buckets_create(env->layout, options->bucket_bytes,
                                     residue != NULL ? env->state->count * sizeof(float) : options->chunk_bytes,
                                     &s->buckets));
    GG_TRY_CLEANUP(gg_calloc((size_t)s->buckets.count, sizeof(int), "next chunks", &s->next));
    GG_TRY_CLEANUP(gg_calloc((size_t)s->buckets.count, sizeof *s->flight, "flights", &s->flight));
    for (int bucket = 0; bucket < s->buckets.count; ++bucket) s->next[bucket] = s->buckets.bucket[bucket].end_chunk;
    const gg_reduction_run run = {.group = s->group,
                                  .tag = GG_TAG_USER,
                                  .residue = residue,
                                  .in_pieces = !hierarchical && !updates_wait(s),
                                  .marks = true,
                                  .accumulates = accumulates,
                                  .counts = &s->counts};
    GG_TRY_CLEANUP(gg_reductions_create(&s->head, options, &s->buckets, &run, &s->reductions));
    if (s->reductions.takes) s->head.fc_hooks = &fc_hooks;
cleanup:
    if (status != GG_OK && s != NULL) layerwise_destroy(&s->head), s = NULL;
    *out = s ? &s->head : NULL;
    return status;
}

static gg_status layerwise_create_plain(const gg_strategy_options *options, const gg_strategy_env *env,
                                        gg_strategy **out) {
    return layerwise_create(options, env, false, out);
}

gg_status gg_hierarchical_gossip_create(const gg_strategy_options *options, const gg_strategy_env *env,
                                        gg_strategy **out) {
    return layerwise_create(options, env, true, out);
}

/* There and back. */
static gg_exchange_cost layerwise_cost(const gg_strategy_options *options, int ranks, int moments) {
    const double p = ranks;
    (void)moments;
    return (gg_exchange_cost){
        .copies = (p - 1) / p * 2 * gg_wire_part(options), .messages = 2 * (p - 1), .hops = 2, .at_end = true};
}

static const gg_option options[] = {
    GG_OPTION_WIRE, GG_OPTION_COLLECTIVES, GG_OPTION_BUCKET(GG_TUNED), GG_OPTION_CHUNK(GG_TUNED), {.name = NULL}};

const gg_strategy_type gg_strategy_layerwise_allreduce = {.name = "layerwise-allreduce",
                                                          .options = options,
                                                          .check = gg_strategy_check_sizes,
                                                          .create = layerwise_create_plain,
                                                          .cost = layerwise_cost,
                                                          .needs_all = gg_strategy_needs_none,
                                                          .local_momentum = true,
                                                          .keeps_equal = GG_EQUAL_REPLICAS};
