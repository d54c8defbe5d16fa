#include "base/clock.h"

#include <errno.h>
#include <sched.h>
#include <time.h>

double gg_clock_now(void) {
    struct timespec now = {0};
    (void)clock_gettime(CLOCK_MONOTONIC, &now);
    return (double)now.tv_sec + 1e-9 * (double)now.tv_nsec;
}

void gg_clock_sleep(double seconds) {
    if (!(seconds > 0)) {
        (void)sched_yield();
        return;
    }
    if (seconds > 1e9) seconds = 1e9; /* about 30 years; fits any time_t */
    struct timespec left = {.tv_sec = (time_t)seconds};
    left.tv_nsec = (long)((seconds - (double)left.tv_sec) * 1e9);
    while (nanosleep(&left, &left) != 0 && errno == EINTR) continue;
}

/* Seconds. A sleep lasts 0.07 ms at least. */
#define SLEEP_MIN 20e-6
#define SLEEP_MAX 200e-6
#define SLEEP_GROWTH 10 /* percent a round */

void gg_clock_back_off(int round) {
    double seconds = 0;
    if (round >= GG_CLOCK_YIELDS) {
        seconds = SLEEP_MIN * (1.0 + SLEEP_GROWTH * 0.01 * (round - GG_CLOCK_YIELDS));
        if (seconds > SLEEP_MAX) seconds = SLEEP_MAX;
    }
    gg_clock_sleep(seconds);
}
