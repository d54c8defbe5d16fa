/* OverlappedAveraging: synchronous SGD in which every rank updates its own slices of the weights, and stores the
 * optimiser's state of those slices only (Lee, Agrawal, Balaprakash, Choudhary, Liao 2018).
 *
 * 1. Backward: when the gradients of a bucket are final, every rank sends slice i of each chunk to rank i.
 * 2. Owner: when all ranks' parts of its slice have arrived, it adds them in the order of ranks, updates the slice and
 *    sends it to all.
 * 3. Next forward: waits for the weights of a bucket when it needs one of its layers.
 *
 * For linear layers ranks may exchange inputs and errors instead of the weight's gradient, if that is cheaper
 * (fc_exchange.h):
 *
 * 1. Forward: every rank sends the layer's input to all.
 * 2. Backward: it does not compute the weight's gradient, and sends each rank the errors of the outputs in its slice.
 * 3. Owner: computes its slice of every rank's gradient itself, and continues as for other layers.
 *
 * Sums and updates are those of AllReduce, element by element, so the bits are equal, with and without overlap. Not in
 * the paper: chunks; small layers joined into buckets; slices of uneven size for any number of ranks; linear layers cut
 * by outputs, because a slice of the weight (out, in) is then a run of rows.
 *
 * Who may write:
 *
 * - Peers read gradients in place, and have read them before they send weights. So the next backward pass may write a
 *   bucket that has all its weights.
 * - Peers read updated weights from a snapshot. The update writes it beside the weights, and not again before all have
 *   read it.
 * - Copies of inputs and errors are treated like the snapshot.
 * - Weights are private: they arrive by copy, from `ready` on, when the step uses them no more.
 *
 * If updates need norms of all gradients, slices are updated at the end of the step. Every rank has then added its own
 * slices, and the ranks have added the squares of them: a sum in double of AllReduce's numbers, in another order.
 *
 * With an inexact codec gradients are rounded before they travel, and so is their sum, as in AllReduce. Weights are
 * sent as float32: all ranks train on equal ones, and no small update is lost. Inputs and errors are sent as float32
 * too, and the owner rounds each rank's gradient before it adds them. */
#include "base/memory.h"
#include "comm/allreduce.h"
#include "comm/collective.h"
#include "exchange/parts/fc_exchange.h"
#include "exchange/parts/flight.h"
#include "exchange/parts/stream.h"
#include "exchange/types.h"

/* State of a chunk: REDUCING: its gradients are in flight. ADDED: its own slice's gradients are added and wait for the
 * norms of all gradients. UPDATED: its own slice is updated but not sent yet. GATHERING: its weights are in flight. */
typedef enum stage { IDLE = 0, REDUCING, ADDED, UPDATED, GATHERING } stage;

typedef struct chunk_state {
    int bucket;
    stage stage;
} chunk_state;

/* For a bucket's gradients, or its weights. Chunks are sent, arrive and complete in any order. */
typedef struct passage {
    gg_flight flight;
    int left; /* incomplete chunks */
} passage;

typedef struct bucket_state {
    int64_t polls; /* how many there had been when its gradients were sent */
    passage gradients, weights;
} bucket_state;

typedef struct overlapped_averaging {
    gg_strategy head;
    gg_buckets buckets;
    gg_partition partition;
    gg_fc_exchange fc;
    bool overlap;
    float *snapshot;           /* message memory: the own slices after the update; NULL means one rank */
    const gg_codec *codec;     /* of gradients */
    void *memory;              /* message memory: the gradients on the wire; NULL means sent in place */
    gg_allreduce **sum;        /* one a chunk */
    gg_allreduce_slice *slice; /* [chunk][rank]: the parts, from the chunk's first element */
    char *computed;            /* parts that are computed here, one a rank; NULL means none */
    float *unrounded;          /* a part before it is rounded; NULL means that parts are not rounded */
    const void **source;       /* one a rank */
    int64_t polls;
    chunk_state *chunk;
    bucket_state *bucket;
} overlapped_averaging;

static gg_status at_chunk(const overlapped_averaging *s, int chunk, gg_status status) {
    const gg_bucket *b = &s->buckets.bucket[s->chunk[chunk].bucket];
    int layer = s->partition.layer[chunk];
    return gg_strategy_at(&s->head, layer >= 0 ? layer : b->first_layer, layer >= 0 ? layer : b->last_layer, status);
}

/* Address of element `at` of the gradients in the sent memory. */
static void *overlapped_gradient_at(const overlapped_averaging *s, size_t at) {
    return gg_codec_at(s->codec, s->memory != NULL ? s->memory : gg_state_gradients(s->head.env.state), at);
}

/* The layer whose weight contains the chunk, if it is partitioned in this step; else NULL. */
static gg_fc *fc_of_chunk(const overlapped_averaging *s, int chunk) {
    return gg_fc_partitioned(&s->fc, s->partition.layer[chunk]);
}

/* Sends the parts of a chunk's gradient to those who add them. */
static gg_status start_chunk(overlapped_averaging *s, int chunk) {
    float *gradient = gg_state_gradients(s->head.env.state) + s->buckets.chunk[chunk].offset;
    const bool computed = fc_of_chunk(s, chunk) != NULL; /* there is no gradient to send */
    s->chunk[chunk].stage = REDUCING;
    return at_chunk(s, chunk,
                    computed ? gg_allreduce_start_without_parts(s->sum[chunk], gradient)
                             : gg_allreduce_start(s->sum[chunk], gradient, s->head.share));
}

static void overlapped_depart(const overlapped_averaging *s, passage *one) {
    if (one->flight.begin == 0) gg_flight_begin(&one->flight, &s->head, -1);
}

/* Sends chunks with one owner in the order of the owners, from the next rank on, so that not all send to one. */
static gg_status overlapped_start(overlapped_averaging *s, int bucket) {
    const gg_bucket *b = &s->buckets.bucket[bucket];
    int p = s->head.env.transport->size, rank = s->head.env.transport->rank;
    s->bucket[bucket] = (bucket_state){.polls = s->polls,
                                       .gradients = {.left = b->end_chunk - b->first_chunk},
                                       .weights = {.left = b->end_chunk - b->first_chunk}};
    overlapped_depart(s, &s->bucket[bucket].gradients);
    for (int turn = 0; turn <= p; ++turn)
        for (int i = b->first_chunk; i < b->end_chunk; ++i)
            if (s->partition.owner[i] == (turn == 0 ? -1 : (rank + turn) % p)) GG_TRY(start_chunk(s, i));
    return GG_OK;
}

/* Updates an own slice, and writes it to the snapshot too. The arenas of moments hold own slices only. */
static void overlapped_update(overlapped_averaging *s, int chunk) {
    const gg_strategy_env *env = &s->head.env;
    const gg_part *own = gg_partition_part(&s->partition, env->transport->rank, chunk);
    s->chunk[chunk].stage = UPDATED;
    gg_updater_apply(env->updater, env->device, env->state,
                     &(gg_update){.step = s->head.step,
                                  .offset = own->offset,
                                  .count = own->count,
                                  .owned_offset = own->owned_offset,
                                  .gradient = gg_state_gradients(env->state) + own->offset,
                                  .wire = GG_FLOAT32,
                                  .copy = {s->snapshot != NULL ? s->snapshot + own->owned_offset : NULL}});
}

/* Makes the updates that need the norms of all gradients, after all chunks have been added. */
static gg_status update_measured(overlapped_averaging *s) {
    gg_status status = GG_OK;
    const gg_strategy_env *env = &s->head.env;
    gg_updater *updater = env->updater;
    gg_updater_measure_begin(updater);
    for (int i = 0; i < s->buckets.chunk_count; ++i) {
        const gg_part *own = gg_partition_part(&s->partition, env->transport->rank, i);
        gg_updater_measure(updater, env->device, own->offset, own->count, gg_state_gradients(env->state) + own->offset,
                           gg_state_weights(env->state) + own->offset);
    }
    const double begin = gg_transport_now(env->transport);
    GG_TRY_CLEANUP(gg_allreduce_doubles(env->transport, updater->squares, 2 * updater->groups));
    gg_strategy_waited(&s->head, begin);
    gg_updater_measured(updater);
    for (int i = 0; i < s->buckets.chunk_count; ++i) overlapped_update(s, i);
cleanup:
    return gg_strategy_at_all(&s->head, gg_error_prefix(status, "norms of the gradients: "));
}

/* Elements of a partitioned weight computed at once: whole rows, which begin with a whole lane, few enough for a cache.
 */
static size_t computed_block(const gg_fc *fc) {
    enum { BLOCK = 32768 };
    const size_t in = (size_t)fc->in, rows = BLOCK / in / GG_LANES * GG_LANES;
    return (rows > 0 ? rows : GG_LANES) * in;
}

/* Sums the own slice of a chunk from every rank's part, computed here and rounded as on the wire. Works in blocks, so
 * that the parts are added while in cache. */
static void add_computed(overlapped_averaging *s, const gg_fc *fc, const gg_part *own) {
    const gg_strategy_env *env = &s->head.env;
    size_t weight = gg_arena_layout_slice(env->layout, fc->layer)->offset; /* the first parameter of its layer */
    size_t block = computed_block(fc);
    for (size_t at = own->offset - weight, end = at + own->count; at < end;) {
        size_t next = (at / block + 1) * block, count = (next < end ? next : end) - at;
        for (int r = 0; r < env->transport->size; ++r) {
            void *part = gg_codec_at(s->codec, s->computed, (size_t)r * count);
            float *gradient = s->unrounded != NULL ? s->unrounded : part;
            gg_fc_gradient(&s->fc, fc, r, at, count, gradient);
            s->codec->encode(env->device, count, gradient, part);
            s->source[r] = part;
        }
        s->codec->sum(env->device, count, env->transport->size, s->source, s->head.share,
                      gg_state_gradients(env->state) + weight + at, overlapped_gradient_at(s, weight + at));
        at += count;
    }
}

/* Called when a chunk's gradients, or weights, are complete. The bucket's are complete with its last chunk. */
static void overlapped_land(overlapped_averaging *s, int chunk, bool gradients) {
    const int bucket = s->chunk[chunk].bucket;
    const gg_bucket *b = &s->buckets.bucket[bucket];
    passage *one = gradients ? &s->bucket[bucket].gradients : &s->bucket[bucket].weights;
    const size_t size = !gradients ? sizeof(float) : fc_of_chunk(s, chunk) == NULL ? s->codec->size : 0;
    gg_flight_arrived(&one->flight, 0, s->buckets.chunk[chunk].count * size);
    if (--one->left > 0) return;
    gg_flight_end(&one->flight, &s->head, gradients ? "gradients" : "weights", b->first_layer, b->last_layer);
}

/* Tests, or waits for, the messages of a chunk's stage. fc: their inputs and errors; NULL means the sum's messages. */
static gg_status overlapped_arrive(overlapped_averaging *s, int chunk, gg_fc *fc, bool wait, passage *one, bool *all) {
    *all = true;
    if (fc != NULL) GG_TRY(gg_fc_arrive(&s->fc, fc, wait, all));
    else if (wait) GG_TRY(gg_allreduce_wait(s->sum[chunk]));
    else GG_TRY(gg_allreduce_poll(s->sum[chunk], all));
    if (*all) gg_flight_arrived(&one->flight, fc != NULL ? gg_fc_arrived(fc) : gg_allreduce_arrived(s->sum[chunk]), 0);
    return GG_OK;
}

static gg_status overlapped_reduce(overlapped_averaging *s, int chunk, bool wait) {
    gg_status status = GG_OK;
    bool all = false;
    const gg_part *own = gg_partition_part(&s->partition, s->head.env.transport->rank, chunk);
    gg_fc *fc = own->count > 0 ? fc_of_chunk(s, chunk) : NULL;
    if (s->chunk[chunk].stage != REDUCING) goto cleanup;
    GG_TRY_CLEANUP(overlapped_arrive(s, chunk, fc, wait, &s->bucket[s->chunk[chunk].bucket].gradients, &all));
    if (!all) goto cleanup;
    if (fc != NULL) {
        add_computed(s, fc, own);
        GG_TRY_CLEANUP(gg_fc_used(&s->fc, fc));
    }
    GG_TRY_CLEANUP(gg_allreduce_wait_read(s->sum[chunk])); /* the weights of the last step */
    s->chunk[chunk].stage = ADDED;
    if (!gg_updater_measures(s->head.env.updater)) overlapped_update(s, chunk);
    overlapped_land(s, chunk, true);
cleanup:
    return at_chunk(s, chunk, status);
}

static gg_status send_weights(overlapped_averaging *s, int chunk) {
    gg_status status = GG_OK;
    const gg_part *own = gg_partition_part(&s->partition, s->head.env.transport->rank, chunk);
    if (s->chunk[chunk].stage != UPDATED) goto cleanup;
    overlapped_depart(s, &s->bucket[s->chunk[chunk].bucket].weights);
    GG_TRY_CLEANUP(gg_allreduce_gather(s->sum[chunk], s->snapshot != NULL ? s->snapshot + own->owned_offset : NULL));
    s->chunk[chunk].stage = GATHERING;
cleanup:
    return at_chunk(s, chunk, status);
}

static gg_status overlapped_gather(overlapped_averaging *s, int chunk, bool wait) {
    gg_status status = GG_OK;
    bool all = false;
    if (s->chunk[chunk].stage != GATHERING) goto cleanup;
    GG_TRY_CLEANUP(overlapped_arrive(s, chunk, NULL, wait, &s->bucket[s->chunk[chunk].bucket].weights, &all));
    if (!all) goto cleanup;
    s->chunk[chunk].stage = IDLE;
    overlapped_land(s, chunk, false);
cleanup:
    return at_chunk(s, chunk, status);
}

static gg_status overlapped_begin(gg_strategy *strategy) {
    overlapped_averaging *s = (overlapped_averaging *)strategy;
    if (s->fc.count > 0) GG_TRY(gg_fc_begin(&s->fc));
    gg_buckets_begin(&s->buckets);
    return GG_OK;
}

static gg_status overlapped_offer_input(gg_strategy *strategy, int layer, const gg_vectors *input, bool *partitioned) {
    overlapped_averaging *s = (overlapped_averaging *)strategy;
    gg_fc *fc = gg_fc_partitioned(&s->fc, layer);
    *partitioned = fc != NULL;
    return fc != NULL ? gg_fc_input(&s->fc, fc, input, s->overlap) : GG_OK;
}

static gg_status offer_error(gg_strategy *strategy, int layer, const gg_vectors *error) {
    overlapped_averaging *s = (overlapped_averaging *)strategy;
    return gg_fc_error(&s->fc, gg_fc_partitioned(&s->fc, layer), error, s->overlap);
}

static const gg_strategy_fc_hooks fc_hooks = {overlapped_offer_input, offer_error};

static gg_status overlapped_need(gg_strategy *strategy, int layer) {
    overlapped_averaging *s = (overlapped_averaging *)strategy;
    const gg_bucket *b = &s->buckets.bucket[s->buckets.bucket_of_layer[layer]];
    for (int i = b->first_chunk; i < b->end_chunk; ++i) GG_TRY(overlapped_gather(s, i, true));
    return GG_OK;
}

static gg_status overlapped_ready(gg_strategy *strategy, int layer) {
    overlapped_averaging *s = (overlapped_averaging *)strategy;
    const bool complete = gg_buckets_layer_ready(&s->buckets, layer);
    return complete && s->overlap ? overlapped_start(s, s->buckets.bucket_of_layer[layer]) : GG_OK;
}

/* If gradients that were sent before the last poll have not arrived yet, the network is busy with them. */
static bool network_is_busy(const overlapped_averaging *s) {
    for (int i = 0; i < s->buckets.chunk_count; ++i)
        if (s->chunk[i].stage == REDUCING && s->bucket[s->chunk[i].bucket].polls + 1 < s->polls) return true;
    return false;
}

/* The first layers come first, because their weights are needed first. While gradients fill the network, sending
 * weights would only delay messages that are needed sooner. So weights are delayed, at most to the end of the step. */
static gg_status overlapped_poll(gg_strategy *strategy) {
    overlapped_averaging *s = (overlapped_averaging *)strategy;
    s->polls++;
    GG_TRY(gg_progress(strategy->env.transport));
    for (int i = 0; i < s->buckets.chunk_count; ++i) GG_TRY(overlapped_reduce(s, i, false));
    bool hold = network_is_busy(s);
    for (int i = 0; i < s->buckets.chunk_count; ++i) {
        if (!hold) GG_TRY(send_weights(s, i));
        GG_TRY(overlapped_gather(s, i, false));
    }
    return GG_OK;
}

static gg_status overlapped_gather_all(overlapped_averaging *s) {
    for (int i = 0; i < s->buckets.chunk_count; ++i) GG_TRY(overlapped_gather(s, i, true));
    return GG_OK;
}

/* The learning rate and the shares of the samples are those of this step, so all own slices are updated before its end.
 */
static gg_status overlapped_end(gg_strategy *strategy) {
    overlapped_averaging *s = (overlapped_averaging *)strategy;
    for (int i = 0; i < GG_FC_WHATS * s->fc.count && !s->overlap; ++i)
        if (s->fc.fc[i / GG_FC_WHATS].partitioned)
            GG_TRY(gg_fc_send(&s->fc, &s->fc.fc[i / GG_FC_WHATS], i % GG_FC_WHATS));
    for (int bucket = s->buckets.count - 1; bucket >= 0 && !s->overlap; --bucket) GG_TRY(overlapped_start(s, bucket));
    for (int i = 0; i < s->buckets.chunk_count; ++i) {
        GG_TRY(overlapped_reduce(s, i, true));
        GG_TRY(send_weights(s, i));
    }
    if (gg_updater_measures(strategy->env.updater)) {
        GG_TRY(update_measured(s));
        for (int i = 0; i < s->buckets.chunk_count; ++i) GG_TRY(send_weights(s, i));
    }
    if (!s->overlap) GG_TRY(overlapped_gather_all(s));
    return GG_OK;
}

/* Afterwards no peer reads this rank's memory. */
static gg_status overlapped_settle(gg_strategy *strategy) {
    overlapped_averaging *s = (overlapped_averaging *)strategy;
    GG_TRY(overlapped_gather_all(s));
    for (int i = 0; i < s->buckets.chunk_count; ++i) GG_TRY(at_chunk(s, i, gg_allreduce_finish(s->sum[i])));
    return gg_fc_settle(&s->fc);
}

static void overlapped_destroy(gg_strategy *strategy) {
    overlapped_averaging *s = (overlapped_averaging *)strategy;
    gg_transport *transport = strategy->env.transport;
    for (int i = 0; s->sum != NULL && i < s->buckets.chunk_count; ++i) gg_allreduce_destroy(s->sum[i]);
    if (s->fc.owner != NULL) gg_fc_destroy(&s->fc);
    gg_message_free(transport, s->snapshot);
    gg_message_free(transport, s->memory);
    gg_device_free(strategy->env.device, s->unrounded);
    gg_device_free(strategy->env.device, s->computed);
    gg_free(s->source);
    gg_free(s->sum);
    gg_free(s->slice);
    gg_free(s->chunk);
    gg_free(s->bucket);
    gg_state_destroy(&strategy->env);
    gg_partition_destroy(&s->partition);
    gg_buckets_destroy(&s->buckets);
    gg_free(s);
}

static const gg_strategy_table table = {overlapped_begin, overlapped_need,   overlapped_ready,  overlapped_poll,
                                        overlapped_end,   overlapped_settle, overlapped_destroy};

/* Weights go back, always as float32. */
static gg_exchange_cost overlapped_cost(const gg_strategy_options *options, int ranks, int moments) {
    const double p = ranks;
    (void)moments;
    return (gg_exchange_cost){.copies = (p - 1) / p * (gg_wire_part(options) + 1),
                              .messages = 2 * (p - 1),
                              .hops = 2,
                              .at_end = !options->overlapped.overlap};
}

/* The sum of each chunk over the ranks, in halves: in between a rank updates its slice. */
static gg_status create_sums(overlapped_averaging *s) {
    const gg_strategy_env *env = &s->head.env;
    const size_t chunks = (size_t)s->buckets.chunk_count, p = (size_t)env->transport->size;
    GG_TRY(gg_calloc(chunks, sizeof *s->sum, "sums of chunks", &s->sum));
    GG_TRY(gg_calloc(chunks * p, sizeof *s->slice, "slices of chunks", &s->slice));
    for (int i = 0; i < s->buckets.chunk_count; ++i) {
        const gg_chunk *chunk = &s->buckets.chunk[i];
        gg_allreduce_slice *slice = s->slice + (size_t)i * p;
        for (size_t r = 0; r < p; ++r) {
            const gg_part *part = gg_partition_part(&s->partition, (int)r, i);
            slice[r] = (gg_allreduce_slice){part->offset - chunk->offset, part->count};
        }
        GG_TRY(gg_allreduce_create(env->transport, env->device, chunk->count, GG_TAG_USER + i,
                                   &(gg_allreduce_form){.codec = s->codec,
                                                        .memory = gg_codec_at(s->codec, s->memory, chunk->offset),
                                                        .slice = slice,
                                                        .gathered = gg_state_weights(env->state) + chunk->offset},
                                   GG_COLLECTIVES_OWN, &s->sum[i]));
        gg_strategy_watch(&s->head, s->sum[i]);
    }
    return GG_OK;
}

/* Makes room for all ranks' parts of a computed block, which lies in one chunk. */
static gg_status create_computed(overlapped_averaging *s, size_t chunk) {
    const size_t p = (size_t)s->head.env.transport->size;
    size_t most = 0;
    for (int i = 0; i < s->fc.count; ++i) {
        const size_t block = computed_block(&s->fc.fc[i]);
        most = block > most ? block : most;
    }
    if (most > chunk) most = chunk;
    GG_TRY(gg_device_alloc(s->head.env.device, p * most * s->codec->size, "parts that are computed", &s->computed));
    if (!s->codec->exact)
        GG_TRY(gg_device_alloc(s->head.env.device, most * sizeof(float), "unrounded gradient", &s->unrounded));
    return GG_OK;
}

static gg_status overlapped_create(const gg_strategy_options *options, const gg_strategy_env *env, gg_strategy **out) {
    gg_status status = GG_OK;
    overlapped_averaging *s = NULL;
    gg_slice *separate = NULL;
    size_t p = (size_t)env->transport->size;
    GG_TRY_CLEANUP(gg_calloc(1, sizeof *s, "strategy", &s));
    s->head.table = &table;
    s->head.env = *env;
    s->head.partition = &s->partition;
    s->head.averages_gradients = true;
    s->head.current_at_end = !options->overlapped.overlap;
    s->overlap = options->overlapped.overlap;
    s->codec = gg_codec_of(p > 1 ? options->wire : GG_FLOAT32); /* one rank sends nothing */
    GG_TRY_CLEANUP(gg_buckets_create(env->layout, options->bucket_bytes, options->chunk_bytes, &s->buckets));
    s->head.buckets = &s->buckets;
    GG_TRY_CLEANUP(gg_calloc((size_t)env->layout->layers + 1, sizeof *separate, "layers cut separately", &separate));
    gg_fc_candidates(env, options->overlapped.partition_fc, s->codec->size, separate);
    GG_TRY_CLEANUP(gg_partition_create(env->layout, options->chunk_bytes, separate, env->transport->rank,
                                       env->transport->size, &s->buckets, &s->partition));
    GG_TRY_CLEANUP(gg_buckets_check_tags(&s->buckets, GG_TAG_LIMIT - GG_TAG_USER));
    GG_TRY_CLEANUP(gg_fc_create(&s->head, options->overlapped.partition_fc, s->codec->size, separate, &s->partition,
                                GG_TAG_USER + s->buckets.chunk_count, &s->fc));
    if (s->fc.count > 0) s->head.fc_hooks = &fc_hooks, s->head.fc_partitioned = s->fc.partitioned;
    size_t chunks = (size_t)s->buckets.chunk_count;
    GG_TRY_CLEANUP(gg_calloc(chunks, sizeof *s->chunk, "states of chunks", &s->chunk));
    for (int bucket = 0; bucket < s->buckets.count; ++bucket)
        for (int i = s->buckets.bucket[bucket].first_chunk; i < s->buckets.bucket[bucket].end_chunk; ++i)
            s->chunk[i].bucket = bucket;
    GG_TRY_CLEANUP(gg_calloc((size_t)s->buckets.count, sizeof *s->bucket, "states of buckets", &s->bucket));
    GG_TRY_CLEANUP(gg_calloc(p, sizeof *s->source, "sources", &s->source));
    /* Equal on all ranks: message memory requires it, so every rank or none has an arena. */
    env->state->owned = s->partition.most;
    GG_TRY_CLEANUP(gg_state_create(env, GG_SHARED_GRADIENT));
    if (p > 1) {
        if (!s->codec->exact)
            GG_TRY_CLEANUP(gg_message_alloc_device(env->transport, env->state->count * s->codec->size,
                                                   "values that travel", &s->memory));
        GG_TRY_CLEANUP(
            gg_message_alloc_device(env->transport, s->partition.most * sizeof(float), "updated slices", &s->snapshot));
    }
    GG_TRY_CLEANUP(create_sums(s));
    if (s->fc.count > 0) GG_TRY_CLEANUP(create_computed(s, gg_chunk_elements(options->chunk_bytes)));
cleanup:
    gg_free(separate);
    if (status != GG_OK && s != NULL) overlapped_destroy(&s->head), s = NULL;
    *out = s ? &s->head : NULL;
    return status;
}

static const char *const partition_names[GG_PARTITION_COUNT] = {"auto", "True", "False"};

static const gg_option options[] = {GG_STRATEGY_FLAG("overlap", overlapped.overlap, "exchange while computing", true),
                                    GG_STRATEGY_NAMES("partition_fc", overlapped.partition_fc,
                                                      "linear layers exchange inputs and errors instead of gradients",
                                                      partition_names),
                                    GG_OPTION_WIRE,
                                    GG_OPTION_BUCKET(GG_TUNED),
                                    GG_OPTION_CHUNK(GG_TUNED),
                                    {.name = NULL}};

const gg_strategy_type gg_strategy_overlapped_averaging = {.name = "overlapped-averaging",
                                                           .options = options,
                                                           .check = gg_strategy_check_sizes,
                                                           .create = overlapped_create,
                                                           .cost = overlapped_cost,
                                                           .keeps_equal = GG_EQUAL_REPLICAS};
