#include "cpu/cpu_backend.h"

#ifdef GG_HAVE_ONEDNN
const gg_backend *gg_cpu_onednn(void) { return &gg_backend_onednn; }
#else
const gg_backend *gg_cpu_onednn(void) { return NULL; }
const char *gg_onednn_version(void) { return ""; }
#endif
