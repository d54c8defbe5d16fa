#include "strategy/centre.h"

#include <string.h>

#include "base/memory.h"
#include "comm/collective.h"
#include "strategy/common.h"

/* After so many exchanges of differences the centre equals a worker's weights to the precision of float32: each sends 8
 * of 24 bits. */
#define DIFFERENCE_ROUNDS 3
/* The time that the virtual clock charges a server: it reads the message and the centre and writes the centre and the
 * answer, at the bandwidth of a modest core. */
#define MODEL_BYTES_PER_SECOND 10e9
#define MODEL_BYTES_PER_ELEMENT 16

static bool centre_trains(const gg_centre *s) { return s->head.env.transport->rank < s->workers; }
static int first_server(const gg_centre *s) { return s->head.env.transport->size - s->servers; }

/* The server that owns the chunk's middle, if every server owns an equal part. */
static int server_of(const gg_centre *s, int chunk) {
    const gg_chunk *c = &s->buckets.chunk[chunk];
    return first_server(s) + (int)((c->offset + c->count / 2) * (size_t)s->servers / s->head.env.state->count);
}

/* The elements that a server owns: chunks [*first, *end), from element *begin on. Returns how many. */
static size_t centre_part_of(const gg_centre *s, int server, int *first, int *end, size_t *begin) {
    *begin = 0;
    for (*first = 0; *first < s->buckets.chunk_count && server_of(s, *first) < server;) ++*first;
    for (*end = *first; *end < s->buckets.chunk_count && server_of(s, *end) == server;) ++*end;
    if (*end == *first) return 0;
    const gg_chunk *last = &s->buckets.chunk[*end - 1];
    *begin = s->buckets.chunk[*first].offset;
    return last->offset + last->count - *begin;
}

static gg_status centre_at_bucket(const gg_centre *s, int bucket, gg_status status) {
    const gg_bucket *b = &s->buckets.bucket[bucket];
    return gg_strategy_at(&s->head, b->first_layer, b->last_layer, status);
}

void gg_add_scaled(gg_device *device, size_t n, const float *a, float scale, const float *b, float *out) {
    const float *const source[2] = {a, b};
    const float factor[2] = {1.0f, scale};
    device->table->weighted_sum(device, n, 2, source, factor, out);
}

void gg_scaled_difference(gg_device *device, size_t n, float scale, const float *a, const float *b, float *out) {
    const float *const difference = out;
    gg_add_scaled(device, n, a, -1.0f, b, out);
    device->table->weighted_sum(device, n, 1, &difference, &scale, out);
}

void gg_centre_difference(const gg_centre *s, size_t n, float scale, const float *to, float *base, void *out) {
    gg_device *device = s->head.env.device;
    _Alignas(64) float piece[GG_CENTRE_PIECE];
    for (size_t at = 0; at < n; at += GG_CENTRE_PIECE) {
        size_t m = n - at < GG_CENTRE_PIECE ? n - at : GG_CENTRE_PIECE;
        gg_scaled_difference(device, m, scale, to + at, base + at, piece);
        s->codec->encode(device, m, piece, gg_codec_at(s->codec, out, at));
        s->codec->add(device, m, gg_codec_at(s->codec, out, at), base + at);
    }
}

/* Whether messages are differences to a base: rounding errors then are part of the next ones. */
static bool sends_differences(const gg_centre *s) { return !s->codec->exact; }

/* Of a chunk, as it travels. */
static size_t centre_bytes_of(const gg_centre *s, int chunk) { return s->buckets.chunk[chunk].count * s->codec->size; }

/* ---- the server ---- */

/* worker: the rank that asks. If it is this rank, nothing travels and nothing is rounded. */
static gg_status centre_change(gg_centre *s, int chunk, int worker, const void *message, void *answer) {
    const gg_chunk *c = &s->buckets.chunk[chunk];
    const bool difference = sends_differences(s) && worker != s->head.env.transport->rank;
    float *weight = s->weight + (c->offset - s->begin);
    float *known = difference ? s->known + (size_t)worker * s->count + (c->offset - s->begin) : NULL;
    for (size_t at = 0; at < c->count; at += GG_CENTRE_PIECE) {
        size_t n = c->count - at < GG_CENTRE_PIECE ? c->count - at : GG_CENTRE_PIECE;
        if (difference)
            s->rule->answer_difference(s, n, weight + at, known + at, gg_codec_at(s->codec, message, at),
                                       gg_codec_at(s->codec, answer, at));
        else s->rule->answer(s, n, weight + at, (const float *)message + at, (float *)answer + at);
    }
    return gg_transport_compute(s->head.env.transport,
                                (double)c->count * MODEL_BYTES_PER_ELEMENT / MODEL_BYTES_PER_SECOND);
}

static void *room_of(const gg_centre *s, int chunk, int worker) {
    return gg_codec_at(s->codec, s->room, (size_t)worker * s->count + (s->buckets.chunk[chunk].offset - s->begin));
}

static gg_request *served_of(const gg_centre *s, int chunk) {
    return s->served + (size_t)(chunk - s->first_chunk) * (size_t)s->workers;
}

/* The worker whose message arrived first; -1: none. */
static int centre_earliest(const gg_centre *s, const gg_request *served) {
    int found = -1;
    for (int worker = 0; worker < s->workers; ++worker)
        if (served[worker].state == GG_REQUEST_ARRIVED && (found < 0 || served[worker].when < served[found].when))
            found = worker;
    return found;
}

static gg_status serve_chunk(gg_centre *s, int chunk, bool *busy) {
    gg_status status = GG_OK;
    gg_transport *transport = s->head.env.transport;
    gg_request *served = served_of(s, chunk);
    size_t bytes = centre_bytes_of(s, chunk);
    int tag = GG_TAG_USER + chunk;
    for (int worker = 0; worker < s->workers; ++worker) {
        bool done = false;
        if (worker == transport->rank) continue;
        GG_TRY(gg_test(transport, &served[worker], &done));
        if (served[worker].state != GG_REQUEST_IDLE) continue;
        GG_TRY(gg_receive_exact(transport, room_of(s, chunk, worker), bytes, worker, tag, &served[worker]));
        *busy = true;
    }
    for (int worker; (worker = centre_earliest(s, served)) >= 0; *busy = true) {
        const void *message = served[worker].data;
        void *answer = room_of(s, chunk, worker);
        bool landed = message == answer; /* the answer overwrites the message in its arena */
        if (landed) GG_TRY(gg_release(transport, &served[worker]));
        GG_TRY(centre_change(s, chunk, worker, message, answer));
        if (!landed) GG_TRY(gg_release(transport, &served[worker]));
        GG_TRY(gg_send(transport, answer, bytes, worker, tag, &served[worker]));
    }
cleanup:
    return status;
}

static gg_status centre_serve(void *context, bool *busy) {
    gg_status status = GG_OK;
    gg_centre *s = context;
    int chunk = s->first_chunk;
    for (; chunk < s->end_chunk; ++chunk) GG_TRY(serve_chunk(s, chunk, busy));
cleanup:
    return gg_error_prefix(status, "server of the centre, part %d of %d: ", chunk + 1, s->buckets.chunk_count);
}

/* ---- the worker ---- */

/* Statistics of a chunk, before their change since the last answer is sent to a centre that adds all workers' changes:
 * each worker's running mean has moved by the whole of what the batches show, so with p workers the centre would move p
 * times too far. A worker sends its share of the change, and the centre moves by the workers' mean. */
static void share_statistics(gg_centre *s, const gg_chunk *chunk) {
    const gg_strategy_env *env = &s->head.env;
    const size_t end = chunk->offset + chunk->count;
    _Alignas(64) float change[GG_CENTRE_PIECE];
    for (size_t at = chunk->offset, next; at < end; at = next) {
        const gg_group *group = gg_updater_group(env->updater, at);
        next = group->end < end ? group->end : end;
        if (!group->statistic) continue;
        if (next - at > GG_CENTRE_PIECE) next = at + GG_CENTRE_PIECE;
        float *weight = gg_state_weights(env->state) + at;
        gg_scaled_difference(env->device, next - at, 1.0f / (float)s->workers, weight, s->base + at, change);
        gg_add_scaled(env->device, next - at, s->base + at, 1.0f, change, weight);
    }
}

static gg_status centre_ask(gg_centre *s, int bucket) {
    gg_status status = GG_OK;
    gg_transport *transport = s->head.env.transport;
    const gg_bucket *b = &s->buckets.bucket[bucket];
    gg_flight_begin(&s->flight[bucket], &s->head, -1);
    s->next[bucket] = b->first_chunk;
    for (int i = b->first_chunk; i < b->end_chunk; ++i) {
        const gg_chunk *c = &s->buckets.chunk[i];
        float *message = s->message + c->offset;
        int server = server_of(s, i);
        if (s->rule->accumulates) share_statistics(s, c);
        GG_TRY(gg_strategy_wait(&s->head, &s->asked[i])); /* the answer has arrived, so this does not wait */
        if (server == transport->rank || !sends_differences(s)) s->rule->ask(s, c->offset, c->count, message);
        else
            gg_centre_difference(s, c->count, 1.0f, gg_state_weights(s->head.env.state) + c->offset,
                                 s->base + c->offset, message);
        if (server == transport->rank) {
            GG_TRY(centre_change(s, i, server, message, message));
            s->rule->apply(s, c->offset, c->count, message);
        } else {
            GG_TRY(gg_receive_exact(transport, gg_codec_at(s->codec, s->landing, c->offset), centre_bytes_of(s, i),
                                    server, GG_TAG_USER + i, &s->answered[i]));
            GG_TRY(gg_send(transport, message, centre_bytes_of(s, i), server, GG_TAG_USER + i, &s->asked[i]));
        }
    }
cleanup:
    return centre_at_bucket(s, bucket, status);
}

static void apply_answer(gg_centre *s, const gg_chunk *c, const void *answer) {
    gg_device *device = s->head.env.device;
    if (sends_differences(s)) {
        s->codec->add(device, c->count, answer, gg_state_weights(s->head.env.state) + c->offset);
        s->codec->add(device, c->count, answer, s->base + c->offset);
    } else {
        s->rule->apply(s, c->offset, c->count, answer);
    }
}

/* Applies the answers that have arrived; with `wait`, all outstanding ones. */
static gg_status apply_bucket_answers(gg_centre *s, int bucket, bool wait) {
    gg_status status = GG_OK;
    gg_transport *transport = s->head.env.transport;
    const gg_bucket *b = &s->buckets.bucket[bucket];
    if (s->next[bucket] == b->end_chunk) goto cleanup;
    for (; s->next[bucket] < b->end_chunk; ++s->next[bucket]) {
        const gg_chunk *c = &s->buckets.chunk[s->next[bucket]];
        gg_request *answer = &s->answered[s->next[bucket]];
        bool done = true;
        if (wait) GG_TRY(gg_strategy_wait(&s->head, answer));
        else GG_TRY(gg_test(transport, answer, &done));
        if (!done) goto cleanup;
        if (answer->state == GG_REQUEST_IDLE) continue; /* its server is this rank */
        gg_flight_arrived(&s->flight[bucket], answer->when, answer->bytes);
        apply_answer(s, c, answer->data);
        GG_TRY(gg_release(transport, answer));
    }
    gg_flight_end(&s->flight[bucket], &s->head, "centre", b->first_layer, b->last_layer);
cleanup:
    return centre_at_bucket(s, bucket, status);
}

/* ---- the strategy ---- */

/* Every worker sends every server its initial weights. */
static gg_status centre_introduce(gg_centre *s) {
    gg_status status = GG_OK;
    gg_transport *transport = s->head.env.transport;
    for (int worker = 0; worker < s->workers; ++worker)
        for (int server = first_server(s); server < transport->size; ++server) {
            int first, end;
            size_t begin, count = centre_part_of(s, server, &first, &end, &begin);
            float *data = gg_state_weights(s->head.env.state) + begin;
            if (worker == server || count == 0) continue;
            if (server == transport->rank) data = s->known + (size_t)worker * count;
            GG_TRY(gg_transfer(transport, data, count * sizeof(float), worker, server));
        }
cleanup:
    return gg_error_prefix(status, "the first weights of the workers: ");
}

/* The first step after settling: no worker asks before all ranks have settled. */
static gg_status begin_together(gg_centre *s) {
    gg_status status = GG_OK;
    gg_transport *transport = s->head.env.transport;
    const double from = gg_transport_now(transport);
    transport->service = (gg_service){0};
    if (sends_differences(s)) GG_TRY(centre_introduce(s));
    GG_TRY(gg_barrier(transport));
    transport->service = (gg_service){.serve = centre_serve, .context = s};
    gg_strategy_waited(&s->head, from);
cleanup:
    return gg_strategy_at_all(&s->head, status);
}

gg_status gg_centre_begin(gg_strategy *strategy) {
    gg_status status = GG_OK;
    gg_centre *s = (gg_centre *)strategy;
    const gg_state *state = strategy->env.state;
    /* On another rank the receives of a centre before this one may still be posted. */
    if (strategy->env.transport->service.serve == NULL || (sends_differences(s) && !s->stepped))
        GG_TRY(begin_together(s));
    gg_buckets_begin(&s->buckets);
    /* After settling a worker's weights are those of its last answer, unless others have been loaded since. */
    if (s->base != NULL && !s->stepped) memcpy(s->base, gg_state_weights(state), state->count * sizeof(float));
    s->stepped = s->unreported = true;
cleanup:
    return status;
}

gg_status gg_centre_need(gg_strategy *strategy, int layer) {
    gg_centre *s = (gg_centre *)strategy;
    return apply_bucket_answers(s, s->buckets.bucket_of_layer[layer], true);
}

static bool centre_asks(const gg_centre *s) { return (s->head.step + 1) % s->period == 0; }

gg_status gg_centre_ready(gg_strategy *strategy, int layer) {
    gg_centre *s = (gg_centre *)strategy;
    const gg_slice *slice = gg_graph_layer(strategy->env.graph, layer);
    int bucket = s->buckets.bucket_of_layer[layer];
    gg_strategy_update(strategy, slice->offset, slice->count, gg_state_gradients(strategy->env.state) + slice->offset);
    return gg_buckets_layer_ready(&s->buckets, layer) && centre_asks(s) ? centre_ask(s, bucket) : GG_OK;
}

gg_status gg_centre_poll(gg_strategy *strategy) {
    gg_status status = GG_OK;
    gg_centre *s = (gg_centre *)strategy;
    bool busy = false;
    GG_TRY(gg_progress(strategy->env.transport));
    GG_TRY(centre_serve(s, &busy));
    for (int bucket = 0; bucket < s->buckets.count; ++bucket) GG_TRY(apply_bucket_answers(s, bucket, false));
cleanup:
    return status;
}

gg_status gg_centre_end(gg_strategy *strategy) {
    gg_centre *s = (gg_centre *)strategy;
    if (centre_asks(s)) s->unreported = false;
    return GG_OK;
}

/* Writes the centre to `out`, the same on all ranks. No message may be in flight. */
static gg_status centre_gather(gg_centre *s, float *out) {
    gg_status status = GG_OK;
    if (s->count > 0) memcpy(out + s->begin, s->weight, s->count * sizeof(float));
    for (int i = 0, end; i < s->buckets.chunk_count; i = end) {
        int server = server_of(s, i);
        for (end = i; end < s->buckets.chunk_count && server_of(s, end) == server;) ++end;
        const gg_chunk *first = &s->buckets.chunk[i], *last = &s->buckets.chunk[end - 1];
        GG_TRY(gg_broadcast(s->head.env.transport, out + first->offset,
                            (last->offset + last->count - first->offset) * sizeof(float), server));
    }
cleanup:
    return gg_error_prefix(status, "the centre's parts: ");
}

static gg_status centre_receive_all(gg_centre *s) {
    gg_status status = GG_OK;
    for (int bucket = 0; bucket < s->buckets.count; ++bucket) GG_TRY(apply_bucket_answers(s, bucket, true));
cleanup:
    return status;
}

gg_status gg_centre_settle(gg_strategy *strategy) {
    gg_status status = GG_OK;
    gg_centre *s = (gg_centre *)strategy;
    gg_transport *transport = strategy->env.transport;
    if (!s->stepped) goto cleanup;
    int rounds =
        s->rule->accumulates && centre_trains(s) ? (sends_differences(s) ? DIFFERENCE_ROUNDS : 1) - !s->unreported : 0;
    GG_TRY(centre_receive_all(s));
    for (; rounds > 0; --rounds) {
        for (int bucket = s->buckets.count - 1; bucket >= 0; --bucket) GG_TRY(centre_ask(s, bucket));
        GG_TRY(centre_receive_all(s));
    }
    for (int i = 0; i < s->buckets.chunk_count; ++i) GG_TRY(gg_strategy_wait(strategy, &s->asked[i]));
    /* From here on this rank sends no requests. While it waits in the barrier it serves the others'. */
    double begin = gg_transport_now(transport);
    GG_TRY(gg_barrier(transport));
    gg_strategy_waited(strategy, begin);
    if (s->workers < transport->size) {
        GG_TRY(centre_gather(s, s->message));
        if (!centre_trains(s))
            memcpy(gg_state_weights(strategy->env.state), s->message, strategy->env.state->count * sizeof(float));
    }
    s->stepped = s->unreported = false;
cleanup:
    return gg_strategy_at_all(strategy, status);
}

static gg_status centre_read_model(gg_strategy *strategy, float *out) {
    return centre_gather((gg_centre *)strategy, out);
}

static void centre_write_model(gg_strategy *strategy, const float *weights) {
    gg_centre *s = (gg_centre *)strategy;
    if (s->count > 0) memcpy(s->weight, weights + s->begin, s->count * sizeof(float));
}

static const gg_strategy_model model = {centre_read_model, centre_write_model};

/* ---- creation and destruction ---- */

void gg_centre_destroy(gg_strategy *strategy) {
    gg_centre *s = (gg_centre *)strategy;
    gg_transport *transport = strategy->env.transport;
    if (transport->service.context == s) transport->service = (gg_service){0};
    gg_cancel_all(transport, s->asked, s->buckets.chunk_count);
    gg_cancel_all(transport, s->answered, s->buckets.chunk_count);
    gg_cancel_all(transport, s->served, (s->end_chunk - s->first_chunk) * s->workers);
    gg_message_free(transport, s->message);
    gg_state_destroy(&strategy->env);
    gg_free(s->landing);
    gg_free(s->base);
    gg_free(s->asked);
    gg_free(s->answered);
    gg_free(s->next);
    gg_free(s->flight);
    gg_free(s->weight);
    gg_free(s->room);
    gg_free(s->known);
    gg_free(s->served);
    gg_buckets_destroy(&s->buckets);
    gg_free(s);
}

int gg_centre_workers(const gg_strategy_options *options, int ranks) {
    const bool dedicated = options->dedicated && options->servers > 0 && options->servers < ranks;
    return dedicated ? ranks - options->servers : ranks;
}

gg_status gg_centre_check(const gg_strategy_options *options, int ranks) {
    gg_status status = GG_OK;
    GG_TRY(gg_strategy_check_sizes(options));
    int most = options->dedicated ? ranks - 1 : ranks;
    if (options->period < 1) GG_FAIL(GG_ERROR_ARGUMENT, "period: %lld; must be at least 1", (long long)options->period);
    if (options->dedicated && ranks == 1)
        GG_FAIL(GG_ERROR_ARGUMENT, "dedicated: with 1 rank nobody would train; at least 2 ranks are needed");
    if (options->servers < 1 || options->servers > most)
        GG_FAIL(GG_ERROR_ARGUMENT, "servers: %d; %d ranks allow 1 to %d%s", options->servers, ranks, most,
                options->dedicated ? " dedicated ones, so that one trains" : "");
cleanup:
    return status;
}

static gg_status make_worker(gg_centre *s) {
    gg_status status = GG_OK;
    size_t count = s->head.env.state->count, chunks = (size_t)s->buckets.chunk_count,
           buckets = (size_t)s->buckets.count;
    GG_TRY(gg_message_alloc(s->head.env.transport, count * sizeof(float), "messages to the centre", &s->message));
    GG_TRY(gg_calloc(count, s->codec->size, "landing arena", &s->landing));
    if (s->rule->accumulates || sends_differences(s))
        GG_TRY(gg_calloc(count, sizeof(float), "weights of the last answer", &s->base));
    GG_TRY(gg_calloc(chunks, sizeof(gg_request), "send requests", &s->asked));
    GG_TRY(gg_calloc(chunks, sizeof(gg_request), "receive requests", &s->answered));
    GG_TRY(gg_calloc(buckets, sizeof(int), "next chunks", &s->next));
    GG_TRY(gg_calloc(buckets, sizeof *s->flight, "flights", &s->flight));
    for (int bucket = 0; bucket < s->buckets.count; ++bucket) s->next[bucket] = s->buckets.bucket[bucket].end_chunk;
cleanup:
    return status;
}

static gg_status make_server(gg_centre *s) {
    gg_status status = GG_OK;
    s->count = centre_part_of(s, s->head.env.transport->rank, &s->first_chunk, &s->end_chunk, &s->begin);
    if (s->count == 0) goto cleanup;
    GG_TRY(gg_calloc(s->count, sizeof(float), "centre", &s->weight));
    GG_TRY(gg_calloc((size_t)s->workers * s->count, s->codec->size, "answers of the centre", &s->room));
    if (sends_differences(s))
        GG_TRY(gg_calloc((size_t)s->workers * s->count, sizeof(float), "copies of the workers' bases", &s->known));
    GG_TRY(gg_calloc((size_t)s->workers * (size_t)(s->end_chunk - s->first_chunk), sizeof(gg_request),
                     "requests of a server", &s->served));
cleanup:
    return status;
}

gg_status gg_centre_create(const gg_centre_rule *rule, float alpha, const gg_strategy_options *options,
                           const gg_strategy_env *env, gg_strategy **out) {
    gg_status status = GG_OK;
    gg_centre *s = NULL;
    *out = NULL;
    GG_TRY(gg_calloc(1, sizeof *s, "strategy", &s));
    s->head.table = &rule->table;
    s->head.model = &model;
    s->head.env = *env;
    s->rule = rule;
    s->alpha = alpha;
    s->codec = gg_codec_of(options->wire);
    s->period = options->period;
    s->servers = options->servers;
    s->workers = gg_centre_workers(options, env->transport->size);
    /* Chunks are small enough that each server owns a part, if the model is large enough. */
    size_t servers = (size_t)s->servers, lanes = env->state->count / GG_LANES;
    size_t part = (lanes + servers - 1) / servers * GG_LANES * sizeof(float);
    GG_TRY(gg_buckets_create(env->graph, options->bucket_bytes,
                             part < options->chunk_bytes ? part : options->chunk_bytes, &s->buckets));
    GG_TRY(gg_buckets_check_tags(&s->buckets, GG_TAG_LIMIT - GG_TAG_USER));
    GG_TRY(gg_state_create(env, 0));
    GG_TRY(make_worker(s));
    GG_TRY(make_server(s));
    *out = &s->head;
cleanup:
    if (status != GG_OK && s != NULL) gg_centre_destroy(&s->head);
    return status;
}
