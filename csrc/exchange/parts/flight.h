/* Private to the room: what the trace records of an exchange, of its first message's begin until its last one is used.
 * Where the trace is off nothing is recorded. */
#ifndef GG_EXCHANGE_PARTS_FLIGHT_H
#define GG_EXCHANGE_PARTS_FLIGHT_H

#include "exchange/strategy.h"

typedef struct gg_flight {
    double begin;   /* the owner's clock; 0: not begun */
    double arrived; /* the last message so far */
    int64_t step;
    int64_t bytes; /* of what has arrived */
    int64_t sent;  /* bytes that the rank had sent before */
    int peer;      /* -1: more than one */
} gg_flight;

/* The exchange begins now, in the current step. */
void gg_flight_begin(gg_flight *flight, const gg_strategy *owner, int peer);
/* A message of it arrived at `when`. */
void gg_flight_arrived(gg_flight *flight, double when, size_t bytes);
/* All of it has arrived now; its bytes are what the rank has sent since it began. */
void gg_flight_complete(gg_flight *flight, const gg_strategy *owner);
/* What has arrived is used: the exchange is over now. The name is constant; the layers are those that it was of. */
void gg_flight_end(const gg_flight *flight, gg_strategy *owner, const char *name, int first_layer, int last_layer);
/* The same of all layers. */
void gg_flight_end_all(const gg_flight *flight, gg_strategy *owner, const char *name);

#endif
