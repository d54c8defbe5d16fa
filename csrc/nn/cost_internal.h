/* Insides of cost models. tools/fit_costs.py writes the files with their rows. */
#ifndef GG_NN_COST_INTERNAL_H
#define GG_NN_COST_INTERNAL_H

#include "nn/cost.h"

typedef struct gg_cost_row {
    gg_cost_key key;
    double coefficient[GG_COST_FEATURES]; /* nanoseconds of a feature */
} gg_cost_row;

struct gg_cost_model {
    const char *name;
    const gg_cost_row *row;
    int rows;
};

extern const gg_cost_model gg_cost_zen4;   /* AVX-512 with paired products */
extern const gg_cost_model gg_cost_avx512; /* without */
extern const gg_cost_model gg_cost_avx2;
extern const gg_cost_model gg_cost_scalar;

#define GG_COST_ROW(dtype, kind, native, input, output, form, algorithm, pass, ...)                                    \
    {                                                                                                                  \
        {GG_##dtype,                                                                                                   \
         GG_OP_##kind,                                                                                                 \
         native,                                                                                                       \
         GG_LAYOUT_##input,                                                                                            \
         GG_LAYOUT_##output,                                                                                           \
         GG_COST_##form,                                                                                               \
         GG_ALGORITHM_##algorithm,                                                                                     \
         GG_PASS_##pass},                                                                                              \
        {                                                                                                              \
            __VA_ARGS__                                                                                                \
        }                                                                                                              \
    }

#endif
