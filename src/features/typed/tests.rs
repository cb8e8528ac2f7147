use serde_json::json;

use super::*;
use crate::registry::Registry;

const NOW_US: i64 = 1_795_222_800_000_000;
const LATEST_US: i64 = NOW_US + 600_000_000;

const VIEW: &str = "
[[entity]]
name = 'machine'
[[entity]]
name = 'line'
value_type = 'Int64'
[[feature_view]]
name = 'stats'
entities = ['machine', 'line']
source = { timestamp_field = 'at' }
schema = [{ name = 'heat', dtype = 'Float32' }, { name = 'tags', dtype = 'Array(String)', optional = true }]
";

fn columns(json: &Json) -> FrameColumns {
    let columns = json.as_object().unwrap().iter();
    columns.map(|(name, cells)| (name.clone(), cells.as_array().unwrap().clone())).collect()
}

fn push(json: &Json) -> Result<Vec<FeatureRow>, String> {
    let registry = Registry::parse(VIEW).unwrap();
    rows(registry.view("stats").unwrap(), &columns(json), NOW_US, LATEST_US).map_err(|error| error.to_string())
}

fn event_of(cell: &Json) -> Result<i64, String> {
    Ok(push(&json!({ "machine": ["a"], "line": [1], "heat": [1], "at": [cell] }))?[0].event_us)
}

#[test]
fn columns_become_rows() {
    let pushed = push(&json!({
        "machine": ["a", "b"], "line": [1, 2.0], "heat": [1.5, null], "tags": [null, ["x"]],
        "at": ["2026-11-21T01:00:00Z", null], "unknown": [{}, []],
    }));
    let [first, second] = pushed.unwrap().try_into().unwrap();
    // Join keys by name: line before machine.
    assert_eq!(first.entity, [Value::Int64(1), Value::String("a".into())]);
    assert_eq!(second.entity, [Value::Int64(2), Value::String("b".into())]);
    assert_eq!(first.values, [(crate::view::FieldId(1), Value::Float32(1.5))]);
    assert_eq!(second.values, [(crate::view::FieldId(2), Value::StringList(vec!["x".into()]))]);
    assert_eq!((first.event_us, second.event_us), (NOW_US, NOW_US));
}

#[test]
fn only_an_optional_column_may_be_left_out() {
    let whole = json!({ "machine": ["a"], "line": [1], "heat": [1] });
    let pushed = push(&whole).unwrap();
    assert_eq!((pushed.len(), pushed[0].event_us), (1, NOW_US));
    for column in ["machine", "line", "heat"] {
        let mut less = whole.clone();
        less.as_object_mut().unwrap().remove(column);
        assert_eq!(push(&less), Err(format!("column '{column}' is missing, which feature view 'stats' needs")));
    }
}

#[test]
fn a_column_that_no_view_has_is_told_but_for_those_that_feast_sends() {
    let registry = Registry::parse(VIEW).unwrap();
    let views = [registry.view("stats").unwrap().clone()];
    let unknown = |json: Json| super::unknown(&views, &columns(&json));
    let whole = json!({ "machine": ["a"], "line": [1], "heat": [1], "tags": [null], "at": [null] });
    assert_eq!(unknown(whole.clone()), [""; 0]);
    for (name, is_told) in [
        ("haet", true),
        ("Heat", true),
        ("created", false),
        ("created_timestamp", false),
        ("event_timestamp", false),
        ("", true),
    ] {
        let mut more = whole.clone();
        more[name] = json!([null]);
        assert_eq!(unknown(more) == [name], is_told, "{name}");
    }
    // If the view's own event time is missing, Feast's column is reported as unknown.
    assert_eq!(
        unknown(json!({ "machine": ["a"], "line": [1], "heat": [1], "event_timestamp": [1] })),
        ["event_timestamp"]
    );
}

#[test]
fn a_push_without_a_single_feature_is_refused_with_what_there_is() {
    let registry = Registry::parse(VIEW).unwrap();
    let views = [registry.view("stats").unwrap().clone()];
    let refused = |json: Json| {
        let columns = columns(&json);
        require_feature(&views, &columns, &super::unknown(&views, &columns)).map_err(|error| error.to_string())
    };
    assert_eq!(refused(json!({ "machine": ["a"], "tags": [null] })), Ok(()));
    let told = "no column is a feature of feature view 'stats', which has 'heat', 'tags'";
    assert_eq!(refused(json!({ "machine": ["a"], "line": [1], "at": [1] })), Err(told.into()));
    assert_eq!(
        refused(json!({ "machine": ["a"], "haet": [1] })),
        Err(format!("{told}; there is 'haet', which no feature view has"))
    );
}

#[test]
fn a_wrong_cell_is_named_by_column_and_row() {
    let wrong = |json: Json| push(&json).unwrap_err();
    assert_eq!(
        wrong(json!({ "machine": ["a", "b"], "line": [1, 1], "heat": [1, "hot"] })),
        "column 'heat', row 1: \"hot\" is not a valid Float32"
    );
    assert_eq!(
        wrong(json!({ "machine": ["a", null], "line": [1, 1], "heat": [1, 1] })),
        "column 'machine', row 1: a join key cannot be null"
    );
    assert_eq!(
        wrong(json!({ "machine": ["a"], "line": ["1"], "heat": [1] })),
        "column 'line', row 0: \"1\" is not a valid Int64"
    );
    assert_eq!(
        wrong(json!({ "machine": ["a"], "line": [1, 2], "heat": [1] })),
        "column 'heat' has 1 rows, and column 'line' has 2"
    );
    assert_eq!(wrong(json!({})), "the request has no columns");
}

#[test]
fn an_event_time_is_a_text_or_a_number_told_apart_by_size() {
    for cell in [
        json!("2026-11-21T01:00:00Z"),
        json!("2026-11-21T01:00:00"),
        json!("2026-11-21 02:00:00+01:00"),
        json!(1_795_222_800),
        json!(1_795_222_800_000_i64),
        json!(NOW_US),
        json!(NOW_US * 1000),
        json!(1_795_222_800.0),
        json!(1.795_222_8e18),
    ] {
        assert_eq!(event_of(&cell), Ok(NOW_US), "{cell}");
    }
    assert_eq!(event_of(&json!(1_795_222_799.5)), Ok(NOW_US - 500_000));
    assert_eq!(event_of(&json!(1_795_222_799_999.25)), Ok(NOW_US - 750));
    assert_eq!(event_of(&json!(0)), Ok(0));
    assert_eq!(event_of(&json!(LATEST_US)), Ok(LATEST_US));
}

#[test]
fn an_event_time_that_cannot_be_is_refused() {
    for (cell, reason) in [
        (json!("noon"), "\"noon\" is not a time in RFC 3339"),
        (json!(true), "expected a time in RFC 3339, or a number since the Unix epoch"),
        (json!(1e20), "1e+20 is not a time since the Unix epoch"),
        (json!(-1), "1969-12-31T23:59:59Z is before 1970"),
        (json!("1969-12-31T23:59:59Z"), "1969-12-31T23:59:59Z is before 1970"),
        (
            json!(LATEST_US + 1),
            "2026-11-21T01:10:00.000001Z is too far ahead of this box's clock: the latest accepted time is 2026-11-21T01:10:00Z (features.max_ahead_s)",
        ),
    ] {
        assert_eq!(event_of(&cell), Err(format!("column 'at', row 0: {reason}")), "{cell}");
    }
    assert!(event_of(&json!(i64::MIN)).is_err() && event_of(&json!(u64::MAX)).is_err());
}

#[test]
fn a_read_needs_every_join_key() {
    let registry = Registry::parse(VIEW).unwrap();
    let view = registry.view("stats").unwrap();
    let read = |json: Json| {
        entities(view, &columns(&json), 0..length(&columns(&json)).unwrap()).map_err(|error| error.to_string())
    };
    let found = read(json!({ "machine": ["a", "b"], "line": [1, 2] })).unwrap();
    assert_eq!(found, [[Value::Int64(1), Value::String("a".into())], [Value::Int64(2), Value::String("b".into())]]);
    assert!(read(json!({ "machine": ["a"] })).unwrap_err().starts_with("column 'line' is missing"));
}
