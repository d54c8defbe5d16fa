/* The kinds of devices that this process can open, by name: "cpu" and added kinds.
 *
 * One thread adds kinds before the first device is opened. A rank opens a device by the name of a kind, or of one of
 * its devices: "cuda", "cuda:1". */
#ifndef GG_OPS_REGISTRY_H
#define GG_OPS_REGISTRY_H

#include "ops/backend.h"

typedef struct gg_devices_options {
    gg_device_options device; /* its number comes from the name */
    const char *backend;      /* the kind's table of operations; NULL or "auto" means that the kind chooses */
    gg_dtype dtype;           /* of activations */
} gg_devices_options;

/* The devices of a rank, opened and closed together. All but `host` share one memory. */
typedef struct gg_devices {
    gg_device *device; /* every entry of its table is filled */
    gg_device *first;  /* asked first for operations; may be `device` */
    gg_device *host;   /* has host memory, for arrays that the host prepares; may be `device` */
    bool choose;       /* ask the faster of `first` and `device` first, by batch */
    char tables[64];   /* names of the used tables: "native", "onednn+native" */
} gg_devices;

typedef struct gg_device_kind {
    const char *name;
    /* Number of devices of the machine, numbered from 0; a failure says why there are none. NULL means one device
     * without a number.
     */
    gg_status (*count)(int *out);
    /* Fills `device`, `first` and `choose`; checks all options. gg_devices_open does the rest, and closes open devices
     * after a failure. */
    gg_status (*open)(const gg_devices_options *options, gg_devices *out);
} gg_device_kind;

/* Adds a kind, which stays the caller's; replaces a kind of equal name. */
void gg_registry_add(const gg_device_kind *kind);
/* The kind and the number of a device's name; GG_ERROR_ARGUMENT names the allowed ones. */
gg_status gg_registry_find(const char *name, const gg_device_kind **kind, int *number);

gg_status gg_devices_open(const char *name, const gg_devices_options *options, gg_devices *out);
void gg_devices_close(gg_devices *devices); /* zeros are fine */

#endif
