/* What is compressed and how: the options of AdaComp (Chen et al. 2017, arXiv 1712.02679), and the runs of the arenas
 * that they divide a network into. Pure functions of the layout and the options, so all ranks get the same.
 *
 *     G = R + dW                   residue plus new gradient
 *     H = G + (f - 1) dW           f is the factor
 *     a bin is L consecutive elements of one parameter; gmax is the largest |G| of a bin
 *     element j is sent where |H_j| >= gmax of its bin and gmax > 0; what is sent leaves the residue
 *
 * In a message every parameter stands for itself: bins and scales never cross one. Statistics always travel dense. */
#ifndef GG_EXCHANGE_CODEC_COMPRESSION_H
#define GG_EXCHANGE_CODEC_COMPRESSION_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "ops/arena_layout.h"

/* What is sent of an element. */
typedef enum gg_compression_mode {
    GG_COMPRESSION_STRICT = 0, /* its sign; one scale a parameter, the mean of gmax over the bins */
    GG_COMPRESSION_SAFE,       /* the same, and only where |G| is at least half of the scale */
    GG_COMPRESSION_EXACT,      /* its value, as BFLOAT16 or FLOAT32 */
    GG_COMPRESSION_MODES
} gg_compression_mode;

/* Who chooses the elements: every rank its own, or in turns one rank for all. */
typedef enum gg_compression_selection {
    GG_SELECTION_LOCAL = 0,
    GG_SELECTION_CYCLIC,
    GG_SELECTION_COUNT
} gg_compression_selection;

/* A bin has at most so many elements: 14 bits, of which one value marks runs of empty bins. */
enum { GG_MOST_BIN = 16383 };

/* All zero: nothing is compressed. */
typedef struct gg_compression {
    bool active;
    int bin[GG_FAMILY_COUNT];      /* elements of a bin; 0: parameters of this family travel dense */
    float factor[GG_FAMILY_COUNT]; /* f, at least 1 */
    gg_compression_mode mode;
    gg_dtype values;    /* EXACT: what travels, BFLOAT16 or FLOAT32 */
    size_t dense_below; /* parameters of fewer elements travel dense */
    /* In place of dense_below: the parameters that may be compressed, each name ended by a newline; outlives what is
     * made with the options. NULL: as dense_below says. A network that shrinks goes on as it began, so that no residue
     * becomes one of a parameter that travels dense. */
    const char *packs;
    unsigned dense_roles; /* a bit 1 << role each: parameters of this role travel dense */
    int64_t warmup;       /* so many first steps travel dense */
    gg_compression_selection selection;
    bool local_momentum; /* each rank's gradient goes through the optimiser's momentum before the choice, and not after
                          */
} gg_compression;

/* One parameter in a message. */
typedef struct gg_segment {
    size_t offset, count; /* elements of the arenas, without padding */
    int bin;              /* elements of a bin, at most `count`; 0: dense */
    gg_family family;
    int layer;
    const char *name; /* for messages; of gg_segments_create: the parameter's, in the layout */
} gg_segment;

/* All parameters of a layout in the order of the arenas. */
typedef struct gg_segments {
    int count;
    gg_segment *segment;
    int *first_of_layer; /* of each layer its first segment, and `count` behind the last */
} gg_segments;

/* Bins by how many of their elements were sent: 0, 1, ..., 15, and in the last entry 16 and more. */
enum { GG_COUNTS_HISTOGRAM = 17 };

/* What one rank has sent since creation. */
typedef struct gg_compression_counts {
    int64_t dense_bytes[GG_FAMILY_COUNT]; /* of what was contributed, as float32 */
    int64_t sent_bytes[GG_FAMILY_COUNT];  /* of its packed form: headers, scales and dense parts included */
    int64_t bins_with[GG_COUNTS_HISTOGRAM];
    int64_t elements_sent, elements; /* of compressed parameters */
} gg_compression_counts;

/* Entry by entry: what was counted from one time to another, and by several ranks. */
void gg_compression_counts_add(gg_compression_counts *counts, const gg_compression_counts *more);
void gg_compression_counts_subtract(gg_compression_counts *counts, const gg_compression_counts *before);

/* Errors name the keyword, the value and what is allowed. Options that are not active are not looked at. */
gg_status gg_compression_check(const gg_compression *compression);

/* Whether the options send anything of this layout packed: false where every parameter travels dense. */
bool gg_compression_packs(const gg_arena_layout *layout, const gg_compression *compression);

/* Whether both choose from the same parameters in the same bins and the same way: what one has not sent is what the
 * other would have left. */
bool gg_compression_leaves_the_same(const gg_arena_layout *layout, const gg_compression *a, const gg_compression *b);

/* The segments of a layout, which outlives them; with options that are not active all are dense. Freed by
 * gg_segments_destroy, which a zeroed `segments` may be given to as well. */
gg_status gg_segments_create(const gg_arena_layout *layout, const gg_compression *compression, gg_segments *out);
void gg_segments_destroy(gg_segments *segments);

#endif
