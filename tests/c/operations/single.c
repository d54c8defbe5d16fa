/* run_op: one operation, forward and backward. */
#include <string.h>

#include "base/parallel.h"
#include "operations/operations.h"

/* Parameters of one operation, at most. */
#define MAX_PARAMETERS 32

/* Everything one run needs; arrays are plain and belong to Python. Inputs are float32 or int32, all else float32. */
typedef struct op_run {
    gg_op_desc desc;
    const void *input[GG_MAX_INPUTS];
    int parameters;
    const float *parameter[MAX_PARAMETERS], *grad_output;
    float *output, *grad_input[GG_MAX_INPUTS], *gradient[MAX_PARAMETERS];
    size_t parameter_count[MAX_PARAMETERS];
    uint32_t rank;
    uint64_t step;
    bool evaluate;
    bool over_output; /* gradients of inputs lie over the output, where they may */
    float *carried;   /* as many a sample as its layer says; NULL: none */
    size_t carried_count;
    bool lanes;          /* float32 inputs are offered BATCH_LAST */
    gg_format chosen[2]; /* out: of the first input and of the output */
} op_run;

/* The buffers of one run. */
typedef struct op_buffers {
    gg_test_guarded input[GG_MAX_INPUTS], grad_input[GG_MAX_INPUTS];
    gg_test_guarded parameter[MAX_PARAMETERS], gradient[MAX_PARAMETERS];
    gg_test_guarded output, grad_output, prepared, saved, scratch, carried, step;
    const float *parameter_at[MAX_PARAMETERS];
    float *gradient_at[MAX_PARAMETERS];
} op_buffers;

static gg_status make_input(gg_test_devices *d, const op_run *run, const gg_op *op, int i, gg_test_guarded *out) {
    const gg_op_desc *desc = &op->desc;
    const bool integers = desc->offered[i].dtype == GG_INT32;
    const gg_format from = {integers ? GG_INT32 : GG_FLOAT32, GG_LAYOUT_PLAIN}, to = op->input[i];
    GG_TRY(gg_test_guarded_make(out, gg_format_bytes(to, &desc->input[i], desc->batch)));
    memset(out->data, 0, out->bytes);
    return gg_test_convert(d, &desc->input[i], desc->batch, from, to, run->input[i], out->data);
}

static gg_status run_forward(gg_test_devices *d, op_run *run, gg_op *op, op_buffers *b, gg_op_args *args) {
    const gg_op_desc *desc = &run->desc;
    GG_TRY(gg_test_guarded_make(&b->prepared, op->prepared_bytes));
    GG_TRY(gg_test_guarded_make(&b->saved, op->saved_bytes));
    GG_TRY(gg_test_guarded_make(&b->scratch, op->scratch_bytes));
    GG_TRY(gg_test_guarded_make(&b->output, gg_format_bytes(op->output, &desc->output, desc->batch)));
    for (int i = 0; i < run->parameters; ++i) {
        GG_TRY(gg_test_guarded_copy(&b->parameter[i], run->parameter[i], run->parameter_count[i] * sizeof(float)));
        GG_TRY(gg_test_guarded_send(&b->parameter[i], d->wanted, &b->parameter_at[i]));
    }
    for (int i = 0; i < desc->inputs; ++i) {
        GG_TRY(make_input(d, run, op, i, &b->input[i]));
        GG_TRY(gg_test_guarded_send(&b->input[i], d->wanted, &args->input[i]));
    }
    args->parameter = b->parameter_at;
    GG_TRY(gg_test_guarded_copy(&b->step, &run->step, sizeof run->step));
    GG_TRY(gg_test_guarded_send(&b->output, d->wanted, &args->output));
    GG_TRY(gg_test_guarded_send(&b->prepared, d->wanted, &args->prepared));
    GG_TRY(gg_test_guarded_send(&b->saved, d->wanted, &args->saved));
    GG_TRY(gg_test_guarded_send(&b->scratch, d->wanted, &args->scratch));
    GG_TRY(gg_test_guarded_send(&b->step, d->wanted, &args->step));
    args->evaluate = run->evaluate;
    GG_TRY(gg_test_guarded_copy(&b->carried, run->carried, run->carried_count * sizeof(float)));
    GG_TRY(gg_test_guarded_send(&b->carried, d->wanted, &args->carried));
    if (op->type->forward != NULL) {
        GG_TRY(gg_op_prepare(op, args, GG_PASS_FORWARD));
        GG_TRY(gg_op_forward(op, args));
    } else { /* backward alone: the output is the negated error */
        const size_t count = (size_t)desc->batch * (size_t)gg_shape_count(&desc->output);
        for (size_t i = 0; i < count; ++i) run->output[i] = -run->grad_output[i];
        GG_TRY(gg_test_convert(d, &desc->output, desc->batch, gg_test_plain, op->output, run->output, b->output.data));
    }
    GG_TRY(gg_test_padding_check(&desc->output, desc->batch, op->output, b->output.data, false, "output"));
    GG_TRY(gg_test_guarded_fetch(&b->carried));
    GG_TRY(gg_test_guarded_fetch(&b->output));
    if (run->carried != NULL) memcpy(run->carried, b->carried.data, b->carried.bytes);
    args->carried = NULL;
    return gg_test_convert(d, &desc->output, desc->batch, op->output, gg_test_plain, b->output.data, run->output);
}

static gg_status fetch_all(op_buffers *b) {
    gg_test_guarded *const single[] = {&b->output, &b->grad_output, &b->prepared, &b->saved, &b->scratch, &b->carried};
    for (size_t i = 0; i < sizeof single / sizeof *single; ++i) GG_TRY(gg_test_guarded_fetch(single[i]));
    for (int i = 0; i < GG_MAX_INPUTS; ++i) {
        GG_TRY(gg_test_guarded_fetch(&b->input[i]));
        GG_TRY(gg_test_guarded_fetch(&b->grad_input[i]));
    }
    for (int i = 0; i < MAX_PARAMETERS; ++i) {
        GG_TRY(gg_test_guarded_fetch(&b->parameter[i]));
        GG_TRY(gg_test_guarded_fetch(&b->gradient[i]));
    }
    return GG_OK;
}

static gg_status run_backward(gg_test_devices *d, op_run *run, gg_op *op, op_buffers *b, gg_op_args *args) {
    const gg_op_desc *desc = &run->desc;
    GG_TRY(gg_test_guarded_make(&b->grad_output, b->output.bytes));
    memset(b->grad_output.data, 0, b->grad_output.bytes);
    GG_TRY(gg_test_convert(d, &desc->output, desc->batch, gg_test_plain, op->output, run->grad_output,
                           b->grad_output.data));
    for (int i = 0; i < run->parameters; ++i) {
        GG_TRY(gg_test_guarded_make(&b->gradient[i], b->parameter[i].bytes));
        GG_TRY(gg_test_guarded_send(&b->gradient[i], d->wanted, &b->gradient_at[i]));
    }
    for (int i = 0; i < desc->inputs; ++i) {
        if ((op->backward_needs_input >> i & 1u) == 0) args->input[i] = NULL;
        if (run->grad_input[i] == NULL) continue;
        GG_TRY(gg_test_guarded_make(&b->grad_input[i], b->input[i].bytes));
        GG_TRY(gg_test_guarded_send(&b->grad_input[i], d->wanted, &args->grad_input[i]));
        if (run->over_output && (op->over_output >> i & 1u) != 0) args->grad_input[i] = args->output;
    }
    if (!op->backward_needs_output) args->output = NULL;
    memset(b->scratch.data, 0xFF, b->scratch.bytes);
    if (b->scratch.there != NULL) GG_TRY(gg_test_guarded_send(&b->scratch, d->wanted, &args->scratch));
    GG_TRY(gg_test_guarded_send(&b->grad_output, d->wanted, &args->grad_output));
    args->gradient = b->gradient_at;
    const void *const output = args->output;
    GG_TRY(gg_op_backward(op, args));
    GG_TRY(fetch_all(b));
    for (int i = 0; i < desc->inputs; ++i) {
        if (run->grad_input[i] == NULL) continue;
        const bool over = output != NULL && args->grad_input[i] == output;
        const void *found = over ? b->output.data : b->grad_input[i].data;
        GG_TRY(gg_test_padding_check(&desc->input[i], desc->batch, op->input[i], found, true, "grad_input"));
        GG_TRY(
            gg_test_convert(d, &desc->input[i], desc->batch, op->input[i], gg_test_plain, found, run->grad_input[i]));
    }
    for (int i = 0; i < run->parameters; ++i)
        if (run->parameter_count[i] > 0) memcpy(run->gradient[i], b->gradient[i].data, b->gradient[i].bytes);
    return GG_OK;
}

static gg_status check_guards(const op_run *run, const op_buffers *b) {
    GG_TRY(gg_test_guarded_check(&b->output, "output"));
    GG_TRY(gg_test_guarded_check(&b->grad_output, "grad_output"));
    GG_TRY(gg_test_guarded_check(&b->prepared, "prepared"));
    GG_TRY(gg_test_guarded_check(&b->saved, "saved"));
    GG_TRY(gg_test_guarded_check(&b->carried, "carried"));
    GG_TRY(gg_test_guarded_check(&b->scratch, "scratch"));
    for (int i = 0; i < run->parameters; ++i) {
        GG_TRY(gg_test_guarded_check(&b->parameter[i], "parameter"));
        GG_TRY(gg_test_guarded_check(&b->gradient[i], "gradient"));
    }
    for (int i = 0; i < run->desc.inputs; ++i) {
        GG_TRY(gg_test_guarded_check(&b->input[i], "input"));
        GG_TRY(gg_test_guarded_check(&b->grad_input[i], "grad_input"));
    }
    return GG_OK;
}

static void op_buffers_free(op_buffers *b) {
    for (int i = 0; i < GG_MAX_INPUTS; ++i) {
        gg_test_guarded_free(&b->input[i]);
        gg_test_guarded_free(&b->grad_input[i]);
    }
    for (int i = 0; i < MAX_PARAMETERS; ++i) {
        gg_test_guarded_free(&b->parameter[i]);
        gg_test_guarded_free(&b->gradient[i]);
    }
    gg_test_guarded *const all[] = {&b->output,  &b->grad_output, &b->prepared, &b->saved,
                                    &b->scratch, &b->carried,     &b->step};
    for (size_t i = 0; i < sizeof all / sizeof *all; ++i) gg_test_guarded_free(all[i]);
}

static gg_status run_guarded(gg_test_devices *d, op_run *run) {
    gg_status status = GG_OK;
    gg_op *op = NULL;
    op_buffers buffers = {.output = {0}};
    gg_op_args args = {.rank = run->rank, .step = &run->step};
    GG_TRY_CLEANUP(gg_test_op_create(d->wanted, &run->desc, &op));
    run->chosen[0] = op->input[0];
    run->chosen[1] = op->output;
    GG_TRY_CLEANUP(run_forward(d, run, op, &buffers, &args));
    if (run->grad_output != NULL) GG_TRY_CLEANUP(run_backward(d, run, op, &buffers, &args));
    GG_TRY_CLEANUP(check_guards(run, &buffers));
cleanup:
    gg_op_destroy(op);
    op_buffers_free(&buffers);
    return status;
}

/* ---- from and to Python ---- */

/* How an option is read into an op_run. */
typedef enum option_type {
    OPTION_INTEGER,    /* int64_t */
    OPTION_RANK,       /* uint32_t */
    OPTION_COUNT,      /* uint64_t */
    OPTION_PAIR,       /* int64_t[2], a tuple of two integers */
    OPTION_FLAG,       /* bool */
    OPTION_NUMBER,     /* float */
    OPTION_SIZES,      /* gg_shape, a tuple of integers */
    OPTION_ACTIVATION, /* gg_activation, its name */
    OPTION_ALGORITHM,  /* gg_algorithm, its name */
    OPTION_LAYOUT,     /* gg_layout, its name; of the first input, which then lies so */
    OPTION_DTYPE       /* gg_dtype, its name */
} option_type;

typedef struct run_option {
    const char *name;
    option_type type;
    size_t offset;
    unsigned kinds; /* a bit for each gg_op_kind that has it; 0 means all */
} run_option;

#define OF(kind) (1u << GG_OP_##kind)
#define OPTION(name, type, field, kinds)                                                                               \
    { name, OPTION_##type, offsetof(op_run, field), kinds }
#define WINDOW(field, kinds)                                                                                           \
    OPTION("kernel", PAIR, field.kernel, kinds), OPTION("stride", PAIR, field.stride, kinds),                          \
        OPTION("padding", PAIR, field.padding, kinds), OPTION("dilation", PAIR, field.dilation, kinds)
#define POOLS (OF(MAX_POOL2D) | OF(AVG_POOL2D))
#define ATTENTIONS (OF(ATTENTION) | OF(MULTI_HEAD))
static const run_option run_options[] = {
    WINDOW(desc.conv.window, OF(CONV2D)),
    OPTION("groups", INTEGER, desc.conv.groups, OF(CONV2D)),
    WINDOW(desc.pool, POOLS),
    OPTION("ceil_mode", FLAG, desc.pool.ceil_mode, POOLS),
    OPTION("count_include_pad", FLAG, desc.pool.count_include_pad, POOLS),
    OPTION("sample_axis", INTEGER, desc.softmax.axis, OF(SOFTMAX)),
    OPTION("negative_slope", NUMBER, desc.leaky_relu.slope, OF(LEAKY_RELU)),
    OPTION("tanh_form", FLAG, desc.gelu.tanh_form, OF(GELU) | OF(LINEAR)),
    OPTION("size", INTEGER, desc.lrn.size, OF(LOCAL_RESPONSE_NORM)),
    OPTION("alpha", NUMBER, desc.lrn.alpha, OF(LOCAL_RESPONSE_NORM)),
    OPTION("beta", NUMBER, desc.lrn.beta, OF(LOCAL_RESPONSE_NORM)),
    OPTION("k", NUMBER, desc.lrn.k, OF(LOCAL_RESPONSE_NORM)),
    OPTION("eps", NUMBER, desc.batch_norm.epsilon, OF(BATCH_NORM)),
    OPTION("momentum", NUMBER, desc.batch_norm.momentum, OF(BATCH_NORM)),
    OPTION("affine", FLAG, desc.batch_norm.affine, OF(BATCH_NORM)),
    OPTION("track_running_stats", FLAG, desc.batch_norm.track_statistics, OF(BATCH_NORM)),
    OPTION("sample_axis", INTEGER, desc.layer_norm.axis, OF(LAYER_NORM)),
    OPTION("groups", INTEGER, desc.layer_norm.groups, OF(LAYER_NORM)),
    OPTION("eps", NUMBER, desc.layer_norm.epsilon, OF(LAYER_NORM)),
    OPTION("affine", FLAG, desc.layer_norm.affine, OF(LAYER_NORM)),
    OPTION("root_mean_square", FLAG, desc.layer_norm.root_mean_square, OF(LAYER_NORM)),
    OPTION("numbers", INTEGER, desc.embedding.numbers, OF(EMBEDDING) | OF(POSITION_EMBEDDING)),
    OPTION("axis", INTEGER, desc.range.axis, OF(SLICE) | OF(PAD)),
    OPTION("begin", INTEGER, desc.range.begin, OF(SLICE) | OF(PAD)),
    OPTION("end", INTEGER, desc.range.end, OF(SLICE) | OF(PAD)),
    OPTION("stride1", INTEGER, desc.range.step, OF(SLICE) | OF(PAD)),
    OPTION("order", SIZES, desc.order, OF(PERMUTE)),
    OPTION("layers", INTEGER, desc.lstm.layers, OF(LSTM)),
    OPTION("stateful", FLAG, desc.lstm.stateful, OF(LSTM)),
    OPTION("numbers", INTEGER, desc.lstm.numbers, OF(LSTM)),
    OPTION("features", INTEGER, desc.lstm.features, OF(LSTM)),
    OPTION("heads", INTEGER, desc.attention.heads, ATTENTIONS),
    OPTION("head_size", INTEGER, desc.attention.head_size, ATTENTIONS),
    OPTION("causal", FLAG, desc.attention.causal, ATTENTIONS),
    OPTION("algorithm", ALGORITHM, desc.algorithm, 0),
    OPTION("passes", RANK, desc.passes, 0),
    OPTION("bias", FLAG, desc.bias, 0),
    OPTION("lanes", FLAG, lanes, 0),
    OPTION("activation", ACTIVATION, desc.activation, 0),
    OPTION("probability", NUMBER, desc.probability, 0),
    OPTION("seed", COUNT, desc.seed, 0),
    OPTION("training", FLAG, desc.training, 0),
    OPTION("input_grad", FLAG, desc.input_grad, 0),
    OPTION("layout", LAYOUT, desc.offered[0].layout, 0),
    OPTION("dtype", DTYPE, desc.dtype, 0), /* float32 inputs are offered so */
    OPTION("rank", RANK, rank, 0),
    OPTION("step", COUNT, step, 0),
    OPTION("evaluate", FLAG, evaluate, 0),
    OPTION("over_output", FLAG, over_output, 0),
};
#undef OPTION

static int read_activation(PyObject *value, gg_activation *out) {
    static const char *const activations[] = {"none", "relu", "gelu"};
    const char *name = PyUnicode_AsUTF8(value);
    const int choice = name != NULL ? gg_py_choice("activation", name, activations, 3) : -1;
    if (choice >= 0) *out = (gg_activation)choice;
    return choice < 0 ? -1 : 0;
}

static int read_algorithm(PyObject *value, gg_algorithm *out) {
    const char *algorithms[GG_ALGORITHM_COUNT], *name = PyUnicode_AsUTF8(value);
    for (int i = 0; i < GG_ALGORITHM_COUNT; ++i) algorithms[i] = gg_algorithm_name((gg_algorithm)i);
    const int choice = name != NULL ? gg_py_choice("algorithm", name, algorithms, GG_ALGORITHM_COUNT) : -1;
    if (choice >= 0) *out = (gg_algorithm)choice;
    return choice < 0 ? -1 : 0;
}

static int read_layout(PyObject *value, gg_layout *out) {
    const char *layouts[GG_LAYOUT_COUNT], *name = PyUnicode_AsUTF8(value);
    for (int i = 0; i < GG_LAYOUT_COUNT; ++i) layouts[i] = gg_layout_name((gg_layout)i);
    const int choice = name != NULL ? gg_py_choice("layout", name, layouts, GG_LAYOUT_COUNT) : -1;
    if (choice >= 0) *out = (gg_layout)choice;
    return choice < 0 ? -1 : 0;
}

static int read_dtype(PyObject *value, gg_dtype *out) {
    const char *dtypes[GG_DTYPE_COUNT], *name = PyUnicode_AsUTF8(value);
    for (int i = 0; i < GG_DTYPE_COUNT; ++i) dtypes[i] = gg_dtype_name((gg_dtype)i);
    const int choice = name != NULL ? gg_py_choice("dtype", name, dtypes, GG_DTYPE_COUNT) : -1;
    if (choice >= 0) *out = (gg_dtype)choice;
    return choice < 0 ? -1 : 0;
}

static int read_option(const run_option *option, PyObject *value, op_run *run) {
    void *field = (char *)run + option->offset;
    int64_t *integer = field;
    gg_shape *shape = field;
    switch (option->type) {
    case OPTION_INTEGER: *integer = PyLong_AsLongLong(value); break;
    case OPTION_RANK: *(uint32_t *)field = (uint32_t)PyLong_AsUnsignedLong(value); break;
    case OPTION_COUNT: *(uint64_t *)field = PyLong_AsUnsignedLongLong(value); break;
    case OPTION_PAIR:
        if (!PyTuple_Check(value) || PyTuple_GET_SIZE(value) != 2) {
            PyErr_Format(PyExc_TypeError, "%s: must be a tuple of two integers", option->name);
            return -1;
        }
        for (int i = 0; i < 2; ++i) integer[i] = PyLong_AsLongLong(PyTuple_GET_ITEM(value, i));
        break;
    case OPTION_FLAG: *(bool *)field = PyObject_IsTrue(value) == 1; break;
    case OPTION_NUMBER: *(float *)field = (float)PyFloat_AsDouble(value); break;
    case OPTION_SIZES:
        if (!PyTuple_Check(value) || PyTuple_GET_SIZE(value) > GG_MAX_DIMS) {
            PyErr_Format(PyExc_TypeError, "%s: must be a tuple of at most %d integers", option->name, GG_MAX_DIMS);
            return -1;
        }
        shape->dims = (int)PyTuple_GET_SIZE(value);
        for (int i = 0; i < shape->dims; ++i) shape->size[i] = PyLong_AsLongLong(PyTuple_GET_ITEM(value, i));
        break;
    case OPTION_ALGORITHM: return read_algorithm(value, field);
    case OPTION_LAYOUT: return read_layout(value, field);
    case OPTION_DTYPE: return read_dtype(value, field);
    case OPTION_ACTIVATION: return read_activation(value, field);
    }
    return PyErr_Occurred() ? -1 : 0;
}

static int read_options(PyObject *options, op_run *run) {
    PyObject *key, *value;
    Py_ssize_t at = 0;
    while (PyDict_Next(options, &at, &key, &value)) {
        const size_t count = sizeof run_options / sizeof *run_options;
        size_t i = 0;
        while (i < count && (PyUnicode_CompareWithASCIIString(key, run_options[i].name) != 0 ||
                             (run_options[i].kinds != 0 && (run_options[i].kinds >> run->desc.kind & 1) == 0)))
            ++i;
        if (i == count) {
            PyErr_Format(PyExc_TypeError, "run_op of %s: unknown option '%U'", gg_op_kind_name(run->desc.kind), key);
            return -1;
        }
        if (read_option(&run_options[i], value, run) < 0) return -1;
    }
    return 0;
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

/* Convolution and linear layer read as much as their shapes say: weight and bias must have it. */
static int check_parameters(const op_run *run) {
    const gg_op_desc *desc = &run->desc;
    const int64_t *kernel = desc->conv.window.kernel, groups = desc->conv.groups;
    const size_t *count = run->parameter_count;
    const int64_t outputs = desc->output.size[desc->kind == GG_OP_LINEAR ? desc->output.dims - 1 : 0];
    int64_t want = 0;
    if (desc->kind != GG_OP_CONV2D && desc->kind != GG_OP_LINEAR) return 0;
    if (desc->kind == GG_OP_LINEAR) want = outputs * desc->input[0].size[desc->input[0].dims - 1];
    else if (groups >= 1) want = outputs * (desc->input[0].size[0] / groups) * kernel[0] * kernel[1];
    if ((int64_t)count[0] != want || run->parameters != 1 + desc->bias ||
        (desc->bias && (int64_t)count[1] != outputs)) {
        PyErr_Format(PyExc_ValueError, "parameters: %d, of %zu and %zu elements; the operation has %lld and %lld",
                     run->parameters, count[0], count[1], (long long)want, (long long)(desc->bias ? outputs : 0));
        return -1;
    }
    return 0;
}

/* The arrays of one run, all owned. */
typedef struct op_arrays {
    PyArrayObject *input[GG_MAX_INPUTS], *parameter[MAX_PARAMETERS], *grad_output;
    PyArrayObject *output, *grad_input[GG_MAX_INPUTS], *gradient[MAX_PARAMETERS];
} op_arrays;

static void op_arrays_free(op_arrays *a) {
    for (int i = 0; i < GG_MAX_INPUTS; ++i) {
        Py_XDECREF(a->input[i]);
        Py_XDECREF(a->grad_input[i]);
    }
    for (int i = 0; i < MAX_PARAMETERS; ++i) {
        Py_XDECREF(a->parameter[i]);
        Py_XDECREF(a->gradient[i]);
    }
    Py_XDECREF(a->grad_output);
    Py_XDECREF(a->output);
}

/* An input in its own type: int32 or float32. */
static PyArrayObject *input_array(PyObject *object, gg_format *format) {
    const bool integers = PyArray_Check(object) && PyArray_TYPE((PyArrayObject *)object) == NPY_INT32;
    format->dtype = integers ? GG_INT32 : GG_FLOAT32;
    return gg_py_array(object, integers ? NPY_INT32 : NPY_FLOAT32, "inputs");
}

/* What is given, and with it the shapes of the inputs; the output's is known. -1 with an exception. */
static int op_arrays_read(op_arrays *a, op_run *run, PyObject *inputs, PyObject *parameters, PyObject *grad_output) {
    gg_op_desc *desc = &run->desc;
    for (int i = 0; i < desc->inputs; ++i) {
        a->input[i] = input_array(PyList_GET_ITEM(inputs, i), &desc->offered[i]);
        if (a->input[i] == NULL || sample_shape(a->input[i], &desc->input[i]) < 0) return -1;
        desc->batch = PyArray_DIM(a->input[i], 0);
        run->input[i] = PyArray_DATA(a->input[i]);
    }
    for (int i = 0; i < run->parameters; ++i) {
        a->parameter[i] = gg_py_array(PyList_GET_ITEM(parameters, i), NPY_FLOAT32, "parameters");
        if (a->parameter[i] == NULL) return -1;
        run->parameter[i] = PyArray_DATA(a->parameter[i]);
        run->parameter_count[i] = (size_t)PyArray_SIZE(a->parameter[i]);
    }
    if (grad_output == Py_None) return 0;
    a->grad_output = gg_py_array(grad_output, NPY_FLOAT32, "grad_output");
    if (a->grad_output == NULL) return -1;
    run->grad_output = PyArray_DATA(a->grad_output);
    return 0;
}

/* What comes out. -1 with an exception. */
static int op_arrays_make(op_arrays *a, op_run *run) {
    const gg_op_desc *desc = &run->desc;
    if ((a->output = batch_array(desc->batch, &desc->output)) == NULL) return -1;
    run->output = PyArray_DATA(a->output);
    for (int i = 0; i < run->parameters; ++i) {
        a->gradient[i] = gg_py_new_array(PyArray_NDIM(a->parameter[i]), PyArray_DIMS(a->parameter[i]), NPY_FLOAT32);
        if (a->gradient[i] == NULL) return -1;
        run->gradient[i] = PyArray_DATA(a->gradient[i]);
    }
    for (int i = 0; desc->input_grad && i < desc->inputs; ++i) {
        if (desc->offered[i].dtype == GG_INT32) continue;
        a->grad_input[i] = batch_array(desc->batch, &desc->input[i]);
        if (a->grad_input[i] == NULL) return -1;
        run->grad_input[i] = PyArray_DATA(a->grad_input[i]);
    }
    if (a->grad_output != NULL && PyArray_SIZE(a->grad_output) != PyArray_SIZE(a->output)) {
        PyErr_SetString(PyExc_ValueError, "grad_output: does not have the output's size");
        return -1;
    }
    return 0;
}

static PyObject *list_of(int count, PyArrayObject *const *array) {
    PyObject *list = PyList_New(0);
    for (int i = 0; list != NULL && i < count; ++i)
        if (PyList_Append(list, array[i] != NULL ? (PyObject *)array[i] : Py_None) < 0) Py_CLEAR(list);
    return list;
}

static PyObject *op_result(const op_arrays *a, const op_run *run) {
    PyObject *formats =
        Py_BuildValue("(ssss)", gg_dtype_name(run->chosen[0].dtype), gg_layout_name(run->chosen[0].layout),
                      gg_dtype_name(run->chosen[1].dtype), gg_layout_name(run->chosen[1].layout));
    if (formats == NULL) return NULL;
    if (a->grad_output == NULL) return Py_BuildValue("{sOsN}", "output", a->output, "formats", formats);
    return Py_BuildValue("{sOsNsNsN}", "output", a->output, "formats", formats, "grad_inputs",
                         list_of(run->desc.input_grad ? run->desc.inputs : 0, a->grad_input), "gradients",
                         list_of(run->parameters, a->gradient));
}

PyObject *gg_test_run_op(PyObject *module, PyObject *args, PyObject *kwargs) {
    static char *names[] = {"backend", "isa",     "kind",    "inputs", "output_shape", "parameters", "grad_output",
                            "threads", "options", "carried", NULL};
    static const char *const backends[] = {"native", "onednn", "cuda", "cuda-fast"};
    const char *backend, *isa_name = NULL, *kind;
    PyObject *inputs, *output_shape, *parameters, *grad_output, *options, *carried = Py_None, *result = NULL;
    int threads = 1, kind_number = -1;
    gg_isa isa;
    gg_test_devices d = {NULL, NULL};
    op_run run = {.desc = {.training = true, .input_grad = true}};
    op_arrays arrays = {.output = NULL};
    gg_op_desc *desc = &run.desc;
    gg_status status = GG_OK;
    const char *kind_names[GG_OP_COUNT];
    (void)module;

    if (!PyArg_ParseTupleAndKeywords(args, kwargs, "szsO!OO!OiO!|O:run_op", names, &backend, &isa_name, &kind,
                                     &PyList_Type, &inputs, &output_shape, &PyList_Type, &parameters, &grad_output,
                                     &threads, &PyDict_Type, &options, &carried))
        return NULL;
    for (int i = 0; i < GG_OP_COUNT; ++i) kind_names[i] = gg_op_kind_name((gg_op_kind)i);
    if (gg_py_choice("backend", backend, backends, 4) < 0 || gg_test_isa_of(isa_name, &isa) < 0) return NULL;
    if ((kind_number = gg_py_choice("kind", kind, kind_names, GG_OP_COUNT)) < 0) return NULL;
    if (PyList_GET_SIZE(inputs) < 1 || PyList_GET_SIZE(inputs) > GG_MAX_INPUTS)
        return PyErr_Format(PyExc_ValueError, "inputs: must be a list of 1 to %d arrays", GG_MAX_INPUTS);
    if (PyList_GET_SIZE(parameters) > MAX_PARAMETERS)
        return PyErr_Format(PyExc_ValueError, "parameters: must be a list of at most %d arrays", MAX_PARAMETERS);

    desc->kind = (gg_op_kind)kind_number;
    const gg_window dense = {.kernel = {1, 1}, .stride = {1, 1}, .dilation = {1, 1}, .count_include_pad = true};
    if (desc->kind == GG_OP_CONV2D) desc->conv = (gg_conv_options){dense, 1};
    if (desc->kind == GG_OP_MAX_POOL2D || desc->kind == GG_OP_AVG_POOL2D) desc->pool = dense;
    desc->inputs = (int)PyList_GET_SIZE(inputs);
    run.parameters = (int)PyList_GET_SIZE(parameters);
    if (read_options(options, &run) < 0 || gg_py_shape(output_shape, "output_shape", &desc->output) < 0) return NULL;
    if (op_arrays_read(&arrays, &run, inputs, parameters, grad_output) < 0) goto cleanup;
    for (int i = 0; run.lanes && i < desc->inputs; ++i)
        if (desc->offered[i].dtype == GG_FLOAT32) desc->offered[i].layout = GG_LAYOUT_BATCH_LAST;
    for (int i = 0; i < desc->inputs; ++i)
        if (desc->offered[i].dtype == GG_FLOAT32) desc->offered[i].dtype = desc->dtype;
    if (check_parameters(&run) < 0 || op_arrays_make(&arrays, &run) < 0) goto cleanup;
    if (carried != Py_None && (!PyArray_Check(carried) || PyArray_TYPE((PyArrayObject *)carried) != NPY_FLOAT32 ||
                               !PyArray_ISCARRAY((PyArrayObject *)carried))) {
        PyErr_SetString(PyExc_TypeError, "carried: must be a writable contiguous float32 array");
        goto cleanup;
    }
    if (carried != Py_None) {
        run.carried = PyArray_DATA((PyArrayObject *)carried);
        run.carried_count = (size_t)PyArray_SIZE((PyArrayObject *)carried);
    }
    Py_BEGIN_ALLOW_THREADS;
    const gg_float_mode former = gg_parallel_enter();
    status = gg_test_devices_open(backend, isa, threads, &d);
    if (status == GG_OK) status = run_guarded(&d, &run);
    gg_test_devices_close(&d);
    gg_parallel_leave(former);
    Py_END_ALLOW_THREADS;
    result = status == GG_OK ? op_result(&arrays, &run) : gg_py_raise(status);
cleanup:
    op_arrays_free(&arrays);
    return result;
}
