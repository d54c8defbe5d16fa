#include "exchange/parts/centre_private.h"

#include "base/memory.h"
#include "exchange/parts/common.h"

gg_status gg_centre_at_bucket(const gg_centre *s, int bucket, gg_status status) {
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

bool gg_centre_sends_differences(const gg_centre *s) { return s->packs || !s->codec->exact; }

const gg_segment *gg_centre_segments(const gg_centre *s, int chunk, bool whole, int *count) {
    const gg_bucket *b = &s->buckets.bucket[gg_buckets_of_chunk(&s->buckets, chunk)];
    const gg_segments *segments = whole ? &s->whole : &s->segments;
    const int first = segments->first_of_layer[b->first_layer];
    *count = segments->first_of_layer[b->last_layer + 1] - first;
    return segments->segment + first;
}

bool gg_centre_says_all(const gg_centre *s, int chunk, const void *message, size_t bytes) {
    int count;
    const gg_segment *whole = gg_centre_segments(s, chunk, true, &count);
    return gg_packed_fits(whole, count, message, bytes);
}

gg_status gg_centre_read(gg_centre *s, const gg_centre_run *run, const void *message, size_t bytes, float factor,
                         float *out) {
    gg_device *device = s->head.env.device;
    if (s->packs) {
        gg_packing packing = s->packing;
        packing.segment =
            gg_centre_segments(s, run->chunk, gg_centre_says_all(s, run->chunk, message, bytes), &packing.segments);
        return gg_unpack_add(&packing, message, bytes, factor, out);
    }
    if (factor == 1) {
        s->codec->add(device, run->count, message, out);
        return GG_OK;
    }
    for (size_t at = 0, n; at < run->count; at += n) {
        n = run->count - at < GG_CENTRE_PIECE ? run->count - at : GG_CENTRE_PIECE;
        const float *value = s->codec->view(device, n, gg_codec_at(s->codec, message, at), s->piece);
        gg_add_scaled(device, n, out + at, factor, value, out + at);
    }
    return GG_OK;
}

static gg_status tell_packed(gg_centre *s, gg_centre_run *run, float scale, const float *to, float *base) {
    gg_packing packing = s->packing;
    packing.segment = gg_centre_segments(s, run->chunk, run->whole, &packing.segments);
    if (scale != 1) {
        gg_scaled_difference(s->head.env.device, run->count, scale, to, base, s->target);
        gg_add_scaled(s->head.env.device, run->count, base, 1.0f, s->target, s->target);
        to = s->target;
    }
    return gg_pack_difference(&packing, to, base, run->answer, &run->answer_bytes);
}

gg_status gg_centre_tell(gg_centre *s, gg_centre_run *run, float scale, const float *to, float *base) {
    gg_device *device = s->head.env.device;
    if (s->packs) return tell_packed(s, run, scale, to, base);
    for (size_t at = 0, n; at < run->count; at += n) {
        n = run->count - at < GG_CENTRE_PIECE ? run->count - at : GG_CENTRE_PIECE;
        gg_scaled_difference(device, n, scale, to + at, base + at, s->piece);
        s->codec->encode(device, n, s->piece, gg_codec_at(s->codec, run->answer, at));
        s->codec->add(device, n, gg_codec_at(s->codec, run->answer, at), base + at);
    }
    run->answer_bytes = run->count * s->codec->size;
    return GG_OK;
}

size_t gg_centre_capacity(const gg_centre *s, int chunk) { return s->place[chunk + 1] - s->place[chunk]; }

gg_status gg_centre_receive(gg_centre *s, int chunk, void *landing, int peer, gg_request *request) {
    gg_transport *transport = s->head.env.transport;
    const size_t capacity = gg_centre_capacity(s, chunk);
    return s->packs ? gg_receive(transport, landing, capacity, peer, GG_TAG_USER + chunk, request)
                    : gg_receive_exact(transport, landing, capacity, peer, GG_TAG_USER + chunk, request);
}

/* Segments of whole layers, by the chunks they are in. */
static void count_from_chunks(const gg_centre *s, gg_segments *segments) {
    for (int i = 0; i < segments->count; ++i) {
        gg_segment *segment = &segments->segment[i];
        const int bucket = s->buckets.bucket_of_layer[segment->layer];
        segment->offset -= s->buckets.chunk[s->buckets.bucket[bucket].first_chunk].offset;
    }
}

gg_status gg_centre_make_packing(gg_centre *s) {
    const gg_compression none = {0};
    gg_device *device = s->head.env.device;
    gg_pack_sizes sizes = {0};
    size_t most = 0;
    GG_TRY(gg_segments_create(s->head.env.layout, &s->compression, &s->segments));
    GG_TRY(gg_segments_create(s->head.env.layout, &none, &s->whole));
    count_from_chunks(s, &s->segments);
    count_from_chunks(s, &s->whole);
    for (int chunk = 0; chunk < s->buckets.chunk_count; ++chunk) {
        const size_t elements = s->buckets.chunk[chunk].count;
        for (int whole = 0; whole < 2; ++whole) {
            int count;
            const gg_segment *segment = gg_centre_segments(s, chunk, whole, &count);
            gg_pack_sizes_add(&sizes, device, segment, count);
        }
        if (elements > most) most = elements;
    }
    s->packing = (gg_packing){.compression = &s->compression, .device = device, .counts = &s->counts};
    GG_TRY(gg_pack_room_create(device, &sizes, &s->packing.room));
    GG_TRY(gg_device_alloc(device, most * sizeof *s->target, "target of a chunk", &s->target));
    s->head.compression_counts = &s->counts;
    return GG_OK;
}

gg_status gg_centre_place_messages(gg_centre *s) {
    GG_TRY(gg_calloc((size_t)s->buckets.chunk_count + 1, sizeof *s->place, "places of messages", &s->place));
    for (int chunk = 0; chunk < s->buckets.chunk_count; ++chunk) {
        size_t bytes = s->buckets.chunk[chunk].count * s->codec->size;
        for (int whole = 0; s->packs && whole < 2; ++whole) {
            int count;
            const gg_segment *segment = gg_centre_segments(s, chunk, whole, &count);
            const size_t packed = gg_packed_capacity(segment, count, &s->compression);
            if (packed > bytes) bytes = packed;
        }
        s->place[chunk + 1] = s->place[chunk] + (s->packs ? gg_aligned(bytes) : bytes);
    }
    return GG_OK;
}

gg_status gg_centre_alloc_messages(const gg_centre *s, size_t bytes, const char *what, char **out) {
    return s->packs ? gg_device_alloc_host(s->head.env.device, bytes, what, out)
                    : gg_device_alloc_message(s->head.env.device, bytes, what, out);
}
