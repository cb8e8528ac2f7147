//! The two halves of an open connection. Bytes get into the writing one only under the name of their [`Content`].

use std::collections::VecDeque;
use std::io;
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::time::Duration;

use bytes::{Buf, BytesMut};
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};

use super::account::Account;
use super::policy::{Content, Grant};
use super::tls::Peer;

/// How much is read at a time, in bytes: a TLS record holds up to 16 KiB.
const READ: usize = 16 << 10;

/// The memory that the empty draft keeps, in bytes. A large message must not hold its memory for ever.
const KEPT: usize = 256 << 10;

/// How long an orderly end may take.
const CLOSE: Duration = Duration::from_secs(1);

type Reading = Box<dyn AsyncRead + Send + Sync + Unpin>;
type Writing = Box<dyn AsyncWrite + Send + Sync + Unpin>;

/// What reads from a destination.
pub struct LinkReader {
    stream: Reading,
    socket: OwnedFd,
    account: Arc<Account>,
    peer: Option<Peer>,
}

/// What writes to a destination.
pub struct LinkWriter {
    stream: Writing,
    account: Arc<Account>,
    peer: Option<Peer>,
    destination: String,
    grant: Grant,
    /// What the stream has not taken yet.
    queue: BytesMut,
    /// What is in the queue, in its order: how many bytes of what.
    contents: VecDeque<(Content, usize)>,
    /// Bytes that the stream took and may still hold back: TLS encrypts into a buffer.
    held_back: usize,
    /// Where a message is written before it is queued. Empty in between.
    draft: BytesMut,
}

/// Why nothing was queued.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
pub enum PutError<E> {
    #[error(
        "{content} may not be sent to {destination}: to allow it, add \"{content}\" to `send` in its [[egress.allow]]"
    )]
    NotPermitted {
        /// `HOST:PORT`.
        destination: String,
        /// What was to be sent.
        content: Content,
    },
    #[error("{0}")]
    Write(E),
}

/// The two halves of a connection.
pub(super) fn link(
    (reading, writing): (Reading, Writing),
    socket: OwnedFd,
    peer: Option<Peer>,
    destination: String,
    grant: Grant,
    account: Arc<Account>,
) -> (LinkReader, LinkWriter) {
    let reader = LinkReader { stream: reading, socket, account: account.clone(), peer: peer.clone() };
    let writer = LinkWriter {
        stream: writing,
        account,
        peer,
        destination,
        grant,
        queue: BytesMut::new(),
        contents: VecDeque::new(),
        held_back: 0,
        draft: BytesMut::new(),
    };
    (reader, writer)
}

impl LinkReader {
    /// Appends what has come to `buffer`; 0 bytes are the end. Cancel-safe: what was not returned is still to be read.
    pub async fn read(&mut self, buffer: &mut BytesMut) -> io::Result<usize> {
        // One with room has the size that its owner wants.
        if buffer.capacity() == buffer.len() {
            buffer.reserve(READ);
        }
        let read = self.stream.read_buf(buffer).await.map_err(|error| explained(self.peer.as_ref(), error))?;
        self.account.count_received(read);
        Ok(read)
    }

    /// Acknowledges what has come. The system would wait up to 40 ms for something to send that could carry it, and the
    /// other side may hold back what is next until it is acknowledged (Nagle's algorithm, RFC 9293, section 3.7.4).
    pub fn acknowledge(&self) {
        // Without it everything comes all the same.
        let _ = rustix::net::sockopt::set_tcp_quickack(&self.socket, true);
    }
}

impl LinkWriter {
    /// Queues what `write` appends to the buffer it is given, as `content`. Nothing is queued when this destination may
    /// not get such content, or when `write` fails.
    pub fn put<T, E>(
        &mut self,
        content: Content,
        write: impl FnOnce(&mut BytesMut) -> Result<T, E>,
    ) -> Result<T, PutError<E>> {
        if !self.grant.permits(content) {
            return Err(PutError::NotPermitted { destination: self.destination.clone(), content });
        }
        // A buffer of its own: `write` can neither see nor change what is already queued under another name.
        let value = match write(&mut self.draft) {
            Ok(value) => value,
            Err(error) => {
                self.draft.clear();
                return Err(PutError::Write(error));
            }
        };
        match self.contents.back_mut() {
            Some((last, bytes)) if *last == content => *bytes += self.draft.len(),
            _ => self.contents.push_back((content, self.draft.len())),
        }
        if self.queue.is_empty() {
            std::mem::swap(&mut self.queue, &mut self.draft);
        } else {
            self.queue.extend_from_slice(&self.draft);
        }
        if self.draft.capacity() > KEPT {
            self.draft = BytesMut::new();
        }
        self.draft.clear();
        Ok(value)
    }

    /// Bytes not yet handed to the system.
    pub fn queued(&self) -> usize {
        self.queue.len() + self.held_back
    }

    /// Hands everything queued to the system. Cancel-safe: it may be dropped while it waits and called again; nothing is
    /// lost or sent twice.
    pub async fn flush(&mut self) -> io::Result<()> {
        self.hand_over().await.map_err(|error| explained(self.peer.as_ref(), error))
    }

    async fn hand_over(&mut self) -> io::Result<()> {
        while !self.queue.is_empty() {
            // Between this and the next line nothing waits: what was taken has left the queue.
            let taken = self.stream.write(&self.queue).await?;
            if taken == 0 {
                return Err(io::ErrorKind::WriteZero.into());
            }
            self.take(taken);
        }
        self.queue = BytesMut::new();
        // Also when the queue was empty: a flush before may have been dropped at this point.
        self.stream.flush().await?;
        self.held_back = 0;
        Ok(())
    }

    fn take(&mut self, taken: usize) {
        self.queue.advance(taken);
        self.held_back += taken;
        let mut left = taken;
        while left > 0
            && let Some((content, bytes)) = self.contents.front_mut()
        {
            let part = left.min(*bytes);
            self.account.count_sent(*content, part);
            *bytes -= part;
            left -= part;
            if *bytes == 0 {
                self.contents.pop_front();
            }
        }
    }

    /// Ends the connection in order: what is queued is sent and the end announced, if that takes a second at most.
    pub async fn close(mut self) {
        let closing = async {
            self.hand_over().await?;
            self.stream.shutdown().await
        };
        // An end that fails is an end.
        let _ = tokio::time::timeout(CLOSE, closing).await;
    }
}

/// An error in words for people where TLS knows better than the system.
fn explained(peer: Option<&Peer>, error: io::Error) -> io::Error {
    match peer {
        Some(peer) => peer.explain_later(error),
        None => error,
    }
}

impl std::fmt::Debug for LinkReader {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("LinkReader").finish_non_exhaustive()
    }
}

impl std::fmt::Debug for LinkWriter {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("LinkWriter").field("destination", &self.destination).finish_non_exhaustive()
    }
}
