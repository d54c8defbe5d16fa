/* Waits between ranks that last: the process reports them, again and again, and goes on waiting.
 *
 * One reporter for the whole process. A wait calls it once it has lasted some seconds, from the thread that waits, and
 * once more when such a wait is over. It may sleep and take locks: the rank has nothing else to do. */
#ifndef GG_COMM_STALL_H
#define GG_COMM_STALL_H

#include <stdbool.h>
#include <stdint.h>

typedef struct gg_stall_facts {
    int rank, size;                       /* who waits, in a group of how many */
    int peer;                             /* for whom; -1: for more than one; itself: for what is no rank */
    int64_t step;                         /* of training; -1: none is known */
    const char *first_layer, *last_layer; /* whose exchange is waited for; NULL: not known */
    const char *what; /* a place in MPI itself, or that for which a rank waits by itself; NULL: a message */
    double seconds;   /* since the wait began */
    bool over;        /* a wait that was reported has ended */
} gg_stall_facts;

/* Returns the seconds until the same wait is to be reported again; 0: never. */
typedef double gg_stall_reporter(const gg_stall_facts *facts);

/* Waits are reported from now on after so many seconds; 0 or NULL: none is. By any thread. */
void gg_stall_configure(double seconds, gg_stall_reporter *reporter);
double gg_stall_seconds(void); /* 0: none is reported */
/* A wait is reported again after so many times these seconds, by default. */
#define GG_STALL_REPEAT 6

/* One wait; zero-initialised at its begin. */
typedef struct gg_stall {
    double begin, due; /* gg_clock_now; begin 0: not looked at yet */
    bool reported;
} gg_stall;

/* To be called between tests of what is waited for, once the wait sleeps: one look at the clock. facts->seconds and
 * over are filled in here. */
void gg_stall_look(gg_stall *stall, gg_stall_facts *facts);
/* The wait is over, or begins anew. */
void gg_stall_end(gg_stall *stall, gg_stall_facts *facts);

#endif
