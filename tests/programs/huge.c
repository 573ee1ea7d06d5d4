/* The memory of queues by MLX_CQ_ALLOC_TYPE and similar variables, through the stock libibverbs: huge DEVICE
 *
 * HUGE gives huge pages or ENOMEM, PREFER_HUGE falls back to other memory, contiguous memory is refused. Queues in huge pages
 * carry traffic, and the pages are free again afterwards. Checks that need huge pages are skipped on machines without free ones.
 * Prints a line for each promise that is kept; ends with 1 at the first that is not. */
#define _GNU_SOURCE
#include <string.h>
#include <sys/mman.h>
#include <sys/shm.h>
#include <time.h>

#include "device.h"

#define HUGE (2ul << 20)

static struct ibv_context *context;
static struct ibv_pd *pd;

/* Returns a number of /proc/meminfo. */
static long meminfo(const char *name)
{
	char line[200];
	long found = -1;
	FILE *file = fopen("/proc/meminfo", "r");

	HOLD(file);
	while (fgets(line, sizeof(line), file))
		if (!strncmp(line, name, strlen(name)))
			found = atol(line + strlen(name));
	fclose(file);
	return found;
}

static long pages_left(void) { return meminfo("HugePages_Free:") - meminfo("HugePages_Rsvd:"); }

static void environment(const char *value)
{
	static const char *const names[] = { "MLX_CQ_ALLOC_TYPE", "MLX_QP_ALLOC_TYPE", "MLX_SRQ_ALLOC_TYPE", "MLX_RWQ_ALLOC_TYPE" };

	for (int i = 0; i < 4; i++)
		HOLD(value ? !setenv(names[i], value, 1) : !unsetenv(names[i]));
}

static struct ibv_qp *rc(struct ibv_cq *cq)
{
	struct ibv_qp_init_attr init = { .send_cq = cq, .recv_cq = cq, .qp_type = IBV_QPT_RC, .sq_sig_all = 1,
		.cap = { .max_send_wr = 100, .max_recv_wr = 100, .max_send_sge = 1, .max_recv_sge = 1 } };

	return ibv_create_qp(pd, &init);
}

static struct ibv_srq *shared(void)
{
	struct ibv_srq_init_attr init = { .attr = { .max_wr = 0, .max_sge = 0 } };

	return ibv_create_srq(pd, &init);
}

static struct ibv_wq *work(struct ibv_cq *cq)
{
	struct ibv_wq_init_attr init = { .wq_type = IBV_WQT_RQ, .max_wr = 64, .max_sge = 1, .pd = pd, .cq = cq };

	return ibv_create_wq(context, &init);
}

/* Sends a hundred messages from a queue pair to itself. */
static void traffic(struct ibv_cq *cq, struct ibv_qp *qp)
{
	static uint8_t memory[8192] __attribute__((aligned(64)));
	struct ibv_mr *mr = ibv_reg_mr(pd, memory, sizeof(memory), IBV_ACCESS_LOCAL_WRITE);
	struct ibv_qp_attr attr = { .qp_state = IBV_QPS_INIT, .port_num = 1, .path_mtu = IBV_MTU_1024, .dest_qp_num = qp->qp_num,
		.max_dest_rd_atomic = 1, .min_rnr_timer = 12, .timeout = 14, .retry_cnt = 7, .rnr_retry = 7, .max_rd_atomic = 1,
		.ah_attr = { .is_global = 1, .port_num = 1, .grh = { .sgid_index = 1, .hop_limit = 64 } } };

	HOLD(mr && !ibv_query_gid(context, 1, 1, &attr.ah_attr.grh.dgid));
	HOLD(!ibv_modify_qp(qp, &attr, IBV_QP_STATE | IBV_QP_PORT | IBV_QP_PKEY_INDEX | IBV_QP_ACCESS_FLAGS));
	attr.qp_state = IBV_QPS_RTR;
	HOLD(!ibv_modify_qp(qp, &attr, IBV_QP_STATE | IBV_QP_AV | IBV_QP_PATH_MTU | IBV_QP_DEST_QPN | IBV_QP_RQ_PSN |
		IBV_QP_MAX_DEST_RD_ATOMIC | IBV_QP_MIN_RNR_TIMER));
	attr.qp_state = IBV_QPS_RTS;
	HOLD(!ibv_modify_qp(qp, &attr, IBV_QP_STATE | IBV_QP_TIMEOUT | IBV_QP_RETRY_CNT | IBV_QP_RNR_RETRY | IBV_QP_SQ_PSN |
		IBV_QP_MAX_QP_RD_ATOMIC));
	for (int i = 0; i < 300; i++) {
		struct ibv_sge from = { (uintptr_t)memory, 4096, mr->lkey }, to = { (uintptr_t)memory + 4096, 4096, mr->lkey };
		struct ibv_recv_wr receive = { .wr_id = 1, .sg_list = &to, .num_sge = 1 }, *bad_receive;
		struct ibv_send_wr send = { .wr_id = 2, .opcode = IBV_WR_SEND, .sg_list = &from, .num_sge = 1 }, *bad_send;
		time_t limit = time(NULL) + 10;

		memset(memory, i, 4096);
		HOLD(!ibv_post_recv(qp, &receive, &bad_receive) && !ibv_post_send(qp, &send, &bad_send));
		for (int got = 0; got < 2;) {
			struct ibv_wc wc;
			int n = ibv_poll_cq(cq, 1, &wc);

			HOLD(n >= 0 && time(NULL) < limit && (!n || wc.status == IBV_WC_SUCCESS));
			got += n;
		}
		HOLD(!memcmp(memory, memory + 4096, 4096));
	}
	HOLD(!ibv_dereg_mr(mr));
}

/* All four kinds of queues can be created, and work. */
static void made(void)
{
	struct ibv_cq *cq = ibv_create_cq(context, 100, NULL, NULL, 0);
	struct ibv_qp *qp = cq ? rc(cq) : NULL;
	struct ibv_srq *srq = shared();
	struct ibv_wq *wq = work(cq);

	HOLD(cq && qp && srq && wq);
	traffic(cq, qp);
	HOLD(!ibv_resize_cq(cq, 1000));
	HOLD(!ibv_destroy_wq(wq) && !ibv_destroy_srq(srq) && !ibv_destroy_qp(qp) && !ibv_destroy_cq(cq));
}

/* None of them can be created. */
static void none(void)
{
	struct ibv_cq *cq;

	errno = 0;
	HOLD(!ibv_create_cq(context, 100, NULL, NULL, 0) && errno == ENOMEM);
	errno = 0;
	HOLD(!shared() && errno == ENOMEM);
	HOLD(!unsetenv("MLX_CQ_ALLOC_TYPE"));
	HOLD(cq = ibv_create_cq(context, 100, NULL, NULL, 0));
	errno = 0;
	HOLD(!rc(cq) && errno == ENOMEM);
	errno = 0;
	HOLD(!work(cq) && errno == ENOMEM);
	HOLD(!ibv_destroy_cq(cq));
}

/* Takes all free huge pages. */
static void *take_all(long *taken)
{
	*taken = pages_left() * HUGE;
	if (!*taken)
		return NULL;
	void *all = mmap(NULL, *taken, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_HUGETLB, -1, 0);
	HOLD(all != MAP_FAILED);
	return all;
}

static int may_have_pages(void)
{
	int id = pages_left() < 1 ? -1 : shmget(IPC_PRIVATE, HUGE, SHM_HUGETLB | 0600);

	return id != -1 && !shmctl(id, IPC_RMID, NULL);
}

static void in_huge_pages(void)
{
	long before = pages_left();
	struct ibv_cq *cq;
	struct ibv_qp *qps[20];

	environment("HUGE");
	HOLD(cq = ibv_create_cq(context, 100, NULL, NULL, 0));
	HOLD(pages_left() == before - 1);
	for (int i = 0; i < 20; i++)
		HOLD(qps[i] = rc(cq));
	HOLD(pages_left() == before - 1);
	for (int i = 0; i < 20; i++)
		HOLD(!ibv_destroy_qp(qps[i]));
	HOLD(!ibv_destroy_cq(cq));
	HOLD(pages_left() == before);
	made();
	HOLD(pages_left() == before);
	environment("PREFER_HUGE");
	HOLD(cq = ibv_create_cq(context, 100, NULL, NULL, 0));
	HOLD(pages_left() == before - 1 && !ibv_destroy_cq(cq));
	environment(NULL);
	HOLD(!setenv("HUGE_CQ", "y", 1));
	HOLD(cq = ibv_create_cq(context, 100, NULL, NULL, 0));
	HOLD(pages_left() == before - 1 && !ibv_destroy_cq(cq) && !unsetenv("HUGE_CQ"));
	puts("huge pages ok");
}

static void without_any(void)
{
	long taken;
	void *all = take_all(&taken);

	environment("HUGE");
	none();
	environment("PREFER_HUGE");
	made();
	environment("ALL");
	made();
	if (all)
		HOLD(!munmap(all, taken));
	puts("without any ok");
}

static void elsewhere(void)
{
	environment("CONTIG");
	none();
	environment("PREFER_CONTIG");
	made();
	environment("ANON");
	made();
	environment("what");
	made();
	environment(NULL);
	made();
	puts("elsewhere ok");
}

int main(int argc, char **argv)
{
	setvbuf(stdout, NULL, _IONBF, 0);
	HOLD(argc == 2);
	context = opened(argv[1]);
	HOLD((pd = ibv_alloc_pd(context)));
	if (may_have_pages())
		in_huge_pages();
	without_any();
	elsewhere();
	HOLD(!ibv_dealloc_pd(pd) && !ibv_close_device(context));
	return 0;
}
