/* Long waits between ranks: the process reports them repeatedly and continues to wait.
 *
 * The process has one reporter. A wait calls it on its own thread after some seconds, and once more when a reported
 * wait ends. The reporter may sleep and take locks: the rank has nothing else to do. */
#ifndef GG_COMM_STALL_H
#define GG_COMM_STALL_H

#include <stdbool.h>
#include <stdint.h>

typedef struct gg_stall_facts {
    int rank, size;                       /* the waiting rank by its identity, and ranks of its group */
    int peer;                             /* the awaited rank; -1 means several; the rank itself means no rank */
    int64_t step;                         /* of training; -1 means not known */
    const char *first_layer, *last_layer; /* layers of the awaited exchange; NULL means not known */
    const char *what; /* a place in MPI, or another event that the rank waits for; NULL means a message */
    double seconds;   /* since the wait began */
    bool over;        /* a wait that was reported has ended */
} gg_stall_facts;

/* Returns the seconds until the next report of this wait; 0 means never. */
typedef double gg_stall_reporter(const gg_stall_facts *facts);

/* Reports waits after `seconds` from now on; 0 or NULL turns reports off. Any thread. */
void gg_stall_configure(double seconds, gg_stall_reporter *reporter);
double gg_stall_seconds(void); /* 0 means no reports */
/* Default factor from gg_stall_seconds to the interval between reports. */
#define GG_STALL_REPEAT 6

/* One wait; zero at its begin. */
typedef struct gg_stall {
    double begin, due; /* gg_clock_now; begin 0 means not looked at yet */
    bool reported;
} gg_stall;

/* Called between tests once the wait sleeps: one look at the clock. Fills in facts->seconds and facts->over. */
void gg_stall_look(gg_stall *stall, gg_stall_facts *facts);
/* Ends a wait, or starts it anew. */
void gg_stall_end(gg_stall *stall, gg_stall_facts *facts);

#endif
