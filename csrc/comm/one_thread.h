/* One thread of a process may exchange messages with other processes. */
#ifndef GG_COMM_ONE_THREAD_H
#define GG_COMM_ONE_THREAD_H

#include "base/status.h"

/* Checks that the calling thread may use the process's messages now, and notes it. GG_ERROR_STATE: another thread uses
 * them and still runs; collective calls of two threads would meet other ranks' calls in any order. The main thread may
 * make a group that another thread then uses. `what` names the messages. Not for two threads at once. */
gg_status gg_one_thread_check(const char *what);

#endif
