/* The level amx on any CPU: the programs that say "twins: amx", and the module of single operations, are linked so that
 * calls of these functions come here. Where the CPU lacks the level, it has the scalar kernels of split products, which
 * have AMX's bits, and of few channels, and for all else those of the best level that is here. So what packs operands,
 * meets edges and orders sums is tested on every machine. */
#include "base/cpu.h"
#include "cpu/conv/image_kernels.h"
#include "cpu/conv/split_conv_kernels.h"
#include "cpu/conv/winograd_kernels.h"
#include "cpu/gemm/gemm_kernels.h"
#include "cpu/gemm/paired_kernels.h"
#include "cpu/gemm/split_kernels.h"
#include "cpu/kernels.h"

#include <string.h>

bool __real_gg_cpu_supports(gg_isa isa);
gg_status __real_gg_isa_select(const char *name, gg_isa *out);
const gg_split_kernels *__real_gg_split_kernels_for(gg_isa isa);
const gg_split_conv_kernels *__real_gg_split_conv_kernels_for(gg_isa isa);
const gg_image_kernels *__real_gg_image_kernels_for(gg_isa isa);
const gg_cpu_kernels *__real_gg_cpu_kernels_for(gg_isa isa);
const gg_gemm_kernels *__real_gg_gemm_kernels_for(gg_isa isa);
const gg_winograd_kernels *__real_gg_winograd_kernels_for(gg_isa isa);
const gg_paired_kernels *__real_gg_paired_kernels_for(gg_isa isa);

static bool is_twin(gg_isa isa) { return isa == GG_ISA_AMX && !__real_gg_cpu_supports(GG_ISA_AMX); }

/* The level whose kernels the others are. */
static gg_isa best_of(gg_isa isa) {
    int best = isa;
    while (!__real_gg_cpu_supports((gg_isa)best)) --best;
    return (gg_isa)best;
}

bool __wrap_gg_cpu_supports(gg_isa isa) { return is_twin(isa) || __real_gg_cpu_supports(isa); }

gg_status __wrap_gg_isa_select(const char *name, gg_isa *out) {
    if (name == NULL || strcmp(name, gg_isa_name(GG_ISA_AMX)) != 0) return __real_gg_isa_select(name, out);
    *out = GG_ISA_AMX;
    return GG_OK;
}

const gg_split_kernels *__wrap_gg_split_kernels_for(gg_isa isa) {
    return is_twin(isa) ? &gg_split_kernels_scalar : __real_gg_split_kernels_for(isa);
}

const gg_split_conv_kernels *__wrap_gg_split_conv_kernels_for(gg_isa isa) {
    return is_twin(isa) ? &gg_split_conv_kernels_scalar : __real_gg_split_conv_kernels_for(isa);
}

const gg_image_kernels *__wrap_gg_image_kernels_for(gg_isa isa) {
    return is_twin(isa) ? &gg_image_kernels_scalar : __real_gg_image_kernels_for(isa);
}

const gg_cpu_kernels *__wrap_gg_cpu_kernels_for(gg_isa isa) {
    return __real_gg_cpu_kernels_for(is_twin(isa) ? best_of(isa) : isa);
}

const gg_gemm_kernels *__wrap_gg_gemm_kernels_for(gg_isa isa) {
    return __real_gg_gemm_kernels_for(is_twin(isa) ? best_of(isa) : isa);
}

const gg_winograd_kernels *__wrap_gg_winograd_kernels_for(gg_isa isa) {
    return __real_gg_winograd_kernels_for(is_twin(isa) ? best_of(isa) : isa);
}

/* $GOSSIPGRAD_PAIRED names them on any CPU, so those of levels that it lacks are left out. */
const gg_paired_kernels *__wrap_gg_paired_kernels_for(gg_isa isa) {
    const gg_isa level = is_twin(isa) ? best_of(isa) : isa;
    return __real_gg_cpu_supports(level) ? __real_gg_paired_kernels_for(level) : NULL;
}
