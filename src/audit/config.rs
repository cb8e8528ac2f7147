//! The section `[audit]` of the configuration.

use std::collections::BTreeSet;
use std::fmt;
use std::path::{Path, PathBuf};
use std::str::FromStr;
use std::time::Duration;

use ledge_base::names::ModelName;
use ledge_base::secret::SecretFile;
use ledge_base::toml_check::{ValueProblem, empty_if_none, from_text, in_range, none_if_empty};
use ledge_egress::{ConfiguredDestination, ConfiguredProxy, HostPort, TlsClientFiles, WebAddress};
use ledge_service::audit_event::feature::ENTITIES;
use ledge_service::audit_event::inference::{RecordDetail, RecordPolicy};
use serde::{Deserialize, Deserializer, Serialize, Serializer};

use crate::live::otlp::OtlpConfig;
use crate::live::syslog::SyslogConfig;

/// The recorded events, how long they are kept, and the copies of the log.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct AuditConfig {
    /// The folder of the log.
    pub path: PathBuf,
    /// The detail of inference records: one for each call, or one for each minute and caller.
    pub inference: RecordDetail,
    /// Models with a record for each call, regardless of `inference`.
    pub calls: BTreeSet<ModelName>,
    /// Number of entities that a record of feature reads or pushes lists, as tags; rows of further ones are counted in
    /// it. A tag takes some 40 bytes, and a record has 65,535 at most.
    #[serde(deserialize_with = "in_range::<0, 1500, _, _>")]
    pub feature_entities: u32,
    /// The largest size of the log on the disk, in MiB.
    #[serde(deserialize_with = "in_range::<8, 1_048_576, _, _>")]
    pub quota_mb: u64,
    /// The space that stays free on the disk, in MiB. With less, inference calls are not recorded.
    #[serde(deserialize_with = "in_range::<0, 1_048_576, _, _>")]
    pub min_free_mb: u64,
    /// The period in which one key makes tags, in days.
    #[serde(deserialize_with = "in_range::<1, 3650, _, _>")]
    pub tag_period_days: u32,
    /// The days after which a key for tags is destroyed; 0: never.
    #[serde(deserialize_with = "in_range::<0, 36_500, _, _>")]
    pub keep_tag_keys_days: u32,
    /// The section `[audit.sync]`.
    pub sync: AuditSyncConfig,
    /// The section `[audit.syslog]`.
    pub syslog: SyslogConfig,
    /// The section `[audit.otlp]`.
    pub otlp: OtlpConfig,
}

impl Default for AuditConfig {
    fn default() -> Self {
        Self {
            path: "audit".into(),
            inference: RecordDetail::default(),
            calls: BTreeSet::new(),
            feature_entities: ENTITIES,
            quota_mb: 512,
            min_free_mb: 128,
            tag_period_days: 30,
            keep_tag_keys_days: 400,
            sync: AuditSyncConfig::default(),
            syslog: SyslogConfig::default(),
            otlp: OtlpConfig::default(),
        }
    }
}

/// The copy of the log on the platform, file by file.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct AuditSyncConfig {
    /// A folder on a server that takes PUT (`WebDAV`), or in a bucket. `None`: the log stays on this box.
    #[serde(deserialize_with = "none_if_empty", serialize_with = "empty_if_none")]
    pub url: Option<AuditSyncAddress>,
    /// For a bucket: the server; `None`: that of Amazon for the region.
    #[serde(deserialize_with = "none_if_empty", serialize_with = "empty_if_none")]
    pub endpoint: Option<WebAddress>,
    /// For a bucket: the region.
    pub region: String,
    /// For a bucket: the file with the id of the access key.
    #[serde(deserialize_with = "none_if_empty", serialize_with = "empty_if_none")]
    pub access_key_id_file: Option<SecretFile>,
    /// For a bucket: the file with the secret access key.
    #[serde(deserialize_with = "none_if_empty", serialize_with = "empty_if_none")]
    pub secret_access_key_file: Option<SecretFile>,
    /// The proxy that connects to the server (HTTP CONNECT).
    #[serde(deserialize_with = "none_if_empty", serialize_with = "empty_if_none")]
    pub proxy: Option<HostPort>,
    /// The longest that records wait until they are sent, in seconds.
    #[serde(deserialize_with = "in_range::<1, 86_400, _, _>")]
    pub interval_s: u64,
    /// The section `[audit.sync.tls]`.
    pub tls: TlsClientFiles,
}

impl Default for AuditSyncConfig {
    fn default() -> Self {
        Self {
            url: None,
            endpoint: None,
            region: "us-east-1".into(),
            access_key_id_file: None,
            secret_access_key_file: None,
            proxy: None,
            interval_s: 3600,
            tls: TlsClientFiles::default(),
        }
    }
}

/// The address of the copy on the platform.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum AuditSyncAddress {
    /// A folder of a web server that takes PUT.
    Web(WebAddress),
    /// `s3://BUCKET[/PREFIX]`: a folder in a bucket.
    Bucket {
        bucket: String,
        /// The beginning of all keys: empty, or like `a/b/`.
        prefix: String,
    },
}

/// The error for an invalid address. It does not repeat the text, which may contain a password.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("expected https://HOST[:PORT]/PATH, without an '@' and a '?', or s3://BUCKET[/PREFIX]")]
pub struct InvalidAuditSyncAddress;

impl FromStr for AuditSyncAddress {
    type Err = InvalidAuditSyncAddress;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let Some(place) = text.strip_prefix("s3://") else {
            return text.parse().map(Self::Web).map_err(|_| InvalidAuditSyncAddress);
        };
        let (bucket, prefix) = place.split_once('/').unwrap_or((place, ""));
        let is_bucket = (3..=63).contains(&bucket.len())
            && bucket.bytes().all(|byte| byte.is_ascii_lowercase() || byte.is_ascii_digit() || b".-".contains(&byte));
        let prefix = prefix.trim_matches('/');
        let is_prefix = prefix.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"/._-".contains(&byte));
        if !is_bucket || !is_prefix {
            return Err(InvalidAuditSyncAddress);
        }
        let prefix = if prefix.is_empty() { String::new() } else { format!("{prefix}/") };
        Ok(Self::Bucket { bucket: bucket.to_owned(), prefix })
    }
}

impl fmt::Display for AuditSyncAddress {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Web(address) => address.fmt(f),
            Self::Bucket { bucket, prefix } => write!(f, "s3://{bucket}/{prefix}"),
        }
    }
}

impl AuditSyncConfig {
    /// [`Self::interval_s`].
    pub fn interval(&self) -> Duration {
        Duration::from_secs(self.interval_s)
    }

    /// Makes every path relative to `root`.
    pub(crate) fn resolve(&mut self, root: &Path) {
        self.tls.resolve(root);
        let files = [&mut self.access_key_id_file, &mut self.secret_access_key_file];
        files.into_iter().flatten().for_each(|file| file.resolve(root));
    }

    /// The destination of the copy, with keys relative to `[audit]`. `None`: the log stays here, or its settings have a
    /// mistake.
    pub(crate) fn destination(&self) -> Option<ConfiguredDestination> {
        let (at, is_encrypted) = self.server().filter(|_| self.has_region())?;
        let key = if self.endpoint.is_some() { "sync.endpoint" } else { "sync.url" };
        let proxy = self.proxy.clone().map(|at| ConfiguredProxy { key: "sync.proxy".into(), at });
        Some(destination(key.into(), at, is_encrypted, proxy, "use https://"))
    }

    /// Returns true if the region is well-formed, if one is needed.
    fn has_region(&self) -> bool {
        let is_region = |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit() || byte == b'-';
        let is_bucket = matches!(self.url, Some(AuditSyncAddress::Bucket { .. }));
        !is_bucket || (!self.region.is_empty() && self.region.bytes().all(is_region))
    }

    /// Mistakes, with keys relative to `[audit]`.
    pub(crate) fn problems(&self) -> Vec<ValueProblem> {
        let mut problems = Vec::new();
        let mut add = |key: &str, problem: &str| problems.push(ValueProblem::new(key, problem));
        let (id, secret) = (&self.access_key_id_file, &self.secret_access_key_file);
        if id.is_some() != secret.is_some() {
            let problem = "`access_key_id_file` and `secret_access_key_file` go together: set both, or neither";
            add("sync.secret_access_key_file", problem);
        }

        if let Some(AuditSyncAddress::Bucket { .. }) = &self.url {
            if id.is_none() && secret.is_none() {
                let problem = "is in a bucket, which needs audit.sync.access_key_id_file and secret_access_key_file";
                add("sync.url", problem);
            }
            if !self.has_region() {
                add("sync.region", "is the region of the bucket, such as \"us-east-1\"");
            }
        } else if let Some(key) = match (&self.endpoint, id) {
            (Some(_), _) => Some("sync.endpoint"),
            (None, Some(_)) => Some("sync.access_key_id_file"),
            (None, None) => None,
        } {
            add(key, "is for a bucket: set audit.sync.url to s3://BUCKET/PREFIX, or leave it out");
        }
        problems
    }
}

impl Serialize for AuditSyncAddress {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

impl<'de> Deserialize<'de> for AuditSyncAddress {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        from_text(deserializer)
    }
}

impl AuditConfig {
    /// The calls that have a separate record.
    pub fn policy(&self) -> RecordPolicy {
        RecordPolicy { detail: self.inference, calls: self.calls.clone(), feature_entities: self.feature_entities }
    }

    /// [`AuditSyncConfig::interval_s`].
    pub fn sync_interval(&self) -> Duration {
        self.sync.interval()
    }

    /// Settings, as `--set` takes them, that keep the log on this box.
    pub fn settings_without_copies() -> Vec<String> {
        let config = Self::default();
        let live = config.live_copies().into_iter().map(|copy| format!("{}.{}", copy.name(), copy.address_key()));
        std::iter::once("sync.url".to_owned()).chain(live).map(|key| format!("audit.{key}=\"\"")).collect()
    }
}

/// A destination of the audit log, with keys relative to `[audit]`. `advice` ends the message that it is not encrypted.
pub(super) fn destination(
    key: String,
    at: HostPort,
    is_encrypted: bool,
    proxy: Option<ConfiguredProxy>,
    advice: &str,
) -> ConfiguredDestination {
    let plaintext_problem =
        format!("is not encrypted, and so anybody on the way could read and change the log: {advice}");
    ConfiguredDestination { key, at, proxy, is_encrypted, plaintext_problem: Some(plaintext_problem) }
}

#[cfg(test)]
mod tests {
    use super::*;
    use ledge_base::toml_check;
    use ledge_egress::EgressConfig;
    use ledge_part::section::ConfigSection;

    fn problems(text: &str, egress: &str) -> Vec<ValueProblem> {
        let egress: EgressConfig = toml_check::parse("e", egress).unwrap();
        let config = toml_check::parse::<AuditConfig>("f", text).unwrap();
        let destinations = config.destinations().into_iter().flat_map(|destination| destination.problems(&egress));
        config.problems().into_iter().chain(destinations).collect()
    }

    fn keys(text: &str, egress: &str) -> Vec<String> {
        problems(text, egress).into_iter().map(|problem| problem.key).collect()
    }

    const KEYS: &str = "access_key_id_file = 'i'\nsecret_access_key_file = 's'\n";

    #[test]
    fn where_the_log_goes_is_in_the_allow_list_and_encrypted() {
        let allow = "[[allow]]\nhost = 'a:443'\nregion = 'eu'\n[[allow]]\nhost = 'b:80'\nregion = 'eu'";
        assert_eq!(keys("", ""), [""; 0]);
        assert_eq!(keys("[sync]\nurl = 'https://a/audit'", allow), [""; 0]);
        assert_eq!(keys("[sync]\nurl = 'https://a/audit'", ""), ["sync.url"]);
        assert_eq!(keys("[sync]\nurl = 'https://a/audit'\nproxy = 'p:1'", allow), ["sync.proxy"]);
        assert_eq!(keys("[sync]\nurl = 'http://b/audit'", allow), ["sync.url"]);
        assert_eq!(keys("[sync]\nurl = 'http://127.0.0.1:1/audit'", ""), [""; 0]);
        assert_eq!(keys("[syslog]\nto = 's:6514'", allow), ["syslog.to"]);
        assert_eq!(keys("[syslog]\nto = 'b:80'\nencrypted = false", allow), ["syslog.to"]);
        assert_eq!(keys("[syslog]\nto = '127.0.0.1:1'\nencrypted = false", allow), [""; 0]);
        assert_eq!(keys("[otlp]\nurl = 'http://b/v1/logs'", allow), ["otlp.url"]);
        assert_eq!(keys("[otlp]\nurl = 'https://c/v1/logs'", allow), ["otlp.url"]);
        let [problem] = problems("[sync]\nurl = 's3://fleet/a'\nregion = 'me-central-1'\naccess_key_id_file = 'i'\nsecret_access_key_file = 's'", "").try_into().unwrap();
        assert!(problem.message.contains("`host = \"fleet.s3.me-central-1.amazonaws.com:443\"`"), "{problem:?}");
    }

    #[test]
    fn what_goes_together_is_set_together() {
        let bucket =
            |more: &str| keys(&format!("[sync]\nurl = 's3://fleet'\nendpoint = 'http://127.0.0.1:1'\n{more}"), "");
        assert_eq!(bucket(KEYS), [""; 0]);
        assert_eq!(bucket(""), ["sync.url"]);
        assert_eq!(bucket("access_key_id_file = 'i'"), ["sync.secret_access_key_file"]);
        assert_eq!(bucket(&format!("{KEYS}region = ''")), ["sync.region"]);
        assert_eq!(bucket(&format!("{KEYS}region = 'a/b'")), ["sync.region"]);
        assert_eq!(keys(&format!("[sync]\n{KEYS}"), ""), ["sync.access_key_id_file"]);
        let web = "[sync]\nurl = 'http://127.0.0.1:1/'\nendpoint = 'http://127.0.0.1:2'";
        assert_eq!(keys(web, ""), ["sync.endpoint"]);
        for section in ["sync", "syslog", "otlp"] {
            let text = format!("[{section}.tls]\ncertificate_file = 'c'");
            assert_eq!(keys(&text, ""), [format!("{section}.tls")]);
        }
    }
}
