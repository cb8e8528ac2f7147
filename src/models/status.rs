//! HTTP status codes of errors; MQTT answers carry the same numbers.
//!
//! One exhaustive match without `_`: a new error does not compile until someone decides.

use ledge_features::online::FeatureError;
use ledge_part::api_error::{ApiError, whole_seconds};

use super::scheduling::outcome::{FailureClass, InferError};
use crate::repository::feature_elements::FeatureConversionError;
use crate::repository::{LoadModelError, PinError, UnloadModelError};
use crate::scheduling::faults::FaultRefusal;
use crate::serving::FeatureInputError;
use crate::serving::ServingError;

impl From<PinError> for ApiError {
    fn from(error: PinError) -> Self {
        ServingError::from(error).into()
    }
}

impl From<LoadModelError> for ApiError {
    fn from(error: LoadModelError) -> Self {
        Self::with_code(of_load(&error), error.to_string())
    }
}

impl From<UnloadModelError> for ApiError {
    fn from(error: UnloadModelError) -> Self {
        Self::with_code(of_unload(&error), error.to_string())
    }
}

impl From<ServingError> for ApiError {
    fn from(error: ServingError) -> Self {
        let retry_after_s = error.retry_after().map(whole_seconds);
        Self { retry_after_s, ..Self::with_code(of_serving(&error), error.to_string()) }
    }
}

/// The HTTP status of a call that was not answered.
pub fn of_serving(error: &ServingError) -> u16 {
    match error {
        ServingError::Pin(error) => of_pin(error),
        ServingError::Content(error) if error.is_too_much() => 413,
        ServingError::InvalidRequest(_) | ServingError::Content(_) => 400,
        ServingError::Features(error) => of_feature_input(error),
        ServingError::Refused(_) => 429,
        ServingError::NoRoom(_) => 503,
        // No later time helps an input that crashes; the request itself is well-formed.
        ServingError::Run { error: InferError::Blamed(FaultRefusal::Input), .. } => 422,
        ServingError::Run { error, .. } => match error.class() {
            FailureClass::BadInput => 400,
            FailureClass::Overloaded | FailureClass::Blamed => 429,
            FailureClass::Failed => 500,
            FailureClass::Crashed => 502,
            FailureClass::Unavailable | FailureClass::NoRoom => 503,
            FailureClass::DeadlineExceeded => 504,
        },
    }
}

/// The HTTP status of a call when its inputs cannot be made from features.
///
/// A field status that the model refuses is 422: the request is well-formed and complete, and the same request for an
/// entity in the store would be answered. 404 is for a model that does not exist, and 400 would suggest a mistake in
/// the request.
fn of_feature_input(error: &FeatureInputError) -> u16 {
    match error {
        FeatureInputError::NoFeatures { .. }
        | FeatureInputError::MissingEntities { .. }
        | FeatureInputError::Column { .. } => 400,
        FeatureInputError::Refused { .. }
        | FeatureInputError::Ragged { .. }
        | FeatureInputError::Unconvertible { reason: FeatureConversionError::Inexact { .. }, .. } => 422,
        // The model config and the feature view do not match: a caller cannot correct that.
        FeatureInputError::Unconvertible { reason: FeatureConversionError::Type { .. }, .. } => 500,
        FeatureInputError::Store { reason, .. } => of_features(reason),
    }
}

/// The HTTP status of a read of features for a model, or of a push of a binding. The names come from the configuration,
/// not from the caller: an unknown name means that the box cannot serve this yet.
pub fn of_features(error: &FeatureError) -> u16 {
    match error {
        FeatureError::MissingColumn { .. }
        | FeatureError::NoFeature { .. }
        | FeatureError::Columns { .. }
        | FeatureError::Value { .. }
        | FeatureError::TooLarge { .. } => 400,
        FeatureError::OutOfScope { .. } => 403,
        FeatureError::Backup { .. } => 422,
        FeatureError::Overloaded { .. } => 429,
        FeatureError::NotWritten { .. } | FeatureError::NotErased { .. } => 500,
        FeatureError::Disabled { .. }
        | FeatureError::UnknownView { .. }
        | FeatureError::UnknownFeature { .. }
        | FeatureError::UnknownService { .. }
        | FeatureError::UnknownSource { .. }
        | FeatureError::Reference { .. }
        | FeatureError::NoRoom(_)
        | FeatureError::Unavailable { .. } => 503,
        FeatureError::DiskFull { .. } => 507,
    }
}

/// The HTTP status of a model or version that is not available.
fn of_pin(error: &PinError) -> u16 {
    match error {
        PinError::UnknownModel { .. } | PinError::UnknownVersion { .. } | PinError::NoVersion { .. } => 404,
        PinError::Loading { .. } => 503,
    }
}

/// The HTTP status of a load that failed.
fn of_load(error: &LoadModelError) -> u16 {
    match error {
        LoadModelError::Unknown { .. } => 404,
        LoadModelError::Failed { .. } => 400,
        LoadModelError::Managed(_) => 409,
    }
}

/// The HTTP status of an unload that was refused.
fn of_unload(error: &UnloadModelError) -> u16 {
    match error {
        UnloadModelError::Unknown(error) => of_pin(error),
        UnloadModelError::Managed(_) => 409,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::repository::ManagedModel;

    #[test]
    fn loading_or_unloading_a_managed_model_is_a_conflict() {
        let managed = || ManagedModel { model: "m".parse().unwrap() };
        let (load, unload) = (LoadModelError::from(managed()), UnloadModelError::from(managed()));
        assert_eq!((of_load(&load), of_unload(&unload)), (409, 409));
        assert_eq!(load.to_string(), unload.to_string());
        assert!(load.to_string().contains("'m' is managed by signed updates"), "{load}");
    }
}
