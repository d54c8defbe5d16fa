#include "exchange/parts/packed_pieces.h"

#include "base/memory.h"

/* Min elements of a weight whose update is left to its next forward pass. The messages kept for it must not exceed
 * 1/KEPT_SHARE of the left weights. */
#define MIN_LEFT ((size_t)65536)
#define KEPT_SHARE 4

gg_status gg_packed_pieces_create(gg_packed_pieces *p) {
    const gg_packing *packing = p->packing;
    const int ranks = p->messages->group->size;
    GG_TRY(gg_pack_pieces_create(packing->device, packing->segment, packing->segments, ranks, &p->pieces));
    GG_TRY(gg_calloc((size_t)ranks, sizeof *p->message, "packed messages", &p->message));
    GG_TRY(gg_left_rows_create(packing, p->pieces, p->message, ranks, &p->rows));
    for (int i = 0; i < packing->segments; ++i) {
        const gg_segment *one = &packing->segment[i];
        p->rows.may[i] = gg_packed_is_weight(p->source->owner->env.layout, one) && one->count >= MIN_LEFT;
    }
    return GG_OK;
}

void gg_packed_pieces_destroy(gg_packed_pieces *p) {
    gg_pack_pieces_destroy(p->pieces);
    gg_left_rows_destroy(&p->rows);
    gg_free(p->message);
}

gg_status gg_packed_pieces_take(gg_packed_pieces *p, int from, const void *message, size_t bytes) {
    if (from != p->messages->group->rank) GG_TRY(gg_packed_check(p->packing, message, bytes));
    p->message[from] = message;
    return GG_OK;
}

static void pass_piece(void *context, size_t offset, size_t count, const float *sum, gg_lines filled) {
    gg_packed_pieces *p = context;
    p->rows.piece(p->rows.context, offset, count, sum, filled);
    gg_packed_source_progress(p->source, count);
}

gg_status gg_packed_pieces_deliver(gg_packed_pieces *p, gg_pack_piece *piece, void *context) {
    const int ranks = p->messages->group->size;
    const size_t asked = gg_left_rows_asked(&p->rows);
    const bool leaves = gg_packed_messages_bytes(p->messages) < asked / KEPT_SHARE * sizeof(float);
    const bool *left = gg_left_rows_leave(&p->rows, leaves, piece, context);
    if (p->rows.count > 0) gg_packed_messages_keep(p->messages, p->message);
    gg_unpack_pieces(p->packing, p->pieces, p->message, ranks, left, pass_piece, p);
    GG_TRY(gg_packed_source_failure(p->source));
    for (int i = 0; i < ranks; ++i) GG_TRY(gg_packed_messages_release(p->messages, i));
    return GG_OK;
}

/* The arrays that an update of the segment reads. */
static void name_used(const gg_packed_pieces *p, const gg_segment *one, gg_weight_rows *rows) {
    const gg_state *state = p->source->owner->env.state;
    for (int i = 0; i < state->arenas && rows->used < GG_MAX_USED_NEXT; ++i) {
        const gg_arena *arena = &state->arena[i];
        if (arena->kind == GG_ARENA_WEIGHT || (arena->kind == GG_ARENA_MOMENT && p->source->equal_share == NULL))
            rows->used_next[rows->used++] = arena->data + one->offset;
    }
}

void gg_packed_pieces_need(gg_packed_pieces *p, int layer, bool asks, gg_weight_rows *rows) {
    gg_left_rows_need(&p->rows, layer, asks, rows);
    if (rows != NULL && rows->make != NULL) name_used(p, &p->packing->segment[p->rows.making], rows);
}

bool gg_packed_pieces_may_leave(const gg_packed_pieces *p) {
    for (int i = 0; p->rows.may != NULL && i < p->packing->segments; ++i)
        if (p->rows.may[i]) return true;
    return false;
}

bool gg_packed_pieces_asked(const gg_packed_pieces *p) {
    return p->rows.may != NULL && gg_left_rows_asked(&p->rows) > 0;
}
