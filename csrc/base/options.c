#include "base/options.h"

#include <stdio.h>

static size_t size_of(gg_option_type type) {
    switch (type) {
    case GG_OPTION_FLAG: return sizeof(bool);
    case GG_OPTION_INT64: return sizeof(int64_t);
    case GG_OPTION_SIZE: return sizeof(size_t);
    case GG_OPTION_DOUBLE: return sizeof(double);
    default: return sizeof(int);
    }
}

static int length_of(const gg_option *option, const void *from) {
    if (option->length > 0) return *(const int *)((const char *)from + option->length);
    return option->count > 0 ? option->count : 1;
}

static int64_t whole(double value, int64_t min, int64_t max) {
    return value >= (double)max ? max : value <= (double)min ? min : (int64_t)value;
}

void gg_option_set(const gg_option *option, void *out, int i, double value) {
    void *at = (char *)out + option->offset + (size_t)i * size_of(option->type);
    switch (option->type) {
    case GG_OPTION_FLAG: *(bool *)at = value != 0; break;
    case GG_OPTION_INT64: *(int64_t *)at = whole(value, INT64_MIN, INT64_MAX); break;
    case GG_OPTION_SIZE: *(size_t *)at = (size_t)whole(value, 0, INT64_MAX); break;
    case GG_OPTION_FLOAT: *(float *)at = (float)value; break;
    case GG_OPTION_DOUBLE: *(double *)at = value; break;
    case GG_OPTION_SET: *(unsigned *)at = (unsigned)value; break;
    default: *(int *)at = (int)whole(value, INT_MIN, INT_MAX);
    }
}

double gg_option_get(const gg_option *option, const void *from, int i) {
    const void *at = (const char *)from + option->offset + (size_t)i * size_of(option->type);
    switch (option->type) {
    case GG_OPTION_FLAG: return *(const bool *)at;
    case GG_OPTION_INT64: return (double)*(const int64_t *)at;
    case GG_OPTION_SIZE: return (double)*(const size_t *)at;
    case GG_OPTION_FLOAT: return (double)*(const float *)at;
    case GG_OPTION_DOUBLE: return *(const double *)at;
    case GG_OPTION_SET: return *(const unsigned *)at;
    default: return *(const int *)at;
    }
}

void gg_options_reset(const gg_option *list, void *out) {
    for (; list->name != NULL; ++list) {
        if (list->length > 0) *(int *)((char *)out + list->length) = 0;
        for (int i = 0; i < length_of(list, out); ++i) gg_option_set(list, out, i, list->fallback[i]);
    }
}

static bool is_number(gg_option_type type) {
    return type != GG_OPTION_FLAG && type != GG_OPTION_NAME && type != GG_OPTION_SET;
}

/* A comparison with NaN is false, so tests say what must hold. Kernels compute in float32: a number that float32 rounds
 * to an excluded maximum is out of bounds. */
static bool is_within(const gg_bounds *b, double value) {
    if (!(b->above ? value > b->min : value >= b->min)) return false;
    return b->below ? (double)(float)value < b->max : value <= b->max;
}

gg_status gg_option_check(const gg_option *option, double value) {
    const gg_bounds *b = &option->bounds;
    if (is_within(b, value)) return GG_OK;
    const bool real = option->type == GG_OPTION_FLOAT || option->type == GG_OPTION_DOUBLE;
    char low[64] = "finite", high[64] = "";
    if (b->min > -FLT_MAX)
        snprintf(low, sizeof low, "%s%s %.*g", real && b->max >= FLT_MAX ? "finite and " : "",
                 b->above ? "above" : "at least", real ? 6 : 17, b->min);
    if (b->max < FLT_MAX)
        snprintf(high, sizeof high, " and %s %.*g", b->below ? "below" : "at most", real ? 6 : 17, b->max);
    return gg_fail(GG_ERROR_ARGUMENT, "%s=%.*g: must be %s%s", option->name, real ? 6 : 17, value, low, high);
}

gg_status gg_options_check(const gg_option *list, const void *from) {
    for (; list->name != NULL; ++list) {
        for (int i = 0; is_number(list->type) && i < length_of(list, from); ++i) {
            const double value = gg_option_get(list, from, i);
            if (list->unset != NULL && value == list->fallback[i]) continue;
            GG_TRY(gg_option_check(list, value));
        }
    }
    return GG_OK;
}
