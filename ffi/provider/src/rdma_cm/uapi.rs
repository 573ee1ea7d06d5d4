//! The commands of librdmacm and their responses: the layouts of the kernel's `rdma/rdma_user_cm.h` and `rdma/ib_user_verbs.h`, version 4.

#![allow(missing_docs)]

use zerocopy::{FromBytes, Immutable, IntoBytes};

/// `RDMA_USER_CM_CMD_*`.
pub mod command {
    pub const CREATE_ID: u32 = 0;
    pub const DESTROY_ID: u32 = 1;
    pub const BIND_IP: u32 = 2;
    pub const RESOLVE_IP: u32 = 3;
    pub const RESOLVE_ROUTE: u32 = 4;
    pub const QUERY_ROUTE: u32 = 5;
    pub const CONNECT: u32 = 6;
    pub const LISTEN: u32 = 7;
    pub const ACCEPT: u32 = 8;
    pub const REJECT: u32 = 9;
    pub const DISCONNECT: u32 = 10;
    pub const INIT_QP_ATTR: u32 = 11;
    pub const GET_EVENT: u32 = 12;
    pub const GET_OPTION: u32 = 13;
    pub const SET_OPTION: u32 = 14;
    pub const NOTIFY: u32 = 15;
    pub const JOIN_IP_MCAST: u32 = 16;
    pub const LEAVE_MCAST: u32 = 17;
    pub const MIGRATE_ID: u32 = 18;
    pub const QUERY: u32 = 19;
    pub const BIND: u32 = 20;
    pub const RESOLVE_ADDR: u32 = 21;
    pub const JOIN_MCAST: u32 = 22;
    pub const RESOLVE_IB_SERVICE: u32 = 23;
    pub const WRITE_CM_EVENT: u32 = 24;
}

/// `enum rdma_ucm_port_space`.
pub mod port_space {
    pub const IPOIB: u16 = 0x0002;
    pub const TCP: u16 = 0x0106;
    pub const UDP: u16 = 0x0111;
    pub const IB: u16 = 0x013f;
}

/// `enum rdma_cm_event_type`.
pub mod event {
    pub const ADDR_RESOLVED: u32 = 0;
    pub const ADDR_ERROR: u32 = 1;
    pub const ROUTE_RESOLVED: u32 = 2;
    pub const CONNECT_REQUEST: u32 = 4;
    pub const CONNECT_RESPONSE: u32 = 5;
    pub const UNREACHABLE: u32 = 7;
    pub const REJECTED: u32 = 8;
    pub const ESTABLISHED: u32 = 9;
    pub const DISCONNECTED: u32 = 10;
    pub const MULTICAST_JOIN: u32 = 12;
    pub const MULTICAST_ERROR: u32 = 13;
    pub const TIMEWAIT_EXIT: u32 = 15;
    pub const USER: u32 = 18;
    pub const INTERNAL: u32 = 19;
}

/// `enum ib_qp_type`.
pub mod qp_type {
    pub const RC: u8 = 2;
    pub const UC: u8 = 3;
    pub const UD: u8 = 4;
    pub const XRC_INI: u8 = 9;
    pub const XRC_TGT: u8 = 10;
}

/// Plain integers and arrays of them: any bytes are a valid value, and all its bytes are initialized.
pub trait Plain: Sized + FromBytes + IntoBytes + Immutable {
    /// All zero.
    fn zero() -> Self {
        Self::new_zeroed()
    }

    /// Its bytes.
    fn bytes(&self) -> &[u8] {
        self.as_bytes()
    }

    /// Reads from the start of `bytes`; missing bytes are zero.
    fn read(bytes: &[u8]) -> Self {
        let mut value = Self::new_zeroed();
        let len = bytes.len().min(size_of::<Self>());
        value.as_mut_bytes()[..len].copy_from_slice(&bytes[..len]);
        value
    }
}

macro_rules! plain {
    ($($(#[$meta:meta])* pub struct $name:ident { $(pub $field:ident: $kind:ty,)* } $size:literal)*) => {$(
        $(#[$meta])*
        #[derive(Clone, Copy, Debug, FromBytes, IntoBytes, Immutable)]
        #[repr(C)]
        pub struct $name { $(pub $field: $kind,)* }
        impl Plain for $name {}
        const _: () = assert!(size_of::<$name>() == $size);
    )*};
}

/// `struct __kernel_sockaddr_storage`.
pub type Storage = [u8; 128];
/// `struct sockaddr_in6`.
pub type Ip = [u8; 28];

plain! {
    pub struct Header { pub command: u32, pub in_len: u16, pub out_len: u16, } 8
    pub struct CreateId { pub uid: u64, pub response: u64, pub ps: u16, pub qp_type: u8, pub reserved: [u8; 5], } 24
    pub struct DestroyId { pub response: u64, pub id: u32, pub reserved: u32, } 16
    pub struct BindIp { pub response: u64, pub addr: Ip, pub id: u32, } 40
    pub struct Bind { pub id: u32, pub addr_size: u16, pub reserved: u16, pub addr: Storage, } 136
    pub struct ResolveIp { pub src: Ip, pub dst: Ip, pub id: u32, pub timeout_ms: u32, } 64
    pub struct ResolveAddr {
        pub id: u32,
        pub timeout_ms: u32,
        pub src_size: u16,
        pub dst_size: u16,
        pub reserved: u32,
        pub src: Storage,
        pub dst: Storage,
    } 272
    pub struct ResolveRoute { pub id: u32, pub timeout_ms: u32, } 8
    pub struct Query { pub response: u64, pub id: u32, pub option: u32, } 16
    /// `struct ib_user_path_rec`.
    pub struct UserPath {
        pub dgid: [u8; 16],
        pub sgid: [u8; 16],
        pub dlid: [u8; 2],
        pub slid: [u8; 2],
        pub raw_traffic: u32,
        pub flow_label: [u8; 4],
        pub reversible: u32,
        pub mtu: u32,
        pub pkey: [u8; 2],
        pub hop_limit: u8,
        pub traffic_class: u8,
        pub numb_path: u8,
        pub sl: u8,
        pub mtu_selector: u8,
        pub rate_selector: u8,
        pub rate: u8,
        pub packet_life_time_selector: u8,
        pub packet_life_time: u8,
        pub preference: u8,
    } 64
    pub struct QueryRouteResp {
        pub node_guid: [u8; 8],
        pub route: [UserPath; 2],
        pub src: Ip,
        pub dst: Ip,
        pub num_paths: u32,
        pub port_num: u8,
        pub reserved: [u8; 3],
    } 200
    pub struct QueryAddrResp {
        pub node_guid: [u8; 8],
        pub port_num: u8,
        pub reserved: u8,
        pub pkey: [u8; 2],
        pub src_size: u16,
        pub dst_size: u16,
        pub src: Storage,
        pub dst: Storage,
    } 272
    /// `struct ib_path_rec_data`: flags, and a path record in the format of the subnet administrator's MADs.
    pub struct PathData { pub flags: u32, pub reserved: u32, pub record: [u8; 64], } 72
    pub struct ConnParam {
        pub qp_num: u32,
        pub qkey: u32,
        pub private_data: [u8; 256],
        pub private_data_len: u8,
        pub srq: u8,
        pub responder_resources: u8,
        pub initiator_depth: u8,
        pub flow_control: u8,
        pub retry_count: u8,
        pub rnr_retry_count: u8,
        pub valid: u8,
    } 272
    /// `struct ib_uverbs_ah_attr`.
    pub struct AhAttr {
        pub dgid: [u8; 16],
        pub flow_label: u32,
        pub sgid_index: u8,
        pub hop_limit: u8,
        pub traffic_class: u8,
        pub grh_reserved: u8,
        pub dlid: u16,
        pub sl: u8,
        pub src_path_bits: u8,
        pub static_rate: u8,
        pub is_global: u8,
        pub port_num: u8,
        pub reserved: u8,
    } 32
    pub struct UdParam {
        pub qp_num: u32,
        pub qkey: u32,
        pub ah_attr: AhAttr,
        pub private_data: [u8; 256],
        pub private_data_len: u8,
        pub reserved: [u8; 7],
    } 304
    pub struct Ece { pub vendor_id: u32, pub attr_mod: u32, } 8
    pub struct Connect { pub param: ConnParam, pub id: u32, pub reserved: u32, pub ece: Ece, } 288
    pub struct Listen { pub id: u32, pub backlog: u32, } 8
    pub struct Accept { pub uid: u64, pub param: ConnParam, pub id: u32, pub reserved: u32, pub ece: Ece, } 296
    pub struct Reject {
        pub id: u32,
        pub private_data_len: u8,
        pub reason: u8,
        pub reserved: [u8; 2],
        pub private_data: [u8; 256],
    } 264
    pub struct JustId { pub id: u32, } 4
    pub struct InitQpAttr { pub response: u64, pub id: u32, pub qp_state: u32, } 16
    /// `struct ib_uverbs_qp_attr`.
    pub struct QpAttr {
        pub qp_attr_mask: u32,
        pub qp_state: u32,
        pub cur_qp_state: u32,
        pub path_mtu: u32,
        pub path_mig_state: u32,
        pub qkey: u32,
        pub rq_psn: u32,
        pub sq_psn: u32,
        pub dest_qp_num: u32,
        pub qp_access_flags: u32,
        pub ah_attr: AhAttr,
        pub alt_ah_attr: AhAttr,
        pub cap: [u32; 5],
        pub pkey_index: u16,
        pub alt_pkey_index: u16,
        pub en_sqd_async_notify: u8,
        pub sq_draining: u8,
        pub max_rd_atomic: u8,
        pub max_dest_rd_atomic: u8,
        pub min_rnr_timer: u8,
        pub port_num: u8,
        pub timeout: u8,
        pub retry_cnt: u8,
        pub rnr_retry: u8,
        pub alt_port_num: u8,
        pub alt_timeout: u8,
        pub reserved: [u8; 5],
    } 144
    pub struct Notify { pub id: u32, pub event: u32, } 8
    pub struct JoinIp { pub response: u64, pub uid: u64, pub addr: Ip, pub id: u32, } 48
    pub struct Join {
        pub response: u64,
        pub uid: u64,
        pub id: u32,
        pub addr_size: u16,
        pub join_flags: u16,
        pub addr: Storage,
    } 152
    pub struct GetEvent { pub response: u64, } 8
    /// An event and its parameters: a `ConnParam`, or a `UdParam` for IDs of datagram QPs.
    pub struct EventResp {
        pub uid: [u8; 8],
        pub id: u32,
        pub event: u32,
        pub status: i32,
        pub param: [u8; 304],
        pub reserved: u32,
        pub ece: Ece,
    } 336
    pub struct SetOption { pub optval: u64, pub id: u32, pub level: u32, pub optname: u32, pub optlen: u32, } 24
    pub struct MigrateId { pub response: u64, pub id: u32, pub fd: u32, } 16
    pub struct WriteEvent { pub id: u32, pub reserved: u32, pub event: u32, pub status: u32, pub param: [u8; 304], } 320
}

/// Minimum size of a GET_EVENT response: before `reserved` and `ece` were added.
pub const EVENT_RESP_MIN: usize = 324;
/// Minimum length of CONNECT: before `ece` was added.
pub const CONNECT_MIN: usize = 280;
/// Minimum length of ACCEPT: before `ece` was added.
pub const ACCEPT_MIN: usize = 288;

#[cfg(test)]
mod tests {
    use super::*;
    use std::fmt::Write as _;
    use std::mem::offset_of;

    /// Checks offsets here against those of the C compiler with the installed headers.
    macro_rules! offsets {
        ($($kind:literal $name:ident { $($field:ident $c:literal),* })*) => {
            vec![$($((format!("offsetof(struct {}, {})", $kind, $c), offset_of!($name, $field)),)*)*]
        };
    }

    #[test]
    fn layouts_are_those_of_the_kernels_header() {
        let members = offsets! {
            "rdma_ucm_cmd_hdr" Header { command "cmd", in_len "in", out_len "out" }
            "rdma_ucm_create_id" CreateId { uid "uid", response "response", ps "ps", qp_type "qp_type" }
            "rdma_ucm_destroy_id" DestroyId { response "response", id "id" }
            "rdma_ucm_bind_ip" BindIp { response "response", addr "addr", id "id" }
            "rdma_ucm_bind" Bind { id "id", addr_size "addr_size", addr "addr" }
            "rdma_ucm_resolve_ip" ResolveIp { src "src_addr", dst "dst_addr", id "id" }
            "rdma_ucm_resolve_addr" ResolveAddr { id "id", src_size "src_size", dst_size "dst_size", src "src_addr",
                dst "dst_addr" }
            "rdma_ucm_resolve_route" ResolveRoute { id "id", timeout_ms "timeout_ms" }
            "rdma_ucm_query" Query { response "response", id "id", option "option" }
            "ib_user_path_rec" UserPath { dgid "dgid", dlid "dlid", flow_label "flow_label", mtu "mtu", pkey "pkey",
                hop_limit "hop_limit", sl "sl", rate "rate", packet_life_time "packet_life_time" }
            "rdma_ucm_query_route_resp" QueryRouteResp { route "ib_route", src "src_addr", dst "dst_addr",
                num_paths "num_paths", port_num "port_num" }
            "rdma_ucm_query_addr_resp" QueryAddrResp { port_num "port_num", pkey "pkey", src_size "src_size",
                dst_size "dst_size", src "src_addr", dst "dst_addr" }
            "ib_path_rec_data" PathData { flags "flags", record "path_rec" }
            "rdma_ucm_conn_param" ConnParam { qp_num "qp_num", private_data "private_data",
                private_data_len "private_data_len", srq "srq", retry_count "retry_count", valid "valid" }
            "ib_uverbs_ah_attr" AhAttr { dgid "grh.dgid", flow_label "grh.flow_label", sgid_index "grh.sgid_index",
                hop_limit "grh.hop_limit", dlid "dlid", sl "sl", is_global "is_global", port_num "port_num" }
            "rdma_ucm_ud_param" UdParam { qp_num "qp_num", qkey "qkey", ah_attr "ah_attr",
                private_data "private_data", private_data_len "private_data_len" }
            "rdma_ucm_connect" Connect { param "conn_param", id "id", ece "ece" }
            "rdma_ucm_listen" Listen { id "id", backlog "backlog" }
            "rdma_ucm_accept" Accept { uid "uid", param "conn_param", id "id", ece "ece" }
            "rdma_ucm_reject" Reject { private_data_len "private_data_len", reason "reason",
                private_data "private_data" }
            "rdma_ucm_init_qp_attr" InitQpAttr { response "response", id "id", qp_state "qp_state" }
            "ib_uverbs_qp_attr" QpAttr { qp_attr_mask "qp_attr_mask", path_mtu "path_mtu", qkey "qkey", rq_psn "rq_psn",
                sq_psn "sq_psn", dest_qp_num "dest_qp_num", qp_access_flags "qp_access_flags", ah_attr "ah_attr",
                alt_ah_attr "alt_ah_attr", cap "max_send_wr", pkey_index "pkey_index",
                max_rd_atomic "max_rd_atomic", min_rnr_timer "min_rnr_timer", port_num "port_num",
                timeout "timeout", rnr_retry "rnr_retry", alt_timeout "alt_timeout" }
            "rdma_ucm_notify" Notify { id "id", event "event" }
            "rdma_ucm_join_ip_mcast" JoinIp { response "response", uid "uid", addr "addr", id "id" }
            "rdma_ucm_join_mcast" Join { response "response", uid "uid", id "id", addr_size "addr_size",
                join_flags "join_flags", addr "addr" }
            "rdma_ucm_event_resp" EventResp { uid "uid", id "id", event "event", status "status", param "param",
                reserved "reserved", ece "ece" }
            "rdma_ucm_set_option" SetOption { optval "optval", id "id", level "level", optname "optname",
                optlen "optlen" }
            "rdma_ucm_migrate_id" MigrateId { response "response", id "id", fd "fd" }
        };
        let mut program = String::from(
            "#include <stddef.h>\n#include <stdio.h>\n#include <netinet/in.h>\n#include <rdma/rdma_user_cm.h>\nint main(void) {\n",
        );
        for (c, _) in &members {
            let _ = writeln!(program, "printf(\"%zu\\n\", (size_t){c});");
        }
        program.push_str("return 0; }\n");
        let stem = std::env::temp_dir().join(format!("ironverbs-ucm-{}", std::process::id()));
        let source = stem.with_extension("c");
        std::fs::write(&source, program).expect("write");
        let built = std::process::Command::new("cc").arg("-o").arg(&stem).arg(&source).status();
        assert!(built.expect("a C compiler").success(), "the kernel's headers lack something");
        let said = std::process::Command::new(&stem).output().expect("run");
        let theirs: Vec<usize> =
            String::from_utf8_lossy(&said.stdout).lines().filter_map(|line| line.parse().ok()).collect();
        let _ = (std::fs::remove_file(source), std::fs::remove_file(stem));
        assert_eq!(theirs.len(), members.len());
        for ((c, ours), theirs) in members.iter().zip(theirs) {
            assert_eq!(*ours, theirs, "{c}");
        }
    }
}
