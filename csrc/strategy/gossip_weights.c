/* GossipGraD with weights, or weights and momentum: after the local update of a layer its new weights go to this step's partner
 * and are mixed with what another partner sent.
 *
 * Weights and momentum are private and updated in place. The update streams a snapshot of them past the cache into message memory, where
 * partners read it: to write private memory again stays as cheap as without exchange, while lines that another core has read would
 * cost several times more. Nothing is copied afterwards, and a snapshot in flight is never written: a stream has two arenas that take turns.
 *
 *   staleness 0   when a chunk arrives, w += (received - w)/2, at the latest just before the forward pass needs the layer. The forward pass
 *                 does not need momentum: its mix waits and becomes part of the next update.
 *   staleness 1   the next update adds (received - w)/2 in the same pass, where w is still what was sent: the exchange hides behind a
 *                 whole step. */
#include <string.h>

#include "base/memory.h"
#include "strategy/gossip.h"
#include "strategy/tables.h"

typedef struct gossip_weights {
    gg_gossip gossip;
    gg_stream weight, momentum;              /* owner NULL: not exchanged */
    bool *weight_pending, *momentum_pending; /* a bucket: posted, and not mixed yet */
    int *next_momentum;                      /* a bucket: its first chunk of momentum that is still to be mixed (staleness 0) */
    int turn;                                /* the snapshot arena that this step writes */
} gossip_weights;

static const float *received_at(const gossip_weights *g, const gg_stream *stream, int chunk, size_t offset) {
    return gg_stream_received(stream, chunk) + (offset - g->gossip.buckets.chunk[chunk].offset);
}

static bool stale(const gossip_weights *g) { return g->gossip.options.staleness == 1; }

/* staleness 0: mixes the next chunk of a bucket, which has arrived. */
static gg_status mix_next(gossip_weights *g, int bucket) {
    int i = g->gossip.next[bucket]++;
    const gg_chunk *chunk = &g->gossip.buckets.chunk[i];
    float *weight = g->gossip.head.env.state->weight + chunk->offset;
    gg_gossip_mix(&g->gossip, chunk->count, weight, gg_stream_received(&g->weight, i), weight, weight);
    if (g->gossip.next[bucket] == g->gossip.buckets.bucket[bucket].end_chunk) g->weight_pending[bucket] = false;
    return gg_stream_release(&g->weight, i);
}

/* staleness 0: the same for momentum. */
static gg_status mix_next_momentum(gossip_weights *g, int bucket) {
    int i = g->next_momentum[bucket]++;
    const gg_chunk *chunk = &g->gossip.buckets.chunk[i];
    float *momentum = g->gossip.head.env.state->momentum + chunk->offset;
    gg_gossip_mix(&g->gossip, chunk->count, momentum, gg_stream_received(&g->momentum, i), momentum, momentum);
    if (g->next_momentum[bucket] == g->gossip.buckets.bucket[bucket].end_chunk) g->momentum_pending[bucket] = false;
    return gg_stream_release(&g->momentum, i);
}

static gg_status begin(gg_strategy *strategy) {
    gg_gossip_begin((gg_gossip *)strategy);
    return GG_OK;
}

static gg_status need(gg_strategy *strategy, int layer) {
    gg_status status = GG_OK;
    gossip_weights *g = (gossip_weights *)strategy;
    int bucket = g->gossip.buckets.bucket_of_layer[layer];
    if (stale(g) || !g->weight_pending[bucket]) return GG_OK;
    GG_TRY(gg_stream_wait_received(&g->weight, bucket));
    while (g->weight_pending[bucket]) GG_TRY(mix_next(g, bucket));
cleanup:
    return status;
}

static gg_status poll(gg_strategy *strategy) {
    gg_status status = GG_OK;
    gossip_weights *g = (gossip_weights *)strategy;
    GG_TRY(gg_progress(strategy->env.transport));
    if (stale(g)) return GG_OK;
    for (int bucket = 0; bucket < g->gossip.buckets.count; ++bucket) {
        while (g->weight_pending[bucket]) {
            bool arrived = false;
            GG_TRY(gg_stream_test(&g->weight, g->gossip.next[bucket], &arrived));
            if (!arrived) break;
            GG_TRY(mix_next(g, bucket));
        }
        while (g->momentum_pending[bucket]) {
            bool arrived = false;
            GG_TRY(gg_stream_test(&g->momentum, g->next_momentum[bucket], &arrived));
            if (!arrived) break;
            GG_TRY(mix_next_momentum(g, bucket));
        }
    }
cleanup:
    return status;
}

/* Before the first update of a bucket in a step: the snapshot that is to be written must not be read by a partner any more, and what
 * the update mixes in must have arrived. */
static gg_status prepare(gossip_weights *g, int bucket) {
    gg_status status = GG_OK;
    if (g->weight.owner != NULL) GG_TRY(gg_stream_wait_sent(&g->weight, bucket, g->turn));
    if (g->momentum.owner != NULL) GG_TRY(gg_stream_wait_sent(&g->momentum, bucket, g->turn));
    if (stale(g) && g->weight_pending[bucket]) GG_TRY(gg_stream_wait_received(&g->weight, bucket));
    if (g->momentum_pending[bucket]) GG_TRY(gg_stream_wait_received(&g->momentum, bucket));
    while (!stale(g) && g->momentum_pending[bucket]) GG_TRY(mix_next_momentum(g, bucket));
cleanup:
    return status;
}

/* The halves mix is for comparison and takes passes of its own: momentum before the update (staleness 0), or both after it. */
static void update_halves(gossip_weights *g, gg_sgd_args *args, const float *weight_in, const float *momentum_in) {
    float *weight_copy = args->weight_copy, *momentum_copy = args->momentum_copy;
    size_t bytes = args->n * sizeof(float);
    args->weight_copy = args->momentum_copy = NULL;
    if (!stale(g) && momentum_in != NULL)
        gg_gossip_mix(&g->gossip, args->n, args->momentum, momentum_in, NULL, args->momentum_out);
    gg_gossip_sgd(&g->gossip, g->gossip.head.step, args);
    if (stale(g) && weight_in != NULL) gg_gossip_mix(&g->gossip, args->n, args->weight, weight_in, NULL, args->weight_out);
    if (stale(g) && momentum_in != NULL)
        gg_gossip_mix(&g->gossip, args->n, args->momentum, momentum_in, NULL, args->momentum_out);
    if (weight_copy != NULL) memcpy(weight_copy, args->weight_out, bytes);
    if (momentum_copy != NULL) memcpy(momentum_copy, args->momentum_out, bytes);
}

/* Updates a piece of a layer that lies within one chunk. */
static void update(gossip_weights *g, int bucket, int chunk, const gg_chunk *piece) {
    const gg_state *state = g->gossip.head.env.state;
    const size_t at = piece->offset;
    const bool exchanges = gg_gossip_exchanges(&g->gossip);
    const float *weight_in = stale(g) && g->weight_pending[bucket] ? received_at(g, &g->weight, chunk, at) : NULL;
    const float *momentum_in = g->momentum_pending[bucket] ? received_at(g, &g->momentum, chunk, at) : NULL;
    float *momentum = state->momentum != NULL ? state->momentum + at : NULL;
    gg_sgd_args args = {.n = piece->count,
                        .grad = state->gradient + at,
                        .weight = state->weight + at,
                        .weight_out = state->weight + at,
                        .momentum = momentum,
                        .momentum_out = momentum,
                        .weight_copy = exchanges ? g->weight.arena[g->turn] + at : NULL,
                        .momentum_copy = exchanges && g->momentum.owner != NULL ? g->momentum.arena[g->turn] + at : NULL};
    if (g->gossip.options.mix == GG_MIX_HALVES) {
        update_halves(g, &args, weight_in, momentum_in);
        return;
    }
    args.weight_after = weight_in;
    args.momentum_after = stale(g) ? momentum_in : NULL;
    args.momentum_before = stale(g) ? NULL : momentum_in;
    gg_gossip_sgd(&g->gossip, g->gossip.head.step, &args);
}

static gg_status release_bucket(gossip_weights *g, gg_stream *stream, int bucket, bool *pending) {
    gg_status status = GG_OK;
    const gg_bucket *b = &g->gossip.buckets.bucket[bucket];
    if (pending[bucket]) {
        for (int i = b->first_chunk; i < b->end_chunk; ++i) GG_TRY(gg_stream_release(stream, i));
        pending[bucket] = false;
    }
cleanup:
    return status;
}

/* After the last update of a bucket in a step: what was mixed in is let go, and the new snapshot is sent. */
static gg_status finish(gossip_weights *g, int bucket) {
    gg_status status = GG_OK;
    if (stale(g)) GG_TRY(release_bucket(g, &g->weight, bucket, g->weight_pending));
    GG_TRY(release_bucket(g, &g->momentum, bucket, g->momentum_pending));
    if (!gg_gossip_exchanges(&g->gossip)) return GG_OK;
    GG_TRY(gg_stream_post(&g->weight, bucket, g->turn, g->gossip.send_to, g->gossip.receive_from));
    g->weight_pending[bucket] = true;
    g->gossip.next[bucket] = g->gossip.buckets.bucket[bucket].first_chunk;
    if (g->momentum.owner != NULL) {
        GG_TRY(gg_stream_post(&g->momentum, bucket, g->turn, g->gossip.send_to, g->gossip.receive_from));
        g->momentum_pending[bucket] = true;
        g->next_momentum[bucket] = g->gossip.buckets.bucket[bucket].first_chunk;
    }
cleanup:
    return status;
}

static gg_status ready(gg_strategy *strategy, int layer) {
    gg_status status = GG_OK;
    gossip_weights *g = (gossip_weights *)strategy;
    int bucket = g->gossip.buckets.bucket_of_layer[layer];
    const gg_bucket *b = &g->gossip.buckets.bucket[bucket];
    const gg_slice *slice = gg_graph_layer(strategy->env.graph, layer);

    if (g->gossip.waiting[bucket] == b->last_layer - b->first_layer + 1) GG_TRY(prepare(g, bucket));
    for (int i = b->first_chunk; i < b->end_chunk; ++i) {
        gg_chunk piece;
        if (gg_gossip_piece(&g->gossip, i, slice, &piece)) update(g, bucket, i, &piece);
    }
    if (--g->gossip.waiting[bucket] == 0) GG_TRY(finish(g, bucket));
cleanup:
    return status;
}

static gg_status end(gg_strategy *strategy) {
    gossip_weights *g = (gossip_weights *)strategy;
    g->turn = 1 - g->turn;
    return GG_OK;
}

/* Mixes what is pending of one stream into the private arena, whose values are still those that were sent. */
static gg_status settle_stream(gossip_weights *g, gg_stream *stream, bool *pending, float *own) {
    gg_status status = GG_OK;
    for (int bucket = 0; bucket < g->gossip.buckets.count; ++bucket) {
        const gg_bucket *b = &g->gossip.buckets.bucket[bucket];
        if (!pending[bucket]) continue;
        GG_TRY(gg_stream_wait_received(stream, bucket));
        for (int i = b->first_chunk; i < b->end_chunk; ++i) {
            const gg_chunk *chunk = &g->gossip.buckets.chunk[i];
            float *at = own + chunk->offset;
            gg_gossip_mix(&g->gossip, chunk->count, at, gg_stream_received(stream, i), at, at);
        }
        GG_TRY(release_bucket(g, stream, bucket, pending));
    }
    /* All that we received is let go, and so do the partners with what we sent: nobody waits in a circle. */
    GG_TRY(gg_stream_wait_all_sent(stream));
cleanup:
    return status;
}

static gg_status settle(gg_strategy *strategy) {
    gg_status status = GG_OK;
    gossip_weights *g = (gossip_weights *)strategy;
    const gg_state *state = strategy->env.state;
    for (int layer = 0; layer < gg_graph_layers(strategy->env.graph); ++layer) GG_TRY(need(strategy, layer));
    for (int bucket = 0; !stale(g) && bucket < g->gossip.buckets.count; ++bucket)
        if (g->momentum_pending[bucket]) {
            GG_TRY(gg_stream_wait_received(&g->momentum, bucket));
            while (g->momentum_pending[bucket]) GG_TRY(mix_next_momentum(g, bucket));
        }
    if (g->weight.owner != NULL) GG_TRY(settle_stream(g, &g->weight, g->weight_pending, state->weight));
    if (g->momentum.owner != NULL) GG_TRY(settle_stream(g, &g->momentum, g->momentum_pending, state->momentum));
cleanup:
    return status;
}

static void destroy(gg_strategy *strategy) {
    gossip_weights *g = (gossip_weights *)strategy;
    gg_stream_destroy(&g->momentum);
    gg_stream_destroy(&g->weight);
    gg_free(g->weight_pending);
    gg_free(g->momentum_pending);
    gg_free(g->next_momentum);
    gg_state_destroy(&strategy->env, 0);
    gg_gossip_deinit(&g->gossip);
    gg_free(g);
}

static const gg_strategy_table table = {"gossipgrad", begin, need, ready, poll, end, settle, destroy};

gg_status gg_gossip_weights_create(const gg_strategy_options *options, const gg_strategy_env *env, gg_strategy **out) {
    gg_status status = GG_OK;
    gossip_weights *g = NULL;
    size_t buckets;
    bool alone = env->transport->size == 1, keeps = env->optimizer->momentum > 0;

    GG_TRY(gg_calloc(1, sizeof *g, "strategy", (void **)&g));
    g->gossip.head.table = &table;
    GG_TRY(gg_gossip_init(&g->gossip, options, env));
    buckets = (size_t)g->gossip.buckets.count;
    GG_TRY(gg_calloc(buckets, sizeof(bool), "pending flags", (void **)&g->weight_pending));
    GG_TRY(gg_calloc(buckets, sizeof(bool), "pending flags", (void **)&g->momentum_pending));
    GG_TRY(gg_calloc(buckets, sizeof(int), "next chunks", (void **)&g->next_momentum));
    GG_TRY(gg_state_create(env, 0));
    if (!alone) GG_TRY(gg_stream_create(&g->gossip.head, &g->gossip.buckets, 0, 2, &g->weight));
    if (!alone && keeps && options->exchange == GG_EXCHANGE_WEIGHTS_MOMENTUM)
        GG_TRY(gg_stream_create(&g->gossip.head, &g->gossip.buckets, 1, 2, &g->momentum));
    g->weight.name = "weights";
    g->momentum.name = "momentum";
cleanup:
    if (status != GG_OK && g != NULL) destroy(&g->gossip.head), g = NULL;
    *out = g ? &g->gossip.head : NULL;
    return status;
}
