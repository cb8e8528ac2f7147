//! The two halves of an open connection. Bytes are written only under the name of their [`EgressContent`].

use std::collections::VecDeque;
use std::io;
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::time::Duration;

use bytes::{Buf, BytesMut};
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};

use super::counters::DestinationCounters;
use super::policy::{EgressContent, EgressGrant};
use super::tls::TlsPeer;

/// The size of one read, in bytes: a TLS record holds up to 16 KiB.
const READ_BYTES: usize = 16 << 10;

/// The most memory that the empty draft keeps, in bytes. A large message must not occupy its memory for ever.
const DRAFT_BYTES_MAX: usize = 256 << 10;

/// Limit for an orderly end.
const CLOSE_TIMEOUT: Duration = Duration::from_secs(1);

type ReadHalf = Box<dyn AsyncRead + Send + Sync + Unpin>;
type WriteHalf = Box<dyn AsyncWrite + Send + Sync + Unpin>;

/// The half that reads from a destination.
pub struct EgressReader {
    stream: ReadHalf,
    socket: OwnedFd,
    counters: Arc<DestinationCounters>,
    peer: Option<TlsPeer>,
}

/// The half that writes to a destination.
pub struct EgressWriter {
    stream: WriteHalf,
    counters: Arc<DestinationCounters>,
    peer: Option<TlsPeer>,
    destination: String,
    grant: EgressGrant,
    /// Bytes that the stream has not taken yet.
    queue: BytesMut,
    /// The contents of the queue in its order, each with its number of bytes.
    contents: VecDeque<(EgressContent, usize)>,
    /// Bytes that the stream took and may still buffer: TLS encrypts into a buffer.
    held_back: usize,
    /// The message being written, before it is queued. Empty in between.
    draft: BytesMut,
}

/// The reason why nothing was queued.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
pub enum EgressWriteError<E> {
    #[error(
        "{content} may not be sent to {destination}: to allow it, add \"{content}\" to `send` in its [[egress.allow]]"
    )]
    NotPermitted {
        /// `HOST:PORT`.
        destination: String,
        content: EgressContent,
    },
    #[error("{0}")]
    Write(E),
}

/// Makes the two halves of a connection.
pub(super) fn link(
    (reading, writing): (ReadHalf, WriteHalf),
    socket: OwnedFd,
    peer: Option<TlsPeer>,
    destination: String,
    grant: EgressGrant,
    counters: Arc<DestinationCounters>,
) -> (EgressReader, EgressWriter) {
    let reader = EgressReader { stream: reading, socket, counters: counters.clone(), peer: peer.clone() };
    let writer = EgressWriter {
        stream: writing,
        counters,
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

impl EgressReader {
    /// Appends received bytes to `buffer`; 0 bytes are the end. Cancel-safe: bytes that were not returned are still to
    /// be read.
    pub async fn read(&mut self, buffer: &mut BytesMut) -> io::Result<usize> {
        // A buffer with room has the size that its owner wants.
        if buffer.capacity() == buffer.len() {
            buffer.reserve(READ_BYTES);
        }
        let read = self.stream.read_buf(buffer).await.map_err(|error| explained(self.peer.as_ref(), error))?;
        self.counters.count_received(read);
        Ok(read)
    }

    /// Acknowledges the received bytes at once. The system would wait up to 40 ms for data to send along with the
    /// acknowledgement, and until then the other side may hold back its next bytes (Nagle's algorithm, RFC 9293,
    /// section 3.7.4).
    pub fn acknowledge(&self) {
        // Without it the bytes still arrive, only later.
        let _ = rustix::net::sockopt::set_tcp_quickack(&self.socket, true);
    }
}

impl EgressWriter {
    /// Queues the bytes that `write` appends to its buffer, as `content`. Nothing is queued when the allow-list does
    /// not permit this content for the destination, or when `write` fails.
    pub fn put<T, E>(
        &mut self,
        content: EgressContent,
        write: impl FnOnce(&mut BytesMut) -> Result<T, E>,
    ) -> Result<T, EgressWriteError<E>> {
        if !self.grant.permits(content) {
            return Err(EgressWriteError::NotPermitted { destination: self.destination.clone(), content });
        }
        // A separate buffer: `write` can neither see nor change bytes that are queued under another name.
        let value = match write(&mut self.draft) {
            Ok(value) => value,
            Err(error) => {
                self.draft.clear();
                return Err(EgressWriteError::Write(error));
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

        if self.draft.capacity() > DRAFT_BYTES_MAX {
            self.draft = BytesMut::new();
        }
        self.draft.clear();
        Ok(value)
    }

    /// Bytes not yet handed to the system.
    pub fn queued(&self) -> usize {
        self.queue.len() + self.held_back
    }

    /// Hands everything queued to the system. Cancel-safe: it may be cancelled while it waits and called again; nothing
    /// is lost or sent twice.
    pub async fn flush(&mut self) -> io::Result<()> {
        self.hand_over().await.map_err(|error| explained(self.peer.as_ref(), error))
    }

    async fn hand_over(&mut self) -> io::Result<()> {
        while !self.queue.is_empty() {
            // No `.await` between the write and the removal of the written bytes from the queue.
            let taken = self.stream.write(&self.queue).await?;
            if taken == 0 {
                return Err(io::ErrorKind::WriteZero.into());
            }
            self.take(taken);
        }
        self.queue = BytesMut::new();
        // Also when the queue was empty: an earlier flush may have been cancelled at this point.
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
            self.counters.count_sent(*content, part);
            *bytes -= part;
            left -= part;
            if *bytes == 0 {
                self.contents.pop_front();
            }
        }
    }

    /// Ends the connection in order, within a second: sends the queue and announces the end.
    pub async fn close(mut self) {
        let closing = async {
            self.hand_over().await?;
            self.stream.shutdown().await
        };
        // If it fails, the connection ends all the same.
        let _ = tokio::time::timeout(CLOSE_TIMEOUT, closing).await;
    }
}

/// Replaces an error of the system by the TLS alert that caused it, if there was one.
fn explained(peer: Option<&TlsPeer>, error: io::Error) -> io::Error {
    match peer {
        Some(peer) => peer.explain_later(error),
        None => error,
    }
}

impl std::fmt::Debug for EgressReader {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("EgressReader").finish_non_exhaustive()
    }
}

impl std::fmt::Debug for EgressWriter {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("EgressWriter").field("destination", &self.destination).finish_non_exhaustive()
    }
}
