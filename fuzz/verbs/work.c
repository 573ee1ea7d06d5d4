// Work: requests posted in lists and piece by piece, completions and events polled.
#include "fuzz.h"

uint64_t posted;

static struct ibv_sge piece(struct object *of)
{
    struct ibv_mr *p = memory_for(of);
    return (struct ibv_sge){ .addr = odd((uintptr_t)buffer + below(BUFFER / 2)), .length = odd(below(one_in(8) ? 8192 : 64)), .lkey = odd(p ? p->lkey : 0) };
}

// Returns a key that the peer of `of` may let it use.
static uint32_t some_rkey(struct object *of)
{
    struct object *mw = one_in(4) ? some(MW, -1) : NULL, *peer = of->peer ? of->peer : of;
    struct ibv_mr *mr = one_in(8) ? NULL : memory_for(peer);
    return odd(mw ? ((struct ibv_mw *)mw->p)->rkey : mr ? mr->rkey : 0);
}

// The call itself reads inline data, so the memory must be mapped.
static void make_readable(struct ibv_sge *sge, int number)
{
    for (int i = 0; i < number; i++)
        sge[i].addr = (uintptr_t)buffer, sge[i].length = below(one_in(8) ? BUFFER : 64);
}

void call_post_send(void)
{
    struct object *qp = some(QP, -1);
    if (!qp)
        return;
    struct ibv_qp *p = qp->p;
    enum { MOST = 8 };
    struct ibv_send_wr list[MOST], *bad = NULL;
    struct ibv_sge sges[MOST][5];
    int number = 1 + below(one_in(4) ? MOST : 2);
    for (int i = 0; i < number; i++) {
        struct object *ah = some(AH, qp->ctx), *mw = some(MW, qp->ctx), *mr = NULL, *peer = some(QP, -1);
        struct ibv_send_wr *wr = &list[i];
        *wr = (struct ibv_send_wr){ .wr_id = ++posted, .next = i + 1 < number ? &list[i + 1] : NULL, .sg_list = sges[i], .num_sge = below(5),
            .opcode = one_in(16) ? below(20) : below(7), .send_flags = bits(IBV_SEND_SIGNALED | IBV_SEND_FENCE | IBV_SEND_SOLICITED) };
        if (one_in(16))
            wr->num_sge = odd(1), wr->num_sge = wr->num_sge > 5 ? 5 : wr->num_sge;
        if (one_in(8))
            wr->send_flags |= IBV_SEND_INLINE;
        for (int s = 0; s < 5; s++)
            sges[i][s] = piece(qp);
        if (wr->send_flags & IBV_SEND_INLINE)
            make_readable(sges[i], 5);
        if (wr->opcode == IBV_WR_TSO)
            wr->opcode = IBV_WR_SEND; // its header is a pointer, which must be valid
        if (p->qp_type == IBV_QPT_UD || p->qp_type == IBV_QPT_DRIVER) {
            // A datagram without an address handle is a null pointer, which is the caller's fault.
            if (!ah)
                return;
            wr->wr.ud.ah = ah->p, wr->wr.ud.remote_qpn = odd(peer ? ((struct ibv_qp *)peer->p)->qp_num : 0), wr->wr.ud.remote_qkey = odd(0x11);
        } else if (wr->opcode == IBV_WR_BIND_MW) {
            mr = some(MR, qp->ctx);
            if (!mw || !mr)
                return;
            mr->maybe_held = true;
            wr->bind_mw.mw = mw->p, wr->bind_mw.rkey = odd(((struct ibv_mw *)mw->p)->rkey);
            wr->bind_mw.bind_info = (struct ibv_mw_bind_info){ .mr = mr->p, .addr = odd((uintptr_t)buffer), .length = odd(64), .mw_access_flags = bits(0xf) };
        } else if (wr->opcode == IBV_WR_ATOMIC_CMP_AND_SWP || wr->opcode == IBV_WR_ATOMIC_FETCH_AND_ADD) {
            wr->wr.atomic.remote_addr = odd((uintptr_t)buffer + 8 * below(64)), wr->wr.atomic.rkey = some_rkey(qp);
        } else {
            wr->wr.rdma.remote_addr = odd((uintptr_t)buffer + below(64)), wr->wr.rdma.rkey = some_rkey(qp);
        }
        if (wr->opcode == IBV_WR_LOCAL_INV || wr->opcode == IBV_WR_SEND_WITH_INV)
            wr->invalidate_rkey = some_rkey(qp);
        if (p->qp_type == IBV_QPT_XRC_SEND)
            wr->qp_type.xrc.remote_srqn = odd(below(64));
    }
    int error = ibv_post_send(p, list, &bad);
    judge(POST_SEND, error);
    if (error && (bad < list || bad >= list + number))
        finding("ibv_post_send failed with %d and did not say where", error);
}

void call_post_recv(void)
{
    struct object *srq = some(SRQ, -1), *wq = some(WQ, -1), *qp = some(QP, -1), *o = srq && one_in(3) ? srq : wq && one_in(3) ? wq : qp;
    enum { MOST = 8 };
    struct ibv_recv_wr list[MOST], *bad = NULL;
    struct ibv_sge sges[MOST][5];
    if (!o)
        return;
    int number = 1 + below(MOST);
    for (int i = 0; i < number; i++) {
        list[i] = (struct ibv_recv_wr){ .wr_id = ++posted, .next = i + 1 < number ? &list[i + 1] : NULL, .sg_list = sges[i], .num_sge = below(one_in(8) ? 6 : 3) };
        for (int s = 0; s < 5; s++)
            sges[i][s] = piece(o);
    }
    int error = o->kind == SRQ  ? ibv_post_srq_recv(o->p, list, &bad)
                : o->kind == WQ ? ibv_post_wq_recv(o->p, list, &bad)
                                : ibv_post_recv(o->p, list, &bad);
    // A QP without a receive queue does not implement receives.
    if (error == EOPNOTSUPP && o->kind == QP)
        return;
    judge(POST_RECV, error);
    if (error && (bad < list || bad >= list + number))
        finding("ibv_post_recv failed with %d and did not say where", error);
}

void call_wr(void)
{
    struct object *o = some(QP, -1);
    for (int tries = 0; o && !o->extended && tries < 8; tries++)
        o = some(QP, -1);
    if (!o || !o->extended)
        return;
    struct ibv_qp *p = o->p;
    struct ibv_qp_ex *qp = ibv_qp_to_qp_ex(p);
    if (!qp)
        finding("a QP made with send_ops_flags is no extended one");
    ibv_wr_start(qp);
    for (int i = below(4); i >= 0; i--) {
        struct ibv_sge sges[4] = { piece(o), piece(o), piece(o), piece(o) };
        uint64_t to = odd((uintptr_t)buffer);
        qp->wr_id = ++posted;
        qp->wr_flags = bits(IBV_SEND_SIGNALED | IBV_SEND_FENCE);
        // Operations that were not requested at creation have no function pointer.
        switch (below(5)) {
        case 0: if (!qp->wr_send) continue; ibv_wr_send(qp); break;
        case 1: if (!qp->wr_send_imm) continue; ibv_wr_send_imm(qp, 7); break;
        case 2: if (!qp->wr_rdma_write) continue; ibv_wr_rdma_write(qp, some_rkey(o), to); break;
        case 3: if (!qp->wr_rdma_read) continue; ibv_wr_rdma_read(qp, some_rkey(o), to); break;
        default: if (!qp->wr_atomic_fetch_add) continue; ibv_wr_atomic_fetch_add(qp, some_rkey(o), to & ~7ull, 1);
        }
        if (p->qp_type == IBV_QPT_UD) {
            struct object *ah = some(AH, o->ctx);
            if (!ah) {
                ibv_wr_abort(qp);
                return;
            }
            ibv_wr_set_ud_addr(qp, ah->p, odd(0), odd(0x11));
        }
        if (p->qp_type == IBV_QPT_XRC_SEND)
            ibv_wr_set_xrc_srqn(qp, odd(0));
        if (one_in(4))
            ibv_wr_set_inline_data(qp, buffer, below(one_in(4) ? BUFFER : 64));
        else if (one_in(2))
            ibv_wr_set_sge(qp, sges[0].lkey, sges[0].addr, sges[0].length);
        else
            ibv_wr_set_sge_list(qp, below(5), sges);
    }
    if (one_in(4))
        ibv_wr_abort(qp);
    else
        judge(WR_COMPLETE, ibv_wr_complete(qp));
}

static void check(uint64_t wr_id, int status)
{
    if (status < 0 || status > IBV_WC_TM_RNDV_INCOMPLETE)
        finding("a completion has status %d", status);
    if (status == IBV_WC_SUCCESS)
        judge(SUCCEEDED, 0);
    // Failed completions too are identified by wr_id, so it must always be one of ours.
    if (wr_id == 0 || wr_id > posted)
        finding("a completion has wr_id %llu, and %llu were posted", (unsigned long long)wr_id, (unsigned long long)posted);
}

void call_poll(void)
{
    struct object *cq = some(CQ, -1);
    if (!cq)
        return;
    if (cq->extended && one_in(2)) {
        struct ibv_cq_ex *ex = cq->p;
        struct ibv_poll_cq_attr attr = { .comp_mask = one_in(16) ? 1 : 0 };
        int error = ibv_start_poll(ex, &attr);
        judge(START_POLL, error);
        if (error)
            return;
        do {
            check(ex->wr_id, ex->status);
            ibv_wc_read_opcode(ex);
            ibv_wc_read_vendor_err(ex);
        } while (!one_in(4) && !(error = ibv_next_poll(ex)));
        judge(START_POLL, error);
        ibv_end_poll(ex);
        return;
    }
    struct ibv_wc wc[16];
    int found = ibv_poll_cq(cq->p, 1 + below(16), wc);
    if (found > 0)
        judge(POLLED, 0);
    // A CQ that has overrun returns an error from then on.
    for (int i = 0; i < found; i++)
        check(wc[i].wr_id, wc[i].status);
}

void call_events(void)
{
    int ctx = below(DEVICES);
    struct object *channel = some(CHANNEL, ctx);
    struct ibv_async_event event;
    struct ibv_cq *cq;
    void *its;
    errno = 0;
    if (!ibv_get_async_event(contexts[ctx]->p, &event))
        ibv_ack_async_event(&event);
    else
        judge(GET_EVENT, errno);
    errno = 0;
    if (channel && !ibv_get_cq_event(channel->p, &cq, &its))
        ibv_ack_cq_events(cq, 1);
    else if (channel)
        judge(GET_EVENT, errno);
}
