//! Bare values: messages that are one number, word or text, with nothing around it. Pure.

use ledge_base::tensor::DataType;
use ledge_engine::pipeline::table::ColumnType;
use ledge_features::value::{ScalarType, ValueType};
use serde_json::Value;

use super::error::BindingError;
use super::value_kind::ValueKind;

/// The most characters of a message that an error quotes.
const EXCERPT_CHARS_MAX: usize = 60;

/// Integers from here on are not all doubles.
const EXACT_F64_END: f64 = 9_007_199_254_740_992.0;

/// The most digits with which every decimal number is a different double.
const EXACT_F64_DIGITS: usize = 15;

/// The words of a truth value, as switches, contacts and last wills have them, in lower case.
const TRUE_WORDS: [&str; 4] = ["on", "true", "1", "online"];
const FALSE_WORDS: [&str; 4] = ["off", "false", "0", "offline"];

impl ValueKind {
    /// The kind of a feature; `None` for a list, which one value is not.
    pub fn of_feature(kind: ValueType) -> Option<Self> {
        let ValueType::Scalar(kind) = kind else { return None };
        Some(match kind {
            ScalarType::Int32 | ScalarType::Int64 => Self::Integer,
            ScalarType::Float32 | ScalarType::Float64 => Self::Number,
            ScalarType::Bool => Self::Boolean,
            ScalarType::UnixTimestamp => Self::Time,
            // Bytes are base64.
            ScalarType::String | ScalarType::Bytes => Self::Text,
        })
    }

    /// The kind of a column of `[pipeline.table]`.
    pub fn of_column(kind: ColumnType) -> Self {
        match kind {
            ColumnType::Number => Self::Number,
            ColumnType::Integer => Self::Integer,
            ColumnType::Boolean => Self::Boolean,
            ColumnType::Category | ColumnType::Text => Self::Text,
        }
    }

    /// The kind of an element of an input.
    pub fn of_datatype(datatype: DataType) -> Self {
        match datatype {
            DataType::Fp16 | DataType::Bf16 | DataType::Fp32 | DataType::Fp64 => Self::Number,
            DataType::Bool => Self::Boolean,
            DataType::Bytes => Self::Text,
            DataType::Int8
            | DataType::Int16
            | DataType::Int32
            | DataType::Int64
            | DataType::Uint8
            | DataType::Uint16
            | DataType::Uint32
            | DataType::Uint64 => Self::Integer,
        }
    }

    /// The value that the whole message is, without the white space around it. `name` is the feature, column or input
    /// that gets it.
    pub fn read(self, name: &str, payload: &[u8]) -> Result<Value, BindingError> {
        let text = std::str::from_utf8(payload).ok().map(str::trim).filter(|text| !text.is_empty());
        let value = text.and_then(|text| match self {
            Self::Number => number(text),
            Self::Integer => integer(text),
            Self::Boolean => boolean(text),
            Self::Time => integer(text).or_else(|| Some(text.into())),
            Self::Text => Some(text.into()),
        });
        value.ok_or_else(|| BindingError::Value { name: name.into(), found: excerpt(payload), expected: self })
    }
}

/// A decimal number. Rust reads more than devices mean by one: `inf`, `nan`.
fn is_decimal(text: &str) -> bool {
    let unsigned = text.strip_prefix(['+', '-']).unwrap_or(text);
    unsigned.starts_with(|c: char| c.is_ascii_digit() || c == '.')
        && unsigned.bytes().all(|byte| byte.is_ascii_digit() || b".eE+-".contains(&byte))
}

fn number(text: &str) -> Option<Value> {
    if let Some(whole) = digits(text) {
        return Some(whole);
    }
    let number = text.parse::<f64>().ok().filter(|number| is_decimal(text) && number.is_finite())?;
    Some(number.into())
}

/// A whole number, also as `5.0` or, as C writes a large float, `1e+06`.
fn integer(text: &str) -> Option<Value> {
    if let Some(whole) = digits(text) {
        return Some(whole);
    }
    let mantissa = text.split(['e', 'E']).next().unwrap_or_default();
    // With more digits it may be a fraction that becomes a whole double.
    let is_exact = mantissa.bytes().filter(u8::is_ascii_digit).count() <= EXACT_F64_DIGITS;
    let number = text.parse::<f64>().ok().filter(|_| is_decimal(text) && is_exact)?;
    #[expect(clippy::cast_possible_truncation, reason = "it is whole and within the range")]
    (number.fract() == 0.0 && number.abs() < EXACT_F64_END).then(|| (number as i64).into())
}

/// A number of only digits, exactly.
fn digits(text: &str) -> Option<Value> {
    text.parse::<i64>().map(Value::from).or_else(|_| text.parse::<u64>().map(Value::from)).ok()
}

fn boolean(text: &str) -> Option<Value> {
    let is_one_of = |words: [&str; 4]| words.iter().any(|word| text.eq_ignore_ascii_case(word));
    if is_one_of(TRUE_WORDS) {
        return Some(true.into());
    }
    is_one_of(FALSE_WORDS).then(|| false.into())
}

/// The beginning of a message in quotes, for an error or a log.
pub fn excerpt(payload: &[u8]) -> String {
    // A character has at most four bytes.
    let start = payload.get(..EXCERPT_CHARS_MAX * 4).unwrap_or(payload);
    let text = String::from_utf8_lossy(start);
    let shown: String = text.chars().take(EXCERPT_CHARS_MAX).collect();
    let more = if shown.len() < text.len() || start.len() < payload.len() { "..." } else { "" };
    format!("{shown:?}{more}")
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use serde_json::json;

    use super::*;

    fn read(kind: ValueKind, payload: &str) -> Option<Value> {
        kind.read("x", payload.as_bytes()).ok()
    }

    #[test]
    fn numbers_are_read_as_devices_write_them() {
        for (text, value) in [
            ("21.4", json!(21.4)),
            (" 21.4\r\n", json!(21.4)),
            ("-3", json!(-3)),
            ("+5", json!(5)),
            ("1e3", json!(1000.0)),
            ("1.5E-2", json!(0.015)),
            ("+.5", json!(0.5)),
            ("7.", json!(7.0)),
            ("007", json!(7)),
            ("9223372036854775807", json!(i64::MAX)),
            ("18446744073709551615", json!(u64::MAX)),
        ] {
            assert_eq!(read(ValueKind::Number, text), Some(value), "{text}");
        }
        for other in [
            "",
            " ",
            "21,4",
            "21.4 C",
            "21.4°",
            "nan",
            "NaN",
            "-nan",
            "inf",
            "-inf",
            "Infinity",
            "unavailable",
            "unknown",
            "None",
            "null",
            "true",
            "ON",
            "--5",
            "+-5",
            "-",
            "+",
            ".",
            "e3",
            "1e",
            "1e400",
            "0x10",
            "1_000",
            "1 2",
            "\"21.4\"",
            "[21.4]",
            "{\"v\":21.4}",
            "٣",
        ] {
            for kind in [ValueKind::Number, ValueKind::Integer] {
                assert_eq!(read(kind, other), None, "{other}");
            }
        }
    }

    #[test]
    fn a_whole_number_may_be_written_as_a_float_and_is_never_rounded() {
        for (text, value) in [
            ("21", 21),
            ("-3", -3),
            ("+5", 5),
            ("5.0", 5),
            ("1e3", 1000),
            ("1e+06", 1_000_000),
            ("1.5e1", 15),
            ("9007199254740993", 9_007_199_254_740_993_i64),
        ] {
            assert_eq!(read(ValueKind::Integer, text), Some(json!(value)), "{text}");
        }
        for other in ["21.4", "1e-1", "0.99999999999999999999", "9007199254740993.0", "1e16", "1e300"] {
            assert_eq!(read(ValueKind::Integer, other), None, "{other}");
        }
    }

    #[test]
    fn a_switch_is_on_or_off_in_the_words_of_devices() {
        for word in ["ON", "on", "true", "True", "1", "Online", "online\n"] {
            assert_eq!(read(ValueKind::Boolean, word), Some(json!(true)), "{word}");
        }
        for word in ["OFF", "off", "false", "FALSE", "0", "Offline", " offline "] {
            assert_eq!(read(ValueKind::Boolean, word), Some(json!(false)), "{word}");
        }
        for other in ["", "2", "yes", "open", "unavailable", "unknown", "1.0", "ONN", "\"ON\""] {
            assert_eq!(read(ValueKind::Boolean, other), None, "{other}");
        }
    }

    #[test]
    fn a_text_is_any_text_and_a_time_is_judged_by_the_store() {
        assert_eq!(read(ValueKind::Text, " unavailable\n"), Some(json!("unavailable")));
        assert_eq!(read(ValueKind::Text, "21.4"), Some(json!("21.4")));
        assert_eq!(read(ValueKind::Text, " \n"), None);
        assert!(ValueKind::Text.read("x", b"\xff").is_err());
        assert_eq!(read(ValueKind::Time, "1795222800"), Some(json!(1_795_222_800)));
        assert_eq!(read(ValueKind::Time, "2026-11-21T01:00:00Z"), Some(json!("2026-11-21T01:00:00Z")));
    }

    #[test]
    fn an_error_quotes_what_came_and_names_what_was_expected() {
        let told = |kind: ValueKind, payload: &[u8]| kind.read("temperature", payload).unwrap_err().to_string();
        let number = "expected a number such as 21.4 for temperature";
        assert_eq!(told(ValueKind::Number, b"unavailable"), format!("the message is \"unavailable\", {number}"));
        assert_eq!(told(ValueKind::Number, b" \n"), format!("the message is \" \\n\", {number}"));
        assert!(told(ValueKind::Boolean, b"open").contains("\"open\", expected ON or OFF, true or false, 1 or 0"));
        let long = told(ValueKind::Number, "ä".repeat(1 << 20).as_bytes());
        assert!(long.len() < 300 && long.contains("ä\"..., expected"), "{long}");
        assert!(told(ValueKind::Text, b"\xff\xfe").contains("\u{fffd}"));
    }

    proptest! {
        #[test]
        fn a_number_is_read_as_it_was_written(number in proptest::num::f64::NORMAL, whole: i64, around in "[ \t\r\n]{0,2}") {
            for text in [format!("{number}"), format!("{number:e}"), format!("{number:E}")] {
                let found = ValueKind::Number.read("x", format!("{around}{text}{around}").as_bytes()).unwrap();
                prop_assert_eq!(found.as_f64(), Some(number), "{}", text);
            }
            for kind in [ValueKind::Number, ValueKind::Integer] {
                prop_assert_eq!(kind.read("x", format!("{whole}{around}").as_bytes()), Ok(json!(whole)));
                prop_assert_eq!(kind.read("x", format!("{whole:+}").as_bytes()), Ok(json!(whole)));
            }
        }

        #[test]
        fn only_a_decimal_number_is_a_number(text in "[+-]{0,2}[0-9]{0,3}[.,]?[0-9]{0,2}[eExna]{0,2}[+-]?[0-9]{0,2}[ nifC%]{0,2}") {
            // The grammar, one part after the other.
            fn is_number(text: &str) -> bool {
                let digits = |text: &str| text.bytes().all(|byte| byte.is_ascii_digit());
                let unsigned = |text: &'_ str| text.strip_prefix(['+', '-']).unwrap_or(text).to_owned();
                let text = unsigned(text).to_ascii_lowercase();
                let (mantissa, exponent) = text.split_once('e').map_or((&*text, None), |(m, e)| (m, Some(unsigned(e))));
                let (whole, fraction) = mantissa.split_once('.').unwrap_or((mantissa, ""));
                digits(whole)
                    && digits(fraction)
                    && !(whole.is_empty() && fraction.is_empty())
                    && exponent.is_none_or(|exponent| !exponent.is_empty() && digits(&exponent))
            }
            let found = read(ValueKind::Number, &text);
            prop_assert_eq!(found.is_some(), is_number(text.trim()), "{:?}", text);
            if let Some(whole) = read(ValueKind::Integer, &text) {
                prop_assert_eq!(found.and_then(|number| number.as_f64()), whole.as_f64());
            }
        }
    }
}
