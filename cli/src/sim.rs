//! `ironverbs sim`: perftest's tables in virtual time.

use std::process::ExitCode;

use crate::options::{Sim, SimTest};
use crate::say::say_line;
use devmodel::engine::sim::{self, Figures, Test};

const DEFAULT_LAT: u32 = 2;
const DEFAULT_BW: u32 = 65536;

pub fn sim(options: &Sim) -> ExitCode {
    let (test, size) = match options.test {
        SimTest::ReadLat => (Test::ReadLat, DEFAULT_LAT),
        SimTest::WriteLat => (Test::WriteLat, DEFAULT_LAT),
        SimTest::SendLat => (Test::SendLat, DEFAULT_LAT),
        SimTest::WriteBw => (Test::WriteBw, DEFAULT_BW),
    };
    let report = match sim::run(test, options.size.unwrap_or(size), options.iters) {
        Ok(report) => report,
        Err(e) => return crate::say::fail(1, e),
    };
    match report.figures {
        Figures::Latency(l) => {
            say_line!(
                " #bytes #iterations    t_min[usec]    t_max[usec]  t_typical[usec]    t_avg[usec]    \
                 t_stdev[usec]   99% percentile[usec]   99.9% percentile[usec]"
            );
            say_line!(
                " {:<7} {:<10} {:<14.2} {:<14.2} {:<14.2} {:<14.2} {:<14.2} {:<14.2} {:<14.2}",
                report.bytes,
                report.iters,
                l.min,
                l.max,
                l.typical,
                l.avg,
                l.stdev,
                l.p99,
                l.p99_9
            );
        }
        Figures::Bandwidth(b) => {
            say_line!(" #bytes     #iterations    BW peak[MiB/sec]    BW average[MiB/sec]   MsgRate[Mpps]");
            say_line!(
                " {:<10} {:<14} {:<19.2} {:<21.2} {:<.6}",
                report.bytes,
                report.iters,
                b.peak,
                b.average,
                b.mpps
            );
        }
    }
    ExitCode::SUCCESS
}
