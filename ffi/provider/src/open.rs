//! Opening and closing devices.

use crate::abi::ops::MAX_OPS;
use crate::abi::probe::{CONTEXT_ROOM, Layout};
use crate::abi::public::{ibv_context, ibv_device};
use crate::abi::verbs_types::verbs_context;
use crate::channel::{self, Channels};
use crate::clock::WallClock;
use crate::context::{Context, io_errno};
use crate::device::IronDevice;
use crate::events::{AsyncFile, Pump, Targets};
use crate::guard::{Birth, guard, guard_ptr};
use crate::import;
use crate::registration::Registration;
use crate::table;
use crate::users::Users;
use libc::{c_int, c_void};
use node::place::Place;
use std::os::fd::RawFd;
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
///
/// # Safety
/// Called by libibverbs with a device that [`crate::matching::alloc_device`] returned.
pub unsafe extern "C" fn alloc_context(
    device: *mut ibv_device,
    cmd_fd: c_int,
    _private: *mut c_void,
) -> *mut verbs_context {
    guard_ptr(|| {
        // SAFETY: a device of this provider, initialized by libibverbs.
        let registration = unsafe { Registration::of(device) };
        let layout = &registration.layout;
        let operations = table::fill(&layout.ops).map_err(|_| libc::ENOSYS)?;
        // SAFETY: a device of this provider; the room exceeds the library's part plus the provider's pointer behind it.
        let (place, base) = unsafe {
            (&(*device.cast::<IronDevice>()).place, layout.library.init_context(device, cmd_fd, CONTEXT_ROOM))
        };
        let open = |async_file| Context::open(registration, place, async_file);
        // SAFETY: the library has just initialized the context, which is not shared yet.
        let made = unsafe { finish(layout, base, cmd_fd, &operations, open) }?;
        // SAFETY: the offset is from the library's layout.
        import::enter_context(cmd_fd, unsafe { made.cast::<u8>().add(layout.context_offset()).cast() });
        Ok(made)
    })
}

/// Opens the device of another context of this process again (`ibv_import_device`). The library passes the first device with the file's
/// number, which may be any device of this provider: the file decides which context is meant. Fails with EOPNOTSUPP if the file belongs to
/// no context.
///
/// # Safety
/// Called by libibverbs with a device of this provider.
pub unsafe extern "C" fn import_context(device: *mut ibv_device, cmd_fd: c_int) -> *mut verbs_context {
    guard_ptr(|| {
        // SAFETY: a device of this provider, initialized by libibverbs.
        let registration = unsafe { Registration::of(device) };
        let layout = &registration.layout;
        let operations = table::fill(&layout.ops).map_err(|_| libc::ENOSYS)?;
        let other = import::context_behind(cmd_fd)?;
        // SAFETY: an open context of this provider. Devices of another libibverbs instance cannot be imported: this one does not count
        // their users.
        if !std::ptr::eq(unsafe { Context::of(other) }.registration, registration) {
            return Err(libc::EOPNOTSUPP);
        }
        // SAFETY: an open context of this provider; the room exceeds the library's part plus the provider's pointer behind it.
        let base = unsafe { layout.library.init_context((*other).device, cmd_fd, CONTEXT_ROOM) };
        // SAFETY: an open context of this provider, which `context_behind` found and V1 keeps open during the call.
        let open = |silent| unsafe { Context::of(other) }.again(silent);
        // SAFETY: the library has just initialized the context, which is not shared yet.
        let made = unsafe { finish(layout, base, cmd_fd, &operations, open) }?;
        // SAFETY: the offset is from the library's layout.
        import::enter_context(cmd_fd, unsafe { made.cast::<u8>().add(layout.context_offset()).cast() });
        Ok(made)
    })
}

/// Joins the library's and the provider's part of a context; on failure frees the library's part.
///
/// # Safety
/// `base` is null or a fresh context that is not shared yet.
unsafe fn finish(
    layout: &Layout,
    base: *mut u8,
    cmd_fd: RawFd,
    operations: &[*const c_void; MAX_OPS],
    open: impl FnOnce(AsyncFile) -> Result<Box<Context>, c_int>,
) -> Result<*mut verbs_context, c_int> {
    if base.is_null() {
        return Err(libc::ENOMEM);
    }
    // SAFETY: guaranteed by the caller: `base` is not shared yet.
    unsafe { join(layout, base, cmd_fd, operations, open).inspect_err(|_| discard(layout, base)) }
}

/// # Safety
/// `base` is a fresh context.
unsafe fn join(
    layout: &Layout,
    base: *mut u8,
    cmd_fd: RawFd,
    operations: &[*const c_void; MAX_OPS],
    open: impl FnOnce(AsyncFile) -> Result<Box<Context>, c_int>,
) -> Result<*mut verbs_context, c_int> {
    let async_file = AsyncFile::new().map_err(without("make the file of a device's events"))?;
    // SAFETY: guaranteed by the caller. The event descriptor is set before the library would ask the kernel for one; the library closes it.
    // Programs keep the buffers of their receives, as ibv_post_recv(3) demands.
    unsafe {
        let context = &mut *base.add(layout.context_offset()).cast::<ibv_context>();
        context.async_fd = async_file.reader();
        let ours = open(async_file)?;
        ours.device.receive_in_cqes();
        context.num_comp_vectors = ours.device.attr().num_comp_vectors.max(1) as c_int;
        channel::enter(cmd_fd, &ours.channels);
        base.add(layout.context_size).cast::<*mut Context>().write(Box::into_raw(ours));
        layout.library.set_ops(base, operations);
    }
    Ok(base.cast())
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
///
/// # Safety
/// Called by libibverbs with an open context of this provider.
pub unsafe extern "C" fn free_context(context: *mut ibv_context) {
    guard((), || {
        // SAFETY: V1.
        let ours = unsafe { Context::of(context) };
        if ours.users.none().is_err() {
            return;
        }
        let layout = &ours.registration.layout;
        import::leave_context(context);
        // SAFETY: from Box::into_raw in `join`; this is the last use.
        let ours = unsafe { Box::from_raw(std::ptr::from_ref(Context::of(context)).cast_mut()) };
        if ours.birth.is_here() {
            ours.close();
        } else {
            std::mem::forget(ours);
        }
        // SAFETY: the start of the allocation, by the same offset that was used to set it up.
        unsafe { discard(layout, context.cast::<u8>().sub(layout.context_offset())) }
    });
}
