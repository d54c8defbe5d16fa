/* Products for the gradient of the weights of convolutions of few channels in plain loops: document and test the
 * kernels on AMX, whose tiles they read. */
#include "twin/amx.h"
#include "twin/parts.h"

enum { SIDE = GG_IMAGE_SIDE, PIXELS = GG_IMAGE_PIXELS, TILE = GG_IMAGE_TILE };

static void pack_errors(const gg_image_errors *e) {
    const int64_t runs = (e->pixels + PIXELS - 1) / PIXELS;
    for (int64_t group = 0; group * SIDE < e->filters; ++group) {
        uint16_t *to = e->to + group * e->group;
        for (int64_t pixel = 0; pixel < runs * PIXELS; ++pixel) {
            for (int64_t i = 0; i < SIDE; ++i) {
                const int64_t filter = group * SIDE + i;
                const bool there = pixel < e->pixels && filter < e->filters;
                to[pixel / 2 * PIXELS + 2 * i + pixel % 2] = there ? e->from[pixel * e->filters + filter] : 0;
            }
        }
    }
}

static void multiply(const gg_image_product *p) {
    const int64_t across = p->filter_groups * SIDE;
    for (int64_t tap = 0; tap < p->tap_groups * SIDE; ++tap) {
        for (int64_t filter = 0; filter < across; ++filter) {
            const uint16_t *taps = p->taps + tap / SIDE * p->runs * TILE + tap % SIDE * PIXELS;
            const uint16_t *errors = p->errors + filter / SIDE * p->runs * TILE + 2 * (filter % SIDE);
            float sum = p->add ? p->sums[tap * across + filter] : 0;
            for (int64_t k = 0; k < p->runs; ++k, taps += TILE, errors += TILE)
                for (int64_t pixel = 0; pixel < PIXELS; ++pixel)
                    sum += widen_exactly(taps[pixel]) * widen_exactly(errors[pixel / 2 * PIXELS + pixel % 2]);
            p->sums[tap * across + filter] = sum;
        }
    }
}

const gg_image_kernels gg_image_kernels_scalar = {.pack_errors = pack_errors, .multiply = multiply};
