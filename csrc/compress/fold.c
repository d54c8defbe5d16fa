#include "compress/fold.h"

#include <math.h>
#include <string.h>

static gg_status check_fold(const gg_fold *fold, int64_t outer, int64_t inner) {
    gg_status status = GG_OK;
    if (fold->left < 0 || fold->units < fold->left || outer < 0 || inner < 0)
        GG_FAIL(GG_ERROR_ARGUMENT,
                "fold: %lld units to %lld, in %lld runs of %lld elements a unit; no size may be "
                "negative, and units do not become more",
                (long long)fold->units, (long long)fold->left, (long long)outer, (long long)inner);
    for (int64_t i = 0; i < fold->units; ++i) {
        if (fold->into[i] < -1 || fold->into[i] >= fold->left)
            GG_FAIL(GG_ERROR_ARGUMENT, "fold: unit %lld goes into unit %lld; allowed are -1 to %lld", (long long)i,
                    (long long)fold->into[i], (long long)fold->left - 1);
        if (!isfinite(fold->factor[i]))
            GG_FAIL(GG_ERROR_ARGUMENT, "fold: the factor of unit %lld is %g; must be finite", (long long)i,
                    fold->factor[i]);
    }
cleanup:
    return status;
}

gg_status gg_fold_run(const gg_fold *fold, int64_t outer, int64_t inner, const float *in, float *out) {
    gg_status status = GG_OK;
    GG_TRY(check_fold(fold, outer, inner));
    memset(out, 0, (size_t)(outer * fold->left * inner) * sizeof *out);
    for (int64_t o = 0; o < outer; ++o)
        for (int64_t i = 0; i < fold->units; ++i) {
            if (fold->into[i] < 0) continue;
            const float *from = in + (o * fold->units + i) * inner;
            float *to = out + (o * fold->left + fold->into[i]) * inner;
            for (int64_t k = 0; k < inner; ++k) to[k] += fold->factor[i] * from[k];
        }
cleanup:
    return status;
}
