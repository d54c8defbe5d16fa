/* Sums of packed messages in pieces that stay in cache. Every message has a cursor, which reads ahead by a block of
 * elements. */
#include "base/memory.h"
#include "exchange/codec/packed_format.h"

/* Elements of a piece for each reading thread: they stay in the L2 cache. */
#define PIECE ((size_t)16384)

/* Elements whose lines a word of `filled` tells of. */
#define WORD ((size_t)64 * GG_LANES)

/* Elements that a cursor reads at once. */
#define BLOCK ((size_t)64)

typedef struct message_cursor {
    const unsigned char *at, *end; /* the parts that follow */
    message_form form;
    message_part part;
    code_reader reader;
    size_t next, count; /* of `element`: the next one to add, and their number; less than BLOCK means the last */
    size_t value;       /* value of element[next], in the part */
    uint32_t element[BLOCK];
} message_cursor;

struct gg_pack_pieces {
    size_t piece;
    float *sum;          /* zeros between two pieces */
    unsigned char *line; /* one a line of the piece: 1 if something was added; zero between two pieces */
    uint64_t *filled;    /* `line` in bits, 64 lines a word */
    message_cursor *cursor;
};

/* Words of `filled`, and 64 bytes of `line` each. */
static size_t filled_words(size_t elements) { return (elements + WORD - 1) / WORD; }

gg_status gg_pack_pieces_create(const gg_device *device, const gg_segment *segment, int segments, int messages,
                                gg_pack_pieces **out) {
    gg_status status = GG_OK;
    gg_pack_pieces *made = NULL;
    size_t longest = 0;
    *out = NULL;
    GG_TRY_CLEANUP(gg_calloc(1, sizeof *made, "sum in pieces", &made));
    made->piece = PIECE * (size_t)device->threads;
    for (int i = 0; i < segments; ++i)
        if (segment[i].count > longest) longest = segment[i].count;
    longest = (longest + GG_LANES - 1) / GG_LANES * GG_LANES;
    if (made->piece > longest) made->piece = longest;
    GG_TRY_CLEANUP(gg_calloc(made->piece, sizeof *made->sum, "sum in pieces", &made->sum));
    GG_TRY_CLEANUP(gg_calloc(filled_words(made->piece), 64, "sum in pieces", &made->line));
    GG_TRY_CLEANUP(gg_calloc(filled_words(made->piece) + 1, sizeof *made->filled, "sum in pieces", &made->filled));
    GG_TRY_CLEANUP(gg_calloc((size_t)messages, sizeof *made->cursor, "sum in pieces", &made->cursor));
    *out = made;
    made = NULL;
cleanup:
    gg_pack_pieces_destroy(made);
    return status;
}

void gg_pack_pieces_destroy(gg_pack_pieces *pieces) {
    if (pieces == NULL) return;
    gg_free(pieces->cursor);
    gg_free(pieces->filled);
    gg_free(pieces->line);
    gg_free(pieces->sum);
    gg_free(pieces);
}

static void read_block(message_cursor *c) {
    (void)gg_packed_elements(&c->reader, BLOCK, c->element, &c->count); /* the codes have been checked */
    c->next = 0;
}

static void begin_message(message_cursor *c, const unsigned char *message) {
    uint64_t whole;
    memcpy(&whole, message + 8, sizeof whole);
    c->form = (message_form)message[3];
    c->at = message + HEADER_BYTES;
    c->end = message + whole;
}

static void begin_part(message_cursor *c, const gg_segment *segment, int i) {
    (void)gg_packed_part(segment, i, c->form, &c->at, c->end, &c->part); /* the message has been checked */
    c->value = 0;
    if (segment->bin == 0) return;
    c->reader = reader_of(segment, c->part.codes, c->part.bytes);
    read_block(c);
}

/* The elements of a block in [begin, end), to the sum from `begin` on. */
GG_INLINE void add_block(message_cursor *c, const bool signs, gg_dtype dtype, size_t begin, size_t end,
                         gg_pack_pieces *pieces) {
    const float both[2] = {c->part.scale, -c->part.scale};
    const uint32_t *element = c->element;
    float *const sum = pieces->sum;
    unsigned char *const line = pieces->line; /* a bit would wait for that of the element before */
    size_t i = c->next;
    for (; i < c->count && (element[i] & ~GG_ELEMENT_NEGATIVE) < end; ++i) {
        const size_t own = (element[i] & ~GG_ELEMENT_NEGATIVE) - begin;
        line[own / GG_LANES] = 1;
        if (signs) sum[own] += both[element[i] / GG_ELEMENT_NEGATIVE];
        else sum[own] += value_at(c->part.values, dtype, c->value++);
    }
    c->next = i;
}

/* Adds the message's elements [begin, end) of a segment to the sum, which starts at `begin`. */
static void add_elements(message_cursor *c, const gg_segment *segment, size_t begin, size_t end,
                         gg_pack_pieces *pieces) {
    if (segment->bin == 0) {
        for (size_t j = begin; j < end; ++j) pieces->sum[j - begin] += value_at(c->part.values, GG_FLOAT32, j);
        memset(pieces->line, 1, (end - begin + GG_LANES - 1) / GG_LANES);
        return;
    }
    for (;;) {
        if (c->form == FORM_SCALE) add_block(c, true, GG_FLOAT32, begin, end, pieces);
        else add_block(c, false, c->form == FORM_NARROW ? GG_BFLOAT16 : GG_FLOAT32, begin, end, pieces);
        if (c->next < c->count || c->count < BLOCK) return;
        read_block(c);
    }
}

/* The bits of all lines of `elements`; none is noted any longer. */
static void gather_lines(gg_pack_pieces *pieces, size_t elements) {
    const size_t words = filled_words(elements);
    for (size_t w = 0; w < words; ++w) {
        uint64_t bits = 0;
        for (int i = 0; i < 8; ++i) {
            uint64_t eight; /* bytes of 0 or 1, the first one lowest: their bits gather in the highest byte */
            memcpy(&eight, pieces->line + 64 * w + 8 * i, sizeof eight);
            bits |= (eight * 0x0102040810204080u) >> 56 << 8 * i;
        }
        pieces->filled[w] = bits;
    }
    memset(pieces->line, 0, 64 * words);
}

/* The sum becomes zero again, line by line. */
static void clear_filled(gg_pack_pieces *pieces, size_t elements) {
    for (size_t w = 0; w < filled_words(elements); ++w) {
        float *const sum = pieces->sum + w * WORD;
        for (uint64_t left = pieces->filled[w]; left != 0; left &= left - 1)
            memset(sum + (size_t)__builtin_ctzll(left) * GG_LANES, 0, GG_LANES * sizeof *sum);
    }
}

static void pass_segment(gg_pack_pieces *pieces, const gg_segment *segment, int messages, gg_pack_piece *piece,
                         void *context) {
    for (size_t begin = 0, end; begin < segment->count; begin = end) {
        end = segment->count - begin < pieces->piece ? segment->count : begin + pieces->piece;
        const size_t lanes = (end - begin + GG_LANES - 1) / GG_LANES * GG_LANES;
        for (int m = 0; m < messages; ++m) add_elements(&pieces->cursor[m], segment, begin, end, pieces);
        gather_lines(pieces, lanes);
        piece(context, segment->offset + begin, lanes, pieces->sum, (gg_lines){.bits = pieces->filled});
        clear_filled(pieces, lanes);
    }
}

void gg_unpack_pieces(const gg_packing *packing, gg_pack_pieces *pieces, const void *const *message, int messages,
                      gg_pack_piece *piece, void *context) {
    for (int m = 0; m < messages; ++m) begin_message(&pieces->cursor[m], message[m]);
    for (int i = 0; i < packing->segments; ++i) {
        for (int m = 0; m < messages; ++m) begin_part(&pieces->cursor[m], &packing->segment[i], i);
        pass_segment(pieces, &packing->segment[i], messages, piece, context);
    }
}
