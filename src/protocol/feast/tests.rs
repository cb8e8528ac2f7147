use std::sync::Arc;

use ledge_features::online::{
    FeatureCell, FeatureCells, FeatureError, FeaturePush, FeatureSelection, FieldStatus, FrameColumns, OnlineFeatures,
    PushTarget,
};
use ledge_features::registry::Registry;
use ledge_features::value::{ScalarType, Value, ValueType};
use ledge_features::view::{Feature, FeaturePosition, FeatureView, FieldId, JoinKey, PushSource, ViewField, ViewId};
use proptest::prelude::*;
use serde_json::{Value as Json, json};

use super::error::{ErrorContent, FeastError};
use super::*;

fn view(id: u32, name: &str, fields: &[(&str, ValueType)]) -> Arc<FeatureView> {
    let fields = fields.iter().enumerate().map(|(at, (name, value_type))| ViewField {
        id: FieldId(u16::try_from(at).unwrap()),
        name: (*name).into(),
        value_type: *value_type,
        optional: false,
        description: String::new(),
    });
    Arc::new(FeatureView {
        id: ViewId(id),
        name: name.into(),
        description: String::new(),
        entities: vec!["driver".into()],
        join_keys: vec![JoinKey { name: "driver_id".into(), value_type: ScalarType::Int64 }],
        fields: fields.collect(),
        aggregations: Vec::new(),
        ttl: None,
        lateness: std::time::Duration::ZERO,
        source: PushSource { name: "pushes".into(), timestamp_field: "event_timestamp".into() },
        unusual: None,
    })
}

/// An answer with these features, each a view and an index, and their cells.
fn answer<const N: usize>(
    join_keys: FrameColumns,
    features: [(&Arc<FeatureView>, usize); N],
    cells: [Vec<FeatureCell>; N],
) -> OnlineFeatures {
    let feature =
        |(view, at): (&Arc<FeatureView>, usize)| Feature { view: view.clone(), index: FeaturePosition::Field(at) };
    let entities = cells.first().map_or(0, Vec::len);
    let cells = FeatureCells::new(entities, cells.into_iter().flatten().collect());
    OnlineFeatures { join_keys, features: features.map(feature).into(), cells }
}

fn present(value: Value, event_us: i64) -> FeatureCell {
    FeatureCell { value: Some(value), status: FieldStatus::Present, event_us }
}

fn encoded(features: &OnlineFeatures, full: bool) -> Json {
    serde_json::from_slice(&encode_online_features(features, full).unwrap()).unwrap()
}

const F64: ValueType = ValueType::Scalar(ScalarType::Float64);

#[test]
fn an_answer_is_written_as_feast_writes_it_to_the_byte() {
    let stats = view(0, "driver_stats", &[("conv_rate", F64), ("trips", F64)]);
    let missing = FeatureCell { value: None, status: FieldStatus::NotFound, event_us: 0 };
    let features = answer(
        vec![("driver_id".into(), vec![json!(1001), json!(9999)])],
        [(&stats, 0), (&stats, 1)],
        [
            vec![present(Value::Float32(0.5), 1_795_222_800_000_000), missing.clone()],
            vec![present(Value::Int64(7), 1_795_222_800_250_000), missing],
        ],
    );
    let json = encode_online_features(&features, false).unwrap();
    let expected = r#"{"results":[{"values":[1001,9999],"statuses":["PRESENT","PRESENT"],"event_timestamps":["1970-01-01T00:00:00Z","1970-01-01T00:00:00Z"]},{"values":[0.5,null],"statuses":["PRESENT","NOT_FOUND"],"event_timestamps":["2026-11-21T01:00:00Z","1970-01-01T00:00:00Z"]},{"values":[7,null],"statuses":["PRESENT","NOT_FOUND"],"event_timestamps":["2026-11-21T01:00:00.250Z","1970-01-01T00:00:00Z"]}],"metadata":{"feature_names":["driver_id","conv_rate","trips"]}}"#;
    assert_eq!(String::from_utf8(json).unwrap(), expected);
    let names = &encoded(&features, true)["metadata"]["feature_names"];
    assert_eq!(names, &json!(["driver_id", "driver_stats__conv_rate", "driver_stats__trips"]));
}

#[test]
fn every_value_has_the_form_that_feasts_client_reads() {
    let stats = view(0, "v", &[("f", F64)]);
    for (value, expected) in [
        (Value::Bytes([0, 255].as_slice().into()), json!("AP8=")),
        (Value::String("é\"".into()), json!("é\"")),
        (Value::Int32(-1), json!(-1)),
        (Value::Int64(i64::MAX), json!(i64::MAX)),
        (Value::Float32(0.1), json!(f64::from(0.1_f32))),
        (Value::Float64(1.0), json!(1.0)),
        (Value::Float64(f64::NAN), json!("NaN")),
        (Value::Float32(f32::INFINITY), json!("Infinity")),
        (Value::Float64(f64::NEG_INFINITY), json!("-Infinity")),
        (Value::Bool(true), json!(true)),
        (Value::UnixTimestamp(-5), json!(-5)),
        (Value::BytesList(vec![[1].as_slice().into(), [].as_slice().into()]), json!(["AQ==", ""])),
        (Value::StringList(vec!["a".into()]), json!(["a"])),
        (Value::Int32List(vec![1, -2]), json!([1, -2])),
        (Value::Int64List(vec![]), json!([])),
        (Value::Float32List(vec![0.5, f32::NAN]), json!([0.5, "NaN"])),
        (Value::Float64List(vec![2.0]), json!([2.0])),
        (Value::BoolList(vec![true, false]), json!([true, false])),
        (Value::UnixTimestampList(vec![3]), json!([3])),
    ] {
        let words = format!("{value:?}");
        let features = answer(vec![], [(&stats, 0)], [vec![present(value, 1)]]);
        let answer = encode_online_features(&features, false).unwrap();
        let answer: Json = serde_json::from_slice(&answer).unwrap();
        assert_eq!(answer["results"][0]["values"], json!([expected]), "{words}");
    }
}

#[test]
fn two_features_of_one_name_are_refused_unless_the_view_tells_them_apart() {
    let (one, two) = (view(0, "one", &[("f", F64)]), view(1, "two", &[("f", F64)]));
    let of = |views: [&Arc<FeatureView>; 2]| answer(vec![], views.map(|view| (view, 0)), [vec![], vec![]]);
    let refused = encode_online_features(&of([&one, &two]), false).unwrap_err();
    assert_eq!(refused.status, 422);
    assert!(
        matches!(refused.content, ErrorContent::Exception { class: "FeatureNameCollisionError", .. }),
        "{refused:?}"
    );
    assert!(encode_online_features(&of([&one, &two]), true).is_ok());
    assert!(encode_online_features(&of([&one, &one]), true).is_err());
}

#[test]
fn what_feasts_client_sends_is_read() {
    let call = decode_online_features(
        br#"{"entities": {"driver_id": [1, "a", null, [1.5]]}, "full_feature_names": true,
             "include_feature_view_version_metadata": false, "features": ["v:f", "w"]}"#,
    );
    let call = call.unwrap();
    assert_eq!(call.request.selection, FeatureSelection::Features(vec!["v:f".into(), "w".into()]));
    let cells = vec![json!(1), json!("a"), json!(null), json!([1.5])];
    assert_eq!((call.request.entities, call.full_feature_names), (vec![("driver_id".into(), cells)], true));

    let call = decode_online_features(br#"{"feature_service": "s", "features": ["v:f"], "entities": {}}"#).unwrap();
    assert_eq!(call.request.selection, FeatureSelection::Service("s".into()), "Feast prefers the feature service");

    let push = decode_push(br#"{"push_source_name": "p", "df": {"a": [true]}, "to": "online", "x": {}}"#).unwrap();
    assert_eq!(push.target, PushTarget::Source("p".into()));
    assert_eq!(push.columns, vec![("a".into(), vec![json!(true)])]);

    let body = br#"{"feature_view_name": "v", "df": {"event_timestamp": ["x"]}, "allow_registry_cache": false}"#;
    assert_eq!(decode_write(body, &Registry::default()).unwrap().target, PushTarget::View("v".into()));
}

#[test]
fn what_is_no_request_is_told_where_and_why() {
    let detail = |result: Result<FeaturePush, FeastError>| {
        let error = result.unwrap_err();
        assert_eq!(error.status, 422, "{error:?}");
        let body: Json = serde_json::from_slice(&error.to_json()).unwrap();
        assert_eq!(body["detail"].as_array().unwrap().len(), 1);
        body["detail"][0].clone()
    };
    for (body, kind, words) in [
        ("", "json_invalid", "the text ends within"),
        ("{\"df\": ", "json_invalid", "the text ends within"),
        ("[]", "dict_type", "dictionary"),
        ("[\"p\", {\"a\": [1]}, null]", "dict_type", "dictionary"),
        ("{}", "value_error", "push_source_name"),
        (r#"{"push_source_name": 1}"#, "value_error", "string"),
        (r#"{"push_source_name": "p", "df": [1]}"#, "value_error", "an object of columns"),
        (r#"{"push_source_name": "p", "df": {"a": 1}}"#, "value_error", "column 'a'"),
        (r#"{"push_source_name": "p", "df": {"a": [1], "a": [2]}}"#, "value_error", "column 'a' is there twice"),
        (r#"{"push_source_name": "p", "df": {}, "df": {}}"#, "value_error", "`df` is there twice"),
        (r#"{"push_source_name": "p", "df": {"a": [[[1]]]}}"#, "value_error", "list within a list"),
        (r#"{"push_source_name": "p", "df": {"a": [{}]}}"#, "value_error", "string, number"),
        (r#"{"push_source_name": "p", "df": {"a": [1]}, "to": "moon"}"#, "literal_error", "online_and_offline"),
    ] {
        let detail = detail(decode_push(body.as_bytes()));
        assert_eq!(detail["type"], kind, "{body}");
        assert!(detail["msg"].as_str().unwrap().contains(words), "{body}: {detail}");
        assert_eq!(detail["loc"][0], "body");
    }
}

#[test]
fn a_push_for_an_offline_store_is_not_taken() {
    for to in ["offline", "online_and_offline"] {
        let body = format!(r#"{{"push_source_name": "p", "df": {{}}, "to": "{to}"}}"#);
        let error = decode_push(body.as_bytes()).unwrap_err();
        assert_eq!(error.status, 501, "{to}");
        assert!(error.message().contains("no offline store"), "{to}");
    }
}

#[test]
fn a_frame_takes_no_more_memory_than_it_may() {
    let body = format!(r#"{{"push_source_name": "p", "df": {{"a": [[{}0]]}}}}"#, "0,".repeat(2_000_000));
    let error = decode_push(body.as_bytes()).unwrap_err();
    assert!(error.message().contains("send them in several"), "{}", error.message());
    let features = "\"v:f\",".repeat(10_000);
    let body = format!(r#"{{"features": [{features}"v:f"], "entities": {{}}}}"#);
    assert!(decode_online_features(body.as_bytes()).unwrap_err().message().contains("features"));
}

#[test]
fn an_answer_that_would_be_too_large_is_refused_beforehand() {
    let entities = "1,".repeat(100_000);
    let features = ["\"v:f\""; 10].join(",");
    let ask = |more: &str| {
        let body = format!(r#"{{"features": [{features}], "entities": {{"k": [{entities}{more}]}}}}"#);
        decode_online_features(body.as_bytes()).unwrap().check(&Registry::default())
    };
    assert!(ask("1").unwrap_err().message().contains("1000000"));
    let body = format!(r#"{{"features": [{features}], "entities": {{"k": [{}1]}}}}"#, "1,".repeat(99_999));
    assert_eq!(decode_online_features(body.as_bytes()).unwrap().check(&Registry::default()), Ok(1_000_000));
}

#[test]
fn an_error_is_a_string_of_json_that_feasts_client_makes_an_exception_of() {
    let error = FeastError::of_store(&FeatureError::UnknownView { view: "a\"b".into() }, "df");
    let outer: String = serde_json::from_slice(&error.to_json()).unwrap();
    let inner: Json = serde_json::from_str(&outer).unwrap();
    let class = "FeatureViewNotFoundException";
    let message = "Feature view a\"b does not exist";
    assert_eq!(inner, json!({"module": "feast.errors", "class": class, "message": message}));
}

#[test]
fn every_error_of_the_store_has_its_status() {
    let text = String::new;
    for (error, status, retry) in [
        (FeatureError::Disabled { folder: "x".into() }, 404, None),
        (FeatureError::UnknownService { service: text() }, 404, None),
        (FeatureError::UnknownFeature { view: text(), feature: text() }, 404, None),
        (FeatureError::UnknownSource { source_name: text() }, 422, None),
        (FeatureError::Reference { text: text() }, 422, None),
        (FeatureError::MissingColumn { column: text(), view: text(), unknown: vec![] }, 422, None),
        (FeatureError::NoFeature { views: text(), features: vec![], unknown: vec![] }, 422, None),
        (FeatureError::Columns { reason: text() }, 422, None),
        (FeatureError::Value { column: text(), row: 3, reason: text() }, 422, None),
        (FeatureError::TooLarge { view: text(), row: 0, bytes: 2, most: 1 }, 422, None),
        (FeatureError::Unavailable { reason: text() }, 503, Some(1)),
        (FeatureError::Overloaded { waiting: 1 }, 429, Some(1)),
        (FeatureError::DiskFull { folder: text(), free_mb: 0, kept_mb: 1 }, 507, None),
        (FeatureError::NotWritten { reason: text() }, 500, None),
    ] {
        let answer = FeastError::of_store(&error, "df");
        assert_eq!((answer.status, answer.retry_after_s), (status, retry), "{error:?}");
        assert!(serde_json::from_slice::<Json>(&answer.to_json()).is_ok());
    }
    let value = FeatureError::Value { column: "c".into(), row: 3, reason: "no".into() };
    let body: Json = serde_json::from_slice(&FeastError::of_store(&value, "df").to_json()).unwrap();
    assert_eq!(body["detail"][0]["loc"], json!(["body", "df", "c", 3]));
}

proptest! {
    #[test]
    fn bytes_are_a_request_or_refused(bytes in prop::collection::vec(any::<u8>(), 0..200)) {
        let _ = decode_push(&bytes);
        let _ = decode_online_features(&bytes);
        let _ = decode_write(&bytes, &Registry::default());
    }

    #[test]
    fn a_frame_is_read_as_it_was_written(
        frame in prop::collection::btree_map("[a-zé]{0,4}", prop::collection::vec(cell(), 0..4), 0..5)
    ) {
        let body = json!({"push_source_name": "p", "df": frame}).to_string();
        let call = decode_push(body.as_bytes()).unwrap();
        prop_assert_eq!(call.columns, frame.into_iter().collect::<Vec<_>>());
    }
}

fn cell() -> impl Strategy<Value = Json> {
    let scalar = prop_oneof![
        Just(Json::Null),
        any::<bool>().prop_map(Json::from),
        any::<i64>().prop_map(Json::from),
        any::<u64>().prop_map(Json::from),
        prop::num::f64::NORMAL.prop_map(Json::from),
        "\\PC{0,6}".prop_map(Json::from),
    ];
    prop_oneof![scalar.clone(), prop::collection::vec(scalar, 0..4).prop_map(Json::from)]
}
