//! The start of the updater, before any model is loaded.

use std::collections::BTreeMap;
use std::path::Path;

use ledge_base::clock;
use ledge_base::names::ModelName;
use ledge_identity::sealing::Sealer;
use ledge_models::repository::ManagedVersion;
use ledge_models::repository::trial_mark::{TrialMark, TrialWorkGuard};

use crate::artifact::{Artifact, ArtifactKind};
use crate::persisted::{LiveRelease, PersistedStates, PersistedStatesError, read_live_releases};
use crate::state::{InstalledRelease, RolloutPhase, SubjectState, UpdateEvent};
use crate::store::{StoreError, UpdateStore, mark_path, release_folder};

/// The update store and its state, as found at the start.
#[derive(Debug)]
pub struct UpdateBootState {
    pub store: UpdateStore,
    /// The state of every subject, with this start counted.
    pub persisted: PersistedStates,
    /// The live version of each managed model.
    pub managed: BTreeMap<ModelName, ManagedVersion>,
    /// The states before this start was counted.
    pub before: BTreeMap<Artifact, SubjectState>,
    /// The releases on trial that this start loads, until it has.
    pub loads: BTreeMap<Artifact, TrialWorkGuard>,
}

/// Reasons why updates cannot continue.
#[derive(Debug, thiserror::Error)]
pub enum UpdateBootError {
    #[error(transparent)]
    Store(#[from] StoreError),
    #[error(transparent)]
    State(#[from] PersistedStatesError),
}

/// Opens the store, counts the start, and finds the live versions. A release that is damaged on disk is given up for
/// the previous one.
///
/// With a state that is damaged beyond repair nothing is managed: both files are set aside, the owner's models are
/// served, and the releases that the platform wants are fetched again.
///
/// `progress` is called as the releases are read.
pub fn prepare(folder: &Path, sealer: &Sealer, progress: &dyn Fn()) -> Result<UpdateBootState, UpdateBootError> {
    let store = UpdateStore::open_with(folder, sealer)?;
    let mut persisted = match PersistedStates::load(folder) {
        Ok(persisted) => persisted,
        Err(damaged @ PersistedStatesError::Damaged { .. }) => {
            tracing::error!(
                error = %damaged,
                "the state files of updates are damaged: they are set aside, and the owner's models are served"
            );
            let now = clock::unix_millis().to_string();
            if let Err(error) = PersistedStates::set_aside(folder, &now) {
                tracing::error!(%error, "the damaged state cannot be set aside");
            }
            PersistedStates::empty(folder)
        }
        Err(error) => return Err(error.into()),
    };

    let before = persisted.subjects.clone();
    for (subject, state) in &mut persisted.subjects {
        let under_way = TrialMark::is_set(&mark_path(folder, subject));
        let mut after = state.clone().after(UpdateEvent::Started { under_way }, subject.kind);
        while let Some(lost) = damaged(&store, subject, &after, progress) {
            tracing::error!(
                %subject, version = %lost.version,
                "a release is damaged on disk; the previous release is served"
            );
            if let Err(error) = store.discard(subject, &lost, progress) {
                tracing::error!(%subject, %error, "the damaged release cannot be removed");
            }
            after = after.after(UpdateEvent::Damaged(lost), subject.kind);
        }
        *state = after;
    }

    if let Err(error) = persisted.write() {
        // Serving comes first. This start is not counted, so a trial may have one more.
        tracing::error!(%error, "the state of updates cannot be written");
    }

    // After the state is on the disk, which has counted the marks of the last process.
    let loads = persisted.subjects.iter().filter_map(|(subject, state)| mark_load(folder, subject, state)).collect();
    let live = |(subject, state): (&Artifact, &SubjectState)| {
        let release = state.live().filter(|_| subject.kind == ArtifactKind::Model)?;
        let golden_min = state.golden_min(release);
        let folder = store.release_folder(subject, release);
        Some((subject.name.clone(), ManagedVersion { version: release.version, folder, golden_min }))
    };
    let managed = persisted.subjects.iter().filter_map(live).collect();
    Ok(UpdateBootState { store, persisted, managed, before, loads })
}

/// Marks the load of a release on trial that this start makes, and removes any other mark.
fn mark_load(folder: &Path, subject: &Artifact, state: &SubjectState) -> Option<(Artifact, TrialWorkGuard)> {
    let path = mark_path(folder, subject);
    if state.trial.as_ref().is_some_and(|trial| trial.stage == RolloutPhase::Active) {
        return Some((subject.clone(), TrialMark::open(&path).load()));
    }
    if TrialMark::is_set(&path) {
        TrialMark::open(&path).clear();
    }
    None
}

/// Returns the live release if its files on disk are not the signed ones.
fn damaged(
    store: &UpdateStore,
    subject: &Artifact,
    state: &SubjectState,
    progress: &dyn Fn(),
) -> Option<InstalledRelease> {
    let live = state.live()?;
    match store.verify_release(subject, live, progress) {
        Ok(whole) => (!whole).then(|| live.clone()),
        Err(error) => {
            // An unreadable release may be whole: the load decides.
            tracing::error!(
                %subject, version = %live.version, %error,
                "a release cannot be verified, because reading it failed; it is loaded as it is"
            );
            None
        }
    }
}

/// Returns the live version of each managed model where the state can only be read: another process has the store, the
/// disk is read-only, or a newer Ledge wrote the state.
pub fn read_managed(folder: &Path) -> BTreeMap<ModelName, ManagedVersion> {
    let live = read_live_releases(folder).into_iter().filter(|live| live.subject.kind == ArtifactKind::Model);
    live.map(|LiveRelease { subject, release, golden_min }| {
        let folder = release_folder(folder, &subject, &release);
        (subject.name, ManagedVersion { version: release.version, folder, golden_min })
    })
    .collect()
}
