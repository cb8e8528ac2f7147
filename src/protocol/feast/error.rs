//! Errors as Feast's feature server sends them.
//!
//! An error of Feast's own is a JSON string that holds a JSON object with the class of the exception. A request of the
//! wrong form gets an error in the form of pydantic.

use std::borrow::Cow;

use ledge_features::online::FeatureError;
use ledge_part::api_error::ApiError;
use serde::Serialize;

/// The class of errors without a specific class in Feast.
const GENERAL: &str = "FeastError";

/// An answer that is not a success.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct FeastError {
    pub status: u16,
    /// Seconds after which another try may succeed. Feast's client waits that long and tries again, three times.
    pub retry_after_s: Option<u64>,
    pub content: ErrorContent,
}

/// Content of an error answer.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ErrorContent {
    /// The client raises this class of `feast.errors` with the message.
    Exception {
        /// The name of the class.
        class: &'static str,
        message: String,
    },
    /// The client shows the answer as it is.
    Detail(RequestMistake),
}

/// A mistake in a request, and its place.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct RequestMistake {
    /// Pydantic's name of the mistake.
    #[serde(rename = "type")]
    pub kind: &'static str,
    /// Path to it from the body down.
    pub loc: Vec<MistakeLocation>,
    pub msg: String,
}

/// A step to a part of a request: a key or an index.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(untagged)]
pub enum MistakeLocation {
    /// The key of an object.
    Key(Cow<'static, str>),
    /// An index into an array.
    Index(usize),
}

impl From<&'static str> for MistakeLocation {
    fn from(key: &'static str) -> Self {
        Self::Key(key.into())
    }
}

impl RequestMistake {
    /// A mistake in a body, below its key `place`.
    pub fn new(kind: &'static str, place: &'static str, msg: impl Into<String>) -> Self {
        Self { kind, loc: vec!["body".into(), place.into()], msg: msg.into() }
    }

    /// A mistake of the body itself.
    pub fn of_body(kind: &'static str, msg: impl Into<String>) -> Self {
        Self { kind, loc: vec!["body".into()], msg: msg.into() }
    }

    fn below(mut self, steps: impl IntoIterator<Item = MistakeLocation>) -> Self {
        self.loc.extend(steps);
        self
    }
}

impl From<ApiError> for FeastError {
    fn from(failure: ApiError) -> Self {
        let ApiError { status, message, retry_after_s } = failure;
        Self { retry_after_s, ..Self::new(status.as_u16(), message) }
    }
}

impl From<RequestMistake> for FeastError {
    fn from(detail: RequestMistake) -> Self {
        Self { status: 422, retry_after_s: None, content: ErrorContent::Detail(detail) }
    }
}

impl FeastError {
    /// An error without a specific class in Feast.
    pub fn new(status: u16, message: impl Into<String>) -> Self {
        Self::exception(status, GENERAL, message)
    }

    fn exception(status: u16, class: &'static str, message: impl Into<String>) -> Self {
        Self { status, retry_after_s: None, content: ErrorContent::Exception { class, message: message.into() } }
    }

    /// Two features would have one name in the answer.
    pub fn collision(name: &str, full: bool) -> Self {
        let message = if full {
            format!("Duplicate features named {name} found: each feature can be asked for once.")
        } else {
            format!("Duplicate features named {name} found: ask with 'full_feature_names', or for each feature once.")
        };
        Self::exception(422, "FeatureNameCollisionError", message)
    }

    /// The error of the store for a request. `place` is the key of the rows or entities in the request's body.
    ///
    /// One exhaustive match without `_`: a new error does not compile until someone decides.
    pub fn of_store(error: &FeatureError, place: &'static str) -> Self {
        let message = error.to_string();
        let key = |name: &str| MistakeLocation::Key(name.to_owned().into());
        let content = match error {
            FeatureError::Disabled { .. } | FeatureError::UnknownFeature { .. } => {
                ErrorContent::Exception { class: "FeastObjectNotFoundException", message }
            }
            FeatureError::UnknownView { .. } => {
                ErrorContent::Exception { class: "FeatureViewNotFoundException", message }
            }
            FeatureError::UnknownService { .. } => {
                ErrorContent::Exception { class: "FeatureServiceNotFoundException", message }
            }
            FeatureError::UnknownSource { .. } => {
                ErrorContent::Exception { class: "PushSourceNotFoundException", message }
            }
            FeatureError::OutOfScope { .. } => ErrorContent::Exception { class: "FeastPermissionError", message },
            FeatureError::Reference { .. } => {
                ErrorContent::Detail(RequestMistake::new("value_error", "features", message))
            }
            FeatureError::MissingColumn { column, .. } => {
                ErrorContent::Detail(RequestMistake::new("missing", place, message).below([key(column)]))
            }
            FeatureError::NoFeature { .. } | FeatureError::Columns { .. } | FeatureError::TooLarge { .. } => {
                ErrorContent::Detail(RequestMistake::new("value_error", place, message))
            }
            FeatureError::Value { column, row, .. } => ErrorContent::Detail(
                RequestMistake::new("value_error", place, message).below([key(column), MistakeLocation::Index(*row)]),
            ),
            FeatureError::Unavailable { .. }
            | FeatureError::Overloaded { .. }
            | FeatureError::DiskFull { .. }
            | FeatureError::NotWritten { .. }
            | FeatureError::NoRoom(_)
            | FeatureError::NotErased { .. }
            | FeatureError::Backup { .. } => ErrorContent::Exception { class: GENERAL, message },
        };
        Self { status: error.status(), retry_after_s: error.retry_after_s(), content }
    }

    /// Only the message.
    pub fn message(&self) -> &str {
        match &self.content {
            ErrorContent::Exception { message, .. } => message,
            ErrorContent::Detail(detail) => &detail.msg,
        }
    }

    /// The body, JSON.
    pub fn to_json(&self) -> Vec<u8> {
        #[derive(Serialize)]
        struct Exception<'a> {
            module: &'static str,
            class: &'static str,
            message: &'a str,
        }
        #[derive(Serialize)]
        struct Details<'a> {
            detail: [&'a RequestMistake; 1],
        }
        let json = match &self.content {
            ErrorContent::Exception { class, message } => {
                serde_json::to_string(&Exception { module: "feast.errors", class, message })
                    .and_then(|object| serde_json::to_vec(&object))
            }
            ErrorContent::Detail(detail) => serde_json::to_vec(&Details { detail: [detail] }),
        };
        // Strings and numbers always serialize.
        json.unwrap_or_default()
    }
}
