//! `ironverbs bringup` in the guest, on functions bound to vfio-pci.

use crate::images::Images;
use crate::machine::{Guest, Plan};
use crate::server::{self, Server, Strict};
use crate::{Outcome, failed, log};

use super::vfio;

/// How a model is made to misbehave, and a word of the failure that `bringup` must report.
const LIES: [(&str, &[&str]); 4] = [
    ("wrong-health", &["health"]),
    ("wrong-health=fatal", &["health", "syndrome"]),
    ("stuck-command=0x400", &["CREATE_CQ", "CreateCq", "0x400", "CQ"]),
    ("lost-interrupt", &["interrupt"]),
];

/// A PF and a VF of each link layer pass; each lying function is detected.
pub fn run(images: &Images) -> Outcome {
    let mut servers = Vec::new();
    let mut plan = Plan::new("bringup").iommu();
    for infiniband in [false, true] {
        let served =
            server::Plan { functions: vec![0, 1], infiniband, strict: Strict::Bare, ..Default::default() };
        servers.push(Server::start(&served)?);
    }
    for (lie, _) in LIES {
        let arguments = vec!["--misbehave".into(), lie.into()];
        servers.push(Server::start(&server::Plan {
            functions: vec![1],
            arguments,
            strict: Strict::Bare,
            ..Default::default()
        })?);
    }
    for (n, server) in servers.iter().enumerate() {
        let functions: &[u16] = if n < 2 { &[0, 1] } else { &[1] };
        for function in functions {
            plan = plan.plug(server.socket(*function));
        }
    }
    let mut guest = Guest::boot(images, plan)?;
    for slot in 0x10..0x14 {
        vfio::bind(&mut guest, slot)?;
        let said = guest.run(120, &command(slot))?;
        println!("    {}", said.lines().last().unwrap_or_default());
    }
    log::clean(&mut guest)?;
    for (slot, (lie, words)) in (0x14..).zip(LIES) {
        vfio::bind(&mut guest, slot)?;
        let output = guest.try_run(120, &command(slot))?;
        let verdict = output.text.lines().rfind(|line| line.contains("failed at")).unwrap_or_default();
        println!("    {lie}: {verdict}");
        if output.status == 0 || !words.iter().any(|word| verdict.contains(word)) {
            return failed(format!(
                "{lie}: expected a failure that names one of {words:?}, found status {}\n{}",
                output.status, output.text
            ));
        }
    }
    servers.iter_mut().try_for_each(Server::check)?;
    guest.power_off()
}

fn command(slot: u32) -> String {
    format!("/built/ironverbs bringup --bdf 0000:00:{slot:02x}.0 --write --timeout 10")
}
