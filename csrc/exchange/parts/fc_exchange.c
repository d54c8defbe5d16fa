#include "exchange/parts/fc_exchange.h"

#include <math.h>
#include <string.h>

#include "base/memory.h"
#include "exchange/parts/common.h"
#include "exchange/parts/factored.h"
#include "exchange/parts/stream.h"

/* Weights smaller than this are not chosen, because each message has a cost besides its bytes: they are sent with their
 * neighbours. */
#define MIN_BYTES 65536

static const char *const names[GG_FC_WHATS] = {"inputs", "errors"};

static int ranks_of(const gg_fc_exchange *x) { return x->owner->env.transport->size; }
static int rank_of(const gg_fc_exchange *x) { return x->owner->env.transport->rank; }
static gg_fc_slice *own_slice(const gg_fc_exchange *x, const gg_fc *fc) { return &fc->slice[rank_of(x)]; }

static gg_request *fc_request_of(const gg_fc_exchange *x, gg_request *requests, int what, int rank) {
    return &requests[(size_t)what * (size_t)ranks_of(x) + (size_t)rank];
}

static gg_status at_layer(const gg_fc_exchange *x, const gg_fc *fc, gg_status status) {
    return gg_strategy_at(x->owner, fc->layer, fc->layer, status);
}

/* ---- which layers ---- */

static gg_slice lanes_of(const gg_parameter *weight) {
    return (gg_slice){weight->offset, (weight->count + GG_LANES - 1) / GG_LANES * GG_LANES};
}

static gg_fc_slice slice_of(const gg_parameter *weight, int rank, int ranks, int64_t rows_before) {
    int64_t in = weight->shape.size[1];
    const gg_allreduce_slice lanes = gg_allreduce_even_slice(lanes_of(weight).count, rank, ranks);
    gg_fc_slice slice = {.first = (int64_t)lanes.begin, .rows_before = rows_before};
    size_t end = lanes.begin + lanes.count;
    if (end > weight->count) end = weight->count;
    if (lanes.begin >= end) return slice;
    slice.count = (int64_t)(end - lanes.begin);
    slice.row = slice.first / in;
    slice.rows = ((int64_t)end - 1) / in + 1 - slice.row;
    return slice;
}

/* True if exchanging inputs and errors sends fewer bytes, with `samples` on all ranks together. In both ways a rank
 * does not send itself its p-th part. Equal on every rank. */
static bool fc_cheaper(const gg_parameter *weight, int ranks, double samples, size_t size) {
    double values = 0;
    if (weight->count * sizeof(float) < MIN_BYTES) return false;
    for (int r = 0; r < ranks; ++r) {
        gg_fc_slice slice = slice_of(weight, r, ranks, 0);
        if (slice.count > 0) values += (double)(weight->shape.size[1] + slice.rows);
    }
    return samples * values * (double)sizeof(float) < (double)ranks * (double)weight->count * (double)size;
}

void gg_fc_candidates(const gg_strategy_env *env, gg_partition_fc choice, size_t size, gg_slice *separate) {
    int ranks = env->transport->size;
    if (ranks == 1 || choice == GG_PARTITION_NONE) return;
    for (int layer = 0; layer < env->layout->layers; ++layer) {
        const gg_parameter *weight = gg_factored_weight(env->layout, layer);
        if (weight == NULL) continue;
        /* Every step has at least one sample of each rank. */
        if (choice == GG_PARTITION_ALL || fc_cheaper(weight, ranks, ranks, size)) separate[layer] = lanes_of(weight);
    }
}

/* ---- creation and destruction ---- */

static gg_status create_one(gg_fc_exchange *x, gg_fc *fc, const gg_partition *partition) {
    const gg_parameter *weight = gg_factored_weight(x->owner->env.layout, fc->layer);
    size_t p = (size_t)ranks_of(x);
    int64_t rows = 0;
    fc->out = weight->shape.size[0];
    fc->in = weight->shape.size[1];
    GG_TRY(gg_calloc(p, sizeof *fc->slice, "slices of a layer", &fc->slice));
    GG_TRY(gg_calloc(GG_FC_WHATS * p, sizeof *fc->in_request, "requests", &fc->in_request));
    GG_TRY(gg_calloc(GG_FC_WHATS * p, sizeof *fc->out_request, "requests", &fc->out_request));
    for (int r = 0; r < ranks_of(x); ++r) {
        fc->slice[r] = slice_of(weight, r, ranks_of(x), rows);
        rows += fc->slice[r].rows;
    }
    for (int i = 0; i < partition->chunks; ++i)
        fc->own_chunks += partition->layer[i] == fc->layer && gg_partition_part(partition, rank_of(x), i)->count > 0;
    return GG_OK;
}

gg_status gg_fc_create(gg_strategy *owner, gg_partition_fc choice, size_t size, const gg_slice *separate,
                       const gg_partition *partition, int tag, gg_fc_exchange *out) {
    int layers = owner->env.layout->layers, count = 0;
    for (int layer = 0; layer < layers; ++layer) count += separate[layer].count > 0;
    *out = (gg_fc_exchange){.owner = owner, .choice = choice, .size = size, .tag = tag};
    if (tag + GG_FC_WHATS * count > GG_TAG_LIMIT)
        return gg_fail(GG_ERROR_ARGUMENT,
                       "partition_fc: %d layers are more than the %d for which there are tags beside %d chunks", count,
                       (GG_TAG_LIMIT - tag) / GG_FC_WHATS, partition->chunks);
    GG_TRY(gg_calloc((size_t)layers + 1, sizeof *out->of_layer, "partitioned layers", &out->of_layer));
    GG_TRY(gg_calloc((size_t)layers + 1, sizeof *out->partitioned, "partitioned layers", &out->partitioned));
    GG_TRY(gg_calloc((size_t)count + 1, sizeof *out->fc, "partitioned layers", &out->fc));
    for (int layer = 0; layer < layers; ++layer) {
        out->of_layer[layer] = separate[layer].count > 0 ? out->count : -1;
        if (separate[layer].count == 0) continue;
        gg_fc *fc = &out->fc[out->count++];
        fc->layer = layer;
        GG_TRY(create_one(out, fc, partition));
    }
    return GG_OK;
}

static void free_room(gg_fc_exchange *x, gg_fc *fc) {
    for (int what = 0; what < GG_FC_WHATS; ++what) {
        gg_message_free(x->owner->env.transport, fc->packed[what]);
        gg_device_free_host(x->owner->env.device, fc->landing[what]);
        fc->packed[what] = fc->landing[what] = NULL;
    }
    fc->room = 0;
}

void gg_fc_destroy(gg_fc_exchange *x) {
    for (int i = 0; i < x->count; ++i) {
        gg_fc *fc = &x->fc[i];
        gg_cancel_all(x->owner->env.transport, fc->in_request, GG_FC_WHATS * ranks_of(x));
        gg_cancel_all(x->owner->env.transport, fc->out_request, GG_FC_WHATS * ranks_of(x));
        free_room(x, fc);
        gg_free(fc->slice);
        gg_free(fc->in_request);
        gg_free(fc->out_request);
    }
    gg_free(x->fc);
    gg_free(x->of_layer);
    gg_free(x->partitioned);
    memset(x, 0, sizeof *x);
}

/* ---- the step ---- */

static gg_status wait_sent(gg_fc_exchange *x, gg_fc *fc, int what) {
    gg_status status = GG_OK;
    for (int r = 0; r < ranks_of(x); ++r)
        GG_TRY_CLEANUP(gg_strategy_wait(x->owner, fc_request_of(x, fc->out_request, what, r)));
cleanup:
    return at_layer(x, fc, status);
}

/* Values of all samples of a rank: its inputs; or its errors, of all slices or of this rank's. */
static int64_t packed_values(const gg_fc_exchange *x, const gg_fc *fc, int what) {
    const gg_fc_slice *last = &fc->slice[ranks_of(x) - 1];
    return what == GG_FC_INPUT ? fc->in : last->rows_before + last->rows;
}

static int64_t landed_values(const gg_fc_exchange *x, const gg_fc *fc, int what) {
    return what == GG_FC_INPUT ? fc->in : own_slice(x, fc)->rows;
}

static gg_status make_room(gg_fc_exchange *x, gg_fc *fc, int64_t room) {
    gg_status status = GG_OK;
    for (int what = 0; what < GG_FC_WHATS; ++what) GG_TRY_CLEANUP(wait_sent(x, fc, what));
    free_room(x, fc);
    for (int what = 0; what < GG_FC_WHATS; ++what) {
        size_t values = (size_t)(room * packed_values(x, fc, what));
        size_t landed = (size_t)(room * landed_values(x, fc, what)) * (size_t)ranks_of(x);
        GG_TRY_CLEANUP(gg_message_alloc_device(x->owner->env.transport, values * sizeof(float) + GG_READ_BEHIND,
                                               names[what], &fc->packed[what]));
        if (own_slice(x, fc)->count > 0)
            GG_TRY_CLEANUP(gg_device_alloc_landing(x->owner->env.device, landed * sizeof(float) + GG_READ_BEHIND,
                                                   names[what], &fc->landing[what]));
    }
    fc->room = room;
cleanup:
    return at_layer(x, fc, status);
}

gg_status gg_fc_begin(gg_fc_exchange *x) {
    int64_t samples = 0, most = 0;
    for (int r = 0; r < ranks_of(x); ++r) {
        samples += x->owner->batch[r];
        if (x->owner->batch[r] > most) most = x->owner->batch[r];
    }
    for (int i = 0; i < x->count; ++i) {
        gg_fc *fc = &x->fc[i];
        fc->partitioned =
            x->choice == GG_PARTITION_ALL ||
            fc_cheaper(gg_factored_weight(x->owner->env.layout, fc->layer), ranks_of(x), (double)samples, x->size);
        if (!fc->partitioned) continue;
        x->partitioned[fc->layer] = true;
        if (fc->room < most) GG_TRY(make_room(x, fc, most));
        fc->next = 1;
        fc->left = fc->own_chunks;
    }
    return GG_OK;
}

gg_fc *gg_fc_partitioned(const gg_fc_exchange *x, int layer) {
    if (layer < 0 || x->of_layer[layer] < 0) return NULL;
    gg_fc *fc = &x->fc[x->of_layer[layer]];
    return fc->partitioned ? fc : NULL;
}

static gg_status check_vectors(const gg_fc_exchange *x, const gg_vectors *given, int64_t features, const char *what) {
    if (given->batch == x->owner->batch[rank_of(x)] && given->features == features) return GG_OK;
    return gg_fail(GG_ERROR_STATE, "%s: %lld samples of %lld values; this step has %lld of %lld", what,
                   (long long)given->batch, (long long)given->features, (long long)x->owner->batch[rank_of(x)],
                   (long long)features);
}

gg_status gg_fc_input(gg_fc_exchange *x, gg_fc *fc, const gg_vectors *input, bool send) {
    gg_device *device = x->owner->env.device;
    GG_TRY(check_vectors(x, input, fc->in, names[GG_FC_INPUT]));
    GG_TRY(wait_sent(x, fc, GG_FC_INPUT)); /* of the last step: the layer waits for the weights of all peers anyway, and
                                              a peer sends them after it has read this */
    device->table->columns(device, input, 0, fc->in, fc->packed[GG_FC_INPUT]);
    if (send) GG_TRY(gg_fc_send(x, fc, GG_FC_INPUT));
    return GG_OK;
}

/* Place of this rank's errors for a slice. */
static float *errors_for(const gg_fc_exchange *x, const gg_fc *fc, int rank) {
    return fc->packed[GG_FC_ERROR] + x->owner->batch[rank_of(x)] * fc->slice[rank].rows_before;
}

gg_status gg_fc_error(gg_fc_exchange *x, gg_fc *fc, const gg_vectors *error, bool send) {
    gg_device *device = x->owner->env.device;
    GG_TRY(check_vectors(x, error, fc->out, names[GG_FC_ERROR]));
    GG_TRY(wait_sent(x, fc, GG_FC_ERROR));
    for (int r = 0; r < ranks_of(x); ++r)
        if (fc->slice[r].count > 0)
            device->table->columns(device, error, fc->slice[r].row, fc->slice[r].rows, errors_for(x, fc, r));
    if (send) GG_TRY(gg_fc_send(x, fc, GG_FC_ERROR));
    return GG_OK;
}

static float *fc_landing_of(const gg_fc_exchange *x, const gg_fc *fc, int what, int rank) {
    return fc->landing[what] + (int64_t)rank * fc->room * landed_values(x, fc, what);
}

/* Peers are visited from the next rank on, so that not all send to one. */
gg_status gg_fc_send(gg_fc_exchange *x, gg_fc *fc, int what) {
    gg_status status = GG_OK;
    gg_transport *transport = x->owner->env.transport;
    const int64_t *batch = x->owner->batch;
    int p = ranks_of(x), rank = rank_of(x), layer_tag = x->tag + GG_FC_WHATS * (int)(fc - x->fc) + what;
    gg_flight_begin(&fc->flight[what], x->owner, -1);
    for (int i = 1; i < p && own_slice(x, fc)->count > 0; ++i) {
        int from = (rank - i + p) % p;
        size_t bytes = (size_t)(batch[from] * landed_values(x, fc, what)) * sizeof(float);
        GG_TRY_CLEANUP(gg_receive_exact(transport, fc_landing_of(x, fc, what, from), bytes, from, layer_tag,
                                        fc_request_of(x, fc->in_request, what, from)));
        fc->flight[what].bytes += (int64_t)bytes;
    }
    for (int i = 1; i < p; ++i) {
        int to = (rank + i) % p;
        const gg_fc_slice *theirs = &fc->slice[to];
        const float *data = what == GG_FC_INPUT ? fc->packed[what] : errors_for(x, fc, to);
        size_t values = (size_t)(batch[rank] * (what == GG_FC_INPUT ? fc->in : theirs->rows));
        if (theirs->count > 0)
            GG_TRY_CLEANUP(gg_send(transport, data, values * sizeof(float), to, layer_tag,
                                   fc_request_of(x, fc->out_request, what, to)));
    }
cleanup:
    return at_layer(x, fc, status);
}

/* Tests, or waits for, both messages of a peer. */
static gg_status arrive_from(gg_fc_exchange *x, gg_fc *fc, int peer, bool wait, bool *both) {
    *both = true;
    for (int what = 0; what < GG_FC_WHATS && *both; ++what) {
        gg_request *request = fc_request_of(x, fc->in_request, what, peer);
        GG_TRY(gg_strategy_reach(x->owner, x->owner->env.transport, request, wait, both));
        if (*both) gg_flight_arrived(&fc->flight[what], request->when, 0);
    }
    return GG_OK;
}

gg_status gg_fc_arrive(gg_fc_exchange *x, gg_fc *fc, bool wait, bool *all) {
    const int p = ranks_of(x), rank = rank_of(x);
    for (*all = true; fc->next < p; ++fc->next) {
        GG_TRY(arrive_from(x, fc, (rank - fc->next + p) % p, wait, all));
        if (!*all) return GG_OK;
    }
    return GG_OK;
}

double gg_fc_arrived(const gg_fc *fc) { return fmax(fc->flight[GG_FC_INPUT].arrived, fc->flight[GG_FC_ERROR].arrived); }

void gg_fc_gradient(const gg_fc_exchange *x, const gg_fc *fc, int rank, size_t first, size_t count, float *out) {
    gg_device *device = x->owner->env.device;
    const gg_fc_slice *own = own_slice(x, fc);
    bool mine = rank == rank_of(x);
    const float *input = mine ? fc->packed[GG_FC_INPUT] : fc_request_of(x, fc->in_request, GG_FC_INPUT, rank)->data;
    const float *error = mine ? errors_for(x, fc, rank) : fc_request_of(x, fc->in_request, GG_FC_ERROR, rank)->data;
    int64_t left = own->first + own->count - (int64_t)first, real = left < (int64_t)count ? left : (int64_t)count;
    const gg_weight_gradient_args args = {.batch = x->owner->batch[rank],
                                          .in = fc->in,
                                          .error = error + ((int64_t)first / fc->in - own->row),
                                          .input = input,
                                          .error_row = own->rows,
                                          .first = (int64_t)first,
                                          .count = real,
                                          .out = out};
    device->table->weight_gradient(device, &args);
    gg_device_zero(device, GG_QUEUE_COMPUTE, out + real, (count - (size_t)real) * sizeof(float));
}

gg_status gg_fc_used(gg_fc_exchange *x, gg_fc *fc) {
    if (--fc->left > 0) return GG_OK;
    for (int k = 0; k < GG_FC_WHATS * ranks_of(x); ++k) GG_TRY(gg_release(x->owner->env.transport, &fc->in_request[k]));
    for (int what = 0; what < GG_FC_WHATS; ++what)
        gg_flight_end(&fc->flight[what], x->owner, names[what], fc->layer, fc->layer);
    return GG_OK;
}

gg_status gg_fc_settle(gg_fc_exchange *x) {
    for (int i = 0; i < x->count; ++i)
        for (int what = 0; what < GG_FC_WHATS; ++what) GG_TRY(wait_sent(x, &x->fc[i], what));
    return GG_OK;
}
