//! Tests with a join file that `ledge-platform box add` made, and with certificates made here.

mod questions;

use aws_lc_rs::signature::{ED25519, KeyPair as _, UnparsedPublicKey};
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use ledge_base::clock;
use ledge_base::names::DeviceName;
use ledge_base::secret::SecretFile;
use ledge_identity::sealing::{MASTER_KEY_BYTES, Sealer};
use ledge_listener::tls::CertificateFacts;
use proptest::prelude::*;
use rcgen::{BasicConstraints, CertificateParams, DnType, ExtendedKeyUsagePurpose, IsCa, Issuer, KeyPair};
use rcgen::{PublicKeyData as _, SigningKey as _};
use serde_json::{Value, json};

use crate::certificates::{CertificateChain, CertificateError, private_key, renewal_ms};
use crate::config::MembershipConfig;
use crate::envelope::{Envelope, signed_bytes};
use crate::folder::{MembershipFolder, Standing};
use crate::join::{JoinError, PreparedMembership};
use crate::join_file::{Invitation, JoinFile, JoinFileError, is_inbox};
use crate::request::{PendingRequest, RequestSigner};
use crate::settings::{SettingsError, compose};

/// A join file of `ledge-platform box add`, for box-2.
const MADE: &[u8] = include_bytes!("../../tests/data/membership/box-2.join");

/// A moment at which it is good.
fn then() -> u64 {
    at("2026-12-03T00:00:00Z")
}

fn at(moment: &str) -> u64 {
    clock::parse_micros(moment).unwrap().unsigned_abs() / 1000
}

fn made() -> JoinFile {
    JoinFile::open(MADE, then()).unwrap()
}

fn device(name: &str) -> DeviceName {
    name.parse().unwrap()
}

/// A root, and the PEM of a certificate below it for a common name, with its key.
struct TestAuthority {
    root: String,
    issuer: Issuer<'static, KeyPair>,
}

impl TestAuthority {
    fn new() -> Self {
        let key = KeyPair::generate().unwrap();
        let mut root = CertificateParams::default();
        root.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        root.distinguished_name.push(DnType::CommonName, "root");
        let pem = root.self_signed(&key).unwrap().pem();
        Self { root: pem, issuer: Issuer::new(root, key) }
    }

    fn issue(&self, name: &str) -> (String, KeyPair) {
        let key = KeyPair::generate().unwrap();
        let mut leaf = CertificateParams::default();
        leaf.distinguished_name = rcgen::DistinguishedName::new();
        leaf.distinguished_name.push(DnType::CommonName, name);
        leaf.extended_key_usages = vec![ExtendedKeyUsagePurpose::ClientAuth];
        (leaf.signed_by(&key, &self.issuer).unwrap().pem(), key)
    }

    /// A join file like the real one, with changes, signed by the certificate of `signer`.
    fn join_file(&self, signer: &str, changes: &Value) -> Vec<u8> {
        let (certificate, key) = self.issue(signer);
        let mut payload: Value = serde_json::from_slice(&Envelope::read(MADE).unwrap().payload().unwrap()).unwrap();
        payload["ca"] = json!(self.root);
        for (name, value) in changes.as_object().unwrap() {
            payload[name] = value.clone();
        }
        let payload = payload.to_string();
        let kind = "application/vnd.ledge.join-file+json";
        let envelope = Envelope::sign(kind, payload.as_bytes(), "platform", |bytes| key.sign(bytes)).unwrap();
        let mut envelope = serde_json::to_value(envelope).unwrap();
        envelope["signatures"][0]["certificate"] = json!(certificate);
        serde_json::to_vec(&envelope).unwrap()
    }
}

fn refusal(bytes: &[u8], now_ms: u64) -> String {
    JoinFile::open(bytes, now_ms).unwrap_err().to_string()
}

#[test]
fn a_join_file_of_the_platform_is_read() {
    let JoinFile { invitation, fingerprint, sha256 } = made();
    assert_eq!((invitation.platform.as_str(), invitation.device.clone()), ("example", Some(device("box-2"))));
    assert_eq!(fingerprint, "68e57f09d5dfd801638141440ac467e57c6a01168024c56798d47cc9c77a9cd0");
    assert!(sha256.len() == 64 && is_inbox(&invitation.inbox));
    assert_eq!(
        format!("{invitation:?}"),
        "Invitation { platform: \"example\", device: Some(DeviceName(\"box-2\")), .. }"
    );
}

#[test]
fn a_join_file_is_good_until_its_end() {
    assert!(refusal(MADE, at("2027-01-02T00:00:00Z")).contains("expired at 2026-12-16T04:17:51Z"));
    let late = refusal(MADE, at("2028-01-02T00:00:00Z"));
    assert!(late.contains("the certificate expired at 20") && late.contains("shows 2028-01-02T00:00:00Z"), "{late}");
}

#[test]
fn a_wrong_clock_is_named_where_it_makes_a_signature_invalid() {
    let said = refusal(MADE, 0);
    assert!(said.contains("the clock of this box shows 1970-01-01T00:00:00Z. Set the clock"), "{said}");
    assert!(!said.contains("changed"), "{said}");
}

#[test]
fn a_changed_join_file_is_refused() {
    let envelope: Value = serde_json::from_slice(MADE).unwrap();
    let payload = STANDARD.decode(envelope["payload"].as_str().unwrap()).unwrap();
    for position in (0..payload.len()).step_by(97) {
        let mut changed = payload.clone();
        changed[position] ^= 1;
        let mut envelope = envelope.clone();
        envelope["payload"] = json!(STANDARD.encode(&changed));
        assert!(JoinFile::open(&serde_json::to_vec(&envelope).unwrap(), then()).is_err(), "byte {position}");
    }
    let mut without = envelope.clone();
    without["signatures"] = json!([]);
    assert!(matches!(JoinFile::open(&serde_json::to_vec(&without).unwrap(), then()), Err(JoinFileError::Other)));
    let mut kind = envelope;
    kind["payloadType"] = json!("application/vnd.ledge.join-request+json");
    assert!(matches!(JoinFile::open(&serde_json::to_vec(&kind).unwrap(), then()), Err(JoinFileError::Other)));
}

#[test]
fn only_the_platforms_own_certificate_signs_join_files() {
    let authority = TestAuthority::new();
    JoinFile::open(&authority.join_file("platform", &json!({})), then()).unwrap();
    let refused = refusal(&authority.join_file("box-1", &json!({})), then());
    assert!(refused.contains("is for box-1, and not for platform"), "{refused}");
    let other = TestAuthority::new();
    let refused = refusal(&authority.join_file("platform", &json!({ "ca": other.root })), then());
    assert!(refused.contains("the certificate is not valid"), "{refused}");
}

#[test]
fn a_join_file_of_another_version_or_with_wrong_values_says_so() {
    let authority = TestAuthority::new();
    let said = |changes: Value| refusal(&authority.join_file("platform", &changes), then());
    assert!(said(json!({ "version": 2 })).contains("version 2"));
    assert!(said(json!({ "inbox": "../../etc/passwd" })).contains("inbox"));
    assert!(said(json!({ "secret": "AAAA" })).contains("secret"));
    assert!(said(json!({ "expires": "soon" })).contains("expires"));
    assert!(said(json!({ "box": "a/b" })).contains("cannot be read"));
    assert!(said(json!({ "join": "ftp://x" })).contains("cannot be read"));
}

proptest! {
    #[test]
    fn any_bytes_are_a_join_file_or_an_error(bytes in prop::collection::vec(any::<u8>(), 0..400)) {
        prop_assert!(JoinFile::open(&bytes, then()).is_err());
    }

    #[test]
    fn a_damaged_join_file_is_an_error(position in 0..MADE.len(), bit in 0..8_u8) {
        let mut damaged = MADE.to_vec();
        damaged[position] ^= 1 << bit;
        // White space and the key id mean nothing, and the certificate may have its sections written otherwise.
        if let Ok(file) = JoinFile::open(&damaged, then()) {
            prop_assert_eq!(file.invitation.platform.as_str(), "example");
            prop_assert_eq!(&file.fingerprint, &made().fingerprint);
        }
    }
}

#[test]
fn the_settings_of_a_member_are_toml_with_all_destinations() {
    let folder = MembershipFolder::new("/var/lib/ledge/membership".as_ref(), Sealer::none());
    let text = compose(&made().invitation, &device("box-2"), &folder, true, |_| false).unwrap();
    let settings: toml::Table = text.parse().unwrap();
    assert_eq!(settings["device"]["id"].as_str(), Some("box-2"));
    assert_eq!(settings["updates"]["repository"].as_str(), Some("https://localhost:18443"));
    assert_eq!(settings["membership"]["key_file"].as_str(), Some("credential:ledge-membership"));
    let allow = settings["egress"]["allow"].as_array().unwrap();
    let hosts: Vec<_> = allow.iter().map(|entry| entry["host"].as_str().unwrap()).collect();
    assert_eq!(hosts, ["localhost:18443", "localhost:18883"]);
    let sent: Vec<_> = allow[0]["send"].as_array().unwrap().iter().map(|word| word.as_str().unwrap()).collect();
    assert_eq!(sent, ["certificates", "requests", "audit"]);
}

#[test]
fn a_join_file_with_metrics_opens_a_port_for_the_prometheus_of_the_platform() {
    let authority = TestAuthority::new();
    let folder = MembershipFolder::new("/m".as_ref(), Sealer::none());
    let settings = |metrics: &Value| -> toml::Table {
        let file = authority.join_file("platform", &json!({ "metrics": metrics }));
        let invitation = JoinFile::open(&file, then()).unwrap().invitation;
        compose(&invitation, &device("box-2"), &folder, false, |_| false).unwrap().parse().unwrap()
    };
    let set = settings(&json!("shop-7.example:9443"));
    let expected = "[http]\nlisten = ['https://0.0.0.0:9443']\n[http.tls]\ncertificate_file = '/m/identity.pem'\n\
                    key_file = '/m/identity.pem'\nclient_ca_file = '/m/ca.pem'\nclient_certificates = 'optional'\n\
                    [[access.certificates]]\nname = 'prometheus'\nroles = ['viewer']";
    let expected: toml::Table = expected.parse().unwrap();
    assert_eq!((set.get("http"), set.get("access")), (expected.get("http"), expected.get("access")));
    let listen = |metrics: &str| settings(&json!(metrics))["http"]["listen"][0].as_str().unwrap().to_owned();
    assert_eq!(listen("192.0.2.7:9500"), "https://0.0.0.0:9500");
    assert_eq!(listen("[2001:db8::7]:9500"), "https://[::]:9500");

    let without = settings(&json!(null));
    assert_eq!((without.get("http"), without.get("access")), (None, None));
    let refused = authority.join_file("platform", &json!({ "metrics": "shop-7" }));
    assert!(refusal(&refused, then()).contains("expected \"HOST:PORT\""));
}

#[test]
fn a_join_file_sets_only_what_a_platform_may_set() {
    let authority = TestAuthority::new();
    let settings = |text: &str| {
        let file = authority.join_file("platform", &json!({ "settings": text, "broker": "mqtts://[::1]" }));
        let folder = MembershipFolder::new("/m".as_ref(), Sealer::none());
        let invitation = JoinFile::open(&file, then()).unwrap().invitation;
        compose(&invitation, &device("box-2"), &folder, false, |key| key == "serving.max_queue_size")
    };
    let set = settings("[serving]\nmax_queue_size = 7").unwrap();
    assert!(set.contains("max_queue_size = 7") && set.contains("host = \"[::1]:8883\""), "{set}");
    let refused = settings("[egress]\nresidency = []");
    assert!(matches!(refused, Err(SettingsError::Forbidden(key)) if key == "egress.residency"));
    assert!(matches!(settings("[serving"), Err(SettingsError::Settings(_))));
}

#[test]
fn a_request_proves_the_join_file_and_names_its_key() {
    let Invitation { inbox, .. } = &made().invitation;
    let key = made().invitation.secret_key().unwrap();
    let signer = RequestSigner::Invited { key: &key, inbox, join_file: "5a" };
    let request = PendingRequest::make(&device("box-2"), Some("ledge.audit/box-2+1+2"), &signer, then()).unwrap();
    let payload = request.envelope.payload().unwrap();
    let signature = &request.envelope.signatures[0];
    let message = signed_bytes(&request.envelope.payload_type, &payload);
    let public = UnparsedPublicKey::new(&ED25519, key.public_key().as_ref());
    public.verify(&message, &signature.bytes().unwrap()).unwrap();
    assert_eq!(&signature.keyid, inbox);
    let payload: Value = serde_json::from_slice(&payload).unwrap();
    assert_eq!((payload["kind"].as_str(), payload["box"].as_str()), (Some("join"), Some("box-2")));
    assert_eq!(payload["at"], "2026-12-03T00:00:00Z");
    assert!(is_inbox(&request.inbox) && payload["inbox"] == request.inbox.as_str());
    let own = KeyPair::from_pem(&request.key).unwrap();
    let digest = aws_lc_rs::digest::digest(&aws_lc_rs::digest::SHA256, &own.subject_public_key_info());
    assert_eq!(request.id, hex::encode(digest));
}

#[test]
fn a_certificate_is_renewed_after_two_thirds_of_its_life() {
    let (pem, key) = TestAuthority::new().issue("box-2");
    let facts = CertificateChain::from_pem(pem.as_bytes()).unwrap().facts().unwrap();
    let facts = CertificateFacts { not_before_ms: 1_000, not_after_ms: 91_000, ..facts };
    assert_eq!(renewal_ms(&facts), 61_000);
    assert!(facts.has_public_key(&key.subject_public_key_info()) && !facts.serial.is_empty());
    assert_eq!(CertificateChain::from_pem(b"nothing"), Err(CertificateError::None));
}

#[test]
fn certificate_and_key_are_read_again_from_the_file_that_has_both() {
    let folder = tempfile::tempdir().unwrap();
    let folder = MembershipFolder::new(folder.path(), Sealer::none());
    let (certificate, key) = TestAuthority::new().issue("box-2");
    folder.save_identity(&certificate, &key.serialize_pem()).unwrap();
    let identity = folder.identity().unwrap().unwrap();
    let read = private_key(&identity).unwrap();
    assert_eq!(read.subject_public_key_info(), key.subject_public_key_info());
    let facts = CertificateChain::from_pem(&identity).unwrap().facts().unwrap();
    assert!(facts.has_public_key(&read.subject_public_key_info()));
    assert!(matches!(private_key(certificate.as_bytes()), Err(CertificateError::UnreadableKey(_))));
}

#[test]
fn a_membership_is_written_whole_and_its_private_keys_are_encrypted() {
    let state = tempfile::tempdir().unwrap();
    let key_file = state.path().join("key");
    ledge_base::durable::create_private(&key_file, &[7; MASTER_KEY_BYTES]).unwrap();
    let config = MembershipConfig { path: state.path().join("membership"), ..MembershipConfig::default() };
    let write = |replaces, key| PreparedMembership::write(&config, &made(), &device("box-2"), replaces, key, |_| false);
    write(false, None).unwrap().discard().unwrap();
    assert!(!config.folder().unwrap().exists());

    let sealer = Sealer::with_keys(&[[7; MASTER_KEY_BYTES]]);
    write(false, Some(sealer)).unwrap().commit().unwrap();
    let config = MembershipConfig { key_file: Some(SecretFile::Path(key_file)), ..config };
    let folder = config.folder().unwrap();
    let membership = folder.membership().unwrap().unwrap();
    assert!(matches!(membership.standing, Standing::Joining { .. }));
    folder.save_identity("-----BEGIN CERTIFICATE-----\n", "-----BEGIN PRIVATE KEY-----\n").unwrap();
    let stored = std::fs::read(folder.identity_file()).unwrap();
    assert!(Sealer::is_sealed(&stored));
    let both = folder.identity().unwrap().unwrap();
    assert_eq!(both.as_slice(), b"-----BEGIN CERTIFICATE-----\n-----BEGIN PRIVATE KEY-----\n");

    let again = PreparedMembership::write(&config, &made(), &device("box-2"), false, None, |_| false);
    assert!(matches!(again, Err(JoinError::Member { .. })));
    let again = PreparedMembership::write(&config, &made(), &device("box-2"), true, None, |_| false);
    again.unwrap().commit().unwrap();
    assert!(state.path().join("membership.before").is_dir() && !state.path().join("membership.new").exists());
    let without = MembershipConfig { key_file: None, ..config };
    let error = MembershipFolder::new(&without.path, Sealer::with_keys(&[[8; 32]])).membership().unwrap_err();
    assert!(error.to_string().contains("encrypted with the master key"), "{error}");
}
