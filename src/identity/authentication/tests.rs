use ledge_base::token_bucket::CallRate;
use ledge_service::audit_event::{AuditEvent, AuditQueue};

use super::*;
use crate::access::Role;
use crate::keys::{ApiKeyStore, NewApiKey};

const REMOTE_IP: [u8; 4] = [10, 0, 0, 7];

struct AuthenticationBox {
    folder: tempfile::TempDir,
    authenticator: Authenticator,
    audit: AuditQueue,
}

impl AuthenticationBox {
    fn new(config: &str) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let (sink, audit) = AuditSink::channel();
        let authenticator = Authenticator::open(&toml::from_str(config).unwrap(), folder.path(), sink);
        Self { folder, authenticator, audit }
    }

    fn store(&self) -> ApiKeyStore {
        ApiKeyStore::new(self.folder.path())
    }

    fn key(&self, name: &str, change: impl FnOnce(&mut NewApiKey)) -> String {
        let mut new = NewApiKey {
            name: name.parse().unwrap(),
            roles: vec![Role::Infer],
            models: None,
            feature_views: None,
            expires_ms: None,
            max_rate: CallRate::default(),
            max_concurrent: 0,
        };
        change(&mut new);
        let (key, _) = self.store().create(&new, 1).unwrap();
        self.authenticator.reload().unwrap().unwrap();
        key.reveal()
    }

    fn ask(&self, key: &str) -> Result<String, CredentialError> {
        self.ask_from(REMOTE_IP, key)
    }

    fn ask_from(&self, ip: [u8; 4], key: &str) -> Result<String, CredentialError> {
        let caller = self.authenticator.caller(&Peer::address(ip.into()), Some(key.as_bytes()));
        caller.map(|caller| caller.principal.to_string())
    }
}

fn certificate(names: &[&str]) -> Peer {
    let names = names.iter().map(ToString::to_string).collect();
    let certificate = Some(Arc::new(PeerCertificate { names, fingerprint: String::new() }));
    Peer::Address { ip: REMOTE_IP.into(), certificate }
}

#[test]
fn a_key_is_good_until_it_expires_or_is_revoked() {
    let it = AuthenticationBox::new("");
    let now_ms = clock::FLOOR.now_millis();
    let good = it.key("till", |key| key.expires_ms = Some(now_ms + 3_600_000));
    let expired = it.key("old", |key| key.expires_ms = Some(now_ms - 1));
    assert_eq!(it.ask(&good), Ok("key:till".to_owned()));
    assert_eq!(it.ask(&expired), Err(CredentialError::Expired));
    // The id of one and the secret of another.
    let mixed = format!("{}{}", &good[..14], &expired[14..]);
    assert_eq!(it.ask(&mixed), Err(CredentialError::Unknown));
    assert_eq!(it.ask(&format!("ledge_00000000_{}", &good[15..])), Err(CredentialError::Unknown));
    assert_eq!(it.ask("Bearer"), Err(CredentialError::Malformed));
    it.store().revoke("till", 2).unwrap();
    assert_eq!(it.ask(&good), Ok("key:till".to_owned()), "until the store is looked at");
    it.authenticator.reload().unwrap().unwrap();
    assert_eq!(it.ask(&good), Err(CredentialError::Revoked));
    assert!(it.authenticator.reload().is_none(), "nothing has changed since");
}

#[test]
fn a_clock_that_was_put_back_revives_no_key() {
    let it = AuthenticationBox::new("");
    // It expired when this binary was built, so it has expired by any clock.
    let expired = it.key("old", |key| key.expires_ms = Some(clock::built_ms()));
    assert_eq!(it.ask(&expired), Err(CredentialError::Expired));
}

#[test]
#[expect(clippy::disallowed_methods, reason = "the test makes the damage")]
fn a_damaged_store_lets_nobody_in_by_key_and_is_no_fault_of_the_caller() {
    let it = AuthenticationBox::new("");
    let good = it.key("till", |_| {});
    let content = std::fs::read(it.store().path()).unwrap();
    std::fs::write(it.store().path(), &content[1..]).unwrap();
    assert!(it.authenticator.reload().unwrap().is_err());
    for _ in 0..20 {
        assert_eq!(it.ask(&good), Err(CredentialError::Unreadable));
    }
    let local = it.authenticator.caller(&Peer::address([127, 0, 0, 1].into()), None).unwrap();
    assert!(local.access.allows(Permission::Infer), "who needs no key is not concerned");
    std::fs::write(it.store().path(), &content).unwrap();
    it.authenticator.reload().unwrap().unwrap();
    assert_eq!(it.ask(&good), Ok("key:till".to_owned()));
}

#[test]
fn failures_are_limited_where_they_come_from_and_a_right_key_is_let_in_all_the_same() {
    let mut it = AuthenticationBox::new("");
    let good = it.key("till", |_| {});
    for _ in 0..10 {
        assert_eq!(it.ask("x"), Err(CredentialError::Malformed));
    }
    assert!(matches!(it.ask("x"), Err(CredentialError::TooMany { .. })));
    assert_eq!(it.ask(&good), Ok("key:till".to_owned()));
    assert_eq!(it.ask_from([10, 0, 0, 8], "x"), Err(CredentialError::Malformed));
    let mut causes = Vec::new();
    while let Some(event) = it.audit.try_next() {
        let AuditEvent::AuthenticationFailed { cause, others: 0 } = event else { panic!("{event:?}") };
        causes.push(cause.to_string());
    }
    assert_eq!(causes, ["malformed", "too_many"]);
}

#[test]
fn limits_hold_over_a_change_of_the_store() {
    let it = AuthenticationBox::new("");
    let key = it.key("till", |key| key.max_concurrent = 1);
    let enter = || {
        let caller = it.authenticator.caller(&Peer::address(REMOTE_IP.into()), Some(key.as_bytes())).unwrap();
        caller.enter(Instant::now())
    };
    let place = enter().unwrap();
    it.key("other", |_| {});
    assert_eq!(
        enter().unwrap_err().to_string(),
        "the API key 'till' has 1 requests running, the most it may have at a time: retry when one has ended"
    );
    drop(place);
    assert!(enter().is_ok());
}

#[test]
fn without_a_key_the_way_in_decides() {
    let it = AuthenticationBox::new(
        "loopback = [\"viewer\"]\nsocket = []\nusers = [{ user = \"4711\", roles = [\"operator\"], models = [\"m\"] }]\n\
         certificates = [{ name = \"till.shop\", roles = [\"infer\"] }]",
    );
    let own = rustix::process::geteuid().as_raw();
    let told = |peer: &Peer| {
        let caller = it.authenticator.caller(peer, None).unwrap();
        (caller.principal.to_string(), caller.access.roles().to_vec(), caller.proof)
    };
    let address = |text: &str| Peer::address(text.parse().unwrap());

    assert_eq!(told(&address("127.8.8.8")), ("ip:127.8.8.8".into(), vec![Role::Viewer], CallerProof::None));
    assert_eq!(told(&address("::ffff:127.0.0.1")), ("ip:127.0.0.1".into(), vec![Role::Viewer], CallerProof::None));
    assert_eq!(told(&address("10.0.0.7")), ("ip:10.0.0.7".into(), vec![], CallerProof::None));
    assert_eq!(told(&Peer::User(0)).1, [Role::Admin]);
    assert_eq!(told(&Peer::User(own)).1, [Role::Admin]);
    assert_eq!(told(&Peer::User(4711)), ("uid:4711".into(), vec![Role::Operator], CallerProof::User));
    assert_eq!(told(&Peer::User(4712)), ("uid:4712".into(), vec![], CallerProof::None));
    let (principal, roles, proof) = told(&certificate(&["CN", "till.shop"]));
    assert_eq!((principal.as_str(), roles, proof), ("cert:till.shop", vec![Role::Infer], CallerProof::Certificate));
    let (principal, roles, proof) = told(&certificate(&["TILL.SHOP", "till.shop.example"]));
    assert_eq!((principal.as_str(), roles), ("ip:10.0.0.7", vec![]));
    assert!(matches!(proof, CallerProof::UnlistedCertificate(_)));

    let user = it.authenticator.caller(&Peer::User(4711), None).unwrap();
    let (ours, theirs) = ("m".parse().unwrap(), "n".parse().unwrap());
    assert_eq!(user.lacks(&[Permission::Operate], Some(&ours)), None);
    assert_eq!(user.lacks(&[Permission::Operate], Some(&theirs)), Some(MissingAccess::Model));
    assert_eq!(user.lacks(&[Permission::Infer], Some(&ours)), Some(MissingAccess::Permission));
}

#[test]
fn a_key_made_or_revoked_is_recorded_once_whoever_ran_meanwhile() {
    let it = AuthenticationBox::new("");
    it.key("till", |_| {});
    let load = || RecordedApiKeys::load(it.folder.path().to_owned());
    let names = |recorded: &RecordedApiKeys| {
        let news = recorded.news(&keys::read(it.store().path()).unwrap());
        news.iter().map(AuditEvent::action).collect::<Vec<_>>()
    };
    let mut recorded = load();
    assert_eq!(names(&recorded), ["key_created"]);
    recorded.keep(&it.store().list().unwrap()).unwrap();
    assert_eq!(names(&load()), [""; 0]);
    it.store().revoke("till", 2).unwrap();
    assert_eq!(names(&load()), ["key_revoked"]);
    recorded.keep(&it.store().list().unwrap()).unwrap();
    assert_eq!(names(&load()), [""; 0]);
    std::fs::remove_file(it.store().path()).unwrap();
    assert_eq!(names(&load()), ["key_store_damaged"]);
}

/// Restores an earlier store.
#[expect(clippy::disallowed_methods, reason = "the test plays somebody with a backup")]
fn restore(it: &AuthenticationBox, content: &[u8]) {
    std::fs::write(it.store().path(), content).unwrap();
}

#[test]
fn an_older_store_revives_no_key_that_was_revoked() {
    let it = AuthenticationBox::new("");
    let key = it.key("till", |_| {});
    let older = std::fs::read(it.store().path()).unwrap();
    let mut recorded = RecordedApiKeys::load(it.folder.path().to_owned());
    it.store().revoke("till", 2).unwrap();
    it.authenticator.reload().unwrap().unwrap();
    recorded.keep(&keys::read(it.store().path()).unwrap()).unwrap();

    restore(&it, &older);
    let read = it.authenticator.reload().unwrap().unwrap();
    assert_eq!(read[0].revoked_ms, None, "so says the store");
    assert_eq!(it.ask(&key), Err(CredentialError::Revoked));
    let restarted = Authenticator::open(&AccessConfig::default(), it.folder.path(), AuditSink::to_nowhere());
    let refused = restarted.caller(&Peer::address(REMOTE_IP.into()), Some(key.as_bytes())).unwrap_err();
    assert_eq!(refused, CredentialError::Revoked);
    assert_eq!(it.store().list().unwrap()[0].revoked_ms, Some(2), "the command line says it, too");

    assert_eq!(recorded.news(&read), [AuditEvent::KeyStoreDamaged]);
    recorded.keep(&read).unwrap();
    // A key that the older store does not have is remembered too, and reported once.
    assert_eq!(recorded.news(&[]), [AuditEvent::KeyStoreDamaged]);
    recorded.keep(&[]).unwrap();
    let mut recorded = RecordedApiKeys::load(it.folder.path().to_owned());
    assert_eq!(recorded.news(&[]), []);
    assert_eq!(recorded.revoked().into_values().collect::<Vec<_>>(), [2]);
    // With the revocation the store is complete.
    it.store().revoke("till", 3).unwrap();
    let whole = keys::read(it.store().path()).unwrap();
    assert_eq!(recorded.news(&whole), []);
    recorded.keep(&whole).unwrap();
    assert_eq!(recorded.news(&whole), []);
}

#[test]
fn a_key_that_was_edited_by_hand_is_recorded_as_it_is_now_and_once() {
    let it = AuthenticationBox::new("");
    it.key("till", |_| {});
    let before = std::fs::read_to_string(it.store().path()).unwrap();
    let mut recorded = RecordedApiKeys::load(it.folder.path().to_owned());
    recorded.keep(&keys::read(it.store().path()).unwrap()).unwrap();
    restore(&it, before.replace("\"infer\"", "\"admin\"").as_bytes());
    let edited = keys::read(it.store().path()).unwrap();
    let [AuditEvent::KeyChanged { name, roles, .. }] = &recorded.news(&edited)[..] else {
        panic!("{:?}", recorded.news(&edited));
    };
    assert_eq!((name.as_str(), roles.join(",").as_str()), ("till", "admin"));
    recorded.keep(&edited).unwrap();
    assert_eq!(RecordedApiKeys::load(it.folder.path().to_owned()).news(&edited), []);
}

#[test]
fn a_store_that_cannot_be_read_for_a_moment_is_read_again_and_told_of_once() {
    let it = AuthenticationBox::new("");
    let good = it.key("till", |_| {});
    let (path, aside) = (it.store().path().to_owned(), it.folder.path().join("aside"));
    ledge_base::durable::rename(&path, &aside).unwrap();
    // A folder cannot be read, like a file when the process may open no more files.
    std::fs::create_dir(&path).unwrap();
    assert!(matches!(it.authenticator.reload(), Some(Err(ApiKeysError::Unreadable { .. }))));
    assert_eq!(it.ask(&good), Err(CredentialError::Unreadable));
    assert!(it.authenticator.reload().is_none(), "told once");
    assert_eq!(
        it.authenticator.shared.keys.load().seen,
        KeyFileState::Unread,
        "it is tried again, though the file stays as it is"
    );
    std::fs::remove_dir(&path).unwrap();
    ledge_base::durable::rename(&aside, &path).unwrap();
    it.authenticator.reload().unwrap().unwrap();
    assert_eq!(it.ask(&good), Ok("key:till".to_owned()));
}

#[tokio::test]
async fn an_audit_log_that_stands_still_keeps_no_key_alive() {
    use ledge_service::shutdown::Shutdown;
    // The queue has no reader, so no event is ever recorded.
    let it = AuthenticationBox::new("");
    let key = it.key("till", |_| {});
    let shutdown = Shutdown::default();
    shutdown.spawn(it.authenticator.clone().watch(shutdown.clone()));
    let begun = Instant::now();
    for (name, told) in [("till", Err(CredentialError::Revoked)), ("other", Err(CredentialError::Revoked))] {
        let presented = if name == "till" { key.clone() } else { it.key(name, |_| {}) };
        it.store().revoke(name, 2).unwrap();
        while it.ask(&presented) != told {
            assert!(begun.elapsed().as_secs() < 20, "{name} is still let in");
            tokio::task::yield_now().await;
        }
    }
}

#[test]
fn who_has_a_key_that_is_over_is_told_so_each_time_and_uses_up_nothing() {
    let mut it = AuthenticationBox::new("");
    let expired = it.key("old", |key| key.expires_ms = Some(clock::built_ms()));
    let revoked = it.key("gone", |_| {});
    it.store().revoke("gone", 2).unwrap();
    it.authenticator.reload().unwrap().unwrap();
    for _ in 0..20 {
        assert_eq!(it.ask(&expired), Err(CredentialError::Expired));
        assert_eq!(it.ask(&revoked), Err(CredentialError::Revoked));
    }
    assert_eq!(it.ask("x"), Err(CredentialError::Malformed), "of those that may fail none is used up");
    let events: Vec<_> = std::iter::from_fn(|| it.audit.try_next()).map(|event| event.action()).collect();
    assert_eq!(events, ["authentication_failed"; 3]);
}
