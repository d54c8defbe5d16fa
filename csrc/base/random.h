/* Counter-based random numbers: Philox4x32-10 (Salmon et al. 2011).
 *
 * A number is a function of (seed, purpose, rank, step, index), never of call order: a resumed run equals an
 * uninterrupted run, and every rank can compute another rank's draws. Pure; any thread. */
#ifndef GG_BASE_RANDOM_H
#define GG_BASE_RANDOM_H

#include <stddef.h>
#include <stdint.h>

typedef enum gg_random_purpose {
    GG_RANDOM_WEIGHTS = 1, /* step = parameter index */
    GG_RANDOM_SHUFFLE,     /* step = epoch */
    GG_RANDOM_DROPOUT,     /* step = training step, rank = identity; the layer is mixed into the seed */
    GG_RANDOM_SCHEDULE,    /* step = cycle; rank = 0: all ranks draw the same */
    GG_RANDOM_STRAGGLER,
    GG_RANDOM_PARTNER,    /* step = training step, rank = identity */
    GG_RANDOM_SHARD,      /* interleaved shards; one word a round, all else 0 */
    GG_RANDOM_SPLIT,      /* the parts of a set */
    GG_RANDOM_ORDER,      /* a set in another order */
    GG_RANDOM_VALIDATION, /* the samples that fit sets aside for validation */
    GG_RANDOM_TEST,
    GG_RANDOM_AUGMENT, /* crops, flips and windows of samples: step = epoch, index = sample; drawn by
                          gossipgrad/data/draws.py */
    GG_RANDOM_PROBE,   /* samples on which a smaller network is compared with its predecessor */
    GG_RANDOM_GROUPS   /* step = turn; rank = 0: all ranks draw the same */
} gg_random_purpose;

typedef struct gg_random_key {
    uint64_t seed;
    uint32_t purpose;
    uint32_t rank;
    uint64_t step;
} gg_random_key;

/* The four 32-bit words number `index` of the stream; index < 2^32. */
void gg_random_block(const gg_random_key *key, uint32_t index, uint32_t out[4]);
/* n floats in [low, high). */
void gg_random_uniform(const gg_random_key *key, size_t n, float low, float high, float *out);
/* n floats, normal with this mean and standard deviation (Box-Muller). */
void gg_random_normal(const gg_random_key *key, size_t n, float mean, float deviation, float *out);
/* A uniformly drawn permutation of 0..n-1 (Fisher-Yates, unbiased); n < 2^31. */
void gg_random_permutation(const gg_random_key *key, uint32_t n, uint32_t *out);

#endif
