/* A replica at rest: everything in flight completed, and then its weights, their mean, and its samples. */
#include <math.h>
#include <string.h>

#include "base/memory.h"
#include "comm/collective.h"
#include "train/replica_private.h"

static gg_status settle_samples(gg_replica *r) {
    gg_status status = GG_OK;
    double begin = gg_transport_now(r->options.transport);
    if (gg_batches_is_idle(&r->data)) goto cleanup;
    GG_TRY(gg_batches_settle(&r->data));
    gg_replica_spent_on_data(r, "settle", begin);
cleanup:
    return status;
}

bool gg_replica_is_whole(const gg_replica *r) { return r->strategy != NULL; }

gg_status gg_replica_settle(gg_replica *r) {
    gg_status status = GG_OK;
    if (!gg_replica_is_whole(r))
        GG_FAIL(GG_ERROR_STATE, "this replica could not be reshaped; it can only be destroyed");
    GG_TRY(r->strategy->table->settle(r->strategy));
    GG_TRY(settle_samples(r));
cleanup:
    if (status != GG_OK) r->failed = true;
    return status;
}

gg_status gg_replica_gather(gg_replica *r, int arena, float *whole) {
    gg_status status = GG_OK;
    GG_TRY(gg_replica_settle(r));
    GG_TRY(gg_strategy_gather(r->strategy, arena, whole));
cleanup:
    return status;
}

void gg_replica_load(gg_replica *r, int arena, const float *whole) { gg_strategy_load(r->strategy, arena, whole); }

/* Memory for the consensus model, allocated on first use. */
static gg_status make_consensus(gg_replica *r) {
    gg_status status = GG_OK;
    if (r->averaging != NULL) goto cleanup;
    GG_TRY(gg_message_alloc(r->options.transport, r->state.count * sizeof(float), "consensus weights", &r->consensus));
    GG_TRY(gg_allreduce_create(r->options.transport, r->device, r->state.count, GG_TAG_ALLREDUCE, NULL,
                               GG_COLLECTIVES_OWN, &r->averaging));
cleanup:
    return status;
}

/* Whether the bits are not the same on all ranks. Collective. */
static gg_status ranks_differ(gg_replica *r, const float *whole, bool *differ) {
    gg_status status = GG_OK;
    gg_transport *transport = r->options.transport;
    uint64_t own = 0xcbf29ce484222325u, *all = NULL; /* FNV-1a, of words */
    *differ = false;
    for (size_t i = 0; i < r->state.count; ++i) {
        uint32_t word;
        memcpy(&word, &whole[i], sizeof word);
        own = (own ^ word) * 0x100000001b3u;
    }
    GG_TRY(gg_alloc((size_t)transport->size * sizeof *all, "checksums of all ranks", &all));
    GG_TRY(gg_allgather(transport, &own, sizeof own, all));
    for (int i = 0; i < transport->size; ++i) *differ = *differ || all[i] != own;
cleanup:
    gg_free(all);
    return status;
}

/* The mean over the first `ranks` ranks of what each gives, in the memory of the consensus model. Collective. */
static gg_status mean_of(gg_replica *r, const float *whole, int ranks) {
    gg_status status = GG_OK;
    const int size = r->options.transport->size;
    float *share = NULL;
    GG_TRY(make_consensus(r));
    GG_TRY(gg_calloc((size_t)size, sizeof *share, "shares", &share));
    for (int i = 0; i < ranks && i < size; ++i) share[i] = 1.0f / (float)(ranks < size ? ranks : size);
    memcpy(r->consensus, whole, r->state.count * sizeof(float));
    GG_TRY(gg_allreduce_run(r->averaging, r->consensus, share));
cleanup:
    gg_free(share);
    return status;
}

gg_status gg_replica_resume(gg_replica *r, int arena, const float *whole, const float *consensus, int trained) {
    gg_status status = GG_OK;
    const gg_arena_kind kind = r->state.arena[arena].kind;
    bool differ = false;
    if (gg_strategy_keeps_equal(r->options.strategy.kind) && (kind == GG_ARENA_WEIGHT || kind == GG_ARENA_MOMENT))
        GG_TRY(gg_replica_at(r, "what the ranks go on from", ranks_differ(r, whole, &differ)));
    if (differ && consensus == NULL) {
        GG_TRY(gg_replica_at(r, "mean of the ranks' moments", mean_of(r, whole, trained)));
        consensus = r->consensus;
    }
    gg_replica_load(r, arena, differ ? consensus : whole);
cleanup:
    if (status != GG_OK) r->failed = true;
    return status;
}

gg_status gg_replica_audit(gg_replica *r, gg_sample_audit *out) {
    gg_status status = GG_OK;
    if (r->data.loader == NULL) GG_FAIL(GG_ERROR_STATE, "audit_samples: there is no data to train on yet");
    GG_TRY(gg_replica_settle(r));
    GG_TRY(gg_batches_audit(&r->data, out));
cleanup:
    return status;
}

int64_t gg_replica_slots(const gg_replica *r) {
    if (r->data.loader == NULL) return -1;
    return gg_replica_trains(r) ? gg_sharding_slots(&r->data.sharding, r->options.transport->rank) : 0;
}

int64_t gg_replica_sample_id(const gg_replica *r, int64_t slot) { return gg_batches_sample_id(&r->data, slot); }

bool gg_replica_failed(const gg_replica *r) { return r->failed; }

gg_status gg_replica_at(const gg_replica *r, const char *what, gg_status status) {
    return gg_error_prefix(status, "step %lld, %s: ", (long long)r->state.step, what);
}

/* The mean of the replicas that train. */
static gg_status replica_average(gg_replica *r, const float **weights) {
    gg_status status = GG_OK;
    GG_TRY(gg_replica_settle(r));
    if (r->options.transport->size == 1) {
        *weights = gg_state_weights(&r->state);
        goto cleanup;
    }
    GG_TRY(make_consensus(r));
    memcpy(r->consensus, gg_state_weights(&r->state), r->state.count * sizeof(float));
    GG_TRY(gg_replica_at(r, "mean of the replicas", gg_allreduce_run(r->averaging, r->consensus, r->equal_share)));
    *weights = r->consensus;
cleanup:
    return status;
}

gg_status gg_replica_consensus(gg_replica *r, const float **weights) {
    gg_status status = GG_OK;
    if (r->strategy->model == NULL) {
        status = replica_average(r, weights);
        goto cleanup;
    }
    GG_TRY(gg_replica_settle(r));
    GG_TRY(make_consensus(r));
    GG_TRY(gg_replica_at(r, "the strategy's model", r->strategy->model->read(r->strategy, r->consensus)));
    *weights = r->consensus;
cleanup:
    return status;
}

gg_status gg_replica_adopt_consensus(gg_replica *r) {
    gg_status status = GG_OK;
    const float *weights = NULL;
    GG_TRY(gg_replica_consensus(r, &weights));
    if (weights != gg_state_weights(&r->state)) gg_replica_load(r, GG_WEIGHTS, weights);
cleanup:
    return status;
}

void gg_replica_set_rate(gg_replica *r, const gg_rate *rate) { r->options.optimizer.rate = *rate; }

void gg_replica_set_consensus(gg_replica *r, const float *weights) {
    if (r->strategy->model != NULL) r->strategy->model->write(r->strategy, weights);
}

/* Sum of squares of a - b (b NULL: of a) over what is trained: statistics are left out. */
static double trained_squares(gg_replica *r, const float *a, const float *b) {
    double sum = 0;
    for (int i = 0; i < r->updater.groups; ++i) {
        const gg_group *group = &r->updater.group[i];
        if (!group->statistic)
            sum += r->device->table->sum_squares(r->device, group->end - group->begin, a + group->begin,
                                                 b != NULL ? b + group->begin : NULL);
    }
    return sum;
}

double gg_replica_residue(gg_replica *r) {
    const float *residue = gg_state_residue(&r->state), *weights = gg_state_weights(&r->state);
    const double whole = trained_squares(r, weights, NULL);
    double rest = residue != NULL ? trained_squares(r, residue, NULL) : 0;
    int copies = 0;
    for (int i = 0; i < r->state.arenas; ++i) {
        const gg_arena *arena = &r->state.arena[i];
        if (arena->kind != GG_ARENA_COPY || trained_squares(r, arena->data, NULL) == 0) continue; /* not begun */
        rest += trained_squares(r, weights, arena->data);
        ++copies;
    }
    return whole != 0 ? sqrt(rest / (copies > 1 ? copies : 1) / whole) : 0; /* NaN stays NaN */
}

gg_status gg_replica_distance(gg_replica *r, double *distance) {
    gg_status status = GG_OK;
    const float *mean = NULL;
    GG_TRY(replica_average(r, &mean));
    double distance_squared = gg_replica_trains(r) ? trained_squares(r, gg_state_weights(&r->state), mean) : 0;
    double whole = trained_squares(r, mean, NULL);
    double own = whole != 0 ? sqrt(distance_squared / whole) : 0; /* NaN stays NaN */
    GG_TRY(gg_replica_at(r, "consensus distance", gg_allreduce_doubles(r->options.transport, &own, 1)));
    *distance = own / r->workers;
cleanup:
    return status;
}
