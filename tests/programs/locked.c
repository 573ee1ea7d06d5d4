/* Loaded before a program: locks all its memory, what it has and what it gets, as real-time programs do. */
#include <sys/mman.h>

__attribute__((constructor)) static void lock(void)
{
	mlockall(MCL_CURRENT | MCL_FUTURE);
}
