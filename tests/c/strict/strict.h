/* The strict device: the native table behind the rules of ops/device.h, for tests of all code that works with any
 * device.
 *
 * Its memory lies at two addresses. The host's has no access: reading or writing there ends the process. What the table
 * is told to do is a record in a queue, which a thread of the device's own does later, after delays that a seed varies,
 * at the address with access. The two queues keep their own orders, and only marks order one behind the other. Pointers
 * to anything but the device's memory and host memory that it shares are errors (gg_device_check), and so is what may
 * not be done while work is captured. */
#ifndef STRICT_STRICT_H
#define STRICT_STRICT_H

#include <pthread.h>

#include "ops/registry.h"

/* An LSTM of 64 layers that reads a table may have so many parameters. */
#define GG_STRICT_MAX_PARAMETERS (1 + 4 * 64)
#define GG_STRICT_MAX_SOURCES 64
#define GG_STRICT_MAX_WORKS 256

typedef struct gg_strict gg_strict;
typedef struct gg_strict_work gg_strict_work;

typedef struct gg_strict_op_call {
    gg_op *op; /* the native one */
    gg_status (*run)(gg_op *op, const gg_op_args *args, gg_pass pass);
    gg_pass pass;
    gg_op_args args;
    const float *parameter[GG_STRICT_MAX_PARAMETERS];
    float *gradient[GG_STRICT_MAX_PARAMETERS];
} gg_strict_op_call;

/* What kernels on arenas have. */
typedef struct gg_strict_arrays {
    size_t n;
    gg_dtype wire;
    float share;
    const void *in[3];
    void *out[2];
    int sources;
    const void *source[GG_STRICT_MAX_SOURCES];
    float scale[GG_STRICT_MAX_SOURCES];
} gg_strict_arrays;

typedef struct gg_strict_transpose {
    int64_t n, values;
    bool to_lanes;
    const float *in;
    float *out;
} gg_strict_transpose;

typedef struct gg_strict_columns {
    gg_vectors from;
    int64_t first, count;
    float *out;
} gg_strict_columns;

/* A record of what is to be done, with its pointers already those of the side that computes. */
struct gg_strict_work {
    gg_status (*run)(gg_strict *device, gg_strict_work *work); /* NULL: only waits for `behind` */
    gg_mark behind;                                            /* of the other queue */
    union {
        gg_strict_op_call op;
        gg_strict_arrays arrays;
        gg_loss_args loss;
        gg_update_args update;
        gg_pack_args pack;
        gg_elements_args elements;
        gg_gather_args gather;
        gg_weight_gradient_args weight_gradient;
        gg_strict_columns columns;
        gg_strict_transpose transpose;
    } as;
};

typedef struct gg_strict_queue {
    gg_strict_work work[GG_STRICT_MAX_WORKS];
    int64_t given, done;
} gg_strict_queue;

/* Records that are given again and again. */
struct gg_device_graph {
    gg_strict_work *work;
    int works, room;
    bool full; /* there was no memory for more, which is a failure of the device */
};

typedef struct gg_strict_block {
    char *host, *work; /* the addresses without and with access; of host memory that is shared the same */
    size_t bytes;
} gg_strict_block;

struct gg_strict {
    gg_device head;
    gg_devices cpu;
    gg_device *native;      /* the CPU's; computes, on the thread */
    gg_strict_block *block; /* of the device, */
    int blocks, block_room;
    gg_strict_block *shared; /* and of host memory */
    int shares, share_room;
    gg_strict_queue *queue;   /* GG_QUEUE_COUNT */
    gg_strict_work spare;     /* where a record goes that there is no memory for */
    gg_device_graph *capture; /* where records go at present; NULL: to the queues */
    uint64_t seed;
    int64_t drawn;
    bool invalid;              /* the record that is being made has a pointer to nowhere, */
    bool too_many;             /* or more sources than there is room for */
    double time[GG_MAX_TIMES]; /* when marks were reached: time i is at i % GG_MAX_TIMES */
    gg_mark time_mark[GG_MAX_TIMES];
    int64_t times;
    pthread_t thread;
    bool started, closing;
    int waiting;           /* calls of the host that wait: nothing is late meanwhile */
    pthread_mutex_t mutex; /* of the queues' counts and all that follows */
    pthread_cond_t given, done;
    gg_status failure; /* the first one, */
    gg_mark failed;    /* which the work with this number had; its number is 0 while there is none */
    char message[512];
};

extern const gg_memory_table gg_strict_memory;
extern const gg_backend gg_backend_strict;
extern const gg_device_kind gg_strict_kind; /* opens the kind "cpu", which must be there */

gg_status gg_strict_open(const gg_backend *table, const gg_device_options *options, gg_device **out);
void gg_strict_close(gg_device *device);

/* A free record of a queue, or of what is captured, to be filled and given. */
gg_strict_work *gg_strict_work_new(gg_strict *device, gg_queue queue);
/* A record with an invalid pointer does nothing, and is a failure. what: the name of the entry. */
void gg_strict_give(gg_strict *device, gg_queue queue, const char *what);
void gg_strict_wait_all(gg_strict *device, gg_queue queue);
/* Where the thread has what the host has here; NULL stays NULL. What is nowhere makes the record invalid. */
const void *gg_strict_in(gg_strict *device, const void *pointer);
void *gg_strict_out(gg_strict *device, void *pointer);

#endif
