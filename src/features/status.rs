//! The HTTP status of each error of the feature store's own routes: that of Feast, where Feast has one. Reads for a
//! model and pushes of a binding have other statuses: `models/status.rs`.

use ledge_part::api_error::ApiError;

use crate::online::FeatureError;

/// The time in seconds after which to repeat a call that was refused because the store is busy or not ready.
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
            Self::Unavailable { .. } | Self::NoRoom(_) => 503,
            Self::DiskFull { .. } => 507,
        }
    }

    /// The time in seconds after which to try again, if that can help.
    pub fn retry_after_s(&self) -> Option<u64> {
        matches!(self, Self::Unavailable { .. } | Self::Overloaded { .. } | Self::NoRoom(_)).then_some(RETRY_AFTER_S)
    }
}

impl From<FeatureError> for ApiError {
    fn from(error: FeatureError) -> Self {
        Self { retry_after_s: error.retry_after_s(), ..Self::with_code(error.status(), error.to_string()) }
    }
}
