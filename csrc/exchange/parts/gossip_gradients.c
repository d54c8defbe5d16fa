/* GossipGraD with gradients, for comparison: the update of a layer waits for the partner's gradient of its step, and
 * uses g + (received - g)/2. Weights are never averaged, so replicas diverge.
 *
 * Gradients have two arenas, used in alternate steps, so one may be in flight while the other is written. They are sent
 * in place; an inexact codec sends a rounded copy.
 *
 * A chunk from a dead rank that has not arrived whole is left out: the own gradient counts. */
#include "base/memory.h"
#include "exchange/parts/gossip.h"
#include "exchange/parts/gossip_forms.h"

typedef struct gossip_gradients {
    gg_gossip gossip;
    gg_stream gradient;
    float *own[2];    /* this rank's gradients: the stream's arenas if its codec is exact */
    float *gradients; /* that updates use, mixed */
    int *mixed;       /* one a bucket: chunks of its last exchange that have been mixed */
    int *in_flight;   /* one a bucket: the arena of its last exchange */
    int64_t sent_at;  /* the step whose gradients are in flight */
    int turn;         /* the arena of this step's gradients */
} gossip_gradients;

static void gossip_gradients_update(gossip_gradients *g, int64_t step, const gg_chunk *piece, const float *gradient) {
    const gg_strategy_env *env = &g->gossip.head.env;
    gg_updater_apply(env->updater, env->device, env->state,
                     &(gg_update){.step = step,
                                  .offset = piece->offset,
                                  .count = piece->count,
                                  .owned_offset = piece->offset,
                                  .gradient = gradient});
}

/* Updates a piece with its gradient. If updates need norms of all gradients, notes it among g->gradients instead. */
static void gossip_gradients_use(gossip_gradients *g, int64_t step, const gg_chunk *piece, const float *gradient) {
    float *noted = g->gradients + piece->offset;
    if (!gg_updater_measures(g->gossip.head.env.updater)) gossip_gradients_update(g, step, piece, gradient);
    else if (gradient != noted)
        gg_device_copy(g->gossip.head.env.device, GG_QUEUE_COMPUTE, noted, gradient, piece->count * sizeof(float));
}

/* True if a chunk of a bucket is in flight. */
static bool gossip_gradients_pending(const gossip_gradients *g, int bucket) {
    return g->mixed[bucket] < g->gossip.posted[bucket];
}

/* The next chunk of a bucket to mix. */
static int gossip_gradients_next(const gossip_gradients *g, int bucket) {
    return gg_gossip_posted(&g->gossip, bucket, g->mixed[bucket]);
}

/* Mixes the next chunk of a bucket, which is done, and makes the update that waited for it. */
static gg_status gossip_gradients_update_next(gossip_gradients *g, int bucket) {
    int i = gossip_gradients_next(g, bucket);
    const gg_chunk *chunk = &g->gossip.buckets.chunk[i];
    const float *own = g->own[g->in_flight[bucket]] + chunk->offset;
    float *mixed = g->gradients + chunk->offset;
    const bool arrived = gg_stream_arrived(&g->gradient, i);
    if (arrived)
        gg_gossip_mix(&g->gossip, chunk->count, own, gg_stream_received(&g->gradient, i, chunk->offset), own, mixed);
    gossip_gradients_use(g, g->sent_at, chunk, arrived ? mixed : own);
    g->mixed[bucket]++;
    return gg_stream_release(&g->gradient, i);
}

static gg_status gossip_gradients_begin(gg_strategy *strategy) {
    gossip_gradients *g = (gossip_gradients *)strategy;
    gg_gossip_begin(&g->gossip);
    g->turn = 1 - g->turn;
    strategy->env.state->arena[GG_GRADIENTS].data = g->own[g->turn];
    for (int bucket = 0; bucket < g->gossip.buckets.count; ++bucket)
        GG_TRY(gg_stream_wait_sent(&g->gradient, bucket, g->turn));
    return GG_OK;
}

static gg_status gossip_gradients_need(gg_strategy *strategy, int layer) {
    gossip_gradients *g = (gossip_gradients *)strategy;
    int bucket = g->gossip.buckets.bucket_of_layer[layer];
    while (gossip_gradients_pending(g, bucket)) {
        GG_TRY(gg_stream_wait_chunk(&g->gradient, bucket, gossip_gradients_next(g, bucket)));
        GG_TRY(gossip_gradients_update_next(g, bucket));
    }
    return GG_OK;
}

static gg_status gossip_gradients_poll(gg_strategy *strategy) {
    gossip_gradients *g = (gossip_gradients *)strategy;
    GG_TRY(gg_progress(strategy->env.transport));
    for (int bucket = 0; bucket < g->gossip.buckets.count; ++bucket) {
        while (gossip_gradients_pending(g, bucket)) {
            bool arrived = false;
            GG_TRY(gg_stream_test(&g->gradient, gossip_gradients_next(g, bucket), &arrived));
            if (!arrived) break;
            GG_TRY(gossip_gradients_update_next(g, bucket));
        }
    }
    return GG_OK;
}

/* Called before the gradients of a bucket are used in a step. */
static void gossip_gradients_prepare(gossip_gradients *g, int bucket) {
    g->in_flight[bucket] = g->turn;
    g->gossip.posted[bucket] = g->mixed[bucket] = 0;
    g->sent_at = g->gossip.head.step;
}

/* Sends the gradients of a chunk when all are final. */
static gg_status gossip_gradients_finish(gossip_gradients *g, int bucket, int i) {
    gg_gossip *gossip = &g->gossip;
    gg_device *device = gossip->head.env.device;
    const gg_chunk *chunk = &gossip->buckets.chunk[i];
    if (!gg_gossip_exchanges(gossip)) return GG_OK;
    gossip->codec->encode(device, chunk->count, g->own[g->turn] + chunk->offset,
                          gg_stream_snapshot(&g->gradient, g->turn, chunk->offset));
    GG_TRY(gg_stream_post_chunk(&g->gradient, bucket, i, g->turn, gossip->send_to, gossip->receive_from));
    gg_gossip_note_posted(gossip, bucket, i);
    return GG_OK;
}

static gg_status gossip_gradients_ready(gg_strategy *strategy, int layer) {
    gossip_gradients *g = (gossip_gradients *)strategy;
    int bucket = g->gossip.buckets.bucket_of_layer[layer];
    const gg_bucket *b = &g->gossip.buckets.bucket[bucket];
    const gg_slice *slice = gg_arena_layout_slice(strategy->env.layout, layer);
    if (gg_buckets_untouched(&g->gossip.buckets, bucket)) gossip_gradients_prepare(g, bucket);
    for (int i = b->first_chunk; i < b->end_chunk; ++i) {
        gg_chunk piece;
        if (!gg_gossip_piece(&g->gossip, i, slice, &piece)) continue;
        if (!gg_gossip_exchanges(&g->gossip))
            gossip_gradients_use(g, strategy->step, &piece, g->own[g->turn] + piece.offset);
        if (--g->gossip.left[i] == 0) GG_TRY(gossip_gradients_finish(g, bucket, i));
    }
    (void)gg_buckets_layer_ready(&g->gossip.buckets, layer);
    return GG_OK;
}

/* Updates that need norms wait for all mixed gradients: the exchange ends here. */
static gg_status gossip_gradients_end(gg_strategy *strategy) {
    gossip_gradients *g = (gossip_gradients *)strategy;
    if (!gg_updater_measures(strategy->env.updater)) return GG_OK;
    for (int layer = strategy->env.layout->layers - 1; layer >= 0; --layer)
        GG_TRY(gossip_gradients_need(strategy, layer));
    gg_strategy_measure(strategy, g->gradients);
    gossip_gradients_update(g, strategy->step, &(gg_chunk){0, strategy->env.state->count}, g->gradients);
    return GG_OK;
}

static gg_status gossip_gradients_settle(gg_strategy *strategy) {
    gossip_gradients *g = (gossip_gradients *)strategy;
    for (int layer = 0; layer < strategy->env.layout->layers; ++layer) GG_TRY(gossip_gradients_need(strategy, layer));
    return gg_stream_wait_all_sent(&g->gradient);
}

static void gossip_gradients_destroy(gg_strategy *strategy) {
    gossip_gradients *g = (gossip_gradients *)strategy;
    for (int i = 0; i < 2; ++i)
        if (g->own[i] != g->gradient.arena[i]) gg_device_free(strategy->env.device, g->own[i]);
    gg_stream_destroy(&g->gradient);
    gg_device_free(strategy->env.device, g->gradients);
    gg_free(g->mixed);
    gg_free(g->in_flight);
    gg_state_destroy(&strategy->env);
    gg_gossip_deinit(&g->gossip);
    gg_free(g);
}

static const gg_strategy_table table = {gossip_gradients_begin,  gossip_gradients_need, gossip_gradients_ready,
                                        gossip_gradients_poll,   gossip_gradients_end,  gossip_gradients_settle,
                                        gossip_gradients_destroy};

gg_status gg_gossip_gradients_create(const gg_strategy_options *options, const gg_strategy_env *env,
                                     gg_strategy **out) {
    gg_status status = GG_OK;
    gossip_gradients *g = NULL;
    gg_state *state = env->state;

    GG_TRY_CLEANUP(gg_calloc(1, sizeof *g, "strategy", &g));
    g->gossip.head.table = &table;
    g->gossip.head.averages_gradients = true;
    GG_TRY_CLEANUP(gg_gossip_init(&g->gossip, options, env));
    GG_TRY_CLEANUP(gg_calloc((size_t)g->gossip.buckets.count, sizeof(int), "arenas in flight", &g->in_flight));
    GG_TRY_CLEANUP(gg_calloc((size_t)g->gossip.buckets.count, sizeof(int), "counts of chunks", &g->mixed));
    GG_TRY_CLEANUP(gg_device_alloc(env->device, state->count * sizeof(float), "mixed gradients", &g->gradients));
    GG_TRY_CLEANUP(gg_stream_create(&g->gossip.head, &g->gossip.buckets, 0, 2, g->gossip.codec, &g->gradient));
    g->gradient.name = "gradients";
    for (int i = 0; i < 2; ++i) {
        if (g->gossip.codec->exact) g->own[i] = g->gradient.arena[i];
        else GG_TRY_CLEANUP(gg_device_alloc(env->device, state->count * sizeof(float), "gradients", &g->own[i]));
    }
    GG_TRY_CLEANUP(gg_state_create(env, GG_BORROWED_GRADIENT));
    state->arena[GG_GRADIENTS].data = g->own[g->turn];
cleanup:
    if (status != GG_OK && g != NULL) gossip_gradients_destroy(&g->gossip.head), g = NULL;
    *out = g ? &g->gossip.head : NULL;
    return status;
}
