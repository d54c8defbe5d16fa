/* Private to the centre's files: centre.c is the strategy and what a worker does, centre_server.c what a server does,
 * centre_messages.c what messages say and how long they are. */
#ifndef GG_EXCHANGE_PARTS_CENTRE_PRIVATE_H
#define GG_EXCHANGE_PARTS_CENTRE_PRIVATE_H

#include "exchange/parts/centre.h"

/* ---- messages ---- */

/* Whether messages are differences to a base: what they do not say is part of the next ones. */
bool gg_centre_sends_differences(const gg_centre *centre);
/* The parameters of a chunk, whose offsets count from its first element. whole: all travel dense. */
const gg_segment *gg_centre_segments(const gg_centre *centre, int chunk, bool whole, int *count);
/* Whether every element travels in a packed message: then it is of the whole segments. */
bool gg_centre_says_all(const gg_centre *centre, int chunk, const void *message, size_t bytes);
/* Of a chunk's message, at most; what is not packed has exactly so many. */
size_t gg_centre_capacity(const gg_centre *centre, int chunk);
gg_status gg_centre_receive(gg_centre *centre, int chunk, void *landing, int peer, gg_request *request);
/* With compression: the segments and what packs them. The buckets are there. */
gg_status gg_centre_make_packing(gg_centre *centre);
gg_status gg_centre_place_messages(gg_centre *centre);
/* Adds a bucket's layers to the error of a message. */
gg_status gg_centre_at_bucket(const gg_centre *centre, int bucket, gg_status status);
/* Memory where messages land and answers are made: packed ones are written and read by the host. Freed by
 * gg_device_free_host. */
gg_status gg_centre_alloc_messages(const gg_centre *centre, size_t bytes, const char *what, char **out);

/* ---- servers ---- */

int gg_centre_first_server(const gg_centre *centre);
/* The server that owns the chunk's middle, if every server owns an equal part. */
int gg_centre_server_of(const gg_centre *centre, int chunk);
/* The elements that a server owns: chunks [*first, *end), from element *begin on. Returns how many. */
size_t gg_centre_part_of(const gg_centre *centre, int server, int *first, int *end, size_t *begin);
gg_status gg_centre_make_server(gg_centre *centre);
/* A message about a chunk changes the centre, and becomes an answer, which may be in its place. worker: the rank that
 * asks. If it is this rank, nothing travels and nothing is rounded. *bytes: the message's, then the answer's. */
gg_status gg_centre_change(gg_centre *centre, int chunk, int worker, const void *message, void *answer, size_t *bytes);
/* gg_service.serve: answers what has arrived. */
gg_status gg_centre_serve(void *centre, bool *busy);
/* All workers have received their answers, which a transport may learn later: a send that is still open where the
 * strategy ends would be cancelled. What others ask meanwhile, in their next step, is answered afterwards. */
gg_status gg_centre_complete_answers(gg_centre *centre);

#endif
