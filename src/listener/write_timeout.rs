//! The write timeout: a connection fails when its caller does not read the answer fast enough.

use std::io::{self, IoSlice};
use std::pin::Pin;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::time::{Instant, Sleep};

/// The bytes that a caller must read within one timeout, unless the answer has fewer. A caller that reads byte by byte
/// is treated as gone.
const PROGRESS_BYTES_MIN: usize = 64 << 10;

/// The least average rate of a caller after the first timeout, in bytes a second: an answer of 100 MB is held for less
/// than seven minutes.
const READ_BYTES_PER_SECOND_MIN: u64 = 256 << 10;

/// The time in which the slowest caller that is waited for reads these bytes.
pub fn slow_read_time(bytes: u64) -> Duration {
    Duration::from_millis(bytes.saturating_mul(1000) / READ_BYTES_PER_SECOND_MIN)
}

/// A stream that fails when the other side does not read.
///
/// The time runs only while a write waits: an answer that is still being made has no limit here.
pub struct WriteTimeout<S> {
    stream: S,
    timeout: Duration,
    /// Reset for each write.
    timer: Pin<Box<Sleep>>,
    pending: Option<PendingWrite>,
    slow: Option<SlowReader>,
}

/// A write that waits for the caller.
struct PendingWrite {
    /// The time by which the caller must have read [`PROGRESS_BYTES_MIN`].
    end: Instant,
    /// The bytes read until now.
    taken: usize,
}

/// A caller that has not read everything.
struct SlowReader {
    since: Instant,
    taken: u64,
}

impl<S> WriteTimeout<S> {
    /// Wraps a stream. The other side must read within `timeout`.
    pub fn new(stream: S, timeout: Duration) -> Self {
        Self { stream, timeout, timer: Box::pin(tokio::time::sleep(Duration::ZERO)), pending: None, slow: None }
    }

    /// The time by which the caller must have read more, when a write starts to wait at `now`.
    fn deadline(&mut self, now: Instant) -> Instant {
        let timeout = self.timeout;
        let pending = self.pending.get_or_insert_with(|| PendingWrite { end: now + timeout, taken: 0 });
        let slow = self.slow.get_or_insert(SlowReader { since: now, taken: 0 });
        pending.end.min(slow.since + timeout + slow_read_time(slow.taken))
    }

    /// Checks the progress of a write that took `Some` bytes, or all remaining bytes (`None`).
    fn check_progress<T>(
        &mut self,
        context: &mut Context<'_>,
        written: Poll<io::Result<T>>,
        bytes: impl Fn(&T) -> Option<usize>,
    ) -> Poll<io::Result<T>> {
        match &written {
            Poll::Ready(Ok(result)) => {
                let more = bytes(result);
                self.pending = self.pending.take().zip(more).and_then(|(pending, more)| pending.after(more));
                self.slow = self.slow.take().zip(more).map(|(slow, more)| slow.after(more));
            }
            Poll::Ready(Err(_)) => {}
            Poll::Pending => {
                let end = self.deadline(Instant::now());
                if self.timer.deadline() != end {
                    self.timer.as_mut().reset(end);
                }
                ready!(self.timer.as_mut().poll(context));
                let message = format!(
                    "the caller read too little of the answer within {} ms (http.write_timeout_ms)",
                    self.timeout.as_millis()
                );
                return Poll::Ready(Err(io::Error::new(io::ErrorKind::TimedOut, message)));
            }
        }
        written
    }
}

impl SlowReader {
    /// The state after `more` bytes were read.
    fn after(self, more: usize) -> Self {
        Self { taken: self.taken + more as u64, ..self }
    }
}

impl PendingWrite {
    /// The state after `more` bytes were read; `None` once these are enough.
    fn after(self, more: usize) -> Option<Self> {
        let taken = self.taken + more;
        (taken < PROGRESS_BYTES_MIN).then_some(Self { taken, ..self })
    }
}

impl<S: AsyncRead + Unpin> AsyncRead for WriteTimeout<S> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_read(context, buffer)
    }
}

impl<S: AsyncWrite + Unpin> AsyncWrite for WriteTimeout<S> {
    fn poll_write(mut self: Pin<&mut Self>, context: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        let written = Pin::new(&mut self.stream).poll_write(context, bytes);
        self.check_progress(context, written, |bytes| Some(*bytes))
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        slices: &[IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        let written = Pin::new(&mut self.stream).poll_write_vectored(context, slices);
        self.check_progress(context, written, |bytes| Some(*bytes))
    }

    fn is_write_vectored(&self) -> bool {
        self.stream.is_write_vectored()
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        let flushed = Pin::new(&mut self.stream).poll_flush(context);
        self.check_progress(context, flushed, |()| None)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        let closed = Pin::new(&mut self.stream).poll_shutdown(context);
        self.check_progress(context, closed, |()| None)
    }
}

#[cfg(test)]
mod tests {
    use tokio::io::{AsyncReadExt, AsyncWriteExt};

    use super::*;

    const TEST_TIMEOUT: Duration = Duration::from_millis(100);

    #[tokio::test]
    async fn a_caller_that_reads_nothing_times_out_and_one_that_reads_does_not() {
        let (stream, _caller) = tokio::io::duplex(1000);
        let mut stream = WriteTimeout::new(stream, TEST_TIMEOUT);
        stream.write_all(&[0; 1000]).await.unwrap();
        // An answer that takes longer than the timeout to make.
        tokio::time::sleep(TEST_TIMEOUT * 2).await;
        let began = Instant::now();
        assert_eq!(stream.write_all(b"x").await.unwrap_err().kind(), io::ErrorKind::TimedOut);
        assert!(began.elapsed() >= TEST_TIMEOUT);
        assert!(stream.shutdown().await.is_ok(), "what need not be sent is not waited for");

        let (writer, mut reader) = tokio::io::duplex(PROGRESS_BYTES_MIN);
        let mut writer = WriteTimeout::new(writer, TEST_TIMEOUT);
        let reading = async {
            let mut block = vec![0; PROGRESS_BYTES_MIN];
            for _ in 0..10 {
                tokio::time::sleep(TEST_TIMEOUT / 4).await;
                reader.read_exact(&mut block).await.unwrap();
            }
        };
        let began = Instant::now();
        let writing = async { writer.write_all(&vec![0; 10 * PROGRESS_BYTES_MIN]).await };
        assert!(tokio::join!(reading, writing).1.is_ok());
        assert!(began.elapsed() > TEST_TIMEOUT * 2, "as a whole it took longer");
    }

    #[tokio::test]
    async fn a_caller_that_makes_progress_at_too_low_a_rate_times_out() {
        // The seconds after which a caller that reads `each` bytes a second times out.
        let given_up = |each: usize| {
            let mut stream = WriteTimeout::new(tokio::io::empty(), Duration::from_secs(30));
            let began = Instant::now();
            (0..1000).find(|second| {
                let now = began + Duration::from_secs(*second);
                let end = stream.deadline(now);
                let written = Poll::Ready(Ok(each));
                let taken =
                    stream.check_progress(&mut Context::from_waker(std::task::Waker::noop()), written, |bytes| {
                        Some(*bytes)
                    });
                assert!(taken.is_ready());
                end <= now
            })
        };
        assert_eq!(given_up(1 << 10), Some(30));
        assert!(given_up(100 << 10).is_some_and(|seconds| seconds > 30 && seconds < 60));
        assert_eq!(given_up(260 << 10), None);
    }

    #[tokio::test]
    async fn a_caller_that_reads_byte_by_byte_times_out() {
        let (writer, mut reader) = tokio::io::duplex(1000);
        let mut writer = WriteTimeout::new(writer, TEST_TIMEOUT);
        let content = vec![0; 100_000];
        let writing = writer.write_all(&content);
        let reading = async {
            loop {
                tokio::time::sleep(TEST_TIMEOUT / 20).await;
                reader.read_u8().await.unwrap();
            }
        };
        let ended = tokio::select! {
            ended = writing => ended,
            () = reading => unreachable!("it reads for ever"),
        };
        assert_eq!(ended.unwrap_err().kind(), io::ErrorKind::TimedOut);
    }
}
