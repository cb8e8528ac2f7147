//! Handlers of models: metadata, readiness, config, statistics, load and unload.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::sync::Arc;

use axum::Extension;
use axum::extract::{Request, State};
use axum::http::StatusCode;
use axum::response::Response;
use ledge_base::names::{InvalidName, ModelVersion};
use ledge_base::principal::Principal;
use ledge_engine::backend::{Port, Runtime};
use ledge_engine::pipeline::kind::PipelineSection;
use ledge_identity::access::Access;
use ledge_models::repository::model_config::{self, PortConfig};
use ledge_models::repository::statistics::{BatchTotals, Counters, Total};
use ledge_models::repository::{LoadedModel, VersionState};
use ledge_models::scheduling::terms::Priority;
use ledge_models::serving::join_keys;
use ledge_part::api_error::ApiError;
use ledge_part::body;
use ledge_part::reply::json;
use ledge_part::route::PathParts;
use ledge_protocol::Target;
use ledge_protocol::metadata::{
    self as documents, BatchStatistics, Duration, DynamicBatching, IndexRequest, IndexRow, InferenceStatistics,
    InputConfig, InstanceGroup, LoadRequest, MemoryUsage, ModelMetadata, ModelParameter, ModelResponseCache,
    ModelState, ModelStatistics, OutputConfig, QueuePolicy, Ready, StatisticsReply, TimeoutAction, UnloadRequest,
    VersionPolicy,
};
use ledge_protocol::row_answers::csv_cell;

use super::App;
use super::reply::not_ready;

/// The model and version in a path. A text that is not a version is answered like an unknown version.
pub fn target(path: &HashMap<String, String>) -> Result<Target, ApiError> {
    let failure = |status, error: InvalidName| ApiError::new(status, error.to_string());
    let model = path.get("model").map_or("", String::as_str).parse();
    let version = path.get("version").map(|text| text.parse::<ModelVersion>()).transpose();
    Ok(Target {
        model: model.map_err(|error| failure(StatusCode::BAD_REQUEST, error))?,
        version: version.map_err(|error| failure(StatusCode::NOT_FOUND, error))?,
    })
}

fn pin(app: &App, path: &HashMap<String, String>) -> Result<Arc<LoadedModel>, ApiError> {
    let Target { model, version } = target(path)?;
    Ok(app.serving().repository().pin(&model, version)?)
}

/// `GET .../ready`: 404 when unknown, 503 when known and not ready.
pub async fn ready(State(app): State<App>, PathParts(path): PathParts) -> Result<Response, ApiError> {
    let Target { model, version } = target(&path)?;
    match app.serving().repository().pin(&model, version) {
        Ok(pinned) if let Some(reason) = pinned.fault() => Ok(not_ready(&reason)),
        Ok(_) => Ok(json(&Ready { name: Some(&model), ready: true })),
        Err(error) if error.is_known() => Ok(not_ready(&error.to_string())),
        Err(error) => Err(error.into()),
    }
}

/// `GET /v2/models/{model}[/versions/{version}]`.
pub async fn metadata(State(app): State<App>, PathParts(path): PathParts) -> Result<Response, ApiError> {
    let model = pin(&app, &path)?;
    let versions: Vec<_> = app.serving().repository().live(&model.name)?.iter().map(|live| live.version).collect();
    let (inputs, outputs) = (model.signature.inputs.clone(), model.signature.outputs.clone());
    let mut metadata = ModelMetadata::new(model.name.clone(), &versions, platform(model.runtime()), inputs, outputs);
    metadata.properties = properties(&app, &model);
    Ok(json(&metadata))
}

/// The kind of the pipeline, the columns of its rows as a line of CSV, the features that inputs are made of, as
/// `features.INPUT`, and the join keys to send instead of such inputs.
///
/// Join keys are not listed as inputs: clients that make up their requests from that list, as `perf_analyzer` does,
/// would send them besides everything else.
fn properties(app: &App, model: &LoadedModel) -> BTreeMap<String, String> {
    let listed = |port: &PortConfig| {
        let features: Vec<&str> = port.features.iter().map(|feature| feature.feature.as_str()).collect();
        (format!("features.{}", port.name), features.join(","))
    };
    let mut properties: BTreeMap<String, String> = model.config.feature_inputs().map(listed).collect();
    if !properties.is_empty() {
        let keys = join_keys(model, &app.serving().features().registry());
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

/// `GET .../config`: the model config in Triton's form.
pub async fn config(State(app): State<App>, PathParts(path): PathParts) -> Result<Response, ApiError> {
    let model = pin(&app, &path)?;
    let (name, runtime) = (model.name.clone(), model.runtime());
    let mut config = documents::ModelConfig::new(name.clone(), platform(runtime), runtime.as_str());
    config.max_batch_size = model.batch_limit.unwrap_or(0) as u64;
    config.version_policy = match &model.config.version_policy {
        model_config::VersionPolicy::Latest(count) => {
            VersionPolicy::Latest { num_versions: u32::try_from(*count).unwrap_or(u32::MAX) }
        }
        model_config::VersionPolicy::All => VersionPolicy::All {},
        model_config::VersionPolicy::Specific(versions) => VersionPolicy::Specific { versions: versions.clone() },
    };

    // With a batch size, Triton omits the batch dimension.
    let dims = |port: &Port| port.shape.iter().skip(usize::from(model.batch_limit.is_some())).copied().collect();
    let inputs = model.signature.inputs.iter();
    let is_made = |port: &Port| model.config.feature_inputs().any(|input| input.name == port.name);
    config.input = inputs
        .map(|port| InputConfig { optional: is_made(port), ..InputConfig::new(&port.name, port.datatype, dims(port)) })
        .collect();

    let properties = properties(&app, &model).into_iter();
    config.parameters = properties.map(|(name, string_value)| (name, ModelParameter { string_value })).collect();
    let label_file = |port: &Port| {
        let declared = model.config.output.iter().find(|output| output.name == port.name);
        declared.and_then(|output| output.labels.clone()).unwrap_or_default()
    };
    let outputs = model.signature.outputs.iter();
    config.output = outputs
        .map(|port| OutputConfig {
            label_filename: label_file(port),
            ..OutputConfig::new(&port.name, port.datatype, dims(port))
        })
        .collect();

    config.instance_group = vec![InstanceGroup::cpu(&name, u32::try_from(model.scale().max).unwrap_or(u32::MAX))];
    config.dynamic_batching = model.batching().map(|policy| DynamicBatching {
        preferred_batch_size: policy.preferred.iter().map(|&size| size as u64).collect(),
        max_queue_delay_microseconds: microseconds(policy.delay),
        preserve_ordering: false,
        priority_levels: Priority::ALL.len() as u64,
        default_priority_level: 1,
        default_queue_policy: QueuePolicy {
            timeout_action: TimeoutAction::Reject,
            default_timeout_microseconds: microseconds(model.timeout),
            allow_timeout_override: true,
            max_queue_size: model.queue_limit() as u64,
        },
    });
    config.response_cache = model.config.response_cache.enable.then_some(ModelResponseCache { enable: true });
    Ok(json(&config))
}

fn microseconds(time: std::time::Duration) -> u64 {
    u64::try_from(time.as_micros()).unwrap_or(u64::MAX)
}

/// `GET .../stats` of one model: of one version, or of all that are live.
pub async fn statistics(State(app): State<App>, PathParts(path): PathParts) -> Result<Response, ApiError> {
    let pinned = pin(&app, &path)?;
    let models = match path.get("version") {
        Some(_) => vec![pinned],
        None => app.serving().repository().live(&pinned.name)?,
    };
    Ok(statistics_reply(&models))
}

/// `GET /v2/models/stats`.
pub async fn all_statistics(State(app): State<App>, Extension(access): Extension<Access>) -> Response {
    let mut models = app.serving().repository().all_live();
    models.retain(|model| access.has_model(&model.name));
    statistics_reply(&models)
}

fn statistics_reply(models: &[Arc<LoadedModel>]) -> Response {
    let model_stats = models.iter().map(|model| model_statistics(model, &model.statistics.snapshot())).collect();
    json(&StatisticsReply { model_stats })
}

fn model_statistics(model: &LoadedModel, counters: &Counters) -> ModelStatistics {
    let duration =
        |total: Total| Duration { count: total.count, ns: u64::try_from(total.time.as_nanos()).unwrap_or(u64::MAX) };
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

/// `POST /v2/repository/index`.
pub async fn index(
    State(app): State<App>,
    Extension(access): Extension<Access>,
    request: Request,
) -> Result<Response, ApiError> {
    let (parts, body) = request.into_parts();
    let wanted = IndexRequest::decode(&body::read(&parts, body, app.context()).await?.bytes)?;
    let rows = app
        .serving()
        .repository()
        .index()
        .into_iter()
        .filter(|row| access.has_model(&row.model) && (!wanted.ready || row.state == VersionState::Ready));
    let rows: Vec<IndexRow> = rows
        .map(|row| {
            let (state, reason) = (ModelState::from(&row.state), row.reason());
            IndexRow::new(row.model, row.version, state, reason)
        })
        .collect();
    Ok(json(&rows))
}

/// `POST /v2/repository/models/{model}/load`.
pub async fn load(
    State(app): State<App>,
    PathParts(path): PathParts,
    Extension(principal): Extension<Principal>,
    request: Request,
) -> Result<StatusCode, ApiError> {
    let (parts, body) = request.into_parts();
    let name = target(&path)?.model;
    let wanted = LoadRequest::decode(&body::read(&parts, body, app.context()).await?.bytes)?;
    let sent: BTreeSet<&str> =
        wanted.files.iter().map(String::as_str).chain(wanted.config.as_ref().map(|_| "config")).collect();
    if !sent.is_empty() {
        let sent: Vec<_> = sent.into_iter().collect();
        let message = format!(
            "cannot load '{name}' with {}: configs and files cannot be sent; put them into the model repository",
            sent.join(", ")
        );
        return Err(ApiError::new(StatusCode::BAD_REQUEST, message));
    }

    let serving = app.serving().clone();
    let load = async move {
        serving
            .repository()
            .load(&name, &principal)
            .await
            .inspect(|()| serving.warn_of_undeclared_features(Some(&name)))
    };
    app.context().run_to_completion(load).await??;
    Ok(StatusCode::OK)
}

/// `POST /v2/repository/models/{model}/unload`.
pub async fn unload(
    State(app): State<App>,
    PathParts(path): PathParts,
    Extension(principal): Extension<Principal>,
    request: Request,
) -> Result<StatusCode, ApiError> {
    let (parts, body) = request.into_parts();
    let name = target(&path)?.model;
    // There are no ensembles, so there are no dependents to unload.
    UnloadRequest::decode(&body::read(&parts, body, app.context()).await?.bytes)?;
    let repository = app.serving().repository().clone();
    app.context().run_to_completion(async move { repository.unload(&name, &principal).await }).await??;
    Ok(StatusCode::OK)
}
