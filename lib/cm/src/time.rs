//! Time, and its encoding as exponents in messages.
use core::time::Duration;

/// Time since an instant chosen by the caller.
pub type Time = Duration;

/// The duration 4.096 us x 2^`exponent`, with Linux's rounding: 2^(`exponent` - 8) ms, at least 1 ms.
pub fn duration(exponent: u8) -> Duration {
    Duration::from_millis(1 << u32::from(exponent & 31).saturating_sub(8))
}

/// The exponent for a QP's acknowledge timeout: twice the packet life time plus the peer's delay (IBTA 12.7.34). The
/// sum of two powers is approximated by the larger one, doubled if the other is at least half of it.
pub fn ack_timeout(ack_delay: u8, packet_life_time: u8) -> u8 {
    let there_and_back = packet_life_time.saturating_add(1);
    let (large, small) = match there_and_back >= ack_delay {
        true => (there_and_back, ack_delay),
        false => (ack_delay, there_and_back),
    };
    let up = u8::from(small >= large.saturating_sub(1));
    large.saturating_add(up).min(31)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn timeouts_are_those_linux_computes() {
        assert_eq!(duration(20), Duration::from_millis(4096));
        assert_eq!(duration(0), Duration::from_millis(1));
        assert_eq!(duration(31), Duration::from_millis(1 << 23));
        assert_eq!(ack_timeout(0, 18), 19);
        assert_eq!(ack_timeout(18, 18), 20);
        assert_eq!(ack_timeout(24, 18), 24);
        assert_eq!(ack_timeout(31, 31), 31);
    }
}
