/* Waits between ranks that last: the core's reports of them (comm/stall.h) go to a callable. */
#include "comm/stall.h"
#include "python/python.h"

static PyObject *stall_report; /* a callable; NULL means none */

/* An exception of the callable must not end the wait; Ctrl-C is raised again when the wait is over. */
static double stall_failed(PyObject *callable) {
    if (PyErr_ExceptionMatches(PyExc_KeyboardInterrupt)) {
        PyErr_Clear();
        PyErr_SetInterrupt();
    } else {
        PyErr_WriteUnraisable(callable);
    }
    return 0;
}

static double report_stall(const gg_stall_facts *facts) {
    double next = 0;
    if (!Py_IsInitialized()) return 0;
    PyGILState_STATE gil = PyGILState_Ensure();
    PyObject *callable = Py_XNewRef(stall_report);
    if (callable == NULL) { /* replaced since the wait looked */
        PyGILState_Release(gil);
        return 0;
    }
    PyObject *result = PyObject_CallFunction(callable, "iiiLzzzdO", facts->rank, facts->size, facts->peer,
                                             (long long)facts->step, facts->first_layer, facts->last_layer, facts->what,
                                             facts->seconds, facts->over ? Py_True : Py_False);
    if (result != NULL) next = PyFloat_AsDouble(result);
    Py_XDECREF(result);
    if (PyErr_Occurred()) next = stall_failed(callable);
    Py_DECREF(callable);
    PyGILState_Release(gil);
    return next;
}

static PyObject *report_stalls(PyObject *module, PyObject *args, PyObject *kwargs) {
    static char *names[] = {"seconds", "report", NULL};
    double seconds;
    PyObject *report;
    (void)module;
    if (!PyArg_ParseTupleAndKeywords(args, kwargs, "dO:report_stalls", names, &seconds, &report)) return NULL;
    gg_stall_configure(0, NULL); /* a thread that reports holds the GIL */
    Py_XSETREF(stall_report, report == Py_None ? NULL : Py_NewRef(report));
    if (stall_report != NULL) gg_stall_configure(seconds, report_stall);
    Py_RETURN_NONE;
}

static PyMethodDef functions[] = {{"report_stalls", GG_PY_KEYWORDS(report_stalls), NULL}, {NULL, NULL, 0, NULL}};

int gg_py_add_stall(PyObject *module) { return PyModule_AddFunctions(module, functions); }
