/* _core.Team, and starting and ending MPI and net. */
#include <string.h>
#include <unistd.h>

#include "base/memory.h"
#include "comm/collective.h"
#include "comm/messages.h"
#include "comm/mpi/mpi_transport.h"
#include "comm/one_thread.h"
#include "comm/subgroup.h"
#include "comm/view_pages.h"
#include "python/division.h"
#include "python/python.h"

PyTypeObject *gg_py_team_type;

bool gg_py_team_is_here(const gg_py_team *team) { return team->process == getpid(); }

int gg_py_team_check_process(const gg_py_team *team) {
    if (gg_py_team_is_here(team)) return 0;
    PyErr_Format(
        PyExc_RuntimeError,
        "this trainer belongs to process %ld; process %ld, forked from it, cannot use it; allowed: one that it "
        "makes itself, under MPI with comm=gossipgrad.VirtualCluster(1)",
        (long)team->process, (long)getpid());
    return -1;
}

/* The links of this process to the other ranks, without MPI; made by net_start and never replaced. */
static gg_net *links;
static void *views_memory; /* of the ranks' views; NULL means that a death ends all */

static gg_status check_links(void) {
    if (links == NULL) return gg_fail(GG_ERROR_STATE, "this process has no links to other ranks: net_start makes them");
    return gg_one_thread_check("the links to other ranks");
}

/* Deaths as a list of (rank, step, messages). The caller frees *out. */
static int read_deaths(PyObject *list, gg_virtual_death **out, int *count) {
    *out = NULL;
    *count = 0;
    if (list == Py_None) return 0;
    if (!PyList_Check(list)) {
        PyErr_SetString(PyExc_TypeError, "deaths: must be a list of (rank, step, messages)");
        return -1;
    }
    const Py_ssize_t n = PyList_GET_SIZE(list);
    *out = PyMem_Calloc((size_t)n + 1, sizeof **out);
    if (*out == NULL) return PyErr_NoMemory(), -1;
    for (Py_ssize_t i = 0; i < n; ++i) {
        long long step, messages;
        gg_virtual_death *one = &(*out)[i];
        if (!PyArg_ParseTuple(PyList_GET_ITEM(list, i), "iLL", &one->rank, &step, &messages)) return -1;
        one->step = step;
        one->after_messages = messages;
    }
    *count = (int)n;
    return 0;
}

static int py_team_make(PyObject *self, PyObject *args, PyObject *kwargs) {
    static char *names[] = {"kind",    "size",   "fortran_handle", "launched", "latency", "bandwidth", "compute_rate",
                            "timeout", "deaths", "detect",         "survives", "joins",   NULL};
    static const char *const kinds[] = {"single", "mpi", "virtual", "net"};
    const char *kind;
    PyObject *handle = Py_None;
    int launched = 0, fortran = 0;
    double timeout = 0;
    gg_py_team *t = (gg_py_team *)self;
    gg_virtual_options options = {.size = 1, .compute_rate = 1.0};
    gg_network *network = &options.network;
    PyObject *list = Py_None, *steps = Py_None;
    int64_t *joins = NULL;
    gg_virtual_death *deaths = NULL;
    gg_views *views = NULL;
    int survives = 0;
    gg_status status = GG_OK;
    if (!PyArg_ParseTupleAndKeywords(args, kwargs, "s|$iOiddddOdpO:Team", names, &kind, &options.size, &handle,
                                     &launched, &network->latency, &network->bandwidth, &options.compute_rate, &timeout,
                                     &list, &options.detect, &survives, &steps))
        return -1;
    int choice = gg_py_choice("kind", kind, kinds, 4);
    if (choice < 0) return -1;
    if (handle != Py_None) {
        fortran = (int)PyLong_AsLong(handle);
        if (PyErr_Occurred()) return -1;
    }
    t->process = getpid();
    if (choice == 1) status = gg_mpi_check_use();
    if (choice == 3) status = check_links();
    if (status != GG_OK) {
        gg_py_raise(status);
        return -1;
    }
    if (read_deaths(list, &deaths, &options.death_count) < 0 ||
        (steps != Py_None && gg_py_numbers(steps, &joins) < 0)) {
        PyMem_Free(deaths);
        return -1;
    }
    options.deaths = deaths;
    options.joins = joins;
    options.newcomers = joins != NULL ? (int)PyList_GET_SIZE(steps) : 0;
    options.size += options.newcomers;
    Py_BEGIN_ALLOW_THREADS;
    if (choice == 0) status = gg_team_create_single(&t->team);
    if (choice == 1) status = gg_mpi_start(launched);
    bool slow = network->latency != 0 || network->bandwidth != 0;
    if (choice == 1 && status == GG_OK)
        status = gg_team_create_mpi(handle == Py_None, fortran, slow ? network : NULL, timeout, &t->team);
    if (choice == 2) status = gg_team_create_virtual(&options, &t->team);
    if (choice == 3 && views_memory != NULL)
        status = gg_view_pages_open(views_memory, gg_net_size(links), gg_net_rank(links), &views);
    if (choice == 3 && status == GG_OK)
        status = gg_team_create_net(links, slow ? network : NULL, timeout, survives ? views : NULL, &t->team);
    if (!survives && views != NULL && status == GG_OK) gg_team_fail_on_death(t->team, views);
    else if (!survives && views != NULL) views->table->destroy(views);
    Py_END_ALLOW_THREADS;
    PyMem_Free(deaths);
    PyMem_Free(joins);
    if (status != GG_OK) {
        gg_py_raise(status);
        return -1;
    }
    gg_team_set_timeout(t->team, timeout);
    return 0;
}

/* Trainers have a reference to a team, so it never becomes another one. */
static PyObject *py_team_new(PyTypeObject *type, PyObject *args, PyObject *kwargs) {
    PyObject *self = type->tp_alloc(type, 0);
    if (self != NULL && py_team_make(self, args, kwargs) < 0) Py_CLEAR(self);
    return self;
}

static void py_team_dealloc(PyObject *self) {
    PyTypeObject *type = Py_TYPE(self);
    /* A forked process has neither the threads nor the MPI state that the team refers to. */
    gg_team *team = gg_py_team_is_here((gg_py_team *)self) ? ((gg_py_team *)self)->team : NULL;
    GG_PY_WITHOUT_GIL(gg_team_release(team));
    type->tp_free(self);
    Py_DECREF(type);
}

static PyObject *get_kind(PyObject *self, void *unused) {
    (void)unused;
    return PyUnicode_FromString(gg_team_kind(((gg_py_team *)self)->team));
}

static PyObject *get_size(PyObject *self, void *unused) {
    (void)unused;
    return PyLong_FromLong(gg_team_size(((gg_py_team *)self)->team));
}

static PyObject *get_rank(PyObject *self, void *unused) {
    (void)unused;
    return PyLong_FromLong(gg_team_rank(((gg_py_team *)self)->team));
}

static PyObject *get_local(PyObject *self, void *unused) {
    (void)unused;
    return PyLong_FromLong(gg_team_local(((gg_py_team *)self)->team));
}

static PyObject *get_survives(PyObject *self, void *unused) {
    (void)unused;
    return PyBool_FromLong(gg_team_view(((gg_py_team *)self)->team) != NULL);
}

static PyObject *get_newcomer(PyObject *self, void *unused) {
    (void)unused;
    return PyBool_FromLong(gg_team_is_newcomer(((gg_py_team *)self)->team));
}

static PyObject *get_outdated(PyObject *self, void *unused) {
    (void)unused;
    return PyBool_FromLong(gg_team_is_outdated(((gg_py_team *)self)->team));
}

static PyObject *get_changing(PyObject *self, void *unused) {
    bool changing;
    (void)unused;
    const gg_status status = gg_team_is_changing(((gg_py_team *)self)->team, &changing);
    return status == GG_OK ? PyBool_FromLong(changing) : gg_py_raise(status);
}

static PyObject *get_goal(PyObject *self, void *unused) {
    const int64_t goal = gg_team_goal(((gg_py_team *)self)->team);
    (void)unused;
    return goal >= 0 ? PyLong_FromLongLong(goal) : Py_NewRef(Py_None);
}

static PyObject *get_timeout(PyObject *self, void *unused) {
    (void)unused;
    return PyFloat_FromDouble(gg_team_transport(((gg_py_team *)self)->team, 0)->timeout);
}

static int set_timeout(PyObject *self, PyObject *value, void *unused) {
    double seconds = value == NULL ? -1 : PyFloat_AsDouble(value);
    (void)unused;
    if (PyErr_Occurred()) return -1;
    if (!(seconds >= 0)) {
        PyErr_SetString(PyExc_ValueError, "timeout: must be a number of seconds, at least 0");
        return -1;
    }
    gg_team_set_timeout(((gg_py_team *)self)->team, seconds);
    return 0;
}

static PyObject *get_no_collectives(PyObject *self, void *unused) {
    (void)unused;
    return PyBool_FromLong(((gg_py_team *)self)->no_collectives);
}

static int set_no_collectives(PyObject *self, PyObject *value, void *unused) {
    int forbidden = value == NULL ? 0 : PyObject_IsTrue(value);
    (void)unused;
    if (forbidden >= 0) ((gg_py_team *)self)->no_collectives = forbidden;
    return forbidden < 0 ? -1 : 0;
}

int gg_py_team_check_collectives(const gg_py_team *team) {
    if (gg_py_team_check_process(team) < 0) return -1;
    gg_status status = GG_OK;
    if (strcmp(gg_team_kind(team->team), "mpi") == 0) status = gg_mpi_check_use();
    if (strcmp(gg_team_kind(team->team), "net") == 0) status = check_links();
    if (status != GG_OK) {
        gg_py_raise(status);
        return -1;
    }
    if (!team->no_collectives) return 0;
    PyErr_SetString(
        PyExc_RuntimeError,
        "on_progress comes at other steps, and not as often, on other ranks, so what is collective cannot be "
        "asked for in it; in on_epoch_end it can");
    return -1;
}

static PyObject *check_collectives(PyObject *self, PyObject *unused) {
    (void)unused;
    if (gg_py_team_check_collectives((gg_py_team *)self) < 0) return NULL;
    Py_RETURN_NONE;
}

/* The transport over which this process sends messages to other processes; NULL if it is alone. */
static gg_transport *between_processes(PyObject *self) {
    gg_team *team = ((gg_py_team *)self)->team;
    return gg_team_local(team) == gg_team_size(team) ? NULL : gg_team_transport(team, 0);
}

static PyObject *py_team_barrier(PyObject *self, PyObject *unused) {
    gg_transport *transport = between_processes(self);
    gg_status status = GG_OK;
    (void)unused;
    if (gg_py_team_check_collectives((gg_py_team *)self) < 0) return NULL;
    if (transport == NULL) Py_RETURN_NONE;
    GG_PY_WITHOUT_GIL(status = gg_barrier(transport));
    return gg_py_done(status);
}

static PyObject *py_team_broadcast(PyObject *self, PyObject *args, PyObject *kwargs) {
    static char *names[] = {"data", "root", NULL};
    PyObject *data, *result = NULL;
    int root = 0;
    gg_transport *transport = between_processes(self);
    gg_status status;
    if (!PyArg_ParseTupleAndKeywords(args, kwargs, "S|i:broadcast", names, &data, &root)) return NULL;
    if (root < 0 || root >= gg_team_size(((gg_py_team *)self)->team))
        return PyErr_Format(PyExc_ValueError, "root: %d; must be a rank of the team, 0 to %d", root,
                            gg_team_size(((gg_py_team *)self)->team) - 1);
    if (gg_py_team_check_collectives((gg_py_team *)self) < 0) return NULL;
    if (transport == NULL) return Py_NewRef(data);
    int64_t length = PyBytes_GET_SIZE(data);
    GG_PY_WITHOUT_GIL(status = gg_broadcast(transport, &length, sizeof length, root));
    if (status != GG_OK) return gg_py_raise(status);
    if (length == 0) return PyBytes_FromStringAndSize(NULL, 0);
    result = transport->rank == root ? Py_NewRef(data) : PyBytes_FromStringAndSize(NULL, (Py_ssize_t)length);
    if (result == NULL) return NULL;
    char *bytes = PyBytes_AS_STRING(result);
    GG_PY_WITHOUT_GIL(status = gg_broadcast(transport, bytes, (size_t)length, root));
    if (status != GG_OK) {
        Py_DECREF(result);
        return gg_py_raise(status);
    }
    return result;
}

static PyObject *py_team_allgather(PyObject *self, PyObject *data) {
    gg_transport *transport = between_processes(self);
    if (!PyBytes_Check(data))
        return PyErr_Format(PyExc_TypeError, "data: must be bytes, not %s", Py_TYPE(data)->tp_name);
    if (gg_py_team_check_collectives((gg_py_team *)self) < 0) return NULL;
    if (transport == NULL) return Py_BuildValue("[O]", data);
    PyObject *list = PyList_New(0);
    for (int root = 0; list != NULL && root < transport->size; ++root) {
        list = gg_py_append(list, PyObject_CallMethod(self, "broadcast", "Oi", data, root));
    }
    return list;
}

static PyObject *py_team_agree(PyObject *self, PyObject *args, PyObject *kwargs) {
    static char *names[] = {"data", "timeout", NULL};
    gg_transport *transport = between_processes(self);
    PyObject *data;
    double timeout = 0;
    if (!PyArg_ParseTupleAndKeywords(args, kwargs, "S|d:agree", names, &data, &timeout)) return NULL;
    if (gg_py_team_check_collectives((gg_py_team *)self) < 0) return NULL;
    if (transport == NULL) return Py_BuildValue("[O]", data);
    Py_ssize_t size = PyBytes_GET_SIZE(data), ranks = transport->size;
    PyObject *all = PyBytes_FromStringAndSize(NULL, size * ranks);
    if (all == NULL) return NULL;
    const char *own = PyBytes_AS_STRING(data);
    char *out = PyBytes_AS_STRING(all);
    const double usual = transport->timeout;
    gg_status status;
    if (timeout > 0 && (usual == 0 || timeout < usual)) gg_team_set_timeout(((gg_py_team *)self)->team, timeout);
    GG_PY_WITHOUT_GIL(status = gg_agree(transport, own, (size_t)size, out));
    gg_team_set_timeout(((gg_py_team *)self)->team, usual);
    PyObject *list = status == GG_OK ? PyList_New(ranks) : gg_py_raise(status);
    for (Py_ssize_t rank = 0; list != NULL && rank < ranks; ++rank) {
        PyObject *item = PyBytes_FromStringAndSize(out + rank * size, size);
        if (item == NULL) Py_CLEAR(list);
        else PyList_SET_ITEM(list, rank, item);
    }
    Py_DECREF(all);
    return list;
}

static PyObject *py_team_halt_begin(PyObject *self, PyObject *step) {
    const long long made = PyLong_AsLongLong(step);
    gg_status status;
    if (PyErr_Occurred() || gg_py_team_check_collectives((gg_py_team *)self) < 0) return NULL;
    GG_PY_WITHOUT_GIL(status = gg_team_halt_begin(((gg_py_team *)self)->team, made));
    return gg_py_done(status);
}

static PyObject *py_team_halt_end(PyObject *self, PyObject *unused) {
    (void)unused;
    gg_team_halt_end(((gg_py_team *)self)->team);
    Py_RETURN_NONE;
}

static PyObject *py_team_halt_until(PyObject *self, PyObject *args) {
    long long step, next;
    int want;
    int64_t until;
    gg_status status;
    if (!PyArg_ParseTuple(args, "LLp:halt_until", &step, &next, &want)) return NULL;
    if (gg_py_team_check_collectives((gg_py_team *)self) < 0) return NULL;
    GG_PY_WITHOUT_GIL(status = gg_team_halt_until(((gg_py_team *)self)->team, step, next, want, &until));
    return status == GG_OK ? PyLong_FromLongLong(until) : gg_py_raise(status);
}

/* Rank 0: its own bytes, then those of the others as they come, in the order of ranks. */
static PyObject *py_team_receive_all(gg_transport *transport, PyObject *own, const int64_t *sizes) {
    PyObject *list = Py_BuildValue("[O]", own);
    for (int from = 1; list != NULL && from < transport->size; ++from) {
        gg_status status;
        PyObject *item = PyBytes_FromStringAndSize(NULL, (Py_ssize_t)sizes[from]);
        if (item == NULL) {
            Py_CLEAR(list);
            break;
        }
        char *bytes = PyBytes_AS_STRING(item);
        GG_PY_WITHOUT_GIL(status = gg_transfer(transport, bytes, (size_t)sizes[from], from, 0));
        if (status != GG_OK) {
            gg_py_raise(status);
            Py_CLEAR(item);
        }
        list = gg_py_append(list, item);
    }
    return list;
}

static PyObject *py_team_gather(PyObject *self, PyObject *data) {
    gg_transport *transport = between_processes(self);
    int64_t own, *sizes = NULL;
    PyObject *result = NULL;
    if (!PyBytes_Check(data))
        return PyErr_Format(PyExc_TypeError, "data: must be bytes, not %s", Py_TYPE(data)->tp_name);
    if (gg_py_team_check_collectives((gg_py_team *)self) < 0) return NULL;
    if (transport == NULL) return Py_BuildValue("[O]", data);
    own = PyBytes_GET_SIZE(data);
    char *bytes = PyBytes_AS_STRING(data);
    gg_status status = gg_alloc((size_t)transport->size * sizeof *sizes, "sizes of all ranks", &sizes);
    Py_BEGIN_ALLOW_THREADS;
    if (status == GG_OK) status = gg_allgather(transport, &own, sizeof own, sizes);
    if (status == GG_OK && transport->rank != 0)
        status = gg_transfer(transport, bytes, (size_t)own, transport->rank, 0);
    Py_END_ALLOW_THREADS;
    if (status != GG_OK) gg_py_raise(status);
    else result = transport->rank == 0 ? py_team_receive_all(transport, data, sizes) : Py_NewRef(Py_None);
    gg_free(sizes);
    return result;
}

/* The messages of one local rank, and the buffers that their bytes are in. */
typedef struct round_of_rank {
    gg_message *messages;
    Py_buffer *buffers;
    int count;
} round_of_rank;

typedef struct py_round {
    gg_team *team;
    round_of_rank *ranks;
    int local;
} py_round;

static gg_status round_run(void *context, int local) {
    const py_round *r = context;
    return gg_messages_exchange(gg_team_transport(r->team, local), r->ranks[local].messages, r->ranks[local].count);
}

static void round_free(py_round *r) {
    for (int local = 0; r->ranks != NULL && local < r->local; ++local) {
        for (int i = 0; i < r->ranks[local].count; ++i) PyBuffer_Release(&r->ranks[local].buffers[i]);
        PyMem_Free(r->ranks[local].messages);
        PyMem_Free(r->ranks[local].buffers);
    }
    PyMem_Free(r->ranks);
}

/* Adds the first n (peer, buffer) of a sequence to the messages of a rank that has room for them; the sequence may
 * change meanwhile. -1 with an exception. */
static int round_add(round_of_rank *rank, PyObject *sequence, Py_ssize_t n, bool received) {
    for (Py_ssize_t i = 0; i < n; ++i) {
        gg_message *message = &rank->messages[rank->count];
        Py_buffer *buffer = &rank->buffers[rank->count];
        PyObject *pair = PySequence_GetItem(sequence, i), *bytes;
        bool good = pair != NULL && PyArg_ParseTuple(pair, "iO", &message->peer, &bytes) &&
                    PyObject_GetBuffer(bytes, buffer, received ? PyBUF_WRITABLE : PyBUF_SIMPLE) == 0;
        Py_XDECREF(pair);
        if (!good) return -1;
        rank->count++;
        message->bytes = (size_t)buffer->len;
        if (received) message->landing = buffer->buf;
        else message->data = buffer->buf;
    }
    return 0;
}

static int round_of(round_of_rank *rank, PyObject *sends, PyObject *receives) {
    if (sends == NULL || receives == NULL) return -1;
    const Py_ssize_t s = PySequence_Size(sends), r = PySequence_Size(receives);
    if (s < 0 || r < 0) return -1;
    rank->messages = PyMem_Calloc((size_t)(s + r) + 1, sizeof *rank->messages);
    rank->buffers = PyMem_Calloc((size_t)(s + r) + 1, sizeof *rank->buffers);
    if (rank->messages == NULL || rank->buffers == NULL) {
        PyErr_NoMemory();
        return -1;
    }
    return round_add(rank, receives, r, true) < 0 || round_add(rank, sends, s, false) < 0 ? -1 : 0;
}

static PyObject *py_team_messages(PyObject *self, PyObject *args, PyObject *kwargs) {
    static char *names[] = {"sends", "receives", NULL};
    PyObject *sends, *receives;
    gg_status status = GG_OK;
    if (!PyArg_ParseTupleAndKeywords(args, kwargs, "OO:messages", names, &sends, &receives)) return NULL;
    if (gg_py_team_check_collectives((gg_py_team *)self) < 0) return NULL;
    py_round r = {.team = ((gg_py_team *)self)->team};
    r.local = gg_team_local(r.team);
    if (PySequence_Size(sends) != r.local || PySequence_Size(receives) != r.local)
        return PyErr_Format(PyExc_ValueError, "messages: lists of %d entries are needed, one a rank of this process",
                            r.local);
    r.ranks = PyMem_Calloc((size_t)r.local, sizeof *r.ranks);
    if (r.ranks == NULL) return PyErr_NoMemory();
    for (int local = 0; local < r.local; ++local) {
        PyObject *out = PySequence_GetItem(sends, local), *in = PySequence_GetItem(receives, local);
        const int made = round_of(&r.ranks[local], out, in);
        Py_XDECREF(out);
        Py_XDECREF(in);
        if (made < 0) {
            round_free(&r);
            return NULL;
        }
    }
    GG_PY_WITHOUT_GIL(status = gg_team_run(r.team, round_run, &r));
    round_free(&r);
    return gg_py_done(status);
}

static PyObject *py_team_counts(PyObject *self, PyObject *unused) {
    gg_team *team = ((gg_py_team *)self)->team;
    long long bytes = 0, messages = 0;
    double now = 0;
    (void)unused;
    if (gg_py_team_check_process((gg_py_team *)self) < 0) return NULL;
    for (int local = 0; local < gg_team_local(team); ++local) {
        gg_transport *transport = gg_team_transport(team, local);
        const double clock = gg_transport_now(transport);
        bytes += transport->bytes_sent;
        messages += transport->messages_sent;
        if (local == 0 || clock > now) now = clock;
    }
    return Py_BuildValue("LLd", bytes, messages, now);
}

static PyObject *py_team_clocks(PyObject *self, PyObject *unused) {
    gg_team *team = ((gg_py_team *)self)->team;
    gg_virtual_clock clock;
    (void)unused;
    if (gg_py_team_check_process((gg_py_team *)self) < 0) return NULL;
    PyObject *list = PyList_New(0);
    for (int local = 0; list != NULL && local < gg_team_local(team) && gg_team_get_clock(team, local, &clock);
         ++local) {
        list = gg_py_append(list, Py_BuildValue("(ddd)", clock.now, clock.out_free, clock.in_free));
    }
    return list;
}

static PyObject *py_team_set_clocks(PyObject *self, PyObject *list) {
    gg_team *team = ((gg_py_team *)self)->team;
    if (gg_py_team_check_process((gg_py_team *)self) < 0) return NULL;
    if (!PyList_Check(list) || PyList_GET_SIZE(list) != gg_team_local(team))
        return PyErr_Format(PyExc_ValueError, "set_clocks: a list of %d entries is needed, one a rank of this process",
                            gg_team_local(team));
    for (int local = 0; local < gg_team_local(team); ++local) {
        gg_virtual_clock clock;
        if (!PyArg_ParseTuple(PyList_GET_ITEM(list, local), "ddd:set_clocks", &clock.now, &clock.out_free,
                              &clock.in_free))
            return NULL;
        if (!gg_team_set_clock(team, local, clock))
            return PyErr_Format(PyExc_ValueError, "set_clocks: the clocks of %s ranks are real", gg_team_kind(team));
    }
    Py_RETURN_NONE;
}

static PyObject *py_team_nodes(PyObject *self, PyObject *args, PyObject *kwargs) {
    static char *names[] = {"ranks_per_node", NULL};
    int ranks_per_node = 0;
    gg_nodes nodes;
    if (!PyArg_ParseTupleAndKeywords(args, kwargs, "|i:nodes", names, &ranks_per_node)) return NULL;
    if (gg_py_team_check_process((gg_py_team *)self) < 0) return NULL;
    gg_status status = gg_nodes_create(gg_team_transport(((gg_py_team *)self)->team, 0), ranks_per_node, &nodes);
    if (status != GG_OK) return gg_py_raise(status);
    PyObject *result = Py_BuildValue("ii", nodes.count, nodes.size);
    gg_nodes_destroy(&nodes);
    return result;
}

static PyGetSetDef properties[] = {{"kind", get_kind, NULL, NULL, NULL},
                                   {"size", get_size, NULL, NULL, NULL},
                                   {"rank", get_rank, NULL, NULL, NULL},
                                   {"local", get_local, NULL, NULL, NULL},
                                   {"survives", get_survives, NULL, NULL, NULL},
                                   {"newcomer", get_newcomer, NULL, NULL, NULL},
                                   {"outdated", get_outdated, NULL, NULL, NULL},
                                   {"changing", get_changing, NULL, NULL, NULL},
                                   {"goal", get_goal, NULL, NULL, NULL},
                                   {"timeout", get_timeout, set_timeout, NULL, NULL},
                                   {"no_collectives", get_no_collectives, set_no_collectives, NULL, NULL},
                                   {NULL, NULL, NULL, NULL, NULL}};

static PyObject *py_team_train(PyObject *self, PyObject *trains) {
    const int value = PyObject_IsTrue(trains);
    if (value < 0) return NULL;
    gg_team_train(((gg_py_team *)self)->team, value);
    Py_RETURN_NONE;
}

static PyObject *py_team_decide(PyObject *self, PyObject *done) {
    const int value = PyObject_IsTrue(done);
    bool all = false;
    gg_status status;
    if (value < 0) return NULL;
    GG_PY_WITHOUT_GIL(status = gg_team_decide(((gg_py_team *)self)->team, value, &all));
    return status == GG_OK ? PyBool_FromLong(all) : gg_py_raise(status);
}

static PyObject *py_team_await_member(PyObject *self, PyObject *seconds) {
    const double value = PyFloat_AsDouble(seconds);
    bool member = false;
    gg_status status;
    if (PyErr_Occurred()) return NULL;
    GG_PY_WITHOUT_GIL(status = gg_team_await_member(((gg_py_team *)self)->team, value, &member));
    return status == GG_OK ? PyBool_FromLong(member) : gg_py_raise(status);
}

static PyMethodDef methods[] = {
    {"await_member", py_team_await_member, METH_O, "await_member($self, seconds, /)\n--\n\n"},
    {"train", py_team_train, METH_O, "train($self, trains, /)\n--\n\n"},
    {"decide", py_team_decide, METH_O, "decide($self, done, /)\n--\n\n"},
    {"check_collectives", check_collectives, METH_NOARGS, NULL},
    {"barrier", py_team_barrier, METH_NOARGS, NULL},
    {"broadcast", GG_PY_KEYWORDS(py_team_broadcast), NULL},
    {"nodes", GG_PY_KEYWORDS(py_team_nodes), NULL},
    {"messages", GG_PY_KEYWORDS(py_team_messages), "messages($self, sends, receives)\n--\n\n"},
    {"counts", py_team_counts, METH_NOARGS, NULL},
    {"clocks", py_team_clocks, METH_NOARGS, NULL},
    {"set_clocks", py_team_set_clocks, METH_O, "set_clocks($self, clocks, /)\n--\n\n"},
    {"allgather", py_team_allgather, METH_O, "allgather($self, data, /)\n--\n\n"},
    {"agree", GG_PY_KEYWORDS(py_team_agree), "agree($self, data, timeout=0.0)\n--\n\n"},
    {"halt_begin", py_team_halt_begin, METH_O, "halt_begin($self, step, /)\n--\n\n"},
    {"halt_end", py_team_halt_end, METH_NOARGS, NULL},
    {"halt_until", py_team_halt_until, METH_VARARGS, "halt_until($self, step, next, want, /)\n--\n\n"},
    {"gather", py_team_gather, METH_O, "gather($self, data, /)\n--\n\n"},
    {NULL, NULL, 0, NULL}};

static PyType_Slot slots[] = {{Py_tp_doc, "A group of ranks."}, {Py_tp_new, py_team_new},
                              {Py_tp_dealloc, py_team_dealloc}, {Py_tp_methods, methods},
                              {Py_tp_getset, properties},       {0, NULL}};

static PyType_Spec spec = {"gossipgrad._core.Team", sizeof(gg_py_team), 0, Py_TPFLAGS_DEFAULT, slots};

static PyObject *mpi_start(PyObject *module, PyObject *args, PyObject *kwargs) {
    static char *names[] = {"launched", NULL};
    int launched = 0;
    gg_status status;
    (void)module;
    if (!PyArg_ParseTupleAndKeywords(args, kwargs, "|i:mpi_start", names, &launched)) return NULL;
    GG_PY_WITHOUT_GIL(status = gg_mpi_start(launched));
    return gg_py_done(status);
}

static PyObject *mpi_abort(PyObject *module, PyObject *argument) {
    long code = PyLong_AsLong(argument);
    (void)module;
    if (code == -1 && PyErr_Occurred()) return NULL;
    gg_mpi_abort((int)code);
    Py_RETURN_NONE;
}

static PyObject *mpi_note_exit(PyObject *module, PyObject *argument) {
    long code = PyLong_AsLong(argument);
    (void)module;
    if (code == -1 && PyErr_Occurred()) return NULL;
    gg_mpi_note_exit((int)(code & 0xff));
    Py_RETURN_NONE;
}

static PyObject *py_first_to_report(PyObject *module, PyObject *unused) {
    (void)module, (void)unused;
    return PyBool_FromLong(gg_mpi_first_to_report());
}

/* One integer a rank. -1 with an exception. */
static int py_ranks(const char *name, PyObject *list, int size, int *out) {
    if (!PyList_Check(list) || PyList_GET_SIZE(list) != size) {
        PyErr_Format(PyExc_ValueError, "%s: a list of %d entries is needed, one a rank", name, size);
        return -1;
    }
    for (int i = 0; i < size; ++i) {
        out[i] = (int)PyLong_AsLong(PyList_GET_ITEM(list, i));
        if (PyErr_Occurred()) return -1;
    }
    return 0;
}

static PyObject *net_start(PyObject *module, PyObject *args, PyObject *kwargs) {
    static char *names[] = {"rank", "nodes", "sockets", "memory", "ring_bytes", "heap_bytes", "views", "members", NULL};
    int views = -1;
    PyObject *nodes, *sockets, *result = NULL;
    Py_ssize_t ring_bytes, heap_bytes;
    gg_net_options options = {0};
    gg_status status;
    int *numbers = NULL;
    (void)module;
    if (!PyArg_ParseTupleAndKeywords(args, kwargs, "iOOinn|ii:net_start", names, &options.rank, &nodes, &sockets,
                                     &options.memory, &ring_bytes, &heap_bytes, &views, &options.members))
        return NULL;
    if (links != NULL) {
        PyErr_SetString(PyExc_RuntimeError, "net_start: this process has its links already");
        return NULL;
    }
    options.size = PyList_Check(nodes) ? (int)PyList_GET_SIZE(nodes) : -1;
    numbers = PyMem_Calloc((size_t)(options.size > 0 ? options.size : 1) * 2, sizeof *numbers);
    if (numbers == NULL) return PyErr_NoMemory();
    options.node_of = numbers;
    options.sockets = numbers + options.size;
    options.ring_bytes = (size_t)ring_bytes;
    options.heap_bytes = (size_t)heap_bytes;
    if (py_ranks("nodes", nodes, options.size, numbers) < 0 ||
        py_ranks("sockets", sockets, options.size, numbers + options.size) < 0)
        goto cleanup;
    if (views >= 0) views_memory = gg_py_map(views, gg_view_pages_bytes(options.size), false);
    if (views >= 0 && views_memory == NULL) goto cleanup;
    status = gg_net_create(&options, &links);
    result = status == GG_OK ? Py_NewRef(Py_None) : gg_py_raise(status);
cleanup:
    PyMem_Free(numbers);
    return result;
}

static PyObject *net_arrived(PyObject *module, PyObject *args) {
    int rank, socket;
    (void)module;
    if (!PyArg_ParseTuple(args, "ii:net_arrived", &rank, &socket)) return NULL;
    const int size = links != NULL ? gg_net_size(links) : 0;
    if (rank < 0 || rank >= size || socket < 0) {
        PyErr_Format(PyExc_ValueError, "net_arrived: rank %d, socket %d; allowed: a rank below %d, a socket", rank,
                     socket, size);
        return NULL;
    }
    gg_net_arrive(links, rank, socket);
    Py_RETURN_NONE;
}

static PyObject *net_stop(PyObject *module, PyObject *unused) {
    (void)module, (void)unused;
    Py_BEGIN_ALLOW_THREADS;
    gg_net_leave(links);
    Py_END_ALLOW_THREADS;
    Py_RETURN_NONE;
}

static PyMethodDef functions[] = {{"first_to_report", py_first_to_report, METH_NOARGS, NULL},
                                  {"mpi_start", GG_PY_KEYWORDS(mpi_start), NULL},
                                  {"net_start", GG_PY_KEYWORDS(net_start), NULL},
                                  {"net_arrived", net_arrived, METH_VARARGS, NULL},
                                  {"net_stop", net_stop, METH_NOARGS, NULL},
                                  {"note_exit", mpi_note_exit, METH_O, "note_exit($module, code, /)\n--\n\n"},
                                  {"abort", mpi_abort, METH_O, "abort($module, code, /)\n--\n\n"},
                                  {NULL, NULL, 0, NULL}};

int gg_py_add_team(PyObject *module) {
    gg_py_team_type = gg_py_add_type(module, &spec);
    return gg_py_team_type == NULL ? -1 : PyModule_AddFunctions(module, functions);
}
