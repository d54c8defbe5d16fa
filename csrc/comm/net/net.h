/* The transport between processes that no MPI starts: rings in shared memory between ranks of a node, sockets between
 * nodes.
 *
 * One gg_net a process has the links to all other ranks. Each transport over it is a channel: its number is in every
 * frame. A link is a stream of bytes in both directions: a ring with one writer and one reader, or a socket. A message
 * is a frame and its bytes, or a frame alone that says where in the node's memory the bytes lie (net_memory.c). A
 * receive takes the oldest message of its channel, rank and tag. A message that no receive has asked for is read into
 * memory of its own, so that links never stop. That memory is reused, not bounded.
 *
 * Whoever starts the ranks makes the node's memory and the sockets (gossipgrad/launch/net.py), and sets GG_NET_ENDED
 * there when it has reaped a rank. A rank is gone when that is set or its socket has ended. Messages that had arrived
 * whole stay readable; waits for others fail and name the rank. One thread a process.
 *
 * Ranks that are not there from the start are newcomers. The node's memory has room for all of them, because each may
 * start on any node. One of another node connects, and its socket takes the place of the rings (gg_net_arrive). */
#ifndef GG_COMM_NET_NET_H
#define GG_COMM_NET_NET_H

#include "comm/halt.h"
#include "comm/transport.h"

typedef struct gg_net_options {
    int rank, size;
    int members;        /* the first ranks, which are there from the start; 0 means all. The others are newcomers */
    const int *node_of; /* one a rank: the lowest rank of its node */
    const int *sockets; /* one a rank: a connected stream socket to it; -1 for ranks of this node, for newcomers that
                         * have not come, and on a newcomer for ranks that have died */
    int memory;         /* descriptor of the node's memory, of any size, zeroed; -1 means the node has one rank */
    size_t ring_bytes;  /* of each ring; a power of two, at least 4096 */
    size_t heap_bytes;  /* address space for message memory of each rank of the node, a multiple of 2 MiB; 0: none */
} gg_net_options;

/* Byte of the node's memory at which a rank's 32 bits lie that become 1 after its end; `place` counts the node's ranks.
 */
#define GG_NET_ENDED(place) ((size_t)(place)*64)

typedef struct gg_net gg_net;

/* Takes the descriptors over, also on failure. */
gg_status gg_net_create(const gg_net_options *options, gg_net **out);
/* Says on all sockets that nothing more is sent, and closes them after the other sides have said so, or after a second:
 * a socket that is closed with unread bytes takes its last messages with it. NULL is a no-op. */
void gg_net_leave(gg_net *net);
/* Leaves. After all its transports. NULL is a no-op. */
void gg_net_destroy(gg_net *net);
int gg_net_rank(const gg_net *net);
int gg_net_size(const gg_net *net);
int gg_net_members(const gg_net *net); /* as in the options */
/* A newcomer of another node has connected; takes the socket over, in place of an earlier one. From any thread. Nothing
 * is sent or received before gg_net_admit. */
void gg_net_arrive(gg_net *net, int rank, int socket);
/* Those of the next view's members that have connected become links. Sockets of other ranks stay aside. */
gg_status gg_net_admit(gg_net *net, const int *member, int members);

/* Collective over the first members, in one order on all ranks, newcomers included; fails if ranks have not come after
 * `timeout` seconds (0 means for ever), which becomes the transport's timeout. */
gg_status gg_net_transport_create(gg_net *net, double timeout, gg_transport **out);
/* From here on a rank that is gone has died: requests of it are LOST (comm/transport.h). watch: called in each round of
 * a wait, with the steps that this rank has begun. */
void gg_net_transport_survive(gg_transport *transport, gg_status (*watch)(void *context, int64_t begun), void *context);
/* Without survival: a wait that takes more than GG_NET_GRACE calls `look` in each round, and ends with its error.
 * Shorter waits may be for messages that are on their way. */
void gg_net_transport_look(gg_transport *transport, gg_status (*look)(void *context), void *context);
/* gg_net_admit of its links. */
gg_status gg_net_transport_admit(gg_transport *transport, const int *member, int members);
/* The view says that this rank has died. Until then requests of a rank of another node stay pending, though its socket
 * may have ended: all members learn of a death by the view. Then what has arrived is read, and the others are LOST. */
void gg_net_transport_died(gg_transport *transport, int rank);
/* A rank of another node whose socket has ended, though gg_net_transport_died has not told of it. */
bool gg_net_transport_is_cut_off(gg_transport *transport, int rank);
/* While `trains`. Otherwise a wait for a rank of another node whose socket has ended fails, as without survival. */
void gg_net_transport_train(gg_transport *transport, bool trains);
/* Votes of gg_views_table travel beside messages: tells one to the ranks of other nodes; hears one. *rank: -1 means
 * that none has come. */
gg_status gg_net_transport_tell_vote(gg_transport *transport, int64_t vote);
gg_status gg_net_transport_hear_vote(gg_transport *transport, int *rank, int64_t *vote);
/* Numbers of channels, told beside these in a view: of this transport, to another rank; of another rank's transport, -1
 * while none has come. Drops those of earlier views. Only transports of one number reach each other. */
gg_status gg_net_transport_greet(gg_transport *transport, int rank, int64_t view);
gg_status gg_net_transport_hear_greeting(gg_transport *transport, int rank, int64_t view, int64_t *number);
int64_t gg_net_transport_channel(gg_transport *transport);
/* The halt of the transport's ranks, owned by the transport, whose waits listen. */
gg_halt *gg_net_transport_halt(gg_transport *transport);

#endif
