#include "cpu/kernels.h"

#include <pthread.h>

/* level_kernels.c makes each of these. */
#define DECLARE(NAME, name) extern const gg_cpu_kernels gg_cpu_kernels_##name;
GG_ISAS(DECLARE)

#define ROW(NAME, name) GG_IF_BUILT(NAME, &gg_cpu_kernels_##name, NULL),
static const gg_cpu_kernels *const levels[GG_ISA_COUNT] = {GG_ISAS(ROW)};

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
