//! Properties that hold for any input; fed by `tests/it/fuzz.rs` and `fuzz/`. And the state of a box that has learnt for a
//! week, for tests of the daemon.

use std::io;
use std::path::Path;
use std::time::Duration;

use crate::config::HistoryConfig;
use crate::query::HistoryQuery;
use crate::readings::FigureSample;
use crate::record::{Record, StoredRecord};
use crate::recorder::EndedSlot;
use crate::series::SeriesName;
use crate::unusual::{LEARNING_SAMPLES, UnusualWatch};

/// Feeds arbitrary bytes to the reader of records: a record that was read is written the same. True when it is one.
///
/// # Panics
/// When that does not hold, which is a bug.
pub fn fuzz_history_record(data: &[u8]) -> bool {
    let StoredRecord::Whole(record) = Record::decode(data) else { return false };
    let mut written = Vec::new();
    record.encode(&mut written);
    assert_eq!(written, data);
    true
}

/// Feeds arbitrary text to the reader of queries. True when it is one.
pub fn fuzz_history_query(data: &[u8]) -> bool {
    std::str::from_utf8(data).is_ok_and(|text| HistoryQuery::parse(text).is_ok())
}

/// The bytes of a record.
pub fn record_bytes(slot: u32, covered_s: u16, figures: &[f32]) -> Vec<u8> {
    let mut bytes = Vec::new();
    Record { slot, covered_s, figures: figures.into() }.encode(&mut bytes);
    bytes
}

/// Writes what is usual of a model into a folder of the history, as a daemon leaves it after a week of `calls_per_s` calls,
/// of which hardly one failed. The week ends at `end_ms`, in milliseconds since the Unix epoch.
pub fn write_learnt_week(folder: &Path, model: &str, calls_per_s: f32, end_ms: u64) -> io::Result<()> {
    let config = HistoryConfig { path: folder.to_owned(), ..HistoryConfig::default() };
    let mut watch = UnusualWatch::open(&config);
    let mut state = 1_u64;
    // From 0 to 1.
    let mut noise = || {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        u16::try_from(state >> 48).map_or(0.0, f32::from) / f32::from(u16::MAX)
    };
    for left in (0..u64::from(LEARNING_SAMPLES)).rev() {
        let failed = if noise() < 0.005 { 1.0 / 60.0 } else { 0.0 };
        let (calls, p99_s) = (calls_per_s * (0.9 + 0.2 * noise()), 0.02 + 0.004 * noise());
        let used = vec![(SeriesName::Model(model.into()), [calls, failed, 0.0, 0.01, p99_s, 0.0, 0.1, 100.0, 100.0])];
        let minute = EndedSlot { sample: FigureSample::default(), elapsed: Duration::from_mins(1), used };
        watch.take(end_ms - left * 60_000, &minute);
    }
    watch.write()
}
