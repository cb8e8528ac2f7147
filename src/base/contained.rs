//! Files of a model's folder, read without leaving it.
//!
//! An owner copies models from anywhere, and the content of their files may appear in answers, as labels do. Refused
//! are a link that leads out of the folder, anything but a regular file, and a file above the size limit of its kind.

use std::fs::File;
use std::io::{self, Read};
use std::path::Path;

use rustix::fs::{CWD, Mode, OFlags, ResolveFlags};
use rustix::io::Errno;

/// The most bytes of a `model.toml`.
pub const CONFIG_MAX: u64 = 1 << 20;
/// The most bytes of a file of a pipeline, such as a tokenizer: the largest ones have some 20 MB.
pub const PIPELINE_FILE_MAX: u64 = 32 << 20;
/// The most bytes of labels, of a golden input, or of its answer.
pub const DATA_MAX: u64 = 256 << 20;
/// The most bytes of a file that runtimes read: they keep it in memory as well.
pub const MODEL_MAX: u64 = 64 << 30;

/// Reads the file at `relative` in `folder`, if it has at most `max` bytes. `folder` itself may be a link.
pub fn read(folder: &Path, relative: &Path, max: u64) -> io::Result<Vec<u8>> {
    content(open_at_most(folder, relative, max)?.0, max)
}

/// Reads an open file, if it has at most `max` bytes.
pub fn content(file: File, max: u64) -> io::Result<Vec<u8>> {
    let length = file.metadata()?.len();
    let mut content = Vec::new();
    content.try_reserve_exact(usize::try_from(length.min(max)).unwrap_or(usize::MAX))?;
    file.take(max + 1).read_to_end(&mut content)?;
    if content.len() as u64 > max { Err(too_large(max)) } else { Ok(content) }
}

/// Opens the file at `relative` in `folder`, if it has at most `max` bytes. Also returns how many.
pub fn open_at_most(folder: &Path, relative: &Path, max: u64) -> io::Result<(File, u64)> {
    let file = open(folder, relative)?;
    let length = file.metadata()?.len();
    if length > max { Err(too_large(max)) } else { Ok((file, length)) }
}

fn too_large(max: u64) -> io::Error {
    io::Error::new(io::ErrorKind::FileTooLarge, format!("it has more than {max} bytes"))
}

/// Reads a text file in the same way.
pub fn read_text(folder: &Path, relative: &Path, max: u64) -> io::Result<String> {
    let content = read(folder, relative, max)?;
    String::from_utf8(content).map_err(|_| io::Error::new(io::ErrorKind::InvalidData, "it is not UTF-8"))
}

/// Opens the regular file at `relative` in `folder`. `folder` itself may be a link.
pub fn open(folder: &Path, relative: &Path) -> io::Result<File> {
    let flags = OFlags::RDONLY | OFlags::CLOEXEC;
    let folder_fd = rustix::fs::openat(CWD, folder, flags | OFlags::DIRECTORY, Mode::empty())?;
    // Without NONBLOCK, opening a FIFO would wait for its writer.
    let flags = flags | OFlags::NONBLOCK | OFlags::NOCTTY;
    let beneath = ResolveFlags::BENEATH | ResolveFlags::NO_MAGICLINKS;
    let file = match rustix::fs::openat2(&folder_fd, relative, flags, Mode::empty(), beneath) {
        // Kernels before 5.6, old container runtimes and emulators lack openat2.
        Err(Errno::NOSYS | Errno::PERM) => {
            require_inside(folder, relative)?;
            rustix::fs::openat(&folder_fd, relative, flags, Mode::empty())
        }
        Err(Errno::XDEV | Errno::LOOP) => return Err(leads_out()),
        opened => opened,
    };
    let file = File::from(file?);
    if !file.metadata()?.is_file() {
        return Err(io::Error::new(io::ErrorKind::InvalidInput, "it is not a regular file"));
    }
    Ok(file)
}

fn require_inside(folder: &Path, relative: &Path) -> io::Result<()> {
    let is_inside = folder.join(relative).canonicalize()?.starts_with(folder.canonicalize()?);
    if is_inside { Ok(()) } else { Err(leads_out()) }
}

fn leads_out() -> io::Error {
    io::Error::new(io::ErrorKind::InvalidInput, "it is a link that leads out of the model's folder")
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::symlink;

    use super::*;
    use crate::durable;

    #[test]
    fn a_link_within_the_folder_is_followed_and_one_out_of_it_is_refused() {
        let root = tempfile::tempdir().unwrap();
        let folder = root.path().join("model");
        std::fs::create_dir_all(folder.join("data")).unwrap();
        durable::replace(&folder.join("data/labels.txt"), b"cat").unwrap();
        durable::replace(&root.path().join("secret"), b"key").unwrap();
        symlink("data/labels.txt", folder.join("inside")).unwrap();
        symlink("../secret", folder.join("outside")).unwrap();
        symlink(root.path().join("secret"), folder.join("absolute")).unwrap();
        symlink("/proc/self/environ", folder.join("magic")).unwrap();
        symlink(root.path(), folder.join("folder")).unwrap();
        symlink("loop", folder.join("loop")).unwrap();
        symlink(&folder, root.path().join("linked")).unwrap();

        for folder in [&folder, &root.path().join("linked")] {
            for inside in ["data/labels.txt", "inside"] {
                assert_eq!(read(folder, Path::new(inside), 3).unwrap(), b"cat", "{inside}");
            }
            for outside in ["outside", "absolute", "magic", "folder/secret", "loop", "../secret", "/etc/hostname"] {
                let error = read(folder, Path::new(outside), 1 << 20).unwrap_err();
                assert!(error.to_string().contains("leads out"), "{outside}: {error}");
                if outside != "loop" {
                    assert!(require_inside(folder, Path::new(outside)).is_err(), "{outside} without openat2");
                }
            }
            assert!(require_inside(folder, Path::new("inside")).is_ok());
        }
    }

    #[test]
    fn only_regular_files_of_a_sensible_size_are_read() {
        let root = tempfile::tempdir().unwrap();
        rustix::fs::mkfifoat(CWD, root.path().join("fifo"), Mode::from_raw_mode(0o600)).unwrap();
        std::fs::create_dir(root.path().join("folder")).unwrap();
        durable::replace(&root.path().join("file"), b"1234").unwrap();
        let reason = |file: &str, max| read(root.path(), Path::new(file), max).unwrap_err().to_string();
        assert_eq!(reason("fifo", 9), "it is not a regular file");
        assert_eq!(reason("folder", 9), "it is not a regular file");
        assert_eq!(reason("file", 3), "it has more than 3 bytes");
        let sparse = File::create(root.path().join("sparse")).unwrap();
        sparse.set_len(1 << 40).unwrap();
        assert_eq!(reason("sparse", DATA_MAX), format!("it has more than {DATA_MAX} bytes"));
    }
}
