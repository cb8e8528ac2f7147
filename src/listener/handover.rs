//! Listening sockets that stay open while the daemon restarts in its process: callers that connect meanwhile wait in
//! the kernel's backlog, and none is refused.

use std::os::fd::{AsRawFd, OwnedFd, RawFd};
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use ledge_base::sys;
use rustix::io::FdFlags;
use serde::{Deserialize, Serialize};

use super::address::ListenAddress;
use super::endpoint::ListenerEndpoint;

/// The environment variable with the sockets that a program leaves open for the next program of its process.
pub const LISTENERS_VARIABLE: &str = "LEDGE_LISTENERS";

/// The sockets that one program of this process hands over to the next. Clones share them.
#[derive(Debug, Clone, Default)]
pub struct Handover {
    sockets: Arc<Mutex<Vec<KeptSocket>>>,
}

/// A socket that stays open for the next program.
#[derive(Debug)]
struct KeptSocket {
    endpoint: ListenerEndpoint,
    socket: OwnedFd,
    file: Option<SocketFile>,
}

/// Removes the file of a Unix socket when the listener is dropped.
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

/// The value of the environment variable.
#[derive(Debug, Serialize, Deserialize)]
struct InheritedSockets {
    /// The process that has the sockets: a child that inherits the variable does not have them.
    pid: u32,
    sockets: Vec<(RawFd, ListenerEndpoint)>,
}

impl Handover {
    /// The sockets that the previous program left open in this process; none at the second call.
    pub fn inherited() -> Self {
        static IS_READ: AtomicBool = AtomicBool::new(false);
        let text = std::env::var(LISTENERS_VARIABLE).ok().filter(|_| !IS_READ.swap(true, Ordering::Relaxed));
        let left = text.and_then(|text| serde_json::from_str::<InheritedSockets>(&text).ok());
        let left = left.filter(|left| left.pid == std::process::id()).map(|left| left.sockets).unwrap_or_default();
        let adopt = |(number, endpoint): (RawFd, ListenerEndpoint)| {
            let socket = sys::adopt_listener(number)?;
            // Children of this program must not inherit it.
            rustix::io::fcntl_setfd(&socket, FdFlags::CLOEXEC).ok()?;
            let file = match &endpoint.address {
                ListenAddress::Unix(path) => Some(SocketFile::new(path.clone())),
                ListenAddress::Tcp(_) | ListenAddress::Tls(_) => None,
            };
            Some(KeptSocket { endpoint, socket, file })
        };
        let sockets: Vec<_> = left.into_iter().filter_map(adopt).collect();
        Self { sockets: Arc::new(Mutex::new(sockets)) }
    }

    /// Takes the socket of this listener, if one was left. The others are closed with the last handle.
    pub(super) fn take(&self, endpoint: &ListenerEndpoint) -> Option<(OwnedFd, Option<SocketFile>)> {
        let mut sockets = self.sockets();
        let at = sockets.iter().position(|kept| kept.endpoint == *endpoint)?;
        let KeptSocket { socket, file, .. } = sockets.swap_remove(at);
        Some((socket, file))
    }

    /// Closes the sockets of other listeners.
    pub(super) fn retain(&self, endpoints: &[ListenerEndpoint]) {
        self.sockets().retain(|kept| endpoints.contains(&kept.endpoint));
    }

    /// Closes the sockets that were not taken.
    pub(super) fn clear(&self) {
        self.sockets().clear();
    }

    /// Keeps a socket open for the next program.
    pub(super) fn keep(&self, endpoint: ListenerEndpoint, socket: OwnedFd, file: Option<SocketFile>) {
        self.sockets().push(KeptSocket { endpoint, socket, file });
    }

    /// Leaves the sockets open for the next program of this process, and returns the value of [`LISTENERS_VARIABLE`]
    /// for it.
    pub fn leave(&self) -> String {
        let mut sockets = Vec::new();
        for KeptSocket { endpoint, socket, file } in self.sockets().drain(..) {
            if let Err(error) = rustix::io::fcntl_setfd(&socket, FdFlags::empty()) {
                tracing::warn!(address = %endpoint.address, %error, "cannot keep the socket open; callers are refused during the restart");
                continue;
            }
            sockets.push((socket.as_raw_fd(), endpoint));
            // From here on the next program owns them.
            std::mem::forget((socket, file));
        }
        serde_json::to_string(&InheritedSockets { pid: std::process::id(), sockets }).unwrap_or_default()
    }

    fn sockets(&self) -> MutexGuard<'_, Vec<KeptSocket>> {
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
        let address = |text: &str| ListenerEndpoint::new("http", text.parse().unwrap());
        let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        let bound = listener.local_addr().unwrap();
        handover.keep(address("https://127.0.0.1:0"), listener.into(), None);
        assert!(handover.take(&address("127.0.0.1:0")).is_none());
        let (socket, _) = handover.take(&address("https://127.0.0.1:0")).unwrap();
        assert_eq!(std::net::TcpListener::from(socket).local_addr().unwrap(), bound);
        assert!(handover.take(&address("https://127.0.0.1:0")).is_none());
    }

    #[test]
    fn listeners_whose_port_the_system_chose_keep_their_own_sockets() {
        let any = |service| ListenerEndpoint::new(service, "127.0.0.1:0".parse().unwrap());
        let plain = |network: &str| ListenerEndpoint { peers: vec![network.parse().unwrap()], ..any("http") };
        let endpoints = [plain("10.0.0.0/8"), any("http"), plain("127.0.0.0/8"), any("grpc")];
        let handover = Handover::default();
        let bound = endpoints.clone().map(|endpoint| {
            let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
            let bound = listener.local_addr().unwrap();
            handover.keep(endpoint, listener.into(), None);
            bound
        });
        handover.retain(&endpoints[1..]);
        assert!(handover.take(&endpoints[0]).is_none(), "its networks have changed");
        for (endpoint, bound) in endpoints.iter().zip(bound).skip(1).rev() {
            // As the next program reads it.
            let endpoint = serde_json::from_str(&serde_json::to_string(endpoint).unwrap()).unwrap();
            let (socket, _) = handover.take(&endpoint).unwrap();
            assert_eq!(std::net::TcpListener::from(socket).local_addr().unwrap(), bound);
        }
    }

    #[test]
    fn a_socket_that_is_not_handed_over_is_closed_and_its_file_removed() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("socket");
        let listener = std::os::unix::net::UnixListener::bind(&path).unwrap();
        let handover = Handover::default();
        handover.keep(
            ListenerEndpoint::new("http", ListenAddress::Unix(path.clone())),
            listener.into(),
            Some(SocketFile::new(path.clone())),
        );
        handover.clear();
        assert!(!path.exists());
    }

    #[test]
    fn a_descriptor_that_is_not_a_listening_socket_is_not_adopted() {
        let file = tempfile::tempfile().unwrap();
        assert!(sys::adopt_listener(file.as_raw_fd()).is_none());
        assert!(sys::adopt_listener(-1).is_none());
        assert!(rustix::io::fcntl_getfd(&file).is_ok(), "and stays open");
    }
}
