//! The aggregates of one entity, by column and step.

use super::super::view::FieldId;
use super::bucket::WindowBucket;

/// The aggregates of one entity.
#[derive(Debug, Clone, PartialEq)]
pub struct WindowState {
    /// The newest event time; `None` before the first event.
    pub(super) watermark_us: Option<i64>,
    /// Events before it are too late, whatever the lateness: it is just after the newest identity that was dropped.
    pub(super) floor_us: i64,
    /// The events that would be recognized as repeated, ascending: event time, and the hash of the values.
    pub(super) identities: Vec<(i64, u64)>,
    pub(super) tracks: Vec<BucketTrack>,
}

/// The buckets of one column and step.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct BucketTrack {
    pub(super) column: FieldId,
    pub(super) interval_us: i64,
    /// The parts that buckets may have: those declared at the last event.
    pub(super) parts: u8,
    /// Ascending by number; none is empty.
    pub(super) buckets: Vec<WindowBucket>,
}

impl Default for WindowState {
    fn default() -> Self {
        Self { watermark_us: None, floor_us: i64::MIN, identities: Vec::new(), tracks: Vec::new() }
    }
}
