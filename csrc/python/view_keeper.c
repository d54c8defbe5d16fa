/* _core.ViewKeeper: the membership of ranks that are processes, in shared memory (comm/view_pages.h). */
#include <stdint.h>
#include <sys/mman.h>

#include "comm/view_pages.h"
#include "python/python.h"

typedef struct gg_py_view_keeper {
    PyObject_HEAD gg_view_keeper *keeper;
    void *memory;
    size_t bytes;
    int most;
} gg_py_view_keeper;

static PyTypeObject *view_keeper_type;

static int view_keeper_make(gg_py_view_keeper *k, PyObject *args, PyObject *kwargs) {
    static char *names[] = {"memory", "members", "most", "least", NULL};
    int memory, members, most, least;
    if (!PyArg_ParseTupleAndKeywords(args, kwargs, "iiii:ViewKeeper", names, &memory, &members, &most, &least))
        return -1;
    if (most < 1) {
        PyErr_Format(PyExc_ValueError, "most: %d; must be at least 1", most);
        return -1;
    }
    k->most = most;
    k->bytes = gg_view_pages_bytes(most);
    k->memory = gg_py_map(memory, k->bytes, true);
    if (k->memory == NULL) return -1;
    const gg_status status = gg_view_keeper_create(k->memory, members, most, least, &k->keeper);
    return status == GG_OK ? 0 : (gg_py_raise(status), -1);
}

static PyObject *view_keeper_new(PyTypeObject *type, PyObject *args, PyObject *kwargs) {
    PyObject *self = type->tp_alloc(type, 0);
    if (self != NULL && view_keeper_make((gg_py_view_keeper *)self, args, kwargs) < 0) Py_CLEAR(self);
    return self;
}

static void view_keeper_dealloc(PyObject *self) {
    PyTypeObject *type = Py_TYPE(self);
    gg_py_view_keeper *k = (gg_py_view_keeper *)self;
    gg_view_keeper_destroy(k->keeper);
    if (k->memory != NULL) munmap(k->memory, k->bytes);
    type->tp_free(self);
    Py_DECREF(type);
}

static PyObject *view_keeper_died(PyObject *self, PyObject *identity) {
    const int rank = (int)PyLong_AsLong(identity);
    if (PyErr_Occurred()) return NULL;
    return gg_py_done(gg_view_keeper_died(((gg_py_view_keeper *)self)->keeper, rank));
}

static PyObject *view_keeper_trains(PyObject *self, PyObject *identity) {
    const int rank = (int)PyLong_AsLong(identity);
    if (PyErr_Occurred()) return NULL;
    return PyBool_FromLong(gg_view_keeper_trains(((gg_py_view_keeper *)self)->keeper, rank));
}

static PyObject *view_keeper_poll(PyObject *self, PyObject *unused) {
    static const char *const phases[] = {"run", "stopping", "goal", "ended"};
    gg_phase phase;
    (void)unused;
    const gg_status status = gg_view_keeper_poll(((gg_py_view_keeper *)self)->keeper, &phase);
    return status == GG_OK ? PyUnicode_FromString(phases[phase]) : gg_py_raise(status);
}

static PyObject *view_keeper_view(PyObject *self, PyObject *unused) {
    const gg_view *view = gg_membership_view(gg_view_keeper_membership(((gg_py_view_keeper *)self)->keeper));
    (void)unused;
    return gg_py_view(view->number, view->start, view->member, view->members);
}

static PyObject *view_keeper_restore(PyObject *self, PyObject *published) {
    const gg_py_view_keeper *k = (gg_py_view_keeper *)self;
    Py_buffer given;
    if (PyObject_GetBuffer(published, &given, PyBUF_SIMPLE) != 0) return NULL;
    const size_t bytes = gg_view_pages_published_bytes(k->most);
    const bool fits = given.len == (Py_ssize_t)bytes;
    if (!fits) PyErr_Format(PyExc_ValueError, "%zd bytes; allowed: %zu", given.len, bytes);
    const gg_status status = fits ? gg_view_keeper_restore(k->keeper, given.buf) : GG_OK;
    PyBuffer_Release(&given);
    return fits ? gg_py_done(status) : NULL;
}

static PyObject *view_keeper_rests(PyObject *self, PyObject *unused) {
    (void)unused;
    return PyBool_FromLong(gg_view_keeper_rests(((gg_py_view_keeper *)self)->keeper));
}

static PyMethodDef methods[] = {{"restore", view_keeper_restore, METH_O, "restore($self, published, /)\n--\n\n"},
                                {"rests", view_keeper_rests, METH_NOARGS, NULL},
                                {"died", view_keeper_died, METH_O, "died($self, identity, /)\n--\n\n"},
                                {"trains", view_keeper_trains, METH_O, "trains($self, identity, /)\n--\n\n"},
                                {"poll", view_keeper_poll, METH_NOARGS, NULL},
                                {"view", view_keeper_view, METH_NOARGS, NULL},
                                {NULL, NULL, 0, NULL}};

static PyType_Slot slots[] = {
    {Py_tp_new, view_keeper_new}, {Py_tp_dealloc, view_keeper_dealloc}, {Py_tp_methods, methods}, {0, NULL}};

static PyType_Spec spec = {"gossipgrad._core.ViewKeeper", sizeof(gg_py_view_keeper), 0, Py_TPFLAGS_DEFAULT, slots};

int gg_py_add_view_keeper(PyObject *module) {
    view_keeper_type = gg_py_add_type(module, &spec);
    return view_keeper_type ? 0 : -1;
}
