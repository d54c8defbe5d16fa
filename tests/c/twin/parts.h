/* Numbers as parts that are bfloat16, one at a time. */
#ifndef TWIN_PARTS_H
#define TWIN_PARTS_H

#include <stdint.h>
#include <string.h>

static inline float upper_half(float x) {
    union {
        float number;
        uint32_t bits;
    } upper = {.number = x};
    upper.bits &= 0xffff0000u;
    return upper.number;
}

/* Of a number whose lower half is 0; of others, the upper half. */
static inline uint16_t narrow_exactly(float x) {
    uint32_t bits;
    memcpy(&bits, &x, sizeof bits);
    return (uint16_t)(bits >> 16);
}

static inline float widen_exactly(uint16_t x) {
    const uint32_t bits = (uint32_t)x << 16;
    float wide;
    memcpy(&wide, &bits, sizeof wide);
    return wide;
}

#endif
