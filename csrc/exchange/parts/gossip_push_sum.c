/* GossipGraD by push-sum: the mean of the replicas is preserved, even if a rank receives more, or less, than it sends.
 *
 * Every rank has a scalar s, initially 1. A sending rank sends half of its scalar with its weights. Its own share is
 * then s/2; in a step without sending it is s. A rank's new weights are the mean of its own and the received ones,
 * weighted by these scalars:
 *
 *     s' = own share + sum of s_j/2,   w' = (own share * w + sum of s_j/2 * w_j) / s'
 *
 * This is push-sum (x = s w and s are sent, halved; w = x/s is used) with the division done before sending. So weights
 * are sent, and small scalars do not multiply rounding errors. The sum of the scalars is p. Every mix preserves the sum
 * of s w. Without training all w converge to the mean of the first ones. An update of a rank counts with the rank's
 * scalar at that time. Moments are mixed like weights.
 *
 * The scalars follow from the schedule, which every rank knows, and from the step in which they were 1 (push_sum_since
 * of the state). That is the first step, or one in which weights were loaded or another schedule began. So scalars are
 * computed and not sent, and a resumed run computes equal ones.
 *
 * A dead rank stays in this account, because ranks learn of a death at different times. What it should have sent counts
 * as the receiver's own weights: the receiver takes the scalar's share and leaves w as it is. So scalars need no
 * message and none goes to 0; the mean moves by what the dead rank held.
 *
 * Weights are private and updated in place; a snapshot of them is sent. The shares sum to 1, so the mix is w + sum of
 * share_j * (w_j - sent). Staleness 0 mixes before the forward pass uses the layer. Staleness 1 adds the sum after the
 * next update, and to moments before it.
 *
 * With an inexact codec a rank sends s/2 times its rounded weights and retains the remainder, so that the sum of s w is
 * still preserved:
 *
 *     s' w' = s w - s/2 round(w) + sum of s_j/2 round(w_j),   that is
 *     w' = w + sum of share_j * (round(w_j) - round(w)) + gain * (round(w) - w)   with gain = (s' - s)/s'
 *
 * The last term, about a rounding error, is added before the update, while w still equals the sent weights. */
#include <stdint.h>

#include "base/memory.h"
#include "exchange/parts/gossip.h"
#include "exchange/parts/gossip_forms.h"

enum { WEIGHT = 0, MOMENT, KINDS = MOMENT + GG_MAX_MOMENTS };

/* The messages of one step to this rank. */
typedef struct arrivals {
    int count;
    int *sender;  /* in ascending order */
    float *share; /* one a sender in the mix */
    float gain;   /* the new part of this rank's scalar */
    int turn;     /* the snapshot arena that was sent in that step */
} arrivals;

/* The scalars of all ranks for some slices, before and after an exchange of theirs. */
typedef struct scalars {
    double *before, *after;
    int64_t round; /* of the schedule; -1 means that none has been computed */
} scalars;

typedef struct gossip_push_sum {
    gg_gossip gossip;
    int kinds;                /* exchanged arenas: weights, or the moments too */
    int most;                 /* max messages to this rank in a step; at least 1 */
    gg_stream *stream[KINDS]; /* `most` of each kind: number i receives from sender i; number 0 also sends */
    arrivals arrivals[2];     /* this step's at `turn`, the last step's at 1 - turn */
    const arrivals **pending; /* one a bucket, of its current slice: posted and not yet mixed; NULL means none */
    int *next;                /* one a bucket: the first chunk not yet mixed (staleness 0) */
    int turn;                 /* the snapshot arena that this step writes */
    float *rounded[KINDS];    /* the current elements of a snapshot, decoded; NULL means that the codec is exact */
    scalars of_slices[2];     /* of the slices from that of step `since` on, and of those before it */
    int64_t since;            /* the state's push_sum_since, from which they were computed */
} gossip_push_sum;

static bool push_sum_stale(const gossip_push_sum *g) { return g->gossip.options.gossip.staleness == 1; }

static float *push_sum_arena(const gossip_push_sum *g, int kind) {
    const gg_state *state = g->gossip.head.env.state;
    return kind == WEIGHT ? gg_state_weights(state) : gg_state_moment(state, kind - MOMENT);
}

/* The snapshot arena that this step writes; of several slices there is one. */
static int push_sum_snapshot(const gossip_push_sum *g) { return g->gossip.slices > 1 ? 0 : g->turn; }

/* ---- the schedule ---- */

/* The step in which all scalars were 1; if earlier than that, of a run that began with step 0. */
static int64_t push_sum_since(const gossip_push_sum *g) {
    const gg_state *state = g->gossip.head.env.state;
    return state->push_sum_since <= state->step ? state->push_sum_since : 0;
}

/* Turns the scalars of some slices to a round, from `first` on, before which they are 1. */
static void turn_to(gossip_push_sum *g, scalars *s, int64_t first, int64_t round) {
    gg_schedule *schedule = &g->gossip.schedule;
    if (s->round < first || s->round > round) {
        for (int r = 0; r < schedule->size; ++r) s->before[r] = 1;
        s->round = first;
        gg_schedule_push(schedule, first, s->before, s->after);
    }
    while (s->round < round) {
        double *before = s->before;
        s->before = s->after;
        s->after = before;
        gg_schedule_push(schedule, ++s->round, s->before, s->after);
    }
}

/* Scalars of a slice, turned to a round, or to the slice's first one if that is later. Every slice has its own scalars,
 * which depend on the number of its exchanges since they were 1. In each round of the schedule all slices are
 * exchanged, one after the other. If scalars become 1 within a round, they divide the slices: some are still exchanged
 * in it, others from the next one on. */
static scalars *turned(gossip_push_sum *g, int slice, int64_t round) {
    const int64_t since = push_sum_since(g), slices = g->gossip.slices;
    const bool later = slice < since % slices;
    const int64_t first = since / slices + later;
    if (g->since != since) g->of_slices[0].round = g->of_slices[1].round = -1;
    g->since = since;
    scalars *s = &g->of_slices[later];
    turn_to(g, s, first, round > first ? round : first);
    return s;
}

/* At rest. Slices that have been exchanged in this round are a round ahead. */
static void push_sum_weigh(gg_strategy *strategy, float *weights) {
    gossip_push_sum *g = (gossip_push_sum *)strategy;
    const gg_buckets *sliced = &g->gossip.sliced;
    const int64_t step = strategy->env.state->step, slices = g->gossip.slices, round = step / slices;
    const int rank = strategy->env.transport->rank;
    for (int i = 0; i < sliced->count; ++i) {
        const int slice = (int)(i % slices);
        const scalars *s = turned(g, slice, round);
        const float weight = (float)(slice < step % slices && s->round == round ? s->after : s->before)[rank];
        for (int c = sliced->bucket[i].first_chunk; weight != 1 && c < sliced->bucket[i].end_chunk; ++c)
            for (size_t k = 0; k < sliced->chunk[c].count; ++k) weights[sliced->chunk[c].offset + k] *= weight;
    }
}

static gg_status push_sum_begin(gg_strategy *strategy) {
    gossip_push_sum *g = (gossip_push_sum *)strategy;
    gg_schedule *schedule = &g->gossip.schedule;
    arrivals *in = &g->arrivals[g->turn];
    int rank = strategy->env.transport->rank;
    const int64_t step = gg_gossip_round(&g->gossip);
    gg_gossip_begin(&g->gossip);
    const scalars *s = turned(g, (int)(strategy->step % g->gossip.slices), step);
    in->turn = push_sum_snapshot(g);
    in->count = 0;
    for (int from = -1; (from = gg_schedule_next_sender(schedule, step, rank, from)) >= 0; ++in->count) {
        in->sender[in->count] = from;
        in->share[in->count] = (float)(s->before[from] / 2 / s->after[rank]);
    }
    in->gain = (float)(1 - s->before[rank] / s->after[rank]);
    return GG_OK;
}

/* ---- mixing ---- */

/* Adds the rounding error of the sent weights, before a mix, while the arena still equals these. */
static void add_rounding_error(gossip_push_sum *g, const arrivals *in, const gg_chunk *piece) {
    gg_device *device = g->gossip.head.env.device;
    for (int kind = 0; kind < g->kinds && !g->gossip.codec->exact; ++kind) {
        float *own = push_sum_arena(g, kind) + piece->offset, *rounded = g->rounded[kind] + piece->offset;
        g->gossip.codec->decode(device, piece->count, gg_stream_snapshot(g->stream[kind], in->turn, piece->offset),
                                rounded);
        device->table->weighted_sum(device, piece->count, 2, (const float *[]){own, rounded},
                                    (const float[]){1 - in->gain, in->gain}, own);
    }
}

/* True if a sender's chunk is mixed: it has arrived, a moment's in all moments. */
static bool push_sum_whole(const gossip_push_sum *g, int kind, int sender, int chunk) {
    const int first = kind == WEIGHT ? WEIGHT : MOMENT, end = kind == WEIGHT ? MOMENT : g->kinds;
    for (int i = first; i < end; ++i)
        if (!gg_stream_arrived(&g->stream[i][sender], chunk)) return false;
    return true;
}

/* Mixes the arrived messages for a piece of a chunk into the arena. */
static void push_sum_mix(gossip_push_sum *g, const arrivals *in, int kind, int chunk, const gg_chunk *piece) {
    gg_device *device = g->gossip.head.env.device;
    const gg_codec *codec = g->gossip.codec;
    float *own = push_sum_arena(g, kind) + piece->offset;
    const void *snapshot = gg_stream_snapshot(g->stream[kind], in->turn, piece->offset);
    const float *sent = codec->exact ? snapshot : g->rounded[kind] + piece->offset;
    for (int i = 0; i < in->count; ++i)
        if (push_sum_whole(g, kind, i, chunk))
            gg_codec_mix(codec, device, piece->count, in->share[i], own,
                         gg_stream_received(&g->stream[kind][i], chunk, piece->offset), sent, own);
}

static gg_status push_sum_release(gossip_push_sum *g, const arrivals *in, int chunk) {
    for (int kind = 0; kind < g->kinds; ++kind)
        for (int i = 0; i < in->count; ++i) GG_TRY(gg_stream_release(&g->stream[kind][i], chunk));
    return GG_OK;
}

/* Mixes the next chunk of a bucket, which is complete. The arena equals the sent weights. */
static gg_status push_sum_mix_next(gossip_push_sum *g, int bucket) {
    const arrivals *in = g->pending[bucket];
    int chunk = g->next[bucket]++;
    const gg_chunk *whole = &g->gossip.sliced.chunk[chunk];
    add_rounding_error(g, in, whole);
    for (int kind = 0; kind < g->kinds; ++kind) push_sum_mix(g, in, kind, chunk, whole);
    if (g->next[bucket] == g->gossip.sliced.bucket[g->gossip.current[bucket]].end_chunk) g->pending[bucket] = NULL;
    return push_sum_release(g, in, chunk);
}

static gg_status wait_received(gossip_push_sum *g, int bucket) {
    for (int kind = 0; kind < g->kinds; ++kind)
        for (int i = 0; i < g->pending[bucket]->count; ++i)
            GG_TRY(gg_stream_wait_received(&g->stream[kind][i], g->gossip.current[bucket]));
    return GG_OK;
}

static gg_status push_sum_complete(gossip_push_sum *g, int bucket) {
    if (g->pending[bucket] == NULL) return GG_OK;
    GG_TRY(wait_received(g, bucket));
    while (g->pending[bucket] != NULL) GG_TRY(push_sum_mix_next(g, bucket));
    return GG_OK;
}

static gg_status push_sum_need(gg_strategy *strategy, int layer) {
    gossip_push_sum *g = (gossip_push_sum *)strategy;
    return push_sum_stale(g) ? GG_OK : push_sum_complete(g, g->gossip.buckets.bucket_of_layer[layer]);
}

/* *arrived: all of a bucket's next chunk has. */
static gg_status push_sum_arrived(gossip_push_sum *g, int bucket, bool *all) {
    int chunk = g->next[bucket];
    *all = true;
    for (int kind = 0; kind < g->kinds; ++kind)
        for (int i = 0; *all && i < g->pending[bucket]->count; ++i)
            GG_TRY(gg_stream_test(&g->stream[kind][i], chunk, all));
    return GG_OK;
}

static gg_status push_sum_poll(gg_strategy *strategy) {
    gossip_push_sum *g = (gossip_push_sum *)strategy;
    GG_TRY(gg_progress(strategy->env.transport));
    for (int bucket = 0; !push_sum_stale(g) && bucket < g->gossip.buckets.count; ++bucket)
        while (g->pending[bucket] != NULL) {
            bool all = false;
            GG_TRY(push_sum_arrived(g, bucket, &all));
            if (!all) break;
            GG_TRY(push_sum_mix_next(g, bucket));
        }
    return GG_OK;
}

/* ---- update and send ---- */

/* Before the first update of a bucket in a step: waits until no partner reads the snapshot to be written, and until all
 * messages for the update have arrived. */
static gg_status push_sum_prepare(gossip_push_sum *g, int bucket) {
    for (int kind = 0; kind < g->kinds; ++kind)
        GG_TRY(gg_stream_wait_sent(g->stream[kind], gg_gossip_due(&g->gossip, bucket), push_sum_snapshot(g)));
    if (g->pending[bucket] != NULL) GG_TRY(wait_received(g, bucket));
    gg_gossip_turn(&g->gossip, bucket);
    return GG_OK;
}

/* Updates a piece of a layer, mixes its arrived messages in, and writes its snapshot. */
static void push_sum_update(gossip_push_sum *g, int bucket, const gg_gossip_run *cut) {
    const gg_chunk *piece = &cut->run;
    const int chunk = cut->last;
    gg_strategy *strategy = &g->gossip.head;
    gg_device *device = strategy->env.device;
    const arrivals *in = chunk >= 0 ? g->pending[bucket] : NULL;
    if (in != NULL) add_rounding_error(g, in, piece);
    for (int kind = MOMENT; in != NULL && kind < g->kinds; ++kind) push_sum_mix(g, in, kind, chunk, piece);
    gg_strategy_update(strategy, piece->offset, piece->count, gg_state_gradients(strategy->env.state) + piece->offset);
    if (in != NULL) push_sum_mix(g, in, WEIGHT, chunk, piece);
    for (int kind = 0; kind < g->kinds && cut->current >= 0; ++kind)
        g->gossip.codec->encode(device, piece->count, push_sum_arena(g, kind) + piece->offset,
                                gg_stream_snapshot(g->stream[kind], push_sum_snapshot(g), piece->offset));
}

/* After the last update of a bucket in a step: releases the mixed messages, and sends the new snapshot. */
static gg_status push_sum_finish(gossip_push_sum *g, int bucket) {
    const int slice = g->gossip.current[bucket];
    const gg_bucket *last = &g->gossip.sliced.bucket[g->gossip.last[bucket]], *b = &g->gossip.sliced.bucket[slice];
    const arrivals *in = &g->arrivals[g->turn];
    const bool sends = g->gossip.send_to >= 0; /* a rank that only sends still has the rounding error */
    for (int i = last->first_chunk; g->pending[bucket] != NULL && i < last->end_chunk; ++i)
        GG_TRY(push_sum_release(g, g->pending[bucket], i));
    g->pending[bucket] = b->end_chunk > b->first_chunk && (in->count > 0 || sends) ? in : NULL;
    g->next[bucket] = b->first_chunk;
    for (int kind = 0; kind < g->kinds; ++kind) {
        for (int i = 0; i < in->count; ++i) GG_TRY(gg_stream_receive(&g->stream[kind][i], slice, in->sender[i]));
        if (sends) GG_TRY(gg_stream_send(g->stream[kind], slice, in->turn, g->gossip.send_to));
    }
    return GG_OK;
}

static gg_status push_sum_ready(gg_strategy *strategy, int layer) {
    gossip_push_sum *g = (gossip_push_sum *)strategy;
    const int bucket = g->gossip.buckets.bucket_of_layer[layer];
    const gg_slice *slice = gg_arena_layout_slice(strategy->env.layout, layer);
    const size_t end = slice->offset + slice->count;
    if (gg_buckets_untouched(&g->gossip.buckets, bucket)) GG_TRY(push_sum_prepare(g, bucket));
    for (size_t at = slice->offset; at < end;) {
        const gg_gossip_run piece = gg_gossip_cut(&g->gossip, bucket, at, end);
        push_sum_update(g, bucket, &piece);
        at += piece.run.count;
    }
    if (gg_buckets_layer_ready(&g->gossip.buckets, layer)) GG_TRY(push_sum_finish(g, bucket));
    return GG_OK;
}

static gg_status push_sum_end(gg_strategy *strategy) {
    gossip_push_sum *g = (gossip_push_sum *)strategy;
    g->turn = 1 - g->turn;
    return GG_OK;
}

/* The arena still equals the sent weights: there was no update in between. */
static gg_status push_sum_settle(gg_strategy *strategy) {
    gossip_push_sum *g = (gossip_push_sum *)strategy;
    for (int bucket = 0; bucket < g->gossip.buckets.count; ++bucket) GG_TRY(push_sum_complete(g, bucket));
    for (int kind = 0; kind < g->kinds; ++kind) GG_TRY(gg_stream_wait_all_sent(g->stream[kind]));
    return GG_OK;
}

/* ---- creation and destruction ---- */

static void push_sum_destroy(gg_strategy *strategy) {
    gossip_push_sum *g = (gossip_push_sum *)strategy;
    for (int kind = KINDS - 1; kind >= 0; --kind) {
        for (int i = g->most - 1; g->stream[kind] != NULL && i >= 0; --i) gg_stream_destroy(&g->stream[kind][i]);
        gg_free(g->stream[kind]);
    }
    for (int i = 0; i < 2; ++i) {
        gg_free(g->arrivals[i].sender);
        gg_free(g->arrivals[i].share);
    }
    gg_free(g->pending);
    for (int kind = 0; kind < KINDS; ++kind) gg_device_free(strategy->env.device, g->rounded[kind]);
    gg_free(g->next);
    for (int i = 0; i < 2; ++i) {
        gg_free(g->of_slices[i].before);
        gg_free(g->of_slices[i].after);
    }
    gg_state_destroy(&strategy->env);
    gg_gossip_deinit(&g->gossip);
    gg_free(g);
}

static const gg_strategy_table table = {push_sum_begin, push_sum_need,   push_sum_ready,  push_sum_poll,
                                        push_sum_end,   push_sum_settle, push_sum_destroy};

/* GG_ERROR_ARGUMENT without a path between all ranks: there is no common mean then, and the scalar of a rank that never
 * receives goes to 0. */
static gg_status check_reach(gg_schedule *schedule) {
    int64_t steps;
    if (schedule->options.topology != GG_TOPOLOGY_TABLE) return GG_OK;
    GG_TRY(gg_schedule_diffusion(schedule, &steps));
    if (steps < 0)
        return gg_fail(GG_ERROR_ARGUMENT,
                       "topology: by this table some ranks never hear of others, whatever the number of steps; "
                       "push_sum=True needs that all hear of all");
    return GG_OK;
}

static int most_arrivals(gg_schedule *schedule, int rank) {
    int most = 1;
    for (int64_t step = 0; schedule->options.topology == GG_TOPOLOGY_TABLE && step < schedule->stages; ++step) {
        int count = 0;
        for (int from = -1; (from = gg_schedule_next_sender(schedule, step, rank, from)) >= 0;) ++count;
        if (count > most) most = count;
    }
    return most;
}

static gg_status create_streams(gossip_push_sum *g, int kind, const char *name) {
    const int arenas = g->gossip.slices > 1 ? 1 : 2;
    GG_TRY(gg_calloc((size_t)g->most, sizeof(gg_stream), "streams", &g->stream[kind]));
    if (!g->gossip.codec->exact)
        GG_TRY(gg_device_alloc(g->gossip.head.env.device, g->gossip.head.env.state->count * sizeof(float),
                               "rounded values", &g->rounded[kind]));
    for (int i = 0; i < g->most; ++i) {
        /* Messages of one kind have equal tags, from every sender. */
        GG_TRY(gg_stream_create(&g->gossip.head, &g->gossip.sliced, kind, i == 0 ? arenas : 0, g->gossip.codec,
                                &g->stream[kind][i]));
        g->stream[kind][i].name = name;
    }
    g->kinds = g->gossip.arenas = kind + 1;
    return GG_OK;
}

gg_status gg_gossip_push_sum_create(const gg_strategy_options *options, const gg_strategy_env *env, gg_strategy **out) {
    gg_status status = GG_OK;
    gossip_push_sum *g = NULL;
    size_t ranks = (size_t)env->transport->size;
    GG_TRY_CLEANUP(gg_calloc(1, sizeof *g, "strategy", &g));
    g->gossip.head.table = &table;
    g->gossip.head.only_applies_gradients = true;
    GG_TRY_CLEANUP(gg_gossip_init(&g->gossip, options, env));
    GG_TRY_CLEANUP(check_reach(&g->gossip.schedule));
    g->most = most_arrivals(&g->gossip.schedule, env->transport->rank);
    GG_TRY_CLEANUP(gg_calloc((size_t)g->gossip.buckets.count, sizeof *g->pending, "what is pending", &g->pending));
    for (int i = 0; i < 2; ++i) {
        GG_TRY_CLEANUP(gg_calloc((size_t)g->most, sizeof(int), "senders", &g->arrivals[i].sender));
        GG_TRY_CLEANUP(gg_calloc((size_t)g->most, sizeof(float), "shares", &g->arrivals[i].share));
    }
    GG_TRY_CLEANUP(gg_calloc((size_t)g->gossip.buckets.count, sizeof(int), "next chunks", &g->next));
    for (int i = 0; i < 2; ++i) {
        GG_TRY_CLEANUP(gg_calloc(ranks, sizeof(double), "scalars", &g->of_slices[i].before));
        GG_TRY_CLEANUP(gg_calloc(ranks, sizeof(double), "scalars", &g->of_slices[i].after));
        g->of_slices[i].round = -1;
    }
    g->gossip.head.weigh = push_sum_weigh;
    gg_updater_mixes(
        env->updater,
        (gg_mixing){.ranks = env->transport->size,
                    .period = options->gossip.exchange == GG_EXCHANGE_WEIGHTS_MOMENTUM ? g->gossip.slices : 0});
    GG_TRY_CLEANUP(gg_state_create(env, gg_gossip_shared(options)));
    if (ranks > 1) GG_TRY_CLEANUP(create_streams(g, WEIGHT, "weights"));
    if (ranks > 1 && options->gossip.exchange == GG_EXCHANGE_WEIGHTS_MOMENTUM)
        for (int i = 0; i < gg_state_moments(env->state); ++i)
            GG_TRY_CLEANUP(create_streams(g, MOMENT + i, env->state->arena[GG_MOMENTS + i].name));
cleanup:
    if (status != GG_OK && g != NULL) push_sum_destroy(&g->gossip.head), g = NULL;
    *out = g ? &g->gossip.head : NULL;
    return status;
}
