//! What is worth proving later: the closed list of audit events, and the sink that takes them.
//!
//! Everybody may record an event. Recording never blocks and never fails the caller; what could not be taken is counted.
//! An event holds names that were chosen by whoever looks after this box, never what a caller sent: of that there are
//! keyed tags at most ([`tag`]).

pub mod feature;
pub mod inference;
mod seldom;
pub mod sink;
pub mod tag;

use std::borrow::Cow;
use std::fmt;

use ledge_base::names::{FeatureName, KeyName, ModelName, ModelVersion};
use schemars::JsonSchema;
use serde::{Deserialize, Deserializer, Serialize};

use inference::Outcome;
pub use sink::{AuditQueue, AuditSink};
use tag::Tag;

/// A word of our own, such as a cause or a stage: up to 40 characters of `a-z`, `0-9` and `_`.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, JsonSchema)]
#[serde(transparent)]
pub struct Word(#[schemars(regex(pattern = "^[a-z0-9_]{1,40}$"))] Cow<'static, str>);

/// The longest [`Word`].
const LONGEST_WORD: usize = 40;

impl Word {
    /// The text.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl From<&'static str> for Word {
    fn from(word: &'static str) -> Self {
        Self(Cow::Borrowed(word))
    }
}

impl fmt::Display for Word {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl<'de> Deserialize<'de> for Word {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let text = String::deserialize(deserializer)?;
        let is_word = !text.is_empty()
            && text.len() <= LONGEST_WORD
            && text.bytes().all(|byte| byte.is_ascii_lowercase() || byte.is_ascii_digit() || byte == b'_');
        if !is_word {
            return Err(serde::de::Error::custom(format_args!("{text:?} is no word of an audit record")));
        }
        Ok(Self(Cow::Owned(text)))
    }
}

/// An event of the audit log, as it stands in a record. No payloads, no free text from outside. A variant or a field may be
/// added; the version of [`ledge_audit::record::AuditRecord`] grows when one changes its meaning.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(tag = "action", rename_all = "snake_case", deny_unknown_fields)]
pub enum AuditEvent {
    /// The daemon started.
    Started {
        /// The version of Ledge.
        version: Cow<'static, str>,
    },
    /// The daemon stops in order.
    Stopped,
    /// Nothing else was recorded for a day; the box is there.
    Idle,
    /// What is set differs from what the last start had.
    ConfigurationChanged {
        /// The keys, such as `http.listen`; never their values.
        keys: Vec<String>,
    },
    /// A version of a model went live.
    ModelLoaded {
        /// The model.
        model: ModelName,
        /// Its version.
        version: ModelVersion,
        /// BLAKE3 of the model's files.
        digest: String,
    },
    /// A version of a model could not be loaded.
    ModelRefused {
        /// The model.
        model: ModelName,
        /// Its version.
        version: ModelVersion,
        /// `golden` where it answered its golden inputs wrong, else `load`; records of before lack it.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        cause: Option<Cow<'static, str>>,
    },
    /// A version that went live answered its golden inputs wrong, so something else runs in its place.
    ModelFellBack {
        /// The model.
        model: ModelName,
        /// Its version.
        version: ModelVersion,
        /// What runs: the same file in another runtime or with other instructions, or the float original beside it.
        to: Fallback,
    },
    /// A load or first run of a version of a model ended the process before this one.
    ModelCrashed {
        /// The model.
        model: ModelName,
        /// Its version.
        version: ModelVersion,
        /// Whether it is not loaded any more, but tried in a process of its own.
        suspended: bool,
    },
    /// A version of a model was taken out of service.
    ModelUnloaded {
        /// The model.
        model: ModelName,
        /// Its version.
        version: ModelVersion,
    },
    /// An inference call was answered or refused.
    Inference {
        /// The model; `None` when there is none of the name that was asked for.
        model: Option<ModelName>,
        /// The version that was to answer.
        version: Option<ModelVersion>,
        /// The first 16 digits of the digest of its files.
        digest: Option<String>,
        /// What came of it.
        outcome: Outcome,
        /// How long it took, in microseconds.
        us: u64,
        /// The tag of what the model was given.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        input: Option<Tag>,
        /// The tag of what it answered.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        output: Option<Tag>,
    },
    /// The inference calls of one caller, model and outcome within a minute.
    InferenceMinute {
        /// The model; `None` when there is none of the name that was asked for.
        model: Option<ModelName>,
        /// The version that was to answer.
        version: Option<ModelVersion>,
        /// The first 16 digits of the digest of its files.
        digest: Option<String>,
        /// What came of them.
        outcome: Outcome,
        /// How many.
        calls: u64,
        /// How long they took together, in microseconds.
        us: u64,
        /// How long the longest took, in microseconds.
        us_max: u64,
    },
    /// The reads of one caller and feature view within a minute.
    FeaturesRead {
        /// The feature view.
        feature_view: String,
        /// The model that read for the caller; `None` where the caller was answered with the values.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        model: Option<ModelName>,
        /// How many calls.
        calls: u64,
        /// How many rows were asked for, whether the store has them or not.
        rows: u64,
        /// The tags of the entities, in their own order; `audit.feature_entities` of them at most.
        entities: Vec<Tag>,
        /// How many rows are of entities that are not listed.
        #[serde(default, skip_serializing_if = "is_zero")]
        unlisted: u64,
    },
    /// The pushes of one caller to a feature view within a minute.
    FeaturesPushed {
        /// The feature view.
        feature_view: String,
        /// How many calls.
        calls: u64,
        /// How many rows.
        rows: u64,
        /// The tags of the entities, as in `features_read`.
        entities: Vec<Tag>,
        /// How many rows are of entities that are not listed.
        #[serde(default, skip_serializing_if = "is_zero")]
        unlisted: u64,
    },
    /// Files of the feature store were found damaged. The log says which.
    FeatureStoreDamaged,
    /// A backup took the place of everything in the feature store.
    FeatureStoreRestored {
        /// How many records it has.
        records: u64,
    },
    /// An entity of the feature store was erased. Not which.
    FeatureEntityErased {
        /// How many records.
        records: u64,
        /// Of how many feature views.
        views: u64,
    },
    /// Rows of the feature store were handed out as a backup.
    FeatureStoreBackedUp {
        /// The one feature view that was asked for; `None` is all of them.
        feature_view: Option<String>,
    },
    /// Signed metadata was accepted: what is trusted has changed.
    MetadataAccepted {
        /// The role.
        role: String,
        /// Its version.
        version: u64,
    },
    /// Metadata of the update repository was refused. The log says why.
    MetadataRefused {
        /// In which way.
        cause: Word,
    },
    /// The trusted metadata on this box was found damaged, or gone.
    MetadataDamaged,
    /// The trusted metadata was given up: what is trusted begins anew with the root file.
    TrustReset,
    /// An update reached another stage, was committed, or rolled back.
    UpdateMoved {
        /// What is updated, such as `models/minilm`.
        subject: String,
        /// The version on its way.
        version: ModelVersion,
        /// The rollout.
        rollout: String,
        /// What was reached.
        stage: Word,
        /// What stopped it, if it was rolled back.
        cause: Option<Word>,
    },
    /// The administrator of this box stepped into an update.
    UpdateOrdered {
        /// What is updated.
        subject: String,
        /// What was asked for: `pin`, `unpin`, `rollback` or `cancel`.
        order: Word,
    },
    /// A connection out of this box was opened. One that carries the audit log itself is told when it is the first, or the
    /// first after a failure.
    ConnectionOpened {
        /// `HOST:PORT`, as configured.
        destination: String,
        /// Where it is.
        region: String,
        /// What for.
        purpose: Word,
        /// How many more of the kind there were since the last record of it: there is one a minute at most.
        #[serde(default, skip_serializing_if = "is_zero")]
        others: u64,
    },
    /// A connection out of this box was asked for and is not allowed.
    ConnectionRefused {
        /// `HOST:PORT`, as configured; `unlisted` where a request named it and no entry does.
        destination: String,
        /// What for.
        purpose: Word,
    },
    /// Somebody asked this box for something that leaves no other record.
    MaintenanceRequested {
        /// What: `feature_snapshot`, `feature_compaction` or `update_check`.
        what: Word,
    },
    /// Somebody asked for what is not theirs to ask for.
    AccessDenied {
        /// What was asked for, such as `model_load`.
        what: Word,
        /// How many more of the kind there were since the last record of it: there is one a minute at most.
        #[serde(default, skip_serializing_if = "is_zero")]
        others: u64,
    },
    /// Somebody presented a credential that lets nobody in.
    AuthenticationFailed {
        /// Why: `malformed`, `unknown` (or of another secret), `expired`, `revoked`, or `too_many` attempts failed.
        cause: Word,
        /// How many more of the kind there were since the last record of it: there is one a minute at most.
        #[serde(default, skip_serializing_if = "is_zero")]
        others: u64,
    },
    /// An API key was made.
    KeyCreated {
        /// Who holds it.
        name: KeyName,
        /// What it may do.
        roles: Vec<String>,
        /// The models it is for; `None` is all of them.
        models: Option<Vec<ModelName>>,
        /// The feature views whose values it may read and push; `None` is all of them.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        feature_views: Option<Vec<FeatureName>>,
        /// When it ends, in milliseconds since the Unix epoch.
        expires_ms: Option<u64>,
    },
    /// An API key was revoked.
    KeyRevoked {
        /// Who holds it.
        name: KeyName,
    },
    /// An API key is in the store as another than was recorded: somebody edited it, and not by `ledge keys`.
    KeyChanged {
        /// Who holds it.
        name: KeyName,
        /// What it may do now.
        roles: Vec<String>,
        /// The models it is for now; `None` is all of them.
        models: Option<Vec<ModelName>>,
        /// The feature views whose values it may read and push; `None` is all of them.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        feature_views: Option<Vec<FeatureName>>,
        /// When it ends now, in milliseconds since the Unix epoch.
        expires_ms: Option<u64>,
    },
    /// The store of API keys cannot be read, or has lost keys or revocations, as an older one would have. What was revoked
    /// stays revoked.
    KeyStoreDamaged,
    /// The clock of the machine does not go on from where it was.
    ClockJumped {
        /// By how much, in milliseconds; back is negative.
        by_ms: i64,
    },
    /// There is too little room on the disk for something, or there is again.
    SpaceChanged {
        /// For what: `audit_log`, `feature_store` or `updates`.
        what: Word,
        /// Whether it is enough.
        enough: bool,
    },
    /// Events that never became records.
    RecordsLost {
        /// Why: `queue` (they came faster than they could be written), `quota`, `disk` or `log`.
        cause: Word,
        /// When the first was lost, in milliseconds since the Unix epoch.
        since_ms: u64,
        /// How many calls: of inference, and reads and pushes of features.
        calls: u64,
        /// How many other events.
        events: u64,
    },
    /// Records were removed from this box, to stay within the quota.
    RecordsPruned {
        /// Those below this sequence number, and of logs before this one all but their ends.
        below: u64,
        /// Whether the platform has all of them.
        synced: bool,
    },
    /// This log begins.
    LogBegun {
        /// Why: `new`, `damaged`, `forked` or `renamed`.
        cause: Word,
        /// What the log before it had, which is kept as it is.
        previous: Option<PreviousLog>,
    },
    /// A key for tags was made.
    TagKeyMade {
        /// Which, as in `period` of a tag.
        period: u32,
    },
    /// A key for tags was destroyed: nobody can tell any more what its tags stand for.
    TagKeyDestroyed {
        /// Which, as in `period` of a tag.
        period: u32,
    },
    /// Another master key seals from now on.
    MasterKeyChanged {
        /// Which: the first bytes of a hash of it, in hexadecimal.
        key: String,
    },
    /// What was plain or under an old master key is sealed under the current one.
    Resealed {
        /// What, such as `audit_keys`.
        what: Word,
        /// How many files or values.
        files: u64,
    },
    /// The key that signs the checkpoints of the log was made.
    AuditKeyMade {
        /// The verifier key (C2SP signed-note).
        verifier_key: String,
    },
}

/// What runs in the place of a model that answered its golden inputs wrong.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum Fallback {
    /// The same file in another runtime, or with slower instructions that are exact.
    Runtime,
    /// Its float original.
    Float,
}

/// What is known of a log that another follows.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct PreviousLog {
    /// Its origin, as its checkpoints have it.
    pub origin: String,
    /// How many records its last checkpoint says that it has.
    pub size: u64,
    /// The root hash of that checkpoint, in base64.
    pub root: String,
    /// How many records were found.
    pub found: u64,
}

#[expect(clippy::trivially_copy_pass_by_ref, reason = "serde gives a reference")]
fn is_zero(count: &u64) -> bool {
    *count == 0
}

impl AuditEvent {
    /// Whether it has to be on the disk at once, and not just with what comes in the next moments.
    pub fn is_urgent(&self) -> bool {
        !matches!(
            self,
            Self::Inference { .. }
                | Self::InferenceMinute { .. }
                | Self::FeaturesRead { .. }
                | Self::FeaturesPushed { .. }
                | Self::ConnectionOpened { .. }
                | Self::Idle
        )
    }

    /// Its name in a record.
    pub fn action(&self) -> &'static str {
        match self {
            Self::Started { .. } => "started",
            Self::Stopped => "stopped",
            Self::Idle => "idle",
            Self::ConfigurationChanged { .. } => "configuration_changed",
            Self::ModelLoaded { .. } => "model_loaded",
            Self::ModelRefused { .. } => "model_refused",
            Self::ModelFellBack { .. } => "model_fell_back",
            Self::ModelCrashed { .. } => "model_crashed",
            Self::ModelUnloaded { .. } => "model_unloaded",
            Self::Inference { .. } => "inference",
            Self::InferenceMinute { .. } => "inference_minute",
            Self::FeaturesRead { .. } => "features_read",
            Self::FeaturesPushed { .. } => "features_pushed",
            Self::FeatureStoreDamaged => "feature_store_damaged",
            Self::FeatureStoreRestored { .. } => "feature_store_restored",
            Self::FeatureEntityErased { .. } => "feature_entity_erased",
            Self::FeatureStoreBackedUp { .. } => "feature_store_backed_up",
            Self::MetadataAccepted { .. } => "metadata_accepted",
            Self::MetadataRefused { .. } => "metadata_refused",
            Self::MetadataDamaged => "metadata_damaged",
            Self::TrustReset => "trust_reset",
            Self::UpdateMoved { .. } => "update_moved",
            Self::UpdateOrdered { .. } => "update_ordered",
            Self::ConnectionOpened { .. } => "connection_opened",
            Self::ConnectionRefused { .. } => "connection_refused",
            Self::MaintenanceRequested { .. } => "maintenance_requested",
            Self::AccessDenied { .. } => "access_denied",
            Self::AuthenticationFailed { .. } => "authentication_failed",
            Self::KeyCreated { .. } => "key_created",
            Self::KeyRevoked { .. } => "key_revoked",
            Self::KeyChanged { .. } => "key_changed",
            Self::KeyStoreDamaged => "key_store_damaged",
            Self::ClockJumped { .. } => "clock_jumped",
            Self::SpaceChanged { .. } => "space_changed",
            Self::RecordsLost { .. } => "records_lost",
            Self::RecordsPruned { .. } => "records_pruned",
            Self::LogBegun { .. } => "log_begun",
            Self::TagKeyMade { .. } => "tag_key_made",
            Self::TagKeyDestroyed { .. } => "tag_key_destroyed",
            Self::MasterKeyChanged { .. } => "master_key_changed",
            Self::Resealed { .. } => "resealed",
            Self::AuditKeyMade { .. } => "audit_key_made",
        }
    }

    /// Whether somebody should look at it soon.
    pub fn is_warning(&self) -> bool {
        match self {
            Self::ModelRefused { .. }
            | Self::ModelFellBack { .. }
            | Self::ModelCrashed { .. }
            | Self::FeatureStoreDamaged
            | Self::MetadataRefused { .. }
            | Self::MetadataDamaged
            | Self::TrustReset
            | Self::UpdateMoved { cause: Some(_), .. }
            | Self::ConnectionRefused { .. }
            | Self::AccessDenied { .. }
            | Self::AuthenticationFailed { .. }
            | Self::KeyChanged { .. }
            | Self::KeyStoreDamaged
            | Self::ClockJumped { .. }
            | Self::SpaceChanged { enough: false, .. }
            | Self::RecordsLost { .. } => true,
            Self::LogBegun { cause, .. } => cause.as_str() != "new",
            _ => false,
        }
    }

    /// How many calls it stands for, of inference or of features; `None` for an event of another kind. Calls may be counted
    /// instead of recorded where room is short.
    pub fn calls(&self) -> Option<u64> {
        match self {
            Self::Inference { .. } => Some(1),
            Self::InferenceMinute { calls, .. }
            | Self::FeaturesRead { calls, .. }
            | Self::FeaturesPushed { calls, .. } => Some(*calls),
            _ => None,
        }
    }
}
