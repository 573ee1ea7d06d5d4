//! IP addresses of functions that programs drive. A function's second GID and its replies to neighbours are derived from its IP address.

use super::{NodeError, core::Core, file::Mapped, node::Node};
use crate::{
    devices::{DeviceInfo, MAX_VFS},
    gid::{gid_of_ip, ip_of_gid},
    naming::Naming,
};
use devmodel::Config;
use std::{fmt, net::IpAddr, path::Path, str::FromStr, sync::atomic::Ordering::*};

/// An IP address and the length of its network prefix.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FunctionAddress {
    /// The address.
    pub ip: IpAddr,
    /// Length of the network prefix in bits.
    pub prefix: u8,
}

impl fmt::Display for FunctionAddress {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.ip, self.prefix)
    }
}

impl FromStr for FunctionAddress {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let wrong = || format!("expected an address like 10.0.0.5/24 or fd00::5/64, found '{text}'");
        let (ip, prefix) = match text.split_once('/') {
            Some((ip, prefix)) => (ip, Some(prefix.parse::<u8>().map_err(|_| wrong())?)),
            None => (text, None),
        };
        let ip: IpAddr = ip.parse().map_err(|_| wrong())?;
        let most = if ip.is_ipv4() { 32 } else { 128 };
        let prefix = prefix.unwrap_or(most);
        let host = !(ip.is_unspecified() || ip.is_multicast()) && ip.to_canonical() == ip;
        if host && prefix <= most { Ok(Self { ip, prefix }) } else { Err(wrong()) }
    }
}

impl FunctionAddress {
    /// The address that was set for function `fid` of the adapter in `map`.
    pub(super) fn of(map: &Mapped, fid: u8) -> Option<Self> {
        let function = map.functions().get(usize::from(fid))?;
        let [high, low] = function.address.each_ref().map(|word| u128::from(word.load(Acquire)));
        let gid = (high << 64 | low).to_be_bytes();
        let prefix = function.prefix.load(Acquire) as u8;
        (gid != [0; 16]).then(|| Self { ip: ip_of_gid(&gid), prefix })
    }
}

/// Returns the device of `fid` on the node in `dir`, with behaviour `config` and names from `naming`, if an address was set for it.
pub(super) fn device(
    dir: &Path,
    fid: u8,
    config: &Config,
    naming: &Naming,
    address: Option<FunctionAddress>,
) -> DeviceInfo {
    let device = DeviceInfo::new(dir, fid, config).called(naming);
    match address {
        Some(address) => device.with_address(address.ip),
        None => device,
    }
}

impl Core {
    /// The device of function `fid`.
    pub fn device(&self, fid: u8) -> DeviceInfo {
        device(
            &self.dir,
            fid,
            self.adapter.config(),
            &self.map.naming().unwrap_or_default(),
            self.address(fid),
        )
    }

    /// The devices of the node's functions.
    pub fn devices(&self) -> impl Iterator<Item = DeviceInfo> + '_ {
        let vfs = (self.map.header().vfs.load(Acquire) as u8).min(MAX_VFS);
        (0..=vfs).map(|fid| self.device(fid))
    }
}

impl Node {
    /// Sets the address of function `fid`, or with `None` restores its default address. Fails if any program has the function open.
    pub fn set_address(&self, fid: u8, address: Option<FunctionAddress>) -> Result<(), NodeError> {
        let core = self.core();
        let lock = core.locks.lock()?;
        core.reap_locked(&lock);
        if fid > self.vfs() {
            return Err(NodeError::NoDevice { fid, vfs: self.vfs() });
        }
        core.not_served(fid)?;
        core.not_open(fid)?;
        if let Some(address) = address {
            let taken = core.devices().find(|device| device.fid != fid && device.ip == address.ip);
            if let Some(device) = taken {
                return Err(NodeError::AddressTaken { ip: address.ip, fid: device.fid });
            }
        }
        let number = u128::from_be_bytes(address.map_or([0; 16], |address| gid_of_ip(address.ip)));
        let function = &core.map.functions()[usize::from(fid)];
        function.prefix.store(address.map_or(0, |address| address.prefix.into()), Release);
        function.address[0].store((number >> 64) as u64, Release);
        function.address[1].store(number as u64, Release);
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_of_hosts_are_read_and_nothing_else() {
        for text in ["10.0.0.5/24", "127.0.0.3/32", "fd00::5/64", "fe80::1/10"] {
            assert_eq!(text.parse::<FunctionAddress>().unwrap().to_string(), text);
        }
        assert_eq!("10.0.0.5".parse::<FunctionAddress>().unwrap().prefix, 32);
        for wrong in
            ["10.0.0/24", "10.0.0.5/33", "0.0.0.0/8", "::/0", "224.0.0.1", "::ffff:10.0.0.1", "", "x/y"]
        {
            assert!(wrong.parse::<FunctionAddress>().unwrap_err().contains("10.0.0.5/24"), "{wrong}");
        }
    }
}
