//! `GET /v2/models/[{model}[/versions/{version}]/]stats`: the statistics extension of Triton.

use std::collections::BTreeMap;

use ledge_base::names::{ModelName, ModelVersion};
use serde::Serialize;

/// The answer: one entry for each model version.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize)]
pub struct StatisticsReply {
    pub model_stats: Vec<ModelStatistics>,
}

/// Count of an event and its total time, since the daemon started.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize)]
pub struct DurationStatistic {
    pub count: u64,
    /// Nanoseconds altogether.
    pub ns: u64,
}

/// One version of a model.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct ModelStatistics {
    pub name: ModelName,
    /// The version, as a string.
    pub version: String,
    /// Time of its last answer, in milliseconds since 1970; 0 is never.
    pub last_inference: u64,
    /// Batch elements that were run, without cache hits.
    pub inference_count: u64,
    /// Batches run, cache hits left out. `inference_count / execution_count` is the average batch.
    pub execution_count: u64,
    /// Requests, by outcome.
    pub inference_stats: InferenceStatistics,
    /// For models that answer more than once. Always empty, because Ledge has no models of this kind.
    pub response_stats: BTreeMap<String, ResponseStatistics>,
    /// Executions, by batch size.
    pub batch_stats: Vec<BatchStatistics>,
    /// Memory by device, where it is known.
    pub memory_usage: Vec<MemoryUsage>,
}

impl ModelStatistics {
    /// The statistics of a version without requests yet.
    pub fn new(name: ModelName, version: ModelVersion) -> Self {
        Self {
            name,
            version: version.to_string(),
            last_inference: 0,
            inference_count: 0,
            execution_count: 0,
            inference_stats: InferenceStatistics::default(),
            response_stats: BTreeMap::new(),
            batch_stats: Vec::new(),
            memory_usage: Vec::new(),
        }
    }
}

/// Requests, by outcome. `success` and `queue` include cache hits, the computing times do not.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize)]
pub struct InferenceStatistics {
    /// Answered, end to end.
    pub success: DurationStatistic,
    /// Failed, end to end.
    pub fail: DurationStatistic,
    pub queue: DurationStatistic,
    pub compute_input: DurationStatistic,
    pub compute_infer: DurationStatistic,
    pub compute_output: DurationStatistic,
    /// Answered from the cache.
    pub cache_hit: DurationStatistic,
    /// Not found in the cache, and inserted.
    pub cache_miss: DurationStatistic,
}

/// Responses of a model that answers more than once.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize)]
pub struct ResponseStatistics {
    pub compute_infer: DurationStatistic,
    pub compute_output: DurationStatistic,
    pub success: DurationStatistic,
    pub fail: DurationStatistic,
    /// Responses without outputs.
    pub empty_response: DurationStatistic,
    /// Responses that no caller waited for.
    pub cancel: DurationStatistic,
}

/// Executions of one batch size.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize)]
pub struct BatchStatistics {
    /// Elements in the batch.
    pub batch_size: u64,
    pub compute_input: DurationStatistic,
    pub compute_infer: DurationStatistic,
    pub compute_output: DurationStatistic,
}

/// Memory of a model on one device.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct MemoryUsage {
    /// Always `CPU` here.
    #[serde(rename = "type")]
    pub kind: &'static str,
    pub id: u64,
    /// Bytes.
    pub byte_size: u64,
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn statistics_have_tritons_shape() {
        let mut model = ModelStatistics::new("mlp".parse().unwrap(), ModelVersion::try_from(1).unwrap());
        model.inference_stats.success = DurationStatistic { count: 2, ns: 3000 };
        model.batch_stats.push(BatchStatistics { batch_size: 1, ..BatchStatistics::default() });
        let none = json!({"count": 0, "ns": 0});
        let expected = json!({"model_stats": [{
            "name": "mlp", "version": "1", "last_inference": 0, "inference_count": 0, "execution_count": 0,
            "inference_stats": {
                "success": {"count": 2, "ns": 3000}, "fail": none, "queue": none, "compute_input": none,
                "compute_infer": none, "compute_output": none, "cache_hit": none, "cache_miss": none,
            },
            "response_stats": {},
            "batch_stats": [
                {"batch_size": 1, "compute_input": none, "compute_infer": none, "compute_output": none},
            ],
            "memory_usage": [],
        }]});
        assert_eq!(serde_json::to_value(StatisticsReply { model_stats: vec![model] }).unwrap(), expected);
    }
}
