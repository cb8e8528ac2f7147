//! A folder for temporary files.

use std::io;
#[cfg(any(test, feature = "bench"))]
use std::os::unix::fs::DirBuilderExt as _;
use std::path::{Path, PathBuf};

/// A temporary folder that only this user may read, removed on drop.
#[derive(Debug)]
pub struct ScratchFolder(PathBuf);

impl ScratchFolder {
    /// A new path that nobody can guess, without a folder there yet.
    pub fn planned() -> io::Result<Self> {
        let random = getrandom::u64().map_err(io::Error::other)?;
        Ok(Self(std::env::temp_dir().join(format!("ledge-{random:016x}"))))
    }

    /// Creates a folder.
    #[cfg(any(test, feature = "bench"))]
    pub fn new() -> io::Result<Self> {
        let planned = Self::planned()?;
        let path = planned.path();
        let created = std::fs::DirBuilder::new().mode(0o700).create(path);
        created.map_err(|error| io::Error::new(error.kind(), format!("cannot create {}: {error}", path.display())))?;
        Ok(planned)
    }

    /// Its path.
    pub fn path(&self) -> &Path {
        &self.0
    }
}

impl Drop for ScratchFolder {
    fn drop(&mut self) {
        // After an error the rest stays in the folder for temporary files.
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_dropped_scratch_folder_is_removed() {
        let scratch = ScratchFolder::new().unwrap();
        let path = scratch.path().to_owned();
        assert!(path.is_dir());
        drop(scratch);
        assert!(!path.exists());
    }
}
