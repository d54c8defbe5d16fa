#include "cpu/kernels.h"

#include <pthread.h>

/* level_kernels.c makes each of these. */
extern const gg_cpu_kernels gg_cpu_kernels_scalar, gg_cpu_kernels_avx2, gg_cpu_kernels_avx512f, gg_cpu_kernels_avx512,
    gg_cpu_kernels_amx;

static const gg_cpu_kernels *const levels[GG_ISA_COUNT] = {
    [GG_ISA_SCALAR] = &gg_cpu_kernels_scalar,
#ifdef GG_HAS_AVX2
    [GG_ISA_AVX2] = &gg_cpu_kernels_avx2,
#endif
#ifdef GG_HAS_AVX512F
    [GG_ISA_AVX512F] = &gg_cpu_kernels_avx512f,
#endif
#ifdef GG_HAS_AVX512
    [GG_ISA_AVX512] = &gg_cpu_kernels_avx512,
#endif
#ifdef GG_HAS_AMX
    [GG_ISA_AMX] = &gg_cpu_kernels_amx,
#endif
};

const gg_cpu_kernels *gg_cpu_kernels_for(gg_isa isa) { return levels[isa]; }

static const gg_cpu_kernels *host = &gg_cpu_kernels_scalar;
static pthread_once_t host_once = PTHREAD_ONCE_INIT;

/* Opening a device reports an unknown level. */
static void find_host(void) {
    gg_isa isa = GG_ISA_SCALAR;
    if (gg_isa_select(NULL, &isa) == GG_OK) host = gg_cpu_kernels_for(isa);
}

const gg_cpu_kernels *gg_cpu_host_kernels(void) {
    pthread_once(&host_once, find_host);
    return host;
}
