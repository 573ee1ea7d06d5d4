/* Promises of a program: HOLD reports the first that is not kept, and ends the program with 1. */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>

#define HOLD(what) \
	do { \
		if (!(what)) { \
			printf("%s:%d: not so: %s (errno %d)\n", __func__, __LINE__, #what, errno); \
			exit(1); \
		} \
	} while (0)
