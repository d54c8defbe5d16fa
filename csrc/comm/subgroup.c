#include "comm/subgroup.h"

#include <string.h>

#include "base/memory.h"

/* ---- the view ---- */

typedef struct subgroup {
    gg_transport transport; /* first: a gg_transport is cast to this */
    gg_transport *whole;
    int *member; /* rank here -> rank of the whole */
} subgroup;

static subgroup *view_of(gg_transport *transport) { return (subgroup *)transport; }
static gg_transport *subgroup_whole_of(gg_transport *transport) { return view_of(transport)->whole; }

static void subgroup_destroy(gg_transport *transport) {
    gg_free(view_of(transport)->member);
    gg_free(transport);
}

static gg_status subgroup_alloc(gg_transport *transport, size_t bytes, const char *what, void **out) {
    return gg_message_alloc(subgroup_whole_of(transport), bytes, what, out);
}

static gg_status subgroup_alloc_device(gg_transport *transport, size_t bytes, const char *what, void **out) {
    return gg_message_alloc_device(subgroup_whole_of(transport), bytes, what, out);
}

static void subgroup_free_block(gg_transport *transport, void *block) {
    gg_message_free(subgroup_whole_of(transport), block);
}

/* The request becomes one of the whole group: from here on its ranks are those of the whole group. */
static gg_status subgroup_send(gg_transport *transport, const void *data, size_t bytes, int peer, int tag,
                               gg_request *request) {
    request->state = GG_REQUEST_IDLE;
    return gg_send(subgroup_whole_of(transport), data, bytes, view_of(transport)->member[peer], tag, request);
}

static gg_status subgroup_receive(gg_transport *transport, void *landing, size_t capacity, int peer, int tag,
                                  gg_request *request) {
    request->state = GG_REQUEST_IDLE;
    return gg_receive(subgroup_whole_of(transport), landing, capacity, view_of(transport)->member[peer], tag, request);
}

static gg_status subgroup_test(gg_transport *transport, gg_request *request, bool *done) {
    return gg_test(subgroup_whole_of(transport), request, done);
}

static gg_status subgroup_release(gg_transport *transport, gg_request *request) {
    return gg_release(subgroup_whole_of(transport), request);
}
static void subgroup_cancel(gg_transport *transport, gg_request *request) {
    gg_cancel(subgroup_whole_of(transport), request);
}

static gg_status subgroup_pause_round(gg_transport *transport, int round, gg_request *request) {
    return subgroup_whole_of(transport)->table->pause(subgroup_whole_of(transport), round, request);
}

static gg_status subgroup_wait_for(gg_transport *transport, gg_request *request) {
    gg_transport *whole = subgroup_whole_of(transport);
    const int64_t *step = whole->step;
    if (transport->step != NULL) whole->step = transport->step;
    whole->waits_for[0] = transport->waits_for[0];
    whole->waits_for[1] = transport->waits_for[1];
    whole->needs_all = transport->needs_all;
    gg_status status = gg_wait(whole, request);
    whole->waits_for[0] = whole->waits_for[1] = NULL;
    whole->needs_all = NULL;
    whole->step = step;
    return status;
}

static int subgroup_dead(gg_transport *transport, int rank) {
    gg_transport *whole = subgroup_whole_of(transport);
    if (rank >= 0) return gg_transport_dead(whole, view_of(transport)->member[rank]);
    int dead = gg_transport_dead(whole, -1); /* usually nobody is */
    if (dead < 0) return dead;
    dead = -1;
    for (int i = 0; i < transport->size && dead < 0; ++i)
        dead = gg_transport_dead(whole, view_of(transport)->member[i]);
    return dead;
}

static int subgroup_identity(gg_transport *transport, int rank) {
    return gg_transport_identity(subgroup_whole_of(transport), view_of(transport)->member[rank]);
}

static void subgroup_recycle(gg_transport *transport, bool on) { gg_message_recycle(subgroup_whole_of(transport), on); }
static gg_status subgroup_progress(gg_transport *transport) { return gg_progress(subgroup_whole_of(transport)); }
static void subgroup_set_epoch(gg_transport *transport, int64_t epoch) {
    gg_transport_set_epoch(subgroup_whole_of(transport), epoch);
}
static void subgroup_step_begun(gg_transport *transport, int64_t begun) {
    gg_transport_step_begun(subgroup_whole_of(transport), begun);
}
static double subgroup_now(gg_transport *transport) { return gg_transport_now(subgroup_whole_of(transport)); }
static gg_status subgroup_compute(gg_transport *transport, double seconds) {
    return gg_transport_compute(subgroup_whole_of(transport), seconds);
}
static gg_status subgroup_idle(gg_transport *transport, double seconds) {
    return gg_transport_idle(subgroup_whole_of(transport), seconds);
}

static gg_status subgroup_sums_open(gg_transport *transport, const int *members, int count, gg_sums **out) {
    gg_transport *whole = subgroup_whole_of(transport);
    (void)members, (void)count;                                        /* all of the view: no caller needs a part */
    if (whole->table->sums_open == NULL) return gg_sum_prepare(whole); /* says so */
    return whole->table->sums_open(whole, view_of(transport)->member, transport->size, out);
}

static void subgroup_sums_close(gg_transport *transport, gg_sums *sums) {
    subgroup_whole_of(transport)->table->sums_close(subgroup_whole_of(transport), sums);
}

static gg_status subgroup_sum(gg_transport *transport, gg_sums *sums, float *data, size_t count, gg_request *request) {
    request->state = GG_REQUEST_IDLE;
    return gg_sum(subgroup_whole_of(transport), sums, data, count, request);
}

static const gg_transport_table table = {
    .name = "subgroup",
    .checks_behind = true,
    .destroy = subgroup_destroy,
    .alloc = subgroup_alloc,
    .alloc_device = subgroup_alloc_device,
    .free = subgroup_free_block,
    .recycle = subgroup_recycle,
    .send = subgroup_send,
    .receive = subgroup_receive,
    .test = subgroup_test,
    .release = subgroup_release,
    .cancel = subgroup_cancel,
    .pause = subgroup_pause_round,
    .wait = subgroup_wait_for,
    .dead = subgroup_dead,
    .identity = subgroup_identity,
    .progress = subgroup_progress,
    .set_epoch = subgroup_set_epoch,
    .step_begun = subgroup_step_begun,
    .now = subgroup_now,
    .compute = subgroup_compute,
    .idle = subgroup_idle,
    .sums_open = subgroup_sums_open,
    .sums_close = subgroup_sums_close,
    .sum = subgroup_sum,
};

gg_status gg_subgroup_create(gg_transport *whole, const int *members, int count, gg_transport **out) {
    gg_status status = GG_OK;
    subgroup *made = NULL;
    *out = NULL;
    GG_TRY_CLEANUP(gg_calloc(1, sizeof *made, "subgroup", &made));
    made->transport = (gg_transport){.table = &table,
                                     .rank = -1,
                                     .size = count,
                                     .identity = whole->identity,
                                     .reports_stalls = whole->reports_stalls}; /* its pauses; `whole` its waits */
    made->whole = whole;
    GG_TRY_CLEANUP(gg_alloc((size_t)count * sizeof(int), "members of a subgroup", &made->member));
    for (int i = 0; i < count; ++i) {
        if (members[i] < 0 || members[i] >= whole->size)
            GG_FAIL_CLEANUP(GG_ERROR_ARGUMENT, "subgroup: member %d is rank %d, expected 0 to %d", i, members[i],
                            whole->size - 1);
        made->member[i] = members[i];
        if (members[i] == whole->rank) made->transport.rank = i;
    }
    if (made->transport.rank < 0)
        GG_FAIL_CLEANUP(GG_ERROR_ARGUMENT, "subgroup: rank %d is not among its members", whole->rank);
    *out = &made->transport;
    made = NULL;
cleanup:
    if (made != NULL) subgroup_destroy(&made->transport);
    return status;
}

gg_status gg_subgroup_regroup(gg_transport *view, const int *members, int count) {
    subgroup *s = view_of(view);
    int rank = -1, *made = NULL;
    for (int i = 0; i < count; ++i)
        if (members[i] == s->whole->rank) rank = i;
    if (rank < 0) return gg_fail(GG_ERROR_ARGUMENT, "subgroup: rank %d is not among its members", s->whole->rank);
    GG_TRY(gg_alloc((size_t)count * sizeof *made, "members of a subgroup", &made));
    memcpy(made, members, (size_t)count * sizeof *made);
    gg_free(s->member);
    s->member = made;
    view->rank = rank;
    view->size = count;
    return GG_OK;
}

/* ---- nodes ---- */

static int common_divisor(int a, int b) {
    while (b != 0) {
        int rest = a % b;
        a = b;
        b = rest;
    }
    return a;
}

/* The first rank of the node on which `rank` is. */
static int node_of(const gg_transport *transport, int ranks_per_node, int rank) {
    if (ranks_per_node > 0) return rank - rank % ranks_per_node;
    return transport->node_of != NULL ? transport->node_of[rank] : 0;
}

gg_status gg_nodes_create(const gg_transport *transport, int ranks_per_node, gg_nodes *out) {
    gg_status status = GG_OK;
    gg_nodes made = {0};
    int p = transport->size, placed = 0;
    *out = made;
    if (ranks_per_node < 0)
        GG_FAIL_CLEANUP(GG_ERROR_ARGUMENT, "ranks_per_node: %d; must be at least 1, or 0 for those that share memory",
                        ranks_per_node);
    GG_TRY_CLEANUP(gg_alloc((size_t)p * sizeof(int), "nodes", &made.member));
    for (int node = 0; node < p; ++node) {
        int before = placed, end = ranks_per_node > 0 && ranks_per_node < p - node ? node + ranks_per_node : p;
        if (node_of(transport, ranks_per_node, node) != node) continue;
        for (int rank = node; rank < end; ++rank)
            if (node_of(transport, ranks_per_node, rank) == node) made.member[placed++] = rank;
        made.size = common_divisor(made.size, placed - before);
    }
    made.count = p / made.size;
    *out = made;
    made.member = NULL;
cleanup:
    gg_nodes_destroy(&made);
    return status;
}

void gg_nodes_destroy(gg_nodes *nodes) {
    gg_free(nodes->member);
    *nodes = (gg_nodes){0};
}
