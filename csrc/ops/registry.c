#include "ops/registry.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { MAX_KINDS = 8, MAX_DIGITS = 9 };

static const gg_device_kind *kinds[MAX_KINDS];
static int kind_count;

void gg_registry_add(const gg_device_kind *kind) {
    for (int i = 0; i < kind_count; ++i) {
        if (strcmp(kinds[i]->name, kind->name) != 0) continue;
        kinds[i] = kind;
        return;
    }
    if (kind_count < MAX_KINDS) kinds[kind_count++] = kind;
}

static const gg_device_kind *named(const char *name, size_t length) {
    for (int i = 0; i < kind_count; ++i)
        if (strlen(kinds[i]->name) == length && strncmp(kinds[i]->name, name, length) == 0) return kinds[i];
    return NULL;
}

/* The names of all kinds, and which of them the machine has not. */
static void allowed_names(char *text, size_t bytes) {
    size_t at = 0;
    text[0] = '\0';
    for (int i = 0; i < kind_count && at < bytes; ++i) {
        int count = 1;
        if (kinds[i]->count != NULL && kinds[i]->count(&count) != GG_OK) count = 0;
        at += (size_t)snprintf(text + at, bytes - at, "%s%s%s", at > 0 ? ", " : "", kinds[i]->name,
                               count > 0 ? "" : " (not here)");
    }
}

static gg_status read_number(const char *name, const gg_device_kind *kind, const char *digits, int count, int *out) {
    if (kind->count == NULL)
        return gg_fail(GG_ERROR_ARGUMENT, "device: '%s'; there is one '%s', without a number", name, kind->name);
    if (*digits == '\0' || strlen(digits) > MAX_DIGITS || strspn(digits, "0123456789") != strlen(digits))
        return gg_fail(GG_ERROR_ARGUMENT, "device: '%s'; behind the colon is the number of a device, as in '%s:0'",
                       name, kind->name);
    *out = (int)strtol(digits, NULL, 10);
    if (*out >= count)
        return gg_fail(GG_ERROR_ARGUMENT, "device: '%s'; the machine has %d of these, numbered from 0 on", name, count);
    return GG_OK;
}

gg_status gg_registry_find(const char *name, const gg_device_kind **kind, int *number) {
    char allowed[128], why[768];
    int count = 1;
    const size_t length = strcspn(name, ":");
    const gg_device_kind *found = named(name, length);
    *number = 0;
    if (found == NULL) {
        allowed_names(allowed, sizeof allowed);
        return gg_fail(GG_ERROR_ARGUMENT, "device: '%s'; allowed are %s", name, allowed);
    }
    if (found->count != NULL && found->count(&count) != GG_OK) {
        (void)snprintf(why, sizeof why, "%s", gg_error_message());
        allowed_names(allowed, sizeof allowed);
        return gg_fail(GG_ERROR_ARGUMENT, "device: '%s': %s; allowed are %s", name, why, allowed);
    }
    if (name[length] == ':') GG_TRY(read_number(name, found, name + length + 1, count, number));
    *kind = found;
    return GG_OK;
}

/* A device in the host's memory beside one that has its own. */
static gg_status open_host(const gg_devices_options *options, gg_device **out) {
    gg_devices made = {0};
    gg_devices_options own = *options;
    own.backend = "native";
    own.dtype = GG_FLOAT32;
    GG_TRY(gg_devices_open("cpu", &own, &made));
    *out = made.device;
    return GG_OK;
}

gg_status gg_devices_open(const char *name, const gg_devices_options *options, gg_devices *out) {
    gg_status status = GG_OK;
    const gg_device_kind *kind = kinds[0];
    gg_devices_options own = *options;
    *out = (gg_devices){0};
    if (own.backend == NULL) own.backend = "auto";
    GG_TRY_CLEANUP(gg_registry_find(name, &kind, &own.device.number));
    GG_TRY_CLEANUP(kind->open(&own, out));
    if (out->device->table->memory != out->first->table->memory)
        GG_FAIL_CLEANUP(GG_ERROR_BACKEND, "device: '%s': tables '%s' and '%s' have different memories", name,
                        out->device->table->name, out->first->table->name);
    if (gg_device_is_separate(out->device)) GG_TRY_CLEANUP(open_host(options, &out->host));
    else out->host = out->device;
    (void)snprintf(out->tables, sizeof out->tables, "%s%s%s", out->first->table->name, out->choose ? "+" : "",
                   out->choose ? out->device->table->name : "");
cleanup:
    if (status != GG_OK) gg_devices_close(out);
    return status;
}

void gg_devices_close(gg_devices *devices) {
    gg_device *const all[] = {devices->host, devices->first, devices->device};
    for (int i = 0; i < 3; ++i) {
        bool open = all[i] != NULL;
        for (int other = i + 1; other < 3; ++other) open = open && all[i] != all[other];
        if (open) all[i]->table->close(all[i]);
    }
    *devices = (gg_devices){0};
}
