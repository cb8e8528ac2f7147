//! Parses the text of `/metrics` into samples.
//!
//! Supports the common part of Prometheus' text format and OpenMetrics; comments, timestamps and exemplars are skipped.

use std::collections::BTreeMap;

/// A line that is not a sample.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("line {line} of the metrics is not a sample: {text:?}")]
pub struct ExpositionError {
    /// The number of the line, from 1.
    pub line: usize,
    pub text: String,
}

/// One value.
#[derive(Debug, Clone, PartialEq)]
pub struct Sample {
    /// The metric's name, with the suffix of its kind.
    pub name: String,
    pub labels: BTreeMap<String, String>,
    pub value: f64,
}

impl Sample {
    /// The value of a label, empty when there is none: Prometheus does not distinguish the two, either.
    pub fn label(&self, name: &str) -> &str {
        self.labels.get(name).map_or("", String::as_str)
    }
}

/// Every sample of a text.
pub fn parse(text: &str) -> Result<Vec<Sample>, ExpositionError> {
    let mut samples = Vec::new();
    for (index, line) in text.lines().enumerate() {
        if line.starts_with('#') || line.trim().is_empty() {
            continue;
        }
        let wrong = || ExpositionError { line: index + 1, text: line.chars().take(80).collect() };
        samples.push(sample(line).ok_or_else(wrong)?);
    }
    Ok(samples)
}

fn sample(line: &str) -> Option<Sample> {
    let end = line.find(|c: char| !(c.is_ascii_alphanumeric() || c == '_' || c == ':')).filter(|end| *end > 0)?;
    let (name, rest) = line.split_at(end);
    let (labels, rest) = match rest.strip_prefix('{') {
        Some(rest) => labels(rest)?,
        None => (BTreeMap::new(), rest),
    };
    // Rust parses `+Inf` and `NaN` as numbers, too.
    let value = rest.strip_prefix(' ')?.split(' ').next()?.parse().ok()?;
    Some(Sample { name: name.to_owned(), labels, value })
}

/// The labels up to the closing brace, and the text after it.
fn labels(mut rest: &str) -> Option<(BTreeMap<String, String>, &str)> {
    let mut labels = BTreeMap::new();
    loop {
        if let Some(rest) = rest.strip_prefix('}') {
            return Some((labels, rest));
        }
        let (name, after) = rest.split_once("=\"")?;
        let (value, after) = quoted(after)?;
        labels.insert(name.to_owned(), value);
        rest = match after.strip_prefix(',') {
            Some(next) => next,
            None => after.starts_with('}').then_some(after)?,
        };
    }
}

/// The text up to the closing quote with its escapes decoded, and the text after it.
fn quoted(text: &str) -> Option<(String, &str)> {
    let mut value = String::new();
    let mut characters = text.chars();
    loop {
        match characters.next()? {
            '"' => return Some((value, characters.as_str())),
            '\\' => value.push(match characters.next()? {
                'n' => '\n',
                other => other,
            }),
            other => value.push(other),
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn parsed(line: &str) -> Sample {
        parse(line).unwrap().remove(0)
    }

    #[test]
    fn a_sample_has_a_name_labels_and_a_value() {
        let sample = parsed(r#"ledge_queue_depth{model="a}b",version="1"} 2.5"#);
        assert_eq!(
            (sample.name.as_str(), sample.label("model"), sample.label("version")),
            ("ledge_queue_depth", "a}b", "1")
        );
        assert!((sample.value - 2.5).abs() < f64::EPSILON && sample.label("runtime").is_empty());
        assert_eq!(parsed("up 1").labels.len(), 0);
        assert!(parsed("x_bucket{le=\"+Inf\"} +Inf 1700000000 # {trace=\"1\"} 2").value.is_infinite());
        assert!(parsed("x NaN").value.is_nan());
        assert_eq!(parse("# HELP x y\n\n# EOF\n").unwrap(), []);
    }

    #[test]
    fn a_line_that_is_not_a_sample_is_named() {
        for wrong in ["<html>", "x", "x{", "x{a=\"1\"", "x{a=\"1} 2", "x{a=\"1\"b=\"2\"} 3", "x{} ", "x one", "{} 1"] {
            let error = parse(&format!("up 1\n{wrong}")).unwrap_err();
            assert_eq!((error.line, error.text.as_str()), (2, wrong));
        }
    }

    proptest! {
        #[test]
        fn what_is_written_is_read_again(name in "[a-z_:]{1,9}", value in any::<f64>(), labels in prop::collection::btree_map("[a-z_]{1,5}", ".{0,9}", 0..4)) {
            let escape = |text: &str| text.replace('\\', r"\\").replace('"', "\\\"").replace('\n', r"\n");
            // Written lines end with \n; `lines` also removes a \r before it.
            let labels: BTreeMap<_, _> = labels.into_iter().map(|(k, v): (String, String)| (k, v.replace('\r', ""))).collect();
            let pairs: Vec<_> = labels.iter().map(|(key, value)| format!("{key}=\"{}\"", escape(value))).collect();
            let sample = parsed(&format!("{name}{{{}}} {value}", pairs.join(",")));
            prop_assert_eq!((&sample.name, &sample.labels, sample.value.to_bits()), (&name, &labels, value.to_bits()));
        }

        #[test]
        fn no_text_panics(text in ".*") {
            let _ = parse(&text);
        }
    }
}
