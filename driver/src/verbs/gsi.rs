//! General services: queue pair 1 of a port, used by management entities to exchange MADs (IBTA 13.5.1).

use super::peers::{Known, Peers};
use super::{
    AccessFlags, AddressHandle, Ah, Completion, Cq, Device, LinkLayer, Mr, Pd, Qp, QpAttr, QpAttrMask,
    QpInit, QpState, RawCompletion, RecvWr, SendFlags, SendOp, SendWr, Service, Sge, Target, WcFlags,
    WcOpcode, WcStatus,
};
use crate::{dma::DmaMem, error::Error};
use hwspec::{
    cqe::RoceL3Type,
    layout::prefix,
    wire::{
        GRH_SIZE, Ipv4, Ipv6,
        ip::gid_of_v4,
        mad::{Gid, MAD_SIZE, Mad, MadAddress, QP1_QKEY},
    },
};
use std::{
    collections::VecDeque,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::{Duration, Instant},
};

/// Receives always posted, and maximum number of outstanding sends.
const DEPTH: u32 = 128;
/// Distance in bytes between receive buffers.
const STRIDE: usize = 512;
/// Maximum number of received MADs not yet taken. Further ones are lost, as on an empty receive queue.
const INBOX: usize = 4096;
/// Hop limit of answers over Ethernet. The hop limit of the received MAD tells how far it came, not how far an answer
/// may go.
const HOP_LIMIT: u8 = 64;
/// A Q_Key with this bit set selects the queue pair's own (IBTA 10.2.5).
const OWN_QKEY: u32 = 1 << 31;
const PORT: u8 = 1;

/// Queue pair 1 of a function's port, for one opener.
///
/// Each opener of a function may have its own. All of them receive every MAD, and each answers those that concern it.
/// Performance management MADs do not arrive here, since the device answers them.
pub struct Gsi {
    inner: Mutex<Inner>,
    qp: Arc<Qp>,
    cq: Arc<Cq>,
    mr: Mr,
    mem: Arc<DmaMem>,
    pd: Arc<Pd>,
    device: Arc<Device>,
}

#[derive(Default)]
struct Inner {
    peers: Peers<Arc<Ah>>,
    gids: Vec<Gid>,
    inbox: VecDeque<(MadAddress, Box<Mad>)>,
    /// Number of outstanding sends.
    under_way: u32,
    /// The last known LID of the port, 0 on Ethernet.
    lid: u16,
}

impl Gsi {
    /// Opens queue pair 1. The events of its completion queue contain `cookie`. EBUSY: the function has a QP1 that
    /// cannot be shared; EPERM or the error of the device: programs cannot have one.
    pub fn open(device: &Arc<Device>, cookie: u64) -> Result<Gsi, Error> {
        let pd = Pd::alloc(device)?;
        let cq = Cq::create(device, 2 * DEPTH, cookie)?;
        let mem = Arc::new(pd.queue_memory(DEPTH as usize * STRIDE)?);
        let mr = Mr::over(&pd, &mem, AccessFlags::LOCAL_WRITE)?;
        let init = QpInit {
            max_send_wr: DEPTH,
            max_recv_wr: DEPTH,
            max_send_sge: 1,
            max_recv_sge: 1,
            max_inline: MAD_SIZE as u32,
            sq_sig_all: true,
            ..QpInit::new(Service::Gsi, &cq, &cq)
        };
        let qp = Qp::create(&pd, &init)?;
        let gsi = Gsi { inner: Mutex::default(), qp, cq, mr, mem, pd, device: device.clone() };
        gsi.start()?;
        Ok(gsi)
    }

    /// Takes the queue pair from RESET to RTS, with all receives posted.
    fn start(&self) -> Result<(), Error> {
        let to = |qp_state| QpAttr { qp_state, qkey: QP1_QKEY, port_num: PORT, ..QpAttr::default() };
        let keys = QpAttrMask::STATE | QpAttrMask::PKEY_INDEX | QpAttrMask::QKEY;
        self.qp.modify(&to(QpState::Init), keys | QpAttrMask::PORT)?;
        (0..u64::from(DEPTH)).try_for_each(|slot| self.receive(slot))?;
        self.qp.modify(&to(QpState::Rtr), QpAttrMask::STATE)?;
        self.qp.modify(&to(QpState::Rts), QpAttrMask::STATE | QpAttrMask::SQ_PSN)
    }

    fn receive(&self, slot: u64) -> Result<(), Error> {
        let at = self.mem.iova() + slot * STRIDE as u64;
        let sge = [Sge { addr: at, length: (GRH_SIZE + MAD_SIZE) as u32, lkey: self.mr.lkey() }];
        let posted = self.qp.post_recv([RecvWr { wr_id: slot, sge: &sge }]);
        posted.map_err(|error| Error::Invalid { what: "a receive of QP1".into(), errno: error.errno })
    }

    fn lock(&self) -> MutexGuard<'_, Inner> {
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The device it was opened on.
    pub fn device(&self) -> &Arc<Device> {
        &self.device
    }

    /// Sends a MAD to `to.remote_qpn` of the port at `to`, in the partition with index 0. EINVAL: `to.local_gid` is not
    /// a GID of this port; EHOSTUNREACH: the peer's MAC is unknown; EAGAIN: too many sends are outstanding.
    pub fn send(&self, to: &MadAddress, mad: &Mad) -> Result<(), Error> {
        let mut inner = self.lock();
        self.pump(&mut inner)?;
        if inner.under_way >= DEPTH {
            return Err(Error::refused(libc::EAGAIN, "too many MADs are under way"));
        }
        let ah = self.handle(&mut inner, to)?;
        let wr = SendWr { wr_id: u64::MAX, op: SendOp::Send, sge: &[], flags: SendFlags::SIGNALED };
        let target = Target::Datagram { ah: &ah, qpn: to.remote_qpn, qkey: OWN_QKEY };
        let sent = self.qp.post_inline(wr, &target, mad);
        sent.map_err(|error| Error::Invalid { what: "a MAD cannot be sent".into(), errno: error.errno })?;
        inner.under_way += 1;
        Ok(())
    }

    /// Takes the next received MAD, with its source; `remote_qpn` of that is the destination for an answer.
    pub fn next(&self) -> Result<Option<(MadAddress, Box<Mad>)>, Error> {
        let mut inner = self.lock();
        if inner.inbox.is_empty() {
            self.pump(&mut inner)?;
        }
        Ok(inner.inbox.pop_front())
    }

    /// Requests an event (with the cookie given at opening) for the next MAD, or at once if there is one.
    pub fn arm(&self) {
        self.cq.arm(false);
    }

    /// Waits until a MAD is available (true) or `timeout` has elapsed. Consumes the device's events, so callers that
    /// share the device with another consumer of events use [`arm`](Self::arm) and get notified by that.
    pub fn wait(&self, timeout: Duration) -> Result<bool, Error> {
        let end = Instant::now() + timeout;
        let events = self.device.events();
        loop {
            self.arm();
            let mut inner = self.lock();
            self.pump(&mut inner)?;
            if !inner.inbox.is_empty() {
                return Ok(true);
            }
            drop(inner);
            let left = end.saturating_duration_since(Instant::now());
            let came = events.wait(Some(left)).map_err(Error::io("cannot wait for an event"))?;
            let more = events.drain(drop);
            if left.is_zero() && (more || !came) {
                return Ok(false);
            }
        }
    }

    /// Takes all available completions.
    fn pump(&self, inner: &mut Inner) -> Result<(), Error> {
        let (mut wc, mut raw) = (Completion::default(), RawCompletion::zeroed());
        // At most one round of the queue, regardless of MADs that arrive in the meantime.
        for _ in 0..2 * DEPTH {
            if !self.cq.poll_raw(&mut wc, &mut raw) {
                break;
            }
            match (wc.wr_id, wc.status) {
                (u64::MAX, status) => {
                    inner.under_way = inner.under_way.saturating_sub(1);
                    if status != WcStatus::Success && status != WcStatus::WrFlushErr {
                        self.resume()?;
                    }
                }
                (slot, WcStatus::Success) => {
                    if let Some(mad) = self.take(inner, &wc, &raw).filter(|_| inner.inbox.len() < INBOX) {
                        inner.inbox.push_back(mad);
                    }
                    self.receive(slot)?;
                }
                (_, status) => {
                    return Err(Error::refused(libc::EIO, format!("QP1 has failed: {status:?}")));
                }
            }
        }
        Ok(())
    }

    /// Recovers from a failed send, which stops a datagram queue pair from sending but not from receiving (IBTA
    /// 10.3.1.6).
    fn resume(&self) -> Result<(), Error> {
        let attr = QpAttr { qp_state: QpState::Rts, cur_qp_state: QpState::Sqe, ..QpAttr::default() };
        self.qp.modify(&attr, QpAttrMask::STATE | QpAttrMask::CUR_STATE)
    }

    /// The MAD of a completion, if the message has the length of a MAD.
    fn take(
        &self,
        inner: &mut Inner,
        wc: &Completion,
        raw: &RawCompletion,
    ) -> Option<(MadAddress, Box<Mad>)> {
        let whole = wc.opcode == WcOpcode::Recv && wc.byte_len as usize == GRH_SIZE + MAD_SIZE;
        let at = usize::try_from(wc.wr_id).ok()?.checked_mul(STRIDE)?;
        if !whole || at + STRIDE > self.mem.len() {
            return None;
        }
        let (mut grh, mut mad) = ([0; GRH_SIZE], Box::new([0; MAD_SIZE]));
        self.mem.copy_out(at, &mut grh);
        self.mem.copy_out(at + GRH_SIZE, &mut mad[..]);
        let mut from =
            MadAddress { pkey: raw.imm_inval_pkey() as u16, remote_qpn: wc.src_qp, ..MadAddress::default() };
        match self.device.link_layer() {
            LinkLayer::Ethernet => read_network(&mut from, &grh, raw.roce_l3_type()),
            LinkLayer::InfiniBand => {
                from.remote_lid = wc.slid;
                from.local_lid = self.lid(inner) | u16::from(wc.path_bits);
                from.sl = wc.sl;
                if wc.flags.contains(WcFlags::GRH) {
                    read_network(&mut from, &grh, RoceL3Type::Grh);
                    from.hop_limit = grh[7];
                }
            }
        }
        Some((from, mad))
    }

    /// An address handle for a peer, cached or new.
    fn handle(&self, inner: &mut Inner, to: &MadAddress) -> Result<Arc<Ah>, Error> {
        match inner.peers.known(to, Instant::now()) {
            Known::Way(ah) => return Ok(ah),
            Known::Silent => {
                let what = format!("there is no answer for {} yet", std::net::Ipv6Addr::from(to.remote_gid));
                return Err(Error::Invalid { what, errno: libc::EHOSTUNREACH });
            }
            Known::Nothing => {}
        }
        let sgid_index = if to.grh { self.index_of(inner, &to.local_gid)? } else { 0 };
        let lid = self.lid(inner);
        let ah = Ah::create(
            &self.pd,
            &AddressHandle {
                dgid: to.remote_gid,
                flow_label: to.flow_label & 0xf_ffff,
                sgid_index,
                hop_limit: to.hop_limit,
                traffic_class: to.traffic_class,
                dlid: to.remote_lid,
                sl: to.sl,
                src_path_bits: (to.local_lid.saturating_sub(lid) & 0x7f) as u8,
                is_global: to.grh,
                port_num: PORT,
                ..AddressHandle::default()
            },
        );
        inner.peers.note(*to, ah.as_ref().ok().cloned(), Instant::now());
        ah
    }

    /// The port's LID. Queried each time until the port has one.
    fn lid(&self, inner: &mut Inner) -> u16 {
        if inner.lid == 0 && self.device.link_layer() == LinkLayer::InfiniBand {
            inner.lid = self.device.port().map_or(0, |port| port.lid);
        }
        inner.lid
    }

    /// Index of a GID in the port's table. The table is read again if the GID is not at its last known index.
    fn index_of(&self, inner: &mut Inner, gid: &Gid) -> Result<u8, Error> {
        let find =
            |gids: &[Gid]| gids.iter().position(|own| own == gid).and_then(|index| u8::try_from(index).ok());
        if let Some(index) = find(&inner.gids) {
            if self.device.gid(index.into())? == *gid {
                return Ok(index);
            }
        }
        let length = self.device.port()?.gid_tbl_len.min(256) as u16;
        inner.gids = (0..length).map(|index| self.device.gid(index)).collect::<Result<_, _>>()?;
        inner.peers = Peers::default();
        find(&inner.gids).ok_or_else(|| {
            Error::invalid(format!("{} is no GID of this port", std::net::Ipv6Addr::from(*gid)))
        })
    }
}

/// Reads the network header of a received MAD: 40 bytes, with an IPv4 header in the last 20.
fn read_network(from: &mut MadAddress, header: &[u8; GRH_SIZE], kind: RoceL3Type) {
    from.grh = true;
    from.hop_limit = HOP_LIMIT;
    if kind == RoceL3Type::Ipv4 {
        let ip = Ipv4::from_bytes(prefix(&header[GRH_SIZE - Ipv4::SIZE..]));
        (from.remote_gid, from.local_gid) = (gid_of_v4(ip.src()), gid_of_v4(ip.dst()));
        from.traffic_class = ip.dscp() << 2 | ip.ecn();
        return;
    }
    let ip = Ipv6::from_bytes(*header);
    (from.remote_gid, from.local_gid) = (ip.src(), ip.dst());
    from.traffic_class = ip.dscp() << 2 | ip.ecn();
    from.flow_label = ip.flow_label();
}
