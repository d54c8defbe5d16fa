/* How a run of float32 elements travels where every element does: as it is, or rounded to bfloat16 for half the bytes.
 * Strategies and collectives hold a codec and do not know which.
 *
 * Kernels that are fused with the optimiser's update (gg_update) read and write elements as they travel; they are given
 * the codec's type. Everything else goes through these calls. Counts are whole lanes, pointers are aligned to 64 bytes.
 * Codecs are constants. */
#ifndef GG_OPS_CODEC_H
#define GG_OPS_CODEC_H

#include "ops/backend.h"

typedef struct gg_codec {
    gg_dtype dtype; /* of an element as it travels */
    size_t size;    /* of an element, in bytes */
    bool exact;     /* elements arrive as they were. Memory of float32 is its own message then */
    /* `message` holds the values as they travel; it may be `values` where the codec is exact. */
    void (*encode)(gg_device *device, size_t n, const float *values, void *message);
    void (*decode)(gg_device *device, size_t n, const void *message, float *out);
    void (*add)(gg_device *device, size_t n, const void *message, float *out); /* out += what the message holds */
    /* What the message holds: where it lies, or decoded into `room`, n elements. */
    const float *(*view)(gg_device *device, size_t n, const void *message, float *room);
    /* out = sum over i of scale[i] * what source[i] holds, in this order and in float32. rounded: receives the sum as
     * it travels, and out is what that holds; NULL: out is the sum itself. With an exact codec `rounded` is `out` or
     * NULL. out and rounded may be one of the sources. */
    void (*sum)(gg_device *device, size_t n, int sources, const void *const *source, const float *scale, float *out,
                void *rounded);
    /* out = a - what b holds, as it travels. */
    void (*difference)(gg_device *device, size_t n, const float *a, const void *b, void *out);
} gg_codec;

/* Of GG_FLOAT32 or GG_BFLOAT16. */
const gg_codec *gg_codec_of(gg_dtype dtype);

/* What is `elements` behind the first one of memory that holds values as they travel; NULL stays NULL. */
static inline void *gg_codec_at(const gg_codec *codec, const void *memory, size_t elements) {
    return memory != NULL ? (char *)memory + elements * codec->size : NULL;
}

/* out = base + share*(received - sent), where `received` holds values as they travel, and `sent`, the values that were
 * sent in exchange, is rounded as they were. out may be base or sent. */
void gg_codec_mix(const gg_codec *codec, gg_device *device, size_t n, float share, const float *base,
                  const void *received, const float *sent, float *out);
/* out = (own + received)/2; out may be own. */
void gg_codec_halve(const gg_codec *codec, gg_device *device, size_t n, const float *own, const void *received,
                    float *out);

#endif
