//! The documents about the models of this box, for every interface.

use std::collections::BTreeMap;
use std::time;

use ledge_base::names::ModelName;
use ledge_engine::backend::{ModelPort, Runtime};
use ledge_engine::pipeline::kind::PipelineSection;
use ledge_models::repository::model_config::{self, PortConfig};
use ledge_models::repository::statistics::{BatchTotals, CountAndTime, VersionCounters};
use ledge_models::repository::{LoadedModel, PinError, VersionState};
use ledge_models::scheduling::terms::Priority;
use ledge_models::serving::{Serving, join_keys};

use super::super::row_answers::csv_cell;
use super::{
    BatchStatistics, DurationStatistic, InferenceStatistics, MemoryUsage, ModelMetadata, ModelResponseCache,
    ModelState, ModelStatistics, RepositoryIndexRow, ServerMetadata, TritonDynamicBatching, TritonInputConfig,
    TritonInstanceGroup, TritonModelConfig, TritonModelParameter, TritonOutputConfig, TritonQueuePolicy,
    TritonTimeoutAction, TritonVersionPolicy,
};

/// The extensions of the protocol that every interface has.
const EXTENSIONS: [&str; 6] =
    ["model_repository", "statistics", "model_configuration", "binary_tensor_data", "classification", "parameters"];

/// The metadata of this server.
pub fn of_server(serving: &Serving) -> ServerMetadata {
    let inference_cores = serving.repository().engine().cores().len();
    ServerMetadata::new("ledge", env!("CARGO_PKG_VERSION"), &EXTENSIONS, inference_cores)
}

/// The metadata of a model: of this version, with all versions that are live.
pub fn of_model(serving: &Serving, model: &LoadedModel) -> Result<ModelMetadata, PinError> {
    let versions: Vec<_> = serving.repository().live(&model.name)?.iter().map(|live| live.version).collect();
    let (inputs, outputs) = (model.signature.inputs.clone(), model.signature.outputs.clone());
    let mut metadata = ModelMetadata::new(model.name.clone(), &versions, platform(model.runtime()), inputs, outputs);
    metadata.properties = properties(serving, model);
    Ok(metadata)
}

/// The kind of the pipeline, the columns of its rows as a line of CSV, the features that inputs are made of, as
/// `features.INPUT`, and the join keys to send instead of these inputs.
///
/// Join keys are not listed as inputs, because clients that build their requests from that list, such as
/// `perf_analyzer`, would send them in addition to all inputs.
fn properties(serving: &Serving, model: &LoadedModel) -> BTreeMap<String, String> {
    let listed = |port: &PortConfig| {
        let features: Vec<&str> = port.features.iter().map(|feature| feature.feature.as_str()).collect();
        (format!("features.{}", port.name), features.join(","))
    };
    let mut properties: BTreeMap<String, String> = model.config.feature_inputs().map(listed).collect();
    if !properties.is_empty() {
        let keys = join_keys(model, &serving.features().registry());
        properties.insert("join_keys".into(), keys.into_iter().collect::<Vec<_>>().join(","));
    }
    if let Some(pipeline) = &model.pipeline {
        properties.insert("pipeline".into(), pipeline.kind().name.to_owned());
    }
    let columns = model.config.pipeline.section().map(PipelineSection::columns).unwrap_or_default();
    if !columns.is_empty() {
        properties.insert("columns".into(), columns.into_iter().map(csv_cell).collect::<Vec<_>>().join(","));
    }
    let scale = model.scale();
    properties.insert("threads".into(), scale.threads.to_string());
    properties.insert("instances".into(), scale.max.to_string());
    if let Some(profile) = &model.profile {
        properties.insert("profile".into(), profile.to_string());
    }
    properties
}

/// The name of a runtime in the metadata of Triton and OpenVINO Model Server.
fn platform(runtime: Runtime) -> &'static str {
    match runtime {
        Runtime::OnnxRuntime => "onnxruntime_onnx",
        Runtime::OpenVino => "OpenVINO",
    }
}

/// The model config in Triton's form.
pub fn config_of(serving: &Serving, model: &LoadedModel) -> TritonModelConfig {
    let (name, runtime) = (model.name.clone(), model.runtime());
    let mut config = TritonModelConfig::new(name.clone(), platform(runtime), runtime.as_str());
    config.max_batch_size = model.batch_limit.unwrap_or(0) as u64;
    config.version_policy = match &model.config.version_policy {
        model_config::VersionPolicy::Latest(count) => {
            TritonVersionPolicy::Latest { num_versions: u32::try_from(*count).unwrap_or(u32::MAX) }
        }
        model_config::VersionPolicy::All => TritonVersionPolicy::All {},
        model_config::VersionPolicy::Specific(versions) => TritonVersionPolicy::Specific { versions: versions.clone() },
    };

    // With a batch size, Triton omits the batch dimension.
    let dims = |port: &ModelPort| port.shape.iter().skip(usize::from(model.batch_limit.is_some())).copied().collect();
    let inputs = model.signature.inputs.iter();
    let is_made = |port: &ModelPort| model.config.feature_inputs().any(|input| input.name == port.name);
    config.input = inputs
        .map(|port| TritonInputConfig {
            optional: is_made(port),
            ..TritonInputConfig::new(&port.name, port.datatype, dims(port))
        })
        .collect();

    let properties = properties(serving, model).into_iter();
    config.parameters = properties.map(|(name, string_value)| (name, TritonModelParameter { string_value })).collect();
    let label_file = |port: &ModelPort| {
        let declared = model.config.output.iter().find(|output| output.name == port.name);
        declared.and_then(|output| output.labels.clone()).unwrap_or_default()
    };
    let outputs = model.signature.outputs.iter();
    config.output = outputs
        .map(|port| TritonOutputConfig {
            label_filename: label_file(port),
            ..TritonOutputConfig::new(&port.name, port.datatype, dims(port))
        })
        .collect();

    config.instance_group = vec![TritonInstanceGroup::cpu(&name, u32::try_from(model.scale().max).unwrap_or(u32::MAX))];
    config.dynamic_batching = model.batching().map(|policy| TritonDynamicBatching {
        preferred_batch_size: policy.preferred.iter().map(|&size| size as u64).collect(),
        max_queue_delay_microseconds: microseconds(policy.delay),
        preserve_ordering: false,
        priority_levels: Priority::ALL.len() as u64,
        default_priority_level: 1,
        default_queue_policy: TritonQueuePolicy {
            timeout_action: TritonTimeoutAction::Reject,
            default_timeout_microseconds: microseconds(model.timeout),
            allow_timeout_override: true,
            max_queue_size: model.queue_limit() as u64,
        },
    });
    config.response_cache = model.config.response_cache.enable.then_some(ModelResponseCache { enable: true });
    config
}

fn microseconds(time: time::Duration) -> u64 {
    u64::try_from(time.as_micros()).unwrap_or(u64::MAX)
}

/// The statistics of one version.
pub fn statistics_of(model: &LoadedModel) -> ModelStatistics {
    statistics(model, &model.statistics.snapshot())
}

fn statistics(model: &LoadedModel, counters: &VersionCounters) -> ModelStatistics {
    let duration = |total: CountAndTime| DurationStatistic {
        count: total.count,
        ns: u64::try_from(total.time.as_nanos()).unwrap_or(u64::MAX),
    };
    let batch = |(&size, totals): (&usize, &BatchTotals)| BatchStatistics {
        batch_size: size as u64,
        compute_input: duration(totals.compute_input),
        compute_infer: duration(totals.compute_infer),
        compute_output: duration(totals.compute_output),
    };
    ModelStatistics {
        last_inference: counters.last_inference_ms,
        inference_count: counters.inference_count,
        execution_count: counters.execution_count,
        inference_stats: InferenceStatistics {
            success: duration(counters.success),
            fail: duration(counters.fail),
            queue: duration(counters.queue),
            compute_input: duration(counters.compute.compute_input),
            compute_infer: duration(counters.compute.compute_infer),
            compute_output: duration(counters.compute.compute_output),
            cache_hit: duration(counters.cache_hit),
            cache_miss: duration(counters.cache_miss),
        },
        batch_stats: counters.batches.iter().map(batch).collect(),
        memory_usage: model
            .memory_bytes()
            .map(|byte_size| MemoryUsage { kind: "CPU", id: 0, byte_size })
            .into_iter()
            .collect(),
        ..ModelStatistics::new(model.name.clone(), model.version)
    }
}

/// The models of the repository that a caller may see, a row for each version; only those that are ready if `ready` is
/// set.
pub fn index(serving: &Serving, ready: bool, may_see: impl Fn(&ModelName) -> bool) -> Vec<RepositoryIndexRow> {
    let rows = serving.repository().index().into_iter();
    let rows = rows.filter(|row| may_see(&row.model) && (!ready || row.state == VersionState::Ready));
    rows.map(|row| {
        let (state, reason) = (ModelState::from(&row.state), row.reason());
        RepositoryIndexRow::new(row.model, row.version, state, reason)
    })
    .collect()
}
