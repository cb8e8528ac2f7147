//! The state that receivers know, in one file: a restart neither repeats a message nor forgets that a trouble is over.
//!
//! The file is not among the stores of `daemon/formats.rs`: without it a message comes again, and that is no reason for
//! an earlier version not to start. A file that cannot be read, also one of a later version, is set aside whole.

use std::collections::BTreeMap;
use std::io;
use std::path::{Path, PathBuf};

use ledge_base::durable;
use ledge_base::names::AlertName;
use ledge_part::check::FindingStatus;
use serde::{Deserialize, Serialize};

use crate::tracker::SentAlert;

/// The file in the state folder.
const FILE: &str = "alerts.json";

/// The version of the format of [`StoredAlerts`].
const SCHEMA: u32 = 1;

/// The largest file that is read, in bytes: 32 receivers with a thousand checks each have less.
const FILE_BYTES_MAX: u64 = 16 << 20;

/// The last message by receiver ([`key`]) and check.
pub type SentAlerts = BTreeMap<String, BTreeMap<String, SentAlert>>;

#[derive(Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct StoredAlerts {
    schema: u32,
    receivers: BTreeMap<String, BTreeMap<String, StoredSentAlert>>,
}

#[derive(Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct StoredSentAlert {
    severity: StoredSeverity,
    since_ms: u64,
    at_ms: u64,
}

#[derive(Debug, Clone, Copy, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
enum StoredSeverity {
    Warn,
    Fail,
}

/// The part of the file that every version has.
#[derive(Debug, Deserialize)]
struct StoredSchema {
    schema: u32,
}

/// The file. The default has no file and writes nothing.
#[derive(Debug, Clone, Default)]
pub struct AlertStore {
    path: PathBuf,
    /// False where a file that cannot be read could not be set aside: it is not overwritten.
    may_write: bool,
}

/// The name of the state of a receiver. `mark` is [`crate::config::AlertConfig::mark`].
pub fn key(alert: &AlertName, way: &str, mark: &str) -> String {
    format!("{alert} {way} {mark}")
}

impl AlertStore {
    /// Opens the file, and returns what the receivers were sent before this start. A missing file counts as empty; one
    /// that cannot be read is set aside.
    pub fn open(state: &Path) -> (Self, SentAlerts) {
        let mut store = Self { path: state.join(FILE), may_write: true };
        let read = match std::fs::metadata(&store.path) {
            Ok(file) if file.len() > FILE_BYTES_MAX => Err("it is too large".to_owned()),
            Ok(_) => std::fs::read(&store.path).map_err(|error| error.to_string()).and_then(|text| parse(&text)),
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(SentAlerts::new()),
            Err(error) => Err(error.to_string()),
        };
        let told = read.unwrap_or_else(|reason| {
            store.set_aside(&reason);
            SentAlerts::new()
        });
        (store, told)
    }

    fn set_aside(&mut self, reason: &str) {
        let file = self.path.display();
        match durable::set_aside(&self.path) {
            Ok(aside) => {
                let aside = aside.display();
                tracing::warn!(%file, reason, %aside, "the file cannot be read and is set aside: lasting alerts are sent again");
            }
            Err(error) => {
                let what = "the file can neither be read nor set aside: sent alerts are not stored, and each start sends them again";
                tracing::warn!(%file, reason, %error, "{what}");
                self.may_write = false;
            }
        }
    }

    /// Writes what the receivers were sent. Blocks on the disk.
    pub fn write(&self, told: &SentAlerts) {
        if !self.may_write {
            return;
        }
        // Only texts and numbers, so this does not fail.
        let content = serde_json::to_vec(&stored(told)).unwrap_or_default();
        if let Err(error) = durable::replace_private(&self.path, &content) {
            let file = self.path.display();
            tracing::warn!(%file, %error, "sent alerts cannot be stored: the next start may send them again");
        }
    }
}

fn stored(told: &SentAlerts) -> StoredAlerts {
    let of_check = |(check, told): (&String, &SentAlert)| {
        let severity = if told.severity == FindingStatus::Fail { StoredSeverity::Fail } else { StoredSeverity::Warn };
        (check.clone(), StoredSentAlert { severity, since_ms: told.since_ms, at_ms: told.at_ms })
    };
    let receivers = told.iter().map(|(key, checks)| (key.clone(), checks.iter().map(of_check).collect())).collect();
    StoredAlerts { schema: SCHEMA, receivers }
}

fn parse(text: &[u8]) -> Result<SentAlerts, String> {
    // First: a later version may have other fields.
    let StoredSchema { schema } = serde_json::from_slice(text).map_err(|error| error.to_string())?;
    if schema != SCHEMA {
        return Err(format!("its schema is {schema}, and this version of Ledge reads schema {SCHEMA}"));
    }
    let StoredAlerts { receivers, .. } = serde_json::from_slice(text).map_err(|error| error.to_string())?;
    let of_check = |(check, stored): (String, StoredSentAlert)| {
        let severity = match stored.severity {
            StoredSeverity::Warn => FindingStatus::Warn,
            StoredSeverity::Fail => FindingStatus::Fail,
        };
        (check, SentAlert { severity, since_ms: stored.since_ms, at_ms: stored.at_ms })
    };
    Ok(receivers.into_iter().map(|(key, checks)| (key, checks.into_iter().map(of_check).collect())).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn all() -> SentAlerts {
        let told = |severity| SentAlert { severity, since_ms: 5, at_ms: 6 };
        let checks = [("state", FindingStatus::Fail), ("cpu", FindingStatus::Warn)]
            .map(|(name, it)| (name.to_owned(), told(it)));
        [("shop webhook 0123abcd".to_owned(), checks.into())].into()
    }

    #[test]
    fn what_is_written_is_read_again() {
        let folder = tempfile::tempdir().unwrap();
        let (store, told) = AlertStore::open(folder.path());
        assert_eq!(told, SentAlerts::new());
        store.write(&all());
        assert_eq!(AlertStore::open(folder.path()).1, all());
    }

    #[test]
    fn a_file_of_the_first_schema_is_read() {
        // Must not change: boxes have files of this form.
        let text = br#"{"schema":1,"receivers":{"shop webhook 0123abcd":{
            "state":{"severity":"fail","since_ms":5,"at_ms":6},"cpu":{"severity":"warn","since_ms":5,"at_ms":6}}}}"#;
        assert_eq!(parse(text).unwrap(), all());
    }

    #[test]
    fn a_file_that_cannot_be_read_is_set_aside_whole_and_others_like_it_too() {
        let folder = tempfile::tempdir().unwrap();
        let later = br#"{"schema":2,"receivers":[],"more":true}"#;
        assert!(parse(later).unwrap_err().contains("schema is 2"), "not an unknown field");
        let unreadable = [&later[..], b"{", b"", br#"{"schema":1,"receivers":{},"more":true}"#];
        for text in unreadable {
            durable::replace(&folder.path().join(FILE), text).unwrap();
            let (store, told) = AlertStore::open(folder.path());
            assert_eq!(told, SentAlerts::new());
            store.write(&all());
            assert_eq!(AlertStore::open(folder.path()).1, all());
        }
        for (number, text) in (1..).zip(unreadable) {
            let aside = folder.path().join(format!("alerts.json.set-aside-{number}"));
            assert_eq!(std::fs::read(aside).unwrap(), text);
        }
    }

    #[test]
    fn a_file_that_cannot_be_set_aside_is_not_overwritten() {
        let folder = tempfile::tempdir().unwrap();
        let later = br#"{"schema":2}"#;
        durable::replace(&folder.path().join(FILE), later).unwrap();
        let (mut store, _) = AlertStore::open(folder.path());
        // The file is back, and gone from where it is looked for: a rename that fails.
        durable::rename(&folder.path().join("alerts.json.set-aside-1"), &folder.path().join("kept")).unwrap();
        store.set_aside("a reason");
        durable::rename(&folder.path().join("kept"), &folder.path().join(FILE)).unwrap();
        store.write(&all());
        assert_eq!(std::fs::read(folder.path().join(FILE)).unwrap(), later);
    }
}
