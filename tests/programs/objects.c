/* Creates each kind of object that transfers need on two devices, sends data from one to the other, and destroys all
 * objects: objects FROM TO
 *
 * Reports a failed call on stderr, and destroys the objects created before. Status 0: all succeeded; 1: a call failed; 3:
 * a failure had a forbidden effect: memory changed, or an object could not be destroyed. */
#include <errno.h>
#include <infiniband/verbs.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <time.h>

#define SIZE (256 << 10)
#define GID_INDEX 1

struct end {
	struct ibv_context *context;
	struct ibv_pd *pd;
	struct ibv_comp_channel *channel;
	struct ibv_cq *cq;
	struct ibv_srq *srq;
	struct ibv_qp *qp;
	struct ibv_mr *mr;
	union ibv_gid gid;
	unsigned char *memory;
	unsigned char fill;
};

static int broken;

/* Reports a failure. */
static int made(int good, const char *what)
{
	if (!good)
		fprintf(stderr, "objects: %s: %s\n", what, strerror(errno));
	return good;
}

static int is_filled(const unsigned char *memory, unsigned char fill)
{
	for (size_t i = 0; i < SIZE; i++)
		if (memory[i] != fill)
			return 0;
	return 1;
}

static void intact(const struct end *end, unsigned char fill, const char *when)
{
	if (end->memory && !is_filled(end->memory, fill)) {
		fprintf(stderr, "objects: memory changed %s\n", when);
		broken = 1;
	}
}

static int open_end(struct end *end, const char *name, unsigned char fill)
{
	struct ibv_device **list = ibv_get_device_list(NULL), **at = list;

	if (!made(list != NULL, "ibv_get_device_list"))
		return 0;
	while (*at && strcmp(ibv_get_device_name(*at), name))
		at++;
	errno = ENODEV;
	if (*at)
		end->context = ibv_open_device(*at);
	ibv_free_device_list(list);
	if (!made(end->context != NULL, "ibv_open_device"))
		return 0;
		/* Whole pages, which may be lent to the node. */
	void *memory = mmap(NULL, SIZE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	if (!made(memory != MAP_FAILED, "mmap"))
		return 0;
	end->memory = memset(memory, fill, SIZE);
	end->fill = fill;
	if (!made(!ibv_query_gid(end->context, 1, GID_INDEX, &end->gid), "ibv_query_gid") ||
	    !made((end->pd = ibv_alloc_pd(end->context)) != NULL, "ibv_alloc_pd") ||
	    !made((end->channel = ibv_create_comp_channel(end->context)) != NULL, "ibv_create_comp_channel") ||
	    !made((end->cq = ibv_create_cq(end->context, 64, NULL, end->channel, 0)) != NULL, "ibv_create_cq"))
		return 0;
	int access = IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE;
	int good = made((end->mr = ibv_reg_mr(end->pd, end->memory, SIZE, access)) != NULL, "ibv_reg_mr");
	intact(end, fill, "when it was registered");
	struct ibv_srq_init_attr shared = { .attr = { .max_wr = 64, .max_sge = 1 } };
	if (!good || !made((end->srq = ibv_create_srq(end->pd, &shared)) != NULL, "ibv_create_srq"))
		return 0;
	struct ibv_qp_init_attr init = { .send_cq = end->cq, .recv_cq = end->cq, .srq = end->srq, .qp_type = IBV_QPT_RC,
					 .cap = { 64, 0, 1, 0, 0 }, .sq_sig_all = 1 };
	return made((end->qp = ibv_create_qp(end->pd, &init)) != NULL, "ibv_create_qp");
}

static int connect_end(struct end *end, const struct end *peer)
{
	struct ibv_qp_attr attr = { .qp_state = IBV_QPS_INIT, .port_num = 1, .qp_access_flags = IBV_ACCESS_REMOTE_WRITE };

	if (!made(!ibv_modify_qp(end->qp, &attr, IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_ACCESS_FLAGS),
		  "ibv_modify_qp to INIT"))
		return 0;
	attr = (struct ibv_qp_attr){ .qp_state = IBV_QPS_RTR, .path_mtu = IBV_MTU_4096, .dest_qp_num = peer->qp->qp_num,
		.max_dest_rd_atomic = 1, .min_rnr_timer = 12,
		.ah_attr = { .is_global = 1, .port_num = 1,
			     .grh = { .dgid = peer->gid, .sgid_index = GID_INDEX, .hop_limit = 4 } } };
	if (!made(!ibv_modify_qp(end->qp, &attr, IBV_QP_STATE | IBV_QP_AV | IBV_QP_PATH_MTU | IBV_QP_DEST_QPN |
				 IBV_QP_RQ_PSN | IBV_QP_MAX_DEST_RD_ATOMIC | IBV_QP_MIN_RNR_TIMER),
		  "ibv_modify_qp to RTR"))
		return 0;
	attr = (struct ibv_qp_attr){ .qp_state = IBV_QPS_RTS, .timeout = 14, .retry_cnt = 7, .rnr_retry = 7,
		.max_rd_atomic = 1 };
	return made(!ibv_modify_qp(end->qp, &attr, IBV_QP_STATE | IBV_QP_TIMEOUT | IBV_QP_RETRY_CNT | IBV_QP_RNR_RETRY |
				   IBV_QP_SQ_PSN | IBV_QP_MAX_QP_RD_ATOMIC),
		    "ibv_modify_qp to RTS");
}

static int completes(struct end *end, const char *what)
{
	struct ibv_wc wc = { .status = IBV_WC_SUCCESS };
	time_t limit = time(NULL) + 10;
	int found = 0;

	errno = ETIMEDOUT;
	while (!found && time(NULL) < limit)
		found = ibv_poll_cq(end->cq, 1, &wc);
	if (found == 1 && wc.status != IBV_WC_SUCCESS) {
		fprintf(stderr, "objects: %s: %s\n", what, ibv_wc_status_str(wc.status));
		return 0;
	}
	return made(found == 1, what);
}

static int transfer(struct end *from, struct end *to)
{
	struct ibv_sge all = { (uintptr_t)from->memory, SIZE, from->mr->lkey };
	struct ibv_recv_wr receive = { .wr_id = 1 }, *bad_receive;
	struct ibv_send_wr write = { .wr_id = 2, .sg_list = &all, .num_sge = 1, .opcode = IBV_WR_RDMA_WRITE_WITH_IMM,
				     .wr.rdma = { (uintptr_t)to->memory, to->mr->rkey } }, *bad;

	if (!made(!(errno = ibv_post_srq_recv(to->srq, &receive, &bad_receive)), "ibv_post_srq_recv") ||
	    !made(!(errno = ibv_post_send(from->qp, &write, &bad)), "ibv_post_send") ||
	    !completes(from, "the write's completion") || !completes(to, "the receive's completion"))
		return 0;
	to->fill = from->fill;
	intact(to, from->fill, "to other data than were written");
	return 1;
}

/* Destroys the objects created so far. */
static void close_end(struct end *end)
{
#define CLOSE(member, with) \
	do { \
		if (end->member && (errno = with(end->member))) { \
			fprintf(stderr, "objects: %s: %s\n", #with, strerror(errno)); \
			broken = 1; \
		} \
	} while (0)
	CLOSE(qp, ibv_destroy_qp);
	CLOSE(srq, ibv_destroy_srq);
	CLOSE(mr, ibv_dereg_mr);
	CLOSE(cq, ibv_destroy_cq);
	CLOSE(channel, ibv_destroy_comp_channel);
	CLOSE(pd, ibv_dealloc_pd);
	CLOSE(context, ibv_close_device);
}

int main(int argc, char **argv)
{
	struct end from = { 0 }, to = { 0 };

	if (argc != 3)
		return 2;
	int good = open_end(&from, argv[1], 0x5a) && open_end(&to, argv[2], 0xc3) && connect_end(&from, &to) &&
		   connect_end(&to, &from) && transfer(&from, &to);
	unsigned char there = to.memory ? *to.memory : 0;
	close_end(&from);
	close_end(&to);
	intact(&from, 0x5a, "when all was closed");
		/* A failed transfer may have written a part. */
	if (good || there == to.fill)
		intact(&to, to.fill, "when all was closed");
	return broken ? 3 : good ? 0 : 1;
}
