#include "exchange/parts/packed_pieces.h"

#include "base/memory.h"

gg_status gg_packed_pieces_create(gg_packed_pieces *p) {
    const gg_packing *packing = p->packing;
    const int ranks = p->messages->group->size;
    GG_TRY(gg_pack_pieces_create(packing->device, packing->segment, packing->segments, ranks, &p->pieces));
    return gg_calloc((size_t)ranks, sizeof *p->message, "packed messages", &p->message);
}

void gg_packed_pieces_destroy(gg_packed_pieces *p) {
    gg_pack_pieces_destroy(p->pieces);
    gg_free(p->message);
}

gg_status gg_packed_pieces_take(gg_packed_pieces *p, int from, const void *message, size_t bytes) {
    if (from != p->messages->group->rank) GG_TRY(gg_packed_check(p->packing, message, bytes));
    p->message[from] = message;
    return GG_OK;
}

static void pass_piece(void *context, size_t offset, size_t count, const float *sum, gg_lines filled) {
    gg_packed_pieces *p = context;
    p->piece(p->context, offset, count, sum, filled);
    gg_packed_source_progress(p->source, count);
}

gg_status gg_packed_pieces_deliver(gg_packed_pieces *p, gg_pack_piece *piece, void *context) {
    const int ranks = p->messages->group->size;
    p->piece = piece;
    p->context = context;
    gg_unpack_pieces(p->packing, p->pieces, p->message, ranks, pass_piece, p);
    GG_TRY(gg_packed_source_failure(p->source));
    for (int i = 0; i < ranks; ++i) GG_TRY(gg_packed_messages_release(p->messages, i));
    return GG_OK;
}
