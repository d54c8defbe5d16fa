#include "comm/messages.h"

#include "base/memory.h"

enum { TAG_MESSAGES = 16 };

static gg_status message_start(gg_transport *transport, const gg_message *message, gg_request *request) {
    if (message->bytes == 0) return GG_OK;
    if (message->landing != NULL)
        return gg_receive_exact(transport, message->landing, message->bytes, message->peer, TAG_MESSAGES, request);
    return gg_send(transport, message->data, message->bytes, message->peer, TAG_MESSAGES, request);
}

static gg_status message_complete(gg_transport *transport, const gg_message *message, gg_request *request) {
    return message->landing != NULL ? gg_wait_and_copy(transport, request, message->landing)
                                    : gg_wait_collective(transport, request);
}

gg_status gg_messages_exchange(gg_transport *transport, const gg_message *messages, int n) {
    gg_status status = GG_OK;
    gg_request *request = NULL;
    if (n == 0) goto cleanup;
    GG_TRY_CLEANUP(gg_calloc((size_t)n, sizeof *request, "requests of a round of messages", &request));
    for (int i = 0; i < n; ++i) GG_TRY_CLEANUP(message_start(transport, &messages[i], &request[i]));
    /* A send is complete when its receiver has released it: so all that arrive are released first. */
    for (int received = 1; received >= 0; --received)
        for (int i = 0; i < n; ++i)
            if ((messages[i].landing != NULL) == (received == 1))
                GG_TRY_CLEANUP(message_complete(transport, &messages[i], &request[i]));
cleanup:
    if (status != GG_OK) gg_cancel_all(transport, request, n);
    gg_free(request);
    return status;
}
