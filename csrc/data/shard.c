#include "data/data.h"

void gg_shard(int64_t count, int rank, int size, int64_t *begin, int64_t *end) {
    /* The first count mod size ranks hold one sample more. No product of count and rank: it could overflow.
     */
    int64_t each = count / size, more = count % size;
    *begin = rank * each + (rank < more ? rank : more);
    *end = *begin + each + (rank < more);
}
