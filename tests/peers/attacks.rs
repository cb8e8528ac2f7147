//! Attacks on repositories that the reference implementation of TUF made and signed: after each, a box must still trust
//! only what it trusted before. The names are those of the TUF specification, section 1.5.2.

use std::io::Write;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

use ledge::audit_event::{AuditEvent, AuditQueue, AuditSink};
use ledge::egress::{Egress, EgressConfig, TlsClientSettings};
use ledge::updates::config::RepositoryAddress;
use ledge::updates::source::{self, RepositorySource};
use ledge::updates::trust::{RefusalKind, TrustError, TrustedMetadata};
use tempfile::TempDir;

use crate::daemon::setup_root;
use crate::hostile::{endless, file, server};
use crate::tools;

const MODEL: &str = "models/minilm/2/model.onnx";
const MANIFEST: &str = "fleet/default/rollout.json";

/// A box, and the states of a repository.
struct Attacked {
    folder: TempDir,
    trust: TrustedMetadata,
    events: AuditQueue,
    runtime: tokio::runtime::Runtime,
}

impl Attacked {
    fn by(attack: &str) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let python = setup_root().join("peers/tuf/bin/python3");
        assert!(python.is_file(), "{} is missing: `make setup-tuf` gets it", python.display());
        let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/peers/clients/tuf_attacks.py");
        tools::run(Command::new(python).arg("-B").arg(script).arg(attack).arg(folder.path()));
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        let (trust, events) = opened(folder.path());
        Self { folder, trust, events, runtime }
    }

    fn state(&self, state: u32) -> PathBuf {
        self.folder.path().join(state.to_string())
    }

    fn source(&self, state: u32) -> RepositorySource {
        RepositorySource::new(&RepositoryAddress::Folder(self.state(state)), None)
    }

    fn refresh_from(&mut self, source: &RepositorySource) -> Result<(), TrustError> {
        self.runtime.block_on(self.trust.refresh(source, ledge::clock::unix_millis())).map(drop)
    }

    fn refresh(&mut self, state: u32) -> Result<(), TrustError> {
        self.refresh_from(&self.source(state))
    }

    fn resolve(&mut self, state: u32, path: &str) -> Result<u64, TrustError> {
        let source = self.source(state);
        self.runtime.block_on(self.trust.resolve(&source, path)).map(|target| target.length)
    }

    /// As after a restart.
    fn restart(&mut self) {
        (self.trust, self.events) = opened(self.folder.path());
    }

    /// The attack is refused, audited, changes nothing, and the same after a restart.
    #[track_caller]
    fn refuses(&mut self, refusal: RefusalKind, attack: impl Fn(&mut Self) -> Result<(), TrustError>) {
        let trusted = self.trust.versions();
        for _ in 0..2 {
            let error = attack(self).unwrap_err();
            assert_eq!(error.refusal(), Some(refusal), "{error}");
            let audited: Vec<_> = std::iter::from_fn(|| self.events.try_next()).collect();
            assert!(audited.contains(&AuditEvent::MetadataRefused { cause: refusal.name().into() }), "{audited:?}");
            self.restart();
        }
        let mut now = self.trust.versions();
        // Properly signed metadata may stay: its versions only grow.
        now.retain(|role, version| trusted.get(role).is_none_or(|before| before > version));
        assert!(now.is_empty(), "{now:?} after {trusted:?}");
    }
}

fn opened(folder: &Path) -> (TrustedMetadata, AuditQueue) {
    let (audit, events) = AuditSink::channel();
    (TrustedMetadata::open(&folder.join("updates"), &folder.join("root.json"), audit).unwrap(), events)
}

/// The second state of the repository is the attack, and the refresh does not get by it.
#[track_caller]
fn refused_in_refresh(attack: &str, refusal: RefusalKind) {
    let mut attacked = Attacked::by(attack);
    attacked.refresh(0).unwrap();
    attacked.refuses(refusal, |it| it.refresh(1));
    // The plain client, which the conformance suite drives, says the same.
    let metadata = attacked.folder.path().join("plain");
    std::fs::create_dir(&metadata).unwrap();
    assert!(plain(&metadata, &["init", attacked.folder.path().join("root.json").to_str().unwrap()]));
    for (state, accepted) in [(0, true), (1, false)] {
        let url = format!("file://{}/metadata", attacked.state(state).display());
        assert_eq!(plain(&metadata, &["--metadata-url", &url, "refresh"]), accepted, "state {state}");
    }
}

/// The same for a role that is read when a target of it is asked for.
#[track_caller]
fn refused_in_resolve(attack: &str, path: &'static str, refusal: RefusalKind) {
    let mut attacked = Attacked::by(attack);
    attacked.refresh(0).unwrap();
    attacked.resolve(0, path).unwrap();
    attacked.refuses(refusal, |it| {
        it.refresh(1)?;
        it.resolve(1, path).map(drop)
    });
}

fn plain(metadata: &Path, arguments: &[&str]) -> bool {
    let mut command = Command::new(env!("CARGO_BIN_EXE_ledge"));
    command.args(["update", "tuf", "--metadata-dir"]).arg(metadata).args(arguments);
    command.output().unwrap().status.success()
}

#[test]
fn an_honest_repository_is_accepted() {
    let mut attacked = Attacked::by("honest");
    for state in 0..2 {
        attacked.refresh(state).unwrap();
        assert_eq!(attacked.resolve(state, MODEL).unwrap(), 7);
        assert_eq!(attacked.resolve(state, MANIFEST).unwrap(), 13);
    }
    let versions: Vec<_> = attacked.trust.versions().into_iter().collect();
    let expected = [("fleet", 2), ("models", 2), ("root", 1), ("snapshot", 2), ("targets", 2), ("timestamp", 2)];
    assert_eq!(versions, expected.map(|(role, version)| (role.to_owned(), version)));
}

#[test]
fn rollback_attack() {
    let mut attacked = Attacked::by("rollback");
    attacked.refresh(1).unwrap();
    attacked.refuses(RefusalKind::Rollback, |it| it.refresh(0));
    let mut attacked = Attacked::by("rollback_of_models");
    attacked.refresh(1).unwrap();
    attacked.refuses(RefusalKind::Rollback, |it| it.refresh(2));
}

#[test]
fn fast_forward_attack_and_recovery() {
    let mut attacked = Attacked::by("fast_forward");
    attacked.refresh(0).unwrap();
    // It is signed, so it is taken; then nothing newer is ever to come under the same keys.
    attacked.refresh(1).unwrap();
    attacked.refuses(RefusalKind::Rollback, |it| it.refresh(0));
    // With new keys the versions start over.
    attacked.refresh(2).unwrap();
    assert_eq!(attacked.trust.versions()["timestamp"], 2);
    assert_eq!(attacked.resolve(2, MODEL).unwrap(), 7);
    attacked.refuses(RefusalKind::Signature, |it| it.refresh(1));
}

#[test]
fn indefinite_freeze_attack() {
    refused_in_refresh("expired_timestamp", RefusalKind::Expired);
}

#[test]
fn expired_roles() {
    for role in ["root", "snapshot", "targets"] {
        refused_in_refresh(&format!("expired_{role}"), RefusalKind::Expired);
    }
    refused_in_resolve("expired_models", MODEL, RefusalKind::Expired);
    refused_in_resolve("expired_fleet", MANIFEST, RefusalKind::Expired);
}

#[test]
fn mix_and_match_attack() {
    refused_in_refresh("mix_and_match_snapshot", RefusalKind::Mismatch);
    refused_in_refresh("mix_and_match_targets", RefusalKind::Mismatch);
    refused_in_resolve("mix_and_match_models", MODEL, RefusalKind::Mismatch);
    refused_in_resolve("mix_and_match_fleet", MANIFEST, RefusalKind::Mismatch);
}

#[test]
fn wrong_keys() {
    for role in ["root", "timestamp", "snapshot", "targets"] {
        refused_in_refresh(&format!("wrong_keys_{role}"), RefusalKind::Signature);
    }
    refused_in_resolve("wrong_keys_models", MODEL, RefusalKind::Signature);
    refused_in_resolve("wrong_keys_fleet", MANIFEST, RefusalKind::Signature);
}

#[test]
fn stolen_fleet_key_naming_an_unauthorised_model() {
    let mut attacked = Attacked::by("stolen_fleet_key");
    attacked.refresh(1).unwrap();
    // Listed by `fleet` itself.
    let error = attacked.resolve(1, "models/evil/1/model.onnx").unwrap_err();
    assert!(matches!(&error, TrustError::Unauthorised { role, .. } if role == "fleet"), "{error}");
    // Listed by a role that `fleet` delegates all models to.
    let error = attacked.resolve(1, "models/evil/2/model.onnx").unwrap_err();
    assert!(matches!(error, TrustError::NotListed { role: "models", .. }), "{error}");
    assert_eq!(attacked.resolve(1, MODEL).unwrap(), 7);
    // Signed as `models` with the key of `fleet`.
    attacked.refresh(2).unwrap();
    attacked.refuses(RefusalKind::Signature, |it| {
        it.refresh(2)?;
        it.resolve(2, "models/evil/3/model.onnx").map(drop)
    });
}

#[test]
fn truncated_trusted_store() {
    let mut attacked = Attacked::by("rollback");
    attacked.refresh(1).unwrap();
    let file = attacked.folder.path().join("updates/tuf/trusted.json");
    for length in [0, 1, 1000] {
        std::fs::OpenOptions::new().write(true).open(&file).unwrap().set_len(length).unwrap();
        attacked.restart();
        assert_eq!(attacked.events.try_next(), Some(AuditEvent::MetadataDamaged), "{length}");
        // An empty store would take the old repository.
        let error = attacked.refresh(0).unwrap_err();
        assert!(matches!(error, TrustError::Damaged { .. }), "{length}: {error}");
        TrustedMetadata::reset(&attacked.folder.path().join("updates")).unwrap();
        attacked.restart();
        attacked.refresh(1).unwrap();
    }
}

fn on_network(address: SocketAddr) -> RepositorySource {
    let egress = Egress::new(&EgressConfig::default(), AuditSink::to_nowhere());
    let address = format!("http://{address}").parse().unwrap();
    RepositorySource::new(&address, source::client(&address, &egress, None, TlsClientSettings::default))
}

#[test]
fn endless_data_attack_on_metadata() {
    for name in ["timestamp.json", "2.root.json", "2.snapshot.json", "2.targets.json", "2.models.json"] {
        let mut attacked = Attacked::by("honest");
        attacked.refresh(0).unwrap();
        let folder = attacked.state(1);
        let address = server(
            move |path, stream| {
                if path.ends_with(name) { endless(stream) } else { file(&folder, path, stream) }
            },
        );
        let source = on_network(address);
        attacked.refuses(RefusalKind::TooLong, |it| {
            it.refresh_from(&source)?;
            it.runtime.block_on(it.trust.resolve(&source, MODEL)).map(drop)
        });
    }
}

#[test]
fn endless_data_attack_on_a_target() {
    let attacked = Attacked::by("honest");
    let folder = attacked.state(0);
    let address = server(
        move |path, stream| {
            if path.starts_with("/targets/") { endless(stream) } else { file(&folder, path, stream) }
        },
    );
    let here = attacked.folder.path();
    let (metadata, targets) = (here.join("plain"), here.join("fetched"));
    std::fs::create_dir(&metadata).unwrap();
    std::fs::create_dir(&targets).unwrap();
    assert!(plain(&metadata, &["init", here.join("root.json").to_str().unwrap()]));
    let (metadata_url, targets_url) = (format!("http://{address}/metadata"), format!("http://{address}/targets"));
    let mut arguments = vec!["--metadata-url", &metadata_url, "--target-base-url", &targets_url];
    arguments.extend(["--target-name", MODEL, "--target-dir", targets.to_str().unwrap(), "download"]);
    assert!(!plain(&metadata, &arguments));
    assert_eq!(std::fs::read_dir(&targets).unwrap().count(), 0);
}

#[test]
fn slow_retrieval_attack() {
    let mut attacked = Attacked::by("honest");
    let limit = Duration::from_secs(1);
    // Never a stall, and never an end in time.
    let address = server(|_, stream| {
        stream.write_all(b"HTTP/1.1 200 OK\r\nContent-Length: 60000\r\n\r\n")?;
        loop {
            stream.write_all(b" ")?;
            std::thread::sleep(Duration::from_millis(20));
        }
    });
    attacked.trust.set_timeout(limit);
    let started = Instant::now();
    let error = attacked.refresh_from(&on_network(address)).unwrap_err();
    assert!(matches!(error, TrustError::Slow { .. }), "{error}");
    assert!((limit..limit * 20).contains(&started.elapsed()), "{:?}", started.elapsed());
    // Nothing is held up by it afterwards.
    attacked.refresh(0).unwrap();
}
