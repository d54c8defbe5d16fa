/* Private to the centre's files: centre.c is the strategy and the worker, centre_server.c the server, centre_messages.c
 * the contents and lengths of messages. */
#ifndef GG_EXCHANGE_PARTS_CENTRE_PRIVATE_H
#define GG_EXCHANGE_PARTS_CENTRE_PRIVATE_H

#include "exchange/parts/centre.h"

/* ---- messages ---- */

/* True if messages are differences to a base: unsent values are part of the next ones. */
bool gg_centre_sends_differences(const gg_centre *centre);
/* The parameters of a chunk, with offsets from its first element. whole: all travel dense. */
const gg_segment *gg_centre_segments(const gg_centre *centre, int chunk, bool whole, int *count);
/* True if every element travels in a packed message: its segments are the whole ones. */
bool gg_centre_says_all(const gg_centre *centre, int chunk, const void *message, size_t bytes);
/* Max bytes of a chunk's message; the exact bytes if it is not packed. */
size_t gg_centre_capacity(const gg_centre *centre, int chunk);
gg_status gg_centre_receive(gg_centre *centre, int chunk, void *landing, int peer, gg_request *request);
/* Makes the segments and the packing for compression. The buckets exist. */
gg_status gg_centre_make_packing(gg_centre *centre);
gg_status gg_centre_place_messages(gg_centre *centre);
/* Adds a bucket's layers to the error of a message. */
gg_status gg_centre_at_bucket(const gg_centre *centre, int bucket, gg_status status);
/* Allocates memory where messages land and answers are made; the host writes and reads packed ones. Freed by
 * gg_device_free_host. */
gg_status gg_centre_alloc_messages(const gg_centre *centre, size_t bytes, const char *what, char **out);

/* ---- servers ---- */

int gg_centre_first_server(const gg_centre *centre);
/* The server that owns the chunk's middle, if every server owns an equal part. */
int gg_centre_server_of(const gg_centre *centre, int chunk);
/* The elements that a server owns: chunks [*first, *end), from element *begin on. Returns their number. */
size_t gg_centre_part_of(const gg_centre *centre, int server, int *first, int *end, size_t *begin);
gg_status gg_centre_make_server(gg_centre *centre);
/* Changes the centre by a message about a chunk, and makes the answer, which may replace the message. worker: the
 * asking rank. If it is this rank, nothing travels and nothing is rounded. *bytes: the message's, then the answer's. */
gg_status gg_centre_change(gg_centre *centre, int chunk, int worker, const void *message, void *answer, size_t *bytes);
/* gg_service.serve: answers arrived messages. */
gg_status gg_centre_serve(void *centre, bool *busy);
/* Waits until all workers have received their answers: a send still open at the strategy's end would be cancelled.
 * Messages of the workers' next step are answered afterwards. */
gg_status gg_centre_complete_answers(gg_centre *centre);

#endif
