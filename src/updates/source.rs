//! Where the files of a TUF repository are read from: a folder.

use std::io::{self, Read, Seek, SeekFrom};
use std::path::PathBuf;
use std::time::Duration;

use bytes::Bytes;

use super::config::RepositoryAddress;

/// A repository. Clones are cheap.
#[derive(Debug, Clone)]
pub struct Source(PathBuf);

/// A file that is being read.
#[derive(Debug)]
pub struct Arrival {
    /// Its first byte here is this one of the file.
    pub start: u64,
    /// So many bytes come, if that is known.
    pub length: Option<u64>,
    file: std::fs::File,
}

/// Why a file cannot be read.
#[derive(Debug, thiserror::Error)]
#[error("cannot read {path}")]
pub struct SourceError {
    path: PathBuf,
    source: io::Error,
}

impl SourceError {
    /// Whether it would fail again.
    pub fn is_final(&self) -> bool {
        self.source.kind() == io::ErrorKind::NotFound
    }

    /// When the server said that it may be asked again.
    pub fn retry_after(&self) -> Option<Duration> {
        None
    }
}

impl Source {
    /// The folder at `address`.
    pub fn new(address: &RepositoryAddress) -> Option<Self> {
        match address {
            RepositoryAddress::Folder(folder) => Some(Self(folder.clone())),
            RepositoryAddress::Http { .. } => None,
        }
    }

    /// The target at `path` below `targets/`, from the byte `from` on.
    #[expect(clippy::unused_async, reason = "a server is waited for")]
    pub async fn target(&self, path: &str, from: u64) -> Result<Arrival, SourceError> {
        let path = self.0.join("targets").join(path);
        let open = || {
            let mut file = std::fs::File::open(&path)?;
            let length = file.metadata()?.len().saturating_sub(from);
            file.seek(SeekFrom::Start(from))?;
            Ok(Arrival { start: from, length: Some(length), file })
        };
        open().map_err(|source| SourceError { path: path.clone(), source })
    }
}

impl Arrival {
    /// The next bytes.
    #[expect(clippy::unused_async, reason = "a server is waited for")]
    pub async fn chunk(&mut self) -> Result<Option<Bytes>, SourceError> {
        let mut block = vec![0; 64 << 10];
        let read = self.file.read(&mut block).map_err(|source| SourceError { path: PathBuf::new(), source })?;
        block.truncate(read);
        Ok((read > 0).then(|| block.into()))
    }
}
