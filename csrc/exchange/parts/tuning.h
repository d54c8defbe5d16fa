/* The sizes of buckets and chunks, where the options leave them open, from the cost of messages (comm/link.h) and the
 * time of each layer.
 *
 * A model predicts the duration of a step. The backward pass goes through the layers from the last to the first. When a
 * bucket's last layer is done, each of its chunks costs the rank `message` seconds a message, and the bucket's bytes
 * leave at `byte` seconds each, after those of earlier buckets. It arrives `latency` later. The last chunk then delays
 * its use by the time to use a chunk or by the time to receive one, whichever is shorter, since the two stages overlap.
 * So small chunks cost messages and large ones delay; in shared memory one chunk is best. The next forward pass waits
 * at a layer for its bucket (GossipGraD, OverlappedAveraging), or the backward pass ends when all are there, which wait
 * for each other then (LayerwiseAllReduce); with staleness 1 no rank waits unless the link is slower than the step.
 *
 * The best of a few sizes is chosen, if the step gets 5 % shorter than with the defaults, and no longer where computing
 * is much faster than assumed: measurements vary from run to run, choices should not. No result depends on it: mixes go
 * element by element, sums rank by rank.
 *
 * Where no rank waits for another (PullGossip, PushGossip, ParameterServer, ElasticAveraging with a server), the result
 * depends on what has arrived when, and so on the sizes: they use the defaults. So do sums that are left to MPI, which
 * may add large ones in another order than small ones, and hierarchical GossipGraD, since the model does not describe
 * two kinds of links and two exchanges, and slices of buckets, which are other ones where buckets are.
 *
 * How many samples a step has is not known yet, so linear layers of which OverlappedAveraging exchanges inputs and
 * errors count like the others. */
#ifndef GG_EXCHANGE_PARTS_TUNING_H
#define GG_EXCHANGE_PARTS_TUNING_H

#include "comm/link.h"
#include "exchange/strategy.h"

#define GG_DEFAULT_BUCKET_BYTES ((size_t)1 << 20)
#define GG_DEFAULT_CHUNK_BYTES ((size_t)2 << 20)

/* What a step is thought to cost where nothing better is known. Rate of arithmetic: that of a modest core. */
#define GG_MODEL_FLOPS_PER_SECOND 50e9
/* Sizes of buckets and chunks are tuned before the batch size is known. It is assumed to be this, or so small that a
 * step needs no more than this part of the time. */
#define GG_USUAL_BATCH 64
#define GG_LEAST_OF_USUAL (1.0 / 64)

typedef struct gg_tuning {
    bool cuts;     /* the strategy has buckets and chunks that may be tuned; else the other fields have no meaning */
    bool measured; /* link is */
    gg_link link;
    size_t bucket_bytes, chunk_bytes;
    int buckets, chunks;
} gg_tuning;

/* Whether gg_strategy_tune needs the link. */
bool gg_strategy_tunes(const gg_strategy_options *options, int ranks);

/* gg_strategy_check of options whose sizes may be 0: gg_strategy_tune is still to choose them. */
gg_status gg_strategy_check_open(const gg_strategy_options *options, int ranks);

/* Sets the sizes of `options` that are 0. forward: seconds of each layer in the forward pass, or from `least` (0 to 1)
 * times that on. link: NULL: not measured, the defaults. With the same arguments all ranks choose the same. `momenta`:
 * how many arenas the optimiser has. */
gg_status gg_strategy_tune(gg_strategy_options *options, const gg_arena_layout *layout, int momenta, int ranks,
                           const double *forward, double least, const gg_link *link, gg_tuning *out);

#endif
