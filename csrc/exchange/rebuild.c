#include "exchange/rebuild.h"

#include <string.h>

#include "base/memory.h"
#include "comm/collective.h"

/* A rank's training state, as whole arenas in memory of their own. */
typedef struct whole_state {
    int64_t step, push_sum_since;
    bool missed;
    int trained; /* the first ranks, which trained it */
    int arenas;
    gg_arena arena[GG_MAX_ARENAS]; /* `data` is this struct's, NULL for gradients */
    float *consensus;              /* NULL means the weights */
} whole_state;

static void whole_free(whole_state *whole) {
    for (int i = 0; i < whole->arenas; ++i) gg_free(whole->arena[i].data);
    gg_free(whole->consensus);
}

/* The elements of the old network become those of the new one; `data` is overwritten. */
static gg_status map_to(const gg_rebuild *how, gg_arena_kind kind, float *data, float **out) {
    const size_t count = how->layout->count;
    GG_TRY(gg_calloc(count, sizeof **out, "an arena of the new network", out));
    return how->map(how->context, kind, data, *out);
}

/* Copies `data`, an arena or host memory that the device shares, and maps the copy to the new network. */
static gg_status read_copy(gg_exchange *x, const gg_rebuild *how, gg_arena_kind kind, const float *data, float **out) {
    gg_status status = GG_OK;
    const size_t bytes = gg_exchange_layout(x)->count * sizeof *data;
    float *copy = NULL;
    GG_TRY_CLEANUP(gg_alloc(bytes, "an arena", &copy));
    GG_TRY_CLEANUP(gg_device_read(gg_exchange_devices(x)->device, copy, data, bytes));
    if (how->layout != NULL) GG_TRY_CLEANUP(map_to(how, kind, copy, out));
    if (how->layout != NULL) goto cleanup;
    *out = copy;
    copy = NULL;
cleanup:
    gg_free(copy);
    return status;
}

/* Reads an arena. A partitioned one is gathered: every rank then has all of it. Another network's arenas are made from
 * the old ones in place, because these are not needed any more. Collective. */
static gg_status read_arena(gg_exchange *x, const gg_rebuild *how, int arena, float **out) {
    gg_status status = GG_OK;
    const gg_arena *from = &gg_exchange_state(x)->arena[arena];
    float *whole = NULL;
    const bool partitioned = gg_exchange_is_partitioned(x, arena);
    const bool in_place = how->layout != NULL && !gg_device_is_separate(gg_exchange_devices(x)->device);
    if (!partitioned && in_place) GG_TRY_CLEANUP(map_to(how, from->kind, from->data, out));
    if (!partitioned && !in_place) GG_TRY_CLEANUP(read_copy(x, how, from->kind, from->data, out));
    if (!partitioned) goto cleanup;
    GG_TRY_CLEANUP(gg_alloc(gg_exchange_state(x)->count * sizeof *whole, from->name, &whole));
    GG_TRY_CLEANUP(gg_exchange_gather(x, arena, whole));
    if (how->layout != NULL) GG_TRY_CLEANUP(map_to(how, from->kind, whole, out));
    if (how->layout != NULL) goto cleanup;
    *out = whole;
    whole = NULL;
cleanup:
    gg_free(whole);
    return status;
}

/* Reads all state that the rank keeps, mapped to the new network; shared: the consensus, too. Settled. Collective. */
static gg_status whole_read(gg_exchange *x, const gg_rebuild *how, bool shared, whole_state *out) {
    const gg_state *state = gg_exchange_state(x);
    const float *consensus = NULL;
    out->step = state->step;
    out->missed = state->missed;
    const bool mixes_on =
        how->strategy == NULL || gg_strategy_mixes_alike(&gg_exchange_asked(x)->strategy, how->strategy);
    out->push_sum_since = mixes_on ? state->push_sum_since : state->step;
    out->trained = gg_exchange_workers(x);
    if (shared) GG_TRY(gg_exchange_consensus(x, &consensus));
    if (consensus != NULL && consensus != gg_state_weights(state))
        GG_TRY(read_copy(x, how, GG_ARENA_WEIGHT, consensus, &out->consensus));
    for (int i = 0; i < state->arenas; ++i) {
        gg_arena *arena = &out->arena[out->arenas++];
        *arena = state->arena[i];
        arena->data = NULL;
        if (arena->kind != GG_ARENA_GRADIENT) GG_TRY(read_arena(x, how, i, &arena->data));
    }
    return GG_OK;
}

static const float *find_named(const whole_state *whole, const char *name, const float *otherwise) {
    for (int i = 0; i < whole->arenas; ++i)
        if (strcmp(whole->arena[i].name, name) == 0) return whole->arena[i].data;
    return otherwise;
}

/* Loads the rank's own arenas. Copies stay zero, and what a rank alone has not had: residues and bases. */
static void own_load(gg_exchange *x, const whole_state *whole) {
    for (int i = 0; i < gg_exchange_state(x)->arenas; ++i) {
        const gg_arena *arena = &gg_exchange_state(x)->arena[i];
        const float *data = find_named(whole, arena->name, NULL);
        if (arena->kind != GG_ARENA_GRADIENT && arena->kind != GG_ARENA_COPY && data != NULL)
            gg_exchange_load(x, i, data);
    }
}

/* An arena that there was not before begins at zero, outer weights as the consensus. Collective. */
static gg_status whole_load(gg_exchange *x, const whole_state *whole) {
    gg_status status = GG_OK;
    float *zeros = NULL;
    GG_TRY_CLEANUP(gg_calloc(gg_exchange_state(x)->count, sizeof *zeros, "an arena of zeros", &zeros));
    const float *model = whole->consensus != NULL ? whole->consensus : whole->arena[GG_WEIGHTS].data;
    gg_exchange_set_consensus(x, model);
    for (int i = 0; i < gg_exchange_state(x)->arenas; ++i) {
        const gg_arena *arena = &gg_exchange_state(x)->arena[i];
        const float *data = find_named(whole, arena->name, arena->kind == GG_ARENA_OUTER ? model : zeros);
        if (arena->kind == GG_ARENA_GRADIENT) continue;
        const float *consensus = arena->kind == GG_ARENA_WEIGHT ? model : NULL;
        GG_TRY_CLEANUP(gg_exchange_resume(x, i, data, consensus, whole->trained));
    }
cleanup:
    gg_free(zeros);
    return status;
}

static bool has_unsent(gg_exchange *x) {
    const gg_state *state = gg_exchange_state(x);
    for (int i = 0; i < state->arenas; ++i)
        if (state->arena[i].kind == GG_ARENA_RESIDUE || state->arena[i].kind == GG_ARENA_COPY) return true;
    return false;
}

/* True if residues, bases and copies stay valid: for one quantity, equal partners and equal parameters. */
static bool sends_alike(gg_exchange *x, const gg_strategy_options *b) {
    const gg_strategy_options *a = &gg_exchange_asked(x)->strategy;
    return gg_strategy_sends_alike(a, b) &&
           gg_compression_leaves_the_same(gg_exchange_layout(x), &a->compression, &b->compression);
}

gg_status gg_exchange_check_rebuild(gg_exchange *x, const gg_strategy_options *strategy) {
    GG_TRY(gg_strategy_check_open(strategy, gg_exchange_transport(x)->size));
    if (has_unsent(x) && !sends_alike(x, strategy))
        return gg_fail(
            GG_ERROR_ARGUMENT,
            "reshape: what %s has compressed and not sent yet would mean something else, or be lost, with %s as it "
            "is wanted; allowed with compression: the same strategy, partners and compressed parameters",
            gg_strategy_name(gg_exchange_asked(x)->strategy.kind), gg_strategy_name(strategy->kind));
    return GG_OK;
}

gg_status gg_exchange_rebuild(gg_exchange *x, const gg_rebuild *how) {
    gg_status status = GG_OK;
    whole_state whole = {0};
    gg_transport *transport = gg_exchange_transport(x);
    GG_TRY_CLEANUP(whole_read(x, how, true, &whole));
    const bool has_mean = gg_exchange_has_mean(x);
    gg_message_recycle(transport, true);
    gg_exchange_dismantle(x);
    /* No message of the new strategy meets a receive of the old one. */
    GG_TRY_CLEANUP(gg_exchange_at(x, "rebuilding", gg_barrier(transport)));
    gg_transport_set_epoch(transport, transport->epoch + 1);
    GG_TRY_CLEANUP(gg_exchange_renew(x, how->strategy, how->layout, &how->costs));
    if (has_mean) GG_TRY_CLEANUP(gg_exchange_prepare_mean(x)); /* in the memory of the old one */
    GG_TRY_CLEANUP(whole_load(x, &whole));
    gg_exchange_state(x)->step = whole.step;
    gg_exchange_state(x)->push_sum_since = whole.push_sum_since;
    gg_exchange_state(x)->missed = false;
cleanup:
    gg_message_recycle(transport, false);
    whole_free(&whole);
    if (status != GG_OK) gg_exchange_dismantle(x);
    return gg_exchange_fail(x, status);
}

/* ---- other ranks ---- */

struct gg_held_state {
    whole_state whole;
    bool has_mean;
};

gg_status gg_exchange_hold(gg_exchange *x, gg_held_state **out) {
    gg_status status = GG_OK;
    gg_held_state *held = NULL;
    *out = NULL;
    GG_TRY_CLEANUP(gg_calloc(1, sizeof *held, "the state of a rank", &held));
    GG_TRY_CLEANUP(whole_read(x, &(gg_rebuild){0}, false, &held->whole));
    held->has_mean = gg_exchange_has_mean(x);
    gg_message_recycle(gg_exchange_transport(x), true);
    gg_exchange_keep_arenas(x, true);
    gg_exchange_dismantle(x);
    *out = held;
    held = NULL;
cleanup:
    gg_held_state_free(held);
    return gg_exchange_fail(x, status);
}

void gg_held_state_free(gg_held_state *held) {
    if (held == NULL) return;
    whole_free(&held->whole);
    gg_free(held);
}

/* A settled strategy has posted no receive, and this sends nothing: so a death cannot break it. */
gg_status gg_exchange_regroup(gg_exchange *x, const gg_held_state *held, const gg_exchange_costs *costs,
                              int64_t epoch) {
    gg_status status = GG_OK;
    gg_exchange_follow_transport(x);
    gg_transport_set_epoch(gg_exchange_transport(x), epoch);
    GG_TRY_CLEANUP(gg_exchange_renew(x, NULL, NULL, costs));
    if (held->has_mean) GG_TRY_CLEANUP(gg_exchange_prepare_mean(x)); /* in the memory of the old one */
    own_load(x, &held->whole);
    gg_exchange_state(x)->step = gg_exchange_state(x)->push_sum_since = held->whole.step;
    gg_exchange_state(x)->missed = held->whole.missed;
    gg_exchange_regrouped(x);
    gg_exchange_keep_arenas(x, false);
cleanup:
    gg_message_recycle(gg_exchange_transport(x), false);
    if (status != GG_OK) gg_exchange_dismantle(x);
    return gg_exchange_fail(x, status);
}
