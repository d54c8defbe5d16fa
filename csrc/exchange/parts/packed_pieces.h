/* Private to the room: the sum of packed messages, read once, run by run in cache, without an array. */
#ifndef GG_EXCHANGE_PARTS_PACKED_PIECES_H
#define GG_EXCHANGE_PARTS_PACKED_PIECES_H

#include "exchange/parts/packed_messages.h"
#include "exchange/parts/packed_source.h"

/* The caller fills in the first part, and zeroes the rest. */
typedef struct gg_packed_pieces {
    const gg_packing *packing;
    gg_packed_messages *messages;
    gg_packed_source *source; /* lets its messages progress meanwhile */

    gg_pack_pieces *pieces; /* NULL means that the sum is an array: no other call is made */
    const void **message;   /* one a rank, checked */
    gg_pack_piece *piece;   /* receives the sum */
    void *context;
} gg_packed_pieces;

gg_status gg_packed_pieces_create(gg_packed_pieces *p);
void gg_packed_pieces_destroy(gg_packed_pieces *p); /* all zero is a no-op */

/* Takes a rank's message for the next sum; checks it if it is another rank's. */
gg_status gg_packed_pieces_take(gg_packed_pieces *p, int from, const void *message, size_t bytes);
/* Passes on the sum after all messages have arrived. */
gg_status gg_packed_pieces_deliver(gg_packed_pieces *p, gg_pack_piece *piece, void *context);

#endif
