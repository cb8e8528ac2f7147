//! Which changes of the store the audit log has: the command line makes and revokes keys, and the daemon records it.

use std::collections::BTreeMap;
use std::io;
use std::path::PathBuf;

use serde::{Deserialize, Serialize};

use super::{KeyId, KeyRecord};
use crate::audit_event::AuditEvent;
use crate::durable;

/// The file in the state folder.
const FILE: &str = "keys.recorded.json";

/// What the audit log has of the store.
#[derive(Debug, Default)]
pub struct Recorded {
    folder: PathBuf,
    keys: BTreeMap<KeyId, State>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
enum State {
    Created,
    Revoked,
}

impl Recorded {
    /// As it was kept in `folder`. What is damaged or missing is recorded again: twice is no harm.
    pub fn load(folder: PathBuf) -> Self {
        let text = std::fs::read(folder.join(FILE)).unwrap_or_default();
        Self { folder, keys: serde_json::from_slice(&text).unwrap_or_default() }
    }

    /// What is to be recorded of `keys`.
    pub fn news(&self, keys: &[KeyRecord]) -> Vec<AuditEvent> {
        let mut news = Vec::new();
        for key in keys {
            let before = self.keys.get(&key.id);
            if before.is_none() {
                news.push(AuditEvent::KeyCreated {
                    name: key.name.clone(),
                    roles: key.roles.iter().map(|role| role.as_str().to_owned()).collect(),
                    models: key.models.clone(),
                    expires_ms: key.expires_ms,
                });
            }
            if key.revoked_ms.is_some() && before != Some(&State::Revoked) {
                news.push(AuditEvent::KeyRevoked { name: key.name.clone() });
            }
        }
        let is_there = |id: &KeyId| keys.iter().any(|key| key.id == *id);
        if self.keys.keys().any(|id| !is_there(id)) {
            // Keys are never removed but by hand.
            news.push(AuditEvent::KeyStoreDamaged);
        }
        news
    }

    /// Remembers that all of `keys` is recorded.
    pub fn keep(&mut self, keys: &[KeyRecord]) -> io::Result<()> {
        let state = |key: &KeyRecord| if key.revoked_ms.is_some() { State::Revoked } else { State::Created };
        self.keys = keys.iter().map(|key| (key.id, state(key))).collect();
        durable::replace_private(&self.folder.join(FILE), &serde_json::to_vec(&self.keys)?)
    }
}
