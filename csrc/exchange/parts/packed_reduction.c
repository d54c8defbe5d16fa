/* The reduction of packed messages (exchange/codec/packed.h), with error feedback. The first steps (warm-up) go through
 * a dense reduction.
 *
 * LOCAL: every rank adds its weighted data to its residue, packs chosen elements of the sum, and sends them to all.
 * Every rank adds the messages of all ranks, its own too, in the order of ranks: all get equal bits.
 *
 * CYCLIC [after ScaleCom, Chen et al. 2020, arXiv 2104.11125]:
 *
 * 1. For sum number k, rank k mod p chooses the elements from its own residue, and sends the choice to the others.
 * 2. All ranks send their own values at these elements, which a dense reduction sums.
 *
 * So the sum is as sparse as one rank's message, and a rank's bytes do not grow with p. The sum is not rounded: the
 * residue that would take the rounding error would depend on the cuts of messages.
 *
 * Small parameters that travel whole are in LOCAL's messages. Larger ones are reduced as without compression, because
 * messages to all are p/2 times the bytes: with two ranks all are in messages. Each parameter alone decides if it is
 * small, so the bits do not depend on the joining of layers to messages.
 *
 * All messages have one tag. Every rank starts the packed messages first, then the sum of whole parameters, and after
 * its end the sum of chosen values.
 *
 * Parts: the source of gradients (packed_source.h), the messages (packed_messages.h), their sum if it is read once
 * (in_pieces, packed_pieces.h), the sums of whole parameters and of chosen values. This file puts them in order. */
#include <string.h>

#include "base/memory.h"
#include "exchange/parts/chosen_values.h"
#include "exchange/parts/packed_pieces.h"
#include "exchange/parts/reduction.h"
#include "exchange/parts/whole_parameters.h"

/* Limits for parameters that travel whole. From LARGE elements on a parameter has its own sum if messages to all would
 * send LARGE_MORE more bytes for it. From LARGE_BYTES on it has one in any case, because messages have no room. A sum
 * costs messages and waits. */
#define LARGE ((size_t)1024)
#define LARGE_MORE ((size_t)24 << 10)
#define LARGE_BYTES ((size_t)1 << 20)

/* Awaited by a stage: IDLE nothing; DENSE a dense sum of all; ADDING_WHOLE the sum of whole parameters; COLLECTING the
 * next rank's message; CHOOSING the choice; SUMMING the sum of chosen values; SUMMED only the peers, which may still
 * read. */
typedef enum stage { IDLE = 0, DENSE, ADDING_WHOLE, COLLECTING, CHOOSING, SUMMING, SUMMED } stage;

typedef struct packed_reduction {
    gg_reduction head;
    gg_strategy *owner;
    gg_transport *group;
    gg_compression compression;
    gg_reduction *dense; /* for the first steps */
    size_t offset, count;
    int64_t period; /* steps from one sum to the next */
    float *residue; /* an arena, by its element 0 */
    float *applied; /* an arena, by its element 0; NULL means not wanted */
    gg_segments segments;
    const gg_segment *run; /* segments of this run, `in_run` of them */
    int in_run;
    gg_segment *sorted; /* the run's segments: n in messages, then those reduced whole */
    int n;
    gg_packing packing;
    stage stage;
    int next;       /* COLLECTING: the rank whose message is read next; with CYCLIC the one that chooses */
    bool in_pieces; /* with LOCAL: the data are undefined, though not on every device */
    float *data;    /* the run's first element */
    gg_packed_source source;
    gg_packed_messages messages;
    gg_packed_pieces sum; /* pieces NULL means that the sum is in the data */
    gg_whole_parameters whole;
    gg_chosen_values chosen; /* CYCLIC only */
} packed_reduction;

/* ---- parameters reduced whole ---- */

static bool is_whole(const packed_reduction *s, const gg_segment *one) {
    const size_t p = (size_t)s->group->size, bytes = one->count * sizeof(float);
    if (one->bin > 0 || s->compression.selection == GG_SELECTION_CYCLIC) return one->bin == 0;
    const size_t to_all = (p - 1) * bytes, summed = 2 * to_all / p;
    return one->count >= LARGE && (to_all - summed >= LARGE_MORE || bytes >= LARGE_BYTES);
}

/* The sum begins at zero. Packing has cleared the segments of messages with LOCAL. */
static void clear_data(packed_reduction *s) {
    gg_device *device = s->owner->env.device;
    size_t at = 0;
    for (int i = 0; i < s->in_run && s->compression.selection == GG_SELECTION_LOCAL; ++i) {
        const gg_segment *one = &s->run[i];
        const size_t begin = one->offset - s->offset;
        if (is_whole(s, one)) continue;
        gg_device_zero(device, GG_QUEUE_COMPUTE, s->data + at, (begin - at) * sizeof *s->data);
        at = begin + one->count;
    }
    gg_device_zero(device, GG_QUEUE_COMPUTE, s->data + at, (s->count - at) * sizeof *s->data);
}

/* Starts the sum of whole parameters after the messages. All other data are in the residue. */
static gg_status start_whole(packed_reduction *s, const float *share) {
    s->stage = ADDING_WHOLE;
    GG_TRY(gg_whole_start(&s->whole, gg_packed_source_run, &s->source, share, s->packing.counts, &s->head.bytes));
    if (s->sum.pieces == NULL) clear_data(s);
    return GG_OK;
}

static gg_status add_whole(packed_reduction *s, bool wait, bool *done) {
    GG_TRY(gg_whole_advance(&s->whole, s->source.base, wait, done));
    if (*done) s->stage = s->compression.selection == GG_SELECTION_CYCLIC ? CHOOSING : COLLECTING;
    return GG_OK;
}

/* ---- local selection ---- */

static gg_status start_local(packed_reduction *s, float scale) {
    const int p = s->group->size, rank = s->group->rank;
    gg_packed_messages *m = &s->messages;
    if (s->sum.pieces != NULL) GG_TRY(gg_pack(&s->packing, scale, s->source.base, s->residue, m->own, &m->size));
    else GG_TRY(gg_pack_and_clear(&s->packing, scale, s->source.base, s->residue, m->own, &m->size));
    if (s->source.factored != NULL) gg_factored_end(s->source.factored);
    if (s->applied != NULL) GG_TRY(gg_unpack_add(&s->packing, m->own, m->size, 1.0f, s->applied));
    for (int i = 1; i < p; ++i) GG_TRY(gg_packed_messages_receive(m, (rank - i + p) % p));
    GG_TRY(gg_packed_messages_send(m));
    s->head.bytes = m->size;
    s->next = 0;
    return GG_OK;
}

/* Adds the next rank's message if it has arrived, or takes it for a sum in pieces. */
static gg_status collect_next(packed_reduction *s, bool wait, bool *done) {
    gg_status status = GG_OK;
    const int from = s->next;
    const void *message;
    size_t bytes;
    GG_TRY(gg_packed_messages_reach(&s->messages, from, wait, done, &message, &bytes));
    if (!*done) return GG_OK;
    if (s->sum.pieces != NULL) status = gg_packed_pieces_take(&s->sum, from, message, bytes);
    else status = gg_unpack_add(&s->packing, message, bytes, 1.0f, s->source.base);
    GG_TRY(gg_error_prefix(status, "message of rank %d: ", from));
    if (s->sum.pieces == NULL) GG_TRY(gg_packed_messages_release(&s->messages, from));
    if (++s->next == s->group->size) s->stage = SUMMED;
    return GG_OK;
}

/* Delivers the messages' sum in pieces, and the sums of whole parameters, which are in the data. */
static gg_status deliver_pieces(packed_reduction *s, gg_reduction_piece *piece, void *context) {
    GG_TRY(gg_packed_pieces_deliver(&s->sum, piece, context));
    for (int i = s->n; i < s->in_run; ++i) {
        const gg_segment *one = &s->sorted[i];
        const size_t lanes = (one->count + GG_LANES - 1) / GG_LANES * GG_LANES;
        float *sum = s->source.base + one->offset;
        memset(sum + one->count, 0, (lanes - one->count) * sizeof *sum);
        piece(context, one->offset, lanes, sum, (gg_lines){0});
    }
    return GG_OK;
}

/* ---- cyclic selection ---- */

static gg_status start_cyclic(packed_reduction *s, float scale) {
    gg_packed_messages *m = &s->messages;
    const int chooser = (int)(s->owner->step / s->period % s->group->size);
    s->next = chooser;
    s->head.bytes = 0;
    if (chooser != s->group->rank) {
        GG_TRY(gg_pack_accumulate(&s->packing, scale, s->source.base, s->residue));
        return gg_packed_messages_receive(m, chooser);
    }
    GG_TRY(gg_pack_choice(&s->packing, scale, s->source.base, s->residue, m->own, &m->size));
    GG_TRY(gg_packed_messages_send(m));
    s->head.bytes = m->size;
    return GG_OK;
}

/* Sends the own values at the chosen elements, if the choice has arrived. */
static gg_status start_values(packed_reduction *s, bool wait, bool *done) {
    const void *choice;
    size_t count, bytes;
    GG_TRY(gg_packed_messages_reach(&s->messages, s->next, wait, done, &choice, &bytes));
    if (!*done) return GG_OK;
    const gg_status status = gg_choice_values(s->sorted, s->n, choice, bytes, &count);
    GG_TRY(gg_error_prefix(status, "choice of rank %d: ", s->next));
    GG_TRY(gg_chosen_start(&s->chosen, choice, count, &s->head.bytes));
    s->stage = SUMMING;
    return GG_OK;
}

static gg_status add_values(packed_reduction *s, bool wait, bool *done) {
    const gg_packed_messages *m = &s->messages;
    const void *choice = s->next == s->group->rank ? m->own : m->arrived[s->next].data;
    GG_TRY(gg_chosen_advance(&s->chosen, choice, s->source.base, wait, done));
    if (!*done) return GG_OK;
    GG_TRY(gg_packed_messages_release(&s->messages, s->next));
    s->stage = SUMMED;
    return GG_OK;
}

/* ---- the table ---- */

static gg_status packed_failed(packed_reduction *s, gg_status status) {
    if (status == GG_OK) return status;
    gg_packed_messages_cancel(&s->messages);
    gg_whole_cancel(&s->whole);
    gg_chosen_cancel(&s->chosen);
    if (s->source.factored != NULL) gg_factored_end(s->source.factored);
    s->stage = IDLE;
    return status;
}

/* Continues until the sum is complete: in the data, or as checked messages. Without `wait` stops at the first message
 * that has not arrived. */
static gg_status packed_advance(packed_reduction *s, bool wait) {
    gg_status status = GG_OK;
    bool done = true;
    while (done && s->stage != IDLE && s->stage != SUMMED) {
        if (s->stage == COLLECTING) GG_TRY_CLEANUP(collect_next(s, wait, &done));
        else if (s->stage == ADDING_WHOLE) GG_TRY_CLEANUP(add_whole(s, wait, &done));
        else if (s->stage == CHOOSING) GG_TRY_CLEANUP(start_values(s, wait, &done));
        else GG_TRY_CLEANUP(add_values(s, wait, &done));
    }
cleanup:
    return packed_failed(s, status);
}

static gg_status packed_start(gg_reduction *reduction, float *data, const float *share) {
    gg_status status = GG_OK;
    packed_reduction *s = (packed_reduction *)reduction;
    if (s->stage != IDLE)
        GG_FAIL_CLEANUP(GG_ERROR_STATE, "packed sum of %zu values: started again before it was finished", s->count);
    s->data = data;
    share = gg_packed_source_begin(&s->source, data, s->offset, share);
    const float scale = share[s->group->rank];
    if (s->owner->step < s->compression.warmup) {
        gg_packed_source_fill(&s->source, s->offset, s->count);
        gg_compression_count_dense(s->run, s->in_run, s->packing.counts);
        GG_TRY_CLEANUP(gg_reduction_start(s->dense, data, share));
        s->head.bytes = s->dense->bytes;
        s->stage = DENSE;
        goto cleanup;
    }
    GG_TRY_CLEANUP(s->compression.selection == GG_SELECTION_CYCLIC ? start_cyclic(s, scale) : start_local(s, scale));
    GG_TRY_CLEANUP(gg_packed_source_failure(&s->source));
    GG_TRY_CLEANUP(start_whole(s, share));
cleanup:
    return packed_failed(s, status);
}

static gg_status packed_poll(gg_reduction *reduction, bool *summed) {
    packed_reduction *s = (packed_reduction *)reduction;
    if (s->stage == DENSE) return packed_failed(s, gg_reduction_poll(s->dense, summed));
    gg_status status = packed_advance(s, false);
    *summed = s->stage == IDLE || s->stage == SUMMED;
    return status;
}

static gg_status packed_wait(gg_reduction *reduction) {
    packed_reduction *s = (packed_reduction *)reduction;
    return s->stage == DENSE ? packed_failed(s, gg_reduction_wait(s->dense)) : packed_advance(s, true);
}

static gg_status packed_deliver(gg_reduction *reduction, gg_reduction_piece *piece, void *context) {
    packed_reduction *s = (packed_reduction *)reduction;
    if (s->stage == DENSE) return packed_failed(s, gg_reduction_deliver(s->dense, piece, context));
    if (s->in_pieces) s->owner->sum_in_pieces = true;
    if (s->sum.pieces != NULL) return packed_failed(s, deliver_pieces(s, piece, context));
    piece(context, s->offset, s->count, s->data, (gg_lines){0});
    return GG_OK;
}

static gg_status packed_finish(gg_reduction *reduction) {
    gg_status status = GG_OK;
    packed_reduction *s = (packed_reduction *)reduction;
    GG_TRY_CLEANUP(packed_wait(reduction));
    if (s->stage == DENSE) GG_TRY_CLEANUP(gg_reduction_finish(s->dense));
    if (s->stage == SUMMED) GG_TRY_CLEANUP(gg_packed_messages_read(&s->messages));
    if (s->stage == SUMMED) GG_TRY_CLEANUP(gg_chosen_finish(&s->chosen));
    if (s->stage == SUMMED) GG_TRY_CLEANUP(gg_whole_finish(&s->whole));
    s->stage = IDLE;
cleanup:
    return packed_failed(s, status);
}

static void packed_complete(gg_reduction *reduction) {
    const packed_reduction *s = (packed_reduction *)reduction;
    gg_pack_complete(&s->packing, s->residue);
}

/* The dense sums of the first steps are of gradients. */
static gg_status packed_input(gg_reduction *reduction, int layer, const gg_vectors *input, bool *taken) {
    const packed_reduction *s = (packed_reduction *)reduction;
    *taken = false;
    if (s->source.factored == NULL || s->owner->step < s->compression.warmup) return GG_OK;
    return gg_factored_input(s->source.factored, layer, input, taken);
}

static gg_status packed_error(gg_reduction *reduction, int layer, const gg_vectors *error) {
    return gg_factored_error(((packed_reduction *)reduction)->source.factored, layer, error);
}

static void packed_cancel(gg_reduction *reduction) {
    packed_reduction *s = (packed_reduction *)reduction;
    if (s->dense != NULL) gg_reduction_cancel(s->dense);
    (void)packed_failed(s, GG_ERROR_STATE);
}

static void packed_destroy(gg_reduction *reduction) {
    packed_reduction *s = (packed_reduction *)reduction;
    (void)packed_failed(s, GG_ERROR_STATE); /* requests must not outlive their memory */
    gg_whole_destroy(&s->whole);
    gg_chosen_destroy(&s->chosen);
    gg_reduction_destroy(s->dense);
    gg_packed_messages_destroy(&s->messages);
    gg_pack_room_destroy(s->packing.room);
    gg_packed_pieces_destroy(&s->sum);
    gg_pack_marks_destroy(s->packing.marks);
    gg_packed_source_destroy(&s->source);
    gg_free(s->sorted);
    gg_segments_destroy(&s->segments);
    gg_free(s);
}

static const gg_reduction_table table = {packed_start,    packed_poll,   packed_wait,    packed_deliver, packed_finish,
                                         packed_complete, packed_cancel, packed_destroy, packed_input,   packed_error};

static gg_status find_segments(packed_reduction *s) {
    int first = 0, end;
    while (first < s->segments.count && s->segments.segment[first].offset < s->offset) ++first;
    for (end = first; end < s->segments.count && s->segments.segment[end].offset < s->offset + s->count;) ++end;
    s->run = s->segments.segment + first;
    s->in_run = end - first;
    GG_TRY(gg_calloc((size_t)s->in_run, sizeof *s->sorted, "segments", &s->sorted));
    for (int i = 0; i < s->in_run; ++i)
        if (!is_whole(s, &s->run[i])) s->sorted[s->n++] = s->run[i];
    for (int i = 0, at = s->n; i < s->in_run; ++i) {
        if (!is_whole(s, &s->run[i])) continue;
        s->sorted[at++] = s->run[i];
    }
    return GG_OK;
}

/* Makes the sum of whole parameters, and with CYCLIC that of chosen values. */
static gg_status create_sums(packed_reduction *s) {
    s->whole = (gg_whole_parameters){.owner = s->owner,
                                     .group = s->group,
                                     .segment = s->sorted + s->n,
                                     .segments = s->in_run - s->n,
                                     .residue = s->residue,
                                     .applied = s->applied};
    GG_TRY(gg_whole_create(&s->whole, s->messages.tag));
    if (s->compression.selection != GG_SELECTION_CYCLIC) return GG_OK;
    s->chosen = (gg_chosen_values){
        .owner = s->owner, .group = s->group, .packing = &s->packing, .residue = s->residue, .applied = s->applied};
    return gg_chosen_create(&s->chosen, s->count, s->messages.tag);
}

static gg_status create_messages(packed_reduction *s, const gg_reduction_run *run) {
    const bool cyclic = s->compression.selection == GG_SELECTION_CYCLIC;
    gg_device *device = s->owner->env.device;
    const bool here = !cyclic && !gg_device_is_separate(device);
    gg_pack_sizes sizes = {0};
    const size_t capacity = s->n > 0 ? gg_aligned(gg_packed_capacity(s->sorted, s->n, &s->compression)) : 0;
    GG_TRY(gg_packed_messages_create(&s->messages, capacity, cyclic ? 1 : s->group->size));
    if (s->n == 0) return GG_OK;
    gg_pack_sizes_add(&sizes, device, s->sorted, s->n);
    GG_TRY(gg_pack_room_create(device, &sizes, &s->packing.room));
    GG_TRY(create_sums(s));
    if (run->marks && here && s->compression.mode != GG_COMPRESSION_EXACT)
        GG_TRY(gg_pack_marks_create(s->sorted, s->n, &s->packing.marks));
    s->in_pieces = run->in_pieces && !cyclic;
    if (!s->in_pieces || !here) return GG_OK;
    GG_TRY(gg_packed_pieces_create(&s->sum));
    GG_TRY(gg_packed_source_factor(&s->source, s->sorted, s->n, s->residue));
    s->head.takes = s->source.factored != NULL;
    if (s->head.takes) s->packing.prepare = gg_packed_source_prepare;
    return GG_OK;
}

gg_status gg_packed_reduction_create(gg_strategy *owner, const gg_strategy_options *options,
                                     const gg_reduction_run *run, gg_reduction **out) {
    gg_status status = GG_OK;
    packed_reduction *s = NULL;
    const gg_reduction_run dense = {
        .group = run->group, .offset = run->offset, .count = run->count, .tag = run->tag, .applied = run->applied};
    *out = NULL;
    if (options->collectives == GG_COLLECTIVES_MPI)
        GG_FAIL_CLEANUP(GG_ERROR_ARGUMENT,
                        "collectives: 'mpi' with compression, but MPI has no sum of packed messages; allowed is 'own'");
    GG_TRY_CLEANUP(gg_calloc(1, sizeof *s, "reduction", &s));
    s->head.table = &table;
    s->owner = owner;
    s->group = run->group;
    s->compression = options->compression;
    s->offset = run->offset;
    s->count = run->count;
    s->source = (gg_packed_source){.owner = owner, .group = run->group};
    s->messages = (gg_packed_messages){.owner = owner, .group = run->group, .tag = run->tag};
    s->sum = (gg_packed_pieces){.packing = &s->packing, .messages = &s->messages, .source = &s->source};
    s->period = run->period > 0 ? run->period : 1;
    GG_TRY_CLEANUP(gg_segments_create(owner->env.layout, &s->compression, &s->segments));
    s->residue = run->residue;
    s->applied = run->applied != NULL ? run->applied - run->offset : NULL;
    if (run->accumulates) GG_TRY_CLEANUP(gg_packed_source_accumulate(&s->source, s->count));
    GG_TRY_CLEANUP(find_segments(s));
    if (s->n == 0) s->compression.warmup = INT64_MAX; /* all travels whole, always */
    if (s->compression.warmup > 0) GG_TRY_CLEANUP(gg_dense_reduction_create(owner, options, &dense, &s->dense));
    s->packing = (gg_packing){.compression = &s->compression,
                              .device = owner->env.device,
                              .segment = s->sorted,
                              .segments = s->n,
                              .counts = run->counts,
                              .prepare = run->accumulates ? gg_packed_source_prepare : NULL,
                              .context = &s->source};
    GG_TRY_CLEANUP(create_messages(s, run));
    *out = &s->head;
    s = NULL;
cleanup:
    if (s != NULL) packed_destroy(&s->head);
    return status;
}
