/* Calls answered by the supervisor, under signals with a handler as from profilers, timers and Go's scheduler: each is answered once, and
 * none hangs. The first argument is the number of devices. */
#include "hold.h"
#include <fcntl.h>
#include <infiniband/verbs.h>
#include <linux/netlink.h>
#include <pthread.h>
#include <rdma/ib_user_mad.h>
#include <rdma/rdma_netlink.h>
#include <signal.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/socket.h>
#include <sys/time.h>
#include <time.h>
#include <unistd.h>

static int devices;
static volatile long rung;

static void ring(int number)
{
	(void)number;
	rung++;
}

/* Repeats a call that a signal interrupted. */
#define AGAIN(call) ({ long got; do got = (call); while (got < 0 && errno == EINTR); got; })

static void lists_devices(void)
{
	int n = 0;
	struct ibv_device **list = ibv_get_device_list(&n);
	HOLD(list && n == devices);
	ibv_free_device_list(list);
}

static void asks_once_and_is_answered_once(void)
{
	static unsigned sequence;
	struct nlmsghdr request = { .nlmsg_len = NLMSG_LENGTH(0), .nlmsg_flags = NLM_F_REQUEST | NLM_F_DUMP,
		.nlmsg_type = RDMA_NL_GET_TYPE(RDMA_NL_NLDEV, RDMA_NLDEV_CMD_GET), .nlmsg_seq = ++sequence };
	char answer[65536];
	int named = 0, over = 0, s = AGAIN(socket(AF_NETLINK, SOCK_RAW, NETLINK_RDMA));

	HOLD(s >= 0);
	HOLD(AGAIN(send(s, &request, request.nlmsg_len, 0)) == request.nlmsg_len);
	while (!over) {
		int len = AGAIN(recv(s, answer, sizeof answer, 0));
		HOLD(len > 0);
		for (struct nlmsghdr *h = (void *)answer; NLMSG_OK(h, len); h = NLMSG_NEXT(h, len)) {
			HOLD(h->nlmsg_seq == sequence);
			over |= h->nlmsg_type == NLMSG_DONE;
			named += h->nlmsg_type != NLMSG_DONE;
		}
	}
	HOLD(named == devices);
	HOLD(AGAIN(recv(s, answer, sizeof answer, MSG_DONTWAIT)) < 0 && errno == EAGAIN);
	close(s);
}

/* A file has space for 32 agents, so an interrupted call must not leave one behind. */
static void registers_agents(void)
{
	static int file = -1;
	struct ib_user_mad_reg_req request = { .qpn = 1, .mgmt_class = 4, .mgmt_class_version = 1 };

	if (file < 0)
		file = AGAIN(open("/dev/infiniband/umad0", O_RDWR));
	HOLD(file >= 0);
	HOLD(AGAIN(ioctl(file, IB_USER_MAD_REGISTER_AGENT, &request)) == 0);
	HOLD(AGAIN(ioctl(file, IB_USER_MAD_UNREGISTER_AGENT, &request.id)) == 0);
}

static void *limit(void *nothing)
{
	sleep(60);
	printf("stuck after %ld signals\n", rung);
	fflush(stdout);
	_exit(1);
	return nothing;
}

static double seconds(void)
{
	struct timespec t;
	clock_gettime(CLOCK_MONOTONIC, &t);
	return t.tv_sec + t.tv_nsec / 1e9;
}

int main(int argc, char **argv)
{
	static const int periods[] = { 30000, 1000, 200 };
	static void (*const calls[])(void) = { lists_devices, asks_once_and_is_answered_once, registers_agents };
	pthread_t watcher;
	sigset_t all;

	HOLD(argc == 2 && (devices = atoi(argv[1])) > 0);
	sigfillset(&all);
	pthread_sigmask(SIG_BLOCK, &all, NULL);
	HOLD(!pthread_create(&watcher, NULL, limit, NULL));
	pthread_sigmask(SIG_UNBLOCK, &all, NULL);
	for (int restart = 0; restart < 2; restart++) {
		struct sigaction action = { .sa_handler = ring, .sa_flags = restart ? SA_RESTART : 0 };
		HOLD(!sigaction(SIGALRM, &action, NULL));
		for (unsigned p = 0; p < 3; p++)
			for (unsigned c = 0; c < 3; c++) {
				struct itimerval every = { { 0, periods[p] }, { 0, periods[p] } };
				double until = seconds() + 0.3;
				HOLD(!setitimer(ITIMER_REAL, &every, NULL));
				while (seconds() < until)
					calls[c]();
				HOLD(!setitimer(ITIMER_REAL, &(struct itimerval){ 0 }, NULL));
			}
		printf("calls under signals%s ok\n", restart ? " that let calls go on" : "");
	}
	HOLD(rung > 1000);
	return 0;
}
