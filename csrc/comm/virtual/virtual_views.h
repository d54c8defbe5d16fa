/* The views of a virtual cluster whose ranks may die, or which others join. */
#ifndef GG_COMM_VIRTUAL_VIRTUAL_VIEWS_H
#define GG_COMM_VIRTUAL_VIRTUAL_VIEWS_H

#include "comm/view.h"
#include "comm/virtual/virtual.h"

/* The cluster outlives the views. Its ranks go on while one lives. joins: one a newcomer, the step from which it is
 * ready, ascending; copied. */
gg_status gg_virtual_views_create(gg_virtual *cluster, const int64_t *joins, int newcomers, gg_views **out);

#endif
