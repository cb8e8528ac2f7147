//! The routes that administer the running feature store: state, backups, erasure, snapshots. The routes that push and
//! read values have the form of Feast, and are in the crate `http`. `http/unusual.rs` has those on unusual rows and
//! forecasts.

mod unusual;

use std::collections::BTreeMap;

use axum::Extension;
use axum::body::Body;
use axum::extract::{Request, State};
use axum::http::{HeaderMap, HeaderValue, StatusCode, Uri, header};
use axum::response::Response;
use axum::routing::{get, post};
use http_body_util::BodyExt;
use ledge_base::clock;
use ledge_base::principal::Principal;
use ledge_base::serde_messages::in_json;
use ledge_part::api_error::ApiError;
use ledge_part::body;
use ledge_part::handler_context::HandlerContext;
use ledge_part::reply::json;
use ledge_part::route::needs::{ADMINISTER, OPERATE, READ_FEATURES, VIEW};
use ledge_part::route::{Route, RouteScope};
use ledge_service::audit_event::erasure::EntityNaming;
use serde::{Deserialize, Serialize};
use serde_json::json;

use crate::backup_cipher::BackupRecipient;
use crate::online::{ErasureCounts, ErasureResult, bytes_of_json};
use crate::profiles::ProfileCounts;
use crate::statistics::{FeatureStatistics, ViewStatistics};
use crate::{FeatureStore, JoinKeyValues};

/// The routes that administer the feature store.
pub const ROUTES: &[Route<FeaturesHttpState>] = &[
    Route::get("/features/status", VIEW, || get(status)),
    Route::get("/features/backup", ADMINISTER, || get(backup)).scope(RouteScope::Box).audited(),
    Route::post("/features/restore", ADMINISTER, || post(restore)).scope(RouteScope::Box).audited(),
    Route::post("/features/erase", ADMINISTER, || post(erase)).scope(RouteScope::Box).audited(),
    Route::post("/features/disclose", ADMINISTER, || post(disclose)).scope(RouteScope::Box).audited(),
    Route::get("/features/unusual", READ_FEATURES, || get(unusual::unusual)).scope(RouteScope::Values),
    Route::post("/features/unusual/normal", OPERATE, || post(unusual::call_normal)).scope(RouteScope::Box).audited(),
    Route::get("/features/forecast", READ_FEATURES, || get(unusual::forecast)).scope(RouteScope::Values),
    Route::post("/features/snapshot", OPERATE, || post(snapshot))
        .scope(RouteScope::Box)
        .recorded_as("feature_snapshot"),
    Route::post("/features/compact", OPERATE, || post(compact))
        .scope(RouteScope::Box)
        .recorded_as("feature_compaction"),
];

/// The state of the routes.
#[derive(Debug, Clone)]
pub struct FeaturesHttpState {
    pub store: FeatureStore,
    pub context: HandlerContext,
}

/// `GET /features/status`.
async fn status(State(FeaturesHttpState { store, .. }): State<FeaturesHttpState>) -> Response {
    match store.statistics() {
        Some(statistics) => json(&FeatureStoreDocument::new(&statistics, store.folder().display().to_string())),
        None if store.registry().is_empty() => json(&json!({ "state": "disabled" })),
        None => json(&json!({ "state": "unavailable", "folder": store.folder() })),
    }
}

#[derive(Serialize)]
struct FeatureStoreDocument<'a> {
    state: &'a str,
    #[serde(skip_serializing_if = "Option::is_none")]
    reason: Option<&'a str>,
    folder: String,
    feature_views: Vec<FeatureViewStatus<'a>>,
    bytes: StoreBytes,
    journal_next_seq: u64,
    /// The time of the newest snapshot, in RFC 3339.
    snapshot: Option<String>,
    reads: u64,
    cells: BTreeMap<&'static str, u64>,
    journal_writes: u64,
    refused: BTreeMap<&'static str, u64>,
    purged: u64,
    rebuilds: u64,
    damage_found: u64,
    entries_lost: u64,
    future_rows_replaced: u64,
    last_recovery_s: f64,
    /// `off`, `pending` or `on`.
    encryption: &'a str,
    entity_keys: u64,
}

#[derive(Serialize)]
struct StoreBytes {
    journal: u64,
    index: u64,
    snapshots: u64,
}

#[derive(Serialize)]
struct FeatureViewStatus<'a> {
    name: &'a str,
    rows: u64,
    /// The newest event pushed since the start, in RFC 3339.
    newest_event: Option<String>,
    pushed: BTreeMap<&'static str, usize>,
    /// Acknowledged entries that were lost with snapshots, at least.
    entries_lost: u64,
    /// Its entities that are watched for unusual rows.
    #[serde(skip_serializing_if = "Option::is_none")]
    unusual_rows: Option<ProfileCounts>,
}

impl<'a> From<&'a ViewStatistics> for FeatureViewStatus<'a> {
    fn from(view: &'a ViewStatistics) -> Self {
        Self {
            name: &view.view,
            rows: view.rows,
            newest_event: (view.newest_us != 0).then(|| clock::rfc3339_micros(view.newest_us)),
            pushed: view.pushed.outcomes().into_iter().collect(),
            entries_lost: view.lost,
            unusual_rows: view.profiles,
        }
    }
}

impl<'a> FeatureStoreDocument<'a> {
    fn new(found: &'a FeatureStatistics, folder: String) -> Self {
        let created_us = i64::try_from(found.snapshot_created_ms.saturating_mul(1000)).unwrap_or(i64::MAX);
        Self {
            state: found.state,
            reason: found.reason.as_deref(),
            folder,
            feature_views: found.views.iter().map(Into::into).collect(),
            bytes: StoreBytes {
                journal: found.journal_bytes,
                index: found.index_bytes,
                snapshots: found.snapshot_bytes,
            },
            journal_next_seq: found.journal_next_seq,
            snapshot: (created_us != 0).then(|| clock::rfc3339_micros(created_us)),
            reads: found.reads,
            cells: found.cells.iter().map(|(status, count)| (status.as_str(), *count)).collect(),
            journal_writes: found.groups,
            refused: found.refused().into_iter().collect(),
            purged: found.purged,
            rebuilds: found.rebuilds,
            damage_found: found.damage_found,
            entries_lost: found.entries_lost,
            future_rows_replaced: found.taken_back,
            encryption: found.sealing,
            entity_keys: found.keys,
            last_recovery_s: std::time::Duration::from_micros(found.last_recovery_us).as_secs_f64(),
        }
    }
}

/// `GET /features/backup`: everything, or the rows of one view.
async fn backup(
    State(FeaturesHttpState { store, .. }): State<FeaturesHttpState>,
    Extension(principal): Extension<Principal>,
    uri: Uri,
) -> Result<Response, ApiError> {
    let BackupQuery { view, recipient, plain } = BackupQuery::parse(uri.query().unwrap_or_default())?;
    if store.is_sealed() && recipient.is_none() && !plain {
        let message = "the feature store is encrypted: set recipient=age1… for an encrypted backup, or plain=true for \
                       an unencrypted one";
        return Err(ApiError::new(StatusCode::BAD_REQUEST, message));
    }
    let is_encrypted = recipient.is_some();
    let pieces = store.backup(view, recipient, &principal).await?;
    tracing::info!(%principal, feature_view = view, "a backup of the feature store was started");

    let stream = futures_util::stream::unfold(pieces, |mut pieces| async { Some((pieces.next().await?, pieces)) });
    let mut response = Response::new(Body::from_stream(stream));
    let day = clock::rfc3339_micros(clock::unix_micros());
    let day = day.get(..10).unwrap_or_default();
    let age = if is_encrypted { ".age" } else { "" };
    let name = format!("attachment; filename=\"{}-{day}.ledge{age}\"", view.unwrap_or("features"));
    let headers = response.headers_mut();
    headers.insert(header::CONTENT_TYPE, HeaderValue::from_static("application/octet-stream"));
    if let Ok(name) = HeaderValue::from_str(&name) {
        headers.insert(header::CONTENT_DISPOSITION, name);
    }
    Ok(response)
}

/// The query of a request for a backup.
#[derive(Default)]
struct BackupQuery<'q> {
    view: Option<&'q str>,
    recipient: Option<BackupRecipient>,
    plain: bool,
}

impl<'q> BackupQuery<'q> {
    fn parse(query: &'q str) -> Result<Self, ApiError> {
        let bad = |message: String| ApiError::new(StatusCode::BAD_REQUEST, message);
        let mut found = Self::default();
        for part in query.split('&').filter(|part| !part.is_empty()) {
            match part.split_once('=') {
                Some(("feature_view", name)) if found.view.is_none() => found.view = Some(name),
                Some(("recipient", text)) if found.recipient.is_none() => {
                    found.recipient = Some(BackupRecipient::key(text).map_err(|error| bad(error.to_string()))?);
                }
                Some(("plain", "true")) => found.plain = true,
                _ => {
                    return Err(bad(format!(
                        "unknown query {part:?}: expected feature_view=NAME, recipient=age1… or plain=true, each at \
                         most once"
                    )));
                }
            }
        }
        Ok(found)
    }
}

#[derive(Serialize)]
struct RestoredDocument {
    records: u64,
}

/// `POST /features/restore`: a backup replaces the content of the store. It may be as large as the disk allows, so
/// `http.max_body_bytes` does not apply; each part of it must arrive within `http.body_timeout_ms`.
async fn restore(
    State(FeaturesHttpState { store, context }): State<FeaturesHttpState>,
    Extension(principal): Extension<Principal>,
    request: Request,
) -> Result<Response, ApiError> {
    let (parts, body) = request.into_parts();
    let upload = plain(&parts.headers).and_then(|()| Ok(store.upload()?));
    let mut upload = match upload {
        Ok(upload) => upload,
        Err(failure) => {
            body::discard_unless_expected(&parts.headers, body, context.limits()).await;
            return Err(failure);
        }
    };

    let mut body = std::pin::pin!(body);
    loop {
        let frame = tokio::time::timeout(context.limits().timeout, body.frame()).await.map_err(|_| {
            let limit = context.limits().timeout.as_millis();
            ApiError::new(StatusCode::REQUEST_TIMEOUT, format!("no data arrived for {limit} ms (http.body_timeout_ms)"))
        })?;
        let Some(frame) = frame else { break };
        let frame = frame
            .map_err(|error| ApiError::new(StatusCode::BAD_REQUEST, format!("the body cannot be read: {error}")))?;
        if let Ok(data) = frame.into_data() {
            upload.write(&data).await?;
        }
    }

    let restoring = principal.clone();
    let records = context.run_to_completion(async move { store.restore(upload, restoring).await }).await??;
    tracing::info!(%principal, records, "a backup of the feature store was restored");
    Ok(json(&RestoredDocument { records }))
}

/// Refuses a compressed body: a backup is verified by its own bytes.
fn plain(headers: &HeaderMap) -> Result<(), ApiError> {
    match headers.get(header::CONTENT_ENCODING) {
        Some(encoding) if encoding != "identity" => Err(ApiError::new(
            StatusCode::UNSUPPORTED_MEDIA_TYPE,
            "send the backup unchanged, without a content encoding",
        )),
        _ => Ok(()),
    }
}

/// One entity, or several, which take the time of one where files must be rewritten.
#[derive(Deserialize)]
#[serde(untagged, deny_unknown_fields)]
enum EraseBody {
    One {
        entity: JoinKeyValues,
        #[serde(default)]
        certificate: Option<EntityNaming>,
    },
    Several {
        entities: Vec<JoinKeyValues>,
        #[serde(default)]
        certificate: Option<EntityNaming>,
    },
}

#[derive(Serialize)]
struct ErasedDocument {
    records: u64,
    feature_views: u64,
    /// The statement of each entity. A certificate also has the proof of `GET /audit/erasures/{statement}`.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    statements: Vec<String>,
}

/// `POST /features/erase`: erases entities in every view, and every entity that has the join keys of one of them among
/// others.
async fn erase(
    State(FeaturesHttpState { store, context }): State<FeaturesHttpState>,
    Extension(principal): Extension<Principal>,
    request: Request,
) -> Result<Response, ApiError> {
    let (parts, body) = request.into_parts();
    let received = body::read(&parts, body, &context).await?;
    let wrong = |reason: &dyn std::fmt::Display| {
        let message =
            format!("{reason}: expected {{\"entity\": {{\"JOIN_KEY\": VALUE}}}}, or \"entities\" with a list of such");
        ApiError::new(StatusCode::BAD_REQUEST, message)
    };
    let _tree = received.account.take(bytes_of_json(&received.bytes))?;
    let body = serde_json::from_slice(&received.bytes).map_err(|error| wrong(&in_json(&error.to_string())))?;
    let (entities, naming) = match body {
        EraseBody::One { entity, certificate } => (vec![entity], certificate),
        EraseBody::Several { entities, .. } if entities.is_empty() => {
            return Err(wrong(&"the list of entities is empty"));
        }
        EraseBody::Several { entities, certificate } => (entities, certificate),
    };
    let erased =
        context.run_to_completion(async move { store.erase_with(entities, naming, principal).await }).await??;
    let ErasureResult { counts: ErasureCounts { records, views: feature_views }, statements } = erased;
    Ok(json(&ErasedDocument { records, feature_views, statements }))
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct DiscloseBody {
    entity: JoinKeyValues,
}

/// `POST /features/disclose`: everything that the store has on an entity.
async fn disclose(
    State(FeaturesHttpState { store, context }): State<FeaturesHttpState>,
    Extension(principal): Extension<Principal>,
    request: Request,
) -> Result<Response, ApiError> {
    let (parts, body) = request.into_parts();
    let received = body::read(&parts, body, &context).await?;
    let _tree = received.account.take(bytes_of_json(&received.bytes))?;
    let DiscloseBody { entity } = serde_json::from_slice(&received.bytes).map_err(|error| {
        let message = format!("{}: expected {{\"entity\": {{\"JOIN_KEY\": VALUE}}}}", in_json(&error.to_string()));
        ApiError::new(StatusCode::BAD_REQUEST, message)
    })?;
    let disclosed = context.run_to_completion(async move { store.disclose(entity, principal).await }).await??;
    Ok(json(&disclosed))
}

/// `POST /features/snapshot`.
async fn snapshot(
    State(FeaturesHttpState { store, context }): State<FeaturesHttpState>,
    request: Request,
) -> Result<Response, ApiError> {
    body::discard(request.into_body(), context.limits()).await;
    let snapshotting = store.clone();
    context.run_to_completion(async move { snapshotting.snapshot().await }).await??;
    let bytes = store.statistics().map_or(0, |statistics| statistics.snapshot_bytes);
    Ok(json(&json!({ "bytes": bytes })))
}

/// `POST /features/compact`.
async fn compact(
    State(FeaturesHttpState { store, context }): State<FeaturesHttpState>,
    request: Request,
) -> Result<Response, ApiError> {
    body::discard(request.into_body(), context.limits()).await;
    let (before, after) = context.run_to_completion(async move { store.compact().await }).await??;
    Ok(json(&json!({ "bytes_before": before, "bytes_after": after })))
}
