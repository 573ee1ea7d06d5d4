//! ACK extended transport header: syndrome, credits, RNR timers (IBTA 9.7.5.2).
use crate::handle::Psn;
use crate::hw_layout;
use crate::layout::Bits;

hw_layout! {
    /// NAK code (IBTA table 45).
    pub enum NakCode: u8, 5 bits {
        PsnSequence = 0,
        InvalidRequest = 1,
        RemoteAccess = 2,
        RemoteOperational = 3,
        InvalidRd = 4,
    }
}

/// AETH syndrome.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Syndrome {
    /// ACK with a credit code, decoded by [`credits`].
    Ack(u8),
    /// Receiver not ready, with a timer code, decoded by [`rnr_ns`].
    RnrNak(u8),
    /// Negative acknowledge.
    Nak(NakCode),
    /// A reserved value, with the raw byte.
    Reserved(u8),
}

/// The credit code without a credit count: end-to-end flow control is not used.
pub const NO_CREDITS: u8 = 0x1f;

impl Syndrome {
    /// An ACK without a credit count.
    pub const ACK: Self = Self::Ack(NO_CREDITS);
}

impl Bits for Syndrome {
    const WIDTH: usize = 8;
    #[inline(always)]
    fn from_bits(raw: u64) -> Self {
        let low = raw as u8 & 0x1f;
        match raw >> 5 {
            0 => Self::Ack(low),
            1 => Self::RnrNak(low),
            3 => Self::Nak(NakCode::from_raw(low)),
            _ => Self::Reserved(raw as u8),
        }
    }
    #[inline(always)]
    fn into_bits(self) -> u64 {
        let raw = match self {
            Self::Ack(code) => code & 0x1f,
            Self::RnrNak(timer) => 0x20 | timer & 0x1f,
            Self::Nak(code) => 0x60 | code.raw() & 0x1f,
            Self::Reserved(raw) => raw,
        };
        raw.into()
    }
}

hw_layout! {
    /// AETH of acknowledges, and of READ and atomic responses.
    pub struct Aeth: 4 {
        0x00 [31:24] syndrome: Syndrome,
        /// Message sequence number: number of messages completed by the responder, modulo 2^24.
        0x00 [23: 0] msn: Psn,
    }
}

/// RNR timer codes in nanoseconds (IBTA table 46).
pub const RNR_TIMER_NS: [u64; 32] = {
    const HUNDREDTHS_MS: [u64; 32] = [
        65536, 1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64, 96, 128, 192, 256, 384, 512, 768, 1024, 1536, 2048,
        3072, 4096, 6144, 8192, 12288, 16384, 24576, 32768, 49152,
    ];
    let mut ns = [0; 32];
    let mut code = 0;
    while code < 32 {
        ns[code] = HUNDREDTHS_MS[code] * 10_000;
        code += 1;
    }
    ns
};

/// Nanoseconds for RNR timer `code` (its low 5 bits).
#[inline]
pub const fn rnr_ns(code: u8) -> u64 {
    RNR_TIMER_NS[(code & 0x1f) as usize]
}

/// Number of receive WQEs for credit `code`, `None` if it carries no count (IBTA table 48).
#[inline]
pub const fn credits(code: u8) -> Option<u32> {
    match code & 0x1f {
        NO_CREDITS => None,
        n if n < 2 => Some(n as u32),
        n if n % 2 == 0 => Some(1 << (n / 2)),
        n => Some(3 << ((n - 3) / 2)),
    }
}

/// The largest credit code for no more than `wqes` receive WQEs.
#[inline]
pub const fn credit_code(wqes: u32) -> u8 {
    let mut code = 30;
    while let Some(n) = credits(code) {
        if n <= wqes {
            break;
        }
        code -= 1;
    }
    code
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn syndromes_have_the_codes_of_the_specification() {
        for (syndrome, byte) in [
            (Syndrome::Ack(0), 0x00),
            (Syndrome::ACK, 0x1f),
            (Syndrome::RnrNak(25), 0x39),
            (Syndrome::Nak(NakCode::PsnSequence), 0x60),
            (Syndrome::Nak(NakCode::InvalidRequest), 0x61),
            (Syndrome::Nak(NakCode::RemoteAccess), 0x62),
            (Syndrome::Nak(NakCode::RemoteOperational), 0x63),
            (Syndrome::Nak(NakCode::InvalidRd), 0x64),
        ] {
            assert_eq!(syndrome.into_bits(), byte);
            assert_eq!(Syndrome::from_bits(byte), syndrome);
        }
        for byte in 0..=255 {
            assert_eq!(Syndrome::from_bits(byte).into_bits(), byte);
        }
    }

    #[test]
    fn rnr_timers_are_those_of_the_table() {
        assert_eq!(rnr_ns(0), 655_360_000);
        assert_eq!(rnr_ns(1), 10_000);
        assert_eq!(rnr_ns(14), 1_280_000);
        assert_eq!(rnr_ns(25), 61_440_000);
        assert_eq!(rnr_ns(31), 491_520_000);
        assert!(RNR_TIMER_NS[1..].is_sorted());
    }

    #[test]
    fn credit_codes_are_those_of_the_table() {
        let table = [0, 1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64, 96, 128, 192];
        for (code, count) in table.iter().enumerate() {
            assert_eq!(credits(code as u8), Some(*count));
            assert_eq!(credit_code(*count), code as u8);
        }
        assert_eq!(credits(30), Some(32768));
        assert_eq!(credits(31), None);
        assert_eq!(credit_code(5), 4);
        assert_eq!(credit_code(u32::MAX), 30);
    }
}
