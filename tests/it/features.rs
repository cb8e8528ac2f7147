//! The feature store as Feast's clients see it: every status, every type, every error in its exact form.

use serde_json::{Value, json};

use crate::client::{Client, Response};
use crate::daemon::{TestDaemon, TestRoot};

/// The feature views of these tests.
pub const VIEWS: &str = r#"
[[entity]]
name = "driver"
join_key = "driver_id"
value_type = "Int64"

[[entity]]
name = "line"
value_type = "String"

[[feature_view]]
name = "driver_stats"
description = "Drivers, hour by hour"
entities = ["driver"]
ttl = "1h"
source = { name = "driver_push" }
schema = [
  { name = "conv_rate", dtype = "Float64" },
  { name = "trips", dtype = "Int64", optional = true, description = "a day" },
]

[[feature_view]]
name = "pairs"
entities = ["driver", "line"]
source = { name = "pairs_push", timestamp_field = "happened" }
schema = [{ name = "conv_rate", dtype = "Float64" }]

[[feature_view]]
name = "kinds"
entities = ["line"]
source = { name = "kinds_push" }
schema = [
  { name = "bytes", dtype = "Bytes", optional = true },
  { name = "string", dtype = "String", optional = true },
  { name = "int32", dtype = "Int32", optional = true },
  { name = "int64", dtype = "Int64", optional = true },
  { name = "float32", dtype = "Float32", optional = true },
  { name = "float64", dtype = "Float64", optional = true },
  { name = "bool", dtype = "Bool", optional = true },
  { name = "time", dtype = "UnixTimestamp", optional = true },
  { name = "bytes_list", dtype = "Array(Bytes)", optional = true },
  { name = "string_list", dtype = "Array(String)", optional = true },
  { name = "int32_list", dtype = "Array(Int32)", optional = true },
  { name = "int64_list", dtype = "Array(Int64)", optional = true },
  { name = "float32_list", dtype = "Array(Float32)", optional = true },
  { name = "float64_list", dtype = "Array(Float64)", optional = true },
  { name = "bool_list", dtype = "Array(Bool)", optional = true },
  { name = "time_list", dtype = "Array(UnixTimestamp)", optional = true },
]

[[feature_service]]
name = "driver_activity"
description = "What the dispatcher needs"
features = ["driver_stats:trips", "driver_stats:conv_rate"]
"#;

/// Far before any clock that these tests run by.
const LONG_AGO: &str = "2001-02-03T04:05:06.250Z";

fn start() -> TestDaemon {
    TestRoot::new().views(VIEWS).start()
}

fn push(client: &mut Client, source: &str, df: &Value) -> Response {
    client.post_json("/push", &json!({"push_source_name": source, "df": df, "to": "online"}))
}

/// Pushes rows, and returns the header about them.
#[track_caller]
fn pushed(client: &mut Client, source: &str, df: &Value) -> String {
    let answer = push(client, source, df);
    assert_eq!((answer.status, answer.json()), (200, Value::Null), "{answer:?}");
    answer.header("x-ledge-pushed").unwrap().to_owned()
}

fn ask(client: &mut Client, request: &Value) -> Response {
    client.post_json("/get-online-features", request)
}

#[track_caller]
fn read(client: &mut Client, features: &[&str], entities: &Value) -> Value {
    let answer = ask(client, &json!({"features": features, "entities": entities}));
    assert_eq!(answer.status, 200, "{answer:?}");
    answer.json()
}

/// The class and message of an error that Feast's client makes an exception of.
#[track_caller]
fn exception(answer: &Response) -> (String, String) {
    assert_eq!(answer.header("content-type"), Some("application/json"), "{answer:?}");
    let error: Value = serde_json::from_str(answer.json().as_str().expect("a string of JSON")).unwrap();
    assert_eq!((&error["module"], error.as_object().unwrap().len()), (&json!("feast.errors"), 3));
    (error["class"].as_str().unwrap().to_owned(), error["message"].as_str().unwrap().to_owned())
}

#[track_caller]
fn detail(answer: &Response) -> Value {
    assert_eq!(answer.status, 422, "{answer:?}");
    let body = answer.json();
    assert_eq!((body.as_object().unwrap().len(), body["detail"].as_array().unwrap().len()), (1, 1), "{body}");
    body["detail"][0].clone()
}

const NO_TIME: &str = "1970-01-01T00:00:00Z";

#[test]
fn what_is_pushed_is_read_back_with_each_status() {
    let daemon = start();
    let client = &mut daemon.client();
    let rows = json!({"driver_id": [1, 2], "conv_rate": [0.5, 0.25], "trips": [7, null]});
    assert_eq!(pushed(client, "driver_push", &rows), "accepted=2, outdated=0, duplicate=0, too_late=0");
    let old = json!({"driver_id": [3], "conv_rate": [1.0], "trips": [1], "event_timestamp": [LONG_AGO]});
    pushed(client, "driver_push", &old);
    let features = ["driver_stats:trips", "driver_stats:conv_rate"];
    let answer = read(client, &features, &json!({"driver_id": [1, 2, 3, 4, 1]}));
    assert_eq!(answer["metadata"], json!({"feature_names": ["driver_id", "trips", "conv_rate"]}));
    let [keys, trips, rates] = answer["results"].as_array().unwrap().as_slice() else { panic!("{answer}") };
    let expected =
        json!({"values": [1, 2, 3, 4, 1], "statuses": vec!["PRESENT"; 5], "event_timestamps": vec![NO_TIME; 5]});
    assert_eq!(keys, &expected);
    assert_eq!(trips["values"], json!([7, null, null, null, 7]));
    let statuses = json!(["PRESENT", "NULL_VALUE", "OUTSIDE_MAX_AGE", "NOT_FOUND", "PRESENT"]);
    assert_eq!(trips["statuses"], statuses);
    assert_eq!(rates["values"], json!([0.5, 0.25, null, null, 0.5]));
    assert_eq!(rates["statuses"], json!(["PRESENT", "PRESENT", "OUTSIDE_MAX_AGE", "NOT_FOUND", "PRESENT"]));
    assert_eq!((&trips["event_timestamps"][2], &trips["event_timestamps"][3]), (&json!(LONG_AGO), &json!(NO_TIME)));
    assert_ne!(trips["event_timestamps"][0], NO_TIME, "a row without a time happened when it came");
}

/// Some entities with rows, one of them old, and as many without.
const MANY: usize = 2_000;

fn start_with_many(settings: &[&str]) -> TestDaemon {
    let daemon = settings.iter().fold(TestRoot::new().views(VIEWS), |root, setting| root.set(setting)).start();
    let drivers: Vec<usize> = (0..MANY).collect();
    let times: Vec<_> = drivers.iter().map(|driver| (*driver == 7).then_some(LONG_AGO)).collect();
    let rates: Vec<_> = drivers.iter().map(|driver| json!(f64::from(u32::try_from(*driver).unwrap()) / 8.0)).collect();
    let trips: Vec<_> =
        drivers.iter().map(|driver| if driver % 3 == 0 { Value::Null } else { json!(driver) }).collect();
    let rows = json!({"driver_id": drivers, "conv_rate": rates, "trips": trips, "event_timestamp": times});
    pushed(&mut daemon.client(), "driver_push", &rows);
    daemon
}

#[test]
fn an_answer_of_many_features_is_that_of_many_small_ones() {
    let daemon = start_with_many(&[]);
    let client = &mut daemon.client();
    let features = ["driver_stats:trips", "driver_stats:conv_rate"];
    let drivers: Vec<usize> = (0..2 * MANY).rev().collect();
    let whole = read(client, &features, &json!({"driver_id": drivers}));
    let mut joined = read(client, &features, &json!({"driver_id": []}));
    for some in drivers.chunks(500) {
        let part = read(client, &features, &json!({"driver_id": some}));
        assert_eq!(part["metadata"], whole["metadata"]);
        for (column, part) in
            joined["results"].as_array_mut().unwrap().iter_mut().zip(part["results"].as_array().unwrap())
        {
            for key in ["values", "statuses", "event_timestamps"] {
                column[key].as_array_mut().unwrap().extend(part[key].as_array().unwrap().clone());
            }
        }
    }
    assert_eq!(whole, joined);
    // With gzip it is the same, and a mistake in the last entity is reported as before.
    let request = json!({"features": features, "entities": {"driver_id": drivers}}).to_string();
    let headers = [("content-type", "application/json"), ("accept-encoding", "gzip")];
    let packed = client.post("/get-online-features", &headers, request.as_bytes());
    assert_eq!(packed.header("content-encoding"), Some("gzip"));
    let mut plain = Vec::new();
    std::io::Read::read_to_end(&mut flate2::read::GzDecoder::new(packed.body.as_slice()), &mut plain).unwrap();
    assert_eq!(serde_json::from_slice::<Value>(&plain).unwrap(), whole);
    let mut wrong = json!(drivers);
    wrong[2 * MANY - 1] = json!("x");
    let refused = ask(client, &json!({"features": features, "entities": {"driver_id": wrong}}));
    assert!(refused.status == 422 && refused.json().to_string().contains("row 3999"), "{refused:?}");
}

#[test]
fn answers_of_many_features_count_and_give_their_memory_back() {
    let daemon = start_with_many(&["http.max_body_bytes=8000000", "http.max_memory_bytes=40000000"]);
    let client = &mut daemon.client();
    // Unknown entities cost as much as others.
    let drivers: Vec<usize> = (0..50_000).collect();
    let features = ["driver_stats:trips"];
    let request = json!({"features": features, "entities": {"driver_id": drivers}});
    assert_eq!(ask(client, &request).status, 200);
    let before = resident(&daemon);
    std::thread::scope(|scope| {
        let ask = || {
            let client = &mut daemon.client();
            (0..4).map(|_| ask(client, &request).status).collect::<Vec<u16>>()
        };
        let readers: Vec<_> = (0..8).map(|_| scope.spawn(ask)).collect();
        let statuses: Vec<u16> = readers.into_iter().flat_map(|reader| reader.join().unwrap()).collect();
        assert!(statuses.contains(&200) && statuses.iter().all(|status| [200, 503].contains(status)), "{statuses:?}");
    });
    // A small request for more than there is.
    pushed(client, "kinds_push", &json!({"line": ["a"], "string": ["a long text".repeat(1000)]}));
    let long = json!({"features": ["kinds:string"], "entities": {"line": vec!["a"; 6000]}});
    assert_eq!(ask(client, &long).status, 503);
    let began = std::time::Instant::now();
    while resident(&daemon) > before + (48 << 20) {
        assert!(began.elapsed() < std::time::Duration::from_secs(20), "{} of {before}", resident(&daemon));
        std::thread::yield_now();
    }
}

/// The resident memory of a daemon in bytes.
fn resident(daemon: &TestDaemon) -> u64 {
    let status = std::fs::read_to_string(format!("/proc/{}/status", daemon.pid())).unwrap();
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:")).unwrap();
    line.trim().trim_end_matches(" kB").trim().parse::<u64>().unwrap() << 10
}

#[test]
fn of_two_rows_the_later_event_counts_whichever_came_first() {
    let daemon = start();
    let client = &mut daemon.client();
    let row = |rate: f64, happened: &str| json!({"driver_id": [1], "line": ["a"], "conv_rate": [rate], "happened": [happened]});
    pushed(client, "pairs_push", &row(2.0, "2020-01-01T00:00:02Z"));
    let outdated = pushed(client, "pairs_push", &row(1.0, "2020-01-01T00:00:01Z"));
    assert_eq!(outdated, "accepted=0, outdated=1, duplicate=0, too_late=0");
    let value = |client: &mut Client| {
        let answer = read(client, &["pairs:conv_rate"], &json!({"line": ["a"], "driver_id": [1]}));
        (answer["results"][2]["values"][0].clone(), answer["results"][2]["event_timestamps"][0].clone())
    };
    assert_eq!(value(client), (json!(2.0), json!("2020-01-01T00:00:02Z")));
    pushed(client, "pairs_push", &row(3.0, "2020-01-01T00:00:02Z"));
    assert_eq!(value(client).0, 3.0, "of two for one moment the later push counts");
    // Feast's client uses this name of the column, regardless of its name in the view.
    let df = json!({"driver_id": [1], "line": ["a"], "conv_rate": [4.0], "event_timestamp": ["2019-01-01T00:00:00"], "created": [null]});
    let write = json!({"feature_view_name": "pairs", "df": df, "allow_registry_cache": false});
    let answer = client.post_json("/write-to-online-store", &write);
    assert_eq!((answer.status, answer.json()), (200, Value::Null));
    assert_eq!(answer.header("x-ledge-pushed"), Some("accepted=0, outdated=1, duplicate=0, too_late=0"));
}

#[test]
fn composite_keys_are_several_columns_in_any_order() {
    let daemon = start();
    let client = &mut daemon.client();
    let rows = json!({"driver_id": [1, 1, 2], "line": ["a", "b", "a"], "conv_rate": [1.0, 2.0, 3.0]});
    pushed(client, "pairs_push", &rows);
    // `json!` would sort the columns.
    let request = br#"{"features": ["pairs:conv_rate"],
                       "entities": {"line": ["a", "b", "b"], "driver_id": [2, 1, 2]}}"#;
    let answer = client.post("/get-online-features", &[], request).json();
    assert_eq!(answer["metadata"]["feature_names"], json!(["line", "driver_id", "conv_rate"]));
    assert_eq!(answer["results"][2]["values"], json!([3.0, 2.0, null]));
}

#[test]
fn features_are_asked_for_by_service_by_view_and_with_full_names() {
    let daemon = start();
    let client = &mut daemon.client();
    pushed(client, "driver_push", &json!({"driver_id": [1], "conv_rate": [0.5], "trips": [7]}));
    pushed(client, "pairs_push", &json!({"driver_id": [1], "line": ["a"], "conv_rate": [0.25]}));
    let names = |client: &mut Client, request: &Value| {
        let answer = ask(client, request);
        assert_eq!(answer.status, 200, "{answer:?}");
        answer.json()["metadata"]["feature_names"].clone()
    };
    let entities = json!({"driver_id": [1]});
    // All that Feast's client sends.
    let service = json!({"feature_service": "driver_activity", "entities": entities, "full_feature_names": false,
        "include_feature_view_version_metadata": false});
    assert_eq!(names(client, &service), json!(["driver_id", "trips", "conv_rate"]));
    let whole = json!({"features": ["driver_stats"], "entities": entities, "feature_service": null});
    assert_eq!(names(client, &whole), json!(["driver_id", "conv_rate", "trips"]));
    let both = ["pairs:conv_rate", "driver_stats:conv_rate"];
    let entities = json!({"driver_id": [1], "line": ["a"]});
    let full = json!({"features": both, "entities": entities, "full_feature_names": true});
    assert_eq!(names(client, &full), json!(["driver_id", "line", "pairs__conv_rate", "driver_stats__conv_rate"]));
    let answer = ask(client, &json!({"features": both, "entities": entities}));
    let (class, message) = exception(&answer);
    assert_eq!((answer.status, &*class), (422, "FeatureNameCollisionError"));
    assert!(message.contains("conv_rate") && message.contains("full_feature_names"), "{message}");
}

#[test]
fn every_dtype_comes_back_as_it_went_in() {
    let daemon = start();
    let client = &mut daemon.client();
    for (name, value) in [
        ("bytes", json!("AP8=")),
        ("string", json!("Zürich \"\\\u{0}")),
        ("int32", json!(i32::MIN)),
        ("int64", json!(i64::MAX)),
        ("float32", json!(0.5)),
        ("float64", json!(0.1)),
        ("bool", json!(false)),
        ("time", json!(1_700_000_000)),
        ("bytes_list", json!(["AA==", ""])),
        ("string_list", json!(["a", "é"])),
        ("int32_list", json!([1, -1])),
        ("int64_list", json!([i64::MIN])),
        ("float32_list", json!([0.25, -1.0])),
        ("float64_list", json!([0.1, 1e300])),
        ("bool_list", json!([true, false])),
        ("time_list", json!([0, -1])),
    ] {
        pushed(client, "kinds_push", &json!({"line": [name], name: [value]}));
        let feature = format!("kinds:{name}");
        let answer = read(client, &[&feature], &json!({"line": [name]}));
        let vector = &answer["results"][1];
        assert_eq!((&vector["values"][0], &vector["statuses"][0]), (&value, &json!("PRESENT")), "{name}");
    }
}

#[test]
fn a_thousand_rows_are_pushed_and_read_in_one_call_each_packed_or_not() {
    let daemon = start();
    let client = &mut daemon.client();
    let ids: Vec<u32> = (0..1000).collect();
    let rates: Vec<f64> = ids.iter().map(|&id| f64::from(id) / 8.0).collect();
    let df = json!({"driver_id": ids, "conv_rate": rates, "trips": ids});
    assert_eq!(pushed(client, "driver_push", &df), "accepted=1000, outdated=0, duplicate=0, too_late=0");
    let request = json!({"features": ["driver_stats"], "entities": {"driver_id": ids}});
    let plain = ask(client, &request);
    assert_eq!(plain.json()["results"][1]["values"], json!(rates));
    assert_eq!(plain.json()["results"][2]["values"], json!(ids));
    let packed = client.post("/get-online-features", &[("accept-encoding", "gzip")], request.to_string().as_bytes());
    assert_eq!(packed.header("content-encoding"), Some("gzip"));
    assert!(packed.body.len() < plain.body.len() / 4, "{} of {}", packed.body.len(), plain.body.len());

    // Large enough to be read and written away from the callers that wait.
    let ids: Vec<u32> = (0..60_000).collect();
    let rates: Vec<f64> = ids.iter().map(|&id| f64::from(id)).collect();
    let df = json!({"driver_id": ids, "conv_rate": rates});
    assert_eq!(pushed(client, "driver_push", &df), "accepted=60000, outdated=0, duplicate=0, too_late=0");
    let answer = read(client, &["driver_stats:conv_rate"], &json!({"driver_id": ids}));
    assert_eq!(answer["results"][1]["values"], json!(rates));
}

#[test]
fn what_is_not_declared_is_the_exception_that_feast_has_for_it() {
    let daemon = start();
    let client = &mut daemon.client();
    let entities = json!({"driver_id": [1]});
    let df = json!({"driver_id": [1]});
    for (path, request, status, class, message) in [
        (
            "/get-online-features",
            json!({"features": ["absent:x"], "entities": entities}),
            404,
            "FeatureViewNotFoundException",
            "Feature view absent does not exist",
        ),
        (
            "/get-online-features",
            json!({"features": ["driver_stats:x"], "entities": entities}),
            404,
            "FeastObjectNotFoundException",
            "feature view 'driver_stats' has no feature 'x'",
        ),
        (
            "/get-online-features",
            json!({"feature_service": "absent", "entities": entities}),
            404,
            "FeatureServiceNotFoundException",
            "Feature service absent does not exist",
        ),
        (
            "/push",
            json!({"push_source_name": "absent", "df": df}),
            422,
            "PushSourceNotFoundException",
            "Unable to find push source 'absent'.",
        ),
        (
            "/write-to-online-store",
            json!({"feature_view_name": "absent", "df": df}),
            404,
            "FeatureViewNotFoundException",
            "Feature view absent does not exist",
        ),
    ] {
        let answer = client.post_json(path, &request);
        assert_eq!(answer.status, status, "{answer:?}");
        assert_eq!(exception(&answer), (class.to_owned(), message.to_owned()));
    }
}

#[test]
fn what_does_not_fit_is_told_where_it_is_and_nothing_of_it_is_written() {
    let daemon = start();
    let client = &mut daemon.client();
    let frame = |df: Value| json!({"push_source_name": "driver_push", "df": df});
    let entities = |entities: Value| json!({"features": ["driver_stats"], "entities": entities});
    for (path, request, kind, loc) in [
        (
            "/push",
            frame(json!({"driver_id": [1, 2], "conv_rate": [1.0, "x"]})),
            "value_error",
            json!(["body", "df", "conv_rate", 1]),
        ),
        (
            "/push",
            frame(json!({"driver_id": [1, null], "conv_rate": [1.0, 2.0]})),
            "value_error",
            json!(["body", "df", "driver_id", 1]),
        ),
        (
            "/push",
            frame(json!({"driver_id": [1], "conv_rate": [1.0], "event_timestamp": ["soon"]})),
            "value_error",
            json!(["body", "df", "event_timestamp", 0]),
        ),
        ("/push", frame(json!({"driver_id": [1]})), "missing", json!(["body", "df", "conv_rate"])),
        ("/push", frame(json!({"driver_id": [1], "conv_rate": []})), "value_error", json!(["body", "df"])),
        ("/push", frame(json!([1])), "value_error", json!(["body"])),
        ("/push", json!({"push_source_name": "driver_push"}), "value_error", json!(["body"])),
        (
            "/push",
            json!({"push_source_name": "driver_push", "df": {}, "to": "moon"}),
            "literal_error",
            json!(["body", "to"]),
        ),
        ("/write-to-online-store", json!({"df": {}}), "value_error", json!(["body"])),
        (
            "/get-online-features",
            entities(json!({"driver_id": ["x"]})),
            "value_error",
            json!(["body", "entities", "driver_id", 0]),
        ),
        ("/get-online-features", entities(json!({"line": ["x"]})), "missing", json!(["body", "entities", "driver_id"])),
        ("/get-online-features", entities(json!({})), "value_error", json!(["body", "entities"])),
        ("/get-online-features", json!({"entities": {"driver_id": [1]}}), "missing", json!(["body", "features"])),
    ] {
        let answer = client.post_json(path, &request);
        let detail = detail(&answer);
        assert_eq!((&detail["type"], &detail["loc"]), (&json!(kind), &loc), "{request}: {detail}");
        assert!(!detail["msg"].as_str().unwrap().is_empty());
    }
    for (body, kind, words) in [
        (r#"{"push_source_name": "driver_push", "df": {"#, "json_invalid", "the text ends within"),
        (r#"["driver_push", {"driver_id": [1], "conv_rate": [1.0]}, "online"]"#, "dict_type", "dictionary"),
        (
            r#"{"push_source_name": "driver_push", "df": {"driver_id": [1], "conv_rate": [1.0], "driver_id": [2]}}"#,
            "value_error",
            "column 'driver_id' is there twice",
        ),
    ] {
        let detail = detail(&client.post("/push", &[], body.as_bytes()));
        assert_eq!(detail["type"], kind, "{detail}");
        assert!(detail["msg"].as_str().unwrap().contains(words), "{detail}");
    }
    let answer = read(client, &["driver_stats:conv_rate"], &json!({"driver_id": [1, 2]}));
    assert_eq!(answer["results"][1]["statuses"], json!(["NOT_FOUND", "NOT_FOUND"]), "all of a push or nothing");
}

#[test]
fn there_is_no_offline_store_and_ledge_says_so() {
    let daemon = start();
    let client = &mut daemon.client();
    let request =
        |to: &str| json!({"push_source_name": "driver_push", "df": {"driver_id": [1], "conv_rate": [1.0]}, "to": to});
    for to in ["offline", "online_and_offline"] {
        let answer = client.post_json("/push", &request(to));
        let (class, _) = exception(&answer);
        assert_eq!((answer.status, &*class), (501, "FeastError"), "{to}");
    }
    let answer = read(client, &["driver_stats:conv_rate"], &json!({"driver_id": [1]}));
    assert_eq!(answer["results"][1]["statuses"], json!(["NOT_FOUND"]));
    assert_eq!(client.post_json("/push", &request("online")).status, 200);
    for path in ["/materialize", "/materialize-incremental?async=true"] {
        let answer = client.post_json(path, &json!({"end_ts": "2026-01-01T00:00:00"}));
        let (class, message) = exception(&answer);
        assert_eq!((answer.status, &*class), (501, "FeastError"));
        assert!(message.contains("/push"), "{message}");
    }
}

#[test]
fn request_data_of_an_on_demand_view_is_refused() {
    let daemon = start();
    let client = &mut daemon.client();
    let entities = json!({"driver_id": [1], "val_to_add": [10]});
    let answer = ask(client, &json!({"features": ["driver_stats:conv_rate"], "entities": entities}));
    let detail = detail(&answer);
    assert_eq!((&detail["type"], &detail["loc"]), (&json!("value_error"), &json!(["body", "entities"])));
    let message = detail["msg"].as_str().unwrap();
    assert!(message.contains("'val_to_add'"), "{message}");
}

#[test]
fn limits_hold_and_are_told_as_feasts_client_understands_it() {
    let daemon = TestRoot::new().views(VIEWS).set("http.max_body_bytes=2000000").start();
    let client = &mut daemon.client();
    let answer = client.post("/push", &[], &vec![b' '; 2_000_001]);
    assert_eq!((answer.status, exception(&answer).0.as_str()), (413, "FeastError"));
    let answer = daemon.client().post("/push", &[("content-encoding", "br")], b"x");
    assert_eq!((answer.status, exception(&answer).0.as_str()), (415, "FeastError"));
    let client = &mut daemon.client();
    let ids = vec![1; 500_001];
    let answer = ask(client, &json!({"features": ["driver_stats"], "entities": {"driver_id": ids}}));
    let detail = detail(&answer);
    assert_eq!((&detail["type"], &detail["loc"]), (&json!("too_long"), &json!(["body", "entities"])));
    assert!(detail["msg"].as_str().unwrap().starts_with("2 features of 500001 entities"), "{detail}");
}

#[test]
fn what_is_declared_is_described() {
    let daemon = start();
    let client = &mut daemon.client();
    let views = client.get("/feature-views").json();
    let names: Vec<_> = views["feature_views"].as_array().unwrap().iter().map(|view| &view["name"]).collect();
    assert_eq!(names, ["driver_stats", "kinds", "pairs"]);
    let view = client.get("/feature-views/driver_stats").json();
    assert_eq!(view, views["feature_views"][0]);
    assert_eq!(
        view,
        json!({
            "name": "driver_stats",
            "description": "Drivers, hour by hour",
            "entities": ["driver"],
            "join_keys": [{"name": "driver_id", "value_type": "Int64"}],
            "schema": [
                {"name": "conv_rate", "dtype": "Float64", "optional": false, "description": ""},
                {"name": "trips", "dtype": "Int64", "optional": true, "description": "a day"},
            ],
            "aggregations": [],
            "ttl_s": 3600.0,
            "source": {"name": "driver_push", "timestamp_field": "event_timestamp"},
        })
    );
    let service = client.get("/feature-services/driver_activity").json();
    let features = ["driver_stats:trips", "driver_stats:conv_rate"];
    let expected = json!({"name": "driver_activity", "description": "What the dispatcher needs", "features": features});
    assert_eq!(service, expected);
    assert_eq!(client.get("/feature-services").json(), json!({"feature_services": [expected]}));
    let entities = client.get("/entities").json();
    let driver = json!({"name": "driver", "join_key": "driver_id", "value_type": "Int64", "feature_views": ["driver_stats", "pairs"]});
    assert_eq!(entities["entities"][0], driver);
    assert_eq!(entities["entities"][1]["join_key"], "line");
    for (path, words) in
        [("/feature-views/absent", "Feature view absent"), ("/feature-services/absent", "Feature service absent")]
    {
        let answer = client.get(path);
        assert!(answer.status == 404 && answer.error().contains(words), "{answer:?}");
    }
    assert_eq!(client.get("/feature-views/%ff").status, 400);
}

#[test]
fn a_box_without_feature_views_says_where_to_declare_them() {
    let daemon = TestRoot::new().start();
    let client = &mut daemon.client();
    for (path, request) in [
        ("/get-online-features", json!({"features": ["v:f"], "entities": {"k": [1]}})),
        ("/push", json!({"push_source_name": "p", "df": {"k": [1]}})),
    ] {
        let answer = client.post_json(path, &request);
        let (class, message) = exception(&answer);
        assert_eq!((answer.status, &*class), (404, "FeastObjectNotFoundException"));
        assert!(message.contains("feature_views.d"), "{message}");
    }
    assert_eq!(client.get("/feature-views").json(), json!({"feature_views": []}));
    assert_eq!(client.get("/entities").json(), json!({"entities": []}));
}

#[test]
fn health_is_answered_and_a_wrong_verb_is_refused() {
    let daemon = start();
    let client = &mut daemon.client();
    assert_eq!(client.get("/health").status, 200);
    for (verb, path) in [
        ("GET", "/push"),
        ("GET", "/get-online-features"),
        ("DELETE", "/feature-views/driver_stats"),
        ("POST", "/entities"),
    ] {
        let answer = client.request(verb, path, &[], b"");
        assert_eq!(answer.status, 405, "{verb} {path}");
        assert!(answer.error().contains(path), "{answer:?}");
    }
}
