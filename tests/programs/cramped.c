/* A program that gives up its user, its root or its descriptors after it has opened its devices, which must go on working. The first two
 * arguments are the devices of two processes. */
#define _GNU_SOURCE
#include <fcntl.h>
#include <grp.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "device.h"

/* The values that the two processes exchange. */
static struct shared {
	volatile int step;
	char empty[64];
	struct end {
		uint32_t qpn, key;
		uint64_t address;
		union ibv_gid gid;
	} ends[2];
} *shared;

static struct ibv_context *context;
static struct ibv_cq *cq;
static struct ibv_qp *qp;
static struct ibv_mr *mr;
static char *memory;

static void until(int step)
{
	time_t end = time(NULL) + 20;

	__sync_fetch_and_add(&shared->step, 1);
	while (shared->step < step) {
		HOLD(time(NULL) < end);
		usleep(1000);
	}
}

/* Connects this end with the other one. Its memory is not whole pages, so it is not lent: the thread that runs the device copies it. */
static void meet(int me, const char *device)
{
	struct ibv_pd *pd;

	context = opened(device);
	HOLD((pd = ibv_alloc_pd(context)) && (cq = ibv_create_cq(context, 16, NULL, NULL, 0)));
	HOLD((memory = calloc(1, 100)) && (mr = ibv_reg_mr(pd, memory, 100, IBV_ACCESS_LOCAL_WRITE |
		IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_REMOTE_READ)));
	struct ibv_qp_init_attr init = { .send_cq = cq, .recv_cq = cq, .qp_type = IBV_QPT_RC,
		.cap = { .max_send_wr = 4, .max_recv_wr = 4, .max_send_sge = 1, .max_recv_sge = 1 }, .sq_sig_all = 1 };
	HOLD((qp = ibv_create_qp(pd, &init)));
	struct end *end = &shared->ends[me], *other = &shared->ends[!me];
	*end = (struct end){ .qpn = qp->qp_num, .key = mr->rkey, .address = (uintptr_t)memory };
	HOLD(!ibv_query_gid(context, 1, 1, &end->gid));
	until(2);
	struct ibv_qp_attr attr = { .qp_state = IBV_QPS_INIT, .port_num = 1,
		.qp_access_flags = IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_REMOTE_READ };
	HOLD(!ibv_modify_qp(qp, &attr, IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_ACCESS_FLAGS));
	attr = (struct ibv_qp_attr){ .qp_state = IBV_QPS_RTR, .path_mtu = IBV_MTU_1024, .dest_qp_num = other->qpn,
		.max_dest_rd_atomic = 1, .min_rnr_timer = 12, .ah_attr = { .port_num = 1, .is_global = 1,
		.grh = { .dgid = other->gid, .sgid_index = 1, .hop_limit = 1 } } };
	HOLD(!ibv_modify_qp(qp, &attr, IBV_QP_STATE | IBV_QP_AV | IBV_QP_PATH_MTU | IBV_QP_DEST_QPN | IBV_QP_RQ_PSN |
		IBV_QP_MAX_DEST_RD_ATOMIC | IBV_QP_MIN_RNR_TIMER));
	attr = (struct ibv_qp_attr){ .qp_state = IBV_QPS_RTS, .timeout = 12, .retry_cnt = 7, .rnr_retry = 7, .max_rd_atomic = 1 };
	HOLD(!ibv_modify_qp(qp, &attr, IBV_QP_STATE | IBV_QP_TIMEOUT | IBV_QP_RETRY_CNT | IBV_QP_RNR_RETRY | IBV_QP_SQ_PSN |
		IBV_QP_MAX_QP_RD_ATOMIC));
	until(4);
}

static int request(enum ibv_wr_opcode opcode, int offset, int length)
{
	struct end *other = &shared->ends[0];
	struct ibv_sge piece = { .addr = (uintptr_t)memory + offset, .length = length, .lkey = mr->lkey };
	struct ibv_send_wr wr = { .opcode = opcode, .sg_list = &piece, .num_sge = 1,
		.wr.rdma = { .remote_addr = other->address, .rkey = other->key } }, *bad;
	struct ibv_wc wc;
	time_t end = time(NULL) + 10;

	HOLD(!ibv_post_send(qp, &wr, &bad));
	while (!ibv_poll_cq(cq, 1, &wc))
		HOLD(time(NULL) < end);
	return wc.status;
}

int main(int argc, char **argv)
{
	int status;
	union ibv_gid gid;
	struct ibv_gid_entry entry;

	HOLD(argc == 3 && (shared = mmap(NULL, sizeof *shared, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0)) != MAP_FAILED);
	strcpy(shared->empty, "/tmp/ironverbs-empty-XXXXXX");
	HOLD(mkdtemp(shared->empty));
	if (fork()) {
		meet(0, argv[1]);
		HOLD(wait(&status) > 0 && !rmdir(shared->empty));
		HOLD(!strcmp(memory, "hello"));
		return WEXITSTATUS(status);
	}
	meet(1, argv[2]);
	strcpy(memory, "hello");
		/* No descriptor is left, and nothing of the previous root. */
	struct rlimit few = { 3, 3 }, had;
	HOLD(!getrlimit(RLIMIT_NOFILE, &had));
	few.rlim_max = had.rlim_max;
	HOLD(!setrlimit(RLIMIT_NOFILE, &few));
	HOLD(!ibv_query_gid(context, 1, 1, &gid) && !ibv_query_gid_ex(context, 1, 1, &entry, 0));
	HOLD(!memcmp(&gid, &entry.gid, sizeof gid));
	HOLD(request(IBV_WR_RDMA_WRITE, 0, 6) == IBV_WC_SUCCESS);
	printf("no descriptors ok\n");
	if (getuid())
		return 0;
	HOLD(!chroot(shared->empty) && !chdir("/"));
	HOLD(!ibv_query_gid(context, 1, 1, &gid) && !ibv_query_gid_ex(context, 1, 1, &entry, 0));
	printf("no root ok\n");
	HOLD(!setgroups(0, NULL) && !setgid(65534) && !setuid(65534));
	HOLD(request(IBV_WR_RDMA_WRITE, 0, 6) == IBV_WC_SUCCESS);
	HOLD(request(IBV_WR_RDMA_READ, 20, 6) == IBV_WC_SUCCESS && !strcmp(memory + 20, "hello"));
	printf("no rights ok\n");
	return 0;
}
