/* Private to the room: what the files of _core.Exchange share. */
#ifndef GG_PYTHON_EXCHANGE_H
#define GG_PYTHON_EXCHANGE_H

#include "exchange/peers.h"
#include "exchange/steps.h"
#include "python/python.h"

typedef struct gg_py_exchange {
    PyObject_HEAD gg_peers *peers;
    gg_steps **steps; /* of each local rank; NULL: a trainer makes them */
    gg_py_team *team;
    gg_py_option_memory strategy; /* what the strategies read */
    PyObject *schedule;           /* the dict that the rates were made of, and its array; NULL: none */
    PyObject *held; /* a list: what ranks may still refer to after a change of them has failed; NULL: nothing */
    /* Only read and written with the GIL held: */
    bool busy;        /* a call of all ranks is under way */
    bool running;     /* `run` is */
    bool interrupted; /* a signal's handler has raised in it, as that of Ctrl-C: calls of ranks raise from then on */
    bool *rank_busy;  /* of each local rank: a call of it is under way */
    unsigned long *thread; /* of each local rank: the thread that runs its function in `run`; 0: none */
} gg_py_exchange;

/* An exchange without peers, which the caller makes of the options; these have the strategy, the optimiser (with its
 * schedule) and the instruction set. NULL with an exception. */
gg_py_exchange *gg_py_exchange_open(gg_py_team *team, PyObject *optimizer, PyObject *strategy,
                                    gg_exchange_options *options);

/* Makes a call of a local rank, on this thread, or of all of them (rank -1), without the GIL. The call is allowed on a
 * rank's own thread, or where the rank is alone in its process; for all ranks outside of `run`. NULL with an exception,
 * else None. */
PyObject *gg_py_exchange_call(gg_py_exchange *x, int rank, gg_status (*fn)(void *context, int local), void *context);
/* Whether such a call is allowed now; else an exception is set. */
bool gg_py_exchange_allows(const gg_py_exchange *x, int rank);
/* Whether no call of all ranks is under way, in a process that may make one, and all ranks have their state; else an
 * exception is set. */
bool gg_py_exchange_is_free(const gg_py_exchange *x);
PyObject *gg_py_exchange_is_in_use(const gg_py_exchange *x); /* raises; NULL */
bool gg_py_exchange_is_whole(const gg_py_exchange *x);
/* Whether its steps are made by calls here, and not by a trainer; else an exception is set. */
bool gg_py_exchange_has_steps(const gg_py_exchange *x);
/* Keeps an object alive as long as the exchange. An exception that is set stays. */
void gg_py_exchange_hold(gg_py_exchange *x, PyObject *object);
/* What the options of a strategy point into is the exchange's from here on, or, where a change to them has failed
 * half-way, lives as long as the exchange. Clears `memory`. */
void gg_py_exchange_adopt(gg_py_exchange *x, gg_py_option_memory *memory, bool adopted);
/* A rank from an argument: None is -1, all of them. -2 with an exception. */
int gg_py_exchange_rank(const gg_py_exchange *x, PyObject *object);

/* The methods, each table ended by a NULL name. */
extern PyMethodDef gg_py_exchange_steps[], gg_py_exchange_state[];

#endif
