#include "exchange/parts/centre_private.h"

#include <string.h>

#include "base/memory.h"
#include "comm/collective.h"
#include "exchange/parts/common.h"

/* Exchanges of differences after which the centre equals a worker's weights to the precision of float32: each sends 8
 * of 24 bits. */
#define DIFFERENCE_ROUNDS 3

static bool centre_trains(const gg_centre *s) { return s->head.env.transport->rank < s->workers; }

/* ---- the worker ---- */

/* Scales the statistics' change since the last answer, before a chunk is sent to a centre that adds all workers'
 * changes. Each worker's running mean has moved by the whole of its batches. So with p workers the centre would move p
 * times too far. A worker sends its share of the change, and the centre moves by the workers' mean. */
static void share_statistics(gg_centre *s, const gg_chunk *chunk) {
    const gg_strategy_env *env = &s->head.env;
    const size_t end = chunk->offset + chunk->count;
    for (size_t at = chunk->offset, next; at < end; at = next) {
        const gg_group *group = gg_updater_group(env->updater, at);
        next = group->end < end ? group->end : end;
        if (!group->statistic) continue;
        if (next - at > GG_CENTRE_PIECE) next = at + GG_CENTRE_PIECE;
        float *weight = gg_state_weights(env->state) + at;
        gg_scaled_difference(env->device, next - at, 1.0f / (float)s->workers, weight, s->base + at, s->piece);
        gg_add_scaled(env->device, next - at, s->base + at, 1.0f, s->piece, weight);
    }
}

/* Place where a chunk's message is made: with room for float32, which a rank sends to itself. */
static void *message_of(const gg_centre *s, int chunk) {
    return s->message + (s->packs ? s->place[chunk] : s->buckets.chunk[chunk].offset * sizeof(float));
}

static gg_status centre_ask(gg_centre *s, int bucket) {
    gg_status status = GG_OK;
    gg_transport *transport = s->head.env.transport;
    const gg_bucket *b = &s->buckets.bucket[bucket];
    gg_flight_begin(&s->flight[bucket], &s->head, -1);
    s->next[bucket] = b->first_chunk;
    for (int i = b->first_chunk; i < b->end_chunk; ++i) {
        const gg_chunk *c = &s->buckets.chunk[i];
        void *message = message_of(s, i);
        float *weight = gg_state_weights(s->head.env.state) + c->offset;
        size_t bytes = gg_centre_capacity(s, i);
        int server = gg_centre_server_of(s, i);
        if (s->rule->accumulates) share_statistics(s, c);
        GG_TRY_CLEANUP(gg_strategy_wait(&s->head, &s->asked[i])); /* the answer has arrived, so this does not wait */
        if (server != transport->rank && gg_centre_sends_differences(s)) {
            gg_centre_run run = {
                .chunk = i, .count = c->count, .answer = message, .whole = s->head.step < s->compression.warmup};
            GG_TRY_CLEANUP(gg_centre_tell(s, &run, 1.0f, weight, s->base + c->offset));
            bytes = run.answer_bytes;
        } else s->rule->ask(s, c->offset, c->count, message);
        if (server == transport->rank) {
            GG_TRY_CLEANUP(gg_centre_change(s, i, server, message, message, &bytes));
            s->rule->apply(s, c->offset, c->count, message);
            if (s->packs)
                gg_device_copy(s->head.env.device, GG_QUEUE_COMPUTE, s->base + c->offset, weight,
                               c->count * sizeof(float));
        } else {
            GG_TRY_CLEANUP(gg_centre_receive(s, i, s->landing + s->place[i], server, &s->answered[i]));
            GG_TRY_CLEANUP(gg_send(transport, message, bytes, server, GG_TAG_USER + i, &s->asked[i]));
        }
    }
cleanup:
    return gg_centre_at_bucket(s, bucket, status);
}

static gg_status apply_answer(gg_centre *s, int chunk, const gg_request *answer) {
    gg_status status = GG_OK;
    const gg_chunk *c = &s->buckets.chunk[chunk];
    const gg_centre_run run = {.chunk = chunk, .count = c->count};
    if (gg_centre_sends_differences(s)) {
        GG_TRY_CLEANUP(gg_centre_read(s, &run, answer->data, answer->bytes, 1.0f,
                                      gg_state_weights(s->head.env.state) + c->offset));
        GG_TRY_CLEANUP(gg_centre_read(s, &run, answer->data, answer->bytes, 1.0f, s->base + c->offset));
    } else s->rule->apply(s, c->offset, c->count, answer->data);
cleanup:
    return gg_error_prefix(status, "answer of rank %d: ", gg_centre_server_of(s, chunk));
}

/* Applies the answers that have arrived; with `wait`, all outstanding ones. */
static gg_status apply_bucket_answers(gg_centre *s, int bucket, bool wait) {
    gg_status status = GG_OK;
    gg_transport *transport = s->head.env.transport;
    const gg_bucket *b = &s->buckets.bucket[bucket];
    if (s->next[bucket] == b->end_chunk) goto cleanup;
    for (; s->next[bucket] < b->end_chunk; ++s->next[bucket]) {
        gg_request *answer = &s->answered[s->next[bucket]];
        bool done = true;
        GG_TRY_CLEANUP(gg_strategy_reach(&s->head, transport, answer, wait, &done));
        if (!done) goto cleanup;
        if (answer->state == GG_REQUEST_IDLE) continue; /* its server is this rank */
        gg_flight_arrived(&s->flight[bucket], answer->when, answer->bytes);
        GG_TRY_CLEANUP(apply_answer(s, s->next[bucket], answer));
        GG_TRY_CLEANUP(gg_release(transport, answer));
    }
    gg_flight_end(&s->flight[bucket], &s->head, "centre", b->first_layer, b->last_layer);
cleanup:
    return gg_centre_at_bucket(s, bucket, status);
}

/* ---- the strategy ---- */

/* Counts the bases sent to servers, because without compression none would be sent. A chunk's last parameter includes
 * the padding behind it. */
static void count_introduced(gg_centre *s, int first_chunk, int end_chunk) {
    for (int chunk = first_chunk; s->packs && chunk < end_chunk; ++chunk) {
        int count;
        const gg_segment *whole = gg_centre_segments(s, chunk, true, &count);
        size_t rest = s->buckets.chunk[chunk].count;
        for (int i = 0; i < count; ++i) {
            const size_t elements = i + 1 < count ? whole[i].count : rest;
            gg_compression_count_besides(&whole[i], elements * sizeof(float), &s->counts);
            rest -= elements;
        }
    }
}

/* Sends every worker's base to every server: the weights of the beginning or those loaded since. */
static gg_status centre_introduce(gg_centre *s) {
    gg_status status = GG_OK;
    gg_transport *transport = s->head.env.transport;
    gg_device *device = s->head.env.device;
    void *data = s->message; /* nothing is in flight */
    for (int worker = 0; worker < s->workers; ++worker)
        for (int server = gg_centre_first_server(s); server < transport->size; ++server) {
            int first, end;
            size_t begin, count = gg_centre_part_of(s, server, &first, &end, &begin);
            if (worker == server || count == 0) continue;
            const size_t bytes = count * sizeof(float);
            if (worker == transport->rank) {
                GG_TRY_CLEANUP(gg_device_read(device, data, s->base + begin, bytes));
                count_introduced(s, first, end);
            }
            GG_TRY_CLEANUP(gg_transfer(transport, data, bytes, worker, server));
            if (server == transport->rank)
                GG_TRY_CLEANUP(gg_device_write(device, s->known + (size_t)worker * count, data, bytes));
        }
cleanup:
    return gg_error_prefix(status, "the first weights of the workers: ");
}

/* Begins the first step after settling. No worker asks before all ranks have settled and have the newly loaded centre:
 * a server's additions to the former one would be lost. */
static gg_status begin_together(gg_centre *s) {
    gg_status status = GG_OK;
    gg_transport *transport = s->head.env.transport;
    const double from = gg_transport_now(transport);
    double introducing = s->packs ? s->introduces : gg_centre_sends_differences(s);
    gg_transport_set_service(transport, &(gg_service){0});
    if (s->packs) GG_TRY_CLEANUP(gg_allreduce_doubles(transport, &introducing, 1));
    if (introducing > 0) GG_TRY_CLEANUP(centre_introduce(s));
    s->introduces = false;
    GG_TRY_CLEANUP(gg_barrier(transport));
    gg_transport_set_service(transport, &(gg_service){.serve = gg_centre_serve, .context = s});
    gg_strategy_waited(&s->head, from);
cleanup:
    return gg_strategy_at_all(&s->head, status);
}

/* Sets the base after settling: a worker's weights are those of its last answer, unless others have been loaded since.
 * With compression the weights also contain the unsent difference. */
static void find_base(gg_centre *s) {
    const gg_state *state = s->head.env.state;
    if (!s->packs)
        gg_device_copy(s->head.env.device, GG_QUEUE_COMPUTE, s->base, gg_state_weights(state),
                       state->count * sizeof(float));
    else if (!s->base_known)
        gg_add_scaled(s->head.env.device, state->count, gg_state_weights(state), -1.0f, gg_state_residue(state),
                      s->base);
    s->introduces |= !s->base_known;
    s->base_known = true;
}

/* A checkpoint loads the weights first. A checkpoint without a base gives zeros for it. */
static void centre_loaded(gg_strategy *strategy, int arena) {
    gg_centre *s = (gg_centre *)strategy;
    const gg_state *state = strategy->env.state;
    if (arena == GG_WEIGHTS) s->base_known = false;
    else if (state->arena[arena].data == s->base) s->base_known = !gg_strategy_all_zero(strategy, arena);
    s->introduces = true;
}

gg_status gg_centre_begin(gg_strategy *strategy) {
    gg_centre *s = (gg_centre *)strategy;
    if (s->base != NULL && !s->stepped) find_base(s);
    /* On another rank the receives of a centre before this one may still be posted. */
    if (!s->stepped) GG_TRY(begin_together(s));
    gg_buckets_begin(&s->buckets);
    s->stepped = s->unreported = true;
    return GG_OK;
}

gg_status gg_centre_need(gg_strategy *strategy, int layer) {
    gg_centre *s = (gg_centre *)strategy;
    return apply_bucket_answers(s, s->buckets.bucket_of_layer[layer], true);
}

static bool centre_asks(const gg_centre *s) { return (s->head.step + 1) % s->period == 0; }

gg_status gg_centre_ready(gg_strategy *strategy, int layer) {
    gg_centre *s = (gg_centre *)strategy;
    const gg_slice *slice = gg_arena_layout_slice(strategy->env.layout, layer);
    int bucket = s->buckets.bucket_of_layer[layer];
    gg_strategy_update(strategy, slice->offset, slice->count, gg_state_gradients(strategy->env.state) + slice->offset);
    return gg_buckets_layer_ready(&s->buckets, layer) && centre_asks(s) ? centre_ask(s, bucket) : GG_OK;
}

gg_status gg_centre_poll(gg_strategy *strategy) {
    gg_centre *s = (gg_centre *)strategy;
    bool busy = false;
    GG_TRY(gg_progress(strategy->env.transport));
    GG_TRY(gg_centre_serve(s, &busy));
    for (int bucket = 0; bucket < s->buckets.count; ++bucket) GG_TRY(apply_bucket_answers(s, bucket, false));
    return GG_OK;
}

gg_status gg_centre_end(gg_strategy *strategy) {
    gg_centre *s = (gg_centre *)strategy;
    if (centre_asks(s)) s->unreported = false;
    return GG_OK;
}

/* Writes the centre to `out`, equal on all ranks. No message is in flight. */
static gg_status centre_gather(gg_centre *s, float *out) {
    gg_status status = GG_OK;
    if (s->count > 0)
        GG_TRY_CLEANUP(gg_device_read(s->head.env.device, out + s->begin, s->weight, s->count * sizeof(float)));
    for (int i = 0, end; i < s->buckets.chunk_count; i = end) {
        int server = gg_centre_server_of(s, i);
        for (end = i; end < s->buckets.chunk_count && gg_centre_server_of(s, end) == server;) ++end;
        const gg_chunk *first = &s->buckets.chunk[i], *last = &s->buckets.chunk[end - 1];
        GG_TRY_CLEANUP(gg_broadcast(s->head.env.transport, out + first->offset,
                                    (last->offset + last->count - first->offset) * sizeof(float), server));
    }
cleanup:
    return gg_error_prefix(status, "the centre's parts: ");
}

static gg_status centre_receive_all(gg_centre *s) {
    for (int bucket = 0; bucket < s->buckets.count; ++bucket) GG_TRY(apply_bucket_answers(s, bucket, true));
    return GG_OK;
}

/* Fills the residue with the unsent difference of packed parameters; other parameters are always sent whole. */
static void show_residue(gg_centre *s) {
    const gg_state *state = s->head.env.state;
    float *residue = gg_state_residue(state);
    gg_add_scaled(s->head.env.device, state->count, gg_state_weights(state), -1.0f, s->base, residue);
    for (int chunk = 0; chunk < s->buckets.chunk_count; ++chunk) {
        int count;
        const gg_segment *segment = gg_centre_segments(s, chunk, false, &count);
        for (int i = 0; i < count; ++i)
            if (segment[i].bin == 0)
                gg_device_zero(s->head.env.device, GG_QUEUE_COMPUTE,
                               residue + s->buckets.chunk[chunk].offset + segment[i].offset,
                               segment[i].count * sizeof *residue);
    }
}

gg_status gg_centre_settle(gg_strategy *strategy) {
    gg_status status = GG_OK;
    gg_centre *s = (gg_centre *)strategy;
    gg_transport *transport = strategy->env.transport;
    if (!s->stepped) goto cleanup;
    const int differences = gg_centre_sends_differences(s) && !s->packs ? DIFFERENCE_ROUNDS : 1;
    int rounds = s->rule->accumulates && centre_trains(s) ? differences - !s->unreported : 0;
    GG_TRY_CLEANUP(centre_receive_all(s));
    for (; rounds > 0; --rounds) {
        for (int bucket = s->buckets.count - 1; bucket >= 0; --bucket) GG_TRY_CLEANUP(centre_ask(s, bucket));
        GG_TRY_CLEANUP(centre_receive_all(s));
    }
    for (int i = 0; i < s->buckets.chunk_count; ++i) GG_TRY_CLEANUP(gg_strategy_wait(strategy, &s->asked[i]));
    /* From here on this rank sends no requests. In the barrier it serves the others'. */
    double begin = gg_transport_now(transport);
    GG_TRY_CLEANUP(gg_barrier(transport));
    gg_strategy_waited(strategy, begin);
    GG_TRY_CLEANUP(gg_centre_complete_answers(s));
    if (s->workers < transport->size) {
        GG_TRY_CLEANUP(centre_gather(s, (float *)(void *)s->message));
        if (!centre_trains(s))
            gg_device_copy(strategy->env.device, GG_QUEUE_COMPUTE, gg_state_weights(strategy->env.state), s->message,
                           strategy->env.state->count * sizeof(float));
    }
    if (s->packs && centre_trains(s)) show_residue(s);
    s->stepped = s->unreported = false;
cleanup:
    return gg_strategy_at_all(strategy, status);
}

static gg_status centre_read_model(gg_strategy *strategy, float *out) {
    return centre_gather((gg_centre *)strategy, out);
}

static void centre_write_model(gg_strategy *strategy, const float *weights) {
    gg_centre *s = (gg_centre *)strategy;
    if (s->count > 0)
        (void)gg_device_write(strategy->env.device, s->weight, weights + s->begin, s->count * sizeof(float));
}

static const gg_strategy_model model = {centre_read_model, centre_write_model};

/* ---- creation and destruction ---- */

void gg_centre_destroy(gg_strategy *strategy) {
    gg_centre *s = (gg_centre *)strategy;
    gg_transport *transport = strategy->env.transport;
    if (transport->service.context == s) gg_transport_set_service(transport, &(gg_service){0});
    gg_cancel_all(transport, s->asked, s->buckets.chunk_count);
    gg_cancel_all(transport, s->answered, s->buckets.chunk_count);
    gg_cancel_all(transport, s->served, (s->end_chunk - s->first_chunk) * s->workers);
    gg_message_free(transport, s->message);
    gg_state_destroy(&strategy->env);
    gg_device *device = strategy->env.device;
    gg_device_free(device, s->piece);
    gg_device_free_host(device, s->landing);
    if (!s->packs) gg_device_free(device, s->base);
    gg_segments_destroy(&s->segments);
    gg_segments_destroy(&s->whole);
    gg_pack_room_destroy(s->packing.room);
    gg_device_free(device, s->target);
    gg_free(s->place);
    gg_free(s->asked);
    gg_free(s->answered);
    gg_free(s->next);
    gg_free(s->flight);
    gg_device_free(device, s->weight);
    gg_device_free_host(device, s->room);
    gg_device_free(device, s->known);
    gg_free(s->served);
    gg_buckets_destroy(&s->buckets);
    gg_free(s);
}

int gg_centre_workers(const gg_strategy_options *options, int ranks) {
    const bool dedicated = options->centre.dedicated && options->centre.servers > 0 && options->centre.servers < ranks;
    return dedicated ? ranks - options->centre.servers : ranks;
}

gg_status gg_centre_check(const gg_strategy_options *options, int ranks) {
    GG_TRY(gg_strategy_check_sizes(options, ranks));
    int most = options->centre.dedicated ? ranks - 1 : ranks;
    if (options->compression.active && options->compression.selection == GG_SELECTION_CYCLIC)
        return gg_fail(
            GG_ERROR_ARGUMENT,
            "selection: 'cyclic', but around a centre on servers the ranks do not send at one time; allowed is "
            "'local'");
    if (options->centre.dedicated && ranks == 1)
        return gg_fail(GG_ERROR_ARGUMENT, "dedicated: with 1 rank nobody would train; at least 2 ranks are needed");
    if (options->centre.servers < 1 || options->centre.servers > most)
        return gg_fail(GG_ERROR_ARGUMENT, "servers: %d; %d ranks allow 1 to %d%s", options->centre.servers, ranks, most,
                       options->centre.dedicated ? " dedicated ones, so that one trains" : "");
    return GG_OK;
}

static gg_status make_worker(gg_centre *s) {
    size_t count = s->head.env.state->count, chunks = (size_t)s->buckets.chunk_count,
           buckets = (size_t)s->buckets.count;
    const size_t bytes = s->place[chunks], floats = count * sizeof(float); /* to itself a rank sends float32 */
    const size_t most = bytes > floats ? bytes : floats;
    if (s->packs) GG_TRY(gg_message_alloc(s->head.env.transport, most, "messages to the centre", &s->message));
    else GG_TRY(gg_message_alloc_device(s->head.env.transport, most, "messages to the centre", &s->message));
    GG_TRY(gg_device_alloc(s->head.env.device, GG_CENTRE_PIECE * sizeof(float), "a piece", &s->piece));
    GG_TRY(gg_centre_alloc_messages(s, bytes, "landing arena", &s->landing));
    if (s->packs) s->base = s->head.env.state->arena[gg_state_find(s->head.env.state, "base")].data;
    else if (s->rule->accumulates || gg_centre_sends_differences(s))
        GG_TRY(gg_device_alloc(s->head.env.device, count * sizeof(float), "weights of the last answer", &s->base));
    GG_TRY(gg_calloc(chunks, sizeof(gg_request), "send requests", &s->asked));
    GG_TRY(gg_calloc(chunks, sizeof(gg_request), "receive requests", &s->answered));
    GG_TRY(gg_calloc(buckets, sizeof(int), "next chunks", &s->next));
    GG_TRY(gg_calloc(buckets, sizeof *s->flight, "flights", &s->flight));
    for (int bucket = 0; bucket < s->buckets.count; ++bucket) s->next[bucket] = s->buckets.bucket[bucket].end_chunk;
    return GG_OK;
}

gg_status gg_centre_create(const gg_centre_rule *rule, float alpha, const gg_strategy_options *options,
                           const gg_strategy_env *env, gg_strategy **out) {
    gg_status status = GG_OK;
    gg_centre *s = NULL;
    *out = NULL;
    GG_TRY_CLEANUP(gg_calloc(1, sizeof *s, "strategy", &s));
    s->head.table = &rule->table;
    s->head.model = &model;
    s->head.env = *env;
    s->rule = rule;
    s->alpha = alpha;
    s->codec = gg_codec_of(options->wire);
    s->period = options->centre.period;
    s->servers = options->centre.servers;
    s->workers = gg_centre_workers(options, env->transport->size);
    /* Chunks are small enough that each server owns a part, if the model is large enough. */
    size_t servers = (size_t)s->servers, lanes = env->state->count / GG_LANES;
    size_t part = (lanes + servers - 1) / servers * GG_LANES * sizeof(float);
    const unsigned residue = gg_residue_wanted(options, env);
    s->packs = residue != 0;
    if (s->packs) { /* bins and scales do not cross messages */
        s->compression = options->compression;
        GG_TRY_CLEANUP(gg_buckets_create(env->layout, part < options->bucket_bytes ? part : options->bucket_bytes,
                                         SIZE_MAX, &s->buckets));
        GG_TRY_CLEANUP(gg_centre_make_packing(s));
        s->head.loaded = centre_loaded;
    } else {
        GG_TRY_CLEANUP(gg_buckets_create(env->layout, options->bucket_bytes,
                                         part < options->chunk_bytes ? part : options->chunk_bytes, &s->buckets));
    }
    s->head.buckets = &s->buckets;
    GG_TRY_CLEANUP(gg_centre_place_messages(s));
    GG_TRY_CLEANUP(gg_buckets_check_tags(&s->buckets, GG_TAG_LIMIT - GG_TAG_USER));
    GG_TRY_CLEANUP(gg_state_create(env, residue | (s->packs ? GG_WITH_BASE : 0)));
    GG_TRY_CLEANUP(make_worker(s));
    GG_TRY_CLEANUP(gg_centre_make_server(s));
    *out = &s->head;
cleanup:
    if (status != GG_OK && s != NULL) gg_centre_destroy(&s->head);
    return status;
}
