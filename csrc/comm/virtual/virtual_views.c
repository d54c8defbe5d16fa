/* A membership that the ranks share. It learns of a death when a rank whose clock is past its detection looks. Then all
 * living ranks have told their limits at once: the steps that they have begun. So no rank waits for another's answer,
 * and every run repeats. A newcomer is ready when a rank that has made the newcomer's step looks. */
#include "comm/virtual/virtual_views.h"

#include <string.h>

#include "base/memory.h"

typedef struct virtual_views {
    gg_views head; /* first: a gg_views is cast to this */
    gg_virtual *cluster;
    gg_membership *membership;
    int ranks, newcomers;   /* newcomers: the last ones */
    int64_t *joins;         /* one a newcomer */
    int64_t base;           /* steps that all ranks had made when the run began */
    unsigned char *ledgers; /* GG_LEDGER_BYTES of each rank */
} virtual_views;

static virtual_views *views_of(gg_views *views) { return (virtual_views *)views; }

static void views_destroy(gg_views *views) {
    gg_membership_destroy(views_of(views)->membership);
    gg_free(views_of(views)->ledgers);
    gg_free(views_of(views)->joins);
    gg_free(views);
}

static void views_begin(gg_views *views, int64_t step) { views_of(views)->base = step; }

/* True if a death has broken a step. */
static bool is_broken(const virtual_views *v) {
    const int *dead;
    return v->head.breaks && gg_membership_dead(v->membership, &dead) > 0;
}

/* All living ranks tell their limits. `made`: the most steps of a rank, if a death has broken one. */
static gg_status tell_limits(virtual_views *v, int64_t made) {
    for (int r = 0; r < v->ranks; ++r) {
        const int64_t limit = is_broken(v) ? made : gg_virtual_begun(v->cluster, r);
        GG_TRY(gg_membership_limit(v->membership, r, limit > v->base ? limit : v->base));
    }
    return GG_OK;
}

static gg_status views_look(gg_views *views, int identity, int64_t step, gg_phase *phase, int64_t *goal) {
    virtual_views *v = views_of(views);
    if (v->head.breaks) gg_membership_keep_apart(v->membership); /* newcomers have no step that could be mended */
    for (int r = 0; r < v->ranks; ++r) {
        const bool known = identity < 0 ? gg_virtual_dead(v->cluster, r, NULL)
                                        : gg_transport_dead(gg_virtual_transport(v->cluster, identity), r) >= 0;
        if (known) GG_TRY(gg_membership_died(v->membership, r));
    }
    for (int i = 0; i < v->newcomers && v->joins[i] <= step; ++i)
        GG_TRY(gg_membership_ready(v->membership, v->ranks - v->newcomers + i));
    /* Of broken steps none is complete before all ranks have left their run. */
    const bool tells = !is_broken(v) || identity < 0;
    if (tells && gg_membership_phase(v->membership) == GG_PHASE_STOPPING) GG_TRY(tell_limits(v, step));
    *phase = gg_membership_phase(v->membership);
    *goal = gg_membership_goal(v->membership);
    return GG_OK;
}

static int views_dead(gg_views *views, const int **dead) {
    return gg_membership_dead(views_of(views)->membership, dead);
}

/* It has died in the last step that it has begun. */
static int64_t views_made(gg_views *views, int identity) {
    return gg_virtual_begun(views_of(views)->cluster, identity) - 1;
}

static gg_status views_report(gg_views *views, int identity, int deaths, const int64_t *received) {
    return gg_membership_report(views_of(views)->membership, identity, deaths, received);
}

static gg_status views_copied(gg_views *views, int identity, int64_t view) {
    virtual_views *v = views_of(views);
    return gg_membership_copied(v->membership, identity, view);
}

static const gg_view *views_view(gg_views *views) { return gg_membership_view(views_of(views)->membership); }

static void *views_ledger(gg_views *views, int identity) {
    return views_of(views)->ledgers + (size_t)identity * GG_LEDGER_BYTES;
}

static const gg_views_table table = {
    .destroy = views_destroy,
    .begin = views_begin,
    .look = views_look,
    .dead = views_dead,
    .made = views_made,
    .report = views_report,
    .view = views_view,
    .ledger = views_ledger,
    .copied = views_copied,
};

gg_status gg_virtual_views_create(gg_virtual *cluster, const int64_t *joins, int newcomers, gg_views **out) {
    gg_status status = GG_OK;
    virtual_views *made = NULL;
    const int ranks = gg_virtual_size(cluster);
    *out = NULL;
    GG_TRY_CLEANUP(gg_calloc(1, sizeof *made, "views", &made));
    made->head.table = &table;
    made->cluster = cluster;
    made->ranks = ranks;
    made->newcomers = newcomers;
    GG_TRY_CLEANUP(gg_calloc((size_t)newcomers, sizeof *made->joins, "steps of newcomers", &made->joins));
    if (newcomers > 0) memcpy(made->joins, joins, (size_t)newcomers * sizeof *joins);
    GG_TRY_CLEANUP(gg_membership_create(ranks - newcomers, ranks, 1, &made->membership));
    GG_TRY_CLEANUP(gg_calloc((size_t)ranks, GG_LEDGER_BYTES, "ledgers of ranks", &made->ledgers));
    *out = &made->head;
    made = NULL;
cleanup:
    if (made != NULL) views_destroy(&made->head);
    return status;
}
