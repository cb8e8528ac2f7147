//! The figures of a sample, and the readings of counters and gauges that they are made of.

use std::collections::HashMap;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use ledge_base::names::{ModelName, ModelVersion};
use ledge_base::telemetry::machine::MachineMonitor;
use ledge_base::telemetry::service_usage::{self, ServiceUsage};
use ledge_base::telemetry::system::MachineMemory;
use ledge_models::repository::statistics::{RefusalReason, VersionCounters};
use ledge_models::serving::Serving;
use ledge_models::serving::usage::{CallUsage, UsageInterval};
use serde::ser::SerializeMap;
use serde::{Serialize, Serializer};

/// The names of the figures, in base units. Those of calls are of the interval; the others are of its end, or the mean
/// of a longer interval.
pub const BOX_COLUMNS: [&str; 14] = [
    "calls_per_s",
    "failed_per_s",
    "refused_per_s",
    "p50_s",
    "p99_s",
    "bytes_in_per_s",
    "bytes_out_per_s",
    "cores_busy",
    "ledge_cores",
    "ledge_memory_bytes",
    "memory_available_bytes",
    "temperature_celsius",
    "queue",
    "disk_free_bytes",
];

/// The first of the columns that are gauges.
const FIRST_GAUGE: usize = 7;

const GAUGES: usize = BOX_COLUMNS.len() - FIRST_GAUGE;

/// The most versions of models with remembered counters. Beyond them, those that are not loaded are forgotten.
const VERSIONS_MAX: usize = 1024;

/// One figure for each column; a figure that is not known is not a number.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct FigureSample([f32; BOX_COLUMNS.len()]);

impl Default for FigureSample {
    /// No figure.
    fn default() -> Self {
        Self([f32::NAN; BOX_COLUMNS.len()])
    }
}

impl FigureSample {
    /// The figures in the order of [`BOX_COLUMNS`].
    pub fn figures(&self) -> &[f32] {
        &self.0
    }

    /// A sample of as many figures; `None` for another number.
    pub fn of(figures: &[f32]) -> Option<Self> {
        figures.try_into().ok().map(Self)
    }

    /// The figure of a column, with the four digits that a plot can show; `None` where it is not known.
    pub fn figure(&self, column: usize) -> Option<f32> {
        self.0.get(column).copied().and_then(rounded)
    }

    /// Sets the figure of a column.
    pub fn set(&mut self, column: &str, figure: f32) {
        let place = BOX_COLUMNS.iter().position(|name| *name == column);
        if let Some(place) = place.and_then(|index| self.0.get_mut(index)) {
            *place = figure;
        }
    }

    fn set_known(&mut self, column: &str, figure: Option<f64>) {
        if let Some(figure) = figure {
            self.set(column, single(figure));
        }
    }
}

/// A figure with four digits; `None` for one that is not known.
pub fn rounded(figure: f32) -> Option<f32> {
    if figure == 0.0 {
        return Some(0.0);
    }
    let figure = Some(figure).filter(|figure| figure.is_finite())?;
    let digits = 10_f64.powf(3.0 - f64::from(figure).abs().log10().floor());
    Some(single((f64::from(figure) * digits).round() / digits))
}

/// An object of the figures by the names of their columns.
impl Serialize for FigureSample {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let mut map = serializer.serialize_map(Some(BOX_COLUMNS.len()))?;
        for (index, name) in BOX_COLUMNS.iter().enumerate() {
            map.serialize_entry(name, &self.figure(index))?;
        }
        map.end()
    }
}

#[expect(clippy::cast_possible_truncation, reason = "seven digits are more than a plot shows")]
pub(crate) fn single(figure: f64) -> f32 {
    figure as f32
}

/// Counts since the start of the daemon, of all models together.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct FigureTotals {
    calls: u64,
    failed: u64,
    refused: u64,
    bytes_in: u64,
    bytes_out: u64,
    /// The upper bounds of times to answers in nanoseconds, each with the count of those that fell between it and the
    /// one below. `None` is above the last.
    times: Vec<(Option<u64>, u64)>,
    /// The CPU time of all processes of the service; `None` where it is not known.
    cpu: Option<Duration>,
}

/// The figures of a moment.
#[derive(Debug, Clone, Copy, PartialEq)]
struct FigureGauges([f64; GAUGES]);

/// The counters and gauges at one moment.
#[derive(Debug, Clone)]
pub struct FigureReading {
    pub at: Instant,
    pub totals: FigureTotals,
    gauges: FigureGauges,
}

impl FigureReading {
    /// The reading at the start of the daemon, when nothing was counted yet.
    pub fn at_start() -> Self {
        let totals = FigureTotals { cpu: service_usage::cpu_time(), ..FigureTotals::default() };
        Self { at: Instant::now(), totals, gauges: FigureGauges([f64::NAN; GAUGES]) }
    }
}

impl FigureTotals {
    fn add_bytes<'u>(&mut self, used: impl Iterator<Item = &'u CallUsage>) {
        for usage in used {
            self.bytes_in += usage.bytes_in;
            self.bytes_out += usage.bytes_out;
        }
    }

    /// Adds the increase of a version's counters since `before`.
    fn add(&mut self, before: &VersionCounters, now: &VersionCounters) {
        let failed = now.fail.count.saturating_sub(before.fail.count);
        self.calls += now.success.count.saturating_sub(before.success.count) + failed;
        self.failed += failed;
        self.refused += RefusalReason::ALL
            .map(|reason| now.refusals.of(reason).saturating_sub(before.refusals.of(reason)))
            .iter()
            .sum::<u64>();
        let buckets = now.end_to_end_times.buckets().zip(before.end_to_end_times.buckets());
        for (index, ((bound, now), (_, before))) in buckets.enumerate() {
            if self.times.len() == index {
                self.times.push((bound, 0));
            }
            if let Some((_, count)) = self.times.get_mut(index) {
                *count += now.saturating_sub(before);
            }
        }
    }
}

/// Reads the counters and gauges.
#[derive(Debug)]
pub struct FigureReader {
    serving: Serving,
    machine: MachineMonitor,
    /// The counters of each version at the last reading. A version that is loaded again goes on counting.
    seen: HashMap<(ModelName, ModelVersion), VersionCounters>,
    totals: FigureTotals,
    /// The folder whose disk is watched.
    folder: PathBuf,
    read_at: Instant,
}

impl FigureReader {
    /// A reader of a serving core that has just started. `folder` is on the disk that is watched.
    pub fn new(serving: Serving, folder: PathBuf) -> Self {
        let totals = FigureTotals { cpu: service_usage::cpu_time(), ..FigureTotals::default() };
        let machine = MachineMonitor::default();
        Self { serving, machine, seen: HashMap::new(), totals, folder, read_at: Instant::now() }
    }

    /// Reads everything, and ends the interval of the use of callers at `now_ms`. Some hardware sensors take
    /// milliseconds, so this is not for an async thread.
    pub fn read(&mut self, now_ms: u64) -> (FigureReading, UsageInterval) {
        let at = Instant::now();
        let elapsed = at.saturating_duration_since(std::mem::replace(&mut self.read_at, at));
        let live = self.serving.repository().all_live();
        if self.seen.len() > VERSIONS_MAX {
            self.seen.retain(|(name, version), _| live.iter().any(|of| of.name == *name && of.version == *version));
        }
        let mut queued = 0;
        for model in &live {
            let counters = model.statistics.snapshot();
            // All counters began at zero with this process.
            let before = self.seen.entry((model.name.clone(), model.version)).or_default();
            self.totals.add(before, &counters);
            *before = counters;
            queued += model.instance_usage().queued;
        }
        let usage = service_usage::usage();
        let before = std::mem::replace(&mut self.totals.cpu, usage.map(|usage| usage.cpu));
        let cpu = self.totals.cpu.zip(before).map(|(now, before)| now.saturating_sub(before));
        let interval = self.serving.usage().end_interval(now_ms, elapsed, cpu);
        self.totals.add_bytes(interval.used.values());
        let memory = usage.map_or(f64::NAN, |ServiceUsage { memory_bytes, .. }| whole(memory_bytes));

        let machine = self.machine.read();
        let loads: Vec<f64> = machine.cores.iter().filter_map(|core| core.load).collect();
        let busy = if loads.is_empty() { f64::NAN } else { loads.iter().sum() };
        let warmest = machine.temperatures.values().copied().fold(f64::NAN, f64::max);
        let available = MachineMemory::read().map_or(f64::NAN, |memory| whole(memory.available_bytes));
        let free = free_bytes(&self.folder).map_or(f64::NAN, whole);
        let gauges = [busy, f64::NAN, memory, available, warmest, whole(queued as u64), free];
        (FigureReading { at, totals: self.totals.clone(), gauges: FigureGauges(gauges) }, interval)
    }
}

/// The free bytes of the disk of a folder.
fn free_bytes(folder: &Path) -> Option<u64> {
    let facts = rustix::fs::statvfs(folder).ok()?;
    Some(facts.f_bavail.saturating_mul(facts.f_frsize))
}

#[expect(clippy::cast_precision_loss, reason = "exact up to 2^53, and a plot shows four digits")]
pub(crate) fn whole(count: u64) -> f64 {
    count as f64
}

/// The readings since the start of an interval.
#[derive(Debug)]
pub struct FigureInterval {
    start: FigureReading,
    sums: [f64; GAUGES],
    counts: [f64; GAUGES],
}

impl FigureInterval {
    pub fn starting(start: FigureReading) -> Self {
        Self { start, sums: [0.0; GAUGES], counts: [0.0; GAUGES] }
    }

    /// Takes a reading.
    pub fn take(&mut self, reading: &FigureReading) {
        for ((sum, count), gauge) in self.sums.iter_mut().zip(&mut self.counts).zip(reading.gauges.0) {
            if gauge.is_finite() {
                *sum += gauge;
                *count += 1.0;
            }
        }
    }

    /// The time from its start to `reading`.
    pub fn elapsed(&self, reading: &FigureReading) -> Duration {
        reading.at.saturating_duration_since(self.start.at)
    }

    /// The sample of the interval that ends with `end`, which was taken.
    pub fn sample(&self, end: &FigureReading) -> FigureSample {
        let mut sample = FigureSample::default();
        let seconds = self.elapsed(end).as_secs_f64();
        if seconds <= 0.0 {
            return sample;
        }
        let (before, now) = (&self.start.totals, &end.totals);
        let rate = |before: u64, now: u64| Some(whole(now.saturating_sub(before)) / seconds);
        sample.set_known("calls_per_s", rate(before.calls, now.calls));
        sample.set_known("failed_per_s", rate(before.failed, now.failed));
        sample.set_known("refused_per_s", rate(before.refused, now.refused));

        sample.set_known("bytes_in_per_s", rate(before.bytes_in, now.bytes_in));
        sample.set_known("bytes_out_per_s", rate(before.bytes_out, now.bytes_out));

        let times = |index: usize| before.times.get(index).map_or(0, |(_, count)| *count);
        let times: Vec<_> =
            now.times.iter().enumerate().map(|(index, (bound, count))| (*bound, count - times(index))).collect();
        sample.set_known("p50_s", quantile(&times, 0.5));
        sample.set_known("p99_s", quantile(&times, 0.99));

        let gauges = BOX_COLUMNS.iter().skip(FIRST_GAUGE).zip(self.sums.iter().zip(&self.counts));
        for (name, (sum, count)) in gauges {
            sample.set_known(name, (*count > 0.0).then(|| sum / count));
        }
        let cpu = now.cpu.zip(before.cpu).map(|(now, before)| now.saturating_sub(before));
        sample.set_known("ledge_cores", cpu.map(|cpu| cpu.as_secs_f64() / seconds));
        sample
    }
}

/// The time in seconds that the share `q` of all times does not exceed, estimated as in `ledge top`: times are evenly
/// spread in their bucket, and those above the highest bound count as that bound. `None` without times.
pub(crate) fn quantile(times: &[(Option<u64>, u64)], q: f64) -> Option<f64> {
    let count: u64 = times.iter().map(|(_, count)| count).sum();
    let rank = q * whole(count);
    let (mut lower, mut below) = (0.0, 0.0);
    for (bound, inside) in times.iter().filter_map(|(bound, inside)| Some(((*bound)?, *inside))) {
        let (bound, inside) = (whole(bound) / 1e9, whole(inside));
        if inside > 0.0 && below + inside >= rank {
            return Some(lower + (bound - lower) * (rank - below) / inside);
        }
        (lower, below) = (bound, below + inside);
    }
    (count > 0).then_some(lower)
}

/// A reading of a box whose models were used so much since its start: for tests. `gauges` are in the order of
/// [`BOX_COLUMNS`]; that of `ledge_cores` follows from the CPU time of `used`.
#[cfg(test)]
pub fn test_reading_of(at: Instant, used: &CallUsage, gauges: [f64; GAUGES]) -> FigureReading {
    let CallUsage { calls, failed, refused, bytes_in, bytes_out, cpu, .. } = *used;
    let (times, cpu) = (used.times.buckets().collect(), Some(cpu));
    let totals = FigureTotals { calls, failed, refused, bytes_in, bytes_out, times, cpu };
    FigureReading { at, totals, gauges: FigureGauges(gauges) }
}

/// A reading at a moment, of a box that does nothing: for tests.
#[cfg(test)]
pub fn test_reading(at: Instant) -> FigureReading {
    FigureReading { at, totals: FigureTotals::default(), gauges: FigureGauges([0.0; GAUGES]) }
}

#[cfg(test)]
mod tests {
    use super::*;
    use ledge_models::repository::statistics::VersionStatistics;

    fn reading(at: Instant, totals: FigureTotals, gauges: [f64; GAUGES]) -> FigureReading {
        FigureReading { at, totals, gauges: FigureGauges(gauges) }
    }

    fn figure(sample: &FigureSample, name: &str) -> Option<f32> {
        sample.figure(BOX_COLUMNS.iter().position(|column| *column == name).unwrap())
    }

    #[test]
    fn a_sample_has_the_rates_and_times_of_its_interval() {
        let (start, statistics) = (Instant::now(), VersionStatistics::default());
        let before = statistics.snapshot();
        for _ in 0..98 {
            statistics.cache_hit(0, Duration::from_millis(2), Duration::ZERO);
        }
        statistics.failed(Duration::from_secs(1));
        statistics.failed(Duration::from_secs(1));
        statistics.refused(RefusalReason::Quota);
        let mut totals = FigureTotals { cpu: Some(Duration::ZERO), ..FigureTotals::default() };
        totals.add(&before, &before);
        let first = reading(start, totals.clone(), [f64::NAN; GAUGES]);
        totals.add(&before, &statistics.snapshot());
        totals.cpu = Some(Duration::from_secs(2));
        let second = reading(start + Duration::from_secs(4), totals, [3.0, f64::NAN, 5.0, 6.0, f64::NAN, 7.0, 8.0]);
        let mut interval = FigureInterval::starting(first);
        interval.take(&second);
        let sample = interval.sample(&second);
        assert_eq!((figure(&sample, "calls_per_s"), figure(&sample, "failed_per_s")), (Some(25.0), Some(0.5)));
        assert_eq!((figure(&sample, "refused_per_s"), figure(&sample, "ledge_cores")), (Some(0.25), Some(0.5)));
        // All times are between 1 and 2.5 ms.
        assert_eq!((figure(&sample, "p50_s"), figure(&sample, "p99_s")), (Some(0.001_75), Some(0.002_485)));
        assert_eq!((figure(&sample, "cores_busy"), figure(&sample, "queue")), (Some(3.0), Some(7.0)));
        assert_eq!(figure(&sample, "temperature_celsius"), None);
    }

    #[test]
    fn gauges_of_a_long_interval_are_means_and_without_calls_there_are_no_times() {
        let start = Instant::now();
        let mut interval = FigureInterval::starting(reading(start, FigureTotals::default(), [100.0; GAUGES]));
        let mut last = reading(start, FigureTotals::default(), [0.0; GAUGES]);
        for number in 1..=3_u32 {
            let gauge = if number == 2 { f64::NAN } else { f64::from(number) };
            last = reading(start + number * Duration::from_secs(5), FigureTotals::default(), [gauge; GAUGES]);
            interval.take(&last);
        }
        let sample = interval.sample(&last);
        assert_eq!((figure(&sample, "queue"), figure(&sample, "p50_s")), (Some(2.0), None));
        assert_eq!(figure(&sample, "calls_per_s"), Some(0.0));
    }

    #[test]
    fn counters_that_began_again_count_nothing_twice() {
        let statistics = VersionStatistics::default();
        statistics.failed(Duration::ZERO);
        let (more, less) = (statistics.snapshot(), VersionCounters::default());
        let mut totals = FigureTotals::default();
        totals.add(&more, &less);
        assert_eq!((totals.calls, totals.failed), (0, 0));
    }

    #[test]
    fn times_above_every_bound_count_as_the_highest() {
        assert_eq!(quantile(&[(Some(1_000_000_000), 0), (None, 4)], 0.5), Some(1.0));
        assert_eq!(quantile(&[(Some(1_000_000_000), 0), (None, 0)], 0.5), None);
    }

    #[test]
    fn a_figure_has_four_digits() {
        let mut sample = FigureSample::default();
        sample.set("queue", 123_456_789.0);
        sample.set("p50_s", 0.000_123_456);
        assert_eq!((figure(&sample, "queue"), figure(&sample, "p50_s")), (Some(123_500_000.0), Some(0.000_123_5)));
    }
}
