#include "exchange/optim/updater.h"

#include <math.h>
#include <string.h>

#include "base/memory.h"

static bool updated_alike(const gg_group *a, const gg_group *b) {
    return !a->adapts && !b->adapts && a->statistic == b->statistic && a->lr_factor == b->lr_factor &&
           a->decay_factor == b->decay_factor && a->momentum_factor == b->momentum_factor;
}

gg_status gg_updater_create(const gg_arena_layout *layout, const gg_optimizer *optimizer, gg_updater *out) {
    const gg_optimizer_type *type = optimizer->type;
    const int parameters = layout->parameters;
    *out = (gg_updater){.optimizer = optimizer};
    GG_TRY(gg_calloc((size_t)parameters + 1, sizeof *out->group, "groups of parameters", &out->group));
    for (int i = 0; i < parameters; ++i) {
        const gg_parameter *p = &layout->parameter[i];
        gg_group *last = out->groups > 0 ? &out->group[out->groups - 1] : NULL;
        gg_group group = {.begin = p->offset, .mixing = {.ranks = 1}, .clip = 1, .ratio = 1};
        group.statistic = p->role == GG_ROLE_STATISTIC;
        group.end = i + 1 < parameters ? layout->parameter[i + 1].offset : layout->count;
        if (!group.statistic) {
            group.adapts = type->adapts != NULL && type->adapts(optimizer, p->role);
            group.lr_factor = p->lr_factor;
            group.momentum_factor = p->momentum_factor;
            group.decay_factor = optimizer->no_decay & 1u << p->role ? 0 : p->decay_factor;
        }
        if (last != NULL && updated_alike(last, &group)) last->end = group.end;
        else out->group[out->groups++] = group;
    }
    if (optimizer->clip_norm > 0 || type->measures)
        GG_TRY(gg_calloc(2 * (size_t)out->groups + 1, sizeof *out->squares, "norms of parameters", &out->squares));
    return GG_OK;
}

void gg_updater_destroy(gg_updater *updater) {
    gg_free(updater->group);
    gg_free(updater->squares);
    memset(updater, 0, sizeof *updater);
}

void gg_updater_mixes(gg_updater *updater, gg_mixing mixing) {
    for (int i = 0; i < updater->groups; ++i) updater->group[i].mixing = mixing;
}

const gg_group *gg_updater_group(const gg_updater *updater, size_t at) {
    int low = 0, high = updater->groups - 1;
    while (low < high) {
        const int middle = low + (high - low) / 2;
        if (at < updater->group[middle].end) high = middle;
        else low = middle + 1;
    }
    return &updater->group[low];
}

/* Address after `elements` of the wire's type; NULL stays NULL. */
static const void *received_at(const gg_update *update, int which, size_t elements) {
    const char *received = update->received[which];
    return received != NULL ? received + elements * gg_dtype_size(update->wire) : NULL;
}

static void *copy_at(const gg_update *update, int which, size_t elements) {
    char *copy = update->copy[which];
    return copy != NULL ? copy + elements * gg_dtype_size(update->wire) : NULL;
}

static float *moment_at(const gg_state *state, int i, size_t at) {
    float *moment = gg_state_moment(state, i);
    return moment != NULL ? moment + at : NULL;
}

/* Arguments for elements [from, from + count) of the update, all of one group. */
static gg_update_args args_of_piece(const gg_updater *updater, const gg_group *group, const gg_state *state,
                                    const gg_update *update, size_t from, size_t count) {
    gg_update_args args = {.n = count,
                           .wire = update->wire,
                           .grad = update->gradient + from,
                           .filled = gg_lines_behind(update->filled, from),
                           .weight = gg_state_weights(state) + update->offset + from,
                           .weight_after = received_at(update, 0, from),
                           .weight_copy = copy_at(update, 0, from)};
    if (updater->accumulated) {
        gg_optimizer_sum(updater->optimizer, group, update->step, &args);
    } else {
        gg_optimizer_rule(updater->optimizer, group, update->step, &args);
    }
    if (!updater->accumulated && !group->statistic) {
        args.momentum = moment_at(state, 0, update->owned_offset + from);
        args.momentum_before = received_at(update, 1, from);
        args.momentum_copy = copy_at(update, 1, from);
        args.square = moment_at(state, 1, update->owned_offset + from);
        args.square_before = received_at(update, 2, from);
        args.square_copy = copy_at(update, 2, from);
    }
    return args;
}

/* Statistics have no moments: partners read zeros. */
static void zero_copies(gg_device *device, const gg_update *update, size_t from, size_t count) {
    for (int i = 1; i <= GG_MAX_MOMENTS; ++i) {
        void *copy = copy_at(update, i, from);
        if (copy != NULL) gg_device_zero(device, GG_QUEUE_COMPUTE, copy, count * gg_dtype_size(update->wire));
    }
}

/* A part of an update within one group. */
typedef struct update_piece {
    const gg_group *group;
    size_t from, count;
} update_piece;

/* Moves p to the next piece, or to the first one if p is all zero. False after the last. */
static bool next_piece(const gg_updater *updater, const gg_update *update, update_piece *p) {
    p->from += p->count;
    if (p->from == update->count) return false;
    const size_t at = update->offset + p->from, end = update->offset + update->count;
    p->group = p->group == NULL ? gg_updater_group(updater, at) : p->group + 1;
    p->count = (p->group->end < end ? p->group->end : end) - at;
    return true;
}

enum { UPDATES_AT_ONCE = 16 };

static void apply_pieces(const gg_updater *updater, gg_device *device, const gg_state *state, const gg_update *update) {
    gg_update_args all[UPDATES_AT_ONCE];
    int count = 0;
    for (update_piece p = {NULL, 0, 0}; next_piece(updater, update, &p);) {
        all[count++] = args_of_piece(updater, p.group, state, update, p.from, p.count);
        if (p.group->statistic) zero_copies(device, update, p.from, p.count);
        if (count < UPDATES_AT_ONCE) continue;
        device->table->update(device, count, all);
        count = 0;
    }
    if (count > 0) device->table->update(device, count, all);
}

/* The elements [at, at + count) of an update. */
static gg_update part_of(const gg_update *update, size_t at, size_t count) {
    const size_t from = at - update->offset;
    gg_update part = *update;
    part.offset = at;
    part.count = count;
    part.owned_offset += from;
    part.gradient += from;
    part.filled = gg_lines_behind(part.filled, from);
    for (int i = 0; i <= GG_MAX_MOMENTS; ++i) {
        part.received[i] = received_at(update, i, from);
        part.copy[i] = copy_at(update, i, from);
    }
    return part;
}

/* Cuts an update at the borders of parameters whose gradients are lent. */
static void apply_lent(const gg_updater *updater, gg_device *device, const gg_state *state, const gg_update *update) {
    size_t at = update->offset;
    const size_t end = at + update->count;
    for (int i = 0; i < state->lents && at < end; ++i) {
        const gg_lent *lent = &state->lent[i];
        const size_t stop = lent->offset + lent->count < end ? lent->offset + lent->count : end;
        if (stop <= at || lent->offset >= end) continue;
        if (at < lent->offset) {
            const gg_update before = part_of(update, at, lent->offset - at);
            apply_pieces(updater, device, state, &before);
            at = lent->offset;
        }
        gg_update own = part_of(update, at, stop - at);
        own.gradient = lent->gradient + (at - lent->offset);
        apply_pieces(updater, device, state, &own);
        at = stop;
    }
    if (at == end) return;
    const gg_update rest = part_of(update, at, end - at);
    apply_pieces(updater, device, state, &rest);
}

/* Cuts an update into runs whose gradients are computed one after the other. */
static void apply_computed(const gg_updater *updater, gg_device *device, const gg_state *state,
                           const gg_update *update) {
    const gg_gradient_source *source = &state->source;
    const size_t end = update->offset + update->count;
    for (size_t at = update->offset, count; at < end; at += count) {
        const float *gradient = source->run(source->context, at, end - at, &count);
        gg_update part = part_of(update, at, count);
        if (gradient != NULL) part.gradient = gradient;
        apply_pieces(updater, device, state, &part);
    }
}

void gg_updater_apply(const gg_updater *updater, gg_device *device, const gg_state *state, const gg_update *update) {
    if (state->lents > 0) apply_lent(updater, device, state, update);
    else if (state->source.run != NULL) apply_computed(updater, device, state, update);
    else apply_pieces(updater, device, state, update);
}

const float *gg_updater_accumulate(const gg_updater *updater, gg_device *device, const gg_state *state,
                                   const gg_accumulation *work) {
    const gg_optimizer *optimizer = updater->optimizer;
    const float *result = work->gradient;
    const size_t end = work->offset + work->count;
    const gg_group *group = gg_updater_group(updater, work->offset);
    for (size_t at = work->offset, next; at < end; at = next, ++group) {
        next = group->end < end ? group->end : end;
        float *own = work->gradient + (at - work->offset);
        const float *const source = own;
        if (group->statistic) device->table->weighted_sum(device, next - at, 1, &source, &work->scale, own);
        else result = optimizer->type->accumulate(optimizer, group, device, state, work, at, next - at);
    }
    return result;
}

void gg_updater_measure_begin(gg_updater *updater) {
    memset(updater->squares, 0, 2 * (size_t)updater->groups * sizeof *updater->squares);
}

void gg_updater_measure(gg_updater *updater, gg_device *device, size_t offset, size_t count, const float *gradient,
                        const float *weight) {
    double *gradients = updater->squares, *weights = gradients + updater->groups;
    const size_t end = offset + count;
    if (count == 0) return;
    const gg_group *group = gg_updater_group(updater, offset);
    for (size_t at = offset, next; at < end; at = next, ++group) {
        const ptrdiff_t i = group - updater->group;
        const size_t from = at - offset;
        next = group->end < end ? group->end : end;
        if (group->statistic || group->lr_factor == 0) continue; /* not trained */
        gradients[i] += device->table->sum_squares(device, next - at, gradient + from, NULL);
        if (group->adapts) weights[i] += device->table->sum_squares(device, next - at, weight + from, NULL);
    }
}

void gg_updater_measured(gg_updater *updater) {
    const double *gradients = updater->squares, *weights = gradients + updater->groups;
    const gg_optimizer *optimizer = updater->optimizer;
    const double clip_norm = optimizer->clip_norm;
    double all = 0, clip = 1;
    for (int i = 0; i < updater->groups; ++i) all += gradients[i];
    if (clip_norm > 0) {
        const double coefficient = clip_norm / (sqrt(all) + 1e-6);
        if (!(coefficient >= 1)) clip = coefficient; /* NaN as well */
    }
    for (int i = 0; i < updater->groups; ++i) {
        gg_group *group = &updater->group[i];
        if (group->statistic) continue;
        group->clip = (float)clip;
        if (group->adapts)
            group->ratio = optimizer->type->ratio(optimizer, (double)(optimizer->weight_decay * group->decay_factor),
                                                  clip * sqrt(gradients[i]), sqrt(weights[i]));
    }
}
