//! The variation of a program's time: drawn from a seed, so that a run can be repeated.

use super::super::sched::Ps;
use serde::Deserialize;

/// Numbers that follow from a seed: SplitMix64.
#[derive(Clone, Debug)]
pub struct Dice(u64);

impl Dice {
    /// A seed's numbers.
    pub fn new(seed: u64) -> Self {
        Self(seed)
    }

    /// The next of them, from 0 up to 1: the upper 53 bits, as many as such a number has.
    pub fn throw(&mut self) -> f64 {
        (self.bits() >> 11) as f64 / (1u64 << 53) as f64
    }

    /// The next of them, all 64 bits.
    pub fn bits(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ z >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ z >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ z >> 31
    }
}

/// A distribution by its quantiles: nanoseconds of the half, of 99 % and of 99.9 % of all draws at most. It begins at 0 and is straight up to
/// 99 %; the rest falls off nearly as the power that the last two tell, until one in 2,000, the most there is.
#[derive(Clone, Copy, Debug, PartialEq, Deserialize)]
#[serde(try_from = "[f64; 3]")]
pub struct Spread([f64; 3]);

impl TryFrom<[f64; 3]> for Spread {
    type Error = String;

    fn try_from(quantiles: [f64; 3]) -> Result<Self, String> {
        let [half, most, nearly_all] = quantiles;
        match 0.0 <= half && half <= most && most <= nearly_all && nearly_all.is_finite() {
            true => Ok(Self(quantiles)),
            false => Err(format!("expected three rising numbers of ns, 0 or more, found {quantiles:?}")),
        }
    }
}

impl Spread {
    /// A draw.
    pub fn draw(&self, dice: &mut Dice) -> Ps {
        let [half, most, nearly_all] = self.0;
        let quarter = if most > 0.0 { (nearly_all / most).sqrt().sqrt() } else { 1.0 };
        // Half of what is left is a third of a tenth: the ratio to the power of 5/16, of roots, which are the same on all machines.
        let third = quarter * quarter.sqrt().sqrt();
        let points = [
            (0.0, 0.0),
            (0.5, half),
            (0.99, most),
            (0.995, most * third),
            (0.999, nearly_all),
            (0.9995, nearly_all * third),
        ];
        let at = dice.throw();
        let mut ns = nearly_all * third;
        for pair in points.windows(2) {
            let [(from, least), (to, greatest)] = [pair[0], pair[1]];
            if (from..to).contains(&at) {
                ns = least + (greatest - least) * (at - from) / (to - from);
            }
        }
        (ns * 1e3 + 0.5) as Ps
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn draws_have_their_quantiles_and_follow_from_their_seed() {
        let spread = Spread::try_from([30.0, 200.0, 1000.0]).unwrap();
        let draws = |seed| {
            let mut dice = Dice::new(seed);
            (0..100_000).map(|_| spread.draw(&mut dice)).collect::<Vec<_>>()
        };
        assert_eq!(draws(1), draws(1));
        assert_ne!(draws(1), draws(2));
        let mut sorted = draws(3);
        sorted.sort_unstable();
        let near = |rank: usize, ns: f64| (sorted[rank] as f64 / (ns * 1e3) - 1.0).abs() < 0.1;
        assert!(near(50_000, 30.0) && near(99_000, 200.0) && near(99_900, 1000.0));
        // The last is a third of a tenth further, by 5 to the power of 5/16.
        assert!(sorted[99_999] < 1_660_000);
    }
}
