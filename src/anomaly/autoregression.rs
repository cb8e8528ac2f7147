//! A linear prediction from the last few deviations, fitted by recursive least squares with forgetting.

use serde::{Deserialize, Serialize};

pub const ORDER: usize = 6;
const FORGETTING: f64 = 0.9985;
/// Errors beyond this many times their mean size are cut before they change the weights.
const CUT: f64 = 3.0;

type Vector = [f64; ORDER];

/// Weights, their inverse covariance and the deviations that they apply to, about 200 bytes.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
pub struct Autoregression {
    weights: Vector,
    inverse: [[f32; ORDER]; ORDER],
    /// The newest first.
    past: Vector,
    mean_error: f64,
    count: u32,
}

impl Autoregression {
    /// The next deviation, once enough are seen.
    pub fn predict(&self) -> Option<f64> {
        (self.count > 64).then(|| dot(&self.weights, &self.past))
    }

    /// Learns the next deviation. `scale` is the usual size of deviations.
    pub fn learn(&mut self, deviation: f64, scale: f64) {
        if self.count == 32 {
            self.restart(scale);
        }
        if self.count >= 32 {
            let error = deviation - dot(&self.weights, &self.past);
            let cut = if self.count < 64 { error } else { error.clamp(-CUT * self.mean_error, CUT * self.mean_error) };
            self.mean_error += (cut.abs() - self.mean_error) / f64::from(self.count - 31).min(300.0);
            self.update(cut, scale);
        }
        self.count = self.count.saturating_add(1);
        self.remember(deviation);
    }

    /// Takes a deviation as the newest without learning from it.
    pub fn remember(&mut self, deviation: f64) {
        self.past.rotate_right(1);
        self.past[0] = deviation;
    }

    fn update(&mut self, error: f64, scale: f64) {
        let product = self.inverse.map(|row| row.iter().zip(&self.past).map(|(a, b)| f64::from(*a) * b).sum::<f64>());
        let denominator = FORGETTING + dot(&product, &self.past);
        if !(denominator.is_finite() && denominator > 0.0) {
            return self.restart(scale);
        }
        for (weight, gain) in self.weights.iter_mut().zip(&product) {
            *weight += gain / denominator * error;
        }
        for (row, left) in self.inverse.iter_mut().zip(&product) {
            for (cell, right) in row.iter_mut().zip(&product) {
                *cell = ((f64::from(*cell) - left * right / denominator) / FORGETTING) as f32;
            }
        }

        let trace: f64 = self.inverse.iter().enumerate().filter_map(|(i, row)| row.get(i)).map(|c| f64::from(*c)).sum();
        let is_sane = self.weights.iter().all(|weight| weight.is_finite() && weight.abs() < 20.0);
        if !is_sane || !trace.is_finite() || trace <= 0.0 || trace * scale * scale > 1e5 {
            self.restart(scale);
        }
    }

    fn restart(&mut self, scale: f64) {
        let start = (10.0 / (scale * scale)).clamp(1e-30, 1e30) as f32;
        self.inverse = [[0.0; ORDER]; ORDER];
        for (at, row) in self.inverse.iter_mut().enumerate() {
            if let Some(cell) = row.get_mut(at) {
                *cell = start;
            }
        }
        if !self.weights.iter().all(|weight| weight.is_finite() && weight.abs() < 20.0) {
            self.weights = [0.0; ORDER];
        }
    }

    pub fn is_sound(&self) -> bool {
        let numbers = self.weights.iter().chain(&self.past).chain([&self.mean_error]);
        numbers.copied().all(|number| number.is_finite() && number.abs() < 1e32)
            && self.mean_error >= 0.0
            && self.inverse.iter().flatten().all(|number| number.is_finite())
    }
}

fn dot(left: &Vector, right: &Vector) -> f64 {
    left.iter().zip(right).map(|(a, b)| a * b).sum()
}
