/* The two CPU tables, and the kinds of devices that they make. */
#ifndef GG_CPU_CPU_BACKEND_H
#define GG_CPU_CPU_BACKEND_H

#include "ops/registry.h"

/* Own kernels; every entry is filled. */
extern const gg_backend gg_backend_native;
/* oneDNN for convolution, linear, pooling, activations, sums, concatenation and reorders, and for the LSTM in bfloat16;
 * the loss, arena and layout entries are the native ones. */
extern const gg_backend gg_backend_onednn;

/* The native kernels behind the rules of devices with memory of their own, for tests (cpu/strict/strict.h). */
extern const gg_backend gg_backend_strict;
extern const gg_device_kind gg_strict_kind;

/* The oneDNN table, or NULL where the core was built without it. */
const gg_backend *gg_cpu_onednn(void);
/* Version text of the oneDNN in use, e.g. "3.2.0"; "" without it. */
const char *gg_onednn_version(void);

/* Adds the kinds "cpu", with the backends "onednn", "native" and "auto", for each operation the faster, and "strict".
 */
void gg_cpu_register(void);

#endif
