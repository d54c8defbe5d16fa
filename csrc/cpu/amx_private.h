/* Kernels that the level amx alone has, where the compiler makes any. */
#ifndef GG_CPU_AMX_PRIVATE_H
#define GG_CPU_AMX_PRIVATE_H

#include <stddef.h>

#include "base/cpu.h"

/* A pointer to `kernels` for that level, NULL for all others. Without such a compiler there is no object of that name.
 */
#ifdef GG_HAS_AMX
#define GG_AMX_KERNELS(isa, kernels) ((isa) == GG_ISA_AMX ? &(kernels) : NULL)
#else
#define GG_AMX_KERNELS(isa, kernels) ((void)(isa), NULL)
#endif

#endif
