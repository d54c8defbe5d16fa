/* Operations of bfloat16 that are computed in float32: an activation that they do not have is refused, not left out;
 * their inner operations are compiled. */
#include "check.h"
#include "cpu/cpu_backend.h"
#include "cpu/native.h"

static gg_op *made[2]; /* inner operations, in the order of their creation */
static int makes, compiled[2];

static void note_compiled(gg_op *op) { ++compiled[op == made[1]]; }

static gg_status keep_going(gg_op *op, const gg_op_args *args) {
    (void)op, (void)args;
    return GG_OK;
}

static void destroy(gg_op *op) { gg_free(op); }

/* A float32 operation that notes its compilation. at_once: without a pass of the weights. */
static gg_status make(const gg_op_desc *desc, bool at_once, gg_op **out) {
    static const gg_op_class in_two = {.forward = keep_going,
                                       .backward_weights = keep_going,
                                       .backward_data = keep_going,
                                       .compile = note_compiled,
                                       .destroy = destroy};
    static const gg_op_class in_one = {
        .forward = keep_going, .backward_data = keep_going, .compile = note_compiled, .destroy = destroy};
    gg_status status = gg_calloc(1, sizeof(gg_op), "an operation", out);
    if (status != GG_OK) return status;
    (*out)->type = at_once ? &in_one : &in_two;
    (*out)->desc = *desc;
    (*out)->input[0] = (*out)->output = (gg_format){GG_FLOAT32, GG_LAYOUT_PLAIN};
    made[makes++ % 2] = *out;
    return GG_OK;
}

static gg_status make_in_two(gg_device *device, const gg_op_desc *desc, gg_op **out) {
    (void)device;
    return make(desc, false, out);
}

static gg_status make_in_one(gg_device *device, const gg_op_desc *desc, gg_op **out) {
    (void)device;
    return make(desc, true, out);
}

/* A divided convolution has an operation of its own for the gradient of the data. */
static void test_compilation(gg_device *device) {
    gg_op_desc desc = {.kind = GG_OP_CONV2D,
                       .dtype = GG_BFLOAT16,
                       .batch = 2,
                       .inputs = 1,
                       .input = {{3, {16, 8, 8}}},
                       .output = {3, {16, 8, 8}},
                       .offered = {{GG_BFLOAT16, GG_LAYOUT_PLAIN}},
                       .training = true,
                       .input_grad = true,
                       .conv = {.window = {.kernel = {1, 1}, .stride = {1, 1}}, .groups = 1}};
    for (int divided = 0; divided < 2; ++divided) {
        for (int at_once = 0; at_once < 2; ++at_once) {
            gg_op *op = NULL;
            desc.batch = divided ? 8192 : 2;
            makes = compiled[0] = compiled[1] = 0;
            if (!CHECK_OK(gg_cpu_widened_create(device, &desc, at_once ? make_in_one : make_in_two, &op))) return;
            CHECK_INT(makes, 1 + divided);
            gg_op_compile(op);
            for (int i = 0; i < 2; ++i) CHECK_INT(compiled[i], i < makes);
            gg_op_destroy(op);
        }
    }
}

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
    if (device != NULL) test_compilation(device);
    if (device != NULL) device->table->close(device);
    CHECK_INT(gg_memory_live_bytes(), 0);
    return CHECK_RESULT;
}
