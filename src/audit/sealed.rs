//! The keys of the audit log, sealed anew: under a new master key, or for the first time.

use std::path::{Path, PathBuf};

use ledge_identity::sealing::{Rekey, Rekeyed, Sealer, Survey};

use super::key::{self, KeyError};
use super::tags::{self, TagsError};

/// The key that signs the log and those for its tags, in their folder.
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

    fn rekey(&self, _: &dyn Fn() -> bool, done: &mut Rekeyed) -> Result<(), String> {
        // One that fails keeps none of the others from it.
        let tags = tags::rekey(&self.folder, &self.sealer, done);
        *done += key::rekey(&self.folder, &self.sealer).map_err(|error| error.to_string())?;
        tags.map_err(|error| error.to_string())
    }
}

/// Why nobody can say what is sealed.
#[derive(Debug, thiserror::Error)]
pub enum SurveyError {
    #[error(transparent)]
    Key(#[from] KeyError),
    #[error(transparent)]
    Tags(#[from] TagsError),
}

/// Under which master keys the keys in the folder are, for one who only looks.
pub fn survey(folder: &Path) -> Result<Survey, SurveyError> {
    let mut survey = Survey::default();
    key::survey(folder, &mut survey)?;
    tags::survey(folder, &mut survey)?;
    Ok(survey)
}
