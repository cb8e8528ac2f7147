//! The report as a page: it prints on A4, has no script, and loads nothing.

mod html;

use std::collections::BTreeMap;

use serde_json::Value;

use crate::annex::{AnnexReport, DutyReport};
use crate::document::{
    ActionCount, AddedRow, AddedSection, CallCounts, CallRow, Coverage, DriftOfMonth, EgressOfMonth, EventSection,
    FigureSource, FindingRow, Findings, ReferenceRow, Report, RollbackRow, ServedVersion,
};
use crate::evidence::Evidence;
use html::{Cell, Page};

/// The report as HTML, complete in itself.
pub fn page(report: &Report) -> String {
    let title = format!("{} · report of {}", report.device, report.month);
    let mut page = Page::new(&title);
    page.heading(1, &format!("Report of {}", report.month));
    page.paragraph(&format!(
        "Box {}. From {} to {} ({}). Made at {} by Ledge {}.",
        report.device, report.begins, report.ends, report.time_zone, report.made, report.version
    ));
    page.paragraph(
        "Each number names its records of the signed audit log as LOG/RECORD; sections of the box's own figures, which are \
         not signed, say so, and name the file and the command that prints them. `ledge audit show --generation LOG --seq RECORD` \
         prints one, `ledge audit prove RECORD --generation LOG` proves it to somebody who has only the verifier key. \
         The JSON of this report has the command that prints exactly the records of a number.",
    );
    coverage(&mut page, &report.coverage);
    models(&mut page, &report.models.served, report.models.unlisted);
    calls(&mut page, report);
    egress(&mut page, &report.egress);
    for section in &report.events {
        events(&mut page, section);
    }
    findings(&mut page, &report.findings);
    drift(&mut page, &report.drift);
    for section in &report.own_figures {
        own_figures(&mut page, section);
    }
    page.heading(2, "Retention settings");
    settings(&mut page, &report.retention.settings);
    page.heading(2, "All records of the month");
    counts(&mut page, &report.records);
    for annex in &report.annexes {
        write_annex(&mut page, annex);
    }
    page.finish()
}

fn evidence(records: &[Evidence]) -> Cell {
    Cell::small(records.iter().map(Evidence::to_string).collect::<Vec<_>>().join("; "))
}

fn coverage(page: &mut Page, coverage: &Coverage) {
    page.heading(2, "Coverage and evidence");
    page.paragraph(if coverage.complete {
        "The report covers the whole month, and the logs that it was made of are whole."
    } else {
        "The report is limited:"
    });
    page.list(&coverage.notes);
    if let (Some(first), Some(last)) = (&coverage.first_record, &coverage.last_record) {
        page.paragraph(&format!(
            "{} records of the month, from {}/{} of {} to {}/{} of {}.",
            coverage.records, first.log, first.record, first.at, last.log, last.record, last.at
        ));
    }
    for log in &coverage.logs {
        let none = || "-".to_owned();
        page.pairs(&[
            ("log", format!("{}, {}", log.log, log.origin.clone().unwrap_or_else(none))),
            ("head", format!("{} records, root {}", log.size, log.root.clone().unwrap_or_else(none))),
            ("key", log.verifier_key.clone().unwrap_or_else(none)),
            ("first record", log.first.to_string()),
            ("verification", log.verdict.to_owned()),
        ]);
        let findings = log.findings.iter().map(|fault| {
            let at = fault.record.map_or_else(String::new, |record| format!("record {record}: "));
            format!("{at}{}", fault.what)
        });
        page.list(&findings.collect::<Vec<_>>());
        more(page, log.more_findings, "findings");
    }
}

fn models(page: &mut Page, served: &[ServedVersion], unlisted: u64) {
    page.heading(2, "What ran");
    if served.is_empty() {
        page.paragraph("No model was loaded.");
        return;
    }
    let row = |of: &ServedVersion| {
        let until = match (&of.until, of.ended_by) {
            (Some(until), Some(by)) => format!("{until} ({by})"),
            _ => "the end of the month or of the report".to_owned(),
        };
        let records: Vec<_> = [Some(&of.loaded), of.ended.as_ref()].into_iter().flatten().cloned().collect();
        let digest = of.digest.get(..16).unwrap_or(&of.digest).to_owned();
        vec![
            Cell::text(&of.model),
            Cell::number(of.version),
            Cell::small(digest),
            Cell::text(&of.from),
            Cell::text(until),
            evidence(&records),
        ]
    };
    let rows = served.iter().map(row).collect();
    page.table(&[("model", 24), ("version", 8), ("digest", 17), ("from", 17), ("until", 20), ("records", 14)], rows);
    more(page, unlisted, "times");
}

fn calls(page: &mut Page, report: &Report) {
    page.heading(2, "Who asked, and how much");
    let row = |caller: &str, model: &str, counts: &CallCounts, records: Cell| {
        let mean_ms = (counts.us / counts.calls.max(1)).div_ceil(1000);
        vec![
            Cell::text(caller),
            Cell::text(model),
            Cell::number(counts.calls),
            Cell::number(counts.failed),
            Cell::number(counts.refused + counts.late + counts.unavailable),
            Cell::number(mean_ms),
            records,
        ]
    };
    let of_caller = |of: &CallRow| {
        let model = of.model.as_deref().unwrap_or("(no such model)");
        row(&of.caller, model, &of.counts, evidence(&of.evidence))
    };
    let mut rows: Vec<_> = report.calls.rows.iter().map(of_caller).collect();
    if let Some(others) = &report.calls.others {
        rows.push(row("(others)", "(all others)", others, Cell::small("the total without the rows above")));
    }
    let total = report.calls.total;
    page.paragraph(&format!(
        "{} calls: {} answered, {} failed, {} refused, {} late, {} for models that were not available.",
        total.calls, total.ok, total.failed, total.refused, total.late, total.unavailable
    ));
    if !rows.is_empty() {
        page.table(
            &[
                ("caller", 24),
                ("model", 22),
                ("calls", 10),
                ("failed", 8),
                ("not run", 8),
                ("mean ms", 8),
                ("records", 20),
            ],
            rows,
        );
    }
    if report.features.rows.is_empty() {
        return;
    }
    page.heading(3, "Features");
    let row = |of: &crate::document::FeatureCallRow| {
        vec![
            Cell::text(&of.caller),
            Cell::text(&of.feature_view),
            Cell::text(if of.action == "features_read" { "read" } else { "push" }),
            Cell::number(of.calls),
            Cell::number(of.rows),
            evidence(&of.evidence),
        ]
    };
    let rows = report.features.rows.iter().map(row).collect();
    page.table(
        &[("caller", 26), ("feature view", 24), ("access", 10), ("calls", 10), ("rows", 10), ("records", 20)],
        rows,
    );
    more(page, report.features.unlisted, "records of further callers and feature views");
}

fn egress(page: &mut Page, egress: &EgressOfMonth) {
    page.heading(2, "What left the box");
    page.paragraph(&match (egress.inputs.as_slice(), &egress.counted_until) {
        (_, None) => "No count of bytes is recorded for this month.".to_owned(),
        ([], Some(until)) => format!("Of inputs: none. Bytes are counted until {until}, before encryption."),
        (kinds, Some(until)) => format!(
            "Of inputs, or what was read from them: {}. Bytes are counted until {until}, before encryption.",
            kinds.join(", ")
        ),
    });
    if !egress.sent.is_empty() {
        let row = |of: &crate::document::SentRow| {
            vec![
                Cell::text(&of.destination),
                Cell::text(&of.region),
                Cell::text(&of.kind),
                Cell::number(of.bytes),
                evidence(&of.evidence),
            ]
        };
        let rows = egress.sent.iter().map(row).collect();
        page.table(&[("destination", 32), ("region", 12), ("kind", 16), ("bytes", 14), ("records", 26)], rows);
    }
    if !egress.connections.is_empty() {
        page.heading(3, "Connections");
        let row = |of: &crate::document::ConnectionRow| {
            vec![
                Cell::text(&of.destination),
                Cell::text(&of.region),
                Cell::text(&of.purpose),
                Cell::number(of.connections),
                evidence(&of.evidence),
            ]
        };
        let rows = egress.connections.iter().map(row).collect();
        page.table(&[("destination", 32), ("region", 12), ("purpose", 16), ("opened", 14), ("records", 26)], rows);
    }
    if !egress.pictures.is_empty() {
        page.heading(3, "Pictures of cameras that were published");
        let row = |of: &crate::document::PictureRow| {
            vec![Cell::text(&of.camera), Cell::number(of.pictures), evidence(&of.evidence)]
        };
        let rows = egress.pictures.iter().map(row).collect();
        page.table(&[("camera", 50), ("pictures", 20), ("records", 30)], rows);
    }
    more(page, egress.unlisted, "records of further destinations");
}

fn events(page: &mut Page, section: &EventSection) {
    page.heading(2, section.title);
    counts(page, &section.counts);
    let row = |of: &crate::document::EventRow| {
        let fields = of.fields.iter().map(|(name, value)| format!("{name}={}", plain(value)));
        let note = of.note.map(str::to_owned);
        vec![
            Cell::text(&of.at),
            Cell::text(&of.caller),
            Cell::text(of.action),
            Cell::text(fields.chain(note).collect::<Vec<_>>().join("  ")),
            Cell::small(format!("{}/{}", of.log, of.record)),
        ]
    };
    let rows = section.rows.iter().map(row).collect();
    page.table(&[("time", 13), ("caller", 18), ("event", 22), ("what", 37), ("record", 10)], rows);
    more(page, section.unlisted, "events, which are in the counts");
}

fn findings(page: &mut Page, findings: &Findings) {
    if findings.rows.is_empty() {
        return;
    }
    page.heading(2, "Findings about models and objectives");
    let row = |of: &FindingRow| {
        let version = of.version.map_or_else(String::new, |version| format!(", version {version}"));
        let records = of.began_evidence.iter().chain(&of.ended_evidence).cloned().collect::<Vec<_>>();
        vec![
            Cell::text(format!("{}{version}", of.finding)),
            Cell::text(of.worst),
            Cell::text(&of.first),
            Cell::number(of.began),
            Cell::number(of.ended),
            evidence(&records),
        ]
    };
    let rows = findings.rows.iter().map(row).collect();
    page.table(
        &[("finding", 36), ("worst", 8), ("first record", 18), ("began", 8), ("ended", 8), ("records", 22)],
        rows,
    );
    more(page, findings.unlisted, "records of further findings");
}

fn drift(page: &mut Page, drift: &DriftOfMonth) {
    if drift.references.is_empty() && drift.rollbacks.is_empty() {
        return;
    }
    page.heading(2, "Drift of models");
    let row = |of: &ReferenceRow| {
        let (version, records) = (Cell::number(of.version), evidence(&of.evidence));
        vec![Cell::text(&of.model), version, Cell::text(&of.reference), Cell::text(&of.fixed), records]
    };
    let rows = drift.references.iter().map(row).collect();
    page.table(&[("model", 36), ("version", 10), ("reference", 16), ("since", 20), ("records", 18)], rows);
    let row = |of: &RollbackRow| {
        vec![Cell::text(&of.subject), Cell::number(of.version), Cell::text(&of.at), evidence(&of.evidence)]
    };
    let rows: Vec<_> = drift.rollbacks.iter().map(row).collect();
    if rows.is_empty() {
        page.paragraph("No release was taken back because of drift.");
    } else {
        page.heading(3, "Taken back because of drift");
        page.table(&[("release", 46), ("version", 12), ("at", 22), ("records", 20)], rows);
    }
    more(page, drift.unlisted, "records of further versions");
}

/// A section that is not made of the audit log.
fn own_figures(page: &mut Page, section: &AddedSection) {
    page.heading(2, section.title);
    page.paragraph(&format!("The box's own figures, which are not signed. {}", section.note));
    let cell = |value: &Value| match (value.as_u64(), value) {
        (Some(number), _) => Cell::number(number),
        (_, Value::Number(number)) => Cell::decimal(number),
        _ => Cell::text(plain(value)),
    };
    // The source is below its figures: beside them, large ones would not fit on paper.
    let rows = |row: &AddedRow| {
        let FigureSource { file, key, show } = &row.source;
        [row.cells.iter().map(cell).collect(), vec![Cell::small(format!("{file}: {key}; {show}"))]]
    };
    page.table(&section.columns, section.rows.iter().flat_map(rows).collect());
}

fn counts(page: &mut Page, counts: &[ActionCount]) {
    let row = |of: &ActionCount| {
        vec![Cell::text(of.action), Cell::number(of.events), Cell::number(of.records), evidence(&of.evidence)]
    };
    page.table(&[("event", 34), ("number", 13), ("records", 13), ("which", 40)], counts.iter().map(row).collect());
}

fn settings(page: &mut Page, settings: &BTreeMap<String, Value>) {
    let row = |(key, value): (&String, &Value)| vec![Cell::text(key), Cell::text(plain(value))];
    page.table(&[("setting", 50), ("value", 50)], settings.iter().map(row).collect());
}

/// A value as text.
fn plain(value: &Value) -> String {
    match value {
        Value::Null => "not set".to_owned(),
        Value::String(text) if text.is_empty() => "not set".to_owned(),
        Value::Array(list) if list.is_empty() => "not set".to_owned(),
        Value::String(text) => text.clone(),
        other => other.to_string(),
    }
}

fn write_annex(page: &mut Page, annex: &AnnexReport) {
    page.new_sheet();
    page.heading(2, &annex.title);
    page.paragraph(&annex.note);
    let row = |of: &DutyReport| {
        let records = of.records.iter().map(|records| match &records.found {
            None => format!("{}: no record", records.action),
            Some(found) => {
                let places: Vec<_> = found.evidence.iter().map(Evidence::to_string).collect();
                format!("{}: {}", records.action, places.join("; "))
            }
        });
        let settings = of.settings.iter().map(|(key, value)| format!("{key} = {}", plain(value)));
        let head = of.log_head.then(|| "the verified head of the log".to_owned());
        vec![
            Cell::text(&of.article),
            Cell::text(&of.duty),
            Cell::text(&of.fact),
            Cell::lines(records.chain(settings).chain(head).collect()),
            Cell::text(&of.owner),
        ]
    };
    let rows = annex.duties.iter().map(row).collect();
    page.table(
        &[("article", 12), ("duty", 23), ("what this box does", 23), ("evidence", 24), ("remains with the owner", 18)],
        rows,
    );
}

fn more(page: &mut Page, unlisted: u64, what: &str) {
    if unlisted > 0 {
        page.paragraph(&format!("And {unlisted} more {what}."));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn text_is_escaped_wherever_it_stands() {
        let mut page = Page::new("<t>");
        page.heading(1, "<h1>");
        page.paragraph("a & <b>");
        page.list(&["<li>".to_owned()]);
        page.pairs(&[("<k>", "<v>".to_owned())]);
        page.table(
            &[("<c>", 100)],
            vec![vec![Cell::text("<script>alert('x')</script>")], vec![Cell::lines(vec!["\"<i>\"".into()])]],
        );
        let text = page.finish();
        let body = text.split_once("</style>").unwrap().1;
        for raw in ["<t>", "<b>", "<v>", "<c>", "<script>", "<i>", "'x'"] {
            assert!(!body.contains(raw), "{raw}: {body}");
        }
        assert!(!text.contains("http://") && !text.contains("https://") && !text.contains("url("));
    }

    #[test]
    fn a_value_without_content_is_not_set() {
        assert_eq!([plain(&Value::Null), plain(&"".into()), plain(&7.into())], ["not set", "not set", "7"]);
    }
}
