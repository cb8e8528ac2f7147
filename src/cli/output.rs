//! Standard output that a reader may close at any time.

use std::fmt;
use std::io::{self, ErrorKind, Write};

use rustix::termios;

/// The writer for the output of a verb.
///
/// A write to a closed pipe fails with an error that [`is_output_closed`] recognizes; the error of a closed network
/// connection has the same code and is not recognized.
pub struct Output {
    writer: Box<dyn Write + Send>,
    columns: Option<usize>,
}

impl Output {
    /// Standard output.
    pub fn stdout() -> Self {
        let columns = termios::tcgetwinsize(io::stdout()).ok().map(|size| size.ws_col.into());
        Self { writer: Box::new(io::stdout()), columns: columns.filter(|columns| *columns > 0) }
    }

    /// Another writer, such as the buffer of a test.
    pub fn to(writer: impl Write + Send + 'static) -> Self {
        Self { writer: Box::new(writer), columns: None }
    }

    /// The width of the terminal in characters; `None` where the output is not a terminal.
    pub fn columns(&self) -> Option<usize> {
        self.columns
    }
}

impl fmt::Debug for Output {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Output")
    }
}

impl Write for Output {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.writer.write(bytes).map_err(mark_closed)
    }

    fn flush(&mut self) -> io::Result<()> {
        self.writer.flush().map_err(mark_closed)
    }
}

#[derive(Debug, thiserror::Error)]
#[error("the reader of standard output has closed the pipe")]
struct OutputClosed;

/// Marks the error of a closed pipe as that of the output.
fn mark_closed(error: io::Error) -> io::Error {
    if error.kind() == ErrorKind::BrokenPipe { io::Error::new(ErrorKind::BrokenPipe, OutputClosed) } else { error }
}

/// True if a verb failed because the reader of its output has closed the pipe.
pub fn is_output_closed(error: &anyhow::Error) -> bool {
    let is_closed =
        |error: &io::Error| error.get_ref().and_then(|inner| inner.downcast_ref::<OutputClosed>()).is_some();
    error.chain().any(|cause| cause.downcast_ref().is_some_and(is_closed))
}
