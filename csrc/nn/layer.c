/* What the layers share. */
#include "nn/layer.h"

#include <math.h>

gg_status gg_init_check(const gg_init *init, const char *what) {
    if ((int)init->kind < 0 || init->kind >= GG_INIT_COUNT)
        return gg_fail(GG_ERROR_ARGUMENT, "%s: unknown kind %d", what, (int)init->kind);
    if (init->kind != GG_INIT_UNIFORM && init->kind != GG_INIT_NORMAL && init->kind != GG_INIT_CONSTANT) return GG_OK;
    if (!isfinite(init->value))
        return gg_fail(GG_ERROR_ARGUMENT, "%s: the value must be finite, got %g", what, init->value);
    if (init->kind != GG_INIT_CONSTANT && init->value < 0)
        return gg_fail(GG_ERROR_ARGUMENT, "%s: the bound or deviation must not be negative, got %g", what, init->value);
    return GG_OK;
}
