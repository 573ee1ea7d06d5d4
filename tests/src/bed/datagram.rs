//! Datagrams and registration by work request.

use super::{
    Bed, Path, Qp, QpSpec, Sge, Wc,
    command::CommandError,
    function::{GID_IPV4, gid_v4},
};
use devmodel::{LinkLayer, identity};
use hwspec::{
    cmd::{
        CmdIn, CmdOut, Opcode,
        mcg::{AttachToMcgIn, DetachFromMcgIn},
        mkey::{CreateMkeyIn, CreateMkeyOut, DestroyMkeyIn, QueryMkeyIn, QueryMkeyOut},
        resource::{AllocPdOut, DeallocPdIn},
    },
    context::{AccessMode, ServiceType, mkey::MkeyContext},
    handle::Qpn,
    wqe::*,
};

/// The address vector of a datagram.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Av {
    /// Destination MAC.
    pub dmac: [u8; 6],
    /// Destination GID.
    pub dgid: [u8; 16],
    /// Index of the source GID.
    pub sgid_index: u8,
    /// Destination QP.
    pub qpn: u32,
    /// Q_Key; if its top bit is set, the sender's own is used.
    pub qkey: u32,
    /// UDP source port.
    pub sport: u16,
    /// DSCP and ECN.
    pub traffic_class: u8,
    /// Hop limit.
    pub hop_limit: u8,
    /// InfiniBand: the LID, in place of `sport`.
    pub rlid: Option<u16>,
    /// InfiniBand: adds a GRH. On Ethernet there always is one.
    pub grh: bool,
}

impl Av {
    /// QP number that addresses all members of a group.
    pub const GROUP_QPN: u32 = 0xff_ffff;

    /// Returns the address vector of the group with IPv4 address `239.0.0.n`.
    pub fn group(n: u8, qkey: u32) -> Self {
        Self {
            dmac: [0x01, 0x00, 0x5e, 0, 0, n],
            dgid: Self::group_gid(n),
            sgid_index: GID_IPV4,
            qpn: Self::GROUP_QPN,
            qkey,
            sport: 0xc123,
            traffic_class: 2,
            hop_limit: 1,
            rlid: None,
            grh: true,
        }
    }

    /// Returns the GID of the group with IPv4 address `239.0.0.n`.
    pub fn group_gid(n: u8) -> [u8; 16] {
        [0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff, 239, 0, 0, n]
    }

    /// Returns the WQE segment, in its long form.
    pub fn segment(&self) -> Vec<u8> {
        let mut av = AvSeg::zeroed();
        av.set()
            .qkey(self.qkey)
            .ext(true)
            .destination_qp_dct(Qpn(self.qpn))
            .rlid_udp_sport(self.rlid.unwrap_or(self.sport))
            .tclass(self.traffic_class)
            .hop_limit(self.hop_limit)
            .grh(self.grh)
            .src_addr_index(self.sgid_index)
            .rgid_rip(self.dgid);
        av.set_rmac(self.dmac);
        av.as_bytes().to_vec()
    }
}

/// A UMR work request.
#[derive(Clone, Debug, Default)]
pub struct Umr {
    /// The key, as the control segment has it.
    pub key: u32,
    /// Raw `check_free`: 1 fails unless the key is free, 2 if it is.
    pub check: u8,
    /// The fields of `context` to change.
    pub mask: MkeyMask,
    /// The key's context.
    pub context: MkeyContext,
    /// Translation entries in the WQE.
    pub inline: Vec<u64>,
    /// Alternatively, the address of the entries and the number of octowords.
    pub list: Option<(Sge, u16)>,
    /// First octoword to change.
    pub offset: Option<u16>,
    /// Fails unless the key belongs to this queue pair.
    pub tied: bool,
}

impl Umr {
    /// Returns the WQE for block `index` of `qp`.
    pub fn wqe(&self, qp: Qp, index: u16) -> Vec<u8> {
        let octowords = self.list.map_or(self.inline.len().div_ceil(2) as u16, |(_, n)| n);
        let mut umr = UmrCtrlSeg::zeroed();
        umr.set()
            .inline_data(self.list.is_none())
            .check_free(UmrCheck::from_raw(self.check))
            .check_qpn(self.tied)
            .translation_offset_en(self.offset.is_some())
            .xlt_octowords(octowords)
            .xlt_offset(self.offset.unwrap_or(0))
            .mkey_mask(self.mask);
        let mut body = [&umr.as_bytes()[..], &self.context.as_bytes()[..]].concat();
        match self.list {
            Some((sge, _)) => {
                let seg = DataSeg::with(|s| s.byte_count(sge.len & 0x7fff_ffff).lkey(sge.lkey).addr(sge.va));
                body.extend_from_slice(seg.as_bytes());
            }
            None => {
                body.extend(self.inline.iter().flat_map(|word| word.to_be_bytes()));
                body.resize((body.len() + CtrlSeg::SIZE).next_multiple_of(WQE_BB) - CtrlSeg::SIZE, 0);
            }
        }
        let mut ctrl = CtrlSeg::zeroed();
        ctrl.set()
            .wqe_idx(index)
            .opcode(WqeOpcode::Umr)
            .qpn(Qpn(qp.qpn))
            .ds(((CtrlSeg::SIZE + body.len()) / WQE_DS) as u8)
            .fm(FenceMode::InitiatorSmall)
            .ce(CqeMode::Always)
            .imm(self.key);
        [&ctrl.as_bytes()[..], &body].concat()
    }
}

impl Bed {
    /// Creates a datagram QP of `service` with Q_Key `qkey`, in RTS.
    pub fn datagram(&mut self, fid: u8, service: ServiceType, qkey: u32) -> Qp {
        self.datagram_with(fid, QpSpec { service, ..QpSpec::default() }, qkey)
    }

    /// Like [`datagram`](Self::datagram), with creation parameters `spec`.
    pub fn datagram_with(&mut self, fid: u8, spec: QpSpec, qkey: u32) -> Qp {
        let qp = self.qp_with(fid, spec).unwrap_or_else(|e| panic!("CREATE_QP: {e:?}"));
        let sgid_index = match self.adapter.config().link_layer {
            LinkLayer::Ethernet => GID_IPV4,
            LinkLayer::Infiniband => 0,
        };
        self.ready(qp, &Path { qkey, mtu: 4096, sgid_index, ..Path::default() });
        qp
    }

    /// Returns the address vector of `to`, with the QP number that is used on the wire.
    pub fn av(&self, to: Qp, qkey: u32) -> Av {
        if self.adapter.config().link_layer == LinkLayer::Infiniband {
            let id = self.adapter.config().node_id;
            return Av {
                dgid: identity::port_gid(id, to.fid),
                sgid_index: 0,
                qpn: to.qpn,
                hop_limit: 64,
                rlid: Some(identity::lid(id, to.fid)),
                grh: false,
                ..Av::group(0, qkey)
            };
        }
        Av {
            dmac: identity::mac(0, to.fid),
            dgid: gid_v4(to.fid),
            qpn: to.qpn,
            hop_limit: 64,
            ..Av::group(0, qkey)
        }
    }

    /// Makes `qp` a member of the group with this GID.
    pub fn attach(&mut self, qp: Qp, gid: [u8; 16]) -> Result<(), CommandError> {
        let input = AttachToMcgIn::with(|s| s.qpn(qp.qpn).multicast_gid(gid));
        self.command::<_, CmdOut>(qp.fid, Opcode::AttachToMcg, &input).map(drop)
    }

    /// Ends the membership of `qp`.
    pub fn detach(&mut self, qp: Qp, gid: [u8; 16]) -> Result<(), CommandError> {
        let input = DetachFromMcgIn::with(|s| s.qpn(qp.qpn).multicast_gid(gid));
        self.command::<_, CmdOut>(qp.fid, Opcode::DetachFromMcg, &input).map(drop)
    }

    /// Creates a QP for UMR on any key, in RTS.
    pub fn umr_qp(&mut self, fid: u8) -> Qp {
        let spec = QpSpec {
            service: ServiceType::RegUmr,
            no_rq: true,
            rlky: true,
            pd: Some(0),
            ..QpSpec::default()
        };
        self.datagram_with(fid, spec, 0)
    }

    /// Creates a free key for UMR, with room for `octowords` of translations.
    pub fn free_key(&mut self, fid: u8, mode: AccessMode, octowords: u32, pd: u32) -> u32 {
        const VARIANT: u8 = 0x31;
        let context = MkeyContext::with(|s| {
            s.free(true)
                .umr_en(true)
                .access_mode_1_0(mode.raw())
                .pd(pd)
                .qpn(0xff_ffff)
                .mkey_7_0(VARIANT)
                .translations_octword_size(octowords)
                .log_page_size(12)
        });
        let input = CreateMkeyIn::with(|s| s.memory_key_mkey_entry(context));
        let out: CreateMkeyOut =
            self.command(fid, Opcode::CreateMkey, &input).unwrap_or_else(|e| panic!("CREATE_MKEY: {e:?}"));
        out.mkey_index() << 8 | u32::from(VARIANT)
    }

    /// Destroys a key.
    pub fn destroy_mkey(&mut self, fid: u8, key: u32) -> Result<(), CommandError> {
        let input = DestroyMkeyIn::with(|s| s.mkey_index(key >> 8));
        self.command::<_, CmdOut>(fid, Opcode::DestroyMkey, &input).map(drop)
    }

    /// Queries the context of a key.
    pub fn query_mkey(&mut self, fid: u8, key: u32) -> MkeyContext {
        let input = QueryMkeyIn::with(|s| s.mkey_index(key >> 8));
        let out: QueryMkeyOut =
            self.command(fid, Opcode::QueryMkey, &input).unwrap_or_else(|e| panic!("QUERY_MKEY: {e:?}"));
        out.memory_key_mkey_entry()
    }

    /// Allocates another protection domain.
    pub fn pd(&mut self, fid: u8) -> u32 {
        let out: AllocPdOut = self
            .command(fid, Opcode::AllocPd, &CmdIn::zeroed())
            .unwrap_or_else(|e| panic!("ALLOC_PD: {e:?}"));
        out.pd()
    }

    /// Deallocates a protection domain.
    pub fn dealloc_pd(&mut self, fid: u8, pd: u32) -> Result<(), CommandError> {
        let input = DeallocPdIn::with(|s| s.pd(pd));
        self.command::<_, CmdOut>(fid, Opcode::DeallocPd, &input).map(drop)
    }

    /// Posts a UMR and returns its completion, which must be the only one.
    #[track_caller]
    pub fn umr(&mut self, qp: Qp, umr: &Umr) -> Wc {
        let index = self.next_index(qp);
        self.queue_wqe(qp, &umr.wqe(qp, index));
        self.ring(qp);
        self.one(qp.send_cq)
    }
}
