/* The kinds of devices that this process can open, by name: "cpu", and what else has been added.
 *
 * Kinds are added before the first device is opened, by one thread. A rank opens what it computes with by the name of a
 * kind, or of one of several devices of it: "cuda", "cuda:1". */
#ifndef GG_OPS_REGISTRY_H
#define GG_OPS_REGISTRY_H

#include "ops/backend.h"

typedef struct gg_devices_options {
    gg_device_options device; /* its number is that of the name */
    const char *backend;      /* the kind's table that computes operations; NULL, "auto": the kind chooses */
    gg_dtype dtype;           /* that activations are to have */
} gg_devices_options;

/* What a rank computes with: opened and closed together. All but `host` have the same memory. */
typedef struct gg_devices {
    gg_device *device; /* every entry of its table is filled */
    gg_device *first;  /* is asked first for operations; may be `device` */
    gg_device *host;   /* whose memory is the host's: for what the host prepares; may be `device` */
    bool choose;       /* of `first` and `device`, that which is faster for a batch is asked first */
    char tables[64];   /* the names of those that are used: "native", "onednn+native" */
} gg_devices;

typedef struct gg_device_kind {
    const char *name;
    /* How many the machine has, by numbers from 0 on; a failure says why there are none. NULL: one, without a number.
     */
    gg_status (*count)(int *out);
    /* Fills `device`, `first` and `choose`; gg_devices_open does the rest, and closes what is open if it fails. Checks
     * all options. */
    gg_status (*open)(const gg_devices_options *options, gg_devices *out);
} gg_device_kind;

/* Adds a kind, which stays the caller's, in place of one of the same name. */
void gg_registry_add(const gg_device_kind *kind);
int gg_registry_kinds(void);
const gg_device_kind *gg_registry_kind(int i);
/* The kind and the number of a device's name; GG_ERROR_ARGUMENT says what is allowed. */
gg_status gg_registry_find(const char *name, const gg_device_kind **kind, int *number);

gg_status gg_devices_open(const char *name, const gg_devices_options *options, gg_devices *out);
void gg_devices_close(gg_devices *devices); /* zeros are fine */

#endif
