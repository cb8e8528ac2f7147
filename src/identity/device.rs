//! The names of this box, of its group and of its fleet.
//!
//! The name is never the host name: boxes installed from one image would share it.

use std::fs::File;
use std::io::{self, Read};
use std::path::{Path, PathBuf};

use ledge_base::durable;
use ledge_base::names::{DeviceName, InvalidName};
use ledge_base::toml_check::{empty_if_none, none_if_empty};
use serde::{Deserialize, Serialize};

/// The file in the state folder that holds the name made on this box.
const FILE: &str = "device-id";

/// The section `[device]` of the configuration. An empty text is the same as none.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct DeviceConfig {
    /// The name of this box; `None` is the one made once on this box.
    #[serde(deserialize_with = "none_if_empty", serialize_with = "empty_if_none")]
    pub id: Option<DeviceName>,
    /// The group of boxes that share the work of one queue.
    #[serde(deserialize_with = "none_if_empty", serialize_with = "empty_if_none")]
    pub group: Option<DeviceName>,
    /// The fleet whose rollouts this box follows.
    #[serde(deserialize_with = "none_if_empty", serialize_with = "empty_if_none")]
    pub fleet: Option<DeviceName>,
}

/// The identity of this box.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DeviceIdentity {
    /// The name of this box.
    pub id: DeviceName,
    /// The group of boxes that share the work of one queue.
    pub group: Option<DeviceName>,
    /// The fleet whose rollouts this box follows.
    pub fleet: Option<DeviceName>,
}

/// The reason why the identity of this box cannot be determined.
#[derive(Debug, thiserror::Error)]
pub enum DeviceError {
    #[error("the device id in {} cannot be read", path.display())]
    Unreadable { path: PathBuf, source: io::Error },
    /// The file does not contain a name. It is not replaced, because with a new name the platform would treat this box
    /// as another one.
    #[error("{} holds no device id: restore it, write the box's name into it, or remove it to get a new name", path.display())]
    Damaged { path: PathBuf, source: InvalidName },
    #[error("a new device id cannot be written to {}", path.display())]
    Unwritable { path: PathBuf, source: io::Error },
}

/// The identity of this box: the configured name, else the one in `state`, else a new random one that is stored there.
///
/// When this returns, the name survives a power cut.
pub fn load_or_create(state: &Path, config: &DeviceConfig) -> Result<DeviceIdentity, DeviceError> {
    let id = match &config.id {
        Some(id) => id.clone(),
        None => stored_or_new(state)?,
    };
    Ok(DeviceIdentity { id, group: config.group.clone(), fleet: config.fleet.clone() })
}

/// Reads the identity without changing anything; `None` when no name was made yet.
pub fn load(state: &Path, config: &DeviceConfig) -> Result<Option<DeviceIdentity>, DeviceError> {
    let id = match &config.id {
        Some(id) => Some(id.clone()),
        None => stored(&state.join(FILE))?,
    };
    Ok(id.map(|id| DeviceIdentity { id, group: config.group.clone(), fleet: config.fleet.clone() }))
}

fn stored_or_new(state: &Path) -> Result<DeviceName, DeviceError> {
    let path = state.join(FILE);
    match stored(&path)? {
        Some(id) => Ok(id),
        None => create(state, &path).map_err(|source| DeviceError::Unwritable { path, source }),
    }
}

fn stored(path: &Path) -> Result<Option<DeviceName>, DeviceError> {
    let mut text = Vec::new();
    // A name has at most 128 bytes; a longer file is damaged and need not be read whole.
    match File::open(path).and_then(|file| file.take(1024).read_to_end(&mut text)) {
        Ok(_) => match String::from_utf8_lossy(&text).trim_end().parse() {
            Ok(id) => Ok(Some(id)),
            Err(source) => Err(DeviceError::Damaged { path: path.to_owned(), source }),
        },
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
        Err(source) => Err(DeviceError::Unreadable { path: path.to_owned(), source }),
    }
}

fn create(state: &Path, path: &Path) -> io::Result<DeviceName> {
    let mut random = [0u8; 16];
    getrandom::fill(&mut random)?;
    let id: DeviceName = format!("ledge-{}", hex::encode(random)).parse().map_err(io::Error::other)?;
    std::fs::create_dir_all(state)?;
    durable::replace(path, format!("{id}\n").as_bytes())?;
    Ok(id)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn none() -> DeviceConfig {
        DeviceConfig::default()
    }

    #[test]
    fn a_box_keeps_the_random_name_it_made_once() {
        let folder = tempfile::tempdir().unwrap();
        let state = folder.path().join("state");
        assert_eq!(load(&state, &none()).unwrap(), None);
        assert!(!state.exists(), "looking leaves nothing behind");
        let first = load_or_create(&state, &none()).unwrap();
        assert_eq!(load(&state, &none()).unwrap().as_ref(), Some(&first));
        assert_eq!(load_or_create(&state, &none()).unwrap(), first);
        assert_eq!(first.id.as_str().len(), "ledge-".len() + 32);
        assert_ne!(load_or_create(&folder.path().join("other"), &none()).unwrap(), first);
    }

    #[test]
    fn a_configured_name_wins_and_writes_nothing() {
        let folder = tempfile::tempdir().unwrap();
        let config = DeviceConfig { id: "till-7".parse().ok(), group: "shop".parse().ok(), fleet: None };
        let identity = load_or_create(folder.path(), &config).unwrap();
        assert_eq!((identity.id.as_str(), identity.group), ("till-7", config.group));
        assert_eq!(std::fs::read_dir(folder.path()).unwrap().count(), 0);
    }

    #[test]
    #[expect(clippy::disallowed_methods, reason = "the test makes the damage")]
    fn a_damaged_name_is_an_error_and_stays_as_it_is() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join(FILE);
        for damage in [&b""[..], b"\n", b"two\nlines", b"a/b", b"\0\0\0\0", b"\xff\xfe", &[b'x'; 2000]] {
            std::fs::write(&path, damage).unwrap();
            let refused = load_or_create(folder.path(), &none());
            assert!(matches!(refused, Err(DeviceError::Damaged { .. })), "{damage:?}: {refused:?}");
            assert_eq!(std::fs::read(&path).unwrap(), damage);
        }
    }

    #[test]
    fn an_unreadable_name_is_an_error() {
        let folder = tempfile::tempdir().unwrap();
        std::fs::create_dir(folder.path().join(FILE)).unwrap();
        assert!(matches!(load_or_create(folder.path(), &none()), Err(DeviceError::Unreadable { .. })));
        let under_a_file = tempfile::NamedTempFile::new().unwrap();
        assert!(load_or_create(under_a_file.path(), &none()).is_err());
    }
}
