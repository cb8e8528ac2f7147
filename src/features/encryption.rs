//! The master keys that the files of the feature store are encrypted under, and encrypting them again under another
//! one.

use std::fs::{self, File};
use std::io::{self, Read};
use std::path::{Path, PathBuf};

use ledge_base::principal::Principal;
use ledge_identity::sealing::{MasterKeyCounts, OVERHEAD_BYTES, Rekey, RekeyCounts, Sealer};
use ledge_service::audit_event::erasure::EntityNaming;
use tokio::runtime::Handle;
use tokio::sync::oneshot;

use super::engine::commands::MaintenanceJob;
use super::engine::files::HASH_KEY_FILE;
use super::engine::tombstones;
use super::entity_keys::form;
use super::online::{Disclosure, ErasureCounts, ErasureResult, FeatureError, JoinKeyValues};
use super::{FeatureStore, entity_keys};

/// Counts the files of the store in `folder` by the master key that they are encrypted under, without opening the
/// store. Values are encrypted under the keys of their entities, which are in those files.
pub fn survey(folder: &Path) -> io::Result<MasterKeyCounts> {
    let mut survey = MasterKeyCounts::default();
    for file in [HASH_KEY_FILE, tombstones::FILE_NAME].map(|name| folder.join(name)) {
        if let Some(beginning) = beginning(&file)? {
            survey.count(Sealer::key_of(&beginning));
        }
    }
    for copy in entity_keys::copies(folder) {
        for file in files(&copy)? {
            if !entity_keys::is_added(&file) {
                survey.count(beginning(&file)?.as_deref().and_then(Sealer::key_of));
                continue;
            }
            // The file grows: its first pieces may be encrypted under another master key than its last ones.
            let content = fs::read(&file)?;
            for frame in form::decode_frames(&content).0 {
                survey.count(Sealer::key_of(frame));
            }
        }
    }
    Ok(survey)
}

/// The beginning of a file, which names its master key; `None` without the file.
fn beginning(file: &Path) -> io::Result<Option<Vec<u8>>> {
    let mut bytes = Vec::with_capacity(OVERHEAD_BYTES);
    match File::open(file) {
        Ok(file) => file.take(OVERHEAD_BYTES as u64).read_to_end(&mut bytes).map(|_| Some(bytes)),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
        Err(error) => Err(error),
    }
}

fn files(folder: &Path) -> io::Result<Vec<PathBuf>> {
    match fs::read_dir(folder) {
        Ok(entries) => entries.map(|entry| entry.map(|entry| entry.path())).collect(),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(Vec::new()),
        Err(error) => Err(error),
    }
}

impl FeatureStore {
    /// Erases entities: their records in every view, and those of every entity that has the join keys of one among
    /// others. When this returns `Ok`, no file of the store has their values, or the key to them. A mistake in one
    /// entity means that nothing is erased.
    pub async fn erase(
        &self,
        entities: Vec<JoinKeyValues>,
        principal: Principal,
    ) -> Result<ErasureCounts, FeatureError> {
        self.erase_with(entities, None, principal).await.map(|result| result.counts)
    }

    /// As [`Self::erase`]. With `naming`, the result has the statement of each entity, whose hash is in the audit
    /// record of its erasure.
    pub async fn erase_with(
        &self,
        entities: Vec<JoinKeyValues>,
        naming: Option<EntityNaming>,
        principal: Principal,
    ) -> Result<ErasureResult, FeatureError> {
        let (reply, answer) = oneshot::channel();
        self.maintenance(MaintenanceJob::Erase { entities, naming, principal, reply }, answer).await
    }

    /// Everything that the store has on an entity: its rows in every view, those of every entity that has its join keys
    /// among others, and earlier rows of them in the journal.
    pub async fn disclose(&self, entity: JoinKeyValues, principal: Principal) -> Result<Disclosure, FeatureError> {
        let (reply, answer) = oneshot::channel();
        self.maintenance(MaintenanceJob::Disclose { entity, principal, reply }, answer).await
    }

    /// Encrypts the keys of all entities again under the current master key, while the store is in use. Returns their
    /// number. No value is rewritten.
    pub async fn rekey(&self) -> Result<u64, FeatureError> {
        let (reply, answer) = oneshot::channel();
        self.maintenance(MaintenanceJob::Rekey { reply }, answer).await
    }

    /// True when the files of the store are encrypted.
    pub fn is_sealed(&self) -> bool {
        self.engine().is_ok_and(|engine| engine.protection.keys().is_some())
    }
}

impl Rekey for FeatureStore {
    fn what(&self) -> &'static str {
        "feature_keys"
    }

    fn rekey(&self, _: &dyn Fn() -> bool, done: &mut RekeyCounts) -> Result<(), String> {
        let MasterKeyCounts(found) = survey(&self.inner.config.path).map_err(|error| error.to_string())?;
        let current = self.inner.sealer.current();
        let count = |is_due: fn(bool) -> bool| {
            found.iter().filter(|(key, _)| **key != current && is_due(key.is_some())).map(|(_, count)| count).sum()
        };

        let due = RekeyCounts { plain: count(|is_sealed| !is_sealed), old: count(|is_sealed| is_sealed) };

        let keys = match self.engine() {
            Ok(engine) => engine.protection.keys(),
            Err(_) if due.total() == 0 => return Ok(()),
            Err(FeatureError::Disabled { .. }) => {
                return Err(
                    "no feature view is declared, so the files of the earlier feature store keep their old master key: declare a view, or move the store's folder away".into()
                );
            }
            Err(error) => return Err(error.to_string()),
        };

        let Some(keys) = keys else {
            let plain = "the feature store was opened without a master key: restart ledge to encrypt it";
            return if due.total() == 0 { Ok(()) } else { Err(plain.into()) };
        };

        if due.total() > 0 || !keys.is_complete() {
            // This thread may block: the store answers from its own thread, after its work at the start.
            Handle::current().block_on(FeatureStore::rekey(self)).map_err(|error| error.to_string())?;
            *done += due;
        }

        if keys.is_complete() {
            return Ok(());
        }
        Err("values from before encryption was turned on are not encrypted yet; the feature store does that in the background".into())
    }
}
