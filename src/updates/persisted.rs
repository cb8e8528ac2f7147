//! The states of all subjects on disk.
//!
//! Two files are written alternately, each with a number and a checksum: the newer undamaged one counts. A power cut
//! leaves the older one, and damage to one of them costs the last step, which is taken again. Damage to both is an
//! alarm.

use std::collections::BTreeMap;
use std::io;
use std::path::{Path, PathBuf};

use ledge_base::durable;
use serde::{Deserialize, Serialize};
use serde_json::Value;
use serde_json::value::RawValue;

use super::artifact::Artifact;
use super::state::{InstalledRelease, SubjectState};

/// The two state files, in the folder of the update store.
const STATE_FILES: [&str; 2] = ["state.0.json", "state.1.json"];

/// The only schema that this version reads.
const SCHEMA: u32 = 1;

/// The states of all subjects.
pub type SubjectStates = BTreeMap<Artifact, SubjectState>;

/// Reasons why the states cannot be read.
#[derive(Debug, thiserror::Error)]
pub enum PersistedStatesError {
    #[error("{} cannot be read: {error}", path.display())]
    Unreadable { path: PathBuf, error: io::Error },
    #[error("{} was written by another version of Ledge, and this one cannot read it: {reason}", path.display())]
    Unknown {
        path: PathBuf,
        /// The part that is not known.
        reason: String,
    },
    #[error("{} and the other state file are damaged: {reason}", path.display())]
    Damaged {
        path: PathBuf,
        /// The damage.
        reason: String,
    },
}

/// The states of all subjects, and their folder.
#[derive(Debug)]
pub struct PersistedStates {
    folder: PathBuf,
    written: u64,
    /// The states, written to disk or not.
    pub subjects: SubjectStates,
}

#[derive(Serialize, Deserialize)]
struct StateFile<'a> {
    schema: u32,
    number: u64,
    checksum: String,
    #[serde(borrow)]
    subjects: &'a RawValue,
}

impl PersistedStates {
    /// Reads the states in `folder`; empty when both files are missing.
    pub fn load(folder: &Path) -> Result<Self, PersistedStatesError> {
        let mut newest: Option<(u64, SubjectStates)> = None;
        let (mut damage, mut unreadable) = (None, None);
        for name in STATE_FILES {
            let path = folder.join(name);
            let text = match std::fs::read(&path) {
                Ok(text) => text,
                Err(error) if error.kind() == io::ErrorKind::NotFound => continue,
                // The other file may be readable.
                Err(error) => {
                    unreadable = Some(PersistedStatesError::Unreadable { path, error });
                    continue;
                }
            };

            match parse(&text) {
                Ok((number, subjects)) if newest.as_ref().is_none_or(|(other, _)| *other < number) => {
                    newest = Some((number, subjects));
                }
                Ok(_) => {}
                Err(StateFileFault::Unknown(reason)) => return Err(PersistedStatesError::Unknown { path, reason }),
                Err(StateFileFault::Damaged(reason)) => damage = Some((path, reason)),
            }
        }

        if newest.is_none()
            && let Some(error) = unreadable
        {
            return Err(error);
        }

        match (newest, damage) {
            (Some((written, subjects)), damage) => {
                if let Some((path, reason)) = damage {
                    tracing::error!(
                        file = %path.display(), reason,
                        "a state file of updates is damaged; the other one is used"
                    );
                }
                Ok(Self { folder: folder.to_owned(), written, subjects })
            }
            (None, Some((path, reason))) => Err(PersistedStatesError::Damaged { path, reason }),
            (None, None) => Ok(Self::empty(folder)),
        }
    }

    /// Makes an empty state.
    pub fn empty(folder: &Path) -> Self {
        Self { folder: folder.to_owned(), written: 0, subjects: SubjectStates::new() }
    }

    /// Renames both files, to names with `suffix`, for people to inspect.
    pub fn set_aside(folder: &Path, suffix: &str) -> io::Result<()> {
        for name in STATE_FILES {
            match durable::rename(&folder.join(name), &folder.join(format!("{name}.damaged-{suffix}"))) {
                Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
                _ => {}
            }
        }
        Ok(())
    }

    /// Writes the states. When this returns `Ok` they survive a power cut; when it fails, the last written ones do.
    pub fn write(&mut self) -> io::Result<()> {
        let number = self.written + 1;
        let text = serde_json::to_string(&self.subjects).map_err(io::Error::other)?;
        let content = encode(number, text).map_err(io::Error::other)?;
        let name = STATE_FILES.get(usize::from(number % 2 == 1)).copied().unwrap_or_default();
        durable::replace(&self.folder.join(name), &content)?;
        self.written = number;
        Ok(())
    }
}

/// Reasons why a state file is not used.
enum StateFileFault {
    /// Its bytes are not those that were written.
    Damaged(String),
    /// Its bytes are right, and this version cannot read them.
    Unknown(String),
}

/// Encodes a state file.
fn encode(number: u64, subjects: String) -> serde_json::Result<Vec<u8>> {
    let subjects = RawValue::from_string(subjects)?;
    let checksum = checksum(number, subjects.get());
    serde_json::to_vec(&StateFile { schema: SCHEMA, number, checksum, subjects: &subjects })
}

/// Reads a state file and checks its checksum. Returns its schema, its number, and its states as JSON.
fn whole(text: &[u8]) -> Result<(u32, u64, &str), String> {
    let file: StateFile<'_> = serde_json::from_slice(text).map_err(|error| error.to_string())?;
    if checksum(file.number, file.subjects.get()) != file.checksum {
        return Err("its checksum does not match".to_owned());
    }
    Ok((file.schema, file.number, file.subjects.get()))
}

fn parse(text: &[u8]) -> Result<(u64, SubjectStates), StateFileFault> {
    let (schema, number, subjects) = whole(text).map_err(StateFileFault::Damaged)?;
    if schema != SCHEMA {
        return Err(StateFileFault::Unknown(format!("its schema is {schema}, this version of Ledge reads {SCHEMA}")));
    }
    let subjects = serde_json::from_str(subjects).map_err(|error| StateFileFault::Unknown(error.to_string()))?;
    Ok((number, subjects))
}

/// A release that is live according to the state files.
#[derive(Debug, PartialEq)]
pub struct LiveRelease {
    pub subject: Artifact,
    pub release: InstalledRelease,
    /// The least share of its golden inputs that it had to answer right.
    pub golden_min: Option<f64>,
}

/// Reads the live releases from the newest undamaged file in `folder`, with as few assumptions about its schema as
/// possible.
pub fn read_live_releases(folder: &Path) -> Vec<LiveRelease> {
    let texts: Vec<_> = STATE_FILES.iter().filter_map(|name| std::fs::read(folder.join(name)).ok()).collect();
    let newest = texts.iter().filter_map(|text| whole(text).ok()).max_by_key(|(_, number, _)| *number);
    let Some((_, _, subjects)) = newest else { return Vec::new() };
    let subjects: BTreeMap<String, Value> = serde_json::from_str(subjects).unwrap_or_default();
    let live = |(name, state): (String, Value)| {
        let is_active = state.pointer("/trial/stage").is_some_and(|stage| stage == "active");
        let (release, golden_min) = if is_active {
            ("/trial/release", "/trial/plan/gate/golden_min")
        } else {
            ("/committed", "/committed_golden_min")
        };
        let release = InstalledRelease::deserialize(state.pointer(release)?).ok()?;
        let golden_min = state.pointer(golden_min).and_then(Value::as_f64);
        Some(LiveRelease { subject: name.parse().ok()?, release, golden_min })
    };
    subjects.into_iter().filter_map(live).collect()
}

fn checksum(number: u64, subjects: &str) -> String {
    blake3::hash(format!("{number}\n{subjects}").as_bytes()).to_hex().to_string()
}

/// Reads a state file, and states with a right checksum added; true when they are read. They are the same after they
/// were written and read again. The folder `fuzz/` and `tests/it/fuzz.rs` feed it.
///
/// # Panics
/// When an invariant does not hold.
#[cfg(any(test, feature = "fuzzing"))]
pub fn fuzz_update_states(data: &[u8]) -> bool {
    let below = String::from_utf8(data.to_vec()).ok().and_then(|text| encode(7, text).ok());
    let other =
        below.as_deref().map(|file| String::from_utf8_lossy(file).replacen(r#""number":7"#, r#""number":8"#, 1));
    assert!(other.is_none_or(|other| parse(other.as_bytes()).is_err()), "the checksum is that of another number");
    let mut accepted = false;
    for file in [Some(data), below.as_deref()].into_iter().flatten() {
        if let Ok((number, subjects)) = parse(file) {
            let written = serde_json::to_string(&subjects).and_then(|text| encode(number, text)).unwrap_or_default();
            assert!(parse(&written).is_ok_and(|again| again == (number, subjects)), "{}", written.escape_ascii());
            accepted = true;
        }
    }
    accepted
}

#[cfg(test)]
mod tests {
    use super::*;

    fn kept(folder: &Path, count: usize) -> PersistedStates {
        let mut persisted = PersistedStates::empty(folder);
        for number in 0..count {
            persisted.subjects.insert(format!("models/m{number}").parse().unwrap(), SubjectState::default());
            persisted.write().unwrap();
        }
        persisted
    }

    #[test]
    fn the_newest_state_is_read_back() {
        let folder = tempfile::tempdir().unwrap();
        assert!(PersistedStates::load(folder.path()).unwrap().subjects.is_empty());
        for count in 1..5 {
            kept(folder.path(), count);
            assert_eq!(PersistedStates::load(folder.path()).unwrap().subjects.len(), count);
        }
    }

    #[test]
    #[expect(clippy::disallowed_methods, reason = "the test makes the other form")]
    fn what_a_newer_ledge_wrote_is_no_damage_and_what_is_live_is_read_all_the_same() {
        let folder = tempfile::tempdir().unwrap();
        let digest = "ab".repeat(32);
        let live = format!(r#"{{"version": 3, "digest": "{digest}"}}"#);
        let subjects = format!(
            r#"{{"models/a": {{"committed": {live}, "committed_golden_min": 0.5, "trial": {{"stage": "pondering"}}}},
                 "models/b": {{"trial": {{"stage": "active", "release": {live}, "plan": {{"gate": {{}}}}}}}}}}"#
        );
        let file = StateFile {
            schema: SCHEMA + 1,
            number: 7,
            checksum: checksum(7, &subjects),
            subjects: &RawValue::from_string(subjects).unwrap(),
        };
        std::fs::write(folder.path().join(STATE_FILES[1]), serde_json::to_vec(&file).unwrap()).unwrap();
        assert!(matches!(PersistedStates::load(folder.path()), Err(PersistedStatesError::Unknown { .. })));
        let release = InstalledRelease { version: "3".parse().unwrap(), digest };
        let expected = [("models/a", Some(0.5)), ("models/b", None)].map(|(subject, golden_min)| LiveRelease {
            subject: subject.parse().unwrap(),
            release: release.clone(),
            golden_min,
        });
        assert_eq!(read_live_releases(folder.path()), expected);
    }

    #[test]
    #[expect(clippy::disallowed_methods, reason = "the test makes the damage")]
    fn damage_anywhere_costs_one_step_at_most_and_in_both_files_is_told() {
        let folder = tempfile::tempdir().unwrap();
        kept(folder.path(), 5);
        let paths = STATE_FILES.map(|name| folder.path().join(name));
        let whole = paths.clone().map(|path| std::fs::read(path).unwrap());
        for (path, content) in paths.iter().zip(&whole) {
            for at in (0..content.len()).step_by(7) {
                let mut damaged = content.clone();
                damaged[at] ^= 1;
                std::fs::write(path, &damaged).unwrap();
                let found = PersistedStates::load(folder.path()).unwrap().subjects.len();
                assert!((4..=5).contains(&found), "{at}: {found}");
            }
            std::fs::write(path, content).unwrap();
        }
        for path in &paths {
            std::fs::write(path, b"{}").unwrap();
        }
        assert!(matches!(PersistedStates::load(folder.path()), Err(PersistedStatesError::Damaged { .. })));
        PersistedStates::set_aside(folder.path(), "now").unwrap();
        assert!(PersistedStates::load(folder.path()).unwrap().subjects.is_empty());
    }
}
