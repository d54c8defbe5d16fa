/* run_op: one operation, forward and backward. */
#include <string.h>

#include "base/parallel.h"
#include "operations/operations.h"

/* Everything one run needs; arrays are plain and belong to Python. */
typedef struct op_run {
    gg_op_desc desc;
    const float *input[GG_MAX_INPUTS], *weight, *bias, *grad_output;
    float *output, *grad_input[GG_MAX_INPUTS], *grad_weight, *grad_bias;
    size_t weight_count, bias_count;
    uint32_t rank;
    uint64_t step;
} op_run;

static gg_status run_guarded(gg_test_devices *d, op_run *run) {
    gg_status status = GG_OK;
    gg_op *op = NULL;
    const gg_op_desc *desc = &run->desc;
    gg_test_guarded input[GG_MAX_INPUTS] = {0}, grad_input[GG_MAX_INPUTS] = {0}, output = {0}, grad_output = {0},
                    weight = {0}, bias = {0}, grad_weight = {0}, grad_bias = {0}, saved = {0}, scratch = {0};
    gg_op_args args = {.rank = run->rank, .step = run->step};

    GG_TRY(gg_test_op_create(d->wanted, desc, &op));
    GG_TRY(gg_test_guarded_make(&saved, op->saved_bytes));
    GG_TRY(gg_test_guarded_make(&scratch, op->scratch_bytes));
    GG_TRY(gg_test_guarded_make(&output, gg_format_bytes(op->output, &desc->output, desc->batch)));
    GG_TRY(gg_test_guarded_copy(&weight, run->weight, run->weight_count * sizeof(float)));
    GG_TRY(gg_test_guarded_copy(&bias, run->bias, run->bias_count * sizeof(float)));
    for (int i = 0; i < desc->inputs; ++i) {
        GG_TRY(gg_test_guarded_make(&input[i], gg_format_bytes(op->input[i], &desc->input[i], desc->batch)));
        memset(input[i].data, 0, input[i].bytes);
        GG_TRY(gg_test_convert(d, &desc->input[i], desc->batch, gg_test_plain, op->input[i], run->input[i],
                               input[i].data));
        args.input[i] = input[i].data;
    }
    args.output = output.data;
    const float *parameter[] = {weight.data, bias.data};
    args.parameter = parameter;
    args.saved = saved.data;
    args.scratch = scratch.data;
    GG_TRY(op->type->forward(op, &args));
    GG_TRY(gg_test_convert(d, &desc->output, desc->batch, op->output, gg_test_plain, output.data, run->output));

    if (run->grad_output != NULL) {
        GG_TRY(gg_test_guarded_make(&grad_output, output.bytes));
        memset(grad_output.data, 0, grad_output.bytes);
        GG_TRY(gg_test_convert(d, &desc->output, desc->batch, gg_test_plain, op->output, run->grad_output,
                               grad_output.data));
        if (weight.block != NULL) GG_TRY(gg_test_guarded_make(&grad_weight, weight.bytes));
        if (bias.block != NULL) GG_TRY(gg_test_guarded_make(&grad_bias, bias.bytes));
        for (int i = 0; desc->input_grad && i < desc->inputs; ++i) {
            GG_TRY(gg_test_guarded_make(&grad_input[i], input[i].bytes));
            args.grad_input[i] = grad_input[i].data;
            if (!op->backward_needs_input) args.input[i] = NULL;
        }
        if (!op->backward_needs_output) args.output = NULL;
        float *gradient[] = {grad_weight.data, grad_bias.data};
        memset(scratch.data, 0xFF, scratch.bytes);
        args.grad_output = grad_output.data;
        args.gradient = gradient;
        GG_TRY(op->type->backward(op, &args));
        for (int i = 0; desc->input_grad && i < desc->inputs; ++i)
            GG_TRY(gg_test_convert(d, &desc->input[i], desc->batch, op->input[i], gg_test_plain, grad_input[i].data,
                                   run->grad_input[i]));
        if (grad_weight.block != NULL) memcpy(run->grad_weight, grad_weight.data, grad_weight.bytes);
        if (grad_bias.block != NULL) memcpy(run->grad_bias, grad_bias.data, grad_bias.bytes);
    }
    GG_TRY(gg_test_guarded_check(&output, "output"));
    GG_TRY(gg_test_guarded_check(&grad_output, "grad_output"));
    GG_TRY(gg_test_guarded_check(&weight, "weight"));
    GG_TRY(gg_test_guarded_check(&bias, "bias"));
    GG_TRY(gg_test_guarded_check(&grad_weight, "grad_weight"));
    GG_TRY(gg_test_guarded_check(&grad_bias, "grad_bias"));
    GG_TRY(gg_test_guarded_check(&saved, "saved"));
    GG_TRY(gg_test_guarded_check(&scratch, "scratch"));
    for (int i = 0; i < desc->inputs; ++i) {
        GG_TRY(gg_test_guarded_check(&input[i], "input"));
        GG_TRY(gg_test_guarded_check(&grad_input[i], "grad_input"));
    }
cleanup:
    gg_op_destroy(op);
    for (int i = 0; i < desc->inputs; ++i) {
        gg_test_guarded_free(&input[i]);
        gg_test_guarded_free(&grad_input[i]);
    }
    gg_test_guarded *const all[] = {&output, &grad_output, &weight, &bias, &grad_weight, &grad_bias, &saved, &scratch};
    for (size_t i = 0; i < sizeof all / sizeof *all; ++i) gg_test_guarded_free(all[i]);
    return status;
}

/* ---- from and to Python ---- */

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
        desc->offered[i] = gg_test_plain;
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

PyObject *gg_test_run_op(PyObject *module, PyObject *args, PyObject *kwargs) {
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
    gg_test_devices d = {NULL, NULL};
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
    if (gg_py_choice("backend", backend, backends, 2) < 0 || gg_test_isa_of(isa_name, &isa) < 0) return NULL;
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
    const gg_float_mode former = gg_parallel_enter();
    status = gg_test_devices_open(backend, isa, threads, &d);
    if (status == GG_OK) status = run_guarded(&d, &run);
    gg_test_devices_close(&d);
    gg_parallel_leave(former);
    Py_END_ALLOW_THREADS;
    result = status == GG_OK ? op_result(&arrays, desc) : gg_py_raise(status);
cleanup:
    op_arrays_free(&arrays);
    return result;
}
