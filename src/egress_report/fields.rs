//! The fields of a message, read from the JSON Schema of its type.

use serde::Serialize;
use serde_json::Value;

/// One field.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct ReportedField {
    /// Its path, such as `models[].name`; `*` is a name from outside the code, and `event(started)` one form of
    /// `event`.
    pub name: String,
    /// The first sentence of its doc comment.
    pub what: String,
}

/// The most levels of a schema, more than any of our types has: a type that contains itself would have no end.
const SCHEMA_DEPTH_MAX: usize = 12;

impl ReportedField {
    /// A field that is not from a schema.
    pub fn new(name: &str, what: &str) -> Self {
        Self { name: name.to_owned(), what: what.to_owned() }
    }
}

/// Every field of the type that has this schema.
pub fn of_schema(schema: &Value) -> Vec<ReportedField> {
    let mut fields = Vec::new();
    SchemaWalk { root: schema, fields: &mut fields }.visit(schema, "", "", 0);
    fields
}

struct SchemaWalk<'a> {
    root: &'a Value,
    fields: &'a mut Vec<ReportedField>,
}

impl<'a> SchemaWalk<'a> {
    fn visit(&mut self, schema: &'a Value, path: &str, what: &str, depth: usize) {
        let own = schema.get("description").and_then(Value::as_str).map(first_sentence);
        let what = if what.is_empty() { own.unwrap_or_default() } else { what.to_owned() };
        if depth > SCHEMA_DEPTH_MAX {
            return self.leaf(path, &what);
        }
        if let Some(target) = schema.get("$ref").and_then(Value::as_str).and_then(|to| self.resolve(to)) {
            return self.visit(target, path, &what, depth + 1);
        }

        for forms in ["oneOf", "anyOf"] {
            let Some(forms) = schema.get(forms).and_then(Value::as_array) else { continue };
            let is_null = |form: &&Value| form.get("type").and_then(Value::as_str) != Some("null");
            let forms: Vec<_> = forms.iter().filter(is_null).collect();
            if forms.iter().all(|form| form.get("const").is_some() || form.get("enum").is_some()) {
                return self.leaf(path, &what);
            }
            for form in &forms {
                match tag(form) {
                    Some((tag, name)) => {
                        let path = format!("{path}({name})");
                        let what = form.get("description").and_then(Value::as_str).map(first_sentence);
                        self.leaf(&path, &what.unwrap_or_default());
                        self.properties(form, &path, Some(tag), depth);
                    }
                    None => self.visit(form, path, &what, depth + 1),
                }
            }
            return;
        }

        if schema.get("properties").is_some() {
            return self.properties(schema, path, None, depth);
        }
        if let Some(items) = schema.get("items").filter(|items| items.is_object() || **items == Value::Bool(true)) {
            return self.visit(items, &format!("{path}[]"), &what, depth + 1);
        }
        // Names of some pattern, such as fixed words.
        let patterns = schema.get("patternProperties").and_then(Value::as_object);
        let by_pattern = patterns.and_then(|patterns| patterns.values().next());
        if let Some(any) = schema.get("additionalProperties").filter(|any| any.is_object()).or(by_pattern) {
            let dot = if path.is_empty() { "" } else { "." };
            return self.visit(any, &format!("{path}{dot}*"), &what, depth + 1);
        }
        self.leaf(path, &what);
    }

    fn properties(&mut self, schema: &'a Value, path: &str, without: Option<&str>, depth: usize) {
        let properties = schema.get("properties").and_then(Value::as_object);
        for (name, property) in properties.into_iter().flatten().filter(|(name, _)| Some(name.as_str()) != without) {
            let dot = if path.is_empty() { "" } else { "." };
            let what = property.get("description").and_then(Value::as_str).map(first_sentence);
            self.visit(property, &format!("{path}{dot}{name}"), &what.unwrap_or_default(), depth + 1);
        }
    }

    fn resolve(&self, reference: &str) -> Option<&'a Value> {
        self.root.pointer(reference.strip_prefix('#')?)
    }

    fn leaf(&mut self, path: &str, what: &str) {
        let name = if path.is_empty() { "*" } else { path };
        self.fields.push(ReportedField::new(name, what));
    }
}

/// The property that distinguishes this form of an enum from the others, and its value.
fn tag(form: &Value) -> Option<(&str, &str)> {
    let properties = form.get("properties")?.as_object()?;
    properties.iter().find_map(|(name, property)| Some((name.as_str(), property.get("const")?.as_str()?)))
}

/// The first sentence of a doc comment, without line breaks and links.
fn first_sentence(text: &str) -> String {
    let text = text.replace('\n', " ").replace(['`', '[', ']'], "");
    let words: Vec<_> = text.split_whitespace().collect();
    let text = words.join(" ");
    match text.split_once(". ") {
        Some((first, _)) => first.to_owned(),
        None => text.trim_end_matches('.').to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;
    use ledge_audit::record::AuditRecord;

    fn names(fields: &[ReportedField]) -> BTreeSet<&str> {
        fields.iter().map(|field| field.name.as_str()).collect()
    }

    #[test]
    fn a_record_has_the_fields_that_it_is_written_with() {
        let fields = of_schema(AuditRecord::schema().as_value());
        let names = names(&fields);
        for name in ["v", "seq", "ts", "actor.kind", "actor.tag", "event(stopped)", "event(model_loaded).model"] {
            assert!(names.contains(name), "{name}: {names:?}");
        }
        assert!(
            names.contains("event(egress_counted).sent.*") && names.contains("event(retention_enforced).removed.*")
        );
        let lines = [
            r#"{"v":1,"seq":0,"ts":"2026-01-01T00:00:00Z","actor":{"kind":"ip","tag":"3:00000000000000000000000000000000"},"event":{"action":"inference","model":"m","version":1,"digest":"ab","outcome":"ok","us":7,"input":"3:00000000000000000000000000000000","output":"3:00000000000000000000000000000000"}}"#,
            r#"{"v":1,"seq":0,"ts":"2026-01-01T00:00:00Z","actor":{"kind":"local"},"event":{"action":"log_begun","cause":"forked","previous":{"origin":"o","size":1,"root":"r","found":2}}}"#,
        ];
        for line in lines {
            let record = AuditRecord::parse(line.as_bytes()).unwrap();
            let written: Value = serde_json::from_slice(&record.to_line()).unwrap();
            let action = written["event"]["action"].as_str().unwrap().to_owned();
            for name in leaves(&written, "") {
                let name = name.replace("event.", &format!("event({action})."));
                assert!(name.ends_with(".action") || names.contains(name.as_str()), "{name} is written but not listed");
            }
        }
    }

    /// The path to each value that is not an object.
    fn leaves(value: &Value, path: &str) -> Vec<String> {
        let Some(object) = value.as_object() else { return vec![path.to_owned()] };
        let dot = if path.is_empty() { "" } else { "." };
        object.iter().flat_map(|(name, value)| leaves(value, &format!("{path}{dot}{name}"))).collect()
    }

    #[test]
    fn a_type_that_contains_itself_has_an_end() {
        let schema = serde_json::json!({"properties": {"a": {"$ref": "#"}}});
        assert_eq!(of_schema(&schema).len(), 1);
    }

    #[test]
    fn a_doc_comment_becomes_its_first_sentence() {
        assert_eq!(first_sentence("Who, as in\n[`Actor`]. Or not."), "Who, as in Actor");
        assert_eq!(first_sentence("Who."), "Who");
    }
}
