/* A replica with an exchange of its own. */
#ifndef GG_TESTS_REPLICA_CASE_H
#define GG_TESTS_REPLICA_CASE_H

#include "train/replica.h"

/* Native kernels, one thread. */
static inline gg_exchange_options case_options(gg_transport *transport, gg_optimizer optimizer,
                                               gg_strategy_options strategy) {
    return (gg_exchange_options){.transport = transport,
                                 .devices = {.device = {.threads = 1}, .backend = "native"},
                                 .optimizer = optimizer,
                                 .strategy = strategy};
}

static inline gg_status open_replica(const gg_graph *graph, const gg_exchange_options *asked, gg_replica **out) {
    gg_exchange_options wanted = *asked;
    gg_exchange *exchange = NULL;
    wanted.layout = gg_graph_layout(graph);
    GG_TRY(gg_exchange_create(&wanted, &exchange));
    const gg_replica_options options = {.graph = graph, .exchange = exchange, .head = {{.weight = 1}}};
    const gg_status status = gg_replica_create(&options, out);
    if (status != GG_OK) gg_exchange_destroy(exchange);
    return status;
}

static inline void close_replica(gg_replica *replica) {
    gg_exchange *exchange = replica != NULL ? gg_replica_exchange(replica) : NULL;
    gg_replica_destroy(replica);
    gg_exchange_destroy(exchange);
}

#endif
