/* The stand-in as a whole: its table, and its place in a library that the core loads as a device. */
#include "standin.h"

#include <pthread.h>

#include "inside.h"

static gg_cuda_api table;
static pthread_once_t once = PTHREAD_ONCE_INIT;

static void fill(void) {
    gg_standin_fill_runtime(&table);
    gg_standin_fill_graph(&table);
    gg_standin_fill_cudnn(&table);
    gg_standin_fill_cudnn_rnn(&table);
    gg_standin_fill_cublas(&table);
}

const gg_cuda_api *gg_standin_api(void) {
    pthread_once(&once, fill);
    return &table;
}
