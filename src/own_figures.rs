//! The box's own figures of a month for its report: accounts, objectives, and the watch on drift. They are read from the
//! files of a daemon that may run meanwhile, and nothing is changed. They are not signed.

use ledge_accounts::AccountStore;
use ledge_accounts::document::{AccountRow, MonthDocument, ObjectiveMonth, rounded};
use ledge_base::clock::TimeZone;
use ledge_base::month::Month;
use ledge_drift::stored_documents;
use ledge_report::document::{AddedRow, AddedSection, FigureSource};
use serde_json::{Value, json};

use crate::config::Config;

/// The most rows of accounts. The others are one row together.
const ACCOUNT_ROWS_MAX: usize = 1000;

/// The sections of a month. A part without figures has none.
pub fn sections(config: &Config, month: Month) -> Vec<AddedSection> {
    let mut sections = Vec::new();
    match AccountStore::view(&config.state.path, month) {
        Ok(None) => {}
        Ok(Some(ledger)) => {
            let document = MonthDocument::new(month, &TimeZone::local(), &ledger, &config.accounts);
            let file = AccountStore::file_of(month);
            sections.extend((!document.objectives.is_empty()).then(|| objectives(&document, &file)));
            sections.push(accounts(&document, &file));
        }
        Err(error) => {
            let note = format!("The accounts of this month cannot be read: {error}.");
            sections.push(AddedSection { note, ..ACCOUNTS });
        }
    }
    sections.extend(drift(config));
    sections
}

/// The section of accounts, without content.
const ACCOUNTS: AddedSection =
    AddedSection { name: "accounts", title: "Accounts", note: String::new(), columns: Vec::new(), rows: Vec::new() };

fn objectives(document: &MonthDocument<'_>, file: &str) -> AddedSection {
    let row = |of: &ObjectiveMonth<'_>| AddedRow {
        cells: vec![
            json!(of.name),
            json!(of.kind),
            json!(of.target),
            json!(of.within_ms),
            json!(of.good),
            json!(of.bad),
            json!(of.reached),
            json!(of.budget_left),
        ],
        source: FigureSource {
            file: file.to_owned(),
            key: format!("objectives, {} {}", of.name, of.kind),
            show: format!("ledge accounts --month {} --json", document.month),
        },
    };
    AddedSection {
        name: "objectives",
        title: "Objectives",
        note: format!(
            "Calls from {} to {}, counted until {}. The target is that of the last call. The budget left is the share of \
             the bad calls that the target allows in this month: 1 is all of it, below 0 the target was missed. Alerts are \
             among the findings.",
            document.from, document.until, document.through
        ),
        columns: vec![
            ("objective", 24),
            ("kind", 14),
            ("target %", 10),
            ("within ms", 11),
            ("good", 11),
            ("bad", 9),
            ("reached %", 11),
            ("budget left", 10),
        ],
        rows: document.objectives.iter().map(row).collect(),
    }
}

fn accounts(document: &MonthDocument<'_>, file: &str) -> AddedSection {
    // As CSV has them.
    let cells = |caller: &str, model: &str, of: &AccountRow<'_>| -> Vec<Value> {
        vec![
            json!(caller),
            json!(model),
            json!(of.calls),
            json!(of.failed),
            json!(of.refused),
            json!(rounded(of.cpu_seconds, 3)),
            json!(of.bytes_in),
            json!(of.bytes_out),
            json!(rounded(of.watt_hours, 4)),
            json!(rounded(of.cost, 6)),
        ]
    };
    let source = |key: String, form: &str| {
        let show = format!("ledge accounts --month {} --{form}", document.month);
        FigureSource { file: file.to_owned(), key, show }
    };
    let row = |of: &AccountRow<'_>| AddedRow {
        cells: cells(of.caller, of.model, of),
        source: source(format!("{} {}", of.caller, of.model), "csv"),
    };
    let listed = document.rows.iter().take(ACCOUNT_ROWS_MAX);
    let mut rows: Vec<_> = listed.chain([&document.own]).map(row).collect();
    let total = cells("total", "", &document.total);
    rows.push(AddedRow { cells: total, source: source("total".to_owned(), "json") });

    let mut note = format!(
        "Use from {} to {} by the time zone of this box, counted until {}.",
        document.from, document.until, document.through
    );
    if document.rows.len() > ACCOUNT_ROWS_MAX {
        note.push_str(" The rows with the least CPU time are not listed: they are in the total.");
    }
    if document.estimated {
        note.push_str(" The energy, or a part of it (estimated_watt_hours), is an estimate from CPU time.");
    }
    for gap in &document.gaps {
        note = format!("{note} Use may be missing from {} to {}.", gap.from, gap.to);
    }
    let energy = if document.estimated { "Wh (estimate)" } else { "Wh" };
    if !document.currency.is_empty() {
        note = format!("{note} Cost in {}, by the prices now.", document.currency);
    }
    AddedSection {
        note,
        columns: vec![
            ("caller", 15),
            ("model", 10),
            ("calls", 9),
            ("failed", 8),
            ("refused", 9),
            ("CPU s", 9),
            ("bytes in", 11),
            ("bytes out", 10),
            (energy, 12),
            ("cost", 8),
        ],
        rows,
        ..ACCOUNTS
    }
}

fn drift(config: &Config) -> Option<AddedSection> {
    let versions = stored_documents(&config.drift, &config.state.path);
    let row = |of: &ledge_drift::http::VersionDocument| AddedRow {
        cells: vec![
            json!(of.model),
            json!(of.version),
            json!(of.reference),
            json!(of.columns.len()),
            json!(of.columns.iter().filter(|column| column.drifting).count()),
            json!(of.learnt_windows),
            json!(of.judged_calls),
        ],
        source: FigureSource {
            file: format!("drift/{}@{}", of.model, of.version),
            key: format!("{} {}", of.model, of.version),
            show: format!("ledge models drift {} --json", of.model),
        },
    };
    (!versions.is_empty()).then(|| AddedSection {
        name: "drift_watch",
        title: "The watch on drift",
        note: "The versions that are watched, when this report was made. What was found within the month is among the \
               findings."
            .to_owned(),
        columns: vec![
            ("model", 26),
            ("version", 9),
            ("reference", 13),
            ("columns", 11),
            ("drifting", 11),
            ("windows learnt", 14),
            ("calls judged", 16),
        ],
        rows: versions.iter().map(row).collect(),
    })
}
