/* What the bytes of GossipGraD's exchange cost by themselves: two processes on two cores, without MPI and without a
 * network. A step updates LeNet's 431,080 weights by SGD with momentum, works on 6 MiB of other memory, and mixes what
 * the other process has published.
 *
 *     gcc -O2 -march=native -o exchange_roof benchmarks/exchange_roof.c && ./exchange_roof [WEIGHTS]
 *
 * Prints medians in microseconds. "streamed": copies are written past the cache, as the package does; "ordinary": by
 * ordinary stores. In "chunks" what the other one has published is mixed chunk by chunk, during the update. */
#define _GNU_SOURCE
#include <immintrin.h>
#include <sched.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

enum { STEPS = 60, WARM = 10, CHUNK = 32768 };
#define INLINE static inline __attribute__((always_inline))
typedef float vector __attribute__((vector_size(64), may_alias));

static size_t count;
static _Atomic long *meeting, *published;
static long met;

static void meet(void) {
    atomic_fetch_add(meeting, 1);
    for (++met; atomic_load(meeting) < 2 * met;) _mm_pause();
}

static double microseconds(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec * 1e6 + (double)t.tv_nsec * 1e-3;
}

typedef struct arenas {
    float *weight, *momentum, *gradient;     /* private */
    float *weight_copy, *momentum_copy;      /* what is published; NULL: nothing */
    const float *received, *received_before; /* weights, and the momentum of the step before */
} arenas;

INLINE void publish(bool streamed, float *to, vector v) {
    if (streamed) _mm512_stream_ps(to, (__m512)v);
    else *(vector *)to = v;
}

INLINE void update(const arenas *a, bool streamed, size_t begin, size_t end) {
    for (size_t i = begin; i < end; i += 16) {
        vector w = *(vector *)(a->weight + i), m = *(vector *)(a->momentum + i);
        if (a->received_before) m += (*(const vector *)(a->received_before + i) - m) * 0.5f;
        m = 0.9f * m + *(vector *)(a->gradient + i);
        w -= 0.01f * m;
        *(vector *)(a->weight + i) = w;
        *(vector *)(a->momentum + i) = m;
        if (a->weight_copy) publish(streamed, a->weight_copy + i, w);
        if (a->momentum_copy) publish(streamed, a->momentum_copy + i, m);
    }
    _mm_sfence();
}

static void mix(const arenas *a, size_t begin, size_t end) {
    for (size_t i = begin; i < end; i += 16) {
        vector *w = (vector *)(a->weight + i);
        *w += (*(const vector *)(a->received + i) - *w) * 0.5f;
    }
}

static void update_in_chunks(const arenas *a, int me, long step) {
    const size_t chunks = (count + CHUNK - 1) / CHUNK;
    for (size_t c = 0; c <= chunks; ++c) {
        const size_t at = c * CHUNK, before = at - CHUNK;
        if (c < chunks) update(a, true, at, at + CHUNK < count ? at + CHUNK : count);
        atomic_store_explicit(&published[8 * me], step * 100000 + (long)c, memory_order_release);
        if (c == 0) continue;
        while (atomic_load_explicit(&published[8 * !me], memory_order_acquire) < step * 100000 + (long)c - 1)
            _mm_pause();
        mix(a, before, at < count ? at : count);
    }
}

static void work(char *memory, size_t bytes) {
    for (size_t i = 0; i < bytes; i += 64) memory[i]++;
}

static int compare(const void *a, const void *b) {
    const double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

static double median(double *values) {
    qsort(values + WARM, STEPS - WARM, sizeof *values, compare);
    return values[(WARM + STEPS) / 2];
}

static float *zeroed(size_t bytes) { return memset(aligned_alloc(4096, bytes), 0, bytes); }

int main(int argc, char **argv) {
    static const struct {
        const char *name;
        int parts; /* published: weights, weights and momentum */
        bool streamed, chunks;
    } forms[] = {{"no exchange", 0, true, false},        {"weights, streamed", 1, true, false},
                 {"weights, ordinary", 1, false, false}, {"both, streamed", 2, true, false},
                 {"both, ordinary", 2, false, false},    {"both, streamed, chunks", 2, true, true}};
    count = (argc > 1 ? strtoul(argv[1], NULL, 10) : 431080) / 32 * 32;
    const size_t bytes = (count * sizeof(float) + 4095) / 4096 * 4096, other = (size_t)6 << 20;
    char *shared = mmap(NULL, 8 * bytes + 4096, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    memset(shared, 0, 8 * bytes + 4096);
    meeting = (void *)(shared + 8 * bytes);
    published = meeting + 64;
    const int me = fork() == 0;
    cpu_set_t core;
    CPU_ZERO(&core);
    CPU_SET(me, &core);
    sched_setaffinity(0, sizeof core, &core);
    arenas a = {zeroed(bytes), zeroed(bytes), zeroed(bytes), NULL, NULL, NULL, NULL};
    char *memory = (char *)zeroed(other);
    long steps = 0;
    for (size_t f = 0; f < sizeof forms / sizeof *forms; ++f) {
        double updates[STEPS], mixes[STEPS];
        for (int step = 0; step < STEPS; ++step) {
            const int turn = step & 1;
#define PART(who, turn, part) ((float *)(shared + bytes * (size_t)(4 * (who) + 2 * (turn) + (part))))
            a.weight_copy = forms[f].parts > 0 ? PART(me, turn, 0) : NULL;
            a.momentum_copy = forms[f].parts > 1 ? PART(me, turn, 1) : NULL;
            a.received = PART(!me, turn, 0);
            a.received_before = forms[f].parts > 1 ? PART(!me, !turn, 1) : NULL;
            work(memory, other);
            for (size_t i = 0; i < count; ++i) a.gradient[i] = (float)(step + 1);
            meet();
            double begin = microseconds();
            if (forms[f].chunks) update_in_chunks(&a, me, ++steps);
            else if (forms[f].streamed) update(&a, true, 0, count);
            else update(&a, false, 0, count);
            updates[step] = microseconds() - begin;
            meet();
            work(memory, other);
            meet();
            begin = microseconds();
            if (forms[f].parts > 0 && !forms[f].chunks) mix(&a, 0, count);
            mixes[step] = microseconds() - begin;
            meet();
        }
        if (me == 0) printf("%-24s update %9.1f  mix %9.1f\n", forms[f].name, median(updates), median(mixes));
    }
    if (me) _exit(0);
    wait(NULL);
    return 0;
}
