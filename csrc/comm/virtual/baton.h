/* A baton: only the thread that holds it runs. Private to the room. */
#ifndef GG_COMM_VIRTUAL_BATON_H
#define GG_COMM_VIRTUAL_BATON_H

#include <pthread.h>
#include <stdbool.h>

#include "base/status.h"

/* Zero-initialised. The thread that hands the baton on sets `here` under the mutex, which orders the work of both
 * threads. */
typedef struct gg_baton {
    pthread_mutex_t mutex;
    pthread_cond_t turn;
    bool here, made;
} gg_baton;

gg_status gg_baton_create(gg_baton *b);
/* A no-op if the baton was not made. */
void gg_baton_destroy(gg_baton *b);

void gg_baton_give(gg_baton *b);
void gg_baton_await(gg_baton *b);
/* False means that the baton did not come within `seconds` of real time. */
bool gg_baton_await_for(gg_baton *b, double seconds);

#endif
