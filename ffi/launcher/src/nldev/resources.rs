//! Resources: the objects programs have on a device.

use super::call::{Call, Done, PORT, Refused, handle};
use super::codes::{attr, cmd};
use super::message::Attributes;
use devmodel::state::{CqRow, MkeyRow, PdRow, QpFlags, QpRow, SrqRow, UctxRow};
use hwspec::context::{QpState, ServiceType};
use node::devices::DeviceInfo;
use node::{CmId, Observer, Owner, Seen};

/// Maximum size of the entries in one message of a dump.
const TABLE: usize = 3584;
/// The owner of objects that no program owns.
const DRIVER: &str = "ironverbs";
/// `MkeyRow::access`: local read, which memory regions have and memory windows lack; and unused.
const LOCAL_READ: u8 = 1;
const FREE: u8 = 32;

/// Lists the objects of one kind on a function.
type List = fn(&Observer, u8, bool) -> Vec<(u32, Attributes)>;

/// One kind of objects.
#[derive(Clone, Copy)]
struct Kind {
    /// Attributes: the nest of all objects, that of each object, and an object's number.
    table: u16,
    entry: u16,
    id: u16,
    /// True if the objects belong to a port, which a request for one must name.
    per_port: bool,
    /// Lists the attributes of each object, with its number.
    list: List,
}

impl Kind {
    const fn of_port(table: u16, entry: u16, id: u16, list: List) -> Self {
        Self { table, entry, id, per_port: true, list }
    }

    const fn of_device(table: u16, entry: u16, id: u16, list: List) -> Self {
        Self { table, entry, id, per_port: false, list }
    }
}

const QP: Kind = Kind::of_port(attr::RES_QP, attr::RES_QP_ENTRY, attr::RES_LQPN, qps);
const CM_ID: Kind = Kind::of_port(attr::RES_CM_ID, attr::RES_CM_ID_ENTRY, attr::RES_CM_IDN, cm_ids);
const CQ: Kind = Kind::of_device(attr::RES_CQ, attr::RES_CQ_ENTRY, attr::RES_CQN, cqs);
const MR: Kind = Kind::of_device(attr::RES_MR, attr::RES_MR_ENTRY, attr::RES_MRN, mrs);
const PD: Kind = Kind::of_device(attr::RES_PD, attr::RES_PD_ENTRY, attr::RES_PDN, pds);
const CTX: Kind = Kind::of_device(attr::RES_CTX, attr::RES_CTX_ENTRY, attr::RES_CTXN, contexts);
const SRQ: Kind = Kind::of_device(attr::RES_SRQ, attr::RES_SRQ_ENTRY, attr::RES_SRQN, srqs);

/// In the order of the kernel's summary.
const SUMMARY: [(&str, Kind); 7] =
    [("pd", PD), ("cq", CQ), ("qp", QP), ("cm_id", CM_ID), ("mr", MR), ("ctx", CTX), ("srq", SRQ)];

fn kind(command: u16) -> Result<Kind, Refused> {
    Ok(match command {
        cmd::RES_QP_GET => QP,
        cmd::RES_CM_ID_GET => CM_ID,
        cmd::RES_CQ_GET => CQ,
        cmd::RES_MR_GET => MR,
        cmd::RES_PD_GET => PD,
        cmd::RES_CTX_GET => CTX,
        cmd::RES_SRQ_GET => SRQ,
        _ => return Err(Refused::INVALID),
    })
}

impl Kind {
    /// The objects on `device`, including the details for administrators if the asker is one.
    fn on(&self, call: &Call<'_>, device: &DeviceInfo) -> Vec<(u32, Attributes)> {
        let seen = call.inventory.on_node(device);
        seen.map_or(Vec::new(), |(observer, fid)| (self.list)(observer, fid, call.asker.admin))
    }
}

pub fn get_summary(call: &mut Call<'_>) -> Done {
    let (index, device) = call.device()?;
    let summary = summary(call, index, device);
    call.reply(&summary);
    Ok(())
}

pub fn dump_summary(call: &mut Call<'_>) -> Done {
    let inventory = call.inventory;
    for (index, device) in inventory.indexed() {
        let summary = summary(call, index, device);
        call.part(&summary);
    }
    Ok(())
}

fn summary(call: &Call<'_>, index: u32, device: &DeviceInfo) -> Attributes {
    let mut out = Attributes::default();
    handle(&mut out, index, device);
    out.nest(attr::RES_SUMMARY, |table| {
        for (name, kind) in SUMMARY {
            let count = kind.on(call, device).len() as u64;
            table.nest(attr::RES_SUMMARY_ENTRY, |entry| {
                entry.text(attr::RES_SUMMARY_ENTRY_NAME, name).u64(attr::RES_SUMMARY_ENTRY_CURR, count);
            });
        }
    });
    out
}

/// One object by its number.
pub fn get(call: &mut Call<'_>, command: u16) -> Done {
    let kind = kind(command)?;
    let id = call.request.u32(kind.id)?;
    let port = call.request.u32(attr::PORT_INDEX)?;
    let (index, device) = call.device()?;
    let id = id.ok_or(Refused::INVALID)?;
    if port.is_some_and(|port| port != PORT) || port.is_some() != kind.per_port {
        return Err(Refused::INVALID);
    }
    let found = kind.on(call, device).into_iter().find(|(number, _)| *number == id);
    let (_, found) = found.ok_or(Refused(libc::ENOENT, None))?;
    let mut out = Attributes::default();
    handle(&mut out, index, device);
    out.append(&found);
    call.reply(&out);
    Ok(())
}

/// All objects of a kind on a device.
pub fn dump(call: &mut Call<'_>, command: u16) -> Done {
    let kind = kind(command)?;
    let (index, device) = call.device()?;
    if call.request.u32(attr::PORT_INDEX)?.is_some_and(|port| port != PORT) {
        return Err(Refused::INVALID);
    }
    let all = kind.on(call, device);
    parts(call, index, device, &kind, &all);
    Ok(())
}

/// Splits a table into messages, each of which fits into a datagram.
fn parts(call: &mut Call<'_>, index: u32, device: &DeviceInfo, kind: &Kind, all: &[(u32, Attributes)]) {
    let mut rest = all;
    while !rest.is_empty() {
        let mut bytes = 0;
        let fits = rest.iter().take_while(|(_, a)| {
            bytes += a.len() + 4;
            bytes <= TABLE
        });
        let (now, later) = rest.split_at(fits.count().max(1));
        rest = later;
        let mut out = Attributes::default();
        handle(&mut out, index, device);
        out.nest(kind.table, |table| {
            for (_, entry) in now {
                table.nest(kind.entry, |inside| inside.append(entry));
            }
        });
        call.part(&out);
    }
}

/// Statistics of one memory region: only its number, since all others are about on-demand paging.
pub fn get_statistics_of_mr(call: &mut Call<'_>) -> Done {
    let id = call.request.u32(attr::RES_MRN)?.ok_or(Refused::INVALID)?;
    let (index, device) = call.device()?;
    if !MR.on(call, device).iter().any(|(number, _)| *number == id) {
        return Err(Refused(libc::ENOENT, None));
    }
    let mut out = Attributes::default();
    handle(&mut out, index, device);
    out.u32(attr::RES_MRN, id);
    call.reply(&out);
    Ok(())
}

/// The same for all memory regions.
pub fn dump_statistics_of_mrs(call: &mut Call<'_>) -> Done {
    let (index, device) = call.device()?;
    let numbers = MR.on(call, device).into_iter().map(|(number, _)| {
        let mut entry = Attributes::default();
        entry.u32(attr::RES_MRN, number);
        (number, entry)
    });
    let all: Vec<_> = numbers.collect();
    parts(call, index, device, &MR, &all);
    Ok(())
}

/// Writes the owner: a program, or the function's driver.
fn owner(out: &mut Attributes, owner: Owner) {
    match owner {
        Owner { context: 0, .. } => out.text(attr::RES_KERN_NAME, DRIVER),
        Owner { pid: 0, .. } => out,
        Owner { pid, .. } => out.u32(attr::RES_PID, pid),
    };
}

/// Writes the context of an object that a program owns.
fn context(out: &mut Attributes, owner: Owner) {
    if owner.context != 0 {
        out.u32(attr::RES_CTXN, owner.context.into());
    }
}

/// `ib_qp_type`; `None` for queues that verbs don't show.
fn qp_type(row: &QpRow) -> Option<u8> {
    Some(match ServiceType::from_raw(row.service) {
        ServiceType::Qp0 => 0,
        ServiceType::Qp1 => 1,
        ServiceType::Rc => 2,
        ServiceType::Uc => 3,
        ServiceType::Ud => 4,
        ServiceType::RawEth => 8,
        ServiceType::Xrc if row.has(QpFlags::NO_SQ) => 10,
        ServiceType::Xrc => 9,
        ServiceType::Dci => 255,
        _ => return None,
    })
}

/// `ib_qp_state`.
fn qp_state(row: &QpRow) -> u8 {
    match QpState::from_raw(row.state) {
        QpState::SqDrained => 4,
        QpState::SqErr => 5,
        _ => row.state,
    }
}

fn qps(observer: &Observer, fid: u8, _: bool) -> Vec<(u32, Attributes)> {
    /// `IB_MIG_MIGRATED`.
    const MIGRATED: u8 = 0;
    let mut all = Vec::new();
    for Seen { number, owner: whose, row } in observer.objects::<QpRow>(fid) {
        let Some(kind) = qp_type(&row) else { continue };
        // QP0 and QP1 are shown by these numbers.
        let number = if kind < 2 { kind.into() } else { number };
        let mut out = Attributes::default();
        // A queue pair has a port once it has left RESET.
        if row.state != 0 {
            out.u32(attr::PORT_INDEX, PORT);
        }
        out.u32(attr::RES_LQPN, number);
        if whose.context != 0 {
            out.u32(attr::RES_PDN, row.pd);
        }
        owner(&mut out, whose);
        if matches!(kind, 2 | 3) {
            out.u32(attr::RES_RQPN, row.remote_qpn).u32(attr::RES_RQ_PSN, row.responder.psn);
        }
        out.u32(attr::RES_SQ_PSN, row.requester.psn);
        if matches!(kind, 2 | 3 | 9 | 10) {
            out.u8(attr::RES_PATH_MIG_STATE, MIGRATED);
        }
        out.u8(attr::RES_TYPE, kind).u8(attr::RES_STATE, qp_state(&row));
        all.push((number, out));
    }
    all
}

fn cm_ids(observer: &Observer, fid: u8, _: bool) -> Vec<(u32, Attributes)> {
    /// Bytes of `struct __kernel_sockaddr_storage`.
    const STORAGE: usize = 128;
    let entry = |Seen { number, owner: whose, row }: Seen<CmId>| {
        let mut out = Attributes::default();
        out.u32(attr::PORT_INDEX, PORT);
        if row.qpn != 0 {
            out.u32(attr::RES_LQPN, row.qpn).u8(attr::RES_TYPE, row.qp_type);
        }
        out.u32(attr::RES_PS, row.port_space.into()).u8(attr::RES_STATE, row.state);
        for (kind, address) in [attr::RES_SRC_ADDR, attr::RES_DST_ADDR].into_iter().zip(row.addresses) {
            if address[..2] != [0; 2] {
                let mut storage = [0; STORAGE];
                storage[..address.len()].copy_from_slice(&address);
                out.bytes(kind, &storage);
            }
        }
        out.u32(attr::RES_CM_IDN, number);
        owner(&mut out, Owner { context: 1, ..whose });
        (number, out)
    };
    observer.cm_ids(fid).map(entry).collect()
}

fn cqs(observer: &Observer, fid: u8, _: bool) -> Vec<(u32, Attributes)> {
    let entry = |Seen { number, owner: whose, row }: Seen<CqRow>| {
        let mut out = Attributes::default();
        out.u32(attr::RES_CQE, (1u32 << row.log_size.min(31)) - 1)
            .u64(attr::RES_USECNT, row.head.refs.into());
        if whose.context == 0 {
            out.u8(attr::RES_POLL_CTX, 0);
        }
        out.u8(attr::DEV_DIM, 0).u32(attr::RES_CQN, number);
        context(&mut out, whose);
        owner(&mut out, whose);
        (number, out)
    };
    observer.objects(fid).map(entry).collect()
}

fn mrs(observer: &Observer, fid: u8, admin: bool) -> Vec<(u32, Attributes)> {
    let live =
        observer.objects::<MkeyRow>(fid).filter(|seen| seen.row.access & (LOCAL_READ | FREE) == LOCAL_READ);
    let entry = |Seen { number, owner: whose, row }: Seen<MkeyRow>| {
        let key = number << 8 | u32::from(row.variant);
        let mut out = Attributes::default();
        if admin {
            out.u32(attr::RES_RKEY, key).u32(attr::RES_LKEY, key);
        }
        out.u64(attr::RES_MRLEN, row.len).u32(attr::RES_MRN, number);
        if whose.context != 0 {
            out.u32(attr::RES_PDN, row.pd);
        }
        owner(&mut out, whose);
        (number, out)
    };
    live.map(entry).collect()
}

fn pds(observer: &Observer, fid: u8, _: bool) -> Vec<(u32, Attributes)> {
    let entry = |Seen { number, owner: whose, row }: Seen<PdRow>| {
        let mut out = Attributes::default();
        out.u64(attr::RES_USECNT, row.head.refs.into()).u32(attr::RES_PDN, number);
        context(&mut out, whose);
        owner(&mut out, whose);
        (number, out)
    };
    observer.objects(fid).map(entry).collect()
}

fn contexts(observer: &Observer, fid: u8, _: bool) -> Vec<(u32, Attributes)> {
    let entry = |seen: Seen<_>| {
        let mut out = Attributes::default();
        out.u32(attr::RES_CTXN, seen.number);
        owner(&mut out, Owner { context: 1, ..seen.owner });
        (seen.number, out)
    };
    observer.objects::<UctxRow>(fid).map(entry).collect()
}

fn srqs(observer: &Observer, fid: u8, _: bool) -> Vec<(u32, Attributes)> {
    /// `SrqRow::kind`, which are also the first of `ib_srq_type`.
    const XRC: u32 = 1;
    let users: Vec<(u32, u32)> =
        observer.objects::<QpRow>(fid).filter(|q| q.row.srqn != 0).map(|q| (q.row.srqn, q.number)).collect();
    let entry = |Seen { number, owner: whose, row }: Seen<SrqRow>| {
        let mut out = Attributes::default();
        out.u32(attr::RES_SRQN, number)
            .u8(attr::RES_TYPE, row.kind.min(XRC) as u8)
            .u32(attr::RES_PDN, row.pd);
        if row.kind == XRC {
            out.u32(attr::RES_CQN, row.cqn);
        }
        let mut qps: Vec<u32> = users.iter().filter(|(srq, _)| *srq == number).map(|(_, qp)| *qp).collect();
        qps.sort_unstable();
        out.nest(attr::RES_QP, |table| {
            for range in qps.chunk_by(|a, b| *b == a + 1) {
                table.nest(attr::RES_QP_ENTRY, |entry| {
                    match range {
                        [one] => entry.u32(attr::RES_LQPN, *one),
                        [first, .., last] => entry.u32(attr::MIN_RANGE, *first).u32(attr::MAX_RANGE, *last),
                        [] => entry,
                    };
                });
            }
        });
        owner(&mut out, whose);
        (number, out)
    };
    observer.objects(fid).map(entry).collect()
}
