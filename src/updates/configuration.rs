//! Signed configuration: settings from a closed, safe set, released as `configurations/NAME/VERSION/settings.toml`.

use std::path::{Path, PathBuf};

use super::persisted::Persisted;
use super::state::Installed;
use super::subject::{Kind, Subject};

/// The one file of a configuration.
pub const FILE: &str = "settings.toml";

/// The settings that are live, by the update store in `folder`, in the order of their names.
pub fn active(folder: &Path) -> Vec<PathBuf> {
    live(folder, Kind::Configuration).into_iter().map(|(_, release)| release.join(FILE)).collect()
}

/// The folders of the releases of one kind that are live.
pub(super) fn live(folder: &Path, kind: Kind) -> Vec<(Subject, PathBuf)> {
    let Ok(persisted) = Persisted::load(folder) else { return Vec::new() };
    let of_kind = persisted.subjects.into_iter().filter(|(subject, _)| subject.kind == kind);
    let release = |(subject, state): (Subject, super::state::SubjectState)| {
        let path = release_folder(folder, &subject, state.live()?);
        Some((subject, path))
    };
    of_kind.filter_map(release).collect()
}

/// Where a release lies, as the update store puts it.
fn release_folder(folder: &Path, subject: &Subject, release: &Installed) -> PathBuf {
    let digest: String = release.digest.chars().take(16).collect();
    folder.join("releases").join(subject.to_string()).join(format!("{}-{digest}", release.version))
}
