//! Every layout with its structure in `mlx5_ifc.h`.

use ironverbs_hwspec::{
    cmd::{self, Opcode},
    layout::{Field, Layout},
};
use std::{any::type_name, fmt::Debug};

/// A layout and its counterpart.
pub struct Case {
    /// `mlx5_ifc_<ifc>_bits`, or `none`.
    pub ifc: String,
    pub ours: &'static str,
    pub fields: &'static [Field],
    /// Size in bytes.
    pub size: usize,
    /// Writes ones to row `.0` of a structure with the bytes `.1`, and returns its bytes.
    pub fill: fn(usize, &[u8]) -> Vec<u8>,
    /// Reads every field of a structure with these bytes.
    pub read: fn(&[u8]) -> String,
}

impl Case {
    fn of<T: Layout + Debug>(ifc: &str) -> Self {
        Self {
            ifc: ifc.into(),
            ours: type_name::<T>().rsplit("::").next().unwrap_or_default(),
            fields: T::FIELDS,
            size: T::SIZE,
            fill: |row, bytes| {
                let mut x = T::read(bytes);
                T::FILL[row](&mut x);
                x.bytes().to_vec()
            },
            read: |bytes| {
                let x = T::read(bytes);
                format!("{x:?} {:?}", x.reserved_set())
            },
        }
    }
}

/// The header's name for the input or output (`half`) of a command, derived from the opcode's name, with the exceptions
/// listed here.
fn ifc_of(opcode: Opcode, half: &str) -> String {
    let name = super::codes::capitals(&format!("{opcode:?}")).to_lowercase();
    let name = match (&name[..], half) {
        ("access_reg", _) => "access_register",
        ("set_flow_table_entry", _) => "set_fte",
        ("query_flow_table_entry", _) => "query_fte",
        ("delete_flow_table_entry", _) => "delete_fte",
        ("qp2_err", _) => "qp_2err",
        ("qp2_rst", _) => "qp_2rst",
        ("sqd_rts_qp", _) => "sqd2rts_qp",
        // No header has structures for transitions to SQD.
        ("rts2sqd_qp" | "sqd2sqd_qp", _) => return "none".into(),
        // QueryHcaCapOut and SetHcaCapIn are listed with the page that the table leaves to the decoder.
        ("query_hca_cap", "out") | ("set_hca_cap", "in") => return "none".into(),
        (name, _) => name,
    };
    format!("{name}_{half}")
}

struct Cases(Vec<Case>);

impl cmd::Visitor for Cases {
    fn command<In: Layout + Debug, Out: Layout + Debug>(&mut self, opcode: Opcode) {
        self.0.push(Case::of::<In>(&ifc_of(opcode, "in")));
        self.0.push(Case::of::<Out>(&ifc_of(opcode, "out")));
    }
}

macro_rules! cases { ($($module:path { $($ifc:ident $T:ident,)* })*) => {
    /// Layouts of commands, then the listed ones.
    pub fn all() -> Vec<Case> {
        let mut cases = Cases(Vec::new());
        cmd::visit(&mut cases);
        let Cases(mut cases) = cases;
        $({
            use $module as module;
            $( cases.push(Case::of::<module::$T>(stringify!($ifc))); )*
        })*
        cases
    }
} }

cases! {
    ironverbs_hwspec::context::wq { wq WorkQueue, }
    ironverbs_hwspec::context::qp {
        ads AddressPath,
        qpc QpContext,
    }
    ironverbs_hwspec::context::cq { cqc CqContext, }
    ironverbs_hwspec::context::eq { eqc EqContext, }
    ironverbs_hwspec::context::mkey {
        mkc MkeyContext,
        mtt Mtt,
    }
    ironverbs_hwspec::context::srq {
        srqc SrqContext,
        xrc_srqc XrcSrqContext,
        rmpc RmpContext,
    }
    ironverbs_hwspec::context::caps {
        cmd_hca_cap HcaCap,
        odp_per_transport_service_cap OdpTransportCap,
        odp_cap OdpCap,
        atomic_caps AtomicCaps,
        roce_cap RoceCap,
        per_protocol_networking_offload_caps EthernetOffloadCaps,
        qos_cap QosCap,
        device_mem_cap DeviceMemCap,
        cmd_hca_cap_2 HcaCap2,
    }
    ironverbs_hwspec::context::vport {
        roce_addr_layout RoceAddr,
        mac_address_layout MacAddressLayout,
        nic_vport_context NicVportContext,
        hca_vport_context HcaVportContext,
        traffic_counter TrafficCounter,
        pkey Pkey,
    }
    ironverbs_hwspec::context::eswitch {
        e_switch_cap EswitchCap,
        flow_table_eswitch_cap EswitchFlowTableCaps,
        esw_vport_context EswVportContext,
        esw_vport_context_fields_select EswVportFields,
        scheduling_context SchedulingContext,
        host_params_context HostParams,
    }
    ironverbs_hwspec::context::rq_sq {
        sqc SqContext,
        rqc RqContext,
    }
    ironverbs_hwspec::context::tir {
        tisc TisContext,
        rx_hash_field_select HashFields,
        tirc TirContext,
        rqtc RqtContext,
        rq_num RqNum,
    }
    ironverbs_hwspec::context::flow {
        fte_match_set_lyr_2_4 MatchHeaders,
        fte_match_set_misc MatchMisc,
        fte_match_param MatchParam,
        flow_table_context FlowTableContext,
        vlan FlowVlan,
        flow_context FlowContext,
        dest_format_struct FlowDestination,
        flow_counter_list FlowCounterId,
        flow_table_fields_supported MatchFields,
        flow_table_prop_layout FlowTableProps,
        flow_table_nic_cap FlowTableCaps,
    }
    ironverbs_hwspec::context::port {
        paos_reg Paos,
        pmtu_reg Pmtu,
        ptys_reg Ptys,
        ppcnt_reg Ppcnt,
        eth_802_3_cntrs_grp_data_layout Ieee8023Counters,
        eth_2863_cntrs_grp_data_layout Rfc2863Counters,
        eth_2819_cntrs_grp_data_layout Rfc2819Counters,
        eth_per_prio_grp_data_layout PriorityCounters,
        pplm_reg Pplm,
        pcap_reg Pcap,
        pmlp_reg Pmlp,
        pfcc_reg Pfcc,
        pcmr_reg Pcmr,
        pvlc_reg Pvlc,
    }
    ironverbs_hwspec::cmd::adapter {
        query_hca_cap_out QueryHcaCapOut,
        set_hca_cap_in SetHcaCapIn,
    }
    ironverbs_hwspec::cmd::adapter_id { query_adapter_param_block AdapterParams, }
    ironverbs_hwspec::context::congestion {
        cong_control_r_roce_ecn_rp RoceReactionPoint,
        cong_control_r_roce_ecn_np RoceNotificationPoint,
    }
    ironverbs_hwspec::cmd::umem { umem UserMemory, }
    ironverbs_hwspec::cmd::uctx { uctx UserContext, }
    ironverbs_hwspec::cmd::queue {
        cmd_queue_entry CmdQueueEntry,
        cmd_if_box CmdMailbox,
    }
    ironverbs_hwspec::init_segment {
        health_buffer HealthBuffer,
        initial_seg InitSegment,
    }
    ironverbs_hwspec::cmd {
        cmd_in CmdIn,
        cmd_out CmdOut,
        none Page,
    }
    ironverbs_hwspec::wqe {
        none CtrlSeg,
        none RaddrSeg,
        none DataSeg,
        none InlineSeg,
        none AtomicSeg,
        none XrcSeg,
        none UmrCtrlSeg,
        none KlmSeg,
        none NextSeg,
        none EthSeg,
        ud_adrs_vector AvSeg,
    }
    ironverbs_hwspec::eqe {
        eqe Eqe,
        comp_event CompEvent,
        qp_events QpEvent,
        cq_error CqErrorEvent,
        cmd_inter_comp_event CmdEvent,
        pages_req_event PagesEvent,
        port_state_change_event PortEvent,
        none VportEvent,
        dct_events DctEvent,
    }
    ironverbs_hwspec::cqe { none Cqe64, none CqeError, }
    ironverbs_hwspec::doorbell {
        none SqDoorbell, none CqArm, none CqRecord, none EqDoorbell, none QpRecord,
    }
    ironverbs_hwspec::pcie {
        none ConfigHeader, none StatusCommand, none ExpressCap, none MsixCap, none VendorCap,
        none MsixEntry, none AriCap, none SriovCap,
    }
    ironverbs_hwspec::wire {
        none Ethernet, none Vlan, none Ipv4, none Ipv6, none Udp, none Bth, none Reth, none Aeth,
        none Deth, none XrcEth, none AtomicEth, none AtomicAckEth, none ImmDt, none Ieth, none Lrh,
    }
    ironverbs_hwspec::wire::mad { none MadHeader, none Smp, none ClassPortInfo, }
    ironverbs_hwspec::wire::mad::smp { none NodeInfo, none SwitchInfo, none PortInfo, none SmInfo, }
    ironverbs_hwspec::wire::mad::pma { none PortCounters, none PortCountersExtended, }
    ironverbs_hwspec::wire::mad::sa {
        none SaMad, none PathRecord, none McMemberRecord, none NodeRecord, none PortInfoRecord,
    }
}
