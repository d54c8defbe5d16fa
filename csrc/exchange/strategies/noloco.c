/* NoLoCo: local steps, then an outer step with the mean over a small group of ranks (outer_step.h). The groups are
 * drawn anew from the seed for every turn, equally on all ranks (comm/schedule.h). No rank waits for one outside of its
 * group. A rank that is left over is a group of its own: its outer step uses its own weights.
 *
 * The authors' two terms, lr*mean(w - phi) and lr*(mean(phi) - phi), add up to lr*(mean(w) - phi): so only weights
 * travel, once. Each rank makes the mean itself, w + the sum of (received - own w)/n. With an inexact codec the own w
 * is rounded here as it was sent, so the mean over the group is preserved. */
#include "base/memory.h"
#include "exchange/parts/outer_step.h"
#include "exchange/types.h"

typedef struct noloco {
    gg_outer outer;
    gg_groups groups;
    const gg_codec *codec;
    int most;                     /* ranks of a group */
    int *member, *members;        /* one a fragment: room for `most` ranks, and their number */
    void *message, *landing;      /* all elements on the wire: the sent ones, and those of each of most - 1 peers */
    gg_request *sends, *receives; /* `most` a fragment, one more than peers */
} noloco;

static int *noloco_member(const noloco *n, int f) { return n->member + (size_t)f * (size_t)n->most; }

static gg_request *noloco_requests(const noloco *n, gg_request *requests, int f) {
    return requests + (size_t)f * (size_t)n->most;
}

static gg_status noloco_start(gg_outer *s, int f) {
    noloco *n = (noloco *)s;
    gg_transport *transport = s->head.env.transport;
    const gg_fragment *fragment = &s->fragment[f];
    const size_t bytes = fragment->count * n->codec->size, all = s->head.env.state->count;
    void *message = gg_codec_at(n->codec, n->message, fragment->offset);
    gg_request *send = noloco_requests(n, n->sends, f), *receive = noloco_requests(n, n->receives, f);
    int *member = noloco_member(n, f);
    n->members[f] = gg_groups_at(&n->groups, s->head.step * s->fragments + f, transport->rank, member);
    if (n->members[f] == 1) return GG_OK;
    n->codec->encode(s->head.env.device, fragment->count, gg_outer_sent(s, f), message);
    for (int i = 0, peer = 0; i < n->members[f]; ++i) {
        if (member[i] == transport->rank) continue;
        GG_TRY(gg_receive_exact(transport, gg_codec_at(n->codec, n->landing, (size_t)peer * all + fragment->offset),
                                bytes, member[i], GG_TAG_USER + f, &receive[peer]));
        GG_TRY(gg_send(transport, message, bytes, member[i], GG_TAG_USER + f, &send[peer++]));
    }
    return GG_OK;
}

static gg_status noloco_poll(gg_outer *s, int f) {
    (void)s, (void)f; /* messages that have been sent need nothing of this rank but progress */
    return GG_OK;
}

static gg_status noloco_receive(gg_outer *s, int f, size_t *bytes, double *when) {
    noloco *n = (noloco *)s;
    gg_device *device = s->head.env.device;
    const gg_fragment *fragment = &s->fragment[f];
    const float share = 1.0f / (float)n->members[f], *sent = gg_outer_sent(s, f), *mean = sent;
    float *moved = s->moved + fragment->offset;
    gg_request *receive = noloco_requests(n, n->receives, f);
    *when = gg_transport_now(s->head.env.transport);
    for (int i = 0; i < n->members[f] - 1; ++i) {
        GG_TRY(gg_strategy_wait(&s->head, &receive[i]));
        if (i == 0 || receive[i].when > *when) *when = receive[i].when;
        *bytes += receive[i].bytes;
        gg_codec_mix(n->codec, device, fragment->count, share, mean, receive[i].data, sent, moved);
        mean = moved;
        GG_TRY(gg_release(s->head.env.transport, &receive[i]));
    }
    device->table->weighted_sum(device, fragment->count, 2, (const float *const[]){mean, s->phi + fragment->offset},
                                (float[]){1, -1}, moved);
    return GG_OK;
}

static gg_status noloco_finish(gg_outer *s, int f) {
    noloco *n = (noloco *)s;
    for (int i = 0; i < n->most - 1; ++i) GG_TRY(gg_strategy_wait(&s->head, &noloco_requests(n, n->sends, f)[i]));
    return GG_OK;
}

static void noloco_cancel(gg_outer *s, int f) {
    noloco *n = (noloco *)s;
    gg_cancel_all(s->head.env.transport, noloco_requests(n, n->receives, f), n->most);
    gg_cancel_all(s->head.env.transport, noloco_requests(n, n->sends, f), n->most);
}

static void noloco_count(gg_outer *s, int f) {
    const noloco *n = (noloco *)s;
    for (int i = 0; i < n->members[f]; ++i)
        gg_receipts_whole(&s->receipts, noloco_member(n, f)[i], s->fragment[f].begun);
}

static void noloco_destroy(gg_strategy *strategy) {
    noloco *n = (noloco *)strategy;
    gg_transport *transport = strategy->env.transport;
    const int requests = n->outer.fragments * n->most;
    gg_cancel_all(transport, n->receives, requests);
    gg_cancel_all(transport, n->sends, requests);
    gg_message_free(transport, n->message);
    gg_device_free_host(strategy->env.device, n->landing);
    gg_device_free(strategy->env.device, n->outer.moved);
    gg_outer_deinit(&n->outer);
    gg_groups_destroy(&n->groups);
    gg_free(n->member);
    gg_free(n->members);
    gg_free(n->sends);
    gg_free(n->receives);
    gg_free(n);
}

static gg_status noloco_create(const gg_strategy_options *options, const gg_strategy_env *env, gg_strategy **out) {
    static const gg_outer_rule rule = {noloco_start,  noloco_poll,  noloco_receive, noloco_finish,
                                       noloco_cancel, noloco_count, false,          noloco_destroy};
    gg_status status = GG_OK;
    noloco *n = NULL;
    const int p = env->transport->size;
    GG_TRY_CLEANUP(gg_calloc(1, sizeof *n, "strategy", &n));
    n->most = options->outer.group < p ? options->outer.group : p;
    n->codec = gg_codec_of(options->wire);
    GG_TRY_CLEANUP(gg_outer_init(&n->outer, &rule, options, env));
    GG_TRY_CLEANUP(gg_groups_create(p, n->most, env->seed, &n->groups));
    const size_t fragments = (size_t)options->outer.fragments, most = (size_t)n->most, count = env->state->count;
    GG_TRY_CLEANUP(gg_device_alloc(env->device, count * sizeof(float), "means of the groups", &n->outer.moved));
    GG_TRY_CLEANUP(gg_calloc(fragments * most, sizeof(int), "ranks of the groups", &n->member));
    GG_TRY_CLEANUP(gg_calloc(fragments, sizeof(int), "sizes of the groups", &n->members));
    GG_TRY_CLEANUP(gg_calloc(fragments * most, sizeof(gg_request), "send requests", &n->sends));
    GG_TRY_CLEANUP(gg_calloc(fragments * most, sizeof(gg_request), "receive requests", &n->receives));
    if (p == 1) goto cleanup;
    GG_TRY_CLEANUP(gg_message_alloc_device(env->transport, count * n->codec->size, "exchanged arena", &n->message));
    GG_TRY_CLEANUP(
        gg_device_alloc_message(env->device, (most - 1) * count * n->codec->size, "landing arenas", &n->landing));
cleanup:
    if (status != GG_OK && n != NULL) noloco_destroy(&n->outer.head), n = NULL;
    *out = n != NULL ? &n->outer.head : NULL;
    return status;
}

static const gg_option options[] = {GG_OUTER_OPTIONS,
                                    GG_STRATEGY_OPTION(GG_OPTION_INT, "group", outer.group,
                                                       "ranks that average in an outer step", .fallback = {2},
                                                       .bounds = GG_FROM_TO(2, 4096)),
                                    {.name = NULL}};

const gg_strategy_type gg_strategy_noloco = {.name = "noloco",
                                             .options = options,
                                             .check = gg_outer_check,
                                             .create = noloco_create,
                                             .needs_all = gg_strategy_needs_none};
