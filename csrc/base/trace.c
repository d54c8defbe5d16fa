#include "base/trace.h"

#include "base/memory.h"

struct gg_trace {
    size_t capacity, count, next, lost; /* next: where the next span goes */
    gg_trace_span *span;
};

gg_status gg_trace_create(size_t capacity, gg_trace **out) {
    gg_status status = GG_OK;
    gg_trace *trace = NULL;
    void *block;
    *out = NULL;
    if (capacity == 0) GG_FAIL_CLEANUP(GG_ERROR_ARGUMENT, "trace capacity 0: must be at least 1 span");
    GG_TRY_CLEANUP(gg_calloc(1, sizeof *trace, "a trace", &block));
    trace = block;
    trace->capacity = capacity;
    GG_TRY_CLEANUP(gg_calloc(capacity, sizeof *trace->span, "the spans of a trace", &block));
    trace->span = block;
    *out = trace;
    trace = NULL;
cleanup:
    gg_trace_destroy(trace);
    return status;
}

void gg_trace_destroy(gg_trace *trace) {
    if (!trace) return;
    gg_free(trace->span);
    gg_free(trace);
}

void gg_trace_add(gg_trace *trace, const gg_trace_span *span) {
    if (!trace) return;
    trace->span[trace->next] = *span;
    if (++trace->next == trace->capacity) trace->next = 0;
    if (trace->count < trace->capacity) ++trace->count;
    else ++trace->lost;
}

size_t gg_trace_count(const gg_trace *trace) { return trace ? trace->count : 0; }
size_t gg_trace_lost(const gg_trace *trace) { return trace ? trace->lost : 0; }

const gg_trace_span *gg_trace_get(const gg_trace *trace, size_t i) {
    if (!trace || i >= trace->count) return NULL;
    /* Until the ring is full the oldest span is the first, afterwards the one that is overwritten next. */
    size_t oldest = trace->count < trace->capacity ? 0 : trace->next;
    size_t left = trace->capacity - oldest;
    return &trace->span[i < left ? oldest + i : i - left];
}
