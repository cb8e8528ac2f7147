//! A mark on the disk while a version on trial works: while it is loaded, and until its first run has ended. If a start
//! of the daemon finds the mark, that version may have caused the restart; without the mark it has not.
//!
//! Only the first run is marked. Runs are in other processes, which the kernel ends before the daemon. A version that
//! harms the daemon all the same does so with its first run, and a busy version is always in some run.

use std::fs::{File, OpenOptions};
use std::os::unix::fs::FileExt as _;
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::{fs, io};

use ledge_base::durable;

/// The content of the file while the version works, and while it does not.
const SET: &[u8] = b"1";
const UNSET: &[u8] = b"0";

/// The mark of one subject of updates.
#[derive(Debug)]
pub struct TrialMark {
    /// `None` where it cannot be written: no start counts then.
    file: Option<File>,
    /// Loads and runs under way.
    works: Mutex<u32>,
    /// Set once a run has ended.
    has_run: AtomicBool,
}

/// Work under way. It ends when this is dropped.
#[derive(Debug)]
pub struct TrialWorkGuard {
    mark: Arc<TrialMark>,
}

impl TrialMark {
    /// Opens the mark at `path`. Blocks on the disk.
    pub fn open(path: &Path) -> Arc<Self> {
        let file = create(path).inspect_err(|error| {
            tracing::warn!(path = %path.display(), %error, "the mark of a version on trial cannot be written: starts of the daemon do not count against it");
        });
        Arc::new(Self { file: file.ok(), works: Mutex::default(), has_run: AtomicBool::new(false) })
    }

    /// True when the last process ended while the version at `path` worked.
    pub fn is_set(path: &Path) -> bool {
        fs::read(path).is_ok_and(|content| content == SET)
    }

    /// Marks a load. Blocks until the mark is on the disk.
    pub fn load(self: &Arc<Self>) -> TrialWorkGuard {
        let work = self.begin();
        self.sync();
        work
    }

    /// Marks a run, unless one has ended before. The mark survives the end of the process, and may be lost in a power
    /// cut: it does not wait for the disk.
    pub fn run(self: &Arc<Self>) -> Option<TrialWorkGuard> {
        (!self.has_run.load(Ordering::Relaxed)).then(|| self.begin())
    }

    /// Says that a run has ended: later ones are not marked.
    pub fn has_run(&self) {
        self.has_run.store(true, Ordering::Relaxed);
    }

    /// Marks the next run again: it is the first of another trial.
    pub fn forget_runs(&self) {
        self.has_run.store(false, Ordering::Relaxed);
    }

    /// Removes the mark of the last process.
    pub fn clear(&self) {
        let works = self.works();
        if *works == 0 {
            self.write(UNSET);
        }
    }

    fn begin(self: &Arc<Self>) -> TrialWorkGuard {
        let mut works = self.works();
        *works += 1;
        if *works == 1 {
            self.write(SET);
        }
        drop(works);
        TrialWorkGuard { mark: self.clone() }
    }

    fn works(&self) -> MutexGuard<'_, u32> {
        // Nothing panics under this lock.
        self.works.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn write(&self, content: &[u8]) {
        // A disk that cannot be written was reported with the state of updates.
        let _ = self.file.as_ref().map(|file| file.write_all_at(content, 0));
    }

    fn sync(&self) {
        let _ = self.file.as_ref().map(File::sync_data);
    }
}

impl TrialWorkGuard {
    /// The mark that it sets.
    pub fn mark(&self) -> Arc<TrialMark> {
        self.mark.clone()
    }
}

impl Drop for TrialWorkGuard {
    fn drop(&mut self) {
        let mut works = self.mark.works();
        *works = works.saturating_sub(1);
        if *works == 0 {
            self.mark.write(UNSET);
        }
    }
}

fn create(path: &Path) -> io::Result<File> {
    let folder = path.parent().unwrap_or(Path::new(""));
    durable::create_folder(folder)?;
    let file = OpenOptions::new().create(true).truncate(false).write(true).open(path)?;
    durable::sync_folder(folder)?;
    Ok(file)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_mark_is_set_while_a_load_or_the_first_run_is_under_way() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("marks/models/m");
        assert!(!TrialMark::is_set(&path));
        let mark = TrialMark::open(&path);
        let load = mark.load();
        assert!(TrialMark::is_set(&path));
        let run = mark.run().unwrap();
        drop(load);
        assert!(TrialMark::is_set(&path), "the run goes on");
        mark.has_run();
        drop(run);
        assert!(!TrialMark::is_set(&path) && mark.run().is_none());
        let load = mark.load();
        assert!(TrialMark::is_set(&path), "a later load is marked");
        mark.clear();
        assert!(TrialMark::is_set(&path), "what is under way stays marked");
        // The process ends here, and the next one finds the mark.
        std::mem::forget(load);
        drop(mark);
        assert!(TrialMark::is_set(&path));
        TrialMark::open(&path).clear();
        assert!(!TrialMark::is_set(&path));
    }

    #[test]
    fn without_a_disk_nothing_is_marked() {
        let path = Path::new("/proc/marks/m");
        let mark = TrialMark::open(path);
        let _load = mark.load();
        assert!(!TrialMark::is_set(path));
    }
}
