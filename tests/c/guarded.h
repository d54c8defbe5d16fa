/* Memory between guards; all of it begins as NaN. Reads beyond the ends, or before a write, show in the results. Writes
 * beyond the ends are found when the buffer is freed. */
#ifndef GG_TESTS_GUARDED_H
#define GG_TESTS_GUARDED_H

#include <stdint.h>
#include <stdlib.h>

#include "base/memory.h"
#include "base/random.h"
#include "check.h"

#define GUARD 256

typedef struct buffer {
    unsigned char *block;
    union {
        void *data; /* 64-byte aligned */
        float *floats;
    };
    size_t bytes, count; /* count: of floats */
} buffer;

static inline unsigned char guard_byte(size_t at) {
    static const unsigned char not_a_number[] = {0xad, 0xde, 0xc0, 0x7f};
    return not_a_number[at % sizeof not_a_number];
}

static inline buffer buffer_create(size_t bytes) {
    buffer b = {.bytes = bytes, .count = bytes / sizeof(float)};
    void *block;
    if (gg_alloc(bytes + 2 * GUARD, "test", &block) != GG_OK) exit(2);
    b.block = block;
    b.data = b.block + GUARD;
    for (size_t i = 0; i < bytes + 2 * GUARD; ++i) b.block[i] = guard_byte(i);
    return b;
}

static inline buffer buffer_floats(size_t count) { return buffer_create(count * sizeof(float)); }

/* Other numbers in each call. */
static inline buffer buffer_uniform(uint64_t seed, size_t count, float low, float high) {
    static uint32_t stream;
    buffer b = buffer_floats(count);
    const gg_random_key key = {.seed = seed, .purpose = GG_RANDOM_TEST, .step = ++stream};
    gg_random_uniform(&key, count, low, high, b.data);
    return b;
}

/* Of {0}, which was never created, nothing. */
static inline void buffer_free(buffer *b) {
    bool whole = true;
    if (b->block == NULL) return;
    for (size_t i = 0; i < GUARD; ++i) {
        const size_t behind = GUARD + b->bytes + i;
        whole = whole && b->block[i] == guard_byte(i) && b->block[behind] == guard_byte(behind);
    }
    CHECK(whole);
    gg_free(b->block);
}

#endif
