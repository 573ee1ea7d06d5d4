//! The generic SR-IOV sequence on QEMU's igb, a card that is not part of this model.

use crate::images::Images;
use crate::machine::{Guest, Plan};
use crate::{Outcome, log};

/// `ironverbs vf`, checked against sysfs; our transport, checked by the kernel's VFIO.
const SEQUENCE: &str = r#"
pf=0000:01:00.0
sys=/sys/bus/pci/devices
wrong() { echo "expected $1, found $2"; exit 1; }
vfs=$(/built/ironverbs vf create $pf 2) || exit 1
[ "$(cat $sys/$pf/sriov_numvfs)" = 2 ] || wrong "two VFs" "$(cat $sys/$pf/sriov_numvfs)"
for n in 0 1; do
    vf=$(basename "$(readlink $sys/$pf/virtfn$n)")
    echo "$vfs" | grep -q "$vf" || wrong "$vf printed by vf create" "$vfs"
    /built/ironverbs vf bind $vf || exit 1
    [ "$(basename "$(readlink $sys/$vf/driver)")" = vfio-pci ] || wrong "$vf on vfio-pci" "$(readlink $sys/$vf/driver)"
    group=$(basename "$(readlink $sys/$vf/iommu_group)")
    [ -c /dev/vfio/$group ] || wrong "/dev/vfio/$group" "$(ls /dev/vfio)"
done
list=$(/built/ironverbs vf list) || exit 1
echo "$list" | grep "$vf" | grep -q vfio-pci || wrong "$vf on vfio-pci in vf list" "$list"
/built/examples/vfio_probe $vf || exit 1
/built/examples/vfio_second_opinion $vf || exit 1
/built/ironverbs vf unbind $vf || exit 1
[ ! -e $sys/$vf/driver ] || wrong "$vf without driver" "$(readlink $sys/$vf/driver)"
/built/ironverbs vf bind $vf igbvf && [ "$(basename "$(readlink $sys/$vf/driver)")" = igbvf ] || wrong "$vf on igbvf" "$(readlink $sys/$vf/driver)"
! /built/ironverbs vf create $pf 4000 2>/tmp/said || wrong "4000 VFs refused" "success"
cat /tmp/said
! /built/ironverbs vf bind 0000:07:00.0 2>/tmp/said || wrong "a function that is not there refused" "success"
cat /tmp/said
/built/ironverbs vf create $pf 0 || exit 1
[ ! -e $sys/$pf/virtfn0 ] || wrong "no VFs any more" "$(ls $sys/$pf)"
"#;

/// Creates VFs, binds them to VFIO and back, and removes them; impossible requests are refused with a message.
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
    guest.run(60, "modprobe -a vfio-pci igb igbvf")?;
    let said = guest.run(90, SEQUENCE)?;
    said.lines().for_each(|line| println!("    {line}"));
    log::clean_but(&mut guest, &["VF", "igbvf", "0000:01:1"])?;
    guest.power_off()
}
