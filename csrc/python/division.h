/* Private to the room: divisions of an epoch among numbers of ranks, as lists of lists. */
#ifndef GG_PYTHON_DIVISION_H
#define GG_PYTHON_DIVISION_H

#include "data/loader.h"
#include "python/python.h"

/* The numbers of a list; *out is freed by PyMem_Free. -1 with an exception. */
int gg_py_numbers(PyObject *list, int64_t **out);
/* Fills a position's divisions, which gg_py_divisions_free frees, also after a failure. -1 with an exception. */
int gg_py_divisions(PyObject *list, gg_position *at);
void gg_py_divisions_free(gg_position *at);

/* _core.division */
PyObject *gg_py_division(PyObject *module, PyObject *args, PyObject *kwargs);

#endif
