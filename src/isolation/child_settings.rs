//! The settings of all children.

use std::path::PathBuf;

use crate::starter::ChildStarter;

/// The settings of all children.
#[derive(Debug, Clone)]
pub struct ChildSettings {
    /// Starts each of them.
    pub starter: ChildStarter,
    /// The folder in which each child gets one of its own.
    pub folder: PathBuf,
    /// The same on a file system in memory, for models that are encrypted on the disk, and while the disk cannot be
    /// written; `None` where there is none.
    pub memory_folder: Option<PathBuf>,
    /// The most memory that each may reserve, in bytes.
    pub memory_bytes: Option<u64>,
    /// The most memory of what each makes of the content of calls, in bytes.
    pub content_bytes: usize,
    /// True for children that load a version for the first time: they go first when memory is short, and one that fails
    /// is not started again.
    pub is_yielding: bool,
    /// True for the trial of a version, whose children wait for the threads that answer requests, and yield, too. After
    /// one has ended before its model, no other is started.
    pub is_trial: bool,
}
