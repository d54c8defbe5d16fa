/* A replica at rest: completes all that is in flight, then reads its weights, their mean, and its samples. */
#include "train/replica_private.h"

static gg_status settle_samples(gg_replica *r) {
    double begin = gg_transport_now(r->transport);
    if (gg_batches_is_idle(&r->data)) return GG_OK;
    GG_TRY(gg_batches_settle(&r->data));
    gg_replica_spent_on_data(r, "settle", begin);
    return GG_OK;
}

gg_status gg_replica_settle(gg_replica *r) {
    gg_status status = GG_OK;
    if (!gg_exchange_is_whole(r->exchange))
        GG_FAIL_CLEANUP(GG_ERROR_STATE, "this replica could not be reshaped; it can only be destroyed");
    GG_TRY_CLEANUP(gg_exchange_settle(r->exchange));
    GG_TRY_CLEANUP(settle_samples(r));
    GG_TRY_CLEANUP(gg_replica_count_steps(r, 0));
cleanup:
    return gg_exchange_fail(r->exchange, status);
}

gg_status gg_replica_complete(gg_replica *r) {
    gg_status status = GG_OK;
    GG_TRY_CLEANUP(gg_replica_count_steps(r, 0));
    gg_device_finish(r->device);
    GG_TRY_CLEANUP(gg_device_check(r->device));
cleanup:
    return gg_exchange_fail(r->exchange, status);
}

gg_status gg_replica_audit(gg_replica *r, gg_sample_audit *out) {
    if (r->data.loader == NULL) return gg_fail(GG_ERROR_STATE, "audit_samples: there is no data to train on yet");
    GG_TRY(gg_replica_settle(r));
    return gg_batches_audit(&r->data, out);
}

int64_t gg_replica_slots(const gg_replica *r) {
    if (r->data.loader == NULL) return -1;
    return gg_replica_trains(r) ? gg_sharding_slots(&r->data.sharding, r->transport->rank) : 0;
}

int64_t gg_replica_sample_id(const gg_replica *r, int64_t slot) { return gg_batches_sample_id(&r->data, slot); }

bool gg_replica_broken(const gg_replica *r) { return r->broken; }

bool gg_replica_failed(const gg_replica *r) { return gg_exchange_failed(r->exchange); }

gg_status gg_replica_at(const gg_replica *r, const char *what, gg_status status) {
    return gg_error_prefix(status, "step %lld, %s: ", (long long)*r->data.step, what);
}

gg_status gg_replica_consensus(gg_replica *r, const float **weights) {
    GG_TRY(gg_replica_settle(r));
    return gg_exchange_consensus(r->exchange, weights);
}
