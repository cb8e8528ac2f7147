//! The counters of the last hours, in intervals of a minute: a ring.

use std::collections::{BTreeMap, VecDeque};
use std::time::{Duration, Instant};

use crate::costs::CostRow;

/// The time between two readings, and the least time for which an answer makes an interval of its own.
pub const INTERVAL: Duration = Duration::from_mins(1);
pub const INTERVAL_MIN: Duration = Duration::from_secs(10);

/// The intervals that are kept: four hours. With [`KINDS_MAX`] kinds in each they are 1 MB; a usual box has five kinds
/// and 100 kB.
const ROWS_MAX: usize = 240;

/// The most kinds of work of an interval; the busiest ones are kept.
const KINDS_MAX: usize = 48;

/// The time that counts as now.
pub const NOW: Duration = Duration::from_mins(5);

/// The counts of a kind of work since the start of the daemon, or in an interval.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub struct WorkCount {
    /// Calls that were answered by a run, or pictures.
    pub units: f64,
    /// CPU time of runs with making their inputs, in seconds.
    pub run_s: f64,
    /// The same on the clock, of all that was done to answer; without waiting for other work.
    pub clock_s: f64,
}

/// The counts at one moment, all since the start.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Counts {
    pub service_s: f64,
    /// Time of the threads that serve callers, in seconds, and how often they were woken.
    pub control_s: f64,
    pub wakes: f64,
    /// Time of the cores that anything ran on, in seconds, and the part of it with a low priority (nice).
    pub busy_s: f64,
    pub nice_s: f64,
    pub kinds: BTreeMap<String, WorkCount>,
}

/// One interval: differences.
#[derive(Debug, Clone)]
pub struct Interval {
    pub end: Instant,
    pub end_ms: u64,
    pub seconds: f64,
    pub counts: Counts,
}

/// The intervals.
#[derive(Debug, Default)]
pub struct History {
    last: Option<(Instant, Counts)>,
    rows: VecDeque<Interval>,
}

impl History {
    /// Takes a reading, if the last one is long enough ago.
    pub fn take(&mut self, at: Instant, end_ms: u64, counts: Counts) {
        let Some((before_at, before)) = &self.last else {
            self.last = Some((at, counts));
            return;
        };
        let time = at.saturating_duration_since(*before_at);
        if time < INTERVAL_MIN {
            return;
        }
        let difference = counts.since(before);
        self.rows.push_back(Interval { end: at, end_ms, seconds: time.as_secs_f64(), counts: difference });
        while self.rows.len() > ROWS_MAX {
            self.rows.pop_front();
        }
        self.last = Some((at, counts));
    }

    /// The time since the last reading; `None` before the first.
    pub fn age(&self, now: Instant) -> Option<Duration> {
        self.last.as_ref().map(|(at, _)| now.saturating_duration_since(*at))
    }

    /// The intervals, the oldest first.
    pub fn rows(&self) -> impl DoubleEndedIterator<Item = &Interval> {
        self.rows.iter()
    }

    /// The sum of the intervals that ended within `time` before `now`, or of all; `None` without one.
    pub fn sum(&self, now: Instant, time: Option<Duration>) -> Option<Interval> {
        let is_recent = |row: &&Interval| time.is_none_or(|time| now.saturating_duration_since(row.end) < time);
        let mut rows = self.rows.iter().filter(is_recent);
        let mut sum = rows.next()?.clone();
        for row in rows {
            sum.seconds += row.seconds;
            sum.counts.add(&row.counts);
            (sum.end, sum.end_ms) = (row.end, row.end_ms);
        }
        Some(sum)
    }

    /// The rows for a fit of the time that `part` divides, for these kinds.
    pub fn equations(&self, kinds: &[String], part: impl Fn(&Counts) -> f64) -> Vec<CostRow> {
        let row = |row: &Interval| CostRow {
            seconds: row.seconds,
            wakes: row.counts.wakes,
            units: kinds.iter().map(|kind| row.counts.kinds.get(kind).map_or(0.0, |count| count.units)).collect(),
            rest_s: part(&row.counts),
        };
        self.rows.iter().map(row).collect()
    }
}

impl Counts {
    /// The time that other programs took from the cores, in seconds. Programs of low priority give way to callers, so
    /// they do not count, as far as it surely was not the service itself that had a low priority.
    pub fn others_s(&self) -> f64 {
        let yielding = (self.nice_s - self.service_s).max(0.0);
        (self.busy_s - self.service_s - yielding).max(0.0)
    }

    /// The CPU time of all runs, in seconds.
    pub fn runs_s(&self) -> f64 {
        self.kinds.values().map(|count| count.run_s).sum()
    }

    fn since(&self, before: &Self) -> Self {
        let less = |now: f64, before: f64| (now - before).max(0.0);
        let mut kinds: Vec<(String, WorkCount)> = self
            .kinds
            .iter()
            .map(|(kind, now)| {
                let before = before.kinds.get(kind).copied().unwrap_or_default();
                let count = WorkCount {
                    units: less(now.units, before.units),
                    run_s: less(now.run_s, before.run_s),
                    clock_s: less(now.clock_s, before.clock_s),
                };
                (kind.clone(), count)
            })
            .filter(|(_, count)| count.units > 0.0 || count.run_s > 0.0)
            .collect();
        kinds.sort_by(|(_, a), (_, b)| b.run_s.total_cmp(&a.run_s).then(b.units.total_cmp(&a.units)));
        kinds.truncate(KINDS_MAX);
        Self {
            service_s: less(self.service_s, before.service_s),
            control_s: less(self.control_s, before.control_s),
            wakes: less(self.wakes, before.wakes),
            busy_s: less(self.busy_s, before.busy_s),
            nice_s: less(self.nice_s, before.nice_s),
            kinds: kinds.into_iter().collect(),
        }
    }

    fn add(&mut self, other: &Self) {
        self.service_s += other.service_s;
        self.control_s += other.control_s;
        self.wakes += other.wakes;
        self.busy_s += other.busy_s;
        self.nice_s += other.nice_s;
        for (kind, more) in &other.kinds {
            let sum = self.kinds.entry(kind.clone()).or_default();
            sum.units += more.units;
            sum.run_s += more.run_s;
            sum.clock_s += more.clock_s;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn counts(units: f64) -> Counts {
        let count = WorkCount { units, run_s: units / 100.0, clock_s: units / 90.0 };
        Counts { service_s: units / 50.0, kinds: [("m".to_owned(), count)].into(), ..Counts::default() }
    }

    #[test]
    fn intervals_are_differences_and_the_ring_is_bounded() {
        let (mut history, start) = (History::default(), Instant::now());
        for minute in 0..500_u32 {
            history.take(start + minute * INTERVAL, 0, counts(f64::from(minute) * 10.0));
        }
        assert_eq!(history.rows().count(), ROWS_MAX);
        let now = start + 499 * INTERVAL;
        let sum = history.sum(now, Some(NOW)).unwrap();
        assert!((sum.seconds - 300.0).abs() < 1e-9);
        assert!((sum.counts.kinds["m"].units - 50.0).abs() < 1e-9);
        assert!((sum.counts.service_s - 1.0).abs() < 1e-9);
    }

    #[test]
    fn a_reading_soon_after_another_makes_no_interval_and_loses_nothing() {
        let (mut history, start) = (History::default(), Instant::now());
        history.take(start, 0, counts(0.0));
        history.take(start + Duration::from_secs(5), 0, counts(7.0));
        assert!(history.sum(start, None).is_none());
        history.take(start + Duration::from_secs(20), 0, counts(9.0));
        assert!((history.sum(start, None).unwrap().counts.kinds["m"].units - 9.0).abs() < 1e-9);
    }

    #[test]
    fn other_programs_count_unless_their_priority_is_low() {
        let of = |busy_s, nice_s| Counts { service_s: 10.0, busy_s, nice_s, ..Counts::default() }.others_s();
        assert!((of(40.0, 0.0) - 30.0).abs() < 1e-9);
        assert!((of(100.0, 90.0) - 10.0).abs() < 1e-9, "80 s of low priority were surely not the service");
        assert!(of(5.0, 0.0) <= 0.0);
    }

    #[test]
    fn counters_that_began_again_are_no_negative_work() {
        let (mut history, start) = (History::default(), Instant::now());
        history.take(start, 0, counts(100.0));
        history.take(start + INTERVAL, 0, counts(3.0));
        let sum = history.sum(start + INTERVAL, None).unwrap();
        assert!(sum.counts.kinds.is_empty() && sum.counts.service_s <= 0.0);
    }
}
