/* Where everything lies: lifetimes, in-place operations, meeting gradients, and one block for all.
 *
 * Buffers are placed greedily, largest first, each at the lowest address that is free over its whole lifetime. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/available.h"
#include "base/memory.h"
#include "nn/plan_internal.h"

int gg_plan_root(const gg_plan *plan, int value, size_t *offset) {
    size_t at = 0;
    while (plan->value[value].parent != GG_NONE) {
        at += plan->value[value].parent_offset;
        value = plan->value[value].parent;
    }
    if (offset != NULL) *offset = at;
    return value;
}

static int end_of_time(const gg_plan *plan) { return 2 * plan->steps; }

static gg_status add_buffer(gg_plan *plan, size_t bytes, int first, int last, int *out) {
    void *array = NULL;
    GG_TRY(gg_plan_reserve(plan->buffer, &plan->buffer_capacity, plan->buffers, sizeof(gg_buffer), &array));
    plan->buffer = array;
    size_t padded = gg_aligned(bytes);
    plan->buffer[plan->buffers] = (gg_buffer){.bytes = padded, .first = first, .last = last};
    *out = plan->buffers++;
    return GG_OK;
}

static void plan_extend(gg_buffer *buffer, int time) {
    if (time < buffer->first) buffer->first = time;
    if (time > buffer->last) buffer->last = time;
}

/* Activations ---------------------------------------------------------------------------------------------- */

static void use_value(gg_plan *plan, int value, int time) {
    gg_value *root = &plan->value[gg_plan_root(plan, value, NULL)];
    if (time < root->first) root->first = time;
    if (time > root->last) root->last = time;
}

static bool needs_input(const gg_step *step, int i) {
    const unsigned all =
        step->pass[GG_PASS_WEIGHTS]->backward_needs_input | step->pass[GG_PASS_DATA]->backward_needs_input;
    return (all >> i & 1u) != 0;
}

static bool needs_output(const gg_step *step) {
    return step->pass[GG_PASS_WEIGHTS]->backward_needs_output || step->pass[GG_PASS_DATA]->backward_needs_output;
}

static void find_lifetimes(gg_plan *plan) {
    for (int i = 0; i < plan->values; i++) {
        plan->value[i].first = plan->value[i].pinned ? 0 : end_of_time(plan);
        plan->value[i].last = plan->value[i].pinned ? end_of_time(plan) : 0;
    }
    for (int s = 0; s < plan->steps; s++) {
        const gg_step *step = &plan->step[s];
        int back = gg_plan_backward_time(plan, s);
        use_value(plan, step->output, s);
        if (step->backward && needs_output(step)) use_value(plan, step->output, back);
        for (int i = 0; i < step->inputs; i++) {
            use_value(plan, step->input[i], s);
            if (step->backward && needs_input(step, i)) use_value(plan, step->input[i], back);
        }
    }
    for (int i = 0; i < gg_graph_heads(plan->graph); i++) {
        if (plan->head[i].used) use_value(plan, plan->head[i].value, plan->steps);
    }
}

static bool stands_alone(const gg_value *value) {
    return value->parent == GG_NONE && value->children == 0 && !value->pinned;
}

/* Whether a step may write its output over its first input: nobody reads that one later. */
static bool forward_in_place(const gg_plan *plan, const gg_step *step, int time) {
    const gg_value *in = &plan->value[step->input[0]], *out = &plan->value[step->output];
    if (!step->op->in_place || !stands_alone(in) || !stands_alone(out) || in->bytes != out->bytes) return false;
    for (int i = 1; i < step->inputs; i++) {
        if (step->input[i] == step->input[0]) return false;
    }
    return in->buffer != GG_NONE && plan->buffer[in->buffer].last <= time;
}

static gg_status place_activations(gg_plan *plan) {
    for (int i = 0; i < gg_graph_inputs(plan->graph); i++) {
        const int value = plan->node[gg_graph_input(plan->graph, i)].value;
        if (value == GG_NONE) continue;
        gg_value *input = &plan->value[value];
        GG_TRY(add_buffer(plan, input->bytes, input->first, input->last, &input->buffer));
    }
    for (int s = 0; s < plan->steps; s++) {
        gg_value *out = &plan->value[plan->step[s].output];
        if (forward_in_place(plan, &plan->step[s], s)) {
            out->buffer = plan->value[plan->step[s].input[0]].buffer;
            plan_extend(&plan->buffer[out->buffer], out->last);
            continue;
        }
        gg_value *root = &plan->value[gg_plan_root(plan, plan->step[s].output, NULL)];
        if (root->buffer == GG_NONE) GG_TRY(add_buffer(plan, root->bytes, root->first, root->last, &root->buffer));
    }
    return GG_OK;
}

/* Gradients -------------------------------------------------------------------------------------------------- */

static bool is_within(const gg_plan *plan, int value, int whole) {
    while (value != whole && value != GG_NONE) value = plan->value[value].parent;
    return value == whole;
}

/* Whether any part of a value's gradient has been written. */
static bool partly_written(const gg_plan *plan, int value) {
    for (int i = 0; i < plan->values; i++) {
        if (plan->value[i].children == 0 && plan->value[i].written && is_within(plan, i, value)) return true;
    }
    return false;
}

static void mark_written(gg_plan *plan, int value) {
    for (int i = 0; i < plan->values; i++) {
        if (plan->value[i].children == 0 && is_within(plan, i, value)) plan->value[i].written = true;
    }
}

/* The place of a value's gradient, its buffer made if this is the first use. */
static gg_status grad_place(gg_plan *plan, int value, int time, gg_place *out) {
    size_t offset = 0;
    gg_value *root = &plan->value[gg_plan_root(plan, value, &offset)];
    if (root->grad_buffer == GG_NONE) GG_TRY(add_buffer(plan, root->bytes, time, time, &root->grad_buffer));
    plan_extend(&plan->buffer[root->grad_buffer], time);
    *out = (gg_place){root->grad_buffer, offset};
    return GG_OK;
}

/* Joins a gradient lying at `term` to a value's: leaf by leaf, as slices may have been written each for itself. Counts
 * the sums in *sums. */
static gg_status add_sums(gg_plan *plan, int value, gg_place term, int time, int *sums) {
    size_t begin = 0;
    void *array = NULL;
    gg_plan_root(plan, value, &begin);
    for (int i = 0; i < plan->values; i++) {
        const gg_value *leaf = &plan->value[i];
        size_t offset = 0;
        if (leaf->children > 0 || !is_within(plan, i, value)) continue;
        const size_t padded = gg_aligned(leaf->bytes);
        gg_sum made = {.term = term,
                       .dtype = leaf->format.dtype,
                       .count = padded / gg_dtype_size(leaf->format.dtype),
                       .add = leaf->written};
        gg_plan_root(plan, i, &offset);
        made.term.offset += offset - begin;
        GG_TRY(grad_place(plan, i, time, &made.target));
        GG_TRY(gg_plan_reserve(plan->sum, &plan->sum_capacity, plan->sums, sizeof(gg_sum), &array));
        plan->sum = array;
        plan->sum[plan->sums++] = made;
        (*sums)++;
    }
    return GG_OK;
}

/* Whether a step may write the gradient of input i over its output: nobody reads that one later. */
static bool over_output(const gg_plan *plan, const gg_step *step, int i, int time) {
    const gg_value *in = &plan->value[step->input[i]], *out = &plan->value[step->output];
    if ((step->op->over_output >> i & 1u) == 0 || !needs_output(step)) return false;
    return stands_alone(out) && in->bytes == out->bytes && plan->buffer[out->buffer].last <= time;
}

/* Where a step writes the gradient of one input. The first writer writes directly into the value's gradient: over its
 * own output's gradient, or over its output, if the operation allows. A later writer writes aside and is added. */
static gg_status place_grad_input(gg_plan *plan, int s, int i) {
    gg_step *step = &plan->step[s];
    int value = step->input[i], time = gg_plan_backward_time(plan, s);
    gg_value *in = &plan->value[value];
    const gg_value *out = &plan->value[step->output];
    bool over = i == 0 && step->op->in_place && in->bytes == out->bytes;
    const bool behind = over_output(plan, step, i, time);

    if (partly_written(plan, value)) {
        if (behind) step->grad_input[i].buffer = out->buffer;
        else if (over) GG_TRY(grad_place(plan, step->output, time, &step->grad_input[i]));
        else GG_TRY(add_buffer(plan, in->bytes, time, time, &step->grad_input[i].buffer));
        GG_TRY(add_sums(plan, value, step->grad_input[i], time, &step->sums));
    } else {
        if (over && stands_alone(in) && stands_alone(out)) in->grad_buffer = out->grad_buffer;
        if (behind && stands_alone(in) && in->grad_buffer == GG_NONE) in->grad_buffer = out->buffer;
        GG_TRY(grad_place(plan, value, time, &step->grad_input[i]));
    }
    mark_written(plan, value);
    return GG_OK;
}

/* Where a head's loss writes its gradient: heads of one value, which views can have, write theirs aside and are added.
 */
static gg_status place_grad_head(gg_plan *plan, gg_plan_head *head) {
    head->gradient.buffer = GG_NONE;
    head->first_sum = plan->sums;
    if (!head->used || !plan->options.training || !plan->value[head->value].needs_gradient) return GG_OK;
    if (partly_written(plan, head->value)) {
        const size_t bytes = plan->value[head->value].bytes;
        GG_TRY(add_buffer(plan, bytes, plan->steps, plan->steps, &head->gradient.buffer));
        GG_TRY(add_sums(plan, head->value, head->gradient, plan->steps, &head->sums));
    } else GG_TRY(grad_place(plan, head->value, plan->steps, &head->gradient));
    mark_written(plan, head->value);
    return GG_OK;
}

static gg_status place_gradients(gg_plan *plan) {
    gg_place ignored;
    for (int i = 0; i < gg_graph_heads(plan->graph); i++) GG_TRY(place_grad_head(plan, &plan->head[i]));
    for (int s = plan->steps - 1; s >= 0; s--) {
        gg_step *step = &plan->step[s];
        if (!step->backward) continue;
        GG_TRY(grad_place(plan, step->output, gg_plan_backward_time(plan, s), &ignored));
        step->first_sum = plan->sums;
        for (int i = 0; i < step->inputs; i++) {
            if (plan->value[step->input[i]].needs_gradient) GG_TRY(place_grad_input(plan, s, i));
        }
    }
    return GG_OK;
}

/* Everything else ------------------------------------------------------------------------------------------ */

static gg_status place_others(gg_plan *plan) {
    size_t plain_bytes = 0;
    for (int s = 0; s < plan->steps; s++) {
        gg_step *step = &plan->step[s];
        const int last = step->backward ? gg_plan_backward_time(plan, s) : s;
        const gg_op *data_op = step->pass[GG_PASS_DATA];
        const bool once = step->backward && step->op->prepared_once && data_op->prepared_once &&
                          data_op->prepared_bytes == step->op->prepared_bytes;
        /* Evaluation finds prepared weights again in the next batch. Training prepares them just before each pass, or
         * before the first of both. */
        const int begin = plan->options.training ? s : 0;
        const int end = !plan->options.training ? end_of_time(plan) : once ? last : s;
        if (step->op->saved_bytes > 0) GG_TRY(add_buffer(plan, step->op->saved_bytes, s, last, &step->saved));
        const size_t forward = step->op->prepared_bytes, data = data_op->prepared_bytes;
        if (forward > 0) GG_TRY(add_buffer(plan, forward, begin, end, &step->prepared[GG_PASS_FORWARD]));
        if (once) step->prepared[GG_PASS_DATA] = step->prepared[GG_PASS_FORWARD];
        else if (data > 0 && step->backward) GG_TRY(add_buffer(plan, data, last, last, &step->prepared[GG_PASS_DATA]));
    }
    /* One scratch buffer for all steps, so that it stays in the caches. */
    plan->scratch_buffer = GG_NONE;
    if (plan->scratch_bytes > 0)
        GG_TRY(add_buffer(plan, plan->scratch_bytes, 0, end_of_time(plan), &plan->scratch_buffer));
    plan->plain_buffer = GG_NONE;
    for (int i = 0; i < gg_graph_heads(plan->graph); i++) {
        const gg_plan_head *head = &plan->head[i];
        const gg_format plain = {GG_FLOAT32, GG_LAYOUT_PLAIN};
        if (!head->used || plan->value[head->value].format.layout == GG_LAYOUT_PLAIN) continue;
        const size_t bytes = gg_format_bytes(plain, &plan->value[head->value].shape, plan->options.batch);
        if (bytes > plain_bytes) plain_bytes = bytes;
    }
    if (plain_bytes > 0) GG_TRY(add_buffer(plan, plain_bytes, plan->steps, plan->steps, &plan->plain_buffer));
    return GG_OK;
}

typedef struct gg_ordered {
    const gg_buffer *buffer;
    int number;
} gg_ordered;

static int largest_first(const void *left, const void *right) {
    const gg_ordered *a = left, *b = right;
    if (a->buffer->bytes != b->buffer->bytes) return a->buffer->bytes > b->buffer->bytes ? -1 : 1;
    return a->number < b->number ? -1 : a->number > b->number;
}

/* The lowest offset at which the buffer meets none of those placed, which are sorted by offset. */
static size_t lowest_offset(const gg_plan *plan, const gg_buffer *buffer, int placed, const int *by_offset) {
    size_t offset = 0;
    for (int i = 0; i < placed; i++) {
        const gg_buffer *other = &plan->buffer[by_offset[i]];
        if (other->last < buffer->first || buffer->last < other->first) continue;
        if (offset + buffer->bytes <= other->offset) break;
        if (other->offset + other->bytes > offset) offset = other->offset + other->bytes;
    }
    return offset;
}

static gg_status place_buffers(gg_plan *plan) {
    gg_status status = GG_OK;
    void *order_block = NULL, *offset_block = NULL;
    GG_TRY_CLEANUP(gg_calloc((size_t)plan->buffers, sizeof(gg_ordered), "plan", &order_block));
    GG_TRY_CLEANUP(gg_calloc((size_t)plan->buffers, sizeof(int), "plan", &offset_block));
    gg_ordered *order = order_block;
    int *by_offset = offset_block;
    for (int i = 0; i < plan->buffers; i++) order[i] = (gg_ordered){&plan->buffer[i], i};
    qsort(order, (size_t)plan->buffers, sizeof(gg_ordered), largest_first);
    for (int n = 0; n < plan->buffers; n++) {
        gg_buffer *buffer = &plan->buffer[order[n].number];
        buffer->offset = lowest_offset(plan, buffer, n, by_offset);
        if (buffer->offset + buffer->bytes > plan->block_bytes) plan->block_bytes = buffer->offset + buffer->bytes;
        int at = n;
        for (; at > 0 && plan->buffer[by_offset[at - 1]].offset > buffer->offset; at--)
            by_offset[at] = by_offset[at - 1];
        by_offset[at] = order[n].number;
    }
cleanup:
    gg_free(order_block);
    gg_free(offset_block);
    return status;
}

static void *plan_at(const gg_plan *plan, gg_place place) {
    if (place.buffer == GG_NONE) return NULL;
    return plan->block + plan->buffer[place.buffer].offset + place.offset;
}

static void *activation_at(const gg_plan *plan, int value) {
    gg_place place = {0};
    int root = gg_plan_root(plan, value, &place.offset);
    place.buffer = plan->value[root].buffer;
    return plan_at(plan, place);
}

static void *plan_gradient_at(const gg_plan *plan, int value) {
    gg_place place = {0};
    int root = gg_plan_root(plan, value, &place.offset);
    place.buffer = plan->value[root].grad_buffer;
    return plan_at(plan, place);
}

/* Backward sees only inputs that its operation declares; all other values may have been overwritten. */
static void plan_bind(gg_plan *plan) {
    gg_place scratch = {plan->scratch_buffer, 0}, copy = {plan->plain_buffer, 0};
    for (int i = 0; i < gg_graph_inputs(plan->graph); i++)
        if (plan->node[gg_graph_input(plan->graph, i)].value != GG_NONE)
            plan->input_at[i] = activation_at(plan, plan->node[gg_graph_input(plan->graph, i)].value);
    for (int i = 0; i < gg_graph_heads(plan->graph); i++) {
        gg_plan_head *head = &plan->head[i];
        if (!head->used) continue;
        head->output_at = activation_at(plan, head->value);
        head->gradient_at = plan_at(plan, head->gradient);
    }
    plan->plain_at = plan_at(plan, copy);
    for (int i = 0; i < plan->sums; i++) {
        plan->sum[i].target_at = plan_at(plan, plan->sum[i].target);
        plan->sum[i].term_at = plan_at(plan, plan->sum[i].term);
    }
    for (int s = 0; s < plan->steps; s++) {
        gg_step *step = &plan->step[s];
        gg_op_args *forward = &step->forward_args, *backward = &step->backward_args;
        gg_place saved = {step->saved, 0};
        for (int pass = 0; pass < GG_PASS_COUNT; pass++) {
            const gg_place prepared = {step->prepared[pass], 0};
            step->prepared_at[pass] = plan_at(plan, prepared);
        }
        *forward = (gg_op_args){.prepared = step->prepared_at[GG_PASS_FORWARD],
                                .saved = plan_at(plan, saved),
                                .scratch = plan_at(plan, scratch),
                                .rank = plan->options.rank,
                                .parameter = plan->parameter_at + step->first_slot,
                                .gradient = plan->gradient_at + step->first_slot};
        *backward = *forward;
        forward->output = activation_at(plan, step->output);
        for (int i = 0; i < step->inputs; i++) forward->input[i] = activation_at(plan, step->input[i]);
        if (!step->backward) continue;
        if (needs_output(step)) backward->output = forward->output;
        backward->grad_output = plan_gradient_at(plan, step->output);
        for (int i = 0; i < step->inputs; i++) {
            if (needs_input(step, i)) backward->input[i] = forward->input[i];
            backward->grad_input[i] = plan_at(plan, step->grad_input[i]);
        }
    }
}

/* Small blocks are not worth a look at the system's files. A device with memory of its own reports its shortage itself.
 */
static gg_status check_memory(const gg_plan *plan) {
    const size_t small = (size_t)16 << 20;
    char what[64];
    if (plan->block_bytes < small || gg_device_is_separate(plan->options.device)) return GG_OK;
    snprintf(what, sizeof what, "batch_size: %lld samples: %s", (long long)plan->options.batch,
             plan->options.training ? "a training step" : "evaluation");
    return gg_memory_check(plan->block_bytes, what, "smaller batches need less");
}

/* Zeroed, so that lanes nobody has written yet are finite. */
static gg_status allocate_block(const gg_plan *plan, char **out) {
    GG_TRY(check_memory(plan));
    return gg_device_alloc(plan->options.device, plan->block_bytes, "activations and gradients of the plan", out);
}

gg_status gg_plan_activate(gg_plan *plan) {
    gg_plan_memory *memory = plan->options.memory;
    if (memory == NULL || memory->user == plan) return GG_OK;
    if (memory->bytes < plan->block_bytes) {
        gg_plan_memory_release(memory); /* not both at a time */
        GG_TRY(allocate_block(plan, &memory->block));
        memory->bytes = plan->block_bytes;
        memory->device = plan->options.device;
    } else gg_device_zero(plan->options.device, GG_QUEUE_COMPUTE, memory->block, plan->block_bytes);
    memory->user = plan;
    plan->prepared_version = 0;
    plan->block = memory->block;
    plan_bind(plan);
    return GG_OK;
}

void gg_plan_memory_release(gg_plan_memory *memory) {
    gg_device_free(memory->device, memory->block);
    *memory = (gg_plan_memory){0};
}

gg_status gg_plan_layout(gg_plan *plan) {
    find_lifetimes(plan);
    GG_TRY(place_activations(plan));
    GG_TRY(place_gradients(plan));
    GG_TRY(place_others(plan));
    GG_TRY(place_buffers(plan));
    plan->block_bytes += GG_READ_BEHIND;
    if (plan->options.memory != NULL) {
        GG_TRY(gg_plan_activate(plan));
    } else {
        GG_TRY(allocate_block(plan, &plan->block));
        plan_bind(plan);
    }
    return GG_OK;
}
