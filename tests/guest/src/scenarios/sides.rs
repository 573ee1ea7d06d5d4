//! The two ends of a connection, in one guest or two, and tools run between them.

use crate::images::Images;
use crate::machine::{Guest, Plan};
use crate::{Outcome, failed};

/// One end.
#[derive(Clone, Debug, Default)]
pub struct Side {
    /// Index of the guest.
    pub guest: usize,
    /// Prefix of every command: empty, or `ip netns exec NAME`.
    pub prefix: String,
    /// Verbs device.
    pub device: String,
    /// Its net device, if known.
    pub net: String,
    /// Index of the GID to use; `None` on InfiniBand, where LIDs are used.
    pub gid: Option<u32>,
    /// Address of this side for the exchange over TCP before the verbs.
    pub host: String,
    /// Address on the function itself, which rdma_cm resolves.
    pub address: String,
}

impl Side {
    fn words(&self, command: &str) -> String {
        format!("{} {command}", self.prefix)
    }
}

/// A tool that runs as server and client between two sides.
#[derive(Clone, Debug)]
pub struct Tool {
    /// Command line of both.
    pub command: String,
    /// Time limit for each in seconds.
    pub seconds: u64,
}

/// A pingpong of ibverbs-utils with data checks.
pub fn pingpong(name: &str, options: &str) -> Tool {
    Tool { command: format!("{name} {options}"), seconds: 90 }
}

/// A perftest tool.
pub fn perftest(name: &str, options: &str) -> Tool {
    Tool { command: format!("{name} -F -u 18 {options}"), seconds: 90 }
}

/// Returns the command line of a verbs tool for a device and the index of a GID.
pub fn words(command: &str, device: &str, gid: Option<u32>, port: u16) -> String {
    let gid = match gid {
        Some(gid) if command.starts_with("ib_") => format!("-x {gid}"),
        Some(gid) => format!("-g {gid}"),
        None => String::new(),
    };
    format!("{command} -d {device} {gid} -p {port}")
}

/// Guests and the two ends in them.
#[derive(Debug)]
pub struct Bench {
    /// The guests.
    pub guests: Vec<Guest>,
    /// The ends; the first is the server of every tool.
    pub sides: [Side; 2],
    port: u16,
}

impl Bench {
    /// Makes a bench of ends in guests.
    pub fn new(guests: Vec<Guest>, sides: [Side; 2]) -> Self {
        Self { guests, sides, port: 18000 }
    }

    /// Returns the guest of a side.
    pub fn guest(&mut self, side: usize) -> Outcome<&mut Guest> {
        let index = self.sides[side & 1].guest;
        self.guests.get_mut(index).map_or_else(|| failed("no such guest"), Ok)
    }

    /// Runs a command at a side; it must exit with 0.
    pub fn at(&mut self, side: usize, seconds: u64, command: &str) -> Outcome<String> {
        let script = self.sides[side & 1].words(command);
        self.guest(side)?.run(seconds, &script)
    }

    /// Sets the address of a side's net device and brings it up.
    pub fn give_address(&mut self, side: usize) -> Outcome {
        let Side { net, address, .. } = self.sides[side & 1].clone();
        let script = format!(
            "bash -c 'ip addr replace {address}/24 dev {net} && ip link set {net} up && \
             for t in $(seq 100); do [ \"$(cat /sys/class/net/{net}/carrier 2>/dev/null)\" = 1 ] && exit 0; sleep 0.1; done; \
             echo no carrier; exit 1'"
        );
        self.at(side, 30, &script).map(drop)
    }

    /// Returns a port that no earlier tool used.
    pub fn port(&mut self) -> u16 {
        self.port += 1;
        self.port
    }

    /// Runs a server command at side 0 and, once a process listens on `port` there, a client command at side 1. Returns the output of both.
    pub fn converse(&mut self, seconds: u64, port: u16, server: &str, client: &str) -> Outcome<[String; 2]> {
        let until = format!("until ss -Hltn 'sport = :{port}' | grep -q .; do sleep 0.05; done");
        self.converse_when(seconds, &until, server, client)
    }

    /// The same, but starts the client when the script `ready` ends at the server's side.
    pub fn converse_when(
        &mut self,
        seconds: u64,
        ready: &str,
        server: &str,
        client: &str,
    ) -> Outcome<[String; 2]> {
        let serving = self.sides[0].words(server);
        // Listening sockets are visible in their network namespace; the prefix may also be a launcher, which is not needed for this.
        let namespace = if self.sides[0].prefix.starts_with("ip netns") { &self.sides[0].prefix } else { "" };
        let ready = format!("{namespace} bash -c \"{ready}\"");
        let asking = self.sides[1].words(client);
        let running = self.guest(0)?.start_script(seconds, &serving)?;
        let waited = self.guest(0)?.run(30, &ready);
        if let Err(error) = waited {
            let said = self.guest(0)?.wait(&running)?;
            return failed(format!("{error}\n--- the server: status {}\n{}", said.status, said.text));
        }
        let answered = self.guest(1)?.run(seconds, &asking);
        match answered {
            Ok(client) => Ok([self.guest(0)?.done(&running)?, client]),
            Err(error) => {
                let said = self.guest(0)?.wait(&running)?;
                failed(format!("{error}\n--- the server: status {}\n{}", said.status, said.text))
            }
        }
    }

    /// Runs a verbs tool once, with side 1 as the client.
    pub fn tool(&mut self, tool: &Tool) -> Outcome<[String; 2]> {
        let port = self.port();
        let words = |side: &Side| words(&tool.command, &side.device, side.gid, port);
        let server = words(&self.sides[0]);
        let client = format!("{} {}", words(&self.sides[1]), self.sides[0].host);
        let said = self.converse(tool.seconds, port, &server, &client)?;
        for words in &said {
            if words.contains("invalid data") || words.contains("Failed status") {
                return failed(format!("{}: {words}", tool.command));
            }
        }
        Ok(said)
    }

    /// Runs a verbs tool in both directions.
    pub fn both_ways(&mut self, tool: &Tool) -> Outcome {
        self.each_way(|bench| bench.tool(tool).map(drop))
    }

    /// Does something, and then the same with the sides exchanged.
    pub fn each_way(&mut self, mut act: impl FnMut(&mut Self) -> Outcome) -> Outcome {
        act(self)?;
        self.sides.swap(0, 1);
        let back = act(self);
        self.sides.swap(0, 1);
        back
    }

    /// Powers all guests off.
    pub fn power_off(self) -> Outcome {
        self.guests.into_iter().try_for_each(Guest::power_off)
    }
}

/// Parses the last row of a perftest table.
pub fn last_row(said: &str) -> Vec<f64> {
    let row =
        |line: &str| line.split_whitespace().map(|word| word.parse().ok()).collect::<Option<Vec<f64>>>();
    said.lines().filter_map(row).rfind(|row| row.len() >= 4).unwrap_or_default()
}

/// Sets up a RoCE or InfiniBand device at a side, and finds its name and GID index.
///
/// `netdev` is its net device, `address` the address to set.
pub fn find_gid(bench: &mut Bench, side: usize) -> Outcome {
    let Side { device, address, .. } = bench.sides[side & 1].clone();
    // Finds the RoCE v2 GID of the IPv4 address: the kernel adds it a moment after the address.
    let script = format!(
        r#"want=$(printf '%02x%02x:%02x%02x' $(echo {address} | tr . ' '))
for try in $(seq 100); do
    for file in /sys/class/infiniband/{device}/ports/1/gids/*; do
        n=${{file##*/}}
        grep -q "ffff:$want" $file && grep -q 'RoCE v2' ${{file%/gids*}}/gid_attrs/types/$n 2>/dev/null && echo $n && exit 0
    done
    sleep 0.1
done
echo "{device} has no RoCE v2 GID for {address}:"; grep -H . /sys/class/infiniband/{device}/ports/1/gids/* | grep -v 0000:0000:0000:0000:0000:0000:0000:0000; exit 1"#
    );
    let said = bench.guest(side)?.run(30, &script)?;
    let Ok(gid) = said.trim().parse() else {
        return failed(format!("expected a GID's index, found {said:?}"));
    };
    bench.sides[side & 1].gid = Some(gid);
    Ok(())
}

/// Boots two guests joined by a cable in `dir` for the tools' exchange over TCP; the n-th has the address 10.9.0.(1+n).
pub fn boot_two(images: &Images, dir: &std::path::Path, [first, second]: [Plan; 2]) -> Outcome<Vec<Guest>> {
    let plans = vec![first.qemu(cable(dir, 0)), second.qemu(cable(dir, 1))];
    let mut guests = Guest::boot_all(images, plans)?;
    (0..).zip(&mut guests).try_for_each(|(n, guest)| plug_cable(guest, n))?;
    Ok(guests)
}

fn cable(dir: &std::path::Path, n: u8) -> Vec<String> {
    let path = dir.join("cable").display().to_string();
    let server = if n == 0 { "on" } else { "off,reconnect-ms=50" };
    vec![
        "-netdev".into(),
        format!("stream,id=cable,server={server},addr.type=unix,addr.path={path}"),
        "-device".into(),
        format!("virtio-net-pci,netdev=cable,addr=0x8,mac=52:54:00:00:09:{:02x}", n + 1),
    ]
}

fn plug_cable(guest: &mut Guest, n: u8) -> Outcome {
    let script = format!(
        "modprobe virtio_net
until [ -d /sys/bus/pci/devices/0000:00:08.0/virtio*/net ]; do sleep 0.05; done
dev=$(ls /sys/bus/pci/devices/0000:00:08.0/virtio*/net)
ip link set $dev name cable && ip addr add 10.9.0.{}/24 dev cable && ip link set cable up",
        n + 1
    );
    guest.run(20, &script).map(drop)
}
