//! Every layout, and which structure of `mlx5_ifc.h` it answers to.

use hwspec::layout::Field;

/// A layout and its counterpart.
pub struct Case {
    /// `mlx5_ifc_<ifc>_bits`, or `none`.
    pub ifc: &'static str,
    pub ours: &'static str,
    pub fields: &'static [Field],
    /// Bytes.
    pub size: usize,
    /// Writes ones to row `.0` of a structure that holds `.1`, and returns its bytes.
    pub fill: fn(usize, &[u8]) -> Vec<u8>,
    /// Reads every field of a structure that holds these bytes.
    pub read: fn(&[u8]) -> String,
}

macro_rules! cases { ($($module:path { $($ifc:ident $T:ident,)* })*) => {
    pub fn all() -> Vec<Case> {
        use hwspec::layout::Layout;
        let mut cases = Vec::new();
        $({
            use $module as module;
            $( cases.push(Case {
                ifc: stringify!($ifc),
                ours: stringify!($T),
                fields: module::$T::FIELDS,
                size: module::$T::SIZE,
                fill: |row, bytes| {
                    let mut x = <module::$T as Layout>::read(bytes);
                    module::$T::FILL[row](&mut x);
                    x.as_bytes().to_vec()
                },
                read: |bytes| {
                    let x = <module::$T as Layout>::read(bytes);
                    format!("{x:?} {:?}", x.reserved_set())
                },
            }); )*
        })*
        cases
    }
} }

cases! {
    hwspec::context::wq {
        wq WorkQueue,
    }
    hwspec::context::qp {
        ads AddressPath,
        qpc QpContext,
    }
    hwspec::context::cq {
        cqc CqContext,
    }
    hwspec::context::eq {
        eqc EqContext,
    }
    hwspec::context::mkey {
        mkc MkeyContext,
        mtt Mtt,
    }
    hwspec::context::srq {
        srqc SrqContext,
        xrc_srqc XrcSrqContext,
        rmpc RmpContext,
    }
    hwspec::context::caps {
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
    hwspec::context::vport {
        roce_addr_layout RoceAddr,
        mac_address_layout MacAddressLayout,
        nic_vport_context NicVportContext,
        hca_vport_context HcaVportContext,
        traffic_counter TrafficCounter,
        pkey Pkey,
    }
    hwspec::context::eswitch {
        e_switch_cap EswitchCap,
        flow_table_eswitch_cap EswitchFlowTableCaps,
        esw_vport_context EswVportContext,
        esw_vport_context_fields_select EswVportFields,
        scheduling_context SchedulingContext,
        host_params_context HostParams,
    }
    hwspec::context::rq_sq {
        sqc SqContext,
        rqc RqContext,
    }
    hwspec::context::tir {
        tisc TisContext,
        rx_hash_field_select HashFields,
        tirc TirContext,
        rqtc RqtContext,
    }
    hwspec::context::flow {
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
    hwspec::context::port {
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
    hwspec::cmd::rq_sq {
        create_sq_in CreateSqIn,
        create_sq_out CreateSqOut,
        modify_sq_in ModifySqIn,
        modify_sq_out ModifySqOut,
        query_sq_in QuerySqIn,
        query_sq_out QuerySqOut,
        destroy_sq_in DestroySqIn,
        destroy_sq_out DestroySqOut,
        create_rq_in CreateRqIn,
        create_rq_out CreateRqOut,
        modify_rq_in ModifyRqIn,
        modify_rq_out ModifyRqOut,
        query_rq_in QueryRqIn,
        query_rq_out QueryRqOut,
        destroy_rq_in DestroyRqIn,
        destroy_rq_out DestroyRqOut,
    }
    hwspec::cmd::tir {
        create_tis_in CreateTisIn,
        create_tis_out CreateTisOut,
        modify_tis_in ModifyTisIn,
        modify_tis_out ModifyTisOut,
        query_tis_in QueryTisIn,
        query_tis_out QueryTisOut,
        destroy_tis_in DestroyTisIn,
        destroy_tis_out DestroyTisOut,
        create_tir_in CreateTirIn,
        create_tir_out CreateTirOut,
        modify_tir_in ModifyTirIn,
        modify_tir_out ModifyTirOut,
        query_tir_in QueryTirIn,
        query_tir_out QueryTirOut,
        destroy_tir_in DestroyTirIn,
        destroy_tir_out DestroyTirOut,
        create_rqt_in CreateRqtIn,
        create_rqt_out CreateRqtOut,
        modify_rqt_in ModifyRqtIn,
        modify_rqt_out ModifyRqtOut,
        query_rqt_in QueryRqtIn,
        query_rqt_out QueryRqtOut,
        destroy_rqt_in DestroyRqtIn,
        destroy_rqt_out DestroyRqtOut,
    }
    hwspec::cmd::flow {
        create_flow_table_in CreateFlowTableIn,
        create_flow_table_out CreateFlowTableOut,
        modify_flow_table_in ModifyFlowTableIn,
        modify_flow_table_out ModifyFlowTableOut,
        query_flow_table_in QueryFlowTableIn,
        query_flow_table_out QueryFlowTableOut,
        destroy_flow_table_in DestroyFlowTableIn,
        destroy_flow_table_out DestroyFlowTableOut,
        set_flow_table_root_in SetFlowTableRootIn,
        set_flow_table_root_out SetFlowTableRootOut,
        create_flow_group_in CreateFlowGroupIn,
        create_flow_group_out CreateFlowGroupOut,
        query_flow_group_in QueryFlowGroupIn,
        query_flow_group_out QueryFlowGroupOut,
        destroy_flow_group_in DestroyFlowGroupIn,
        destroy_flow_group_out DestroyFlowGroupOut,
        set_fte_in SetFteIn,
        set_fte_out SetFteOut,
        query_fte_in QueryFteIn,
        query_fte_out QueryFteOut,
        delete_fte_in DeleteFteIn,
        delete_fte_out DeleteFteOut,
        alloc_flow_counter_in AllocFlowCounterIn,
        alloc_flow_counter_out AllocFlowCounterOut,
        query_flow_counter_in QueryFlowCounterIn,
        query_flow_counter_out QueryFlowCounterOut,
        dealloc_flow_counter_in DeallocFlowCounterIn,
        dealloc_flow_counter_out DeallocFlowCounterOut,
    }
    hwspec::cmd::adapter {
        query_hca_cap_in QueryHcaCapIn,
        query_hca_cap_out QueryHcaCapOut,
        set_hca_cap_in SetHcaCapIn,
        set_hca_cap_out SetHcaCapOut,
        init_hca_in InitHcaIn,
        init_hca_out InitHcaOut,
        teardown_hca_in TeardownHcaIn,
        teardown_hca_out TeardownHcaOut,
        enable_hca_in EnableHcaIn,
        enable_hca_out EnableHcaOut,
        disable_hca_in DisableHcaIn,
        disable_hca_out DisableHcaOut,
        query_pages_in QueryPagesIn,
        query_pages_out QueryPagesOut,
        manage_pages_in ManagePagesIn,
        manage_pages_out ManagePagesOut,
        query_issi_in QueryIssiIn,
        query_issi_out QueryIssiOut,
        set_issi_in SetIssiIn,
        set_issi_out SetIssiOut,
        set_driver_version_in SetDriverVersionIn,
        set_driver_version_out SetDriverVersionOut,
        query_special_contexts_in QuerySpecialContextsIn,
        query_special_contexts_out QuerySpecialContextsOut,
        nop_in NopIn,
        nop_out NopOut,
        access_register_in AccessRegisterIn,
        access_register_out AccessRegisterOut,
    }
    hwspec::cmd::adapter_id {
        query_adapter_param_block AdapterParams,
        query_adapter_in QueryAdapterIn,
        query_adapter_out QueryAdapterOut,
    }
    hwspec::cmd::mcg {
        attach_to_mcg_in AttachToMcgIn,
        attach_to_mcg_out AttachToMcgOut,
        detach_from_mcg_in DetachFromMcgIn,
        detach_from_mcg_out DetachFromMcgOut,
    }
    hwspec::cmd::memic {
        alloc_memic_in AllocMemicIn,
        alloc_memic_out AllocMemicOut,
        dealloc_memic_in DeallocMemicIn,
        dealloc_memic_out DeallocMemicOut,
    }
    hwspec::cmd::mkey {
        create_mkey_in CreateMkeyIn,
        create_mkey_out CreateMkeyOut,
        query_mkey_in QueryMkeyIn,
        query_mkey_out QueryMkeyOut,
        destroy_mkey_in DestroyMkeyIn,
        destroy_mkey_out DestroyMkeyOut,
    }
    hwspec::cmd::eq {
        create_eq_in CreateEqIn,
        create_eq_out CreateEqOut,
        query_eq_in QueryEqIn,
        query_eq_out QueryEqOut,
        destroy_eq_in DestroyEqIn,
        destroy_eq_out DestroyEqOut,
    }
    hwspec::cmd::cq {
        create_cq_in CreateCqIn,
        create_cq_out CreateCqOut,
        query_cq_in QueryCqIn,
        query_cq_out QueryCqOut,
        modify_cq_in ModifyCqIn,
        modify_cq_out ModifyCqOut,
        destroy_cq_in DestroyCqIn,
        destroy_cq_out DestroyCqOut,
    }
    hwspec::cmd::qp {
        create_qp_in CreateQpIn,
        create_qp_out CreateQpOut,
        query_qp_in QueryQpIn,
        query_qp_out QueryQpOut,
        destroy_qp_in DestroyQpIn,
        destroy_qp_out DestroyQpOut,
        rst2init_qp_in Rst2initQpIn,
        rst2init_qp_out Rst2initQpOut,
        init2init_qp_in Init2initQpIn,
        init2init_qp_out Init2initQpOut,
        init2rtr_qp_in Init2rtrQpIn,
        init2rtr_qp_out Init2rtrQpOut,
        rtr2rts_qp_in Rtr2rtsQpIn,
        rtr2rts_qp_out Rtr2rtsQpOut,
        rts2rts_qp_in Rts2rtsQpIn,
        rts2rts_qp_out Rts2rtsQpOut,
        sqerr2rts_qp_in Sqerr2rtsQpIn,
        sqerr2rts_qp_out Sqerr2rtsQpOut,
        sqd2rts_qp_in Sqd2rtsQpIn,
        sqd2rts_qp_out Sqd2rtsQpOut,
        qp_2err_in Qp2errIn,
        qp_2err_out Qp2errOut,
        qp_2rst_in Qp2rstIn,
        qp_2rst_out Qp2rstOut,
    }
    hwspec::cmd::srq {
        create_srq_in CreateSrqIn,
        create_srq_out CreateSrqOut,
        query_srq_in QuerySrqIn,
        query_srq_out QuerySrqOut,
        destroy_srq_in DestroySrqIn,
        destroy_srq_out DestroySrqOut,
        arm_rq_in ArmRqIn,
        arm_rq_out ArmRqOut,
        create_xrc_srq_in CreateXrcSrqIn,
        create_xrc_srq_out CreateXrcSrqOut,
        query_xrc_srq_in QueryXrcSrqIn,
        query_xrc_srq_out QueryXrcSrqOut,
        destroy_xrc_srq_in DestroyXrcSrqIn,
        destroy_xrc_srq_out DestroyXrcSrqOut,
        arm_xrc_srq_in ArmXrcSrqIn,
        arm_xrc_srq_out ArmXrcSrqOut,
        create_rmp_in CreateRmpIn,
        create_rmp_out CreateRmpOut,
        modify_rmp_in ModifyRmpIn,
        modify_rmp_out ModifyRmpOut,
        query_rmp_in QueryRmpIn,
        query_rmp_out QueryRmpOut,
        destroy_rmp_in DestroyRmpIn,
        destroy_rmp_out DestroyRmpOut,
    }
    hwspec::cmd::resource {
        alloc_pd_in AllocPdIn,
        alloc_pd_out AllocPdOut,
        dealloc_pd_in DeallocPdIn,
        dealloc_pd_out DeallocPdOut,
        alloc_uar_in AllocUarIn,
        alloc_uar_out AllocUarOut,
        dealloc_uar_in DeallocUarIn,
        dealloc_uar_out DeallocUarOut,
        alloc_transport_domain_in AllocTransportDomainIn,
        alloc_transport_domain_out AllocTransportDomainOut,
        dealloc_transport_domain_in DeallocTransportDomainIn,
        dealloc_transport_domain_out DeallocTransportDomainOut,
        alloc_xrcd_in AllocXrcdIn,
        alloc_xrcd_out AllocXrcdOut,
        dealloc_xrcd_in DeallocXrcdIn,
        dealloc_xrcd_out DeallocXrcdOut,
        alloc_q_counter_in AllocQCounterIn,
        alloc_q_counter_out AllocQCounterOut,
        query_q_counter_in QueryQCounterIn,
        query_q_counter_out QueryQCounterOut,
        dealloc_q_counter_in DeallocQCounterIn,
        dealloc_q_counter_out DeallocQCounterOut,
    }
    hwspec::context::congestion {
        cong_control_r_roce_ecn_rp RoceReactionPoint,
        cong_control_r_roce_ecn_np RoceNotificationPoint,
    }
    hwspec::cmd::congestion {
        query_cong_status_in QueryCongStatusIn,
        query_cong_status_out QueryCongStatusOut,
        modify_cong_status_in ModifyCongStatusIn,
        modify_cong_status_out ModifyCongStatusOut,
        query_cong_params_in QueryCongParamsIn,
        query_cong_params_out QueryCongParamsOut,
        modify_cong_params_in ModifyCongParamsIn,
        modify_cong_params_out ModifyCongParamsOut,
        query_cong_statistics_in QueryCongStatisticsIn,
        query_cong_statistics_out QueryCongStatisticsOut,
    }
    hwspec::cmd::umem {
        umem UserMemory,
        create_umem_in CreateUmemIn,
        create_umem_out CreateUmemOut,
        destroy_umem_in DestroyUmemIn,
        destroy_umem_out DestroyUmemOut,
    }
    hwspec::cmd::uctx {
        uctx UserContext,
        create_uctx_in CreateUctxIn,
        create_uctx_out CreateUctxOut,
        destroy_uctx_in DestroyUctxIn,
        destroy_uctx_out DestroyUctxOut,
    }
    hwspec::cmd::eswitch {
        query_esw_functions_in QueryEswFunctionsIn,
        query_esw_functions_out QueryEswFunctionsOut,
        query_esw_vport_context_in QueryEswVportContextIn,
        query_esw_vport_context_out QueryEswVportContextOut,
        modify_esw_vport_context_in ModifyEswVportContextIn,
        modify_esw_vport_context_out ModifyEswVportContextOut,
        set_l2_table_entry_in SetL2TableEntryIn,
        set_l2_table_entry_out SetL2TableEntryOut,
        query_l2_table_entry_in QueryL2TableEntryIn,
        query_l2_table_entry_out QueryL2TableEntryOut,
        delete_l2_table_entry_in DeleteL2TableEntryIn,
        delete_l2_table_entry_out DeleteL2TableEntryOut,
        create_scheduling_element_in CreateSchedulingElementIn,
        create_scheduling_element_out CreateSchedulingElementOut,
        modify_scheduling_element_in ModifySchedulingElementIn,
        modify_scheduling_element_out ModifySchedulingElementOut,
        query_scheduling_element_in QuerySchedulingElementIn,
        query_scheduling_element_out QuerySchedulingElementOut,
        destroy_scheduling_element_in DestroySchedulingElementIn,
        destroy_scheduling_element_out DestroySchedulingElementOut,
    }
    hwspec::cmd::vport {
        query_vport_state_in QueryVportStateIn,
        query_vport_state_out QueryVportStateOut,
        modify_vport_state_in ModifyVportStateIn,
        modify_vport_state_out ModifyVportStateOut,
        query_nic_vport_context_in QueryNicVportContextIn,
        query_nic_vport_context_out QueryNicVportContextOut,
        modify_nic_vport_context_in ModifyNicVportContextIn,
        modify_nic_vport_context_out ModifyNicVportContextOut,
        query_hca_vport_context_in QueryHcaVportContextIn,
        query_hca_vport_context_out QueryHcaVportContextOut,
        modify_hca_vport_context_in ModifyHcaVportContextIn,
        modify_hca_vport_context_out ModifyHcaVportContextOut,
        query_hca_vport_gid_in QueryHcaVportGidIn,
        query_hca_vport_gid_out QueryHcaVportGidOut,
        query_hca_vport_pkey_in QueryHcaVportPkeyIn,
        query_hca_vport_pkey_out QueryHcaVportPkeyOut,
        set_roce_address_in SetRoceAddressIn,
        set_roce_address_out SetRoceAddressOut,
        query_roce_address_in QueryRoceAddressIn,
        query_roce_address_out QueryRoceAddressOut,
        query_vport_counter_in QueryVportCounterIn,
        query_vport_counter_out QueryVportCounterOut,
        mad_ifc_in MadIfcIn,
        mad_ifc_out MadIfcOut,
    }
    hwspec::cmd::queue {
        cmd_queue_entry CmdQueueEntry,
        cmd_if_box CmdMailbox,
    }
    hwspec::init_segment {
        health_buffer HealthBuffer,
        initial_seg InitSegment,
    }
    hwspec::cmd {
        cmd_in CmdIn,
        cmd_out CmdOut,
    }
    hwspec::wqe {
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
    hwspec::eqe {
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
    hwspec::cqe {
        none Cqe64,
        none CqeError,
    }
    hwspec::doorbell {
        none SqDoorbell,
        none CqArm,
        none CqRecord,
        none EqDoorbell,
        none QpRecord,
    }
    hwspec::pcie {
        none ConfigHeader,
        none StatusCommand,
        none ExpressCap,
        none MsixCap,
        none VendorCap,
        none MsixEntry,
        none AriCap,
        none SriovCap,
    }
    hwspec::wire {
        none Ethernet,
        none Vlan,
        none Ipv4,
        none Ipv6,
        none Udp,
        none Bth,
        none Reth,
        none Aeth,
        none Deth,
        none XrcEth,
        none AtomicEth,
        none AtomicAckEth,
        none ImmDt,
        none Ieth,
        none Lrh,
    }
    hwspec::wire::mad {
        none MadHeader,
        none Smp,
        none ClassPortInfo,
    }
    hwspec::wire::mad::smp {
        none NodeInfo,
        none SwitchInfo,
        none PortInfo,
        none SmInfo,
    }
    hwspec::wire::mad::pma {
        none PortCounters,
        none PortCountersExtended,
    }
    hwspec::wire::mad::sa {
        none SaMad,
        none PathRecord,
        none McMemberRecord,
        none NodeRecord,
        none PortInfoRecord,
    }
}
