/* Streams of bytes between two ranks: a ring of the node's memory, or a socket. */
#include <errno.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <sys/uio.h>
#include <unistd.h>

#include "base/clock.h"
#include "comm/net/net_private.h"

#define SOCKET_MAX ((size_t)1 << 30) /* bytes of a call */

/* ---- rings ---- */

static size_t smaller(size_t a, size_t b) { return a < b ? a : b; }

static void ring_put(gg_net_ring *ring, size_t size, uint64_t at, const void *data, size_t bytes) {
    const size_t begin = (size_t)(at & (size - 1)), first = smaller(bytes, size - begin);
    memcpy(ring->data + begin, data, first);
    if (bytes > first) memcpy(ring->data, (const unsigned char *)data + first, bytes - first);
}

static size_t ring_write(gg_net_ring *ring, size_t size, const void *first, size_t first_bytes, const void *second,
                         size_t second_bytes) {
    const uint64_t written = atomic_load_explicit(&ring->written, memory_order_relaxed);
    const size_t room = size - (size_t)(written - atomic_load_explicit(&ring->read, memory_order_acquire));
    const size_t a = smaller(first_bytes, room), b = a < first_bytes ? 0 : smaller(second_bytes, room - a);
    if (a > 0) ring_put(ring, size, written, first, a);
    if (b > 0) ring_put(ring, size, written + a, second, b);
    if (a + b > 0) atomic_store_explicit(&ring->written, written + a + b, memory_order_release);
    return a + b;
}

static size_t ring_read(gg_net_ring *ring, size_t size, void *to, size_t bytes) {
    const uint64_t read = atomic_load_explicit(&ring->read, memory_order_relaxed);
    const size_t there = (size_t)(atomic_load_explicit(&ring->written, memory_order_acquire) - read);
    const size_t n = smaller(bytes, there), begin = (size_t)(read & (size - 1)), first = smaller(n, size - begin);
    if (n == 0) return 0;
    memcpy(to, ring->data + begin, first);
    if (n > first) memcpy((unsigned char *)to + first, ring->data, n - first);
    atomic_store_explicit(&ring->read, read + n, memory_order_release);
    return n;
}

/* ---- both ---- */

void gg_net_lose(gg_net *net, gg_net_peer *peer) {
    if (peer->gone) return;
    peer->gone = true;
    peer->fails_at = gg_clock_now();
    if (peer->socket < 0) return;
    peer->fails_at += GG_NET_GRACE;
    (void)epoll_ctl(net->poll, EPOLL_CTL_DEL, peer->socket, NULL);
    close(peer->socket);
    peer->socket = -1;
    net->sockets--;
}

bool gg_net_has_ended(const gg_net *net, const gg_net_peer *peer) {
    return peer->place >= 0 &&
           atomic_load_explicit(&gg_net_board_of(net, peer->place)->ended, memory_order_acquire) != 0;
}

static bool is_only_busy(void) { return errno == EAGAIN || errno == EWOULDBLOCK || errno == EINTR; }

size_t gg_net_write(gg_net *net, gg_net_peer *peer, const void *first, size_t first_bytes, const void *second,
                    size_t second_bytes) {
    if (peer->gone) return 0;
    if (peer->out != NULL) return ring_write(peer->out, net->ring_bytes, first, first_bytes, second, second_bytes);
    struct iovec parts[2] = {{(void *)(uintptr_t)first, first_bytes},
                             {(void *)(uintptr_t)second, smaller(second_bytes, SOCKET_MAX)}};
    const struct msghdr message = {.msg_iov = first_bytes > 0 ? parts : parts + 1,
                                   .msg_iovlen = first_bytes > 0 ? 2 : 1};
    const ssize_t n = sendmsg(peer->socket, &message, MSG_NOSIGNAL | MSG_DONTWAIT);
    if (n >= 0) return (size_t)n;
    /* What it sent before its end may still be unread: reading meets the end behind it. */
    return 0;
}

size_t gg_net_read(gg_net *net, gg_net_peer *peer, void *to, size_t bytes) {
    if (peer->in != NULL) return ring_read(peer->in, net->ring_bytes, to, bytes);
    if (peer->socket < 0) return 0;
    const ssize_t n = recv(peer->socket, to, smaller(bytes, SOCKET_MAX), MSG_DONTWAIT);
    if (n == 0 || (n < 0 && !is_only_busy())) gg_net_lose(net, peer);
    return n > 0 ? (size_t)n : 0;
}
