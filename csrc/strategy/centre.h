/* Private to the room: strategies whose workers share a centre, weights that lie on servers.
 *
 * A worker asks: it sends a message for each chunk of a bucket to the chunk's server. The server updates the centre
 * with it and sends an answer, which the worker applies before it uses the bucket's layers again. No worker waits for
 * another one: a server answers in its polls and, as its transport's service, during every wait, and each chunk's
 * messages in the order of their arrival. The strategy's rule says what asking, answering and applying an answer
 * compute.
 *
 * Where the codec is not exact the messages are differences to a base. Each worker has its base, and the server has a
 * copy of every worker's base; both have the same bits whenever no message is in flight. The worker sends the rounded
 * difference between its weights and its base, and adds it to the base. The answer is the rounded change that the rule
 * gives the worker; it is added to the weights, the base and the server's copy. So a rounding error is part of the next
 * difference, and nothing is lost. After settling, when weights may have been loaded, the workers first send the
 * servers their weights as float32. To a server on its own rank a worker sends without rounding.
 *
 * The last `servers` ranks are the servers, and the centre is cut among them into runs of chunks of about equal size.
 * They train as well, or, if dedicated, only serve. Answers are sent from plain memory: message memory is collective,
 * and would cost every rank what only servers need. */
#ifndef GG_STRATEGY_CENTRE_H
#define GG_STRATEGY_CENTRE_H

#include "strategy/stream.h"

typedef struct gg_centre gg_centre;

/* Elements that a server works on at a time: they stay in the first cache. */
#define GG_CENTRE_PIECE ((size_t)2048)

/* All on n elements; a worker's are those from `at` on in its arenas. Buffers do not overlap, except where noted. */
typedef struct gg_centre_rule {
    gg_strategy_table table;
    /* Workers have a base, the weights of the last answer, also with an exact codec; settling sends what has been
     * trained since. */
    bool accumulates;
    void (*ask)(gg_centre *centre, size_t at, size_t n, float *message);
    void (*answer)(gg_centre *centre, size_t n, float *weight, const float *message,
                   float *answer); /* answer may be the message */
    void (*apply)(gg_centre *centre, size_t at, size_t n, const float *answer);
    /* The same as answer, n <= GG_CENTRE_PIECE, where messages are differences, as they travel: known is the server's
     * copy of the worker's base. It adds message and answer to it. */
    void (*answer_difference)(gg_centre *centre, size_t n, float *weight, float *known, const void *message,
                              void *answer);
} gg_centre_rule;

struct gg_centre {
    gg_strategy head;
    const gg_centre_rule *rule;
    gg_buckets buckets;
    const gg_codec *codec;
    int64_t period; /* steps from one asking to the next */
    float alpha;
    int workers, servers;
    bool stepped;    /* there was a step since the last settling */
    bool unreported; /* the last steps have not been sent to the centre */
    gg_flight *flight;

    /* A worker's. */
    float *message; /* message memory; a chunk whose elements travel shorter uses the first part of its place */
    void *landing;  /* count elements as they travel */
    float *base;    /* NULL: not needed */
    gg_request *asked, *answered; /* one a chunk */
    int *next;                    /* a bucket: the first chunk whose answer is still to be applied; end_chunk: none */

    /* A server's: chunks [first_chunk, end_chunk), elements [begin, begin + count). */
    int first_chunk, end_chunk;
    size_t begin, count;
    float *weight; /* the centre */
    void *room;    /* count elements a worker, as they travel: its message where it cannot be read in place, then its
                      answer */
    float *known;  /* count elements a worker: its base; NULL: not needed */
    gg_request *served; /* one a chunk and worker: a message is awaited, then an answer is sent, and so on */
};

/* The functions of a rule's table, but for its name. */
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

/* Of strategies with servers: the options' check, and how many ranks train (gg_strategy_type). */
gg_status gg_centre_check(const gg_strategy_options *options, int ranks);
int gg_centre_workers(const gg_strategy_options *options, int ranks);
/* Collective; the options are checked. alpha: for the rule. */
gg_status gg_centre_create(const gg_centre_rule *rule, float alpha, const gg_strategy_options *options,
                           const gg_strategy_env *env, gg_strategy **out);

/* out = a + scale*b; out may be a or b. */
void gg_add_scaled(gg_device *device, size_t n, const float *a, float scale, const float *b, float *out);
/* out = scale*(a - b); out may be a or b. */
void gg_scaled_difference(gg_device *device, size_t n, float scale, const float *a, const float *b, float *out);
/* out = scale*(to - base), as it travels; base += out. So the rounding error is part of the next difference. */
void gg_centre_difference(const gg_centre *centre, size_t n, float scale, const float *to, float *base, void *out);

#endif
