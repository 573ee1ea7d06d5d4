//! Uses of a function that would break if its driver were unbound.

use super::{PciDevice, PciError};
use std::{fmt, fs};

/// A use of a function.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Usage {
    /// This net device of the function is up.
    NetUp(String),
    /// A default route uses this net device of the function.
    DefaultRoute(String),
    /// This many virtual functions exist.
    VirtualFunctions(u16),
}

impl fmt::Display for Usage {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::NetUp(name) => write!(f, "its net device {name} is up"),
            Self::DefaultRoute(name) => write!(f, "the default route goes through its net device {name}"),
            Self::VirtualFunctions(1) => write!(f, "it has a virtual function"),
            Self::VirtualFunctions(count) => write!(f, "it has {count} virtual functions"),
        }
    }
}

/// A list of uses, displayed in one line.
pub(super) struct Uses<'a>(pub &'a [Usage]);

impl fmt::Display for Uses<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (at, usage) in self.0.iter().enumerate() {
            write!(f, "{}{usage}", if at > 0 { ", " } else { "" })?;
        }
        Ok(())
    }
}

impl PciDevice {
    /// Names of its net devices.
    pub fn net_devices(&self) -> Vec<String> {
        let entries = fs::read_dir(self.path("net")).into_iter().flatten().flatten();
        let mut names: Vec<String> =
            entries.filter_map(|entry| entry.file_name().into_string().ok()).collect();
        names.sort();
        names
    }

    /// The current uses of the function.
    pub fn uses(&self) -> Result<Vec<Usage>, PciError> {
        /// `IFF_UP` (netdevice(7)).
        const UP: u32 = 1;
        let routed = self.sysfs.default_routes();
        let mut uses = Vec::new();
        for name in self.net_devices() {
            if self.number(&format!("net/{name}/flags"))?.unwrap_or(0) & UP != 0 {
                uses.push(Usage::NetUp(name.clone()));
            }
            if routed.contains(&name) {
                uses.push(Usage::DefaultRoute(name));
            }
        }
        match self.vf_counts()? {
            Some((have, _)) if have > 0 => uses.push(Usage::VirtualFunctions(have)),
            _ => {}
        }
        Ok(uses)
    }

    /// Fails if the function is in use.
    pub fn check_unused(&self) -> Result<(), PciError> {
        let uses = self.uses()?;
        if uses.is_empty() { Ok(()) } else { Err(PciError::InUse { address: self.address, uses }) }
    }
}

/// Net devices with default routes, from the kernel's tables for IPv4 (`/proc/net/route`) and IPv6
/// (`/proc/net/ipv6_route`).
pub(super) fn default_routes(v4: &str, v6: &str) -> Vec<String> {
    let mut names = Vec::new();
    for line in v4.lines().skip(1) {
        let words: Vec<&str> = line.split_whitespace().collect();
        if let [name, "00000000", _, _, _, _, _, "00000000", ..] = words[..] {
            names.push(name.to_owned());
        }
    }
    for line in v6.lines() {
        let words: Vec<&str> = line.split_whitespace().collect();
        let [destination, "00", _, _, _, _, _, _, _, name] = words[..] else { continue };
        // The kernel's own entry for unreachable destinations is on the loopback interface.
        if destination.bytes().all(|digit| digit == b'0') && name != "lo" {
            names.push(name.to_owned());
        }
    }
    names
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn default_routes_are_told_from_others() {
        let v4 = "Iface\tDestination\tGateway \tFlags\tRefCnt\tUse\tMetric\tMask\t\tMTU\tWindow\tIRTT\n\
                  eth0\t00000000\t0100000A\t0003\t0\t0\t0\t00000000\t0\t0\t0\n\
                  eth1\t0000A8C0\t00000000\t0001\t0\t0\t0\t0000FFFF\t0\t0\t0\n\
                  eth2\t00000000\t00000000\t0001\t0\t0\t0\t00000080\t0\t0\t0\n";
        let zeros = "00000000000000000000000000000000";
        let route = |destination: &str, length: &str, name: &str| {
            format!(
                "{destination} {length} {zeros} 00 {zeros} 00000400 00000001 00000000 00000003     {name}\n"
            )
        };
        let v6 = [
            route(zeros, "00", "eth3"),
            route("fd000000000000000000000000000000", "40", "eth4"),
            route(zeros, "00", "lo"),
        ];
        assert_eq!(default_routes(v4, &v6.concat()), ["eth0", "eth3"]);
        assert_eq!(default_routes("", "nonsense"), [""; 0]);
    }
}
