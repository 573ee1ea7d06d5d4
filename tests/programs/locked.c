/* Preloaded into a program: locks all its present and future memory, as real-time programs do. */
#include <sys/mman.h>

__attribute__((constructor)) static void lock(void)
{
	mlockall(MCL_CURRENT | MCL_FUTURE);
}
