/* DiLoCo: local steps, then an outer step with the mean over all ranks (outer_step.h). The reduction of a fragment sums
 * the ranks' moves from phi, which is equal on all ranks: small numbers lose little to a rounded wire. */
#include "base/memory.h"
#include "exchange/parts/outer_step.h"
#include "exchange/parts/reduction.h"
#include "exchange/types.h"

typedef struct diloco {
    gg_outer outer;
    gg_reduction **reduction; /* one a fragment; NULL if empty */
    float *equal_share;       /* 1/p for each rank */
} diloco;

static gg_status diloco_start(gg_outer *s, int f) {
    const diloco *d = (const diloco *)s;
    gg_device *device = s->head.env.device;
    const gg_fragment *fragment = &s->fragment[f];
    float *moved = s->moved + fragment->offset;
    device->table->weighted_sum(device, fragment->count, 2,
                                (const float *const[]){gg_outer_sent(s, f), s->phi + fragment->offset},
                                (float[]){1, -1}, moved);
    return gg_reduction_start(d->reduction[f], moved, d->equal_share);
}

static gg_status diloco_poll(gg_outer *s, int f) {
    bool summed;
    return gg_reduction_poll(((diloco *)s)->reduction[f], &summed);
}

static gg_status diloco_receive(gg_outer *s, int f, size_t *bytes, double *when) {
    gg_reduction *reduction = ((diloco *)s)->reduction[f];
    const gg_status status = gg_reduction_wait(reduction);
    *bytes = s->head.env.transport->size > 1 ? reduction->bytes : 0;
    *when = gg_transport_now(s->head.env.transport);
    return status;
}

static gg_status diloco_finish(gg_outer *s, int f) {
    gg_reduction *reduction = ((diloco *)s)->reduction[f];
    return reduction != NULL ? gg_reduction_finish(reduction) : GG_OK;
}

static void diloco_cancel(gg_outer *s, int f) {
    gg_reduction *reduction = ((diloco *)s)->reduction[f];
    if (reduction != NULL) gg_reduction_cancel(reduction);
}

static void diloco_count(gg_outer *s, int f) {
    for (int rank = 0; rank < s->head.env.transport->size; ++rank)
        gg_receipts_whole(&s->receipts, rank, s->fragment[f].begun);
}

static void diloco_destroy(gg_strategy *strategy) {
    diloco *d = (diloco *)strategy;
    for (int f = d->outer.fragments - 1; f >= 0 && d->reduction != NULL; --f) gg_reduction_destroy(d->reduction[f]);
    gg_message_free(strategy->env.transport, d->outer.moved);
    gg_outer_deinit(&d->outer);
    gg_free(d->reduction);
    gg_free(d->equal_share);
    gg_free(d);
}

static gg_status diloco_create(const gg_strategy_options *options, const gg_strategy_env *env, gg_strategy **out) {
    static const gg_outer_rule rule = {diloco_start,  diloco_poll,  diloco_receive, diloco_finish,
                                       diloco_cancel, diloco_count, true,           diloco_destroy};
    gg_status status = GG_OK;
    diloco *made = NULL;
    const int p = env->transport->size;
    GG_TRY_CLEANUP(gg_calloc(1, sizeof *made, "strategy", &made));
    GG_TRY_CLEANUP(gg_outer_init(&made->outer, &rule, options, env));
    GG_TRY_CLEANUP(gg_calloc((size_t)p, sizeof(float), "shares", &made->equal_share));
    for (int i = 0; i < p; ++i) made->equal_share[i] = 1.0f / (float)p;
    GG_TRY_CLEANUP(gg_message_alloc_device(env->transport, env->state->count * sizeof(float), "moves of the weights",
                                           &made->outer.moved));
    GG_TRY_CLEANUP(gg_calloc((size_t)options->outer.fragments, sizeof(gg_reduction *), "reductions", &made->reduction));
    for (int f = 0; f < options->outer.fragments; ++f) {
        const gg_fragment *fragment = &made->outer.fragment[f];
        if (fragment->count == 0) continue;
        GG_TRY_CLEANUP(gg_reduction_create(&made->outer.head, options,
                                           &(gg_reduction_run){.group = env->transport,
                                                               .offset = fragment->offset,
                                                               .count = fragment->count,
                                                               .tag = GG_TAG_USER + f,
                                                               .period = options->outer.period},
                                           &made->reduction[f]));
    }
cleanup:
    if (status != GG_OK && made != NULL) diloco_destroy(&made->outer.head), made = NULL;
    *out = made != NULL ? &made->outer.head : NULL;
    return status;
}

static const gg_option options[] = {GG_OUTER_OPTIONS, GG_OPTION_COLLECTIVES, {.name = NULL}};

const gg_strategy_type gg_strategy_diloco = {.name = "diloco",
                                             .options = options,
                                             .check = gg_outer_check,
                                             .create = diloco_create,
                                             .needs_all = gg_strategy_needs_none,
                                             .keeps_equal = 1u << GG_ARENA_OUTER | 1u << GG_ARENA_OUTER_MOMENT};
