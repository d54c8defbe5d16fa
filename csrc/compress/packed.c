#include <math.h>
#include <string.h>

#include "base/memory.h"
#include "compress/packed_format.h"

_Static_assert(GG_MOST_BIN < GG_MOST_CHOSEN_BIN, "the kernels have room for every bin");

static size_t bins_of(const gg_segment *segment) {
    return (segment->count + (size_t)segment->bin - 1) / (size_t)segment->bin;
}

static void write_u32(unsigned char *at, uint32_t value) { memcpy(at, &value, sizeof value); }
static void write_float(unsigned char *at, float value) { memcpy(at, &value, sizeof value); }

/* To nearest, ties to even; what would become an infinity becomes the greatest bfloat16. */
GG_INLINE uint16_t narrowed(float value) {
    uint32_t bits;
    memcpy(&bits, &value, sizeof bits);
    const uint32_t up = bits + 0x7fffu + ((bits >> 16) & 1u);
    return (uint16_t)(((up & 0x7f800000u) == 0x7f800000u ? bits : up) >> 16);
}

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

/* ---- packing ---- */

/* What is packed of: G is the residue, or value - known. From element 0 of a segment. */
typedef struct pack_terms {
    float *own;         /* the residue, or known */
    const float *value; /* NULL: own is the residue */
} pack_terms;

GG_INLINE float term_of(const pack_terms *t, size_t j) {
    return t->value != NULL ? t->value[j] - t->own[j] : t->own[j];
}

GG_INLINE void remove_sent(const pack_terms *t, size_t j, float sent) {
    if (t->value != NULL) t->own[j] += sent;
    else t->own[j] -= sent;
}

/* Of a segment: what the kernel finds. */
typedef struct pack_scratch {
    uint32_t *greatest;       /* one a bin */
    uint16_t *chosen, *place; /* gg_choose_args has the same */
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
    const size_t counts = aligned_up(bins * sizeof(uint16_t), GG_ALIGNMENT);
    if (bytes != NULL) {
        *bytes = numbers + counts + aligned_up(count * sizeof(uint16_t), GG_ALIGNMENT);
        return (pack_scratch){0};
    }
    unsigned char *at = scratch;
    return (pack_scratch){
        .greatest = (void *)at, .chosen = (void *)(at + numbers), .place = (void *)(at + numbers + counts)};
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
                   "parameter %d of the message ('%s', %zu elements): element %zu of what is to be sent is %g; a lower "
                   "lr, or a warm-up, may help",
                   i, segment->name, segment->count, at, isnan(value) ? (double)NAN : (double)value);
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

/* What the kernel has chosen of a segment, and what is done with it. */
typedef struct encoding {
    const gg_segment *segment;
    uint16_t *chosen, *place; /* of each bin how many elements, and these */
    size_t entries;
    pack_terms terms;
    float scale;
} encoding;

/* Elements that are worked on at once, so that what lies in memory is requested early. */
#define BLOCK 64

/* Leaves out what is smaller than the bits of `least`. */
static void leave_out(encoding *e, uint32_t least) {
    const size_t bins = bins_of(e->segment), bin = (size_t)e->segment->bin;
    const uint16_t *from = e->place;
    uint16_t *to = e->place;
    for (size_t b = 0; b < bins; ++b) {
        const uint16_t *const end = from + e->chosen[b];
        uint16_t first = GG_CHOSEN_FIRST, left = 0;
        for (; from < end; ++from) {
            const float g = term_of(&e->terms, b * bin + (*from & GG_CHOSEN_PLACE));
            uint32_t bits;
            memcpy(&bits, &g, sizeof bits);
            if ((bits & 0x7fffffffu) < least) continue;
            *to++ = (uint16_t)((*from & ~GG_CHOSEN_FIRST) | first);
            first = 0;
            ++left;
        }
        e->chosen[b] = left;
    }
    e->entries = (size_t)(to - e->place);
}

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

/* Every element that is sent loses sign*scale: those of a block after those of the next one have been requested. */
typedef struct remover {
    float *own;
    size_t bin;
    uint32_t change; /* the bits of what a positive one gets added */
    const uint16_t *place[2];
    uint32_t element[2][BLOCK];
    size_t count[2];
    int last; /* the block that is waiting */
} remover;

static remover remover_of(const encoding *e) {
    const float change = e->terms.value != NULL ? e->scale : -e->scale;
    remover r = {.own = e->terms.own, .bin = (size_t)e->segment->bin};
    memcpy(&r.change, &change, sizeof r.change);
    return r;
}

static void remove_waiting(remover *r) {
    const uint16_t *place = r->place[r->last];
    const uint32_t *element = r->element[r->last];
    float *own = r->own;
    for (size_t i = 0; i < r->count[r->last]; ++i) {
        const uint32_t bits = r->change ^ ((uint32_t)(place[i] & GG_CHOSEN_NEGATIVE) << 17);
        float change;
        memcpy(&change, &bits, sizeof change);
        own[element[i]] += change;
    }
    r->count[r->last] = 0;
}

/* Of bins without an empty one between them, from bin `b` on. */
static void remove_span(remover *r, size_t b, const uint16_t *place, size_t count) {
    const size_t bin = r->bin;
    size_t start = (b - 1) * bin; /* the first entry begins a bin */
    for (size_t at = 0; at < count; at += BLOCK) {
        const int next = r->last ^ 1;
        const size_t n = count - at < BLOCK ? count - at : BLOCK;
        for (size_t i = 0; i < n; ++i) {
            const uint32_t entry = place[at + i];
            start += bin & -(size_t)(entry / GG_CHOSEN_FIRST);
            r->element[next][i] = (uint32_t)start + (entry & GG_CHOSEN_PLACE);
            __builtin_prefetch(r->own + r->element[next][i], 1);
        }
        r->place[next] = place + at;
        r->count[next] = n;
        remove_waiting(r);
        r->last = next;
    }
}

/* Writes the codes; their bytes. sends: with signs, and what is sent is removed. */
GG_INLINE size_t put_codes(const encoding *e, const bool wide, const bool sends, unsigned char *codes) {
    const size_t bins = bins_of(e->segment);
    const uint16_t *place = e->place; /* of the span's first element */
    remover r = remover_of(e);
    unsigned char *at = codes;
    size_t empty = 0, span = 0, begin = 0; /* bins before the span; its elements; its first bin */
    for (size_t b = 0; b <= bins; ++b) {
        const size_t chosen = b < bins ? e->chosen[b] : 0;
        if (chosen > 0 && empty == 0) {
            span += chosen;
            continue;
        }
        at = put_span(at, wide, sends, place, span);
        if (sends) remove_span(&r, begin, place, span);
        place += span;
        span = chosen;
        begin = b;
        if (chosen > 0) at = put_empty(at, wide, empty);
        empty = chosen > 0 ? 0 : empty + 1;
    }
    if (sends) remove_waiting(&r);
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
static size_t encode_segment(const encoding *e, const bool sends, unsigned char *codes) {
    if (e->segment->bin >= WIDE_FROM) return sends ? put_codes(e, true, true, codes) : put_codes(e, true, false, codes);
    return sends ? put_codes(e, false, true, codes) : put_codes(e, false, false, codes);
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
    float *clear; /* the gradient, which becomes zero; NULL: it stays */
    float *own;
    const float *value; /* NULL: own is the residue */
} pack_arrays;

static pack_terms terms_of(const pack_arrays *arrays, const gg_segment *segment) {
    return (pack_terms){.own = arrays->own + segment->offset,
                        .value = arrays->value != NULL ? arrays->value + segment->offset : NULL};
}

/* Elements at most that are prepared and chosen from at once, in cache, if a bin is not longer. */
#define PIECE ((size_t)2048)

/* Of a segment with so many elements and bins of `bin`: those of a piece, which is whole bins and whole lanes. */
static size_t piece_of(const gg_packing *packing, size_t count, size_t bin) {
    size_t piece = bin;
    if (packing->prepare == NULL) return count;
    while (piece % GG_LANES != 0) piece *= 2; /* at most GG_LANES bins, since that is a power of two */
    return piece < PIECE ? PIECE / piece * piece : piece;
}

/* choose() of all of a segment, piece by piece; how many elements. */
static size_t choose_all(const gg_packing *packing, const gg_segment *segment, const gg_choose_args *all) {
    const size_t piece = piece_of(packing, all->n, all->bin);
    size_t entries = 0;
    for (size_t at = 0; at < all->n; at += piece) {
        gg_choose_args args = *all;
        args.n = all->n - at < piece ? all->n - at : piece;
        if (packing->prepare != NULL)
            packing->prepare(packing->context, segment->offset + at, aligned_up(args.n, GG_LANES));
        if (args.gradient != NULL) args.gradient += at;
        if (args.clear != NULL) args.clear += at;
        if (args.residue != NULL) args.residue += at;
        if (args.value != NULL) args.value += at;
        if (args.known != NULL) args.known += at;
        args.greatest += at / args.bin;
        args.chosen += at / args.bin;
        if (args.place != NULL) args.place += entries;
        entries += packing->device->table->choose(packing->device, &args);
    }
    return entries;
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
        .factor = packing->compression->factor[segment->family],
        .gradient = arrays->gradient != NULL ? arrays->gradient + segment->offset : NULL,
        .clear = arrays->clear != NULL ? arrays->clear + segment->offset : NULL,
        .residue = terms.value == NULL ? terms.own : NULL,
        .value = terms.value,
        .known = terms.value != NULL ? terms.own : NULL,
        .greatest = scratch->greatest,
        .place = entries != NULL ? scratch->place : NULL,
        .chosen = scratch->chosen,
    };
    const size_t count = choose_all(packing, segment, &args);
    if (entries != NULL) *entries = count;
    return check_greatest(segment, i, args.bin, scratch->greatest, &terms);
}

/* The part of a packed segment that has been measured; its bytes. */
static size_t pack_part(const gg_packing *packing, int i, message_form form, const pack_terms *terms,
                        const pack_scratch *scratch, size_t entries, unsigned char *part) {
    const gg_segment *segment = &packing->segment[i];
    const float scale = scale_of(scratch->greatest, bins_of(segment));
    /* Without a scale nothing is large enough. Bits of sizes ascend as they do. */
    const float least = form == FORM_SCALE && !(scale > 0)                  ? INFINITY
                        : packing->compression->mode == GG_COMPRESSION_SAFE ? scale / 2
                                                                            : 0;
    encoding work = {.segment = segment,
                     .chosen = scratch->chosen,
                     .place = scratch->place,
                     .entries = entries,
                     .terms = *terms,
                     .scale = scale};
    uint32_t bits;
    memcpy(&bits, &least, sizeof bits);
    if (bits > 0) leave_out(&work, bits);
    count_bins(&work, packing->counts);
    unsigned char *const codes = part + PART_BYTES;
    const size_t bytes = encode_segment(&work, form == FORM_SCALE, codes);
    unsigned char *at = codes + aligned_up(bytes, 4);
    clear_gap(codes + bytes, at);
    write_u32(part, (uint32_t)bytes);
    if (form == FORM_SCALE) write_float(part + 4, scale);
    else write_u32(part + 4, (uint32_t)work.entries);
    if (form == FORM_NARROW || form == FORM_VALUES) {
        const gg_dtype dtype = form == FORM_NARROW ? GG_BFLOAT16 : GG_FLOAT32;
        unsigned char *const end = at + move_values(segment, codes, bytes, dtype, terms, at);
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
    gg_status status = GG_OK;
    const pack_arrays arrays = {.scale = scale, .gradient = gradient, .own = residue};
    const pack_scratch scratch = scratch_layout(packing->segment, packing->segments, packing->scratch, NULL);
    for (int i = 0; i < packing->segments; ++i) GG_TRY(measure_segment(packing, i, &arrays, &scratch, NULL));
cleanup:
    return status;
}

void gg_pack_values(const gg_packing *packing, const void *choice, gg_dtype dtype, float *residue, void *values) {
    const pack_arrays arrays = {.own = residue};
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

void gg_compression_count_dense(const gg_segment *segment, int segments, gg_compression_counts *counts) {
    for (int i = 0; i < segments; ++i) {
        const size_t bytes = segment[i].count * sizeof(float);
        count_bytes(counts, &segment[i], bytes, bytes);
    }
}
