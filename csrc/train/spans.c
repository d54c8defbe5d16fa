/* What the trace shows of a replica. */
#include "train/replica_private.h"

static void add_span(gg_replica *r, const char *name, double begin, double end, gg_trace_lane lane, int index) {
    if (r->trace == NULL) return;
    gg_trace_add(r->trace,
                 &(gg_trace_span){
                     .begin = begin, .end = end, .name = name, .step = *r->data.step, .lane = lane, .index = index});
}

void gg_replica_record(gg_replica *r, const char *name, double begin, int index) {
    add_span(r, name, begin, gg_transport_now(r->options.transport), GG_LANE_COMPUTE, index);
}

void gg_replica_spent_on_data(gg_replica *r, const char *name, double begin) {
    const double end = gg_transport_now(r->options.transport);
    r->counts.data_seconds += end - begin;
    add_span(r, name, begin, end, GG_LANE_DATA, -1);
}
