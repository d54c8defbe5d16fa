/* Private to the files of packed messages: memory that packing works in. */
#ifndef GG_EXCHANGE_CODEC_PACKED_ROOM_H
#define GG_EXCHANGE_CODEC_PACKED_ROOM_H

#include "exchange/codec/packed.h"

/* What is not compressed is checked in bins of so many elements. */
#define PACK_DENSE_BIN ((size_t)1024)

/* Where a segment's lists lie (gg_pack_args). */
typedef struct pack_lists {
    uint32_t *scratch;
    gg_pack_result *result;
    uint16_t *place, *chosen;
} pack_lists;

/* Elements on their way to the device; of host memory that it shares. */
typedef struct pack_stage {
    uint32_t *element;
    unsigned char *values; /* float32 or bfloat16 */
    gg_mark mark;          /* of the work that reads them */
} pack_stage;

enum { PACK_STAGES = 4 };

struct gg_pack_room {
    gg_device *device;
    int batch;          /* segments that are packed at a time: 1, or on a separate device those of a message */
    gg_pack_args *args; /* one a segment of a batch */
    pack_lists lists;   /* of the first segment of a batch */
    pack_stage stage[PACK_STAGES];
    int stages, next;  /* 1, or on a separate device all */
    size_t stage_room; /* elements of each */
};

/* To the lists of the segment behind this one. */
void gg_pack_lists_advance(pack_lists *lists, const gg_segment *segment);
/* A stage that nothing reads any more; waits for one. */
pack_stage *gg_pack_stage_next(gg_pack_room *room);
/* What has been given to the device from here on reads the stage. */
void gg_pack_stage_given(gg_pack_room *room, pack_stage *stage);

#endif
