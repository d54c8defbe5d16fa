/* AdaComp's choice: of each bin the greatest |G|, then the elements whose |H| is not below it. This file is compiled
 * without fused products, so that all levels choose the same. */
#include "cpu/isa/isa.h"
#include "cpu/isa/math.h"

#define MAGNITUDE 0x7fffffffu
#define INFINITE 0x7f800000u

/* |H| of the elements of a bin, as bits. */
typedef struct magnitudes {
    uint32_t of[GG_MOST_CHOSEN_BIN] __attribute__((aligned(64)));
} magnitudes;

/* G and H of the n elements of a bin; the greatest |G|. */
static uint32_t choose_measure(const gg_choose_args *a, size_t at, size_t n, magnitudes *h) {
    const float more = a->factor - 1;
    uint32_t greatest = 0;
    for (size_t i = 0; i < n; ++i) {
        float d, g;
        if (a->residue != NULL) {
            d = a->gradient != NULL ? a->scale * a->gradient[at + i] : 0.0f;
            a->residue[at + i] = g = a->residue[at + i] + d;
        } else {
            g = d = a->value[at + i] - a->known[at + i];
        }
        const uint32_t size = bits_of_float(g) & MAGNITUDE;
        greatest = size > greatest ? size : greatest;
        h->of[i] = bits_of_float(g + more * d) & MAGNITUDE;
    }
    return greatest;
}

/* Writes the places with |H| >= greatest, and gives how many there are. */
static size_t choose_collect(const magnitudes *h, size_t n, uint32_t greatest, uint16_t *place) {
    size_t count = 0;
    for (size_t i = 0; i < n; ++i)
        if (h->of[i] >= greatest) place[count++] = (uint16_t)i;
    return count;
}

size_t GG_VARIANT(gg_cpu_choose_bins)(const gg_choose_args *args) {
    magnitudes h;
    size_t chosen = 0;
    for (size_t at = 0, bin = 0; at < args->n; at += args->bin, ++bin) {
        const size_t n = args->n - at < args->bin ? args->n - at : args->bin;
        const uint32_t greatest = choose_measure(args, at, n, &h);
        args->greatest[bin] = greatest;
        if (args->place == NULL) continue;
        size_t count = 0;
        if (greatest > 0 && greatest < INFINITE) count = choose_collect(&h, n, greatest, args->place + chosen);
        args->count[bin] = (uint16_t)count;
        chosen += count;
    }
    return chosen;
}
