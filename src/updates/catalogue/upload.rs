//! Uploads: the folder of a model, in the body of a call, as a tar archive (POSIX.1-2024, pax).

use std::cell::Cell;
use std::io::{self, Read};
use std::path::Path;

use ledge_base::durable;
use ledge_base::names::ModelName;
use tar::{Archive, EntryType};

use super::folder::{self, FileDigests, FolderOrigin, MadeModelFolder};
use super::{CatalogueError, InvalidCataloguePath, path_below};
use crate::catalogue::model::FILES_MAX;

/// The most entries of an archive, folders among them.
const ENTRIES_MAX: usize = 2 * FILES_MAX;

/// The most bytes of the headers of one entry, a long name among them: `tar` reads those into memory as a whole.
const HEADERS_BYTES_MAX: u64 = 64 << 10;

/// The bytes of the last record of a file, which is padded to 512.
const RECORD_BYTES: u64 = 512;

/// The longest path in a message, in characters.
const SHOWN_CHARS_MAX: usize = 100;

/// Errors of an upload.
#[derive(Debug, thiserror::Error)]
pub enum UploadError {
    #[error("this box takes no uploads: set `[catalogue] upload_max_mb`")]
    Off,
    #[error("the body is not a whole tar archive of a model's folder: {0}")]
    Archive(io::Error),
    #[error("the archive has {path:?}, which {problem}")]
    Path { path: String, problem: InvalidCataloguePath },
    #[error("the archive has {path:?}, which is neither a file nor a folder")]
    Kind { path: String },
    #[error("the archive has no files")]
    Empty,
    #[error("the archive has more than {FILES_MAX} files")]
    Files,
    #[error("the files have more than {limit} bytes (`[catalogue] upload_max_mb`)")]
    TooLarge { limit: u64 },
    #[error(transparent)]
    Catalogue(#[from] CatalogueError),
}

/// The bounds of an upload.
#[derive(Debug, Clone, Copy)]
pub struct UploadLimits {
    /// The most bytes of all files.
    pub bytes: u64,
    /// Bytes of the disk that stay free.
    pub min_free_bytes: u64,
}

/// A file in an archive.
struct ArchivedFile<'a> {
    path: String,
    bytes: u64,
    content: &'a mut dyn Read,
}

/// Makes the folder of a model in `repository` from an archive of it, whole or not at all. `may_appear` is asked right
/// before the folder gets its name.
pub(super) fn receive(
    archive: impl Read,
    name: &ModelName,
    repository: &Path,
    limits: UploadLimits,
    may_appear: impl FnOnce() -> Result<(), UploadError>,
) -> Result<MadeModelFolder, UploadError> {
    let fill = |folder: &Path| {
        let mut digests = FileDigests::new();
        each_file(archive, limits.bytes, |file| {
            folder::room_for(folder, file.bytes, limits.min_free_bytes)?;
            let mut new = folder::new_file(folder, &file.path)?;
            let digest = folder::copy(file.content, &mut new).map_err(|error| {
                if durable::is_full(&error) {
                    CatalogueError::at("write", &folder.join(&file.path))(error).into()
                } else {
                    UploadError::Archive(error)
                }
            })?;
            digests.insert(file.path, digest);
            Ok(())
        })?;
        if digests.is_empty() { Err(UploadError::Empty) } else { Ok(digests) }
    };
    folder::make(repository, name, FolderOrigin::Upload, fill, may_appear)
}

/// Calls `take` with each file of an archive. The files may have up to `bytes_max` bytes.
fn each_file(
    archive: impl Read,
    bytes_max: u64,
    mut take: impl FnMut(ArchivedFile<'_>) -> Result<(), UploadError>,
) -> Result<(), UploadError> {
    let allowance = Cell::new(HEADERS_BYTES_MAX);
    let mut archive = Archive::new(AllowedBytes { from: archive, allowance: &allowance });
    let (mut entries_left, mut files, mut left) = (ENTRIES_MAX, 0, bytes_max);
    for entry in archive.entries().map_err(UploadError::Archive)? {
        let mut entry = entry.map_err(UploadError::Archive)?;
        entries_left = usize::checked_sub(entries_left, 1).ok_or(UploadError::Files)?;
        let full = String::from_utf8_lossy(&entry.path_bytes()).into_owned();
        let path = full.trim_start_matches("./").to_owned();
        let shown = || full.chars().take(SHOWN_CHARS_MAX).collect();
        match entry.header().entry_type() {
            EntryType::Directory => {
                allowance.set(HEADERS_BYTES_MAX);
                continue;
            }
            EntryType::Regular | EntryType::Continuous => {}
            _ => return Err(UploadError::Kind { path: shown() }),
        }
        path_below(&path).map_err(|problem| UploadError::Path { path: shown(), problem })?;
        let bytes = entry.size();
        left = left.checked_sub(bytes).ok_or(UploadError::TooLarge { limit: bytes_max })?;
        files += 1;
        if files > FILES_MAX {
            return Err(UploadError::Files);
        }
        allowance.set(bytes.saturating_add(RECORD_BYTES));
        let mut content = WholeEntry { entry: &mut entry, left: bytes };
        take(ArchivedFile { path, bytes, content: &mut content })?;
        allowance.set(HEADERS_BYTES_MAX);
    }
    Ok(())
}

/// An archive that is read only up to the limit of its reader.
struct AllowedBytes<'a, R> {
    from: R,
    allowance: &'a Cell<u64>,
}

impl<R: Read> Read for AllowedBytes<'_, R> {
    fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
        let allowed = usize::try_from(self.allowance.get()).unwrap_or(usize::MAX).min(into.len());
        if allowed == 0 && !into.is_empty() {
            let problem = format!("an entry has more than {HEADERS_BYTES_MAX} bytes of headers");
            return Err(io::Error::new(io::ErrorKind::InvalidData, problem));
        }
        let count = self.from.read(into.get_mut(..allowed).unwrap_or_default())?;
        self.allowance.set(self.allowance.get().saturating_sub(u64::try_from(count).unwrap_or(u64::MAX)));
        Ok(count)
    }
}

/// The content of an entry. An early end is an error.
struct WholeEntry<R> {
    entry: R,
    left: u64,
}

impl<R: Read> Read for WholeEntry<R> {
    fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
        let count = self.entry.read(into)?;
        if count == 0 && self.left > 0 && !into.is_empty() {
            return Err(io::Error::new(io::ErrorKind::UnexpectedEof, "it ends within a file"));
        }
        self.left = self.left.saturating_sub(u64::try_from(count).unwrap_or(u64::MAX));
        Ok(count)
    }
}

/// Reads an archive without writing a file; true when it is whole and has a file.
///
/// # Panics
/// When an invariant does not hold.
#[cfg(any(test, feature = "fuzzing"))]
pub fn fuzz_upload(data: &[u8]) -> bool {
    const BYTES_MAX: u64 = 1 << 20;
    let (mut files, mut total) = (0, 0);
    let read = each_file(io::Cursor::new(data), BYTES_MAX, |file| {
        assert!(file.path.split('/').all(|part| !part.is_empty() && !part.starts_with('.')), "{:?}", file.path);
        let copied = io::copy(file.content, &mut io::sink()).map_err(UploadError::Archive)?;
        assert_eq!(copied, file.bytes);
        (files, total) = (files + 1, total + copied);
        Ok(())
    });
    assert!(total <= BYTES_MAX && files <= FILES_MAX);
    read.is_ok() && files > 0
}

#[cfg(test)]
mod tests {
    use std::fs;

    use tar::{Builder, Header};

    use super::*;

    const LIMITS: UploadLimits = UploadLimits { bytes: 1000, min_free_bytes: 0 };

    fn header(kind: EntryType, bytes: usize) -> Header {
        let mut header = Header::new_gnu();
        header.set_entry_type(kind);
        header.set_size(bytes as u64);
        header.set_mode(0o777);
        header
    }

    fn archive(entries: &[(&str, &[u8])]) -> Vec<u8> {
        let mut builder = Builder::new(Vec::new());
        for (path, content) in entries {
            let mut header = header(EntryType::Regular, content.len());
            // `set_path` refuses paths that an attacker would write.
            if path.len() < 100 {
                header.as_gnu_mut().unwrap().name[..path.len()].copy_from_slice(path.as_bytes());
                header.set_cksum();
                builder.append(&header, *content).unwrap();
            } else {
                builder.append_data(&mut header, path, *content).unwrap();
            }
        }
        builder.into_inner().unwrap()
    }

    fn receive_in(folder: &Path, archive: &[u8]) -> Result<std::path::PathBuf, UploadError> {
        receive(archive, &"m".parse().unwrap(), folder, LIMITS, || Ok(())).map(|made| made.folder)
    }

    #[test]
    fn a_name_without_end_takes_no_memory() {
        // A long name of GNU tar, which has eight gigabytes by its header.
        let mut header = header(EntryType::GNULongName, 0);
        header.set_path("././@LongLink").unwrap();
        header.set_size(8 << 30);
        header.set_cksum();
        let mut read = 0;
        let endless = io::Cursor::new(header.as_bytes().to_vec()).chain(CountedBytes { read: &mut read });
        let models = tempfile::tempdir().unwrap();
        let limits = UploadLimits { bytes: 16 << 30, ..LIMITS };
        let refused = receive(endless, &"m".parse().unwrap(), models.path(), limits, || Ok(()));
        assert!(matches!(refused, Err(UploadError::Archive(_))), "{refused:?}");
        assert!(read <= HEADERS_BYTES_MAX, "{read} bytes");
    }

    /// Bytes without end, counted.
    struct CountedBytes<'a> {
        read: &'a mut u64,
    }

    impl Read for CountedBytes<'_> {
        fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
            into.fill(b'a');
            *self.read += into.len() as u64;
            Ok(into.len())
        }
    }

    #[test]
    fn a_folder_does_not_appear_when_it_may_not() {
        let models = tempfile::tempdir().unwrap();
        let archive = archive(&[("1/model.onnx", b"x")]);
        let refuse = || Err(CatalogueError::NotAdmitted.into());
        let refused = receive(&archive[..], &"m".parse().unwrap(), models.path(), LIMITS, refuse);
        assert!(matches!(refused, Err(UploadError::Catalogue(CatalogueError::NotAdmitted))), "{refused:?}");
        assert_eq!(fs::read_dir(models.path()).unwrap().count(), 0);
    }

    #[test]
    fn a_folder_appears_whole_with_the_list_of_its_files() {
        let models = tempfile::tempdir().unwrap();
        let files = [("./model.toml", &b"x"[..]), ("1/model.onnx", b"weights"), ("golden/row.json", b"")];
        let folder = receive_in(models.path(), &archive(&files)).unwrap();
        assert_eq!(fs::read(folder.join("1/model.onnx")).unwrap(), b"weights");
        assert_eq!(fs::read_to_string(folder.join(".catalogue.sha256")).unwrap().lines().count(), 3);
        assert!(matches!(
            receive_in(models.path(), &archive(&files)),
            Err(UploadError::Catalogue(CatalogueError::Exists { .. }))
        ));
        folder::remove(models.path(), &"m".parse().unwrap(), false).unwrap();
    }

    #[test]
    fn an_archive_that_leads_elsewhere_or_is_too_much_leaves_nothing() {
        let models = tempfile::tempdir().unwrap();
        let long = format!("1/{}", "a".repeat(300));
        for bad in ["../x", "/etc/x", "1/../../x", "a/b/c/d", ".hidden", "1/.x", "", "1//x", "a b", &long] {
            let refused = receive_in(models.path(), &archive(&[("1/model.onnx", b"x"), (bad, b"x")]));
            assert!(matches!(refused, Err(UploadError::Path { .. })), "{bad}: {refused:?}");
        }
        let refused = receive_in(models.path(), &archive(&[("1/a", &[0; 600]), ("1/b", &[0; 600])]));
        assert!(matches!(refused, Err(UploadError::TooLarge { limit: 1000 })), "{refused:?}");
        let refused = receive_in(models.path(), &archive(&[("1/a", b"1"), ("1/a", b"2")]));
        assert!(matches!(refused, Err(UploadError::Catalogue(CatalogueError::File { .. }))), "{refused:?}");

        let whole = archive(&[("1/a", &[7; 900])]);
        for cut in [100, 512, 700, 1000] {
            let refused = receive_in(models.path(), &whole[..cut]);
            assert!(matches!(refused, Err(UploadError::Archive(_))), "{cut}: {refused:?}");
        }
        assert!(matches!(receive_in(models.path(), &[0; 1024]), Err(UploadError::Empty)));
        assert!(matches!(receive_in(models.path(), &[b'x'; 2048]), Err(UploadError::Archive(_))));
        assert_eq!(fs::read_dir(models.path()).unwrap().count(), 0);
    }

    #[test]
    fn what_the_end_of_the_process_interrupted_is_removed() {
        let models = tempfile::tempdir().unwrap();
        for folder in [".m.upload/1", ".n.new/1", ".q.removed/1", "o/1", "p.upload/1"] {
            fs::create_dir_all(models.path().join(folder)).unwrap();
        }
        folder::remove_interrupted(models.path());
        let mut left: Vec<_> = fs::read_dir(models.path()).unwrap().map(|entry| entry.unwrap().file_name()).collect();
        left.sort();
        assert_eq!(left, [".n.new", "o", "p.upload"]);
    }

    #[test]
    fn a_link_a_device_and_a_sparse_file_are_refused() {
        for kind in [EntryType::Symlink, EntryType::Link, EntryType::Char, EntryType::Fifo, EntryType::GNUSparse] {
            let mut builder = Builder::new(Vec::new());
            let mut header = header(kind, 0);
            header.set_path("1/model.onnx").unwrap();
            if matches!(kind, EntryType::Symlink | EntryType::Link) {
                header.set_link_name("/etc/passwd").unwrap();
            }
            header.set_cksum();
            builder.append(&header, &b""[..]).unwrap();
            let models = tempfile::tempdir().unwrap();
            let refused = receive_in(models.path(), &builder.into_inner().unwrap());
            assert!(
                matches!(refused, Err(UploadError::Kind { .. } | UploadError::Archive(_))),
                "{kind:?}: {refused:?}"
            );
            assert_eq!(fs::read_dir(models.path()).unwrap().count(), 0);
        }
    }
}
