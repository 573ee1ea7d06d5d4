/* Threads that post to one queue pair by both interfaces, take its completions, fork, and register memory: threads DEVICE
 *
 * Prints a line for each promise that is kept. */
#include "device.h"
#include <pthread.h>
#include <stdatomic.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

enum { THREADS = 3, EACH = 20000, DEPTH = 64, PAGE = 4096 };

static struct ibv_context *ctx;
static struct ibv_pd *pd;
static struct ibv_cq *cq;
static struct ibv_qp *qp;
static struct ibv_qp_ex *qpx;
static struct ibv_mr *mr;
static char *memory;
static atomic_int under_way, done;

static char *pages(size_t count)
{
	char *at = mmap(NULL, count * PAGE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	HOLD(at != MAP_FAILED);
	return at;
}

static void open_device(const char *name)
{
	ctx = opened(name);
	HOLD((pd = ibv_alloc_pd(ctx)));
	HOLD((cq = ibv_create_cq(ctx, 4 * DEPTH, NULL, NULL, 0)));
	memory = pages(1);
	HOLD((mr = ibv_reg_mr(pd, memory, PAGE, IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE)));
}

static void make_queue_pair(void)
{
	struct ibv_qp_init_attr_ex init = { .send_cq = cq, .recv_cq = cq, .cap = { .max_send_wr = 2 * DEPTH, .max_recv_wr = 1,
		.max_send_sge = 1, .max_recv_sge = 1 }, .qp_type = IBV_QPT_RC, .sq_sig_all = 1, .pd = pd,
		.comp_mask = IBV_QP_INIT_ATTR_PD | IBV_QP_INIT_ATTR_SEND_OPS_FLAGS, .send_ops_flags = IBV_QP_EX_WITH_RDMA_WRITE };
	HOLD((qp = ibv_create_qp_ex(ctx, &init)));
	qpx = ibv_qp_to_qp_ex(qp);
	connect_to_itself(qp, IBV_ACCESS_REMOTE_WRITE, IBV_MTU_1024);
}

static void take(void)
{
	struct ibv_wc wc[8];
	int n = ibv_poll_cq(cq, 8, wc);
	HOLD(n >= 0);
	for (int i = 0; i < n; i++)
		HOLD(wc[i].status == IBV_WC_SUCCESS);
	atomic_fetch_add(&done, n);
	atomic_fetch_sub(&under_way, n);
}

static void post(int extended, long number)
{
	uint64_t to = (uintptr_t)memory + number % 8 * 8 + 64;
	if (extended) {
		ibv_wr_start(qpx);
		qpx->wr_id = number;
		qpx->wr_flags = IBV_SEND_SIGNALED;
		ibv_wr_rdma_write(qpx, mr->rkey, to);
		ibv_wr_set_sge(qpx, mr->lkey, (uintptr_t)memory, 8);
		HOLD(!ibv_wr_complete(qpx));
		return;
	}
	struct ibv_sge sge = { (uintptr_t)memory, 8, mr->lkey };
	struct ibv_send_wr *bad, wr = { .wr_id = number, .sg_list = &sge, .num_sge = 1, .opcode = IBV_WR_RDMA_WRITE,
		.send_flags = IBV_SEND_SIGNALED, .wr.rdma = { to, mr->rkey } };
	HOLD(!ibv_post_send(qp, &wr, &bad));
}

static void *posts(void *extended)
{
	for (long i = 0; i < EACH; i++) {
		while (atomic_fetch_add(&under_way, 1) >= DEPTH) {
			atomic_fetch_sub(&under_way, 1);
			take();
		}
		post(extended != NULL, i);
	}
	return NULL;
}

static void all_post(int extended_ones)
{
	pthread_t threads[THREADS];
	done = 0;
	for (long i = 0; i < THREADS; i++)
		HOLD(!pthread_create(&threads[i], NULL, posts, i < extended_ones ? memory : NULL));
	for (int i = 0; i < THREADS; i++)
		HOLD(!pthread_join(threads[i], NULL));
	while (done < THREADS * EACH)
		take();
	HOLD(done == THREADS * EACH);
}

/* A program's own lock, held over forks as allocators hold theirs. */
static pthread_mutex_t own = PTHREAD_MUTEX_INITIALIZER;
static atomic_int over;

static void lock(void) { pthread_mutex_lock(&own); }
static void unlock(void) { pthread_mutex_unlock(&own); }

static void *registers(void *unused)
{
	char *mine = pages(2);
	while (!over) {
		lock();
		struct ibv_mr *here = ibv_reg_mr(pd, mine, 2 * PAGE, IBV_ACCESS_LOCAL_WRITE);
		HOLD(here);
		mine[PAGE]++;
		HOLD(!ibv_dereg_mr(here));
		unlock();
	}
	return unused;
}

static void fork_meanwhile(void)
{
	pthread_t thread;
	HOLD(!pthread_create(&thread, NULL, registers, NULL));
	for (int i = 0; i < 300; i++) {
		int status;
		pid_t child = fork();
		HOLD(child >= 0);
		if (child == 0) {
			memory[0] = 9;
			_exit(0);
		}
		HOLD(waitpid(child, &status, 0) == child && status == 0);
	}
	over = 1;
	HOLD(!pthread_join(thread, NULL));
	HOLD(memory[0] == 0);
}

int main(int argc, char **argv)
{
	HOLD(argc == 2);
		/* Before any handler of the provider can be. */
	HOLD(!pthread_atfork(lock, unlock, unlock));
	open_device(argv[1]);
	make_queue_pair();
	all_post(0);
	printf("threads that post by one call ok\n");
	all_post(THREADS);
	printf("threads that post by several calls ok\n");
	all_post(1);
	printf("threads that post by either ok\n");
	fork_meanwhile();
	printf("threads that fork while others register ok\n");
	return 0;
}
