//! Rows of a table in the place of a request, both of which are JSON.

use serde::Deserialize;
use serde_json::value::RawValue;

/// True for JSON that is a row or a list of rows, and no request of the Open Inference Protocol. Such a request is an
/// object with a list as `inputs`, or with an object as `entities`, which a cell of a row cannot be. Rows with mistakes
/// count as rows.
pub fn are_rows(body: &[u8]) -> bool {
    #[derive(Deserialize)]
    struct RowsRequestKeys<'a> {
        #[serde(borrow, default)]
        inputs: Option<&'a RawValue>,
        #[serde(borrow, default)]
        entities: Option<&'a RawValue>,
    }

    match body.trim_ascii_start().first() {
        Some(b'[') => true,
        Some(b'{') => {
            let request: Result<RowsRequestKeys<'_>, _> = serde_json::from_slice(body);
            let begins =
                |member: Option<&RawValue>, with: char| member.is_some_and(|json| json.get().starts_with(with));
            !request.is_ok_and(|request| begins(request.inputs, '[') || begins(request.entities, '{'))
        }
        _ => false,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_request_has_a_list_of_inputs_and_everything_else_in_json_is_rows() {
        for rows in
            ["{}", " [{}]", "[]", r#"{"inputs": 3}"#, r#"{"inputs": "[1]"}"#, r#"{"a": {"inputs": []}}"#, "{\"a"]
        {
            assert!(are_rows(rows.as_bytes()), "{rows}");
        }
        for other in [
            r#"{"id": "1", "inputs": []}"#,
            "{\"inputs\" : [ {} ], \"outputs\": []}",
            r#"{"entities": {}}"#,
            "",
            "3",
            "--x",
        ] {
            assert!(!are_rows(other.as_bytes()), "{other}");
        }
    }
}
