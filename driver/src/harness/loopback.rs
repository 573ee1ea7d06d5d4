//! Two connected queue pairs of one function.

use super::report::Recorder;
use crate::{
    dma::DmaMem,
    error::{Error, PostError},
    event::Event,
    transport::Scope,
    verbs::{
        AccessFlags, AddressHandle, Completion, Cq, Device, Mr, Pd, Qp, QpAttr, QpInit, QpState, RecvWr,
        SendFlags, SendOp, SendWr, Service, Sge, WcStatus,
    },
};
use std::{
    sync::Arc,
    time::{Duration, Instant},
};

/// Bytes in each half of the memory: the first half is sent from, the second is received into.
const HALF: usize = 128 << 10;
/// Messages tried: less than a word, a packet, several packets, many.
const SIZES: [usize; 5] = [1, 64, 4096, 5000, 64 << 10];
/// Initial fill of the receive half.
const UNTOUCHED: u8 = 0xa5;
/// Number of doorbells timed.
const DOORBELLS: usize = 500;

/// Two queue pairs and the objects that they use. Fields are declared in drop order: referrers before the objects
/// they refer to.
pub struct Pair {
    a: Arc<Qp>,
    b: Arc<Qp>,
    a_cq: Arc<Cq>,
    b_cq: Arc<Cq>,
    mr: Mr,
    mem: Arc<DmaMem>,
    pd: Arc<Pd>,
    device: Arc<Device>,
    timeout: Duration,
}

fn queue_pair(pd: &Arc<Pd>, cq: &Arc<Cq>) -> Result<Arc<Qp>, Error> {
    let init = QpInit {
        max_send_wr: 16,
        max_recv_wr: 16,
        max_send_sge: 1,
        max_recv_sge: 1,
        max_inline: 16,
        sq_sig_all: true,
        ..QpInit::new(Service::Rc, cq, cq)
    };
    Qp::create(pd, &init)
}

fn refused(error: PostError) -> Error {
    Error::Invalid { what: error.to_string(), errno: error.errno }
}

impl Pair {
    /// Creates all objects and takes both queue pairs from RESET to RTS.
    pub fn new(device: &Arc<Device>, timeout: Duration, r: &mut Recorder<'_>) -> Result<Self, Error> {
        let pd = Pd::alloc(device)?;
        let mem = Arc::new(DmaMem::alloc(&device.function.transport, 2 * HALF, Scope::Opener)?);
        let access = AccessFlags::LOCAL_WRITE
            | AccessFlags::REMOTE_WRITE
            | AccessFlags::REMOTE_READ
            | AccessFlags::REMOTE_ATOMIC;
        let mr = Mr::over(&pd, &mem, access)?;
        let (a_cq, b_cq) = (Cq::create(device, 64, 0)?, Cq::create(device, 64, 1)?);
        let (a, b) = (queue_pair(&pd, &a_cq)?, queue_pair(&pd, &b_cq)?);
        r.note(
            "memory",
            format!("{} bytes at bus address {:#x}, key {:#x}", mem.len(), mem.iova(), mr.rkey()),
        );
        r.note("CQs", format!("{:#x} and {:#x}", a_cq.cqn(), b_cq.cqn()));
        r.note("QPs", format!("{:#x} and {:#x}", a.qpn(), b.qpn()));
        let pair = Self { a, b, a_cq, b_cq, mr, mem, pd, device: device.clone(), timeout };
        pair.connect(&pair.a, &pair.b)?;
        pair.connect(&pair.b, &pair.a)?;
        for (what, qp) in [("state of the first", &pair.a), ("state of the second", &pair.b)] {
            r.expect(what, format!("{:?}", qp.query()?.qp_state), format!("{:?}", QpState::Rts))?;
        }
        Ok(pair)
    }

    fn connect(&self, qp: &Qp, peer: &Qp) -> Result<(), Error> {
        let port = self.device.port()?;
        let access = AccessFlags::REMOTE_WRITE | AccessFlags::REMOTE_READ | AccessFlags::REMOTE_ATOMIC;
        let ethernet = port.link_layer == crate::verbs::LinkLayer::Ethernet;
        let ah = AddressHandle {
            dgid: if ethernet { self.device.gid(0)? } else { [0; 16] },
            is_global: ethernet,
            hop_limit: u8::from(ethernet),
            dlid: port.lid,
            dmac: ethernet.then_some(port.mac),
            port_num: 1,
            ..AddressHandle::default()
        };
        let attr = QpAttr {
            port_num: 1,
            qp_access_flags: access,
            path_mtu: port.active_mtu,
            dest_qp_num: peer.qpn(),
            max_dest_rd_atomic: 4,
            max_rd_atomic: 4,
            min_rnr_timer: 12,
            timeout: 14,
            retry_cnt: 3,
            rnr_retry: 3,
            ah,
            ..QpAttr::default()
        };
        qp.advance_to(QpState::Rts, &attr)
    }

    /// The number of the protection domain in use.
    pub fn pdn(&self) -> u32 {
        self.pd.pdn()
    }

    fn sge(&self, at: usize, len: usize) -> Sge {
        Sge { addr: self.mem.iova() + at as u64, length: len as u32, lkey: self.mr.lkey() }
    }

    fn there(&self) -> u64 {
        self.mem.iova() + HALF as u64
    }

    /// Fills the first half with a pattern derived from `seed`, and the second with bytes that are never sent.
    fn prepare(&self, seed: usize) {
        let pattern: Vec<u8> = (0..HALF).map(|i| (i ^ (i >> 8) ^ seed) as u8).collect();
        self.mem.copy_in(0, &pattern);
        self.mem.copy_in(HALF, &vec![UNTOUCHED; HALF]);
    }

    /// Checks that `len` bytes from `from` arrived at `to`, and nothing beyond them.
    fn arrived(&self, what: &str, from: usize, to: usize, len: usize) -> Result<(), Error> {
        let (mut sent, mut got) = (vec![0; HALF], vec![0; HALF]);
        self.mem.copy_out(from, &mut sent);
        self.mem.copy_out(to, &mut got);
        if let Some(at) = (0..len).find(|at| sent[*at] != got[*at]) {
            return Err(Error::device(
                format!("{what} of {len} bytes to bring {:#04x} at byte {at}", sent[at]),
                format!("{:#04x}", got[at]),
            ));
        }
        match got.get(len) {
            Some(byte) if *byte != UNTOUCHED => Err(Error::device(
                format!("{what} of {len} bytes to leave the byte behind alone"),
                format!("{byte:#04x} there"),
            )),
            _ => Ok(()),
        }
    }

    /// Posts a signaled request on the first queue pair.
    pub fn post(&self, op: SendOp, sge: &[Sge]) -> Result<(), Error> {
        let flags = SendFlags::SIGNALED;
        self.a.post_send([SendWr { wr_id: 7, op, sge, flags }]).map_err(refused)
    }

    fn wait(&self, cq: &Cq, what: &str) -> Result<Completion, Error> {
        let began = Instant::now();
        let mut out = [Completion::default()];
        while cq.poll(&mut out) == 0 {
            if began.elapsed() > self.timeout {
                return Err(Error::Timeout {
                    what: format!("the completion of {what}"),
                    waited: self.timeout,
                });
            }
            std::hint::spin_loop();
        }
        Ok(out[0])
    }

    fn success(&self, cq: &Cq, what: &str) -> Result<Completion, Error> {
        let wc = self.wait(cq, what)?;
        if wc.status != WcStatus::Success {
            return Err(Error::device(
                format!("{what} to succeed"),
                format!("{:?}, vendor error {:#x}", wc.status, wc.vendor_err),
            ));
        }
        Ok(wc)
    }

    /// The next completion of the first queue pair, successful or not.
    pub fn outcome(&self, what: &str) -> Result<Completion, Error> {
        self.wait(&self.a_cq, what)
    }

    /// The state of both queue pairs, as queried from the device.
    pub fn states(&self) -> Result<(QpState, QpState), Error> {
        Ok((self.a.query()?.qp_state, self.b.query()?.qp_state))
    }

    /// Posts a WRITE with the given rkey.
    pub fn write_with(&self, rkey: u32) -> Result<(), Error> {
        self.post(SendOp::Write { raddr: self.there(), rkey }, &[self.sge(0, 64)])
    }

    /// The valid rkey.
    pub fn rkey(&self) -> u32 {
        self.mr.rkey()
    }

    /// SENDs of all sizes.
    pub fn send(&self, r: &mut Recorder<'_>) -> Result<(), Error> {
        for (seed, len) in SIZES.into_iter().enumerate() {
            self.prepare(seed);
            let receive = RecvWr { wr_id: 9, sge: &[self.sge(HALF, len)] };
            self.b.post_recv([receive]).map_err(refused)?;
            self.post(SendOp::Send, &[self.sge(0, len)])?;
            let got = self.success(&self.b_cq, "a receive")?;
            self.success(&self.a_cq, "a SEND")?;
            if (got.wr_id, got.byte_len as usize) != (9, len) {
                return Err(Error::device(
                    format!("a receive of {len} bytes"),
                    format!("{} bytes, work request {}", got.byte_len, got.wr_id),
                ));
            }
            self.arrived("a SEND", 0, HALF, len)?;
        }
        r.note("messages", format!("{SIZES:?} bytes, data as sent"));
        Ok(())
    }

    /// WRITEs of all sizes, and the latency from doorbell to completion.
    pub fn write(&self, r: &mut Recorder<'_>) -> Result<(), Error> {
        for (seed, len) in SIZES.into_iter().enumerate() {
            self.prepare(seed + 10);
            self.post(SendOp::Write { raddr: self.there(), rkey: self.rkey() }, &[self.sge(0, len)])?;
            self.success(&self.a_cq, "a WRITE")?;
            self.arrived("a WRITE", 0, HALF, len)?;
        }
        r.note("messages", format!("{SIZES:?} bytes, data as sent"));
        let mut took = Vec::with_capacity(DOORBELLS);
        for _ in 0..DOORBELLS {
            let began = Instant::now();
            self.post(SendOp::Write { raddr: self.there(), rkey: self.rkey() }, &[self.sge(0, 8)])?;
            self.success(&self.a_cq, "a WRITE")?;
            took.push(began.elapsed());
        }
        took.sort_unstable();
        r.note("post to completion, 8 bytes", format!("{:.1?} (median of {DOORBELLS})", took[DOORBELLS / 2]));
        Ok(())
    }

    /// READs of all sizes.
    pub fn read(&self, r: &mut Recorder<'_>) -> Result<(), Error> {
        for (seed, len) in SIZES.into_iter().enumerate() {
            self.prepare(seed + 20);
            // Reads from the first half, by its rkey, into the second.
            let op = SendOp::Read { raddr: self.mem.iova(), rkey: self.rkey() };
            self.post(op, &[self.sge(HALF, len)])?;
            self.success(&self.a_cq, "a READ")?;
            self.arrived("a READ", 0, HALF, len)?;
        }
        r.note("messages", format!("{SIZES:?} bytes, data as sent"));
        Ok(())
    }

    /// Fetch-and-add, then compare-and-swap.
    pub fn atomic(&self, r: &mut Recorder<'_>) -> Result<(), Error> {
        const START: u64 = 0x1122_3344_5566_7788;
        const SWAPPED: u64 = 0x8877_6655_4433_2211;
        self.mem.copy_in(HALF, &START.to_ne_bytes());
        let (raddr, rkey) = (self.there(), self.rkey());
        let steps = [
            ("FETCH_ADD", SendOp::FetchAdd { raddr, rkey, add: 1 }, START, START + 1),
            (
                "CMP_SWAP",
                SendOp::CmpSwap { raddr, rkey, compare: START + 1, swap: SWAPPED },
                START + 1,
                SWAPPED,
            ),
            (
                "CMP_SWAP that does not match",
                SendOp::CmpSwap { raddr, rkey, compare: START, swap: 0 },
                SWAPPED,
                SWAPPED,
            ),
        ];
        for (what, op, before, after) in steps {
            self.post(op, &[self.sge(0, 8)])?;
            self.success(&self.a_cq, what)?;
            let word = |at: usize| {
                let mut bytes = [0; 8];
                self.mem.copy_out(at, &mut bytes);
                u64::from_ne_bytes(bytes)
            };
            if (word(0), word(HALF)) != (before, after) {
                return Err(Error::device(
                    format!("{what} to return {before:#x} and leave {after:#x}"),
                    format!("{:#x} and {:#x}", word(0), word(HALF)),
                ));
            }
            r.note(what, format!("{before:#x}, then {after:#x}"));
        }
        Ok(())
    }

    /// A completion on an armed CQ must raise an event, and the event an interrupt.
    pub fn interrupt(&self, r: &mut Recorder<'_>) -> Result<(), Error> {
        let events = self.device.events();
        events.drain(drop);
        self.a_cq.arm(false);
        let began = Instant::now();
        self.write_with(self.rkey())?;
        let fired = loop {
            let left = self.timeout.saturating_sub(began.elapsed());
            let fired = events.wait(Some(left)).map_err(Error::io("cannot wait for the interrupt"))?;
            // A signal may have interrupted the wait.
            if fired || left.is_zero() {
                break fired;
            }
        };
        let took = began.elapsed();
        let event = events.next();
        let done = self.a_cq.poll(&mut [Completion::default()]) == 1;
        let signalled = event == Some(Event::Cq { cqn: self.a_cq.cqn(), cookie: 0 });
        if !fired {
            let found = match (done, signalled) {
                (_, true) => "none: the event is in its queue, so the interrupt itself was lost",
                (true, false) => "none: the completion is there, but no event for it",
                (false, false) => "none: the request has not completed either",
            };
            return Err(Error::device(format!("an interrupt within {:?}", self.timeout), found));
        }
        if !signalled {
            return Err(Error::device("an event of the CQ that was armed", format!("{event:?}")));
        }
        if !done {
            return Err(Error::device("a completion behind the event", "none"));
        }
        r.note("post to interrupt", format!("{took:.1?}"));
        Ok(())
    }

    /// Destroys all objects, and reports refusals by the device.
    pub fn destroy(self) -> Result<(), Error> {
        let Self { a, b, a_cq, b_cq, mr, mem, pd, .. } = self;
        a.destroy()?;
        b.destroy()?;
        a_cq.destroy()?;
        b_cq.destroy()?;
        mr.deregister()?;
        drop(mem);
        pd.dealloc()
    }
}
