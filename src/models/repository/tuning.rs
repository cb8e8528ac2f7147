//! Measurements of loaded models: the quick comparison of runtimes at a load, and the figures that `ledge tune`
//! searches by.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use ledge_base::principal::Principal;
use ledge_base::tensor::Tensor;
use ledge_engine::warm_up::WarmUp;

use super::super::scheduling::outcome::InferError;
use super::loaded_model::LoadedModel;
use crate::scheduling::terms::{Priority, RunTerms};

/// Time that the quick comparison may measure each runtime.
const QUICK_COMPARISON_TIME: Duration = Duration::from_millis(150);

/// Number of runs after which the quick comparison ends.
const QUICK_RUNS: usize = 30;

/// Time within which a measured run must end.
const MEASURED_RUN_TIMEOUT: Duration = Duration::from_mins(1);

/// The inputs that a model is measured with: zeros, one batch element. `None` for a model with too large inputs.
pub fn sample(model: &LoadedModel) -> Option<Vec<Tensor>> {
    let warm_up = WarmUp { signature: model.signature.clone(), sizes: vec![1] };
    let (_, inputs) = warm_up.runs().next()?;
    Some(inputs)
}

/// Returns the index of the model that answers a single request fastest, and the median time of each; `None` when one
/// of them cannot be measured. They take turns, so that a busy moment of the machine slows all of them.
pub(super) async fn quickest(models: &[LoadedModel]) -> Option<(usize, Vec<Duration>)> {
    let mut times: Vec<Vec<Duration>> = models.iter().map(|_| Vec::new()).collect();
    let start = Instant::now();
    for round in 0..QUICK_RUNS {
        for (model, times) in models.iter().zip(&mut times) {
            let inputs = sample(model)?;
            let answer = run(model, inputs).await.ok()?;
            // The first run of each may still allocate.
            if round > 0 {
                times.push(answer);
            }
        }
        if round > 2 && start.elapsed() > QUICK_COMPARISON_TIME * u32::try_from(models.len()).unwrap_or(u32::MAX) {
            break;
        }
    }
    let medians: Vec<Duration> = times.iter_mut().map(|times| median(times)).collect();
    let best = medians.iter().enumerate().min_by_key(|(_, time)| **time)?.0;
    Some((best, medians))
}

/// Runs the model once, and returns the compute time.
async fn run(model: &LoadedModel, inputs: Vec<Tensor>) -> Result<Duration, InferError> {
    let outputs = (0..model.signature.outputs.len()).collect();
    let answer = model.run(inputs, outputs, terms()).await?;
    Ok(answer.run.time.total())
}

fn terms() -> RunTerms {
    RunTerms {
        deadline: Instant::now() + MEASURED_RUN_TIMEOUT,
        priority: Priority::Interactive,
        principal: Principal::Local,
    }
}

fn median(times: &mut [Duration]) -> Duration {
    times.sort_unstable();
    times.get(times.len() / 2).copied().unwrap_or(Duration::MAX)
}

/// Latencies of a measurement, and its duration.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct LoadMeasurement {
    /// Time from call to answer of each request, ascending.
    pub latencies: Vec<Duration>,
    /// Duration of the measurement.
    pub time: Duration,
}

impl LoadMeasurement {
    /// Requests a second.
    pub fn throughput(&self) -> f64 {
        #[expect(clippy::cast_precision_loss, reason = "far below 2^52")]
        let count = self.latencies.len() as f64;
        if self.time.is_zero() { 0.0 } else { count / self.time.as_secs_f64() }
    }

    /// The latency that `share` of the requests stayed within (0.5 is the median).
    pub fn percentile(&self, share: f64) -> Duration {
        #[expect(
            clippy::cast_precision_loss,
            clippy::cast_possible_truncation,
            clippy::cast_sign_loss,
            reason = "a place in the list"
        )]
        let place = (share.clamp(0.0, 1.0) * self.latencies.len() as f64) as usize;
        let last = self.latencies.len().saturating_sub(1);
        self.latencies.get(place.min(last)).copied().unwrap_or(Duration::MAX)
    }

    /// Adds another measurement to this one.
    pub fn merge(&mut self, other: Self) {
        self.latencies.extend(other.latencies);
        self.latencies.sort_unstable();
        self.time += other.time;
    }
}

/// Measures `callers` callers for `time`, each of which sends its next request when it has the answer to the last.
/// `Err` when a request fails.
pub async fn closed_loop(model: &Arc<LoadedModel>, callers: usize, time: Duration) -> Result<LoadMeasurement, String> {
    let inputs = sample(model).ok_or("its inputs are too large for a measurement")?;
    let (start, stop) = (Instant::now(), Arc::new(AtomicBool::new(false)));
    let caller = || {
        let (model, stop, inputs) = (model.clone(), stop.clone(), inputs.clone());
        let outputs: Vec<usize> = (0..model.signature.outputs.len()).collect();
        async move {
            let mut latencies = Vec::new();
            while !stop.load(Ordering::Relaxed) {
                let sent = Instant::now();
                model.run(inputs.clone(), outputs.clone(), terms()).await.map_err(|error| error.to_string())?;
                latencies.push(sent.elapsed());
                // An inline run never waits: yield, so that the other callers get their turns.
                tokio::task::yield_now().await;
                if start.elapsed() >= time {
                    stop.store(true, Ordering::Relaxed);
                }
            }
            Ok::<_, String>(latencies)
        }
    };

    let callers: Vec<_> = (0..callers).map(|_| caller()).collect();
    let mut load = LoadMeasurement::default();
    for latencies in futures_util::future::join_all(callers).await {
        load.latencies.extend(latencies?);
    }
    load.time = start.elapsed();
    load.latencies.sort_unstable();
    Ok(load)
}

/// Measures requests sent at the given offsets from the start, whether the earlier ones are answered or not; the
/// latency counts from the time at which a request should have been sent.
pub async fn open_loop(model: &Arc<LoadedModel>, arrivals: &[Duration]) -> Result<LoadMeasurement, String> {
    let inputs = sample(model).ok_or("its inputs are too large for a measurement")?;
    let start = Instant::now();
    let request = |at: Duration| {
        let (model, inputs) = (model.clone(), inputs.clone());
        let outputs: Vec<usize> = (0..model.signature.outputs.len()).collect();
        async move {
            tokio::time::sleep_until((start + at).into()).await;
            model.run(inputs, outputs, terms()).await.map_err(|error| error.to_string())?;
            Ok::<_, String>((start + at).elapsed())
        }
    };
    let answers = futures_util::future::join_all(arrivals.iter().map(|&at| request(at))).await;
    let mut load = LoadMeasurement { latencies: answers.into_iter().collect::<Result<_, _>>()?, time: start.elapsed() };
    load.latencies.sort_unstable();
    Ok(load)
}

/// Random arrivals at `rate` a second for `time`: a Poisson process, as of independent callers. They are the same each
/// time, so that two ways to run a model get the same requests.
pub fn arrivals(rate: f64, time: Duration) -> Vec<Duration> {
    // SplitMix64 (Steele, Lea, Flood 2014): enough for a schedule, and one line.
    let mut state = 0x1ED6_E000_u64;
    let mut uniform = move || {
        state = state.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mut z = state;
        z = (z ^ (z >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        #[expect(clippy::cast_precision_loss, reason = "53 bits fit")]
        let fraction = ((z ^ (z >> 31)) >> 11) as f64 / (1_u64 << 53) as f64;
        fraction
    };
    let (mut at, mut times) = (0.0, Vec::new());
    loop {
        at += -(1.0 - uniform()).ln() / rate;
        match Duration::try_from_secs_f64(at) {
            Ok(offset) if offset < time => times.push(offset),
            _ => return times,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn percentiles_are_those_of_the_sorted_list() {
        let ms = Duration::from_millis;
        let mut load = LoadMeasurement { latencies: (1..=100).map(ms).collect(), time: Duration::from_secs(2) };
        assert_eq!([0.0, 0.5, 0.99, 1.0].map(|share| load.percentile(share)), [ms(1), ms(51), ms(100), ms(100)]);
        assert!((load.throughput() - 50.0).abs() < 1e-9);
        load.merge(LoadMeasurement { latencies: vec![ms(0); 100], time: Duration::from_secs(2) });
        assert_eq!((load.percentile(0.25), load.latencies.len()), (ms(0), 200));
        assert_eq!(LoadMeasurement::default().percentile(0.5), Duration::MAX);
    }

    #[test]
    fn arrivals_come_at_their_rate_and_are_those_of_a_poisson_process() {
        let times = arrivals(200.0, Duration::from_secs(100));
        let mut gaps: Vec<f64> =
            times.windows(2).map(|pair| (pair[1].as_secs_f64() - pair[0].as_secs_f64()) * 200.0).collect();
        gaps.sort_by(f64::total_cmp);
        assert!((19_000..21_000).contains(&times.len()), "{}", times.len());
        // The median of an exponential distribution with mean 1 is ln 2.
        assert!((gaps[gaps.len() / 2] - std::f64::consts::LN_2).abs() < 0.03);
        assert_eq!(arrivals(200.0, Duration::from_secs(100)), times);
    }
}
