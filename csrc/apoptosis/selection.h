/* The smaller network: what of every arena stays where units leave.
 *
 * A selection knows for each parameter which indices of its axes stay. The same holds for every arena in the graph's
 * order: weights, gradients, moments, residues, statistics. Constant once created; any thread may use it. */
#ifndef GG_APOPTOSIS_SELECTION_H
#define GG_APOPTOSIS_SELECTION_H

#include "apoptosis/units.h"

typedef struct gg_selection gg_selection;

/* `leaves` says of each unit whether it leaves; `units` are those of this finished graph. GG_ERROR_ARGUMENT: a unit
 * that cannot leave does, or all units of a layer; names the layer. Copies what it needs. */
gg_status gg_selection_create(const gg_graph *graph, const gg_units *units, const bool *leaves, gg_selection **out);
void gg_selection_destroy(gg_selection *selection);

/* The graph without the units that leave: the same nodes in the same order, with their names and factors. `graph` is
 * that of the selection. The caller destroys `out`, which is finished. */
gg_status gg_graph_select(const gg_graph *graph, const gg_selection *selection, gg_graph **out);

/* float32 elements of an arena of the graph, and of the smaller one. */
size_t gg_selection_count_before(const gg_selection *selection);
size_t gg_selection_count_after(const gg_selection *selection);

/* Writes what stays of `from` to `to`, which is elsewhere; the padding of `to` is zero. */
void gg_arena_select(const gg_selection *selection, const float *from, float *to);

/* What stays of a row of the state that the layer of a node carries (gg_graph_node_carried): `before` of the graph's,
 * `after` of the smaller one's. */
void gg_carried_select(const gg_selection *selection, int node, const float *before, float *after);

/* The indices of a parameter's axis 0 or 1 that stay, ascending: as many as are returned, owned by the selection. */
int64_t gg_selection_kept(const gg_selection *selection, int parameter, int axis, const int64_t **index);

/* Of the smaller graph and all indices that stay; for ranks to compare. The same on every machine. */
uint64_t gg_selection_hash(const gg_selection *selection);

#endif
