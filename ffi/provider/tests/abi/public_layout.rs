//! Checks `abi/public.rs`, `memory.rs` and `codes.rs`: sizes, codes and offsets as the C compiler sees them in the installed `<infiniband/verbs.h>`.
//!
//! `IRONVERBS_VERBS_INCLUDE` selects another include directory, to check against the header of another release.

use ironverbs_provider::abi::public::ibv_send_wr;
use ironverbs_provider::abi::{codes, memory, public};
use std::fmt::Write as _;
use std::mem::offset_of;
use std::process::Command;

/// A line of C, and the number it must print.
struct Layout {
    c: String,
    ours: usize,
}

/// Members that C gives another name, or none that can be compared.
const NAMES: [(&str, &str, &str); 10] = [
    ("ibv_cq_ex", "base", "context"),
    ("ibv_device", "_ops", ""),
    ("ibv_device_attr_ex", "odp_general_caps", "odp_caps.general_caps"),
    ("ibv_device_attr_ex", "odp_transport_caps", "odp_caps.per_transport_caps"),
    ("ibv_flow_attr", "kind", "type"),
    ("ibv_mw", "kind", "type"),
    ("ibv_qp_ex", "base", "qp_base"),
    // In v45 and later.
    ("ibv_qp_ex", "wr_flush", ""),
    ("ibv_send_wr", "extra", "bind_mw"),
    ("ibv_send_wr", "remote_srqn", "qp_type.xrc.remote_srqn"),
];

/// Structures whose last members are not declared, or are not in all releases.
const LONGER: [&str; 3] = ["ibv_port_attr", "ibv_qp_ex", "ibv_srq_init_attr_ex"];

/// The members of unions in a send work request.
macro_rules! offsets {
    ($layouts:ident: $name:ident { $($($field:ident).+),* $(,)? }) => {
        $($layouts.push(Layout {
            c: format!("offsetof(struct {}, {})", stringify!($name), stringify!($($field).+).replace(' ', "")),
            ours: offset_of!($name, $($field).+),
        });)*
    };
}

fn layouts() -> Vec<Layout> {
    let mut c = Vec::new();
    for (name, size, members) in public::LAYOUTS.iter().chain(memory::LAYOUTS) {
        if !LONGER.contains(name) {
            c.push(Layout { c: format!("sizeof(struct {name})"), ours: *size });
        }
        for (member, offset) in *members {
            let other = NAMES.iter().find(|(of, ours, _)| of == name && ours == member);
            let theirs = other.map_or(*member, |(.., theirs)| theirs);
            if !theirs.is_empty() {
                c.push(Layout { c: format!("offsetof(struct {name}, {theirs})"), ours: *offset });
            }
        }
    }
    offsets!(c: ibv_send_wr { wr.rdma.remote_addr, wr.rdma.rkey, wr.atomic.remote_addr, wr.atomic.compare_add,
        wr.atomic.swap, wr.atomic.rkey, wr.ud.ah, wr.ud.remote_qpn, wr.ud.remote_qkey });
    for (name, at, mask, members) in SPECS {
        for (member, offset) in members {
            for (half, from) in [("val", at), ("mask", mask)] {
                c.push(Layout {
                    c: format!("offsetof(struct {name}, {half}.{member})"),
                    ours: from + offset,
                });
            }
        }
    }
    let codes = codes::CODES.iter().chain(memory::CODES);
    c.extend(codes.map(|(name, value)| Layout { c: format!("(size_t){name}"), ours: *value }));
    c
}

/// Structure, offsets of values and masks, members: as `flow.rs` reads them.
type Spec = (&'static str, usize, usize, &'static [(&'static str, usize)]);
const SPECS: [Spec; 5] = [
    ("ibv_flow_spec_eth", 6, 22, &[("dst_mac", 0), ("src_mac", 6), ("ether_type", 12), ("vlan_tag", 14)]),
    ("ibv_flow_spec_ipv4", 8, 16, &[("src_ip", 0), ("dst_ip", 4)]),
    (
        "ibv_flow_spec_ipv4_ext",
        8,
        20,
        &[("src_ip", 0), ("dst_ip", 4), ("proto", 8), ("tos", 9), ("ttl", 10), ("flags", 11)],
    ),
    ("ibv_flow_spec_ipv6", 8, 48, &[("src_ip", 0), ("dst_ip", 16), ("flow_label", 32), ("hop_limit", 38)]),
    ("ibv_flow_spec_tcp_udp", 6, 10, &[("dst_port", 0), ("src_port", 2)]),
];

/// The driver numbers its flags, states and codes as verbs does, so the provider passes them through.
fn driver_layouts() -> Vec<Layout> {
    use driver::{
        AccessFlags, QpAttrMask, QpState, RxHashFields, SendFlags, WcFlags, WcOpcode, WcStatus, WqState,
    };
    let mut c = Vec::new();
    macro_rules! bits {
        ($flags:ident $prefix:literal: $($name:ident)*) => {
            $(c.push(Layout {
                c: format!(concat!("(size_t)", $prefix, "{}"), stringify!($name)),
                ours: $flags::$name.bits() as usize,
            });)*
        };
    }
    macro_rules! codes {
        ($kind:ident: $($name:ident = $theirs:ident)*) => {
            $(c.push(Layout { c: format!("(size_t){}", stringify!($theirs)), ours: $kind::$name as usize });)*
        };
    }
    bits!(AccessFlags "IBV_ACCESS_": LOCAL_WRITE REMOTE_WRITE REMOTE_READ REMOTE_ATOMIC MW_BIND ZERO_BASED ON_DEMAND
        HUGETLB RELAXED_ORDERING);
    bits!(SendFlags "IBV_SEND_": FENCE SIGNALED SOLICITED INLINE);
    bits!(WcFlags "IBV_WC_": GRH WITH_IMM WITH_INV);
    bits!(QpAttrMask "IBV_QP_": STATE CUR_STATE EN_SQD_ASYNC_NOTIFY ACCESS_FLAGS PKEY_INDEX PORT QKEY AV PATH_MTU TIMEOUT
        RETRY_CNT RNR_RETRY RQ_PSN MAX_QP_RD_ATOMIC ALT_PATH MIN_RNR_TIMER SQ_PSN MAX_DEST_RD_ATOMIC PATH_MIG_STATE CAP
        DEST_QPN RATE_LIMIT);
    bits!(RxHashFields "IBV_RX_HASH_": SRC_IPV4 DST_IPV4 SRC_IPV6 DST_IPV6 SRC_PORT_TCP DST_PORT_TCP SRC_PORT_UDP
        DST_PORT_UDP);
    codes!(WqState: Reset = IBV_WQS_RESET Rdy = IBV_WQS_RDY Err = IBV_WQS_ERR);
    codes!(QpState: Reset = IBV_QPS_RESET Init = IBV_QPS_INIT Rtr = IBV_QPS_RTR Rts = IBV_QPS_RTS Sqd = IBV_QPS_SQD
        Sqe = IBV_QPS_SQE Err = IBV_QPS_ERR);
    codes!(WcStatus: Success = IBV_WC_SUCCESS LocLenErr = IBV_WC_LOC_LEN_ERR LocQpOpErr = IBV_WC_LOC_QP_OP_ERR
        LocProtErr = IBV_WC_LOC_PROT_ERR WrFlushErr = IBV_WC_WR_FLUSH_ERR MwBindErr = IBV_WC_MW_BIND_ERR
        BadRespErr = IBV_WC_BAD_RESP_ERR LocAccessErr = IBV_WC_LOC_ACCESS_ERR RemInvReqErr = IBV_WC_REM_INV_REQ_ERR
        RemAccessErr = IBV_WC_REM_ACCESS_ERR RemOpErr = IBV_WC_REM_OP_ERR RetryExcErr = IBV_WC_RETRY_EXC_ERR
        RnrRetryExcErr = IBV_WC_RNR_RETRY_EXC_ERR RemAbortErr = IBV_WC_REM_ABORT_ERR GeneralErr = IBV_WC_GENERAL_ERR);
    codes!(WcOpcode: Send = IBV_WC_SEND RdmaWrite = IBV_WC_RDMA_WRITE RdmaRead = IBV_WC_RDMA_READ
        CompSwap = IBV_WC_COMP_SWAP FetchAdd = IBV_WC_FETCH_ADD BindMw = IBV_WC_BIND_MW LocalInv = IBV_WC_LOCAL_INV
        Recv = IBV_WC_RECV RecvRdmaWithImm = IBV_WC_RECV_RDMA_WITH_IMM);
    c
}

/// Compiles the layouts and returns those that contradict the header.
fn contradicted(name: &str, layouts: &[Layout]) -> String {
    let mut source = String::from(
        "#include <infiniband/verbs.h>\n#include <stddef.h>\n#include <stdio.h>\nint main(void) {\n",
    );
    for layout in layouts {
        writeln!(source, "  printf(\"%zu\\n\", {});", layout.c).expect("a String takes all");
    }
    source.push_str("  return 0;\n}\n");
    let dir = std::path::Path::new(env!("CARGO_TARGET_TMPDIR"));
    let (file, program) = (dir.join(format!("{name}.c")), dir.join(name));
    std::fs::write(&file, source).expect("writing into the target directory");
    let mut cc = Command::new("cc");
    if let Some(include) = std::env::var_os("IRONVERBS_VERBS_INCLUDE") {
        cc.arg("-I").arg(include);
    }
    let compiled =
        cc.arg(&file).arg("-o").arg(&program).output().expect("a C compiler (apt-get install gcc)");
    let said = String::from_utf8_lossy(&compiled.stderr);
    assert!(compiled.status.success(), "needs libibverbs-dev: {said}");
    let answer = Command::new(&program).output().expect("running the judge");
    let answer = String::from_utf8(answer.stdout).expect("numbers");
    let theirs: Vec<usize> = answer.lines().map(|line| line.parse().expect("a number")).collect();
    assert_eq!(theirs.len(), layouts.len());
    let wrong = layouts.iter().zip(&theirs).filter(|(layout, theirs)| layout.ours != **theirs);
    let lines =
        wrong.map(|(layout, theirs)| format!("{}: {theirs} in the header, {} here", layout.c, layout.ours));
    lines.collect::<Vec<_>>().join("\n")
}

#[test]
fn public_types_are_those_of_the_installed_header() {
    assert_eq!(contradicted("public_layout", &layouts()), "");
}

#[test]
fn the_driver_numbers_its_codes_as_the_header_does() {
    assert_eq!(contradicted("driver_codes", &driver_layouts()), "");
}
