/* Private to the room: the peers, for the files that implement them. */
#ifndef GG_EXCHANGE_PEERS_PRIVATE_H
#define GG_EXCHANGE_PEERS_PRIVATE_H

#include "exchange/handover.h"
#include "exchange/peers.h"
#include "exchange/rebuild.h"

struct gg_peers {
    gg_team *team;
    gg_exchange_options options; /* during creation */
    int local, buried;
    gg_exchange **exchange; /* one a local rank; then those of `buried` ranks that have died */
    double *step_seconds;   /* one a rank of the team; NULL means none */
    int64_t *received;      /* gg_peers_received: of each local rank, one an identity; NULL if no rank dies */
    gg_status (*settle)(void *context, int local);
    void *context;
    gg_held_state *held; /* of a newcomer whose exchange is taken apart; else NULL */
    gg_handover heard;   /* by a newcomer */
};

/* Forward times by the elements of each layer, as the slowest rank has them. *least: from which part of them on sizes
 * count. The caller frees *forward. */
gg_status gg_peers_model_forward(const gg_arena_layout *layout, const double *step_seconds, int ranks, double **forward,
                                 double *least);

#endif
