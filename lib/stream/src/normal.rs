//! Values that differ between runs with the same driver behaviour: object numbers, addresses, sequence numbers,
//! identities.

use std::collections::BTreeMap;

/// Display mode of a field's value.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Treat {
    /// Show the value.
    Keep,
    /// The value is the number of an object of this kind.
    Object(&'static str),
    /// Only the presence of the field is meaningful.
    Varies,
}

/// Fields with object numbers, by kind.
const OBJECTS: &[(&str, &[&str])] = &[
    ("uid", &["uid"]),
    ("pd", &["pd"]),
    ("qp", &["qpn", "input_qpn", "remote_qpn", "destination_qp_dct", "underlay_qpn", "deth_sqpn"]),
    ("cq", &["cqn", "cqn_snd", "cqn_rcv"]),
    ("key", &["mkey_index"]),
    ("uar", &["uar", "uar_page"]),
    ("eq", &["eq_number", "c_eqn_or_apu_element"]),
    ("tir", &["tirn"]),
    ("tis", &["tisn", "tis_num_0"]),
    ("sq", &["sqn"]),
    ("rq", &["rqn", "rq_num", "inline_rqn"]),
    ("srq", &["srqn", "xrc_srqn", "srqn_rmpn_xrqn", "rmpn", "srq_number"]),
    ("rqt", &["rqtn", "indirect_table"]),
    ("xrcd", &["xrcd"]),
    ("td", &["transport_domain"]),
    ("table", &["table_id", "table_miss_id"]),
    ("group", &["group_id"]),
    ("destination", &["destination_id"]),
    ("counter", &["flow_counter_id"]),
    ("q_counter", &["counter_set_id"]),
    ("umem", &["umem_id", "cq_umem_id", "wq_umem_id", "dbr_umem_id"]),
];

/// Fields with random values, locations or identities.
const VARY: &[&str] = &[
    "pa",
    "pas",
    "ptag_63_32",
    "ptag_31_8",
    "address",
    "addr",
    "raddr",
    "dbr_addr",
    "db_record_addr_h",
    "db_record_addr_l",
    "start_addr",
    "memic_start_addr",
    "range_start_addr",
    "cmdq_phy_addr_63_32",
    "cmdq_phy_addr_31_12",
    "page_offset",
    "cq_umem_offset",
    "wq_umem_offset",
    "mkey",
    "lkey",
    "rkey",
    "resd_lkey",
    "null_mkey",
    "dump_fill_mkey",
    "terminate_scatter_list_mkey",
    "mkey_7_0",
    "len",
    "byte_count",
    "num_of_mtt",
    "translations_octword_size",
    "translations_octword_actual_size",
    "xlt_octowords",
    "log_page_size",
    "log_wq_pg_sz",
    "next_send_psn",
    "next_rcv_psn",
    "last_acked_psn",
    "ssn",
    "hw_sq_wqebb_counter",
    "sw_sq_wqebb_counter",
    "hw_rq_counter",
    "sw_rq_counter",
    "q_key",
    "qkey",
    "dc_access_key",
    "sw_owner_id",
    "udp_sport",
    "rlid_udp_sport",
    "flow_label",
    "rgid_rip",
    "rmac_47_32",
    "rmac_31_0",
    "rmac_47_16",
    "rmac_15_0",
    "source_l3_address",
    "source_mac_47_32",
    "source_mac_31_0",
    "mac_addr_47_32",
    "mac_addr_31_0",
    "multicast_gid",
    "node_guid",
    "port_guid",
    "system_image_guid",
    "dmac_47_16",
    "dmac_15_0",
    "smac_47_16",
    "smac_15_0",
    "src_ipv4_src_ipv6",
    "dst_ipv4_dst_ipv6",
    "rx_hash_toeplitz_key",
    "driver_version",
    "wqe_idx",
    "next_wqe_index",
    "imm",
    "swap_add",
    "compare",
    "inline_bytes",
    "headers",
    "ci",
    "input_num_entries",
    "output_num_entries",
    "mad",
    "node_desc",
    "user_index",
    "intr",
    "flow_index",
    "start_flow_index",
    "end_flow_index",
];

/// Fields of the above that are zero in some runs only, so that not even their presence is meaningful.
const CHANCE: &[&str] = &[
    "page_offset",
    "cq_umem_offset",
    "wq_umem_offset",
    "log_page_size",
    "log_wq_pg_sz",
    "mkey_7_0",
    "next_send_psn",
    "next_rcv_psn",
    "ptag_63_32",
    "wqe_idx",
    "next_wqe_index",
    "udp_sport",
    "rlid_udp_sport",
    "intr",
    "swap_add",
    "compare",
];

/// True if the presence (a nonzero value) of the field `name` is random.
pub fn is_chance(name: &str) -> bool {
    CHANCE.contains(&name)
}

/// Display mode of the field `name`.
pub fn treat(name: &str) -> Treat {
    if let Some((kind, _)) = OBJECTS.iter().find(|(_, names)| names.contains(&name)) {
        return Treat::Object(kind);
    }
    if VARY.contains(&name) { Treat::Varies } else { Treat::Keep }
}

/// Names of objects: their kind, and their order of first appearance.
#[derive(Default)]
pub struct Names(BTreeMap<(&'static str, u64), usize>, BTreeMap<&'static str, usize>);

impl Names {
    /// The position of `number` among the objects of its kind, starting at 1.
    pub fn place(&mut self, kind: &'static str, number: u64) -> usize {
        let Self(known, last) = self;
        *known.entry((kind, number)).or_insert_with(|| {
            let next = last.entry(kind).or_insert(0);
            *next += 1;
            *next
        })
    }
}
