/* Private to the files of packed messages: working memory of packing. */
#ifndef GG_EXCHANGE_CODEC_PACKED_ROOM_H
#define GG_EXCHANGE_CODEC_PACKED_ROOM_H

#include "exchange/codec/packed.h"

/* Elements of a bin in which uncompressed values are checked. */
#define PACK_DENSE_BIN ((size_t)1024)

/* Places of a segment's lists (gg_pack_args). */
typedef struct pack_lists {
    uint32_t *scratch;
    gg_pack_result *result;
    uint16_t *place, *chosen;
} pack_lists;

/* Elements on their way to the device, in host memory that it shares. */
typedef struct pack_stage {
    uint32_t *element;
    unsigned char *values; /* float32 or bfloat16 */
    gg_mark mark;          /* of the work that reads the stage */
} pack_stage;

enum { PACK_STAGES = 4 };

struct gg_pack_room {
    gg_device *device;
    int batch;          /* segments packed at a time: 1, or on a separate device those of a message */
    gg_pack_args *args; /* one a segment of a batch */
    pack_lists lists;   /* of the first segment of a batch */
    pack_stage stage[PACK_STAGES];
    int stages, next;  /* 1, or PACK_STAGES on a separate device */
    size_t stage_room; /* elements of each */
};

/* Moves to the lists of the next segment. */
void gg_pack_lists_advance(pack_lists *lists, const gg_segment *segment);
/* Returns a stage that nothing reads any more; waits for one. */
pack_stage *gg_pack_stage_next(gg_pack_room *room);
/* Marks the stage as read by the device work given so far. */
void gg_pack_stage_given(gg_pack_room *room, pack_stage *stage);

#endif
