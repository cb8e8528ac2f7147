//! Accounts and objectives: what callers use of which models, what it costs, and how well calls are answered.
//!
//! Files, in reading order:
//! * `config.rs` - `[accounts]`, `[[budget]]` and `[[objective]]`; `decimal.rs` a number with six places
//! * `steady_clock.rs` - a clock without steps
//! * `attribution.rs` - the CPU time of the service besides runs, divided among callers
//! * `energy.rs` - the energy of the service, measured or estimated
//! * `ledger.rs` - the sums of a month
//! * `budget.rs` - how much of a budget is used
//! * `objective.rs`, `objective/` - good and bad calls of windows, burn rates, and alerts by them
//! * `store.rs` - the files: one a month, and one of all objectives
//! * `book.rs` - the open month, its budgets and all objectives; `accounts.rs` the handle to it, and the task that
//!   writes
//! * `document.rs` - a month in JSON and CSV
//! * `http.rs`, `metrics.rs`, `doctor.rs` - the routes, metrics and findings
//! * `part.rs` - the part and its sections
//!
//! Invariants:
//! * All rows of a month together have the CPU time of the service: what callers do not account for is in the row of
//!   the box itself.
//! * Pure, with times passed in: everything up to `budget.rs`, and `objective/`. `book.rs` never touches the disk.
//! * A month keeps at most `ledger::ROWS_MAX` rows; the smallest callers are folded into `others`. Callers of a budget
//!   are not.
//! * Months begin and end by a clock that follows a step of the system's clock only after ten minutes.
//! * Use that a killed daemon had not written is missing, and the month has a gap that says so.
//!
//! # Where it is decided
//!
//! * The part of each caller in CPU time that no run used: `attribution.rs`
//! * The calls that are good or bad: `CallWatch` in `models/serving/usage.rs`
//! * An objective has an alert: `objective.rs` (`RULES`)
//! * A call is refused for a budget: `models/serving/budgets.rs`
#![forbid(unsafe_code)]

mod accounts;
mod attribution;
mod book;
mod budget;
pub mod config;
mod decimal;
mod doctor;
pub mod document;
mod energy;
pub mod http;
pub mod ledger;
mod metrics;
mod objective;
mod part;
mod steady_clock;
mod store;

pub use accounts::Accounts;
pub use objective::IndicatorKind;
pub use store::{AccountStore, encode};
#[cfg(any(test, feature = "fuzzing"))]
pub use store::{fuzz_stored, stored_example};
