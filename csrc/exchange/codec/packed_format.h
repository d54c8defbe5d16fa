/* Private to packed.c, unpacked.c and pieces.c: the format of packed messages (packed.h), and the reader of codes.
 * Numbers are copied unconverted: hosts are little-endian. */
#ifndef GG_EXCHANGE_CODEC_PACKED_FORMAT_H
#define GG_EXCHANGE_CODEC_PACKED_FORMAT_H

#include <string.h>

#include "exchange/codec/packed.h"

#define GG_INLINE static inline __attribute__((always_inline))

#define HEADER_BYTES ((size_t)16)
#define PART_BYTES ((size_t)8) /* bytes of codes, and scale or number of elements */
#define VERSION 1

typedef enum message_form { FORM_SCALE = 0, FORM_CHOICE, FORM_NARROW, FORM_VALUES, FORM_COUNT } message_form;

/* Bins of fewer elements have codes of one byte. */
#define WIDE_FROM 64

enum { FLAG_NEGATIVE = 1, FLAG_FIRST = 2 };               /* of an element */
enum { EMPTY_ONE = 0, EMPTY_UNIT, EMPTY_LONG, NO_EMPTY }; /* of a mark: encoding of the number of bins that follows */

static inline size_t aligned_up(size_t bytes, size_t to) { return (bytes + to - 1) / to * to; }

static inline size_t unit_bytes(const gg_segment *segment) { return segment->bin < WIDE_FROM ? 1 : 2; }

static inline uint32_t read_u32(const unsigned char *at) {
    uint32_t value;
    memcpy(&value, at, sizeof value);
    return value;
}

static inline float read_float(const unsigned char *at) {
    float value;
    memcpy(&value, at, sizeof value);
    return value;
}

GG_INLINE float widened(uint16_t value) {
    const uint32_t bits = (uint32_t)value << 16;
    float wide;
    memcpy(&wide, &bits, sizeof wide);
    return wide;
}

static inline uint32_t hashed(uint32_t hash, uint64_t value) {
    for (int i = 0; i < 8; ++i, value >>= 8) hash = (hash ^ (uint32_t)(value & 0xffu)) * 16777619u;
    return hash;
}

static inline uint32_t layout_of(const gg_segment *segment, int segments) {
    uint32_t hash = hashed(2166136261u, (uint64_t)segments);
    for (int i = 0; i < segments; ++i) {
        hash = hashed(hash, segment[i].offset - segment[0].offset);
        hash = hashed(hash, segment[i].count);
        hash = hashed(hash, (uint64_t)segment[i].bin);
    }
    return hash;
}

GG_INLINE uint32_t unit_at(const unsigned char *at, bool wide) {
    uint16_t unit;
    if (!wide) return *at;
    memcpy(&unit, at, sizeof unit);
    return unit;
}

GG_INLINE uint32_t flags_shift(bool wide) { return wide ? 14 : 6; }

/* The place of no element. */
GG_INLINE uint32_t empty_mark(bool wide) { return (1u << flags_shift(wide)) - 1; }

/* Reads the codes of a segment. For any codes, its elements ascend and lie in the segment. */
typedef struct code_reader {
    const unsigned char *at, *end;
    size_t count, bin;
    size_t start; /* first element of the last begun bin; -bin (wraps around) means none */
    size_t least; /* min allowed place; `bin` means that no bin is open */
} code_reader;

static inline code_reader reader_of(const gg_segment *segment, const unsigned char *codes, size_t bytes) {
    const size_t bin = (size_t)segment->bin;
    return (code_reader){
        .at = codes, .end = codes + bytes, .count = segment->count, .bin = bin, .start = -bin, .least = bin};
}

static inline bool skip_empty(code_reader *r, bool wide, uint32_t flags) {
    const size_t next = r->start + r->bin, left = next < r->count ? (r->count - next + r->bin - 1) / r->bin : 0;
    const size_t unit = wide ? 2 : 1, more = flags == EMPTY_UNIT ? unit : flags == EMPTY_LONG ? 4 : 0;
    size_t bins = 1;
    if (flags == NO_EMPTY || (size_t)(r->end - r->at) < more) return false;
    if (flags == EMPTY_UNIT) bins = (size_t)unit_at(r->at, wide) + 2;
    if (flags == EMPTY_LONG) bins = read_u32(r->at);
    if (bins > left) return false;
    r->at += more;
    r->start += bins * r->bin;
    r->least = r->bin;
    return true;
}

/* Passes a code without an element; false if it does not stand for empty bins of the segment either. */
static inline bool pass_empty(code_reader *r) {
    const bool wide = r->bin >= WIDE_FROM;
    const uint32_t code = unit_at(r->at, wide), mark = empty_mark(wide);
    if ((code & mark) != mark) return false;
    r->at += wide ? 2 : 1;
    return skip_empty(r, wide, code >> flags_shift(wide));
}

/* A part of a message with checked sizes. */
typedef struct message_part {
    const unsigned char *codes, *values; /* dense: values alone */
    size_t bytes, elements;              /* of codes; elements: unknown in form SCALE */
    float scale;
} message_part;

/* The part of segment i that begins at *at; moves *at to its end. GG_ERROR_COMM if its sizes do not fit. */
gg_status gg_packed_part(const gg_segment *segment, int i, message_form form, const unsigned char **at,
                         const unsigned char *end, message_part *out);

/* Reads up to `room` elements, fewer only at the end, with GG_ELEMENT_NEGATIVE. False means a wrong code: the reader is
 * then useless, but counted elements still belong to the segment. */
bool gg_packed_elements(code_reader *reader, size_t room, uint32_t *out, size_t *count);

GG_INLINE float value_at(const unsigned char *values, gg_dtype dtype, size_t n) {
    uint16_t narrow;
    if (dtype != GG_BFLOAT16) return read_float(values + n * sizeof(float));
    memcpy(&narrow, values + n * sizeof narrow, sizeof narrow);
    return widened(narrow);
}

/* The part of a trusted choice that begins at *at. */
static inline message_part trusted_part(const unsigned char **at) {
    const message_part part = {
        .codes = *at + PART_BYTES, .bytes = read_u32(*at), .elements = read_u32(*at + 4), .scale = 0};
    *at = part.codes + aligned_up(part.bytes, 4);
    return part;
}

static inline void count_bytes(gg_compression_counts *counts, const gg_segment *segment, size_t dense, size_t sent) {
    if (counts == NULL) return;
    counts->dense_bytes[segment->family] += (int64_t)dense;
    counts->sent_bytes[segment->family] += (int64_t)sent;
}

#endif
