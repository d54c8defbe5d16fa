#include "data/source.h"

#include <stddef.h>

void gg_source_init(gg_source *source, const gg_source_table *table) {
    source->table = table;
    atomic_init(&source->references, 1);
    source->ordered = false;
    source->readers = 1;
    source->ahead = 2;
}

void gg_source_retain(gg_source *source) { atomic_fetch_add(&source->references, 1); }

void gg_source_release(gg_source *source) {
    if (source != NULL && atomic_fetch_sub(&source->references, 1) == 1) source->table->destroy(source);
}
