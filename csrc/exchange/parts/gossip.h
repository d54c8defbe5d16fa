/* Private to the room: what the forms of GossipGraD share.
 *
 * With `slices` of m > 1 every bucket is cut into m slices, and step t exchanges slice t mod m of each. The schedule
 * turns every m steps, so every slice meets every partner: what a cycle of k steps does to the whole, m*k steps do. */
#ifndef GG_EXCHANGE_PARTS_GOSSIP_H
#define GG_EXCHANGE_PARTS_GOSSIP_H

#include "exchange/parts/common.h"
#include "exchange/parts/stream.h"

typedef struct gg_gossip {
    gg_strategy head;
    gg_strategy_options options;
    gg_schedule schedule;
    gg_buckets buckets;
    const gg_codec *codec; /* of what is exchanged */
    int slices;            /* of a bucket */
    gg_buckets sliced;     /* the slices of all buckets, which are exchanged; with one each, they are the buckets */
    int *current; /* a bucket: its slice that is exchanged in this step, or, before its first update, in the last */
    int *last;    /* a bucket: the slice that was exchanged before the current one; this step's update mixes it in */
    int *pieces;  /* a chunk: the layers that have a part of it */
    int *left;    /* a chunk: those of them whose gradient is not final yet in this step */
    int *posted;  /* a slice: the chunks of its last exchange that have been posted */
    int *order;   /* from a slice's first chunk on: those, in the order in which they were posted, which is that of
                     arrival */
    int send_to, receive_from; /* of this step; -1: nobody */
} gg_gossip;

/* Fills everything but the table. On failure the caller destroys. */
gg_status gg_gossip_init(gg_gossip *gossip, const gg_strategy_options *options, const gg_strategy_env *env);
void gg_gossip_deinit(gg_gossip *gossip);

/* The arenas of the state that must be in message memory: the node's all-reduce sends gradients from where they lie. */
static inline unsigned gg_gossip_shared(const gg_strategy_options *options) {
    return options->gossip.hierarchical ? GG_SHARED_GRADIENT : 0;
}

/* Records that a chunk has been posted; and returns the n-th of those of a slice, in the order of posting. */
static inline void gg_gossip_note_posted(gg_gossip *gossip, int slice, int chunk) {
    gossip->order[gossip->sliced.bucket[slice].first_chunk + gossip->posted[slice]++] = chunk;
}
static inline int gg_gossip_posted(const gg_gossip *gossip, int slice, int n) {
    return gossip->order[gossip->sliced.bucket[slice].first_chunk + n];
}

/* Looks up this step's partners and counts layers anew. */
void gg_gossip_begin(gg_gossip *gossip);
/* Both partners are there, or neither. */
static inline bool gg_gossip_exchanges(const gg_gossip *gossip) {
    return gossip->send_to >= 0 && gossip->receive_from >= 0;
}

/* The step of the schedule: it turns when every slice has been exchanged. */
static inline int64_t gg_gossip_round(const gg_gossip *gossip) { return gossip->head.step / gossip->slices; }

/* The slice of a bucket that this step exchanges. */
static inline int gg_gossip_due(const gg_gossip *gossip, int bucket) {
    return bucket * gossip->slices + (int)(gossip->head.step % gossip->slices);
}

/* A bucket's first update of a step is next: its last slice is what was current, and its current slice what is due. */
static inline void gg_gossip_turn(gg_gossip *gossip, int bucket) {
    gossip->last[bucket] = gossip->current[bucket];
    gossip->current[bucket] = gg_gossip_due(gossip, bucket);
}

/* A run of a layer within one chunk of its bucket's last slice, or outside of it, and so of the current slice. */
typedef struct gg_gossip_run {
    gg_chunk run;
    int last, current; /* chunks; -1: outside. With one slice both are the same */
} gg_gossip_run;

/* The piece that begins at element `at` of a layer, whose elements end at `end`. */
gg_gossip_run gg_gossip_cut(const gg_gossip *gossip, int bucket, size_t at, size_t end);
/* A piece of a layer is updated: whether all layers' pieces of its chunks are, of the last and the current slice. */
void gg_gossip_updated(gg_gossip *gossip, const gg_gossip_run *piece, size_t end, bool *last, bool *current);

/* The part of chunk i inside a slice; false if there is none. */
bool gg_gossip_piece(const gg_gossip *gossip, int chunk, const gg_slice *slice, gg_chunk *piece);

/* out = base mixed with what a partner sent in exchange for `sent`, by the chosen rule. */
void gg_gossip_mix(gg_gossip *gossip, size_t n, const float *base, const void *received, const float *sent, float *out);

#endif
