//! A connection whose caller has to read: what waits to be sent does not wait for ever.

use std::io::{self, IoSlice};
use std::pin::Pin;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::time::{Instant, Sleep};

/// Within one limit a caller takes so much, or all there is. Who takes less, byte by byte, is as good as gone.
const LEAST_TAKEN: usize = 64 << 10;

/// A stream that fails when the other side does not take what is written.
///
/// The time runs while a write waits, and only then: an answer that is still being made has all the time it needs.
pub struct Impatient<S> {
    stream: S,
    limit: Duration,
    /// Until when so much must have been taken, and how much has been; it is used anew each time.
    timer: Pin<Box<Sleep>>,
    waiting: Option<usize>,
}

impl<S> Impatient<S> {
    /// Over a stream whose other side may take nothing for so long.
    pub fn new(stream: S, limit: Duration) -> Self {
        Self { stream, limit, timer: Box::pin(tokio::time::sleep(Duration::ZERO)), waiting: None }
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
                let so_far = self.waiting.take();
                self.waiting = match (so_far, bytes(result)) {
                    (Some(so_far), Some(more)) if so_far + more < LEAST_TAKEN => Some(so_far + more),
                    _ => None,
                };
            }
            Poll::Ready(Err(_)) => {}
            Poll::Pending => {
                if self.waiting.is_none() {
                    self.waiting = Some(0);
                    let end = Instant::now() + self.limit;
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
