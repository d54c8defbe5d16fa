#include "comm/mpi/mpi_shared.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/statvfs.h>
#include <time.h>
#include <unistd.h>

#include "base/memory.h"
#include "comm/mpi/mpi_private.h"

#define SLOTS 1280 /* acknowledgements of a rank; of them GG_SHARED_MARKED are reserved */
#define COPY_BYTES sizeof(gg_shared_descriptor)
#define HUGE_PAGE ((size_t)2 << 20)
/* Left free for each rank: MPI's own segments are filled later, and a full system would kill the process then. */
#define ROOM_FOR_MPI ((size_t)16 << 20)

/* One segment: as many equal parts as the node has ranks. */
typedef struct segment {
    struct segment *next;
    uint32_t id;
    char *base;
    size_t part, bytes; /* bytes = part * ranks of the node */
} segment;

struct gg_shared {
    MPI_Comm node;
    gg_halt *halt;
    int ranks, place; /* of the node */
    int *place_of;    /* rank of the whole communicator -> place on this node, or -1 */
    uint32_t next_id;
    segment *blocks;
    bool recycles;
    segment *spare; /* freed since it recycles */
    segment
        *control; /* SLOTS acknowledgements a rank, and behind them a copy's bytes for each; NULL: nothing is shared */
    uint32_t free[SLOTS]; /* a stack of this rank's free slots */
    int free_count;
};

static _Atomic uint32_t *slot_of(const gg_shared *shared, uint32_t place, uint32_t slot) {
    return (_Atomic uint32_t *)(void *)(shared->control->base + place * shared->control->part) + slot;
}

/* Where in a rank's part of `control` the copy of the slot lies. */
static size_t copy_begin(uint32_t slot) { return SLOTS * sizeof(uint32_t) + slot * COPY_BYTES; }

/* ---- segments ---- */

static bool enough_room(int file, size_t bytes, int ranks) {
    struct statvfs facts;
    if (fstatvfs(file, &facts) != 0) return false;
    /* A file system without a limit (hugetlbfs, ramfs) reports 0 blocks. */
    double room = (double)facts.f_bavail * (double)facts.f_frsize;
    return facts.f_blocks == 0 || room >= (double)bytes + (double)ROOM_FOR_MPI * ranks;
}

/* Reserves physical memory, so that a full system fails here and not by a signal later. */
static bool mpi_shared_reserve(int file, off_t offset, size_t bytes) {
    int code = 0;
    do code = posix_fallocate(file, offset, (off_t)bytes);
    while (code == EINTR);
    return code == 0;
}

static gg_status all_agree(gg_shared *shared, bool mine, bool *all) {
    int value = mine, result = 0;
    GG_TRY_MPI(MPI_Allreduce, &value, &result, 1, MPI_INT, MPI_MIN, shared->node);
    *all = result != 0;
    return GG_OK;
}

/* Collective over the node. *out NULL: some rank could not. Each rank reserves its own part, near its own cores. */
static gg_status segment_create(gg_shared *shared, size_t bytes, segment **out) {
    gg_status status = GG_OK;
    segment *made = NULL;
    char name[64] = "";
    int file = -1;
    bool first = shared->place == 0, all = false;
    size_t page = (size_t)sysconf(_SC_PAGESIZE), grain = bytes >= HUGE_PAGE ? HUGE_PAGE : page;
    size_t part = (bytes + grain - 1) / grain * grain, whole = part * (size_t)shared->ranks;
    bool good = part >= bytes && whole / part == (size_t)shared->ranks && whole < (size_t)1 << 62;
    void *base = MAP_FAILED;
    *out = NULL;
    /* No rank may leave before all have agreed. */
    if (gg_calloc(1, sizeof *made, "shared segment", &made) != GG_OK) good = false;
    if (first && good) {
        struct timespec now = {0};
        clock_gettime(CLOCK_REALTIME, &now);
        snprintf(name, sizeof name, "/gossipgrad-%ld-%lld-%ld-%u", (long)getpid(), (long long)now.tv_sec, now.tv_nsec,
                 shared->next_id);
        file = shm_open(name, O_RDWR | O_CREAT | O_EXCL, 0600);
        good = file >= 0 && enough_room(file, whole, shared->ranks) && ftruncate(file, (off_t)whole) == 0;
    }
    GG_TRY_CLEANUP(all_agree(shared, good, &all));
    if (!all) goto cleanup;
    GG_TRY_MPI_CLEANUP(MPI_Bcast, name, (int)sizeof name, MPI_CHAR, 0, shared->node);
    if (!first && good) file = shm_open(name, O_RDWR, 0);
    good = good && file >= 0 && mpi_shared_reserve(file, (off_t)(part * (size_t)shared->place), part);
    if (good) base = mmap(NULL, whole, PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
    GG_TRY_CLEANUP(all_agree(shared, base != MAP_FAILED, &all));
    if (!all) goto cleanup;
    (void)madvise(base, whole, MADV_HUGEPAGE); /* only a hint: a failure has no effect */
    *made = (segment){.id = shared->next_id, .base = base, .part = part, .bytes = whole};
    *out = made;
    made = NULL;
    base = MAP_FAILED;
cleanup:
    if (base != MAP_FAILED) munmap(base, whole);
    if (first && file >= 0) shm_unlink(name);
    if (file >= 0) close(file);
    gg_free(made);
    shared->next_id++;
    return status;
}

static void segment_destroy(segment *old) {
    if (!old) return;
    munmap(old->base, old->bytes);
    gg_free(old);
}

/* ---- creation and destruction ---- */

static gg_status find_places(gg_shared *shared, MPI_Comm comm) {
    gg_status status = GG_OK;
    int rank = 0, size = 0;
    int *ranks = NULL;
    GG_TRY_MPI_CLEANUP(MPI_Comm_rank, comm, &rank);
    GG_TRY_MPI_CLEANUP(MPI_Comm_size, comm, &size);
    GG_TRY_CLEANUP(gg_alloc((size_t)size * sizeof(int), "places of ranks", &shared->place_of));
    GG_TRY_CLEANUP(gg_alloc((size_t)shared->ranks * sizeof(int), "ranks of a node", &ranks));
    GG_TRY_MPI_CLEANUP(MPI_Allgather, &rank, 1, MPI_INT, ranks, 1, MPI_INT, shared->node);
    for (int r = 0; r < size; ++r) shared->place_of[r] = -1;
    for (int i = 0; i < shared->ranks; ++i) shared->place_of[ranks[i]] = i;
cleanup:
    gg_free(ranks);
    return status;
}

/* Ranks of `node` whose number in `comm` divided by this is one: for tests, which make several nodes of a machine. */
static gg_status mpi_shared_divide(MPI_Comm comm, int ranks_per_node, MPI_Comm *node) {
    gg_status status = GG_OK;
    MPI_Comm whole = *node;
    int rank = 0;
    *node = MPI_COMM_NULL;
    GG_TRY_MPI_CLEANUP(MPI_Comm_rank, comm, &rank);
    GG_TRY_MPI_CLEANUP(MPI_Comm_split, whole, rank / ranks_per_node, 0, node);
cleanup:
    (void)MPI_Comm_free(&whole);
    return status;
}

/* The value of GOSSIPGRAD_RANKS_PER_NODE, or 0 if it is not set. All ranks fail if one does, or the others would wait.
 */
static gg_status read_ranks_per_node(MPI_Comm comm, int *out) {
    const char *text = getenv("GOSSIPGRAD_RANKS_PER_NODE");
    char *end = NULL;
    int rank = 0, wrong = -1;
    errno = 0;
    const long value = text != NULL ? strtol(text, &end, 10) : 0;
    const bool good = text == NULL || (*text != '\0' && *end == '\0' && errno == 0 && value >= 1 && value <= INT_MAX);
    GG_TRY_MPI(MPI_Comm_rank, comm, &rank);
    GG_TRY_MPI(MPI_Allreduce, &(int){good ? -1 : rank}, &wrong, 1, MPI_INT, MPI_MAX, comm);
    if (!good)
        return gg_fail(GG_ERROR_ARGUMENT, "GOSSIPGRAD_RANKS_PER_NODE: '%s'; must be a whole number, at least 1", text);
    if (wrong >= 0)
        return gg_fail(GG_ERROR_ARGUMENT, "GOSSIPGRAD_RANKS_PER_NODE: rank %d has no whole number, at least 1, there",
                       wrong);
    *out = (int)value;
    return GG_OK;
}

gg_status gg_shared_create(MPI_Comm comm, gg_halt *halt, gg_shared **out) {
    gg_status status = GG_OK;
    gg_shared *made = NULL;
    const char *choice = getenv("GOSSIPGRAD_SHARED");
    int ranks_per_node = 0;
    bool wanted = !(choice && strcmp(choice, "0") == 0), all = false;
    *out = NULL;
    GG_TRY_CLEANUP(read_ranks_per_node(comm, &ranks_per_node));
    GG_TRY_CLEANUP(gg_calloc(1, sizeof *made, "shared memory", &made));
    made->node = MPI_COMM_NULL;
    made->halt = halt;
    GG_TRY_MPI_CLEANUP(MPI_Comm_split_type, comm, MPI_COMM_TYPE_SHARED, 0, MPI_INFO_NULL, &made->node);
    if (ranks_per_node > 0) GG_TRY_CLEANUP(mpi_shared_divide(comm, ranks_per_node, &made->node));
    GG_TRY_MPI_CLEANUP(MPI_Comm_set_errhandler, made->node, MPI_ERRORS_RETURN);
    GG_TRY_MPI_CLEANUP(MPI_Comm_rank, made->node, &made->place);
    GG_TRY_MPI_CLEANUP(MPI_Comm_size, made->node, &made->ranks);
    GG_TRY_CLEANUP(find_places(made, comm));
    GG_TRY_CLEANUP(all_agree(made, wanted, &all));
    if (all && made->ranks > 1) GG_TRY_CLEANUP(segment_create(made, copy_begin(SLOTS), &made->control));
    for (uint32_t i = 0; i < SLOTS; ++i) made->free[made->free_count++] = SLOTS - 1 - i;
    *out = made;
    made = NULL;
cleanup:
    gg_shared_destroy(made, status == GG_OK);
    return status;
}

void gg_shared_destroy(gg_shared *shared, bool touch_mpi) {
    if (!shared) return;
    gg_shared_recycle(shared, false);
    while (shared->blocks) gg_shared_free(shared, shared->blocks->base + (size_t)shared->place * shared->blocks->part);
    segment_destroy(shared->control);
    if (touch_mpi && shared->node != MPI_COMM_NULL) (void)MPI_Comm_free(&shared->node);
    gg_free(shared->place_of);
    gg_free(shared);
}

int gg_shared_first(const gg_shared *shared) {
    int rank = 0;
    while (shared->place_of[rank] < 0) ++rank;
    return rank;
}

void gg_shared_recycle(gg_shared *shared, bool on) {
    shared->recycles = on;
    while (!on && shared->spare != NULL) {
        segment *next = shared->spare->next;
        segment_destroy(shared->spare);
        shared->spare = next;
    }
}

/* Finds the smallest spare segment with room for `bytes`, the oldest among equals. Returns the address of its pointer,
 * or of a NULL pointer if there is none. */
static segment **find_spare(gg_shared *shared, size_t bytes) {
    segment **best = NULL;
    segment **at = &shared->spare;
    for (; *at != NULL; at = &(*at)->next) {
        if ((*at)->part < bytes) continue;
        if (best == NULL || (*at)->part < (*best)->part || ((*at)->part == (*best)->part && (*at)->id < (*best)->id))
            best = at;
    }
    return best != NULL ? best : at;
}

gg_status gg_shared_alloc(gg_shared *shared, size_t bytes, const char *what, double timeout, void **out) {
    gg_status status = GG_OK;
    segment *made = NULL, **spare = find_spare(shared, bytes);
    /* The largest of bytes and of -bytes: both are this rank's size only if all ranks gave the same. Likewise the
     * segment: where a rank has not freed it yet, nobody uses it again. */
    const long long id = *spare != NULL ? (long long)(*spare)->id : -1;
    long long own[4] = {(long long)bytes, -(long long)bytes, id, -id}, most[4] = {0};
    *out = NULL;
    if (!shared->control) goto cleanup;
    GG_TRY_CLEANUP(gg_mpi_meet(shared->node, timeout, "message memory", shared->halt));
    GG_TRY_MPI_CLEANUP(MPI_Allreduce, own, most, 4, MPI_LONG_LONG, MPI_MAX, shared->node);
    if (most[0] != -most[1]) {
        status = gg_fail(GG_ERROR_ARGUMENT, "%s: the ranks of this node ask for %lld to %lld bytes, expected one size",
                         what, -most[1], most[0]);
        goto cleanup;
    }
    if (bytes < GG_SHARED_MIN_BYTES) goto cleanup;
    if (id >= 0 && most[2] == id && most[3] == -id) {
        made = *spare;
        *spare = made->next;
        memset(made->base + (size_t)shared->place * made->part, 0, bytes);
    } else {
        GG_TRY_CLEANUP(segment_create(shared, bytes, &made));
    }
    if (!made) goto cleanup;
    made->next = shared->blocks;
    shared->blocks = made;
    *out = made->base + (size_t)shared->place * made->part;
cleanup:
    return gg_error_prefix(status, "%s of %zu bytes: ", what, bytes);
}

bool gg_shared_free(gg_shared *shared, void *block) {
    for (segment **at = &shared->blocks; *at; at = &(*at)->next) {
        segment *found = *at;
        if (found->base + (size_t)shared->place * found->part != block) continue;
        *at = found->next;
        if (shared->recycles) {
            found->next = shared->spare;
            shared->spare = found;
        } else {
            segment_destroy(found);
        }
        return true;
    }
    return false;
}

/* ---- messages ---- */

bool gg_shared_is_descriptor(const gg_shared *shared, int peer, const void *data, size_t bytes) {
    const uint32_t mark = GG_SHARED_MARK;
    return bytes == sizeof(gg_shared_descriptor) && memcmp(data, &mark, sizeof mark) == 0 && shared->control != NULL &&
           shared->place_of[peer] >= 0;
}

/* The block of this rank in which the message lies; NULL: none. */
static const segment *block_around(const gg_shared *shared, const void *data, size_t bytes, size_t *offset) {
    for (const segment *block = shared->blocks; block; block = block->next) {
        uintptr_t begin = (uintptr_t)(block->base + (size_t)shared->place * block->part), at = (uintptr_t)data;
        if (at < begin || at - begin >= block->part || block->part - (at - begin) < bytes) continue;
        *offset = at - begin;
        return block;
    }
    return NULL;
}

gg_status gg_shared_describe(gg_shared *shared, int peer, const void *data, size_t bytes, bool *described,
                             gg_shared_descriptor *out) {
    size_t offset = 0;
    const bool marked = gg_shared_is_descriptor(shared, peer, data, bytes);
    const segment *block = NULL;
    *described = false;
    if (marked) {
        if (shared->free_count == 0)
            return gg_fail(
                GG_ERROR_COMM,
                "more than %d messages of %zu bytes that begin with 0x%x are in flight to ranks of this node",
                GG_SHARED_MARKED, bytes, GG_SHARED_MARK);
        block = shared->control;
        offset = copy_begin(shared->free[shared->free_count - 1]);
        memcpy(block->base + (size_t)shared->place * block->part + offset, data, bytes);
    } else {
        if (bytes < GG_SHARED_MIN_BYTES || !shared->control || shared->place_of[peer] < 0) return GG_OK;
        if (shared->free_count <= GG_SHARED_MARKED) return GG_OK;
        block = block_around(shared, data, bytes, &offset);
        if (!block) return GG_OK;
    }
    uint32_t slot = shared->free[--shared->free_count];
    /* Orders the message's bytes before the descriptor, on processors that reorder stores. */
    atomic_store_explicit(slot_of(shared, (uint32_t)shared->place, slot), 0, memory_order_release);
    *out = (gg_shared_descriptor){.mark = GG_SHARED_MARK,
                                  .block = block->id,
                                  .offset = offset,
                                  .bytes = bytes,
                                  .slot = slot,
                                  .place = (uint32_t)shared->place};
    *described = true;
    return GG_OK;
}

bool gg_shared_acknowledged(gg_shared *shared, uint32_t slot) {
    if (atomic_load_explicit(slot_of(shared, (uint32_t)shared->place, slot), memory_order_acquire) == 0) return false;
    shared->free[shared->free_count++] = slot;
    return true;
}

static const segment *find_block(const gg_shared *shared, uint32_t id) {
    const segment *block = shared->control->id == id ? shared->control : shared->blocks;
    while (block && block->id != id) block = block->next;
    return block;
}

gg_status gg_shared_locate(gg_shared *shared, int peer, const gg_shared_descriptor *descriptor, const void **data) {
    const size_t place = (size_t)shared->place_of[peer];
    const segment *block = find_block(shared, descriptor->block);
    if (!block || descriptor->place != place || descriptor->slot >= SLOTS || descriptor->offset > block->part ||
        block->part - descriptor->offset < descriptor->bytes)
        return gg_fail(GG_ERROR_COMM, "rank %d refers to shared memory that is not mapped here (block %u, offset %llu)",
                       peer, descriptor->block, (unsigned long long)descriptor->offset);
    /* The other side of gg_shared_describe's release. */
    (void)atomic_load_explicit(slot_of(shared, descriptor->place, descriptor->slot), memory_order_acquire);
    *data = block->base + place * block->part + descriptor->offset;
    return GG_OK;
}

void gg_shared_acknowledge(gg_shared *shared, const gg_shared_descriptor *descriptor) {
    atomic_store_explicit(slot_of(shared, descriptor->place, descriptor->slot), 1, memory_order_release);
}
