//! Messages of serde in the terms of JSON and TOML. serde names Rust's types, which the author of a request or a
//! configuration need not know. `serde_json` gives only the finished message, so that one is rewritten.

/// Rewrites a message about JSON.
pub fn in_json(message: &str) -> String {
    let (said, place) = position(message);
    mismatch(said).or_else(|| about_a_key(said)).or_else(|| syntax(said)).unwrap_or(said.to_owned()) + place
}

/// Splits a message from the ` at line 1 column 5` after it.
fn position(message: &str) -> (&str, &str) {
    let is_number = |text: &str| !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit());
    let at = message.rfind(" at line ").filter(|at| {
        let place = message.get(at + " at line ".len()..).and_then(|place| place.split_once(" column "));
        place.is_some_and(|(line, column)| is_number(line) && is_number(column))
    });
    message.split_at(at.unwrap_or(message.len()))
}

/// Rewrites `invalid type: A, expected B` and similar messages as `expected B, got A`.
fn mismatch(said: &str) -> Option<String> {
    let rest =
        ["invalid type: ", "invalid value: ", "invalid length "].iter().find_map(|start| said.strip_prefix(start));
    // A quoted value may contain ", expected " too; the expectation itself does not, so split at the last one.
    let (got, wanted) = rest?.rsplit_once(", expected ")?;
    let got = if said.starts_with("invalid length ") { format!("{got} entries") } else { value(got) };
    Some(format!("expected {}, got {got}", expected(wanted, "object")))
}

/// Rewrites serde's term for the actual value.
fn value(got: &str) -> String {
    let quoted = ["integer `", "floating point `", "boolean `"].iter().find_map(|start| got.strip_prefix(start));
    if let Some(value) = quoted.and_then(|value| value.strip_suffix('`')) {
        return value.to_owned();
    }
    match got {
        _ if got.starts_with("string ") => got.replacen("string ", "", 1),
        "map" => "an object".to_owned(),
        "sequence" => "an array".to_owned(),
        "unit value" => "null".to_owned(),
        _ => got.to_owned(),
    }
}

/// Rewrites serde's term for the expected type; `map` is the format's word for a map.
pub(crate) fn expected(wanted: &str, map: &str) -> String {
    let from_0_to = |most: u64| format!("a whole number from 0 to {most}");
    let signed = |most: i64| format!("a whole number from {} to {most}", -most - 1);
    match wanted {
        "u8" => from_0_to(u8::MAX.into()),
        "u16" => from_0_to(u16::MAX.into()),
        "u32" => from_0_to(u32::MAX.into()),
        "u64" | "usize" | "u128" => "a whole number from 0".to_owned(),
        "i8" => signed(i8::MAX.into()),
        "i16" => signed(i16::MAX.into()),
        "i32" => signed(i32::MAX.into()),
        "i64" | "isize" | "i128" => "a whole number".to_owned(),
        "f32" | "f64" => "a number".to_owned(),
        "a boolean" => "true or false".to_owned(),
        "a borrowed string" => "a string".to_owned(),
        "a sequence" | "sequence" => "an array".to_owned(),
        "unit" => "null".to_owned(),
        _ if wanted.starts_with("struct ") || ["a map", "map"].contains(&wanted) => {
            let article = if map.starts_with('o') { "an" } else { "a" };
            format!("{article} {map}")
        }
        _ => match wanted.strip_prefix("a tuple of size ").or_else(|| wanted.strip_prefix("an array of length ")) {
            Some(count) => format!("an array of {count} entries"),
            None => wanted.to_owned(),
        },
    }
}

/// Rewrites a message about a key or an enum value.
fn about_a_key(said: &str) -> Option<String> {
    if let Some(key) = said.strip_prefix("missing field ") {
        return Some(format!("{key} is missing"));
    }
    if let Some(key) = said.strip_prefix("duplicate field ") {
        return Some(format!("{key} is there twice"));
    }
    said.strip_prefix("unknown variant ").map(|rest| format!("unknown value {rest}"))
}

/// Rewrites a message about text that is not JSON or TOML.
fn syntax(said: &str) -> Option<String> {
    let plain = match said {
        "expected value" => "expected a value",
        "expected ident" => "expected true, false or null",
        "trailing characters" => "there is more text after the value",
        "recursion limit exceeded" => "nested too deep",
        _ if said.starts_with("data did not match any variant of untagged enum ") => {
            "it has none of the accepted forms"
        }
        _ => return said.strip_prefix("EOF while parsing ").map(|what| format!("the text ends within {what}")),
    };
    Some(plain.to_owned())
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use serde::Deserialize;
    use serde::de::DeserializeOwned;

    use super::*;

    #[derive(Debug, Deserialize)]
    #[expect(dead_code, reason = "read, and no more")]
    struct MessageRow {
        count: u8,
        name: Option<String>,
        pair: Option<(i8, f32)>,
        list: Option<Vec<usize>>,
        on: Option<bool>,
        word: Option<MessageWord>,
    }

    #[derive(Debug, Deserialize)]
    #[serde(rename_all = "lowercase")]
    enum MessageWord {
        One,
        Two,
    }

    fn json<T: DeserializeOwned + std::fmt::Debug>(text: &str) -> String {
        in_json(&serde_json::from_str::<T>(text).unwrap_err().to_string())
    }

    #[test]
    fn no_message_names_a_type_of_rust() {
        for (text, message) in [
            ("{}", "`count` is missing at line 1 column 2"),
            (r#"{"count": -1}"#, "expected a whole number from 0 to 255, got -1 at line 1 column 12"),
            (r#"{"count": 1.5}"#, "expected a whole number from 0 to 255, got 1.5 at line 1 column 13"),
            (r#"{"count": {}}"#, "expected a whole number from 0 to 255, got an object at line 1 column 10"),
            (
                r#"{"count": "a, expected u8 at line 7 column 1"}"#,
                "expected a whole number from 0 to 255, got \"a, expected u8 at line 7 column 1\" at line 1 column 45",
            ),
            (r#"{"count": 1, "count": 1}"#, "`count` is there twice at line 1 column 20"),
            (r#"{"count": 1, "name": []}"#, "expected a string, got an array at line 1 column 21"),
            (r#"{"count": 1, "pair": [1]}"#, "expected an array of 2 entries, got 1 entries at line 1 column 24"),
            (
                r#"{"count": 1, "pair": [-129, 1]}"#,
                "expected a whole number from -128 to 127, got -129 at line 1 column 26",
            ),
            (r#"{"count": 1, "pair": [1, true]}"#, "expected a number, got true at line 1 column 29"),
            (r#"{"count": 1, "list": 3}"#, "expected an array, got 3 at line 1 column 22"),
            (r#"{"count": 1, "list": [null]}"#, "expected a whole number from 0, got null at line 1 column 26"),
            (r#"{"count": 1, "on": 1}"#, "expected true or false, got 1 at line 1 column 20"),
            (r#"{"count": 1, "word": "three"}"#, "unknown value `three`, expected `one` or `two` at line 1 column 28"),
            ("[", "the text ends within a list at line 1 column 1"),
            ("3", "expected an object, got 3 at line 1 column 1"),
            ("{\"count\": 1} x", "there is more text after the value at line 1 column 14"),
            ("}", "expected a value at line 1 column 1"),
        ] {
            assert_eq!(json::<MessageRow>(text), message, "{text}");
        }
    }

    proptest! {
        #[test]
        fn any_text_is_taken(text: String, wanted: String) {
            let _ = in_json(&text);
            let message = in_json(&format!("invalid type: string {text:?}, expected {wanted:?}"));
            prop_assert!(message.starts_with("expected "), "{}", message);
        }
    }
}
