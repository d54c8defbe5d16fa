#include "compress/packed.h"

#include <math.h>
#include <string.h>

#include "base/memory.h"

_Static_assert(GG_MOST_BIN < GG_MOST_CHOSEN_BIN, "the kernels have room for every bin");

#define GG_INLINE static inline __attribute__((always_inline))

#define HEADER_BYTES ((size_t)16)
#define PART_BYTES ((size_t)8) /* bytes of codes, and scale or number of elements */
#define VERSION 1

typedef enum message_form { FORM_SCALE = 0, FORM_CHOICE, FORM_NARROW, FORM_VALUES, FORM_COUNT } message_form;

/* Bins of fewer elements have codes of one byte. */
#define WIDE_FROM 64

enum { FLAG_NEGATIVE = 1, FLAG_FIRST = 2 };               /* of an element */
enum { EMPTY_ONE = 0, EMPTY_UNIT, EMPTY_LONG, NO_EMPTY }; /* of a mark: how the number of bins follows */

static size_t aligned_up(size_t bytes, size_t to) { return (bytes + to - 1) / to * to; }

static size_t bins_of(const gg_segment *segment) {
    return (segment->count + (size_t)segment->bin - 1) / (size_t)segment->bin;
}

static size_t unit_bytes(const gg_segment *segment) { return segment->bin < WIDE_FROM ? 1 : 2; }

static uint32_t read_u32(const unsigned char *at) {
    uint32_t value;
    memcpy(&value, at, sizeof value);
    return value;
}

static float read_float(const unsigned char *at) {
    float value;
    memcpy(&value, at, sizeof value);
    return value;
}

static void write_u32(unsigned char *at, uint32_t value) { memcpy(at, &value, sizeof value); }
static void write_float(unsigned char *at, float value) { memcpy(at, &value, sizeof value); }

GG_INLINE float widened(uint16_t value) {
    const uint32_t bits = (uint32_t)value << 16;
    float wide;
    memcpy(&wide, &bits, sizeof wide);
    return wide;
}

/* To nearest, ties to even; what would become an infinity becomes the greatest bfloat16. */
GG_INLINE uint16_t narrowed(float value) {
    uint32_t bits;
    memcpy(&bits, &value, sizeof bits);
    const uint32_t up = bits + 0x7fffu + ((bits >> 16) & 1u);
    return (uint16_t)(((up & 0x7f800000u) == 0x7f800000u ? bits : up) >> 16);
}

/* ---- header ---- */

static uint32_t hashed(uint32_t hash, uint64_t value) {
    for (int i = 0; i < 8; ++i, value >>= 8) hash = (hash ^ (uint32_t)(value & 0xffu)) * 16777619u;
    return hash;
}

static uint32_t layout_of(const gg_segment *segment, int segments) {
    uint32_t hash = hashed(2166136261u, (uint64_t)segments);
    for (int i = 0; i < segments; ++i) {
        hash = hashed(hash, segment[i].offset - segment[0].offset);
        hash = hashed(hash, segment[i].count);
        hash = hashed(hash, (uint64_t)segment[i].bin);
    }
    return hash;
}

static void write_header(unsigned char *message, message_form form, const gg_segment *segment, int segments,
                         size_t bytes) {
    const uint64_t whole = bytes;
    memcpy(message, (const unsigned char[]){'g', 'P', VERSION, (unsigned char)form}, 4);
    write_u32(message + 4, layout_of(segment, segments));
    memcpy(message + 8, &whole, sizeof whole);
}

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

/* ---- codes ---- */

GG_INLINE uint32_t unit_at(const unsigned char *at, bool wide) {
    uint16_t unit;
    if (!wide) return *at;
    memcpy(&unit, at, sizeof unit);
    return unit;
}

GG_INLINE unsigned char *put_unit(unsigned char *at, bool wide, uint32_t unit) {
    const uint16_t two = (uint16_t)unit;
    if (wide) {
        memcpy(at, &two, sizeof two);
        return at + 2;
    }
    *at = (unsigned char)unit;
    return at + 1;
}

GG_INLINE uint32_t flags_shift(bool wide) { return wide ? 14 : 6; }
/* The place that no element has. */
GG_INLINE uint32_t empty_mark(bool wide) { return (1u << flags_shift(wide)) - 1; }

/* Never more units than bins. */
static unsigned char *put_empty(unsigned char *at, bool wide, size_t bins) {
    const uint32_t mark = empty_mark(wide), shift = flags_shift(wide);
    const size_t most = wide ? 65535 : 255;
    if (bins == 0) return at;
    if (bins == 1) return put_unit(at, wide, mark | EMPTY_ONE << shift);
    if (bins <= most + 2) {
        at = put_unit(at, wide, mark | EMPTY_UNIT << shift);
        return put_unit(at, wide, (uint32_t)(bins - 2));
    }
    at = put_unit(at, wide, mark | EMPTY_LONG << shift);
    write_u32(at, (uint32_t)bins);
    return at + 4;
}

/* Goes through the codes of a segment. Whatever these are, it gives ascending elements of the segment. */
typedef struct code_reader {
    const unsigned char *at, *end;
    size_t count, bin;
    size_t start; /* first element of the bin that was begun last; -bin (which wraps around): of none */
    size_t least; /* places below are not allowed; `bin`: no bin is open */
} code_reader;

static code_reader reader_of(const gg_segment *segment, const unsigned char *codes, size_t bytes) {
    const size_t bin = (size_t)segment->bin;
    return (code_reader){
        .at = codes, .end = codes + bytes, .count = segment->count, .bin = bin, .start = -bin, .least = bin};
}

static bool skip_empty(code_reader *r, bool wide, uint32_t flags) {
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

typedef enum read_result { READ_END = 0, READ_ELEMENT, READ_WRONG } read_result;

GG_INLINE read_result next_element(code_reader *r, const bool wide, size_t *element, uint32_t *negative) {
    const size_t unit = wide ? 2 : 1;
    for (;;) {
        if (r->at == r->end) return READ_END;
        const uint32_t code = unit_at(r->at, wide), mark = empty_mark(wide);
        const uint32_t place = code & mark, flags = code >> flags_shift(wide);
        r->at += unit;
        if (__builtin_expect(place == mark, 0)) {
            code_reader behind = *r; /* a copy, so that *r is not in memory */
            if (!skip_empty(&behind, wide, flags)) return READ_WRONG;
            *r = behind;
            continue;
        }
        /* By masks: whether an element is its bin's first cannot be predicted. */
        const size_t first = -(size_t)(flags / FLAG_FIRST);
        r->start += r->bin & first;
        r->least &= ~first;
        *element = r->start + place;
        if (place < r->least || place >= r->bin || *element >= r->count) return READ_WRONG;
        r->least = place + 1;
        *negative = flags & FLAG_NEGATIVE;
        return READ_ELEMENT;
    }
}

/* ---- packing ---- */

/* What is packed of: G is the residue, or value - known. From element 0 of a segment. */
typedef struct pack_terms {
    float *residue;
    const float *value;
    float *known;
} pack_terms;

GG_INLINE float term_of(const pack_terms *t, size_t j) {
    return t->residue != NULL ? t->residue[j] : t->value[j] - t->known[j];
}

GG_INLINE void remove_sent(const pack_terms *t, size_t j, float sent) {
    if (t->residue != NULL) t->residue[j] -= sent;
    else t->known[j] += sent;
}

typedef struct pack_scratch {
    uint32_t *greatest, *sent; /* sent: an encoding's */
    uint16_t *place;           /* what the kernel chooses */
} pack_scratch;

/* Dense segments are checked in bins of the greatest size. */
static size_t scratch_bins(const gg_segment *segment) {
    return segment->bin > 0 ? bins_of(segment) : (segment->count + GG_MOST_BIN - 1) / GG_MOST_BIN;
}

/* bytes NULL: carves the scratch. */
static pack_scratch scratch_layout(const gg_segment *segment, int segments, void *scratch, size_t *bytes) {
    size_t bins = 0, count = 0;
    for (int i = 0; i < segments; ++i) {
        const size_t own = scratch_bins(&segment[i]);
        bins = own > bins ? own : bins;
        if (segment[i].bin > 0 && segment[i].count > count) count = segment[i].count;
    }
    const size_t numbers = aligned_up(bins * sizeof(uint32_t), GG_ALIGNMENT);
    if (bytes != NULL) {
        *bytes = 2 * numbers + aligned_up(count * sizeof(uint16_t), GG_ALIGNMENT);
        return (pack_scratch){0};
    }
    unsigned char *at = scratch;
    return (pack_scratch){.greatest = (void *)at, .sent = (void *)(at + numbers), .place = (void *)(at + 2 * numbers)};
}

size_t gg_pack_scratch_bytes(const gg_segment *segment, int segments) {
    size_t bytes;
    scratch_layout(segment, segments, NULL, &bytes);
    return bytes;
}

static bool sends_values(const gg_compression *compression) { return compression->mode == GG_COMPRESSION_EXACT; }

size_t gg_packed_capacity(const gg_segment *segment, int segments, const gg_compression *compression) {
    size_t bytes = HEADER_BYTES;
    for (int i = 0; i < segments; ++i) {
        const size_t count = segment[i].count;
        if (segment[i].bin == 0) {
            bytes += count * sizeof(float);
        } else {
            bytes += PART_BYTES + aligned_up(count * unit_bytes(&segment[i]), 4);
            if (sends_values(compression)) bytes += aligned_up(count * gg_dtype_size(compression->values), 4);
        }
    }
    return bytes;
}

static gg_status spoiled(const gg_segment *segment, int i, size_t at, float value) {
    return gg_fail(GG_ERROR_NUMERIC,
                   "parameter %d of the message ('%s', %zu elements): element %zu of gradient and residue is %g", i,
                   segment->name, segment->count, at, (double)value);
}

/* GG_ERROR_NUMERIC naming the first element that is not finite. */
static gg_status check_greatest(const gg_segment *segment, int i, size_t bin, const uint32_t *greatest,
                                const pack_terms *t) {
    gg_status status = GG_OK;
    const size_t bins = (segment->count + bin - 1) / bin;
    uint32_t most = 0;
    for (size_t b = 0; b < bins; ++b) most = greatest[b] > most ? greatest[b] : most;
    if (most < 0x7f800000u) goto cleanup;
    for (size_t j = 0; j < segment->count; ++j) {
        const float value = term_of(t, j);
        if (!isfinite(value)) GG_TRY(spoiled(segment, i, j, value));
    }
cleanup:
    return status;
}

static float scale_of(const uint32_t *greatest, size_t bins) {
    double sum = 0;
    for (size_t b = 0; b < bins; ++b) {
        float value;
        memcpy(&value, &greatest[b], sizeof value);
        sum += (double)value;
    }
    return (float)(sum / (double)bins);
}

typedef struct encoded {
    size_t bytes, elements;
} encoded;

/* What the kernel has chosen of a segment, and what is done with it. */
typedef struct encoding {
    const gg_segment *segment;
    const uint16_t *place;
    size_t entries;
    uint32_t *sent; /* out: elements sent up to the end of each bin */
    pack_terms terms;
    float scale;
    uint32_t least; /* bits of the least |G| that is sent; not 0 */
} encoding;

/* Writes the codes of what has been chosen and is large enough. sends: with signs, and every sent element loses
 * sign*scale. Branches are taken where a bin is empty or an element is left out. */
GG_INLINE encoded encode_units(const encoding *e, const bool wide, const bool sends, unsigned char *codes) {
    const pack_terms terms = e->terms;
    const uint16_t *const end = e->place + e->entries;
    const uint32_t shift = flags_shift(wide), least = e->least;
    const size_t bin = (size_t)e->segment->bin;
    unsigned char *at = codes;
    size_t b = (size_t)0 - 1, start = (size_t)0 - bin; /* of the bin before the first; the first entry opens one */
    size_t empty = 0;
    uint32_t elements = 0;
    uint32_t waits = 0; /* 1 where the bin has sent nothing yet */
    for (const uint16_t *place = e->place; place < end; ++place) {
        const uint32_t entry = *place, first = entry / GG_CHOSEN_FIRST, where = entry % GG_CHOSEN_FIRST;
        /* By masks: it cannot be predicted. */
        empty += first & waits;
        waits |= first;
        start += bin & -(size_t)first;
        b += first;
        e->sent[b] = elements;
        if (entry == GG_CHOSEN_NONE) continue;
        const size_t j = start + where;
        const float g = term_of(&terms, j);
        uint32_t bits;
        memcpy(&bits, &g, sizeof bits);
        if ((bits & 0x7fffffffu) < least) continue;
        if (empty > 0) {
            at = put_empty(at, wide, empty);
            empty = 0;
        }
        const uint32_t negative = sends ? bits >> 31 : 0;
        at = put_unit(at, wide, where | (waits * FLAG_FIRST | negative * FLAG_NEGATIVE) << shift);
        waits = 0;
        e->sent[b] = ++elements;
        if (sends) remove_sent(&terms, j, copysignf(e->scale, g));
    }
    return (encoded){.bytes = (size_t)(at - codes), .elements = elements};
}

static encoded encode_segment(const encoding *e, bool sends, gg_compression_counts *counts, unsigned char *codes) {
    encoded made;
    if (e->segment->bin >= WIDE_FROM)
        made = sends ? encode_units(e, true, true, codes) : encode_units(e, true, false, codes);
    else made = sends ? encode_units(e, false, true, codes) : encode_units(e, false, false, codes);
    if (counts == NULL) return made;
    const size_t bins = bins_of(e->segment);
    int64_t histogram[GG_COUNTS_HISTOGRAM] = {0};
    for (size_t b = 0; b < bins; ++b) {
        const uint32_t own = e->sent[b] - (b > 0 ? e->sent[b - 1] : 0);
        histogram[own < GG_COUNTS_HISTOGRAM ? own : GG_COUNTS_HISTOGRAM - 1]++;
    }
    for (int i = 0; i < GG_COUNTS_HISTOGRAM; ++i) counts->bins_with[i] += histogram[i];
    counts->elements += (int64_t)e->segment->count;
    counts->elements_sent += (int64_t)made.elements;
    return made;
}

static void clear_gap(unsigned char *from, const unsigned char *to) {
    while (from < to) *from++ = 0;
}

/* Writes the values of the elements that trusted codes name, and removes them; how many bytes. */
GG_INLINE size_t move_units(const gg_segment *segment, const unsigned char *codes, size_t bytes, const bool wide,
                            gg_dtype dtype, const pack_terms *t, unsigned char *values) {
    code_reader reader = reader_of(segment, codes, bytes);
    size_t j, n = 0;
    uint32_t negative;
    while (next_element(&reader, wide, &j, &negative) == READ_ELEMENT) {
        const float g = term_of(t, j);
        if (dtype == GG_BFLOAT16) {
            const uint16_t sent = narrowed(g);
            memcpy(values + n++ * sizeof sent, &sent, sizeof sent);
            remove_sent(t, j, widened(sent));
        } else {
            write_float(values + n++ * sizeof g, g);
            remove_sent(t, j, g);
        }
    }
    return n * gg_dtype_size(dtype);
}

static size_t move_values(const gg_segment *segment, const unsigned char *codes, size_t bytes, gg_dtype dtype,
                          const pack_terms *t, unsigned char *values) {
    return segment->bin >= WIDE_FROM ? move_units(segment, codes, bytes, true, dtype, t, values)
                                     : move_units(segment, codes, bytes, false, dtype, t, values);
}

/* All values of a dense segment, as `dtype`; how many bytes. */
static size_t move_dense(const gg_segment *segment, gg_dtype dtype, const pack_terms *t, unsigned char *values) {
    for (size_t j = 0; j < segment->count; ++j) {
        const float g = term_of(t, j);
        if (dtype == GG_BFLOAT16) {
            const uint16_t sent = narrowed(g);
            memcpy(values + j * sizeof sent, &sent, sizeof sent);
            remove_sent(t, j, widened(sent));
        } else {
            write_float(values + j * sizeof g, g);
            remove_sent(t, j, g);
        }
    }
    return segment->count * gg_dtype_size(dtype);
}

static void count_bytes(gg_compression_counts *counts, const gg_segment *segment, size_t dense, size_t sent) {
    if (counts == NULL) return;
    counts->dense_bytes[segment->family] += (int64_t)dense;
    counts->sent_bytes[segment->family] += (int64_t)sent;
}

/* The arrays of a pack call: gradient and residue, or value and known. */
typedef struct pack_arrays {
    float scale;
    const float *gradient;
    float *residue;
    const float *value;
    float *known;
} pack_arrays;

static pack_terms terms_of(const pack_arrays *arrays, const gg_segment *segment) {
    return (pack_terms){.residue = arrays->residue != NULL ? arrays->residue + segment->offset : NULL,
                        .value = arrays->value != NULL ? arrays->value + segment->offset : NULL,
                        .known = arrays->known != NULL ? arrays->known + segment->offset : NULL};
}

/* Adds the gradient to the residue of segment i and finds the greatest of its bins; the chosen too, unless `entries` is
 * NULL. */
static gg_status measure_segment(const gg_packing *packing, int i, const pack_arrays *arrays,
                                 const pack_scratch *scratch, size_t *entries) {
    const gg_segment *segment = &packing->segment[i];
    const pack_terms terms = terms_of(arrays, segment);
    const gg_choose_args args = {
        .n = segment->count,
        .bin = segment->bin > 0 ? (size_t)segment->bin : GG_MOST_BIN,
        .scale = arrays->scale,
        .factor = packing->compression->factor,
        .gradient = arrays->gradient != NULL ? arrays->gradient + segment->offset : NULL,
        .residue = terms.residue,
        .value = terms.value,
        .known = terms.known,
        .greatest = scratch->greatest,
        .place = entries != NULL ? scratch->place : NULL,
    };
    const size_t count = packing->device->table->choose(packing->device, &args);
    if (entries != NULL) *entries = count;
    return check_greatest(segment, i, args.bin, scratch->greatest, &terms);
}

/* The part of a packed segment that has been measured; its bytes. */
static size_t pack_part(const gg_packing *packing, int i, message_form form, const pack_terms *terms,
                        const pack_scratch *scratch, size_t entries, unsigned char *part) {
    const gg_segment *segment = &packing->segment[i];
    const float scale = scale_of(scratch->greatest, bins_of(segment));
    /* Without a scale nothing is large enough. Bits of sizes ascend as they do; those of 0 are 0. */
    const float least = form == FORM_SCALE && !(scale > 0)                  ? INFINITY
                        : packing->compression->mode == GG_COMPRESSION_SAFE ? scale / 2
                                                                            : 0;
    encoding work = {.segment = segment,
                     .place = scratch->place,
                     .entries = entries,
                     .sent = scratch->sent,
                     .terms = *terms,
                     .scale = scale};
    memcpy(&work.least, &least, sizeof least);
    if (work.least == 0) work.least = 1;
    unsigned char *const codes = part + PART_BYTES;
    const encoded made = encode_segment(&work, form == FORM_SCALE, packing->counts, codes);
    unsigned char *at = codes + aligned_up(made.bytes, 4);
    clear_gap(codes + made.bytes, at);
    write_u32(part, (uint32_t)made.bytes);
    if (form == FORM_SCALE) write_float(part + 4, scale);
    else write_u32(part + 4, (uint32_t)made.elements);
    if (form == FORM_NARROW || form == FORM_VALUES) {
        const gg_dtype dtype = form == FORM_NARROW ? GG_BFLOAT16 : GG_FLOAT32;
        unsigned char *const end = at + move_values(segment, codes, made.bytes, dtype, terms, at);
        at += aligned_up((size_t)(end - at), 4);
        clear_gap(end, at);
    }
    return (size_t)(at - part);
}

static gg_status pack_message(const gg_packing *packing, message_form form, const pack_arrays *arrays,
                              unsigned char *message, size_t *bytes) {
    gg_status status = GG_OK;
    const pack_scratch scratch = scratch_layout(packing->segment, packing->segments, packing->scratch, NULL);
    unsigned char *at = message + HEADER_BYTES;
    *bytes = 0;
    for (int i = 0; i < packing->segments; ++i) {
        const gg_segment *segment = &packing->segment[i];
        const pack_terms terms = terms_of(arrays, segment);
        unsigned char *const part = at;
        size_t entries;
        if (segment->count > GG_MOST_PACKED)
            GG_FAIL(GG_ERROR_UNSUPPORTED, "parameter %d of the message ('%s') has %zu elements; at most %zu are packed",
                    i, segment->name, segment->count, GG_MOST_PACKED);
        GG_TRY(measure_segment(packing, i, arrays, &scratch, segment->bin > 0 ? &entries : NULL));
        if (segment->bin > 0) at += pack_part(packing, i, form, &terms, &scratch, entries, at);
        else if (form != FORM_CHOICE) at += move_dense(segment, GG_FLOAT32, &terms, at);
        /* What a choice stands for is counted with its values. */
        count_bytes(packing->counts, segment, form != FORM_CHOICE ? segment->count * sizeof(float) : 0,
                    (size_t)(at - part) + (i == 0 ? HEADER_BYTES : 0));
    }
    *bytes = (size_t)(at - message);
    write_header(message, form, packing->segment, packing->segments, *bytes);
cleanup:
    return status;
}

static message_form form_of(const gg_compression *compression) {
    if (!sends_values(compression)) return FORM_SCALE;
    return compression->values == GG_BFLOAT16 ? FORM_NARROW : FORM_VALUES;
}

gg_status gg_pack(const gg_packing *packing, float scale, const float *gradient, float *residue, void *message,
                  size_t *bytes) {
    const pack_arrays arrays = {.scale = scale, .gradient = gradient, .residue = residue};
    return pack_message(packing, form_of(packing->compression), &arrays, message, bytes);
}

gg_status gg_pack_difference(const gg_packing *packing, const float *value, float *known, void *message,
                             size_t *bytes) {
    const pack_arrays arrays = {.scale = 1, .value = value, .known = known};
    return pack_message(packing, form_of(packing->compression), &arrays, message, bytes);
}

gg_status gg_pack_choice(const gg_packing *packing, float scale, const float *gradient, float *residue, void *choice,
                         size_t *bytes) {
    const pack_arrays arrays = {.scale = scale, .gradient = gradient, .residue = residue};
    return pack_message(packing, FORM_CHOICE, &arrays, choice, bytes);
}

gg_status gg_pack_accumulate(const gg_packing *packing, float scale, const float *gradient, float *residue) {
    gg_status status = GG_OK;
    const pack_arrays arrays = {.scale = scale, .gradient = gradient, .residue = residue};
    const pack_scratch scratch = scratch_layout(packing->segment, packing->segments, packing->scratch, NULL);
    for (int i = 0; i < packing->segments; ++i) GG_TRY(measure_segment(packing, i, &arrays, &scratch, NULL));
cleanup:
    return status;
}

/* ---- unpacking ---- */

bool gg_packed_fits(const gg_segment *segment, int segments, const void *message, size_t bytes) {
    return bytes >= HEADER_BYTES && read_u32((const unsigned char *)message + 4) == layout_of(segment, segments);
}

/* A part of a message whose sizes have been checked. */
typedef struct message_part {
    const unsigned char *codes, *values; /* dense: values alone */
    size_t bytes, elements;              /* of codes; elements: of form SCALE unknown */
    float scale;
} message_part;

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

/* out: of the segment; NULL: only checks and counts. */
GG_INLINE bool add_units(const gg_segment *segment, const message_part *part, const bool wide, const bool signs,
                         gg_dtype dtype, float factor, float *out) {
    code_reader reader = reader_of(segment, part->codes, part->bytes);
    const float plus = factor * part->scale, both[2] = {plus, -plus};
    size_t j, n = 0;
    uint32_t negative;
    read_result result;
    while ((result = next_element(&reader, wide, &j, &negative)) == READ_ELEMENT) {
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

static bool add_part(const gg_segment *segment, const message_part *part, bool signs, gg_dtype dtype, float factor,
                     float *out) {
    if (segment->bin >= WIDE_FROM)
        return signs ? add_units(segment, part, true, true, dtype, factor, out)
                     : add_units(segment, part, true, false, dtype, factor, out);
    return signs ? add_units(segment, part, false, true, dtype, factor, out)
                 : add_units(segment, part, false, false, dtype, factor, out);
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

/* The part of a trusted choice that begins at *at. */
static message_part trusted_part(const unsigned char **at) {
    const message_part part = {
        .codes = *at + PART_BYTES, .bytes = read_u32(*at), .elements = read_u32(*at + 4), .scale = 0};
    *at = part.codes + aligned_up(part.bytes, 4);
    return part;
}

void gg_pack_values(const gg_packing *packing, const void *choice, gg_dtype dtype, float *residue, void *values) {
    const pack_arrays arrays = {.residue = residue};
    const unsigned char *at = (const unsigned char *)choice + HEADER_BYTES;
    unsigned char *into = values;
    for (int i = 0; i < packing->segments; ++i) {
        const gg_segment *segment = &packing->segment[i];
        const pack_terms terms = terms_of(&arrays, segment);
        size_t bytes;
        if (segment->bin == 0) {
            bytes = move_dense(segment, dtype, &terms, into);
        } else {
            const message_part part = trusted_part(&at);
            bytes = move_values(segment, part.codes, part.bytes, dtype, &terms, into);
        }
        count_bytes(packing->counts, segment, segment->count * sizeof(float), bytes);
        into += bytes;
    }
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

void gg_compression_count_dense(const gg_segment *segment, int segments, gg_compression_counts *counts) {
    for (int i = 0; i < segments; ++i) {
        const size_t bytes = segment[i].count * sizeof(float);
        count_bytes(counts, &segment[i], bytes, bytes);
    }
}
