/* The reduction that sends every value: a gg_allreduce. */
#include "base/memory.h"
#include "comm/allreduce.h"
#include "exchange/parts/common.h"
#include "exchange/parts/reduction.h"

typedef struct dense_reduction {
    gg_reduction head;
    gg_strategy *owner;
    gg_allreduce *sum;
    size_t offset, count;
    float *data;  /* the run's first element */
    void *memory; /* the values on the wire; NULL means sent in place */
} dense_reduction;

static gg_allreduce *sum_of(gg_reduction *reduction) { return ((dense_reduction *)reduction)->sum; }

static gg_status dense_start(gg_reduction *reduction, float *data, const float *share) {
    ((dense_reduction *)reduction)->data = data;
    return gg_allreduce_start(sum_of(reduction), data, share);
}

static gg_status dense_poll(gg_reduction *reduction, bool *summed) {
    return gg_allreduce_poll(sum_of(reduction), summed);
}

static gg_status dense_wait(gg_reduction *reduction) { return gg_allreduce_wait(sum_of(reduction)); }

static gg_status dense_deliver(gg_reduction *reduction, gg_reduction_piece *piece, void *context) {
    const dense_reduction *dense = (dense_reduction *)reduction;
    piece(context, dense->offset, dense->count, dense->data, (gg_lines){0});
    return GG_OK;
}

static gg_status dense_finish(gg_reduction *reduction) { return gg_allreduce_finish(sum_of(reduction)); }

static void dense_complete(gg_reduction *reduction) { (void)reduction; }

static void dense_cancel(gg_reduction *reduction) { gg_allreduce_cancel(sum_of(reduction)); }

static void dense_destroy(gg_reduction *reduction) {
    dense_reduction *dense = (dense_reduction *)reduction;
    gg_allreduce_destroy(dense->sum);
    gg_message_free(dense->owner->env.transport, dense->memory);
    gg_free(reduction);
}

static const gg_reduction_table table = {dense_start,    dense_poll,   dense_wait,    dense_deliver, dense_finish,
                                         dense_complete, dense_cancel, dense_destroy, NULL,          NULL};

gg_status gg_dense_reduction_create(gg_strategy *owner, const gg_strategy_options *options, const gg_reduction_run *run,
                                    gg_reduction **out) {
    gg_status status = GG_OK;
    dense_reduction *made = NULL;
    const gg_codec *codec = gg_codec_of(options->wire);
    GG_TRY_CLEANUP(gg_calloc(1, sizeof *made, "reduction", &made));
    made->head = (gg_reduction){.table = &table, .bytes = run->count * codec->size};
    made->owner = owner;
    made->offset = run->offset;
    made->count = run->count;
    if (!codec->exact && run->group->size > 1)
        GG_TRY_CLEANUP(gg_message_alloc_device(owner->env.transport, run->count * codec->size, "values that travel",
                                               &made->memory));
    GG_TRY_CLEANUP(gg_allreduce_create(run->group, owner->env.device, run->count, run->tag,
                                       &(gg_allreduce_form){.codec = codec,
                                                            .memory = made->memory,
                                                            .applied = run->applied,
                                                            .rest = run->rest,
                                                            .displaces = run->displaces},
                                       options->collectives, &made->sum));
    gg_strategy_watch(owner, made->sum);
cleanup:
    if (status != GG_OK && made != NULL) dense_destroy(&made->head), made = NULL;
    *out = made != NULL ? &made->head : NULL;
    return status;
}
