//! Tests against repositories that are signed here, in a folder.

pub(crate) mod signer;

use ledge_base::clock;
use ledge_service::audit_event::{AuditQueue, AuditSink};

use super::*;
use crate::config::RepositoryAddress;
use signer::{Signer, at};

/// A box, and its audit events.
struct AuditedDevice {
    folder: tempfile::TempDir,
    root_file: PathBuf,
    events: AuditQueue,
    trust: TrustedMetadata,
}

impl AuditedDevice {
    fn new(platform: &Signer) -> Self {
        let folder = tempfile::tempdir().unwrap();
        Self::at(folder, platform.root_file())
    }

    fn at(folder: tempfile::TempDir, root_file: PathBuf) -> Self {
        let (audit, events) = AuditSink::channel();
        let trust = TrustedMetadata::open(folder.path(), &root_file, audit).unwrap();
        Self { folder, root_file, events, trust }
    }

    /// Opens it again, as after a restart.
    fn again(self) -> Self {
        let Self { folder, root_file, trust, .. } = self;
        drop(trust);
        Self::at(folder, root_file)
    }

    async fn refresh(&mut self, platform: &Signer) -> Result<RefreshSummary, TrustError> {
        self.trust.refresh(&platform.source(), clock::unix_millis()).await
    }

    fn audited(&mut self) -> Vec<AuditEvent> {
        std::iter::from_fn(|| self.events.try_next()).collect()
    }

    fn file(&self) -> PathBuf {
        self.folder.path().join("tuf/trusted.json")
    }

    fn versions(&self) -> Vec<(String, u64)> {
        self.trust.versions().into_iter().collect()
    }
}

fn refused(result: Result<impl std::fmt::Debug, TrustError>) -> RefusalKind {
    let error = result.unwrap_err();
    error.refusal().unwrap_or_else(|| panic!("{error}"))
}

const MODEL: &str = "models/minilm/2/model.onnx";
const MANIFEST: &str = "fleet/default/rollout.json";

#[tokio::test]
async fn a_target_is_found_through_the_role_that_must_sign_it() {
    let mut platform = Signer::new();
    platform.list("models", MODEL, b"model");
    platform.list("fleet", MANIFEST, b"{}");
    platform.publish();
    let mut device = AuditedDevice::new(&platform);
    assert!(matches!(device.trust.resolve(&platform.source(), MODEL).await, Err(TrustError::NotRefreshed)));
    let refreshed = device.refresh(&platform).await.unwrap();
    assert_eq!(refreshed.changed.keys().collect::<Vec<_>>(), ["root", "snapshot", "targets", "timestamp"]);
    let target = device.trust.resolve(&platform.source(), MODEL).await.unwrap();
    let sha256 = signer::sha256(b"model");
    assert_eq!((target.length, target.sha256.as_str()), (5, sha256.as_str()));
    assert_eq!(target.location, format!("models/minilm/2/{sha256}.model.onnx"));
    assert_eq!(target.custom, Some(serde_json::json!({"ledge": {"schema": 1}})));
    assert!(device.trust.resolve(&platform.source(), MANIFEST).await.is_ok());
    let absent = device.trust.resolve(&platform.source(), "models/minilm/3/model.onnx").await;
    assert!(matches!(absent, Err(TrustError::NotListed { role: "models", .. })), "{absent:?}");
    let accepted: Vec<_> = ["root", "snapshot", "targets", "timestamp", "models", "fleet"]
        .map(|role| AuditEvent::MetadataAccepted { role: role.to_owned(), version: 1 })
        .into();
    assert_eq!(device.audited(), accepted);
}

#[tokio::test]
async fn a_model_that_the_fleet_key_names_does_not_count() {
    let mut platform = Signer::new();
    platform.list("fleet", MODEL, b"evil");
    platform.list("targets", "models/minilm/3/model.onnx", b"evil");
    platform.list("models", MANIFEST, b"{}");
    platform.publish();
    let mut device = AuditedDevice::new(&platform);
    device.refresh(&platform).await.unwrap();
    for (path, by, must) in
        [(MODEL, "fleet", "models"), ("models/minilm/3/model.onnx", "targets", "models"), (MANIFEST, "models", "fleet")]
    {
        match device.trust.resolve(&platform.source(), path).await {
            Err(TrustError::Unauthorised { role, must: expected, .. }) => {
                assert_eq!((role.as_str(), expected), (by, must));
            }
            other => panic!("{path}: {other:?}"),
        }
    }
    let refusals = device.audited();
    let refusal = AuditEvent::MetadataRefused { cause: "unauthorised".into() };
    assert_eq!(refusals.iter().filter(|event| **event == refusal).count(), 3);
}

#[tokio::test]
async fn a_delegation_counts_for_its_paths_only() {
    let mut platform = Signer::new();
    platform.paths = vec!["models/other/*/*".to_owned()];
    platform.list("models", MODEL, b"model");
    platform.publish();
    let mut device = AuditedDevice::new(&platform);
    device.refresh(&platform).await.unwrap();
    let found = device.trust.resolve(&platform.source(), MODEL).await;
    assert!(matches!(found, Err(TrustError::Unauthorised { .. } | TrustError::NotListed { .. })), "{found:?}");
}

#[tokio::test]
async fn a_target_without_sha256_is_refused() {
    let mut platform = Signer::new();
    platform.list("models", MODEL, b"model");
    platform.rename_hashes("models", MODEL, "sha512");
    platform.publish();
    let mut device = AuditedDevice::new(&platform);
    device.refresh(&platform).await.unwrap();
    let found = device.trust.resolve(&platform.source(), MODEL).await;
    assert!(matches!(found, Err(TrustError::NoSha256 { .. })), "{found:?}");
}

#[tokio::test]
async fn what_was_trusted_survives_a_restart_and_an_older_copy_is_refused() {
    let mut platform = Signer::new();
    platform.publish();
    let old = platform.copy();
    platform.bump();
    platform.publish();
    let mut device = AuditedDevice::new(&platform);
    device.refresh(&platform).await.unwrap();
    let trusted = device.versions();
    assert!(trusted.contains(&("timestamp".to_owned(), 2)));
    let mut device = device.again();
    assert_eq!(device.versions(), trusted);
    let older = device.trust.refresh(&old.source(), clock::unix_millis()).await;
    assert_eq!(refused(older), RefusalKind::Rollback);
    assert_eq!(device.audited(), [AuditEvent::MetadataRefused { cause: "rollback".into() }]);
    assert_eq!(device.versions(), trusted);
    // The right repository still works: nothing changed, so nothing is written either.
    let before = std::fs::metadata(device.file()).unwrap().modified().unwrap();
    assert!(device.refresh(&platform).await.unwrap().changed.is_empty());
    assert_eq!(std::fs::metadata(device.file()).unwrap().modified().unwrap(), before);
}

#[tokio::test]
async fn the_same_refusal_again_is_no_news_until_it_is_over() {
    let mut platform = Signer::new();
    platform.publish();
    let old = platform.copy();
    platform.bump();
    platform.publish();
    let mut device = AuditedDevice::new(&platform);
    device.refresh(&platform).await.unwrap();
    device.audited();
    let rollback = AuditEvent::MetadataRefused { cause: "rollback".into() };
    let expired = AuditEvent::MetadataRefused { cause: "expired".into() };
    let (right, late) = (clock::unix_millis(), at("2100-01-01T00:00:00Z"));
    let [older, newer] = [old.source(), platform.source()];
    let nowhere = RepositorySource::new(&RepositoryAddress::Folder("/nowhere".into()), None);
    for (source, system_ms, news) in [
        (&older, right, Some(&rollback)),
        (&older, right, None),
        (&nowhere, right, None),
        (&older, right, None),
        (&newer, late, Some(&expired)),
        (&newer, late + 1000, None),
        (&older, right, Some(&rollback)),
        (&newer, right, None),
        (&older, right, Some(&rollback)),
    ] {
        let _ = device.trust.refresh(source, system_ms).await;
        assert_eq!(device.audited().first(), news);
    }
    // Each target counts by itself.
    platform.bump();
    for path in ["models/a/1/m", "models/b/1/m"] {
        platform.list("fleet", path, b"evil");
    }
    platform.publish();
    device.trust.refresh(&newer, right).await.unwrap();
    let unauthorised = AuditEvent::MetadataRefused { cause: "unauthorised".into() };
    for (path, news) in [("models/a/1/m", 1), ("models/b/1/m", 1), ("models/a/1/m", 0)] {
        let found = device.trust.resolve(&newer, path).await;
        assert!(matches!(found, Err(TrustError::Unauthorised { .. })), "{found:?}");
        assert_eq!(device.audited().iter().filter(|event| **event == unauthorised).count(), news, "{path}");
    }
}

#[tokio::test]
async fn a_damaged_trusted_file_is_an_alarm_until_it_is_reset() {
    let platform = Signer::new();
    platform.publish();
    let mut device = AuditedDevice::new(&platform);
    device.refresh(&platform).await.unwrap();
    let mut content = std::fs::read(device.file()).unwrap();
    content.truncate(content.len() / 2);
    ledge_base::durable::replace(&device.file(), &content).unwrap();
    // The second start finds no file, and knows that there was one.
    for found in ["cannot be read", "is gone"] {
        device = device.again();
        assert_eq!(device.audited(), [AuditEvent::MetadataDamaged]);
        for _ in 0..2 {
            let error = device.refresh(&platform).await.unwrap_err().to_string();
            assert!(error.contains("ledge update reset-trust") && error.contains(found), "{error}");
        }
        assert!(device.trust.resolve(&platform.source(), MODEL).await.is_err());
        assert!(!device.file().exists());
    }
    TrustedMetadata::reset(device.folder.path()).unwrap();
    let mut device = device.again();
    assert_eq!(device.audited(), []);
    device.refresh(&platform).await.unwrap();
    let aside = device.folder.path().join("tuf/trusted.json.set-aside-1");
    assert_eq!(std::fs::read(aside).unwrap(), content);
}

#[tokio::test]
async fn what_cannot_be_written_down_is_not_accepted() {
    let mut platform = Signer::new();
    platform.publish();
    let mut device = AuditedDevice::new(&platform);
    device.refresh(&platform).await.unwrap();
    platform.bump();
    platform.publish();
    // A folder in place of the file, which also fails for root.
    let (file, kept) = (device.file(), std::fs::read(device.file()).unwrap());
    std::fs::remove_file(&file).unwrap();
    std::fs::create_dir_all(file.join("in the way")).unwrap();
    let trusted = device.versions();
    let error = device.refresh(&platform).await.unwrap_err();
    assert!(matches!(error, TrustError::Store { .. }), "{error}");
    assert_eq!(device.versions(), trusted);
    std::fs::remove_dir_all(&file).unwrap();
    ledge_base::durable::replace(&file, &kept).unwrap();
    assert_eq!(device.refresh(&platform).await.unwrap().changed.len(), 3);
    assert!(device.again().versions().contains(&("snapshot".to_owned(), 2)));
}

#[tokio::test]
async fn a_clock_at_2100_does_no_lasting_harm_and_one_at_1970_none_at_all() {
    let mut platform = Signer::new();
    platform.publish();
    let mut device = AuditedDevice::new(&platform);
    device.refresh(&platform).await.unwrap();
    let source = platform.source();
    let wrong = device.trust.refresh(&source, at("2100-01-01T00:00:00Z")).await;
    assert_eq!(refused(wrong), RefusalKind::Expired);
    let mut device = device.again();
    assert!(device.trust.now_ms(0) < at("2099-01-01T00:00:00Z"));
    device.refresh(&platform).await.unwrap();
    device.trust.refresh(&source, 0).await.unwrap();
    // Setting the clock back does not make expired metadata valid.
    platform.expire("timestamp", clock::built_ms() - 1000);
    platform.bump();
    platform.publish();
    assert_eq!(refused(device.trust.refresh(&source, 0).await), RefusalKind::Expired);
}

#[tokio::test]
async fn signed_metadata_proves_the_time_up_to_its_own_expiry() {
    let mut platform = Signer::new();
    let now = clock::unix_millis();
    let hour = 3_600_000;
    platform.expire("timestamp", now + 10 * hour);
    platform.signed_at = Some(now + hour);
    platform.publish();
    let mut device = AuditedDevice::new(&platform);
    device.trust.refresh(&platform.source(), now).await.unwrap();
    assert_eq!(device.trust.now_ms(0), now + hour);
    device.trust.prove(now + 2 * hour).unwrap();
    device.trust.prove(now).unwrap();
    let mut device = device.again();
    assert_eq!(device.trust.now_ms(0), now + 2 * hour);
    assert!(matches!(device.trust.prove(now + 3 * hour), Err(TrustError::NotRefreshed)));
    let refreshed = device.trust.refresh(&platform.source(), now).await.unwrap();
    assert_eq!(refreshed.expires_ms / 1000, (now + 10 * hour) / 1000);
    device.trust.prove(at("2100-01-01T00:00:00Z")).unwrap();
    assert_eq!(device.trust.now_ms(0), refreshed.expires_ms);
    assert_eq!(device.trust.now_ms(now + 11 * hour), now + 11 * hour);
}

#[tokio::test]
async fn another_platforms_root_is_told_apart() {
    let platform = Signer::new();
    platform.publish();
    let mut device = AuditedDevice::new(&platform);
    device.refresh(&platform).await.unwrap();
    let other = Signer::new();
    device.root_file = other.root_file();
    let mut device = device.again();
    let error = device.refresh(&platform).await.unwrap_err();
    assert!(matches!(error, TrustError::OtherRoot { version: 1, .. }), "{error}");
    let absent = TrustedMetadata::open(device.folder.path(), Path::new("/nowhere/root.json"), AuditSink::to_nowhere());
    assert!(matches!(absent, Err(TrustError::RootFile { .. })));
}

#[tokio::test]
async fn a_repository_without_anything_is_told_as_such() {
    let platform = Signer::new();
    platform.publish();
    let mut device = AuditedDevice::new(&platform);
    std::fs::remove_file(platform.metadata("timestamp.json")).unwrap();
    let error = device.refresh(&platform).await.unwrap_err();
    assert!(matches!(error, TrustError::Incomplete { .. }) && error.to_string().contains("timestamp.json"), "{error}");
    // Metadata that does not end is cut off, and other bytes are refused.
    for (content, refusal) in
        [(vec![b' '; (64 << 10) + 1], RefusalKind::TooLong), (b"{}".to_vec(), RefusalKind::Malformed)]
    {
        ledge_base::durable::replace(&platform.metadata("timestamp.json"), &content).unwrap();
        assert_eq!(refused(device.refresh(&platform).await), refusal);
    }
}

#[tokio::test]
async fn no_changed_byte_gets_by_the_signatures() {
    let mut platform = Signer::new();
    platform.signed_at = Some(at("2026-11-20T00:00:00Z"));
    platform.publish();
    for name in ["timestamp.json", "1.snapshot.json", "1.targets.json"] {
        let file = platform.metadata(name);
        let content = std::fs::read(&file).unwrap();
        let signed = |bytes: &[u8]| serde_json::from_slice::<Value>(bytes).ok().map(|value| value["signed"].clone());
        for at in (0..content.len()).step_by(7) {
            let mut changed = content.clone();
            changed[at] ^= 1 << (at % 7);
            ledge_base::durable::replace(&file, &changed).unwrap();
            let refreshed = AuditedDevice::new(&platform).refresh(&platform).await;
            assert!(refreshed.is_err() || signed(&changed) == signed(&content), "{name}: byte {at}");
        }
        ledge_base::durable::replace(&file, &content).unwrap();
    }
    assert!(AuditedDevice::new(&platform).refresh(&platform).await.is_ok());
}

#[tokio::test]
async fn what_a_newer_snapshot_takes_back_is_refused_however_often_it_is_tried() {
    let mut platform = Signer::new();
    platform.publish();
    platform.bump();
    platform.publish();
    let mut device = AuditedDevice::new(&platform);
    device.refresh(&platform).await.unwrap();
    platform.bump();
    platform.models_pin = Some(1);
    platform.publish();
    for _ in 0..3 {
        assert_eq!(refused(device.refresh(&platform).await), RefusalKind::Rollback);
        device = device.again();
    }
    platform.bump();
    platform.models_pin = None;
    platform.publish();
    device.refresh(&platform).await.unwrap();
}
