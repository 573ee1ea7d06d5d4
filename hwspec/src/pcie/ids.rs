//! PCI device IDs of the adapters with this programming interface (Linux: `mlx5_core_pci_table`).

/// An adapter, and the device IDs of its functions.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Adapter {
    /// The vendor's name.
    pub name: &'static str,
    /// Device ID of its physical functions.
    pub physical: u16,
    /// Device ID of its virtual functions. Several adapters share [`GENERIC_VF`].
    pub virtual_function: u16,
}

/// Virtual functions of ConnectX-6 Dx and all later adapters.
pub const GENERIC_VF: u16 = 0x101e;

const fn adapter(name: &'static str, physical: u16, virtual_function: u16) -> Adapter {
    Adapter { name, physical, virtual_function }
}

/// All adapters.
pub const ADAPTERS: [Adapter; 16] = [
    adapter("ConnectX-4", 0x1013, 0x1014),
    adapter("ConnectX-4 Lx", 0x1015, 0x1016),
    adapter("ConnectX-5", 0x1017, 0x1018),
    adapter("ConnectX-5 Ex", 0x1019, 0x101a),
    adapter("ConnectX-6", 0x101b, 0x101c),
    adapter("ConnectX-6 Dx", 0x101d, GENERIC_VF),
    adapter("ConnectX-6 Lx", 0x101f, GENERIC_VF),
    adapter("ConnectX-7", 0x1021, GENERIC_VF),
    adapter("ConnectX-8", 0x1023, GENERIC_VF),
    adapter("ConnectX-9", 0x1025, GENERIC_VF),
    adapter("ConnectX-10", 0x1027, GENERIC_VF),
    adapter("ConnectX-10 NVLink-C2C", 0x2101, GENERIC_VF),
    adapter("BlueField", 0xa2d2, 0xa2d3),
    adapter("BlueField-2", 0xa2d6, GENERIC_VF),
    adapter("BlueField-3", 0xa2dc, GENERIC_VF),
    adapter("BlueField-4", 0xa2df, GENERIC_VF),
];

/// A kind of function.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Known {
    /// Its adapter, or the common name of several adapters.
    pub name: &'static str,
    /// True for a virtual function.
    pub is_virtual: bool,
}

/// Looks up a device ID. `None` if it belongs to none of these adapters.
pub fn known(device: u16) -> Option<Known> {
    let physical = ADAPTERS.iter().find(|adapter| adapter.physical == device);
    let kind = physical.or_else(|| ADAPTERS.iter().find(|adapter| adapter.virtual_function == device))?;
    let name = if device == GENERIC_VF { "ConnectX-6 Dx or later" } else { kind.name };
    Some(Known { name, is_virtual: physical.is_none() })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn physical_and_virtual_functions_are_told_apart_over_the_whole_family() {
        let is_virtual = |device| known(device).map(|found| found.is_virtual);
        for physical in
            [0x1013, 0x1015, 0x1017, 0x1019, 0x101b, 0x101d, 0x101f, 0x1021, 0xa2d2, 0xa2d6, 0xa2dc]
        {
            assert_eq!(is_virtual(physical), Some(false), "{physical:#x}");
        }
        for virtual_function in [0x1014, 0x1016, 0x1018, 0x101a, 0x101c, 0x101e, 0xa2d3] {
            assert_eq!(is_virtual(virtual_function), Some(true), "{virtual_function:#x}");
        }
        assert_eq!(
            (is_virtual(0x1003), is_virtual(0x1007), is_virtual(0)),
            (None, None, None),
            "mlx4, and none"
        );
        assert_eq!(known(0x101e).map(|found| found.name), Some("ConnectX-6 Dx or later"));
    }
}
