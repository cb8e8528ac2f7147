//! Files that stand still: a file is complete when its size and time have not changed for a while. Pure: files and
//! times are passed in.

use std::collections::HashMap;
use std::ffi::{OsStr, OsString};
use std::time::{Duration, Instant};

use ledge_base::open_folder::{FileStamp, FolderFile};

/// Endings of files that programs write and rename when they are complete.
const TEMPORARY_ENDINGS: [&str; 9] =
    [".tmp", ".temp", ".part", ".partial", ".crdownload", ".filepart", ".download", ".swp", ".lock"];

/// Files that file managers leave in folders, in lower case.
const FOREIGN_FILES: [&str; 2] = ["thumbs.db", "desktop.ini"];

/// The most files that are watched at a time. Others wait for these.
const WATCHED_MAX: usize = 10_000;

/// An empty file is one that a scanner has just begun, and is taken much later than others.
const EMPTY_SETTLES: u32 = 60;

/// The files of a folder as they were seen last, each with the time since when it has not changed.
#[derive(Debug, Default)]
pub struct StillFiles(HashMap<OsString, (FileStamp, Instant)>);

impl StillFiles {
    /// The files that have not changed for `settle`, the oldest first.
    pub fn look(&mut self, found: Vec<FolderFile>, now: Instant, settle: Duration) -> Vec<FolderFile> {
        let mut before = std::mem::take(&mut self.0);
        let mut still = Vec::new();
        for file in found.into_iter().filter(|file| is_document(&file.name)).take(WATCHED_MAX) {
            let since = match before.remove(&file.name) {
                Some((stamp, since)) if stamp == file.stamp => since,
                _ => now,
            };
            self.0.insert(file.name.clone(), (file.stamp, since));
            let settle = if file.stamp.bytes == 0 { settle * EMPTY_SETTLES } else { settle };
            if now.duration_since(since) >= settle {
                still.push(file);
            }
        }
        still.sort_by(|one, other| (one.stamp.modified, &one.name).cmp(&(other.stamp.modified, &other.name)));
        still
    }

    /// The number of files that were seen last.
    pub fn count(&self) -> usize {
        self.0.len()
    }
}

/// False for files that are hidden, temporary, or a file manager's own.
fn is_document(name: &OsStr) -> bool {
    let name = name.to_string_lossy().to_lowercase();
    let is_temporary = name.starts_with(['.', '~']) || name.ends_with('~');
    !is_temporary
        && !TEMPORARY_ENDINGS.iter().any(|ending| name.ends_with(ending))
        && !FOREIGN_FILES.contains(&name.as_str())
}

#[cfg(test)]
mod tests {
    use std::fs::File;
    use std::io::Write;

    use ledge_base::open_folder::OpenFolder;

    use super::*;

    const SETTLE: Duration = Duration::from_secs(5);

    #[test]
    fn a_file_is_taken_once_it_has_not_changed_for_a_while() {
        let folder = tempfile::tempdir().unwrap();
        let opened = OpenFolder::open(folder.path()).unwrap();
        let write = |name: &str, content: &[u8]| {
            let mut file = File::options().create(true).append(true).open(folder.path().join(name)).unwrap();
            file.write_all(content).unwrap();
        };
        let (mut files, begin) = (StillFiles::default(), Instant::now());
        let mut look = |at: u64| {
            let still = files.look(opened.files().unwrap(), begin + Duration::from_secs(at), SETTLE);
            still.into_iter().map(|file| file.name.into_string().unwrap()).collect::<Vec<_>>()
        };
        write("b.pdf", b"1");
        write("empty.pdf", b"");
        assert!(look(0).is_empty() && look(4).is_empty());
        write("b.pdf", b"2");
        assert!(look(6).is_empty() && look(10).is_empty());
        assert_eq!(look(11), ["b.pdf"]);
        std::fs::remove_file(folder.path().join("b.pdf")).unwrap();
        assert!(look(12).is_empty());
        write("b.pdf", b"12");
        assert!(look(13).is_empty());
        assert_eq!(look(400), ["empty.pdf", "b.pdf"]);
    }

    #[test]
    fn hidden_and_temporary_files_are_no_documents() {
        for name in ["a.pdf", "scan 1", "a.tmp.pdf", "-rf", "thumbs.pdf"] {
            assert!(is_document(OsStr::new(name)), "{name}");
        }
        for name in [".a.pdf", ".smbdeleteABC", "~$a.pdf", "a.pdf~", "a.pdf.part", "A.TMP", "Thumbs.db", "x.crdownload"]
        {
            assert!(!is_document(OsStr::new(name)), "{name}");
        }
    }
}
