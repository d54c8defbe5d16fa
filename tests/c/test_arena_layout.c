/* Layouts of arenas that are made from a list, and that of a graph. */
#include <math.h>
#include <string.h>

#include "base/memory.h"
#include "check.h"
#include "ops/arena_layout.h"

static gg_parameter tensor(const char *name, int layer, int64_t rows, int64_t columns) {
    return (gg_parameter){.name = name,
                          .lr_factor = 1,
                          .decay_factor = 1,
                          .momentum_factor = 1,
                          .shape = columns > 0 ? (gg_shape){2, {rows, columns}} : (gg_shape){1, {rows}},
                          .layer = layer};
}

static void test_places(void) {
    char name[8] = "a.w";
    const gg_layer_place layers[] = {{.name = "a", .partitionable = true}, {.name = "b"}};
    gg_parameter list[] = {tensor(name, 0, 3, 5), tensor("a.b", 0, 3, 0), tensor("b", 1, 1, 0)};
    gg_arena_layout layout;
    list[2].shape = (gg_shape){0, {0}}; /* one number */
    list[1].role = GG_ROLE_BIAS;
    CHECK_OK(gg_arena_layout_create(layers, 2, list, 3, &layout));
    name[0] = 'x'; /* names are copied */
    CHECK_TEXT(layout.parameter[0].name, "a.w");
    CHECK_TEXT(layout.layer[1].name, "b");
    CHECK_INT(layout.count, 3 * GG_LANES);
    for (int i = 0; i < 3; i++) CHECK_INT(layout.parameter[i].offset, i * GG_LANES);
    CHECK_INT(layout.parameter[0].count, 15);
    CHECK_INT(layout.parameter[2].count, 1);
    CHECK_INT(layout.layer[0].parameters, 2);
    CHECK_INT(layout.layer[1].first_parameter, 2);
    CHECK_INT(gg_arena_layout_slice(&layout, 0)->count, 2 * GG_LANES);
    CHECK_INT(gg_arena_layout_slice(&layout, 1)->offset, 2 * GG_LANES);
    gg_arena_layout_destroy(&layout);
    CHECK_OK(gg_arena_layout_create(NULL, 0, NULL, 0, &layout));
    CHECK_INT(layout.count, 0);
    gg_arena_layout_destroy(&layout);
}

static void refuses(const gg_layer_place *layers, int count, const gg_parameter *list, int parameters, gg_status status,
                    const char *text) {
    gg_arena_layout layout;
    CHECK_FAILS(gg_arena_layout_create(layers, count, list, parameters, &layout), status, text);
    CHECK_INT(layout.count, 0);
    CHECK(layout.parameter == NULL && layout.layer == NULL && layout.names == NULL);
}

static void test_refusals(void) {
    const gg_layer_place layers[] = {{.name = "a", .partitionable = true}, {.name = "b"}},
                         twice[] = {{.name = "a"}, {.name = "a"}};
    const gg_parameter good[] = {tensor("a.w", 0, 3, 5), tensor("b.w", 1, 2, 0)};
    gg_parameter list[2];
#define AGAIN memcpy(list, good, sizeof list)
    refuses(twice, 2, good, 2, GG_ERROR_ARGUMENT, "layer 'a' is there twice");
    AGAIN, list[1].name = "a.w";
    refuses(layers, 2, list, 2, GG_ERROR_ARGUMENT, "parameter 'a.w' is there twice");
    AGAIN, list[1].name = "";
    refuses(layers, 2, list, 2, GG_ERROR_ARGUMENT, "parameter 1 has no name");
    AGAIN, list[0].layer = 1, list[1].layer = 0;
    refuses(layers, 2, list, 2, GG_ERROR_ARGUMENT, "parameter 'a.w' is of layer 1");
    AGAIN, list[1].layer = 2;
    refuses(layers, 2, list, 2, GG_ERROR_ARGUMENT, "parameter 'b.w' is of layer 2");
    refuses(layers, 2, good, 1, GG_ERROR_ARGUMENT, "layer 'b' has no parameter");
    AGAIN, list[1].shape.size[0] = 0;
    refuses(layers, 2, list, 2, GG_ERROR_SHAPE, "parameter 'b.w': shape (0,)");
    AGAIN, list[1].shape = (gg_shape){3, {1 << 30, 1 << 30, 1 << 30}};
    refuses(layers, 2, list, 2, GG_ERROR_SHAPE, "wanted 1 to 2^48 elements");
    AGAIN, list[1].shape.dims = GG_MAX_DIMS + 1;
    refuses(layers, 2, list, 2, GG_ERROR_SHAPE, "6 axes; allowed are 0 to 5");
    AGAIN, list[1].lr_factor = NAN;
    refuses(layers, 2, list, 2, GG_ERROR_ARGUMENT, "parameter 'b.w': factors nan");
    AGAIN, list[1].decay_factor = -1;
    refuses(layers, 2, list, 2, GG_ERROR_ARGUMENT, "-1 of the weight decay");
    AGAIN, list[1].momentum_factor = 1.5f;
    refuses(layers, 2, list, 2, GG_ERROR_ARGUMENT, "parameter 'b.w': factor 1.5 of the momentum; must be 0 to 1");
    AGAIN, list[1].role = GG_ROLE_COUNT;
    refuses(layers, 2, list, 2, GG_ERROR_ARGUMENT, "role 5");
    AGAIN, list[0].shape.dims = 1;
    refuses(layers, 2, list, 2, GG_ERROR_ARGUMENT, "partitionable layer 'a'");
#undef AGAIN
}

int main(void) {
    test_places();
    test_refusals();
    CHECK_INT(gg_memory_live_bytes(), 0);
    return check_report();
}
