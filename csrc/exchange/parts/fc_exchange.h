/* Private to the room: partitioned linear layers. Instead of the weight's gradient the ranks exchange its factors: the
 * layer's inputs, and the errors of its outputs. A rank owns a slice of the weight: a run of rows (outputs), which may
 * begin and end within a row. It receives all inputs, and the errors of its rows, from every rank. It computes its
 * slice of every rank's gradient itself, with the bits of that rank's own computation.
 *
 * A rank with b of B samples sends b*(in + out/p) values to each peer, in place of (in*out)/p. Over all ranks the layer
 * costs B*(in + out/p) instead of in*out.
 *
 * Calls in each step:
 *
 * 1. gg_fc_begin
 * 2. for each partitioned layer gg_fc_input, then gg_fc_error: each packs, and sends if asked to
 * 3. gg_fc_send for unsent vectors
 * 4. on a rank that owns a slice, for each chunk of it: gg_fc_arrive until all have arrived, gg_fc_gradient for every
 *    part, gg_fc_used once
 *
 * Inputs and errors travel as float32, one message to each peer. */
#ifndef GG_EXCHANGE_PARTS_FC_EXCHANGE_H
#define GG_EXCHANGE_PARTS_FC_EXCHANGE_H

#include "exchange/parts/flight.h"
#include "exchange/parts/partition.h"

enum { GG_FC_INPUT, GG_FC_ERROR, GG_FC_WHATS };

/* A rank's slice of the weight. */
typedef struct gg_fc_slice {
    int64_t first, count; /* elements of the weight, without padding; 0 means none */
    int64_t row, rows;    /* rows that the slice touches */
    int64_t rows_before;  /* rows that slices of lower ranks contain, at least in part */
} gg_fc_slice;

typedef struct gg_fc {
    int layer;
    int64_t in, out;
    gg_fc_slice *slice; /* one a rank */
    int own_chunks;     /* of this rank's slice */
    bool partitioned;   /* in the current step */
    int next;           /* the awaited peer, counted from this rank */
    int left;           /* own chunks whose gradients are not yet computed */
    int64_t room;       /* max samples of a rank in the allocated memory */
    /* Message memory of own samples: inputs as rows; errors as rows of each rank's slice, one rank's after the other's.
     */
    float *packed[GG_FC_WHATS];
    float *landing[GG_FC_WHATS];          /* other ranks' samples that cannot be read in place */
    gg_request *in_request, *out_request; /* indexed [what][rank] */
    gg_flight flight[GG_FC_WHATS];
} gg_fc;

typedef struct gg_fc_exchange {
    gg_strategy *owner;
    gg_partition_fc choice;
    size_t size; /* of an element of a gradient that travels */
    int tag;     /* of the first layer's inputs */
    int count;
    gg_fc *fc;
    int *of_layer;     /* one a layer; -1 means none */
    bool *partitioned; /* one a layer: in some step so far */
} gg_fc_exchange;

/* For each layer that may be partitioned in some step, the run of lanes of its weight; count 0 for others, and for all
 * with one rank. size: of an element of a gradient that travels. */
void gg_fc_candidates(const gg_strategy_env *env, gg_partition_fc choice, size_t size, gg_slice *separate);
/* For the layers with such a run, which `partition` has cut separately. tag: the first of two for each layer. */
gg_status gg_fc_create(gg_strategy *owner, gg_partition_fc choice, size_t size, const gg_slice *separate,
                       const gg_partition *partition, int tag, gg_fc_exchange *out);
void gg_fc_destroy(gg_fc_exchange *x); /* collective */

/* Decides which layers are partitioned in this step, from numbers that all ranks have. Collective in a step that needs
 * more memory than all earlier ones. */
gg_status gg_fc_begin(gg_fc_exchange *x);
/* The layer's state if it is partitioned in the current step, else NULL. Layer -1 gives NULL. */
gg_fc *gg_fc_partitioned(const gg_fc_exchange *x, int layer);

gg_status gg_fc_input(gg_fc_exchange *x, gg_fc *fc, const gg_vectors *input, bool send);
gg_status gg_fc_error(gg_fc_exchange *x, gg_fc *fc, const gg_vectors *error, bool send);
/* Posts the receives and sends the packed vectors. */
gg_status gg_fc_send(gg_fc_exchange *x, gg_fc *fc, int what);
/* *all: all peers' inputs and errors have arrived. With `wait`, waits for them. The caller adds the layer's name to
 * failures here and below. */
gg_status gg_fc_arrive(gg_fc_exchange *x, gg_fc *fc, bool wait, bool *all);
/* Time of the last arrival, on the rank's clock. */
double gg_fc_arrived(const gg_fc *fc);
/* Computes `count` elements of a rank's weight gradient from element `first` of the weight on, in the own slice;
 * padding gets zeros. */
void gg_fc_gradient(const gg_fc_exchange *x, const gg_fc *fc, int rank, size_t first, size_t count, float *out);
/* Counts one more own chunk with computed gradients. After the last one the peers may overwrite their messages. */
gg_status gg_fc_used(gg_fc_exchange *x, gg_fc *fc);
/* Waits until the peers have read all messages of this rank. */
gg_status gg_fc_settle(gg_fc_exchange *x);

#endif
