//! `when` of a binding: the conditions on a message, without which it is not meant. Pure.

use std::cell::OnceCell;
use std::fmt;

use bytes::Bytes;
use ledge_base::names::{DeviceName, ModelName};
use serde::de::{Error, MapAccess, SeqAccess, Visitor};
use serde::ser::SerializeMap;
use serde::{Deserialize, Deserializer, Serialize, Serializer};
use serde_json::{Number, Value};

use super::bare_value::excerpt;
use super::key_source::JoinKeySource;

/// The conditions on a message, all of which must hold.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct MessageConditions(Vec<(JoinKeySource, Condition)>);

/// A condition on a part of the topic, or on a value of the message.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Condition {
    /// It is one of these.
    Is(Vec<Value>),
    /// It is a value other than these, or missing.
    IsNot(Vec<Value>),
    /// There is something, or there is nothing. Null is nothing, as in a column of a table.
    Exists(bool),
}

/// The parts of a message that conditions are about.
#[derive(Debug)]
pub struct MessageParts<'a> {
    /// The payload; `None` if it has not been read, and then only conditions on the topic are judged.
    payload: Option<&'a Bytes>,
    /// The payload as JSON, once a condition asked for it. A word without quotes is a text.
    document: OnceCell<Option<Value>>,
    device: &'a DeviceName,
}

impl<'a> MessageParts<'a> {
    pub fn new(payload: Option<&'a Bytes>, device: &'a DeviceName) -> Self {
        Self { payload, document: OnceCell::new(), device }
    }

    fn document(&self, payload: &Bytes) -> Option<&Value> {
        let read = || {
            let text = || Some(std::str::from_utf8(payload).ok()?.trim().into());
            serde_json::from_slice(payload).ok().or_else(text)
        };
        self.document.get_or_init(read).as_ref()
    }
}

impl MessageConditions {
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    pub fn iter(&self) -> impl Iterator<Item = &(JoinKeySource, Condition)> {
        self.0.iter()
    }

    /// Returns `true` if a condition is about the content of messages.
    pub fn reads_payload(&self) -> bool {
        self.0.iter().any(|(source, _)| matches!(source, JoinKeySource::Field(_)))
    }

    /// The first condition that does not hold, in words; `None` for a message that meets all of them.
    pub fn unmet<C: AsRef<str>>(
        &self,
        subject: &MessageParts<'_>,
        captures: &[C],
        model: Option<&ModelName>,
    ) -> Option<String> {
        let is_topic = |(source, _): &&(JoinKeySource, Condition)| matches!(source, JoinKeySource::Topic(_));
        // Those on the topic first: they cost nothing.
        let (topic, payload) = (self.0.iter().filter(is_topic), self.0.iter().filter(|it| !is_topic(it)));
        topic.chain(payload).find_map(|(source, condition)| match source {
            JoinKeySource::Topic(template) => {
                let text = template.text(captures, subject.device, model.map(ModelName::as_str)).ok();
                let value = text.map(Value::from);
                condition.unmet(value.as_ref(), None).map(|found| format!("{source} {found}"))
            }
            JoinKeySource::Field(path) => {
                let payload = subject.payload?;
                let value = subject.document(payload).and_then(|document| path.find(document));
                let value = value.filter(|value| !value.is_null());
                // A word such as `true` is a text, too.
                let bare = path.is_root().then(|| std::str::from_utf8(payload).ok()).flatten().map(str::trim);
                condition.unmet(value, bare).map(|found| format!("{source} {found}"))
            }
        })
    }
}

impl Condition {
    /// The reason why a value does not meet it. `bare` is the text of the whole message, where it is about that.
    fn unmet(&self, value: Option<&Value>, bare: Option<&str>) -> Option<String> {
        let is_one_of = |wanted: &[Value]| {
            let is = |wanted: &Value| {
                value.is_some_and(|value| is_same(wanted, value)) || bare.is_some() && wanted.as_str() == bare
            };
            wanted.iter().any(is)
        };
        let found = || match value {
            None => "is not there".to_owned(),
            Some(value) => format!("is {}", shown(value)),
        };
        match self {
            Self::Is(wanted) => {
                (!is_one_of(wanted)).then(|| format!("{}, and not {}", found(), listed(wanted, " or ")))
            }
            Self::IsNot(wanted) => is_one_of(wanted).then(found),
            Self::Exists(true) => value.is_none().then(found),
            Self::Exists(false) => value.is_some().then(|| "is there".to_owned()),
        }
    }
}

/// Compares two values; numbers such that 1 is 1.0.
fn is_same(one: &Value, other: &Value) -> bool {
    let is_float = one.is_f64() || other.is_f64();
    one == other || is_float && one.is_number() && one.as_f64() == other.as_f64()
}

/// A value for a message, shortened.
fn shown(value: &Value) -> String {
    match value {
        Value::Array(_) => "a list".into(),
        Value::Object(_) => "an object".into(),
        Value::String(text) => excerpt(text.as_bytes()),
        other => other.to_string(),
    }
}

fn listed(values: &[Value], between: &str) -> String {
    values.iter().map(shown).collect::<Vec<_>>().join(between)
}

impl fmt::Display for MessageConditions {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (index, (source, condition)) in self.0.iter().enumerate() {
            let and = if index == 0 { "" } else { " and " };
            write!(f, "{and}{source} {condition}")?;
        }
        Ok(())
    }
}

impl fmt::Display for Condition {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Is(wanted) => write!(f, "is {}", listed(wanted, " or ")),
            Self::IsNot(wanted) => write!(f, "is not {}", listed(wanted, " or ")),
            Self::Exists(true) => f.write_str("is there"),
            Self::Exists(false) => f.write_str("is not there"),
        }
    }
}

impl Serialize for MessageConditions {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_map(self.0.iter().map(|(source, condition)| (source.to_string(), condition)))
    }
}

impl Serialize for Condition {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let mut table = match self {
            Self::Is(wanted) => return one_or_more(wanted).serialize(serializer),
            Self::IsNot(_) | Self::Exists(_) => serializer.serialize_map(Some(1))?,
        };
        match self {
            Self::Exists(exists) => table.serialize_entry("exists", exists)?,
            Self::IsNot(wanted) | Self::Is(wanted) => table.serialize_entry("not", &one_or_more(wanted))?,
        }
        table.end()
    }
}

fn one_or_more(values: &[Value]) -> Value {
    match values {
        [one] => one.clone(),
        values => values.to_vec().into(),
    }
}

impl<'de> Deserialize<'de> for MessageConditions {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct MessageConditionsVisitor;

        impl<'de> Visitor<'de> for MessageConditionsVisitor {
            type Value = MessageConditions;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a table of conditions, such as { \"$.type\" = \"climate\" }")
            }

            fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<MessageConditions, A::Error> {
                let mut conditions = Vec::new();
                while let Some(condition) = map.next_entry()? {
                    conditions.push(condition);
                }
                Ok(MessageConditions(conditions))
            }
        }

        deserializer.deserialize_map(MessageConditionsVisitor)
    }
}

impl<'de> Deserialize<'de> for Condition {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_any(ConditionVisitor)
    }
}

struct ConditionVisitor;

impl<'de> Visitor<'de> for ConditionVisitor {
    type Value = Condition;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a value, a list of values, { not = ... } or { exists = true }")
    }

    fn visit_bool<E: Error>(self, value: bool) -> Result<Condition, E> {
        ValuesVisitor.visit_bool(value).map(Condition::Is)
    }

    fn visit_i64<E: Error>(self, value: i64) -> Result<Condition, E> {
        ValuesVisitor.visit_i64(value).map(Condition::Is)
    }

    fn visit_u64<E: Error>(self, value: u64) -> Result<Condition, E> {
        ValuesVisitor.visit_u64(value).map(Condition::Is)
    }

    fn visit_f64<E: Error>(self, value: f64) -> Result<Condition, E> {
        ValuesVisitor.visit_f64(value).map(Condition::Is)
    }

    fn visit_str<E: Error>(self, value: &str) -> Result<Condition, E> {
        ValuesVisitor.visit_str(value).map(Condition::Is)
    }

    fn visit_seq<A: SeqAccess<'de>>(self, list: A) -> Result<Condition, A::Error> {
        ValuesVisitor.visit_seq(list).map(Condition::Is)
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Condition, A::Error> {
        #[derive(Deserialize)]
        #[serde(rename_all = "lowercase")]
        enum ConditionOperator {
            Exists,
            Not,
        }
        let condition = match map.next_key()? {
            None => return Err(A::Error::custom("is empty: expected { not = ... } or { exists = true }")),
            Some(ConditionOperator::Exists) => Condition::Exists(map.next_value()?),
            Some(ConditionOperator::Not) => Condition::IsNot(map.next_value::<ConditionValues>()?.0),
        };
        match map.next_key::<ConditionOperator>()? {
            None => Ok(condition),
            Some(_) => Err(A::Error::custom("has both exists and not: set one of them")),
        }
    }
}

/// A value or a list of values.
struct ConditionValues(Vec<Value>);

impl<'de> Deserialize<'de> for ConditionValues {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_any(ValuesVisitor).map(ConditionValues)
    }
}

struct ValuesVisitor;

impl<'de> Visitor<'de> for ValuesVisitor {
    type Value = Vec<Value>;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a string, a number, true or false, or a list of them")
    }

    fn visit_bool<E: Error>(self, value: bool) -> Result<Vec<Value>, E> {
        Ok(vec![value.into()])
    }

    fn visit_i64<E: Error>(self, value: i64) -> Result<Vec<Value>, E> {
        Ok(vec![value.into()])
    }

    fn visit_u64<E: Error>(self, value: u64) -> Result<Vec<Value>, E> {
        Ok(vec![value.into()])
    }

    fn visit_f64<E: Error>(self, value: f64) -> Result<Vec<Value>, E> {
        let number = Number::from_f64(value).ok_or_else(|| E::custom("is a number that no message has"))?;
        Ok(vec![number.into()])
    }

    fn visit_str<E: Error>(self, value: &str) -> Result<Vec<Value>, E> {
        Ok(vec![value.into()])
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut list: A) -> Result<Vec<Value>, A::Error> {
        let mut values = Vec::new();
        while let Some(ConditionScalar(value)) = list.next_element()? {
            values.push(value);
        }
        if values.is_empty() {
            return Err(A::Error::custom("is an empty list: name at least one value"));
        }
        Ok(values)
    }
}

/// A value that is no list.
struct ConditionScalar(Value);

impl<'de> Deserialize<'de> for ConditionScalar {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let value = Value::deserialize(deserializer)?;
        if value.is_string() || value.is_number() || value.is_boolean() {
            return Ok(Self(value));
        }
        Err(D::Error::custom("expected a string, a number, true or false"))
    }
}

#[cfg(test)]
mod tests {
    use ledge_base::toml_check::{self, ConfigMistake};
    use serde_json::json;

    use super::*;

    fn when(text: &str) -> MessageConditions {
        #[derive(Debug, Deserialize)]
        struct ConditionalBinding {
            when: MessageConditions,
        }
        let read = toml_check::parse::<ConditionalBinding>("t", &format!("when = {text}"));
        let when = read.map(|binding| binding.when).unwrap();
        let written = serde_json::to_value(&when).unwrap();
        assert_eq!(serde_json::from_value::<MessageConditions>(written).unwrap(), when, "it is written as it was read");
        when
    }

    /// The condition that a message to `a/SENSOR` does not meet.
    fn unmet(conditions: &str, payload: &str) -> Option<String> {
        let (payload, device) = (Bytes::copy_from_slice(payload.as_bytes()), "box".parse().unwrap());
        when(conditions).unmet(&MessageParts::new(Some(&payload), &device), &["a", "SENSOR"], None)
    }

    #[test]
    fn a_value_a_list_not_and_exists_are_conditions() {
        let climate = r#"{"type": "climate", "v": {"t": 21.0, "ok": true, "n": null}}"#;
        for (conditions, reason) in [
            ("{}", None),
            ("{ '$.type' = 'climate' }", None),
            ("{ '$.type' = ['motion', 'climate'] }", None),
            ("{ '$.type' = 'motion' }", Some(r#"$.type is "climate", and not "motion""#)),
            ("{ '$.type' = ['motion', 'door'] }", Some(r#"$.type is "climate", and not "motion" or "door""#)),
            ("{ '$.kind' = 'climate' }", Some(r#"$.kind is not there, and not "climate""#)),
            ("{ '$.v.t' = 21 }", None),
            ("{ '$.v.t' = [20, 21.0] }", None),
            ("{ '$.v.t' = '21' }", Some(r#"$.v.t is 21.0, and not "21""#)),
            ("{ '$.v.ok' = true }", None),
            ("{ '$.v.ok' = 1 }", Some("$.v.ok is true, and not 1")),
            ("{ '$.v' = 'climate' }", Some(r#"$.v is an object, and not "climate""#)),
            ("{ '$.v.t' = { exists = true } }", None),
            ("{ '$.v.n' = { exists = true } }", Some("$.v.n is not there")),
            ("{ '$.v.n' = { exists = false } }", None),
            ("{ '$.v.h' = { exists = true } }", Some("$.v.h is not there")),
            ("{ '$.v.h' = { exists = false } }", None),
            ("{ '$.v.t' = { exists = false } }", Some("$.v.t is there")),
            ("{ '$.type' = { not = 'motion' } }", None),
            ("{ '$.kind' = { not = ['motion'] } }", None),
            ("{ '$.type' = { not = ['motion', 'climate'] } }", Some(r#"$.type is "climate""#)),
            ("{ '{2}' = 'SENSOR' }", None),
            ("{ '{2}' = { not = ['STATE', 'LWT'] } }", None),
            ("{ '{1}/{2}' = 'a/STATE' }", Some(r#"{1}/{2} is "a/SENSOR", and not "a/STATE""#)),
            ("{ '{device}' = 'box' }", None),
            // All must hold; a part of the topic is reported first.
            ("{ '$.type' = 'climate', '$.v.ok' = false }", Some("$.v.ok is true, and not false")),
            ("{ '$.type' = 'motion', '{2}' = 'SENSOR' }", Some(r#"$.type is "climate", and not "motion""#)),
            ("{ '$.type' = 'climate', '{2}' = 'STATE' }", Some(r#"{2} is "SENSOR", and not "STATE""#)),
            ("{ '$.type' = 'motion', '{2}' = 'STATE' }", Some(r#"{2} is "SENSOR", and not "STATE""#)),
        ] {
            assert_eq!(unmet(conditions, climate).as_deref(), reason, "{conditions}");
        }
    }

    #[test]
    fn a_bare_value_is_the_whole_message_as_a_text_and_as_what_it_is() {
        for (conditions, payload, is_met) in [
            ("{ '$' = 'ON' }", "ON", true),
            ("{ '$' = ['ON', 'OFF'] }", " OFF\n", true),
            ("{ '$' = 'ON' }", "on", false),
            ("{ '$' = true }", "true", true),
            ("{ '$' = 'true' }", "true", true),
            ("{ '$' = 21.5 }", "21.50", true),
            ("{ '$' = '21.50' }", "21.50", true),
            ("{ '$' = { not = ['unavailable', 'unknown'] } }", "unknown", false),
            ("{ '$' = { not = ['unavailable', 'unknown'] } }", "21.4", true),
            ("{ '$.t' = { exists = true } }", "Online", false),
            ("{ '$.t' = { exists = false } }", "Online", true),
            ("{ '$[0]' = { exists = true } }", "Online", false),
        ] {
            assert_eq!(unmet(conditions, payload).is_none(), is_met, "{conditions} {payload}");
        }
        // A photograph has no fields, and is no text.
        let (device, photograph) = ("box".parse().unwrap(), Bytes::from_static(b"\xff\xd8\xff"));
        let met = |conditions: &str| {
            when(conditions).unmet::<&str>(&MessageParts::new(Some(&photograph), &device), &[], None).is_none()
        };
        assert!(!met("{ '$.t' = 1 }") && !met("{ '$' = { exists = true } }") && met("{ '$.t' = { exists = false } }"));
    }

    #[test]
    fn of_a_message_that_is_not_read_only_the_topic_is_judged() {
        let device = "box".parse().unwrap();
        let met = |conditions: &str| when(conditions).unmet(&MessageParts::new(None, &device), &["a"], None).is_none();
        assert!(met("{ '$.type' = 'climate' }") && met("{ '{1}' = 'a' }") && !met("{ '{1}' = 'b', '$.t' = 1 }"));
        assert!(when("{ '{1}' = 'b', '$.t' = 1 }").reads_payload() && !when("{ '{1}' = 'b' }").reads_payload());
    }

    #[test]
    fn long_values_are_quoted_in_part() {
        let told = unmet("{ '$.a' = 'x' }", &json!({"a": "y".repeat(1 << 20)}).to_string()).unwrap();
        assert!(told.len() < 200, "{told}");
    }

    #[test]
    fn a_wrong_condition_is_named() {
        #[derive(Debug, Deserialize)]
        #[expect(dead_code, reason = "only its mistakes are read")]
        struct BindingWithMistake {
            when: MessageConditions,
        }
        for (text, mistake) in [
            ("1", "t:1: when: expected a table of conditions"),
            ("{ '$..a' = 1 }", "many values"),
            ("{ '{x}' = 1 }", "unknown placeholder"),
            ("{ '$.a' = [] }", "is an empty list"),
            ("{ '$.a' = {} }", "is empty: expected { not"),
            ("{ '$.a' = { is = 1 } }", "unknown value `is`"),
            ("{ '$.a' = { not = 1, exists = true } }", "has both"),
            ("{ '$.a' = { exists = 1 } }", "expected true or false, got 1"),
            ("{ '$.a' = [[1]] }", "expected a string, a number"),
            ("{ '$.a' = 2026-11-25 }", "date"),
        ] {
            let mistakes = toml_check::parse::<BindingWithMistake>("t", &format!("when = {text}")).unwrap_err();
            let told: Vec<_> = mistakes.iter().map(ConfigMistake::to_string).collect();
            assert!(told.len() == 1 && told[0].contains(mistake), "{text}: {told:?}");
        }
        let both = "when = { '$.a' = [], '$..b' = 1, '$.c' = { exists = 1 } }";
        let mistakes = toml_check::parse::<BindingWithMistake>("t", both).unwrap_err();
        assert!(mistakes.len() >= 2, "{mistakes:?}");
    }
}
