#ifndef GG_CUDA_SERVICES_H
#define GG_CUDA_SERVICES_H

#include "ops/library.h"

/* Must be called before any other function of this library. The services outlive the library's use. */
void gg_cuda_services_use(const gg_library_services *services);

#endif
