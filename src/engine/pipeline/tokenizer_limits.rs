//! Bounds on a tokenizer file, before the library reads it: the file comes from anywhere, and a few bytes of it can
//! make gigabytes of each text.

use serde_json::Value;

/// The most bytes of a tokenizer file. Those of the largest vocabularies have some 20 MiB.
const FILE_BYTES_MAX: usize = 32 << 20;
/// The most normalizers and pre-tokenizers; files have up to a dozen.
const STEPS_MAX: usize = 64;
/// The greatest factor by which the replacements of all normalizers may lengthen a text.
const GROWTH_MAX: usize = 32;
/// The most tokens that a file may add to a text, in the pieces of its template.
const TEMPLATE_PIECES_MAX: usize = 64;

/// The reason why a file is refused; none for one that is within the limits, or that the library refuses itself.
pub fn refusal(file: &[u8]) -> Option<String> {
    if file.len() > FILE_BYTES_MAX {
        return Some(format!("it has {} bytes, more than {FILE_BYTES_MAX}", file.len()));
    }
    let parsed: Result<TokenizerHead, _> = serde_json::from_slice(file);
    let TokenizerHead { normalizer, pre_tokenizer, post_processor } = match parsed {
        Ok(head) => head,
        Err(error) => return Some(error.to_string()),
    };
    let count = steps(&normalizer) + steps(&pre_tokenizer);
    if count > STEPS_MAX {
        return Some(format!("it has {count} normalizers and pre-tokenizers, more than {STEPS_MAX}"));
    }
    let growth = growth(&normalizer);
    if growth > GROWTH_MAX {
        return Some(format!("its normalizer makes a text {growth} times longer, more than {GROWTH_MAX}"));
    }
    let pieces = pieces(&post_processor);
    (pieces > TEMPLATE_PIECES_MAX)
        .then(|| format!("its post_processor has {pieces} pieces, more than {TEMPLATE_PIECES_MAX}"))
}

/// The parts of a file that the limits concern; the vocabulary is skipped.
#[derive(serde::Deserialize)]
struct TokenizerHead {
    #[serde(default)]
    normalizer: Value,
    #[serde(default)]
    pre_tokenizer: Value,
    #[serde(default)]
    post_processor: Value,
}

/// The objects with a type in a value.
fn steps(value: &Value) -> usize {
    match value {
        Value::Object(members) => {
            usize::from(members.contains_key("type")) + members.values().map(steps).sum::<usize>()
        }
        Value::Array(elements) => elements.iter().map(steps).sum(),
        _ => 0,
    }
}

/// The factor by which all replacements of a value, one after the other, may lengthen a text.
fn growth(value: &Value) -> usize {
    let product = |factors: &mut dyn Iterator<Item = usize>| factors.fold(1, usize::saturating_mul);
    match value {
        Value::Object(members) => {
            let text = |name: &str| members.get(name).and_then(Value::as_str).map(str::len);
            let own = match (text("content"), members.get("pattern")) {
                (Some(content), Some(pattern)) => {
                    // An expression may match one byte, or the nothing between two.
                    let matched = pattern.get("String").and_then(Value::as_str).map_or(0, str::len);
                    if matched == 0 { content.saturating_add(1) } else { content.div_ceil(matched) }
                }
                _ => text("prepend").map_or(1, |prepend| prepend.saturating_add(1)),
            };
            product(&mut members.values().map(growth)).saturating_mul(own.max(1))
        }
        Value::Array(elements) => product(&mut elements.iter().map(growth)),
        _ => 1,
    }
}

/// The pieces of the longest template, and the ids that stand for them.
fn pieces(value: &Value) -> usize {
    match value {
        Value::Object(members) => members.values().map(pieces).sum(),
        Value::Array(elements) => elements.len() + elements.iter().map(pieces).sum::<usize>(),
        _ => 0,
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn told(file: &Value) -> String {
        refusal(file.to_string().as_bytes()).unwrap_or_default()
    }

    #[test]
    fn usual_files_are_within_the_limits() {
        let replace =
            |pattern: Value, content: &str| json!({"type": "Replace", "pattern": pattern, "content": content});
        let normalizers = [
            replace(json!({"String": " "}), "\u{2581}"),
            replace(json!({"String": "``"}), "\""),
            replace(json!({"Regex": " {2,}"}), " "),
            json!({"type": "NFKC"}),
        ];
        let file =
            json!({"normalizer": {"type": "Sequence", "normalizers": normalizers}, "model": {"vocab": {"a": 1}}});
        assert_eq!(told(&file), "");
        assert_eq!(told(&json!({"normalizer": null, "pre_tokenizer": {"type": "BertPreTokenizer"}})), "");
    }

    #[test]
    fn bombs_are_refused_before_the_library_reads_them() {
        let double = json!({"type": "Replace", "pattern": {"String": "a"}, "content": "aa"});
        let sequence = |steps: Vec<Value>| json!({"normalizer": {"type": "Sequence", "normalizers": steps}});
        assert!(told(&sequence(vec![double.clone(); 40])).contains("normalizer"));
        assert!(told(&sequence(vec![double; 5])).is_empty());
        let split = vec![json!({"type": "Whitespace"}); 70];
        let split = told(&json!({"pre_tokenizer": {"type": "Sequence", "pretokenizers": split}}));
        assert_eq!(split, format!("it has 71 normalizers and pre-tokenizers, more than {STEPS_MAX}"));
        let blank = json!({"type": "Replace", "pattern": {"Regex": "x*"}, "content": "y".repeat(99)});
        let longer = format!("its normalizer makes a text 100 times longer, more than {GROWTH_MAX}");
        assert_eq!(told(&json!({ "normalizer": blank })), longer);
        let single = vec![json!({"SpecialToken": {"id": "[CLS]", "type_id": 0}}); 99];
        let single = told(&json!({"post_processor": {"type": "TemplateProcessing", "single": single}}));
        assert_eq!(single, format!("its post_processor has 99 pieces, more than {TEMPLATE_PIECES_MAX}"));
        let deep = [r#"{"normalizer":"#, &"[".repeat(100_000)].concat();
        assert!(refusal(deep.as_bytes()).unwrap().contains("recursion limit"));
        let large = refusal(&vec![b' '; FILE_BYTES_MAX + 1]).unwrap();
        assert_eq!(large, format!("it has {} bytes, more than {FILE_BYTES_MAX}", FILE_BYTES_MAX + 1));
    }
}
