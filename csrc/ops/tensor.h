/* Element types, shapes, layouts and shared storage. */
#ifndef GG_OPS_TENSOR_H
#define GG_OPS_TENSOR_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/status.h"

typedef enum gg_dtype { GG_FLOAT32 = 0, GG_BFLOAT16, GG_UINT8, GG_INT32, GG_DTYPE_COUNT } gg_dtype;

size_t gg_dtype_size(gg_dtype dtype);
const char *gg_dtype_name(gg_dtype dtype);

#define GG_MAX_DIMS 5

/* The shape of one sample, or of a parameter: `dims` sizes, each >= 1. A sample's shape has no batch axis. */
typedef struct gg_shape {
    int dims;
    int64_t size[GG_MAX_DIMS];
} gg_shape;

int64_t gg_shape_count(const gg_shape *shape); /* product of the sizes */
bool gg_shape_equal(const gg_shape *a, const gg_shape *b);
/* "(1, 28, 28)"; returns `text`. */
#define GG_SHAPE_TEXT 96
const char *gg_shape_text(const gg_shape *shape, char text[GG_SHAPE_TEXT]);

/* Layouts of a batch in memory. A sample is (C, H, W), (F) or (T, F); N is the batch.
 *   PLAIN       N, then the sample row-major: users' order, NCHW for images, NC for features
 *   CHANNELS16  N, C/16, H, W, 16: images only, channels padded with zeros to a multiple of 16
 *   CHANNELS8   N, C/8, H, W, 8: images only, padded to a multiple of 8
 *   NHWC        N, H, W, C: images only
 *   BATCH_LAST  the sample row-major, then N padded with finite values to a multiple of GG_LANES: every value
 *               of a sample is a row of lanes, so any channel count, window and stride runs in full vectors,
 *               flattening and joining channels move nothing, and a convolution needs no packing. Lanes
 *               >= N hold finite values in activations and zeros in gradients. */
typedef enum gg_layout {
    GG_LAYOUT_PLAIN = 0,
    GG_LAYOUT_CHANNELS16,
    GG_LAYOUT_CHANNELS8,
    GG_LAYOUT_NHWC,
    GG_LAYOUT_BATCH_LAST,
    GG_LAYOUT_COUNT
} gg_layout;

#define GG_LANES 16

const char *gg_layout_name(gg_layout layout);
/* n rounded up to a multiple of GG_LANES. */
int64_t gg_lanes_padded(int64_t n);

/* Element type and layout of a batch of activations. */
typedef struct gg_format {
    gg_dtype dtype;
    gg_layout layout;
} gg_format;

/* Bytes of a batch of n samples of this shape, padding included. */
size_t gg_format_bytes(gg_format format, const gg_shape *sample, int64_t n);

/* Reference-counted memory, so that a Python array can outlive the object whose memory it shows.
 * retain/release from any thread; the last release frees. */
typedef struct gg_storage gg_storage;

gg_status gg_storage_create(size_t bytes, const char *what, gg_storage **out); /* zeroed, with one reference */
/* Wraps memory owned elsewhere; `drop(owner)` is called with the last release. */
gg_status gg_storage_wrap(void *data, size_t bytes, void *owner, void (*drop)(void *), gg_storage **out);
void gg_storage_retain(gg_storage *storage);
void gg_storage_release(gg_storage *storage); /* NULL is a no-op */
void *gg_storage_data(const gg_storage *storage);
size_t gg_storage_bytes(const gg_storage *storage);

#endif
