/* A replica at rest: everything in flight completed, and then its weights, their mean, and its samples. */
#include "train/replica_private.h"

static gg_status settle_samples(gg_replica *r) {
    double begin = gg_transport_now(r->options.transport);
    if (gg_batches_is_idle(&r->data)) return GG_OK;
    GG_TRY(gg_batches_settle(&r->data));
    gg_replica_spent_on_data(r, "settle", begin);
    return GG_OK;
}

bool gg_replica_is_whole(const gg_replica *r) { return r->exchange != NULL; }

gg_status gg_replica_settle(gg_replica *r) {
    gg_status status = GG_OK;
    if (!gg_replica_is_whole(r))
        GG_FAIL_CLEANUP(GG_ERROR_STATE, "this replica could not be reshaped; it can only be destroyed");
    GG_TRY_CLEANUP(gg_exchange_settle(r->exchange));
    GG_TRY_CLEANUP(settle_samples(r));
    GG_TRY_CLEANUP(gg_replica_count_steps(r, 0));
cleanup:
    if (status != GG_OK) r->failed = true;
    return status;
}

gg_status gg_replica_complete(gg_replica *r) {
    gg_status status = GG_OK;
    GG_TRY_CLEANUP(gg_replica_count_steps(r, 0));
    gg_device_finish(r->device);
    GG_TRY_CLEANUP(gg_device_check(r->device));
cleanup:
    if (status != GG_OK) r->failed = true;
    return status;
}

gg_status gg_replica_check_arena(const gg_replica *r, int arena) { return gg_exchange_check_arena(r->exchange, arena); }

gg_status gg_replica_gather(gg_replica *r, int arena, float *whole) {
    GG_TRY(gg_replica_settle(r));
    return gg_exchange_gather(r->exchange, arena, whole);
}

void gg_replica_load(gg_replica *r, int arena, const float *whole) {
    r->loads += arena == GG_WEIGHTS;
    gg_exchange_load(r->exchange, arena, whole);
}

int64_t gg_replica_loads(const gg_replica *r) { return r->loads; }

gg_status gg_replica_resume(gg_replica *r, int arena, const float *whole, const float *consensus, int trained) {
    r->loads += arena == GG_WEIGHTS;
    const gg_status status = gg_exchange_resume(r->exchange, arena, whole, consensus, trained);
    if (status != GG_OK) r->failed = true;
    return status;
}

gg_status gg_replica_audit(gg_replica *r, gg_sample_audit *out) {
    if (r->data.loader == NULL) return gg_fail(GG_ERROR_STATE, "audit_samples: there is no data to train on yet");
    GG_TRY(gg_replica_settle(r));
    return gg_batches_audit(&r->data, out);
}

int64_t gg_replica_slots(const gg_replica *r) {
    if (r->data.loader == NULL) return -1;
    return gg_replica_trains(r) ? gg_sharding_slots(&r->data.sharding, r->options.transport->rank) : 0;
}

int64_t gg_replica_sample_id(const gg_replica *r, int64_t slot) { return gg_batches_sample_id(&r->data, slot); }

bool gg_replica_failed(const gg_replica *r) { return r->failed; }

gg_status gg_replica_at(const gg_replica *r, const char *what, gg_status status) {
    return gg_error_prefix(status, "step %lld, %s: ", (long long)*r->data.step, what);
}

gg_status gg_replica_consensus(gg_replica *r, const float **weights) {
    GG_TRY(gg_replica_settle(r));
    return gg_exchange_consensus(r->exchange, weights);
}

gg_status gg_replica_adopt_consensus(gg_replica *r) {
    const float *weights = NULL;
    GG_TRY(gg_replica_consensus(r, &weights));
    if (weights != gg_state_weights(gg_exchange_state(r->exchange))) gg_replica_load(r, GG_WEIGHTS, weights);
    return GG_OK;
}

void gg_replica_set_rate(gg_replica *r, const gg_rate *rate) {
    gg_rate_change(&r->options.optimizer.rate, rate, gg_exchange_state(r->exchange)->step);
}

void gg_replica_set_moments_since(gg_replica *r, int64_t step) { r->options.optimizer.moments_since = step; }

void gg_replica_set_consensus(gg_replica *r, const float *weights) {
    r->loads++;
    gg_exchange_set_consensus(r->exchange, weights);
}

double gg_replica_residue(gg_replica *r) {
    gg_exchange_complete_residue(r->exchange);
    return gg_exchange_residue(r->exchange);
}

gg_status gg_replica_distance(gg_replica *r, double *distance) {
    GG_TRY(gg_replica_settle(r));
    return gg_exchange_distance(r->exchange, distance);
}
