/* A data set: the fields of a sample, and where samples lie. No ranks.
 *
 * A sample has one or more inputs and any number of targets, each with its own type and shape. A field is in memory
 * (whole, row-major; a memory map may exceed the RAM), or a source reads it. */
#ifndef GG_DATA_DATASET_H
#define GG_DATA_DATASET_H

#include "data/source.h"
#include "ops/backend.h"

/* One field of a sample. Inputs are uint8, int32 or float32; the network sees scale*element + shift in float32. Tokens
 * are uint8 or int32 inputs and stay integers. Targets are int32 classes or float32. */
typedef struct gg_field {
    gg_dtype dtype;
    gg_shape shape;     /* of one sample; dims 0 means a single number */
    bool tokens;        /* an input of names, not quantities: read as int32 */
    float scale, shift; /* of an input without tokens */
    int64_t
        runs; /* with `scales`: equal runs of a sample; the channels (first axis of the shape) or the single values */
    gg_storage *scales; /* float32: a scale a run, then a shift a run; NULL means `scale` and `shift` apply to all */
    int64_t classes;    /* integers: first to classes - 1 are allowed; 0 means any */
    int64_t first;      /* 0 but for inputs that count something */
    bool ignores;       /* `ignored`, which is no class, is allowed as well */
    int32_t ignored;
} gg_field;

/* A set. A keeper of a copy of this struct retains its storages and source (gg_dataset_retain, gg_dataset_release).
 */
typedef struct gg_dataset {
    int inputs, targets;
    gg_field field[GG_SET_FIELDS]; /* the inputs, then the targets */
    int64_t count;

    /* All samples of each field; NULL means that the source reads it. Inputs, and targets from a source, are indexed by
     * a sample's row. Targets in memory and weights are in the set's order. */
    gg_storage *memory[GG_SET_FIELDS];
    gg_source *source; /* NULL means that every field is in memory */
    gg_storage
        *rows;      /* uint32, one a sample: its place among `stored` samples; NULL means all stored samples in order */
    int64_t stored; /* with rows */
    gg_storage *sample_weights; /* float32, one a sample: factor of its loss; NULL means all 1 */
    bool streams;               /* samples are pieces of sequences in order: each continues the previous sample */
} gg_dataset;

/* GG_ERROR_ARGUMENT, GG_ERROR_SHAPE or GG_ERROR_TYPE if the description is invalid or sizes of storages do not fit the
 * counts. */
gg_status gg_dataset_check(const gg_dataset *set);
/* Checks integers in memory against their fields' classes; the error names the first wrong sample. */
gg_status gg_dataset_check_classes(const gg_dataset *set);
/* Checks n values of a field from a source: integers against its classes, float32 for NaN and infinities. The error
 * names the field (`name`) and the first wrong entry of `rows`. */
gg_status gg_field_check_rows(const gg_field *field, const char *name, const void *values, const uint32_t *rows,
                              int64_t n);

static inline int gg_dataset_fields(const gg_dataset *set) { return set->inputs + set->targets; }
static inline const gg_field *gg_dataset_target(const gg_dataset *set, int i) { return &set->field[set->inputs + i]; }
/* "input 1", "target 0"; "samples" or "targets" if there is only one. Returns `text`. */
#define GG_FIELD_TEXT 24
const char *gg_dataset_field_name(const gg_dataset *set, int field, char text[GG_FIELD_TEXT]);
int64_t gg_field_values(const gg_field *field); /* of one sample */
size_t gg_field_bytes(const gg_field *field);   /* of one stored sample */

/* The place of a sample among the stored ones. */
int64_t gg_dataset_row(const gg_dataset *set, int64_t i);
/* Sample i of a field that is in memory. */
void *gg_dataset_at(const gg_dataset *set, int field, int64_t i);
void gg_dataset_retain(const gg_dataset *set);
void gg_dataset_release(gg_dataset *set); /* zeroes it */

#endif
