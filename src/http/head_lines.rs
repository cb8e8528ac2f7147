//! Ensures that lines in heads of requests end with CR LF (RFC 9112, section 2.2). hyper's parser also accepts a bare
//! LF, which a proxy in front of this box may read differently, so one request here could be two there (request
//! smuggling).
//!
//! Requests are not parsed twice. The bytes below hyper are divided so that it never reads beyond the head or the body
//! that it is at, and hyper's own view of the body, its length or that it comes in chunks, says where the next head
//! begins. In a head, a bare LF becomes a NUL, which hyper refuses anywhere in it. Bytes of bodies pass unchecked,
//! except for the lengths of chunks.

use std::io;
use std::pin::Pin;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::task::{Context, Poll, ready};

use bytes::{Buf as _, BytesMut};
use tokio::io::{AsyncRead, ReadBuf};

/// The length of a body in chunks.
const CHUNKS: u64 = u64::MAX;

/// The start of HTTP/2, which hyper recognizes as a whole: the bytes after its empty line belong to it.
const HTTP2_START: &[u8] = b"PRI * HTTP/2.0\r\n\r\n";

/// Where the connection is, as its requests say.
#[derive(Debug, Default)]
pub struct RequestProgress {
    /// The bytes that are left of the body; 0 within a head.
    body: AtomicU64,
    has_bare_line_feed: AtomicBool,
}

impl RequestProgress {
    /// hyper has parsed a head. Its body has this length, or comes in chunks.
    pub fn head_parsed(&self, length: Option<u64>) {
        self.body.store(length.unwrap_or(CHUNKS), Ordering::Relaxed);
    }

    /// Returns `true` if a head had a bare LF.
    pub fn has_bare_line_feed(&self) -> bool {
        self.has_bare_line_feed.load(Ordering::Relaxed)
    }
}

/// Divides the bytes of a connection into heads and bodies.
#[derive(Debug, Default)]
pub struct RequestFramer {
    /// Bytes that were received, and are not for hyper yet.
    ahead: BytesMut,
    head: HeadPosition,
    chunk: ChunkedBodyPosition,
}

/// A place in a head.
#[derive(Debug, Default)]
struct HeadPosition {
    /// The length of the current line until here, its CR included.
    line: usize,
    /// True when the last byte was a CR.
    is_after_return: bool,
    /// True behind the first line that is not empty.
    is_begun: bool,
}

/// A place in a body in chunks.
#[derive(Debug, Clone, Copy)]
enum ChunkedBodyPosition {
    /// In the digits of a length.
    Length(u64),
    /// Behind the digits of a length, in the same line.
    Extension(u64),
    /// This many bytes before the next length.
    Data(u64),
    /// In the lines behind the last chunk; the length of this one until here.
    Trailer(usize),
}

impl Default for ChunkedBodyPosition {
    fn default() -> Self {
        Self::Length(0)
    }
}

impl RequestFramer {
    /// Reads from `stream` the bytes that hyper may get now.
    pub fn poll_read(
        &mut self,
        stream: Pin<&mut impl AsyncRead>,
        progress: &RequestProgress,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let before = buffer.filled().len();
        let is_ahead = !self.ahead.is_empty();
        if is_ahead {
            let length = self.ahead.len().min(buffer.remaining());
            buffer.put_slice(self.ahead.get(..length).unwrap_or_default());
        } else {
            ready!(stream.poll_read(context, buffer))?;
        }

        let received = buffer.filled_mut().get_mut(before..).unwrap_or_default();
        let given = match progress.body.load(Ordering::Relaxed) {
            0 => self.head.pass(received, progress),
            CHUNKS => self.chunk.pass(received).inspect(|_| progress.body.store(0, Ordering::Relaxed)),
            left => {
                let given = received.len().min(usize::try_from(left).unwrap_or(usize::MAX));
                progress.body.store(left - given as u64, Ordering::Relaxed);
                Some(given)
            }
        };
        let given = given.unwrap_or(received.len());
        if is_ahead {
            self.ahead.advance(given);
            if self.ahead.is_empty() {
                // An idle connection holds no memory.
                self.ahead = BytesMut::new();
            }
        } else {
            self.ahead.extend_from_slice(received.get(given..).unwrap_or_default());
        }
        buffer.set_filled(before + given);
        Poll::Ready(Ok(()))
    }
}

impl HeadPosition {
    /// Passes bytes of a head. Returns their number if it ends here.
    fn pass(&mut self, bytes: &mut [u8], progress: &RequestProgress) -> Option<usize> {
        if !self.is_begun && self.line == 0 && bytes.starts_with(HTTP2_START) {
            return None;
        }
        for (byte, number) in bytes.iter_mut().zip(1..) {
            if *byte != b'\n' {
                self.line += 1;
                self.is_after_return = *byte == b'\r';
                continue;
            }
            if !self.is_after_return {
                *byte = 0;
                progress.has_bare_line_feed.store(true, Ordering::Relaxed);
            }
            let is_empty = self.line <= 1;
            (self.line, self.is_after_return) = (0, false);
            // Empty lines before a head are no head.
            if is_empty && std::mem::take(&mut self.is_begun) {
                return Some(number);
            }
            self.is_begun |= !is_empty;
        }
        None
    }
}

impl ChunkedBodyPosition {
    /// Passes bytes of a body in chunks. Returns their number if it ends here. Bytes that are not a chunk are left to
    /// hyper, which refuses them.
    fn pass(&mut self, bytes: &[u8]) -> Option<usize> {
        let mut at = 0;
        while let Some(byte) = bytes.get(at) {
            at += 1;
            *self = match (*self, byte) {
                (Self::Length(length), digit) if let Some(digit) = char::from(*digit).to_digit(16) => {
                    Self::Length(length.saturating_mul(16).saturating_add(digit.into()))
                }
                (Self::Length(0) | Self::Extension(0), b'\n') => Self::Trailer(0),
                // With the CR LF behind the data.
                (Self::Length(length) | Self::Extension(length), b'\n') => Self::Data(length.saturating_add(2)),
                (Self::Length(length) | Self::Extension(length), _) => Self::Extension(length),
                (Self::Data(left), _) => {
                    // This byte is the first of them.
                    let skipped = (bytes.len() - at).min(usize::try_from(left - 1).unwrap_or(usize::MAX));
                    at += skipped;
                    match left - 1 - skipped as u64 {
                        0 => Self::Length(0),
                        left => Self::Data(left),
                    }
                }
                (Self::Trailer(..=1), b'\n') => {
                    *self = Self::default();
                    return Some(at);
                }
                (Self::Trailer(_), b'\n') => Self::Trailer(0),
                (Self::Trailer(length), _) => Self::Trailer(length + 1),
            };
        }
        None
    }
}

/// The largest head of a request, in bytes: each connection may use this memory before its caller is known.
pub(super) const REQUEST_HEAD_BYTES_MAX: usize = 64 << 10;

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use tokio::io::AsyncReadExt as _;

    use super::*;

    /// A stream of pieces as a network cuts them, read through [`RequestFramer`].
    struct Divided<'p> {
        pieces: Vec<Vec<u8>>,
        lines: RequestFramer,
        progress: &'p RequestProgress,
    }

    impl AsyncRead for Divided<'_> {
        fn poll_read(
            mut self: Pin<&mut Self>,
            context: &mut Context<'_>,
            buffer: &mut ReadBuf<'_>,
        ) -> Poll<io::Result<()>> {
            let this = &mut *self;
            let mut piece: &[u8] = this.pieces.first().map_or(&[], Vec::as_slice);
            let length = piece.len();
            let polled = this.lines.poll_read(Pin::new(&mut piece), this.progress, context, buffer);
            let taken = length - piece.len();
            if taken > 0 {
                this.pieces[0].drain(..taken);
                this.pieces.retain(|piece| !piece.is_empty());
            }
            polled
        }
    }

    /// A part of a connection: its bytes, and the length of the body that hyper finds in it if it is a head.
    type Part = (Vec<u8>, Option<Option<u64>>);

    fn exchange() -> impl Strategy<Value = Vec<Part>> {
        let head = |fields: &str| format!("POST / HTTP/1.1\r\n{fields}\r\n").into_bytes();
        let none = Just(vec![(head("host: x\r\n"), Some(Some(0)))]);
        let counted = prop::collection::vec(any::<u8>(), 1..40)
            .prop_map(move |body| vec![(head("content-length: n\r\n"), Some(Some(body.len() as u64))), (body, None)]);
        let chunk = prop::collection::vec(prop::sample::select(b"\r\n0a;".to_vec()), 1..20);
        let chunked = (prop::collection::vec(chunk, 0..4), any::<bool>()).prop_map(move |(chunks, has_trailer)| {
            let mut body = Vec::new();
            for chunk in chunks {
                body.extend(format!("{:x};ext=1\r\n", chunk.len()).into_bytes());
                body.extend(chunk);
                body.extend(b"\r\n");
            }
            body.extend(if has_trailer { &b"000\r\nsum: 1\r\n\r\n"[..] } else { b"0\r\n\r\n" });
            vec![(head("transfer-encoding: chunked\r\n"), Some(None)), (body, None)]
        });
        prop_oneof![none, counted, chunked]
    }

    proptest! {
        #[test]
        fn a_read_never_goes_beyond_the_end_of_a_head_or_a_body(
            exchanges in prop::collection::vec(exchange(), 1..6),
            cut in 1_usize..50,
            room in 1_usize..50,
        ) {
            let parts: Vec<Part> = exchanges.into_iter().flatten().collect();
            let all: Vec<u8> = parts.iter().flat_map(|(bytes, _)| bytes.clone()).collect();
            let progress = RequestProgress::default();
            let pieces = all.chunks(cut).map(<[u8]>::to_vec).collect();
            let mut stream = Divided { pieces, lines: RequestFramer::default(), progress: &progress };
            let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
            runtime.block_on(async {
                for (bytes, body) in parts {
                    let mut read: Vec<u8> = Vec::new();
                    while read.len() < bytes.len() {
                        let mut buffer = vec![0; room];
                        let count = stream.read(&mut buffer).await.unwrap();
                        assert!(count > 0, "{read:?} of {bytes:?}");
                        read.extend(&buffer[..count]);
                    }
                    assert_eq!(read, bytes);
                    if let Some(length) = body {
                        progress.head_parsed(length);
                    }
                }
            });
            prop_assert!(!progress.has_bare_line_feed());
        }
    }
}
