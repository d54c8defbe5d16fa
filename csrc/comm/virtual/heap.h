/* A min-heap of ranks by (key, rank). Private to the room. Allocates nothing. */
#ifndef GG_COMM_VIRTUAL_HEAP_H
#define GG_COMM_VIRTUAL_HEAP_H

#include <stdbool.h>

typedef struct gg_heap_entry {
    double key;
    int place; /* -1 means not in the heap */
    int rank;
} gg_heap_entry;

typedef struct gg_heap {
    gg_heap_entry **entries; /* the owner's, with room for all entries; the first is the minimum */
    int size;
} gg_heap;

bool gg_heap_earlier(const gg_heap_entry *a, const gg_heap_entry *b);

/* push takes an entry outside of the heap, remove an entry inside. */
void gg_heap_push(gg_heap *h, gg_heap_entry *e, double key);
void gg_heap_remove(gg_heap *h, gg_heap_entry *e);

#endif
