//! Files of a folder, read where it disturbs nobody: a USB stick may take its time.

use std::fs::File;
use std::io::{self, Read, Seek, SeekFrom};
use std::path::PathBuf;

use bytes::Bytes;

use super::SourceError;

/// How much is read at a time, in bytes.
const CHUNK: usize = 256 << 10;

/// An open file. `None` within it: somebody stopped waiting for a read.
#[derive(Debug)]
pub(super) struct OpenFile {
    path: PathBuf,
    file: Option<File>,
}

impl OpenFile {
    /// Opens a file from its byte `from` on, or its first where it is not that long. Says where it begins, and how many
    /// bytes come.
    pub(super) async fn open(path: PathBuf, from: u64) -> Result<(Self, u64, u64), SourceError> {
        let opening = path.clone();
        let opened = blocking(move || {
            // A pipe would let wait for its writer.
            if !std::fs::metadata(&opening)?.is_file() {
                return Err(io::Error::other("it is no file"));
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

    /// The next piece; `None` is the end.
    pub(super) async fn chunk(&mut self) -> Result<Option<Bytes>, SourceError> {
        let failed = |error| SourceError::Folder { path: self.path.clone(), error };
        let Some(mut file) = self.file.take() else { return Err(failed(io::ErrorKind::Interrupted.into())) };
        let read = blocking(move || {
            let mut chunk = Vec::new();
            (&mut file).take(CHUNK as u64).read_to_end(&mut chunk)?;
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
