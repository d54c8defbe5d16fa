/* Kernels of the emulation become work of the stand-in's streams. */
#include "emulation.h"
#include "inside.h"

namespace {

void put(void *stream, gg_emulation_run *run, const void *packet, size_t bytes, const char *kernel) {
    /* behind the launch lie the kernel's address and its arguments */
    const size_t head = sizeof(gg_emulation::launch) + sizeof(void *);
    gg_standin_launch(kernel, static_cast<gg_cuda_stream>(stream), run, packet, bytes, head);
}

__attribute__((constructor)) void begin() {
    gg_emulation_hook = put;
    gg_cuda_api_use(gg_standin_api());
}

} // namespace
