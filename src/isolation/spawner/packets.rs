//! Packets between the daemon and the spawner: a message in postcard's form, and the open files that go with it.

use std::io::{self, IoSlice, IoSliceMut};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use rustix::io::retry_on_intr;
use rustix::net::{
    AddressFamily, RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SendAncillaryBuffer, SendAncillaryMessage,
    SendFlags, SocketFlags, SocketType,
};
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};

/// The most bytes of a packet; most have under ten.
const PACKET_BYTES_MAX: usize = 4096;

/// The most files of a packet: a program, and its standard input, output and error.
const FILES_MAX: usize = 4;

/// The verb of this program by which it is started. The list is closed: the spawner is outside of the daemon's sandbox,
/// and must start nothing else for a daemon that an attacker controls.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum SpawnVerb {
    /// Runs models.
    Runtime,
    /// Tries a release.
    Trial,
}

impl SpawnVerb {
    /// The arguments.
    pub fn words(self) -> &'static [&'static str] {
        match self {
            Self::Runtime => &["runtime"],
            Self::Trial => &["update", "trial"],
        }
    }
}

/// An order of the daemon.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub enum ForkRequest {
    /// Start the program that is the first file, with the others as standard input, output and error.
    Start { number: u64, verb: SpawnVerb },
    /// End every child. The daemon has a new program, which does not know them.
    Reset,
}

/// A report of the spawner.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub enum ForkReport {
    /// The file is the pidfd of the child.
    Started {
        number: u64,
        pid: u32,
    },
    NotStarted {
        number: u64,
        error: String,
    },
    /// The child has ended, with this status as wait(2) gives it.
    Ended {
        number: u64,
        status: i32,
    },
    /// There is no child any more.
    Reset,
    /// The child was stopped by a signal.
    Stopped {
        number: u64,
    },
}

/// A connected pair of sockets that keep packets apart, and report the end of the other side.
pub fn pair() -> io::Result<(OwnedFd, OwnedFd)> {
    Ok(rustix::net::socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::CLOEXEC, None)?)
}

/// Sends a packet.
pub fn send(socket: impl AsFd, message: &impl Serialize, files: &[BorrowedFd<'_>]) -> io::Result<()> {
    let bytes = postcard::to_stdvec(message).map_err(invalid)?;
    retry_on_intr(|| {
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(FILES_MAX))];
        let mut control = SendAncillaryBuffer::new(&mut space);
        if !files.is_empty() && !control.push(SendAncillaryMessage::ScmRights(files)) {
            return Err(rustix::io::Errno::TOOBIG);
        }
        rustix::net::sendmsg(&socket, &[IoSlice::new(&bytes)], &mut control, SendFlags::NOSIGNAL)
    })?;
    Ok(())
}

/// Receives a packet; `None` when the other side has closed the socket.
pub fn receive<T: DeserializeOwned>(socket: impl AsFd) -> io::Result<Option<(T, Vec<OwnedFd>)>> {
    let mut bytes = [0; PACKET_BYTES_MAX];
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(FILES_MAX))];
    let mut control = RecvAncillaryBuffer::new(&mut space);
    let received = retry_on_intr(|| {
        rustix::net::recvmsg(&socket, &mut [IoSliceMut::new(&mut bytes)], &mut control, RecvFlags::CMSG_CLOEXEC)
    })?;
    let rights = control.drain().filter_map(|message| match message {
        RecvAncillaryMessage::ScmRights(files) => Some(files),
        _ => None,
    });
    let files = rights.flatten().collect();
    match bytes.get(..received.bytes) {
        Some([]) | None => Ok(None),
        Some(packet) => Ok(Some((postcard::from_bytes(packet).map_err(invalid)?, files))),
    }
}

fn invalid(error: postcard::Error) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, error)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn packets_stay_apart_and_bring_their_files() {
        let (own, other) = pair().unwrap();
        let (read, write) = rustix::pipe::pipe().unwrap();
        send(&own, &ForkRequest::Start { number: 1, verb: SpawnVerb::Trial }, &[read.as_fd(), write.as_fd()]).unwrap();
        send(&own, &ForkRequest::Reset, &[]).unwrap();
        drop(own);
        let (first, files) = receive::<ForkRequest>(&other).unwrap().unwrap();
        assert_eq!((first, files.len()), (ForkRequest::Start { number: 1, verb: SpawnVerb::Trial }, 2));
        rustix::io::write(&files[1], b"x").unwrap();
        let mut byte = [0];
        rustix::io::read(&read, &mut byte).unwrap();
        assert_eq!(byte, *b"x");
        assert_eq!(receive::<ForkRequest>(&other).unwrap().unwrap().0, ForkRequest::Reset);
        assert!(receive::<ForkRequest>(&other).unwrap().is_none());
    }

    #[test]
    fn a_packet_that_is_none_is_an_error() {
        let (own, other) = pair().unwrap();
        rustix::io::write(&own, &[200]).unwrap();
        assert_eq!(receive::<ForkRequest>(&other).unwrap_err().kind(), io::ErrorKind::InvalidData);
    }
}
