//! Rows in place of tensors: JSON and CSV of any length, and mistakes in them.

use std::fmt::Write as _;
use std::io::{Read, Write};
use std::net::TcpStream;
use std::time::Duration;

use serde_json::{Value, json};

use crate::client::{Client, Response};
use crate::daemon::{TestDaemon, TestRoot};
use crate::table_golden::{Golden, MODELS, committed, exports};

const COLUMNS: &str = "[pipeline.table]\ncolumns = [{ name = \"a\" }, { name = \"b\", missing = \"nan\" }]\n";
const CSV: (&str, &str) = ("content-type", "text/csv");

/// A model that answers a row with the row.
fn echo() -> TestRoot {
    TestRoot::new().model_as("identity_fp64", "echo").file("echo/model.toml", COLUMNS)
}

fn infer(client: &mut Client, model: &str, headers: &[(&str, &str)], body: &[u8]) -> Response {
    client.post(&format!("/v2/models/{model}/infer"), headers, body)
}

fn json_rows(client: &mut Client, model: &str, rows: &Value) -> Response {
    infer(client, model, &[("content-type", "application/json")], rows.to_string().as_bytes())
}

#[track_caller]
fn refusal(answer: &Response, status: u16) -> String {
    assert_eq!(answer.status, status, "{answer:?}");
    answer.error()
}

fn csv_of(rows: std::ops::Range<usize>) -> String {
    rows.fold("a,b\n".to_owned(), |mut text, row| {
        let _ = writeln!(text, "{row},{}.5", row % 7);
        text
    })
}

#[test]
fn rows_in_json_and_csv_are_predicted_as_the_library_of_each_export_predicts_them() {
    let daemon = exports(TestRoot::new(), &committed()).start();
    let client = &mut daemon.client();
    for model in MODELS {
        let golden = Golden::of(&committed(), model);
        let answer = json_rows(client, model, &golden.json());
        assert_eq!(answer.status, 200, "{model}: {answer:?}");
        let rows = answer.json()["rows"].clone();

        let answer = infer(client, model, &[CSV], golden.csv().as_bytes());
        assert_eq!(
            (answer.status, answer.header("content-type")),
            (200, Some("text/csv; charset=utf-8")),
            "{answer:?}"
        );
        let (header, answers) = Golden::csv_answers(&answer.body);
        golden.compare(model, &answers);

        assert_eq!(Golden::answers(&rows), answers, "{model}: {header}");
        assert!(header == "value" || header.starts_with("class,probability_") || header == "class", "{header}");
    }
}

#[test]
fn rows_of_one_call_keep_their_order_over_many_runs() {
    let daemon = echo().start();
    let client = &mut daemon.client();
    let rows: Value = (0..3000).map(|row| json!({"b": row % 7, "a": row})).collect();
    let answer = json_rows(client, "echo", &rows).json();
    let expected: Value = (0..3000).map(|row| json!({"values": [f64::from(row), f64::from(row % 7)]})).collect();
    assert_eq!(answer["rows"], expected);
    let (requests, _) = daemon.counted("echo");
    assert_eq!(requests, Some(1), "one call");

    let one = json_rows(client, "echo", &json!({"a": 1, "b": 2})).json();
    assert_eq!(one["rows"], json!([{"values": [1.0, 2.0]}]));
    let request = json!({"inputs": [{"name": "IN", "shape": [1, 2], "datatype": "FP64", "data": [1, 2]}]});
    assert_eq!(json_rows(client, "echo", &request).json()["outputs"][0]["data"], json!([1.0, 2.0]), "tensors still");
}

#[test]
fn a_column_may_have_the_name_of_a_member_of_requests() {
    let config = "[pipeline.table]\ncolumns = [{ name = \"inputs\" }, { name = \"id\" }]\n";
    let daemon = TestRoot::new().model_as("identity_fp64", "echo").file("echo/model.toml", config).start();
    let answer = json_rows(&mut daemon.client(), "echo", &json!({"inputs": 3, "id": 4}));
    assert_eq!(answer.json()["rows"], json!([{"values": [3.0, 4.0]}]));
}

#[test]
fn a_row_that_cannot_be_answered_is_named_and_too_many_are_refused() {
    let daemon = echo().start();
    let client = &mut daemon.client();
    let many = |count: usize| Value::from(vec![json!({"a": 1, "b": 1}); count]);
    let with = |mut rows: Value, row: usize, wrong: Value| {
        rows[row] = wrong;
        rows
    };
    let message = refusal(&json_rows(client, "echo", &with(many(2000), 1234, json!({"a": "warm"}))), 400);
    assert_eq!(message, "row 1234: column \"a\" is \"warm\", expected a number");
    let message = refusal(&json_rows(client, "echo", &with(many(2000), 1234, json!([1]))), 400);
    assert_eq!(message, "row 1234: invalid type: sequence, expected an object with the columns of a row");
    let message = refusal(&json_rows(client, "echo", &with(many(3), 1, json!({"c": "x".repeat(9000)}))), 400);
    assert_eq!(message, "row 1: the model has no column \"c\"");
    let message = refusal(&json_rows(client, "echo", &json!({"a": "x".repeat(9000)})), 400);
    assert!(message.len() < 200, "{message}");
    assert!(refusal(&json_rows(client, "echo", &many(10_001)), 413).contains("10000"));
    assert_eq!(json_rows(client, "echo", &many(10_000)).status, 200);
    assert_eq!(refusal(&json_rows(client, "echo", &json!([])), 400), "there is no row");
    assert!(refusal(&infer(client, "echo", &[], b"[{\"a\": 1}"), 400).starts_with("the rows cannot be read: "));
}

#[test]
fn csv_that_is_wrong_is_told_before_the_answer_begins() {
    let daemon = echo().models(&["add_sub"]).start();
    let client = &mut daemon.client();
    let mut told = |text: &[u8], status: u16| refusal(&infer(client, "echo", &[CSV], text), status);
    let no_row = told(b"", 400);
    assert!(no_row.starts_with("there is no row"), "{no_row}");
    assert_eq!(told(b"a,b\n", 400), no_row);
    assert_eq!(told(b"a,b\n1,2\n3\n", 400), "row 1 has 1 cells, and the header has 2");
    assert_eq!(told(b"a,b\n1,caf\xe9\n", 400), "row 0: column 1 is not UTF-8");
    assert_eq!(told(b"a,c\n1,\n", 400), "row 0: the model has no column \"c\"");
    assert_eq!(told(b"a,a\n1,2\n", 400), "row 0: column \"a\" is there twice");
    let wrong = csv_of(0..2000).replace("\n1234,", "\nwarm,");
    assert_eq!(told(wrong.as_bytes(), 400), "row 1234: column \"a\" is \"warm\", expected a number");
    // Lines without an end, of bytes and of quotes.
    for byte in [b'1', b'"', b',', 0, 0xff] {
        let endless = [b"a,b\n\"".as_slice(), &vec![byte; 9 << 20]].concat();
        let message = told(&endless, 400);
        assert!(message.len() < 200, "{message}");
    }

    let accept = |value: &'static str| [CSV, ("accept", value)];
    let message = refusal(&infer(client, "echo", &accept("application/json"), b"a,b\n1,2\n"), 406);
    assert!(message.contains("application/x-ndjson"), "{message}");
    let lines = infer(client, "echo", &accept("application/x-ndjson"), b"a,b\n1,2\n3,4\n");
    assert_eq!(String::from_utf8(lines.body).unwrap(), "{\"values\":[1.0,2.0]}\n{\"values\":[3.0,4.0]}\n");
    let message = refusal(&infer(client, "echo", &[CSV, ("content-encoding", "gzip")], b"x"), 415);
    assert!(message.contains("Content-Encoding"), "{message}");
    assert!(refusal(&infer(client, "add_sub", &[CSV], b"a\n1\n"), 400).contains("'add_sub'"));
    assert_eq!(infer(client, "unknown", &[CSV], b"a\n1\n").status, 404);
    assert_eq!(infer(client, "echo", &[CSV], b"a,b\n1,2").body, b"value_0,value_1\n1.0,2.0\n");
}

/// Sends pieces of CSV while it reads the answer, as curl does. Returns the answer, and whether it is complete.
fn stream(daemon: &TestDaemon, pieces: impl Iterator<Item = String> + Send) -> (u64, Vec<u8>, bool) {
    let mut sender = TcpStream::connect(daemon.address).unwrap();
    sender.set_read_timeout(Some(Duration::from_mins(1))).unwrap();
    let mut reader = sender.try_clone().unwrap();
    let head = "POST /v2/models/echo/infer HTTP/1.1\r\nhost: localhost\r\ncontent-type: text/csv\r\n\
                transfer-encoding: chunked\r\nconnection: close\r\n\r\n";
    std::thread::scope(|scope| {
        scope.spawn(move || {
            let send = || {
                sender.write_all(head.as_bytes())?;
                for piece in pieces {
                    write!(sender, "{:x}\r\n{piece}\r\n", piece.len())?;
                }
                sender.write_all(b"0\r\n\r\n")
            };
            // A broken answer closes the connection.
            let _ = send();
        });
        let (mut lines, mut last, mut buffer) = (0, Vec::new(), vec![0; 1 << 16]);
        while let Ok(count @ 1..) = reader.read(&mut buffer) {
            let piece = &buffer[..count];
            lines += piece.split(|byte| *byte == b'\n').skip(1).map(|_| 1).sum::<u64>();
            last.extend_from_slice(piece);
            last.drain(..last.len().saturating_sub(4096));
        }
        let is_whole = last.ends_with(b"\r\n0\r\n\r\n");
        (lines, last, is_whole)
    })
}

fn memory_kb(daemon: &TestDaemon) -> u64 {
    let status = std::fs::read_to_string(format!("/proc/{}/status", daemon.pid())).unwrap();
    let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:")).unwrap();
    line.trim().trim_end_matches(" kB").parse().unwrap()
}

#[test]
fn a_long_csv_is_answered_while_it_is_read_in_constant_memory() {
    let daemon = echo().set("log.level=\"info\"").start();
    let pieces = |rows: usize| {
        let lines = |start: usize| csv_of(start..start + 1000).replacen("a,b\n", "", 1);
        std::iter::once("a,b\n".to_owned()).chain((0..rows / 1000).map(move |piece| lines(piece * 1000)))
    };
    let (_, _, is_whole) = stream(&daemon, pieces(150_000));
    assert!(is_whole);
    let before = memory_kb(&daemon);
    let (lines, last, is_whole) = stream(&daemon, pieces(200_000));
    let text = String::from_utf8_lossy(&last);
    assert!(is_whole && lines > 200_000 && text.contains("199999.0,2.5\n"), "{lines} {text}");
    let grown = memory_kb(&daemon) - before;
    assert!(grown < 16 << 10, "{grown} kB more for 200,000 rows");
}

#[test]
fn hostile_csv_is_refused_in_bounded_memory_while_others_are_served() {
    let daemon = echo().set("log.level=\"info\"").start();
    let others = &mut daemon.client();
    let client = &mut daemon.client();
    assert_eq!(infer(client, "echo", &[CSV], csv_of(0..2000).as_bytes()).status, 200);
    let before = memory_kb(&daemon);

    // A million columns, also in a row; quotes that are never closed; bytes that are no text.
    let million = "a,".repeat(1_000_000);
    let refused: [(&[u8], &str); 10] = [
        (million.as_bytes(), "the header has more than 8192 columns"),
        (&[b"a,b\n", million.as_bytes()].concat(), "row 0 has more than 8192 columns"),
        (&[b"a,b\n".as_slice(), &vec![b'9'; 9 << 20]].concat(), "row 0 has more than 1048576 bytes"),
        (b"a,b\n1,\"2\n3,4\n5,6", "column \"b\" is \"2\\n3,4\\n5,6\", expected a number"),
        (b"\"a,b\n1,2\n", "there is no row"),
        (b"a,\xff\n1,2\n", "the header: column 1 is not UTF-8"),
        (b"a,b\n1,2\n\xc3,4\n", "row 1: column 0 is not UTF-8"),
        (b"a,b\n1,\0\n", "column \"b\" is \"\\0\", expected a number"),
        (b"a,b\0\n1,2\n", "no column \"b\\0\""),
        (&[0; 4096], "there is no row"),
    ];
    for (text, reason) in refused {
        let message = refusal(&infer(client, "echo", &[CSV], text), 400);
        assert!(message.contains(reason) && message.len() < 200, "{message}");
        assert_eq!(infer(others, "echo", &[CSV], b"a,b\n1,2\n").body, b"value_0,value_1\n1.0,2.0\n");
    }

    // Lines that never end, from callers that never stop sending. The box reads on for some seconds behind its answer,
    // so that they see it.
    let endless = [
        ("a,b\n", "1", "row 0 has more than 1048576 bytes"),
        ("a,b\n\"", "1,2\n", "row 0 has more than 1048576 bytes"),
        ("a", "a", "the header has more than 1048576 bytes"),
        ("a,b\n", ",", "row 0 has more than 8192 columns"),
        ("a,b\n", "\0", "row 0 has more than 1048576 bytes"),
    ];
    let daemon = &daemon;
    std::thread::scope(|scope| {
        for (begin, piece, reason) in endless {
            scope.spawn(move || {
                let pieces = std::iter::repeat(piece.repeat(1 << 16));
                let (_, answer, _) = stream(daemon, std::iter::once(begin.to_owned()).chain(pieces));
                let answer = String::from_utf8_lossy(&answer);
                assert!(answer.starts_with("HTTP/1.1 400 ") && answer.contains(reason), "{answer}");
            });
        }
    });
    assert_eq!(infer(others, "echo", &[CSV], b"a,b\n1,2\n").status, 200);
    let grown = memory_kb(daemon) - before;
    assert!(grown < 16 << 10, "{grown} kB more");
}

#[test]
fn an_answer_that_a_late_row_ends_is_broken_off_and_the_reason_is_logged() {
    let daemon = echo().start();
    let mistake = || {
        let rows = (0..200).map(|piece| csv_of(piece * 1000..(piece + 1) * 1000).replacen("a,b\n", "", 1));
        std::iter::once("a,b\n".to_owned()).chain(rows).chain(["warm,1\n".to_owned()])
    };
    let (_, _, is_whole) = stream(&daemon, mistake());
    assert!(!is_whole);
    let line = daemon.wait_for_event("csv.aborted");
    assert_eq!(line["reason"], "row 200000: column \"a\" is \"warm\", expected a number", "{line}");
    assert_eq!(infer(&mut daemon.client(), "echo", &[CSV], b"a,b\n1,2\n").status, 200, "others are served");
}

#[test]
fn equal_rows_are_answered_from_the_response_cache() {
    let config = format!("[response_cache]\nenable = true\n{COLUMNS}");
    let root = TestRoot::new().model_as("identity_fp64", "echo").file("echo/model.toml", config);
    let daemon = root.start();
    let client = &mut daemon.client();
    let mut outcome = |row: Value| json_rows(client, "echo", &row).header("x-ledge-cache").map(str::to_owned);
    assert_eq!(outcome(json!({"a": 1, "b": 1})).as_deref(), Some("miss"));
    assert_eq!(outcome(json!({"a": 1, "b": 1})).as_deref(), Some("hit"));
    assert_eq!(outcome(json!({"a": 2, "b": 1})).as_deref(), Some("miss"));
}

#[test]
fn rows_that_stop_coming_are_given_up() {
    let daemon = echo().set("http.body_timeout_ms=300").start();
    let client = &mut daemon.client();
    client.send(b"POST /v2/models/echo/infer HTTP/1.1\r\nhost: localhost\r\ncontent-type: text/csv\r\ncontent-length: 99\r\n\r\na,b\n1,2\n");
    let message = refusal(&client.receive(), 408);
    assert!(message.contains("http.body_timeout_ms"), "{message}");
}

#[test]
fn ledge_infer_answers_a_csv_row_by_row_here_and_at_a_server() {
    let root = echo();
    let file = root.folder.path().join("rows.csv");
    let wrong = csv_of(0..1500).replace("\n1234,", "\nwarm,");
    crate::daemon::write(&file, wrong.as_bytes());
    let text = |bytes: Vec<u8>| String::from_utf8(bytes).unwrap();
    let check = |output: std::process::Output| {
        let (out, err) = (text(output.stdout), text(output.stderr));
        assert_eq!(output.status.code(), Some(1), "one row has no answer: {err}");
        let lines: Vec<Value> = out.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
        assert_eq!(lines.len(), 1500, "{err}");
        assert_eq!((&lines[1499]["row"], &lines[1499]["rows"]), (&json!(1499), &json!([{"values": [1499.0, 1.5]}])));
        assert!(lines[1234]["error"].as_str().unwrap().contains("column \"a\" is \"warm\""), "{}", lines[1234]);
        assert_eq!(lines.iter().filter(|line| line["error"].is_string()).count(), 1, "{err}");
    };
    let path = file.to_str().unwrap();
    check(root.command(&["infer", "echo", path, "--json"]).output().unwrap());
    let results = file.with_file_name("answers.jsonl");
    let refused = root.command(&["infer", "echo", path, "--out", results.to_str().unwrap()]).output().unwrap();
    assert!(text(refused.stderr).contains("--json") && !results.exists());

    let daemon = root.start();
    let url = format!("http://{}", daemon.address);
    check(daemon.root.command(&["infer", "echo", path, "--json", "--url", &url]).output().unwrap());
    crate::daemon::write(&file, b"a,b\n1,2\n3\n");
    let table = daemon.root.command(&["infer", "echo", path, "--url", &url]).output().unwrap();
    let out = text(table.stdout);
    assert!(table.status.code() == Some(1) && out.contains("rows.csv:0") && out.contains("[1.0,2.0]"), "{out}");
    assert_eq!(out.lines().filter(|line| line.contains("rows.csv")).count(), 2, "{out}");
}

#[test]
fn columns_of_features_are_filled_from_the_store_by_the_keys_of_a_row() {
    const VIEWS: &str = r#"
[[entity]]
name = "machine"
join_key = "machine_id"
value_type = "Int64"

[[feature_view]]
name = "wear"
entities = ["machine"]
schema = [{ name = "hours", dtype = "Float64" }]
source = { name = "wear_push", timestamp_field = "event_timestamp" }
"#;
    const CONFIG: &str = "[pipeline.table]\ncolumns = [{ name = \"load\" }, \
                          { name = \"hours\", feature = \"wear:hours\", default = -1 }]\n";
    let root = TestRoot::new().model_as("identity_fp64", "echo").file("echo/model.toml", CONFIG);
    let daemon = root.views(VIEWS).start();
    let client = &mut daemon.client();
    let df = json!({"machine_id": [7, 8], "hours": [1200.5, 40]});
    assert_eq!(
        client.post_json("/push", &json!({"push_source_name": "wear_push", "df": df, "to": "online"})).status,
        200
    );

    let rows = json!([
        {"load": 1, "machine_id": 7},
        {"load": 2, "hours": 3},
        {"load": 3, "machine_id": 9},
        {"load": 4, "machine_id": 8, "hours": null},
        {"load": 5, "machine_id": 8, "hours": 6},
    ]);
    let expected = [[1.0, 1200.5], [2.0, 3.0], [3.0, -1.0], [4.0, 40.0], [5.0, 6.0]];
    let expected: Value = expected.iter().map(|values| json!({ "values": values })).collect();
    assert_eq!(json_rows(client, "echo", &rows).json()["rows"], expected);
    let csv = infer(client, "echo", &[CSV], b"machine_id,load\n7,1\n9,2\n");
    assert_eq!(String::from_utf8(csv.body).unwrap(), "value_0,value_1\n1.0,1200.5\n2.0,-1.0\n");

    let message = refusal(&json_rows(client, "echo", &json!([{"load": 1, "hours": 1}, {"load": 1}])), 400);
    assert!(message.contains("'machine_id'"), "{message}");
    let message = refusal(&json_rows(client, "echo", &json!([{"load": 1, "machine_id": 7}, 3])), 400);
    assert!(message.starts_with("row 1: "), "{message}");
}
