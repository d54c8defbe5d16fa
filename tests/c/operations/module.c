#define GG_PYTHON_MODULE
#include "operations/operations.h"

#include "base/cpu.h"
#include "base/memory.h"

/* Named by csrc/python/convert.c; here a failed message is no more than a RuntimeError. */
PyObject *gg_py_communication_error, *gg_py_peer_error, *gg_py_cancelled;

static PyObject *live_bytes(PyObject *module, PyObject *unused) {
    (void)module;
    (void)unused;
    return PyLong_FromLongLong(gg_memory_live_bytes());
}

static PyObject *float_mode(PyObject *module, PyObject *unused) {
    (void)module;
    (void)unused;
    return PyLong_FromUnsignedLongLong(gg_cpu_float_mode());
}

static PyObject *set_float_mode(PyObject *module, PyObject *mode) {
    const unsigned long long wanted = PyLong_AsUnsignedLongLong(mode);
    (void)module;
    if (PyErr_Occurred()) return NULL;
    gg_cpu_set_float_mode(wanted);
    Py_RETURN_NONE;
}

#define KEYWORDS(function) (PyCFunction)(void (*)(void))(function), METH_VARARGS | METH_KEYWORDS

static PyMethodDef functions[] = {
    {"run_op", KEYWORDS(gg_test_run_op), "One operation of one table on plain arrays, between guard bytes."},
    {"run_loss", KEYWORDS(gg_test_run_loss), "Sum of losses, samples right, gradient of the mean."},
    {"run_kernel", KEYWORDS(gg_test_run_kernel), "A kernel on arenas."},
    {"pack", KEYWORDS(gg_test_pack), "A packed message, what is left, and the counts."},
    {"pack_marked", gg_test_pack_marked, METH_VARARGS, "Messages of several steps, and what is left at their end."},
    {"unpack", gg_test_unpack, METH_VARARGS, "Adds a packed message."},
    {"choice", gg_test_choice, METH_VARARGS, "Moves the values of a choice, and adds them."},
    {"live_bytes", live_bytes, METH_NOARGS, "Bytes that the core holds."},
    {"float_mode", float_mode, METH_NOARGS, "The calling thread's."},
    {"set_float_mode", set_float_mode, METH_O, "Sets the calling thread's."},
    {NULL, NULL, 0, NULL}};

static struct PyModuleDef definition = {PyModuleDef_HEAD_INIT, .m_name = "core_operations",
                                        .m_doc = "Single operations of the core, for tests.", .m_size = -1,
                                        .m_methods = functions};

PyMODINIT_FUNC PyInit_core_operations(void);
PyMODINIT_FUNC PyInit_core_operations(void) {
    import_array();
    gg_py_communication_error = gg_py_peer_error = gg_py_cancelled = PyExc_RuntimeError;
    return PyModule_Create(&definition);
}
