//! The closed list of audit events, which can be proved later, and the sink that takes them.
//!
//! Every part may record an event. Recording never blocks and never fails the caller; events that do not fit are
//! counted. An event holds names that the operator of this box chose, never data that a caller sent: that is in it only
//! as a keyed tag ([`tag`]).

pub mod erasure;
pub mod feature;
pub mod inference;
mod record_repeated;
mod repeated;
pub mod sink;
pub mod tag;

use std::borrow::Cow;
use std::collections::BTreeMap;
use std::fmt;

use ledge_base::names::{CameraName, FeatureName, KeyName, ModelName, ModelVersion};
use schemars::JsonSchema;
use serde::{Deserialize, Deserializer, Serialize};

use inference::CallOutcome;
pub use sink::{AuditQueue, AuditSink};
use tag::Tag;

/// A fixed word of Ledge, such as a cause or a stage: up to 40 characters of `a-z`, `0-9` and `_`.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, JsonSchema)]
#[serde(transparent)]
pub struct FixedWord(#[schemars(regex(pattern = "^[a-z0-9_]{1,40}$"))] Cow<'static, str>);

/// The longest [`FixedWord`], in characters.
const WORD_CHARS_MAX: usize = 40;

impl FixedWord {
    /// The text.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl From<&'static str> for FixedWord {
    fn from(word: &'static str) -> Self {
        Self(Cow::Borrowed(word))
    }
}

impl fmt::Display for FixedWord {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl<'de> Deserialize<'de> for FixedWord {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let text = String::deserialize(deserializer)?;
        let is_word = !text.is_empty()
            && text.len() <= WORD_CHARS_MAX
            && text.bytes().all(|byte| byte.is_ascii_lowercase() || byte.is_ascii_digit() || byte == b'_');
        if !is_word {
            return Err(serde::de::Error::custom(format_args!(
                "{text:?} is not a word of an audit record: expected 1 to {WORD_CHARS_MAX} of a-z 0-9 _"
            )));
        }
        Ok(Self(Cow::Owned(text)))
    }
}

/// An event of the audit log, as it stands in a record. No payloads, no free text from outside. A variant or a field
/// may be added; the version of `AuditRecord` in the crate `audit` grows when one changes its meaning.
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
    /// Nothing else was recorded for a day; the box is running.
    Idle,
    /// The settings differ from those of the previous start.
    ConfigurationChanged {
        /// The keys, such as `http.listen`; never their values.
        keys: Vec<String>,
    },
    /// This start listens at an address without encryption, for a local network.
    ListensUnencrypted {
        /// The address and port.
        address: String,
        /// The networks that are served.
        networks: Vec<String>,
    },
    /// A code was made with which a person signs in at the console.
    SignInCodeMade {
        /// The name of the person.
        name: KeyName,
        roles: Vec<String>,
        /// The models it covers; `None` is all of them.
        models: Option<Vec<ModelName>>,
        /// The feature views whose values it may read and push; `None` is all of them.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        feature_views: Option<Vec<FeatureName>>,
    },
    /// A caller signed in at the console.
    SessionBegan {
        /// `key` or `code`.
        by: FixedWord,
    },
    /// The sign-in of a caller ended.
    SessionEnded {
        /// `signed_out`, `idle`, `lifetime`, `key` (it is not valid any more), `displaced` (too many sign-ins) or
        /// `administrator`.
        cause: FixedWord,
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
    /// A version of a model could not be loaded, for another reason than the last time.
    ModelRefused {
        /// The model.
        model: ModelName,
        /// Its version.
        version: ModelVersion,
        /// `golden` if it answered its golden inputs wrong, else `load`; older records lack it.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        cause: Option<Cow<'static, str>>,
    },
    /// A version that went live answered its golden inputs wrong, so a fallback runs in its place.
    ModelFellBack {
        /// The model.
        model: ModelName,
        /// Its version.
        version: ModelVersion,
        /// The fallback: the same file in another runtime or with other instructions, or the float original next to it.
        to: GoldenFallback,
    },
    /// A run of a version of a model that serves, or a load of one of its instances, ended the process that it was in.
    /// In older records it may have been the daemon's own process.
    ModelCrashed {
        /// The model.
        model: ModelName,
        /// Its version.
        version: ModelVersion,
        /// True if it is not loaded any more until somebody asks for it.
        suspended: bool,
    },
    /// A caller is refused for a version of a model for a time, because its calls ended the process of the model.
    CallerRefused {
        /// The model.
        model: ModelName,
        /// Its version.
        version: ModelVersion,
        /// The time.
        seconds: u64,
    },
    /// A version of a model was taken out of service.
    ModelUnloaded {
        /// The model.
        model: ModelName,
        /// Its version.
        version: ModelVersion,
    },
    /// A caller added the folder of a model, which is loaded next.
    ModelAdded {
        model: ModelName,
        /// `catalogue` or `upload`.
        origin: FixedWord,
        /// SHA-256 of the list of its files, `.catalogue.sha256`.
        digest: String,
    },
    /// A caller removed the folder of a model.
    ModelRemoved { model: ModelName },
    /// An inference call was answered or refused.
    Inference {
        /// The model; `None` when no model has the requested name.
        model: Option<ModelName>,
        /// The version that was to answer.
        version: Option<ModelVersion>,
        /// The first 16 digits of the digest of its files.
        digest: Option<String>,
        /// The outcome.
        outcome: CallOutcome,
        /// The duration in microseconds.
        us: u64,
        /// The tag of the inputs.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        input: Option<Tag>,
        /// The tag of the outputs.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        output: Option<Tag>,
    },
    /// The inference calls of one caller, model and outcome within a minute.
    InferenceMinute {
        /// The model; `None` when no model has the requested name.
        model: Option<ModelName>,
        /// The version that was to answer.
        version: Option<ModelVersion>,
        /// The first 16 digits of the digest of its files.
        digest: Option<String>,
        /// Their outcome.
        outcome: CallOutcome,
        /// The number of calls.
        calls: u64,
        /// The sum of their durations in microseconds.
        us: u64,
        /// The longest duration in microseconds.
        us_max: u64,
    },
    /// The reads of one caller and feature view within a minute.
    FeaturesRead {
        /// The feature view.
        feature_view: String,
        /// The model that read for the caller; `None` when the caller got the values.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        model: Option<ModelName>,
        /// The number of calls.
        calls: u64,
        /// The number of requested rows, found or not.
        rows: u64,
        /// The tags of the entities, sorted; `audit.feature_entities` of them at most.
        entities: Vec<Tag>,
        /// The number of rows of entities that are not listed.
        #[serde(default, skip_serializing_if = "is_zero")]
        unlisted: u64,
    },
    /// The pushes of one caller to a feature view within a minute.
    FeaturesPushed {
        /// The feature view.
        feature_view: String,
        /// The number of calls.
        calls: u64,
        /// The number of rows.
        rows: u64,
        /// The tags of the entities, as in `features_read`.
        entities: Vec<Tag>,
        /// The number of rows of entities that are not listed.
        #[serde(default, skip_serializing_if = "is_zero")]
        unlisted: u64,
    },
    /// Files of the feature store were found damaged. The log says which.
    FeatureStoreDamaged,
    /// A backup replaced everything in the feature store.
    FeatureStoreRestored {
        /// The number of its records.
        records: u64,
    },
    /// An entity of the feature store was erased. The record does not name it.
    FeatureEntityErased {
        /// The number of erased records.
        records: u64,
        /// The number of feature views that they were in.
        views: u64,
        /// SHA-256 of the statement for a certificate of erasure, in hexadecimal; `None` if no certificate was asked
        /// for.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        statement: Option<String>,
    },
    /// Everything that the feature store has on an entity was given to a caller.
    FeatureEntityDisclosed {
        /// The number of records.
        records: u64,
        /// The number of feature views that they were in.
        views: u64,
        /// The tag of the entity; `None` without a key for tags.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        entity: Option<Tag>,
    },
    /// Rows of the feature store were exported as a backup.
    FeatureStoreBackedUp {
        /// The requested feature view; `None` is all of them.
        feature_view: Option<String>,
    },
    /// Signed metadata was accepted: the trusted metadata has changed.
    MetadataAccepted {
        /// The role.
        role: String,
        /// Its version.
        version: u64,
    },
    /// Metadata of the update repository was refused. The log says why.
    MetadataRefused {
        /// The cause.
        cause: FixedWord,
    },
    /// The trusted metadata on this box was found damaged or missing.
    MetadataDamaged,
    /// The trusted metadata was discarded: trust starts again with the root file.
    TrustReset,
    /// An update reached another stage, was committed, or rolled back.
    UpdateMoved {
        /// The subject of the update, such as `models/minilm`.
        subject: String,
        /// The new version.
        version: ModelVersion,
        /// The rollout.
        rollout: String,
        /// The stage.
        stage: FixedWord,
        /// The cause, if it was rolled back.
        cause: Option<FixedWord>,
    },
    /// The administrator of this box intervened in an update.
    UpdateOrdered {
        /// The subject of the update.
        subject: String,
        /// The order: `pin`, `unpin`, `rollback` or `cancel`.
        order: FixedWord,
    },
    /// The reference that the inputs and outputs of a version are compared with was fixed.
    DriftReferenceFixed {
        model: ModelName,
        version: ModelVersion,
        /// `learnt`, `inherited` or `accepted`.
        origin: FixedWord,
    },
    /// Something is wrong with a model or an objective: a finding about drift or about an objective has begun. At most 50 a
    /// day of each part.
    FindingBegan {
        /// The finding, such as `drift wine_mlp`.
        finding: String,
        #[serde(default, skip_serializing_if = "Option::is_none")]
        model: Option<ModelName>,
        #[serde(default, skip_serializing_if = "Option::is_none")]
        version: Option<ModelVersion>,
        /// `warn` or `fail`.
        status: FixedWord,
        /// Findings of this part that began before and have no record of their own.
        others: u64,
    },
    /// A finding has ended. After a start of the box, one that lasts begins again.
    FindingEnded {
        finding: String,
        #[serde(default, skip_serializing_if = "Option::is_none")]
        model: Option<ModelName>,
        #[serde(default, skip_serializing_if = "Option::is_none")]
        version: Option<ModelVersion>,
    },
    /// A figure of the box, or of a model, is unusual.
    UnusualBegan {
        /// The model; none for a figure of the box.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        model: Option<ModelName>,
        /// The column of the history.
        figure: FixedWord,
        /// `spike`, `dip`, `level_shift`, `trend`, `spread`, `stuck` or `silence`; or `limit`, where it will reach its limit soon.
        kind: FixedWord,
        /// `up`, `down` or `neither`.
        direction: FixedWord,
    },
    /// A figure is not unusual any more.
    UnusualEnded {
        #[serde(default, skip_serializing_if = "Option::is_none")]
        model: Option<ModelName>,
        figure: FixedWord,
        /// As at the begin, or a better name.
        kind: FixedWord,
        /// `usual`, `new_normal` where it lasted so long that it is usual now, `limit_far`, or `forgotten` where the figure is
        /// not watched any more.
        end: FixedWord,
    },
    /// An operator called normal what was reported of a figure. If it goes on, it ends with this record.
    UnusualCalledNormal {
        #[serde(default, skip_serializing_if = "Option::is_none")]
        model: Option<ModelName>,
        figure: FixedWord,
    },
    /// An operator called normal the last unusual row of an entity.
    UnusualRowCalledNormal {
        feature_view: String,
        /// The number of features that are watched.
        features: u64,
    },
    /// A connection out of this box was opened. A connection for the audit log itself is recorded when it is the first,
    /// or the first after a failure.
    ConnectionOpened {
        /// `HOST:PORT`, as configured.
        destination: String,
        /// The region of the destination.
        region: String,
        /// The purpose.
        purpose: FixedWord,
        /// The number of further events of the kind since its last record: there is one a minute at most.
        #[serde(default, skip_serializing_if = "is_zero")]
        others: u64,
    },
    /// The traffic to one destination since the counts began, as in `ledge audit egress`. There is one for each
    /// destination with traffic at each start and after each midnight in UTC.
    EgressCounted {
        /// `HOST:PORT`, as configured.
        destination: String,
        /// The region of the destination.
        region: String,
        /// The time at which counting began, in milliseconds since the Unix epoch.
        since_ms: u64,
        connections: u64,
        /// Bytes sent before encryption, by the name of their content.
        sent: BTreeMap<FixedWord, u64>,
        /// Bytes received, after decryption.
        received: u64,
    },
    /// Data was removed because `[retention]` ended its time. There is one a day.
    RetentionEnforced {
        /// The number of removed items, by what they are: `inbox_files`, `feature_rows`.
        removed: BTreeMap<FixedWord, u64>,
        /// The number of items that could not be removed. The log says why.
        failed: u64,
    },
    /// The platform of which this box is a member issued a certificate for it.
    CertificateIssued {
        /// The serial number, in hexadecimal digits.
        serial: String,
        /// The end of its validity (RFC 3339).
        until: String,
    },
    /// A signed question of the platform was answered. The record is on the disk before the answer leaves.
    QuestionAnswered {
        /// The question: `doctor`.
        question: FixedWord,
        /// The random id that the platform gave it: 64 hexadecimal digits.
        id: String,
    },
    /// A question was refused, and not answered: once for each question, and for 10 an hour at most.
    QuestionRefused {
        /// The cause: `unreadable`, `not_signed`, `other_box`, `expired`, `early` (made in the future), `repeated` (not
        /// made after the one that was answered last), `unknown` (to this version) or `not_allowed`.
        cause: FixedWord,
    },
    /// An outbound connection was requested and is not allowed.
    ConnectionRefused {
        /// `HOST:PORT`, as configured; `unlisted` if a request named it and the allow-list does not.
        destination: String,
        /// The purpose.
        purpose: FixedWord,
    },
    /// Pictures of a camera were published. There is a record at the first picture after a start, and one an hour.
    PicturesPublished {
        /// The camera.
        camera: CameraName,
        /// The number of pictures since its last record.
        pictures: u64,
    },
    /// A caller saw pictures of a camera. There is a record at the first picture that a caller gets, and one an hour.
    PicturesSeen {
        /// The camera.
        camera: CameraName,
        /// The number of pictures since the last record of this caller and camera.
        pictures: u64,
    },
    /// A caller added a job for a model.
    JobAdded {
        /// Its id.
        job: String,
        model: ModelName,
    },
    /// A job ended.
    JobEnded {
        /// Its id.
        job: String,
        /// `done`; or `failed`, where it could not go on.
        outcome: FixedWord,
        /// The number of answered files or rows.
        answered: u64,
        /// The number of files or rows that failed.
        failed: u64,
    },
    /// A job was removed, with its input and its result if they came over HTTP.
    JobRemoved {
        /// Its id.
        job: String,
        /// `cancelled` before its end, `removed` after it, or `expired`.
        cause: FixedWord,
    },
    /// A caller requested maintenance that leaves no other record.
    MaintenanceRequested {
        /// The request: `feature_snapshot`, `feature_compaction`, `update_check` or `catalogue_refresh`.
        what: FixedWord,
    },
    /// A caller lacked the permission for a request.
    AccessDenied {
        /// The request, such as `model_load`.
        what: FixedWord,
        /// The number of further events of the kind since its last record: there is one a minute at most.
        #[serde(default, skip_serializing_if = "is_zero")]
        others: u64,
    },
    /// A caller presented a credential that was refused.
    AuthenticationFailed {
        /// The cause: `malformed`, `unknown` (or another secret), `expired`, `revoked`, or `too_many` failed attempts.
        cause: FixedWord,
        /// The number of further events of the kind since its last record: there is one a minute at most.
        #[serde(default, skip_serializing_if = "is_zero")]
        others: u64,
    },
    /// An API key was created.
    KeyCreated {
        /// Its name.
        name: KeyName,
        /// Its roles.
        roles: Vec<String>,
        /// The models it covers; `None` is all of them.
        models: Option<Vec<ModelName>>,
        /// The feature views whose values it may read and push; `None` is all of them.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        feature_views: Option<Vec<FeatureName>>,
        /// The time of its expiry, in milliseconds since the Unix epoch.
        expires_ms: Option<u64>,
    },
    /// An API key was revoked.
    KeyRevoked {
        /// Its name.
        name: KeyName,
    },
    /// An API key in the store differs from its record: the file was edited, and not by `ledge keys`.
    KeyChanged {
        /// Its name.
        name: KeyName,
        /// Its current roles.
        roles: Vec<String>,
        /// The models it covers now; `None` is all of them.
        models: Option<Vec<ModelName>>,
        /// The feature views whose values it may read and push; `None` is all of them.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        feature_views: Option<Vec<FeatureName>>,
        /// The current time of its expiry, in milliseconds since the Unix epoch.
        expires_ms: Option<u64>,
    },
    /// The store of API keys cannot be read, or has lost keys or revocations, like an older copy. Revoked keys stay
    /// revoked.
    KeyStoreDamaged,
    /// The clock of the machine jumped.
    ClockJumped {
        /// The jump in milliseconds; a jump back is negative.
        by_ms: i64,
    },
    /// The use of a month has reached a budget: the share at which it warns, or the whole. Once a month for each.
    BudgetReached {
        /// The name of the budget.
        budget: String,
        /// The month of this box, such as `2026-12`.
        month: String,
        /// `warning`, `whole`, or `refused` where calls are refused from now on.
        what: FixedWord,
    },
    /// The disk has too little room for something, or has enough again.
    SpaceChanged {
        /// The part: `audit_log`, `feature_store` or `updates`.
        what: FixedWord,
        /// True if there is enough room.
        enough: bool,
    },
    /// Events were lost before they became records.
    RecordsLost {
        /// The cause: `queue` (they came faster than they could be written), `quota`, `disk` or `log`.
        cause: FixedWord,
        /// The time of the first loss, in milliseconds since the Unix epoch.
        since_ms: u64,
        /// The number of calls: of inference, and reads and pushes of features.
        calls: u64,
        /// The number of other events.
        events: u64,
    },
    /// Records were removed from this box, to stay within the quota.
    RecordsPruned {
        /// The records below this sequence number were removed, and of earlier logs all but their ends.
        below: u64,
        /// True if the platform has all of them.
        synced: bool,
    },
    /// This log begins.
    LogBegun {
        /// The cause: `new`, `damaged`, `forked`, `renamed` or `restored`.
        cause: FixedWord,
        /// The previous log, which is kept unchanged.
        previous: Option<PreviousLog>,
    },
    /// A key for tags was created.
    TagKeyMade {
        /// Its period, as in a tag.
        period: u32,
    },
    /// A key for tags was destroyed: its tags cannot be linked to their originals any more.
    TagKeyDestroyed {
        /// Its period, as in a tag.
        period: u32,
    },
    /// Another master key encrypts from now on.
    MasterKeyChanged {
        /// Its id: the first bytes of a hash of it, in hexadecimal.
        key: String,
    },
    /// Data that was plain or under an old master key was encrypted with the current one.
    Resealed {
        /// The data, such as `audit_keys`.
        what: FixedWord,
        /// The number of files or values.
        files: u64,
    },
    /// The key that signs the checkpoints of the log was created.
    AuditKeyMade {
        /// The verifier key (C2SP signed-note).
        verifier_key: String,
    },
}

/// The replacement for a model that answered its golden inputs wrong.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum GoldenFallback {
    /// The same file in another runtime, or with slower instructions that are exact.
    Runtime,
    /// Its float original.
    Float,
}

/// The facts known of the log before this one.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct PreviousLog {
    /// Its origin, as its checkpoints have it.
    pub origin: String,
    /// The number of records in its last checkpoint.
    pub size: u64,
    /// The root hash of that checkpoint, in base64.
    pub root: String,
    /// The number of records that were found.
    pub found: u64,
}

#[expect(clippy::trivially_copy_pass_by_ref, reason = "serde passes a reference")]
fn is_zero(count: &u64) -> bool {
    *count == 0
}

/// Names each event as its records do.
macro_rules! actions {
    ($($event:ident: $name:literal,)*) => {
        impl AuditEvent {
            /// The name of every event.
            pub const ACTIONS: &[&str] = &[$($name),*];

            /// The name in a record.
            pub fn action(&self) -> &'static str {
                match self {
                    $(Self::$event { .. } => $name,)*
                }
            }
        }
    };
}

actions! {
    Started: "started",
    Stopped: "stopped",
    Idle: "idle",
    ConfigurationChanged: "configuration_changed",
    ListensUnencrypted: "listens_unencrypted",
    SignInCodeMade: "sign_in_code_made",
    SessionBegan: "session_began",
    SessionEnded: "session_ended",
    ModelLoaded: "model_loaded",
    ModelRefused: "model_refused",
    ModelFellBack: "model_fell_back",
    ModelCrashed: "model_crashed",
    CallerRefused: "caller_refused",
    ModelUnloaded: "model_unloaded",
    ModelAdded: "model_added",
    ModelRemoved: "model_removed",
    Inference: "inference",
    InferenceMinute: "inference_minute",
    FeaturesRead: "features_read",
    FeaturesPushed: "features_pushed",
    FeatureStoreDamaged: "feature_store_damaged",
    FeatureStoreRestored: "feature_store_restored",
    FeatureEntityErased: "feature_entity_erased",
    FeatureEntityDisclosed: "feature_entity_disclosed",
    FeatureStoreBackedUp: "feature_store_backed_up",
    MetadataAccepted: "metadata_accepted",
    MetadataRefused: "metadata_refused",
    MetadataDamaged: "metadata_damaged",
    TrustReset: "trust_reset",
    UpdateMoved: "update_moved",
    UpdateOrdered: "update_ordered",
    DriftReferenceFixed: "drift_reference_fixed",
    FindingBegan: "finding_began",
    FindingEnded: "finding_ended",
    UnusualBegan: "unusual_began",
    UnusualEnded: "unusual_ended",
    UnusualCalledNormal: "unusual_called_normal",
    UnusualRowCalledNormal: "unusual_row_called_normal",
    ConnectionOpened: "connection_opened",
    EgressCounted: "egress_counted",
    RetentionEnforced: "retention_enforced",
    CertificateIssued: "certificate_issued",
    QuestionAnswered: "question_answered",
    QuestionRefused: "question_refused",
    ConnectionRefused: "connection_refused",
    PicturesPublished: "pictures_published",
    PicturesSeen: "pictures_seen",
    JobAdded: "job_added",
    JobEnded: "job_ended",
    JobRemoved: "job_removed",
    MaintenanceRequested: "maintenance_requested",
    AccessDenied: "access_denied",
    AuthenticationFailed: "authentication_failed",
    KeyCreated: "key_created",
    KeyRevoked: "key_revoked",
    KeyChanged: "key_changed",
    KeyStoreDamaged: "key_store_damaged",
    ClockJumped: "clock_jumped",
    BudgetReached: "budget_reached",
    SpaceChanged: "space_changed",
    RecordsLost: "records_lost",
    RecordsPruned: "records_pruned",
    LogBegun: "log_begun",
    TagKeyMade: "tag_key_made",
    TagKeyDestroyed: "tag_key_destroyed",
    MasterKeyChanged: "master_key_changed",
    Resealed: "resealed",
    AuditKeyMade: "audit_key_made",
}

impl AuditEvent {
    /// True if it has to be on the disk at once, and not only with the events of the next moments.
    pub fn is_urgent(&self) -> bool {
        !matches!(
            self,
            Self::Inference { .. }
                | Self::InferenceMinute { .. }
                | Self::FeaturesRead { .. }
                | Self::FeaturesPushed { .. }
                | Self::ConnectionOpened { .. }
                | Self::EgressCounted { .. }
                | Self::PicturesPublished { .. }
                | Self::PicturesSeen { .. }
                | Self::Idle
        )
    }

    /// True if the operator should look at it soon.
    pub fn is_warning(&self) -> bool {
        match self {
            Self::ModelRefused { .. }
            | Self::ModelFellBack { .. }
            | Self::ModelCrashed { .. }
            | Self::CallerRefused { .. }
            | Self::FeatureStoreDamaged
            | Self::MetadataRefused { .. }
            | Self::MetadataDamaged
            | Self::TrustReset
            | Self::UpdateMoved { cause: Some(_), .. }
            | Self::QuestionRefused { .. }
            | Self::ConnectionRefused { .. }
            | Self::AccessDenied { .. }
            | Self::AuthenticationFailed { .. }
            | Self::KeyChanged { .. }
            | Self::KeyStoreDamaged
            | Self::ClockJumped { .. }
            | Self::BudgetReached { .. }
            | Self::FindingBegan { .. }
            | Self::UnusualBegan { .. }
            | Self::SpaceChanged { enough: false, .. }
            | Self::RecordsLost { .. } => true,
            Self::LogBegun { cause, .. } => cause.as_str() != "new",
            _ => false,
        }
    }

    /// The number of inference or feature calls that it stands for; `None` for other events. When room is short, calls
    /// may be counted instead of recorded.
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
