/* A replica's spans in the trace. */
#include "train/replica_private.h"

static void add_span(gg_replica *r, const char *name, double begin, double end, gg_trace_lane lane, int index) {
    if (r->trace == NULL) return;
    gg_trace_add(r->trace,
                 &(gg_trace_span){
                     .begin = begin, .end = end, .name = name, .step = *r->data.step, .lane = lane, .index = index});
}

static void add_gpu_span(gg_replica *r, const char *name, int64_t step, gg_trace_lane lane, double begin, double end) {
    gg_trace_add(r->trace,
                 &(gg_trace_span){.begin = begin, .end = end, .name = name, .step = step, .lane = lane, .index = -1});
}

void gg_replica_record_gpu(gg_replica *r, const gg_outstanding_step *step) {
    double copy[2], compute[3];
    if (step->compute[0] == 0) return;
    for (int i = 0; i < 2; ++i) copy[i] = gg_device_read_time(r->device, step->copy[i]);
    for (int i = 0; i < 3; ++i) compute[i] = gg_device_read_time(r->device, step->compute[i]);
    add_gpu_span(r, "batch", step->step, GG_LANE_GPU_COPY, copy[0], copy[1]);
    add_gpu_span(r, "forward and backward", step->step, GG_LANE_GPU_COMPUTE, compute[0], compute[1]);
    add_gpu_span(r, "end", step->step, GG_LANE_GPU_COMPUTE, compute[1], compute[2]);
}

void gg_replica_record(gg_replica *r, const char *name, double begin, int index) {
    add_span(r, name, begin, gg_transport_now(r->transport), GG_LANE_COMPUTE, index);
}

void gg_replica_spent_on_data(gg_replica *r, const char *name, double begin) {
    const double end = gg_transport_now(r->transport);
    r->counts.data_seconds += end - begin;
    add_span(r, name, begin, end, GG_LANE_DATA, -1);
}
