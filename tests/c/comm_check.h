/* What tests of messages check with. */
#ifndef GG_TESTS_COMM_CHECK_H
#define GG_TESTS_COMM_CHECK_H

#include <stdio.h>

#include "base/status.h"
#include "check.h"

#define LENGTH(array) (sizeof(array) / sizeof((array)[0]))
/* Ends the case: after a failure the peers' messages no longer fit. */
#define MUST(call)                                                                                                     \
    do {                                                                                                               \
        gg_status must_ = (call);                                                                                      \
        if (must_ != GG_OK) {                                                                                          \
            if (must_ != GG_ERROR_CANCELLED) fprintf(stderr, "%s:%d: %s\n", __FILE__, __LINE__, gg_error_message());   \
            CHECK(must_ == GG_OK);                                                                                     \
            return must_;                                                                                              \
        }                                                                                                              \
    } while (0)

#endif
