#include <math.h>
#include <string.h>

#include "base/memory.h"
#include "exchange/codec/packed_format.h"
#include "exchange/codec/packed_room.h"

_Static_assert(GG_MAX_BIN < GG_MAX_CHOSEN_BIN, "the kernels have room for every bin");

static size_t bins_of(const gg_segment *segment) {
    return (segment->count + (size_t)segment->bin - 1) / (size_t)segment->bin;
}

static void write_u32(unsigned char *at, uint32_t value) { memcpy(at, &value, sizeof value); }
static void write_float(unsigned char *at, float value) { memcpy(at, &value, sizeof value); }

/* ---- header ---- */

static void write_header(unsigned char *message, message_form form, const gg_segment *segment, int segments,
                         size_t bytes) {
    const uint64_t whole = bytes;
    memcpy(message, (const unsigned char[]){'g', 'P', VERSION, (unsigned char)form}, 4);
    write_u32(message + 4, layout_of(segment, segments));
    memcpy(message + 8, &whole, sizeof whole);
}

/* ---- codes ---- */

GG_INLINE unsigned char *put_unit(unsigned char *at, bool wide, uint32_t unit) {
    const uint16_t two = (uint16_t)unit;
    if (wide) {
        memcpy(at, &two, sizeof two);
        return at + 2;
    }
    *at = (unsigned char)unit;
    return at + 1;
}

/* Writes codes of `bins` empty bins, in no more units than bins. */
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

/* ---- sent values still in the residue ---- */

typedef struct segment_marks {
    unsigned char *marks; /* NULL means dense */
    float owed;
} segment_marks;

struct gg_pack_marks {
    segment_marks *of; /* one a segment */
    unsigned char *memory;
};

gg_status gg_pack_marks_create(const gg_segment *segment, int segments, gg_pack_marks **out) {
    gg_status status = GG_OK;
    gg_pack_marks *made = NULL;
    size_t bytes = 0;
    *out = NULL;
    GG_TRY_CLEANUP(gg_calloc(1, sizeof *made, "marks", &made));
    GG_TRY_CLEANUP(gg_calloc((size_t)segments, sizeof *made->of, "marks", &made->of));
    for (int i = 0; i < segments; ++i)
        if (segment[i].bin > 0) bytes += bins_of(&segment[i]) * gg_pack_mark_bytes((size_t)segment[i].bin);
    GG_TRY_CLEANUP(gg_calloc(bytes, 1, "marks of what has been sent", &made->memory));
    unsigned char *at = made->memory;
    for (int i = 0; i < segments; ++i) {
        if (segment[i].bin == 0) continue;
        made->of[i].marks = at;
        at += bins_of(&segment[i]) * gg_pack_mark_bytes((size_t)segment[i].bin);
    }
    *out = made;
    made = NULL;
cleanup:
    gg_pack_marks_destroy(made);
    return status;
}

void gg_pack_marks_destroy(gg_pack_marks *marks) {
    if (marks == NULL) return;
    gg_free(marks->memory);
    gg_free(marks->of);
    gg_free(marks);
}

static void complete_bin(const unsigned char *marks, size_t bytes, float owed, float *residue) {
    for (size_t at = 0; at < bytes; at += sizeof(uint16_t), residue += 16) {
        uint16_t marked;
        memcpy(&marked, marks + at, sizeof marked);
        for (unsigned left = marked; left != 0; left &= left - 1) {
            float *own = residue + __builtin_ctz(left);
            *own -= copysignf(owed, *own);
        }
    }
}

void gg_pack_complete(const gg_packing *packing, float *residue) {
    for (int i = 0; packing->marks != NULL && i < packing->segments; ++i) {
        const gg_segment *segment = &packing->segment[i];
        segment_marks *own = &packing->marks->of[i];
        if (own->owed == 0) continue;
        const size_t bin = (size_t)segment->bin, bytes = gg_pack_mark_bytes(bin), bins = bins_of(segment);
        for (size_t b = 0; b < bins; ++b)
            complete_bin(own->marks + b * bytes, bytes, own->owed, residue + segment->offset + b * bin);
        memset(own->marks, 0, bins * bytes);
        own->owed = 0;
    }
}

/* ---- packing ---- */

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

/* The arrays of a pack call: gradient and residue, or value and known. */
typedef struct pack_arrays {
    float scale;
    const float *gradient;
    float *clear; /* the gradient to zero; NULL keeps it */
    float *own;
    const float *value; /* NULL means that own is the residue */
} pack_arrays;

static gg_status spoiled(const gg_segment *segment, int i, size_t at, float value) {
    return gg_fail(GG_ERROR_NUMERIC,
                   "parameter %d of the message ('%s', %zu elements): element %zu of what is to be sent is %g; a lower "
                   "lr, or a warm-up, may help",
                   i, segment->name, segment->count, at, isnan(value) ? (double)NAN : (double)value);
}

/* GG_ERROR_NUMERIC naming the first element that is not finite. values: those of the whole segment, if it gave them;
 * else NULL. */
static gg_status name_spoiled(const gg_packing *packing, int i, const pack_arrays *arrays, const float *values) {
    gg_status status = GG_OK;
    const gg_segment *segment = &packing->segment[i];
    const size_t bytes = segment->count * sizeof(float);
    float *own = NULL, *value = NULL;
    if (values == NULL) {
        GG_TRY_CLEANUP(gg_alloc(bytes, "what is not finite", &own));
        GG_TRY_CLEANUP(gg_device_read(packing->device, own, arrays->own + segment->offset, bytes));
        if (arrays->value != NULL) {
            GG_TRY_CLEANUP(gg_alloc(bytes, "what is not finite", &value));
            GG_TRY_CLEANUP(gg_device_read(packing->device, value, arrays->value + segment->offset, bytes));
        }
    }
    for (size_t j = 0; j < segment->count; ++j) {
        const float g = values != NULL ? values[j] : value != NULL ? value[j] - own[j] : own[j];
        if (!isfinite(g)) GG_TRY_CLEANUP(spoiled(segment, i, j, g));
    }
    status = gg_fail(GG_ERROR_NUMERIC, "parameter %d of the message ('%s'): what is to be sent is not finite", i,
                     segment->name);
cleanup:
    gg_free(own);
    gg_free(value);
    return status;
}

/* The choice of a segment while it is encoded. */
typedef struct encoding {
    const gg_segment *segment;
    const uint16_t *chosen, *place; /* elements of each bin, and their places */
    size_t entries;
} encoding;

/* Codes of bins without an empty one between them. */
GG_INLINE unsigned char *put_span(unsigned char *at, const bool wide, const bool signs, const uint16_t *place,
                                  size_t count) {
    const uint16_t flags = signs ? 0xffff : (uint16_t)~GG_CHOSEN_NEGATIVE;
    if (wide) {
        for (size_t i = 0; i < count; ++i) {
            const uint16_t code = place[i] & flags;
            memcpy(at + 2 * i, &code, sizeof code);
        }
        return at + 2 * count;
    }
    for (size_t i = 0; i < count; ++i) {
        const uint16_t entry = place[i] & flags;
        at[i] = (unsigned char)((entry >> 8 & 0xc0) | (entry & 0x3f));
    }
    return at + count;
}

/* Writes the codes; their bytes. */
GG_INLINE size_t put_codes(const encoding *e, const bool wide, const bool signs, unsigned char *codes) {
    const size_t bins = bins_of(e->segment);
    const uint16_t *place = e->place; /* of the span's first element */
    unsigned char *at = codes;
    size_t empty = 0, span = 0; /* bins before the span; its elements */
    for (size_t b = 0; b <= bins; ++b) {
        const size_t chosen = b < bins ? e->chosen[b] : 0;
        if (chosen > 0 && empty == 0) {
            span += chosen;
            continue;
        }
        at = put_span(at, wide, signs, place, span);
        place += span;
        span = chosen;
        if (chosen > 0) at = put_empty(at, wide, empty);
        empty = chosen > 0 ? 0 : empty + 1;
    }
    return (size_t)(at - codes);
}

static void count_bins(const encoding *e, gg_compression_counts *counts) {
    const size_t bins = bins_of(e->segment);
    int64_t histogram[GG_COUNTS_HISTOGRAM] = {0};
    if (counts == NULL) return;
    for (size_t b = 0; b < bins; ++b)
        histogram[e->chosen[b] < GG_COUNTS_HISTOGRAM ? e->chosen[b] : GG_COUNTS_HISTOGRAM - 1]++;
    for (int i = 0; i < GG_COUNTS_HISTOGRAM; ++i) counts->bins_with[i] += histogram[i];
    counts->elements += (int64_t)e->segment->count;
    counts->elements_sent += (int64_t)e->entries;
}

/* The codes of a segment; their bytes. */
static size_t encode_segment(const encoding *e, const bool signs, unsigned char *codes) {
    if (e->segment->bin >= WIDE_FROM) return signs ? put_codes(e, true, true, codes) : put_codes(e, true, false, codes);
    return signs ? put_codes(e, false, true, codes) : put_codes(e, false, false, codes);
}

static void clear_gap(unsigned char *from, const unsigned char *to) {
    while (from < to) *from++ = 0;
}

/* Max bytes of a segment's codes. Its values lie behind these until the codes are written. */
static size_t codes_room(const gg_segment *segment) { return aligned_up(segment->count * unit_bytes(segment), 4); }

/* Max bytes of a segment's part. */
static size_t part_capacity(const gg_segment *segment, message_form form) {
    if (segment->bin == 0) return form == FORM_CHOICE ? 0 : segment->count * sizeof(float);
    const size_t value = form == FORM_NARROW ? sizeof(uint16_t) : form == FORM_VALUES ? sizeof(float) : 0;
    return PART_BYTES + codes_room(segment) + aligned_up(segment->count * value, 4);
}

static gg_pack_kind kind_of(const gg_segment *segment, message_form form) {
    if (segment->bin == 0) return form == FORM_CHOICE ? GG_PACK_NONE : GG_PACK_ALL;
    return form == FORM_CHOICE ? GG_PACK_CHOICE : form == FORM_SCALE ? GG_PACK_SIGNS : GG_PACK_VALUES;
}

/* Arguments of the device's `pack` for segment i, with lists of `lists`, without the place of its values. */
static gg_pack_args args_of(const gg_packing *packing, int i, gg_pack_kind kind, message_form form,
                            const pack_arrays *arrays, const pack_lists *lists) {
    const gg_segment *segment = &packing->segment[i];
    float *own = arrays->own + segment->offset;
    const bool difference = arrays->value != NULL;
    const bool marked = packing->marks != NULL && kind == GG_PACK_SIGNS && !difference;
    const bool lists_places = kind != GG_PACK_NONE && kind != GG_PACK_ALL;
    return (gg_pack_args){
        .n = segment->count,
        .bin = segment->bin > 0 ? (size_t)segment->bin : PACK_DENSE_BIN,
        .kind = kind,
        .dtype = form == FORM_NARROW ? GG_BFLOAT16 : GG_FLOAT32,
        .safe = packing->compression->mode == GG_COMPRESSION_SAFE,
        .scale = arrays->scale,
        .factor = packing->compression->factor[segment->family],
        .gradient = arrays->gradient != NULL ? arrays->gradient + segment->offset : NULL,
        .clear = arrays->clear != NULL ? arrays->clear + segment->offset : NULL,
        .residue = difference ? NULL : own,
        .value = difference ? arrays->value + segment->offset : NULL,
        .known = difference ? own : NULL,
        .scratch = lists->scratch,
        .result = lists->result,
        .place = lists_places ? lists->place : NULL,
        .chosen = lists_places ? lists->chosen : NULL,
        .prepare = packing->prepare,
        .context = packing->context,
        .offset = segment->offset,
        .marks = marked ? packing->marks->of[i].marks : NULL,
        .owed = marked ? &packing->marks->of[i].owed : NULL,
    };
}

/* Writes the part of a packed segment from its lists; its bytes. */
static size_t pack_part(const gg_packing *packing, const gg_pack_args *args, int i, message_form form,
                        unsigned char *part) {
    const gg_segment *segment = &packing->segment[i];
    const encoding work = {
        .segment = segment, .chosen = args->chosen, .place = args->place, .entries = args->result->entries};
    count_bins(&work, packing->counts);
    unsigned char *const codes = part + PART_BYTES;
    const size_t bytes = encode_segment(&work, form == FORM_SCALE, codes);
    unsigned char *at = codes + aligned_up(bytes, 4);
    clear_gap(codes + bytes, at);
    write_u32(part, (uint32_t)bytes);
    if (form == FORM_SCALE) write_float(part + 4, args->result->scale);
    else write_u32(part + 4, (uint32_t)work.entries);
    if (form == FORM_NARROW || form == FORM_VALUES) {
        unsigned char *const end = at + work.entries * gg_dtype_size(args->dtype);
        memmove(at, args->values, (size_t)(end - at));
        at += aligned_up((size_t)(end - at), 4);
        clear_gap(end, at);
    }
    return (size_t)(at - part);
}

/* Writes the part of segment i, which the device has packed. Moves *at from its beginning to its end; NULL means no
 * message. */
static gg_status write_part(const gg_packing *packing, const gg_pack_args *args, int i, message_form form,
                            const pack_arrays *arrays, unsigned char **at) {
    const gg_segment *segment = &packing->segment[i];
    unsigned char *const part = *at;
    const bool all = args->kind == GG_PACK_ALL;
    if (args->result->greatest >= 0x7f800000u) GG_TRY(name_spoiled(packing, i, arrays, all ? args->values : NULL));
    if (part == NULL) return GG_OK;
    if (all && args->values != part) memmove(part, args->values, segment->count * sizeof(float));
    if (all) *at += segment->count * sizeof(float);
    else if (args->kind != GG_PACK_NONE) *at += pack_part(packing, args, i, form, part);
    /* a choice is counted with its values */
    count_bytes(packing->counts, segment, form != FORM_CHOICE ? segment->count * sizeof(float) : 0,
                (size_t)(*at - part) + (i == 0 ? HEADER_BYTES : 0));
    return GG_OK;
}

static gg_status check_counts(const gg_packing *packing) {
    for (int i = 0; i < packing->segments; ++i)
        if (packing->segment[i].count > GG_MAX_PACKED)
            return gg_fail(GG_ERROR_UNSUPPORTED,
                           "parameter %d of the message ('%s') has %zu elements; at most %zu are packed", i,
                           packing->segment[i].name, packing->segment[i].count, GG_MAX_PACKED);
    return GG_OK;
}

/* Place of a segment's values, if its part begins no later than `part`. */
static void *values_at(const gg_segment *segment, unsigned char *part) {
    return segment->bin > 0 ? part + PART_BYTES + codes_room(segment) : part;
}

/* Packs room->batch segments at a time: one on the CPU, whose lists are then read in cache. In a batch, values lie at
 * the latest begin of the next part until then, and no part ends behind it. message NULL only adds to the residues. */
static gg_status pack_all(const gg_packing *packing, message_form form, const pack_arrays *arrays,
                          unsigned char *message, size_t *bytes) {
    gg_pack_args *args = packing->room->args;
    unsigned char *at = message != NULL ? message + HEADER_BYTES : NULL;
    GG_TRY(check_counts(packing));
    for (int first = 0, count; first < packing->segments; first += count) {
        unsigned char *latest = at;
        pack_lists lists = packing->room->lists;
        for (count = 0; count < packing->room->batch && first + count < packing->segments; ++count) {
            const gg_segment *segment = &packing->segment[first + count];
            const gg_pack_kind kind = message != NULL ? kind_of(segment, form) : GG_PACK_NONE;
            args[count] = args_of(packing, first + count, kind, form, arrays, &lists);
            if (kind == GG_PACK_ALL || kind == GG_PACK_VALUES) args[count].values = values_at(segment, latest);
            if (message != NULL) latest += part_capacity(segment, form);
            gg_pack_lists_advance(&lists, segment);
        }
        packing->device->table->pack(packing->device, count, args);
        gg_device_wait(packing->device, gg_device_mark(packing->device, GG_QUEUE_COMPUTE));
        GG_TRY(gg_device_check(packing->device));
        for (int i = 0; i < count; ++i) GG_TRY(write_part(packing, &args[i], first + i, form, arrays, &at));
    }
    if (message == NULL) return GG_OK;
    *bytes = (size_t)(at - message);
    write_header(message, form, packing->segment, packing->segments, *bytes);
    return GG_OK;
}

static gg_status pack_message(const gg_packing *packing, message_form form, const pack_arrays *arrays,
                              unsigned char *message, size_t *bytes) {
    *bytes = 0;
    return pack_all(packing, form, arrays, message, bytes);
}

static message_form form_of(const gg_compression *compression) {
    if (!sends_values(compression)) return FORM_SCALE;
    return compression->values == GG_BFLOAT16 ? FORM_NARROW : FORM_VALUES;
}

gg_status gg_pack(const gg_packing *packing, float scale, const float *gradient, float *residue, void *message,
                  size_t *bytes) {
    const pack_arrays arrays = {.scale = scale, .gradient = gradient, .own = residue};
    return pack_message(packing, form_of(packing->compression), &arrays, message, bytes);
}

gg_status gg_pack_and_clear(const gg_packing *packing, float scale, float *gradient, float *residue, void *message,
                            size_t *bytes) {
    const pack_arrays arrays = {.scale = scale, .gradient = gradient, .clear = gradient, .own = residue};
    return pack_message(packing, form_of(packing->compression), &arrays, message, bytes);
}

gg_status gg_pack_difference(const gg_packing *packing, const float *value, float *known, void *message,
                             size_t *bytes) {
    const pack_arrays arrays = {.scale = 1, .own = known, .value = value};
    return pack_message(packing, form_of(packing->compression), &arrays, message, bytes);
}

gg_status gg_pack_choice(const gg_packing *packing, float scale, const float *gradient, float *residue, void *choice,
                         size_t *bytes) {
    const pack_arrays arrays = {.scale = scale, .gradient = gradient, .own = residue};
    return pack_message(packing, FORM_CHOICE, &arrays, choice, bytes);
}

gg_status gg_pack_accumulate(const gg_packing *packing, float scale, const float *gradient, float *residue) {
    const pack_arrays arrays = {.scale = scale, .gradient = gradient, .own = residue};
    return pack_all(packing, FORM_CHOICE, &arrays, NULL, NULL);
}

void gg_compression_count_dense(const gg_segment *segment, int segments, gg_compression_counts *counts) {
    for (int i = 0; i < segments; ++i) {
        const size_t bytes = segment[i].count * sizeof(float);
        count_bytes(counts, &segment[i], bytes, bytes);
    }
}

void gg_compression_count_besides(const gg_segment *segment, size_t bytes, gg_compression_counts *counts) {
    count_bytes(counts, segment, 0, bytes);
}
