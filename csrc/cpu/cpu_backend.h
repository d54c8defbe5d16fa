/* The two CPU tables, and the kind of devices that they make. */
#ifndef GG_CPU_CPU_BACKEND_H
#define GG_CPU_CPU_BACKEND_H

#include "ops/registry.h"

/* Own kernels; every entry is filled. */
extern const gg_backend gg_backend_native;
/* oneDNN for convolution, linear, pooling, activations, sums, concatenation and reorders, and for the LSTM in bfloat16;
 * the loss, arena and layout entries are the native ones. */
extern const gg_backend gg_backend_onednn;

/* The oneDNN table, or NULL where the core was built without it. */
const gg_backend *gg_cpu_onednn(void);
/* Version text of the oneDNN in use, e.g. "3.2.0"; "" without it. */
const char *gg_onednn_version(void);

/* Adds the kind "cpu", with the backends "onednn", "native" and "auto", for each operation the faster. */
void gg_cpu_register(void);

#endif
