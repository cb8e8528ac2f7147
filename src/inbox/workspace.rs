//! The files of one inbox: files to claim, claimed files, their results, and messages that were not delivered yet.
//!
//! In the watched folder, `.ledge/DEVICE` belongs to one box. A file is claimed by a rename into `claimed/ID` there,
//! which only one box can do. From then on every step can be done again: the names of results follow from the id, a row
//! of CSV is looked for before it is added, and messages have the id. The last step moves the original away. So a
//! process that was killed at any point goes on with the files in `claimed`, and no file is lost or read twice.

use std::collections::{BTreeSet, VecDeque};
use std::ffi::{OsStr, OsString};
use std::fs::{File, TryLockError};
use std::io;
use std::ops::Bound;
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

use bytes::Bytes;
use ledge_base::clock;
use ledge_base::names::DeviceName;
use ledge_base::open_folder::{FileStamp, FolderFile, FolderIdentity, OpenFolder};
use ledge_base::time_id::TimeId;
use tokio::sync::Notify;

use crate::claim::Claim;
use crate::config::{InboxConfig, own_folder};
use crate::table;
use crate::watch::StillFiles;

/// The folder of all boxes in the watched one.
const OWN_FOLDER: &str = ".ledge";

/// The file that is locked while this box uses its folder.
const LOCK_FILE: &str = "lock";

/// The most messages to one receiver that wait. Then no more files are claimed.
pub const UNDELIVERED_MAX: usize = 10_000;

/// The most CSV files of one month, each with other columns.
const TABLES_MAX: usize = 100;

/// The longest message, in bytes, far more than any has.
const MESSAGE_BYTES_MAX: u64 = 16 << 20;

/// The time after which a claimed file of another box counts as left, and the time between two looks for those.
const LEFT_AFTER_MS: u64 = 3_600_000;
const LEFT_CLAIMS_INTERVAL: Duration = Duration::from_mins(1);

/// A way to a receiver of messages.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum DeliveryWay {
    Webhook,
    Mqtt,
}

impl DeliveryWay {
    /// The name of its folder, and in metrics.
    pub fn name(self) -> &'static str {
        match self {
            Self::Webhook => "webhook",
            Self::Mqtt => "mqtt",
        }
    }
}

/// The messages that one receiver has not got yet.
#[derive(Debug)]
pub struct Undelivered {
    way: DeliveryWay,
    /// Their names, the oldest first.
    names: BTreeSet<OsString>,
    /// Notified when there is a new one.
    has_message: Arc<Notify>,
}

impl Undelivered {
    pub fn new(way: DeliveryWay, has_message: Arc<Notify>) -> Self {
        Self { way, names: BTreeSet::new(), has_message }
    }

    fn add(&mut self, names: impl IntoIterator<Item = OsString>) {
        self.names.extend(names);
        self.has_message.notify_one();
    }
}

/// All that comes of a file that was read.
#[derive(Debug, Clone, Default)]
pub struct DocumentOutputs {
    pub json: Option<Bytes>,
    pub csv: Option<CsvRows>,
    pub pdf: Option<Bytes>,
    /// For each receiver.
    pub message: Bytes,
}

/// The rows of a file, one for each of its documents.
#[derive(Debug, Clone, Default)]
pub struct CsvRows {
    /// The line with the names of the columns.
    pub header: String,
    /// Each line with the id in it.
    pub rows: Vec<(String, String)>,
}

/// The reason why a claimed file cannot go on.
#[derive(Debug, thiserror::Error)]
pub enum ClaimError {
    #[error("it is not in the folder of claimed files any more")]
    Gone,
    #[error("it is still being written")]
    Changing,
    #[error(transparent)]
    Files(#[from] io::Error),
}

/// See the module.
#[derive(Debug)]
pub struct Workspace {
    config: InboxConfig,
    device: DeviceName,
    undelivered: Vec<Undelivered>,
    open: Option<InboxFolders>,
    seen: StillFiles,
    /// Files that stand still.
    ready: VecDeque<FolderFile>,
    /// Claimed files of an earlier start.
    earlier: VecDeque<Claim>,
    /// Claimed files that are being read.
    in_progress: BTreeSet<TimeId>,
    /// The other boxes that claimed files more than an hour ago and still have them, each with their number; `None` once
    /// that was told.
    left_by_others: Option<Vec<(String, usize)>>,
    looked_for_left: Option<Instant>,
}

/// The open folders of an inbox.
#[derive(Debug)]
struct InboxFolders {
    watched: OpenFolder,
    claimed: OpenFolder,
    undelivered: OpenFolder,
    results: OpenFolder,
    done: OpenFolder,
    failed: OpenFolder,
    _lock: File,
}

impl InboxFolders {
    fn open(config: &InboxConfig, device: &DeviceName) -> io::Result<Self> {
        let watched = OpenFolder::open(&config.path)?;
        let own = watched.make_child(OsStr::new(OWN_FOLDER))?.make_private_child(OsStr::new(device.as_str()))?;
        let lock = own.lock_file(OsStr::new(LOCK_FILE))?;
        match lock.try_lock() {
            // A file system without locks.
            Ok(()) => {}
            Err(TryLockError::Error(error)) if error.kind() == io::ErrorKind::Unsupported => {}
            Err(_) => {
                let reason = format!(
                    "{} is in use: another Ledge with the name {device} watches the same folder",
                    own.path().display()
                );
                return Err(io::Error::new(io::ErrorKind::ResourceBusy, reason));
            }
        }
        let part = |name: &str| own.make_child(OsStr::new(name));
        let folder = |path: &Path| match own_folder(path) {
            Some(name) => watched.make_child(name),
            None => OpenFolder::open(path),
        };
        let folders = Self {
            claimed: part("claimed")?,
            undelivered: part("undelivered")?,
            results: folder(&config.results)?,
            done: folder(&config.done)?,
            failed: folder(&config.failed)?,
            watched,
            _lock: lock,
        };
        for (key, folder) in [("results", &folders.results), ("done", &folders.done), ("failed", &folders.failed)] {
            let path = folder.path().display();
            if folder.identity() == folders.watched.identity() {
                return Err(io::Error::other(format!("{path} (inbox.{key}) is the watched folder itself")));
            }
            let is_elsewhere = folder.identity().file_system != folders.watched.identity().file_system;
            if is_elsewhere && key != "results" {
                let reason = format!("{path} (inbox.{key}) is not on the file system of the watched folder");
                return Err(io::Error::new(io::ErrorKind::CrossesDevices, reason));
            }
        }
        Ok(folders)
    }

    fn identity(&self) -> FolderIdentity {
        self.watched.identity()
    }

    fn of(&self, way: DeliveryWay) -> io::Result<OpenFolder> {
        self.undelivered.make_child(OsStr::new(way.name()))
    }

    /// The names of the messages that wait for a receiver.
    fn messages(&self, way: DeliveryWay) -> io::Result<Vec<OsString>> {
        let mut names = self.of(way)?.names()?;
        names.retain(|name| name.to_str().and_then(|name| name.strip_suffix(".json")).is_some_and(is_id));
        Ok(names)
    }

    fn claim(&self, id: &TimeId) -> Result<OpenFolder, ClaimError> {
        self.claimed.open_child(OsStr::new(id.as_str())).map_err(gone)
    }

    /// Removes the folder of a claim that has ended. If that fails, the next start does it.
    fn remove_claim(&self, id: &TimeId) {
        let _ = self.claimed.remove_child(OsStr::new(id.as_str()));
    }

    /// The claimed files of this box. Folders of claims that had ended are removed.
    fn claims(&self) -> io::Result<Vec<Claim>> {
        let mut claims = Vec::new();
        for id in self.claimed.names()?.iter().filter_map(|name| TimeId::parse(name)) {
            let folder = self.claimed.open_child(OsStr::new(id.as_str()))?;
            // A hidden file is one of the file system itself.
            let is_claimed = |name: &OsString| !name.as_encoded_bytes().starts_with(b".");
            match folder.names()?.into_iter().find(is_claimed) {
                Some(name) => claims.push(Claim { id, name }),
                None => self.remove_claim(&id),
            }
        }
        claims.sort_by(|one, other| one.id.cmp(&other.id));
        Ok(claims)
    }
}

impl Workspace {
    /// The files of an inbox. Nothing is opened yet.
    pub fn new(config: InboxConfig, device: DeviceName, undelivered: Vec<Undelivered>) -> Self {
        Self {
            config,
            device,
            undelivered,
            open: None,
            seen: StillFiles::default(),
            ready: VecDeque::new(),
            earlier: VecDeque::new(),
            in_progress: BTreeSet::new(),
            left_by_others: None,
            looked_for_left: None,
        }
    }

    /// Claims the next file; `None` while there is none that stands still. The first ones are those that were claimed
    /// before this start.
    pub fn claim_next(&mut self, now: Instant) -> io::Result<Option<Claim>> {
        self.reopen_if_changed()?;
        if let Some(claim) = self.earlier.pop_front() {
            self.in_progress.insert(claim.id.clone());
            return Ok(Some(claim));
        }
        if self.ready.is_empty() {
            let found = self.folders()?.watched.files()?;
            self.ready = self.seen.look(found, now, self.config.settle()).into();
        }
        if self.ready.is_empty() {
            self.look_for_left_claims(now)?;
            return Ok(None);
        }
        for Undelivered { way, names, .. } in &self.undelivered {
            if names.len() >= UNDELIVERED_MAX {
                let (waiting, way) = (names.len(), way.name());
                let reason = format!("{waiting} messages wait for the {way}, so no more files are taken");
                return Err(io::Error::other(reason));
            }
        }
        while let Some(file) = self.ready.pop_front() {
            if let Some(claim) = self.claim(&file)? {
                self.in_progress.insert(claim.id.clone());
                return Ok(Some(claim));
            }
        }
        Ok(None)
    }

    /// Claims a file, unless it has changed or another box has it.
    fn claim(&mut self, file: &FolderFile) -> io::Result<Option<Claim>> {
        let InboxFolders { watched, claimed, .. } = self.folders()?;
        if watched.stamp(&file.name).ok().flatten() != Some(file.stamp) {
            return Ok(None);
        }
        let id = TimeId::generate(clock::unix_millis())?;
        let folder_name = OsStr::new(id.as_str());
        let folder = claimed.make_private_child(folder_name)?;
        match watched.rename(&file.name, &folder, &file.name) {
            Ok(()) if folder.stamp(&file.name)?.is_some() => Ok(Some(Claim { id, name: file.name.clone() })),
            // Somebody has put a link or a special file in its place.
            Ok(()) => {
                let claim = Claim { id, name: file.name.clone() };
                folder.rename(&claim.name, &self.folders()?.failed, &claim.original())?;
                self.folders()?.remove_claim(&claim.id);
                Ok(None)
            }
            // The other box was faster; or, on a share, the file is still open elsewhere.
            Err(error) => {
                let _ = claimed.remove_child(folder_name);
                let is_taken = matches!(error.kind(), io::ErrorKind::NotFound | io::ErrorKind::ResourceBusy);
                if is_taken { Ok(None) } else { Err(error) }
            }
        }
    }

    fn folders(&self) -> io::Result<&InboxFolders> {
        self.open.as_ref().ok_or_else(|| io::ErrorKind::NotConnected.into())
    }

    /// Opens the folders if they are not open, and again after the path has become another folder, as it does when a
    /// share is mounted.
    fn reopen_if_changed(&mut self) -> io::Result<()> {
        let now = OpenFolder::open(&self.config.path)?.identity();
        if self.open.as_ref().map(InboxFolders::identity) == Some(now) {
            return Ok(());
        }
        // The lock belongs to the folder that is open.
        self.open = None;
        self.ready.clear();
        let folders = InboxFolders::open(&self.config, &self.device)?;
        let earlier = folders.claims()?.into_iter().filter(|claim| !self.in_progress.contains(&claim.id));
        self.earlier = earlier.collect();
        for undelivered in &mut self.undelivered {
            undelivered.names.clear();
            undelivered.add(folders.messages(undelivered.way)?);
        }
        self.open = Some(folders);
        Ok(())
    }

    /// The number of files that wait in the folder, or are being read.
    pub fn waiting(&self) -> usize {
        self.seen.count() + self.earlier.len() + self.in_progress.len()
    }

    /// Reads a claimed file that has `stamp`.
    pub fn read(&self, claim: &Claim, stamp: FileStamp) -> Result<Bytes, ClaimError> {
        let (content, now) = self.folders()?.claim(&claim.id)?.read(&claim.name, stamp.bytes).map_err(gone)?;
        let content = content.filter(|_| now == stamp).ok_or(ClaimError::Changing)?;
        Ok(content.into())
    }

    /// The stamp of a claimed file.
    pub fn stamp(&self, claim: &Claim) -> Result<FileStamp, ClaimError> {
        let stamp = self.folders()?.claim(&claim.id)?.stamp(&claim.name).map_err(gone)?;
        stamp.ok_or_else(|| io::Error::other(format!("the claimed file {} is no regular file", claim.id)).into())
    }

    fn check_unchanged(&self, claim: &Claim, stamp: FileStamp) -> Result<(), ClaimError> {
        if self.stamp(claim)? == stamp { Ok(()) } else { Err(ClaimError::Changing) }
    }

    /// Writes the results of a file that was read when it had `stamp`, and moves it away.
    pub fn finish(&mut self, claim: &Claim, stamp: FileStamp, outputs: &DocumentOutputs) -> Result<(), ClaimError> {
        self.check_unchanged(claim, stamp)?;
        let folders = self.folders()?;
        let files = [("pdf", &outputs.pdf), ("json", &outputs.json)];
        for (extension, content) in files {
            if let Some(content) = content {
                folders.results.replace(&claim.output(extension), content)?;
            }
        }
        if let Some(csv) = &outputs.csv {
            for (row, id) in &csv.rows {
                self.add_row(claim, (&csv.header, row), id)?;
            }
        }
        self.store_message(claim, &outputs.message)?;
        let to = if self.config.delete_originals { None } else { Some(&self.folders()?.done) };
        self.end(claim, to)
    }

    /// Moves a file away that is no readable document, with a text file that says why.
    pub fn fail(&mut self, claim: &Claim, stamp: FileStamp, reason: &str, message: &Bytes) -> Result<(), ClaimError> {
        self.check_unchanged(claim, stamp)?;
        let failed = &self.folders()?.failed;
        let mut name = claim.original();
        name.push(".txt");
        failed.replace(&name, format!("{}: {reason}\n", claim.shown_name()).as_bytes())?;
        self.store_message(claim, message)?;
        self.end(claim, Some(&self.folders()?.failed))
    }

    fn end(&self, claim: &Claim, to: Option<&OpenFolder>) -> Result<(), ClaimError> {
        let folder = self.folders()?.claim(&claim.id)?;
        match to {
            Some(to) => folder.rename(&claim.name, to, &claim.original()).map_err(gone)?,
            None => folder.remove(&claim.name)?,
        }
        self.folders()?.remove_claim(&claim.id);
        Ok(())
    }

    /// The claim has ended, in whichever way.
    pub fn release(&mut self, claim: &Claim) {
        self.in_progress.remove(&claim.id);
    }

    fn add_row(&self, claim: &Claim, (header, row): (&str, &str), id: &str) -> io::Result<()> {
        let results = &self.folders()?.results;
        let has_row = |text: &str| table::has_row(text, id);
        for number in 1..=TABLES_MAX {
            let number = if number == 1 { String::new() } else { format!("-{number}") };
            let name = format!("{}-{}-{}{number}.csv", self.config.name, self.device, claim.id.month());
            if results.append(OsStr::new(&name), (header, row), has_row)? {
                return Ok(());
            }
        }
        Err(io::Error::other(format!("{} has {TABLES_MAX} tables of this month", results.path().display())))
    }

    fn store_message(&mut self, claim: &Claim, message: &Bytes) -> io::Result<()> {
        let name = OsString::from(format!("{}.json", claim.id));
        let folders = self.open.as_ref().ok_or(io::ErrorKind::NotConnected)?;
        for undelivered in &mut self.undelivered {
            folders.of(undelivered.way)?.replace(&name, message)?;
            undelivered.add([name.clone()]);
        }
        Ok(())
    }

    /// The oldest message that a receiver has not got yet, of those behind `last`; with how many it has not got in all.
    pub fn next_undelivered(&self, way: DeliveryWay, last: Option<&OsStr>) -> (Option<OsString>, usize) {
        let Some(undelivered) = self.undelivered.iter().find(|undelivered| undelivered.way == way) else {
            return (None, 0);
        };
        let behind = (last.map_or(Bound::Unbounded, Bound::Excluded), Bound::Unbounded);
        (undelivered.names.range::<OsStr, _>(behind).next().cloned(), undelivered.names.len())
    }

    /// One of these messages; `None` if somebody has removed it.
    pub fn message(&self, way: DeliveryWay, name: &OsStr) -> io::Result<Option<Bytes>> {
        match self.folders()?.of(way)?.read(name, MESSAGE_BYTES_MAX) {
            Ok((content, _)) => Ok(content.map(Bytes::from)),
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
            Err(error) => Err(error),
        }
    }

    /// The receiver has a message.
    pub fn delivered(&mut self, way: DeliveryWay, name: &OsStr) -> io::Result<()> {
        self.folders()?.of(way)?.remove(name)?;
        if let Some(undelivered) = self.undelivered.iter_mut().find(|undelivered| undelivered.way == way) {
            undelivered.names.remove(name);
        }
        Ok(())
    }

    /// The other boxes that claimed files of this folder more than an hour ago and still have them, each with their
    /// number; `None` if they were not looked for since this was asked.
    pub fn new_left_by_others(&mut self) -> Option<Vec<(String, usize)>> {
        self.left_by_others.take()
    }

    fn look_for_left_claims(&mut self, now: Instant) -> io::Result<()> {
        if self.looked_for_left.is_some_and(|last| now.duration_since(last) < LEFT_CLAIMS_INTERVAL) {
            return Ok(());
        }
        self.looked_for_left = Some(now);
        let all = self.folders()?.watched.open_child(OsStr::new(OWN_FOLDER))?;
        let is_left = |name: &OsString| TimeId::parse(name).is_some_and(|id| id.is_older(LEFT_AFTER_MS));
        let mut left = Vec::new();
        for name in all.names()?.into_iter().filter(|name| name.to_str() != Some(self.device.as_str())) {
            // It is closed to this box if the other one runs as another user.
            let claims = all.open_child(&name).and_then(|folder| folder.open_child(OsStr::new("claimed"))?.names());
            let count = claims.map_or(0, |claims| claims.iter().filter(|name| is_left(name)).count());
            if count > 0 {
                left.push((name.to_string_lossy().into_owned(), count));
            }
        }
        self.left_by_others = Some(left);
        Ok(())
    }
}

fn is_id(name: &str) -> bool {
    TimeId::parse(OsStr::new(name)).is_some()
}

fn gone(error: io::Error) -> ClaimError {
    if error.kind() == io::ErrorKind::NotFound { ClaimError::Gone } else { ClaimError::Files(error) }
}

#[cfg(test)]
mod tests {
    use std::io::Write;

    use tempfile::TempDir;

    use super::*;

    fn workspace(folder: &TempDir, device: &'static str) -> Workspace {
        let config = format!("name = 'scans'\npath = {:?}\nsettle_ms = 100\n", folder.path().to_str().unwrap());
        let undelivered = vec![Undelivered::new(DeliveryWay::Webhook, Arc::default())];
        Workspace::new(toml::from_str(&config).unwrap(), DeviceName::constant(device), undelivered)
    }

    fn put(folder: &TempDir, name: &str, content: &[u8]) {
        File::options().create(true).append(true).open(folder.path().join(name)).unwrap().write_all(content).unwrap();
    }

    /// The files of a folder, without hidden ones.
    fn count(folder: &TempDir, path: &str) -> usize {
        let entries = std::fs::read_dir(folder.path().join(path)).unwrap().map(|entry| entry.unwrap().file_name());
        entries.filter(|name| !name.to_str().unwrap().starts_with('.')).count()
    }

    fn claim_at(workspace: &mut Workspace, begin: Instant, ms: u64) -> Option<Claim> {
        workspace.claim_next(begin + Duration::from_millis(ms)).unwrap()
    }

    fn outputs() -> DocumentOutputs {
        DocumentOutputs {
            json: Some("{}".into()),
            csv: Some(CsvRows { header: "id,file\n".to_owned(), rows: Vec::new() }),
            pdf: Some("%PDF-".into()),
            message: "{}".into(),
        }
    }

    fn finish(workspace: &mut Workspace, claim: &Claim) -> Result<(), ClaimError> {
        let stamp = workspace.stamp(claim)?;
        let row = |number| {
            let id = claim.id.numbered(Some(number));
            (format!("{id},a\n"), id)
        };
        let csv = CsvRows { header: "id,file\n".to_owned(), rows: vec![row(1), row(2)] };
        let outputs = DocumentOutputs { csv: Some(csv), ..outputs() };
        workspace.finish(claim, stamp, &outputs)
    }

    #[test]
    fn a_claim_outlives_its_process_and_is_finished_once_however_often_it_is_tried() {
        let (folder, begin) = (tempfile::tempdir().unwrap(), Instant::now());
        put(&folder, "a.pdf", b"%PDF-");
        let mut first = workspace(&folder, "one");
        assert_eq!(claim_at(&mut first, begin, 0), None);
        let claim = claim_at(&mut first, begin, 100).unwrap();
        assert!(!folder.path().join("a.pdf").exists());
        // Another box does not see it, and another start of this one goes on with it.
        assert_eq!(claim_at(&mut workspace(&folder, "two"), begin, 200), None);
        drop(first);
        let mut second = workspace(&folder, "one");
        assert_eq!(claim_at(&mut second, begin, 300).as_ref(), Some(&claim));
        assert_eq!(claim_at(&mut second, begin, 400), None);

        finish(&mut second, &claim).unwrap();
        // As if the process had been killed before the last step.
        let claimed = folder.path().join(".ledge/one/claimed").join(claim.id.as_str());
        std::fs::create_dir(&claimed).unwrap();
        let done = folder.path().join("done").join(claim.original());
        std::os::unix::fs::symlink(&done, claimed.join("a.pdf")).unwrap();
        assert!(matches!(finish(&mut second, &claim), Err(ClaimError::Files(_))), "a link is no file");
        std::fs::remove_file(claimed.join("a.pdf")).unwrap();
        std::fs::copy(&done, claimed.join("a.pdf")).unwrap();
        finish(&mut second, &claim).unwrap();
        assert_eq!((count(&folder, "results"), count(&folder, "done"), count(&folder, "failed")), (3, 1, 0));
        let table = folder.path().join(format!("results/scans-one-{}.csv", claim.id.month()));
        let rows = format!("id,file\n{id}-1,a\n{id}-2,a\n", id = claim.id);
        assert_eq!(std::fs::read_to_string(table).unwrap(), rows);
        let message = OsString::from(format!("{}.json", claim.id));
        assert_eq!(second.next_undelivered(DeliveryWay::Webhook, None), (Some(message.clone()), 1));
        assert_eq!(second.next_undelivered(DeliveryWay::Webhook, Some(&message)), (None, 1));
        assert!(matches!(finish(&mut second, &claim), Err(ClaimError::Gone)));
        drop(second);
        let mut third = workspace(&folder, "one");
        assert_eq!(claim_at(&mut third, begin, 500), None);
        assert_eq!(third.next_undelivered(DeliveryWay::Webhook, None), (Some(message.clone()), 1));
        assert_eq!(third.message(DeliveryWay::Webhook, &message).unwrap().as_deref(), Some(&b"{}"[..]));
        third.delivered(DeliveryWay::Webhook, &message).unwrap();
        assert_eq!(third.next_undelivered(DeliveryWay::Webhook, None), (None, 0));
        assert_eq!(third.message(DeliveryWay::Webhook, &message).unwrap(), None);
    }

    #[test]
    fn a_file_that_changes_while_it_is_read_is_not_finished() {
        let (folder, begin) = (tempfile::tempdir().unwrap(), Instant::now());
        put(&folder, "a.pdf", b"%PDF-");
        // Its writer has it open while it is claimed.
        let mut writer = File::options().append(true).open(folder.path().join("a.pdf")).unwrap();
        let mut files = workspace(&folder, "one");
        claim_at(&mut files, begin, 0);
        let claim = claim_at(&mut files, begin, 100).unwrap();
        let stamp = files.stamp(&claim).unwrap();
        assert_eq!(files.read(&claim, stamp).unwrap(), "%PDF-");
        writer.write_all(b"1.7").unwrap();
        assert!(matches!(files.read(&claim, stamp), Err(ClaimError::Changing)));
        assert!(matches!(files.finish(&claim, stamp, &outputs()), Err(ClaimError::Changing)));
        assert!(matches!(files.fail(&claim, stamp, "no", &Bytes::new()), Err(ClaimError::Changing)));
        assert_eq!((count(&folder, "results"), count(&folder, "failed")), (0, 0));
        let stamp = files.stamp(&claim).unwrap();
        files.fail(&claim, stamp, "it is torn", &Bytes::new()).unwrap();
        assert_eq!(count(&folder, "failed"), 2);
    }

    #[test]
    fn no_more_files_are_claimed_while_too_many_messages_wait() {
        let (folder, begin) = (tempfile::tempdir().unwrap(), Instant::now());
        put(&folder, "a.pdf", b"%PDF-");
        let mut files = workspace(&folder, "one");
        let waiting = folder.path().join(".ledge/one/undelivered/webhook");
        std::fs::create_dir_all(&waiting).unwrap();
        for number in 0..UNDELIVERED_MAX {
            let id = TimeId::generate(number as u64).unwrap();
            drop(File::create(waiting.join(format!("{id}.json"))).unwrap());
        }
        claim_at(&mut files, begin, 0);
        let refused = files.claim_next(begin + Duration::from_millis(100)).unwrap_err().to_string();
        assert!(refused.contains("10000 messages wait for the webhook"), "{refused}");
        let first = files.next_undelivered(DeliveryWay::Webhook, None).0.unwrap();
        files.delivered(DeliveryWay::Webhook, &first).unwrap();
        assert!(claim_at(&mut files, begin, 200).is_some());
    }
}
