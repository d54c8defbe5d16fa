/* One rank's exchange: the arenas of a layout, their optimiser, and the strategy that synchronises them with the other
 * ranks'. The exchange knows no network: the caller computes the gradients and makes these calls. A step is
 *
 *     begin
 *     need(layer)    before the layer's weights are used: they are current when it returns
 *     ready(layer)   the layer's gradient is written, and its weights are used no more in this step
 *     poll           now and then, from begin to end: messages move
 *     end
 *
 * with one ready for each layer, and a need before it. Weights may be used from need to ready, and after settle or
 * wait. A call out of this order gives GG_ERROR_STATE and changes nothing.
 *
 * Layers may become ready in any order. Strategies take them from the last to the first on all ranks, because
 * reductions meet in that order. A ready layer therefore waits here for the layers behind it.
 *
 * An exchange belongs to one rank and is called on that rank's thread, one call at a time. Functions marked collective
 * must be called by all ranks of the group in one order. */
#ifndef GG_EXCHANGE_EXCHANGE_H
#define GG_EXCHANGE_EXCHANGE_H

#include "exchange/parts/tuning.h"
#include "ops/registry.h"

/* Times by which the strategy's open sizes are tuned. Read during the call. */
typedef struct gg_exchange_costs {
    const double *forward; /* seconds of each layer's forward pass, equal on all ranks, */
    double least;          /* or from `least` (0 to 1) times these on */
    const gg_link *link;   /* cost of messages; NULL means not known */
} gg_exchange_costs;

typedef struct gg_exchange_options {
    const gg_arena_layout *layout; /* copied */
    gg_transport *transport;       /* outlives the exchange */
    const char *device;            /* holds and updates the arenas (ops/registry.h): a constant; NULL means "cpu" */
    gg_devices_options devices;
    gg_optimizer optimizer; /* a table of rates outlives the exchange */
    gg_strategy_options strategy;
    uint64_t seed;
    size_t trace; /* max spans recorded; 0 means off */
    gg_exchange_costs costs;
} gg_exchange_options;

/* Counts of transport and strategy since their creation. */
typedef struct gg_exchange_counts {
    double exposed_seconds;            /* waiting for other ranks */
    int64_t bytes, messages;           /* sent: all messages of the transport */
    int64_t skipped;                   /* exchanges skipped instead of waiting */
    gg_compression_counts compression; /* of the strategy */
} gg_exchange_counts;

typedef struct gg_exchange gg_exchange;

/* GG_ERROR_ARGUMENT for forbidden threads or a forbidden optimiser. */
gg_status gg_exchange_check(const gg_exchange_options *options);
/* Opens the devices. Arenas are zero. The layout may have no parameters. Collective. */
gg_status gg_exchange_create(const gg_exchange_options *options, gg_exchange **out);
/* Collective; NULL is a no-op. Settle first: otherwise messages in flight are cancelled, and partners may read freed
 * memory. */
void gg_exchange_destroy(gg_exchange *x);

/* Sets the learning rates from here on, checked by the caller; a table is not copied. At rest; equal on all ranks. */
void gg_exchange_set_rate(gg_exchange *x, const gg_rate *rate);
/* Tells that the optimiser's moments were zero in this step: Adam counts its updates from there. At rest; equal on all
 * ranks. */
void gg_exchange_set_moments_since(gg_exchange *x, int64_t step);

/* ---- a step ---- */

/* Begins a step. A no-op in a step in which no layer is ready yet. batches: samples of each rank in this step, the
 * ranks' weights when gradients are averaged; NULL means that all training ranks have equally many. */
gg_status gg_exchange_begin(gg_exchange *x, const int64_t *batches);
/* The caller leaves a step in which no layer is ready, as for a collective call: this rank counts it as begun again
 * with the next gg_exchange_begin or gg_exchange_ready. A no-op in any other step. */
void gg_exchange_leave(gg_exchange *x);
gg_status gg_exchange_need(gg_exchange *x, int layer);
gg_status gg_exchange_ready(gg_exchange *x, int layer);
/* Checks that `ready` of this layer is allowed now. */
gg_status gg_exchange_check_ready(const gg_exchange *x, int layer);
/* `ready` after the caller's gg_exchange_check_ready, with gradients that lie outside of the arena during this call.
 * Reads them in place if the layer is the strategy's next one and the strategy allows it, else copies them to the
 * arena. */
gg_status gg_exchange_ready_from(gg_exchange *x, int layer, const gg_lent *lent, int lents);
gg_status gg_exchange_poll(gg_exchange *x);
/* GG_ERROR_NUMERIC if a whole arena of gradients has a NaN or an infinity; names the first such parameter. */
gg_status gg_exchange_check_gradients(gg_exchange *x, const float *gradients);
/* Ends the step. GG_ERROR_STATE, on a rank that trains, names a layer that is not ready. The caller counts the step in
 * the state. */
gg_status gg_exchange_end(gg_exchange *x);
/* ---- where ranks may die ---- */

/* True if a step fails with GG_ERROR_PEER when a death breaks it, on each rank that cannot complete it: the ranks then
 * have either made the step or changed no weight. */
bool gg_exchange_breaks(const gg_exchange *x);
/* Ends a broken step, or the rest of a complete one: nothing is in flight afterwards. */
void gg_exchange_break(gg_exchange *x);
/* The transport of the options has other ranks. */
void gg_exchange_follow_transport(gg_exchange *x);
/* After a rebuild on other ranks, with the rank's own state. */
void gg_exchange_regrouped(gg_exchange *x);
/* True if the arena at this place is equal on all ranks after each step. */
bool gg_exchange_keeps_equal(const gg_exchange *x, int arena);
/* After gg_exchange_break, before a rebuild. whole: the last step that this rank began has been made, by the rank
 * itself or by a rank whose state it has taken. If not, all is as it was before that step. */
void gg_exchange_mended(gg_exchange *x, bool whole);

/* ---- between steps ---- */

/* Waits between end and the next begin until all weights are current, as need does for one layer. Not collective. */
gg_status gg_exchange_wait(gg_exchange *x);
/* True if weights may be written between end and the next begin without gg_exchange_wait: no message reads or writes
 * them any more. */
bool gg_exchange_current_at_end(const gg_exchange *x);
/* True if a step has begun and not ended; with `half`, only if some layer is ready in it. */
bool gg_exchange_under_way(const gg_exchange *x, bool half);
/* True if each update needs norms of all gradients of this rank. `ready` then only counts layers. The caller calls
 * gg_exchange_ready_all once when all are ready; that makes the updates. */
bool gg_exchange_updates_wait(const gg_exchange *x);
gg_status gg_exchange_ready_all(gg_exchange *x);
/* Hooks for linear layers, as gg_strategy_fc_hooks; allowed if gg_exchange_offers_fc. A strategy without hooks may let
 * the updates compute a gradient row by row, if only updates read it. A large linear layer then has no gradient array
 * before gg_exchange_gather. */
bool gg_exchange_offers_fc(const gg_exchange *x);
gg_status gg_exchange_fc_input(gg_exchange *x, int layer, const gg_vectors *input, bool *taken);
gg_status gg_exchange_fc_error(gg_exchange *x, int layer, const gg_vectors *error);
/* True for each layer whose weight gradient the strategy has computed in some step so far; NULL means no layer. */
const bool *gg_exchange_fc_partitioned(const gg_exchange *x);

/* ---- at rest ---- */

/* Completes all that is in flight. Cancels a begun step in which no layer is ready; GG_ERROR_STATE if one is.
 * Collective. */
gg_status gg_exchange_settle(gg_exchange *x);
/* GG_ERROR_STATE, on all ranks, for the gradients if the last step's sum was applied in pieces: the arena does not hold
 * it. arena: place in the state's list. Nothing is in flight. */
gg_status gg_exchange_check_arena(const gg_exchange *x, int arena);
/* Gathers all elements of the arena at a place of the state's list; `whole` may be NULL. Settled. Collective: all ranks
 * name one arena. */
gg_status gg_exchange_gather(gg_exchange *x, int arena, float *whole);
/* True if a rank's arena at this place holds only the rank's slices, not all elements in their order. */
bool gg_exchange_is_partitioned(const gg_exchange *x, int arena);
/* Sets the weights, or this rank's slices of a moment. Settled. */
void gg_exchange_load(gg_exchange *x, int arena, const float *whole);
/* Restores an arena when training resumes. Some strategies keep this kind of arena equal on all ranks, or on those of
 * each node. If such ranks bring different bits, weights become `consensus`, other arenas the mean over the first
 * `trained` ranks. consensus: equal on all ranks; not NULL for weights. Collective. */
gg_status gg_exchange_resume(gg_exchange *x, int arena, const float *whole, const float *consensus, int trained);
/* Memory for the mean of the ranks' weights: gg_exchange_has_mean tells if it exists. gg_exchange_prepare_mean,
 * collective, makes it before the first request for the mean does. */
bool gg_exchange_has_mean(const gg_exchange *exchange);
gg_status gg_exchange_prepare_mean(gg_exchange *exchange);
/* Returns the strategy's own model. Without one, returns the mean of the weights over the ranks that train, under
 * push-sum by its scalars. Valid until the next call. Settled. Collective. */
gg_status gg_exchange_consensus(gg_exchange *x, const float **weights);
/* Sets the strategy's own model, if it has one. Settled. All ranks give equal weights, but need not call together. */
void gg_exchange_set_consensus(gg_exchange *x, const float *weights);
/* Replaces weights and statistics by the consensus model; moments stay. Settled. Collective. */
gg_status gg_exchange_adopt_consensus(gg_exchange *x);
/* Mean over the ranks that train of |w_r - w_mean| / |w_mean|, without statistics; NaN if any weight is NaN or
 * infinite. Settled. Collective. */
gg_status gg_exchange_distance(gg_exchange *x, double *distance);
/* Subtracts sent values that are only marked from the residue. Writes: call on the rank's thread, or while no call of
 * the rank is under way. */
void gg_exchange_complete_residue(gg_exchange *x);
/* |residue| / |weights| of this rank, without statistics: the part that compression has not sent yet. With copies
 * shared with partners, the mean square of the differences to the weights replaces the residue's. 0 without residue and
 * copies, NaN if a weight is NaN or infinite. Before gg_exchange_complete_residue or a settle the residue still
 * contains sent values. Only reads: other threads may call it and see the state that a call under way has left so far.
 */
double gg_exchange_residue(gg_exchange *x);

/* ---- other arenas ---- */

/* Makes arenas, strategy and buckets anew, all arenas zero. Devices, trace, optimiser and the step stay. NULL keeps the
 * strategy or layout (copied). After a failure the exchange is not whole. Collective. */
gg_status gg_exchange_renew(gg_exchange *x, const gg_strategy_options *strategy, const gg_arena_layout *layout,
                            const gg_exchange_costs *costs);
/* Between on and off the weights and gradients keep their memory when the exchange is made anew, unless the new
 * strategy wants message memory in place of private one. */
void gg_exchange_keep_arenas(gg_exchange *x, bool on);
/* False if there are no arenas and no strategy: only the questions below are allowed. */
bool gg_exchange_is_whole(const gg_exchange *x);
/* Ends an exchange that cannot continue: it is no longer whole. Collective. */
void gg_exchange_dismantle(gg_exchange *x);

/* ---- questions ---- */

/* The strategy's bucket of each layer (gg_plan_hooks); NULL means that the strategy ignores layers. */
const int *gg_exchange_buckets(const gg_exchange *x);
gg_state *gg_exchange_state(gg_exchange *x); /* at one address for life */
/* The options as given or changed since; the costs are not kept. */
const gg_exchange_options *gg_exchange_asked(const gg_exchange *x);
const gg_arena_layout *gg_exchange_layout(const gg_exchange *x);
const gg_devices *gg_exchange_devices(const gg_exchange *x);
/* The transport of the options, or its wrapper that keeps messages in the order of the device's work. */
gg_transport *gg_exchange_transport(const gg_exchange *x);
gg_trace *gg_exchange_trace(const gg_exchange *x); /* NULL means off */
/* Seconds to add to the trace's times to reach rank 0's clock. */
double gg_exchange_clock_offset(const gg_exchange *x);
/* Counts the calls here that have set weights or the strategy's own model. */
int64_t gg_exchange_loads(const gg_exchange *x);
const gg_tuning *gg_exchange_tuning(const gg_exchange *x);
/* Returns the last step of a rank whose update came whole in messages to this one, and was or will be mixed. -1 means
 * none, or a strategy that needs all ranks. With slices the last of the steps that send them counts. After settling
 * nothing is left to come. For ranks that have died. */
int64_t gg_exchange_received(const gg_exchange *x, int rank);
void gg_exchange_counted(const gg_exchange *x, gg_exchange_counts *out);
bool gg_exchange_compresses(const gg_exchange *x);
/* True if the strategy averages gradients: the residue then consists of gradients. */
bool gg_exchange_averages_gradients(const gg_exchange *x);
int gg_exchange_workers(const gg_exchange *x); /* the first ranks, which train */
bool gg_exchange_trains(const gg_exchange *x); /* this rank trains; other ranks only serve, in begin and end */
/* True if a call failed in the middle of an exchange, or its caller says so: the exchange can only be destroyed. */
bool gg_exchange_failed(const gg_exchange *x);
gg_status gg_exchange_fail(gg_exchange *x, gg_status status); /* returns the status; GG_OK is a no-op */
/* Adds "step 12, WHAT: " to the message of a failure, and returns it. */
gg_status gg_exchange_at(const gg_exchange *x, const char *what, gg_status status);
size_t gg_exchange_bytes(const gg_exchange *x); /* of the arenas, and of memory that replaces gradients */

#endif
