/* Messages in the order of a separate device's work.
 *
 * A device with memory of its own works after the call has returned (ops/device.h). When a strategy sends, the kernel
 * that writes the message may not have begun; when it posts the next receive, a kernel may still read the last message.
 * This transport wraps another and orders messages with the device's work, so strategies are written as if all work
 * were done at once:
 *
 * - A send begins after all earlier work of GG_QUEUE_COMPUTE.
 * - A receive is posted, so its landing written, after all earlier work. So a landing may be reused once its message
 *   has been released.
 * - A message that arrives outside of its landing, for example in another rank's memory, is copied to the landing,
 *   which the device shares. request->data is then the landing. Later work does not read the message's own memory,
 *   so its release need not wait for the device.
 * - A library's sum begins after all earlier work.
 *
 * Calls that wait for the device are held back in one queue for sends, receives and sums. Any later call of the rank
 * (send, receive, test, release, progress, rounds of a wait) passes them on in order, so messages of one tag between
 * two ranks keep their order. Only waits wait for the device, with one exception: if the inner transport `stands` (the
 * virtual cluster), real time must not decide the order of events. There a send, a receive or a sum waits for the work
 * and is passed on at once, so clocks and bits are those of a device that finishes within its calls.
 *
 * Before a rank leaves the wrapper, to call the inner transport for example, it passes held calls on
 * (gg_device_order_flush): another rank may wait for them. gg_team_run does so before it returns.
 *
 * Only shared memory counts (gg_device_shares): message memory, shared at its allocation here, and landings of
 * gg_device_alloc_landing. Messages in other host memory wait for no work. They go at once, unless an older message
 * with equal direction, peer and tag is still held back.
 *
 * Memory of gg_message_alloc_device, and landings of gg_device_alloc_landing and gg_device_alloc_message, lie in device
 * memory if MPI reads it: MPIX_Query_cuda_support says so, or $GOSSIPGRAD_MPI_CUDA=on ("off": never, "auto": default).
 * All messages of this transport are then sent directly, none through memory that the ranks of a node share.
 *
 * Strategies must not write sent memory, or memory that work uses, by the host; they copy and clear by gg_device_copy
 * and gg_device_zero. If work on GG_QUEUE_COPY writes a message, the compute queue must follow it before the send.
 *
 * The caller owns the inner transport and the device; both outlive the wrapper. Held requests must be waited for or
 * cancelled before they are moved or freed, as with any transport. Cancelling does not wait for work, freeing shared
 * memory does. Both transports count bytes and messages. Epoch and service are passed on; the inner timeout holds. The
 * inner transport checks buffers (check_buffers) when it gets a message whose work is done. A failure of the device
 * (gg_device_check) fails the call that would have passed on its results. One thread. */
#ifndef GG_COMM_DEVICE_ORDER_H
#define GG_COMM_DEVICE_ORDER_H

#include "comm/transport.h"
#include "ops/backend.h"

/* *out is NULL if the device is not separate: messages then use `inner` directly. gg_transport_destroy destroys the
 * wrapper only. */
gg_status gg_device_order_create(gg_transport *inner, gg_device *device, gg_transport **out);

/* Waits for a mark of a rank's device. Messages of the rank, held ones included, progress and requests are answered
 * meanwhile (gg_transport_attend). Not allowed within a call of the transport. */
gg_status gg_device_attend(gg_transport *transport, gg_device *device, gg_mark mark);

/* Waits for the devices of all wrappers of `inner`, and passes all held calls on. */
gg_status gg_device_order_flush(gg_transport *inner);

#endif
