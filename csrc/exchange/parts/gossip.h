/* Private to the room: base of the forms of GossipGraD.
 *
 * With m > 1 `slices` every bucket is cut into m slices, and step t exchanges slice t mod m of each. The schedule turns
 * every m steps, so every slice meets every partner. A cycle of k steps for the whole becomes one of m*k steps. */
#ifndef GG_EXCHANGE_PARTS_GOSSIP_H
#define GG_EXCHANGE_PARTS_GOSSIP_H

#include "exchange/parts/common.h"
#include "exchange/parts/receipts.h"
#include "exchange/parts/stream.h"

typedef struct gg_gossip {
    gg_strategy head;
    gg_strategy_options options;
    gg_schedule schedule;
    gg_buckets buckets;
    const gg_codec *codec; /* of exchanged values */
    int slices;            /* per bucket */
    gg_buckets sliced;     /* the exchanged units: slices of all buckets; with one slice each, the buckets */
    int *
        current; /* one a bucket: the slice exchanged in this step, or, before the bucket's first update, in the last */
    int *last;   /* one a bucket: the slice exchanged before the current one; this step's update mixes it in */
    int *pieces; /* one a chunk: layers that have a part of it */
    int *left;   /* one a chunk: layers among these whose gradient is not final yet in this step */
    int *posted; /* one a slice: posted chunks of its last exchange */
    int *order;  /* from a slice's first chunk on: these chunks in the order of posting, which is that of arrival */
    int send_to, receive_from; /* of this step; -1 means nobody */
    int arenas;                /* that are exchanged; each chunk is a message for each */
    gg_receipts receipts;
} gg_gossip;

/* Fills all fields but the table. On failure the caller destroys. */
gg_status gg_gossip_init(gg_gossip *gossip, const gg_strategy_options *options, const gg_strategy_env *env);
void gg_gossip_deinit(gg_gossip *gossip);

/* Arenas of the state that must be in message memory: the node's all-reduce sends gradients in place. */
static inline unsigned gg_gossip_shared(const gg_strategy_options *options) {
    return options->gossip.hierarchical ? GG_SHARED_GRADIENT : 0;
}

/* gg_gossip_note_posted records that a chunk was posted. gg_gossip_posted returns the n-th posted chunk of a slice. */
static inline void gg_gossip_note_posted(gg_gossip *gossip, int slice, int chunk) {
    gossip->order[gossip->sliced.bucket[slice].first_chunk + gossip->posted[slice]++] = chunk;
}
static inline int gg_gossip_posted(const gg_gossip *gossip, int slice, int n) {
    return gossip->order[gossip->sliced.bucket[slice].first_chunk + n];
}

/* Looks up this step's partners and resets the counts of layers. */
void gg_gossip_begin(gg_gossip *gossip);
/* True if both partners exist; otherwise neither does. */
static inline bool gg_gossip_exchanges(const gg_gossip *gossip) {
    return gossip->send_to >= 0 && gossip->receive_from >= 0;
}

/* The step of the schedule, which turns after every slice has been exchanged. */
static inline int64_t gg_gossip_round(const gg_gossip *gossip) { return gossip->head.step / gossip->slices; }

/* The slice of a bucket that this step exchanges. */
static inline int gg_gossip_due(const gg_gossip *gossip, int bucket) {
    return bucket * gossip->slices + (int)(gossip->head.step % gossip->slices);
}

/* Before a bucket's first update of a step: the current slice becomes the last, the due one current. */
static inline void gg_gossip_turn(gg_gossip *gossip, int bucket) {
    gossip->last[bucket] = gossip->current[bucket];
    gossip->current[bucket] = gg_gossip_due(gossip, bucket);
}

/* A run of a layer within one chunk of its bucket's last slice, or outside of it, and likewise for the current slice.
 */
typedef struct gg_gossip_run {
    gg_chunk run;
    int last, current; /* chunks; -1 means outside. Equal with one slice */
} gg_gossip_run;

/* The run that begins at element `at` of a layer, whose elements end at `end`. */
gg_gossip_run gg_gossip_cut(const gg_gossip *gossip, int bucket, size_t at, size_t end);
/* Counts a run as updated. *last, *current: all layers' runs of its chunk of that slice are updated. */
void gg_gossip_updated(gg_gossip *gossip, const gg_gossip_run *piece, size_t end, bool *last, bool *current);

/* The part of chunk i inside a slice; false if empty. */
bool gg_gossip_piece(const gg_gossip *gossip, int chunk, const gg_slice *slice, gg_chunk *piece);

/* out = base mixed with the values that a partner sent in exchange for `sent`. */
void gg_gossip_mix(gg_gossip *gossip, size_t n, const float *base, const void *received, const float *sent, float *out);

#endif
