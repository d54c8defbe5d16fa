/* Private to the room: the sum of packed messages where it is read once, run by run in cache, and is no array.
 *
 * Of a large weight whose next forward pass can make its rows current as it reads them, the part of the sum is left to
 * that pass: an update by itself waits for memory, and beside products it hides. The messages are kept until then. */
#ifndef GG_EXCHANGE_PARTS_PACKED_PIECES_H
#define GG_EXCHANGE_PARTS_PACKED_PIECES_H

#include "exchange/parts/left_rows.h"
#include "exchange/parts/packed_messages.h"
#include "exchange/parts/packed_source.h"

/* The caller fills in the first part, and zeros behind it. */
typedef struct gg_packed_pieces {
    const gg_packing *packing;
    gg_packed_messages *messages;
    gg_packed_source *source; /* whose messages progress meanwhile */

    gg_pack_pieces *pieces; /* NULL: the sum is an array, and no other call is made */
    const void **message;   /* one a rank, checked */
    gg_left_rows rows;
} gg_packed_pieces;

gg_status gg_packed_pieces_create(gg_packed_pieces *p);
void gg_packed_pieces_destroy(gg_packed_pieces *p); /* all zero is fine */

/* Takes the message of a rank for the next sum; that of another rank is checked. */
gg_status gg_packed_pieces_take(gg_packed_pieces *p, int from, const void *message, size_t bytes);
/* All messages are there: passes the sum on, but for what is left to gg_packed_pieces_need. */
gg_status gg_packed_pieces_deliver(gg_packed_pieces *p, gg_pack_piece *piece, void *context);

/* As gg_reduction_need; asks: rows of this layer may be left. */
void gg_packed_pieces_need(gg_packed_pieces *p, int layer, bool asks, gg_weight_rows *rows);
bool gg_packed_pieces_may_leave(const gg_packed_pieces *p);
bool gg_packed_pieces_asked(const gg_packed_pieces *p);

#endif
