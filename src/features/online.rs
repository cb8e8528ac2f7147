//! Requests, answers and errors of the store, independent of the protocol. Values from outside are JSON values until
//! the view gives them a type.

use std::collections::BTreeMap;
use std::sync::Arc;

use ledge_anomaly::Band;
use ledge_base::memory_budget::{MemoryBudgetExhausted, MemoryReservation};
use serde::Serialize;
use serde_json::Value as Json;

use super::value::Value;
use super::view::Feature;

/// Columns of untyped values, all of one length: a data frame in JSON.
pub type FrameColumns = Vec<(String, Vec<Json>)>;

/// The column in which Feast's client sends event times to `/write-to-online-store`, whatever the view calls its own.
pub const EVENT_TIMESTAMP: &str = "event_timestamp";

/// The approximate memory of the cells of columns, in bytes.
pub fn bytes_of(columns: &FrameColumns) -> usize {
    fn cell(value: &Json) -> usize {
        let beside = match value {
            Json::String(text) => text.len(),
            Json::Array(values) => values.iter().map(cell).sum(),
            _ => 0,
        };
        size_of::<Json>() + beside
    }
    let spare = |cells: &Vec<Json>| (cells.capacity() - cells.len()) * size_of::<Json>();
    columns.iter().map(|(_, cells)| spare(cells) + cells.iter().map(cell).sum::<usize>()).sum()
}

/// The memory of an object of JSON as a tree, in bytes: a node of a map has room for eleven members.
const OBJECT_BYTES: usize = 640;

/// The most memory of the values that a body of JSON can have, in bytes, while they are read: their number is that of
/// its commas, and an array grows by doubling.
pub fn bytes_of_json(body: &[u8]) -> usize {
    let (commas, objects) = body.iter().fold((0, 0), |(commas, objects), byte| {
        (commas + usize::from(*byte == b','), objects + usize::from(*byte == b'{'))
    });
    2 * (commas + 1) * size_of::<Json>() + OBJECT_BYTES * objects + body.len()
}

/// The features to read.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum FeatureSelection {
    /// `VIEW:FEATURE`, or a whole `VIEW`.
    Features(Vec<String>),
    /// Those of a feature service.
    Service(String),
}

/// A read: Feast's `get_online_features`.
#[derive(Debug, Clone, PartialEq)]
pub struct OnlineFeaturesRequest {
    pub selection: FeatureSelection,
    /// The entities: a column for each join key.
    pub entities: FrameColumns,
}

/// The answer, in the order asked for.
#[derive(Debug, Clone)]
pub struct OnlineFeatures {
    /// The join keys as they were given, those that any of the features needs.
    pub join_keys: FrameColumns,
    pub features: Vec<Feature>,
    pub cells: FeatureCells,
}

impl OnlineFeatures {
    /// Each feature with its cells, one for each entity.
    pub fn columns(&self) -> impl Iterator<Item = (&Feature, &[FeatureCell])> {
        self.features.iter().enumerate().map(|(at, feature)| (feature, self.cells.column(at)))
    }

    /// The cells of each feature in turn, one for each entity.
    pub fn into_columns(self) -> impl Iterator<Item = Vec<FeatureCell>> {
        let FeatureCells { entities, cells, memory } = self.cells;
        let mut cells = cells.into_iter();
        (0..self.features.len()).map(move |_| {
            // Until the last column is taken.
            let _memory = &memory;
            cells.by_ref().take(entities).collect()
        })
    }
}

/// A cell for each feature of each entity.
#[derive(Debug, Clone, Default)]
pub struct FeatureCells {
    entities: usize,
    /// The cells of the first feature, then those of the next. One vector takes a fraction of the time of one for each
    /// feature.
    cells: Vec<FeatureCell>,
    /// Counts them while they exist.
    memory: Option<Arc<MemoryReservation>>,
}

impl FeatureCells {
    /// The cells of the first feature for each of these entities, then those of the next.
    pub fn new(entities: usize, cells: Vec<FeatureCell>) -> Self {
        debug_assert_eq!(cells.len().checked_rem(entities).unwrap_or(0), 0, "each feature has a cell for each entity");
        Self { entities, cells, memory: None }
    }

    /// The same cells, counted by `memory`, which may have more bytes until now.
    pub(super) fn counted(self, mut memory: MemoryReservation) -> Result<Self, MemoryBudgetExhausted> {
        memory.resize(self.cells.capacity() * size_of::<FeatureCell>() + self.value_bytes())?;
        Ok(Self { memory: Some(Arc::new(memory)), ..self })
    }

    /// The number of all cells.
    pub fn count(&self) -> usize {
        self.cells.len()
    }

    /// The memory of all values that have separate memory, in bytes.
    pub fn value_bytes(&self) -> usize {
        self.cells.iter().filter_map(|cell| cell.value.as_ref()).map(Value::bytes_beside).sum()
    }

    /// The cells of the feature at this index.
    pub fn column(&self, feature: usize) -> &[FeatureCell] {
        let begin = feature * self.entities;
        self.cells.get(begin..begin + self.entities).unwrap_or_default()
    }
}

/// One feature of one entity.
#[derive(Debug, Clone, PartialEq)]
pub struct FeatureCell {
    /// The value; there is one exactly when the status is PRESENT.
    pub value: Option<Value>,
    pub status: FieldStatus,
    /// The event time of its row, in microseconds since the Unix epoch; 0 without a row.
    pub event_us: i64,
}

/// Feast's field statuses.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum FieldStatus {
    Present,
    /// There is a row, and the value is null.
    NullValue,
    NotFound,
    /// There is a row, older than the view's ttl.
    OutsideMaxAge,
}

impl FieldStatus {
    /// Every status.
    pub const ALL: [Self; 4] = [Self::Present, Self::NullValue, Self::NotFound, Self::OutsideMaxAge];

    /// Feast's name of it.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Present => "PRESENT",
            Self::NullValue => "NULL_VALUE",
            Self::NotFound => "NOT_FOUND",
            Self::OutsideMaxAge => "OUTSIDE_MAX_AGE",
        }
    }
}

/// The target of a push.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum PushTarget {
    /// Every view of a push source.
    Source(String),
    View(String),
}

/// A write: Feast's `push` and `write_to_online_store`. All of its rows are written, or none.
#[derive(Debug, Clone, PartialEq)]
pub struct FeaturePush {
    pub target: PushTarget,
    /// The rows: join keys, features, and the event time.
    pub columns: FrameColumns,
}

/// The outcomes of the rows of a durable push.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct PushCounts {
    /// Rows that are now the newest of their entity, or entered its aggregates.
    pub accepted: usize,
    /// Rows older than the newest row of their entity, in a view without aggregates.
    pub outdated: usize,
    /// Rows that had entered the aggregates before.
    pub duplicate: usize,
    /// Rows too late for the aggregates.
    pub too_late: usize,
}

/// The outcome of a push that is durable.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct PushOutcome {
    pub rows: PushCounts,
    /// Columns that no view of the push has: their values are not stored.
    pub ignored: Vec<String>,
}

/// Parts of a push that are not stored.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum IgnoredPushPart {
    Columns(usize),
    /// A number of fields of a message that are not declared. Columns are taken by name, and devices often send more.
    Fields(usize),
}

/// The number of records and views that an erasure removed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct ErasureCounts {
    pub records: u64,
    pub views: u64,
}

/// The result of an erasure.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct ErasureResult {
    pub counts: ErasureCounts,
    /// The statement of each entity for its certificate, if they were asked for.
    pub statements: Vec<String>,
}

/// Everything that the store has on an entity.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Disclosure {
    /// The feature views that have join keys of the entity, with and without rows.
    pub feature_views: Vec<DisclosedView>,
    /// Rows that are not listed, because there are too many.
    pub unlisted_rows: u64,
    /// Earlier rows in the journal that are not listed, because there are too many.
    pub unlisted_earlier_rows: u64,
}

/// The rows of an entity in one feature view.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct DisclosedView {
    pub name: String,
    /// False for a view that is not declared any more: its features have no names.
    pub declared: bool,
    pub rows: Vec<DisclosedRow>,
    /// The rows of the journal, the oldest first: earlier values, and those that are in `rows`, too. They cannot be
    /// read otherwise, and the next snapshots remove them.
    pub journal: Vec<DisclosedEntry>,
    /// The profiles that were learnt of its rows, in a view with `[feature_view.unusual]`.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub profiles: Vec<DisclosedProfile>,
}

/// The usual values of an entity.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct DisclosedProfile {
    pub join_keys: JoinKeyValues,
    /// The number of rows that it was learnt from, and the event time of the last one in RFC 3339.
    pub rows: u32,
    pub last_event_timestamp: String,
    /// The time of the first unusual row, in RFC 3339; `None` while the entity is not unusual.
    pub unusual_since: Option<String>,
    /// The usual values of each feature; `None` before enough was seen.
    pub features: BTreeMap<String, Option<Band>>,
}

/// The current row of an entity.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct DisclosedRow {
    pub join_keys: JoinKeyValues,
    /// In RFC 3339.
    pub event_timestamp: String,
    /// The time from which the row may be removed, in RFC 3339; `None`: never.
    pub kept_until: Option<String>,
    /// The values of the columns, by name.
    pub features: JoinKeyValues,
    /// The values of the aggregates now, by name.
    pub aggregations: JoinKeyValues,
}

/// A row of the journal.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct DisclosedEntry {
    /// Its sequence number in the journal.
    pub seq: u64,
    /// In RFC 3339.
    pub event_timestamp: String,
    pub features: JoinKeyValues,
}

/// Errors of the store.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum FeatureError {
    #[error("there is no feature store here: declare feature views in {folder}")]
    Disabled { folder: Arc<str> },
    #[error("Feature view {view} does not exist")]
    UnknownView { view: String },
    #[error("feature view '{view}' has no feature '{feature}'")]
    UnknownFeature { view: String, feature: String },
    #[error("Feature service {service} does not exist")]
    UnknownService { service: String },
    #[error("Unable to find push source '{source_name}'.")]
    UnknownSource { source_name: String },
    /// A feature view that the caller has no permission for.
    #[error(
        "{principal} may not use feature view '{view}': add it to the caller's access (`ledge keys create NAME \
         --feature-view {view}`, or feature_views in access.users and access.certificates)"
    )]
    OutOfScope { view: String, principal: String },
    #[error("'{text}' is not a feature reference: expected VIEW:FEATURE")]
    Reference { text: String },
    #[error("column '{column}' is missing, which feature view '{view}' needs{}", and_unknown(unknown))]
    MissingColumn {
        column: String,
        view: String,
        /// Columns of the request that no view has: one of them may be a misspelling of the missing one.
        unknown: Vec<String>,
    },
    /// A push without a single feature, which would set all of them to null.
    #[error("no column is a feature of {views}, which has {}{}", listed(features), and_unknown(unknown))]
    NoFeature {
        views: String,
        /// Their features that are columns.
        features: Vec<String>,
        /// Columns of the request that no view has.
        unknown: Vec<String>,
    },
    #[error("{reason}")]
    Columns { reason: String },
    /// A value that does not fit the type of its column.
    #[error("column '{column}', row {row}: {reason}")]
    Value {
        column: String,
        /// The row, from 0.
        row: usize,
        reason: String,
    },
    #[error("row {row} is too large for feature view '{view}': {bytes} bytes, and the limit is {most}")]
    TooLarge {
        view: String,
        /// The row, from 0.
        row: usize,
        bytes: usize,
        most: usize,
    },
    #[error("the feature store is not ready: {reason}")]
    Unavailable { reason: String },
    #[error("the feature store is overloaded: {waiting} pushes wait to be written; try again later")]
    Overloaded { waiting: usize },
    /// The disk is full. Acknowledged rows are safe, and reads continue.
    #[error(
        "the disk is full: {free_mb} MB are free in {folder}, and the feature store keeps {kept_mb} MB (features.min_free_mb)"
    )]
    DiskFull { folder: String, free_mb: u64, kept_mb: u64 },
    /// A backup that cannot be restored.
    #[error("the backup cannot be restored, and nothing has changed: {reason}")]
    Backup { reason: String },
    /// An entity was not erased, or not from every file yet.
    #[error("the entity is not completely erased yet: {reason}. Send the erasure again")]
    NotErased { reason: String },
    /// The journal could not be written; no row of the push is stored.
    #[error("the push could not be written: {reason}")]
    NotWritten { reason: String },
    /// Not enough memory for the values to read.
    #[error(transparent)]
    NoRoom(MemoryBudgetExhausted),
}

/// The most names in one message.
const LISTED_NAMES_MAX: usize = 8;

/// Names for a message, only the first few of many. A name may have any content and length.
pub fn listed<S: AsRef<str>>(names: &[S]) -> String {
    let shown = |name: &S| {
        let name = name.as_ref();
        let short: String = name.chars().take(64).collect();
        if short.len() < name.len() {
            format!("'{}…'", short.escape_debug())
        } else {
            format!("'{}'", short.escape_debug())
        }
    };
    let first: Vec<_> = names.iter().take(LISTED_NAMES_MAX).map(shown).collect();
    let more = names.len().saturating_sub(LISTED_NAMES_MAX);
    if more == 0 { first.join(", ") } else { format!("{} and {more} more", first.join(", ")) }
}

fn and_unknown(unknown: &[String]) -> String {
    if unknown.is_empty() {
        String::new()
    } else {
        format!("; there is {}, which no feature view has", listed(unknown))
    }
}

/// Join keys by name, as the caller gave them: the entity to erase.
pub type JoinKeyValues = BTreeMap<String, serde_json::Value>;
