#include "exchange/parts/factored.h"

#include <string.h>

#include "base/memory.h"

/* State of a layer in a step: NOTHING is kept; its inputs are; BOTH inputs and errors are. */
typedef enum factored_stage { NOTHING = 0, INPUT, BOTH } factored_stage;

typedef struct factored_layer {
    int layer;
    size_t offset, count; /* of the weight, in the arenas */
    gg_gradient_factors factors;
    void *input, *error; /* `room` bytes of each */
    size_t input_room, error_room;
    factored_stage stage;
} factored_layer;

/* Rows are computed behind the rest of the rows before, so that a run is contiguous: element `begin` lies at a multiple
 * of GG_LANES from the element 0 of the arenas. */
struct gg_factored {
    gg_device *device;
    int count;
    factored_layer *layer;
    size_t longest_run;
    float *memory; /* longest_run elements for the begin of a run, then rows */
    size_t memory_room;
    const factored_layer *of; /* the layer of the rows in memory; NULL means none */
    size_t begin, end;        /* elements of its weight in memory; the last ones are read next */
    float *at;                /* element `begin` */
    int arenas;
    const gg_arena *uses[GG_MAX_USED_NEXT]; /* arenas that are used where the gradient is read */
};

const gg_parameter *gg_factored_weight(const gg_arena_layout *layout, int layer) {
    const gg_layer_place *place = &layout->layer[layer];
    return place->partitionable ? &layout->parameter[place->first_parameter] : NULL;
}

/* True if the device would compute rows of the smallest batch, which gains most. */
static bool factored_fits(const gg_device *device, const gg_parameter *weight) {
    gg_gradient_factors smallest = {.batch = 1, .in = weight->shape.size[1], .out = weight->shape.size[0]};
    return device->table->factors != NULL && device->table->factors(device, &smallest);
}

gg_status gg_factored_create(gg_device *device, const gg_arena_layout *layout, const gg_factored_wish *wish, int wishes,
                             gg_factored **out) {
    gg_status status = GG_OK;
    gg_factored *made = NULL;
    *out = NULL;
    GG_TRY_CLEANUP(gg_calloc(1, sizeof *made, "factors", &made));
    made->device = device;
    GG_TRY_CLEANUP(gg_calloc((size_t)wishes, sizeof *made->layer, "factors", &made->layer));
    for (int i = 0; i < wishes; ++i) {
        const gg_parameter *weight = gg_factored_weight(layout, wish[i].layer);
        if (weight == NULL || !factored_fits(device, weight)) continue;
        if (wish[i].run > made->longest_run) made->longest_run = wish[i].run;
        made->layer[made->count++] =
            (factored_layer){.layer = wish[i].layer,
                             .offset = weight->offset,
                             .count = weight->count,
                             .factors = {.in = weight->shape.size[1], .out = weight->shape.size[0]}};
    }
    if (made->count == 0) goto cleanup;
    *out = made;
    made = NULL;
cleanup:
    gg_factored_destroy(made);
    return status;
}

void gg_factored_destroy(gg_factored *factored) {
    if (factored == NULL) return;
    for (int i = 0; i < factored->count; ++i) {
        gg_free(factored->layer[i].input);
        gg_free(factored->layer[i].error);
    }
    gg_free(factored->layer);
    gg_free(factored->memory);
    gg_free(factored);
}

void gg_factored_uses(gg_factored *factored, const gg_arena *arena) {
    if (factored->arenas < GG_MAX_USED_NEXT) factored->uses[factored->arenas++] = arena;
}

static factored_layer *layer_of(const gg_factored *factored, int layer) {
    for (int i = 0; i < factored->count; ++i)
        if (factored->layer[i].layer == layer) return &factored->layer[i];
    return NULL;
}

/* Enlarges memory to `bytes` if it is too small; its content is then lost. */
static gg_status reserve(size_t bytes, const char *what, void **memory, size_t *room) {
    if (bytes <= *room) return GG_OK;
    gg_free(*memory);
    *memory = NULL;
    *room = 0;
    GG_TRY(gg_alloc(bytes, what, memory));
    *room = bytes;
    return GG_OK;
}

gg_status gg_factored_input(gg_factored *factored, int layer, const gg_vectors *input, bool *taken) {
    gg_status status = GG_OK;
    factored_layer *own = layer_of(factored, layer);
    gg_device *device = factored->device;
    *taken = false;
    if (own == NULL) return status;
    own->stage = NOTHING;
    if (factored->of == own) factored->of = NULL; /* rows of another step */
    own->factors.batch = input->batch;
    if (input->dtype != GG_FLOAT32 || !device->table->factors(device, &own->factors)) return status;
    const size_t rows = (size_t)(own->factors.rows * own->factors.in);
    void *memory = factored->memory;
    status = reserve((factored->longest_run + rows + 2 * GG_LANES) * sizeof(float), "rows of a gradient", &memory,
                     &factored->memory_room);
    factored->memory = memory;
    GG_TRY(status);
    GG_TRY(reserve(own->factors.input_bytes, "inputs that are kept", &own->input, &own->input_room));
    GG_TRY(reserve(own->factors.error_bytes, "errors that are kept", &own->error, &own->error_room));
    device->table->keep_input(device, &own->factors, input, own->input);
    own->stage = INPUT;
    *taken = true;
    return status;
}

gg_status gg_factored_error(gg_factored *factored, int layer, const gg_vectors *error) {
    factored_layer *own = layer_of(factored, layer);
    if (own == NULL || own->stage != INPUT || error->batch != own->factors.batch || error->dtype != GG_FLOAT32)
        return gg_fail(GG_ERROR_STATE, "errors of layer %d, %lld samples: other inputs have been kept, or none", layer,
                       (long long)error->batch);
    factored->device->table->keep_error(factored->device, &own->factors, error, own->error);
    own->stage = BOTH;
    return GG_OK;
}

/* Computes the next rows behind the rest, which starts at element `from`. */
static void next_rows(gg_factored *factored, size_t from) {
    const factored_layer *own = factored->of;
    const gg_gradient_factors *f = &own->factors;
    const int64_t first = (int64_t)factored->end / f->in;
    const int64_t rows = f->out - first < f->rows ? f->out - first : f->rows;
    const size_t left = factored->end - from, count = (size_t)(rows * f->in);
    float *at = factored->memory + factored->longest_run + factored->end % GG_LANES;
    memmove(at - left, factored->at + (from - factored->begin), left * sizeof *at);
    gg_gradient_rows args = {.first = first, .count = rows, .out = at, .used = factored->arenas};
    for (int i = 0; i < args.used; ++i) args.used_next[i] = factored->uses[i]->data + own->offset + factored->end;
    factored->device->table->gradient_rows(factored->device, f, own->input, own->error, &args);
    factored->at = at - left;
    factored->begin = from;
    factored->end += count;
    if (factored->end == own->count) memset(at + count, 0, (GG_LANES - own->count % GG_LANES) % GG_LANES * sizeof *at);
}

/* Begins with the weight's first element, or continues with it; NULL means that the element is in no such weight. */
static const factored_layer *factored_at(gg_factored *factored, size_t offset) {
    const factored_layer *own = factored->of;
    if (own != NULL && offset >= own->offset && offset < own->offset + own->count) return own;
    own = NULL;
    for (int i = 0; i < factored->count && own == NULL; ++i)
        if (factored->layer[i].offset == offset && factored->layer[i].stage == BOTH) own = &factored->layer[i];
    factored->of = own;
    factored->begin = factored->end = 0;
    factored->at = factored->memory;
    return own;
}

float *gg_factored_run(gg_factored *factored, size_t offset, size_t count) {
    const factored_layer *own = factored_at(factored, offset);
    if (own == NULL) return NULL;
    const size_t from = offset - own->offset;
    while (factored->end < own->count && factored->end < from + count) next_rows(factored, from);
    return factored->at + (from - factored->begin);
}

/* Elements up to the next computed weight, max `most`. */
static size_t up_to_next(const gg_factored *factored, size_t offset, size_t most) {
    for (int i = 0; i < factored->count; ++i) {
        const factored_layer *one = &factored->layer[i];
        if (one->stage == BOTH && one->offset > offset && one->offset - offset < most) most = one->offset - offset;
    }
    return most;
}

const float *gg_factored_next(void *context, size_t offset, size_t most, size_t *count) {
    gg_factored *factored = context;
    const factored_layer *own = factored_at(factored, offset);
    if (own == NULL) {
        *count = up_to_next(factored, offset, most);
        return NULL;
    }
    const size_t from = offset - own->offset;
    while (factored->end < own->count && factored->end < from + GG_LANES) next_rows(factored, from);
    const size_t left = factored->end - from + (factored->end == own->count ? GG_LANES - 1 : 0);
    *count = left / GG_LANES * GG_LANES;
    if (*count > most) *count = most;
    return factored->at + (from - factored->begin);
}

size_t gg_factored_bytes(const gg_factored *factored) {
    size_t bytes = factored->memory_room;
    for (int i = 0; i < factored->count; ++i) bytes += factored->layer[i].input_room + factored->layer[i].error_room;
    return bytes;
}

void gg_factored_write(gg_factored *factored, float *gradients) {
    gg_device *device = factored->device;
    for (int i = 0; i < factored->count; ++i) {
        const factored_layer *own = &factored->layer[i];
        const gg_gradient_factors *f = &own->factors;
        for (int64_t first = 0; own->stage == BOTH && first < f->out; first += f->rows)
            device->table->gradient_rows(
                device, f, own->input, own->error,
                &(gg_gradient_rows){.first = first,
                                    .count = f->out - first < f->rows ? f->out - first : f->rows,
                                    .out = gradients + own->offset + (size_t)(first * f->in)});
    }
}

void gg_factored_end(gg_factored *factored) {
    for (int i = 0; i < factored->count; ++i) factored->layer[i].stage = NOTHING;
    factored->of = NULL;
}
