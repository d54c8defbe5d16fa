/* Monotonic time in seconds, and sleeping. Any thread. */
#ifndef GG_BASE_CLOCK_H
#define GG_BASE_CLOCK_H

double gg_clock_now(void);
/* Sleeps for about `seconds`; 0 yields the processor. */
void gg_clock_sleep(double seconds);

/* Between two tests of a wait, round = 0, 1, ...: yields the processor, and from round GG_CLOCK_YIELDS on sleeps,
 * longer from round to round. The yields last about half a millisecond: ranks in step differ by less. */
#define GG_CLOCK_YIELDS 2048
void gg_clock_back_off(int round);

#endif
