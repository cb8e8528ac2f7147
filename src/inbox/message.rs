//! The result of a document: the JSON file, and the message for a webhook and the broker.

use ledge_base::names::{DeviceName, InboxName, ModelName, ModelVersion};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::value::RawValue;
use serde_json::{Map, Value};

/// The longest text of a document in a message, in bytes: many brokers take no message beyond 128 KiB.
const TEXT_BYTES_MAX: usize = 64 << 10;

/// The separator of the texts of two pages.
const PAGE_BREAK: &str = "\u{c}";

/// The content of the JSON file of a document.
#[derive(Debug, Clone, Copy, Serialize)]
pub struct InboxResult<'a> {
    /// The same in all that comes of the file.
    pub id: &'a str,
    pub inbox: &'a InboxName,
    /// The name of the file, as it was found.
    pub file: &'a str,
    pub read_at: &'a str,
    pub model_name: &'a ModelName,
    pub model_version: ModelVersion,
    /// The reason why there is no searchable PDF, if one was to be made.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub pdf_error: Option<&'a str>,
    /// As in the answer to a call.
    pub document: &'a RawValue,
}

/// A message about a file.
#[derive(Debug, Clone, Serialize, JsonSchema)]
pub struct InboxMessage<'a> {
    /// The same when the message comes again.
    pub id: &'a str,
    /// The name of this box.
    #[schemars(with = "String")]
    pub device: &'a DeviceName,
    #[schemars(with = "String")]
    pub inbox: &'a InboxName,
    /// The name of the file, as it was found.
    pub file: &'a str,
    /// The time of the result, in RFC 3339.
    pub at: &'a str,
    #[serde(flatten)]
    pub outcome: MessageOutcome<'a>,
}

/// What became of the file.
#[derive(Debug, Clone, Serialize, JsonSchema)]
#[serde(untagged)]
pub enum MessageOutcome<'a> {
    Read {
        #[schemars(with = "String")]
        model_name: &'a ModelName,
        #[schemars(with = "String")]
        model_version: ModelVersion,
        /// The fields that were found, as in the answer to a call.
        fields: &'a Map<String, Value>,
        /// Those that need a look.
        doubtful: &'a Map<String, Value>,
        /// The documents of a file that has several, as in the answer to a call.
        #[serde(skip_serializing_if = "<[_]>::is_empty")]
        documents: &'a [Map<String, Value>],
        /// The text of all pages, with a form feed between two.
        text: String,
        /// Set for a text of which only the first 64 KiB are here.
        #[serde(skip_serializing_if = "std::ops::Not::not")]
        text_truncated: bool,
    },
    Failed {
        /// The reason why the file was not read.
        error: &'a str,
    },
}

/// The parts of an answer that rows and messages need.
#[derive(Debug, Default, Deserialize)]
pub struct ReadDocument {
    pages: Vec<PageText>,
    #[serde(default)]
    pub fields: Map<String, Value>,
    #[serde(default)]
    pub doubtful: Map<String, Value>,
    #[serde(default)]
    pub documents: Vec<Map<String, Value>>,
}

/// A document, for its row in a table.
#[derive(Debug, Clone, PartialEq)]
pub struct DocumentRow<'a> {
    /// From 1; `None` for the only document of a file.
    pub number: Option<usize>,
    pub pages: usize,
    pub fields: &'a Map<String, Value>,
    pub doubtful: Option<&'a Map<String, Value>>,
}

#[derive(Debug, Deserialize)]
struct PageText {
    text: String,
}

impl ReadDocument {
    /// The documents of the file, one or several.
    pub fn rows(&self) -> Vec<DocumentRow<'_>> {
        if self.documents.is_empty() {
            let (pages, doubtful) = (self.pages.len(), Some(&self.doubtful));
            return vec![DocumentRow { number: None, pages, fields: &self.fields, doubtful }];
        }
        let of_each = self.documents.iter().zip(1..).filter_map(|(document, number)| {
            let page = |key: &str| usize::try_from(document.get(key)?.as_u64()?).ok();
            let pages = (page("last_page")? + 1).checked_sub(page("first_page")?)?;
            let doubtful = document.get("doubtful").and_then(Value::as_object);
            Some(DocumentRow { number: Some(number), pages, fields: document.get("fields")?.as_object()?, doubtful })
        });
        of_each.collect()
    }

    /// The text of all pages, and `true` if it is only their beginning.
    pub fn text(&self) -> (String, bool) {
        let texts: Vec<_> = self.pages.iter().map(|page| page.text.as_str()).collect();
        let mut text = texts.join(PAGE_BREAK);
        let kept = text.floor_char_boundary(TEXT_BYTES_MAX);
        let is_truncated = kept < text.len();
        text.truncate(kept);
        (text, is_truncated)
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn a_message_has_the_fields_or_the_error() {
        let document: ReadDocument = serde_json::from_value(json!({
            "pages": [{"page": 1, "text": "a\nb"}, {"page": 2, "text": "c"}],
            "fields": {"total": {"value": {"amount": "1.00", "currency": null}}},
        }))
        .unwrap();
        let (text, text_truncated) = document.text();
        let (device, inbox) = (DeviceName::constant("box"), InboxName::constant("scans"));
        let (model, version) = (ModelName::constant("document_reader"), "1".parse().unwrap());
        let ReadDocument { fields, doubtful, documents, .. } = &document;
        let read = MessageOutcome::Read {
            model_name: &model,
            model_version: version,
            fields,
            doubtful,
            documents,
            text,
            text_truncated,
        };
        let message = |outcome| InboxMessage { id: "7", device: &device, inbox: &inbox, file: "a", at: "now", outcome };
        let written = serde_json::to_value(message(read)).unwrap();
        assert_eq!((&written["text"], written.get("text_truncated")), (&json!("a\nb\u{c}c"), None));
        assert_eq!(written["fields"]["total"]["value"]["amount"], "1.00");
        let failed = serde_json::to_value(message(MessageOutcome::Failed { error: "no" })).unwrap();
        let expected = json!({"id": "7", "device": "box", "inbox": "scans", "file": "a", "at": "now", "error": "no"});
        assert_eq!(failed, expected);
    }

    #[test]
    fn a_file_of_several_documents_has_a_row_for_each() {
        let document = json!({
            "pages": [{"page": 1, "text": "a"}, {"page": 2, "text": "b"}, {"page": 3, "text": "c"}],
            "fields": {},
            "documents": [
                {"first_page": 1, "last_page": 2, "fields": {"total": {}}, "doubtful": {"date": {}}},
                {"first_page": 3, "last_page": 3, "fields": {}},
            ],
        });
        let document: ReadDocument = serde_json::from_value(document).unwrap();
        let rows: Vec<_> = document.rows().into_iter().map(|row| (row.number, row.pages, row.fields.len())).collect();
        assert_eq!(rows, [(Some(1), 2, 1), (Some(2), 1, 0)]);
        let one: ReadDocument = serde_json::from_value(json!({"pages": [{"page": 1, "text": "a"}]})).unwrap();
        assert_eq!(one.rows().into_iter().map(|row| (row.number, row.pages)).collect::<Vec<_>>(), [(None, 1)]);
    }

    #[test]
    fn a_long_text_is_cut_between_two_characters() {
        let page = PageText { text: "é".repeat(TEXT_BYTES_MAX) };
        let (text, is_truncated) = ReadDocument { pages: vec![page], ..ReadDocument::default() }.text();
        assert!(is_truncated && text.len() == TEXT_BYTES_MAX);
    }
}
