//! The folders of one child.

use std::io;
use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};

use crate::child_settings::ChildSettings;
use crate::staged_files;
use crate::starter::ChildUser;

/// The folder within that of a child which it may read.
pub(super) const FILES: &str = "files";

/// The folder within that of a child in which it may also write.
pub(super) const WRITTEN: &str = "written";

/// The folders of one child, removed when this is dropped. At least one is there.
#[derive(Debug)]
pub(super) struct ChildFolders {
    /// `None` while the disk cannot be written.
    pub(super) disk: Option<PathBuf>,
    pub(super) memory: Option<PathBuf>,
}

impl ChildFolders {
    /// Folders on the disk and in memory, or in memory alone where the disk cannot be written: a box whose disk failed
    /// still answers calls.
    pub(super) fn create(settings: &ChildSettings) -> io::Result<Self> {
        static NEXT_FOLDER: AtomicU64 = AtomicU64::new(1);
        let name = format!("{}-{}", std::process::id(), NEXT_FOLDER.fetch_add(1, Ordering::Relaxed));
        let user = settings.starter.user();
        let memory = settings.memory_folder.as_ref().map(|place| Self::create_in(place, &name, user)).transpose()?;
        let disk = match Self::create_in(&settings.folder, &name, user) {
            Ok(folder) => Some(folder),
            Err(error) if let Some(memory) = &memory => {
                tracing::warn!(
                    folder = %settings.folder.display(),
                    %error,
                    memory = %memory.display(),
                    "the folder for processes of models cannot be written: one is started with copies of its models in \
                     memory"
                );
                None
            }
            Err(error) => return Err(error),
        };
        Ok(Self { disk, memory })
    }

    pub(super) fn create_in(place: &Path, name: &str, user: Option<ChildUser>) -> io::Result<PathBuf> {
        std::fs::DirBuilder::new().recursive(true).mode(0o700).create(place)?;
        staged_files::give(place, user, 0o710)?;
        let folder = place.join(name);
        staged_files::create(&folder, user)?;
        let folder = folder.canonicalize()?;
        for part in [FILES, WRITTEN] {
            staged_files::create(&folder.join(part), user)?;
        }
        Ok(folder)
    }

    pub(super) fn all(&self) -> impl Iterator<Item = &PathBuf> {
        self.disk.iter().chain(&self.memory)
    }

    /// Those in which the files of a model may lie, the preferred one first.
    pub(super) fn allowed(&self, is_secret: bool) -> impl Iterator<Item = &PathBuf> {
        self.disk.iter().filter(move |_| !is_secret).chain(&self.memory)
    }
}

impl Drop for ChildFolders {
    fn drop(&mut self) {
        for folder in self.all() {
            let _ = std::fs::remove_dir_all(folder);
        }
    }
}
