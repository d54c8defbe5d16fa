/* A part of a group as a group of its own: a view on a transport with its own ranks, on which strategies and
 * collectives run unchanged.
 *
 * Messages go through the whole group's transport, which counts them and whose clock and progress they share. Two views
 * may be used side by side with the same tags if no two ranks belong to both. */
#ifndef GG_COMM_SUBGROUP_H
#define GG_COMM_SUBGROUP_H

#include "comm/transport.h"

/* members: different ranks of `whole`, this rank among them, the same on all of them; copied. `whole` outlives the
 * view. Memory of the view is memory of the whole: gg_message_alloc stays collective over all its ranks. */
gg_status gg_subgroup_create(gg_transport *whole, const int *members, int count, gg_transport **out);

/* How ranks are divided into nodes of one size: node n's ranks are member[n * size] to member[n * size + size - 1],
 * ascending. */
typedef struct gg_nodes {
    int count, size; /* count * size: all ranks */
    int *member;
} gg_nodes;

/* Nodes of ranks_per_node consecutive ranks, the last one what is left; 0: the ranks that share memory. Where that
 * makes nodes of unlike size, each is divided into nodes as large as the greatest common divisor of the sizes. Nothing
 * is sent. */
gg_status gg_nodes_create(const gg_transport *transport, int ranks_per_node, gg_nodes *out);
void gg_nodes_destroy(gg_nodes *nodes);

#endif
