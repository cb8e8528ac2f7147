//! Reasons why a message does not fit its binding.

use super::value_kind::ValueKind;

/// The reason why a binding cannot use a message or an answer.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum BindingError {
    #[error("the {what} is not JSON: {reason}")]
    NotJson {
        /// "message" or "answer".
        what: &'static str,
        reason: String,
    },
    #[error("the {what} has nothing at {path}")]
    Absent {
        /// "message" or "answer".
        what: &'static str,
        path: String,
    },
    /// A path leads to a value of another kind.
    #[error("at {path} there is {found}, expected {expected}")]
    Kind { path: String, found: &'static str, expected: &'static str },
    /// A text that should be a photograph is no base64.
    #[error("the text at {path} is not base64: {reason}")]
    NotBase64 { path: String, reason: String },
    /// A message that should be one value is another one, or none.
    #[error("the message is {found}, expected {expected} for {name}")]
    Value {
        name: String,
        /// The message, or its beginning, in quotes.
        found: String,
        expected: ValueKind,
    },
    #[error("no feature view of the binding has the feature {name:?}")]
    NoFeature { name: String },
    #[error("{name} is {kind}, and the message is one value")]
    List { name: String, kind: String },
    #[error("the model has no column {name:?} in its [pipeline.table]")]
    Column { name: String },
    #[error("the topic has no valid entity key: {reason}")]
    Topic { reason: String },
    #[error("the model has no input {name:?}; it has {}", known.join(", "))]
    Input { name: String, known: Vec<String> },
}
