#include "train/outstanding.h"

#include "comm/device_order.h"

gg_status gg_outstanding_create(gg_device *device, gg_transport *transport, gg_outstanding *out) {
    *out = (gg_outstanding){.device = device, .transport = transport};
    GG_TRY(gg_device_alloc_host(device, GG_MAX_OUTSTANDING * GG_MAX_FIELDS * sizeof *out->memory, "losses of steps",
                                &out->memory));
    for (int i = 0; i < GG_MAX_OUTSTANDING; ++i) out->place[i].sums = out->memory + i * GG_MAX_FIELDS;
    return GG_OK;
}

void gg_outstanding_clear(gg_outstanding *o) {
    if (o->device != NULL) gg_device_free_host(o->device, o->memory);
    *o = (gg_outstanding){0};
}

gg_outstanding_step *gg_outstanding_next(gg_outstanding *o) {
    return &o->place[(o->first + o->count) % GG_MAX_OUTSTANDING];
}

void gg_outstanding_add(gg_outstanding *o) { ++o->count; }

gg_status gg_outstanding_read(gg_outstanding *o, int most, const gg_outstanding_step **out) {
    const gg_outstanding_step *oldest = &o->place[o->first];
    *out = NULL;
    if (o->count == 0 || (o->count <= most && !gg_device_reached(o->device, oldest->report))) return GG_OK;
    GG_TRY(gg_device_attend(o->transport, o->device, oldest->report));
    o->first = (o->first + 1) % GG_MAX_OUTSTANDING;
    --o->count;
    *out = oldest;
    return gg_error_prefix(gg_device_check_report(o->device, oldest->report), "step %lld: ", (long long)oldest->step);
}
