//! A function on its socket, serving one client after another.

use super::{
    Function, session,
    vhost::{Device, Sriov},
};
use std::{
    net::Shutdown,
    os::unix::net::UnixStream,
    panic::{AssertUnwindSafe, catch_unwind},
    path::Path,
    sync::{Arc, Mutex, PoisonError},
    thread::JoinHandle,
    time::Duration,
};
use vfio_user_proto::{Connection, Error, Listener};

/// Delay after a client could not be accepted because this process has no descriptors left.
const RETRY: Duration = Duration::from_millis(100);

struct Shared {
    listener: Listener,
    function: Arc<dyn Function>,
    /// The function at a vhost-user socket; `None` at a vfio-user socket.
    device: Option<Device>,
    client: Mutex<Client>,
}

/// The connected client.
enum Client {
    None,
    Some(UnixStream),
    /// No more clients are accepted.
    Closed,
}

/// A function that listens on its socket. Dropping it ends the session, resets the function and removes the socket.
pub struct Plug {
    shared: Arc<Shared>,
    thread: Option<JoinHandle<()>>,
}

impl Plug {
    /// Creates a vfio-user socket at `path` and serves `function` there, on a separate thread.
    pub fn new(path: &Path, function: Arc<dyn Function>) -> Result<Self, Error> {
        Self::after(path, function, || {})
    }

    /// Like [`new`](Self::new), but the thread calls `first` before it accepts clients.
    pub fn after(
        path: &Path,
        function: Arc<dyn Function>,
        first: impl FnOnce() + Send + 'static,
    ) -> Result<Self, Error> {
        Self::start(path, function, None, first)
    }

    /// Creates a vhost-user socket at `path` and serves function `fid` of `sriov` there (or a single device without SR-IOV), on
    /// a separate thread that calls `first` before it accepts clients.
    pub fn virtio(
        path: &Path,
        function: Arc<dyn Function>,
        (fid, sriov): (u8, Option<Arc<Sriov>>),
        first: impl FnOnce() + Send + 'static,
    ) -> Result<Self, Error> {
        let device = Device::new(function.clone(), fid, sriov);
        let device = device.map_err(|e| Error::System("make a pair of sockets", e))?;
        Self::start(path, function, Some(device), first)
    }

    fn start(
        path: &Path,
        function: Arc<dyn Function>,
        device: Option<Device>,
        first: impl FnOnce() + Send + 'static,
    ) -> Result<Self, Error> {
        let listener = Listener::bind(path)?;
        let name = if device.is_some() { "vhost-user" } else { "vfio-user" };
        let shared = Arc::new(Shared { listener, function, device, client: Mutex::new(Client::None) });
        let theirs = shared.clone();
        let builder = std::thread::Builder::new().name(name.into());
        let thread = builder.spawn(move || {
            first();
            theirs.serve();
        });
        let thread = thread.map_err(|e| Error::System("start a thread", e))?;
        Ok(Self { shared, thread: Some(thread) })
    }

    /// Path of the socket.
    pub fn path(&self) -> &Path {
        self.shared.listener.path()
    }

    /// True if a client is connected.
    pub fn in_use(&self) -> bool {
        matches!(*self.shared.client(), Client::Some(_))
    }
}

impl Drop for Plug {
    fn drop(&mut self) {
        if let Client::Some(client) = std::mem::replace(&mut *self.shared.client(), Client::Closed) {
            let _ = client.shutdown(Shutdown::Both);
        }
        self.shared.listener.close();
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

impl Shared {
    fn client(&self) -> std::sync::MutexGuard<'_, Client> {
        self.client.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn serve(&self) {
        loop {
            let handles = self.listener.accept().and_then(|client| {
                let other = client.try_clone().map_err(|e| Error::System("duplicate a descriptor", e))?;
                Ok((client, other))
            });
            let (client, other) = match handles {
                Ok(handles) => handles,
                Err(Error::Closed) => return,
                Err(error) => {
                    if matches!(*self.client(), Client::Closed) {
                        return;
                    }
                    tracing::warn!(%error, "no client could be let in");
                    std::thread::sleep(RETRY);
                    continue;
                }
            };
            match &mut *self.client() {
                Client::Closed => return,
                place => *place = Client::Some(other),
            }
            let path = self.listener.path().display().to_string();
            tracing::info!(path, "client");
            // A function that panics must not take down the others.
            let ended = catch_unwind(AssertUnwindSafe(|| match &self.device {
                Some(device) => device.serve(&client),
                None => session::serve(Connection::new(client)?, &*self.function),
            }));
            match ended {
                Ok(Ok(())) => tracing::info!(path, "client left"),
                Ok(Err(error)) => tracing::warn!(path, %error, "client thrown out"),
                Err(_) => {
                    tracing::error!(path, "client thrown out: the device failed");
                    self.function.guest().irqs.fail();
                }
            }
            self.function.guest().forget();
            let _ = catch_unwind(AssertUnwindSafe(|| {
                self.function.reset();
                if let Some(device) = &self.device {
                    device.leave();
                }
            }));
            match &mut *self.client() {
                Client::Closed => return,
                place => *place = Client::None,
            }
        }
    }
}

impl std::fmt::Debug for Plug {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Plug").field("path", &self.path()).finish()
    }
}
