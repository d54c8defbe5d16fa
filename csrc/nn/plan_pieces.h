/* Private to the plan: a run, time by time (plan_pass.c), and in pieces that the device replays (plan_graphs.c).
 *
 * Times are those of plan_internal.h. Hooks run before and after a time; gg_run_compute alone gives work to the device.
 */
#ifndef GG_NN_PLAN_PIECES_H
#define GG_NN_PLAN_PIECES_H

#include "nn/plan_internal.h"

/* Arguments of a run, for all its times. */
typedef struct gg_run {
    const float *weights;
    float *gradients;           /* NULL means no backward pass */
    const gg_plan_batch *batch; /* NULL means no targets and no state */
    const uint64_t *step;       /* as in gg_op_args; NULL means no random draws */
    const gg_plan_hooks *hooks; /* NULL means none */
    gg_loss_sums *sums;         /* the losses' results, if the device uses host memory; NULL means not needed */
    bool training;
    bool fresh; /* prepared weights are stale */
    int end;    /* times 0 .. end - 1 are run */
} gg_run;

/* Before: hooks and the batch's initial state. Compute: the time's work. After: hooks. */
gg_status gg_run_before(gg_plan *plan, const gg_run *run, int time);
gg_status gg_run_compute(gg_plan *plan, const gg_run *run, int time);
gg_status gg_run_after(gg_plan *plan, const gg_run *run, int time);
/* True if a hook may read this step's inputs or outputs in the middle of a run. */
bool gg_run_is_watched(const gg_run *run, const gg_step *step);

/* Runs all times, in pieces if the device captures. */
gg_status gg_plan_run_all(gg_plan *plan, const gg_run *run);
gg_status gg_plan_graphs_create(gg_plan *plan);
void gg_plan_graphs_destroy(gg_plan *plan);

#endif
