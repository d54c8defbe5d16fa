/* Packed messages that have arrived: whatever their bytes, nothing outside of the segments is written. */
#include <math.h>

#include "compress/packed_format.h"

static gg_status read_header(const gg_segment *segment, int segments, const unsigned char *message, size_t bytes,
                             message_form *form) {
    gg_status status = GG_OK;
    uint64_t whole;
    if (bytes < HEADER_BYTES)
        GG_FAIL(GG_ERROR_COMM, "packed message: %zu bytes, fewer than its header of %zu", bytes, HEADER_BYTES);
    if (message[0] != 'g' || message[1] != 'P')
        GG_FAIL(GG_ERROR_COMM, "packed message: begins with the bytes %02x %02x, expected 67 50", message[0],
                message[1]);
    if (message[2] != VERSION) GG_FAIL(GG_ERROR_COMM, "packed message: version %d, known is %d", message[2], VERSION);
    if (message[3] >= FORM_COUNT)
        GG_FAIL(GG_ERROR_COMM, "packed message: form %d, known are 0 to %d", message[3], FORM_COUNT - 1);
    const uint32_t layout = layout_of(segment, segments);
    if (read_u32(message + 4) != layout)
        GG_FAIL(GG_ERROR_COMM, "packed message: of other parameters or bins (layout %08x, here %08x)",
                (unsigned)read_u32(message + 4), (unsigned)layout);
    memcpy(&whole, message + 8, sizeof whole);
    if (whole != bytes)
        GG_FAIL(GG_ERROR_COMM, "packed message: %zu bytes have arrived of %llu", bytes, (unsigned long long)whole);
    *form = (message_form)message[3];
cleanup:
    return status;
}

bool gg_packed_fits(const gg_segment *segment, int segments, const void *message, size_t bytes) {
    return bytes >= HEADER_BYTES && read_u32((const unsigned char *)message + 4) == layout_of(segment, segments);
}

static gg_status wrong_part(const gg_segment *segment, int i, const char *what) {
    return gg_fail(GG_ERROR_COMM, "packed message: parameter %d ('%s'): %s", i, segment->name, what);
}

static bool gap_is_clear(const unsigned char *from, const unsigned char *to) {
    while (from < to)
        if (*from++ != 0) return false;
    return true;
}

/* *at: the part's beginning, then its end. */
static gg_status read_part(const gg_segment *segment, int i, message_form form, const unsigned char **at,
                           const unsigned char *end, message_part *out) {
    gg_status status = GG_OK;
    const unsigned char *p = *at;
    size_t left = (size_t)(end - p);
    *out = (message_part){.values = p};
    if (segment->bin == 0) {
        if (form == FORM_CHOICE) goto cleanup;
        if (left / sizeof(float) < segment->count) GG_TRY(wrong_part(segment, i, "its values are cut off"));
        *at = p + segment->count * sizeof(float);
        goto cleanup;
    }
    if (left < PART_BYTES) GG_TRY(wrong_part(segment, i, "it is cut off"));
    out->bytes = read_u32(p);
    out->codes = p + PART_BYTES;
    left -= PART_BYTES;
    if (left < aligned_up(out->bytes, 4)) GG_TRY(wrong_part(segment, i, "its codes are cut off"));
    if (out->bytes % unit_bytes(segment) != 0 || out->bytes / unit_bytes(segment) > segment->count)
        GG_TRY(wrong_part(segment, i, "the length of its codes is impossible"));
    out->values = out->codes + aligned_up(out->bytes, 4);
    left -= aligned_up(out->bytes, 4);
    if (!gap_is_clear(out->codes + out->bytes, out->values))
        GG_TRY(wrong_part(segment, i, "a byte between its parts is not zero"));
    *at = out->values;
    if (form == FORM_SCALE) {
        out->scale = read_float(p + 4);
        if (!(out->scale >= 0 && isfinite(out->scale))) GG_TRY(wrong_part(segment, i, "its scale is not a size"));
        goto cleanup;
    }
    out->elements = read_u32(p + 4);
    if (out->elements > segment->count) GG_TRY(wrong_part(segment, i, "it has more elements than there are"));
    if (form == FORM_CHOICE) goto cleanup;
    const size_t bytes = out->elements * gg_dtype_size(form == FORM_NARROW ? GG_BFLOAT16 : GG_FLOAT32);
    if (left < aligned_up(bytes, 4)) GG_TRY(wrong_part(segment, i, "its values are cut off"));
    *at = out->values + aligned_up(bytes, 4);
    if (!gap_is_clear(out->values + bytes, *at)) GG_TRY(wrong_part(segment, i, "a byte between its parts is not zero"));
cleanup:
    return status;
}

GG_INLINE float value_at(const unsigned char *values, gg_dtype dtype, size_t n) {
    uint16_t narrow;
    if (dtype != GG_BFLOAT16) return read_float(values + n * sizeof(float));
    memcpy(&narrow, values + n * sizeof narrow, sizeof narrow);
    return widened(narrow);
}

/* Elements of long bins that are read at once, so that what lies in memory is requested early. */
#define BLOCK 64
#define NEGATIVE 0x80000000u

_Static_assert(GG_MOST_PACKED < NEGATIVE, "the highest bit of an element is free");

typedef struct element_block {
    size_t count;
    uint32_t element[BLOCK]; /* and NEGATIVE, where it is */
} element_block;

/* A whole block of codes, none of which stands for empty bins; false: that is not what it is, and the reader stays. */
static bool read_whole(code_reader *r, element_block *block) {
    const size_t unit = sizeof(uint16_t), bin = r->bin;
    const unsigned char *const at = r->at;
    size_t start = r->start, least = r->least, wrong = 0, element = 0;
    if ((size_t)(r->end - at) < BLOCK * unit) return false;
    for (size_t i = 0; i < BLOCK; ++i) {
        const uint32_t code = unit_at(at + i * unit, true), flags = code >> flags_shift(true);
        const size_t place = code & empty_mark(true), first = -(size_t)(flags / FLAG_FIRST);
        start += bin & first;
        least &= ~first;
        wrong |= place - least >= bin - least; /* also the mark of empty bins, which is no place in a bin */
        least = place + 1;
        element = start + place;
        block->element[i] = (uint32_t)element | flags % FLAG_FIRST * NEGATIVE;
    }
    if (wrong != 0 || element >= r->count) return false; /* they ascend */
    r->at = at + BLOCK * unit;
    r->start = start;
    r->least = least;
    block->count = BLOCK;
    return true;
}

/* The next elements, none at the end; false: a code is wrong. out: where they will be added; NULL: nowhere. */
static bool read_block(code_reader *r, const float *out, element_block *block) {
    size_t element;
    uint32_t negative;
    read_result result = READ_ELEMENT;
    if (!read_whole(r, block)) {
        for (block->count = 0; block->count < BLOCK; ++block->count) {
            result = next_element(r, true, &element, &negative);
            if (result != READ_ELEMENT) break;
            block->element[block->count] = (uint32_t)element | negative * NEGATIVE;
        }
    }
    for (size_t i = 0; i < block->count && out != NULL; ++i) __builtin_prefetch(out + block->element[i] % NEGATIVE, 1);
    return result != READ_WRONG;
}

/* out: of the segment; NULL: only checks and counts. Of short bins most cache lines have an element, and the hardware
 * requests them by itself. */
GG_INLINE bool add_short(const gg_segment *segment, const message_part *part, const bool signs, gg_dtype dtype,
                         float factor, float *out) {
    code_reader reader = reader_of(segment, part->codes, part->bytes);
    const float plus = factor * part->scale, both[2] = {plus, -plus};
    size_t j, n = 0;
    uint32_t negative;
    read_result result;
    while ((result = next_element(&reader, false, &j, &negative)) == READ_ELEMENT) {
        if (signs) {
            out[j] += both[negative];
            continue;
        }
        if (negative || n == part->elements) return false;
        if (out != NULL) out[j] += factor * value_at(part->values, dtype, n);
        ++n;
    }
    return result == READ_END && (signs || n == part->elements);
}

/* The same of bins of WIDE_FROM elements and more. */
GG_INLINE bool add_long(const gg_segment *segment, const message_part *part, const bool signs, gg_dtype dtype,
                        float factor, float *out) {
    code_reader reader = reader_of(segment, part->codes, part->bytes);
    const float plus = factor * part->scale, both[2] = {plus, -plus};
    element_block block[2];
    size_t n = 0;
    bool right = read_block(&reader, out, &block[0]);
    for (int which = 0; right && block[which].count > 0; which ^= 1) {
        const element_block *b = &block[which];
        right = read_block(&reader, out, &block[which ^ 1]);
        if (signs) {
            for (size_t i = 0; i < b->count; ++i) out[b->element[i] % NEGATIVE] += both[b->element[i] / NEGATIVE];
            continue;
        }
        uint32_t negative = 0;
        for (size_t i = 0; i < b->count; ++i) negative |= b->element[i] & NEGATIVE;
        if (negative != 0 || b->count > part->elements - n) return false;
        for (size_t i = 0; i < b->count && out != NULL; ++i)
            out[b->element[i]] += factor * value_at(part->values, dtype, n + i);
        n += b->count;
    }
    return right && (signs || n == part->elements);
}

static bool add_part(const gg_segment *segment, const message_part *part, bool signs, gg_dtype dtype, float factor,
                     float *out) {
    if (segment->bin >= WIDE_FROM)
        return signs ? add_long(segment, part, true, dtype, factor, out)
                     : add_long(segment, part, false, dtype, factor, out);
    return signs ? add_short(segment, part, true, dtype, factor, out)
                 : add_short(segment, part, false, dtype, factor, out);
}

static void add_dense(size_t count, const unsigned char *values, gg_dtype dtype, float factor, float *out) {
    if (dtype == GG_BFLOAT16)
        for (size_t j = 0; j < count; ++j) out[j] += factor * value_at(values, GG_BFLOAT16, j);
    else
        for (size_t j = 0; j < count; ++j) out[j] += factor * value_at(values, GG_FLOAT32, j);
}

/* choice: a choice is wanted, and nothing is added; else anything but one. */
static gg_status read_message(const gg_segment *segment, int segments, const unsigned char *message, size_t bytes,
                              bool choice, float factor, float *out, size_t *values) {
    gg_status status = GG_OK;
    message_form form = FORM_SCALE;
    GG_TRY(read_header(segment, segments, message, bytes, &form));
    if (choice != (form == FORM_CHOICE))
        GG_FAIL(GG_ERROR_COMM, "packed message: form %d, expected %s", (int)form,
                choice ? "1 (a choice)" : "0, 2 or 3 (with values)");
    const unsigned char *at = message + HEADER_BYTES, *const end = message + bytes;
    for (int i = 0; i < segments; ++i) {
        message_part part;
        float *into = choice ? NULL : out + segment[i].offset;
        GG_TRY(read_part(&segment[i], i, form, &at, end, &part));
        if (segment[i].bin == 0) {
            if (!choice) add_dense(segment[i].count, part.values, GG_FLOAT32, factor, into);
            *values += segment[i].count;
            continue;
        }
        if (!add_part(&segment[i], &part, form == FORM_SCALE, form == FORM_NARROW ? GG_BFLOAT16 : GG_FLOAT32, factor,
                      into))
            GG_TRY(wrong_part(&segment[i], i, "a code names none of its elements, or not as many as it says"));
        *values += part.elements;
    }
    if (at != end) GG_FAIL(GG_ERROR_COMM, "packed message: %zu bytes behind its last parameter", (size_t)(end - at));
cleanup:
    return status;
}

gg_status gg_unpack_add(const gg_segment *segment, int segments, const void *message, size_t bytes, float factor,
                        float *out) {
    size_t values = 0;
    return read_message(segment, segments, message, bytes, false, factor, out, &values);
}

gg_status gg_choice_values(const gg_segment *segment, int segments, const void *choice, size_t bytes, size_t *values) {
    *values = 0;
    return read_message(segment, segments, choice, bytes, true, 0, NULL, values);
}

void gg_unpack_values_add(const gg_segment *segment, int segments, const void *choice, gg_dtype dtype,
                          const void *values, float factor, float *out) {
    const unsigned char *at = (const unsigned char *)choice + HEADER_BYTES, *from = values;
    for (int i = 0; i < segments; ++i) {
        size_t count = segment[i].count;
        float *into = out + segment[i].offset;
        if (segment[i].bin == 0) {
            add_dense(count, from, dtype, factor, into);
        } else {
            message_part part = trusted_part(&at);
            part.values = from;
            count = part.elements;
            add_part(&segment[i], &part, false, dtype, factor, into);
        }
        from += count * gg_dtype_size(dtype);
    }
}
