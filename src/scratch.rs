//! A folder for temporary files.

use std::io;
use std::path::{Path, PathBuf};

/// A temporary folder that only this user may read, removed on drop.
#[derive(Debug)]
pub struct ScratchFolder(PathBuf);

impl ScratchFolder {
    /// A new path that cannot be guessed, without a folder there yet.
    pub fn planned() -> io::Result<Self> {
        let random = getrandom::u64().map_err(io::Error::other)?;
        Ok(Self(std::env::temp_dir().join(format!("ledge-{random:016x}"))))
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
        let scratch = ScratchFolder::planned().unwrap();
        let path = scratch.path().to_owned();
        std::fs::create_dir(&path).unwrap();
        drop(scratch);
        assert!(!path.exists());
    }
}
