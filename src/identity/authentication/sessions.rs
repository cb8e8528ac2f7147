//! Sign-in of people at the console: codes that the box shows, and the sessions that they, or API keys, begin.
//!
//! All of it is in memory: a restart of the service ends every session.

use std::collections::HashMap;
use std::time::{Duration, Instant};

use ledge_base::names::KeyName;
use ledge_base::principal::Principal;

use crate::access::CallerAccess;
use crate::api_key::ApiKeyId;
use crate::sign_in::{SessionHalves, SessionId, SignInCode};

/// The time in which a code can be used.
pub const CODE_LIFETIME: Duration = Duration::from_mins(5);

/// The longest time of a session, whatever its use.
pub const SESSION_LIFETIME: Duration = Duration::from_hours(12);

/// The most codes that wait; the oldest gives way.
const CODES_MAX: usize = 16;

/// The most sessions. The one without use for the longest time gives way.
const SESSIONS_MAX: usize = 64;

/// The person that a code is for, and the access of the session.
#[derive(Debug, Clone)]
pub struct SignInGrant {
    pub name: KeyName,
    pub access: CallerAccess,
}

impl SignInGrant {
    pub fn principal(&self) -> Principal {
        Principal::Person(self.name.as_str().into())
    }
}

/// The caller of a session.
#[derive(Debug, Clone)]
pub enum SessionHolder {
    /// The holder of a key: its session has the access that the key has at each request, and ends with it.
    Key(ApiKeyId),
    Person(SignInGrant),
}

/// A session that has begun, with its two halves, which are shown only here.
#[derive(Debug)]
pub struct BegunSession {
    pub halves: SessionHalves,
    pub principal: Principal,
}

/// Sessions that ended, each with the reason.
pub type EndedSessions = Vec<(SessionHolder, SessionEnd)>;

/// A session, as administrators see it.
#[derive(Debug, Clone)]
pub struct ListedSession {
    pub id: SessionId,
    pub principal: Principal,
    pub age: Duration,
    pub idle: Duration,
}

/// The reason for the end of a session, as the audit log names it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum SessionEnd {
    SignedOut,
    Idle,
    Lifetime,
    /// Its key is not valid any more.
    Key,
    /// Too many sessions.
    Displaced,
    Administrator,
}

impl SessionEnd {
    pub fn as_str(self) -> &'static str {
        match self {
            Self::SignedOut => "signed_out",
            Self::Idle => "idle",
            Self::Lifetime => "lifetime",
            Self::Key => "key",
            Self::Displaced => "displaced",
            Self::Administrator => "administrator",
        }
    }
}

#[derive(Debug)]
struct WaitingCode {
    hash: blake3::Hash,
    grant: SignInGrant,
    made: Instant,
}

#[derive(Debug)]
struct Session {
    cookie: blake3::Hash,
    token: blake3::Hash,
    holder: SessionHolder,
    began: Instant,
    /// The last request that a person caused.
    used: Instant,
}

/// The codes that wait, and the sessions that run.
#[derive(Debug)]
pub struct SessionTable {
    idle_max: Duration,
    codes: Vec<WaitingCode>,
    sessions: HashMap<SessionId, Session>,
}

impl SessionTable {
    /// No session. Each ends after `idle_max` without a request of its person.
    pub fn new(idle_max: Duration) -> Self {
        Self { idle_max, codes: Vec::new(), sessions: HashMap::new() }
    }

    /// Makes a code for a person.
    pub fn add_code(&mut self, grant: SignInGrant, now: Instant) -> Result<SignInCode, getrandom::Error> {
        let code = SignInCode::generate()?;
        self.drop_old_codes(now);
        if self.codes.len() >= CODES_MAX {
            self.codes.remove(0);
        }
        self.codes.push(WaitingCode { hash: code.hash(), grant, made: now });
        Ok(code)
    }

    /// The person of a code, which is used up.
    pub fn take_code(&mut self, code: &SignInCode, now: Instant) -> Option<SignInGrant> {
        self.drop_old_codes(now);
        let hash = code.hash();
        let at = self.codes.iter().position(|waiting| waiting.hash == hash)?;
        Some(self.codes.remove(at).grant)
    }

    fn drop_old_codes(&mut self, now: Instant) {
        self.codes.retain(|code| now.saturating_duration_since(code.made) < CODE_LIFETIME);
    }

    /// Begins a session; also returns those that ended before, or have to give way.
    pub fn begin(
        &mut self,
        holder: SessionHolder,
        now: Instant,
    ) -> Result<(SessionHalves, EndedSessions), getrandom::Error> {
        let mut id = SessionId::generate()?;
        while self.sessions.contains_key(&id) {
            id = SessionId::generate()?;
        }
        let halves = SessionHalves::generate(id)?;
        let mut ended = self.end_old(now);
        if self.sessions.len() >= SESSIONS_MAX {
            let unused = self.sessions.iter().min_by_key(|(_, session)| session.used).map(|(id, _)| *id);
            ended.extend(unused.and_then(|id| self.end(id)).map(|holder| (holder, SessionEnd::Displaced)));
        }
        let (cookie, token) = (halves.cookie.hash(), halves.token.hash());
        self.sessions.insert(id, Session { cookie, token, holder, began: now, used: now });
        Ok((halves, ended))
    }

    /// The caller of a session whose two halves are right. A request that no person caused does not extend it.
    pub fn holder(&mut self, presented: &SessionHalves, is_background: bool, now: Instant) -> Option<SessionHolder> {
        let idle_max = self.idle_max;
        let session = self.sessions.get_mut(&presented.id)?;
        // Both are compared, in constant time each.
        let is_right = (session.cookie == presented.cookie.hash()) & (session.token == presented.token.hash());
        if !is_right || session.end(idle_max, now).is_some() {
            return None;
        }
        if !is_background {
            session.used = now;
        }
        Some(session.holder.clone())
    }

    /// Returns `true` while a session runs.
    pub fn is_running(&self, id: SessionId, now: Instant) -> bool {
        self.sessions.get(&id).is_some_and(|session| session.end(self.idle_max, now).is_none())
    }

    /// Ends a session; `None` if it does not run.
    pub fn end(&mut self, id: SessionId) -> Option<SessionHolder> {
        self.sessions.remove(&id).map(|session| session.holder)
    }

    /// Ends the sessions that are too old, or too long without use.
    pub fn end_old(&mut self, now: Instant) -> EndedSessions {
        let idle_max = self.idle_max;
        let old = self.sessions.extract_if(|_, session| session.end(idle_max, now).is_some());
        old.filter_map(|(_, session)| Some((session.holder.clone(), session.end(idle_max, now)?))).collect()
    }

    /// The sessions, the newest first, with the principals of their holders.
    pub fn list(&self, now: Instant, principal_of: impl Fn(&SessionHolder) -> Principal) -> Vec<ListedSession> {
        let running = self.sessions.iter().filter(|(_, session)| session.end(self.idle_max, now).is_none());
        let mut list: Vec<_> = running
            .map(|(id, session)| ListedSession {
                id: *id,
                principal: principal_of(&session.holder),
                age: now.saturating_duration_since(session.began),
                idle: now.saturating_duration_since(session.used),
            })
            .collect();
        list.sort_by_key(|session| (session.age, session.id));
        list
    }
}

impl Session {
    fn end(&self, idle_max: Duration, now: Instant) -> Option<SessionEnd> {
        if now.saturating_duration_since(self.began) >= SESSION_LIFETIME {
            Some(SessionEnd::Lifetime)
        } else if now.saturating_duration_since(self.used) >= idle_max {
            Some(SessionEnd::Idle)
        } else {
            None
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::access::Role;

    const IDLE_MAX: Duration = Duration::from_mins(30);

    fn person(name: &str) -> SignInGrant {
        SignInGrant { name: name.parse().unwrap(), access: CallerAccess::new([Role::Viewer], None, None) }
    }

    #[test]
    fn a_code_is_good_once_and_for_five_minutes() {
        let (mut table, now) = (SessionTable::new(IDLE_MAX), Instant::now());
        let code = table.add_code(person("anna"), now).unwrap();
        assert!(table.take_code(&SignInCode::generate().unwrap(), now).is_none());
        assert_eq!(table.take_code(&code, now).unwrap().name.as_str(), "anna");
        assert!(table.take_code(&code, now).is_none(), "used");
        let code = table.add_code(person("anna"), now).unwrap();
        assert!(table.take_code(&code, now + CODE_LIFETIME).is_none(), "too late");
        let first = table.add_code(person("anna"), now).unwrap();
        for _ in 0..CODES_MAX {
            table.add_code(person("b"), now).unwrap();
        }
        assert!(table.take_code(&first, now).is_none(), "the oldest gives way");
        assert_eq!(table.codes.len(), CODES_MAX);
    }

    #[test]
    fn a_session_needs_both_halves_and_ends_by_idleness_age_and_order() {
        let (mut table, now) = (SessionTable::new(IDLE_MAX), Instant::now());
        let (one, _) = table.begin(SessionHolder::Person(person("anna")), now).unwrap();
        let (two, _) = table.begin(SessionHolder::Person(person("ben")), now).unwrap();
        let is_let_in = |table: &mut SessionTable, presented: &SessionHalves, is_background, at| {
            table.holder(presented, is_background, at).is_some()
        };
        assert!(is_let_in(&mut table, &one, false, now));
        for (id, cookie, token) in [
            (one.id, &two.cookie, &one.token),
            (one.id, &one.cookie, &two.token),
            (two.id, &one.cookie, &one.token),
            (one.id, &one.token, &one.cookie),
            (SessionId::generate().unwrap(), &one.cookie, &one.token),
        ] {
            let wrong = SessionHalves { id, cookie: cookie.clone(), token: token.clone() };
            assert!(!is_let_in(&mut table, &wrong, false, now), "{id}");
        }

        // Requests of a person extend it, requests of the page alone do not.
        let later = now + IDLE_MAX.mul_f32(0.75);
        assert!(is_let_in(&mut table, &one, false, later));
        assert!(is_let_in(&mut table, &two, true, later));
        let later = later + IDLE_MAX / 2;
        assert!(is_let_in(&mut table, &one, true, later));
        assert!(!is_let_in(&mut table, &two, false, later), "idle");
        assert_eq!(table.list(later, |_| Principal::Local).len(), 1);
        let ended = table.end_old(later);
        assert!(
            matches!(&ended[..], [(SessionHolder::Person(person), SessionEnd::Idle)] if person.name.as_str() == "ben")
        );

        let mut at = later;
        while at < now + SESSION_LIFETIME {
            assert!(is_let_in(&mut table, &one, false, at), "in use");
            at += IDLE_MAX / 2;
        }
        assert!(!is_let_in(&mut table, &one, false, at), "too old");
        assert!(!table.is_running(one.id, at));

        let (three, _) = table.begin(SessionHolder::Person(person("carl")), at).unwrap();
        assert!(table.end(three.id).is_some() && table.end(three.id).is_none());
        assert!(!is_let_in(&mut table, &three, false, at), "signed out");
    }

    #[test]
    fn the_session_without_use_gives_way() {
        let (mut table, now) = (SessionTable::new(IDLE_MAX), Instant::now());
        let begin = |table: &mut SessionTable, second: u64| {
            table.begin(SessionHolder::Person(person("anna")), now + Duration::from_secs(second)).unwrap()
        };
        let (oldest, _) = begin(&mut table, 0);
        let (second, _) = begin(&mut table, 1);
        for at in 2..SESSIONS_MAX as u64 {
            assert!(begin(&mut table, at).1.is_empty());
        }
        let now = now + Duration::from_secs(100);
        assert!(table.holder(&oldest, false, now).is_some());
        let (_, ended) = begin(&mut table, 101);
        assert!(matches!(&ended[..], [(_, SessionEnd::Displaced)]));
        assert!(table.holder(&second, false, now).is_none());
        assert!(table.holder(&oldest, false, now).is_some());
    }
}
