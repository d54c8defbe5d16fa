/* What the files of the stand-in share. */
#ifndef GG_STANDIN_INSIDE_H
#define GG_STANDIN_INSIDE_H

#include <string.h>

#include "standin.h"

#ifdef __cplusplus
extern "C" {
#endif

/* Begins every function of the table: counts it, and gives the planted error, or 0. */
int gg_standin_enter(const char *function);
/* Records a violation; gives `code`. */
int gg_standin_violation(int code, const char *format, ...) __attribute__((format(printf, 2, 3)));
long gg_standin_count_one(const char *what); /* how often it has been counted */
/* A number that the seed determines, in [0, below). */
uint64_t gg_standin_draw(uint64_t below);

/* Handles and descriptors that are alive. Kinds are texts such as "cudnnTensorDescriptor". */
void *gg_standin_create(const char *kind, size_t bytes); /* zeroed */
/* The object, or NULL and a violation: not alive, or of another kind. */
void *gg_standin_find(const char *function, const char *kind, const void *handle);
void gg_standin_destroy(void *object);
/* A function that makes a handle, and one that destroys it: with planted failures. `invalid`: for what is not alive. */
int gg_standin_make(const char *function, const char *kind, size_t bytes, void *out);
int gg_standin_unmake(const char *function, const char *kind, void *body, int invalid);

/* Memory that a piece of work uses. Zero-initialised: none. */
enum { GG_STANDIN_MAX_USES = 192 };
typedef struct gg_standin_uses {
    int count;
    struct gg_standin_block *block[GG_STANDIN_MAX_USES];
} gg_standin_uses;

/* Whether work may use the `bytes` at `at`: of a block of the device, or of pinned host memory, aligned. *where: the
 * address at which the work finds it. Else false and a violation, which names function and operand. */
bool gg_standin_operand(gg_standin_uses *uses, const char *function, const char *operand, const void *at, size_t bytes,
                        size_t alignment, void **where);

/* Gives work to a stream. `packet` is copied; `run` gets the copy, on the thread of the device. */
typedef void gg_standin_run(void *packet);
int gg_standin_submit(const char *function, gg_cuda_stream stream, gg_standin_run *run, const void *packet,
                      size_t bytes, const gg_standin_uses *uses);
bool gg_standin_stream_is_alive(const char *function, gg_cuda_stream stream);

/* Where a packet holds addresses: bits of the words that begin `head` bytes behind its begin. */
typedef struct gg_standin_words {
    size_t head;
    const uint64_t *pointers; /* words that are addresses or NULL */
    const uint64_t *structs;  /* words that may be addresses, or numbers */
} gg_standin_words;

/* A kernel is launched: `run` gets a copy of the packet, later, in which addresses are replaced by those at which work
 * finds the memory. cudaGetLastError gives errors. */
void gg_standin_launch(const char *kernel, gg_cuda_stream stream, void (*run)(const void *packet), const void *packet,
                       size_t bytes, const gg_standin_words *words);

/* A value rounded to the 10 bits that tensor cores read of a float32. */
static inline float gg_standin_tf32(float value) {
    uint32_t bits;
    memcpy(&bits, &value, sizeof bits);
    if ((bits & 0x7f800000u) != 0x7f800000u) bits = (bits + 0x0fffu + (bits >> 13 & 1u)) & ~0x1fffu;
    memcpy(&value, &bits, sizeof bits);
    return value;
}

/* cuDNN's objects that several files use. Each says a violation where it fails: the first gives false, the others
 * cuDNN's status. */
bool gg_standin_dnn_stream(const char *function, const void *handle, gg_cuda_stream *out);
int gg_standin_tensor_set(const char *function, void *tensor, int type, int dims, const int *size);
int gg_standin_tensor_get(const char *function, const void *tensor, int *type, int *dims, int size[4]);

/* Streams that are captured: graph.c, with what it needs of machine.c. Calls of both hold the lock, but for
 * gg_standin_call, which is a whole function of the table: `body` runs under the lock, and its code is the function's.
 */
typedef struct gg_standin_capture gg_standin_capture;
struct work;
/* What a stream is given while it is captured. */
void gg_standin_captured(gg_standin_capture *capture, struct work *made);
/* A call that is not allowed in a thread that captures: a violation, which makes the capture invalid; else 0. */
int gg_standin_forbid(const char *function);
int gg_standin_call(const char *function, int (*body)(const void *arguments), const void *arguments);
int gg_standin_place(const char *function, gg_cuda_stream stream); /* -1: none */
gg_standin_capture **gg_standin_capture_of(int place);
void gg_standin_append(struct work **first, struct work **last, struct work *made);
struct work *gg_standin_next(const struct work *of);
/* Gives captured work to a stream once more; and frees a list of it. */
int gg_standin_again(int place, const struct work *of);
void gg_standin_forget(struct work *first);

void gg_standin_fill_runtime(gg_cuda_api *api);
void gg_standin_fill_graph(gg_cuda_api *api);
void gg_standin_fill_cudnn(gg_cuda_api *api);
void gg_standin_fill_cudnn_rnn(gg_cuda_api *api);
void gg_standin_fill_cublas(gg_cuda_api *api);

#ifdef __cplusplus
}
#endif

#endif
