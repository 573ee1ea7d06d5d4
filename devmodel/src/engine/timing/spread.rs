//! Variation of program times: drawn from a seed, so that a run is reproducible.

use super::super::sched::Ps;
use serde::Deserialize;

/// Pseudorandom numbers from a seed: SplitMix64.
#[derive(Clone, Debug)]
pub struct Dice(u64);

impl Dice {
    /// The generator with this seed.
    pub fn new(seed: u64) -> Self {
        Self(seed)
    }

    /// The next number in [0, 1): uses the upper 53 bits, the precision of an `f64`.
    pub fn throw(&mut self) -> f64 {
        (self.bits() >> 11) as f64 / (1u64 << 53) as f64
    }

    /// The next number, all 64 bits.
    pub fn bits(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ z >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ z >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ z >> 31
    }
}

/// A distribution given by its quantiles in nanoseconds: 50 %, 99 % and 99.9 %. It starts at 0 and is piecewise linear up to 99
/// %; beyond that it approximates the power law defined by the last two quantiles, up to a maximum at 99.95 %.
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
    /// Draws a value.
    pub fn draw(&self, dice: &mut Dice) -> Ps {
        let [half, most, nearly_all] = self.0;
        let quarter = if most > 0.0 { (nearly_all / most).sqrt().sqrt() } else { 1.0 };
        // Halving the tail probability covers about a third of a decade: the ratio to the power of 5/16, from square roots,
        // which are identical on all machines.
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
        // The maximum is a third of a decade further: 5 to the power of 5/16.
        assert!(sorted[99_999] < 1_660_000);
    }
}
