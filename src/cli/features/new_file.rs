//! A file that is there whole or not at all.

use std::fs::{File, OpenOptions};
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::{Path, PathBuf};

use anyhow::{Context, bail};
use ledge_base::durable;

/// A file that is being written under another name. Dropped before its end, it goes.
pub struct NewFile {
    path: PathBuf,
    temporary: PathBuf,
}

impl NewFile {
    /// Beside `path`, which must not be there, unless by `force`.
    pub fn create(path: &Path, force: bool) -> anyhow::Result<(Self, File)> {
        if !force && path.exists() {
            bail!("{} is there already; --force overwrites it", path.display());
        }
        let mut name = path.file_name().context("that is no name of a file")?.to_owned();
        name.push(".tmp");
        let temporary = path.with_file_name(name);
        let mut options = OpenOptions::new();
        // Read back before it gets its name. What features hold is for nobody but whoever runs this.
        let file = options.read(true).write(true).create(true).truncate(true).mode(0o600).open(&temporary);
        let file = file.with_context(|| format!("{} cannot be written", temporary.display()))?;
        Ok((Self { path: path.to_owned(), temporary }, file))
    }

    /// Where it is until it has its name.
    pub fn temporary(&self) -> &Path {
        &self.temporary
    }

    /// Gives it its name. When this returns `Ok`, it survives a power cut.
    pub fn keep(self) -> anyhow::Result<()> {
        File::open(&self.temporary)?.sync_all()?;
        durable::rename(&self.temporary, &self.path)?;
        Ok(())
    }
}

impl Drop for NewFile {
    fn drop(&mut self) {
        // After `keep` there is none.
        let _ = std::fs::remove_file(&self.temporary);
    }
}
