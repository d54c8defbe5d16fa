/* How large buckets and chunks are where nobody says: by what messages cost (comm/link.h) and how the network computes.
 *
 * A step is foreseen by a model. The backward pass goes through the layers from the last to the first. When a bucket's
 * last layer is done, each of its chunks costs the rank `message` seconds a message, and the bucket's bytes go out at
 * `byte` seconds each, behind those of earlier buckets. It is there `latency` later, and its last chunk is used after
 * the time that this takes, or took to arrive if that is shorter: of two stages in a row a chunk delays by the quicker
 * one. So small chunks cost messages, large ones delay, and where memory is shared nothing travels and one chunk is
 * best. The next forward pass waits at a layer for its bucket (GossipGraD, OverlappedAveraging), or the backward pass
 * ends when all are there, which wait for each other then (LayerwiseAllReduce); with staleness 1 nobody waits unless
 * the link is slower than the step.
 *
 * Of a few sizes the best is taken, but the default ones unless the step gets 5 % shorter, and no longer either where
 * computing is much quicker than thought: figures vary from run to run, choices should not. No result depends on it:
 * mixes go element by element, sums rank by rank.
 *
 * Where no rank waits for another (PullGossip, PushGossip, ParameterServer, ElasticAveraging with a server), what has
 * arrived when depends on the cut, and with it the result: they keep the default sizes. So do sums that are left to
 * MPI, which may add large ones in another order than small ones, and hierarchical GossipGraD, of whose two kinds of
 * links and two exchanges the model knows nothing.
 *
 * How many samples a step has is not known yet, so linear layers of which OverlappedAveraging exchanges inputs and
 * errors count like the others. */
#ifndef GG_STRATEGY_TUNING_H
#define GG_STRATEGY_TUNING_H

#include "comm/link.h"
#include "strategy/strategy.h"

#define GG_DEFAULT_BUCKET_BYTES ((size_t)1 << 20)
#define GG_DEFAULT_CHUNK_BYTES ((size_t)2 << 20)

typedef struct gg_tuning {
    bool cuts;     /* the strategy has buckets and chunks that may be tuned; else the rest says nothing */
    bool measured; /* link is */
    gg_link link;
    size_t bucket_bytes, chunk_bytes;
    int buckets, chunks;
} gg_tuning;

/* Whether gg_strategy_tune wants to know the link. */
bool gg_strategy_tunes(const gg_strategy_options *options, int ranks);

/* Sets the sizes of `options` that are 0. forward: seconds of each layer in the forward pass, or from `least` (0 to 1)
 * times that on. link: NULL: not measured, the defaults. All ranks choose alike from alike arguments. `momenta`: how
 * many arenas the optimiser has. */
gg_status gg_strategy_tune(gg_strategy_options *options, const gg_graph *graph, int momenta, int ranks,
                           const double *forward, double least, const gg_link *link, gg_tuning *out);

#endif
