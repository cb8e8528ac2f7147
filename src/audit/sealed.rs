//! The keys of the audit log, encrypted again under a new master key, or for the first time.

use std::path::{Path, PathBuf};

use ledge_identity::sealing::{MasterKeyCounts, Rekey, RekeyCounts, Sealer};

use super::key::{self, AuditKeyError};
use super::tags::{self, TagKeysError};

/// The key that signs the log and the keys for its tags, in their folder.
#[derive(Debug, Clone)]
pub struct AuditKeys {
    /// The folder of the log.
    pub folder: PathBuf,
    pub sealer: Sealer,
}

impl Rekey for AuditKeys {
    fn what(&self) -> &'static str {
        "audit_keys"
    }

    fn rekey(&self, _: &dyn Fn() -> bool, done: &mut RekeyCounts) -> Result<(), String> {
        // The signing key is encrypted even when keys for tags failed.
        let tags = tags::rekey(&self.folder, &self.sealer, done);
        *done += key::rekey(&self.folder, &self.sealer).map_err(|error| error.to_string())?;
        tags.map_err(|error| error.to_string())
    }
}

/// Reasons why the master keys cannot be determined.
#[derive(Debug, thiserror::Error)]
pub enum AuditSurveyError {
    #[error(transparent)]
    Key(#[from] AuditKeyError),
    #[error(transparent)]
    Tags(#[from] TagKeysError),
}

/// Counts the keys in the folder by the master key that they are encrypted under. Reads only.
pub fn survey(folder: &Path) -> Result<MasterKeyCounts, AuditSurveyError> {
    let mut survey = MasterKeyCounts::default();
    key::survey(folder, &mut survey)?;
    tags::survey(folder, &mut survey)?;
    Ok(survey)
}
