/* The plan: a graph compiled for one batch size.
 *
 * For each node the plan chooses a table and a layout. The plan puts reorders between neighbours that differ, fuses
 * nodes, adds gradients that meet (the first writer writes, the next adds), and lets activations and gradients share
 * memory by lifetime. Built once, run many times; running allocates nothing. A plan belongs to one rank and is used by
 * one thread at a time. */
#ifndef GG_NN_PLAN_H
#define GG_NN_PLAN_H

#include "nn/graph.h"

/* Called while a plan runs. A hook that fails stops the run with its status. */
typedef struct gg_plan_hooks {
    void *context;
    gg_status (*need)(void *context, int layer);  /* before the layer's forward: its weights must be current */
    gg_status (*ready)(void *context, int layer); /* in backward: its gradient is final, its weights are used no more */
    gg_status (*poll)(void *context);             /* after each node, forward and backward: let messages move */
    /* For linear layers on flat samples whose weight gradient may be computed elsewhere; NULL means none. `input` is
     * called before the layer's `need` and forward, and may set *skip_weight_gradient for this step. The plan then does
     * not write that gradient, and passes the error of the layer's output to `error` before `ready`. Both read their
     * vectors before they return. */
    gg_status (*input)(void *context, int layer, const gg_vectors *input, bool *skip_weight_gradient);
    gg_status (*error)(void *context, int layer, const gg_vectors *error);
    /* The strategy's bucket of each layer. The strategy acts before a bucket's first forward and after its last
     * backward; all other calls may be delayed to these. NULL means one bucket. Lives as long as the hooks. */
    const int *bucket;
    /* For tracing; NULL means off. Called around each operation of a node with its need or ready; what: "forward",
     * "backward", "reorder". */
    void (*enter)(void *context, int node);
    void (*leave)(void *context, int node, const char *what);
} gg_plan_hooks;

/* Training options of a head. */
typedef struct gg_head_options {
    gg_loss_options loss;
    float weight; /* of its mean loss in the trained sum, at least 0 */
    int target;   /* index of its target in the batch; heads may share one */
} gg_head_options;

/* Sums of a head's losses over a batch. All 0 for a head that the plan omits. */
typedef gg_loss_result gg_loss_sums;

void gg_loss_sums_add(gg_loss_sums *to, const gg_loss_sums *more);
/* The mean loss; NaN if nothing counts. */
double gg_loss_sums_mean(const gg_loss_sums *sums);

/* A batch. On a device with memory of its own, targets and weights lie there; they have been read when the batch's work
 * is done. */
typedef struct gg_plan_batch {
    const gg_gather_args *input; /* on such a device: one an input of the graph, its rows in device memory and their
                                    conversion. Otherwise NULL: gg_plan_input's memory holds the input */
    const void *target[GG_MAX_FIELDS]; /* indexed by gg_head_options.target, as in gg_loss_args */
    const float *sample_weights;       /* one a sample; NULL means all 1 */
    /* State that layers carry from batch to batch: for each node with state, in order, `carried_rows` rows of
     * gg_graph_node_carried numbers. Row r belongs to row r of the batches; there are at least as many as in the batch.
     * NULL means: every sample starts at zero, nothing is kept. */
    float *carried; /* memory of the device */
    int64_t carried_rows;
    const bool *begins; /* one a sample: a sequence begins, with zero state; NULL means none */
} gg_plan_batch;

typedef struct gg_plan gg_plan;

/* Memory shared by plans that never run at once, sized for the largest. Its owner zeroes and releases it; the plans do
 * not outlive it. One thread at a time. */
typedef struct gg_plan_memory {
    char *block;
    size_t bytes;
    gg_device *device;   /* owner of the memory */
    const gg_plan *user; /* the plan whose values it holds; NULL means none */
} gg_plan_memory;

void gg_plan_memory_release(gg_plan_memory *memory);

/* Algorithms that convolutions may use. */
typedef enum gg_conv_algorithm {
    GG_CONV_AUTO = 0, /* the fastest by measurement or by the cost model */
    GG_CONV_DIRECT,
    GG_CONV_WINOGRAD, /* F(4x4,3x3) or F(4x4,5x5) if a table has it */
    GG_CONV_ALGORITHMS
} gg_conv_algorithm;

/* Description of a convolution, as the key of a choice. All fields count; compared as memory. */
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

/* The table that plans of a batch size ask first for operations. */
typedef struct gg_table_choice {
    int64_t batch;
    bool fallback_first; /* the fallback before the device */
} gg_table_choice;

typedef struct gg_plan_options {
    int64_t batch;
    bool training;                       /* false: forward only, no dropout, no training_only heads, less memory */
    gg_head_options head[GG_MAX_FIELDS]; /* one a head of the graph; for training, or evaluation with targets */
    gg_device *device;                   /* the table asked first */
    gg_device *fallback;                 /* for operations that `device` lacks; may be equal */
    bool choose;                         /* may ask `fallback` first if that is faster */
    gg_conv_algorithm conv_algorithm;
    const struct gg_cost_model *costs; /* nn/cost.h: chooses if no other option does; NULL means this CPU's model */
    const gg_conv_choice *conv_choice; /* GG_CONV_AUTO: of `conv_choices` convolutions; `costs` choose for all others.
                                          Outlives the plan's creation */
    int conv_choices;
    const gg_table_choice *table_choice; /* with `choose`: of `table_choices` batch sizes; `costs` choose for all
                                            others. Outlives the plan's creation */
    int table_choices;
    gg_dtype dtype; /* of activations and their gradients: GG_FLOAT32, or GG_BFLOAT16 in every operation with a bfloat16
                       form. Weights, their gradients and inputs of losses are float32 */
    uint64_t seed;  /* dropout */
    uint32_t rank;  /* dropout */
    bool graphs;    /* capture and replay steps if the device can */
    gg_plan_memory *memory; /* NULL means memory of its own */
} gg_plan_options;

/* The graph must be finished and outlive the plan, as must the devices. GG_ERROR_MEMORY, before anything is allocated,
 * names the batch, the needed bytes and the bytes that the machine has left. */
gg_status gg_plan_create(const gg_graph *graph, const gg_plan_options *options, gg_plan **out);
void gg_plan_destroy(gg_plan *plan);
/* Claims the memory that the plan shares with others, before its inputs are written: after creation, and after another
 * plan was activated. Former contents are lost. GG_ERROR_MEMORY as for creation; allocates if the memory is too small.
 */
gg_status gg_plan_activate(gg_plan *plan);

/* Memory and format for input i of the next batch: float32 PLAIN or BATCH_LAST, or int32 PLAIN. NULL means that the
 * plan omits this input, which leads to training_only heads alone, or that its device has memory of its own. */
int gg_plan_inputs(const gg_plan *plan);
void *gg_plan_input(gg_plan *plan, int i);
gg_format gg_plan_input_format(const gg_plan *plan, int i);

/* Forward, losses and backward of the batch in the plan's inputs. Reads `weights` and writes `gradients`: arenas in the
 * graph's order, in device memory. The gradient is that of the sum of the heads' mean losses times their weights. Gives
 * all work to the device without waiting. sums: one a head, shared host memory, complete when the report
 * (gg_device_report) is reached, whose check gives the step's status. sums and report may be NULL. */
gg_status gg_plan_train(gg_plan *plan, const float *weights, float *gradients, const gg_plan_batch *batch,
                        uint64_t step, const gg_plan_hooks *hooks, gg_loss_sums *sums, gg_mark *report);
/* Forward and losses. version: the caller's number for these weights. If it equals the plan's last call's, prepared
 * weights are reused; 0 means that weights may have changed. */
gg_status gg_plan_evaluate(gg_plan *plan, const float *weights, uint64_t version, const gg_plan_batch *batch,
                           gg_loss_sums *sums);
/* Forward of the batch's inputs. Writes each head with output[i] not NULL for the first n samples, plain: n x its
 * shape. */
gg_status gg_plan_predict(gg_plan *plan, const float *weights, uint64_t version, const gg_plan_batch *batch, int64_t n,
                          float *const *output);

/* The sum of the heads' mean losses times their weights, times `samples`. */
double gg_heads_total_loss(const gg_head_options *head, int heads, const gg_loss_sums *sums, int64_t samples);

size_t gg_plan_bytes(const gg_plan *plan);
/* Bytes of prepared weights. In an evaluation plan they share no memory. */
size_t gg_plan_prepared_bytes(const gg_plan *plan);
/* The table of node i: "onednn", "native", or "" (no operation of its own). */
const char *gg_plan_node_backend(const gg_plan *plan, int node);
/* Table and algorithm of a pass of a convolution; false means no convolution, or no such pass. */
bool gg_plan_node_algorithm(const gg_plan *plan, int node, gg_pass pass, const char **backend, gg_algorithm *algorithm);

/* Capturing in the plan's last run. */
typedef struct gg_graphs_report {
    bool captures;        /* the device captures, and the options ask for it */
    int pieces, replayed; /* of the run; replayed ones */
    const char *why;      /* NULL, or the reason why capturing stopped. Owned by the plan */
} gg_graphs_report;

gg_graphs_report gg_plan_graphs_report(const gg_plan *plan);

/* Profiling. One pass of an operation: */
typedef struct gg_pass_profile {
    int products; /* multiply-adds as a multiple of forward's: 2 if GG_PASS_DATA also computes the parameters'
                     gradients; 0 means that the pass is not run */
    const char *backend;
    gg_algorithm algorithm;
    double seconds;   /* with preparation of weights, and sums of gradients that meet in its input */
    double bytes;     /* min bytes read and written: activations, their gradients and parameters, each once */
    bool with_update; /* the last step left the weight's gradient to its reader: seconds cover the bias alone */
} gg_pass_profile;

/* An operation of the plan: computes one or several nodes, or reorders an input or output. */
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
