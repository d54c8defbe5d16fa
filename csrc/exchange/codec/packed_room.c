#include "exchange/codec/packed_room.h"

#include "base/memory.h"

/* Elements of a stage. On the CPU they stay in the L1 cache. On a device they cover part of a usual sparse message, and
 * stages follow each other. */
#define HOST_STAGE ((size_t)1024)
#define MIN_STAGE ((size_t)4096)
#define MAX_STAGE ((size_t)1 << 18)
#define STAGE_SHARE 64

static size_t list_bin(const gg_segment *segment) { return segment->bin > 0 ? (size_t)segment->bin : PACK_DENSE_BIN; }

static size_t list_bins(const gg_segment *segment) {
    return (segment->count + list_bin(segment) - 1) / list_bin(segment);
}

static size_t list_scratch(const gg_segment *segment) { return gg_pack_scratch(segment->count, list_bin(segment)); }

static size_t list_places(const gg_segment *segment) { return segment->bin > 0 ? segment->count : 0; }

static size_t greater(size_t a, size_t b) { return a > b ? a : b; }

void gg_pack_sizes_add(gg_pack_sizes *sizes, const gg_device *device, const gg_segment *segment, int segments) {
    gg_pack_sizes all = {0}, most = {0};
    for (int i = 0; i < segments; ++i) {
        most.scratch = greater(most.scratch, list_scratch(&segment[i]));
        most.bins = greater(most.bins, list_bins(&segment[i]));
        most.places = greater(most.places, list_places(&segment[i]));
        all.scratch += list_scratch(&segment[i]);
        all.bins += list_bins(&segment[i]);
        all.places += list_places(&segment[i]);
        all.elements += segment[i].count;
    }
    all.segments = (size_t)segments;
    most.segments = segments > 0;
    const gg_pack_sizes *own = gg_device_is_separate(device) ? &all : &most;
    sizes->segments = greater(sizes->segments, own->segments);
    sizes->scratch = greater(sizes->scratch, own->scratch);
    sizes->bins = greater(sizes->bins, own->bins);
    sizes->places = greater(sizes->places, own->places);
    sizes->elements = greater(sizes->elements, own->elements);
}

void gg_pack_lists_advance(pack_lists *lists, const gg_segment *segment) {
    lists->scratch += list_scratch(segment);
    lists->chosen += list_bins(segment);
    lists->place += list_places(segment);
    lists->result += 1;
}

static size_t stage_of(const gg_device *device, size_t elements) {
    const size_t part = elements / STAGE_SHARE;
    if (!gg_device_is_separate(device)) return HOST_STAGE;
    return part < MIN_STAGE ? MIN_STAGE : part > MAX_STAGE ? MAX_STAGE : part;
}

/* Host memory that the device shares. Not cleared on the CPU: untouched pages cost nothing. */
static gg_status alloc_shared(gg_device *device, size_t bytes, void *out) {
    return gg_device_is_separate(device) ? (gg_device_alloc_host)(device, bytes, "room for packing", out)
                                         : (gg_alloc)(bytes, "room for packing", out);
}

gg_status gg_pack_room_create(gg_device *device, const gg_pack_sizes *sizes, gg_pack_room **out) {
    gg_status status = GG_OK;
    gg_pack_room *room = NULL;
    *out = NULL;
    GG_TRY_CLEANUP(gg_calloc(1, sizeof *room, "room for packing", &room));
    room->device = device;
    room->batch = (int)sizes->segments;
    room->stages = gg_device_is_separate(device) ? PACK_STAGES : 1;
    room->stage_room = stage_of(device, sizes->elements);
    GG_TRY_CLEANUP(gg_calloc(sizes->segments, sizeof *room->args, "room for packing", &room->args));
    GG_TRY_CLEANUP(
        gg_device_alloc(device, sizes->scratch * sizeof(uint32_t), "room for packing", &room->lists.scratch));
    GG_TRY_CLEANUP(alloc_shared(device, sizes->segments * sizeof(gg_pack_result), &room->lists.result));
    GG_TRY_CLEANUP(alloc_shared(device, sizes->bins * sizeof(uint16_t), &room->lists.chosen));
    GG_TRY_CLEANUP(alloc_shared(device, sizes->places * sizeof(uint16_t), &room->lists.place));
    for (int i = 0; i < room->stages; ++i) {
        GG_TRY_CLEANUP(alloc_shared(device, room->stage_room * sizeof(uint32_t), &room->stage[i].element));
        GG_TRY_CLEANUP(alloc_shared(device, room->stage_room * sizeof(float), &room->stage[i].values));
    }
    *out = room;
    room = NULL;
cleanup:
    gg_pack_room_destroy(room);
    return status;
}

void gg_pack_room_destroy(gg_pack_room *room) {
    if (room == NULL) return;
    for (int i = 0; i < room->stages; ++i) {
        gg_device_free_host(room->device, room->stage[i].element);
        gg_device_free_host(room->device, room->stage[i].values);
    }
    gg_device_free_host(room->device, room->lists.place);
    gg_device_free_host(room->device, room->lists.chosen);
    gg_device_free_host(room->device, room->lists.result);
    gg_device_free(room->device, room->lists.scratch);
    gg_free(room->args);
    gg_free(room);
}

pack_stage *gg_pack_stage_next(gg_pack_room *room) {
    pack_stage *stage = &room->stage[room->next];
    room->next = (room->next + 1) % room->stages;
    gg_device_wait(room->device, stage->mark);
    return stage;
}

void gg_pack_stage_given(gg_pack_room *room, pack_stage *stage) {
    stage->mark = gg_device_mark(room->device, GG_QUEUE_COMPUTE);
}
