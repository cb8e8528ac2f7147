//! The open month, the state of its budgets, and all objectives.

use std::collections::BTreeSet;
use std::time::{Duration, Instant};

use ledge_base::clock::TimeZone;
use ledge_base::month::Month;
use ledge_models::serving::budgets::SpentBudget;
use ledge_models::serving::usage::UsageInterval;
use ledge_part::finding_log::RecordedFinding;

use crate::attribution::{IntervalUse, RestDivider};
use crate::budget::BudgetUse;
use crate::config::{AccountsConfig, BudgetConfig, BudgetsConfig, CallerName, ObjectivesConfig};
use crate::energy::EnergyMeter;
use crate::ledger::{AccountGap, BudgetStep, MonthLedger, RowKey, UseSums, caller_text};
use crate::objective::{Indicator, StoredIndicator};
use crate::steady_clock::SteadyClock;

/// The time between two writes while there are calls.
const WRITE_INTERVAL: Duration = Duration::from_mins(1);

/// The time between two writes while only the box itself uses anything.
const IDLE_WRITE_INTERVAL: Duration = Duration::from_hours(1);

/// A month that is counted.
#[derive(Debug)]
pub struct OpenMonth {
    pub month: Month,
    pub ledger: MonthLedger,
    /// False until the file that an earlier run may have written was added.
    pub is_merged: bool,
}

/// The settings of the book.
#[derive(Debug)]
pub struct BookConfig {
    pub accounts: AccountsConfig,
    pub budgets: BudgetsConfig,
    /// Callers that are never folded.
    pub kept: BTreeSet<Box<str>>,
}

impl BookConfig {
    pub fn new(accounts: AccountsConfig, budgets: BudgetsConfig) -> Self {
        let caller = |budget: &BudgetConfig| budget.caller.as_ref().map(|CallerName(caller)| caller_text(caller));
        let kept = budgets.0.iter().filter_map(caller).collect();
        Self { accounts, budgets, kept }
    }
}

/// The changes at the end of an interval.
#[derive(Debug, Default)]
pub struct BookChange {
    /// Budgets that have reached a step.
    pub reached: Vec<(String, BudgetStep, bool)>,
    /// The budgets that are spent, where they are not the same as before.
    pub spent: Option<Vec<SpentBudget>>,
    /// Set when a month has ended.
    pub has_month_ended: bool,
}

/// The accounts.
#[derive(Debug)]
pub struct Book {
    pub config: BookConfig,
    pub zone: TimeZone,
    clock: SteadyClock,
    pub open: OpenMonth,
    /// Months that have ended and are not written yet.
    ended: Vec<OpenMonth>,
    divider: RestDivider,
    energy: EnergyMeter,
    pub indicators: Vec<Indicator>,
    spent: Vec<SpentBudget>,
    has_calls: bool,
    has_own: bool,
    written: Option<Instant>,
}

impl Book {
    /// A book whose month continues `ledger`. `now_ms` is the time by the system's clock, or a later one that is proven.
    pub fn new(
        (config, objectives, stored): (BookConfig, &ObjectivesConfig, &[StoredIndicator]),
        zone: TimeZone,
        mut ledger: MonthLedger,
        energy: EnergyMeter,
        (now_ms, now): (u64, Instant),
    ) -> Self {
        let mut indicators: Vec<_> = objectives.0.iter().flat_map(Indicator::of).collect();
        for indicator in &mut indicators {
            indicator.restore(stored);
            indicator.count(now_ms, 0, 0);
        }
        // From now on a kill loses something.
        (ledger.through_ms, ledger.is_closed) = (now_ms, false);
        Self {
            config,
            clock: SteadyClock::new(now_ms, now),
            open: OpenMonth { month: Month::of(&zone, now_ms), ledger, is_merged: true },
            zone,
            ended: Vec::new(),
            divider: RestDivider::default(),
            energy,
            indicators,
            spent: Vec::new(),
            has_calls: false,
            has_own: false,
            written: None,
        }
    }

    /// Counts an interval that ended now. `system_ms` is the plausible time of the system's clock.
    pub fn add(&mut self, interval: &UsageInterval, system_ms: u64, now: Instant) -> BookChange {
        let time = self.clock.read(system_ms, now);
        let month = Month::of(&self.zone, time.now_ms);
        let has_month_ended = month != self.open.month;
        if has_month_ended {
            let again =
                self.ended.iter().position(|ended| ended.month == month).map(|place| self.ended.swap_remove(place));
            let open = again.unwrap_or(OpenMonth { month, ledger: MonthLedger::default(), is_merged: false });
            self.ended.push(std::mem::replace(&mut self.open, open));
        }
        self.count_use(interval);
        self.open.ledger.through_ms = time.now_ms;
        for indicator in &mut self.indicators {
            if time.stepped_ms != 0 {
                indicator.shift(time.stepped_ms);
            }
            let (good, bad) = indicator.watch.take();
            indicator.count(time.now_ms, good, bad);
            if good + bad > 0 {
                let (name, ledger) = (indicator.config.name.as_str(), &mut self.open.ledger);
                ledger.count_objective(name, indicator.kind, indicator.target(), good, bad);
            }
        }
        let mut change = BookChange { has_month_ended, ..BookChange::default() };
        if has_month_ended || !interval.used.is_empty() {
            self.look_at_budgets(&mut change);
        }
        change
    }

    fn count_use(&mut self, interval: &UsageInterval) {
        let uses: Vec<_> = interval.used.iter().collect();
        let of_interval: Vec<_> = uses
            .iter()
            .map(|(_, used)| IntervalUse { calls: used.calls, bytes: used.bytes_in + used.bytes_out, runs: used.cpu })
            .collect();
        let runs = of_interval.iter().map(|used| used.runs).sum();
        // Where the time of the service is not known, only runs are counted.
        let divided = self.divider.divide(interval.service_cpu.unwrap_or(runs), &of_interval);
        let total = runs + divided.shares.iter().sum::<Duration>() + divided.own;
        let energy = self.energy.end_interval(total);
        let energy_of = |cpu: Duration| {
            let part = (u128::from(energy.microjoules) * cpu.as_nanos()).checked_div(total.as_nanos()).unwrap_or(0);
            u64::try_from(part).unwrap_or(u64::MAX)
        };
        let nanos = |time: Duration| u64::try_from(time.as_nanos()).unwrap_or(u64::MAX);

        let ledger = &mut self.open.ledger;
        let mut energy_left = energy.microjoules;
        for ((key, used), share) in uses.into_iter().zip(&divided.shares) {
            let cpu = used.cpu + *share;
            energy_left = energy_left.saturating_sub(energy_of(cpu));
            let sums = UseSums {
                calls: used.calls,
                failed: used.failed,
                refused: used.refused,
                cpu_ns: nanos(cpu),
                bytes_in: used.bytes_in,
                bytes_out: used.bytes_out,
                energy_uj: energy_of(cpu),
            };
            ledger.add(RowKey { caller: caller_text(&key.principal), model: key.model.as_str().into() }, &sums);
        }
        ledger.own.add(&UseSums { cpu_ns: nanos(divided.own), energy_uj: energy_left, ..UseSums::default() });
        if energy.is_estimated {
            ledger.estimated_uj = ledger.estimated_uj.saturating_add(energy.microjoules);
        }
        ledger.is_closed = false;
        self.has_calls |= !interval.used.is_empty();
        self.has_own = true;
        if self.has_calls {
            ledger.fold(&self.config.kept);
        }
    }

    /// Notes the steps that budgets have reached.
    pub fn look_at_budgets(&mut self, change: &mut BookChange) {
        let (until_ms, mut spent) = (self.open.month.end_ms(&self.zone), Vec::new());
        for (budget, used) in self.budgets() {
            spent.extend(used.refusal(budget, until_ms));
            let Some(step) = used.step(budget) else { continue };
            let refuses = budget.over == crate::config::OverBudget::Refuse;
            change.reached.push((budget.name.to_string(), step, refuses));
        }
        let recorded = &mut self.open.ledger.recorded;
        change.reached.retain(|(name, step, _)| recorded.insert((name.clone(), *step)));
        if spent != self.spent {
            self.spent.clone_from(&spent);
            change.spent = Some(spent);
        }
    }

    /// The use of all budgets in the open month.
    pub fn budgets(&self) -> Vec<(&BudgetConfig, BudgetUse)> {
        let used = |budget| (budget, BudgetUse::of(budget, &self.config.accounts, &self.open.ledger));
        self.config.budgets.0.iter().map(used).collect()
    }

    /// The objectives that have an alert, as findings.
    pub fn alerts(&self) -> BTreeSet<RecordedFinding> {
        let recorded = |indicator: &Indicator| {
            let status = indicator.alert()?.status;
            let model = indicator.config.model.clone();
            Some(RecordedFinding { finding: indicator.finding(), model, version: None, status })
        };
        self.indicators.iter().filter_map(recorded).collect()
    }

    /// Closes a gap that a kill of the daemon left, up to now.
    pub fn add_gap(&mut self, from_ms: u64, now: Instant) {
        let to_ms = self.clock.now_ms(now);
        self.open.ledger.add_gap(AccountGap { from_ms, to_ms });
    }

    /// True when it is time to write.
    pub fn is_due(&self, now: Instant) -> bool {
        let Some(written) = self.written else { return true };
        let wait = if self.has_calls { WRITE_INTERVAL } else { IDLE_WRITE_INTERVAL };
        // A timer may be a little early.
        let is_time = now.saturating_duration_since(written) + Duration::from_secs(1) >= wait;
        !self.ended.is_empty() || (is_time && (self.has_calls || self.has_own))
    }

    /// Takes the months that have ended, to write them.
    pub fn take_ended(&mut self) -> Vec<OpenMonth> {
        std::mem::take(&mut self.ended)
    }

    /// Notes that the open month is being written.
    pub fn begin_write(&mut self, now: Instant) {
        (self.has_calls, self.has_own, self.written) = (false, false, Some(now));
    }

    /// Notes that a write failed: it is tried again after a minute.
    pub fn write_failed(&mut self) {
        self.has_calls = true;
    }
}

#[cfg(test)]
mod tests;
