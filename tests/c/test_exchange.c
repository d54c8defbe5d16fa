/* What an exchange leaves behind where it ends in the middle of a step. */
#include "base/memory.h"
#include "check.h"
#include "comm/local.h"
#include "cpu/cpu_backend.h"
#include "exchange/exchange.h"
#include "one_layer.h"

enum { WIDTH = 4 };

typedef struct setup {
    gg_graph *graph;
    gg_transport *transport;
} setup;

static void open_setup(setup *s) {
    s->graph = one_layer(WIDTH);
    CHECK_OK(gg_local_transport_create(&s->transport));
}

static void close_setup(setup *s) {
    gg_transport_destroy(s->transport);
    gg_graph_destroy(s->graph);
}

static gg_status create(const setup *s, gg_exchange **out) {
    const gg_optimizer optimizer = {.type = &gg_optimizer_sgd, .rate = {.lr = 0.5}};
    return gg_exchange_create(&(gg_exchange_options){.layout = gg_graph_layout(s->graph),
                                                     .transport = s->transport,
                                                     .devices = {.device = {.threads = 1}, .backend = "native"},
                                                     .optimizer = optimizer,
                                                     .strategy = {.kind = GG_STRATEGY_ALLREDUCE}},
                              out);
}

/* The transport outlives it, and reports the step of a wait that lasts. */
static void test_a_step_that_does_not_end(void) {
    setup s;
    const int64_t another = 7;
    open_setup(&s);
    for (int taken = 0; taken < 2; ++taken) {
        gg_exchange *x = NULL;
        CHECK_OK(create(&s, &x));
        CHECK_OK(gg_exchange_begin(x, NULL));
        CHECK(s.transport->step == &gg_exchange_state(x)->step);
        if (taken) s.transport->step = &another;
        gg_exchange_destroy(x);
        CHECK(s.transport->step == (taken ? &another : NULL));
    }
    close_setup(&s);
}

int main(void) {
    gg_cpu_register();
    const int64_t before = gg_memory_live_bytes();
    test_a_step_that_does_not_end();
    CHECK_INT(gg_memory_live_bytes(), before);
    return check_report();
}
