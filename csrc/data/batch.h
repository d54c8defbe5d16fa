/* A batch: where and how each input is written, with targets, weights and begins of sequences. */
#ifndef GG_DATA_BATCH_H
#define GG_DATA_BATCH_H

#include "ops/backend.h"

typedef struct gg_batch_input {
    gg_format format; /* float32 PLAIN or BATCH_LAST, or int32 PLAIN */
    void *data;       /* the plan's memory; NULL means that it does not read this input */
    gg_gather_args
        *gather; /* NULL, or describes the gather that the device makes: samples are then written to `data` in the set's
                    own elements, whatever the format. Everything but the gather's result is filled */
} gg_batch_input;

/* The memory is the caller's and has room for the batch. */
typedef struct gg_batch {
    gg_batch_input input[GG_MAX_FIELDS];
    void *target[GG_MAX_FIELDS]; /* PLAIN, int32 (n, ...) or float32 (n, ...): gg_loss_args */
    float *sample_weights;       /* one a row; not written if the set has none */
    bool *begins; /* one a row: its sample begins a sequence, so no state continues from the previous batch. Without
                     streams each sample is a sequence. NULL means not needed */
} gg_batch;

#endif
