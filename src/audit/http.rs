//! The routes of the audit log: its status, and its files in the form of C2SP tlog-tiles.

use std::collections::HashMap;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use axum::body::Body;
use axum::extract::State;
use axum::http::{HeaderValue, StatusCode, header};
use axum::response::Response;
use axum::routing::get;
use ledge_base::clock;
use ledge_part::api_error::ApiError;
use ledge_part::reply::json;
use ledge_part::route::needs::{AUDIT, VIEW};
use ledge_part::route::{PathParts, Route, RouteScope};
use serde::Serialize;

use crate::certificate;
use crate::files::AuditLogFiles;
use crate::layout::{self, TilePath};
use crate::local::LocalAuditLog;
use crate::proof::{InclusionProof, ProofError};
use crate::status::{AuditState, AuditStatus, AuditSyncStatus, LiveCopyStatus, PublishedCheckpoint};

/// The routes of the audit log.
pub const ROUTES: &[Route<AuditHttpState>] = &[
    Route::get("/audit/status", VIEW, || get(status)),
    Route::get("/audit/logs/{generation}/checkpoint", AUDIT, || get(checkpoint)).scope(RouteScope::Box),
    Route::get("/audit/logs/{generation}/tile/{*path}", AUDIT, || get(tile)).scope(RouteScope::Box),
    Route::get("/audit/erasures/{statement}", AUDIT, || get(erasure)).scope(RouteScope::Box),
];

/// The state of the routes.
#[derive(Debug, Clone)]
pub struct AuditHttpState {
    pub state: AuditState,
    pub folder: Arc<Path>,
}

/// `GET /audit/status`.
async fn status(State(AuditHttpState { state, .. }): State<AuditHttpState>) -> Response {
    // The head first: a record that comes between the two may make it older than the log, never newer.
    let head = state.heads().borrow().as_ref().map(|head| head.checkpoint.note.clone());
    let status = state.status();
    json(&AuditStatusDocument::new(&status, head.as_deref()))
}

#[derive(Serialize)]
struct AuditStatusDocument<'a> {
    origin: &'a str,
    verifier_key: &'a str,
    /// `null`, as the next two, until the log is open: the signed head may have fewer records than the log.
    size: Option<u64>,
    first: Option<u64>,
    bytes: Option<u64>,
    quota: u64,
    error: Option<&'a str>,
    alarm: Option<&'a str>,
    lost: LostDocument,
    checkpoint: Option<String>,
    sync: Option<AuditSyncDocument<'a>>,
    copies: Vec<LiveCopyDocument<'a>>,
}

#[derive(Serialize)]
struct LostDocument {
    calls: u64,
    events: u64,
}

#[derive(Serialize)]
struct AuditSyncDocument<'a> {
    url: &'a str,
    size: u64,
    /// In RFC 3339, as all times here.
    at: Option<String>,
    waiting_since: Option<String>,
    error: Option<&'a str>,
}

#[derive(Serialize)]
struct LiveCopyDocument<'a> {
    name: &'static str,
    to: &'a str,
    sent: u64,
    lost: u64,
    error: Option<&'a str>,
}

impl<'a> AuditStatusDocument<'a> {
    fn new(status: &'a AuditStatus, checkpoint: Option<&[u8]>) -> Self {
        let AuditStatus { origin, verifier_key, log, quota, error, alarm, lost, sync, copies } = status;
        Self {
            origin,
            verifier_key,
            size: log.map(|log| log.size),
            first: log.map(|log| log.first),
            bytes: log.map(|log| log.bytes),
            quota: *quota,
            error: error.as_deref(),
            alarm: alarm.as_deref(),
            lost: LostDocument { calls: lost.0, events: lost.1 },
            checkpoint: checkpoint.map(|note| String::from_utf8_lossy(note).into_owned()),
            sync: sync.as_ref().map(Into::into),
            copies: copies.iter().map(Into::into).collect(),
        }
    }
}

impl<'a> From<&'a AuditSyncStatus> for AuditSyncDocument<'a> {
    fn from(AuditSyncStatus { url, size, at_ms, waiting_since_ms, error }: &'a AuditSyncStatus) -> Self {
        let (at, waiting_since) = (at_ms.map(clock::rfc3339), waiting_since_ms.map(clock::rfc3339));
        Self { url, size: *size, at, waiting_since, error: error.as_deref() }
    }
}

impl<'a> From<&'a LiveCopyStatus> for LiveCopyDocument<'a> {
    fn from(LiveCopyStatus { name, to, sent, lost, error }: &'a LiveCopyStatus) -> Self {
        Self { name, to, sent: *sent, lost: *lost, error: error.as_deref() }
    }
}

/// `GET /audit/logs/{generation}/checkpoint`.
async fn checkpoint(State(served): State<AuditHttpState>, PathParts(path): PathParts) -> Result<Response, ApiError> {
    let log = log(&served, &path)?;
    let note = read(move || log.checkpoint()).await?.ok_or_else(|| not_found("this log has no checkpoint yet"))?;
    Ok(file(note, "text/plain; charset=utf-8", "no-cache"))
}

/// `GET /audit/logs/{generation}/tile/{*path}`: hashes and records under the published checkpoint.
async fn tile(State(served): State<AuditHttpState>, PathParts(path): PathParts) -> Result<Response, ApiError> {
    let log = log(&served, &path)?;
    let name = format!("tile/{}", path.get("path").map_or("", String::as_str));
    let tile = TilePath::parse(&name).ok_or_else(|| not_found("this is not the path of a tile (C2SP tlog-tiles)"))?;
    let found = read(move || {
        let size = log.checkpoint()?.as_deref().and_then(size).unwrap_or(0);
        // A record beyond the checkpoint is not signed yet, and may be replaced after a power cut.
        if tile.is_within(size) { log.tile(tile) } else { Ok(None) }
    });
    let found = found.await?.ok_or_else(|| {
        not_found(
            "no such tile: the checkpoint of this log does not cover it, or its records are no longer on this box (see \
             first in GET /audit/status)",
        )
    })?;
    Ok(file(found, "application/octet-stream", "max-age=31536000, immutable"))
}

/// The longest time that a record may take to be signed. The box signs once a second, and after an erasure at once.
const SIGNATURE_TIMEOUT: Duration = Duration::from_secs(5);

#[derive(Serialize)]
struct ErasureProofDocument {
    /// The number of the log.
    log: u32,
    /// The number of the record in it.
    record: u64,
    /// The proof of the record, as `ledge audit prove` writes it.
    proof: String,
    verifier_key: String,
}

/// `GET /audit/erasures/{statement}`: the proof of the record of an erasure, by the SHA-256 of its statement. The
/// record must be in the log that is being written.
async fn erasure(State(served): State<AuditHttpState>, PathParts(path): PathParts) -> Result<Response, ApiError> {
    let hash = path.get("statement").cloned().unwrap_or_default();
    if hash.len() != 64 || !hash.bytes().all(|byte| matches!(byte, b'0'..=b'9' | b'a'..=b'f')) {
        return Err(not_found("no such statement: expected its SHA-256 in 64 hexadecimal digits"));
    }
    let mut heads = served.state.heads();
    let until = tokio::time::Instant::now() + SIGNATURE_TIMEOUT;
    // The log, and the number of its records that were searched.
    let mut searched = (0, 0);
    loop {
        let head = heads.borrow_and_update().clone();
        if let Some(head) = head {
            let from = if searched.0 == head.generation { searched.1 } else { 0 };
            if let Some(proof) = erasure_in(&served, &head, from, hash.clone()).await? {
                let (log, record) = (head.generation, proof.index);
                let proof = String::from_utf8_lossy(&proof.to_bytes()).into_owned();
                let verifier_key = served.state.status().verifier_key;
                return Ok(json(&ErasureProofDocument { log, record, proof, verifier_key }));
            }
            searched = (head.generation, head.checkpoint.size);
        }
        if !matches!(tokio::time::timeout_at(until, heads.changed()).await, Ok(Ok(()))) {
            return Err(not_found("no signed record of the current log has the hash of this statement"));
        }
    }
}

/// The proof of the record of an erasure, if it is among the records of a signed head from `from` on.
async fn erasure_in(
    served: &AuditHttpState,
    head: &PublishedCheckpoint,
    from: u64,
    hash: String,
) -> Result<Option<InclusionProof>, ApiError> {
    let files = AuditLogFiles::Local(LocalAuditLog::open(&layout::log_folder(&served.folder, head.generation)));
    let (runtime, checkpoint) = (tokio::runtime::Handle::current(), head.checkpoint.clone());
    let proving = tokio::task::spawn_blocking(move || {
        runtime.block_on(async {
            match certificate::record_of(&files, from, checkpoint.size, &hash).await? {
                Some(seq) => InclusionProof::make(&files, &checkpoint, seq).await.map(Some),
                None => Ok(None),
            }
        })
    });
    let failed = |reason: String| {
        ApiError::new(StatusCode::INTERNAL_SERVER_ERROR, format!("the audit log cannot be read: {reason}"))
    };
    let proof: Result<Option<InclusionProof>, ProofError> = proving.await.map_err(|error| failed(error.to_string()))?;
    proof.map_err(|error| failed(error.to_string()))
}

/// The log of the generation in the path. It need not exist.
fn log(served: &AuditHttpState, path: &HashMap<String, String>) -> Result<LocalAuditLog, ApiError> {
    let text = path.get("generation").map_or("", String::as_str);
    let generation = text.parse::<u32>().ok().filter(|number| *number > 0 && number.to_string() == text);
    let generation = generation.ok_or_else(|| not_found("no such log: logs are numbered from 1"))?;
    Ok(LocalAuditLog::open(&layout::log_folder(&served.folder, generation)))
}

/// The number of records under a checkpoint: its second line.
fn size(note: &[u8]) -> Option<u64> {
    std::str::from_utf8(note).ok()?.lines().nth(1)?.parse().ok()
}

/// Reads a file off the async threads.
async fn read<T: Send + 'static>(reading: impl FnOnce() -> std::io::Result<T> + Send + 'static) -> Result<T, ApiError> {
    let failed = |reason: String| {
        ApiError::new(StatusCode::INTERNAL_SERVER_ERROR, format!("the audit log cannot be read: {reason}"))
    };
    let read = tokio::task::spawn_blocking(reading).await.map_err(|error| failed(error.to_string()))?;
    read.map_err(|error| failed(error.to_string()))
}

fn not_found(message: &str) -> ApiError {
    ApiError::new(StatusCode::NOT_FOUND, message)
}

fn file(content: Vec<u8>, kind: &'static str, caching: &'static str) -> Response {
    let mut response = Response::new(Body::from(content));
    response.headers_mut().insert(header::CONTENT_TYPE, HeaderValue::from_static(kind));
    response.headers_mut().insert(header::CACHE_CONTROL, HeaderValue::from_static(caching));
    response
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::status::LocalLogFigures;

    #[test]
    fn the_status_has_every_field() {
        let status = AuditStatus {
            origin: "ledge.audit/box-1/2".into(),
            verifier_key: "ledge.audit/box-1+00+AA".into(),
            log: Some(LocalLogFigures { size: 10, first: 3, bytes: 4000 }),
            quota: 9000,
            error: Some("no room".into()),
            alarm: Some("cut".into()),
            lost: (5, 1),
            sync: Some(AuditSyncStatus {
                url: "https://a/".into(),
                size: 7,
                at_ms: Some(1_767_225_600_000),
                waiting_since_ms: None,
                error: Some("away".into()),
            }),
            copies: vec![LiveCopyStatus { name: "syslog", to: "s:6514".into(), sent: 9, lost: 2, error: None }],
        };
        let document = serde_json::to_value(AuditStatusDocument::new(&status, Some(b"note\n"))).unwrap();
        let expected = json!({
            "origin": "ledge.audit/box-1/2", "verifier_key": "ledge.audit/box-1+00+AA", "size": 10, "first": 3,
            "bytes": 4000, "quota": 9000, "error": "no room", "alarm": "cut", "lost": {"calls": 5, "events": 1},
            "checkpoint": "note\n",
            "sync": {
                "url": "https://a/", "size": 7, "at": "2026-01-01T00:00:00Z", "waiting_since": null, "error": "away",
            },
            "copies": [{"name": "syslog", "to": "s:6514", "sent": 9, "lost": 2, "error": null}],
        });
        assert_eq!(document, expected);
    }

    #[test]
    fn a_log_that_is_not_open_yet_has_no_figures() {
        let document =
            serde_json::to_value(AuditStatusDocument::new(&AuditStatus::default(), Some(b"note\n"))).unwrap();
        let figures = ["size", "first", "bytes"].map(|name| document[name].clone());
        assert_eq!(figures, [serde_json::Value::Null, serde_json::Value::Null, serde_json::Value::Null]);
    }
}
