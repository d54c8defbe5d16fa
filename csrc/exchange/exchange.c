#include "exchange/exchange.h"

#include <math.h>
#include <string.h>

#include "base/memory.h"
#include "comm/allreduce.h"
#include "comm/collective.h"
#include "comm/device_order.h"
#include "comm/subgroup.h"
#include "exchange/parts/buckets.h"
#include "exchange/parts/common.h"
#include "exchange/parts/factored.h"
#include "exchange/parts/kept.h"
#include "exchange/parts/receipts.h"

/* Elements of a linear layer's weight whose gradient does not stay in the second cache until the update. */
#define FACTORED_MIN ((size_t)1 << 18)

struct gg_exchange {
    gg_exchange_options asked;
    gg_arena_layout layout;
    gg_devices devices;
    gg_device *device;       /* of the arenas */
    gg_transport *order;     /* around the transport of the options; NULL means that the device is not separate */
    gg_transport *transport; /* one of the two */
    gg_trace *trace;
    double clock_offset;
    gg_strategy_options used; /* with the sizes that were chosen */
    gg_updater updater;
    gg_state state;
    gg_strategy *strategy; /* NULL means not whole */
    gg_kept kept;
    gg_factored *factored; /* of linear layers whose gradients only updates read; NULL means none */
    gg_tuning tuning;
    int64_t loads;    /* gg_exchange_loads */
    bool begun;       /* a step is under way, */
    bool left;        /* gg_exchange_leave in it; */
    int readied;      /* number of ready layers in it; */
    int next;         /* the layer that the strategy takes next, after those behind it; -1 means none */
    bool *ready;      /* one a layer */
    int workers;      /* the first ranks, which train */
    bool failed;      /* in the middle of an exchange: settling is impossible from then on */
    float *share;     /* one a rank, in this step */
    int64_t *batches; /* samples of each rank in this step */
    float *equal_share;
    gg_allreduce *averaging;
    float *consensus; /* message memory, allocated on first use */
};

/* ---- creation and destruction ---- */

/* Lets the update request weight gradients of large linear layers row by row, if nothing else reads them. */
static gg_status create_factored(gg_exchange *x) {
    gg_status status = GG_OK;
    gg_factored_wish *wish = NULL;
    int wishes = 0;
    if (!x->strategy->only_applies_gradients || gg_exchange_updates_wait(x)) goto cleanup;
    GG_TRY_CLEANUP(gg_calloc((size_t)x->layout.layers + 1, sizeof *wish, "factors", &wish));
    for (int layer = 0; layer < x->layout.layers; ++layer) {
        const gg_parameter *weight = gg_factored_weight(&x->layout, layer);
        if (weight != NULL && weight->count >= FACTORED_MIN)
            wish[wishes++] = (gg_factored_wish){.layer = layer, .run = GG_LANES};
    }
    GG_TRY_CLEANUP(gg_factored_create(x->device, &x->layout, wish, wishes, &x->factored));
    if (x->factored == NULL) goto cleanup;
    x->state.source = (gg_gradient_source){.context = x->factored, .run = gg_factored_next};
    gg_factored_uses(x->factored, &x->state.arena[GG_WEIGHTS]);
    const int moments = x->state.owned == x->state.count ? gg_state_moments(&x->state) : 0;
    for (int i = 0; i < moments; ++i) gg_factored_uses(x->factored, &x->state.arena[GG_MOMENTS + i]);
cleanup:
    gg_free(wish);
    return status;
}

/* Makes all that depends on the strategy or the layout. The devices and the trace exist. Collective. */
static gg_status assemble(gg_exchange *x, const gg_exchange_costs *costs) {
    const size_t ranks = (size_t)x->transport->size;
    const char *names[GG_MAX_MOMENTS];
    x->used = x->asked.strategy;
    GG_TRY(gg_strategy_tune(&x->used, &x->layout, gg_optimizer_moments(&x->asked.optimizer, names), x->transport->size,
                            costs->forward, costs->least, costs->link, &x->tuning));
    x->workers = gg_strategy_workers(&x->used, x->transport->size);
    if (x->used.shuffle_samples && x->workers < x->transport->size)
        return gg_fail(GG_ERROR_ARGUMENT, "shuffle_samples: allowed only where all ranks train, here %d of %d do",
                       x->workers, x->transport->size);
    GG_TRY(gg_calloc((size_t)x->layout.layers + 1, sizeof *x->ready, "ready layers", &x->ready));
    GG_TRY(gg_calloc(ranks, sizeof *x->share, "shares", &x->share));
    GG_TRY(gg_calloc(ranks, sizeof *x->equal_share, "shares", &x->equal_share));
    GG_TRY(gg_calloc(ranks, sizeof *x->batches, "batches", &x->batches));
    for (int i = 0; i < x->workers; ++i) x->equal_share[i] = 1.0f / (float)x->workers;
    x->state.count = x->state.owned = x->layout.count;
    GG_TRY(gg_updater_create(&x->layout, &x->asked.optimizer, &x->updater));
    GG_TRY(gg_strategy_create(&x->used,
                              &(gg_strategy_env){.transport = x->transport,
                                                 .device = x->device,
                                                 .updater = &x->updater,
                                                 .state = &x->state,
                                                 .layout = &x->layout,
                                                 .seed = x->asked.seed,
                                                 .trace = x->trace,
                                                 .mortal = x->transport->mortal},
                              &x->strategy));
    if (x->strategy->cancel != NULL) GG_TRY(gg_kept_create(x->strategy, x->used.compression.local_momentum, &x->kept));
    return create_factored(x);
}

gg_status gg_exchange_check(const gg_exchange_options *options) {
    const int threads = options->devices.device.threads;
    if (threads < 1) return gg_fail(GG_ERROR_ARGUMENT, "threads: %d; must be at least 1", threads);
    return gg_optimizer_check(&options->optimizer);
}

gg_status gg_exchange_create(const gg_exchange_options *options, gg_exchange **out) {
    gg_status status = GG_OK;
    gg_exchange *x = NULL;
    const gg_arena_layout *layout = options->layout;
    *out = NULL;
    GG_TRY_CLEANUP(gg_exchange_check(options));
    GG_TRY_CLEANUP(gg_calloc(1, sizeof *x, "exchange", &x));
    x->asked = *options;
    x->asked.layout = &x->layout;
    x->asked.costs = (gg_exchange_costs){0};
    GG_TRY_CLEANUP(
        gg_arena_layout_create(layout->layer, layout->layers, layout->parameter, layout->parameters, &x->layout));
    GG_TRY_CLEANUP(gg_devices_open(options->device != NULL ? options->device : "cpu", &options->devices, &x->devices));
    x->device = x->devices.device;
    GG_TRY_CLEANUP(gg_device_order_create(options->transport, x->device, &x->order));
    x->transport = x->order != NULL ? x->order : options->transport;
    if (options->trace > 0) {
        GG_TRY_CLEANUP(gg_trace_create(options->trace, &x->trace));
        GG_TRY_CLEANUP(gg_clock_offset(x->transport, &x->clock_offset));
    }
    GG_TRY_CLEANUP(assemble(x, &options->costs));
    *out = x;
cleanup:
    if (status != GG_OK) gg_exchange_destroy(x);
    return status;
}

void gg_exchange_dismantle(gg_exchange *x) {
    gg_factored_destroy(x->factored);
    if (x->strategy != NULL) gg_kept_destroy(&x->strategy->env, &x->kept);
    gg_strategy_destroy(x->strategy);
    gg_updater_destroy(&x->updater);
    gg_allreduce_destroy(x->averaging);
    if (x->transport != NULL) gg_message_free(x->transport, x->consensus);
    if (x->transport != NULL && x->transport->step == &x->state.step)
        x->transport->step = NULL; /* the transport outlives the exchange */
    gg_free(x->ready);
    gg_free(x->share);
    gg_free(x->equal_share);
    gg_free(x->batches);
    x->factored = NULL;
    x->strategy = NULL;
    x->averaging = NULL;
    x->consensus = x->share = x->equal_share = NULL;
    x->ready = NULL;
    x->batches = NULL;
    x->begun = x->left = false;
    x->tuning = (gg_tuning){0};
    gg_state rest = {.step = x->state.step, .keeps = x->state.keeps};
    memcpy(rest.kept, x->state.kept, sizeof rest.kept);
    x->state = rest;
}

void gg_exchange_keep_arenas(gg_exchange *x, bool on) {
    x->state.keeps = on;
    if (!on) gg_state_free_kept(&(gg_strategy_env){.transport = x->transport, .device = x->device, .state = &x->state});
}

gg_status gg_exchange_renew(gg_exchange *x, const gg_strategy_options *strategy, const gg_arena_layout *layout,
                            const gg_exchange_costs *costs) {
    gg_status status = GG_OK;
    gg_arena_layout other = {0};
    gg_exchange_dismantle(x);
    if (layout != NULL) {
        GG_TRY_CLEANUP(
            gg_arena_layout_create(layout->layer, layout->layers, layout->parameter, layout->parameters, &other));
        gg_arena_layout_destroy(&x->layout);
        x->layout = other;
    }
    if (strategy != NULL) x->asked.strategy = *strategy;
    GG_TRY_CLEANUP(assemble(x, costs));
cleanup:
    if (status != GG_OK) gg_exchange_dismantle(x);
    return status;
}

void gg_exchange_destroy(gg_exchange *x) {
    if (x == NULL) return;
    gg_exchange_dismantle(x);
    gg_exchange_keep_arenas(x, false);
    gg_trace_destroy(x->trace);
    gg_transport_destroy(x->order);
    gg_devices_close(&x->devices);
    gg_arena_layout_destroy(&x->layout);
    gg_free(x);
}

void gg_exchange_set_rate(gg_exchange *x, const gg_rate *rate) {
    gg_rate_change(&x->asked.optimizer.rate, rate, x->state.step);
}

void gg_exchange_set_moments_since(gg_exchange *x, int64_t step) { x->asked.optimizer.moments_since = step; }

/* ---- a step ---- */

/* Sets each rank's weight in the sums of this step. */
static void count_batches(gg_exchange *x, const int64_t *batches) {
    int64_t all = 0;
    for (int rank = 0; rank < x->workers; ++rank) all += x->batches[rank] = batches != NULL ? batches[rank] : 1;
    for (int rank = 0; rank < x->workers; ++rank) x->share[rank] = (float)x->batches[rank] / (float)all;
}

/* A failure leaves messages in flight. A collective call that a death has broken is made again by the others:
 * strategies that can lose ranks never fail by that. */
gg_status gg_exchange_fail(gg_exchange *x, gg_status status) {
    if (status == GG_OK || status == GG_ERROR_PEER) return status;
    x->failed = true;
    x->transport->step = NULL;
    return status;
}

static gg_status check_layer(const gg_exchange *x, const char *call, int layer) {
    if (layer < 0 || layer >= x->layout.layers)
        return gg_fail(GG_ERROR_ARGUMENT, "%s: layer %d; there are layers 0 to %d", call, layer, x->layout.layers - 1);
    if (!x->begun)
        return gg_fail(GG_ERROR_STATE, "%s of layer '%s': step %lld has not begun", call, x->layout.layer[layer].name,
                       (long long)x->state.step);
    if (x->ready[layer])
        return gg_fail(GG_ERROR_STATE, "%s of layer '%s': it is ready already in step %lld; once in a step is allowed",
                       call, x->layout.layer[layer].name, (long long)x->state.step);
    return GG_OK;
}

bool gg_exchange_under_way(const gg_exchange *x, bool half) { return x->begun && (!half || x->readied > 0); }

static gg_status check_not_half(const gg_exchange *x, const char *call) {
    if (x->begun && x->readied > 0)
        return gg_fail(GG_ERROR_STATE, "%s: %d of %d layers are ready in step %lld, which must end first", call,
                       x->readied, x->layout.layers, (long long)x->state.step);
    return GG_OK;
}

static void tell_begun(gg_exchange *x) {
    gg_transport_step_begun(x->transport, x->state.step + 1);
    x->left = false;
}

gg_status gg_exchange_begin(gg_exchange *x, const int64_t *batches) {
    GG_TRY(check_not_half(x, "begin"));
    if (!x->begun || x->left) tell_begun(x);
    if (x->begun) return GG_OK;
    x->begun = true;
    x->readied = 0;
    x->next = x->layout.layers - 1;
    memset(x->ready, 0, (size_t)x->layout.layers * sizeof *x->ready);
    count_batches(x, batches);
    x->strategy->step = x->state.step;
    x->strategy->share = x->share;
    x->strategy->batch = x->batches;
    x->transport->step = &x->state.step;
    x->kept.taken = false;
    GG_TRY(gg_exchange_fail(x, x->strategy->table->begin(x->strategy)));
    gg_kept_take(x->strategy, &x->kept);
    return GG_OK;
}

void gg_exchange_leave(gg_exchange *x) {
    if (!x->begun || x->readied > 0 || x->left) return;
    gg_transport_step_begun(x->transport, x->state.step);
    x->left = true;
}

bool gg_exchange_breaks(const gg_exchange *x) { return x->strategy != NULL && x->strategy->cancel != NULL; }

void gg_exchange_break(gg_exchange *x) {
    x->begun = x->left = false;
    x->transport->step = NULL;
    x->strategy->cancel(x->strategy);
}

void gg_exchange_regrouped(gg_exchange *x) {
    if (x->strategy->regrouped != NULL) x->strategy->regrouped(x->strategy);
}

void gg_exchange_follow_transport(gg_exchange *x) {
    x->transport->rank = x->asked.transport->rank;
    x->transport->size = x->asked.transport->size;
}

bool gg_exchange_keeps_equal(const gg_exchange *x, int arena) {
    const int size = x->transport->size;
    return size > 1 && gg_strategy_keeps_equal(&x->used, size, x->state.arena[arena].kind) == size;
}

void gg_exchange_mended(gg_exchange *x, bool whole) {
    gg_exchange_complete_residue(x); /* no values stay marked */
    if (!whole) gg_kept_restore(x->strategy, &x->kept);
}

gg_status gg_exchange_need(gg_exchange *x, int layer) {
    GG_TRY(check_layer(x, "need", layer));
    return gg_exchange_fail(x, x->strategy->table->need(x->strategy, layer));
}

bool gg_exchange_updates_wait(const gg_exchange *x) {
    return gg_updater_measures(&x->updater) && !x->strategy->averages_gradients;
}

gg_status gg_exchange_check_ready(const gg_exchange *x, int layer) { return check_layer(x, "ready", layer); }

/* `ready` of a layer that was checked. */
static gg_status make_ready(gg_exchange *x, int layer) {
    gg_status status = GG_OK;
    x->ready[layer] = true;
    if (x->left) tell_begun(x);
    if (x->readied++ == 0) x->strategy->sum_in_pieces = false;
    const bool only_counts = gg_exchange_updates_wait(x);
    for (; status == GG_OK && x->next >= 0 && x->ready[x->next]; --x->next)
        if (!only_counts) status = gg_exchange_fail(x, x->strategy->table->ready(x->strategy, x->next));
    return status;
}

gg_status gg_exchange_ready(gg_exchange *x, int layer) {
    GG_TRY(gg_exchange_check_ready(x, layer));
    return make_ready(x, layer);
}

gg_status gg_exchange_ready_from(gg_exchange *x, int layer, const gg_lent *lent, int lents) {
    if (layer == x->next && x->strategy->only_applies_gradients && !gg_exchange_updates_wait(x)) {
        x->state.lent = lent;
        x->state.lents = lents;
    } else {
        for (int i = 0; i < lents; ++i)
            gg_device_copy(x->device, GG_QUEUE_COMPUTE, gg_state_gradients(&x->state) + lent[i].offset,
                           lent[i].gradient, lent[i].count * sizeof(float));
    }
    const gg_status status = make_ready(x, layer);
    x->state.lent = NULL;
    x->state.lents = 0;
    return status;
}

gg_status gg_exchange_poll(gg_exchange *x) { return gg_exchange_fail(x, x->strategy->table->poll(x->strategy)); }

gg_status gg_exchange_check_gradients(gg_exchange *x, const float *gradients) {
    for (int i = 0; i < x->layout.parameters; ++i) {
        const gg_parameter *it = &x->layout.parameter[i];
        const size_t whole = (size_t)gg_lanes_padded((int64_t)it->count); /* padding is zero */
        const double sum = x->device->table->sum_squares(x->device, whole, gradients + it->offset, NULL);
        if (!isfinite(sum))
            return gg_fail(GG_ERROR_NUMERIC, "step %lld: the gradient of '%s' has a NaN or an infinity",
                           (long long)x->state.step, it->name);
    }
    return GG_OK;
}

/* Checks that every layer is ready, if the rank trains. */
static gg_status check_all_ready(const gg_exchange *x, const char *call) {
    if (!x->begun) return gg_fail(GG_ERROR_STATE, "%s: step %lld has not begun", call, (long long)x->state.step);
    if (gg_exchange_trains(x) && x->next >= 0)
        return gg_fail(
            GG_ERROR_STATE,
            "%s: %d of %d layers are ready in step %lld; '%s' is not, and each needs a gradient, zero if it has no "
            "part in the step",
            call, x->readied, x->layout.layers, (long long)x->state.step, x->layout.layer[x->next].name);
    return GG_OK;
}

gg_status gg_exchange_ready_all(gg_exchange *x) {
    GG_TRY(check_all_ready(x, "ready"));
    return gg_exchange_fail(x, gg_strategy_ready_all(x->strategy));
}

gg_status gg_exchange_end(gg_exchange *x) {
    gg_status status = GG_OK;
    GG_TRY(check_all_ready(x, "end"));
    x->begun = false;
    status = gg_exchange_fail(x, x->strategy->table->end(x->strategy));
    x->transport->step = NULL;
    return status;
}

gg_status gg_exchange_wait(gg_exchange *x) {
    GG_TRY(check_not_half(x, "wait"));
    for (int layer = 0; layer < x->layout.layers; ++layer)
        GG_TRY(gg_exchange_fail(x, x->strategy->table->need(x->strategy, layer)));
    return GG_OK;
}

bool gg_exchange_current_at_end(const gg_exchange *x) { return x->transport->size == 1 || x->strategy->current_at_end; }

bool gg_exchange_offers_fc(const gg_exchange *x) { return x->strategy->fc_hooks != NULL || x->factored != NULL; }

gg_status gg_exchange_fc_input(gg_exchange *x, int layer, const gg_vectors *input, bool *taken) {
    return gg_exchange_fail(x, x->factored != NULL ? gg_factored_input(x->factored, layer, input, taken)
                                                   : x->strategy->fc_hooks->input(x->strategy, layer, input, taken));
}

gg_status gg_exchange_fc_error(gg_exchange *x, int layer, const gg_vectors *error) {
    return gg_exchange_fail(x, x->factored != NULL ? gg_factored_error(x->factored, layer, error)
                                                   : x->strategy->fc_hooks->error(x->strategy, layer, error));
}

const bool *gg_exchange_fc_partitioned(const gg_exchange *x) {
    return x->strategy != NULL ? x->strategy->fc_partitioned : NULL;
}

/* ---- at rest ---- */

gg_status gg_exchange_settle(gg_exchange *x) {
    GG_TRY(check_not_half(x, "settle"));
    gg_exchange_leave(x);
    x->begun = x->left = false;
    x->transport->step = NULL;
    return gg_exchange_fail(x, x->strategy->table->settle(x->strategy));
}

gg_status gg_exchange_check_arena(const gg_exchange *x, int arena) {
    if (x->state.arena[arena].kind == GG_ARENA_GRADIENT && x->strategy->sum_in_pieces)
        return gg_fail(GG_ERROR_STATE,
                       "gradients: no array has the sum of the last step's gradients: with compression the "
                       "update reads it piece by piece from the messages; an optimiser that needs its norm "
                       "keeps it as an array, as with clip_norm=1e9");
    return GG_OK;
}

gg_status gg_exchange_gather(gg_exchange *x, int arena, float *whole) {
    if (arena == GG_GRADIENTS && x->factored != NULL) gg_factored_write(x->factored, gg_state_gradients(&x->state));
    return gg_exchange_fail(x, gg_strategy_gather(x->strategy, arena, whole));
}

bool gg_exchange_is_partitioned(const gg_exchange *x, int arena) {
    return x->strategy->partition != NULL && x->state.arena[arena].kind == GG_ARENA_MOMENT;
}

void gg_exchange_load(gg_exchange *x, int arena, const float *whole) {
    x->loads += arena == GG_WEIGHTS;
    if (arena == GG_GRADIENTS && x->factored != NULL) gg_factored_end(x->factored); /* the array counts */
    gg_strategy_load(x->strategy, arena, whole);
}

gg_status gg_exchange_at(const gg_exchange *x, const char *what, gg_status status) {
    return gg_error_prefix(status, "step %lld, %s: ", (long long)x->state.step, what);
}

/* Memory for the consensus model, allocated on first use. */
static gg_status make_consensus(gg_exchange *x) {
    if (x->averaging != NULL) return GG_OK;
    GG_TRY(gg_message_alloc(x->transport, x->state.count * sizeof(float), "consensus weights", &x->consensus));
    return gg_allreduce_create(x->transport, x->device, x->state.count, GG_TAG_ALLREDUCE, NULL, GG_COLLECTIVES_OWN,
                               &x->averaging);
}

bool gg_exchange_has_mean(const gg_exchange *x) { return x->averaging != NULL; }
gg_status gg_exchange_prepare_mean(gg_exchange *x) { return make_consensus(x); }

/* FNV-1a of words, in lanes: each product waits for the one before it. */
static uint64_t checksum_of(const float *values, size_t count) {
    enum { LANES = 8 };
    uint64_t lane[LANES], all = 0xcbf29ce484222325u;
    for (int k = 0; k < LANES; ++k) lane[k] = all + (uint64_t)k;
    for (size_t i = 0; i < count; i += LANES) {
        uint32_t words[LANES] = {0};
        const size_t n = count - i < LANES ? count - i : LANES;
        memcpy(words, values + i, n * sizeof *words);
        for (int k = 0; k < LANES; ++k) lane[k] = (lane[k] ^ words[k]) * 0x100000001b3u;
    }
    for (int k = 0; k < LANES; ++k) all = (all ^ lane[k]) * 0x100000001b3u;
    return all;
}

/* *differ: in some node of this many ranks these values differ in some bit. Collective. */
static gg_status ranks_differ(gg_exchange *x, const float *whole, int ranks_per_node, bool *differ) {
    gg_status status = GG_OK;
    gg_transport *transport = x->transport;
    gg_nodes nodes = {0};
    uint64_t own, *all = NULL;
    *differ = false;
    GG_TRY_CLEANUP(gg_nodes_create(transport, ranks_per_node, &nodes));
    if (nodes.size == 1) goto cleanup;
    own = checksum_of(whole, x->state.count);
    GG_TRY_CLEANUP(gg_alloc((size_t)transport->size * sizeof *all, "checksums of all ranks", &all));
    GG_TRY_CLEANUP(gg_allgather(transport, &own, sizeof own, all));
    for (int i = 0; i < transport->size; ++i)
        *differ = *differ || all[nodes.member[i]] != all[nodes.member[i - i % nodes.size]];
cleanup:
    gg_free(all);
    gg_nodes_destroy(&nodes);
    return status;
}

/* Mean of the first `ranks` ranks' values, in the memory of the consensus model. Collective. */
static gg_status mean_of(gg_exchange *x, const float *whole, int ranks) {
    gg_status status = GG_OK;
    const int size = x->transport->size;
    float *share = NULL;
    GG_TRY_CLEANUP(make_consensus(x));
    GG_TRY_CLEANUP(gg_calloc((size_t)size, sizeof *share, "shares", &share));
    for (int i = 0; i < ranks && i < size; ++i) share[i] = 1.0f / (float)(ranks < size ? ranks : size);
    GG_TRY_CLEANUP(gg_device_write(x->device, x->consensus, whole, x->state.count * sizeof(float)));
    GG_TRY_CLEANUP(gg_allreduce_run(x->averaging, x->consensus, share));
    gg_device_finish(x->device);
cleanup:
    gg_free(share);
    return status;
}

gg_status gg_exchange_resume(gg_exchange *x, int arena, const float *whole, const float *consensus, int trained) {
    gg_status status = GG_OK;
    const int alike = gg_strategy_keeps_equal(&x->used, x->transport->size, x->state.arena[arena].kind);
    bool differ = false;
    GG_TRY_CLEANUP(gg_exchange_at(x, "what the ranks go on from", ranks_differ(x, whole, alike, &differ)));
    if (differ && consensus == NULL) {
        GG_TRY_CLEANUP(gg_exchange_at(x, "mean of the ranks' moments", mean_of(x, whole, trained)));
        consensus = x->consensus;
    }
    gg_exchange_load(x, arena, differ ? consensus : whole);
cleanup:
    return gg_exchange_fail(x, status);
}

/* Waits for the device's writes to the consensus. */
static gg_status complete_consensus(gg_exchange *x) {
    gg_device_finish(x->device);
    return gg_device_check(x->device);
}

/* Mean of the replicas that train, in host memory. Under push-sum each is weighted by its scalar, so that no mix moves
 * the mean. */
static gg_status exchange_average(gg_exchange *x, const float **weights) {
    if (x->transport->size == 1 && !gg_device_is_separate(x->device)) {
        *weights = gg_state_weights(&x->state);
        return GG_OK;
    }
    GG_TRY(make_consensus(x));
    GG_TRY(gg_device_read(x->device, x->consensus, gg_state_weights(&x->state), x->state.count * sizeof(float)));
    if (x->strategy->weigh != NULL) x->strategy->weigh(x->strategy, x->consensus);
    if (x->transport->size > 1)
        GG_TRY(gg_exchange_at(x, "mean of the replicas", gg_allreduce_run(x->averaging, x->consensus, x->equal_share)));
    GG_TRY(complete_consensus(x));
    *weights = x->consensus;
    return GG_OK;
}

gg_status gg_exchange_consensus(gg_exchange *x, const float **weights) {
    gg_status status = GG_OK;
    if (x->strategy->model == NULL || x->strategy->model->read == NULL) {
        status = exchange_average(x, weights);
        goto cleanup;
    }
    GG_TRY_CLEANUP(make_consensus(x));
    GG_TRY_CLEANUP(gg_exchange_at(x, "the strategy's model", x->strategy->model->read(x->strategy, x->consensus)));
    GG_TRY_CLEANUP(complete_consensus(x));
    *weights = x->consensus;
cleanup:
    return gg_exchange_fail(x, status);
}

void gg_exchange_set_consensus(gg_exchange *x, const float *weights) {
    ++x->loads;
    if (x->strategy->model != NULL) x->strategy->model->write(x->strategy, weights);
}

gg_status gg_exchange_adopt_consensus(gg_exchange *x) {
    const float *weights = NULL;
    GG_TRY(gg_exchange_consensus(x, &weights));
    if (weights != gg_state_weights(&x->state)) gg_exchange_load(x, GG_WEIGHTS, weights);
    return GG_OK;
}

/* Sum of squares of a - b (b NULL means a alone) over trained parameters, without statistics. */
static double trained_squares(gg_exchange *x, const float *a, const float *b) {
    double sum = 0;
    for (int i = 0; i < x->updater.groups; ++i) {
        const gg_group *group = &x->updater.group[i];
        if (!group->statistic)
            sum += x->device->table->sum_squares(x->device, group->end - group->begin, a + group->begin,
                                                 b != NULL ? b + group->begin : NULL);
    }
    return sum;
}

void gg_exchange_complete_residue(gg_exchange *x) {
    if (x->strategy->complete_residue != NULL) x->strategy->complete_residue(x->strategy);
}

double gg_exchange_residue(gg_exchange *x) {
    const float *residue = gg_state_residue(&x->state), *weights = gg_state_weights(&x->state);
    const double whole = trained_squares(x, weights, NULL);
    double rest = residue != NULL ? trained_squares(x, residue, NULL) : 0;
    int copies = 0;
    for (int i = 0; i < x->state.arenas; ++i) {
        const gg_arena *arena = &x->state.arena[i];
        if (arena->kind != GG_ARENA_COPY || trained_squares(x, arena->data, NULL) == 0) continue; /* not begun */
        rest += trained_squares(x, weights, arena->data);
        ++copies;
    }
    return whole != 0 ? sqrt(rest / (copies > 1 ? copies : 1) / whole) : 0; /* NaN stays NaN */
}

gg_status gg_exchange_distance(gg_exchange *x, double *distance) {
    gg_status status = GG_OK;
    const float *mean = NULL;
    GG_TRY_CLEANUP(exchange_average(x, &mean));
    double distance_squared = gg_exchange_trains(x) ? trained_squares(x, gg_state_weights(&x->state), mean) : 0;
    double whole = trained_squares(x, mean, NULL);
    double own = whole != 0 ? sqrt(distance_squared / whole) : 0; /* NaN stays NaN */
    GG_TRY_CLEANUP(gg_exchange_at(x, "consensus distance", gg_allreduce_doubles(x->transport, &own, 1)));
    *distance = own / x->workers;
cleanup:
    return gg_exchange_fail(x, status);
}

/* ---- questions ---- */

const int *gg_exchange_buckets(const gg_exchange *x) {
    const gg_buckets *buckets = x->strategy->buckets;
    return x->transport->size > 1 && buckets != NULL ? buckets->bucket_of_layer : NULL;
}

gg_state *gg_exchange_state(gg_exchange *x) { return &x->state; }
const gg_exchange_options *gg_exchange_asked(const gg_exchange *x) { return &x->asked; }
const gg_arena_layout *gg_exchange_layout(const gg_exchange *x) { return &x->layout; }
const gg_devices *gg_exchange_devices(const gg_exchange *x) { return &x->devices; }
gg_transport *gg_exchange_transport(const gg_exchange *x) { return x->transport; }
gg_trace *gg_exchange_trace(const gg_exchange *x) { return x->trace; }
double gg_exchange_clock_offset(const gg_exchange *x) { return x->clock_offset; }
int64_t gg_exchange_loads(const gg_exchange *x) { return x->loads; }
bool gg_exchange_is_whole(const gg_exchange *x) { return x->strategy != NULL; }
const gg_tuning *gg_exchange_tuning(const gg_exchange *x) { return &x->tuning; }
bool gg_exchange_compresses(const gg_exchange *x) {
    return x->strategy != NULL && x->strategy->compression_counts != NULL;
}
bool gg_exchange_averages_gradients(const gg_exchange *x) { return x->strategy->averages_gradients; }
int gg_exchange_workers(const gg_exchange *x) { return x->workers; }
bool gg_exchange_trains(const gg_exchange *x) { return x->transport->rank < x->workers; }
bool gg_exchange_failed(const gg_exchange *x) { return x->failed; }

int64_t gg_exchange_received(const gg_exchange *x, int rank) {
    const gg_receipts *receipts = x->strategy != NULL ? x->strategy->receipts : NULL;
    if (receipts == NULL || receipts->last[rank] < receipts->lag) return -1;
    return receipts->last[rank] - receipts->lag;
}

void gg_exchange_counted(const gg_exchange *x, gg_exchange_counts *out) {
    *out = (gg_exchange_counts){.exposed_seconds = x->strategy->exposed_seconds,
                                .bytes = x->transport->bytes_sent,
                                .messages = x->transport->messages_sent,
                                .skipped = x->strategy->skipped};
    if (x->strategy->compression_counts != NULL) out->compression = *x->strategy->compression_counts;
}

size_t gg_exchange_bytes(const gg_exchange *x) {
    const size_t whole = (size_t)(x->state.arenas - gg_state_moments(&x->state)); /* arenas of all elements */
    const size_t kept = x->factored != NULL ? gg_factored_bytes(x->factored) : 0;
    return whole * x->state.count * sizeof(float) + (size_t)gg_state_moment_bytes(&x->state, false) + kept;
}
