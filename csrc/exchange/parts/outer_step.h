/* Private to the room: base of the strategies with local steps and outer steps. Every rank trains alone. The arena
 * "outer" holds phi, the weights after the last outer step. After every `period` steps w is exchanged, and with mean,
 * of w over some ranks:
 *
 *   g = mean - phi; m = momentum*m + lr*g; phi += m; w = phi
 *
 * Nesterov's form is phi += lr*g + momentum*m.
 *
 * The model is cut into fragments, runs of elements of about equal size, which take turns: fragment f of F is exchanged
 * after the steps t with (t + 1) mod period = (f + 1)*period div F mod period. An exchange begun after step t is
 * applied after step t + delay, so `delay` steps hide it. The rank's progress since then is added: w = phi + (w - w
 * that was sent). Steps decide when, never messages: all ranks and all runs do the same. Settling applies all that is
 * in flight.
 *
 * Statistics are not trained: phi = mean, without momentum, so that no variance is extrapolated below zero.
 *
 * Where ranks may die, a death may break an exchange. This rank then keeps its phi, m and w, and trains on; another may
 * have made the outer step. At the end of the first step without the dead, ranks with one phi take phi and m of the
 * first rank that has missed none, and keep their w. If all have missed one, all fragments have a turn there. */
#ifndef GG_EXCHANGE_PARTS_OUTER_STEP_H
#define GG_EXCHANGE_PARTS_OUTER_STEP_H

#include "exchange/parts/common.h"
#include "exchange/parts/flight.h"
#include "exchange/parts/receipts.h"

#define GG_MAX_FRAGMENTS 1024

typedef struct gg_fragment {
    size_t offset, count; /* elements of the arenas, whole lanes; 0 if there are more fragments than lanes */
    int first_layer, last_layer;
    int64_t begun; /* the step after which its exchange began */
    bool flies;
    bool broken; /* by a death */
    gg_flight flight;
} gg_fragment;

typedef struct gg_outer gg_outer;

/* Exchange of fragment f. Several may be in flight; all ranks start and receive them in one order. */
typedef struct gg_outer_rule {
    gg_status (*start)(gg_outer *s, int f);                                /* sends gg_outer_sent */
    gg_status (*poll)(gg_outer *s, int f);                                 /* without waiting */
    gg_status (*receive)(gg_outer *s, int f, size_t *bytes, double *when); /* until s->moved holds mean - phi */
    gg_status (*finish)(gg_outer *s, int f); /* until partners have read it; a no-op if nothing was sent */
    void (*cancel)(gg_outer *s, int f);
    /* Counts the ranks whose weights are in the mean that has been received, as of the step in which it began. */
    void (*count)(gg_outer *s, int f);
    bool one_phi; /* phi and m are equal on all ranks */
    void (*destroy)(gg_strategy *strategy);
} gg_outer_rule;

/* First member of every such strategy. */
struct gg_outer {
    gg_strategy head;
    gg_strategy_table table;
    const gg_outer_rule *rule;
    int64_t period, delay;
    float lr, momentum;
    float statistic_lr; /* a little less than 1 if the wire rounds: a variance does not fall below zero */
    bool nesterov;
    int fragments;
    gg_fragment *fragment;
    int *in_flight, flying; /* fragments in the order of their beginning */
    float *phi, *m;         /* arenas of the state */
    float *sent;            /* a copy of w from the exchange's beginning; NULL means that w has not changed since */
    float *moved;           /* mean - phi; the rule's */
    gg_receipts receipts;   /* where ranks may die */
    bool joins;             /* the first step without ranks that have died ends next */
};

/* Options of all strategies with outer steps. */
#define GG_OUTER_OPTIONS                                                                                               \
    GG_OPTION_PERIOD(outer.period, 50, "steps from one outer step to the next"),                                       \
        GG_STRATEGY_OPTION(GG_OPTION_DOUBLE, "outer_lr", outer.outer_lr, "learning rate of outer steps",               \
                           .fallback = {0.7}, .bounds = GG_ABOVE_TO(0, 1e6)),                                          \
        GG_STRATEGY_OPTION(GG_OPTION_DOUBLE, "outer_momentum", outer.outer_momentum, "momentum of outer steps",        \
                           .fallback = {0.9}, .bounds = GG_BELOW(0, 1)),                                               \
        GG_STRATEGY_FLAG("outer_nesterov", outer.outer_nesterov, "Nesterov's form of outer steps", false),             \
        GG_STRATEGY_OPTION(GG_OPTION_INT, "fragments", outer.fragments,                                                \
                           "parts of the model that take turns in a period", .fallback = {1},                          \
                           .bounds = GG_FROM_TO(1, GG_MAX_FRAGMENTS)),                                                 \
        GG_STRATEGY_OPTION(GG_OPTION_INT64, "delay", outer.delay, "steps that hide the exchange of an outer step",     \
                           .fallback = {-1}, .bounds = GG_AT_LEAST(0),                                                 \
                           .unset = "0 with one fragment, else period / fragments"),                                   \
        GG_OPTION_WIRE

/* Checks period, outer_lr, outer_momentum, fragments and delay. */
gg_status gg_outer_check(const gg_strategy_options *options, int ranks);
/* Allocates the state's arenas and fills all fields but `moved`. After a failure the caller destroys. Collective. */
gg_status gg_outer_init(gg_outer *s, const gg_outer_rule *rule, const gg_strategy_options *options,
                        const gg_strategy_env *env);
/* Frees the memory of gg_outer_init, the state's arenas too. Nothing is in flight. Collective. */
void gg_outer_deinit(gg_outer *s);

/* The weights that fragment f sends. */
static inline const float *gg_outer_sent(const gg_outer *s, int f) {
    const float *sent = s->sent != NULL ? s->sent : gg_state_weights(s->head.env.state);
    return sent + s->fragment[f].offset;
}

#endif
