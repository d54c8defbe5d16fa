#include "exchange/parts/gossip.h"

#include <stddef.h>
#include <string.h>

#include "base/memory.h"

/* Chunks of slices, each with tags of its own for weights and every moment. */
#define MAX_SLICED ((GG_TAG_LIMIT - GG_TAG_USER) / (1 + GG_MAX_MOMENTS))

/* Slices of all buckets: those without elements need no tags, but are listed, and numbered by an int. */
#define MAX_SLICES (1 << 20)

static void count_pieces(gg_gossip *gossip) {
    for (int b = 0; b < gossip->sliced.count; ++b) {
        const gg_bucket *bucket = &gossip->sliced.bucket[b];
        for (int layer = bucket->first_layer; layer <= bucket->last_layer; ++layer)
            for (int i = bucket->first_chunk; i < bucket->end_chunk; ++i) {
                gg_chunk piece;
                if (gg_gossip_piece(gossip, i, gg_arena_layout_slice(gossip->head.env.layout, layer), &piece))
                    gossip->pieces[i]++;
            }
    }
}

gg_status gg_gossip_init(gg_gossip *gossip, const gg_strategy_options *options, const gg_strategy_env *env) {
    gossip->head.env = *env;
    gossip->options = *options;
    gossip->codec = gg_codec_of(options->wire);
    GG_TRY(gg_schedule_create(&options->gossip.schedule, env->transport->size, env->seed, &gossip->schedule));
    if (!options->gossip.push_sum) GG_TRY(gg_schedule_check_balance(&gossip->schedule));
    GG_TRY(gg_buckets_create(env->layout, options->bucket_bytes, options->chunk_bytes, &gossip->buckets));
    gossip->head.buckets = &gossip->buckets;
    gossip->arenas = 1;
    GG_TRY(gg_receipts_create(env->transport->size, &gossip->receipts));
    gossip->head.receipts = &gossip->receipts;
    gossip->slices = options->gossip.slices > 1 ? options->gossip.slices : 1;
    gossip->receipts.lag = gossip->slices - 1;
    const int most = MAX_SLICES / (gossip->buckets.count + 1); /* there may be no bucket */
    if (gossip->slices > 1 && gossip->slices > most)
        return gg_fail(GG_ERROR_ARGUMENT, "slices: %d; with %d buckets allowed are 1 to %d", gossip->slices,
                       gossip->buckets.count, most);
    GG_TRY(gg_buckets_slice(&gossip->buckets, options->chunk_bytes, gossip->slices, &gossip->sliced));
    if (gossip->slices > 1 && gossip->sliced.chunk_count > MAX_SLICED)
        return gg_fail(
            GG_ERROR_ARGUMENT,
            "slices: %d slices of %d buckets travel as %d chunks, more than the %d for which there are tags; choose "
            "fewer slices or larger buckets",
            gossip->slices, gossip->buckets.count, gossip->sliced.chunk_count, MAX_SLICED);
    GG_TRY(gg_calloc((size_t)gossip->buckets.count, sizeof(int), "slices of buckets", &gossip->current));
    GG_TRY(gg_calloc((size_t)gossip->buckets.count, sizeof(int), "slices of buckets", &gossip->last));
    GG_TRY(gg_calloc((size_t)gossip->sliced.chunk_count, sizeof(int), "counts of layers", &gossip->pieces));
    GG_TRY(gg_calloc((size_t)gossip->sliced.chunk_count, sizeof(int), "counts of layers", &gossip->left));
    GG_TRY(gg_calloc((size_t)gossip->sliced.count, sizeof(int), "counts of chunks", &gossip->posted));
    GG_TRY(gg_calloc((size_t)gossip->sliced.chunk_count, sizeof(int), "order of chunks", &gossip->order));
    for (int bucket = 0; bucket < gossip->buckets.count; ++bucket) gossip->current[bucket] = bucket * gossip->slices;
    count_pieces(gossip);
    return GG_OK;
}

void gg_gossip_deinit(gg_gossip *gossip) {
    gg_receipts_destroy(&gossip->receipts);
    gg_schedule_destroy(&gossip->schedule);
    gg_buckets_destroy(&gossip->sliced);
    gg_buckets_destroy(&gossip->buckets);
    gg_free(gossip->current);
    gg_free(gossip->last);
    gg_free(gossip->pieces);
    gg_free(gossip->left);
    gg_free(gossip->posted);
    gg_free(gossip->order);
    gossip->current = gossip->last = gossip->pieces = gossip->left = gossip->posted = gossip->order = NULL;
}

void gg_gossip_begin(gg_gossip *gossip) {
    gg_schedule_at(&gossip->schedule, gg_gossip_round(gossip), gossip->head.env.transport->rank, &gossip->send_to,
                   &gossip->receive_from);
    int chunks = 0;
    for (int bucket = 0; bucket < gossip->buckets.count; ++bucket) {
        const gg_bucket *due = &gossip->sliced.bucket[gg_gossip_due(gossip, bucket)];
        chunks += due->end_chunk - due->first_chunk;
    }
    gg_receipts_begin(&gossip->receipts, gossip->head.step, gossip->arenas * chunks);
    gg_buckets_begin(&gossip->buckets);
    memcpy(gossip->left, gossip->pieces, (size_t)gossip->sliced.chunk_count * sizeof(int));
}

gg_gossip_run gg_gossip_cut(const gg_gossip *gossip, int bucket, size_t at, size_t end) {
    gg_gossip_run piece = {.run.offset = at};
    size_t next[2];
    piece.last = gg_buckets_chunk_at(&gossip->sliced, gossip->last[bucket], at, &next[0]);
    piece.current = gg_buckets_chunk_at(&gossip->sliced, gossip->current[bucket], at, &next[1]);
    const size_t first = next[0] < next[1] ? next[0] : next[1];
    piece.run.count = (first < end ? first : end) - at;
    return piece;
}

/* Elements of a layer up to `at` are updated: whether that was the chunk's last piece. */
static bool chunk_updated(gg_gossip *gossip, int chunk, size_t at, size_t end) {
    if (chunk < 0) return false;
    const gg_chunk *whole = &gossip->sliced.chunk[chunk];
    return (at == end || at == whole->offset + whole->count) && --gossip->left[chunk] == 0;
}

void gg_gossip_updated(gg_gossip *gossip, const gg_gossip_run *piece, size_t end, bool *last, bool *current) {
    const size_t at = piece->run.offset + piece->run.count;
    *last = chunk_updated(gossip, piece->last, at, end);
    *current = piece->current == piece->last ? *last : chunk_updated(gossip, piece->current, at, end);
}

bool gg_gossip_piece(const gg_gossip *gossip, int chunk, const gg_slice *slice, gg_chunk *piece) {
    const gg_chunk *whole = &gossip->sliced.chunk[chunk];
    size_t begin = slice->offset > whole->offset ? slice->offset : whole->offset;
    size_t slice_end = slice->offset + slice->count, whole_end = whole->offset + whole->count;
    size_t end = slice_end < whole_end ? slice_end : whole_end;
    if (begin >= end) return false;
    *piece = (gg_chunk){begin, end - begin};
    return true;
}

void gg_gossip_mix(gg_gossip *gossip, size_t n, const float *base, const void *received, const float *sent,
                   float *out) {
    gg_codec_mix(gossip->codec, gossip->head.env.device, n, 0.5f, base, received, sent, out);
}
