//! A file that appears only when it is complete.

use std::fs::{File, OpenOptions};
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::{Path, PathBuf};

use anyhow::{Context, bail};
use ledge_base::durable;

/// A file that is written under a temporary name. It is removed when this is dropped before [`Self::keep`].
pub struct NewFile {
    path: PathBuf,
    temporary: PathBuf,
}

impl NewFile {
    /// Creates the temporary file next to `path`, which must not exist unless `force` is set.
    pub fn create(path: &Path, force: bool) -> anyhow::Result<(Self, File)> {
        if !force && path.exists() {
            bail!("{} exists already; --force overwrites it", path.display());
        }
        let mut name =
            path.file_name().with_context(|| format!("{} is not the name of a file", path.display()))?.to_owned();
        name.push(".tmp");
        let temporary = path.with_file_name(name);
        let mut options = OpenOptions::new();
        // Readable, because it is verified before it gets its name; and only for its owner, because features are
        // private.
        let file = options.read(true).write(true).create(true).truncate(true).mode(0o600).open(&temporary);
        let file = file.with_context(|| format!("{} cannot be written", temporary.display()))?;
        Ok((Self { path: path.to_owned(), temporary }, file))
    }

    /// The temporary path.
    pub fn temporary(&self) -> &Path {
        &self.temporary
    }

    /// Renames it to its final name. After `Ok` it survives a power cut.
    pub fn keep(self) -> anyhow::Result<()> {
        File::open(&self.temporary)?.sync_all()?;
        durable::rename(&self.temporary, &self.path)?;
        Ok(())
    }
}

impl Drop for NewFile {
    fn drop(&mut self) {
        // After `keep` it does not exist any more.
        let _ = std::fs::remove_file(&self.temporary);
    }
}
