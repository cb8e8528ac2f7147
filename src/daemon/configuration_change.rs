//! Which settings differ from those of the last start. Their names go into the audit log, their values stay here.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use ledge_base::durable;

use crate::config::Config;

/// Where the settings of the last start are kept. Only the owner may read it.
const FILE: &str = "configuration.toml";

/// What differs from the last start.
pub struct Changes {
    /// The keys, such as `http.listen`.
    pub keys: Vec<String>,
    folder: PathBuf,
    now: String,
}

impl Changes {
    /// What differs in `config` from what the last start had, or from the defaults where there was none.
    pub fn find(config: &Config, folder: &Path) -> Self {
        let text = |config: &Config| toml::to_string(config).unwrap_or_default();
        let now = text(config);
        let before = std::fs::read_to_string(folder.join(FILE)).unwrap_or_else(|_| text(&Config::default()));
        Self { keys: differences(&before, &now), folder: folder.to_owned(), now }
    }

    /// Keeps them for the next start, once they are recorded: until then they are told again.
    pub fn keep(&self) -> std::io::Result<()> {
        if self.keys.is_empty() {
            return Ok(());
        }
        durable::create_folder(&self.folder)?;
        durable::replace_private(&self.folder.join(FILE), self.now.as_bytes())
    }
}

fn differences(before: &str, now: &str) -> Vec<String> {
    let (before, now) = (values(before), values(now));
    let keys = before.keys().chain(now.keys().filter(|key| !before.contains_key(*key)));
    let mut changed: Vec<_> = keys.filter(|key| before.get(*key) != now.get(*key)).cloned().collect();
    changed.sort();
    changed
}

/// What each key is set to. A list is one value: its places are no names.
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
    let mut found = BTreeMap::new();
    walk("", text.parse().unwrap_or_default(), &mut found);
    found
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_change_is_told_by_its_name_until_it_is_kept() {
        let folder = tempfile::tempdir().unwrap();
        let mut config = Config::with_root(folder.path());
        config.control.threads = 2;
        for _ in 0..2 {
            let first = Changes::find(&config, folder.path()).keys;
            assert!(first.contains(&"control.threads".to_owned()), "{first:?}");
            assert!(!first.contains(&"shutdown.grace_ms".to_owned()), "{first:?}");
        }
        Changes::find(&config, folder.path()).keep().unwrap();
        assert_eq!(Changes::find(&config, folder.path()).keys, [""; 0]);
        config.shutdown.grace_ms = 1;
        config.egress.residency = vec!["eu".parse().unwrap()];
        assert_eq!(Changes::find(&config, folder.path()).keys, ["egress.residency", "shutdown.grace_ms"]);
    }
}
