#include "cpu/cpu_backend.h"
#include "ops/library.h"
#include "python/python.h"

static void register_devices(void) {
    gg_cpu_register();
    gg_libraries_register();
}

static int py_module_execute(PyObject *module) {
    register_devices();
    if (gg_py_add_common(module) < 0) return -1;
    if (gg_py_add_graph(module) < 0 || gg_py_add_team(module) < 0 || gg_py_add_dataset(module) < 0) return -1;
    if (gg_py_add_trainer(module) < 0 || gg_py_add_shrink(module) < 0 || gg_py_add_info(module) < 0) return -1;
    if (gg_py_add_exchange(module) < 0 || gg_py_add_stall(module) < 0) return -1;
    if (gg_py_add_view_pages(module) < 0) return -1;
    if (gg_py_add_view_keeper(module) < 0 || gg_py_add_schedule(module) < 0 || gg_py_add_options(module) < 0) return -1;
    return 0;
}

static PyModuleDef_Slot slots[] = {{Py_mod_exec, py_module_execute}, {0, NULL}};

static struct PyModuleDef definition = {PyModuleDef_HEAD_INIT, .m_name = "gossipgrad._core",
                                        .m_doc = "The compiled core. Not public: the package's own modules use it.",
                                        .m_slots = slots};

PyMODINIT_FUNC PyInit__core(void);
PyMODINIT_FUNC PyInit__core(void) { return PyModuleDef_Init(&definition); }
