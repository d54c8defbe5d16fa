/* Parts that all oneDNN operations share.
 *
 * An operation has a list of steps for each of its passes: prepare, forward, backward of weights and of data. A step is
 * a primitive with its arguments. An argument is a memory object without memory, and the place where its pointer comes
 * from at run time. One piece of code therefore runs and destroys all operations. A run allocates nothing of ours,
 * locks nothing and only sets pointers. Scratchpads are always the caller's: with the library's own, concurrent threads
 * compute wrong results without an error. */
#ifndef GG_CPU_ONEDNN_COMMON_H
#define GG_CPU_ONEDNN_COMMON_H

#include <oneapi/dnnl/dnnl.h>

#include "cpu/cpu_backend.h"
#include "cpu/shared.h"

#define GG_DNN_NAME "onednn" /* name of the table, and of the backend in every operation */

typedef struct gg_dnn_device {
    gg_cpu_device base;
    dnnl_engine_t engine;
} gg_dnn_device;

/* GG_OK, or an error with the call's name and oneDNN's name of the status. GG_ERROR_UNSUPPORTED if oneDNN does not
 * implement the request. */
gg_status gg_dnn_check(dnnl_status_t status, const char *call);
#define GG_DNN_TRY(function, ...) GG_TRY(gg_dnn_check(function(__VA_ARGS__), #function))
#define GG_DNN_TRY_CLEANUP(function, ...) GG_TRY_CLEANUP(gg_dnn_check(function(__VA_ARGS__), #function))

/* The buffers that a pointer can come from. */
typedef enum gg_dnn_slot {
    GG_DNN_ALWAYS = 0, /* as a step's condition */
    GG_DNN_INPUT,
    GG_DNN_OUTPUT,
    GG_DNN_GRAD_OUTPUT,
    GG_DNN_GRAD_INPUT,
    GG_DNN_PARAMETER,
    GG_DNN_GRADIENT, /* gradient of a parameter */
    GG_DNN_PREPARED,
    GG_DNN_SAVED,
    GG_DNN_SCRATCH,
    GG_DNN_SCRATCHPAD /* the primitive's own: after all temporaries, shared by the steps */
} gg_dnn_slot;

typedef struct gg_dnn_place {
    gg_dnn_slot slot;
    int index;     /* INPUT, GRAD_INPUT, PARAMETER and GRADIENT */
    size_t offset; /* PREPARED, SAVED and SCRATCH, in bytes */
} gg_dnn_place;

static inline gg_dnn_place gg_dnn_at(gg_dnn_slot slot) { return (gg_dnn_place){slot, 0, 0}; }
static inline gg_dnn_place gg_dnn_parameter(int index) { return (gg_dnn_place){GG_DNN_PARAMETER, index, 0}; }
static inline gg_dnn_place gg_dnn_gradient(int index) { return (gg_dnn_place){GG_DNN_GRADIENT, index, 0}; }

/* An argument of a step to be added. md NULL means that the step has no such argument. */
typedef struct gg_dnn_bind {
    int argument; /* DNNL_ARG_... */
    const_dnnl_memory_desc_t md;
    gg_dnn_place place;
} gg_dnn_bind;

typedef struct gg_dnn_step {
    dnnl_primitive_t primitive;
    const char *what;
    gg_dnn_place needs; /* the step is skipped if this pointer is NULL */
    bool copy;          /* copies the first argument to the second; skipped if both are the same memory */
    bool is_product;    /* runs oneDNN's float32 product of matrices */
    int first, arguments;
} gg_dnn_step;

typedef enum gg_dnn_pass {
    GG_DNN_PREPARE_FORWARD = 0,
    GG_DNN_PREPARE_DATA,
    GG_DNN_FORWARD, /* from here on in the order of gg_pass */
    GG_DNN_WEIGHTS,
    GG_DNN_DATA,
    GG_DNN_PASSES
} gg_dnn_pass;

#define GG_DNN_MAX_STEPS (GG_MAX_INPUTS + 8)
#define GG_DNN_MAX_ARGUMENTS (6 * GG_MAX_INPUTS + 16)
#define GG_DNN_MAX_DESCS (2 * GG_MAX_INPUTS + 32)

typedef struct gg_dnn_op {
    gg_op head;
    gg_device *device;
    gg_dtype dtype; /* of activations and their gradients: float32 or bfloat16 */
    /* Work after the primitives of a pass; NULL means none. */
    void (*behind[GG_DNN_PASSES])(gg_device *device, const struct gg_dnn_op *op, const gg_op_args *args);
    dnnl_engine_t engine; /* the device's */
    dnnl_stream_t stream;
    int threads;
    gg_dnn_step step[GG_DNN_PASSES][GG_DNN_MAX_STEPS];
    int steps[GG_DNN_PASSES];
    dnnl_exec_arg_t argument[GG_DNN_MAX_ARGUMENTS];
    gg_dnn_place place[GG_DNN_MAX_ARGUMENTS];
    int arguments;
    size_t temporaries[GG_DNN_PASSES], scratchpad[GG_DNN_PASSES]; /* bytes */
    /* Descriptors; destroyed when creation ends. */
    dnnl_memory_desc_t md[GG_DNN_MAX_DESCS];
    int mds;
    dnnl_primitive_desc_t pd[GG_DNN_MAX_DESCS];
    int pds;
    dnnl_primitive_attr_t plain_attr; /* user scratchpad, strict float32 */
} gg_dnn_op;

/* dnnl_primitive_execute while the thread holds signals: needed for a product, and for any primitive with several
 * threads, because it may start workers of a later product. */
dnnl_status_t gg_dnn_execute(const_dnnl_primitive_t primitive, dnnl_stream_t stream, int arguments,
                             const dnnl_exec_arg_t *argument);

/* The element type of an operation's activations. */
gg_dtype gg_dnn_dtype_of(const gg_device *device, const gg_op_desc *desc);
/* Creates an operation without steps; inputs and output have its compute type. Checks inputs, batch and element
 * types. */
gg_status gg_dnn_op_create(gg_device *device, const gg_op_desc *desc, gg_dnn_op **out);
/* Ends creation: sets the sizes of scratch and saved, and drops the descriptors. Passes the operation to *out. If
 * `status` is an error, destroys the operation and returns `status`. */
gg_status gg_dnn_op_finish(gg_status status, gg_dnn_op *op, gg_op **out);

/* Descriptors; they belong to the operation and live until gg_dnn_op_finish. */
gg_status gg_dnn_md(gg_dnn_op *op, int dims, const int64_t *size, gg_dtype dtype, dnnl_format_tag_t tag,
                    const_dnnl_memory_desc_t *out);
/* Descriptor of a batch of samples; checks that its bytes are gg_format_bytes. GG_ERROR_UNSUPPORTED for BATCH_LAST. */
gg_status gg_dnn_batch_md(gg_dnn_op *op, gg_format format, const gg_shape *sample, const_dnnl_memory_desc_t *out);
/* Descriptor of a batch of images in a layout of oneDNN's choice. */
gg_status gg_dnn_any_md(gg_dnn_op *op, const gg_shape *sample, const_dnnl_memory_desc_t *out);
/* `bytes` as one row of the operation's element type; for element-wise work on any layout. */
gg_status gg_dnn_flat_md(gg_dnn_op *op, size_t bytes, const_dnnl_memory_desc_t *out);
/* The part of a batch at `offset` (N, C, ...) that is as large as a batch of `sample`. */
gg_status gg_dnn_part_md(gg_dnn_op *op, const_dnnl_memory_desc_t whole, const gg_shape *sample,
                         const dnnl_dims_t offset, const_dnnl_memory_desc_t *out);
/* Sets *out to our layout of a batch of images; false means that none of ours matches. */
bool gg_dnn_layout_of(const_dnnl_memory_desc_t md, gg_layout *out);
/* Adds a primitive descriptor to the operation, which owns it. `call` names the function that made it. */
gg_status gg_dnn_pd(gg_dnn_op *op, dnnl_status_t made, const char *call, dnnl_primitive_desc_t pd,
                    dnnl_primitive_desc_t *out);
#define GG_DNN_PD_OR(leave, op, out, function, ...)                                                                    \
    do {                                                                                                               \
        dnnl_primitive_desc_t made_ = NULL;                                                                            \
        dnnl_status_t made_status_ = function(&made_, __VA_ARGS__);                                                    \
        leave(gg_dnn_pd(op, made_status_, #function, made_, out));                                                     \
    } while (0)
#define GG_DNN_PD(...) GG_DNN_PD_OR(GG_TRY, __VA_ARGS__)
#define GG_DNN_PD_CLEANUP(...) GG_DNN_PD_OR(GG_TRY_CLEANUP, __VA_ARGS__)
/* True if oneDNN would use a plain loop or a matrix product instead of a kernel for the layout. */
bool gg_dnn_is_slow(const_dnnl_primitive_desc_t pd);

/* Reserves room in the pass's scratch. */
gg_dnn_place gg_dnn_temporary(gg_dnn_op *op, gg_dnn_pass pass, const_dnnl_memory_desc_t md);
/* Adds a step, and binds its scratchpad. */
gg_status gg_dnn_add(gg_dnn_op *op, gg_dnn_pass pass, const char *what, gg_dnn_place needs,
                     const_dnnl_primitive_desc_t pd, int binds, const gg_dnn_bind *bind);
/* Adds a copy from one layout to another. */
gg_status gg_dnn_add_reorder(gg_dnn_op *op, gg_dnn_pass pass, const char *what, gg_dnn_place needs,
                             const_dnnl_memory_desc_t from, gg_dnn_place from_place, const_dnnl_memory_desc_t to,
                             gg_dnn_place to_place);
/* Place where a source in format `have` can be read as `want`: its own memory, or a temporary filled by a reorder. */
gg_status gg_dnn_read_as(gg_dnn_op *op, gg_dnn_pass pass, const char *what, gg_dnn_place needs,
                         const_dnnl_memory_desc_t have, gg_dnn_place place, const_dnnl_memory_desc_t want,
                         gg_dnn_place *out);
/* Place where weights in format `have` can be read as `want`: the parameter itself, or a copy prepared by a reorder
 * once a pass. */
gg_status gg_dnn_read_weight(gg_dnn_op *op, gg_dnn_pass prepare, const char *what, const_dnnl_memory_desc_t have,
                             const_dnnl_memory_desc_t want, gg_dnn_place *out);
/* Adds a ReLU by our own kernel, because oneDNN's turns NaN into 0. After forward it works in place on the output.
 * Before the backward pass of the weights it works in place on grad_output, from the output. */
gg_status gg_dnn_add_relu(gg_dnn_op *op);

/* Computes PyTorch's output size along one axis, and the right padding with which oneDNN gives it. GG_ERROR_SHAPE if
 * the output is smaller. */
gg_status gg_dnn_window(const gg_op_desc *desc, int axis, int64_t *right_padding);

gg_status gg_dnn_conv2d_create(gg_device *device, const gg_op_desc *desc, gg_op **out);
gg_status gg_dnn_linear_create(gg_device *device, const gg_op_desc *desc, gg_op **out);
/* Adds the steps of a bfloat16 linear layer over `rows` rows. */
gg_status gg_dnn_linear_narrow(gg_dnn_op *op, int64_t rows);
gg_status gg_dnn_lstm_create(gg_device *device, const gg_op_desc *desc, gg_op **out);       /* bfloat16 only */
gg_status gg_dnn_pool_create(gg_device *device, const gg_op_desc *desc, gg_op **out);       /* both kinds */
gg_status gg_dnn_activation_create(gg_device *device, const gg_op_desc *desc, gg_op **out); /* RELU, TANH, SIGMOID */
gg_status gg_dnn_add_create(gg_device *device, const gg_op_desc *desc, gg_op **out);
gg_status gg_dnn_concat_create(gg_device *device, const gg_op_desc *desc, gg_op **out);
gg_status gg_dnn_reorder_create(gg_device *device, const gg_op_desc *desc, gg_op **out);

#endif
