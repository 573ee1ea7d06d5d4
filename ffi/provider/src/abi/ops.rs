//! The operations that a provider may offer, by the release that added them, and their order in `struct verbs_context_ops`.
//!
//! The structure is sorted by name, so every addition moves all later members; the slot of a name is therefore taken from the table that
//! agrees with the loaded library's public slots.

/// Capacity for every known table, plus enough to detect that the library's is longer.
pub const MAX_OPS: usize = 160;

/// The releases that changed the table, oldest first.
pub const RELEASES: [u16; 5] = [36, 59, 62, 64, 65];

/// The operations that each release added.
const ADDED: [(u16, &str); 5] = [
    (
        36,
        "advise_mr alloc_dm alloc_mw alloc_null_mr alloc_parent_domain alloc_pd alloc_td async_event \
         attach_counters_point_flow attach_mcast bind_mw close_xrcd cq_event create_ah \
         create_counters create_cq create_cq_ex create_flow create_flow_action_esp create_qp \
         create_qp_ex create_rwq_ind_table create_srq create_srq_ex create_wq dealloc_mw dealloc_pd \
         dealloc_td dereg_mr destroy_ah destroy_counters destroy_cq destroy_flow destroy_flow_action \
         destroy_qp destroy_rwq_ind_table destroy_srq destroy_wq detach_mcast free_context free_dm \
         get_srq_num import_dm import_mr import_pd modify_cq modify_flow_action_esp modify_qp \
         modify_qp_rate_limit modify_srq modify_wq open_qp open_xrcd poll_cq post_recv post_send \
         post_srq_ops post_srq_recv query_device_ex query_ece query_port query_qp \
         query_qp_data_in_order query_rt_values query_srq read_counters reg_dm_mr reg_dmabuf_mr \
         reg_mr req_notify_cq rereg_mr resize_cq set_ece unimport_dm unimport_mr unimport_pd",
    ),
    (59, "alloc_dmah dealloc_dmah reg_mr_ex"),
    (62, "dm_export_dmabuf_fd query_port_speed"),
    (64, "alloc_buf free_buf"),
    (
        65,
        "create_comp_cntr destroy_comp_cntr inc_comp_cntr inc_err_comp_cntr qp_attach_comp_cntr \
         query_comp_cntr_caps read_comp_cntr read_err_comp_cntr set_comp_cntr set_err_comp_cntr",
    ),
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
        let known = ADDED.iter().filter(|(since, _)| *since <= release);
        let mut names: Vec<&str> = known.flat_map(|(_, names)| names.split_whitespace()).collect();
        names.sort_unstable();
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

/// The operation in each slot of `ibv_context.ops`; `""` where the library stores its own function, or nothing.
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
    fn tables_have_the_known_lengths_and_no_name_twice() {
        for (release, len) in [(36, 76), (59, 79), (62, 81), (64, 83), (65, 93)] {
            let table = OpsTable::of(release);
            assert_eq!(table.len(), len, "release {release}");
            assert!(table.names.is_sorted_by(|a, b| a < b), "release {release}");
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
