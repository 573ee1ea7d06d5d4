//! Congestion control of a connection: DCQCN (Zhu et al., "Congestion Control for Large-Scale RDMA Deployments", SIGCOMM 2015, section 3;
//! annex A17.9.3 specifies the notifications). The notification point reports marked packets to the sender. The sender's reaction point
//! then keeps a rate, which it cuts according to the frequency of notifications and raises in their absence.
//!
//! A connection that was never notified has no reaction point and pays nothing for it. Nothing here runs by itself: the effects of elapsed
//! time are applied when the next packet is to be sent.

use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout};

/// Picoseconds per microsecond.
const US: u64 = 1_000_000;
/// Rate steps per Mb/s.
const STEPS: u32 = 1 << 8;

/// Parameters of DCQCN, named as in the vendor's drivers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Dcqcn {
    /// The port's rate, Mb/s.
    pub line_rate: u32,
    /// Minimum time between two notifications of a connection, us.
    pub min_time_between_cnps: u32,
    /// DSCP of notifications.
    pub cnp_dscp: u8,
    /// True: notifications have the priority of their queue pair; false: that of the next field.
    pub cnp_prio_mode: bool,
    /// Priority of notifications in a VLAN.
    pub cnp_802p_prio: u8,
    /// Priorities with notification switched off at the receiver, one bit each.
    pub np_off: u8,
    /// Priorities with reaction to notifications switched off at the sender, one bit each.
    pub rp_off: u8,
    /// Share of `alpha` that is kept at each update, in 1024ths.
    pub dce_tcp_g: u16,
    /// Time between updates of `alpha`, us.
    pub dce_tcp_rtt: u32,
    /// Initial `alpha` at the first notification, in 1024ths.
    pub initial_alpha_value: u16,
    /// Rate assumed at the first notification, Mb/s; 0 is the maximum.
    pub rate_to_set_on_first_cnp: u32,
    /// A cut reduces the rate by the fraction `alpha` / 2^`rpg_gd`.
    pub rpg_gd: u8,
    /// Minimum time between two cuts, us.
    pub rate_reduce_monitor_period: u32,
    /// Minimum share of the rate that a cut leaves, in hundredths.
    pub rpg_min_dec_fac: u8,
    /// Minimum rate after a cut, Mb/s.
    pub rpg_min_rate: u32,
    /// Rate at which the limit is lifted, Mb/s; 0 is the port's rate.
    pub rpg_max_rate: u32,
    /// Every cut sets the target to the rate before it; otherwise only a cut after an increase by bytes does.
    pub clamp_tgt_rate: bool,
    /// A cut after an increase by time sets the target, too.
    pub clamp_tgt_rate_after_time_inc: bool,
    /// Time between two increases, us.
    pub rpg_time_reset: u32,
    /// Bytes sent between two increases.
    pub rpg_byte_reset: u32,
    /// Number of increases before the target is raised, too.
    pub rpg_threshold: u8,
    /// Additive increase of the target, Mb/s.
    pub rpg_ai_rate: u32,
    /// Hyper increase of the target, once increases by bytes and by time have both exceeded the threshold, Mb/s.
    pub rpg_hai_rate: u32,
    /// Period, us, whose unused rate may be made up for, because a busy host wakes up late.
    pub burst: u32,
}

impl Dcqcn {
    /// The values proposed by the paper (section 5.2), which leaves the hyper increase open; here it is ten times the additive one.
    pub const PAPER: Self = Self {
        line_rate: 100_000,
        min_time_between_cnps: 50,
        cnp_dscp: 48,
        cnp_prio_mode: false,
        cnp_802p_prio: 6,
        np_off: 0,
        rp_off: 0,
        rate_to_set_on_first_cnp: 0,
        rpg_gd: 11,
        rpg_max_rate: 0,
        clamp_tgt_rate_after_time_inc: true,
        dce_tcp_g: 1020,
        dce_tcp_rtt: 55,
        initial_alpha_value: 1023,
        rate_reduce_monitor_period: 50,
        rpg_min_dec_fac: 50,
        rpg_min_rate: 10,
        clamp_tgt_rate: true,
        rpg_time_reset: 55,
        rpg_byte_reset: 10_000_000,
        rpg_threshold: 5,
        rpg_ai_rate: 40,
        rpg_hai_rate: 400,
        burst: 100,
    };

    /// The default values of the vendor's drivers. Senders react within microseconds, and are back at half of their previous rate after
    /// 300 us.
    pub const DRIVER: Self = Self {
        min_time_between_cnps: 4,
        dce_tcp_g: 1019,
        dce_tcp_rtt: 1,
        rate_reduce_monitor_period: 4,
        rpg_min_rate: 1,
        clamp_tgt_rate: false,
        rpg_time_reset: 300,
        rpg_byte_reset: 32767,
        rpg_threshold: 1,
        rpg_ai_rate: 5,
        rpg_hai_rate: 50,
        ..Self::PAPER
    };
}

impl Dcqcn {
    /// The maximum rate of a limited connection, in steps: at this rate the limit is lifted.
    fn most(&self) -> u32 {
        let most =
            if self.rpg_max_rate == 0 { self.line_rate } else { self.rpg_max_rate.min(self.line_rate) };
        most.saturating_mul(STEPS)
    }
}

impl Default for Dcqcn {
    fn default() -> Self {
        Self::PAPER
    }
}

/// The notification point of a connection: it reports marked packets to the peer, but not each of them.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, FromBytes, IntoBytes, KnownLayout, Immutable)]
#[repr(C)]
pub struct Notifier {
    /// No notification before this time, ps.
    pub after: u64,
}

impl Notifier {
    /// Handles the arrival of a packet with a congestion mark. True if the peer is to be notified now.
    pub(crate) fn on_mark(&mut self, now: u64, p: &Dcqcn) -> bool {
        let due = now >= self.after;
        if due {
            self.after = now + u64::from(p.min_time_between_cnps) * US;
        }
        due
    }
}

/// The reaction point of a connection: its send rate. Rates are in 256ths of a Mb/s.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, FromBytes, IntoBytes, KnownLayout, Immutable)]
#[repr(C)]
pub struct Congestion {
    /// Time at which the next packet may be sent, ps.
    pub next: u64,
    /// Time of the latest cut, ps.
    pub cut_at: u64,
    /// Time up to which `alpha` was updated, ps.
    pub alpha_at: u64,
    /// Time of the latest increase by time, or start of the period for the next, ps.
    pub raised_at: u64,
    /// The current rate; 0 is no reaction point.
    pub rate: u32,
    /// The rate to return to.
    pub target: u32,
    /// Bytes sent since the latest increase by bytes.
    pub bytes: u32,
    /// Estimate of recent congestion, in 1024ths.
    pub alpha: u16,
    /// Increases by time since the latest cut.
    pub times: u8,
    /// Increases by bytes since the latest cut.
    pub fills: u8,
}

impl Congestion {
    /// Maximum number of increases by time that are made up for at once. That many of the fastest kind bring any rate to the line rate.
    const MOST_RAISES: u64 = 2048;

    /// Handles a congestion notification from the peer at `now`.
    pub(crate) fn on_cnp(&mut self, now: u64, p: &Dcqcn) {
        let line = p.most();
        self.pass(now, p);
        let is_new = self.rate == 0;
        if is_new {
            let first = p.rate_to_set_on_first_cnp.saturating_mul(STEPS);
            self.rate = if first == 0 { line } else { first.min(line) };
            (self.target, self.alpha) = (line, p.initial_alpha_value.min(1024));
            self.next = now;
        } else {
            let g = u32::from(p.dce_tcp_g.min(1024));
            self.alpha = ((u32::from(self.alpha) * g / 1024 + 1024 - g) as u16).min(1023);
            self.alpha_at = now;
            if now < self.cut_at + u64::from(p.rate_reduce_monitor_period) * US {
                return;
            }
        }
        let raised = self.fills > 0 || p.clamp_tgt_rate_after_time_inc && self.times > 0;
        if !is_new && (p.clamp_tgt_rate || raised) {
            self.target = self.rate;
        }
        let whole = 1u64 << p.rpg_gd.min(31);
        let left = (u64::from(self.rate) * whole.saturating_sub(self.alpha.into()) / whole) as u32;
        let least = (u64::from(self.rate) * u64::from(p.rpg_min_dec_fac.min(100)) / 100) as u32;
        self.rate = left.max(least).max(p.rpg_min_rate.max(1).saturating_mul(STEPS)).min(line);
        (self.bytes, self.times, self.fills) = (0, 0, 0);
        (self.cut_at, self.alpha_at, self.raised_at) = (now, now, now);
    }

    /// Accounts for `bytes` sent at `now`.
    pub(crate) fn on_send(&mut self, now: u64, bytes: u64, p: &Dcqcn) {
        if self.rate == 0 {
            return;
        }
        let since = self.next.max(now.saturating_sub(u64::from(p.burst) * US));
        // A byte at 1 Mb/s takes 8 us.
        self.next = since + bytes * 8 * US * u64::from(STEPS) / u64::from(self.rate);
        self.bytes = self.bytes.saturating_add(bytes as u32);
        while self.rate != 0 && self.bytes >= p.rpg_byte_reset.max(1) {
            self.bytes -= p.rpg_byte_reset.max(1);
            self.fills = self.fills.saturating_add(1);
            self.raise(now, p);
        }
    }

    /// If the next packet has to wait at `now`: the time to check again, which is its send time or the next increase by time, whichever
    /// comes first.
    pub(crate) fn waits(&mut self, now: u64, p: &Dcqcn) -> Option<u64> {
        self.pass(now, p);
        let raise = self.raised_at + u64::from(p.rpg_time_reset.max(1)) * US;
        (self.rate != 0 && self.next > now).then_some(self.next.min(raise))
    }

    /// True if the rate is back at the line rate, so that no state has to be kept.
    pub(crate) fn is_over(&self) -> bool {
        self.rate == 0
    }

    /// Applies the effects of the time elapsed until `now`.
    fn pass(&mut self, now: u64, p: &Dcqcn) {
        if self.rate == 0 {
            return;
        }
        let period = u64::from(p.dce_tcp_rtt.max(1)) * US;
        let mut updates = now.saturating_sub(self.alpha_at) / period;
        self.alpha_at += updates * period;
        while updates > 0 && self.alpha > 0 {
            // Rounded down, so that the loop ends.
            self.alpha = (u32::from(self.alpha) * u32::from(p.dce_tcp_g.min(1023)) / 1024) as u16;
            updates -= 1;
        }
        let period = u64::from(p.rpg_time_reset.max(1)) * US;
        let raises = now.saturating_sub(self.raised_at) / period;
        for _ in 0..raises.min(Self::MOST_RAISES) {
            self.raised_at += period;
            self.times = self.times.saturating_add(1);
            self.raise(self.raised_at, p);
            if self.rate == 0 {
                return;
            }
        }
        if raises > Self::MOST_RAISES {
            *self = Self::default();
        }
    }

    /// Raises the rate at `now`, by time or bytes.
    fn raise(&mut self, now: u64, p: &Dcqcn) {
        let line = p.most();
        let (least, most) = (self.times.min(self.fills), self.times.max(self.fills));
        let by = if least > p.rpg_threshold {
            p.rpg_hai_rate.saturating_mul((least - p.rpg_threshold).into())
        } else if most > p.rpg_threshold {
            p.rpg_ai_rate
        } else {
            0
        };
        self.target = self.target.saturating_add(by.saturating_mul(STEPS)).min(line);
        let before = u64::from(self.rate);
        self.rate = (before + u64::from(self.target)).div_ceil(2) as u32;
        // The remaining wait shrinks in proportion.
        let left = self.next.saturating_sub(now);
        self.next -= left - (u128::from(left) * u128::from(before) / u128::from(self.rate.max(1))) as u64;
        // Within a thousandth of the line rate, the limit is lifted.
        if self.rate >= line - line / 1000 {
            *self = Self::default();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn mbps(c: &Congestion) -> u32 {
        c.rate / STEPS
    }

    #[test]
    fn notifications_keep_their_distance() {
        let (mut notifier, p) = (Notifier::default(), Dcqcn::default());
        assert!(notifier.on_mark(7, &p));
        assert!(!notifier.on_mark(7, &p) && !notifier.on_mark(7 + 50 * US - 1, &p));
        assert!(notifier.on_mark(7 + 50 * US, &p));
        assert!(!notifier.on_mark(8 + 50 * US, &p));
    }

    #[test]
    fn the_first_notification_halves_the_rate_and_later_ones_cut_less() {
        let (mut c, p) = (Congestion::default(), Dcqcn::DRIVER);
        assert_eq!(c.waits(0, &p), None);
        c.on_cnp(0, &p);
        // Alpha is 1023/1024.
        assert_eq!(mbps(&c), 50_048);
        c.on_cnp(3 * US, &p);
        assert_eq!(mbps(&c), 50_048, "within the period of a cut");
        // In the absence of notifications alpha decays, so the same notification cuts less.
        c.on_cnp(200 * US, &p);
        assert!((40_000..45_000).contains(&mbps(&c)), "{}", mbps(&c));
    }

    #[test]
    fn what_is_set_of_the_first_rate_the_most_and_the_share_of_a_cut_holds() {
        let cut = |p: Dcqcn| {
            let mut c = Congestion::default();
            c.on_cnp(0, &p);
            mbps(&c)
        };
        assert_eq!(cut(Dcqcn { rpg_gd: 12, ..Dcqcn::DRIVER }), 75_024);
        assert_eq!(cut(Dcqcn { rpg_gd: 10, ..Dcqcn::DRIVER }), 50_000, "not below rpg_min_dec_fac");
        assert_eq!(cut(Dcqcn { rpg_max_rate: 40_000, ..Dcqcn::DRIVER }), 20_019);
        assert_eq!(cut(Dcqcn { rate_to_set_on_first_cnp: 1000, ..Dcqcn::DRIVER }), 500);
        // At its maximum, the rate is no longer limited.
        let p = Dcqcn { rpg_max_rate: 40_000, ..Dcqcn::DRIVER };
        let mut c = Congestion::default();
        c.on_cnp(0, &p);
        assert!(c.waits(1_000_000 * US, &p).is_none() && c.is_over());
    }

    #[test]
    fn packets_keep_the_distance_of_the_rate() {
        let p = Dcqcn { burst: 0, rpg_time_reset: u32::MAX, ..Dcqcn::default() };
        let mut c = Congestion::default();
        c.on_cnp(0, &p);
        let mut now = 0;
        for _ in 0..100 {
            now = c.waits(now, &p).unwrap_or(now);
            c.on_send(now, 4096, &p);
        }
        let gbps = 99.0 * 4096.0 * 8e3 / now as f64;
        assert!((49.9..50.2).contains(&gbps), "{gbps}");
    }

    #[test]
    fn the_rate_comes_back_and_then_nothing_is_kept() {
        let p = Dcqcn { burst: 0, ..Dcqcn::DRIVER };
        let mut c = Congestion::default();
        (0..20).for_each(|i| c.on_cnp(i * 5 * US, &p));
        let low = mbps(&c);
        assert!(low < 1000, "{low}");
        let (mut now, mut before) = (100 * US, low);
        while !c.is_over() {
            now = c.waits(now, &p).unwrap_or(now);
            c.on_send(now, 4096, &p);
            assert!(c.is_over() || mbps(&c) >= before, "{} after {before}", mbps(&c));
            before = mbps(&c);
            assert!(now < 1_000_000 * US, "{before} Mb/s after a second");
        }
        assert_eq!(c, Congestion::default());
    }

    #[test]
    fn a_wait_at_a_low_rate_ends_sooner_when_time_raises_it() {
        let p = Dcqcn::DRIVER;
        let mut c = Congestion::default();
        (0..30).for_each(|i| c.on_cnp(i * 5 * US, &p));
        c.on_send(200 * US, 4096, &p);
        let (mut now, alone) = (200 * US, c.next);
        assert!(alone > 10_000 * US, "{alone}");
        while let Some(at) = c.waits(now, &p) {
            assert!(at > now);
            now = at;
        }
        assert!(now < alone / 3, "{now}, {alone} at the same rate");
    }

    #[test]
    fn a_connection_that_rests_goes_back_to_the_line_by_time_alone() {
        let (mut c, p) = (Congestion::default(), Dcqcn::default());
        c.on_cnp(0, &p);
        assert_eq!(c.waits(10_000_000 * US, &p), None);
        assert!(c.is_over());
    }

    #[test]
    fn parameters_of_any_kind_neither_panic_nor_stop_a_connection() {
        for n in [0, 1, u32::MAX] {
            let p = Dcqcn {
                line_rate: n,
                min_time_between_cnps: n,
                dce_tcp_g: n as u16,
                dce_tcp_rtt: n,
                initial_alpha_value: n as u16,
                rate_reduce_monitor_period: n,
                rpg_min_dec_fac: n as u8,
                rpg_min_rate: n,
                rpg_max_rate: n,
                rate_to_set_on_first_cnp: n,
                rpg_gd: n as u8,
                rpg_time_reset: n,
                rpg_byte_reset: n.max(64),
                rpg_threshold: n as u8,
                rpg_ai_rate: n,
                rpg_hai_rate: n,
                burst: n,
                ..Dcqcn::default()
            };
            let (mut c, mut now) = (Congestion::default(), 0);
            for i in 0..200 {
                c.on_cnp(now, &p);
                now = c.waits(now, &p).unwrap_or(now).max(i);
                c.on_send(now, 9000, &p);
            }
        }
    }
}
