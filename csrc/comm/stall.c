#include "comm/stall.h"

#include <math.h>
#include <stddef.h>

#include "base/clock.h"

static double patience;
static gg_stall_reporter *report;

void gg_stall_configure(double seconds, gg_stall_reporter *reporter) {
    patience = seconds;
    report = seconds > 0 ? reporter : NULL;
}

double gg_stall_seconds(void) { return report != NULL ? patience : 0; }

void gg_stall_look(gg_stall *stall, gg_stall_facts *facts) {
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
    if (stall->reported && report != NULL) {
        facts->seconds = gg_clock_now() - stall->begin;
        facts->over = true;
        (void)report(facts);
    }
    *stall = (gg_stall){0};
}
