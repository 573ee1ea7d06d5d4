//! Receive side scaling: frames are spread over work queues by a hash of their addresses and ports. The low bits of the
//! hash select an entry of an indirection table, which names the queue.

use super::{Device, Wq, ends::ends};
use crate::error::Error;
use hwspec::{
    cmd::{Opcode, tir::*},
    context::tir::{HashFields, RqtContext},
};
use std::sync::Arc;

bitflags::bitflags! {
    /// Fields of a frame that are hashed (`ibv_rx_hash_fields`).
    #[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
    pub struct RxHashFields: u64 {
        /// Source address of IPv4.
        const SRC_IPV4 = 1;
        /// Destination address of IPv4.
        const DST_IPV4 = 1 << 1;
        /// Source address of IPv6.
        const SRC_IPV6 = 1 << 2;
        /// Destination address of IPv6.
        const DST_IPV6 = 1 << 3;
        /// Source port of TCP.
        const SRC_PORT_TCP = 1 << 4;
        /// Destination port of TCP.
        const DST_PORT_TCP = 1 << 5;
        /// Source port of UDP.
        const SRC_PORT_UDP = 1 << 6;
        /// Destination port of UDP.
        const DST_PORT_UDP = 1 << 7;
    }
}

/// Hash settings for the Toeplitz function of RSS.
#[derive(Clone, Copy, Debug)]
pub struct RxHash {
    /// The key.
    pub key: [u8; RxHash::KEY],
    /// Fields to hash, if present in a frame. A frame with none of them has hash 0.
    pub fields: RxHashFields,
}

impl RxHash {
    /// Bytes of a key.
    pub const KEY: usize = 40;

    /// The fields in TIR format. EINVAL: fields of two mutually exclusive protocols.
    pub(super) fn selector(&self) -> Result<HashFields, Error> {
        use RxHashFields as F;
        let (v4, v6) = (F::SRC_IPV4 | F::DST_IPV4, F::SRC_IPV6 | F::DST_IPV6);
        let (tcp, udp) = (F::SRC_PORT_TCP | F::DST_PORT_TCP, F::SRC_PORT_UDP | F::DST_PORT_UDP);
        let any = |of: F| self.fields.intersects(of);
        if any(v4) && any(v6) || any(tcp) && any(udp) {
            return Err(Error::invalid(format!(
                "fields of one IP version and one transport protocol can be hashed, {:?} were given",
                self.fields
            )));
        }
        // `selected_fields`: source and destination address, source and destination port.
        let selected = [
            F::SRC_IPV4 | F::SRC_IPV6,
            F::DST_IPV4 | F::DST_IPV6,
            F::SRC_PORT_TCP | F::SRC_PORT_UDP,
            F::DST_PORT_TCP | F::DST_PORT_UDP,
        ];
        let selected = (0..4).filter(|bit| any(selected[*bit])).fold(0, |all, bit| all | 1 << bit);
        let mut selector = HashFields::zeroed();
        selector.set().l3_prot_type(any(v6)).l4_prot_type(any(udp)).selected_fields(selected);
        Ok(selector)
    }
}

/// An indirection table: a work queue for each value of the low bits of a hash (`ibv_create_rwq_ind_table`).
pub struct RwqTable {
    pub(super) device: Arc<Device>,
    rqtn: u32,
    /// The work queues, kept alive by the table.
    pub(super) wqs: Vec<Arc<Wq>>,
    live: bool,
}

impl RwqTable {
    /// Creates a table with the entries `wqs`, which may repeat. EINVAL: their number is not a power of two or exceeds
    /// the device's limit, or some belong to another device; EOPNOTSUPP: the device has no such tables.
    pub fn create(device: &Arc<Device>, wqs: &[Arc<Wq>]) -> Result<Arc<RwqTable>, Error> {
        let most = device.attr().max_rwq_table_size;
        if most == 0 {
            return Err(Error::unsupported("the device has no tables of work queues"));
        }
        if !wqs.len().is_power_of_two() || wqs.len() > most as usize {
            return Err(Error::invalid(format!(
                "a power of two up to {most} was expected as the size of a table, {} found",
                wqs.len()
            )));
        }
        if wqs.iter().any(|wq| !Arc::ptr_eq(wq.pd().device(), device)) {
            return Err(Error::invalid("the work queues belong to another device"));
        }
        let context =
            RqtContext::with(|s| s.rqt_max_size(wqs.len() as u16).rqt_actual_size(wqs.len() as u16));
        let input = CreateRqtIn::with(|s| s.rqt_context(context));
        // Two 32-bit numbers per word.
        let number = |wq: Option<&Arc<Wq>>| u64::from(wq.map_or(0, |wq| wq.wqn()));
        let list: Vec<u64> =
            wqs.chunks(2).map(|pair| number(pair.first()) << 32 | number(pair.get(1))).collect();
        let (function, uid) = (&device.function, device.opener.uid());
        let out: CreateRqtOut = function.call_with(Opcode::CreateRqt, uid, &input, &list)?;
        Ok(Arc::new(RwqTable { device: device.clone(), rqtn: out.rqtn(), wqs: wqs.to_vec(), live: true }))
    }

    /// Its number.
    pub fn number(&self) -> u32 {
        self.rqtn
    }

    /// The work queues, by entry.
    pub fn wqs(&self) -> &[Arc<Wq>] {
        &self.wqs
    }

    fn release(&mut self) -> Result<(), Error> {
        self.device.function.destroy_object(Opcode::DestroyRqt, self.device.opener.uid(), self.rqtn)
    }
}

ends! {
    /// Destroys the table. EBUSY while QPs use it, which keep it until the last of them is gone. Dropping the last
    /// reference does the same without reporting errors.
    RwqTable.destroy: "the table is in use", "a table of work queues could not be destroyed", rqtn = number
}

/// The attributes of a new QP that spreads frames.
#[derive(Clone)]
pub struct RssInit {
    /// The work queues to spread over.
    pub table: Arc<RwqTable>,
    /// The hash that selects the queue.
    pub hash: RxHash,
    /// Blocks loopback of multicasts sent by the function.
    pub block_multicast_loopback: bool,
}
