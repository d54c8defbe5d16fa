/* Signals kept from a thread while it runs code that no handler may interrupt. */
#ifndef GG_BASE_SIGNALS_H
#define GG_BASE_SIGNALS_H

#include <signal.h>

/* Blocks signals from elsewhere in the calling thread, and stores its former mask. Errors of the thread's own (SIGSEGV,
 * SIGABRT, ...) still come. A signal to the process goes to another thread, or comes after the release. */
void gg_signals_hold(sigset_t *former);
void gg_signals_release(const sigset_t *former);

#endif
