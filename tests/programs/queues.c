/* Queues and domains through the stock libibverbs in C: the results of valid and invalid calls.
 * Prints a line for each promise that is kept; ends with 1 at the first that is not. */
#include <poll.h>
#include <string.h>
#include <time.h>

#include "device.h"

static struct ibv_context *context;
static struct ibv_pd *pd;
static union ibv_gid gid;

static struct ibv_cq_ex *extended(int size, uint64_t fields, uint32_t flags)
{
	struct ibv_cq_init_attr_ex attr = {
		.cqe = size, .wc_flags = fields, .comp_mask = IBV_CQ_INIT_ATTR_MASK_FLAGS, .flags = flags
	};
	return ibv_create_cq_ex(context, &attr);
}

static int to_state(struct ibv_qp *qp, enum ibv_qp_state state)
{
	struct ibv_qp_attr attr = { .qp_state = state, .port_num = 1, .path_mtu = IBV_MTU_1024, .dest_qp_num = qp->qp_num,
		.max_rd_atomic = 1, .max_dest_rd_atomic = 1, .min_rnr_timer = 1, .timeout = 14, .retry_cnt = 7, .rnr_retry = 7,
		.qp_access_flags = IBV_ACCESS_REMOTE_WRITE };
	int mask = IBV_QP_STATE;

	attr.ah_attr.is_global = 1;
	attr.ah_attr.port_num = 1;
	attr.ah_attr.grh.dgid = gid;
	attr.ah_attr.grh.sgid_index = 1;
	attr.ah_attr.grh.hop_limit = 64;
	if (state == IBV_QPS_INIT)
		mask |= IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_ACCESS_FLAGS;
	if (state == IBV_QPS_RTR)
		mask |= IBV_QP_AV | IBV_QP_PATH_MTU | IBV_QP_DEST_QPN | IBV_QP_RQ_PSN | IBV_QP_MAX_DEST_RD_ATOMIC |
			IBV_QP_MIN_RNR_TIMER;
	if (state == IBV_QPS_RTS)
		mask |= IBV_QP_TIMEOUT | IBV_QP_RETRY_CNT | IBV_QP_RNR_RETRY | IBV_QP_SQ_PSN | IBV_QP_MAX_QP_RD_ATOMIC;
	return ibv_modify_qp(qp, &attr, mask);
}

/* An RC queue pair connected to itself. */
static struct ibv_qp *loop(struct ibv_pd *domain, struct ibv_cq *cq)
{
	struct ibv_qp_init_attr init = { .send_cq = cq, .recv_cq = cq, .qp_type = IBV_QPT_RC,
		.cap = { .max_send_wr = 16, .max_recv_wr = 16, .max_send_sge = 1, .max_recv_sge = 1 }, .sq_sig_all = 1 };
	struct ibv_qp *qp = ibv_create_qp(domain, &init);

	HOLD(qp);
	HOLD(!to_state(qp, IBV_QPS_INIT) && !to_state(qp, IBV_QPS_RTR) && !to_state(qp, IBV_QPS_RTS));
	return qp;
}

static void send_nothing(struct ibv_qp *qp)
{
	struct ibv_recv_wr recv = { .wr_id = 1 }, *bad_recv;
	struct ibv_send_wr send = { .wr_id = 2, .opcode = IBV_WR_SEND_WITH_IMM, .imm_data = htobe32(77) }, *bad_send;

	HOLD(!ibv_post_recv(qp, &recv, &bad_recv) && !ibv_post_send(qp, &send, &bad_send));
}

static int count(struct ibv_cq *cq, int wanted)
{
	struct ibv_wc wc;
	int found = 0;
	time_t end = time(NULL) + 10;

	while (found < wanted && time(NULL) < end) {
		int n = ibv_poll_cq(cq, 1, &wc);
		HOLD(n >= 0);
		if (n)
			HOLD(wc.status == IBV_WC_SUCCESS);
		found += n;
	}
	return found;
}

static void sizes_of_completion_queues(void)
{
	struct ibv_device_attr device;
	struct ibv_modify_cq_attr attr = { .attr_mask = IBV_CQ_ATTR_MODERATE, .moderate = { 16, 100 } };

	HOLD(!ibv_query_device(context, &device));
	struct ibv_cq *cq = ibv_create_cq(context, 10, NULL, NULL, 0);
	HOLD(cq && cq->cqe >= 10);
	struct ibv_qp *qp = loop(pd, cq);
	send_nothing(qp);
	int before = cq->cqe;
	HOLD(ibv_resize_cq(cq, 0) == EINVAL && ibv_resize_cq(cq, -1) == EINVAL);
	HOLD(ibv_resize_cq(cq, device.max_cqe + 1) == EINVAL && cq->cqe == before);
	HOLD(!ibv_resize_cq(cq, 1000) && cq->cqe >= 1000);
	send_nothing(qp);
	HOLD(count(cq, 4) == 4);
	HOLD(!ibv_resize_cq(cq, 1) && cq->cqe >= 1 && cq->cqe < 1000);
	HOLD(!ibv_modify_cq(cq, &attr));
	attr.moderate.cq_period = 0xffff;
	HOLD(ibv_modify_cq(cq, &attr) == EINVAL);
	attr.attr_mask = 1u << 7;
	HOLD(ibv_modify_cq(cq, &attr) == EINVAL);
	HOLD(ibv_destroy_cq(cq) == EBUSY);
	HOLD(!ibv_destroy_qp(qp) && !ibv_destroy_cq(cq));
	HOLD(!ibv_create_cq(context, 0, NULL, NULL, 0) && errno == EINVAL);
	HOLD(!ibv_create_cq(context, 10, NULL, NULL, context->num_comp_vectors) && errno == EINVAL);
}

/* Each completion vector reports its queues through their channels. */
static void completion_vectors(void)
{
	HOLD(context->num_comp_vectors >= 1);
	HOLD(!ibv_create_cq(context, 16, NULL, NULL, context->num_comp_vectors) && errno == EINVAL);
	HOLD(!ibv_create_cq(context, 16, NULL, NULL, -1) && errno == EINVAL);
	for (int vector = 0; vector < context->num_comp_vectors; vector++) {
		struct ibv_comp_channel *channel = ibv_create_comp_channel(context);
		HOLD(channel);
		struct ibv_cq *cq = ibv_create_cq(context, 16, &vector, channel, vector), *told = NULL;
		void *of = NULL;
		HOLD(cq);
		struct ibv_qp *qp = loop(pd, cq);
		struct pollfd ready = { .fd = channel->fd, .events = POLLIN };

		for (int round = 0; round < 3; round++) {
			HOLD(!ibv_req_notify_cq(cq, 0));
			send_nothing(qp);
			HOLD(poll(&ready, 1, 10000) == 1);
			HOLD(!ibv_get_cq_event(channel, &told, &of) && told == cq && of == &vector);
			HOLD(count(cq, 2) == 2);
		}
		ibv_ack_cq_events(cq, 3);
		HOLD(!ibv_destroy_qp(qp) && !ibv_destroy_cq(cq) && !ibv_destroy_comp_channel(channel));
	}
}

static uint64_t now(void)
{
	struct timespec t;

	clock_gettime(CLOCK_REALTIME, &t);
	return t.tv_sec * 1000000000ull + t.tv_nsec;
}

static void fields_of_completions(void)
{
	uint64_t stamps = IBV_WC_EX_WITH_COMPLETION_TIMESTAMP | IBV_WC_EX_WITH_COMPLETION_TIMESTAMP_WALLCLOCK;
	struct ibv_poll_cq_attr none = {}, unknown = { .comp_mask = 1 };
	struct ibv_device_attr_ex device;

	HOLD(!ibv_query_device_ex(context, NULL, &device));
	HOLD(device.hca_core_clock && device.completion_timestamp_mask && device.cq_mod_caps.max_cq_count);
	HOLD(!extended(10, IBV_WC_EX_WITH_TM_INFO, 0) && errno == EOPNOTSUPP);
	HOLD(!extended(10, 0, 1u << 9) && errno == EOPNOTSUPP);
	for (int flags = 0; flags < 4; flags++) {
		struct ibv_cq_ex *cq = extended(10, IBV_WC_STANDARD_FLAGS | stamps, flags);
		HOLD(cq);
		struct ibv_qp *qp = loop(pd, ibv_cq_ex_to_cq(cq));
		HOLD(ibv_start_poll(cq, &none) == ENOENT && ibv_start_poll(cq, &unknown) == EINVAL);
		struct ibv_values_ex clock = { .comp_mask = IBV_VALUES_MASK_RAW_CLOCK };
		HOLD(!ibv_query_rt_values_ex(context, &clock) && clock.comp_mask == IBV_VALUES_MASK_RAW_CLOCK);
		uint64_t begin = now();
		send_nothing(qp);
		int found = 0, received = 0;
		time_t end = time(NULL) + 10;
		while (found < 2 && time(NULL) < end) {
			if (ibv_start_poll(cq, &none))
				continue;
			do {
				HOLD(cq->status == IBV_WC_SUCCESS && ibv_wc_read_qp_num(cq) == qp->qp_num);
				HOLD(ibv_wc_read_completion_ts(cq) > (uint64_t)clock.raw_clock.tv_nsec);
				uint64_t wall = ibv_wc_read_completion_wallclock_ns(cq);
				HOLD(wall > begin - 1000000 && wall < now() + 1000000);
				if (ibv_wc_read_opcode(cq) == IBV_WC_RECV) {
					HOLD(cq->wr_id == 1 && be32toh(ibv_wc_read_imm_data(cq)) == 77);
					HOLD(ibv_wc_read_wc_flags(cq) == IBV_WC_WITH_IMM && ibv_wc_read_byte_len(cq) == 0);
					received++;
				}
				found++;
			} while (!ibv_next_poll(cq));
			ibv_end_poll(cq);
		}
		HOLD(found == 2 && received == 1);
		HOLD(!ibv_destroy_qp(qp) && !ibv_destroy_cq(ibv_cq_ex_to_cq(cq)));
	}
}

static int buffers;

static void *take(struct ibv_pd *domain, void *mine, size_t size, size_t align, uint64_t type)
{
	(void)domain, (void)type;
	HOLD(mine == &buffers);
	buffers++;
	return aligned_alloc(align, size);
}

static void give(struct ibv_pd *domain, void *mine, void *at, uint64_t type)
{
	(void)domain, (void)mine, (void)type;
	buffers--;
	free(at);
}

static void domains_end_in_order(void)
{
	struct ibv_td_init_attr none = {}, unknown = { .comp_mask = 1 };

	HOLD(!ibv_alloc_td(context, &unknown) && errno == EOPNOTSUPP);
	struct ibv_td *td = ibv_alloc_td(context, &none);
	HOLD(td);
	struct ibv_parent_domain_init_attr attr = { .td = td,
		.comp_mask = IBV_PARENT_DOMAIN_INIT_ATTR_ALLOCATORS | IBV_PARENT_DOMAIN_INIT_ATTR_PD_CONTEXT,
		.alloc = take, .free = give, .pd_context = &buffers };
	HOLD(!ibv_alloc_parent_domain(context, &attr) && errno == EINVAL);
	attr.pd = ibv_alloc_pd(context);
	struct ibv_pd *parent = ibv_alloc_parent_domain(context, &attr);
	HOLD(parent);
	HOLD(ibv_dealloc_td(td) == EBUSY && ibv_dealloc_pd(attr.pd) == EBUSY);
	struct ibv_cq_init_attr_ex cq_attr = { .cqe = 10, .comp_mask = IBV_CQ_INIT_ATTR_MASK_PD, .parent_domain = attr.pd };
	HOLD(!ibv_create_cq_ex(context, &cq_attr) && errno == EINVAL);
	cq_attr.parent_domain = parent;
	struct ibv_cq_ex *cq = ibv_create_cq_ex(context, &cq_attr);
	HOLD(cq && buffers == 1);
	struct ibv_qp *qp = loop(parent, ibv_cq_ex_to_cq(cq));
	HOLD(buffers == 2 && ibv_dealloc_pd(parent) == EBUSY);
	send_nothing(qp);
	HOLD(count(ibv_cq_ex_to_cq(cq), 2) == 2);
	HOLD(!ibv_destroy_qp(qp) && buffers == 1 && ibv_dealloc_pd(parent) == EBUSY);
	HOLD(!ibv_destroy_cq(ibv_cq_ex_to_cq(cq)) && buffers == 0);
	HOLD(!ibv_dealloc_pd(parent) && !ibv_dealloc_td(td) && !ibv_dealloc_pd(attr.pd));
}

static void next_event(enum ibv_event_type type)
{
	struct pollfd fd = { .fd = context->async_fd, .events = POLLIN };
	struct ibv_async_event event;

	HOLD(poll(&fd, 1, 10000) == 1 && !ibv_get_async_event(context, &event));
	HOLD(event.event_type == type);
	ibv_ack_async_event(&event);
}

static void states_and_their_events(void)
{
	struct ibv_cq *cq = ibv_create_cq(context, 10, NULL, NULL, 0);
	struct ibv_qp *qp = loop(pd, cq);
	struct ibv_qp_attr attr = { .qp_state = IBV_QPS_SQD, .en_sqd_async_notify = 1 };
	struct ibv_qp_init_attr init;
	struct ibv_qp_rate_limit_attr rate = { .rate_limit = 1000 };

	HOLD(!ibv_modify_qp(qp, &attr, IBV_QP_STATE | IBV_QP_EN_SQD_ASYNC_NOTIFY));
	next_event(IBV_EVENT_SQ_DRAINED);
	send_nothing(qp);
	HOLD(!ibv_query_qp(qp, &attr, IBV_QP_STATE, &init));
	HOLD(attr.qp_state == IBV_QPS_SQD && qp->state == IBV_QPS_SQD && !attr.sq_draining);
	attr.qp_state = IBV_QPS_RTS;
	attr.path_mig_state = IBV_MIG_ARMED;
	HOLD(ibv_modify_qp(qp, &attr, IBV_QP_STATE | IBV_QP_PATH_MIG_STATE) == EOPNOTSUPP);
	HOLD(ibv_modify_qp(qp, &attr, IBV_QP_STATE | IBV_QP_RATE_LIMIT) == EINVAL);
	HOLD(ibv_modify_qp_rate_limit(qp, &rate) == EOPNOTSUPP);
	HOLD(!ibv_modify_qp(qp, &attr, IBV_QP_STATE));
	HOLD(count(cq, 2) == 2);
	HOLD(ibv_query_qp_data_in_order(qp, IBV_WR_RDMA_WRITE, 0) == 0);
	HOLD(!ibv_destroy_qp(qp) && !ibv_destroy_cq(cq));

	/* More completions than the CQ has room for. */
	cq = ibv_create_cq(context, 1, NULL, NULL, 0);
	qp = loop(pd, cq);
	for (int i = 0; i < 3; i++)
		send_nothing(qp);
	next_event(IBV_EVENT_CQ_ERR);
	next_event(IBV_EVENT_QP_FATAL);
	HOLD(!ibv_query_qp(qp, &attr, IBV_QP_STATE, &init) && attr.qp_state == IBV_QPS_ERR);
	HOLD(!ibv_destroy_qp(qp) && !ibv_destroy_cq(cq));
}

static void windows_are_bound_in_the_way_of_their_type(void)
{
	struct ibv_cq *cq = ibv_create_cq(context, 10, NULL, NULL, 0);
	struct ibv_qp *qp = loop(pd, cq);
	static char memory[4096];
	struct ibv_mr *mr = ibv_reg_mr(pd, memory, sizeof memory, IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_MW_BIND);
	struct ibv_mw *first = ibv_alloc_mw(pd, IBV_MW_TYPE_1), *second = ibv_alloc_mw(pd, IBV_MW_TYPE_2);
	struct ibv_mw_bind_info info = { mr, (uintptr_t)memory, 64, IBV_ACCESS_REMOTE_READ };
	struct ibv_mw_bind bind = { .send_flags = IBV_SEND_SIGNALED, .bind_info = info };
	struct ibv_send_wr wr = { .opcode = IBV_WR_BIND_MW, .send_flags = IBV_SEND_SIGNALED }, *bad;

	HOLD(mr && first && second);
	wr.bind_mw.bind_info = info;
	wr.bind_mw.mw = first;
	HOLD(ibv_post_send(qp, &wr, &bad) == EINVAL && bad == &wr);
	wr.bind_mw.mw = second;
	wr.bind_mw.rkey = ibv_inc_rkey(second->rkey);
	HOLD(!ibv_post_send(qp, &wr, &bad) && count(cq, 1) == 1);
	HOLD(!ibv_bind_mw(qp, first, &bind) && count(cq, 1) == 1);
	HOLD(ibv_bind_mw(qp, second, &bind) == EINVAL);
	HOLD(!ibv_dealloc_mw(first) && !ibv_dealloc_mw(second) && !ibv_dereg_mr(mr));
	HOLD(!ibv_destroy_qp(qp) && !ibv_destroy_cq(cq));
}

int main(int argc, char **argv)
{
	setvbuf(stdout, NULL, _IOLBF, 0);
	HOLD(argc == 2);
	context = opened(argv[1]);
	HOLD((pd = ibv_alloc_pd(context)) && !ibv_query_gid(context, 1, 1, &gid));
#define PROMISE(name) name(), puts(#name " ok")
	PROMISE(sizes_of_completion_queues);
	PROMISE(completion_vectors);
	PROMISE(fields_of_completions);
	PROMISE(domains_end_in_order);
	PROMISE(states_and_their_events);
	PROMISE(windows_are_bound_in_the_way_of_their_type);
	HOLD(!ibv_dealloc_pd(pd) && !ibv_close_device(context));
	return 0;
}
