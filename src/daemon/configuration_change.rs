//! The settings that differ from those of the last start. Their keys go into the audit log, their values do not.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use ledge_base::durable;
use ledge_mqtt::bindings::{BindingConfig, Bindings};
use ledge_mqtt::gateway::FormerBindings;
use serde::Deserialize;

use crate::config::Config;

/// The file with the settings of the last start. Only the owner may read it.
const LAST_SETTINGS_FILE: &str = "configuration.toml";

/// The difference from the settings of the last start.
pub struct ConfigurationChanges {
    pub keys: Vec<String>,
    folder: PathBuf,
    /// All settings of the last start, as TOML.
    before: String,
    /// All settings of this start, as TOML.
    now: String,
}

/// The settings of the last start that decided about sessions with the broker. A mistake in them counts as none.
#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct FormerSettings {
    device: FormerDevice,
    mqtt: FormerMqtt,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct FormerDevice {
    group: String,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct FormerMqtt {
    bindings: Vec<toml::Value>,
}

impl ConfigurationChanges {
    /// Compares `config` with the settings of the last start, or with the defaults at the first one.
    pub fn find(config: &Config, folder: &Path) -> Self {
        let text = |config: &Config| toml::to_string(config).unwrap_or_default();
        let now = text(config);
        let before =
            std::fs::read_to_string(folder.join(LAST_SETTINGS_FILE)).unwrap_or_else(|_| text(&Config::default()));
        Self { keys: differences(&before, &now), folder: folder.to_owned(), before, now }
    }

    /// The bindings of the last start, of which the broker may still have subscriptions.
    pub fn former_bindings(&self) -> FormerBindings {
        let FormerSettings { device, mqtt } = toml::from_str(&self.before).unwrap_or_default();
        let configs = mqtt.bindings.into_iter().filter_map(|value| value.try_into::<BindingConfig>().ok());
        let bindings = Bindings::new(&configs.collect::<Vec<_>>());
        FormerBindings { bindings, group: device.group.parse().ok() }
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
    fn the_bindings_of_the_last_start_are_known_until_those_of_this_one_are_stored() {
        let folder = tempfile::tempdir().unwrap();
        let filters = |group: &str, text: &str| {
            let mut config = Config::with_root(folder.path());
            config.device.group = group.parse().ok();
            config.mqtt = toml::from_str(text).unwrap();
            let changes = ConfigurationChanges::find(&config, folder.path());
            let FormerBindings { bindings, group } = changes.former_bindings();
            changes.store().unwrap();
            bindings.iter().map(|binding| binding.subscription(group.as_ref()).to_string()).collect::<Vec<_>>()
        };
        let binding = |more: &str| format!("[[bindings]]\ntopic = 'tele/#'\nfeature_view = 'v'\n{more}");
        assert_eq!(filters("shop", &binding("shared = true\nvalue = 'x'\n")), [""; 0]);
        assert_eq!(filters("", &binding("")), ["$share/shop/tele/#"]);
        assert_eq!(filters("", ""), ["tele/#"]);
        assert_eq!(filters("", ""), [""; 0]);
    }

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
