/* Private to the room: the last step of each rank whose message came whole. A step's message consists of equally many
 * parts for each receiver, which may arrive in any order. Those of two steps may be in flight. */
#ifndef GG_EXCHANGE_PARTS_RECEIPTS_H
#define GG_EXCHANGE_PARTS_RECEIPTS_H

#include <stdint.h>

#include "base/status.h"

typedef struct gg_receipt {
    int64_t step;
    int parts;
} gg_receipt;

typedef struct gg_receipts {
    int64_t *last;     /* one a rank: the step; -1 means none */
    gg_receipt *open;  /* two a rank: arrived parts of its even and of its odd step */
    gg_receipt due[2]; /* parts of a message of an even and of an odd step */
    int64_t lag;       /* steps after which all of an update has been sent: a message has one of several slices */
} gg_receipts;

gg_status gg_receipts_create(int ranks, gg_receipts *out);
void gg_receipts_destroy(gg_receipts *receipts);

/* Begins a step in which each message has `parts` parts. */
void gg_receipts_begin(gg_receipts *receipts, int64_t step, int parts);
/* A part of a rank's message of a step has arrived. */
void gg_receipts_part(gg_receipts *receipts, int rank, int64_t step);
/* A rank's message of a step has arrived whole. */
void gg_receipts_whole(gg_receipts *receipts, int rank, int64_t step);

#endif
