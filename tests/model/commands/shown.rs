//! Creates every kind of object and checks that a query shows each field that the creation took.

use super::*;
use hwspec::{
    cmd::{rq_sq::*, srq::*, tir::*},
    context::{rq_sq::*, srq::*, tir::*, wq::WorkQueue},
    layout::Field,
};

/// A kind of object: a creation that is accepted, and the context in it.
pub struct Kind {
    pub create: Opcode,
    pub query: Opcode,
    pub destroy: Opcode,
    pub input: Vec<u8>,
    /// Bytes before the context, in the input of the creation and in the output of the query.
    at: [usize; 2],
    /// The fields of the context, without structures in between: name, first bit, width.
    fields: Vec<(String, usize, usize)>,
    /// Fields that the adapter takes and does not show, or shows with another value; the name of a structure stands for all its
    /// fields.
    others: &'static [&'static str],
}

/// State that the device owns, which a driver leaves zero. No driver sets `ec` and `oi` of an event queue.
const STATE: &str = "\
    status state st consumer_counter producer_counter last_notified_index last_solicit_index";
/// Fields of a work queue for hairpin, striding, header split and SHAMPO, which the adapter does not offer, for memory in umems, and its
/// counters.
const WORK_QUEUE: &str = "\
    wq.end_padding_mode wq.cd_slave wq.hds_skip_first_sge wq.log2_hds_buf_size wq.hw_counter \
    wq.sw_counter wq.log_hairpin_num_packets wq.log_hairpin_data_sz wq.log_wqe_num_of_strides \
    wq.log_wqe_stride_size wq.dbr_umem_id wq.wq_umem_id wq.wq_umem_offset wq.headers_mkey wq.log_reservation_size \
    wq.log_max_num_of_packets_per_reservation wq.log_headers_entry_size wq.log_headers_buffer_entry_num";
const HAIRPIN: &str = "hairpin_peer_rq hairpin_peer_sq hairpin_peer_vhca";
const SHAMPO: &str = "shampo_no_match_alignment_granularity shampo_match_criteria_type reservation_timeout";
/// Fields that transitions of a queue pair set.
const TRANSITIONS: &str = "\
    lag_tx_port_affinity pm_state mtu log_msg_max remote_qpn primary_address_path secondary_address_path \
    log_ack_req_freq log_sra_max retry_count rnr_retry cur_rnr_retry cur_retry_count next_send_psn \
    last_acked_psn ssn log_rra_max atomic_mode rre rwe rae min_rnr_nak next_rcv_psn q_key rmsn \
    hw_sq_wqebb_counter sw_sq_wqebb_counter hw_rq_counter sw_rq_counter";
/// Fields of a queue pair for services and features that the adapter does not offer, or not for a reliable connection without an SRQ.
const OTHER_QPS: &str = "\
    isolate_vl_tc req_e2e_credit_mode offload_type end_padding_mode block_lb_mc atomic_like_write_en \
    latency_sensitive drain_sigerr ts_format ulp_stateless_offload_mode fre log_num_dci_stream_channels \
    log_num_dci_errored_streams cd_slave_receive cd_slave_send cd_master xrcd srqn_rmpn_xrqn cgs cs_req \
    cs_res dc_access_key dbr_umem_id";
/// Fields of a completion queue for the format of compressed entries, which the adapter never writes, for restarted moderation, and for a
/// record in a umem.
const OTHER_CQS: &str = "\
    scqe_break_moderation_en cq_period_mode mini_cqe_res_format cqe_compression_layout dbr_umem_id";
const OTHER_KEYS: &str = "\
    small_fence_on_rdma_read_response ma_translation_mode sync_umr expected_sigerr_count \
    translations_octword_size";
/// Fields of a TIR for LRO and tunnels.
const OTHER_TIRS: &str = "lro_timeout_period_usecs lro_max_ip_payload_size rx_hash_field_selector_inner";

fn flat(fields: &[Field], prefix: &str, from: usize, all: &mut Vec<(String, usize, usize)>) {
    for field in fields {
        let name = format!("{prefix}{}", field.name);
        match field.inner {
            [] => all.push((name, from + field.offset, field.width)),
            inner => flat(inner, &format!("{name}."), from + field.offset, all),
        }
    }
}

/// Offset in bytes of the structure with rows `inner` in `outer`.
fn place(outer: &[Field], inner: &[Field]) -> usize {
    outer.iter().find(|field| std::ptr::eq(field.inner, inner)).expect("the context").offset / 8
}

fn bits(bytes: &[u8], offset: usize, width: usize) -> Vec<bool> {
    (offset..offset + width).map(|bit| bytes[bit / 8] & (0x80 >> (bit % 8)) != 0).collect()
}

fn flip(bytes: &mut [u8], bit: usize) {
    bytes[bit / 8] ^= 0x80 >> (bit % 8);
}

impl Kind {
    fn new<C: Layout, I: Layout, O: Layout>(
        [create, query, destroy]: [Opcode; 3],
        input: Vec<u8>,
        others: &'static [&'static str],
    ) -> Self {
        let mut fields = Vec::new();
        flat(C::FIELDS, "", 0, &mut fields);
        let at = [place(I::FIELDS, C::FIELDS), place(O::FIELDS, C::FIELDS)];
        Self { create, query, destroy, input, at, fields, others }
    }

    /// Creates an object with `input` and returns the context that a query shows. `None` if the adapter refuses it.
    fn shown(&self, bed: &mut Bed, input: &[u8]) -> Option<Vec<u8>> {
        let made: Reply = bed.reply_to(0, self.create, 0, input, 16);
        if made.status() != Status::Ok {
            return None;
        }
        let mut name = [0; 16];
        name[8..12].copy_from_slice(&made.output[8..12]);
        let shown = bed.reply_to(0, self.query, 0, &name, 0x200);
        assert_eq!(shown.status(), Status::Ok, "{:?}", self.query);
        assert_eq!(bed.reply_to(0, self.destroy, 0, &name, 16).status(), Status::Ok, "{:?}", self.destroy);
        Some(shown.output[self.at[1]..].to_vec())
    }
}

/// Number of kinds.
pub const KINDS: usize = 12;

/// Every kind of object with a context that can be queried.
pub fn kinds(bed: &mut Bed) -> [Kind; KINDS] {
    let base = bed.base(0);
    let cqn = bed.cq_by(0, 0, &base);
    let at = bed.memory.alloc(0, 4 * PAGE);
    let pages = [at, at + 4096];
    let td = AllocTransportDomainOut::read(&bed.ok(0, Opcode::AllocTransportDomain, &CmdIn::zeroed(), 16));
    let td = td.transport_domain();
    let xrcd = AllocXrcdOut::read(&bed.ok(0, Opcode::AllocXrcd, &CmdIn::zeroed(), 16)).xrcd();
    let eq = EqContext::with(|s| s.log_eq_size(4).uar_page(base.uar).intr(3));
    let cq =
        CqContext::with(|s| s.log_cq_size(6).uar_page(base.uar).c_eqn_or_apu_element(base.eqn).dbr_addr(at));
    let key = MkeyContext::with(|s| {
        s.access_mode_1_0(1).pd(base.pd).len(8192).log_page_size(12).translations_octword_size(1)
    });
    let qp = QpContext::with(|s| {
        s.pd(base.pd)
            .uar_page(base.uar)
            .cqn_snd(cqn)
            .cqn_rcv(cqn)
            .log_rq_size(5)
            .log_rq_stride(1)
            .log_sq_size(4)
            .dbr_addr(at)
    });
    let srq = SrqContext::with(|s| s.log_srq_size(5).log_rq_stride(1).pd(base.pd));
    let xrc = XrcSrqContext::with(|s| s.log_xrc_srq_size(5).log_rq_stride(1).pd(base.pd).cqn(cqn).xrcd(xrcd));
    let wq = WorkQueue::with(|s| s.pd(base.pd).log_wq_sz(5).log_wq_stride(5));
    let rmp = RmpContext::with(|s| s.wq(wq));
    let wq = WorkQueue::with(|s| {
        s.wq_type(1).pd(base.pd).uar_page(base.uar).dbr_addr(at).log_wq_sz(4).log_wq_stride(6)
    });
    let sq = SqContext::with(|s| s.cqn(cqn).wq(wq));
    let rq = RqContext::with(|s| s.cqn(cqn).vsd(true).wq(wq));
    let input = CreateRqIn::with(|s| s.ctx(rq));
    let rqn = bed.reply_to(0, Opcode::CreateRq, 0, &with_list(&input, &pages[..1]), 16).made();
    let tis = TisContext::with(|s| s.transport_domain(td));
    let tir = TirContext::with(|s| s.transport_domain(td).inline_rqn(rqn));
    let rqt = RqtContext::with(|s| s.rqt_max_size(4).rqt_actual_size(1));
    let mut table = CreateRqtIn::with(|s| s.rqt_context(rqt)).bytes().to_vec();
    table.extend(rqn.to_be_bytes());

    let create_eq = with_list(&CreateEqIn::with(|s| s.eq_context_entry(eq)), &pages);
    let create_cq = with_list(&CreateCqIn::with(|s| s.cq_context(cq)), &pages);
    let create_key = CreateMkeyIn::with(|s| s.memory_key_mkey_entry(key).translations_octword_actual_size(1));
    let create_qp = with_list(&CreateQpIn::with(|s| s.qpc(qp)), &pages);
    let create_srq = with_list(&CreateSrqIn::with(|s| s.srq_context_entry(srq)), &pages);
    let create_xrc = with_list(&CreateXrcSrqIn::with(|s| s.xrc_srq_context_entry(xrc)), &pages);
    let create_rmp = with_list(&CreateRmpIn::with(|s| s.ctx(rmp)), &pages);
    let create_sq = with_list(&CreateSqIn::with(|s| s.ctx(sq)), &pages[..1]);
    let create_rq = with_list(&CreateRqIn::with(|s| s.ctx(rq)), &pages[..1]);
    let create_tis = CreateTisIn::with(|s| s.ctx(tis)).bytes().to_vec();
    let create_tir = CreateTirIn::with(|s| s.ctx(tir)).bytes().to_vec();
    macro_rules! kind {
        ($Context:ty, $create:ident $In:ty, $query:ident $Out:ty, $destroy:ident, $input:expr, $others:expr) => {
            Kind::new::<$Context, $In, $Out>(
                [Opcode::$create, Opcode::$query, Opcode::$destroy],
                $input,
                &$others,
            )
        };
    }
    let create_key = with_list(&create_key, &pages);
    [
        kind!(EqContext, CreateEq CreateEqIn, QueryEq QueryEqOut, DestroyEq, create_eq, [STATE, "ec oi"]),
        kind!(CqContext, CreateCq CreateCqIn, QueryCq QueryCqOut, DestroyCq, create_cq, [STATE, OTHER_CQS]),
        kind!(MkeyContext, CreateMkey CreateMkeyIn, QueryMkey QueryMkeyOut, DestroyMkey, create_key, [OTHER_KEYS]),
        kind!(QpContext, CreateQp CreateQpIn, QueryQp QueryQpOut, DestroyQp, create_qp, ["state", TRANSITIONS, OTHER_QPS]),
        kind!(SrqContext, CreateSrq CreateSrqIn, QuerySrq QuerySrqOut, DestroySrq, create_srq, [STATE, "cont_srq rlky xrcd cqn wqe_cnt"]),
        kind!(XrcSrqContext, CreateXrcSrq CreateXrcSrqIn, QueryXrcSrq QueryXrcSrqOut, DestroyXrcSrq, create_xrc, [STATE, "cont_srq rlky user_index_equal_xrc_srqn wqe_cnt"]),
        kind!(RmpContext, CreateRmp CreateRmpIn, QueryRmp QueryRmpOut, DestroyRmp, create_rmp, [STATE, WORK_QUEUE, "wq.uar_page wq.two_byte_shift_en wq.shampo_enable"]),
        kind!(SqContext, CreateSq CreateSqIn, QuerySq QuerySqOut, DestroySq, create_sq, [WORK_QUEUE, HAIRPIN, "ts_cqe_to_dest_cqn qos_queue_group_id tis_num_0 wq.lwm wq.two_byte_shift_en wq.shampo_enable"]),
        kind!(RqContext, CreateRq CreateRqIn, QueryRq QueryRqOut, DestroyRq, create_rq, [WORK_QUEUE, HAIRPIN, SHAMPO, "rmpn wq.lwm wq.uar_page"]),
        kind!(TisContext, CreateTis CreateTisIn, QueryTis QueryTisOut, DestroyTis, create_tis, ["strict_lag_tx_port_affinity lag_tx_port_affinity"]),
        kind!(TirContext, CreateTir CreateTirIn, QueryTir QueryTirOut, DestroyTir, create_tir, [OTHER_TIRS]),
        kind!(RqtContext, CreateRqt CreateRqtIn, QueryRqt QueryRqtOut, DestroyRqt, table, ["list_q_type rq_vhca_id_format"]),
    ]
}

#[test]
fn a_query_shows_every_field_that_the_creation_took() {
    let mut bed = up();
    let mut wrong = Vec::new();
    for kind in kinds(&mut bed) {
        let sound =
            kind.shown(&mut bed, &kind.input).unwrap_or_else(|| panic!("{:?} is refused", kind.create));
        for (name, offset, width) in &kind.fields {
            let asked = bits(&kind.input[kind.at[0]..], *offset, *width);
            let mut bad = asked != bits(&sound, *offset, *width);
            // One bit after the other, and all of them.
            let one = (0..*width).map(|bit| vec![bit]);
            for changed in one.chain([(0..*width).collect()]) {
                let mut input = kind.input.clone();
                changed.iter().for_each(|bit| flip(&mut input, kind.at[0] * 8 + offset + bit));
                let Some(shown) = kind.shown(&mut bed, &input) else { continue };
                bad |= bits(&input[kind.at[0]..], *offset, *width) != bits(&shown, *offset, *width);
            }
            let mut listed = kind.others.iter().flat_map(|names| names.split(' '));
            let is_other = listed.any(|other| name == other || name.split('.').next() == Some(other));
            if bad != is_other {
                wrong.push(format!(
                    "{:?}: {name} is {}shown as it was taken",
                    kind.create,
                    if bad { "not " } else { "" }
                ));
            }
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}
