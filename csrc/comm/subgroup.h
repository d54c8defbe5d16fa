/* A part of a group as a group of its own: a view on a transport with its own ranks, on which strategies and
 * collectives run unchanged.
 *
 * Messages go through the whole group's transport, which counts them and whose clock and progress they share. Two views
 * may be used side by side with the same tags if no two ranks belong to both. */
#ifndef GG_COMM_SUBGROUP_H
#define GG_COMM_SUBGROUP_H

#include "comm/transport.h"

/* members: distinct ranks of `whole`, this rank included, equal on all members; copied. `whole` outlives the view.
 * Memory of the view belongs to the whole: gg_message_alloc stays collective over all ranks of `whole`. */
gg_status gg_subgroup_create(gg_transport *whole, const int *members, int count, gg_transport **out);

/* The view's ranks become these members, as at creation. Nothing is in flight. Its epoch goes on. */
gg_status gg_subgroup_regroup(gg_transport *view, const int *members, int count);

/* Nodes of equal size: node n's ranks are member[n * size] to member[n * size + size - 1], ascending. */
typedef struct gg_nodes {
    int count, size; /* count * size is the number of ranks */
    int *member;
} gg_nodes;

/* Makes nodes of ranks_per_node consecutive ranks, the last perhaps smaller; 0 means ranks that share memory. Nodes of
 * unequal size are divided into nodes of the sizes' greatest common divisor. Sends nothing. */
gg_status gg_nodes_create(const gg_transport *transport, int ranks_per_node, gg_nodes *out);
void gg_nodes_destroy(gg_nodes *nodes);

#endif
