//! The search of `ledge tune` for the way to run a model that suits a goal best.
//!
//! Every way is measured briefly; those that can no longer win are dropped; the others are measured in turns, so that a
//! busy moment of the machine hits all of them, and dropped as their distance to the best becomes certain.

use std::fmt;
use std::str::FromStr;
use std::time::Duration;

use ledge_engine::backend::Runtime;
use serde::Serialize;

use super::profile::RunProfileChoice;
use super::tuning::LoadMeasurement;

/// Goal that a model is tuned for.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum TuningGoal {
    /// The most batch elements a second, however long each takes.
    Throughput,
    /// The shortest median time of a single request with nothing else going on.
    Latency,
    /// The shortest 99th percentile at a rate; it should stay within the limit.
    Percentile {
        limit: Duration,
        /// Requests a second, at random times (a Poisson process).
        rate: f64,
    },
}

/// Error for a text that is not a goal.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("expected throughput, latency, or a limit at a rate such as 'p99<=20ms@50/s'")]
pub struct TuningGoalError;

impl FromStr for TuningGoal {
    type Err = TuningGoalError;

    fn from_str(text: &str) -> Result<Self, TuningGoalError> {
        let text: String = text.chars().filter(|c| !c.is_whitespace()).collect();
        match text.as_str() {
            "throughput" => return Ok(Self::Throughput),
            "latency" => return Ok(Self::Latency),
            _ => {}
        }
        let rest = text.strip_prefix("p99<=").ok_or(TuningGoalError)?;
        let (limit, rate) = rest.split_once('@').or_else(|| rest.split_once("at")).ok_or(TuningGoalError)?;
        let number = |text: &str| text.parse::<f64>().ok().filter(|n| n.is_finite() && *n > 0.0).ok_or(TuningGoalError);
        let seconds = match (limit.strip_suffix("ms"), limit.strip_suffix("us"), limit.strip_suffix('s')) {
            (Some(ms), _, _) => number(ms)? / 1e3,
            (_, Some(us), _) => number(us)? / 1e6,
            (_, _, Some(s)) => number(s)?,
            _ => return Err(TuningGoalError),
        };
        let rate = number(rate.strip_suffix("/s").unwrap_or(rate))?;
        let limit = Duration::try_from_secs_f64(seconds).map_err(|_| TuningGoalError)?;
        if limit.is_zero() || rate > 1e6 { Err(TuningGoalError) } else { Ok(Self::Percentile { limit, rate }) }
    }
}

impl fmt::Display for TuningGoal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Throughput => f.write_str("throughput"),
            Self::Latency => f.write_str("latency"),
            Self::Percentile { limit, rate } => write!(f, "p99 <= {} ms at {rate}/s", limit.as_secs_f64() * 1e3),
        }
    }
}

impl TuningGoal {
    /// The figure to minimize: seconds for each batch element, or a latency in seconds.
    pub fn cost(self, load: &LoadMeasurement) -> f64 {
        match self {
            Self::Throughput => load.throughput().recip(),
            Self::Latency => load.percentile(0.5).as_secs_f64(),
            Self::Percentile { .. } => load.percentile(0.99).as_secs_f64(),
        }
    }

    /// True when the load is within the goal's limit; always true for goals without one.
    pub fn is_met(self, load: &LoadMeasurement) -> bool {
        match self {
            Self::Throughput | Self::Latency => true,
            Self::Percentile { limit, .. } => load.percentile(0.99) <= limit,
        }
    }
}

/// The ways to run a model on `cores` cores that can be best at `goal`, the simplest first.
pub fn candidates(
    goal: TuningGoal,
    runtimes: &[Runtime],
    cores: usize,
    batch_limit: Option<usize>,
) -> Vec<RunProfileChoice> {
    let cores = cores.max(1);
    let mut threads: Vec<usize> = (0..usize::BITS).map(|bit| 1 << bit).take_while(|&count| count < cores).collect();
    threads.push(cores);
    let mut found = Vec::new();
    for &runtime in runtimes {
        for &threads in &threads {
            let fit = cores / threads;
            let instances = match goal {
                TuningGoal::Latency => vec![1],
                // One fewer leaves a core to the threads that receive the requests.
                _ if fit > 1 => vec![fit, fit - 1],
                _ => vec![1],
            };
            let batches = match (goal, batch_limit) {
                (TuningGoal::Throughput | TuningGoal::Percentile { .. }, Some(limit)) => {
                    [1, 4, 16].into_iter().filter(|&batch| batch <= limit).collect()
                }
                _ => vec![1],
            };
            for &instances in &instances {
                found.extend(batches.iter().map(|&batch| RunProfileChoice { runtime, threads, instances, batch }));
            }
        }
    }
    found
}

/// One way to run the model, and its measurement.
#[derive(Debug, Clone)]
pub struct TuningRow {
    pub choice: RunProfileChoice,
    /// The measurement, or the reason why the model cannot be run that way.
    pub load: Result<LoadMeasurement, String>,
}

/// Loads and measures models: real ones in `ledge tune`, simulated ones in tests.
pub trait ModelMeasurer {
    /// Loads a way to run the model and keeps it loaded.
    fn load(&mut self, choice: RunProfileChoice) -> impl Future<Output = Result<(), String>>;

    /// Measures a way that is loaded.
    fn measure(
        &mut self,
        choice: RunProfileChoice,
        time: Duration,
    ) -> impl Future<Output = Result<LoadMeasurement, String>>;

    /// Unloads it.
    fn unload(&mut self, choice: RunProfileChoice) -> impl Future<Output = ()>;

    /// Reports progress: the current phase, steps done and steps in all.
    fn progress(&mut self, what: &str, done: usize, of: usize);
}

/// Thoroughness of a search.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
pub struct TuningEffort {
    /// The time of one measurement.
    pub slice: Duration,
    /// Number of times that each finalist is measured.
    pub rounds: usize,
    pub exhaustive: bool,
}

/// Largest cost of a finalist relative to the best in the first, short round: a way that took longer can no longer win.
const FINALIST_COST_FACTOR_MAX: f64 = 1.5;

/// Largest cost, relative to the best, of ways that count as equally good: the simplest of them is chosen, since
/// measurements scatter by more.
const EQUAL_COST_FACTOR_MAX: f64 = 1.01;

/// Measures the candidates, and returns them with the best first and those that cannot be run last.
pub async fn search<M: ModelMeasurer>(
    measure: &mut M,
    goal: TuningGoal,
    candidates: &[RunProfileChoice],
    how: TuningEffort,
) -> Vec<TuningRow> {
    let mut rows: Vec<TuningRow> = Vec::new();
    for (done, &choice) in candidates.iter().enumerate() {
        measure.progress("first round", done, candidates.len());
        let load = match measure.load(choice).await {
            Ok(()) => first_measurement(measure, goal, choice, how.slice / 2).await,
            Err(reason) => Err(reason),
        };
        if !how.exhaustive {
            measure.unload(choice).await;
        }
        rows.push(TuningRow { choice, load });
    }

    let mut finalists =
        close_to_best(goal, &rows, if how.exhaustive { f64::INFINITY } else { FINALIST_COST_FACTOR_MAX });
    for &index in &finalists {
        let Some(row) = rows.get_mut(index) else { continue };
        // The first round was not measured in turns, so it does not count.
        row.load = if how.exhaustive {
            Ok(LoadMeasurement::default())
        } else {
            measure.load(row.choice).await.map(|()| LoadMeasurement::default())
        };
    }

    let unloaded: Vec<RunProfileChoice> = finalists.iter().filter_map(|&index| Some(rows.get(index)?.choice)).collect();
    for round in 0..how.rounds {
        for &index in &finalists {
            let Some(row) = rows.get_mut(index) else { continue };
            measure.progress("finalists", round, how.rounds);
            let Ok(load) = &mut row.load else { continue };
            match measure.measure(row.choice, how.slice).await {
                Ok(more) => load.merge(more),
                Err(reason) => row.load = Err(reason),
            }
        }
        if !how.exhaustive && round > 0 && finalists.len() > 1 {
            #[expect(clippy::cast_precision_loss, reason = "a handful of rounds")]
            let margin = 1.0 + 0.3 / (round + 1) as f64;
            let close = close_to_best(goal, &rows, margin);
            finalists.retain(|index| close.contains(index));
        }
    }

    for choice in unloaded {
        measure.unload(choice).await;
    }
    measure.progress("done", how.rounds, how.rounds);
    rank(goal, rows)
}

async fn first_measurement<M: ModelMeasurer>(
    measure: &mut M,
    goal: TuningGoal,
    choice: RunProfileChoice,
    time: Duration,
) -> Result<LoadMeasurement, String> {
    // The better of two: a busy moment must not drop the winner.
    let first = measure.measure(choice, time).await?;
    let second = measure.measure(choice, time).await?;
    Ok(if goal.cost(&first) <= goal.cost(&second) { first } else { second })
}

fn cost(goal: TuningGoal, row: &TuningRow) -> f64 {
    row.load.as_ref().map_or(f64::INFINITY, |load| goal.cost(load))
}

/// The indices of the rows with a cost within `factor` of the best.
fn close_to_best(goal: TuningGoal, rows: &[TuningRow], factor: f64) -> Vec<usize> {
    let best = rows.iter().map(|row| cost(goal, row)).fold(f64::INFINITY, f64::min);
    let within = |row: &TuningRow| row.load.is_ok() && cost(goal, row) <= best * factor;
    rows.iter().enumerate().filter(|(_, row)| within(row)).map(|(index, _)| index).collect()
}

/// Sorts the best first; among equals the simplest, which comes earlier among the candidates.
fn rank(goal: TuningGoal, mut rows: Vec<TuningRow>) -> Vec<TuningRow> {
    let equals = close_to_best(goal, &rows, EQUAL_COST_FACTOR_MAX);
    let best = equals.first().map(|&index| rows.remove(index));
    rows.sort_by(|a, b| cost(goal, a).total_cmp(&cost(goal, b)));
    best.into_iter().chain(rows).collect()
}

#[cfg(test)]
mod tests;
