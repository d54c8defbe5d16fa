/* Private to the room: declarations shared by the files of the extension module.
 *
 * The core has process-wide state (MPI), so the module serves one interpreter. Every call into the core that computes
 * or communicates releases the GIL. Only this room turns errors into exceptions. gossipgrad/_core.pyi documents all
 * functions; tables of methods have signatures alone. */
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
    pid_t process;       /* the process that made it; a forked one cannot use it, and frees nothing */
    bool no_collectives; /* a callback is running that other ranks run at another step or never */
} gg_py_team;

typedef struct gg_py_dataset {
    PyObject_HEAD gg_dataset set;
} gg_py_dataset;

extern PyTypeObject *gg_py_graph_type, *gg_py_team_type, *gg_py_dataset_type, *gg_py_trainer_type, *gg_py_exchange_type;
extern PyObject *gg_py_communication_error, *gg_py_peer_error, *gg_py_cancelled;

/* Each adds its types and functions to the module: 0, or -1 with an exception. */
int gg_py_add_common(PyObject *module); /* before all others */
int gg_py_add_graph(PyObject *module);
int gg_py_add_team(PyObject *module);
int gg_py_add_stall(PyObject *module);
int gg_py_add_dataset(PyObject *module);
int gg_py_add_trainer(PyObject *module);
int gg_py_add_exchange(PyObject *module);
int gg_py_add_shrink(PyObject *module);
int gg_py_add_info(PyObject *module);
int gg_py_add_schedule(PyObject *module);
int gg_py_add_view_keeper(PyObject *module);
int gg_py_add_view_pages(PyObject *module);
int gg_py_add_options(PyObject *module);

/* Checks that collective calls are allowed: 0, or -1 with RuntimeError inside of a callback that not all ranks run. */
int gg_py_team_check_collectives(const gg_py_team *team);

/* True if this process made the team; false in a forked one. The second function: 0, or -1 with RuntimeError. */
bool gg_py_team_is_here(const gg_py_team *team);
int gg_py_team_check_process(const gg_py_team *team);

/* Makes a heap type and adds it under its name. */
PyTypeObject *gg_py_add_type(PyObject *module, PyType_Spec *spec);

/* A text of the core as a str. A cut text may end within a character; paths and environment variables may have invalid
 * bytes. */
PyObject *gg_py_text(const char *text);

/* Sets the exception of a status, with this thread's message. Returns NULL. */
PyObject *gg_py_raise(gg_status status);
/* None for GG_OK; otherwise gg_py_raise. */
PyObject *gg_py_done(gg_status status);

/* Maps memory that processes share, from its descriptor. sizes: also sets its length. NULL with an exception. */
void *gg_py_map(int descriptor, size_t bytes, bool sizes);

/* Executes a statement without the GIL. */
#define GG_PY_WITHOUT_GIL(...)                                                                                         \
    do {                                                                                                               \
        Py_BEGIN_ALLOW_THREADS;                                                                                        \
        __VA_ARGS__;                                                                                                   \
        Py_END_ALLOW_THREADS;                                                                                          \
    } while (0)

/* Makes a source from a Python object with read(rows, epoch, samples, targets), for the fields of a set that are not in
 * memory; *out is one reference. Its attributes ordered, readers and ahead are those of gg_source. -1 with an
 * exception. */
int gg_py_source(PyObject *object, const gg_dataset *set, gg_source **out);
/* Stores the set exception and clears it. Returns GG_ERROR_SOURCE with its text. */
gg_status gg_py_store_exception(void);
/* Sets the stored exception of a source whose text ends `message`, and forgets all others. False if there is none. */
bool gg_py_raise_stored(const char *message);
/* Frees stored exceptions, and all that their tracebacks refer to, after a call that ends by another exception. */
void gg_py_forget_stored(void);

/* The value of a property that counts steps, at least 0. -1 with an exception that names it. value NULL means deletion.
 */
int gg_py_step(PyObject *value, const char *name, int64_t *out);

/* Place of `value` among n names. Otherwise -1 with a ValueError that names the argument, the value and the allowed
 * values. */
int gg_py_choice(const char *argument, const char *value, const char *const *names, int n);

extern const char *const gg_py_loss_names[GG_LOSS_COUNT];
extern const char *const gg_py_layout_names[GG_LAYOUT_COUNT];
extern const char *const gg_py_topology_names[GG_TOPOLOGY_TABLE]; /* a table has no name */

/* A shape from a sequence of sizes; -1 with an exception. */
int gg_py_shape(PyObject *sequence, const char *argument, gg_shape *out);
PyObject *gg_py_shape_tuple(const gg_shape *shape);

/* Returns a C-contiguous, aligned array of this type, a new reference. NULL with a TypeError that names the argument.
 * Copies only if needed, and never converts element types. */
PyArrayObject *gg_py_array(PyObject *object, int type, const char *argument);
PyArrayObject *gg_py_new_array(int dims, const npy_intp *sizes, int type);

/* Add a value to a list, or to a dict. Both steal the value, and the list or dict, which they return: NULL with an
 * exception if either is NULL or the value cannot be added. */
PyObject *gg_py_append(PyObject *list, PyObject *value);
PyObject *gg_py_put(PyObject *dict, const char *key, PyObject *value);
/* A list of integers. */
PyObject *gg_py_integers(const int64_t *numbers, int count);
PyObject *gg_py_ranks(const int *ranks, int count);
/* A dict with the "view", its number, the "step" at which it begins, and its "ranks". */
PyObject *gg_py_view(int64_t number, int64_t step, const int *member, int members);

/* Allocates a zeroed arena of all elements, freed by PyMem_Free. NULL with an exception. */
float *gg_py_arena_new(const gg_arena_layout *layout);
/* Dict of the parameters in an arena by name: copies. With an owner of the memory: views, which keep the owner alive.
 */
PyObject *gg_py_arena_dict(const gg_arena_layout *layout, float *arena, PyObject *owner);
/* Makes an arena from arrays by name; all names and shapes must fit. NULL with an exception. */
float *gg_py_arena_of(const gg_arena_layout *layout, PyObject *dict, const char *argument);
/* Place of an arena; -1 with an exception. The second function: dict of each arena's kind by name. */
int gg_py_arena_place(const gg_state *state, const char *name);
PyObject *gg_py_arena_kinds(const gg_state *state);

/* Arguments of resume_arena: an arena's place, and its new values. */
typedef struct gg_py_resume {
    int arena, trained, local;
    float **whole;    /* one a local rank; NULL means that nothing was read */
    float *consensus; /* NULL means none */
} gg_py_resume;
/* -1 with an exception; gg_py_resume_free in either case. */
int gg_py_resume_read(gg_py_resume *r, PyObject *args, const gg_state *state, const gg_arena_layout *layout,
                      const gg_team *team);
void gg_py_resume_free(gg_py_resume *r);

/* One number a rank of the team, owned by the caller (PyMem_Free); *out is NULL for None. -1 with an exception. */
int gg_py_compute_time(PyObject *sequence, int size, double **out);
PyObject *gg_py_tuning(const gg_tuning *tuned);                    /* a dict */
PyObject *gg_py_spans(const gg_trace *trace, double clock_offset); /* a list; NULL means no trace */

/* A topology from its name or a table, int64 of shape [rows, ranks]. *table: the array into which `out` points, a new
 * reference that lives as long as `out` is used, or NULL. -1 with an exception. */
int gg_py_topology(PyObject *topology, gg_schedule_options *out, PyArrayObject **table);

/* Reads one option of a list into the struct of its offsets. -1 with an exception. */
int gg_py_option_from(const gg_option *option, PyObject *item, void *out);

/* Memory into which a strategy's options point: new references or NULL, which live as long as the options are used. */
typedef struct gg_py_option_memory {
    PyArrayObject *table; /* of the topology */
    PyObject *packs;      /* names of parameters */
} gg_py_option_memory;

/* Options of a trainer from dicts, whose keys are the keywords of Python's classes; missing keys give the core's
 * defaults. -1 with an exception that names the keyword; `memory` must be cleared then too. backend NULL means
 * $GOSSIPGRAD_BACKEND, else "auto". */
int gg_py_strategy_options(PyObject *dict, gg_strategy_options *out, gg_py_option_memory *memory);
void gg_py_option_memory_clear(gg_py_option_memory *memory);
/* NULL and None mean no compression. *packs: as in gg_py_option_memory. */
int gg_py_compression(PyObject *dict, gg_compression *out, PyObject **packs);
int gg_py_optimizer(PyObject *dict, gg_optimizer *out);
const char *gg_py_backend_choice(const char *backend); /* a constant; NULL with an exception */
int gg_py_conv_algorithm(const char *name, gg_conv_algorithm *out);
/* Element type of a network's computation. */
int gg_py_dtype(const char *name, gg_dtype *out);

/* A rate from a dict with the fields of gg_rate, `kind` by name; missing fields have their defaults. -1 with an
 * exception. A table's values are read in the dict's array, which must live as long as the rate. */
int gg_py_rate(PyObject *dict, gg_rate *out);
/* gg_py_rate of an argument `schedule`, with all defaults, checked. */
int gg_py_schedule(PyObject *schedule, gg_rate *out);

#define GG_PY_KEYWORDS(function) (PyCFunction)(void (*)(void))(function), METH_VARARGS | METH_KEYWORDS

#endif
