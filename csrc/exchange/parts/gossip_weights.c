/* GossipGraD with weights, or weights and moments. After the local update of a layer its new weights go to this step's
 * partner, and are mixed with another partner's.
 *
 * Weights and moments are private and updated in place. The update writes a snapshot of them with non-temporal stores
 * into message memory, where partners read it. So the next update of private memory costs no more than without
 * exchange; lines that another core has read would cost several times more. Nothing is copied afterwards, and a
 * snapshot in flight is never written: a stream alternates between two arenas.
 *
 * - Staleness 0: when a chunk arrives, w += (received - w)/2, at the latest just before the forward pass needs the
 *   layer. Partners update at about one time. So most chunks of a large layer arrive while its later ones are updated,
 *   and are mixed while their weights are in cache.
 * - Staleness 1: the next update adds (received - w)/2 in its pass, while w still equals the sent weights. The exchange
 *   overlaps with a whole step.
 *
 * Only updates need moments. So with either staleness the next update mixes them before it uses them, without a pass of
 * their own.
 *
 * A chunk from a dead rank that has not arrived whole is left out: w stays as it is. Moments of a chunk are left out
 * together. A mixed first moment whose second moment is still 0 would be divided by eps alone.
 *
 * With an inexact codec the snapshot is rounded, and (received - rounded w)/2 is added. w has not changed since its
 * snapshot was written. So rounding it again gives the sent values without reading them. */
#include "base/memory.h"
#include "exchange/parts/gossip.h"
#include "exchange/parts/gossip_forms.h"

/* An exchanged arena. */
typedef struct exchanged {
    gg_stream stream;
    float *own; /* the private arena */
    int *mixed; /* one a slice: the chunks of its last exchange that have been mixed by a pass of their own */
} exchanged;

enum { WEIGHT, MOMENT, PARTS = MOMENT + GG_MAX_MOMENTS };

typedef struct gossip_weights {
    gg_gossip gossip;
    int parts; /* the first `parts` of PARTS are exchanged */
    exchanged part[PARTS];
    int turn; /* the snapshot arena that this step writes; of several slices there is one */
} gossip_weights;

static bool gossip_weights_stale(const gossip_weights *g) { return g->gossip.options.gossip.staleness == 1; }

static bool gossip_weights_pending(const gossip_weights *g, const exchanged *part, int slice) {
    return part->mixed[slice] < g->gossip.posted[slice];
}

/* The next chunk of a slice to mix. */
static int gossip_weights_next(const gossip_weights *g, const exchanged *part, int slice) {
    return gg_gossip_posted(&g->gossip, slice, part->mixed[slice]);
}

/* True if this chunk of an arena is mixed: it has arrived, a moment's in all moments. */
static bool gossip_weights_whole(const gossip_weights *g, const exchanged *part, int chunk) {
    if (part == &g->part[WEIGHT]) return gg_stream_arrived(&part->stream, chunk);
    for (int i = MOMENT; i < g->parts; ++i)
        if (!gg_stream_arrived(&g->part[i].stream, chunk)) return false;
    return true;
}

/* Mixes the next chunk of a slice, or leaves it out. */
static gg_status gossip_weights_mix_next(gossip_weights *g, exchanged *part, int slice, bool whole) {
    int i = gossip_weights_next(g, part, slice);
    const gg_chunk *chunk = &g->gossip.sliced.chunk[i];
    float *own = part->own + chunk->offset;
    if (whole)
        gg_gossip_mix(&g->gossip, chunk->count, own, gg_stream_received(&part->stream, i, chunk->offset), own, own);
    part->mixed[slice]++;
    return gg_stream_release(&part->stream, i);
}

/* Mixes the arrived chunks of a slice's weights. */
static gg_status gossip_weights_advance(gossip_weights *g, exchanged *part, int slice) {
    while (gossip_weights_pending(g, part, slice)) {
        const int chunk = gossip_weights_next(g, part, slice);
        bool done = false;
        GG_TRY(gg_stream_test(&part->stream, chunk, &done));
        if (!done) break;
        GG_TRY(gossip_weights_mix_next(g, part, slice, gossip_weights_whole(g, part, chunk)));
    }
    return GG_OK;
}

/* Mixes arrived weights, for which the next forward pass waits. */
static gg_status advance_weights(gossip_weights *g) {
    for (int bucket = 0; g->parts > 0 && bucket < g->gossip.buckets.count; ++bucket)
        GG_TRY(gossip_weights_advance(g, &g->part[WEIGHT], g->gossip.current[bucket]));
    return GG_OK;
}

/* Mixes the pending chunks of a slice's moments. */
static gg_status complete_moments(gossip_weights *g, int slice) {
    const exchanged *first = &g->part[MOMENT];
    for (int i = MOMENT; i < g->parts; ++i) GG_TRY(gg_stream_wait_received(&g->part[i].stream, slice));
    while (g->parts > MOMENT && gossip_weights_pending(g, first, slice)) {
        const bool whole = gossip_weights_whole(g, first, gossip_weights_next(g, first, slice));
        for (int i = MOMENT; i < g->parts; ++i) GG_TRY(gossip_weights_mix_next(g, &g->part[i], slice, whole));
    }
    return GG_OK;
}

/* Mixes the pending chunks of a slice's weights. While it waits, it mixes other arrived weights. */
static gg_status gossip_weights_complete(gossip_weights *g, exchanged *part, int slice) {
    GG_TRY(gossip_weights_advance(g, part, slice));
    while (gossip_weights_pending(g, part, slice)) {
        GG_TRY(gg_stream_wait_chunk(&part->stream, slice, gossip_weights_next(g, part, slice)));
        GG_TRY(gossip_weights_advance(g, part, slice));
        if (gossip_weights_pending(g, part, slice)) GG_TRY(advance_weights(g));
    }
    return GG_OK;
}

static gg_status gossip_weights_begin(gg_strategy *strategy) {
    gg_gossip_begin((gg_gossip *)strategy);
    return GG_OK;
}

static gg_status gossip_weights_need(gg_strategy *strategy, int layer) {
    gossip_weights *g = (gossip_weights *)strategy;
    if (gossip_weights_stale(g) || g->parts == 0) return GG_OK;
    return gossip_weights_complete(g, &g->part[WEIGHT], g->gossip.current[g->gossip.buckets.bucket_of_layer[layer]]);
}

static gg_status gossip_weights_poll(gg_strategy *strategy) {
    gossip_weights *g = (gossip_weights *)strategy;
    GG_TRY(gg_progress(strategy->env.transport));
    if (!gossip_weights_stale(g)) GG_TRY(advance_weights(g));
    return GG_OK;
}

/* Before the first update of a bucket in a step: waits until no partner reads the snapshot to be written, and until all
 * messages for the update have arrived. */
static gg_status gossip_weights_prepare(gossip_weights *g, int bucket) {
    const int last = g->gossip.current[bucket], due = gg_gossip_due(&g->gossip, bucket);
    for (int i = 0; i < g->parts; ++i) GG_TRY(gg_stream_wait_sent(&g->part[i].stream, due, g->turn));
    for (int i = 0; i < g->parts; ++i) {
        exchanged *part = &g->part[i];
        if (i == WEIGHT && !gossip_weights_stale(g)) GG_TRY(gossip_weights_complete(g, part, last));
        else GG_TRY(gg_stream_wait_received(&part->stream, last));
    }
    gg_gossip_turn(&g->gossip, bucket);
    g->gossip.posted[due] = 0;
    for (int i = 0; i < g->parts; ++i) g->part[i].mixed[due] = 0;
    return GG_OK;
}

/* Received elements that the update of a run mixes in, and the place of the run's snapshot; NULL means none. */
static const void *gossip_weights_received(const gossip_weights *g, const exchanged *part, int chunk, size_t offset) {
    if (chunk < 0 || !gossip_weights_whole(g, part, chunk)) return NULL;
    return gg_stream_received(&part->stream, chunk, offset);
}

static void *gossip_weights_copy(const gossip_weights *g, const exchanged *part, int chunk, size_t offset) {
    if (chunk < 0 || !gg_gossip_exchanges(&g->gossip)) return NULL;
    return gg_stream_snapshot(&part->stream, g->turn, offset);
}

/* Updates a piece of a layer: mixes its arrived messages in, and writes the snapshot of the due slice. */
static void gossip_weights_update(gossip_weights *g, const gg_gossip_run *piece) {
    const gg_strategy_env *env = &g->gossip.head.env;
    const size_t at = piece->run.offset;
    gg_update update = {.step = g->gossip.head.step,
                        .offset = at,
                        .count = piece->run.count,
                        .owned_offset = at,
                        .gradient = gg_state_gradients(env->state) + at,
                        .wire = g->gossip.codec->dtype};
    for (int i = 0; i < g->parts; ++i) {
        update.received[i] = gossip_weights_received(g, &g->part[i], piece->last, at);
        update.copy[i] = gossip_weights_copy(g, &g->part[i], piece->current, at);
    }
    gg_updater_apply(env->updater, env->device, env->state, &update);
}

/* After the last update in a step of a chunk exchanged in the last step: releases its mixed messages. */
static gg_status gossip_weights_release(gossip_weights *g, int chunk) {
    for (int i = 0; i < g->parts; ++i)
        if (g->part[i].stream.received[chunk].state != GG_REQUEST_IDLE)
            GG_TRY(gg_stream_release(&g->part[i].stream, chunk));
    return GG_OK;
}

/* After the last update in a step of a due chunk: sends its snapshot. */
static gg_status gossip_weights_post(gossip_weights *g, int slice, int chunk) {
    gg_gossip *gossip = &g->gossip;
    if (!gg_gossip_exchanges(gossip)) return GG_OK;
    for (int i = 0; i < g->parts; ++i)
        GG_TRY(gg_stream_post_chunk(&g->part[i].stream, slice, chunk, g->turn, gossip->send_to, gossip->receive_from));
    gg_gossip_note_posted(gossip, slice, chunk);
    return GG_OK;
}

/* Updates a layer, cut at the chunks' borders of the last and the due slice. After each chunk it mixes those that have
 * arrived meanwhile. */
static gg_status gossip_weights_ready(gg_strategy *strategy, int layer) {
    gossip_weights *g = (gossip_weights *)strategy;
    gg_gossip *gossip = &g->gossip;
    const int bucket = gossip->buckets.bucket_of_layer[layer];
    const gg_slice *slice = gg_arena_layout_slice(strategy->env.layout, layer);
    const size_t end = slice->offset + slice->count;

    if (gg_buckets_untouched(&gossip->buckets, bucket)) GG_TRY(gossip_weights_prepare(g, bucket));
    for (size_t at = slice->offset; at < end;) {
        const gg_gossip_run piece = gg_gossip_cut(gossip, bucket, at, end);
        bool last, current;
        gossip_weights_update(g, &piece);
        gg_gossip_updated(gossip, &piece, end, &last, &current);
        if (last) GG_TRY(gossip_weights_release(g, piece.last));
        if (current) {
            GG_TRY(gossip_weights_post(g, gossip->current[bucket], piece.current));
            if (g->parts > 0 && !gossip_weights_stale(g))
                GG_TRY(gossip_weights_advance(g, &g->part[WEIGHT], gossip->current[bucket]));
        }
        at += piece.run.count;
    }
    (void)gg_buckets_layer_ready(&gossip->buckets, layer);
    return GG_OK;
}

static gg_status gossip_weights_end(gg_strategy *strategy) {
    gossip_weights *g = (gossip_weights *)strategy;
    if (g->gossip.slices == 1) g->turn = 1 - g->turn;
    return GG_OK;
}

/* Mixes all pending messages into the private arenas, which still equal the sent ones. */
static gg_status gossip_weights_settle(gg_strategy *strategy) {
    gossip_weights *g = (gossip_weights *)strategy;
    for (int bucket = 0; g->parts > 0 && bucket < g->gossip.buckets.count; ++bucket)
        GG_TRY(gossip_weights_complete(g, &g->part[WEIGHT], g->gossip.current[bucket]));
    for (int bucket = 0; bucket < g->gossip.buckets.count; ++bucket)
        GG_TRY(complete_moments(g, g->gossip.current[bucket]));
    /* Every rank releases all received messages before it waits for its own, so there is no deadlock. */
    for (int i = 0; i < g->parts; ++i) GG_TRY(gg_stream_wait_all_sent(&g->part[i].stream));
    return GG_OK;
}

static void gossip_weights_destroy(gg_strategy *strategy) {
    gossip_weights *g = (gossip_weights *)strategy;
    for (int i = PARTS - 1; i >= 0; --i) {
        gg_stream_destroy(&g->part[i].stream);
        gg_free(g->part[i].mixed);
    }
    gg_state_destroy(&strategy->env);
    gg_gossip_deinit(&g->gossip);
    gg_free(g);
}

static const gg_strategy_table table = {gossip_weights_begin,  gossip_weights_need, gossip_weights_ready,
                                        gossip_weights_poll,   gossip_weights_end,  gossip_weights_settle,
                                        gossip_weights_destroy};

gg_status gg_gossip_weights_create(const gg_strategy_options *options, const gg_strategy_env *env, gg_strategy **out) {
    gg_status status = GG_OK;
    gossip_weights *g = NULL;
    /* A slice is not written again in the next step, so one snapshot of the whole is enough for several. */
    const int arenas = options->gossip.slices > 1 ? 1 : 2;
    int parts = 0;

    GG_TRY_CLEANUP(gg_calloc(1, sizeof *g, "strategy", &g));
    g->gossip.head.table = &table;
    g->gossip.head.only_applies_gradients = true;
    GG_TRY_CLEANUP(gg_gossip_init(&g->gossip, options, env));
    GG_TRY_CLEANUP(gg_state_create(env, gg_gossip_shared(options)));
    if (env->transport->size > 1) {
        /* Adam's moments travel together. */
        parts = 1;
        if (options->gossip.exchange == GG_EXCHANGE_WEIGHTS_MOMENTUM) parts += gg_state_moments(env->state);
    }
    g->parts = g->gossip.arenas = parts;
    gg_updater_mixes(env->updater,
                     (gg_mixing){.ranks = env->transport->size, .period = parts > 1 ? g->gossip.slices : 0});
    for (int i = 0; i < parts; ++i) {
        GG_TRY_CLEANUP(gg_calloc((size_t)g->gossip.sliced.count, sizeof(int), "counts of chunks", &g->part[i].mixed));
        GG_TRY_CLEANUP(
            gg_stream_create(&g->gossip.head, &g->gossip.sliced, i, arenas, g->gossip.codec, &g->part[i].stream));
        g->part[i].stream.name = i == WEIGHT ? "weights" : env->state->arena[GG_MOMENTS + i - MOMENT].name;
        g->part[i].own = i == WEIGHT ? gg_state_weights(env->state) : gg_state_moment(env->state, i - MOMENT);
    }
cleanup:
    if (status != GG_OK && g != NULL) gossip_weights_destroy(&g->gossip.head), g = NULL;
    *out = g ? &g->gossip.head : NULL;
    return status;
}
