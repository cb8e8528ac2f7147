//! An open folder. Files are named within it, never by a path, and no link is followed: others write into the same
//! folders, and could put a link in the place of a file or of a folder at any time.

use std::ffi::{OsStr, OsString};
use std::fs::File;
use std::io::{self, Read, Seek, SeekFrom, Write};
use std::os::fd::OwnedFd;
use std::os::unix::ffi::OsStringExt;
use std::path::{Path, PathBuf};

use rustix::fs::{AtFlags, CWD, Dir, FileType, Mode, OFlags, Stat};
use rustix::io::Errno;
use serde::{Deserialize, Serialize};

/// An open folder.
#[derive(Debug)]
pub struct OpenFolder {
    fd: OwnedFd,
    /// Its path, for messages.
    path: PathBuf,
    identity: FolderIdentity,
    mode: Mode,
}

/// The file system of a folder, and its number there: the same path may become another folder.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct FolderIdentity {
    pub file_system: u64,
    number: u64,
}

/// The size, the time and the number of a file: any write changes one of them.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct FileStamp {
    pub bytes: u64,
    /// Seconds and nanoseconds, by the clock of the file system.
    pub modified: (i64, i64),
    number: u64,
}

/// A regular file in a folder.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct FolderFile {
    pub name: OsString,
    pub stamp: FileStamp,
}

impl OpenFolder {
    /// Opens the folder at a path of the configuration, in which links are followed.
    pub fn open(path: &Path) -> io::Result<Self> {
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
        Self::new(rustix::fs::openat(CWD, path, flags, Mode::empty()), path.to_owned())
    }

    /// Opens a folder in this one.
    pub fn open_child(&self, name: &OsStr) -> io::Result<Self> {
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC | OFlags::NOFOLLOW;
        Self::new(rustix::fs::openat(&self.fd, name, flags, Mode::empty()), self.path.join(name))
    }

    /// The same, and makes it if necessary. Whoever may use this folder may use that one too.
    pub fn make_child(&self, name: &OsStr) -> io::Result<Self> {
        self.make_child_as(name, self.mode)
    }

    /// The same for a folder that only this box may use.
    pub fn make_private_child(&self, name: &OsStr) -> io::Result<Self> {
        self.make_child_as(name, Mode::RWXU)
    }

    fn make_child_as(&self, name: &OsStr, mode: Mode) -> io::Result<Self> {
        match rustix::fs::mkdirat(&self.fd, name, Mode::RWXU) {
            Ok(()) => {}
            Err(Errno::EXIST) => return self.open_child(name),
            Err(error) => return Err(self.error(error)),
        }
        let child = self.open_child(name)?;
        // Some file systems of other machines have no modes.
        let _ = rustix::fs::fchmod(&child.fd, mode);
        self.sync()?;
        Ok(child)
    }

    fn new(opened: Result<OwnedFd, Errno>, path: PathBuf) -> io::Result<Self> {
        let opened = opened.and_then(|fd| Ok((rustix::fs::fstat(&fd)?, fd)));
        let (stat, fd) = opened.map_err(|error| named(&path, error))?;
        let identity = FolderIdentity { file_system: stat.st_dev, number: stat.st_ino };
        Ok(Self { fd, path, identity, mode: Mode::from_raw_mode(stat.st_mode) })
    }

    /// The same folder has the same one.
    pub fn identity(&self) -> FolderIdentity {
        self.identity
    }

    /// Its path, for messages.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// The regular files in it. Links, folders and special files are left out.
    pub fn files(&self) -> io::Result<Vec<FolderFile>> {
        let mut files = Vec::new();
        for name in self.names()? {
            // A file may be gone by now, or be replaced.
            if let Ok(Some(stamp)) = self.stamp(&name) {
                files.push(FolderFile { name, stamp });
            }
        }
        Ok(files)
    }

    /// The names of all that is in it.
    pub fn names(&self) -> io::Result<Vec<OsString>> {
        let wrong = |error| named(&self.path, error);
        let mut names = Vec::new();
        for entry in Dir::read_from(&self.fd).map_err(wrong)? {
            let name = entry.map_err(wrong)?.file_name().to_owned().into_bytes();
            if name != b"." && name != b".." {
                names.push(OsString::from_vec(name));
            }
        }
        Ok(names)
    }

    /// The stamp of a file; `None` if it is no regular file.
    pub fn stamp(&self, name: &OsStr) -> io::Result<Option<FileStamp>> {
        let stat = rustix::fs::statat(&self.fd, name, AtFlags::SYMLINK_NOFOLLOW);
        Ok(stamp(&stat.map_err(|error| self.error(error))?))
    }

    /// The time at which a file was last changed or moved, by the clock of the file system, in milliseconds since the
    /// Unix epoch; `None` if it is no regular file.
    pub fn changed_ms(&self, name: &OsStr) -> io::Result<Option<u64>> {
        let stat = rustix::fs::statat(&self.fd, name, AtFlags::SYMLINK_NOFOLLOW).map_err(|error| self.error(error))?;
        let changed_ms = u64::try_from(stat.st_ctime).unwrap_or(0).saturating_mul(1000);
        Ok(stamp(&stat).map(|_| changed_ms))
    }

    /// Opens a regular file to read it piece by piece.
    pub fn open_to_read(&self, name: &OsStr) -> io::Result<(File, FileStamp)> {
        // Without NONBLOCK, opening a FIFO would wait for its writer.
        let file = self.open_file(name, OFlags::RDONLY | OFlags::NONBLOCK)?;
        let is_no_file = || io::Error::other(format!("{}: a file is no regular file", self.path.display()));
        let stamp = stamp(&rustix::fs::fstat(&file).map_err(|error| self.error(error))?).ok_or_else(is_no_file)?;
        Ok((file, stamp))
    }

    /// Reads a regular file of at most `longest` bytes; `None` if it is longer. The stamp is that of the time before.
    pub fn read(&self, name: &OsStr, longest: u64) -> io::Result<(Option<Vec<u8>>, FileStamp)> {
        let (mut file, stamp) = self.open_to_read(name)?;
        if stamp.bytes > longest {
            return Ok((None, stamp));
        }
        let mut content = Vec::with_capacity(usize::try_from(stamp.bytes).unwrap_or(0));
        let read = (&mut file).take(longest).read_to_end(&mut content);
        read.map_err(|error| self.named_error(&error))?;
        Ok((Some(content), stamp))
    }

    /// Replaces a file, which has either the old or the new content after a power cut. Whoever may read this folder may
    /// read the file.
    pub fn replace(&self, name: &OsStr, content: &[u8]) -> io::Result<()> {
        let mut temporary = OsString::from(".");
        temporary.push(name);
        temporary.push(".tmp");
        let written = (|| {
            match rustix::fs::unlinkat(&self.fd, &temporary, AtFlags::empty()) {
                Ok(()) | Err(Errno::NOENT) => {}
                Err(error) => return Err(self.error(error)),
            }
            let mut file = self.open_file(&temporary, OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL)?;
            self.share(&file);
            let written = file.write_all(content).and_then(|()| file.sync_all());
            written.map_err(|error| self.named_error(&error))?;
            self.rename(&temporary, self, name)
        })();
        if written.is_err() {
            let _ = rustix::fs::unlinkat(&self.fd, &temporary, AtFlags::empty());
        }
        written
    }

    /// Adds a line to a file, unless `is_there` finds it in what the file has. A part of a line at the end is removed.
    /// Returns `false` without a change if the file begins with another line than `first`.
    pub fn append(
        &self,
        name: &OsStr,
        (first, line): (&str, &str),
        is_there: impl Fn(&str) -> bool,
    ) -> io::Result<bool> {
        let mut file = self.open_file(name, OFlags::RDWR | OFlags::CREATE)?;
        let added = (|| {
            let mut content = Vec::new();
            file.read_to_end(&mut content)?;
            let text = String::from_utf8_lossy(&content);
            let whole = text.rfind('\n').map_or("", |end| text.get(..=end).unwrap_or_default());
            if !whole.is_empty() && whole.lines().next() != first.lines().next() {
                return Ok(false);
            }
            if is_there(whole) {
                return Ok(true);
            }
            if whole.is_empty() {
                self.share(&file);
            }
            let kept = content.iter().rposition(|byte| *byte == b'\n').map_or(0, |end| end + 1) as u64;
            let added = format!("{}{line}", if whole.is_empty() { first } else { "" });
            file.set_len(kept)?;
            file.seek(SeekFrom::Start(kept))?;
            let written = file.write_all(added.as_bytes()).and_then(|()| file.sync_all());
            if written.is_err() {
                let _ = file.set_len(kept);
            }
            written.map(|()| true)
        })();
        let added = added.map_err(|error: io::Error| self.named_error(&error))?;
        self.sync()?;
        Ok(added)
    }

    /// Writes behind the first `kept` bytes of a file, and removes what else was there. With 0 the file need not exist; a
    /// file that is shorter is an error. When this returns `Ok`, the content survives a power cut.
    pub fn extend(&self, name: &OsStr, kept: u64, content: &[u8]) -> io::Result<()> {
        let create = if kept == 0 { OFlags::CREATE } else { OFlags::empty() };
        let mut file = self.open_file(name, OFlags::RDWR | create)?;
        let written = (|| {
            if file.metadata()?.len() < kept {
                return Err(io::Error::new(io::ErrorKind::UnexpectedEof, "a file is shorter than it was"));
            }
            if kept == 0 {
                self.share(&file);
            }
            file.set_len(kept)?;
            file.seek(SeekFrom::Start(kept))?;
            file.write_all(content)?;
            file.sync_all()
        })();
        written.map_err(|error| self.named_error(&error))?;
        if kept == 0 { self.sync() } else { Ok(()) }
    }

    /// Opens a file for a lock, and makes it if necessary.
    pub fn lock_file(&self, name: &OsStr) -> io::Result<File> {
        self.open_file(name, OFlags::RDWR | OFlags::CREATE)
    }

    fn open_file(&self, name: &OsStr, flags: OFlags) -> io::Result<File> {
        let flags = flags | OFlags::CLOEXEC | OFlags::NOFOLLOW | OFlags::NOCTTY;
        let opened = rustix::fs::openat(&self.fd, name, flags, Mode::RUSR | Mode::WUSR);
        opened.map(File::from).map_err(|error| self.error(error))
    }

    /// Lets those read and write a new file who may do so with this folder.
    fn share(&self, file: &File) {
        let of_files = Mode::RUSR | Mode::WUSR | Mode::RGRP | Mode::WGRP | Mode::ROTH | Mode::WOTH;
        // Some file systems of other machines have no modes.
        let _ = rustix::fs::fchmod(file, self.mode.intersection(of_files).union(Mode::RUSR | Mode::WUSR));
    }

    /// Moves a file or a link into another folder of the same file system. The move survives a power cut.
    pub fn rename(&self, name: &OsStr, to: &Self, new: &OsStr) -> io::Result<()> {
        rustix::fs::renameat(&self.fd, name, &to.fd, new).map_err(|error| self.error(error))?;
        to.sync()?;
        if to.identity == self.identity { Ok(()) } else { self.sync() }
    }

    /// Removes a file or a link. It need not be there.
    pub fn remove(&self, name: &OsStr) -> io::Result<()> {
        self.unlink(name, AtFlags::empty())
    }

    /// Removes an empty folder. It need not be there.
    pub fn remove_child(&self, name: &OsStr) -> io::Result<()> {
        self.unlink(name, AtFlags::REMOVEDIR)
    }

    fn unlink(&self, name: &OsStr, flags: AtFlags) -> io::Result<()> {
        match rustix::fs::unlinkat(&self.fd, name, flags) {
            Ok(()) => self.sync(),
            Err(Errno::NOENT) => Ok(()),
            Err(error) => Err(self.error(error)),
        }
    }

    /// Makes names survive a power cut, on a file system that can do so for a folder.
    fn sync(&self) -> io::Result<()> {
        match rustix::fs::fsync(&self.fd) {
            Ok(()) | Err(Errno::INVAL | Errno::NOTSUP | Errno::NOSYS) => Ok(()),
            Err(error) => Err(named(&self.path, error)),
        }
    }

    /// An error about a file in this folder. It does not name the file, whose name may be that of a person.
    fn error(&self, error: Errno) -> io::Error {
        named(&self.path, error)
    }

    fn named_error(&self, error: &io::Error) -> io::Error {
        io::Error::new(error.kind(), format!("{}: {error}", self.path.display()))
    }
}

fn named(path: &Path, error: Errno) -> io::Error {
    let error = io::Error::from(error);
    io::Error::new(error.kind(), format!("{}: {error}", path.display()))
}

#[expect(clippy::useless_conversion, reason = "the types of times are not the same on every machine")]
fn stamp(stat: &Stat) -> Option<FileStamp> {
    let modified = (i64::from(stat.st_mtime), i64::try_from(stat.st_mtime_nsec).unwrap_or(0));
    let bytes = u64::try_from(stat.st_size).unwrap_or(0);
    let is_file = FileType::from_raw_mode(stat.st_mode) == FileType::RegularFile;
    is_file.then_some(FileStamp { bytes, modified, number: stat.st_ino })
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::os::unix::fs::{PermissionsExt, symlink};

    use super::*;

    fn open() -> (tempfile::TempDir, OpenFolder) {
        let folder = tempfile::tempdir().unwrap();
        let opened = OpenFolder::open(folder.path()).unwrap();
        (folder, opened)
    }

    fn name(text: &str) -> &OsStr {
        OsStr::new(text)
    }

    #[test]
    fn links_and_special_files_are_neither_listed_nor_read_nor_written_through() {
        let (folder, opened) = open();
        let outside = tempfile::tempdir().unwrap();
        let secret = outside.path().join("secret");
        File::create(&secret).unwrap().write_all(b"secret").unwrap();
        symlink(&secret, folder.path().join("link")).unwrap();
        symlink(outside.path(), folder.path().join("results")).unwrap();
        symlink(&secret, folder.path().join(".a.json.tmp")).unwrap();
        rustix::fs::mknodat(CWD, folder.path().join("fifo"), FileType::Fifo, Mode::RUSR, 0).unwrap();
        fs::create_dir(folder.path().join("folder")).unwrap();

        assert_eq!(opened.files().unwrap(), []);
        for other in ["link", "fifo"] {
            assert!(opened.read(name(other), 100).is_err(), "{other}");
        }
        assert!(opened.open_child(name("results")).is_err() && opened.make_child(name("results")).is_err());
        opened.replace(name("a.json"), b"new").unwrap();
        opened.replace(name("link"), b"new").unwrap();
        assert!(
            opened.append(name("link"), ("a\n", "b\n"), |_| false).is_err() || fs::read(&secret).unwrap() == b"secret"
        );
        assert_eq!(fs::read(&secret).unwrap(), b"secret");
        assert_eq!(fs::read(folder.path().join("a.json")).unwrap(), b"new");
    }

    #[test]
    fn files_and_folders_are_as_open_as_the_folder_that_they_are_in() {
        let (folder, _) = open();
        fs::set_permissions(folder.path(), fs::Permissions::from_mode(0o2770)).unwrap();
        let opened = OpenFolder::open(folder.path()).unwrap();
        opened.replace(name("a"), b"x").unwrap();
        opened.append(name("b"), ("h\n", "x\n"), |_| false).unwrap();
        opened.make_child(name("c")).unwrap();
        opened.make_private_child(name("d")).unwrap();
        let mode = |file: &str| folder.path().join(file).metadata().unwrap().permissions().mode() & 0o7777;
        assert_eq!(["a", "b", "c", "d"].map(mode), [0o660, 0o660, 0o2770, 0o700]);
    }

    #[test]
    fn a_line_is_added_once_behind_whole_lines_of_the_same_table() {
        let (folder, opened) = open();
        let add = |line: &str| opened.append(name("t.csv"), ("id,x\n", line), |text| text.contains(line)).unwrap();
        let text = || fs::read_to_string(folder.path().join("t.csv")).unwrap();
        assert!(add("1,a\n") && add("2,b\n") && add("1,a\n"));
        assert_eq!(text(), "id,x\n1,a\n2,b\n");
        File::options().append(true).open(folder.path().join("t.csv")).unwrap().write_all(b"3,\xc3").unwrap();
        assert!(add("3,c\n"));
        assert_eq!(text(), "id,x\n1,a\n2,b\n3,c\n");
        assert!(!opened.append(name("t.csv"), ("id,y\n", "4,d\n"), |_| false).unwrap());
        assert_eq!(text(), "id,x\n1,a\n2,b\n3,c\n");
    }

    #[test]
    fn a_file_is_extended_behind_what_is_kept_and_never_behind_a_gap() {
        let (folder, opened) = open();
        let text = || fs::read_to_string(folder.path().join("a")).unwrap();
        opened.extend(name("a"), 0, b"one").unwrap();
        opened.extend(name("a"), 3, b"two").unwrap();
        opened.extend(name("a"), 3, b"2").unwrap();
        assert_eq!(text(), "one2");
        assert!(opened.extend(name("a"), 5, b"x").is_err() && opened.extend(name("b"), 1, b"x").is_err());
        assert_eq!(text(), "one2");
        opened.extend(name("a"), 0, b"").unwrap();
        assert_eq!(text(), "");
    }

    #[test]
    fn a_write_changes_the_stamp_and_a_rename_does_not() {
        let (folder, opened) = open();
        let path = folder.path().join("a");
        File::create(&path).unwrap().write_all(b"one").unwrap();
        let before = opened.stamp(name("a")).unwrap();
        opened.rename(name("a"), &opened, name("b")).unwrap();
        assert_eq!(opened.stamp(name("b")).unwrap(), before);
        File::options().append(true).open(folder.path().join("b")).unwrap().write_all(b"two").unwrap();
        assert_ne!(opened.stamp(name("b")).unwrap(), before);
        assert_eq!(opened.read(name("b"), 5).unwrap().0, None);
        assert_eq!(opened.read(name("b"), 6).unwrap().0.as_deref(), Some(&b"onetwo"[..]));
    }
}
