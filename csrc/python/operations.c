/* _core.run_op, run_loss and run_kernel: single operations of a table on plain arrays, for tests.
 *
 * Every buffer that the core writes or reads stands between guard bytes, and what an operation must write is filled
 * with NaN before. */
#include <math.h>
#include <string.h>

#include "base/memory.h"
#include "cpu/cpu_backend.h"
#include "python/python.h"

#define GUARD 256
#define GUARD_BYTE 0xA5

/* ---- guarded memory ---- */

typedef struct guarded {
    unsigned char *block;
    void *data;
    size_t bytes;
} guarded;

static gg_status guarded_make(guarded *g, size_t bytes) {
    gg_status status = GG_OK;
    GG_TRY(gg_alloc(bytes + 2 * GUARD, "guarded buffer", &g->block));
    g->bytes = bytes;
    g->data = g->block + GUARD;
    memset(g->block, GUARD_BYTE, bytes + 2 * GUARD);
    memset(g->data, 0xFF, bytes); /* NaN as float32 */
cleanup:
    return status;
}

static gg_status guarded_check(const guarded *g, const char *what) {
    if (g->block == NULL) return GG_OK;
    for (size_t i = 0; i < GUARD; ++i)
        if (g->block[i] != GUARD_BYTE || g->block[GUARD + g->bytes + i] != GUARD_BYTE)
            return gg_fail(GG_ERROR_BACKEND, "%s: a byte next to the buffer of %zu bytes was written", what, g->bytes);
    return GG_OK;
}

static void guarded_free(guarded *g) {
    gg_free(g->block);
    memset(g, 0, sizeof *g);
}

/* ---- one operation ---- */

typedef struct devices {
    gg_device *wanted, *native;
} devices;

static gg_status open_devices(const char *backend, gg_isa isa, int threads, devices *out) {
    gg_status status = GG_OK;
    const gg_backend *table = strcmp(backend, "onednn") == 0 ? gg_cpu_onednn() : &gg_backend_native;
    if (table == NULL) GG_TRY(gg_fail(GG_ERROR_UNSUPPORTED, "backend: 'onednn'; this build has no oneDNN"));
    GG_TRY(gg_backend_native.open(threads, isa, &out->native));
    GG_TRY(table->open(threads, isa, &out->wanted));
cleanup:
    return status;
}

static void close_devices(devices *d) {
    if (d->wanted != NULL) d->wanted->table->close(d->wanted);
    if (d->native != NULL) d->native->table->close(d->native);
}

static gg_status create_op(gg_device *device, const gg_op_desc *desc, gg_op **out) {
    if (device->table->create[desc->kind] == NULL)
        return gg_fail(GG_ERROR_UNSUPPORTED, "the table '%s' has no %s", device->table->name,
                       gg_op_kind_name(desc->kind));
    return device->table->create[desc->kind](device, desc, out);
}

/* Copies a batch from one format to another, one of them plain. */
static gg_status convert(devices *d, const gg_shape *shape, int64_t batch, gg_format from, gg_format to, const void *in,
                         void *out) {
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
    if (from.layout == to.layout) {
        memcpy(out, in, gg_format_bytes(from, shape, batch));
        return GG_OK;
    }
    if (create_op(d->wanted, &desc, &op) != GG_OK) GG_TRY(create_op(d->native, &desc, &op));
    GG_TRY(gg_alloc(op->scratch_bytes, "scratch", &scratch));
    GG_TRY(gg_alloc(op->saved_bytes, "saved", &saved));
    GG_TRY(op->type->forward(op, &(gg_op_args){.input = {in}, .output = out, .scratch = scratch, .saved = saved}));
cleanup:
    gg_op_destroy(op);
    gg_free(scratch);
    gg_free(saved);
    return status;
}

static const gg_format plain = {GG_FLOAT32, GG_LAYOUT_PLAIN};

/* Everything one run needs; arrays are plain and belong to Python. */
typedef struct op_run {
    gg_op_desc desc;
    const float *input[GG_MAX_INPUTS], *weight, *bias, *grad_output;
    float *output, *grad_input[GG_MAX_INPUTS], *grad_weight, *grad_bias;
    size_t weight_count, bias_count;
    uint32_t rank;
    uint64_t step;
} op_run;

static gg_status guarded_copy(guarded *g, const void *data, size_t bytes) {
    gg_status status = GG_OK;
    if (data == NULL) return GG_OK;
    GG_TRY(guarded_make(g, bytes));
    memcpy(g->data, data, bytes);
cleanup:
    return status;
}

static gg_status run_guarded(devices *d, op_run *run) {
    gg_status status = GG_OK;
    gg_op *op = NULL;
    const gg_op_desc *desc = &run->desc;
    guarded input[GG_MAX_INPUTS] = {0}, grad_input[GG_MAX_INPUTS] = {0}, output = {0}, grad_output = {0}, weight = {0},
            bias = {0}, grad_weight = {0}, grad_bias = {0}, saved = {0}, scratch = {0};
    gg_op_args args = {.rank = run->rank, .step = run->step};

    GG_TRY(create_op(d->wanted, desc, &op));
    GG_TRY(guarded_make(&saved, op->saved_bytes));
    GG_TRY(guarded_make(&scratch, op->scratch_bytes));
    GG_TRY(guarded_make(&output, gg_format_bytes(op->output, &desc->output, desc->batch)));
    GG_TRY(guarded_copy(&weight, run->weight, run->weight_count * sizeof(float)));
    GG_TRY(guarded_copy(&bias, run->bias, run->bias_count * sizeof(float)));
    for (int i = 0; i < desc->inputs; ++i) {
        GG_TRY(guarded_make(&input[i], gg_format_bytes(op->input[i], &desc->input[i], desc->batch)));
        memset(input[i].data, 0, input[i].bytes);
        GG_TRY(convert(d, &desc->input[i], desc->batch, plain, op->input[i], run->input[i], input[i].data));
        args.input[i] = input[i].data;
    }
    args.output = output.data;
    args.weight = weight.data;
    args.bias = bias.data;
    args.saved = saved.data;
    args.scratch = scratch.data;
    GG_TRY(op->type->forward(op, &args));
    GG_TRY(convert(d, &desc->output, desc->batch, op->output, plain, output.data, run->output));

    if (run->grad_output != NULL) {
        GG_TRY(guarded_make(&grad_output, output.bytes));
        memset(grad_output.data, 0, grad_output.bytes);
        GG_TRY(convert(d, &desc->output, desc->batch, plain, op->output, run->grad_output, grad_output.data));
        if (weight.block != NULL) GG_TRY(guarded_make(&grad_weight, weight.bytes));
        if (bias.block != NULL) GG_TRY(guarded_make(&grad_bias, bias.bytes));
        for (int i = 0; desc->input_grad && i < desc->inputs; ++i) {
            GG_TRY(guarded_make(&grad_input[i], input[i].bytes));
            args.grad_input[i] = grad_input[i].data;
            if (!op->backward_needs_input) args.input[i] = NULL;
        }
        if (!op->backward_needs_output) args.output = NULL;
        memset(scratch.data, 0xFF, scratch.bytes);
        args.grad_output = grad_output.data;
        args.grad_weight = grad_weight.data;
        args.grad_bias = grad_bias.data;
        GG_TRY(op->type->backward(op, &args));
        for (int i = 0; desc->input_grad && i < desc->inputs; ++i)
            GG_TRY(
                convert(d, &desc->input[i], desc->batch, op->input[i], plain, grad_input[i].data, run->grad_input[i]));
        if (grad_weight.block != NULL) memcpy(run->grad_weight, grad_weight.data, grad_weight.bytes);
        if (grad_bias.block != NULL) memcpy(run->grad_bias, grad_bias.data, grad_bias.bytes);
    }
    GG_TRY(guarded_check(&output, "output"));
    GG_TRY(guarded_check(&grad_output, "grad_output"));
    GG_TRY(guarded_check(&weight, "weight"));
    GG_TRY(guarded_check(&bias, "bias"));
    GG_TRY(guarded_check(&grad_weight, "grad_weight"));
    GG_TRY(guarded_check(&grad_bias, "grad_bias"));
    GG_TRY(guarded_check(&saved, "saved"));
    GG_TRY(guarded_check(&scratch, "scratch"));
    for (int i = 0; i < desc->inputs; ++i) {
        GG_TRY(guarded_check(&input[i], "input"));
        GG_TRY(guarded_check(&grad_input[i], "grad_input"));
    }
cleanup:
    gg_op_destroy(op);
    for (int i = 0; i < desc->inputs; ++i) {
        guarded_free(&input[i]);
        guarded_free(&grad_input[i]);
    }
    guarded *const all[] = {&output, &grad_output, &weight, &bias, &grad_weight, &grad_bias, &saved, &scratch};
    for (size_t i = 0; i < sizeof all / sizeof *all; ++i) guarded_free(all[i]);
    return status;
}

/* ---- from and to Python ---- */

static int isa_of(const char *name, gg_isa *out) {
    gg_status status = gg_isa_select(name, out);
    if (status != GG_OK) gg_py_raise(status);
    return status == GG_OK ? 0 : -1;
}

/* The sample's shape of a batch array. */
static int sample_shape(PyArrayObject *array, gg_shape *out) {
    if (PyArray_NDIM(array) < 2 || PyArray_NDIM(array) - 1 > GG_MAX_DIMS) {
        PyErr_Format(PyExc_ValueError, "inputs: an array has %d axes; 2 to %d are allowed", PyArray_NDIM(array),
                     GG_MAX_DIMS + 1);
        return -1;
    }
    out->dims = PyArray_NDIM(array) - 1;
    for (int i = 0; i < out->dims; ++i) out->size[i] = PyArray_DIM(array, i + 1);
    return 0;
}

static PyArrayObject *batch_array(int64_t batch, const gg_shape *shape) {
    npy_intp sizes[GG_MAX_DIMS + 1] = {(npy_intp)batch};
    for (int i = 0; i < shape->dims; ++i) sizes[i + 1] = (npy_intp)shape->size[i];
    return gg_py_new_array(shape->dims + 1, sizes, NPY_FLOAT32);
}

static PyArrayObject *optional(PyObject *object, const char *argument) {
    return object == NULL || object == Py_None ? NULL : gg_py_array(object, NPY_FLOAT32, argument);
}

/* Weight and bias must have the sizes that the operation will read. */
static int check_parameters(const gg_op_desc *desc, PyArrayObject *weight, PyArrayObject *bias) {
    const gg_window *w = &desc->window;
    bool convolution = desc->kind == GG_OP_CONV2D;
    int64_t outputs = desc->output.size[0], want = 0;
    if (convolution && desc->groups >= 1)
        want = outputs * (desc->input[0].size[0] / desc->groups) * w->kernel[0] * w->kernel[1];
    if (desc->kind == GG_OP_LINEAR) want = outputs * desc->input[0].size[0];
    if ((weight ? PyArray_SIZE(weight) : 0) != want || (bias && PyArray_SIZE(bias) != outputs)) {
        PyErr_Format(PyExc_ValueError, "weight, bias: %zd and %zd elements; the operation has %lld and %lld",
                     weight ? PyArray_SIZE(weight) : 0, bias ? PyArray_SIZE(bias) : 0, (long long)want,
                     (long long)outputs);
        return -1;
    }
    return 0;
}

/* The arrays of one run, all owned; NULL: the operation has none. */
typedef struct op_arrays {
    PyArrayObject *input[GG_MAX_INPUTS], *weight, *bias, *grad_output;
    PyArrayObject *output, *grad_input[GG_MAX_INPUTS], *grad_weight, *grad_bias;
} op_arrays;

static void op_arrays_free(op_arrays *a) {
    for (int i = 0; i < GG_MAX_INPUTS; ++i) {
        Py_XDECREF(a->input[i]);
        Py_XDECREF(a->grad_input[i]);
    }
    Py_XDECREF(a->weight);
    Py_XDECREF(a->bias);
    Py_XDECREF(a->grad_output);
    Py_XDECREF(a->output);
    Py_XDECREF(a->grad_weight);
    Py_XDECREF(a->grad_bias);
}

/* What is given, and with it the shapes of the inputs; the output's is known. -1 with an exception. */
static int op_arrays_take(op_arrays *a, op_run *run, PyObject *inputs, PyObject *weight, PyObject *bias,
                          PyObject *grad_output) {
    gg_op_desc *desc = &run->desc;
    for (int i = 0; i < desc->inputs; ++i) {
        a->input[i] = gg_py_array(PyList_GET_ITEM(inputs, i), NPY_FLOAT32, "inputs");
        if (a->input[i] == NULL || sample_shape(a->input[i], &desc->input[i]) < 0) return -1;
        desc->batch = PyArray_DIM(a->input[i], 0);
        desc->offered[i] = plain;
        run->input[i] = PyArray_DATA(a->input[i]);
    }
    a->weight = optional(weight, "weight");
    a->bias = optional(bias, "bias");
    a->grad_output = optional(grad_output, "grad_output");
    if (PyErr_Occurred()) return -1;
    desc->bias = a->bias != NULL;
    if (a->weight != NULL) {
        run->weight = PyArray_DATA(a->weight);
        run->weight_count = (size_t)PyArray_SIZE(a->weight);
    }
    if (a->bias != NULL) {
        run->bias = PyArray_DATA(a->bias);
        run->bias_count = (size_t)PyArray_SIZE(a->bias);
    }
    run->grad_output = a->grad_output ? PyArray_DATA(a->grad_output) : NULL;
    return 0;
}

/* What comes out. -1 with an exception. */
static int op_arrays_make(op_arrays *a, op_run *run) {
    const gg_op_desc *desc = &run->desc;
    if ((a->output = batch_array(desc->batch, &desc->output)) == NULL) return -1;
    run->output = PyArray_DATA(a->output);
    if (a->weight != NULL) {
        a->grad_weight = gg_py_new_array(PyArray_NDIM(a->weight), PyArray_DIMS(a->weight), NPY_FLOAT32);
        if (a->grad_weight == NULL) return -1;
        run->grad_weight = PyArray_DATA(a->grad_weight);
    }
    if (a->bias != NULL) {
        a->grad_bias = gg_py_new_array(PyArray_NDIM(a->bias), PyArray_DIMS(a->bias), NPY_FLOAT32);
        if (a->grad_bias == NULL) return -1;
        run->grad_bias = PyArray_DATA(a->grad_bias);
    }
    for (int i = 0; i < desc->inputs; ++i) {
        a->grad_input[i] = batch_array(desc->batch, &desc->input[i]);
        if (a->grad_input[i] == NULL) return -1;
        run->grad_input[i] = PyArray_DATA(a->grad_input[i]);
    }
    return 0;
}

static PyObject *op_result(const op_arrays *a, const gg_op_desc *desc) {
    PyObject *result = Py_BuildValue("{sO}", "output", a->output);
    if (result == NULL || a->grad_output == NULL) return result;
    PyObject *list = PyList_New(0);
    for (int i = 0; list != NULL && desc->input_grad && i < desc->inputs; ++i)
        if (PyList_Append(list, (PyObject *)a->grad_input[i]) < 0) Py_CLEAR(list);
    if (list == NULL || PyDict_SetItemString(result, "grad_inputs", list) < 0 ||
        PyDict_SetItemString(result, "grad_weight", a->grad_weight ? (PyObject *)a->grad_weight : Py_None) < 0 ||
        PyDict_SetItemString(result, "grad_bias", a->grad_bias ? (PyObject *)a->grad_bias : Py_None) < 0)
        Py_CLEAR(result);
    Py_XDECREF(list);
    return result;
}

static PyObject *run_op(PyObject *module, PyObject *args, PyObject *kwargs) {
    static char *names[] = {"backend",      "isa",        "kind",      "inputs",
                            "output_shape", "weight",     "bias",      "grad_output",
                            "threads",      "kernel",     "stride",    "padding",
                            "dilation",     "groups",     "ceil_mode", "count_include_pad",
                            "probability",  "activation", "seed",      "rank",
                            "step",         "input_grad", NULL};
    static const char *const backends[] = {"native", "onednn"};
    static const char *const activations[] = {"none", "relu"};
    const char *backend, *isa_name = NULL, *kind, *activation = "none";
    PyObject *inputs, *output_shape, *weight = NULL, *bias = NULL, *grad_output = NULL, *result = NULL;
    int threads = 1, ceil_mode = 0, include_pad = 1, input_grad = 1, choice = -1, kind_number = -1;
    long long kernel[2] = {1, 1}, stride[2] = {1, 1}, padding[2] = {0, 0}, dilation[2] = {1, 1}, groups = 1;
    unsigned int rank = 0;
    unsigned long long seed = 0, step = 0;
    gg_isa isa;
    devices d = {NULL, NULL};
    op_run run = {.desc = {.inputs = 0}};
    op_arrays arrays = {.weight = NULL};
    gg_op_desc *desc = &run.desc;
    gg_status status = GG_OK;
    const char *kind_names[GG_OP_COUNT];
    (void)module;

    if (!PyArg_ParseTupleAndKeywords(args, kwargs, "szsOO|$OOOi(LL)(LL)(LL)(LL)LppfsKIKp:run_op", names, &backend,
                                     &isa_name, &kind, &inputs, &output_shape, &weight, &bias, &grad_output, &threads,
                                     &kernel[0], &kernel[1], &stride[0], &stride[1], &padding[0], &padding[1],
                                     &dilation[0], &dilation[1], &groups, &ceil_mode, &include_pad, &desc->probability,
                                     &activation, &seed, &rank, &step, &input_grad))
        return NULL;
    for (int i = 0; i < GG_OP_COUNT; ++i) kind_names[i] = gg_op_kind_name((gg_op_kind)i);
    if (gg_py_choice("backend", backend, backends, 2) < 0 || isa_of(isa_name, &isa) < 0) return NULL;
    if ((kind_number = gg_py_choice("kind", kind, kind_names, GG_OP_COUNT)) < 0) return NULL;
    if ((choice = gg_py_choice("activation", activation, activations, 2)) < 0) return NULL;
    if (!PyList_Check(inputs) || PyList_GET_SIZE(inputs) < 1 || PyList_GET_SIZE(inputs) > GG_MAX_INPUTS)
        return PyErr_Format(PyExc_ValueError, "inputs: must be a list of 1 to %d arrays", GG_MAX_INPUTS);

    run.rank = rank;
    run.step = step;
    *desc = (gg_op_desc){.kind = (gg_op_kind)kind_number,
                         .inputs = (int)PyList_GET_SIZE(inputs),
                         .groups = groups,
                         .activation = (gg_activation)choice,
                         .probability = desc->probability,
                         .seed = seed,
                         .training = true,
                         .input_grad = input_grad,
                         .window = {.ceil_mode = ceil_mode, .count_include_pad = include_pad}};
    for (int i = 0; i < 2; ++i) {
        desc->window.kernel[i] = kernel[i];
        desc->window.stride[i] = stride[i];
        desc->window.padding[i] = padding[i];
        desc->window.dilation[i] = dilation[i];
    }
    if (gg_py_shape(output_shape, "output_shape", &desc->output) < 0) goto cleanup;
    if (op_arrays_take(&arrays, &run, inputs, weight, bias, grad_output) < 0) goto cleanup;
    if (check_parameters(desc, arrays.weight, arrays.bias) < 0 || op_arrays_make(&arrays, &run) < 0) goto cleanup;
    if (arrays.grad_output != NULL && PyArray_SIZE(arrays.grad_output) != PyArray_SIZE(arrays.output)) {
        PyErr_SetString(PyExc_ValueError, "grad_output: does not have the output's size");
        goto cleanup;
    }
    Py_BEGIN_ALLOW_THREADS;
    status = open_devices(backend, isa, threads, &d);
    if (status == GG_OK) status = run_guarded(&d, &run);
    close_devices(&d);
    Py_END_ALLOW_THREADS;
    result = status == GG_OK ? op_result(&arrays, desc) : gg_py_raise(status);
cleanup:
    op_arrays_free(&arrays);
    return result;
}

/* The loss on a batch in one of two layouts. */
static gg_status guarded_loss(devices *d, gg_loss_args *args, float *gradient) {
    gg_status status = GG_OK;
    guarded prediction = {0}, grad = {0};
    gg_shape shape = {1, {args->features}};
    gg_format format = {GG_FLOAT32, args->layout};
    size_t bytes = gg_format_bytes(format, &shape, args->batch);
    GG_TRY(guarded_make(&prediction, bytes));
    GG_TRY(guarded_make(&grad, bytes));
    memset(prediction.data, 0, bytes);
    GG_TRY(convert(d, &shape, args->batch, plain, format, args->prediction, prediction.data));
    args->prediction = prediction.data;
    args->gradient = grad.data;
    d->native->table->loss(d->native, args);
    GG_TRY(guarded_check(&prediction, "prediction"));
    GG_TRY(guarded_check(&grad, "gradient"));
    if (args->layout == GG_LAYOUT_BATCH_LAST)
        for (int64_t f = 0, lanes = gg_lanes_padded(args->batch); f < args->features; ++f)
            for (int64_t n = args->batch; n < lanes; ++n)
                if (((float *)grad.data)[f * lanes + n] != 0.0f)
                    GG_TRY(gg_fail(GG_ERROR_BACKEND, "gradient: padding lane %lld of feature %lld is not zero",
                                   (long long)n, (long long)f));
    GG_TRY(convert(d, &shape, args->batch, format, plain, grad.data, gradient));
cleanup:
    guarded_free(&prediction);
    guarded_free(&grad);
    return status;
}

static PyObject *run_loss(PyObject *module, PyObject *args, PyObject *kwargs) {
    static char *names[] = {"isa", "kind", "layout", "prediction", "targets", NULL};
    const char *isa_name, *kind, *layout;
    PyObject *prediction_object, *targets_object, *result = NULL;
    PyArrayObject *prediction = NULL, *targets = NULL, *gradient = NULL;
    gg_isa isa;
    devices d = {NULL, NULL};
    gg_status status;
    (void)module;
    if (!PyArg_ParseTupleAndKeywords(args, kwargs, "zssOO:run_loss", names, &isa_name, &kind, &layout,
                                     &prediction_object, &targets_object))
        return NULL;
    int kind_number = gg_py_choice("kind", kind, gg_py_loss_names, GG_LOSS_COUNT);
    int layout_number = gg_py_choice("layout", layout, gg_py_layout_names, GG_LAYOUT_COUNT);
    if (kind_number < 0 || layout_number < 0 || isa_of(isa_name, &isa) < 0) return NULL;
    prediction = gg_py_array(prediction_object, NPY_FLOAT32, "prediction");
    if (prediction == NULL) goto cleanup;
    targets = gg_py_array(targets_object, kind_number == GG_LOSS_CROSS_ENTROPY ? NPY_INT32 : NPY_FLOAT32, "targets");
    if (targets == NULL) goto cleanup;
    if (PyArray_NDIM(prediction) != 2) {
        PyErr_SetString(PyExc_ValueError, "prediction: must have two axes");
        goto cleanup;
    }
    gradient = gg_py_new_array(2, PyArray_DIMS(prediction), NPY_FLOAT32);
    if (gradient == NULL) goto cleanup;
    gg_loss_args loss = {.kind = (gg_loss_kind)kind_number,
                         .layout = (gg_layout)layout_number,
                         .batch = PyArray_DIM(prediction, 0),
                         .features = PyArray_DIM(prediction, 1),
                         .prediction = PyArray_DATA(prediction),
                         .targets = PyArray_DATA(targets)};
    status = open_devices("native", isa, 1, &d);
    if (status == GG_OK) status = guarded_loss(&d, &loss, PyArray_DATA(gradient));
    close_devices(&d);
    result =
        status == GG_OK ? Py_BuildValue("dLO", loss.loss_sum, (long long)loss.correct, gradient) : gg_py_raise(status);
cleanup:
    Py_XDECREF(prediction);
    Py_XDECREF(targets);
    Py_XDECREF(gradient);
    return result;
}

/* ---- arena kernels ---- */

#define MOST_ARRAYS 8
#define MOST_NUMBERS 12
#define OUTS 4

static PyObject *array_copy(const float *data, Py_ssize_t n) {
    PyArrayObject *array = gg_py_new_array(1, (npy_intp[]){n}, NPY_FLOAT32);
    if (array != NULL) memcpy(PyArray_DATA(array), data, (size_t)n * sizeof(float));
    return (PyObject *)array;
}

/* The numbers of a bfloat16 array as float32. */
static PyObject *widened_copy(const uint16_t *data, Py_ssize_t n) {
    PyArrayObject *array = gg_py_new_array(1, (npy_intp[]){n}, NPY_FLOAT32);
    for (Py_ssize_t i = 0; array != NULL && i < n; ++i) {
        const uint32_t bits = (uint32_t)data[i] << 16;
        memcpy((float *)PyArray_DATA(array) + i, &bits, sizeof bits);
    }
    return (PyObject *)array;
}

/* The same, of either type. */
static PyObject *wire_copy(gg_dtype wire, const void *data, Py_ssize_t n) {
    return wire == GG_BFLOAT16 ? widened_copy(data, n) : array_copy(data, n);
}

/* Rounds the float32 of a buffer to bfloat16, in place, as what came from a partner. */
static const void *as_wire(gg_device *device, gg_dtype wire, float *buffer, size_t n) {
    if (wire == GG_BFLOAT16 && buffer != NULL) device->table->narrow(device, n, buffer, (uint16_t *)buffer);
    return buffer;
}

/* arrays: gradient, weight, momentum, second moment, and what was received for those three. numbers: rule, bfloat16
 * wire?, and the fields from grad_scale to eps. Gives what the arrays and the copies are then, and the compute copy. */
static PyObject *update_kernel(gg_device *device, Py_ssize_t n, float *const *in, const double *number,
                               float *const *outs) {
    const gg_dtype wire = number[1] != 0 ? GG_BFLOAT16 : GG_FLOAT32;
    const size_t size = (size_t)n;
    const gg_update_args args = {.n = size,
                                 .rule = (gg_update_rule)number[0],
                                 .wire = wire,
                                 .grad = in[0],
                                 .weight = in[1],
                                 .momentum = in[2],
                                 .square = in[3],
                                 .weight_after = as_wire(device, wire, in[4], size),
                                 .momentum_before = as_wire(device, wire, in[5], size),
                                 .square_before = as_wire(device, wire, in[6], size),
                                 .weight_copy = outs[0],
                                 .momentum_copy = in[2] ? outs[1] : NULL,
                                 .square_copy = in[3] ? outs[2] : NULL,
                                 .compute_copy = (uint16_t *)outs[3],
                                 .grad_scale = (float)number[2],
                                 .lr = (float)number[3],
                                 .mu = (float)number[4],
                                 .weight_decay = (float)number[5],
                                 .d_share = (float)number[6],
                                 .beta2 = (float)number[7],
                                 .square_share = (float)number[8],
                                 .keep = (float)number[9],
                                 .root_scale = (float)number[10],
                                 .eps = (float)number[11]};
    if (in[0] == NULL || in[1] == NULL || (args.rule != GG_UPDATE_PLAIN && in[2] == NULL) ||
        (args.rule == GG_UPDATE_ADAM && in[3] == NULL))
        return PyErr_Format(PyExc_ValueError, "update: an array that the rule needs is None");
    device->table->update(device, &args);
    return Py_BuildValue("NNNNNNN", array_copy(in[1], n), in[2] ? array_copy(in[2], n) : Py_NewRef(Py_None),
                         in[3] ? array_copy(in[3], n) : Py_NewRef(Py_None), wire_copy(wire, outs[0], n),
                         in[2] ? wire_copy(wire, outs[1], n) : Py_NewRef(Py_None),
                         in[3] ? wire_copy(wire, outs[2], n) : Py_NewRef(Py_None),
                         widened_copy((const uint16_t *)outs[3], n));
}

/* Runs one kernel over buffers of n elements. mix: base, received, sent; the numbers are the share and whether bfloat16
 * travels. */
static PyObject *kernel(gg_device *device, const char *name, Py_ssize_t n, Py_ssize_t count, float *const *buffer,
                        const double *number, float *const *outs) {
    const gg_backend *table = device->table;
    const float *const *in = (const float *const *)buffer;
    float *out = outs[0];
    size_t size = (size_t)n;
    if (strcmp(name, "update") == 0) return update_kernel(device, n, buffer, number, outs);
    if (strcmp(name, "mix") == 0) {
        const gg_dtype wire = number[1] != 0 ? GG_BFLOAT16 : GG_FLOAT32;
        table->mix(device, size, wire, (float)number[0], in[0], as_wire(device, wire, buffer[1], size), in[2], out);
        return array_copy(out, n);
    }
    if (strcmp(name, "halve") == 0) {
        const gg_dtype wire = number[0] != 0 ? GG_BFLOAT16 : GG_FLOAT32;
        table->halve(device, size, wire, in[0], as_wire(device, wire, buffer[1], size), out);
        return array_copy(out, n);
    }
    if (strcmp(name, "narrow") == 0) {
        uint16_t *narrow = (uint16_t *)outs[1];
        table->narrow(device, size, in[0], narrow);
        table->widen(device, size, narrow, out);
        return array_copy(out, n);
    }
    if (strcmp(name, "narrow_difference") == 0) {
        const uint16_t *narrow = as_wire(device, GG_BFLOAT16, buffer[1], size);
        table->narrow_difference(device, size, in[0], narrow, (uint16_t *)outs[1]);
        memcpy(out, in[0], size * sizeof(float));
        table->widen_add(device, size, (const uint16_t *)outs[1], out);
        return Py_BuildValue("NN", widened_copy((const uint16_t *)outs[1], n), array_copy(out, n));
    }
    if (strcmp(name, "weighted_sum") == 0 || strcmp(name, "narrow_sum") == 0) {
        float scale[MOST_ARRAYS];
        for (Py_ssize_t i = 0; i < count; ++i) scale[i] = (float)number[i];
        if (*name == 'w') return table->weighted_sum(device, size, (int)count, in, scale, out), array_copy(out, n);
        for (Py_ssize_t i = 0; i < count; ++i) as_wire(device, GG_BFLOAT16, buffer[i], size);
        uint16_t *rounded = (uint16_t *)outs[1];
        PyObject *sum = NULL;
        table->narrow_sum(device, size, (int)count, (const uint16_t *const *)in, scale, out, NULL);
        sum = array_copy(out, n);
        table->narrow_sum(device, size, (int)count, (const uint16_t *const *)in, scale, out, rounded);
        return Py_BuildValue("NNN", sum, array_copy(out, n), widened_copy(rounded, n));
    }
    if (strcmp(name, "sum_squares") == 0) return PyFloat_FromDouble(table->sum_squares(device, size, in[0], in[1]));
    if (strcmp(name, "all_finite") == 0) return PyBool_FromLong(table->all_finite(device, size, in[0]));
    return PyErr_Format(
        PyExc_ValueError,
        "name: '%s'; allowed are update, mix, halve, narrow, narrow_difference, weighted_sum, narrow_sum, "
        "sum_squares, all_finite",
        name);
}

static PyObject *run_kernel(PyObject *module, PyObject *args, PyObject *kwargs) {
    static char *names[] = {"isa", "name", "arrays", "numbers", NULL};
    const char *isa_name, *name;
    PyObject *arrays, *numbers, *result = NULL;
    double number[MOST_NUMBERS] = {0};
    guarded buffer[MOST_ARRAYS + OUTS] = {0};
    float *data[MOST_ARRAYS] = {NULL}, *outs[OUTS] = {NULL};
    Py_ssize_t n = 0;
    gg_device *device = NULL;
    gg_isa isa;
    gg_status status = GG_OK;
    (void)module;
    if (!PyArg_ParseTupleAndKeywords(args, kwargs, "zsO!O!:run_kernel", names, &isa_name, &name, &PyList_Type, &arrays,
                                     &PyList_Type, &numbers))
        return NULL;
    if (isa_of(isa_name, &isa) < 0) return NULL;
    Py_ssize_t count = PyList_GET_SIZE(arrays);
    if (count > MOST_ARRAYS || PyList_GET_SIZE(numbers) > MOST_NUMBERS)
        return PyErr_Format(PyExc_ValueError, "arrays: at most %d; numbers: at most %d", MOST_ARRAYS, MOST_NUMBERS);
    for (Py_ssize_t i = 0; i < PyList_GET_SIZE(numbers); ++i) number[i] = PyFloat_AsDouble(PyList_GET_ITEM(numbers, i));
    if (PyErr_Occurred()) return NULL;
    for (Py_ssize_t i = 0; i < count; ++i) {
        PyObject *item = PyList_GET_ITEM(arrays, i);
        if (item == Py_None) continue;
        PyArrayObject *array = gg_py_array(item, NPY_FLOAT32, "arrays");
        if (array == NULL) goto cleanup;
        if (n == 0) n = PyArray_SIZE(array);
        if (PyArray_SIZE(array) != n || n % GG_LANES != 0)
            PyErr_Format(PyExc_ValueError, "arrays: sizes must be equal and multiples of %d", GG_LANES);
        else if ((status = guarded_copy(&buffer[i], PyArray_DATA(array), (size_t)n * sizeof(float))) != GG_OK)
            gg_py_raise(status);
        Py_DECREF(array);
        if (PyErr_Occurred()) goto cleanup;
        data[i] = buffer[i].data;
    }
    status = gg_backend_native.open(1, isa, &device);
    for (int i = 0; status == GG_OK && i < OUTS; ++i) {
        status = guarded_make(&buffer[MOST_ARRAYS + i], (size_t)n * sizeof(float));
        outs[i] = buffer[MOST_ARRAYS + i].data;
    }
    if (status != GG_OK) {
        gg_py_raise(status);
        goto cleanup;
    }
    result = kernel(device, name, n, count, data, number, outs);
    for (int i = 0; result != NULL && i < MOST_ARRAYS + OUTS; ++i)
        if ((status = guarded_check(&buffer[i], name)) != GG_OK) {
            Py_CLEAR(result);
            gg_py_raise(status);
        }
cleanup:
    if (device != NULL) device->table->close(device);
    for (int i = 0; i < MOST_ARRAYS + OUTS; ++i) guarded_free(&buffer[i]);
    return result;
}

#define KEYWORDS(function) (PyCFunction)(void (*)(void))(function), METH_VARARGS | METH_KEYWORDS

static PyMethodDef functions[] = {
    {"run_op", KEYWORDS(run_op), "One operation of one table on plain arrays, between guard bytes."},
    {"run_loss", KEYWORDS(run_loss), "Sum of losses, samples right, gradient of the mean."},
    {"run_kernel", KEYWORDS(run_kernel), "A kernel on arenas."},
    {NULL, NULL, 0, NULL}};

int gg_py_add_operations(PyObject *module) { return PyModule_AddFunctions(module, functions); }
