/* Entries of chosen elements, read at each level, against a plain reading. */
#include <sys/mman.h>
#include <unistd.h>

#include "base/memory.h"
#include "cpu/kernels.h"
#include "guarded.h"

#define MAX_RANDOM 100

typedef struct entries_case {
    bool wide;
    uint32_t bin;
    size_t n;
    bool open; /* a bin has begun before */
} entries_case;

static uint64_t drawn = 88172645463325252u;

static uint32_t below(uint32_t n) { /* xorshift64 */
    drawn ^= drawn << 13;
    drawn ^= drawn >> 7;
    drawn ^= drawn << 17;
    return (uint32_t)(drawn >> 20) % n;
}

static uint32_t mark_of(const entries_case *c) { return c->wide ? 0x3fff : 0x3f; }

static void put(const entries_case *c, unsigned char *at, size_t i, uint32_t place, bool first, bool negative) {
    const uint32_t bits = c->wide ? 14 : 6;
    const uint16_t unit = (uint16_t)(place | (uint32_t)negative << bits | (uint32_t)first << (bits + 1));
    if (c->wide) memcpy(at + 2 * i, &unit, sizeof unit);
    else at[i] = (unsigned char)unit;
}

/* One to some elements of each bin, behind those that the open one has; what they are, in `wanted`. */
static void fill(const entries_case *c, const gg_entries_args *from, unsigned char *at, uint32_t *wanted) {
    const uint32_t most = c->bin < mark_of(c) ? c->bin : mark_of(c);
    uint32_t start = from->start, least = from->least;
    for (size_t i = 0; i < c->n; ++i) {
        const bool first = least >= most || below(4) == 0, negative = below(2) == 1;
        if (first) start += c->bin, least = 0;
        const uint32_t place = least + (below(3) == 0 ? below(most - least) : 0);
        put(c, at, i, place, first, negative);
        wanted[i] = (start + place) | (negative ? GG_ELEMENT_NEGATIVE : 0);
        least = place + 1;
    }
}

/* Reads with every level; the entry at `right` is wrong, unless that is n. */
static void read_all(const entries_case *c, const gg_entries_args *from, size_t right, const uint32_t *wanted) {
    for (int isa = 0; isa < GG_ISA_COUNT; ++isa) {
        if (!gg_cpu_supports((gg_isa)isa)) continue;
        gg_entries_args args = *from;
        buffer elements = buffer_create(c->n * sizeof *args.element);
        args.element = (uint32_t *)elements.data;
        CHECK_INT(gg_cpu_kernels_for((gg_isa)isa)->entries(&args), right);
        CHECK(memcmp(args.element, wanted, right * sizeof *wanted) == 0);
        const uint32_t last = right > 0 ? wanted[right - 1] & ~GG_ELEMENT_NEGATIVE : 0;
        CHECK_INT(args.start, right > 0 ? last - last % c->bin : from->start);
        CHECK_INT(args.least, right > 0 ? last % c->bin + 1 : from->least);
        buffer_free(&elements);
    }
}

static void check_case(const entries_case *c) {
    const size_t unit = c->wide ? 2 : 1;
    buffer units = buffer_create(c->n * unit), copy = buffer_create(c->n * unit);
    buffer elements = buffer_create(c->n * sizeof(uint32_t));
    unsigned char *at = (unsigned char *)units.data, *kept = (unsigned char *)copy.data;
    uint32_t *wanted = (uint32_t *)elements.data;
    gg_entries_args from = {.at = at, .n = c->n, .wide = c->wide, .bin = c->bin, .start = -c->bin, .least = c->bin};
    if (c->open) from.start = 7 * c->bin, from.least = 1;
    fill(c, &from, at, wanted);
    memcpy(kept, at, c->n * unit);
    read_all(c, &from, c->n, wanted);
    for (size_t i = 0; i < c->n; ++i) {
        const uint32_t before = i > 0 ? (wanted[i - 1] & ~GG_ELEMENT_NEGATIVE) % c->bin : from.least - 1;
        put(c, at, i, mark_of(c), below(2) == 1, false);
        read_all(c, &from, i, wanted);
        if (c->bin < mark_of(c)) {
            put(c, at, i, c->bin, true, false);
            read_all(c, &from, i, wanted);
        }
        if (before < mark_of(c)) { /* does not ascend */
            put(c, at, i, before, false, true);
            read_all(c, &from, i, wanted);
        }
        memcpy(at, kept, c->n * unit);
    }
    buffer_free(&units);
    buffer_free(&copy);
    buffer_free(&elements);
}

/* Random units, right before memory that cannot be read: all levels read the same, and none goes further. */
static void check_random(const entries_case *c, unsigned char *end) {
    const size_t bytes = c->n * (c->wide ? 2 : 1);
    uint32_t wanted[MAX_RANDOM] = {0};
    gg_entries_args from = {.at = end - bytes, .n = c->n, .wide = c->wide, .bin = c->bin, .start = c->bin, .least = 1};
    for (size_t i = 0; i < c->n; ++i) /* mostly in order */
        put(c, end - bytes, i, below(mark_of(c) + 1) >> below(c->wide ? 14 : 6), below(8) > 0, below(2) == 1);
    gg_entries_args plain = from;
    plain.element = wanted;
    const size_t right = gg_cpu_kernels_for(GG_ISA_SCALAR)->entries(&plain);
    read_all(c, &from, right, wanted);
}

static void check_randoms(const entries_case *c) {
    const size_t page = (size_t)sysconf(_SC_PAGESIZE);
    unsigned char *pages = mmap(NULL, 2 * page, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    CHECK(pages != MAP_FAILED && mprotect(pages + page, page, PROT_NONE) == 0);
    for (int i = 0; i < 200; ++i) check_random(c, pages + page);
    munmap(pages, 2 * page);
}

static void check_both(const entries_case *c) {
    check_case(c);
    check_randoms(c);
}

int main(void) {
    static const uint32_t narrow[] = {1, 2, 50, 63}, wide[] = {64, 500, 5000, 16383, 16384};
    static const size_t sizes[] = {1, 2, 7, 8, 9, 15, 16, 17, 31, 32, 33, 64, 100};
    for (size_t s = 0; s < sizeof sizes / sizeof *sizes; ++s)
        for (int open = 0; open < 2; ++open) {
            for (size_t b = 0; b < sizeof narrow / sizeof *narrow; ++b)
                check_both(&(entries_case){.bin = narrow[b], .n = sizes[s], .open = open});
            for (size_t b = 0; b < sizeof wide / sizeof *wide; ++b)
                check_both(&(entries_case){.wide = true, .bin = wide[b], .n = sizes[s], .open = open});
        }
    CHECK_INT(gg_memory_live_bytes(), 0);
    return CHECK_RESULT;
}
