#include "exchange/peers.h"

#include <math.h>
#include <string.h>

#include "base/memory.h"
#include "comm/collective.h"
#include "ops/registry.h"

/* Of the forward pass for a number of a layer, by which sizes are tuned: a multiply-add for each sample. */
#define MODEL_SECONDS (2 * GG_USUAL_BATCH / GG_MODEL_FLOPS_PER_SECOND)

/* Elements of a parameter from which on it is worth while to read its gradient where its maker has it. */
#define LARGE 16384

typedef struct peer {
    gg_devices devices; /* in the host's memory, where callers write gradients */
    gg_trace *trace;
    double clock_offset;
    gg_exchange *exchange;
    float *written; /* gradients, where the state's are not private; else NULL */
    bool *needed;   /* of each layer: its forward time is charged in this step */
    gg_lent *lent;  /* room for those of a layer */
    double seconds; /* of a step, which its clock is charged */
    double begun;   /* when the step began */
} peer;

struct gg_peers {
    gg_team *team;
    gg_peers_options options;
    const gg_link *link; /* during creation */
    int local;
    peer *peer;
};

/* ---- creation and destruction ---- */

/* Seconds of each layer in the forward pass, a third of `whole`, by its number of elements. */
static double forward_seconds(const gg_arena_layout *layout, int layer, double whole) {
    return whole / 3 * (double)layout->layer[layer].slice.count / (double)layout->count;
}

static gg_status create_exchange(const gg_peers *p, peer *it, gg_transport *transport) {
    gg_status status = GG_OK;
    const gg_peers_options *o = &p->options;
    double *forward = NULL, slowest = 0;
    GG_TRY_CLEANUP(gg_calloc((size_t)o->layout->layers + 1, sizeof *forward, "modelled times", &forward));
    for (int rank = 0; o->step_seconds != NULL && rank < transport->size; ++rank)
        slowest = fmax(slowest, o->step_seconds[rank]);
    const double whole = o->step_seconds != NULL ? slowest : 3 * MODEL_SECONDS * (double)o->layout->count;
    for (int layer = 0; layer < o->layout->layers; ++layer) forward[layer] = forward_seconds(o->layout, layer, whole);
    GG_TRY_CLEANUP(gg_exchange_create(&(gg_exchange_options){.layout = o->layout,
                                                             .transport = transport,
                                                             .device = it->devices.device,
                                                             .optimizer = &o->optimizer,
                                                             .strategy = o->strategy,
                                                             .seed = o->seed,
                                                             .trace = it->trace,
                                                             .forward = forward,
                                                             .least = o->step_seconds != NULL ? 1.0 : GG_LEAST_OF_USUAL,
                                                             .link = p->link},
                                      &it->exchange));
cleanup:
    gg_free(forward);
    return status;
}

static gg_status peers_create(void *context, int local) {
    gg_peers *p = context;
    peer *it = &p->peer[local];
    const gg_peers_options *o = &p->options;
    gg_transport *transport = gg_team_transport(p->team, local);
    const gg_devices_options wanted = {.device = {.threads = o->threads, .isa = o->isa}, .backend = "native"};
    GG_TRY(gg_devices_open("cpu", &wanted, &it->devices));
    GG_TRY(gg_calloc((size_t)o->layout->layers + 1, sizeof *it->needed, "layers that were needed", &it->needed));
    GG_TRY(gg_calloc((size_t)o->layout->parameters + 1, sizeof *it->lent, "lent gradients", &it->lent));
    if (o->step_seconds != NULL) it->seconds = o->step_seconds[transport->rank];
    if (!(it->seconds >= 0 && it->seconds < INFINITY))
        return gg_fail(GG_ERROR_ARGUMENT, "compute_time: %g; must be at least 0", it->seconds);
    if (o->trace > 0) {
        GG_TRY(gg_trace_create(o->trace, &it->trace));
        GG_TRY(gg_clock_offset(transport, &it->clock_offset));
    }
    GG_TRY(create_exchange(p, it, transport));
    const gg_state *state = gg_exchange_state(it->exchange);
    if (state->arena[GG_GRADIENTS].memory != GG_MEMORY_PRIVATE)
        GG_TRY(gg_calloc(state->count, sizeof *it->written, "gradients", &it->written));
    return GG_OK;
}

gg_status gg_peers_create(const gg_peers_options *options, gg_team *team, gg_peers **out) {
    gg_status status = GG_OK;
    gg_peers *p = NULL;
    gg_link link;
    *out = NULL;
    GG_TRY_CLEANUP(gg_calloc(1, sizeof *p, "peers", &p));
    gg_team_retain(team);
    p->team = team;
    p->options = *options;
    p->local = gg_team_local(team);
    GG_TRY_CLEANUP(gg_calloc((size_t)p->local, sizeof *p->peer, "peers", &p->peer));
    /* Before any rank runs, because ranks that fail in a run stay failed. */
    if (options->threads < 1) GG_FAIL_CLEANUP(GG_ERROR_ARGUMENT, "threads: %d; must be at least 1", options->threads);
    if (options->layout->layers < 1)
        GG_FAIL_CLEANUP(GG_ERROR_ARGUMENT, "layers: none; there must be at least one parameter");
    GG_TRY_CLEANUP(gg_optimizer_check(&options->optimizer));
    GG_TRY_CLEANUP(gg_strategy_check_open(&options->strategy, gg_team_size(team)));
    if (gg_strategy_tunes(&options->strategy, gg_team_size(team))) {
        GG_TRY_CLEANUP(gg_team_link(team, options->layout->count * sizeof(float), &link));
        p->link = &link;
    }
    GG_TRY_CLEANUP(gg_team_run(team, peers_create, p));
    p->link = NULL;
    p->options.step_seconds = NULL;
    *out = p;
cleanup:
    if (status != GG_OK) gg_peers_destroy(p);
    return status;
}

static gg_status peers_settle(void *context, int local) {
    const gg_peers *p = context;
    return gg_exchange_settle(p->peer[local].exchange);
}

/* Partners may still read what a rank has sent, or still send to it. */
static void settle_before_end(gg_peers *p) {
    for (int i = 0; i < p->local; ++i) {
        const gg_exchange *x = p->peer[i].exchange;
        if (x == NULL || gg_exchange_failed(x) || gg_exchange_under_way(x, true)) return;
    }
    (void)gg_team_run(p->team, peers_settle, p);
}

void gg_peers_destroy(gg_peers *p) {
    if (p == NULL) return;
    if (p->peer != NULL) settle_before_end(p);
    for (int i = 0; p->peer != NULL && i < p->local; ++i) gg_exchange_destroy(p->peer[i].exchange);
    for (int i = 0; p->peer != NULL && i < p->local; ++i) {
        gg_trace_destroy(p->peer[i].trace);
        gg_free(p->peer[i].written);
        gg_free(p->peer[i].needed);
        gg_free(p->peer[i].lent);
        gg_devices_close(&p->peer[i].devices);
    }
    gg_free(p->peer);
    gg_team_release(p->team);
    gg_free(p);
}

gg_team *gg_peers_team(const gg_peers *p) { return p->team; }
gg_exchange *gg_peers_exchange(const gg_peers *p, int local) { return p->peer[local].exchange; }
const gg_trace *gg_peers_trace(const gg_peers *p, int local) { return p->peer[local].trace; }
double gg_peers_clock_offset(const gg_peers *p, int local) { return p->peer[local].clock_offset; }
int64_t gg_peers_moments_since(const gg_peers *p) { return p->options.optimizer.moments_since; }
void gg_peers_set_moments_since(gg_peers *p, int64_t step) { p->options.optimizer.moments_since = step; }
void gg_peers_set_rate(gg_peers *p, const gg_rate *rate) {
    gg_rate_change(&p->options.optimizer.rate, rate, gg_exchange_state(p->peer[0].exchange)->step);
}

float *gg_peers_gradients(const gg_peers *p, int local) {
    const peer *it = &p->peer[local];
    return it->written != NULL ? it->written : gg_state_gradients(gg_exchange_state(it->exchange));
}

bool gg_peers_is_large(const gg_peers *p, int parameter) {
    const size_t count = p->options.layout->parameter[parameter].count;
    return count >= LARGE && count % GG_LANES == 0;
}

void gg_peers_zero_gradients(gg_peers *p, int local) {
    const gg_arena_layout *layout = p->options.layout;
    float *gradients = gg_peers_gradients(p, local);
    for (int i = 0; i < layout->parameters; ++i) {
        const gg_parameter *it = &layout->parameter[i];
        if (!gg_peers_is_large(p, i)) memset(gradients + it->offset, 0, it->count * sizeof(float));
    }
}

/* ---- a step ---- */

static void peers_record(gg_peers *p, int local, const char *name, double begin) {
    peer *it = &p->peer[local];
    if (it->trace == NULL) return;
    gg_trace_add(it->trace, &(gg_trace_span){.begin = begin,
                                             .end = gg_transport_now(gg_team_transport(p->team, local)),
                                             .name = name,
                                             .step = gg_exchange_state(it->exchange)->step,
                                             .lane = GG_LANE_COMPUTE,
                                             .index = -1});
}

gg_status gg_peers_begin(gg_peers *p, int local, const int64_t *batches) {
    peer *it = &p->peer[local];
    if (!gg_exchange_under_way(it->exchange, false)) {
        it->begun = gg_transport_now(gg_team_transport(p->team, local));
        for (int layer = 0; layer < p->options.layout->layers; ++layer) it->needed[layer] = false;
    }
    return gg_exchange_begin(it->exchange, batches);
}

gg_status gg_peers_need(gg_peers *p, int local, int layer) {
    peer *it = &p->peer[local];
    GG_TRY(gg_exchange_need(it->exchange, layer));
    if (it->needed[layer] || it->seconds == 0) return GG_OK;
    it->needed[layer] = true;
    return gg_transport_compute(gg_team_transport(p->team, local),
                                forward_seconds(p->options.layout, layer, it->seconds));
}

/* Gradients of a layer that the caller wrote go to the strategy's arena, but for those that lie elsewhere. */
static void copy_written(gg_peers *p, peer *it, int layer, int lents) {
    const gg_slice *slice = gg_arena_layout_slice(p->options.layout, layer);
    float *arena = gg_state_gradients(gg_exchange_state(it->exchange));
    size_t at = slice->offset;
    for (int i = 0; i <= lents; ++i) {
        const size_t next = i < lents ? it->lent[i].offset : slice->offset + slice->count;
        memcpy(arena + at, it->written + at, (next - at) * sizeof *arena);
        at = i < lents ? next + it->lent[i].count : next;
    }
}

/* The caller has checked that the layer may be ready. */
static gg_status peers_ready(gg_peers *p, int local, int layer, int lents) {
    peer *it = &p->peer[local];
    gg_transport *transport = gg_team_transport(p->team, local);
    if (it->seconds > 0)
        GG_TRY(gg_transport_compute(transport, 2 * forward_seconds(p->options.layout, layer, it->seconds)));
    const double begin = gg_transport_now(transport);
    if (it->written != NULL) copy_written(p, it, layer, lents);
    GG_TRY(gg_exchange_ready_from(it->exchange, layer, it->lent, lents));
    if (!gg_exchange_updates_wait(it->exchange)) peers_record(p, local, "update", begin);
    return GG_OK;
}

gg_status gg_peers_ready(gg_peers *p, int local, int layer) {
    GG_TRY(gg_exchange_check_ready(p->peer[local].exchange, layer));
    return peers_ready(p, local, layer, 0);
}

gg_status gg_peers_ready_from(gg_peers *p, int local, int layer, const float *const *gradient) {
    peer *it = &p->peer[local];
    const gg_arena_layout *layout = p->options.layout;
    int lents = 0;
    GG_TRY(gg_exchange_check_ready(it->exchange, layer));
    const int first = layout->layer[layer].first_parameter;
    for (int i = 0; i < layout->layer[layer].parameters; ++i) {
        const gg_parameter *parameter = &layout->parameter[first + i];
        if (gradient[i] == NULL) continue;
        if (!gg_peers_is_large(p, first + i) || (uintptr_t)gradient[i] % GG_ALIGNMENT != 0)
            return gg_fail(
                GG_ERROR_ARGUMENT,
                "ready: the gradient of '%s', %zu elements at address %p; allowed elsewhere than in the arena: %d "
                "elements or more, a multiple of %d, at an address that %d divides",
                parameter->name, parameter->count, (const void *)gradient[i], LARGE, GG_LANES, GG_ALIGNMENT);
        it->lent[lents++] = (gg_lent){.offset = parameter->offset, .count = parameter->count, .gradient = gradient[i]};
    }
    return peers_ready(p, local, layer, lents);
}

gg_status gg_peers_end(gg_peers *p, int local) {
    peer *it = &p->peer[local];
    const double begin = gg_transport_now(gg_team_transport(p->team, local));
    if (gg_exchange_trains(it->exchange) && gg_exchange_updates_wait(it->exchange)) {
        GG_TRY(gg_exchange_ready_all(it->exchange));
        peers_record(p, local, "update", begin);
    }
    GG_TRY(gg_exchange_end(it->exchange));
    peers_record(p, local, "step", it->begun);
    gg_exchange_state(it->exchange)->step++;
    return GG_OK;
}

gg_status gg_peers_step(gg_peers *p, int local, const int64_t *batches, bool check) {
    gg_exchange *x = p->peer[local].exchange;
    const int layers = gg_exchange_trains(x) ? p->options.layout->layers : 0;
    if (check && layers > 0) GG_TRY(gg_exchange_check_gradients(x, gg_peers_gradients(p, local)));
    GG_TRY(gg_peers_begin(p, local, batches));
    for (int layer = 0; layer < layers; ++layer) GG_TRY(gg_peers_need(p, local, layer));
    for (int layer = layers - 1; layer >= 0; --layer) {
        GG_TRY(gg_peers_ready(p, local, layer));
        GG_TRY(gg_exchange_poll(x));
    }
    GG_TRY(gg_peers_end(p, local));
    return gg_exchange_wait(x);
}
