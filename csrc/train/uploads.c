#include "train/uploads.h"

#include <string.h>

#include "base/memory.h"
#include "comm/device_order.h"

void gg_uploads_open(gg_device *device, gg_transport *transport, gg_uploads *out) {
    *out = (gg_uploads){.device = gg_device_is_separate(device) ? device : NULL, .transport = transport};
}

static void free_blocks(gg_uploads *u) {
    for (int i = 0; i < GG_UPLOADS; ++i) {
        gg_device_free_host(u->device, u->upload[i].host);
        gg_device_free(u->device, u->upload[i].device);
        u->upload[i] = (gg_upload){0};
    }
    u->room = 0;
}

void gg_uploads_close(gg_uploads *u) {
    if (u->device != NULL) free_blocks(u);
    *u = (gg_uploads){0};
}

static gg_status reserve(gg_uploads *u, size_t bytes) {
    if (u->device == NULL || bytes <= u->room) return GG_OK;
    free_blocks(u);
    for (int i = 0; i < GG_UPLOADS; ++i) {
        GG_TRY(gg_device_alloc_host(u->device, bytes, "batches for the device", &u->upload[i].host));
        GG_TRY(gg_device_alloc(u->device, bytes, "batches for the device", &u->upload[i].device));
    }
    u->room = bytes;
    return GG_OK;
}

/* ---- room of a batch ---- */

static size_t scales_bytes(const gg_field *field) {
    return field->scales != NULL ? 2 * (size_t)field->runs * sizeof(float) : 0;
}

static size_t bytes_of_set(const gg_dataset *set, int64_t n) {
    size_t bytes = set->sample_weights != NULL ? gg_aligned((size_t)n * sizeof(float)) : 0;
    for (int f = 0; f < gg_dataset_fields(set); ++f)
        bytes += gg_aligned((size_t)n * gg_field_bytes(&set->field[f])) + gg_aligned(scales_bytes(&set->field[f]));
    return bytes;
}

/* Bytes of n samples of input i: float32 or int32. */
static size_t input_bytes(const gg_graph *graph, int i, int64_t n) {
    return (size_t)(n * gg_shape_count(&gg_graph_node(graph, gg_graph_input(graph, i))->shape)) * sizeof(float);
}

/* Bytes of n samples of a head's target: a class each position, or as many numbers as the head's output. */
static size_t target_bytes(const gg_graph *graph, const gg_head_options *head, int h, int64_t n) {
    const gg_shape *shape = &gg_graph_node(graph, gg_graph_head(graph, h)->node)->shape;
    const bool classes = head[h].loss.kind == GG_LOSS_CROSS_ENTROPY;
    return (size_t)(n * gg_shape_count(shape) / (classes ? shape->size[shape->dims - 1] : 1)) * sizeof(float);
}

gg_status gg_uploads_reserve_set(gg_uploads *u, const gg_dataset *set, int64_t n) {
    return reserve(u, bytes_of_set(set, n));
}

static size_t bytes_of_given(const gg_graph *graph, const gg_head_options *head, int64_t n) {
    size_t bytes = 0;
    for (int i = 0; i < gg_graph_inputs(graph); ++i) bytes += gg_aligned(input_bytes(graph, i, n));
    for (int h = 0; h < gg_graph_heads(graph); ++h) bytes += gg_aligned(target_bytes(graph, head, h, n));
    return bytes;
}

gg_status gg_uploads_reserve_given(gg_uploads *u, const gg_graph *graph, const gg_head_options *head, int64_t n) {
    return reserve(u, bytes_of_given(graph, head, n));
}

/* ---- writing and sending ---- */

static gg_status begin_upload(gg_uploads *u, size_t bytes) {
    GG_TRY(reserve(u, bytes));
    GG_TRY(gg_device_attend(u->transport, u->device, u->upload[u->next].sent));
    u->filled = 0;
    memset(u->gather, 0, sizeof u->gather);
    return GG_OK;
}

/* Room in the block that is being written. */
static void *next_room(gg_uploads *u, size_t bytes) {
    void *at = u->upload[u->next].host + u->filled;
    u->filled += gg_aligned(bytes);
    return at;
}

static const void *copied(gg_uploads *u, const void *from, size_t bytes) {
    return bytes > 0 ? memcpy(next_room(u, bytes), from, bytes) : NULL;
}

/* Device address of the host's bytes in a block; NULL stays NULL. */
static const void *uploaded(const gg_uploads *u, const void *host) {
    const gg_upload *it = &u->upload[u->next];
    return host != NULL ? it->device + ((const char *)host - it->host) : NULL;
}

static void send_upload(gg_uploads *u, gg_plan_batch *out) {
    gg_upload *it = &u->upload[u->next];
    gg_device_follow(u->device, GG_QUEUE_COPY, it->used);
    if (u->timed) u->time[0] = gg_device_time(u->device, GG_QUEUE_COPY);
    gg_device_copy(u->device, GG_QUEUE_COPY, it->device, it->host, u->filled);
    if (u->timed) u->time[1] = gg_device_time(u->device, GG_QUEUE_COPY);
    it->sent = gg_device_mark(u->device, GG_QUEUE_COPY);
    gg_device_follow(u->device, GG_QUEUE_COMPUTE, it->sent);
    for (int i = 0; i < GG_MAX_FIELDS; ++i) {
        u->gather[i].rows = uploaded(u, u->gather[i].rows);
        u->gather[i].scales = uploaded(u, u->gather[i].scales);
        out->target[i] = uploaded(u, out->target[i]);
    }
    out->sample_weights = uploaded(u, out->sample_weights);
    out->input = u->gather;
}

void gg_uploads_done(gg_uploads *u) {
    if (u->device == NULL) return;
    u->upload[u->next].used = gg_device_mark(u->device, GG_QUEUE_COMPUTE);
    u->next = (u->next + 1) % GG_UPLOADS;
}

/* ---- batches of a loader ---- */

static void into_plan(gg_plan *plan, gg_batch *batch) {
    for (int i = 0; i < gg_plan_inputs(plan); ++i)
        batch->input[i] = (gg_batch_input){.format = gg_plan_input_format(plan, i), .data = gg_plan_input(plan, i)};
}

static gg_plan_batch plan_batch(const gg_batch *batch) {
    gg_plan_batch made = {.sample_weights = batch->sample_weights, .begins = batch->begins};
    for (int i = 0; i < GG_MAX_FIELDS; ++i) made.target[i] = batch->target[i];
    return made;
}

/* Places a batch in the block that is being written. */
static void into_upload(gg_uploads *u, const gg_dataset *set, int64_t n, gg_batch *batch) {
    for (int i = 0; i < set->inputs; ++i)
        batch->input[i] =
            (gg_batch_input){.data = next_room(u, (size_t)n * gg_field_bytes(&set->field[i])), .gather = &u->gather[i]};
    for (int i = 0; i < set->targets; ++i)
        batch->target[i] = next_room(u, (size_t)n * gg_field_bytes(gg_dataset_target(set, i)));
    if (set->sample_weights != NULL) batch->sample_weights = next_room(u, (size_t)n * sizeof(float));
}

gg_status gg_uploads_read(gg_uploads *u, gg_loader *loader, gg_device *host, const gg_dataset *set, int64_t t,
                          int64_t n, gg_plan *plan, gg_batch *batch, gg_plan_batch *out) {
    gg_batch own = *batch;
    if (u->device == NULL) {
        into_plan(plan, batch);
        GG_TRY(gg_loader_read(loader, host, t, batch));
        *out = plan_batch(batch);
        return GG_OK;
    }
    GG_TRY(begin_upload(u, bytes_of_set(set, n)));
    into_upload(u, set, n, &own);
    GG_TRY(gg_loader_read(loader, host, t, &own));
    for (int i = 0; i < set->inputs; ++i)
        u->gather[i].scales = copied(u, u->gather[i].scales, scales_bytes(&set->field[i]));
    *out = plan_batch(&own);
    send_upload(u, out);
    return GG_OK;
}

/* ---- batches of a caller ---- */

/* Puts a caller's rows into the plan's inputs. */
static void give_to_plan(gg_device *host, const gg_graph *graph, int64_t n, const void *const *input, gg_plan *plan) {
    for (int i = 0; i < gg_plan_inputs(plan); ++i) {
        const gg_format format = gg_plan_input_format(plan, i);
        if (gg_plan_input(plan, i) == NULL) continue;
        if (format.dtype == GG_INT32) {
            memcpy(gg_plan_input(plan, i), input[i], input_bytes(graph, i, n));
            continue;
        }
        host->table->gather(host, &(gg_gather_args){.dtype = GG_FLOAT32,
                                                    .rows = input[i],
                                                    .values = (int64_t)(input_bytes(graph, i, 1) / sizeof(float)),
                                                    .n = n,
                                                    .scale = 1.0f,
                                                    .layout = format.layout,
                                                    .out = gg_plan_input(plan, i)});
    }
}

gg_status gg_uploads_give(gg_uploads *u, gg_device *host, const gg_graph *graph, const gg_head_options *head, int64_t n,
                          const void *const *input, const void *const *target, gg_plan *plan, gg_plan_batch *out) {
    *out = (gg_plan_batch){0};
    if (u->device == NULL) {
        give_to_plan(host, graph, n, input, plan);
        memcpy(out->target, target, sizeof out->target);
        return GG_OK;
    }
    GG_TRY(begin_upload(u, bytes_of_given(graph, head, n)));
    for (int i = 0; i < gg_graph_inputs(graph); ++i)
        u->gather[i] = (gg_gather_args){.dtype = gg_graph_node(graph, gg_graph_input(graph, i))->dtype,
                                        .rows = copied(u, input[i], input_bytes(graph, i, n)),
                                        .values = (int64_t)(input_bytes(graph, i, 1) / sizeof(float)),
                                        .n = n,
                                        .scale = 1.0f};
    for (int h = 0; h < gg_graph_heads(graph); ++h) {
        const int k = head[h].target;
        if (out->target[k] == NULL && target[k] != NULL)
            out->target[k] = copied(u, target[k], target_bytes(graph, head, h, n));
    }
    send_upload(u, out);
    return GG_OK;
}
