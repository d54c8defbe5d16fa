/* The plan's insides, shared by its own files only.
 *
 * A value is an activation in one format, with its gradient beside it. Views and inactive dropout make no value of
 * their own: their node shows the value of their input. A value can be a slice of another one: the inputs of a join
 * that is a mere view lie in the joined value (`parent`).
 *
 * A step is one operation. It computes a group of nodes, mostly of one; the nodes of a group all show its last one's
 * value. With S steps, time runs 0..S-1 forward, S is the losses, and step s goes backward at
 * 2S - s; lifetimes are inclusive intervals of that time. */
#ifndef GG_NN_PLAN_INTERNAL_H
#define GG_NN_PLAN_INTERNAL_H

#include "nn/layer.h"
#include "nn/plan.h"

#define GG_NONE (-1)

#define GG_MAX_GROUP 4

/* Nodes that one operation computes, in the order of the graph: each one's output is read by the next alone. */
typedef struct gg_group {
    int nodes; /* 0: none */
    int node[GG_MAX_GROUP];
    int main;                         /* whose description the operation's is made of, and which it is named by */
    const struct gg_pattern *pattern; /* NULL: a node that stands alone */
} gg_group;

/* A place in a buffer, and after the memory is laid out in the plan's block. */
typedef struct gg_place {
    int buffer; /* GG_NONE: nowhere */
    size_t offset;
} gg_place;

typedef struct gg_value {
    gg_shape shape; /* of the node it was made for; of a copy in another format, of the node that was read */
    gg_format format;
    size_t bytes;
    bool undecided; /* a float32 input whose format its first reader will decide */
    bool pinned;    /* an input: never written by the plan, shares no memory */
    bool needs_gradient;
    int node;
    int origin;   /* the value that this one is a copy of in another format; itself: none */
    int producer; /* step; GG_NONE: inputs and views */
    int parent;   /* value that this one is a slice of; GG_NONE: none */
    size_t parent_offset;
    int children;
    int first, last;         /* lifetime of the activation; of a root: of its slices too */
    int buffer, grad_buffer; /* of a root */
    bool written;            /* of a leaf, while gradients are planned: its gradient has had its first writer */
} gg_value;

typedef struct gg_buffer {
    size_t bytes, offset;
    int first, last;
} gg_buffer;

/* Gradients that meet: target += term, or target = term where nothing was written before. */
typedef struct gg_sum {
    gg_place target, term;
    void *target_at;
    const void *term_at;
    gg_dtype dtype; /* float32, or bfloat16, added in float32 and rounded */
    size_t count;
    bool add;
} gg_sum;

typedef struct gg_step {
    gg_op *op;                  /* of the forward pass */
    gg_op *pass[GG_PASS_COUNT]; /* that is run for each pass: mostly `op` */
    gg_group group;
    int node;                /* that it is timed and named as */
    int layer[GG_MAX_GROUP]; /* of its nodes, those that have parameters */
    int layers;
    int inputs;
    int input[GG_MAX_INPUTS];
    int output;
    bool backward;
    int first_slot, parameters;      /* of the plan's slots: its layers' parameters, in their order */
    bool skip_weight_gradient;       /* in the current step whoever reads its weight's gradient computes it */
    int prepared[GG_PASS_COUNT];     /* buffers, of forward and data; the same: prepared for both at once */
    int saved;                       /* buffer */
    int64_t carried, carried_before; /* numbers of state that a sample carries here, and in nodes before this one */
    gg_place grad_input[GG_MAX_INPUTS];
    int first_sum, sums;
    gg_weight_rows rows;                    /* of the current step's forward pass */
    gg_op_args forward_args, backward_args; /* all pointers into the plan's block are filled once */
    void *prepared_at[GG_PASS_COUNT];
    double seconds[GG_PASS_COUNT]; /* while the plan is timed */
} gg_step;

/* A head of the graph. */
typedef struct gg_plan_head {
    bool used; /* false: for training only, and this plan is not */
    int value;
    int64_t positions, features; /* as in gg_loss_args */
    gg_place gradient;           /* where its loss writes it */
    int first_sum, sums;         /* that join it to others of the same value */
    const float *output_at;
    float *gradient_at;
} gg_plan_head;

typedef struct gg_node_state {
    int value;
    bool live;           /* leads to a head that is used */
    int consumers;       /* live nodes and heads */
    bool needs_gradient; /* parameters here or upstream */
    int first;           /* of the group that it is in; GG_NONE: in none yet */
    gg_group group;      /* that begins here */
    const char *backend;
} gg_node_state;

#define GG_STAGED_STEPS 4

/* What goes between the host and a device with memory of its own (plan_stage.c). Offsets are in bytes. */
typedef struct gg_plan_stage {
    char *device; /* at fixed places what losses and operations read and write; NULL: the device has no memory of its
                     own */
    char *host;   /* that the device shares: results, and the numbers of GG_STAGED_STEPS steps */
    size_t bytes;
    size_t target[GG_MAX_FIELDS], class_weights[GG_MAX_FIELDS]; /* of heads */
    size_t sample_weights, step, results;
    gg_mark read[GG_STAGED_STEPS]; /* the number has been read */
    int next;                      /* number to be written */
} gg_plan_stage;

/* Of a batch, where losses read them: by heads. */
typedef struct gg_plan_targets {
    const void *target[GG_MAX_FIELDS];
    const float *class_weights[GG_MAX_FIELDS];
    const float *sample_weights;
} gg_plan_targets;

/* Runs in pieces that the device captures and replays (plan_graphs.c). */

typedef struct gg_piece_cut {
    int begin;  /* time */
    bool eager; /* what is read and given in it is asked for by hooks: it is never captured */
} gg_piece_cut;

typedef struct gg_piece {
    gg_piece_cut cut;
    gg_device_graph *graph; /* NULL: not captured yet */
} gg_piece;

/* All that captured work depends on, beside where the run is cut. Compared as memory. The plan's own memory is another
 * one only where a block has been freed; what trains has gradients. */
typedef struct gg_run_key {
    const void *weights, *gradients, *carried;
    int64_t carried_rows, freed;
    int end;
    bool fresh, weighted;
} gg_run_key;

typedef struct gg_run_variant {
    gg_run_key key;
    gg_piece *piece;
    int pieces;
    int64_t runs, used; /* runs 0: none */
} gg_run_variant;

#define GG_RUN_VARIANTS 4

typedef struct gg_plan_graphs {
    gg_run_variant *variant; /* GG_RUN_VARIANTS; NULL: the device does not capture, or nobody wants it */
    gg_piece *piece;         /* of all variants */
    gg_piece_cut *cut;       /* of the current run */
    int *first_step;         /* likewise: of each bucket */
    int layers;
    int64_t uses;
    int replayed; /* pieces of the last run */
    bool failed;  /* something could not be captured: */
    char why[256];
} gg_plan_graphs;

struct gg_plan {
    const gg_graph *graph;
    gg_plan_options options;
    gg_device *order[2]; /* the tables that are asked for an operation, best first: so many */
    int devices;
    gg_node_state *node;
    gg_value *value;
    int values, value_capacity;
    gg_step *step;
    int steps, step_capacity;
    gg_buffer *buffer;
    int buffers, buffer_capacity;
    gg_sum *sum;
    int sums, sum_capacity;
    int *slot; /* the parameters of the graph that steps have, step by step */
    int slots;
    const float **parameter_at; /* of each slot, in the arenas of the current run */
    float **gradient_at;
    gg_plan_head head[GG_MAX_FIELDS];
    int scratch_buffer, plain_buffer; /* plain_buffer: a plain copy of a head's output, for predict */
    size_t scratch_bytes;
    char *block; /* its own, or that of options.memory */
    size_t block_bytes;
    void *input_at[GG_MAX_FIELDS]; /* of each input of the graph */
    float *plain_at;
    gg_plan_stage stage;
    gg_device *loss_device, *sum_device, *transpose_device;
    uint64_t step_number;      /* of the current run, where the device's memory is the host's */
    uint64_t prepared_version; /* of the weights that lie prepared, as in gg_plan_evaluate; 0: none do */
    gg_plan_graphs graphs;
    bool timing;
    double loss_seconds; /* while it is timed */
};

/* Makes room for one more of `size` bytes behind `count`: gives the array's new place, or NULL with an error set. */
gg_status gg_plan_reserve(void *array, int *capacity, int count, size_t size, void **out);

/* A plan without memory: it cannot run. */
gg_status gg_plan_make(const gg_graph *graph, const gg_plan_options *options, gg_plan **out);
/* The steps: tables, layouts, reorders, views. */
gg_status gg_plan_build(gg_plan *plan);
/* Seconds of its operations, forward and, in training, backward, that the cost model expects. */
double gg_plan_predicted(const gg_plan *plan);

/* The longest group of at most `most` nodes that begins at a node, of nodes that are in no other group. */
gg_group gg_group_at(const gg_plan *plan, int first, int most);
/* Makes it the group of its nodes; those of the longer one that began there and are left form groups anew. */
void gg_group_set(gg_plan *plan, const gg_group *group);
/* Puts each live node into a group. */
void gg_group_all(gg_plan *plan);
/* The nodes whose outputs it reads, in the order of its operation's inputs: returns how many. */
int gg_group_inputs(const gg_plan *plan, const gg_group *group, int source[GG_MAX_INPUTS]);
/* Adds to the description of its main node what the others do. */
void gg_group_describe(const gg_plan *plan, const gg_group *group, gg_op_desc *desc);
static inline int gg_group_last(const gg_group *group) { return group->node[group->nodes - 1]; }

/* Lifetimes, in-place operations, meeting gradients, sharing; gets the block and fills every step's pointers. */
gg_status gg_plan_layout(gg_plan *plan);
/* After the layout: the host memory of a device with memory of its own. */
gg_status gg_plan_stage_create(gg_plan *plan);
void gg_plan_stage_destroy(gg_plan *plan);
/* Gives the device a batch, of which only its inputs may be there, and the number of the training step. Returns where
 * operations find that, in memory of the device; and where losses read the others. */
const uint64_t *gg_plan_stage_give(gg_plan *plan, const gg_plan_batch *batch, uint64_t step);
gg_plan_targets gg_plan_stage_targets(const gg_plan *plan, const gg_plan_batch *batch);
/* Where losses write their results, one a head, of which those of heads that the plan has not are 0; and how they come
 * from there to `sums`, host memory that the device shares. */
gg_loss_result *gg_plan_stage_results(gg_plan *plan, gg_loss_sums *sums);
void gg_plan_stage_fetch(gg_plan *plan, gg_loss_sums *sums);
/* The same for any memory of the host, and waits. */
gg_status gg_plan_stage_finish(gg_plan *plan, gg_loss_sums *sums);
/* Whether the losses can read the outputs of the heads that are used. */
gg_status gg_plan_check_losses(const gg_plan *plan);

/* The value whose buffer this one lies in, and where in it. */
int gg_plan_root(const gg_plan *plan, int value, size_t *offset);

/* Whether the operation of this pass is another one than those of the passes before. */
static inline bool gg_step_own_op(const gg_step *step, int pass) {
    for (int i = 0; i < pass; i++)
        if (step->pass[i] == step->pass[pass]) return false;
    return true;
}

static inline int gg_plan_backward_time(const gg_plan *plan, int step) { return 2 * plan->steps - step; }

#endif
