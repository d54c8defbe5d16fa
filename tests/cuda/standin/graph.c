/* CUDA graphs of the stand-in: streams that are captured, and captured work that is given again. */
#include <pthread.h>
#include <stdlib.h>

#include "inside.h"

enum {
    INVALID_VALUE = 1,
    INVALID_HANDLE = 400,
    UNMATCHED = 903,
    WRONG_THREAD = 908,
};

struct gg_standin_capture {
    pthread_t thread;
    int place;
    bool invalid;
    struct work *first, *last;
};

/* What is captured; several handles may have it. */
typedef struct captured_work {
    int users;
    struct work *first;
} captured_work;

typedef struct graph_handle {
    captured_work *work;
} graph_handle;

static _Thread_local gg_standin_capture *own; /* of this thread; one at a time */

void gg_standin_captured(gg_standin_capture *capture, struct work *made) {
    gg_standin_append(&capture->first, &capture->last, made);
}

int gg_standin_forbid(const char *function) {
    if (own == NULL) return 0;
    own->invalid = true;
    return gg_standin_violation(GG_CUDA_ERROR_CAPTURE_UNSUPPORTED, "%s: not allowed while this thread captures",
                                function);
}

typedef struct arguments {
    gg_cuda_stream stream;
    int mode;
    unsigned long long flags;
    gg_cuda_graph *graph_out, graph;
    gg_cuda_graph_exec *exec_out, exec;
} arguments;

static int begin_capture(const void *given) {
    const arguments *a = given;
    const int place = gg_standin_place("cudaStreamBeginCapture", a->stream);
    if (place < 0) return INVALID_HANDLE;
    if (a->mode != GG_CUDA_CAPTURE_THREAD_LOCAL)
        return gg_standin_violation(
            INVALID_VALUE, "cudaStreamBeginCapture: mode %d; other threads of the process allocate meanwhile", a->mode);
    if (own != NULL || *gg_standin_capture_of(place) != NULL)
        return gg_standin_violation(INVALID_VALUE,
                                    "cudaStreamBeginCapture: the stream, or this thread, captures already");
    own = calloc(1, sizeof *own);
    if (own == NULL) abort();
    own->thread = pthread_self();
    own->place = place;
    *gg_standin_capture_of(place) = own;
    return 0;
}

static int end_capture(const void *given) {
    const arguments *a = given;
    const int place = gg_standin_place("cudaStreamEndCapture", a->stream);
    *a->graph_out = NULL;
    if (place < 0) return INVALID_HANDLE;
    gg_standin_capture *capture = *gg_standin_capture_of(place);
    if (capture == NULL) return gg_standin_violation(UNMATCHED, "cudaStreamEndCapture: the stream is not captured");
    if (!pthread_equal(capture->thread, pthread_self()))
        return gg_standin_violation(WRONG_THREAD, "cudaStreamEndCapture: another thread has begun this capture");
    *gg_standin_capture_of(place) = own = NULL;
    if (capture->invalid) {
        gg_standin_forget(capture->first);
        free(capture);
        return GG_CUDA_ERROR_CAPTURE_INVALIDATED;
    }
    captured_work *work = calloc(1, sizeof *work);
    if (work == NULL) abort();
    *work = (captured_work){.users = 1, .first = capture->first};
    free(capture);
    graph_handle *made = gg_standin_create("cudaGraph", sizeof *made);
    made->work = work;
    *a->graph_out = (gg_cuda_graph)(void *)made;
    return 0;
}

static int instantiate(const void *given) {
    const arguments *a = given;
    *a->exec_out = NULL;
    const graph_handle *graph = gg_standin_find("cudaGraphInstantiate", "cudaGraph", a->graph);
    if (graph == NULL) return INVALID_HANDLE;
    if (a->flags != 0) return gg_standin_violation(INVALID_VALUE, "cudaGraphInstantiate: flags %llu", a->flags);
    graph_handle *made = gg_standin_create("cudaGraphExec", sizeof *made);
    made->work = graph->work;
    ++made->work->users;
    *a->exec_out = (gg_cuda_graph_exec)(void *)made;
    return 0;
}

static int launch(const void *given) {
    const arguments *a = given;
    const graph_handle *exec = gg_standin_find("cudaGraphLaunch", "cudaGraphExec", a->exec);
    const int place = gg_standin_place("cudaGraphLaunch", a->stream);
    if (exec == NULL || place < 0) return INVALID_HANDLE;
    if (*gg_standin_capture_of(place) != NULL) return gg_standin_forbid("cudaGraphLaunch");
    for (const struct work *it = exec->work->first; it != NULL; it = gg_standin_next(it)) {
        const int code = gg_standin_again(place, it);
        if (code != 0) return code;
    }
    return 0;
}

static int destroy(const char *function, const char *kind, void *handle) {
    graph_handle *graph = gg_standin_find(function, kind, handle);
    if (graph == NULL) return INVALID_HANDLE;
    if (--graph->work->users == 0) {
        gg_standin_forget(graph->work->first);
        free(graph->work);
    }
    gg_standin_destroy(graph);
    return 0;
}

static int destroy_exec(const void *given) {
    const arguments *a = given;
    return destroy("cudaGraphExecDestroy", "cudaGraphExec", a->exec);
}

static int destroy_graph(const void *given) {
    const arguments *a = given;
    return destroy("cudaGraphDestroy", "cudaGraph", a->graph);
}

static int cudaStreamBeginCapture(gg_cuda_stream stream, int mode) {
    return gg_standin_call("cudaStreamBeginCapture", begin_capture, &(arguments){.stream = stream, .mode = mode});
}

static int drop_capture(const void *unused) {
    (void)unused;
    *gg_standin_capture_of(own->place) = NULL;
    gg_standin_forget(own->first);
    free(own);
    own = NULL;
    return 0;
}

/* A capture ends whatever the call gives. */
static int cudaStreamEndCapture(gg_cuda_stream stream, gg_cuda_graph *graph) {
    const arguments given = {.stream = stream, .graph_out = graph};
    const int code = gg_standin_call("cudaStreamEndCapture", end_capture, &given);
    if (code != 0 && own != NULL) (void)gg_standin_call("a capture that has failed", drop_capture, NULL);
    return code;
}

static int cudaGraphInstantiate(gg_cuda_graph_exec *exec, gg_cuda_graph graph, unsigned long long flags) {
    return gg_standin_call("cudaGraphInstantiate", instantiate,
                           &(arguments){.exec_out = exec, .graph = graph, .flags = flags});
}

static int cudaGraphLaunch(gg_cuda_graph_exec exec, gg_cuda_stream stream) {
    return gg_standin_call("cudaGraphLaunch", launch, &(arguments){.exec = exec, .stream = stream});
}

static int cudaGraphExecDestroy(gg_cuda_graph_exec exec) {
    return gg_standin_call("cudaGraphExecDestroy", destroy_exec, &(arguments){.exec = exec});
}

static int cudaGraphDestroy(gg_cuda_graph graph) {
    return gg_standin_call("cudaGraphDestroy", destroy_graph, &(arguments){.graph = graph});
}

void gg_standin_fill_graph(gg_cuda_api *api) {
#define FILL(result, name, arguments) api->name = name;
    GG_CUDA_GRAPH_FUNCTIONS(FILL)
}
