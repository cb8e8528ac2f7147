//! Lists, creates and revokes keys for a caller who may administer the box. A change is recorded under that caller, and
//! is in effect before the answer.

use std::path::Path;
use std::sync::atomic::Ordering;
use std::time::Duration;

use ledge_base::clock;
use ledge_base::names::KeyName;
use ledge_base::principal::Principal;
use ledge_service::audit_event::AuditEvent;
use ledge_service::off_thread::blocking;

use super::{Authenticator, Caller};
use crate::api_key::ApiKey;
use crate::keys::{self, ApiKeyDocument, ApiKeyRecord, ApiKeyStore, ApiKeysError, NewApiKey};

/// The time that a change waits for those before it. Each ends when its record is durable, so a longer wait means that
/// the audit log stands still.
const TURN_TIMEOUT: Duration = Duration::from_secs(10);

/// The time that a change waits for its own record. A disk that takes longer counts as failed.
const RECORD_TIMEOUT: Duration = Duration::from_secs(20);

/// The reason why a change was not made.
#[derive(Debug, thiserror::Error)]
pub enum ApiKeyChangeError {
    #[error(transparent)]
    Store(#[from] ApiKeysError),
    /// The caller's own key was revoked, or expired, after its request had begun.
    #[error("nothing was changed: your own key was revoked or has expired since you sent the request")]
    CallerEnded,
    #[error(
        "nothing was changed, because the audit log does not get on with earlier changes: try again, or use \
         `ledge keys` on the box"
    )]
    NoTurn,
    /// The key was revoked, because the audit log does not show who created it.
    #[error(
        "the audit log did not take the record of the key '{name}', so the key was revoked at once: see \
         GET /audit/status, then create a key with another name"
    )]
    Unrecorded { name: KeyName },
    #[error("the key '{name}' is revoked, but this is not recorded yet: see GET /audit/status")]
    RevokedUnrecorded { name: KeyName },
}

/// A change that is to be recorded.
pub(super) struct ApiKeyChange {
    pub by: Principal,
    action: &'static str,
    name: KeyName,
}

impl ApiKeyChange {
    /// Returns `true` for the event of this change.
    pub fn is(&self, event: &AuditEvent) -> bool {
        let (AuditEvent::KeyCreated { name, .. } | AuditEvent::KeyRevoked { name }) = event else { return false };
        *name == self.name && event.action() == self.action
    }
}

/// All keys, at a time.
#[derive(Debug, Clone)]
pub struct ApiKeyList {
    /// In milliseconds since the Unix epoch.
    pub at_ms: u64,
    pub keys: Vec<ListedApiKey>,
    /// Set when more than half of the room for keys is used.
    pub is_half_full: bool,
}

/// A key in the list.
#[derive(Debug, Clone)]
pub struct ListedApiKey {
    pub record: ApiKeyRecord,
    /// The last call with it since the start, in milliseconds since the Unix epoch.
    pub last_used_ms: Option<u64>,
}

impl ListedApiKey {
    pub fn document(&self, now_ms: u64) -> ApiKeyDocument {
        ApiKeyDocument::new(&self.record, now_ms)
    }
}

impl Authenticator {
    /// All keys, revoked ones included, in the order of their creation.
    pub async fn keys(&self) -> Result<ApiKeyList, ApiKeysError> {
        let own = self.clone();
        blocking(move || {
            let store = own.store();
            let records = store.list()?;
            let loaded = own.shared.keys.load();
            let last_used = |record: &ApiKeyRecord| {
                let at = loaded.known.as_ref()?.get(&record.id)?.last_used_ms.load(Ordering::Relaxed);
                (at > 0).then_some(at)
            };
            let listed = |record| ListedApiKey { last_used_ms: last_used(&record), record };
            let keys = records.into_iter().map(listed).collect();
            Ok(ApiKeyList { at_ms: clock::FLOOR.now_millis(), keys, is_half_full: store.is_half_full() })
        })
        .await
    }

    /// Creates a key for `by`. When this returns, the key works, and its creation is recorded.
    pub async fn create_key(&self, by: &Caller, new: NewApiKey) -> Result<(ApiKey, ApiKeyRecord), ApiKeyChangeError> {
        let create = move |store: &ApiKeyStore, now_ms| store.create(&new, now_ms).map(|(key, record)| (record, key));
        let (record, key, is_recorded) = self.change(by, "key_created", create).await?;
        if !is_recorded {
            let (own, id) = (self.clone(), record.id.to_string());
            blocking(move || {
                let revoked = own.store().revoke(&id, clock::FLOOR.now_millis());
                own.refresh();
                revoked
            })
            .await?;
            return Err(ApiKeyChangeError::Unrecorded { name: record.name });
        }
        Ok((key, record))
    }

    /// Revokes the key with a name or an id for `by`. When this returns, the key is refused, and this is recorded. A
    /// key that is revoked already stays as it is.
    pub async fn revoke_key(&self, by: &Caller, what: String) -> Result<ApiKeyRecord, ApiKeyChangeError> {
        let revoke = move |store: &ApiKeyStore, now_ms| store.revoke(&what, now_ms).map(|record| (record, ()));
        let (record, (), is_recorded) = self.change(by, "key_revoked", revoke).await?;
        if is_recorded { Ok(record) } else { Err(ApiKeyChangeError::RevokedUnrecorded { name: record.name }) }
    }

    /// Makes a change of the store, which says the key that it is about. Returns `true` with it if it is recorded.
    async fn change<T: Send + 'static>(
        &self,
        by: &Caller,
        action: &'static str,
        change: impl FnOnce(&ApiKeyStore, u64) -> Result<(ApiKeyRecord, T), ApiKeysError> + Send + 'static,
    ) -> Result<(ApiKeyRecord, T, bool), ApiKeyChangeError> {
        let turn = tokio::time::timeout(TURN_TIMEOUT, self.shared.recorded.clone().lock_owned());
        let recorded = turn.await.map_err(|_| ApiKeyChangeError::NoTurn)?;

        let (own, caller) = (self.clone(), by.clone());
        let (record, done, keys) = blocking(move || {
            // A revocation by the command line counts even if it is younger than the last check.
            own.refresh();
            if !own.is_current(&caller) {
                return Err(ApiKeyChangeError::CallerEnded);
            }
            let (record, done) = change(&own.store(), clock::FLOOR.now_millis())?;
            own.refresh();
            Ok((record, done, keys::read(&own.shared.path).ok()))
        })
        .await?;

        let change = ApiKeyChange { by: by.principal.clone(), action, name: record.name.clone() };
        let is_recorded = match keys {
            Some(keys) => {
                let recording = self.record_news(recorded, keys, Some(&change));
                tokio::time::timeout(RECORD_TIMEOUT, recording).await.unwrap_or(false)
            }
            None => false,
        };
        Ok((record, done, is_recorded))
    }

    fn store(&self) -> ApiKeyStore {
        ApiKeyStore::new(self.shared.path.parent().unwrap_or(Path::new(".")))
    }
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc::{Receiver, channel};
    use std::time::Instant;

    use ledge_base::token_bucket::CallRate;
    use ledge_service::audit_event::sink::AuditItem;
    use ledge_service::audit_event::{AuditQueue, AuditSink};

    use super::super::{CredentialError, Peer};
    use super::*;
    use crate::access::Role;
    use crate::access_config::AccessConfig;

    struct AdministrationBox {
        folder: tempfile::TempDir,
        authenticator: Authenticator,
    }

    impl AdministrationBox {
        fn new() -> (Self, AuditQueue) {
            let folder = tempfile::tempdir().unwrap();
            let (sink, queue) = AuditSink::channel();
            let authenticator = Authenticator::open(&AccessConfig::default(), folder.path(), sink);
            (Self { folder, authenticator }, queue)
        }

        /// A box with an audit log that takes every event, and the events: `CALLER ACTION`.
        fn recording() -> (Self, Receiver<String>) {
            let (it, mut queue) = Self::new();
            let (told, events) = channel();
            std::thread::spawn(move || {
                loop {
                    queue.wait(Instant::now() + Duration::from_secs(1), false);
                    let batch = queue.take();
                    for entry in batch.entries {
                        let AuditItem::Event(principal, event) = entry.what else { continue };
                        if told.send(format!("{principal} {}", event.action())).is_err() {
                            return;
                        }
                    }
                    batch.flushes.into_iter().for_each(|flush| _ = flush.send(()));
                }
            });
            (it, events)
        }

        fn store(&self) -> ApiKeyStore {
            ApiKeyStore::new(self.folder.path())
        }

        fn by_key(&self, key: &ApiKey) -> Result<Caller, CredentialError> {
            self.authenticator.caller(&peer(), Some(key.reveal().as_bytes()))
        }
    }

    fn peer() -> Peer {
        Peer::address([10, 0, 0, 7].into())
    }

    fn new(name: &str) -> NewApiKey {
        NewApiKey {
            name: name.parse().unwrap(),
            roles: vec![Role::Admin],
            models: None,
            feature_views: None,
            expires_ms: None,
            max_rate: CallRate::default(),
            max_concurrent: 0,
        }
    }

    /// The records about keys.
    fn all(events: &Receiver<String>) -> Vec<String> {
        events.try_iter().filter(|event| event.contains(" key_")).collect()
    }

    #[tokio::test]
    async fn a_change_is_known_and_recorded_as_its_callers_before_the_answer() {
        let (it, events) = AdministrationBox::recording();
        let local = it.authenticator.caller(&peer(), None).unwrap();
        let (admin, _) = it.authenticator.create_key(&local, new("desk")).await.unwrap();
        assert_eq!(all(&events), ["ip:10.0.0.7 key_created"]);
        let desk = it.by_key(&admin).unwrap();
        let (till, record) = it.authenticator.create_key(&desk, new("till")).await.unwrap();
        // This change by the command line is not recorded yet.
        it.store().create(&new("erp"), 1).unwrap();
        let revoked = it.authenticator.revoke_key(&desk, record.id.to_string()).await.unwrap();
        assert!(revoked.revoked_ms.is_some());
        assert_eq!(it.by_key(&till).unwrap_err(), CredentialError::Revoked);
        assert_eq!(all(&events), ["key:desk key_created", "local key_created", "key:desk key_revoked"]);

        let again = it.authenticator.revoke_key(&desk, "till".to_owned()).await.unwrap();
        assert_eq!((again, all(&events)), (revoked, vec![]));
        let unknown = it.authenticator.revoke_key(&desk, "nobody".to_owned()).await.unwrap_err();
        assert!(matches!(unknown, ApiKeyChangeError::Store(ApiKeysError::Unknown { .. })));
    }

    #[tokio::test]
    async fn nobody_changes_keys_whose_own_key_has_ended_meanwhile() {
        let (it, _events) = AdministrationBox::recording();
        let (key, _) = it.store().create(&new("desk"), 1).unwrap();
        it.authenticator.refresh();
        let desk = it.by_key(&key).unwrap();
        // By the command line: the authenticator has not looked yet.
        it.store().revoke("desk", 2).unwrap();
        let refused = it.authenticator.create_key(&desk, new("back-door")).await.unwrap_err();
        assert!(matches!(refused, ApiKeyChangeError::CallerEnded));
        let refused = it.authenticator.revoke_key(&desk, "desk".to_owned()).await.unwrap_err();
        assert!(matches!(refused, ApiKeyChangeError::CallerEnded));
        assert_eq!(it.store().list().unwrap().len(), 1);
    }

    #[tokio::test]
    async fn the_own_key_can_be_revoked_and_ends_with_the_answer() {
        let (it, _events) = AdministrationBox::recording();
        let (key, _) = it.store().create(&new("desk"), 1).unwrap();
        it.authenticator.refresh();
        let desk = it.by_key(&key).unwrap();
        it.authenticator.revoke_key(&desk, "desk".to_owned()).await.unwrap();
        assert_eq!(it.by_key(&key).unwrap_err(), CredentialError::Revoked);
    }

    #[tokio::test]
    async fn a_key_that_the_audit_log_did_not_take_is_revoked_at_once() {
        let (it, queue) = AdministrationBox::new();
        let local = it.authenticator.caller(&peer(), None).unwrap();
        drop(queue);
        let refused = it.authenticator.create_key(&local, new("till")).await.unwrap_err();
        assert!(matches!(refused, ApiKeyChangeError::Unrecorded { .. }), "{refused}");
        assert!(it.store().list().unwrap()[0].revoked_ms.is_some());
        // The next start records the changes that this one could not.
        assert_eq!(keys::RecordedApiKeys::load(it.folder.path().to_owned()).news(&it.store().list().unwrap()).len(), 2);
    }

    #[tokio::test]
    async fn of_two_creations_of_a_name_at_once_one_succeeds() {
        let (it, events) = AdministrationBox::recording();
        let local = it.authenticator.caller(&peer(), None).unwrap();
        let create = || it.authenticator.create_key(&local, new("till"));
        let (one, other) = tokio::join!(create(), create());
        assert!(one.is_ok() != other.is_ok());
        let refused = one.err().or(other.err()).unwrap();
        assert!(matches!(refused, ApiKeyChangeError::Store(ApiKeysError::NameTaken { .. })));
        assert_eq!(all(&events), ["ip:10.0.0.7 key_created"]);
    }

    #[tokio::test]
    async fn a_list_has_the_last_use_of_each_key_over_changes_of_the_store() {
        let (it, _events) = AdministrationBox::recording();
        let (key, _) = it.store().create(&new("desk"), 1).unwrap();
        it.authenticator.refresh();
        let used = |list: ApiKeyList| list.keys.iter().map(|key| key.last_used_ms.is_some()).collect::<Vec<_>>();
        assert_eq!(used(it.authenticator.keys().await.unwrap()), [false]);
        it.by_key(&key).unwrap();
        it.store().create(&new("till"), 1).unwrap();
        it.authenticator.refresh();
        assert_eq!(used(it.authenticator.keys().await.unwrap()), [true, false]);
    }
}
