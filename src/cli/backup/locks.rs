//! The locks of the stores, which a running daemon has.

use std::fs::{File, TryLockError};
use std::io::ErrorKind;

use anyhow::{Context as _, bail};

use crate::config::Config;

/// The locks of all stores: no daemon writes while this exists.
#[derive(Debug)]
pub struct StoreLocks(#[expect(dead_code, reason = "a lock lasts as long as its file is open")] Vec<File>);

impl StoreLocks {
    /// Takes the locks; `None` while a daemon has one.
    pub fn take(config: &Config) -> anyhow::Result<Option<Self>> {
        let mut locks = Vec::new();
        for folder in [&config.audit.path, &config.features.path] {
            let path = folder.join("lock");
            let file = match File::open(&path) {
                // No daemon was here yet.
                Err(error) if error.kind() == ErrorKind::NotFound => continue,
                file => file.with_context(|| path.display().to_string())?,
            };
            match file.try_lock() {
                Ok(()) => locks.push(file),
                Err(TryLockError::WouldBlock) => return Ok(None),
                Err(TryLockError::Error(error)) => bail!("{}: {error}", path.display()),
            }
        }
        Ok(Some(Self(locks)))
    }
}
