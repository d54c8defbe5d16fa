/* The machine behind the stand-in's runtime: memory, streams, the thread that does their work, planted errors.
 * machine.c has it; runtime.c has the functions that callers see. All functions but gg_standin_start want the lock,
 * which is recursive, to be held. */
#ifndef GG_STANDIN_MACHINE_H
#define GG_STANDIN_MACHINE_H

#include <pthread.h>
#include <sys/types.h>

#include "inside.h"

enum {
    INVALID_VALUE = 1,
    INITIALIZATION_ERROR = 3,
    INVALID_DEVICE = 101,
    INVALID_HANDLE = 400,
    NOT_REGISTERED = 713,
    CAPTURED_EVENT = 907,

    PAGE = 4096,
    GUARD = 0xa5,
    NAME = 64,
    MAX_STREAMS = 512,
    MAX_WAITERS = 64,
    MAX_NAMES = 256,
    MAX_PLANTED = 16,
    MAX_DEVICES = 8,
    BUCKETS = 4096,
};

/* Where the device's memory is for its callers, without access, and for work. Addresses are not used again before all
 * are used up. */
#define RESERVED ((size_t)128 << 30)
/* Of each 4 GiB only these are used (translate_word says why). */
#define USABLE_BEGIN 0x10000000u
#define USABLE_END 0x30000000u

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

typedef struct stream_handle {
    int place;
} stream_handle;

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

typedef struct gg_standin_state {
    pthread_mutex_t lock;
    pthread_cond_t given, done;
    pthread_once_t once;
    pthread_t thread;
    bool stopping;

    uint64_t random;
    bool held_back; /* work begins late, not only when it is waited for */
    long tick;
    int devices;
    pid_t process; /* that has called first, or 0 */
    size_t memory, used[MAX_DEVICES];

    char *callers, *work; /* RESERVED bytes each */
    size_t next;
    gg_standin_block **block; /* alive, by address */
    int blocks, block_room;
    long numbers;

    stream stream[MAX_STREAMS];
    int streams;
    int waiter[MAX_WAITERS]; /* streams that callers wait for, and up to where */
    long waited[MAX_WAITERS];
    int waiters;
    bool others_first;
    const char *running;

    object *objects[BUCKETS]; /* by their addresses */
    counted count[MAX_NAMES];
    int counts;
    planted plant[MAX_PLANTED];
    int plants;
    int lost; /* the code that all calls give */
    char violations[1 << 14];
    int violation_count;
} gg_standin_state;

extern gg_standin_state gg_standin;

/* Of a calling thread. */
typedef struct gg_standin_caller {
    int device, last_error;
    bool lose_late; /* the device is lost, with this code, when the work that is given next is done */
    int late_code;
} gg_standin_caller;

extern _Thread_local gg_standin_caller gg_standin_mine;

void gg_standin_start(void); /* of any thread: the machine's own thread, once */
double gg_standin_now(void); /* seconds */

/* Blocks. */
int gg_standin_block_before(uintptr_t at); /* the place of the last one that begins at `at` or before it, or -1 */
gg_standin_block *gg_standin_block_at(uintptr_t at);
gg_standin_block *gg_standin_add_block(block_kind kind, uintptr_t at, size_t bytes);
void gg_standin_remove_block(gg_standin_block *block);
bool gg_standin_is_of_device(uintptr_t at);
char *gg_standin_work_address(uintptr_t at);
const char *gg_standin_kind_name(block_kind kind);
bool gg_standin_add_use(gg_standin_uses *uses, gg_standin_block *block); /* false: there are too many */
void gg_standin_check_guard(const gg_standin_block *block);

static inline size_t whole_pages(size_t bytes) { return (bytes + PAGE - 1) / PAGE * PAGE; }

/* Work. `packet` is copied. */
work *gg_standin_give(int place, const char *function, gg_standin_run *run, const void *packet, size_t bytes,
                      const gg_standin_uses *uses);
void gg_standin_wait(int place, long position); /* until this many pieces of the stream's work are done */
void gg_standin_wait_all(void);

/* Every function of the runtime: begins with the lock, ends with LEAVE, which leaves the error for cudaGetLastError.
 */
#define ENTER(name)                                                                                                    \
    gg_standin_start();                                                                                                \
    pthread_mutex_lock(&gg_standin.lock);                                                                              \
    int code = gg_standin_enter(name);                                                                                 \
    if (code != 0) goto leave
#define LEAVE                                                                                                          \
    leave:                                                                                                             \
    if (code != 0) gg_standin_mine.last_error = code;                                                                  \
    pthread_mutex_unlock(&gg_standin.lock);                                                                            \
    return code
#define FAIL(value)                                                                                                    \
    do {                                                                                                               \
        code = (value);                                                                                                \
        goto leave;                                                                                                    \
    } while (0)

#endif
