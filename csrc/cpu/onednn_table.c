/* The table of the oneDNN operations. */
#include <pthread.h>
#include <stdio.h>

#include "base/parallel.h"
#include "cpu/native.h"
#include "cpu/onednn_common.h"

/* oneDNN's instruction set can be set once a process, before its first primitive. The first opened device sets it,
 * unless the host program has used oneDNN before. Neither is an error: results are right with any set. oneDNN 3 has no
 * kernels for the AVX-512 of a Knights Landing. */
static void limit_isa(gg_isa wanted) {
    dnnl_cpu_isa_t isa = dnnl_cpu_isa_default;
    if (wanted == GG_ISA_SCALAR) isa = dnnl_cpu_isa_sse41;
    if (wanted == GG_ISA_AVX2 || wanted == GG_ISA_AVX512F) isa = dnnl_cpu_isa_avx2;
    (void)dnnl_set_max_cpu_isa(isa);
}

static void close_device(gg_device *device) {
    if (device == NULL) return;
    gg_dnn_device *it = (gg_dnn_device *)device;
    if (it->engine != NULL) dnnl_engine_destroy(it->engine);
    gg_cpu_device_close(device);
}

static gg_status open_device(const gg_device_options *options, gg_device **out) {
    static pthread_mutex_t once = PTHREAD_MUTEX_INITIALIZER;
    static bool limited = false;
    gg_status status = GG_OK;
    gg_device *device = NULL;
    *out = NULL;
    GG_TRY_CLEANUP(gg_cpu_device_open(&gg_backend_onednn, sizeof(gg_dnn_device), options, &device));
    pthread_mutex_lock(&once);
    if (!limited) {
        limit_isa(options->isa);
        limited = true;
    }
    pthread_mutex_unlock(&once);
    gg_parallel_set_threads(options->threads);
    GG_DNN_TRY_CLEANUP(dnnl_engine_create, &((gg_dnn_device *)device)->engine, dnnl_cpu, 0);
    *out = device;
    device = NULL;
cleanup:
    close_device(device);
    return status;
}

static char version_text[32];

static void write_version(void) {
    const dnnl_version_t *version = dnnl_version();
    (void)snprintf(version_text, sizeof version_text, "%d.%d.%d", version->major, version->minor, version->patch);
}

const char *gg_onednn_version(void) {
    static pthread_once_t once = PTHREAD_ONCE_INIT;
    pthread_once(&once, write_version);
    return version_text;
}

const gg_backend gg_backend_onednn = {
    .name = GG_DNN_NAME,
    .open = open_device,
    .close = close_device,
    .create =
        {
            [GG_OP_CONV2D] = gg_dnn_conv2d_create,
            [GG_OP_LINEAR] = gg_dnn_linear_create,
            [GG_OP_MAX_POOL2D] = gg_dnn_pool_create,
            [GG_OP_AVG_POOL2D] = gg_dnn_pool_create,
            [GG_OP_RELU] = gg_native_activation_create,
            [GG_OP_TANH] = gg_dnn_activation_create,
            [GG_OP_SIGMOID] = gg_dnn_activation_create,
            [GG_OP_ADD] = gg_dnn_add_create,
            [GG_OP_CONCAT] = gg_dnn_concat_create,
            [GG_OP_LSTM] = gg_dnn_lstm_create,
            [GG_OP_REORDER] = gg_dnn_reorder_create,
        },
    GG_CPU_SHARED_ENTRIES,
};
