#ifndef GG_CUDA_SERVICES_H
#define GG_CUDA_SERVICES_H

#include "ops/library.h"

/* Before any other call of this library. The services outlive it. */
void gg_cuda_services_use(const gg_library_services *services);

#endif
