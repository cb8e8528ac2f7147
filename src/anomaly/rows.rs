//! The normal of rows with several features, such as the windows of a machine: each feature by itself, and all together by
//! the Mahalanobis distance with a shrunk covariance. Features may be missing.

use crate::codec::{self, Sound, StateError};
use crate::event::Band;
use crate::matrix;
use crate::statistic::{Judged, Statistic};
use serde::{Deserialize, Serialize};
use std::ops::RangeInclusive;

pub const FEATURES_MAX: usize = 32;
/// The bounds of the probability of a false alarm by one row.
pub const PROBABILITIES: RangeInclusive<f64> = 1e-7..=0.05;
/// Rows before the first is judged, and more for each feature.
const LEARNING_ROWS: u32 = 60;
const LEARNING_ROWS_A_FEATURE: u32 = 4;
/// A feature counts for the covariance as no more than so many times its usual size.
const CUT: f64 = 4.0;
const MEMORY: f64 = 5000.0;
/// The covariance is drawn towards independent features as if by so many rows, and never less than this share.
const PRIOR_ROWS: f64 = 20.0;
const LEAST_SHRINKING: f64 = 0.05;
const FEATURE_SHARE: f64 = 0.5;
const JOINT_SHARE: f64 = 0.4;
const FEATURE_FLOOR: f64 = 5.0;
const JOINT_FLOOR: f64 = 2.2;
/// Rows over which the usual distance is learnt: the covariance still changes during the first.
const JOINT_MEMORY: f64 = 1500.0;
/// An unusual row begins an event, and this many normal rows in a row end it.
const CALM: f64 = 0.7;
const CALM_ROWS: u8 = 3;
const LARGEST_VALUE: f64 = 1e16;

#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
struct Feature {
    middle: f64,
    count: u32,
    /// Distance from the middle.
    distance: Statistic,
}

/// Setting or row that does not fit a profile.
#[derive(Debug, Clone, Copy, PartialEq, thiserror::Error)]
pub enum RowError {
    #[error("a profile has from 1 to {FEATURES_MAX} features")]
    Features,
    #[error("the row has {found} features, and the profile {expected}")]
    Length { found: usize, expected: usize },
    #[error("a probability of a false alarm is from 1e-7 to 0.05")]
    Probability,
}

/// A feature of an unusual row.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub struct Explanation {
    /// Place of the feature in the row.
    pub feature: usize,
    /// Its part of the score, from 0 to 1.
    pub share: f64,
    pub value: f64,
    pub band: Band,
}

/// The judgement of one row.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct RowVerdict {
    /// At least 1 where the row is unusual. 0 while learning.
    pub score: f64,
    /// Rows that are still needed before one is judged.
    pub needed: u32,
    pub is_unusual: bool,
    /// The features that explain the score, the largest share first; at most five. Empty where the row is normal.
    pub explanations: Vec<Explanation>,
}

/// The normal of rows, as learnt: at most 22 KB for 32 features.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct RowProfile {
    probability: f64,
    features: Vec<Feature>,
    /// The upper triangle of the covariance of the features in units of their size, row by row.
    covariance: Vec<f32>,
    joint: Statistic,
    rows: u32,
    is_unusual: bool,
    calm: u8,
    /// Distances of the last unusual row, for what a person calls normal.
    last: Vec<f32>,
    last_joint: f64,
}

impl RowProfile {
    /// `probability`: of a false alarm by one row, such as 1 in the rows of a week.
    pub fn new(features: usize, probability: f64) -> Result<Self, RowError> {
        if !(1..=FEATURES_MAX).contains(&features) {
            return Err(RowError::Features);
        }
        if !PROBABILITIES.contains(&probability) {
            return Err(RowError::Probability);
        }
        Ok(Self {
            probability,
            features: vec![Feature::default(); features],
            covariance: vec![0.0; features * (features + 1) / 2],
            joint: Statistic::default(),
            rows: 0,
            is_unusual: false,
            calm: 0,
            last: Vec::new(),
            last_joint: 0.0,
        })
    }

    /// Judges a row, and learns it. A missing or unusable value is None, NaN or infinite.
    pub fn observe(&mut self, row: &[Option<f64>]) -> Result<RowVerdict, RowError> {
        if row.len() != self.features.len() {
            return Err(RowError::Length { found: row.len(), expected: self.features.len() });
        }
        let usable = |value: &Option<f64>| value.filter(|value| value.is_finite() && value.abs() <= LARGEST_VALUE);
        let row: Vec<Option<f64>> = row.iter().map(usable).collect();
        let judged: Vec<Option<Judged>> =
            self.features.iter().zip(&row).map(|(feature, value)| value.map(|value| feature.judge(value))).collect();
        let sizes: Vec<Option<f64>> = judged.iter().map(|one| one.map(|one| one.size.clamp(-12.0, 12.0))).collect();
        let solved = self.solve(&sizes);
        let present = sizes.iter().flatten().count().max(1) as f64;
        let distance = (solved.iter().map(|(_, part)| part).sum::<f64>().max(0.0) / present).sqrt();
        let joint = raise(self.joint.judge(distance, 0.0), JOINT_FLOOR, self.joint.count());

        let needed = self.needed();
        let single = judged.iter().flatten().map(|one| one.ratio()).fold(0.0, f64::max);
        let score = if needed > 0 { 0.0 } else { single.max(joint.ratio()) };
        self.turn(score);
        let explanations =
            if score >= 1.0 { self.explain(&row, &judged, &solved, single >= joint.ratio()) } else { Vec::new() };
        if score >= 1.0 {
            self.last = judged.iter().map(|one| one.map_or(0.0, |one| one.size as f32)).collect();
            self.last_joint = joint.size;
        }

        self.learn(&row, &judged, joint, distance, score);
        Ok(RowVerdict { score, needed, is_unusual: self.is_unusual, explanations })
    }

    /// A person says that the last unusual row is normal. False where there was none.
    pub fn teach_normal(&mut self) -> bool {
        if self.last.is_empty() {
            return false;
        }
        for (feature, size) in self.features.iter_mut().zip(&self.last) {
            if f64::from(*size).abs() > FEATURE_FLOOR {
                feature.distance.teach(f64::from(*size));
            }
        }
        self.joint.teach(self.last_joint);
        self.is_unusual = false;
        true
    }

    /// The stored form of the state.
    pub fn encode(&self) -> Vec<u8> {
        codec::encode(self)
    }

    /// Reads what `encode` wrote.
    pub fn decode(bytes: &[u8]) -> Result<Self, StateError> {
        codec::decode(bytes)
    }

    pub fn features(&self) -> usize {
        self.features.len()
    }

    /// Rows that were learnt.
    pub fn rows(&self) -> u32 {
        self.rows
    }

    /// Rows that are still needed before one is judged.
    pub fn needed(&self) -> u32 {
        (LEARNING_ROWS + LEARNING_ROWS_A_FEATURE * self.features.len() as u32).saturating_sub(self.rows)
    }

    /// An unusual row was seen, and the normal rows that end it were not.
    pub fn is_unusual(&self) -> bool {
        self.is_unusual
    }

    /// The values that are usual of each feature, in order. None of a feature before enough of it was seen.
    pub fn bands(&self) -> impl Iterator<Item = Option<Band>> {
        let is_learnt = self.needed() == 0;
        self.features
            .iter()
            .map(move |feature| Some(feature.band()).filter(|_| is_learnt && feature.count >= LEARNING_ROWS))
    }

    fn turn(&mut self, score: f64) {
        self.calm = if score < CALM { self.calm.saturating_add(1) } else { 0 };
        if score >= 1.0 {
            self.is_unusual = true;
        } else if self.calm >= CALM_ROWS {
            self.is_unusual = false;
        }
    }

    /// Parts of the squared Mahalanobis distance of the features that are there, with their places.
    fn solve(&self, sizes: &[Option<f64>]) -> Vec<(usize, f64)> {
        let present: Vec<(usize, f64)> =
            sizes.iter().enumerate().filter_map(|(at, size)| Some((at, (*size)?))).collect();
        let rows = f64::from(self.rows).min(MEMORY);
        let shrinking = (PRIOR_ROWS / (PRIOR_ROWS + rows)).max(LEAST_SHRINKING);
        let cell = |left: usize, right: usize| {
            let found = self.covariance.get(self.place(left, right)).map_or(0.0, |value| f64::from(*value));
            if left == right { found.max(0.2) * (1.0 - shrinking) + 1.5 * shrinking } else { found * (1.0 - shrinking) }
        };
        let matrix: Vec<Vec<f64>> =
            present.iter().map(|(left, _)| present.iter().map(|(right, _)| cell(*left, *right)).collect()).collect();
        let right: Vec<f64> = present.iter().map(|(_, size)| *size).collect();
        let solution = matrix::solve(&matrix, &right).unwrap_or_else(|| right.clone());
        present.iter().zip(solution).map(|((at, size), value)| (*at, size * value)).collect()
    }

    fn place(&self, left: usize, right: usize) -> usize {
        let (row, column) = (left.min(right), left.max(right));
        row * self.features.len() - row * (row + 1) / 2 + column
    }

    fn explain(
        &self,
        row: &[Option<f64>],
        judged: &[Option<Judged>],
        joint: &[(usize, f64)],
        is_single: bool,
    ) -> Vec<Explanation> {
        let ratio = |at: usize| judged.get(at).copied().flatten().map_or(0.0, Judged::ratio);
        let mut parts: Vec<(usize, f64)> = if is_single {
            joint.iter().map(|(at, _)| (*at, ratio(*at).powi(2))).collect()
        } else {
            joint.iter().map(|(at, part)| (*at, part.max(0.0))).collect()
        };
        let sum = parts.iter().map(|(_, part)| part).sum::<f64>().max(1e-12);
        parts.sort_by(|left, right| right.1.total_cmp(&left.1));
        let explained = parts.into_iter().take(5).filter(|(_, part)| part / sum >= 0.05);
        explained
            .filter_map(|(at, part)| {
                let feature = self.features.get(at)?;
                let value = row.get(at).copied().flatten()?;
                Some(Explanation { feature: at, share: part / sum, value, band: feature.band() })
            })
            .collect()
    }

    fn learn(&mut self, row: &[Option<f64>], judged: &[Option<Judged>], joint: Judged, distance: f64, score: f64) {
        self.rows = self.rows.saturating_add(1);
        // A frequent row is normal at last, so an unusual row is learnt, too; its values are cut, and it does not change
        // the covariance.
        let p = self.probability / 2.0 * FEATURE_SHARE / self.features.len() as f64;
        for (feature, value) in self.features.iter_mut().zip(row) {
            if let Some(value) = value {
                feature.learn(*value, p);
            }
        }
        if self.rows > LEARNING_ROWS / 2 {
            self.joint.learn(distance, 0.0, joint.threshold, JOINT_MEMORY, self.probability * JOINT_SHARE);
        }
        if score < 1.0 && self.rows > 20 {
            let gain = (1.0 / f64::from(self.rows - 20)).max(1.0 / MEMORY);
            let sizes: Vec<_> = judged.iter().map(|one| one.map(|one| one.size.clamp(-CUT, CUT))).collect();
            for (left, first) in sizes.iter().enumerate() {
                for (right, second) in sizes.iter().enumerate().skip(left) {
                    let place = self.place(left, right);
                    if let (Some(first), Some(second), Some(cell)) = (first, second, self.covariance.get_mut(place)) {
                        *cell += ((first * second - f64::from(*cell)) * gain) as f32;
                    }
                }
            }
        }
    }
}

impl Feature {
    fn floor(&self) -> f64 {
        1e-6 * self.middle.abs().max(1e-6)
    }

    fn judge(&self, value: f64) -> Judged {
        raise(self.distance.judge(value - self.middle, self.floor()), FEATURE_FLOOR, self.distance.count())
    }

    fn learn(&mut self, value: f64, probability: f64) {
        let distance = value - self.middle;
        let scale = self.distance.scale(self.floor());
        self.count = self.count.saturating_add(1);
        let cut = if self.count < 20 { distance } else { distance.clamp(-3.0 * scale, 3.0 * scale) };
        self.middle += cut / f64::from(self.count).min(MEMORY);
        if self.count > 1 {
            let threshold = self.distance.threshold(distance >= 0.0);
            self.distance.learn(distance, self.floor(), threshold, MEMORY, probability);
        }
    }

    fn band(&self) -> Band {
        let scale = self.distance.scale(self.floor());
        let side = |above| self.distance.threshold(above).max(FEATURE_FLOOR) * scale;
        Band { low: self.middle - side(false), high: self.middle + side(true) }
    }
}

fn raise(judged: Judged, floor: f64, count: u32) -> Judged {
    let youth = 1.0 + 3.0 / f64::from(count.max(1)).sqrt();
    Judged { threshold: judged.threshold.max(floor) * youth, ..judged }
}

impl Sound for RowProfile {
    fn is_sound(&self) -> bool {
        let count = self.features.len();
        (1..=FEATURES_MAX).contains(&count)
            && PROBABILITIES.contains(&self.probability)
            && self
                .features
                .iter()
                .all(|one| one.middle.is_finite() && one.middle.abs() < 1e31 && one.distance.is_sound())
            && self.covariance.len() == count * (count + 1) / 2
            && self.covariance.iter().all(|cell| cell.is_finite() && cell.abs() < 1e6)
            && self.joint.is_sound()
            && (self.last.is_empty() || self.last.len() == count)
            && self.last.iter().all(|size| size.is_finite())
            && self.last_joint.is_finite()
    }
}
