#include "base/available.h"

#include <limits.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { LINE = 4200 }; /* of /proc/self/cgroup: a path and a little */

static FILE *available_open(const char *root, const char *folder, const char *name) {
    char path[2 * LINE];
    const int length = snprintf(path, sizeof path, "%s%s%s", root, folder, name);
    return length > 0 && (size_t)length < sizeof path ? fopen(path, "re") : NULL;
}

/* The number in a file that holds one; SIZE_MAX: there is none, as in "max". */
static size_t number_in(const char *root, const char *folder, const char *name) {
    char line[LINE];
    FILE *file = available_open(root, folder, name);
    unsigned long long value = 0;
    if (file == NULL) return SIZE_MAX;
    const bool found = fgets(line, sizeof line, file) != NULL && sscanf(line, "%llu", &value) == 1;
    fclose(file);
    return found ? (size_t)value : SIZE_MAX;
}

/* The number behind a key, at the beginning of a line; SIZE_MAX: there is none. */
static size_t number_after(const char *root, const char *folder, const char *name, const char *key) {
    char line[LINE];
    FILE *file = available_open(root, folder, name);
    size_t found = SIZE_MAX;
    unsigned long long value = 0;
    const size_t length = strlen(key);
    if (file == NULL) return SIZE_MAX;
    while (found == SIZE_MAX && fgets(line, sizeof line, file) != NULL) {
        if (strncmp(line, key, length) == 0 && sscanf(line + length, " %llu", &value) == 1) found = (size_t)value;
    }
    fclose(file);
    return found;
}

/* Memory that one control group leaves. Files that were read and are not in use can be dropped: they count as free. */
static size_t left_in_group(const char *root, const char *folder, const char *limit, const char *usage,
                            const char *cache) {
    const size_t most = number_in(root, folder, limit), used = number_in(root, folder, usage);
    size_t files = number_after(root, folder, "/memory.stat", cache);
    if (most == SIZE_MAX || used == SIZE_MAX) return SIZE_MAX;
    if (files == SIZE_MAX || files > used) files = 0;
    return most > used - files ? most - (used - files) : 0;
}

static size_t least(size_t a, size_t b) { return a < b ? a : b; }

/* The group of a path and those above it: each one's limit holds. */
static size_t left_in_groups(const char *root, const char *mount, const char *path, bool second) {
    char folder[2 * LINE];
    size_t left = SIZE_MAX;
    const int length = snprintf(folder, sizeof folder, "%s%s", mount, path);
    if (length < 0 || (size_t)length >= sizeof folder) return SIZE_MAX;
    while (true) {
        left = least(left, second ? left_in_group(root, folder, "/memory.max", "/memory.current", "inactive_file")
                                  : left_in_group(root, folder, "/memory.limit_in_bytes", "/memory.usage_in_bytes",
                                                  "total_inactive_file"));
        char *slash = strrchr(folder, '/');
        if (slash == NULL || (size_t)(slash - folder) < strlen(mount)) return left;
        *slash = '\0';
    }
}

/* Lines of /proc/self/cgroup are "0::/path" for version 2 and "4:memory:/path" for version 1. */
static size_t left_by_groups(const char *root) {
    char line[LINE];
    FILE *file = available_open(root, "/proc/self/cgroup", "");
    size_t left = SIZE_MAX;
    if (file == NULL) return SIZE_MAX;
    while (fgets(line, sizeof line, file) != NULL) {
        line[strcspn(line, "\n")] = '\0';
        char *names = strchr(line, ':'), *path = names != NULL ? strchr(names + 1, ':') : NULL;
        if (path == NULL) continue;
        *path++ = '\0';
        if (strcmp(path, "/") == 0) path = "";
        if (names[1] == '\0') left = least(left, left_in_groups(root, "/sys/fs/cgroup", path, true));
        else if (strstr(names, "memory") != NULL)
            left = least(left, left_in_groups(root, "/sys/fs/cgroup/memory", path, false));
    }
    fclose(file);
    return left;
}

size_t gg_memory_available(const char *root) {
    if (root == NULL) root = "";
    const size_t kib = number_after(root, "/proc/meminfo", "", "MemAvailable:");
    const size_t machine = kib > SIZE_MAX / 1024 ? SIZE_MAX : 1024 * kib;
    return least(machine, left_by_groups(root));
}

const char *gg_bytes_text(size_t bytes, char text[GG_BYTES_TEXT]) {
    static const char *const units[] = {"bytes", "KiB", "MiB", "GiB", "TiB", "PiB", "EiB"};
    double value = (double)bytes;
    int unit = 0;
    while (value >= 1024) {
        value /= 1024;
        unit++;
    }
    snprintf(text, GG_BYTES_TEXT, unit == 0 ? "%.0f %s" : "%.1f %s", value, units[unit]);
    return text;
}

gg_status gg_memory_check(size_t bytes, const char *what, const char *advice) {
    char wanted[GG_BYTES_TEXT], left[GG_BYTES_TEXT];
    const size_t available = gg_memory_available(NULL);
    if (bytes <= available) return GG_OK;
    return gg_fail(GG_ERROR_MEMORY, "%s needs %s (%zu bytes) of memory, but %s (%zu bytes) are available; %s", what,
                   gg_bytes_text(bytes, wanted), bytes, gg_bytes_text(available, left), available, advice);
}
