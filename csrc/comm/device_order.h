/* Messages in the order of a separate device's work.
 *
 * A device with memory of its own does its work after the call that gives it has returned (ops/device.h): when a
 * strategy sends, the kernel that writes the message may not have begun, and when it posts the next receive, a kernel
 * may still read what the last one brought. The transport here wraps another one and makes what is sent and received
 * fit the order in which work was given, so that strategies are written as if all work were done at once:
 *
 * - A send begins when all work is done that GG_QUEUE_COMPUTE had been given before the call.
 * - A receive is posted, so that its landing is written, when all work is done that had been given before the call. So
 *   a landing may be used again as soon as its message has been released.
 * - A message that arrives in other memory than its landing, in another rank's for example, is copied to the landing,
 *   which alone the device shares. request->data then is the landing; the message's own memory is not read any more
 *   by work that is given later, and its release need not wait for the device.
 * - A sum by a library begins when all work is done that had been given before.
 *
 * What has to wait for the device is held back here, in one line for sends, receives and sums: it is passed on in the
 * order of the calls, in any later call of the rank (send, receive, test, release, progress, the rounds of a wait). So
 * messages between two ranks with one tag keep their order. No call but a wait waits for the device, with one
 * exception: where the inner transport `stands` (the virtual cluster) real time must not decide what happens when.
 * There a send, a receive or a sum waits until the work is done and is passed on at once: clocks and bits are those of
 * a device that is done when a call returns.
 *
 * A rank that leaves the calls of the wrapper, for the inner transport's or for anything else, lets go of what is held
 * back first (gg_device_order_flush): another rank may wait for it. gg_team_run does so before it returns.
 *
 * Only memory that the device shares counts (gg_device_shares): message memory, which is shared at its allocation here,
 * and landings of gg_device_alloc_landing. What is sent from, or lands in, other host memory waits for no work; it goes
 * at once, unless an older message in the same direction with its peer and tag is still held back.
 *
 * Memory of gg_message_alloc_device, and landings of gg_device_alloc_landing and gg_device_alloc_message, lie in memory
 * of the device itself where what moves them reads it: where MPI says that it does (MPIX_Query_cuda_support), and by
 * $GOSSIPGRAD_MPI_CUDA=on; "off" never, "auto" is the default. All messages of this transport are then sent as they
 * are, none through memory that the ranks of a node share.
 *
 * Strategies must not write, by the host, memory that they have sent or that work uses; they copy and clear by
 * gg_device_copy and gg_device_zero. Work on GG_QUEUE_COPY that writes what is sent must be followed by the compute
 * queue before.
 *
 * Owned by the caller: the inner transport and the device, which both outlive it. Requests that are held back must be
 * waited for or cancelled before they are moved or freed, as with any transport; cancelling does not wait for work, the
 * freeing of shared memory does. Counts of bytes and messages are kept by both transports. The epoch and the service
 * are passed on, the inner timeout holds; buffers are checked (check_buffers, here) by the inner transport, when it is
 * given a message and the work that writes it is done. A failure of the device (gg_device_check) fails the call that
 * would have passed on what it computed. One thread. */
#ifndef GG_COMM_DEVICE_ORDER_H
#define GG_COMM_DEVICE_ORDER_H

#include "comm/transport.h"
#include "ops/backend.h"

/* *out: NULL where the device is not separate: messages then go through `inner` as they are. gg_transport_destroy
 * destroys the wrapper alone. */
gg_status gg_device_order_create(gg_transport *inner, gg_device *device, gg_transport **out);

/* Waits for a mark of a rank's device. Messages of the rank move and requests are answered meanwhile
 * (gg_transport_attend), what is held back here too. Never from within a call of the transport. */
gg_status gg_device_attend(gg_transport *transport, gg_device *device, gg_mark mark);

/* Waits until the devices of all wrappers of `inner` have done what is held back for, and passes it on. */
gg_status gg_device_order_flush(gg_transport *inner);

#endif
