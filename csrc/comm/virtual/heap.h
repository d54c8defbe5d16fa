/* A heap of ranks by (key, rank): the least is first. Private to the room. It allocates nothing. */
#ifndef GG_COMM_VIRTUAL_HEAP_H
#define GG_COMM_VIRTUAL_HEAP_H

#include <stdbool.h>

typedef struct gg_heap_entry {
    double key;
    int place; /* -1: not in it */
    int rank;
} gg_heap_entry;

typedef struct gg_heap {
    gg_heap_entry **entries; /* the owner's, with room for all that may ever be in it; the first is the least */
    int size;
} gg_heap;

bool gg_heap_earlier(const gg_heap_entry *a, const gg_heap_entry *b);

/* push: an entry that is not in the heap; remove: one that is. */
void gg_heap_push(gg_heap *h, gg_heap_entry *e, double key);
void gg_heap_remove(gg_heap *h, gg_heap_entry *e);

#endif
