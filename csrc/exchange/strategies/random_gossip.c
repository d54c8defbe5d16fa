/* PullGossip and PushGossip: after its update a rank draws another rank and averages with it. No rank waits for another
 * one in a step.
 *
 * - Push: the new weights are sent to the drawn rank. At the end of each step a rank mixes all complete messages.
 * - Pull: the drawn rank is asked for its weights. It sends its last published snapshot, its weights after its last
 *   update. Polls answer.
 *
 * Both mix w = (c*w + sum of m_i*w_i)/(c + sum of m_i) over the arrived messages. The masses c and m_i are 1. With
 * push_sum a sending rank gives away half of its mass with its weights. So the sum of mass*w over the ranks and over
 * all messages in flight is preserved. When the run settles, the masses become 1 again: all replicas are shifted by one
 * vector, so that their plain mean becomes the former weighted mean.
 *
 * The update of a layer writes a copy to a snapshot in message memory, which is not written again before all its
 * readers have finished. If a partner lags, so that no snapshot is free or its last messages are unread, the exchange
 * is skipped and counted.
 *
 * A rank that has died is drawn in vain: its exchange does not take place. A message of it is mixed if all of its
 * chunks have arrived, and dropped with its mass otherwise. After a death settling makes every mass 1 without the
 * shift, which would need all ranks: the mean of the living may move, by no more than their distances.
 *
 * Senders and times are not known beforehand. So every rank has a receive posted for small notes from every other rank,
 * and posts the receives of weights only when a note announces them. Before a run settles, every rank sends every other
 * rank a note with the number of its messages to it, so that no message is lost or left in flight. */
#include <string.h>

#include "base/memory.h"
#include "base/random.h"
#include "comm/allreduce.h"
#include "comm/collective.h"
#include "exchange/parts/buckets.h"
#include "exchange/parts/flight.h"
#include "exchange/parts/receipts.h"
#include "exchange/types.h"
#include "ops/codec.h"

enum {
    SNAPSHOTS = 4,  /* one being written, the one before it, and two that a slow rank may still be reading */
    DELIVERIES = 8, /* snapshots in flight */
    QUESTIONS = 4,  /* outstanding pulls: an answer arrives after about one step */
    PEER_LIMIT = 2, /* max pushes or pulls to one rank that it has not processed yet */
    ARRIVALS = 4,   /* messages received at a time, each with a landing arena; at least one per outstanding pull */
    TAG_NOTE = GG_TAG_USER,
    TAG_CHUNK
};

typedef enum note_kind {
    ASK = 1, /* asks for the published weights */
    WEIGHTS, /* chunks of weights follow, with this mass */
    DONE /* the sender has made its last step and needs no more weights; carries the number of its pushes since the last
            settling */
} note_kind;

typedef struct note {
    int64_t kind, number; /* WEIGHTS: the training step after which they were written; DONE: pushes */
    double mass;
} note;

typedef struct delivery {
    bool active;
    int snapshot, peer;
    int next; /* the first chunk that may not have been mixed yet */
    note note;
    gg_request announced, *chunk;
} delivery;

typedef struct arrival {
    bool active;
    int peer;
    int next; /* the first chunk that may not have arrived yet; the number of chunks means that the message is complete
               */
    int64_t step;
    double mass;
    gg_flight flight; /* from its announcement on */
    void *landing;
    gg_request *chunk;
} arrival;

typedef struct question {
    bool open;
    int peer;
    note note;
    gg_request asked;
} question;

/* State of a peer, one a rank. */
typedef struct peer_state {
    gg_request heard, done_sent;
    note landing, done_note;
    bool dead;      /* its messages are lost from now on */
    bool done;      /* the peer has sent DONE, and only answers pulls from then on */
    int unanswered; /* pulls sent to it whose answer is not announced yet */
    int64_t pushed; /* messages to the peer since the last settling */
    int64_t
        awaited; /* messages that its DONE counts and that have not arrived, less those that arrived before its DONE */
} peer_state;

typedef struct random_gossip {
    gg_strategy head;
    bool pulls, push_sum;
    int64_t interval;
    double probability;
    const gg_codec *codec;
    float *wide;    /* a decoded chunk of a message; NULL means that the codec is exact */
    gg_buckets cut; /* one bucket of all layers, in chunks */
    void *snapshot[SNAPSHOTS];
    int64_t written[SNAPSHOTS]; /* the training step of each snapshot */
    int writing, published;     /* snapshots; -1 means none */
    bool fresh;                 /* the weights are the published ones */
    bool chosen;                /* in this step: `writing`, and with whom to exchange */
    int partner;                /* of this step; -1 means that no exchange is due */
    bool listens;               /* receives for notes are posted */
    delivery delivery[DELIVERIES];
    arrival arrival[ARRIVALS];
    question question[QUESTIONS];
    peer_state *peer;
    gg_receipts receipts;
    double mass, *masses;
    float *scale;
    gg_allreduce *shift;
} random_gossip;

static size_t chunk_bytes(const random_gossip *s, int chunk) { return s->cut.chunk[chunk].count * s->codec->size; }

/* ---- partners ---- */

/* Draws the partner of this step; -1 means that no exchange is due. */
static int draw_partner(const random_gossip *s) {
    const gg_transport *transport = s->head.env.transport;
    const gg_random_key key = {.seed = s->head.env.seed,
                               .purpose = GG_RANDOM_PARTNER,
                               .rank = (uint32_t)transport->identity,
                               .step = (uint64_t)s->head.step};
    uint32_t word[4];
    if ((s->head.step + 1) % s->interval != 0) return -1;
    gg_random_block(&key, 0, word);
    if (word[0] * 0x1p-32 >= s->probability) return -1;
    int drawn = (int)((uint64_t)word[1] * (uint64_t)(transport->size - 1) >> 32);
    return drawn + (drawn >= transport->rank);
}

/* Returns a snapshot that no rank reads and none may still ask for. */
static int free_snapshot(const random_gossip *s) {
    bool in_use[SNAPSHOTS] = {false};
    if (s->published >= 0) in_use[s->published] = true;
    for (int i = 0; i < DELIVERIES; ++i)
        if (s->delivery[i].active) in_use[s->delivery[i].snapshot] = true;
    for (int i = 0; i < SNAPSHOTS; ++i)
        if (!in_use[i]) return i;
    return -1;
}

/* True if a rank has not yet processed earlier messages to it. */
static bool random_gossip_lags(const random_gossip *s, int peer) {
    int left = 0;
    for (int i = 0; !s->pulls && i < DELIVERIES; ++i) left += s->delivery[i].active && s->delivery[i].peer == peer;
    for (int i = 0; s->pulls && i < QUESTIONS; ++i) left += s->question[i].open && s->question[i].peer == peer;
    return left >= PEER_LIMIT;
}

/* ---- sending ---- */

/* Chunk i of a message, decoded. */
static const float *random_gossip_view(random_gossip *s, const void *message, int i) {
    return s->codec->view(s->head.env.device, s->cut.chunk[i].count, message, s->wide);
}

/* Sends half of the mass with a snapshot. The rounding error of the snapshot stays here, so that the sum of mass*w is
 * preserved: m*w = m/2*(2*w - rounded w) + m/2*(rounded w). */
static void give_half(random_gossip *s, int snapshot) {
    const gg_strategy_env *env = &s->head.env;
    static const float scale[2] = {2, -1};
    s->mass /= 2;
    if (s->codec->exact) return;
    for (int i = 0; i < s->cut.chunk_count; ++i) {
        const gg_chunk *chunk = &s->cut.chunk[i];
        float *weight = gg_state_weights(env->state) + chunk->offset;
        const float *const source[2] = {
            weight, random_gossip_view(s, gg_codec_at(s->codec, s->snapshot[snapshot], chunk->offset), i)};
        env->device->table->weighted_sum(env->device, chunk->count, 2, source, scale, weight);
    }
}

/* Starts to send a snapshot. *done is false if too many messages are in flight. */
static gg_status random_gossip_deliver(random_gossip *s, int peer, int snapshot, bool *done) {
    gg_transport *transport = s->head.env.transport;
    delivery *d = s->delivery;
    while (d < s->delivery + DELIVERIES && d->active) ++d;
    *done = d < s->delivery + DELIVERIES;
    if (!*done) return GG_OK;
    if (s->push_sum) give_half(s, snapshot);
    d->active = true;
    d->snapshot = snapshot;
    d->peer = peer;
    d->next = 0;
    d->note = (note){.kind = WEIGHTS, .number = s->written[snapshot], .mass = s->mass};
    GG_TRY(gg_send(transport, &d->note, sizeof d->note, peer, TAG_NOTE, &d->announced));
    for (int i = 0; i < s->cut.chunk_count; ++i)
        GG_TRY(gg_send(transport, gg_codec_at(s->codec, s->snapshot[snapshot], s->cut.chunk[i].offset),
                       chunk_bytes(s, i), peer, TAG_CHUNK + i, &d->chunk[i]));
    s->peer[peer].pushed += !s->pulls;
    return GG_OK;
}

static gg_status listen_to(random_gossip *s, int peer) {
    peer_state *p = &s->peer[peer];
    return gg_receive_exact(s->head.env.transport, &p->landing, sizeof p->landing, peer, TAG_NOTE, &p->heard);
}

static gg_status random_gossip_ask(random_gossip *s, int peer, bool *done) {
    *done = false;
    if (random_gossip_lags(s, peer)) return GG_OK;
    for (int i = 0; i < QUESTIONS && !*done; ++i) {
        question *q = &s->question[i];
        if (q->open || q->asked.state != GG_REQUEST_IDLE) continue;
        q->open = *done = true;
        q->peer = peer;
        q->note = (note){.kind = ASK};
        GG_TRY(gg_send(s->head.env.transport, &q->note, sizeof q->note, peer, TAG_NOTE, &q->asked));
        s->peer[peer].unanswered++;
        if (s->peer[peer].heard.state == GG_REQUEST_IDLE) GG_TRY(listen_to(s, peer));
    }
    return GG_OK;
}

/* ---- receiving ---- */

/* Reserves a landing arena for announced weights. *done is false if none is free now. */
static gg_status random_gossip_accept(random_gossip *s, int peer, const note *announced, bool *done) {
    arrival *a = s->arrival;
    while (a < s->arrival + ARRIVALS && a->active) ++a;
    *done = a < s->arrival + ARRIVALS;
    if (!*done) return GG_OK;
    a->active = true;
    a->peer = peer;
    a->next = 0;
    a->step = announced->number;
    a->mass = announced->mass;
    gg_flight_begin(&a->flight, &s->head, peer);
    for (int i = 0; i < s->cut.chunk_count; ++i)
        GG_TRY(gg_receive_exact(s->head.env.transport, gg_codec_at(s->codec, a->landing, s->cut.chunk[i].offset),
                                chunk_bytes(s, i), peer, TAG_CHUNK + i, &a->chunk[i]));
    return GG_OK;
}

/* Mass must be sent with its own weights. So with push_sum a snapshot older than the weights is not sent: the pull
 * waits for the next snapshot. */
static gg_status random_gossip_answer(random_gossip *s, int peer, bool *done) {
    *done = false;
    if (s->published < 0 || (s->push_sum && !s->fresh)) return GG_OK;
    return random_gossip_deliver(s, peer, s->published, done);
}

/* gg_test. *moved is set if the request has just become done: a rank may only pause after a round without this. A
 * message to a dead rank is done. */
static gg_status random_gossip_look(random_gossip *s, gg_request *request, bool *done, bool *moved) {
    bool under_way = request->state != GG_REQUEST_IDLE && request->state != GG_REQUEST_ARRIVED;
    GG_TRY(gg_test(s->head.env.transport, request, done));
    *moved |= under_way && *done;
    if (request->state == GG_REQUEST_LOST && request->landing == NULL)
        GG_TRY(gg_release(s->head.env.transport, request));
    return GG_OK;
}

/* A rank has died, and all that had left it has been heard: it answers no more. */
static void random_gossip_bury(random_gossip *s, int peer) {
    s->peer[peer].dead = true;
    for (int i = 0; i < QUESTIONS; ++i) s->question[i].open &= s->question[i].peer != peer;
}

/* Processes the notes of one rank in order. If one cannot be processed now, it and all later ones stay queued. */
static gg_status random_gossip_hear(random_gossip *s, int peer, bool *moved) {
    gg_transport *transport = s->head.env.transport;
    peer_state *p = &s->peer[peer];
    while (p->heard.state != GG_REQUEST_IDLE) {
        bool done = false;
        note heard;
        GG_TRY(random_gossip_look(s, &p->heard, &done, moved));
        if (!done) break;
        if (p->heard.state == GG_REQUEST_LOST) {
            random_gossip_bury(s, peer);
            return gg_release(transport, &p->heard);
        }
        memcpy(&heard, p->heard.data, sizeof heard);
        if (heard.kind == ASK) GG_TRY(random_gossip_answer(s, peer, &done));
        else if (heard.kind == WEIGHTS) GG_TRY(random_gossip_accept(s, peer, &heard, &done));
        if (!done) break;
        if (heard.kind == WEIGHTS && s->pulls) p->unanswered--;
        if (heard.kind == DONE) {
            p->awaited += heard.number;
            p->done = true;
        }
        *moved = true;
        GG_TRY(gg_release(transport, &p->heard));
        if (!p->done || p->unanswered > 0) GG_TRY(listen_to(s, peer));
    }
    return GG_OK;
}

/* Counts a complete message: one fewer is outstanding. Drops one whose sender died in its midst. */
static void random_gossip_arrived(random_gossip *s, arrival *a) {
    bool lost = false;
    for (int i = 0; i < s->cut.chunk_count; ++i) lost |= a->chunk[i].state == GG_REQUEST_LOST;
    if (lost) {
        gg_cancel_all(s->head.env.transport, a->chunk, s->cut.chunk_count);
        a->active = false;
        random_gossip_bury(s, a->peer);
        return;
    }
    gg_flight_arrived(&a->flight, gg_transport_now(s->head.env.transport), s->head.env.state->count * s->codec->size);
    s->peer[a->peer].awaited -= !s->pulls;
    for (int i = 0; s->pulls && i < QUESTIONS; ++i)
        if (s->question[i].open && s->question[i].peer == a->peer) {
            s->question[i].open = false;
            return;
        }
}

/* Tests requests in their order. */
static gg_status test_chunks(random_gossip *s, gg_request *chunk, int *next, bool *moved) {
    for (bool done = true; *next < s->cut.chunk_count;) {
        GG_TRY(random_gossip_look(s, &chunk[*next], &done, moved));
        if (!done) break;
        ++*next;
    }
    return GG_OK;
}

/* Tests all messages in flight and processes complete ones. */
static gg_status random_gossip_advance(random_gossip *s, bool *moved) {
    for (int peer = 0; peer < s->head.env.transport->size; ++peer) {
        bool done;
        GG_TRY(random_gossip_hear(s, peer, moved));
        GG_TRY(random_gossip_look(s, &s->peer[peer].done_sent, &done, moved));
    }
    for (int i = 0; i < ARRIVALS; ++i) {
        arrival *a = &s->arrival[i];
        if (!a->active || a->next == s->cut.chunk_count) continue;
        GG_TRY(test_chunks(s, a->chunk, &a->next, moved));
        if (a->next == s->cut.chunk_count) random_gossip_arrived(s, a);
    }
    for (int i = 0; i < DELIVERIES; ++i) {
        delivery *d = &s->delivery[i];
        bool done;
        if (!d->active) continue;
        GG_TRY(random_gossip_look(s, &d->announced, &done, moved));
        GG_TRY(test_chunks(s, d->chunk, &d->next, moved));
        d->active = !done || d->next < s->cut.chunk_count;
    }
    for (int i = 0; i < QUESTIONS; ++i) {
        bool done;
        GG_TRY(random_gossip_look(s, &s->question[i].asked, &done, moved));
    }
    return GG_OK;
}

/* Mixes all complete messages. */
static gg_status random_gossip_mix(random_gossip *s, bool *moved) {
    const gg_strategy_env *env = &s->head.env;
    double whole = s->mass;
    for (int i = 0; i < ARRIVALS; ++i) {
        arrival *a = &s->arrival[i];
        if (!a->active || a->next < s->cut.chunk_count) continue;
        whole += a->mass;
        for (int c = 0; c < s->cut.chunk_count; ++c) {
            float *weight = gg_state_weights(env->state) + s->cut.chunk[c].offset;
            env->device->table->mix(env->device, s->cut.chunk[c].count, GG_FLOAT32, (float)(a->mass / whole), weight,
                                    random_gossip_view(s, a->chunk[c].data, c), weight, weight);
            GG_TRY(gg_release(env->transport, &a->chunk[c]));
        }
        gg_receipts_whole(&s->receipts, a->peer, a->step);
        a->active = s->fresh = false;
        *moved = true;
        gg_flight_end_all(&a->flight, &s->head, "weights");
    }
    if (s->push_sum) s->mass = whole;
    return GG_OK;
}

/* ---- the step ---- */

static gg_status random_gossip_begin(gg_strategy *strategy) {
    gg_status status = GG_OK;
    random_gossip *s = (random_gossip *)strategy;
    s->chosen = false;
    s->writing = s->partner = -1;
    if (!s->codec->exact) s->fresh = false; /* sending mass changes the weights: not from the forward pass on */
    if (strategy->env.transport->size == 1 || s->listens) goto cleanup;
    s->listens = true;
    for (int peer = 0; peer < strategy->env.transport->size; ++peer) {
        s->peer[peer].done = false;
        s->peer[peer].pushed = s->peer[peer].awaited = 0;
        if (peer != strategy->env.transport->rank && !s->peer[peer].dead) GG_TRY_CLEANUP(listen_to(s, peer));
    }
cleanup:
    return gg_strategy_at_all(&s->head, status);
}

static gg_status random_gossip_poll(gg_strategy *strategy) {
    gg_status status = GG_OK;
    random_gossip *s = (random_gossip *)strategy;
    bool moved = false;
    GG_TRY_CLEANUP(gg_progress(strategy->env.transport));
    if (s->listens) GG_TRY_CLEANUP(random_gossip_advance(s, &moved));
cleanup:
    return gg_strategy_at_all(&s->head, status);
}

/* Draws the partner as late as possible: just before the first update of the step. */
static gg_status random_gossip_choose(random_gossip *s) {
    gg_status status = GG_OK;
    bool moved = false;
    s->chosen = true;
    if (!s->listens) goto cleanup;
    GG_TRY_CLEANUP(random_gossip_advance(s, &moved));
    s->fresh = false;
    s->partner = draw_partner(s);
    if (s->partner >= 0 && s->peer[s->partner].dead) s->partner = -1;
    if (s->pulls || (s->partner >= 0 && !random_gossip_lags(s, s->partner))) s->writing = free_snapshot(s);
    if (s->writing >= 0) s->written[s->writing] = s->head.step;
cleanup:
    return gg_strategy_at_all(&s->head, status);
}

static gg_status random_gossip_ready(gg_strategy *strategy, int layer) {
    random_gossip *s = (random_gossip *)strategy;
    const gg_strategy_env *env = &strategy->env;
    const gg_slice *slice = gg_arena_layout_slice(env->layout, layer);
    if (!s->chosen) GG_TRY(random_gossip_choose(s));
    void *snapshot = gg_codec_at(s->codec, s->writing >= 0 ? s->snapshot[s->writing] : NULL, slice->offset);
    gg_updater_apply(env->updater, env->device, env->state,
                     &(gg_update){.step = strategy->step,
                                  .offset = slice->offset,
                                  .count = slice->count,
                                  .owned_offset = slice->offset,
                                  .gradient = gg_state_gradients(env->state) + slice->offset,
                                  .wire = s->codec->dtype,
                                  .copy = {snapshot}});
    return GG_OK;
}

static gg_status random_gossip_end(gg_strategy *strategy) {
    gg_status status = GG_OK;
    random_gossip *s = (random_gossip *)strategy;
    bool moved = false, done = false;
    if (!s->listens) goto cleanup;
    if (s->pulls && s->writing >= 0) {
        s->published = s->writing;
        s->fresh = true;
    }
    GG_TRY_CLEANUP(random_gossip_advance(s, &moved));
    if (s->partner >= 0) {
        if (s->pulls) GG_TRY_CLEANUP(random_gossip_ask(s, s->partner, &done));
        else if (s->writing >= 0) GG_TRY_CLEANUP(random_gossip_deliver(s, s->partner, s->writing, &done));
        strategy->skipped += !done;
    }
    GG_TRY_CLEANUP(random_gossip_mix(s, &moved));
cleanup:
    return gg_strategy_at_all(&s->head, status);
}

/* ---- settling ---- */

static gg_status say_rest(random_gossip *s) {
    gg_transport *transport = s->head.env.transport;
    for (int i = 1; i < transport->size; ++i) {
        int peer = (transport->rank + i) % transport->size;
        peer_state *p = &s->peer[peer];
        if (p->dead) continue;
        p->done_note = (note){.kind = DONE, .number = p->pushed};
        GG_TRY(gg_send(transport, &p->done_note, sizeof p->done_note, peer, TAG_NOTE, &p->done_sent));
    }
    return GG_OK;
}

/* Returns a rank whose answer to a pull is not complete yet; -1 means none. */
static int random_gossip_asked(const random_gossip *s) {
    for (int i = 0; i < QUESTIONS; ++i)
        if (s->question[i].open || s->question[i].asked.state != GG_REQUEST_IDLE) return s->question[i].peer;
    return -1;
}

/* Returns a rank with an outstanding message to or from this one; -1 means none. */
static int random_gossip_missing(const random_gossip *s) {
    if (random_gossip_asked(s) >= 0) return random_gossip_asked(s);
    for (int i = 0; i < s->head.env.transport->size; ++i) {
        const peer_state *p = &s->peer[i];
        if (p->done_sent.state != GG_REQUEST_IDLE) return i;
        if (!p->dead && (p->heard.state != GG_REQUEST_IDLE || p->awaited != 0)) return i;
    }
    for (int i = 0; i < ARRIVALS; ++i) /* of a dead rank, which are not awaited */
        if (s->arrival[i].active) return s->arrival[i].peer;
    for (int i = 0; i < DELIVERIES; ++i)
        if (s->delivery[i].active) return s->delivery[i].peer;
    return -1;
}

/* With push_sum, publishes the current weights if a rank may still pull them. */
static void random_gossip_refresh(random_gossip *s) {
    const gg_state *state = s->head.env.state;
    int snapshot = s->pulls && s->push_sum && !s->fresh ? free_snapshot(s) : -1;
    if (snapshot < 0) return;
    s->codec->encode(s->head.env.device, state->count, gg_state_weights(state), s->snapshot[snapshot]);
    s->published = snapshot;
    s->written[snapshot] = s->head.step;
    s->fresh = true;
}

/* Makes every mass 1: w += (1/p) * sum over the ranks of (mass - 1)*w, equal on all ranks. GG_ERROR_PEER after a death:
 * then w has not changed. */
static gg_status even_out(random_gossip *s) {
    const gg_strategy_env *env = &s->head.env;
    const gg_state *state = env->state;
    float *shift = s->snapshot[0];
    static const float both[2] = {1, 1};
    GG_TRY(gg_allgather(env->transport, &s->mass, sizeof s->mass, s->masses));
    for (int r = 0; r < env->transport->size; ++r) s->scale[r] = (float)((s->masses[r] - 1) / env->transport->size);
    gg_device_copy(env->device, GG_QUEUE_COMPUTE, shift, gg_state_weights(state), state->count * sizeof(float));
    GG_TRY(gg_allreduce_run(s->shift, shift, s->scale));
    env->device->table->weighted_sum(env->device, state->count, 2,
                                     (const float *const[]){gg_state_weights(state), shift}, both,
                                     gg_state_weights(state));
    return GG_OK;
}

static bool random_gossip_any_dead(const random_gossip *s) {
    bool any = false;
    for (int i = 0; i < s->head.env.transport->size; ++i) any |= s->peer[i].dead;
    return any;
}

/* Serves the other ranks until all have made their last step and no message is in flight. A rank sends DONE when all of
 * its pulls are answered. So after DONE from all others a rank will not be asked again. */
static gg_status random_gossip_settle(gg_strategy *strategy) {
    gg_status status = GG_OK;
    random_gossip *s = (random_gossip *)strategy;
    gg_transport *transport = strategy->env.transport;
    double begin = gg_transport_now(transport), last = begin;
    bool said = false;
    if (!s->listens) goto cleanup;
    for (int round = 0;; ++round) {
        bool moved = false;
        random_gossip_refresh(s);
        GG_TRY_CLEANUP(random_gossip_advance(s, &moved));
        GG_TRY_CLEANUP(random_gossip_mix(s, &moved));
        if (!said && random_gossip_asked(s) < 0) {
            GG_TRY_CLEANUP(say_rest(s));
            said = moved = true;
        }
        int peer = random_gossip_missing(s);
        if (peer < 0) break;
        double now = gg_transport_now(transport);
        if (moved) {
            round = -1;
            last = now;
            continue;
        }
        if (transport->timeout > 0 && now - last >= transport->timeout)
            GG_FAIL_CLEANUP(GG_ERROR_COMM, "rank %d: waited %.3f s for rank %d to finish its last step (%s)",
                            transport->rank, now - last, peer, transport->table->name);
        GG_TRY_CLEANUP(gg_pause(transport, round, peer));
    }
    if (s->push_sum && !random_gossip_any_dead(s)) {
        status = even_out(s);
        if (status == GG_ERROR_PEER) status = GG_OK;
        if (status != GG_OK) goto cleanup;
    }
    s->mass = 1;
    gg_strategy_waited(strategy, begin);
    s->listens = s->fresh = false;
    s->published = -1;
cleanup:
    return gg_strategy_at_all(&s->head, status);
}

/* ---- creation and destruction ---- */

static void random_gossip_destroy(gg_strategy *strategy) {
    random_gossip *s = (random_gossip *)strategy;
    gg_transport *transport = strategy->env.transport;
    for (int i = 0; s->peer != NULL && i < transport->size; ++i) {
        gg_cancel(transport, &s->peer[i].heard);
        gg_cancel(transport, &s->peer[i].done_sent);
    }
    for (int i = 0; i < QUESTIONS; ++i) gg_cancel(transport, &s->question[i].asked);
    for (int i = 0; i < ARRIVALS; ++i) {
        gg_cancel_all(transport, s->arrival[i].chunk, s->cut.chunk_count);
        gg_free(s->arrival[i].chunk);
        gg_device_free_host(strategy->env.device, s->arrival[i].landing);
    }
    for (int i = 0; i < DELIVERIES; ++i) {
        gg_cancel(transport, &s->delivery[i].announced);
        gg_cancel_all(transport, s->delivery[i].chunk, s->cut.chunk_count);
        gg_free(s->delivery[i].chunk);
    }
    gg_allreduce_destroy(s->shift);
    for (int i = SNAPSHOTS - 1; i >= 0; --i) gg_message_free(transport, s->snapshot[i]);
    gg_free(s->peer);
    gg_device_free(strategy->env.device, s->wide);
    gg_free(s->masses);
    gg_free(s->scale);
    gg_receipts_destroy(&s->receipts);
    gg_buckets_destroy(&s->cut);
    gg_state_destroy(&strategy->env);
    gg_free(s);
}

/* Allocates memory that only an exchange needs. */
static gg_status create_exchange(random_gossip *s, const gg_strategy_options *options, const gg_strategy_env *env) {
    size_t ranks = (size_t)env->transport->size, count = env->state->count, bytes = count * s->codec->size, chunks;
    GG_TRY(gg_buckets_create(env->layout, SIZE_MAX, options->chunk_bytes, &s->cut));
    chunks = (size_t)s->cut.chunk_count;
    GG_TRY(gg_buckets_check_tags(&s->cut, GG_TAG_LIMIT - TAG_CHUNK));
    GG_TRY(gg_calloc(ranks, sizeof *s->peer, "states of peers", &s->peer));
    GG_TRY(gg_receipts_create(env->transport->size, &s->receipts));
    s->head.receipts = &s->receipts;
    for (int i = 0; i < SNAPSHOTS; ++i)
        GG_TRY(gg_message_alloc_device(env->transport, i == 0 && s->push_sum ? count * sizeof(float) : bytes,
                                       "snapshot of the weights",
                                       &s->snapshot[i])); /* while settling the first holds the shift */
    if (!s->codec->exact && chunks > 0)
        GG_TRY(gg_device_alloc(env->device, s->cut.chunk[0].count * sizeof(float), "a chunk", &s->wide));
    for (int i = 0; i < DELIVERIES; ++i)
        GG_TRY(gg_calloc(chunks, sizeof(gg_request), "send requests", &s->delivery[i].chunk));
    for (int i = 0; i < ARRIVALS; ++i) {
        GG_TRY(gg_calloc(chunks, sizeof(gg_request), "receive requests", &s->arrival[i].chunk));
        GG_TRY(gg_device_alloc_landing(env->device, bytes, "landing arena", &s->arrival[i].landing));
    }
    if (!s->push_sum) return GG_OK;
    GG_TRY(gg_calloc(ranks, sizeof *s->masses, "masses", &s->masses));
    GG_TRY(gg_calloc(ranks, sizeof *s->scale, "shares", &s->scale));
    return gg_allreduce_create(env->transport, env->device, env->state->count, GG_TAG_ALLREDUCE, NULL,
                               GG_COLLECTIVES_OWN, &s->shift);
}

static const gg_strategy_table table = {random_gossip_begin,  gg_strategy_no_layer, random_gossip_ready,
                                        random_gossip_poll,   random_gossip_end,    random_gossip_settle,
                                        random_gossip_destroy};

static gg_status random_gossip_create(const gg_strategy_options *options, const gg_strategy_env *env,
                                      gg_strategy **out) {
    gg_status status = GG_OK;
    random_gossip *s = NULL;
    GG_TRY_CLEANUP(gg_calloc(1, sizeof *s, "strategy", &s));
    s->pulls = options->kind == GG_STRATEGY_PULL_GOSSIP;
    s->head.table = &table;
    s->head.only_applies_gradients = true;
    s->head.env = *env;
    gg_updater_mixes(env->updater, (gg_mixing){.ranks = env->transport->size});
    s->push_sum = options->random.push_sum;
    s->interval = options->random.interval;
    s->probability = options->random.probability;
    s->codec = gg_codec_of(options->wire);
    s->mass = 1;
    s->writing = s->published = s->partner = -1;
    GG_TRY_CLEANUP(gg_state_create(env, 0));
    if (env->transport->size > 1) GG_TRY_CLEANUP(create_exchange(s, options, env));
cleanup:
    if (status != GG_OK && s != NULL) random_gossip_destroy(&s->head), s = NULL;
    *out = s ? &s->head : NULL;
    return status;
}

static bool random_gossip_goes_on(const gg_strategy_options *a, const gg_strategy_options *b, bool residues) {
    return residues || a->random.push_sum == b->random.push_sum;
}

static const gg_option options[] = {
    GG_STRATEGY_OPTION(GG_OPTION_INT64, "interval", random.interval, "steps from one exchange to the next",
                       .fallback = {1}, .bounds = GG_AT_LEAST(1)),
    GG_STRATEGY_OPTION(GG_OPTION_DOUBLE, "probability", random.probability, "of an exchange that is due",
                       .fallback = {1}, .bounds = GG_ABOVE_TO(0, 1)),
    GG_OPTION_PUSH_SUM(random.push_sum),
    GG_OPTION_WIRE,
    GG_OPTION_CHUNK("2 MiB"),
    {.name = NULL}};

const gg_strategy_type gg_strategy_pull_gossip = {.name = "pull-gossip",
                                                  .options = options,
                                                  .goes_on = random_gossip_goes_on,
                                                  .needs_all = gg_strategy_needs_none,
                                                  .in_loops = true,
                                                  .check = gg_strategy_check_sizes,
                                                  .create = random_gossip_create};
const gg_strategy_type gg_strategy_push_gossip = {.name = "push-gossip",
                                                  .options = options,
                                                  .goes_on = random_gossip_goes_on,
                                                  .needs_all = gg_strategy_needs_none,
                                                  .in_loops = true,
                                                  .check = gg_strategy_check_sizes,
                                                  .create = random_gossip_create};
