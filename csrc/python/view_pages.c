/* _core.ViewPages: the shared memory of ranks' views (comm/view_pages.h), for agents, the coordinator and newcomers. */
#include <sys/mman.h>

#include "comm/view_pages.h"
#include "python/python.h"

typedef struct gg_py_view_pages {
    PyObject_HEAD void *memory;
    size_t bytes;
    int most;
} gg_py_view_pages;

static PyTypeObject *view_pages_type;

static int view_pages_make(gg_py_view_pages *p, PyObject *args, PyObject *kwargs) {
    static char *names[] = {"memory", "most", NULL};
    int memory;
    if (!PyArg_ParseTupleAndKeywords(args, kwargs, "ii:ViewPages", names, &memory, &p->most)) return -1;
    if (p->most < 1) {
        PyErr_Format(PyExc_ValueError, "most: %d; must be at least 1", p->most);
        return -1;
    }
    p->bytes = gg_view_pages_bytes(p->most);
    p->memory = gg_py_map(memory, p->bytes, true);
    return p->memory != NULL ? 0 : -1;
}

static PyObject *view_pages_new(PyTypeObject *type, PyObject *args, PyObject *kwargs) {
    PyObject *self = type->tp_alloc(type, 0);
    if (self != NULL && view_pages_make((gg_py_view_pages *)self, args, kwargs) < 0) Py_CLEAR(self);
    return self;
}

static void view_pages_dealloc(PyObject *self) {
    PyTypeObject *type = Py_TYPE(self);
    const gg_py_view_pages *p = (gg_py_view_pages *)self;
    if (p->memory != NULL) munmap(p->memory, p->bytes);
    type->tp_free(self);
    Py_DECREF(type);
}

/* -1 with ValueError. */
static int rank_of(const gg_py_view_pages *p, PyObject *identity) {
    const int rank = (int)PyLong_AsLong(identity);
    if (PyErr_Occurred()) return -1;
    if (rank >= 0 && rank < p->most) return rank;
    PyErr_Format(PyExc_ValueError, "rank %d; allowed: 0 to %d", rank, p->most - 1);
    return -1;
}

static PyObject *told(PyObject *self, PyObject *identity) {
    const gg_py_view_pages *p = (gg_py_view_pages *)self;
    const int rank = rank_of(p, identity);
    if (rank < 0) return NULL;
    int64_t *words = PyMem_Malloc(gg_view_pages_told_bytes(p->most));
    if (words == NULL) return PyErr_NoMemory();
    gg_view_pages_told(p->memory, p->most, rank, words);
    PyObject *bytes = PyBytes_FromStringAndSize((char *)words, (Py_ssize_t)gg_view_pages_told_bytes(p->most));
    PyMem_Free(words);
    return bytes;
}

/* A copy at an address for numbers; NULL with ValueError if the bytes have another length. */
static int64_t *words_of(const Py_buffer *given, size_t bytes) {
    if (given->len != (Py_ssize_t)bytes) {
        PyErr_Format(PyExc_ValueError, "%zd bytes; allowed: %zu", given->len, bytes);
        return NULL;
    }
    int64_t *words = PyMem_Malloc(bytes);
    if (words == NULL) PyErr_NoMemory();
    else memcpy(words, given->buf, bytes);
    return words;
}

static PyObject *tell(PyObject *self, PyObject *args) {
    const gg_py_view_pages *p = (gg_py_view_pages *)self;
    PyObject *identity;
    Py_buffer given;
    if (!PyArg_ParseTuple(args, "Oy*:tell", &identity, &given)) return NULL;
    const int rank = rank_of(p, identity);
    int64_t *words = rank >= 0 ? words_of(&given, gg_view_pages_told_bytes(p->most)) : NULL;
    PyBuffer_Release(&given);
    if (words == NULL) return NULL;
    gg_view_pages_tell(p->memory, p->most, rank, words);
    PyMem_Free(words);
    Py_RETURN_NONE;
}

static PyObject *freeze(PyObject *self, PyObject *identity) {
    const gg_py_view_pages *p = (gg_py_view_pages *)self;
    const int rank = rank_of(p, identity);
    if (rank < 0) return NULL;
    gg_view_pages_freeze(p->memory, p->most, rank);
    Py_RETURN_NONE;
}

static PyObject *trains(PyObject *self, PyObject *identity) {
    const gg_py_view_pages *p = (gg_py_view_pages *)self;
    const int rank = rank_of(p, identity);
    return rank < 0 ? NULL : PyBool_FromLong(gg_view_pages_trains(p->memory, p->most, rank));
}

static PyObject *published(PyObject *self, PyObject *unused) {
    const gg_py_view_pages *p = (gg_py_view_pages *)self;
    const size_t bytes = gg_view_pages_published_bytes(p->most);
    (void)unused;
    int64_t *words = PyMem_Malloc(bytes);
    if (words == NULL) return PyErr_NoMemory();
    gg_view_pages_published(p->memory, p->most, words);
    PyObject *made = PyBytes_FromStringAndSize((char *)words, (Py_ssize_t)bytes);
    PyMem_Free(words);
    return made;
}

static PyObject *publish(PyObject *self, PyObject *bytes) {
    const gg_py_view_pages *p = (gg_py_view_pages *)self;
    Py_buffer given;
    if (PyObject_GetBuffer(bytes, &given, PyBUF_SIMPLE) != 0) return NULL;
    int64_t *words = words_of(&given, gg_view_pages_published_bytes(p->most));
    PyBuffer_Release(&given);
    if (words == NULL) return NULL;
    gg_view_pages_publish(p->memory, p->most, words);
    PyMem_Free(words);
    Py_RETURN_NONE;
}

static PyObject *view(PyObject *self, PyObject *unused) {
    const gg_py_view_pages *p = (gg_py_view_pages *)self;
    int64_t number, start;
    int *member = PyMem_Malloc((size_t)p->most * sizeof *member);
    (void)unused;
    if (member == NULL) return PyErr_NoMemory();
    const int members = gg_view_pages_view(p->memory, p->most, &number, &start, member);
    PyObject *dict = gg_py_view(number, start, member, members);
    PyMem_Free(member);
    return dict;
}

static PyMethodDef methods[] = {{"told", told, METH_O, "told($self, identity, /)\n--\n\n"},
                                {"tell", tell, METH_VARARGS, "tell($self, identity, told, /)\n--\n\n"},
                                {"freeze", freeze, METH_O, "freeze($self, identity, /)\n--\n\n"},
                                {"trains", trains, METH_O, "trains($self, identity, /)\n--\n\n"},
                                {"published", published, METH_NOARGS, NULL},
                                {"view", view, METH_NOARGS, NULL},
                                {"publish", publish, METH_O, "publish($self, published, /)\n--\n\n"},
                                {NULL, NULL, 0, NULL}};

static PyType_Slot slots[] = {
    {Py_tp_new, view_pages_new}, {Py_tp_dealloc, view_pages_dealloc}, {Py_tp_methods, methods}, {0, NULL}};

static PyType_Spec spec = {"gossipgrad._core.ViewPages", sizeof(gg_py_view_pages), 0, Py_TPFLAGS_DEFAULT, slots};

int gg_py_add_view_pages(PyObject *module) {
    view_pages_type = gg_py_add_type(module, &spec);
    return view_pages_type ? 0 : -1;
}
