/* Checks for the C tests: a failure prints its place and is counted, and the program goes on.
 *
 * int main(void) { ...; return CHECK_RESULT; }   prints "N passed, N failed"; 1 if anything failed */
#ifndef CHECK_H
#define CHECK_H

#include <math.h>
#include <stdbool.h>
#include <stdio.h>
#include <string.h>

#include "base/status.h"

static long check_passed, check_failed;

static inline bool check_count(bool good, const char *file, int line) {
    if (good) ++check_passed;
    else {
        ++check_failed;
        fprintf(stderr, "%s:%d: ", file, line);
    }
    return good;
}

static inline int check_report(void) {
    printf("%ld passed, %ld failed\n", check_passed, check_failed);
    return check_failed != 0 || check_passed == 0;
}

#define CHECK_RESULT check_report()
/* Every check is true if it passed. */
#define CHECK(condition) check_true((condition), #condition, __FILE__, __LINE__)
#define CHECK_INT(actual, wanted) check_int((long long)(actual), (long long)(wanted), #actual, __FILE__, __LINE__)
#define CHECK_NEAR(actual, wanted, tolerance)                                                                          \
    check_near((double)(actual), (double)(wanted), (double)(tolerance), #actual, __FILE__, __LINE__)
#define CHECK_TEXT(actual, wanted) check_text((actual), (wanted), #actual, __FILE__, __LINE__)
#define CHECK_OK(call) check_ok((call), #call, __FILE__, __LINE__)
/* The call fails with this status, and the message contains the text. */
#define CHECK_FAILS(call, status, text) check_fails((call), (status), (text), #call, __FILE__, __LINE__)

static inline bool check_true(bool good, const char *what, const char *file, int line) {
    if (!check_count(good, file, line)) fprintf(stderr, "%s\n", what);
    return good;
}

static inline bool check_int(long long actual, long long wanted, const char *what, const char *file, int line) {
    bool good = actual == wanted;
    if (!check_count(good, file, line)) fprintf(stderr, "%s is %lld, wanted %lld\n", what, actual, wanted);
    return good;
}

static inline bool check_near(double actual, double wanted, double tolerance, const char *what, const char *file,
                              int line) {
    bool good = fabs(actual - wanted) <= tolerance;
    if (!check_count(good, file, line))
        fprintf(stderr, "%s is %.17g, wanted %.17g within %g\n", what, actual, wanted, tolerance);
    return good;
}

static inline bool check_text(const char *actual, const char *wanted, const char *what, const char *file, int line) {
    bool good = strcmp(actual, wanted) == 0;
    if (!check_count(good, file, line)) fprintf(stderr, "%s is '%s', wanted '%s'\n", what, actual, wanted);
    return good;
}

static inline bool check_ok(gg_status status, const char *what, const char *file, int line) {
    bool good = status == GG_OK;
    if (!check_count(good, file, line))
        fprintf(stderr, "%s: %s: %s\n", what, gg_status_name(status), gg_error_message());
    return good;
}

static inline bool check_fails(gg_status status, gg_status wanted, const char *text, const char *what, const char *file,
                               int line) {
    bool good = status == wanted && strstr(gg_error_message(), text) != NULL;
    if (!check_count(good, file, line))
        fprintf(stderr, "%s: %s: '%s', wanted %s with '%s'\n", what, gg_status_name(status),
                status == GG_OK ? "" : gg_error_message(), gg_status_name(wanted), text);
    return good;
}

#endif
