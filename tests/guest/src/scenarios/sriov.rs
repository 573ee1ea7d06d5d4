//! The generic SR-IOV sequence, on QEMU's igb: a card nobody here modelled.

use crate::images::Images;
use crate::machine::{Guest, Plan};
use crate::{Outcome, log};

/// The PF's and the first VF's address behind a root port at slot 10.
const PF: &str = "0000:01:00.0";

const BY_SYSFS: &str = r#"
set -e
pf=/sys/bus/pci/devices/$PF
[ "$(cat $pf/sriov_totalvfs)" -ge 2 ] || { echo "expected two VFs at least, found $(cat $pf/sriov_totalvfs)"; exit 1; }
echo 2 >$pf/sriov_numvfs
for n in 0 1; do
    vf=$(basename "$(readlink $pf/virtfn$n)")
    dev=/sys/bus/pci/devices/$vf
    [ "$(basename "$(readlink $dev/physfn)")" = $PF ] || { echo "expected $vf to name its PF"; exit 1; }
    [ ! -e $dev/driver ] || echo $vf >$dev/driver/unbind
    echo vfio-pci >$dev/driver_override
    echo $vf >/sys/bus/pci/drivers_probe
    [ "$(basename "$(readlink $dev/driver)")" = vfio-pci ] || { echo "expected $vf on vfio-pci"; exit 1; }
    group=$(basename "$(readlink $dev/iommu_group)")
    [ -c /dev/vfio/$group ] || { echo "expected /dev/vfio/$group for $vf"; exit 1; }
    echo "$vf in group $group"
done
echo 0 >$pf/sriov_numvfs
[ ! -e $pf/virtfn0 ] || { echo "expected no VFs any more"; exit 1; }
"#;

/// The sequence by hand, so that what `ironverbs vf` does has something to be compared with.
pub fn run(images: &Images) -> Outcome {
    let plan = Plan::new("sriov").iommu().qemu([
        "-device",
        "pcie-root-port,id=rp,bus=pcie.0,addr=0x10,chassis=1,slot=1",
        "-netdev",
        "hubport,id=wire,hubid=0",
        "-device",
        "igb,bus=rp,netdev=wire",
    ]);
    let mut guest = Guest::boot(images, plan)?;
    guest.run(60, "modprobe -a vfio-pci igb")?;
    let said = guest.run(60, &BY_SYSFS.replace("$PF", PF))?;
    said.lines().for_each(|line| println!("    {line}"));
    log::clean(&mut guest)?;
    guest.power_off()
}
