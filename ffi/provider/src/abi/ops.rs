//! The operations that a provider may offer, in the order of `struct verbs_context_ops`, with the release that added each.
//!
//! The structure is sorted by name, so every addition moves all later members; the slot of a name is therefore taken from the table that
//! agrees with the loaded library's public slots.

/// Capacity for every known table, plus enough to detect that the library's is longer.
pub const MAX_OPS: usize = 160;

/// The releases that changed the table, oldest first.
pub const RELEASES: [u16; 5] = [36, 59, 62, 64, 65];

/// The name, and the release that added it.
const NAMES: [(&str, u16); 93] = [
    ("advise_mr", 36),
    ("alloc_buf", 64),
    ("alloc_dm", 36),
    ("alloc_dmah", 59),
    ("alloc_mw", 36),
    ("alloc_null_mr", 36),
    ("alloc_parent_domain", 36),
    ("alloc_pd", 36),
    ("alloc_td", 36),
    ("async_event", 36),
    ("attach_counters_point_flow", 36),
    ("attach_mcast", 36),
    ("bind_mw", 36),
    ("close_xrcd", 36),
    ("cq_event", 36),
    ("create_ah", 36),
    ("create_comp_cntr", 65),
    ("create_counters", 36),
    ("create_cq", 36),
    ("create_cq_ex", 36),
    ("create_flow", 36),
    ("create_flow_action_esp", 36),
    ("create_qp", 36),
    ("create_qp_ex", 36),
    ("create_rwq_ind_table", 36),
    ("create_srq", 36),
    ("create_srq_ex", 36),
    ("create_wq", 36),
    ("dealloc_dmah", 59),
    ("dealloc_mw", 36),
    ("dealloc_pd", 36),
    ("dealloc_td", 36),
    ("dereg_mr", 36),
    ("destroy_ah", 36),
    ("destroy_comp_cntr", 65),
    ("destroy_counters", 36),
    ("destroy_cq", 36),
    ("destroy_flow", 36),
    ("destroy_flow_action", 36),
    ("destroy_qp", 36),
    ("destroy_rwq_ind_table", 36),
    ("destroy_srq", 36),
    ("destroy_wq", 36),
    ("detach_mcast", 36),
    ("dm_export_dmabuf_fd", 62),
    ("free_buf", 64),
    ("free_context", 36),
    ("free_dm", 36),
    ("get_srq_num", 36),
    ("import_dm", 36),
    ("import_mr", 36),
    ("import_pd", 36),
    ("inc_comp_cntr", 65),
    ("inc_err_comp_cntr", 65),
    ("modify_cq", 36),
    ("modify_flow_action_esp", 36),
    ("modify_qp", 36),
    ("modify_qp_rate_limit", 36),
    ("modify_srq", 36),
    ("modify_wq", 36),
    ("open_qp", 36),
    ("open_xrcd", 36),
    ("poll_cq", 36),
    ("post_recv", 36),
    ("post_send", 36),
    ("post_srq_ops", 36),
    ("post_srq_recv", 36),
    ("qp_attach_comp_cntr", 65),
    ("query_comp_cntr_caps", 65),
    ("query_device_ex", 36),
    ("query_ece", 36),
    ("query_port", 36),
    ("query_port_speed", 62),
    ("query_qp", 36),
    ("query_qp_data_in_order", 36),
    ("query_rt_values", 36),
    ("query_srq", 36),
    ("read_comp_cntr", 65),
    ("read_counters", 36),
    ("read_err_comp_cntr", 65),
    ("reg_dm_mr", 36),
    ("reg_dmabuf_mr", 36),
    ("reg_mr", 36),
    ("reg_mr_ex", 59),
    ("req_notify_cq", 36),
    ("rereg_mr", 36),
    ("resize_cq", 36),
    ("set_comp_cntr", 65),
    ("set_ece", 36),
    ("set_err_comp_cntr", 65),
    ("unimport_dm", 36),
    ("unimport_mr", 36),
    ("unimport_pd", 36),
];

/// The table of one release: names in slot order.
#[derive(Debug, Clone)]
pub struct OpsTable {
    /// The first release with this table.
    pub since: u16,
    names: Vec<&'static str>,
}

impl OpsTable {
    /// The table of `release`, one of [`RELEASES`].
    pub fn of(release: u16) -> Self {
        let names = NAMES.iter().filter(|(_, since)| *since <= release).map(|(name, _)| *name).collect();
        OpsTable { since: release, names }
    }

    /// Number of slots.
    #[allow(clippy::len_without_is_empty)]
    pub fn len(&self) -> usize {
        self.names.len()
    }

    /// The name in a slot.
    pub fn name(&self, slot: usize) -> Option<&'static str> {
        self.names.get(slot).copied()
    }

    /// The slot of a name, if this release has it.
    pub fn slot(&self, name: &str) -> Option<usize> {
        self.names.iter().position(|n| *n == name)
    }
}

/// The operation in each slot of `ibv_context.ops`; `""` where the library stores a function of its own, or nothing.
pub const CONTEXT_SLOTS: [&str; 32] = [
    "",
    "",
    "alloc_pd",
    "dealloc_pd",
    "reg_mr",
    "rereg_mr",
    "dereg_mr",
    "alloc_mw",
    "bind_mw",
    "dealloc_mw",
    "create_cq",
    "poll_cq",
    "req_notify_cq",
    "cq_event",
    "resize_cq",
    "destroy_cq",
    "create_srq",
    "modify_srq",
    "query_srq",
    "destroy_srq",
    "post_srq_recv",
    "create_qp",
    "query_qp",
    "modify_qp",
    "destroy_qp",
    "post_send",
    "post_recv",
    "create_ah",
    "destroy_ah",
    "attach_mcast",
    "detach_mcast",
    "async_event",
];

/// The members of `struct verbs_context`, in words downwards from `ibv_context`: the structure grows at its low end.
pub const EXTENDED_SLOTS: [&str; 46] = [
    "", // sz
    "", // placeholder 3
    "close_xrcd",
    "open_xrcd",
    "create_srq_ex",
    "get_srq_num",
    "create_qp_ex",
    "open_qp",
    "", // placeholder 1
    "create_flow",
    "", // placeholder 2
    "destroy_flow",
    "query_device_ex",
    "", // priv
    "", // create_cq_ex: the library's own
    "query_rt_values",
    "create_wq",
    "modify_wq",
    "destroy_wq",
    "create_rwq_ind_table",
    "destroy_rwq_ind_table",
    "post_srq_ops",
    "modify_cq",
    "alloc_td",
    "dealloc_td",
    "alloc_parent_domain",
    "modify_qp_rate_limit",
    "create_flow_action_esp",
    "destroy_flow_action",
    "modify_flow_action_esp",
    "free_dm",
    "alloc_dm",
    "reg_dm_mr",
    "destroy_counters",
    "create_counters",
    "attach_counters_point_flow",
    "read_counters",
    "alloc_null_mr",
    "advise_mr",
    "", // query_port: the library's own
    "alloc_dmah",
    "dealloc_dmah",
    "reg_mr_ex",
    "dm_export_dmabuf_fd",
    "alloc_buf",
    "free_buf",
];

/// Words from `ibv_context` down to the pointer to the library's private part.
pub const PRIV_WORD: usize = 14;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tables_have_the_known_lengths_and_are_sorted() {
        for (release, len) in [(36, 76), (59, 79), (62, 81), (64, 83), (65, 93)] {
            let table = OpsTable::of(release);
            assert_eq!(table.len(), len, "release {release}");
            assert!(table.names.is_sorted(), "release {release}");
        }
    }

    #[test]
    fn every_public_slot_is_named_in_the_newest_table() {
        let table = OpsTable::of(65);
        for name in CONTEXT_SLOTS.iter().chain(&EXTENDED_SLOTS).filter(|n| !n.is_empty()) {
            assert!(table.slot(name).is_some(), "{name}");
        }
    }
}
