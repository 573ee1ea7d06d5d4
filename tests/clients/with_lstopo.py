"""hwloc's lstopo: it shows each device of the node as an OpenFabrics object, below its PCI device."""

import xml.etree.ElementTree

# HWLOC_OBJ_OSDEV_OPENFABRICS
OPENFABRICS = "3"


def install():
    from bed import need

    return need("lstopo")


def check(bed, lstopo):
    from bed import VFS, expect

    functions = {f"iron{n}": f"0000:c1:{n >> 3:02x}.{n & 7}" for n in range(VFS + 1)}
    drawn = bed.run(lstopo, "--of", "console", seconds=30)
    for device in functions:
        expect(f'OpenFabrics "{device}"' in drawn, f"expected {device} in lstopo's picture, found {drawn[-400:]!r}")
    tree = xml.etree.ElementTree.fromstring(bed.run(lstopo, "--of", "xml", seconds=30))
    above = {child: parent for parent in tree.iter() for child in parent}
    found = {
        thing.get("name"): above[thing].get("pci_busid")
        for thing in tree.iter("object")
        if thing.get("osdev_type") == OPENFABRICS
    }
    expect(functions.items() <= found.items(), f"expected the PCI devices {functions} above the devices, found {found}")
    return f"{', '.join(functions)}, each below its PCI device"
