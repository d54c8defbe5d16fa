/* Sizes of buckets and chunks, if the options leave them open, from the cost of messages (comm/link.h) and each layer's
 * time.
 *
 * A model predicts the duration of a step. The backward pass goes through the layers from the last to the first. When a
 * bucket's last layer is done:
 *
 * 1. Each of its chunks costs the rank `message` seconds a message.
 * 2. The bucket's bytes leave at `byte` seconds each, after those of earlier buckets.
 * 3. They arrive `latency` later.
 * 4. The last chunk delays its use by the time to use a chunk or to receive one, whichever is shorter, because the two
 *    stages overlap.
 *
 * So small chunks cost messages and large ones delay; in shared memory one chunk is best. The next forward pass waits
 * at a layer for its bucket (GossipGraD, OverlappedAveraging). Or the backward pass ends when all buckets have arrived,
 * which then wait for each other (LayerwiseAllReduce). With staleness 1 no rank waits unless the link is slower than
 * the step.
 *
 * The best of a few sizes is chosen if it makes the step at least 5 % shorter than the defaults, and no longer if
 * computing is much faster than assumed: measurements vary from run to run, choices should not. Results do not depend
 * on the choice: mixes go element by element, sums rank by rank.
 *
 * The defaults are used if
 *
 * - no rank waits for another (PullGossip, PushGossip, ParameterServer, ElasticAveraging with a server): results then
 *   depend on the times of arrival, and so on the sizes;
 * - MPI sums: it may add large sums in another order than small ones;
 * - GossipGraD is hierarchical: the model does not describe two kinds of links and two exchanges;
 * - buckets are cut into slices: other buckets would give other slices.
 *
 * The batch size is not known yet. So linear layers whose inputs and errors OverlappedAveraging exchanges count like
 * the others. */
#ifndef GG_EXCHANGE_PARTS_TUNING_H
#define GG_EXCHANGE_PARTS_TUNING_H

#include "comm/link.h"
#include "exchange/strategy.h"

#define GG_DEFAULT_BUCKET_BYTES ((size_t)1 << 20)
#define GG_DEFAULT_CHUNK_BYTES ((size_t)2 << 20)

/* Assumed cost of a step if nothing better is known: the arithmetic rate of a modest core. */
#define GG_MODEL_FLOPS_PER_SECOND 50e9
/* Assumed batch size, because tuning runs before it is known; a step may need as little as this fraction of the time.
 */
#define GG_USUAL_BATCH 64
#define GG_MIN_OF_USUAL (1.0 / 64)

typedef struct gg_tuning {
    bool cuts; /* the strategy has buckets and chunks that may be tuned; if false the other fields are meaningless */
    bool measured; /* `link` is */
    gg_link link;
    size_t bucket_bytes, chunk_bytes;
    int buckets, chunks;
} gg_tuning;

/* True if gg_strategy_tune needs the link. */
bool gg_strategy_tunes(const gg_strategy_options *options, int ranks);

/* gg_strategy_check of options whose sizes may be 0, for gg_strategy_tune to choose. */
gg_status gg_strategy_check_open(const gg_strategy_options *options, int ranks);

/* Sets the sizes of `options` that are 0. Equal arguments give equal choices on all ranks. forward: seconds of each
 * layer's forward pass, or from `least` (0 to 1) times these on. link: NULL means not measured, and gives the defaults.
 * momenta: number of the optimiser's arenas. */
gg_status gg_strategy_tune(gg_strategy_options *options, const gg_arena_layout *layout, int momenta, int ranks,
                           const double *forward, double least, const gg_link *link, gg_tuning *out);

#endif
