/* Products of taps and errors: those of this CPU against the scalar ones, which are compared with sums in double
 * by tests/test_bfloat16.py. With small whole numbers every order of a sum has the same bits. */
#include <stdlib.h>

#include "base/memory.h"
#include "check.h"
#include "cpu/image_kernels.h"

enum { GUARD = 32, GUARD_VALUE = 0x5aa5 };

static uint32_t random_state = 1;

/* A whole number from -8 to 7 as bfloat16, exactly. */
static uint16_t small_number(void) {
    random_state = random_state * 1664525u + 1013904223u;
    const float value = (float)(int)(random_state >> 16 & 15) - 8;
    uint32_t bits;
    memcpy(&bits, &value, sizeof bits);
    return (uint16_t)(bits >> 16);
}

static uint16_t *numbers(size_t count) {
    uint16_t *made;
    if (gg_alloc(count * sizeof *made, "test", &made) != GG_OK) exit(2);
    for (size_t i = 0; i < count; ++i) made[i] = small_number();
    return made;
}

/* The tiles of a row of errors, between guards. */
static uint16_t *packed(const gg_image_kernels *kernels, int64_t pixels, int64_t filters, const uint16_t *from,
                        size_t count, int64_t group) {
    uint16_t *made;
    if (gg_alloc((count + 2 * GUARD) * sizeof *made, "test", &made) != GG_OK) exit(2);
    for (size_t i = 0; i < count + 2 * GUARD; ++i) made[i] = GUARD_VALUE;
    kernels->pack_errors(&(gg_image_errors){pixels, filters, from, made + GUARD, group});
    for (size_t i = 0; i < GUARD; ++i) CHECK(made[i] == GUARD_VALUE && made[GUARD + count + i] == GUARD_VALUE);
    return made;
}

static void test_errors(const gg_image_kernels *kernels, int64_t pixels, int64_t filters) {
    const int64_t runs = (pixels + GG_IMAGE_PIXELS - 1) / GG_IMAGE_PIXELS;
    const int64_t groups = (filters + GG_IMAGE_SIDE - 1) / GG_IMAGE_SIDE, group = (runs + 1) * GG_IMAGE_TILE;
    const size_t count = (size_t)(groups * group - GG_IMAGE_TILE);
    uint16_t *from = numbers((size_t)(pixels * filters));
    uint16_t *found = packed(kernels, pixels, filters, from, count, group);
    uint16_t *wanted = packed(&gg_image_kernels_scalar, pixels, filters, from, count, group);
    CHECK(memcmp(found, wanted, (count + 2 * GUARD) * sizeof *found) == 0);
    gg_free(from);
    gg_free(found);
    gg_free(wanted);
}

static void test_product(const gg_image_kernels *kernels, int64_t tap_groups, int64_t filter_groups, int64_t runs) {
    uint16_t *taps = numbers((size_t)(tap_groups * runs * GG_IMAGE_TILE));
    uint16_t *errors = numbers((size_t)(filter_groups * runs * GG_IMAGE_TILE));
    const size_t count = (size_t)(tap_groups * filter_groups) * GG_IMAGE_SIDE * GG_IMAGE_SIDE;
    float *sums[2];
    for (int i = 0; i < 2; ++i)
        if (gg_calloc(count + GUARD, sizeof(float), "test", &sums[i]) != GG_OK) exit(2);
    gg_image_product product = {tap_groups, filter_groups, runs, taps, errors, NULL, false};
    for (int add = 0; add < 2; ++add) {
        product.add = add != 0;
        product.sums = sums[0];
        kernels->multiply(&product);
        product.sums = sums[1];
        gg_image_kernels_scalar.multiply(&product);
        CHECK(memcmp(sums[0], sums[1], (count + GUARD) * sizeof(float)) == 0);
    }
    gg_free(taps);
    gg_free(errors);
    for (int i = 0; i < 2; ++i) gg_free(sums[i]);
}

int main(void) {
    const gg_image_kernels *kernels = gg_cpu_supports(GG_ISA_AMX) ? gg_image_kernels_for(GG_ISA_AMX) : NULL;
    const gg_image_kernels *packing = kernels != NULL ? kernels : &gg_image_kernels_scalar; /* between guards */
    for (int64_t filters = 1; filters < 70; filters += 3)
        for (int64_t pixels = 1; pixels < 100; pixels += 7) test_errors(packing, pixels, filters);
    for (int64_t taps = 1; kernels != NULL && taps < 5; ++taps)
        for (int64_t filters = 1; filters < 5; ++filters)
            for (int64_t runs = 1; runs < 4; ++runs) test_product(kernels, taps, filters, runs);
    CHECK(gg_image_kernels_for(GG_ISA_AVX512) == NULL && gg_image_kernels_for(GG_ISA_SCALAR) == NULL);
    return CHECK_RESULT;
}
