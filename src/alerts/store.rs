//! What receivers were told, in one file: a restart neither repeats a message nor forgets that a trouble is over.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use ledge_base::durable;
use ledge_part::check::Status;
use serde::{Deserialize, Serialize};

use crate::tracker::Told;

/// The file in the state folder.
const FILE: &str = "alerts.json";

/// The version of the format of [`Stored`].
const SCHEMA: u32 = 1;

/// The largest file that is read, in bytes: 32 receivers with a thousand checks each have less.
const FILE_BYTES_MAX: u64 = 16 << 20;

/// What was told, by receiver and check.
pub type AllTold = BTreeMap<String, BTreeMap<String, Told>>;

#[derive(Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Stored {
    schema: u32,
    receivers: BTreeMap<String, BTreeMap<String, StoredTold>>,
}

#[derive(Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct StoredTold {
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

/// The file.
#[derive(Debug, Clone)]
pub struct Store(PathBuf);

impl Store {
    pub fn new(state: &Path) -> Self {
        Self(state.join(FILE))
    }

    /// What was told before this start; nothing where the file is missing or damaged.
    pub fn read(&self) -> AllTold {
        let text = match std::fs::metadata(&self.0) {
            Ok(file) if file.len() > FILE_BYTES_MAX => Err("it is too large".to_owned()),
            Ok(_) => std::fs::read(&self.0).map_err(|error| error.to_string()),
            Err(_) => return AllTold::new(),
        };
        text.and_then(|text| parse(&text)).unwrap_or_else(|error| {
            let file = self.0.display();
            tracing::warn!(%file, error, "the file cannot be read: alerts that last may be told again");
            AllTold::new()
        })
    }

    /// Writes what was told. Blocks on the disk.
    pub fn write(&self, told: &AllTold) {
        // Only texts and numbers, so this does not fail.
        let content = serde_json::to_vec(&stored(told)).unwrap_or_default();
        if let Err(error) = durable::replace_private(&self.0, &content) {
            let file = self.0.display();
            tracing::warn!(%file, %error, "what alerts told cannot be stored: the next start may tell it again");
        }
    }
}

fn stored(told: &AllTold) -> Stored {
    let of_check = |(check, told): (&String, &Told)| {
        let severity = if told.severity == Status::Fail { StoredSeverity::Fail } else { StoredSeverity::Warn };
        (check.clone(), StoredTold { severity, since_ms: told.since_ms, at_ms: told.at_ms })
    };
    let receivers = told.iter().map(|(key, checks)| (key.clone(), checks.iter().map(of_check).collect())).collect();
    Stored { schema: SCHEMA, receivers }
}

fn parse(text: &[u8]) -> Result<AllTold, String> {
    let Stored { schema, receivers } = serde_json::from_slice(text).map_err(|error| error.to_string())?;
    if schema != SCHEMA {
        return Err(format!("its schema is {schema}, and this version of Ledge reads schema {SCHEMA}"));
    }
    let of_check = |(check, stored): (String, StoredTold)| {
        let severity = match stored.severity {
            StoredSeverity::Warn => Status::Warn,
            StoredSeverity::Fail => Status::Fail,
        };
        (check, Told { severity, since_ms: stored.since_ms, at_ms: stored.at_ms })
    };
    Ok(receivers.into_iter().map(|(key, checks)| (key, checks.into_iter().map(of_check).collect())).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_written_is_read_again_and_a_damaged_file_is_as_none() {
        let folder = tempfile::tempdir().unwrap();
        let store = Store::new(folder.path());
        assert_eq!(store.read(), AllTold::new());
        let told = |severity| Told { severity, since_ms: 5, at_ms: 6 };
        let checks = [("state", Status::Fail), ("cpu", Status::Warn)].map(|(name, it)| (name.to_owned(), told(it)));
        let all: AllTold = [("shop webhook".to_owned(), checks.into())].into();
        store.write(&all);
        assert_eq!(store.read(), all);
        for damage in [&b"{"[..], b"{\"schema\": 2, \"receivers\": {}}", b""] {
            durable::replace(&folder.path().join(FILE), damage).unwrap();
            assert_eq!(store.read(), AllTold::new());
        }
    }
}
