//! Messages and files over the socket between the daemon and a child: a length, and then that many bytes in postcard's
//! form.

use std::io::{self, IoSlice, IoSliceMut, Read, Write};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::net::UnixStream;

use rustix::io::retry_on_intr;
use rustix::net::{
    RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SendAncillaryBuffer, SendAncillaryMessage, SendFlags,
};
use serde::Serialize;
use serde::de::DeserializeOwned;

/// The most bytes of one message: files of pipelines, such as tokenizers, are the largest part of one.
pub const MESSAGE_BYTES_MAX: usize = 256 << 20;

fn invalid(reason: impl std::fmt::Display) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, reason.to_string())
}

/// Sends a message whole.
pub fn send(mut socket: &UnixStream, message: &impl Serialize) -> io::Result<()> {
    let mut bytes = vec![0; 4];
    bytes = postcard::to_extend(message, bytes).map_err(invalid)?;
    let length = u32::try_from(bytes.len() - 4).ok().filter(|length| *length as usize <= MESSAGE_BYTES_MAX);
    let length = length.ok_or_else(|| invalid("a message is too large"))?;
    bytes.splice(..4, length.to_le_bytes());
    socket.write_all(&bytes)
}

/// Receives a message of at most `max` bytes; `None` when the other side has closed the socket.
pub fn receive<T: DeserializeOwned>(mut socket: &UnixStream, max: usize) -> io::Result<Option<T>> {
    let mut length = [0; 4];
    match socket.read_exact(&mut length) {
        Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => return Ok(None),
        read => read?,
    }
    let length = u32::from_le_bytes(length) as usize;
    if length > max.min(MESSAGE_BYTES_MAX) {
        return Err(invalid(format!("a message has {length} bytes")));
    }
    let mut bytes = Vec::new();
    // Grows with the bytes that arrive, not with the announced length.
    socket.take(length as u64).read_to_end(&mut bytes)?;
    postcard::from_bytes(&bytes).map(Some).map_err(invalid)
}

/// Sends an open file.
pub fn send_file(socket: &UnixStream, file: impl AsFd) -> io::Result<()> {
    let files = [file.as_fd()];
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
    let mut control = SendAncillaryBuffer::new(&mut space);
    control.push(SendAncillaryMessage::ScmRights(&files));
    // A socket with a time limit reports each signal.
    retry_on_intr(|| rustix::net::sendmsg(socket, &[IoSlice::new(b"f")], &mut control, SendFlags::NOSIGNAL))?;
    Ok(())
}

/// Receives a file that [`send_file`] sent.
pub fn receive_file(socket: &UnixStream) -> io::Result<OwnedFd> {
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
    let mut control = RecvAncillaryBuffer::new(&mut space);
    let mut byte = [0];
    let receive =
        || rustix::net::recvmsg(socket, &mut [IoSliceMut::new(&mut byte)], &mut control, RecvFlags::CMSG_CLOEXEC);
    retry_on_intr(receive)?;
    for message in control.drain() {
        if let RecvAncillaryMessage::ScmRights(mut files) = message
            && let Some(file) = files.next()
        {
            return Ok(file);
        }
    }
    Err(invalid("expected a file"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn messages_and_files_arrive_in_order() {
        let (own, other) = UnixStream::pair().unwrap();
        send(&own, &("first", 1_u8)).unwrap();
        let (read, write) = rustix::pipe::pipe().unwrap();
        send_file(&own, &read).unwrap();
        send(&own, &("second", 2_u8)).unwrap();
        assert_eq!(receive::<(String, u8)>(&other, 100).unwrap(), Some(("first".to_owned(), 1)));
        let file = receive_file(&other).unwrap();
        std::fs::File::from(write).write_all(b"x").unwrap();
        let mut byte = [0];
        std::fs::File::from(file).read_exact(&mut byte).unwrap();
        assert_eq!(byte, *b"x");
        assert_eq!(receive::<(String, u8)>(&other, 100).unwrap(), Some(("second".to_owned(), 2)));
        drop(own);
        assert_eq!(receive::<(String, u8)>(&other, 100).unwrap(), None);
    }

    #[test]
    fn a_message_that_is_none_is_an_error() {
        let refused = |bytes: &[u8]| {
            let (mut own, other) = UnixStream::pair().unwrap();
            own.write_all(bytes).unwrap();
            drop(own);
            receive::<(String, u8)>(&other, 100).unwrap_err().kind()
        };
        assert_eq!(refused(&[101, 0, 0, 0]), io::ErrorKind::InvalidData);
        assert_eq!(refused(&[255; 4]), io::ErrorKind::InvalidData);
        // Cut off.
        assert_eq!(refused(&[9, 0, 0, 0, 1]), io::ErrorKind::InvalidData);
        assert_eq!(refused(&[3, 0, 0, 0, 200, 0, 0]), io::ErrorKind::InvalidData);
    }
}
