/* Prints a row for each refused call: the verb, the invalid attribute, and the code's name. Runs on any device; the argument is its name.
 * For calls that return a pointer the code is errno. */
#define _GNU_SOURCE
#include <infiniband/verbs.h>
#include <rdma/rdma_cma.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#include "device.h"

static const char *verb;

/* Prints the call's code, or its success. */
static void row(const char *what, int code)
{
	printf("| `%s` | %s | %s |\n", verb, what, code == 0 ? "0" : code < 0 ? "-1" : strerrorname_np(code));
}

/* The code of a call that returns a pointer. */
#define MADE(call) ({ errno = 0; (call) ? 0 : errno; })
/* The code of a call that returns -1 and sets errno. */
#define DONE(call) ({ errno = 0; (call) ? errno : 0; })

static struct ibv_context *context;
static struct ibv_pd *pd, *other_pd;
static struct ibv_cq *cq;
static union ibv_gid gid;
static char memory[65536] __attribute__((aligned(4096)));

static struct ibv_qp *queue_pair(enum ibv_qp_type type)
{
	struct ibv_qp_init_attr init = { .send_cq = cq, .recv_cq = cq, .qp_type = type,
		.cap = { .max_send_wr = 8, .max_recv_wr = 8, .max_send_sge = 2, .max_recv_sge = 2, .max_inline_data = 32 } };
	struct ibv_qp *qp = ibv_create_qp(pd, &init);

	HOLD(qp);
	return qp;
}

static const int INIT = IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_ACCESS_FLAGS;
static const int RTR = IBV_QP_STATE | IBV_QP_AV | IBV_QP_PATH_MTU | IBV_QP_DEST_QPN | IBV_QP_RQ_PSN |
	IBV_QP_MAX_DEST_RD_ATOMIC | IBV_QP_MIN_RNR_TIMER;
static const int RTS = IBV_QP_STATE | IBV_QP_TIMEOUT | IBV_QP_RETRY_CNT | IBV_QP_RNR_RETRY | IBV_QP_SQ_PSN |
	IBV_QP_MAX_QP_RD_ATOMIC;

static struct ibv_qp_attr usual(struct ibv_qp *qp, enum ibv_qp_state state)
{
	struct ibv_qp_attr attr = { .qp_state = state, .port_num = 1, .path_mtu = IBV_MTU_1024, .dest_qp_num = qp->qp_num,
		.max_rd_atomic = 1, .max_dest_rd_atomic = 1, .min_rnr_timer = 12, .timeout = 14, .retry_cnt = 7, .rnr_retry = 7 };

	attr.ah_attr.is_global = 1;
	attr.ah_attr.port_num = 1;
	attr.ah_attr.grh.dgid = gid;
	attr.ah_attr.grh.sgid_index = 1;
	attr.ah_attr.grh.hop_limit = 64;
	return attr;
}

/* Tries a transition of a queue pair in state `from` with changed attributes. */
#define TRY(from, to, mask, what, change) do { \
	struct ibv_qp *qp = queue_pair(IBV_QPT_RC); \
	struct ibv_qp_attr attr = usual(qp, IBV_QPS_INIT); \
	if (from >= IBV_QPS_INIT) \
		HOLD(!ibv_modify_qp(qp, &attr, INIT)); \
	attr = usual(qp, IBV_QPS_RTR); \
	if (from >= IBV_QPS_RTR) \
		HOLD(!ibv_modify_qp(qp, &attr, RTR)); \
	attr = usual(qp, to); \
	change; \
	row(what, ibv_modify_qp(qp, &attr, mask)); \
	HOLD(!ibv_destroy_qp(qp)); \
} while (0)

static void queue_pairs_change(void)
{
	verb = "ibv_modify_qp";
	TRY(IBV_QPS_RESET, IBV_QPS_ERR, IBV_QP_STATE, "RESET to ERR", );
	TRY(IBV_QPS_RESET, IBV_QPS_RTR, RTR, "RESET to RTR", );
	TRY(IBV_QPS_RESET, IBV_QPS_INIT, IBV_QP_STATE, "INIT without its attributes", );
	TRY(IBV_QPS_RESET, IBV_QPS_INIT, INIT, "INIT, port 0", attr.port_num = 0);
	TRY(IBV_QPS_RESET, IBV_QPS_INIT, INIT, "INIT, port 2", attr.port_num = 2);
	TRY(IBV_QPS_RESET, IBV_QPS_INIT, INIT, "INIT, a P_Key index past the table", attr.pkey_index = 60000);
	TRY(IBV_QPS_RESET, IBV_QPS_INIT, INIT | IBV_QP_QKEY, "INIT of RC, with a Q_Key", );
	TRY(IBV_QPS_RESET, 77, INIT, "a state that is none", );
	TRY(IBV_QPS_INIT, IBV_QPS_RTR, RTR, "RTR, port 0 in the path", attr.ah_attr.port_num = 0);
	TRY(IBV_QPS_INIT, IBV_QPS_RTR, RTR, "RTR, port 2 in the path", attr.ah_attr.port_num = 2);
	TRY(IBV_QPS_INIT, IBV_QPS_RTR, RTR, "RTR, port 200 in the path", attr.ah_attr.port_num = 200);
	TRY(IBV_QPS_INIT, IBV_QPS_RTR, RTR, "RTR, an empty entry of the GID table", attr.ah_attr.grh.sgid_index = 31);
	TRY(IBV_QPS_INIT, IBV_QPS_RTR, RTR, "RTR, a GID index past the table", attr.ah_attr.grh.sgid_index = 255);
	TRY(IBV_QPS_INIT, IBV_QPS_RTR, RTR, "RTR, 17 READs from the peer", attr.max_dest_rd_atomic = 17);
	TRY(IBV_QPS_INIT, IBV_QPS_RTS, RTS, "INIT to RTS", );
	TRY(IBV_QPS_RTR, IBV_QPS_RTS, RTS, "RTS, 17 READs to the peer", attr.max_rd_atomic = 17);
	TRY(IBV_QPS_RTR, IBV_QPS_RTS, RTS & ~IBV_QP_SQ_PSN, "RTS without a PSN", );
}

static void queue_pairs_are_made(void)
{
	struct ibv_qp_init_attr init = { .send_cq = cq, .recv_cq = cq, .qp_type = IBV_QPT_RC,
		.cap = { .max_send_wr = 8, .max_recv_wr = 8, .max_send_sge = 1, .max_recv_sge = 1 } }, one;

	verb = "ibv_create_qp";
	one = init, one.cap.max_send_wr = 1 << 20;
	row("a million requests", MADE(ibv_create_qp(pd, &one)));
	one = init, one.cap.max_recv_wr = 1 << 20;
	row("a million receives", MADE(ibv_create_qp(pd, &one)));
	one = init, one.cap.max_send_sge = 1000;
	row("1,000 pieces of a request", MADE(ibv_create_qp(pd, &one)));
	one = init, one.cap.max_recv_sge = 1000;
	row("1,000 pieces of a receive", MADE(ibv_create_qp(pd, &one)));
	one = init, one.cap.max_inline_data = 1 << 20;
	row("a mebibyte inline", MADE(ibv_create_qp(pd, &one)));
	one = init, one.qp_type = 99;
	row("a type that is none", MADE(ibv_create_qp(pd, &one)));
}

static void address_handles(void)
{
	struct ibv_ah_attr attr = { .is_global = 1, .port_num = 1, .grh = { .dgid = gid, .sgid_index = 1, .hop_limit = 64 } }, one;

	verb = "ibv_create_ah";
	one = attr, one.port_num = 0;
	row("port 0", MADE(ibv_create_ah(pd, &one)));
	one = attr, one.port_num = 2;
	row("port 2", MADE(ibv_create_ah(pd, &one)));
	one = attr, one.grh.sgid_index = 31;
	row("an empty entry of the GID table", MADE(ibv_create_ah(pd, &one)));
	one = attr, one.grh.sgid_index = 255;
	row("a GID index past the table", MADE(ibv_create_ah(pd, &one)));
	one = attr, one.is_global = 0;
	row("no GRH on Ethernet", MADE(ibv_create_ah(pd, &one)));
}

static void regions(void)
{
	const int on_demand = IBV_ACCESS_ON_DEMAND;
	struct ibv_mr *paged, *of_other, *pinned;
	struct ibv_sge piece = { .addr = (uintptr_t)memory, .length = 4096 };

	verb = "ibv_reg_mr";
	row("an access flag that is none", MADE(ibv_reg_mr(pd, memory, 4096, 1 << 12)));
	row("the peer may write, the device not", MADE(ibv_reg_mr(pd, memory, 4096, IBV_ACCESS_REMOTE_WRITE)));
	row("memory that is not there", MADE(ibv_reg_mr(pd, (void *)4096, 4096, IBV_ACCESS_LOCAL_WRITE)));
	verb = "ibv_rereg_mr";
	HOLD((pinned = ibv_reg_mr(pd, memory, 4096, IBV_ACCESS_LOCAL_WRITE)));
	row("no flag", ibv_rereg_mr(pinned, 0, pd, memory, 4096, 0));
	row("a flag that is none", ibv_rereg_mr(pinned, 1 << 9, pd, memory, 4096, 0));
	paged = ibv_reg_mr(pd, memory, 4096, on_demand);
	of_other = ibv_reg_mr(other_pd, memory, 4096, on_demand);
	if (!paged || !of_other)
		return;
	verb = "ibv_advise_mr";
#define ADVISE(key, advice, flags) (piece.lkey = key, ibv_advise_mr(pd, advice, flags, &piece, 1))
	row("a key that is none", ADVISE(0x7654321, IBV_ADVISE_MR_ADVICE_PREFETCH, IBV_ADVISE_MR_FLAG_FLUSH));
	row("a region that is not on demand", ADVISE(pinned->lkey, IBV_ADVISE_MR_ADVICE_PREFETCH, IBV_ADVISE_MR_FLAG_FLUSH));
	row("a region of another domain", ADVISE(of_other->lkey, IBV_ADVISE_MR_ADVICE_PREFETCH, IBV_ADVISE_MR_FLAG_FLUSH));
	row("to write where the device may not",
		ADVISE(paged->lkey, IBV_ADVISE_MR_ADVICE_PREFETCH_WRITE, IBV_ADVISE_MR_FLAG_FLUSH));
	row("an advice that is none", ADVISE(paged->lkey, 77, IBV_ADVISE_MR_FLAG_FLUSH));
	row("a flag that is none", ADVISE(paged->lkey, IBV_ADVISE_MR_ADVICE_PREFETCH, 1 << 8));
}

static void requests(void)
{
	struct ibv_qp *qp = queue_pair(IBV_QPT_RC);
	struct ibv_mr *mr = ibv_reg_mr(pd, memory, sizeof memory, IBV_ACCESS_LOCAL_WRITE);
	struct ibv_sge pieces[64];
	struct ibv_send_wr send, *bad_send;
	struct ibv_recv_wr recv, *bad_recv;
	struct ibv_qp_attr attr;
	struct ibv_qp_init_attr init;

	HOLD(mr && !ibv_query_qp(qp, &attr, IBV_QP_CAP, &init));
	for (int i = 0; i < 64; i++)
		pieces[i] = (struct ibv_sge){ .addr = (uintptr_t)memory, .length = 1, .lkey = mr->lkey };
	attr = usual(qp, IBV_QPS_INIT);
	HOLD(!ibv_modify_qp(qp, &attr, INIT) && !ibv_query_qp(qp, &attr, IBV_QP_CAP, &init));
	verb = "ibv_post_recv";
	recv = (struct ibv_recv_wr){ .sg_list = pieces, .num_sge = attr.cap.max_recv_sge + 1 };
	row("a piece too many", ibv_post_recv(qp, &recv, &bad_recv));
	recv.num_sge = 1;
	for (unsigned i = 0; i < attr.cap.max_recv_wr; i++)
		ibv_post_recv(qp, &recv, &bad_recv);
	row("a full queue", ibv_post_recv(qp, &recv, &bad_recv));
	attr = usual(qp, IBV_QPS_RTR);
	HOLD(!ibv_modify_qp(qp, &attr, RTR));
	attr = usual(qp, IBV_QPS_RTS);
	HOLD(!ibv_modify_qp(qp, &attr, RTS) && !ibv_query_qp(qp, &attr, IBV_QP_CAP, &init));
	verb = "ibv_post_send";
	send = (struct ibv_send_wr){ .opcode = 99 };
	row("an opcode that is none", ibv_post_send(qp, &send, &bad_send));
	send = (struct ibv_send_wr){ .opcode = IBV_WR_SEND, .sg_list = pieces, .num_sge = attr.cap.max_send_sge + 1 };
	row("a piece too many", ibv_post_send(qp, &send, &bad_send));
	pieces[0].length = attr.cap.max_inline_data + 1;
	send = (struct ibv_send_wr){ .opcode = IBV_WR_SEND, .sg_list = pieces, .num_sge = 1, .send_flags = IBV_SEND_INLINE };
	row("a byte too many inline", ibv_post_send(qp, &send, &bad_send));
	HOLD(!ibv_destroy_qp(qp) && !ibv_dereg_mr(mr));
}

static void others(void)
{
	struct ibv_port_attr port;
	union ibv_gid unused;
	uint16_t pkey;

	verb = "ibv_query_port";
	row("port 0", DONE(ibv_query_port(context, 0, &port)));
	row("port 2", DONE(ibv_query_port(context, 2, &port)));
	verb = "ibv_query_gid";
	row("an index past the table", DONE(ibv_query_gid(context, 1, 1000, &unused)));
	row("port 2", DONE(ibv_query_gid(context, 2, 0, &unused)));
	verb = "ibv_query_pkey";
	row("an index past the table", DONE(ibv_query_pkey(context, 1, 60000, &pkey)));
	verb = "ibv_create_cq";
	row("no entries", MADE(ibv_create_cq(context, 0, NULL, NULL, 0)));
	row("a thousand million entries", MADE(ibv_create_cq(context, 1000000000, NULL, NULL, 0)));
	row("a vector past the last", MADE(ibv_create_cq(context, 8, NULL, NULL, 10000)));
	verb = "ibv_destroy_cq";
	struct ibv_qp *qp = queue_pair(IBV_QPT_UD);
	row("a queue pair uses it", DONE(ibv_destroy_cq(cq)));
	HOLD(!ibv_destroy_qp(qp));
	verb = "ibv_dealloc_pd";
	HOLD(ibv_reg_mr(other_pd, memory, 4096, IBV_ACCESS_LOCAL_WRITE));
	row("a region is in it", DONE(ibv_dealloc_pd(other_pd)));
}

int main(int argc, char **argv)
{
	HOLD(argc == 2);
	context = opened(argv[1]);
	HOLD((pd = ibv_alloc_pd(context)) && (other_pd = ibv_alloc_pd(context)));
	HOLD((cq = ibv_create_cq(context, 64, NULL, NULL, 0)) && !ibv_query_gid(context, 1, 1, &gid));
	queue_pairs_are_made();
	queue_pairs_change();
	address_handles();
	regions();
	requests();
	others();
	return 0;
}
