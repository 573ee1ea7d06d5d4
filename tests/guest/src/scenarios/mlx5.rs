//! Functions of the model under the stock driver.

use crate::images::Images;
use crate::machine::{Guest, Plan};
use crate::server::{self, Server};
use crate::{Outcome, failed};

use super::scratch::{Scratch, scratch};
use super::sides::{Bench, Side, boot_two, find_gid};

/// Placement of guests and functions.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Place {
    /// Two functions in one guest, with the second's net device in its own network namespace.
    OneGuest,
    /// A function in each of two guests.
    TwoGuests,
}

/// Loads the driver. Returns when the function at each of `slots` has a verbs device with its port up.
pub fn load(guest: &mut Guest, slots: &[u32], infiniband: bool) -> Outcome {
    let mut script = String::from("modprobe mlx5_core && modprobe -a mlx5_ib ib_uverbs ib_umad || exit 1\n");
    for slot in slots {
        let device = format!("/sys/bus/pci/devices/0000:00:{slot:02x}.0");
        script.push_str(&format!(
            "n=0; until ls {device}/infiniband/*/ports/1/state >/dev/null 2>&1; do
    n=$((n + 1)); [ $n -lt 200 ] || {{ echo 'no verbs device at {device}'; ls {device}; exit 1; }}; sleep 0.05; done\n"
        ));
        if !infiniband {
            script.push_str(&format!(
                "net=$(ls {device}/net) && [ \"$net\" ] || {{ echo 'no net device at {device}'; exit 1; }}
ip link set $net down; ip link set $net name f{slot:x}; ip link set f{slot:x} up\n"
            ));
        }
        script.push_str(&format!(
            "n=0; until grep -q ACTIVE {device}/infiniband/*/ports/1/state; do
    n=$((n + 1)); [ $n -lt 200 ] || {{ echo \"port of {device} is $(cat {device}/infiniband/*/ports/1/state)\"; exit 1; }}
    sleep 0.05; done\n"
        ));
    }
    guest.run(90, &script).map(drop)
}

/// Unloads the driver.
pub fn unload(guest: &mut Guest) -> Outcome {
    guest
        .run(
            60,
            "modprobe -r mlx5_ib && modprobe -r mlx5_core && ! lsmod | grep -q mlx5 && [ -z \"$(ls /sys/class/infiniband)\" ]",
        )
        .map(drop)
}

/// Returns the name of the verbs device of the function at a slot.
pub fn device(guest: &mut Guest, slot: u32) -> Outcome<String> {
    let said = guest.run(10, &format!("ls /sys/bus/pci/devices/0000:00:{slot:02x}.0/infiniband"))?;
    match said.split_whitespace().next() {
        Some(name) => Ok(name.into()),
        None => failed(format!("expected a verbs device at slot {slot:x}, found none")),
    }
}

/// A server and two ends driven by the stock driver.
#[derive(Debug)]
pub struct Pair {
    /// The two ends.
    pub bench: Bench,
    /// The server of the functions.
    pub server: Server,
    /// Directory of the guests' cable.
    _scratch: Scratch,
}

impl Pair {
    /// Serves two functions (the PF and a VF) and boots the guests that drive them.
    pub fn boot(
        images: &Images,
        name: &str,
        place: Place,
        infiniband: bool,
        kernels: [&str; 2],
    ) -> Outcome<Self> {
        Self::boot_on(images, name, place, kernels, server::Plan { infiniband, ..Default::default() })
    }

    /// The same on a server configured by `served`, but always with the PF and a VF as its functions.
    pub fn boot_on(
        images: &Images,
        name: &str,
        place: Place,
        kernels: [&str; 2],
        served: server::Plan,
    ) -> Outcome<Self> {
        let infiniband = served.infiniband;
        let server = Server::start(&server::Plan { functions: vec![0, 1], ..served })?;
        let scratch = scratch(name)?;
        let two = place == Place::TwoGuests;
        let mut guests = if two {
            let plan = |n| Plan::new(&format!("{name}{n}")).kernel(kernels[n]).plug(server.socket(n as u16));
            boot_two(images, &scratch, [plan(0), plan(1)])?
        } else {
            let plan = Plan::new(name).kernel(kernels[0]).plug(server.socket(0)).plug(server.socket(1));
            vec![Guest::boot(images, plan)?]
        };
        for guest in &mut guests {
            load(guest, if two { &[0x10] } else { &[0x10, 0x11] }, infiniband)?;
        }
        let mut sides = Vec::new();
        for n in 0..2_usize {
            let (guest, slot) = if two { (n, 0x10) } else { (0, 0x10 + n as u32) };
            let apart = !two && n == 1 && !infiniband;
            sides.push(Side {
                guest,
                prefix: if apart { "ip netns exec apart".into() } else { String::new() },
                device: device(&mut guests[guest], slot)?,
                net: if infiniband { String::new() } else { format!("f{slot:x}") },
                gid: None,
                host: if two || !infiniband { format!("10.9.0.{}", n + 1) } else { "127.0.0.1".into() },
                address: format!("192.168.7.{}", n + 1),
            });
        }
        let [first, second] = <[Side; 2]>::try_from(sides).or_else(|_| failed("two sides"))?;
        let mut bench = Bench::new(guests, [first, second]);
        if !two && !infiniband {
            bench.guests[0].run(
                20,
                "ip netns add apart && ip link add near type veth peer name far netns apart && ip link set f11 netns apart
ip addr add 10.9.0.1/24 dev near && ip link set near up
ip -n apart addr add 10.9.0.2/24 dev far && ip -n apart link set far up && ip -n apart link set lo up && ip -n apart link set f11 up",
            )?;
        }
        if !infiniband {
            for side in 0..2 {
                bench.give_address(side)?;
                find_gid(&mut bench, side)?;
            }
        }
        Ok(Self { bench, server, _scratch: scratch })
    }

    /// Wraps ends that were set up in another way.
    pub fn over(bench: Bench, server: Server, scratch: Scratch) -> Self {
        Self { bench, server, _scratch: scratch }
    }

    /// Checks that neither guest nor server reported a problem, and powers everything off.
    pub fn finish(self) -> Outcome {
        self.finish_serving().map(drop)
    }

    /// The same, but keeps the server running.
    pub fn finish_serving(mut self) -> Outcome<Server> {
        self.server.check()?;
        self.server.end(self.bench.guests)?;
        Ok(self.server)
    }
}
