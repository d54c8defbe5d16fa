/* Shared by the files of this folder. */
#ifndef GG_COMM_NET_NET_PRIVATE_H
#define GG_COMM_NET_NET_PRIVATE_H

#include <stdatomic.h>

#include "comm/net/net.h"

/* ---- streams (net_stream.c) ---- */

/* The counters never decrease; each has one writer, and a cache line. */
typedef struct gg_net_ring {
    _Alignas(64) _Atomic uint64_t written;
    _Alignas(64) _Atomic uint64_t read;
    _Alignas(64) unsigned char data[];
} gg_net_ring;

typedef enum gg_net_kind {
    GG_NET_BYTES = 1, /* the message follows */
    GG_NET_PLACE      /* the message lies in the node's memory */
} gg_net_kind;

/* Begins each message. */
typedef struct gg_net_frame {
    uint32_t kind, channel;
    int32_t tag;
    uint32_t slot; /* PLACE: where the receiver acknowledges */
    int64_t epoch;
    uint64_t bytes;  /* of the message */
    uint64_t offset; /* PLACE: in the node's memory */
} gg_net_frame;

/* A message that arrived before its receive. */
typedef struct gg_net_stored {
    struct gg_net_stored *next;
    gg_net_frame frame;
    bool whole, given_up;
    size_t room;
    unsigned char *bytes;
} gg_net_stored;

/* A request's private words. */
typedef struct __attribute__((may_alias)) gg_net_link {
    gg_request *next;
    gg_net_stored *stored; /* of a receive: its message, if that was stored */
    uint64_t offset;
    uint64_t bytes; /* sends: written so far, with the frame; receives: of the message */
    int64_t epoch;  /* of the message */
    uint32_t channel, slot;
    bool described; /* the message lies in the node's memory */
    bool whole;     /* sends: written; receives: arrived */
    bool matched;   /* receives: a message has begun */
    bool owned;     /* sends: a cancelled request's rest, owned by the link */
} gg_net_link;

_Static_assert(sizeof(gg_net_link) <= sizeof((gg_request *)0)->private_, "gg_net_link must fit");

static inline gg_net_link *gg_net_link_of(gg_request *request) { return (gg_net_link *)request->private_; }

/* Seconds: a rank that fails closes its sockets before its starter, which ends all and tells why, has reaped it. */
#define GG_NET_GRACE 1.0

/* Another rank. */
typedef struct gg_net_peer {
    int rank, place; /* place -1: of another node */
    int socket;
    _Atomic int arriving; /* gg_net_arrive's socket + 1, not yet taken; 0 means none */
    gg_net_ring *out, *in;
    bool gone, died;                /* died: gg_net_transport_died */
    double fails_at;                /* gone: waits for it fail from this time on */
    gg_request *sends, *sends_last; /* not wholly written */
    /* The message that arrives: */
    gg_net_frame frame;
    size_t frame_got, got;
    unsigned char *to; /* NULL: nobody wants its bytes */
    gg_request *receive;
    gg_net_stored *stored;
    /* Receives without a message, and messages without a receive: */
    gg_request *receives, *receives_last;
    gg_net_stored *unasked, *unasked_last;
} gg_net_peer;

typedef struct gg_net_channel {
    struct gg_net_channel *next;
    uint32_t number;
    int64_t oldest; /* messages of earlier epochs are dropped: they belong to calls that a death has broken */
} gg_net_channel;

/* What the ranks of a node write about themselves, and what is written of them. */
typedef struct gg_net_board {
    _Alignas(64) _Atomic uint32_t ended; /* GG_NET_ENDED */
    _Atomic int64_t channel, begun;      /* steps begun in the last channel that had steps */
} gg_net_board;

#define GG_NET_TAG_VOTE (GG_TAG_LIMIT + 1)
#define GG_NET_TAG_GREETING (GG_TAG_LIMIT + 2)
#define GG_NET_TAG_MAX GG_NET_TAG_GREETING
#define GG_NET_SLOTS 1024 /* acknowledgements of a rank */

typedef struct gg_net_block {
    struct gg_net_block *next; /* behind it */
    size_t begin, end;         /* in the rank's heap */
    bool spare;                /* freed, and kept for reuse (gg_message_recycle) */
} gg_net_block;

struct gg_net {
    int rank, size, members, places, place;
    int *node_of;
    gg_net_peer *peers; /* one a rank; this rank's own is unused */
    gg_net_channel *channels;
    uint32_t next_channel;
    int sockets, poll; /* poll: of epoll; -1 without sockets */
    gg_net_stored *spare;
    int quiet; /* rounds of waits since bytes were last read or written */
    /* The node's memory: boards, slots, rings, heaps. */
    int memory;
    unsigned char *base;
    size_t bytes, slots_at, rings_at, heaps_at, ring_bytes, heap_bytes;
    gg_net_block *blocks;
    bool recycles;
    uint32_t free_slots[GG_NET_SLOTS];
    int free_count;
};

/* Writes a part of both, as much as fits; 0 if the link is full or gone. */
size_t gg_net_write(gg_net *net, gg_net_peer *peer, const void *first, size_t first_bytes, const void *second,
                    size_t second_bytes);
/* Reads at most `bytes`; 0 if nothing is there. */
size_t gg_net_read(gg_net *net, gg_net_peer *peer, void *to, size_t bytes);
/* The one place where a rank counts as gone. */
void gg_net_lose(gg_net *net, gg_net_peer *peer);
/* True if the rank's process has been reaped: what it wrote before is in the ring. */
bool gg_net_has_ended(const gg_net *net, const gg_net_peer *peer);

/* ---- messages (net_match.c) ---- */

void gg_net_list(gg_request **first, gg_request **last, gg_request *request);
void gg_net_unlist(gg_request **first, gg_request **last, gg_request *request); /* not in it: a no-op */
/* A frame has come: finds what receives its bytes. */
gg_status gg_net_message_begins(gg_net *net, gg_net_peer *peer);
void gg_net_message_ends(gg_net *net, gg_net_peer *peer);
/* Takes out the oldest message of the channel and tag that no receive has asked for; NULL: there is none, or it must be
 * whole and is not. */
gg_net_stored *gg_net_take(gg_net_peer *peer, uint32_t channel, int tag, bool whole);
/* Drops the channel's messages of epochs before its oldest one. */
void gg_net_drop_old(gg_net *net, const gg_net_channel *channel);
void gg_net_drop_stored(gg_net *net, gg_net_stored *stored);
/* Drops the channel's messages that no receive has asked for. */
void gg_net_forget_channel(gg_net *net, uint32_t channel);

/* Of requests, whose private words have the channel and are otherwise zero: */
void gg_net_receive(gg_net_peer *peer, gg_request *request);
bool gg_net_is_done(gg_net *net, const gg_request *request, const gg_net_link *link);
void gg_net_release(gg_net *net, gg_net_peer *peer, gg_request *request);
void gg_net_cancel(gg_net *net, gg_net_peer *peer, gg_request *request);

/* ---- links (net.c) ---- */

/* Writes and reads what can be written and read now, of all links. */
gg_status gg_net_progress(gg_net *net);
/* As gg_net_receive; copy: never as a place. */
gg_status gg_net_send(gg_net *net, gg_net_peer *peer, gg_request *request, bool copy);
/* Sends a copy of these bytes, which nobody waits for. */
gg_status gg_net_post(gg_net *net, gg_net_peer *peer, uint32_t channel, int tag, int64_t epoch, const void *data,
                      size_t bytes);

/* ---- the node's memory (net_memory.c) ---- */

gg_status gg_net_memory_open(gg_net *net, const gg_net_options *options);
void gg_net_memory_close(gg_net *net);
gg_net_board *gg_net_board_of(const gg_net *net, int place);
gg_net_ring *gg_net_ring_of(const gg_net *net, int from, int to);
/* Zeroed message memory; NULL in *out: the caller allocates. */
gg_status gg_net_heap_alloc(gg_net *net, size_t bytes, void **out);
bool gg_net_heap_free(gg_net *net, const void *block); /* false: not of the heap */
void gg_net_heap_recycle(gg_net *net, bool on);        /* gg_message_recycle */
/* True: the message is sent as a place, and holds a slot until the receiver has released it. */
bool gg_net_describe(gg_net *net, const gg_net_peer *peer, const void *data, size_t bytes, gg_net_link *link);
void gg_net_free_slot(gg_net *net, uint32_t slot); /* nobody will acknowledge it */
bool gg_net_acknowledged(gg_net *net, uint32_t slot);
void gg_net_acknowledge(gg_net *net, const gg_net_peer *peer, uint32_t slot);
/* NULL: outside of that rank's heap. */
const void *gg_net_locate(const gg_net *net, const gg_net_peer *peer, const gg_net_frame *frame);

#endif
