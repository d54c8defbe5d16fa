/* Monotonic time in seconds, and sleeping. Any thread. */
#ifndef GG_BASE_CLOCK_H
#define GG_BASE_CLOCK_H

double gg_clock_now(void);
/* Sleeps for about `seconds`; 0 yields the processor. */
void gg_clock_sleep(double seconds);

#endif
