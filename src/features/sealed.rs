//! The keys of the feature store under the master key: which one, and sealed anew under another.

use std::fs::{self, File};
use std::io::{self, Read};
use std::path::{Path, PathBuf};

use ledge_base::principal::Principal;
use ledge_identity::sealing::{OVERHEAD, Reseal, Resealed, Sealer, Survey};
use tokio::runtime::Handle;
use tokio::sync::oneshot;

use super::engine::erased;
use super::engine::erasure::Entity;
use super::engine::files::HASH_KEY_FILE;
use super::engine::orders::Job;
use super::entity_keys::form;
use super::online::{Erased, FeatureError};
use super::{FeatureStore, entity_keys};

/// Under which master keys the files of the store in `folder` are, for one who only looks. Values are under the keys of their
/// entities, which are in those files.
pub fn survey(folder: &Path) -> io::Result<Survey> {
    let mut survey = Survey::default();
    for file in [HASH_KEY_FILE, erased::NAME].map(|name| folder.join(name)) {
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
            // It grows, and the first pieces may be of another time than the last.
            let content = fs::read(&file)?;
            for frame in form::decode_frames(&content).0 {
                survey.count(Sealer::key_of(frame));
            }
        }
    }
    Ok(survey)
}

/// As much of a file as says under which key it is; `None` when there is none.
fn beginning(file: &Path) -> io::Result<Option<Vec<u8>>> {
    let mut bytes = Vec::with_capacity(OVERHEAD);
    match File::open(file) {
        Ok(file) => file.take(OVERHEAD as u64).read_to_end(&mut bytes).map(|_| Some(bytes)),
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
    /// Erases entities: their records in every view, and those of every entity that has the join keys of one among others. When
    /// this returns `Ok`, no file of the store has what they were, or the key to it. With a mistake in one nothing is erased.
    pub async fn erase(&self, entities: Vec<Entity>, principal: Principal) -> Result<Erased, FeatureError> {
        let (reply, answer) = oneshot::channel();
        self.upkeep(Job::Erase { entities, principal, reply }, answer).await
    }

    /// Seals the keys of all entities under the current master key, while the store is at work; how many. No value is
    /// touched.
    pub async fn reseal(&self) -> Result<u64, FeatureError> {
        let (reply, answer) = oneshot::channel();
        self.upkeep(Job::Reseal { reply }, answer).await
    }

    /// Whether its files are sealed.
    pub fn is_sealed(&self) -> bool {
        self.engine().is_ok_and(|engine| engine.protection.keys().is_some())
    }
}

impl Reseal for FeatureStore {
    fn what(&self) -> &'static str {
        "feature_keys"
    }

    fn reseal(&self, _: &dyn Fn() -> bool, done: &mut Resealed) -> Result<(), String> {
        let Survey(found) = survey(&self.shared.config.path).map_err(|error| error.to_string())?;
        let current = self.shared.sealer.current();
        let count = |is_due: fn(bool) -> bool| {
            found.iter().filter(|(key, _)| **key != current && is_due(key.is_some())).map(|(_, count)| count).sum()
        };
        let due = Resealed { plain: count(|is_sealed| !is_sealed), old: count(|is_sealed| is_sealed) };
        let keys = match self.engine() {
            Ok(engine) => engine.protection.keys(),
            Err(_) if due.total() == 0 => return Ok(()),
            Err(FeatureError::Disabled { .. }) => {
                return Err(
                    "no feature view is declared, and the files of the store that there was stay as they are".into()
                );
            }
            Err(error) => return Err(error.to_string()),
        };
        let Some(keys) = keys else {
            let plain = "it was opened without a master key: the next start seals it";
            return if due.total() == 0 { Ok(()) } else { Err(plain.into()) };
        };
        if due.total() > 0 || !keys.is_complete() {
            // This thread may wait, and the store answers from its own, when it has done what it does when it is opened.
            Handle::current().block_on(FeatureStore::reseal(self)).map_err(|error| error.to_string())?;
            *done += due;
        }
        if keys.is_complete() {
            return Ok(());
        }
        Err("what it had before sealing was turned on is not sealed yet; the store sees to it".into())
    }
}
