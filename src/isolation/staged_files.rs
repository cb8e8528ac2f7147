//! The files of a model, staged for a child to read: a folder for each instance, beneath the child's own.
//!
//! A child may open files only beneath its own folders, so no content of a model's folder, such as a link, can lead it
//! elsewhere. Files are hard-linked there if possible, and copied otherwise. A child writes only where OpenVINO leaves
//! a model that it compiled for the first time; one that is kept is among the files that it may only read.

use std::fs::{self, File, OpenOptions};
use std::io;
use std::os::fd::AsRawFd;
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::time::Duration;

use ledge_base::checked_folder::CheckedFolder;
use ledge_base::contained;
use ledge_engine::backend::{CompiledModelCache, ModelFiles};
use rustix::fs::{AtFlags, CWD};

use crate::starter::ChildUser;

/// The folder of a kept compiled model within that of an instance.
const COMPILED: &str = "compiled";

/// The longest wait for another load that uses the same compiled model.
const CACHE_LOCK_TIMEOUT: Duration = Duration::from_mins(1);

/// The largest compiled model that a child may write and that is kept, in bytes.
pub const COMPILED_BYTES_MAX: u64 = 16 << 30;

/// Where the files of one instance are.
#[derive(Debug)]
pub struct StagedFileFolders {
    /// A path within the folder that the child may read.
    pub files: PathBuf,
    /// A path within the one that it may write.
    pub written: PathBuf,
}

/// The files of one instance; removed when this is dropped. Files that a runtime has mapped stay until they are
/// unmapped.
#[derive(Debug)]
pub struct StagedFiles {
    folders: StagedFileFolders,
    /// The user of the child, where that is not the one of this process.
    user: Option<ChildUser>,
    /// The folder that keeps the compiled model between starts, and whether it has one.
    cache: Option<(PathBuf, bool)>,
}

impl StagedFiles {
    /// Lays `files` out in new folders, together with the compiled model that `cache` keeps. Returns the files and the
    /// cache as the child sees them.
    pub fn new(
        folders: StagedFileFolders,
        files: &ModelFiles,
        cache: Option<&Path>,
        user: Option<ChildUser>,
    ) -> io::Result<(Self, ModelFiles, CompiledModelCache)> {
        create(&folders.files, user)?;
        let mut stage = Self { folders, user, cache: None };
        let home = files.model.parent().unwrap_or(Path::new("."));
        let own = |path: &Path| path.file_name().map(PathBuf::from);
        let named = [own(&files.model), files.weights.as_deref().and_then(own)];
        for name in named.into_iter().flatten().chain(files.external.iter().cloned()) {
            stage.place(&contained::open(home, &name)?, &name)?;
        }
        let cache = cache.map_or(Ok(CompiledModelCache::None), |cache| stage.compiled(cache))?;
        let staged = files.moved_to(&stage.folders.files);
        Ok((stage, staged, cache))
    }

    fn place(&self, file: &File, name: &Path) -> io::Result<()> {
        let target = self.folders.files.join(name);
        let mut parents: Vec<_> =
            target.ancestors().skip(1).take_while(|parent| *parent != self.folders.files).collect();
        parents.reverse();
        for parent in parents.into_iter().filter(|parent| !parent.is_dir()) {
            create(parent, self.user)?;
        }
        link_or_copy(file, &target, self.user)
    }

    /// A folder with the compiled model that `cache` keeps, or an empty one that the runtime fills.
    fn compiled(&mut self, cache: &Path) -> io::Result<CompiledModelCache> {
        let kept = match CheckedFolder::take(cache, CACHE_LOCK_TIMEOUT) {
            Ok(kept) => kept,
            Err(error) => {
                tracing::warn!(
                    folder = %cache.display(),
                    %error,
                    "the folder of a compiled model cannot be used (runtimes.cache): the model is compiled at each load"
                );
                return Ok(CompiledModelCache::None);
            }
        };
        let has_one = kept.files().next().is_some();
        self.cache = Some((cache.to_owned(), has_one));
        if !has_one {
            create(&self.folders.written, self.user)?;
            return Ok(CompiledModelCache::Own(self.folders.written.clone()));
        }
        let own = self.folders.files.join(COMPILED);
        create(&own, self.user)?;
        for name in kept.files() {
            link_or_copy(&contained::open(kept.path(), Path::new(name))?, &own.join(name), self.user)?;
        }
        Ok(CompiledModelCache::Own(own))
    }

    /// Keeps the compiled model that the runtime has left, for the next load. One that the runtime could not use, as
    /// after a change of the CPU, is removed: the next load leaves another one.
    pub fn keep_compiled(&mut self, missed_cache: bool) -> io::Result<()> {
        let Some((cache, had_one)) = self.cache.take().filter(|_| missed_cache) else { return Ok(()) };
        let own = &self.folders.written;
        let kept = CheckedFolder::take(&cache, CACHE_LOCK_TIMEOUT)?;
        if had_one {
            return kept.forget();
        }
        // Another instance was quicker.
        if kept.files().next().is_some() {
            return Ok(());
        }
        for entry in fs::read_dir(own)? {
            let name = entry?.file_name();
            let file = contained::open(own, Path::new(&name))?;
            if file.metadata()?.len() <= COMPILED_BYTES_MAX {
                // Copied: the child could go on writing to a file that is linked.
                copy(&file, &kept.path().join(&name))?;
            }
        }
        kept.keep()
    }
}

impl Drop for StagedFiles {
    fn drop(&mut self) {
        let StagedFileFolders { files, written } = &self.folders;
        for folder in [files, written] {
            if let Err(error) = fs::remove_dir_all(folder)
                && error.kind() != io::ErrorKind::NotFound
            {
                tracing::warn!(folder = %folder.display(), %error, "the files of an unloaded model cannot be removed");
            }
        }
    }
}

/// Creates a folder that only this process and a child of `user` may read.
pub fn create(folder: &Path, user: Option<ChildUser>) -> io::Result<()> {
    fs::DirBuilder::new().mode(0o700).create(folder)?;
    give(folder, user, 0o750)
}

/// Lets the group of `user` read what this process has made: it stays the owner, so that no other user can write there.
pub fn give(path: &Path, user: Option<ChildUser>, mode: u32) -> io::Result<()> {
    let Some(ChildUser { gid, .. }) = user else { return Ok(()) };
    std::os::unix::fs::lchown(path, None, Some(gid))?;
    fs::set_permissions(path, fs::Permissions::from_mode(mode))
}

fn link_or_copy(file: &File, target: &Path, user: Option<ChildUser>) -> io::Result<()> {
    if user.is_some() {
        // Its owner may be this user, and the mode may deny all others to read it.
        copy(file, target)?;
        return give(target, user, 0o640);
    }
    // Through the open file, so that the name cannot be another file meanwhile.
    let opened = format!("/proc/self/fd/{}", file.as_raw_fd());
    match rustix::fs::linkat(CWD, opened, CWD, target, AtFlags::SYMLINK_FOLLOW) {
        Ok(()) => Ok(()),
        // Another file system, a file of another user, or a file system without links.
        Err(_) => copy(file, target),
    }
}

fn copy(mut file: &File, target: &Path) -> io::Result<()> {
    let mut copy = OpenOptions::new().write(true).create_new(true).mode(0o600).open(target)?;
    io::copy(&mut file, &mut copy).map(drop)
}

#[cfg(test)]
mod tests {
    use super::*;
    use ledge_base::durable;
    use ledge_engine::backend::{InputDangers, ModelFormat};

    fn files(home: &Path) -> ModelFiles {
        for name in ["model.onnx", "data/weights"] {
            let path = home.join(name);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            durable::replace(&path, name.as_bytes()).unwrap();
        }
        ModelFiles {
            format: ModelFormat::Onnx,
            model: home.join("model.onnx"),
            weights: None,
            external: vec!["data/weights".into()],
            port_names: None,
            dangers: InputDangers::default(),
            class_maps: Vec::new(),
        }
    }

    fn folders(root: &Path, name: &str) -> StagedFileFolders {
        StagedFileFolders { files: root.join(name), written: root.join(format!("{name}-written")) }
    }

    #[test]
    fn files_are_laid_out_under_their_names_and_removed_at_the_end() {
        let root = tempfile::tempdir().unwrap();
        let files = files(&root.path().join("home"));
        let folder = root.path().join("stage");
        let (stage, staged, cache) = StagedFiles::new(folders(root.path(), "stage"), &files, None, None).unwrap();
        assert_eq!((staged.model.clone(), cache), (folder.join("model.onnx"), CompiledModelCache::None));
        assert_eq!(fs::read(&staged.model).unwrap(), b"model.onnx");
        assert_eq!(fs::read(folder.join("data/weights")).unwrap(), b"data/weights");
        drop(stage);
        assert!(!folder.exists() && files.model.exists());
    }

    #[test]
    fn a_link_out_of_the_folder_is_not_followed() {
        let root = tempfile::tempdir().unwrap();
        durable::replace(&root.path().join("secret"), b"key").unwrap();
        let files = files(&root.path().join("home"));
        fs::remove_file(&files.model).unwrap();
        std::os::unix::fs::symlink("../secret", &files.model).unwrap();
        let error = StagedFiles::new(folders(root.path(), "stage"), &files, None, None).unwrap_err();
        assert!(error.to_string().contains("leads out"), "{error}");
        assert!(!root.path().join("stage").exists());
    }

    #[test]
    fn a_compiled_model_is_kept_once_and_found_by_the_next_until_it_is_of_no_use() {
        let root = tempfile::tempdir().unwrap();
        let (files, cache) = (files(&root.path().join("home")), root.path().join("cache"));
        let stage = |name: &str| {
            let (stage, _, own) = StagedFiles::new(folders(root.path(), name), &files, Some(&cache), None).unwrap();
            let CompiledModelCache::Own(own) = own else { panic!("{own:?}") };
            (stage, own)
        };
        let (mut first, own) = stage("first");
        assert_eq!(fs::read_dir(&own).unwrap().count(), 0);
        durable::replace(&own.join("1.blob"), b"compiled").unwrap();
        first.keep_compiled(true).unwrap();
        let (mut second, own) = stage("second");
        assert_eq!(fs::read(own.join("1.blob")).unwrap(), b"compiled");
        assert!(own.starts_with(root.path().join("second")), "where it may only read");
        second.keep_compiled(false).unwrap();
        let (mut third, own) = stage("third");
        assert_eq!(fs::read_dir(own).unwrap().count(), 1);
        third.keep_compiled(true).unwrap();
        let (_fourth, own) = stage("fourth");
        assert_eq!(fs::read_dir(own).unwrap().count(), 0, "what could not be used is gone");
    }
}
