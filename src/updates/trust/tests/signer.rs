//! A platform in a folder, which signs anything.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use aws_lc_rs::digest;
use aws_lc_rs::signature::{Ed25519KeyPair, KeyPair};
use serde_json::{Map, Value, json};
use sigstore_tuf::canonical_json::to_canonical_bytes;

use super::super::time;
use crate::config::RepositoryAddress;
use crate::source::RepositorySource;

const ROLES: [&str; 6] = ["root", "timestamp", "snapshot", "targets", "models", "fleet"];

/// A platform, with the content that it publishes.
pub struct Signer {
    folder: tempfile::TempDir,
    keys: BTreeMap<&'static str, Ed25519KeyPair>,
    version: u64,
    expires: BTreeMap<&'static str, u64>,
    listed: BTreeMap<&'static str, Map<String, Value>>,
    /// The paths of the role `models`.
    pub paths: Vec<String>,
    /// The version of `models` that the snapshot names, where it is not that of everything.
    pub models_pin: Option<u64>,
    /// The signing time in its metadata.
    pub signed_at: Option<u64>,
}

pub fn sha256(bytes: &[u8]) -> String {
    hex(digest::digest(&digest::SHA256, bytes).as_ref())
}

fn hex(bytes: &[u8]) -> String {
    bytes
        .iter()
        .flat_map(|byte| [byte >> 4, byte & 15])
        .map(|digit| char::from_digit(digit.into(), 16).unwrap())
        .collect()
}

/// Parses a time to milliseconds since the Unix epoch.
pub fn at(text: &str) -> u64 {
    time::parse_ms(text).unwrap()
}

fn write(path: &Path, value: &Value) {
    ledge_base::durable::replace(path, value.to_string().as_bytes()).unwrap();
}

impl Signer {
    pub fn new() -> Self {
        let folder = tempfile::tempdir().unwrap();
        std::fs::create_dir(folder.path().join("metadata")).unwrap();
        let platform = Self {
            folder,
            keys: ROLES.map(|role| (role, Ed25519KeyPair::generate().unwrap())).into(),
            version: 1,
            expires: ROLES.map(|role| (role, at("2099-01-01T00:00:00Z"))).into(),
            listed: BTreeMap::new(),
            paths: vec!["models/*/*/*".to_owned()],
            models_pin: None,
            signed_at: None,
        };
        let roles: Map<String, Value> =
            ROLES[..4].iter().map(|role| ((*role).to_owned(), json!({"keyids": [role], "threshold": 1}))).collect();
        let body = json!({"consistent_snapshot": true, "keys": platform.keys_of(&ROLES[..4]), "roles": roles});
        write(&platform.root_file(), &platform.signed("root", body));
        platform
    }

    pub fn root_file(&self) -> PathBuf {
        self.metadata("1.root.json")
    }

    pub fn metadata(&self, name: &str) -> PathBuf {
        self.folder.path().join("metadata").join(name)
    }

    pub fn address(&self) -> RepositoryAddress {
        RepositoryAddress::Folder(self.folder.path().to_owned())
    }

    pub fn source(&self) -> RepositorySource {
        RepositorySource::new(&self.address(), None)
    }

    /// Writes the file of a listed target.
    pub fn put(&self, path: &str, content: &[u8]) {
        let (folder, name) = path.rsplit_once('/').map_or(("", path), |(folder, name)| (folder, name));
        self.put_at(&format!("{folder}/{}.{name}", sha256(content)), content);
    }

    /// Writes a file below `targets/`.
    pub fn put_at(&self, location: &str, content: &[u8]) {
        let file = self.folder.path().join("targets").join(location.trim_start_matches('/'));
        ledge_base::durable::create_folder(file.parent().unwrap()).unwrap();
        ledge_base::durable::replace(&file, content).unwrap();
    }

    pub fn list(&mut self, role: &'static str, path: &str, content: &[u8]) {
        let custom = json!({"ledge": {"schema": 1}});
        let target = json!({"length": content.len(), "hashes": {"sha256": sha256(content)}, "custom": custom});
        self.listed.entry(role).or_default().insert(path.to_owned(), target);
    }

    pub fn rename_hashes(&mut self, role: &'static str, path: &str, name: &str) {
        let target = &mut self.listed.get_mut(role).unwrap()[path];
        target["hashes"] = json!({name: target["hashes"]["sha256"]});
    }

    pub fn expire(&mut self, role: &'static str, at_ms: u64) {
        self.expires.insert(role, at_ms);
    }

    pub fn bump(&mut self) {
        self.version += 1;
    }

    /// Copies the published metadata to another folder.
    pub fn copy(&self) -> Self {
        let other = Self::new();
        for file in std::fs::read_dir(self.folder.path().join("metadata")).unwrap() {
            let file = file.unwrap();
            std::fs::copy(file.path(), other.metadata(file.file_name().to_str().unwrap())).unwrap();
        }
        other
    }

    pub fn publish(&self) {
        let version = self.version;
        let delegated = |name: &str, paths: &[String]| json!({"name": name, "keyids": [name], "threshold": 1, "terminating": true, "paths": paths});
        let roles = [delegated("models", &self.paths), delegated("fleet", &["fleet/*/*".to_owned()])];
        let delegations = json!({"keys": self.keys_of(&["models", "fleet"]), "roles": roles});
        for role in ["targets", "models", "fleet"] {
            let mut body = json!({"targets": self.listed.get(role).cloned().unwrap_or_default()});
            if role == "targets" {
                body["delegations"] = delegations.clone();
            }
            write(&self.metadata(&format!("{version}.{role}.json")), &self.signed(role, body));
        }
        let pin = json!({"version": version});
        let meta = json!({"targets.json": pin, "models.json": {"version": self.models_pin.unwrap_or(version)}, "fleet.json": pin});
        let snapshot = self.signed("snapshot", json!({"meta": meta}));
        write(&self.metadata(&format!("{version}.snapshot.json")), &snapshot);
        let mut timestamp = json!({"meta": {"snapshot.json": pin}});
        if let Some(ms) = self.signed_at {
            timestamp[time::SIGNED_AT] = time::timestamp(ms).to_string().into();
        }
        write(&self.metadata("timestamp.json"), &self.signed("timestamp", timestamp));
    }

    fn keys_of(&self, roles: &[&str]) -> Map<String, Value> {
        let key = |role: &&str| {
            let public = hex(self.keys[*role].public_key().as_ref());
            ((*role).to_owned(), json!({"keytype": "ed25519", "scheme": "ed25519", "keyval": {"public": public}}))
        };
        roles.iter().map(key).collect()
    }

    fn signed(&self, role: &str, mut body: Value) -> Value {
        let kind = if matches!(role, "models" | "fleet") { "targets" } else { role };
        let seconds = self.expires[role] / 1000 * 1000;
        body["_type"] = kind.into();
        body["spec_version"] = "1.0.31".into();
        body["version"] = self.version.into();
        body["expires"] = time::timestamp(seconds).to_string().into();
        let signature = self.keys[role].sign(&to_canonical_bytes(&body).unwrap());
        json!({"signed": body, "signatures": [{"keyid": role, "sig": hex(signature.as_ref())}]})
    }
}
