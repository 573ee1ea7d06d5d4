//! Address handles: the destinations of datagrams.

use super::{AddressHandle, Pd, path};
use crate::error::Error;
use hwspec::{handle::Qpn, wqe::AvSeg};
use std::sync::Arc;

/// An address handle: the path to a port or a multicast group, resolved at creation.
pub struct Ah {
    pd: Arc<Pd>,
    attr: AddressHandle,
    av: AvSeg,
}

impl Ah {
    /// Resolves `attr`. EINVAL: not a valid port, GID index or path of this device; ENODATA: the GID table entry is
    /// empty; EHOSTUNREACH: the peer's MAC is unknown.
    pub fn create(pd: &Arc<Pd>, attr: &AddressHandle) -> Result<Arc<Ah>, Error> {
        let function = &pd.device.function;
        let ports = pd.device.attr().phys_port_cnt;
        if !(1..=ports).contains(&attr.port_num) {
            let port = attr.port_num;
            return Err(Error::invalid(format!("ports are numbered from 1 to {ports}, {port} was given")));
        }
        path::check_address(function, attr)?;
        let mut attr = *attr;
        let mut av = AvSeg::zeroed();
        av.set()
            .ext(true)
            .static_rate(attr.static_rate & 0xf)
            .tclass(attr.traffic_class)
            .hop_limit(if function.is_ethernet() { attr.hops_over_ip() } else { attr.hop_limit })
            .grh(attr.is_global)
            .src_addr_index(attr.sgid_index)
            .flow_label(attr.flow_label & 0xf_ffff)
            .rgid_rip(attr.dgid);
        if function.is_ethernet() {
            let mac = path::destination_mac(function, &attr)?;
            attr.dmac = Some(mac);
            av.set_rmac(mac);
            av.set().sl_eth_prio(attr.sl & 7).rlid_udp_sport(path::source_port(attr.flow_label, 0, 0));
        } else {
            av.set().sl_eth_prio(attr.sl).rlid_udp_sport(attr.dlid).mlid(attr.src_path_bits & 0x7f);
        }
        Ok(Arc::new(Ah { pd: pd.clone(), attr, av }))
    }

    /// The attributes that it was created from, including the peer's MAC.
    pub fn attr(&self) -> &AddressHandle {
        &self.attr
    }

    /// The protection domain it belongs to.
    pub fn pd(&self) -> &Arc<Pd> {
        &self.pd
    }

    /// The address vector for a work request to `qpn`.
    #[inline]
    pub(crate) fn vector(&self, qpn: u32, qkey: u32) -> AvSeg {
        let mut av = self.av;
        av.set().qkey(qkey).destination_qp_dct(Qpn(qpn & 0xff_ffff));
        av
    }
}
