/* Private to the room: what both forms of GossipGraD share. */
#ifndef GG_STRATEGY_GOSSIP_H
#define GG_STRATEGY_GOSSIP_H

#include "strategy/common.h"
#include "strategy/stream.h"

typedef struct gg_gossip {
    gg_strategy head;
    gg_strategy_options options;
    gg_schedule schedule;
    gg_buckets buckets;
    int *pieces; /* a chunk: the layers that have a part of it */
    int *left;   /* a chunk: those of them whose gradient is not final yet in this step */
    int *posted; /* a bucket: the chunks of its last exchange that have been posted */
    int *order;  /* from a bucket's first chunk on: those, in the order in which they were posted, which is that of
                    arrival */
    int send_to, receive_from; /* of this step; -1: nobody */
} gg_gossip;

/* Fills everything but the table. On failure the caller destroys. */
gg_status gg_gossip_init(gg_gossip *gossip, const gg_strategy_options *options, const gg_strategy_env *env);
void gg_gossip_deinit(gg_gossip *gossip);

/* The arenas of the state that must be in message memory: the node's all-reduce sends gradients from where they lie. */
static inline unsigned gg_gossip_shared(const gg_strategy_options *options) {
    return options->hierarchical ? GG_SHARED_GRADIENT : 0;
}

/* Records that a chunk has been posted; and returns the n-th of those of a bucket, in the order of posting. */
static inline void gg_gossip_note_posted(gg_gossip *gossip, int bucket, int chunk) {
    gossip->order[gossip->buckets.bucket[bucket].first_chunk + gossip->posted[bucket]++] = chunk;
}
static inline int gg_gossip_posted(const gg_gossip *gossip, int bucket, int n) {
    return gossip->order[gossip->buckets.bucket[bucket].first_chunk + n];
}

/* Looks up this step's partners and counts layers anew. */
void gg_gossip_begin(gg_gossip *gossip);
/* Both partners are there, or neither. */
static inline bool gg_gossip_exchanges(const gg_gossip *gossip) {
    return gossip->send_to >= 0 && gossip->receive_from >= 0;
}

/* The part of chunk i inside a slice; false if there is none. */
bool gg_gossip_piece(const gg_gossip *gossip, int chunk, const gg_slice *slice, gg_chunk *piece);

/* out = base mixed with what a partner sent in exchange for `sent`, by the chosen rule. */
void gg_gossip_mix(gg_gossip *gossip, size_t n, const float *base, const void *received, const float *sent, float *out);

#endif
