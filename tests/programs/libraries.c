/* Two libibverbs in one process, as where a Python wheel brings its own beside the system's. The first, argv[1], lists and
 * opens devices before the second, argv[2], is loaded. Prints a line for each promise that is kept; ends with 1 at the
 * first that is not. */
#include <dlfcn.h>
#include <infiniband/verbs.h>
#include <poll.h>
#include <string.h>

#include "hold.h"

#undef ibv_reg_mr

/* One library, and its objects. */
struct side {
	struct ibv_device **(*get_device_list)(int *);
	const char *(*get_device_name)(struct ibv_device *);
	struct ibv_context *(*open_device)(struct ibv_device *);
	int (*close_device)(struct ibv_context *);
	int (*query_gid)(struct ibv_context *, uint8_t, int, union ibv_gid *);
	struct ibv_pd *(*alloc_pd)(struct ibv_context *);
	struct ibv_mr *(*reg_mr)(struct ibv_pd *, void *, size_t, int);
	struct ibv_comp_channel *(*create_comp_channel)(struct ibv_context *);
	int (*get_cq_event)(struct ibv_comp_channel *, struct ibv_cq **, void **);
	void (*ack_cq_events)(struct ibv_cq *, unsigned int);
	struct ibv_cq *(*create_cq)(struct ibv_context *, int, void *, struct ibv_comp_channel *, int);
	struct ibv_qp *(*create_qp)(struct ibv_pd *, struct ibv_qp_init_attr *);
	int (*modify_qp)(struct ibv_qp *, struct ibv_qp_attr *, int);

	struct ibv_context *context;
	struct ibv_comp_channel *channel;
	struct ibv_cq *cq;
	struct ibv_qp *qp;
	struct ibv_mr *mr;
	union ibv_gid gid;
	char memory[64];
};

static void load(struct side *side, const char *path)
{
		/* As Python loads a wheel's libraries: other objects do not see their symbols. */
	void *library = dlopen(path, RTLD_NOW | RTLD_LOCAL);

	HOLD(library);
#define FIND(name) HOLD(side->name = dlsym(library, "ibv_" #name))
	FIND(get_device_list);
	FIND(get_device_name);
	FIND(open_device);
	FIND(close_device);
	FIND(query_gid);
	FIND(alloc_pd);
	FIND(reg_mr);
	FIND(create_comp_channel);
	FIND(get_cq_event);
	FIND(ack_cq_events);
	FIND(create_cq);
	FIND(create_qp);
	FIND(modify_qp);
}

static void make(struct side *side, const char *name)
{
	struct ibv_device **list = side->get_device_list(NULL);
	struct ibv_qp_init_attr init = { .qp_type = IBV_QPT_RC,
		.cap = { .max_send_wr = 4, .max_recv_wr = 4, .max_send_sge = 1, .max_recv_sge = 1 } };
	struct ibv_qp_attr attr = { .qp_state = IBV_QPS_INIT, .port_num = 1, .qp_access_flags = IBV_ACCESS_REMOTE_WRITE };
	struct ibv_pd *pd;

	HOLD(list);
	for (; *list; list++)
		if (!strcmp(side->get_device_name(*list), name))
			side->context = side->open_device(*list);
	HOLD(side->context);
	HOLD(!side->query_gid(side->context, 1, 1, &side->gid));
	HOLD(pd = side->alloc_pd(side->context));
	HOLD(side->mr = side->reg_mr(pd, side->memory, sizeof(side->memory), IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE));
	HOLD(side->channel = side->create_comp_channel(side->context));
	HOLD(side->cq = side->create_cq(side->context, 8, NULL, side->channel, 0));
	init.send_cq = init.recv_cq = side->cq;
	HOLD(side->qp = side->create_qp(pd, &init));
	HOLD(!side->modify_qp(side->qp, &attr, IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_ACCESS_FLAGS));
}

static void join(struct side *side, struct side *peer)
{
	struct ibv_qp_attr attr = { .qp_state = IBV_QPS_RTR, .path_mtu = IBV_MTU_1024, .dest_qp_num = peer->qp->qp_num,
		.ah_attr = { .is_global = 1, .port_num = 1, .grh = { .dgid = peer->gid, .sgid_index = 1, .hop_limit = 1 } } };

	HOLD(!side->modify_qp(side->qp, &attr, IBV_QP_STATE | IBV_QP_AV | IBV_QP_PATH_MTU | IBV_QP_DEST_QPN |
				IBV_QP_RQ_PSN | IBV_QP_MAX_DEST_RD_ATOMIC | IBV_QP_MIN_RNR_TIMER));
	attr.qp_state = IBV_QPS_RTS;
	attr.timeout = 14;
	HOLD(!side->modify_qp(side->qp, &attr, IBV_QP_STATE | IBV_QP_TIMEOUT | IBV_QP_RETRY_CNT | IBV_QP_RNR_RETRY |
				IBV_QP_SQ_PSN | IBV_QP_MAX_QP_RD_ATOMIC));
}

/* Waits for the next completion by the channel. */
static void completes(struct side *side, enum ibv_wc_opcode opcode)
{
	struct pollfd file = { .fd = side->channel->fd, .events = POLLIN };
	struct ibv_cq *cq;
	struct ibv_wc wc;
	void *cookie;

	HOLD(poll(&file, 1, 10000) == 1);
	HOLD(!side->get_cq_event(side->channel, &cq, &cookie) && cq == side->cq);
	side->ack_cq_events(cq, 1);
	HOLD(ibv_poll_cq(cq, 1, &wc) == 1);
	HOLD(wc.status == IBV_WC_SUCCESS && wc.opcode == opcode);
}

static void send(struct side *from, struct side *to, const char *text)
{
	struct ibv_sge in = { (uintptr_t)to->memory, sizeof(to->memory), to->mr->lkey };
	struct ibv_sge out = { (uintptr_t)from->memory, strlen(text) + 1, from->mr->lkey };
	struct ibv_recv_wr receive = { .sg_list = &in, .num_sge = 1 }, *bad_receive;
	struct ibv_send_wr request = { .opcode = IBV_WR_SEND, .send_flags = IBV_SEND_SIGNALED, .sg_list = &out,
		.num_sge = 1 }, *bad;

	strcpy(from->memory, text);
	memset(to->memory, 0, sizeof(to->memory));
	HOLD(!ibv_req_notify_cq(to->cq, 0) && !ibv_req_notify_cq(from->cq, 0));
	HOLD(!ibv_post_recv(to->qp, &receive, &bad_receive));
	HOLD(!ibv_post_send(from->qp, &request, &bad));
	completes(from, IBV_WC_SEND);
	completes(to, IBV_WC_RECV);
	HOLD(!strcmp(to->memory, text));
}

int main(int argc, char **argv)
{
	static struct side first, second;

	HOLD(argc == 3);
	load(&first, argv[1]);
	make(&first, "iron1");
	puts("first ok");
	load(&second, argv[2]);
	HOLD(first.get_device_list != second.get_device_list);
	make(&second, "iron2");
	puts("second ok");
	join(&first, &second);
	join(&second, &first);
	send(&first, &second, "from the first library's queue pair");
	send(&second, &first, "and back");
	puts("traffic ok");
		/* A device still in use stays open, without harm to the other library's devices. */
	HOLD(!first.close_device(first.context));
	send(&second, &first, "still there");
	puts("closing ok");
	return 0;
}
