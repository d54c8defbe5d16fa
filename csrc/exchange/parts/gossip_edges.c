/* GossipGraD with compression. Two partners hold a common copy of weights for the edge between them. Each sends the
 * largest elements of the difference between its weights and the copy.
 *
 * An edge connects two ranks that are partners in some step. Both of its ends hold equal bits of the copy Y. When the
 * schedule brings them together:
 *
 * 1. Each end i, whose bucket has been updated, packs the difference w_i - Y (gg_pack_difference): m_i, the peaks of
 *    each bin, as values.
 * 2. The ends exchange these messages.
 * 3. Each end computes
 *
 *     w_i += g * (m_j - m_i)      w_j += g * (m_i - m_j)      Y += g * (m_i + m_j)
 *
 * One end adds and the other subtracts equal values, element by element. So the mean over the ranks is preserved up to
 * rounding, whatever elements were chosen. w_i - Y becomes w_i - Y - 2g * m_i, so nothing is lost: unsent values are
 * still in the next difference. A mix moves only elements that have just been sent. (To move all of w by the difference
 * of two copies overshoots between two visits of an element, and diverges.)
 *
 * g is half of the share that is mixed with one partner, 1/2. In a step a rank may receive from another partner than it
 * sends to. Both pairs then exchange in both directions, and each counts half.
 *
 * With residues an element is chosen if |G + (factor - 1)*dW| is at least the bin's greatest |G|. Here the difference
 * is G. The last step's change dW is not stored, but taken as a fixed part of the difference. Otherwise the rest of a
 * bin, which becomes even when its peaks have been sent, would all be chosen.
 *
 * A rank with new weights, at the beginning or after some were loaded, sends all of them. Y becomes the mean of both
 * ends' weights, or the sender's if the other end did not expect them. Messages of the first steps (warm-up) carry all
 * differences.
 *
 * If a partner has died before its message left whole, neither w nor Y changes.
 *
 * Only weights are exchanged: moments would need as many copies again. Copies are arenas of the state, `edge0` and so
 * on, in the order in which the schedule uses a rank's edges: checkpoints have them. */
#include <string.h>

#include "base/memory.h"
#include "exchange/codec/packed.h"
#include "exchange/parts/flight.h"
#include "exchange/parts/gossip.h"
#include "exchange/parts/gossip_forms.h"

#define USUAL_GAMMA 0.5f
/* A difference stems from about 32 steps, and the last step's change is a part of it: H = G + (factor - 1)*G/32. */
#define LAST_STEP (1.0f / 32)

/* Form of a message: a word before the packed values. */
typedef enum form {
    PACKED = 0, /* the largest differences */
    WHOLE,      /* all differences */
    ANEW,       /* all weights: the sender has no copy */
    FORMS
} form;

#define HEADER_BYTES sizeof(uint32_t)

enum { PARTNERS = 2 }; /* max of a rank in a step */

/* One end of an edge during a bucket's exchange. */
typedef struct edge_end {
    int peer, edge;
    float gamma;
    form what;     /* of the sent message */
    size_t bytes;  /* of the sent message */
    char *message; /* in message memory */
    char *landing;
    gg_request sent, received;
} edge_end;

/* A bucket's exchange. */
typedef struct exchange {
    int64_t step;    /* of training */
    int ends;        /* of this exchange */
    int mixed;       /* number of mixed ends, in order; the others are pending */
    size_t capacity; /* max bytes of a message */
    edge_end end[PARTNERS];
    gg_flight flight;
} exchange;

typedef struct gossip_edges {
    gg_gossip gossip;
    gg_compression compression;
    gg_compression_counts counts;
    gg_segments packed, whole; /* for form PACKED, and for the others */
    gg_packing packing;
    float *scratch; /* one bucket: the copy that packing changes */
    int edges;      /* max over the ranks */
    int *edge_of;   /* one a rank: the edge to it; -1 means none */
    int first;      /* place of the first copy among the arenas */
    bool *known;    /* one an edge: both ends have a copy */
    float gamma;
    exchange *exchange; /* one a bucket */
    char *messages;     /* the memory of all messages */
} gossip_edges;

/* ---- edges ---- */

/* Finds the edges of a rank, in the order of their first use. In a schedule that never repeats any rank may be a
 * partner. Returns their number; stops counting above GG_MAX_EDGES. */
static int edges_of(gg_schedule *schedule, int rank, int *edge_of) {
    const int p = schedule->size;
    const int64_t period = gg_schedule_period(schedule);
    int count = 0;
    for (int r = 0; r < p; ++r) edge_of[r] = period == 0 && r != rank ? count++ : -1;
    for (int64_t t = 0; t < period && count < p - 1 && count <= GG_MAX_EDGES; ++t) {
        int peer[PARTNERS];
        gg_schedule_at(schedule, t, rank, &peer[0], &peer[1]);
        if (peer[0] < 0 || peer[1] < 0) continue;
        for (int i = 0; i < PARTNERS; ++i)
            if (edge_of[peer[i]] < 0) edge_of[peer[i]] = count++;
    }
    return count;
}

/* Finds the own edges, and the max over the ranks: all ranks have equally many arenas, so that arenas have common
 * names. */
static gg_status find_edges(gossip_edges *g) {
    gg_schedule *schedule = &g->gossip.schedule;
    const int p = schedule->size, own = g->gossip.head.env.transport->rank;
    const bool repeats = gg_schedule_period(schedule) != 0; /* else all ranks have as many */
    GG_TRY(gg_alloc((size_t)p * sizeof(int), "edges", &g->edge_of));
    /* All ranks in one order, so that all fail alike; then once more the own one. */
    for (int i = repeats ? 0 : p; i <= p && g->edges <= GG_MAX_EDGES; ++i) {
        const int count = edges_of(schedule, i < p ? i : own, g->edge_of);
        if (count > g->edges) g->edges = count;
    }
    if (g->edges > GG_MAX_EDGES)
        return gg_fail(
            GG_ERROR_ARGUMENT,
            "compression: a rank of %d has %d%s partners by this topology%s, and each needs a copy of the model; "
            "allowed are %d: rotate False with 'dissemination', 'exponential' or 'cube' has at most two for each "
            "doubling of the ranks, 'ring' two; rotate True with permutations R has at most R times as many",
            p, g->edges, repeats ? " or more" : "", gg_schedule_turns(schedule) ? ", which change" : "", GG_MAX_EDGES);
    return GG_OK;
}

static float *copy_of(const gossip_edges *g, int edge) { return g->gossip.head.env.state->arena[g->first + edge].data; }

static gg_status create_copies(gossip_edges *g) {
    static const char *const name[] = {"edge0",  "edge1",  "edge2",  "edge3",  "edge4",  "edge5",  "edge6",  "edge7",
                                       "edge8",  "edge9",  "edge10", "edge11", "edge12", "edge13", "edge14", "edge15",
                                       "edge16", "edge17", "edge18", "edge19", "edge20", "edge21", "edge22", "edge23",
                                       "edge24", "edge25", "edge26", "edge27", "edge28", "edge29", "edge30", "edge31"};
    _Static_assert(sizeof name / sizeof *name == GG_MAX_EDGES, "every copy has a name");
    gg_state *state = g->gossip.head.env.state;
    g->first = state->arenas;
    for (int i = 0; i < g->edges; ++i) {
        gg_arena *arena = &state->arena[state->arenas];
        *arena = (gg_arena){.name = name[i], .kind = GG_ARENA_COPY};
        GG_TRY(gg_device_alloc(g->gossip.head.env.device, state->count * sizeof(float), "copy of the weights",
                               &arena->data));
        state->arenas++;
    }
    return GG_OK;
}

/* Copies loaded after the weights stay valid. Missing ones are zero. */
static void gossip_edges_loaded(gg_strategy *strategy, int arena) {
    gossip_edges *g = (gossip_edges *)strategy;
    const int edge = arena - g->first;
    if (arena == GG_WEIGHTS) memset(g->known, 0, (size_t)g->edges * sizeof *g->known);
    else if (edge >= 0 && edge < g->edges) g->known[edge] = !gg_strategy_all_zero(strategy, arena);
}

/* ---- messages ---- */

static const gg_bucket *bucket_at(const gossip_edges *g, int bucket) { return &g->gossip.buckets.bucket[bucket]; }

/* The elements of a bucket, which is one chunk. */
static const gg_chunk *run_of(const gossip_edges *g, int bucket) {
    return &g->gossip.buckets.chunk[bucket_at(g, bucket)->first_chunk];
}

static gg_status edges_at_bucket(const gossip_edges *g, int bucket, gg_status status) {
    const gg_bucket *b = bucket_at(g, bucket);
    return gg_strategy_at(&g->gossip.head, b->first_layer, b->last_layer, status);
}

/* The segments of a bucket in a message of this form. */
static const gg_segment *segments_of(const gossip_edges *g, int bucket, form what, int *count) {
    const gg_segments *all = what == PACKED ? &g->packed : &g->whole;
    const gg_bucket *b = bucket_at(g, bucket);
    const int first = all->first_of_layer[b->first_layer];
    *count = all->first_of_layer[b->last_layer + 1] - first;
    return all->segment + first;
}

static gg_packing packing_of(const gossip_edges *g, int bucket, form what) {
    gg_packing packing = g->packing;
    packing.segment = segments_of(g, bucket, what, &packing.segments);
    return packing;
}

/* Packs and sends to one partner. The copy itself does not change before both messages have arrived. */
static gg_status post_end(gossip_edges *g, int bucket, edge_end *end) {
    gg_strategy *head = &g->gossip.head;
    gg_transport *transport = head->env.transport;
    gg_device *device = head->env.device;
    const gg_chunk *run = run_of(g, bucket);
    size_t bytes = 0;
    end->edge = g->edge_of[end->peer];
    end->what = !g->known[end->edge] ? ANEW : head->step < g->compression.warmup ? WHOLE : PACKED;
    const uint32_t word = (uint32_t)end->what;
    const gg_packing packing = packing_of(g, bucket, end->what);
    GG_TRY(gg_receive(transport, end->landing, g->exchange[bucket].capacity, end->peer, GG_TAG_USER + bucket,
                      &end->received));
    if (end->what == ANEW) gg_device_zero(device, GG_QUEUE_COMPUTE, g->scratch, run->count * sizeof *g->scratch);
    else
        gg_device_copy(device, GG_QUEUE_COMPUTE, g->scratch, copy_of(g, end->edge) + run->offset,
                       run->count * sizeof *g->scratch);
    memcpy(end->message, &word, sizeof word);
    GG_TRY(gg_pack_difference(&packing, gg_state_weights(head->env.state), g->scratch - run->offset,
                              end->message + HEADER_BYTES, &bytes));
    end->bytes = HEADER_BYTES + bytes;
    if (packing.segments > 0) gg_compression_count_besides(packing.segment, HEADER_BYTES, packing.counts);
    return gg_send(transport, end->message, end->bytes, end->peer, GG_TAG_USER + bucket, &end->sent);
}

/* Sends a bucket that has been updated. */
static gg_status post_bucket(gossip_edges *g, int bucket) {
    gg_status status = GG_OK;
    const int peer[PARTNERS] = {g->gossip.send_to, g->gossip.receive_from};
    const int ends = peer[0] == peer[1] ? 1 : PARTNERS;
    exchange *x = &g->exchange[bucket];
    gg_compression_counts once = g->counts;
    gg_flight_begin(&x->flight, &g->gossip.head, ends == 1 ? peer[0] : -1);
    for (int i = 0; i < ends; ++i) {
        x->end[i].peer = peer[i];
        x->end[i].gamma = g->gamma / (float)ends;
        GG_TRY_CLEANUP(post_end(g, bucket, &x->end[i]));
        /* Count one message: without compression this step would send one. */
        if (i == 0) once = g->counts;
        else memcpy(g->counts.dense_bytes, once.dense_bytes, sizeof once.dense_bytes);
    }
    x->mixed = 0;
    x->ends = ends;
    x->step = g->gossip.head.step;
cleanup:
    return edges_at_bucket(g, bucket, status);
}

/* Reads the form of an arrived message. */
static gg_status read_form(const gg_request *received, form *out) {
    uint32_t word = FORMS;
    if (received->bytes > HEADER_BYTES) memcpy(&word, received->data, sizeof word);
    if (word >= FORMS)
        return gg_fail(GG_ERROR_COMM, "%zu bytes do not begin as a message between copies of weights", received->bytes);
    *out = (form)word;
    return GG_OK;
}

/* out += factor * the message of this end, and of its partner. */
static gg_status add_sent(const gossip_edges *g, int bucket, const edge_end *end, float factor, float *out) {
    const gg_packing packing = packing_of(g, bucket, end->what);
    return gg_unpack_add(&packing, end->message + HEADER_BYTES, end->bytes - HEADER_BYTES, factor, out);
}

static gg_status add_received(const gossip_edges *g, int bucket, const edge_end *end, form what, float factor,
                              float *out) {
    const gg_packing packing = packing_of(g, bucket, what);
    gg_status status = gg_unpack_add(&packing, (const char *)end->received.data + HEADER_BYTES,
                                     end->received.bytes - HEADER_BYTES, factor, out);
    return gg_error_prefix(status, "message of rank %d: ", end->peer);
}

/* Adds both messages to the copy in the order of ranks, so that both copies have equal bits. */
static gg_status add_to_copy(const gossip_edges *g, int bucket, const edge_end *end, form theirs, float factor) {
    float *copy = copy_of(g, end->edge);
    const bool first = g->gossip.head.env.transport->rank < end->peer;
    if (first) GG_TRY(add_sent(g, bucket, end, factor, copy));
    GG_TRY(add_received(g, bucket, end, theirs, factor, copy));
    if (!first) GG_TRY(add_sent(g, bucket, end, factor, copy));
    return GG_OK;
}

/* Makes the copy if only one end had none: the copy becomes that end's weights, and nothing is mixed. */
static gg_status begin_copy(const gossip_edges *g, int bucket, const edge_end *end, form theirs) {
    float *copy = copy_of(g, end->edge);
    return end->what == ANEW ? add_sent(g, bucket, end, 1.0f, copy) : add_received(g, bucket, end, theirs, 1.0f, copy);
}

/* Mixes with one partner, whose message has arrived. */
static gg_status mix_end(gossip_edges *g, int bucket, edge_end *end) {
    const gg_strategy_env *env = &g->gossip.head.env;
    const gg_chunk *run = run_of(g, bucket);
    float *weights = gg_state_weights(env->state);
    form theirs = PACKED;
    GG_TRY(gg_error_prefix(read_form(&end->received, &theirs), "message of rank %d: ", end->peer));
    if (end->what == ANEW || theirs == ANEW)
        gg_device_zero(env->device, GG_QUEUE_COMPUTE, copy_of(g, end->edge) + run->offset, run->count * sizeof(float));
    if ((end->what == ANEW) != (theirs == ANEW)) {
        GG_TRY(begin_copy(g, bucket, end, theirs));
    } else {
        /* After whole messages the copy is the mean of both ends' weights. */
        const bool whole = end->what != PACKED && theirs != PACKED;
        GG_TRY(add_to_copy(g, bucket, end, theirs, whole ? 0.5f : end->gamma));
        GG_TRY(add_sent(g, bucket, end, -end->gamma, weights));
        GG_TRY(add_received(g, bucket, end, theirs, end->gamma, weights));
    }
    return gg_release(env->transport, &end->received);
}

/* Mixes with the next partner of a bucket, whose message has arrived or is lost. The order is that of posting, so that
 * the bits do not depend on any rank's speed. */
static gg_status mix_next(gossip_edges *g, int bucket) {
    gg_status status = GG_OK;
    exchange *x = &g->exchange[bucket];
    edge_end *end = &x->end[x->mixed];
    const gg_bucket *b = bucket_at(g, bucket);
    if (end->received.state == GG_REQUEST_LOST) {
        GG_TRY_CLEANUP(gg_release(g->gossip.head.env.transport, &end->received));
    } else {
        gg_flight_arrived(&x->flight, end->received.when, end->received.bytes);
        GG_TRY_CLEANUP(mix_end(g, bucket, end));
        gg_receipts_part(&g->gossip.receipts, end->peer, x->step);
    }
    if (++x->mixed == x->ends) gg_flight_end(&x->flight, &g->gossip.head, "bucket", b->first_layer, b->last_layer);
cleanup:
    return edges_at_bucket(g, bucket, status);
}

static gg_status edges_wait(gossip_edges *g, int bucket, gg_request *request) {
    const gg_bucket *b = bucket_at(g, bucket);
    return edges_at_bucket(g, bucket, gg_strategy_wait_layers(&g->gossip.head, b->first_layer, b->last_layer, request));
}

static gg_status complete_bucket(gossip_edges *g, int bucket) {
    exchange *x = &g->exchange[bucket];
    while (x->mixed < x->ends) {
        GG_TRY(edges_wait(g, bucket, &x->end[x->mixed].received));
        GG_TRY(mix_next(g, bucket));
    }
    return GG_OK;
}

/* Waits until partners have read the sent messages. */
static gg_status wait_sent(gossip_edges *g, int bucket) {
    for (int i = 0; i < PARTNERS; ++i) {
        GG_TRY(edges_wait(g, bucket, &g->exchange[bucket].end[i].sent));
        GG_TRY(gg_release(g->gossip.head.env.transport, &g->exchange[bucket].end[i].sent)); /* to a dead rank */
    }
    return GG_OK;
}

/* ---- the table ---- */

static gg_status gossip_edges_begin(gg_strategy *strategy) {
    gg_gossip_begin((gg_gossip *)strategy);
    return GG_OK;
}

static gg_status gossip_edges_need(gg_strategy *strategy, int layer) {
    gossip_edges *g = (gossip_edges *)strategy;
    return complete_bucket(g, g->gossip.buckets.bucket_of_layer[layer]);
}

static gg_status gossip_edges_ready(gg_strategy *strategy, int layer) {
    gossip_edges *g = (gossip_edges *)strategy;
    const int bucket = g->gossip.buckets.bucket_of_layer[layer];
    if (gg_buckets_untouched(&g->gossip.buckets, bucket)) {
        GG_TRY(complete_bucket(g, bucket));
        GG_TRY(wait_sent(g, bucket));
    }
    GG_TRY(gg_strategy_update_layer(strategy, layer));
    if (gg_buckets_layer_ready(&g->gossip.buckets, layer) && gg_gossip_exchanges(&g->gossip))
        GG_TRY(post_bucket(g, bucket));
    return GG_OK;
}

static gg_status gossip_edges_poll(gg_strategy *strategy) {
    gg_status status = GG_OK;
    gossip_edges *g = (gossip_edges *)strategy;
    GG_TRY(gg_progress(strategy->env.transport));
    for (int bucket = 0; bucket < g->gossip.buckets.count; ++bucket) {
        exchange *x = &g->exchange[bucket];
        for (bool arrived = true; arrived && x->mixed < x->ends;) {
            status = gg_test(strategy->env.transport, &x->end[x->mixed].received, &arrived);
            GG_TRY(edges_at_bucket(g, bucket, status));
            if (arrived) GG_TRY(mix_next(g, bucket));
        }
    }
    return status;
}

static gg_status gossip_edges_end(gg_strategy *strategy) {
    gossip_edges *g = (gossip_edges *)strategy;
    if (gg_gossip_exchanges(&g->gossip))
        g->known[g->edge_of[g->gossip.send_to]] = g->known[g->edge_of[g->gossip.receive_from]] = true;
    return GG_OK;
}

static gg_status gossip_edges_settle(gg_strategy *strategy) {
    gossip_edges *g = (gossip_edges *)strategy;
    for (int bucket = 0; bucket < g->gossip.buckets.count; ++bucket) GG_TRY(complete_bucket(g, bucket));
    for (int bucket = 0; bucket < g->gossip.buckets.count; ++bucket) GG_TRY(wait_sent(g, bucket));
    return GG_OK;
}

static void gossip_edges_destroy(gg_strategy *strategy) {
    gossip_edges *g = (gossip_edges *)strategy;
    gg_transport *transport = strategy->env.transport;
    for (int bucket = 0; g->exchange != NULL && bucket < g->gossip.buckets.count; ++bucket)
        for (int i = 0; i < PARTNERS; ++i) {
            edge_end *end = &g->exchange[bucket].end[i];
            gg_cancel_all(transport, &end->sent, 1);
            gg_cancel_all(transport, &end->received, 1);
            gg_free(end->landing);
        }
    gg_message_free(transport, g->messages);
    gg_free(g->exchange);
    gg_pack_room_destroy(g->packing.room);
    gg_device_free(strategy->env.device, g->scratch);
    gg_free(g->known);
    gg_free(g->edge_of);
    gg_segments_destroy(&g->packed);
    gg_segments_destroy(&g->whole);
    gg_state_destroy(&strategy->env);
    gg_gossip_deinit(&g->gossip);
    gg_free(g);
}

static const gg_strategy_table table = {gossip_edges_begin, gossip_edges_need,   gossip_edges_ready,  gossip_edges_poll,
                                        gossip_edges_end,   gossip_edges_settle, gossip_edges_destroy};

/* Makes room for the longest messages of every bucket, and for packing them. */
static gg_status create_messages(gossip_edges *g) {
    const int buckets = g->gossip.buckets.count;
    gg_device *device = g->gossip.head.env.device;
    gg_pack_sizes sizes = {0};
    size_t bytes = 0, elements = 0;
    GG_TRY(gg_calloc((size_t)buckets, sizeof *g->exchange, "exchanges", &g->exchange));
    for (int bucket = 0; bucket < buckets; ++bucket) {
        exchange *x = &g->exchange[bucket];
        for (int what = PACKED; what <= WHOLE; ++what) {
            int n;
            const gg_segment *segment = segments_of(g, bucket, (form)what, &n);
            const size_t capacity = HEADER_BYTES + gg_packed_capacity(segment, n, &g->compression);
            if (capacity > x->capacity) x->capacity = capacity;
            gg_pack_sizes_add(&sizes, device, segment, n);
        }
        if (run_of(g, bucket)->count > elements) elements = run_of(g, bucket)->count;
        x->capacity = gg_aligned(x->capacity);
        bytes += PARTNERS * x->capacity;
        for (int i = 0; i < PARTNERS; ++i)
            GG_TRY(gg_alloc(x->capacity, "landing of packed messages", &x->end[i].landing));
    }
    GG_TRY(gg_message_alloc(g->gossip.head.env.transport, bytes, "packed messages", &g->messages));
    bytes = 0;
    for (int bucket = 0; bucket < buckets; ++bucket)
        for (int i = 0; i < PARTNERS; ++i) {
            g->exchange[bucket].end[i].message = g->messages + bytes;
            bytes += g->exchange[bucket].capacity;
        }
    GG_TRY(gg_pack_room_create(device, &sizes, &g->packing.room));
    return gg_device_alloc(device, elements * sizeof *g->scratch, "copy that packing changes", &g->scratch);
}

gg_status gg_gossip_edges_create(const gg_strategy_options *options, const gg_strategy_env *env, gg_strategy **out) {
    gg_status status = GG_OK;
    gossip_edges *g = NULL;
    gg_strategy_options whole_buckets = *options;
    const gg_compression nothing = {0};
    GG_TRY_CLEANUP(gg_calloc(1, sizeof *g, "strategy", &g));
    g->gossip.head.table = &table;
    g->gossip.head.only_applies_gradients = true;
    g->gossip.head.loaded = gossip_edges_loaded;
    g->gossip.head.compression_counts = &g->counts;
    g->gamma = options->gossip.mix_gamma > 0 ? (float)options->gossip.mix_gamma : USUAL_GAMMA;
    g->compression = options->compression;
    g->compression.mode = GG_COMPRESSION_EXACT; /* one scale a parameter does not converge here */
    for (int family = 0; family < GG_FAMILY_COUNT; ++family)
        g->compression.factor[family] = 1 + (options->compression.factor[family] - 1) * LAST_STEP;
    whole_buckets.chunk_bytes = env->state->count * sizeof(float);
    GG_TRY_CLEANUP(gg_gossip_init(&g->gossip, &whole_buckets, env));
    GG_TRY_CLEANUP(gg_buckets_check_tags(&g->gossip.buckets, GG_TAG_LIMIT - GG_TAG_USER));
    gg_updater_mixes(env->updater, (gg_mixing){.ranks = env->transport->size});
    GG_TRY_CLEANUP(find_edges(g));
    GG_TRY_CLEANUP(gg_calloc((size_t)g->edges + 1, sizeof *g->known, "edges", &g->known));
    GG_TRY_CLEANUP(gg_segments_create(env->layout, &g->compression, &g->packed));
    GG_TRY_CLEANUP(gg_segments_create(env->layout, &nothing, &g->whole));
    g->packing = (gg_packing){.compression = &g->compression, .device = env->device, .counts = &g->counts};
    GG_TRY_CLEANUP(create_messages(g));
    GG_TRY_CLEANUP(gg_state_create(env, 0));
    GG_TRY_CLEANUP(create_copies(g));
cleanup:
    if (status != GG_OK && g != NULL) gossip_edges_destroy(&g->gossip.head), g = NULL;
    *out = g ? &g->gossip.head : NULL;
    return status;
}
