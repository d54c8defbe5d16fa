#include <float.h>
#include <inttypes.h>
#include <math.h>

#include "exchange/optim/optim.h"

#define PI 3.14159265358979323846264338327950288

/* NaN compares false with everything, so every test states the allowed condition. Learning rates end up in float. */
static gg_status check_rate_value(const char *name, double value) {
    if (value >= 0 && value <= (double)FLT_MAX) return GG_OK;
    return gg_fail(GG_ERROR_ARGUMENT, "%s=%g: must be finite and at least 0", name, value);
}

gg_status gg_rate_check(const gg_rate *rate) {
    if ((unsigned)rate->kind >= GG_SCHEDULE_COUNT)
        return gg_fail(GG_ERROR_ARGUMENT, "schedule=%d: allowed are 0 to %d", (int)rate->kind, GG_SCHEDULE_COUNT - 1);
    GG_TRY(check_rate_value("lr", rate->lr));
    if (rate->warmup < 0)
        return gg_fail(GG_ERROR_ARGUMENT, "warmup=%" PRId64 ": must be at least 0 steps", rate->warmup);
    if (!(rate->warmup_start >= 0 && rate->warmup_start <= 1))
        return gg_fail(GG_ERROR_ARGUMENT, "warmup_start=%g: must be from 0 to 1 (a share of lr)", rate->warmup_start);
    if (rate->kind == GG_SCHEDULE_STEP) {
        if (!(rate->gamma > 0 && rate->gamma <= 1))
            return gg_fail(GG_ERROR_ARGUMENT, "gamma=%g: must be above 0 and at most 1", rate->gamma);
        if (rate->every < 1)
            return gg_fail(GG_ERROR_ARGUMENT, "every=%" PRId64 ": must be at least 1 step", rate->every);
    }
    if (rate->kind == GG_SCHEDULE_COSINE || rate->kind == GG_SCHEDULE_POLYNOMIAL) {
        if (rate->total < 1)
            return gg_fail(GG_ERROR_ARGUMENT, "total=%" PRId64 ": must be at least 1 step", rate->total);
        GG_TRY(check_rate_value("final", rate->final));
    }
    if (rate->kind == GG_SCHEDULE_POLYNOMIAL && !(rate->power > 0 && rate->power <= DBL_MAX))
        return gg_fail(GG_ERROR_ARGUMENT, "power=%g: must be finite and above 0", rate->power);
    if (rate->kind == GG_SCHEDULE_TABLE) {
        if (rate->count < 1) return gg_fail(GG_ERROR_ARGUMENT, "values: empty; must be at least one rate");
        for (int64_t i = 0; i < rate->count; ++i) GG_TRY(check_rate_value("learning rate", rate->table[i]));
    }
    return GG_OK;
}

static double table_entry(const gg_rate *rate, int64_t step) {
    int64_t i = step - rate->first;
    return rate->table[i < 0 ? 0 : i < rate->count ? i : rate->count - 1];
}

double gg_rate_at(const gg_rate *rate, int64_t step) {
    if (step < rate->since) return rate->before;
    if (rate->kind == GG_SCHEDULE_TABLE) return table_entry(rate, step);
    if (step < rate->warmup) {
        double share = (double)step / (double)rate->warmup;
        return rate->lr * (rate->warmup_start + (1 - rate->warmup_start) * share);
    }
    int64_t t = step - rate->warmup;
    /* The ends are lr and final to the bit, not the sum that should give them. */
    if (t <= 0) return rate->lr;
    switch (rate->kind) {
    case GG_SCHEDULE_STEP: return rate->lr * pow(rate->gamma, (double)(t / rate->every));
    case GG_SCHEDULE_COSINE:
        if (t >= rate->total) return rate->final;
        return rate->final + (rate->lr - rate->final) * 0.5 * (1 + cos(PI * (double)t / (double)rate->total));
    case GG_SCHEDULE_POLYNOMIAL:
        if (t >= rate->total) return rate->final;
        return rate->final + (rate->lr - rate->final) * pow(1 - (double)t / (double)rate->total, rate->power);
    default: return rate->lr;
    }
}

void gg_rate_change(gg_rate *rate, const gg_rate *to, int64_t step) {
    const double before = step > 0 ? gg_rate_at(rate, step - 1) : 0;
    *rate = *to;
    rate->since = step;
    rate->before = before;
}
