//! Signed configuration: settings from a closed, safe set, released as `configurations/NAME/VERSION/settings.toml`.
//!
//! With these a platform can tune boxes that others own: the amount and time that data is kept, and the messages taken
//! from the broker that the owner named. It can never set addresses to connect to or listen on, keys to trust, or paths
//! of stores.
//!
//! They override the defaults, and are overridden by the configuration file, the environment and the command line: no
//! release changes a value that the owner of the box has set. They take effect when the daemon starts.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

use ledge_base::names::ModelName;

use super::artifact::{Artifact, ArtifactKind};
use super::persisted::PersistedStates;
use super::state::SubjectState;
use super::store::release_folder;

/// The only file of a configuration release.
pub const SETTINGS_FILE: &str = "settings.toml";

/// Keys that a release may set, and sections of which it may set every key.
pub const SETTABLE_KEYS: [&str; 14] = [
    "serving.max_queue_size",
    "serving.default_timeout_ms",
    "serving.batch_windows",
    "response_cache.max_bytes",
    "quota.max_rate_per_principal",
    "quota.burst",
    "quota.max_concurrent_per_principal",
    "mqtt.bindings",
    "mqtt.report_interval_s",
    "features.cache_mb",
    "features.snapshot_mb",
    "features.keep_expired_h",
    "updates.poll_interval_s",
    "updates.max_bytes_per_s",
];

/// Returns true if a release may set this key, such as `mqtt.bindings[0].topic`.
pub fn is_settable(key: &str) -> bool {
    let is_or_is_in = |settable: &&str| {
        key.strip_prefix(settable).is_some_and(|rest| rest.is_empty() || rest.starts_with(['.', '[']))
    };
    SETTABLE_KEYS.iter().any(is_or_is_in)
}

/// Returns the files of the live settings, by the state of the update store in `folder`, in the order of their names.
/// None where the state cannot be read: the updater reports that.
pub fn active(folder: &Path) -> Vec<PathBuf> {
    live(folder, ArtifactKind::Configuration).into_iter().map(|(_, release)| release.join(SETTINGS_FILE)).collect()
}

/// Returns the models that have a live release, by the same state.
pub fn managed_models(folder: &Path) -> BTreeSet<ModelName> {
    live(folder, ArtifactKind::Model).into_iter().map(|(subject, _)| subject.name).collect()
}

/// Returns the folders of the live releases of one kind.
pub(super) fn live(folder: &Path, kind: ArtifactKind) -> Vec<(Artifact, PathBuf)> {
    let Ok(persisted) = PersistedStates::load(folder) else { return Vec::new() };
    let release = |(subject, state): (Artifact, SubjectState)| {
        let path = release_folder(folder, &subject, state.live()?);
        Some((subject, path))
    };
    persisted.subjects.into_iter().filter(|(subject, _)| subject.kind == kind).filter_map(release).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::state::InstalledRelease;

    #[test]
    fn only_what_is_in_the_closed_set_may_be_set() {
        for key in ["serving.max_queue_size", "mqtt.bindings", "mqtt.bindings[0].topic", "mqtt.bindings[1].image.field"]
        {
            assert!(is_settable(key), "{key}");
        }
        for key in [
            "http.listen[0]",
            "mqtt.broker",
            "mqtt.bindings_of_others",
            "mqtt.tls.ca_file",
            "egress.allow[0].host",
            "device.id",
            "updates.repository",
            "updates.path",
            "updates.tls.key_file",
            "runtimes.dir",
            "features.path",
            "serving",
            "",
        ] {
            assert!(!is_settable(key), "{key}");
        }
    }

    #[test]
    fn what_is_live_is_what_the_state_says() {
        let folder = tempfile::tempdir().unwrap();
        assert_eq!(active(folder.path()), [""; 0].map(PathBuf::from));
        let mut persisted = PersistedStates::empty(folder.path());
        for (subject, version) in [
            ("configurations/night", "3"),
            ("configurations/day", "1"),
            ("models/wine", "7"),
            ("configurations/none", ""),
        ] {
            let release =
                |version: &str| InstalledRelease { version: version.parse().unwrap(), digest: "ab".repeat(32) };
            let committed = (!version.is_empty()).then(|| release(version));
            persisted.subjects.insert(subject.parse().unwrap(), SubjectState { committed, ..SubjectState::default() });
        }
        persisted.write().unwrap();
        let releases = folder.path().join("releases/configurations");
        let expected =
            ["day/1-abababababababab", "night/3-abababababababab"].map(|path| releases.join(path).join(SETTINGS_FILE));
        assert_eq!(active(folder.path()), expected);
    }
}
