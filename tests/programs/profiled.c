/* Preloaded into a program: a signal with a handler every millisecond, as of a profiler. */
#include <signal.h>
#include <stdlib.h>
#include <time.h>

static void nothing(int signal) { (void)signal; }

__attribute__((constructor)) static void begin(void)
{
	struct sigaction action = { .sa_handler = nothing, .sa_flags = SA_RESTART };
	struct sigevent event = { .sigev_notify = SIGEV_SIGNAL, .sigev_signo = SIGPROF };
	struct itimerspec often = { { 0, 1000000 }, { 0, 1000000 } };
	timer_t timer;

	if (sigaction(SIGPROF, &action, NULL) || timer_create(CLOCK_MONOTONIC, &event, &timer) ||
	    timer_settime(timer, 0, &often, NULL))
		abort();
}
