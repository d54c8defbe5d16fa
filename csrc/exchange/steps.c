#include "exchange/steps.h"

#include <string.h>

#include "base/memory.h"

/* Min elements of a parameter whose gradient is read in its maker's memory. */
#define LARGE 16384

struct gg_steps {
    gg_exchange *exchange;
    const gg_arena_layout *layout;
    gg_transport *transport;
    float *written; /* gradients, if the state's are not private; else NULL */
    bool *needed;   /* one a layer: its forward time has been charged in this step */
    gg_lent *lent;  /* room for those of a layer */
    double seconds; /* of a step, charged to the clock */
    double begun;   /* when the step began */
};

gg_status gg_steps_create(gg_exchange *exchange, double seconds, gg_steps **out) {
    gg_status status = GG_OK;
    gg_steps *s = NULL;
    const gg_state *state = gg_exchange_state(exchange);
    *out = NULL;
    GG_TRY_CLEANUP(gg_calloc(1, sizeof *s, "steps", &s));
    s->exchange = exchange;
    s->layout = gg_exchange_layout(exchange);
    s->transport = gg_exchange_transport(exchange);
    s->seconds = seconds;
    GG_TRY_CLEANUP(gg_calloc((size_t)s->layout->layers + 1, sizeof *s->needed, "layers that were needed", &s->needed));
    GG_TRY_CLEANUP(gg_calloc((size_t)s->layout->parameters + 1, sizeof *s->lent, "lent gradients", &s->lent));
    if (state->arena[GG_GRADIENTS].memory != GG_MEMORY_PRIVATE)
        GG_TRY_CLEANUP(gg_calloc(state->count, sizeof *s->written, "gradients", &s->written));
    *out = s;
cleanup:
    if (status != GG_OK) gg_steps_destroy(s);
    return status;
}

void gg_steps_destroy(gg_steps *s) {
    if (s == NULL) return;
    gg_free(s->written);
    gg_free(s->needed);
    gg_free(s->lent);
    gg_free(s);
}

float *gg_steps_gradients(const gg_steps *s) {
    return s->written != NULL ? s->written : gg_state_gradients(gg_exchange_state(s->exchange));
}

bool gg_steps_is_large(const gg_parameter *parameter) {
    return parameter->count >= LARGE && parameter->count % GG_LANES == 0;
}

void gg_steps_zero_gradients(gg_steps *s) {
    float *gradients = gg_steps_gradients(s);
    for (int i = 0; i < s->layout->parameters; ++i) {
        const gg_parameter *it = &s->layout->parameter[i];
        if (!gg_steps_is_large(it)) memset(gradients + it->offset, 0, it->count * sizeof(float));
    }
}

/* Seconds of a layer's forward pass, a third of a step's, by its number of elements. */
static double forward_seconds(const gg_steps *s, int layer) {
    return s->seconds / 3 * (double)s->layout->layer[layer].slice.count / (double)s->layout->count;
}

static void steps_record(gg_steps *s, const char *name, double begin) {
    gg_trace *trace = gg_exchange_trace(s->exchange);
    if (trace == NULL) return;
    gg_trace_add(trace, &(gg_trace_span){.begin = begin,
                                         .end = gg_transport_now(s->transport),
                                         .name = name,
                                         .step = gg_exchange_state(s->exchange)->step,
                                         .lane = GG_LANE_COMPUTE,
                                         .index = -1});
}

gg_status gg_steps_begin(gg_steps *s, const int64_t *batches) {
    if (!gg_exchange_under_way(s->exchange, false)) {
        s->begun = gg_transport_now(s->transport);
        for (int layer = 0; layer < s->layout->layers; ++layer) s->needed[layer] = false;
    }
    return gg_exchange_begin(s->exchange, batches);
}

gg_status gg_steps_need(gg_steps *s, int layer) {
    GG_TRY(gg_exchange_need(s->exchange, layer));
    if (s->needed[layer] || s->seconds == 0) return GG_OK;
    s->needed[layer] = true;
    return gg_transport_compute(s->transport, forward_seconds(s, layer));
}

/* Lists the parameters of a layer whose gradients lie elsewhere than in the arena. */
static gg_status list_lent(gg_steps *s, int layer, const float *const *gradient, int *lents) {
    const int first = s->layout->layer[layer].first_parameter;
    *lents = 0;
    for (int i = 0; gradient != NULL && i < s->layout->layer[layer].parameters; ++i) {
        const gg_parameter *parameter = &s->layout->parameter[first + i];
        if (gradient[i] == NULL) continue;
        if (!gg_steps_is_large(parameter) || (uintptr_t)gradient[i] % GG_ALIGNMENT != 0)
            return gg_fail(
                GG_ERROR_ARGUMENT,
                "ready: the gradient of '%s', %zu elements at address %p; allowed elsewhere than in the arena: %d "
                "elements or more, a multiple of %d, at an address that %d divides",
                parameter->name, parameter->count, (const void *)gradient[i], LARGE, GG_LANES, GG_ALIGNMENT);
        s->lent[(*lents)++] =
            (gg_lent){.offset = parameter->offset, .count = parameter->count, .gradient = gradient[i]};
    }
    return GG_OK;
}

/* Gradients of a layer that the caller wrote go to the strategy's arena, but for those that lie elsewhere. */
static void copy_written(gg_steps *s, int layer, int lents) {
    const gg_slice *slice = gg_arena_layout_slice(s->layout, layer);
    float *arena = gg_state_gradients(gg_exchange_state(s->exchange));
    size_t at = slice->offset;
    for (int i = 0; i <= lents; ++i) {
        const size_t next = i < lents ? s->lent[i].offset : slice->offset + slice->count;
        memcpy(arena + at, s->written + at, (next - at) * sizeof *arena);
        at = i < lents ? next + s->lent[i].count : next;
    }
}

gg_status gg_steps_ready(gg_steps *s, int layer, const float *const *gradient) {
    int lents = 0;
    GG_TRY(gg_exchange_check_ready(s->exchange, layer));
    GG_TRY(list_lent(s, layer, gradient, &lents));
    if (s->seconds > 0) GG_TRY(gg_transport_compute(s->transport, 2 * forward_seconds(s, layer)));
    const double begin = gg_transport_now(s->transport);
    if (s->written != NULL) copy_written(s, layer, lents);
    GG_TRY(gg_exchange_ready_from(s->exchange, layer, s->lent, lents));
    if (!gg_exchange_updates_wait(s->exchange)) steps_record(s, "update", begin);
    return GG_OK;
}

gg_status gg_steps_end(gg_steps *s) {
    gg_exchange *x = s->exchange;
    const double begin = gg_transport_now(s->transport);
    if (gg_exchange_trains(x) && gg_exchange_updates_wait(x)) {
        GG_TRY(gg_exchange_ready_all(x));
        steps_record(s, "update", begin);
    }
    GG_TRY(gg_exchange_end(x));
    steps_record(s, "step", s->begun);
    gg_exchange_state(x)->step++;
    return GG_OK;
}

gg_status gg_steps_whole(gg_steps *s, const int64_t *batches) {
    const int layers = gg_exchange_trains(s->exchange) ? s->layout->layers : 0;
    GG_TRY(gg_steps_begin(s, batches));
    for (int layer = 0; layer < layers; ++layer) GG_TRY(gg_steps_need(s, layer));
    for (int layer = layers - 1; layer >= 0; --layer) {
        GG_TRY(gg_steps_ready(s, layer, NULL));
        GG_TRY(gg_exchange_poll(s->exchange));
    }
    GG_TRY(gg_steps_end(s));
    return gg_exchange_wait(s->exchange);
}
