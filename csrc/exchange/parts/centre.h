/* Private to the room: strategies whose workers share a centre, weights stored on servers.
 *
 * Protocol of a chunk, after every `period` steps:
 *
 * 1. The worker asks: it sends a message to the chunk's server.
 * 2. The server updates the centre with it and sends an answer.
 * 3. The worker applies the answer before it uses the bucket's layers again.
 *
 * The strategy's rule computes asking, answering and applying. No worker waits for another one: a server answers in its
 * polls and, as its transport's service, during every wait. It takes each chunk's messages in the order of their
 * arrival.
 *
 * If not every element travels exactly, messages are differences to a base. Each worker has its base, and the server
 * has a copy of every worker's base. Both have equal bits whenever no message is in flight. The worker sends the
 * rounded difference between its weights and its base, and adds it to the base. The answer is the rounded change that
 * the rule gives the worker; it is added to the weights, the base and the server's copy. So a rounding error is part of
 * the next difference, and nothing is lost. After settling, weights may have been loaded: the workers first send the
 * servers their weights as float32. To a server on its own rank a worker sends without rounding.
 *
 * With compression the differences travel as packed messages (exchange/codec/packed.h), and unsent values remain a
 * difference. Chunks are whole layers then. The base is an arena, so that a resumed run continues with it. Settling
 * keeps the difference; the arena of the residue shows it. Bases are sent to the servers only after some rank's weights
 * have been loaded.
 *
 * The last `servers` ranks are the servers, and the centre is cut among them into runs of chunks of about equal size.
 * Servers also train, unless dedicated. Answers are sent from plain memory: message memory is collective, and every
 * rank would pay for memory that only servers need. */
#ifndef GG_EXCHANGE_PARTS_CENTRE_H
#define GG_EXCHANGE_PARTS_CENTRE_H

#include "exchange/codec/packed.h"
#include "exchange/parts/stream.h"

typedef struct gg_centre gg_centre;

/* Elements that a server works on at a time: they stay in the L1 cache. */
#define GG_CENTRE_PIECE ((size_t)2048)

/* A run of a chunk's elements with a worker's difference: a piece, or for packed messages the whole chunk. */
typedef struct gg_centre_run {
    int chunk;
    size_t count;
    const void *message;
    void *answer; /* may be the message */
    size_t message_bytes, answer_bytes;
    bool whole; /* packed: every element travels, as the worker's do in the first steps */
} gg_centre_run;

/* Functions on n elements; a worker's elements start at `at` in its arenas. Buffers do not overlap, except where noted.
 */
typedef struct gg_centre_rule {
    gg_strategy_table table;
    /* Workers have a base, the weights of the last answer, even with an exact codec. Settling sends the changes since
     * then. */
    bool accumulates;
    void (*ask)(gg_centre *centre, size_t at, size_t n, float *message);
    void (*answer)(gg_centre *centre, size_t n, float *weight, const float *message,
                   float *answer); /* answer may be the message */
    void (*apply)(gg_centre *centre, size_t at, size_t n, const float *answer);
    /* Replaces answer if messages are differences. known: the server's copy of the worker's base; message and answer
     * are added to it. */
    gg_status (*answer_difference)(gg_centre *centre, gg_centre_run *run, float *weight, float *known);
} gg_centre_rule;

struct gg_centre {
    gg_strategy head;
    const gg_centre_rule *rule;
    gg_buckets buckets;
    const gg_codec *codec;
    int64_t period; /* steps from one asking to the next */
    float alpha;
    int workers, servers;
    bool stepped;      /* a step has been made since the last settling */
    bool unreported;   /* the last steps have not been sent to the centre */
    gg_flight *flight; /* one a bucket */
    size_t *place;     /* one a chunk: where its messages begin, in bytes; after the last chunk: bytes of all */

    /* With compression only: */
    bool packs;
    bool base_known; /* the base belongs to the weights; false after weights were loaded without it */
    bool introduces; /* the servers do not know the base */
    gg_compression compression;
    gg_segments segments, whole; /* of the layout, offsets from their chunks' begin; `whole`: all dense */
    gg_packing packing;
    gg_compression_counts counts;
    float *target; /* one chunk: the values that a base shall take */

    float *piece; /* GG_CENTRE_PIECE elements between two kernels */

    /* A worker's: */
    char *message;                /* message memory */
    char *landing;                /* of answers */
    float *base;                  /* NULL means not needed; with compression an arena */
    gg_request *asked, *answered; /* one a chunk */
    int *next; /* one a bucket: the first chunk whose answer is still to be applied; end_chunk means none */

    /* A server's: chunks [first_chunk, end_chunk), elements [begin, begin + count). */
    int first_chunk, end_chunk;
    size_t begin, count;
    float *weight;      /* the centre */
    char *room;         /* a worker's message that cannot be read in place, then its answer */
    float *known;       /* count elements a worker: its base; NULL means not needed */
    gg_request *served; /* one a chunk and worker: awaits a message, then sends an answer, in turn */
};

/* The functions of a rule's table, without its name. */
gg_status gg_centre_begin(gg_strategy *strategy);
gg_status gg_centre_need(gg_strategy *strategy, int layer);
gg_status gg_centre_ready(gg_strategy *strategy, int layer);
gg_status gg_centre_poll(gg_strategy *strategy);
gg_status gg_centre_end(gg_strategy *strategy);
gg_status gg_centre_settle(gg_strategy *strategy);
void gg_centre_destroy(gg_strategy *strategy);

#define GG_CENTRE_TABLE                                                                                                \
    {                                                                                                                  \
        gg_centre_begin, gg_centre_need, gg_centre_ready, gg_centre_poll, gg_centre_end, gg_centre_settle,             \
            gg_centre_destroy                                                                                          \
    }

/* gg_strategy_type.check and .workers of strategies with servers. */
gg_status gg_centre_check(const gg_strategy_options *options, int ranks);
int gg_centre_workers(const gg_strategy_options *options, int ranks);
/* Collective; the options are checked. alpha: the rule's. */
gg_status gg_centre_create(const gg_centre_rule *rule, float alpha, const gg_strategy_options *options,
                           const gg_strategy_env *env, gg_strategy **out);

/* out = a + scale*b; out may be a or b. */
void gg_add_scaled(gg_device *device, size_t n, const float *a, float scale, const float *b, float *out);
/* out = scale*(a - b); out may be a or b. */
void gg_scaled_difference(gg_device *device, size_t n, float scale, const float *a, const float *b, float *out);
/* out += factor * the values of a message about the run. */
gg_status gg_centre_read(gg_centre *centre, const gg_centre_run *run, const void *message, size_t bytes, float factor,
                         float *out);
/* Writes scale*(to - base) into the answer, rounded or as much as travels, and adds the written values to base. So the
 * rest is part of the next difference. */
gg_status gg_centre_tell(gg_centre *centre, gg_centre_run *run, float scale, const float *to, float *base);

#endif
