/* What the trace shows of a replica. */
#include "train/replica_private.h"

void gg_replica_record(gg_replica *r, const char *name, double begin, int index) {
    if (r->trace == NULL) return;
    gg_trace_add(r->trace, &(gg_trace_span){.begin = begin,
                                            .end = gg_transport_now(r->options.transport),
                                            .name = name,
                                            .step = r->state.step,
                                            .lane = GG_LANE_COMPUTE,
                                            .index = index});
}

void gg_replica_spent_on_data(gg_replica *r, const char *name, double begin) {
    double end = gg_transport_now(r->options.transport);
    r->counts.data_seconds += end - begin;
    if (r->trace == NULL) return;
    gg_trace_add(
        r->trace,
        &(gg_trace_span){
            .begin = begin, .end = end, .name = name, .step = r->state.step, .lane = GG_LANE_DATA, .index = -1});
}
