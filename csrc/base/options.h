/* Options of a noun, an optimiser or a strategy: described once, in its row. Defaults, parsing, checks and the texts of
 * errors follow from the description; Python's classes and the command line read it (_core.describe). */
#ifndef GG_BASE_OPTIONS_H
#define GG_BASE_OPTIONS_H

#include <float.h>
#include <limits.h>
#include <math.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/status.h"

typedef enum gg_option_type {
    GG_OPTION_FLAG = 0, /* bool */
    GG_OPTION_INT,
    GG_OPTION_INT64,
    GG_OPTION_SIZE,
    GG_OPTION_FLOAT,
    GG_OPTION_DOUBLE,
    GG_OPTION_NAME, /* an enum, stored as int: the place of a name in `names` */
    GG_OPTION_SET   /* unsigned: a bit for each of `names` */
} gg_option_type;

/* Bounds of a number. A maximum of FLT_MAX or less asks for a finite number. */
typedef struct gg_bounds {
    double min, max;
    bool above, below; /* min, max are excluded */
} gg_bounds;

#define GG_ANY                                                                                                         \
    { .min = -INFINITY, .max = INFINITY }
#define GG_AT_LEAST(low)                                                                                               \
    { .min = (low), .max = INFINITY }
#define GG_FROM_TO(low, high)                                                                                          \
    { .min = (low), .max = (high) }
#define GG_ABOVE_TO(low, high)                                                                                         \
    { .min = (low), .max = (high), .above = true }
#define GG_FINITE(low)                                                                                                 \
    { .min = (low), .max = FLT_MAX }
#define GG_FINITE_ABOVE(low)                                                                                           \
    { .min = (low), .max = FLT_MAX, .above = true }
#define GG_BETWEEN(low, high)                                                                                          \
    { .min = (low), .max = (high), .above = true, .below = true }
#define GG_BELOW(low, high)                                                                                            \
    { .min = (low), .max = (high), .below = true }

typedef struct gg_option {
    const char *name; /* NULL ends a list */
    const char *help; /* of the command line */
    gg_option_type type;
    size_t offset;
    int count;          /* of numbers side by side, given as a sequence; 0 means one number, given alone */
    size_t length;      /* offset of an int that says how many of `count` are given; 0 means all must be */
    double fallback[2]; /* default; of GG_OPTION_NAME the place of the name, of GG_OPTION_SET the bits */
    gg_bounds bounds;   /* of numbers */
    const char *const *names;
    int choices;       /* length of `names` */
    const char *unset; /* meaning of the default, where the default is no value that can be given; NULL: it is one */
    bool required;     /* no default */
} gg_option;

/* Writes the defaults of a list into a struct that its offsets are of. */
void gg_options_reset(const gg_option *list, void *out);

/* Reads and writes number i of an option. A number too large for its type is stored as the largest of it. */
double gg_option_get(const gg_option *option, const void *from, int i);
void gg_option_set(const gg_option *option, void *out, int i, double value);

/* GG_ERROR_ARGUMENT naming the first option that is out of its bounds. */
gg_status gg_options_check(const gg_option *list, const void *from);
/* GG_ERROR_ARGUMENT for a value that is out of the bounds of a number. */
gg_status gg_option_check(const gg_option *option, double value);

#endif
