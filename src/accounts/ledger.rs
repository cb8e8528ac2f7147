//! The sums of a month, by caller and model.

use std::collections::{BTreeMap, BTreeSet};

use ledge_base::principal::Principal;
use serde::{Deserialize, Serialize};

use crate::objective::IndicatorKind;

/// The most callers that are distinguished after smaller ones were folded.
pub const CALLERS_MAX: usize = 1000;

/// The callers beyond [`CALLERS_MAX`] that may gather before the smallest ones are folded.
const CALLERS_SLACK: usize = 250;

/// The most rows of a month.
pub const ROWS_MAX: usize = 4096;

/// The rows that are left when a full month is folded.
const ROWS_FOLDED: usize = 3072;

/// The longest name of a caller, in bytes. A topic may be longer: it is cut, and a checksum of the whole follows.
const CALLER_BYTES_MAX: usize = 160;

/// The most gaps of a month. A later one extends the last.
const GAPS_MAX: usize = 100;

/// The most quantities of objectives of a month: those that were configured at some time of it.
const OBJECTIVES_MAX: usize = 256;

/// The caller of all rows that were folded.
pub const OTHERS: &str = "others";

/// The sums of one caller and model.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct UseSums {
    /// All calls; those that failed and were refused are among them.
    pub calls: u64,
    pub failed: u64,
    pub refused: u64,
    pub cpu_ns: u64,
    pub bytes_in: u64,
    pub bytes_out: u64,
    pub energy_uj: u64,
}

impl UseSums {
    pub fn add(&mut self, other: &Self) {
        let sums = [
            (&mut self.calls, other.calls),
            (&mut self.failed, other.failed),
            (&mut self.refused, other.refused),
            (&mut self.cpu_ns, other.cpu_ns),
            (&mut self.bytes_in, other.bytes_in),
            (&mut self.bytes_out, other.bytes_out),
            (&mut self.energy_uj, other.energy_uj),
        ];
        for (sum, more) in sums {
            *sum = sum.saturating_add(more);
        }
    }

    /// Calls that were answered.
    pub fn answered(&self) -> u64 {
        self.calls.saturating_sub(self.failed).saturating_sub(self.refused)
    }
}

/// A caller and a model.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct RowKey {
    pub caller: Box<str>,
    pub model: Box<str>,
}

/// A time of which use may be missing, in milliseconds since the Unix epoch.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct AccountGap {
    pub from_ms: u64,
    pub to_ms: u64,
}

/// The sums of a month.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct MonthLedger {
    pub rows: BTreeMap<RowKey, UseSums>,
    /// The CPU time and energy of the box itself.
    pub own: UseSums,
    /// The part of the energy that is an estimate.
    pub estimated_uj: u64,
    pub gaps: Vec<AccountGap>,
    /// The end of the last interval in it, in milliseconds since the Unix epoch.
    pub through_ms: u64,
    /// Set when the daemon stopped in order: nothing after `through_ms` is missing.
    pub is_closed: bool,
    /// The calls of each quantity of each objective.
    pub objectives: BTreeMap<(String, IndicatorKind), ObjectiveSums>,
    /// The messages about budgets that were recorded: the name, and how much was used.
    pub recorded: BTreeSet<(String, BudgetStep)>,
}

/// The calls of one quantity of an objective in a month, and its target when they were counted last.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct ObjectiveSums {
    pub good: u64,
    pub bad: u64,
    /// The calls of a million that may be bad.
    pub allowed_ppm: u32,
    /// The longest time of a good call, in microseconds; 0 without one.
    pub time_max_us: u64,
}

/// A step of the use of a budget that is recorded.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub enum BudgetStep {
    Warning,
    Whole,
}

/// The name of a caller in a row.
pub fn caller_text(principal: &Principal) -> Box<str> {
    let mut text = principal.to_string();
    if text.len() > CALLER_BYTES_MAX {
        let checksum = crc32fast::hash(text.as_bytes());
        text.truncate(text.floor_char_boundary(CALLER_BYTES_MAX - 10));
        text = format!("{text}..{checksum:08x}");
    }
    text.into()
}

impl MonthLedger {
    /// Adds to a row.
    pub fn add(&mut self, key: RowKey, sums: &UseSums) {
        self.rows.entry(key).or_default().add(sums);
    }

    /// Folds the smallest callers into [`OTHERS`], by model, when there are too many; those of `kept` never.
    pub fn fold(&mut self, kept: &BTreeSet<Box<str>>) {
        let mut callers = BTreeMap::<&str, (u64, usize)>::new();
        for (key, sums) in &self.rows {
            let (calls, rows) = callers.entry(&key.caller).or_default();
            *calls = calls.saturating_add(sums.calls);
            *rows += 1;
        }
        if callers.len() <= CALLERS_MAX + CALLERS_SLACK && self.rows.len() <= ROWS_MAX {
            return;
        }
        let (mut left, mut rows_left) = (callers.len(), self.rows.len());
        let mut smallest: Vec<_> =
            callers.into_iter().filter(|(caller, _)| *caller != OTHERS && !kept.contains(*caller)).collect();
        smallest.sort_unstable_by_key(|(_, (calls, _))| *calls);
        let mut folded = BTreeSet::<Box<str>>::new();
        for (caller, (_, rows)) in smallest {
            if left <= CALLERS_MAX && rows_left <= ROWS_FOLDED {
                break;
            }
            folded.insert(caller.into());
            left -= 1;
            rows_left -= rows;
        }
        for (mut key, sums) in std::mem::take(&mut self.rows) {
            if folded.contains(&key.caller) {
                key.caller = OTHERS.into();
            }
            self.add(key, &sums);
        }
    }

    /// Adds what an earlier run of the daemon wrote for the same month.
    pub fn merge(&mut self, earlier: Self) {
        for (key, sums) in earlier.rows {
            self.add(key, &sums);
        }
        self.own.add(&earlier.own);
        self.estimated_uj = self.estimated_uj.saturating_add(earlier.estimated_uj);
        self.recorded.extend(earlier.recorded);
        for (key, sums) in earlier.objectives {
            let of_both = self.objectives.entry(key).or_insert(ObjectiveSums { good: 0, bad: 0, ..sums });
            of_both.good = of_both.good.saturating_add(sums.good);
            of_both.bad = of_both.bad.saturating_add(sums.bad);
        }
        self.through_ms = self.through_ms.max(earlier.through_ms);
        let later = std::mem::replace(&mut self.gaps, earlier.gaps);
        for gap in later {
            self.add_gap(gap);
        }
    }

    /// Counts calls of an objective. `target` has its target and no calls.
    pub fn count_objective(&mut self, name: &str, kind: IndicatorKind, target: ObjectiveSums, good: u64, bad: u64) {
        let key = (name.to_owned(), kind);
        if self.objectives.len() >= OBJECTIVES_MAX && !self.objectives.contains_key(&key) {
            return;
        }
        let sums = self.objectives.entry(key).or_default();
        let (good, bad) = (sums.good.saturating_add(good), sums.bad.saturating_add(bad));
        *sums = ObjectiveSums { good, bad, ..target };
    }

    pub fn add_gap(&mut self, gap: AccountGap) {
        let is_full = self.gaps.len() >= GAPS_MAX;
        match self.gaps.last_mut() {
            Some(last) if is_full => last.to_ms = last.to_ms.max(gap.to_ms),
            _ => self.gaps.push(gap),
        }
    }

    /// The sums of rows.
    pub fn sum(&self, wanted: impl Fn(&RowKey) -> bool) -> UseSums {
        let mut sum = UseSums::default();
        self.rows.iter().filter(|(key, _)| wanted(key)).for_each(|(_, sums)| sum.add(sums));
        sum
    }

    /// True within the bounds that this version keeps.
    pub fn is_bounded(&self) -> bool {
        self.rows.len() <= 2 * ROWS_MAX
            && self.gaps.len() <= GAPS_MAX
            && self.recorded.len() <= 2 * GAPS_MAX
            && self.objectives.len() <= OBJECTIVES_MAX
            && self.objectives.keys().all(|(name, _)| name.len() <= CALLER_BYTES_MAX)
            && self.rows.keys().all(|key| key.caller.len() <= CALLER_BYTES_MAX && key.model.len() <= CALLER_BYTES_MAX)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn key(caller: &str, model: &str) -> RowKey {
        RowKey { caller: caller.into(), model: model.into() }
    }

    fn calls(calls: u64) -> UseSums {
        UseSums { calls, cpu_ns: calls * 10, ..UseSums::default() }
    }

    #[test]
    fn the_smallest_callers_are_folded_and_no_call_is_lost() {
        let mut ledger = MonthLedger::default();
        let kept = BTreeSet::from(["key:0".into()]);
        for number in 0..5000_u64 {
            ledger
                .add(key(&format!("key:{number}"), if number % 2 == 0 { "wine" } else { "text" }), &calls(number + 1));
            ledger.fold(&kept);
            assert!(ledger.rows.len() <= CALLERS_MAX + CALLERS_SLACK + 2);
        }
        assert_eq!(ledger.sum(|_| true), calls(5000 * 5001 / 2));
        assert_eq!(ledger.sum(|key| &*key.caller == "key:0"), calls(1), "it has a budget");
        assert_eq!(ledger.sum(|key| &*key.caller == "key:4999"), calls(5000));
        assert_eq!(ledger.rows.keys().filter(|key| &*key.caller == OTHERS).count(), 2, "one for each model");
    }

    #[test]
    fn a_caller_with_a_long_name_is_cut_and_stays_itself() {
        let name = |end: &str| caller_text(&Principal::Mqtt(format!("{}{end}", "é".repeat(4000)).into()));
        assert!(name("a").len() <= CALLER_BYTES_MAX && name("a") != name("b") && name("a") == name("a"));
        assert_eq!(&*caller_text(&Principal::Key("till".into())), "key:till");
    }

    #[test]
    fn a_month_of_two_runs_is_the_sum_of_both() {
        let mut ledger = MonthLedger { through_ms: 50, ..MonthLedger::default() };
        ledger.add(key("key:a", "wine"), &calls(2));
        ledger.add_gap(AccountGap { from_ms: 30, to_ms: 40 });
        let mut earlier = MonthLedger { through_ms: 20, own: calls(1), ..MonthLedger::default() };
        earlier.add(key("key:a", "wine"), &calls(3));
        earlier.add(key("key:b", "wine"), &calls(4));
        earlier.add_gap(AccountGap { from_ms: 5, to_ms: 10 });
        ledger.merge(earlier);
        assert_eq!((ledger.sum(|_| true), ledger.own, ledger.through_ms), (calls(9), calls(1), 50));
        assert_eq!(ledger.gaps.iter().map(|gap| gap.from_ms).collect::<Vec<_>>(), [5, 30]);
    }

    #[test]
    fn gaps_are_bounded_and_the_last_one_reaches_to_the_end() {
        let mut ledger = MonthLedger::default();
        for number in 0..500 {
            ledger.add_gap(AccountGap { from_ms: number * 10, to_ms: number * 10 + 5 });
        }
        assert_eq!((ledger.gaps.len(), ledger.gaps.last().unwrap().to_ms), (GAPS_MAX, 4995));
        assert!(ledger.is_bounded());
    }
}
