//! Structures that describe a function, read whole for bug reports: every capability page, maximum and current, and the
//! vport context.

use super::report::Recorder;
use crate::{
    error::Error,
    verbs::{Device, LinkLayer},
};
use hwspec::{
    cmd::{Opcode, adapter::*, vport::*},
    context::{CapType, caps::*, vport::*},
    layout::Field,
};

/// A structure, field by field.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Page {
    /// Its name. Capability pages have `, maximum` or `, current` appended.
    pub name: String,
    /// Names and values of its fields, in data sheet order.
    pub fields: Vec<(&'static str, String)>,
    /// Its bytes, without trailing zeros.
    pub bytes: Vec<u8>,
}

impl Page {
    fn new(name: String, fields: &'static [Field], bytes: &[u8]) -> Self {
        let end = bytes.iter().rposition(|byte| *byte != 0).map_or(0, |last| last + 1);
        Self {
            name,
            fields: fields.iter().map(|field| (field.name, value(field, bytes))).collect(),
            bytes: bytes[..end].to_vec(),
        }
    }

    /// The value of a field.
    pub fn field(&self, name: &str) -> Option<&str> {
        self.fields.iter().find(|(field, _)| *field == name).map(|(_, value)| value.as_str())
    }
}

/// The value of a field as a number, or in hex if it is wider than 64 bits.
fn value(field: &Field, bytes: &[u8]) -> String {
    let bit = |at: usize| bytes.get(at / 8).is_some_and(|byte| byte & 0x80 >> (at % 8) != 0);
    let all = field.offset..field.offset + field.width;
    if field.width <= 64 {
        return all.fold(0u64, |value, at| value << 1 | u64::from(bit(at))).to_string();
    }
    bytes
        .get(all.start / 8..all.end / 8)
        .unwrap_or_default()
        .iter()
        .map(|byte| format!("{byte:02x}"))
        .collect()
}

/// The capability pages with known fields.
const KINDS: [(CapType, &str, &[Field]); 8] = [
    (CapType::General, "general", HcaCap::FIELDS),
    (CapType::General2, "general 2", HcaCap2::FIELDS),
    (CapType::EthernetOffloads, "Ethernet offloads", EthernetOffloadCaps::FIELDS),
    (CapType::Atomic, "atomic", AtomicCaps::FIELDS),
    (CapType::Roce, "RoCE", RoceCap::FIELDS),
    (CapType::DeviceMem, "device memory", DeviceMemCap::FIELDS),
    (CapType::Odp, "ODP", OdpCap::FIELDS),
    (CapType::Qos, "QoS", QosCap::FIELDS),
];

/// Reads the capability pages. Notes those that the device refuses.
pub fn capabilities(device: &Device, r: &mut Recorder<'_>) -> Result<(), Error> {
    for (kind, name, fields) in KINDS {
        for (number, which) in ["maximum", "current"].into_iter().enumerate() {
            let input = QueryHcaCapIn::with(|s| s.op_mod(u16::from(kind.raw()) << 1 | number as u16));
            let out: Result<QueryHcaCapOut, Error> = device.function.call(Opcode::QueryHcaCap, 0, &input);
            match out {
                Ok(out) => r.page(Page::new(format!("{name}, {which}"), fields, &out.capability())),
                Err(error @ Error::Command { .. }) => r.note("refused", format!("{name}, {which}: {error}")),
                Err(error) => return Err(error),
            }
        }
    }
    Ok(())
}

/// Reads the vport context.
pub fn vport(device: &Device, r: &mut Recorder<'_>) -> Result<(), Error> {
    if device.link_layer() == LinkLayer::InfiniBand {
        let context = device.function.hca_vport()?;
        r.page(Page::new("vport context".into(), HcaVportContext::FIELDS, context.as_bytes()));
        return Ok(());
    }
    let input = QueryNicVportContextIn::zeroed();
    let out: QueryNicVportContextOut = device.function.call(Opcode::QueryNicVportContext, 0, &input)?;
    let context = out.nic_vport_context();
    r.page(Page::new("vport context".into(), NicVportContext::FIELDS, context.as_bytes()));
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fields_are_numbers_and_long_ones_are_bytes() {
        let context = NicVportContext::with(|s| s.mtu(1522).roce_en(true).node_guid(0x0102_0304_0506_0708));
        let page = Page::new("it".into(), NicVportContext::FIELDS, context.as_bytes());
        assert_eq!(page.field("mtu"), Some("1522"));
        assert_eq!((page.field("roce_en"), page.field("event_on_mtu")), (Some("1"), Some("0")));
        assert_eq!(page.field("node_guid"), Some("72623859790382856"));
        assert_eq!(page.fields.len(), NicVportContext::FIELDS.len());
        assert!(page.bytes.len() < NicVportContext::SIZE && page.bytes.last() != Some(&0));
        let long = Field { name: "long", offset: 8, width: 72, inner: &[] };
        assert_eq!(value(&long, &[0, 1, 2, 3, 4, 5, 6, 7, 8, 9]), "010203040506070809");
        assert_eq!(value(&long, &[0; 3]), "");
    }
}
