//! Names, positions, widths and sizes of every layout, checked against `mlx5_ifc.h`.

use testkit::linux::{Ifc, dirs, is_reference, read};

/// Fields that no header has at our position, with the reason. `*` is the size of the whole structure.
const OURS_ALONE: &[(&str, &str, &str)] = &[
    ("initial_seg", "*", "a page of timestamps behind it is left out"),
    ("cmd_in", "*", "16 bytes, as many as lie in the command queue entry"),
    ("cmd_in", "uid", "named only in the inputs of single commands"),
    ("create_cq_in", "cq_umem_offset", "PRM: the kernel leaves it to user space, and has it reserved"),
    ("create_cq_in", "cq_umem_id", "as cq_umem_offset"),
    ("create_qp_in", "wq_umem_offset", "as cq_umem_offset"),
    ("create_qp_in", "wq_umem_id", "as cq_umem_offset"),
    ("cqc", "dbr_umem_id", "as cq_umem_offset"),
    ("wq", "dbr_umem_id", "as cq_umem_offset"),
    ("wq", "wq_umem_id", "as cq_umem_offset"),
    ("wq", "wq_umem_offset", "as cq_umem_offset"),
    ("qpc", "dbr_umem_id", "as cq_umem_offset"),
    ("cmd_out", "*", "16 bytes, as many as lie in the command queue entry"),
    ("ud_adrs_vector", "qkey", "the upper half of dc_key, for UD"),
    ("query_q_counter_out", "req_rnr_retries_exceeded", "newer than Linux 6.1"),
    ("query_scheduling_element_out", "status", "the header has the input's first fields there"),
    ("query_scheduling_element_out", "syndrome", "as status"),
    ("pages_req_event", "ec_function", "bit 15 of the driver's ec_function"),
];

/// Inputs that DEVX sends with a uid (`devx_is_obj_create_cmd` and the lists next to it in `devx.c`, and
/// `devx_obj_build_destroy_cmd`), although no header has a uid field in them. Its position is that in
/// `general_obj_in_cmd_hdr`.
const DEVX: &[&str] = &[
    "alloc_flow_counter_in",
    "create_flow_group_in",
    "create_scheduling_element_in",
    "dealloc_flow_counter_in",
    "dealloc_q_counter_in",
    "delete_fte_in",
    "delete_l2_table_entry_in",
    "destroy_flow_group_in",
    "destroy_flow_table_in",
    "destroy_scheduling_element_in",
    "modify_flow_table_in",
    "modify_scheduling_element_in",
    "nop_in",
    "query_adapter_in",
    "query_cq_in",
    "query_esw_vport_context_in",
    "query_flow_counter_in",
    "query_flow_group_in",
    "query_flow_table_in",
    "query_fte_in",
    "query_hca_cap_in",
    "query_hca_vport_context_in",
    "query_issi_in",
    "query_l2_table_entry_in",
    "query_mkey_in",
    "query_nic_vport_context_in",
    "query_q_counter_in",
    "query_qp_in",
    "query_rmp_in",
    "query_roce_address_in",
    "query_rq_in",
    "query_rqt_in",
    "query_scheduling_element_in",
    "query_sq_in",
    "query_srq_in",
    "query_tir_in",
    "query_tis_in",
    "query_vport_counter_in",
    "query_vport_state_in",
    "query_xrc_srq_in",
    "set_fte_in",
    "set_l2_table_entry_in",
];

/// Fields that newer headers moved, renamed or widened; ours are those of Linux 6.1.
const CHANGED: &[(&str, &str)] = &[
    ("mkc", "log_page_size"),
    ("cmd_hca_cap", "shampo"),
    ("cmd_hca_cap", "relaxed_ordering_read"),
    ("odp_cap", "sig"),
    ("odp_cap", "rc_odp_caps"),
    ("odp_cap", "uc_odp_caps"),
    ("odp_cap", "ud_odp_caps"),
    ("odp_cap", "xrc_odp_caps"),
    ("odp_cap", "dc_odp_caps"),
    ("nic_vport_context", "allowed_list_size"),
    ("query_qp_out", "*"),
    ("flow_table_context", "sw_owner_icm_root_1"),
    ("flow_table_context", "sw_owner_icm_root_0"),
    ("ppcnt_reg", "prio_tc"),
];

/// Named fields of Linux 6.1 that we omit, with the reason.
const THEIRS_ALONE: &[(&str, &str, &str)] = &[
    ("ud_adrs_vector", "dc_key", "DC is not built; its upper half is qkey"),
    ("query_scheduling_element_out", "opcode", "an answer has status and syndrome there"),
    ("query_scheduling_element_out", "op_mod", "as opcode"),
    ("cmd_out", "command_output", "stands for whatever a command answers"),
];

fn header_name(ours: &str) -> &str {
    match ours {
        "kind" => "type",
        "match_" => "match",
        other => other,
    }
}

fn same(ours: &str, theirs: &str) -> bool {
    header_name(ours).eq_ignore_ascii_case(theirs)
}

#[test]
fn every_layout_agrees_with_mlx5_ifc_h_bit_for_bit() {
    for dir in dirs() {
        let ifc = Ifc::parse(&(read(&dir, "mlx5_ifc.h") + &read(&dir, "mlx5_ifc_fpga.h")));
        let reference = is_reference(&dir);
        let excused = |ifc: &str, field: &str| {
            OURS_ALONE.iter().any(|e| (e.0, e.1) == (ifc, field))
                || (field == "uid" && DEVX.contains(&ifc))
                || (!reference && CHANGED.contains(&(ifc, field)))
        };
        let mut wrong = Vec::new();
        let mut judged = 0;
        for case in super::cases::all().into_iter().filter(|c| c.ifc != "none") {
            let Some(theirs) = ifc.shape(&case.ifc) else {
                wrong.push(format!("mlx5_ifc_{}_bits is not in the header", case.ifc));
                continue;
            };
            if theirs.size != case.size * 8 && !excused(&case.ifc, "*") {
                wrong.push(format!("{}: {} bits, ours has {}", case.ifc, theirs.size, case.size * 8));
            }
            for f in case.fields.iter().filter(|f| !excused(&case.ifc, f.name)) {
                let found = theirs.fields.iter().find(|(name, _)| same(f.name, name)).map(|(_, at)| *at);
                judged += 1;
                if found != Some((f.offset, f.width)) {
                    let ours = (f.offset, f.width);
                    wrong.push(format!("{}.{}: bit and width {found:x?}, ours {ours:x?}", case.ifc, f.name));
                }
            }
            for name in theirs.fields.keys().filter(|_| reference) {
                let known = case.fields.iter().any(|f| same(f.name, name));
                if !known && !THEIRS_ALONE.iter().any(|e| (e.0, e.1) == (&case.ifc[..], &name[..])) {
                    wrong.push(format!("{}.{name}: not ours", case.ifc));
                }
            }
        }
        assert!(wrong.is_empty(), "{}:\n{}", dir.display(), wrong.join("\n"));
        assert!(judged > 1000, "only {judged} fields judged by {}", dir.display());
    }
}

#[test]
fn excuses_are_all_needed() {
    for dir in dirs().into_iter().filter(|d| is_reference(d)) {
        let ifc = Ifc::parse(&(read(&dir, "mlx5_ifc.h") + &read(&dir, "mlx5_ifc_fpga.h")));
        let cases = super::cases::all();
        let devx = DEVX.iter().map(|name| (*name, "uid"));
        for (name, field) in OURS_ALONE.iter().map(|(name, field, _)| (*name, *field)).chain(devx) {
            let case = cases.iter().find(|c| c.ifc == name).expect(name);
            let theirs = ifc.shape(name).expect(name);
            let needed = match field {
                "*" => theirs.size != case.size * 8,
                field => !theirs.fields.contains_key(field) && case.fields.iter().any(|f| f.name == field),
            };
            assert!(needed, "{name}.{field} needs no excuse");
        }
        for (name, field, _) in THEIRS_ALONE {
            let case = cases.iter().find(|c| c.ifc == *name).expect(name);
            let theirs = ifc.shape(name).expect(name);
            let ours = case.fields.iter().any(|f| same(f.name, field));
            assert!(theirs.fields.contains_key(*field) && !ours, "{name}.{field} needs no excuse");
        }
    }
}
