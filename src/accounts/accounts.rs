//! The accounts of this box: the handle, and the task that writes them.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use ledge_base::clock::{self, TimeZone};
use ledge_base::month::Month;
use ledge_models::serving::Serving;
use ledge_models::serving::usage::{UsageInterval, UsageSink};
use ledge_part::PartEnvironment;
use ledge_part::finding_log::FindingLog;
use ledge_service::audit_event::{AuditEvent, AuditSink};
use ledge_service::off_thread::blocking;
use ledge_service::shutdown::Shutdown;
use tokio::sync::Notify;

use crate::book::{Book, BookChange, BookConfig, OpenMonth};
use crate::config::{AccountsConfig, BudgetsConfig, ObjectivesConfig};
use crate::energy::EnergyMeter;
use crate::ledger::{BudgetStep, MonthLedger};
use crate::objective::Indicator;
use crate::store::{AccountStore, encode};

/// The time between two looks whether there is something to write.
const LOOK_INTERVAL: Duration = Duration::from_mins(1);

/// A handle to the accounts. Clones share them.
#[derive(Debug, Clone)]
pub struct Accounts(Arc<AccountsState>);

#[derive(Debug)]
struct AccountsState {
    book: Mutex<Book>,
    store: AccountStore,
    serving: Serving,
    audit: AuditSink,
    /// The alerts of objectives that were recorded.
    recorded: Mutex<FindingLog>,
    /// A month has ended.
    has_month_ended: Notify,
}

impl Accounts {
    /// Reads the files, and begins to count the calls of `serving`. `None` where everything is turned off.
    pub fn open(
        accounts: &AccountsConfig,
        budgets: &BudgetsConfig,
        objectives: &ObjectivesConfig,
        environment: &PartEnvironment,
        serving: &Serving,
    ) -> Option<Self> {
        if !accounts.enabled && budgets.is_empty() && objectives.is_empty() {
            return None;
        }
        let store = AccountStore::open(&environment.state);
        let zone = TimeZone::local();
        let newest = store.months().first().and_then(|month| Some((*month, store.month(*month)?)));
        // A box without a battery for its clock begins in the past: no earlier than what it has counted.
        let through_ms = newest.as_ref().map_or(0, |(_, ledger)| ledger.through_ms);
        let (now_ms, now) = (clock::FLOOR.now_millis().max(through_ms), Instant::now());
        let month = Month::of(&zone, now_ms);
        let (ledger, before) = match newest {
            Some((newest, ledger)) if newest == month => (ledger, None),
            other => (store.month(month).unwrap_or_default(), other),
        };

        let config = BookConfig::new(accounts.clone(), budgets.clone());
        let energy = EnergyMeter::open(accounts.watts_per_core.in_millionths());
        let gap = lost_since(&ledger);
        let mut book = Book::new((config, objectives, &store.objectives()), zone, ledger, energy, (now_ms, now));
        if let Some(from_ms) = gap {
            book.add_gap(from_ms, now);
        }
        if let Some((month, ledger)) = before {
            close(&store, month, ledger, now_ms);
        }
        serving.usage().watch(book.indicators.iter().map(|indicator| indicator.watch.clone()).collect());
        let mut change = BookChange::default();
        book.look_at_budgets(&mut change);
        let state = AccountsState {
            book: Mutex::new(book),
            store,
            serving: serving.clone(),
            audit: environment.audit.clone(),
            recorded: Mutex::default(),
            has_month_ended: Notify::new(),
        };
        state.carry_out(change);
        Some(Self(Arc::new(state)))
    }

    /// The part that is given the use of callers.
    pub fn sink(&self) -> Arc<dyn UsageSink> {
        self.0.clone()
    }

    /// Looks at the book. Nothing waits for a disk under its lock.
    pub(crate) fn with_book<T>(&self, look: impl FnOnce(&Book) -> T) -> T {
        look(&self.0.book())
    }

    /// The months, the newest first.
    pub(crate) async fn months(&self) -> Vec<Month> {
        let (own, open) = (self.clone(), self.with_book(|book| book.open.month));
        let mut months = blocking(move || own.0.store.months()).await;
        if !months.contains(&open) {
            months.push(open);
            months.sort_unstable_by(|a, b| b.cmp(a));
        }
        months
    }

    /// The sums of a month; `None` without any.
    pub(crate) async fn month(&self, month: Month) -> Option<MonthLedger> {
        let open = self.with_book(|book| (book.open.month == month).then(|| book.open.ledger.clone()));
        if open.is_some() {
            return open;
        }
        let own = self.clone();
        blocking(move || own.0.store.month(month)).await
    }

    /// Writes what has changed, until the shutdown; then all of it.
    pub(crate) async fn keep(self, shutdown: Shutdown) {
        loop {
            self.write(false).await;
            tokio::select! {
                () = tokio::time::sleep(LOOK_INTERVAL) => {}
                () = self.0.has_month_ended.notified() => {}
                () = shutdown.requested() => break,
            }
        }
        self.write(true).await;
    }

    async fn write(&self, is_last: bool) {
        let own = self.clone();
        blocking(move || own.0.write(is_last, Instant::now())).await;
    }
}

/// The time since which use may be missing, where the daemon that wrote it was killed.
fn lost_since(ledger: &MonthLedger) -> Option<u64> {
    (!ledger.is_closed && ledger.through_ms > 0).then_some(ledger.through_ms)
}

/// Closes the month in which an earlier run ended.
fn close(store: &AccountStore, month: Month, mut ledger: MonthLedger, now_ms: u64) {
    let Some(from_ms) = lost_since(&ledger) else { return };
    ledger.add_gap(crate::ledger::AccountGap { from_ms, to_ms: now_ms });
    ledger.is_closed = true;
    warn_unwritten(store.write_month(month, &encode(&ledger)));
}

fn warn_unwritten(written: std::io::Result<()>) -> bool {
    written
        .inspect_err(|error| {
            tracing::warn!(name: "accounts.unwritten", %error, "accounts cannot be written: a restart would lose what was counted since the last time");
        })
        .is_ok()
}

impl AccountsState {
    fn book(&self) -> MutexGuard<'_, Book> {
        // Nothing panics under this lock.
        self.book.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn carry_out(&self, change: BookChange) {
        let month = || self.book().open.month.to_string();
        for (budget, step, refuses) in change.reached {
            let what = match step {
                BudgetStep::Warning => "warning",
                BudgetStep::Whole if refuses => "refused",
                BudgetStep::Whole => "whole",
            };
            tracing::warn!(name: "accounts.budget_reached", budget, what, "a budget of this month is reached");
            self.audit.record_own(AuditEvent::BudgetReached { budget, month: month(), what: what.into() });
        }
        if let Some(spent) = change.spent {
            self.serving.budgets().set(spent);
        }
        if change.has_month_ended {
            self.has_month_ended.notify_one();
        }
    }

    /// Writes what is due, or everything the last time. Blocks on the disk.
    fn write(&self, is_last: bool, now: Instant) {
        let alerts = self.book().alerts();
        let mut recorded = self.recorded.lock().unwrap_or_else(PoisonError::into_inner);
        recorded.record(alerts, clock::FLOOR.now_millis(), &self.audit);
        drop(recorded);
        if !is_last && !self.book().is_due(now) {
            return;
        }
        self.merge();
        let (ended, month, content, indicators) = {
            let mut book = self.book();
            let ended = book.take_ended();
            book.begin_write(now);
            book.open.ledger.is_closed = is_last;
            let indicators: Vec<_> = book.indicators.iter().map(Indicator::stored).collect();
            (ended, book.open.month, encode(&book.open.ledger), indicators)
        };
        let mut is_written = true;
        for OpenMonth { month, mut ledger, is_merged } in ended {
            if let Some(earlier) = self.store.month(month).filter(|_| !is_merged) {
                ledger.merge(earlier);
            }
            ledger.is_closed = true;
            is_written &= warn_unwritten(self.store.write_month(month, &encode(&ledger)));
        }
        is_written &= warn_unwritten(self.store.write_month(month, &content));
        if !indicators.is_empty() {
            is_written &= warn_unwritten(self.store.write_objectives(&encode(&indicators)));
        }
        if !is_written {
            self.book().write_failed();
        }
    }

    /// Adds the file of an earlier run to a month that comes again.
    fn merge(&self) {
        let month = Some(&self.book().open).filter(|open| !open.is_merged).map(|open| open.month);
        let Some(month) = month else { return };
        let earlier = self.store.month(month);
        let mut book = self.book();
        if book.open.month == month && !book.open.is_merged {
            book.open.ledger.merge(earlier.unwrap_or_default());
            book.open.is_merged = true;
        }
    }
}

impl UsageSink for AccountsState {
    fn add(&self, interval: &UsageInterval) {
        let change = self.book().add(interval, clock::FLOOR.now_millis(), Instant::now());
        self.carry_out(change);
    }
}
