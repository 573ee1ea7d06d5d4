// The errors that each call may return, by its manual page in section 3. If a page only says "the value of errno", these: EINVAL for
// invalid or contradictory attributes, EOPNOTSUPP for a capability that the device lacks, ENOMEM without space, EHOSTUNREACH for an
// unreachable GID, ENODATA for an empty entry of the GID table (docs/codes.md).
#include "fuzz.h"

#define USUAL EINVAL, ENOMEM, EOPNOTSUPP

static const struct { const char *name; int may[8]; } table[CALLS] = {
    [QUERY] = { "ibv_query_*", { EINVAL, ENODATA, ENOENT, EOPNOTSUPP } },
    [ALLOC_PD] = { "ibv_alloc_pd", { ENOMEM } },
    [ALLOC_TD] = { "ibv_alloc_td", { USUAL } },
    [ALLOC_PARENT] = { "ibv_alloc_parent_domain", { USUAL } },
    [REG_MR] = { "ibv_reg_mr", { USUAL, EFAULT } },
    [REREG_MR] = { "ibv_rereg_mr", { USUAL, EFAULT, EBUSY } },
    [ADVISE_MR] = { "ibv_advise_mr", { EOPNOTSUPP, ENOTSUP, EFAULT, EPERM, ENOENT, EINVAL, ENOMEM } },
    [NULL_MR] = { "ibv_alloc_null_mr", { USUAL } },
    [DMABUF_MR] = { "ibv_reg_dmabuf_mr", { USUAL, EBADF } },
    [DM_MR] = { "ibv_reg_dm_mr", { USUAL } },
    [ALLOC_MW] = { "ibv_alloc_mw", { USUAL } },
    [BIND_MW] = { "ibv_bind_mw", { USUAL, EPERM } },
    [ALLOC_DM] = { "ibv_alloc_dm", { USUAL } },
    [COPY_DM] = { "ibv_memcpy_*_dm", { USUAL, EFAULT } },
    [CREATE_CHANNEL] = { "ibv_create_comp_channel", { ENOMEM, EMFILE } },
    [CREATE_CQ] = { "ibv_create_cq", { USUAL } },
    [CREATE_CQ_EX] = { "ibv_create_cq_ex", { USUAL } },
    [RESIZE_CQ] = { "ibv_resize_cq", { USUAL } },
    [MODIFY_CQ] = { "ibv_modify_cq", { USUAL } },
    [REQ_NOTIFY] = { "ibv_req_notify_cq", { 0 } },
    [START_POLL] = { "ibv_start_poll", { ENOENT, EINVAL } },
    [CREATE_SRQ] = { "ibv_create_srq", { USUAL } },
    [MODIFY_SRQ] = { "ibv_modify_srq", { USUAL } },
    [SRQ_NUM] = { "ibv_get_srq_num", { EINVAL, EOPNOTSUPP } },
    [OPEN_XRCD] = { "ibv_open_xrcd", { USUAL, EBADF } },
    [CREATE_QP] = { "ibv_create_qp", { USUAL, EPERM } },
    [OPEN_QP] = { "ibv_open_qp", { USUAL, ENOENT } },
    [MODIFY_QP] = { "ibv_modify_qp", { USUAL, EPERM, EHOSTUNREACH, ENODATA } },
    [QUERY_QP] = { "ibv_query_qp", { EINVAL, EOPNOTSUPP } },
    [RATE_LIMIT] = { "ibv_modify_qp_rate_limit", { EINVAL, EOPNOTSUPP, ENOSYS } },
    [ATTACH] = { "ibv_attach_mcast", { USUAL } },
    [DETACH] = { "ibv_detach_mcast", { USUAL } },
    [CREATE_AH] = { "ibv_create_ah", { USUAL, EHOSTUNREACH, ENODATA } },
    [CREATE_FLOW] = { "ibv_create_flow", { USUAL, ENXIO, EPERM } },
    [CREATE_WQ] = { "ibv_create_wq", { USUAL } },
    [MODIFY_WQ] = { "ibv_modify_wq", { USUAL } },
    [CREATE_TABLE] = { "ibv_create_rwq_ind_table", { USUAL } },
    [CREATE_COUNTERS] = { "ibv_create_counters", { USUAL, ENOSYS } },
    [ECE] = { "ibv_query_ece, ibv_set_ece", { EINVAL, EOPNOTSUPP } },
    [POST_SEND] = { "ibv_post_send", { USUAL } },
    [POST_RECV] = { "ibv_post_recv, ibv_post_srq_recv, ibv_post_wq_recv", { EINVAL, ENOMEM } },
    [WR_COMPLETE] = { "ibv_wr_complete", { USUAL } },
    [GET_EVENT] = { "ibv_get_*_event", { EAGAIN } },
    [POLLED] = { "ibv_poll_cq, with something found", { 0 } },
    [SUCCEEDED] = { "work that succeeded", { 0 } },
    [CLOSE] = { "ibv_destroy_*", { EBUSY } },
};

// How often each call succeeded and failed.
static long done[CALLS], refused[CALLS];

void tell_counts(void)
{
    for (int call = 0; call < CALLS; call++)
        fprintf(stderr, "%-40s %6ld done %6ld refused\n", table[call].name, done[call], refused[call]);
}

void judge(enum call call, int error)
{
    if (error == 0) {
        done[call]++;
        return;
    }
    refused[call]++;
    for (int i = 0; i < 8 && table[call].may[i]; i++)
        if (table[call].may[i] == error)
            return;
    finding("%s answered %d (%s), which is not among its errors", table[call].name, error, strerror(error));
}

bool judge_pointer(enum call call, const void *p)
{
    if (p) {
        done[call]++;
        return true;
    }
    if (errno == 0)
        finding("%s failed without an errno", table[call].name);
    judge(call, errno);
    return false;
}
