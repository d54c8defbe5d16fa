/* Exceptions raised on a thread of the core, stored until the failing call returns to Python. With the GIL held. */
#include <string.h>

#include "python/python.h"

/* A list of pairs: an exception, and its failure's text as bytes. NULL means none. */
static PyObject *stored;

/* Max compared characters of a message, because long ones are cut off. */
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
    PyObject *pair = stored != NULL ? Py_BuildValue("(Oy)", value, text) : NULL;
    if (pair == NULL || PyList_Append(stored, pair) < 0) PyErr_Clear();
    Py_XDECREF(pair);
    Py_XDECREF(kind);
    Py_XDECREF(value);
    Py_XDECREF(trace);
    return gg_fail(GG_ERROR_SOURCE, "%s", text);
}

void gg_py_forget_stored(void) { Py_CLEAR(stored); }

/* Adds a note with the place: "step 12, samples". */
static void add_note(PyObject *exception, const char *place, size_t length) {
    while (length > 0 && (place[length - 1] == ' ' || place[length - 1] == ':')) --length;
    if (length == 0 || !PyObject_HasAttrString(exception, "add_note")) return;
    PyObject *note = PyUnicode_FromStringAndSize(place, (Py_ssize_t)length);
    PyObject *result = note != NULL ? PyObject_CallMethod(exception, "add_note", "O", note) : NULL;
    Py_XDECREF(note);
    Py_XDECREF(result);
    PyErr_Clear();
}

bool gg_py_raise_stored(const char *message) {
    PyObject *list = stored, *found = NULL;
    const size_t length = strlen(message);
    size_t of_text = 0;
    stored = NULL;
    /* Compares the stored texts: asking an exception for its text again may run the handler of a signal. */
    for (Py_ssize_t i = 0; list != NULL && i < PyList_GET_SIZE(list); ++i) {
        PyObject *pair = PyList_GET_ITEM(list, i), *text = PyTuple_GET_ITEM(pair, 1);
        const size_t own = (size_t)PyBytes_GET_SIZE(text);
        if (own <= of_text || own > length || strcmp(message + length - own, PyBytes_AS_STRING(text)) != 0) continue;
        found = PyTuple_GET_ITEM(pair, 0);
        of_text = own;
    }
    if (found != NULL) {
        add_note(found, message, length - of_text);
        PyErr_SetObject((PyObject *)Py_TYPE(found), found);
    }
    Py_XDECREF(list);
    return found != NULL;
}
