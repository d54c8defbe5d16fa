/* Private to the room: parts of a sum of packed messages, those of large linear weights, that are left to the next
 * forward pass. That pass makes rows current as it reads them (gg_weight_rows). All parts belong to one packing. */
#ifndef GG_EXCHANGE_PARTS_LEFT_ROWS_H
#define GG_EXCHANGE_PARTS_LEFT_ROWS_H

#include "exchange/codec/packed.h"

typedef struct gg_left_rows {
    const gg_packing *packing; /* borrowed, as are the next two */
    gg_pack_pieces *pieces;
    const void *const *message; /* unchanged until the last left part is delivered */
    int messages;
    /* One a segment. NULL means that nothing is ever left. */
    bool *may;   /* the segment may be left */
    bool *asked; /* since the last sum: the next forward pass will make its rows */
    bool *left;
    int count;            /* segments that are left */
    int making;           /* the segment whose rows are being made */
    gg_pack_piece *piece; /* receives the left parts */
    void *context;
} gg_left_rows;

gg_status gg_left_rows_create(const gg_packing *packing, gg_pack_pieces *pieces, const void *const *message,
                              int messages, gg_left_rows *out);
void gg_left_rows_destroy(gg_left_rows *rows); /* all zero is a no-op */

/* Elements of the asked segments. */
size_t gg_left_rows_asked(const gg_left_rows *rows);

/* Begins with a complete sum. If `leaves`, the asked segments are left, and go to `piece` when they are needed. Returns
 * for each segment if it is left, for gg_unpack_pieces. Clears `asked`. */
const bool *gg_left_rows_leave(gg_left_rows *rows, bool leaves, gg_pack_piece *piece, void *context);

/* Delivers the left parts of a layer, or of GG_ALL_LAYERS. made: receives a function that makes the rows, if the part
 * was left; NULL delivers now. asks: the next sum may leave the part. */
void gg_left_rows_need(gg_left_rows *rows, int layer, bool asks, gg_weight_rows *made);

#endif
