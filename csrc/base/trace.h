/* The event trace: a ring of spans, one ring a rank, written by that rank's compute thread alone.
 *
 * A full ring overwrites its oldest spans. Recording allocates nothing and takes no lock; with a NULL
 * trace it is one branch. Names are string literals or live as long as the trace. */
#ifndef GG_BASE_TRACE_H
#define GG_BASE_TRACE_H

#include <stddef.h>
#include <stdint.h>

#include "base/status.h"

/* GPU lanes show the two queues of a device with times of its own. */
typedef enum gg_trace_lane {
    GG_LANE_COMPUTE = 0,
    GG_LANE_EXCHANGE,
    GG_LANE_DATA,
    GG_LANE_GPU_COMPUTE,
    GG_LANE_GPU_COPY,
    GG_LANE_COUNT
} gg_trace_lane;

typedef struct gg_trace_span {
    double begin, end; /* seconds on the recorder's clock */
    const char *name;
    int64_t step;
    int32_t lane;  /* a gg_trace_lane */
    int32_t index; /* compute: a node of the graph, or -1; exchange: the first layer of a run; data: -1 */
    /* Messages only (exchange lane; samples in the data lane), where bytes > 0: */
    int32_t last;   /* exchange: the last layer of the run */
    int32_t peer;   /* the sender; -1 means all ranks */
    double arrived; /* begin: send and receive were posted; arrived: all bytes have arrived; end: they are used */
    int64_t bytes;
} gg_trace_span;

typedef struct gg_trace gg_trace;

gg_status gg_trace_create(size_t capacity, gg_trace **out);
void gg_trace_destroy(gg_trace *trace);
void gg_trace_add(gg_trace *trace, const gg_trace_span *span);
/* Number of spans held, and span i counted from the oldest. */
size_t gg_trace_count(const gg_trace *trace);
const gg_trace_span *gg_trace_get(const gg_trace *trace, size_t i);
/* Spans that were overwritten. */
size_t gg_trace_lost(const gg_trace *trace);

#endif
