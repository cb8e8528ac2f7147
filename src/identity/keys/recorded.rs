//! The changes of the store that the audit log has: the command line creates and revokes keys, and the daemon records
//! it. These records survive when an older store replaces a newer one: a revoked key stays revoked.

use std::collections::BTreeMap;
use std::io;
use std::path::PathBuf;

use ledge_base::durable;
use ledge_service::audit_event::AuditEvent;
use serde::{Deserialize, Serialize};

use super::{ApiKeyId, ApiKeyRecord, SecretHash};

/// The file in the state folder.
const FILE: &str = "keys.recorded.json";

/// The keys as the audit log has them.
#[derive(Debug, Default)]
pub struct RecordedApiKeys {
    folder: PathBuf,
    keys: BTreeMap<ApiKeyId, RecordedApiKey>,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
struct RecordedApiKey {
    /// BLAKE3 of the record in the store, without its revocation.
    blake3: SecretHash,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    revoked_ms: Option<u64>,
    /// True if the store does not have it any more, and that is recorded.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    is_lost: bool,
}

impl RecordedApiKey {
    fn of(key: &ApiKeyRecord) -> Self {
        let unrevoked = ApiKeyRecord { revoked_ms: None, ..key.clone() };
        // A key always serializes. Fields that later versions add must be left out when empty, so that this hash stays
        // the same.
        let text = serde_json::to_vec(&unrevoked).unwrap_or_default();
        Self { blake3: SecretHash(blake3::hash(&text)), revoked_ms: key.revoked_ms, is_lost: false }
    }
}

impl RecordedApiKeys {
    /// Reads the list in `folder`. If it is damaged or missing, everything is recorded again: twice does no harm.
    pub fn load(folder: PathBuf) -> Self {
        let text = std::fs::read(folder.join(FILE)).unwrap_or_default();
        Self { folder, keys: serde_json::from_slice(&text).unwrap_or_default() }
    }

    /// The revoked keys, each with the time of its revocation.
    pub fn revoked(&self) -> BTreeMap<ApiKeyId, u64> {
        self.keys.iter().filter_map(|(id, kept)| Some((*id, kept.revoked_ms?))).collect()
    }

    /// The events that are to be recorded for `keys`.
    pub fn news(&self, keys: &[ApiKeyRecord]) -> Vec<AuditEvent> {
        let mut news = Vec::new();
        let mut is_damaged = false;
        for key in keys {
            let (before, now) = (self.keys.get(&key.id), RecordedApiKey::of(key));
            let roles = || key.roles.iter().map(|role| role.as_str().to_owned()).collect();
            let (name, models, expires_ms) = (key.name.clone(), key.models.clone(), key.expires_ms);
            let feature_views = key.access().feature_views().views().map(<[_]>::to_vec);
            match before {
                None => {
                    news.push(AuditEvent::KeyCreated { name, roles: roles(), models, feature_views, expires_ms });
                }
                // The command line never changes a key, so somebody edited the file.
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

        // The command line never removes a key either.
        let is_lost = |(id, kept): (&ApiKeyId, &RecordedApiKey)| !kept.is_lost && keys.iter().all(|key| key.id != *id);
        if is_damaged || self.keys.iter().any(is_lost) {
            news.push(AuditEvent::KeyStoreDamaged);
        }
        news
    }

    /// Stores that all of `keys` is recorded. A revoked key is never dropped.
    pub fn keep(&mut self, keys: &[ApiKeyRecord]) -> io::Result<()> {
        let mut kept: BTreeMap<_, _> = keys.iter().map(|key| (key.id, RecordedApiKey::of(key))).collect();
        for (id, before) in self.keys.iter().filter(|(_, before)| before.revoked_ms.is_some()) {
            let lost = || RecordedApiKey { is_lost: true, ..before.clone() };
            kept.entry(*id).or_insert_with(lost).revoked_ms = before.revoked_ms;
        }
        self.keys = kept;
        durable::replace_private(&self.folder.join(FILE), &serde_json::to_vec(&self.keys)?)
    }
}
