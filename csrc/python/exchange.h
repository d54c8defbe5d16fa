/* Private to the room: what the files of _core.Exchange share. */
#ifndef GG_PYTHON_EXCHANGE_H
#define GG_PYTHON_EXCHANGE_H

#include "exchange/peers.h"
#include "python/python.h"

typedef struct gg_py_exchange {
    PyObject_HEAD gg_peers *peers;
    gg_arena_layout layout;
    gg_py_team *team;
    gg_py_option_memory strategy; /* what the strategies read */
    PyObject *schedule;           /* the dict that the rates were made of, and its array; NULL: none */
    /* Only read and written with the GIL held: */
    bool busy;        /* a call of all ranks is under way */
    bool running;     /* `run` is */
    bool interrupted; /* a signal's handler has raised in it, as that of Ctrl-C: calls of ranks raise from then on */
    bool *rank_busy;  /* of each local rank: a call of it is under way */
    unsigned long *thread; /* of each local rank: the thread that runs its function in `run`; 0: none */
} gg_py_exchange;

/* Makes a call of a local rank, on this thread, or of all of them (rank -1), without the GIL. The call is allowed on a
 * rank's own thread, or where the rank is alone in its process; for all ranks outside of `run`. NULL with an exception,
 * else None. */
PyObject *gg_py_exchange_call(gg_py_exchange *x, int rank, gg_status (*fn)(void *context, int local), void *context);
/* Whether such a call is allowed now; else an exception is set. */
bool gg_py_exchange_allows(const gg_py_exchange *x, int rank);
bool gg_py_exchange_is_initialised(const gg_py_exchange *x); /* else an exception is set */
/* A rank from an argument: None is -1, all of them. -2 with an exception. */
int gg_py_exchange_rank(const gg_py_exchange *x, PyObject *object);

/* The methods, each table ended by a NULL name. */
extern PyMethodDef gg_py_exchange_steps[], gg_py_exchange_state[];

#endif
