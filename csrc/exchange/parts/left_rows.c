#include "exchange/parts/left_rows.h"

#include "base/memory.h"
#include "exchange/parts/reduction.h"

gg_status gg_left_rows_create(const gg_packing *packing, gg_pack_pieces *pieces, const void *const *message,
                              int messages, gg_left_rows *out) {
    const size_t n = (size_t)packing->segments;
    *out = (gg_left_rows){.packing = packing, .pieces = pieces, .message = message, .messages = messages};
    GG_TRY(gg_calloc(n, sizeof(bool), "segments", &out->may));
    GG_TRY(gg_calloc(n, sizeof(bool), "segments", &out->asked));
    return gg_calloc(n, sizeof(bool), "segments", &out->left);
}

void gg_left_rows_destroy(gg_left_rows *rows) {
    gg_free(rows->may);
    gg_free(rows->asked);
    gg_free(rows->left);
}

size_t gg_left_rows_asked(const gg_left_rows *rows) {
    size_t elements = 0;
    for (int i = 0; i < rows->packing->segments; ++i)
        if (rows->asked[i]) elements += rows->packing->segment[i].count;
    return elements;
}

const bool *gg_left_rows_leave(gg_left_rows *rows, bool leaves, gg_pack_piece *piece, void *context) {
    rows->piece = piece;
    rows->context = context;
    for (int i = 0; i < rows->packing->segments; ++i) {
        rows->left[i] = leaves && rows->asked[i];
        rows->asked[i] = false;
        if (rows->left[i]) ++rows->count;
    }
    return rows->left;
}

/* gg_weight_rows.make */
static void make_rows(void *context, size_t count) {
    gg_left_rows *rows = context;
    gg_unpack_up_to(rows->packing, rows->pieces, rows->making, count, rows->piece, rows->context);
    if (count < rows->packing->segment[rows->making].count) return;
    rows->left[rows->making] = false;
    --rows->count;
}

static void need_segment(gg_left_rows *rows, int i, bool asks, gg_weight_rows *made) {
    if (asks && rows->may[i]) rows->asked[i] = true;
    if (!rows->left[i]) return;
    gg_unpack_begin(rows->packing, rows->pieces, rows->message, rows->messages, i);
    rows->making = i;
    if (made != NULL) *made = (gg_weight_rows){.make = make_rows, .context = rows};
    else make_rows(rows, rows->packing->segment[i].count);
}

void gg_left_rows_need(gg_left_rows *rows, int layer, bool asks, gg_weight_rows *made) {
    if (rows->may == NULL || (rows->count == 0 && !asks)) return;
    for (int i = 0; i < rows->packing->segments; ++i)
        if (layer == GG_ALL_LAYERS || rows->packing->segment[i].layer == layer) need_segment(rows, i, asks, made);
}
