//! Messages of communication management, checked against the kernel's header of IBTA chapter 12
//! (`rdma/ibta_vol1_c12.h`, Debian's `linux-headers-*-common`), which names every field with its position.

use ironverbs_hwspec::{
    layout::{Field, Layout},
    wire::{
        IpPair,
        mad::{MadHeader, cm::*},
    },
};
use std::path::PathBuf;

/// The headers of all installed kernels. Empty only if `IRONVERBS_NO_HEADERS` is 1.
fn headers() -> Vec<PathBuf> {
    let installed = std::fs::read_dir("/usr/src").into_iter().flatten().flatten().map(|entry| entry.path());
    let mut found: Vec<PathBuf> = installed.map(|path| path.join("include/rdma/ibta_vol1_c12.h")).collect();
    found.retain(|path| path.is_file());
    assert!(
        !found.is_empty() || std::env::var("IRONVERBS_NO_HEADERS").as_deref() == Ok("1"),
        "no rdma/ibta_vol1_c12.h under /usr/src/linux-headers-*: install Debian's linux-headers-amd64, or set \
         IRONVERBS_NO_HEADERS=1 to go without this judge"
    );
    found
}

/// One `#define CM_<MESSAGE>_<FIELD>` of the header: message, our name of the field, first bit, width in bits.
struct Defined {
    message: String,
    name: String,
    offset: usize,
    width: usize,
}

/// Names in the header that differ from ours.
const NAMES: &[(&str, &str)] = &[
    ("q_key", "qkey"),
    ("partition_key", "pkey"),
    ("path_packet_payload_mtu", "path_mtu"),
    ("_service_type", "_service"),
    ("_transport_type", "_transport"),
    ("_port_lid", "_lid"),
    ("_port_gid", "_gid"),
    ("message_rejected", "message"),
    ("message_mraed", "message"),
    ("rejected_info_length", "info_length"),
    ("additional_information", "info"),
    ("ari", "info"),
    ("ar_status", "status"),
    ("local_ee_context_number", "local_eecn"),
    ("remote_qpn_eecn", "remote_qpn"),
    ("requestid", "request_id"),
    ("serviceid", "service_id"),
    ("vendor_id_h", "vendor_id_high"),
    ("vendor_id_m", "vendor_id_middle"),
    ("vendor_id_l", "vendor_id_low"),
];

/// Fields of the header that we do not use.
const UNUSED: &[&str] = &["sap_supported"];

fn defined(text: &str) -> Vec<Defined> {
    let text = text.replace("\\\n", " ");
    let defines = text.lines().filter_map(|line| line.strip_prefix("#define CM_"));
    defines
        .filter_map(|line| {
            let (name, rest) = line.split_once(char::is_whitespace)?;
            let (kind, arguments) = rest.trim().strip_prefix("CM_FIELD")?.split_once('(')?;
            let arguments: Vec<&str> = arguments.trim_end_matches(')').split(',').map(str::trim).collect();
            let message = arguments.first()?.strip_prefix("struct cm_")?.strip_suffix("_msg")?;
            let number = |i: usize| arguments.get(i).and_then(|text| text.parse::<usize>().ok());
            let byte = number(1)?;
            let (bit, width) = match kind {
                "_BLOC" => (number(2)?, number(3)?),
                "64_LOC" => (0, 64),
                _ => (0, number(2)?),
            };
            let name = name.to_lowercase().strip_prefix(message)?.strip_prefix('_')?.to_owned();
            let mut name = name;
            for (theirs, ours) in NAMES {
                if name.ends_with(theirs) || name.contains(theirs) && theirs.len() > 8 {
                    name = name.replace(theirs, ours);
                    break;
                }
            }
            Some(Defined { message: message.into(), name, offset: (MadHeader::SIZE + byte) * 8 + bit, width })
        })
        .collect()
}

/// Our fields of a message after the common header; those of a path are listed individually.
fn ours(message: &str) -> Vec<(String, usize, usize)> {
    let fields: &[Field] = match message {
        "req" => Req::FIELDS,
        "mra" => Mra::FIELDS,
        "rej" => Rej::FIELDS,
        "rep" => Rep::FIELDS,
        "rtu" => Rtu::FIELDS,
        "dreq" => Dreq::FIELDS,
        "drep" => Drep::FIELDS,
        "lap" => Lap::FIELDS,
        "apr" => Apr::FIELDS,
        "sidr_req" => SidrReq::FIELDS,
        "sidr_rep" => SidrRep::FIELDS,
        other => panic!("a message {other}"),
    };
    let mut out = Vec::new();
    for field in fields.iter().filter(|field| field.name != "header") {
        match field.name {
            "primary" | "alternate" => {
                let parts = ReqPath::FIELDS.iter();
                out.extend(parts.map(|part| {
                    (format!("{}_{}", field.name, part.name), field.offset + part.offset, part.width)
                }));
            }
            name => out.push((name.into(), field.offset, field.width)),
        }
    }
    out
}

#[test]
fn every_field_is_where_the_header_of_the_kernel_has_it() {
    for path in headers() {
        let text = std::fs::read_to_string(&path).expect("a header");
        let defined = defined(&text);
        assert!(defined.len() > 120, "{} fields in {}", defined.len(), path.display());
        for field in &defined {
            if UNUSED.iter().any(|name| field.name.ends_with(name)) {
                continue;
            }
            let there = ours(&field.message).into_iter().find(|(name, ..)| *name == field.name);
            let found = there.map(|(_, offset, width)| (offset, width));
            assert_eq!(found, Some((field.offset, field.width)), "{} of {}", field.name, field.message);
        }
        for message in
            ["req", "mra", "rej", "rep", "rtu", "dreq", "drep", "lap", "apr", "sidr_req", "sidr_rep"]
        {
            for (name, ..) in ours(message) {
                let known = defined.iter().any(|field| field.message == message && field.name == name);
                assert!(known, "{name} of {message} is not in {}", path.display());
            }
        }
    }
}

#[test]
fn a_reserved_bit_is_owned_by_no_field() {
    let mut req = Req::zeroed();
    Req::FILL.iter().for_each(|fill| fill(&mut req));
    assert_eq!(req.reserved_set(), None);
    assert_eq!(req.as_bytes()[0x1c], 0);
}

#[test]
fn addresses_and_ports_are_those_of_annex_a11() {
    assert_eq!(service_id(PortSpace::Tcp, 0x1234), 0x0000_0000_0106_1234);
    assert_eq!(service_id(PortSpace::Udp, 7471), 0x0000_0000_0111_1d2f);
    assert_eq!(port_of(0x0106_1234), Some((PortSpace::Tcp, 0x1234)));
    assert_eq!(port_of(0x1000_0000_0106_1234), None);
    let header = CmaHeader::new(IpPair::V4 { src: [10, 0, 0, 1], dst: [10, 0, 0, 2] }, 0xabcd);
    let mut bytes = [0; CMA_HEADER_SIZE];
    bytes[1] = 0x40;
    bytes[2..4].copy_from_slice(&[0xab, 0xcd]);
    bytes[16..20].copy_from_slice(&[10, 0, 0, 1]);
    bytes[32..36].copy_from_slice(&[10, 0, 0, 2]);
    assert_eq!(header.as_bytes(), &bytes);
    for addresses in
        [IpPair::V4 { src: [1; 4], dst: [2; 4] }, IpPair::V6 { src: [0xfe; 16], dst: [0xfd; 16] }]
    {
        assert_eq!(CmaHeader::new(addresses, 1).addresses(), Some(addresses));
    }
    bytes[1] = 0x50;
    assert_eq!(CmaHeader::from_bytes(bytes).addresses(), None);
}
