//! A text file, which has a text in each line: requests for all of its texts, and one answer of theirs.

use std::path::Path;

use bytes::Bytes;
use ledge_engine::pipeline::content::{TEXT_BYTES_MAX, Texts};
use ledge_engine::pipeline::text_embedding;
use serde_json::{Map, Value, json};

use super::calls::FileAnswer;

/// The most texts of one file: all vectors of a file are in memory, and in one line of the results.
const LINES_MAX: usize = 16_384;
/// The most texts and bytes of one request, which takes a core a second or two.
const REQUEST_LINES_MAX: usize = 512;
const REQUEST_BYTES_MAX: usize = 1 << 20;

/// True for a file with a text in each line.
pub fn is_text_file(path: &Path) -> bool {
    path.extension().is_some_and(|extension| extension.eq_ignore_ascii_case("txt"))
}

/// The requests for the lines of a text file that are not empty. A single line is sent as it is.
pub fn requests(content: &Bytes) -> Result<Vec<Bytes>, String> {
    let mut parts: Vec<Vec<&str>> = Vec::new();
    let (mut lines, mut bytes) = (0, 0);
    for (number, line) in (1..).zip(content.split(|byte| *byte == b'\n')) {
        let line = line.trim_ascii();
        if line.is_empty() {
            continue;
        }
        let text = std::str::from_utf8(line).map_err(|_| format!("line {number} is not UTF-8"))?;
        if text.len() > TEXT_BYTES_MAX {
            return Err(format!("line {number} has {} bytes, more than {TEXT_BYTES_MAX}: divide it", text.len()));
        }
        lines += 1;
        if lines > LINES_MAX {
            return Err(format!("the file has more than {LINES_MAX} texts: divide it, with split -l {LINES_MAX}"));
        }
        bytes += text.len();
        match parts.last_mut() {
            Some(part) if part.len() < REQUEST_LINES_MAX && bytes <= REQUEST_BYTES_MAX => part.push(text),
            _ => {
                bytes = text.len();
                parts.push(vec![text]);
            }
        }
    }

    let request = |texts: &Vec<&str>| -> Bytes {
        let input = json!({"name": Texts::TENSOR, "datatype": "BYTES", "shape": [texts.len()], "data": texts});
        json!({ "inputs": [input] }).to_string().into()
    };
    match parts.as_slice() {
        [] => Err("there is no text in the file".to_owned()),
        // A line that begins like a request would be read as one.
        [part] => match part.as_slice() {
            [line] if !line.starts_with('{') => Ok(vec![Bytes::copy_from_slice(line.as_bytes())]),
            _ => Ok(vec![request(part)]),
        },
        parts => Ok(parts.iter().map(request).collect()),
    }
}

/// One answer of those to all requests of a file, with a result for each text in the order of the lines.
pub fn joined(answers: Vec<Map<String, Value>>) -> FileAnswer {
    let member = text_embedding::KIND.member;
    let (mut whole, mut rows) = (Map::new(), Vec::new());
    for mut answer in answers {
        match (answer.remove("outputs"), answer.get_mut(member)) {
            (Some(outputs), _) => rows.extend(rows_of(&outputs).ok_or("the answer has no vectors of texts")?),
            (None, Some(Value::Array(found))) => rows.append(found),
            (None, _) => return Ok(answer),
        }
        whole = answer;
    }
    whole.insert(member.to_owned(), rows.into());
    Ok(whole)
}

/// The tensors of an answer as a result for each text.
fn rows_of(outputs: &Value) -> Option<Vec<Value>> {
    let data = |name: &str| {
        let output = outputs.as_array()?.iter().find(|output| output.get("name").is_some_and(|own| own == name))?;
        output.get("data")?.as_array()
    };
    let [vectors, tokens, truncated] = text_embedding::RESULTS else { return None };
    let (vectors, tokens, truncated) = (data(vectors)?, data(tokens)?, data(truncated)?);
    let size = vectors.len().checked_div(tokens.len())?.max(1);
    let rows = vectors.chunks_exact(size).zip(tokens.iter().zip(truncated));
    let rows: Vec<_> = rows
        .map(|(embedding, (tokens, truncated))| {
            json!({"embedding": embedding, "tokens": tokens, "truncated": truncated})
        })
        .collect();
    (rows.len() == tokens.len()).then_some(rows)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn texts(request: &Bytes) -> Vec<String> {
        match serde_json::from_slice::<Value>(request) {
            Ok(request) => serde_json::from_value(request["inputs"][0]["data"].clone()).unwrap(),
            Err(_) => vec![String::from_utf8(request.to_vec()).unwrap()],
        }
    }

    fn refusal(content: Vec<u8>) -> String {
        requests(&content.into()).unwrap_err()
    }

    #[test]
    fn a_line_that_is_no_text_is_named_and_a_file_without_texts_is_refused() {
        assert_eq!(refusal(b"a\n\ncaf\xe9\n".to_vec()), "line 3 is not UTF-8");
        assert!(refusal([b"a\n", vec![b'b'; TEXT_BYTES_MAX + 1].as_slice()].concat()).starts_with("line 2 has 262145"));
        assert!(refusal(b"a\n".repeat(LINES_MAX + 1)).contains("split -l"));
        assert_eq!(refusal(b" \n\r\n".to_vec()), "there is no text in the file");
    }

    #[test]
    fn the_answers_of_a_file_become_one() {
        let answer = |first: f64| {
            let output = |name: &str, data: Value| json!({"name": name, "data": data});
            let outputs = [
                output("embedding", json!([first, 1.0, 2.0, 3.0])),
                output("tokens", json!([3, 4])),
                output("truncated", json!([false, true])),
            ];
            json!({"model_name": "m", "outputs": outputs}).as_object().unwrap().clone()
        };
        let row = |embedding: [f64; 2], tokens, truncated| json!({"embedding": embedding, "tokens": tokens, "truncated": truncated});
        let whole = json!({"model_name": "m", "embeddings": [
            row([0.5, 1.0], 3, false), row([2.0, 3.0], 4, true), row([9.5, 1.0], 3, false), row([2.0, 3.0], 4, true),
        ]});
        assert_eq!(joined(vec![answer(0.5), answer(9.5)]).map(Value::from), Ok(whole));
    }

    proptest! {
        #[test]
        fn every_line_is_sent_once_and_in_order(lines in prop::collection::vec("[a-z{é]{0,9}", 0..1300)) {
            let file: Bytes = lines.join("\r\n").into();
            let full: Vec<_> = lines.into_iter().filter(|line| !line.is_empty()).collect();
            match requests(&file) {
                Ok(requests) => prop_assert_eq!(requests.iter().flat_map(texts).collect::<Vec<_>>(), full),
                Err(_) => prop_assert!(full.is_empty()),
            }
        }
    }
}
