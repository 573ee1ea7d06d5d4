//! The settings that a driver made for the port's congestion control.

use crate::transport::Dcqcn;
use hwspec::{
    cmd::congestion::{notification_field as np, reaction_field as rp},
    context::congestion::{CongProtocol, RoceNotificationPoint, RoceReactionPoint},
};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout};

/// Bits of `field_select` that have a meaning, and one more.
const FIELDS: usize = 17;
/// Index of a notification point's `cnp_802p_prio` value, which is set together with `cnp_prio_mode`.
const PRIORITY: u32 = np::CNP_PRIO_MODE + 1;

/// Parameters set by `MODIFY_CONG_PARAMS`, and priorities switched off by `MODIFY_CONG_STATUS`: of reaction points, then of notification
/// points. Zeros are the adapter's initial settings.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, FromBytes, IntoBytes, KnownLayout, Immutable)]
#[repr(C)]
pub struct CongestionRow {
    /// The parameters that were set: bits of the command's `field_select`.
    pub set: [u32; 2],
    /// Priorities that are switched off, one bit each.
    pub off: [u32; 2],
    /// Values, indexed by the bits of `set`.
    pub values: [[u32; FIELDS]; 2],
    /// Padding to whole cache lines.
    pub reserved: [u32; 10],
}

impl CongestionRow {
    /// The index of `protocol` in the arrays above, if the port supports it.
    pub(crate) fn place(protocol: CongProtocol) -> Option<usize> {
        match protocol {
            CongProtocol::RoceRp => Some(0),
            CongProtocol::RoceNp => Some(1),
            _ => None,
        }
    }

    /// Sets the parameters of a reaction point that `select` names. False if it names unknown ones or a value is out of range; then no
    /// parameter changes.
    pub(crate) fn set_reaction(&mut self, select: u32, p: &RoceReactionPoint) -> bool {
        let any = 0..=u32::MAX;
        let given = [
            (rp::CLAMP_TGT_RATE, p.clamp_tgt_rate().into(), any.clone()),
            (rp::CLAMP_TGT_RATE_AFTER_TIME_INC, p.clamp_tgt_rate_after_time_inc().into(), any.clone()),
            (rp::RPG_TIME_RESET, p.rpg_time_reset(), 1..=u32::MAX),
            (rp::RPG_BYTE_RESET, p.rpg_byte_reset(), 1..=u32::MAX),
            (rp::RPG_THRESHOLD, p.rpg_threshold(), 0..=u8::MAX.into()),
            (rp::RPG_MAX_RATE, p.rpg_max_rate(), any.clone()),
            (rp::RPG_AI_RATE, p.rpg_ai_rate(), any.clone()),
            (rp::RPG_HAI_RATE, p.rpg_hai_rate(), any.clone()),
            (rp::RPG_GD, p.rpg_gd(), 0..=31),
            (rp::RPG_MIN_DEC_FAC, p.rpg_min_dec_fac(), 0..=100),
            (rp::RPG_MIN_RATE, p.rpg_min_rate(), any.clone()),
            (rp::RATE_TO_SET_ON_FIRST_CNP, p.rate_to_set_on_first_cnp(), any.clone()),
            (rp::DCE_TCP_G, p.dce_tcp_g(), 0..=1023),
            (rp::DCE_TCP_RTT, p.dce_tcp_rtt(), 1..=u32::MAX),
            (rp::RATE_REDUCE_MONITOR_PERIOD, p.rate_reduce_monitor_period(), any),
            (rp::INITIAL_ALPHA_VALUE, p.initial_alpha_value(), 0..=1023),
        ];
        self.take(0, select, &given)
    }

    /// Like [`set_reaction`](Self::set_reaction) for a notification point.
    pub(crate) fn set_notification(&mut self, select: u32, p: &RoceNotificationPoint) -> bool {
        let any = 0..=u32::MAX;
        let given = [
            (np::MIN_TIME_BETWEEN_CNPS, p.min_time_between_cnps(), any.clone()),
            (np::CNP_DSCP, p.cnp_dscp().into(), any.clone()),
            (np::CNP_PRIO_MODE, p.cnp_prio_mode().into(), any),
        ];
        let taken = self.take(1, select, &given);
        if taken && select >> np::CNP_PRIO_MODE & 1 != 0 {
            self.values[1][PRIORITY as usize] = p.cnp_802p_prio().into();
        }
        taken
    }

    fn take(
        &mut self,
        place: usize,
        select: u32,
        given: &[(u32, u32, std::ops::RangeInclusive<u32>)],
    ) -> bool {
        let chosen = || given.iter().filter(|(bit, ..)| select >> bit & 1 != 0);
        let known = given.iter().fold(0, |all, (bit, ..)| all | 1 << bit);
        if select & !known != 0 || chosen().any(|(_, value, range)| !range.contains(value)) {
            return false;
        }
        self.set[place] |= select;
        chosen().for_each(|(bit, value, _)| self.values[place][*bit as usize] = *value);
        true
    }

    /// Overrides the values of `p` that were set.
    pub(crate) fn apply(&self, p: &mut Dcqcn) {
        let of = |place: usize, bit: u32| {
            (self.set[place] >> bit & 1 != 0).then_some(self.values[place][bit as usize])
        };
        fn set<T: TryFrom<u32>>(to: &mut T, value: Option<u32>) {
            if let Some(value) = value.and_then(|value| value.try_into().ok()) {
                *to = value;
            }
        }
        let flag = |to: &mut bool, value: Option<u32>| *to = value.map_or(*to, |value| value != 0);
        flag(&mut p.clamp_tgt_rate, of(0, rp::CLAMP_TGT_RATE));
        flag(&mut p.clamp_tgt_rate_after_time_inc, of(0, rp::CLAMP_TGT_RATE_AFTER_TIME_INC));
        set(&mut p.rpg_time_reset, of(0, rp::RPG_TIME_RESET));
        set(&mut p.rpg_byte_reset, of(0, rp::RPG_BYTE_RESET));
        set(&mut p.rpg_threshold, of(0, rp::RPG_THRESHOLD));
        set(&mut p.rpg_max_rate, of(0, rp::RPG_MAX_RATE));
        set(&mut p.rpg_ai_rate, of(0, rp::RPG_AI_RATE));
        set(&mut p.rpg_hai_rate, of(0, rp::RPG_HAI_RATE));
        set(&mut p.rpg_gd, of(0, rp::RPG_GD));
        set(&mut p.rpg_min_dec_fac, of(0, rp::RPG_MIN_DEC_FAC));
        set(&mut p.rpg_min_rate, of(0, rp::RPG_MIN_RATE));
        set(&mut p.rate_to_set_on_first_cnp, of(0, rp::RATE_TO_SET_ON_FIRST_CNP));
        set(&mut p.dce_tcp_g, of(0, rp::DCE_TCP_G));
        set(&mut p.dce_tcp_rtt, of(0, rp::DCE_TCP_RTT));
        set(&mut p.rate_reduce_monitor_period, of(0, rp::RATE_REDUCE_MONITOR_PERIOD));
        set(&mut p.initial_alpha_value, of(0, rp::INITIAL_ALPHA_VALUE));
        set(&mut p.min_time_between_cnps, of(1, np::MIN_TIME_BETWEEN_CNPS));
        set(&mut p.cnp_dscp, of(1, np::CNP_DSCP));
        flag(&mut p.cnp_prio_mode, of(1, np::CNP_PRIO_MODE));
        if of(1, np::CNP_PRIO_MODE).is_some() {
            p.cnp_802p_prio = self.values[1][PRIORITY as usize] as u8 & 7;
        }
        (p.rp_off, p.np_off) = (self.off[0] as u8, self.off[1] as u8);
    }
}
