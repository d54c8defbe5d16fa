#include "exchange/parts/packed_messages.h"

#include <string.h>

#include "base/memory.h"
#include "exchange/parts/common.h"

/* Only the filled part of the landing is ever touched: it costs address space and little memory. */
gg_status gg_packed_messages_create(gg_packed_messages *m, size_t capacity, int landings) {
    const size_t p = (size_t)m->group->size;
    m->capacity = capacity;
    m->landings = landings;
    GG_TRY(gg_calloc(p, sizeof *m->sent, "requests", &m->sent));
    GG_TRY(gg_calloc(p, sizeof *m->arrived, "requests", &m->arrived));
    if (capacity == 0) return GG_OK;
    GG_TRY(gg_message_alloc(m->owner->env.transport, capacity, "packed message", &m->own));
    return gg_alloc((size_t)landings * capacity, "landing of packed messages", &m->landing);
}

void gg_packed_messages_destroy(gg_packed_messages *m) {
    gg_message_free(m->owner->env.transport, m->own);
    gg_free(m->landing);
    gg_free(m->sent);
    gg_free(m->arrived);
}

void gg_packed_messages_cancel(gg_packed_messages *m) {
    if (m->arrived == NULL) return;
    gg_cancel_all(m->group, m->sent, m->group->size);
    gg_cancel_all(m->group, m->arrived, m->group->size);
}

/* Peers are visited from the next rank on, so that not all of them send to one. */
gg_status gg_packed_messages_send(gg_packed_messages *m) {
    const int p = m->group->size, rank = m->group->rank;
    for (int i = 1; i < p; ++i) {
        const int to = (rank + i) % p;
        GG_TRY(gg_send(m->group, m->own, m->size, to, m->tag, &m->sent[to]));
    }
    return GG_OK;
}

static char *landing_of(const gg_packed_messages *m, int from) {
    return m->landings > 1 ? m->landing + (size_t)from * m->capacity : m->landing;
}

gg_status gg_packed_messages_receive(gg_packed_messages *m, int from) {
    return gg_receive(m->group, landing_of(m, from), m->capacity, from, m->tag, &m->arrived[from]);
}

gg_status gg_packed_messages_reach(gg_packed_messages *m, int from, bool wait, bool *done, const void **message,
                                   size_t *bytes) {
    const bool own = from == m->group->rank;
    if (!own) GG_TRY(gg_strategy_reach(m->owner, m->group, &m->arrived[from], wait, done));
    if (!*done) return GG_OK;
    *message = own ? m->own : m->arrived[from].data;
    *bytes = own ? m->size : m->arrived[from].bytes;
    return GG_OK;
}

gg_status gg_packed_messages_release(gg_packed_messages *m, int from) {
    return from != m->group->rank ? gg_release(m->group, &m->arrived[from]) : GG_OK;
}

gg_status gg_packed_messages_read(gg_packed_messages *m) {
    bool read = false;
    for (int i = 0; i < m->group->size; ++i) GG_TRY(gg_strategy_reach(m->owner, m->group, &m->sent[i], true, &read));
    return GG_OK;
}
