use std::sync::Arc;
use std::time::Instant;

use ledge_base::tensor::{DataType, Tensor};
use ledge_base::toml_check::{self, ConfigMistake};
use ledge_engine::backend::{ModelPort, ModelSignature};
use ledge_features::registry::Registry;
use ledge_models::repository::model_config::ModelConfig;
use ledge_models::scheduling::terms::Priority;
use ledge_models::serving::request::CallInputs;
use ledge_protocol::{ProtocolError, decode_request};
use proptest::prelude::*;
use serde_json::{Value, json};

use super::*;
use crate::client::packet::Qos;
use crate::config::MqttConfig;

/// Bindings of a TOML text with the tables `[[bindings]]`.
fn configs(text: &str) -> Vec<BindingConfig> {
    toml_check::parse::<MqttConfig>("t", text).unwrap().bindings
}

/// A binding with the keys that it must have, and `more`.
fn binding(more: &str) -> Arc<Binding> {
    let text = format!("[[bindings]]\ntopic = 'in/+'\nmodel = 'm'\npublish = 'out/{{1}}'\n{more}");
    let configs = configs(&text);
    assert_eq!(problems(&configs), []);
    Bindings::new(&configs).iter().next().unwrap().clone()
}

fn request(more: &str, payload: impl Into<Bytes>) -> Result<ExtractedInput, BindingError> {
    binding(more).request(&payload.into(), None)
}

fn signature(datatype: DataType, shape: &[i64]) -> ModelSignature {
    let port = ModelPort { name: "x".into(), datatype, shape: shape.to_vec() };
    ModelSignature { inputs: vec![port], outputs: Vec::new() }
}

/// The tensor that a row becomes in a model's input.
fn tensor(row: Vec<Value>, datatype: DataType, shape: &[i64]) -> Result<Tensor, ProtocolError> {
    let body = request_of_rows(&[("x".into(), row)], &signature(datatype, shape), Vec::new()).unwrap();
    match decode_request(&"m".parse().unwrap(), body, None, Instant::now())?.tensors.inputs {
        CallInputs::Named(mut inputs) => Ok(inputs.pop().unwrap().1),
        CallInputs::Raw(_) => unreachable!("the body is JSON"),
    }
}

#[test]
fn a_binding_has_defaults_for_all_but_its_topic_and_what_it_does() {
    let binding = binding("");
    let config = binding.config();
    assert_eq!((binding.name(), config.qos, config.priority), ("in/+", Qos::AtLeastOnce, Priority::Interactive));
    assert_eq!((binding.timeout(), binding.interval(), config.takes().as_str()), (None, None, "the message"));
    let mistakes = toml_check::parse::<MqttConfig>("t", "[[bindings]]\nmodel = 'm'\npublish = 'b'").unwrap_err();
    let shown: Vec<_> = mistakes.iter().map(ConfigMistake::to_string).collect();
    assert_eq!(shown, ["t:1: bindings[0]: `topic` is missing"]);
}

#[test]
fn every_key_of_a_binding_is_read_and_written() {
    let text = "[[bindings]]\nname = 'doors'\ntopic = 'cameras/+/snapshot'\nmodel = 'person_detect'\nversion = 2\n\
                publish = 'vision/{1}/{device}'\nqos = 0\nretain = true\npriority = 'batch'\ntimeout_ms = 500\n\
                max_rate = 2.0\nshared = true\npublish_errors = true\nphotograph = '$.image'\nselect = '$.labels[0].label'\n";
    let configs = configs(text);
    let binding = Bindings::new(&configs).iter().next().unwrap().clone();
    assert_eq!(binding.timeout(), Some(Duration::from_millis(500)));
    assert_eq!(binding.interval(), Some(Duration::from_millis(500)));
    assert_eq!(binding.config().takes(), "photograph $.image");
    let group = "shop".parse().unwrap();
    assert_eq!(binding.subscription(Some(&group)).as_str(), "$share/shop/cameras/+/snapshot");
    let written = toml::to_string(&configs[0]).unwrap();
    assert_eq!(toml::from_str(&written), Ok(configs[0].clone()));

    let inputs =
        "[[bindings]]\ntopic = 'a'\nmodel = 'm'\npublish = 'b'\n[bindings.inputs]\nx = ['$.a', '$.b']\ny = ['$.c']\n";
    let value = "[[bindings]]\ntopic = 'tele/+/+'\nfeature_view = 'v'\nvalue = 'heat'\nentities = { k = '{1}' }\n\
                 when = { '{2}' = ['A', 'B'], '$' = { not = 'unknown' }, '$.t' = { exists = false }, '$.n' = 1.5 }\n";
    let value = self::configs(value);
    let takes = "k = {1}; heat = the message; when {2} is \"A\" or \"B\" and $ is not \"unknown\" and $.t is not there and \
                 $.n is 1.5";
    let sorted = |text: &str| text.split(" and ").map(str::to_owned).collect::<std::collections::BTreeSet<_>>();
    assert_eq!(sorted(&value[0].takes().replace("when ", "and ")), sorted(&takes.replace("when ", "and ")));
    assert_eq!(toml::from_str(&toml::to_string(&value[0]).unwrap()), Ok(value[0].clone()));

    let inputs = self::configs(inputs);
    assert_eq!(inputs[0].takes(), "x = $.a, $.b; y = $.c");
    assert_eq!(toml::from_str(&toml::to_string(&inputs[0]).unwrap()), Ok(inputs[0].clone()));
}

#[test]
fn a_wrong_value_is_named_with_its_place() {
    for (more, key, word) in [
        ("qos = 2", "qos", "from 0 to 1"),
        ("priority = 'low'", "priority", "interactive"),
        ("timeout_ms = 0", "timeout_ms", "from 1"),
        ("max_rate = -1", "max_rate", "per second"),
        ("photograph = 'image'", "photograph", "does not begin with $"),
        ("inputs = { x = ['$.a', '$..b'] }", "inputs.x[1]", "many values"),
        ("version = 0", "version", "positive"),
        ("colour = 1", "colour", "unknown field"),
    ] {
        let text = format!("[[bindings]]\ntopic = 'in/+'\nmodel = 'm'\npublish = 'out/{{1}}'\n{more}");
        let mistakes = toml_check::parse::<MqttConfig>("t", &text).unwrap_err();
        assert_eq!(mistakes.len(), 1, "{mistakes:?}");
        assert_eq!((mistakes[0].key.as_str(), mistakes[0].line), (format!("bindings[0].{key}").as_str(), Some(5)));
        assert!(mistakes[0].message.contains(word), "{mistakes:?}");
    }
}

#[test]
fn bindings_that_cannot_work_are_problems() {
    let found = |bindings: &[&str]| {
        let texts: Vec<String> = bindings.iter().map(|keys| format!("[[bindings]]\nmodel = 'm'\n{keys}\n")).collect();
        problems(&configs(&texts.concat())).into_iter().map(|problem| problem.key).collect::<Vec<_>>()
    };
    let one = |keys: &str| found(&[keys]);
    let none: [&str; 0] = [];
    assert_eq!(one("topic = 'a/+'\npublish = 'b/{1}'"), none);
    assert_eq!(one("topic = 'a/+'\npublish = 'b/{2}'"), ["bindings[0].publish"]);
    assert_eq!(one("topic = 'a/+'\npublish = 'a/{1}'"), ["bindings[0].publish"]);
    assert_eq!(one("topic = 'a/#'\npublish = 'a/b/c'"), ["bindings[0].publish"]);
    assert_eq!(one("topic = 'a/#'\npublish = '{1}/b'"), ["bindings[0].publish"; 2]);
    assert_eq!(one("topic = '#'\npublish = 'x'"), ["bindings[0].topic", "bindings[0].publish"]);
    assert_eq!(one("topic = 'ledge/v1/x/other'\npublish = 'x'"), ["bindings[0].topic"]);
    assert_eq!(one("topic = '+/+/+/online'\npublish = 'x'"), ["bindings[0].topic"]);
    assert_eq!(one("topic = '+/+/+/snapshot'\npublish = 'x'"), none);
    assert_eq!(one("topic = '$share/g/a'\npublish = 'x'"), ["bindings[0].topic"]);
    assert_eq!(one("topic = 'a'\npublish = 'ledge/v1/x/infer/m'"), ["bindings[0].publish"]);
    assert_eq!(one("topic = 'a'\npublish = 'ledge/v1/{device}/desired'"), ["bindings[0].publish"]);
    assert_eq!(one("topic = 'a/#'\npublish = 'ledge/v1/{1}'"), ["bindings[0].publish"]);
    assert_eq!(one("topic = 'a'\npublish = 'ledge/v1/{device}/result/{model}'"), none);
    assert_eq!(
        one("topic = 'a'\npublish = 'b'\nphotograph = '$.a'\ninputs = { x = ['$.b'] }"),
        ["bindings[0].photograph"]
    );
    for other in ["photograph = '$.a'", "inputs = { x = ['$.b'] }"] {
        assert_eq!(one(&format!("topic = 'a'\npublish = 'b'\ntext = '$.t'\n{other}")), ["bindings[0].text"]);
    }
    assert_eq!(one("topic = 'a'\npublish = 'b'\ninputs = { x = [] }"), ["bindings[0].inputs"]);
    assert_eq!(one("topic = 'a'\npublish = 'b'\nname = ''"), ["bindings[0].name"]);

    // Conditions do not break a loop, because the messages that they exclude are only known one by one.
    assert_eq!(one("topic = 'a/#'\npublish = 'a/b/c'\nwhen = { '{1}' = 'x' }"), ["bindings[0].publish"]);

    let (first, second) = ("topic = 'a/+'\npublish = 'b/{1}'", "topic = 'b/+'\npublish = 'c/{1}'");
    assert_eq!(found(&[first, second]), ["bindings[0].publish"]);
    assert_eq!(found(&[first, first]), ["bindings[1].topic"]);
    assert_eq!(found(&[first, &format!("{first}\nname = 'other'")]), none);
    assert_eq!(found(&[first, &format!("{second}\nname = 'a/+'")]), ["bindings[0].publish", "bindings[1].name"]);
    // Overlapping topics are allowed.
    assert_eq!(found(&[first, &format!("{first}\nname = 'other'\nshared = true")]), none);
    assert_eq!(found(&[first, "topic = 'a/x'\npublish = 'c'"]), none);
    assert_eq!(found(&[first; 257]), ["bindings"]);
}

#[test]
fn the_parts_of_a_binding_need_each_other() {
    let found = |keys: &str| {
        let problems = problems(&configs(&format!("[[bindings]]\ntopic = 'a/+'\n{keys}\n")));
        problems.into_iter().map(|problem| problem.key.replace("bindings[0].", "")).collect::<Vec<_>>()
    };
    let none: [&str; 0] = [];
    let view = "feature_view = 'v'";
    assert_eq!(found(view), none);
    assert_eq!(found("push_source = 's'\nmodel = 'm'\npublish = 'b'\nentities = { k = '{1}', l = '$.l' }"), none);
    assert_eq!(found("model = 'm'\npublish = 'b'\nentities = { k = '{1}-{model}' }"), none);
    assert_eq!(found(""), ["topic"]);
    assert_eq!(found("model = 'm'"), ["model"]);
    assert_eq!(found(&format!("{view}\npush_source = 's'")), ["push_source"]);
    for key in [
        "publish = 'b'",
        "version = 1",
        "timeout_ms = 1",
        "priority = 'batch'",
        "retain = true",
        "publish_errors = true",
        "photograph = '$.a'",
        "select = '$.a'",
        "inputs = { x = ['$.a'] }",
    ] {
        assert_eq!(found(&format!("{view}\n{key}")), [key.split(' ').next().unwrap()], "{key}");
    }
    let asks = "model = 'm'\npublish = 'b'";
    assert_eq!(found(&format!("{asks}\nevent_timestamp = '$.t'")), ["event_timestamp"]);
    assert_eq!(found(&format!("{asks}\nfeatures = {{ f = '$.f' }}")), ["features"]);
    assert_eq!(found(&format!("{asks}\nphotograph = '$.p'\nentities = {{ k = '{{1}}' }}")), ["entities"]);
    assert_eq!(found(&format!("{view}\nentities = {{ k = '{{2}}' }}")), ["entities"]);
    assert_eq!(found(&format!("{view}\nentities = {{ k = '{{model}}' }}")), ["entities"]);

    assert_eq!(found(&format!("{view}\nvalue = 'x'\nwhen = {{ '$' = {{ not = 'unknown' }}, '{{1}}' = 'a' }}")), none);
    assert_eq!(found(&format!("{asks}\nvalue = 'x'\nentities = {{ k = '{{1}}' }}")), none);
    assert_eq!(found(&format!("{view}\nevent_timestamp = '$.t'\nevent_timestamp_missing = 'arrival'")), none);
    assert_eq!(found(&format!("{view}\nevent_timestamp_missing = 'arrival'")), ["event_timestamp_missing"]);
    assert_eq!(found(&format!("{asks}\ntimezone = 'UTC'")), ["timezone"]);
    for other in ["features = { f = '$.f' }", "event_timestamp = '$.t'", "timezone = 'UTC'", "value = ''"] {
        let value = if other.starts_with("value") { "" } else { "value = 'x'\n" };
        assert_eq!(found(&format!("{view}\n{value}{other}")), ["value"], "{other}");
    }
    for other in ["photograph = '$.p'", "text = '$.t'", "inputs = { x = ['$.a'] }"] {
        assert_eq!(found(&format!("{asks}\nvalue = 'x'\n{other}")), ["value"], "{other}");
    }
    assert_eq!(found(&format!("{view}\nvalue = 'x'\nentities = {{ k = '$.id' }}")), ["entities"]);
    assert_eq!(found(&format!("{view}\nwhen = {{ '{{2}}' = 'a' }}")), ["when"]);
    assert_eq!(found(&format!("{view}\nwhen = {{ '{{model}}' = 'a' }}")), ["when"]);
    assert_eq!(found(&format!("{view}\nwhen = {{ '{{1}}' = {{ exists = true }} }}")), ["when"]);
}

#[test]
fn a_topic_finds_all_its_bindings_and_their_captures() {
    let bindings = Bindings::new(&configs(
        "[[bindings]]\nname = 'one'\ntopic = 'in/+/x'\nmodel = 'm'\npublish = 'a'\n\
         [[bindings]]\nname = 'two'\ntopic = 'in/#'\nmodel = 'm'\npublish = 'b'\n",
    ));
    let topic = "in/7/x".parse().unwrap();
    let found: Vec<_> = bindings.matching(&topic).map(|(binding, captures)| (binding.name(), captures)).collect();
    assert_eq!(found, [("one", vec!["7"]), ("two", vec!["7/x"])]);
    assert_eq!(bindings.matching(&"out".parse().unwrap()).count(), 0);
}

#[test]
fn a_whole_message_is_a_photograph_when_it_says_so_or_begins_like_one() {
    let (jpeg, json) = (Bytes::from_static(b"\xff\xd8\xff\xe0"), Bytes::from_static(b"{}"));
    let tensors = BodyKind::Tensors { header_length: None };
    let whole = |payload: &Bytes, kind| binding("").request(payload, kind).unwrap();
    assert_eq!(whole(&jpeg, None), ExtractedInput::Body(jpeg.clone(), BodyKind::Photograph));
    assert_eq!(whole(&json, Some("Image/PNG")), ExtractedInput::Body(json.clone(), BodyKind::Photograph));
    assert_eq!(whole(&json, None), ExtractedInput::Body(json.clone(), tensors));
    assert_eq!(whole(&jpeg, Some("application/octet-stream")), ExtractedInput::Body(jpeg, tensors));
    let text = Bytes::from_static(b"a pump is loud");
    assert_eq!(whole(&text, None), ExtractedInput::Body(text.clone(), BodyKind::Text));
    assert_eq!(whole(&text, Some("application/json")), ExtractedInput::Body(text, tensors));
}

#[test]
fn a_text_is_read_from_its_field() {
    let found = |message: &'static str| request("text = '$.note'", message);
    assert_eq!(
        found(r#"{"note": "a \"b\""}"#),
        Ok(ExtractedInput::Body(Bytes::from_static(b"a \"b\""), BodyKind::Text))
    );
    assert_eq!(found(r#"{"note": 7}"#).unwrap_err().to_string(), "at $.note there is a number, expected a text");
}

#[test]
fn a_photograph_is_read_from_base64() {
    let found = |text: &str| request("photograph = '$.image'", json!({ "image": text }).to_string());
    let photograph = |bytes: &'static [u8]| Ok(ExtractedInput::Body(Bytes::from_static(bytes), BodyKind::Photograph));
    assert_eq!(found("/9j/4A=="), photograph(b"\xff\xd8\xff\xe0"));
    assert_eq!(found("/9j/4A"), photograph(b"\xff\xd8\xff\xe0"));
    assert_eq!(found("/9j/\r\n4A==\n"), photograph(b"\xff\xd8\xff\xe0"));
    assert_eq!(found("data:image/jpeg;base64,/9j/4A=="), photograph(b"\xff\xd8\xff\xe0"));
    assert_eq!(found("DATA:;Base64,"), photograph(b""));
    for wrong in ["/9j/4", "/9j-4A==", "data:image/jpeg,x", "data:base64", "ä"] {
        assert!(matches!(found(wrong), Err(BindingError::NotBase64 { .. })), "{wrong}");
    }
    let error = |payload: &'static str| request("photograph = '$.image'", payload).unwrap_err().to_string();
    assert_eq!(error("{}"), "the message has nothing at $.image");
    assert_eq!(error(r#"{"image": 7}"#), "at $.image there is a number, expected a text with a photograph in base64");
    assert!(error("\u{ff}").starts_with("the message is not JSON: expected a value at line 1"));
}

#[test]
fn rows_are_the_elements_at_their_paths() {
    let message =
        r#"{"t": 21.5, "v": [1, -2, 18446744073709551615], "on": true, "s": "a", "n": null, "o": [{}], "d": [[1]]}"#;
    let rows = |paths: &str| request(&format!("inputs = {{ x = [{paths}] }}"), message);
    let row = |row: Vec<Value>| Ok(ExtractedInput::Rows(vec![("x".into(), row)]));
    assert_eq!(rows("'$.t', '$.v'"), row(vec![json!(21.5), json!(1), json!(-2), json!(u64::MAX)]));
    assert_eq!(rows("'$.on', '$.s', '$.v[-1]'"), row(vec![json!(true), json!("a"), json!(u64::MAX)]));
    for (path, word) in [
        ("'$.x'", "nothing at $.x"),
        ("'$.n'", "at $.n there is null"),
        ("'$.o'", "at $.o there is an object"),
        ("'$.d'", "not of arrays"),
        ("'$'", "at $ there is an object"),
    ] {
        let error = rows(path).unwrap_err().to_string();
        assert!(error.contains(word), "{error}");
    }
}

#[test]
fn a_row_becomes_what_the_input_takes() {
    let fp32 = tensor(vec![json!(1), json!(0.1)], DataType::Fp32, &[-1, 2]).unwrap();
    assert_eq!((fp32.shape(), fp32.elements::<f32>().unwrap().as_ref()), (&[1, 2][..], &[1.0, 0.1][..]));
    let exact = tensor(vec![json!(i64::MAX), json!(i64::MIN)], DataType::Int64, &[1, 2]).unwrap();
    assert_eq!(exact.elements::<i64>().unwrap().as_ref(), [i64::MAX, i64::MIN]);
    let bools = tensor(vec![json!(true), json!(false)], DataType::Bool, &[-1, -1]).unwrap();
    assert_eq!(bools.bools(), Some(&[true, false][..]));
    let texts = tensor(vec![json!("ä\n")], DataType::Bytes, &[-1, 1]).unwrap();
    assert_eq!(texts.strings().unwrap().collect::<Vec<_>>(), ["ä\n".as_bytes()]);
    for (value, datatype) in [(json!("1"), DataType::Fp32), (json!(1.5), DataType::Int8), (json!(1), DataType::Bool)] {
        assert!(matches!(tensor(vec![value], datatype, &[-1, 1]), Err(ProtocolError::Element { .. })));
    }
    let error = request_of_rows(&[("y".into(), Vec::new())], &signature(DataType::Fp32, &[1]), vec![]).unwrap_err();
    assert_eq!(error.to_string(), "the model has no input \"y\"; it has x");
}

#[test]
fn a_row_takes_the_shape_of_its_input() {
    let shape = |count: usize, of: &[i64]| tensor(vec![json!(0); count], DataType::Fp64, of).unwrap().shape().to_vec();
    assert_eq!(shape(3, &[-1, 3]), [1, 3]);
    assert_eq!(shape(3, &[3]), [3]);
    assert_eq!(shape(6, &[-1, 2, 3]), [1, 2, 3]);
    assert_eq!(shape(5, &[-1, 2, 3]), [1, 5]);
    assert_eq!(shape(6, &[-1, -1, 3]), [1, 6]);
    assert_eq!(shape(1, &[]), [1, 1]);
}

#[test]
fn a_part_of_the_answer_is_published() {
    let answer = Bytes::from_static(br#"{"labels": [{"label": "till \"7\"", "score": 0.25}]}"#);
    let published =
        |select: &str| binding(select).answer(&answer).map(|bytes| String::from_utf8_lossy(&bytes).into_owned());
    assert_eq!(published("select = '$.labels[0].label'").as_deref(), Ok("till \"7\""));
    assert_eq!(published("select = '$.labels[0].score'").as_deref(), Ok("0.25"));
    assert_eq!(published("select = '$.labels[-1]'").as_deref(), Ok(r#"{"label":"till \"7\"","score":0.25}"#));
    assert_eq!(binding("").answer(&answer), Ok(answer.clone()));
    assert_eq!(published("select = '$.x'").unwrap_err().to_string(), "the answer has nothing at $.x");
    let binary = binding("select = '$.x'").answer(&Bytes::from_static(b"\0")).unwrap_err();
    assert!(matches!(binary, BindingError::NotJson { what: "answer", .. }));
}

proptest! {
    #[test]
    fn numbers_arrive_as_they_were_sent(integers: Vec<i64>, reals in prop::collection::vec(prop::num::f64::NORMAL | prop::num::f64::SUBNORMAL | prop::num::f64::ZERO, 0..9)) {
        let message = json!({ "i": integers, "r": reals }).to_string();
        let rows = request("inputs = { i = ['$.i'], r = ['$.r'] }", message).unwrap();
        let ExtractedInput::Rows(mut rows) = rows else { unreachable!("inputs are set") };
        let (_, real) = rows.pop().unwrap();
        let (_, integer) = rows.pop().unwrap();
        let read = tensor(integer, DataType::Int64, &[-1, -1]).unwrap();
        let read = read.elements::<i64>().unwrap();
        prop_assert_eq!(read.as_ref(), integers);
        let read = tensor(real, DataType::Fp64, &[-1, -1]).unwrap();
        let bits = |numbers: &[f64]| numbers.iter().map(|number| number.to_bits()).collect::<Vec<_>>();
        prop_assert_eq!(bits(read.elements::<f64>().unwrap().as_ref()), bits(&reals));
    }

    #[test]
    fn a_photograph_comes_out_as_it_went_in(photograph: Vec<u8>) {
        use base64::Engine;
        let text = base64::engine::general_purpose::STANDARD.encode(&photograph);
        let message = json!({ "image": format!("data:image/png;base64,{text}") }).to_string();
        prop_assert_eq!(request("photograph = '$.image'", message), Ok(ExtractedInput::Body(photograph.into(), BodyKind::Photograph)));
    }
}

/// Two views of machines, of which one has a number for its key and its own name for the event time.
fn machines() -> Registry {
    Registry::parse(
        "[[entity]]\nname = 'machine'\njoin_key = 'machine_id'\nvalue_type = 'Int64'\n\
         [[feature_view]]\nname = 'stats'\nentities = ['machine']\n\
         schema = [{ name = 'temperature', dtype = 'Float64' }, { name = 'vibration', dtype = 'Float64', optional = true }]\n\
         source = { name = 'stats_push', timestamp_field = 'measured_at' }\n\
         [[feature_view]]\nname = 'heat'\nentities = ['machine']\n\
         schema = [{ name = 'heat', dtype = 'Float64' }]\n\
         [[feature_view]]\nname = 'lists'\nentities = ['machine']\n\
         schema = [{ name = 'all', dtype = 'Array(Float32)' }]\n",
    ).unwrap()
}

/// The columns that a binding pushes of a message in JSON, by name.
fn pushed(keys: &str, topic: &str, payload: &Value) -> Result<Value, BindingError> {
    pushed_of(keys, topic, &payload.to_string(), 1_000_000)
}

/// The columns that a binding pushes of a message that came at `arrived_us`, by name.
fn pushed_of(keys: &str, topic: &str, payload: &str, arrived_us: i64) -> Result<Value, BindingError> {
    let text = format!("[[bindings]]\ntopic = 'machines/+/telemetry'\nfeature_view = 'stats'\n{keys}");
    let configs = configs(&text);
    assert_eq!(problems(&configs), []);
    let registry = machines();
    let views = registry.targets(&configs[0].target().unwrap()).unwrap();
    let captures: Vec<String> =
        configs[0].topic.captures(&topic.parse().unwrap()).unwrap().into_iter().map(str::to_owned).collect();
    let origin = MessageOrigin { captures: &captures, device: &"box".parse().unwrap(), arrived_us };
    let columns = push_rows(&configs[0], &views, &payload.to_owned().into(), origin)?.columns;
    Ok(columns.into_iter().map(|(name, cells)| (name, Value::Array(cells))).collect::<serde_json::Map<_, _>>().into())
}

#[test]
fn rows_come_out_of_the_topic_and_the_message() {
    let nested = json!({"vib": {"rms": 0.5}, "temp": 71.5, "ts": 1_795_222_800, "other": [1]});
    let keys = "event_timestamp = '$.ts'\nentities = { machine_id = '{1}' }\n\
                features = { temperature = '$.temp', vibration = '$.vib.rms' }";
    assert_eq!(
        pushed(keys, "machines/7/telemetry", &nested),
        Ok(json!({"machine_id": [7], "temperature": [71.5], "vibration": [0.5], "measured_at": [1_795_222_800]}))
    );
    // By their own names, from two rows, of which one lacks the optional column and the other one the event time.
    let rows = json!([
        {"machine_id": 7, "temperature": 71, "measured_at": "2026-11-21T01:00:00Z"},
        {"machine_id": 9, "temperature": 20, "vibration": 0.1, "unknown": true},
    ]);
    assert_eq!(
        pushed("", "machines/x/telemetry", &rows),
        Ok(json!({"machine_id": [7, 9], "temperature": [71, 20], "vibration": [null, 0.1],
            "measured_at": ["2026-11-21T01:00:00Z", "1970-01-01T00:00:01Z"]}))
    );
    // A field that no row has makes no column: the view decides whether it may be missing.
    assert_eq!(
        pushed("entities = { machine_id = '$.id' }", "machines/x/telemetry", &json!({"id": "7"})),
        Ok(json!({"machine_id": ["7"], "measured_at": ["1970-01-01T00:00:01Z"]}))
    );
}

#[test]
fn a_bare_value_is_a_row_of_its_topic_and_its_arrival() {
    let keys = "value = 'temperature'\nentities = { machine_id = '{1}' }";
    let of = |payload: &str| pushed_of(keys, "machines/7/telemetry", payload, 1_000_000);
    for (payload, value) in [("71.5", json!(71.5)), (" -3\n", json!(-3)), ("1e3", json!(1000.0))] {
        let row = json!({"machine_id": [7], "temperature": [value], "measured_at": ["1970-01-01T00:00:01Z"]});
        assert_eq!(of(payload), Ok(row), "{payload}");
    }
    for other in ["unavailable", "nan", "71,5", "", "{\"temperature\": 71.5}"] {
        let told = of(other).unwrap_err().to_string();
        let expected = format!("the message is {other:?}, expected a number such as 21.4 for temperature");
        assert_eq!(told, expected);
    }
    let told = pushed_of("value = 'heat'\nentities = { machine_id = '{1}' }", "machines/7/telemetry", "1", 0);
    assert_eq!(told.unwrap_err().to_string(), "no feature view of the binding has the feature \"heat\"");
}

#[test]
fn a_message_without_its_time_is_refused_unless_arrival_is_the_fallback() {
    let keys = "event_timestamp = '$.ts'\nevent_timestamp_missing = 'arrival'";
    let at = |keys: &str, row: &Value| {
        Ok::<_, BindingError>(pushed(keys, "machines/x/telemetry", row)?["measured_at"].clone())
    };
    let with = |ts: Value| json!({"machine_id": 1, "temperature": 1, "ts": ts, "measured_at": 5});
    let arrival = json!(["1970-01-01T00:00:01Z"]);
    assert_eq!(at(keys, &json!({"machine_id": 1, "temperature": 1})), Ok(arrival.clone()));
    assert_eq!(at(keys, &with(Value::Null)), Ok(arrival.clone()));
    assert_eq!(at(keys, &with(json!(7))), Ok(json!([7])));
    // A time that is wrong is not a missing one: the store refuses it.
    assert_eq!(at(keys, &with(json!("noon"))), Ok(json!(["noon"])));
    let rows = json!([{"machine_id": 1, "temperature": 1, "ts": 7}, {"machine_id": 2, "temperature": 1}]);
    assert_eq!(at(keys, &rows), Ok(json!([7, "1970-01-01T00:00:01Z"])));
    let refused = at("event_timestamp = '$.ts'\nevent_timestamp_missing = 'refuse'", &json!({"machine_id": 1}));
    assert_eq!(refused.unwrap_err().to_string(), "the message has nothing at $.ts");
}

#[test]
fn a_time_without_a_zone_is_in_that_of_the_device() {
    let at = |keys: &str, row: &Value| pushed(keys, "machines/x/telemetry", row).unwrap()["measured_at"][0].clone();
    let row =
        |time: Value| json!({"machine_id": 1, "temperature": 1, "Time": time, "measured_at": "2026-07-01T12:00:00"});
    let berlin = "event_timestamp = '$.Time'\ntimezone = 'Europe/Berlin'";
    for (keys, time, moment) in [
        (berlin, json!("2026-11-25T17:43:12"), json!("2026-11-25T16:43:12Z")),
        (berlin, json!("2026-07-25T17:43:12"), json!("2026-07-25T15:43:12Z")),
        (berlin, json!("2026-11-25T17:43:12Z"), json!("2026-11-25T17:43:12Z")),
        (berlin, json!("2026-11-25T17:43:12+03:00"), json!("2026-11-25T14:43:12Z")),
        (berlin, json!(1_795_222_800), json!(1_795_222_800)),
        (berlin, json!("noon"), json!("noon")),
        ("event_timestamp = '$.Time'", json!("2026-11-25T17:43:12"), json!("2026-11-25T17:43:12")),
        ("timezone = 'Asia/Dubai'", json!(1), json!("2026-07-01T08:00:00Z")),
    ] {
        assert_eq!(at(keys, &row(time.clone())), moment, "{keys} {time}");
    }
    // The hour that comes twice: the time of arrival says which it is.
    let twice = json!({"machine_id": 1, "temperature": 1, "Time": "2026-10-25T02:30:00"}).to_string();
    for arrived in ["2026-10-25T00:30:00Z", "2026-10-25T01:30:00Z"] {
        let arrived_us = ledge_base::clock::parse_micros(arrived).unwrap();
        let columns = pushed_of(berlin, "machines/x/telemetry", &twice, arrived_us + 2_000_000).unwrap();
        assert_eq!(columns["measured_at"], json!([arrived]));
    }
}

#[test]
fn a_zone_that_this_box_does_not_have_is_a_mistake_among_others() {
    let text = "[[bindings]]\ntopic = 'a'\nfeature_view = 'v'\ntimezone = 'Europe/Nowhere'\n\
                event_timestamp_missing = 'now'\nwhen = { '$..a' = 1 }\nqos = 7\n";
    let mistakes = toml_check::parse::<MqttConfig>("t", text).unwrap_err();
    let lines: Vec<_> = mistakes.iter().map(|mistake| (mistake.line, mistake.key.as_str())).collect();
    let keys = ["timezone", "event_timestamp_missing", "when", "qos"].map(|key| format!("bindings[0].{key}"));
    assert_eq!(lines.len(), 4, "{mistakes:?}");
    for ((line, key), (expected_line, expected)) in lines.iter().zip((4..).zip(&keys)) {
        assert!(*line == Some(expected_line) && key.starts_with(expected.as_str()), "{mistakes:?}");
    }
    assert!(mistakes[0].message.contains("\"Europe/Nowhere\" is not known on this box"), "{}", mistakes[0]);
    for zone in ["local", "UTC", "Europe/Berlin"] {
        let configs = configs(&format!("[[bindings]]\ntopic = 'a'\nfeature_view = 'v'\ntimezone = '{zone}'"));
        assert_eq!(toml::from_str(&toml::to_string(&configs[0]).unwrap()), Ok(configs[0].clone()));
    }
}

#[test]
fn a_message_without_rows_is_refused_with_the_reason() {
    let of_topic = "entities = { machine_id = '{1}' }";
    for (keys, payload, words) in [
        (of_topic, json!(7), "a number, expected an object"),
        (of_topic, json!([{}, []]), "an array, expected an object"),
        (of_topic, json!([]), "nothing at $[0]"),
        (of_topic, json!({"temperature": 1}), "\"seven\""),
        ("entities = { machine_id = '$.id' }", json!({"temperature": 1}), "nothing at $.id"),
        ("event_timestamp = '$.ts'", json!({"machine_id": 1, "temperature": 1}), "nothing at $.ts"),
    ] {
        let error = pushed(keys, "machines/seven/telemetry", &payload).unwrap_err().to_string();
        assert!(error.contains(words), "{keys} {payload}: {error}");
    }
}

#[test]
fn fields_that_nothing_takes_are_named_where_columns_go_by_their_names() {
    let unused = |keys: &str, payload: &Value| {
        let configs = configs(&format!("[[bindings]]\ntopic = 'machines/+/telemetry'\nfeature_view = 'stats'\n{keys}"));
        let views = machines().targets(&configs[0].target().unwrap()).unwrap();
        let origin = MessageOrigin { captures: &["7".to_owned()], device: &"box".parse().unwrap(), arrived_us: 0 };
        push_rows(&configs[0], &views, &payload.to_string().into(), origin).unwrap().unused
    };
    let rows =
        json!([{"machine_id": 7, "temperatur": 71, "measured_at": 1}, {"machine_id": 9, "id": 1, "meta": {"x": 1}}]);
    assert_eq!(unused("", &rows), ["id", "meta", "temperatur"]);
    // A path into a field uses it; and with a list of columns, the rest is left out on purpose.
    assert_eq!(
        unused(
            "entities = { machine_id = '$.machine_id' }\nevent_timestamp = '$.measured_at'",
            &json!({"machine_id": 1, "measured_at": 2, "meta": 1})
        ),
        ["meta"]
    );
    assert_eq!(
        unused("features = { temperature = '$.temperatur' }", &json!({"machine_id": 7, "temperatur": 71, "meta": 1})),
        [""; 0]
    );
}

/// The problems of a binding with the views of [`machines`], each with its key.
fn misfits(keys: &str) -> Vec<String> {
    let configs = configs(&format!("[[bindings]]\ntopic = 'machines/+/telemetry'\n{keys}"));
    assert_eq!(problems(&configs), []);
    against_views(&configs[0], &machines())
        .into_iter()
        .map(|found| format!("{}: {}", found.key, found.reason))
        .collect()
}

#[test]
fn a_binding_that_no_message_fits_is_told_by_the_declared_views() {
    let stats = "feature_view = 'stats'\nentities = { machine_id = '{1}' }\n";
    for right in ["", "features = { temperature = '$.t' }", "features = { temperature = '$.t', measured_at = '$.at' }"]
    {
        assert_eq!(misfits(&format!("{stats}{right}")), [""; 0], "{right}");
    }
    assert_eq!(misfits("push_source = 'stats_push'\nfeatures = { temperature = '$.t' }"), [""; 0]);
    let of_topic = "entities = { machine_id = '{1}' }";
    assert_eq!(misfits(&format!("feature_view = 'heat'\nvalue = 'heat'\n{of_topic}")), [""; 0]);
    for (keys, expected) in [
        (
            "feature_view = 'stats'\nvalue = 'temperatur'\nentities = { machine_id = '{1}' }",
            vec![
                "value: \"temperatur\" is no column of the feature view 'stats', which has 'temperature', 'vibration'",
                "value: is one feature, and the feature view 'stats' needs 'temperature' too: declare a \
                 separate feature view for each value",
            ],
        ),
        (
            "feature_view = 'stats'\nvalue = 'temperature'\nentities = { machine_id = '{1}' }",
            vec![
                "value: is one feature, and each message would set 'vibration' of the feature view 'stats' to null: \
                 declare a separate feature view for each value",
            ],
        ),
        (
            "feature_view = 'heat'\nvalue = 'heat'",
            vec![
                "entities: do not include \"machine_id\", a join key of the feature view 'heat': add its place in the \
                 topic",
            ],
        ),
        (
            "feature_view = 'lists'\nvalue = 'all'\nentities = { machine_id = '{1}' }",
            vec!["value: \"all\" is Array(Float32), and a message is one value"],
        ),
        ("feature_view = 'stat'", vec!["feature_view: Feature view stat does not exist: declare it"]),
        ("push_source = 'stats'", vec!["push_source: Unable to find push source 'stats'.: declare it"]),
        (
            "feature_view = 'stats'\nentities = { machine = '{1}' }",
            vec!["entities.machine: is no join key of the feature view 'stats', which has 'machine_id'"],
        ),
        (
            "feature_view = 'stats'\nfeatures = { temperatur = '$.t', vibration = '$.v' }",
            vec![
                "features.temperatur: is no column of the feature view 'stats', which has 'temperature', 'vibration'",
                "features: do not include \"temperature\", which the feature view 'stats' needs: add its path in a \
                 message, or declare it optional",
            ],
        ),
        (
            "model = 'm'\npublish = 'p'\nentities = { machine = '{1}' }",
            vec!["entities.machine: is a join key of no feature view"],
        ),
    ] {
        assert_eq!(misfits(keys), expected, "{keys}");
    }
}

#[test]
fn a_binding_that_no_message_fits_is_told_by_its_model() {
    let told = |keys: &str, model: &str, inputs: Option<&[&str]>| {
        let configs =
            configs(&format!("[[bindings]]\ntopic = 'machines/+/telemetry'\nmodel = 'm'\npublish = 'p'\n{keys}"));
        let config = ModelConfig::parse("model.toml", model).unwrap();
        let inputs: Option<Vec<_>> = inputs.map(|names| names.iter().map(|&name| name.to_owned()).collect());
        let known = BindingModel { name: &"m".parse().unwrap(), config: &config, inputs: inputs.as_deref() };
        let problems = against_model(&configs[0], &machines(), known);
        problems.into_iter().map(|found| found.key).collect::<Vec<_>>()
    };
    let rows = "inputs = { x = ['$.x'], y = ['$.y'] }";
    let made = "[[input]]\nname = 'z'\nfeatures = ['stats:temperature']\n";
    assert_eq!(told(rows, "", Some(&["x", "y"])), [""; 0]);
    assert_eq!(told(rows, "", None), [""; 0]);
    assert_eq!(told(rows, "", Some(&["x", "z"])), ["inputs.y", "inputs"]);
    assert_eq!(told(rows, made, Some(&["x", "y", "z"])), ["entities"]);
    assert_eq!(told(&format!("{rows}\nentities = {{ machine_id = '{{1}}' }}"), made, Some(&["x", "y", "z"])), [""; 0]);
    assert_eq!(told("feature_view = 'stats'", made, Some(&["z"])), [""; 0]);
    assert_eq!(told("feature_view = 'stats'", made, Some(&["z", "x"])), ["inputs"]);
    assert_eq!(told("photograph = '$.p'", "", Some(&["x"])), ["photograph"]);
    assert_eq!(told("text = '$.t'", "", Some(&["x"])), ["text"]);
    assert_eq!(told("text = '$.t'", "[pipeline.text_embedding]", Some(&["x"])), [""; 0]);
    assert_eq!(told("photograph = '$.p'", "[pipeline.image_classification]\ncrop = [1, 1]", Some(&["x"])), [""; 0]);
    // A whole message names its inputs itself.
    assert_eq!(told("", "", Some(&["x"])), [""; 0]);

    let value = "value = 'x'\nentities = { machine_id = '{1}' }";
    assert_eq!(told(value, "", Some(&["x"])), [""; 0]);
    assert_eq!(told(value, "", None), [""; 0]);
    assert_eq!(told(value, "", Some(&["y"])), ["value", "inputs"]);
    assert_eq!(told(value, made, Some(&["x", "z"])), [""; 0]);
    assert_eq!(told("value = 'x'", made, Some(&["x", "z"])), ["entities"]);
    assert_eq!(told(value, "[pipeline.text_embedding]", Some(&["x"])), ["value"]);
    let table = |columns: &str| format!("[pipeline.table]\noutput = 'o'\ncolumns = [{columns}]");
    assert_eq!(told(value, &table("{ name = 'x' }"), Some(&["m"])), [""; 0]);
    assert_eq!(told(value, &table("{ name = 'y' }"), Some(&["m"])), ["value", "value"]);
    assert_eq!(told(value, &table("{ name = 'x' }, { name = 'y' }, { name = 'machine_id' }"), Some(&["m"])), ["value"]);
    let filled =
        "{ name = 'x' }, { name = 'a', default = 1 }, { name = 'b', missing = 'nan' }, { name = 'c', feature = 'v:f' }";
    assert_eq!(told(value, &table(filled), Some(&["m"])), [""; 0]);
    // The rows that are pushed are those of the view, and the model is asked about their entities.
    assert_eq!(told("feature_view = 'stats'\nvalue = 'temperature'", made, Some(&["z"])), [""; 0]);
}
