/* Private to the room: declarations shared by the files of _core.Exchange. */
#ifndef GG_PYTHON_EXCHANGE_H
#define GG_PYTHON_EXCHANGE_H

#include "exchange/peers.h"
#include "exchange/steps.h"
#include "python/python.h"

typedef struct gg_py_exchange {
    PyObject_HEAD gg_peers *peers;
    gg_steps **steps; /* one a local rank, then those of the dead; NULL means that a trainer makes the steps */
    int ranks;        /* length of `steps` */
    gg_py_team *team;
    gg_py_option_memory strategy; /* memory that the strategies read */
    PyObject *schedule;           /* the rates' dict with its array; NULL means none */
    PyObject *held; /* a list of objects that ranks may still refer to after a failed change; NULL means none */
    /* Only accessed with the GIL held: */
    bool busy;             /* a call of all ranks is under way */
    bool running;          /* `run` is under way */
    bool interrupted;      /* a signal's handler has raised in it, as for Ctrl-C: calls of ranks raise from then on */
    bool *rank_busy;       /* one a local rank: a call of it is under way */
    unsigned long *thread; /* one a local rank: the thread that runs its function in `run`; 0 means none */
} gg_py_exchange;

/* Makes an exchange without peers, which the caller makes from the options. Sets the strategy, the optimiser (with its
 * schedule) and the instruction set in these. NULL with an exception. */
gg_py_exchange *gg_py_exchange_open(gg_py_team *team, PyObject *optimizer, PyObject *strategy,
                                    gg_exchange_options *options);

/* Makes a call that `entered` begins by setting x->busy. done: it has succeeded; false with an exception. */
#define GG_PY_BUSY(x, entered, done, expression)                                                                       \
    do {                                                                                                               \
        (done) = (entered);                                                                                            \
        if (done) {                                                                                                    \
            gg_status status_of_call;                                                                                  \
            GG_PY_WITHOUT_GIL(status_of_call = (expression));                                                          \
            (x)->busy = false;                                                                                         \
            (done) = status_of_call == GG_OK;                                                                          \
            if (!(done)) gg_py_raise(status_of_call);                                                                  \
        }                                                                                                              \
    } while (0)

/* Calls fn without the GIL for a local rank, on this thread, or for all of them (rank -1). Allowed on a rank's own
 * thread, or if the rank is alone in its process; for all ranks outside of `run`. None, or NULL with an exception. */
PyObject *gg_py_exchange_call(gg_py_exchange *x, int rank, gg_status (*fn)(void *context, int local), void *context);
/* True if gg_py_exchange_call is allowed now; false with an exception. */
bool gg_py_exchange_allows(const gg_py_exchange *x, int rank);
/* True if this process may call all ranks, no such call is under way, and all ranks have their state; false with an
 * exception. */
bool gg_py_exchange_is_free(const gg_py_exchange *x);
PyObject *gg_py_exchange_is_in_use(const gg_py_exchange *x); /* raises; NULL */
bool gg_py_exchange_is_whole(const gg_py_exchange *x);
/* True if the exchange's methods make its steps, not a trainer; false with an exception. */
bool gg_py_exchange_has_steps(const gg_py_exchange *x);
/* Keeps an object alive as long as the exchange. A set exception stays. */
void gg_py_exchange_hold(gg_py_exchange *x, PyObject *object);
/* Gives the exchange the memory of a strategy's options if `adopted`. Otherwise a change to them has failed, and an
 * exchange that is no longer whole keeps the memory alive. Clears `memory`. */
void gg_py_exchange_adopt(gg_py_exchange *x, gg_py_option_memory *memory, bool adopted);
/* Rank of an argument: None gives -1, all ranks. -2 with an exception. */
int gg_py_exchange_rank(const gg_py_exchange *x, PyObject *object);
/* As gg_py_exchange_rank; None is a TypeError. */
int gg_py_exchange_one_rank(const gg_py_exchange *x, PyObject *object);

/* Tables of methods, each ended by a NULL name. */
extern PyMethodDef gg_py_exchange_steps[], gg_py_exchange_state[], gg_py_exchange_view[];

#endif
