/* The emulation of a GPU for tests, as programs see it (C and C++): memory that its checks know, what they found, and
 * when kernels run. Kernels see emulation.h. */
#ifndef GG_EMULATION_API_H
#define GG_EMULATION_API_H

#include <stddef.h>

#ifdef __cplusplus
extern "C" {
#endif

/* Memory for kernels, aligned to 64 bytes and filled with bytes of 0xff (NaN), with guard bytes on both sides. In a
 * checked build (emulation.cpp) kernels may touch nothing else, and races are seen between elements of `element` bytes
 * (1, 2, 4 or 8). Ends the program where there is no memory. bytes = 0 is fine. */
void *gg_emulation_alloc(size_t bytes, size_t element, const char *name);
/* Reports a guard that was written. NULL is fine. */
void gg_emulation_free(void *block);
/* Kernels may touch other memory, too, until it is forgotten; it has no guards. */
void gg_emulation_watch(void *block, size_t bytes, size_t element, const char *name);
void gg_emulation_unwatch(void *block);

/* What was found wrong since the start or the last reset: how much, and the first in words ("": nothing). Each is
 * also printed, but for those between gg_emulation_expect and the next reset. */
long gg_emulation_failures(void);
const char *gg_emulation_failure(void);
void gg_emulation_expect(void);
void gg_emulation_reset(void);

/* Set: GG_LAUNCH calls it in the place of running the kernel. run(packet) runs the kernel, or run(copy) of its bytes,
 * aligned to 16, by any thread and as often as one likes; kernels run one at a time. The words of the packet that are
 * addresses of device memory may be replaced. NULL, as at the start: kernels run at once. */
typedef void gg_emulation_run(const void *packet);
typedef void gg_emulation_submit(void *stream, gg_emulation_run *run, const void *packet, size_t bytes,
                                 const char *kernel_name);
extern gg_emulation_submit *gg_emulation_hook;

/* Whether accesses are checked in this build. */
int gg_emulation_is_checked(void);

#ifdef __cplusplus
}
#endif

#endif
