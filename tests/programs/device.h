/* Opening a device by its name, and a queue pair that is its own peer. */
#pragma once
#include "hold.h"
#include <infiniband/verbs.h>
#include <string.h>

/* Opens the device of that name. */
static struct ibv_context *opened(const char *name)
{
	struct ibv_context *context = NULL;
	int n = 0;
	struct ibv_device **list = ibv_get_device_list(&n);

	for (int i = 0; i < n; i++)
		if (!strcmp(ibv_get_device_name(list[i]), name))
			context = ibv_open_device(list[i]);
	HOLD(context);
	ibv_free_device_list(list);
	return context;
}

/* Connects an RC queue pair to the one with this number behind that GID. */
__attribute__((unused)) static void connect_to(struct ibv_qp *qp, union ibv_gid gid, unsigned qpn, int access, enum ibv_mtu mtu)
{
	struct ibv_qp_attr attr = { .qp_state = IBV_QPS_INIT, .port_num = 1, .qp_access_flags = access };
	HOLD(!ibv_modify_qp(qp, &attr, IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_ACCESS_FLAGS));
	attr = (struct ibv_qp_attr){ .qp_state = IBV_QPS_RTR, .path_mtu = mtu, .dest_qp_num = qpn,
		.max_dest_rd_atomic = 1, .min_rnr_timer = 12, .ah_attr = { .port_num = 1, .is_global = 1,
		.grh = { .dgid = gid, .sgid_index = 1, .hop_limit = 1 } } };
	HOLD(!ibv_modify_qp(qp, &attr, IBV_QP_STATE | IBV_QP_AV | IBV_QP_PATH_MTU | IBV_QP_DEST_QPN | IBV_QP_RQ_PSN |
		IBV_QP_MAX_DEST_RD_ATOMIC | IBV_QP_MIN_RNR_TIMER));
	attr = (struct ibv_qp_attr){ .qp_state = IBV_QPS_RTS, .timeout = 14, .retry_cnt = 7, .rnr_retry = 7,
		.max_rd_atomic = 1 };
	HOLD(!ibv_modify_qp(qp, &attr, IBV_QP_STATE | IBV_QP_TIMEOUT | IBV_QP_RETRY_CNT | IBV_QP_RNR_RETRY | IBV_QP_SQ_PSN |
		IBV_QP_MAX_QP_RD_ATOMIC));
}

/* Connects an RC queue pair to itself by GID 1. */
__attribute__((unused)) static void connect_to_itself(struct ibv_qp *qp, int access, enum ibv_mtu mtu)
{
	union ibv_gid gid;
	HOLD(!ibv_query_gid(qp->context, 1, 1, &gid));
	connect_to(qp, gid, qp->qp_num, access, mtu);
}
