#include "base/status.h"

#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#define MESSAGE_BYTES 1024

static _Thread_local char message[MESSAGE_BYTES];

static void set_message(const char *head, const char *tail) {
    /* Through a copy: head or tail may be the message itself. */
    char text[MESSAGE_BYTES];
    size_t used = strnlen(head, MESSAGE_BYTES - 1);
    size_t rest = strnlen(tail, MESSAGE_BYTES - 1 - used);
    memcpy(text, head, used);
    memcpy(text + used, tail, rest);
    text[used + rest] = '\0';
    memcpy(message, text, used + rest + 1);
}

gg_status gg_fail(gg_status status, const char *format, ...) {
    char text[MESSAGE_BYTES];
    va_list arguments;
    va_start(arguments, format);
    if (vsnprintf(text, sizeof text, format, arguments) < 0) text[0] = '\0';
    va_end(arguments);
    set_message(text, "");
    return status;
}

gg_status gg_error_prefix(gg_status status, const char *format, ...) {
    if (status == GG_OK) return GG_OK;
    char text[MESSAGE_BYTES];
    va_list arguments;
    va_start(arguments, format);
    if (vsnprintf(text, sizeof text, format, arguments) < 0) text[0] = '\0';
    va_end(arguments);
    set_message(text, message);
    return status;
}

const char *gg_error_message(void) { return message; }

const char *gg_status_name(gg_status status) {
    static const char *const names[GG_STATUS_COUNT] = {
        [GG_OK] = "ok",
        [GG_ERROR_ARGUMENT] = "argument",
        [GG_ERROR_SHAPE] = "shape",
        [GG_ERROR_TYPE] = "type",
        [GG_ERROR_MEMORY] = "memory",
        [GG_ERROR_UNSUPPORTED] = "unsupported",
        [GG_ERROR_STATE] = "state",
        [GG_ERROR_BACKEND] = "backend",
        [GG_ERROR_COMM] = "comm",
        [GG_ERROR_NUMERIC] = "numeric",
        [GG_ERROR_SOURCE] = "source",
        [GG_ERROR_CANCELLED] = "cancelled",
        [GG_ERROR_PEER] = "peer",
    };
    return (unsigned)status < GG_STATUS_COUNT ? names[status] : "unknown";
}
