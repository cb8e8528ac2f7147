use proptest::prelude::*;
use serde_json::{Value as Json, json};

use super::*;

/// Any value of a type, without the floats that JSON cannot represent.
pub fn value_of(kind: ValueType) -> BoxedStrategy<Value> {
    fn few<S: Strategy>(element: S) -> impl Strategy<Value = Vec<S::Value>> {
        prop::collection::vec(element, 0..5)
    }
    let f32s = || any::<f32>().prop_filter("finite", |number| number.is_finite());
    let f64s = || any::<f64>().prop_filter("finite", |number| number.is_finite());
    let bytes = || few(any::<u8>()).prop_map(Vec::into_boxed_slice);
    let text = || ".{0,8}".prop_map(String::into_boxed_str);
    match kind {
        ValueType::Scalar(ScalarType::Bytes) => bytes().prop_map(Value::Bytes).boxed(),
        ValueType::Scalar(ScalarType::String) => text().prop_map(Value::String).boxed(),
        ValueType::Scalar(ScalarType::Int32) => any::<i32>().prop_map(Value::Int32).boxed(),
        ValueType::Scalar(ScalarType::Int64) => any::<i64>().prop_map(Value::Int64).boxed(),
        ValueType::Scalar(ScalarType::Float32) => f32s().prop_map(Value::Float32).boxed(),
        ValueType::Scalar(ScalarType::Float64) => f64s().prop_map(Value::Float64).boxed(),
        ValueType::Scalar(ScalarType::Bool) => any::<bool>().prop_map(Value::Bool).boxed(),
        ValueType::Scalar(ScalarType::UnixTimestamp) => any::<i64>().prop_map(Value::UnixTimestamp).boxed(),
        ValueType::Array(ScalarType::Bytes) => few(bytes()).prop_map(Value::BytesList).boxed(),
        ValueType::Array(ScalarType::String) => few(text()).prop_map(Value::StringList).boxed(),
        ValueType::Array(ScalarType::Int32) => few(any::<i32>()).prop_map(Value::Int32List).boxed(),
        ValueType::Array(ScalarType::Int64) => few(any::<i64>()).prop_map(Value::Int64List).boxed(),
        ValueType::Array(ScalarType::Float32) => few(f32s()).prop_map(Value::Float32List).boxed(),
        ValueType::Array(ScalarType::Float64) => few(f64s()).prop_map(Value::Float64List).boxed(),
        ValueType::Array(ScalarType::Bool) => few(any::<bool>()).prop_map(Value::BoolList).boxed(),
        ValueType::Array(ScalarType::UnixTimestamp) => few(any::<i64>()).prop_map(Value::UnixTimestampList).boxed(),
    }
}

/// Any type.
pub fn any_type() -> impl Strategy<Value = ValueType> {
    let scalar = || prop::sample::select(ScalarType::ALL.to_vec());
    prop_oneof![scalar().prop_map(ValueType::Scalar), scalar().prop_map(ValueType::Array)]
}

/// Any value of any type.
pub fn any_value() -> impl Strategy<Value = Value> {
    any_type().prop_flat_map(value_of)
}

proptest! {
    #[test]
    fn a_value_comes_back_from_json_as_it_was(value in any_value()) {
        let kind = value.value_type();
        let text = serde_json::to_string(&value).unwrap();
        let streamed: Json = serde_json::from_str(&text).unwrap();
        prop_assert_eq!(&Value::from_json(kind, &streamed), &Ok(Some(value.clone())), "{}", text);
        prop_assert_eq!(Value::from_json(kind, &value.to_json()), Ok(Some(value.clone())));
        prop_assert_eq!(streamed, value.to_json());
    }

    #[test]
    fn a_type_comes_back_from_its_name(kind in any_type()) {
        prop_assert_eq!(kind.to_string().parse(), Ok(kind));
    }

    #[test]
    fn a_value_of_one_type_is_never_read_as_one_of_another(kind in any_type(), value in any_value()) {
        if let Ok(Some(read)) = Value::from_json(kind, &value.to_json()) {
            prop_assert_eq!(read.value_type(), kind);
        }
    }
}

#[track_caller]
#[expect(clippy::needless_pass_by_value, reason = "so that the tests below read as tables")]
fn read(kind: &str, json: Json, expected: Result<Value, &str>) {
    let read = Value::from_json(kind.parse().unwrap(), &json);
    assert_eq!(read, expected.map(Some).map_err(str::to_owned));
}

#[test]
fn a_column_of_integers_with_nulls_comes_as_floats() {
    read("Int64", json!(3.0), Ok(Value::Int64(3)));
    read("Int32", json!(-3.0), Ok(Value::Int32(-3)));
    read("Array(Int64)", json!([1, 2.0]), Ok(Value::Int64List(vec![1, 2])));
    read("Int64", json!(3.5), Err("3.5 is not a valid Int64"));
    read("Int64", json!(1e17), Err("1e+17 is not a valid Int64"));
    read("Int32", json!(3_000_000_000_i64), Err("3000000000 is not a valid Int32"));
    assert_eq!(Value::from_json("Int64".parse().unwrap(), &Json::Null), Ok(None));
}

#[test]
fn a_value_is_what_its_type_says_and_nothing_like_it() {
    read("Float32", json!(7), Ok(Value::Float32(7.0)));
    read("Float64", json!(7), Ok(Value::Float64(7.0)));
    read("Float32", json!(1e39), Err("1e+39 is not a valid Float32"));
    read("Int64", json!("7"), Err("\"7\" is not a valid Int64"));
    read("String", json!(7), Err("7 is not a valid String"));
    read("Bool", json!(1), Err("1 is not a valid Bool"));
    read("Bool", json!("true"), Err("\"true\" is not a valid Bool"));
    read("Array(Int32)", json!(1), Err("1 is not a valid Array(Int32)"));
    read("Int32", json!([1]), Err("a list is not a valid Int32"));
    read("Array(String)", json!(["a", null]), Err("element 1: null is not a valid String"));
    read("Bytes", json!("AAEC"), Ok(Value::Bytes([0, 1, 2].into())));
    read("Bytes", json!("AA="), Err("\"AA=\" is not valid base64: Invalid padding"));
    let long = "x".repeat(100);
    read("Int32", json!(long), Err(&format!("{:?}… is not a valid Int32", "x".repeat(60))));
}

#[test]
fn a_moment_is_seconds_or_a_text() {
    read("UnixTimestamp", json!(1_795_222_800), Ok(Value::UnixTimestamp(1_795_222_800)));
    read("UnixTimestamp", json!("2026-11-21T01:00:00.5Z"), Ok(Value::UnixTimestamp(1_795_222_800)));
    read("UnixTimestamp", json!("1969-12-31T23:59:59.5"), Ok(Value::UnixTimestamp(-1)));
    read("UnixTimestamp", json!("now"), Err("\"now\" is not a time in RFC 3339"));
}

#[test]
fn floats_without_a_form_in_json_are_null() {
    let list = Value::Float32List(vec![1.5, f32::NAN, f32::INFINITY]);
    assert_eq!(serde_json::to_string(&list).unwrap(), "[1.5,null,null]");
    assert_eq!(list.to_json(), json!([1.5, null, null]));
    assert_eq!(Value::Float64(f64::NAN).to_json(), Json::Null);
    let Ok(Some(Value::Float32List(read))) = Value::from_json(list.value_type(), &list.to_json()) else { panic!() };
    assert_eq!(read.iter().map(|number| number.is_nan()).collect::<Vec<_>>(), [false, true, true]);
}

#[test]
fn a_float_of_single_precision_keeps_its_digits() {
    assert_eq!(Value::Float32(0.1).to_json().to_string(), "0.1");
    assert_eq!(serde_json::to_string(&Value::Float32(0.1)).unwrap(), "0.1");
}

#[test]
fn a_text_is_a_value_of_the_type_that_is_expected() {
    let read = |kind, text| Value::from_text(kind, text).map_err(|_| ());
    assert_eq!(read(ScalarType::Int32, "-7"), Ok(Value::Int32(-7)));
    assert_eq!(read(ScalarType::Int64, "9007199254740993"), Ok(Value::Int64(9_007_199_254_740_993)));
    assert_eq!(read(ScalarType::Float64, "1e3"), Ok(Value::Float64(1000.0)));
    assert_eq!(read(ScalarType::Bool, "true"), Ok(Value::Bool(true)));
    assert_eq!(read(ScalarType::String, "7"), Ok(Value::String("7".into())));
    assert_eq!(read(ScalarType::Bytes, "AAEC"), Ok(Value::Bytes([0, 1, 2].into())));
    assert_eq!(read(ScalarType::UnixTimestamp, "60"), Ok(Value::UnixTimestamp(60)));
    assert_eq!(read(ScalarType::UnixTimestamp, "1970-01-01T00:01:00Z"), Ok(Value::UnixTimestamp(60)));
    for (kind, text) in [
        (ScalarType::Int32, "3000000000"),
        (ScalarType::Int64, "7.0"),
        (ScalarType::Float32, "1e39"),
        (ScalarType::Float64, "nan"),
        (ScalarType::Bool, "1"),
        (ScalarType::Bytes, "?"),
        (ScalarType::UnixTimestamp, "noon"),
    ] {
        assert_eq!(read(kind, text), Err(()), "{kind} {text}");
    }
}
