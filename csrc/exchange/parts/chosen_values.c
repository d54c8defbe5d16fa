#include "exchange/parts/chosen_values.h"

#include "base/memory.h"
#include "exchange/parts/common.h"
#include "ops/codec.h"

gg_status gg_chosen_create(gg_chosen_values *chosen, size_t most, int tag) {
    const size_t p = (size_t)chosen->group->size;
    const gg_codec *codec = chosen->codec = gg_codec_of(chosen->packing->compression->values);
    gg_transport *transport = chosen->owner->env.transport;
    GG_TRY(gg_message_alloc(transport, most * sizeof *chosen->values, "chosen values", &chosen->values));
    GG_TRY(gg_calloc(p, sizeof *chosen->ones, "shares", &chosen->ones));
    for (size_t i = 0; i < p; ++i) chosen->ones[i] = 1.0f;
    if (!codec->exact)
        GG_TRY(gg_message_alloc(transport, most * codec->size, "chosen values that travel", &chosen->travelling));
    GG_TRY(gg_allreduce_create(chosen->group, chosen->owner->env.device, most, tag,
                               &(gg_allreduce_form){.codec = codec, .memory = chosen->travelling, .exact_sum = true},
                               GG_COLLECTIVES_OWN, &chosen->sum));
    gg_strategy_watch(chosen->owner, chosen->sum);
    return GG_OK;
}

void gg_chosen_destroy(gg_chosen_values *chosen) {
    if (chosen->owner == NULL) return;
    gg_allreduce_destroy(chosen->sum);
    gg_message_free(chosen->owner->env.transport, chosen->travelling);
    gg_message_free(chosen->owner->env.transport, chosen->values);
    gg_free(chosen->ones);
}

gg_status gg_chosen_start(gg_chosen_values *chosen, const void *choice, size_t count, size_t *bytes) {
    gg_device *device = chosen->owner->env.device;
    const gg_codec *codec = chosen->codec;
    const size_t padded = (count + GG_LANES - 1) / GG_LANES * GG_LANES;
    void *values = chosen->travelling != NULL ? chosen->travelling : chosen->values;
    gg_pack_values(chosen->packing, choice, codec->dtype, chosen->residue, values);
    gg_device_zero(device, GG_QUEUE_COMPUTE, (char *)values + count * codec->size, (padded - count) * codec->size);
    if (chosen->applied != NULL)
        gg_unpack_values_add(chosen->packing, choice, codec->dtype, values, 1.0f, chosen->applied);
    if (chosen->travelling != NULL) codec->decode(device, padded, values, chosen->values);
    *bytes += padded * codec->size;
    return gg_allreduce_start_some(chosen->sum, chosen->values, padded, chosen->ones);
}

gg_status gg_chosen_advance(gg_chosen_values *chosen, const void *choice, float *data, bool wait, bool *done) {
    *done = true;
    if (wait) GG_TRY(gg_allreduce_wait(chosen->sum));
    else GG_TRY(gg_allreduce_poll(chosen->sum, done));
    if (*done) gg_unpack_values_add(chosen->packing, choice, GG_FLOAT32, chosen->values, 1.0f, data);
    return GG_OK;
}

gg_status gg_chosen_finish(gg_chosen_values *chosen) {
    return chosen->sum == NULL ? GG_OK : gg_allreduce_finish(chosen->sum);
}

void gg_chosen_cancel(gg_chosen_values *chosen) { gg_allreduce_cancel(chosen->sum); }
