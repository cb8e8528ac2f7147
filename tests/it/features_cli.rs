//! `ledge features` against a running daemon.

use std::path::Path;
use std::process::Output;

use serde_json::{Value, json};

use crate::client::Client;
use crate::daemon::{TestDaemon, TestRoot, write};
use crate::features::VIEWS;

/// Runs `ledge features` for the daemon.
fn run(daemon: &TestDaemon, arguments: &[&str]) -> Output {
    let verb = [&["features"], arguments].concat();
    daemon.root.command(&verb).output().unwrap()
}

#[track_caller]
fn done(daemon: &TestDaemon, arguments: &[&str]) -> String {
    let output = run(daemon, arguments);
    assert!(output.status.success(), "{arguments:?}: {output:?}");
    String::from_utf8(output.stdout).unwrap()
}

#[track_caller]
fn refused(daemon: &TestDaemon, arguments: &[&str]) -> String {
    let output = run(daemon, arguments);
    assert_eq!(output.status.code(), Some(1), "{arguments:?}: {output:?}");
    String::from_utf8(output.stderr).unwrap()
}

fn text(path: &Path) -> &str {
    path.to_str().unwrap()
}

#[test]
fn what_is_pushed_from_the_command_line_is_listed_shown_and_read() {
    let daemon = TestRoot::new().views(VIEWS).start();
    done(&daemon, &["push", "driver_stats", "driver_id=7", "conv_rate=0.25", "trips="]);
    let time = "2001-02-03T04:05:06.25Z";
    done(&daemon, &["push", "pairs", "driver_id=7", "line=a b", "conv_rate=1", &format!("happened={time}")]);
    done(&daemon, &["push", "kinds", "line=x", "int32_list=[1,2]", "bytes=AAE="]);

    let listed = done(&daemon, &["list"]);
    let row = listed.lines().find(|line| line.starts_with("driver_stats")).unwrap();
    assert_eq!(row.split_whitespace().take(6).collect::<Vec<_>>(), ["driver_stats", "driver", "2", "60", "min", "1"]);
    assert!(listed.contains("driver_activity"), "{listed}");
    let listed: Value = serde_json::from_str(&done(&daemon, &["list", "--json"])).unwrap();
    assert_eq!(
        (&listed["feature_views"][0]["rows"], &listed["feature_views"][0]["ttl_s"]),
        (&json!(1), &json!(3600.0))
    );
    let shown = done(&daemon, &["show", "driver_stats"]);
    let row = |name: &str| {
        let mut rows = shown.lines().map(|line| line.split_whitespace().collect::<Vec<_>>());
        rows.find(|words| words.contains(&name)).unwrap_or_else(|| panic!("no {name} in {shown}"))
    };
    assert!(row("driver_id").contains(&"Int64") && row("conv_rate").contains(&"Float64"), "{shown}");
    assert!(done(&daemon, &["show", "driver_activity"]).contains("driver_stats:trips"));

    let got = done(&daemon, &["get", "driver_stats", "--entity", "driver_id=7"]);
    let cells: Vec<Vec<&str>> = got.lines().map(|line| line.split_whitespace().collect()).collect();
    assert_eq!(cells[1][..3], ["driver_stats:conv_rate", "0.25", "PRESENT"], "{got}");
    assert_eq!(cells[2][..3], ["driver_stats:trips", "-", "NULL_VALUE"], "{got}");
    let both = ["get", "pairs:conv_rate", "--entity", "driver_id=7", "--entity", "line=a b", "--json"];
    let got: Value = serde_json::from_str(&done(&daemon, &both)).unwrap();
    let time = "2001-02-03T04:05:06.250Z";
    assert_eq!(
        got,
        json!([{"feature": "pairs:conv_rate", "value": 1.0, "status": "PRESENT", "event_timestamp": time}])
    );
    let service = ["get", "--service", "driver_activity", "--entity", "driver_id=8", "--json"];
    let got: Value = serde_json::from_str(&done(&daemon, &service)).unwrap();
    assert_eq!((got.as_array().unwrap().len(), &got[0]["status"]), (2, &json!("NOT_FOUND")));

    let status = done(&daemon, &["status"]);
    assert!(status.starts_with("state") && status.contains("ready") && status.contains("driver_stats"), "{status}");
    let bytes = |verb: &str, key: &str| {
        let answer: Value = serde_json::from_str(&done(&daemon, &[verb, "--json"])).unwrap();
        answer[key].as_u64().unwrap_or_else(|| panic!("no {key} in {answer}"))
    };
    assert!(bytes("snapshot", "bytes") > 0 && bytes("compact", "bytes_after") > 0);
    assert!(done(&daemon, &["get", "kinds:int32_list", "--entity", "line=x"]).contains("[1,2]"));

    for (arguments, reason) in [
        (&["get", "driver_stats", "--entity", "driver_id=x"][..], "driver_id: \"x\" is not a valid Int64"),
        (
            &["get", "driver_stats", "--entity", "id=1"],
            "no entity has the join key 'id'; existing join keys: driver_id, line",
        ),
        (&["get", "absent:x", "--entity", "driver_id=1"], "Feature view absent does not exist"),
        (
            &["push", "absent", "x=1"],
            "feature view 'absent' does not exist; existing feature views: driver_stats, kinds, pairs",
        ),
        (
            &["push", "driver_stats", "driver_id=1", "rate=1"],
            "has no column 'rate'; existing columns: driver_id, conv_rate, trips",
        ),
        (&["push", "driver_stats", "driver_id=1"], "conv_rate"),
        (&["show", "absent"], "there is no feature view and no feature service 'absent'"),
    ] {
        let error = refused(&daemon, arguments);
        assert!(error.contains(reason), "{arguments:?}: {error}");
    }
    let store = daemon.root.finding("feature store");
    assert!(store["status"] == "ok" && store["detail"].as_str().unwrap().contains('3'), "{store}");
}

#[test]
fn a_backup_is_a_file_that_is_whole_and_is_restored() {
    let daemon = TestRoot::new().views(VIEWS).start();
    done(&daemon, &["push", "driver_stats", "driver_id=1", "conv_rate=0.5"]);
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("features.ledge");
    let made: Value = serde_json::from_str(&done(&daemon, &["backup", text(&file), "--json"])).unwrap();
    assert_eq!(made["records"], 1, "{made}");
    done(&daemon, &["push", "driver_stats", "driver_id=1", "conv_rate=0.75"]);
    let error = refused(&daemon, &["backup", text(&file)]);
    assert!(error.contains("--force"), "{error}");
    let kept = std::fs::read(&file).unwrap();
    assert_eq!(std::fs::read_dir(folder.path()).unwrap().count(), 1, "nothing is left behind");
    let cut = folder.path().join("cut.ledge");
    write(&cut, &kept[..kept.len() - 1]);
    let error = refused(&daemon, &["restore", text(&cut)]);
    assert!(error.contains("cut.ledge"), "{error}");
    let get = ["get", "driver_stats:conv_rate", "--entity", "driver_id=1"];
    assert!(done(&daemon, &get).contains("0.75"));
    assert_eq!(done(&daemon, &["restore", text(&file)]), "restored: 1 records\n");
    assert!(done(&daemon, &get).contains("0.5"));
    done(&daemon, &["push", "driver_stats", "driver_id=2", "conv_rate=1"]);
    let taken: Value = serde_json::from_str(&done(&daemon, &["backup", text(&file), "--force", "--json"])).unwrap();
    assert_eq!(taken["records"], 2);
}

/// Rows of `kinds` with every type: edges, and numbers without a pattern in between.
fn kinds(count: u64) -> Value {
    let mut state = 7_u64;
    let mut next = move || {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        state >> 16
    };
    let texts = ["a", "Zürich, \"7\"\nline", "null", "0012", "[1]", " x ", "日本", "\u{1}"];
    let mut columns: Vec<(&str, Vec<Value>)> = Vec::new();
    let mut column = |name, edges: Vec<Value>, any: &mut dyn FnMut() -> Value| {
        let cells = (0..count).map(|row| match row % 5 {
            0 => Value::Null,
            1 => edges[usize::try_from(row).unwrap() / 5 % edges.len()].clone(),
            _ => any(),
        });
        columns.push((name, cells.collect()));
    };
    let text = |number: u64| texts[usize::try_from(number % 8).unwrap()];
    let single = |number: u64| json!(f64::from(u16::try_from(number % 65_536).unwrap()) / 8.0 - 4000.0);
    column("bytes", vec![json!("AP8="), json!("AA==")], &mut || json!("YWJj"));
    column("string", texts.iter().map(|text| json!(text)).collect(), &mut || json!(text(next())));
    column("int32", vec![json!(i32::MIN), json!(i32::MAX), json!(0)], &mut || json!(next() % 1000));
    column("int64", vec![json!(i64::MIN), json!(i64::MAX)], &mut || json!(next()));
    column("float32", vec![json!(0.1), json!(-0.0), json!(1e-40)], &mut || single(next()));
    column("float64", vec![json!(0.1), json!(1e300), json!(-1e-300)], &mut || {
        json!(1.0 / f64::from(u32::try_from(next() % 1_000_000 + 1).unwrap()))
    });
    column("bool", vec![json!(true), json!(false)], &mut || json!(next() % 2 == 0));
    column("time", vec![json!(0), json!(-1), json!(253_402_300_799_i64)], &mut || json!(next() % 2_000_000_000));
    column("bytes_list", vec![json!([]), json!([""])], &mut || json!(["AA==", "YWJj"]));
    column("string_list", vec![json!([]), json!([""])], &mut || json!([text(next()), text(next())]));
    column("int32_list", vec![json!([]), json!([i32::MIN])], &mut || json!([next() % 9, 1]));
    column("int64_list", vec![json!([]), json!([i64::MAX, i64::MIN])], &mut || json!([next(), 1, 2]));
    column("float32_list", vec![json!([]), json!([null, 0.1])], &mut || json!([single(next())]));
    column("float64_list", vec![json!([]), json!([null])], &mut || {
        json!([1.0 / f64::from(u32::try_from(next() % 1_000_000 + 1).unwrap()), 2.5])
    });
    column("bool_list", vec![json!([]), json!([true])], &mut || json!([next() % 2 == 0, false]));
    column("time_list", vec![json!([]), json!([-1, 0])], &mut || json!([next() % 2_000_000_000]));
    let mut df: serde_json::Map<String, Value> =
        columns.into_iter().map(|(name, cells)| (name.into(), cells.into())).collect();
    df.insert("line".into(), (0..count).map(|row| format!("line {row}")).collect());
    let times = (0..count).map(|row| format!("1970-01-01T00:{:02}:{:02}.{:06}Z", row / 60 % 60, row % 60, row * 7));
    df.insert("event_timestamp".into(), times.collect());
    df.into()
}

fn lines(path: &Path) -> Vec<String> {
    let mut lines: Vec<_> = std::fs::read_to_string(path).unwrap().lines().map(str::to_owned).collect();
    lines.sort_unstable();
    lines
}

#[test]
fn every_type_comes_back_from_every_format_as_it_was() {
    const ROWS: u64 = 2500;
    let daemon = TestRoot::new().views(VIEWS).start();
    let push = |client: &mut Client, df: &Value| {
        client.post_json("/push", &json!({"push_source_name": "kinds_push", "df": df}))
    };
    assert_eq!(push(&mut daemon.client(), &kinds(ROWS)).status, 200);
    let folder = tempfile::tempdir().unwrap();
    let path = |name: &str| folder.path().join(name);
    let all = path("all.jsonl");
    done(&daemon, &["export", "kinds", text(&all)]);
    assert_eq!(lines(&all).len() as u64, ROWS);
    for format in ["parquet", "csv", "jsonl"] {
        let file = path(&format!("rows.{format}"));
        let exported: Value =
            serde_json::from_str(&done(&daemon, &["export", "kinds", text(&file), "--json"])).unwrap();
        assert_eq!(exported["rows"], ROWS);
        let other = TestRoot::new().views(VIEWS).start();
        let imported = done(&other, &["import", "kinds", text(&file)]);
        assert!(imported.starts_with("wrote 2500 rows of "), "{imported}");
        // Once more changes nothing.
        done(&other, &["import", "kinds", text(&file)]);
        let again = path(&format!("{format}.again.jsonl"));
        done(&other, &["export", "kinds", text(&again)]);
        assert_eq!(lines(&again), lines(&all), "{format}");
    }
    assert!(
        !std::fs::read_dir(folder.path()).unwrap().any(|entry| entry
            .unwrap()
            .path()
            .extension()
            .is_some_and(|extension| extension == "tmp"))
    );
    let error = refused(&daemon, &["export", "kinds", text(&all)]);
    assert!(error.contains("--force"), "{error}");
    let error = refused(&daemon, &["export", "kinds", text(&path("rows.txt"))]);
    assert!(error.contains("--format"), "{error}");
}

#[test]
fn a_bad_row_is_told_with_its_line_and_the_import_can_be_repeated() {
    let daemon = TestRoot::new().views(VIEWS).start();
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("rows.csv");
    let rows = |bad: &str| {
        let row =
            |number: u32| format!("{number},{},x\n", if number == 1234 { bad.to_owned() } else { number.to_string() });
        format!("driver_id,conv_rate,more\n{}", (0..1500).map(row).collect::<String>())
    };
    write(&file, rows("fast").as_bytes());
    let error = refused(&daemon, &["import", "driver_stats", text(&file)]);
    assert!(error.contains("line 1236: column 'conv_rate': \"fast\" is not a valid Float64"), "{error}");
    write(&file, rows("1.5").as_bytes());
    let imported = done(&daemon, &["push", "driver_stats", "--file", text(&file), "--json"]);
    let imported: Value = serde_json::from_str(&imported).unwrap();
    assert_eq!((&imported["rows"], &imported["left_out"]), (&json!(1500), &json!(["more"])), "{imported}");
    assert!(done(&daemon, &["get", "driver_stats:conv_rate", "--entity", "driver_id=1234"]).contains("1.5"));
    // A mistake that only the server finds has a line number, too.
    let far = "{\"driver_id\": 1, \"conv_rate\": 1}\n\n{\"driver_id\": 2, \"conv_rate\": 1, \"event_timestamp\": \"2999-01-01T00:00:00Z\"}\n";
    let file = folder.path().join("far.jsonl");
    write(&file, far.as_bytes());
    let error = refused(&daemon, &["import", "driver_stats", text(&file)]);
    assert!(error.contains("line 3: "), "{error}");
}
