//! Reasons why inputs cannot be made of features.

use std::time::Duration;

use ledge_features::online::{FeatureError, FieldStatus};

use crate::repository::feature_elements::FeatureConversionError;

/// Reason why the inputs cannot be made of features.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum FeatureInputError {
    /// Entity keys for a model without features.
    #[error("model '{model}' takes no entities or features: no input in its model.toml has features. Send its inputs")]
    NoFeatures { model: String },
    #[error(
        "model '{model}' needs {} to look up the features of its input(s) {}: send \"entities\": {{{}}} next to \"inputs\", \
         or an input tensor of that name for each",
        quoted(keys),
        quoted(inputs),
        example(keys)
    )]
    MissingEntities {
        model: String,
        /// The inputs that were not sent.
        inputs: Vec<String>,
        /// The join keys that are missing.
        keys: Vec<String>,
    },
    #[error("column '{column}' for model '{model}': {reason}")]
    Column {
        model: String,
        /// The entity or feature.
        column: String,
        reason: String,
    },
    /// A feature without a value, for a model that refuses such rows.
    #[error(
        "feature '{feature}' of model '{model}' is {} for entity row {row}, and its model.toml has no default for that",
        status.as_str()
    )]
    Refused {
        model: String,
        feature: String,
        /// The row, from 0.
        row: usize,
        status: FieldStatus,
    },
    #[error("feature '{feature}' of model '{model}', entity row {row}: {reason}, the datatype of input '{input}'")]
    Unconvertible {
        model: String,
        input: String,
        feature: String,
        /// The row, from 0.
        row: usize,
        reason: FeatureConversionError,
    },
    #[error(
        "input '{input}' of model '{model}': entity row {row} has {got} elements, but the first row has {expected}"
    )]
    Ragged {
        model: String,
        input: String,
        /// The row, from 0.
        row: usize,
        /// Elements of the first row.
        expected: usize,
        /// Elements of this one.
        got: usize,
    },
    #[error("cannot read the features of model '{model}': {reason}")]
    Store { model: String, reason: FeatureError },
}

impl FeatureInputError {
    /// Time after which another try may succeed, if it may.
    pub fn retry_after(&self) -> Option<Duration> {
        match self {
            Self::Store {
                reason: FeatureError::Unavailable { .. } | FeatureError::Overloaded { .. } | FeatureError::NoRoom(_),
                ..
            } => Some(Duration::from_secs(1)),
            _ => None,
        }
    }
}

fn quoted(names: &[String]) -> String {
    names.iter().map(|name| format!("'{name}'")).collect::<Vec<_>>().join(", ")
}

fn example(keys: &[String]) -> String {
    keys.iter().map(|key| format!("\"{key}\": [...]")).collect::<Vec<_>>().join(", ")
}
