//! One side of all lanes, on a device.

use super::{
    judge::Rules,
    lane::{Lane, READABLE, Sent},
    plan::{INLINE, LARGEST, Plan, Request, SLOTS},
    sizes::{GRH, LANES, Layout, Way},
};
use crate::end::{Card, Patience, Words, all_rights, connect, own_gid, register_from, way};
use driver::{
    Ah, Completion, Cq, Device, Mr, Pd, Qp, QpAttr, QpInit, QpState, RecvWr, SendFlags, SendOp, SendWr,
    Service, Sge, Srq, SrqInit, Target, WcFlags, WcStatus, XrcDomain, XrcOpen,
};
use std::{collections::HashMap, error::Error, fmt, str::FromStr, sync::Arc, time::Duration};

type Done<T> = Result<T, Box<dyn Error>>;

const QKEY: u32 = 0x1111_1111;
/// About 8 times 34 ms: longer than a busy machine preempts a program that holds a lock (180 ms have been seen).
const PATIENCE: Patience = Patience { timeout: 13, retry_cnt: 7 };

/// The values that a side needs from the other.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Peer {
    gid: [u8; 16],
    base: u64,
    rkey: u32,
    srqn: u32,
    /// Numbers of the sending queue pairs, and of the receiving ones.
    qpns: [Vec<u32>; 2],
}

impl fmt::Display for Peer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let gid = u128::from_be_bytes(self.gid);
        write!(f, "{gid:x} {:x} {:x} {:x}", self.base, self.rkey, self.srqn)?;
        self.qpns.iter().flatten().try_for_each(|qpn| write!(f, " {qpn:x}"))
    }
}

impl FromStr for Peer {
    type Err = String;
    fn from_str(text: &str) -> Result<Self, String> {
        let number = |word: &str| u128::from_str_radix(word, 16).ok();
        let numbers: Option<Vec<u128>> = text.split_whitespace().map(number).collect();
        match numbers.as_deref() {
            Some([gid, base, rkey, srqn, qpns @ ..]) if qpns.len() == 2 * LANES.len() => {
                let half = |from: &[u128]| from.iter().map(|qpn| *qpn as u32).collect();
                let (send, receive) = qpns.split_at(LANES.len());
                let qpns = [half(send), half(receive)];
                let (base, rkey, srqn) = (*base as u64, *rkey as u32, *srqn as u32);
                Ok(Self { gid: gid.to_be_bytes(), base, rkey, srqn, qpns })
            }
            _ => Err(format!("expected the numbers of a side in hexadecimal, found {text:?}")),
        }
    }
}

/// The requests that a side has sent on all lanes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Sums(Vec<Sent>);

impl fmt::Display for Sums {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let numbers = |s: &Sent| [s.posted, s.receives, s.received, s.added[0], s.added[1]];
        self.0.iter().flat_map(numbers).try_for_each(|number| write!(f, "{number} "))
    }
}

impl FromStr for Sums {
    type Err = String;
    fn from_str(text: &str) -> Result<Self, String> {
        let numbers: Result<Vec<u64>, _> = text.split_whitespace().map(str::parse).collect();
        let numbers = numbers.unwrap_or_default();
        if numbers.len() != 5 * LANES.len() {
            return Err(format!("expected five numbers of each of {} lanes, found {text:?}", LANES.len()));
        }
        let sent = |n: &[u64]| Sent { posted: n[0], receives: n[1], received: n[2], added: [n[3], n[4]] };
        Ok(Self(numbers.chunks(5).map(sent).collect()))
    }
}

/// One side. Referrers are declared before the objects they refer to, so that they are dropped first.
pub struct Side {
    lanes: Vec<Lane>,
    /// Lanes by the numbers of the sending and receiving queue pairs.
    numbers: HashMap<u32, usize>,
    peer: Option<(Peer, Arc<Ah>)>,
    shared: Arc<Srq>,
    extended: Arc<Srq>,
    cqs: [Arc<Cq>; 2],
    mr: Mr,
    pd: Arc<Pd>,
    device: Arc<Device>,
    words: Words,
    layout: Layout,
    rules: Rules,
    /// Number of unreliable requests that may be posted. There is no flow control for their senders, so they keep pace with completions on
    /// the other lanes and with arrivals.
    credit: usize,
    /// The plan of the data that this side lets read, and of the data that it reads.
    readable: [Plan; 2],
}

impl Side {
    /// Creates side `side`, 0 or 1, of a run of `seed`. With `whole_pages` its memory can be lent to the node, otherwise it is copied.
    pub fn new(device: Arc<Device>, side: usize, seed: u64, rules: Rules, whole_pages: bool) -> Done<Self> {
        const PAGE: usize = 4096;
        let len = Layout::new(0).len;
        let words = Words::new(len + 2 * PAGE);
        let to_page = words.addr().next_multiple_of(PAGE as u64) - words.addr();
        let layout = Layout::new(to_page as usize + if whole_pages { 0 } else { 64 });
        let pd = Pd::alloc(&device)?;
        let mr = register_from(&pd, &words, layout.start, len, all_rights())?;
        let cqs = [Cq::create(&device, 512, 0)?, Cq::create(&device, 512, 1)?];
        let domain = XrcDomain::open(&device, XrcOpen::default())?;
        let srq = |way: Way, xrc| {
            Srq::create(&pd, &SrqInit { max_wr: way.receives() as u32, max_sge: 1, xrc, cookie: 0 })
        };
        let shared = srq(Way::Shared, None)?;
        let extended = srq(Way::Extended, Some((domain.clone(), cqs[1].clone())))?;
        let mut lanes = Vec::new();
        let mut numbers = HashMap::new();
        for (index, way) in LANES.into_iter().enumerate() {
            let own = matches!(way, Way::Own(_));
            let init = QpInit {
                max_send_wr: 4 * SLOTS as u32,
                max_recv_wr: if own { way.receives() as u32 } else { 0 },
                max_send_sge: 2,
                max_recv_sge: if own { 1 } else { 0 },
                max_inline: INLINE as u32,
                srq: (way == Way::Shared).then(|| shared.clone()),
                ..QpInit::new(way.service(), &cqs[0], &cqs[1])
            };
            let qp = Qp::create(&pd, &init)?;
            let target = match way {
                Way::Extended => Some(Qp::create_target(&domain, 0)?),
                _ => None,
            };
            numbers.insert(qp.qpn(), index);
            numbers.extend(target.as_ref().map(|target| (target.qpn(), index)));
            lanes.push(Lane::new(index, side, seed, rules, qp, target));
        }
        let plan = |side: usize| Plan::new(seed, 0x80 | side as u8, Service::Rc);
        let readable = [plan(side), plan(1 - side)];
        readable[0].fill(&words, layout.readable, READABLE, LARGEST);
        Ok(Self {
            lanes,
            numbers,
            peer: None,
            shared,
            extended,
            cqs,
            mr,
            pd,
            device,
            words,
            layout,
            rules,
            credit: 64,
            readable,
        })
    }

    /// Returns the values that the other side needs.
    pub fn card(&self) -> Done<Peer> {
        let receiving = |lane: &Lane| lane.target.as_ref().unwrap_or(&lane.qp).qpn();
        let qpns = [
            self.lanes.iter().map(|lane| lane.qp.qpn()).collect(),
            self.lanes.iter().map(receiving).collect(),
        ];
        let base = self.words.addr() + self.layout.start as u64;
        let (rkey, srqn) = (self.mr.rkey(), self.extended.srqn());
        Ok(Peer { gid: own_gid(&self.device)?, base, rkey, srqn, qpns })
    }

    /// Connects all lanes and posts all receives.
    pub fn connect(&mut self, peer: &Peer) -> Done<()> {
        let ah = way(&self.device, peer.gid);
        self.peer = Some((peer.clone(), Ah::create(&self.pd, &ah)?));
        for (index, lane) in self.lanes.iter().enumerate() {
            let card = |qpn| Card { gid: peer.gid, qpn, addr: 0, rkey: 0 };
            if lane.qp.service() == Service::Ud {
                run(&lane.qp)?;
            } else {
                connect(&lane.qp, &card(peer.qpns[1][index]), PATIENCE)?;
            }
            if let Some(target) = &lane.target {
                connect(target, &card(peer.qpns[0][index]), PATIENCE)?;
            }
        }
        for (index, way) in LANES.into_iter().enumerate() {
            let first = LANES.iter().position(|other| *other == way) == Some(index);
            if first || matches!(way, Way::Own(_)) {
                (0..way.receives()).try_for_each(|slot| self.receive(index, slot))?;
            }
        }
        Ok(())
    }

    /// Returns the requests that this side has sent.
    pub fn sums(&self) -> Sums {
        Sums(self.lanes.iter().map(Lane::sent).collect())
    }

    /// Returns true if nothing is outstanding.
    pub fn is_idle(&self) -> bool {
        self.lanes.iter().all(Lane::is_idle)
    }

    /// Posts a request on each lane that has room, unless this is the `last` phase of the run, and handles completions. Returns the number
    /// of both.
    pub fn turn(&mut self, last: bool) -> Done<usize> {
        let posted = self.post(last)?;
        let mut out = [Completion::default(); 64];
        let sent = self.cqs[0].poll(&mut out);
        for wc in &out[..sent] {
            let lane = self.lane_of(wc)?;
            let Self { lanes, words, layout, rules, readable, .. } = &mut *self;
            lanes[lane].completed(wc, *rules, words, layout, &readable[1])?;
            self.credit += usize::from(LANES[lane].service().has_atomics());
        }
        let received = self.cqs[1].poll(&mut out);
        for wc in &out[..received] {
            self.received(wc)?;
        }
        self.credit += received;
        Ok(posted + sent + received)
    }

    /// Sleeps until something completes, at most `limit`.
    pub fn rest(&self, limit: Duration) -> Done<()> {
        // Arming raises an event at once if a completion has arrived meanwhile.
        self.cqs.iter().for_each(|cq| cq.arm(false));
        self.device.events().wait(Some(limit))?;
        while self.device.events().next().is_some() {}
        Ok(())
    }

    /// When both sides are idle: checks that everything the peer says it sent has arrived.
    pub fn settle(&self, peer: &Sums) -> Result<(), String> {
        for (lane, sent) in self.lanes.iter().zip(&peer.0) {
            lane.settle(sent)?;
        }
        let sum = |which: usize| peer.0.iter().map(|sent| sent.added[which]).sum::<u64>();
        let (least, most, found) = (sum(1), sum(0), self.words.word(self.layout.sum()));
        match (least..=most).contains(&found) {
            true => Ok(()),
            false => Err(format!("the sum of all atomics: expected {least} to {most}, found {found}")),
        }
    }

    /// Returns a one-line summary: requests posted and messages received on the lanes of each kind, and connections that ended.
    pub fn summary(&self) -> String {
        let mut kinds: Vec<(Way, u64, u64)> = Vec::new();
        for (way, lane) in LANES.into_iter().zip(&self.lanes) {
            match kinds.iter_mut().find(|kind| kind.0 == way) {
                Some(kind) => *kind = (way, kind.1 + lane.sent().posted, kind.2 + lane.arrived()),
                None => kinds.push((way, lane.sent().posted, lane.arrived())),
            }
        }
        let broken = self.lanes.iter().filter(|lane| lane.is_broken()).count();
        let parts = kinds.iter().map(|(way, posted, arrived)| format!("{way:?} {posted} {arrived}, "));
        parts.collect::<String>() + &format!("{broken} ended")
    }

    fn post(&mut self, last: bool) -> Done<usize> {
        let Some((peer, ah)) = &self.peer else { return Ok(0) };
        let credit = &mut self.credit;
        let start = self.layout.start;
        let remote = |offset: usize| (peer.base + (offset - start) as u64, peer.rkey);
        let mut posted = 0;
        for (index, lane) in self.lanes.iter_mut().enumerate() {
            let unreliable = !LANES[index].service().has_atomics();
            if unreliable && *credit == 0 && !last {
                continue;
            }
            let Some((n, request, op)) = lane.next(last, &self.words, &self.layout, &remote) else {
                continue;
            };
            let at = self.words.addr() + self.layout.source(index, n) as u64;
            let inline = request.inline.then(|| self.words.bytes(self.layout.source(index, n), request.len));
            let sge = if request.inline { Vec::new() } else { pieces(&request, at, self.mr.lkey()) };
            let mut flags = SendFlags::empty();
            flags.set(SendFlags::SIGNALED, request.signaled);
            // A FENCE affects only the order of execution, so it may be set on any request.
            flags.set(SendFlags::FENCE, LANES[index].service().has_atomics() && n % 7 == 0);
            let wr = SendWr { wr_id: n, op, sge: &sge, flags };
            post(&lane.qp, wr, inline.as_deref(), |service| match service {
                Service::Ud => Target::Datagram { ah, qpn: peer.qpns[1][index], qkey: QKEY },
                Service::XrcIni => Target::Srq(peer.srqn),
                _ => Target::Peer,
            })?;
            posted += 1;
            *credit = credit.saturating_sub(usize::from(unreliable));
        }
        Ok(posted)
    }

    fn lane_of(&self, wc: &Completion) -> Result<usize, String> {
        self.numbers.get(&wc.qpn).copied().ok_or_else(|| format!("of no queue pair of ours: {wc:?}"))
    }

    fn received(&mut self, wc: &Completion) -> Done<()> {
        let (index, slot) = (self.lane_of(wc)?, wc.wr_id as usize);
        let Self { lanes, words, layout, rules, peer, .. } = &mut *self;
        let lane = &mut lanes[index];
        if wc.status != WcStatus::Success {
            // Receives of a connection that has ended; shared receives are still available to the others.
            if !(rules.wears_out && wc.status == WcStatus::WrFlushErr) {
                return Err(format!("lane {index}, {:?}: a receive failed: {wc:?}", LANES[index]).into());
            }
            return match LANES[index] {
                Way::Own(_) => Ok(()),
                _ => self.receive(index, slot),
            };
        }
        let grh = if wc.flags.contains(WcFlags::GRH) { GRH } else { 0 };
        let inbox = layout.inbox(index, slot) + grh;
        lane.received(wc, *rules, words, layout, inbox)?;
        let sender = peer.as_ref().map_or(0, |(peer, _)| peer.qpns[0][index]);
        if grh != 0 && wc.src_qp != sender {
            return Err(format!("lane {index}: expected a datagram of QP {sender:#x}, found {wc:?}").into());
        }
        self.receive(index, slot)
    }

    fn receive(&self, index: usize, slot: usize) -> Done<()> {
        let way = LANES[index];
        let addr = self.words.addr() + self.layout.inbox(index, slot) as u64;
        let sge = [Sge { addr, length: way.room() as u32, lkey: self.mr.lkey() }];
        let wr = [RecvWr { wr_id: slot as u64, sge: &sge }];
        match way {
            Way::Shared => self.shared.post_recv(wr)?,
            Way::Extended => self.extended.post_recv(wr)?,
            Way::Own(_) => self.lanes[index].qp.post_recv(wr)?,
        }
        Ok(())
    }
}

fn post<'a>(
    qp: &Qp,
    wr: SendWr<'_>,
    inline: Option<&[u8]>,
    target: impl Fn(Service) -> Target<'a>,
) -> Done<()> {
    let op: SendOp = wr.op;
    match (inline, qp.service()) {
        (Some(data), service) => qp.post_inline(wr, &target(service), data),
        (None, service @ (Service::Ud | Service::XrcIni)) => qp.post_send_to([(wr, target(service))]),
        (None, _) => qp.post_send([wr]),
    }
    .map_err(|e| format!("{op:?} was refused: {e}").into())
}

/// Returns the scatter/gather entries of a request's data at `at`.
fn pieces(request: &Request, at: u64, lkey: u32) -> Vec<Sge> {
    let len = request.len as u32;
    let first = if request.halved { len / 2 } else { len };
    let all = [(at, first), (at + u64::from(first), len - first)];
    let sges = all.into_iter().filter(|(_, length)| *length > 0);
    sges.map(|(addr, length)| Sge { addr, length, lkey }).collect()
}

/// Moves a UD queue pair to RTS.
fn run(qp: &Qp) -> Result<(), driver::Error> {
    qp.advance_to(QpState::Rts, &QpAttr { port_num: 1, qkey: QKEY, ..QpAttr::default() })
}
