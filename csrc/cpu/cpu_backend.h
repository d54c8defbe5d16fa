/* The two CPU tables, and the device kind "cpu" that uses them. */
#ifndef GG_CPU_CPU_BACKEND_H
#define GG_CPU_CPU_BACKEND_H

#include "ops/registry.h"

/* Own kernels; every entry is filled. */
extern const gg_backend gg_backend_native;
/* Convolution, linear, pooling, activations, sums, concatenation, reorders and the bfloat16 LSTM by oneDNN. The loss,
 * arena and layout entries are the native ones. */
extern const gg_backend gg_backend_onednn;

/* The oneDNN table; NULL means that the core was built without it. */
const gg_backend *gg_cpu_onednn(void);
/* Version text of the oneDNN in use, e.g. "3.2.0"; "" without it. */
const char *gg_onednn_version(void);

/* Registers the kind "cpu" with the backends "onednn", "native" and "auto". "auto" takes the faster of both for each
 * operation. */
void gg_cpu_register(void);

#endif
