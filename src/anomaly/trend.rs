//! A lasting rise or fall, such as a leak of memory or a disk that fills: its slope by Theil and Sen over the means of
//! equal spans of time, and when it reaches a limit.
//!
//! A rise is a trend only if it exceeds by far the largest fall that was ever seen, and goes beyond all earlier values.
//! Therefore a sawtooth (a log that is rotated), a daily cycle and a random walk are none, whatever their size.

use crate::ring::{median, quantile};
use serde::{Deserialize, Serialize};

/// Spans that are kept, and the fewest from which a trend is found.
pub const SPANS: usize = 48;
const FEWEST_SPANS: usize = 16;
/// Share of pairs of spans that rise, less those that fall.
const CONCORDANCE: f64 = 0.8;
/// The rise in terms of the largest opposite movement; more while little is seen.
const EXCESS: f64 = 1.5;
const EXCESS_WHILE_YOUNG: f64 = 2.5;
/// The slope of the last third, in terms of the whole: a cache that is warm no longer grows.
const LASTING: f64 = 0.6;
/// Spans over which extremes fade, and the largest movements.
const EXTREME_MEMORY: f64 = 4.0 * SPANS as f64;
const MOVEMENT_MEMORY: f64 = 40.0 * SPANS as f64;
/// Rise in terms of the median distance from the line.
const CLARITY: f64 = 8.0;

/// A lasting rise or fall.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct Trend {
    /// Units an hour; negative for a fall.
    pub per_hour: f64,
    /// Bounds of the slope with a confidence of 95 %.
    pub per_hour_low: f64,
    pub per_hour_high: f64,
    /// The value on the line now, and the time at which the rise began, in Unix milliseconds.
    pub value: f64,
    pub since_ms: i64,
}

/// When a trend reaches a limit, in hours from now.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct TimeToLimit {
    pub hours: f64,
    pub earliest_hours: f64,
    /// None: perhaps never, because the slope may be 0.
    pub latest_hours: Option<f64>,
}

impl Trend {
    pub(crate) fn is_sound(&self) -> bool {
        [self.per_hour, self.per_hour_low, self.per_hour_high, self.value].iter().all(|number| number.is_finite())
            && self.since_ms.unsigned_abs() < 1 << 61
    }

    /// None where the trend leads away from the limit, or has passed it.
    pub fn reaches(&self, limit: f64) -> Option<TimeToLimit> {
        let left = limit - self.value;
        let hours = left / self.per_hour;
        if !hours.is_finite() || hours < 0.0 {
            return None;
        }
        let bounds = [left / self.per_hour_low, left / self.per_hour_high];
        let earliest_hours = bounds.iter().copied().filter(|bound| *bound >= 0.0).fold(hours, f64::min);
        let is_certain = bounds.iter().all(|bound| bound.is_finite() && *bound >= 0.0);
        let latest_hours = is_certain.then(|| bounds.iter().copied().fold(hours, f64::max));
        Some(TimeToLimit { hours, earliest_hours, latest_hours })
    }
}

/// Means of the last spans, and the largest movements before, about 250 bytes.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct TrendSketch {
    span_ms: i64,
    means: Vec<f32>,
    /// Number of the span that is being filled, counted from 1970.
    span: i64,
    sum: f64,
    count: u32,
    spans_seen: u32,
    /// Extremes of spans that are no longer kept.
    earlier_low: f64,
    earlier_high: f64,
    /// Extremes that fade, and the largest movements against them.
    peak: f64,
    trough: f64,
    largest_fall: f64,
    largest_rise: f64,
    found: bool,
}

impl TrendSketch {
    pub fn new(span_ms: i64) -> Self {
        Self {
            span_ms,
            means: Vec::new(),
            span: 0,
            sum: 0.0,
            count: 0,
            spans_seen: 0,
            earlier_low: 0.0,
            earlier_high: 0.0,
            peak: 0.0,
            trough: 0.0,
            largest_fall: 0.0,
            largest_rise: 0.0,
            found: false,
        }
    }

    /// Takes a sample. True when a span ended, so that the trend may be another.
    pub fn observe(&mut self, time_ms: i64, value: f64) -> bool {
        let span = time_ms.div_euclid(self.span_ms);
        let ended = span != self.span && self.count > 0;
        if ended {
            let mean = self.sum / f64::from(self.count);
            // Spans without a sample repeat the value, so that spans stay equally long. A long silence begins anew.
            let repeats = span.saturating_sub(self.span).clamp(1, SPANS as i64);
            for _ in 0..repeats {
                self.push(mean);
            }
            self.sum = 0.0;
            self.count = 0;
        }
        self.span = span;
        self.sum += value;
        self.count = self.count.saturating_add(1);
        ended
    }

    fn push(&mut self, mean: f64) {
        if self.spans_seen == 0 {
            (self.peak, self.trough) = (mean, mean);
        }
        if self.means.len() == SPANS {
            let oldest = f64::from(self.means.remove(0));
            if self.spans_seen as usize == SPANS {
                (self.earlier_low, self.earlier_high) = (oldest, oldest);
            }
            self.earlier_low = self.earlier_low.min(oldest);
            self.earlier_high = self.earlier_high.max(oldest);
        }
        self.means.push(mean as f32);
        self.spans_seen = self.spans_seen.saturating_add(1);

        // The extremes fade to the present value, so that a level that was left for good is no movement.
        self.peak = mean.max(self.peak - (self.peak - mean) / EXTREME_MEMORY);
        self.trough = mean.min(self.trough + (mean - self.trough) / EXTREME_MEMORY);
        let keep = 1.0 - 1.0 / MOVEMENT_MEMORY;
        self.largest_fall = (self.largest_fall * keep).max(self.peak - mean);
        self.largest_rise = (self.largest_rise * keep).max(mean - self.trough);
    }

    /// The trend of the spans that are kept, if there is one. A rise of less than about `floor` is none.
    pub fn trend(&self, floor: f64) -> Option<Trend> {
        let means: Vec<f64> = self.means.iter().map(|mean| f64::from(*mean)).collect();
        // The part after the last turn: a trend need not be as long as all that is kept.
        [means.len(), means.len() * 2 / 3, means.len() / 2]
            .into_iter()
            .filter(|length| *length >= FEWEST_SPANS)
            .find_map(|length| self.trend_of(means.get(means.len() - length..)?, floor))
    }

    fn trend_of(&self, means: &[f64], floor: f64) -> Option<Trend> {
        let length = means.len();
        // Most series end here, without the cost of the slopes.
        let (low, high) =
            means.iter().fold((f64::MAX, f64::MIN), |(low, high), mean| (low.min(*mean), high.max(*mean)));
        if high - low < self.excess() * self.largest_fall.min(self.largest_rise).max(floor) {
            return None;
        }
        let mut slopes = pairwise_slopes(means);
        let pairs = slopes.len() as f64;
        let rising = slopes.iter().filter(|slope| **slope > 0.0).count() as f64;
        let falling = slopes.iter().filter(|slope| **slope < 0.0).count() as f64;
        let slope = median(&mut slopes);
        let sign = if slope > 0.0 { 1.0 } else { -1.0 };
        if slope == 0.0 || (rising - falling) * sign < CONCORDANCE * pairs {
            return None;
        }

        let rise = slope.abs() * (length - 1) as f64;
        let offset =
            median(&mut means.iter().enumerate().map(|(at, mean)| mean - slope * at as f64).collect::<Vec<_>>());
        let distances = means.iter().enumerate().map(|(at, mean)| (mean - offset - slope * at as f64).abs());
        let noise = median(&mut distances.collect::<Vec<_>>());
        let last_third = median(&mut pairwise_slopes(means.get(length - length / 3..)?)) * sign;
        let against = self.largest_against(sign).max(floor);
        let newest = means.last()?;
        let is_record = (self.spans_seen as usize) <= SPANS
            || (if sign > 0.0 { *newest > self.earlier_high } else { *newest < self.earlier_low });
        if rise < CLARITY * noise || rise < self.excess() * against || last_third < LASTING * slope.abs() || !is_record
        {
            return None;
        }

        // Ranks of the bounds by Kendall's variance, made wider because neighbours are not independent.
        let n = length as f64;
        let distance = 2.5 * 1.96 * (n * (n - 1.0) * (2.0 * n + 5.0) / 18.0).sqrt() / (2.0 * pairs);
        let low = quantile(&mut slopes, (0.5 - distance).max(0.0));
        let high = quantile(&mut slopes, (0.5 + distance).min(1.0));
        let spans_an_hour = 3_600_000.0 / self.span_ms as f64;
        Some(Trend {
            per_hour: slope * spans_an_hour,
            per_hour_low: low * spans_an_hour,
            per_hour_high: high * spans_an_hour,
            value: offset + slope * n,
            since_ms: (self.span - length as i64) * self.span_ms,
        })
    }

    /// Factor by which a rise must exceed the largest opposite movement.
    fn excess(&self) -> f64 {
        let young = (SPANS as f64 / f64::from(self.spans_seen.max(1))).sqrt();
        if self.found { 1.0 } else { EXCESS + EXCESS_WHILE_YOUNG * young }
    }

    /// The largest movement against a trend of this sign, without the one that the trend itself is.
    fn largest_against(&self, sign: f64) -> f64 {
        if sign > 0.0 { self.largest_fall } else { self.largest_rise }
    }

    /// A trend that was reported needs less to last.
    pub fn set_found(&mut self, found: bool) {
        self.found = found;
    }

    /// A person called the trend normal: what it rose is no longer more than was ever seen.
    pub fn teach(&mut self) {
        let range = self.means.iter().fold((f32::MAX, f32::MIN), |(low, high), mean| (low.min(*mean), high.max(*mean)));
        let rise = f64::from(range.1 - range.0).max(0.0);
        self.largest_fall = self.largest_fall.max(rise);
        self.largest_rise = self.largest_rise.max(rise);
        self.found = false;
    }

    pub fn is_sound(&self) -> bool {
        let numbers = [self.sum, self.earlier_low, self.earlier_high, self.peak, self.trough];
        (1..=864_000_000).contains(&self.span_ms)
            && self.means.len() <= SPANS
            && self.means.iter().all(|mean| mean.is_finite())
            && self.span.checked_mul(self.span_ms).is_some_and(|at| at.unsigned_abs() < 1 << 60)
            && numbers.iter().all(|number| number.is_finite())
            && [self.largest_fall, self.largest_rise].iter().all(|number| number.is_finite() && *number >= 0.0)
    }
}

fn pairwise_slopes(means: &[f64]) -> Vec<f64> {
    let mut slopes = Vec::with_capacity(means.len() * means.len() / 2);
    for (at, left) in means.iter().enumerate() {
        slopes.extend(means.iter().enumerate().skip(at + 1).map(|(to, right)| (right - left) / (to - at) as f64));
    }
    slopes
}
