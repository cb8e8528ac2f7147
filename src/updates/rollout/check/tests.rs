use ledge_base::clock;
use ledge_service::audit_event::AuditSink;

use super::*;
use crate::trust::tests::signer::{self, Signer};

const TEXT: &str = r#"{"schema": 1, "fleet": "default", "published": "2026-11-20T00:00:00Z", "rollouts": []}"#;

fn target(length: u64) -> TufTarget {
    let sha256 = sha256_hex(TEXT.as_bytes());
    TufTarget { path: "x".into(), length, sha256, custom: None, location: "rollout.json".into() }
}

#[tokio::test]
#[expect(clippy::disallowed_methods, reason = "the test makes the repository")]
async fn a_manifest_is_fetched_up_to_its_signed_length_and_not_beyond() {
    let folder = tempfile::tempdir().unwrap();
    std::fs::create_dir(folder.path().join("targets")).unwrap();
    std::fs::write(folder.path().join("targets/rollout.json"), TEXT).unwrap();
    let source = RepositorySource::new(&format!("file://{}", folder.path().display()).parse().unwrap(), None);
    let length = TEXT.len() as u64;
    assert_eq!(fetch(&source, &target(length)).await.unwrap(), TEXT.as_bytes());
    assert!(matches!(fetch(&source, &target(length - 1)).await, Err(RolloutCheckError::Mismatch)));
    assert!(matches!(fetch(&source, &target(2 << 20)).await, Err(RolloutCheckError::TooLarge { .. })));
}

#[test]
fn only_the_signed_manifest_of_this_fleet_is_read() {
    let (sha256, fleet) = (sha256_hex(TEXT.as_bytes()), "default".parse().unwrap());
    let accepted = read(TEXT.into(), &sha256, &fleet, 7).unwrap();
    assert_eq!((accepted.expires_ms, accepted.text.as_str()), (7, TEXT));
    let changed = TEXT.replace("default", "DEFAULT");
    assert!(matches!(read(changed.into(), &sha256, &fleet, 7), Err(RolloutCheckError::Mismatch)));
    let other = read(TEXT.into(), &sha256, &"kitchens".parse().unwrap(), 7).unwrap_err();
    let RolloutCheckError::OtherFleet { found, own } = other else { panic!("{other}") };
    assert_eq!((found.as_str(), own.as_str()), ("default", "kitchens"));
}

const PATH: &str = "fleet/default/rollout.json";

/// Signs `text` as the manifest, and publishes `published` in its place.
fn publish(signer: &mut Signer, text: &str, published: &str) {
    signer.list("fleet", PATH, text.as_bytes());
    signer.publish();
    let sha256 = signer::sha256(text.as_bytes());
    let file = signer.metadata(&format!("../targets/fleet/default/{sha256}.rollout.json"));
    std::fs::create_dir_all(file.parent().unwrap()).unwrap();
    ledge_base::durable::replace(&file, published.as_bytes()).unwrap();
}

/// A box of the fleet `default`.
struct FleetDevice {
    _folder: tempfile::TempDir,
    platform: Platform,
    source: RepositorySource,
}

impl FleetDevice {
    fn new(signer: &Signer, root_file: std::path::PathBuf) -> Self {
        let (folder, source) = (tempfile::tempdir().unwrap(), signer.source());
        let audit = AuditSink::to_nowhere();
        let platform = Platform::new(folder.path().to_owned(), root_file, audit, source.clone());
        Self { _folder: folder, platform, source }
    }

    async fn check(&self, known: Option<&SignedManifest>) -> Result<SignedManifest, RolloutCheckError> {
        check(&self.platform, &self.source, &"default".parse().unwrap(), known, clock::unix_millis()).await
    }
}

#[tokio::test]
async fn a_signed_manifest_is_accepted_once_and_not_fetched_again() {
    let mut signer = Signer::new();
    publish(&mut signer, TEXT, TEXT);
    let device = FleetDevice::new(&signer, signer.root_file());
    let accepted = device.check(None).await.unwrap();
    assert_eq!((accepted.text.as_str(), accepted.expires_ms), (TEXT, signer::at("2099-01-01T00:00:00Z")));
    std::fs::remove_dir_all(signer.metadata("../targets")).unwrap();
    assert_eq!(device.check(Some(&accepted)).await.unwrap(), accepted);
    assert!(matches!(device.check(None).await, Err(RolloutCheckError::Source(_))));

    signer.bump();
    let other = TEXT.replace("2026-11-20", "2026-11-19");
    publish(&mut signer, &other, &other);
    assert_eq!(device.check(Some(&accepted)).await.unwrap().text, other);
    let roles = device.platform.trust().await.unwrap().roles();
    assert_eq!((roles["fleet"].version, roles["timestamp"].version), (2, 2));
}

#[tokio::test]
async fn a_replaced_manifest_is_refused() {
    let mut signer = Signer::new();
    publish(&mut signer, TEXT, &TEXT.replace("2026-11-20", "2026-11-21"));
    let device = FleetDevice::new(&signer, signer.root_file());
    assert!(matches!(device.check(None).await, Err(RolloutCheckError::Mismatch)));
    publish(&mut signer, TEXT, &format!("{TEXT} "));
    assert!(matches!(device.check(None).await, Err(RolloutCheckError::Mismatch)));
}

#[tokio::test]
async fn a_file_that_a_server_had_wrong_for_a_minute_poisons_nothing() {
    let mut signer = Signer::new();
    publish(&mut signer, TEXT, TEXT);
    let device = FleetDevice::new(&signer, signer.root_file());
    let first = device.check(None).await.unwrap();
    signer.bump();
    let other = TEXT.replace("2026-11-20", "2026-11-19");
    publish(&mut signer, &other, &other);
    let manifest = format!("../targets/fleet/default/{}.rollout.json", signer::sha256(other.as_bytes()));
    // In the order in which they are fetched: accepted files are not fetched again.
    let roles = ["timestamp.json", "2.snapshot.json", "2.targets.json", "2.fleet.json"].map(str::to_owned);
    let names: Vec<String> = roles.into_iter().chain([manifest]).collect();
    for name in names {
        let path = signer.metadata(&name);
        let right = std::fs::read(&path).unwrap();
        let mut flipped = right.clone();
        flipped[right.len() / 2] ^= 1;
        for wrong in [flipped.as_slice(), &right[..right.len() / 2], b"", b"<html>502</html>"] {
            ledge_base::durable::replace(&path, wrong).unwrap();
            device.check(Some(&first)).await.unwrap_err();
        }
        std::fs::remove_file(&path).unwrap();
        device.check(Some(&first)).await.unwrap_err();
        ledge_base::durable::replace(&path, &right).unwrap();
    }
    assert_eq!(device.check(Some(&first)).await.unwrap().text, other);
}

#[tokio::test]
async fn a_manifest_whose_role_has_expired_is_not_accepted() {
    let mut signer = Signer::new();
    signer.expire("fleet", signer::at("2020-01-01T00:00:00Z"));
    publish(&mut signer, TEXT, TEXT);
    let device = FleetDevice::new(&signer, signer.root_file());
    let error = device.check(None).await.unwrap_err();
    assert!(error.to_string().contains("fleet expired at 2020-01-01"), "{error}");
}

#[tokio::test]
async fn a_root_file_that_comes_later_is_found() {
    let mut signer = Signer::new();
    publish(&mut signer, TEXT, TEXT);
    let later = tempfile::tempdir().unwrap();
    let root_file = later.path().join("root.json");
    let device = FleetDevice::new(&signer, root_file.clone());
    assert!(matches!(device.check(None).await, Err(RolloutCheckError::Trust(TrustError::RootFile { .. }))));
    std::fs::copy(signer.root_file(), root_file).unwrap();
    device.check(None).await.unwrap();
}
