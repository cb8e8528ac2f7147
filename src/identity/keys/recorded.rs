//! Which changes of the store the audit log has: the command line makes and revokes keys, and the daemon records it. What is
//! known of a key here outlives an older store that takes the place of the newer one: what was revoked stays revoked.

use std::collections::BTreeMap;
use std::io;
use std::path::PathBuf;

use ledge_base::durable;
use ledge_service::audit_event::AuditEvent;
use serde::{Deserialize, Serialize};

use super::{KeyId, KeyRecord, SecretHash};

/// The file in the state folder.
const FILE: &str = "keys.recorded.json";

/// What the audit log has of the store.
#[derive(Debug, Default)]
pub struct Recorded {
    folder: PathBuf,
    keys: BTreeMap<KeyId, Kept>,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
struct Kept {
    /// BLAKE3 of the record as it is in the store, but for its revocation.
    blake3: SecretHash,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    revoked_ms: Option<u64>,
    /// Whether the store has it no more, and that is told.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    is_lost: bool,
}

impl Kept {
    fn of(key: &KeyRecord) -> Self {
        let unrevoked = KeyRecord { revoked_ms: None, ..key.clone() };
        // A key is always JSON. A field that later versions add has to be left out where it says nothing, so that this stays.
        let text = serde_json::to_vec(&unrevoked).unwrap_or_default();
        Self { blake3: SecretHash(blake3::hash(&text)), revoked_ms: key.revoked_ms, is_lost: false }
    }
}

impl Recorded {
    /// As it was kept in `folder`. What is damaged or missing is recorded again: twice is no harm.
    pub fn load(folder: PathBuf) -> Self {
        let text = std::fs::read(folder.join(FILE)).unwrap_or_default();
        Self { folder, keys: serde_json::from_slice(&text).unwrap_or_default() }
    }

    /// The keys that were revoked, and when.
    pub fn revoked(&self) -> BTreeMap<KeyId, u64> {
        self.keys.iter().filter_map(|(id, kept)| Some((*id, kept.revoked_ms?))).collect()
    }

    /// What is to be recorded of `keys`.
    pub fn news(&self, keys: &[KeyRecord]) -> Vec<AuditEvent> {
        let mut news = Vec::new();
        let mut is_damaged = false;
        for key in keys {
            let (before, now) = (self.keys.get(&key.id), Kept::of(key));
            let roles = || key.roles.iter().map(|role| role.as_str().to_owned()).collect();
            let (name, models, expires_ms) = (key.name.clone(), key.models.clone(), key.expires_ms);
            let feature_views = key.access().feature_views().views().map(<[_]>::to_vec);
            match before {
                None => {
                    news.push(AuditEvent::KeyCreated { name, roles: roles(), models, feature_views, expires_ms });
                }
                // Keys are never changed but by hand.
                Some(before) if before.blake3 != now.blake3 => {
                    news.push(AuditEvent::KeyChanged { name, roles: roles(), models, feature_views, expires_ms });
                }
                Some(_) => {}
            }
            let was_revoked = before.is_some_and(|before| before.revoked_ms.is_some());
            match (was_revoked, now.revoked_ms) {
                (false, Some(_)) => news.push(AuditEvent::KeyRevoked { name: key.name.clone() }),
                (true, None) => is_damaged = true,
                _ => {}
            }
        }
        // Nor are they removed.
        let is_lost = |(id, kept): (&KeyId, &Kept)| !kept.is_lost && keys.iter().all(|key| key.id != *id);
        if is_damaged || self.keys.iter().any(is_lost) {
            news.push(AuditEvent::KeyStoreDamaged);
        }
        news
    }

    /// Remembers that all of `keys` is recorded. A key that was revoked is never forgotten.
    pub fn keep(&mut self, keys: &[KeyRecord]) -> io::Result<()> {
        let mut kept: BTreeMap<_, _> = keys.iter().map(|key| (key.id, Kept::of(key))).collect();
        for (id, before) in self.keys.iter().filter(|(_, before)| before.revoked_ms.is_some()) {
            let lost = || Kept { is_lost: true, ..before.clone() };
            kept.entry(*id).or_insert_with(lost).revoked_ms = before.revoked_ms;
        }
        self.keys = kept;
        durable::replace_private(&self.folder.join(FILE), &serde_json::to_vec(&self.keys)?)
    }
}
