/* The views of a virtual cluster whose ranks may die. */
#ifndef GG_COMM_VIRTUAL_VIRTUAL_VIEWS_H
#define GG_COMM_VIRTUAL_VIRTUAL_VIEWS_H

#include "comm/view.h"
#include "comm/virtual/virtual.h"

/* The cluster outlives the views. Its ranks go on while one lives. */
gg_status gg_virtual_views_create(gg_virtual *cluster, gg_views **out);

#endif
