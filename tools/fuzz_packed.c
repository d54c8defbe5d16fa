/* Feeds packed messages (csrc/exchange/codec/packed.h) that are whole, changed or random to what reads them. Started by
 * tools/fuzz_packed.py, which builds it with address and undefined-behaviour sanitizers: every array has exactly the
 * bytes that it must have. Memory between segments holds a mark that must survive.
 *
 *     fuzz_packed SECONDS SEED */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "base/status.h"
#include "cpu/shared.h"
#include "exchange/codec/packed.h"

size_t gg_cpu_choose_bins_scalar(const gg_choose_args *args);
size_t gg_cpu_read_entries_scalar(gg_entries_args *args);

/* In place of those of cpu/shared.c and cpu/kernels.c, which need all kernels. */
int gg_cpu_threads_for(const gg_device *device, size_t work) {
    (void)device, (void)work;
    return 1;
}

static const gg_backend table = {
    .name = "fuzz", .pack = gg_cpu_pack, .add_elements = gg_cpu_add_elements, .take_elements = gg_cpu_take_elements};
static const gg_cpu_kernels kernels = {.choose = gg_cpu_choose_bins_scalar, .entries = gg_cpu_read_entries_scalar};

const gg_cpu_kernels *gg_cpu_host_kernels(void) { return &kernels; }

static gg_cpu_device cpu = {.head = {.table = &table, .threads = 1}, .kernels = &kernels};
static gg_device *const device = &cpu.head;

static uint64_t state;

static uint64_t draw(void) { /* xorshift64* */
    state ^= state >> 12;
    state ^= state << 25;
    state ^= state >> 27;
    return state * 2685821657736338717u;
}

static size_t below(size_t n) { return (size_t)(draw() >> 11) % n; }

static void *exactly(size_t bytes) {
    void *block = malloc(bytes > 0 ? bytes : 1);
    if (block == NULL) abort();
    return block;
}

static uint64_t round_seed;

static void require(bool holds, const char *what) {
    if (holds) return;
    fprintf(stderr, "fuzz_packed: %s (state %llu): %s\n", what, (unsigned long long)round_seed, gg_error_message());
    abort();
}

#define MARK 12345.678f
#define MAX_SEGMENTS 5

typedef struct layout {
    gg_segment segment[MAX_SEGMENTS];
    int segments;
    size_t extent; /* elements of the arrays */
} layout;

static void draw_layout(layout *l) {
    static const int widths[] = {0, 1, 2, 7, 50, 63, 64, 65, 500, 16383};
    size_t at = below(3);
    l->segments = 1 + (int)below(MAX_SEGMENTS);
    for (int i = 0; i < l->segments; ++i) {
        const size_t count = below(64) == 0 ? 1 + below(40000) : 1 + below(300);
        l->segment[i] = (gg_segment){.offset = at,
                                     .count = count,
                                     .bin = widths[below(sizeof widths / sizeof *widths)],
                                     .family = (gg_family)below(GG_FAMILY_COUNT),
                                     .layer = i,
                                     .name = "segment"};
        at += count + below(20);
    }
    const gg_segment *last = &l->segment[l->segments - 1];
    l->extent = last->offset + last->count + below(20);
}

static bool is_inside(const layout *l, size_t j) {
    for (int i = 0; i < l->segments; ++i)
        if (j >= l->segment[i].offset && j < l->segment[i].offset + l->segment[i].count) return true;
    return false;
}

/* Marks outside of the segments. */
static float *draw_array(const layout *l, bool zero) {
    float *x = exactly(l->extent * sizeof *x);
    const size_t kind = below(4);
    for (size_t j = 0; j < l->extent; ++j) {
        const float value = (float)((double)(int64_t)draw() / 9e18);
        x[j] = kind == 0 && below(50) != 0 ? 0 : kind == 1 ? (value > 0 ? 1.0f : -1.0f) : value;
        if (zero) x[j] = 0;
    }
    for (size_t j = 0; j < l->extent; ++j)
        if (!is_inside(l, j)) x[j] = MARK;
    return x;
}

static void check_marks(const layout *l, const float *x, const char *what) {
    for (size_t j = 0; j < l->extent; ++j)
        if (!is_inside(l, j)) require(x[j] == MARK, what);
}

/* With room for these segments. */
static gg_packing packing_of(const layout *l, const gg_compression *options) {
    gg_packing packing = {.compression = options, .device = device, .segment = l->segment, .segments = l->segments};
    gg_pack_sizes sizes = {0};
    gg_pack_sizes_add(&sizes, device, l->segment, l->segments);
    require(gg_pack_room_create(device, &sizes, &packing.room) == GG_OK, "no room");
    return packing;
}

/* A message of exactly *bytes. *choice: which form. */
static unsigned char *draw_message(const layout *l, bool *choice, size_t *bytes) {
    const gg_compression options = {.active = true,
                                    .factor = 1 + (float)below(4) / 2,
                                    .mode = (gg_compression_mode)below(GG_COMPRESSION_MODES),
                                    .values = below(2) ? GG_BFLOAT16 : GG_FLOAT32};
    gg_compression_counts counts = {0};
    gg_packing packing = packing_of(l, &options);
    packing.counts = &counts;
    if (options.mode != GG_COMPRESSION_EXACT && below(2))
        require(gg_pack_marks_create(l->segment, l->segments, &packing.marks) == GG_OK, "no marks");
    float *gradient = draw_array(l, false), *residue = draw_array(l, below(2) == 0);
    const size_t capacity = gg_packed_capacity(l->segment, l->segments, &options);
    unsigned char *room = exactly(capacity);
    const size_t what = below(3);
    gg_status status;
    *choice = what == 0;
    if (what == 0) status = gg_pack_choice(&packing, 0.5f, gradient, residue, room, bytes);
    else if (what == 1) status = gg_pack_difference(&packing, gradient, residue, room, bytes);
    else status = gg_pack(&packing, 0.5f, gradient, residue, room, bytes);
    require(status == GG_OK && *bytes <= capacity, "packing failed");
    if (what == 2 && below(2)) { /* once more, where elements are still marked */
        status = gg_pack(&packing, 0.5f, gradient, residue, room, bytes);
        require(status == GG_OK && *bytes <= capacity, "packing failed");
    }
    gg_pack_complete(&packing, residue);
    check_marks(l, gradient, "the gradient was written");
    check_marks(l, residue, "the residue was written outside of the segments");
    unsigned char *message = exactly(*bytes);
    memcpy(message, room, *bytes);
    free(room);
    free(gradient);
    free(residue);
    gg_pack_marks_destroy(packing.marks);
    gg_pack_room_destroy(packing.room);
    return message;
}

/* Changes it; the header's length is made right most times, so that the rest is reached. */
static unsigned char *change_message(unsigned char *message, size_t *bytes) {
    for (size_t n = 1 + below(4); n > 0; --n) {
        const size_t at = below(8) == 0 ? below(*bytes) : *bytes > 16 ? 16 + below(*bytes - 16) : below(*bytes);
        const size_t kind = below(7);
        if (kind == 0) message[at] ^= (unsigned char)(1u << below(8));
        if (kind == 1) message[at] = (unsigned char)draw();
        if (kind == 2) message[at] = (unsigned char)(below(2) ? 0xff : 0x3f);
        if (kind == 3)
            for (size_t k = at; k < *bytes && k < at + 8; ++k) message[k] = (unsigned char)draw();
        if (kind == 4) { /* a piece elsewhere */
            const size_t from = below(*bytes), rest = *bytes - (from > at ? from : at);
            memmove(message + at, message + from, below(rest + 1));
        }
        if (kind == 5 || kind == 6) { /* shorter, or longer */
            const size_t size = kind == 5 ? 1 + below(*bytes) : *bytes + 1 + below(20);
            unsigned char *other = exactly(size);
            memcpy(other, message, size < *bytes ? size : *bytes);
            for (size_t k = *bytes; k < size; ++k) other[k] = (unsigned char)draw();
            free(message);
            message = other;
            *bytes = size;
        }
    }
    if (*bytes >= 16 && below(16) != 0) {
        const uint64_t whole = *bytes;
        memcpy(message + 8, &whole, sizeof whole);
    }
    return message;
}

static gg_status read_choice(const layout *l, const unsigned char *message, size_t bytes) {
    size_t count = 0;
    const gg_status status = gg_choice_values(l->segment, l->segments, message, bytes, &count);
    if (status != GG_OK) return status;
    const gg_dtype dtype = below(2) ? GG_BFLOAT16 : GG_FLOAT32;
    const gg_packing packing = packing_of(l, NULL);
    float *residue = draw_array(l, false), *out = draw_array(l, true);
    void *values = exactly(count * gg_dtype_size(dtype));
    gg_pack_values(&packing, message, dtype, residue, values);
    gg_unpack_values_add(&packing, message, dtype, values, 1, out);
    check_marks(l, residue, "the residue was written outside of the segments");
    check_marks(l, out, "the sum was written outside of the segments");
    gg_pack_room_destroy(packing.room);
    free(values);
    free(residue);
    free(out);
    return status;
}

typedef struct expected {
    const layout *l;
    const float *sum;
} expected;

static void compare_piece(void *context, size_t offset, size_t count, const float *sum, gg_lines filled) {
    const expected *e = context;
    const gg_segment *segment = e->l->segment;
    while (offset >= segment->offset + segment->count) ++segment;
    const size_t left = segment->offset + segment->count - offset, own = count < left ? count : left;
    require(memcmp(sum, e->sum + offset, own * sizeof *sum) == 0, "a piece has another sum");
    for (size_t j = own; j < count; ++j) require(sum[j] == 0, "a piece has a sum behind its parameter");
    for (size_t j = 0; j < count; ++j)
        require(sum[j] == 0 || (gg_lines_word(filled, j / GG_LANES) & 1) != 0, "a sum lies in no filled line");
}

static gg_status read_sum(const layout *l, const unsigned char *message, size_t bytes) {
    float *out = draw_array(l, true);
    const gg_packing packing = packing_of(l, NULL);
    gg_pack_pieces *pieces = NULL;
    const gg_status status = gg_unpack_add(&packing, message, bytes, 1, out);
    check_marks(l, out, "the sum was written outside of the segments");
    require(gg_packed_check(&packing, message, bytes) == status, "checked and read are not alike");
    require(gg_pack_pieces_create(device, l->segment, l->segments, 1, &pieces) == GG_OK, "no pieces");
    if (status == GG_OK)
        gg_unpack_pieces(&packing, pieces, (const void *const[]){message}, 1, compare_piece, &(expected){l, out});
    gg_pack_pieces_destroy(pieces);
    gg_pack_room_destroy(packing.room);
    free(out);
    return status;
}

int main(int arguments, char **argument) {
    const double seconds = arguments > 1 ? atof(argument[1]) : 10;
    const uint64_t seed = arguments > 2 ? strtoull(argument[2], NULL, 10) : 1;
    const time_t begin = time(NULL);
    unsigned long long whole = 0, accepted = 0, refused = 0;
    state = seed * 2862933555777941757u + 3037000493u;
    while (difftime(time(NULL), begin) < seconds) {
        layout l;
        bool choice;
        size_t bytes;
        round_seed = state;
        draw_layout(&l);
        unsigned char *message = draw_message(&l, &choice, &bytes);
        require((choice ? read_choice : read_sum)(&l, message, bytes) == GG_OK, "a whole message was refused");
        whole++;
        for (int i = 0; i < 20; ++i) {
            size_t size = bytes;
            unsigned char *changed = exactly(bytes);
            memcpy(changed, message, bytes);
            if (below(10) == 0)
                for (size_t k = below(2) && bytes > 16 ? 16 : 0; k < bytes; ++k) changed[k] = (unsigned char)draw();
            changed = change_message(changed, &size);
            const gg_status status =
                (below(8) == 0 ? !choice : choice) ? read_choice(&l, changed, size) : read_sum(&l, changed, size);
            require(status == GG_OK || status == GG_ERROR_COMM, "a status that is none of a message");
            *(status == GG_OK ? &accepted : &refused) += 1;
            free(changed);
        }
        free(message);
    }
    printf("%llu messages read whole, %llu changed ones refused, %llu read within their segments\n", whole, refused,
           accepted);
    return whole > 0 ? 0 : 1;
}
