#include "comm/virtual/heap.h"

bool gg_heap_earlier(const gg_heap_entry *a, const gg_heap_entry *b) {
    return a->key < b->key || (a->key == b->key && a->rank < b->rank);
}

static void heap_put(gg_heap *h, int place, gg_heap_entry *e) {
    h->entries[place] = e;
    e->place = place;
}

static void heap_sift(gg_heap *h, int place) {
    gg_heap_entry **entries = h->entries, *e = entries[place];
    while (place > 0 && gg_heap_earlier(e, entries[(place - 1) / 2])) {
        heap_put(h, place, entries[(place - 1) / 2]);
        place = (place - 1) / 2;
    }
    for (int child; (child = 2 * place + 1) < h->size; place = child) {
        if (child + 1 < h->size && gg_heap_earlier(entries[child + 1], entries[child])) child++;
        if (!gg_heap_earlier(entries[child], e)) break;
        heap_put(h, place, entries[child]);
    }
    heap_put(h, place, e);
}

void gg_heap_push(gg_heap *h, gg_heap_entry *e, double key) {
    e->key = key;
    heap_put(h, h->size++, e);
    heap_sift(h, e->place);
}

void gg_heap_remove(gg_heap *h, gg_heap_entry *e) {
    int place = e->place;
    gg_heap_entry *last = h->entries[--h->size];
    e->place = -1;
    if (last == e) return;
    heap_put(h, place, last);
    heap_sift(h, place);
}
