//! The settings that differ from those of the last start. Their keys go into the audit log, their values do not.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use ledge_base::durable;

use crate::config::Config;

/// The file with the settings of the last start. Only the owner may read it.
const LAST_SETTINGS_FILE: &str = "configuration.toml";

/// The difference from the settings of the last start.
pub struct ConfigurationChanges {
    /// The keys, such as `http.listen`.
    pub keys: Vec<String>,
    folder: PathBuf,
    /// All settings of this start, as TOML.
    now: String,
}

impl ConfigurationChanges {
    /// Compares `config` with the settings of the last start, or with the defaults at the first one.
    pub fn find(config: &Config, folder: &Path) -> Self {
        let text = |config: &Config| toml::to_string(config).unwrap_or_default();
        let now = text(config);
        let before =
            std::fs::read_to_string(folder.join(LAST_SETTINGS_FILE)).unwrap_or_else(|_| text(&Config::default()));
        Self { keys: differences(&before, &now), folder: folder.to_owned(), now }
    }

    /// Stores the settings for the next start. Call this once the changes are recorded: until then they are found
    /// again.
    pub fn store(&self) -> std::io::Result<()> {
        if self.keys.is_empty() {
            return Ok(());
        }
        durable::create_folder(&self.folder)?;
        durable::replace_private(&self.folder.join(LAST_SETTINGS_FILE), self.now.as_bytes())
    }
}

fn differences(before: &str, now: &str) -> Vec<String> {
    let (before, now) = (values(before), values(now));
    let keys = before.keys().chain(now.keys().filter(|key| !before.contains_key(*key)));
    let mut changed: Vec<_> = keys.filter(|key| before.get(*key) != now.get(*key)).cloned().collect();
    changed.sort();
    changed
}

/// The value of each key. An array is one value: its elements have no keys.
fn values(text: &str) -> BTreeMap<String, toml::Value> {
    fn walk(prefix: &str, table: toml::Table, values: &mut BTreeMap<String, toml::Value>) {
        for (key, value) in table {
            let key = if prefix.is_empty() { key } else { format!("{prefix}.{key}") };
            match value {
                toml::Value::Table(table) => walk(&key, table, values),
                value => {
                    values.insert(key, value);
                }
            }
        }
    }
    let mut values = BTreeMap::new();
    walk("", text.parse().unwrap_or_default(), &mut values);
    values
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_change_is_reported_by_its_key_until_it_is_stored() {
        let folder = tempfile::tempdir().unwrap();
        let mut config = Config::with_root(folder.path());
        config.control.threads = 2;
        for _ in 0..2 {
            let first = ConfigurationChanges::find(&config, folder.path()).keys;
            assert!(first.contains(&"control.threads".to_owned()), "{first:?}");
            assert!(!first.contains(&"shutdown.grace_ms".to_owned()), "{first:?}");
        }
        ConfigurationChanges::find(&config, folder.path()).store().unwrap();
        assert_eq!(ConfigurationChanges::find(&config, folder.path()).keys, [""; 0]);
        config.shutdown.grace_ms = 1;
        config.egress.residency = vec!["eu".parse().unwrap()];
        assert_eq!(ConfigurationChanges::find(&config, folder.path()).keys, ["egress.residency", "shutdown.grace_ms"]);
    }
}
