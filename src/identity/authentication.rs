//! The identity and access of a caller, by its credential and its connection.
//!
//! Authentication reads no file while a call waits. Without a key it is a comparison of the peer; with one, BLAKE3 of
//! 32 bytes and a look-up. Failed attempts of others never slow down a caller with a valid key.

mod administration;
mod failed_attempts;
mod network;
mod request_limiter;
mod sessions;
mod sign_in;
mod watch;

use std::collections::{BTreeMap, HashMap};
use std::net::IpAddr;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use arc_swap::ArcSwap;
use ledge_base::clock;
use ledge_base::names::ModelName;
use ledge_base::principal::Principal;
use ledge_service::audit_event::AuditSink;
use tokio::sync::Notify;

use super::access::{CallerAccess, Permission};
use super::access_config::AccessConfig;
use super::api_key::{ApiKey, ApiKeyId};
use super::certificate::PeerCertificate;
use super::keys::{self, ApiKeyRecord, ApiKeysError, KeyFileStamp, RecordedApiKeys, SecretHash};
use super::sign_in::SessionId;
pub use administration::{ApiKeyChangeError, ApiKeyList, ListedApiKey};
use failed_attempts::{FailedAttemptSource, FailedAttempts};
pub use network::network;
use request_limiter::RequestLimiter;
pub use request_limiter::{RequestLimitExceeded, RequestPermit};
use sessions::SessionTable;
pub use sessions::{
    BegunSession, CODE_LIFETIME, ListedSession, SESSION_LIFETIME, SessionEnd, SessionHolder, SignInGrant,
};
pub use sign_in::{SignInError, SignInSecret};

/// The other end of a connection, as the transport reports it.
#[derive(Debug, Clone)]
pub enum Peer {
    Address {
        /// The address; the port is left out.
        ip: IpAddr,
        /// The certificate that it presented when the connection was made.
        certificate: Option<Arc<PeerCertificate>>,
    },
    /// An address on a connection that is not encrypted. Only a key gives it access.
    Unencrypted { ip: IpAddr },
    /// A process behind the Unix socket, by its user id (`SO_PEERCRED`).
    User(u32),
}

impl Peer {
    /// A peer over TCP without a certificate.
    pub fn address(ip: IpAddr) -> Self {
        Self::Address { ip: ip.to_canonical(), certificate: None }
    }

    /// The principal of a caller who presents nothing else.
    pub fn principal(&self) -> Principal {
        match self {
            Self::Address { ip, .. } | Self::Unencrypted { ip } => Principal::Peer(*ip),
            Self::User(uid) => Principal::User(*uid),
        }
    }
}

/// The proof of a caller's identity.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum CallerProof {
    /// No proof: it has the access of its transport.
    None,
    User,
    /// A certificate listed in `access.certificates`.
    Certificate,
    /// A certificate that is not listed: it grants nothing more.
    UnlistedCertificate(Arc<PeerCertificate>),
    Key,
    /// A sign-in at the console.
    Session,
}

/// A caller.
#[derive(Debug, Clone)]
pub struct Caller {
    pub principal: Principal,
    pub access: CallerAccess,
    pub proof: CallerProof,
    limiter: Option<Arc<RequestLimiter>>,
    /// The id of its key, which is no secret.
    key: Option<ApiKeyId>,
    session: Option<SessionId>,
}

impl Caller {
    /// Admits a request, unless this caller is at its limits. The request counts as running until the permit is
    /// dropped.
    pub fn enter(&self, now: Instant) -> Result<RequestPermit, RequestLimitExceeded> {
        self.limiter.as_ref().map_or_else(|| Ok(RequestPermit::default()), |limiter| limiter.enter(now))
    }

    /// The id of its key; `None` for a caller without one.
    pub fn key_id(&self) -> Option<ApiKeyId> {
        self.key
    }

    /// The id of its sign-in at the console; `None` for a caller without one.
    pub fn session_id(&self) -> Option<SessionId> {
        self.session
    }

    /// The missing permission or model, if any. One permission of `any` is enough; a `model` must be in scope.
    pub fn lacks(&self, any: &[Permission], model: Option<&ModelName>) -> Option<MissingAccess> {
        if !any.iter().any(|permission| self.access.allows(*permission)) {
            return Some(MissingAccess::Permission);
        }
        let is_in_scope = model.is_none_or(|model| any.iter().any(|one| self.access.allows_model(*one, model)));
        (!is_in_scope).then_some(MissingAccess::Model)
    }
}

/// The reason why a caller's request is refused.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum MissingAccess {
    Permission,
    /// The model is not in its scope.
    Model,
}

/// The reason why a presented API key is refused.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum CredentialError {
    #[error("the API key is malformed: expected ledge_ID_SECRET, as `ledge keys create` printed it")]
    Malformed,
    /// No key has this id, or its secret differs. The answer does not say which.
    #[error("unknown API key")]
    Unknown,
    #[error("the API key has expired: ask for another one")]
    Expired,
    #[error("the API key was revoked: ask for another one")]
    Revoked,
    /// The store cannot be read, so no key can be checked.
    #[error("API keys cannot be checked now: see the log of the service for the reason")]
    Unreadable,
    #[error("the sign-in has ended: sign in again")]
    SessionEnded,
    #[error(
        "unknown sign-in code, or one that was used, or is older than five minutes: `ledge login` on the box makes another"
    )]
    UnknownCode,
    #[error("too many failed attempts with a wrong API key or code: try again in {} s", wait.as_secs() + 1)]
    TooMany {
        /// The time until the next attempt.
        wait: Duration,
    },
}

impl CredentialError {
    /// Its name in the audit log.
    fn cause(&self) -> &'static str {
        match self {
            Self::Malformed => "malformed",
            Self::Unknown => "unknown",
            Self::Expired => "expired",
            Self::Revoked => "revoked",
            Self::Unreadable => "unreadable",
            Self::SessionEnded => "session_ended",
            Self::UnknownCode => "unknown_code",
            Self::TooMany { .. } => "too_many",
        }
    }
}

/// Authenticates callers. Clones share one state.
#[derive(Debug, Clone)]
pub struct Authenticator {
    shared: Arc<AuthenticatorState>,
}

#[derive(Debug)]
struct AuthenticatorState {
    loopback: CallerAccess,
    socket: CallerAccess,
    mqtt: CallerAccess,
    /// The user of this process.
    own_uid: u32,
    users: HashMap<u32, CallerAccess>,
    certificates: HashMap<String, KeyHolder>,
    path: PathBuf,
    keys: ArcSwap<LoadedApiKeys>,
    /// Held while the store is read, so that an older content never replaces a newer one.
    reloading: Mutex<()>,
    /// The keys as the audit log has them. Changes are recorded under the lock.
    recorded: Arc<tokio::sync::Mutex<RecordedApiKeys>>,
    /// Notifies the task that records changes of a changed store.
    changed: Notify,
    failures: Mutex<FailedAttempts>,
    sessions: Mutex<SessionTable>,
    audit: AuditSink,
}

#[derive(Debug)]
struct KeyHolder {
    principal: Principal,
    access: CallerAccess,
    limiter: Option<Arc<RequestLimiter>>,
}

/// The file that was read last.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum KeyFileState {
    /// It could not be read, and is read again even if it does not change.
    Unread,
    /// The file with this stamp; `None` when there was no file.
    File(Option<KeyFileStamp>),
}

/// The content of the store when it was read last.
#[derive(Debug)]
struct LoadedApiKeys {
    seen: KeyFileState,
    /// `None` when it cannot be read.
    known: Option<HashMap<ApiKeyId, LoadedApiKey>>,
    /// The revoked keys with their times, so that an older store which replaces a newer one makes none valid again.
    revoked: BTreeMap<ApiKeyId, u64>,
}

#[derive(Debug)]
struct LoadedApiKey {
    record: ApiKeyRecord,
    holder: KeyHolder,
    /// The time of the last call with it, in milliseconds since the Unix epoch; 0 without a call since the start.
    last_used_ms: Arc<AtomicU64>,
}

impl Authenticator {
    /// An authenticator from the section `[access]` and the store of API keys in `state`. An unreadable store is
    /// logged, and every key is refused.
    pub fn open(config: &AccessConfig, state: &Path, audit: AuditSink) -> Self {
        let now = Instant::now();
        let access = |roles: &[_], models: &Option<_>, views: &Option<_>| {
            CallerAccess::new(roles.iter().copied(), models.clone(), views.clone())
        };
        let listed = |entry: &super::access_config::CertificateAccess| {
            let name = entry.name.as_str();
            let owner = format!("the certificate '{name}' (access.certificates)");
            let listed = KeyHolder {
                principal: Principal::Certificate(name.into()),
                access: access(&entry.roles, &entry.models, &entry.feature_views),
                limiter: RequestLimiter::new(owner, entry.max_rate, entry.max_concurrent, now),
            };
            (name.to_owned(), listed)
        };
        let user = |entry: &super::access_config::UserAccess| {
            Some((entry.user.uid()?, access(&entry.roles, &entry.models, &entry.feature_views)))
        };

        let recorded = RecordedApiKeys::load(state.to_owned());
        let revoked = recorded.revoked();
        let authenticator = Self {
            shared: Arc::new(AuthenticatorState {
                loopback: access(&config.loopback, &None, &None),
                socket: access(&config.socket, &None, &None),
                mqtt: config.mqtt.access(),
                own_uid: rustix::process::geteuid().as_raw(),
                users: config.users.iter().filter_map(user).collect(),
                certificates: config.certificates.iter().map(listed).collect(),
                path: state.join(keys::FILE),
                keys: ArcSwap::from_pointee(LoadedApiKeys {
                    seen: KeyFileState::Unread,
                    known: Some(HashMap::new()),
                    revoked,
                }),
                reloading: Mutex::default(),
                recorded: Arc::new(tokio::sync::Mutex::new(recorded)),
                changed: Notify::new(),
                failures: Mutex::default(),
                sessions: Mutex::new(SessionTable::new(Duration::from_mins(config.session_idle_minutes.into()))),
                audit,
            }),
        };
        authenticator.reload();
        authenticator
    }

    /// Authenticates a caller over HTTP. `key` is the presented API key.
    pub fn caller(&self, peer: &Peer, key: Option<&[u8]>) -> Result<Caller, CredentialError> {
        let Some(key) = key else { return Ok(self.without_key(peer)) };
        self.by_key(key).map_err(|refused| self.failed_at(peer, refused))
    }

    fn failed_at(&self, peer: &Peer, refused: CredentialError) -> CredentialError {
        let source = match peer {
            Peer::Address { ip, .. } | Peer::Unencrypted { ip } => FailedAttemptSource::network(*ip),
            Peer::User(uid) => FailedAttemptSource::User(*uid),
        };
        self.failed(&peer.principal(), source, refused)
    }

    /// Authenticates the sender of an MQTT message: the holder of `key`, else `sender`.
    pub fn mqtt_caller(&self, sender: Principal, key: Option<&[u8]>) -> Result<Caller, CredentialError> {
        match key {
            None => Ok(anonymous(sender, &self.shared.mqtt)),
            // The broker does not identify its clients to the box.
            Some(key) => self.by_key(key).map_err(|refused| self.failed(&sender, FailedAttemptSource::Broker, refused)),
        }
    }

    fn without_key(&self, peer: &Peer) -> Caller {
        let shared = &*self.shared;
        match peer {
            Peer::User(uid) if *uid == 0 || *uid == shared.own_uid => {
                Caller { proof: CallerProof::User, ..anonymous(peer.principal(), &CallerAccess::everything()) }
            }
            Peer::User(uid) => match shared.users.get(uid) {
                Some(access) => Caller { proof: CallerProof::User, ..anonymous(peer.principal(), access) },
                None => anonymous(peer.principal(), &shared.socket),
            },
            Peer::Unencrypted { .. } => anonymous(peer.principal(), &CallerAccess::default()),
            Peer::Address { ip, certificate } => {
                let mut names = certificate.iter().flat_map(|certificate| &certificate.names);
                if let Some(listed) = names.find_map(|name| shared.certificates.get(name)) {
                    return listed.caller(CallerProof::Certificate);
                }
                let caller = if ip.to_canonical().is_loopback() {
                    anonymous(peer.principal(), &shared.loopback)
                } else {
                    anonymous(peer.principal(), &CallerAccess::default())
                };
                let proof = certificate.clone().map_or(CallerProof::None, CallerProof::UnlistedCertificate);
                Caller { proof, ..caller }
            }
        }
    }

    fn by_key(&self, presented: &[u8]) -> Result<Caller, CredentialError> {
        let key = ApiKey::parse(presented).map_err(|_| CredentialError::Malformed)?;
        let keys = self.shared.keys.load();
        let known = keys.known.as_ref().ok_or(CredentialError::Unreadable)?;
        let hash = SecretHash(key.hash());
        // `blake3::Hash` compares in constant time; the existence of an id is not secret.
        let found = known.get(&key.id()).filter(|known| known.record.blake3 == hash).ok_or(CredentialError::Unknown)?;
        found.caller(CallerProof::Key)
    }

    /// Returns `true` while a caller would still be admitted with the same access: for long answers. A key may have
    /// been revoked, or have expired, since then.
    pub fn is_current(&self, caller: &Caller) -> bool {
        if caller.session.is_some_and(|session| !self.is_session_running(session)) {
            return false;
        }
        let Some(id) = caller.key else { return true };
        let keys = self.shared.keys.load();
        keys.known.as_ref().and_then(|known| known.get(&id)).is_some_and(|known| {
            known.record.revoked_ms.is_none() && !is_expired(&known.record) && known.holder.access == caller.access
        })
    }

    /// Counts and records a failed attempt. Above the limit the caller has to wait, and the attempt is not recorded
    /// singly.
    fn failed(&self, principal: &Principal, source: FailedAttemptSource, refused: CredentialError) -> CredentialError {
        let refused = match refused {
            // Not the caller's fault; the damage itself is recorded.
            CredentialError::Unreadable => return refused,
            // The caller has the secret and is not guessing.
            // An open page of a session that has ended asks until its person looks at it, and nobody guesses 512 bits.
            CredentialError::Expired | CredentialError::Revoked | CredentialError::SessionEnded => refused,
            _ => {
                let failures = self.shared.failures.lock();
                // Nothing panics under this lock.
                let allowed = failures.unwrap_or_else(PoisonError::into_inner).take(source, Instant::now());
                allowed.err().map_or(refused, |wait| CredentialError::TooMany { wait })
            }
        };
        self.shared.audit.record_unauthenticated(principal, refused.cause());
        refused
    }

    /// Reads the store of keys again if it changed or could not be read. Returns and logs each result once.
    fn reload(&self) -> Option<Result<Vec<ApiKeyRecord>, ApiKeysError>> {
        let path = &self.shared.path;
        let _alone = self.shared.reloading.lock().unwrap_or_else(PoisonError::into_inner);
        let before = self.shared.keys.load();
        let stamp = match KeyFileStamp::of(path) {
            Ok(stamp) if before.seen == KeyFileState::File(stamp) => return None,
            stamp => stamp,
        };

        // The stamp is taken before the file is read, so the next check finds a change in between.
        let (seen, read) = match stamp {
            Ok(stamp) => (KeyFileState::File(stamp), keys::read(path)),
            Err(source) => (KeyFileState::Unread, Err(ApiKeysError::Unreadable { path: path.clone(), source })),
        };

        let mut revoked = before.revoked.clone();
        let (seen, known) = match &read {
            Ok(records) => {
                revoked.extend(records.iter().filter_map(|record| Some((record.id, record.revoked_ms?))));
                let known = |record: &ApiKeyRecord| (record.id, LoadedApiKey::new(record, &before, &revoked));
                (seen, Some(records.iter().map(known).collect()))
            }
            // A disk error, or no free file descriptor: it may pass by the next check, with the file unchanged.
            Err(ApiKeysError::Unreadable { .. }) => (KeyFileState::Unread, None),
            Err(_) => (seen, None),
        };

        let is_told = before.known.is_none() && seen == KeyFileState::Unread;
        if let Err(error) = &read
            && !is_told
        {
            tracing::error!(error = %error.with_cause(), "the store of API keys is unusable: every key is refused");
        }
        self.shared.keys.store(Arc::new(LoadedApiKeys { seen, known, revoked }));
        (!is_told).then_some(read)
    }
}

fn is_expired(record: &ApiKeyRecord) -> bool {
    // Never before the proven time: a clock that was set back makes no expired key valid again.
    let now = || clock::FLOOR.now_millis();
    record.expires_ms.is_some_and(|expires| expires <= now())
}

fn anonymous(principal: Principal, access: &CallerAccess) -> Caller {
    Caller { principal, access: access.clone(), proof: CallerProof::None, limiter: None, key: None, session: None }
}

impl KeyHolder {
    fn caller(&self, proof: CallerProof) -> Caller {
        let Self { principal, access, limiter } = self;
        let (principal, access, limiter) = (principal.clone(), access.clone(), limiter.clone());
        Caller { principal, access, proof, limiter, key: None, session: None }
    }
}

impl LoadedApiKey {
    /// Keeps counting the running requests of a key when the store is read again, unless its limits have changed.
    fn new(record: &ApiKeyRecord, before: &LoadedApiKeys, revoked: &BTreeMap<ApiKeyId, u64>) -> Self {
        let known = before.known.as_ref().and_then(|known| known.get(&record.id));
        let limits = |record: &ApiKeyRecord| (record.max_rate, record.max_concurrent);
        let limiter = if let Some(known) = known.filter(|known| limits(&known.record) == limits(record)) {
            known.holder.limiter.clone()
        } else {
            let owner = format!("the API key '{}'", record.name);
            RequestLimiter::new(owner, record.max_rate, record.max_concurrent, Instant::now())
        };
        let principal = Principal::Key(record.name.as_str().into());
        let mut record = record.clone();
        if record.revoked_ms.is_none() && revoked.contains_key(&record.id) {
            tracing::error!(
                key = %record.name,
                "the store of API keys, perhaps an older copy, has a revoked key as valid: the key stays revoked"
            );
            record.revoked_ms = revoked.get(&record.id).copied();
        }
        let holder = KeyHolder { principal, access: record.access(), limiter };
        let last_used_ms = known.map(|known| known.last_used_ms.clone()).unwrap_or_default();
        Self { record, holder, last_used_ms }
    }

    /// Its holder, as the caller of a request; an error for a key that is not valid any more.
    fn caller(&self, proof: CallerProof) -> Result<Caller, CredentialError> {
        if self.record.revoked_ms.is_some() {
            return Err(CredentialError::Revoked);
        }
        if is_expired(&self.record) {
            return Err(CredentialError::Expired);
        }
        self.last_used_ms.store(clock::unix_millis(), Ordering::Relaxed);
        Ok(Caller { key: Some(self.record.id), ..self.holder.caller(proof) })
    }
}

#[cfg(test)]
mod tests;
