/* Private to the plan: a run, time by time (plan_pass.c), and in pieces that the device replays (plan_graphs.c).
 *
 * Times are those of plan_internal.h. Everything that a run is told of outside of the plan happens before and after a
 * time; `compute` alone gives work to the device. */
#ifndef GG_NN_PLAN_PIECES_H
#define GG_NN_PLAN_PIECES_H

#include "nn/plan_internal.h"

/* What is the same for all times of a run. */
typedef struct gg_run {
    const float *weights;
    float *gradients;           /* NULL: no backward pass */
    const gg_plan_batch *batch; /* NULL: no targets and no state */
    const uint64_t *step;       /* as in gg_op_args; NULL: nothing is drawn */
    const gg_plan_hooks *hooks; /* NULL: none */
    gg_loss_sums *sums;         /* where losses write, if the device's memory is the host's; NULL: not wanted */
    bool training;
    bool fresh; /* the weights are not those that lie prepared */
    int end;    /* times 0 .. end - 1 are run */
} gg_run;

/* The hooks before a time, and state that the batch begins with; what is to be computed then; the hooks behind it. */
gg_status gg_run_before(gg_plan *plan, const gg_run *run, int time);
gg_status gg_run_compute(gg_plan *plan, const gg_run *run, int time);
gg_status gg_run_after(gg_plan *plan, const gg_run *run, int time);
/* Whether a hook may ask for what this step reads, or gives, in the middle of a run. */
bool gg_run_is_watched(const gg_run *run, const gg_step *step);

/* All times of a run, in pieces where the device captures. */
gg_status gg_plan_run_all(gg_plan *plan, const gg_run *run);
gg_status gg_plan_graphs_create(gg_plan *plan);
void gg_plan_graphs_destroy(gg_plan *plan);

#endif
