#include "ops/codec.h"

/* ---- float32 ---- */

static void float32_encode(gg_device *device, size_t n, const float *values, void *message) {
    if (message != values) gg_device_copy(device, GG_QUEUE_COMPUTE, message, values, n * sizeof *values);
}

static void float32_decode(gg_device *device, size_t n, const void *message, float *out) {
    if (out != message) gg_device_copy(device, GG_QUEUE_COMPUTE, out, message, n * sizeof *out);
}

static void float32_add(gg_device *device, size_t n, const void *message, float *out) {
    static const float ones[2] = {1, 1};
    device->table->weighted_sum(device, n, 2, (const float *const[]){out, message}, ones, out);
}

static const float *float32_view(gg_device *device, size_t n, const void *message, float *room) {
    (void)device, (void)n, (void)room;
    return message;
}

static void float32_sum(gg_device *device, size_t n, int sources, const void *const *source, const float *scale,
                        float *out, void *rounded) {
    (void)rounded;
    device->table->weighted_sum(device, n, sources, (const float *const *)source, scale, out);
}

static void float32_difference(gg_device *device, size_t n, const float *a, const void *b, void *out) {
    static const float scale[2] = {1, -1};
    device->table->weighted_sum(device, n, 2, (const float *const[]){a, b}, scale, out);
}

static const gg_codec float32 = {.dtype = GG_FLOAT32,
                                 .size = sizeof(float),
                                 .exact = true,
                                 .encode = float32_encode,
                                 .decode = float32_decode,
                                 .add = float32_add,
                                 .view = float32_view,
                                 .sum = float32_sum,
                                 .difference = float32_difference};

/* ---- bfloat16 ---- */

static void bfloat16_encode(gg_device *device, size_t n, const float *values, void *message) {
    device->table->narrow(device, n, values, message);
}

static void bfloat16_decode(gg_device *device, size_t n, const void *message, float *out) {
    device->table->widen(device, n, message, out);
}

static void bfloat16_add(gg_device *device, size_t n, const void *message, float *out) {
    device->table->widen_add(device, n, message, out);
}

static const float *bfloat16_view(gg_device *device, size_t n, const void *message, float *room) {
    device->table->widen(device, n, message, room);
    return room;
}

static void bfloat16_sum(gg_device *device, size_t n, int sources, const void *const *source, const float *scale,
                         float *out, void *rounded) {
    device->table->narrow_sum(device, n, sources, (const uint16_t *const *)source, scale, out, rounded);
}

static void bfloat16_difference(gg_device *device, size_t n, const float *a, const void *b, void *out) {
    device->table->narrow_difference(device, n, a, b, out);
}

static const gg_codec bfloat16 = {.dtype = GG_BFLOAT16,
                                  .size = sizeof(uint16_t),
                                  .encode = bfloat16_encode,
                                  .decode = bfloat16_decode,
                                  .add = bfloat16_add,
                                  .view = bfloat16_view,
                                  .sum = bfloat16_sum,
                                  .difference = bfloat16_difference};

const gg_codec *gg_codec_of(gg_dtype dtype) { return dtype == GG_BFLOAT16 ? &bfloat16 : &float32; }

void gg_codec_mix(const gg_codec *codec, gg_device *device, size_t n, float share, const float *base,
                  const void *received, const float *sent, float *out) {
    device->table->mix(device, n, codec->dtype, share, base, received, sent, out);
}
