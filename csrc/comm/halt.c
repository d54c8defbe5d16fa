#include "comm/halt.h"

#include "base/memory.h"

struct gg_halt {
    gg_halt_wire wire;
    void *context;
    int rank, size;
    int64_t round;     /* number of the last round that has begun */
    bool begun;        /* and has not ended */
    bool told;         /* this rank's limit, which `next` then stays */
    int64_t next;      /* the step that it trains to */
    int64_t most;      /* the greatest limit that is known, */
    int known;         /* number of known limits */
    gg_halt_limit own; /* the wire may read it until it is idle */
};

gg_status gg_halt_create(int rank, int size, const gg_halt_wire *wire, void *context, gg_halt **out) {
    *out = NULL;
    GG_TRY(gg_calloc(1, sizeof **out, "where ranks stop", out));
    **out = (gg_halt){.wire = *wire, .context = context, .rank = rank, .size = size};
    return GG_OK;
}

bool gg_halt_destroy(gg_halt *halt, bool touch) {
    bool idle = true;
    if (halt == NULL) return true;
    if (touch) {
        gg_halt_end(halt);
        if (gg_halt_idle(halt, &idle) != GG_OK) idle = false;
    } else {
        idle = !halt->told || halt->wire.is_idle == NULL;
    }
    if (idle) gg_free(halt);
    return idle;
}

int64_t gg_halt_round(const gg_halt *halt) { return halt->round; }

void gg_halt_begin(gg_halt *halt, int64_t round, int64_t step) {
    halt->round = round;
    halt->begun = true;
    halt->told = false;
    halt->next = halt->most = step;
    halt->known = 0;
}

void gg_halt_end(gg_halt *halt) { halt->begun = false; }

static void learn(gg_halt *halt, int64_t step) {
    halt->known++;
    if (step > halt->most) halt->most = step;
}

static gg_status tell(gg_halt *halt) {
    halt->told = true;
    halt->own = (gg_halt_limit){.round = halt->round, .step = halt->next};
    learn(halt, halt->next);
    return halt->wire.tell(halt->context, &halt->own);
}

gg_status gg_halt_listen(gg_halt *halt) {
    gg_halt_limit other;
    bool heard = false;
    if (halt == NULL) return GG_OK;
    for (;;) {
        GG_TRY(halt->wire.hear(halt->context, &other, &heard));
        if (!heard) break;
        if (halt->begun && other.round == halt->round) learn(halt, other.step);
    }
    if (halt->begun && halt->known > 0 && !halt->told) GG_TRY(tell(halt));
    return GG_OK;
}

gg_status gg_halt_idle(gg_halt *halt, bool *idle) {
    *idle = true;
    GG_TRY(gg_halt_listen(halt));
    return halt->wire.is_idle != NULL ? halt->wire.is_idle(halt->context, idle) : GG_OK;
}

gg_status gg_halt_look(gg_halt *halt, int64_t next, bool want) {
    if (!halt->told) halt->next = next;
    GG_TRY(gg_halt_listen(halt));
    if (want && halt->begun && !halt->told) GG_TRY(tell(halt));
    return GG_OK;
}

bool gg_halt_waits(const gg_halt *halt, int64_t step) {
    return halt->told && halt->known < halt->size && step >= halt->next;
}

int64_t gg_halt_until(const gg_halt *halt, int64_t next) {
    const int64_t end = halt->known < halt->size ? halt->next : halt->most;
    return halt->told && end < next ? end : next;
}
