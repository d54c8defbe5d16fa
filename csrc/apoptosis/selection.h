/* The smaller network, and the remaining elements of every arena.
 *
 * A selection knows the remaining indices of each parameter's axes. They apply to every arena in the graph's order:
 * weights, gradients, moments, residues, statistics. Constant once created; any thread may use it. */
#ifndef GG_APOPTOSIS_SELECTION_H
#define GG_APOPTOSIS_SELECTION_H

#include "apoptosis/units.h"

typedef struct gg_selection gg_selection;

/* leaves[u]: unit u leaves. `units` belong to this finished graph. GG_ERROR_ARGUMENT, naming the layer: a unit leaves
 * that cannot, or all units of a layer leave. Copies its arguments. */
gg_status gg_selection_create(const gg_graph *graph, const gg_units *units, const bool *leaves, gg_selection **out);
void gg_selection_destroy(gg_selection *selection);

/* Creates the graph without leaving units: equal nodes in equal order, with their names and factors. `graph` is the
 * selection's. The caller destroys `out`, which is finished. */
gg_status gg_graph_select(const gg_graph *graph, const gg_selection *selection, gg_graph **out);

/* float32 elements of an arena of the graph, and of the smaller graph. */
size_t gg_selection_count_before(const gg_selection *selection);
size_t gg_selection_count_after(const gg_selection *selection);

/* Copies the remaining elements of `from` to `to`, which do not overlap. The padding of `to` becomes zero. */
void gg_arena_select(const gg_selection *selection, const float *from, float *to);

/* Copies the remaining elements of a row of a node's carried state (gg_graph_node_carried), from the graph's (`before`)
 * to the smaller graph's (`after`). */
void gg_carried_select(const gg_selection *selection, int node, const float *before, float *after);

/* Sets *index to the remaining indices of a parameter's axis 0 or 1, ascending, owned by the selection. Returns their
 * number. */
int64_t gg_selection_kept(const gg_selection *selection, int parameter, int axis, const int64_t **index);

/* Hash of the smaller graph and all remaining indices, for ranks to compare. Equal on every machine. */
uint64_t gg_selection_hash(const gg_selection *selection);

#endif
