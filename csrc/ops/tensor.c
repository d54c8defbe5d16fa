#include "ops/tensor.h"

#include <inttypes.h>
#include <stdatomic.h>
#include <stdio.h>

#include "base/memory.h"

size_t gg_dtype_size(gg_dtype dtype) {
    static const size_t sizes[GG_DTYPE_COUNT] = {[GG_FLOAT32] = 4, [GG_BFLOAT16] = 2, [GG_UINT8] = 1, [GG_INT32] = 4};
    return (unsigned)dtype < GG_DTYPE_COUNT ? sizes[dtype] : 0;
}

const char *gg_dtype_name(gg_dtype dtype) {
    static const char *const names[GG_DTYPE_COUNT] = {
        [GG_FLOAT32] = "float32", [GG_BFLOAT16] = "bfloat16", [GG_UINT8] = "uint8", [GG_INT32] = "int32"};
    return (unsigned)dtype < GG_DTYPE_COUNT ? names[dtype] : "unknown";
}

int64_t gg_shape_count(const gg_shape *shape) {
    int64_t count = 1;
    for (int i = 0; i < shape->dims; ++i) count *= shape->size[i];
    return count;
}

bool gg_shape_equal(const gg_shape *a, const gg_shape *b) {
    if (a->dims != b->dims) return false;
    for (int i = 0; i < a->dims; ++i)
        if (a->size[i] != b->size[i]) return false;
    return true;
}

const char *gg_shape_text(const gg_shape *shape, char text[GG_SHAPE_TEXT]) {
    size_t used = (size_t)snprintf(text, GG_SHAPE_TEXT, "(");
    for (int i = 0; i < shape->dims; ++i) {
        int more = snprintf(text + used, GG_SHAPE_TEXT - used, "%s%" PRId64, i ? ", " : "", shape->size[i]);
        if (more < 0 || (size_t)more >= GG_SHAPE_TEXT - used) return text;
        used += (size_t)more;
    }
    /* As Python prints a tuple, since users see shapes as tuples. */
    (void)snprintf(text + used, GG_SHAPE_TEXT - used, shape->dims == 1 ? ",)" : ")");
    return text;
}

const char *gg_layout_name(gg_layout layout) {
    static const char *const names[GG_LAYOUT_COUNT] = {
        [GG_LAYOUT_PLAIN] = "plain", [GG_LAYOUT_CHANNELS16] = "channels16", [GG_LAYOUT_CHANNELS8] = "channels8",
        [GG_LAYOUT_NHWC] = "nhwc",   [GG_LAYOUT_BATCH_LAST] = "batch_last",
    };
    return (unsigned)layout < GG_LAYOUT_COUNT ? names[layout] : "unknown";
}

static int64_t round_up(int64_t n, int64_t multiple) { return (n + multiple - 1) / multiple * multiple; }

int64_t gg_lanes_padded(int64_t n) { return round_up(n, GG_LANES); }

size_t gg_format_bytes(gg_format format, const gg_shape *sample, int64_t n) {
    gg_shape padded = *sample;
    if (padded.dims > 0 && format.layout == GG_LAYOUT_CHANNELS16) padded.size[0] = round_up(padded.size[0], 16);
    if (padded.dims > 0 && format.layout == GG_LAYOUT_CHANNELS8) padded.size[0] = round_up(padded.size[0], 8);
    if (format.layout == GG_LAYOUT_BATCH_LAST) n = gg_lanes_padded(n);
    return (size_t)n * (size_t)gg_shape_count(&padded) * gg_dtype_size(format.dtype);
}

struct gg_storage {
    _Atomic int64_t references;
    void *data;
    size_t bytes;
    void *owner;
    void (*drop)(void *owner); /* what frees the data */
};

gg_status gg_storage_wrap(void *data, size_t bytes, void *owner, void (*drop)(void *), gg_storage **out) {
    void *block;
    *out = NULL;
    GG_TRY(gg_calloc(1, sizeof(gg_storage), "a storage", &block));
    gg_storage *storage = block;
    atomic_init(&storage->references, 1);
    storage->data = data;
    storage->bytes = bytes;
    storage->owner = owner;
    storage->drop = drop;
    *out = storage;
    return GG_OK;
}

gg_status gg_storage_create(size_t bytes, const char *what, gg_storage **out) {
    gg_status status = GG_OK;
    void *data = NULL;
    *out = NULL;
    GG_TRY_CLEANUP(gg_calloc(bytes, 1, what, &data));
    GG_TRY_CLEANUP(gg_storage_wrap(data, bytes, data, gg_free, out));
    data = NULL;
cleanup:
    gg_free(data);
    return status;
}

void gg_storage_retain(gg_storage *storage) {
    atomic_fetch_add_explicit(&storage->references, 1, memory_order_relaxed);
}

void gg_storage_release(gg_storage *storage) {
    /* Release order: this thread's writes precede the decrement. Acquire: the last thread sees all of it. */
    if (!storage || atomic_fetch_sub_explicit(&storage->references, 1, memory_order_acq_rel) != 1) return;
    if (storage->drop) storage->drop(storage->owner);
    gg_free(storage);
}

void *gg_storage_data(const gg_storage *storage) { return storage->data; }

size_t gg_storage_bytes(const gg_storage *storage) { return storage->bytes; }
