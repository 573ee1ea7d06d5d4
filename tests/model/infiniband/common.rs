//! Code shared by the tests: management datagrams and their transport.

pub use hwspec::{
    cmd::{CmdOut, Opcode, vport::*},
    context::{ServiceType, vport::HcaVportContext},
    cqe::CqeOpcode,
    layout::{Layout, prefix},
    wire::mad::{self, MAD_SIZE, MadHeader, Method, MgmtClass, Smp, pma, sa, smp, status},
};
pub use ironverbs_tests::bed::*;

use std::cell::Cell;

/// Builds the header of a MAD.
pub fn header(class: MgmtClass, version: u8, method: Method, attribute: u16, modifier: u32) -> MadHeader {
    MadHeader::with(|s| {
        s.base_version(1)
            .mgmt_class(class)
            .class_version(version)
            .method(method)
            .transaction_id(0x1122_3344_5566_7788)
            .attribute_id(attribute)
            .attribute_modifier(modifier)
    })
}

/// Builds a LID-routed SMP.
pub fn smp(method: Method, attribute: u16, modifier: u32, data: &[u8]) -> Smp {
    Smp::with(|s| s.header(header(MgmtClass::SubnLid, 1, method, attribute, modifier)).data(prefix(data)))
}

/// Executes `MAD_IFC` on function `fid`, with or without a check of the management key.
pub fn mad_ifc(
    bed: &mut Bed,
    fid: u8,
    mad: &[u8; MAD_SIZE],
    ignore: u16,
) -> Result<[u8; MAD_SIZE], CommandError> {
    bed.function(fid);
    let input = MadIfcIn::with(|s| s.port(1).mad(*mad));
    let out = bed.command_with(fid, Opcode::MadIfc, ignore, &input, &[], MadIfcOut::SIZE)?;
    Ok(MadIfcOut::read(&out).response_mad_packet())
}

/// Returns the answer of the port's own agent to an SMP.
pub fn ask(bed: &mut Bed, fid: u8, request: &Smp) -> Smp {
    Smp::read(&mad_ifc(bed, fid, request.as_bytes(), 3).expect("MAD_IFC"))
}

/// Returns an attribute that the agent of `fid` is asked for.
pub fn get(bed: &mut Bed, fid: u8, attribute: u16, modifier: u32) -> [u8; 64] {
    ask(bed, fid, &smp(Method::Get, attribute, modifier, &[])).data()
}

/// Sets an attribute of the port of `fid`.
pub fn set(bed: &mut Bed, fid: u8, attribute: u16, data: &[u8]) {
    ask(bed, fid, &smp(Method::Set, attribute, 0, data));
}

/// Returns `PortInfo` of `fid`.
pub fn port_info(bed: &mut Bed, fid: u8) -> smp::PortInfo {
    smp::PortInfo::read(&get(bed, fid, smp::attribute::PORT_INFO, 0))
}

/// Sends an SMP from QP0 of `fid` to `lid`. Returns the answer, if one arrives.
pub fn send_smp(bed: &mut Bed, fid: u8, lid: u16, request: &Smp) -> Option<Smp> {
    let qp = bed.datagram(fid, ServiceType::Qp0, 0);
    let (from, to) = (bed.mr(fid, 256, Access::LOCAL), bed.mr(fid, 296, Access::LOCAL));
    bed.fill(from, request.as_bytes());
    bed.post_recv(qp, &[to.sge()]);
    let av = Av { rlid: Some(lid), grh: false, sgid_index: 0, qpn: 0, ..Av::group(0, 0) };
    bed.post(qp, &Wr::new(Op::Send, &[from.sge()]).to(av));
    let mut answer = None;
    while let Some(cqe) = bed.poll_raw(qp.send_cq) {
        if cqe.opcode() == CqeOpcode::RespSend {
            answer = Some(Smp::read(&bed.bytes(to)[40..]));
        }
    }
    bed.destroy_qp(qp).expect("DESTROY_QP");
    answer
}

/// Builds a request for counters of port 1 to the performance management agent.
pub fn perf(method: Method, attribute: u16, select: u16) -> [u8; MAD_SIZE] {
    let mut mad = prefix(header(MgmtClass::Perf, 1, method, attribute, 0).as_bytes());
    mad[pma::DATA + 1] = 1;
    mad[pma::DATA + 2..pma::DATA + 4].copy_from_slice(&select.to_be_bytes());
    mad
}

/// Returns the context of a vport: that of `by`, or the one it manages.
pub fn context(bed: &mut Bed, by: u8, vport: Option<u16>) -> Result<HcaVportContext, CommandError> {
    bed.function(by);
    let mut input = QueryHcaVportContextIn::zeroed();
    input.set().other_vport(vport.is_some()).port_num(1).vport_number(vport.unwrap_or(0));
    let out: QueryHcaVportContextOut = bed.command(by, Opcode::QueryHcaVportContext, &input)?;
    Ok(out.hca_vport_context())
}

/// Changes what [`context`] returns.
pub fn modify(
    bed: &mut Bed,
    by: u8,
    vport: Option<u16>,
    context: HcaVportContext,
) -> Result<(), CommandError> {
    let mut input = ModifyHcaVportContextIn::zeroed();
    input.set().other_vport(vport.is_some()).port_num(1).vport_number(vport.unwrap_or(0));
    input.set().hca_vport_context(context);
    bed.command::<_, CmdOut>(by, Opcode::ModifyHcaVportContext, &input).map(drop)
}

/// Builds a query to the subnet administrator for records that match `record` in the components of `mask`.
pub fn query<R: Layout>(method: Method, attribute: sa::SaAttribute, mask: u64, record: &R) -> sa::SaMad {
    sa::SaMad::with(|s| {
        s.header(header(MgmtClass::SubnAdm, 2, method, attribute.raw(), 0))
            .component_mask(mask)
            .data(prefix(record.bytes()))
    })
}

/// Number of receives of a [`General`] that may be posted at a time.
const SLOTS: u16 = 16;
/// Bytes of each receive: a GRH and a MAD.
const SLOT: u32 = 296;

/// A function's QP1, and memory for its datagrams.
pub struct General {
    /// The QP.
    pub qp: Qp,
    from: Mr,
    to: Mr,
    /// Number of receives posted so far.
    posted: Cell<u16>,
}

/// A bed, and QP1 on its function 1.
pub fn general() -> (Bed, General) {
    let mut bed = Bed::infiniband();
    let general = General::new(&mut bed, 1);
    (bed, general)
}

impl General {
    /// Creates QP1 on function `fid`.
    pub fn new(bed: &mut Bed, fid: u8) -> Self {
        let qp = bed.datagram(fid, ServiceType::Qp1, mad::QP1_QKEY);
        let to = bed.mr(fid, usize::from(SLOTS) * SLOT as usize, Access::LOCAL);
        Self { qp, from: bed.mr(fid, 256, Access::LOCAL), to, posted: Cell::new(0) }
    }

    /// Posts receives for `n` datagrams.
    pub fn listen(&self, bed: &mut Bed, n: u16) {
        for _ in 0..n {
            let slot = u64::from(self.posted.get() % SLOTS);
            self.posted
                .set(bed.post_recv(self.qp, &[self.to.part(slot * u64::from(SLOT), SLOT)]).wrapping_add(1));
        }
    }

    /// Sends a datagram to QP1 at `lid`.
    pub fn send(&self, bed: &mut Bed, lid: u16, mad: &[u8; MAD_SIZE]) {
        bed.fill(self.from, mad);
        let av = Av { rlid: Some(lid), grh: false, sgid_index: 0, ..Av::group(0, mad::QP1_QKEY) };
        bed.post(self.qp, &Wr::new(Op::Send, &[self.from.sge()]).to(Av { qpn: 1, ..av }));
    }

    /// Returns the datagrams that arrived from QP1 at `lid` since the last call.
    pub fn heard(&self, bed: &mut Bed, lid: u16) -> Vec<[u8; MAD_SIZE]> {
        let mut heard = Vec::new();
        while let Some(cqe) = bed.poll_raw(self.qp.send_cq) {
            if cqe.opcode() == CqeOpcode::RespSend {
                assert_eq!((cqe.rqpn().0, cqe.slid(), cqe.byte_cnt()), (1, lid, SLOT));
                let at = usize::from(cqe.wqe_counter() % SLOTS) * SLOT as usize;
                heard.push(prefix(&bed.bytes(self.to)[at + 40..]));
            }
        }
        heard
    }

    /// Sends `request` to QP1 at `lid`. Returns the answer, if one arrives.
    pub fn ask(&self, bed: &mut Bed, lid: u16, request: &[u8; MAD_SIZE]) -> Option<[u8; MAD_SIZE]> {
        self.listen(bed, 1);
        self.send(bed, lid, request);
        self.heard(bed, lid).pop()
    }

    /// Sends a [`query`] to the subnet administrator.
    pub fn query<R: Layout>(
        &self,
        bed: &mut Bed,
        method: Method,
        attribute: sa::SaAttribute,
        mask: u64,
        record: &R,
    ) -> sa::SaMad {
        let query = query(method, attribute, mask, record);
        let lid = bed.switch_lid();
        let answer = self.ask(bed, lid, query.as_bytes()).expect("an answer");
        let answer = sa::SaMad::read(&answer);
        assert_eq!(answer.header().transaction_id(), query.header().transaction_id());
        answer
    }
}
