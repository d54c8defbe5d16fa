/* A batch as the network wants it: where each input is to be written and how, and what goes with it. */
#ifndef GG_DATA_BATCH_H
#define GG_DATA_BATCH_H

#include "ops/backend.h"

typedef struct gg_batch_input {
    gg_format format;       /* float32 PLAIN or BATCH_LAST, or int32 PLAIN */
    void *data;             /* the plan's memory; NULL: it does not read this input */
    gg_gather_args *gather; /* NULL; or the samples are written to `data` as the set has them, whatever the format, and
                               this says what is to be made of them: all but what is made */
} gg_batch_input;

/* The memory is the caller's and has room for the batch. */
typedef struct gg_batch {
    gg_batch_input input[GG_MAX_FIELDS];
    void *target[GG_MAX_FIELDS]; /* plain, as gg_loss_args wants them: int32 (n, ...) or float32 (n, ...) */
    float *sample_weights;       /* one a row; not touched where the set has none */
    bool *begins;                /* one a row: whether a sequence begins with its sample, and no state goes on from the
                                    batch before; without streams each sample is a sequence; NULL: not wanted */
} gg_batch;

#endif
