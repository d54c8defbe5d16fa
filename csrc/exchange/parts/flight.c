#include "exchange/parts/flight.h"

void gg_flight_begin(gg_flight *flight, const gg_strategy *owner, int peer) {
    if (owner->env.trace == NULL) return;
    *flight = (gg_flight){.begin = gg_transport_now(owner->env.transport),
                          .step = owner->step,
                          .sent = owner->env.transport->bytes_sent,
                          .peer = peer};
}

void gg_flight_arrived(gg_flight *flight, double when, size_t bytes) {
    if (when > flight->arrived) flight->arrived = when;
    flight->bytes += (int64_t)bytes;
}

void gg_flight_complete(gg_flight *flight, const gg_strategy *owner) {
    if (owner->env.trace == NULL) return;
    gg_flight_arrived(flight, gg_transport_now(owner->env.transport), 0);
    flight->bytes = owner->env.transport->bytes_sent - flight->sent;
}

void gg_flight_end(const gg_flight *flight, gg_strategy *owner, const char *name, int first_layer, int last_layer) {
    if (owner->env.trace == NULL) return;
    gg_trace_add(owner->env.trace,
                 &(gg_trace_span){.begin = flight->begin,
                                  .end = gg_transport_now(owner->env.transport),
                                  .arrived = flight->arrived > flight->begin ? flight->arrived : flight->begin,
                                  .name = name,
                                  .step = flight->step,
                                  .lane = GG_LANE_EXCHANGE,
                                  .index = first_layer,
                                  .last = last_layer,
                                  .peer = flight->peer,
                                  .bytes = flight->bytes});
}

void gg_flight_end_all(const gg_flight *flight, gg_strategy *owner, const char *name) {
    gg_flight_end(flight, owner, name, 0, owner->env.layout->layers - 1);
}
