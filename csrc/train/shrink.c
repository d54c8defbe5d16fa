#include "train/shrink.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

#include "apoptosis/selection.h"
#include "base/memory.h"
#include "base/parallel.h"
#include "comm/collective.h"
#include "train/replica_private.h"
#include "train/trainer_private.h"

struct gg_shrink_plan {
    const gg_graph *graph; /* of the trainer, in this step */
    int64_t step, loads;   /* gg_exchange_loads of all local ranks */
    gg_units *units;
    gg_merges *merges;
    gg_selection *selection; /* NULL if no unit is removed, as the graph */
    gg_graph *small;
    /* The consensus model's, and the smaller network's; NULL once the plan is made. */
    float *weights, *selected;
    double loss[2]; /* before and afterwards */
    bool accepted;
    uint64_t hash;
};

void gg_shrink_plan_destroy(gg_shrink_plan *plan) {
    if (plan == NULL) return;
    gg_units_destroy(plan->units);
    gg_merges_destroy(plan->merges);
    gg_selection_destroy(plan->selection);
    gg_graph_destroy(plan->small);
    gg_free(plan->weights);
    gg_free(plan->selected);
    gg_free(plan);
}

bool gg_shrink_plan_accepted(const gg_shrink_plan *plan) { return plan->accepted; }
const gg_units *gg_shrink_plan_units(const gg_shrink_plan *plan) { return plan->units; }
const gg_graph *gg_shrink_plan_graph(const gg_shrink_plan *plan) {
    return plan->small != NULL ? plan->small : plan->graph;
}
double gg_shrink_plan_bound(const gg_shrink_plan *plan, int group) { return plan->merges->bound[group]; }
double gg_shrink_plan_share(const gg_shrink_plan *plan, int group) { return plan->merges->share[group]; }
double gg_shrink_plan_loss(const gg_shrink_plan *plan, bool after) { return plan->loss[after]; }
uint64_t gg_shrink_plan_hash(const gg_shrink_plan *plan) { return plan->hash; }

int gg_shrink_plan_leaves(const gg_shrink_plan *plan, bool *leaves) {
    gg_merges_leaves(plan->merges, plan->units, leaves);
    return plan->merges->count;
}

/* ---- choosing units ---- */

/* A rank's announcement about its part before others continue, so that nobody waits for a rank that has failed. */
typedef struct announcement {
    gg_status status;
    int count; /* of merges */
    char message[512];
} announcement;

static void announce(announcement *said, gg_status status) {
    said->status = status;
    if (status != GG_OK) snprintf(said->message, sizeof said->message, "%s", gg_error_message());
}

typedef struct plan_call {
    gg_trainer *trainer;
    const gg_shrink *shrink;
    gg_shrink_plan *plan; /* written by the first local rank */
    announcement said;    /* by any rank; written by the first local one */
    announcement own;     /* of this process */
} plan_call;

/* Device for the products of all pairs: their rounding must be float32's. */
static gg_device *exact_device(const gg_replica *r) {
    return gg_device_is_separate(r->device) && !gg_exchange_asked(r->exchange)->devices.device.fast ? r->device
                                                                                                    : r->devices->host;
}

static void search(const plan_call *c, gg_replica *r, const float *weights, announcement *said, gg_merges **out) {
    const gg_merge_options options = {.budgets = c->shrink->budget,
                                      .leasts = c->shrink->least,
                                      .groups = c->shrink->groups,
                                      .device = exact_device(r)};
    announce(said, gg_merges_find(r->options.graph, c->plan->units, weights, &options, out));
    if (said->status == GG_OK) said->count = (*out)->count;
}

/* The merges of rank 0, on every rank, in one message: bounds, shares, merges. */
static gg_status share_merges(gg_transport *transport, const announcement *said, const gg_units *units,
                              gg_merges **merges) {
    gg_status status = GG_OK;
    const size_t sums = (size_t)units->groups * sizeof *(*merges)->bound;
    const size_t bytes = 2 * sums + (size_t)said->count * sizeof *(*merges)->merge;
    char *message = NULL;
    if (*merges == NULL) GG_TRY_CLEANUP(gg_merges_create(units, merges));
    gg_merges *it = *merges;
    it->count = said->count;
    if (bytes == 0) goto cleanup;
    GG_TRY_CLEANUP(gg_alloc(bytes, "what is to leave", &message));
    memcpy(message, it->bound, sums);
    memcpy(message + sums, it->share, sums);
    if (it->count > 0) memcpy(message + 2 * sums, it->merge, bytes - 2 * sums);
    GG_TRY_CLEANUP(gg_broadcast(transport, message, bytes, 0));
    memcpy(it->bound, message, sums);
    memcpy(it->share, message + sums, sums);
    if (it->count > 0) memcpy(it->merge, message + 2 * sums, bytes - 2 * sums);
cleanup:
    gg_free(message);
    return status;
}

static gg_status find_leaving(void *context, int local) {
    gg_status status = GG_OK;
    plan_call *c = context;
    gg_replica *r = c->trainer->replica[local];
    gg_transport *transport = r->transport;
    gg_merges *merges = NULL;
    announcement said = {0};
    gg_progress_counts counts;
    const float *weights = NULL;
    GG_TRY_CLEANUP(gg_replica_end_epoch(r)); /* messages in flight belong to the steps made so far */
    gg_replica_counts(r, &counts);
    GG_TRY_CLEANUP(gg_replica_consensus(r, &weights));
    if (transport->rank == 0) search(c, r, weights, &said, &merges);
    GG_TRY_CLEANUP(gg_replica_at(r, "what is to leave", gg_broadcast(transport, &said, sizeof said, 0)));
    if (said.status == GG_OK)
        GG_TRY_CLEANUP(gg_replica_at(r, "what is to leave", share_merges(transport, &said, c->plan->units, &merges)));
    if (local == 0) {
        c->said = said;
        c->plan->step = gg_exchange_state(r->exchange)->step;
        c->plan->merges = merges;
        merges = NULL;
        memcpy(c->plan->weights, weights, gg_exchange_state(r->exchange)->count * sizeof *weights);
    }
    gg_replica_set_counts(r, &counts); /* messages sent here are not the epoch's */
cleanup:
    gg_merges_destroy(merges);
    return status;
}

static void hash_more(uint64_t *hash, const void *bytes, size_t count) {
    for (size_t i = 0; i < count; ++i)
        *hash = (*hash ^ ((const unsigned char *)bytes)[i]) * 0x100000001b3u; /* FNV-1a */
}

/* Makes the smaller network and the consensus model's weights in it, from a copy, because folding overwrites an arena.
 */
static gg_status make_small(gg_shrink_plan *plan) {
    gg_status status = GG_OK;
    bool *leaves = NULL;
    float *folded = NULL;
    const size_t bytes = gg_graph_arena_count(plan->graph) * sizeof *folded;
    _Static_assert(sizeof(gg_merge) == 24, "without padding");
    plan->hash = 0xcbf29ce484222325u;
    if (plan->merges->count == 0) goto cleanup;
    GG_TRY_CLEANUP(gg_calloc((size_t)plan->units->units, sizeof *leaves, "units that leave", &leaves));
    gg_merges_leaves(plan->merges, plan->units, leaves);
    GG_TRY_CLEANUP(gg_selection_create(plan->graph, plan->units, leaves, &plan->selection));
    GG_TRY_CLEANUP(gg_graph_select(plan->graph, plan->selection, &plan->small));
    plan->hash = gg_selection_hash(plan->selection);
    hash_more(&plan->hash, plan->merges->merge, (size_t)plan->merges->count * sizeof *plan->merges->merge);
    GG_TRY_CLEANUP(gg_alloc(bytes, "folded weights", &folded));
    memcpy(folded, plan->weights, bytes);
    gg_merges_fold(plan->merges, plan->graph, plan->units, folded);
    GG_TRY_CLEANUP(gg_alloc(gg_selection_count_after(plan->selection) * sizeof *folded, "weights", &plan->selected));
    gg_arena_select(plan->selection, folded, plan->selected);
cleanup:
    gg_free(leaves);
    gg_free(folded);
    return status;
}

/* ---- the probe ---- */

/* A rank's result: its part of the probe evaluated by the current network and by the smaller one. */
typedef struct verdict {
    announcement said;
    gg_evaluation before, after;
} verdict;

static gg_status evaluate_part(const plan_call *c, gg_replica *r, verdict *out) {
    const gg_shrink_plan *plan = c->plan;
    const gg_dataset *probe = c->shrink->probe;
    const int64_t batch = c->shrink->batch;
    int64_t first, end;
    gg_shard(probe->count, r->transport->rank, r->transport->size, &first, &end);
    GG_TRY(gg_replica_evaluate_graph(r, plan->graph, plan->weights, probe, first, end, batch, &out->before));
    return gg_replica_evaluate_graph(r, plan->small, plan->selected, probe, first, end, batch, &out->after);
}

/* Sums the losses of all ranks' parts, or takes the message of the first failed rank. */
static void sum_verdicts(plan_call *c, const gg_replica *r, const verdict *all) {
    gg_evaluation before = {0}, after = {0};
    for (int rank = 0; rank < r->transport->size; ++rank) {
        if (all[rank].said.status != GG_OK) {
            c->said.status = all[rank].said.status;
            snprintf(c->said.message, sizeof c->said.message, "rank %d: %.400s", rank, all[rank].said.message);
            return;
        }
        for (int h = 0; h < GG_MAX_FIELDS; ++h) {
            gg_loss_sums_add(&before.head[h], &all[rank].before.head[h]);
            gg_loss_sums_add(&after.head[h], &all[rank].after.head[h]);
        }
    }
    if (c->shrink->probe == NULL) return;
    c->plan->loss[0] = gg_replica_evaluated_loss(r, &before);
    c->plan->loss[1] = gg_replica_evaluated_loss(r, &after);
}

static gg_status judge_part(void *context, int local) {
    gg_status status = GG_OK;
    plan_call *c = context;
    gg_replica *r = c->trainer->replica[local];
    gg_transport *transport = r->transport;
    verdict *own = NULL, *all = NULL;
    gg_progress_counts counts;
    gg_replica_counts(r, &counts);
    GG_TRY_CLEANUP(gg_calloc(1, sizeof *own, "result of the probe", &own));
    GG_TRY_CLEANUP(gg_alloc((size_t)transport->size * sizeof *all, "results of all ranks", &all));
    own->said = c->own;
    if (own->said.status == GG_OK && c->shrink->probe != NULL) announce(&own->said, evaluate_part(c, r, own));
    if (own->said.status == GG_ERROR_COMM)
        GG_TRY_CLEANUP(gg_fail(GG_ERROR_COMM, "%s", own->said.message)); /* all ranks have it */
    GG_TRY_CLEANUP(gg_replica_at(r, "loss on the probe", gg_allgather(transport, own, sizeof *own, all)));
    if (local == 0) sum_verdicts(c, r, all);
    gg_replica_set_counts(r, &counts); /* messages sent here are not the epoch's */
cleanup:
    gg_free(own);
    gg_free(all);
    return status;
}

/* ---- the plan ---- */

static gg_status check_shrink(const gg_trainer *t, const gg_shrink *shrink, const gg_units *units) {
    for (int g = 0; g < units->groups; ++g)
        if (!(shrink->budget[g] >= 0 && shrink->budget[g] <= 1))
            return gg_fail(GG_ERROR_ARGUMENT, "budget: %g; must be 0 to 1", shrink->budget[g]);
    for (int g = 0; g < units->groups; ++g)
        if (shrink->least[g] < 1) return gg_fail(GG_ERROR_ARGUMENT, "least: %d; must be at least 1", shrink->least[g]);
    if (!isfinite(shrink->epsilon)) return gg_fail(GG_ERROR_ARGUMENT, "epsilon: %g; must be finite", shrink->epsilon);
    if (shrink->probe == NULL) return GG_OK;
    if (shrink->batch < 1)
        return gg_fail(GG_ERROR_ARGUMENT, "batch: %lld; must be at least 1", (long long)shrink->batch);
    if (shrink->probe->count < 1) return gg_fail(GG_ERROR_ARGUMENT, "probe: no samples; at least one is needed");
    return gg_trainer_check_set(t, shrink->probe);
}

/* Makes the smaller network, and compares the losses. */
static gg_status judge(plan_call *c) {
    gg_status status = GG_OK;
    gg_shrink_plan *plan = c->plan;
    announce(&c->own, make_small(plan)); /* equal on all ranks, unless one has no memory */
    if (plan->merges->count == 0) return status;
    GG_TRY(gg_team_run(c->trainer->team, judge_part, c));
    /* after the run, because ranks that fail in a run stay failed */
    if (c->said.status != GG_OK) return gg_fail(c->said.status, "%s", c->said.message);
    plan->accepted =
        c->shrink->probe == NULL || plan->loss[1] <= plan->loss[0] + c->shrink->epsilon * fabs(plan->loss[0]);
    return status;
}

static int64_t loads_of(const gg_trainer *t) {
    int64_t loads = 0;
    for (int i = 0; i < t->local; ++i) loads += gg_exchange_loads(t->replica[i]->exchange);
    return loads;
}

gg_status gg_trainer_plan_shrink(gg_trainer *t, const gg_shrink *shrink, gg_shrink_plan **out) {
    gg_status status = GG_OK;
    gg_shrink_plan *plan = NULL;
    *out = NULL;
    GG_TRY_CLEANUP(gg_calloc(1, sizeof *plan, "plan of a shrink", &plan));
    plan->graph = t->options.graph;
    plan->loss[0] = plan->loss[1] = NAN;
    GG_TRY_CLEANUP(gg_units_find(plan->graph, &plan->units));
    GG_TRY_CLEANUP(check_shrink(t, shrink, plan->units));
    GG_TRY_CLEANUP(gg_alloc(gg_graph_arena_count(plan->graph) * sizeof(float), "weights", &plan->weights));
    plan_call call = {.trainer = t, .shrink = shrink, .plan = plan};
    GG_TRY_CLEANUP(gg_team_run(t->team, find_leaving, &call));
    /* after the run, because ranks that fail in a run stay failed */
    if (call.said.status != GG_OK) GG_FAIL_CLEANUP(call.said.status, "%s", call.said.message);
    GG_TRY_CLEANUP(judge(&call));
    plan->loads = loads_of(t);
    gg_free(plan->weights);
    gg_free(plan->selected);
    plan->weights = plan->selected = NULL;
    *out = plan;
    plan = NULL;
cleanup:
    gg_shrink_plan_destroy(plan);
    return status;
}

/* ---- applying a plan ---- */

/* A plan while it is applied. */
typedef struct applied_plan {
    const gg_shrink_plan *plan;
    bool averages_gradients;
} applied_plan;

static void clear_statistics(const gg_graph *graph, float *arena) {
    for (int i = 0; i < gg_graph_parameters(graph); ++i) {
        const gg_parameter *it = gg_graph_parameter(graph, i);
        if (it->role == GG_ROLE_STATISTIC) memset(arena + it->offset, 0, it->count * sizeof *arena);
    }
}

/* Moments are not folded: a merged unit keeps the moments of the remaining one. No gradient is folded into running
 * means, because it would be subtracted from them unscaled, without a learning rate. */
static gg_status map_arena(const void *context, gg_arena_kind kind, float *before, float *after) {
    const applied_plan *it = context;
    const gg_shrink_plan *plan = it->plan;
    if (kind != GG_ARENA_MOMENT && kind != GG_ARENA_OUTER_MOMENT)
        gg_merges_fold(plan->merges, plan->graph, plan->units, before);
    if (kind == GG_ARENA_RESIDUE && it->averages_gradients) clear_statistics(plan->graph, before);
    gg_arena_select(plan->selection, before, after);
    return GG_OK;
}

static void map_carried(const void *context, int node, const float *before, float *after) {
    const gg_shrink_plan *plan = ((const applied_plan *)context)->plan;
    gg_carried_select(plan->selection, node, before, after);
}

/* "rank 1, 2": a list of ranks. */
static void add_rank(char *text, size_t bytes, int rank) {
    const size_t length = strlen(text);
    snprintf(text + length, bytes - length, "%s %d", length > 0 ? "," : "rank", rank);
}

gg_status gg_shrink_compare(gg_transport *transport, const gg_shrink_record *own, gg_status *found, char *text,
                            size_t bytes) {
    static const char *const fault_text[GG_SHRINK_FAULTS] = {
        "", "is not of the present step, weights and network of the trainer; allowed is one that was made just before",
        "says that nothing leaves; allowed is one by which something does",
        "is not of the network that is given; allowed is a network of the sizes that the plan has"};
    gg_status status = GG_OK;
    gg_shrink_record *all = NULL;
    char ranks[256] = "";
    int64_t fault = GG_SHRINK_FITS;
    bool differ = false;
    *found = GG_OK;
    GG_TRY_CLEANUP(gg_alloc((size_t)transport->size * sizeof *all, "plans of all ranks", &all));
    GG_TRY_CLEANUP(gg_agree(transport, own, sizeof *own, all));
    for (int i = transport->size - 1; i >= 0; --i)
        if (all[i].fault != GG_SHRINK_FITS) fault = all[i].fault;
    for (int i = 0; i < transport->size; ++i) {
        const bool other = all[i].hash != all[0].hash || all[i].step != all[0].step;
        if (fault != GG_SHRINK_FITS ? all[i].fault == fault : other) add_rank(ranks, sizeof ranks, i);
        differ = differ || other;
    }
    if (fault != GG_SHRINK_FITS) {
        *found = fault == GG_SHRINK_STALE ? GG_ERROR_STATE : GG_ERROR_ARGUMENT;
        snprintf(text, bytes, "the plan on %s %s", ranks, fault_text[fault]);
    } else if (differ) {
        *found = GG_ERROR_STATE;
        snprintf(text, bytes,
                 "ranks differ in what is to leave: %s from rank 0, whose plan has the checksum %016llx at step "
                 "%lld; all ranks must apply the same plan",
                 ranks, (unsigned long long)all[0].hash, (long long)all[0].step);
    }
cleanup:
    gg_free(all);
    return status;
}

typedef struct apply_call {
    gg_trainer *trainer;
    gg_shrink_record own;
    gg_status found; /* by the first local rank, like the text */
    char text[512];
} apply_call;

static gg_status compare_plans(void *context, int local) {
    gg_status status = GG_OK, found = GG_OK;
    apply_call *c = context;
    gg_replica *r = c->trainer->replica[local];
    char text[sizeof c->text] = "";
    GG_TRY(gg_replica_at(r, "plans of all ranks", gg_shrink_compare(r->transport, &c->own, &found, text, sizeof text)));
    if (local != 0) return status;
    c->found = found;
    memcpy(c->text, text, sizeof text);
    return status;
}

static gg_shrink_fault fault_of(const gg_trainer *t, const gg_shrink_plan *plan, const gg_graph *small) {
    if (plan->graph != t->options.graph || plan->step != gg_exchange_state(t->replica[0]->exchange)->step)
        return GG_SHRINK_STALE;
    if (plan->loads != loads_of(t)) return GG_SHRINK_STALE;
    if (plan->small == NULL) return GG_SHRINK_NOTHING;
    return small == NULL || gg_graph_same_layout(small, plan->small) ? GG_SHRINK_FITS : GG_SHRINK_LAYOUT;
}

gg_status gg_trainer_apply_shrink(gg_trainer *t, const gg_shrink_plan *plan, const gg_graph *small) {
    apply_call call = {.trainer = t,
                       .own = {.hash = plan->hash,
                               .step = gg_exchange_state(t->replica[0]->exchange)->step,
                               .fault = fault_of(t, plan, small)}};
    GG_TRY(gg_team_run(t->team, compare_plans, &call));
    if (call.found != GG_OK) return gg_fail(call.found, "%s", call.text);
    const applied_plan applied = {.plan = plan,
                                  .averages_gradients = gg_exchange_averages_gradients(t->replica[0]->exchange)};
    return gg_trainer_reshape(t, &(gg_reshape){.graph = small != NULL ? small : plan->small,
                                               .map = map_arena,
                                               .carried = map_carried,
                                               .context = &applied});
}

static gg_status map_to_zeros(const void *context, gg_arena_kind kind, float *before, float *after) {
    (void)context;
    (void)kind;
    (void)before;
    (void)after;
    return GG_OK;
}

gg_status gg_trainer_restore_graph(gg_trainer *t, const gg_graph *graph) {
    return gg_trainer_reshape(t, &(gg_reshape){.graph = graph, .map = map_to_zeros});
}
