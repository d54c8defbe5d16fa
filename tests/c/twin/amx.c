/* The level amx on any CPU: the programs that say "twins: amx", and the module of single operations, are linked so that
 * calls of these functions come here. Where the CPU lacks the level, it has the scalar kernels of split products, which
 * have AMX's bits, and of few channels, and for all else those of the best level that is here. So what packs operands,
 * meets edges and orders sums is tested on every machine. */
#include "twin/amx.h"

#include <string.h>

bool __real_gg_cpu_supports(gg_isa isa);
gg_status __real_gg_isa_select(const char *name, gg_isa *out);
const gg_cpu_kernels *__real_gg_cpu_kernels_for(gg_isa isa);

static bool is_twin(gg_isa isa) { return isa == GG_ISA_AMX && !__real_gg_cpu_supports(GG_ISA_AMX); }

bool __wrap_gg_cpu_supports(gg_isa isa) { return is_twin(isa) || __real_gg_cpu_supports(isa); }

gg_status __wrap_gg_isa_select(const char *name, gg_isa *out) {
    if (name == NULL || strcmp(name, gg_isa_name(GG_ISA_AMX)) != 0) return __real_gg_isa_select(name, out);
    *out = GG_ISA_AMX;
    return GG_OK;
}

static gg_cpu_kernels twin;

__attribute__((constructor)) static void make_twin(void) {
    gg_isa best = GG_ISA_AMX;
    while (!__real_gg_cpu_supports(best)) --best;
    twin = *__real_gg_cpu_kernels_for(best);
    twin.isa = GG_ISA_AMX;
    twin.split = &gg_split_kernels_scalar;
    twin.split_conv = &gg_split_conv_kernels_scalar;
    twin.image = &gg_image_kernels_scalar;
}

const gg_cpu_kernels *__wrap_gg_cpu_kernels_for(gg_isa isa) {
    return is_twin(isa) ? &twin : __real_gg_cpu_kernels_for(isa);
}
