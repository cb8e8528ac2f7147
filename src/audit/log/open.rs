//! The start: the last log continues, or another one begins.

use std::fs::{File, TryLockError};
use std::path::Path;

use ledge_base::durable;
use ledge_base::names::DeviceName;
use ledge_service::audit_event::PreviousLog;

use super::super::key::{AuditKey, origin};
use super::super::layout::{TILE_WIDTH, log_folder};
use super::super::local;
use super::super::restored::LogRestore;
use super::files;
use super::frontier::{AddedTreeHashes, TreeFrontier};
use super::inspect::{self, ContinuableLog, LogInspection, encoded};
use super::{AuditLog, AuditLogError, LogBeginning, OpenedAuditLog};

impl AuditLog {
    /// Opens the last log in the folder of all logs, or begins one.
    pub fn open(audit: &Path, device: &DeviceName, key: &AuditKey) -> Result<OpenedAuditLog, AuditLogError> {
        let lock = take_lock(audit)?;
        let generations = local::generations(audit).map_err(AuditLogError::at(audit))?;
        let Some((last, before)) = generations.split_last() else {
            let begun = LogBeginning { cause: "new", reason: None, previous: None };
            return Self::begin(audit, 1, device, lock, begun);
        };

        match inspect::inspect(audit, *last, device, key)? {
            LogInspection::Sound(found) => Self::adopt(audit, *last, device, lock, *found),
            LogInspection::Unsound { cause, reason, previous } => {
                let begun = LogBeginning { cause, reason: Some(reason), previous: Some(previous) };
                Self::begin(audit, last + 1, device, lock, begun)
            }
            // A daemon was killed right after it had begun this log. The log before it still shows the reason.
            LogInspection::Empty => {
                let begun = why_begun(audit, *last, before, device, key)?;
                Self::begin(audit, *last, device, lock, begun)
            }
        }
    }

    /// Leaves this log as it is, and begins another one after it. Records that were not committed are dropped.
    pub fn begin_another(self, cause: &'static str, device: &DeviceName) -> Result<OpenedAuditLog, AuditLogError> {
        let (size, root) = self.checkpoint.as_ref().map_or((0, None), |head| (head.size, Some(head.root)));
        let previous = PreviousLog { origin: self.origin, size, root: encoded(root), found: self.durable.size() };
        let begun = LogBeginning { cause, reason: None, previous: Some(previous) };
        Self::begin(&self.audit, self.generation + 1, device, self.lock, begun)
    }

    fn begin(
        audit: &Path,
        generation: u32,
        device: &DeviceName,
        lock: File,
        begun: LogBeginning,
    ) -> Result<OpenedAuditLog, AuditLogError> {
        let folder = log_folder(audit, generation);
        durable::create_folder(&folder).map_err(AuditLogError::at(&folder))?;
        files::restore(&folder, &TreeFrontier::default(), 0)?;
        Ok(OpenedAuditLog { log: Self::new(audit, generation, device, lock)?, begun: Some(begun) })
    }

    fn adopt(
        audit: &Path,
        generation: u32,
        device: &DeviceName,
        lock: File,
        found: ContinuableLog,
    ) -> Result<OpenedAuditLog, AuditLogError> {
        let folder = log_folder(audit, generation);
        if found.torn > 0 {
            tracing::warn!(bytes = found.torn, "the audit log ends with an incomplete record, which is cut off");
        }
        if found.rebuilt.is_some() {
            tracing::warn!("hashes of the audit log were damaged and are computed again from its records");
        }

        let edge = files::adopt(&folder, &found)?;
        let mut log = Self::new(audit, generation, device, lock)?;
        log.checkpoint = found.checkpoint;
        log.first = found.first * TILE_WIDTH;
        log.tail = found.tail;
        log.edge = edge.clone();
        log.durable = edge;
        Ok(OpenedAuditLog { log, begun: None })
    }

    /// An empty log in a folder that exists.
    fn new(audit: &Path, generation: u32, device: &DeviceName, lock: File) -> Result<Self, AuditLogError> {
        let folder = log_folder(audit, generation);
        // Leftovers that cannot be removed do no harm.
        let _ = durable::remove_leftovers(&folder);
        let logs = audit.join("logs");
        Ok(Self {
            audit: audit.to_owned(),
            folder,
            generation,
            origin: origin(device, generation),
            checkpoint: None,
            durable: TreeFrontier::default(),
            tail: 0,
            edge: TreeFrontier::default(),
            bundles: Vec::new(),
            grown: AddedTreeHashes::new(),
            is_suspect: false,
            first: 0,
            bytes: files::bytes_in(&logs).map_err(AuditLogError::at(&logs))?,
            lock,
        })
    }
}

fn take_lock(audit: &Path) -> Result<File, AuditLogError> {
    durable::create_folder(audit).map_err(AuditLogError::at(audit))?;
    let path = audit.join("lock");
    let opened = File::options().create(true).truncate(false).write(true).open(&path);
    let lock = opened.map_err(AuditLogError::at(&path))?;
    match lock.try_lock() {
        Ok(()) => Ok(lock),
        Err(TryLockError::WouldBlock) => Err(AuditLogError::Locked { path: audit.to_owned() }),
        Err(TryLockError::Error(error)) => Err(AuditLogError::at(&path)(error)),
    }
}

/// The reason why a log begins, from the logs before it.
fn why_begun(
    audit: &Path,
    last: u32,
    before: &[u32],
    device: &DeviceName,
    key: &AuditKey,
) -> Result<LogBeginning, AuditLogError> {
    let restore = LogRestore::read(audit).filter(|restore| restore.generation == last);
    // Its head is that of a log which is not in its place.
    if let Some(LogRestore { previous: Some(previous), .. }) = restore {
        return Ok(LogBeginning { cause: "restored", reason: None, previous: Some(previous) });
    }
    for generation in before.iter().rev() {
        match inspect::inspect(audit, *generation, device, key)? {
            LogInspection::Empty => {}
            // This log is sound, so a restore or the copy on the platform must have been the reason.
            LogInspection::Sound(found) => {
                let previous = Some(found.previous(origin(device, *generation)));
                let cause = if restore.is_some() { "restored" } else { "forked" };
                return Ok(LogBeginning { cause, reason: None, previous });
            }
            LogInspection::Unsound { cause, reason, previous } => {
                return Ok(LogBeginning { cause, reason: Some(reason), previous: Some(previous) });
            }
        }
    }
    Ok(LogBeginning { cause: "new", reason: None, previous: None })
}
