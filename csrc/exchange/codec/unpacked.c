/* Packed messages that have arrived: whatever their bytes, nothing outside of the segments is written. */
#include <math.h>

#include "cpu/kernels.h"
#include "exchange/codec/packed_format.h"
#include "exchange/codec/packed_room.h"

static gg_status read_header(const gg_segment *segment, int segments, const unsigned char *message, size_t bytes,
                             message_form *form) {
    uint64_t whole;
    if (bytes < HEADER_BYTES)
        return gg_fail(GG_ERROR_COMM, "packed message: %zu bytes, fewer than its header of %zu", bytes, HEADER_BYTES);
    if (message[0] != 'g' || message[1] != 'P')
        return gg_fail(GG_ERROR_COMM, "packed message: begins with the bytes %02x %02x, expected 67 50", message[0],
                       message[1]);
    if (message[2] != VERSION)
        return gg_fail(GG_ERROR_COMM, "packed message: version %d, known is %d", message[2], VERSION);
    if (message[3] >= FORM_COUNT)
        return gg_fail(GG_ERROR_COMM, "packed message: form %d, known are 0 to %d", message[3], FORM_COUNT - 1);
    const uint32_t layout = layout_of(segment, segments);
    if (read_u32(message + 4) != layout)
        return gg_fail(GG_ERROR_COMM, "packed message: of other parameters or bins (layout %08x, here %08x)",
                       (unsigned)read_u32(message + 4), (unsigned)layout);
    memcpy(&whole, message + 8, sizeof whole);
    if (whole != bytes)
        return gg_fail(GG_ERROR_COMM, "packed message: %zu bytes have arrived of %llu", bytes,
                       (unsigned long long)whole);
    *form = (message_form)message[3];
    return GG_OK;
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

gg_status gg_packed_part(const gg_segment *segment, int i, message_form form, const unsigned char **at,
                         const unsigned char *end, message_part *out) {
    const unsigned char *p = *at;
    size_t left = (size_t)(end - p);
    *out = (message_part){.values = p};
    if (segment->bin == 0) {
        if (form == FORM_CHOICE) return GG_OK;
        if (left / sizeof(float) < segment->count) GG_TRY(wrong_part(segment, i, "its values are cut off"));
        *at = p + segment->count * sizeof(float);
        return GG_OK;
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
        return GG_OK;
    }
    out->elements = read_u32(p + 4);
    if (out->elements > segment->count) GG_TRY(wrong_part(segment, i, "it has more elements than there are"));
    if (form == FORM_CHOICE) return GG_OK;
    const size_t bytes = out->elements * gg_dtype_size(form == FORM_NARROW ? GG_BFLOAT16 : GG_FLOAT32);
    if (left < aligned_up(bytes, 4)) GG_TRY(wrong_part(segment, i, "its values are cut off"));
    *at = out->values + aligned_up(bytes, 4);
    if (!gap_is_clear(out->values + bytes, *at)) GG_TRY(wrong_part(segment, i, "a byte between its parts is not zero"));
    return GG_OK;
}

/* Codes read at once. Each may begin a bin, and elements must stay below GG_ELEMENT_NEGATIVE. */
#define MAX_AT_ONCE ((size_t)1024)

_Static_assert(GG_MAX_PACKED < GG_ELEMENT_NEGATIVE, "the highest bit of an element is free");
_Static_assert(GG_MAX_PACKED + MAX_AT_ONCE * GG_MAX_CHOSEN_BIN < GG_ELEMENT_NEGATIVE, "elements do not wrap around");

/* Reads a run of codes that all name elements. */
static size_t read_entries(code_reader *r, size_t room, uint32_t *out) {
    const bool wide = r->bin >= WIDE_FROM;
    const size_t unit = wide ? 2 : 1, left = (size_t)(r->end - r->at) / unit, most = left < room ? left : room;
    gg_entries_args args = {.at = r->at,
                            .n = most < MAX_AT_ONCE ? most : MAX_AT_ONCE,
                            .wide = wide,
                            .bin = (uint32_t)r->bin,
                            .start = (uint32_t)r->start,
                            .least = (uint32_t)r->least,
                            .element = out};
    const size_t n = gg_cpu_host_kernels()->entries(&args);
    if (n == 0) return 0;
    r->at += n * unit;
    r->start = args.start;
    r->least = args.least;
    return n;
}

bool gg_packed_elements(code_reader *r, size_t room, uint32_t *out, size_t *count) {
    bool right = true;
    size_t n = 0;
    while (right && n < room && r->at < r->end) {
        const size_t more = read_entries(r, room - n, out + n);
        if (more > 0) right = (out[n + more - 1] & ~GG_ELEMENT_NEGATIVE) < r->count; /* they ascend */
        else right = pass_empty(r);
        if (right) n += more;
    }
    *count = n;
    return right;
}

/* Codes checked at once, and elements added at once. */
#define BLOCK ((size_t)64)

/* Eight or sixteen at a time, in the vectors that every processor has. */
typedef int8_t bytes16 __attribute__((vector_size(16)));
typedef int16_t shorts8 __attribute__((vector_size(16)));
typedef uint64_t longs2 __attribute__((vector_size(16)));

static bool any_negative(const uint32_t *element, size_t count) {
    uint32_t all = 0;
    for (size_t i = 0; i < count; ++i) all |= element[i];
    return (all & GG_ELEMENT_NEGATIVE) != 0;
}

/* Facts about a block of codes before its elements are known. */
typedef struct block_facts {
    size_t begun;     /* bins that begin in the block */
    bool wrong;       /* a place outside of its bin, or one that does not ascend */
    bool is_negative; /* any */
} block_facts;

GG_INLINE bytes16 sixteen_at(const unsigned char *at) {
    bytes16 codes;
    memcpy(&codes, at, sizeof codes);
    return codes;
}

/* Checks that each code ascends or begins a bin; the last pairs overlap those before by one. Flags are the highest
 * bits: a code that begins a bin is below zero. */
GG_INLINE block_facts narrow_facts(const unsigned char *at, int8_t bin) {
    enum { SIXTEEN = 16, LAST = BLOCK - 1 };
    const int8_t mark = (int8_t)empty_mark(false);
    bytes16 wrong = {0}, begun = {0}, all = {0};
    for (size_t i = 0; i < BLOCK; i += SIXTEEN) {
        const size_t pair = i + SIXTEEN < BLOCK ? i : LAST - SIXTEEN;
        const bytes16 codes = sixteen_at(at + i), left = sixteen_at(at + pair), right = sixteen_at(at + pair + 1);
        wrong |= (codes & mark) >= bin; /* marks are no places in a bin */
        wrong |= ((right & mark) <= (left & mark)) & (right >= 0);
        begun -= codes < 0;
        all |= codes;
    }
    const longs2 any = (longs2)wrong, bits = (longs2)all, bins = (longs2)begun;
    /* A lane of `begun` is 4 at most, so all sixteen add up in the highest byte. */
    return (block_facts){.begun = ((bins[0] + bins[1]) * 0x0101010101010101u) >> 56,
                         .wrong = (any[0] | any[1]) != 0,
                         .is_negative = ((bits[0] | bits[1]) & 0x4040404040404040u) != 0};
}

GG_INLINE shorts8 eight_at(const unsigned char *at) {
    shorts8 codes;
    memcpy(&codes, at, sizeof codes);
    return codes;
}

/* narrow_facts for codes of two bytes. */
GG_INLINE block_facts wide_facts(const unsigned char *at, int16_t bin) {
    enum { EIGHT = 8, LAST = BLOCK - 1 };
    const int16_t mark = (int16_t)empty_mark(true);
    shorts8 wrong = {0}, begun = {0}, all = {0};
    for (size_t i = 0; i < BLOCK; i += EIGHT) {
        const size_t pair = i + EIGHT < BLOCK ? i : LAST - EIGHT;
        const shorts8 codes = eight_at(at + 2 * i), left = eight_at(at + 2 * pair), right = eight_at(at + 2 * pair + 2);
        wrong |= (codes & mark) >= bin;
        wrong |= ((right & mark) <= (left & mark)) & (right >= 0);
        begun -= codes < 0;
        all |= codes;
    }
    const longs2 any = (longs2)wrong, bits = (longs2)all, bins = (longs2)begun;
    return (block_facts){.begun = ((bins[0] + bins[1]) * 0x0001000100010001u) >> 48,
                         .wrong = (any[0] | any[1]) != 0,
                         .is_negative = ((bits[0] | bits[1]) & 0x4000400040004000u) != 0};
}

/* Passes a whole block of codes without empty bins, without decoding its elements. False for any other block: the
 * reader stays. *negative: some element is. */
GG_INLINE bool skip_whole(code_reader *r, const bool wide, bool *negative) {
    const unsigned char *const at = r->at;
    const size_t unit = wide ? 2 : 1, mark = empty_mark(wide);
    if ((size_t)(r->end - at) < BLOCK * unit) return false;
    const block_facts facts = wide ? wide_facts(at, (int16_t)r->bin) : narrow_facts(at, (int8_t)r->bin);
    const size_t code = unit_at(at, wide), first = code & mark, last = unit_at(at + (BLOCK - 1) * unit, wide) & mark;
    const size_t start = r->start + facts.begun * r->bin;
    const bool opens = code >> flags_shift(wide) >= FLAG_FIRST;
    if (facts.wrong || (!opens && first < r->least) || start + last >= r->count) return false;
    *negative = facts.is_negative;
    r->at = at + BLOCK * unit;
    r->start = start;
    r->least = last + 1;
    return true;
}

GG_INLINE bool check_units(const gg_segment *segment, const message_part *part, const bool wide, bool signs) {
    code_reader reader = reader_of(segment, part->codes, part->bytes);
    uint32_t element[BLOCK];
    size_t n = 0, count = BLOCK;
    for (; count == BLOCK; n += count) {
        bool negative = false;
        if (!skip_whole(&reader, wide, &negative)) {
            if (!gg_packed_elements(&reader, BLOCK, element, &count)) return false;
            negative = any_negative(element, count);
        }
        if (!signs && negative) return false;
    }
    return signs || n == part->elements;
}

/* True if the codes name elements of the segment. For forms without signs, also if their number is the part's and none
 * is negative. */
static bool check_codes(const gg_segment *segment, const message_part *part, bool signs) {
    return segment->bin < WIDE_FROM ? check_units(segment, part, false, signs)
                                    : check_units(segment, part, true, signs);
}

/* Adds elements in host memory as they are read, because short bins have many. */
GG_INLINE bool add_here(const gg_segment *segment, const message_part *part, const bool signs, gg_dtype dtype,
                        float factor, float *out) {
    code_reader reader = reader_of(segment, part->codes, part->bytes);
    const float plus = factor * part->scale, both[2] = {plus, -plus};
    uint32_t element[BLOCK];
    size_t n = 0, count = BLOCK;
    for (; count == BLOCK; n += count) {
        if (!gg_packed_elements(&reader, BLOCK, element, &count)) return false;
        if (!signs && (any_negative(element, count) || count > part->elements - n)) return false;
        for (size_t i = 0; i < count; ++i) {
            if (signs) out[element[i] & ~GG_ELEMENT_NEGATIVE] += both[element[i] / GG_ELEMENT_NEGATIVE];
            else out[element[i]] += factor * value_at(part->values, dtype, n + i);
        }
    }
    return signs || n == part->elements;
}

/* Adds a part's values to `out`, the segment's element 0. Elements go to the device after they have been checked. */
static bool add_part(const gg_packing *packing, const gg_segment *segment, const message_part *part, bool signs,
                     gg_dtype dtype, float factor, float *out) {
    gg_pack_room *room = packing->room;
    code_reader reader = reader_of(segment, part->codes, part->bytes);
    const size_t size = gg_dtype_size(dtype);
    size_t n = 0, count = room->stage_room;
    if (segment->bin < WIDE_FROM && !gg_device_is_separate(packing->device))
        return signs ? add_here(segment, part, true, dtype, factor, out)
                     : add_here(segment, part, false, dtype, factor, out);
    for (; count == room->stage_room; n += count) {
        pack_stage *stage = gg_pack_stage_next(room);
        gg_elements_args args = {.element = stage->element, .dtype = dtype, .at = out};
        if (!gg_packed_elements(&reader, room->stage_room, stage->element, &count)) return false;
        args.n = count;
        if (signs) {
            args.factor = factor * part->scale;
        } else {
            if (any_negative(stage->element, count) || count > part->elements - n) return false;
            memcpy(stage->values, part->values + n * size, count * size);
            args.values = stage->values;
            args.factor = factor;
        }
        if (count > 0) packing->device->table->add_elements(packing->device, &args);
        gg_pack_stage_given(room, stage);
    }
    return signs || n == part->elements;
}

/* Adds all values of a dense segment. */
static void add_dense(const gg_packing *packing, size_t count, const unsigned char *values, float factor, float *out) {
    gg_pack_room *room = packing->room;
    for (size_t at = 0, n; at < count; at += n) {
        pack_stage *stage = gg_pack_stage_next(room);
        n = count - at < room->stage_room ? count - at : room->stage_room;
        memcpy(stage->values, values + at * sizeof(float), n * sizeof(float));
        packing->device->table->add_elements(
            packing->device,
            &(gg_elements_args){
                .n = n, .dtype = GG_FLOAT32, .values = stage->values, .factor = factor, .at = out + at});
        gg_pack_stage_given(room, stage);
    }
}

/* Reading of a message: checks a choice, checks any other message, or adds one. */
typedef enum reading { READ_CHOICE = 0, READ_CHECK, READ_ADD } reading;

static gg_status read_message(const gg_packing *packing, const unsigned char *message, size_t bytes, reading what,
                              float factor, float *out, size_t *values) {
    message_form form = FORM_SCALE;
    const gg_segment *segment = packing->segment;
    GG_TRY(read_header(segment, packing->segments, message, bytes, &form));
    if ((what == READ_CHOICE) != (form == FORM_CHOICE))
        return gg_fail(GG_ERROR_COMM, "packed message: form %d, expected %s", (int)form,
                       what == READ_CHOICE ? "1 (a choice)" : "0, 2 or 3 (with values)");
    const unsigned char *at = message + HEADER_BYTES, *const end = message + bytes;
    const gg_dtype dtype = form == FORM_NARROW ? GG_BFLOAT16 : GG_FLOAT32;
    for (int i = 0; i < packing->segments; ++i) {
        message_part part;
        bool right = true;
        GG_TRY(gg_packed_part(&segment[i], i, form, &at, end, &part));
        *values += segment[i].bin == 0 ? segment[i].count : part.elements;
        if (what != READ_ADD) right = segment[i].bin == 0 || check_codes(&segment[i], &part, form == FORM_SCALE);
        else if (segment[i].bin == 0)
            add_dense(packing, segment[i].count, part.values, factor, out + segment[i].offset);
        else right = add_part(packing, &segment[i], &part, form == FORM_SCALE, dtype, factor, out + segment[i].offset);
        if (!right) GG_TRY(wrong_part(&segment[i], i, "a code names none of its elements, or not as many as it says"));
    }
    if (at != end)
        return gg_fail(GG_ERROR_COMM, "packed message: %zu bytes behind its last parameter", (size_t)(end - at));
    return GG_OK;
}

gg_status gg_unpack_add(const gg_packing *packing, const void *message, size_t bytes, float factor, float *out) {
    size_t values = 0;
    return read_message(packing, message, bytes, READ_ADD, factor, out, &values);
}

gg_status gg_packed_check(const gg_packing *packing, const void *message, size_t bytes) {
    size_t values = 0;
    return read_message(packing, message, bytes, READ_CHECK, 0, NULL, &values);
}

gg_status gg_choice_values(const gg_segment *segment, int segments, const void *choice, size_t bytes, size_t *values) {
    const gg_packing reads = {.segment = segment, .segments = segments};
    *values = 0;
    return read_message(&reads, choice, bytes, READ_CHOICE, 0, NULL, values);
}

/* ---- values of a choice, which is trusted ---- */

typedef void (*elements_entry)(gg_device *device, const gg_elements_args *args);

/* Calls `entry` on the chosen elements of a segment and their values. Returns the values' bytes. */
static size_t for_chosen(const gg_packing *packing, const gg_segment *segment, const unsigned char **at,
                         elements_entry entry, gg_elements_args args) {
    gg_pack_room *room = packing->room;
    const size_t size = gg_dtype_size(args.dtype);
    if (segment->bin == 0) {
        args.n = segment->count;
        entry(packing->device, &args);
        return segment->count * size;
    }
    const message_part part = trusted_part(at);
    code_reader reader = reader_of(segment, part.codes, part.bytes);
    unsigned char *const values = args.values;
    size_t n = 0, count = room->stage_room;
    for (; count == room->stage_room; n += count) {
        pack_stage *stage = gg_pack_stage_next(room);
        (void)gg_packed_elements(&reader, room->stage_room, stage->element, &count);
        args.n = count;
        args.element = stage->element;
        args.values = values + n * size;
        if (count > 0) entry(packing->device, &args);
        gg_pack_stage_given(room, stage);
    }
    return n * size;
}

void gg_pack_values(const gg_packing *packing, const void *choice, gg_dtype dtype, float *residue, void *values) {
    const unsigned char *at = (const unsigned char *)choice + HEADER_BYTES;
    unsigned char *into = values;
    for (int i = 0; i < packing->segments; ++i) {
        const gg_segment *segment = &packing->segment[i];
        const gg_elements_args args = {.dtype = dtype, .values = into, .at = residue + segment->offset};
        const size_t bytes = for_chosen(packing, segment, &at, packing->device->table->take_elements, args);
        count_bytes(packing->counts, segment, segment->count * sizeof(float), bytes);
        into += bytes;
    }
}

void gg_unpack_values_add(const gg_packing *packing, const void *choice, gg_dtype dtype, const void *values,
                          float factor, float *out) {
    const unsigned char *at = (const unsigned char *)choice + HEADER_BYTES;
    unsigned char *from = (unsigned char *)(uintptr_t)values; /* is only read */
    for (int i = 0; i < packing->segments; ++i) {
        const gg_segment *segment = &packing->segment[i];
        const gg_elements_args args = {.dtype = dtype, .values = from, .factor = factor, .at = out + segment->offset};
        from += for_chosen(packing, segment, &at, packing->device->table->add_elements, args);
    }
}
