//! The season of a series: a profile of the day, and on top of it one of the week, of the deviation from the level.

use crate::ring::median;
use serde::{Deserialize, Serialize};

const DAY_MS: i64 = 86_400_000;
/// Slots of half an hour, and of two hours.
const DAY_SLOTS: usize = 48;
const WEEK_SLOTS: usize = 84;
/// Slots of half an hour, of the spread by the time of the day.
const SPREAD_SLOTS: usize = 48;
/// A new visit of a slot counts at least this much, so that a season may change.
const LEAST_GAIN: f64 = 0.15;

/// One profile: means by slot of a cycle.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
struct Cycle {
    means: Vec<f32>,
    visits: Vec<u8>,
    /// The slot of the newest sample, with the sum and the number of its samples in this visit.
    slot: u16,
    sum: f64,
    count: u32,
}

impl Cycle {
    fn new(slots: usize) -> Self {
        Self { means: vec![0.0; slots], visits: vec![0; slots], slot: 0, sum: 0.0, count: 0 }
    }

    /// Where a time is in the cycle, in slots.
    fn position(&self, time_ms: i64, cycle_ms: i64) -> f64 {
        time_ms.rem_euclid(cycle_ms) as f64 / cycle_ms as f64 * self.means.len() as f64
    }

    fn learn(&mut self, position: f64, value: f64, limit: f64) {
        let slot = position as u16;
        if slot != self.slot {
            self.close_visit(limit);
            self.slot = slot;
        }
        self.sum += value;
        self.count = self.count.saturating_add(1);
    }

    fn close_visit(&mut self, limit: f64) {
        let at = usize::from(self.slot);
        if let (Some(mean), Some(visits), true) = (self.means.get_mut(at), self.visits.get_mut(at), self.count > 0) {
            let found = self.sum / f64::from(self.count);
            let difference = found - f64::from(*mean);
            let cut = if *visits < 2 { difference } else { difference.clamp(-limit, limit) };
            *visits = visits.saturating_add(1);
            *mean += (cut * (1.0 / f64::from(*visits)).max(LEAST_GAIN)) as f32;
        }
        self.sum = 0.0;
        self.count = 0;
    }

    /// The mean at a position, between the middles of slots where those have several samples.
    fn at(&self, position: f64, smooth: bool) -> f64 {
        let slots = self.means.len();
        let mean = |slot: usize| self.means.get(slot % slots).map_or(0.0, |mean| f64::from(*mean));
        if !smooth {
            return mean(position as usize);
        }
        let shifted = position + slots as f64 - 0.5;
        let share = shifted.fract();
        mean(shifted as usize) * (1.0 - share) + mean(shifted as usize + 1) * share
    }

    /// True if the slots that samples fall into have been visited so many times.
    fn is_seen(&self, visits: u8) -> bool {
        let visited = self.visits.iter().filter(|count| **count > 0).count();
        let enough = self.visits.iter().filter(|count| **count >= visits).count();
        visited >= 12 && enough * 10 >= visited * 9
    }

    fn is_sound(&self, slots: usize) -> bool {
        self.means.len() == slots
            && self.visits.len() == slots
            && usize::from(self.slot) < slots
            && self.sum.is_finite()
            && self.means.iter().all(|mean| mean.is_finite())
    }
}

/// Profiles of the day and of the week, about 1 KB.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Season {
    day: Cycle,
    week: Cycle,
    /// Mean squares of residuals, and the median of their roots.
    spread: Vec<f32>,
    spread_median: f64,
    spread_slot: u16,
}

impl Default for Season {
    fn default() -> Self {
        Self {
            day: Cycle::new(DAY_SLOTS),
            week: Cycle::new(WEEK_SLOTS),
            spread: vec![0.0; SPREAD_SLOTS],
            spread_median: 0.0,
            spread_slot: 0,
        }
    }
}

impl Season {
    /// The deviation from the level that is expected at a time; 0 until two days are seen.
    pub fn at(&self, time_ms: i64, interval_ms: i64) -> f64 {
        if !self.has_day() {
            return 0.0;
        }
        let smooth = interval_ms * (DAY_SLOTS as i64) < DAY_MS;
        let day = self.day.at(self.day.position(time_ms, DAY_MS), smooth);
        let week = if self.has_week() { self.week.at(self.week.position(time_ms, 7 * DAY_MS), false) } else { 0.0 };
        day + week
    }

    /// Learns the deviation of a sample from the level. `limit` cuts the change of a slot's mean.
    pub fn learn(&mut self, time_ms: i64, deviation: f64, limit: f64) {
        let position = self.day.position(time_ms, DAY_MS);
        let rest = deviation - self.day.at(position, false);
        self.day.learn(position, deviation, limit);
        if self.has_day() {
            self.week.learn(self.week.position(time_ms, 7 * DAY_MS), rest, limit);
        }
    }

    /// The usual size of a residual at this time, relative to its median over the day; 1 until two days are seen.
    pub fn spread_at(&self, time_ms: i64) -> f64 {
        match self.spread.get(spread_slot(time_ms)) {
            Some(square) if self.has_day() && self.spread_median > 0.0 && *square > 0.0 => {
                (f64::from(square.sqrt()) / self.spread_median).clamp(0.25, 10.0)
            }
            _ => 1.0,
        }
    }

    /// Learns the size of a residual, of `samples_an_hour` such samples. The mean of squares gives weight to few large
    /// ones, such as the steps of a task that runs at a fixed time.
    pub fn learn_spread(&mut self, time_ms: i64, size: f64, samples_an_hour: f64) {
        let slot = spread_slot(time_ms);
        if let Some(square) = self.spread.get_mut(slot) {
            let samples = (samples_an_hour / 2.0).max(1.0);
            let gain = if *square == 0.0 { 1.0 } else { 1.0 / (6.0 * samples) };
            *square += ((size * size - f64::from(*square)) * gain) as f32;
        }
        if slot != usize::from(self.spread_slot) {
            self.spread_slot = slot as u16;
            let sizes = self.spread.iter().filter(|square| **square > 0.0).map(|square| f64::from(square.sqrt()));
            self.spread_median = median(&mut sizes.collect::<Vec<_>>());
        }
    }

    pub fn has_day(&self) -> bool {
        self.day.is_seen(2)
    }

    pub fn has_week(&self) -> bool {
        self.week.is_seen(2)
    }

    pub fn is_sound(&self) -> bool {
        self.day.is_sound(DAY_SLOTS)
            && self.week.is_sound(WEEK_SLOTS)
            && self.spread.len() == SPREAD_SLOTS
            && self.spread.iter().all(|size| size.is_finite() && *size >= 0.0)
            && self.spread_median.is_finite()
            && self.spread_median >= 0.0
    }
}

fn spread_slot(time_ms: i64) -> usize {
    (time_ms.rem_euclid(DAY_MS) * SPREAD_SLOTS as i64 / DAY_MS) as usize
}
