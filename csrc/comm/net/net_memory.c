/* The node's memory: one mapping that all its ranks share. A rank's heap is address space; its pages exist while blocks
 * do. */
#define _GNU_SOURCE 1 /* fallocate */
#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "comm/net/net_private.h"

/* Smaller messages are copied. */
#define PLACE_MIN_BYTES 4096
#define HUGE_PAGE ((size_t)2 << 20)

_Static_assert(sizeof(gg_net_board) == GG_NET_ENDED(1), "boards lie where the starter writes");

static size_t up_to(size_t bytes, size_t grain) { return (bytes + grain - 1) / grain * grain; }

gg_net_board *gg_net_board_of(const gg_net *net, int place) {
    return (gg_net_board *)(void *)(net->base + GG_NET_ENDED(place));
}

gg_net_ring *gg_net_ring_of(const gg_net *net, int from, int to) {
    const size_t number = (size_t)from * (size_t)net->places + (size_t)to;
    return (gg_net_ring *)(void *)(net->base + net->rings_at + number * (sizeof(gg_net_ring) + net->ring_bytes));
}

static _Atomic uint32_t *slot_of(const gg_net *net, int place, uint32_t slot) {
    return (_Atomic uint32_t *)(void *)(net->base + net->slots_at) + (size_t)place * GG_NET_SLOTS + slot;
}

static size_t heap_begin(const gg_net *net, int place) { return net->heaps_at + (size_t)place * net->heap_bytes; }

gg_status gg_net_memory_open(gg_net *net, const gg_net_options *options) {
    const size_t places = (size_t)net->places;
    const char *shared = getenv("GOSSIPGRAD_SHARED");
    net->memory = options->memory;
    if (net->places < 2) return GG_OK;
    if (net->memory < 0)
        return gg_fail(GG_ERROR_ARGUMENT, "memory: no descriptor, but the node of rank %d has %d ranks", net->rank,
                       net->places);
    if (options->ring_bytes < 4096 || (options->ring_bytes & (options->ring_bytes - 1)) != 0)
        return gg_fail(GG_ERROR_ARGUMENT, "ring_bytes: %zu; allowed: a power of two, at least 4096",
                       options->ring_bytes);
    if (options->heap_bytes % HUGE_PAGE != 0 || options->heap_bytes > SIZE_MAX / 4 / places)
        return gg_fail(GG_ERROR_ARGUMENT, "heap_bytes: %zu; allowed: a multiple of %zu", options->heap_bytes,
                       HUGE_PAGE);
    net->ring_bytes = options->ring_bytes;
    net->heap_bytes = options->heap_bytes;
    net->slots_at = up_to(GG_NET_ENDED(places), HUGE_PAGE / 512);
    net->rings_at = net->slots_at + up_to(places * GG_NET_SLOTS * sizeof(uint32_t), HUGE_PAGE / 512);
    net->heaps_at = up_to(net->rings_at + places * places * (sizeof(gg_net_ring) + net->ring_bytes), HUGE_PAGE);
    net->bytes = net->heaps_at + places * net->heap_bytes;
    if (ftruncate(net->memory, (off_t)net->bytes) != 0)
        return gg_fail(GG_ERROR_MEMORY, "the node's memory of %zu bytes: %s", net->bytes, strerror(errno));
    void *base = mmap(NULL, net->bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_NORESERVE, net->memory, 0);
    if (base == MAP_FAILED)
        return gg_fail(GG_ERROR_MEMORY, "mapping the node's memory of %zu bytes: %s", net->bytes, strerror(errno));
    net->base = base;
    (void)madvise(base, net->bytes, MADV_DONTDUMP);
    if (shared != NULL && strcmp(shared, "0") == 0) net->free_count = 0; /* this rank describes nothing */
    else
        for (uint32_t i = 0; i < GG_NET_SLOTS; ++i) net->free_slots[net->free_count++] = GG_NET_SLOTS - 1 - i;
    return GG_OK;
}

void gg_net_memory_close(gg_net *net) {
    while (net->blocks != NULL) {
        gg_net_block *next = net->blocks->next;
        gg_free(net->blocks);
        net->blocks = next;
    }
    if (net->base != NULL) munmap(net->base, net->bytes);
    if (net->memory >= 0) close(net->memory);
}

/* ---- message memory ---- */

static unsigned char *memory_of(const gg_net *net, const gg_net_block *block) {
    return net->base + heap_begin(net, net->place) + block->begin;
}

/* The smallest spare block with room for `bytes`; NULL means none. */
static gg_net_block *find_spare(const gg_net *net, size_t bytes) {
    gg_net_block *best = NULL;
    for (gg_net_block *one = net->blocks; one != NULL; one = one->next) {
        const size_t room = one->end - one->begin;
        if (one->spare && room >= bytes && (best == NULL || room < best->end - best->begin)) best = one;
    }
    return best;
}

/* Removes the block at *at. Its pages go, so that the next block here is zero. */
static void remove_block(gg_net *net, gg_net_block **at) {
    gg_net_block *found = *at;
    const size_t room = found->end - found->begin;
    unsigned char *memory = memory_of(net, found);
    const off_t place = (off_t)(memory - net->base);
    if (fallocate(net->memory, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, place, (off_t)room) != 0)
        memset(memory, 0, room);
    *at = found->next;
    gg_free(found);
}

gg_status gg_net_heap_alloc(gg_net *net, size_t bytes, void **out) {
    const size_t grain = bytes >= HUGE_PAGE ? HUGE_PAGE : HUGE_PAGE / 512;
    gg_net_block *made = find_spare(net, bytes), **at = &net->blocks;
    size_t begin = 0;
    int code = 0;
    *out = NULL;
    if (net->base == NULL || bytes < PLACE_MIN_BYTES || bytes > net->heap_bytes) return GG_OK;
    const size_t room = up_to(bytes, grain);
    if (made != NULL) {
        made->spare = false;
        *out = memory_of(net, made);
        memset(*out, 0, made->end - made->begin);
        return GG_OK;
    }
    for (; *at != NULL && (*at)->begin < begin + room; at = &(*at)->next) begin = up_to((*at)->end, grain);
    if (begin + room > net->heap_bytes) return GG_OK;
    const size_t place = heap_begin(net, net->place) + begin;
    do code = posix_fallocate(net->memory, (off_t)place, (off_t)room); /* a full system fails here, not by a signal */
    while (code == EINTR);
    if (code != 0) return GG_OK;
    GG_TRY(gg_alloc(sizeof *made, "block of message memory", &made));
    *made = (gg_net_block){.next = *at, .begin = begin, .end = begin + room};
    *at = made;
    (void)madvise(net->base + place, room, MADV_HUGEPAGE); /* only a hint */
    *out = net->base + place;
    return GG_OK;
}

bool gg_net_heap_free(gg_net *net, const void *block) {
    for (gg_net_block **at = &net->blocks; *at != NULL; at = &(*at)->next) {
        if (memory_of(net, *at) != block) continue;
        if (net->recycles) (*at)->spare = true;
        else remove_block(net, at);
        return true;
    }
    return false;
}

void gg_net_heap_recycle(gg_net *net, bool on) {
    net->recycles = on;
    for (gg_net_block **at = &net->blocks; !on && *at != NULL;) {
        if ((*at)->spare) remove_block(net, at);
        else at = &(*at)->next;
    }
}

/* ---- messages in it ---- */

bool gg_net_describe(gg_net *net, const gg_net_peer *peer, const void *data, size_t bytes, gg_net_link *link) {
    if (bytes < PLACE_MIN_BYTES || peer->place < 0 || net->free_count == 0) return false;
    const uintptr_t heap = (uintptr_t)(net->base + heap_begin(net, net->place)), at = (uintptr_t)data;
    if (at < heap || at - heap >= net->heap_bytes || net->heap_bytes - (at - heap) < bytes) return false;
    link->slot = net->free_slots[--net->free_count];
    link->offset = heap_begin(net, net->place) + (at - heap);
    link->described = true;
    atomic_store_explicit(slot_of(net, net->place, link->slot), 0, memory_order_relaxed);
    return true;
}

void gg_net_free_slot(gg_net *net, uint32_t slot) { net->free_slots[net->free_count++] = slot; }

bool gg_net_acknowledged(gg_net *net, uint32_t slot) {
    if (atomic_load_explicit(slot_of(net, net->place, slot), memory_order_acquire) == 0) return false;
    gg_net_free_slot(net, slot);
    return true;
}

void gg_net_acknowledge(gg_net *net, const gg_net_peer *peer, uint32_t slot) {
    atomic_store_explicit(slot_of(net, peer->place, slot), 1, memory_order_release);
}

const void *gg_net_locate(const gg_net *net, const gg_net_peer *peer, const gg_net_frame *frame) {
    if (peer->place < 0 || frame->slot >= GG_NET_SLOTS) return NULL;
    const size_t begin = heap_begin(net, peer->place);
    if (frame->offset < begin || frame->offset - begin > net->heap_bytes ||
        net->heap_bytes - (frame->offset - begin) < frame->bytes)
        return NULL;
    return net->base + frame->offset;
}
