#include "comm/device_order.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "base/memory.h"
#include "comm/collective.h"

/* Between looks at the device while the rank is idle. */
#define LOOK_SECONDS 0.0002
/* A wait for the device itself sleeps later, after BUSY_LOOKS, and shorter. */
#define BUSY_LOOKS 100
#define NAP_SECONDS 0.00002

/* The private words of a request that is held back; the inner transport overwrites them when it is given it. */
typedef struct __attribute__((may_alias)) awaiting {
    gg_request *next;
    gg_mark mark;
    gg_sums *sums; /* SUMMING */
} awaiting;

_Static_assert(sizeof(awaiting) <= sizeof((gg_request *)0)->private_, "awaiting must fit");

typedef struct device_order {
    gg_transport transport; /* first: a gg_transport is cast to this */
    gg_transport_table table;
    gg_transport *inner, *next; /* of inner->holding */
    gg_device *device;
    gg_request *first, *last; /* held back, in the order of the calls */
    bool sends_own;           /* messages lie in memory of the device, where the host finds nothing */
} device_order;

static device_order *order_of(gg_transport *transport) { return (device_order *)transport; }
static gg_transport *order_inner(gg_transport *transport) { return order_of(transport)->inner; }
static awaiting *awaiting_of(gg_request *request) { return (awaiting *)request->private_; }

/* ---- messages that are held back ---- */

/* Gives a request to the inner transport, which begins it anew. */
static gg_status pass_on(device_order *own, gg_request *request, gg_sums *sums) {
    gg_status status = GG_OK;
    const gg_request given = *request;
    request->state = GG_REQUEST_IDLE;
    own->inner->as_it_is = own->sends_own;
    void *const at = gg_device_address(
        own->device, given.state == GG_REQUEST_RECEIVING ? given.landing : (void *)(uintptr_t)given.data);
    if (given.state == GG_REQUEST_SENDING) {
        GG_TRY_CLEANUP(gg_send(own->inner, at, given.bytes, given.peer, given.tag, request));
    } else if (given.state == GG_REQUEST_RECEIVING) {
        GG_TRY_CLEANUP(gg_receive(own->inner, at, given.capacity, given.peer, given.tag, request));
        request->exact = given.exact;
        request->own_landing = given.landing;
    } else {
        GG_TRY_CLEANUP(gg_sum(own->inner, sums, at, given.bytes / sizeof(float), request));
    }
cleanup:
    own->inner->as_it_is = false;
    return status;
}

/* Passes on the requests that the device has reached. */
static gg_status pass_reached(device_order *own) {
    own->transport.timeout = own->inner->timeout;
    own->inner->check_buffers = own->transport.check_buffers;
    while (own->first != NULL && gg_device_reached(own->device, awaiting_of(own->first)->mark)) {
        gg_request *request = own->first;
        gg_sums *sums = awaiting_of(request)->sums;
        GG_TRY(gg_device_check(own->device));
        own->first = awaiting_of(request)->next;
        GG_TRY(pass_on(own, request, sums));
    }
    return GG_OK;
}

static bool order_has_older(const device_order *own, const gg_request *request) {
    for (gg_request *one = own->first; one != NULL; one = awaiting_of(one)->next)
        if (one->state == request->state && one->peer == request->peer && one->tag == request->tag) return true;
    return false;
}

/* Passes a new request on, now or after the device work on its memory. */
static gg_status order_begin(gg_transport *transport, gg_request *request, const void *memory, gg_sums *sums) {
    device_order *own = order_of(transport);
    const bool used = gg_device_shares(own->device, memory);
    const gg_mark mark = used ? gg_device_mark(own->device, GG_QUEUE_COMPUTE) : (gg_mark){0};
    GG_TRY(pass_reached(own));
    if (own->inner->table->stands) gg_device_wait(own->device, mark);
    if (used ? own->first == NULL && gg_device_reached(own->device, mark) : !order_has_older(own, request)) {
        if (used) GG_TRY(gg_device_check(own->device));
        GG_TRY(pass_on(own, request, sums));
        return GG_OK;
    }
    *awaiting_of(request) = (awaiting){.mark = mark, .sums = sums};
    request->awaits_device = true;
    if (own->first != NULL) awaiting_of(own->last)->next = request;
    else own->first = request;
    own->last = request;
    return GG_OK;
}

static void order_forget(device_order *own, gg_request *request) {
    gg_request **place = &own->first, *before = NULL;
    for (; *place != request; place = &awaiting_of(before)->next) before = *place;
    *place = awaiting_of(request)->next;
    if (own->last == request) own->last = before;
    request->awaits_device = false;
}

/* ---- memory ---- */

/* A device may fail to share on one rank alone, and freeing is collective: so the ranks learn of it. Where the inner
 * transport stands each rank's memory is its own. */
static gg_status order_agree(device_order *own, gg_status shared, const char *what) {
    gg_status status = GG_OK;
    const unsigned char failed = shared != GG_OK;
    unsigned char *all = NULL;
    if (own->inner->table->stands) goto cleanup;
    GG_TRY_CLEANUP(gg_alloc((size_t)own->inner->size, "whose memory is shared", &all));
    GG_TRY_CLEANUP(gg_agree(own->inner, &failed, sizeof failed, all));
    for (int rank = 0; rank < own->inner->size; ++rank)
        if (all[rank] != 0 && !failed)
            GG_FAIL_CLEANUP(GG_ERROR_MEMORY, "%s: the device of rank %d does not share this memory", what, rank);
cleanup:
    gg_free(all);
    return status;
}

static gg_status order_alloc_device(gg_transport *transport, size_t bytes, const char *what, void **out) {
    gg_status status = GG_OK, made;
    device_order *own = order_of(transport);
    if (!own->sends_own) return gg_message_alloc(transport, bytes, what, out);
    made = gg_device_alloc_message(own->device, bytes, what, out);
    status = order_agree(own, made, what);
    if (made != GG_OK) status = made;
    else if (status != GG_OK) gg_device_free_host(own->device, *out), *out = NULL;
    return status;
}

static gg_status order_alloc(gg_transport *transport, size_t bytes, const char *what, void **out) {
    gg_status status = GG_OK, shared;
    device_order *own = order_of(transport);
    void *block = NULL;
    GG_TRY_CLEANUP(gg_message_alloc(own->inner, bytes, what, &block));
    shared = gg_error_prefix(gg_device_share(own->device, block, bytes), "%s: ", what);
    status = order_agree(own, shared, what);
    if (shared != GG_OK) {
        status = shared;
    } else if (status != GG_OK) {
        gg_device_unshare(own->device, block);
    }
    if (status != GG_OK) gg_message_free(own->inner, block), block = NULL;
cleanup:
    *out = block;
    return status;
}

static void order_free(gg_transport *transport, void *block) {
    device_order *own = order_of(transport);
    if (gg_device_owns_message(own->device, block)) {
        gg_device_free_host(own->device, block);
        return;
    }
    gg_device_unshare(own->device, block);
    gg_message_free(own->inner, block);
}

static void order_recycle(gg_transport *transport, bool on) { gg_message_recycle(order_inner(transport), on); }

/* ---- the table ---- */

static void order_destroy(gg_transport *transport) {
    device_order *own = order_of(transport);
    gg_transport **place = &own->inner->holding;
    while (*place != transport) place = &order_of(*place)->next;
    *place = own->next;
    gg_free(own);
}

static gg_status order_send(gg_transport *transport, const void *data, size_t bytes, int peer, int tag,
                            gg_request *request) {
    (void)bytes, (void)peer, (void)tag; /* the request's, here and below */
    return order_begin(transport, request, data, NULL);
}

static gg_status order_receive(gg_transport *transport, void *landing, size_t capacity, int peer, int tag,
                               gg_request *request) {
    (void)capacity, (void)peer, (void)tag;
    return order_begin(transport, request, landing, NULL);
}

static gg_status order_sum(gg_transport *transport, gg_sums *sums, float *data, size_t count, gg_request *request) {
    (void)count;
    return order_begin(transport, request, data, sums);
}

static gg_status order_sums_open(gg_transport *transport, const int *members, int count, gg_sums **out) {
    gg_transport *inner = order_inner(transport);
    return inner->table->sums_open(inner, members, count, out);
}

static void order_sums_close(gg_transport *transport, gg_sums *sums) {
    order_inner(transport)->table->sums_close(order_inner(transport), sums);
}

static gg_status order_test(gg_transport *transport, gg_request *request, bool *done) {
    device_order *own = order_of(transport);
    *done = false;
    GG_TRY(pass_reached(own));
    if (request->awaits_device) return GG_OK;
    GG_TRY(gg_test(own->inner, request, done));
    if (request->state != GG_REQUEST_ARRIVED) return GG_OK;
    const bool landed = request->data == request->landing;
    void *const at = request->landing; /* where the host finds it */
    request->landing = request->own_landing;
    if (!landed && !gg_device_shares(own->device, request->landing)) return GG_OK; /* no work of the device reads it */
    if (!landed) memcpy(at, request->data, request->bytes);
    request->data = request->landing;
    return GG_OK;
}

/* The inner transport finds arrived messages where it put them. */
static void order_hand_back(device_order *own, gg_request *request) {
    if (request->state != GG_REQUEST_ARRIVED || !gg_device_owns_message(own->device, request->landing)) return;
    request->landing = gg_device_address(own->device, request->landing);
    request->data = request->landing;
}

static gg_status order_release(gg_transport *transport, gg_request *request) {
    GG_TRY(pass_reached(order_of(transport)));
    order_hand_back(order_of(transport), request);
    return gg_release(order_inner(transport), request);
}

static void order_cancel(gg_transport *transport, gg_request *request) {
    if (request->awaits_device) order_forget(order_of(transport), request);
    else order_hand_back(order_of(transport), request), gg_cancel(order_inner(transport), request);
}

/* The inner transport does not know held requests. */
static gg_status order_pause(gg_transport *transport, int round, gg_request *request) {
    gg_transport *inner = order_inner(transport);
    GG_TRY(pass_reached(order_of(transport)));
    return inner->table->pause(inner, round, request != NULL && request->awaits_device ? NULL : request);
}

static gg_status order_check_peer(gg_transport *transport, int peer) {
    return order_inner(transport)->table->check_peer(order_inner(transport), peer);
}

static int order_dead(gg_transport *transport, int rank) { return gg_transport_dead(order_inner(transport), rank); }

static int order_identity(gg_transport *transport, int rank) {
    return gg_transport_identity(order_inner(transport), rank);
}

static gg_status order_progress(gg_transport *transport) {
    GG_TRY(pass_reached(order_of(transport)));
    return gg_progress(order_inner(transport));
}

static void order_set_epoch(gg_transport *transport, int64_t epoch) {
    gg_transport_set_epoch(order_inner(transport), epoch);
}

static void order_step_begun(gg_transport *transport, int64_t begun) {
    gg_transport_step_begun(order_inner(transport), begun);
}

static void order_set_service(gg_transport *transport, const gg_service *service) {
    gg_transport_set_service(order_inner(transport), service);
}

static double order_now(gg_transport *transport) { return gg_transport_now(order_inner(transport)); }

static gg_status order_compute(gg_transport *transport, double seconds) {
    return gg_transport_compute(order_inner(transport), seconds);
}

/* Held requests leave while the rank sleeps. */
static gg_status order_idle(gg_transport *transport, double seconds) {
    device_order *own = order_of(transport);
    GG_TRY(pass_reached(own));
    while (own->first != NULL && seconds > 0) {
        const double part = fmin(seconds, LOOK_SECONDS);
        GG_TRY(gg_transport_idle(own->inner, part));
        seconds -= part;
        GG_TRY(pass_reached(own));
    }
    if (seconds > 0) GG_TRY(gg_transport_idle(own->inner, seconds));
    return GG_OK;
}

/* Entries that the inner transport lacks are not offered here. */
static gg_transport_table order_table(const gg_transport_table *inner) {
    gg_transport_table table = {
        .name = inner->name,
        .checks_behind = true,
        .one_clock = inner->one_clock,
        .stands = inner->stands,
        .destroy = order_destroy,
        .alloc = order_alloc,
        .alloc_device = order_alloc_device,
        .free = order_free,
        .recycle = order_recycle,
        .send = order_send,
        .receive = order_receive,
        .test = order_test,
        .release = order_release,
        .cancel = order_cancel,
        .pause = order_pause,
        .dead = order_dead,
        .identity = order_identity,
        .progress = order_progress,
        .set_epoch = order_set_epoch,
        .step_begun = order_step_begun,
        .set_service = order_set_service,
        .now = order_now,
        .compute = order_compute,
        .idle = order_idle,
    };
    if (inner->check_peer != NULL) table.check_peer = order_check_peer;
    if (inner->sums_open != NULL) {
        table.sums_open = order_sums_open;
        table.sums_close = order_sums_close;
        table.sum = order_sum;
    }
    return table;
}

/* Whether messages lie in memory of the device: MPI says that it reads it, or $GOSSIPGRAD_MPI_CUDA. Where a device
 * gives libraries addresses, which the host reads as well, any transport may, if it is asked for. */
static gg_status order_sends_own(const gg_transport *inner, const gg_device *device, bool *sends_own) {
    const char *choice = getenv("GOSSIPGRAD_MPI_CUDA");
    const bool addresses = device->table->memory->address != NULL;
    if (choice == NULL || *choice == '\0') choice = "auto";
    const bool on = strcmp(choice, "on") == 0;
    if (!on && strcmp(choice, "auto") != 0 && strcmp(choice, "off") != 0)
        return gg_fail(GG_ERROR_ARGUMENT, "GOSSIPGRAD_MPI_CUDA: '%s'; allowed are auto, on, off", choice);
    if (addresses) *sends_own = on;
    else if (inner->check_buffers || strcmp(choice, "off") == 0) *sends_own = false; /* checks read on the host */
    else *sends_own = inner->reads_devices || (on && inner->may_read_devices);
    return GG_OK;
}

gg_status gg_device_order_create(gg_transport *inner, gg_device *device, gg_transport **out) {
    gg_status status = GG_OK;
    device_order *made = NULL;
    *out = NULL;
    if (!gg_device_is_separate(device)) goto cleanup;
    GG_TRY_CLEANUP(gg_calloc(1, sizeof *made, "messages in the order of the device's work", &made));
    made->table = order_table(inner->table);
    made->transport = (gg_transport){.table = &made->table,
                                     .rank = inner->rank,
                                     .size = inner->size,
                                     .identity = inner->identity,
                                     .epoch = inner->epoch,
                                     .node_of = inner->node_of,
                                     .timeout = inner->timeout,
                                     .check_buffers = inner->check_buffers,
                                     .mortal = inner->mortal,
                                     .reports_stalls = inner->reports_stalls};
    GG_TRY_CLEANUP(order_sends_own(inner, device, &made->sends_own));
    if (made->sends_own) gg_device_send_own(device);
    made->inner = inner;
    made->device = device;
    made->next = inner->holding;
    inner->holding = &made->transport;
    *out = &made->transport;
    made = NULL;
cleanup:
    gg_free(made);
    return status;
}

gg_status gg_device_order_flush(gg_transport *inner) {
    for (gg_transport *one = inner->holding; one != NULL; one = order_of(one)->next) {
        device_order *own = order_of(one);
        while (own->first != NULL) {
            gg_device_wait(own->device, awaiting_of(own->first)->mark);
            GG_TRY(pass_reached(own));
        }
    }
    return GG_OK;
}

/* ---- waiting for the device ---- */

typedef struct wanted_mark {
    gg_device *device;
    gg_mark mark;
    int looks;
    bool alone; /* no message can move meanwhile */
} wanted_mark;

static bool mark_is_reached(void *context, double seconds) {
    wanted_mark *wanted = context;
    if (seconds > 0 && wanted->alone) gg_device_wait(wanted->device, wanted->mark);
    else if (seconds > 0) gg_clock_sleep(++wanted->looks <= BUSY_LOOKS ? 0 : fmin(seconds, NAP_SECONDS));
    return gg_device_reached(wanted->device, wanted->mark);
}

gg_status gg_device_attend(gg_transport *transport, gg_device *device, gg_mark mark) {
    const bool alone = transport->table->stands || transport->size == 1;
    return gg_transport_attend(transport, "the work of its device", mark_is_reached,
                               &(wanted_mark){.device = device, .mark = mark, .alone = alone});
}
