/* The plan: a graph made ready to run for one batch size.
 *
 * The plan chooses for each node the table that computes it and the layout, puts reorders where neighbours differ,
 * fuses an activation into the layer before it, accumulates gradients that meet (the first writer writes, the
 * next adds), and lets activations and gradients share memory by lifetime. Built once, run many times; running
 * allocates nothing. A plan belongs to one rank and is used by one thread at a time. */
#ifndef GG_NN_PLAN_H
#define GG_NN_PLAN_H

#include "nn/graph.h"

/* Called while a plan runs. A hook that fails stops the run with its status. */
typedef struct gg_plan_hooks {
    void *context;
    gg_status (*need)(void *context, int layer); /* before the layer's forward: its weights must be current */
    /* In place of need, in training, where the layer is a linear one whose forward pass can make rows of its weight
     * current as it reads them; NULL: there is none. It leaves rows->make NULL where the weight is current; all else is
     * current in any case. */
    gg_status (*need_rows)(void *context, int layer, gg_weight_rows *rows);
    gg_status (*ready)(void *context, int layer); /* in backward: its gradient is final, its weights are used no more */
    gg_status (*poll)(void *context);             /* after each node, forward and backward: let messages move */
    /* Linear layers on flat samples whose weight's gradient somebody else computes; NULL: there are none. `input` is
     * asked before each one's forward and `need`: it sets *skip_weight_gradient if that is so in this step. Then the
     * plan does not write that gradient, and passes the error of the layer's output before `ready`. Both read their
     * vectors before they return. */
    gg_status (*input)(void *context, int layer, const gg_vectors *input, bool *skip_weight_gradient);
    gg_status (*error)(void *context, int layer, const gg_vectors *error);
    /* Of each layer the bucket that the strategy has it in: it does something before the first layer of a bucket goes
     * forward, and behind the one that goes backward last. All other calls may come with these. NULL: one bucket. It is
     * as long-lived as the hooks. */
    const int *bucket;
    /* For tracing; NULL: off. Around each operation of a node, with its need or ready; what: "forward", "backward",
     * "reorder". */
    void (*enter)(void *context, int node);
    void (*leave)(void *context, int node, const char *what);
} gg_plan_hooks;

/* What is trained at a head of the graph. */
typedef struct gg_head_options {
    gg_loss_options loss;
    float weight; /* of its mean loss in the sum that is trained, at least 0 */
    int target;   /* which of the batch's targets it has; several heads may have the same */
} gg_head_options;

/* What a head's losses of a batch add up to. All 0 for a head that the plan has not. */
typedef gg_loss_result gg_loss_sums;

void gg_loss_sums_add(gg_loss_sums *to, const gg_loss_sums *more);
/* The mean loss of what was added up; NaN if nothing counts. */
double gg_loss_sums_mean(const gg_loss_sums *sums);

/* A batch. With a device that has memory of its own targets and weights lie there, and have been read when what the
 * device was given with the batch is done. */
typedef struct gg_plan_batch {
    const gg_gather_args *input;       /* with such a device: of each input of the graph, its rows in memory of the
                                          device and how they become numbers; else NULL: gg_plan_input's memory has it */
    const void *target[GG_MAX_FIELDS]; /* by the heads' numbers, as in gg_loss_args */
    const float *sample_weights;       /* one a sample; NULL: all 1 */
    /* The state that layers carry from batch to batch: for each node that has some, in their order,
     * `carried_rows` rows of gg_graph_node_carried numbers. Row r belongs to row r of the batches; at least as many as
     * the batch has. NULL: every sample begins at zero, and nothing is left. */
    float *carried; /* memory of the device */
    int64_t carried_rows;
    const bool *begins; /* one a sample: a sequence begins there, and its state at zero; NULL: none does */
} gg_plan_batch;

typedef struct gg_plan gg_plan;

/* Memory that plans have in common which never run at the same time: as much as the largest needs. Zero-initialised,
 * and released, by its owner, whose plans do not outlive it. One thread at a time. */
typedef struct gg_plan_memory {
    char *block;
    size_t bytes;
    gg_device *device;   /* whose memory it is */
    const gg_plan *user; /* whose values it holds; NULL: nobody's */
} gg_plan_memory;

void gg_plan_memory_release(gg_plan_memory *memory);

/* Which algorithms convolutions may have. */
typedef enum gg_conv_algorithm {
    GG_CONV_AUTO = 0, /* the fastest one by measurement, or by the cost model */
    GG_CONV_DIRECT,
    GG_CONV_WINOGRAD, /* F(4x4,3x3) or F(4x4,5x5) wherever a table has it */
    GG_CONV_ALGORITHMS
} gg_conv_algorithm;

/* What describes a convolution for which algorithms are chosen. All fields count; compared as memory. */
typedef struct gg_conv_key {
    int64_t batch, input[3], output, padding[2];
    int64_t bias, relu;
    int64_t kernel[2], stride[2], dilation[2], groups;
} gg_conv_key;

/* The algorithms of one convolution. */
typedef struct gg_conv_choice {
    gg_conv_key key;
    gg_algorithm algorithm[GG_PASS_COUNT];
} gg_conv_choice;

/* Which of two tables is asked first for the operations of plans of a batch size. */
typedef struct gg_table_choice {
    int64_t batch;
    bool fallback_first; /* the fallback before the device */
} gg_table_choice;

typedef struct gg_plan_options {
    int64_t batch;
    bool training; /* false: forward only, dropout off, without the heads for training only, less memory */
    gg_head_options head[GG_MAX_FIELDS]; /* of the graph's heads; for training, or evaluation with targets */
    gg_device *device;                   /* the table asked first */
    gg_device *fallback;                 /* for what it lacks; may be the same */
    bool choose; /* use for each operation the table known to be faster, not only that of `device` */
    gg_conv_algorithm conv_algorithm;
    const struct gg_cost_model *costs; /* nn/cost.h: chooses where nothing else is said; NULL: this CPU's */
    const gg_conv_choice *conv_choice; /* GG_CONV_AUTO: of so many convolutions; for all others `costs` choose. They
                                          outlive the plan's creation */
    int conv_choices;
    const gg_table_choice *table_choice; /* with `choose`: of so many batch sizes; for all others `costs` choose. They
                                            outlive the plan's creation */
    int table_choices;
    gg_dtype dtype; /* of activations and their gradients: GG_FLOAT32, or GG_BFLOAT16 in every operation that has
                       a form for it. Weights, their gradients and what losses read are float32 */
    uint64_t seed;  /* dropout */
    uint32_t rank;  /* dropout */
    bool graphs;    /* where the device offers it, steps are captured and replayed */
    gg_plan_memory *memory; /* NULL: the plan has its own */
} gg_plan_options;

/* The graph must be finished and outlive the plan, as must the devices. GG_ERROR_MEMORY names the batch, the bytes that
 * it needs, and how many the machine has left, before they are allocated. */
gg_status gg_plan_create(const gg_graph *graph, const gg_plan_options *options, gg_plan **out);
void gg_plan_destroy(gg_plan *plan);
/* Makes the memory that it shares with other plans the plan's, before its inputs are asked for: at creation, and
 * whenever another one has been activated since. What was in it is lost. GG_ERROR_MEMORY as for creation; allocates
 * where the memory is too small. */
gg_status gg_plan_activate(gg_plan *plan);

/* Where input i of the next batch is to be written, and how: float32, PLAIN or BATCH_LAST, or int32, PLAIN. NULL: the
 * plan does without this input, which leads to heads for training only, or its device has memory of its own. */
int gg_plan_inputs(const gg_plan *plan);
void *gg_plan_input(gg_plan *plan, int i);
gg_format gg_plan_input_format(const gg_plan *plan, int i);

/* Forward, losses and backward of the batch in the plan's inputs. `weights` is read, `gradients` written, both arenas
 * in the graph's order, where the device can work on them. The gradient is that of the sum of the heads' mean losses,
 * each times its weight. All of it is given to the device, and not waited for. sums: one a head, host memory that the
 * device shares, complete when the report (gg_device_report) is reached, whose check says whether the step went well;
 * both NULL: not wanted. */
gg_status gg_plan_train(gg_plan *plan, const float *weights, float *gradients, const gg_plan_batch *batch,
                        uint64_t step, const gg_plan_hooks *hooks, gg_loss_sums *sums, gg_mark *report);
/* Forward and losses. version: a number that the caller gives to these weights. What operations have prepared of them
 * is used again in a call with the number of the last call on this plan; 0: the weights may have changed. */
gg_status gg_plan_evaluate(gg_plan *plan, const float *weights, uint64_t version, const gg_plan_batch *batch,
                           gg_loss_sums *sums);
/* Forward of the batch's inputs, every sample with a state of zero; of each head whose output is not NULL, that of the
 * first n samples is written plain: n x its shape. */
gg_status gg_plan_predict(gg_plan *plan, const float *weights, uint64_t version, const gg_plan_batch *batch, int64_t n,
                          float *const *output);

/* The sum of the heads' mean losses, each times its weight, of `samples` samples: times that number. */
double gg_heads_total_loss(const gg_head_options *head, int heads, const gg_loss_sums *sums, int64_t samples);

size_t gg_plan_bytes(const gg_plan *plan);
/* What operations prepare of the weights. In a plan without training it shares no memory with anything else. */
size_t gg_plan_prepared_bytes(const gg_plan *plan);
/* What node i became: "onednn", "native", or "" (no operation of its own). */
const char *gg_plan_node_backend(const gg_plan *plan, int node);
/* The table and the algorithm of a pass of a node that is a convolution; false: it is none, or has no such pass. */
bool gg_plan_node_algorithm(const gg_plan *plan, int node, gg_pass pass, const char **backend, gg_algorithm *algorithm);

/* How the plan's last run was given to a device that captures. */
typedef struct gg_graphs_report {
    bool captures;        /* it does, and is wanted to */
    int pieces, replayed; /* of the run; those that were replayed */
    const char *why;      /* NULL; or why nothing is captured any more. Owned by the plan */
} gg_graphs_report;

gg_graphs_report gg_plan_graphs_report(const gg_plan *plan);

/* Profiling. One pass of an operation: */
typedef struct gg_pass_profile {
    int products; /* how often it has as many as forward: 2 where GG_PASS_DATA computes the parameters' gradients too;
                     0: it has nothing to compute, and is not run */
    const char *backend;
    gg_algorithm algorithm;
    double seconds;   /* with the preparation of weights, and with sums of gradients that meet in its input */
    double bytes;     /* that it reads and writes at least: activations, their gradients and parameters, each once */
    bool with_update; /* in the last step the gradient of the weight was left to whoever reads it: seconds are of what
                         is left, that of the bias */
} gg_pass_profile;

/* An operation of the plan, which computes one or several nodes, or reorders what one of them reads or gives. */
typedef struct gg_step_profile {
    const int *node; /* the plan's */
    int nodes;
    gg_op_kind kind;
    gg_format input, output;
    gg_pass_profile pass[GG_PASS_COUNT];
} gg_step_profile;

/* Times each pass of each operation (a few clock reads an operation); off by default. Seconds are summed since the last
 * call with on = true. */
void gg_plan_set_timing(gg_plan *plan, bool on);
int gg_plan_steps(const gg_plan *plan);
gg_step_profile gg_plan_step_profile(const gg_plan *plan, int step);
double gg_plan_loss_seconds(const gg_plan *plan);

#endif
