//! The commands that the scripted device answers, and its vport.

use super::State;
use crate::dma::PAGE_SIZE;
use hwspec::{
    cmd::{
        CmdOut, Opcode, adapter::*, adapter_id::QueryAdapterOut, eswitch::*, memic::AllocMemicOut, vport::*,
    },
    context::{
        caps::{AtomicCaps, DeviceMemCap, HcaCap, RoceCap},
        port::{Pmtu, Ptys},
    },
    layout::Layout,
};

/// The device's vport.
#[derive(Clone, Debug)]
pub struct NicVport {
    pub mac: u64,
    pub mtu: u16,
    pub guid: u64,
    /// Operational MTU of the port.
    pub port_mtu: u16,
    /// Operational protocols of the port.
    pub protocols: u32,
    /// Unicast and multicast addresses.
    pub lists: [Vec<u64>; 2],
    /// The L2 table of the physical function.
    pub l2_table: Vec<(u32, u64)>,
}

impl Default for NicVport {
    fn default() -> Self {
        Self {
            mac: 0x021b_5600_0003,
            mtu: 9000,
            guid: 0x001b_56ff_fe00_0003,
            port_mtu: 9000,
            protocols: 1 << 20,
            lists: Default::default(),
            l2_table: Vec::new(),
        }
    }
}

impl State {
    /// Writes the answer to command `op` with `input`.
    pub(super) fn answer(&mut self, op: Opcode, input: &[u8], output: &mut [u8]) {
        fn put<T: Layout>(output: &mut [u8], value: &T) {
            let len = output.len().min(T::SIZE);
            output[..len].copy_from_slice(&value.bytes()[..len]);
        }
        match op {
            Opcode::QueryIssi => {
                let out = QueryIssiOut::with(|s| s.supported_issi_dw0(0b10));
                put(output, &out);
            }
            Opcode::QueryPages => {
                let boot = QueryPagesIn::read(input).op_mod() == 1;
                let out = QueryPagesOut::with(|s| s.num_pages(if boot { 3 } else { 700 }));
                put(output, &out);
            }
            Opcode::ManagePages => {
                let header = ManagePagesIn::read(input);
                let count = header.input_num_entries() as usize;
                let mut out = ManagePagesOut::zeroed();
                match header.op_mod() {
                    1 => self.pages.extend(
                        input[ManagePagesIn::SIZE..]
                            .chunks_exact(8)
                            .map(|b| u64::from_be_bytes(hwspec::layout::prefix(b))),
                    ),
                    2 if self.stingy > 0 => self.stingy -= 1,
                    2 => {
                        let given: Vec<_> = self.pages.drain(..count.min(self.pages.len())).collect();
                        out.set().output_num_entries(given.len() as u32);
                        for (at, page) in given.iter().enumerate() {
                            let from = ManagePagesOut::SIZE + at * 8;
                            output[from..from + 8].copy_from_slice(&page.to_be_bytes());
                        }
                    }
                    _ => {}
                }
                put(output, &out);
                self.managed.push((header.function_id(), header.op_mod(), count));
                if let Some((slot, _)) = self.held.filter(|(_, enough)| self.pages.len() == *enough) {
                    self.held = None;
                    self.command(slot);
                }
            }
            Opcode::QueryHcaCap => {
                let mut page = [0; 0x1000];
                let bytes: Vec<u8> = match QueryHcaCapIn::read(input).op_mod() >> 1 {
                    0 => self.general.bytes().to_vec(),
                    3 => {
                        let mut caps = AtomicCaps::zeroed();
                        caps.set().atomic_operations(3).atomic_size_qp(8);
                        caps.set().supported_atomic_req_8b_endianness_mode_1(true);
                        caps.bytes().to_vec()
                    }
                    4 => {
                        let mut caps = RoceCap::zeroed();
                        caps.set().roce_address_table_size(16).roce_version(4).l3_type(6);
                        caps.bytes().to_vec()
                    }
                    0xf => {
                        let mut caps = DeviceMemCap::zeroed();
                        caps.set().memic(self.memory.is_some()).max_memic_size(PAGE_SIZE as u32);
                        caps.bytes().to_vec()
                    }
                    _ => Vec::new(),
                };
                page[..bytes.len()].copy_from_slice(&bytes);
                let out = QueryHcaCapOut::with(|s| s.capability(page));
                put(output, &out);
            }
            Opcode::QueryAdapter => {
                let mut out = QueryAdapterOut::zeroed();
                let mut adapter = out.query_adapter_struct();
                adapter.set().ieee_vendor_id(0x2c9).vsd_contd_psid(*b"IRN0000000001\0\0\0");
                out.set().query_adapter_struct(adapter);
                put(output, &out);
            }
            Opcode::QueryNicVportContext => {
                let mut out = QueryNicVportContextOut::zeroed();
                let mut context = out.nic_vport_context();
                let kind = QueryNicVportContextIn::read(input).allowed_list_type();
                let list = &self.vport.lists[usize::from(kind % 2)];
                context
                    .set()
                    .mtu(self.vport.mtu)
                    .permanent_address(Layout::read(&self.vport.mac.to_be_bytes()))
                    .node_guid(self.vport.guid)
                    .allowed_list_type(kind)
                    .allowed_list_size(list.len() as u16);
                out.set().nic_vport_context(context);
                put(output, &out);
                let places = output.get_mut(QueryNicVportContextOut::SIZE..).unwrap_or_default();
                for (place, entry) in places.chunks_exact_mut(8).zip(list) {
                    place.copy_from_slice(&entry.to_be_bytes());
                }
            }
            Opcode::ModifyNicVportContext => {
                let command = ModifyNicVportContextIn::read(input);
                let (fields, context) =
                    (u32::from_be_bytes(command.field_select()), command.nic_vport_context());
                if fields & 1 << 2 != 0 {
                    let entries = input[ModifyNicVportContextIn::SIZE..].chunks_exact(8);
                    let list: Vec<u64> =
                        entries.map(|b| u64::from_be_bytes(hwspec::layout::prefix(b))).collect();
                    assert_eq!(list.len(), usize::from(context.allowed_list_size()));
                    self.vport.lists[usize::from(context.allowed_list_type())] = list;
                }
                if fields & 1 << 6 != 0 {
                    self.vport.mtu = context.mtu();
                }
            }
            Opcode::AccessReg => {
                let header = AccessRegisterIn::read(input);
                put(output, &CmdOut::zeroed());
                let register = &mut output[CmdOut::SIZE..];
                match header.register_id() {
                    0x5003 => {
                        let pmtu = Pmtu::with(|s| s.oper_mtu(self.vport.port_mtu));
                        register.copy_from_slice(pmtu.bytes());
                    }
                    _ => {
                        let ptys = Ptys::with(|s| s.eth_proto_oper(self.vport.protocols));
                        register.copy_from_slice(ptys.bytes());
                    }
                }
            }
            Opcode::SetL2TableEntry => {
                let command = SetL2TableEntryIn::read(input);
                let mac = u64::from_be_bytes(hwspec::layout::prefix(command.mac_address().as_bytes()));
                self.vport.l2_table.push((command.table_index(), mac));
            }
            Opcode::QueryVportState => {
                let out = QueryVportStateOut::with(|s| s.state(1));
                put(output, &out);
            }
            Opcode::AllocMemic => {
                let out = AllocMemicOut::with(|s| s.memic_start_addr(self.memory.unwrap_or_default()));
                put(output, &out);
            }
            Opcode::SetRoceAddress => {
                let command = SetRoceAddressIn::read(input);
                self.gids.insert(command.roce_address_index(), *command.roce_address().as_bytes());
            }
            Opcode::QueryRoceAddress => {
                let index = QueryRoceAddressIn::read(input).roce_address_index();
                let mut out = QueryRoceAddressOut::zeroed();
                out.set().roce_address(Layout::read(self.gids.get(&index).unwrap_or(&[0; 0x20])));
                put(output, &out);
            }
            Opcode::CreateEq
            | Opcode::CreateCq
            | Opcode::CreateQp
            | Opcode::CreateMkey
            | Opcode::CreateUctx
            | Opcode::AllocPd
            | Opcode::AllocUar
            | Opcode::AllocTransportDomain => {
                self.numbers += 1;
                output[8..12].copy_from_slice(&(self.numbers + 16).to_be_bytes());
            }
            _ => {}
        }
    }
}

/// General capabilities of a device that supports a bit of everything.
pub(super) fn general() -> HcaCap {
    let mut caps = HcaCap::zeroed();
    caps.set()
        .log_max_qp_sz(10)
        .log_max_qp(17)
        .log_max_cq_sz(16)
        .log_max_cq(17)
        .log_max_eq_sz(12)
        .log_max_eq(6);
    caps.set()
        .log_max_mkey(20)
        .log_max_pd(16)
        .log_max_ra_req_qp(4)
        .log_max_ra_res_qp(4)
        .port_type(1)
        .num_ports(1);
    caps.set().max_wqe_sz_sq(512).max_wqe_sz_rq(512).log_max_msg(30).log_max_uctx(8).uar_4k(true);
    caps.set().rc(true).roce(true).atomic(true).cmdif_checksum(3);
    caps.set().log_max_current_uc_list(3).log_max_current_mc_list(3);
    caps
}
