//! All numbers of the report of a simulated month: each has a record or a source, and the page has the same ones.

use std::collections::BTreeMap;

use ledge::audit_event::tag::TagKey;
use serde_json::{Map, Value};

use crate::audit_log::AuditBox;
use crate::daemon::{TestRoot, write};
use crate::simulated_month::{add_own_figures, simulated_month};

fn output(root: &TestRoot, verb: &[&str]) -> String {
    let output = root.command(verb).output().unwrap();
    assert!(output.status.success(), "{verb:?}: {}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8(output.stdout).unwrap()
}

fn written_month() -> (AuditBox, Value) {
    let written = simulated_month(&TagKey::new(20_000, [5; 32]));
    add_own_figures(written.root.folder.path());
    let report = output(&written.root, &["report", "--month", "2026-11", "--format", "json"]);
    (written, serde_json::from_str(&report).unwrap())
}

/// Looks for the provenance of each number below `value`.
struct Walk<'a> {
    /// All records of the log, by number.
    records: &'a BTreeMap<u64, Value>,
    settings: &'a Value,
    report: &'a Value,
    traced: BTreeMap<&'static str, u64>,
}

impl Walk<'_> {
    fn walk<'v>(&mut self, value: &'v Value, path: &str, around: &mut Vec<&'v Map<String, Value>>) {
        match value {
            Value::Object(members) => {
                around.push(members);
                if members.contains_key("show") && members.contains_key("first") {
                    self.check_evidence(members, path);
                }
                for (name, member) in members {
                    self.walk(member, &format!("{path}/{name}"), around);
                }
                around.pop();
            }
            Value::Array(items) => {
                for item in items {
                    self.walk(item, path, around);
                }
            }
            Value::Number(_) => {
                let how = self.trace(value, path, around);
                *self.traced.entry(how).or_default() += 1;
            }
            _ => {}
        }
    }

    /// The records that are named exist, with the actions that are named.
    fn check_evidence(&self, evidence: &Map<String, Value>, path: &str) {
        let number = |name: &str| evidence[name].as_u64().unwrap();
        let options: Vec<&str> = evidence["show"].as_str().unwrap().split(' ').collect();
        let actions: Vec<_> = options.windows(2).filter(|pair| pair[0] == "--action").map(|pair| pair[1]).collect();
        let range = number("first")..=number("last");
        let of_actions = |record: &&Value| actions.contains(&record["event"]["action"].as_str().unwrap());
        let found = self.records.range(range).map(|(_, record)| record).filter(of_actions).count() as u64;
        assert!(found >= number("records") && number("records") > 0, "{path}: {evidence:?}");
        for seq in evidence.get("seqs").and_then(Value::as_array).into_iter().flatten() {
            assert!(of_actions(&&self.records[&seq.as_u64().unwrap()]), "{path}: record {seq}");
        }
    }

    /// The provenance of a number. Panics without one.
    fn trace(&self, value: &Value, path: &str, around: &[&Map<String, Value>]) -> &'static str {
        if path.contains("/settings/") {
            let key = path.rsplit('/').next().unwrap().replace('.', "/");
            assert_eq!(self.settings.pointer(&format!("/{key}")), Some(value), "{path}");
            return "setting";
        }
        match path {
            "/calls/total/us_max" => return "total",
            "/coverage/records" => {
                let sum = self.report["records"].as_array().unwrap().iter().map(|of| of["records"].as_u64().unwrap());
                assert_eq!(value.as_u64(), Some(sum.sum()), "{path}");
                return "total";
            }
            _ => {}
        }
        if let Some(column) = path.strip_prefix("/calls/total/") {
            let rows = self.report["calls"]["rows"].as_array().unwrap();
            assert_eq!(value.as_u64(), Some(rows.iter().map(|row| row[column].as_u64().unwrap()).sum()), "{path}");
            return "total";
        }
        // Nothing is left out of this report, and everything is signed.
        let name = path.rsplit('/').next().unwrap();
        if ["unlisted", "more_findings", "unsigned"].contains(&name) {
            assert_eq!(value.as_u64(), Some(0), "{path}");
            return "nothing";
        }
        for members in around.iter().rev() {
            if members.contains_key("root") && members.contains_key("verifier_key") {
                return "signed head";
            }
            if let (Some(record), true) = (members.get("record"), members.contains_key("log")) {
                let record = &self.records[&record.as_u64().unwrap()];
                for (name, field) in members.get("fields").and_then(Value::as_object).into_iter().flatten() {
                    assert_eq!(&record["event"][name], field, "{path}");
                }
                return "record";
            }
            if members.contains_key("show") {
                return "evidence";
            }
            let has_evidence = |name: &&str| {
                let of = members.get(*name);
                of.is_some_and(|of| of.is_object() || of.as_array().is_some_and(|list| !list.is_empty()))
            };
            let names = ["evidence", "began_evidence", "ended_evidence", "loaded"];
            if let Some(name) = names.iter().find(|name| has_evidence(name)) {
                let is_own = !path.ends_with("/ended") || *name != "began_evidence" || value.as_u64() == Some(0);
                assert!(is_own || has_evidence(&"ended_evidence"), "{path}: {value}");
                return "evidence";
            }
            if let Some(source) = members.get("source") {
                let text = |name: &str| !source[name].as_str().unwrap_or_default().is_empty();
                assert!(text("file") && text("key") && text("show"), "{path}: {source}");
                return "source";
            }
        }
        panic!("{path}: {value} has neither a record nor a source");
    }
}

#[test]
fn every_number_of_a_report_has_a_record_a_source_or_a_setting() {
    let (written, report) = written_month();
    let lines = output(&written.root, &["audit", "show", "--json", "--generation", "1"]);
    let records = lines.lines().map(|line| serde_json::from_str::<Value>(line).unwrap());
    let records = records.map(|record| (record["seq"].as_u64().unwrap(), record)).collect();
    let settings = serde_json::to_value(ledge::config::Config::default()).unwrap();
    let mut walk = Walk { records: &records, settings: &settings, report: &report, traced: BTreeMap::new() };
    walk.walk(&report, "", &mut Vec::new());
    for how in ["evidence", "record", "source", "setting", "signed head", "total"] {
        assert!(walk.traced.get(how).is_some_and(|count| *count > 0), "{how}: {:?}", walk.traced);
    }

    // The walk does not pass a number without any.
    let mut bare = report["calls"]["rows"][0].clone();
    bare["evidence"] = Value::Array(Vec::new());
    let mut walk = Walk { records: &records, settings: &settings, report: &report, traced: BTreeMap::new() };
    let walked = std::panic::AssertUnwindSafe(|| walk.walk(&bare, "/calls/rows", &mut Vec::new()));
    assert!(std::panic::catch_unwind(walked).is_err());
}

#[test]
fn findings_and_drift_of_a_month_are_those_of_the_log() {
    let (_, report) = written_month();
    let rows = report["findings"]["rows"].as_array().unwrap();
    let row = |finding: &str| rows.iter().find(|row| row["finding"] == finding).unwrap();
    let drift = row("drift minilm");
    assert_eq!((drift["began"].as_u64(), drift["ended"].as_u64(), &drift["worst"]), (Some(2), Some(1), &"warn".into()));
    let objective = row("objective wine latency");
    assert_eq!((objective["began"].as_u64(), &objective["worst"]), (Some(1), &"fail".into()));
    let references = report["drift"]["references"].as_array().unwrap();
    let of = |reference: &&Value| (reference["model"].clone(), reference["reference"].clone());
    let references: Vec<_> = references.iter().map(|reference| of(&reference)).collect();
    assert_eq!(references, [("minilm".into(), "inherited".into()), ("wine_mlp".into(), "accepted".into())]);
    let [back] = report["drift"]["rollbacks"].as_array().unwrap().as_slice() else { panic!("{}", report["drift"]) };
    assert_eq!((&back["subject"], back["version"].as_u64()), (&"models/minilm".into(), Some(5)));
}

#[test]
fn own_figures_are_those_that_the_command_of_their_source_prints() {
    let (written, report) = written_month();
    let sections: Vec<_> = report["own_figures"].as_array().unwrap().clone();
    let names: Vec<_> = sections.iter().map(|section| section["name"].as_str().unwrap()).collect();
    assert_eq!(names, ["objectives", "accounts", "drift_watch"]);
    let daemon = written.root.start_ready();
    let get = |format: &str| daemon.unix_client().get(&format!("/accounts?month=2026-11&format={format}"));
    let (table, document) = (String::from_utf8(get("csv").body).unwrap(), get("json").json());
    let lines: Vec<Vec<&str>> = table.lines().skip(1).map(|line| line.split(',').collect()).collect();
    let (mut found, close) = (0, |a: &Value, b: f64| (a.as_f64().unwrap() - b).abs() < 1e-9);
    for row in sections[1]["rows"].as_array().unwrap() {
        let cells = row["cells"].as_array().unwrap();
        let Some(line) = lines.iter().find(|line| cells[0] == line[1] && cells[1] == line[2]) else {
            let total = &document["total"];
            assert!(cells[0] == "total" && cells[2] == total["calls"] && cells[6] == total["bytes_in"], "{row}");
            continue;
        };
        found += 1;
        for (cell, text) in cells.iter().skip(2).zip(line.iter().skip(3)) {
            assert!(close(cell, text.parse().unwrap()), "{row}: {line:?}");
        }
    }
    assert_eq!(found, 4);
    let objectives = sections[0]["rows"].as_array().unwrap();
    assert_eq!(objectives.len(), 2);
    for (row, of) in objectives.iter().zip(document["objectives"].as_array().unwrap()) {
        let keys = ["name", "kind", "target", "within_ms", "good", "bad", "reached", "budget_left"];
        assert_eq!(row["cells"], Value::Array(keys.map(|key| of[key].clone()).to_vec()), "{of}");
    }
}

/// The numbers of the tables of a page, in order.
fn numbers_of_page(page: &str) -> Vec<String> {
    let cells = page.split("<td class=\"number\">").skip(1);
    cells.map(|cell| cell.split("</td>").next().unwrap().replace('\u{202f}', "")).collect()
}

/// The numbers of the tables of a report, in the order of its page.
fn numbers_of_tables(report: &Value) -> Vec<String> {
    let mut numbers = Vec::new();
    let mut add = |rows: &Value, columns: &[&str]| {
        for row in rows.as_array().unwrap() {
            numbers.extend(
                columns.iter().filter(|column| !row[**column].is_null()).map(|column| row[*column].to_string()),
            );
        }
    };
    add(&report["models"]["served"], &["version"]);
    let calls = report["calls"]["rows"].as_array().unwrap().iter().map(|row| {
        let number = |name: &str| row[name].as_u64().unwrap();
        let not_run = number("refused") + number("late") + number("unavailable");
        let mean_ms = (number("us") / number("calls")).div_ceil(1000);
        serde_json::json!({"a": number("calls"), "b": number("failed"), "c": not_run, "d": mean_ms})
    });
    add(&Value::Array(calls.collect()), &["a", "b", "c", "d"]);
    add(&report["features"]["rows"], &["calls", "rows"]);
    add(&report["egress"]["sent"], &["bytes"]);
    add(&report["egress"]["connections"], &["connections"]);
    add(&report["egress"]["pictures"], &["pictures"]);
    for section in report["events"].as_array().unwrap() {
        add(&section["counts"], &["events", "records"]);
    }
    add(&report["findings"]["rows"], &["began", "ended"]);
    add(&report["drift"]["references"], &["version"]);
    add(&report["drift"]["rollbacks"], &["version"]);
    for section in report["own_figures"].as_array().unwrap() {
        for row in section["rows"].as_array().unwrap() {
            let numeric = row["cells"].as_array().unwrap().iter().filter(|cell| cell.is_number());
            add(&Value::Array(numeric.map(|cell| serde_json::json!({"n": cell})).collect()), &["n"]);
        }
    }
    add(&report["records"], &["events", "records"]);
    numbers
}

#[test]
fn the_page_has_the_numbers_of_the_json() {
    let (written, report) = written_month();
    let page = output(&written.root, &["report", "--month", "2026-11"]);
    let (of_page, of_json) = (numbers_of_page(&page), numbers_of_tables(&report));
    assert!(of_json.len() > 200, "{}", of_json.len());
    assert_eq!(of_page, of_json);
    for part in ["Findings about models and objectives", "Drift of models", "Objectives", "Accounts", "not signed"] {
        assert!(page.contains(part), "{part}");
    }
    assert!(!page.contains("<b>"));
}

#[test]
fn a_damaged_file_of_accounts_is_named_and_the_report_goes_on() {
    let (written, _) = written_month();
    let file = written.root.folder.path().join("accounts/2026-11.month");
    write(&file, b"LACC and nothing else");
    let report: Value =
        serde_json::from_str(&output(&written.root, &["report", "--month", "2026-11", "--format", "json"])).unwrap();
    let section = &report["own_figures"][0];
    assert!(section["note"].as_str().unwrap().contains("cannot be read"), "{section}");
    assert_eq!(section["rows"], Value::Array(Vec::new()));
    assert!(file.exists(), "a report changes nothing");
}
