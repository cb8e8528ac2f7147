//! The model repository extension: index, load and unload.

use std::collections::BTreeSet;

use ledge_base::names::{ModelName, ModelVersion};
use ledge_base::serde_messages::in_json;
use ledge_part::api_error::{ApiError, StatusCode};
use serde::Serialize;
use serde::de::{Error, IgnoredAny, MapAccess};

use super::super::error::{ProtocolError, excerpt};
use super::super::object::{self, NullableSeed, ObjectFields, ObjectSeed};
use super::super::parameters::ParameterValue;
pub use ledge_models::repository::ModelState;

/// One row of the index: a version, or a model that was never loaded.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct RepositoryIndexRow {
    pub name: ModelName,
    /// The version, as a string.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub version: Option<String>,
    pub state: ModelState,
    /// Reason why it is not ready.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub reason: Option<String>,
}

impl RepositoryIndexRow {
    /// A row.
    pub fn new(name: ModelName, version: Option<ModelVersion>, state: ModelState, reason: Option<String>) -> Self {
        Self { name, version: version.map(|version| version.to_string()), state, reason }
    }
}

/// Options of an index request.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct IndexRequest {
    /// Only versions that are ready.
    pub ready: bool,
}

/// Options of a load.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct LoadRequest {
    /// A model config in JSON, in place of the repository's.
    pub config: Option<String>,
    /// Names of the files sent along (`file:<version>/<file>`, without `file:`); their contents are dropped.
    pub files: Vec<String>,
}

/// Options of an unload.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct UnloadRequest {
    /// Models that this one feeds are to be unloaded too.
    pub unload_dependents: bool,
}

impl IndexRequest {
    /// Reads `{}`, `{"ready": bool}` or, as tritonclient sends it, an empty body.
    pub fn decode(body: &[u8]) -> Result<Self, ProtocolError> {
        read(body)
    }
}

impl LoadRequest {
    /// Reads `{"parameters": {...}}` or an empty body.
    pub fn decode(body: &[u8]) -> Result<Self, ProtocolError> {
        read(body).map(|ParametersWrapper(request)| request)
    }

    /// Refuses a load with anything that a caller sent: models come from the repository.
    pub fn check(&self, model: &ModelName) -> Result<(), ApiError> {
        let files = self.files.iter().map(String::as_str);
        let sent: BTreeSet<&str> = files.chain(self.config.as_ref().map(|_| "config")).collect();
        if sent.is_empty() {
            return Ok(());
        }
        let sent: Vec<_> = sent.into_iter().collect();
        let message = format!(
            "cannot load '{model}' with {}: configs and files cannot be sent; put them into the model repository",
            sent.join(", ")
        );
        Err(ApiError::new(StatusCode::BAD_REQUEST, message))
    }
}

impl UnloadRequest {
    /// Reads `{"parameters": {"unload_dependents": bool}}` or an empty body.
    pub fn decode(body: &[u8]) -> Result<Self, ProtocolError> {
        read(body).map(|ParametersWrapper(request)| request)
    }
}

fn read<'de, T: ObjectFields<'de> + Default>(body: &'de [u8]) -> Result<T, ProtocolError> {
    let mut request = T::default();
    if !body.trim_ascii().is_empty() {
        object::read(body, &mut request)?;
    }
    Ok(request)
}

/// A request with all of its fields in "parameters".
#[derive(Default)]
struct ParametersWrapper<T>(T);

impl<'de, T: ObjectFields<'de>> ObjectFields<'de> for ParametersWrapper<T> {
    const EXPECTED: &'static str = "an object with 'parameters'";

    fn field<A: MapAccess<'de>>(&mut self, key: &str, map: &mut A) -> Result<(), A::Error> {
        match key {
            "parameters" => named(key, map.next_value_seed(NullableSeed(ObjectSeed(&mut self.0)))).map(|_| ()),
            _ => map.next_value::<IgnoredAny>().map(|_| ()),
        }
    }
}

impl<'de> ObjectFields<'de> for IndexRequest {
    const EXPECTED: &'static str = "an index request object";

    fn field<A: MapAccess<'de>>(&mut self, key: &str, map: &mut A) -> Result<(), A::Error> {
        match key {
            "ready" => self.ready = named(key, map.next_value())?,
            _ => drop(map.next_value::<IgnoredAny>()?),
        }
        Ok(())
    }
}

impl<'de> ObjectFields<'de> for LoadRequest {
    const EXPECTED: &'static str = "an object of parameters";

    fn field<A: MapAccess<'de>>(&mut self, key: &str, map: &mut A) -> Result<(), A::Error> {
        if key == "config" {
            self.config = Some(named(key, map.next_value())?);
        } else if let Some(file) = key.strip_prefix("file:") {
            self.files.push(file.to_owned());
            map.next_value::<IgnoredAny>()?;
        } else {
            named(key, map.next_value::<ParameterValue>())?;
        }
        Ok(())
    }
}

impl<'de> ObjectFields<'de> for UnloadRequest {
    const EXPECTED: &'static str = "an object of parameters";

    fn field<A: MapAccess<'de>>(&mut self, key: &str, map: &mut A) -> Result<(), A::Error> {
        match key {
            "unload_dependents" => self.unload_dependents = named(key, map.next_value())?,
            _ => drop(named(key, map.next_value::<ParameterValue>())?),
        }
        Ok(())
    }
}

/// Puts the key in front of the reason why its value is refused.
fn named<T, E: Error>(key: &str, result: Result<T, E>) -> Result<T, E> {
    result.map_err(|error| E::custom(format_args!("'{}': {}", excerpt(key), in_json(&error.to_string()))))
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn every_request_may_have_no_body() {
        for body in [&b""[..], b"{}", b" \r\n", br#"{"unknown": [1]}"#] {
            assert_eq!(IndexRequest::decode(body), Ok(IndexRequest::default()));
            assert_eq!(LoadRequest::decode(body), Ok(LoadRequest::default()));
            assert_eq!(UnloadRequest::decode(body), Ok(UnloadRequest::default()));
        }
    }

    #[test]
    fn what_is_asked_is_read() {
        assert_eq!(IndexRequest::decode(br#"{"ready": true}"#), Ok(IndexRequest { ready: true }));
        let body = br#"{"parameters": {"config": "{}", "file:1/model.onnx": "AAAA", "x": 1}}"#;
        let expected = LoadRequest { config: Some("{}".into()), files: vec!["1/model.onnx".into()] };
        assert_eq!(LoadRequest::decode(body), Ok(expected));
        let body = br#"{"parameters": {"unload_dependents": true}}"#;
        assert_eq!(UnloadRequest::decode(body), Ok(UnloadRequest { unload_dependents: true }));
        assert_eq!(UnloadRequest::decode(br#"{"parameters": null}"#), Ok(UnloadRequest::default()));
    }

    #[test]
    fn a_wrong_value_is_named() {
        let error = IndexRequest::decode(br#"{"ready": 1}"#).unwrap_err();
        assert_eq!(error.status(), 400);
        assert!(error.to_string().contains("'ready': expected true or false, got 1"), "{error}");
        for body in
            [&b"["[..], b"[]", b"[true]", br#"{"parameters": [1]}"#, br#"{"parameters": {"config": 1}}"#, b"\xff"]
        {
            assert!(LoadRequest::decode(body).is_err(), "{}", String::from_utf8_lossy(body));
        }
    }

    #[test]
    fn an_index_row_leaves_out_what_it_does_not_know() {
        let name: ModelName = "mlp".parse().unwrap();
        let row = RepositoryIndexRow::new(name.clone(), None, ModelState::Unknown, None);
        assert_eq!(serde_json::to_value(row).unwrap(), json!({"name": "mlp", "state": "UNKNOWN"}));
        let version = ModelVersion::try_from(2).unwrap();
        let row = RepositoryIndexRow::new(name, Some(version), ModelState::Unavailable, Some("unloaded".into()));
        let expected = json!({"name": "mlp", "version": "2", "state": "UNAVAILABLE", "reason": "unloaded"});
        assert_eq!(serde_json::to_value(row).unwrap(), expected);
    }
}
