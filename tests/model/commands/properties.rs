//! For arbitrary bytes written: no panic, a reply, and a function that still works.

use super::*;
use proptest::prelude::*;
use shown::{KINDS, Kind, kinds};

/// Size of the memory that an arbitrary entry points into.
const MEMORY: usize = 64 << 10;

/// All existing opcodes, and some unknown ones.
fn opcode() -> impl Strategy<Value = Opcode> {
    prop_oneof![9 => prop::sample::select(Opcode::ALL), 1 => any::<u16>().prop_map(Opcode::from_raw)]
}

/// Bytes as sent by drivers: mostly zero, with some small numbers.
fn bytes() -> impl Strategy<Value = Vec<u8>> {
    let byte = prop_oneof![6 => Just(0u8), 3 => 0..20u8, 1 => any::<u8>()];
    prop_oneof![prop::collection::vec(byte, 16..700), prop::collection::vec(any::<u8>(), 8..100)]
}

/// Checks that the function still works, after a reset if it was torn down.
fn goes_on(bed: &mut Bed, fid: u8) {
    bed.ok(fid, Opcode::Nop, &CmdIn::zeroed(), 16);
    bed.reset(fid);
    bed.bring_up(fid);
    bed.ok(fid, Opcode::AllocPd, &CmdIn::zeroed(), 16);
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 64, ..ProptestConfig::default() })]

    #[test]
    fn what_a_damaged_creation_makes_is_shown_and_ended(
        changes in prop::collection::vec((0..KINDS, prop::collection::vec((16..0x120usize, any::<u8>()), 0..4)), 1..40),
    ) {
        let mut bed = up();
        let all = kinds(&mut bed);
        for (which, damage) in changes {
            let Kind { create, input, query, destroy, .. } = &all[which];
            let (mut input, sound) = (input.clone(), damage.is_empty());
            for (at, byte) in damage {
                if let Some(place) = input.get_mut(at) {
                    *place = byte;
                }
            }
            let reply = bed.reply_to(0, *create, 0, &input, 16);
            if sound {
                prop_assert_eq!(reply.status(), Status::Ok);
            }
            if reply.status() == Status::Ok {
                let mut name = [0; 16];
                name[8..12].copy_from_slice(&reply.output[8..12]);
                let queried = bed.reply_to(0, *query, 0, &name, 0x400);
                prop_assert_eq!(queried.status(), Status::Ok);
                prop_assert_eq!(bed.reply_to(0, *destroy, 0, &name, 16).status(), Status::Ok);
            }
        }
        goes_on(&mut bed, 0);
    }

    #[test]
    fn any_command_is_answered(
        commands in prop::collection::vec((opcode(), 0..3u16, 0..3u16, bytes(), 8..5000usize), 1..30),
    ) {
        let mut bed = up();
        bed.uid(0);
        let base = bed.base(0);
        bed.cq_by(0, 0, &base);
        for (op, uid, op_mod, mut input, out) in commands {
            if input.len() >= 8 {
                input[6..8].copy_from_slice(&op_mod.to_be_bytes());
            }
            let reply = bed.reply_to(0, op, uid, &input, out);
            prop_assert_eq!(reply.delivery, hwspec::cmd::DeliveryStatus::Ok);
        }
        goes_on(&mut bed, 0);
    }

    #[test]
    fn any_entry_is_answered(
        entry in prop::collection::vec(any::<u8>(), 64),
        kind in prop_oneof![Just(7u8), any::<u8>()],
        lengths in (8..4000u32, 8..4000u32),
        pointers in (0..MEMORY as u64 / 512, 0..MEMORY as u64 / 512),
        mailboxes in prop::collection::vec(any::<u8>(), 8192),
    ) {
        let mut bed = up();
        let memory = bed.memory.alloc(0, MEMORY);
        bed.memory.put(memory + MEMORY as u64 / 2, &mailboxes);
        let mut entry = entry;
        entry[0] = kind;
        entry[4..8].copy_from_slice(&lengths.0.to_be_bytes());
        entry[8..16].copy_from_slice(&(memory + pointers.0 * 512).to_be_bytes());
        entry[0x30..0x38].copy_from_slice(&(memory + pointers.1 * 512).to_be_bytes());
        entry[0x38..0x3c].copy_from_slice(&lengths.1.to_be_bytes());
        entry[63] |= 1;
        bed.memory.put(bed.command_memory(0, 0).0, &entry);
        bed.ring_command(0, 1);
        prop_assert!(!bed.command_entry(0, 0).ownership());
        goes_on(&mut bed, 0);
    }

    #[test]
    fn any_register_access_is_survived(
        accesses in prop::collection::vec((0..3u8, 0..4u8, access_offset(), any::<u64>()), 1..200),
    ) {
        let mut bed = with_vfs();
        let qp = bed.qp(1);
        for (fid, how, offset, value) in accesses {
            match how {
                0 => drop(bed.read32(fid, offset)),
                1 => bed.write32(fid, offset, value as u32),
                2 => bed.write64(fid, offset, value & 0xffff_ffff_0000_0000 | u64::from(qp.qpn) << 8),
                _ => bed.write64(fid, offset, value),
            }
        }
        (0..3).for_each(|fid| bed.reset(fid));
        bed.set_vfs(2);
        (0..3).for_each(|fid| bed.bring_up(fid));
    }

    #[test]
    fn any_configuration_write_is_survived(
        writes in prop::collection::vec((0..4u8, 0..0x240usize, 0..3u32, any::<u32>()), 1..100),
    ) {
        let mut bed = with_vfs();
        for (fid, offset, log_width, value) in writes {
            bed.config_write(fid, offset, 1 << log_width, value);
            bed.config_read(fid, offset, 1 << log_width);
        }
        prop_assert_eq!(bed.config_read(0, 0, 4), 0x1017_15b3);
        bed.reset(0);
        bed.set_vfs(2);
        (0..3).for_each(|fid| bed.bring_up(fid));
    }
}

/// Offsets into BAR0: registers with side effects, and arbitrary offsets.
fn access_offset() -> impl Strategy<Value = u64> {
    let uar = (4..20u64, prop::sample::select(vec![0x20u64, 0x24, 0x40, 0x48, 0x800, 0x804, 0x808, 0x900]));
    prop_oneof![
        uar.prop_map(|(page, at)| page << 12 | at),
        (0..0x40u64).prop_map(|at| at),
        (0x2000..0x3010u64).prop_map(|at| at & !3),
        any::<u64>(),
        (0..(33u64 << 20)).prop_map(|at| at & !7),
    ]
}
