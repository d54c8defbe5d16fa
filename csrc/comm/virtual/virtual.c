/* Creation and destruction of a cluster, its runs, and the thread of a rank. */
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "base/memory.h"
#include "base/parallel.h"
#include "comm/virtual/virtual_private.h"

#define MAX_SIZE 4096

static void cluster_record(gg_virtual *cluster, int rank, gg_status status, const char *text) {
    char who[32];
    snprintf(who, sizeof who, "rank %d: ", rank);
    const char *said = strstr(text, who); /* the transport's own messages name the rank as well */
    const char *rest = said ? said + strlen(who) : text;
    cluster->recorded = true;
    cluster->status = status;
    snprintf(cluster->text, sizeof cluster->text, "%s%.*s%.990s", who, said ? (int)(said - text) : 0, text, rest);
}

static void cluster_finish(gg_virtual_rank *rank, gg_status status) {
    gg_virtual *cluster = rank->cluster;
    rank->finished = true;
    cluster->unfinished--;
    if (status == GG_OK) return;
    if (!cluster->recorded) cluster_record(cluster, rank->transport.rank, status, gg_error_message());
    if (cluster->failed) return;
    cluster->failed_rank = rank->transport.rank;
    gg_virtual_fail_all(cluster);
}

/* All functions have returned: no rank needs to be served any more. */
static void release_lingering(gg_virtual *cluster) {
    for (int r = 0; r < cluster->options.size; ++r) {
        gg_virtual_rank *rank = &cluster->ranks[r];
        if (!rank->lingers) continue;
        if (rank->due.place >= 0) gg_virtual_make_undue(cluster, rank);
        gg_virtual_make_due(cluster, rank, rank->clock, false);
    }
}

/* The rank's function has returned: serves the others until all have returned, so that none waits for it without
 * end. */
static gg_status cluster_linger(gg_virtual_rank *rank) {
    gg_status status = GG_OK;
    gg_virtual *cluster = rank->cluster;
    const gg_service *service = &rank->transport.service;
    rank->lingers = true;
    while (cluster->working > 0 && !cluster->failed && !rank->dead && service->serve != NULL) {
        bool busy = false;
        GG_TRY_CLEANUP(service->serve(service->context, &busy));
        if (!busy && cluster->working > 0)
            GG_TRY_CLEANUP(gg_virtual_wait_for_any(rank)); /* a test may let others run */
    }
cleanup:
    rank->lingers = false;
    return cluster->failed ? GG_OK : status; /* what failed has been recorded */
}

static void *thread_main(void *context) {
    gg_virtual_rank *rank = context;
    gg_virtual *cluster = rank->cluster;
    (void)gg_parallel_enter();
    for (;;) {
        gg_baton_await(&rank->baton);
        if (cluster->quit) return NULL;
        gg_status status = cluster->fn(cluster->context, rank->transport.rank);
        if (--cluster->working == 0) release_lingering(cluster);
        if (status == GG_OK) status = cluster_linger(rank);
        cluster_finish(rank, rank->dead ? GG_OK : status);
        gg_virtual_hand_on(cluster, NULL);
    }
}

static gg_status cluster_check_options(const gg_virtual_options *options) {
    if (options->size < 1 || options->size > MAX_SIZE)
        return gg_fail(GG_ERROR_ARGUMENT, "virtual cluster: size is %d, expected 1 to %d", options->size, MAX_SIZE);
    GG_TRY(gg_error_prefix(gg_network_check(&options->network), "virtual cluster: "));
    if (!(options->compute_rate >= 0 && options->compute_rate < INFINITY))
        return gg_fail(GG_ERROR_ARGUMENT, "virtual cluster: compute_rate is %g, expected at least 0",
                       options->compute_rate);
    if (options->newcomers < 0 || options->newcomers >= options->size)
        return gg_fail(GG_ERROR_ARGUMENT, "virtual cluster: %d newcomers among %d ranks, expected at most %d",
                       options->newcomers, options->size, options->size - 1);
    return gg_virtual_check_deaths(options);
}

static gg_status start_threads(gg_virtual *cluster) {
    gg_status status = GG_OK;
    pthread_attr_t attributes;
    /* Untouched pages of a stack cost no memory, but the stacks of many ranks could exhaust the address space. */
    size_t stack = (size_t)(cluster->options.size <= 256 ? 8 : 1) << 20;
    if (pthread_attr_init(&attributes) != 0) return gg_fail(GG_ERROR_MEMORY, "virtual cluster: no thread attributes");
    int code = pthread_attr_setstacksize(&attributes, stack);
    for (int r = 0; r < cluster->options.size && code == 0; ++r) {
        code = pthread_create(&cluster->ranks[r].thread, &attributes, thread_main, &cluster->ranks[r]);
        if (code == 0) cluster->ranks[r].started = true;
        else
            status = gg_fail(GG_ERROR_MEMORY, "virtual cluster: the system gave %d threads of %d: %s", r,
                             cluster->options.size, strerror(code));
    }
    if (code != 0 && status == GG_OK)
        status = gg_fail(GG_ERROR_MEMORY, "virtual cluster: no stack of %zu bytes", stack);
    pthread_attr_destroy(&attributes);
    return status;
}

static gg_status copy_deaths(const gg_virtual_options *options, gg_virtual *cluster) {
    const size_t bytes = (size_t)options->death_count * sizeof *cluster->deaths;
    if (!(cluster->options.detect > 0)) cluster->options.detect = GG_VIRTUAL_DETECT;
    cluster->options.deaths = NULL; /* the caller's */
    if (bytes == 0) return GG_OK;
    GG_TRY(gg_alloc(bytes, "deaths of virtual ranks", &cluster->deaths));
    memcpy(cluster->deaths, options->deaths, bytes);
    for (int i = 0; i < options->death_count; ++i) cluster->ranks[cluster->deaths[i].rank].death = &cluster->deaths[i];
    return GG_OK;
}

gg_status gg_virtual_create(const gg_virtual_options *options, gg_virtual **out) {
    gg_status status = GG_OK;
    gg_virtual *made = NULL;
    *out = NULL;
    GG_TRY_CLEANUP(cluster_check_options(options));
    GG_TRY_CLEANUP(gg_calloc(1, sizeof *made, "virtual cluster", &made));
    made->options = *options;
    made->options.joins = NULL; /* the caller's */
    made->absent = options->newcomers;
    size_t size = (size_t)options->size;
    GG_TRY_CLEANUP(gg_calloc(size, sizeof(gg_heap_entry *), "virtual cluster's heap", &made->due.entries));
    GG_TRY_CLEANUP(gg_calloc(size, sizeof(gg_heap_entry *), "virtual cluster's heap", &made->wire.entries));
    GG_TRY_CLEANUP(gg_calloc(size, sizeof *made->ranks, "virtual ranks", &made->ranks));
    GG_TRY_CLEANUP(gg_baton_create(&made->caller));
    for (int r = 0; r < options->size; ++r) {
        gg_virtual_rank *rank = &made->ranks[r];
        rank->transport = (gg_transport){.table = &gg_virtual_table, .rank = r, .size = options->size, .identity = r};
        rank->cluster = made;
        rank->due = rank->wire = (gg_heap_entry){.place = -1, .rank = r};
        rank->next_known = INFINITY;
        rank->absent = r >= options->size - options->newcomers;
        GG_TRY_CLEANUP(gg_baton_create(&rank->baton));
    }
    GG_TRY_CLEANUP(copy_deaths(options, made));
    GG_TRY_CLEANUP(start_threads(made));
    *out = made;
    made = NULL;
cleanup:
    gg_virtual_destroy(made);
    return status;
}

void gg_virtual_destroy(gg_virtual *cluster) {
    if (!cluster) return;
    cluster->quit = true;
    for (int r = 0; cluster->ranks && r < cluster->options.size; ++r) {
        gg_virtual_rank *rank = &cluster->ranks[r];
        if (!rank->started) continue;
        gg_baton_give(&rank->baton);
        pthread_join(rank->thread, NULL);
    }
    for (int r = 0; cluster->ranks && r < cluster->options.size; ++r) gg_baton_destroy(&cluster->ranks[r].baton);
    gg_baton_destroy(&cluster->caller);
    gg_virtual_bury(cluster);
    gg_free(cluster->deaths);
    gg_free(cluster->ranks);
    gg_free(cluster->due.entries);
    gg_free(cluster->wire.entries);
    gg_free(cluster);
}

gg_transport *gg_virtual_transport(gg_virtual *cluster, int rank) {
    return rank >= 0 && rank < cluster->options.size ? &cluster->ranks[rank].transport : NULL;
}

int gg_virtual_size(const gg_virtual *cluster) { return cluster->options.size; }

void gg_virtual_admit(gg_virtual *cluster, int rank, double now) {
    gg_virtual_rank *one = &cluster->ranks[rank];
    if (!one->absent) return;
    one->absent = false;
    cluster->absent--;
    gg_virtual_set_clock(cluster, rank, (gg_virtual_clock){.now = now, .out_free = now, .in_free = now});
}

gg_virtual_clock gg_virtual_get_clock(const gg_virtual *cluster, int rank) {
    const gg_virtual_rank *one = &cluster->ranks[rank];
    return (gg_virtual_clock){.now = one->clock, .out_free = one->out_free, .in_free = one->in_free};
}

void gg_virtual_set_clock(gg_virtual *cluster, int rank, gg_virtual_clock clock) {
    gg_virtual_rank *one = &cluster->ranks[rank];
    one->clock = clock.now;
    one->out_free = clock.out_free;
    one->in_free = clock.in_free;
}

gg_status gg_virtual_run(gg_virtual *cluster, gg_status (*fn)(void *context, int rank), void *context) {
    return gg_virtual_run_watched(cluster, fn, context, &(gg_watch){0});
}

/* The state of a rank that messages change, once none is in flight. */
typedef struct aside {
    gg_virtual_clock clock;
    double timeout;
    int64_t bytes_sent, messages_sent;
    bool has_event;
} aside;

static void save_state(gg_virtual *cluster, int rank, aside *out) {
    gg_transport *t = &cluster->ranks[rank].transport;
    *out = (aside){.clock = gg_virtual_get_clock(cluster, rank),
                   .timeout = t->timeout,
                   .bytes_sent = t->bytes_sent,
                   .messages_sent = t->messages_sent,
                   .has_event = cluster->ranks[rank].has_event};
    t->timeout = 0;
}

static void restore_state(gg_virtual *cluster, int rank, const aside *saved) {
    gg_transport *t = &cluster->ranks[rank].transport;
    gg_virtual_set_clock(cluster, rank, saved->clock);
    cluster->ranks[rank].has_event = saved->has_event;
    t->timeout = saved->timeout;
    t->bytes_sent = saved->bytes_sent;
    t->messages_sent = saved->messages_sent;
}

gg_status gg_virtual_run_aside(gg_virtual *cluster, gg_status (*fn)(void *context, int rank), void *context) {
    gg_status status = GG_OK;
    aside *saved = NULL;
    GG_TRY_CLEANUP(gg_alloc((size_t)cluster->options.size * sizeof *saved, "clocks", &saved));
    for (int r = 0; r < cluster->options.size; ++r) save_state(cluster, r, &saved[r]);
    cluster->aside = true;
    status = gg_virtual_run(cluster, fn, context);
    cluster->aside = false;
    for (int r = 0; r < cluster->options.size; ++r) restore_state(cluster, r, &saved[r]);
cleanup:
    gg_free(saved);
    return status;
}

gg_status gg_virtual_run_watched(gg_virtual *cluster, gg_status (*fn)(void *context, int rank), void *context,
                                 const gg_watch *watch) {
    gg_status status = GG_OK;
    if (cluster->running) return gg_fail(GG_ERROR_STATE, "virtual cluster: it runs already");
    if (cluster->recorded)
        return gg_fail(GG_ERROR_STATE, "virtual cluster: an earlier run failed, create a new one (%.900s)",
                       cluster->text);
    cluster->fn = fn;
    cluster->context = context;
    cluster->unfinished = cluster->working = cluster->options.size - cluster->dead - cluster->absent;
    cluster->running = true;
    for (int r = 0; r < cluster->options.size; ++r) {
        cluster->ranks[r].counts = false;
        cluster->ranks[r].finished = cluster->ranks[r].dead || cluster->ranks[r].absent;
        cluster->ranks[r].empty_tests = 0;
        cluster->ranks[r].next_known = INFINITY;
        if (cluster->ranks[r].finished) continue;
        gg_virtual_make_due(cluster, &cluster->ranks[r], cluster->ranks[r].clock, false);
    }
    do {
        gg_virtual_hand_on(cluster, NULL);
        if (!watch->fn || !gg_baton_await_for(&cluster->caller, watch->seconds)) {
            atomic_store(&cluster->watch_due, watch->fn != NULL);
            gg_baton_await(&cluster->caller);
        }
        if (watch->fn && cluster->unfinished > 0) watch->fn(watch->context);
    } while (cluster->unfinished > 0);
    atomic_store(&cluster->watch_due, false);
    cluster->running = false;
    /* A deadlock is a failure of the run even if every function ignored it. */
    if (cluster->deadlock && !cluster->recorded) cluster_record(cluster, 0, GG_ERROR_COMM, cluster->deadlock_text);
    status = cluster->recorded ? gg_fail(cluster->status, "%s", cluster->text) : GG_OK;
    return status;
}
