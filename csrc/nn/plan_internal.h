/* The plan's insides, shared by its own files only.
 *
 * A value is an activation in one format, with its gradient. Views and inactive dropout make no value: their node shows
 * their input's value. A value can be a slice of another: inputs of a join that is a mere view lie in the joined value
 * (`parent`).
 *
 * A step is one operation for a group of nodes, mostly one. All nodes of a group show its last node's value. With S
 * steps, times 0..S-1 are forward, S is the losses, and step s goes backward at 2S - s. Lifetimes are inclusive
 * intervals of times. */
#ifndef GG_NN_PLAN_INTERNAL_H
#define GG_NN_PLAN_INTERNAL_H

#include "nn/layer.h"
#include "nn/plan.h"

#define GG_NONE (-1)

#define GG_MAX_GROUP 4

/* Fused nodes in the order of the graph: only the next node reads a node's output. */
typedef struct gg_plan_group {
    int nodes; /* 0 means none */
    int node[GG_MAX_GROUP];
    int main;                         /* the node that names the operation and whose description it extends */
    const struct gg_pattern *pattern; /* NULL means a single node */
} gg_plan_group;

/* A place in a buffer; after gg_plan_layout, in the plan's block. */
typedef struct gg_place {
    int buffer; /* GG_NONE means nowhere */
    size_t offset;
} gg_place;

typedef struct gg_value {
    gg_shape shape; /* of its node; of a copy in another format, of the node that was read */
    gg_format format;
    size_t bytes;
    bool undecided; /* a float32 input whose first reader will decide its format */
    bool pinned;    /* an input: never written by the plan, shares no memory */
    bool needs_gradient;
    int node;
    int origin;   /* the value that this one copies into another format; itself if it is no copy */
    int producer; /* step; GG_NONE: inputs and views */
    int parent;   /* value that this one is a slice of; GG_NONE means none */
    size_t parent_offset;
    int children;
    int first, last;         /* lifetime of the activation; a root's covers its slices */
    int buffer, grad_buffer; /* of a root */
    bool written;            /* leaf, while gradients are planned: its gradient has a first writer */
} gg_value;

typedef struct gg_buffer {
    size_t bytes, offset;
    int first, last;
} gg_buffer;

/* Gradients that meet: target += term, or target = term for the first writer. */
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
    gg_op *pass[GG_PASS_COUNT]; /* run for each pass; mostly `op` */
    gg_plan_group group;
    int node;                /* names the step in times and messages */
    int layer[GG_MAX_GROUP]; /* those of its nodes with parameters */
    int layers;
    int inputs;
    int input[GG_MAX_INPUTS];
    int output;
    bool backward;
    int first_slot, parameters;      /* in the plan's slots: its layers' parameters, in order */
    bool skip_weight_gradient;       /* in the current step the reader of its weight's gradient computes it */
    int prepared[GG_PASS_COUNT];     /* buffers of forward and data; equal if prepared for both at once */
    int saved;                       /* buffer */
    int64_t carried, carried_before; /* numbers of state that a sample carries here, and in earlier nodes */
    gg_place grad_input[GG_MAX_INPUTS];
    int first_sum, sums;
    gg_op_args forward_args, backward_args; /* all pointers into the plan's block are filled once */
    void *prepared_at[GG_PASS_COUNT];
    double seconds[GG_PASS_COUNT]; /* while the plan is timed */
} gg_step;

/* A head of the graph. */
typedef struct gg_plan_head {
    bool used; /* false: training_only in an evaluation plan */
    int value;
    int64_t positions, features; /* as in gg_loss_args */
    gg_place gradient;           /* written by its loss */
    int first_sum, sums;         /* that add it to others of one value */
    const float *output_at;
    float *gradient_at;
} gg_plan_head;

typedef struct gg_node_state {
    int value;
    bool live;           /* leads to a used head */
    int consumers;       /* live nodes and heads */
    bool needs_gradient; /* parameters here or upstream */
    int first;           /* of its group; GG_NONE means no group yet */
    gg_plan_group group; /* that begins at this node */
    const char *backend;
} gg_node_state;

#define GG_STAGED_STEPS 4

/* Transfers between the host and a device with memory of its own (plan_stage.c). Offsets are in bytes. */
typedef struct gg_plan_stage {
    char *device; /* inputs and results of losses and operations at fixed places; NULL means no memory of its own */
    char *host;   /* shared host memory: results, and the numbers of GG_STAGED_STEPS steps */
    size_t bytes;
    size_t target[GG_MAX_FIELDS], class_weights[GG_MAX_FIELDS]; /* of heads */
    size_t sample_weights, step, results;
    gg_mark read[GG_STAGED_STEPS]; /* reached when the number has been read */
    int next;                      /* index of the next number to write */
} gg_plan_stage;

/* A batch's targets as losses read them, by heads. */
typedef struct gg_plan_targets {
    const void *target[GG_MAX_FIELDS];
    const float *class_weights[GG_MAX_FIELDS];
    const float *sample_weights;
} gg_plan_targets;

/* Runs in pieces that the device captures and replays (plan_graphs.c). */

typedef struct gg_piece_cut {
    int begin;  /* time */
    bool eager; /* hooks read its inputs or outputs: never captured */
} gg_piece_cut;

typedef struct gg_piece {
    gg_piece_cut cut;
    gg_device_graph *graph; /* NULL means not captured yet */
} gg_piece;

/* Everything that captured work depends on besides the cuts. Compared as memory. `freed` covers changes of the plan's
 * own memory; `gradients` tells training from evaluation. */
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
    int64_t runs, used; /* runs 0 means unused */
} gg_run_variant;

#define GG_RUN_VARIANTS 4

typedef struct gg_plan_graphs {
    gg_run_variant *variant; /* GG_RUN_VARIANTS; NULL means that the device does not capture, or need not */
    gg_piece *piece;         /* of all variants */
    gg_piece_cut *cut;       /* of the current run */
    int *first_step;         /* of the current run: of each bucket */
    int layers;
    int64_t uses;
    int replayed; /* pieces of the last run */
    bool failed;  /* capturing failed: */
    char why[256];
} gg_plan_graphs;

struct gg_plan {
    const gg_graph *graph;
    gg_plan_options options;
    gg_device *order[2]; /* tables to ask for an operation, best first; `devices` of them */
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
    int *slot; /* the steps' parameters, step by step */
    int slots;
    const float **parameter_at; /* of each slot, in the arenas of the current run */
    float **gradient_at;
    gg_plan_head head[GG_MAX_FIELDS];
    int scratch_buffer, plain_buffer; /* plain_buffer: a plain copy of a head's output, for predict */
    size_t scratch_bytes;
    char *block; /* its own, or options.memory's */
    size_t block_bytes;
    void *input_at[GG_MAX_FIELDS]; /* one an input of the graph */
    float *plain_at;
    gg_plan_stage stage;
    gg_device *loss_device, *sum_device, *transpose_device;
    uint64_t step_number;      /* of the current run, if the device uses host memory */
    uint64_t prepared_version; /* of the prepared weights, as in gg_plan_evaluate; 0 means none */
    gg_plan_graphs graphs;
    bool timing;
    double loss_seconds; /* while it is timed */
};

/* Makes room for another element of `size` bytes after `count`. *out receives the array's new address, NULL on error.
 */
gg_status gg_plan_reserve(void *array, int *capacity, int count, size_t size, void **out);

/* Makes a plan without memory, which cannot run. */
gg_status gg_plan_make(const gg_graph *graph, const gg_plan_options *options, gg_plan **out);
/* Makes the steps: tables, layouts, reorders, views. */
gg_status gg_plan_build(gg_plan *plan);
/* The cost model's seconds of its operations, forward and, in training, backward. */
double gg_plan_predicted(const gg_plan *plan);

/* The longest group of at most `most` ungrouped nodes that begins at `first`. */
gg_plan_group gg_plan_group_at(const gg_plan *plan, int first, int most);
/* Sets the group of its nodes. The remaining nodes of a longer group that began there form groups anew. */
void gg_plan_group_set(gg_plan *plan, const gg_plan_group *group);
/* Puts each live node into a group. */
void gg_plan_group_all(gg_plan *plan);
/* Lists the nodes whose outputs it reads, in the order of its operation's inputs; returns their number. */
int gg_plan_group_inputs(const gg_plan *plan, const gg_plan_group *group, int source[GG_MAX_INPUTS]);
/* Adds the other nodes to the main node's description. */
void gg_plan_group_describe(const gg_plan *plan, const gg_plan_group *group, gg_op_desc *desc);
static inline int gg_plan_group_last(const gg_plan_group *group) { return group->node[group->nodes - 1]; }

/* Lifetimes, in-place operations, meeting gradients, sharing; gets the block and fills every step's pointers. */
gg_status gg_plan_layout(gg_plan *plan);
/* After the layout: the host memory of a device with memory of its own. */
gg_status gg_plan_stage_create(gg_plan *plan);
void gg_plan_stage_destroy(gg_plan *plan);
/* Gives the device a batch, perhaps inputs alone, and the training step's number. Returns the number's address in
 * device memory. gg_plan_stage_targets returns the losses' targets. */
const uint64_t *gg_plan_stage_give(gg_plan *plan, const gg_plan_batch *batch, uint64_t step);
gg_plan_targets gg_plan_stage_targets(const gg_plan *plan, const gg_plan_batch *batch);
/* Memory for the losses' results, one a head, 0 for heads that the plan omits. gg_plan_stage_fetch copies them to
 * `sums`, shared host memory. */
gg_loss_result *gg_plan_stage_results(gg_plan *plan, gg_loss_sums *sums);
void gg_plan_stage_fetch(gg_plan *plan, gg_loss_sums *sums);
/* Copies results to any host memory and waits. */
gg_status gg_plan_stage_finish(gg_plan *plan, gg_loss_sums *sums);
/* Checks that losses can read the outputs of used heads. */
gg_status gg_plan_check_losses(const gg_plan *plan);

/* The value that owns this value's buffer; *offset receives the place in it. */
int gg_plan_root(const gg_plan *plan, int value, size_t *offset);

/* True if the pass's operation differs from those of earlier passes. */
static inline bool gg_step_own_op(const gg_step *step, int pass) {
    for (int i = 0; i < pass; i++)
        if (step->pass[i] == step->pass[pass]) return false;
    return true;
}

static inline int gg_plan_backward_time(const gg_plan *plan, int step) { return 2 * plan->steps - step; }

#endif
