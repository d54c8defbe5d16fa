/* The division of an epoch that continues on another number of ranks: every sample is read once. */
#ifndef GG_DATA_DIVISION_H
#define GG_DATA_DIVISION_H

#include "data/shard.h"

/* A part of an epoch, on one number of ranks.
 *
 * Or a recall, behind the part at whose end samples of an earlier part are dealt again: `ranks` is GG_RECALL and `read`
 * is {-1 - k, r, n}. Of its samples in division[k] rank r has only read the first n, as if the others were left now. */
typedef struct gg_division {
    int ranks;
    const int64_t *read; /* of each rank: samples of its order that it has read when the part ends, or GG_READ_ALL */
} gg_division;

enum { GG_RECALL = 3 };

#define GG_READ_ALL INT64_MAX /* its whole share, with samples left out by drop_last */

/* An epoch that begins on division[0].ranks ranks and has continued on each later number in turn. */
typedef struct gg_divided_epoch {
    const gg_sharding *sharding; /* not OWN; its size is not read */
    uint64_t seed;               /* of the order */
    int64_t epoch;
    bool shuffle;
    int divisions;
    const gg_division *division;
} gg_divided_epoch;

/* The order of slots 0 to n-1 of a rank's shard in an epoch: a permutation drawn from (seed, rank, epoch), or 0, 1, ...
 */
void gg_division_order(uint64_t seed, int rank, int64_t epoch, bool shuffle, uint32_t n, uint32_t *order);

/* A later part deals the samples that are left, then those that are recalled: sample i of their list is sample i /
 * ranks of rank i mod ranks, which reads its samples in this order. With `shuffle` the list has sample s of each rank
 * that has not read it, in the order of s and then of the ranks; without, the samples in the set's order. Where fewer
 * samples than ranks are left, the list repeats from its beginning until it has one for each rank. */

/* The samples left for `ranks` ranks after all divisions; GG_ERROR_ARGUMENT if a rank has read more than its share, or
 * for more ranks than samples. */
gg_status gg_division_count(const gg_divided_epoch *epoch, int ranks, int64_t *left);
/* Writes their numbers in the set to ids. Room for gg_division_count of them, which must have succeeded. */
gg_status gg_division_list(const gg_divided_epoch *epoch, int ranks, uint32_t *ids);

/* Samples of a rank in a division of `left` samples. */
int64_t gg_division_share(int64_t left, int ranks, int rank);

#endif
