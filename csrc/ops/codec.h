/* Codecs: the form of float32 elements in messages that hold every element. Either float32, or rounded to bfloat16 for
 * half the bytes. Strategies and collectives hold a codec and do not know which.
 *
 * Kernels fused with the optimiser's update (gg_update) read and write encoded elements by the codec's type. All other
 * code uses these calls. Counts are whole lanes, pointers are aligned to 64 bytes. Codecs are constants. */
#ifndef GG_OPS_CODEC_H
#define GG_OPS_CODEC_H

#include "ops/backend.h"

typedef struct gg_codec {
    gg_dtype dtype; /* of an encoded element */
    size_t size;    /* of an encoded element, in bytes */
    bool exact;     /* encoding changes no element: float32 memory is its own message */
    /* `message` receives encoded values; it may be `values` if the codec is exact. */
    void (*encode)(gg_device *device, size_t n, const float *values, void *message);
    void (*decode)(gg_device *device, size_t n, const void *message, float *out);
    void (*add)(gg_device *device, size_t n, const void *message, float *out); /* out += decoded message */
    /* The decoded message: in place, or decoded into `room`, n elements. */
    const float *(*view)(gg_device *device, size_t n, const void *message, float *room);
    /* out = sum over i of scale[i] * decoded source[i], in this order and in float32. If `rounded` is not NULL, it
     * receives the encoded sum, and out its decoded value. With an exact codec `rounded` is `out` or NULL. out and
     * rounded may be one of the sources. */
    void (*sum)(gg_device *device, size_t n, int sources, const void *const *source, const float *scale, float *out,
                void *rounded);
    /* out = a - decoded b, encoded. */
    void (*difference)(gg_device *device, size_t n, const float *a, const void *b, void *out);
} gg_codec;

/* The codec of GG_FLOAT32 or GG_BFLOAT16. */
const gg_codec *gg_codec_of(gg_dtype dtype);

/* Address of element `elements` of encoded memory; NULL stays NULL. */
static inline void *gg_codec_at(const gg_codec *codec, const void *memory, size_t elements) {
    return memory != NULL ? (char *)memory + elements * codec->size : NULL;
}

/* out = base + share*(decoded received - sent), with `sent`, this rank's sent values, rounded as in its message. out
 * may be base or sent. */
void gg_codec_mix(const gg_codec *codec, gg_device *device, size_t n, float share, const float *base,
                  const void *received, const float *sent, float *out);
#endif
