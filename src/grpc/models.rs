//! Metadata, config, statistics and the model repository, as the documents of HTTP have them.

use std::sync::Arc;

use axum::extract::{Request, State};
use axum::response::Response;
use ledge_engine::backend::ModelPort;
use ledge_models::repository::LoadedModel;
use ledge_part::api_error::ApiError;
use ledge_protocol::ModelTarget;
use ledge_protocol::metadata::{self, LoadRequest, TritonTimeoutAction, TritonVersionPolicy};

use super::call::{UnaryCall, unary};
use super::messages::model_config::SchedulingChoice;
use super::messages::model_instance_group::Kind;
use super::messages::model_metadata_response::TensorMetadata;
use super::messages::model_queue_policy::TimeoutAction as TimeoutActionMessage;
use super::messages::model_version_policy::{All, Latest, PolicyChoice, Specific};
use super::messages::repository_index_response::ModelIndex;
use super::messages::{
    DataType, InferBatchStatistics, InferStatistics, MemoryUsage, ModelConfig, ModelConfigRequest, ModelConfigResponse,
    ModelDynamicBatching, ModelInput, ModelInstanceGroup, ModelMetadataRequest, ModelMetadataResponse, ModelOutput,
    ModelParameter, ModelQueuePolicy, ModelReadyRequest, ModelReadyResponse, ModelResponseCache, ModelStatistics,
    ModelStatisticsRequest, ModelStatisticsResponse, ModelVersionPolicy, RepositoryIndexRequest,
    RepositoryIndexResponse, RepositoryModelLoadRequest, RepositoryModelLoadResponse, RepositoryModelUnloadRequest,
    RepositoryModelUnloadResponse, ServerMetadataRequest, ServerMetadataResponse, StatisticDuration,
};
use super::methods::GrpcMethodsState;

/// The parameters of a load for the config and the files.
const CONFIG_PARAMETER: &str = "config";
const FILE_PARAMETER: &str = "file:";

/// `ServerMetadata`.
pub async fn server_metadata(State(methods): State<GrpcMethodsState>, request: Request) -> Response {
    let answer = |call: UnaryCall, _: ServerMetadataRequest| async move {
        let metadata::ServerMetadata { name, version, extensions, .. } = metadata::of_server(call.methods.serving());
        Ok(ServerMetadataResponse { name, version, extensions })
    };
    unary(methods, request, answer).await
}

/// `ModelReady`: false for a model that does not exist, too, as in Triton.
pub async fn model_ready(State(methods): State<GrpcMethodsState>, request: Request) -> Response {
    let answer = |call: UnaryCall, request: ModelReadyRequest| async move {
        let target = target(&call, &request.name, &request.version)?;
        let pinned = call.methods.serving().repository().pin(&target.model, target.version);
        Ok(ModelReadyResponse { ready: pinned.is_ok_and(|model| model.fault().is_none()) })
    };
    unary(methods, request, answer).await
}

/// `ModelMetadata`.
pub async fn model_metadata(State(methods): State<GrpcMethodsState>, request: Request) -> Response {
    let answer = |call: UnaryCall, request: ModelMetadataRequest| async move {
        let model = pin(&call, &request.name, &request.version)?;
        let document = metadata::of_model(call.methods.serving(), &model)?;
        let tensor = |port: ModelPort| {
            let ModelPort { name, datatype, shape } = port;
            TensorMetadata { name, datatype: datatype.to_string(), shape }
        };
        Ok(ModelMetadataResponse {
            name: document.name.to_string(),
            versions: document.versions,
            platform: document.platform,
            inputs: document.inputs.into_iter().map(tensor).collect(),
            outputs: document.outputs.into_iter().map(tensor).collect(),
            properties: document.properties.into_iter().collect(),
        })
    };
    unary(methods, request, answer).await
}

/// `ModelConfig`.
pub async fn model_config(State(methods): State<GrpcMethodsState>, request: Request) -> Response {
    let answer = |call: UnaryCall, request: ModelConfigRequest| async move {
        let model = pin(&call, &request.name, &request.version)?;
        let config = config(metadata::config_of(call.methods.serving(), &model));
        Ok(ModelConfigResponse { config: Some(config) })
    };
    unary(methods, request, answer).await
}

/// `ModelStatistics`: of one version, of all live versions of a model, or of every model.
pub async fn model_statistics(State(methods): State<GrpcMethodsState>, request: Request) -> Response {
    let answer = |call: UnaryCall, request: ModelStatisticsRequest| async move {
        let (caller, repository) = (call.caller()?, call.methods.serving().repository());
        let models = match (request.name.as_str(), request.version.as_str()) {
            ("", _) => {
                let mut all = repository.all_live();
                all.retain(|model| caller.access.has_model(&model.name));
                all
            }
            (name, "") => repository.live(&pin(&call, name, "")?.name)?,
            (name, version) => vec![pin(&call, name, version)?],
        };
        Ok(ModelStatisticsResponse { model_stats: models.iter().map(|model| statistics(model)).collect() })
    };
    unary(methods, request, answer).await
}

/// `RepositoryIndex`.
pub async fn repository_index(State(methods): State<GrpcMethodsState>, request: Request) -> Response {
    let answer = |call: UnaryCall, request: RepositoryIndexRequest| async move {
        let caller = call.caller()?;
        let rows = metadata::index(call.methods.serving(), request.ready, |model| caller.access.has_model(model));
        let row = |row: metadata::RepositoryIndexRow| ModelIndex {
            name: row.name.to_string(),
            version: row.version.unwrap_or_default(),
            state: row.state.as_str().to_owned(),
            reason: row.reason.unwrap_or_default(),
        };
        Ok(RepositoryIndexResponse { models: rows.into_iter().map(row).collect() })
    };
    unary(methods, request, answer).await
}

/// `RepositoryModelLoad`.
pub async fn load(State(methods): State<GrpcMethodsState>, request: Request) -> Response {
    let answer = |call: UnaryCall, request: RepositoryModelLoadRequest| async move {
        let name = model_of(request.model_name, request.repository_name);
        let model = target(&call, &name, "")?.model;
        let files = request.parameters.keys().filter_map(|name| name.strip_prefix(FILE_PARAMETER));
        let wanted = LoadRequest {
            config: request.parameters.get(CONFIG_PARAMETER).map(|_| String::new()),
            files: files.map(str::to_owned).collect(),
        };
        wanted.check(&model)?;
        let (serving, principal) = (call.methods.serving().clone(), call.caller()?.principal.clone());
        let load = async move {
            let loaded = serving.repository().load(&model, &principal).await;
            loaded.inspect(|()| serving.warn_of_undeclared_features(Some(&model)))
        };
        call.methods.context().run_to_completion(load).await??;
        Ok(RepositoryModelLoadResponse { model_name: name, is_loaded: true })
    };
    unary(methods, request, answer).await
}

/// `RepositoryModelUnload`.
pub async fn unload(State(methods): State<GrpcMethodsState>, request: Request) -> Response {
    let answer = |call: UnaryCall, request: RepositoryModelUnloadRequest| async move {
        let name = model_of(request.model_name, request.repository_name);
        let model = target(&call, &name, "")?.model;
        let (repository, principal) = (call.methods.serving().repository().clone(), call.caller()?.principal.clone());
        call.methods.context().run_to_completion(async move { repository.unload(&model, &principal).await }).await??;
        Ok(RepositoryModelUnloadResponse { model_name: name, is_unloaded: true })
    };
    unary(methods, request, answer).await
}

/// The model to load or unload. KServe's clients send its name where Triton's send that of a repository.
fn model_of(model: String, repository: String) -> String {
    if model.is_empty() { repository } else { model }
}

/// The model and version of a request, which the caller may use.
fn target(call: &UnaryCall, name: &str, version: &str) -> Result<ModelTarget, ApiError> {
    let target = ModelTarget::parse(name, Some(version).filter(|version| !version.is_empty()))?;
    call.methods.check_model(call.caller()?, &target.model)?;
    Ok(target)
}

fn pin(call: &UnaryCall, name: &str, version: &str) -> Result<Arc<LoadedModel>, ApiError> {
    let ModelTarget { model, version } = target(call, name, version)?;
    Ok(call.methods.serving().repository().pin(&model, version)?)
}

fn config(config: metadata::TritonModelConfig) -> ModelConfig {
    let policy = match config.version_policy {
        TritonVersionPolicy::Latest { num_versions } => PolicyChoice::Latest(Latest { num_versions }),
        TritonVersionPolicy::All {} => PolicyChoice::All(All {}),
        TritonVersionPolicy::Specific { versions } => {
            let versions = versions.iter().filter_map(|version| i64::try_from(version.get()).ok()).collect();
            PolicyChoice::Specific(Specific { versions })
        }
    };
    let batching = |batching: metadata::TritonDynamicBatching| {
        let policy = batching.default_queue_policy;
        let timeout_action = match policy.timeout_action {
            TritonTimeoutAction::Reject => TimeoutActionMessage::Reject,
            TritonTimeoutAction::Delay => TimeoutActionMessage::Delay,
        };
        SchedulingChoice::DynamicBatching(ModelDynamicBatching {
            preferred_batch_size: batching.preferred_batch_size.into_iter().map(int32).collect(),
            max_queue_delay_microseconds: batching.max_queue_delay_microseconds,
            preserve_ordering: batching.preserve_ordering,
            priority_levels: batching.priority_levels,
            default_priority_level: batching.default_priority_level,
            default_queue_policy: Some(ModelQueuePolicy {
                timeout_action: timeout_action.into(),
                default_timeout_microseconds: policy.default_timeout_microseconds,
                allow_timeout_override: policy.allow_timeout_override,
                max_queue_size: u32::try_from(policy.max_queue_size).unwrap_or(u32::MAX),
            }),
        })
    };
    let data_type = |name: &str| DataType::from_str_name(name).unwrap_or(DataType::TypeInvalid).into();
    ModelConfig {
        name: config.name.to_string(),
        platform: config.platform,
        backend: config.backend,
        version_policy: Some(ModelVersionPolicy { policy_choice: Some(policy) }),
        max_batch_size: int32(config.max_batch_size),
        input: config
            .input
            .into_iter()
            .map(|input| ModelInput {
                name: input.name,
                data_type: data_type(input.data_type),
                dims: input.dims,
                optional: input.optional,
            })
            .collect(),
        output: config
            .output
            .into_iter()
            .map(|output| ModelOutput {
                name: output.name,
                data_type: data_type(output.data_type),
                dims: output.dims,
                label_filename: output.label_filename,
            })
            .collect(),
        instance_group: config
            .instance_group
            .into_iter()
            .map(|group| ModelInstanceGroup {
                name: group.name,
                count: int32(group.count.into()),
                kind: Kind::Cpu.into(),
            })
            .collect(),
        default_model_filename: config.default_model_filename,
        scheduling_choice: config.dynamic_batching.map(batching),
        parameters: config
            .parameters
            .into_iter()
            .map(|(name, parameter)| (name, ModelParameter { string_value: parameter.string_value }))
            .collect(),
        response_cache: config.response_cache.map(|cache| ModelResponseCache { enable: cache.enable }),
    }
}

fn int32(number: u64) -> i32 {
    i32::try_from(number).unwrap_or(i32::MAX)
}

fn statistics(model: &LoadedModel) -> ModelStatistics {
    let duration =
        |duration: metadata::DurationStatistic| Some(StatisticDuration { count: duration.count, ns: duration.ns });
    let statistics = metadata::statistics_of(model);
    let totals = statistics.inference_stats;
    let batch = |batch: metadata::BatchStatistics| InferBatchStatistics {
        batch_size: batch.batch_size,
        compute_input: duration(batch.compute_input),
        compute_infer: duration(batch.compute_infer),
        compute_output: duration(batch.compute_output),
    };
    let usage = |usage: metadata::MemoryUsage| MemoryUsage {
        r#type: usage.kind.to_owned(),
        id: i64::try_from(usage.id).unwrap_or(i64::MAX),
        byte_size: usage.byte_size,
    };
    ModelStatistics {
        name: statistics.name.to_string(),
        version: statistics.version,
        last_inference: statistics.last_inference,
        inference_count: statistics.inference_count,
        execution_count: statistics.execution_count,
        inference_stats: Some(InferStatistics {
            success: duration(totals.success),
            fail: duration(totals.fail),
            queue: duration(totals.queue),
            compute_input: duration(totals.compute_input),
            compute_infer: duration(totals.compute_infer),
            compute_output: duration(totals.compute_output),
            cache_hit: duration(totals.cache_hit),
            cache_miss: duration(totals.cache_miss),
        }),
        batch_stats: statistics.batch_stats.into_iter().map(batch).collect(),
        memory_usage: statistics.memory_usage.into_iter().map(usage).collect(),
    }
}
