/* What a data set is: the fields of a sample, and where the samples are. Knows nothing of ranks.
 *
 * A sample has one or more inputs and as many targets as a network wants, each with a type and a shape of its own.
 * A field is in memory (whole, row-major; a memory map larger than the RAM is memory too), or a source reads it. */
#ifndef GG_DATA_DATASET_H
#define GG_DATA_DATASET_H

#include "data/source.h"
#include "ops/backend.h"

/* What a field of a sample is. Inputs are uint8, int32 or float32, which the network sees as scale*element + shift in
 * float32; or they are tokens, uint8 or int32, which stay what they are. Targets are int32 classes or float32. */
typedef struct gg_field {
    gg_dtype dtype;
    gg_shape shape;     /* of one sample; dims 0: a single number */
    bool tokens;        /* an input of numbers that are no quantities: read as int32 */
    float scale, shift; /* of an input that is no tokens */
    int64_t runs; /* with `scales`: the sample is so many equal runs, its channels (the first axis of the shape) or
                     its single values */
    gg_storage *scales; /* float32: a scale for each run, then as many shifts; NULL: scale and shift are those of all */
    int64_t classes;    /* of integers: allowed are first to classes - 1; 0: any */
    int64_t first;      /* 0 but for inputs that count something */
    bool ignores;       /* and `ignored`: a number that is no class */
    int32_t ignored;
} gg_field;

/* A set; the storages and the source are retained by whoever keeps a copy of this struct (gg_dataset_retain/release).
 */
typedef struct gg_dataset {
    int inputs, targets;
    gg_field field[GG_SET_FIELDS]; /* the inputs, then the targets */
    int64_t count;

    /* Of each field all samples; NULL: the source reads it. Inputs, and targets that are read, are found by the row of
     * a sample; targets in memory and weights are in the order of the set. */
    gg_storage *memory[GG_SET_FIELDS];
    gg_source *source;          /* NULL: everything is in memory */
    gg_storage *rows;           /* uint32, one a sample: its place among the `stored` samples; NULL: they are all, in
                                   their order */
    int64_t stored;             /* with rows */
    gg_storage *sample_weights; /* float32, one a sample: what its loss counts; NULL: all 1 */
    bool streams; /* the samples are pieces of sequences in their order: each goes on where the one before ends */
} gg_dataset;

/* GG_ERROR_ARGUMENT, GG_ERROR_SHAPE or GG_ERROR_TYPE where the description is none, or sizes of the storages do not fit
 * the counts. */
gg_status gg_dataset_check(const gg_dataset *set);
/* Checks integers in memory against the classes of their fields; names the first sample that is wrong. */
gg_status gg_dataset_check_classes(const gg_dataset *set);
/* Checks n rows of a field that have been read: integers against its classes, float32 for NaN and infinities. first:
 * the number of the first of them that is wrong, of those in `rows`; `name` is that of the field. */
gg_status gg_field_check_rows(const gg_field *field, const char *name, const void *values, const uint32_t *rows,
                              int64_t n);

static inline int gg_dataset_fields(const gg_dataset *set) { return set->inputs + set->targets; }
static inline const gg_field *gg_dataset_target(const gg_dataset *set, int i) { return &set->field[set->inputs + i]; }
/* "input 1", "target 0", or "samples" and "targets" where there is one of them. Returns `text`. */
#define GG_FIELD_TEXT 24
const char *gg_dataset_field_name(const gg_dataset *set, int field, char text[GG_FIELD_TEXT]);
int64_t gg_field_values(const gg_field *field); /* of one sample */
size_t gg_field_bytes(const gg_field *field);   /* of one sample as it is stored */

/* The place of a sample among the stored ones. */
int64_t gg_dataset_row(const gg_dataset *set, int64_t i);
/* Sample i of a field that is in memory. */
void *gg_dataset_at(const gg_dataset *set, int field, int64_t i);
void gg_dataset_retain(const gg_dataset *set);
void gg_dataset_release(gg_dataset *set); /* zeroes it */

#endif
