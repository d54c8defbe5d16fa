#include <math.h>
#include <stdio.h>
#include <string.h>

#include "cuda/device/device.h"
#include "cuda/kernels.h"
#include "cuda/ops.h"
#include "cuda/services.h"
#include "ops/library.h"

/* ------------------------------------------------------------------------------------------ arenas
 * Each gives one kernel to GG_QUEUE_COMPUTE. */

#define LAUNCH(device, name, ...)                                                                                      \
    do {                                                                                                               \
        gg_cuda_enter(gg_cuda_of(device));                                                                             \
        gg_cuda_##name(gg_cuda_compute(gg_cuda_of(device)), __VA_ARGS__);                                              \
        gg_cuda_launched(gg_cuda_of(device), #name);                                                                   \
    } while (0)

static void table_update(gg_device *device, int count, const gg_update_args *args) {
    LAUNCH(device, update, count, args);
}

static void table_mix(gg_device *device, size_t n, gg_dtype wire, float share, const float *base, const void *received,
                      const float *sent, float *out) {
    LAUNCH(device, mix, n, wire, share, base, received, sent, out);
}

static void table_narrow(gg_device *device, size_t n, const float *in, uint16_t *out) {
    LAUNCH(device, narrow, n, in, out);
}

static void table_widen(gg_device *device, size_t n, const uint16_t *in, float *out) {
    LAUNCH(device, widen, n, in, out);
}

static void table_widen_add(gg_device *device, size_t n, const uint16_t *in, float *out) {
    LAUNCH(device, widen_add, n, in, out);
}

/* Addresses of sources are kernel arguments. */
static bool has_room_for(gg_device *device, int sources) {
    char why[96];
    if (sources <= GG_CUDA_MAX_SOURCES) return true;
    snprintf(why, sizeof why, "a sum over %d ranks; at most %d are possible here", sources, GG_CUDA_MAX_SOURCES);
    gg_cuda_refuse(gg_cuda_of(device), why);
    return false;
}

static void table_weighted_sum(gg_device *device, size_t n, int sources, const float *const *source, const float *scale,
                               float *out) {
    if (!has_room_for(device, sources)) return;
    LAUNCH(device, weighted_sum, n, sources, source, scale, out);
}

static void table_narrow_sum(gg_device *device, size_t n, int sources, const uint16_t *const *source,
                             const float *scale, float *out, uint16_t *rounded) {
    if (!has_room_for(device, sources)) return;
    LAUNCH(device, narrow_sum, n, sources, source, scale, out, rounded);
}

static void table_narrow_difference(gg_device *device, size_t n, const float *a, const uint16_t *b, uint16_t *out) {
    LAUNCH(device, narrow_difference, n, a, b, out);
}

/* ------------------------------------------------------------------------------------------ entries with a result
 * Waits for the results. After a failure they are undefined: gg_device_check reports it. */

static gg_cuda_results *wait_for_results(gg_cuda_device *device) {
    gg_cuda_note(device, device->api->cudaStreamSynchronize(gg_cuda_compute(device)), "cudaStreamSynchronize");
    return device->results;
}

static double table_sum_squares(gg_device *device, size_t n, const float *a, const float *b) {
    gg_cuda_device *own = gg_cuda_of(device);
    double *partial = gg_cuda_reduction(own, GG_CUDA_PARTIALS * sizeof(double));
    if (partial == NULL) return (double)NAN;
    LAUNCH(device, sum_squares, n, a, b, partial, &own->results->sum);
    return wait_for_results(own)->sum;
}

static bool table_all_finite(gg_device *device, size_t n, const float *a) {
    gg_cuda_device *own = gg_cuda_of(device);
    double *partial = gg_cuda_reduction(own, GG_CUDA_PARTIALS * sizeof(double));
    if (partial == NULL) return false;
    LAUNCH(device, all_finite, n, a, partial, &own->results->flag);
    return wait_for_results(own)->flag != 0;
}

/* ------------------------------------------------------------------------------------------ packed messages */

static void table_pack(gg_device *device, int count, const gg_pack_args *args) {
    for (int i = 0; i < count; ++i)
        if (args[i].prepare != NULL)
            (void)args[i].prepare(args[i].context, args[i].offset, (args[i].n + GG_LANES - 1) / GG_LANES * GG_LANES);
    LAUNCH(device, pack, count, args);
}

static void table_add_elements(gg_device *device, const gg_elements_args *args) { LAUNCH(device, add_elements, args); }

static void table_take_elements(gg_device *device, const gg_elements_args *args) {
    LAUNCH(device, take_elements, args);
}

/* ------------------------------------------------------------------------------------------ batches */

static void table_loss(gg_device *device, const gg_loss_args *args) {
    double *scratch = gg_cuda_reduction(gg_cuda_of(device), gg_cuda_loss_scratch(args) * sizeof(double));
    if (scratch != NULL) LAUNCH(device, loss, args, scratch);
}

static void table_gather(gg_device *device, const gg_gather_args *args) { LAUNCH(device, gather, args); }

static void table_weight_gradient(gg_device *device, const gg_weight_gradient_args *args) {
    LAUNCH(device, weight_gradient, args);
}

static void table_columns(gg_device *device, const gg_vectors *from, int64_t first, int64_t count, float *out) {
    LAUNCH(device, columns, from, first, count, out);
}

static void table_transpose(gg_device *device, int64_t n, int64_t values, bool to_lanes, const float *in, float *out) {
    LAUNCH(device, transpose, n, values, to_lanes, in, out);
}

const gg_backend gg_backend_cuda = {
    .name = GG_CUDA_NAME,
    .numbered_algorithms = true,
    .gathers_images = true,
    .open = gg_cuda_device_open,
    .close = gg_cuda_device_close,
    .memory = &gg_cuda_memory,
    .create =
        {
            [GG_OP_CONV2D] = gg_cuda_conv2d_create,
            [GG_OP_LINEAR] = gg_cuda_linear_create,
            [GG_OP_MAX_POOL2D] = gg_cuda_pool_create,
            [GG_OP_AVG_POOL2D] = gg_cuda_pool_create,
            [GG_OP_ADAPTIVE_AVG_POOL2D] = gg_cuda_pool_create,
            [GG_OP_BATCH_NORM] = gg_cuda_batch_norm_create,
            [GG_OP_LAYER_NORM] = gg_cuda_layer_norm_create,
            [GG_OP_LOCAL_RESPONSE_NORM] = gg_cuda_lrn_create,
            [GG_OP_SOFTMAX] = gg_cuda_softmax_create,
            [GG_OP_LEAKY_RELU] = gg_cuda_activation_create,
            [GG_OP_GELU] = gg_cuda_activation_create,
            [GG_OP_RELU] = gg_cuda_activation_create,
            [GG_OP_TANH] = gg_cuda_activation_create,
            [GG_OP_SIGMOID] = gg_cuda_activation_create,
            [GG_OP_DROPOUT] = gg_cuda_dropout_create,
            [GG_OP_ADD] = gg_cuda_add_create,
            [GG_OP_CONCAT] = gg_cuda_concat_create,
            [GG_OP_REORDER] = gg_cuda_reorder_create,
            [GG_OP_EMBEDDING] = gg_cuda_embedding_create,
            [GG_OP_POSITION_EMBEDDING] = gg_cuda_position_embedding_create,
            [GG_OP_PERMUTE] = gg_cuda_rearrange_create,
            [GG_OP_SLICE] = gg_cuda_rearrange_create,
            [GG_OP_PAD] = gg_cuda_rearrange_create,
            [GG_OP_ATTENTION] = gg_cuda_attention_create,
            [GG_OP_LSTM] = gg_cuda_lstm_create,
            [GG_OP_MULTI_HEAD] = gg_multi_head_create,
        },
    .update = table_update,
    .loss = table_loss,
    .mix = table_mix,
    .narrow = table_narrow,
    .widen = table_widen,
    .widen_add = table_widen_add,
    .weighted_sum = table_weighted_sum,
    .narrow_sum = table_narrow_sum,
    .narrow_difference = table_narrow_difference,
    .sum_squares = table_sum_squares,
    .all_finite = table_all_finite,
    .pack = table_pack,
    .add_elements = table_add_elements,
    .take_elements = table_take_elements,
    .gather = table_gather,
    .weight_gradient = table_weight_gradient,
    .columns = table_columns,
    .transpose = table_transpose,
};

/* ------------------------------------------------------------------------------------------ the library */

/* The library's only exported symbol. */
__attribute__((visibility("default"))) gg_backend_library_open_function gg_backend_library_open;

const gg_backend_library *gg_backend_library_open(const gg_library_services *services) {
    static const gg_backend_library library = {
        .sizes = GG_LIBRARY_SIZES_OF,
        .backend = &gg_backend_cuda,
        .devices = gg_cuda_device_count,
        .describe = gg_cuda_describe,
    };
    gg_cuda_services_use(services);
    return &library;
}
