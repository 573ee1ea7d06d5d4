//! Opening and closing devices.

use crate::abi::ops::MAX_OPS;
use crate::abi::probe::{CONTEXT_ROOM, Layout};
use crate::abi::public::{ibv_context, ibv_device};
use crate::abi::verbs_types::verbs_context;
use crate::channel::{self, Channels};
use crate::clock::WallClock;
use crate::context::{Context, io_errno};
use crate::events::{AsyncFile, Pump, Targets};
use crate::guard::{Birth, answer, guard};
use crate::import;
use crate::ours::{Last, Of};
use crate::registration::Registration;
use crate::table;
use crate::users::Users;
use libc::{c_int, c_void};
use node::place::Place;
use std::os::fd::RawFd;
use std::ptr::NonNull;
use std::sync::Arc;

impl Context {
    fn open(
        registration: &'static Registration,
        place: &Place,
        async_file: AsyncFile,
    ) -> Result<Box<Self>, c_int> {
        let device = place.open().map_err(|error| {
            eprintln!("ironverbs: {error}");
            error.errno()
        })?;
        let targets = Arc::new(Targets::new(async_file));
        let pump = Pump::start(Arc::clone(&device), Arc::clone(&targets));
        let pump = pump.map_err(without("start the thread that waits for a device's events"))?;
        let channels = Arc::new(Channels::default());
        Ok(Box::new(Self {
            device,
            birth: Birth::here(),
            channels,
            targets,
            users: Users::default(),
            huge: Arc::default(),
            wall: WallClock::default(),
            registration,
            exports: Arc::default(),
            pump: Arc::new(pump),
            _silent: None,
        }))
    }

    /// Creates another context on this context's device, which shares its events.
    fn again(&self, silent: AsyncFile) -> Result<Box<Self>, c_int> {
        self.birth.check()?;
        Ok(Box::new(Self {
            device: Arc::clone(&self.device),
            birth: Birth::here(),
            channels: Arc::default(),
            targets: Arc::clone(&self.targets),
            users: Users::default(),
            huge: Arc::default(),
            wall: WallClock::default(),
            registration: self.registration,
            exports: Arc::clone(&self.exports),
            pump: Arc::clone(&self.pump),
            _silent: Some(silent),
        }))
    }

    fn close(self) {
        channel::leave(&self.channels);
        // The last context that shares the device closes it.
        let Some(pump) = Arc::into_inner(self.pump) else { return };
        drop(self.device);
        if let Err(error) = pump.stop().close() {
            eprintln!("ironverbs: closing the device: {error}");
        }
    }
}

/// Returns the errno of a failed step, described by `what`, that opening a device depends on. Also reports it on stderr, since few programs
/// print an errno.
fn without(what: &str) -> impl FnOnce(std::io::Error) -> c_int {
    move |error| {
        eprintln!("ironverbs: cannot {what}: {error}");
        io_errno(error)
    }
}

/// Opens a device. Takes ownership of `cmd_fd`.
pub extern "C" fn alloc_context(
    device: Of<ibv_device>,
    cmd_fd: c_int,
    _private: *mut c_void,
) -> Option<NonNull<verbs_context>> {
    answer(|| set_up(device, cmd_fd, |file| Context::open(device.registration(), &device.place, file)))
}

/// Opens the device of another context of this process again (`ibv_import_device`). The library passes the first device with the file's
/// number, which may be any device of this provider: the file decides which context is meant. Fails with EOPNOTSUPP if the file belongs to
/// no context.
pub extern "C" fn import_context(device: Of<ibv_device>, cmd_fd: c_int) -> Option<NonNull<verbs_context>> {
    answer(|| {
        let other = import::context_behind(cmd_fd)?;
        // Devices of another libibverbs instance cannot be imported: this one does not count their users.
        if !std::ptr::eq(other.registration, device.registration()) {
            return Err(libc::EOPNOTSUPP);
        }
        set_up(other.library_device(), cmd_fd, |silent| other.again(silent))
    })
}

/// Joins the library's and the provider's part of a context; on failure frees the library's part.
fn set_up(
    device: Of<ibv_device>,
    cmd_fd: RawFd,
    open: impl FnOnce(AsyncFile) -> Result<Box<Context>, c_int>,
) -> Result<NonNull<verbs_context>, c_int> {
    let layout = &device.registration().layout;
    let operations = table::fill(&layout.ops).map_err(|_| libc::ENOSYS)?;
    // SAFETY: V1 for the device; the room exceeds the library's part plus the provider's pointer behind it.
    let base = unsafe { layout.library.init_context(device.raw().cast(), cmd_fd, CONTEXT_ROOM) };
    let base = NonNull::new(base).ok_or(libc::ENOMEM)?;
    // SAFETY: the library has just initialized the context, which is not shared yet.
    let context = unsafe {
        join(layout, base, cmd_fd, &operations, open).inspect_err(|_| discard(layout, base.as_ptr()))
    };
    import::enter_context(cmd_fd, context?);
    Ok(base.cast())
}

/// # Safety
/// `base` is a fresh context that is not shared yet.
unsafe fn join(
    layout: &Layout,
    base: NonNull<u8>,
    cmd_fd: RawFd,
    operations: &[*const c_void; MAX_OPS],
    open: impl FnOnce(AsyncFile) -> Result<Box<Context>, c_int>,
) -> Result<Of<ibv_context>, c_int> {
    let async_file = AsyncFile::new().map_err(without("make the file of a device's events"))?;
    // SAFETY: guaranteed by the caller. The event descriptor is set before the library would ask the kernel for one; the library closes it.
    // V1 and V2 hold for the context once the provider's part is behind it. Programs keep the buffers of their receives, as
    // ibv_post_recv(3) demands.
    unsafe {
        let context = base.add(layout.context_offset()).cast::<ibv_context>();
        (*context.as_ptr()).async_fd = async_file.reader();
        let ours = open(async_file)?;
        ours.device.receive_in_cqes();
        (*context.as_ptr()).num_comp_vectors = ours.device.attr().num_comp_vectors.max(1) as c_int;
        channel::enter(cmd_fd, &ours.channels);
        base.add(layout.context_size).cast::<*mut Context>().write(Box::into_raw(ours));
        layout.library.set_ops(base.as_ptr(), operations);
        Ok(Of::new(context))
    }
}

/// Frees the library's part of a context.
unsafe fn discard(layout: &Layout, base: *mut u8) {
    // SAFETY: from init_context and not in use; the library allocated it with the C allocator.
    unsafe {
        layout.library.uninit_context(base);
        libc::free(base.cast());
    }
}

/// Closes a device. Some programs close it before they destroy their objects (pyverbs when it skips a test): then everything stays
/// allocated until the process exits.
pub extern "C" fn free_context(context: Last<ibv_context>) {
    guard((), || {
        let of = context.of();
        if of.users.none().is_err() {
            return;
        }
        let layout = &of.registration.layout;
        import::leave_context(of);
        let ours = context.take();
        if ours.birth.is_here() {
            ours.close();
        } else {
            std::mem::forget(ours);
        }
        // SAFETY: V5: the last use; the start of the allocation, by the same offset that was used to set it up.
        unsafe { discard(layout, of.raw().cast::<u8>().sub(layout.context_offset())) }
    });
}
