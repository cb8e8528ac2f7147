//! What the updater finds at the start, before any model is loaded.

use std::collections::BTreeMap;
use std::path::Path;

use ledge_base::clock;
use ledge_base::names::ModelName;
use ledge_identity::sealing::Sealer;
use ledge_models::repository::ManagedVersion;

use crate::persisted::{Live, Persisted, PersistedError, live_as_it_lies};
use crate::state::{Event, Installed, SubjectState};
use crate::store::{BlobStore, StoreError, release_folder};
use crate::subject::{Kind, Subject};

/// What was found.
#[derive(Debug)]
pub struct Prepared {
    pub store: BlobStore,
    /// The state of every subject, the start counted in.
    pub persisted: Persisted,
    /// Which models are live in which version.
    pub managed: BTreeMap<ModelName, ManagedVersion>,
    /// Every state as it was before this start was counted.
    pub before: BTreeMap<Subject, SubjectState>,
}

/// Why updates cannot go on.
#[derive(Debug, thiserror::Error)]
pub enum BootError {
    #[error(transparent)]
    Store(#[from] StoreError),
    #[error(transparent)]
    State(#[from] PersistedError),
}

/// Opens the store, counts the start, and says what is live. A release that is damaged on disk is given up for the one
/// before it.
///
/// With a state that is damaged beyond repair nothing is managed: both files are set aside, the models of this box's owner
/// serve, and what the platform wants is fetched again.
///
/// `progress` is called as the releases are read.
pub fn prepare(folder: &Path, sealer: &Sealer, progress: &dyn Fn()) -> Result<Prepared, BootError> {
    let store = BlobStore::open_with(folder, sealer)?;
    let mut persisted = match Persisted::load(folder) {
        Ok(persisted) => persisted,
        Err(damaged @ PersistedError::Damaged { .. }) => {
            tracing::error!(error = %damaged, "the state of updates is lost; it is set aside, and the owner's models serve");
            let now = clock::unix_millis().to_string();
            if let Err(error) = Persisted::set_aside(folder, &now) {
                tracing::error!(%error, "the damaged state cannot be set aside");
            }
            Persisted::none(folder)
        }
        Err(error) => return Err(error.into()),
    };
    let before = persisted.subjects.clone();
    for (subject, state) in &mut persisted.subjects {
        let mut after = state.clone().after(Event::Started, subject.kind);
        while let Some(lost) = damaged(&store, subject, &after, progress) {
            tracing::error!(%subject, version = %lost.version, "a release is damaged on disk; the one before it serves");
            if let Err(error) = store.discard(subject, &lost, progress) {
                tracing::error!(%subject, %error, "the damaged release cannot be removed");
            }
            after = after.after(Event::Lost(lost), subject.kind);
        }
        *state = after;
    }
    if let Err(error) = persisted.write() {
        // Models come first. The start is not counted, so a trial may have one more.
        tracing::error!(%error, "the state of updates cannot be written");
    }
    let live = |(subject, state): (&Subject, &SubjectState)| {
        let release = state.live().filter(|_| subject.kind == Kind::Model)?;
        let golden_min = state.golden_min(release);
        let folder = store.release_folder(subject, release);
        Some((subject.name.clone(), ManagedVersion { version: release.version, folder, golden_min }))
    };
    let managed = persisted.subjects.iter().filter_map(live).collect();
    Ok(Prepared { store, persisted, managed, before })
}

/// The live release, if what is on disk is not what was signed.
fn damaged(store: &BlobStore, subject: &Subject, state: &SubjectState, progress: &dyn Fn()) -> Option<Installed> {
    let live = state.live()?;
    match store.verify_release(subject, live, progress) {
        Ok(whole) => (!whole).then(|| live.clone()),
        Err(error) => {
            // What cannot be read now may be whole: it is for the load to find out.
            tracing::error!(%subject, version = %live.version, %error, "a release cannot be checked");
            None
        }
    }
}

/// Which models are live in which version, where the state can be read and nothing else may be done: another process has
/// the store, the disk is read-only, or a newer Ledge wrote the state.
pub fn managed_as_it_lies(folder: &Path) -> BTreeMap<ModelName, ManagedVersion> {
    let live = live_as_it_lies(folder).into_iter().filter(|live| live.subject.kind == Kind::Model);
    live.map(|Live { subject, release, golden_min }| {
        let folder = release_folder(folder, &subject, &release);
        (subject.name, ManagedVersion { version: release.version, folder, golden_min })
    })
    .collect()
}
