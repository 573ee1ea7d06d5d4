/* Shared receive queues and XRC in a C program: shared DEVICE GID-INDEX
 *
 * Tests the results of invalid calls, limit and last-receive events through ibv_get_async_event, an XRC domain that two
 * processes open through one descriptor, and its target, which the second process opens and which outlives the first. */
#include <errno.h>
#include <fcntl.h>
#include "device.h"
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#define FAILS(call, with) do { errno = 0; HOLD(!(call)); HOLD(errno == (with)); } while (0)

static struct ibv_context *ctx;
static struct ibv_pd *pd;
static struct ibv_cq *cq;
static struct ibv_mr *mr;
static char memory[4096];
static int gid_index;
static union ibv_gid gid;
static struct ibv_port_attr port;

static void open_device(const char *name)
{
	ctx = opened(name);
	HOLD((pd = ibv_alloc_pd(ctx)));
	HOLD((cq = ibv_create_cq(ctx, 64, NULL, NULL, 0)));
	HOLD((mr = ibv_reg_mr(pd, memory, sizeof memory, IBV_ACCESS_LOCAL_WRITE)));
	HOLD(!ibv_query_gid(ctx, 1, gid_index, &gid));
	HOLD(!ibv_query_port(ctx, 1, &port));
}

static struct ibv_srq *srq_of(unsigned wr, unsigned sge)
{
	struct ibv_srq_init_attr init = { .attr = { .max_wr = wr, .max_sge = sge } };
	return ibv_create_srq(pd, &init);
}

static int receive(struct ibv_srq *srq, int count)
{
	struct ibv_sge sge = { (uintptr_t)memory, 64, mr->lkey };
	struct ibv_recv_wr wr[64], *bad = NULL;
	for (int i = 0; i < count; i++)
		wr[i] = (struct ibv_recv_wr){ .wr_id = i, .next = i + 1 < count ? &wr[i + 1] : NULL, .sg_list = &sge,
			.num_sge = 1 };
	int failed = ibv_post_srq_recv(srq, wr, &bad);
	HOLD(!failed || bad);
	return failed ? -(int)(bad - wr) - 1 : 0;
}

static struct ibv_qp *qp_of(enum ibv_qp_type type, struct ibv_srq *srq)
{
	struct ibv_qp_init_attr init = { .send_cq = cq, .recv_cq = type == IBV_QPT_XRC_SEND ? NULL : cq, .srq = srq,
		.cap = { .max_send_wr = 8, .max_send_sge = 1 }, .qp_type = type };
	return ibv_create_qp(pd, &init);
}

static void connect_by(struct ibv_qp *qp, unsigned qpn, union ibv_gid to, unsigned lid)
{
	struct ibv_qp_attr attr = { .qp_state = IBV_QPS_INIT, .port_num = 1 };
	HOLD(!ibv_modify_qp(qp, &attr, IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_ACCESS_FLAGS));
	attr = (struct ibv_qp_attr){ .qp_state = IBV_QPS_RTR, .path_mtu = IBV_MTU_1024, .dest_qp_num = qpn,
		.max_dest_rd_atomic = 1, .min_rnr_timer = 12, .ah_attr = { .port_num = 1, .dlid = lid, .is_global = 1,
		.grh = { .dgid = to, .sgid_index = gid_index, .hop_limit = 1 } } };
	HOLD(!ibv_modify_qp(qp, &attr, IBV_QP_STATE | IBV_QP_AV | IBV_QP_PATH_MTU | IBV_QP_DEST_QPN | IBV_QP_RQ_PSN |
		IBV_QP_MAX_DEST_RD_ATOMIC | IBV_QP_MIN_RNR_TIMER));
	attr = (struct ibv_qp_attr){ .qp_state = IBV_QPS_RTS, .timeout = 14, .retry_cnt = 7, .rnr_retry = 7,
		.max_rd_atomic = 1 };
	HOLD(!ibv_modify_qp(qp, &attr, IBV_QP_STATE | IBV_QP_TIMEOUT | IBV_QP_RETRY_CNT | IBV_QP_RNR_RETRY |
		IBV_QP_SQ_PSN | IBV_QP_MAX_QP_RD_ATOMIC));
}

static void send_one(struct ibv_qp *qp, unsigned srqn)
{
	struct ibv_sge sge = { (uintptr_t)memory + 2048, 48, mr->lkey };
	struct ibv_send_wr wr = { .wr_id = 77, .sg_list = &sge, .num_sge = 1, .opcode = IBV_WR_SEND,
		.send_flags = IBV_SEND_SIGNALED, .qp_type.xrc.remote_srqn = srqn }, *bad;
	HOLD(!ibv_post_send(qp, &wr, &bad));
}

static struct ibv_wc completion(void)
{
	struct ibv_wc wc;
	int n;
	alarm(20);
	while (!(n = ibv_poll_cq(cq, 1, &wc)))
		;
	alarm(0);
	HOLD(n == 1);
	return wc;
}

static struct ibv_async_event event(void)
{
	struct ibv_async_event found;
	struct pollfd fd = { .fd = ctx->async_fd, .events = POLLIN };
	HOLD(poll(&fd, 1, 20000) == 1);
	HOLD(!ibv_get_async_event(ctx, &found));
	return found;
}

static void no_event(void)
{
	struct pollfd fd = { .fd = ctx->async_fd, .events = POLLIN };
	HOLD(poll(&fd, 1, 30) == 0);
}

static void wrong_calls(void)
{
	struct ibv_device_attr most;
	HOLD(!ibv_query_device(ctx, &most) && most.max_srq > 0 && most.max_srq_wr > 0 && most.max_srq_sge > 0);
	HOLD(most.device_cap_flags & IBV_DEVICE_XRC);
	FAILS(srq_of(most.max_srq_wr + 1, 1), EINVAL);
	FAILS(srq_of(1, most.max_srq_sge + 1), EINVAL);
	struct ibv_srq *none = srq_of(0, 1);
	HOLD(none && !ibv_destroy_srq(none));
	struct ibv_srq *srq = srq_of(10, 1);
	HOLD(srq);
	struct ibv_srq_attr attr, same;
	HOLD(!ibv_query_srq(srq, &attr) && attr.max_wr >= 10 && attr.max_sge >= 1 && attr.srq_limit == 0);
	same = attr;
	same.srq_limit = attr.max_wr + 1;
	HOLD(ibv_modify_srq(srq, &same, IBV_SRQ_LIMIT) == EINVAL);
	HOLD(ibv_modify_srq(srq, &same, 1 << 7) == EINVAL);
	HOLD(ibv_modify_srq(srq, &same, IBV_SRQ_MAX_WR) == EOPNOTSUPP);
	HOLD(!ibv_query_srq(srq, &same) && same.srq_limit == 0 && same.max_wr == attr.max_wr);
		/* `bad` is the first that does not fit; those before it are posted. */
	HOLD(receive(srq, attr.max_wr + 3) == -(int)attr.max_wr - 1);
	HOLD(receive(srq, 1) == -1);
	uint32_t number;
	HOLD(ibv_get_srq_num(srq, &number) == EOPNOTSUPP);
	struct ibv_srq_init_attr_ex ex = { .attr = { .max_wr = 4, .max_sge = 1 }, .pd = pd, .cq = cq,
		.comp_mask = IBV_SRQ_INIT_ATTR_TYPE | IBV_SRQ_INIT_ATTR_PD | IBV_SRQ_INIT_ATTR_CQ, .srq_type = IBV_SRQT_XRC };
	FAILS(ibv_create_srq_ex(ctx, &ex), EINVAL);
	ex.srq_type = IBV_SRQT_TM;
	FAILS(ibv_create_srq_ex(ctx, &ex), EOPNOTSUPP);
	struct ibv_qp *qp = qp_of(IBV_QPT_RC, srq);
	HOLD(qp && qp->srq == srq);
	HOLD(ibv_destroy_srq(srq) == EBUSY && ibv_dealloc_pd(pd) == EBUSY);
	HOLD(!ibv_destroy_qp(qp) && !ibv_destroy_srq(srq));
}

static void events(void)
{
	struct ibv_srq *srq = srq_of(15, 1);
	struct ibv_qp *from = qp_of(IBV_QPT_RC, NULL), *to = qp_of(IBV_QPT_RC, srq);
	HOLD(srq && from && to);
	connect_by(from, to->qp_num, gid, port.lid);
	connect_by(to, from->qp_num, gid, port.lid);
	HOLD(!receive(srq, 4));
	struct ibv_srq_attr attr = { .srq_limit = 3 };
	HOLD(!ibv_modify_srq(srq, &attr, IBV_SRQ_LIMIT));
	for (int i = 0; i < 2; i++) {
		no_event();
		send_one(from, 0);
		struct ibv_wc a = completion(), b = completion();
		HOLD(a.status == IBV_WC_SUCCESS && b.status == IBV_WC_SUCCESS);
		HOLD((a.opcode == IBV_WC_RECV) != (b.opcode == IBV_WC_RECV));
	}
	struct ibv_async_event found = event();
	HOLD(found.event_type == IBV_EVENT_SRQ_LIMIT_REACHED && found.element.srq == srq);
	ibv_ack_async_event(&found);
	struct ibv_qp_attr err = { .qp_state = IBV_QPS_ERR };
	HOLD(!ibv_modify_qp(to, &err, IBV_QP_STATE));
	found = event();
	HOLD(found.event_type == IBV_EVENT_QP_LAST_WQE_REACHED && found.element.qp == to);
	ibv_ack_async_event(&found);
	no_event();
	HOLD(!ibv_destroy_qp(to) && !ibv_destroy_qp(from) && !ibv_destroy_srq(srq));
}

/* The values that the processes exchange. */
struct card { unsigned qpn, srqn, lid; union ibv_gid gid; };

static struct ibv_xrcd *domain_of(int fd, int flags)
{
	struct ibv_xrcd_init_attr init = { .comp_mask = IBV_XRCD_INIT_ATTR_FD | IBV_XRCD_INIT_ATTR_OFLAGS, .fd = fd,
		.oflags = flags };
	return ibv_open_xrcd(ctx, &init);
}

static struct ibv_srq *xrc_srq(struct ibv_xrcd *xrcd, unsigned *number)
{
	struct ibv_srq_init_attr_ex init = { .attr = { .max_wr = 8, .max_sge = 1 }, .srq_type = IBV_SRQT_XRC, .pd = pd,
		.xrcd = xrcd, .cq = cq, .comp_mask = IBV_SRQ_INIT_ATTR_TYPE | IBV_SRQ_INIT_ATTR_PD |
		IBV_SRQ_INIT_ATTR_XRCD | IBV_SRQ_INIT_ATTR_CQ };
	struct ibv_srq *srq = ibv_create_srq_ex(ctx, &init);
	HOLD(srq && !ibv_get_srq_num(srq, number));
	return srq;
}

static void first_process(const char *device, int fd, int in, int out)
{
	struct card peer, mine = { 0 };
	open_device(device);
	struct ibv_xrcd *xrcd = domain_of(fd, O_CREAT | O_EXCL);
	HOLD(xrcd);
	FAILS(domain_of(fd, O_CREAT | O_EXCL), EINVAL);
	struct ibv_srq *srq = xrc_srq(xrcd, &mine.srqn);
	HOLD(!receive(srq, 4));
	struct ibv_qp_init_attr_ex init = { .qp_type = IBV_QPT_XRC_RECV, .comp_mask = IBV_QP_INIT_ATTR_XRCD };
	FAILS(ibv_create_qp_ex(ctx, &init), EINVAL);
	init.xrcd = xrcd;
	struct ibv_qp *target = ibv_create_qp_ex(ctx, &init);
	HOLD(target && ibv_close_xrcd(xrcd) == EBUSY);
	mine.qpn = target->qp_num;
	HOLD(write(out, &mine, sizeof mine) == sizeof mine && read(in, &peer, sizeof peer) == sizeof peer);
	connect_by(target, peer.qpn, peer.gid, peer.lid);
	HOLD(write(out, &mine, sizeof mine) == sizeof mine);
	struct ibv_wc wc = completion();
	HOLD(wc.status == IBV_WC_SUCCESS && wc.opcode == IBV_WC_RECV && wc.byte_len == 48);
	HOLD(wc.qp_num == target->qp_num);
	HOLD(write(out, &mine, sizeof mine) == sizeof mine);
	pause();
}

static void domains(const char *device)
{
	int there[2], back[2], status;
	char name[] = "/tmp/xrcd-XXXXXX";
	int fd = mkstemp(name);
	HOLD(fd >= 0 && !unlink(name) && !pipe(there) && !pipe(back));
	pid_t child = fork();
	HOLD(child >= 0);
	if (!child) {
		first_process(device, fd, there[0], back[1]);
		exit(0);
	}
	struct card peer, mine = { 0 };
	HOLD(read(back[0], &peer, sizeof peer) == sizeof peer);
	open_device(device);
	FAILS(domain_of(fd, O_CREAT | O_EXCL), EINVAL);
	FAILS(domain_of(there[0], 0), EAGAIN);
	FAILS(domain_of(9999, O_CREAT), EBADF);
	struct ibv_xrcd *xrcd = domain_of(fd, 0), *other = domain_of(-1, O_CREAT);
	HOLD(xrcd && other);
	struct ibv_srq *srq = xrc_srq(xrcd, &mine.srqn);
	HOLD(!receive(srq, 4));
	struct ibv_qp_open_attr open = { .comp_mask = IBV_QP_OPEN_ATTR_NUM | IBV_QP_OPEN_ATTR_XRCD | IBV_QP_OPEN_ATTR_TYPE,
		.qp_num = peer.qpn, .xrcd = other, .qp_type = IBV_QPT_XRC_RECV };
	FAILS(ibv_open_qp(ctx, &open), EINVAL);
	open.xrcd = xrcd;
	open.qp_type = IBV_QPT_RC;
	FAILS(ibv_open_qp(ctx, &open), EINVAL);
	open.qp_type = IBV_QPT_XRC_RECV;
	struct ibv_qp *target = ibv_open_qp(ctx, &open), *from = qp_of(IBV_QPT_XRC_SEND, NULL);
	HOLD(target && target->qp_num == peer.qpn && from);
	mine.qpn = from->qp_num;
	mine.gid = gid;
	mine.lid = port.lid;
	HOLD(write(there[1], &mine, sizeof mine) == sizeof mine);
	HOLD(read(back[0], &peer, sizeof peer) == sizeof peer);
	connect_by(from, target->qp_num, gid, port.lid);
	send_one(from, peer.srqn);
	HOLD(completion().status == IBV_WC_SUCCESS);
	HOLD(read(back[0], &peer, sizeof peer) == sizeof peer);
		/* The first process ends; the target stays. */
	HOLD(!kill(child, SIGKILL) && waitpid(child, &status, 0) == child);
	send_one(from, mine.srqn);
	struct ibv_wc a = completion(), b = completion();
	HOLD(a.status == IBV_WC_SUCCESS && b.status == IBV_WC_SUCCESS);
	HOLD((a.opcode == IBV_WC_RECV ? a : b).qp_num == target->qp_num);
	struct ibv_qp_attr attr;
	struct ibv_qp_init_attr init;
	HOLD(!ibv_query_qp(target, &attr, IBV_QP_STATE, &init) && attr.qp_state == IBV_QPS_RTS);
	HOLD(init.qp_type == IBV_QPT_XRC_RECV);
	HOLD(ibv_close_xrcd(xrcd) == EBUSY);
	HOLD(!ibv_destroy_qp(target) && !ibv_destroy_qp(from) && !ibv_destroy_srq(srq));
	HOLD(!ibv_close_xrcd(xrcd) && !ibv_close_xrcd(other));
	FAILS(domain_of(fd, 0), EAGAIN);
}

int main(int argc, char **argv)
{
	HOLD(argc == 3);
	gid_index = atoi(argv[2]);
	domains(argv[1]);
	wrong_calls();
	events();
	HOLD(!ibv_dereg_mr(mr) && !ibv_destroy_cq(cq) && !ibv_dealloc_pd(pd) && !ibv_close_device(ctx));
	puts("all as it should be");
	return 0;
}
