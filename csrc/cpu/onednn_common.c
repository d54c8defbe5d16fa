#include "cpu/onednn_common.h"

#include <oneapi/dnnl/dnnl_debug.h>
#include <pthread.h>
#include <string.h>

#include "base/memory.h"
#include "base/parallel.h"
#include "base/signals.h"

gg_status gg_dnn_check(dnnl_status_t status, const char *call) {
    if (status == dnnl_success) return GG_OK;
    gg_status ours = GG_ERROR_BACKEND;
    if (status == dnnl_unimplemented) ours = GG_ERROR_UNSUPPORTED;
    if (status == dnnl_out_of_memory) ours = GG_ERROR_MEMORY;
    return gg_fail(ours, "oneDNN: %s: %s", call, dnnl_status2str(status));
}

/* ------------------------------------------------------------------------------------------- running */

static const void *onednn_pointer(const gg_op_args *args, const gg_dnn_place *place) {
    switch (place->slot) {
    case GG_DNN_INPUT: return args->input[place->index];
    case GG_DNN_OUTPUT: return args->output;
    case GG_DNN_GRAD_OUTPUT: return args->grad_output;
    case GG_DNN_GRAD_INPUT: return args->grad_input[place->index];
    case GG_DNN_PARAMETER: return args->parameter[place->index];
    case GG_DNN_GRADIENT: return args->gradient[place->index];
    case GG_DNN_PREPARED: return args->prepared == NULL ? NULL : (const char *)args->prepared + place->offset;
    case GG_DNN_SAVED: return args->saved == NULL ? NULL : (const char *)args->saved + place->offset;
    case GG_DNN_SCRATCH:
    case GG_DNN_SCRATCHPAD: return args->scratch == NULL ? NULL : (const char *)args->scratch + place->offset;
    default: return NULL;
    }
}

/* oneDNN's float32 products point the stack pointer into a block of the heap. A signal's frame would overwrite what
 * lies below the block (issue 4845 of oneDNN; mended after 3.11.1). Workers that a primitive starts inherit the held
 * signals. */
dnnl_status_t gg_dnn_execute(const_dnnl_primitive_t primitive, dnnl_stream_t stream, int arguments,
                             const dnnl_exec_arg_t *argument) {
    sigset_t former;
    gg_signals_hold(&former);
    const dnnl_status_t status = dnnl_primitive_execute(primitive, stream, arguments, argument);
    gg_signals_release(&former);
    return status;
}

static dnnl_status_t execute(const gg_dnn_op *op, const gg_dnn_step *step) {
    const bool holds = step->is_product || op->threads > 1;
    return (holds ? gg_dnn_execute : dnnl_primitive_execute)(step->primitive, op->stream, step->arguments,
                                                             &op->argument[step->first]);
}

static gg_status onednn_run(gg_op *head, const gg_op_args *args, gg_dnn_pass pass) {
    gg_status status = GG_OK;
    gg_dnn_op *op = (gg_dnn_op *)head;
    /* OpenMP's number of threads belongs to the calling thread. The thread that runs an operation may not be the thread
     * that opened the device. */
    gg_parallel_set_threads(op->threads);
    for (int i = 0; i < op->steps[pass]; i++) {
        const gg_dnn_step *step = &op->step[pass][i];
        if (step->needs.slot != GG_DNN_ALWAYS && onednn_pointer(args, &step->needs) == NULL) continue;
        if (step->copy &&
            onednn_pointer(args, &op->place[step->first]) == onednn_pointer(args, &op->place[step->first + 1]))
            continue;
        for (int k = step->first; k < step->first + step->arguments; k++) {
            /* oneDNN's API has no const, but does not write inputs. */
            void *data = (void *)(uintptr_t)onednn_pointer(args, &op->place[k]);
            if (data == NULL)
                return gg_fail(GG_ERROR_STATE, "%s: argument %d of '%s' has no memory",
                               gg_op_kind_name(head->desc.kind), op->argument[k].arg, step->what);
            GG_DNN_TRY(dnnl_memory_set_data_handle, op->argument[k].memory, data);
        }
        status = gg_dnn_check(execute(op, step), "dnnl_primitive_execute");
        GG_TRY(gg_error_prefix(status, "%s: ", step->what));
    }
    GG_DNN_TRY(dnnl_stream_wait, op->stream);
    if (op->behind[pass] != NULL) op->behind[pass](op->device, op, args);
    return status;
}

static gg_status onednn_prepare(gg_op *head, const gg_op_args *args, gg_pass pass) {
    return onednn_run(head, args, pass == GG_PASS_FORWARD ? GG_DNN_PREPARE_FORWARD : GG_DNN_PREPARE_DATA);
}

static gg_status onednn_forward(gg_op *head, const gg_op_args *args) { return onednn_run(head, args, GG_DNN_FORWARD); }

static gg_status run_backward(gg_op *head, const gg_op_args *args, gg_dnn_pass pass) {
    if (!head->desc.training)
        return gg_fail(GG_ERROR_STATE, "%s was created without training and has no backward pass",
                       gg_op_kind_name(head->desc.kind));
    return onednn_run(head, args, pass);
}

static gg_status onednn_backward_weights(gg_op *head, const gg_op_args *args) {
    return run_backward(head, args, GG_DNN_WEIGHTS);
}

static gg_status onednn_backward_data(gg_op *head, const gg_op_args *args) {
    return run_backward(head, args, GG_DNN_DATA);
}

static void drop_descriptors(gg_dnn_op *op) {
    for (int i = 0; i < op->mds; i++) dnnl_memory_desc_destroy(op->md[i]);
    for (int i = 0; i < op->pds; i++) dnnl_primitive_desc_destroy(op->pd[i]);
    op->mds = op->pds = 0;
    if (op->plain_attr != NULL) dnnl_primitive_attr_destroy(op->plain_attr);
    op->plain_attr = NULL;
}

static void onednn_destroy(gg_op *head) {
    gg_dnn_op *op = (gg_dnn_op *)head;
    drop_descriptors(op);
    for (int i = 0; i < op->arguments; i++)
        if (op->argument[i].memory != NULL) dnnl_memory_destroy(op->argument[i].memory);
    for (int pass = 0; pass < GG_DNN_PASSES; pass++)
        for (int i = 0; i < op->steps[pass]; i++)
            if (op->step[pass][i].primitive != NULL) dnnl_primitive_destroy(op->step[pass][i].primitive);
    if (op->stream != NULL) dnnl_stream_destroy(op->stream);
    gg_free(op);
}

static void compile_products(void) {
    const float in[4] = {0};
    float out[4];
    sigset_t former;
    gg_signals_hold(&former);
    (void)dnnl_sgemm('N', 'N', 2, 2, 2, 1, in, 2, in, 2, 0, out, 2);
    gg_signals_release(&former);
}

/* oneDNN compiles its products, all at once, when the first one runs: 30 ms. Primitives are compiled at creation. */
static void onednn_compile(gg_op *head) {
    static pthread_once_t once = PTHREAD_ONCE_INIT;
    const gg_dnn_op *op = (const gg_dnn_op *)head;
    for (int pass = 0; pass < GG_DNN_PASSES; pass++)
        for (int i = 0; i < op->steps[pass]; i++)
            if (op->step[pass][i].is_product) (void)pthread_once(&once, compile_products);
}

static const gg_op_class op_class = {.prepare = onednn_prepare,
                                     .forward = onednn_forward,
                                     .backward_weights = onednn_backward_weights,
                                     .backward_data = onednn_backward_data,
                                     .compile = onednn_compile,
                                     .destroy = onednn_destroy};

/* ------------------------------------------------------------------------------------------ creating */

static gg_status make_attributes(gg_dnn_op *op) {
    GG_DNN_TRY(dnnl_primitive_attr_create, &op->plain_attr);
    GG_DNN_TRY(dnnl_primitive_attr_set_scratchpad_mode, op->plain_attr, dnnl_scratchpad_mode_user);
    GG_DNN_TRY(dnnl_primitive_attr_set_fpmath_mode, op->plain_attr, dnnl_fpmath_mode_strict);
    return GG_OK;
}

/* Max rows for which a linear layer with more weights than caches hold is faster in float32. bfloat16 weights are
 * prepared in each step, for both directions: that moves more bytes than reading the float32 weights. */
#define FEW_ROWS 64
#define MANY_WEIGHTS (1024 * 1024)

static bool is_bound_by_weights(const gg_op_desc *desc) {
    if (desc->kind != GG_OP_LINEAR || desc->input[0].dims < 1 || desc->output.dims < 1) return false;
    const int64_t in = desc->input[0].size[desc->input[0].dims - 1], out = desc->output.size[desc->output.dims - 1];
    return desc->batch * gg_shape_count(&desc->output) / out <= FEW_ROWS && in * out >= MANY_WEIGHTS;
}

/* Products gain from bfloat16 with any neighbour. Other operations would lose more by a conversion than they gain.
 * oneDNN has no bfloat16 without AVX-512. */
gg_dtype gg_dnn_dtype_of(const gg_device *device, const gg_op_desc *desc) {
    if (desc->dtype != GG_BFLOAT16 || device->isa < GG_ISA_AVX512 || is_bound_by_weights(desc)) return GG_FLOAT32;
    if (desc->kind == GG_OP_CONV2D || desc->kind == GG_OP_LINEAR) return GG_BFLOAT16;
    for (int i = 0; i < desc->inputs; i++)
        if (desc->offered[i].dtype != GG_BFLOAT16) return GG_FLOAT32;
    return GG_BFLOAT16;
}

gg_status gg_dnn_op_create(gg_device *device, const gg_op_desc *desc, gg_dnn_op **out) {
    gg_status status = GG_OK;
    const char *name = gg_op_kind_name(desc->kind);
    gg_dnn_op *op = NULL;
    void *block = NULL;
    *out = NULL;
    if (desc->inputs < 1 || desc->inputs > GG_MAX_INPUTS)
        GG_FAIL_CLEANUP(GG_ERROR_ARGUMENT, "%s has 1 to %d inputs, not %d", name, GG_MAX_INPUTS, desc->inputs);
    if (desc->batch < 1)
        GG_FAIL_CLEANUP(GG_ERROR_ARGUMENT, "the batch must be at least 1, not %lld", (long long)desc->batch);
    for (int i = 0; i < desc->inputs; i++)
        if (desc->offered[i].dtype != GG_FLOAT32 && desc->offered[i].dtype != GG_BFLOAT16)
            GG_FAIL_CLEANUP(GG_ERROR_UNSUPPORTED, "oneDNN %s is for float32 or bfloat16 here, not %s", name,
                            gg_dtype_name(desc->offered[i].dtype));
    GG_TRY_CLEANUP(gg_calloc(1, sizeof(gg_dnn_op), "an operation", &block));
    op = block;
    op->head.type = &op_class;
    op->head.backend = GG_DNN_NAME;
    op->head.desc = *desc;
    op->dtype = gg_dnn_dtype_of(device, desc);
    for (int i = 0; i < desc->inputs; i++) op->head.input[i].dtype = op->dtype;
    op->head.output.dtype = op->dtype;
    op->device = device;
    op->engine = ((gg_dnn_device *)device)->engine;
    op->threads = device->threads;
    /* A primitive divides its work by the number of threads at its creation. */
    gg_parallel_set_threads(op->threads);
    GG_DNN_TRY_CLEANUP(dnnl_stream_create, &op->stream, op->engine, dnnl_stream_default_flags);
    GG_TRY_CLEANUP(make_attributes(op));
    *out = op;
    op = NULL;
cleanup:
    if (op != NULL) onednn_destroy(&op->head);
    return status;
}

gg_status gg_dnn_op_finish(gg_status status, gg_dnn_op *op, gg_op **out) {
    *out = NULL;
    if (op == NULL || status != GG_OK) goto cleanup;
    for (int pass = 0; pass < GG_DNN_PASSES; pass++) {
        size_t bytes = op->temporaries[pass] + op->scratchpad[pass];
        if (bytes > op->head.scratch_bytes) op->head.scratch_bytes = bytes;
        for (int i = 0; i < op->steps[pass]; i++) {
            const gg_dnn_step *step = &op->step[pass][i];
            for (int k = step->first; k < step->first + step->arguments; k++)
                if (op->place[k].slot == GG_DNN_SCRATCHPAD) op->place[k].offset = op->temporaries[pass];
        }
    }
    drop_descriptors(op);
    *out = &op->head;
cleanup:
    if (op != NULL && status != GG_OK) onednn_destroy(&op->head);
    return status;
}

static gg_status own_md(gg_dnn_op *op, dnnl_memory_desc_t md, const_dnnl_memory_desc_t *out) {
    if (op->mds == GG_DNN_MAX_DESCS) {
        dnnl_memory_desc_destroy(md);
        return gg_fail(GG_ERROR_BACKEND, "more than %d descriptors", GG_DNN_MAX_DESCS);
    }
    op->md[op->mds++] = md;
    *out = md;
    return GG_OK;
}

gg_status gg_dnn_md(gg_dnn_op *op, int dims, const int64_t *size, gg_dtype dtype, dnnl_format_tag_t tag,
                    const_dnnl_memory_desc_t *out) {
    dnnl_memory_desc_t md = NULL;
    dnnl_dims_t all = {0};
    if (dtype != GG_FLOAT32 && dtype != GG_BFLOAT16)
        return gg_fail(GG_ERROR_UNSUPPORTED, "oneDNN operations are for float32 or bfloat16, not %s",
                       gg_dtype_name(dtype));
    for (int i = 0; i < dims; i++) {
        if (size[i] < 1) return gg_fail(GG_ERROR_SHAPE, "a size must be at least 1, not %lld", (long long)size[i]);
        all[i] = size[i];
    }
    GG_DNN_TRY(dnnl_memory_desc_create_with_tag, &md, dims, all, dtype == GG_FLOAT32 ? dnnl_f32 : dnnl_bf16, tag);
    return own_md(op, md, out);
}

static dnnl_format_tag_t image_tag(gg_layout layout) {
    switch (layout) {
    case GG_LAYOUT_PLAIN: return dnnl_nchw;
    case GG_LAYOUT_NHWC: return dnnl_nhwc;
    case GG_LAYOUT_CHANNELS16: return dnnl_nChw16c;
    case GG_LAYOUT_CHANNELS8: return dnnl_nChw8c;
    default: return dnnl_format_tag_undef;
    }
}

gg_status gg_dnn_batch_md(gg_dnn_op *op, gg_format format, const gg_shape *sample, const_dnnl_memory_desc_t *out) {
    static const dnnl_format_tag_t plain[GG_MAX_DIMS + 1] = {dnnl_a,    dnnl_ab,    dnnl_abc,
                                                             dnnl_abcd, dnnl_abcde, dnnl_abcdef};
    int64_t size[GG_MAX_DIMS + 1];
    if (sample->dims < 1 || sample->dims > GG_MAX_DIMS)
        return gg_fail(GG_ERROR_SHAPE, "a sample must have 1 to %d axes, not %d", GG_MAX_DIMS, sample->dims);
    dnnl_format_tag_t tag = sample->dims == 3 ? image_tag(format.layout) : dnnl_format_tag_undef;
    if (format.layout == GG_LAYOUT_PLAIN) tag = plain[sample->dims];
    if (tag == dnnl_format_tag_undef) {
        char text[GG_SHAPE_TEXT];
        return gg_fail(GG_ERROR_UNSUPPORTED, "oneDNN has no format for samples of shape %s in layout %s",
                       gg_shape_text(sample, text), gg_layout_name(format.layout));
    }
    size[0] = op->head.desc.batch;
    for (int i = 0; i < sample->dims; i++) size[i + 1] = sample->size[i];
    GG_TRY(gg_dnn_md(op, sample->dims + 1, size, format.dtype, tag, out));
    if (dnnl_memory_desc_get_size(*out) != gg_format_bytes(format, sample, op->head.desc.batch))
        return gg_fail(GG_ERROR_BACKEND, "oneDNN wants %zu bytes for a batch of %zu", dnnl_memory_desc_get_size(*out),
                       gg_format_bytes(format, sample, op->head.desc.batch));
    return GG_OK;
}

gg_status gg_dnn_any_md(gg_dnn_op *op, const gg_shape *sample, const_dnnl_memory_desc_t *out) {
    const int64_t size[4] = {op->head.desc.batch, sample->size[0], sample->size[1], sample->size[2]};
    return gg_dnn_md(op, 4, size, op->dtype, dnnl_format_tag_any, out);
}

gg_status gg_dnn_flat_md(gg_dnn_op *op, size_t bytes, const_dnnl_memory_desc_t *out) {
    const int64_t size = (int64_t)(bytes / gg_dtype_size(op->dtype));
    return gg_dnn_md(op, 1, &size, op->dtype, dnnl_a, out);
}

gg_status gg_dnn_part_md(gg_dnn_op *op, const_dnnl_memory_desc_t whole, const gg_shape *sample,
                         const dnnl_dims_t offset, const_dnnl_memory_desc_t *out) {
    dnnl_memory_desc_t md = NULL;
    dnnl_dims_t size = {op->head.desc.batch};
    for (int i = 0; i < sample->dims; i++) size[i + 1] = sample->size[i];
    GG_DNN_TRY(dnnl_memory_desc_create_submemory, &md, whole, size, offset);
    return own_md(op, md, out);
}

bool gg_dnn_layout_of(const_dnnl_memory_desc_t md, gg_layout *out) {
    static const gg_layout known[] = {GG_LAYOUT_PLAIN, GG_LAYOUT_NHWC, GG_LAYOUT_CHANNELS16, GG_LAYOUT_CHANNELS8};
    int dims = 0;
    dnnl_dims_t *size = NULL;
    dnnl_data_type_t type = dnnl_data_type_undef;
    if (dnnl_memory_desc_query(md, dnnl_query_ndims_s32, &dims) != dnnl_success || dims != 4) return false;
    if (dnnl_memory_desc_query(md, dnnl_query_dims, &size) != dnnl_success) return false;
    if (dnnl_memory_desc_query(md, dnnl_query_data_type, &type) != dnnl_success) return false;
    for (size_t i = 0; i < sizeof known / sizeof known[0]; i++) {
        dnnl_memory_desc_t tried = NULL;
        if (dnnl_memory_desc_create_with_tag(&tried, dims, *size, type, image_tag(known[i])) != dnnl_success) continue;
        bool same = dnnl_memory_desc_equal(tried, md) != 0;
        dnnl_memory_desc_destroy(tried);
        if (same) {
            *out = known[i];
            return true;
        }
    }
    return false;
}

gg_status gg_dnn_pd(gg_dnn_op *op, dnnl_status_t made, const char *call, dnnl_primitive_desc_t pd,
                    dnnl_primitive_desc_t *out) {
    *out = NULL;
    GG_TRY(gg_dnn_check(made, call));
    if (op->pds == GG_DNN_MAX_DESCS) {
        dnnl_primitive_desc_destroy(pd);
        return gg_fail(GG_ERROR_BACKEND, "more than %d primitive descriptors", GG_DNN_MAX_DESCS);
    }
    op->pd[op->pds++] = pd;
    *out = pd;
    return GG_OK;
}

static bool name_has(const_dnnl_primitive_desc_t pd, const char *part) {
    const char *name = NULL;
    if (dnnl_primitive_desc_query(pd, dnnl_query_impl_info_str, 0, &name) != dnnl_success || name == NULL) return false;
    return strstr(name, part) != NULL;
}

bool gg_dnn_is_slow(const_dnnl_primitive_desc_t pd) { return name_has(pd, "ref") || name_has(pd, "gemm:"); }

/* --------------------------------------------------------------------------------------------- steps */

gg_dnn_place gg_dnn_temporary(gg_dnn_op *op, gg_dnn_pass pass, const_dnnl_memory_desc_t md) {
    gg_dnn_place place = {GG_DNN_SCRATCH, 0, op->temporaries[pass]};
    op->temporaries[pass] += gg_aligned(dnnl_memory_desc_get_size(md));
    return place;
}

gg_status gg_dnn_add(gg_dnn_op *op, gg_dnn_pass pass, const char *what, gg_dnn_place needs,
                     const_dnnl_primitive_desc_t pd, int binds, const gg_dnn_bind *bind) {
    const_dnnl_memory_desc_t scratchpad = dnnl_primitive_desc_query_md(pd, dnnl_query_scratchpad_md, 0);
    const size_t scratchpad_bytes = scratchpad == NULL ? 0 : dnnl_memory_desc_get_size(scratchpad);
    if (op->steps[pass] == GG_DNN_MAX_STEPS || op->arguments + binds + 1 > GG_DNN_MAX_ARGUMENTS)
        return gg_fail(GG_ERROR_BACKEND, "no room for the step '%s'", what);
    gg_dnn_step *step = &op->step[pass][op->steps[pass]];
    *step = (gg_dnn_step){.what = what, .needs = needs, .first = op->arguments};
    step->is_product = name_has(pd, "gemm:jit");
    GG_DNN_TRY(dnnl_primitive_create, &step->primitive, pd);
    op->steps[pass]++;
    if (pass >= GG_DNN_FORWARD && gg_dnn_is_slow(pd)) op->head.slow |= 1u << (pass - GG_DNN_FORWARD);
    for (int i = 0; i <= binds; i++) {
        gg_dnn_bind it = {DNNL_ARG_SCRATCHPAD, scratchpad_bytes > 0 ? scratchpad : NULL, gg_dnn_at(GG_DNN_SCRATCHPAD)};
        if (i < binds) it = bind[i];
        if (it.md == NULL) continue;
        dnnl_exec_arg_t *argument = &op->argument[op->arguments];
        argument->arg = it.argument;
        GG_DNN_TRY(dnnl_memory_create, &argument->memory, it.md, op->engine, DNNL_MEMORY_NONE);
        op->place[op->arguments++] = it.place;
        step->arguments++;
    }
    if (scratchpad_bytes > op->scratchpad[pass]) op->scratchpad[pass] = scratchpad_bytes;
    return GG_OK;
}

gg_status gg_dnn_add_reorder(gg_dnn_op *op, gg_dnn_pass pass, const char *what, gg_dnn_place needs,
                             const_dnnl_memory_desc_t from, gg_dnn_place from_place, const_dnnl_memory_desc_t to,
                             gg_dnn_place to_place) {
    dnnl_primitive_desc_t pd = NULL;
    GG_DNN_PD(op, &pd, dnnl_reorder_primitive_desc_create, from, op->engine, to, op->engine, op->plain_attr);
    const gg_dnn_bind bind[2] = {{DNNL_ARG_FROM, from, from_place}, {DNNL_ARG_TO, to, to_place}};
    GG_TRY(gg_dnn_add(op, pass, what, needs, pd, 2, bind));
    op->step[pass][op->steps[pass] - 1].copy = dnnl_memory_desc_equal(from, to) != 0;
    return GG_OK;
}

gg_status gg_dnn_read_as(gg_dnn_op *op, gg_dnn_pass pass, const char *what, gg_dnn_place needs,
                         const_dnnl_memory_desc_t have, gg_dnn_place place, const_dnnl_memory_desc_t want,
                         gg_dnn_place *out) {
    *out = place;
    if (dnnl_memory_desc_equal(have, want)) return GG_OK;
    *out = gg_dnn_temporary(op, pass, want);
    return gg_dnn_add_reorder(op, pass, what, needs, have, place, want, *out);
}

gg_status gg_dnn_read_weight(gg_dnn_op *op, gg_dnn_pass prepare, const char *what, const_dnnl_memory_desc_t have,
                             const_dnnl_memory_desc_t want, gg_dnn_place *out) {
    *out = gg_dnn_parameter(GG_PARAMETER_WEIGHT);
    if (dnnl_memory_desc_equal(have, want)) return GG_OK;
    const gg_dnn_place from = *out;
    const size_t bytes = dnnl_memory_desc_get_size(want);
    *out = gg_dnn_at(GG_DNN_PREPARED);
    if (bytes > op->head.prepared_bytes) op->head.prepared_bytes = bytes;
    return gg_dnn_add_reorder(op, prepare, what, gg_dnn_at(GG_DNN_ALWAYS), have, from, want, *out);
}

typedef struct relu_job {
    const gg_cpu_elementwise *kernels;
    size_t n;
    gg_dtype dtype;
    void *data;
} relu_job;

static void relu_part(void *context, int thread, int threads) {
    const relu_job *job = context;
    size_t begin, end;
    gg_parallel_split(job->n, GG_LANES, thread, threads, &begin, &end);
    float *wide = job->data;
    uint16_t *narrow = job->data;
    if (job->dtype == GG_BFLOAT16) job->kernels->relu_narrow(end - begin, narrow + begin, narrow + begin);
    else job->kernels->relu(end - begin, wide + begin, wide + begin);
}

/* Computed as one row: padding of channels is 0 and stays 0. */
static void relu_output(gg_device *device, const gg_dnn_op *op, const gg_op_args *args) {
    const gg_op *head = &op->head;
    const size_t bytes = gg_format_bytes(head->output, &head->desc.output, head->desc.batch);
    relu_job job = {gg_cpu_device_kernels(device)->elementwise, bytes / gg_dtype_size(op->dtype), op->dtype,
                    args->output};
    gg_parallel_run(gg_cpu_threads_for(device, job.n), relu_part, &job);
}

gg_status gg_dnn_add_relu(gg_dnn_op *op) {
    if (gg_op_has_pass(&op->head.desc, GG_PASS_FORWARD)) op->behind[GG_DNN_FORWARD] = relu_output;
    if (!op->head.desc.training || !gg_op_has_pass(&op->head.desc, GG_PASS_WEIGHTS)) return GG_OK;
    const_dnnl_memory_desc_t flat = NULL;
    dnnl_primitive_desc_t hint = NULL, pd = NULL;
    const size_t bytes = gg_format_bytes(op->head.output, &op->head.desc.output, op->head.desc.batch);
    const dnnl_alg_kind_t relu = dnnl_eltwise_relu_use_dst_for_bwd;
    GG_TRY(gg_dnn_flat_md(op, bytes, &flat));
    GG_DNN_PD(op, &hint, dnnl_eltwise_forward_primitive_desc_create, op->engine, dnnl_forward_training, relu, flat,
              flat, 0, 0, op->plain_attr);
    GG_DNN_PD(op, &pd, dnnl_eltwise_backward_primitive_desc_create, op->engine, relu, flat, flat, flat, 0, 0, hint,
              op->plain_attr);
    const gg_dnn_bind bind[3] = {{DNNL_ARG_DST, flat, gg_dnn_at(GG_DNN_OUTPUT)},
                                 {DNNL_ARG_DIFF_DST, flat, gg_dnn_at(GG_DNN_GRAD_OUTPUT)},
                                 {DNNL_ARG_DIFF_SRC, flat, gg_dnn_at(GG_DNN_GRAD_OUTPUT)}};
    GG_TRY(gg_dnn_add(op, GG_DNN_WEIGHTS, "relu backward", gg_dnn_at(GG_DNN_ALWAYS), pd, 3, bind));
    op->head.backward_needs_output = true;
    return GG_OK;
}

/* -------------------------------------------------------------------------------------------- windows */

gg_status gg_dnn_window(const gg_op_desc *desc, int axis, int64_t *right_padding) {
    static const char *const names[2] = {"height", "width"};
    const bool pools = desc->kind != GG_OP_CONV2D;
    const gg_window *window = pools ? &desc->pool : &desc->conv.window;
    const int64_t kernel = window->kernel[axis], stride = window->stride[axis], padding = window->padding[axis];
    const int64_t dilation = window->dilation[axis];
    const bool ceil_mode = pools && window->ceil_mode;
    if (kernel < 1 || stride < 1 || padding < 0 || dilation < 1)
        return gg_fail(GG_ERROR_ARGUMENT, "%s: kernel %lld, stride %lld, padding %lld, dilation %lld along the %s",
                       gg_op_kind_name(desc->kind), (long long)kernel, (long long)stride, (long long)padding,
                       (long long)dilation, names[axis]);
    const int64_t in = desc->input[0].size[axis + 1], out = desc->output.size[axis + 1];
    const int64_t wanted = gg_window_output(window, axis, in, ceil_mode);
    if (wanted < 1 || wanted != out)
        return gg_fail(GG_ERROR_SHAPE, "%s: a %s of %lld gives %lld, not %lld", gg_op_kind_name(desc->kind),
                       names[axis], (long long)in, (long long)wanted, (long long)out);
    const int64_t covered = (out - 1) * stride + dilation * (kernel - 1) + 1 - in - padding;
    *right_padding = covered > padding ? covered : padding;
    return GG_OK;
}
