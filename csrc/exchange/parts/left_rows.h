/* Private to the room: of the sum of packed messages the parts of large linear weights, which are left to the next
 * forward pass where that can make rows current as it reads them (gg_weight_rows). All of one packing. */
#ifndef GG_EXCHANGE_PARTS_LEFT_ROWS_H
#define GG_EXCHANGE_PARTS_LEFT_ROWS_H

#include "exchange/codec/packed.h"

typedef struct gg_left_rows {
    const gg_packing *packing; /* borrowed, as are the next two */
    gg_pack_pieces *pieces;
    const void *const *message; /* as they are up to the last part that is left */
    int messages;
    /* Of each segment; NULL: nothing is ever left. */
    bool *may;   /* it be left */
    bool *asked; /* since the last sum somebody has said that the next forward pass makes its rows */
    bool *left;
    int count;            /* of segments that are left */
    int making;           /* the one whose rows are made */
    gg_pack_piece *piece; /* where what is left goes */
    void *context;
} gg_left_rows;

gg_status gg_left_rows_create(const gg_packing *packing, gg_pack_pieces *pieces, const void *const *message,
                              int messages, gg_left_rows *out);
void gg_left_rows_destroy(gg_left_rows *rows); /* all zero is fine */

/* Elements of the segments that have been asked for. */
size_t gg_left_rows_asked(const gg_left_rows *rows);

/* The sum is there. What has been asked for is left, if `leaves`, and goes to `piece` when it is needed: of each
 * segment whether it is, for gg_unpack_pieces. Nothing is asked for any more. */
const bool *gg_left_rows_leave(gg_left_rows *rows, bool leaves, gg_pack_piece *piece, void *context);

/* Passes on what is left of a layer, or of GG_ALL_LAYERS. made: where it may be left in parts, and was, says how to
 * make them; NULL: now. asks: that it be left the next time. */
void gg_left_rows_need(gg_left_rows *rows, int layer, bool asks, gg_weight_rows *made);

#endif
