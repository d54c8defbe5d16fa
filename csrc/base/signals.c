#include "base/signals.h"

#include <stddef.h>

void gg_signals_hold(sigset_t *former) {
    static const int own_errors[] = {SIGABRT, SIGBUS, SIGFPE, SIGILL, SIGSEGV, SIGSYS, SIGTRAP};
    sigset_t held;
    (void)sigfillset(&held);
    for (size_t i = 0; i < sizeof own_errors / sizeof own_errors[0]; ++i) (void)sigdelset(&held, own_errors[i]);
    (void)pthread_sigmask(SIG_BLOCK, &held, former);
}

void gg_signals_release(const sigset_t *former) { (void)pthread_sigmask(SIG_SETMASK, former, NULL); }
