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
    gg_status (*need)(void *context, int layer);  /* before the layer's forward: its weights must be current */
    gg_status (*ready)(void *context, int layer); /* in backward: its gradient is final, its weights are used no more */
    gg_status (*poll)(void *context);             /* after each node, forward and backward: let messages move */
    /* Linear layers whose weight's gradient somebody else computes; NULL: there are none. `input` is asked before each
     * one's forward and `need`: *skip_weight_gradient tells that it is so in this step. Then the plan leaves that
     * gradient unwritten and gives the error of the layer's output before `ready`. What they are given is read before
     * they return. */
    gg_status (*input)(void *context, int layer, const gg_vectors *input, bool *skip_weight_gradient);
    gg_status (*error)(void *context, int layer, const gg_vectors *error);
    /* For tracing; NULL: off. Around each operation of a node, with its need or ready; what: "forward", "backward",
     * "reorder". */
    void (*enter)(void *context, int node);
    void (*leave)(void *context, int node, const char *what);
} gg_plan_hooks;

typedef struct gg_plan_options {
    int64_t batch;
    bool training;       /* false: forward only, dropout off, less memory */
    gg_loss_kind loss;   /* training, or evaluation with targets */
    gg_device *device;   /* the table asked first */
    gg_device *fallback; /* for what it lacks; may be the same */
    bool choose;         /* take each operation from the table known to be faster, not only from `device` */
    uint64_t seed;       /* dropout */
    uint32_t rank;       /* dropout */
} gg_plan_options;

typedef struct gg_plan gg_plan;

/* The graph must be finished and outlive the plan, as must the devices. */
gg_status gg_plan_create(const gg_graph *graph, const gg_plan_options *options, gg_plan **out);
void gg_plan_destroy(gg_plan *plan);

/* Where input i of the next batch is to be written, and how: float32, PLAIN or BATCH_LAST, or int32, PLAIN. */
int gg_plan_inputs(const gg_plan *plan);
void *gg_plan_input(gg_plan *plan, int i);
gg_format gg_plan_input_format(const gg_plan *plan, int i);

/* Forward, loss and backward of the batch in the plan's inputs. `weights` is read, `gradients` written, both arenas in
 * the graph's order. loss_sum is over samples. targets and sample_weights as in gg_loss_args. NULL hooks: none. */
gg_status gg_plan_train(gg_plan *plan, const float *weights, float *gradients, const void *targets,
                        const float *sample_weights, uint64_t step, const gg_plan_hooks *hooks, double *loss_sum,
                        int64_t *correct);
/* Forward and loss. */
gg_status gg_plan_evaluate(gg_plan *plan, const float *weights, const void *targets, const float *sample_weights,
                           double *loss_sum, int64_t *correct);
/* Forward; the output of the first n samples is written plain: n x output shape. */
gg_status gg_plan_predict(gg_plan *plan, const float *weights, int64_t n, float *output);

size_t gg_plan_bytes(const gg_plan *plan);
/* What node i became: "onednn", "native", or "" (no operation of its own), and its seconds in the last run if timing is
 * on. */
const char *gg_plan_node_backend(const gg_plan *plan, int node);
/* Times each node (a few clock reads a step); off by default. Seconds are summed since the last call with on = true. */
void gg_plan_set_timing(gg_plan *plan, bool on);
void gg_plan_node_seconds(const gg_plan *plan, int node, double *forward, double *backward);

#endif
