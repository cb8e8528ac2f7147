//! The measured figures: counts, and latencies in a histogram with three significant digits.

use std::collections::BTreeMap;
use std::time::Duration;

use hdrhistogram::Histogram;
use serde::Serialize;

/// The outcome of one request.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Outcome {
    Ok,
    /// Not answered.
    Failed {
        /// The key it is counted under: the HTTP status, or the fault of the connection.
        kind: String,
        /// The message of the server or of the system.
        message: String,
    },
}

/// The key of requests that were never sent, because every caller still waited long after the end.
pub const NOT_SENT_KIND: &str = "not sent";

/// The results of the requests of one caller, or of many together.
#[derive(Debug, Clone)]
pub struct Recording {
    latencies: Histogram<u64>,
    errors: BTreeMap<String, u64>,
    /// From the first intended send time to the last answer.
    pub elapsed: Duration,
}

impl Recording {
    /// An empty recording.
    pub fn new() -> anyhow::Result<Self> {
        let mut latencies = Histogram::new(3)?;
        // The range grows with the latencies.
        latencies.auto(true);
        Ok(Self { latencies, errors: BTreeMap::new(), elapsed: Duration::ZERO })
    }

    /// Counts one request. The latency of a failed request is not recorded.
    pub fn record(&mut self, outcome: Outcome, latency: Duration) {
        match outcome {
            Outcome::Ok => {
                // Fails only if memory cannot hold the counts; any 64 bits of nanoseconds fit.
                let _ = self.latencies.record(u64::try_from(latency.as_nanos()).unwrap_or(u64::MAX));
            }
            Outcome::Failed { kind, .. } => self.fail(kind, 1),
        }
    }

    /// Counts requests that failed.
    pub fn fail(&mut self, reason: String, count: u64) {
        *self.errors.entry(reason).or_default() += count;
    }

    /// Adds the recording of another caller of the same time.
    pub fn add(&mut self, other: &Self) {
        self.count_in(other);
        self.elapsed = self.elapsed.max(other.elapsed);
    }

    /// Adds the recording of another round.
    pub fn follow(&mut self, other: &Self) {
        self.count_in(other);
        self.elapsed += other.elapsed;
    }

    fn count_in(&mut self, other: &Self) {
        // Fails only for a histogram that must not grow; this one may.
        let _ = self.latencies.add(&other.latencies);
        for (reason, count) in &other.errors {
            self.fail(reason.clone(), *count);
        }
    }

    /// The number of answers.
    pub fn answered(&self) -> u64 {
        self.latencies.len()
    }

    /// The latency that this share of the answers did not exceed, in milliseconds; `None` without answers.
    pub fn quantile(&self, share: f64) -> Option<f64> {
        (!self.latencies.is_empty()).then(|| ms(self.latencies.value_at_quantile(share)))
    }

    /// Answers a second.
    pub fn throughput(&self) -> f64 {
        let seconds = self.elapsed.as_secs_f64();
        if seconds > 0.0 { count(self.answered()) / seconds } else { 0.0 }
    }

    /// The figures. `cpu` is the CPU time of the process that answered, `memory` its resident bytes at the end and
    /// `batch` the batch elements of each request.
    pub fn figures(&self, cpu: Option<Duration>, memory: Option<u64>, batch: usize) -> Figures {
        let answered = self.answered();
        let latency_ms = (answered > 0).then(|| LatencyMs {
            mean: self.latencies.mean() / 1e6,
            p50: ms(self.latencies.value_at_quantile(0.5)),
            p90: ms(self.latencies.value_at_quantile(0.9)),
            p99: ms(self.latencies.value_at_quantile(0.99)),
            p99_9: ms(self.latencies.value_at_quantile(0.999)),
            max: ms(self.latencies.max()),
        });
        #[expect(clippy::cast_precision_loss, reason = "batches are small")]
        let batch = batch as f64;
        Figures {
            answered,
            errors: self.errors.clone(),
            seconds: self.elapsed.as_secs_f64(),
            throughput: self.throughput(),
            inferences_per_second: self.throughput() * batch,
            latency_ms,
            cpu_ms_per_request: cpu.filter(|_| answered > 0).map(|cpu| cpu.as_secs_f64() * 1e3 / count(answered)),
            memory_bytes: memory,
        }
    }
}

#[expect(clippy::cast_precision_loss, reason = "exact to 104 days of nanoseconds")]
fn ms(nanos: u64) -> f64 {
    nanos as f64 / 1e6
}

#[expect(clippy::cast_precision_loss, reason = "counts stay below 2^53")]
fn count(number: u64) -> f64 {
    number as f64
}

/// The figures of one target under one load.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Figures {
    pub answered: u64,
    /// Requests without an answer, by HTTP status or reason.
    pub errors: BTreeMap<String, u64>,
    /// The time measured, in seconds.
    pub seconds: f64,
    /// Answers a second.
    pub throughput: f64,
    /// Batch elements a second.
    pub inferences_per_second: f64,
    /// Milliseconds from the intended send time to the whole answer; none without answers.
    pub latency_ms: Option<LatencyMs>,
    /// CPU time of the process that answered, for each answer, in milliseconds.
    pub cpu_ms_per_request: Option<f64>,
    /// Resident memory of the process that answered, in bytes.
    pub memory_bytes: Option<u64>,
}

/// Latencies in milliseconds.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub struct LatencyMs {
    pub mean: f64,
    pub p50: f64,
    pub p90: f64,
    pub p99: f64,
    #[serde(rename = "p99.9")]
    pub p99_9: f64,
    pub max: f64,
}

/// The median, minimum and maximum of some numbers.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub struct Spread {
    /// For an even count, the mean of the middle two.
    pub median: f64,
    pub min: f64,
    pub max: f64,
}

impl Spread {
    /// The spread of numbers in any order. `None` without numbers.
    pub fn of(numbers: impl IntoIterator<Item = f64>) -> Option<Self> {
        let mut numbers: Vec<f64> = numbers.into_iter().collect();
        numbers.sort_by(f64::total_cmp);
        let (&min, &max) = (numbers.first()?, numbers.last()?);
        let middle = |index: usize| numbers.get(index).copied();
        let median = f64::midpoint(middle((numbers.len() - 1) / 2)?, middle(numbers.len() / 2)?);
        Some(Self { median, min, max })
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn recording(micros: impl IntoIterator<Item = u64>) -> Recording {
        let mut recording = Recording::new().unwrap();
        for latency in micros {
            recording.record(Outcome::Ok, Duration::from_micros(latency));
        }
        recording
    }

    #[test]
    fn errors_are_counted_by_reason_and_leave_the_latencies_alone() {
        let mut one = recording([1000, 3000]);
        one.elapsed = Duration::from_secs(2);
        one.record(Outcome::Failed { kind: "429".into(), message: "full".into() }, Duration::from_mins(1));
        let mut other = Recording { elapsed: Duration::from_secs(1), ..one.clone() };
        other.fail(NOT_SENT_KIND.into(), 3);
        let mut beside = one.clone();
        beside.add(&other);
        assert_eq!((beside.answered(), beside.elapsed), (4, Duration::from_secs(2)));
        one.follow(&other);
        assert_eq!(one.elapsed, Duration::from_secs(3));
        let figures = one.figures(Some(Duration::from_millis(8)), Some(5), 2);
        assert_eq!(figures.errors, BTreeMap::from([("429".into(), 2), (NOT_SENT_KIND.into(), 3)]));
        assert_eq!((figures.cpu_ms_per_request, figures.memory_bytes), (Some(2.0), Some(5)));
        assert!(
            (figures.throughput * 3.0 - 4.0).abs() < 1e-9 && (figures.inferences_per_second * 3.0 - 8.0).abs() < 1e-9
        );
        assert!((figures.latency_ms.unwrap().max - 3.0).abs() < 0.01);
    }

    #[test]
    fn without_answers_there_is_no_latency_and_nothing_is_divided_by_zero() {
        let figures = Recording::new().unwrap().figures(Some(Duration::from_secs(1)), None, 1);
        assert_eq!((figures.latency_ms, figures.cpu_ms_per_request, figures.throughput.to_bits()), (None, None, 0));
    }

    #[test]
    fn a_spread_needs_a_number_and_halves_even_ones() {
        assert_eq!(Spread::of([]), None);
        assert_eq!(Spread::of([3.0]), Some(Spread { median: 3.0, min: 3.0, max: 3.0 }));
        assert_eq!(Spread::of([4.0, 1.0, 2.0, 9.0]), Some(Spread { median: 3.0, min: 1.0, max: 9.0 }));
    }

    proptest! {
        #[test]
        fn a_quantile_is_the_sorted_latency_of_its_rank_to_three_digits(
            mut micros in prop::collection::vec(1_u32..10_000_000, 1..500), percent in 1_u32..=100,
        ) {
            let got = recording(micros.iter().map(|&one| one.into())).quantile(f64::from(percent) / 100.0).unwrap();
            micros.sort_unstable();
            // The least value that this share of all does not exceed; 0.07 of 100 is 7 or, in floating point, 8.
            let rank = (percent as usize * micros.len()).div_ceil(100);
            let (least, most) = (micros[rank - 1], micros[rank.min(micros.len() - 1)]);
            let expected = f64::from(least) / 1e3 * (1.0 - 1.1e-3)..=f64::from(most) / 1e3 * (1.0 + 1.1e-3);
            prop_assert!(expected.contains(&got), "{} is not in {:?}", got, expected);
        }
    }
}
