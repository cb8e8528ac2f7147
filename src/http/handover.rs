//! Listening sockets that stay open while the daemon starts anew in its process: who connects meanwhile waits in the
//! kernel's backlog, and nobody is refused.

use std::os::fd::{AsRawFd, OwnedFd, RawFd};
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use ledge_base::sys;
use rustix::io::FdFlags;
use serde::{Deserialize, Serialize};

use super::config::ListenAddress;

/// The variable in which a program tells the next one of its process which sockets it left open.
pub const VARIABLE: &str = "LEDGE_LISTENERS";

/// Sockets on their way from one program of this process to the next. Clones share them.
#[derive(Debug, Clone, Default)]
pub struct Handover {
    sockets: Arc<Mutex<Vec<Kept>>>,
}

/// A socket that is kept open.
#[derive(Debug)]
struct Kept {
    address: ListenAddress,
    socket: OwnedFd,
    file: Option<SocketFile>,
}

/// Removes a socket's file when the listener is gone.
#[derive(Debug)]
pub(super) struct SocketFile(Option<PathBuf>);

impl SocketFile {
    pub(super) fn new(path: PathBuf) -> Self {
        Self(Some(path))
    }
}

impl Drop for SocketFile {
    fn drop(&mut self) {
        if let Some(path) = &self.0 {
            let _ = std::fs::remove_file(path);
        }
    }
}

/// What the variable says.
#[derive(Debug, Serialize, Deserialize)]
struct Left {
    /// Of the process that they were left in: they are no child's.
    pid: u32,
    sockets: Vec<(RawFd, ListenAddress)>,
}

impl Handover {
    /// What the program before left open in this process; nothing when asked again.
    pub fn taken() -> Self {
        static TAKEN: AtomicBool = AtomicBool::new(false);
        let text = std::env::var(VARIABLE).ok().filter(|_| !TAKEN.swap(true, Ordering::Relaxed));
        let left = text.and_then(|text| serde_json::from_str::<Left>(&text).ok());
        let left = left.filter(|left| left.pid == std::process::id()).map(|left| left.sockets).unwrap_or_default();
        let adopt = |(number, address): (RawFd, ListenAddress)| {
            let socket = sys::adopt_listener(number)?;
            // The children of this program shall not have it.
            rustix::io::fcntl_setfd(&socket, FdFlags::CLOEXEC).ok()?;
            let file = match &address {
                ListenAddress::Unix(path) => Some(SocketFile::new(path.clone())),
                ListenAddress::Tcp(_) | ListenAddress::Tls(_) => None,
            };
            Some(Kept { address, socket, file })
        };
        let sockets: Vec<_> = left.into_iter().filter_map(adopt).collect();
        Self { sockets: Arc::new(Mutex::new(sockets)) }
    }

    /// The socket of this address, if one was left. What nobody takes is closed with the last handle.
    pub(super) fn take(&self, address: &ListenAddress) -> Option<(OwnedFd, Option<SocketFile>)> {
        let mut sockets = self.sockets();
        let at = sockets.iter().position(|kept| kept.address == *address)?;
        let Kept { socket, file, .. } = sockets.swap_remove(at);
        Some((socket, file))
    }

    /// Closes what was left for addresses that are not among these.
    pub(super) fn retain(&self, addresses: &[ListenAddress]) {
        self.sockets().retain(|kept| addresses.contains(&kept.address));
    }

    /// Closes what nobody took.
    pub(super) fn clear(&self) {
        self.sockets().clear();
    }

    /// Keeps a socket open for the next program.
    pub(super) fn keep(&self, address: ListenAddress, socket: OwnedFd, file: Option<SocketFile>) {
        self.sockets().push(Kept { address, socket, file });
    }

    /// Leaves the sockets open for the program that is started next in this process, and gives the value of [`VARIABLE`] for
    /// it.
    pub fn leave(&self) -> String {
        let mut sockets = Vec::new();
        for Kept { address, socket, file } in self.sockets().drain(..) {
            if let Err(error) = rustix::io::fcntl_setfd(&socket, FdFlags::empty()) {
                tracing::warn!(%address, %error, "the socket cannot be handed over; who connects meanwhile is refused");
                continue;
            }
            sockets.push((socket.as_raw_fd(), address));
            // From here on they are the next program's.
            std::mem::forget((socket, file));
        }
        serde_json::to_string(&Left { pid: std::process::id(), sockets }).unwrap_or_default()
    }

    fn sockets(&self) -> MutexGuard<'_, Vec<Kept>> {
        // Nothing panics under this lock.
        self.sockets.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_socket_goes_to_the_address_that_it_was_bound_for_and_to_no_other() {
        let handover = Handover::default();
        let address = |text: &str| text.parse::<ListenAddress>().unwrap();
        let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        let bound = listener.local_addr().unwrap();
        handover.keep(address("https://127.0.0.1:0"), listener.into(), None);
        assert!(handover.take(&address("127.0.0.1:0")).is_none());
        let (socket, _) = handover.take(&address("https://127.0.0.1:0")).unwrap();
        assert_eq!(std::net::TcpListener::from(socket).local_addr().unwrap(), bound);
        assert!(handover.take(&address("https://127.0.0.1:0")).is_none());
    }

    #[test]
    fn what_is_kept_and_not_left_ends_with_its_file() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("socket");
        let listener = std::os::unix::net::UnixListener::bind(&path).unwrap();
        let handover = Handover::default();
        handover.keep(ListenAddress::Unix(path.clone()), listener.into(), Some(SocketFile::new(path.clone())));
        handover.clear();
        assert!(!path.exists());
    }

    #[test]
    fn what_is_no_listening_socket_is_nobodys_to_take() {
        let file = tempfile::tempfile().unwrap();
        assert!(sys::adopt_listener(file.as_raw_fd()).is_none());
        assert!(sys::adopt_listener(-1).is_none());
        assert!(rustix::io::fcntl_getfd(&file).is_ok(), "and stays open");
    }
}
