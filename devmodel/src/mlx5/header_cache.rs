//! Caches the packet headers of queue pairs: those before the BTH are constant except for lengths and checksum.

use crate::state::{Path, RoceAddress};
use hwspec::wire::{Envelope, Head, IpPair, eth::Vlan};

/// Number of cached headers per runner.
pub(crate) const TEMPLATES: usize = 16;

/// ECN-capable transport, codepoint 0 (RFC 3168): routers may mark packets instead of dropping them.
const ECT0: u8 = 2;

/// The fields by which networks classify packets: the traffic class of the IP header, and the priority of the
/// VLAN tag.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) struct TrafficClass {
    pub traffic_class: u8,
    pub priority: u8,
}

impl TrafficClass {
    /// The class of a path's packets.
    #[inline(always)]
    pub(super) fn of(path: &Path) -> Self {
        Self { traffic_class: path.tclass & !3 | ECT0, priority: path.sl & 7 }
    }
}

/// The bytes of the source address.
type Source = [u8; size_of::<RoceAddress>()];

/// The header template of a queue pair, valid as long as its inputs are unchanged.
pub(crate) struct HeaderTemplate {
    path: [u8; size_of::<Path>()],
    source: Source,
    mac: [u8; 6],
    src_port: u16,
    class: TrafficClass,
    pub(super) head: Head,
}

impl HeaderTemplate {
    #[inline(always)]
    pub(super) fn is(
        &self,
        path: &Path,
        source: &RoceAddress,
        mac: [u8; 6],
        src_port: u16,
        class: TrafficClass,
    ) -> bool {
        let path: &[u8; size_of::<Path>()] = zerocopy::transmute_ref!(path);
        let source: &Source = zerocopy::transmute_ref!(source);
        self.path == *path
            && self.source == *source
            && self.mac == mac
            && self.src_port == src_port
            && self.class == class
    }

    #[inline(never)]
    pub(super) fn new(
        path: &Path,
        source: &RoceAddress,
        mac: [u8; 6],
        src_port: u16,
        class: TrafficClass,
    ) -> Self {
        let envelope = Envelope {
            src_mac: if source.mac == [0; 6] { mac } else { source.mac },
            dst_mac: path.dmac,
            vlan: source.vlan().map(|vid| Vlan::with(|s| s.vid(vid).pcp(class.priority))),
            addresses: IpPair::from_gids(source.gid, path.dgid),
            traffic_class: class.traffic_class,
            hop_limit: if path.hop_limit == 0 { 64 } else { path.hop_limit },
            flow_label: path.flow_label,
            identification: 0,
            src_port,
        };
        let head = Head::new(&envelope);
        let (path, source) = (zerocopy::transmute!(*path), zerocopy::transmute!(*source));
        Self { path, source, mac, src_port, class, head }
    }
}
