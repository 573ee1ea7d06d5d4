use super::Ends;
use ironverbs::{Error, block_on, sim::Sim};
use std::time::Duration;

/// Messages through a bad wire: what arrived, and how long it took.
fn run(plan: &str, seed: u64) -> (Vec<u8>, Duration) {
    let sim = Sim::new().faults(plan).seed(seed);
    let Ends { a, b, ours, theirs } = Ends::of(sim.pair().unwrap());
    let got = block_on(async {
        let mut got = Vec::new();
        for i in 0..100 {
            let receive = b.recv(theirs.empty()?);
            a.send(ours.take(&[i; 3000])?).await?;
            got.push(receive.await?[2999]);
        }
        Ok::<_, Error>(got)
    });
    (got.unwrap(), sim.now())
}

#[test]
fn the_same_seed_has_the_same_outcome_and_takes_the_same_time() {
    let plan = "drop=5%,duplicate=2%,reorder=2%,corrupt=2%,delay=3us";
    let first = run(plan, 7);
    assert_eq!(first.0, (0..100).collect::<Vec<u8>>());
    assert!(first.1 > Duration::from_millis(1), "{first:?}");
    assert_eq!(run(plan, 7), first);
    assert_ne!(run(plan, 8).1, first.1);
}

#[test]
fn a_plan_in_tables_hits_the_packet_it_names() {
    let lost = "[[fault]]\ndo = \"drop\"\nopcode = \"RcSendOnly\"\nnth = 3\n";
    let (perfect, once) = (run("", 1).1, run(lost, 1).1);
    // The acknowledgement timeout of 4.096 us x 2^14 and the model's tolerance.
    let expected = Duration::from_micros(4096 * 16);
    assert!(once - perfect >= expected && once - perfect < 4 * expected, "{:?}", once - perfect);
}

#[test]
fn time_stands_still_while_programs_work() {
    let sim = Sim::new();
    let Ends { a, b, ours, theirs } = Ends::of(sim.pair().unwrap());
    let begin = sim.now();
    block_on(async {
        let receive = b.recv(theirs.empty()?);
        a.send(ours.take(b"at once")?).await?;
        receive.await
    })
    .unwrap();
    assert_eq!((sim.now(), a.device().now()), (begin, begin));
}
