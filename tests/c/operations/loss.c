/* run_loss: the loss of a batch and its gradient. */
#include <string.h>

#include "base/parallel.h"
#include "operations/operations.h"

/* The loss on a batch in one of two layouts. */
static gg_status guarded_loss(gg_test_devices *d, gg_loss_args *args, float *gradient) {
    gg_status status = GG_OK;
    gg_test_guarded prediction = {0}, grad = {0};
    gg_shape shape = {2, {args->positions, args->features}};
    gg_format format = {GG_FLOAT32, args->layout};
    size_t bytes = gg_format_bytes(format, &shape, args->batch);
    GG_TRY_CLEANUP(gg_test_guarded_make(&prediction, bytes));
    GG_TRY_CLEANUP(gg_test_guarded_make(&grad, bytes));
    memset(prediction.data, 0, bytes);
    GG_TRY_CLEANUP(gg_test_convert(d, &shape, args->batch, gg_test_plain, format, args->prediction, prediction.data));
    args->prediction = prediction.data;
    args->gradient = grad.data;
    d->native->table->loss(d->native, args);
    GG_TRY_CLEANUP(gg_test_guarded_check(&prediction, "prediction"));
    GG_TRY_CLEANUP(gg_test_guarded_check(&grad, "gradient"));
    if (args->layout == GG_LAYOUT_BATCH_LAST)
        for (int64_t f = 0, lanes = gg_lanes_padded(args->batch); f < args->positions * args->features; ++f)
            for (int64_t n = args->batch; n < lanes; ++n)
                if (((float *)grad.data)[f * lanes + n] != 0.0f)
                    GG_TRY_CLEANUP(gg_fail(GG_ERROR_BACKEND, "gradient: padding lane %lld of value %lld is not zero",
                                           (long long)n, (long long)f));
    GG_TRY_CLEANUP(gg_test_convert(d, &shape, args->batch, format, gg_test_plain, grad.data, gradient));
cleanup:
    gg_test_guarded_free(&prediction);
    gg_test_guarded_free(&grad);
    return status;
}

/* An optional array of `count` float32. -1 with an exception. */
static int loss_floats(PyObject *object, const char *name, int64_t count, PyArrayObject **array, const float **out) {
    if (object == Py_None) return 0;
    *array = gg_py_array(object, NPY_FLOAT32, name);
    if (*array == NULL) return -1;
    *out = PyArray_DATA(*array);
    if (PyArray_SIZE(*array) == count) return 0;
    PyErr_Format(PyExc_ValueError, "%s: %zd numbers; %lld are needed", name, PyArray_SIZE(*array), (long long)count);
    return -1;
}

PyObject *gg_test_run_loss(PyObject *module, PyObject *args, PyObject *kwargs) {
    static char *names[] = {"isa",
                            "kind",
                            "layout",
                            "prediction",
                            "targets",
                            "class_weights",
                            "sample_weights",
                            "threads",
                            "label_smoothing",
                            "ignore_index",
                            NULL};
    const char *isa_name, *kind, *layout;
    PyObject *prediction_object, *targets_object, *class_object = Py_None, *sample_object = Py_None, *result = NULL;
    PyObject *ignored = Py_None;
    PyArrayObject *prediction = NULL, *targets = NULL, *gradient = NULL, *class_array = NULL, *sample_array = NULL;
    gg_loss_result sums = {0};
    gg_loss_args loss = {.positions = 1, .result = &sums};
    gg_isa isa;
    gg_test_devices d = {NULL, NULL};
    gg_status status;
    int threads = 1;
    (void)module;
    if (!PyArg_ParseTupleAndKeywords(args, kwargs, "zssOO|$OOifO:run_loss", names, &isa_name, &kind, &layout,
                                     &prediction_object, &targets_object, &class_object, &sample_object, &threads,
                                     &loss.loss.label_smoothing, &ignored))
        return NULL;
    int kind_number = gg_py_choice("kind", kind, gg_py_loss_names, GG_LOSS_COUNT);
    int layout_number = gg_py_choice("layout", layout, gg_py_layout_names, GG_LAYOUT_COUNT);
    if (kind_number < 0 || layout_number < 0 || gg_test_isa_of(isa_name, &isa) < 0) return NULL;
    prediction = gg_py_array(prediction_object, NPY_FLOAT32, "prediction");
    if (prediction == NULL) goto cleanup;
    targets = gg_py_array(targets_object, kind_number == GG_LOSS_CROSS_ENTROPY ? NPY_INT32 : NPY_FLOAT32, "targets");
    if (targets == NULL) goto cleanup;
    const int axes = PyArray_NDIM(prediction);
    if (axes < 2 || axes > 3) {
        PyErr_SetString(PyExc_ValueError, "prediction: must have two or three axes");
        goto cleanup;
    }
    gradient = gg_py_new_array(axes, PyArray_DIMS(prediction), NPY_FLOAT32);
    if (gradient == NULL) goto cleanup;
    loss.loss.kind = (gg_loss_kind)kind_number;
    loss.loss.ignores = ignored != Py_None;
    loss.loss.ignore_index = ignored != Py_None ? (int32_t)PyLong_AsLong(ignored) : 0;
    loss.layout = (gg_layout)layout_number;
    loss.batch = PyArray_DIM(prediction, 0);
    if (axes == 3) loss.positions = PyArray_DIM(prediction, 1);
    loss.features = PyArray_DIM(prediction, axes - 1);
    loss.prediction = PyArray_DATA(prediction);
    loss.targets = PyArray_DATA(targets);
    if (loss_floats(class_object, "class_weights", loss.features, &class_array, &loss.loss.class_weights) < 0 ||
        loss_floats(sample_object, "sample_weights", loss.batch, &sample_array, &loss.sample_weights) < 0 ||
        PyErr_Occurred())
        goto cleanup;
    const gg_float_mode former = gg_parallel_enter();
    status = gg_test_devices_open("native", isa, threads, &d);
    if (status == GG_OK) status = guarded_loss(&d, &loss, PyArray_DATA(gradient));
    gg_test_devices_close(&d);
    gg_parallel_leave(former);
    result = status == GG_OK ? Py_BuildValue("dLOdL", sums.loss_sum, (long long)sums.correct, gradient, sums.divisor,
                                             (long long)sums.counted)
                             : gg_py_raise(status);
cleanup:
    Py_XDECREF(prediction);
    Py_XDECREF(targets);
    Py_XDECREF(gradient);
    Py_XDECREF(class_array);
    Py_XDECREF(sample_array);
    return result;
}
