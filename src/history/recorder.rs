//! Makes records of the readings: of the box, of models and of callers, at each resolution.
//!
//! The clock may be set while the box runs. A record belongs to the interval in which it ends; where the clock went back,
//! the parts of an interval that was lived twice are merged, and where it went forward, intervals are missing. Nothing
//! is counted twice.

use std::collections::BTreeMap;
use std::time::Duration;

use ledge_models::serving::usage::{CallUsage, UsageInterval};

use crate::figures::{FigureHistory, FigurePeriod};
use crate::readings::{FigureInterval, FigureReading, FigureSample, quantile, single, whole};
use crate::record::Record;
use crate::series::{Resolution, SeriesName, USAGE_COLUMNS};
use crate::store::{HistoryStore, kept};

/// The minutes after which records are written when nobody calls.
const IDLE_FLUSH_MINUTES: u32 = 10;

/// The time after which written records are fsynced: each minute would wear out the disk of a small box. It is less than
/// the ten minutes of [`IDLE_FLUSH_MINUTES`], the first of which may be a part of one.
const SYNC_INTERVAL_MS: u64 = 9 * 60_000;

/// The records that are not complete.
#[derive(Debug)]
pub struct HistoryRecorder {
    seconds: PartialSlot,
    minute: PartialSlot,
    hour: PartialSlot,
    /// The minutes since records were written, and whether there were calls.
    unflushed: (u32, bool),
    /// The time of the last fsync.
    synced_ms: u64,
}

/// The figures of an interval that has ended.
#[derive(Debug)]
pub struct EndedSlot {
    /// Those of the box.
    pub sample: FigureSample,
    pub elapsed: Duration,
    /// Those of models and callers that were used, in the order of [`crate::series::USAGE_COLUMNS`].
    pub used: Vec<(SeriesName, [f32; USAGE_COLUMNS.len()])>,
}

/// An interval that is not complete.
#[derive(Debug)]
struct PartialSlot {
    resolution: Resolution,
    slot: u32,
    figures: FigureInterval,
    used: BTreeMap<SeriesName, CallUsage>,
}

impl PartialSlot {
    fn new(resolution: Resolution, start: FigureReading, now_ms: u64) -> Self {
        let figures = FigureInterval::starting(start);
        Self { resolution, slot: resolution.slot(now_ms), figures, used: BTreeMap::new() }
    }

    fn add(&mut self, reading: &FigureReading, used: &BTreeMap<SeriesName, CallUsage>) {
        self.figures.take(reading);
        for (name, usage) in used {
            self.used.entry(name.clone()).or_default().merge(usage);
        }
    }

    /// Pushes the records of the interval, which `reading` ends, and begins that of `next`.
    fn end(&mut self, reading: &FigureReading, next: u32, now_ms: u64, store: &mut HistoryStore) -> EndedSlot {
        let (sample, elapsed) = (self.figures.sample(reading), self.figures.elapsed(reading));
        // More than the interval where the clock went back in it.
        let covered_s = u16::try_from((elapsed + Duration::from_millis(500)).as_secs()).unwrap_or(u16::MAX).max(1);
        let record = |figures: Box<[f32]>| Record { slot: self.slot, covered_s, figures };
        store.push(&SeriesName::Box, self.resolution, record(sample.figures().into()));

        let mut others = BTreeMap::<SeriesName, CallUsage>::new();
        for (name, usage) in std::mem::take(&mut self.used) {
            let has_place = self.resolution != Resolution::Hour || store.take_hours(&name, now_ms);
            match name.kind().filter(|_| !has_place) {
                None => others.entry(name).or_default().merge(&usage),
                Some(kind) => others.entry(kind.others()).or_default().merge(&usage),
            }
        }
        let mut used = Vec::with_capacity(others.len());
        for (name, usage) in others {
            let figures = usage_figures(&usage, covered_s);
            store.push(&name, self.resolution, record(figures.into()));
            used.push((name, figures));
        }
        self.figures = FigureInterval::starting(reading.clone());
        self.slot = next;
        EndedSlot { sample, elapsed, used }
    }
}

impl HistoryRecorder {
    /// A recorder of a service that started with this reading.
    pub fn new(start: &FigureReading, now_ms: u64) -> Self {
        let of = |resolution| PartialSlot::new(resolution, start.clone(), now_ms);
        let [seconds, minute, hour] = Resolution::ALL.map(of);
        Self { seconds, minute, hour, unflushed: (0, false), synced_ms: now_ms }
    }

    /// Takes a reading, and the use of callers until then. It may write to the disk. Returns the minute that ended with it.
    pub fn take(
        &mut self,
        reading: &FigureReading,
        interval: &UsageInterval,
        figures: &FigureHistory,
        store: &mut HistoryStore,
    ) -> Option<EndedSlot> {
        let now_ms = interval.end_ms;
        let used = by_series(interval, store);
        self.unflushed.1 |= !used.is_empty();
        for part in [&mut self.seconds, &mut self.minute, &mut self.hour] {
            part.add(reading, &used);
        }

        let next = next_slot(self.seconds.slot, Resolution::FiveSeconds.slot(now_ms));
        self.seconds.slot = next;
        let ended = self.seconds.end(reading, next, now_ms, store);
        figures.push(FigurePeriod::Hour, ended.sample, ended.elapsed, now_ms);

        let next = Resolution::Minute.slot(now_ms);
        if next == self.minute.slot {
            return None;
        }
        let ended = self.minute.end(reading, next, now_ms, store);
        figures.push(FigurePeriod::Day, ended.sample, ended.elapsed, now_ms);
        let next = Resolution::Hour.slot(now_ms);
        if next != self.hour.slot {
            self.hour.end(reading, next, now_ms, store);
        }
        self.unflushed.0 += 1;
        if self.unflushed.1 || self.unflushed.0 >= IDLE_FLUSH_MINUTES {
            self.unflushed = (0, false);
            store.flush();
            if now_ms.abs_diff(self.synced_ms) >= SYNC_INTERVAL_MS {
                self.synced_ms = now_ms;
                store.sync();
            }
        }
        Some(ended)
    }

    /// Writes all until this reading, the last one. The parts of the minute and the hour are merged with those after the
    /// next start.
    pub fn finish(mut self, reading: &FigureReading, interval: &UsageInterval, store: &mut HistoryStore) {
        let used = by_series(interval, store);
        self.seconds.slot = next_slot(self.seconds.slot, Resolution::FiveSeconds.slot(interval.end_ms));
        for part in [&mut self.seconds, &mut self.minute, &mut self.hour] {
            part.add(reading, &used);
            let slot = part.slot;
            part.end(reading, slot, interval.end_ms, store);
        }
        store.flush();
        store.sync();
    }
}

/// The interval of five seconds that follows `last`, where the clock is in `now`. Readings come a little early or late,
/// so two of them may end in one interval; the second one has the next.
fn next_slot(last: u32, now: u32) -> u32 {
    if now == last || now.checked_add(1) == Some(last) { last.saturating_add(1) } else { now }
}

/// The use by series: each call counts for its model and for its caller.
fn by_series(interval: &UsageInterval, store: &mut HistoryStore) -> BTreeMap<SeriesName, CallUsage> {
    let mut used = BTreeMap::<SeriesName, CallUsage>::new();
    for (key, usage) in &interval.used {
        for name in [SeriesName::of_model(&key.model), SeriesName::of_caller(&key.principal)] {
            used.entry(name).or_default().merge(usage);
        }
    }
    let mut placed = BTreeMap::<SeriesName, CallUsage>::new();
    for (name, usage) in used {
        let place = store.place(&name, kept(Resolution::Minute, interval.end_ms));
        placed.entry(place).or_default().merge(&usage);
    }
    placed
}

/// The figures of the use in some seconds, in the order of [`crate::series::USAGE_COLUMNS`].
fn usage_figures(usage: &CallUsage, seconds: u16) -> [f32; USAGE_COLUMNS.len()] {
    let seconds = f64::from(seconds);
    let rate = |count: u64| single(whole(count) / seconds);
    let times: Vec<_> = usage.times.buckets().collect();
    let answered = times.iter().map(|(_, count)| count).sum::<u64>();
    let within = |q| quantile(&times, q).map_or(f32::NAN, single);
    let queue = if answered == 0 { f32::NAN } else { single(usage.queue.as_secs_f64() / whole(answered)) };
    [
        rate(usage.calls),
        rate(usage.failed),
        rate(usage.refused),
        within(0.5),
        within(0.99),
        queue,
        single(usage.cpu.as_secs_f64() / seconds),
        rate(usage.bytes_in),
        rate(usage.bytes_out),
    ]
}

#[cfg(test)]
mod tests {
    use std::collections::HashMap;
    use std::time::Instant;

    use ledge_base::names::ModelName;
    use ledge_base::principal::Principal;
    use ledge_models::serving::usage::UsageKey;
    use tempfile::TempDir;

    use super::*;
    use crate::readings::test_reading;

    /// The begin of an hour.
    const BEGIN_MS: u64 = 1_767_225_600_000;

    /// A box on a virtual clock.
    struct TestBox {
        _folder: TempDir,
        figures: FigureHistory,
        store: HistoryStore,
        recorder: HistoryRecorder,
        start: Instant,
        elapsed_ms: u64,
        /// The difference of the clock.
        clock_ms: i64,
    }

    impl TestBox {
        fn new() -> Self {
            let folder = tempfile::tempdir().unwrap();
            let store = HistoryStore::open(folder.path());
            let start = Instant::now();
            let recorder = HistoryRecorder::new(&test_reading(start), BEGIN_MS);
            let figures = FigureHistory::default();
            Self { _folder: folder, figures, store, recorder, start, elapsed_ms: 0, clock_ms: 0 }
        }

        fn now_ms(&self) -> u64 {
            (BEGIN_MS + self.elapsed_ms).checked_add_signed(self.clock_ms).unwrap()
        }

        /// Five seconds with this many calls of one caller.
        fn tick(&mut self, calls: u64) {
            self.elapsed_ms += 5000;
            let reading = test_reading(self.start + Duration::from_millis(self.elapsed_ms));
            let key = UsageKey { principal: Principal::Key("till".into()), model: ModelName::constant("wine") };
            let usage = CallUsage { calls, ..CallUsage::default() };
            let used = if calls == 0 { HashMap::new() } else { HashMap::from([(key, usage)]) };
            let interval =
                UsageInterval { end_ms: self.now_ms(), elapsed: Duration::from_secs(5), used, service_cpu: None };
            self.recorder.take(&reading, &interval, &self.figures, &mut self.store);
        }

        fn calls(&self, name: &str, resolution: Resolution) -> Vec<f64> {
            // The clock may have been later.
            let end_ms = if resolution == Resolution::Hour { self.now_ms() + 86_400_000 } else { self.now_ms() };
            let span = self.store.read(&name.parse().unwrap(), resolution, kept(resolution, end_ms)).unwrap();
            let calls = |record: &Record| (f64::from(record.figures[0]) * f64::from(record.covered_s)).round();
            span.records.iter().map(calls).collect()
        }
    }

    #[test]
    #[expect(clippy::float_cmp, reason = "whole numbers")]
    fn every_call_is_in_one_record_of_each_resolution() {
        let mut of = TestBox::new();
        for number in 0..720 {
            of.tick(number % 3);
        }
        for name in ["model:wine", "caller:key:till"] {
            assert_eq!(of.calls(name, Resolution::FiveSeconds).iter().sum::<f64>(), 720.0, "{name}");
            assert_eq!(of.calls(name, Resolution::Minute), [12.0; 60], "{name}");
            assert_eq!(of.calls(name, Resolution::Hour), [720.0], "{name}");
        }
        // One place is for a record that is an interval ahead.
        assert_eq!(of.calls("box", Resolution::FiveSeconds).len(), 719);
        assert_eq!(of.calls("box", Resolution::Hour).len(), 1);
        assert_eq!(of.store.status().lost, 0);
    }

    #[test]
    #[expect(clippy::float_cmp, reason = "whole numbers")]
    fn a_clock_that_goes_back_or_forward_neither_doubles_nor_hides_a_call() {
        for step_ms in [-1_800_000_i64, -4000, 4000, 7_200_000] {
            let mut of = TestBox::new();
            (0..360).for_each(|_| of.tick(1));
            of.clock_ms = step_ms;
            (0..1080).for_each(|_| of.tick(1));
            let hours: f64 = of.calls("model:wine", Resolution::Hour).iter().sum();
            // An incomplete interval is not pushed yet.
            let open = of.recorder.hour.used.values().next().map_or(0, |usage| usage.calls);
            assert_eq!(hours + f64::from(u32::try_from(open).unwrap()), 1440.0, "{step_ms}");
        }
    }

    #[test]
    fn readings_that_come_early_or_late_have_an_interval_each() {
        let (mut last, mut slots) = (99, Vec::new());
        for now in [100, 100, 102, 102, 104, 104, 50, 51, 200] {
            last = next_slot(last, now);
            slots.push(last);
        }
        assert_eq!(slots, [100, 101, 102, 103, 104, 105, 50, 51, 200]);
    }
}
