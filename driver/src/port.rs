//! Port registers, as far as the driver reads them (`ACCESS_REG`).

use crate::{error::Error, function::Function};
use hwspec::{
    cmd::{CmdOut, Opcode, adapter::*},
    context::port::*,
    layout::Layout,
};

/// `ibv_port_attr.active_speed`: signalling rates of one lane.
const SDR: u8 = 1;
const DDR: u8 = 2;
const QDR: u8 = 4;
const FDR: u8 = 16;
const EDR: u8 = 32;
const HDR: u8 = 64;
const NDR: u8 = 128;
/// `ibv_port_attr.active_width`.
const X1: u8 = 1;
const X4: u8 = 2;
const X8: u8 = 4;
const X12: u8 = 8;
const X2: u8 = 16;

/// The port's speed in terms of verbs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Speed {
    /// `active_speed`.
    pub lane: u8,
    /// `active_width`.
    pub width: u8,
}

impl Speed {
    /// Reported for a link with a speed that verbs have no value for.
    const UNKNOWN: Self = Self { lane: QDR, width: X4 };
    /// Reported for a port with registers that this function may not read.
    pub const UNREADABLE: Self = Self { lane: EDR, width: X4 };
}

fn read<R: Layout>(function: &Function, id: u16, register: R) -> Result<R, Error> {
    let input = AccessRegisterIn::with(|s| s.op_mod(READ).register_id(id));
    let mut bytes = input.as_bytes().to_vec();
    bytes[..2].copy_from_slice(&Opcode::AccessReg.raw().to_be_bytes());
    bytes.extend_from_slice(register.bytes());
    let mut output = vec![0; CmdOut::SIZE + R::SIZE];
    function.execute(Opcode::AccessReg, &bytes, &mut output)?;
    Ok(R::read(&output[CmdOut::SIZE..]))
}

/// The port's operational MTU, layer 2 included.
pub fn mtu(function: &Function) -> Result<u16, Error> {
    let register = Pmtu::with(|s| s.local_port(1));
    Ok(read(function, PMTU, register)?.oper_mtu())
}

/// The port's operational speed.
pub fn speed(function: &Function) -> Result<Speed, Error> {
    let ethernet = function.is_ethernet();
    let register =
        Ptys::with(|s| s.local_port(1).proto_mask(if ethernet { PROTO_ETHERNET } else { PROTO_INFINIBAND }));
    let found = read(function, PTYS, register)?;
    Ok(match ethernet {
        true if found.ext_eth_proto_capability() != 0 => extended(found.ext_eth_proto_oper()),
        true => legacy(found.eth_proto_oper()),
        false => infiniband(found.ib_link_width_oper(), found.ib_proto_oper()),
    })
}

/// The only bit of an operational protocol mask. Links with several bits set have no defined speed.
fn only(mask: u32) -> Option<u32> {
    mask.is_power_of_two().then(|| mask.trailing_zeros())
}

/// Speed by `mlx5e_link_mode`.
fn legacy(oper: u32) -> Speed {
    let (lane, width) = match only(oper) {
        Some(0 | 1 | 24 | 25) => (SDR, X1),
        Some(2..=4 | 12..=14 | 26) => (QDR, X1),
        Some(27..=29) => (EDR, X1),
        Some(6 | 7 | 15 | 16) => (QDR, X4),
        Some(18 | 30 | 31) => (HDR, X1),
        Some(8) => (FDR, X4),
        Some(20..=23) => (EDR, X4),
        _ => return Speed::UNKNOWN,
    };
    Speed { lane, width }
}

/// Speed by `mlx5e_ext_link_mode`.
fn extended(oper: u32) -> Speed {
    let (lane, width) = match only(oper) {
        Some(0 | 1) => (SDR, X1),
        Some(3) => (DDR, X1),
        Some(4) => (QDR, X1),
        Some(5) => (QDR, X4),
        Some(6) => (EDR, X1),
        Some(7) => (EDR, X2),
        Some(8) => (HDR, X1),
        Some(9) => (EDR, X4),
        Some(10) => (HDR, X2),
        Some(11) => (NDR, X1),
        Some(12) => (HDR, X4),
        Some(13) => (NDR, X2),
        Some(15) => (HDR, X8),
        Some(16) => (NDR, X4),
        Some(19) => (NDR, X8),
        _ => return Speed::UNKNOWN,
    };
    Speed { lane, width }
}

/// Both fields are one-hot; the lane's values are those of verbs. Speeds beyond the range of the byte are reported as
/// its fastest.
fn infiniband(width: u16, lane: u16) -> Speed {
    let width = match width {
        1 => X1,
        2 => X2,
        4 => X4,
        8 => X8,
        16 => X12,
        _ => return Speed::UNKNOWN,
    };
    match lane.is_power_of_two() {
        true => Speed { lane: u8::try_from(lane).unwrap_or(NDR), width },
        false => Speed::UNKNOWN,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn speeds_are_those_that_the_linux_driver_says() {
        let gigabits = |speed: Speed| {
            let lane = match speed.lane {
                SDR => 25,
                DDR => 50,
                QDR => 100,
                FDR => 140,
                EDR => 250,
                HDR => 500,
                _ => 1000,
            };
            let lanes = [(X1, 1), (X2, 2), (X4, 4), (X8, 8), (X12, 12)];
            lane * lanes.into_iter().find(|(width, _)| *width == speed.width).map_or(0, |(_, lanes)| lanes)
                / 10
        };
        assert_eq!([1 << 4, 1 << 27, 1 << 6, 1 << 20].map(|bits| gigabits(legacy(bits))), [10, 25, 40, 100]);
        let modes = [6, 8, 9, 11, 12, 16];
        assert_eq!(modes.map(|bit| gigabits(extended(1 << bit))), [25, 50, 100, 100, 200, 400]);
        assert_eq!(gigabits(infiniband(4, 64)), 200);
        // There is no value for 20 Gb/s, for no link, or for several bits at once.
        assert_eq!([1 << 5, 0, 3].map(legacy), [Speed::UNKNOWN; 3]);
        assert_eq!([infiniband(3, 32), infiniband(4, 33)], [Speed::UNKNOWN; 2]);
    }
}
