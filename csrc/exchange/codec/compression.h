/* Options of compression by AdaComp (Chen et al. 2017, arXiv 1712.02679), and the segments into which they divide a
 * network. Pure functions of the layout and the options, so all ranks get equal results.
 *
 *     G = R + dW                   residue plus new gradient
 *     H = G + (f - 1) dW           f is the factor
 *     a bin is L consecutive elements of one parameter; gmax is the largest |G| of a bin
 *     element j is sent if |H_j| >= gmax of its bin and gmax > 0; sent values leave the residue
 *
 * Each parameter is packed by itself: bins and scales never span two. Statistics always travel dense. */
#ifndef GG_EXCHANGE_CODEC_COMPRESSION_H
#define GG_EXCHANGE_CODEC_COMPRESSION_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "ops/arena_layout.h"

/* Sent form of a chosen element. */
typedef enum gg_compression_mode {
    GG_COMPRESSION_STRICT = 0, /* its sign; one scale a parameter, the mean of gmax over the bins */
    GG_COMPRESSION_SAFE,       /* as STRICT, only if |G| is at least half of the scale */
    GG_COMPRESSION_EXACT,      /* its value, as BFLOAT16 or FLOAT32 */
    GG_COMPRESSION_MODES
} gg_compression_mode;

/* Who chooses the elements: every rank its own, or one rank for all, in turns. */
typedef enum gg_compression_selection {
    GG_SELECTION_LOCAL = 0,
    GG_SELECTION_CYCLIC,
    GG_SELECTION_COUNT
} gg_compression_selection;

/* Max elements of a bin: 14 bits; one value of these marks runs of empty bins. */
enum { GG_MAX_BIN = 16383 };

/* All zero means that nothing is compressed. */
typedef struct gg_compression {
    bool active;
    int bin[GG_FAMILY_COUNT];      /* elements of a bin; 0 means that parameters of this family travel dense */
    float factor[GG_FAMILY_COUNT]; /* f, at least 1 */
    gg_compression_mode mode;
    gg_dtype values;    /* EXACT: type of sent values, BFLOAT16 or FLOAT32 */
    size_t dense_below; /* parameters of fewer elements travel dense */
    /* Replaces dense_below: names of the parameters that may be compressed, each ended by a newline. Outlives all
     * objects made with the options. NULL means dense_below. A network that shrinks keeps its first choice, so that no
     * residue belongs to a dense parameter. */
    const char *packs;
    unsigned dense_roles; /* bit 1 << role: parameters of this role travel dense */
    int64_t warmup;       /* number of first steps that travel dense */
    gg_compression_selection selection;
    bool local_momentum; /* each rank's gradient passes the optimiser's momentum before the choice, not after it */
} gg_compression;

/* One parameter in a message. */
typedef struct gg_segment {
    size_t offset, count; /* elements of the arenas, without padding */
    int bin;              /* elements of a bin, at most `count`; 0 means dense */
    gg_family family;
    int layer;
    const char *name; /* for messages; in gg_segments_create's segments the parameter's, in the layout */
} gg_segment;

/* All parameters of a layout in the order of the arenas. */
typedef struct gg_segments {
    int count;
    gg_segment *segment;
    int *first_of_layer; /* one a layer: its first segment; `count` after the last */
} gg_segments;

/* Histogram of bins by their sent elements: 0, 1, ..., 15; the last entry counts 16 and more. */
enum { GG_COUNTS_HISTOGRAM = 17 };

/* Values sent by one rank since creation. */
typedef struct gg_compression_counts {
    int64_t dense_bytes[GG_FAMILY_COUNT]; /* of contributed values, as float32 */
    int64_t sent_bytes[GG_FAMILY_COUNT];  /* of their packed form, with headers, scales and dense parts */
    int64_t bins_with[GG_COUNTS_HISTOGRAM];
    int64_t elements_sent, elements; /* of compressed parameters */
} gg_compression_counts;

/* Entry by entry: to count from one time to another, or over several ranks. */
void gg_compression_counts_add(gg_compression_counts *counts, const gg_compression_counts *more);
void gg_compression_counts_subtract(gg_compression_counts *counts, const gg_compression_counts *before);

/* Errors name the keyword, the value and the allowed values. Inactive options are not checked. */
gg_status gg_compression_check(const gg_compression *compression);

/* True if the options pack anything of this layout; false if every parameter travels dense. */
bool gg_compression_packs(const gg_arena_layout *layout, const gg_compression *compression);

/* True if both choose from equal parameters in equal bins in one way: each one's residue is valid for the other. */
bool gg_compression_leaves_the_same(const gg_arena_layout *layout, const gg_compression *a, const gg_compression *b);

/* The segments of a layout, which outlives them; inactive options make all dense. Freed by gg_segments_destroy; a
 * zeroed `segments` is a no-op. */
gg_status gg_segments_create(const gg_arena_layout *layout, const gg_compression *compression, gg_segments *out);
void gg_segments_destroy(gg_segments *segments);

#endif
