//! A person signs in at the console, and out.

use std::sync::{MutexGuard, PoisonError};
use std::time::Instant;

use ledge_base::principal::Principal;
use ledge_service::audit_event::AuditEvent;

use super::sessions::{BegunSession, ListedSession, SessionEnd, SessionHolder, SessionTable, SignInGrant};
use super::{Authenticator, Caller, CallerProof, CredentialError, Peer, anonymous};
use crate::sign_in::{SessionHalves, SessionId, SignInCode};

/// The secret with which a person signs in.
#[derive(Debug)]
pub enum SignInSecret<'s> {
    Code(&'s str),
    /// An API key: the session has its access, and ends with it.
    Key(&'s [u8]),
}

/// The reason why nobody is signed in.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum SignInError {
    #[error(transparent)]
    Credential(#[from] CredentialError),
    #[error("sign in over https, or on the box itself")]
    Transport,
    #[error("the system has no random numbers")]
    Random,
}

impl Authenticator {
    /// Makes a code with which a person signs in once, within [`super::CODE_LIFETIME`], and records it.
    pub fn sign_in_code(&self, by: &Principal, grant: SignInGrant) -> Result<SignInCode, SignInError> {
        let SignInGrant { name, access } = &grant;
        let made = AuditEvent::SignInCodeMade {
            name: name.clone(),
            roles: access.roles().iter().map(|role| role.as_str().to_owned()).collect(),
            models: access.models().map(<[_]>::to_vec),
            feature_views: access.feature_views().views().map(<[_]>::to_vec),
        };
        let code = self.sessions().add_code(grant, Instant::now()).map_err(|_| SignInError::Random)?;
        self.shared.audit.record(by, made);
        Ok(code)
    }

    /// Begins a session, and records it.
    pub fn sign_in(&self, peer: &Peer, secret: &SignInSecret<'_>) -> Result<BegunSession, SignInError> {
        // Over an unencrypted connection others could read both halves.
        if !matches!(peer, Peer::Address { .. }) {
            return Err(SignInError::Transport);
        }
        let now = Instant::now();
        let (holder, by) = match secret {
            SignInSecret::Code(text) => {
                // A text that is not a code counts as a wrong one.
                let grant = text.parse().ok().and_then(|code| self.sessions().take_code(&code, now));
                let grant = grant.ok_or_else(|| self.failed_at(peer, CredentialError::UnknownCode))?;
                (SessionHolder::Person(grant), "code")
            }
            SignInSecret::Key(key) => {
                let caller = self.caller(peer, Some(key))?;
                let id = caller.key_id().ok_or(CredentialError::Unknown)?;
                (SessionHolder::Key(id), "key")
            }
        };
        let principal = self.principal_of(&holder);
        let (halves, ended) = self.sessions().begin(holder, now).map_err(|_| SignInError::Random)?;
        self.record_ends(ended);
        self.shared.audit.record(&principal, AuditEvent::SessionBegan { by: by.into() });
        Ok(BegunSession { halves, principal })
    }

    /// The caller of a session. `is_background` is true for a request of the page that no person caused: it does not
    /// extend the session. `presented` is `None` for a request that names a session and lacks a half of it.
    pub fn session_caller(
        &self,
        peer: &Peer,
        presented: Option<&SessionHalves>,
        is_background: bool,
    ) -> Result<Caller, CredentialError> {
        let found = match (peer, presented) {
            (Peer::Address { .. }, Some(presented)) => {
                let holder = self.sessions().holder(presented, is_background, Instant::now());
                holder.map(|holder| (presented.id, holder))
            }
            _ => None,
        };
        let caller = found.and_then(|(id, holder)| self.holder_caller(id, &holder));
        caller.ok_or_else(|| self.failed_at(peer, CredentialError::SessionEnded))
    }

    fn holder_caller(&self, id: SessionId, holder: &SessionHolder) -> Option<Caller> {
        let caller = match holder {
            SessionHolder::Person(grant) => {
                Caller { proof: CallerProof::Session, ..anonymous(grant.principal(), &grant.access) }
            }
            SessionHolder::Key(key) => {
                let keys = self.shared.keys.load();
                // Unreadable keys end no session: the next request may find them again.
                let Ok(caller) = keys.known.as_ref()?.get(key)?.caller(CallerProof::Session) else {
                    self.end_session(id, SessionEnd::Key);
                    return None;
                };
                caller
            }
        };
        Some(Caller { session: Some(id), ..caller })
    }

    /// Ends a session, and records it; `false` if it does not run.
    pub fn end_session(&self, id: SessionId, cause: SessionEnd) -> bool {
        let ended = self.sessions().end(id);
        let is_ended = ended.is_some();
        self.record_ends(ended.map(|holder| (holder, cause)));
        is_ended
    }

    /// The sessions, the newest first.
    pub fn list_sessions(&self) -> Vec<ListedSession> {
        self.sessions().list(Instant::now(), |holder| self.principal_of(holder))
    }

    /// Records the sessions that ended by their age or without use.
    pub(super) fn record_ended_sessions(&self) {
        let ended = self.sessions().end_old(Instant::now());
        self.record_ends(ended);
    }

    pub(super) fn is_session_running(&self, id: SessionId) -> bool {
        self.sessions().is_running(id, Instant::now())
    }

    fn record_ends(&self, ended: impl IntoIterator<Item = (SessionHolder, SessionEnd)>) {
        for (holder, cause) in ended {
            let event = AuditEvent::SessionEnded { cause: cause.as_str().into() };
            self.shared.audit.record(&self.principal_of(&holder), event);
        }
    }

    fn principal_of(&self, holder: &SessionHolder) -> Principal {
        match holder {
            SessionHolder::Person(grant) => grant.principal(),
            SessionHolder::Key(id) => {
                let keys = self.shared.keys.load();
                let known = keys.known.as_ref().and_then(|known| known.get(id));
                known.map_or(Principal::Local, |known| known.holder.principal.clone())
            }
        }
    }

    fn sessions(&self) -> MutexGuard<'_, SessionTable> {
        // Nothing panics under this lock.
        self.shared.sessions.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
