/* Waits until the limit in each libc call that has one, beside a sleeping thread: limits MILLISECONDS
 *
 * Prints for each wait its name, its expected and its measured time in milliseconds. */
#define _GNU_SOURCE
#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <linux/futex.h>
#include <poll.h>
#include <pthread.h>
#include <semaphore.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/time.h>
#include <sys/timerfd.h>
#include <time.h>
#include <unistd.h>

#define HOLD(x) do { if (!(x)) { printf("%s:%d: not so: %s (errno %d)\n", __FILE__, __LINE__, #x, errno); exit(1); } } while (0)
#define TAKES(name, times, call) do { double begin = now(); call; printf("%s %.3f %.3f\n", name, (times) * asked, now() - begin); } while (0)
/* The call returns an error number, or -1 and sets errno. */
#define ENDS(name, call) TAKES(name, 1, HOLD((call) == ETIMEDOUT))
#define FAILS(name, error, call) TAKES(name, 1, HOLD((call) == -1 && errno == (error)))

static struct timespec limit;
static struct timeval micros;
static double asked;
static pthread_mutex_t mutex = PTHREAD_MUTEX_INITIALIZER;
static pthread_cond_t plain = PTHREAD_COND_INITIALIZER;
static volatile int rang;

static double now(void)
{
	struct timespec t;
	clock_gettime(CLOCK_MONOTONIC, &t);
	return t.tv_sec * 1e3 + t.tv_nsec / 1e6;
}

/* Returns the time at which a limit that begins now ends, by a clock. */
static struct timespec *end(clockid_t clock)
{
	static struct timespec at;
	clock_gettime(clock, &at);
	at.tv_sec += limit.tv_sec + (at.tv_nsec + limit.tv_nsec) / 1000000000;
	at.tv_nsec = (at.tv_nsec + limit.tv_nsec) % 1000000000;
	return &at;
}

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
	return sleeps(NULL);
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

static void rings(int signal)
{
	rang += signal == SIGALRM ? 1 : 100;
}

static void carries(int signal, siginfo_t *info, void *unused)
{
	(void)unused;
	HOLD(info->si_code == SI_TIMER && info->si_value.sival_int == 7);
	rings(signal);
}

static void notified(union sigval value)
{
	sem_post(value.sival_ptr);
}

static void conditions(void)
{
	pthread_cond_t monotonic;
	pthread_condattr_t kind;
	pthread_t thread;
	pthread_condattr_init(&kind);
	pthread_condattr_setclock(&kind, CLOCK_MONOTONIC);
	pthread_condattr_setpshared(&kind, PTHREAD_PROCESS_SHARED);
	pthread_cond_init(&monotonic, &kind);
	pthread_mutex_lock(&mutex);
	ENDS("cond", pthread_cond_timedwait(&plain, &mutex, end(CLOCK_REALTIME)));
	ENDS("cond-monotonic", pthread_cond_timedwait(&monotonic, &mutex, end(CLOCK_MONOTONIC)));
	ENDS("cond-clock", pthread_cond_clockwait(&plain, &mutex, CLOCK_MONOTONIC, end(CLOCK_MONOTONIC)));
	HOLD(pthread_cond_timedwait(&plain, &mutex, &(struct timespec){ 0, 0 }) == ETIMEDOUT);
	HOLD(!pthread_create(&thread, NULL, wakes, NULL));
	TAKES("cond-signalled", 1000 / asked, HOLD(!pthread_cond_timedwait(&plain, &mutex, end(CLOCK_REALTIME))));
	pthread_mutex_unlock(&mutex);
	pthread_join(thread, NULL);
}

static void locks(void)
{
	static pthread_rwlock_t rwlock = PTHREAD_RWLOCK_INITIALIZER;
	pthread_t thread;
	sem_t never;
	int word = 1;
	sem_init(&never, 0, 0);
	HOLD(!pthread_create(&thread, NULL, holds, &rwlock));
	FAILS("sem", ETIMEDOUT, sem_timedwait(&never, end(CLOCK_REALTIME)));
	FAILS("sem-clock", ETIMEDOUT, sem_clockwait(&never, CLOCK_MONOTONIC, end(CLOCK_MONOTONIC)));
	ENDS("mutex", pthread_mutex_timedlock(&mutex, end(CLOCK_REALTIME)));
	ENDS("rdlock", pthread_rwlock_timedrdlock(&rwlock, end(CLOCK_REALTIME)));
	ENDS("wrlock", pthread_rwlock_clockwrlock(&rwlock, CLOCK_MONOTONIC, end(CLOCK_MONOTONIC)));
	ENDS("join", pthread_timedjoin_np(thread, NULL, end(CLOCK_REALTIME)));
	FAILS("futex", ETIMEDOUT, syscall(SYS_futex, &word, FUTEX_WAIT_PRIVATE, 1, &limit, NULL, 0));
	FAILS("futex-until", ETIMEDOUT, syscall(SYS_futex, &word, FUTEX_WAIT_BITSET_PRIVATE, 1, end(CLOCK_MONOTONIC), NULL, -1));
}

static void files(void)
{
	uint64_t times, more = 0;
	struct itimerspec once = { .it_value = limit }, often = { limit, limit }, at = { .it_value = limit }, left;
	int fd = timerfd_create(CLOCK_MONOTONIC, 0), real = timerfd_create(CLOCK_REALTIME, 0), set = epoll_create1(0);
	struct pollfd file = { fd, POLLIN, 0 };
	struct epoll_event event = { .events = EPOLLIN };
	HOLD(!epoll_ctl(set, EPOLL_CTL_ADD, fd, &event) && !timerfd_settime(fd, 0, &once, NULL));
	TAKES("timerfd", 1, HOLD(read(fd, &times, 8) == 8 && times == 1));
	HOLD(!timerfd_settime(fd, 0, &once, NULL));
	TAKES("timerfd-poll", 1, HOLD(poll(&file, 1, -1) == 1));
	HOLD(!timerfd_settime(fd, 0, &once, NULL) && poll(&file, 1, 0) == 0);
	TAKES("timerfd-epoll", 1, HOLD(epoll_wait(set, &event, 1, -1) == 1));
	HOLD(!timerfd_settime(fd, 0, &often, NULL));
		/* It expires again at the end of the sleep, before or after this thread continues. */
	TAKES("timerfd-often", 3, nanosleep(&limit, NULL); nanosleep(&limit, NULL);
		while (more < 3) { HOLD(read(fd, &times, 8) == 8); more += times; });
	HOLD(!timerfd_settime(fd, 0, &once, &left) && left.it_interval.tv_sec == limit.tv_sec && !timerfd_gettime(fd, &left));
	printf("timerfd-left %.3f %.3f\n", asked, left.it_value.tv_sec * 1e3 + left.it_value.tv_nsec / 1e6);
	at.it_value = *end(CLOCK_REALTIME);
	HOLD(!timerfd_settime(real, TFD_TIMER_ABSTIME, &at, NULL));
	TAKES("timerfd-until", 1, HOLD(read(real, &times, 8) == 8));
}

static void alarms(void)
{
	sem_t come;
	struct itimerspec timer = { .it_value = limit };
	struct sigaction action = { .sa_sigaction = carries, .sa_flags = SA_SIGINFO };
	struct sigevent event = { .sigev_notify = SIGEV_SIGNAL, .sigev_signo = SIGUSR1, .sigev_value.sival_int = 7 };
	struct sigevent thread = { .sigev_notify = SIGEV_THREAD, .sigev_value.sival_ptr = &come, .sigev_notify_function = notified };
	timer_t id, other;
	sem_init(&come, 0, 0);
	signal(SIGALRM, rings);
	HOLD(!sigaction(SIGUSR1, &action, NULL) && !setitimer(ITIMER_REAL, &(struct itimerval){ .it_value = micros }, NULL));
	TAKES("setitimer", 1, HOLD(pause() && rang == 1));
	HOLD(!timer_create(CLOCK_MONOTONIC, &event, &id) && !timer_settime(id, 0, &timer, NULL));
	TAKES("timer", 1, HOLD(pause() && rang == 101));
	HOLD(!timer_settime(id, 0, &timer, NULL));
	TAKES("timer-sleep", 1, HOLD(nanosleep(&(struct timespec){ 2 * limit.tv_sec + 1, 0 }, NULL) && rang == 201));
	HOLD(!timer_create(CLOCK_REALTIME, &thread, &other) && !timer_settime(other, 0, &timer, NULL));
	TAKES("timer-thread", 1, HOLD(!sem_wait(&come)));
	HOLD(!timer_delete(id) && !timer_delete(other));
}

static void sockets(void)
{
	static char bytes[1 << 20];
	int pair[2], listener = socket(AF_INET, SOCK_STREAM, 0), full = 0;
	struct sockaddr_in here = { .sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK) };
	socklen_t len = sizeof here;
	HOLD(!socketpair(AF_UNIX, SOCK_STREAM, 0, pair));
	HOLD(!setsockopt(pair[0], SOL_SOCKET, SO_RCVTIMEO, &micros, sizeof micros));
	HOLD(!setsockopt(pair[0], SOL_SOCKET, SO_SNDTIMEO, &micros, sizeof micros));
	FAILS("recv", EAGAIN, recv(pair[0], bytes, 1, 0));
	FAILS("read", EAGAIN, read(pair[0], bytes, 1));
	while (send(pair[0], bytes, sizeof bytes, MSG_DONTWAIT) > 0)
		;
	FAILS("send", EAGAIN, send(pair[0], bytes, 1, 0));
	HOLD(!bind(listener, (struct sockaddr *)&here, len) && !listen(listener, 0));
	HOLD(!getsockname(listener, (struct sockaddr *)&here, &len));
	HOLD(!setsockopt(listener, SOL_SOCKET, SO_RCVTIMEO, &micros, sizeof micros));
	FAILS("accept", EAGAIN, accept(listener, NULL, NULL));
	/* The queue takes some connections, and later ones are not answered. */
	for (int more = 0; !full; more++) {
		struct pollfd file = { socket(AF_INET, SOCK_STREAM | SOCK_NONBLOCK, 0), POLLOUT, 0 };
		HOLD(more < 8 && connect(file.fd, (struct sockaddr *)&here, len) < 0 && errno == EINPROGRESS);
		full = poll(&file, 1, 20) == 0;
	}
	int fd = socket(AF_INET, SOCK_STREAM, 0);
	HOLD(!setsockopt(fd, SOL_SOCKET, SO_SNDTIMEO, &micros, sizeof micros));
	FAILS("connect", EINPROGRESS, connect(fd, (struct sockaddr *)&here, len));
	HOLD(!(fcntl(fd, F_GETFL) & O_NONBLOCK));
}

int main(int argc, char **argv)
{
	HOLD(argc == 2);
	setvbuf(stdout, NULL, _IOLBF, 0);
	asked = atol(argv[1]);
	limit = (struct timespec){ atol(argv[1]) / 1000, atol(argv[1]) % 1000 * 1000000 };
	micros = (struct timeval){ limit.tv_sec, limit.tv_nsec / 1000 };
	pthread_t thread;
	HOLD(!pthread_create(&thread, NULL, sleeps, NULL));
	conditions();
	locks();
	files();
	alarms();
	sockets();
	return 0;
}
