/* Operations of bfloat16 that are computed in float32: an activation that they do not have is refused, not left out. */
#include "check.h"
#include "cpu/cpu_backend.h"
#include "cpu/native.h"

int main(void) {
    gg_isa isa;
    gg_device *device = NULL;
    gg_op *op = NULL;
    gg_op_desc desc = {.kind = GG_OP_LINEAR,
                       .dtype = GG_BFLOAT16,
                       .batch = 3,
                       .inputs = 1,
                       .input = {{2, {5, 19}}},
                       .output = {2, {5, 37}},
                       .bias = true,
                       .training = true};
    CHECK_OK(gg_isa_select(NULL, &isa));
    CHECK_OK(gg_backend_native.open(&(gg_device_options){.threads = 1, .isa = isa}, &device));
    for (int activation = GG_ACTIVATION_NONE; activation <= GG_ACTIVATION_GELU; ++activation) {
        desc.activation = (gg_activation)activation;
        if (activation == GG_ACTIVATION_GELU) {
            CHECK_FAILS(gg_cpu_widened_create(device, &desc, gg_native_linear_rows_create, &op), GG_ERROR_UNSUPPORTED,
                        "has no widened form");
            CHECK(op == NULL);
        } else if (CHECK_OK(gg_cpu_widened_create(device, &desc, gg_native_linear_rows_create, &op))) {
            gg_op_destroy(op);
            op = NULL;
        }
    }
    if (device != NULL) device->table->close(device);
    CHECK_INT(gg_memory_live_bytes(), 0);
    return CHECK_RESULT;
}
