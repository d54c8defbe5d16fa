/* Shared by all files of the room: NumPy's table of functions, and the exceptions. */
#define GG_PYTHON_MODULE
#include "python/python.h"

PyObject *gg_py_communication_error, *gg_py_peer_error, *gg_py_cancelled;

int gg_py_add_common(PyObject *module) {
    if (gg_py_communication_error != NULL) {
        PyErr_SetString(PyExc_ImportError, "gossipgrad._core can be loaded by one interpreter of a process only");
        return -1;
    }
    import_array1(-1);
    gg_py_communication_error = PyErr_NewExceptionWithDoc(
        "gossipgrad.CommunicationError", "A message failed, or another rank did.", PyExc_RuntimeError, NULL);
    gg_py_cancelled = PyErr_NewExceptionWithDoc("gossipgrad.Cancelled", "Stopped because another rank failed.",
                                                PyExc_RuntimeError, NULL);
    gg_py_peer_error = PyErr_NewExceptionWithDoc("gossipgrad._core.PeerError", "A rank that the call needs has died.",
                                                 gg_py_communication_error, NULL);
    if (gg_py_communication_error == NULL || gg_py_cancelled == NULL || gg_py_peer_error == NULL) return -1;
    if (PyModule_AddObjectRef(module, "PeerError", gg_py_peer_error) < 0) return -1;
    if (PyModule_AddObjectRef(module, "CommunicationError", gg_py_communication_error) < 0) return -1;
    return PyModule_AddObjectRef(module, "Cancelled", gg_py_cancelled);
}
