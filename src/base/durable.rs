//! Files that have either the old or the new content after a power cut, never a part of one.

use std::fs::{File, OpenOptions};
use std::io::{self, Write};
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use rustix::fs::{CWD, OFlags, RenameFlags, renameat_with};

/// Replaces the file at `path` by `content`.
///
/// When this returns `Ok`, the content survives a power cut. After a failure the old file is still there, unchanged.
/// The content is written to a temporary file in the same folder, fsynced and renamed, and the folder is fsynced. When
/// root writes into the folder of another user, that user owns the file before it has its name.
pub fn replace(path: &Path, content: &[u8]) -> io::Result<()> {
    replace_with(OpenOptions::new().write(true).create_new(true), path, content)
}

/// As [`replace`], for a file whose folder may be missing.
pub fn replace_in_new_folder(path: &Path, content: &[u8]) -> io::Result<()> {
    create_folder(parent(path))?;
    replace(path, content)
}

/// As [`replace`], for a file that only its owner may read.
pub fn replace_private(path: &Path, content: &[u8]) -> io::Result<()> {
    replace_with(OpenOptions::new().write(true).create_new(true).mode(0o600), path, content)
}

/// Creates a file that only its owner may read. An existing file is an error, and stays unchanged. When root writes it,
/// the owner of the folder owns it.
pub fn create_private(path: &Path, content: &[u8]) -> io::Result<()> {
    let mut file = OpenOptions::new().write(true).create_new(true).mode(0o600).open(path)?;
    give_to_owner_of(parent(path), &file)?;
    file.write_all(content)?;
    file.sync_all()?;
    sync_folder(parent(path))
}

/// As [`replace_private`], for a file whose owner, group and mode stay as they are.
pub fn replace_alike(path: &Path, content: &[u8]) -> io::Result<()> {
    let before = std::fs::metadata(path)?;
    let alike = |file: &File| {
        std::os::unix::fs::fchown(file, Some(before.uid()), Some(before.gid()))?;
        file.set_permissions(before.permissions())
    };
    replace_as(OpenOptions::new().write(true).create_new(true).mode(0o600), path, content, alike)
}

fn replace_with(options: &OpenOptions, path: &Path, content: &[u8]) -> io::Result<()> {
    replace_as(options, path, content, |file| give_to_owner_of(parent(path), file))
}

fn replace_as(
    options: &OpenOptions,
    path: &Path,
    content: &[u8],
    become_alike: impl FnOnce(&File) -> io::Result<()>,
) -> io::Result<()> {
    let folder = parent(path);
    let mut name = path.file_name().unwrap_or_default().to_os_string();
    name.push(format!(".{}.tmp", std::process::id()));
    let temporary = folder.join(name);

    let written = (|| {
        let mut file = match options.open(&temporary) {
            // Either a killed process with the same id left it, or a user with write access to this folder made a link,
            // which root must not follow.
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {
                std::fs::remove_file(&temporary)?;
                options.open(&temporary)?
            }
            opened => opened?,
        };

        become_alike(&file)?;
        file.write_all(content)?;
        file.sync_all()?;
        rename(&temporary, path)
    })();
    if written.is_err() {
        let _ = std::fs::remove_file(&temporary);
    }
    written
}

/// Removes the temporary files that [`replace`] leaves in `folder` when its process is killed. Only for a folder that
/// no other process writes.
pub fn remove_leftovers(folder: &Path) -> io::Result<()> {
    for entry in std::fs::read_dir(folder)? {
        let path = entry?.path();
        let name = path.file_name().unwrap_or_default().to_string_lossy();
        let process = name.strip_suffix(".tmp").and_then(|name| name.rsplit_once('.')).map(|(_, process)| process);
        if process.is_some_and(|process| process.parse::<u32>().is_ok()) {
            std::fs::remove_file(&path)?;
        }
    }
    Ok(())
}

/// True if the disk or the quota is full.
pub fn is_full(error: &io::Error) -> bool {
    matches!(error.kind(), io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded)
}

/// True if the disk is full or read-only: it may take writes again later.
pub fn is_unwritable(error: &io::Error) -> bool {
    is_full(error) || error.kind() == io::ErrorKind::ReadOnlyFilesystem
}

/// Renames within one folder and makes the rename survive a power cut.
#[expect(clippy::disallowed_methods, reason = "this is the one place")]
pub fn rename(from: &Path, to: &Path) -> io::Result<()> {
    std::fs::rename(from, to)?;
    sync_folder(parent(to))
}

/// The most damaged files of one name that are kept.
const SET_ASIDE_MAX: u32 = 9;

/// Renames a damaged file to the first free of `NAME.set-aside-1` to `-9`, and returns that path. With all of them taken, it
/// replaces the last. So it is neither read again nor overwritten, and its owner can look at it.
pub fn set_aside(file: &Path) -> io::Result<PathBuf> {
    let name = |number: u32| file.with_added_extension(format!("set-aside-{number}"));
    let mut number = 1;
    while number < SET_ASIDE_MAX && name(number).try_exists()? {
        number += 1;
    }
    rename(file, &name(number))?;
    Ok(name(number))
}

/// Exchanges two folders or files of one folder, so that each name has one of them at any time. A file system that cannot
/// do this, such as ZFS before 2.2, answers `InvalidInput`.
pub fn exchange(one: &Path, other: &Path) -> io::Result<()> {
    renameat_with(CWD, one, CWD, other, RenameFlags::EXCHANGE)?;
    sync_folder(parent(one))
}

/// Makes created, renamed and removed names of `folder` survive a power cut.
pub fn sync_folder(folder: &Path) -> io::Result<()> {
    File::open(folder)?.sync_all()
}

/// Creates a folder and its parents, unless it exists. Its name survives a power cut.
pub fn create_folder(folder: &Path) -> io::Result<()> {
    if folder.is_dir() {
        return Ok(());
    }
    create_folder(parent(folder))?;
    match std::fs::create_dir(folder) {
        // Another process may have created it first, or a file may have its name.
        Err(error) if error.kind() != io::ErrorKind::AlreadyExists || !folder.is_dir() => Err(error),
        Err(_) => sync_folder(parent(folder)),
        Ok(()) => {
            let no_link = i32::try_from(OFlags::NOFOLLOW.bits()).map_err(io::Error::other)?;
            let made = OpenOptions::new().read(true).custom_flags(no_link).open(folder)?;
            give_to_owner_of(parent(folder), &made)?;
            sync_folder(parent(folder))
        }
    }
}

/// Makes the owner of the folder the owner of what root created in it: a command that root runs must not leave files
/// that the daemon cannot read.
fn give_to_owner_of(folder: &Path, made: &File) -> io::Result<()> {
    if !rustix::process::geteuid().is_root() {
        return Ok(());
    }
    let (folder, mine) = (std::fs::metadata(folder)?, made.metadata()?);
    if (folder.uid(), folder.gid()) == (mine.uid(), mine.gid()) {
        return Ok(());
    }
    match std::os::unix::fs::fchown(made, Some(folder.uid()), Some(folder.gid())) {
        // Root without the capability, in a container.
        Err(error) if error.kind() == io::ErrorKind::PermissionDenied => Ok(()),
        given => given,
    }
}

fn parent(path: &Path) -> &Path {
    match path.parent() {
        Some(folder) if !folder.as_os_str().is_empty() => folder,
        _ => Path::new("."),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn damaged_files_are_set_aside_each_under_a_name_of_its_own_and_the_last_of_many_is_replaced() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("a.json");
        for number in 1..=11_u8 {
            replace(&file, &[number]).unwrap();
            let aside = set_aside(&file).unwrap();
            assert_eq!(std::fs::read(&aside).unwrap(), [number]);
            assert!(!file.exists() && aside.ends_with(format!("a.json.set-aside-{}", number.min(9))));
        }
        assert_eq!(std::fs::read_dir(folder.path()).unwrap().count(), 9);
        assert!(set_aside(&file).is_err());
    }

    #[test]
    fn a_replaced_file_holds_the_new_content_and_leaves_nothing_else() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("state");
        replace(&path, b"old").unwrap();
        replace(&path, b"new").unwrap();
        assert_eq!(std::fs::read(&path).unwrap(), b"new");
        assert_eq!(std::fs::read_dir(folder.path()).unwrap().count(), 1);
    }

    #[test]
    #[expect(clippy::disallowed_methods, reason = "the test makes what must not be written through")]
    fn a_link_in_the_place_of_the_temporary_file_is_not_followed() {
        let folder = tempfile::tempdir().unwrap();
        let (path, precious) = (folder.path().join("state"), folder.path().join("precious"));
        std::fs::write(&precious, b"precious").unwrap();
        let planted = folder.path().join(format!("state.{}.tmp", std::process::id()));
        for replace in [replace, replace_private] {
            std::os::unix::fs::symlink(&precious, &planted).unwrap();
            replace(&path, b"new").unwrap();
            assert_eq!(std::fs::read(&precious).unwrap(), b"precious");
            assert!(path.symlink_metadata().unwrap().is_file() && !planted.exists());
        }
    }

    #[test]
    fn what_root_writes_into_the_folder_of_another_is_for_that_one_to_read() {
        let folder = tempfile::tempdir().unwrap();
        let in_folder = |name: &str| folder.path().join(name);
        let user = rustix::process::geteuid();
        let owner = if user.is_root() { 65_534 } else { user.as_raw() };
        std::os::unix::fs::chown(folder.path(), Some(owner), None).unwrap();
        replace(&in_folder("a"), b"x").unwrap();
        replace_private(&in_folder("b"), b"x").unwrap();
        create_private(&in_folder("c"), b"x").unwrap();
        create_folder(&in_folder("d/e")).unwrap();
        for name in ["a", "b", "c", "d", "d/e"] {
            assert_eq!(std::fs::metadata(in_folder(name)).unwrap().uid(), owner, "{name}");
        }
        assert_eq!(std::fs::metadata(in_folder("b")).unwrap().mode() & 0o777, 0o600);
    }

    #[test]
    fn what_a_killed_process_left_goes_and_nothing_else() {
        let folder = tempfile::tempdir().unwrap();
        let kept = ["state", "state.tmp", "state.7.json", "7.tmp", "state.x.tmp"];
        for name in kept.iter().chain(&["state.json.4711.tmp", "state.7.tmp"]) {
            File::create(folder.path().join(name)).unwrap();
        }
        remove_leftovers(folder.path()).unwrap();
        assert_eq!(std::fs::read_dir(folder.path()).unwrap().count(), kept.len());
    }

    #[test]
    fn a_file_that_is_replaced_alike_keeps_its_mode_and_one_that_is_there_is_not_created() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("key");
        create_private(&path, b"old").unwrap();
        let mode = || std::fs::metadata(&path).unwrap().mode() & 0o777;
        assert_eq!(mode(), 0o600);
        assert!(create_private(&path, b"new").is_err());
        std::fs::set_permissions(&path, std::os::unix::fs::PermissionsExt::from_mode(0o640)).unwrap();
        replace_alike(&path, b"new").unwrap();
        assert_eq!((mode(), std::fs::read(&path).unwrap()), (0o640, b"new".to_vec()));
        assert!(replace_alike(&folder.path().join("none"), b"new").is_err());
    }

    #[test]
    fn a_failed_replace_leaves_the_old_content() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("taken");
        std::fs::create_dir(&path).unwrap();
        assert!(replace(&path, b"new").is_err());
        assert!(path.is_dir());
        assert_eq!(std::fs::read_dir(folder.path()).unwrap().count(), 1);
    }
}
