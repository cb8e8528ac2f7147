//! `GET /v2/models/{model}[/versions/{version}]/config`: the model config as Triton writes it in JSON.
//!
//! `perf_analyzer` stops without it. It reads `max_batch_size`, each input's `optional` and `is_shape_tensor`, each
//! output's `is_shape_tensor`, `response_cache.enable`, and the kind of batching.

use std::collections::BTreeMap;

use ledge_base::names::{ModelName, ModelVersion};
use ledge_base::tensor::DataType;
use serde::Serialize;

/// A model config.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct TritonModelConfig {
    pub name: ModelName,
    /// The platform that runs it, such as `onnxruntime_onnx`.
    pub platform: String,
    /// The backend, such as `onnxruntime`.
    pub backend: String,
    pub version_policy: TritonVersionPolicy,
    /// The most elements of a batch; 0: the model is never batched, and `dims` below have all dimensions.
    pub max_batch_size: u64,
    pub input: Vec<TritonInputConfig>,
    pub output: Vec<TritonOutputConfig>,
    pub instance_group: Vec<TritonInstanceGroup>,
    /// Rule for joining requests into batches; `None`: they are not joined.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub dynamic_batching: Option<TritonDynamicBatching>,
    /// The response cache; `None`: answers are not cached.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub response_cache: Option<ModelResponseCache>,
    /// The name of the model's file.
    pub default_model_filename: String,
    pub parameters: BTreeMap<String, TritonModelParameter>,
}

impl TritonModelConfig {
    /// The config of a model that is not batched and has one instance and no ports yet.
    pub fn new(name: ModelName, platform: &str, backend: &str) -> Self {
        Self {
            instance_group: vec![TritonInstanceGroup::cpu(&name, 1)],
            name,
            platform: platform.into(),
            backend: backend.into(),
            version_policy: TritonVersionPolicy::Latest { num_versions: 1 },
            max_batch_size: 0,
            input: Vec::new(),
            output: Vec::new(),
            dynamic_batching: None,
            response_cache: None,
            default_model_filename: String::new(),
            parameters: BTreeMap::new(),
        }
    }
}

/// The versions of a model that are served.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum TritonVersionPolicy {
    Latest { num_versions: u32 },
    All {},
    Specific { versions: Vec<ModelVersion> },
}

/// An input in a model config.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct TritonInputConfig {
    pub name: String,
    /// Such as `TYPE_FP32`.
    pub data_type: &'static str,
    /// Always `FORMAT_NONE`: nothing is known about the meaning of the dimensions.
    pub format: &'static str,
    /// The dimensions, without the batch if the model is batched; -1 is variable.
    pub dims: Vec<i64>,
    /// Always false: no runtime here has shape tensors.
    pub is_shape_tensor: bool,
    /// Always false: not supported.
    pub allow_ragged_batch: bool,
    /// True when a request may leave it out.
    pub optional: bool,
}

impl TritonInputConfig {
    /// A required input.
    pub fn new(name: &str, datatype: DataType, dims: Vec<i64>) -> Self {
        Self {
            name: name.into(),
            data_type: config_datatype(datatype),
            format: "FORMAT_NONE",
            dims,
            is_shape_tensor: false,
            allow_ragged_batch: false,
            optional: false,
        }
    }
}

/// An output in a model config.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct TritonOutputConfig {
    pub name: String,
    /// Such as `TYPE_FP32`.
    pub data_type: &'static str,
    /// The dimensions, without the batch if the model is batched; -1 is variable.
    pub dims: Vec<i64>,
    /// The file with a label for each class; empty: no file.
    pub label_filename: String,
    /// Always false: no runtime here has shape tensors.
    pub is_shape_tensor: bool,
}

impl TritonOutputConfig {
    /// An output without labels.
    pub fn new(name: &str, datatype: DataType, dims: Vec<i64>) -> Self {
        let label_filename = String::new();
        Self { name: name.into(), data_type: config_datatype(datatype), dims, label_filename, is_shape_tensor: false }
    }
}

/// Instances of a model.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct TritonInstanceGroup {
    pub name: String,
    /// Always `KIND_CPU`.
    pub kind: &'static str,
    pub count: u32,
    /// Always empty.
    pub gpus: [u32; 0],
}

impl TritonInstanceGroup {
    /// `count` instances of `model`.
    pub fn cpu(model: &ModelName, count: u32) -> Self {
        Self { name: model.to_string(), kind: "KIND_CPU", count, gpus: [] }
    }
}

/// Rule for joining requests into batches.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize)]
pub struct TritonDynamicBatching {
    /// Sizes to aim at.
    pub preferred_batch_size: Vec<u64>,
    /// Microseconds that a request may wait for others.
    pub max_queue_delay_microseconds: u64,
    /// True when answers leave in the order of the requests.
    pub preserve_ordering: bool,
    /// The number of priorities; 0: no priorities.
    pub priority_levels: u64,
    /// The priority of a request that has none.
    pub default_priority_level: u64,
    pub default_queue_policy: TritonQueuePolicy,
}

/// Policy of a queue for waiting requests.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize)]
pub struct TritonQueuePolicy {
    /// Action at the timeout.
    pub timeout_action: TritonTimeoutAction,
    /// In microseconds; 0: no timeout.
    pub default_timeout_microseconds: u64,
    /// True when a request may shorten it.
    pub allow_timeout_override: bool,
    /// Requests that may wait; 0 is any number.
    pub max_queue_size: u64,
}

/// Action on a request at its timeout.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize)]
#[serde(rename_all = "UPPERCASE")]
pub enum TritonTimeoutAction {
    #[default]
    Reject,
    /// It waits until all others have been served.
    Delay,
}

/// The response cache of a model.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
pub struct ModelResponseCache {
    pub enable: bool,
}

/// The value of a backend's parameter.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct TritonModelParameter {
    pub string_value: String,
}

/// The name of a datatype in a model config.
pub fn config_datatype(datatype: DataType) -> &'static str {
    match datatype {
        DataType::Bool => "TYPE_BOOL",
        DataType::Uint8 => "TYPE_UINT8",
        DataType::Uint16 => "TYPE_UINT16",
        DataType::Uint32 => "TYPE_UINT32",
        DataType::Uint64 => "TYPE_UINT64",
        DataType::Int8 => "TYPE_INT8",
        DataType::Int16 => "TYPE_INT16",
        DataType::Int32 => "TYPE_INT32",
        DataType::Int64 => "TYPE_INT64",
        DataType::Fp16 => "TYPE_FP16",
        DataType::Bf16 => "TYPE_BF16",
        DataType::Fp32 => "TYPE_FP32",
        DataType::Fp64 => "TYPE_FP64",
        DataType::Bytes => "TYPE_STRING",
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn a_model_config_has_what_perf_analyzer_reads() {
        let mut config = TritonModelConfig::new("mlp".parse().unwrap(), "onnxruntime_onnx", "onnxruntime");
        config.max_batch_size = 8;
        config.input.push(TritonInputConfig::new("IN", DataType::Fp32, vec![-1, 16]));
        config.output.push(TritonOutputConfig::new("OUT", DataType::Bytes, vec![1]));
        config.dynamic_batching =
            Some(TritonDynamicBatching { max_queue_delay_microseconds: 100, ..Default::default() });
        config.response_cache = Some(ModelResponseCache { enable: true });
        config.parameters.insert("threads".into(), TritonModelParameter { string_value: "2".into() });
        let expected = json!({
            "name": "mlp", "platform": "onnxruntime_onnx", "backend": "onnxruntime",
            "version_policy": {"latest": {"num_versions": 1}},
            "max_batch_size": 8,
            "input": [{
                "name": "IN", "data_type": "TYPE_FP32", "format": "FORMAT_NONE", "dims": [-1, 16],
                "is_shape_tensor": false, "allow_ragged_batch": false, "optional": false,
            }],
            "output": [{
                "name": "OUT", "data_type": "TYPE_STRING", "dims": [1], "label_filename": "", "is_shape_tensor": false,
            }],
            "instance_group": [{"name": "mlp", "kind": "KIND_CPU", "count": 1, "gpus": []}],
            "dynamic_batching": {
                "preferred_batch_size": [], "max_queue_delay_microseconds": 100, "preserve_ordering": false,
                "priority_levels": 0, "default_priority_level": 0,
                "default_queue_policy": {
                    "timeout_action": "REJECT", "default_timeout_microseconds": 0, "allow_timeout_override": false,
                    "max_queue_size": 0,
                },
            },
            "response_cache": {"enable": true},
            "default_model_filename": "",
            "parameters": {"threads": {"string_value": "2"}},
        });
        assert_eq!(serde_json::to_value(config).unwrap(), expected);
    }

    #[test]
    fn version_policies_are_written_as_in_triton() {
        let version = ModelVersion::try_from(3).unwrap();
        let policies = [TritonVersionPolicy::All {}, TritonVersionPolicy::Specific { versions: vec![version] }];
        assert_eq!(serde_json::to_value(policies).unwrap(), json!([{"all": {}}, {"specific": {"versions": [3]}}]));
    }
}
