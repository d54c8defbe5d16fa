/* Exceptions that are raised on a thread of the core, until the call that fails by them returns to Python. With the GIL
 * held. */
#include <string.h>

#include "python/python.h"

static PyObject *stored; /* a list; NULL: none */

/* Of a message only so much is compared, since long ones are cut off. */
#define COMPARED 400

static void copy_text(PyObject *exception, char text[COMPARED]) {
    PyObject *as_text = PyObject_Str(exception);
    const char *utf8 = as_text != NULL ? PyUnicode_AsUTF8(as_text) : NULL;
    if (utf8 != NULL && *utf8 != 0) PyOS_snprintf(text, COMPARED, "%s", utf8);
    else PyOS_snprintf(text, COMPARED, "%s", Py_TYPE(exception)->tp_name);
    PyErr_Clear();
    Py_XDECREF(as_text);
}

gg_status gg_py_store_exception(void) {
    PyObject *kind, *value, *trace;
    char text[COMPARED];
    PyErr_Fetch(&kind, &value, &trace);
    PyErr_NormalizeException(&kind, &value, &trace);
    if (trace != NULL) PyException_SetTraceback(value, trace);
    copy_text(value, text);
    if (stored == NULL) stored = PyList_New(0);
    if (stored == NULL || PyList_Append(stored, value) < 0) PyErr_Clear();
    Py_XDECREF(kind);
    Py_XDECREF(value);
    Py_XDECREF(trace);
    return gg_fail(GG_ERROR_SOURCE, "%s", text);
}

void gg_py_forget_stored(void) { Py_CLEAR(stored); }

bool gg_py_raise_stored(const char *message) {
    PyObject *list = stored;
    bool raised = false;
    char text[COMPARED];
    stored = NULL;
    for (Py_ssize_t i = 0; list != NULL && !raised && i < PyList_GET_SIZE(list); ++i) {
        PyObject *exception = PyList_GET_ITEM(list, i);
        copy_text(exception, text);
        const char *at = strstr(message, text);
        if (at == NULL) continue;
        raised = true;
        if (at > message && PyObject_HasAttrString(exception, "add_note")) { /* where: "step 12, samples: " */
            PyObject *note = PyUnicode_FromStringAndSize(message, at - message);
            PyObject *result = note != NULL ? PyObject_CallMethod(exception, "add_note", "O", note) : NULL;
            Py_XDECREF(note);
            Py_XDECREF(result);
            PyErr_Clear();
        }
        PyErr_SetObject((PyObject *)Py_TYPE(exception), exception);
    }
    Py_XDECREF(list);
    return raised;
}
