/* GossipGraD with weights, or weights and momentum: after the local update of a layer its new weights go to this step's partner
 * and are mixed with what another partner sent.
 *
 * Nothing is ever copied to be sent. Weights and momentum live in pairs of arenas that take turns: the update reads one arena and writes
 * the other, and the written one is at once the snapshot that partners read.
 *
 *   staleness 0   weights: update `own` -> snapshot; on arrival mix snapshot, received -> `own`, just before the forward pass
 *                 needs the layer. Momentum is not needed by the forward pass: its mix waits and becomes part of the next update.
 *   staleness 1   update arena[turn] -> arena[1 - turn] and add (received - arena[turn])/2 in the same pass, where arena[turn] is the
 *                 snapshot that was sent a step ago; then send arena[1 - turn]. The exchange hides behind a whole step. */
#include <string.h>

#include "base/memory.h"
#include "strategy/gossip.h"
#include "strategy/tables.h"

typedef struct gossip_weights {
    gg_gossip gossip;
    gg_stream weight, momentum;              /* momentum.owner NULL: not exchanged */
    float *own_weight;                       /* staleness 0: what the forward pass reads */
    float *own_momentum;                     /* kept but not exchanged */
    bool *weight_pending, *momentum_pending; /* a bucket: posted, and not mixed yet */
    int turn;                                /* the arena that holds the current values; staleness 0: of momentum alone */
} gossip_weights;

static const float *received_at(const gossip_weights *g, const gg_stream *stream, int chunk, size_t offset) {
    return gg_stream_received(stream, chunk) + (offset - g->gossip.buckets.chunk[chunk].offset);
}

static void show_state(gossip_weights *g) {
    gg_state *state = g->gossip.head.env.state;
    state->weight = g->own_weight ? g->own_weight : g->weight.arena[g->turn];
    state->momentum = g->momentum.owner ? g->momentum.arena[g->turn] : g->own_momentum;
}

/* staleness 0: mixes the next chunk of a bucket, which has arrived. */
static gg_status mix_next(gossip_weights *g, int bucket) {
    int i = g->gossip.next[bucket]++;
    const gg_chunk *chunk = &g->gossip.buckets.chunk[i];
    const float *snapshot = g->weight.arena[0] + chunk->offset;
    gg_gossip_mix(&g->gossip, chunk->count, snapshot, gg_stream_received(&g->weight, i), snapshot, g->own_weight + chunk->offset);
    if (g->gossip.next[bucket] == g->gossip.buckets.bucket[bucket].end_chunk) {
        g->weight_pending[bucket] = false;
        gg_gossip_mixed(&g->gossip, bucket);
    }
    return gg_stream_release(&g->weight, i);
}

static gg_status begin(gg_strategy *strategy) {
    gg_gossip_begin((gg_gossip *)strategy);
    return GG_OK;
}

static gg_status need(gg_strategy *strategy, int layer) {
    gg_status status = GG_OK;
    gossip_weights *g = (gossip_weights *)strategy;
    int bucket = g->gossip.buckets.bucket_of_layer[layer];
    if (g->own_weight == NULL || !g->weight_pending[bucket]) return GG_OK;
    GG_TRY(gg_stream_wait_received(&g->weight, bucket));
    while (g->weight_pending[bucket]) GG_TRY(mix_next(g, bucket));
cleanup:
    return status;
}

static gg_status poll(gg_strategy *strategy) {
    gg_status status = GG_OK;
    gossip_weights *g = (gossip_weights *)strategy;
    GG_TRY(gg_progress(strategy->env.transport));
    if (g->own_weight == NULL) return GG_OK;
    for (int bucket = 0; bucket < g->gossip.buckets.count; ++bucket) {
        while (g->weight_pending[bucket]) {
            bool arrived = false;
            GG_TRY(gg_stream_test(&g->weight, g->gossip.next[bucket], &arrived));
            if (!arrived) break;
            GG_TRY(mix_next(g, bucket));
        }
    }
cleanup:
    return status;
}

/* Before the first update of a bucket in a step: what is to be written must not be read by a partner any more, and what the update
 * mixes in must have arrived. */
static gg_status prepare(gossip_weights *g, int bucket) {
    gg_status status = GG_OK;
    if (g->own_weight == NULL) {
        GG_TRY(gg_stream_wait_sent(&g->weight, bucket, 1 - g->turn));
        if (g->weight_pending[bucket]) GG_TRY(gg_stream_wait_received(&g->weight, bucket));
    } else {
        GG_TRY(gg_stream_wait_sent(&g->weight, bucket, 0));
    }
    if (g->momentum.owner != NULL) {
        GG_TRY(gg_stream_wait_sent(&g->momentum, bucket, 1 - g->turn));
        if (g->momentum_pending[bucket]) GG_TRY(gg_stream_wait_received(&g->momentum, bucket));
    }
cleanup:
    return status;
}

/* Updates a piece of a layer that lies within one chunk. */
static void update(gossip_weights *g, int bucket, int chunk, const gg_chunk *piece) {
    const gg_state *state = g->gossip.head.env.state;
    const bool stale = g->own_weight == NULL, halves = g->gossip.options.mix == GG_MIX_HALVES;
    const size_t at = piece->offset;
    const float *weight_in = g->weight_pending[bucket] ? received_at(g, &g->weight, chunk, at) : NULL;
    const float *momentum_in = g->momentum_pending[bucket] ? received_at(g, &g->momentum, chunk, at) : NULL;
    gg_sgd_args args = {.n = piece->count, .grad = state->gradient + at, .weight = state->weight + at};

    if (stale) args.weight_out = g->weight.arena[1 - g->turn] + at;
    else args.weight_out = (gg_gossip_exchanges(&g->gossip) ? g->weight.arena[0] : g->own_weight) + at;
    if (state->momentum != NULL) {
        args.momentum = state->momentum + at;
        args.momentum_out = (g->momentum.owner != NULL ? g->momentum.arena[1 - g->turn] : g->own_momentum) + at;
    }
    if (!halves) {
        args.weight_after = stale ? weight_in : NULL;
        args.momentum_after = stale ? momentum_in : NULL;
        args.momentum_before = stale ? NULL : momentum_in;
    } else if (!stale && momentum_in != NULL) {
        gg_gossip_mix(&g->gossip, piece->count, args.momentum, momentum_in, NULL, args.momentum_out);
        args.momentum = args.momentum_out;
    }
    gg_gossip_sgd(&g->gossip, g->gossip.head.step, &args);
    if (halves && stale) {
        if (weight_in != NULL) gg_gossip_mix(&g->gossip, piece->count, args.weight_out, weight_in, NULL, args.weight_out);
        if (momentum_in != NULL) gg_gossip_mix(&g->gossip, piece->count, args.momentum_out, momentum_in, NULL, args.momentum_out);
    }
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

/* After the last update of a bucket in a step: what was mixed in is let go, and the new values are sent. */
static gg_status finish(gossip_weights *g, int bucket) {
    gg_status status = GG_OK;
    const bool stale = g->own_weight == NULL;
    if (stale && g->weight_pending[bucket]) gg_gossip_mixed(&g->gossip, bucket);
    if (stale) GG_TRY(release_bucket(g, &g->weight, bucket, g->weight_pending));
    if (g->momentum.owner != NULL) GG_TRY(release_bucket(g, &g->momentum, bucket, g->momentum_pending));
    if (!gg_gossip_exchanges(&g->gossip)) return GG_OK;
    GG_TRY(gg_stream_post(&g->weight, bucket, stale ? 1 - g->turn : 0, g->gossip.send_to, g->gossip.receive_from));
    g->weight_pending[bucket] = true;
    gg_gossip_sent(&g->gossip, bucket);
    g->gossip.next[bucket] = g->gossip.buckets.bucket[bucket].first_chunk;
    if (g->momentum.owner != NULL) {
        GG_TRY(gg_stream_post(&g->momentum, bucket, 1 - g->turn, g->gossip.send_to, g->gossip.receive_from));
        g->momentum_pending[bucket] = true;
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
    show_state(g);
    return GG_OK;
}

/* Mixes a pending stream from arena[turn] to arena[1 - turn]: out of place, because partners may still read arena[turn] and wait
 * for us as we wait for them. */
static gg_status settle_stream(gossip_weights *g, gg_stream *stream, bool *pending) {
    gg_status status = GG_OK;
    for (int bucket = 0; bucket < g->gossip.buckets.count; ++bucket) {
        const gg_bucket *b = &g->gossip.buckets.bucket[bucket];
        GG_TRY(gg_stream_wait_sent(stream, bucket, 1 - g->turn));
        if (pending[bucket]) GG_TRY(gg_stream_wait_received(stream, bucket));
        for (int i = b->first_chunk; i < b->end_chunk; ++i) {
            const gg_chunk *chunk = &g->gossip.buckets.chunk[i];
            const float *from = stream->arena[g->turn] + chunk->offset;
            float *to = stream->arena[1 - g->turn] + chunk->offset;
            if (pending[bucket]) gg_gossip_mix(&g->gossip, chunk->count, from, gg_stream_received(stream, i), from, to);
            else memcpy(to, from, chunk->count * sizeof(float));
        }
        GG_TRY(release_bucket(g, stream, bucket, pending));
    }
cleanup:
    return status;
}

static bool any(const bool *flags, int n) {
    for (int i = 0; i < n; ++i)
        if (flags[i]) return true;
    return false;
}

static gg_status settle(gg_strategy *strategy) {
    gg_status status = GG_OK;
    gossip_weights *g = (gossip_weights *)strategy;
    int n = g->gossip.buckets.count;
    bool stale = g->own_weight == NULL;
    bool turn = any(g->momentum_pending, n) || (stale && any(g->weight_pending, n));

    if (!stale)
        for (int layer = 0; layer < gg_graph_layers(strategy->env.graph); ++layer) GG_TRY(need(strategy, layer));
    if (turn) {
        if (stale) GG_TRY(settle_stream(g, &g->weight, g->weight_pending));
        if (g->momentum.owner != NULL) GG_TRY(settle_stream(g, &g->momentum, g->momentum_pending));
        g->turn = 1 - g->turn;
        show_state(g);
    }
    /* All that we received is let go, and so do the partners with what we sent: nobody waits in a circle. */
    GG_TRY(gg_stream_wait_all_sent(&g->weight));
    if (g->momentum.owner != NULL) GG_TRY(gg_stream_wait_all_sent(&g->momentum));
cleanup:
    return status;
}

static void destroy(gg_strategy *strategy) {
    gossip_weights *g = (gossip_weights *)strategy;
    gg_state *state = strategy->env.state;
    gg_stream_destroy(&g->momentum);
    gg_stream_destroy(&g->weight);
    gg_free(g->own_weight);
    gg_free(g->own_momentum);
    gg_free(g->weight_pending);
    gg_free(g->momentum_pending);
    gg_free(state->gradient);
    state->weight = state->gradient = state->momentum = NULL;
    gg_gossip_deinit(&g->gossip);
    gg_free(g);
}

static const gg_strategy_table table = {"gossipgrad", begin, need, ready, poll, end, settle, destroy};

gg_status gg_gossip_weights_create(const gg_strategy_options *options, const gg_strategy_env *env, gg_strategy **out) {
    gg_status status = GG_OK;
    gossip_weights *g = NULL;
    size_t count = env->state->count;
    bool keeps = env->optimizer->momentum > 0, exchanges = keeps && options->exchange == GG_EXCHANGE_WEIGHTS_MOMENTUM;

    GG_TRY(gg_calloc(1, sizeof *g, "strategy", (void **)&g));
    g->gossip.head.table = &table;
    GG_TRY(gg_gossip_init(&g->gossip, options, env));
    GG_TRY(gg_calloc((size_t)g->gossip.buckets.count, sizeof(bool), "pending flags", (void **)&g->weight_pending));
    GG_TRY(gg_calloc((size_t)g->gossip.buckets.count, sizeof(bool), "pending flags", (void **)&g->momentum_pending));
    GG_TRY(gg_calloc(count, sizeof(float), "gradients", (void **)&env->state->gradient));
    if (options->staleness == 0) GG_TRY(gg_calloc(count, sizeof(float), "weights", (void **)&g->own_weight));
    GG_TRY(gg_stream_create(&g->gossip.head, &g->gossip.buckets, 0, options->staleness == 0 ? 1 : 2, &g->weight));
    if (exchanges) GG_TRY(gg_stream_create(&g->gossip.head, &g->gossip.buckets, 1, 2, &g->momentum));
    else if (keeps) GG_TRY(gg_calloc(count, sizeof(float), "momentum", (void **)&g->own_momentum));
    show_state(g);
cleanup:
    if (status != GG_OK && g != NULL) destroy(&g->gossip.head), g = NULL;
    *out = g ? &g->gossip.head : NULL;
    return status;
}
