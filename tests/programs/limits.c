/* Waits until the limit, by each call of libc that has one, beside a thread that sleeps: limits MILLISECONDS
 *
 * Prints for each wait its name, its expected and its measured time in milliseconds. */
#define _GNU_SOURCE
#include <errno.h>
#include <linux/futex.h>
#include <pthread.h>
#include <semaphore.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#define HOLD(x) do { if (!(x)) { printf("%s:%d: not so: %s (%s)\n", __FILE__, __LINE__, #x, strerror(errno)); exit(1); } } while (0)

static struct timespec limit;
static double asked;
static pthread_mutex_t mutex = PTHREAD_MUTEX_INITIALIZER;
static pthread_cond_t plain = PTHREAD_COND_INITIALIZER;

static double now(void)
{
	struct timespec t;
	clock_gettime(CLOCK_MONOTONIC, &t);
	return t.tv_sec * 1e3 + t.tv_nsec / 1e6;
}

/* The time of a clock at which a limit that begins now is over. */
static struct timespec *end(clockid_t clock)
{
	static struct timespec at;
	clock_gettime(clock, &at);
	at.tv_sec += limit.tv_sec + (at.tv_nsec + limit.tv_nsec) / 1000000000;
	at.tv_nsec = (at.tv_nsec + limit.tv_nsec) % 1000000000;
	return &at;
}

#define TAKES(name, times, call) do { \
	double begin = now(); \
	call; \
	printf("%s %.3f %.3f\n", name, (times) * asked, now() - begin); \
} while (0)

static void *sleeps(void *unused)
{
	for (;;)
		sleep(1000000);
	return unused;
}

static void *holds(void *rwlock)
{
	pthread_mutex_lock(&mutex);
	pthread_rwlock_wrlock(rwlock);
	sem_t never;
	sem_init(&never, 0, 0);
	sem_wait(&never);
	return NULL;
}

/* Wakes the other thread in the middle of its limit, after computing for a while. */
static void *wakes(void *unused)
{
	clock_nanosleep(CLOCK_MONOTONIC, 0, &(struct timespec){ 1, 0 }, NULL);
	for (volatile int i = 0; i < 3000000; i++)
		;
	pthread_mutex_lock(&mutex);
	pthread_cond_signal(&plain);
	pthread_mutex_unlock(&mutex);
	return unused;
}

static void conditions(void)
{
	pthread_cond_t monotonic;
	pthread_condattr_t kind;
	pthread_condattr_init(&kind);
	pthread_condattr_setclock(&kind, CLOCK_MONOTONIC);
	pthread_cond_init(&monotonic, &kind);
	pthread_mutex_lock(&mutex);
	TAKES("cond", 1, HOLD(pthread_cond_timedwait(&plain, &mutex, end(CLOCK_REALTIME)) == ETIMEDOUT));
	TAKES("cond-monotonic", 1, HOLD(pthread_cond_timedwait(&monotonic, &mutex, end(CLOCK_MONOTONIC)) == ETIMEDOUT));
	TAKES("cond-clock", 1, HOLD(pthread_cond_clockwait(&plain, &mutex, CLOCK_MONOTONIC, end(CLOCK_MONOTONIC)) == ETIMEDOUT));
	pthread_t thread;
	double begin = now();
	HOLD(!pthread_create(&thread, NULL, wakes, NULL));
	HOLD(!pthread_cond_timedwait(&plain, &mutex, end(CLOCK_REALTIME)));
	printf("cond-signalled 1000.000 %.3f\n", now() - begin);
	pthread_mutex_unlock(&mutex);
	pthread_join(thread, NULL);
}

static void locks(void)
{
	static pthread_rwlock_t rwlock = PTHREAD_RWLOCK_INITIALIZER;
	pthread_t thread;
	sem_t never;
	sem_init(&never, 0, 0);
	HOLD(!pthread_create(&thread, NULL, holds, &rwlock));
	TAKES("sem", 1, HOLD(sem_timedwait(&never, end(CLOCK_REALTIME)) && errno == ETIMEDOUT));
	TAKES("sem-clock", 1, HOLD(sem_clockwait(&never, CLOCK_MONOTONIC, end(CLOCK_MONOTONIC)) && errno == ETIMEDOUT));
	TAKES("mutex", 1, HOLD(pthread_mutex_timedlock(&mutex, end(CLOCK_REALTIME)) == ETIMEDOUT));
	TAKES("rdlock", 1, HOLD(pthread_rwlock_timedrdlock(&rwlock, end(CLOCK_REALTIME)) == ETIMEDOUT));
	TAKES("wrlock", 1, HOLD(pthread_rwlock_timedwrlock(&rwlock, end(CLOCK_REALTIME)) == ETIMEDOUT));
	TAKES("join", 1, HOLD(pthread_timedjoin_np(thread, NULL, end(CLOCK_REALTIME)) == ETIMEDOUT));
	int word = 1;
	TAKES("futex", 1, HOLD(syscall(SYS_futex, &word, FUTEX_WAIT_PRIVATE, 1, &limit, NULL, 0) && errno == ETIMEDOUT));
	TAKES("futex-until", 1, HOLD(syscall(SYS_futex, &word, FUTEX_WAIT_BITSET_PRIVATE, 1, end(CLOCK_MONOTONIC), NULL, -1)
		&& errno == ETIMEDOUT));
}

int main(int argc, char **argv)
{
	HOLD(argc == 2);
	setvbuf(stdout, NULL, _IOLBF, 0);
	long millis = atol(argv[1]);
	asked = millis;
	limit = (struct timespec){ millis / 1000, millis % 1000 * 1000000 };
	pthread_t thread;
	HOLD(!pthread_create(&thread, NULL, sleeps, NULL));
	conditions();
	locks();
	return 0;
}
