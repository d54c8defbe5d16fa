#include <math.h>
#include <string.h>

#include "base/memory.h"
#include "exchange/peers_private.h"

/* Modelled seconds of a layer's forward pass per element, for tuning sizes: a multiply-add for each sample. */
#define MODEL_SECONDS (2 * GG_USUAL_BATCH / GG_MODEL_FLOPS_PER_SECOND)

static gg_status peers_create(void *context, int local) {
    gg_peers *p = context;
    gg_exchange_options options = p->options;
    options.transport = gg_team_transport(p->team, local);
    return gg_exchange_create(&options, &p->exchange[local]);
}

gg_status gg_peers_link(gg_peers *p, const gg_strategy_options *strategy, size_t count, gg_link *memory,
                        const gg_link **out) {
    *out = NULL;
    if (!gg_strategy_tunes(strategy, gg_team_size(p->team))) return GG_OK;
    GG_TRY(gg_team_link(p->team, count * sizeof(float), memory));
    *out = memory;
    return GG_OK;
}

gg_status gg_peers_known_link(gg_peers *p, const gg_strategy_options *strategy, size_t count, gg_link *memory,
                              const gg_link **out) {
    if (gg_team_local(p->team) == gg_team_size(p->team)) return gg_peers_link(p, strategy, count, memory, out);
    const bool known = gg_strategy_tunes(strategy, gg_team_size(p->team)) && gg_team_known_link(p->team, memory);
    *out = known ? memory : NULL;
    return GG_OK;
}

gg_status gg_peers_model_forward(const gg_arena_layout *layout, const double *step_seconds, int ranks, double **forward,
                                 double *least) {
    double slowest = 0;
    GG_TRY(gg_calloc((size_t)layout->layers + 1, sizeof **forward, "modelled times", forward));
    for (int i = 0; step_seconds != NULL && i < ranks; ++i) slowest = fmax(slowest, step_seconds[i]);
    const double whole = step_seconds != NULL ? slowest / 3 : MODEL_SECONDS * (double)layout->count;
    for (int i = 0; i < layout->layers; ++i)
        (*forward)[i] = whole * (double)layout->layer[i].slice.count / (double)layout->count;
    *least = step_seconds != NULL ? 1.0 : GG_MIN_OF_USUAL;
    return GG_OK;
}

static size_t received_count(const gg_peers *p) {
    return (size_t)gg_team_most_local(p->team) * (size_t)gg_team_identities(p->team);
}

void gg_peers_forget_received(gg_peers *p) {
    for (size_t i = 0; p->received != NULL && i < received_count(p); ++i) p->received[i] = -1;
}

gg_status gg_peers_create(const gg_exchange_options *options, const double *step_seconds, gg_team *team,
                          gg_peers **out) {
    gg_status status = GG_OK;
    const gg_arena_layout *layout = options->layout;
    gg_peers *p = NULL;
    double *forward = NULL;
    gg_link link;
    *out = NULL;
    GG_TRY_CLEANUP(gg_calloc(1, sizeof *p, "peers", &p));
    gg_team_retain(team);
    p->team = team;
    p->options = *options;
    p->local = gg_team_local(team);
    GG_TRY_CLEANUP(gg_calloc((size_t)gg_team_most_local(team), sizeof *p->exchange, "exchanges", &p->exchange));
    /* Before any rank runs, because ranks that fail in a run stay failed. */
    GG_TRY_CLEANUP(gg_exchange_check(options));
    GG_TRY_CLEANUP(gg_strategy_check_open(&options->strategy, gg_team_size(team)));
    GG_TRY_CLEANUP(gg_peers_link(p, &options->strategy, layout->count, &link, &p->options.costs.link));
    for (int i = 0; step_seconds != NULL && i < gg_team_size(team); ++i)
        if (!(step_seconds[i] >= 0 && step_seconds[i] < INFINITY))
            GG_FAIL_CLEANUP(GG_ERROR_ARGUMENT, "compute_time: %g; must be at least 0", step_seconds[i]);
    if (step_seconds != NULL) {
        const size_t bytes = (size_t)gg_team_size(team) * sizeof *step_seconds;
        GG_TRY_CLEANUP(gg_alloc(bytes, "seconds of a step", &p->step_seconds));
        memcpy(p->step_seconds, step_seconds, bytes);
    }
    if (options->costs.forward == NULL) {
        GG_TRY_CLEANUP(
            gg_peers_model_forward(layout, step_seconds, gg_team_size(team), &forward, &p->options.costs.least));
        p->options.costs.forward = forward;
    }
    if (gg_team_view(team) != NULL)
        GG_TRY_CLEANUP(gg_alloc(received_count(p) * sizeof *p->received, "received steps", &p->received));
    gg_peers_forget_received(p);
    GG_TRY_CLEANUP(gg_team_run(team, peers_create, p));
    *out = p;
cleanup:
    gg_free(forward);
    if (status != GG_OK) gg_peers_destroy(p);
    return status;
}

gg_status gg_peers_settle(gg_peers *p, int local) {
    return p->settle != NULL ? p->settle(p->context, local) : gg_exchange_settle(p->exchange[local]);
}

static gg_status peers_settle(void *context, int local) { return gg_peers_settle(context, local); }

/* Settles first, because partners may still read sent messages or send new ones. */
static void settle_before_end(gg_peers *p) {
    for (int i = 0; i < p->local; ++i) {
        const gg_exchange *x = p->exchange[i];
        if (x == NULL || !gg_exchange_is_whole(x) || gg_exchange_failed(x) || gg_exchange_under_way(x, true)) return;
    }
    (void)gg_team_run(p->team, peers_settle, p);
}

void gg_peers_destroy(gg_peers *p) {
    if (p == NULL) return;
    if (p->exchange != NULL) {
        settle_before_end(p);
        for (int i = 0; i < p->local + p->buried; ++i) gg_exchange_destroy(p->exchange[i]);
    }
    gg_held_state_free(p->held);
    gg_handover_free(&p->heard);
    gg_free(p->exchange);
    gg_free(p->step_seconds);
    gg_free(p->received);
    gg_team_release(p->team);
    gg_free(p);
}

gg_status gg_peers_add(gg_peers *p, gg_transport *transport) {
    gg_status status = GG_OK;
    gg_exchange_options options = *gg_exchange_asked(p->exchange[0]);
    double *forward = NULL;
    options.transport = transport;
    GG_TRY_CLEANUP(gg_peers_model_forward(options.layout, NULL, 0, &forward, &options.costs.least));
    options.costs.forward = forward;
    GG_TRY_CLEANUP(gg_exchange_create(&options, &p->exchange[p->local]));
    p->local++;
cleanup:
    gg_free(forward);
    return status;
}

void gg_peers_remove(gg_peers *p, int local) {
    gg_exchange_destroy(p->exchange[local]);
    --p->local;
    for (int i = local; i < p->local; ++i) p->exchange[i] = p->exchange[i + 1];
}

gg_exchange *gg_peers_exchange(const gg_peers *p, int local) { return p->exchange[local]; }

int64_t gg_peers_steps(const gg_peers *peers) {
    int64_t most = 0;
    for (int i = 0; i < peers->local; ++i) {
        const int64_t step = gg_exchange_state(peers->exchange[i])->step;
        if (step > most) most = step;
    }
    return most;
}

void gg_peers_set_settle(gg_peers *p, gg_status (*settle)(void *context, int local), void *context) {
    p->settle = settle;
    p->context = context;
}

void gg_peers_set_rate(gg_peers *p, const gg_rate *rate) {
    for (int i = 0; i < p->local; ++i) gg_exchange_set_rate(p->exchange[i], rate);
}

void gg_peers_set_moments_since(gg_peers *p, int64_t step) {
    for (int i = 0; i < p->local; ++i) gg_exchange_set_moments_since(p->exchange[i], step);
}
