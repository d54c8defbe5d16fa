/* The transport of a group of one: messages to oneself only. */
#ifndef GG_COMM_LOCAL_H
#define GG_COMM_LOCAL_H

#include "comm/transport.h"

gg_status gg_local_transport_create(gg_transport **out);

#endif
