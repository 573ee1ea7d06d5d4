//! Runs scenarios one after another and reports the result of each.

use std::time::Instant;

use crate::images::Images;
use crate::scenarios::Scenario;
use crate::{Outcome, Trouble};

/// Runs the scenarios with a name that contains one of the words; without words, all that are not marked `named`. Returns 0 if none failed,
/// otherwise 1.
pub fn run(scenarios: &[Scenario], words: &[String]) -> Outcome<u8> {
    let wanted = |scenario: &&Scenario| {
        words.is_empty() && !scenario.named || words.iter().any(|word| scenario.name.contains(&**word))
    };
    let chosen: Vec<&Scenario> = scenarios.iter().filter(wanted).collect();
    if chosen.is_empty() {
        return crate::failed(format!("no scenario's name contains {}", words.join(" or ")));
    }
    let images = Images::ready()?;
    let (mut shown, mut skipped, mut failures) = (0, 0, Vec::new());
    let begun = Instant::now();
    for scenario in chosen {
        match one(scenario, &images) {
            End::Ok => shown += 1,
            End::Skipped => skipped += 1,
            End::Failed => failures.push(scenario.name),
        }
    }
    let total = begun.elapsed().as_secs();
    println!("guests: {shown} ok, {skipped} skipped, {} failed in {total} s", failures.len());
    if failures.is_empty() {
        return Ok(0);
    }
    println!("failed: {}", failures.join(", "));
    Ok(1)
}

enum End {
    Ok,
    Skipped,
    Failed,
}

fn one(scenario: &Scenario, images: &Images) -> End {
    println!("{}: {}", scenario.name, scenario.about);
    let start = Instant::now();
    let end = (scenario.run)(images);
    let seconds = start.elapsed().as_secs_f64();
    match end {
        Ok(()) => {
            println!("{}: ok, {seconds:.1} s", scenario.name);
            End::Ok
        }
        Err(Trouble::Cannot(why)) => {
            println!("{}: skipped: {why}", scenario.name);
            End::Skipped
        }
        Err(Trouble::Failed(why)) => {
            println!("{}: FAILED after {seconds:.1} s\n{why}", scenario.name);
            End::Failed
        }
    }
}
