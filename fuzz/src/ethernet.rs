//! The net device: arbitrary frames, send WQEs and flow tables.

use crate::{bytes::Bytes, stage::Stage};
use hwspec::{
    context::{
        flow::MatchHeaders,
        tir::{HashFields, TirContext},
    },
    layout::Layout,
    wire::{
        eth::{EtherType, Ethernet},
        ip::{Ipv4, Ipv6},
    },
    wqe::WqeOpcode,
};
use tests::bed::{Nic, Send, TO_TABLE, TO_TIR};

/// Maximum number of steps per input.
const STEPS: usize = 24;
/// The function under test.
const FID: u8 = 1;

/// Runs frames and work requests of a net device built from `data`.
pub fn ethernet(data: &[u8]) {
    let mut input = Bytes(data);
    let mut stage = Stage::new();
    let mut nic = stage.bed.nic(FID, 2);
    let rqt = stage.bed.rqt(&nic);
    let mut fields = HashFields::zeroed();
    fields.set().selected_fields(u32::from(input.u8() & 0x1f)).l3_prot_type(input.u8() & 1 != 0);
    let spread = TirContext::with(|s| {
        s.disp_type(1)
            .indirect_table(rqt)
            .rx_hash_fn(input.u8() % 3)
            .rx_hash_toeplitz_key([0x5a; 40])
            .rx_hash_field_selector_outer(fields)
    });
    let spread = stage.bed.tir(&nic, spread).unwrap_or_else(|e| panic!("CREATE_TIR: {e:?}"));
    let (table, _) = stage.bed.steer_all(&nic, spread);
    for _ in 0..STEPS {
        if input.is_empty() {
            break;
        }
        match input.u8() % 8 {
            0..=2 => {
                let frame = frame(&mut input);
                stage.bed.inject(&frame);
            }
            3 | 4 => {
                let frame = frame(&mut input);
                let how = Send {
                    inline: usize::from(input.u8()).min(frame.len()),
                    checksums: input.u8() & 1 != 0,
                    vlan: (input.u8() & 7 == 0).then(|| input.u16()),
                    mss: if input.u8() & 1 == 0 { 0 } else { input.u16() % 2000 },
                };
                // A VLAN tag replaces inline headers.
                let how = if how.vlan.is_some() { Send { inline: 0, ..how } } else { how };
                stage.bed.send_frame(&mut nic, &frame, how);
            }
            5 => {
                let len = usize::from(input.u8());
                let body = input.take(len).to_vec();
                let opcode = [WqeOpcode::Send, WqeOpcode::Lso, WqeOpcode::Nop, WqeOpcode::Umr][len % 4];
                stage.bed.post_raw(&mut nic, opcode, &body);
                stage.bed.run();
            }
            6 => tables(&mut stage, &mut input, &nic, table, spread),
            _ => {
                // Leaves the error state, if the queue is in it.
                let (from, to) = (input.u8() % 4, input.u8() % 4);
                let _ = stage.bed.modify_sq(&nic, from, to);
                let _ = stage.bed.modify_rq(FID, nic.rx[usize::from(from & 1)].rqn, from, to);
            }
        }
        while stage.bed.poll_raw(nic.send_cq).is_some() {}
        for q in 0..nic.rx.len() {
            while stage.bed.poll_raw(nic.rx[q].cq).is_some() {}
        }
    }
    stage.bed.take_frames();
    stage.judge();
}

/// Builds a frame with plausible headers, addressed to this function or to a multicast group, never to the bystanders.
fn frame(input: &mut Bytes<'_>) -> Vec<u8> {
    let kind = input.u8();
    let ethertype = match kind & 3 {
        0 => input.u16(),
        1 => EtherType::IPV6.raw(),
        _ => EtherType::IPV4.raw(),
    };
    let mut eth = Ethernet::zeroed();
    let to = if kind & 4 == 0 { devmodel::identity::mac(0, FID) } else { [0x33, 0x33, 0, 0, 0, kind] };
    eth.set().dst(to).src([2; 6]).ethertype(EtherType::new(ethertype));
    let mut frame = eth.as_bytes().to_vec();
    if kind & 8 != 0 {
        frame.splice(12..12, [0x81, 0, input.u8(), input.u8()]);
    }
    let len = usize::from(input.u16() % 3000);
    let given = input.take(usize::from(kind >> 4) * 4).to_vec();
    let mut ip = match kind & 3 {
        1 => {
            let mut ip = Ipv6::read(&given);
            ip.set().version(6).payload_len(len.saturating_sub(40) as u16);
            ip.as_bytes().to_vec()
        }
        _ => {
            let mut ip = Ipv4::read(&given);
            ip.set().version(4).ihl(5 + (kind >> 7)).total_len(len as u16).fragment_offset(0);
            ip.set().protocol([6, 17, 50, kind][usize::from(kind >> 4) % 4]);
            ip.as_bytes().to_vec()
        }
    };
    ip.resize(len.max(20), kind);
    frame.extend_from_slice(&ip);
    for _ in 0..input.u8() % 4 {
        let (at, flip) = (usize::from(input.u8()), input.u8());
        // The destination address is left as it is, so that no bystander receives the frame.
        if let Some(byte) = frame.get_mut(6 + at) {
            *byte ^= flip;
        }
    }
    frame
}

/// Adds a table with one arbitrary entry in front of `table`.
fn tables(stage: &mut Stage, input: &mut Bytes<'_>, nic: &Nic, table: u32, tir: u32) {
    let Ok(first) = stage.bed.flow_table(nic.fid, input.u8() % 10, Some(table)) else { return };
    let mask = MatchHeaders::read(input.take(64));
    let value = MatchHeaders::read(input.take(64));
    let (start, end, index) = (input.u8() % 20, input.u8() % 20, input.u8() % 20);
    let Ok(group) = stage.bed.flow_group(nic.fid, first, start.into()..=end.into(), mask) else { return };
    let to = match input.u8() % 4 {
        0 => vec![],
        1 => vec![(TO_TABLE, table)],
        2 => vec![(TO_TIR, tir), (TO_TABLE, table)],
        _ => vec![(input.u8(), input.u32() & 0xff_ffff)],
    };
    let _ = stage.bed.flow_entry(nic.fid, (first, group), index.into(), value, &to, &[]);
    let _ = stage.bed.flow_root(nic.fid, Some(first));
    if input.u8() & 1 == 0 {
        let _ = stage.bed.delete_flow_entry(nic.fid, first, index.into());
    }
}
