#include "base/random.h"

#include <math.h>

#define ROUNDS 10
#define TWO_PI 6.283185307179586476925286766559

static void random_philox(const uint32_t counter[4], const uint32_t key[2], uint32_t out[4]) {
    uint32_t c0 = counter[0], c1 = counter[1], c2 = counter[2], c3 = counter[3];
    uint32_t k0 = key[0], k1 = key[1];
    for (int round = 0; round < ROUNDS; ++round) {
        uint64_t a = (uint64_t)0xD2511F53u * c0;
        uint64_t b = (uint64_t)0xCD9E8D57u * c2;
        c0 = (uint32_t)(b >> 32) ^ c1 ^ k0;
        c1 = (uint32_t)b;
        c2 = (uint32_t)(a >> 32) ^ c3 ^ k1;
        c3 = (uint32_t)a;
        k0 += 0x9E3779B9u;
        k1 += 0xBB67AE85u;
    }
    out[0] = c0;
    out[1] = c1;
    out[2] = c2;
    out[3] = c3;
}

void gg_random_block(const gg_random_key *key, uint32_t index, uint32_t out[4]) {
    /* The seed is the key of the cipher. Everything else is its counter, in which every field has its own bits (56 of
     * the step, 8 of the purpose): two streams share no block, whatever their numbers. */
    const uint32_t words[2] = {(uint32_t)key->seed, (uint32_t)(key->seed >> 32)};
    const uint32_t counter[4] = {
        index,
        (uint32_t)key->step,
        ((uint32_t)(key->step >> 32) & 0xFFFFFFu) | key->purpose << 24,
        key->rank,
    };
    random_philox(counter, words, out);
}

void gg_random_uniform(const gg_random_key *key, size_t n, float low, float high, float *out) {
    const double range = (double)high - low;
    uint32_t word[4];
    for (size_t i = 0; i < n; ++i) {
        if (i % 4 == 0) gg_random_block(key, (uint32_t)(i / 4), word);
        /* 24 bits and double arithmetic: for low = -high the product is exact, and a fused multiply-add gives
         * the same bits as a multiplication and an addition. */
        float value = (float)(low + range * ((word[i % 4] >> 8) * 0x1p-24));
        /* Rounding to float may reach the end that is not in the interval. */
        out[i] = value < high || !(low < high) ? value : nextafterf(high, low);
    }
}

void gg_random_normal(const gg_random_key *key, size_t n, float mean, float deviation, float *out) {
    uint32_t word[4];
    for (size_t i = 0; i < n; i += 2) {
        size_t at = i % 4;
        if (at == 0) gg_random_block(key, (uint32_t)(i / 4), word);
        /* In (0, 1]: the logarithm is finite. */
        double radius = sqrt(-2.0 * log((word[at] + 1.0) * 0x1p-32));
        double angle = TWO_PI * (word[at + 1] * 0x1p-32);
        out[i] = (float)(mean + deviation * (radius * cos(angle)));
        if (i + 1 < n) out[i + 1] = (float)(mean + deviation * (radius * sin(angle)));
    }
}

/* The words of a stream in their order. */
typedef struct word_stream {
    const gg_random_key *key;
    uint32_t index;
    int used;
    uint32_t word[4];
} word_stream;

static uint32_t next_word(word_stream *stream) {
    if (stream->used == 4) {
        gg_random_block(stream->key, stream->index++, stream->word);
        stream->used = 0;
    }
    return stream->word[stream->used++];
}

/* Uniform in 0..bound-1 (Lemire 2019): the high word of a product, drawn again in the few cases (2^32 mod
 * bound of 2^32) that would favour some values. */
static uint32_t random_bounded(word_stream *stream, uint32_t bound) {
    uint64_t product = (uint64_t)next_word(stream) * bound;
    if ((uint32_t)product < bound) {
        uint32_t unfair = (0u - bound) % bound;
        while ((uint32_t)product < unfair) product = (uint64_t)next_word(stream) * bound;
    }
    return (uint32_t)(product >> 32);
}

void gg_random_permutation(const gg_random_key *key, uint32_t n, uint32_t *out) {
    word_stream stream = {.key = key, .used = 4};
    for (uint32_t i = 0; i < n; ++i) out[i] = i;
    for (uint32_t i = n; i > 1; --i) {
        uint32_t j = random_bounded(&stream, i);
        uint32_t last = out[i - 1];
        out[i - 1] = out[j];
        out[j] = last;
    }
}
