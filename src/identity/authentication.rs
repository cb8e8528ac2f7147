//! Who a caller is and what it may do, by what it presents and how it comes.
//!
//! What it costs on the way to an answer: nothing is read there. Without a key it is a comparison of the peer; with one,
//! BLAKE3 of 32 bytes and a look-up. Who presents a right key is never slowed down by others that fail.

mod failures;
mod gate;
mod watch;

use std::collections::{BTreeMap, HashMap};
use std::net::{IpAddr, Ipv6Addr};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use arc_swap::ArcSwap;
use ledge_base::clock;
use ledge_base::names::ModelName;
use ledge_base::principal::Principal;
use ledge_service::audit_event::AuditSink;

use super::access::{Access, Permission};
use super::access_config::AccessConfig;
use super::api_key::{ApiKey, KeyId};
use super::certificate::PeerCertificate;
use super::keys::{self, KeyRecord, KeysError, Recorded, SecretHash, Stamp};
use failures::{Failures, Source};
use gate::Gate;
pub use gate::{Limited, Place};

/// The other end of a connection, as far as the transport can tell.
#[derive(Debug, Clone)]
pub enum Peer {
    Address {
        /// The address; the port is left out.
        ip: IpAddr,
        /// What it presented when the connection was made.
        certificate: Option<Arc<PeerCertificate>>,
    },
    /// A process behind the Unix socket, by its user id (`SO_PEERCRED`).
    User(u32),
}

impl Peer {
    /// A peer over TCP without a certificate.
    pub fn address(ip: IpAddr) -> Self {
        Self::Address { ip: ip.to_canonical(), certificate: None }
    }

    /// As a principal, where it presents nothing else.
    pub fn principal(&self) -> Principal {
        match self {
            Self::Address { ip, .. } => Principal::Peer(*ip),
            Self::User(uid) => Principal::User(*uid),
        }
    }
}

/// Whom a caller is counted as: over IPv6 one customer has 2^64 addresses. Loopback is itself.
pub fn network(ip: IpAddr) -> IpAddr {
    match ip.to_canonical() {
        IpAddr::V6(address) if !address.is_loopback() => {
            Ipv6Addr::from_bits(address.to_bits() & !u128::from(u64::MAX)).into()
        }
        address => address,
    }
}

/// By what a caller is known.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Proof {
    /// By nothing: it may do what the way that it came is for.
    None,
    User,
    /// By a certificate that is listed.
    Certificate,
    /// By a certificate that is not: it may do no more than without.
    UnlistedCertificate(Arc<PeerCertificate>),
    Key,
}

/// A caller.
#[derive(Debug, Clone)]
pub struct Caller {
    pub principal: Principal,
    pub access: Access,
    /// By what it is known.
    pub proof: Proof,
    gate: Option<Arc<Gate>>,
}

impl Caller {
    /// Lets a request in, unless those of this caller are used up. Its place among those under way is free again when what
    /// is given is dropped.
    pub fn enter(&self, now: Instant) -> Result<Place, Limited> {
        self.gate.as_ref().map_or_else(|| Ok(Place::default()), |gate| gate.enter(now))
    }

    /// Why it may not do this, if it may not. One of `any` is enough; a `model` must be in its scope.
    pub fn lacks(&self, any: &[Permission], model: Option<&ModelName>) -> Option<Lacking> {
        if !any.iter().any(|permission| self.access.allows(*permission)) {
            return Some(Lacking::Permission);
        }
        let is_in_scope = model.is_none_or(|model| any.iter().any(|one| self.access.allows_model(*one, model)));
        (!is_in_scope).then_some(Lacking::Model)
    }
}

/// What a caller lacks.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Lacking {
    Permission,
    /// The model, which is not among those that it is for.
    Model,
}

/// Why what was presented lets nobody in.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Refused {
    #[error("the API key is malformed: expected ledge_ID_SECRET, as `ledge keys create` printed it")]
    Malformed,
    /// There is no key with this id, or its secret is another one. Which of both is nobody's business.
    #[error("the API key is not known here")]
    Unknown,
    #[error("the API key has expired: ask for another one")]
    Expired,
    #[error("the API key was revoked: ask for another one")]
    Revoked,
    /// The store cannot be read, so no key can be checked.
    #[error("API keys cannot be checked now: the log of the service says why")]
    Unreadable,
    #[error("too many attempts with a wrong API key failed: try again in {} s", wait.as_secs() + 1)]
    TooMany {
        /// When another may be made.
        wait: Duration,
    },
}

impl Refused {
    /// Its name in the audit log.
    fn cause(&self) -> &'static str {
        match self {
            Self::Malformed => "malformed",
            Self::Unknown => "unknown",
            Self::Expired => "expired",
            Self::Revoked => "revoked",
            Self::Unreadable => "unreadable",
            Self::TooMany { .. } => "too_many",
        }
    }
}

/// Who may come in.
#[derive(Debug, Clone)]
pub struct Authenticator {
    shared: Arc<Shared>,
}

#[derive(Debug)]
struct Shared {
    loopback: Access,
    socket: Access,
    mqtt: Access,
    /// The user that this process runs as.
    own_uid: u32,
    users: HashMap<u32, Access>,
    certificates: HashMap<String, Listed>,
    path: PathBuf,
    keys: ArcSwap<Keys>,
    failures: Mutex<Failures>,
    audit: AuditSink,
}

#[derive(Debug)]
struct Listed {
    principal: Principal,
    access: Access,
    gate: Option<Arc<Gate>>,
}

/// Which file was read last.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Seen {
    /// It could not be read, and is to be tried again although it may not change.
    Unread,
    /// The one with this stamp; `None` is that there was none.
    File(Option<Stamp>),
}

/// The store as it was read last.
#[derive(Debug)]
struct Keys {
    seen: Seen,
    /// `None` when it cannot be read.
    known: Option<HashMap<KeyId, Known>>,
    /// What was revoked, and when. An older store that takes the place of a newer one revives nothing.
    revoked: BTreeMap<KeyId, u64>,
}

#[derive(Debug)]
struct Known {
    record: KeyRecord,
    holder: Listed,
}

impl Authenticator {
    /// Over the section `[access]` and the store of API keys in `state`. A store that cannot be read is told, and lets nobody
    /// in by key.
    pub fn open(config: &AccessConfig, state: &Path, audit: AuditSink) -> Self {
        let now = Instant::now();
        let access = |roles: &[_], models: &Option<_>, views: &Option<_>| {
            Access::new(roles.iter().copied(), models.clone(), views.clone())
        };
        let listed = |entry: &super::access_config::CertificateAccess| {
            let name = entry.name.as_str();
            let owner = format!("the certificate '{name}' (access.certificates)");
            let listed = Listed {
                principal: Principal::Certificate(name.into()),
                access: access(&entry.roles, &entry.models, &entry.feature_views),
                gate: Gate::new(owner, entry.max_rate, entry.max_concurrent, now),
            };
            (name.to_owned(), listed)
        };
        let user = |entry: &super::access_config::UserAccess| {
            Some((entry.user.uid()?, access(&entry.roles, &entry.models, &entry.feature_views)))
        };
        let authenticator = Self {
            shared: Arc::new(Shared {
                loopback: access(&config.loopback, &None, &None),
                socket: access(&config.socket, &None, &None),
                mqtt: config.mqtt.access(),
                own_uid: rustix::process::geteuid().as_raw(),
                users: config.users.iter().filter_map(user).collect(),
                certificates: config.certificates.iter().map(listed).collect(),
                path: state.join(keys::FILE),
                keys: ArcSwap::from_pointee(Keys {
                    seen: Seen::Unread,
                    known: Some(HashMap::new()),
                    revoked: Recorded::load(state.to_owned()).revoked(),
                }),
                failures: Mutex::default(),
                audit,
            }),
        };
        authenticator.reload();
        authenticator
    }

    /// Who this is. `key` is what was presented as one.
    pub fn caller(&self, peer: &Peer, key: Option<&[u8]>) -> Result<Caller, Refused> {
        let Some(key) = key else { return Ok(self.without_key(peer)) };
        let source = match peer {
            Peer::Address { ip, .. } => Source::network(*ip),
            Peer::User(uid) => Source::User(*uid),
        };
        self.by_key(key).map_err(|refused| self.failed(&peer.principal(), source, refused))
    }

    /// Who sent a message: the holder of `key`, or whoever `sender` is.
    pub fn mqtt_caller(&self, sender: Principal, key: Option<&[u8]>) -> Result<Caller, Refused> {
        match key {
            None => Ok(anonymous(sender, &self.shared.mqtt)),
            // The broker does not tell one client from the other.
            Some(key) => self.by_key(key).map_err(|refused| self.failed(&sender, Source::Broker, refused)),
        }
    }

    fn without_key(&self, peer: &Peer) -> Caller {
        let shared = &*self.shared;
        match peer {
            Peer::User(uid) if *uid == 0 || *uid == shared.own_uid => {
                Caller { proof: Proof::User, ..anonymous(peer.principal(), &Access::everything()) }
            }
            Peer::User(uid) => match shared.users.get(uid) {
                Some(access) => Caller { proof: Proof::User, ..anonymous(peer.principal(), access) },
                None => anonymous(peer.principal(), &shared.socket),
            },
            Peer::Address { ip, certificate } => {
                let mut names = certificate.iter().flat_map(|certificate| &certificate.names);
                if let Some(listed) = names.find_map(|name| shared.certificates.get(name)) {
                    return listed.caller(Proof::Certificate);
                }
                let caller = if ip.to_canonical().is_loopback() {
                    anonymous(peer.principal(), &shared.loopback)
                } else {
                    anonymous(peer.principal(), &Access::default())
                };
                let proof = certificate.clone().map_or(Proof::None, Proof::UnlistedCertificate);
                Caller { proof, ..caller }
            }
        }
    }

    fn by_key(&self, presented: &[u8]) -> Result<Caller, Refused> {
        let key = ApiKey::parse(presented).map_err(|_| Refused::Malformed)?;
        let keys = self.shared.keys.load();
        let known = keys.known.as_ref().ok_or(Refused::Unreadable)?;
        let hash = SecretHash(key.hash());
        // In constant time, as `blake3::Hash` compares; that there is a key of an id is no secret.
        let found = known.get(&key.id()).filter(|known| known.record.blake3 == hash).ok_or(Refused::Unknown)?;
        if found.record.revoked_ms.is_some() {
            return Err(Refused::Revoked);
        }
        // Never before what is proven: a clock that was put back revives no key.
        let now = || clock::FLOOR.plausible_millis(clock::unix_millis());
        if found.record.expires_ms.is_some_and(|expires| expires <= now()) {
            return Err(Refused::Expired);
        }
        Ok(found.holder.caller(Proof::Key))
    }

    /// Counts an attempt that failed. Beyond some of them it is told to wait, and recorded no more.
    fn failed(&self, principal: &Principal, source: Source, refused: Refused) -> Refused {
        let refused = match refused {
            // No fault of whoever asks; the damage itself is recorded.
            Refused::Unreadable => return refused,
            // Whoever has the secret does not guess.
            Refused::Expired | Refused::Revoked => refused,
            _ => {
                let failures = self.shared.failures.lock();
                // Nothing panics under this lock.
                let allowed = failures.unwrap_or_else(PoisonError::into_inner).take(source, Instant::now());
                allowed.err().map_or(refused, |wait| Refused::TooMany { wait })
            }
        };
        self.shared.audit.record_unauthenticated(principal, refused.cause());
        refused
    }

    /// Reads the store of keys anew if it changed, or could not be read. What was found is told once.
    fn reload(&self) -> Option<Result<Vec<KeyRecord>, KeysError>> {
        let path = &self.shared.path;
        let before = self.shared.keys.load();
        let stamp = match Stamp::of(path) {
            Ok(stamp) if before.seen == Seen::File(stamp) => return None,
            stamp => stamp,
        };
        // The stamp is older than what is read: a change in between is found by the next look.
        let (seen, read) = match stamp {
            Ok(stamp) => (Seen::File(stamp), keys::read(path)),
            Err(source) => (Seen::Unread, Err(KeysError::Unreadable { path: path.clone(), source })),
        };
        let mut revoked = before.revoked.clone();
        let (seen, known) = match &read {
            Ok(records) => {
                revoked.extend(records.iter().filter_map(|record| Some((record.id, record.revoked_ms?))));
                let known = |record: &KeyRecord| (record.id, Known::new(record, &before, &revoked));
                (seen, Some(records.iter().map(known).collect()))
            }
            // The disk, or a process without a file to spare: it may be over by the next look, and the file as it was.
            Err(KeysError::Unreadable { .. }) => (Seen::Unread, None),
            Err(_) => (seen, None),
        };
        let is_told = before.known.is_none() && seen == Seen::Unread;
        if let Err(error) = &read
            && !is_told
        {
            tracing::error!(error = %with_cause(error), "no API key lets anybody in");
        }
        self.shared.keys.store(Arc::new(Keys { seen, known, revoked }));
        (!is_told).then_some(read)
    }
}

fn with_cause(error: &KeysError) -> String {
    use std::error::Error as _;
    error.source().map_or_else(|| error.to_string(), |source| format!("{error}: {source}"))
}

fn anonymous(principal: Principal, access: &Access) -> Caller {
    Caller { principal, access: access.clone(), proof: Proof::None, gate: None }
}

impl Listed {
    fn caller(&self, proof: Proof) -> Caller {
        let Self { principal, access, gate } = self;
        Caller { principal: principal.clone(), access: access.clone(), proof, gate: gate.clone() }
    }
}

impl Known {
    /// A key's requests under way go on counting when the store is read anew, unless its limits are others now.
    fn new(record: &KeyRecord, before: &Keys, revoked: &BTreeMap<KeyId, u64>) -> Self {
        let known = before.known.as_ref().and_then(|known| known.get(&record.id));
        let limits = |record: &KeyRecord| (record.max_rate, record.max_concurrent);
        let gate = if let Some(known) = known.filter(|known| limits(&known.record) == limits(record)) {
            known.holder.gate.clone()
        } else {
            let owner = format!("the API key '{}'", record.name);
            Gate::new(owner, record.max_rate, record.max_concurrent, Instant::now())
        };
        let principal = Principal::Key(record.name.as_str().into());
        let mut record = record.clone();
        if record.revoked_ms.is_none() && revoked.contains_key(&record.id) {
            tracing::error!(key = %record.name, "an older store of API keys has a key unrevoked: it stays revoked");
            record.revoked_ms = revoked.get(&record.id).copied();
        }
        let holder = Listed { principal, access: record.access(), gate };
        Self { record, holder }
    }
}

#[cfg(test)]
mod tests;
