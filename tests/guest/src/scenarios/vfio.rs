//! Functions bound to vfio-pci in the guest, behind a virtual IOMMU.

use crate::images::Images;
use crate::machine::{Guest, Plan};
use crate::server::{self, Server};
use crate::{Outcome, failed, log};

/// Binds the function at a slot to vfio-pci.
pub fn bind(guest: &mut Guest, slot: u32) -> Outcome {
    let script = format!(
        "modprobe vfio-pci && cd /sys/bus/pci/devices/0000:00:{slot:02x}.0 && echo vfio-pci >driver_override && \
         echo 0000:00:{slot:02x}.0 >/sys/bus/pci/drivers_probe && [ \"$(basename \"$(readlink driver)\")\" = vfio-pci ] && \
         [ -c /dev/vfio/$(basename \"$(readlink iommu_group)\") ]"
    );
    guest.run(30, &script).map(drop)
}

/// rdma-core's own user-space driver for a function on vfio-pci, by rdma-core's own test.
pub fn pyverbs(images: &Images) -> Outcome {
    let mut server =
        Server::start(&server::Plan { functions: vec![0], infiniband: true, ..Default::default() })?;
    let mut guest = Guest::boot(images, Plan::new("pyverbs").iommu().plug(server.socket(0)))?;
    bind(&mut guest, 0x10)?;
    let output = guest.try_run(
        150,
        "mkdir /tmp/t && ln -s /usr/lib/rdma-core-tests /tmp/t/tests && cd /tmp/t &&
python3 tests/run_tests.py --pci-dev 0000:00:10.0 -v tests.test_mlx5_vfio",
    )?;
    let passed = output.text.matches("... ok").count();
    if output.status != 0 || passed != 2 || output.text.contains("skipped") {
        return failed(format!("expected two tests to pass, status {}:\n{}", output.status, output.text));
    }
    log::clean(&mut guest)?;
    guest.power_off()?;
    server.check()
}
