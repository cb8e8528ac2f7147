//! Properties that must hold for any topic and any message of a device. The folder `fuzz/` and `tests/it/fuzz.rs` run
//! them.

use std::str::FromStr;
use std::sync::Arc;
use std::time::Instant;

use bytes::Bytes;
use ledge_base::tensor::DataType;
use ledge_engine::backend::{ModelPort, ModelSignature};
use ledge_models::serving::request::CallInputs;
use ledge_protocol::decode_request;

use super::bindings::{
    Binding, BindingConfig, Bindings, ExtractedInput, MessageConditions, MessageParts, ValueKind, request_of_rows,
};
use super::field_path::FieldPath;
use super::topics::{DeviceTopics, TopicFilter, TopicName, TopicTemplate};

/// The longest error message, in bytes: errors quote only excerpts of a message.
const ERROR_MESSAGE_MAX_BYTES: usize = 8 * 1024;

/// Takes lines with a filter, another filter, a template and a topic; true when all four are valid.
///
/// # Panics
/// When an invariant does not hold.
pub fn fuzz_topics(data: &[u8]) -> bool {
    let text = String::from_utf8_lossy(data);
    let mut lines = text.split('\n');
    let mut line = || lines.next().unwrap_or_default();
    let (filter, other) = (read::<TopicFilter>(line()), read::<TopicFilter>(line()));
    let (template, topic) = (read::<TopicTemplate>(line()), read::<TopicName>(line()));
    let topics = DeviceTopics { device: valid("box"), group: Some(valid("shop")), has_platform: false };
    if let Some(topic) = &topic
        && let Some(Err(error)) = topics.route(topic)
    {
        assert!(error.to_string().len() < ERROR_MESSAGE_MAX_BYTES, "{error}");
    }
    let (Some(filter), Some(topic)) = (filter, topic) else { return false };
    let accepted = other.is_some() && template.is_some();
    let captures = filter.captures(&topic);
    assert_eq!(captures.is_some(), filter.unshared().matches(&topic));
    if let Some(other) = &other {
        assert_eq!(filter.overlaps(other), other.overlaps(&filter));
        assert!(!other.matches(&topic) || captures.is_none() || filter.overlaps(other), "{filter} {other} {topic}");
    }
    if let (Some(template), Some(captures)) = (template, captures) {
        let made = template.fill(&captures, &topics.device, &valid("m"));
        let all = template.as_filter(&filter);
        assert_eq!(read::<TopicFilter>(all.as_str()), Some(all.clone()));
        assert!(made.is_err() || made.is_ok_and(|made| all.matches(&made)), "{filter} {template} {topic}");
    }
    accepted
}

/// Takes a line with a path, and a message after it. True when the path leads to a value in the message.
///
/// # Panics
/// When an invariant does not hold.
pub fn fuzz_message(data: &[u8]) -> bool {
    let end = data.iter().position(|byte| *byte == b'\n').unwrap_or(data.len());
    let (line, payload) = data.split_at(end);
    let Some(path) = read::<FieldPath>(&String::from_utf8_lossy(line)) else { return false };
    let payload = Bytes::copy_from_slice(payload);

    for (config, wants_photograph) in [
        (BindingConfig { photograph: Some(path.clone()), ..plain() }, true),
        (BindingConfig { inputs: [("x".to_owned(), vec![path.clone(), valid("$.t")])].into(), ..plain() }, false),
    ] {
        match binding(config).request(&payload, None) {
            Ok(ExtractedInput::Rows(rows)) => check_rows(&rows),
            Ok(extracted) => assert!(wants_photograph, "{extracted:?}"),
            Err(error) => assert!(error.to_string().len() < ERROR_MESSAGE_MAX_BYTES + line.len() * 8, "{error}"),
        }
    }
    assert!(binding(plain()).request(&payload, None).is_ok());
    let selecting = binding(BindingConfig { select: Some(path), ..plain() });
    let part = selecting.answer(&payload);
    assert!(part.as_ref().map_or(true, |part| std::str::from_utf8(part).is_ok()));
    part.is_ok()
}

/// Takes a line with `when` as JSON, and a message after it. True when the message meets the conditions.
///
/// # Panics
/// When an invariant does not hold.
pub fn fuzz_conditions(data: &[u8]) -> bool {
    let end = data.iter().position(|byte| *byte == b'\n').unwrap_or(data.len());
    let (line, payload) = data.split_at(end);
    let Ok(when) = serde_json::from_slice::<MessageConditions>(line) else { return false };
    let written = serde_json::to_vec(&when).unwrap_or_default();
    assert_eq!(serde_json::from_slice::<MessageConditions>(&written).ok().as_ref(), Some(&when));
    assert!(!when.to_string().is_empty() || when.is_empty());
    let (payload, device) = (Bytes::copy_from_slice(payload), valid("box"));
    let unmet = |payload| when.unmet(&MessageParts::new(payload, &device), &["a", "b"], None);
    let (read, unread) = (unmet(Some(&payload)), unmet(None));
    // An unread message may meet the conditions though a read one does not, and never the other way round.
    assert!(unread.is_none() || read == unread, "{read:?} {unread:?}");
    assert!(read.as_ref().is_none_or(|told| told.len() < ERROR_MESSAGE_MAX_BYTES + line.len() * 8), "{read:?}");
    read.is_none()
}

/// Takes a message that is one value. True when it is a number.
///
/// # Panics
/// When an invariant does not hold.
pub fn fuzz_bare_value(data: &[u8]) -> bool {
    let read = |kind: ValueKind| match kind.read("x", data) {
        Ok(value) => Some(value),
        Err(error) => {
            assert!(error.to_string().len() < ERROR_MESSAGE_MAX_BYTES, "{error}");
            None
        }
    };
    let number = read(ValueKind::Number);
    if let Some(number) = &number {
        let again = ValueKind::Number.read("x", number.to_string().as_bytes());
        assert_eq!(again.as_ref(), Ok(number));
        assert!(number.as_f64().is_some_and(f64::is_finite) && data.iter().any(u8::is_ascii_digit));
    }
    if let Some(whole) = read(ValueKind::Integer) {
        assert!(whole.is_i64() || whole.is_u64());
        assert_eq!(whole.as_f64(), number.as_ref().and_then(serde_json::Value::as_f64));
    }
    assert!(read(ValueKind::Boolean).is_none_or(|value| value.is_boolean()));
    let text = read(ValueKind::Text);
    assert_eq!(text.is_some(), std::str::from_utf8(data).is_ok_and(|text| !text.trim().is_empty()));
    assert_eq!(read(ValueKind::Time).is_some(), text.is_some());
    number.is_some()
}

/// Checks that the protocol decodes the rows to their values.
fn check_rows(rows: &[(String, Vec<serde_json::Value>)]) {
    for datatype in DataType::ALL {
        let input = ModelPort { name: "x".into(), datatype, shape: vec![-1, -1] };
        let body = request_of_rows(rows, &ModelSignature { inputs: vec![input], outputs: Vec::new() }, Vec::new());
        let body = body.unwrap_or_else(|error| unreachable!("{error}"));
        let decoded = decode_request(&valid("m"), body, None, Instant::now());
        let Ok(CallInputs::Named(inputs)) = decoded.map(|decoded| decoded.tensors.inputs) else { continue };
        for ((_, tensor), (_, row)) in inputs.iter().zip(rows) {
            assert_eq!((tensor.datatype(), tensor.shape()), (datatype, &[1, row.len()][..]));
        }
    }
}

/// Reads a text, and checks that writing and reading it again gives the same.
fn read<T: FromStr + ToString>(text: &str) -> Option<T> {
    let value = text.parse::<T>().ok()?;
    let written = value.to_string();
    assert_eq!(written.parse::<T>().ok().map(|again| again.to_string()), Some(written));
    Some(value)
}

fn valid<T: FromStr>(text: &str) -> T {
    text.parse().unwrap_or_else(|_| unreachable!("{text} is valid"))
}

fn plain() -> BindingConfig {
    toml::from_str("topic = 'in'\nmodel = 'm'\npublish = 'out'").unwrap_or_else(|_| unreachable!("all it must have"))
}

fn binding(config: BindingConfig) -> Arc<Binding> {
    Bindings::new(&[config]).iter().next().cloned().unwrap_or_else(|| unreachable!("there is one"))
}
