//! Handlers of models: metadata, readiness, config, statistics, load and unload.

use std::collections::HashMap;
use std::sync::Arc;

use axum::Extension;
use axum::extract::{Request, State};
use axum::http::StatusCode;
use axum::response::Response;
use ledge_base::principal::Principal;
use ledge_identity::access::CallerAccess;
use ledge_models::repository::LoadedModel;
use ledge_part::api_error::ApiError;
use ledge_part::body;
use ledge_part::reply::json;
use ledge_part::route::PathParts;
use ledge_protocol::ModelTarget;
use ledge_protocol::metadata::{self, IndexRequest, LoadRequest, ReadyResponse, StatisticsReply, UnloadRequest};

use super::App;
use super::reply::not_ready;

/// The model and version in a path.
pub fn target(path: &HashMap<String, String>) -> Result<ModelTarget, ApiError> {
    ModelTarget::parse(path.get("model").map_or("", String::as_str), path.get("version").map(String::as_str))
}

fn pin(app: &App, path: &HashMap<String, String>) -> Result<Arc<LoadedModel>, ApiError> {
    let ModelTarget { model, version } = target(path)?;
    Ok(app.serving().repository().pin(&model, version)?)
}

/// `GET .../ready`: 404 when unknown, 503 when known and not ready.
pub async fn ready(State(app): State<App>, PathParts(path): PathParts) -> Result<Response, ApiError> {
    let ModelTarget { model, version } = target(&path)?;
    match app.serving().repository().pin(&model, version) {
        Ok(pinned) if let Some(reason) = pinned.fault() => Ok(not_ready(&reason)),
        Ok(_) => Ok(json(&ReadyResponse { name: Some(&model), ready: true })),
        Err(error) if error.is_known() => Ok(not_ready(&error.to_string())),
        Err(error) => Err(error.into()),
    }
}

/// `GET /v2/models/{model}[/versions/{version}]`.
pub async fn metadata(State(app): State<App>, PathParts(path): PathParts) -> Result<Response, ApiError> {
    let model = pin(&app, &path)?;
    Ok(json(&metadata::of_model(app.serving(), &model)?))
}

/// `GET .../config`: the model config in Triton's form.
pub async fn config(State(app): State<App>, PathParts(path): PathParts) -> Result<Response, ApiError> {
    let model = pin(&app, &path)?;
    Ok(json(&metadata::config_of(app.serving(), &model)))
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
pub async fn all_statistics(State(app): State<App>, Extension(access): Extension<CallerAccess>) -> Response {
    let mut models = app.serving().repository().all_live();
    models.retain(|model| access.has_model(&model.name));
    statistics_reply(&models)
}

fn statistics_reply(models: &[Arc<LoadedModel>]) -> Response {
    let model_stats = models.iter().map(|model| metadata::statistics_of(model)).collect();
    json(&StatisticsReply { model_stats })
}

/// `POST /v2/repository/index`.
pub async fn index(
    State(app): State<App>,
    Extension(access): Extension<CallerAccess>,
    request: Request,
) -> Result<Response, ApiError> {
    let (parts, body) = request.into_parts();
    let wanted = IndexRequest::decode(&body::read(&parts, body, app.context()).await?.bytes)?;
    let rows = metadata::index(app.serving(), wanted.ready, |model| access.has_model(model));
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
    wanted.check(&name)?;
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
