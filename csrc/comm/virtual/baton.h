/* A baton of one holder: who has it runs. Private to the room. */
#ifndef GG_COMM_VIRTUAL_BATON_H
#define GG_COMM_VIRTUAL_BATON_H

#include <pthread.h>
#include <stdbool.h>

#include "base/status.h"

/* Zero-initialised. `here` is set under the mutex by the one who hands it on; the mutex so orders what both threads do.
 */
typedef struct gg_baton {
    pthread_mutex_t mutex;
    pthread_cond_t turn;
    bool here, made;
} gg_baton;

gg_status gg_baton_create(gg_baton *b);
/* Of one that was not made: nothing. */
void gg_baton_destroy(gg_baton *b);

void gg_baton_give(gg_baton *b);
void gg_baton_await(gg_baton *b);
/* False: it did not come within so many seconds of real time. */
bool gg_baton_await_for(gg_baton *b, double seconds);

#endif
