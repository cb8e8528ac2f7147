//! The HTTP status of each error where a caller asked for it by the routes of the feature store, which are Feast's statuses
//! where Feast has one. A model or a binding that fails to read or push has others: `models/status.rs`.

use ledge_part::failure::Failure;

use crate::online::FeatureError;

/// Seconds after which a call that was refused for a shortage is worth another try.
const RETRY_AFTER_S: u64 = 1;

impl FeatureError {
    /// The HTTP status. One exhaustive match without `_`: a new error does not compile until someone decides.
    pub fn status(&self) -> u16 {
        match self {
            Self::OutOfScope { .. } => 403,
            Self::Disabled { .. }
            | Self::UnknownFeature { .. }
            | Self::UnknownView { .. }
            | Self::UnknownService { .. } => 404,
            Self::UnknownSource { .. }
            | Self::Reference { .. }
            | Self::MissingColumn { .. }
            | Self::NoFeature { .. }
            | Self::Columns { .. }
            | Self::TooLarge { .. }
            | Self::Value { .. }
            | Self::Backup { .. } => 422,
            Self::Overloaded { .. } => 429,
            Self::NotWritten { .. } | Self::NotErased { .. } => 500,
            Self::Unavailable { .. } => 503,
            Self::DiskFull { .. } => 507,
        }
    }

    /// Seconds after which another try is worth it, where one is.
    pub fn retry_after_s(&self) -> Option<u64> {
        matches!(self, Self::Unavailable { .. } | Self::Overloaded { .. }).then_some(RETRY_AFTER_S)
    }
}

impl From<FeatureError> for Failure {
    fn from(error: FeatureError) -> Self {
        Self { retry_after_s: error.retry_after_s(), ..Self::with_code(error.status(), error.to_string()) }
    }
}
