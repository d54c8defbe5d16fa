/* One rank's exchange: the arenas of a layout, their optimiser and the strategy that synchronises them with those of
 * the other ranks. It knows no network: whoever computes the gradients makes these calls. A step is
 *
 *     begin
 *     need(layer)    before the layer's weights are used: they are current when it returns
 *     ready(layer)   the layer's gradient is written, and its weights are used no more in this step
 *     poll           now and then, from begin to end: messages move
 *     end
 *
 * with one ready for each layer, and a need before it. Weights may be used from need to ready, and after settle or
 * wait. A call out of this order is GG_ERROR_STATE and changes nothing.
 *
 * Layers may become ready in any order. Strategies meet them from the last to the first, on all ranks alike, because
 * reductions of all ranks meet in that order: a layer waits here for those behind it.
 *
 * Everything here belongs to one rank and is called on that rank's thread, one call at a time. Functions marked
 * collective must be called by all ranks of the group in the same order. */
#ifndef GG_EXCHANGE_EXCHANGE_H
#define GG_EXCHANGE_EXCHANGE_H

#include "exchange/parts/tuning.h"
#include "ops/registry.h"

/* What sizes that the strategy's options leave open are tuned by. Read during the call. */
typedef struct gg_exchange_costs {
    const double *forward; /* seconds of each layer in the forward pass, the same on all ranks, */
    double least;          /* or from this part (0 to 1) of that on */
    const gg_link *link;   /* what messages cost; NULL: not known */
} gg_exchange_costs;

typedef struct gg_exchange_options {
    const gg_arena_layout *layout; /* copied */
    gg_transport *transport;       /* outlives the exchange */
    const char *device; /* what holds the arenas and updates them (ops/registry.h); NULL: "cpu". A constant */
    gg_devices_options devices;
    gg_optimizer optimizer; /* a table of rates outlives the exchange */
    gg_strategy_options strategy;
    uint64_t seed;
    size_t trace;      /* spans recorded at most; 0: off */
    bool across_steps; /* gg_strategy_env's */
    gg_exchange_costs costs;
} gg_exchange_options;

/* What transport and strategy have counted since each was created. */
typedef struct gg_exchange_counts {
    double exposed_seconds;            /* waited for others */
    int64_t bytes, messages;           /* sent; all messages of the transport */
    int64_t skipped;                   /* exchanges, so as not to wait */
    gg_compression_counts compression; /* what the strategy has compressed */
} gg_exchange_counts;

typedef struct gg_exchange gg_exchange;

/* GG_ERROR_ARGUMENT for threads or an optimiser that are not allowed. */
gg_status gg_exchange_check(const gg_exchange_options *options);
/* Opens the devices. Arenas are zero. The layout may have no parameters. Collective. */
gg_status gg_exchange_create(const gg_exchange_options *options, gg_exchange **out);
/* Collective; NULL is fine. Settle first: otherwise what is in flight is cancelled, and partners may read memory that
 * is freed. */
void gg_exchange_destroy(gg_exchange *x);

/* The learning rates from here on, checked by the caller; a table is not copied. At rest; all ranks give the same. */
void gg_exchange_set_rate(gg_exchange *x, const gg_rate *rate);
/* The optimiser's moments were zero in this step: Adam counts its updates from there. At rest; all ranks give the same.
 */
void gg_exchange_set_moments_since(gg_exchange *x, int64_t step);

/* ---- a step ---- */

/* Of a step that has begun, and in which no layer is ready, nothing changes. batches: samples of each rank in this
 * step; NULL: the ranks that train have equally many. Ranks are weighted by them where gradients are averaged. */
gg_status gg_exchange_begin(gg_exchange *x, const int64_t *batches);
gg_status gg_exchange_need(gg_exchange *x, int layer);
/* The same for a caller that can make rows of the layer's weight current as it reads them, and does, where rows->make
 * is not NULL then; rows NULL: need. */
gg_status gg_exchange_need_rows(gg_exchange *x, int layer, gg_weight_rows *rows);
gg_status gg_exchange_ready(gg_exchange *x, int layer);
/* Whether `ready` of this layer is allowed now. */
gg_status gg_exchange_check_ready(const gg_exchange *x, int layer);
/* `ready` after the caller's gg_exchange_check_ready, where gradients of these parameters of the layer lie elsewhere
 * during this call. They are read there if the layer is the strategy's next one and the strategy allows that, else
 * copied to the arena. */
gg_status gg_exchange_ready_from(gg_exchange *x, int layer, const gg_lent *lent, int lents);
gg_status gg_exchange_poll(gg_exchange *x);
/* GG_ERROR_NUMERIC naming the first parameter whose gradient, in a whole arena, has a NaN or an infinity. */
gg_status gg_exchange_check_gradients(gg_exchange *x, const float *gradients);
/* GG_ERROR_STATE naming a layer that is not ready, on a rank that trains. Its caller counts the step, in the state. */
gg_status gg_exchange_end(gg_exchange *x);
/* Between end and the next begin: waits until all weights are current, as need does for a layer in the next step.
 * Others need not call it. */
gg_status gg_exchange_wait(gg_exchange *x);
/* Whether weights may be written between end and the next begin, without gg_exchange_wait: nothing is received into
 * them, or sent from them, any more. Not where gg_exchange_need_rows has been called. */
bool gg_exchange_current_at_end(const gg_exchange *x);
/* A step has begun and not ended; `half`: some layer is ready in it. */
bool gg_exchange_under_way(const gg_exchange *x, bool half);
/* Whether each update needs norms of all gradients of this rank. `ready` only counts layers then, and
 * gg_exchange_ready_all, called once when all are, makes the updates. */
bool gg_exchange_updates_wait(const gg_exchange *x);
gg_status gg_exchange_ready_all(gg_exchange *x);
/* Of layers that are partitionable, as gg_strategy_fc_hooks; allowed where gg_exchange_offers_fc. Where the strategy
 * has none, and only updates read a gradient, they compute it themselves, row by row: of a large linear layer there is
 * no array then before gg_exchange_gather. */
bool gg_exchange_offers_fc(const gg_exchange *x);
gg_status gg_exchange_fc_input(gg_exchange *x, int layer, const gg_vectors *input, bool *taken);
gg_status gg_exchange_fc_error(gg_exchange *x, int layer, const gg_vectors *error);
/* Of each layer: whether the strategy has computed the gradient of its weight in some step so far; NULL: of none. */
const bool *gg_exchange_fc_partitioned(const gg_exchange *x);

/* ---- at rest ---- */

/* A step in which no layer is ready is left, as if it had not begun; in another it is GG_ERROR_STATE. Collective. */
gg_status gg_exchange_settle(gg_exchange *x);
/* GG_ERROR_STATE for the gradients where the last step's sum was applied in pieces, on all ranks: the arena at this
 * place of the state's list does not have it. Nothing is in flight. */
gg_status gg_exchange_check_arena(const gg_exchange *x, int arena);
/* All elements of the arena at a place of the state's list; `whole` may be NULL. Settled. Collective: all ranks ask for
 * the same. */
gg_status gg_exchange_gather(gg_exchange *x, int arena, float *whole);
/* Whether a rank's arena at this place is slices of its own, and not all elements in their order. */
bool gg_exchange_is_partitioned(const gg_exchange *x, int arena);
/* Settled: sets the weights, or the slices that this rank owns of a moment. */
void gg_exchange_load(gg_exchange *x, int arena, const float *whole);
/* The same with what the rank goes on from. A strategy that has this kind of arena alike on all ranks after every step,
 * or on those of each node, begins from one state: where such ranks bring different bits, weights become `consensus`,
 * others the mean over the first `trained` ranks. consensus: not NULL for weights, the same on all ranks. Collective.
 */
gg_status gg_exchange_resume(gg_exchange *x, int arena, const float *whole, const float *consensus, int trained);
/* Whether there is memory for the mean of the ranks' weights, which is made when it is first asked for; and that
 * memory. Collective. */
bool gg_exchange_has_mean(const gg_exchange *exchange);
gg_status gg_exchange_prepare_mean(gg_exchange *exchange);
/* The strategy's own model, where it has one, or else the mean of the weights over the ranks that train, of push-sum by
 * its scalars; valid until the next call. Settled. Collective. */
gg_status gg_exchange_consensus(gg_exchange *x, const float **weights);
/* The strategy's own model, where it has one, becomes this. Settled; all ranks give the same, but need not call
 * together. */
void gg_exchange_set_consensus(gg_exchange *x, const float *weights);
/* Weights, statistics included, become the consensus model's; moments stay. Settled. Collective. */
gg_status gg_exchange_adopt_consensus(gg_exchange *x);
/* Mean over the ranks that train of |w_r - w_mean| / |w_mean|, statistics left out; NaN if any weight is NaN or
 * infinite. Settled. Collective. */
gg_status gg_exchange_distance(gg_exchange *x, double *distance);
/* What has been sent and is only marked leaves the residue. It writes: on the rank's thread, or while no call of the
 * rank is under way. */
void gg_exchange_complete_residue(gg_exchange *x);
/* |residue| / |weights| of this rank, statistics left out: how much compression has not sent yet. Of copies that it has
 * in common with others the difference to its weights takes the place of the residue, in the mean of the squares. 0
 * without either, NaN if a weight is NaN or infinite. The residue counts as it lies: what has been sent is part of it
 * before gg_exchange_complete_residue or a settle. It only reads, so other threads may ask, and get what a call that is
 * under way has left so far. */
double gg_exchange_residue(gg_exchange *x);

/* ---- other arenas ---- */

/* Makes arenas, strategy and buckets anew, all arenas zero; devices, trace, optimiser and the step stay. NULL: strategy
 * or layout (copied) are as before. After a failure the exchange is not whole. Collective. */
gg_status gg_exchange_renew(gg_exchange *x, const gg_strategy_options *strategy, const gg_arena_layout *layout,
                            const gg_exchange_costs *costs);
/* False: there are no arenas and no strategy, and nothing may be called but what is asked. */
bool gg_exchange_is_whole(const gg_exchange *x);
/* Ends an exchange that cannot go on: it is no longer whole. Collective. */
void gg_exchange_dismantle(gg_exchange *x);

/* ---- what is asked ---- */

/* Of each layer the strategy's bucket (gg_plan_hooks); NULL: layers do not matter to it. */
const int *gg_exchange_buckets(const gg_exchange *x);
gg_state *gg_exchange_state(gg_exchange *x); /* at one address for life */
/* As they were given, or changed since; the costs are not kept. */
const gg_exchange_options *gg_exchange_asked(const gg_exchange *x);
const gg_arena_layout *gg_exchange_layout(const gg_exchange *x);
const gg_devices *gg_exchange_devices(const gg_exchange *x);
/* The transport of the options, or what keeps its messages in the order of the device's work. */
gg_transport *gg_exchange_transport(const gg_exchange *x);
gg_trace *gg_exchange_trace(const gg_exchange *x); /* NULL: off */
/* Seconds to add to the times of the trace, so that all ranks' are on rank 0's clock. */
double gg_exchange_clock_offset(const gg_exchange *x);
/* How often weights, or a model of the strategy's own, have been set by the calls here. */
int64_t gg_exchange_loads(const gg_exchange *x);
const gg_tuning *gg_exchange_tuning(const gg_exchange *x);
void gg_exchange_counted(const gg_exchange *x, gg_exchange_counts *out);
bool gg_exchange_compresses(const gg_exchange *x);
/* Whether its strategy does: what compression has not sent then is gradients. */
bool gg_exchange_averages_gradients(const gg_exchange *x);
int gg_exchange_workers(const gg_exchange *x); /* the first ranks, which train */
bool gg_exchange_trains(const gg_exchange *x); /* this rank does; the others only serve, in begin and end */
/* A call failed in the middle of an exchange, or its caller says that one did: it can only be destroyed. */
bool gg_exchange_failed(const gg_exchange *x);
gg_status gg_exchange_fail(gg_exchange *x, gg_status status); /* returns the status; GG_OK: nothing has failed */
/* Adds "step 12, WHAT: " to the message of a failure, and returns it. */
gg_status gg_exchange_at(const gg_exchange *x, const char *what, gg_status status);
size_t gg_exchange_bytes(const gg_exchange *x); /* of the arenas, and of what is kept in place of gradients */

#endif
