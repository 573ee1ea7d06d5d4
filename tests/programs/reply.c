/* Sends a datagram from one device to another, answers it with an address handle made of its completion and its global
 * route header, and prints the results of both sides. Usage: reply FROM TO GID_INDEX */
#include <arpa/inet.h>
#include <infiniband/verbs.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#define GRH 40
#define SIZE 256
#define QKEY 0x11111111

struct end {
	struct ibv_context *context;
	struct ibv_pd *pd;
	struct ibv_cq *cq;
	struct ibv_qp *qp;
	struct ibv_mr *mr;
	struct ibv_port_attr port;
	union ibv_gid gid;
	unsigned char buffer[2 * SIZE];
};

static void must(int good, const char *what)
{
	if (!good) {
		perror(what);
		exit(1);
	}
}

static void open_end(struct end *end, const char *name, int index)
{
	struct ibv_device **list = ibv_get_device_list(NULL);
	for (; *list && strcmp(ibv_get_device_name(*list), name); list++)
		;
	must(*list != NULL, name);
	end->context = ibv_open_device(*list);
	must(end->context && !ibv_query_port(end->context, 1, &end->port), "open");
	must(!ibv_query_gid(end->context, 1, index, &end->gid), "gid");
	end->pd = ibv_alloc_pd(end->context);
	end->cq = ibv_create_cq(end->context, 16, NULL, NULL, 0);
	end->mr = ibv_reg_mr(end->pd, end->buffer, sizeof(end->buffer), IBV_ACCESS_LOCAL_WRITE);
	struct ibv_qp_init_attr init = { .send_cq = end->cq, .recv_cq = end->cq, .qp_type = IBV_QPT_UD,
					 .cap = { 8, 8, 1, 1, 64 } };
	end->qp = ibv_create_qp(end->pd, &init);
	must(end->mr && end->qp != NULL, "create");
	struct ibv_qp_attr attr = { .qp_state = IBV_QPS_INIT, .port_num = 1, .qkey = QKEY };
	must(!ibv_modify_qp(end->qp, &attr, IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_QKEY), "INIT");
	attr.qp_state = IBV_QPS_RTR;
	must(!ibv_modify_qp(end->qp, &attr, IBV_QP_STATE), "RTR");
	attr.qp_state = IBV_QPS_RTS;
	must(!ibv_modify_qp(end->qp, &attr, IBV_QP_STATE | IBV_QP_SQ_PSN), "RTS");
	memset(end->buffer, 0xee, SIZE);
	struct ibv_sge room = { (uintptr_t)end->buffer, SIZE, end->mr->lkey };
	struct ibv_recv_wr receive = { .wr_id = 1, .sg_list = &room, .num_sge = 1 }, *bad;
	must(!ibv_post_recv(end->qp, &receive, &bad), "receive");
}

static struct ibv_wc next(struct end *end, const char *what)
{
	struct ibv_wc wc;
	time_t limit = time(NULL) + 10;
	int found = 0;
	while (!found && time(NULL) < limit)
		found = ibv_poll_cq(end->cq, 1, &wc);
	must(found == 1, what);
	if (wc.status != IBV_WC_SUCCESS) {
		fprintf(stderr, "%s: %s\n", what, ibv_wc_status_str(wc.status));
		exit(1);
	}
	return wc;
}

static void send_to(struct end *end, struct ibv_ah *ah, uint32_t qpn, uint32_t qkey, const char *text)
{
	strcpy((char *)end->buffer + SIZE, text);
	struct ibv_sge piece = { (uintptr_t)end->buffer + SIZE, strlen(text) + 1, end->mr->lkey };
	struct ibv_send_wr wr = { .wr_id = 2, .sg_list = &piece, .num_sge = 1, .opcode = IBV_WR_SEND_WITH_IMM,
				  .send_flags = IBV_SEND_SIGNALED, .imm_data = htonl(0x12345678) }, *bad;
	wr.wr.ud.ah = ah;
	wr.wr.ud.remote_qpn = qpn;
	wr.wr.ud.remote_qkey = qkey;
	must(!ibv_post_send(end->qp, &wr, &bad), "send");
	struct ibv_wc wc = next(end, "sent");
	must(wc.opcode == IBV_WC_SEND && wc.wr_id == 2, "send completion");
}

static void received(struct end *end, struct end *from, const char *text)
{
	struct ibv_wc wc = next(end, "received");
	must(wc.opcode == IBV_WC_RECV && wc.src_qp == from->qp->qp_num && wc.qp_num == end->qp->qp_num, "numbers");
	must(wc.byte_len == GRH + strlen(text) + 1 && !strcmp((char *)end->buffer + GRH, text), "data");
	must(wc.wc_flags & IBV_WC_WITH_IMM && ntohl(wc.imm_data) == 0x12345678, "immediate data");
	printf("grh %d slid %d:", !!(wc.wc_flags & IBV_WC_GRH), wc.slid);
	for (int i = 0; i < GRH; i++)
		printf(" %02x", end->buffer[i]);
	printf("\n");

	struct ibv_ah_attr attr;
	must(!ibv_init_ah_from_wc(end->context, 1, &wc, (struct ibv_grh *)end->buffer, &attr), "init_ah_from_wc");
	must(attr.port_num == 1, "port");
	if (wc.wc_flags & IBV_WC_GRH)
		must(attr.is_global && !memcmp(&attr.grh.dgid, &from->gid, 16), "destination");
	if (attr.is_global) {
		union ibv_gid own;
		must(!ibv_query_gid(end->context, 1, attr.grh.sgid_index, &own) && !memcmp(&own, &end->gid, 16),
		     "source index");
	}
	struct ibv_ah *ah = ibv_create_ah_from_wc(end->pd, &wc, (struct ibv_grh *)end->buffer, 1);
	must(ah != NULL, "create_ah_from_wc");
	if (!strcmp(text, "question"))
		send_to(end, ah, wc.src_qp, 0x80000000, "answer"); /* the queue pair's own Q_Key */
	must(!ibv_destroy_ah(ah), "destroy_ah");
}

int main(int argc, char **argv)
{
	struct end from, to;
	if (argc < 4)
		return 2;
	open_end(&from, argv[1], atoi(argv[3]));
	open_end(&to, argv[2], atoi(argv[3]));
	struct ibv_ah_attr attr = { .is_global = 1, .dlid = to.port.lid, .port_num = 1,
				    .grh = { .dgid = to.gid, .sgid_index = atoi(argv[3]), .hop_limit = 9,
					     .traffic_class = 0x20, .flow_label = 0x12345 } };
	struct ibv_ah *ah = ibv_create_ah(from.pd, &attr);
	must(ah != NULL, "create_ah");
	must(ibv_dealloc_pd(from.pd) != 0, "a PD with an address handle cannot go");
	send_to(&from, ah, to.qp->qp_num, QKEY, "question");
	must(!ibv_destroy_ah(ah), "destroy_ah");
	received(&to, &from, "question");
	received(&from, &to, "answer");
	printf("answered\n");
	return 0;
}
