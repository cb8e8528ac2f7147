//! Files of a folder, read on threads that may block: a USB stick may be slow.

use std::fs::File;
use std::io::{self, Read, Seek, SeekFrom};
use std::path::PathBuf;

use bytes::Bytes;

use super::SourceError;

/// Bytes of one read.
const CHUNK_BYTES: usize = 256 << 10;

/// An open file. Its `file` is `None` after a read was cancelled.
#[derive(Debug)]
pub(super) struct OpenFile {
    path: PathBuf,
    file: Option<File>,
}

impl OpenFile {
    /// Opens a file from its byte `from` on, or from its first where it is not that long. Returns it with its first
    /// byte and the number of bytes.
    pub(super) async fn open(path: PathBuf, from: u64) -> Result<(Self, u64, u64), SourceError> {
        let opening = path.clone();
        let opened = blocking(move || {
            // Opening a pipe would wait for its writer.
            if !std::fs::metadata(&opening)?.is_file() {
                return Err(io::Error::other("it is not a regular file"));
            }
            let mut file = File::open(&opening)?;
            let length = file.metadata()?.len();
            let start = if from <= length { from } else { 0 };
            file.seek(SeekFrom::Start(start))?;
            Ok((file, start, length - start))
        });
        match opened.await {
            Ok((file, start, length)) => Ok((Self { path, file: Some(file) }, start, length)),
            Err(error) => Err(SourceError::Folder { path, error }),
        }
    }

    /// Reads the next piece; `None` is the end.
    pub(super) async fn chunk(&mut self) -> Result<Option<Bytes>, SourceError> {
        let failed = |error| SourceError::Folder { path: self.path.clone(), error };
        let Some(mut file) = self.file.take() else { return Err(failed(io::ErrorKind::Interrupted.into())) };
        let read = blocking(move || {
            let mut chunk = Vec::new();
            (&mut file).take(CHUNK_BYTES as u64).read_to_end(&mut chunk)?;
            Ok((file, chunk))
        });
        let (file, chunk) = read.await.map_err(failed)?;
        self.file = Some(file);
        Ok(if chunk.is_empty() { None } else { Some(chunk.into()) })
    }
}

async fn blocking<T: Send + 'static>(work: impl FnOnce() -> io::Result<T> + Send + 'static) -> io::Result<T> {
    tokio::task::spawn_blocking(work).await.unwrap_or_else(|error| Err(io::Error::other(error)))
}
