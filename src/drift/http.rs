//! The routes of drift: the state of a model, and the acceptance of its present window.

use axum::Extension;
use axum::extract::State;
use axum::http::StatusCode;
use axum::response::Response;
use axum::routing::{get, post};
use ledge_base::names::ModelName;
use ledge_base::principal::Principal;
use ledge_part::api_error::ApiError;
use ledge_part::reply::json;
use ledge_part::route::needs::{OPERATE, VIEW};
use ledge_part::route::{PathParts, Route, RouteScope};
use serde::{Deserialize, Serialize};

use crate::column::{Column, Side};
use crate::drift::Drift;
use crate::store::WatchedVersion;
use crate::watch::VersionWatch;

/// The routes of drift.
pub const ROUTES: &[Route<Drift>] = &[
    Route::get("/v2/models/{model}/drift", VIEW, || get(status)).scope(RouteScope::Model),
    Route::post("/v2/models/{model}/drift/accept", OPERATE, || post(accept)).scope(RouteScope::Model).audited(),
];

/// The watched versions of a model that answer now.
#[derive(Debug, Serialize, Deserialize)]
pub struct DriftDocument {
    pub versions: Vec<VersionDocument>,
}

/// The watch on a version.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct VersionDocument {
    pub model: String,
    pub version: u64,
    /// `learning`, or the origin of the reference: `learnt`, `inherited` or `accepted`.
    pub reference: String,
    /// The time at which the reference was fixed, in milliseconds since the Unix epoch.
    pub fixed_ms: Option<u64>,
    /// The windows that were learnt.
    pub learnt_windows: u32,
    /// The calls of the present window that were counted.
    pub window_calls: u64,
    /// The calls of the last window that was judged.
    pub judged_calls: u64,
    /// True while a column drifts and lasts.
    pub drifting: bool,
    pub columns: Vec<ColumnDocument>,
}

/// A column in its last window.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct ColumnDocument {
    pub name: String,
    /// `input` or `output`.
    pub side: String,
    /// The population stability index, without the part that chance makes.
    pub index: f64,
    pub limit: f64,
    /// The windows in a row that drifted.
    pub drifted_windows: u16,
    /// True when they are enough for a finding.
    pub drifting: bool,
    /// The change, while the last window drifts.
    pub change: Option<String>,
}

impl VersionDocument {
    pub(crate) fn new((model, version): &WatchedVersion, watch: &VersionWatch) -> Self {
        let state = watch.state();
        let column = |(column, judged, drifting): (&Column, crate::column::ColumnJudgement, bool)| ColumnDocument {
            name: column.name.clone(),
            side: if column.side == Side::Input { "input" } else { "output" }.to_owned(),
            index: (judged.index * 1e4).round() / 1e4,
            limit: (judged.limit * 1e4).round() / 1e4,
            drifted_windows: column.drifted,
            drifting,
            change: (column.drifted > 0).then(|| column.change()),
        };
        let columns: Vec<_> = watch.judgements().map(column).collect();
        Self {
            model: model.to_string(),
            version: version.get(),
            reference: state.fixed.map_or("learning", |(_, origin)| origin.as_str()).to_owned(),
            fixed_ms: state.fixed.map(|(at, _)| at),
            learnt_windows: state.learnt,
            window_calls: state.calls,
            judged_calls: state.judged_calls,
            drifting: columns.iter().any(|column| column.drifting),
            columns,
        }
    }
}

fn model_of(path: &PathParts) -> Result<ModelName, ApiError> {
    let name = path.0.get("model").map_or("", String::as_str);
    name.parse().map_err(|error| ApiError::new(StatusCode::BAD_REQUEST, format!("{error}")))
}

/// The watched versions of a model that answers.
fn versions_of(drift: &Drift, model: &ModelName) -> Result<Vec<VersionDocument>, ApiError> {
    if drift.serves(model) {
        return Ok(drift.documents(Some(model)));
    }
    Err(ApiError::new(StatusCode::NOT_FOUND, format!("no version of model '{model}' answers")))
}

/// `GET /v2/models/{model}/drift`.
async fn status(State(drift): State<Drift>, path: PathParts) -> Result<Response, ApiError> {
    let model = model_of(&path)?;
    Ok(json(&DriftDocument { versions: versions_of(&drift, &model)? }))
}

/// `POST /v2/models/{model}/drift/accept`: the present window of each version that answers is its reference.
async fn accept(
    State(drift): State<Drift>,
    path: PathParts,
    Extension(principal): Extension<Principal>,
) -> Result<StatusCode, ApiError> {
    let model = model_of(&path)?;
    let versions = versions_of(&drift, &model)?;
    let accepting = move || -> std::io::Result<bool> {
        let mut is_any = false;
        for document in &versions {
            let Ok(version) = document.version.try_into() else { continue };
            is_any |= drift.accept(&model, version, &principal)?.is_some();
        }
        Ok(is_any)
    };
    match tokio::task::spawn_blocking(accepting).await {
        Ok(Ok(true)) => Ok(StatusCode::OK),
        Ok(Ok(false)) => {
            let message = "too few calls were counted so far: there is no window to accept";
            Err(ApiError::new(StatusCode::CONFLICT, message))
        }
        Ok(Err(error)) => {
            let message = format!("the reference counts until a restart, but cannot be written: {error}");
            Err(ApiError::new(StatusCode::INTERNAL_SERVER_ERROR, message))
        }
        Err(_) => Err(ApiError::new(StatusCode::INTERNAL_SERVER_ERROR, "the daemon is shutting down")),
    }
}
