//! The protocol's documents about servers and models, as plain data; constructors take plain values.
//!
//! Key order and texts are those of Triton, which its clients and `perf_analyzer` were written against.

mod model_config;
mod of_box;
mod repository;
mod statistics;

use std::collections::BTreeMap;

use ledge_base::names::{ModelName, ModelVersion};
use ledge_engine::backend::ModelPort;
use serde::Serialize;

pub use model_config::{
    ModelResponseCache, TritonDynamicBatching, TritonInputConfig, TritonInstanceGroup, TritonModelConfig,
    TritonModelParameter, TritonOutputConfig, TritonQueuePolicy, TritonTimeoutAction, TritonVersionPolicy,
    config_datatype,
};
pub use of_box::{config_of, index, of_model, of_server, statistics_of};
pub use repository::{IndexRequest, LoadRequest, ModelState, RepositoryIndexRow, UnloadRequest};
pub use statistics::{
    BatchStatistics, DurationStatistic, InferenceStatistics, MemoryUsage, ModelStatistics, ResponseStatistics,
    StatisticsReply,
};

/// `GET /v2`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct ServerMetadata {
    /// The name of the server.
    pub name: String,
    pub version: String,
    /// The extensions it speaks.
    pub extensions: Vec<String>,
    /// The cores that run inferences: twice as many calls in flight keep the server busy. A member of Ledge's own.
    pub inference_cores: usize,
}

impl ServerMetadata {
    /// The metadata of a server.
    pub fn new(name: &str, version: &str, extensions: &[&str], inference_cores: usize) -> Self {
        let extensions = extensions.iter().map(|&extension| extension.to_owned()).collect();
        Self { name: name.into(), version: version.into(), extensions, inference_cores }
    }
}

/// `GET /v2/health/live`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
pub struct LiveResponse {
    pub live: bool,
}

/// `GET /v2/health/ready` and `GET /v2/models/{model}[/versions/{version}]/ready`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
pub struct ReadyResponse<'a> {
    /// The model; `None` for the server.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub name: Option<&'a ModelName>,
    pub ready: bool,
}

/// `GET /v2/models/{model}[/versions/{version}]`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct ModelMetadata {
    pub name: ModelName,
    /// Its versions that answer requests, as strings.
    pub versions: Vec<String>,
    /// The platform that runs it, such as `onnxruntime_onnx`.
    pub platform: String,
    /// The inputs; -1 is a variable dimension, the batch is included.
    pub inputs: Vec<ModelPort>,
    pub outputs: Vec<ModelPort>,
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub properties: BTreeMap<String, String>,
}

impl ModelMetadata {
    /// The metadata of a model, without properties.
    pub fn new(
        name: ModelName,
        versions: &[ModelVersion],
        platform: &str,
        inputs: Vec<ModelPort>,
        outputs: Vec<ModelPort>,
    ) -> Self {
        let versions = versions.iter().map(ModelVersion::to_string).collect();
        Self { name, versions, platform: platform.into(), inputs, outputs, properties: BTreeMap::new() }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use ledge_base::tensor::DataType;

    #[test]
    fn metadata_has_the_protocols_keys() {
        let server = ServerMetadata::new("ledge", "0.1.0", &["statistics"], 4);
        assert_eq!(
            serde_json::to_string(&server).unwrap(),
            r#"{"name":"ledge","version":"0.1.0","extensions":["statistics"],"inference_cores":4}"#
        );
        let port = |name: &str| ModelPort { name: name.into(), datatype: DataType::Fp32, shape: vec![-1, 16] };
        let version = ModelVersion::try_from(3).unwrap();
        let name = "mlp".parse().unwrap();
        let mut model = ModelMetadata::new(name, &[version], "onnxruntime_onnx", vec![port("IN")], vec![port("OUT")]);
        let tensor = |name: &str| json!({"name": name, "datatype": "FP32", "shape": [-1, 16]});
        let mut expected = json!({
            "name": "mlp", "versions": ["3"], "platform": "onnxruntime_onnx",
            "inputs": [tensor("IN")], "outputs": [tensor("OUT")],
        });
        assert_eq!(serde_json::to_value(&model).unwrap(), expected);
        model.properties.insert("license".into(), "MIT".into());
        expected["properties"] = json!({"license": "MIT"});
        assert_eq!(serde_json::to_value(&model).unwrap(), expected);
    }
}
