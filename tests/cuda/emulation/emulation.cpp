/* The emulation's runtime. Compiled with GG_EMULATION_CHECKED it also defines the functions that g++ calls before each
 * access of memory in code that it compiles with -fsanitize=thread. The program is not linked with that option: kernels
 * are instrumented by it, and what is said of their accesses comes here instead of to ThreadSanitizer. This file must
 * not be compiled with that option itself. */
#include "emulation.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <ucontext.h>

#include <mutex>
#include <vector>

#if defined(__SANITIZE_ADDRESS__)
#include <sanitizer/asan_interface.h>
#endif

namespace gg_emulation {
namespace {

/* ------------------------------------------------------------------------------------------------ reports */

std::mutex running; /* held while a kernel runs */
std::mutex known;   /* the list of buffers, and what was found */
long failures;
bool expected;
char first_failure[512];
const size_t most_printed = 20;

__attribute__((format(printf, 1, 2))) void report(const char *format, ...);

/* ------------------------------------------------------------------------------------------------ accesses */

enum access_kind { ACCESS_READ, ACCESS_WRITE, ACCESS_ATOMIC };

/* Who touched an element last. `run` counts launches, or in shared memory blocks; 0: nobody. */
struct access {
    uint64_t run;
    unsigned block, thread, epoch, warp_epoch;
    bool atomic;
    bool warp_reads, block_reads; /* read by several threads: of the one warp; of several warps or blocks */
};
struct element {
    access read, write;
};

struct memory {
    const char *name;
    unsigned char *at;
    size_t bytes, element_bytes;
    void *block; /* with its guards; NULL: not ours */
    std::vector<element> elements;
};

const size_t guard_bytes = 256;
const unsigned char guard_value = 0xa5;
std::vector<memory *> buffers;

/* ------------------------------------------------------------------------------------------------ threads */

const size_t stack_bytes = (size_t)128 << 10;

struct thread;

struct fiber {
    ucontext_t context;
    jmp_buf resume; /* without sanitizers: where it goes on, once it has begun */
    bool begun;
    unsigned char *stack;
    thread *runs;
};

enum thread_state { UNSTARTED, READY, WAITING, ENDED };

struct thread {
    place where;
    thread_state state;
    unsigned number, epoch, warp_epoch;
    fiber *on;
    const char *waits_at;
};

/* What the lanes of a mask do together. */
struct meeting {
    unsigned mask, arrived, generation;
    const char *operation;
    uint64_t value[2][32];
};

/* One meeting for each mask that its lanes have used. */
struct warp {
    std::vector<meeting> meetings;
};

/* An array in the block's shared memory. */
struct shared {
    const void *tag;
    size_t begin, bytes;
};

const size_t shared_limit = 48 << 10;  /* without asking the device for more */
const size_t shared_room = 1024 << 10; /* arrays are apart, so that one cannot run into the next */

struct machine {
    const launch *now;
    uint64_t run, block_run;
    unsigned block_number;
    std::vector<thread> threads;
    std::vector<warp> warps;
    std::vector<fiber *> fibers, idle;
    thread *current;
    ucontext_t scheduler;
    jmp_buf scheduler_resume;
    unsigned arrived, ended, unstarted; /* of the block */
    unsigned generation;
    int count, counted[2];
    const char *barrier;
    bool abandoned;
    std::vector<shared> arrays;
    size_t shared_used, static_bytes;
    memory block_memory; /* shared memory */
#if defined(__SANITIZE_ADDRESS__)
    void *fake_stack;
    const void *scheduler_stack;
    size_t scheduler_bytes;
#endif
};

machine *m;               /* guarded by `running` */
thread_local bool inside; /* this thread of the host runs a kernel */

void report(const char *format, ...) {
    char what[384], all[512];
    va_list values;
    va_start(values, format);
    vsnprintf(what, sizeof what, format, values);
    va_end(values);
    if (inside && m->current != nullptr) {
        const place &p = m->current->where;
        snprintf(all, sizeof all, "kernel %s, block (%u, %u, %u), thread (%u, %u, %u): %s", m->now->name, p.block.x,
                 p.block.y, p.block.z, p.thread.x, p.thread.y, p.thread.z, what);
    } else if (inside) {
        snprintf(all, sizeof all, "kernel %s: %s", m->now->name, what);
    } else {
        snprintf(all, sizeof all, "%s", what);
    }
    if (failures++ == 0) snprintf(first_failure, sizeof first_failure, "%s", all);
    if (!expected && failures <= (long)most_printed) fprintf(stderr, "emulation: %s\n", all);
}

void out_of_memory() {
    fprintf(stderr, "emulation: no memory\n");
    exit(3);
}

/* ------------------------------------------------------------------------------------------------ fibers */

void to_scheduler(fiber *from) {
#if defined(__SANITIZE_ADDRESS__)
    void *fake = nullptr;
    __sanitizer_start_switch_fiber(&fake, m->scheduler_stack, m->scheduler_bytes);
    swapcontext(&from->context, &m->scheduler);
    __sanitizer_finish_switch_fiber(fake, &m->scheduler_stack, &m->scheduler_bytes);
#else
    if (_setjmp(from->resume) == 0) _longjmp(m->scheduler_resume, 1);
#endif
}

void to_fiber(fiber *to) {
#if defined(__SANITIZE_ADDRESS__)
    void *fake = nullptr;
    __sanitizer_start_switch_fiber(&fake, to->stack, stack_bytes);
    swapcontext(&m->scheduler, &to->context);
    __sanitizer_finish_switch_fiber(fake, nullptr, nullptr);
#else /* swapcontext calls the system for the mask of signals, which would be most of the time */
    if (_setjmp(m->scheduler_resume) != 0) return;
    if (to->begun) _longjmp(to->resume, 1);
    to->begun = true;
    setcontext(&to->context);
#endif
}

thread *next_unstarted() {
    if (m->unstarted == 0) return nullptr;
    return &m->threads[m->threads.size() - m->unstarted--];
}

/* Runs threads as long as there are some that have not begun: where none of them waits, one fiber runs them all. */
void fiber_main(unsigned low, unsigned high) {
    fiber *self = reinterpret_cast<fiber *>((uintptr_t)low | (uintptr_t)high << 32);
#if defined(__SANITIZE_ADDRESS__)
    __sanitizer_finish_switch_fiber(nullptr, &m->scheduler_stack, &m->scheduler_bytes);
#endif
    for (;;) {
        thread *t = self->runs;
        while (t != nullptr) {
            self->runs = t;
            t->on = self;
            t->state = READY;
            m->current = t;
            m->now->call(m->now);
            t->state = ENDED;
            ++m->ended;
            t = next_unstarted();
        }
        self->runs = nullptr;
        m->idle.push_back(self);
        to_scheduler(self);
    }
}

fiber *new_fiber() {
    fiber *made = new fiber();
    void *stack = mmap(nullptr, stack_bytes + 4096, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (stack == MAP_FAILED) out_of_memory();
    mprotect(stack, 4096, PROT_NONE);
    made->stack = static_cast<unsigned char *>(stack) + 4096;
    m->fibers.push_back(made);
    return made;
}

void prepare(fiber *f) {
    getcontext(&f->context);
    f->context.uc_stack.ss_sp = f->stack;
    f->context.uc_stack.ss_size = stack_bytes;
    f->context.uc_link = nullptr;
    f->runs = nullptr;
    f->begun = false;
    const uintptr_t address = reinterpret_cast<uintptr_t>(f);
    makecontext(&f->context, reinterpret_cast<void (*)()>(fiber_main), 2, (unsigned)address,
                (unsigned)((uint64_t)address >> 32));
#if defined(__SANITIZE_ADDRESS__)
    /* A thread that was abandoned has left functions without their ends. And swapcontext is not to find the stack:
     * AddressSanitizer would forget what it knows of all of it at each change of fibers. */
    ASAN_UNPOISON_MEMORY_REGION(f->stack, stack_bytes);
    f->context.uc_stack.ss_size = 0;
#endif
    m->idle.push_back(f);
}

void wait_at(const char *where) {
    thread *self = m->current;
    self->state = WAITING;
    self->waits_at = where;
    to_scheduler(self->on);
    m->current = self;
}

void abandon() {
    m->abandoned = true;
    wait_at("the end of an abandoned block"); /* which never runs again */
    abort();
}

/* Says which threads hang where. */
void report_hang() {
    const thread *waits = nullptr, *other = nullptr;
    for (const thread &t : m->threads) {
        if (t.state == WAITING && waits == nullptr) waits = &t;
        else if (waits != nullptr && (t.state == ENDED || strcmp(t.waits_at, waits->waits_at) != 0)) other = &t;
    }
    if (other == nullptr)
        for (const thread &t : m->threads)
            if (t.state == ENDED) other = &t;
    m->current = nullptr;
    report("block (%u, %u, %u): thread %u waits for ever at %s: thread %u %s%s", waits->where.block.x,
           waits->where.block.y, waits->where.block.z, waits->number, waits->waits_at,
           other != nullptr ? other->number : 0, other == nullptr || other->state == ENDED ? "has ended" : "waits at ",
           other == nullptr || other->state == ENDED ? "" : other->waits_at);
}

void run_block(uint3 block) {
    const dim3 size = m->now->block;
    const unsigned count = size.x * size.y * size.z;
    m->threads.assign(count, thread());
    m->warps.assign((count + 31) / 32, warp());
    for (unsigned i = 0; i < count; ++i) {
        thread &t = m->threads[i];
        t.number = i;
        t.where = place{{i % size.x, i / size.x % size.y, i / (size.x * size.y)}, block, size, m->now->grid, i % 32};
    }
    m->arrived = m->ended = m->generation = 0;
    m->count = 0;
    m->unstarted = count;
    m->barrier = nullptr;
    m->abandoned = false;
    m->arrays.clear();
    m->shared_used = m->static_bytes = 0;
    ++m->block_run;
    if (m->now->shared > 0) {
        m->arrays.push_back({nullptr, 0, m->now->shared});
        m->shared_used = (m->now->shared + guard_bytes + 63) / 64 * 64;
        m->static_bytes = m->now->shared;
    }
    memset(m->block_memory.at, 0xff, m->shared_used);
    while (m->ended < count && !m->abandoned) {
        bool moved = false;
        while (m->unstarted > 0 && !m->abandoned) {
            if (m->idle.empty()) prepare(new_fiber());
            fiber *f = m->idle.back();
            m->idle.pop_back();
            f->runs = next_unstarted();
            to_fiber(f);
            moved = true;
        }
        for (unsigned i = 0; i < count && !m->abandoned; ++i)
            if (m->threads[i].state == READY) {
                to_fiber(m->threads[i].on);
                moved = true;
            }
        if (!moved && m->ended < count && !m->abandoned) {
            report_hang();
            m->abandoned = true;
        }
    }
    m->current = nullptr;
    if (m->abandoned) { /* fibers that are in the middle of a thread begin anew */
        m->idle.clear();
        for (fiber *f : m->fibers) prepare(f);
    }
}

void run_launch(const void *given) {
    const launch *made = static_cast<const launch *>(given);
    const std::lock_guard<std::mutex> lock(running);
    if (m == nullptr) {
        m = new machine();
        void *room = mmap(nullptr, shared_room, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
        if (room == MAP_FAILED) out_of_memory();
        m->block_memory.name = "shared memory";
        m->block_memory.at = static_cast<unsigned char *>(room);
        m->block_memory.bytes = shared_room;
        m->block_memory.element_bytes = 1;
    }
    m->now = made;
    m->current = nullptr;
    ++m->run;
    m->block_number = 0;
    inside = true;
    for (unsigned z = 0; z < made->grid.z; ++z)
        for (unsigned y = 0; y < made->grid.y; ++y)
            for (unsigned x = 0; x < made->grid.x; ++x, ++m->block_number) run_block(uint3{x, y, z});
    inside = false;
    m->now = nullptr;
}

/* ------------------------------------------------------------------------------------------------ checks */

const char *kind_name(access_kind kind) {
    return kind == ACCESS_READ ? "reads" : kind == ACCESS_WRITE ? "writes" : "changes";
}

/* Whether an earlier access is known to come before what the current thread does now. */
bool is_before(const access &a, uint64_t run) {
    const thread &t = *m->current;
    if (a.run != run) return true;
    if (a.block != m->block_number) return false;
    if (a.epoch != t.epoch) return true;
    if (a.block_reads || a.thread / 32 != t.number / 32) return false;
    return a.warp_epoch != t.warp_epoch || (a.thread == t.number && !a.warp_reads);
}

void report_race(const memory &in, size_t at, access_kind kind, const access &other, const char *did) {
    report("race: %s byte %zu of '%s', which block %u, thread %u%s %s without a barrier between", kind_name(kind), at,
           in.name, other.block, other.thread, other.warp_reads || other.block_reads ? " and others" : "", did);
}

void check_element(memory &in, uint64_t run, size_t index, size_t at, access_kind kind) {
    element &e = in.elements[index];
    const thread &t = *m->current;
    const bool atomic = kind == ACCESS_ATOMIC;
    const access now = {run, m->block_number, t.number, t.epoch, t.warp_epoch, atomic, false, false};
    if (!(atomic && e.write.atomic) && !is_before(e.write, run)) report_race(in, at, kind, e.write, "writes");
    if (kind == ACCESS_READ) {
        access &r = e.read;
        if (r.run == run && r.block != now.block) r.block_reads = true;
        else if (is_before(r, run)) r = now;
        else if (r.thread / 32 != now.thread / 32) r.block_reads = true;
        else if (r.thread != now.thread) r.warp_reads = true;
        return;
    }
    if (!is_before(e.read, run)) report_race(in, at, kind, e.read, "reads");
    e.write = now;
}

void check_access(memory &in, uint64_t run, const unsigned char *p, size_t bytes, access_kind kind) {
    const size_t at = (size_t)(p - in.at), first = at / in.element_bytes, last = (at + bytes - 1) / in.element_bytes;
    if (in.elements.empty()) in.elements.resize((in.bytes + in.element_bytes - 1) / in.element_bytes);
    for (size_t i = first; i <= last; ++i) {
        const long before = failures;
        check_element(in, run, i, i * in.element_bytes, kind);
        if (failures > before) return; /* once for an access */
    }
}

void check_shared(const unsigned char *p, size_t bytes, access_kind kind) {
    memory &in = m->block_memory;
    const size_t at = (size_t)(p - in.at);
    bool inside_array = false;
    for (const shared &s : m->arrays) inside_array = inside_array || (at >= s.begin && at + bytes <= s.begin + s.bytes);
    if (!inside_array) {
        report("%s %zu bytes of shared memory outside of its arrays", kind_name(kind), bytes);
        return;
    }
    check_access(in, m->block_run, p, bytes, kind);
    if (kind == ACCESS_WRITE) return;
    for (size_t i = 0; i < bytes; ++i)
        if (in.elements[at + i].write.run != m->block_run) {
            report("%s shared memory that no thread of the block has written", kind_name(kind));
            return;
        }
}

memory *find_buffer(const unsigned char *p, size_t bytes) {
    static memory *last;
    for (memory *b : buffers)
        if (b == last && p >= b->at && p + bytes <= b->at + b->bytes) return b;
    for (memory *b : buffers)
        if (p >= b->at && p + bytes <= b->at + b->bytes) return last = b;
    return nullptr;
}

extern "C" const char __executable_start, end;

__attribute__((unused)) void check(const void *address, size_t bytes, access_kind kind) {
    if (!inside || m->current == nullptr || bytes == 0) return;
    const unsigned char *p = static_cast<const unsigned char *>(address);
    const fiber *f = m->current->on;
    if (p >= f->stack && p < f->stack + stack_bytes) return;
    if (p >= m->block_memory.at && p < m->block_memory.at + shared_room) {
        check_shared(p, bytes, kind);
        return;
    }
    const std::lock_guard<std::mutex> lock(known);
    memory *in = find_buffer(p, bytes);
    if (in != nullptr) {
        check_access(*in, m->run, p, bytes, kind);
        return;
    }
    const unsigned char *call = reinterpret_cast<const unsigned char *>(m->now);
    const unsigned char *where = reinterpret_cast<const unsigned char *>(&m->current->where);
    if (p >= call && p + bytes <= call + m->now->bytes) return;
    if (p >= where && p + bytes <= where + sizeof(place)) return;
    const unsigned char *program = reinterpret_cast<const unsigned char *>(&__executable_start);
    if (kind == ACCESS_READ && p >= program && p < reinterpret_cast<const unsigned char *>(&end)) return;
    const memory *near = nullptr;
    for (const memory *b : buffers)
        if (p + guard_bytes > b->at && p < b->at + b->bytes + guard_bytes) near = b;
    if (near != nullptr)
        report("out of bounds: %s %zu bytes at %td of '%s', which has %zu", kind_name(kind), bytes, p - near->at,
               near->name, near->bytes);
    else report("out of bounds: %s %zu bytes at %p, in no buffer", kind_name(kind), bytes, address);
}

bool same_place(const char *a, const char *b) { return a == b || strcmp(a, b) == 0; }

meeting &meeting_of(unsigned mask) {
    std::vector<meeting> &all = m->warps[m->current->number / 32].meetings;
    for (meeting &w : all)
        if (w.mask == mask) return w;
    all.push_back(meeting{mask, 0, 0, nullptr, {}});
    return all.back();
}

/* Waits for all lanes of the mask. Gives the parity of the values that they have left. */
unsigned meet(unsigned mask, uint64_t value, bool orders, const char *where) {
    thread *self = m->current;
    meeting &w = meeting_of(mask);
    const unsigned bit = 1u << self->where.lane;
    const size_t first = self->number / 32 * 32, lanes = m->threads.size() - first;
    if ((mask & bit) == 0) {
        report("%s: the mask %08x does not hold the calling lane %u", where, mask, self->where.lane);
        abandon();
    }
    if (lanes < 32 && mask >> lanes != 0) {
        report("%s: the mask %08x has lanes that the block's last warp of %zu threads lacks", where, mask, lanes);
        abandon();
    }
    if (w.arrived != 0 && !same_place(w.operation, where)) {
        report("lanes of a warp do different things together: %s and %s", where, w.operation);
        abandon();
    }
    const unsigned parity = w.generation & 1;
    w.operation = where;
    w.arrived |= bit;
    w.value[parity][self->where.lane] = value;
    if (w.arrived == mask) {
        w.arrived = 0;
        ++w.generation;
        for (size_t i = 0; i < 32 && i < lanes; ++i) {
            thread &t = m->threads[first + i];
            if ((mask >> i & 1) == 0) continue;
            if (orders) ++t.warp_epoch;
            if (&t != self) t.state = READY;
        }
    } else {
        wait_at(where);
    }
    return parity;
}

} // namespace

/* ------------------------------------------------------------------------------------------------ what kernels call */

const place &here() { return m->current->where; }

void start(const launch *made, void *stream) {
    const dim3 g = made->grid, b = made->block;
    const uint64_t threads = (uint64_t)b.x * b.y * b.z;
    if (g.x == 0 || g.y == 0 || g.z == 0 || g.x > 0x7fffffffu || g.y > 65535 || g.z > 65535 || threads == 0 ||
        threads > 1024 || b.z > 64) {
        report("kernel %s cannot be launched: grid (%u, %u, %u), block (%u, %u, %u)", made->name, g.x, g.y, g.z, b.x,
               b.y, b.z);
        return;
    }
    if (made->shared > shared_limit) {
        report("kernel %s cannot be launched: %zu bytes of shared memory are more than %zu", made->name, made->shared,
               shared_limit);
        return;
    }
    if (gg_emulation_hook != nullptr) gg_emulation_hook(stream, run_launch, made, made->bytes, made->name);
    else run_launch(made);
}

void *shared_array(const void *tag, size_t bytes) {
    for (const shared &s : m->arrays)
        if (s.tag == tag) return m->block_memory.at + s.begin;
    m->static_bytes += bytes;
    if (m->static_bytes > shared_limit) {
        report("%zu bytes of shared memory are more than %zu", m->static_bytes, shared_limit);
        abandon();
    }
    const size_t begin = m->shared_used;
    m->arrays.push_back({tag, begin, bytes});
    m->shared_used = (begin + bytes + guard_bytes + 63) / 64 * 64;
    if (m->shared_used > shared_room) {
        report("too many arrays in shared memory");
        abandon();
    }
    memset(m->block_memory.at + begin, 0xff, m->shared_used - begin);
    return m->block_memory.at + begin;
}

void *shared_dynamic() {
    if (m->now->shared == 0) {
        report("the launch gives the kernel no dynamic shared memory");
        abandon();
    }
    return m->block_memory.at;
}

int sync_count(bool value, const char *where) {
    thread *self = m->current;
    if (m->arrived > 0 && !same_place(m->barrier, where)) {
        report("threads of a block are at different barriers: %s and %s", where, m->barrier);
        abandon();
    }
    const unsigned parity = m->generation & 1;
    m->barrier = where;
    if (m->arrived == 0) m->count = 0;
    m->count += value;
    if (++m->arrived == m->threads.size()) {
        m->counted[parity] = m->count;
        m->arrived = 0;
        ++m->generation;
        for (thread &t : m->threads) {
            ++t.epoch;
            if (&t != self) t.state = READY;
        }
    } else {
        wait_at(where);
    }
    return m->counted[parity];
}

void sync_block(const char *where) { sync_count(false, where); }

void sync_warp(unsigned mask, const char *where) { meet(mask, 0, true, where); }

uint64_t exchange(unsigned mask, uint64_t value, unsigned lane, const char *where) {
    if (lane > 31 || (mask >> lane & 1) == 0) {
        report("%s reads lane %u, which the mask %08x does not hold", where, lane, mask);
        lane = m->current->where.lane;
    }
    const unsigned parity = meet(mask, value, false, where);
    return meeting_of(mask).value[parity][lane];
}

unsigned vote(unsigned mask, bool value, const char *where) {
    const unsigned parity = meet(mask, value, false, where);
    unsigned votes = 0;
    for (unsigned i = 0; i < 32; ++i)
        if (mask >> i & 1) votes |= (unsigned)(meeting_of(mask).value[parity][i] != 0) << i;
    return votes;
}

void before_atomic(void *at, size_t bytes) {
    (void)at, (void)bytes;
#if defined(GG_EMULATION_CHECKED)
    check(at, bytes, ACCESS_ATOMIC);
#endif
}

void trap(const char *what) {
    report("%s", what);
    abandon();
    abort();
}

} // namespace gg_emulation

/* ------------------------------------------------------------------------------------------------ for programs */

using namespace gg_emulation;

extern "C" {

void *gg_emulation_alloc(size_t bytes, size_t element, const char *name) {
    const size_t room = (guard_bytes + bytes + guard_bytes + 63) / 64 * 64;
    unsigned char *block, *at;
#if defined(__SANITIZE_ADDRESS__)
    /* AddressSanitizer has guards of its own, up to the byte. */
    (void)room;
    void *aligned = nullptr;
    if (posix_memalign(&aligned, 64, bytes > 0 ? bytes : 1) != 0) out_of_memory();
    block = at = static_cast<unsigned char *>(aligned);
#else
    block = static_cast<unsigned char *>(aligned_alloc(64, room));
    if (block == nullptr) out_of_memory();
    memset(block, guard_value, room);
    at = block + guard_bytes;
#endif
    memset(at, 0xff, bytes);
    memory *made = new memory{name, at, bytes, element, block, {}};
    const std::lock_guard<std::mutex> lock(known);
    buffers.push_back(made);
    return at;
}

void gg_emulation_watch(void *block, size_t bytes, size_t element, const char *name) {
    const std::lock_guard<std::mutex> lock(known);
    buffers.push_back(new memory{name, static_cast<unsigned char *>(block), bytes, element, nullptr, {}});
}

void gg_emulation_free(void *block) {
    if (block == nullptr) return;
    const std::lock_guard<std::mutex> lock(known);
    for (size_t i = 0; i < buffers.size(); ++i) {
        memory *b = buffers[i];
        if (b->at != block) continue;
#if !defined(__SANITIZE_ADDRESS__)
        if (b->block != nullptr)
            for (size_t g = 0; g < guard_bytes; ++g) {
                const bool before = b->at[-1 - (ptrdiff_t)g] != guard_value;
                if (!before && b->at[b->bytes + g] == guard_value) continue;
                report("a guard byte of '%s' was written, %zu bytes %s", b->name, g + 1,
                       before ? "before it" : "behind its end");
                break;
            }
#endif
        free(b->block);
        delete b;
        buffers.erase(buffers.begin() + (ptrdiff_t)i);
        return;
    }
    report("a block is freed that was never allocated");
}

void gg_emulation_unwatch(void *block) { gg_emulation_free(block); }

long gg_emulation_failures(void) { return failures; }
const char *gg_emulation_failure(void) { return first_failure; }
void gg_emulation_expect(void) { expected = true; }
void gg_emulation_reset(void) {
    expected = false;
    failures = 0;
    first_failure[0] = '\0';
}

gg_emulation_submit *gg_emulation_hook;

#if defined(GG_EMULATION_CHECKED)

int gg_emulation_is_checked(void) { return 1; }

#define GG_HOOKS(bytes)                                                                                                \
    void __tsan_read##bytes(void *p) { check(p, bytes, ACCESS_READ); }                                                 \
    void __tsan_write##bytes(void *p) { check(p, bytes, ACCESS_WRITE); }                                               \
    void __tsan_volatile_read##bytes(void *p) { check(p, bytes, ACCESS_READ); }                                        \
    void __tsan_volatile_write##bytes(void *p) { check(p, bytes, ACCESS_WRITE); }                                      \
    void __tsan_unaligned_read##bytes(void *p) { check(p, bytes, ACCESS_READ); }                                       \
    void __tsan_unaligned_write##bytes(void *p) { check(p, bytes, ACCESS_WRITE); }
GG_HOOKS(1)
GG_HOOKS(2)
GG_HOOKS(4)
GG_HOOKS(8)
GG_HOOKS(16)
#undef GG_HOOKS
void __tsan_read_range(void *p, size_t bytes) { check(p, bytes, ACCESS_READ); }
void __tsan_write_range(void *p, size_t bytes) { check(p, bytes, ACCESS_WRITE); }
void __tsan_vptr_update(void **, void *) {}
void __tsan_vptr_read(void **) {}
void __tsan_func_entry(void *) {}
void __tsan_func_exit() {}
void __tsan_init() {}

#else

int gg_emulation_is_checked(void) { return 0; }

#endif
}
