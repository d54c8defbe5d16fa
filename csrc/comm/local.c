#include "comm/local.h"

#include "base/clock.h"
#include "base/memory.h"

/* Nothing here can wait: gg_send and gg_receive refuse every peer in a group of one. */

static void local_destroy(gg_transport *transport) { gg_free(transport); }

static gg_status local_alloc(gg_transport *transport, size_t bytes, const char *what, void **out) {
    (void)transport;
    return gg_calloc(1, bytes, what, out);
}

static void release_block(gg_transport *transport, void *block) {
    (void)transport;
    gg_free(block);
}

static gg_status local_alone(void) {
    return gg_fail(GG_ERROR_ARGUMENT, "a group of one rank has nobody to exchange messages with");
}

static gg_status local_send(gg_transport *transport, const void *data, size_t bytes, int peer, int tag,
                            gg_request *request) {
    (void)transport, (void)data, (void)bytes, (void)peer, (void)tag, (void)request;
    return local_alone();
}

static gg_status local_receive(gg_transport *transport, void *landing, size_t bytes, int peer, int tag,
                               gg_request *request) {
    (void)transport, (void)landing, (void)bytes, (void)peer, (void)tag, (void)request;
    return local_alone();
}

static gg_status local_test(gg_transport *transport, gg_request *request, bool *done) {
    (void)transport, (void)request, (void)done;
    return local_alone();
}

static gg_status local_release(gg_transport *transport, gg_request *request) {
    (void)transport, (void)request;
    return local_alone();
}

static void local_cancel(gg_transport *transport, gg_request *request) { (void)transport, (void)request; }

static gg_status local_pause_round(gg_transport *transport, int round, gg_request *request) {
    (void)transport, (void)round, (void)request;
    return local_alone();
}

static gg_status local_progress(gg_transport *transport) {
    (void)transport;
    return GG_OK;
}

static double local_now(gg_transport *transport) {
    (void)transport;
    return gg_clock_now();
}

static gg_status local_compute(gg_transport *transport, double seconds) {
    (void)transport, (void)seconds;
    return GG_OK;
}

static gg_status local_idle(gg_transport *transport, double seconds) {
    (void)transport;
    gg_clock_sleep(seconds);
    return GG_OK;
}

static const gg_transport_table table = {
    .name = "local",
    .one_clock = true,
    .destroy = local_destroy,
    .alloc = local_alloc,
    .free = release_block,
    .send = local_send,
    .receive = local_receive,
    .test = local_test,
    .release = local_release,
    .cancel = local_cancel,
    .pause = local_pause_round,
    .progress = local_progress,
    .now = local_now,
    .compute = local_compute,
    .idle = local_idle,
};

gg_status gg_local_transport_create(gg_transport **out) {
    gg_transport *made = NULL;
    *out = NULL;
    GG_TRY(gg_calloc(1, sizeof *made, "local transport", &made));
    made->table = &table;
    made->size = 1;
    *out = made;
    return GG_OK;
}
