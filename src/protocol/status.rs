//! From errors to HTTP status codes (MQTT answers carry the same numbers).
//!
//! One exhaustive match without `_`: a new error does not compile until someone decides.

use super::error::ProtocolError;
use crate::repository::{LoadModelError, PinError};
use crate::serving::ServingError;

impl ProtocolError {
    /// The HTTP status.
    pub fn status(&self) -> u16 {
        match self {
            Self::Json { .. }
            | Self::HeaderLength { .. }
            | Self::HeaderRange { .. }
            | Self::Missing { .. }
            | Self::DuplicateKey { .. }
            | Self::Field { .. }
            | Self::TooMany { .. }
            | Self::SharedMemory { .. }
            | Self::Sequence
            | Self::DuplicateInput { .. }
            | Self::DuplicateOutput { .. }
            | Self::InvalidDatatype { .. }
            | Self::Shape { .. }
            | Self::NoData { .. }
            | Self::TwoData { .. }
            | Self::Element { .. }
            | Self::ElementCount { .. }
            | Self::Nesting { .. }
            | Self::ShortBinary { .. }
            | Self::TrailingBinary { .. }
            | Self::ByteSize { .. }
            | Self::IncompleteString { .. }
            | Self::StringCount { .. }
            | Self::NotABool { .. }
            | Self::NotFinite { .. }
            | Self::NotUtf8 { .. } => 400,
            Self::Encode { .. } => 500,
        }
    }
}

/// The HTTP status of a call that was not answered.
pub fn of_serving(error: &ServingError) -> u16 {
    match error {
        ServingError::Pin(error) => of_pin(error),
        ServingError::Misfit(_) | ServingError::BadInput { .. } => 400,
        ServingError::Overloaded { .. } | ServingError::Refused(_) => 429,
        ServingError::ModelFailed { .. } => 500,
        ServingError::Unavailable { .. } => 503,
        ServingError::DeadlineExceeded { .. } => 504,
    }
}

/// The HTTP status of a model or version that is not there.
pub fn of_pin(error: &PinError) -> u16 {
    match error {
        PinError::UnknownModel { .. } | PinError::UnknownVersion { .. } | PinError::NoVersion { .. } => 404,
    }
}

/// The HTTP status of a load that failed.
pub fn of_load(error: &LoadModelError) -> u16 {
    match error {
        LoadModelError::Unknown { .. } => 404,
        LoadModelError::Failed { .. } => 400,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_client_is_told_its_own_faults_with_400_and_ours_with_500() {
        assert_eq!(ProtocolError::Sequence.status(), 400);
        assert_eq!(ProtocolError::Encode { reason: String::new() }.status(), 500);
    }
}
