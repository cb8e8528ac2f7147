//! Properties that hold for any bytes in place of metadata. The folder `fuzz/` and `tests/it/fuzz.rs` feed it.

use std::sync::LazyLock;

use aws_lc_rs::signature::{Ed25519KeyPair, KeyPair};
use serde_json::{Value, json};
use sigstore_tuf::canonical_json::to_canonical_bytes;
use sigstore_tuf::{Metadata, Root, Snapshot, Targets, Timestamp, TrustedMetadataSet};

use super::{store, time};

/// The top-level roles, in the order in which they are trusted.
const ROLES: [&str; 4] = ["root", "timestamp", "snapshot", "targets"];

/// The time by which expiry is judged, before all of it expires, in milliseconds since the Unix epoch.
const NOW_MS: u64 = 1_800_000_000_000;

/// Metadata of every role. The key is public, and nothing else is signed with it.
static SIGNED_METADATA: LazyLock<[Vec<u8>; 4]> = LazyLock::new(|| {
    let key = Ed25519KeyPair::from_seed_unchecked(&[7; 32]).unwrap_or_else(|error| unreachable!("{error}"));
    let public =
        json!({"a": {"keytype": "ed25519", "scheme": "ed25519", "keyval": {"public": hex::encode(key.public_key())}}});
    let role = json!({"keyids": ["a"], "threshold": 1});
    let bodies = [
        json!({"consistent_snapshot": true, "keys": &public,
            "roles": {"root": &role, "timestamp": &role, "snapshot": &role, "targets": &role}}),
        json!({"meta": {"snapshot.json": {"version": 1}}, time::SIGNED_AT: "2026-11-20T00:00:00Z"}),
        json!({"meta": {"targets.json": {"version": 1}, "models.json": {"version": 3}}}),
        json!({"targets": {"models/minilm/2/model.onnx": {"length": 5, "hashes": {"sha256": "00".repeat(32)},
                "custom": {"ledge": {"schema": 1}}}},
            "delegations": {"keys": &public, "roles": [
                {"name": "models", "keyids": ["a"], "threshold": 1, "terminating": true, "paths": ["models/*/*/*", "a[b-c]?/**"]},
                {"name": "bin", "keyids": ["a"], "threshold": 1, "terminating": false, "path_hash_prefixes": ["0", "ff"]}]}}),
    ];
    let mut roles = ROLES.into_iter();
    bodies.map(|mut body| {
        let header =
            json!({"_type": roles.next(), "spec_version": "1.0.31", "version": 1, "expires": "2099-01-01T00:00:00Z"});
        if let (Value::Object(body), Value::Object(header)) = (&mut body, header) {
            body.extend(header);
        }
        let signature = key.sign(&to_canonical_bytes(&body).unwrap_or_default());
        json!({"signatures": [{"keyid": "a", "sig": hex::encode(signature)}], "signed": body}).to_string().into_bytes()
    })
});

/// Returns signed metadata of every role.
pub fn metadata_seeds() -> Vec<Vec<u8>> {
    SIGNED_METADATA.to_vec()
}

/// Returns a file of trusted metadata.
pub fn trusted_files_seed() -> Vec<u8> {
    let texts = [("root.json", "{}"), ("proven", "2026-11-20T00:00:00Z")];
    store::encode(texts.map(|(name, text)| (name.to_owned(), text.to_owned())).into()).unwrap_or_default()
}

/// Reads bytes as metadata of each role; true when they are trusted. Trusted bytes have exactly the signed content.
///
/// # Panics
/// When an invariant does not hold.
pub fn fuzz_metadata(data: &[u8]) -> bool {
    read_unsigned(data);

    let [root, timestamp, snapshot, targets] = &*SIGNED_METADATA;
    let now = time::timestamp(NOW_MS);
    let trusted = |role: &str| {
        let mut set = TrustedMetadataSet::from_root(if role == "root" { data } else { root })?;
        if role == "root" {
            return Ok(());
        }
        set.update_timestamp(if role == "timestamp" { data } else { timestamp }, now)?;
        if role == "timestamp" {
            return Ok(());
        }
        set.update_snapshot(if role == "snapshot" { data } else { snapshot }, now)?;
        if role == "snapshot" {
            return Ok(());
        }
        set.update_targets(data, now).map(drop)
    };
    let mut accepted = false;
    for (role, signed) in ROLES.into_iter().zip([root, timestamp, snapshot, targets]) {
        let result: Result<(), sigstore_tuf::Error> = trusted(role);
        if result.is_ok() {
            assert_eq!(body(data), body(signed), "{role}");
            accepted = true;
        }
    }
    accepted
}

/// Reads metadata before its signatures are checked, as far as any code does.
fn read_unsigned(data: &[u8]) {
    let _ = (Metadata::<Root>::from_slice(data).is_ok(), Metadata::<Snapshot>::from_slice(data).is_ok());
    if let Ok(timestamp) = Metadata::<Timestamp>::from_slice(data) {
        let _ = time::signed_at_ms(timestamp.signed());
    }
    if let Ok(targets) = Metadata::<Targets>::from_slice(data) {
        for role in targets.signed().delegations.iter().flat_map(|delegations| &delegations.roles) {
            let _ = role.matches_path("models/minilm/2/model.onnx");
        }
    }
}

fn body(metadata: &[u8]) -> Option<Value> {
    serde_json::from_slice::<Value>(metadata).ok()?.get("signed").cloned()
}

/// Reads the file of trusted metadata; true when it is one. Only bytes that are exactly as written are read.
///
/// # Panics
/// When an invariant does not hold.
pub fn fuzz_trusted_files(data: &[u8]) -> bool {
    let Ok(files) = store::decode(data) else { return false };
    assert!(!files.is_empty());
    assert_eq!(store::encode(files).ok().as_deref(), Some(data));
    true
}
