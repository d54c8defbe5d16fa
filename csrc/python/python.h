/* Private to the room: what the files of the extension module share.
 *
 * The core has process-wide state (MPI), so the module serves one interpreter. Every call into the core that computes
 * or communicates releases the GIL. Only this room turns errors into exceptions. */
#ifndef GG_PYTHON_PYTHON_H
#define GG_PYTHON_PYTHON_H

#define PY_SSIZE_T_CLEAN
#include <Python.h>

#define NPY_NO_DEPRECATED_API NPY_1_23_API_VERSION
#define PY_ARRAY_UNIQUE_SYMBOL gg_numpy_api
#ifndef GG_PYTHON_MODULE
#define NO_IMPORT_ARRAY
#endif
#include <numpy/arrayobject.h>
#include <sys/types.h>

#include "nn/graph.h"
#include "train/trainer.h"

typedef struct gg_py_graph {
    PyObject_HEAD gg_graph *graph;
    bool finished;
} gg_py_graph;

typedef struct gg_py_team {
    PyObject_HEAD gg_team *team;
    pid_t process;       /* the process that made it; one forked from it cannot use it, and frees nothing */
    bool no_collectives; /* a callback runs which other ranks run at another step, or not at all */
} gg_py_team;

typedef struct gg_py_dataset {
    PyObject_HEAD gg_dataset set;
} gg_py_dataset;

extern PyTypeObject *gg_py_graph_type, *gg_py_team_type, *gg_py_dataset_type, *gg_py_trainer_type, *gg_py_exchange_type;
extern PyObject *gg_py_communication_error, *gg_py_cancelled;

/* Each adds its types and functions to the module; 0, or -1 with an exception set. */
int gg_py_add_common(PyObject *module); /* before the others */
int gg_py_add_graph(PyObject *module);
int gg_py_add_team(PyObject *module);
int gg_py_add_dataset(PyObject *module);
int gg_py_add_trainer(PyObject *module);
int gg_py_add_exchange(PyObject *module);
int gg_py_add_shrink(PyObject *module);
int gg_py_add_info(PyObject *module);
int gg_py_add_schedule(PyObject *module);
int gg_py_add_options(PyObject *module);

/* Whether a collective call is allowed: 0, or -1 with RuntimeError inside of a callback that not all ranks run. */
int gg_py_team_check_collectives(const gg_py_team *team);

/* Whether this process made the team; false in one that was forked from it. The second form: 0, or -1 with RuntimeError
 * there. */
bool gg_py_team_is_here(const gg_py_team *team);
int gg_py_team_check_process(const gg_py_team *team);

/* Makes a heap type and adds it under its name. */
PyTypeObject *gg_py_add_type(PyObject *module, PyType_Spec *spec);

/* What the core says, as a str: a text that was cut off may end within a character, and paths and variables of the
 * environment may have bytes that are none. */
PyObject *gg_py_text(const char *text);

/* Sets the exception that belongs to a status, with this thread's message; returns NULL. */
PyObject *gg_py_raise(gg_status status);

/* A source of a Python object with read(rows, epoch, samples, targets), for the fields of a set that are not in memory;
 * one reference. Its attributes ordered, readers and ahead are those of gg_source. -1 with an exception. */
int gg_py_source(PyObject *object, const gg_dataset *set, gg_source **out);
/* Stores the exception that is set and clears it; returns GG_ERROR_SOURCE with its text. */
gg_status gg_py_store_exception(void);
/* Sets the exception of a source that failed with a message like this one, and forgets those of other failures; false:
 * there is none. */
bool gg_py_raise_stored(const char *message);
/* Where a call ends by another exception: those that are stored, and what their tracebacks refer to, are freed. */
void gg_py_forget_stored(void);

/* The value of a property that counts steps, at least 0; -1 with an exception that names it. value NULL: deletion. */
int gg_py_step(PyObject *value, const char *name, int64_t *out);

/* The place of `value` among n names; else ValueError naming the argument, the value and what is allowed, and -1. */
int gg_py_choice(const char *argument, const char *value, const char *const *names, int n);

extern const char *const gg_py_loss_names[GG_LOSS_COUNT];
extern const char *const gg_py_layout_names[GG_LAYOUT_COUNT];
extern const char *const gg_py_topology_names[GG_TOPOLOGY_TABLE]; /* a table has no name */

/* A shape from a sequence of sizes; -1 with an exception. */
int gg_py_shape(PyObject *sequence, const char *argument, gg_shape *out);
PyObject *gg_py_shape_tuple(const gg_shape *shape);

/* A C-contiguous, aligned array of this type (borrowed rules: new reference), or NULL with TypeError naming the
 * argument. No copy where the array already is so; no conversion of element types. */
PyArrayObject *gg_py_array(PyObject *object, int type, const char *argument);
PyArrayObject *gg_py_new_array(int dims, const npy_intp *sizes, int type);

/* Room for all elements of an arena, zeros; NULL with an exception. Freed by PyMem_Free. */
float *gg_py_arena_new(const gg_arena_layout *layout);
/* The parameters in an arena by name: copies, or with an owner of its memory views, which keep that alive. */
PyObject *gg_py_arena_dict(const gg_arena_layout *layout, float *arena, PyObject *owner);
/* A new arena of arrays by name, all of whose names and shapes must fit; NULL with an exception. */
float *gg_py_arena_of(const gg_arena_layout *layout, PyObject *dict, const char *argument);
/* The place of an arena; -1 with an exception. And the kind of each arena, by name. */
int gg_py_arena_place(const gg_state *state, const char *name);
PyObject *gg_py_arena_kinds(const gg_state *state);

/* The arguments of resume_arena: an arena's place, and what it becomes. */
typedef struct gg_py_resume {
    int arena, trained, local;
    float **whole;    /* of each local rank; NULL: nothing was read */
    float *consensus; /* NULL: none */
} gg_py_resume;
/* -1 with an exception; to be freed in either case. */
int gg_py_resume_read(gg_py_resume *r, PyObject *args, const gg_state *state, const gg_arena_layout *layout,
                      const gg_team *team);
void gg_py_resume_free(gg_py_resume *r);

/* One number a rank of the team, owned by the caller (PyMem_Free); *out stays NULL for None. -1 with an exception. */
int gg_py_compute_time(PyObject *sequence, int size, double **out);
PyObject *gg_py_tuning(const gg_tuning *tuned);                    /* a dict */
PyObject *gg_py_spans(const gg_trace *trace, double clock_offset); /* a list; NULL: no trace */

/* A topology from its name or a table, int64 of shape [rows, ranks]. *table: the array that `out` points into, a new
 * reference, which must live as long as `out` is used, or NULL. -1 with an exception. */
int gg_py_topology(PyObject *topology, gg_schedule_options *out, PyArrayObject **table);

/* What the options of a strategy point into, each a new reference or NULL: must live as long as they are used. */
typedef struct gg_py_option_memory {
    PyArrayObject *table; /* of the topology */
    PyObject *packs;      /* names of parameters */
} gg_py_option_memory;

/* The options of a trainer, from dicts whose keys are the keywords of Python's classes; missing ones have the core's
 * defaults. -1 with an exception that names the keyword; what `memory` then has is to be cleared as well. backend NULL:
 * $GOSSIPGRAD_BACKEND, else "auto". */
int gg_py_strategy_options(PyObject *dict, gg_strategy_options *out, gg_py_option_memory *memory);
void gg_py_option_memory_clear(gg_py_option_memory *memory);
/* NULL and None: nothing is compressed. *packs: as in gg_py_option_memory. */
int gg_py_compression(PyObject *dict, gg_compression *out, PyObject **packs);
int gg_py_optimizer(PyObject *dict, gg_optimizer *out);
const char *gg_py_backend_choice(const char *backend); /* a constant; NULL with an exception */
int gg_py_conv_algorithm(const char *name, gg_conv_algorithm *out);
/* In which a network computes. */
int gg_py_dtype(const char *name, gg_dtype *out);

/* A rate from a dict with the fields of gg_rate, `kind` by name; missing fields have their defaults. -1 with an
 * exception. A table's values are read in the dict's array, which must live as long as the rate. */
int gg_py_rate(PyObject *dict, gg_rate *out);
/* The same of an argument `schedule`, with all defaults, checked. */
int gg_py_schedule(PyObject *schedule, gg_rate *out);

#define GG_PY_KEYWORDS(function) (PyCFunction)(void (*)(void))(function), METH_VARARGS | METH_KEYWORDS

#endif
