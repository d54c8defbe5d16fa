/* Private to the room: what the files of _core.Trainer share. */
#ifndef GG_PYTHON_TRAINER_H
#define GG_PYTHON_TRAINER_H

#include "python/exchange.h"
#include "python/python.h"

typedef struct gg_py_trainer {
    PyObject_HEAD gg_trainer *trainer;
    gg_py_graph *graph;
    gg_py_exchange *exchange; /* of the ranks' states; it outlives the trainer */
    gg_py_team *team;
    gg_head_options head[GG_MAX_FIELDS]; /* of the graph's heads */
    PyObject *device;                    /* the name of what computes; NULL: the default */
    PyObject *losses;                    /* what holds their class weights; NULL: nothing */
} gg_py_trainer;

/* Whether no other thread is in a call: the core serves one at a time. False: an exception is set. */
bool gg_py_trainer_is_free(const gg_py_trainer *t);

/* Begins a call in which all ranks take part and that releases the GIL. False: an exception is set. */
bool gg_py_trainer_enter(gg_py_trainer *t);
void gg_py_trainer_leave(gg_py_trainer *t);

/* The same for functions that free nothing: needs a local `gg_status status`, and returns on a failure. */
#define GG_PY_CALL(t, expression)                                                                                      \
    do {                                                                                                               \
        if (!gg_py_trainer_enter(t)) return NULL;                                                                      \
        Py_BEGIN_ALLOW_THREADS;                                                                                        \
        status = (expression);                                                                                         \
        Py_END_ALLOW_THREADS;                                                                                          \
        gg_py_trainer_leave(t);                                                                                        \
        if (status != GG_OK) return gg_py_raise(status);                                                               \
    } while (0)

/* One set for each local rank, and whether they are the ranks' own parts: `object` is a Dataset, which all of them
 * have, or a list with one for each. *sets is freed by PyMem_Free; -1 with an exception. The sets live as long as
 * `object`. */
int gg_py_trainer_sets(const gg_py_trainer *t, PyObject *object, const gg_dataset ***sets, bool *own);

/* Whether the network has parameters of this family. */
bool gg_py_trainer_has_family(const gg_py_trainer *t, gg_family family);

/* A local rank's; NULL with an exception. */
gg_replica *gg_py_trainer_replica(gg_py_trainer *t, int rank);

/* The methods, each table ended by a NULL name. */
extern PyMethodDef gg_py_trainer_epochs[], gg_py_trainer_batches[], gg_py_trainer_state[], gg_py_trainer_measures[],
    gg_py_trainer_shrinks[];

#endif
