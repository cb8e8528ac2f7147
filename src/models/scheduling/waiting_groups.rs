//! Jobs that wait for the others of their group.

use std::collections::HashMap;
use std::sync::{Mutex, MutexGuard, PoisonError};

use super::queue::InferJob;

/// Jobs that wait for the others of their group, by model.
#[derive(Debug, Default)]
pub(super) struct WaitingGroups(Mutex<HashMap<u64, Vec<InferJob>>>);

impl WaitingGroups {
    pub(super) fn lock(&self) -> MutexGuard<'_, HashMap<u64, Vec<InferJob>>> {
        // Nothing panics under this lock.
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
