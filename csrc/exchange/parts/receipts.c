#include "exchange/parts/receipts.h"

#include "base/memory.h"

gg_status gg_receipts_create(int ranks, gg_receipts *out) {
    *out = (gg_receipts){0};
    GG_TRY(gg_alloc((size_t)ranks * sizeof *out->last, "receipts", &out->last));
    GG_TRY(gg_alloc(2 * (size_t)ranks * sizeof *out->open, "receipts", &out->open));
    for (int r = 0; r < ranks; ++r) out->last[r] = -1;
    for (int i = 0; i < 2 * ranks; ++i) out->open[i] = (gg_receipt){.step = -1};
    return GG_OK;
}

void gg_receipts_destroy(gg_receipts *receipts) {
    gg_free(receipts->last);
    gg_free(receipts->open);
    *receipts = (gg_receipts){0};
}

void gg_receipts_begin(gg_receipts *receipts, int64_t step, int parts) {
    receipts->due[step % 2] = (gg_receipt){step, parts};
}

void gg_receipts_part(gg_receipts *receipts, int rank, int64_t step) {
    gg_receipt *open = &receipts->open[2 * rank + step % 2];
    const gg_receipt *due = &receipts->due[step % 2];
    if (open->step != step) *open = (gg_receipt){.step = step};
    if (++open->parts == due->parts && due->step == step) gg_receipts_whole(receipts, rank, step);
}

void gg_receipts_whole(gg_receipts *receipts, int rank, int64_t step) {
    if (step > receipts->last[rank]) receipts->last[rank] = step;
}
