/* Frames spread over work queues, through the stock libibverbs: spread DEVICE DEVICE
 *
 * Tests the reported capabilities, results of work queues and tables by their manual pages, the queue chosen by the published
 * hash, VLAN tags beside frames, the event of a work queue without space for a completion, and refusals. Skips tests that need
 * CAP_NET_RAW without it.
 * Prints a line for each promise that is kept; ends with 1 at the first that is not. */
#include <infiniband/verbs.h>
#include <poll.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "hold.h"
#include "raw_packets.h"

#define QUEUES 4
#define LOG_ENTRIES 3
#define REFUSED(call, error) do { errno = 0; HOLD(!(call) && errno == (error)); } while (0)

/* Key and IPv4 flows of the published RSS verification suite, with ports. */
static uint8_t key[40] = { 0x6d, 0x5a, 0x56, 0xda, 0x25, 0x5b, 0x0e, 0xc2, 0x41, 0x67, 0x25, 0x3d, 0x43, 0xa3, 0x8f, 0xb0,
	0xd0, 0xca, 0x2b, 0xcb, 0xae, 0x7b, 0x30, 0xb4, 0x77, 0xcb, 0x2d, 0xa3, 0x80, 0x30, 0xf2, 0x0c, 0x6a, 0x42, 0xb7, 0x3b,
	0xbe, 0xac, 0x01, 0xfa };
static const struct { uint8_t hashed[12]; uint32_t hash; } suite[] = {
	{ { 66, 9, 149, 187, 161, 142, 100, 80, 2794 >> 8, 2794 & 255, 1766 >> 8, 1766 & 255 }, 0x51ccc178 },
	{ { 199, 92, 111, 2, 65, 69, 140, 83, 14230 >> 8, 14230 & 255, 4739 >> 8, 4739 & 255 }, 0xc626b0ea },
	{ { 24, 19, 198, 95, 12, 22, 207, 184, 12898 >> 8, 12898 & 255, 38024 >> 8, 38024 & 255 }, 0x5c2b394a },
	{ { 38, 27, 205, 30, 209, 142, 163, 6, 48228 >> 8, 48228 & 255, 2217 >> 8, 2217 & 255 }, 0xafc7327f },
	{ { 153, 39, 163, 191, 202, 188, 127, 2, 44251 >> 8, 44251 & 255, 1303 >> 8, 1303 & 255 }, 0x10e828a2 },
};

struct end {
	struct ibv_context *context;
	struct ibv_pd *pd;
	struct ibv_cq *cq;
	struct ibv_mr *mr;
	uint8_t memory[QUEUES * 2048];
};

static struct end a, b;
static struct ibv_wq *wqs[QUEUES];
static struct ibv_rwq_ind_table *table;

static void open_end(struct end *end, const char *name)
{
	end->context = opened(name);
	HOLD(end->pd = ibv_alloc_pd(end->context));
	HOLD(end->cq = ibv_create_cq(end->context, 256, NULL, NULL, 0));
	HOLD(end->mr = ibv_reg_mr(end->pd, end->memory, sizeof(end->memory), IBV_ACCESS_LOCAL_WRITE));
}

static struct ibv_wc next(struct end *end)
{
	time_t limit = time(NULL) + 10;
	struct ibv_wc wc;
	int n;

	while (!(n = ibv_poll_cq(end->cq, 1, &wc)))
		HOLD(time(NULL) < limit);
	HOLD(n == 1);
	return wc;
}

static struct ibv_wq *queue_on(struct ibv_cq *cq, unsigned wr, unsigned sge, unsigned comp_mask, unsigned flags)
{
	struct ibv_wq_init_attr init = { .wq_context = &b, .wq_type = IBV_WQT_RQ, .max_wr = wr, .max_sge = sge, .pd = b.pd, .cq = cq,
		.comp_mask = comp_mask, .create_flags = flags };
	struct ibv_wq *wq = ibv_create_wq(b.context, &init);

	HOLD(!wq || (init.max_wr >= wr && init.max_sge >= sge && init.max_wr > 0));
	return wq;
}

static struct ibv_wq *queue(unsigned wr, unsigned sge, unsigned comp_mask, unsigned flags)
{
	return queue_on(b.cq, wr, sge, comp_mask, flags);
}

static struct ibv_rwq_ind_table *table_of(unsigned log, struct ibv_wq **list, unsigned comp_mask)
{
	struct ibv_rwq_ind_table_init_attr init = { .log_ind_tbl_size = log, .ind_tbl = list, .comp_mask = comp_mask };

	return ibv_create_rwq_ind_table(b.context, &init);
}

static struct ibv_qp_init_attr_ex wanted(uint64_t fields)
{
	return (struct ibv_qp_init_attr_ex){ .qp_type = IBV_QPT_RAW_PACKET, .pd = b.pd, .rwq_ind_tbl = table,
		.comp_mask = IBV_QP_INIT_ATTR_PD | IBV_QP_INIT_ATTR_IND_TABLE | IBV_QP_INIT_ATTR_RX_HASH,
		.rx_hash_conf = { .rx_hash_function = IBV_RX_HASH_FUNC_TOEPLITZ, .rx_hash_key_len = sizeof(key),
			.rx_hash_key = key, .rx_hash_fields_mask = fields } };
}

static int post(struct ibv_wq *wq, uint64_t wr_id, int q)
{
	struct ibv_sge sge = { (uintptr_t)b.memory + 2048 * q, 2048, b.mr->lkey };
	struct ibv_recv_wr wr = { .wr_id = wr_id, .sg_list = &sge, .num_sge = 1 }, *bad = NULL;
	int error = ibv_post_wq_recv(wq, &wr, &bad);

	HOLD(!error || bad == &wr);
	return error;
}

static int move(struct ibv_wq *wq, unsigned mask, enum ibv_wq_state to, enum ibv_wq_state from)
{
	struct ibv_wq_attr attr = { .attr_mask = mask, .wq_state = to, .curr_wq_state = from };

	return ibv_modify_wq(wq, &attr);
}

static void can(void)
{
	struct ibv_device_attr_ex attr;

	HOLD(!ibv_query_device_ex(b.context, NULL, &attr));
	HOLD(attr.rss_caps.supported_qpts == 1u << IBV_QPT_RAW_PACKET && attr.rss_caps.max_rwq_indirection_tables > 0);
	HOLD(attr.rss_caps.max_rwq_indirection_table_size >= 1 << LOG_ENTRIES && attr.max_wq_type_rq >= QUEUES);
	HOLD(attr.rss_caps.rx_hash_function == IBV_RX_HASH_FUNC_TOEPLITZ && attr.rss_caps.rx_hash_fields_mask == 0xff);
	puts("can ok");
}

static void queues(void)
{
	struct ibv_device_attr most;
	struct ibv_wq *list[1 << LOG_ENTRIES], *wq;
	struct ibv_wq_attr flags = { .attr_mask = IBV_WQ_ATTR_FLAGS, .flags_mask = IBV_WQ_FLAGS_SCATTER_FCS };

	HOLD(!ibv_query_device(b.context, &most));
	REFUSED(queue(0, 1, 0, 0), EINVAL);
	REFUSED(queue(1 << 30, 1, 0, 0), EINVAL);
	REFUSED(queue(1, most.max_sge + 1, 0, 0), EINVAL);
	REFUSED(queue(1, 1, IBV_WQ_INIT_ATTR_RESERVED, 0), EINVAL);
	REFUSED(queue(1, 1, IBV_WQ_INIT_ATTR_FLAGS, IBV_WQ_FLAGS_DELAY_DROP), EOPNOTSUPP);
	for (int q = 0; q < QUEUES; q++) {
		HOLD(wqs[q] = queue(16, 1, 0, 0));
		HOLD(wqs[q]->wq_context == &b && wqs[q]->pd == b.pd && wqs[q]->cq == b.cq && wqs[q]->state == IBV_WQS_RESET);
	}
	HOLD(wqs[0]->wq_num != wqs[1]->wq_num);
	wq = wqs[0];
	HOLD(post(wq, 1, 0) == EINVAL);
	HOLD(move(wq, 0, IBV_WQS_RDY, 0) == EINVAL && move(wq, IBV_WQ_ATTR_RESERVED, IBV_WQS_RDY, 0) == EINVAL);
	HOLD(move(wq, IBV_WQ_ATTR_STATE, IBV_WQS_UNKNOWN, 0) == EINVAL);
	HOLD(move(wq, IBV_WQ_ATTR_STATE | IBV_WQ_ATTR_CURR_STATE, IBV_WQS_RDY, IBV_WQS_ERR) == EINVAL);
	HOLD(ibv_modify_wq(wq, &flags) == EOPNOTSUPP && wq->state == IBV_WQS_RESET);
	for (int q = 0; q < QUEUES; q++)
		HOLD(!move(wqs[q], IBV_WQ_ATTR_STATE, IBV_WQS_RDY, 0) && wqs[q]->state == IBV_WQS_RDY);
	HOLD(!post(wq, 7, 0) && !move(wq, IBV_WQ_ATTR_STATE, IBV_WQS_ERR, 0) && wq->state == IBV_WQS_ERR);
	struct ibv_wc wc = next(&b);
	HOLD(wc.status == IBV_WC_WR_FLUSH_ERR && wc.wr_id == 7 && wc.qp_num == wq->wq_num);
	HOLD(move(wq, IBV_WQ_ATTR_STATE, IBV_WQS_RDY, 0) == EINVAL && wq->state == IBV_WQS_ERR);
	HOLD(!move(wq, IBV_WQ_ATTR_STATE, IBV_WQS_RESET, 0) && !move(wq, IBV_WQ_ATTR_STATE, IBV_WQS_RDY, 0));
	HOLD(ibv_dealloc_pd(b.pd) == EBUSY && ibv_destroy_cq(b.cq) == EBUSY);

	for (int i = 0; i < 1 << LOG_ENTRIES; i++)
		list[i] = wqs[i % QUEUES];
	REFUSED(table_of(9, list, 0), EINVAL);
	REFUSED(table_of(32, list, 0), EINVAL);
	REFUSED(table_of(LOG_ENTRIES, list, 1), EINVAL);
	HOLD(table = table_of(LOG_ENTRIES, list, 0));
	HOLD(table->context == b.context);
	HOLD(ibv_destroy_wq(wqs[0]) == EBUSY && !post(wqs[0], 1, 0));
	puts("queues ok");
}

static void refused(void)
{
	struct ibv_qp_init_attr_ex init = wanted(IBV_RX_HASH_SRC_IPV4);

	init.qp_type = IBV_QPT_UD;
	REFUSED(ibv_create_qp_ex(b.context, &init), EOPNOTSUPP);
	init = wanted(0);
	REFUSED(ibv_create_qp_ex(b.context, &init), EINVAL);
	init = wanted(IBV_RX_HASH_SRC_IPV4 | IBV_RX_HASH_DST_IPV6);
	REFUSED(ibv_create_qp_ex(b.context, &init), EINVAL);
	init = wanted(IBV_RX_HASH_SRC_IPV4 | IBV_RX_HASH_INNER);
	REFUSED(ibv_create_qp_ex(b.context, &init), EOPNOTSUPP);
	init = wanted(IBV_RX_HASH_SRC_IPV4);
	init.rx_hash_conf.rx_hash_key_len--;
	REFUSED(ibv_create_qp_ex(b.context, &init), EINVAL);
	init = wanted(IBV_RX_HASH_SRC_IPV4);
	init.rx_hash_conf.rx_hash_function = 2;
	REFUSED(ibv_create_qp_ex(b.context, &init), EOPNOTSUPP);
	init = wanted(IBV_RX_HASH_SRC_IPV4);
	init.cap.max_recv_wr = 1;
	REFUSED(ibv_create_qp_ex(b.context, &init), EINVAL);
	init = wanted(IBV_RX_HASH_SRC_IPV4);
	init.comp_mask &= ~IBV_QP_INIT_ATTR_RX_HASH;
	REFUSED(ibv_create_qp_ex(b.context, &init), EINVAL);
	init = wanted(IBV_RX_HASH_SRC_IPV4);
	init.comp_mask |= IBV_QP_INIT_ATTR_SEND_OPS_FLAGS;
	REFUSED(ibv_create_qp_ex(b.context, &init), EINVAL);
	puts("refused ok");
}

static struct ibv_qp *sender(void)
{
	struct ibv_qp_init_attr init = { .send_cq = a.cq, .recv_cq = a.cq, .qp_type = IBV_QPT_RAW_PACKET, .sq_sig_all = 1,
		.cap = { .max_send_wr = 1, .max_send_sge = 1 } };
	struct ibv_qp_attr to = { .port_num = 1 };
	struct ibv_qp *qp = ibv_create_qp(a.pd, &init);

	HOLD(qp);
	for (to.qp_state = IBV_QPS_INIT; to.qp_state <= IBV_QPS_RTS; to.qp_state++)
		HOLD(!ibv_modify_qp(qp, &to, IBV_QP_STATE | (to.qp_state == IBV_QPS_INIT ? IBV_QP_PORT : 0)));
	return qp;
}

/* Sends a segment of a flow of the suite to the other end. */
static void segment(unsigned i)
{
	static const uint8_t head[] = { 0, 0, 0, 0, 0, 0, 2, 0, 0, 0, 0, 9, 8, 0, 0x45, 0, 0, 60, 0, 1, 0, 0, 64, 6, 0, 0 };
	union ibv_gid gid;

	memcpy(a.memory, head, sizeof(head));
	memcpy(a.memory + sizeof(head), suite[i].hashed, 12);
	a.memory[46] = 0x50;
		/* The first address is derived from the MAC. */
	HOLD(!ibv_query_gid(b.context, 1, 0, &gid));
	memcpy(a.memory, gid.raw + 8, 3);
	memcpy(a.memory + 3, gid.raw + 13, 3);
	a.memory[0] ^= 2;
}

static void send_frame(struct ibv_qp *from, unsigned length)
{
	struct ibv_sge sge = { (uintptr_t)a.memory, length, a.mr->lkey };
	struct ibv_send_wr wr = { .opcode = IBV_WR_SEND, .sg_list = &sge, .num_sge = 1 }, *bad;

	HOLD(!ibv_post_send(from, &wr, &bad));
	HOLD(next(&a).status == IBV_WC_SUCCESS);
}

static void spread(struct ibv_qp *from)
{
	struct ibv_flow_attr all = { .type = IBV_FLOW_ATTR_ALL_DEFAULT, .size = sizeof(all), .port = 1 };
	struct ibv_qp_init_attr_ex init = wanted(IBV_RX_HASH_SRC_IPV4 | IBV_RX_HASH_DST_IPV4 | IBV_RX_HASH_SRC_PORT_TCP |
		IBV_RX_HASH_DST_PORT_TCP);
	struct ibv_qp *qp;
	struct ibv_qp_attr attr = { .qp_state = IBV_QPS_INIT, .port_num = 1 };
	struct ibv_qp_init_attr found;
	struct ibv_flow *flow;
	struct ibv_recv_wr none = { 0 }, *bad;

	HOLD(qp = ibv_create_qp_ex(b.context, &init));
	HOLD(ibv_modify_qp(qp, &attr, IBV_QP_STATE | IBV_QP_PORT) == EOPNOTSUPP);
	HOLD(ibv_query_qp(qp, &attr, IBV_QP_STATE, &found) == EOPNOTSUPP && ibv_post_recv(qp, &none, &bad) == EINVAL);
	HOLD(flow = ibv_create_flow(qp, &all));
	for (unsigned i = 0; i < sizeof(suite) / sizeof(*suite); i++) {
		int q = suite[i].hash % (1 << LOG_ENTRIES) % QUEUES;

		segment(i);
		HOLD(!post(wqs[q], 100 + q, q));
		send_frame(from, 74);
		struct ibv_wc wc = next(&b);
		HOLD(wc.status == IBV_WC_SUCCESS && wc.opcode == IBV_WC_RECV && wc.byte_len == 74);
				/* The first queue already has one. */
		HOLD(wc.qp_num == wqs[q]->wq_num && (wc.wr_id == 100u + q || (q == 0 && wc.wr_id == 1)));
		HOLD(!memcmp(b.memory + 2048 * q, a.memory, 74));
	}
	HOLD(ibv_destroy_rwq_ind_table(table) == EBUSY && ibv_destroy_qp(qp) == EBUSY);
	HOLD(!ibv_destroy_flow(flow) && !ibv_destroy_qp(qp));
	puts("spread ok");
}

/* More frames than the CQ has space for, without a poll: CQ and work queue fail, each with one event. */
static void fails(struct ibv_qp *from)
{
	struct ibv_flow_attr all = { .type = IBV_FLOW_ATTR_ALL_DEFAULT, .size = sizeof(all), .port = 1 };
	struct ibv_cq *cq = ibv_create_cq(b.context, 1, NULL, NULL, 0);
	struct ibv_wq_init_attr init = { .wq_type = IBV_WQT_RQ, .max_wr = 16, .max_sge = 1, .pd = b.pd, .cq = cq };
	struct ibv_wq *wq = cq ? ibv_create_wq(b.context, &init) : NULL;
	struct ibv_rwq_ind_table *spare = table;
	struct ibv_qp_init_attr_ex of_table;
	struct ibv_qp *qp;
	struct ibv_flow *flow;
	struct ibv_async_event event;
	int cq_failed = 0, wq_failed = 0;

	HOLD(wq && cq->cqe < 15 && !move(wq, IBV_WQ_ATTR_STATE, IBV_WQS_RDY, 0));
	HOLD(table = table_of(0, &wq, 0));
	of_table = wanted(IBV_RX_HASH_SRC_IPV4);
	HOLD((qp = ibv_create_qp_ex(b.context, &of_table)) && (flow = ibv_create_flow(qp, &all)));
	for (int i = 0; i < cq->cqe + 2; i++) {
		HOLD(!post(wq, i, 0));
		segment(0);
		send_frame(from, 74);
	}
	while (!cq_failed || !wq_failed) {
		struct pollfd fd = { .fd = b.context->async_fd, .events = POLLIN };

		HOLD(poll(&fd, 1, 10000) == 1 && !ibv_get_async_event(b.context, &event));
		cq_failed += event.event_type == IBV_EVENT_CQ_ERR && event.element.cq == cq;
		wq_failed += event.event_type == IBV_EVENT_WQ_FATAL && event.element.wq == wq;
		ibv_ack_async_event(&event);
	}
	HOLD(cq_failed == 1 && wq_failed == 1);
	HOLD(!ibv_destroy_flow(flow) && !ibv_destroy_qp(qp));
	HOLD(!ibv_destroy_rwq_ind_table(table) && !ibv_destroy_wq(wq) && !ibv_destroy_cq(cq));
	table = spare;
	puts("fails ok");
}

/* A queue created with stripping reports VLAN tags beside its frames; after the change the tags are in the frames. */
static void tags(struct ibv_qp *from)
{
	struct ibv_cq_init_attr_ex wanted_cq = { .cqe = 16, .wc_flags = IBV_WC_STANDARD_FLAGS | IBV_WC_EX_WITH_CVLAN };
	struct ibv_cq_ex *cq = ibv_create_cq_ex(b.context, &wanted_cq);
	struct ibv_flow_attr all = { .type = IBV_FLOW_ATTR_ALL_DEFAULT, .size = sizeof(all), .port = 1 };
	struct ibv_wq_attr keep = { .attr_mask = IBV_WQ_ATTR_FLAGS, .flags_mask = IBV_WQ_FLAGS_CVLAN_STRIPPING };
	struct ibv_qp_init_attr_ex init = wanted(IBV_RX_HASH_SRC_IPV4);
	struct ibv_poll_cq_attr none = { 0 };
	struct ibv_flow *flow;
	struct ibv_qp *qp;
	struct ibv_wq *wq;

	HOLD(cq);
	HOLD(wq = queue_on(ibv_cq_ex_to_cq(cq), 4, 1, IBV_WQ_INIT_ATTR_FLAGS, IBV_WQ_FLAGS_CVLAN_STRIPPING));
	HOLD(init.rwq_ind_tbl = table_of(0, &wq, 0));
	HOLD(!move(wq, IBV_WQ_ATTR_STATE, IBV_WQS_RDY, 0));
	HOLD(qp = ibv_create_qp_ex(b.context, &init));
	HOLD(flow = ibv_create_flow(qp, &all));
	for (int strip = 1; strip >= 0; strip--) {
		time_t limit = time(NULL) + 10;

		HOLD(strip || !ibv_modify_wq(wq, &keep));
		segment(0);
		memmove(a.memory + 16, a.memory + 12, 62);
		memcpy(a.memory + 12, "\x81\0\x61\x23", 4);
		HOLD(!post(wq, strip, 0));
		send_frame(from, 78);
		while (ibv_start_poll(cq, &none))
			HOLD(time(NULL) < limit);
		HOLD(cq->status == IBV_WC_SUCCESS && cq->wr_id == (uint64_t)strip);
		HOLD(ibv_wc_read_cvlan(cq) == (strip ? 0x6123 : 0) && ibv_wc_read_byte_len(cq) == (strip ? 74 : 78));
		ibv_end_poll(cq);
		HOLD(!memcmp(b.memory, a.memory, 12) && !memcmp(b.memory + 12, a.memory + (strip ? 16 : 12), 62));
	}
	HOLD(!ibv_destroy_flow(flow) && !ibv_destroy_qp(qp) && !ibv_destroy_rwq_ind_table(init.rwq_ind_tbl));
	HOLD(!ibv_destroy_wq(wq) && !ibv_destroy_cq(ibv_cq_ex_to_cq(cq)));
	puts("tags ok");
}

static void closed(void)
{
	HOLD(!ibv_destroy_rwq_ind_table(table));
	for (int q = 0; q < QUEUES; q++)
		HOLD(!ibv_destroy_wq(wqs[q]));
	for (int i = 0; i < 2; i++) {
		struct end *end = i ? &b : &a;

		HOLD(!ibv_destroy_cq(end->cq) && !ibv_dereg_mr(end->mr) && !ibv_dealloc_pd(end->pd));
		HOLD(!ibv_close_device(end->context));
	}
	puts("closed ok");
}

int main(int argc, char **argv)
{
	struct ibv_qp_init_attr_ex init;
	struct ibv_qp *from;
	int privileged;

	setvbuf(stdout, NULL, _IONBF, 0);
	HOLD(argc == 3);
	open_end(&a, argv[1]);
	open_end(&b, argv[2]);
	can();
	queues();
	privileged = net_raw(0);
	init = wanted(IBV_RX_HASH_SRC_IPV4);
	REFUSED(ibv_create_qp_ex(b.context, &init), EPERM);
	if (privileged) {
		net_raw(1);
		refused();
		from = sender();
		spread(from);
		tags(from);
		fails(from);
		HOLD(!ibv_destroy_qp(from));
	}
	closed();
	return 0;
}
