#include "cpu/cpu_backend.h"

#include <string.h>

#ifdef GG_HAVE_ONEDNN
const gg_backend *gg_cpu_onednn(void) { return &gg_backend_onednn; }
#else
const gg_backend *gg_cpu_onednn(void) { return NULL; }
const char *gg_onednn_version(void) { return ""; }
#endif

static gg_status check_backend(const char *backend) {
    const bool onednn = strcmp(backend, "onednn") == 0;
    if (!onednn && strcmp(backend, "auto") != 0 && strcmp(backend, "native") != 0)
        return gg_fail(GG_ERROR_ARGUMENT, "backend: '%s'; allowed are auto, onednn, native", backend);
    if (onednn && gg_cpu_onednn() == NULL)
        return gg_fail(GG_ERROR_UNSUPPORTED, "backend: 'onednn'; this build has no oneDNN, allowed are auto, native");
    return GG_OK;
}

static gg_status check_dtype(const gg_devices_options *options) {
    if (options->dtype != GG_BFLOAT16) return GG_OK;
    if (gg_cpu_onednn() == NULL || strcmp(options->backend, "native") == 0)
        return gg_fail(GG_ERROR_UNSUPPORTED, "dtype: 'bfloat16' needs oneDNN, but %s; allowed is float32",
                       gg_cpu_onednn() == NULL ? "this build has none" : "the backend is 'native'");
    if (options->device.isa < GG_ISA_AVX512)
        return gg_fail(GG_ERROR_UNSUPPORTED,
                       "dtype: 'bfloat16' needs the instruction set avx512, here it is %s; allowed is float32",
                       gg_isa_name(options->device.isa));
    return GG_OK;
}

/* Arenas use the native table. */
static gg_status cpu_open(const gg_devices_options *options, gg_devices *out) {
    const gg_backend *onednn = gg_cpu_onednn();
    GG_TRY(check_backend(options->backend));
    GG_TRY(check_dtype(options));
    GG_TRY(gg_backend_native.open(&options->device, &out->device));
    out->first = out->device;
    if (onednn == NULL || strcmp(options->backend, "native") == 0) return GG_OK;
    out->first = NULL;
    GG_TRY(onednn->open(&options->device, &out->first));
    out->choose = strcmp(options->backend, "auto") == 0;
    return GG_OK;
}

void gg_cpu_register(void) {
    static const gg_device_kind cpu = {.name = "cpu", .open = cpu_open};
    gg_registry_add(&cpu);
}
