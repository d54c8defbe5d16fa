#include "data/division.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "base/memory.h"
#include "base/random.h"

void gg_division_order(uint64_t seed, int rank, int64_t epoch, bool shuffle, uint32_t n, uint32_t *order) {
    const gg_random_key key = {
        .seed = seed, .purpose = GG_RANDOM_SHUFFLE, .rank = (uint32_t)rank, .step = (uint64_t)epoch};
    if (shuffle) gg_random_permutation(&key, n, order);
    for (uint32_t i = 0; i < n && !shuffle; ++i) order[i] = i;
}

int64_t gg_division_share(int64_t left, int ranks, int rank) { return left / ranks + (rank < left % ranks); }

/* Enough for every rank, if there is any. */
static int64_t padded(int64_t left, int ranks) { return left > 0 && left < ranks ? ranks : left; }

static bool is_recall(const gg_division *d) { return d->ranks == GG_RECALL && d->read[0] < 0; }

static bool has_recall(const gg_divided_epoch *epoch, int k) {
    return k < epoch->divisions && is_recall(&epoch->division[k]);
}

/* The ranks of the part behind division k. */
static int next_ranks(const gg_divided_epoch *epoch, int k, int ranks) {
    do ++k;
    while (has_recall(epoch, k));
    return k < epoch->divisions ? epoch->division[k].ranks : ranks;
}

/* The part whose samples go back. */
static int64_t recalled_part(const gg_division *recall) { return -1 - recall->read[0]; }

/* *end: samples that the recall's rank had read. left: before each division. */
static gg_status check_recall(const gg_divided_epoch *epoch, int k, const int64_t *left, int64_t *end) {
    const int64_t *recall = epoch->division[k].read, of = recalled_part(&epoch->division[k]);
    int64_t share = -1;
    const gg_division *part = of < k - 1 ? &epoch->division[of] : NULL;
    if (part != NULL && !is_recall(part) && recall[1] >= 0 && recall[1] < part->ranks) {
        share = gg_division_share(left[of], part->ranks, (int)recall[1]);
        if (part->read[recall[1]] < share) share = part->read[recall[1]];
    }
    *end = share;
    if (recall[2] >= 0 && recall[2] <= share) return GG_OK;
    return gg_fail(GG_ERROR_ARGUMENT,
                   "division %d: samples from %" PRId64 " on of rank %" PRId64 " in division %" PRId64
                   " go back; allowed: samples that it has read in an earlier one",
                   k, recall[2], recall[1], of);
}

/* *left: from the samples before division k, a part, to those that nobody has read in it. */
static gg_status subtract_read(const gg_divided_epoch *epoch, int k, int64_t *left) {
    const gg_division *d = &epoch->division[k];
    const int64_t all = *left;
    if (d->ranks < 1 || d->ranks > epoch->sharding->count)
        return gg_fail(GG_ERROR_ARGUMENT, "division %d: %d ranks; allowed: 1 to %" PRId64 ", the samples", k, d->ranks,
                       epoch->sharding->count);
    for (int rank = 0; rank < d->ranks; ++rank) {
        const int64_t share = gg_division_share(all, d->ranks, rank);
        if (d->read[rank] < 0 || (d->read[rank] > share && d->read[rank] != GG_READ_ALL))
            return gg_fail(GG_ERROR_ARGUMENT, "division %d, rank %d: %" PRId64 " samples read; allowed: 0 to %" PRId64,
                           k, rank, d->read[rank], share);
        *left -= d->read[rank] < share ? d->read[rank] : share;
    }
    return GG_OK;
}

/* left[k]: samples before division k; the last one: after all. */
static gg_status count_left(const gg_divided_epoch *epoch, int ranks, int64_t *left) {
    left[0] = epoch->sharding->count;
    for (int k = 0; k < epoch->divisions; ++k) {
        int64_t found = left[k], end;
        if (is_recall(&epoch->division[k])) {
            GG_TRY(check_recall(epoch, k, left, &end));
            found += end - epoch->division[k].read[2];
        } else {
            GG_TRY(subtract_read(epoch, k, &found));
        }
        left[k + 1] = has_recall(epoch, k + 1) ? found : padded(found, next_ranks(epoch, k, ranks));
    }
    return GG_OK;
}

gg_status gg_division_count(const gg_divided_epoch *epoch, int ranks, int64_t *left) {
    gg_status status = GG_OK;
    int64_t *counts = NULL;
    GG_TRY_CLEANUP(gg_calloc((size_t)epoch->divisions + 1, sizeof *counts, "samples left", &counts));
    GG_TRY_CLEANUP(count_left(epoch, ranks, counts));
    *left = counts[epoch->divisions];
cleanup:
    gg_free(counts);
    return status;
}

/* The samples that a rank reads in the first division, in its order. */
static void read_first(const gg_divided_epoch *epoch, int rank, uint32_t *order) {
    gg_sharding sharding = *epoch->sharding;
    sharding.size = epoch->division[0].ranks;
    const int64_t slots = gg_sharding_slots(&sharding, rank);
    gg_division_order(epoch->seed, rank, epoch->epoch, epoch->shuffle, (uint32_t)slots, order);
    for (int64_t i = 0; i < slots; ++i) order[i] = (uint32_t)gg_sharding_id(&sharding, rank, order[i]);
}

/* Deals the orders of the first division's ranks like a later list: sample s of rank r at s * ranks + r. */
static void list_first(const gg_divided_epoch *epoch, uint32_t *scratch, uint32_t *list) {
    const int ranks = epoch->division[0].ranks;
    for (int rank = 0; rank < ranks; ++rank) {
        read_first(epoch, rank, scratch);
        for (int64_t s = 0; s < gg_division_share(epoch->sharding->count, ranks, rank); ++s)
            list[s * ranks + rank] = scratch[s];
    }
}

static int compare_ids(const void *a, const void *b) {
    const uint32_t x = *(const uint32_t *)a, y = *(const uint32_t *)b;
    return (x > y) - (x < y);
}

/* Removes the samples that a division has read from its list of `count`; returns the number left. */
static int64_t remove_read(const gg_division *d, int64_t count, uint32_t *list) {
    int64_t left = 0;
    for (int64_t i = 0; i < count; ++i)
        if (i / d->ranks >= d->read[i % d->ranks]) list[left++] = list[i];
    return left;
}

/* Room for the list after every division. */
static int64_t list_room(const gg_divided_epoch *epoch, const int64_t *left) {
    int64_t room = 0;
    for (int k = 0; k <= epoch->divisions; ++k)
        if (left[k] > room) room = left[k];
    return room;
}

static bool is_recalled(const gg_divided_epoch *epoch, int part) {
    for (int k = part + 1; k < epoch->divisions; ++k)
        if (is_recall(&epoch->division[k]) && recalled_part(&epoch->division[k]) == part) return true;
    return false;
}

/* Appends the samples of the recall in division k. dealt: the list before the part that it recalls. */
static gg_status append_recalled(const gg_divided_epoch *epoch, int k, const int64_t *left, const uint32_t *dealt,
                                 uint32_t *list, int64_t *count) {
    const int64_t *recall = epoch->division[k].read;
    const int ranks = epoch->division[recalled_part(&epoch->division[k])].ranks;
    int64_t end;
    GG_TRY(check_recall(epoch, k, left, &end));
    for (int64_t s = recall[2]; s < end; ++s) list[(*count)++] = dealt[s * ranks + recall[1]];
    return GG_OK;
}

/* The samples after all divisions. dealt[k]: NULL, or made here: the list before part k, which is recalled. */
static gg_status list_left(const gg_divided_epoch *epoch, const int64_t *left, uint32_t *list, uint32_t **dealt) {
    for (int k = 0; k < epoch->divisions; ++k) {
        int64_t found = left[k];
        if (is_recalled(epoch, k)) {
            GG_TRY(gg_alloc((size_t)found * sizeof *list, "samples of a part", &dealt[k]));
            memcpy(dealt[k], list, (size_t)found * sizeof *list);
        }
        if (is_recall(&epoch->division[k])) {
            const uint32_t *of = dealt[recalled_part(&epoch->division[k])];
            GG_TRY(append_recalled(epoch, k, left, of, list, &found));
        } else {
            found = remove_read(&epoch->division[k], found, list);
        }
        if (has_recall(epoch, k + 1)) continue;
        if (!epoch->shuffle) qsort(list, (size_t)found, sizeof *list, compare_ids);
        for (int64_t i = found; i < left[k + 1]; ++i) list[i] = list[i - found];
    }
    return GG_OK;
}

gg_status gg_division_list(const gg_divided_epoch *epoch, int ranks, uint32_t *ids) {
    gg_status status = GG_OK;
    const size_t divisions = (size_t)epoch->divisions;
    int64_t *left = NULL;
    uint32_t *list = NULL, *scratch = NULL, **dealt = NULL;
    GG_TRY_CLEANUP(gg_calloc(divisions + 1, sizeof *left, "samples left", &left));
    GG_TRY_CLEANUP(gg_calloc(divisions + 1, sizeof *dealt, "samples of parts", &dealt));
    GG_TRY_CLEANUP(count_left(epoch, ranks, left));
    GG_TRY_CLEANUP(gg_alloc((size_t)list_room(epoch, left) * sizeof *list, "samples of an epoch", &list));
    GG_TRY_CLEANUP(gg_alloc((size_t)left[0] * sizeof *scratch, "the order of a rank", &scratch));
    list_first(epoch, scratch, list);
    GG_TRY_CLEANUP(list_left(epoch, left, list, dealt));
    memcpy(ids, list, (size_t)left[divisions] * sizeof *ids);
cleanup:
    for (size_t k = 0; dealt != NULL && k < divisions; ++k) gg_free(dealt[k]);
    gg_free(dealt);
    gg_free(left);
    gg_free(list);
    gg_free(scratch);
    return status;
}
