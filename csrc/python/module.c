#define GG_PYTHON_MODULE
#include "python/python.h"

PyObject *gg_py_communication_error, *gg_py_cancelled;

static int add_exceptions(PyObject *module) {
    gg_py_communication_error = PyErr_NewExceptionWithDoc(
        "gossipgrad.CommunicationError", "A message failed, or another rank did.", PyExc_RuntimeError, NULL);
    gg_py_cancelled = PyErr_NewExceptionWithDoc("gossipgrad.Cancelled", "Stopped because another rank failed.",
                                                PyExc_RuntimeError, NULL);
    if (gg_py_communication_error == NULL || gg_py_cancelled == NULL) return -1;
    if (PyModule_AddObjectRef(module, "CommunicationError", gg_py_communication_error) < 0) return -1;
    return PyModule_AddObjectRef(module, "Cancelled", gg_py_cancelled);
}

static int py_module_execute(PyObject *module) {
    if (gg_py_communication_error != NULL) {
        PyErr_SetString(PyExc_ImportError, "gossipgrad._core can be loaded by one interpreter of a process only");
        return -1;
    }
    import_array1(-1);
    if (add_exceptions(module) < 0) return -1;
    if (gg_py_add_graph(module) < 0 || gg_py_add_team(module) < 0 || gg_py_add_dataset(module) < 0) return -1;
    if (gg_py_add_trainer(module) < 0 || gg_py_add_info(module) < 0) return -1;
    if (gg_py_add_schedule(module) < 0) return -1;
    return 0;
}

static PyModuleDef_Slot slots[] = {{Py_mod_exec, py_module_execute}, {0, NULL}};

static struct PyModuleDef definition = {PyModuleDef_HEAD_INIT, .m_name = "gossipgrad._core",
                                        .m_doc = "The compiled core. Not public: the package's own modules use it.",
                                        .m_slots = slots};

PyMODINIT_FUNC PyInit__core(void);
PyMODINIT_FUNC PyInit__core(void) { return PyModuleDef_Init(&definition); }
