//! Compares two views of a PCI function that is bound to vfio-pci: rust-vmm's vfio-ioctls and our transport must find
//! the same. Then checks the faults that keep vfio-ioctls out of the driver (docs/packages.md), and fails once one of
//! them is fixed.
//!
//! `vfio_second_opinion 0000:00:04.0` prints a line for each check and exits with 1 if one fails. It writes nothing to
//! the function.

use ironverbs_driver::{
    pci::Address,
    transport::{Transport, Width, vfio::VfioTransport},
};
use std::{
    fs, io,
    os::unix::fs::symlink,
    panic::{AssertUnwindSafe, catch_unwind},
    path::{Path, PathBuf},
    process::ExitCode,
    sync::Arc,
};
use vfio_bindings::bindings::vfio::{VFIO_PCI_CONFIG_REGION_INDEX, VFIO_PCI_MSIX_IRQ_INDEX};
use vfio_ioctls::{VfioContainer, VfioDevice};

type Try<T = ()> = Result<T, String>;

/// The properties of a function that both can read.
#[derive(Debug, PartialEq, Eq)]
struct View {
    /// Type 0 header, without command and status registers.
    header: Vec<u32>,
    /// Implemented BARs.
    bars: Vec<u8>,
    /// MSI-X vectors.
    vectors: u32,
}

/// Dwords of the header, except the second, which opening the function may change.
fn header() -> impl Iterator<Item = u16> {
    (0..16).filter(|dword| *dword != 1).map(|dword| 4 * dword)
}

fn main() -> ExitCode {
    let Some(address) = std::env::args().nth(1) else {
        eprintln!("vfio_second_opinion: expected a PCI address");
        return ExitCode::FAILURE;
    };
    match run(&address) {
        Ok(()) => ExitCode::SUCCESS,
        Err(why) => {
            println!("FAILED {why}");
            ExitCode::FAILURE
        }
    }
}

fn check(ok: bool, what: &str) -> Try {
    if !ok {
        return Err(what.into());
    }
    println!("ok {what}");
    Ok(())
}

fn said(error: impl ToString) -> String {
    error.to_string()
}

fn run(text: &str) -> Try {
    let address: Address = text.parse()?;
    let there = Path::new("/sys/bus/pci/devices").join(text);
    let theirs = Theirs::open(&there)?.view();
    let device = VfioTransport::open(address).map_err(said)?;
    check(true, "what vfio-ioctls lets go of can be opened")?;
    let ours = view(&device).map_err(said)?;
    if theirs != ours {
        return Err(format!("vfio-ioctls finds {theirs:x?}, we {ours:x?}"));
    }
    check(true, "header, BARs and vectors are what vfio-ioctls finds")?;
    let refused = Theirs::open(&there).err().unwrap_or_default();
    println!("ok vfio-ioctls of a function that is in use: {refused}");
    check(!refused.is_empty(), "a function that we have open is refused to it")?;
    drop(device);
    let scratch = std::env::temp_dir().join(format!("vfio_second_opinion-{}", std::process::id()));
    let found = faults(address, &there, &scratch);
    let _ = fs::remove_dir_all(&scratch);
    found
}

/// The function opened through vfio-ioctls.
struct Theirs {
    device: VfioDevice,
    container: Arc<VfioContainer>,
}

impl Theirs {
    fn open(there: &Path) -> Try<Self> {
        let container = Arc::new(VfioContainer::new(None).map_err(said)?);
        let device = VfioDevice::new(there, container.clone(), false).map_err(said)?;
        Ok(Self { device, container })
    }

    fn view(&self) -> View {
        let read = |at: u16| {
            let mut bytes = [0; 4];
            self.device.region_read(VFIO_PCI_CONFIG_REGION_INDEX, &mut bytes, at.into());
            u32::from_le_bytes(bytes)
        };
        let bars = (0..6).filter(|bar| self.device.get_region_size(u32::from(*bar)) > 0);
        let vectors = self.device.get_irq_info(VFIO_PCI_MSIX_IRQ_INDEX).map_or(0, |irq| irq.count);
        View { header: header().map(read).collect(), bars: bars.collect(), vectors }
    }
}

fn view(device: &VfioTransport) -> io::Result<View> {
    Ok(View {
        header: header().map(|at| device.config_read(at, Width::B4)).collect::<Result<_, _>>()?,
        bars: (0..6).filter(|bar| device.bar(*bar).is_ok()).collect(),
        vectors: device.vectors(),
    })
}

/// Creates a directory `name` with the same `iommu_group` link as the function's sysfs directory.
fn entry_like(there: &Path, scratch: &Path, name: &str) -> io::Result<PathBuf> {
    let place = scratch.join(name);
    fs::create_dir_all(&place)?;
    symlink(fs::read_link(there.join("iommu_group"))?, place.join("iommu_group"))?;
    Ok(place)
}

fn faults(address: Address, there: &Path, scratch: &Path) -> Try {
    let name = address.to_string();
    let Theirs { device, container } = Theirs::open(there)?;
    let mut bytes = [0xa5; 4];
    device.region_read(VFIO_PCI_CONFIG_REGION_INDEX, &mut bytes, 1 << 20);
    check(bytes == [0xa5; 4], "vfio-ioctls: a read that fails is not told")?;
    drop((device, container));

    let container = Arc::new(VfioContainer::new(None).map_err(said)?);
    let another = entry_like(there, scratch, "ffff:ff:1f.7").map_err(said)?;
    let failed = VfioDevice::new(&another, container.clone(), false).is_err();
    let busy = VfioTransport::open(address).is_err();
    check(failed && busy, "vfio-ioctls: a function that cannot be opened keeps its group from others")?;
    drop(container);

    let place = entry_like(there, scratch, &name).map_err(said)?;
    let Theirs { device, container } = Theirs::open(&place)?;
    fs::remove_dir_all(&place).map_err(said)?;
    std::panic::set_hook(Box::new(|_| {}));
    let panicked = catch_unwind(AssertUnwindSafe(|| drop(device))).is_err();
    check(panicked, "vfio-ioctls: letting go of a function whose sysfs entry is gone panics")?;
    drop(container);
    VfioTransport::open(address).map(drop).map_err(said)
}
