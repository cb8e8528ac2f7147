//! The watch on one version of a model: it learns its reference, then judges window after window. Pure: the time is
//! passed in.
//!
//! The first window gives the bins, the next ones the counts of the reference, then windows are judged. A window closes
//! when it is as long as the settings say *and* has enough calls; with few calls it lasts longer.
//!
//! A row that is sent again and again counts as often as other rows may: with `D` different rows among those that the
//! bins were made of, one row has at most the share `16 / D` of a window.

use std::hash::{DefaultHasher, Hash, Hasher};

use serde::{Deserialize, Serialize};

use crate::column::{Bins, Column, ColumnJudgement, NAME_BYTES_MAX, Reading, Side};
use crate::statistics::number;

/// The most columns of a model; further ones are not watched.
pub const COLUMNS_MAX: usize = 48;

/// The readings of a column that its bins are made of. They are in memory only.
const BIN_READINGS_MAX: usize = 128;

/// The counters of rows in a window. Rows that share one count together, which matters little: a row may have a part of
/// a window that is far larger than that of a counter.
const ROW_COUNTERS: usize = 1024;

/// The most different rows that are told apart.
const DISTINCT_ROWS_MAX: usize = 512;

/// Distinct rows up to which one may be all of a window.
const COMMON_ROWS: f64 = 16.0;

/// A row counts as often as this in any case.
const REPETITIONS_MIN: u64 = 3;

/// The lengths by which a version is watched.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct WatchSettings {
    /// The least length of a window.
    pub window_ms: u64,
    /// The fewest calls of a window.
    pub calls_min: u64,
    /// The windows of which the reference is made, with that of the bins.
    pub learning_windows: u32,
    /// The windows in a row that must drift.
    pub persistence: u32,
}

/// The origin of a reference.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ReferenceOrigin {
    /// The first windows of this version.
    Learnt,
    /// The inputs are those of the version before; the outputs are of this version.
    Inherited,
    /// An operator took a window for normal.
    Accepted,
}

impl ReferenceOrigin {
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Learnt => "learnt",
            Self::Inherited => "inherited",
            Self::Accepted => "accepted",
        }
    }
}

/// A reading with its column.
#[derive(Debug, Clone, PartialEq)]
pub struct ColumnReading {
    pub name: String,
    pub side: Side,
    pub reading: Reading,
}

/// The state that is stored.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
pub struct WatchState {
    pub columns: Vec<Column>,
    /// The windows that are in the reference, with that of the bins.
    pub learnt: u32,
    /// Set once the reference is fixed: the time in milliseconds since the Unix epoch.
    pub fixed: Option<(u64, ReferenceOrigin)>,
    /// The start and the calls of the present window.
    pub from_ms: u64,
    pub calls: u64,
    /// The different rows among those that the bins were made of.
    pub distinct: u16,
    /// The calls of the last window that was judged.
    pub judged_calls: u64,
}

/// The watch on one version.
#[derive(Debug)]
pub struct VersionWatch {
    settings: WatchSettings,
    state: WatchState,
    /// The readings for the bins, by columns.
    readings: Vec<(String, Side, Vec<Reading>)>,
    /// The count of each row in this window, by its hash.
    rows: Vec<u32>,
    /// The inputs of the version before, which replace those that would be learnt.
    inherited: Vec<Column>,
    seen: u64,
}

/// The result of a call or of a moment.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum WatchChange {
    Nothing,
    /// A window was added to the reference, or judged.
    Closed,
    /// The reference is complete.
    Fixed(ReferenceOrigin),
}

impl VersionWatch {
    /// A watch that begins now. `before` is the state of an earlier version: its reference of inputs is taken over
    /// where the inputs are the same.
    pub fn new(settings: WatchSettings, before: Option<&WatchState>, now_ms: u64) -> Self {
        let before = before.filter(|before| before.fixed.is_some());
        let columns = before.map(|before| before.columns.as_slice()).unwrap_or_default();
        let inherited = columns.iter().filter(|column| column.side == Side::Input).cloned().collect();
        let state = WatchState { from_ms: now_ms, ..WatchState::default() };
        Self { settings, state, readings: Vec::new(), rows: vec![0; ROW_COUNTERS], inherited, seen: 0 }
    }

    /// The watch as it was stored, with its bins.
    pub fn restored(settings: WatchSettings, state: WatchState) -> Self {
        Self { settings, state, readings: Vec::new(), rows: vec![0; ROW_COUNTERS], inherited: Vec::new(), seen: 0 }
    }

    pub fn state(&self) -> &WatchState {
        &self.state
    }

    /// Counts one row of a call.
    pub fn observe(&mut self, row: &[ColumnReading], now_ms: u64) -> WatchChange {
        let change = self.tick(now_ms);
        let repeated = self.rows_like(row);
        self.seen += 1;
        if repeated >= self.repetitions_max() {
            return change;
        }
        self.state.calls += 1;
        if self.state.columns.is_empty() {
            self.keep_readings(row);
            return change;
        }
        for (at, reading) in row.iter().enumerate() {
            let is_it = |column: &Column| column.name == reading.name && column.side == reading.side;
            // Rows have their columns in one order, so the place is nearly always right.
            let place = match self.state.columns.get(at) {
                Some(column) if is_it(column) => Some(at),
                _ => self.state.columns.iter().position(is_it),
            };
            if let Some(column) = place.and_then(|place| self.state.columns.get_mut(place)) {
                column.count(reading.reading);
            }
        }
        change
    }

    /// The number of earlier rows of this window with the same inputs.
    fn rows_like(&mut self, row: &[ColumnReading]) -> u64 {
        let mut hasher = DefaultHasher::new();
        for reading in row.iter().filter(|reading| reading.side == Side::Input) {
            match reading.reading {
                Reading::Number(number) => number.to_bits().hash(&mut hasher),
                Reading::Value(value) => value.hash(&mut hasher),
                Reading::Missing => u64::MAX.hash(&mut hasher),
            }
        }
        let at = usize::try_from(hasher.finish() % ROW_COUNTERS as u64).unwrap_or(0);
        let Some(count) = self.rows.get_mut(at) else { return 0 };
        *count = count.saturating_add(1);
        u64::from(*count - 1)
    }

    fn repetitions_max(&self) -> u64 {
        // Before the bins are made, nobody knows whether rows are often equal.
        let distinct =
            if self.state.columns.is_empty() { DISTINCT_ROWS_MAX as u64 } else { self.state.distinct.into() };
        let part = COMMON_ROWS / number(distinct.max(1));
        if part >= 1.0 {
            return u64::MAX;
        }
        #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "a part of a count")]
        let of_window = (number(self.state.calls.max(self.settings.calls_min)) * part) as u64;
        of_window.max(REPETITIONS_MIN)
    }

    /// Keeps readings for the bins: of more rows than it keeps, each has the same chance.
    fn keep_readings(&mut self, row: &[ColumnReading]) {
        for reading in row {
            let has_room = self.readings.len() < COLUMNS_MAX && reading.name.len() <= NAME_BYTES_MAX;
            let known = self.readings.iter_mut().find(|(name, side, _)| *name == reading.name && *side == reading.side);
            match known {
                Some((_, _, kept)) if kept.len() < BIN_READINGS_MAX => kept.push(reading.reading),
                Some((_, _, kept)) => {
                    let mut hasher = DefaultHasher::new();
                    (self.state.calls, &reading.name).hash(&mut hasher);
                    let place = usize::try_from(hasher.finish() % self.state.calls.max(1)).unwrap_or(usize::MAX);
                    if let Some(kept) = kept.get_mut(place) {
                        *kept = reading.reading;
                    }
                }
                None if has_room => {
                    self.readings.push((reading.name.clone(), reading.side, vec![reading.reading]));
                }
                None => {}
            }
        }
    }

    /// Closes the window if it is over.
    pub fn tick(&mut self, now_ms: u64) -> WatchChange {
        let WatchSettings { window_ms, calls_min, learning_windows, .. } = self.settings;
        // Many equal rows make no bins, and still a window.
        let calls = if self.state.columns.is_empty() { self.seen } else { self.state.calls };
        if calls < calls_min || now_ms.saturating_sub(self.state.from_ms) < window_ms {
            return WatchChange::Nothing;
        }
        let change = if self.state.columns.is_empty() {
            self.make_bins();
            WatchChange::Closed
        } else if self.state.fixed.is_none() {
            self.state.columns.iter_mut().filter(|column| !column.is_inherited).for_each(Column::learn);
            self.state.learnt += 1;
            if self.state.learnt >= learning_windows.max(2) {
                let is_inherited = self.state.columns.iter().any(|column| column.is_inherited);
                let origin = if is_inherited { ReferenceOrigin::Inherited } else { ReferenceOrigin::Learnt };
                self.state.fixed = Some((now_ms, origin));
                WatchChange::Fixed(origin)
            } else {
                WatchChange::Closed
            }
        } else {
            self.judge();
            WatchChange::Closed
        };
        for column in &mut self.state.columns {
            column.window.iter_mut().for_each(|count| *count = 0);
        }
        (self.state.from_ms, self.state.calls, self.seen) = (now_ms, 0, 0);
        self.rows.fill(0);
        change
    }

    fn make_bins(&mut self) {
        let readings = std::mem::take(&mut self.readings);
        let made: Vec<Column> = (readings.iter())
            .filter_map(|(name, side, readings)| Some(Column::new(name, *side, Bins::of(readings)?)))
            .collect();
        let inputs = |columns: &[Column]| {
            columns.iter().filter(|column| column.side == Side::Input).map(|column| column.name.clone()).collect()
        };
        let (new, before): (Vec<String>, Vec<String>) = (inputs(&made), inputs(&self.inherited));
        if new != before {
            self.inherited.clear();
        }
        let inherited = |column: Column| {
            let found = self.inherited.iter().find(|before| before.name == column.name && before.side == column.side);
            let taken = found.map(|before| {
                let none = vec![0; before.bins.classes()];
                Column { window: none.clone(), last: none, drifted: 0, is_inherited: true, ..before.clone() }
            });
            taken.unwrap_or(column)
        };
        self.state.columns = made.into_iter().map(inherited).collect();
        self.inherited.clear();
        self.state.distinct =
            u16::try_from(self.rows.iter().filter(|count| **count > 0).count().min(DISTINCT_ROWS_MAX))
                .unwrap_or(u16::MAX);
        self.state.learnt = u32::from(!self.state.columns.is_empty());
    }

    fn judge(&mut self) {
        let columns = self.state.columns.len();
        for column in &mut self.state.columns {
            std::mem::swap(&mut column.last, &mut column.window);
            column.drifted = if column.judge(columns).is_drift { column.drifted.saturating_add(1) } else { 0 };
        }
        self.state.judged_calls = self.state.calls;
    }

    /// Makes the last window and the present one the reference. False where there is none with a call.
    pub fn accept(&mut self, now_ms: u64) -> bool {
        if self.state.columns.is_empty() || self.state.judged_calls + self.state.calls == 0 {
            return false;
        }
        self.state.columns.iter_mut().for_each(Column::accept);
        self.state.fixed = Some((now_ms, ReferenceOrigin::Accepted));
        (self.state.from_ms, self.state.calls, self.state.judged_calls) = (now_ms, 0, 0);
        self.rows.fill(0);
        true
    }

    /// The columns with their judgements, and those that drift for long enough.
    pub fn judgements(&self) -> impl Iterator<Item = (&Column, ColumnJudgement, bool)> {
        let columns = self.state.columns.len();
        let lasts = |column: &Column| u32::from(column.drifted) >= self.settings.persistence.max(1);
        self.state.columns.iter().map(move |column| (column, column.judge(columns), lasts(column)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SETTINGS: WatchSettings =
        WatchSettings { window_ms: 1_000, calls_min: 200, learning_windows: 3, persistence: 2 };

    /// Numbers that look random, 0 to 1.
    fn noise(seed: u64) -> f64 {
        let mut hasher = DefaultHasher::new();
        seed.hash(&mut hasher);
        number(hasher.finish() >> 11) / number(1 << 53)
    }

    fn row(seed: u64, shift: f64) -> Vec<ColumnReading> {
        let reading =
            |name: &str, side, number| ColumnReading { name: name.into(), side, reading: Reading::Number(number) };
        vec![
            reading("a", Side::Input, noise(seed) + shift),
            reading("b", Side::Input, noise(seed + 1_000_000)),
            reading("y", Side::Output, noise(seed + 2_000_000)),
        ]
    }

    /// Windows of 300 calls; returns the changes at their ends.
    fn run(watch: &mut VersionWatch, windows: std::ops::Range<u64>, shift: f64) -> Vec<WatchChange> {
        windows
            .map(|window| {
                for call in 0..300 {
                    watch.observe(&row(window * 300 + call, shift), window * 1_000);
                }
                watch.tick((window + 1) * 1_000)
            })
            .collect()
    }

    fn drifting(watch: &VersionWatch) -> Vec<&str> {
        watch.judgements().filter(|(_, _, lasts)| *lasts).map(|(column, ..)| column.name.as_str()).collect()
    }

    #[test]
    fn a_lasting_shift_is_found_in_its_column_and_ends_when_it_is_accepted() {
        let mut watch = VersionWatch::new(SETTINGS, None, 0);
        let learnt = run(&mut watch, 0..3, 0.0);
        assert_eq!(learnt[2], WatchChange::Fixed(ReferenceOrigin::Learnt));
        run(&mut watch, 3..6, 0.0);
        assert!(drifting(&watch).is_empty());
        run(&mut watch, 6..7, 0.5);
        assert!(drifting(&watch).is_empty(), "one window is not lasting");
        run(&mut watch, 7..8, 0.5);
        assert_eq!(drifting(&watch), ["a"]);
        assert!(watch.accept(8_000));
        run(&mut watch, 8..11, 0.5);
        assert!(drifting(&watch).is_empty());
    }

    #[test]
    fn a_row_that_is_sent_a_thousand_times_is_no_drift() {
        let mut watch = VersionWatch::new(SETTINGS, None, 0);
        run(&mut watch, 0..4, 0.0);
        for window in 4..8 {
            for _ in 0..1_000 {
                watch.observe(&row(7, 0.0), window * 1_000);
            }
            run(&mut watch, window..window + 1, 0.0);
        }
        assert!(drifting(&watch).is_empty());
    }

    #[test]
    fn a_window_with_few_calls_goes_on() {
        let mut watch = VersionWatch::new(SETTINGS, None, 0);
        run(&mut watch, 0..3, 0.0);
        for call in 0..199 {
            assert_eq!(watch.observe(&row(call, 0.9), 50_000), WatchChange::Nothing);
        }
        assert_eq!(watch.tick(90_000), WatchChange::Nothing);
    }

    #[test]
    fn a_new_version_with_the_same_inputs_has_the_reference_of_the_one_before() {
        let mut watch = VersionWatch::new(SETTINGS, None, 0);
        run(&mut watch, 0..3, 0.0);
        let mut next = VersionWatch::new(SETTINGS, Some(watch.state()), 0);
        let learnt = run(&mut next, 0..3, 0.5);
        assert_eq!(learnt[2], WatchChange::Fixed(ReferenceOrigin::Inherited));
        assert_eq!(next.state().columns[0].reference, watch.state().columns[0].reference);
        run(&mut next, 3..5, 0.5);
        assert_eq!(drifting(&next), ["a"]);
    }
}
