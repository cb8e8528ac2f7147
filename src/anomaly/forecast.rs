//! The next values of a series, with a band. Several methods are tried on the last samples, as if those were not known yet:
//! the best one forecasts, and its errors there are the band (split conformal prediction, by horizon).

use crate::detector::SeriesDetector;
use crate::ring::quantile;

/// Values of one forecast, and samples that must have been seen.
pub const LONGEST_FORECAST: usize = 2016;
const FEWEST_SAMPLES: usize = 64;
/// Forecasts of the past from which errors are taken, at most.
const ORIGINS: usize = 96;
/// Damping of a trend by sample, and how fast a deviation from the level goes back.
const TREND_DAMPING: f64 = 0.95;
const REVERSION: f64 = 0.97;
/// The season was learnt with the samples that it is tried on, and neighbours in time err alike: the band is wider.
const WIDENING: f64 = 1.15;

/// One value of a forecast.
#[derive(Debug, Clone, Copy, PartialEq, serde::Serialize)]
pub struct ForecastPoint {
    pub time_ms: i64,
    pub value: f64,
    pub low: f64,
    pub high: f64,
}

/// A forecast that cannot be made.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum ForecastError {
    #[error("{needed} more samples are needed for a forecast")]
    TooFewSamples { needed: usize },
    #[error("a forecast has from 1 to {LONGEST_FORECAST} values")]
    Length,
    #[error("the coverage of a band is from 0.5 to 0.99")]
    Coverage,
}

/// The methods by which values go on from the last ones.
#[derive(Debug, Clone, Copy, PartialEq)]
enum Method {
    Last,
    Level,
    Reverting,
    DampedTrend,
    Periodic(usize),
}

/// The last samples without the season, and the season of any sample, by place.
struct Past<'a> {
    values: &'a [f64],
    level: f64,
}

impl Past<'_> {
    fn mean(&self, to: usize, count: usize) -> f64 {
        let from = to.saturating_sub(count);
        let part = self.values.get(from..to).unwrap_or_default();
        part.iter().sum::<f64>() / part.len().max(1) as f64
    }

    /// The value `steps` after the first `known` ones.
    fn forecast(&self, method: Method, known: usize, steps: usize) -> f64 {
        match method {
            Method::Last => self.values.get(known - 1).copied().unwrap_or_default(),
            Method::Level => self.mean(known, 6),
            Method::Reverting => {
                let near = self.mean(known, 3);
                self.level + (near - self.level) * REVERSION.powi(steps as i32)
            }
            Method::DampedTrend => {
                let slope = (self.mean(known, 8) - self.mean(known.saturating_sub(8), 8)) / 8.0;
                let sum = TREND_DAMPING * (1.0 - TREND_DAMPING.powi(steps as i32)) / (1.0 - TREND_DAMPING);
                self.mean(known, 3) + slope * (sum + 1.0)
            }
            Method::Periodic(period) => {
                let back = period - (steps - 1) % period;
                let moved = self.mean(known, period) - self.mean(known.saturating_sub(period), period);
                self.values.get(known.saturating_sub(back)).copied().unwrap_or_default() + 0.3 * moved
            }
        }
    }

    /// Errors of a method so many steps ahead.
    fn errors(&self, method: Method, steps: usize) -> Vec<f64> {
        let length = self.values.len();
        let Some(last) = length.checked_sub(steps) else { return Vec::new() };
        let first = (length / 4).max(16).min(last);
        let stride = ((last - first) / ORIGINS).max(1);
        let origins = (first..=last).step_by(stride);
        origins
            .filter_map(|known| Some(self.values.get(known + steps - 1)? - self.forecast(method, known, steps)))
            .collect()
    }
}

impl SeriesDetector {
    /// The next `length` values. A band of `coverage` 0.9 holds about nine values of ten.
    pub fn forecast(&self, length: usize, coverage: f64) -> Result<Vec<ForecastPoint>, ForecastError> {
        if !(1..=LONGEST_FORECAST).contains(&length) {
            return Err(ForecastError::Length);
        }
        if !(0.5..=0.99).contains(&coverage) {
            return Err(ForecastError::Coverage);
        }
        let samples = self.recent.in_order();
        if samples.len() < FEWEST_SAMPLES {
            return Err(ForecastError::TooFewSamples { needed: FEWEST_SAMPLES - samples.len() });
        }

        let interval = self.pace.interval_ms();
        let season_at =
            |steps: i64| self.season.at(self.last_ms.saturating_add(interval.saturating_mul(steps)), interval);
        let newest = samples.len() as i64 - 1;
        let values: Vec<f64> = samples.iter().zip(0..).map(|(value, at)| value - season_at(at - newest)).collect();
        let past = Past { values: &values, level: self.level };

        let mut methods = vec![Method::Last, Method::Level, Method::Reverting, Method::DampedTrend];
        methods.extend(self.predictors.period().filter(|period| period * 3 <= values.len()).map(Method::Periodic));
        let horizons: Vec<usize> = std::iter::successors(Some(1_usize), |steps| Some(steps * 2))
            .take_while(|steps| *steps <= values.len() / 3 && *steps < length * 2)
            .collect();
        let method = best(&past, &methods, &horizons);
        let bounds = bounds(&past, method, &horizons, coverage);

        let lowest = if self.lowest >= 0.0 { 0.0 } else { f64::MIN };
        let points = (1..=length).map(|steps| {
            let expected = past.forecast(method, values.len(), steps) + season_at(steps as i64) + self.origin;
            let value = expected.max(lowest);
            let (below, above) = at_horizon(&bounds, steps);
            ForecastPoint {
                time_ms: self.last_ms.saturating_add(interval.saturating_mul(steps as i64)),
                value,
                low: (expected + below).max(lowest).min(value),
                high: (expected + above).max(value),
            }
        });
        Ok(points.collect())
    }
}

/// The method with the smallest mean errors, each horizon in terms of the best there.
fn best(past: &Past, methods: &[Method], horizons: &[usize]) -> Method {
    let mean = |errors: &[f64]| errors.iter().map(|error| error.abs()).sum::<f64>() / errors.len().max(1) as f64;
    let mut sums = vec![0.0; methods.len()];
    for steps in horizons {
        let found: Vec<f64> = methods.iter().map(|method| mean(&past.errors(*method, *steps))).collect();
        let least = found.iter().copied().fold(f64::INFINITY, f64::min).max(1e-12);
        for (sum, error) in sums.iter_mut().zip(found) {
            *sum += (error / least).min(100.0);
        }
    }
    let best = methods.iter().zip(&sums).min_by(|left, right| left.1.total_cmp(right.1));
    best.map_or(Method::Level, |(method, _)| *method)
}

/// Bounds of the error by horizon: a later one is not narrower.
fn bounds(past: &Past, method: Method, horizons: &[usize], coverage: f64) -> Vec<(usize, f64, f64)> {
    let (mut below, mut above) = (0.0_f64, 0.0_f64);
    let bound = |steps: &usize| {
        let mut errors = past.errors(method, *steps);
        // Far ahead only few of the errors are independent.
        let independent = (past.values.len() as f64 / *steps as f64).max(2.0);
        let widening = WIDENING + 0.8 / independent.sqrt();
        below = below.min(quantile(&mut errors, (1.0 - coverage) / 2.0) * widening);
        above = above.max(quantile(&mut errors, f64::midpoint(1.0, coverage)) * widening);
        (*steps, below, above)
    };
    horizons.iter().map(bound).collect()
}

/// Bounds between two horizons, and past the last by the root of the time.
fn at_horizon(bounds: &[(usize, f64, f64)], steps: usize) -> (f64, f64) {
    let mut before = None;
    for (horizon, below, above) in bounds {
        if *horizon >= steps {
            let Some((from, below_from, above_from)) = before else { return (*below, *above) };
            let share = (steps - from) as f64 / (horizon - from) as f64;
            return (below_from + (below - below_from) * share, above_from + (above - above_from) * share);
        }
        before = Some((*horizon, *below, *above));
    }
    before.map_or((0.0, 0.0), |(horizon, below, above)| {
        let growth = (steps as f64 / horizon as f64).sqrt().min(3.0);
        (below * growth, above * growth)
    })
}
