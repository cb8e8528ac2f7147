//! A record of the audit log: one line of JSON, which is one leaf of the tree.
//!
//! ```json
//! {"v":1,"seq":4711,"ts":"2026-01-01T00:00:00.250Z","actor":{"kind":"ip","tag":"3:0f..."},"event":{"action":"model_loaded","model":"m","version":2,"digest":"..."}}
//! ```
//!
//! The form is closed: unknown fields are refused when a record is read, and none of its types could carry a payload.
//! The caller is a tag, because an address or a topic may be that of a person.

use std::fmt;

use ledge_base::clock;
use ledge_base::principal::Principal;
use ledge_service::audit_event::AuditEvent;
use ledge_service::audit_event::tag::{Tag, TagKey};
use schemars::{JsonSchema, Schema, schema_for};
use serde::{Deserialize, Deserializer, Serialize, Serializer};

/// The version of the form of records.
pub const VERSION: u32 = 1;

/// The longest record, in bytes: an entry bundle has 16 bits for its length.
pub const RECORD_BYTES_MAX: usize = 65_535;

/// A record. Its JSON is canonical: the fields in this order, without spaces.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct AuditRecord {
    /// [`VERSION`].
    pub v: u32,
    /// Its place in the log, from 0.
    pub seq: u64,
    /// When it happened, by the clock of the box.
    pub ts: Timestamp,
    /// The caller, or the box itself.
    pub actor: Actor,
    pub event: AuditEvent,
}

/// The caller, or the box itself.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Actor {
    /// The way in which the caller reached the box.
    pub kind: ActorKind,
    /// The tag of the caller; `None` for the box itself, and without a key for tags.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub tag: Option<Tag>,
}

/// In which way somebody reached the box.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum ActorKind {
    /// A peer over TCP, by its address.
    Ip,
    /// A process behind the Unix socket, by its user id.
    Uid,
    /// An API key, by its name.
    Key,
    /// A client certificate, by the name it is listed under.
    Cert,
    /// A person who signed in at the console with a code of this box, by the name that the code was made for.
    Person,
    /// A client behind an MQTT broker, by its topic.
    Mqtt,
    /// A camera that the box watches, by its name.
    Camera,
    /// A folder that the box watches for documents, by its name.
    Inbox,
    /// The box itself.
    Local,
    /// Several callers, too many to be recorded separately.
    Others,
}

impl ActorKind {
    /// The name in records.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Ip => "ip",
            Self::Uid => "uid",
            Self::Key => "key",
            Self::Cert => "cert",
            Self::Person => "person",
            Self::Mqtt => "mqtt",
            Self::Camera => "camera",
            Self::Inbox => "inbox",
            Self::Local => "local",
            Self::Others => "others",
        }
    }
}

impl Actor {
    /// The caller as a record has it.
    pub fn of(principal: &Principal, key: Option<&TagKey>) -> Self {
        let kind = match principal {
            Principal::Peer(_) => ActorKind::Ip,
            Principal::User(_) => ActorKind::Uid,
            Principal::Key(_) => ActorKind::Key,
            Principal::Certificate(_) => ActorKind::Cert,
            Principal::Person(_) => ActorKind::Person,
            Principal::Mqtt(_) => ActorKind::Mqtt,
            Principal::Camera(_) => ActorKind::Camera,
            Principal::Inbox(_) => ActorKind::Inbox,
            Principal::Local => ActorKind::Local,
            Principal::Others => ActorKind::Others,
        };
        let is_named = !matches!(kind, ActorKind::Local | ActorKind::Others);
        let tag = key.filter(|_| is_named).map(|key| key.of_text(&principal.to_string()));
        Self { kind, tag }
    }
}

impl AuditRecord {
    /// The leaf.
    pub fn to_line(&self) -> Vec<u8> {
        // Fails only for a map with keys other than strings, or for a failing writer, and there is neither.
        serde_json::to_vec(self).unwrap_or_default()
    }

    /// The closed form of all records, as JSON Schema.
    pub fn schema() -> Schema {
        schema_for!(Self)
    }

    /// Reads a leaf.
    pub fn parse(line: &[u8]) -> Result<Self, InvalidAuditRecord> {
        let record: Self =
            serde_json::from_slice(line).map_err(|error| InvalidAuditRecord { reason: error.to_string() })?;
        if record.v != VERSION {
            return Err(InvalidAuditRecord { reason: format!("it has version {}, expected {VERSION}", record.v) });
        }
        Ok(record)
    }
}

/// The reason why bytes are not a record.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("not an audit record: {reason}")]
pub struct InvalidAuditRecord {
    reason: String,
}

/// A moment in milliseconds since the Unix epoch. As text: RFC 3339 in UTC.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, JsonSchema)]
#[schemars(with = "String")]
pub struct Timestamp(pub u64);

impl fmt::Display for Timestamp {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&clock::rfc3339_micros(i64::try_from(self.0.saturating_mul(1000)).unwrap_or(i64::MAX)))
    }
}

impl Serialize for Timestamp {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

impl<'de> Deserialize<'de> for Timestamp {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let text = String::deserialize(deserializer)?;
        let micros = clock::parse_micros(&text).and_then(|micros| u64::try_from(micros).ok());
        micros
            .map(|micros| Self(micros / 1000))
            .ok_or_else(|| serde::de::Error::custom(format_args!("{text:?} is not a time in RFC 3339")))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use ledge_service::audit_event::inference::CallOutcome;
    use ledge_service::audit_event::{GoldenFallback, PreviousLog};

    #[expect(clippy::too_many_lines, reason = "a line for each field of each event")]
    fn every_event() -> Vec<AuditEvent> {
        let (model, version) = (|| "m".parse().unwrap(), || 2.try_into().unwrap());
        let tag = TagKey::new(3, [1; 32]).of_text("x");
        vec![
            AuditEvent::Started { version: "0.1.0".into() },
            AuditEvent::Stopped,
            AuditEvent::Idle,
            AuditEvent::ConfigurationChanged { keys: vec!["http.listen".into()] },
            AuditEvent::ListensUnencrypted { address: "10.0.0.1:8001".into(), networks: vec!["10.0.0.0/24".into()] },
            AuditEvent::ModelLoaded { model: model(), version: version(), digest: "ab".into() },
            AuditEvent::ModelRefused { model: model(), version: version(), cause: None },
            AuditEvent::ModelRefused { model: model(), version: version(), cause: Some("golden".into()) },
            AuditEvent::ModelFellBack { model: model(), version: version(), to: GoldenFallback::Float },
            AuditEvent::ModelCrashed { model: model(), version: version(), suspended: true },
            AuditEvent::CallerRefused { model: model(), version: version(), seconds: 600 },
            AuditEvent::ModelUnloaded { model: model(), version: version() },
            AuditEvent::Inference {
                model: Some(model()),
                version: Some(version()),
                digest: Some("0123456789abcdef".into()),
                outcome: CallOutcome::Ok,
                us: 81,
                input: Some(tag),
                output: None,
            },
            AuditEvent::InferenceMinute {
                model: None,
                version: None,
                digest: None,
                outcome: CallOutcome::Unavailable,
                calls: 3,
                us: 7,
                us_max: 4,
            },
            AuditEvent::FeaturesRead {
                feature_view: "customers".into(),
                model: Some(model()),
                calls: 2,
                rows: 9,
                entities: vec![tag],
                unlisted: 3,
            },
            AuditEvent::FeaturesPushed {
                feature_view: "customers".into(),
                calls: 1,
                rows: 1,
                entities: Vec::new(),
                unlisted: 0,
            },
            AuditEvent::FeatureStoreDamaged,
            AuditEvent::FeatureStoreRestored { records: 5 },
            AuditEvent::FeatureStoreBackedUp { feature_view: Some("v".into()) },
            AuditEvent::EgressCounted {
                destination: "a:443".into(),
                region: "eu".into(),
                since_ms: 1,
                connections: 2,
                sent: [("audit".into(), 7)].into(),
                received: 3,
            },
            AuditEvent::RetentionEnforced { removed: [("inbox_files".into(), 7)].into(), failed: 1 },
            AuditEvent::FeatureEntityErased { records: 2, views: 1, statement: Some("ab".into()) },
            AuditEvent::FeatureEntityDisclosed { records: 2, views: 1, entity: Some(tag) },
            AuditEvent::MetadataAccepted { role: "root".into(), version: 1 },
            AuditEvent::MetadataRefused { cause: "rollback".into() },
            AuditEvent::MetadataDamaged,
            AuditEvent::TrustReset,
            AuditEvent::UpdateMoved {
                subject: "models/m".into(),
                version: version(),
                rollout: "r-1".into(),
                stage: "rolled_back".into(),
                cause: Some("latency".into()),
            },
            AuditEvent::UpdateOrdered { subject: "models/m".into(), order: "pin".into() },
            AuditEvent::DriftReferenceFixed { model: model(), version: version(), origin: "learnt".into() },
            AuditEvent::FindingBegan {
                finding: "drift m".into(),
                model: Some(model()),
                version: Some(version()),
                status: "warn".into(),
                others: 2,
            },
            AuditEvent::FindingEnded { finding: "objective wine latency".into(), model: None, version: None },
            AuditEvent::UnusualBegan {
                model: Some(model()),
                figure: "p99_s".into(),
                kind: "level_shift".into(),
                direction: "up".into(),
            },
            AuditEvent::UnusualEnded {
                model: None,
                figure: "disk_free_bytes".into(),
                kind: "limit".into(),
                end: "limit_far".into(),
            },
            AuditEvent::UnusualCalledNormal { model: None, figure: "cores_busy".into() },
            AuditEvent::UnusualRowCalledNormal { feature_view: "vibration".into(), features: 2 },
            AuditEvent::ConnectionOpened {
                destination: "a:1".into(),
                region: "eu".into(),
                purpose: "mqtt".into(),
                others: 0,
            },
            AuditEvent::ConnectionRefused { destination: "a:1".into(), purpose: "mqtt".into() },
            AuditEvent::MaintenanceRequested { what: "update_check".into() },
            AuditEvent::ModelAdded { model: model(), origin: "upload".into(), digest: "00ff".into() },
            AuditEvent::ModelRemoved { model: model() },
            AuditEvent::AccessDenied { what: "model_load".into(), others: 3 },
            AuditEvent::KeyChanged {
                name: "till".parse().unwrap(),
                roles: vec!["admin".into()],
                models: None,
                feature_views: Some(vec!["customers".parse().unwrap()]),
                expires_ms: Some(7),
            },
            AuditEvent::KeyStoreDamaged,
            AuditEvent::SignInCodeMade {
                name: "anna".parse().unwrap(),
                roles: vec!["admin".into()],
                models: Some(vec![model()]),
                feature_views: Some(vec!["customers".parse().unwrap()]),
            },
            AuditEvent::SessionBegan { by: "code".into() },
            AuditEvent::SessionEnded { cause: "idle".into() },
            AuditEvent::ClockJumped { by_ms: -5000 },
            AuditEvent::BudgetReached { budget: "shop".into(), month: "2026-12".into(), what: "whole".into() },
            AuditEvent::SpaceChanged { what: "audit_log".into(), enough: false },
            AuditEvent::RecordsLost { cause: "queue".into(), since_ms: 1, calls: 2, events: 3 },
            AuditEvent::RecordsPruned { below: 256, synced: true },
            AuditEvent::LogBegun {
                cause: "damaged".into(),
                previous: Some(PreviousLog { origin: "o".into(), size: 9, root: "AA==".into(), found: 7 }),
            },
            AuditEvent::TagKeyMade { period: 1 },
            AuditEvent::TagKeyDestroyed { period: 1 },
            AuditEvent::MasterKeyChanged { key: "01ab23cd".into() },
            AuditEvent::Resealed { what: "audit_keys".into(), files: 2 },
            AuditEvent::AuditKeyMade { verifier_key: "a+b+c".into() },
        ]
    }

    fn record(event: AuditEvent) -> AuditRecord {
        let actor = Actor::of(&Principal::User(1000), Some(&TagKey::new(3, [1; 32])));
        AuditRecord { v: VERSION, seq: 4711, ts: Timestamp(1_795_222_800_250), actor, event }
    }

    #[test]
    fn every_record_is_read_as_it_was_written_and_names_its_action() {
        for event in every_event() {
            let (record, action) = (record(event.clone()), event.action());
            let line = record.to_line();
            let text = String::from_utf8(line.clone()).unwrap();
            assert!(text.contains(&format!("\"event\":{{\"action\":\"{action}\"")), "{text}");
            assert_eq!(AuditRecord::parse(&line).unwrap(), record, "{text}");
        }
    }

    #[test]
    fn a_record_has_this_form() {
        let line = record(AuditEvent::TagKeyMade { period: 1 }).to_line();
        let tag = TagKey::new(3, [1; 32]).of_text("uid:1000");
        assert_eq!(
            String::from_utf8(line).unwrap(),
            format!(
                "{{\"v\":1,\"seq\":4711,\"ts\":\"2026-11-21T01:00:00.250Z\",\"actor\":{{\"kind\":\"uid\",\"tag\":\"{tag}\"}},\
                 \"event\":{{\"action\":\"tag_key_made\",\"period\":1}}}}"
            )
        );
    }

    #[test]
    fn what_is_not_of_the_form_is_refused() {
        let line = String::from_utf8(record(AuditEvent::TagKeyMade { period: 1 }).to_line()).unwrap();
        let longest = "a".repeat(41);
        for (from, to) in [
            ("\"period\":1", "\"period\":1,\"note\":\"x\""),
            ("\"seq\"", "\"more\":1,\"seq\""),
            ("\"kind\":\"uid\"", "\"kind\":\"uid\",\"name\":\"x\""),
            ("tag_key_made", "anything"),
            ("\"v\":1", "\"v\":2"),
            ("2026-11-21T", "yesterday"),
            ("\"action\":\"tag_key_made\",\"period\":1", "\"action\":\"access_denied\",\"what\":\"Some words\""),
            (
                "\"action\":\"tag_key_made\",\"period\":1",
                &format!("\"action\":\"access_denied\",\"what\":\"{longest}\""),
            ),
        ] {
            let changed = line.replace(from, to);
            assert!(changed != line && AuditRecord::parse(changed.as_bytes()).is_err(), "{changed}");
        }
        assert!(AuditRecord::parse(line.as_bytes()).is_ok());
    }
}
