/* pack and unpack: exchange/codec/packed.h on plain arrays. Segments are rows (offset, elements, bin, family); a
 * segment's layer is its number. */
#include <string.h>

#include "base/memory.h"
#include "base/parallel.h"
#include "exchange/codec/packed.h"
#include "operations/operations.h"

/* The segments of an int64 array (n, 4). NULL with an exception. */
static gg_segment *segments_of(PyObject *rows, int *count) {
    PyArrayObject *array = gg_py_array(rows, NPY_INT64, "segments");
    gg_segment *segment = NULL;
    if (array == NULL) return NULL;
    if (PyArray_NDIM(array) != 2 || PyArray_DIM(array, 1) != 4 || PyArray_DIM(array, 0) < 1) {
        PyErr_SetString(PyExc_ValueError, "segments: rows of offset, elements, bin, family");
    } else {
        *count = (int)PyArray_DIM(array, 0);
        const gg_status status = gg_alloc((size_t)*count * sizeof *segment, "segments", &segment);
        if (status != GG_OK) gg_py_raise(status);
        const int64_t *row = PyArray_DATA(array);
        for (int i = 0; segment != NULL && i < *count; ++i, row += 4)
            segment[i] = (gg_segment){.offset = (size_t)row[0],
                                      .count = (size_t)row[1],
                                      .bin = (int)row[2],
                                      .family = (gg_family)row[3],
                                      .layer = i,
                                      .name = "tensor"};
    }
    Py_DECREF(array);
    return segment;
}

/* Elements up to the end of the last segment. */
static size_t extent_of(const gg_segment *segment, int count) {
    size_t end = 0;
    for (int i = 0; i < count; ++i)
        end = segment[i].offset + segment[i].count > end ? segment[i].offset + segment[i].count : end;
    return end;
}

/* A guarded copy of a float32 array that covers the segments; None gives none. -1 with an exception. */
static int floats_of(PyObject *object, const char *name, size_t extent, gg_test_guarded *out) {
    if (object == Py_None) return 0;
    PyArrayObject *array = gg_py_array(object, NPY_FLOAT32, name);
    if (array == NULL) return -1;
    gg_status status = GG_OK;
    if ((size_t)PyArray_SIZE(array) < extent)
        PyErr_Format(PyExc_ValueError, "%s: fewer elements than the segments", name);
    else if ((status = gg_test_guarded_copy(out, PyArray_DATA(array), (size_t)PyArray_SIZE(array) * 4)) != GG_OK)
        gg_py_raise(status);
    Py_DECREF(array);
    return PyErr_Occurred() ? -1 : 0;
}

static PyObject *array_of(const gg_test_guarded *g) {
    PyArrayObject *array = gg_py_new_array(1, (npy_intp[]){(npy_intp)(g->bytes / 4)}, NPY_FLOAT32);
    if (array != NULL) memcpy(PyArray_DATA(array), g->data, g->bytes);
    return (PyObject *)array;
}

static PyObject *numbers_of(const int64_t *number, int n) {
    PyObject *tuple = PyTuple_New(n);
    for (int i = 0; tuple != NULL && i < n; ++i) {
        PyObject *item = PyLong_FromLongLong(number[i]);
        if (item == NULL) {
            Py_CLEAR(tuple);
            break;
        }
        PyTuple_SET_ITEM(tuple, i, item);
    }
    return tuple;
}

static PyObject *counts_of(const gg_compression_counts *c) {
    return Py_BuildValue("{sNsNsNsLsL}", "dense_bytes", numbers_of(c->dense_bytes, GG_FAMILY_COUNT), "sent_bytes",
                         numbers_of(c->sent_bytes, GG_FAMILY_COUNT), "bins_with",
                         numbers_of(c->bins_with, GG_COUNTS_HISTOGRAM), "elements_sent", (long long)c->elements_sent,
                         "elements", (long long)c->elements);
}

/* what: pack, difference, choice, accumulate. first: gradient, or value; second: residue, or known. Gives the message
 * (accumulate: empty), what `second` is then, and the counts. */
PyObject *gg_test_pack(PyObject *module, PyObject *args, PyObject *kwargs) {
    static char *names[] = {"isa",    "what",  "segments", "first",  "second",  "mode",
                            "factor", "scale", "bfloat16", "counts", "threads", NULL};
    const char *isa_name, *what;
    PyObject *rows, *first, *second, *result = NULL;
    int mode, narrow, counted, threads, count = 0;
    float factor, scale;
    gg_test_guarded arrays[2] = {0}, message = {0};
    gg_pack_room *room = NULL;
    gg_pack_sizes sizes = {0};
    gg_segment *segment = NULL;
    gg_device *device = NULL;
    gg_compression_counts counts = {0};
    gg_status status = GG_OK;
    gg_isa isa;
    size_t bytes = 0;
    (void)module;
    if (!PyArg_ParseTupleAndKeywords(args, kwargs, "zsOOOiffppi:pack", names, &isa_name, &what, &rows, &first, &second,
                                     &mode, &factor, &scale, &narrow, &counted, &threads))
        return NULL;
    if (gg_test_isa_of(isa_name, &isa) < 0 || (segment = segments_of(rows, &count)) == NULL) return NULL;
    const size_t extent = extent_of(segment, count);
    if (floats_of(first, "first", extent, &arrays[0]) < 0 || floats_of(second, "second", extent, &arrays[1]) < 0)
        goto cleanup;
    gg_compression options = {
        .active = true, .mode = (gg_compression_mode)mode, .values = narrow ? GG_BFLOAT16 : GG_FLOAT32};
    for (int family = 0; family < GG_FAMILY_COUNT; ++family) options.factor[family] = factor;
    GG_TRY_CLEANUP(gg_backend_native.open(&(gg_device_options){.threads = threads, .isa = isa}, &device));
    GG_TRY_CLEANUP(gg_test_guarded_make(&message, gg_packed_capacity(segment, count, &options)));
    gg_pack_sizes_add(&sizes, device, segment, count);
    GG_TRY_CLEANUP(gg_pack_room_create(device, &sizes, &room));
    const gg_packing packing = {.compression = &options,
                                .device = device,
                                .segment = segment,
                                .segments = count,
                                .room = room,
                                .counts = counted ? &counts : NULL};
    const gg_float_mode former = gg_parallel_enter();
    if (strcmp(what, "pack") == 0)
        status = gg_pack(&packing, scale, arrays[0].data, arrays[1].data, message.data, &bytes);
    else if (strcmp(what, "difference") == 0)
        status = gg_pack_difference(&packing, arrays[0].data, arrays[1].data, message.data, &bytes);
    else if (strcmp(what, "choice") == 0)
        status = gg_pack_choice(&packing, scale, arrays[0].data, arrays[1].data, message.data, &bytes);
    else status = gg_pack_accumulate(&packing, scale, arrays[0].data, arrays[1].data);
    gg_parallel_leave(former);
    GG_TRY_CLEANUP(status);
    GG_TRY_CLEANUP(gg_test_guarded_check(&arrays[0], "first"));
    GG_TRY_CLEANUP(gg_test_guarded_check(&arrays[1], "second"));
    GG_TRY_CLEANUP(gg_test_guarded_check(&message, "message"));
    result =
        Py_BuildValue("y#NN", (const char *)message.data, (Py_ssize_t)bytes, array_of(&arrays[1]), counts_of(&counts));
cleanup:
    if (status != GG_OK) gg_py_raise(status);
    gg_pack_room_destroy(room);
    if (device != NULL) device->table->close(device);
    gg_test_guarded_free(&arrays[0]);
    gg_test_guarded_free(&arrays[1]);
    gg_test_guarded_free(&message);
    gg_free(segment);
    return result;
}

/* What reads messages of these segments, on a device of its own. */
static gg_status reader_make(const gg_segment *segment, int count, gg_compression_counts *counts, gg_packing *out) {
    gg_pack_sizes sizes = {0};
    *out = (gg_packing){.segment = segment, .segments = count, .counts = counts};
    GG_TRY(gg_backend_native.open(&(gg_device_options){.threads = 1, .isa = GG_ISA_SCALAR}, &out->device));
    gg_pack_sizes_add(&sizes, out->device, segment, count);
    return gg_pack_room_create(out->device, &sizes, &out->room);
}

static void reader_free(gg_packing *reader) {
    gg_pack_room_destroy(reader->room);
    if (reader->device != NULL) reader->device->table->close(reader->device);
}

/* gg_pack in turn of each of several gradients, a list of arrays or None, with marks (packed.h); `settled`: after each
 * gg_pack_complete. Gives the messages, and the residue at the end, when all that was sent has left it. */
PyObject *gg_test_pack_marked(PyObject *module, PyObject *args) {
    const char *isa_name;
    PyObject *rows, *gradients, *second, *messages = NULL, *result = NULL;
    int mode, settled, clear, count = 0;
    float factor, scale;
    gg_test_guarded gradient = {0}, residue = {0}, message = {0};
    gg_pack_room *room = NULL;
    gg_pack_sizes sizes = {0};
    gg_segment *segment = NULL;
    gg_device *device = NULL;
    gg_pack_marks *marks = NULL;
    gg_status status = GG_OK;
    gg_isa isa;
    size_t bytes = 0;
    (void)module;
    if (!PyArg_ParseTuple(args, "zOO!Oiffpp:pack_marked", &isa_name, &rows, &PyList_Type, &gradients, &second, &mode,
                          &factor, &scale, &settled, &clear))
        return NULL;
    if (gg_test_isa_of(isa_name, &isa) < 0 || (segment = segments_of(rows, &count)) == NULL) return NULL;
    const size_t extent = extent_of(segment, count);
    if (floats_of(second, "residue", extent, &residue) < 0 || (messages = PyList_New(0)) == NULL) goto cleanup;
    gg_compression options = {.active = true, .mode = (gg_compression_mode)mode, .values = GG_FLOAT32};
    for (int family = 0; family < GG_FAMILY_COUNT; ++family) options.factor[family] = factor;
    GG_TRY_CLEANUP(gg_backend_native.open(&(gg_device_options){.threads = 1, .isa = isa}, &device));
    GG_TRY_CLEANUP(gg_test_guarded_make(&message, gg_packed_capacity(segment, count, &options)));
    gg_pack_sizes_add(&sizes, device, segment, count);
    GG_TRY_CLEANUP(gg_pack_room_create(device, &sizes, &room));
    GG_TRY_CLEANUP(gg_pack_marks_create(segment, count, &marks));
    const gg_packing packing = {
        .compression = &options, .device = device, .segment = segment, .segments = count, .room = room, .marks = marks};
    const Py_ssize_t steps = PyList_GET_SIZE(gradients);
    for (Py_ssize_t step = 0; step < steps; ++step) {
        if (floats_of(PyList_GET_ITEM(gradients, step), "gradient", extent, &gradient) < 0) goto cleanup;
        const gg_float_mode former = gg_parallel_enter();
        if (clear && gradient.data != NULL)
            status = gg_pack_and_clear(&packing, scale, gradient.data, residue.data, message.data, &bytes);
        else status = gg_pack(&packing, scale, gradient.data, residue.data, message.data, &bytes);
        if (settled || step == steps - 1) gg_pack_complete(&packing, residue.data);
        gg_parallel_leave(former);
        GG_TRY_CLEANUP(status);
        GG_TRY_CLEANUP(gg_test_guarded_check(&gradient, "gradient"));
        gg_test_guarded_free(&gradient);
        gradient = (gg_test_guarded){0};
        PyObject *made = PyBytes_FromStringAndSize((const char *)message.data, (Py_ssize_t)bytes);
        const int failed = made == NULL ? -1 : PyList_Append(messages, made);
        Py_XDECREF(made);
        if (failed < 0) goto cleanup;
    }
    GG_TRY_CLEANUP(gg_test_guarded_check(&residue, "residue"));
    GG_TRY_CLEANUP(gg_test_guarded_check(&message, "message"));
    result = Py_BuildValue("ON", messages, array_of(&residue));
cleanup:
    if (status != GG_OK) gg_py_raise(status);
    Py_XDECREF(messages);
    gg_pack_marks_destroy(marks);
    gg_pack_room_destroy(room);
    if (device != NULL) device->table->close(device);
    gg_test_guarded_free(&gradient);
    gg_test_guarded_free(&residue);
    gg_test_guarded_free(&message);
    gg_free(segment);
    return result;
}

/* A message of pack or difference, added to a copy of `out`. gg_packed_check must say the same of it. */
PyObject *gg_test_unpack(PyObject *module, PyObject *args) {
    PyObject *rows, *into, *result = NULL;
    Py_buffer given;
    float factor;
    int count = 0;
    gg_test_guarded out = {0}, message = {0};
    gg_packing reader = {0};
    gg_segment *segment = NULL;
    gg_status status = GG_OK;
    (void)module;
    if (!PyArg_ParseTuple(args, "Oy*fO:unpack", &rows, &given, &factor, &into)) return NULL;
    if ((segment = segments_of(rows, &count)) == NULL || floats_of(into, "out", extent_of(segment, count), &out) < 0)
        goto cleanup;
    GG_TRY_CLEANUP(gg_test_guarded_copy(&message, given.buf, (size_t)given.len));
    GG_TRY_CLEANUP(reader_make(segment, count, NULL, &reader));
    const gg_float_mode former = gg_parallel_enter();
    const gg_status checked = gg_packed_check(&reader, message.data, (size_t)given.len);
    status = gg_unpack_add(&reader, message.data, (size_t)given.len, factor, out.data);
    gg_parallel_leave(former);
    if (checked != status)
        GG_FAIL_CLEANUP(GG_ERROR_STATE, "gg_packed_check gives %d, gg_unpack_add %d", checked, status);
    GG_TRY_CLEANUP(status);
    GG_TRY_CLEANUP(gg_test_guarded_check(&out, "out"));
    result = array_of(&out);
cleanup:
    if (status != GG_OK) gg_py_raise(status);
    reader_free(&reader);
    gg_test_guarded_free(&out);
    gg_test_guarded_free(&message);
    gg_free(segment);
    PyBuffer_Release(&given);
    return result;
}

/* For a choice: takes its values out of a copy of `residue`, and adds factor times them to a copy of `out`. Gives how
 * many values there are, their bytes, both copies and the counts. */
PyObject *gg_test_choice(PyObject *module, PyObject *args) {
    PyObject *rows, *from, *into, *result = NULL;
    Py_buffer given;
    float factor;
    int narrow, count = 0;
    size_t values = 0;
    gg_test_guarded residue = {0}, out = {0}, choice = {0}, moved = {0};
    gg_packing reader = {0};
    gg_segment *segment = NULL;
    gg_compression_counts counts = {0};
    gg_status status = GG_OK;
    (void)module;
    if (!PyArg_ParseTuple(args, "Oy*pfOO:choice", &rows, &given, &narrow, &factor, &from, &into)) return NULL;
    const gg_dtype dtype = narrow ? GG_BFLOAT16 : GG_FLOAT32;
    if ((segment = segments_of(rows, &count)) == NULL) goto cleanup;
    const size_t extent = extent_of(segment, count);
    if (floats_of(from, "residue", extent, &residue) < 0 || floats_of(into, "out", extent, &out) < 0) goto cleanup;
    GG_TRY_CLEANUP(gg_test_guarded_copy(&choice, given.buf, (size_t)given.len));
    GG_TRY_CLEANUP(gg_choice_values(segment, count, choice.data, (size_t)given.len, &values));
    GG_TRY_CLEANUP(gg_test_guarded_make(&moved, values * gg_dtype_size(dtype)));
    GG_TRY_CLEANUP(reader_make(segment, count, &counts, &reader));
    const gg_float_mode former = gg_parallel_enter();
    gg_pack_values(&reader, choice.data, dtype, residue.data, moved.data);
    gg_unpack_values_add(&reader, choice.data, dtype, moved.data, factor, out.data);
    gg_parallel_leave(former);
    GG_TRY_CLEANUP(gg_test_guarded_check(&residue, "residue"));
    GG_TRY_CLEANUP(gg_test_guarded_check(&out, "out"));
    GG_TRY_CLEANUP(gg_test_guarded_check(&moved, "values"));
    result = Py_BuildValue("ny#NNN", (Py_ssize_t)values, (const char *)moved.data, (Py_ssize_t)moved.bytes,
                           array_of(&residue), array_of(&out), counts_of(&counts));
cleanup:
    if (status != GG_OK) gg_py_raise(status);
    reader_free(&reader);
    gg_test_guarded_free(&residue);
    gg_test_guarded_free(&out);
    gg_test_guarded_free(&choice);
    gg_test_guarded_free(&moved);
    gg_free(segment);
    PyBuffer_Release(&given);
    return result;
}
