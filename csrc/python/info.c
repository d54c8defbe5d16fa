/* _core's functions about the environment, and the pure functions that tests and plots recompute. */
#include "base/memory.h"
#include "base/random.h"
#include "comm/mpi/mpi_transport.h"
#include "cpu/cpu_backend.h"
#include "cpu/gemm/paired_kernels.h"
#include "nn/cost.h"
#include "ops/library.h"
#include "python/division.h"
#include "python/python.h"

static PyObject *mpi_info(void) {
    gg_mpi_info mpi;
    gg_status status = gg_mpi_query(&mpi);
    if (status != GG_OK) return gg_py_raise(status);
    return Py_BuildValue("{sNsNsisisisNsNsssssd}", "initialised", PyBool_FromLong(mpi.initialised), "ours",
                         PyBool_FromLong(mpi.ours), "rank", mpi.rank, "size", mpi.size, "thread_level",
                         mpi.thread_level, "fault_tolerance", PyBool_FromLong(mpi.fault_tolerance), "cuda",
                         PyBool_FromLong(mpi.cuda), "library", mpi.library, "built_against", mpi.built_against,
                         "init_seconds", mpi.init_seconds);
}

static PyObject *py_info_info(PyObject *module, PyObject *unused) {
    gg_isa isa;
    (void)module, (void)unused;
    gg_status status = gg_isa_select(NULL, &isa);
    if (status != GG_OK) return gg_py_raise(status);
    PyObject *isas = PyList_New(0), *mpi = mpi_info();
    for (int i = 0; isas != NULL && i < GG_ISA_COUNT; ++i) {
        PyObject *name = gg_cpu_supports((gg_isa)i) ? PyUnicode_FromString(gg_isa_name((gg_isa)i)) : NULL;
        if (name != NULL && PyList_Append(isas, name) < 0) Py_CLEAR(isas);
        Py_XDECREF(name);
    }
    if (isas == NULL || mpi == NULL || PyErr_Occurred()) {
        Py_XDECREF(isas);
        Py_XDECREF(mpi);
        return NULL;
    }
    const gg_isa not_built = gg_isa_not_built();
    return Py_BuildValue("{sssssssssNszsssOsOsisssN}", "compiler", __VERSION__, "cpu", gg_cpu_name(), "isa",
                         gg_isa_name(isa), "costs", gg_cost_model_name(gg_cost_model_of(isa)), "isas", isas,
                         "isa_not_built", not_built != GG_ISA_SCALAR ? gg_isa_name(not_built) : NULL, "bfloat16",
                         gg_cpu_bfloat16(), "bfloat16_is_fast", gg_cpu_bfloat16_is_fast() ? Py_True : Py_False,
                         "paired", gg_paired_kernels_for(isa) != NULL ? Py_True : Py_False, "cores", gg_cpu_count(),
                         "onednn", gg_onednn_version(), "mpi", mpi);
}

static PyObject *py_info_find_device(PyObject *module, PyObject *args) {
    const char *name;
    const gg_device_kind *kind;
    int number;
    (void)module;
    if (!PyArg_ParseTuple(args, "s:find_device", &name)) return NULL;
    const gg_status status = gg_registry_find(name, &kind, &number);
    return status == GG_OK ? Py_BuildValue("si", kind->name, number) : gg_py_raise(status);
}

static PyObject *py_info_cuda(PyObject *module, PyObject *unused) {
    const gg_backend_library *library = NULL;
    char text[4096] = "", why[1024] = "";
    int count = 0;
    gg_status status;
    (void)module, (void)unused;
    Py_BEGIN_ALLOW_THREADS;
    status = gg_backend_library_load(GG_CUDA_LIBRARY, GG_CUDA_LIBRARY_VARIABLE, &library);
    if (status == GG_OK) {
        library->describe(text, sizeof text);
        status = library->devices(&count);
    }
    Py_END_ALLOW_THREADS;
    if (status != GG_OK) snprintf(why, sizeof why, "%s", gg_error_message());
    return Py_BuildValue("iNN", count, gg_py_text(why), gg_py_text(text));
}

static PyObject *py_info_memory(PyObject *module, PyObject *unused) {
    (void)module, (void)unused;
    return Py_BuildValue("LL", (long long)gg_memory_live_bytes(), (long long)gg_memory_allocations());
}

static PyObject *py_info_shard(PyObject *module, PyObject *args, PyObject *kwargs) {
    static char *names[] = {"count", "rank", "size", "seed", "contiguous", NULL};
    unsigned long long seed = 0;
    long long count;
    int rank, size, contiguous = 0;
    (void)module;
    if (!PyArg_ParseTupleAndKeywords(args, kwargs, "Lii|Kp:shard", names, &count, &rank, &size, &seed, &contiguous))
        return NULL;
    if (size < 1 || rank < 0 || rank >= size || count < 0 || count > INT32_MAX)
        return PyErr_Format(PyExc_ValueError, "rank: %d of %d ranks with %lld samples", rank, size, count);
    gg_sharding sharding = {
        .kind = contiguous ? GG_SHARD_CONTIGUOUS : GG_SHARD_INTERLEAVED, .size = size, .seed = seed, .count = count};
    npy_intp slots = (npy_intp)gg_sharding_slots(&sharding, rank);
    PyArrayObject *array = gg_py_new_array(1, &slots, NPY_INT32);
    for (npy_intp i = 0; array != NULL && i < slots; ++i)
        ((int32_t *)PyArray_DATA(array))[i] = (int32_t)gg_sharding_id(&sharding, rank, i);
    return (PyObject *)array;
}

static PyObject *py_info_permutation(PyObject *module, PyObject *args, PyObject *kwargs) {
    static char *names[] = {"seed", "purpose", "n", NULL};
    static const char *const purposes[] = {"split", "order", "validation", "probe"};
    static const uint32_t numbers[] = {GG_RANDOM_SPLIT, GG_RANDOM_ORDER, GG_RANDOM_VALIDATION, GG_RANDOM_PROBE};
    unsigned long long seed;
    const char *name;
    Py_ssize_t n;
    (void)module;
    if (!PyArg_ParseTupleAndKeywords(args, kwargs, "Ksn:permutation", names, &seed, &name, &n)) return NULL;
    int purpose = gg_py_choice("purpose", name, purposes, 4);
    if (purpose < 0) return NULL;
    if (n < 0 || n > INT32_MAX) return PyErr_Format(PyExc_ValueError, "n: %zd; allowed are 0 to %d", n, INT32_MAX);
    PyArrayObject *array = gg_py_new_array(1, (npy_intp[]){n}, NPY_UINT32);
    if (array != NULL)
        gg_random_permutation(&(gg_random_key){.seed = seed, .purpose = numbers[purpose]}, (uint32_t)n,
                              PyArray_DATA(array));
    return (PyObject *)array;
}

static PyObject *random_uniform(PyObject *module, PyObject *args, PyObject *kwargs) {
    static char *names[] = {"seed", "purpose", "rank", "step", "n", NULL};
    unsigned long long seed, step;
    unsigned int purpose, rank;
    Py_ssize_t n;
    (void)module;
    if (!PyArg_ParseTupleAndKeywords(args, kwargs, "KIIKn:random_uniform", names, &seed, &purpose, &rank, &step, &n))
        return NULL;
    if (n < 0) return PyErr_Format(PyExc_ValueError, "n: %zd; must be at least 0", n);
    PyArrayObject *array = gg_py_new_array(1, (npy_intp[]){n}, NPY_FLOAT32);
    if (array != NULL)
        gg_random_uniform(&(gg_random_key){.seed = seed, .purpose = purpose, .rank = rank, .step = step}, (size_t)n,
                          0.0f, 1.0f, PyArray_DATA(array));
    return (PyObject *)array;
}

static PyObject *py_info_rate(PyObject *module, PyObject *args, PyObject *kwargs) {
    static char *names[] = {"schedule", "step", NULL};
    PyObject *dict;
    long long step;
    gg_rate made;
    (void)module;
    if (!PyArg_ParseTupleAndKeywords(args, kwargs, "O!L:rate", names, &PyDict_Type, &dict, &step)) return NULL;
    return gg_py_schedule(dict, &made) == 0 ? PyFloat_FromDouble(gg_rate_at(&made, step)) : NULL;
}

static PyMethodDef functions[] = {
    {"info", py_info_info, METH_NOARGS, NULL},
    {"find_device", py_info_find_device, METH_VARARGS, "find_device($module, name, /)\n--\n\n"},
    {"cuda", py_info_cuda, METH_NOARGS, NULL},
    {"memory", py_info_memory, METH_NOARGS, NULL},
    {"shard", GG_PY_KEYWORDS(py_info_shard), NULL},
    {"division", GG_PY_KEYWORDS(gg_py_division), NULL},
    {"permutation", GG_PY_KEYWORDS(py_info_permutation), NULL},
    {"random_uniform", GG_PY_KEYWORDS(random_uniform), NULL},
    {"rate", GG_PY_KEYWORDS(py_info_rate), NULL},
    {NULL, NULL, 0, NULL}};

int gg_py_add_info(PyObject *module) { return PyModule_AddFunctions(module, functions); }
