/* Products of taps and errors: those of this CPU against the scalar ones, which are compared with sums in double
 * by tests/test_bfloat16.py. With small whole numbers every order of a sum has the same bits.
 *
 * twins: amx */
#include <stdint.h>

#include "check.h"
#include "guarded.h"
#include "twin/amx.h"

static uint32_t random_state = 1;

/* A whole number from -8 to 7 as bfloat16, exactly. */
static uint16_t small_number(void) {
    random_state = random_state * 1664525u + 1013904223u;
    const float value = (float)(int)(random_state >> 16 & 15) - 8;
    uint32_t bits;
    memcpy(&bits, &value, sizeof bits);
    return (uint16_t)(bits >> 16);
}

static buffer numbers(size_t count) {
    buffer made = buffer_create(count * sizeof(uint16_t));
    uint16_t *number = made.data;
    for (size_t i = 0; i < count; ++i) number[i] = small_number();
    return made;
}

/* The tiles of a row of errors. */
static buffer packed(const gg_image_kernels *kernels, int64_t pixels, int64_t filters, const uint16_t *from,
                     size_t count, int64_t group) {
    buffer made = buffer_create(count * sizeof(uint16_t));
    kernels->pack_errors(&(gg_image_errors){pixels, filters, from, made.data, group});
    return made;
}

static void test_errors(const gg_image_kernels *kernels, int64_t pixels, int64_t filters) {
    const int64_t runs = (pixels + GG_IMAGE_PIXELS - 1) / GG_IMAGE_PIXELS;
    const int64_t groups = (filters + GG_IMAGE_SIDE - 1) / GG_IMAGE_SIDE, group = (runs + 1) * GG_IMAGE_TILE;
    const size_t count = (size_t)(groups * group - GG_IMAGE_TILE);
    buffer from = numbers((size_t)(pixels * filters));
    buffer found = packed(kernels, pixels, filters, from.data, count, group);
    buffer wanted = packed(&gg_image_kernels_scalar, pixels, filters, from.data, count, group);
    CHECK(memcmp(found.data, wanted.data, found.bytes) == 0);
    buffer_free(&from);
    buffer_free(&found);
    buffer_free(&wanted);
}

static void test_product(const gg_image_kernels *kernels, int64_t tap_groups, int64_t filter_groups, int64_t runs) {
    buffer taps = numbers((size_t)(tap_groups * runs * GG_IMAGE_TILE));
    buffer errors = numbers((size_t)(filter_groups * runs * GG_IMAGE_TILE));
    const size_t count = (size_t)(tap_groups * filter_groups) * GG_IMAGE_SIDE * GG_IMAGE_SIDE;
    buffer found = buffer_floats(count), wanted = buffer_floats(count);
    gg_image_product product = {tap_groups, filter_groups, runs, taps.data, errors.data, NULL, false};
    for (int add = 0; add < 2; ++add) {
        product.add = add != 0;
        product.sums = found.floats;
        kernels->multiply(&product);
        product.sums = wanted.floats;
        gg_image_kernels_scalar.multiply(&product);
        CHECK(memcmp(found.data, wanted.data, found.bytes) == 0);
    }
    buffer *all[] = {&taps, &errors, &found, &wanted};
    for (size_t i = 0; i < sizeof all / sizeof all[0]; ++i) buffer_free(all[i]);
}

int main(void) {
    const gg_image_kernels *kernels = gg_cpu_kernels_for(GG_ISA_AMX)->image;
    const gg_image_kernels *packing = kernels; /* between guards */
    if (kernels == &gg_image_kernels_scalar) kernels = NULL;
    for (int64_t filters = 1; filters < 70; filters += 3)
        for (int64_t pixels = 1; pixels < 100; pixels += 7) test_errors(packing, pixels, filters);
    for (int64_t taps = 1; kernels != NULL && taps < 5; ++taps)
        for (int64_t filters = 1; filters < 5; ++filters)
            for (int64_t runs = 1; runs < 4; ++runs) test_product(kernels, taps, filters, runs);
    for (gg_isa isa = GG_ISA_SCALAR; isa < GG_ISA_AMX; ++isa)
        CHECK(!gg_cpu_supports(isa) || gg_cpu_kernels_for(isa)->image == NULL);
    return CHECK_RESULT;
}
