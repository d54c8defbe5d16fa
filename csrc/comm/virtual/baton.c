#include "comm/virtual/baton.h"

#include <math.h>
#include <time.h>

gg_status gg_baton_create(gg_baton *b) {
    if (pthread_mutex_init(&b->mutex, NULL) != 0) return gg_fail(GG_ERROR_MEMORY, "the system gave no mutex");
    pthread_condattr_t attributes;
    bool made = pthread_condattr_init(&attributes) == 0;
    if (made) {
        made = pthread_condattr_setclock(&attributes, CLOCK_MONOTONIC) == 0 &&
               pthread_cond_init(&b->turn, &attributes) == 0;
        pthread_condattr_destroy(&attributes);
    }
    if (!made) {
        pthread_mutex_destroy(&b->mutex);
        return gg_fail(GG_ERROR_MEMORY, "the system gave no condition variable");
    }
    b->made = true;
    return GG_OK;
}

void gg_baton_destroy(gg_baton *b) {
    if (!b->made) return;
    pthread_cond_destroy(&b->turn);
    pthread_mutex_destroy(&b->mutex);
}

void gg_baton_give(gg_baton *b) {
    pthread_mutex_lock(&b->mutex);
    b->here = true;
    pthread_mutex_unlock(&b->mutex);
    /* Outside of the lock: the woken thread need not sleep again for it. */
    pthread_cond_signal(&b->turn);
}

void gg_baton_await(gg_baton *b) {
    pthread_mutex_lock(&b->mutex);
    while (!b->here) pthread_cond_wait(&b->turn, &b->mutex);
    b->here = false;
    pthread_mutex_unlock(&b->mutex);
}

/* False means that the baton did not come within `seconds`. */
bool gg_baton_await_for(gg_baton *b, double seconds) {
    struct timespec until;
    (void)clock_gettime(CLOCK_MONOTONIC, &until);
    double nanoseconds = (double)until.tv_nsec + 1e9 * seconds;
    until.tv_sec += (time_t)(nanoseconds / 1e9);
    until.tv_nsec = (long)fmod(nanoseconds, 1e9);
    pthread_mutex_lock(&b->mutex);
    while (!b->here && pthread_cond_timedwait(&b->turn, &b->mutex, &until) == 0) continue;
    bool came = b->here;
    b->here = false;
    pthread_mutex_unlock(&b->mutex);
    return came;
}
