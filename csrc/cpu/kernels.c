#include "cpu/kernels.h"

#include <pthread.h>

const gg_cpu_kernels *gg_cpu_kernels_for(gg_isa isa) {
    switch (isa) {
    case GG_ISA_SCALAR: return &gg_cpu_kernels_scalar;
#ifdef GG_HAS_AVX2
    case GG_ISA_AVX2: return &gg_cpu_kernels_avx2;
#endif
#ifdef GG_HAS_AVX512F
    case GG_ISA_AVX512F: return &gg_cpu_kernels_avx512f;
#endif
#ifdef GG_HAS_AVX512
    case GG_ISA_AVX512:
    case GG_ISA_AMX: return &gg_cpu_kernels_avx512;
#endif
    default: return NULL;
    }
}

static const gg_cpu_kernels *host = &gg_cpu_kernels_scalar;
static pthread_once_t host_once = PTHREAD_ONCE_INIT;

/* Whoever opens a device is told of a level that is unknown. */
static void find_host(void) {
    gg_isa isa = GG_ISA_SCALAR;
    if (gg_isa_select(NULL, &isa) == GG_OK) host = gg_cpu_kernels_for(isa);
}

const gg_cpu_kernels *gg_cpu_host_kernels(void) {
    pthread_once(&host_once, find_host);
    return host;
}
