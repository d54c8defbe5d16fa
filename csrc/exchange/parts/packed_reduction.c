/* The reduction of packed messages (exchange/codec/packed.h), with error feedback. The first steps, as many as the
 * options say, go through a dense reduction.
 *
 * LOCAL: every rank adds its weighted data to its residue, chooses from the sum what it sends, and sends it to all.
 * Every rank adds the messages of all, its own too, in the order of ranks: all get the same bits.
 *
 * CYCLIC [after ScaleCom, Chen et al. 2020, arXiv 2104.11125]: for the sum number k rank k mod p chooses the elements
 * from its own residue, and sends the others which they are. All send their own values there, which are reduced as
 * dense ones are: so the sum is as sparse as one rank's message, and what a rank sends does not grow with p. The sum is
 * not rounded: in whose residue that would be would depend on how messages are cut.
 *
 * Parameters that travel whole are in LOCAL's messages if they are small; the others are reduced as without
 * compression, since messages to all are p/2 times the bytes: with two ranks all are in messages. What is small is said
 * of each parameter alone, so the bits do not depend on how layers are joined to messages. All this has one tag: every
 * rank starts the messages first, then this sum, and when it is there the sum of chosen values.
 *
 * Where the sum is read once (in_pieces), LOCAL's messages are checked when they arrive, and added up when it is
 * delivered, run by run in cache: the data are neither cleared nor written, nor read again. Where there are a linear
 * layer's inputs and errors (gg_reduction_input), the gradient of its weight is no array either (factored.h).
 *
 * Of a large weight whose next forward pass can make its rows current as it reads them, the part of the sum is
 * delivered there: an update by itself waits for memory, and beside products it hides. The messages are kept until
 * then.
 *
 * Own messages are in message memory, and are not written again before all peers have read them, which is what a finish
 * waits for. */
#include <string.h>

#include "base/memory.h"
#include "exchange/codec/packed.h"
#include "exchange/parts/chosen_values.h"
#include "exchange/parts/common.h"
#include "exchange/parts/factored.h"
#include "exchange/parts/left_rows.h"
#include "exchange/parts/reduction.h"
#include "exchange/parts/whole_parameters.h"

/* Elements of a weight whose update is worth being left to its next forward pass; and the messages that are kept for it
 * must be no more than one of so many parts of the weights that are left. */
#define LEAST_LEFT ((size_t)65536)
#define KEPT_SHARE 4

/* A parameter that travels whole has a sum of its own from so many elements on, if in messages to all a rank would send
 * so many bytes more for it; or if it has so many bytes, for which there is no room in messages. A sum of its own takes
 * messages and waits. */
#define LARGE ((size_t)1024)
#define LARGE_MORE ((size_t)24 << 10)
#define LARGE_BYTES ((size_t)1 << 20)

/* Elements that gg_updater_accumulate works on at once on the CPU, in cache. */
#define ACCUMULATED_AT_ONCE ((size_t)2048)

/* Elements that are packed run by run, or given out in pieces, between two calls in which other messages progress:
 * about 0.2 ms. */
#define PROGRESS_EVERY ((size_t)1 << 18)

/* What is waited for: nothing; a dense sum of all; the sum of whole parameters; the next rank's message; which elements
 * are chosen; their sum; with SUMMED the sum is there, but peers may still read. */
typedef enum stage { IDLE = 0, DENSE, ADDING_WHOLE, COLLECTING, CHOOSING, SUMMING, SUMMED } stage;

typedef struct packed_reduction {
    gg_reduction head;
    gg_strategy *owner;
    gg_transport *group;
    gg_compression compression;
    gg_reduction *dense; /* of the first steps */
    size_t offset, count;
    int tag;
    int64_t period;     /* steps from one sum to the next */
    float *equal_share; /* where data are accumulated: the weights of what all ranks have; else NULL */
    float own_scale;    /* where data are accumulated: of this rank's gradient in this step */
    float *room;        /* likewise: gg_accumulation's */
    size_t room_count;
    float *residue; /* an arena, by its element 0 */
    float *applied; /* likewise; NULL: not wanted */
    gg_segments segments;
    const gg_segment *run; /* those of this run, `in_run` of them */
    int in_run;
    gg_segment *sorted; /* the same: n that are in messages, then those that are reduced whole */
    int n;
    gg_packing packing;
    size_t capacity;     /* of a message */
    char *message;       /* message memory: this rank's */
    char *landing;       /* capacity bytes a rank; LOCAL: of all, CYCLIC: of one */
    gg_request *sent;    /* one a rank */
    gg_request *arrived; /* likewise */
    stage stage;
    int next;               /* COLLECTING: the rank whose message is read next */
    size_t size;            /* of the own message */
    bool in_pieces;         /* with LOCAL: what the data hold is undefined, if not on every device */
    gg_pack_pieces *pieces; /* where the sum of messages is delivered in pieces; else NULL */
    const void **messages;  /* likewise: one a rank */
    gg_left_rows rows;      /* likewise: what of it is left to the next forward pass */
    gg_factored *factored;  /* likewise: of linear layers whose gradients are no arrays either; NULL: there are none */
    float *data;            /* the run's first element */
    size_t passed;          /* elements since messages have progressed */
    gg_status progressed;
    gg_whole_parameters whole;
    gg_chosen_values chosen; /* CYCLIC only */
} packed_reduction;

/* The address that the arena's first element would have, if the data were all of it. */
static float *packed_base(const packed_reduction *s) { return s->data - s->offset; }

/* The optimiser's first half (gg_updater_accumulate), where data are accumulated: of each element once, before it is
 * read. */
static const float *accumulate(const packed_reduction *s, size_t offset, size_t count, float *gradient,
                               bool elsewhere) {
    const gg_strategy_env *env = &s->owner->env;
    return gg_updater_accumulate(env->updater, env->device, env->state,
                                 &(gg_accumulation){.step = s->owner->step,
                                                    .ranks = s->group->size,
                                                    .offset = offset,
                                                    .count = count,
                                                    .scale = s->own_scale,
                                                    .gradient = gradient,
                                                    .room = s->room,
                                                    .room_count = s->room_count,
                                                    .elsewhere = elsewhere});
}

/* `count` elements more have been worked on. A failure is kept until the work is done. */
static void let_progress(packed_reduction *s, size_t count) {
    s->passed += count;
    if (s->passed < PROGRESS_EVERY || s->progressed != GG_OK) return;
    s->passed = 0;
    s->progressed = gg_progress(s->group);
}

static gg_status progress_failure(packed_reduction *s) {
    const gg_status status = s->progressed;
    s->progressed = GG_OK;
    return status;
}

/* gg_packing.prepare. */
static const float *prepare(void *context, size_t offset, size_t count) {
    packed_reduction *s = context;
    let_progress(s, count);
    float *elsewhere = s->factored != NULL ? gg_factored_run(s->factored, offset, count) : NULL;
    float *gradient = elsewhere != NULL ? elsewhere : packed_base(s) + offset;
    if (s->equal_share != NULL)
        return accumulate(s, offset, count, gradient, !gg_device_is_separate(s->owner->env.device));
    return elsewhere;
}

/* Peers are visited from the next rank on, so that not all of them send to one. */
static gg_status send_to_all(packed_reduction *s) {
    const int p = s->group->size, rank = s->group->rank;
    for (int i = 1; i < p; ++i) {
        const int to = (rank + i) % p;
        GG_TRY(gg_send(s->group, s->message, s->size, to, s->tag, &s->sent[to]));
    }
    return GG_OK;
}

/* ---- parameters that are reduced whole ---- */

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

/* gg_whole_source. */
static const float *whole_values(void *context, size_t offset, size_t count) {
    const packed_reduction *s = context;
    float *gradient = packed_base(s) + offset;
    return s->equal_share != NULL ? accumulate(s, offset, count, gradient, true) : gradient;
}

/* The messages have been started. What else the data hold is in the residue. */
static gg_status start_whole(packed_reduction *s, const float *share) {
    s->stage = ADDING_WHOLE;
    GG_TRY(gg_whole_start(&s->whole, whole_values, s, share, s->packing.counts, &s->head.bytes));
    if (s->pieces == NULL) clear_data(s);
    return GG_OK;
}

static gg_status add_whole(packed_reduction *s, bool wait, bool *done) {
    GG_TRY(gg_whole_advance(&s->whole, packed_base(s), wait, done));
    if (*done) s->stage = s->compression.selection == GG_SELECTION_CYCLIC ? CHOOSING : COLLECTING;
    return GG_OK;
}

/* ---- local selection ---- */

static gg_status start_local(packed_reduction *s, float scale) {
    const int p = s->group->size, rank = s->group->rank;
    if (s->pieces != NULL) GG_TRY(gg_pack(&s->packing, scale, packed_base(s), s->residue, s->message, &s->size));
    else GG_TRY(gg_pack_and_clear(&s->packing, scale, packed_base(s), s->residue, s->message, &s->size));
    if (s->factored != NULL) gg_factored_end(s->factored);
    if (s->applied != NULL) GG_TRY(gg_unpack_add(&s->packing, s->message, s->size, 1.0f, s->applied));
    for (int i = 1; i < p; ++i) {
        const int from = (rank - i + p) % p;
        GG_TRY(gg_receive(s->group, s->landing + (size_t)from * s->capacity, s->capacity, from, s->tag,
                          &s->arrived[from]));
    }
    GG_TRY(send_to_all(s));
    s->head.bytes = s->size;
    s->next = 0;
    return GG_OK;
}

/* Adds the next rank's message, if it has arrived; where the sum is delivered in pieces it is checked instead. */
static gg_status collect_next(packed_reduction *s, bool wait, bool *done) {
    gg_status status = GG_OK;
    const int from = s->next;
    const bool own = from == s->group->rank;
    gg_request *request = &s->arrived[from];
    if (!own) GG_TRY(gg_strategy_reach(s->owner, s->group, request, wait, done));
    if (!*done) return status;
    const void *message = own ? s->message : request->data;
    const size_t bytes = own ? s->size : request->bytes;
    if (s->pieces == NULL) status = gg_unpack_add(&s->packing, message, bytes, 1.0f, packed_base(s));
    else if (!own) status = gg_packed_check(&s->packing, message, bytes);
    GG_TRY(gg_error_prefix(status, "message of rank %d: ", from));
    if (s->pieces != NULL) s->messages[from] = message;
    else if (!own) GG_TRY(gg_release(s->group, request));
    if (++s->next == s->group->size) s->stage = SUMMED;
    return status;
}

/* The segment is that of a linear layer's weight. */
static bool is_weight(const packed_reduction *s, const gg_segment *one) {
    const gg_parameter *weight = gg_factored_weight(s->owner->env.layout, one->layer);
    return one->bin > 0 && weight != NULL && weight->offset == one->offset;
}

/* Messages that lie with those who sent them are kept here, so that nobody waits. */
static void keep_messages(packed_reduction *s) {
    for (int i = 0; i < s->group->size; ++i) {
        char *place = s->landing + (size_t)i * s->capacity;
        if (i == s->group->rank || s->messages[i] == place) continue;
        memcpy(place, s->messages[i], s->arrived[i].bytes);
        s->messages[i] = place;
    }
}

/* The arrays that an update of the segment reads. */
static void name_used(const packed_reduction *s, const gg_segment *one, gg_weight_rows *rows) {
    const gg_state *state = s->owner->env.state;
    for (int i = 0; i < state->arenas && rows->used < GG_MOST_USED_NEXT; ++i) {
        const gg_arena *arena = &state->arena[i];
        if (arena->kind == GG_ARENA_WEIGHT || (arena->kind == GG_ARENA_MOMENT && s->equal_share == NULL))
            rows->used_next[rows->used++] = arena->data + one->offset;
    }
}

static void packed_need(gg_reduction *reduction, int layer, gg_weight_rows *rows) {
    packed_reduction *s = (packed_reduction *)reduction;
    gg_left_rows_need(&s->rows, layer, rows != NULL && s->owner->step >= s->compression.warmup, rows);
    if (rows != NULL && rows->make != NULL) name_used(s, &s->sorted[s->rows.making], rows);
}

static bool packed_can_wait(const gg_reduction *reduction) {
    const packed_reduction *s = (const packed_reduction *)reduction;
    bool may = false;
    for (int i = 0; s->rows.may != NULL && i < s->n; ++i) may = may || s->rows.may[i];
    return may && (s->stage == COLLECTING || s->stage == SUMMED);
}

static bool packed_is_asked(const gg_reduction *reduction) {
    const packed_reduction *s = (const packed_reduction *)reduction;
    return s->rows.may != NULL && gg_left_rows_asked(&s->rows) > 0;
}

/* Bytes of others' messages. */
static size_t bytes_of_others(const packed_reduction *s) {
    size_t bytes = 0;
    for (int i = 0; i < s->group->size; ++i)
        if (i != s->group->rank) bytes += s->arrived[i].bytes;
    return bytes;
}

static void pass_piece(void *context, size_t offset, size_t count, const float *sum, gg_lines filled) {
    packed_reduction *s = context;
    s->rows.piece(s->rows.context, offset, count, sum, filled);
    let_progress(s, count);
}

/* What the messages say, and where parameters travel whole their sums, which are in the data. */
static gg_status deliver_pieces(packed_reduction *s, gg_reduction_piece *piece, void *context) {
    const int p = s->group->size, rank = s->group->rank;
    const bool leaves = bytes_of_others(s) < gg_left_rows_asked(&s->rows) / KEPT_SHARE * sizeof(float);
    const bool *left = gg_left_rows_leave(&s->rows, leaves, piece, context);
    if (s->rows.count > 0) keep_messages(s);
    gg_unpack_pieces(&s->packing, s->pieces, s->messages, p, left, pass_piece, s);
    GG_TRY(progress_failure(s));
    for (int i = 0; i < p; ++i)
        if (i != rank) GG_TRY(gg_release(s->group, &s->arrived[i]));
    for (int i = s->n; i < s->in_run; ++i) {
        const gg_segment *one = &s->sorted[i];
        const size_t lanes = (one->count + GG_LANES - 1) / GG_LANES * GG_LANES;
        float *sum = packed_base(s) + one->offset;
        memset(sum + one->count, 0, (lanes - one->count) * sizeof *sum);
        piece(context, one->offset, lanes, sum, (gg_lines){0});
    }
    return GG_OK;
}

/* ---- cyclic selection ---- */

static gg_status start_cyclic(packed_reduction *s, float scale) {
    const int rank = s->group->rank, chooser = (int)(s->owner->step / s->period % s->group->size);
    if (chooser == rank) {
        GG_TRY(gg_pack_choice(&s->packing, scale, packed_base(s), s->residue, s->message, &s->size));
        GG_TRY(send_to_all(s));
        s->head.bytes = s->size;
    } else {
        s->head.bytes = 0;
        GG_TRY(gg_pack_accumulate(&s->packing, scale, packed_base(s), s->residue));
        GG_TRY(gg_receive(s->group, s->landing, s->capacity, chooser, s->tag, &s->arrived[chooser]));
    }
    s->next = chooser;
    return GG_OK;
}

static const void *choice_of(const packed_reduction *s) {
    return s->next == s->group->rank ? s->message : s->arrived[s->next].data;
}

/* Sends the own values at the chosen elements, if it is known which these are. */
static gg_status start_values(packed_reduction *s, bool wait, bool *done) {
    gg_status status = GG_OK;
    const bool own = s->next == s->group->rank;
    size_t count;
    if (!own) GG_TRY(gg_strategy_reach(s->owner, s->group, &s->arrived[s->next], wait, done));
    if (!*done) return status;
    status = gg_choice_values(s->sorted, s->n, choice_of(s), own ? s->size : s->arrived[s->next].bytes, &count);
    GG_TRY(gg_error_prefix(status, "choice of rank %d: ", s->next));
    GG_TRY(gg_chosen_start(&s->chosen, choice_of(s), count, &s->head.bytes));
    s->stage = SUMMING;
    return status;
}

static gg_status add_values(packed_reduction *s, bool wait, bool *done) {
    GG_TRY(gg_chosen_advance(&s->chosen, choice_of(s), packed_base(s), wait, done));
    if (!*done) return GG_OK;
    GG_TRY(gg_release(s->group, &s->arrived[s->next]));
    s->stage = SUMMED;
    return GG_OK;
}

/* ---- the table ---- */

static gg_status packed_failed(packed_reduction *s, gg_status status) {
    if (status == GG_OK) return status;
    gg_cancel_all(s->group, s->sent, s->group->size);
    gg_cancel_all(s->group, s->arrived, s->group->size);
    gg_whole_cancel(&s->whole);
    gg_chosen_cancel(&s->chosen);
    if (s->factored != NULL) gg_factored_end(s->factored);
    s->stage = IDLE;
    return status;
}

/* Continues until the sum is there: in the data, or as messages that are checked. Without `wait` it stops at the first
 * message that has not arrived yet. */
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
    float scale = share[s->group->rank];
    if (s->stage != IDLE)
        GG_FAIL_CLEANUP(GG_ERROR_STATE, "packed sum of %zu values: started again before it was finished", s->count);
    packed_need(reduction, GG_ALL_LAYERS, NULL);
    s->data = data;
    if (s->equal_share != NULL) {
        s->own_scale = scale * (float)s->group->size;
        share = s->equal_share;
        scale = share[s->group->rank];
    }
    if (s->owner->step < s->compression.warmup) {
        if (s->equal_share != NULL) (void)accumulate(s, s->offset, s->count, s->data, false);
        gg_compression_count_dense(s->run, s->in_run, s->packing.counts);
        GG_TRY_CLEANUP(gg_reduction_start(s->dense, data, share));
        s->head.bytes = s->dense->bytes;
        s->stage = DENSE;
        goto cleanup;
    }
    GG_TRY_CLEANUP(s->compression.selection == GG_SELECTION_CYCLIC ? start_cyclic(s, scale) : start_local(s, scale));
    GG_TRY_CLEANUP(progress_failure(s));
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
    if (s->pieces != NULL) return packed_failed(s, deliver_pieces(s, piece, context));
    piece(context, s->offset, s->count, s->data, (gg_lines){0});
    return GG_OK;
}

static gg_status packed_finish(gg_reduction *reduction) {
    gg_status status = GG_OK;
    packed_reduction *s = (packed_reduction *)reduction;
    bool read = false;
    GG_TRY_CLEANUP(packed_wait(reduction));
    if (s->stage == DENSE) GG_TRY_CLEANUP(gg_reduction_finish(s->dense));
    for (int i = 0; s->stage == SUMMED && i < s->group->size; ++i)
        GG_TRY_CLEANUP(gg_strategy_reach(s->owner, s->group, &s->sent[i], true, &read));
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
    if (s->factored == NULL || s->owner->step < s->compression.warmup) return GG_OK;
    return gg_factored_input(s->factored, layer, input, taken);
}

static gg_status packed_error(gg_reduction *reduction, int layer, const gg_vectors *error) {
    return gg_factored_error(((packed_reduction *)reduction)->factored, layer, error);
}

static void packed_destroy(gg_reduction *reduction) {
    packed_reduction *s = (packed_reduction *)reduction;
    (void)packed_failed(s, GG_ERROR_STATE); /* requests must not outlive their memory */
    gg_whole_destroy(&s->whole);
    gg_chosen_destroy(&s->chosen);
    gg_reduction_destroy(s->dense);
    gg_message_free(s->owner->env.transport, s->message);
    gg_free(s->equal_share);
    gg_free(s->landing);
    gg_free(s->sent);
    gg_free(s->arrived);
    gg_pack_room_destroy(s->packing.room);
    gg_pack_pieces_destroy(s->pieces);
    gg_pack_marks_destroy(s->packing.marks);
    gg_factored_destroy(s->factored);
    gg_left_rows_destroy(&s->rows);
    gg_free(s->messages);
    gg_device_free(s->owner->env.device, s->room);
    gg_free(s->sorted);
    gg_segments_destroy(&s->segments);
    gg_free(s);
}

static const gg_reduction_table table = {packed_start,  packed_poll,     packed_wait,     packed_deliver,
                                         packed_finish, packed_complete, packed_destroy,  packed_input,
                                         packed_error,  packed_need,     packed_can_wait, packed_is_asked};

/* Whether elements of an arena are used where the gradient that is packed is. */
static bool is_used(const packed_reduction *s, const gg_arena *arena) {
    const bool accumulates = s->equal_share != NULL;
    const gg_optimizer *optimizer = s->owner->env.updater->optimizer;
    if (arena->kind == GG_ARENA_WEIGHT) return accumulates && gg_optimizer_decays_gradients(optimizer);
    if (arena->kind == GG_ARENA_MOMENT) return accumulates;
    return arena->data == s->residue;
}

/* Of the weights of linear layers in messages the gradients need be no arrays. Several threads would choose from what
 * lies in each other's caches. */
static gg_status create_factored(packed_reduction *s) {
    gg_status status = GG_OK;
    const gg_strategy_env *env = &s->owner->env;
    gg_factored_wish *wish = NULL;
    int wishes = 0;
    if (env->device->threads > 1) goto cleanup;
    GG_TRY_CLEANUP(gg_calloc((size_t)s->n, sizeof *wish, "factors", &wish));
    for (int i = 0; i < s->n; ++i) {
        const gg_segment *one = &s->sorted[i];
        if (is_weight(s, one))
            wish[wishes++] = (gg_factored_wish){.layer = one->layer, .run = gg_pack_run((size_t)one->bin)};
    }
    GG_TRY_CLEANUP(gg_factored_create(env->device, env->layout, wish, wishes, &s->factored));
    s->head.takes = s->factored != NULL;
    if (s->factored == NULL) goto cleanup;
    s->packing.prepare = prepare;
    for (int i = 0; i < env->state->arenas; ++i)
        if (is_used(s, &env->state->arena[i])) gg_factored_uses(s->factored, &env->state->arena[i]);
cleanup:
    gg_free(wish);
    return status;
}

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

/* Of parameters that travel whole, and with CYCLIC of chosen values. */
static gg_status create_sums(packed_reduction *s) {
    s->whole = (gg_whole_parameters){.owner = s->owner,
                                     .group = s->group,
                                     .segment = s->sorted + s->n,
                                     .segments = s->in_run - s->n,
                                     .residue = s->residue,
                                     .applied = s->applied};
    GG_TRY(gg_whole_create(&s->whole, s->tag));
    if (s->compression.selection != GG_SELECTION_CYCLIC) return GG_OK;
    s->chosen = (gg_chosen_values){
        .owner = s->owner, .group = s->group, .packing = &s->packing, .residue = s->residue, .applied = s->applied};
    return gg_chosen_create(&s->chosen, s->count, s->tag);
}

/* Only what messages fill of the landing is ever touched, so it costs address space and little memory. */
static gg_status create_messages(packed_reduction *s, const gg_reduction_run *run) {
    const bool cyclic = s->compression.selection == GG_SELECTION_CYCLIC;
    const bool here = !cyclic && !gg_device_is_separate(s->owner->env.device);
    gg_pack_sizes sizes = {0};
    s->capacity = gg_aligned(gg_packed_capacity(s->sorted, s->n, &s->compression));
    gg_pack_sizes_add(&sizes, s->owner->env.device, s->sorted, s->n);
    GG_TRY(gg_pack_room_create(s->owner->env.device, &sizes, &s->packing.room));
    GG_TRY(gg_message_alloc(s->owner->env.transport, s->capacity, "packed message", &s->message));
    GG_TRY(gg_alloc((size_t)(cyclic ? 1 : s->group->size) * s->capacity, "landing of packed messages", &s->landing));
    GG_TRY(create_sums(s));
    if (run->marks && here && s->compression.mode != GG_COMPRESSION_EXACT)
        GG_TRY(gg_pack_marks_create(s->sorted, s->n, &s->packing.marks));
    s->in_pieces = run->in_pieces && !cyclic;
    if (s->in_pieces && here) {
        GG_TRY(gg_pack_pieces_create(s->owner->env.device, s->sorted, s->n, s->group->size, &s->pieces));
        GG_TRY(gg_calloc((size_t)s->group->size, sizeof *s->messages, "packed messages", &s->messages));
        GG_TRY(gg_left_rows_create(&s->packing, s->pieces, s->messages, s->group->size, &s->rows));
        for (int i = 0; i < s->n; ++i) s->rows.may[i] = is_weight(s, &s->sorted[i]) && s->sorted[i].count >= LEAST_LEFT;
        GG_TRY(create_factored(s));
    }
    return GG_OK;
}

gg_status gg_packed_reduction_create(gg_strategy *owner, const gg_strategy_options *options,
                                     const gg_reduction_run *run, gg_reduction **out) {
    gg_status status = GG_OK;
    packed_reduction *s = NULL;
    const size_t p = (size_t)run->group->size;
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
    s->tag = run->tag;
    s->period = run->period > 0 ? run->period : 1;
    GG_TRY_CLEANUP(gg_segments_create(owner->env.layout, &s->compression, &s->segments));
    s->residue = run->residue;
    s->applied = run->applied != NULL ? run->applied - run->offset : NULL;
    if (run->accumulates) {
        GG_TRY_CLEANUP(gg_calloc(p, sizeof *s->equal_share, "shares", &s->equal_share));
        s->room_count = gg_device_is_separate(owner->env.device) ? s->count : ACCUMULATED_AT_ONCE;
        GG_TRY_CLEANUP(
            gg_device_alloc(owner->env.device, s->room_count * sizeof *s->room, "gradients with decay", &s->room));
    }
    for (size_t i = 0; i < p && run->accumulates; ++i) s->equal_share[i] = 1.0f / (float)p;
    GG_TRY_CLEANUP(find_segments(s));
    if (s->n == 0) s->compression.warmup = INT64_MAX; /* all travels whole, always */
    if (s->compression.warmup > 0) GG_TRY_CLEANUP(gg_dense_reduction_create(owner, options, &dense, &s->dense));
    GG_TRY_CLEANUP(gg_calloc(p, sizeof *s->sent, "requests", &s->sent));
    GG_TRY_CLEANUP(gg_calloc(p, sizeof *s->arrived, "requests", &s->arrived));
    s->packing = (gg_packing){.compression = &s->compression,
                              .device = owner->env.device,
                              .segment = s->sorted,
                              .segments = s->n,
                              .counts = run->counts,
                              .prepare = run->accumulates ? prepare : NULL,
                              .context = s};
    if (s->n > 0) GG_TRY_CLEANUP(create_messages(s, run));
    *out = &s->head;
    s = NULL;
cleanup:
    if (s != NULL) packed_destroy(&s->head);
    return status;
}
