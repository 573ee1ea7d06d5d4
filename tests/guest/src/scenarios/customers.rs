//! UCX, libfabric and Open MPI in one guest, with our provider, on two VFs bound to vfio-pci.

use std::process::Command;

use crate::images::{self, Images};
use crate::machine::{Guest, Plan};
use crate::server;
use crate::{Outcome, Trouble, failed, tree};

use super::sides::{Bench, Side};
use super::vfio;

/// Addresses of the VFs. libfabric's programs also use them for TCP, so they are addresses of the guest as well.
const ADDRESSES: [&str; 2] = ["127.0.0.11", "127.0.0.12"];

/// Overlays the folder of programs on the user space.
const LAY_OVER: &str = "mkdir /run/programs && mount -t 9p -o trans=virtio,version=9p2000.L,msize=262144,ro,cache=loose programs /run/programs && \
     mount -t overlay -o lowerdir=/run/programs/usr:/usr programs /usr";

/// Runs each of them and checks its output.
pub fn on_vfio(images: &Images) -> Outcome {
    let programs = images::programs()?;
    let folder =
        format!("local,path={},mount_tag=programs,security_model=none,readonly=on", programs.display());
    let plan = Plan::new("customers").qemu(["-virtfs".into(), folder]);
    let (mut server, mut guest) = vfio::two_vfs(images, plan, server::Plan::default())?;
    guest.run(20, LAY_OVER)?;
    let sides = [0, 1].map(|n| Side {
        prefix: launcher(n),
        device: "iron0".into(),
        host: ADDRESSES[0].into(),
        address: ADDRESSES[n].into(),
        ..Side::default()
    });
    // Both ends are in the same guest.
    let mut bench = Bench::new(vec![guest], sides);
    ucx(&mut bench)?;
    fabric(&mut bench)?;
    mpi(bench.guest(0)?)?;
    server.end(bench.guests)
}

/// The command that starts a program on its own VF.
fn launcher(n: usize) -> String {
    format!("/built/ironverbs run --bdf 0000:00:1{n}.0 --address {}/8 --", ADDRESSES[n])
}

/// ucx_perftest with a single transport.
fn ucx(bench: &mut Bench) -> Outcome {
    for (transport, test, size) in
        [("rc_v", "tag_lat", "8"), ("rc_v", "ucp_get", "65536"), ("ud_v", "tag_bw", "4096")]
    {
        let port = bench.port();
        // A build with MPI expects to be started by MPI unless told otherwise, and considers all of MPI's transports.
        let words = format!(
            "env OMPI_MCA_pml=ob1 OMPI_MCA_btl=self UCX_TLS={transport},self UCX_NET_DEVICES=iron0:1 \
             ucx_perftest -P 0 -p {port} -t {test} -s {size} -n 50 -w 5"
        );
        let [_, client] = bench.converse(90, port, &words, &format!("{words} 127.0.0.1"))?;
        let Some(last) = client.lines().find(|line| line.starts_with("Final:")) else {
            return failed(format!("{words}: expected its figures, found\n{client}"));
        };
        println!("    UCX {transport} {test} {size}: {last}");
    }
    Ok(())
}

/// fi_pingpong with data checks, over connections and by datagrams.
fn fabric(bench: &mut Bench) -> Outcome {
    for (endpoint, size, row) in [("msg", 65536, "64k"), ("dgram", 4096, "4k")] {
        let (port, first) = (bench.port(), ADDRESSES[0]);
        let words = format!("fi_pingpong -p verbs -e {endpoint} -c -I 20 -S {size}");
        let [_, client] =
            bench.converse(90, port, &format!("{words} -B {port}"), &format!("{words} -P {port} {first}"))?;
        let all = |line: &&str| line.split_whitespace().next() == Some(row) && line.contains("=20 ");
        let Some(line) = client.lines().find(all) else {
            return failed(format!("{words}: expected a row of {row}, found\n{client}"));
        };
        println!("    libfabric {endpoint}: {line}");
    }
    Ok(())
}

/// Two ranks of Open MPI, each on its own VF, exchange and check messages of every size.
fn mpi(guest: &mut Guest) -> Outcome {
    let (source, program) = (tree().join("tests/programs/ranks.c"), guest.share().join("ranks"));
    match Command::new("mpicc").arg("-O2").arg("-o").arg(&program).arg(&source).output() {
        Ok(output) if output.status.success() => {}
        Ok(output) => return failed(format!("mpicc: {}", String::from_utf8_lossy(&output.stderr).trim())),
        Err(e) => return Err(Trouble::Cannot(format!("mpicc, of libopenmpi-dev: {e}"))),
    }
    // One program for all ranks, which branches on its rank: mpirun of Open MPI 5.0.7 crashes if a job has two programs.
    let rank = format!(
        "export UCX_TLS=rc_v,self UCX_NET_DEVICES=iron0:1\n\
         if [ \"$OMPI_COMM_WORLD_RANK\" = 0 ]; then exec {} /share/ranks pingpong; fi\n\
         exec {} /share/ranks pingpong\n",
        launcher(0),
        launcher(1)
    );
    std::fs::write(guest.share().join("rank.sh"), rank)?;
    let words = "mpirun.openmpi --allow-run-as-root --oversubscribe -np 2 --mca pml ucx sh /share/rank.sh";
    let said = guest.run(180, words)?;
    let mut rows = said.lines().filter(|line| line.split_whitespace().count() == 2);
    match rows.next_back() {
        Some(last) if last.starts_with("1048576 ") => println!("    Open MPI, bytes and us: {last}"),
        _ => return failed(format!("{words}: expected times up to 1048576 bytes, found\n{said}")),
    }
    Ok(())
}
