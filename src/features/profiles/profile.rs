//! The profile of one entity.

use ledge_anomaly::{Band, Explanation, ForecastError, ForecastPoint, PROBABILITIES, Pace, RowProfile, SeriesDetector};
use serde::{Deserialize, Serialize};

use super::sampler::SampledRow;
use crate::value::Value;
use crate::view::{ViewId, WatchedFeatures};

const WEEK_MS: f64 = 7.0 * 86_400_000.0;

/// The part of values that a forecast's band is to hold.
const COVERAGE: f64 = 0.9;

/// The memory of a profile, in bytes: its key and entity, and of each feature a series of 5.7 KB and its share of the
/// rows, of which each pair of features has a number.
const PROFILE_BYTES: usize = 1_280;
const FEATURE_BYTES: usize = 6_912;
const PAIR_BYTES: usize = 4;

/// The usual rows of an entity in one view.
#[derive(Debug, Clone, PartialEq)]
pub struct EntityProfile {
    pub view: ViewId,
    /// The values of the join keys, in the view's order.
    pub entity: Vec<Value>,
    /// The event time of the last row that was learnt, in microseconds since the Unix epoch.
    pub last_us: i64,
    pub rows: RowProfile,
    /// Each feature by itself, for forecasts.
    pub series: Vec<SeriesDetector>,
    /// The last unusual row, while the entity is unusual.
    pub unusual: Option<UnusualRow>,
}

/// An unusual row, and the features that explain it.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct UnusualRow {
    /// The event times of the first unusual row and of this one, in microseconds since the Unix epoch.
    pub since_us: i64,
    pub event_us: i64,
    /// 1 is the threshold.
    pub score: f64,
    /// The largest share first.
    pub features: Vec<ExplainedFeature>,
}

/// A feature of an unusual row.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct ExplainedFeature {
    /// Its place among the watched features.
    pub feature: u8,
    /// Its part of the score, from 0 to 1.
    pub share: f64,
    pub value: f64,
    pub low: f64,
    pub high: f64,
}

impl From<Explanation> for ExplainedFeature {
    fn from(Explanation { feature, share, value, band: Band { low, high } }: Explanation) -> Self {
        Self { feature: u8::try_from(feature).unwrap_or(u8::MAX), share, value, low, high }
    }
}

impl EntityProfile {
    /// A profile without a row. `None` for settings out of bounds, which no declaration has.
    pub fn new(view: ViewId, entity: Vec<Value>, watched: &WatchedFeatures) -> Option<Self> {
        let features = watched.features.len();
        #[expect(clippy::cast_precision_loss, reason = "an interval is a day at most")]
        let rows_per_week = WEEK_MS / watched.interval_ms() as f64;
        let probability = (watched.alarms_per_week / rows_per_week).clamp(*PROBABILITIES.start(), *PROBABILITIES.end());
        let rows = RowProfile::new(features, probability).ok()?;
        Some(Self { view, entity, last_us: i64::MIN, rows, series: series(watched)?, unusual: None })
    }

    /// Judges a row, and learns it.
    pub fn take(&mut self, row: &SampledRow, watched: &WatchedFeatures) {
        if row.event_us < self.last_us
            && let Some(series) = series(watched)
        {
            // The clock was ahead, and series take no time twice.
            self.series = series;
        }
        self.last_us = row.event_us;
        for (series, value) in self.series.iter_mut().zip(&row.values) {
            if let Some(value) = value {
                // A value that is no number is none of the series either.
                let _ = series.observe(row.event_us.div_euclid(1000), *value);
            }
        }
        let Ok(verdict) = self.rows.observe(&row.values) else { return };
        if verdict.score >= 1.0 {
            let since_us = self.unusual.as_ref().map_or(row.event_us, |before| before.since_us);
            let features = verdict.explanations.into_iter().map(Into::into).collect();
            self.unusual = Some(UnusualRow { since_us, event_us: row.event_us, score: verdict.score, features });
        }
        if !verdict.is_unusual {
            self.unusual = None;
        }
    }

    /// The next values of a feature.
    pub fn forecast(&self, feature: usize, count: usize) -> Result<Vec<ForecastPoint>, ForecastError> {
        self.series.get(feature).map_or(Ok(Vec::new()), |series| series.forecast(count, COVERAGE))
    }

    /// A person says that the last unusual row is normal. False where there was none.
    pub fn teach_normal(&mut self) -> bool {
        self.unusual = None;
        self.rows.teach_normal()
    }

    /// Its memory, in bytes.
    pub fn bytes(&self) -> usize {
        bytes_of(self.series.len())
    }
}

/// The memory of a profile with so many features, in bytes.
pub fn bytes_of(features: usize) -> usize {
    PROFILE_BYTES + features * FEATURE_BYTES + features * (features + 1) / 2 * PAIR_BYTES
}

/// The pace of each feature.
pub fn pace(watched: &WatchedFeatures) -> Option<Pace> {
    Pace::new(watched.interval_ms(), watched.alarms_per_week).ok()
}

fn series(watched: &WatchedFeatures) -> Option<Vec<SeriesDetector>> {
    let pace = pace(watched)?;
    Some(watched.features.iter().map(|_| SeriesDetector::new(pace)).collect())
}
