#include "nn/choose.h"

#include <string.h>

/* The native table computes in BATCH_LAST, where a batch fills whole vectors of GG_LANES samples: any channel
 * count, window and stride then runs at full width, joins and flattenings move nothing, and a chain of native
 * operations needs no reorder. What it pays for is the padding: a batch of 1 does 16 samples' work. From half
 * full lanes on the native table wins, below that the one that the user named. One rule for all kinds, because
 * a change of table between neighbours costs a reorder of the whole activation. */
static bool native_first(int64_t batch, gg_op_kind kind) {
    (void)kind;
    return 2 * batch >= gg_lanes_padded(batch);
}

int gg_choose_devices(const gg_plan_options *options, gg_op_kind kind, gg_device *order[2]) {
    gg_device *first = options->device, *second = options->fallback;
    if (second == NULL || second == first) {
        order[0] = first;
        return 1;
    }
    if (options->choose && strcmp(second->table->name, "native") == 0 && native_first(options->batch, kind)) {
        order[0] = second;
        order[1] = first;
    } else {
        order[0] = first;
        order[1] = second;
    }
    return 2;
}
