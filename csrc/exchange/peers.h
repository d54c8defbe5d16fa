/* The ranks of a team that live in this process, each with its exchange: what trains arrays of a caller who computes
 * the gradients.
 *
 * gg_team_run runs a function on each of them, on the rank's own thread where there are several; in it the caller
 * makes the calls of a step for that rank. Where the rank is the only one of its process, they may be made outside as
 * well. */
#ifndef GG_EXCHANGE_PEERS_H
#define GG_EXCHANGE_PEERS_H

#include "comm/team.h"
#include "exchange/exchange.h"

typedef struct gg_peers gg_peers;

typedef struct gg_peers_options {
    const gg_arena_layout *layout; /* outlives the peers */
    gg_optimizer optimizer;        /* a table of rates outlives them */
    gg_strategy_options strategy;
    uint64_t seed;
    int threads; /* of each rank */
    gg_isa isa;
    size_t trace;               /* spans stored by a rank at most; 0: off */
    const double *step_seconds; /* what virtual clocks charge for a step of each rank of the team; NULL: nothing. Read
                                   at creation */
} gg_peers_options;

/* Retains the team. Collective. */
gg_status gg_peers_create(const gg_peers_options *options, gg_team *team, gg_peers **out);
/* Collective: settles first, unless a step is half done or something failed. NULL is fine. */
void gg_peers_destroy(gg_peers *peers);

gg_team *gg_peers_team(const gg_peers *peers);
gg_exchange *gg_peers_exchange(const gg_peers *peers, int local);
const gg_trace *gg_peers_trace(const gg_peers *peers, int local); /* NULL: off */
/* Seconds to add to the times of a trace, so that all ranks' are on rank 0's clock. */
double gg_peers_clock_offset(const gg_peers *peers, int local);
/* The learning rates from here on, checked by the caller; a table is not copied. At rest; all ranks give the same. */
void gg_peers_set_rate(gg_peers *peers, const gg_rate *rate);

/* Where the caller writes a rank's gradients, a whole arena at one address for life. They may be written from end to
 * ready, whatever the strategy still reads of the last step: its own arena, or, where others read that in place, one
 * that ready copies from. */
float *gg_peers_gradients(const gg_peers *peers, int local);
/* Whether a parameter is large, and has no padding behind it: its gradient may lie elsewhere (gg_peers_ready_from). */
bool gg_peers_is_large(const gg_peers *peers, int parameter);
/* Those of all parameters that are not large, for a caller who adds to them. */
void gg_peers_zero_gradients(gg_peers *peers, int local);

/* The step in which the optimiser's moments were zero, 0 at creation: Adam counts its updates from there. At rest; all
 * ranks give the same. */
int64_t gg_peers_moments_since(const gg_peers *peers);
void gg_peers_set_moments_since(gg_peers *peers, int64_t step);

/* gg_exchange's of a local rank, with what goes to its clock and its trace. Called on that rank's thread. */
gg_status gg_peers_begin(gg_peers *peers, int local, const int64_t *batches);
gg_status gg_peers_need(gg_peers *peers, int local, int layer);
gg_status gg_peers_ready(gg_peers *peers, int local, int layer);
/* gradient: of each parameter of the layer, at an address that GG_ALIGNMENT divides, where it lies in this call; NULL:
 * in the arena, as that of all that are not large. */
gg_status gg_peers_ready_from(gg_peers *peers, int local, int layer, const float *const *gradient);
gg_status gg_peers_end(gg_peers *peers, int local);

/* All calls of a step of a local rank whose gradients are written; afterwards its weights are current. check:
 * gg_exchange_check_gradients first. */
gg_status gg_peers_step(gg_peers *peers, int local, const int64_t *batches, bool check);

#endif
