/* Polls until a deadline, without a request and with an unanswered one: deadline DEVICE
 *
 * Prints for each of several limits the microseconds that passed by the clock. */
#include "device.h"
#include <time.h>

static double now(void)
{
	struct timespec t;
	clock_gettime(CLOCK_MONOTONIC, &t);
	return t.tv_sec * 1e6 + t.tv_nsec / 1e3;
}

static void poll_for(struct ibv_cq *cq, const char *meanwhile, double limit)
{
	struct ibv_wc wc;
	double begin = now();
	while (now() - begin < limit)
		HOLD(!ibv_poll_cq(cq, 1, &wc));
	printf("%s %.0f %.2f\n", meanwhile, limit, now() - begin);
}

int main(int argc, char **argv)
{
	HOLD(argc == 2);
	struct ibv_context *ctx = opened(argv[1]);
	struct ibv_pd *pd = ibv_alloc_pd(ctx);
	struct ibv_cq *cq = ibv_create_cq(ctx, 16, NULL, NULL, 0);
	HOLD(pd && cq);
	static char memory[64];
	struct ibv_mr *mr = ibv_reg_mr(pd, memory, sizeof memory, IBV_ACCESS_LOCAL_WRITE);
	struct ibv_qp_init_attr init = { .send_cq = cq, .recv_cq = cq, .qp_type = IBV_QPT_RC, .sq_sig_all = 1,
		.cap = { .max_send_wr = 8, .max_recv_wr = 1, .max_send_sge = 1, .max_recv_sge = 1 } };
	struct ibv_qp *qp = ibv_create_qp(pd, &init);
	HOLD(mr && qp);
	poll_for(cq, "nothing", 100);
	poll_for(cq, "nothing", 400);
	union ibv_gid gid;
	HOLD(!ibv_query_gid(ctx, 1, 1, &gid));
		/* No queue pair has this number. */
	connect_to(qp, gid, qp->qp_num ^ 0xfff, IBV_ACCESS_REMOTE_WRITE, IBV_MTU_1024);
	struct ibv_sge sge = { (uintptr_t)memory, sizeof memory, mr->lkey };
	struct ibv_send_wr wr = { .sg_list = &sge, .num_sge = 1, .opcode = IBV_WR_SEND }, *bad;
	HOLD(!ibv_post_send(qp, &wr, &bad));
	poll_for(cq, "unanswered", 100);
	poll_for(cq, "unanswered", 5000);
	poll_for(cq, "unanswered", 100);
	return 0;
}
