//! The file of a backup while it is written: private, perhaps encrypted, and under its name only when it is complete.

use std::fs::File;
use std::io::{self, BufWriter, Write};
use std::path::Path;

use anyhow::Context as _;
use ledge_features::backup_cipher::{BackupRecipient, StreamWriter};

use crate::cli::features::new_file::NewFile;

/// The size of the buffer, in bytes.
const BUFFER_BYTES: usize = 1 << 20;

/// A file that is not complete yet.
pub struct BackupFile(NewFile);

/// The bytes that go into the file.
pub enum BackupStream {
    Plain(BufWriter<File>),
    Encrypted(StreamWriter<BufWriter<File>>),
}

impl BackupFile {
    /// Creates the file that will be at `path`.
    pub fn create(path: &Path, to: Option<&BackupRecipient>) -> anyhow::Result<(Self, BackupStream)> {
        let (new, file) = NewFile::create(path, false)?;
        let file = BufWriter::with_capacity(BUFFER_BYTES, file);
        let stream = match to {
            None => BackupStream::Plain(file),
            Some(to) => BackupStream::Encrypted(to.encrypt(file)?),
        };
        Ok((Self(new), stream))
    }

    /// Gives the complete file its name. After `Ok` it survives a power cut.
    pub fn keep(self, stream: BackupStream) -> anyhow::Result<()> {
        let file = match stream {
            BackupStream::Plain(file) => file,
            BackupStream::Encrypted(stream) => stream.finish()?,
        };
        file.into_inner().map_err(io::IntoInnerError::into_error).context("the backup cannot be written")?;
        self.0.keep()
    }
}

impl Write for BackupStream {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        match self {
            Self::Plain(file) => file.write(bytes),
            Self::Encrypted(stream) => stream.write(bytes),
        }
    }

    fn flush(&mut self) -> io::Result<()> {
        match self {
            Self::Plain(file) => file.flush(),
            Self::Encrypted(stream) => stream.flush(),
        }
    }
}
