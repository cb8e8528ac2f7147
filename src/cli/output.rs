//! Standard output that a reader may close at any time.

use std::fmt;
use std::io::{self, ErrorKind, Write};

/// Where a verb writes its answer.
///
/// A write to a closed pipe fails with an error that [`is_closed`] recognizes; a closed network connection, which has the
/// same code, does not.
pub struct Output(Box<dyn Write + Send>);

impl Output {
    /// Standard output.
    pub fn stdout() -> Self {
        Self(Box::new(io::stdout()))
    }

    /// Any other writer.
    pub fn to(writer: impl Write + Send + 'static) -> Self {
        Self(Box::new(writer))
    }
}

impl fmt::Debug for Output {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Output")
    }
}

impl Write for Output {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.0.write(bytes).map_err(closed)
    }

    fn flush(&mut self) -> io::Result<()> {
        self.0.flush().map_err(closed)
    }
}

#[derive(Debug, thiserror::Error)]
#[error("the reader of the output is gone")]
struct Closed;

fn closed(error: io::Error) -> io::Error {
    if error.kind() == ErrorKind::BrokenPipe { io::Error::new(ErrorKind::BrokenPipe, Closed) } else { error }
}

/// Whether a verb failed because nobody reads its output any more.
pub fn is_closed(error: &anyhow::Error) -> bool {
    let is_closed = |error: &io::Error| error.get_ref().and_then(|inner| inner.downcast_ref::<Closed>()).is_some();
    error.chain().any(|cause| cause.downcast_ref().is_some_and(is_closed))
}
