#include "cpu/gemm/packed_products.h"

const gg_packed_products *gg_packed_products_for(gg_isa isa, const gg_sgemm *product) {
    if (gg_split_products.pays(isa, product)) return &gg_split_products;
    return gg_paired_products.pays(isa, product) ? &gg_paired_products : NULL;
}

const gg_packed_products *gg_packed_gradient_for(gg_isa isa, int64_t batch, int64_t in) {
    if (gg_split_products.gradient_pays(isa, batch, in)) return &gg_split_products;
    return gg_paired_products.gradient_pays(isa, batch, in) ? &gg_paired_products : NULL;
}
