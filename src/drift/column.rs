//! The distribution of one column: its bins, the counts of the reference and of the windows, and the judgement. Pure.

use serde::{Deserialize, Serialize};

use crate::statistics::{index_of_chance, index_of_rare_chance, number, population_stability_index, share, wilson};

/// The most bounds of numbers: the least, nine between tenths, and the largest.
const EDGES_MAX: usize = 11;

/// The most values of a category that are told apart.
const VALUES_MAX: usize = 12;

/// The part of their range by which numbers may be beyond those that the bins were made of.
const RANGE_MARGIN: f32 = 0.05;

/// The longest name, in bytes.
pub const NAME_BYTES_MAX: usize = 64;

/// The corrected index from which a column has drifted. By convention in credit scoring, more than 0.25 is another
/// population, and 0.1 to 0.25 some change.
pub const INDEX_LIMIT: f64 = 0.2;

/// The index limit of a column that varies from window to window in its reference, as a multiple of that.
const NATURAL_FACTOR: f64 = 1.5;

/// The chance of a false finding in one window, over all columns together.
const FALSE_WINDOW_PROBABILITY: f64 = 0.001;

/// The share of calls without a value, with a value that the reference does not have, or beyond its range, that is a
/// change by itself.
const RATE_MARGIN: f64 = 0.03;

/// The part of a call that a column is read of.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Side {
    Input,
    Output,
}

/// One value of a column.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Reading {
    Number(f64),
    /// A class by its number, or a name by its hash.
    Value(u32),
    /// No value, or one that is not finite.
    Missing,
}

/// The classes in which readings are counted.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub enum Bins {
    /// Ascending bounds: a number counts in the first bin whose bound it does not exceed, or behind the last.
    Numbers(Vec<f32>),
    /// The values that are told apart. All others count together.
    Values(Vec<u32>),
}

impl Bins {
    /// Bins for readings like these; `None` where all are missing.
    pub fn of(readings: &[Reading]) -> Option<Self> {
        let mut values: Vec<(u32, usize)> = Vec::new();
        let mut numbers: Vec<f32> = Vec::new();
        for reading in readings {
            match *reading {
                Reading::Value(value) => match values.iter_mut().find(|(known, _)| *known == value) {
                    Some((_, count)) => *count += 1,
                    None => values.push((value, 1)),
                },
                Reading::Number(number) => numbers.push(narrow(number)),
                Reading::Missing => {}
            }
        }
        if numbers.is_empty() && values.is_empty() {
            return None;
        }
        if values.len() > numbers.len() || numbers.is_empty() {
            values.sort_by_key(|(value, count)| (std::cmp::Reverse(*count), *value));
            return Some(Self::Values(values.into_iter().take(VALUES_MAX).map(|(value, _)| value).collect()));
        }
        numbers.sort_unstable_by(f32::total_cmp);
        Some(Self::Numbers(edges(&numbers)))
    }

    /// The classes of which a larger share is a change by itself: without a value, of other values, beyond the range.
    fn rare_classes(&self) -> Vec<usize> {
        match self {
            Self::Numbers(edges) => vec![edges.len() + 1, edges.len(), 0],
            Self::Values(values) => vec![values.len() + 1, values.len()],
        }
    }

    /// The number of classes: one more for numbers behind the last bound, or for other values, and the last for
    /// readings without a value.
    pub fn classes(&self) -> usize {
        match self {
            Self::Numbers(edges) => edges.len() + 2,
            Self::Values(values) => values.len() + 2,
        }
    }

    fn class(&self, reading: Reading) -> usize {
        match (self, reading) {
            (Self::Numbers(edges), Reading::Number(number)) => {
                let number = narrow(number);
                edges.partition_point(|edge| *edge < number)
            }
            (Self::Values(values), Reading::Value(value)) => {
                values.iter().position(|known| *known == value).unwrap_or(values.len())
            }
            _ => self.classes() - 1,
        }
    }

    fn is_valid(&self) -> bool {
        match self {
            Self::Numbers(edges) => {
                (1..=EDGES_MAX).contains(&edges.len())
                    && edges.iter().all(|edge| edge.is_finite())
                    && edges.is_sorted_by(|a, b| a < b)
            }
            Self::Values(values) => (1..=VALUES_MAX).contains(&values.len()),
        }
    }
}

/// The bounds for sorted numbers, of which there is one at least: below all of them, between their tenths, and above all
/// of them. Each bound lies midway between two different numbers, so that a little noise moves no number over it.
fn edges(sorted: &[f32]) -> Vec<f32> {
    let mut different = sorted.to_vec();
    different.dedup();
    let middle = |low: f32, high: f32| low + (high - low) / 2.0;
    // A single number has a hundredth of itself on either side.
    let [least, most] = [different.first(), different.last()].map(|number| number.copied().unwrap_or_default());
    let own = (least.abs() / 100.0).max(1e-6);
    let margin = (most - least) * RANGE_MARGIN;
    let below = different.get(1).map_or(own, |next| (next - least) / 2.0).max(margin);
    let above = different.iter().rev().nth(1).map_or(own, |next| (most - next) / 2.0).max(margin);
    let between = (1..10).filter_map(|tenth| {
        let number = sorted.get((sorted.len() - 1) * tenth / 10)?;
        let next = different.get(different.partition_point(|other| other <= number))?;
        Some(middle(*number, *next))
    });
    let mut edges: Vec<f32> =
        std::iter::once(least - below).chain(between).chain([most + above]).filter(|edge| edge.is_finite()).collect();
    edges.dedup();
    if edges.is_empty() { vec![least] } else { edges }
}

/// A number as it is compared: finite in 32 bits.
#[expect(clippy::cast_possible_truncation, reason = "kept within the range before")]
fn narrow(number: f64) -> f32 {
    number.clamp(f64::from(f32::MIN), f64::from(f32::MAX)) as f32
}

/// One column of a model's calls.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Column {
    pub name: String,
    pub side: Side,
    pub bins: Bins,
    pub reference: Vec<u32>,
    /// The window that is being counted.
    pub window: Vec<u32>,
    /// The last window that was judged; all 0 before the first.
    pub last: Vec<u32>,
    /// The largest corrected index of one part of the reference against the others.
    pub natural: f32,
    /// The windows in a row that drifted.
    pub drifted: u16,
    /// True when the reference is that of the version before, which nothing is added to.
    pub is_inherited: bool,
}

/// The judgement on the last window of a column.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct ColumnJudgement {
    /// The index without the part that chance makes; at least 0.
    pub index: f64,
    pub limit: f64,
    pub is_drift: bool,
}

impl Column {
    pub fn new(name: &str, side: Side, bins: Bins) -> Self {
        let none = vec![0; bins.classes()];
        let (reference, window, last) = (none.clone(), none.clone(), none);
        Self {
            name: name.to_owned(),
            side,
            bins,
            reference,
            window,
            last,
            natural: 0.0,
            drifted: 0,
            is_inherited: false,
        }
    }

    /// Counts a reading in the present window.
    pub fn count(&mut self, reading: Reading) {
        let class = self.bins.class(reading);
        if let Some(count) = self.window.get_mut(class) {
            *count = count.saturating_add(1);
        }
    }

    /// Adds the present window to the reference, and notes how much it differs from what is there.
    pub fn learn(&mut self) {
        if total(&self.reference) > 0 {
            let apart = corrected(&self.window, &self.reference);
            #[expect(clippy::cast_possible_truncation, reason = "an index of some units")]
            let apart = apart as f32;
            self.natural = self.natural.max(apart);
        }
        for (sum, count) in self.reference.iter_mut().zip(&mut self.window) {
            *sum = sum.saturating_add(std::mem::take(count));
        }
    }

    /// Judges the last window, of a model with `columns` columns.
    pub fn judge(&self, columns: usize) -> ColumnJudgement {
        let (window, reference) = (total(&self.last), total(&self.reference));
        let limit = INDEX_LIMIT.max(f64::from(self.natural) * NATURAL_FACTOR);
        let index = corrected(&self.last, &self.reference).max(0.0);
        if window == 0 || reference == 0 {
            return ColumnJudgement { index: 0.0, limit, is_drift: false };
        }
        let probability = FALSE_WINDOW_PROBABILITY / number(columns.max(1) as u64);
        let plain = population_stability_index(&wide(&self.last), &shares(&self.reference));
        // Hysteresis: a drift that is under way ends a quarter below the limit.
        let begins = if self.drifted > 0 { limit * 0.75 } else { limit };
        let rare = index_of_rare_chance(self.bins.classes(), window, reference, probability);
        let is_drift = (index > begins && plain > rare) || self.rare_class().is_some();
        ColumnJudgement { index, limit, is_drift }
    }

    /// The class of readings without a value, of new values, or beyond the range that has grown by more than chance.
    fn rare_class(&self) -> Option<usize> {
        let (window, reference) = (total(&self.last), total(&self.reference));
        let of = |counts: &[u32], class: usize| counts.get(class).copied().map_or(0, u64::from);
        let grown = |class: &usize| {
            wilson(of(&self.last, *class), window).0 > wilson(of(&self.reference, *class), reference).1 + RATE_MARGIN
        };
        self.bins.rare_classes().into_iter().find(grown)
    }

    /// The change, in words: "values above 14 are 31 % of calls, 4 % in the reference".
    pub fn change(&self) -> String {
        let (window, reference) = (total(&self.last), total(&self.reference));
        let of = |counts: &[u32], class: usize| counts.get(class).copied().map_or(0, u64::from);
        let percent = |part: u64, all: u64| format!("{:.0} %", share(part, all) * 100.0);
        let compare = |what: &str, now: u64, before: u64| {
            format!("{what} {} of calls, {} in the reference", percent(now, window), percent(before, reference))
        };
        // Values beyond the range are told with their bound, below.
        let is_told = |class: &usize| matches!(self.bins, Bins::Values(_)) || class + 1 == self.bins.classes();
        if let Some(class) = self.rare_class().filter(is_told) {
            let what = match (class + 1 == self.bins.classes(), self.side) {
                (true, Side::Input) => "it has no value in",
                (true, Side::Output) => "it has no finite value in",
                (false, _) => "new or rare values are",
            };
            return compare(what, of(&self.last, class), of(&self.reference, class));
        }
        let gain = |now: u64, before: u64| share(now, window) - share(before, reference);
        match &self.bins {
            Bins::Values(values) => {
                let apart = |class: &usize| gain(of(&self.last, *class), of(&self.reference, *class)).abs();
                let class = (0..=values.len()).max_by(|a, b| apart(a).total_cmp(&apart(b))).unwrap_or(0);
                let what = match (values.get(class), self.side) {
                    (Some(value), Side::Output) => format!("class {value} is"),
                    (Some(_), Side::Input) => "one of its values is".to_owned(),
                    (None, _) => "rare values are".to_owned(),
                };
                compare(&what, of(&self.last, class), of(&self.reference, class))
            }
            Bins::Numbers(edges) => {
                // The bound at which the distributions are farthest apart, as in the test of Kolmogorov and Smirnov.
                let below = |counts: &[u32], at: usize| counts.iter().take(at + 1).copied().map(u64::from).sum::<u64>();
                let apart = |at: &usize| gain(below(&self.last, *at), below(&self.reference, *at));
                let at = (0..edges.len()).max_by(|a, b| apart(a).abs().total_cmp(&apart(b).abs())).unwrap_or(0);
                let edge = edges.get(at).copied().unwrap_or_default();
                let (now, before) = (below(&self.last, at), below(&self.reference, at));
                if apart(&at) > 0.0 {
                    compare(&format!("values up to {edge} are"), now, before)
                } else {
                    let missing = self.bins.classes() - 1;
                    let above = |counts: &[u32], all, below| all - below - of(counts, missing);
                    let now = above(&self.last, window, now);
                    compare(&format!("values above {edge} are"), now, above(&self.reference, reference, before))
                }
            }
        }
    }

    /// Makes the last window, and the present one, the reference.
    pub fn accept(&mut self) {
        for ((reference, last), window) in self.reference.iter_mut().zip(&mut self.last).zip(&mut self.window) {
            *reference = std::mem::take(last).saturating_add(std::mem::take(window));
        }
        (self.natural, self.drifted, self.is_inherited) = (0.0, 0, false);
    }

    /// True where all counts fit the bins.
    pub fn is_valid(&self) -> bool {
        let classes = self.bins.classes();
        self.bins.is_valid()
            && !self.name.is_empty()
            && self.name.len() <= NAME_BYTES_MAX
            && self.natural.is_finite()
            && self.natural >= 0.0
            && [&self.reference, &self.window, &self.last].iter().all(|counts| counts.len() == classes)
    }
}

/// The sum of counts.
pub fn total(counts: &[u32]) -> u64 {
    counts.iter().copied().map(u64::from).sum()
}

fn wide(counts: &[u32]) -> Vec<u64> {
    counts.iter().copied().map(u64::from).collect()
}

fn shares(counts: &[u32]) -> Vec<f64> {
    let all = total(counts);
    counts.iter().map(|count| share(u64::from(*count), all)).collect()
}

/// The population stability index without the part that chance makes of samples of these sizes.
fn corrected(window: &[u32], reference: &[u32]) -> f64 {
    let used = window.iter().zip(reference).filter(|(now, before)| **now + **before > 0).count();
    population_stability_index(&wide(window), &shares(reference))
        - index_of_chance(used, total(window), total(reference))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn column(reference: &[f64], window: &[f64]) -> Column {
        let readings: Vec<_> = reference.iter().map(|number| Reading::Number(*number)).collect();
        let mut column = Column::new("alcohol", Side::Input, Bins::of(&readings).unwrap());
        for reading in &readings {
            column.count(*reading);
        }
        column.learn();
        for number in window {
            column.count(Reading::Number(*number));
        }
        std::mem::swap(&mut column.last, &mut column.window);
        column
    }

    fn ramp(from: f64, to: f64, count: u32) -> Vec<f64> {
        (0..count).map(|at| from + (to - from) * f64::from(at) / f64::from(count)).collect()
    }

    #[test]
    fn a_shift_is_a_drift_and_says_where() {
        let column = column(&ramp(10.0, 15.0, 500), &ramp(12.0, 17.0, 300));
        assert!(column.judge(13).is_drift);
        let change = column.change();
        assert!(change.starts_with("values above ") && change.ends_with(" in the reference"), "{change}");
    }

    #[test]
    fn the_same_population_is_no_drift_and_a_large_share_without_a_value_is() {
        let mut column = column(&ramp(10.0, 15.0, 500), &ramp(10.0, 15.0, 300));
        let judged = column.judge(13);
        assert!(!judged.is_drift && judged.index < 0.02, "{judged:?}");
        let missing = column.last.len() - 1;
        column.last[missing] = 30;
        assert!(column.judge(13).is_drift);
        assert_eq!(column.change(), "it has no value in 9 % of calls, 0 % in the reference");
    }

    #[test]
    fn a_column_that_varies_in_its_reference_must_vary_more() {
        let mut column = column(&ramp(10.0, 15.0, 500), &ramp(10.0, 12.5, 300));
        assert!(column.judge(13).is_drift);
        column.natural = 20.0;
        assert!(!column.judge(13).is_drift);
    }

    #[test]
    fn a_new_value_of_a_category_is_found_and_an_accepted_window_is_the_reference() {
        let readings: Vec<_> = (0..300).map(|at| Reading::Value(at % 3)).collect();
        let mut column = Column::new("colour", Side::Input, Bins::of(&readings).unwrap());
        for reading in &readings {
            column.count(*reading);
        }
        column.learn();
        for reading in &readings {
            column.count(*reading);
        }
        (0..30).for_each(|_| column.count(Reading::Value(77)));
        std::mem::swap(&mut column.last, &mut column.window);
        assert!(column.judge(1).is_drift);
        assert_eq!(column.change(), "new or rare values are 9 % of calls, 0 % in the reference");
        let last = column.last.clone();
        column.accept();
        column.last = last;
        assert!(!column.judge(1).is_drift);
    }
}
