//! Errors as Feast's feature server sends them.
//!
//! An error of Feast's own is a JSON string that holds a JSON object with the class of the exception. What does not fit the
//! form of a request is told as pydantic tells it.

use std::borrow::Cow;

use ledge_features::online::FeatureError;
use ledge_part::failure::Failure;
use serde::Serialize;

/// The class of an error for which Feast has none of its own.
const GENERAL: &str = "FeastError";

/// An answer that is not a success.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct FeastError {
    pub status: u16,
    /// When it is worth another try, in seconds. Feast's client waits as long and comes again, three times.
    pub retry_after_s: Option<u64>,
    pub told: Told,
}

/// What an error answer says.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Told {
    /// The client raises this class of `feast.errors` with the message.
    Exception {
        /// The name of the class.
        class: &'static str,
        message: String,
    },
    /// The client shows the answer as it is.
    Detail(Detail),
}

/// What is wrong with a request, and where.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Detail {
    /// Pydantic's name of the mistake.
    #[serde(rename = "type")]
    pub kind: &'static str,
    /// The way to it from the body down.
    pub loc: Vec<Location>,
    pub msg: String,
}

/// A step to a part of a request: a key or an index.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(untagged)]
pub enum Location {
    /// The key of an object.
    Key(Cow<'static, str>),
    /// An index into an array.
    Index(usize),
}

impl From<&'static str> for Location {
    fn from(key: &'static str) -> Self {
        Self::Key(key.into())
    }
}

impl Detail {
    /// Something in a body, below its key `place`.
    pub fn new(kind: &'static str, place: &'static str, msg: impl Into<String>) -> Self {
        Self { kind, loc: vec!["body".into(), place.into()], msg: msg.into() }
    }

    /// Something with the body itself.
    pub fn of_body(kind: &'static str, msg: impl Into<String>) -> Self {
        Self { kind, loc: vec!["body".into()], msg: msg.into() }
    }

    fn below(mut self, steps: impl IntoIterator<Item = Location>) -> Self {
        self.loc.extend(steps);
        self
    }
}

impl From<Failure> for FeastError {
    fn from(failure: Failure) -> Self {
        let Failure { status, message, retry_after_s } = failure;
        Self { retry_after_s, ..Self::new(status.as_u16(), message) }
    }
}

impl From<Detail> for FeastError {
    fn from(detail: Detail) -> Self {
        Self { status: 422, retry_after_s: None, told: Told::Detail(detail) }
    }
}

impl FeastError {
    /// An error for which Feast has no class of its own.
    pub fn new(status: u16, message: impl Into<String>) -> Self {
        Self::exception(status, GENERAL, message)
    }

    fn exception(status: u16, class: &'static str, message: impl Into<String>) -> Self {
        Self { status, retry_after_s: None, told: Told::Exception { class, message: message.into() } }
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

    /// Why the store did not do what `place` of a request's body asked for: its key with the rows or entities.
    ///
    /// One exhaustive match without `_`: a new error does not compile until someone decides.
    pub fn of_store(error: &FeatureError, place: &'static str) -> Self {
        let message = error.to_string();
        let key = |name: &str| Location::Key(name.to_owned().into());
        let told = match error {
            FeatureError::Disabled { .. } | FeatureError::UnknownFeature { .. } => {
                Told::Exception { class: "FeastObjectNotFoundException", message }
            }
            FeatureError::UnknownView { .. } => Told::Exception { class: "FeatureViewNotFoundException", message },
            FeatureError::UnknownService { .. } => {
                Told::Exception { class: "FeatureServiceNotFoundException", message }
            }
            FeatureError::UnknownSource { .. } => Told::Exception { class: "PushSourceNotFoundException", message },
            FeatureError::OutOfScope { .. } => Told::Exception { class: "FeastPermissionError", message },
            FeatureError::Reference { .. } => Told::Detail(Detail::new("value_error", "features", message)),
            FeatureError::MissingColumn { column, .. } => {
                Told::Detail(Detail::new("missing", place, message).below([key(column)]))
            }
            FeatureError::NoFeature { .. } | FeatureError::Columns { .. } | FeatureError::TooLarge { .. } => {
                Told::Detail(Detail::new("value_error", place, message))
            }
            FeatureError::Value { column, row, .. } => {
                Told::Detail(Detail::new("value_error", place, message).below([key(column), Location::Index(*row)]))
            }
            FeatureError::Unavailable { .. }
            | FeatureError::Overloaded { .. }
            | FeatureError::DiskFull { .. }
            | FeatureError::NotWritten { .. }
            | FeatureError::NotErased { .. }
            | FeatureError::Backup { .. } => Told::Exception { class: GENERAL, message },
        };
        Self { status: error.status(), retry_after_s: error.retry_after_s(), told }
    }

    /// The message alone.
    pub fn message(&self) -> &str {
        match &self.told {
            Told::Exception { message, .. } => message,
            Told::Detail(detail) => &detail.msg,
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
            detail: [&'a Detail; 1],
        }
        let json = match &self.told {
            Told::Exception { class, message } => {
                serde_json::to_string(&Exception { module: "feast.errors", class, message })
                    .and_then(|object| serde_json::to_vec(&object))
            }
            Told::Detail(detail) => serde_json::to_vec(&Details { detail: [detail] }),
        };
        // Strings and numbers always serialize.
        json.unwrap_or_default()
    }
}
