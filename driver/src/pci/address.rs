//! Addresses of PCI functions.

use std::{fmt, str::FromStr};

/// Domain, bus, device and function of a PCI function, in Linux notation: `0000:c1:00.2`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Address {
    domain: u32,
    bus: u8,
    device: u8,
    function: u8,
}

impl fmt::Display for Address {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:04x}:{:02x}:{:02x}.{:x}", self.domain, self.bus, self.device, self.function)
    }
}

impl FromStr for Address {
    type Err = String;

    /// Parses an address. The domain is optional and defaults to 0.
    fn from_str(text: &str) -> Result<Self, String> {
        let parse = || {
            let (rest, function) = text.rsplit_once('.')?;
            let (rest, device) = rest.rsplit_once(':')?;
            let (domain, bus) = rest.rsplit_once(':').unwrap_or(("0", rest));
            let hex = |part: &str, most: u32| {
                let digits = !part.is_empty() && part.bytes().all(|b| b.is_ascii_hexdigit());
                u32::from_str_radix(part, 16).ok().filter(|value| digits && *value <= most)
            };
            Some(Self {
                domain: hex(domain, u32::MAX)?,
                bus: hex(bus, 0xff)? as u8,
                device: hex(device, 0x1f)? as u8,
                function: hex(function, 7)? as u8,
            })
        };
        parse().ok_or_else(|| format!("expected a PCI address like 0000:c1:00.2, found {text:?}"))
    }
}
