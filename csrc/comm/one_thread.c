#include "comm/one_thread.h"

#include <errno.h>
#include <stdbool.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "base/clock.h"

static pid_t user; /* the thread that uses messages */

/* A thread that has been joined may exist for a while longer. */
#define SECONDS_TO_END 1.0

static bool thread_runs(pid_t thread) {
    for (const double begin = gg_clock_now(); gg_clock_now() - begin < SECONDS_TO_END; gg_clock_sleep(1e-3))
        if (syscall(SYS_tgkill, getpid(), thread, 0) != 0 && errno == ESRCH) return false;
    return true;
}

gg_status gg_one_thread_check(const char *what) {
    const pid_t self = (pid_t)syscall(SYS_gettid);
    if (user != self && user != 0 && user != getpid() && thread_runs(user))
        return gg_fail(
            GG_ERROR_STATE,
            "thread %ld of this process uses %s, which thread %ld cannot use before that one has ended; allowed: "
            "calls of one thread, or comm=gossipgrad.VirtualCluster(p) in each",
            (long)user, what, (long)self);
    user = self;
    return GG_OK;
}
