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

    /// Opens a second context on the device of this one, with which it shares events.
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

/// The errno of a step `what` without which no device opens. It is also reported on stderr, since few programs print
/// an errno.
fn without(what: &str) -> impl FnOnce(std::io::Error) -> c_int {
    move |error| {
        eprintln!("ironverbs: cannot {what}: {error}");
        io_errno(error)
    }
}

/// Opens a device. Takes over `cmd_fd`.
///
/// # Safety
/// Called by libibverbs with a device [`crate::matching::alloc_device`] made.
pub unsafe extern "C" fn alloc_context(
    device: *mut ibv_device,
    cmd_fd: c_int,
    _private: *mut c_void,
) -> *mut verbs_context {
    guard_ptr(|| {
        // SAFETY: our device, as libibverbs has taken it over.
        let registration = unsafe { Registration::of(device) };
        let layout = &registration.layout;
        let operations = table::fill(&layout.ops).map_err(|_| libc::ENOSYS)?;
        // SAFETY: our device; the room exceeds the library's part and our pointer behind it.
        let (place, base) = unsafe {
            (&(*device.cast::<IronDevice>()).place, layout.library.init_context(device, cmd_fd, CONTEXT_ROOM))
        };
        let open = |async_file| Context::open(registration, place, async_file);
        // SAFETY: a context the library just initialised, known to nobody else.
        let made = unsafe { finish(layout, base, cmd_fd, &operations, open) }?;
        // SAFETY: laid out as the library does.
        import::enter_context(cmd_fd, unsafe { made.cast::<u8>().add(layout.context_offset()).cast() });
        Ok(made)
    })
}

/// Opens the device of another context of this process a second time (`ibv_import_device`). The library takes the first
/// device with the file's number, which is any of ours: whose file it is tells which. EOPNOTSUPP: no context's.
///
/// # Safety
/// Called by libibverbs with a device of ours.
pub unsafe extern "C" fn import_context(device: *mut ibv_device, cmd_fd: c_int) -> *mut verbs_context {
    guard_ptr(|| {
        // SAFETY: our device, as libibverbs has taken it over.
        let registration = unsafe { Registration::of(device) };
        let layout = &registration.layout;
        let operations = table::fill(&layout.ops).map_err(|_| libc::ENOSYS)?;
        let other = import::context_behind(cmd_fd)?;
        // SAFETY: an open context of ours. A device of another libibverbs is not this one's to count.
        if !std::ptr::eq(unsafe { Context::of(other) }.registration, registration) {
            return Err(libc::EOPNOTSUPP);
        }
        // SAFETY: an open context of ours; the room exceeds the library's part and our pointer behind it.
        let base = unsafe { layout.library.init_context((*other).device, cmd_fd, CONTEXT_ROOM) };
        // SAFETY: an open context of ours, which `context_behind` found and V1 keeps open during the call.
        let open = |silent| unsafe { Context::of(other) }.again(silent);
        // SAFETY: a context the library just initialised, known to nobody else.
        let made = unsafe { finish(layout, base, cmd_fd, &operations, open) }?;
        // SAFETY: laid out as the library does.
        import::enter_context(cmd_fd, unsafe { made.cast::<u8>().add(layout.context_offset()).cast() });
        Ok(made)
    })
}

/// Joins the library's part and ours, or gives the library's part back.
///
/// # Safety
/// `base` is null or a fresh context that nobody knows.
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
    // SAFETY: the caller's promise: nobody else knows `base`.
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
    // SAFETY: the caller's promise. The event descriptor is set before the library would ask the kernel for one, and
    // closed by it.
    unsafe {
        let context = &mut *base.add(layout.context_offset()).cast::<ibv_context>();
        context.async_fd = async_file.reader();
        let ours = open(async_file)?;
        context.num_comp_vectors = ours.device.attr().num_comp_vectors.max(1) as c_int;
        channel::enter(cmd_fd, &ours.channels);
        base.add(layout.context_size).cast::<*mut Context>().write(Box::into_raw(ours));
        layout.library.set_ops(base, operations);
    }
    Ok(base.cast())
}

/// Gives the library's part back.
unsafe fn discard(layout: &Layout, base: *mut u8) {
    // SAFETY: from init_context, used by nobody; the library allocated it with the C allocator.
    unsafe {
        layout.library.uninit_context(base);
        libc::free(base.cast());
    }
}

/// Closes a device. Programs exist that close it before they destroy what they made (pyverbs when a test is skipped):
/// then all of it stays until the process ends.
///
/// # Safety
/// Called by libibverbs with an open context of ours.
pub unsafe extern "C" fn free_context(context: *mut ibv_context) {
    guard((), || {
        // SAFETY: V1.
        let ours = unsafe { Context::of(context) };
        if ours.users.none().is_err() {
            return;
        }
        let layout = &ours.registration.layout;
        import::leave_context(context);
        // SAFETY: from Box::into_raw in `join`; the last use.
        let ours = unsafe { Box::from_raw(std::ptr::from_ref(Context::of(context)).cast_mut()) };
        if ours.birth.is_here() {
            ours.close();
        } else {
            std::mem::forget(ours);
        }
        // SAFETY: the start of the allocation, found the way it was laid out.
        unsafe { discard(layout, context.cast::<u8>().sub(layout.context_offset())) }
    });
}
