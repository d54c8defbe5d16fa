/* The machine behind the stand-in's runtime: what is told of it, its memory, and the thread that does work. */
#define _GNU_SOURCE
#include "machine.h"

#include <errno.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <time.h>
#include <unistd.h>

gg_standin_state gg_standin = {.lock = PTHREAD_RECURSIVE_MUTEX_INITIALIZER_NP,
                               .given = PTHREAD_COND_INITIALIZER,
                               .done = PTHREAD_COND_INITIALIZER,
                               .once = PTHREAD_ONCE_INIT,
                               .devices = 1,
                               .memory = (size_t)8 << 30,
                               .random = 1};

_Thread_local gg_standin_caller gg_standin_mine;

double gg_standin_now(void) {
    struct timespec now;
    (void)clock_gettime(CLOCK_MONOTONIC, &now);
    return (double)now.tv_sec + 1e-9 * (double)now.tv_nsec;
}

static pthread_mutex_t *take_lock(void) {
    pthread_mutex_lock(&gg_standin.lock);
    return &gg_standin.lock;
}

static void leave_lock(pthread_mutex_t **lock) { pthread_mutex_unlock(*lock); }

/* From here to the end of the function the lock is held, also by a caller that held it before. */
#define LOCKED __attribute__((cleanup(leave_lock))) pthread_mutex_t *held = take_lock()

/* ------------------------------------------------------------------------------------------ counts, errors, draws */

uint64_t gg_standin_draw(uint64_t below) {
    LOCKED;
    uint64_t x = gg_standin.random;
    x ^= x << 13, x ^= x >> 7, x ^= x << 17;
    gg_standin.random = x;
    return below ? (x * 0x2545f4914f6cdd1du >> 11) % below : 0;
}

int gg_standin_violation(int code, const char *format, ...) {
    LOCKED;
    const size_t used = strlen(gg_standin.violations), room = sizeof gg_standin.violations - used;
    ++gg_standin.violation_count;
    if (room < 256) return code;
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(gg_standin.violations + used, room - 2, format, arguments);
    va_end(arguments);
    strcat(gg_standin.violations, "\n");
    return code;
}

long gg_standin_count_one(const char *what) {
    LOCKED;
    int i = 0;
    while (i < gg_standin.counts && strcmp(gg_standin.count[i].name, what) != 0) ++i;
    if (i == MAX_NAMES) return 0;
    if (i == gg_standin.counts) {
        snprintf(gg_standin.count[i].name, sizeof gg_standin.count[i].name, "%s", what);
        gg_standin.count[i].calls = 0;
        ++gg_standin.counts;
    }
    return ++gg_standin.count[i].calls;
}

long gg_standin_count(const char *what) {
    LOCKED;
    for (int i = 0; i < gg_standin.counts; ++i)
        if (strcmp(gg_standin.count[i].name, what) == 0) return gg_standin.count[i].calls;
    return 0;
}

int gg_standin_enter(const char *function) {
    LOCKED;
    ++gg_standin.tick;
    if (gg_standin.held_back) pthread_cond_signal(&gg_standin.given);
    const long calls = gg_standin_count_one(function);
    const bool runtime = strncmp(function, "cuda", 4) == 0 || strcmp(function, "kernel") == 0;
    for (int i = 0; i < gg_standin.plants; ++i) {
        const planted *it = &gg_standin.plant[i];
        if ((it->at != 0 && it->at != calls) || strcmp(it->function, function) != 0) continue;
        if (it->late) {
            gg_standin_mine.lose_late = true;
            gg_standin_mine.late_code = it->code;
            continue;
        }
        if (it->lost) gg_standin.lost = it->code;
        return it->code;
    }
    return runtime ? gg_standin.lost : 0;
}

/* -------------------------------------------------------------------------------------------------------- objects */

static object **bucket_of(const void *body) {
    return &gg_standin.objects[(uintptr_t)body / 16 * 2654435761u / 65536 % BUCKETS];
}

void *gg_standin_create(const char *kind, size_t bytes) {
    LOCKED;
    object *made = calloc(1, sizeof *made + bytes);
    if (made == NULL) abort();
    made->kind = kind;
    made->number = ++gg_standin.numbers;
    object **bucket = bucket_of(made->body);
    made->next = *bucket;
    *bucket = made;
    return made->body;
}

void *gg_standin_find(const char *function, const char *kind, const void *handle) {
    LOCKED;
    for (object *it = *bucket_of(handle); it != NULL; it = it->next) {
        if ((const void *)it->body != handle) continue;
        if (strcmp(it->kind, kind) == 0) return it->body;
        gg_standin_violation(0, "%s: wants a %s and is given a %s", function, kind, it->kind);
        return NULL;
    }
    gg_standin_violation(0, "%s: this %s is NULL, destroyed or was never created", function, kind);
    return NULL;
}

void gg_standin_destroy(void *body) {
    LOCKED;
    for (object **it = bucket_of(body); *it != NULL; it = &(*it)->next) {
        if ((void *)(*it)->body != body) continue;
        object *gone = *it;
        *it = gone->next;
        free(gone);
        return;
    }
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
int gg_standin_block_before(uintptr_t at) {
    int low = 0, high = gg_standin.blocks;
    while (low < high) {
        const int middle = (low + high) / 2;
        if (gg_standin.block[middle]->at <= at) low = middle + 1;
        else high = middle;
    }
    return low - 1;
}

gg_standin_block *gg_standin_block_at(uintptr_t at) {
    const int place = gg_standin_block_before(at);
    if (place < 0) return NULL;
    gg_standin_block *block = gg_standin.block[place];
    return at - block->at < block->bytes || at == block->at ? block : NULL;
}

gg_standin_block *gg_standin_add_block(block_kind kind, uintptr_t at, size_t bytes) {
    if (gg_standin.blocks == gg_standin.block_room) {
        gg_standin.block_room = 2 * gg_standin.block_room + 64;
        gg_standin.block = realloc(gg_standin.block, (size_t)gg_standin.block_room * sizeof *gg_standin.block);
        if (gg_standin.block == NULL) abort();
    }
    gg_standin_block *block = calloc(1, sizeof *block);
    if (block == NULL) abort();
    *block = (gg_standin_block){.kind = kind,
                                .at = at,
                                .bytes = bytes,
                                .device = gg_standin_mine.device,
                                .number = ++gg_standin.numbers,
                                .alive = true};
    const int place = gg_standin_block_before(at) + 1;
    memmove(gg_standin.block + place + 1, gg_standin.block + place,
            (size_t)(gg_standin.blocks - place) * sizeof *gg_standin.block);
    gg_standin.block[place] = block;
    ++gg_standin.blocks;
    return block;
}

void gg_standin_remove_block(gg_standin_block *block) {
    const int place = gg_standin_block_before(block->at);
    memmove(gg_standin.block + place, gg_standin.block + place + 1,
            (size_t)(gg_standin.blocks - place - 1) * sizeof *gg_standin.block);
    --gg_standin.blocks;
    block->alive = false;
    if (block->pending == 0 && block->held == 0) free(block);
}

bool gg_standin_is_of_device(uintptr_t at) {
    return gg_standin.callers != NULL && at - (uintptr_t)gg_standin.callers < RESERVED;
}

char *gg_standin_work_address(uintptr_t at) { return gg_standin.work + (at - (uintptr_t)gg_standin.callers); }

const char *gg_standin_kind_name(block_kind kind) {
    return kind == BLOCK_DEVICE ? "memory of the device" : kind == BLOCK_PINNED ? "pinned memory" : "registered memory";
}

bool gg_standin_add_use(gg_standin_uses *uses, gg_standin_block *block) {
    for (int i = 0; i < uses->count; ++i)
        if (uses->block[i] == block) return true;
    if (uses->count == GG_STANDIN_MAX_USES) return false;
    uses->block[uses->count++] = block;
    return true;
}

/* The bytes from `at` on that belong to its block, and to blocks of host memory that follow without a gap: what is
 * registered piece by piece is one range. */
static size_t bytes_from(gg_standin_uses *uses, uintptr_t at, size_t wanted) {
    size_t bytes = 0;
    for (int place = gg_standin_block_before(at); place < gg_standin.blocks && bytes < wanted; ++place) {
        gg_standin_block *block = gg_standin.block[place];
        if (bytes > 0 && (block->kind == BLOCK_DEVICE || block->at != at + bytes)) break;
        if (!gg_standin_add_use(uses, block)) break;
        bytes = block->at + block->bytes - at;
        if (block->kind == BLOCK_DEVICE) break;
    }
    return bytes;
}

void gg_standin_check_guard(const gg_standin_block *block) {
    const unsigned char *inside = (const unsigned char *)gg_standin_work_address(block->at);
    for (size_t i = block->bytes; i < whole_pages(block->bytes); ++i) {
        if (inside[i] == GUARD) continue;
        gg_standin_violation(
            0, "work wrote behind the end of a block of %zu bytes of the device (allocation %ld), at byte %zu",
            block->bytes, block->number, i);
        return;
    }
}

bool gg_standin_operand(gg_standin_uses *uses, const char *function, const char *name, const void *at, size_t bytes,
                        size_t alignment, void **where) {
    LOCKED;
    const uintptr_t address = (uintptr_t)at;
    *where = NULL;
    const gg_standin_block *found = gg_standin_block_at(address);
    size_t there = 0;
    if (at == NULL) gg_standin_violation(0, "%s: %s is NULL", function, name);
    else if (address % alignment != 0)
        gg_standin_violation(0, "%s: %s is not aligned to %zu bytes", function, name, alignment);
    else if (found == NULL && gg_standin_is_of_device(address))
        gg_standin_violation(0, "%s: %s is an address of the device where nothing is allocated", function, name);
    else if (found == NULL) gg_standin_violation(0, "%s: %s is in host memory that is not pinned", function, name);
    else if ((there = bytes_from(uses, address, bytes)) < bytes)
        gg_standin_violation(0, "%s: %s needs %zu bytes, and %zu are there up to the end of its block", function, name,
                             bytes, there);
    else {
        *where = found->kind == BLOCK_DEVICE ? gg_standin_work_address(address) : (void *)address;
        return true;
    }
    return false;
}

/* ---------------------------------------------------------------------------------------------------- doing work */

static bool is_waited(int place) {
    for (int i = 0; i < gg_standin.waiters; ++i)
        if (gg_standin.waiter[i] == place && gg_standin.stream[place].done < gg_standin.waited[i]) return true;
    /* or what is waited for waits for it */
    for (int i = 0; i < gg_standin.streams; ++i) {
        const work *head = gg_standin.stream[i].first;
        if (i == place || head == NULL || head->run != NULL || head->other != place) continue;
        if (gg_standin.stream[place].done < head->position && is_waited(i)) return true;
    }
    return false;
}

/* The stream whose first piece of work is done next, or -1. */
static int choose_stream(void) {
    int ready[MAX_STREAMS], needed[MAX_STREAMS], readies = 0, needs = 0;
    bool waits = false;
    for (int i = 0; i < gg_standin.streams; ++i) {
        const work *head = gg_standin.stream[i].first;
        if (head == NULL) continue;
        if (head->run == NULL && gg_standin.stream[head->other].done < head->position) continue;
        const bool needed_now = gg_standin.waiters > 0 && is_waited(i);
        waits |= needed_now;
        if (needed_now) needed[needs++] = i;
        else if (head->due <= gg_standin.tick || gg_standin.waiters > 0) ready[readies++] = i;
    }
    /* While a caller waits, either all else is done before, or nothing else is. */
    if (waits && gg_standin.held_back) {
        if (gg_standin.others_first && readies > 0) return ready[gg_standin_draw((uint64_t)readies)];
        return needed[gg_standin_draw((uint64_t)needs)];
    }
    if (needs > 0) return needed[0];
    for (int i = 0, kept = 0; i < readies; ++i) { /* nobody waits for these: only what is due */
        if (gg_standin.stream[ready[i]].first->due <= gg_standin.tick) ready[kept++] = ready[i];
        if (i == readies - 1) readies = kept;
    }
    return readies > 0 ? ready[gg_standin.held_back ? gg_standin_draw((uint64_t)readies) : 0] : -1;
}

static bool anything_given(void) {
    for (int i = 0; i < gg_standin.streams; ++i)
        if (gg_standin.stream[i].first != NULL) return true;
    return false;
}

static void do_first(stream *from) {
    work *it = from->first;
    if (it->run != NULL && gg_standin.lost == 0) {
        gg_standin.running = it->function;
        pthread_mutex_unlock(&gg_standin.lock);
        it->run(it->packet);
        pthread_mutex_lock(&gg_standin.lock);
        gg_standin.running = NULL;
    }
    if (it->lose && gg_standin.lost == 0) gg_standin.lost = it->code;
    from->first = it->next;
    if (from->first == NULL) from->last = NULL;
    ++from->done;
    from->done_at[from->done % DONE_TIMES] = gg_standin_now();
    for (int i = 0; i < it->uses.count; ++i) {
        gg_standin_block *block = it->uses.block[i];
        if (--block->pending == 0 && !block->alive && block->held == 0) free(block);
    }
    free(it);
    pthread_cond_broadcast(&gg_standin.done);
}

static void *do_work(void *unused) {
    pthread_mutex_lock(&gg_standin.lock);
    while (!gg_standin.stopping) {
        const int place = choose_stream();
        if (place >= 0) do_first(&gg_standin.stream[place]);
        else if (!anything_given()) pthread_cond_wait(&gg_standin.given, &gg_standin.lock);
        else {
            /* What is held back begins at last, also where nobody asks. */
            struct timespec until;
            clock_gettime(CLOCK_REALTIME, &until);
            until.tv_nsec += 500000;
            if (until.tv_nsec >= 1000000000) until.tv_nsec -= 1000000000, ++until.tv_sec;
            if (pthread_cond_timedwait(&gg_standin.given, &gg_standin.lock, &until) == ETIMEDOUT) ++gg_standin.tick;
        }
    }
    pthread_mutex_unlock(&gg_standin.lock);
    return unused;
}

/* Waits, with the lock, until `position` pieces of the stream's work are done. */
void gg_standin_wait(int place, long position) {
    if (gg_standin.stream[place].done >= position) return;
    const int mine = gg_standin.waiters++;
    if (mine >= MAX_WAITERS) abort();
    gg_standin.waiter[mine] = place;
    gg_standin.waited[mine] = position;
    gg_standin.others_first = gg_standin_draw(2) != 0;
    pthread_cond_signal(&gg_standin.given);
    while (gg_standin.stream[place].done < position) pthread_cond_wait(&gg_standin.done, &gg_standin.lock);
    for (int i = 0; i < gg_standin.waiters; ++i) {
        if (gg_standin.waiter[i] != place || gg_standin.waited[i] != position) continue;
        gg_standin.waiter[i] = gg_standin.waiter[--gg_standin.waiters];
        gg_standin.waited[i] = gg_standin.waited[gg_standin.waiters];
        break;
    }
}

void gg_standin_wait_all(void) {
    for (int i = 0; i < gg_standin.streams; ++i) gg_standin_wait(i, gg_standin.stream[i].given);
}

static struct sigaction previous_handler[2];

/* Says whose fault it was, and lets the process end as it would have. */
static void on_bad_access(int number, siginfo_t *info, void *context) {
    const uintptr_t at = (uintptr_t)info->si_addr;
    char text[256] = "";
    if (gg_standin.callers != NULL && pthread_equal(pthread_self(), gg_standin.thread))
        snprintf(text, sizeof text, "stand-in: %s reads or writes outside of its memory\n",
                 gg_standin.running != NULL ? gg_standin.running : "?");
    else if (gg_standin_is_of_device(at))
        snprintf(text, sizeof text, "stand-in: the host reads or writes memory of the device\n");
    if (write(2, text, strlen(text)) < 0) text[0] = 0;
    sigaction(number, &previous_handler[number == SIGBUS], NULL);
    (void)context;
}

static void start_once(void) {
    gg_standin.callers = mmap(NULL, RESERVED, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    gg_standin.work = mmap(NULL, RESERVED, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (getenv("GOSSIPGRAD_STANDIN_OPEN") != NULL && gg_standin.callers != MAP_FAILED) {
        munmap(gg_standin.callers, RESERVED);
        gg_standin.callers = gg_standin.work;
    }
    if (gg_standin.callers == MAP_FAILED || gg_standin.work == MAP_FAILED) {
        perror("stand-in: no address space");
        abort();
    }
    struct sigaction action = {.sa_sigaction = on_bad_access, .sa_flags = SA_SIGINFO | SA_ONSTACK};
    sigaction(SIGSEGV, &action, &previous_handler[0]);
    sigaction(SIGBUS, &action, &previous_handler[1]);
    if (pthread_create(&gg_standin.thread, NULL, do_work, NULL) != 0) abort();
}

void gg_standin_start(void) { pthread_once(&gg_standin.once, start_once); }

static __attribute__((destructor)) void stop(void) {
    if (gg_standin.callers == NULL) return;
    pthread_mutex_lock(&gg_standin.lock);
    gg_standin.stopping = true;
    pthread_cond_broadcast(&gg_standin.given);
    pthread_mutex_unlock(&gg_standin.lock);
    pthread_join(gg_standin.thread, NULL);
}

int gg_standin_place(const char *function, gg_cuda_stream handle) {
    if (handle == NULL) {
        gg_standin_violation(0, "%s: the stream is NULL, the legacy stream, which waits for all others", function);
        return -1;
    }
    const stream_handle *found = gg_standin_find(function, "cudaStream", handle);
    if (found == NULL) return -1;
    if (gg_standin.stream[found->place].device != gg_standin_mine.device) {
        gg_standin_violation(0, "%s: the stream is of device %d, and this thread's device is %d", function,
                             gg_standin.stream[found->place].device, gg_standin_mine.device);
        return -1;
    }
    return found->place;
}

work *gg_standin_give(int place, const char *function, gg_standin_run *run, const void *packet, size_t bytes,
                      const gg_standin_uses *uses) {
    work *made = calloc(1, sizeof *made + bytes);
    if (made == NULL) abort();
    made->function = function;
    made->run = run;
    made->bytes = bytes;
    if (uses != NULL) made->uses = *uses;
    if (bytes > 0) memcpy(made->packet, packet, bytes);
    made->due = gg_standin.tick + (gg_standin.held_back ? (long)gg_standin_draw(12) : 0);
    made->lose = gg_standin_mine.lose_late;
    made->code = gg_standin_mine.late_code;
    gg_standin_mine.lose_late = false;
    stream *to = &gg_standin.stream[place];
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
    pthread_cond_signal(&gg_standin.given);
    return made;
}

int gg_standin_submit(const char *function, gg_cuda_stream handle, gg_standin_run *run, const void *packet,
                      size_t bytes, const gg_standin_uses *uses) {
    gg_standin_start();
    LOCKED;
    const int place = gg_standin_place(function, handle);
    if (place >= 0) gg_standin_give(place, function, run, packet, bytes, uses);
    return place >= 0 ? 0 : INVALID_HANDLE;
}

bool gg_standin_stream_is_alive(const char *function, gg_cuda_stream handle) {
    LOCKED;
    return gg_standin_place(function, handle) >= 0;
}

/* ------------------------------------------------------------------------------------------------- for graph.c */

int gg_standin_call(const char *function, int (*body)(const void *arguments), const void *arguments) {
    ENTER(function);
    code = body(arguments);
    LEAVE;
}

gg_standin_capture **gg_standin_capture_of(int place) { return &gg_standin.stream[place].capture; }

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
            return gg_standin_violation(INVALID_VALUE,
                                        "cudaGraphLaunch: %s uses a block that has been freed (allocation %ld)",
                                        of->function, of->uses.block[i]->number);
    work *made = gg_standin_give(place, of->function, of->run, of->packet, of->bytes, &of->uses);
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

/* ------------------------------------------------------------------------------------------------- for the tests */

void gg_standin_begin(uint64_t seed) {
    gg_standin_start();
    LOCKED;
    gg_standin_wait_all();
    gg_standin.random = seed * 0x9e3779b97f4a7c15u + 1;
    gg_standin.held_back = seed != 0;
    gg_standin.lost = 0;
    gg_standin.plants = gg_standin.counts = gg_standin.violation_count = 0;
    gg_standin.violations[0] = 0;
    gg_standin_mine.last_error = 0;
    gg_standin_mine.lose_late = false;
}

void gg_standin_memory(size_t bytes) {
    LOCKED;
    gg_standin.memory = bytes;
}

void gg_standin_devices(int count) {
    LOCKED;
    gg_standin.devices = count < MAX_DEVICES ? count : MAX_DEVICES;
    gg_standin_mine.device = 0;
}

void gg_standin_plant(const char *function, int nth, int code, bool lost, bool late) {
    LOCKED;
    if (gg_standin.plants == MAX_PLANTED) return;
    planted *made = &gg_standin.plant[gg_standin.plants++];
    *made = (planted){.at = nth, .code = code, .lost = lost, .late = late};
    snprintf(made->function, sizeof made->function, "%s", function);
    if (nth > 0) made->at += gg_standin_count(function); /* counted from here on */
}

int gg_standin_violations(char *text, size_t bytes) {
    LOCKED;
    snprintf(text, bytes, "%s", gg_standin.violations);
    return gg_standin.violation_count;
}

int gg_standin_leaks(char *text, size_t bytes) {
    int count = 0;
    size_t used = 0;
    gg_standin_start();
    LOCKED;
    gg_standin_wait_all();
    text[0] = 0;
    for (int i = 0; i < gg_standin.blocks; ++i, ++count) {
        const gg_standin_block *block = gg_standin.block[i];
        if (block->kind == BLOCK_DEVICE) gg_standin_check_guard(block);
        if (used + 128 < bytes)
            used += (size_t)snprintf(text + used, bytes - used, "%zu bytes of %s (number %ld)\n", block->bytes,
                                     gg_standin_kind_name(block->kind), block->number);
    }
    for (int i = 0; i < BUCKETS; ++i)
        for (const object *it = gg_standin.objects[i]; it != NULL; it = it->next, ++count)
            if (used + 128 < bytes)
                used += (size_t)snprintf(text + used, bytes - used, "%s (number %ld)\n", it->kind, it->number);
    return count;
}
