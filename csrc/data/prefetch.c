#include "data/prefetch.h"

#include <errno.h>
#include <inttypes.h>
#include <pthread.h>
#include <string.h>
#include <time.h>

#include "base/memory.h"

#define MESSAGE 1024
#define LONG_WAIT 1.0 /* seconds between looks, where nothing else is to be done */

typedef struct slot {
    void *field[GG_SET_FIELDS];
    bool read; /* or failed */
    gg_status status;
    char message[MESSAGE];
} slot;

struct gg_prefetch {
    gg_dataset set;
    gg_prefetch_rows *rows;
    void *context;
    int depth, threads; /* slots; threads that have been started */
    slot *slots;        /* of step t: t modulo depth */
    void *memory;
    pthread_t *thread;

    pthread_mutex_t lock;
    pthread_cond_t work, progress; /* for the threads; for the rank */
    /* Below: only with the lock held. */
    int64_t next, used, steps; /* to be read next; done by the rank; where reading ends */
    int64_t epoch;
    int reading; /* threads in the source */
    bool ends;
};

/* ---- the threads ---- */

static gg_status read_slot(gg_prefetch *p, int64_t step, int64_t epoch, slot *to) {
    const uint32_t *rows = NULL;
    char name[GG_FIELD_TEXT];
    const int64_t n = p->rows(p->context, step, &rows);
    GG_TRY(p->set.source->table->read(p->set.source, rows, n, epoch, to->field));
    for (int f = 0; f < gg_dataset_fields(&p->set); ++f)
        if (to->field[f] != NULL)
            GG_TRY(
                gg_field_check_rows(&p->set.field[f], gg_dataset_field_name(&p->set, f, name), to->field[f], rows, n));
    return GG_OK;
}

static void *run_reader(void *argument) {
    gg_prefetch *p = argument;
    pthread_mutex_lock(&p->lock);
    while (!p->ends) {
        if (p->next >= p->steps || p->next >= p->used + p->depth) {
            pthread_cond_wait(&p->work, &p->lock);
            continue;
        }
        const int64_t step = p->next++, epoch = p->epoch;
        slot *to = &p->slots[step % p->depth];
        ++p->reading;
        pthread_mutex_unlock(&p->lock);
        const gg_status status = read_slot(p, step, epoch, to);
        pthread_mutex_lock(&p->lock);
        to->status = status;
        if (status != GG_OK) {
            strncpy(to->message, gg_error_message(), MESSAGE - 1);
            if (p->steps > p->next) p->steps = p->next; /* nobody gets beyond this step */
        }
        to->read = true;
        --p->reading;
        pthread_cond_broadcast(&p->progress);
    }
    pthread_mutex_unlock(&p->lock);
    return NULL;
}

static gg_status start_thread(gg_prefetch *p) {
    const int error = pthread_create(&p->thread[p->threads], NULL, run_reader, p);
    if (error != 0) return gg_fail(GG_ERROR_MEMORY, "data: a thread that reads samples: %s", strerror(error));
    ++p->threads;
    return GG_OK;
}

/* ---- the rank ---- */

/* A place in one block for each field of each slot. */
static gg_status make_slots(gg_prefetch *p, int64_t most) {
    size_t each = 0;
    const int fields = gg_dataset_fields(&p->set);
    GG_TRY(gg_calloc((size_t)p->depth, sizeof *p->slots, "slots of batches", &p->slots));
    for (int f = 0; f < fields; ++f)
        if (p->set.memory[f] == NULL) each += gg_aligned((size_t)most * gg_field_bytes(&p->set.field[f]));
    GG_TRY(gg_alloc((size_t)p->depth * each, "batches that are read ahead", &p->memory));
    char *at = p->memory;
    for (int s = 0; s < p->depth; ++s)
        for (int f = 0; f < fields; ++f) {
            if (p->set.memory[f] != NULL) continue;
            p->slots[s].field[f] = at;
            at += gg_aligned((size_t)most * gg_field_bytes(&p->set.field[f]));
        }
    return GG_OK;
}

gg_status gg_prefetch_create(const gg_dataset *set, int64_t most, gg_prefetch_rows *rows, void *context,
                             gg_prefetch **out) {
    gg_status status = GG_OK;
    gg_prefetch *p = NULL;
    pthread_condattr_t monotonic;
    const int threads = set->source->readers;
    *out = NULL;
    GG_TRY_CLEANUP(gg_calloc(1, sizeof *p, "batches that are read ahead", &p));
    pthread_condattr_init(&monotonic);
    pthread_condattr_setclock(&monotonic, CLOCK_MONOTONIC);
    pthread_mutex_init(&p->lock, NULL);
    pthread_cond_init(&p->work, NULL);
    pthread_cond_init(&p->progress, &monotonic);
    pthread_condattr_destroy(&monotonic);
    gg_dataset_retain(set);
    p->set = *set;
    p->rows = rows;
    p->context = context;
    /* While the rank uses one slot, the threads fill the others; each has one at least. */
    p->depth = (set->source->ahead > threads ? set->source->ahead : threads) + 1;
    GG_TRY_CLEANUP(make_slots(p, most));
    GG_TRY_CLEANUP(gg_calloc((size_t)threads, sizeof *p->thread, "threads that read samples", &p->thread));
    for (int i = 0; i < threads; ++i) GG_TRY_CLEANUP(start_thread(p));
    *out = p;
    p = NULL;
cleanup:
    gg_prefetch_destroy(p);
    return status;
}

void gg_prefetch_destroy(gg_prefetch *p) {
    if (p == NULL) return;
    pthread_mutex_lock(&p->lock);
    p->ends = true;
    pthread_cond_broadcast(&p->work);
    pthread_mutex_unlock(&p->lock);
    for (int i = 0; i < p->threads; ++i) pthread_join(p->thread[i], NULL);
    pthread_cond_destroy(&p->work);
    pthread_cond_destroy(&p->progress);
    pthread_mutex_destroy(&p->lock);
    gg_dataset_release(&p->set);
    gg_free(p->slots);
    gg_free(p->memory);
    gg_free(p->thread);
    gg_free(p);
}

/* With the lock held. */
static void stop_reading(gg_prefetch *p) {
    p->steps = p->next;
    while (p->reading > 0) pthread_cond_wait(&p->progress, &p->lock);
    for (int s = 0; s < p->depth; ++s) p->slots[s].read = false;
}

void gg_prefetch_stop(gg_prefetch *p) {
    pthread_mutex_lock(&p->lock);
    stop_reading(p);
    pthread_mutex_unlock(&p->lock);
}

void gg_prefetch_start(gg_prefetch *p, int64_t first, int64_t steps, int64_t epoch) {
    pthread_mutex_lock(&p->lock);
    stop_reading(p);
    p->next = p->used = first;
    p->steps = steps;
    p->epoch = epoch;
    pthread_cond_broadcast(&p->work);
    pthread_mutex_unlock(&p->lock);
}

bool gg_prefetch_ready(gg_prefetch *p, int64_t step, double seconds) {
    struct timespec until;
    clock_gettime(CLOCK_MONOTONIC, &until);
    const int64_t nanoseconds = until.tv_nsec + (int64_t)(seconds * 1e9);
    until.tv_sec += nanoseconds / 1000000000;
    until.tv_nsec = nanoseconds % 1000000000;
    pthread_mutex_lock(&p->lock);
    const slot *wanted = &p->slots[step % p->depth];
    int error = 0;
    while (!wanted->read && error != ETIMEDOUT) error = pthread_cond_timedwait(&p->progress, &p->lock, &until);
    const bool read = wanted->read;
    pthread_mutex_unlock(&p->lock);
    return read;
}

gg_status gg_prefetch_get(gg_prefetch *p, int64_t step, void *const **fields) {
    gg_status status = GG_OK;
    const slot *wanted = &p->slots[step % p->depth];
    while (!gg_prefetch_ready(p, step, LONG_WAIT)) continue;
    if (wanted->status != GG_OK) return gg_fail(wanted->status, "%s", wanted->message);
    *fields = wanted->field;
    return status;
}

void gg_prefetch_done(gg_prefetch *p, int64_t step) {
    pthread_mutex_lock(&p->lock);
    p->slots[step % p->depth].read = false;
    p->used = step + 1;
    pthread_cond_broadcast(&p->work);
    pthread_mutex_unlock(&p->lock);
}
