#include "exchange/handover.h"

#include <string.h>

#include "base/memory.h"
#include "comm/collective.h"

/* The numbers with which a donor begins; the owner's and the text follow. */
enum {
    STEP = 0,
    PUSH_SUM_SINCE,
    MOMENTS_SINCE,
    MISSED,
    ELEMENTS,
    ARENAS,
    NUMBERS,
    TEXT, /* bytes */
    LINKED,
    LINK,
    HEAD = LINK + (sizeof(gg_link) + 7) / 8
};

void gg_handover_free(gg_handover *handover) {
    gg_free(handover->number);
    gg_free(handover->text);
    *handover = (gg_handover){0};
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

static gg_status say(gg_exchange *x, int to, const gg_handover *given) {
    gg_status status = GG_OK;
    const gg_state *state = gg_exchange_state(x);
    gg_transport *transport = gg_exchange_transport(x);
    const int own = transport->rank;
    const size_t word = sizeof(int64_t), fixed = (size_t)given->fixed, rest = (size_t)given->numbers - fixed;
    int64_t *head = NULL;
    GG_TRY_CLEANUP(gg_calloc(HEAD + fixed, word, "a donor's numbers", &head));
    head[STEP] = state->step;
    head[PUSH_SUM_SINCE] = state->push_sum_since;
    head[MOMENTS_SINCE] = gg_exchange_asked(x)->optimizer.moments_since;
    head[MISSED] = state->missed;
    head[ELEMENTS] = (int64_t)state->count;
    head[ARENAS] = copied_arenas(state);
    head[NUMBERS] = given->numbers;
    head[TEXT] = (int64_t)given->bytes;
    head[LINKED] = given->linked;
    memcpy(&head[LINK], &given->link, sizeof given->link);
    if (fixed > 0) memcpy(&head[HEAD], given->number, fixed * word);
    GG_TRY_CLEANUP(gg_transfer(transport, head, (HEAD + fixed) * word, own, to));
    if (rest > 0) GG_TRY_CLEANUP(gg_transfer(transport, given->number + fixed, rest * word, own, to));
    if (given->bytes > 0) GG_TRY_CLEANUP(gg_transfer(transport, given->text, given->bytes, own, to));
cleanup:
    gg_free(head);
    return status;
}

static gg_status give_all(gg_exchange *x, int to, const gg_handover *given) {
    gg_status status = GG_OK;
    const gg_state *state = gg_exchange_state(x);
    gg_transport *transport = gg_exchange_transport(x);
    const size_t bytes = state->count * sizeof(float);
    float *arena = NULL;
    GG_TRY_CLEANUP(say(x, to, given));
    GG_TRY_CLEANUP(gg_alloc(bytes, "an arena", &arena));
    for (int i = 0; i < state->arenas; ++i) {
        if (!copied(&state->arena[i])) continue;
        GG_TRY_CLEANUP(gg_device_read(gg_exchange_devices(x)->device, arena, state->arena[i].data, bytes));
        GG_TRY_CLEANUP(gg_transfer(transport, arena, bytes, transport->rank, to));
    }
cleanup:
    gg_free(arena);
    return status;
}

gg_status gg_exchange_give(gg_exchange *x, int to, const gg_handover *given) {
    const gg_status status = give_all(x, to, given);
    return status == GG_ERROR_PEER ? GG_OK : status;
}

/* ---- the newcomer ---- */

static void read_head(const int64_t *head, gg_handover *heard) {
    heard->step = head[STEP];
    heard->push_sum_since = head[PUSH_SUM_SINCE];
    heard->moments_since = head[MOMENTS_SINCE];
    heard->missed = head[MISSED] != 0;
    heard->elements = head[ELEMENTS];
    heard->arenas = (int)head[ARENAS];
    heard->numbers = head[NUMBERS];
    heard->bytes = (size_t)head[TEXT];
    heard->linked = head[LINKED] != 0;
    memcpy(&heard->link, &head[LINK], sizeof heard->link);
}

gg_status gg_exchange_hear(gg_exchange *x, int from, int64_t view, int64_t fixed, gg_handover *heard) {
    gg_status status = GG_OK;
    gg_transport *transport = gg_exchange_transport(x);
    const size_t word = sizeof(int64_t), first = (size_t)fixed;
    int64_t *head = NULL;
    *heard = (gg_handover){.fixed = fixed};
    gg_exchange_follow_transport(x);
    const int own = transport->rank;
    gg_transport_set_epoch(transport, gg_view_epoch(view));
    GG_TRY_CLEANUP(gg_calloc(HEAD + first, word, "a donor's numbers", &head));
    GG_TRY_CLEANUP(gg_transfer(transport, head, (HEAD + first) * word, from, own));
    read_head(head, heard);
    GG_TRY_CLEANUP(gg_calloc((size_t)heard->numbers + 1, word, "a donor's numbers", &heard->number));
    memcpy(heard->number, &head[HEAD], first * word);
    const size_t rest = (size_t)heard->numbers - first;
    if (rest > 0) GG_TRY_CLEANUP(gg_transfer(transport, heard->number + first, rest * word, from, own));
    GG_TRY_CLEANUP(gg_calloc(heard->bytes + 1, 1, "a donor's text", &heard->text)); /* ends with a zero */
    if (heard->bytes > 0) GG_TRY_CLEANUP(gg_transfer(transport, heard->text, heard->bytes, from, own));
cleanup:
    gg_free(head);
    if (status != GG_OK) gg_handover_free(heard);
    return status;
}

static gg_status take_arenas(gg_exchange *x, int from) {
    gg_status status = GG_OK;
    const gg_state *state = gg_exchange_state(x);
    gg_transport *transport = gg_exchange_transport(x);
    const size_t bytes = state->count * sizeof(float);
    float *arena = NULL;
    GG_TRY_CLEANUP(gg_alloc(bytes, "an arena", &arena));
    for (int i = 0; i < state->arenas; ++i) {
        if (!copied(&state->arena[i])) continue;
        GG_TRY_CLEANUP(gg_transfer(transport, arena, bytes, from, transport->rank));
        gg_exchange_load(x, i, arena);
    }
cleanup:
    gg_free(arena);
    return status;
}

gg_status gg_exchange_take(gg_exchange *x, int from, const gg_handover *heard) {
    gg_state *state = gg_exchange_state(x);
    if ((int64_t)state->count != heard->elements || copied_arenas(state) != heard->arenas)
        return gg_fail(
            GG_ERROR_ARGUMENT,
            "a newcomer with %d arrays of %zu elements; allowed: the network and the optimiser of the group, "
            "which has %d of %lld",
            copied_arenas(state), state->count, heard->arenas, (long long)heard->elements);
    GG_TRY(take_arenas(x, from));
    state->step = heard->step;
    state->push_sum_since = heard->push_sum_since;
    state->missed = heard->missed;
    gg_exchange_set_moments_since(x, heard->moments_since);
    return GG_OK;
}
