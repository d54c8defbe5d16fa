#include "operations/operations.h"

#include <math.h>
#include <string.h>

#include "base/memory.h"
#include "ops/library.h"

#define GUARD 256
#define GUARD_BYTE 0xA5

const gg_format gg_test_plain = {GG_FLOAT32, GG_LAYOUT_PLAIN};

/* ---- guarded memory ---- */

gg_status gg_test_guarded_make(gg_test_guarded *g, size_t bytes) {
    GG_TRY(gg_alloc(bytes + 2 * GUARD, "guarded buffer", &g->block));
    g->bytes = bytes;
    g->data = g->block + GUARD;
    memset(g->block, GUARD_BYTE, bytes + 2 * GUARD);
    memset(g->data, 0xFF, bytes); /* NaN as float32 */
    return GG_OK;
}

gg_status gg_test_guarded_check(const gg_test_guarded *g, const char *what) {
    if (g->block == NULL) return GG_OK;
    for (size_t i = 0; i < GUARD; ++i)
        if (g->block[i] != GUARD_BYTE || g->block[GUARD + g->bytes + i] != GUARD_BYTE)
            return gg_fail(GG_ERROR_BACKEND, "%s: a byte next to the buffer of %zu bytes was written", what, g->bytes);
    return GG_OK;
}

gg_status gg_test_guarded_send(gg_test_guarded *g, gg_device *device, void *at) {
    void *where = g->data;
    if (gg_device_is_separate(device) && g->block != NULL) {
        if (g->there == NULL) GG_TRY(gg_device_alloc(device, g->bytes + 2 * GUARD, "copy of a buffer", &g->there));
        g->device = device;
        GG_TRY(gg_device_write(device, g->there, g->block, g->bytes + 2 * GUARD));
        where = g->there + GUARD;
    }
    memcpy(at, &where, sizeof where);
    return GG_OK;
}

gg_status gg_test_guarded_fetch(gg_test_guarded *g) {
    return g->there != NULL ? gg_device_read(g->device, g->block, g->there, g->bytes + 2 * GUARD) : GG_OK;
}

void gg_test_guarded_free(gg_test_guarded *g) {
    if (g->there != NULL) gg_device_free(g->device, g->there);
    gg_free(g->block);
    memset(g, 0, sizeof *g);
}

gg_status gg_test_guarded_copy(gg_test_guarded *g, const void *data, size_t bytes) {
    if (data == NULL) return GG_OK;
    GG_TRY(gg_test_guarded_make(g, bytes));
    memcpy(g->data, data, bytes);
    return GG_OK;
}

/* ---- tables ---- */

gg_status gg_test_devices_open(const char *backend, gg_isa isa, int threads, gg_test_devices *out) {
    const gg_backend *table = strcmp(backend, "onednn") == 0 ? gg_cpu_onednn() : &gg_backend_native;
    const bool fast = strcmp(backend, "cuda-fast") == 0;
    if (fast || strcmp(backend, "cuda") == 0) {
        const gg_backend_library *library;
        GG_TRY(gg_backend_library_load(GG_CUDA_LIBRARY, GG_CUDA_LIBRARY_VARIABLE, &library));
        table = library->backend;
    }
    if (table == NULL) GG_TRY(gg_fail(GG_ERROR_UNSUPPORTED, "backend: 'onednn'; this build has no oneDNN"));
    GG_TRY(gg_backend_native.open(&(gg_device_options){.threads = threads, .isa = isa}, &out->native));
    GG_TRY(table->open(&(gg_device_options){.threads = threads, .isa = isa, .fast = fast}, &out->wanted));
    out->wanted->table = table;
    return GG_OK;
}

void gg_test_devices_close(gg_test_devices *d) {
    if (d->wanted != NULL) d->wanted->table->close(d->wanted);
    if (d->native != NULL) d->native->table->close(d->native);
}

gg_status gg_test_op_create(gg_device *device, const gg_op_desc *desc, gg_op **out) {
    if (device->table->create[desc->kind] == NULL)
        return gg_fail(GG_ERROR_UNSUPPORTED, "the table '%s' has no %s", device->table->name,
                       gg_op_kind_name(desc->kind));
    return device->table->create[desc->kind](device, desc, out);
}

/* The place of value i of sample n of a batch. */
static int64_t place_of(gg_layout layout, const gg_shape *shape, int64_t batch, int64_t n, int64_t i) {
    const int64_t count = gg_shape_count(shape);
    if (layout == GG_LAYOUT_PLAIN) return n * count + i;
    if (layout == GG_LAYOUT_BATCH_LAST) return i * gg_lanes_padded(batch) + n;
    const int64_t channels = shape->size[0], area = count / channels, c = i / area, at = i % area;
    const int64_t block = layout == GG_LAYOUT_CHANNELS16 ? 16 : 8, blocks = (channels + block - 1) / block;
    if (layout == GG_LAYOUT_NHWC) return (n * area + at) * channels + c;
    return ((n * blocks + c / block) * area + at) * block + c % block;
}

gg_status gg_test_padding_check(const gg_shape *shape, int64_t batch, gg_format format, const void *data, bool zeros,
                                const char *what) {
    const int64_t lanes = gg_lanes_padded(batch);
    if (format.layout != GG_LAYOUT_BATCH_LAST || format.dtype != GG_FLOAT32) return GG_OK;
    for (int64_t i = 0; i < gg_shape_count(shape); ++i)
        for (int64_t n = batch; n < lanes; ++n) {
            const float value = ((const float *)data)[i * lanes + n];
            if (zeros ? value != 0 : !isfinite(value))
                return gg_fail(GG_ERROR_BACKEND, "%s: padding lane %lld of value %lld is %g, not %s", what,
                               (long long)n, (long long)i, (double)value, zeros ? "zero" : "finite");
        }
    return GG_OK;
}

/* Converts elements of four bytes that no table reorders. */
static void convert_slowly(const gg_shape *shape, int64_t batch, gg_format from, gg_format to, const void *in,
                           void *out) {
    memset(out, 0, gg_format_bytes(to, shape, batch));
    for (int64_t n = 0; n < batch; ++n)
        for (int64_t i = 0; i < gg_shape_count(shape); ++i)
            memcpy((char *)out + 4 * place_of(to.layout, shape, batch, n, i),
                   (const char *)in + 4 * place_of(from.layout, shape, batch, n, i), 4);
}

/* Copies a batch from one format to another, one of them plain. */
/* Between float32 and bfloat16, rounded to nearest even, of all elements of a buffer. Not for NaN. */
static void convert_elements(size_t n, gg_dtype from, const void *in, void *out) {
    for (size_t i = 0; i < n; ++i) {
        uint32_t bits;
        if (from == GG_FLOAT32) {
            memcpy(&bits, (const float *)in + i, sizeof bits);
            ((uint16_t *)out)[i] = (uint16_t)((bits + 0x7fffu + ((bits >> 16) & 1u)) >> 16);
        } else {
            bits = (uint32_t)((const uint16_t *)in)[i] << 16;
            memcpy((float *)out + i, &bits, sizeof bits);
        }
    }
}

/* By way of float32 in the layout of the side that is bfloat16. */
static gg_status convert_narrow(gg_test_devices *d, const gg_shape *shape, int64_t batch, gg_format from, gg_format to,
                                const void *in, void *out) {
    gg_status status = GG_OK;
    void *between = NULL;
    const gg_format wide = {GG_FLOAT32, from.dtype == GG_FLOAT32 ? to.layout : from.layout};
    const size_t bytes = gg_format_bytes(wide, shape, batch), n = bytes / sizeof(float);
    GG_TRY_CLEANUP(gg_calloc(bytes, 1, "values", &between));
    if (from.dtype == GG_FLOAT32) {
        GG_TRY_CLEANUP(gg_test_convert(d, shape, batch, from, wide, in, between));
        convert_elements(n, GG_FLOAT32, between, out);
    } else {
        convert_elements(n, GG_BFLOAT16, in, between);
        GG_TRY_CLEANUP(gg_test_convert(d, shape, batch, wide, to, between, out));
    }
cleanup:
    gg_free(between);
    return status;
}

gg_status gg_test_convert(gg_test_devices *d, const gg_shape *shape, int64_t batch, gg_format from, gg_format to,
                          const void *in, void *out) {
    gg_status status = GG_OK;
    gg_op *op = NULL;
    void *scratch = NULL, *saved = NULL;
    gg_op_desc desc = {.kind = GG_OP_REORDER,
                       .batch = batch,
                       .inputs = 1,
                       .input = {*shape},
                       .output = *shape,
                       .offered = {from},
                       .wanted_output = to};
    if (from.dtype != to.dtype) return convert_narrow(d, shape, batch, from, to, in, out);
    if (from.layout == to.layout) {
        memcpy(out, in, gg_format_bytes(from, shape, batch));
        return GG_OK;
    }
    const bool separate = gg_device_is_separate(d->wanted); /* the values are in the host's memory */
    if ((separate || gg_test_op_create(d->wanted, &desc, &op) != GG_OK) &&
        gg_test_op_create(d->native, &desc, &op) != GG_OK) {
        convert_slowly(shape, batch, from, to, in, out);
        return GG_OK;
    }
    GG_TRY_CLEANUP(gg_alloc(op->scratch_bytes, "scratch", &scratch));
    GG_TRY_CLEANUP(gg_alloc(op->saved_bytes, "saved", &saved));
    GG_TRY_CLEANUP(gg_op_forward(op, &(gg_op_args){.input = {in}, .output = out, .scratch = scratch, .saved = saved}));
cleanup:
    gg_op_destroy(op);
    gg_free(scratch);
    gg_free(saved);
    return status;
}

int gg_test_isa_of(const char *name, gg_isa *out) {
    gg_status status = gg_isa_select(name, out);
    if (status != GG_OK) gg_py_raise(status);
    return status == GG_OK ? 0 : -1;
}
