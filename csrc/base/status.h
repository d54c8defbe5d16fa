/* Status codes and error text.
 *
 * Every fallible function returns a gg_status. On failure the thread-local message names the argument, the given value
 * and the allowed values. A caller that knows the place ("layer 'conv1': ...") adds it by gg_error_prefix. Nothing
 * aborts, and success leaves the message alone. */
#ifndef GG_BASE_STATUS_H
#define GG_BASE_STATUS_H

typedef enum gg_status {
    GG_OK = 0,
    GG_ERROR_ARGUMENT,    /* a value of the caller that is not allowed */
    GG_ERROR_SHAPE,       /* shapes that do not fit each other */
    GG_ERROR_TYPE,        /* an element type or layout that is not supported here */
    GG_ERROR_MEMORY,      /* the system gave no memory */
    GG_ERROR_UNSUPPORTED, /* well-formed, but this build, CPU or library cannot do it */
    GG_ERROR_STATE,       /* right call, wrong time */
    GG_ERROR_BACKEND,     /* a compute library failed */
    GG_ERROR_COMM,        /* a message or a peer failed */
    GG_ERROR_NUMERIC,     /* NaN or infinity where a finite number is needed */
    GG_ERROR_SOURCE,      /* a source of samples failed, in its own words */
    GG_ERROR_CANCELLED,   /* stopped on request, or because another rank failed */
    GG_ERROR_PEER,        /* a rank that the call needs has died */
    GG_STATUS_COUNT
} gg_status;

/* Sets this thread's message (printf format, truncated at 1023 bytes) and returns `status`. */
gg_status gg_fail(gg_status status, const char *format, ...) __attribute__((format(printf, 2, 3)));
/* Puts text before this thread's message and returns `status`. GG_OK is a no-op. */
gg_status gg_error_prefix(gg_status status, const char *format, ...) __attribute__((format(printf, 2, 3)));
/* This thread's last message; never NULL; valid until the thread's next failure. */
const char *gg_error_message(void);
/* "argument", "shape", ...: a short word for a status. */
const char *gg_status_name(gg_status status);

/* Returns the status of a call that fails. For functions that own nothing. */
#define GG_TRY(call)                                                                                                   \
    do {                                                                                                               \
        const gg_status gg_status_of_call = (call);                                                                    \
        if (gg_status_of_call != GG_OK) return gg_status_of_call;                                                      \
    } while (0)

/* For functions that free something or add to the message. They declare `gg_status status` and free at the label
 * `cleanup`, their one exit. */
#define GG_TRY_CLEANUP(call)                                                                                           \
    do {                                                                                                               \
        status = (call);                                                                                               \
        if (status != GG_OK) goto cleanup;                                                                             \
    } while (0)

/* GG_FAIL_CLEANUP(status, format, ...) fails like gg_fail and jumps to `cleanup`. */
#define GG_FAIL_CLEANUP(...)                                                                                           \
    do {                                                                                                               \
        status = gg_fail(__VA_ARGS__);                                                                                 \
        goto cleanup;                                                                                                  \
    } while (0)

#endif
