/* The CUDA runtime of the stand-in: devices, memory, streams, events, and the thread that does their work. */
#define _GNU_SOURCE
#include <errno.h>
#include <pthread.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <time.h>
#include <unistd.h>

#include "inside.h"

enum {
    INVALID_VALUE = 1,
    INVALID_DEVICE = 101,
    INVALID_HANDLE = 400,
    NOT_REGISTERED = 713,
    CAPTURED_EVENT = 907,

    PAGE = 4096,
    ALIGNMENT = 256, /* of cudaMalloc */
    GUARD = 0xa5,
    NAME = 64,
    MOST_STREAMS = 512,
    MOST_WAITERS = 64,
    MOST_NAMES = 256,
    MOST_PLANTED = 16,
    MOST_DEVICES = 8,
    BUCKETS = 4096,
};

/* Where the device's memory is for its callers, without access, and for work. Addresses are not used again before all
 * are used up. */
static const size_t reserved = (size_t)128 << 30;
/* Of each 4 GiB only these are used (translate_word says why). */
static const uint32_t usable_begin = 0x10000000u, usable_end = 0x30000000u;

typedef enum block_kind { BLOCK_DEVICE, BLOCK_PINNED, BLOCK_REGISTERED } block_kind;

typedef struct gg_standin_block {
    block_kind kind;
    uintptr_t at;
    size_t bytes;
    int device;
    long number; /* which allocation it is */
    int pending; /* pieces of work that use it and are not done */
    int held;    /* pieces of captured work that use it */
    bool alive;
} gg_standin_block;

typedef struct work {
    struct work *next;
    const char *function;
    gg_standin_run *run; /* NULL: waits for `position` of stream `other` */
    int other;
    long position;
    long due; /* the tick from which it may begin */
    bool lose;
    int code;
    gg_standin_uses uses;
    size_t bytes; /* of the packet */
    _Alignas(16) char packet[];
} work;

/* A stream is a place in a table that is never used again; its handle is an object. */
#define DONE_TIMES 1024

typedef struct stream {
    bool alive;
    int device;
    long given, done;
    double done_at[DONE_TIMES]; /* seconds, of the last pieces, by their numbers */
    work *first, *last;
    gg_standin_capture *capture; /* NULL: what it is given is done */
} stream;

static double seconds_now(void) {
    struct timespec now;
    (void)clock_gettime(CLOCK_MONOTONIC, &now);
    return (double)now.tv_sec + 1e-9 * (double)now.tv_nsec;
}

typedef struct stream_handle {
    int place;
} stream_handle;

typedef struct event_handle {
    bool recorded, timed;
    double recorded_at; /* a queue without work gets there at once */
    bool captured;      /* it was recorded while its stream was captured */
    int device, place;
    long position;
} event_handle;

typedef struct object {
    const char *kind;
    long number;
    struct object *next;
    _Alignas(16) char body[];
} object;

typedef struct planted {
    char function[NAME];
    long at;
    int code;
    bool lost, late;
} planted;

typedef struct counted {
    char name[2 * NAME];
    long calls;
} counted;

static struct {
    pthread_mutex_t lock;
    pthread_cond_t given, done;
    pthread_once_t once;
    pthread_t thread;
    bool stopping;

    uint64_t random;
    bool held_back; /* work begins late, not only when it is waited for */
    long tick;
    int devices;
    size_t memory, used[MOST_DEVICES];

    char *callers, *work; /* `reserved` bytes each */
    size_t next;
    gg_standin_block **block; /* alive, by address */
    int blocks, block_room;
    long numbers;

    stream stream[MOST_STREAMS];
    int streams;
    int waiter[MOST_WAITERS]; /* streams that callers wait for, and up to where */
    long waited[MOST_WAITERS];
    int waiters;
    bool others_first;
    const char *running;

    object *objects[BUCKETS]; /* by their addresses */
    counted count[MOST_NAMES];
    int counts;
    planted plant[MOST_PLANTED];
    int plants;
    int lost; /* the code that all calls give */
    char violations[1 << 14];
    int violation_count;
} state = {.lock = PTHREAD_RECURSIVE_MUTEX_INITIALIZER_NP,
           .given = PTHREAD_COND_INITIALIZER,
           .done = PTHREAD_COND_INITIALIZER,
           .once = PTHREAD_ONCE_INIT,
           .devices = 1,
           .memory = (size_t)8 << 30,
           .random = 1};

static _Thread_local int current_device, last_error;
static _Thread_local bool lose_late;
static _Thread_local int late_code;

/* ------------------------------------------------------------------------------------------ counts, errors, draws */

static uint64_t draw(uint64_t below) {
    uint64_t x = state.random;
    x ^= x << 13, x ^= x >> 7, x ^= x << 17;
    state.random = x;
    return below ? (x * 0x2545f4914f6cdd1du >> 11) % below : 0;
}

uint64_t gg_standin_draw(uint64_t below) {
    pthread_mutex_lock(&state.lock);
    const uint64_t drawn = draw(below);
    pthread_mutex_unlock(&state.lock);
    return drawn;
}

static void add_text(const char *format, va_list arguments) {
    const size_t used = strlen(state.violations), room = sizeof state.violations - used;
    ++state.violation_count;
    if (room < 256) return;
    vsnprintf(state.violations + used, room - 2, format, arguments);
    strcat(state.violations, "\n");
}

static int violation(int code, const char *format, ...) {
    va_list arguments;
    va_start(arguments, format);
    add_text(format, arguments);
    va_end(arguments);
    return code;
}

int gg_standin_violation(int code, const char *format, ...) {
    va_list arguments;
    va_start(arguments, format);
    pthread_mutex_lock(&state.lock);
    add_text(format, arguments);
    pthread_mutex_unlock(&state.lock);
    va_end(arguments);
    return code;
}

static long count_one(const char *what) {
    int i = 0;
    while (i < state.counts && strcmp(state.count[i].name, what) != 0) ++i;
    if (i == MOST_NAMES) return 0;
    if (i == state.counts) {
        snprintf(state.count[i].name, sizeof state.count[i].name, "%s", what);
        state.count[i].calls = 0;
        ++state.counts;
    }
    return ++state.count[i].calls;
}

void gg_standin_count_one(const char *what) {
    pthread_mutex_lock(&state.lock);
    count_one(what);
    pthread_mutex_unlock(&state.lock);
}

long gg_standin_count(const char *what) {
    long calls = 0;
    pthread_mutex_lock(&state.lock);
    for (int i = 0; i < state.counts; ++i)
        if (strcmp(state.count[i].name, what) == 0) calls = state.count[i].calls;
    pthread_mutex_unlock(&state.lock);
    return calls;
}

static int enter(const char *function) {
    ++state.tick;
    if (state.held_back) pthread_cond_signal(&state.given);
    const long calls = count_one(function);
    const bool runtime = strncmp(function, "cuda", 4) == 0 || strcmp(function, "kernel") == 0;
    for (int i = 0; i < state.plants; ++i) {
        const planted *it = &state.plant[i];
        if ((it->at != 0 && it->at != calls) || strcmp(it->function, function) != 0) continue;
        if (it->late) {
            lose_late = true;
            late_code = it->code;
            continue;
        }
        if (it->lost) state.lost = it->code;
        return it->code;
    }
    return runtime ? state.lost : 0;
}

int gg_standin_enter(const char *function) {
    pthread_mutex_lock(&state.lock);
    const int code = enter(function);
    pthread_mutex_unlock(&state.lock);
    return code;
}

/* Every function of the runtime: begins with the lock, ends with RETURN, which leaves the error for cudaGetLastError.
 */
#define ENTER(name)                                                                                                    \
    start();                                                                                                           \
    pthread_mutex_lock(&state.lock);                                                                                   \
    int code = enter(name);                                                                                            \
    if (code != 0) goto leave
#define LEAVE                                                                                                          \
    leave:                                                                                                             \
    if (code != 0) last_error = code;                                                                                  \
    pthread_mutex_unlock(&state.lock);                                                                                 \
    return code
#define FAIL(value)                                                                                                    \
    do {                                                                                                               \
        code = (value);                                                                                                \
        goto leave;                                                                                                    \
    } while (0)

/* -------------------------------------------------------------------------------------------------------- objects */

static object **bucket_of(const void *body) {
    return &state.objects[(uintptr_t)body / 16 * 2654435761u / 65536 % BUCKETS];
}

static void *create_object(const char *kind, size_t bytes) {
    object *made = calloc(1, sizeof *made + bytes);
    if (made == NULL) abort();
    made->kind = kind;
    made->number = ++state.numbers;
    object **bucket = bucket_of(made->body);
    made->next = *bucket;
    *bucket = made;
    return made->body;
}

static void *find_object(const char *function, const char *kind, const void *handle) {
    for (object *it = *bucket_of(handle); it != NULL; it = it->next) {
        if ((const void *)it->body != handle) continue;
        if (strcmp(it->kind, kind) == 0) return it->body;
        violation(0, "%s: wants a %s and is given a %s", function, kind, it->kind);
        return NULL;
    }
    violation(0, "%s: this %s is NULL, destroyed or was never created", function, kind);
    return NULL;
}

static void destroy_object(void *body) {
    for (object **it = bucket_of(body); *it != NULL; it = &(*it)->next) {
        if ((void *)(*it)->body != body) continue;
        object *gone = *it;
        *it = gone->next;
        free(gone);
        return;
    }
}

void *gg_standin_create(const char *kind, size_t bytes) {
    pthread_mutex_lock(&state.lock);
    void *made = create_object(kind, bytes);
    pthread_mutex_unlock(&state.lock);
    return made;
}

void *gg_standin_find(const char *function, const char *kind, const void *handle) {
    pthread_mutex_lock(&state.lock);
    void *found = find_object(function, kind, handle);
    pthread_mutex_unlock(&state.lock);
    return found;
}

void gg_standin_destroy(void *body) {
    pthread_mutex_lock(&state.lock);
    destroy_object(body);
    pthread_mutex_unlock(&state.lock);
}

int gg_standin_make(const char *function, const char *kind, size_t bytes, void *out) {
    const int failure = gg_standin_enter(function);
    if (failure != 0) return failure;
    void *made = gg_standin_create(kind, bytes);
    memcpy(out, &made, sizeof made);
    return 0;
}

int gg_standin_unmake(const char *function, const char *kind, void *body, int invalid) {
    const int failure = gg_standin_enter(function);
    if (failure != 0) return failure;
    if (gg_standin_find(function, kind, body) == NULL) return invalid;
    gg_standin_destroy(body);
    return 0;
}

/* --------------------------------------------------------------------------------------------------------- blocks */

/* The place of the last block that begins at `at` or before it, or -1. */
static int block_before(uintptr_t at) {
    int low = 0, high = state.blocks;
    while (low < high) {
        const int middle = (low + high) / 2;
        if (state.block[middle]->at <= at) low = middle + 1;
        else high = middle;
    }
    return low - 1;
}

static gg_standin_block *block_at(uintptr_t at) {
    const int place = block_before(at);
    if (place < 0) return NULL;
    gg_standin_block *block = state.block[place];
    return at - block->at < block->bytes || at == block->at ? block : NULL;
}

static gg_standin_block *add_block(block_kind kind, uintptr_t at, size_t bytes) {
    if (state.blocks == state.block_room) {
        state.block_room = 2 * state.block_room + 64;
        state.block = realloc(state.block, (size_t)state.block_room * sizeof *state.block);
        if (state.block == NULL) abort();
    }
    gg_standin_block *block = calloc(1, sizeof *block);
    if (block == NULL) abort();
    *block = (gg_standin_block){
        .kind = kind, .at = at, .bytes = bytes, .device = current_device, .number = ++state.numbers, .alive = true};
    const int place = block_before(at) + 1;
    memmove(state.block + place + 1, state.block + place, (size_t)(state.blocks - place) * sizeof *state.block);
    state.block[place] = block;
    ++state.blocks;
    return block;
}

static void remove_block(gg_standin_block *block) {
    const int place = block_before(block->at);
    memmove(state.block + place, state.block + place + 1, (size_t)(state.blocks - place - 1) * sizeof *state.block);
    --state.blocks;
    block->alive = false;
    if (block->pending == 0 && block->held == 0) free(block);
}

static bool is_device_address(uintptr_t at) {
    return state.callers != NULL && at - (uintptr_t)state.callers < reserved;
}

static bool is_usable(uintptr_t at) { return (uint32_t)at >= usable_begin && (uint32_t)at < usable_end; }

static char *work_address(uintptr_t at) { return state.work + (at - (uintptr_t)state.callers); }

static size_t whole_pages(size_t bytes) { return (bytes + PAGE - 1) / PAGE * PAGE; }

static const char *kind_name(block_kind kind) {
    return kind == BLOCK_DEVICE ? "memory of the device" : kind == BLOCK_PINNED ? "pinned memory" : "registered memory";
}

static bool add_use(gg_standin_uses *uses, gg_standin_block *block) {
    for (int i = 0; i < uses->count; ++i)
        if (uses->block[i] == block) return true;
    if (uses->count == GG_STANDIN_MOST_USES) return false;
    uses->block[uses->count++] = block;
    return true;
}

/* The bytes from `at` on that belong to its block, and to blocks of host memory that follow without a gap: what is
 * registered piece by piece is one range. */
static size_t bytes_from(gg_standin_uses *uses, uintptr_t at, size_t wanted) {
    size_t bytes = 0;
    for (int place = block_before(at); place < state.blocks && bytes < wanted; ++place) {
        gg_standin_block *block = state.block[place];
        if (bytes > 0 && (block->kind == BLOCK_DEVICE || block->at != at + bytes)) break;
        if (!add_use(uses, block)) break;
        bytes = block->at + block->bytes - at;
        if (block->kind == BLOCK_DEVICE) break;
    }
    return bytes;
}

static bool operand(gg_standin_uses *uses, const char *function, const char *name, const void *at, size_t bytes,
                    size_t alignment, void **where) {
    const uintptr_t address = (uintptr_t)at;
    *where = NULL;
    const gg_standin_block *found = block_at(address);
    size_t there = 0;
    if (at == NULL) violation(0, "%s: %s is NULL", function, name);
    else if (address % alignment != 0) violation(0, "%s: %s is not aligned to %zu bytes", function, name, alignment);
    else if (found == NULL && is_device_address(address))
        violation(0, "%s: %s is an address of the device where nothing is allocated", function, name);
    else if (found == NULL) violation(0, "%s: %s is in host memory that is not pinned", function, name);
    else if ((there = bytes_from(uses, address, bytes)) < bytes)
        violation(0, "%s: %s needs %zu bytes, and %zu are there up to the end of its block", function, name, bytes,
                  there);
    else {
        *where = found->kind == BLOCK_DEVICE ? work_address(address) : (void *)address;
        return true;
    }
    return false;
}

bool gg_standin_operand(gg_standin_uses *uses, const char *function, const char *name, const void *at, size_t bytes,
                        size_t alignment, void **where) {
    pthread_mutex_lock(&state.lock);
    const bool good = operand(uses, function, name, at, bytes, alignment, where);
    pthread_mutex_unlock(&state.lock);
    return good;
}

/* ---------------------------------------------------------------------------------------------------- doing work */

static bool is_waited(int place) {
    for (int i = 0; i < state.waiters; ++i)
        if (state.waiter[i] == place && state.stream[place].done < state.waited[i]) return true;
    /* or what is waited for waits for it */
    for (int i = 0; i < state.streams; ++i) {
        const work *head = state.stream[i].first;
        if (i == place || head == NULL || head->run != NULL || head->other != place) continue;
        if (state.stream[place].done < head->position && is_waited(i)) return true;
    }
    return false;
}

/* The stream whose first piece of work is done next, or -1. */
static int choose_stream(void) {
    int ready[MOST_STREAMS], needed[MOST_STREAMS], readies = 0, needs = 0;
    bool waits = false;
    for (int i = 0; i < state.streams; ++i) {
        const work *head = state.stream[i].first;
        if (head == NULL) continue;
        if (head->run == NULL && state.stream[head->other].done < head->position) continue;
        const bool needed_now = state.waiters > 0 && is_waited(i);
        waits |= needed_now;
        if (needed_now) needed[needs++] = i;
        else if (head->due <= state.tick || state.waiters > 0) ready[readies++] = i;
    }
    /* While a caller waits, either all else is done before, or nothing else is. */
    if (waits && state.held_back) {
        if (state.others_first && readies > 0) return ready[draw((uint64_t)readies)];
        return needed[draw((uint64_t)needs)];
    }
    if (needs > 0) return needed[0];
    for (int i = 0, kept = 0; i < readies; ++i) { /* nobody waits for these: only what is due */
        if (state.stream[ready[i]].first->due <= state.tick) ready[kept++] = ready[i];
        if (i == readies - 1) readies = kept;
    }
    return readies > 0 ? ready[state.held_back ? draw((uint64_t)readies) : 0] : -1;
}

static bool anything_given(void) {
    for (int i = 0; i < state.streams; ++i)
        if (state.stream[i].first != NULL) return true;
    return false;
}

static void do_first(stream *from) {
    work *it = from->first;
    if (it->run != NULL && state.lost == 0) {
        state.running = it->function;
        pthread_mutex_unlock(&state.lock);
        it->run(it->packet);
        pthread_mutex_lock(&state.lock);
        state.running = NULL;
    }
    if (it->lose && state.lost == 0) state.lost = it->code;
    from->first = it->next;
    if (from->first == NULL) from->last = NULL;
    ++from->done;
    from->done_at[from->done % DONE_TIMES] = seconds_now();
    for (int i = 0; i < it->uses.count; ++i) {
        gg_standin_block *block = it->uses.block[i];
        if (--block->pending == 0 && !block->alive && block->held == 0) free(block);
    }
    free(it);
    pthread_cond_broadcast(&state.done);
}

static void *do_work(void *unused) {
    pthread_mutex_lock(&state.lock);
    while (!state.stopping) {
        const int place = choose_stream();
        if (place >= 0) do_first(&state.stream[place]);
        else if (!anything_given()) pthread_cond_wait(&state.given, &state.lock);
        else {
            /* What is held back begins at last, also where nobody asks. */
            struct timespec until;
            clock_gettime(CLOCK_REALTIME, &until);
            until.tv_nsec += 500000;
            if (until.tv_nsec >= 1000000000) until.tv_nsec -= 1000000000, ++until.tv_sec;
            if (pthread_cond_timedwait(&state.given, &state.lock, &until) == ETIMEDOUT) ++state.tick;
        }
    }
    pthread_mutex_unlock(&state.lock);
    return unused;
}

/* Waits, with the lock, until `position` pieces of the stream's work are done. */
static void wait_for(int place, long position) {
    if (state.stream[place].done >= position) return;
    const int mine = state.waiters++;
    if (mine >= MOST_WAITERS) abort();
    state.waiter[mine] = place;
    state.waited[mine] = position;
    state.others_first = draw(2) != 0;
    pthread_cond_signal(&state.given);
    while (state.stream[place].done < position) pthread_cond_wait(&state.done, &state.lock);
    for (int i = 0; i < state.waiters; ++i) {
        if (state.waiter[i] != place || state.waited[i] != position) continue;
        state.waiter[i] = state.waiter[--state.waiters];
        state.waited[i] = state.waited[state.waiters];
        break;
    }
}

static void wait_for_all(void) {
    for (int i = 0; i < state.streams; ++i) wait_for(i, state.stream[i].given);
}

static struct sigaction previous_handler[2];

/* Says whose fault it was, and lets the process end as it would have. */
static void on_bad_access(int number, siginfo_t *info, void *context) {
    const uintptr_t at = (uintptr_t)info->si_addr;
    char text[256] = "";
    if (state.callers != NULL && pthread_equal(pthread_self(), state.thread))
        snprintf(text, sizeof text, "stand-in: %s reads or writes outside of its memory\n",
                 state.running != NULL ? state.running : "?");
    else if (is_device_address(at))
        snprintf(text, sizeof text, "stand-in: the host reads or writes memory of the device\n");
    if (write(2, text, strlen(text)) < 0) text[0] = 0;
    sigaction(number, &previous_handler[number == SIGBUS], NULL);
    (void)context;
}

static void start_once(void) {
    state.callers = mmap(NULL, reserved, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    state.work = mmap(NULL, reserved, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (getenv("GOSSIPGRAD_STANDIN_OPEN") != NULL && state.callers != MAP_FAILED) {
        munmap(state.callers, reserved);
        state.callers = state.work;
    }
    if (state.callers == MAP_FAILED || state.work == MAP_FAILED) {
        perror("stand-in: no address space");
        abort();
    }
    struct sigaction action = {.sa_sigaction = on_bad_access, .sa_flags = SA_SIGINFO | SA_ONSTACK};
    sigaction(SIGSEGV, &action, &previous_handler[0]);
    sigaction(SIGBUS, &action, &previous_handler[1]);
    if (pthread_create(&state.thread, NULL, do_work, NULL) != 0) abort();
}

static void start(void) { pthread_once(&state.once, start_once); }

static __attribute__((destructor)) void stop(void) {
    if (state.callers == NULL) return;
    pthread_mutex_lock(&state.lock);
    state.stopping = true;
    pthread_cond_broadcast(&state.given);
    pthread_mutex_unlock(&state.lock);
    pthread_join(state.thread, NULL);
}

static int stream_place(const char *function, gg_cuda_stream handle) {
    if (handle == NULL) {
        violation(0, "%s: the stream is NULL, the legacy stream, which waits for all others", function);
        return -1;
    }
    const stream_handle *found = find_object(function, "cudaStream", handle);
    if (found == NULL) return -1;
    if (state.stream[found->place].device != current_device) {
        violation(0, "%s: the stream is of device %d, and this thread's device is %d", function,
                  state.stream[found->place].device, current_device);
        return -1;
    }
    return found->place;
}

static work *give(int place, const char *function, gg_standin_run *run, const void *packet, size_t bytes,
                  const gg_standin_uses *uses) {
    work *made = calloc(1, sizeof *made + bytes);
    if (made == NULL) abort();
    made->function = function;
    made->run = run;
    made->bytes = bytes;
    if (uses != NULL) made->uses = *uses;
    if (bytes > 0) memcpy(made->packet, packet, bytes);
    made->due = state.tick + (state.held_back ? (long)draw(12) : 0);
    made->lose = lose_late;
    made->code = late_code;
    lose_late = false;
    stream *to = &state.stream[place];
    for (int i = 0; i < made->uses.count; ++i)
        ++*(to->capture != NULL ? &made->uses.block[i]->held : &made->uses.block[i]->pending);
    if (to->capture != NULL) {
        gg_standin_captured(to->capture, made);
        return made;
    }
    if (to->last != NULL) to->last->next = made;
    else to->first = made;
    to->last = made;
    ++to->given;
    pthread_cond_signal(&state.given);
    return made;
}

int gg_standin_submit(const char *function, gg_cuda_stream handle, gg_standin_run *run, const void *packet,
                      size_t bytes, const gg_standin_uses *uses) {
    start();
    pthread_mutex_lock(&state.lock);
    const int place = stream_place(function, handle);
    if (place >= 0) give(place, function, run, packet, bytes, uses);
    pthread_mutex_unlock(&state.lock);
    return place >= 0 ? 0 : INVALID_HANDLE;
}

bool gg_standin_stream_is_alive(const char *function, gg_cuda_stream handle) {
    pthread_mutex_lock(&state.lock);
    const bool alive = stream_place(function, handle) >= 0;
    pthread_mutex_unlock(&state.lock);
    return alive;
}

/* ------------------------------------------------------------------------------------------------- for graph.c */

int gg_standin_call(const char *function, int (*body)(const void *arguments), const void *arguments) {
    ENTER(function);
    code = body(arguments);
    LEAVE;
}

int gg_standin_place(const char *function, gg_cuda_stream handle) { return stream_place(function, handle); }

gg_standin_capture **gg_standin_capture_of(int place) { return &state.stream[place].capture; }

struct work *gg_standin_next(const struct work *of) {
    return of->next;
}

void gg_standin_append(struct work **first, struct work **last, struct work *made) {
    if (*last != NULL) (*last)->next = made;
    else *first = made;
    *last = made;
}

int gg_standin_again(int place, const struct work *of) {
    for (int i = 0; i < of->uses.count; ++i)
        if (!of->uses.block[i]->alive)
            return violation(INVALID_VALUE, "cudaGraphLaunch: %s uses a block that has been freed (allocation %ld)",
                             of->function, of->uses.block[i]->number);
    work *made = give(place, of->function, of->run, of->packet, of->bytes, &of->uses);
    made->lose |= of->lose;
    made->code = of->lose ? of->code : made->code;
    return 0;
}

void gg_standin_forget(struct work *first) {
    for (work *next; first != NULL; first = next) {
        next = first->next;
        for (int i = 0; i < first->uses.count; ++i) {
            gg_standin_block *block = first->uses.block[i];
            if (--block->held == 0 && !block->alive && block->pending == 0) free(block);
        }
        free(first);
    }
}

/* --------------------------------------------------------------------------------------------------------- kernels */

/* What was given: where it begins in the packet depends on the alignment of the arguments. */
typedef struct kernel_packet {
    void (*run)(const void *packet);
    void *unused;
    _Alignas(16) char packet[];
} kernel_packet;

static void run_kernel(void *packet) {
    const kernel_packet *it = packet;
    it->run(it->packet);
}

static bool is_mapped(uintptr_t at) { return msync((void *)(at / PAGE * PAGE), 1, MS_ASYNC) == 0; }

/* The block that a word of a kernel's arguments is an address of: inside, or one behind its end. */
static const gg_standin_block *block_of_word(uintptr_t word) {
    const gg_standin_block *block = word != 0 ? block_at(word) : NULL;
    return block != NULL || word == 0 ? block : block_at(word - 1);
}

/* A word of a struct in which a small field is followed by padding, which holds whatever was there before, may look
 * like an address. So it is none where its lower half is a usual integer or float; and no block of the device lies
 * there. */
static bool is_maybe_number(uintptr_t word) {
    const uint32_t low = (uint32_t)word, size = low & 0x7fffffffu;
    return word % 16 != 0 || low < 1u << 20 || (size > 0x2b800000u && size < 0x53800000u);
}

/* Replaces an address of the device by where work finds that memory. `certain`: the argument is a pointer. An address
 * of host memory that is not pinned is one where a page is mapped. */
static int translate_word(const char *kernel, size_t place, bool certain, char *at, gg_standin_uses *uses) {
    uintptr_t word;
    memcpy(&word, at, sizeof word);
    const gg_standin_block *block = block_of_word(word);
    if (block == NULL && (word == 0 || (!certain && is_maybe_number(word)))) return 0;
    if (block == NULL && is_device_address(word))
        return !certain && !is_usable(word)
                   ? 0
                   : violation(INVALID_VALUE,
                               "%s: word %zu of its arguments is an address of the device where nothing is allocated",
                               kernel, place);
    if (block == NULL && (certain || (word > (uintptr_t)1 << 32 && word < (uintptr_t)1 << 47 && is_mapped(word))))
        return violation(INVALID_VALUE, "%s: word %zu of its arguments is an address of host memory that is not pinned",
                         kernel, place);
    if (block == NULL) return 0;
    if (!add_use(uses, (gg_standin_block *)block))
        return violation(INVALID_VALUE, "%s: more than %d blocks", kernel, GG_STANDIN_MOST_USES);
    if (block->kind == BLOCK_DEVICE) word = (uintptr_t)work_address(word);
    memcpy(at, &word, sizeof word);
    return 0;
}

static bool has_bit(const uint64_t *words, size_t i) { return (words[i / 64] >> i % 64 & 1u) != 0; }

void gg_standin_launch(const char *kernel, gg_cuda_stream handle, void (*run)(const void *packet), const void *packet,
                       size_t bytes, const gg_standin_words *words) {
    char named[2 * NAME];
    gg_standin_uses uses = {0};
    kernel_packet *made = calloc(1, sizeof *made + bytes);
    if (made == NULL) abort();
    made->run = run;
    memcpy(made->packet, packet, bytes);
    ENTER("kernel");
    snprintf(named, sizeof named, "kernel %s", kernel);
    code = enter(named);
    for (size_t i = 0; code == 0 && words->head + 8 * i + 8 <= bytes; ++i)
        if (has_bit(words->pointers, i) || has_bit(words->structs, i))
            code = translate_word(named, i, has_bit(words->pointers, i), made->packet + words->head + 8 * i, &uses);
    if (code != 0) goto leave;
    const int place = stream_place(named, handle);
    if (place < 0) FAIL(INVALID_HANDLE);
    give(place, kernel, run_kernel, made, sizeof *made + bytes, &uses);
leave:
    if (code != 0) last_error = code;
    pthread_mutex_unlock(&state.lock);
    free(made);
}

/* --------------------------------------------------------------------------------------------- the runtime's calls */

static int cudaGetDeviceCount(int *count) {
    ENTER("cudaGetDeviceCount");
    *count = 0;
    if (state.devices == 0) FAIL(GG_CUDA_ERROR_INSUFFICIENT_DRIVER);
    *count = state.devices;
    LEAVE;
}

static int cudaSetDevice(int device) {
    ENTER("cudaSetDevice");
    if (device < 0 || device >= state.devices)
        FAIL(violation(INVALID_DEVICE, "cudaSetDevice(%d): there are %d devices", device, state.devices));
    current_device = device;
    LEAVE;
}

static int cudaDeviceGetAttribute(int *value, int attribute, int device) {
    ENTER("cudaDeviceGetAttribute");
    if (device < 0 || device >= state.devices) FAIL(INVALID_DEVICE);
    switch (attribute) {
    case GG_CUDA_ATTRIBUTE_PROCESSORS: *value = 4; break;
    case GG_CUDA_ATTRIBUTE_UNIFIED_ADDRESSING:
    case GG_CUDA_ATTRIBUTE_HOST_POINTER: *value = 1; break;
    case GG_CUDA_ATTRIBUTE_MAJOR: *value = 9; break;
    case GG_CUDA_ATTRIBUTE_MINOR: *value = 0; break;
    default: FAIL(violation(INVALID_VALUE, "cudaDeviceGetAttribute: attribute %d is not known here", attribute));
    }
    LEAVE;
}

static int cudaDeviceCanAccessPeer(int *can, int device, int peer) {
    ENTER("cudaDeviceCanAccessPeer");
    if (device < 0 || device >= state.devices || peer < 0 || peer >= state.devices) FAIL(INVALID_DEVICE);
    *can = device != peer;
    LEAVE;
}

static int cudaDriverGetVersion(int *version) {
    ENTER("cudaDriverGetVersion");
    *version = state.devices == 0 ? 0 : 13000;
    LEAVE;
}

static int cudaRuntimeGetVersion(int *version) {
    ENTER("cudaRuntimeGetVersion");
    *version = 13000;
    LEAVE;
}

static const char *error_text(int error, bool name) {
    static const struct {
        int error;
        const char *name, *text;
    } known[] = {
        {0, "cudaSuccess", "no error"},
        {1, "cudaErrorInvalidValue", "invalid argument"},
        {2, "cudaErrorMemoryAllocation", "out of memory"},
        {35, "cudaErrorInsufficientDriver", "CUDA driver version is insufficient for CUDA runtime version"},
        {100, "cudaErrorNoDevice", "no CUDA-capable device is detected"},
        {101, "cudaErrorInvalidDevice", "invalid device ordinal"},
        {400, "cudaErrorInvalidResourceHandle", "invalid resource handle"},
        {600, "cudaErrorNotReady", "device not ready"},
        {700, "cudaErrorIllegalAddress", "an illegal memory access was encountered"},
        {712, "cudaErrorHostMemoryAlreadyRegistered", "part or all of the requested memory range is already mapped"},
        {713, "cudaErrorHostMemoryNotRegistered", "pointer does not correspond to a registered memory region"},
        {719, "cudaErrorLaunchFailure", "unspecified launch failure"},
        {900, "cudaErrorStreamCaptureUnsupported", "operation not permitted when stream is capturing"},
        {901, "cudaErrorStreamCaptureInvalidated", "operation failed due to a previous error during capture"},
        {907, "cudaErrorCapturedEvent", "operation not permitted on an event last recorded in a capturing stream"}};
    for (size_t i = 0; i < sizeof known / sizeof *known; ++i)
        if (known[i].error == error) return name ? known[i].name : known[i].text;
    return "unrecognized error code";
}

static const char *cudaGetErrorName(int error) { return error_text(error, true); }
static const char *cudaGetErrorString(int error) { return error_text(error, false); }

static int cudaGetLastError(void) {
    pthread_mutex_lock(&state.lock);
    const int code = state.lost != 0 ? state.lost : last_error;
    last_error = 0;
    pthread_mutex_unlock(&state.lock);
    return code;
}

static int cudaMemGetInfo(size_t *free_bytes, size_t *all_bytes) {
    ENTER("cudaMemGetInfo");
    *all_bytes = state.memory;
    *free_bytes = state.memory > state.used[current_device] ? state.memory - state.used[current_device] : 0;
    LEAVE;
}

static int cudaMalloc(void **out, size_t bytes) {
    ENTER("cudaMalloc");
    if ((code = gg_standin_forbid("cudaMalloc")) != 0) goto leave;
    const size_t pages = whole_pages(bytes);
    *out = NULL;
    if (bytes == 0) goto leave;
    if (pages < bytes || state.used[current_device] + pages > state.memory) FAIL(GG_CUDA_ERROR_MEMORY_ALLOCATION);
    if (pages + PAGE > usable_end - usable_begin) FAIL(GG_CUDA_ERROR_MEMORY_ALLOCATION);
    /* the first place from `next` on where nothing lies, with a page without access behind */
    for (int turns = 0;;) {
        const uintptr_t at = (uintptr_t)state.callers + state.next;
        if (state.next + pages + PAGE > reserved) {
            if (++turns == 2) FAIL(GG_CUDA_ERROR_MEMORY_ALLOCATION);
            state.next = 0;
            continue;
        }
        if ((uint32_t)at < usable_begin) state.next += usable_begin - (uint32_t)at;
        else if ((uint32_t)at + pages + PAGE > usable_end)
            state.next += ((size_t)1 << 32) - (uint32_t)at + usable_begin;
        else {
            const int before = block_before(at + pages);
            const gg_standin_block *there = before >= 0 ? state.block[before] : NULL;
            if (there == NULL || !is_device_address(there->at) || there->at + whole_pages(there->bytes) < at) break;
            state.next = there->at + whole_pages(there->bytes) + PAGE - (uintptr_t)state.callers;
        }
    }
    char *inside = state.work + state.next;
    if (mprotect(inside, pages, PROT_READ | PROT_WRITE) != 0) FAIL(GG_CUDA_ERROR_MEMORY_ALLOCATION);
    memset(inside, 0xff, bytes); /* NaN, so that nobody reads what was not written */
    memset(inside + bytes, GUARD, pages - bytes);
    *out = state.callers + state.next;
    state.next += pages + PAGE;
    state.used[current_device] += pages;
    add_block(BLOCK_DEVICE, (uintptr_t)*out, bytes);
    LEAVE;
}

static void check_guard(const gg_standin_block *block) {
    const unsigned char *inside = (const unsigned char *)work_address(block->at);
    for (size_t i = block->bytes; i < whole_pages(block->bytes); ++i) {
        if (inside[i] == GUARD) continue;
        violation(0, "work wrote behind the end of a block of %zu bytes of the device (allocation %ld), at byte %zu",
                  block->bytes, block->number, i);
        return;
    }
}

/* A block that begins there, of this kind; NULL and a violation. */
static gg_standin_block *block_of(const char *function, const void *at, block_kind kind) {
    gg_standin_block *block = block_at((uintptr_t)at);
    if (block == NULL) violation(0, "%s: nothing is allocated there, or it was freed before", function);
    else if (block->at != (uintptr_t)at) violation(0, "%s: the address is inside of a block", function);
    else if (block->kind != kind) violation(0, "%s: this is %s", function, kind_name(block->kind));
    else return block;
    return NULL;
}

static int cudaFree(void *at) {
    ENTER("cudaFree");
    if ((code = gg_standin_forbid("cudaFree")) != 0) goto leave;
    if (at == NULL) goto leave;
    gg_standin_block *block = block_of("cudaFree", at, BLOCK_DEVICE);
    if (block == NULL) FAIL(INVALID_VALUE);
    wait_for_all(); /* as the real one */
    check_guard(block);
    const size_t pages = whole_pages(block->bytes);
    char *inside = work_address(block->at);
    madvise(inside, pages, MADV_DONTNEED);
    mprotect(inside, pages, PROT_NONE);
    state.used[block->device] -= pages;
    remove_block(block);
    LEAVE;
}

static int cudaHostAlloc(void **out, size_t bytes, unsigned flags) {
    ENTER("cudaHostAlloc");
    if ((code = gg_standin_forbid("cudaHostAlloc")) != 0) goto leave;
    *out = NULL;
    if ((flags & ~7u) != 0) FAIL(violation(INVALID_VALUE, "cudaHostAlloc: flags %u", flags));
    if (bytes == 0) goto leave;
    void *made = mmap(NULL, whole_pages(bytes), PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (made == MAP_FAILED) FAIL(GG_CUDA_ERROR_MEMORY_ALLOCATION);
    memset(made, 0xff, bytes);
    *out = made;
    add_block(BLOCK_PINNED, (uintptr_t)made, bytes);
    LEAVE;
}

/* Pinned memory goes away at once: work that uses it must be done. */
static int release_host(const char *function, void *at, block_kind kind) {
    gg_standin_block *block = block_of(function, at, kind);
    if (block == NULL) return kind == BLOCK_REGISTERED ? NOT_REGISTERED : INVALID_VALUE;
    if (block->pending > 0) {
        violation(0, "%s: %d pieces of work that are not done use this memory", function, block->pending);
        wait_for_all();
    }
    if (kind == BLOCK_PINNED) munmap(at, whole_pages(block->bytes));
    remove_block(block);
    return 0;
}

static int cudaFreeHost(void *at) {
    ENTER("cudaFreeHost");
    if ((code = gg_standin_forbid("cudaFreeHost")) != 0) goto leave;
    if (at != NULL) code = release_host("cudaFreeHost", at, BLOCK_PINNED);
    LEAVE;
}

static int cudaHostRegister(void *at, size_t bytes, unsigned flags) {
    ENTER("cudaHostRegister");
    if ((code = gg_standin_forbid("cudaHostRegister")) != 0) goto leave;
    if (at == NULL || bytes == 0 || (flags & ~15u) != 0 || is_device_address((uintptr_t)at))
        FAIL(violation(INVALID_VALUE, "cudaHostRegister: %zu bytes, flags %u: not a block of host memory", bytes,
                       flags));
    const int before = block_before((uintptr_t)at + bytes - 1);
    if (before >= 0 && state.block[before]->at + state.block[before]->bytes > (uintptr_t)at)
        FAIL(GG_CUDA_ERROR_ALREADY_REGISTERED);
    add_block(BLOCK_REGISTERED, (uintptr_t)at, bytes);
    LEAVE;
}

static int cudaHostUnregister(void *at) {
    ENTER("cudaHostUnregister");
    if ((code = gg_standin_forbid("cudaHostUnregister")) != 0) goto leave;
    code = release_host("cudaHostUnregister", at, BLOCK_REGISTERED);
    LEAVE;
}

typedef struct transfer {
    char *to;
    const char *from; /* NULL: fills with value */
    int value;
    size_t bytes;
} transfer;

static void do_transfer(void *packet) {
    const transfer *it = packet;
    if (it->from != NULL) memcpy(it->to, it->from, it->bytes);
    else memset(it->to, it->value, it->bytes);
}

/* Host memory of which nothing is pinned. */
static bool is_pageable(const void *at, size_t bytes) {
    const int before = block_before((uintptr_t)at + bytes - 1);
    return !is_device_address((uintptr_t)at) &&
           (before < 0 || state.block[before]->at + state.block[before]->bytes <= (uintptr_t)at);
}

/* A copy from or to host memory that is not pinned is done when the call returns; it is counted as "pageable". */
/* Of a copy or of zeros: a range of the runtime's calls ends where a mapping does, though kernels may go on. */
static bool in_one_block(const char *function, const void *at, size_t bytes) {
    const gg_standin_block *found = block_at((uintptr_t)at);
    if (found == NULL || (uintptr_t)at + bytes <= found->at + found->bytes) return true;
    violation(0, "%s: %zu bytes reach from one mapping into the next", function, bytes);
    return false;
}

static int cudaMemcpyAsync(void *to, const void *from, size_t bytes, int kind, gg_cuda_stream handle) {
    transfer made = {.bytes = bytes};
    gg_standin_uses uses = {0};
    void *source = (void *)from, *target = to;
    ENTER("cudaMemcpyAsync");
    const int place = stream_place("cudaMemcpyAsync", handle);
    if (place < 0) FAIL(INVALID_HANDLE);
    if (bytes == 0) goto leave;
    const bool up = is_device_address((uintptr_t)to), down = is_device_address((uintptr_t)from);
    const int real = down ? (up ? 3 : 2) : (up ? 1 : 0);
    if (kind != real && kind != GG_CUDA_MEMCPY_DEFAULT)
        FAIL(violation(INVALID_VALUE, "cudaMemcpyAsync: kind %d, and the addresses are of kind %d", kind, real));
    if (to == NULL || from == NULL) FAIL(violation(INVALID_VALUE, "cudaMemcpyAsync: an address is NULL"));
    if ((const char *)to < (const char *)from + bytes && (const char *)from < (const char *)to + bytes)
        FAIL(violation(INVALID_VALUE, "cudaMemcpyAsync: source and target overlap"));
    const bool pageable_to = is_pageable(to, bytes), pageable_from = is_pageable(from, bytes);
    if (!pageable_to && !operand(&uses, "cudaMemcpyAsync", "the target", to, bytes, 1, &target)) FAIL(INVALID_VALUE);
    if (!pageable_from && !operand(&uses, "cudaMemcpyAsync", "the source", from, bytes, 1, &source))
        FAIL(INVALID_VALUE);
    if (!in_one_block("cudaMemcpyAsync", to, bytes) || !in_one_block("cudaMemcpyAsync", from, bytes))
        FAIL(INVALID_VALUE);
    made.to = target;
    made.from = source;
    give(place, "cudaMemcpyAsync", do_transfer, &made, sizeof made, &uses);
    if (pageable_to || pageable_from) {
        count_one("pageable");
        if (state.stream[place].capture != NULL)
            FAIL(gg_standin_forbid("cudaMemcpyAsync of memory that is not pinned"));
        wait_for(place, state.stream[place].given);
        code = state.lost;
    }
    LEAVE;
}

static int cudaMemsetAsync(void *at, int value, size_t bytes, gg_cuda_stream handle) {
    transfer made = {.bytes = bytes, .value = value};
    gg_standin_uses uses = {0};
    void *target;
    ENTER("cudaMemsetAsync");
    const int place = stream_place("cudaMemsetAsync", handle);
    if (place < 0) FAIL(INVALID_HANDLE);
    if (bytes == 0) goto leave;
    if (!operand(&uses, "cudaMemsetAsync", "the target", at, bytes, 1, &target)) FAIL(INVALID_VALUE);
    if (!in_one_block("cudaMemsetAsync", at, bytes)) FAIL(INVALID_VALUE);
    made.to = target;
    give(place, "cudaMemsetAsync", do_transfer, &made, sizeof made, &uses);
    LEAVE;
}

static int cudaStreamCreateWithFlags(gg_cuda_stream *out, unsigned flags) {
    ENTER("cudaStreamCreateWithFlags");
    *out = NULL;
    if (flags != GG_CUDA_STREAM_NON_BLOCKING)
        FAIL(violation(INVALID_VALUE,
                       "cudaStreamCreateWithFlags: flags %u: the stream would wait for the legacy stream", flags));
    int place = 0; /* places of streams that are gone and done are used again; what waits for these is done, too */
    while (place < state.streams && (state.stream[place].alive || state.stream[place].first != NULL)) ++place;
    if (place == MOST_STREAMS) FAIL(GG_CUDA_ERROR_MEMORY_ALLOCATION);
    if (place == state.streams) ++state.streams;
    state.stream[place].alive = true;
    state.stream[place].device = current_device;
    stream_handle *made = create_object("cudaStream", sizeof *made);
    made->place = place;
    *out = (gg_cuda_stream)(void *)made;
    LEAVE;
}

static int cudaStreamDestroy(gg_cuda_stream handle) {
    ENTER("cudaStreamDestroy");
    const int place = stream_place("cudaStreamDestroy", handle);
    if (place < 0) FAIL(INVALID_HANDLE);
    if (state.stream[place].done < state.stream[place].given)
        violation(0, "cudaStreamDestroy: %ld pieces of its work are not done",
                  state.stream[place].given - state.stream[place].done);
    wait_for(place, state.stream[place].given);
    state.stream[place].alive = false;
    destroy_object(handle);
    LEAVE;
}

static int cudaStreamSynchronize(gg_cuda_stream handle) {
    ENTER("cudaStreamSynchronize");
    const int place = stream_place("cudaStreamSynchronize", handle);
    if (place < 0) FAIL(INVALID_HANDLE);
    if (state.stream[place].capture != NULL) FAIL(gg_standin_forbid("cudaStreamSynchronize"));
    wait_for(place, state.stream[place].given);
    code = state.lost;
    LEAVE;
}

static int cudaStreamWaitEvent(gg_cuda_stream handle, gg_cuda_event event_of_caller, unsigned flags) {
    ENTER("cudaStreamWaitEvent");
    const int place = stream_place("cudaStreamWaitEvent", handle);
    const event_handle *event = find_object("cudaStreamWaitEvent", "cudaEvent", event_of_caller);
    if (place < 0 || event == NULL) FAIL(INVALID_HANDLE);
    if (flags != 0) FAIL(violation(INVALID_VALUE, "cudaStreamWaitEvent: flags %u", flags));
    if (!event->recorded) {
        violation(0, "cudaStreamWaitEvent: the event was never recorded: nothing is waited for");
        goto leave;
    }
    if (event->captured) FAIL(gg_standin_forbid("cudaStreamWaitEvent for an event of captured work"));
    if (state.stream[place].capture != NULL)
        FAIL(gg_standin_forbid("cudaStreamWaitEvent for work that is not captured"));
    if (state.stream[event->place].done >= event->position) goto leave;
    work *made = give(place, "cudaStreamWaitEvent", NULL, NULL, 0, NULL);
    made->other = event->place;
    made->position = event->position;
    LEAVE;
}

static int cudaEventCreateWithFlags(gg_cuda_event *out, unsigned flags) {
    ENTER("cudaEventCreateWithFlags");
    *out = NULL;
    if ((flags & ~3u) != 0) FAIL(violation(INVALID_VALUE, "cudaEventCreateWithFlags: flags %u", flags));
    event_handle *made = create_object("cudaEvent", sizeof *made);
    made->device = current_device;
    made->timed = (flags & GG_CUDA_EVENT_DISABLE_TIMING) == 0;
    *out = (gg_cuda_event)(void *)made;
    LEAVE;
}

static int cudaEventDestroy(gg_cuda_event handle) {
    ENTER("cudaEventDestroy");
    if (find_object("cudaEventDestroy", "cudaEvent", handle) == NULL) FAIL(INVALID_HANDLE);
    destroy_object(handle);
    LEAVE;
}

static int cudaEventRecord(gg_cuda_event handle, gg_cuda_stream stream_of_caller) {
    ENTER("cudaEventRecord");
    const int place = stream_place("cudaEventRecord", stream_of_caller);
    event_handle *event = find_object("cudaEventRecord", "cudaEvent", handle);
    if (place < 0 || event == NULL) FAIL(INVALID_HANDLE);
    if (event->device != state.stream[place].device)
        FAIL(violation(INVALID_HANDLE, "cudaEventRecord: the event is of device %d, the stream of device %d",
                       event->device, state.stream[place].device));
    event->recorded = true;
    event->captured = state.stream[place].capture != NULL;
    event->place = place;
    event->position = state.stream[place].given;
    event->recorded_at = seconds_now();
    LEAVE;
}

static int cudaEventElapsedTime(float *milliseconds, gg_cuda_event begin, gg_cuda_event end) {
    ENTER("cudaEventElapsedTime");
    const event_handle *event[2] = {find_object("cudaEventElapsedTime", "cudaEvent", begin),
                                    find_object("cudaEventElapsedTime", "cudaEvent", end)};
    double at[2];
    for (int i = 0; i < 2; ++i) {
        if (event[i] == NULL) FAIL(INVALID_HANDLE);
        if (!event[i]->timed || !event[i]->recorded)
            FAIL(violation(INVALID_HANDLE, "cudaEventElapsedTime: an event that was %s",
                           event[i]->recorded ? "made without times" : "never recorded"));
        const stream *queue = &state.stream[event[i]->place];
        if (queue->done < event[i]->position) FAIL(GG_CUDA_ERROR_NOT_READY);
        const double done_at = queue->done_at[event[i]->position % DONE_TIMES];
        at[i] = done_at > event[i]->recorded_at ? done_at : event[i]->recorded_at;
    }
    *milliseconds = (float)(1e3 * (at[1] - at[0]));
    LEAVE;
}

/* An event that was recorded while its stream was captured stands for nothing that is ever done. */
static int check_not_captured(const char *function, const event_handle *event) {
    if (!event->captured) return 0;
    return violation(CAPTURED_EVENT, "%s: the event was recorded while its stream was captured", function);
}

static int cudaEventQuery(gg_cuda_event handle) {
    ENTER("cudaEventQuery");
    if ((code = gg_standin_forbid("cudaEventQuery")) != 0) goto leave;
    const event_handle *event = find_object("cudaEventQuery", "cudaEvent", handle);
    if (event == NULL) FAIL(INVALID_HANDLE);
    if ((code = check_not_captured("cudaEventQuery", event)) != 0) goto leave;
    if (event->recorded && state.stream[event->place].done < event->position) FAIL(GG_CUDA_ERROR_NOT_READY);
    code = state.lost;
    LEAVE;
}

static int cudaEventSynchronize(gg_cuda_event handle) {
    ENTER("cudaEventSynchronize");
    if ((code = gg_standin_forbid("cudaEventSynchronize")) != 0) goto leave;
    const event_handle *event = find_object("cudaEventSynchronize", "cudaEvent", handle);
    if (event == NULL) FAIL(INVALID_HANDLE);
    if ((code = check_not_captured("cudaEventSynchronize", event)) != 0) goto leave;
    if (event->recorded) wait_for(event->place, event->position);
    code = state.lost;
    LEAVE;
}

static int cudaDeviceSynchronize(void) {
    ENTER("cudaDeviceSynchronize");
    if ((code = gg_standin_forbid("cudaDeviceSynchronize")) != 0) goto leave;
    wait_for_all();
    code = state.lost;
    LEAVE;
}

static int device_facts(int device, char *name, size_t room, size_t *bytes) {
    ENTER("device_facts");
    if (device < 0 || device >= state.devices) FAIL(INVALID_DEVICE);
    snprintf(name, room, "stand-in %d", device);
    *bytes = state.memory;
    LEAVE;
}

void gg_standin_fill_runtime(gg_cuda_api *api) {
#define FILL(result, name, arguments) api->name = name;
    GG_CUDA_FUNCTIONS(FILL)
    api->device_facts = device_facts;
}

/* ------------------------------------------------------------------------------------------------- for the tests */

void gg_standin_begin(uint64_t seed) {
    start();
    pthread_mutex_lock(&state.lock);
    wait_for_all();
    state.random = seed * 0x9e3779b97f4a7c15u + 1;
    state.held_back = seed != 0;
    state.lost = 0;
    state.plants = state.counts = state.violation_count = 0;
    state.violations[0] = 0;
    last_error = 0;
    lose_late = false;
    pthread_mutex_unlock(&state.lock);
}

void gg_standin_memory(size_t bytes) {
    pthread_mutex_lock(&state.lock);
    state.memory = bytes;
    pthread_mutex_unlock(&state.lock);
}

void gg_standin_devices(int count) {
    pthread_mutex_lock(&state.lock);
    state.devices = count < MOST_DEVICES ? count : MOST_DEVICES;
    current_device = 0;
    pthread_mutex_unlock(&state.lock);
}

void gg_standin_plant(const char *function, int nth, int code, bool lost, bool late) {
    pthread_mutex_lock(&state.lock);
    if (state.plants < MOST_PLANTED) {
        planted *made = &state.plant[state.plants++];
        *made = (planted){.at = nth, .code = code, .lost = lost, .late = late};
        snprintf(made->function, sizeof made->function, "%s", function);
        for (int i = 0; i < state.counts && nth > 0; ++i) /* counted from here on */
            if (strcmp(state.count[i].name, function) == 0) made->at += state.count[i].calls;
    }
    pthread_mutex_unlock(&state.lock);
}

int gg_standin_violations(char *text, size_t bytes) {
    pthread_mutex_lock(&state.lock);
    snprintf(text, bytes, "%s", state.violations);
    const int count = state.violation_count;
    pthread_mutex_unlock(&state.lock);
    return count;
}

int gg_standin_leaks(char *text, size_t bytes) {
    int count = 0;
    size_t used = 0;
    start();
    pthread_mutex_lock(&state.lock);
    wait_for_all();
    text[0] = 0;
    for (int i = 0; i < state.blocks; ++i, ++count) {
        const gg_standin_block *block = state.block[i];
        if (block->kind == BLOCK_DEVICE) check_guard(block);
        if (used + 128 < bytes)
            used += (size_t)snprintf(text + used, bytes - used, "%zu bytes of %s (number %ld)\n", block->bytes,
                                     kind_name(block->kind), block->number);
    }
    for (int i = 0; i < BUCKETS; ++i)
        for (const object *it = state.objects[i]; it != NULL; it = it->next, ++count)
            if (used + 128 < bytes)
                used += (size_t)snprintf(text + used, bytes - used, "%s (number %ld)\n", it->kind, it->number);
    pthread_mutex_unlock(&state.lock);
    return count;
}
