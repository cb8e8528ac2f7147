//! The report of a month: each number of it is made again from the records that it names.

use std::collections::BTreeMap;
use std::process::Output;

use ledge::audit_event::AuditEvent;
use ledge::audit_event::tag::TagKey;
use ledge::principal::Principal;
use serde_json::{Value, json};

use crate::audit_log::AuditBox;
use crate::daemon::{TestRoot, write};
use crate::simulated_month::{at, simulated_month};

fn report(written: &AuditBox, month: &str) -> (Option<i32>, Value) {
    let output = written.root.command(&["report", "--month", month, "--format", "json"]).output().unwrap();
    let error = String::from_utf8_lossy(&output.stderr).into_owned();
    let parsed = serde_json::from_slice(&output.stdout);
    (output.status.code(), parsed.unwrap_or_else(|parse| panic!("{parse}: {error}")))
}

fn stdout(output: Output) -> String {
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8(output.stdout).unwrap()
}

/// The records of a number, by the command that its evidence names. They are as many as it says.
fn records(written: &AuditBox, evidence: &Value, keep: impl Fn(&Value) -> bool) -> Vec<Value> {
    let mut found = Vec::new();
    for part in evidence.as_array().unwrap() {
        let show: Vec<&str> = part["show"].as_str().unwrap().split(' ').collect();
        let shown =
            stdout(written.root.command(&[&["audit", "show", "--json"], show.as_slice()].concat()).output().unwrap());
        let lines = shown.lines().map(|line| serde_json::from_str::<Value>(line).unwrap());
        let lines: Vec<_> = lines.filter(|record| keep(record)).collect();
        assert_eq!(lines.len() as u64, part["records"].as_u64().unwrap(), "{part}");
        if let Some(seqs) = part["seqs"].as_array() {
            assert_eq!(&lines.iter().map(|record| record["seq"].clone()).collect::<Vec<_>>(), seqs, "{part}");
        }
        found.extend(lines);
    }
    found
}

fn sum(records: &[Value], field: &str) -> u64 {
    records.iter().map(|record| record["event"][field].as_u64().unwrap_or(0)).sum()
}

fn number(value: &Value) -> u64 {
    value.as_u64().unwrap_or_else(|| panic!("{value}"))
}

#[test]
fn every_number_of_a_simulated_month_is_that_of_the_records_that_it_names() {
    let key = TagKey::new(20_000, [5; 32]);
    let written = simulated_month(&key);
    let (exit, report) = report(&written, "2026-11");
    assert_eq!((exit, &report["coverage"]["complete"]), (Some(0), &json!(true)), "{}", report["coverage"]);
    let all = |_: &Value| true;

    // The callers, and their counts.
    let mut total = BTreeMap::<&str, u64>::new();
    let rows = report["calls"]["rows"].as_array().unwrap();
    for row in rows {
        let made = records(&written, &row["evidence"], |record| record["event"]["model"] == row["model"]);
        assert_eq!(number(&row["calls"]), sum(&made, "calls"), "{row}");
        assert_eq!(number(&row["us"]), sum(&made, "us"), "{row}");
        for outcome in ["ok", "failed", "refused", "late", "unavailable"] {
            let of: Vec<_> = made.iter().filter(|record| record["event"]["outcome"] == outcome).cloned().collect();
            assert_eq!(number(&row[outcome]), sum(&of, "calls"), "{outcome}: {row}");
            *total.entry(outcome).or_default() += number(&row[outcome]);
        }
    }
    assert!(rows.len() >= 10, "{} rows", rows.len());
    for (outcome, calls) in total {
        assert_eq!(number(&report["calls"]["total"][outcome]), calls, "{outcome}");
    }
    for row in report["features"]["rows"].as_array().unwrap() {
        let made = records(&written, &row["evidence"], all);
        assert_eq!((number(&row["calls"]), number(&row["rows"])), (sum(&made, "calls"), sum(&made, "rows")), "{row}");
    }

    // The traffic that left the box: the bytes are the difference of the first and the last total.
    let egress = &report["egress"];
    assert_eq!(egress["inputs"], json!(["pictures"]));
    for row in egress["sent"].as_array().unwrap() {
        let destination = |record: &Value| record["event"]["destination"] == row["destination"];
        let made = records(&written, &row["evidence"], destination);
        let total = |record: &Value| record["event"]["sent"][row["kind"].as_str().unwrap()].as_u64().unwrap();
        assert_eq!(number(&row["bytes"]), total(made.last().unwrap()) - total(&made[0]), "{row}");
        assert!(made.last().unwrap()["ts"].as_str().unwrap() >= "2026-11-2", "{row}");
    }
    // A day in which the box sent 1000 bytes of the log; 30 days from midnight to midnight.
    let audit = egress["sent"].as_array().unwrap().iter().find(|row| row["kind"] == "audit").unwrap();
    assert_eq!(audit["bytes"], json!(30_000));
    for (table, field) in [("connections", "connections"), ("pictures", "pictures")] {
        for row in egress[table].as_array().unwrap() {
            let made = records(&written, &row["evidence"], all);
            let expected = match table {
                "connections" => made.len() as u64 + sum(&made, "others"),
                _ => sum(&made, "pictures"),
            };
            assert_eq!(number(&row[field]), expected, "{row}");
        }
    }

    // The versions that ran: each time begins and ends with its record.
    for served in report["models"]["served"].as_array().unwrap() {
        let [loaded] = records(&written, &json!([served["loaded"]]), all).try_into().unwrap();
        assert!(loaded["event"]["model"] == served["model"] && loaded["event"]["version"] == served["version"]);
        assert!(loaded["ts"].as_str().unwrap()[..19] == served["from"].as_str().unwrap()[..19], "{served}");
        if !served["ended"].is_null() {
            records(&written, &json!([served["ended"]]), all);
        }
    }
    let ended: Vec<_> =
        report["models"]["served"].as_array().unwrap().iter().map(|of| of["ended_by"].clone()).collect();
    assert_eq!(ended.iter().filter(|by| *by == "restarted").count(), 2, "{ended:?}");
    assert_eq!(ended.iter().filter(|by| *by == "unloaded").count(), 1, "{ended:?}");

    // Events, and the counts of all actions.
    let counts = report["events"].as_array().unwrap().iter().flat_map(|section| section["counts"].as_array().unwrap());
    for count in counts.clone().chain(report["records"].as_array().unwrap()) {
        let of_section = |record: &Value| at(record["ts"].as_str().unwrap()) >= at("2026-11-01T00:00:00Z");
        let made = records(&written, &count["evidence"], of_section);
        assert_eq!(number(&count["records"]), made.len() as u64, "{count}");
    }
    let section = |name: &str| {
        report["events"].as_array().unwrap().iter().find(|section| section["name"] == name).unwrap().clone()
    };
    let failed = section("incidents")["counts"]
        .as_array()
        .unwrap()
        .iter()
        .find(|of| of["action"] == "authentication_failed")
        .unwrap()
        .clone();
    assert_eq!((number(&failed["records"]), number(&failed["events"])), (1, 42));
    let restart =
        section("incidents")["rows"].as_array().unwrap().iter().find(|row| row["action"] == "started").unwrap().clone();
    assert!(restart["note"].as_str().unwrap().contains("without an orderly stop"), "{restart}");
    let erasure = &section("subjects")["rows"][0];
    assert_eq!((&erasure["action"], &erasure["fields"]["records"]), (&json!("feature_entity_erased"), &json!(2)));

    // Any of these records can be proved.
    let proof = written.root.folder.path().join("erasure.tlog-proof");
    let seq = erasure["record"].to_string();
    stdout(written.root.command(&["audit", "prove", &seq, "--out", proof.to_str().unwrap()]).output().unwrap());
    let mut checked =
        written.root.command(&["audit", "check", proof.to_str().unwrap(), "--key", written.key.verifier_key()]);
    assert!(stdout(checked.output().unwrap()).contains("feature_entity_erased"));

    // The annexes show the same records.
    let annexes = report["annexes"].as_array().unwrap();
    let names: Vec<_> = annexes.iter().map(|annex| annex["name"].as_str().unwrap()).collect();
    assert_eq!(names, ["uae-45-2021", "gdpr"]);
    let duties = annexes.iter().flat_map(|annex| annex["duties"].as_array().unwrap());
    let erased =
        duties.flat_map(|duty| duty["records"].as_array().unwrap()).find(|of| of["action"] == "feature_entity_erased");
    assert_eq!(erased.unwrap()["evidence"][0]["seqs"], json!([erasure["record"]]));
}

#[test]
fn a_month_that_is_not_covered_says_so() {
    let key = TagKey::new(20_000, [5; 32]);
    let written = simulated_month(&key);
    let notes = |month: &str| {
        let (_, report) = report(&written, month);
        (report["coverage"]["complete"] == true, report["coverage"]["notes"].to_string())
    };
    let (complete, october) = notes("2026-10");
    assert!(complete && october.contains("the box was new"), "{october}");
    let (complete, september) = notes("2026-09");
    assert!(!complete && september.contains("no record of this month"), "{september}");
    let (complete, future) = notes("2999-01");
    assert!(!complete && future.contains("The month is not over"), "{future}");
}

#[test]
fn a_log_that_is_damaged_or_was_begun_by_a_restore_is_named_in_the_report() {
    let key = TagKey::new(20_000, [5; 32]);
    let written = simulated_month(&key);
    let bundle = written.folder().join("tile/entries/001");
    let mut bytes = std::fs::read(&bundle).unwrap();
    let digit = bytes.windows(9).position(|part| part == b"\"calls\":1").unwrap() + 8;
    bytes[digit] = b'9';
    write(&bundle, &bytes);
    let (exit, damaged) = report(&written, "2026-11");
    let (_, october) = report(&written, "2026-10");
    assert_eq!((exit, &damaged["coverage"]["complete"]), (Some(5), &json!(false)));
    for report in [&damaged, &october] {
        let [log] = report["coverage"]["logs"].as_array().unwrap().as_slice() else { panic!("{report}") };
        assert_eq!(log["verdict"], "tampered");
        let at = number(&log["findings"][0]["record"]);
        assert!((256..512).contains(&at), "the place of the damage: {log}");
    }

    let mut restored = AuditBox::new();
    let begun = AuditEvent::LogBegun { cause: "restored".into(), previous: None };
    restored.write_all(vec![(at("2026-11-12T00:00:00Z"), Principal::Local, begun)], None);
    restored.sign();
    let (_, report) = report(&restored, "2026-11");
    assert_eq!(report["coverage"]["complete"], json!(false));
    assert!(report["coverage"]["notes"].to_string().contains("cause: restored"), "{}", report["coverage"]);
}

#[test]
fn the_daemon_answers_with_the_report_as_a_page_and_as_json() {
    let daemon = TestRoot::new().start_ready();
    // It is answered when its record, and those before it, are in the log.
    let made = daemon.unix_client().post_json("/keys", &json!({"name": "till-7", "roles": ["infer"]}));
    assert_eq!(made.status, 200, "{}", made.error());
    let page = daemon.unix_client().get("/report?month=2026-11");
    let text = String::from_utf8(page.body.clone()).unwrap();
    assert!(page.status == 200 && page.header("content-type") == Some("text/html; charset=utf-8"), "{page:?}");
    assert!(text.contains("Report of 2026-11") && !text.contains("<script"), "{text}");
    let month = &ledge::clock::rfc3339(ledge::clock::unix_millis())[..7];
    let now = daemon.unix_client().get(&format!("/report?month={month}&format=json")).json();
    assert!(number(&now["coverage"]["records"]) > 0 && now["coverage"]["complete"] == false, "{now}");
    assert_eq!(daemon.unix_client().get("/report?month=november").status, 400);
}

#[test]
fn a_page_has_every_section_and_escapes_names() {
    let key = TagKey::new(20_000, [5; 32]);
    let written = simulated_month(&key);
    let page = stdout(written.root.command(&["report", "--month", "2026-11"]).output().unwrap());
    for part in [
        "Report of 2026-11",
        "Coverage and evidence",
        "What ran",
        "Who asked, and how much",
        "What left the box",
        "Erasures and disclosures",
        "Incidents",
        "Annex: Federal Decree-Law No. 45 of 2021",
        "Annex: Regulation (EU) 2016/679",
    ] {
        assert!(page.contains(part), "{part}");
    }
    assert!(!page.contains("<b>") && !page.contains("<script") && !page.contains("http://"));
    for absent in ["todo", "placeholder"] {
        assert!(!page.to_lowercase().contains(absent), "{absent}");
    }
}
