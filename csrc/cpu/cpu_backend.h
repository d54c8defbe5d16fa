/* The two CPU tables and how one is chosen. */
#ifndef GG_CPU_CPU_BACKEND_H
#define GG_CPU_CPU_BACKEND_H

#include "backend/backend.h"

/* Own kernels, in BATCH_LAST layout throughout; every entry is filled. */
extern const gg_backend gg_backend_native;
/* oneDNN for convolution, linear, pooling, activations and reorders; the element-wise, loss and arena entries
 * are the native ones. */
extern const gg_backend gg_backend_onednn;

/* The oneDNN table, or NULL where the core was built without it. */
const gg_backend *gg_cpu_onednn(void);
/* Version text of the oneDNN in use, e.g. "3.2.0"; "" without it. */
const char *gg_onednn_version(void);

#endif
