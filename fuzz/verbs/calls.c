// Domains, memory, addresses, queries, and calls that few devices support.
#include "fuzz.h"
#include <fcntl.h>
#include <sys/mman.h>

static struct ibv_context *context(int ctx) { return contexts[ctx]->p; }

void call_query(void)
{
    int ctx = below(DEVICES);
    union { struct ibv_device_attr a; struct ibv_device_attr_ex ex; struct ibv_port_attr p; struct ibv_values_ex v; } u;
    union ibv_gid gid;
    __be16 pkey;
    switch (below(6)) {
    case 0: judge(QUERY, ibv_query_device(context(ctx), &u.a)); break;
    case 1: judge(QUERY, ibv_query_device_ex(context(ctx), NULL, &u.ex)); break;
    case 2: judge(QUERY, ibv_query_port(context(ctx), odd(1), &u.p)); break;
    case 3: ibv_query_gid(context(ctx), 1, odd(1), &gid); break;
    case 4: ibv_query_pkey(context(ctx), 1, odd(0), &pkey); break;
    default:
        u.v.comp_mask = bits(IBV_VALUES_MASK_RAW_CLOCK);
        judge(QUERY, ibv_query_rt_values_ex(context(ctx), &u.v));
    }
}

static void call_domains(int ctx)
{
    errno = 0;
    if (one_in(3)) {
        struct ibv_td_init_attr attr = { .comp_mask = one_in(8) ? below(8) : 0 };
        struct ibv_td *td = ibv_alloc_td(context(ctx), &attr);
        if (judge_pointer(ALLOC_TD, td))
            keep(TD, td, ctx, contexts[ctx], NULL, NULL, NULL);
    } else if (one_in(3) && some(PD, ctx)) {
        struct object *pd = some(PD, ctx), *td = one_in(2) ? some(TD, ctx) : NULL;
        struct ibv_parent_domain_init_attr attr = { .pd = pd->p, .td = td ? td->p : NULL, .comp_mask = one_in(8) ? below(8) & ~3 : 0 };
        struct ibv_pd *parent = ibv_alloc_parent_domain(context(ctx), &attr);
        if (judge_pointer(ALLOC_PARENT, parent))
            keep(PARENT, parent, ctx, pd, td, NULL, NULL);
    } else {
        struct ibv_pd *pd = ibv_alloc_pd(context(ctx));
        if (judge_pointer(ALLOC_PD, pd))
            keep(PD, pd, ctx, contexts[ctx], NULL, NULL, NULL);
    }
}

static int access_flags(void)
{
    return bits(IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_REMOTE_READ | IBV_ACCESS_REMOTE_ATOMIC | IBV_ACCESS_MW_BIND |
                IBV_ACCESS_ZERO_BASED | IBV_ACCESS_ON_DEMAND | IBV_ACCESS_RELAXED_ORDERING);
}

static void register_memory(int ctx, struct object *pd)
{
    size_t at = below(4) * 4096, length = odd(BUFFER - at);
    struct object *dm = some(DM, ctx);
    struct ibv_mr *mr;
    bool pinned = false;
    enum call call = REG_MR;
    errno = 0;
    switch (below(10)) {
    case 0: mr = ibv_alloc_null_mr(pd->p), call = NULL_MR; dm = NULL; break;
    case 1: mr = ibv_reg_dmabuf_mr(pd->p, odd(0), odd(4096), odd(0), -1, access_flags()), call = DMABUF_MR; dm = NULL; break;
    case 2:
        if (dm) {
            mr = ibv_reg_dm_mr(pd->p, dm->p, odd(0), odd(64), access_flags()), call = DM_MR;
            break;
        }
        // fall through
    case 3: mr = ibv_reg_mr_iova(pd->p, buffer + at, length, odd(0x10000), access_flags()); dm = NULL; break;
    case 4: mr = ibv_reg_mr(pd->p, (void *)odd(0x1000), length, access_flags()); dm = NULL; break;
    case 5: mr = ibv_reg_mr(pd->p, buffer + at, length, access_flags()); dm = NULL; break;
    default: mr = ibv_reg_mr(pd->p, buffer, BUFFER, 0xf | (one_in(2) ? IBV_ACCESS_MW_BIND : 0)), pinned = true; dm = NULL;
    }
    if (judge_pointer(call, mr))
        keep(MR, mr, ctx, pd, dm, NULL, NULL)->pinned = pinned;
}

static void call_windows(int ctx, struct object *pd)
{
    struct object *mw = some(MW, ctx), *qp = some(QP, ctx), *mr = some(MR, ctx);
    // Prefers objects of one domain; otherwise nothing could be bound.
    for (int tries = 0; mw && qp && mr && tries < 8 && (mr->of[0] != qp->of[0] || mw->of[0] != qp->of[0]); tries++)
        mw = some(MW, ctx), qp = some(QP, ctx), mr = some(MR, ctx);
    if (!mw || one_in(3)) {
        errno = 0;
        struct ibv_mw *made = ibv_alloc_mw(pd->p, odd(1 + below(2)));
        if (judge_pointer(ALLOC_MW, made))
            keep(MW, made, ctx, pd, NULL, NULL, NULL);
    } else if (qp && mr) {
        struct ibv_mw_bind bind = { .wr_id = ++posted, .send_flags = bits(IBV_SEND_SIGNALED | IBV_SEND_FENCE),
            .bind_info = { .mr = mr->p, .addr = odd((uintptr_t)buffer), .length = odd(4096),
                           .mw_access_flags = one_in(4) ? access_flags() : (int)(draw() & 0xe) } };
        mr->maybe_held = true;
        judge(BIND_MW, ibv_bind_mw(qp->p, mw->p, &bind));
    }
}

static void call_device_memory(int ctx)
{
    struct object *dm = some(DM, ctx);
    if (!dm || one_in(2)) {
        struct ibv_alloc_dm_attr attr = { .length = odd(1 + below(4096)), .log_align_req = odd(below(7)), .comp_mask = one_in(8) ? 1 : 0 };
        errno = 0;
        struct ibv_dm *made = ibv_alloc_dm(context(ctx), &attr);
        if (judge_pointer(ALLOC_DM, made))
            keep(DM, made, ctx, contexts[ctx], NULL, NULL, NULL);
        return;
    }
    // The range must fit the buffer; the call itself checks whether it fits the device memory.
    size_t length = below(BUFFER);
    judge(COPY_DM, one_in(2) ? ibv_memcpy_to_dm(dm->p, odd(0), buffer, length) : ibv_memcpy_from_dm(buffer, dm->p, odd(0), length));
}

void call_memory(void)
{
    int ctx = below(DEVICES);
    struct object *pd = some_pd(ctx), *mr = some(MR, ctx);
    switch (pd ? below(24) : 0) {
    case 0: call_domains(ctx); break;
    case 1: call_device_memory(ctx); break;
    case 2:
    case 3: call_windows(ctx, pd); break;
    case 4:
        if (mr) {
            struct object *to = some(PD, ctx);
            int flags = bits(IBV_REREG_MR_CHANGE_TRANSLATION | IBV_REREG_MR_CHANGE_PD | IBV_REREG_MR_CHANGE_ACCESS);
            if (!to || mr->of[1] || mr->kind != MR)
                break;
            int error = ibv_rereg_mr(mr->p, flags, to->p, buffer, odd(4096), access_flags());
            // Returns a negative error on our side; the errors of ibv_rereg_mr are in errno (enum ibv_rereg_mr_err_code).
            judge(REREG_MR, error ? errno : 0);
            if (!error && flags & IBV_REREG_MR_CHANGE_PD)
                mr->of[0]->users--, to->users++, mr->of[0] = to;
            mr->pinned = false;
        }
        break;
    case 5:
        if (mr) {
            struct ibv_sge sge = { .addr = odd((uintptr_t)buffer), .length = odd(4096), .lkey = odd(((struct ibv_mr *)mr->p)->lkey) };
            judge(ADVISE_MR, ibv_advise_mr(pd->p, odd(below(3)), bits(1), &sge, below(2)));
        }
        break;
    default: register_memory(ctx, pd);
    }
}

void call_address(void)
{
    int ctx = below(DEVICES);
    struct object *pd = some_pd(ctx), *qp = some(QP, ctx);
    if (!pd)
        return;
    if (qp && one_in(3)) {
        union ibv_gid group = { .raw = { 0xff, 0x0e, [15] = 1 } };
        if (one_in(8))
            group.raw[below(16)] = draw();
        if (qp->groups) {
            int error = ibv_detach_mcast(qp->p, &group, 0);
            judge(DETACH, error);
            qp->groups -= !error;
        } else if (group.raw[0] == 0xff && group.raw[15] == 1 && group.raw[1] == 0x0e) {
            int error = ibv_attach_mcast(qp->p, &group, 0);
            judge(ATTACH, error);
            if (!error) {
                // The QP is detached again at once, because its groups would otherwise have to be tracked.
                judge(DETACH, ibv_detach_mcast(qp->p, &group, 0));
            }
        } else {
            judge(DETACH, ibv_detach_mcast(qp->p, &group, 0));
        }
        return;
    }
    struct ibv_ah_attr attr = { .port_num = odd(1), .is_global = !one_in(8), .sl = odd(0), .static_rate = odd(0), .dlid = odd(0),
        .grh = { .dgid = gids[below(DEVICES)], .sgid_index = odd(1), .hop_limit = odd(64), .flow_label = odd(0), .traffic_class = odd(0) } };
    if (one_in(8))
        attr.grh.dgid.raw[below(16)] = draw();
    errno = 0;
    struct ibv_ah *ah = ibv_create_ah(pd->p, &attr);
    if (judge_pointer(CREATE_AH, ah))
        keep(AH, ah, ctx, pd, NULL, NULL, NULL);
}

void call_unusual(void)
{
    int ctx = below(DEVICES);
    struct object *qp = some(QP, ctx);
    errno = 0;
    switch (below(4)) {
    case 0:
        if (qp) {
            struct { struct ibv_flow_attr attr; struct ibv_flow_spec_eth eth; } rule = {
                .attr = { .type = odd(below(4)), .size = odd(sizeof(rule)), .num_of_specs = one_in(4) ? 0 : 1, .port = odd(1), .flags = one_in(8) ? 3 : 0 },
                .eth = { .type = one_in(8) ? below(0x60) : IBV_FLOW_SPEC_ETH, .size = one_in(8) ? below(64) : sizeof(rule.eth) } };
            memset(rule.eth.mask.dst_mac, 0xff, 6);
            struct ibv_flow *flow = ibv_create_flow(qp->p, &rule.attr);
            if (judge_pointer(CREATE_FLOW, flow))
                judge(CLOSE, ibv_destroy_flow(flow));
        }
        break;
    case 1: {
        struct ibv_counters_init_attr attr = { .comp_mask = one_in(4) ? 1 : 0 };
        struct ibv_counters *counters = ibv_create_counters(context(ctx), &attr);
        if (judge_pointer(CREATE_COUNTERS, counters))
            judge(CLOSE, ibv_destroy_counters(counters));
        break;
    }
    case 2:
        if (qp) {
            struct ibv_ece ece = { .vendor_id = odd(0), .options = odd(0) };
            int error = one_in(2) ? ibv_query_ece(qp->p, &ece) : ibv_set_ece(qp->p, &ece);
            judge(ECE, error);
        }
        break;
    default:
        if (!some(XRCD, ctx) || one_in(4)) {
            struct ibv_xrcd_init_attr attr = { .comp_mask = one_in(8) ? below(8) : 3, .fd = -1, .oflags = odd(O_CREAT) };
            struct ibv_xrcd *xrcd = ibv_open_xrcd(context(ctx), &attr);
            if (judge_pointer(OPEN_XRCD, xrcd))
                keep(XRCD, xrcd, ctx, contexts[ctx], NULL, NULL, NULL);
        }
    }
}
