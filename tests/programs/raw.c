/* Raw packets through the stock libibverbs: raw DEVICE DEVICE
 *
  * Without CAP_NET_RAW they are refused. With it: computed and verified checksums, VLAN tags beside the frame, receives
 * flushed in error, and refusals for other programs.
 * Prints a line for each promise that is kept; ends with 1 at the first that is not. */
#include <infiniband/verbs.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "hold.h"
#include "raw_packets.h"

#define FIELDS (IBV_WC_STANDARD_FLAGS | IBV_WC_EX_WITH_CVLAN)

struct end {
	struct ibv_context *context;
	struct ibv_pd *pd;
	struct ibv_cq_ex *cq;
	struct ibv_mr *mr;
	struct ibv_qp *qp;
	uint8_t mac[6];
	uint8_t memory[4096];
};

static struct end a, b;

static struct ibv_qp *queue(struct end *end, enum ibv_qp_type type, uint32_t flags)
{
	struct ibv_qp_init_attr_ex init = { .send_cq = ibv_cq_ex_to_cq(end->cq), .recv_cq = ibv_cq_ex_to_cq(end->cq),
		.qp_type = type, .pd = end->pd, .create_flags = flags, .send_ops_flags = IBV_QP_EX_WITH_SEND,
		.cap = { .max_send_wr = 8, .max_recv_wr = 8, .max_send_sge = 1, .max_recv_sge = 1 }, .sq_sig_all = 1,
		.comp_mask = IBV_QP_INIT_ATTR_PD | IBV_QP_INIT_ATTR_CREATE_FLAGS | IBV_QP_INIT_ATTR_SEND_OPS_FLAGS };

	return ibv_create_qp_ex(end->context, &init);
}

static void open_end(struct end *end, const char *name)
{
	struct ibv_cq_init_attr_ex attr = { .cqe = 32, .wc_flags = FIELDS };
	union ibv_gid gid;

	end->context = opened(name);
	HOLD(end->pd = ibv_alloc_pd(end->context));
	HOLD(end->cq = ibv_create_cq_ex(end->context, &attr));
	HOLD(end->mr = ibv_reg_mr(end->pd, end->memory, sizeof(end->memory), IBV_ACCESS_LOCAL_WRITE));
		/* The first address is derived from the MAC. */
	HOLD(!ibv_query_gid(end->context, 1, 0, &gid));
	memcpy(end->mac, gid.raw + 8, 3);
	memcpy(end->mac + 3, gid.raw + 13, 3);
	end->mac[0] ^= 2;
}

static void ready(struct end *end, uint32_t flags)
{
	struct ibv_qp_attr to = { .port_num = 1 };

	HOLD(end->qp = queue(end, IBV_QPT_RAW_PACKET, flags));
	for (to.qp_state = IBV_QPS_INIT; to.qp_state <= IBV_QPS_RTS; to.qp_state++)
		HOLD(!ibv_modify_qp(end->qp, &to, IBV_QP_STATE | (to.qp_state == IBV_QPS_INIT ? IBV_QP_PORT : 0)));
}

/* The next completion, which stays open until it is closed. */
static void next(struct end *end)
{
	struct ibv_poll_cq_attr none = { 0 };
	time_t limit = time(NULL) + 10;
	int result;

	while ((result = ibv_start_poll(end->cq, &none)) == ENOENT)
		HOLD(time(NULL) < limit);
	HOLD(!result);
}

static void receive(struct end *end, uint64_t wr_id)
{
	struct ibv_sge sge = { (uintptr_t)end->memory + 2048, 2048, end->mr->lkey };
	struct ibv_recv_wr wr = { .wr_id = wr_id, .sg_list = &sge, .num_sge = 1 }, *bad;

	HOLD(!ibv_post_recv(end->qp, &wr, &bad));
}

/* A tagged UDP packet without checksums in the memory of `a`. */
static unsigned packet(void)
{
	static const uint8_t rest[] = { 0x81, 0, 0x61, 0x23, 8, 0, 0x45, 0, 0, 58, 0, 1, 0, 0, 64, 17, 0, 0, 10, 0, 0, 1, 10, 0,
		0, 2, 0x0f, 0xa0, 0x13, 0x88, 0, 38, 0, 0 };

	memcpy(a.memory, b.mac, 6);
	memcpy(a.memory + 6, a.mac, 6);
	memcpy(a.memory + 12, rest, sizeof(rest));
	memset(a.memory + 12 + sizeof(rest), 0x5a, 30);
	return 12 + sizeof(rest) + 30;
}

static int post(struct ibv_qp *qp, unsigned flags, unsigned length)
{
	struct ibv_sge sge = { (uintptr_t)a.memory, length, a.mr->lkey };
	struct ibv_send_wr wr = { .opcode = IBV_WR_SEND, .sg_list = &sge, .num_sge = 1, .send_flags = flags }, *bad = NULL;
	int result = ibv_post_send(qp, &wr, &bad);

	HOLD(!result || bad == &wr);
	return result;
}

static void post_extended(unsigned flags, unsigned length)
{
	struct ibv_qp_ex *qp = ibv_qp_to_qp_ex(a.qp);

	HOLD(qp);
	ibv_wr_start(qp);
	qp->wr_id = 1;
	qp->wr_flags = flags;
	ibv_wr_send(qp);
	ibv_wr_set_sge(qp, a.mr->lkey, (uintptr_t)a.memory, length);
	HOLD(!ibv_wr_complete(qp));
}

static void offloads(void)
{
	struct ibv_device_attr_ex attr;
	unsigned length = packet();

	HOLD(!ibv_query_device_ex(a.context, NULL, &attr));
	HOLD(attr.raw_packet_caps == (IBV_RAW_PACKET_CAP_CVLAN_STRIPPING | IBV_RAW_PACKET_CAP_IP_CSUM));
	HOLD(attr.device_cap_flags_ex & IBV_DEVICE_RAW_IP_CSUM);
	for (int i = 0; i < 4; i++) {
		unsigned flags = i & 1 ? IBV_SEND_IP_CSUM : 0;

		receive(&b, i);
		if (i < 2)
			HOLD(!post(a.qp, flags, length));
		else
			post_extended(flags, length);
		next(&a);
		HOLD(a.cq->status == IBV_WC_SUCCESS);
		ibv_end_poll(a.cq);
		next(&b);
		HOLD(b.cq->status == IBV_WC_SUCCESS && b.cq->wr_id == (uint64_t)i);
		HOLD(ibv_wc_read_byte_len(b.cq) == length - 4 && ibv_wc_read_cvlan(b.cq) == 0x6123);
		HOLD(!!(ibv_wc_read_wc_flags(b.cq) & IBV_WC_IP_CSUM_OK) == (i & 1));
		ibv_end_poll(b.cq);
		HOLD(!memcmp(b.memory + 2048, a.memory, 12) && !memcmp(b.memory + 2060, "\x08\0\x45", 3));
	}
	puts("offloads ok");
}

static void flushed(void)
{
	struct ibv_qp_attr err = { .qp_state = IBV_QPS_ERR };

	for (int i = 0; i < 4; i++)
		receive(&b, i);
	HOLD(!ibv_modify_qp(b.qp, &err, IBV_QP_STATE));
	for (int i = 4; i < 8; i++)
		receive(&b, i);
	for (int i = 0; i < 8; i++) {
		next(&b);
		HOLD(b.cq->status == IBV_WC_WR_FLUSH_ERR && b.cq->wr_id == (uint64_t)i);
		ibv_end_poll(b.cq);
	}
	puts("flushed ok");
}

static void refused(void)
{
	struct ibv_qp *rc;

	errno = 0;
	HOLD(!queue(&a, IBV_QPT_RC, IBV_QP_CREATE_CVLAN_STRIPPING) && errno == EOPNOTSUPP);
	errno = 0;
	HOLD(!queue(&a, IBV_QPT_RAW_PACKET, IBV_QP_CREATE_SCATTER_FCS) && errno == EOPNOTSUPP);
	HOLD(rc = queue(&a, IBV_QPT_RC, 0));
	HOLD(post(rc, IBV_SEND_IP_CSUM, 64) == EINVAL);
	HOLD(!ibv_destroy_qp(rc));
	puts("refused ok");
}

/* Only programs with the right may send frames from any address and receive frames of others. */
static void unprivileged(void)
{
	struct ibv_flow_attr sniffer = { .type = IBV_FLOW_ATTR_NORMAL, .size = sizeof(sniffer), .port = 1 };
	struct ibv_qp *rc;

	errno = 0;
	HOLD(!queue(&a, IBV_QPT_RAW_PACKET, 0) && errno == EPERM);
	HOLD(rc = queue(&a, IBV_QPT_RC, 0));
	errno = 0;
	HOLD(!ibv_create_flow(rc, &sniffer) && errno == EPERM);
	HOLD(!ibv_destroy_qp(rc));
	puts("unprivileged ok");
}

static void close_end(struct end *end)
{
	HOLD(!ibv_destroy_qp(end->qp) && !ibv_destroy_cq(ibv_cq_ex_to_cq(end->cq)));
	HOLD(!ibv_dereg_mr(end->mr) && !ibv_dealloc_pd(end->pd) && !ibv_close_device(end->context));
}

int main(int argc, char **argv)
{
	struct {
		struct ibv_flow_attr attr;
		struct ibv_flow_spec_eth eth;
	} rule = { .attr = { .type = IBV_FLOW_ATTR_NORMAL, .size = sizeof(rule), .num_of_specs = 1, .port = 1 },
		.eth = { .type = IBV_FLOW_SPEC_ETH, .size = sizeof(rule.eth) } };
	struct ibv_flow *flow;
	int privileged;

	setvbuf(stdout, NULL, _IONBF, 0);
	HOLD(argc == 3);
	open_end(&a, argv[1]);
	open_end(&b, argv[2]);
	privileged = net_raw(0);
	unprivileged();
	if (!privileged)
		return 0;
	net_raw(1);
	ready(&a, 0);
	ready(&b, IBV_QP_CREATE_CVLAN_STRIPPING);
	memcpy(rule.eth.val.dst_mac, b.mac, 6);
	memset(rule.eth.mask.dst_mac, 0xff, 6);
	HOLD(flow = ibv_create_flow(b.qp, &rule.attr));
	offloads();
	flushed();
	refused();
	HOLD(!ibv_destroy_flow(flow));
	close_end(&a);
	close_end(&b);
	return 0;
}
