//! A connection whose caller has to read: what waits to be sent does not wait for ever.

use std::io::{self, IoSlice};
use std::pin::Pin;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::time::{Instant, Sleep};

/// Within one limit a caller takes so much, or all there is. Who takes less, byte by byte, is as good as gone.
const LEAST_TAKEN: usize = 64 << 10;

/// So many bytes a second on the whole, beyond the first limit: an answer of 100 MB is held for less than seven minutes.
const LEAST_RATE: u64 = 256 << 10;

/// A stream that fails when the other side does not take what is written.
///
/// The time runs while a write waits, and only then: an answer that is still being made has all the time it needs.
pub struct Impatient<S> {
    stream: S,
    limit: Duration,
    /// It is used anew each time.
    timer: Pin<Box<Sleep>>,
    waiting: Option<Waiting>,
    behind: Option<Behind>,
}

/// A write that waits.
struct Waiting {
    /// Until when [`LEAST_TAKEN`] must have been taken, and how much has been.
    end: Instant,
    taken: usize,
}

/// A caller that has not taken all there is.
struct Behind {
    since: Instant,
    taken: u64,
}

impl<S> Impatient<S> {
    /// Over a stream whose other side may take nothing for so long.
    pub fn new(stream: S, limit: Duration) -> Self {
        Self { stream, limit, timer: Box::pin(tokio::time::sleep(Duration::ZERO)), waiting: None, behind: None }
    }

    /// Until when the caller must have taken more, now that it lets a write wait.
    fn end(&mut self, now: Instant) -> Instant {
        let limit = self.limit;
        let waiting = self.waiting.get_or_insert_with(|| Waiting { end: now + limit, taken: 0 });
        let behind = self.behind.get_or_insert(Behind { since: now, taken: 0 });
        waiting.end.min(behind.since + limit + Duration::from_millis(behind.taken.saturating_mul(1000) / LEAST_RATE))
    }

    /// Looks at a write that took `Some` bytes, or all that was left (`None`).
    fn taken<T>(
        &mut self,
        context: &mut Context<'_>,
        written: Poll<io::Result<T>>,
        bytes: impl Fn(&T) -> Option<usize>,
    ) -> Poll<io::Result<T>> {
        match &written {
            Poll::Ready(Ok(result)) => {
                let more = bytes(result);
                self.waiting = self.waiting.take().zip(more).and_then(|(waiting, more)| waiting.after(more));
                self.behind = self.behind.take().zip(more).map(|(behind, more)| behind.after(more));
            }
            Poll::Ready(Err(_)) => {}
            Poll::Pending => {
                let end = self.end(Instant::now());
                if self.timer.deadline() != end {
                    self.timer.as_mut().reset(end);
                }
                ready!(self.timer.as_mut().poll(context));
                let message =
                    format!("the caller took too little for {} ms (http.write_timeout_ms)", self.limit.as_millis());
                return Poll::Ready(Err(io::Error::new(io::ErrorKind::TimedOut, message)));
            }
        }
        written
    }
}

impl Behind {
    /// After so many bytes more.
    fn after(self, more: usize) -> Self {
        Self { taken: self.taken + more as u64, ..self }
    }
}

impl Waiting {
    /// After so many bytes more; `None` once there are enough.
    fn after(self, more: usize) -> Option<Self> {
        let taken = self.taken + more;
        (taken < LEAST_TAKEN).then_some(Self { taken, ..self })
    }
}

impl<S: AsyncRead + Unpin> AsyncRead for Impatient<S> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_read(context, buffer)
    }
}

impl<S: AsyncWrite + Unpin> AsyncWrite for Impatient<S> {
    fn poll_write(mut self: Pin<&mut Self>, context: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        let written = Pin::new(&mut self.stream).poll_write(context, bytes);
        self.taken(context, written, |bytes| Some(*bytes))
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        slices: &[IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        let written = Pin::new(&mut self.stream).poll_write_vectored(context, slices);
        self.taken(context, written, |bytes| Some(*bytes))
    }

    fn is_write_vectored(&self) -> bool {
        self.stream.is_write_vectored()
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        let flushed = Pin::new(&mut self.stream).poll_flush(context);
        self.taken(context, flushed, |()| None)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        let closed = Pin::new(&mut self.stream).poll_shutdown(context);
        self.taken(context, closed, |()| None)
    }
}

#[cfg(test)]
mod tests {
    use tokio::io::{AsyncReadExt, AsyncWriteExt};

    use super::*;

    const LIMIT: Duration = Duration::from_millis(100);

    #[tokio::test]
    async fn a_caller_that_reads_nothing_is_given_up_and_one_that_reads_is_not() {
        let (stream, _caller) = tokio::io::duplex(1000);
        let mut stream = Impatient::new(stream, LIMIT);
        stream.write_all(&[0; 1000]).await.unwrap();
        // An answer that takes longer than the limit to make.
        tokio::time::sleep(LIMIT * 2).await;
        let began = Instant::now();
        assert_eq!(stream.write_all(b"x").await.unwrap_err().kind(), io::ErrorKind::TimedOut);
        assert!(began.elapsed() >= LIMIT);
        assert!(stream.shutdown().await.is_ok(), "what need not be sent is not waited for");

        let (writer, mut reader) = tokio::io::duplex(LEAST_TAKEN);
        let mut writer = Impatient::new(writer, LIMIT);
        let reading = async {
            let mut block = vec![0; LEAST_TAKEN];
            for _ in 0..10 {
                tokio::time::sleep(LIMIT / 4).await;
                reader.read_exact(&mut block).await.unwrap();
            }
        };
        let began = Instant::now();
        let writing = async { writer.write_all(&vec![0; 10 * LEAST_TAKEN]).await };
        assert!(tokio::join!(reading, writing).1.is_ok());
        assert!(began.elapsed() > LIMIT * 2, "as a whole it took longer");
    }

    #[tokio::test]
    async fn who_takes_enough_to_go_on_but_too_little_to_come_to_an_end_is_given_up() {
        // After how many seconds a caller is given up that takes so much in each.
        let given_up = |each: usize| {
            let mut stream = Impatient::new(tokio::io::empty(), Duration::from_secs(30));
            let began = Instant::now();
            (0..1000).find(|second| {
                let now = began + Duration::from_secs(*second);
                let end = stream.end(now);
                let written = Poll::Ready(Ok(each));
                let taken =
                    stream.taken(&mut Context::from_waker(std::task::Waker::noop()), written, |bytes| Some(*bytes));
                assert!(taken.is_ready());
                end <= now
            })
        };
        assert_eq!(given_up(1 << 10), Some(30));
        assert!(given_up(100 << 10).is_some_and(|seconds| seconds > 30 && seconds < 60));
        assert_eq!(given_up(260 << 10), None);
    }

    #[tokio::test]
    async fn who_takes_byte_by_byte_is_given_up_as_well() {
        let (writer, mut reader) = tokio::io::duplex(1000);
        let mut writer = Impatient::new(writer, LIMIT);
        let content = vec![0; 100_000];
        let writing = writer.write_all(&content);
        let reading = async {
            loop {
                tokio::time::sleep(LIMIT / 20).await;
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
