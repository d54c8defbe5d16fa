/* Private to the room: the trace's record of an exchange, from the begin of its first message to the use of its last. A
 * no-op if the trace is off. */
#ifndef GG_EXCHANGE_PARTS_FLIGHT_H
#define GG_EXCHANGE_PARTS_FLIGHT_H

#include "exchange/strategy.h"

typedef struct gg_flight {
    double begin;   /* the owner's clock; 0 means not begun */
    double arrived; /* time of the last message so far */
    int64_t step;
    int64_t bytes; /* arrived bytes */
    int64_t sent;  /* bytes that the rank had sent before the exchange */
    int peer;      /* -1 means several */
} gg_flight;

/* Begins the exchange now, in the current step. */
void gg_flight_begin(gg_flight *flight, const gg_strategy *owner, int peer);
/* Records a message that arrived at `when`. */
void gg_flight_arrived(gg_flight *flight, double when, size_t bytes);
/* Records that all has arrived now; the bytes become those that the rank has sent since the begin. */
void gg_flight_complete(gg_flight *flight, const gg_strategy *owner);
/* Ends the exchange now: its messages are used. The name is constant; the layers are those exchanged. */
void gg_flight_end(const gg_flight *flight, gg_strategy *owner, const char *name, int first_layer, int last_layer);
/* gg_flight_end for all layers. */
void gg_flight_end_all(const gg_flight *flight, gg_strategy *owner, const char *name);

#endif
