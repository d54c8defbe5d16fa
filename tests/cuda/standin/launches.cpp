/* Kernels of the emulation become work of the stand-in's streams. */
#include "emulation.h"
#include "inside.h"

namespace {

void put(void *stream, gg_emulation_run *run, const void *packet, size_t bytes, const char *kernel) {
    const auto *launch = static_cast<const gg_emulation::launch *>(packet);
    const gg_standin_words words = {sizeof(gg_emulation::launch) + sizeof(void *), launch->pointer_words,
                                    launch->struct_words};
    gg_standin_launch(kernel, static_cast<gg_cuda_stream>(stream), run, packet, bytes, &words);
}

__attribute__((constructor)) void begin() {
    gg_emulation_hook = put;
    gg_cuda_api_use(gg_standin_api());
}

} // namespace

long gg_standin_kernel_failures(void) { return gg_emulation_failures(); }
