/* Pieces of a run. Between two places where the strategy does something, all work of a run is one piece. If the device
 * captures, a piece is captured once and then replayed by one call while all addresses stay the same. Hooks are called
 * in the same order as without pieces: those of forward times before their piece is given, those of backward times
 * behind it. */
#include <limits.h>
#include <stdio.h>
#include <string.h>

#include "base/memory.h"
#include "nn/plan_pieces.h"

/* Times of backward: step s goes backward at 2*steps - s. */
static int step_of_time(const gg_plan *plan, int time) { return time < plan->steps ? time : 2 * plan->steps - time; }

static bool is_forward(const gg_plan *plan, int time) { return time < plan->steps; }

/* ---- where a run is cut ---- */

/* The first step of each bucket, in forward order; INT_MAX: it has none. */
static void find_first_steps(gg_plan *plan, const int *bucket) {
    gg_plan_graphs *graphs = &plan->graphs;
    for (int i = 0; i < graphs->layers; i++) graphs->first_step[i] = INT_MAX;
    for (int s = plan->steps - 1; s >= 0; s--) {
        const gg_step *step = &plan->step[s];
        for (int i = 0; i < step->layers; i++) graphs->first_step[bucket[step->layer[i]]] = s;
    }
}

static bool begins_bucket(const gg_plan *plan, const int *bucket, int s) {
    const gg_step *step = &plan->step[s];
    bool begins = false;
    for (int i = 0; bucket != NULL && i < step->layers; i++)
        begins = begins || plan->graphs.first_step[bucket[step->layer[i]]] == s;
    return begins;
}

static void add_cut(gg_plan_graphs *graphs, int *pieces, int begin, bool eager) {
    if (*pieces > 0 && graphs->cut[*pieces - 1].begin == begin) --*pieces;
    graphs->cut[(*pieces)++] = (gg_piece_cut){.begin = begin, .eager = eager};
}

/* A bucket's weights are needed together, before its first step goes forward, and its gradients are ready together,
 * when that step has gone backward. */
static int cut_run(gg_plan *plan, const gg_run *run) {
    gg_plan_graphs *graphs = &plan->graphs;
    const int *bucket = run->hooks != NULL ? run->hooks->bucket : NULL;
    int pieces = 0;
    if (bucket != NULL) find_first_steps(plan, bucket);
    add_cut(graphs, &pieces, 0, false);
    for (int time = 0; time < run->end; time++) {
        const int s = step_of_time(plan, time);
        if (time == plan->steps) continue;
        const bool watched = gg_run_is_watched(run, &plan->step[s]), begins = begins_bucket(plan, bucket, s);
        if (watched || (begins && is_forward(plan, time))) add_cut(graphs, &pieces, time, watched);
        if (watched || (begins && !is_forward(plan, time))) add_cut(graphs, &pieces, time + 1, false);
    }
    if (graphs->cut[pieces - 1].begin == run->end) --pieces;
    return pieces;
}

/* ---- variants ---- */

static gg_run_key key_of(const gg_plan *plan, const gg_run *run) {
    gg_run_key key;
    memset(&key, 0, sizeof key); /* compared as memory */
    key.weights = run->weights;
    key.gradients = run->gradients;
    key.end = run->end;
    key.fresh = run->fresh;
    key.freed = gg_device_freed(plan->options.device);
    if (run->batch == NULL) return key;
    key.carried = run->batch->carried;
    key.carried_rows = run->batch->carried_rows;
    key.weighted = run->batch->sample_weights != NULL;
    return key;
}

static void drop_graphs(gg_plan *plan, gg_run_variant *variant) {
    for (int i = 0; i < variant->pieces; i++) {
        gg_device_destroy_graph(plan->options.device, variant->piece[i].graph);
        variant->piece[i].graph = NULL;
    }
    variant->runs = variant->pieces = 0;
}

static bool has_cuts(const gg_run_variant *variant, const gg_plan_graphs *graphs, int pieces) {
    bool same = variant->pieces == pieces;
    for (int i = 0; same && i < pieces; i++)
        same =
            variant->piece[i].cut.begin == graphs->cut[i].begin && variant->piece[i].cut.eager == graphs->cut[i].eager;
    return same;
}

/* That of the run; new in place of the least recently used one if there is none. Those whose addresses may mean other
 * memory go at once. */
static gg_run_variant *find_variant(gg_plan *plan, const gg_run *run) {
    gg_plan_graphs *graphs = &plan->graphs;
    const gg_run_key key = key_of(plan, run);
    const int pieces = cut_run(plan, run);
    gg_run_variant *oldest = &graphs->variant[0];
    graphs->uses++;
    for (int i = 0; i < GG_RUN_VARIANTS; i++) {
        gg_run_variant *it = &graphs->variant[i];
        if (it->runs > 0 && it->key.freed != key.freed) drop_graphs(plan, it);
        if (it->runs > 0 && memcmp(&it->key, &key, sizeof key) == 0 && has_cuts(it, graphs, pieces)) {
            it->used = graphs->uses;
            return it;
        }
        if (it->used < oldest->used || (oldest->runs > 0 && it->runs == 0)) oldest = it;
    }
    drop_graphs(plan, oldest);
    oldest->key = key;
    oldest->used = graphs->uses;
    oldest->pieces = pieces;
    for (int i = 0; i < pieces; i++) oldest->piece[i].cut = graphs->cut[i];
    return oldest;
}

/* ---- running ---- */

static gg_status run_times(gg_plan *plan, const gg_run *run, int begin, int end) {
    for (int time = begin; time < end; time++) {
        GG_TRY(gg_run_before(plan, run, time));
        GG_TRY(gg_run_compute(plan, run, time));
        GG_TRY(gg_run_after(plan, run, time));
    }
    return GG_OK;
}

static gg_status call_hooks(gg_plan *plan, const gg_run *run, int begin, int end) {
    for (int time = begin; time < end; time++) {
        GG_TRY(gg_run_before(plan, run, time));
        GG_TRY(gg_run_after(plan, run, time));
    }
    return GG_OK;
}

static gg_status compute_times(gg_plan *plan, const gg_run *run, int begin, int end) {
    for (int time = begin; time < end; time++) GG_TRY(gg_run_compute(plan, run, time));
    return GG_OK;
}

/* After a failed capture the plan runs without graphs; the report gives the reason. */
static void give_up(gg_plan *plan) {
    plan->graphs.failed = true;
    (void)snprintf(plan->graphs.why, sizeof plan->graphs.why, "%s", gg_error_message());
}

static void capture_times(gg_plan *plan, const gg_run *run, int begin, int end, gg_device_graph **out) {
    gg_device *device = plan->options.device;
    gg_device_graph *unfinished = NULL;
    *out = NULL;
    if (gg_device_capture_begin(device) != GG_OK) {
        give_up(plan);
    } else if (compute_times(plan, run, begin, end) != GG_OK) {
        give_up(plan);
        (void)gg_device_capture_end(device, &unfinished);
        gg_device_destroy_graph(device, unfinished);
    } else if (gg_device_capture_end(device, out) != GG_OK) {
        give_up(plan);
    }
}

static gg_status run_piece(gg_plan *plan, const gg_run *run, gg_piece *piece, int end) {
    const int begin = piece->cut.begin, losses = plan->steps;
    GG_TRY(call_hooks(plan, run, begin, end < losses ? end : losses));
    if (piece->graph == NULL && !plan->graphs.failed) capture_times(plan, run, begin, end, &piece->graph);
    if (piece->graph != NULL) {
        gg_device_replay(plan->options.device, piece->graph);
        plan->graphs.replayed++;
    } else {
        GG_TRY(compute_times(plan, run, begin, end));
    }
    return call_hooks(plan, run, begin > losses ? begin : losses + 1, end);
}

/* The first run with its addresses makes everything that is made once; the next ones capture and replay. */
static gg_status run_in_pieces(gg_plan *plan, const gg_run *run) {
    gg_run_variant *variant = find_variant(plan, run);
    const bool eager = variant->runs++ == 0;
    for (int i = 0; i < variant->pieces; i++) {
        gg_piece *piece = &variant->piece[i];
        const int end = i + 1 < variant->pieces ? variant->piece[i + 1].cut.begin : run->end;
        if (eager || piece->cut.eager || plan->graphs.failed) GG_TRY(run_times(plan, run, piece->cut.begin, end));
        else GG_TRY(run_piece(plan, run, piece, end));
    }
    return GG_OK;
}

gg_status gg_plan_run_all(gg_plan *plan, const gg_run *run) {
    const bool in_pieces = plan->graphs.variant != NULL && !plan->graphs.failed && !plan->timing;
    plan->graphs.replayed = 0;
    return in_pieces ? run_in_pieces(plan, run) : run_times(plan, run, 0, run->end);
}

/* ---- creating ---- */

/* All of the plan's tables give their work to one device. */
static bool can_capture(const gg_plan *plan) {
    const gg_device *device = plan->options.device, *other = plan->options.fallback;
    return plan->options.graphs && gg_device_captures(device) && (other == NULL || other == device);
}

gg_status gg_plan_graphs_create(gg_plan *plan) {
    gg_plan_graphs *graphs = &plan->graphs;
    const size_t pieces = 2 * (size_t)plan->steps + 2;
    if (!can_capture(plan)) return GG_OK;
    graphs->layers = gg_graph_layers(plan->graph);
    GG_TRY(gg_calloc((size_t)graphs->layers + 1, sizeof *graphs->first_step, "plan", &graphs->first_step));
    GG_TRY(gg_calloc(pieces, sizeof *graphs->cut, "plan", &graphs->cut));
    GG_TRY(gg_calloc(pieces * GG_RUN_VARIANTS, sizeof *graphs->piece, "plan", &graphs->piece));
    GG_TRY(gg_calloc(GG_RUN_VARIANTS, sizeof *graphs->variant, "plan", &graphs->variant));
    for (size_t i = 0; i < GG_RUN_VARIANTS; i++) graphs->variant[i].piece = graphs->piece + i * pieces;
    return GG_OK;
}

void gg_plan_graphs_destroy(gg_plan *plan) {
    gg_plan_graphs *graphs = &plan->graphs;
    for (int i = 0; graphs->variant != NULL && i < GG_RUN_VARIANTS; i++) drop_graphs(plan, &graphs->variant[i]);
    gg_free(graphs->first_step);
    gg_free(graphs->cut);
    gg_free(graphs->piece);
    gg_free(graphs->variant);
}

gg_graphs_report gg_plan_graphs_report(const gg_plan *plan) {
    const gg_plan_graphs *graphs = &plan->graphs;
    const gg_run_variant *last = NULL;
    gg_graphs_report out = {.why = graphs->failed ? graphs->why : NULL};
    for (int i = 0; graphs->variant != NULL && i < GG_RUN_VARIANTS; i++)
        if (last == NULL || graphs->variant[i].used > last->used) last = &graphs->variant[i];
    out.captures = graphs->variant != NULL && !graphs->failed;
    out.pieces = last != NULL ? last->pieces : 0;
    out.replayed = graphs->replayed;
    return out;
}
