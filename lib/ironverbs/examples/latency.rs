//! Compares the latency of futures with that of the driver's verbs, in turn, on one device in one thread: half of a message's time to and fro.
//!
//!     latency "node=/dev/shm/adapter fid=1"

use ironverbs::{
    Device, Error, Pool, Qp, block_on, verbs,
    verbs::{
        AccessFlags, AddressHandle, Completion, Cq, Mr, Pd, QpAttr, QpInit, QpState, RecvWr, SendFlags,
        SendOp, SendWr, Service, Sge, WcStatus, dma::DmaMem, transport::Scope,
    },
};
use std::{
    env, error,
    sync::Arc,
    time::{Duration, Instant},
};

type Outcome<T = ()> = Result<T, Box<dyn error::Error>>;

const ROUNDS: u32 = 20_000;
const TURNS: usize = 21;
const LEN: usize = 64;

fn main() -> Outcome {
    let place = env::args().nth(1).ok_or("expected a device, as node=/dev/shm/adapter fid=1")?;
    let device = Device::open(&place)?;
    let (raw, futures) = (Raw::new(&device)?, Futures::new(&device)?);
    let mut times = [Vec::new(), Vec::new()];
    for _ in 0..TURNS {
        times[0].push(timed(|| raw.rounds())?);
        times[1].push(timed(|| Ok(futures.rounds()?))?);
    }
    let [raw, futures] = times.map(|mut times| {
        times.sort();
        times[TURNS / 2]
    });
    println!("verbs   {raw:?}");
    println!("futures {futures:?}");
    println!("ratio   {:.2}", futures.as_secs_f64() / raw.as_secs_f64());
    Ok(())
}

fn timed(run: impl FnOnce() -> Outcome) -> Outcome<Duration> {
    let begin = Instant::now();
    run()?;
    Ok(begin.elapsed() / ROUNDS / 2)
}

struct Futures {
    ends: [Qp; 2],
    pools: [Pool; 2],
}

impl Futures {
    fn new(device: &Device) -> Result<Self, Error> {
        let ends = [device.qp().build()?, device.qp().build()?];
        ends[0].connect(&ends[1].local()?)?;
        ends[1].connect(&ends[0].local()?)?;
        Ok(Self { ends, pools: [Pool::new(device, 4, LEN)?, Pool::new(device, 4, LEN)?] })
    }

    fn rounds(&self) -> Result<(), Error> {
        let ([a, b], [ours, theirs]) = (&self.ends, &self.pools);
        block_on(async {
            let mut message = ours.take(&[0; LEN])?;
            let (mut out, mut back) = (theirs.empty()?, ours.empty()?);
            for _ in 0..ROUNDS {
                let (there, answer) = (b.recv(out), a.recv(back));
                let sent = a.send(message);
                let answered = b.send(there.await?.into_buf());
                message = answer.await?.into_buf();
                back = sent.await?;
                out = answered.await?;
            }
            Ok(())
        })
    }
}

/// One end made of verbs.
struct End {
    qp: Arc<verbs::Qp>,
    cq: Arc<Cq>,
    mr: Mr,
    memory: Arc<DmaMem>,
}

struct Raw([End; 2]);

impl Raw {
    fn new(device: &Device) -> Outcome<Self> {
        let pd = Pd::alloc(device.raw())?;
        let end = || -> Outcome<End> {
            let cq = Cq::create(device.raw(), 128, 0)?;
            let memory = Arc::new(DmaMem::alloc(device.raw().transport(), 4096, Scope::Opener)?);
            let mr = Mr::over(&pd, &memory, AccessFlags::LOCAL_WRITE)?;
            let sizes = QpInit::new(Service::Rc, &cq, &cq);
            let init = QpInit { max_send_wr: 64, max_recv_wr: 64, max_send_sge: 1, max_recv_sge: 1, ..sizes };
            Ok(End { qp: verbs::Qp::create(&pd, &init)?, cq, mr, memory })
        };
        let ends = [end()?, end()?];
        for (this, peer) in [(0, 1), (1, 0)] {
            let dgid = device.raw().gid(1)?;
            let ah = AddressHandle {
                dgid,
                sgid_index: 1,
                hop_limit: 64,
                is_global: true,
                port_num: 1,
                ..Default::default()
            };
            let attr = QpAttr {
                ah,
                port_num: 1,
                path_mtu: 4096,
                dest_qp_num: ends[peer].qp.qpn(),
                timeout: 14,
                retry_cnt: 7,
                rnr_retry: 7,
                ..QpAttr::default()
            };
            ends[this].qp.advance_to(QpState::Rts, &attr)?;
        }
        Ok(Self(ends))
    }

    fn rounds(&self) -> Outcome {
        let [a, b] = &self.0;
        for _ in 0..ROUNDS {
            b.receive()?;
            a.receive()?;
            a.send()?;
            b.complete()?; // the message
            b.send()?;
            a.complete()?; // the send and the answer, in either order
            a.complete()?;
            b.complete()?;
        }
        Ok(())
    }
}

impl End {
    fn sge(&self, at: u64) -> [Sge; 1] {
        [Sge { addr: self.memory.iova() + at, length: LEN as u32, lkey: self.mr.lkey() }]
    }

    fn receive(&self) -> Outcome {
        Ok(self.qp.post_recv([RecvWr { wr_id: 1, sge: &self.sge(2048) }])?)
    }

    fn send(&self) -> Outcome {
        let wr = SendWr { wr_id: 2, op: SendOp::Send, sge: &self.sge(0), flags: SendFlags::SIGNALED };
        Ok(self.qp.post_send([wr])?)
    }

    fn complete(&self) -> Outcome {
        let mut found = [Completion::default()];
        while self.cq.poll(&mut found) == 0 {
            std::hint::spin_loop();
        }
        match found[0].status {
            WcStatus::Success => Ok(()),
            status => Err(format!("a request ended with {status:?}").into()),
        }
    }
}
