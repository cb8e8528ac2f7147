//! The states of all subjects on disk.
//!
//! Two files take turns, each with a number and a checksum: the newer whole one counts. A power cut leaves the older one,
//! and damage to one of them costs the last step, which is taken again. Damage to both is an alarm.

use std::collections::BTreeMap;
use std::io;
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};
use serde_json::value::RawValue;

use super::state::SubjectState;
use super::subject::Subject;
use crate::durable;

/// The two files.
const FILES: [&str; 2] = ["state.0.json", "state.1.json"];

/// The one form that is known.
const SCHEMA: u32 = 1;

/// The states of all subjects.
pub type Subjects = BTreeMap<Subject, SubjectState>;

/// Why the states cannot be read.
#[derive(Debug, thiserror::Error)]
pub enum PersistedError {
    /// The system refuses.
    #[error("{} cannot be read: {error}", path.display())]
    Unreadable {
        /// The file.
        path: PathBuf,
        /// The system's words.
        error: io::Error,
    },
    /// Neither file is whole.
    #[error("{} and its other half are damaged: {reason}", path.display())]
    Damaged {
        /// One of them.
        path: PathBuf,
        /// What is wrong with it.
        reason: String,
    },
}

/// The states and where they are kept.
#[derive(Debug)]
pub struct Persisted {
    folder: PathBuf,
    written: u64,
    /// What is known, written or not.
    pub subjects: Subjects,
}

#[derive(Serialize, Deserialize)]
struct File<'a> {
    schema: u32,
    number: u64,
    checksum: String,
    #[serde(borrow)]
    subjects: &'a RawValue,
}

impl Persisted {
    /// Reads what is in `folder`; nothing when there is neither file.
    pub fn load(folder: &Path) -> Result<Self, PersistedError> {
        let mut newest: Option<(u64, Subjects)> = None;
        let mut damage = None;
        for name in FILES {
            let path = folder.join(name);
            let text = match std::fs::read(&path) {
                Ok(text) => text,
                Err(error) if error.kind() == io::ErrorKind::NotFound => continue,
                Err(error) => return Err(PersistedError::Unreadable { path, error }),
            };
            match parse(&text) {
                Ok((number, subjects)) if newest.as_ref().is_none_or(|(other, _)| *other < number) => {
                    newest = Some((number, subjects));
                }
                Ok(_) => {}
                Err(reason) => damage = Some((path, reason)),
            }
        }
        match (newest, damage) {
            (Some((written, subjects)), damage) => {
                if let Some((path, reason)) = damage {
                    tracing::error!(file = %path.display(), reason, "a state of the updates is damaged; the other is used");
                }
                Ok(Self { folder: folder.to_owned(), written, subjects })
            }
            (None, Some((path, reason))) => Err(PersistedError::Damaged { path, reason }),
            (None, None) => Ok(Self::none(folder)),
        }
    }

    /// No state yet.
    pub fn none(folder: &Path) -> Self {
        Self { folder: folder.to_owned(), written: 0, subjects: Subjects::new() }
    }

    /// Sets both files aside, under names that tell when. What they said is for people to find out.
    pub fn set_aside(folder: &Path, suffix: &str) -> io::Result<()> {
        for name in FILES {
            match durable::rename(&folder.join(name), &folder.join(format!("{name}.damaged-{suffix}"))) {
                Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
                _ => {}
            }
        }
        Ok(())
    }

    /// Writes the states. When it returns `Ok` they survive a power cut; when it fails, those written before do.
    pub fn write(&mut self) -> io::Result<()> {
        let number = self.written + 1;
        let text = serde_json::to_string(&self.subjects).map_err(io::Error::other)?;
        let subjects = RawValue::from_string(text).map_err(io::Error::other)?;
        let file = File { schema: SCHEMA, number, checksum: checksum(number, subjects.get()), subjects: &subjects };
        let content = serde_json::to_vec(&file).map_err(io::Error::other)?;
        let name = FILES.get(usize::from(number % 2 == 1)).copied().unwrap_or_default();
        durable::replace(&self.folder.join(name), &content)?;
        self.written = number;
        Ok(())
    }
}

fn parse(text: &[u8]) -> Result<(u64, Subjects), String> {
    let file: File<'_> = serde_json::from_slice(text).map_err(|error| error.to_string())?;
    if file.schema != SCHEMA {
        return Err(format!("it is of schema {}, this version of Ledge knows {SCHEMA}", file.schema));
    }
    if checksum(file.number, file.subjects.get()) != file.checksum {
        return Err("its checksum is another".to_owned());
    }
    let subjects = serde_json::from_str(file.subjects.get()).map_err(|error| error.to_string())?;
    Ok((file.number, subjects))
}

fn checksum(number: u64, subjects: &str) -> String {
    blake3::hash(format!("{number}\n{subjects}").as_bytes()).to_hex().to_string()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn kept(folder: &Path, count: usize) -> Persisted {
        let mut persisted = Persisted::none(folder);
        for number in 0..count {
            persisted.subjects.insert(format!("models/m{number}").parse().unwrap(), SubjectState::default());
            persisted.write().unwrap();
        }
        persisted
    }

    #[test]
    fn the_newest_state_is_read_back() {
        let folder = tempfile::tempdir().unwrap();
        assert!(Persisted::load(folder.path()).unwrap().subjects.is_empty());
        for count in 1..5 {
            kept(folder.path(), count);
            assert_eq!(Persisted::load(folder.path()).unwrap().subjects.len(), count);
        }
    }

    #[test]
    #[expect(clippy::disallowed_methods, reason = "the test makes the damage")]
    fn damage_anywhere_costs_one_step_at_most_and_in_both_files_is_told() {
        let folder = tempfile::tempdir().unwrap();
        kept(folder.path(), 5);
        let paths = FILES.map(|name| folder.path().join(name));
        let whole = paths.clone().map(|path| std::fs::read(path).unwrap());
        for (path, content) in paths.iter().zip(&whole) {
            for at in (0..content.len()).step_by(7) {
                let mut damaged = content.clone();
                damaged[at] ^= 1;
                std::fs::write(path, &damaged).unwrap();
                let found = Persisted::load(folder.path()).unwrap().subjects.len();
                assert!((4..=5).contains(&found), "{at}: {found}");
            }
            std::fs::write(path, content).unwrap();
        }
        for path in &paths {
            std::fs::write(path, b"{}").unwrap();
        }
        assert!(matches!(Persisted::load(folder.path()), Err(PersistedError::Damaged { .. })));
        Persisted::set_aside(folder.path(), "now").unwrap();
        assert!(Persisted::load(folder.path()).unwrap().subjects.is_empty());
    }
}
