// Completion queues, shared receive queues and queue pairs: create, modify and query.
#include "fuzz.h"
#include <fcntl.h>

static struct ibv_context *context(int ctx) { return contexts[ctx]->p; }

void call_cq(void)
{
    int ctx = below(DEVICES);
    struct object *channel = one_in(2) ? some(CHANNEL, ctx) : NULL, *cq = some(CQ, ctx);
    errno = 0;
    switch (cq ? below(10) : below(6)) {
    case 0:
    case 1: {
        struct ibv_comp_channel *made = ibv_create_comp_channel(context(ctx));
        if (judge_pointer(CREATE_CHANNEL, made)) {
            fcntl(made->fd, F_SETFL, fcntl(made->fd, F_GETFL) | O_NONBLOCK);
            keep(CHANNEL, made, ctx, contexts[ctx], NULL, NULL, NULL);
        }
        break;
    }
    case 2:
    case 3: {
        struct ibv_cq *made = ibv_create_cq(context(ctx), odd(1 + below(256)), NULL, channel ? channel->p : NULL, odd(0));
        if (judge_pointer(CREATE_CQ, made)) {
            keep(CQ, made, ctx, channel ? channel : contexts[ctx], NULL, NULL, NULL);
            if (made->cqe < 1)
                finding("ibv_create_cq made a CQ of %d entries", made->cqe);
        }
        break;
    }
    case 4:
    case 5: {
        struct object *parent = one_in(4) ? some(PARENT, ctx) : NULL;
        struct ibv_cq_init_attr_ex attr = { .cqe = odd(1 + below(256)), .channel = channel ? channel->p : NULL, .comp_vector = odd(0),
            .wc_flags = one_in(8) ? bits(IBV_CREATE_CQ_SUP_WC_FLAGS) : draw() & (IBV_WC_STANDARD_FLAGS | IBV_WC_EX_WITH_COMPLETION_TIMESTAMP), .comp_mask = bits(parent ? 3 : 1),
            .flags = bits(IBV_CREATE_CQ_ATTR_SINGLE_THREADED | IBV_CREATE_CQ_ATTR_IGNORE_OVERRUN),
            .parent_domain = parent ? parent->p : NULL };
        if (!parent)
            attr.comp_mask &= ~IBV_CQ_INIT_ATTR_MASK_PD;
        struct ibv_cq_ex *made = ibv_create_cq_ex(context(ctx), &attr);
        if (judge_pointer(CREATE_CQ_EX, made)) {
            if (!(attr.comp_mask & IBV_CQ_INIT_ATTR_MASK_PD))
                parent = NULL;
            keep(CQ, made, ctx, channel ? channel : contexts[ctx], parent, NULL, NULL)->extended = true;
        }
        break;
    }
    case 6: judge(RESIZE_CQ, ibv_resize_cq(cq->p, odd(1 + below(512)))); break;
    case 7: {
        struct ibv_modify_cq_attr attr = { .attr_mask = bits(IBV_CQ_ATTR_MODERATE), .moderate = { odd(4), odd(16) } };
        judge(MODIFY_CQ, ibv_modify_cq(cq->p, &attr));
        break;
    }
    default: judge(REQ_NOTIFY, ibv_req_notify_cq(cq->p, below(2)));
    }
}

void call_srq(void)
{
    int ctx = below(DEVICES);
    struct object *pd = some_pd(ctx), *srq = some(SRQ, ctx), *cq = some(CQ, ctx), *xrcd = some(XRCD, ctx);
    if (!pd)
        return;
    errno = 0;
    switch (srq ? below(6) : below(2)) {
    case 0: {
        struct ibv_srq_init_attr attr = { .attr = { .max_wr = odd(1 + below(64)), .max_sge = odd(1 + below(3)), .srq_limit = odd(0) } };
        struct ibv_srq *made = ibv_create_srq(pd->p, &attr);
        if (judge_pointer(CREATE_SRQ, made))
            keep(SRQ, made, ctx, pd, NULL, NULL, NULL);
        break;
    }
    case 1: {
        struct ibv_srq_init_attr_ex attr = { .attr = { .max_wr = odd(1 + below(64)), .max_sge = odd(1 + below(3)) }, .comp_mask = IBV_SRQ_INIT_ATTR_PD,
            .srq_type = one_in(8) ? below(6) : IBV_SRQT_BASIC, .pd = pd->p };
        if (one_in(2) && cq && xrcd)
            attr.srq_type = IBV_SRQT_XRC;
        if (attr.srq_type != IBV_SRQT_BASIC || one_in(4)) {
            attr.comp_mask |= IBV_SRQ_INIT_ATTR_TYPE;
            if (cq) attr.comp_mask |= IBV_SRQ_INIT_ATTR_CQ, attr.cq = cq->p;
            if (xrcd) attr.comp_mask |= IBV_SRQ_INIT_ATTR_XRCD, attr.xrcd = xrcd->p;
        }
        if (one_in(8))
            attr.comp_mask |= 1u << (5 + below(20));
        struct ibv_srq *made = ibv_create_srq_ex(context(ctx), &attr);
        bool xrc = attr.srq_type == IBV_SRQT_XRC && attr.comp_mask & IBV_SRQ_INIT_ATTR_TYPE;
        bool tag = attr.srq_type == IBV_SRQT_TM && attr.comp_mask & IBV_SRQ_INIT_ATTR_TYPE;
        if (judge_pointer(CREATE_SRQ, made))
            keep(SRQ, made, ctx, pd, xrc || tag ? cq : NULL, xrc ? xrcd : NULL, NULL)->extended = xrc;
        break;
    }
    case 2: {
        struct ibv_srq_attr attr = { .max_wr = odd(32), .srq_limit = odd(below(32)) };
        judge(MODIFY_SRQ, ibv_modify_srq(srq->p, &attr, bits(3)));
        break;
    }
    case 3: {
        struct ibv_srq_attr attr;
        judge(QUERY, ibv_query_srq(srq->p, &attr));
        break;
    }
    case 4: {
        uint32_t number;
        judge(SRQ_NUM, ibv_get_srq_num(srq->p, &number));
        break;
    }
    default: call_post_recv();
    }
}

static const uint8_t types[] = { IBV_QPT_RC, IBV_QPT_RC, IBV_QPT_RC, IBV_QPT_UC, IBV_QPT_UD, IBV_QPT_UD, IBV_QPT_XRC_SEND, IBV_QPT_XRC_RECV,
                                 IBV_QPT_RAW_PACKET, IBV_QPT_DRIVER };

static struct ibv_qp_attr attributes(enum ibv_qp_state state, struct object *peer)
{
    return (struct ibv_qp_attr){ .qp_state = state, .cur_qp_state = below(7), .path_mtu = one_in(8) ? below(9) : 1 + below(5), .qkey = odd(0x11),
        .rq_psn = 0, .sq_psn = 0, .dest_qp_num = peer ? ((struct ibv_qp *)peer->p)->qp_num : odd(0), .qp_access_flags = bits(0xf),
        .pkey_index = odd(0), .port_num = odd(1), .max_rd_atomic = odd(4), .max_dest_rd_atomic = odd(4), .min_rnr_timer = odd(1), .timeout = odd(10),
        .retry_cnt = odd(1), .rnr_retry = odd(1), .en_sqd_async_notify = below(2), .alt_port_num = odd(0),
        .ah_attr = { .is_global = 1, .port_num = 1, .grh = { .dgid = gids[peer ? peer->ctx : 0], .sgid_index = 1, .hop_limit = 64 } } };
}

static void modify(struct object *o, struct ibv_qp_attr *attr, int mask)
{
    struct ibv_qp_attr was, is;
    struct ibv_qp_init_attr init;
    int known = ibv_query_qp(o->p, &was, IBV_QP_STATE, &init);
    judge(QUERY_QP, known);
    int error = ibv_modify_qp(o->p, attr, mask);
    judge(MODIFY_QP, error);
    if (!error || known || ibv_query_qp(o->p, &is, IBV_QP_STATE, &init))
        return;
    // The peer may have moved it to an error state meanwhile.
    if (is.qp_state != was.qp_state && is.qp_state != IBV_QPS_ERR && is.qp_state != IBV_QPS_SQE && was.qp_state != IBV_QPS_SQD)
        finding("ibv_modify_qp failed with %d, but moved the QP from state %d to %d", error, was.qp_state, is.qp_state);
}

// The attribute masks of the transitions up to RTS, for RC; other services use parts of them.
static int mask_of(int type, enum ibv_qp_state to)
{
    int mask = IBV_QP_STATE;
    bool datagram = type == IBV_QPT_UD || type == IBV_QPT_RAW_PACKET, reliable = !datagram && type != IBV_QPT_UC;
    bool sends = type != IBV_QPT_XRC_RECV, receives = type != IBV_QPT_XRC_SEND;
    if (to == IBV_QPS_INIT)
        mask |= type == IBV_QPT_RAW_PACKET ? IBV_QP_PORT : IBV_QP_PKEY_INDEX | IBV_QP_PORT | (datagram ? IBV_QP_QKEY : IBV_QP_ACCESS_FLAGS);
    if (to == IBV_QPS_RTR && !datagram)
        mask |= IBV_QP_AV | IBV_QP_PATH_MTU | IBV_QP_DEST_QPN | IBV_QP_RQ_PSN | (reliable && receives ? IBV_QP_MAX_DEST_RD_ATOMIC | IBV_QP_MIN_RNR_TIMER : 0);
    if (to == IBV_QPS_RTS && type != IBV_QPT_RAW_PACKET)
        mask |= IBV_QP_SQ_PSN | (reliable ? IBV_QP_TIMEOUT : 0) |
                (reliable && sends ? IBV_QP_RETRY_CNT | IBV_QP_RNR_RETRY | IBV_QP_MAX_QP_RD_ATOMIC : 0);
    return mask;
}

static void connect_pair(struct object *a, struct object *b)
{
    struct object *both[2] = { a, b };
    a->peer = b, b->peer = a;
    for (enum ibv_qp_state to = IBV_QPS_INIT; to <= IBV_QPS_RTS; to++)
        for (int i = 0; i < 2; i++) {
            struct ibv_qp *qp = both[i]->p;
            struct ibv_qp_attr attr = attributes(to, both[1 - i]);
            attr.port_num = 1, attr.pkey_index = 0, attr.path_mtu = IBV_MTU_1024, attr.qp_access_flags = 0xf, attr.timeout = 8;
            attr.max_rd_atomic = attr.max_dest_rd_atomic = 4, attr.retry_cnt = attr.rnr_retry = attr.min_rnr_timer = 1, attr.qkey = 0x11;
            modify(both[i], &attr, mask_of(qp->qp_type, to));
            if (a == b)
                break;
        }
}

static void create(int ctx)
{
    struct object *pd = some_pd(ctx), *send = some(CQ, ctx), *recv = some(CQ, ctx), *srq = one_in(3) ? some(SRQ, ctx) : NULL,
                  *xrcd = some(XRCD, ctx);
    if (!pd || !send)
        return;
    int type = one_in(16) ? (int)below(0x110) : types[below(sizeof(types))];
    if (type == IBV_QPT_XRC_RECV && !xrcd)
        return;
    struct ibv_qp_cap cap = { .max_send_wr = odd(1 + below(64)), .max_recv_wr = odd(1 + below(64)), .max_send_sge = odd(1 + below(4)),
                              .max_recv_sge = odd(1 + below(4)), .max_inline_data = odd(below(128)) };
    struct ibv_qp *made;
    bool extended = one_in(2);
    errno = 0;
    if (!extended && type != IBV_QPT_XRC_RECV) {
        struct ibv_qp_init_attr attr = { .qp_type = type, .cap = cap, .send_cq = send->p, .recv_cq = recv->p, .srq = srq ? srq->p : NULL, .sq_sig_all = below(2) };
        made = ibv_create_qp(pd->p, &attr);
        if (made && one_in(4)) {
            // A query must return the values that were set.
            int before = errno;
            struct ibv_qp *again = ibv_create_qp(pd->p, &attr);
            if (!again && errno != ENOMEM)
                finding("a QP was given sizes that ibv_create_qp then refuses with %d", errno);
            if (again)
                judge(CLOSE, ibv_destroy_qp(again));
            errno = before;
        }
    } else {
        struct ibv_qp_init_attr_ex attr = { .qp_type = type, .cap = cap, .send_cq = send->p, .recv_cq = recv->p, .srq = srq ? srq->p : NULL, .sq_sig_all = below(2),
            .comp_mask = IBV_QP_INIT_ATTR_PD, .pd = pd->p };
        if (type == IBV_QPT_XRC_RECV)
            attr.comp_mask = IBV_QP_INIT_ATTR_XRCD, attr.xrcd = xrcd->p, attr.send_cq = attr.recv_cq = NULL, attr.srq = NULL;
        else if (extended && one_in(2))
            attr.comp_mask |= IBV_QP_INIT_ATTR_SEND_OPS_FLAGS, attr.send_ops_flags = bits(type == IBV_QPT_UD ? 0xc : 0x3ff);
        if (one_in(8))
            attr.comp_mask |= IBV_QP_INIT_ATTR_CREATE_FLAGS, attr.create_flags = bits(0x1f02);
        extended = attr.comp_mask & IBV_QP_INIT_ATTR_SEND_OPS_FLAGS;
        made = ibv_create_qp_ex(context(ctx), &attr);
    }
    if (!judge_pointer(CREATE_QP, made))
        return;
    struct object *qp;
    if (type == IBV_QPT_XRC_RECV)
        qp = keep(QP, made, ctx, xrcd, NULL, NULL, NULL);
    else
        qp = keep(QP, made, ctx, pd, send, type == IBV_QPT_XRC_SEND ? NULL : recv, type == IBV_QPT_XRC_SEND ? NULL : srq);
    qp->extended = extended && type != IBV_QPT_XRC_RECV;
    if (one_in(3))
        return;
    for (int tries = 0; tries < 4; tries++) {
        struct object *peer = some(QP, -1);
        if (((struct ibv_qp *)peer->p)->qp_type == (unsigned)type && tries < 3) {
            connect_pair(qp, peer);
            return;
        }
    }
    connect_pair(qp, qp);
}

void call_qp(void)
{
    int ctx = below(DEVICES);
    struct object *qp = some(QP, ctx), *peer = some(QP, -1);
    if (!qp || one_in(4)) {
        create(ctx);
        return;
    }
    struct ibv_qp *p = qp->p;
    switch (below(8)) {
    case 0: {
        struct ibv_qp_attr attr;
        struct ibv_qp_init_attr init;
        judge(QUERY_QP, ibv_query_qp(p, &attr, draw(), &init));
        break;
    }
    case 1: {
        struct ibv_qp_rate_limit_attr attr = { .rate_limit = odd(1000), .max_burst_sz = odd(0), .typical_pkt_sz = odd(0) };
        judge(RATE_LIMIT, ibv_modify_qp_rate_limit(p, &attr));
        break;
    }
    case 2: ibv_query_qp_data_in_order(p, below(12), below(4)); break;
    case 3: {
        struct object *xrcd = some(XRCD, ctx);
        if (xrcd) {
            struct ibv_qp_open_attr attr = { .comp_mask = bits(IBV_QP_OPEN_ATTR_NUM | IBV_QP_OPEN_ATTR_XRCD | IBV_QP_OPEN_ATTR_TYPE),
                .qp_num = odd(p->qp_num), .xrcd = xrcd->p, .qp_type = odd(IBV_QPT_XRC_RECV) };
            errno = 0;
            struct ibv_qp *made = ibv_open_qp(context(ctx), &attr);
            if (judge_pointer(OPEN_QP, made))
                keep(QP, made, ctx, xrcd, NULL, NULL, NULL);
        }
        break;
    }
    case 4:
    case 5: {
        enum ibv_qp_state to = one_in(16) ? draw() : below(7);
        struct ibv_qp_attr attr = attributes(to, peer);
        modify(qp, &attr, one_in(2) ? (int)bits(mask_of(p->qp_type, to)) : one_in(2) ? (int)below(1 << 26) : mask_of(p->qp_type, to));
        break;
    }
    default:
        if (peer && ((struct ibv_qp *)peer->p)->qp_type == p->qp_type)
            connect_pair(qp, peer);
        else
            connect_pair(qp, qp);
    }
}
