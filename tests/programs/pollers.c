/* A caller that posts RDMA READs and spins on a flag, and threads that poll a completion queue each: pollers DEVICE THREADS READS
 *
  * Prints microseconds a READ of 4 KiB: the median, the mean, and the longest; and the number of voluntary sleeps of each polling thread.
 * The reads use one queue pair after the other, as transfer engines distribute them among their workers. */
#define _GNU_SOURCE
#include "device.h"
#include <pthread.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <time.h>

enum { MOST = 8, LEN = 4096 };

static struct ibv_context *ctx;
static struct ibv_pd *pd;
static struct ibv_mr *mr;
static struct ibv_cq *cqs[MOST];
static struct ibv_qp *qps[MOST];
static long slept[MOST];
static _Alignas(4096) char memory[2 * LEN];
static atomic_int done, over;

static void open_device(const char *name)
{
	ctx = opened(name);
	HOLD((pd = ibv_alloc_pd(ctx)));
	HOLD((mr = ibv_reg_mr(pd, memory, sizeof memory, IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_READ)));
}

static struct ibv_qp *connected_to_itself(struct ibv_cq *cq)
{
	struct ibv_qp_init_attr init = { .send_cq = cq, .recv_cq = cq, .cap = { .max_send_wr = 8, .max_recv_wr = 1,
		.max_send_sge = 1, .max_recv_sge = 1 }, .qp_type = IBV_QPT_RC, .sq_sig_all = 1 };
	struct ibv_qp *qp = ibv_create_qp(pd, &init);
	HOLD(qp);
	connect_to_itself(qp, IBV_ACCESS_REMOTE_READ, IBV_MTU_4096);
	return qp;
}

static void *work(void *number)
{
	int me = (intptr_t)number;
	struct ibv_wc wc;
	while (!atomic_load(&over)) {
		int n = ibv_poll_cq(cqs[me], 1, &wc);
		HOLD(n >= 0);
		if (n) {
			HOLD(wc.status == IBV_WC_SUCCESS);
			atomic_fetch_add(&done, 1);
		}
	}
	struct rusage usage;
	HOLD(!getrusage(RUSAGE_THREAD, &usage));
	slept[me] = usage.ru_nvcsw;
	return NULL;
}

static double now(void)
{
	struct timespec t;
	clock_gettime(CLOCK_MONOTONIC, &t);
	return t.tv_sec * 1e6 + t.tv_nsec / 1e3;
}

static int by_size(const void *a, const void *b)
{
	return (*(const double *)a > *(const double *)b) - (*(const double *)a < *(const double *)b);
}

int main(int argc, char **argv)
{
	HOLD(argc == 4);
	int threads = atoi(argv[2]), reads = atoi(argv[3]);
	HOLD(threads > 0 && threads <= MOST && reads > 0);
	open_device(argv[1]);
	pthread_t workers[MOST];
	for (int i = 0; i < threads; i++) {
		HOLD((cqs[i] = ibv_create_cq(ctx, 16, NULL, NULL, 0)));
		qps[i] = connected_to_itself(cqs[i]);
		HOLD(!pthread_create(&workers[i], NULL, work, (void *)(intptr_t)i));
	}
	double *took = calloc(reads, sizeof *took), sum = 0;
	HOLD(took);
	for (int i = 0; i < reads; i++) {
		struct ibv_sge sge = { (uintptr_t)memory, LEN, mr->lkey };
		struct ibv_send_wr wr = { .sg_list = &sge, .num_sge = 1, .opcode = IBV_WR_RDMA_READ,
			.wr.rdma = { (uintptr_t)memory + LEN, mr->rkey } }, *bad;
		double begin = now();
		HOLD(!ibv_post_send(qps[i % threads], &wr, &bad));
		while (atomic_load(&done) <= i)
			;
		sum += took[i] = now() - begin;
	}
	atomic_store(&over, 1);
	for (int i = 0; i < threads; i++)
		pthread_join(workers[i], NULL);
	qsort(took, reads, sizeof *took, by_size);
	printf("%.1f %.1f %.1f", took[reads / 2], sum / reads, took[reads - 1]);
	for (int i = 0; i < threads; i++)
		printf(" %ld", slept[i]);
	printf("\n");
	return 0;
}
