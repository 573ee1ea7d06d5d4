//! Object numbers, each with its own type, so that a CQ number cannot be mistaken for a QP number.

use crate::layout::Bits;

macro_rules! handle { ($($(#[$m:meta])* $H:ident: $width:literal bits;)*) => { $(
    $(#[$m])*
    #[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
    #[repr(transparent)]
    pub struct $H(pub u32);
    impl Bits for $H {
        const WIDTH: usize = $width;
        #[inline(always)]
        fn from_bits(raw: u64) -> Self { Self(raw as u32) }
        #[inline(always)]
        fn into_bits(self) -> u64 { self.0.into() }
    }
    impl core::fmt::Display for $H {
        fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result { write!(f, "{:#x}", self.0) }
    }
)* } }

handle! {
    /// Queue pair number.
    Qpn: 24 bits;
    /// Completion queue number.
    Cqn: 24 bits;
    /// Event queue number.
    Eqn: 8 bits;
    /// Shared receive queue number.
    Srqn: 24 bits;
    /// Protection domain number.
    Pdn: 24 bits;
    /// User access region (doorbell page) number.
    Uarn: 24 bits;
    /// XRC domain number.
    Xrcdn: 24 bits;
    /// Memory key: a 24-bit index and 8 bits chosen by the owner.
    Mkey: 32 bits;
}

impl Mkey {
    /// The key with `index` and the low byte `variant`.
    pub const fn new(index: u32, variant: u8) -> Self {
        Self(index << 8 | variant as u32)
    }
    /// Index into the mkey table.
    pub const fn index(self) -> u32 {
        self.0 >> 8
    }
    /// The low byte, which must match for the key to be valid.
    pub const fn variant(self) -> u8 {
        self.0 as u8
    }
}

/// Packet sequence number: 24 bits, compared in a window of 2^23 (IBTA 9.7.1).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
#[repr(transparent)]
pub struct Psn(u32);

impl Psn {
    /// The low 24 bits of `raw`.
    pub const fn new(raw: u32) -> Self {
        Self(raw & 0xff_ffff)
    }
    /// The number, 0..2^24.
    pub const fn get(self) -> u32 {
        self.0
    }
    /// `self + n` modulo 2^24.
    #[must_use]
    pub const fn add(self, n: u32) -> Self {
        Self::new(self.0.wrapping_add(n))
    }
    /// How far `self` is ahead of `other`: negative if behind, in -2^23..2^23.
    pub const fn ahead_of(self, other: Self) -> i32 {
        ((self.0.wrapping_sub(other.0) << 8) as i32) >> 8
    }
}

impl Bits for Psn {
    const WIDTH: usize = 24;
    #[inline(always)]
    fn from_bits(raw: u64) -> Self {
        Self::new(raw as u32)
    }
    #[inline(always)]
    fn into_bits(self) -> u64 {
        self.0.into()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn psn_wraps_and_compares_in_a_window() {
        let last = Psn::new(0xff_ffff);
        assert_eq!(last.add(1), Psn::new(0));
        assert_eq!(Psn::new(0).ahead_of(last), 1);
        assert_eq!(last.ahead_of(Psn::new(0)), -1);
        assert_eq!(Psn::new(0x80_0000).ahead_of(Psn::new(0)), -0x80_0000);
        assert_eq!(Psn::new(0x7f_ffff).ahead_of(Psn::new(0)), 0x7f_ffff);
    }
}
