#include "exchange/parts/tuning.h"

#include <math.h>

#include "base/memory.h"
#include "exchange/parts/buckets.h"
#include "exchange/types.h"

#define KIB ((size_t)1 << 10)
#define GAIN 0.95 /* as a fraction of the default sizes' step: chosen sizes must make the step shorter than this */
#define STREAMS 4 /* max chunks with tags of their own */

/* Time to use a received message, as a multiple of the time to read it once: it is mixed into, or added to, memory that
 * is read and written. */
#define USE_READS 2

typedef struct model {
    const gg_arena_layout *layout;
    const double *forward;
    double least;
    gg_link link;
    gg_exchange_cost cost;
} model;

static bool tuning_cuts(const gg_strategy_options *options) { return gg_strategy_type_of(options->kind)->cost != NULL; }

bool gg_strategy_tunes(const gg_strategy_options *options, int ranks) {
    const bool open = options->bucket_bytes == 0 || options->chunk_bytes == 0;
    const gg_strategy_type *type = gg_strategy_type_of(options->kind);
    const bool modelled = options->collectives == GG_COLLECTIVES_OWN && !options->compression.active &&
                          (type->modelled == NULL || type->modelled(options));
    return ranks > 1 && tuning_cuts(options) && open && modelled;
}

static double elements_of(const gg_buckets *buckets, const gg_bucket *bucket) {
    const gg_chunk *first = &buckets->chunk[bucket->first_chunk], *last = &buckets->chunk[bucket->end_chunk - 1];
    return (double)(last->offset + last->count - first->offset);
}

/* End of the backward pass. At `clock` the last gradients are final, and the link is busy until `wire` with the first
 * halves of the reductions. Polls have sent the second halves of reductions that had arrived before. The others are
 * sent one after the other, after all first halves, because a rank that waits for one does not poll the next. */
static double finish_all(const model *m, const gg_buckets *buckets, const double *there, double clock, double wire) {
    double end = clock;
    for (int b = buckets->count - 1; b >= 0; --b) {
        const gg_bucket *bucket = &buckets->bucket[b];
        const double back = m->link.byte * m->cost.copies / 2 * sizeof(float) * elements_of(buckets, bucket);
        const int chunks = bucket->end_chunk - bucket->first_chunk;
        if (there[b] <= clock) end = fmax(end, there[b] + m->link.latency + back);
        else end = fmax(end, fmax(there[b], wire)) + chunks * m->link.latency + back;
    }
    return end;
}

/* Seconds from the start of the backward pass to the end of the next forward pass, if computing takes `pace` times the
 * given seconds. `there`: scratch memory, one number a bucket. */
static double tuning_foresee(const model *m, double pace, const gg_buckets *buckets, double *there) {
    const int layers = m->layout->layers;
    const double quicker = fmin(m->link.byte, USE_READS * m->link.read);
    const double copies = m->cost.at_end ? m->cost.copies / 2 : m->cost.copies,
                 hops = m->cost.at_end ? 1 : m->cost.hops;
    double clock = 0, wire = 0, sent = 0;
    for (int layer = layers - 1; layer >= 0; --layer) {
        const int b = buckets->bucket_of_layer[layer];
        const gg_bucket *bucket = &buckets->bucket[b];
        clock += 2 * pace * m->forward[layer];
        if (layer != bucket->first_layer) continue;
        const double bytes = copies * sizeof(float) * elements_of(buckets, bucket);
        const double tail = copies * sizeof(float) * (double)buckets->chunk[bucket->end_chunk - 1].count;
        clock += m->link.message * m->cost.messages * (bucket->end_chunk - bucket->first_chunk);
        wire = fmax(wire, clock) + m->link.byte * bytes;
        sent += m->link.byte * bytes;
        there[b] = wire + hops * m->link.latency + quicker * tail;
    }
    if (m->cost.at_end) clock = finish_all(m, buckets, there, clock, wire);
    for (int layer = 0; layer < layers; ++layer) {
        if (!m->cost.at_end && !m->cost.hidden) clock = fmax(clock, there[buckets->bucket_of_layer[layer]]);
        clock += pace * m->forward[layer];
    }
    return fmax(clock, sent);
}

/* The seconds of a step with the full and with the least computing time; INFINITY: more chunks than tags. */
static gg_status tuning_judge(const model *m, size_t bucket_bytes, size_t chunk_bytes, double *there,
                              double seconds[2]) {
    gg_status status = GG_OK;
    gg_buckets buckets = {0};
    const size_t most = (GG_TAG_LIMIT - GG_TAG_USER) / STREAMS;
    seconds[0] = seconds[1] = INFINITY;
    if (m->layout->count * sizeof(float) / chunk_bytes > most) goto cleanup;
    GG_TRY_CLEANUP(gg_buckets_create(m->layout, bucket_bytes, chunk_bytes, &buckets));
    if ((size_t)buckets.chunk_count > most) goto cleanup;
    seconds[0] = tuning_foresee(m, 1.0, &buckets, there);
    seconds[1] = tuning_foresee(m, m->least, &buckets, there);
cleanup:
    gg_buckets_destroy(&buckets);
    return status;
}

static gg_status tuning_choose(const model *m, gg_strategy_options *options) {
    static const size_t bucket_sizes[] = {
        GG_DEFAULT_BUCKET_BYTES, 1, 4 * KIB, 16 * KIB, 64 * KIB, 256 * KIB, 4096 * KIB, 16384 * KIB};
    static const size_t chunk_sizes[] = {
        GG_DEFAULT_CHUNK_BYTES, 128 * KIB, 512 * KIB, 8192 * KIB, 32768 * KIB, 131072 * KIB};
    gg_status status = GG_OK;
    double *there = NULL, usual[2] = {0}, best = INFINITY;
    const size_t asked_bucket = options->bucket_bytes, asked_chunk = options->chunk_bytes;
    GG_TRY_CLEANUP(gg_alloc(((size_t)m->layout->layers + 1) * sizeof *there, "times of buckets", &there));
    for (size_t i = 0; i < (asked_bucket > 0 ? 1 : sizeof bucket_sizes / sizeof *bucket_sizes); ++i)
        for (size_t k = 0; k < (asked_chunk > 0 ? 1 : sizeof chunk_sizes / sizeof *chunk_sizes); ++k) {
            const size_t bucket = asked_bucket > 0 ? asked_bucket : bucket_sizes[i];
            const size_t chunk = asked_chunk > 0 ? asked_chunk : chunk_sizes[k];
            double seconds[2];
            GG_TRY_CLEANUP(tuning_judge(m, bucket, chunk, there, seconds));
            if (i == 0 && k == 0) {
                usual[0] = seconds[0];
                usual[1] = seconds[1];
                best = GAIN * seconds[0];
            } else if (seconds[0] < best && seconds[0] <= usual[0] && seconds[1] <= usual[1]) {
                best = seconds[0];
            } else {
                continue;
            }
            options->bucket_bytes = bucket;
            options->chunk_bytes = chunk;
        }
cleanup:
    gg_free(there);
    return status;
}

static void set_defaults(gg_strategy_options *options) {
    if (options->bucket_bytes == 0) options->bucket_bytes = GG_DEFAULT_BUCKET_BYTES;
    if (options->chunk_bytes == 0) options->chunk_bytes = GG_DEFAULT_CHUNK_BYTES;
}

gg_status gg_strategy_check_open(const gg_strategy_options *options, int ranks) {
    gg_strategy_options closed = *options;
    set_defaults(&closed);
    return gg_strategy_check(&closed, ranks);
}

gg_status gg_strategy_tune(gg_strategy_options *options, const gg_arena_layout *layout, int momenta, int ranks,
                           const double *forward, double least, const gg_link *link, gg_tuning *out) {
    gg_status status = GG_OK;
    gg_buckets buckets = {0};
    *out = (gg_tuning){.cuts = tuning_cuts(options)};
    if (link != NULL && gg_strategy_tunes(options, ranks)) {
        const model m = {.layout = layout,
                         .forward = forward,
                         .least = least,
                         .link = *link,
                         .cost = gg_strategy_type_of(options->kind)->cost(options, ranks, momenta)};
        GG_TRY_CLEANUP(tuning_choose(&m, options));
        out->measured = true;
        out->link = *link;
    }
    set_defaults(options);
    if (!out->cuts) goto cleanup;
    out->bucket_bytes = options->bucket_bytes;
    out->chunk_bytes = options->chunk_bytes;
    GG_TRY_CLEANUP(gg_buckets_create(layout, options->bucket_bytes, options->chunk_bytes, &buckets));
    out->buckets = buckets.count;
    out->chunks = buckets.chunk_count;
cleanup:
    gg_buckets_destroy(&buckets);
    return status;
}
