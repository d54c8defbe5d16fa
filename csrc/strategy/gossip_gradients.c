/* GossipGraD with gradients, for comparison: a partner's gradient is mixed into the own one, and nothing pulls the replicas together.
 *
 * Gradients have two arenas that take turns from step to step, so one may be in flight while the other is written.
 *   staleness 0   the update of a layer waits for the partner's gradient of the same step: g + (received - g)/2
 *   staleness 1   the update uses g(t) + (received(t-1) - g(t-1))/2; settling adds what the last exchange brought as if it had come
 *                 in time. */
#include "base/memory.h"
#include "strategy/gossip.h"
#include "strategy/tables.h"

#define NOTHING (-1)

typedef struct gossip_gradients {
    gg_gossip gossip;
    gg_stream gradient;
    float *mixed;    /* the gradient that an update uses */
    int *in_flight;  /* a bucket: the arena that was sent and is not used yet, or NOTHING */
    int64_t sent_at; /* the step whose gradients are in flight */
    int turn;        /* the arena of this step's gradients */
} gossip_gradients;

static void update(gossip_gradients *g, int64_t step, const gg_chunk *piece, const float *gradient) {
    const gg_state *state = g->gossip.head.env.state;
    float *momentum = state->momentum ? state->momentum + piece->offset : NULL;
    gg_sgd_args args = {.n = piece->count,
                        .grad = gradient,
                        .weight = state->weight + piece->offset,
                        .weight_out = state->weight + piece->offset,
                        .momentum = momentum,
                        .momentum_out = momentum};
    gg_gossip_sgd(&g->gossip, step, &args);
}

/* staleness 0: mixes the next chunk of a bucket, which has arrived, and makes the update that waited for it. */
static gg_status update_next(gossip_gradients *g, int bucket) {
    int i = g->gossip.next[bucket]++;
    const gg_chunk *chunk = &g->gossip.buckets.chunk[i];
    const float *own = g->gradient.arena[g->in_flight[bucket]] + chunk->offset;
    float *mixed = g->mixed + chunk->offset;
    gg_gossip_mix(&g->gossip, chunk->count, own, gg_stream_received(&g->gradient, i), own, mixed);
    update(g, g->sent_at, chunk, mixed);
    if (g->gossip.next[bucket] == g->gossip.buckets.bucket[bucket].end_chunk) g->in_flight[bucket] = NOTHING;
    return gg_stream_release(&g->gradient, i);
}

static gg_status begin(gg_strategy *strategy) {
    gg_status status = GG_OK;
    gossip_gradients *g = (gossip_gradients *)strategy;
    gg_gossip_begin(&g->gossip);
    g->turn = 1 - g->turn;
    strategy->env.state->gradient = g->gradient.arena[g->turn];
    for (int bucket = 0; bucket < g->gossip.buckets.count; ++bucket) GG_TRY(gg_stream_wait_sent(&g->gradient, bucket, g->turn));
cleanup:
    return status;
}

static gg_status need(gg_strategy *strategy, int layer) {
    gg_status status = GG_OK;
    gossip_gradients *g = (gossip_gradients *)strategy;
    int bucket = g->gossip.buckets.bucket_of_layer[layer];
    if (g->gossip.options.staleness == 1 || g->in_flight[bucket] == NOTHING) return GG_OK;
    GG_TRY(gg_stream_wait_received(&g->gradient, bucket));
    while (g->in_flight[bucket] != NOTHING) GG_TRY(update_next(g, bucket));
cleanup:
    return status;
}

static gg_status poll(gg_strategy *strategy) {
    gg_status status = GG_OK;
    gossip_gradients *g = (gossip_gradients *)strategy;
    GG_TRY(gg_progress(strategy->env.transport));
    if (g->gossip.options.staleness == 1) return GG_OK;
    for (int bucket = 0; bucket < g->gossip.buckets.count; ++bucket) {
        while (g->in_flight[bucket] != NOTHING) {
            bool arrived = false;
            GG_TRY(gg_stream_test(&g->gradient, g->gossip.next[bucket], &arrived));
            if (!arrived) break;
            GG_TRY(update_next(g, bucket));
        }
    }
cleanup:
    return status;
}

static gg_status release_bucket(gossip_gradients *g, int bucket) {
    gg_status status = GG_OK;
    const gg_bucket *b = &g->gossip.buckets.bucket[bucket];
    for (int i = b->first_chunk; i < b->end_chunk; ++i) GG_TRY(gg_stream_release(&g->gradient, i));
    g->in_flight[bucket] = NOTHING;
cleanup:
    return status;
}

/* staleness 1: the update of a layer with what the last step's exchange brought. */
static void update_stale(gossip_gradients *g, int bucket, const gg_slice *slice) {
    const gg_bucket *b = &g->gossip.buckets.bucket[bucket];
    for (int i = b->first_chunk; i < b->end_chunk; ++i) {
        gg_chunk piece;
        if (!gg_gossip_piece(&g->gossip, i, slice, &piece)) continue;
        const float *gradient = g->gradient.arena[g->turn] + piece.offset;
        if (g->in_flight[bucket] != NOTHING) {
            const float *received = gg_stream_received(&g->gradient, i) + (piece.offset - g->gossip.buckets.chunk[i].offset);
            const float *snapshot = g->gradient.arena[g->in_flight[bucket]] + piece.offset;
            gg_gossip_mix(&g->gossip, piece.count, gradient, received, snapshot, g->mixed + piece.offset);
            gradient = g->mixed + piece.offset;
        }
        update(g, g->gossip.head.step, &piece, gradient);
    }
}

static gg_status ready(gg_strategy *strategy, int layer) {
    gg_status status = GG_OK;
    gossip_gradients *g = (gossip_gradients *)strategy;
    int bucket = g->gossip.buckets.bucket_of_layer[layer];
    const gg_bucket *b = &g->gossip.buckets.bucket[bucket];
    const gg_slice *slice = gg_graph_layer(strategy->env.graph, layer);
    bool stale = g->gossip.options.staleness == 1, exchanges = gg_gossip_exchanges(&g->gossip);

    if (stale && g->in_flight[bucket] != NOTHING) GG_TRY(gg_stream_wait_received(&g->gradient, bucket));
    if (stale || !exchanges) update_stale(g, bucket, slice);
    if (--g->gossip.waiting[bucket] > 0) return GG_OK;
    if (stale && g->in_flight[bucket] != NOTHING) GG_TRY(release_bucket(g, bucket));
    if (exchanges) {
        GG_TRY(gg_stream_post(&g->gradient, bucket, g->turn, g->gossip.send_to, g->gossip.receive_from));
        g->in_flight[bucket] = g->turn;
        g->gossip.next[bucket] = b->first_chunk;
        g->sent_at = strategy->step;
    }
cleanup:
    return status;
}

static gg_status end(gg_strategy *strategy) {
    (void)strategy;
    return GG_OK;
}

/* staleness 1: d = (received - own)/2 is what the gradient of step sent_at lacked. With it the momentum would have been d larger and
 * the step lr*d, with Nesterov lr*(1 + mu)*d. */
static gg_status add_late(gossip_gradients *g, int bucket) {
    gg_status status = GG_OK;
    const gg_bucket *b = &g->gossip.buckets.bucket[bucket];
    const gg_state *state = g->gossip.head.env.state;
    gg_device *device = g->gossip.head.env.device;
    gg_sgd_args at = {0};
    gg_optimizer_fill(g->gossip.head.env.optimizer, g->sent_at, &at);
    const float step = at.lr * (at.nesterov ? 1.0f + at.mu : 1.0f) / 2.0f;

    GG_TRY(gg_stream_wait_received(&g->gradient, bucket));
    for (int i = b->first_chunk; i < b->end_chunk; ++i) {
        const gg_chunk *chunk = &g->gossip.buckets.chunk[i];
        const float *received = gg_stream_received(&g->gradient, i);
        const float *own = g->gradient.arena[g->in_flight[bucket]] + chunk->offset;
        float *weight = state->weight + chunk->offset;
        device->table->weighted_sum(device, chunk->count, 3, (const float *[]){weight, received, own},
                                    (const float[]){1.0f, -step, step}, weight);
        if (state->momentum != NULL) {
            float *momentum = state->momentum + chunk->offset;
            device->table->weighted_sum(device, chunk->count, 3, (const float *[]){momentum, received, own},
                                        (const float[]){1.0f, 0.5f, -0.5f}, momentum);
        }
    }
    GG_TRY(release_bucket(g, bucket));
cleanup:
    return status;
}

static gg_status settle(gg_strategy *strategy) {
    gg_status status = GG_OK;
    gossip_gradients *g = (gossip_gradients *)strategy;
    if (g->gossip.options.staleness == 0) {
        for (int layer = 0; layer < gg_graph_layers(strategy->env.graph); ++layer) GG_TRY(need(strategy, layer));
    } else {
        for (int bucket = 0; bucket < g->gossip.buckets.count; ++bucket)
            if (g->in_flight[bucket] != NOTHING) GG_TRY(add_late(g, bucket));
    }
    GG_TRY(gg_stream_wait_all_sent(&g->gradient));
cleanup:
    return status;
}

static void destroy(gg_strategy *strategy) {
    gossip_gradients *g = (gossip_gradients *)strategy;
    gg_state *state = strategy->env.state;
    gg_stream_destroy(&g->gradient);
    gg_free(g->mixed);
    gg_free(g->in_flight);
    gg_free(state->weight);
    gg_free(state->momentum);
    state->weight = state->gradient = state->momentum = NULL;
    gg_gossip_deinit(&g->gossip);
    gg_free(g);
}

static const gg_strategy_table table = {"gossipgrad", begin, need, ready, poll, end, settle, destroy};

gg_status gg_gossip_gradients_create(const gg_strategy_options *options, const gg_strategy_env *env, gg_strategy **out) {
    gg_status status = GG_OK;
    gossip_gradients *g = NULL;
    gg_state *state = env->state;

    GG_TRY(gg_calloc(1, sizeof *g, "strategy", (void **)&g));
    g->gossip.head.table = &table;
    GG_TRY(gg_gossip_init(&g->gossip, options, env));
    GG_TRY(gg_calloc((size_t)g->gossip.buckets.count, sizeof(int), "arenas in flight", (void **)&g->in_flight));
    for (int bucket = 0; bucket < g->gossip.buckets.count; ++bucket) g->in_flight[bucket] = NOTHING;
    GG_TRY(gg_calloc(state->count, sizeof(float), "weights", (void **)&state->weight));
    GG_TRY(gg_calloc(state->count, sizeof(float), "mixed gradients", (void **)&g->mixed));
    if (env->optimizer->momentum > 0) GG_TRY(gg_calloc(state->count, sizeof(float), "momentum", (void **)&state->momentum));
    GG_TRY(gg_stream_create(&g->gossip.head, &g->gossip.buckets, 0, 2, &g->gradient));
    g->gradient.name = "gradients";
    state->gradient = g->gradient.arena[g->turn];
cleanup:
    if (status != GG_OK && g != NULL) destroy(&g->gossip.head), g = NULL;
    *out = g ? &g->gossip.head : NULL;
    return status;
}
