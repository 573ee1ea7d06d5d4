// Work queues, indirection tables, and the QPs and flows that direct frames to them.
#include "fuzz.h"

static struct ibv_context *context(int ctx) { return contexts[ctx]->p; }

static void create(int ctx, struct object *pd, struct object *cq)
{
    struct ibv_wq_init_attr attr = { .wq_type = one_in(40) ? below(4) : IBV_WQT_RQ, .max_wr = odd(1 + below(64)), .max_sge = odd(below(4)),
        .pd = pd->p, .cq = cq->p, .comp_mask = bits(one_in(4) ? IBV_WQ_INIT_ATTR_FLAGS : 0), .create_flags = bits(IBV_WQ_FLAGS_CVLAN_STRIPPING) };
    struct ibv_wq *made = ibv_create_wq(context(ctx), &attr);
    if (!judge_pointer(CREATE_WQ, made))
        return;
    if (made->state != IBV_WQS_RESET || attr.max_wr < 1)
        finding("ibv_create_wq made one in state %d for %u receives", made->state, attr.max_wr);
    keep(WQ, made, ctx, pd, cq, NULL, NULL);
    struct ibv_wq_attr ready = { .attr_mask = IBV_WQ_ATTR_STATE, .wq_state = IBV_WQS_RDY };
    if (!one_in(4))
        judge(MODIFY_WQ, ibv_modify_wq(made, &ready));
}

static void modify(struct ibv_wq *wq)
{
    enum ibv_wq_state was = wq->state;
    struct ibv_wq_attr attr = { .attr_mask = bits(one_in(2) ? IBV_WQ_ATTR_STATE : IBV_WQ_ATTR_STATE | IBV_WQ_ATTR_CURR_STATE | IBV_WQ_ATTR_FLAGS),
        .wq_state = odd(below(3)), .curr_wq_state = one_in(4) ? odd(below(3)) : was, .flags = draw(), .flags_mask = bits(IBV_WQ_FLAGS_CVLAN_STRIPPING) };
    int error = ibv_modify_wq(wq, &attr);
    judge(MODIFY_WQ, error);
    if (error ? wq->state != was : attr.attr_mask & IBV_WQ_ATTR_STATE && wq->state != attr.wq_state)
        finding("ibv_modify_wq from state %d to %d answered %d, and now it is %d", was, attr.wq_state, error, wq->state);
}

static void create_table(int ctx)
{
    struct object *wqs[HOLDS];
    struct ibv_wq *entries[HOLDS];
    struct ibv_rwq_ind_table_init_attr attr = { .log_ind_tbl_size = below(4), .ind_tbl = entries, .comp_mask = one_in(16) ? below(4) : 0 };
    for (int i = 0; i < HOLDS; i++)
        wqs[i] = some(WQ, ctx), entries[i] = wqs[i]->p;
    if (one_in(16))
        attr.log_ind_tbl_size = 9 + below(40); // more than any device has; the call reads no entries
    struct ibv_rwq_ind_table *made = ibv_create_rwq_ind_table(context(ctx), &attr);
    if (!judge_pointer(CREATE_TABLE, made))
        return;
    struct object *table = keep(TABLE, made, ctx, NULL, NULL, NULL, NULL);
    for (int i = 0; i < 1 << attr.log_ind_tbl_size; i++)
        hold(table, wqs[i]);
}

static void create_qp(int ctx, struct object *pd, struct object *table)
{
    static uint8_t key[256];
    static const uint64_t fields[] = { 3, 0xc, 0x33, 0xc3, 0x3c, 0xcc, 0 };
    struct ibv_qp_init_attr_ex attr = { .qp_type = one_in(16) ? (int)below(0x100) : IBV_QPT_RAW_PACKET, .pd = pd->p, .rwq_ind_tbl = table->p,
        .comp_mask = IBV_QP_INIT_ATTR_PD | IBV_QP_INIT_ATTR_IND_TABLE | IBV_QP_INIT_ATTR_RX_HASH,
        .rx_hash_conf = { .rx_hash_function = odd(IBV_RX_HASH_FUNC_TOEPLITZ), .rx_hash_key_len = odd(40), .rx_hash_key = key,
                          .rx_hash_fields_mask = bits(fields[below(7)]) } };
    for (int i = 0; i < 40; i++)
        key[i] = draw();
    if (one_in(8))
        attr.comp_mask |= IBV_QP_INIT_ATTR_CREATE_FLAGS, attr.create_flags = bits(IBV_QP_CREATE_BLOCK_SELF_MCAST_LB);
    if (one_in(16))
        attr.cap.max_recv_wr = odd(0);
    struct ibv_qp *made = ibv_create_qp_ex(context(ctx), &attr);
    if (judge_pointer(CREATE_QP, made))
        keep(QP, made, ctx, pd, table, NULL, NULL);
}

static void create_flow(int ctx, struct object *table)
{
    struct ibv_flow_attr all = { .type = IBV_FLOW_ATTR_ALL_DEFAULT, .size = sizeof(all), .port = 1 };
    for (int i = 0; i < number_of_objects; i++) {
        struct object *qp = objects[i];
        if (qp->kind != QP || qp->of[1] != table)
            continue;
        struct ibv_flow *flow = ibv_create_flow(qp->p, &all);
        if (judge_pointer(CREATE_FLOW, flow))
            keep(FLOW, flow, ctx, qp, NULL, NULL, NULL);
        return;
    }
}

void call_wq(void)
{
    int ctx = below(DEVICES);
    struct object *pd = some_pd(ctx), *cq = some(CQ, ctx), *wq = some(WQ, ctx), *table = some(TABLE, ctx);
    if (!pd || !cq)
        return;
    errno = 0;
    switch (below(8)) {
    case 0:
    case 1: create(ctx, pd, cq); break;
    case 2:
        if (wq)
            create_table(ctx);
        break;
    case 3:
    case 4:
        if (table)
            create_qp(ctx, pd, table);
        break;
    case 5:
        if (table)
            create_flow(ctx, table);
        break;
    default:
        if (wq)
            modify(wq->p);
    }
}
