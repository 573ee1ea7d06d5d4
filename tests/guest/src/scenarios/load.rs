//! Loads and unloads the stock driver.

use crate::images::{Images, KERNELS};
use crate::machine::{Guest, Plan};
use crate::server::{self, Server, Strict};
use crate::{Outcome, log};

use super::mlx5;

/// On both kernels, with the PF and a VF: load, unload, load again; the guest powers off with the driver loaded.
pub fn run(images: &Images, infiniband: bool) -> Outcome {
    let mut servers = Vec::new();
    let mut plans = Vec::new();
    for kernel in KERNELS {
        let server = Server::start(&server::Plan {
            functions: vec![0, 1],
            infiniband,
            strict: Strict::Bare,
            ..Default::default()
        })?;
        let plan = Plan::new(&format!("load{}", kernel.replace('.', "-"))).kernel(kernel);
        plans.push(plan.plug(server.socket(0)).plug(server.socket(1)));
        servers.push(server);
    }
    let guests = Guest::boot_all(images, plans)?;
    for (mut guest, mut server) in guests.into_iter().zip(servers) {
        for round in ["first", "second"] {
            mlx5::load(&mut guest, &[0x10, 0x11], infiniband)?;
            let devices = guest.run(30, "ibv_devinfo | grep -c PORT_ACTIVE")?;
            if devices.trim() != "2" {
                return crate::failed(format!("expected two active ports, found {}", devices.trim()));
            }
            log::clean(&mut guest)?;
            if round == "first" {
                mlx5::unload(&mut guest)?;
                log::clean(&mut guest)?;
            }
        }
        println!("    {} loads, unloads and loads again", guest.release());
        server.end([guest])?;
    }
    Ok(())
}

/// On Ethernet.
pub fn ethernet(images: &Images) -> Outcome {
    run(images, false)
}

/// On InfiniBand.
pub fn infiniband(images: &Images) -> Outcome {
    run(images, true)
}
