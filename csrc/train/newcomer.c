#include "train/newcomer.h"

#include <string.h>

#include "base/memory.h"
#include "base/parallel.h"
#include "comm/collective.h"
#include "train/costs.h"
#include "train/replica_private.h"
#include "train/trainer_private.h"

/* The numbers that a donor says; the divisions follow, each its ranks and what they have read. */
enum {
    STEP = 0,
    PUSH_SUM_SINCE,
    MOMENTS_SINCE,
    MISSED,
    ELEMENTS,
    ARENAS,
    STEPS, /* of the epoch, as counted */
    BATCH,
    EPOCH,
    NEXT,
    DIVISIONS,
    NUMBERS, /* all, with the divisions' */
    TEXT,    /* bytes */
    LINKED,
    LINK,
    INHERITED = LINK + (sizeof(gg_link) + 7) / 8,
    HEAD = INHERITED + (sizeof(gg_progress_counts) + 7) / 8
};

void gg_handover_free(gg_handover *heard) {
    gg_free(heard->number);
    gg_free(heard->text);
    *heard = (gg_handover){0};
}

/* An arena that a newcomer copies. */
static bool copied(const gg_arena *arena) {
    return arena->kind != GG_ARENA_GRADIENT && arena->kind != GG_ARENA_RESIDUE && arena->kind != GG_ARENA_COPY;
}

static int copied_arenas(const gg_state *state) {
    int count = 0;
    for (int i = 0; i < state->arenas; ++i) count += copied(&state->arena[i]);
    return count;
}

/* ---- the donor ---- */

static gg_status say(gg_replica *r, const gg_handover *given, int64_t **out) {
    const gg_state *state = gg_exchange_state(r->exchange);
    const gg_position at = gg_replica_position(r);
    int64_t count = HEAD, *number;
    for (int k = 0; k < at.divisions; ++k) count += 1 + at.division[k].ranks;
    GG_TRY(gg_calloc((size_t)count, sizeof *number, "a position", &number));
    *out = number;
    number[STEP] = state->step;
    number[PUSH_SUM_SINCE] = state->push_sum_since;
    number[MOMENTS_SINCE] = gg_exchange_asked(r->exchange)->optimizer.moments_since;
    number[MISSED] = state->missed;
    number[ELEMENTS] = (int64_t)state->count;
    number[ARENAS] = copied_arenas(state);
    number[STEPS] = r->counts.steps;
    number[BATCH] = r->data.options.batch;
    number[EPOCH] = at.epoch;
    number[NEXT] = at.next;
    number[DIVISIONS] = at.divisions;
    number[NUMBERS] = count;
    number[TEXT] = (int64_t)given->bytes;
    number[LINKED] = given->linked;
    memcpy(&number[LINK], &given->link, sizeof given->link);
    memcpy(&number[INHERITED], &given->inherited, sizeof given->inherited);
    int64_t *next = number + HEAD;
    for (int k = 0; k < at.divisions; ++k) {
        *next++ = at.division[k].ranks;
        memcpy(next, at.division[k].read, (size_t)at.division[k].ranks * sizeof *next);
        next += at.division[k].ranks;
    }
    return GG_OK;
}

static gg_status give_all(gg_replica *r, int to, const gg_handover *given) {
    gg_status status = GG_OK;
    const gg_state *state = gg_exchange_state(r->exchange);
    const int own = r->transport->rank;
    const size_t bytes = state->count * sizeof(float);
    int64_t *number = NULL;
    float *arena = NULL;
    GG_TRY_CLEANUP(say(r, given, &number));
    GG_TRY_CLEANUP(gg_transfer(r->transport, number, HEAD * sizeof *number, own, to));
    if (number[NUMBERS] > HEAD)
        GG_TRY_CLEANUP(
            gg_transfer(r->transport, number + HEAD, (size_t)(number[NUMBERS] - HEAD) * sizeof *number, own, to));
    if (given->bytes > 0) GG_TRY_CLEANUP(gg_transfer(r->transport, given->text, given->bytes, own, to));
    GG_TRY_CLEANUP(gg_alloc(bytes, "an arena", &arena));
    for (int i = 0; i < state->arenas; ++i) {
        if (!copied(&state->arena[i])) continue;
        GG_TRY_CLEANUP(gg_device_read(r->device, arena, state->arena[i].data, bytes));
        GG_TRY_CLEANUP(gg_transfer(r->transport, arena, bytes, own, to));
    }
cleanup:
    gg_free(number);
    gg_free(arena);
    return status;
}

gg_status gg_replica_give(gg_replica *r, int to, const gg_handover *given) {
    gg_progress_counts counts;
    gg_replica_counts(r, &counts); /* without the copy */
    const gg_status status = give_all(r, to, given);
    gg_replica_set_counts(r, &counts);
    return status == GG_ERROR_PEER ? GG_OK : status;
}

/* ---- the newcomer ---- */

gg_status gg_replica_hear(gg_replica *r, int from, int64_t view, gg_handover *heard) {
    gg_status status = GG_OK;
    const int own = r->transport->rank;
    int64_t head[HEAD];
    *heard = (gg_handover){0};
    gg_transport_set_epoch(r->transport, gg_view_epoch(view));
    GG_TRY_CLEANUP(gg_transfer(r->transport, head, sizeof head, from, own));
    heard->bytes = (size_t)head[TEXT];
    heard->linked = head[LINKED] != 0;
    memcpy(&heard->link, &head[LINK], sizeof heard->link);
    memcpy(&heard->inherited, &head[INHERITED], sizeof heard->inherited);
    GG_TRY_CLEANUP(gg_calloc((size_t)head[NUMBERS], sizeof *head, "a position", &heard->number));
    memcpy(heard->number, head, sizeof head);
    if (head[NUMBERS] > HEAD)
        GG_TRY_CLEANUP(
            gg_transfer(r->transport, heard->number + HEAD, (size_t)(head[NUMBERS] - HEAD) * sizeof *head, from, own));
    GG_TRY_CLEANUP(gg_alloc(heard->bytes + 1, "a donor's text", &heard->text));
    heard->text[heard->bytes] = '\0';
    if (heard->bytes > 0) GG_TRY_CLEANUP(gg_transfer(r->transport, heard->text, heard->bytes, from, own));
cleanup:
    if (status != GG_OK) gg_handover_free(heard);
    return status;
}

/* Its donor's position, with the divisions. */
static gg_status take_position(gg_replica *r, const int64_t *number) {
    gg_status status = GG_OK;
    const int workers = gg_exchange_workers(r->exchange), divisions = (int)number[DIVISIONS];
    const int64_t *next = number + HEAD;
    gg_division *division = NULL;
    int64_t *none = NULL;
    GG_TRY_CLEANUP(gg_calloc((size_t)divisions, sizeof *division, "divisions of an epoch", &division));
    GG_TRY_CLEANUP(gg_calloc((size_t)workers, sizeof *none, "samples read", &none));
    for (int k = 0; k < divisions; ++k) {
        division[k] = (gg_division){.ranks = (int)next[0], .read = next + 1};
        next += 1 + next[0];
    }
    GG_TRY_CLEANUP(gg_batches_join(&r->data, workers, number[BATCH],
                                   &(gg_position){.epoch = number[EPOCH],
                                                  .next = number[NEXT],
                                                  .begun = number[NEXT],
                                                  .done = none,
                                                  .divisions = divisions,
                                                  .division = division}));
cleanup:
    gg_free(division);
    gg_free(none);
    return status;
}

static gg_status take_arenas(gg_replica *r, int from) {
    gg_status status = GG_OK;
    const gg_state *state = gg_exchange_state(r->exchange);
    const size_t bytes = state->count * sizeof(float);
    float *arena = NULL;
    GG_TRY_CLEANUP(gg_alloc(bytes, "an arena", &arena));
    for (int i = 0; i < state->arenas; ++i) {
        if (!copied(&state->arena[i])) continue;
        GG_TRY_CLEANUP(gg_transfer(r->transport, arena, bytes, from, r->transport->rank));
        gg_exchange_load(r->exchange, i, arena);
    }
cleanup:
    gg_free(arena);
    return status;
}

gg_status gg_replica_take(gg_replica *r, int from, int64_t view, const gg_exchange_costs *costs,
                          const gg_handover *heard) {
    gg_status status = GG_OK;
    const int64_t *number = heard->number;
    gg_progress_counts counts = {.steps = number[STEPS]};
    GG_TRY_CLEANUP(gg_replica_renew_exchange(r, costs, view));
    gg_state *state = gg_exchange_state(r->exchange);
    if ((int64_t)state->count != number[ELEMENTS] || copied_arenas(state) != number[ARENAS])
        GG_FAIL_CLEANUP(
            GG_ERROR_ARGUMENT,
            "a newcomer with %d arrays of %zu elements; allowed: the network and the optimiser of the group, "
            "which has %lld of %lld",
            copied_arenas(state), state->count, (long long)number[ARENAS], (long long)number[ELEMENTS]);
    GG_TRY_CLEANUP(take_arenas(r, from));
    state->step = number[STEP];
    state->push_sum_since = number[PUSH_SUM_SINCE];
    state->missed = number[MISSED] != 0;
    gg_exchange_set_moments_since(r->exchange, number[MOMENTS_SINCE]);
    GG_TRY_CLEANUP(take_position(r, number));
    gg_replica_reset_carried(r);
    GG_TRY_CLEANUP(gg_replica_plan_next(r));
    gg_replica_set_counts(r, &counts);
cleanup:
    return gg_exchange_fail(r->exchange, status);
}

/* ---- all local ranks ---- */

/* A replica like the first one, for a newcomer alone in its group. */
static gg_status add_newcomer(gg_trainer *t, gg_transport *transport) {
    const gg_replica *like = t->replica[0];
    gg_replica_options options = t->options;
    gg_replica **made = &t->replica[t->local];
    GG_TRY(gg_peers_add(t->peers, transport));
    options.exchange = gg_peers_exchange(t->peers, t->local);
    options.ledger = gg_team_ledger(t->team, transport->identity);
    options.step_seconds = t->seconds != NULL ? &t->seconds[transport->identity] : NULL;
    GG_TRY(gg_replica_create(&options, made));
    t->local++;
    const gg_plan_options *plans = &like->plans.options;
    gg_replica_set_algorithms(*made, plans->conv_choice, plans->conv_choices, plans->table_choice,
                              plans->table_choices);
    if (like->data.loader != NULL) GG_TRY(gg_replica_begin(*made, &like->data.set, &like->data.options));
    return gg_replica_hold(*made);
}

gg_status gg_trainer_add_newcomers(gg_trainer *t) {
    gg_status status = GG_OK;
    const gg_view *view = gg_team_view(t->team);
    const gg_float_mode former = gg_parallel_enter();
    for (int i = 0; status == GG_OK && i < view->members; ++i) {
        gg_transport *newcomer = view->donor[i] >= 0 ? gg_team_newcomer(t->team, view->member[i]) : NULL;
        if (newcomer != NULL) status = add_newcomer(t, newcomer);
    }
    gg_parallel_leave(former);
    return status;
}

static int place_of(const gg_view *view, int identity) {
    int place = 0;
    while (view->member[place] != identity) ++place;
    return place;
}

gg_status gg_trainer_give(const gg_trainer_change *c, int local) {
    const gg_trainer *t = c->trainer;
    const gg_view *view = gg_team_view(t->team);
    const int identity = gg_team_identity(t->team, local);
    gg_handover given = t->given;
    given.linked = gg_team_known_link(t->team, &given.link);
    given.inherited = t->inherited;
    for (int i = 0; i < view->members; ++i)
        if (view->donor[i] == identity) GG_TRY(gg_replica_give(t->replica[local], i, &given));
    return GG_OK;
}

static int donor_of(const gg_trainer *t, int local) {
    const gg_view *view = gg_team_view(t->team);
    return place_of(view, view->donor[place_of(view, gg_team_identity(t->team, local))]);
}

gg_status gg_trainer_take(const gg_trainer_change *c, int local) {
    gg_status status = GG_OK;
    gg_trainer *t = c->trainer;
    const int from = donor_of(t, local);
    const int64_t view = gg_team_view(t->team)->number;
    gg_handover heard = {0};
    GG_TRY_CLEANUP(gg_replica_hear(t->replica[local], from, view, &heard));
    GG_TRY_CLEANUP(gg_replica_take(t->replica[local], from, view, &c->costs, &heard));
cleanup:
    gg_handover_free(&heard);
    return status;
}

/* ---- a newcomer of its own process ---- */

gg_status gg_trainer_set_text(gg_trainer *t, const char *text, size_t bytes) {
    char *copy;
    GG_TRY(gg_alloc(bytes + 1, "a donor's text", &copy));
    memcpy(copy, text, bytes);
    gg_free(t->given.text);
    t->given.text = copy;
    t->given.bytes = bytes;
    return GG_OK;
}

gg_status gg_trainer_hear(gg_trainer *t, const char **text, size_t *bytes) {
    gg_replica *r = t->replica[0];
    if (r->held == NULL) GG_TRY(gg_replica_hold(r));
    GG_TRY(gg_team_change_view(t->team));
    gg_trainer_place_seconds(t);
    gg_handover_free(&t->heard);
    GG_TRY(gg_replica_hear(r, donor_of(t, 0), gg_team_view(t->team)->number, &t->heard));
    *text = t->heard.text;
    *bytes = t->heard.bytes;
    return GG_OK;
}

gg_status gg_trainer_join(gg_trainer *t, bool *whole) {
    gg_status status = GG_OK;
    gg_exchange_costs costs = {.link = NULL};
    double *forward = NULL;
    gg_link link;
    *whole = false;
    if (t->heard.linked) gg_team_set_link(t->team, &t->heard.link);
    t->inherited = t->heard.inherited;
    GG_TRY_CLEANUP(gg_tuning_costs(t->options.graph, t->step_seconds, gg_team_size(t->team), &forward, &costs));
    GG_TRY_CLEANUP(gg_peers_link(t->peers, &gg_exchange_asked(t->replica[0]->exchange)->strategy,
                                 gg_graph_arena_count(t->options.graph), &link, &costs.link));
    GG_TRY_CLEANUP(gg_replica_take(t->replica[0], donor_of(t, 0), gg_team_view(t->team)->number, &costs, &t->heard));
    gg_team_view_breaks(t->team, gg_exchange_breaks(t->replica[0]->exchange));
    gg_team_view_begin(t->team, gg_exchange_state(t->replica[0]->exchange)->step);
    gg_team_view_end(t->team);
    GG_TRY_CLEANUP(gg_team_copied(t->team, 0));
    GG_TRY_CLEANUP(gg_team_await_whole(t->team, whole));
cleanup:
    gg_free(forward);
    return status;
}
