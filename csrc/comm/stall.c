#include "comm/stall.h"

#include <math.h>
#include <stdatomic.h>
#include <stddef.h>

#include "base/clock.h"

/* Threads of their own may train beside the one that configures. */
static _Atomic double patience;
static _Atomic(gg_stall_reporter *) reporter_of_process;

void gg_stall_configure(double seconds, gg_stall_reporter *reporter) {
    patience = seconds;
    reporter_of_process = seconds > 0 ? reporter : NULL;
}

double gg_stall_seconds(void) { return reporter_of_process != NULL ? patience : 0; }

void gg_stall_look(gg_stall *stall, gg_stall_facts *facts) {
    gg_stall_reporter *const report = reporter_of_process;
    if (report == NULL) return;
    double now = gg_clock_now();
    if (stall->begin == 0) *stall = (gg_stall){.begin = now, .due = now + patience};
    if (now < stall->due) return;
    facts->seconds = now - stall->begin;
    facts->over = false;
    double next = report(facts);
    stall->reported = true;
    stall->due = next > 0 ? gg_clock_now() + next : INFINITY;
}

void gg_stall_end(gg_stall *stall, gg_stall_facts *facts) {
    gg_stall_reporter *const report = reporter_of_process;
    if (stall->reported && report != NULL) {
        facts->seconds = gg_clock_now() - stall->begin;
        facts->over = true;
        (void)report(facts);
    }
    *stall = (gg_stall){0};
}
